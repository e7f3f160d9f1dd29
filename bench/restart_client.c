/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owner and poller have the same content in their memory.  The poller writes its own over the
 * owner's, and reads the owner's into its own, over and over: so both keep their content, whatever
 * is done twice, half or not at all, and whatever goes astray shows.
 */
#include "restart.h"

#include "client.h"
#include "clock.h"
#include "pattern.h"
#include "proc.h"
#include "say.h"

#include <errno.h>
#include <string.h>

#define SEED_HASH 4711u
#define FLOW_NS UINT64_C(100000000) /* of undisturbed flow before and after */
#define END_NS UINT64_C(60000000000)

struct poller {
    struct client k;
    uint8_t *memory;
    mcshm_segment segment;
    uint64_t address, at;
    mcshm_batch batches[RESTART_FLIGHT];
    struct restart_seen seen;
    uint64_t last_ns; /* of a completion */
};

static uint64_t lost_bytes(const void *memory)
{
    return 8 * pattern_check(memory, RESTART_MEMORY, pattern_seed(SEED_HASH, 0));
}

static mcshm_status take_memory(struct client *k, void **out)
{
    mcshm_status s = mcshm_alloc(k->c, RESTART_MEMORY, 2u << 20, NULL, out);

    if (s == MCSHM_OK)
        pattern_fill(*out, RESTART_MEMORY, pattern_seed(SEED_HASH, 0));
    return s;
}

int restart_owner_main(int fd, void *context)
{
    const struct restart_context *x = context;
    struct restart_owned answer = {0};
    struct client k;
    mcshm_status s;
    mcshm_info info;
    void *memory;
    char byte;
    int rc;

    rc = client_open(&k, x->socket, "owner", 0, NULL);
    if (rc != 0)
        return rc;
    s = take_memory(&k, &memory);
    if (s == MCSHM_OK)
        s = mcshm_segment_publish(k.c, x->segment, 0);
    if (s == MCSHM_OK)
        s = mcshm_buffer_publish(k.c, memory, RESTART_MEMORY,
                                 MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE, &answer.address);
    if (s == MCSHM_OK)
        s = mcshm_get_info(k.c, &info);
    if (s != MCSHM_OK) {
        rc = say_status(k.c, s, "preparing the owner");
        goto out;
    }
    answer.page_size = info.page_size;
    while ((rc = proc_recv(fd, &byte, sizeof(byte), -1)) == 0) {
        answer.lost = lost_bytes(memory);
        proc_send(fd, &answer, sizeof(answer));
    }
    rc = rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
out:
    client_close(&k);
    return rc;
}

/* Half of the tasks write to the owner, half read from it. */
static mcshm_status submit(struct poller *p, mcshm_batch batch)
{
    mcshm_request r[RESTART_BATCH];

    for (unsigned i = 0; i < RESTART_BATCH; i++) {
        r[i] = (mcshm_request){
            .opcode = i % 2 == 0 ? MCSHM_WRITE : MCSHM_READ,
            .priority = MCSHM_CLASS_NORMAL,
            .local = p->memory + p->at,
            .segment = p->segment,
            .remote_address = p->address + p->at,
            .length = RESTART_TASK,
        };
        p->at = (p->at + RESTART_TASK) % RESTART_MEMORY;
    }
    return mcshm_submit(p->k.q, batch, r, RESTART_BATCH);
}

static void note_completion(struct poller *p)
{
    uint64_t now = clock_ns();
    double gap = (double)(now - p->last_ns) / 1e6;

    if (p->last_ns != 0 && gap > p->seen.gap_ms)
        p->seen.gap_ms = gap;
    p->last_ns = now;
}

/* Counts how the batch ended. Nothing but a restart may have made a task fail. */
static int count(struct poller *p, mcshm_batch batch)
{
    for (unsigned i = 0; i < RESTART_BATCH; i++) {
        mcshm_task_status t;
        mcshm_status s = mcshm_task_poll(p->k.q, batch, i, &t);

        if (s != MCSHM_OK)
            return say_status(p->k.c, s, "polling a task");
        if (t.state == MCSHM_STATE_COMPLETED)
            p->seen.completed++;
        else if (t.state == MCSHM_STATE_FAILED && t.error == MCSHM_AGENT_RESTARTED)
            p->seen.failed++;
        else
            return say_error(-EIO, "a task ended %s: %s", mcshm_state_name(t.state),
                             mcshm_strerror(t.error));
    }
    return 0;
}

