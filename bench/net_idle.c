/* SPDX-License-Identifier: Apache-2.0 */
#include "net_idle.h"

#include "cleanup.h"
#include "client.h"
#include "clock.h"
#include "net.h"
#include "proc.h"
#include "progress.h"
#include "say.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 4096u
#define POOL (UINT64_C(32) << 20)
#define TRIPS 1000u
#define WATCH_MS 3000
#define ANSWER_MS 120000
#define WAIT_US 10000000

int net_idle_owner_main(int fd, void *context)
{
    static struct client clients[NET_PEERS_MAX];
    const struct net_idle_context *x = context;
    unsigned open = 0;
    char byte = 'R';
    int rc = 0;

    while (rc == 0 && open < x->count) {
        struct client *k = &clients[open];
        uint64_t address;
        void *memory = NULL;
        mcshm_status s;

        rc = client_open(k, x->sockets[open], "bench-idle", 0, NULL);
        if (rc != 0)
            break;
        open++;
        s = mcshm_alloc(k->c, SIZE, 0, NULL, &memory);
        if (s == MCSHM_OK)
            s = mcshm_segment_publish(k->c, "idle", MCSHM_SEGMENT_PUBLIC);
        if (s == MCSHM_OK)
            s = mcshm_buffer_publish(k->c, memory, SIZE, MCSHM_ACCESS_READ, &address);
        if (s != MCSHM_OK)
            rc = say_status(k->c, s, "publishing at an idle agent");
    }
    if (rc == 0)
        rc = proc_send(fd, &byte, 1);
    if (rc == 0)
        rc = proc_recv(fd, &byte, 1, -1);
    while (open > 0)
        client_close(&clients[--open]);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}

static int read_once(struct client *k, mcshm_segment segment, uint64_t address, void *memory,
                     double *us)
{
    mcshm_request r = {.opcode = MCSHM_READ,
                       .priority = MCSHM_CLASS_NORMAL,
                       .local = memory,
                       .segment = segment,
                       .remote_address = address,
                       .length = SIZE};
    uint64_t before = clock_ns();
    mcshm_task_status task;
    mcshm_batch batch;
    mcshm_status s = mcshm_batch_alloc(k->q, 1, &batch);

    if (s == MCSHM_OK)
        s = mcshm_submit(k->q, batch, &r, 1);
    if (s == MCSHM_OK)
        s = mcshm_batch_wait(k->q, batch, WAIT_US);
    *us = (double)(clock_ns() - before) / 1e3;
    if (s == MCSHM_OK)
        s = mcshm_task_poll(k->q, batch, 0, &task);
    if (s == MCSHM_OK && task.state != MCSHM_STATE_COMPLETED)
        s = task.error;
    if (s == MCSHM_OK)
        s = mcshm_batch_free(k->q, batch);
    return s == MCSHM_OK ? 0 : say_status(k->c, s, "reading from an idle peer");
}

int net_idle_watcher_main(int fd, void *context)
{
    static double times[TRIPS];
    const struct net_idle_watcher *x = context;
    mcshm_segment segments[NET_PEERS_MAX];
    struct net_idle_request request;
    struct client k = {.c = NULL};
    mcshm_buffer first;
    void *memory = NULL;
    unsigned open = 0;
    int rc = client_open(&k, x->socket, "bench-watch", 0, NULL);
    mcshm_status s;

    if (rc != 0)
        return rc;
    s = mcshm_alloc(k.c, SIZE, 0, NULL, &memory);
    if (s != MCSHM_OK)
        rc = say_status(k.c, s, "allocating");
    while (rc == 0 && (rc = proc_recv(fd, &request, sizeof(request), -1)) == 0) {
        struct net_idle_answer answer;
        size_t count = 1;

        for (; s == MCSHM_OK && open < request.peers; open++)
            s = mcshm_segment_open(k.c, x->names[open], &segments[open]);
        if (s == MCSHM_OK)
            s = mcshm_segment_describe(k.c, segments[0], &first, &count);
        if (s != MCSHM_OK)
            rc = say_status(k.c, s, "opening segments of idle peers");
        for (unsigned i = 0; rc == 0 && i < request.trips && i < TRIPS; i++)
            rc = read_once(&k, segments[0], first.address, memory, &times[i]);
        answer.median_us = stats_percentile(times, request.trips, 50);
        if (rc == 0)
            rc = proc_send(fd, &answer, sizeof(answer));
    }
    client_close(&k);
    return rc == -EPIPE ? 0 : rc;
}

