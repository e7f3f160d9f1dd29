/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it takes until peers can reach a buffer: mcshm_buffer_publish() of pool memory, the agent's registration on
 * one device within it, beside one ibv_reg_mr() of as many bytes in pages of the same kind.
 */
#include "net_rdma.h"

#include "client.h"
#include "clock.h"
#include "pages.h"
#include "proc.h"
#include "progress.h"
#include "rdma_raw.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MOST (UINT64_C(4) << 30)
#define STEP (UINT64_C(64) << 20)
#define ROUNDS_MAX 3u
#define ANSWER_MS 300000

struct publisher { /* for proc_start() */
    const char *socket;
    uint64_t bytes;
};

struct answer {
    double seconds;
    uint64_t page_size;
};

/* Memory that programs can still have, bytes; 0: not known. */
static uint64_t memory_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    uint64_t kib = 0;

    while (f != NULL && kib == 0 && fgets(line, sizeof(line), f) != NULL)
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) != 1)
            kib = 0;
    if (f != NULL)
        fclose(f);
    return kib << 10;
}

/* Publishes and withdraws once for each byte that it is sent. */
static int publish_main(int fd, void *context)
{
    const struct publisher *x = context;
    struct answer answer = {.seconds = 0};
    struct client k = {.c = NULL};
    mcshm_info info = {0};
    uint64_t address;
    void *memory = NULL;
    mcshm_status s;
    char byte;
    int rc = client_open(&k, x->socket, "bench-register", 0, NULL);

    if (rc != 0)
        return rc;
    s = mcshm_alloc(k.c, x->bytes, 2u << 20, NULL, &memory);
    if (s == MCSHM_OK)
        memset(memory, 1, x->bytes); /* first touches, outside all measurements */
    if (s == MCSHM_OK)
        s = mcshm_segment_publish(k.c, "register", MCSHM_SEGMENT_PUBLIC);
    if (s == MCSHM_OK)
        s = mcshm_get_info(k.c, &info);
    answer.page_size = info.page_size;
    if (s != MCSHM_OK)
        rc = say_status(k.c, s, "preparing a registration");
    if (rc == 0)
        rc = proc_send(fd, &answer, sizeof(answer)); /* ready */
    while (rc == 0 && (rc = proc_recv(fd, &byte, 1, -1)) == 0) {
        uint64_t before = clock_ns();

        s = mcshm_buffer_publish(k.c, memory, x->bytes, MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE,
                                 &address);
        answer.seconds = (double)(clock_ns() - before) / 1e9;
        if (s == MCSHM_OK)
            s = mcshm_buffer_withdraw(k.c, memory, x->bytes);
        rc = s == MCSHM_OK ? proc_send(fd, &answer, sizeof(answer))
                           : say_status(k.c, s, "publishing a large buffer");
    }
    client_close(&k);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}

static int run(const struct hosts *h, struct publisher *x, unsigned rounds, struct net_rdma *out)
{
    struct proc p;
    struct answer answer;
    char note[128];
    double bare;
    int rc = proc_start(&p, "publisher", publish_main, x);

    if (rc == 0)
        rc = proc_recv(p.fd, &answer, sizeof(answer), ANSWER_MS);
    if (rc == 0 && answer.page_size > (uint64_t)sysconf(_SC_PAGESIZE))
        pages_prepare(x->bytes, note, sizeof(note)); /* the pool's are taken; gone with the agent */
    for (unsigned i = 0; rc == 0 && i < rounds; i++) {
        rc = proc_ask(&p, "P", 1, &answer, sizeof(answer), ANSWER_MS);
        if (rc == 0)
            rc = rdma_raw_register(&h->end[0][0], x->bytes, answer.page_size, &bare);
        if (rc != 0)
            break;
        stats_add(&out->register_s, answer.seconds);
        stats_add(&out->bare_register_s, bare);
        progress_show(i + 1, rounds, "registrations");
    }
    progress_end();
    if (rc == 0)
        rc = proc_stop(&p);
    else
        proc_kill(&p);
    return rc;
}

int net_rdma_register(const struct net_options *o, const struct hosts *h, struct net_figures *f)
{
    unsigned rounds = o->rounds < ROUNDS_MAX ? (unsigned)o->rounds : ROUNDS_MAX;
    /* the pool has them, and the bare process as many again */
    uint64_t fit = memory_available() / 5 * 2 / STEP * STEP;
    uint64_t bytes = o->register_bytes > 0 ? o->register_bytes : fit < MOST ? fit : MOST;
    struct pair_options po = {.program = o->common.mcshmd,
                              .pool_size = bytes,
                              .rails = 1,
                              .rdma = true,
                              .settings = o->settings};
    struct publisher x = {.bytes = bytes};
    struct agent agent;
    int rc;

    if (!rdma_raw_present() || bytes == 0)
        return 0;
    rc = pair_start_one(&po, h, 0, &agent);
    if (rc != 0)
        return rc;
    x.socket = agent.socket;
    rc = run(h, &x, rounds, &f->rdma);
    f->rdma.registered = bytes;
    agent_stop(&agent);
    return rc;
}
