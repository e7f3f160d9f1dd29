/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent's RDMA devices in a test, without an engine that moves anything: nics, memories and queue pairs on the devices of
 * tests/fake-verbs.  The test itself is the control thread, and posts by hand where bytes are to move.
 */
#ifndef RDMA_HOST_H
#define RDMA_HOST_H

#include <criterion/criterion.h>

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "tests/fake-verbs/fake.h"

#include "transports/rdma/internal.h"

#define HOST_WAIT_MS 20000u
#define HOST_NICS 4u

struct host {
    struct mct_rdma *r;
    struct mct *engine; /* an instance of the transport, so that there can be pairs */
    struct mct_rdma_options o;
    int epoll_fd;
    unsigned changes, key_changes;
};

struct host_answer {
    unsigned n;
    int res;
    char text[512];
};

static inline void host_log(int level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static inline void host_log(int level, const char *format, ...)
{
    va_list args;

    if (level > 1 && getenv("HOST_LOG") == NULL)
        return;
    va_start(args, format);
    fputs("# ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static inline void host_answered(void *context, int res, const char *text)
{
    struct host_answer *a = context;

    a->n++;
    a->res = res;
    snprintf(a->text, sizeof(a->text), "%s", text);
}

static inline void host_changed(void *context, unsigned nic)
{
    (void)nic;
    ((struct host *)context)->changes++;
}

static inline void host_keys_changed(void *context)
{
    ((struct host *)context)->key_changes++;
}

static inline uint64_t host_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* One turn of the control thread; waits for at most so long. */
static inline void host_turn(struct host *h, int ms)
{
    struct pollfd fd = {.fd = mct_rdma_fd(h->r), .events = POLLIN};

    if (poll(&fd, 1, ms) > 0)
        mct_rdma_run(h->r);
}

#define host_await(h, condition)                                                                   \
    do {                                                                                           \
        uint64_t end_ = host_ms() + HOST_WAIT_MS;                                                  \
                                                                                                   \
        while (!(condition)) {                                                                     \
            cr_assert_lt(host_ms(), end_, "line %d: %s", __LINE__, #condition);                    \
            host_turn(h, 10);                                                                      \
        }                                                                                          \
    } while (0)

static inline struct mct_rdma_options host_options(void)
{
    return (struct mct_rdma_options){
        .devices = "auto",
        .deny = "",
        .gid_index = -1,
        .chunk = UINT64_C(1) << 30,
        .depth = 16,
        .cq_depth = 64,
        .max_inline = 64,
        .max_reads = 4,
        .timeout = 14,
        .retries = 7,
        .sysfs = "/nonexistent",
        .log = host_log,
    };
}

/* 0 or a negative errno. */
static inline int host_init(struct host *h, const struct mct_rdma_options *o)
{
    struct mct_rdma_host callbacks = {
        .context = h, .changed = host_changed, .keys_changed = host_keys_changed};
    char error[MCT_RDMA_TEXT_MAX] = "";
    struct mct_env env = {.log = host_log, .tick_hz = 1000000000};
    int res;

    *h = (struct host){.o = *o, .epoll_fd = -1};
    res = mct_rdma_create(o, &callbacks, &h->r, error, sizeof(error));
    if (res != 0) {
        cr_assert_neq(error[0], 0, "an error has a sentence");
        return res;
    }
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    env.rdma = h->r;
    env.epoll_fd = h->epoll_fd;
    res = mct_rdma_ops.init(&env, &h->engine);
    cr_assert_eq(res, 0);
    return 0;
}

static inline void host_fini(struct host *h)
{
    if (h->engine != NULL)
        mct_rdma_ops.fini(h->engine);
    mct_rdma_destroy(h->r);
    if (h->epoll_fd >= 0)
        close(h->epoll_fd);
    *h = (struct host){.epoll_fd = -1};
}

static inline enum mct_rdma_state host_state(const struct host *h, unsigned nic)
{
    struct mct_rdma_nic n;

    mct_rdma_nic(h->r, nic, &n);
    return n.state;
}

/* Registers, and waits for the answer. */
static inline struct host_answer host_memory(struct host *h, const struct mct_rdma_range *range,
                                             struct mct_rdma_memory **out)
{
    struct host_answer a = {0};

    cr_assert_eq(mct_rdma_memory_create(h->r, range, host_answered, &a, out), 0);
    host_await(h, a.n == 1);
    cr_assert(a.res == 0 || a.text[0] != 0, "an error has a sentence");
    return a;
}

static inline void host_forget(struct host *h, struct mct_rdma_memory *m)
{
    struct host_answer a = {0};

    mct_rdma_memory_destroy(h->r, m, host_answered, &a);
    host_await(h, a.n == 1);
    cr_assert_eq(a.res, 0, "%s", a.text);
}

static inline struct host_answer host_pair(struct host *h, unsigned nic, struct mct_rdma_pair **out)
{
    struct host_answer a = {0};

    cr_assert_eq(mct_rdma_pair_create(h->r, nic, h->engine, 77, host_answered, &a, out), 0);
    host_await(h, a.n == 1);
    cr_assert(a.res == 0 || a.text[0] != 0, "an error has a sentence");
    return a;
}

static inline struct host_answer host_connect(struct host *h, struct mct_rdma_pair *p,
                                              const struct mct_rdma_end *peer)
{
    struct host_answer a = {0};

    mct_rdma_pair_connect(p, peer, host_answered, &a);
    host_await(h, a.n == 1);
    cr_assert(a.res == 0 || a.text[0] != 0, "an error has a sentence");
    return a;
}

/* A connection from one nic of the host to another one; both ends go to mct_rdma_pair_destroy(). */
static inline void host_join(struct host *h, unsigned from, unsigned to,
                             struct mct_rdma_pair *ends[2])
{
    struct host_answer a = host_pair(h, from, &ends[0]), b = host_pair(h, to, &ends[1]);

    cr_assert(a.res == 0 && b.res == 0, "%s; %s", a.text, b.text);
    a = host_connect(h, ends[0], mct_rdma_pair_end(ends[1]));
    b = host_connect(h, ends[1], mct_rdma_pair_end(ends[0]));
    cr_assert(a.res == 0 && b.res == 0, "%s; %s", a.text, b.text);
}

/* One work request by hand; returns the status of its completion. */
static inline enum ibv_wc_status host_post(struct mct_rdma_pair *p, enum ibv_wr_opcode op,
                                           const void *local, uint32_t lkey, uint32_t length,
                                           uint64_t remote, uint32_t rkey)
{
    struct ibv_sge sge = {.addr = (uintptr_t)local, .length = length, .lkey = lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = op,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {.remote_addr = remote, .rkey = rkey}};
    struct ibv_send_wr *bad;
    struct ibv_wc wc;

    cr_assert_eq(ibv_post_send(p->qp, &wr, &bad), 0);
    cr_assert_eq(ibv_poll_cq(p->port->cq, 1, &wc), 1);
    return wc.status;
}

/*
 * Moves `length` bytes between m at `at` and what `keys` covers at `to`, cut at the borders of both ends' chunks. The
 * first status that is not success.
 */
static inline enum ibv_wc_status host_move(struct mct_rdma_pair *p, enum ibv_wr_opcode op,
                                           const struct mct_rdma_memory *m, uint8_t *at,
                                           const struct mct_rdma_keys *keys, uint64_t peer,
                                           uint64_t to, uint64_t length)
{
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    unsigned nic = 0;

    while (nic < keys->nnics && keys->nics[nic] != peer)
        nic++;
    cr_assert_lt(nic, keys->nnics, "the peer's device has no keys");
    while (length > 0 && status == IBV_WC_SUCCESS) {
        uint64_t left, chunk = to / keys->chunk, part = keys->chunk - to % keys->chunk;
        uint32_t lkey;

        cr_assert(mct_rdma_memory_lkey(m, p->port, at, &lkey, &left));
        part = part < left ? part : left;
        part = part < length ? part : length;
        status = host_post(p, op, at, lkey, (uint32_t)part, keys->address + to,
                           keys->rkeys[nic * keys->nchunks + chunk]);
        at += part;
        to += part;
        length -= part;
    }
    return status;
}

/* The keys as a peer is told them. */
struct host_keys {
    struct mct_rdma_keys k;
    uint64_t nics[HOST_NICS];
    uint32_t rkeys[HOST_NICS * 64];
};

static inline void host_keys(const struct host *h, const struct mct_rdma_memory *m,
                             const struct mct_rdma_range *range, struct host_keys *out)
{
    uint64_t chunk = mct_rdma_memory_chunk(m);

    *out = (struct host_keys){.k = {.address = range->published,
                                    .length = range->length,
                                    .chunk = chunk,
                                    .nchunks = (uint32_t)((range->length + chunk - 1) / chunk)}};
    cr_assert_leq(out->k.nchunks, 64);
    for (unsigned n = 0; n < mct_rdma_nics(h->r); n++) {
        const uint32_t *keys = mct_rdma_memory_keys(m, n, &out->nics[out->k.nnics]);

        if (keys != NULL)
            memcpy(out->rkeys + (size_t)out->k.nnics++ * out->k.nchunks, keys,
                   out->k.nchunks * sizeof(*keys));
    }
    out->k.nics = out->nics;
    out->k.rkeys = out->rkeys;
}

#endif
