/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent in the test's own process, and clients that speak control messages.  Its loop and its engine are played here,
 * step by step, so that a test sees what is not answered yet.
 */
#ifndef TESTS_STEP_AGENT_H
#define TESTS_STEP_AGENT_H

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
#include "daemon/gpu.h"
#include "daemon/log.h"
#include "shm/message.h"

#define SA_PATIENCE_NS UINT64_C(20000000000)

struct sa_client {
    int fd;
    uint32_t next;
    struct mcs_msg m; /* the last answer */
    int answer_fd;    /* the first descriptor of the last answer; -1: none */
};

static inline struct mcd_agent *sa_init(void)
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
    return a;
}

static inline void sa_dispatch(struct mcd_agent *a, const struct epoll_event *ev)
{
    void *object = (void *)(uintptr_t)(ev->data.u64 & ~UINT64_C(15));
    struct mcd_session *s = object;
    struct mcd_watch *w = object;
    uint64_t v;

    switch ((enum mcd_source)(ev->data.u64 & 15)) {
    case MCD_SOURCE_EVENT:
        if (read(a->event_fd, &v, sizeof(v)) < 0)
            return;
        mcd_worker_reap(a->worker, a);
        mcd_worker_reap(a->quick, a);
        mcd_gpu_poll(a);
        a->look = true;
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
static inline void sa_pump(struct mcd_agent *a, int wait_ms)
{
    struct epoll_event events[16];

    a->events = events;
    a->nevents = epoll_wait(a->epoll_fd, events, 16, wait_ms);
    for (int i = 0; i < a->nevents; i++)
        sa_dispatch(a, &events[i]);
    a->nevents = 0;
    (void)mcd_alarms_run(a, mcd_now_ns());
    for (int i = 0; i < 70; i++)
        mcd_engine_turn(a->engines[0]);
    (void)mcd_sessions_poll(a);
}

#define sa_until(a, condition)                                                                     \
    do {                                                                                           \
        uint64_t end_ = mcd_now_ns() + SA_PATIENCE_NS;                                             \
        while (!(condition)) {                                                                     \
            cr_assert(mcd_now_ns() < end_, "waited in vain for " #condition);                      \
            sa_pump((a), 1);                                                                       \
        }                                                                                          \
    } while (0)

/* All clients have left, and what was the test's own is gone. */
static inline void sa_fini(struct mcd_agent *a)
{
    cr_assert_eq(a->pool.used, 0);
    mcd_worker_destroy(a->worker, a);
    mcd_worker_destroy(a->quick, a);
    mcd_engine_destroy(a->engines[0]);
    mcd_tenants_fini(&a->tenants);
    mcd_pool_fini(&a->pool);
    close(a->epoll_fd);
    close(a->event_fd);
    free(a);
}

/* ---- clients ----------------------------------------------------------------------- */

static inline void sa_send(struct sa_client *c, uint16_t type, const union mcs_msg_body *body,
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
static inline bool sa_answered(struct sa_client *c)
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
static inline uint32_t sa_ask(struct mcd_agent *a, struct sa_client *c, uint16_t type,
                              const union mcs_msg_body *body)
{
    sa_send(c, type, body, NULL, 0);
    sa_until(a, sa_answered(c));
    return c->m.h.status;
}

static inline void sa_arrive(struct mcd_agent *a, struct sa_client *c)
{
    union mcs_msg_body b;
    int pair[2];

    memset(c, 0, sizeof(*c));
    c->answer_fd = -1;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    c->fd = pair[0];
    mcd_session_accept(a, pair[1]);
    memset(&b, 0, sizeof(b));
    b.hello.abi_version = MCS_ABI_VERSION;
    cr_assert_eq(sa_ask(a, c, MCS_MSG_HELLO, &b), MCS_OK);
}

static inline void sa_leave(struct sa_client *c)
{
    close(c->fd);
    if (c->answer_fd >= 0)
        close(c->answer_fd);
    c->fd = c->answer_fd = -1;
}

static inline union mcs_msg_body sa_alloc_body(uint64_t size)
{
    union mcs_msg_body b;

    memset(&b, 0, sizeof(b));
    b.alloc.size = size;
    return b;
}

/* An extent with one allocation; its handle. */
static inline uint32_t sa_alloc(struct mcd_agent *a, struct sa_client *c, uint64_t size)
{
    union mcs_msg_body b = sa_alloc_body(size);

    cr_assert_eq(sa_ask(a, c, MCS_MSG_ALLOC, &b), MCS_OK, "%s", c->m.b.error.text);
    return c->m.b.extent_reply.extent;
}

static inline union mcs_msg_body sa_buffer_body(uint32_t extent, uint64_t offset, uint64_t length,
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
static inline uint32_t sa_buffer(struct mcd_agent *a, struct sa_client *c, uint16_t type,
                                 uint32_t extent, uint64_t offset, uint64_t length, uint32_t access)
{
    union mcs_msg_body b = sa_buffer_body(extent, offset, length, access);

    return sa_ask(a, c, type, &b);
}

/* A memfd as clients register them. */
static inline int sa_memfd(uint64_t size)
{
    int fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert(fd >= 0 && ftruncate(fd, (off_t)size) == 0 &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return fd;
}

#endif