/* Opens so many, reads from the first, then watches what the agent takes while nothing happens. */
static int watch(struct proc *watcher, pid_t agent, unsigned peers, double *us, double *cpu)
{
    struct net_idle_request request = {.peers = peers, .trips = TRIPS};
    struct net_idle_answer answer;
    uint64_t before = 0, after = 0, start;
    int rc = proc_ask(watcher, &request, sizeof(request), &answer, sizeof(answer), ANSWER_MS);

    if (rc != 0)
        return rc;
    *us = answer.median_us;
    poll(NULL, 0, WATCH_MS / 6); /* opening is not idling */
    start = clock_ns();
    clock_process_ns(agent, &before);
    poll(NULL, 0, WATCH_MS);
    clock_process_ns(agent, &after);
    *cpu = (double)(after - before) / (double)(clock_ns() - start);
    return 0;
}

static int start_agent(const struct net_options *o, const struct hosts *h, unsigned host,
                       unsigned number, struct agent *out)
{
    char settings[512];
    struct agent_options ao = {.program = o->common.mcshmd,
                               .pool_size = POOL,
                               .small = true,
                               .netns = h->netns[host],
                               .settings = settings};
    struct pin_cores cores;

    pin_choose(&cores);
    ao.core = host == 0 ? cores.client : cores.engine;
    snprintf(settings, sizeof(settings),
             "[peer]\nlisten = %s:%u\nallow_insecure = yes\n[meta]\nbackend = p2p\n",
             h->end[host][0].address, PAIR_PORT + number);
    return agent_start(&ao, out);
}

int net_run_idle(const struct net_options *o, const struct hosts *h, struct net_figures *f)
{
    static struct agent agents[NET_PEERS_MAX], first;
    static struct net_idle_context context;
    static struct net_idle_watcher watcher_context;
    struct proc owner = {.pid = 0}, watcher = {.pid = 0};
    struct net_idle *out = &f->idle;
    unsigned mark = cleanup_mark();
    char byte;
    int rc;

    out->peers = (unsigned)o->idle_peers;
    rc = start_agent(o, h, 0, 0, &first);
    for (unsigned i = 0; rc == 0 && i < out->peers; i++) {
        rc = start_agent(o, h, 1, i, &agents[i]);
        context.sockets[context.count++] = agents[i].socket;
        snprintf(watcher_context.names[i], sizeof(watcher_context.names[i]), "%s:%u/idle",
                 h->end[1][0].address, PAIR_PORT + i);
        progress_show(i + 1, out->peers, "idle agents");
    }
    progress_end();
    watcher_context.socket = first.socket;
    if (rc == 0)
        rc = proc_start(&owner, "owner", net_idle_owner_main, &context);
    if (rc == 0)
        rc = proc_recv(owner.fd, &byte, 1, ANSWER_MS);
    if (rc == 0)
        rc = proc_start(&watcher, "watcher", net_idle_watcher_main, &watcher_context);
    if (rc == 0)
        rc = watch(&watcher, first.pid, 1, &out->read_one_us, &out->cpu_one);
    if (rc == 0)
        rc = watch(&watcher, first.pid, out->peers, &out->read_many_us, &out->cpu_many);
    proc_kill(&watcher);
    proc_kill(&owner);
    cleanup_undo(mark);
    out->done = rc == 0;
    return rc;
}
