/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent with RDMA devices that exist only in the test (tests/fake-verbs), and clients that speak
 * control messages.  Its loop and its engine are played here, step by step, so that a test sees what is not
 * answered yet; the devices' threads are real.
 */
#ifndef TESTS_RDMA_AGENT_H
#define TESTS_RDMA_AGENT_H

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/agent.h"
#include "daemon/cluster.h"
#include "daemon/fault.h"
#include "daemon/handlers.h"
#include "daemon/log.h"
#include "shm/message.h"
#include "tests/fake-verbs/fake.h"

#define RA_DEVICES 2u
#define RA_PATIENCE_NS UINT64_C(20000000000)
#define RA_PAGE 4096u

struct ra {
    struct mcd_agent *agent;
    struct fake_device *devices[FAKE_DEVICES];
    unsigned ndevices;
    unsigned keys_changed;
    struct mcd_watch watch;
};

struct ra_client {
    int fd;
    uint32_t next;
    struct mcs_msg m; /* the last answer */
    int answer_fd;    /* the first descriptor of the last answer; -1: none */
};

static inline void ra_changed(void *context, unsigned nic)
{
    (void)context;
    (void)nic;
}

static inline void ra_keys_changed(void *context)
{
    struct ra *g = context;

    g->keys_changed++;
    mcd_segments_keys_changed(g->agent);
}

static inline void ra_ready(struct mcd_watch *w, uint32_t events)
{
    struct ra *g = w->context;

    (void)events;
    mct_rdma_run(g->agent->rdma);
}

/* The devices were added with fake_add() before. chunk: bytes of one registration at most. */
static inline void ra_init_rdma(struct ra *g, uint64_t chunk, bool require)
{
    const struct mct_rdma_options o = {
        .devices = "auto",
        .deny = "",
        .gid_index = -1,
        .chunk = chunk,
        .depth = 64,
        .cq_depth = 256,
        .max_inline = 64,
        .max_reads = 16,
        .timeout = 14,
        .retries = 7,
    };
    const struct mct_rdma_host h = {
        .context = g, .changed = ra_changed, .keys_changed = ra_keys_changed};
    char error[512] = "";

    cr_assert_eq(mct_rdma_create(&o, &h, &g->agent->rdma, error, sizeof(error)), 0, "%s", error);
    mcd_registry_init(&g->agent->registry, g->agent->rdma, require);
    g->watch = (struct mcd_watch){.ready = ra_ready, .context = g, .fd = -1};
    cr_assert_eq(mcd_watch_add(g->agent, &g->watch, mct_rdma_fd(g->agent->rdma), EPOLLIN), 0);
}

static inline void ra_init_agent(struct ra *g)
{
    static const struct mct_ops *const nets[] = {&mct_tcp_ops};
    struct mcd_agent *a = calloc(1, sizeof(*a));
    struct mcd_engine_options o = {
        .tick_hz = 1000000000,
        .tick_shift = 3,
        .spin_us = 20,
        .slice = 1 << 16,
        .stream_min = 1 << 16,
        .deadline_us = 1000000,
        .nets = nets,
        .nnets = 1,
        .network = true,
    };

    cr_assert_not_null(a);
    memset(g, 0, sizeof(*g));
    g->agent = a;
    mcd_log_set_level(-1);
    mcd_config_init(&a->config);
    a->config.pool_size = UINT64_C(64) << 20;
    a->config.extent_size = UINT64_C(1) << 20;
    a->config.pages = MCD_PAGES_OFF;
    a->config.inbox_size = MCS_INBOX_SIZE_MIN;
    a->config.recovery_s = 1;
    a->incarnation = 4711;
    a->tick_hz = o.tick_hz;
    a->tick_shift = o.tick_shift;
    a->listen_fd = a->lock_fd = a->signal_fd = -1;
    a->network = true;
    mcd_pool_init(&a->pool, &a->config);
    a->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    a->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert(a->epoll_fd >= 0 && a->event_fd >= 0);
    cr_assert_eq(mcd_control_watch(a, a->event_fd, MCD_SOURCE_EVENT, NULL), 0);
    cr_assert_eq(mcd_fault_init(a->event_fd), 0);
    cr_assert_eq(mcd_worker_create(a->event_fd, &a->worker), 0);
    cr_assert_eq(mcd_worker_create(a->event_fd, &a->quick), 0);
    o.control_fd = a->event_fd;
    cr_assert_eq(mcd_engine_create(&o, &a->engines[0]), 0);
    a->nengines = 1;
}