/* One look at one batch that is under way; ended, it is submitted again. */
static int turn(struct poller *p, mcshm_batch *batch)
{
    mcshm_batch_status bs;
    mcshm_status s = mcshm_batch_poll(p->k.q, *batch, &bs);
    int rc;

    if (s == MCSHM_BUSY)
        return 0;
    if (s != MCSHM_OK)
        return say_status(p->k.c, s, "polling a batch");
    rc = count(p, *batch);
    if (rc != 0)
        return rc;
    if (bs.failed != bs.tasks)
        note_completion(p); /* the news that all are lost is no completion */
    s = mcshm_batch_free(p->k.q, *batch);
    if (s == MCSHM_OK)
        s = mcshm_batch_alloc(p->k.q, RESTART_BATCH, batch);
    if (s == MCSHM_OK)
        s = submit(p, *batch);
    return s == MCSHM_OK ? 0 : say_status(p->k.c, s, "submitting a batch");
}

/* Polls until there were so many restarts, and a while beyond; says so. */
static int flow(struct poller *p, int fd, uint64_t restarts)
{
    uint64_t end = clock_ns() + END_NS, since = clock_ns();

    while (p->seen.restarts < restarts || clock_ns() - since < FLOW_NS) {
        for (unsigned i = 0; i < RESTART_FLIGHT; i++) {
            int rc = turn(p, &p->batches[i]);

            if (rc != 0)
                return rc;
        }
        if (p->seen.restarts < restarts) {
            mcshm_info info;

            if (mcshm_get_info(p->k.c, &info) == MCSHM_OK)
                p->seen.restarts = info.restarts;
            since = clock_ns();
            if (since > end)
                return say_error(-ETIMEDOUT, "no later agent within %u s",
                                 (unsigned)(END_NS / 1000000000));
        }
    }
    return proc_send(fd, &p->seen, sizeof(p->seen));
}

static int settle(struct poller *p)
{
    for (unsigned i = 0; i < RESTART_FLIGHT; i++) {
        mcshm_status s = mcshm_batch_wait(p->k.q, p->batches[i], (int64_t)(END_NS / 1000));
        int rc = s == MCSHM_OK ? count(p, p->batches[i]) : say_status(p->k.c, s, "the last tasks");

        if (rc != 0)
            return rc;
        mcshm_batch_free(p->k.q, p->batches[i]);
    }
    p->seen.lost = lost_bytes(p->memory);
    return 0;
}

static int round_of(struct poller *p, int fd, const struct restart_order *order)
{
    mcshm_status s = MCSHM_OK;
    int rc;

    for (unsigned i = 0; i < RESTART_FLIGHT && s == MCSHM_OK; i++) {
        s = mcshm_batch_alloc(p->k.q, RESTART_BATCH, &p->batches[i]);
        if (s == MCSHM_OK)
            s = submit(p, p->batches[i]);
    }
    if (s != MCSHM_OK)
        return say_status(p->k.c, s, "submitting a batch");
    p->seen = (struct restart_seen){.restarts = order->restarts - 1};
    p->last_ns = 0;
    rc = flow(p, fd, order->restarts - 1);
    /* what the machine did before is not what is asked */
    p->seen.gap_ms = 0;
    if (rc == 0)
        rc = flow(p, fd, order->restarts);
    if (rc == 0)
        rc = settle(p);
    return rc == 0 ? proc_send(fd, &p->seen, sizeof(p->seen)) : rc;
}

int restart_poller_main(int fd, void *context)
{
    const struct restart_context *x = context;
    struct poller p = {.address = x->address};
    struct restart_order order;
    void *memory;
    mcshm_status s;
    int rc;

    rc = client_open(&p.k, x->socket, "poller", 0, NULL);
    if (rc != 0)
        return rc;
    s = take_memory(&p.k, &memory);
    p.memory = memory;
    if (s == MCSHM_OK)
        s = mcshm_segment_open(p.k.c, x->segment, &p.segment);
    rc = s == MCSHM_OK ? 0 : say_status(p.k.c, s, "preparing the poller");
    while (rc == 0 && (rc = proc_recv(fd, &order, sizeof(order), -1)) == 0)
        rc = round_of(&p, fd, &order);
    client_close(&p.k);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}