static inline void ra_init(struct ra *g, uint64_t chunk, bool require)
{
    char name[16];

    fake_reset();
    ra_init_agent(g);
    for (; g->ndevices < RA_DEVICES; g->ndevices++) {
        snprintf(name, sizeof(name), "fake%u", g->ndevices);
        g->devices[g->ndevices] = fake_add(name);
    }
    ra_init_rdma(g, chunk, require);
}

static inline void ra_dispatch(struct ra *g, const struct epoll_event *ev)
{
    void *object = (void *)(uintptr_t)(ev->data.u64 & ~UINT64_C(15));
    struct mcd_session *s = object;
    struct mcd_watch *w = object;
    uint64_t v;

    switch ((enum mcd_source)(ev->data.u64 & 15)) {
    case MCD_SOURCE_EVENT:
        if (read(g->agent->event_fd, &v, sizeof(v)) < 0)
            return;
        mcd_worker_reap(g->agent->worker, g->agent);
        mcd_worker_reap(g->agent->quick, g->agent);
        g->agent->look = true;
        return;
    case MCD_SOURCE_WATCH:
        w->ready(w, ev->events);
        return;
    case MCD_SOURCE_SESSION:
        if (s->ending)
            return;
        if (!s->op.active)
            mcd_session_readable(s);
        if ((ev->events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0)
            mcd_session_end(s, NULL);
        return;
    default:
        return;
    }
}

/* A round of the loop, and some turns of the engine: more than pass between two of its looks at its commands. */
static inline void ra_pump(struct ra *g, int wait_ms)
{
    struct mcd_agent *a = g->agent;
    struct epoll_event events[16];

    a->events = events;
    a->nevents = epoll_wait(a->epoll_fd, events, 16, wait_ms);
    for (int i = 0; i < a->nevents; i++)
        ra_dispatch(g, &events[i]);
    a->nevents = 0;
    (void)mcd_alarms_run(a, mcd_now_ns());
    for (int i = 0; i < 70; i++)
        mcd_engine_turn(a->engines[0]);
    (void)mcd_sessions_poll(a);
}

#define ra_until(g, condition)                                                                     \
    do {                                                                                           \
        uint64_t end_ = mcd_now_ns() + RA_PATIENCE_NS;                                             \
        while (!(condition)) {                                                                     \
            cr_assert(mcd_now_ns() < end_, "waited in vain for " #condition);                      \
            ra_pump((g), 1);                                                                       \
        }                                                                                          \
    } while (0)

/* All clients have left. */
static inline void ra_fini(struct ra *g)
{
    struct mcd_agent *a = g->agent;

    ra_until(g, a->sessions == NULL && a->registry.count == 0);
    cr_assert_eq(a->pool.used, 0);
    cr_assert_eq(a->registry.pending, 0);
    cr_assert_eq(a->registry.unregistered_bytes, 0);
    if (a->rdma != NULL) {
        cr_assert_eq(fake_count(FAKE_MR, NULL), 0);
        mcd_watch_remove(a, &g->watch);
        mct_rdma_destroy(a->rdma);
    }
    cr_assert_eq(fake_leaks(), 0);
    mcd_worker_destroy(a->worker, a);
    mcd_worker_destroy(a->quick, a);
    mcd_engine_destroy(a->engines[0]);
    mcd_tenants_fini(&a->tenants);
    close(a->epoll_fd);
    close(a->event_fd);
    free(a);
}

/* ---- clients ----------------------------------------------------------------------- */

static inline void ra_send(struct ra_client *c, uint16_t type, const union mcs_msg_body *body,
                           const int *fds, unsigned nfds)
{
    struct mcs_msg m;

    memset(&m, 0, sizeof(m));
    if (body != NULL)
        m.b = *body;
    m.h.type = type;
    m.h.id = ++c->next;
    cr_assert_eq(mcs_msg_send(c->fd, &m, mcs_msg_request_size(type), fds, nfds), 0);
}

/* Is the answer there? It is in c->m then. */
static inline bool ra_answered(struct ra_client *c)
{
    int fds[MCS_MSG_FDS_MAX];
    unsigned nfds = 0;

    if (mcs_msg_recv(c->fd, &c->m, fds, &nfds) != 0)
        return false;
    if (c->answer_fd >= 0)
        close(c->answer_fd);
    c->answer_fd = nfds != 0 ? fds[0] : -1;
    for (unsigned i = 1; i < nfds; i++)
        close(fds[i]);
    return true;
}

/* Asks and waits for the answer; its status. */
static inline uint32_t ra_ask(struct ra *g, struct ra_client *c, uint16_t type,
                              const union mcs_msg_body *body)
{
    ra_send(c, type, body, NULL, 0);
    ra_until(g, ra_answered(c));
    return c->m.h.status;
}

static inline void ra_arrive(struct ra *g, struct ra_client *c)
{
    union mcs_msg_body b;
    int pair[2];

    memset(c, 0, sizeof(*c));
    c->answer_fd = -1;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    c->fd = pair[0];
    mcd_session_accept(g->agent, pair[1]);
    memset(&b, 0, sizeof(b));
    b.hello.abi_version = MCS_ABI_VERSION;
    cr_assert_eq(ra_ask(g, c, MCS_MSG_HELLO, &b), MCS_OK);
}

static inline void ra_leave(struct ra_client *c)
{
    close(c->fd);
    if (c->answer_fd >= 0)
        close(c->answer_fd);
    c->fd = c->answer_fd = -1;
}

static inline union mcs_msg_body ra_alloc_body(uint64_t size)
{
    union mcs_msg_body b;

    memset(&b, 0, sizeof(b));
    b.alloc.size = size;
    return b;
}

/* An extent with one allocation; its handle. */
static inline uint32_t ra_alloc(struct ra *g, struct ra_client *c, uint64_t size)
{
    union mcs_msg_body b = ra_alloc_body(size);

    cr_assert_eq(ra_ask(g, c, MCS_MSG_ALLOC, &b), MCS_OK, "%s", c->m.b.error.text);
    return c->m.b.extent_reply.extent;
}

static inline union mcs_msg_body ra_buffer_body(uint32_t extent, uint64_t offset, uint64_t length,
                                                uint32_t access)
{
    union mcs_msg_body b;

    memset(&b, 0, sizeof(b));
    b.buffer.extent = extent;
    b.buffer.offset = offset;
    b.buffer.length = length;
    b.buffer.access = access;
    return b;
}

/* BUFFER_ADD, BUFFER_REMOVE or REVOKE. */
static inline uint32_t ra_buffer(struct ra *g, struct ra_client *c, uint16_t type, uint32_t extent,
                                 uint64_t offset, uint64_t length, uint32_t access)
{
    union mcs_msg_body b = ra_buffer_body(extent, offset, length, access);

    return ra_ask(g, c, type, &b);
}

/* The registrations of a device that peers can use; false when there are not i + 1 of them. */
static inline bool ra_remote_region(const struct fake_device *d, unsigned i,
                                    struct fake_region *out)
{
    for (unsigned k = 0; fake_region(d, k, out); k++)
        if ((out->access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)) != 0 && i-- == 0)
            return true;
    return false;
}

/* A memfd as clients register them. */
static inline int ra_memfd(uint64_t size)
{
    int fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert(fd >= 0 && ftruncate(fd, (off_t)size) == 0 &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return fd;
}

#endif
