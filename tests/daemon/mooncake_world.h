/* SPDX-License-Identifier: Apache-2.0 */
/* An agent without sessions of its own: the control loop's watches and alarms in the test's thread, one
 * engine in another, a public segment, and a queue that asks. */
#ifndef TESTS_MOONCAKE_WORLD_H
#define TESTS_MOONCAKE_WORLD_H

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/agent.h"
#include "daemon/log.h"
#include "daemon/mooncake.h"
#include "fixture.h"
#include "transports/transport.h"

struct world {
    struct fixture f;
    struct mcd_agent a;
    struct mcd_mooncake *m;
    pthread_t thread;
    /* of an opening */
    struct mcd_mooncake_opening *opening;
    bool opened;
    uint32_t status;
    char text[512];
    struct mcd_segment *segment;
};

static void *world_engine(void *context)
{
    mcd_engine_run(context);
    return NULL;
}

/* One round of the control thread. */
static inline void world_turn(struct world *w)
{
    struct epoll_event events[32];
    uint64_t v;
    int n = epoll_wait(w->a.epoll_fd, events, 32, 1);

    w->a.events = events;
    w->a.nevents = n;
    for (int i = 0; i < w->a.nevents; i++) {
        struct mcd_watch *watch =
            (struct mcd_watch *)(uintptr_t)(events[i].data.u64 & ~UINT64_C(15));

        switch ((enum mcd_source)(events[i].data.u64 & 15)) {
        case MCD_SOURCE_EVENT:
            cr_assert_eq(read(w->a.event_fd, &v, sizeof(v)), (ssize_t)sizeof(v));
            mcd_mooncake_poll(w->m);
            break;
        case MCD_SOURCE_WATCH:
            watch->ready(watch, events[i].events);
            break;
        default:
            break;
        }
    }
    w->a.nevents = 0;
    mcd_alarms_run(&w->a, mcd_now_ns());
}

#define world_until(w, condition)                                                                  \
    do {                                                                                           \
        time_t limit_ = time(NULL) + 60;                                                           \
        while (!(condition)) {                                                                     \
            world_turn(w);                                                                         \
            cr_assert(time(NULL) < limit_, "does not happen: %s", #condition);                     \
        }                                                                                          \
    } while (0)

static inline void world_changed(struct world *w)
{
    mcd_mooncake_changed(w->m);
}

/* listen: of [mooncake]. */
static inline void world_init(struct world *w, const char *listen)
{
    static const struct mct_ops *const nets[] = {&mct_mooncake_ops};
    struct fixture *f = &w->f;
    struct mcd_engine_options o = {
        .tick_hz = fix_tick_hz(),
        .tick_shift = 3,
        .spin_us = 20,
        .slice = 256 << 10,
        .stream_min = 256 << 10,
        .deadline_us = 30000000,
        .nets = nets,
        .nnets = 1,
        .network = true,
        .zero_copy_min = UINT64_MAX,
    };
    struct mcd_command add = {.kind = MCD_COMMAND_ADD, .queue = &f->queue};
    struct mcs_session_header header = {.session_incarnation = 77};
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = MCD_SOURCE_EVENT};
    struct mcs_queue_layout l;
    struct mcd_snapshot *old;
    char error[512] = "";

    memset(w, 0, sizeof(*w));
    mcd_log_set_level(MCD_LOG_ERROR);
    mcd_config_init(&w->a.config);
    snprintf(w->a.config.mooncake_listen, sizeof(w->a.config.mooncake_listen), "%s", listen);
    w->a.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    o.control_fd = w->a.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert(w->a.epoll_fd >= 0 && w->a.event_fd >= 0);
    cr_assert_eq(epoll_ctl(w->a.epoll_fd, EPOLL_CTL_ADD, w->a.event_fd, &ev), 0);
    w->a.incarnation = mcd_incarnation();
    if (mcd_engine_create(&o, &f->engine) != 0)
        cr_skip_test("no io_uring here");
    w->a.engines[0] = f->engine;
    w->a.nengines = 1;
    cr_assert_eq(pthread_create(&w->thread, NULL, world_engine, f->engine), 0);

    f->session = calloc(1, sizeof(*f->session));
    f->owner = calloc(1, sizeof(*f->owner));
    f->inbox = calloc(1, mcs_session_region_size(MCS_INBOX_SIZE_MIN));
    cr_assert(f->session != NULL && f->owner != NULL && f->inbox != NULL);
    f->session->incarnation = 42;
    f->owner->incarnation = 77;
    mcs_session_region_create(&f->owner->region, f->inbox, MCS_INBOX_SIZE_MIN, &header);
    fix_extent(&f->local, FIX_ADDRESS, FIX_EXTENT);
    fix_extent(&f->target, FIX_ADDRESS + (1u << 30), FIX_TARGET);
    f->segment = mcd_segment_create(f->owner, 0, 5);
    cr_assert_not_null(f->segment);
    cr_assert_eq(mcd_segment_add(f->segment, &f->target, 0, FIX_EXTENT_SIZE,
                                 MCS_ACCESS_READ | MCS_ACCESS_WRITE, &old),
                 0);
    free(old); /* nobody has seen it */
    snprintf(f->segment->name, sizeof(f->segment->name), "public");
    f->segment->flags = MCS_SEGMENT_PUBLIC;
    w->a.segments = f->segment;
    f->session->extents[MCD_HANDLE_INDEX(FIX_EXTENT)] = &f->local;

    cr_assert_eq(mcs_queue_layout(64, 128, 16, 64 << 10, &l), 0);
    f->memory = aligned_alloc(4096, l.total_size);
    cr_assert_not_null(f->memory);
    memset(f->memory, 0, l.total_size);
    f->queue.session = f->session;
    f->queue.engine = f->engine;
    cr_assert_eq(mcs_queue_create(&f->queue.shm, &f->queue.consumer, f->memory, &l, 1, 42, 0), 0);
    cr_assert_eq(mcs_queue_attach(&f->client, f->memory, l.total_size), 0);
    cr_assert_eq(mcd_queue_init(&f->queue), 0);
    mcd_engine_command(f->engine, &add);
    world_until(w, mcs_load_acquire(&add.done) != 0); /* partner: run_commands() */
    cr_assert_eq(mcd_mooncake_create(&w->a, &w->m, error, sizeof(error)), 0, "%s", error);
}

static inline void world_fini(struct world *w)
{
    struct fixture *f = &w->f;
    struct mcd_command remove = {.kind = MCD_COMMAND_REMOVE, .queue = &f->queue};

    mcd_mooncake_destroy(w->m);
    w->m = NULL;
    mcd_engine_command(f->engine, &remove);
    world_until(w, mcs_load_acquire(&remove.done) != 0); /* partner: run_commands() */
    world_until(w, w->a.alarms == NULL);                 /* what waits for a grace period */
    mcd_engine_stop(f->engine);
    pthread_join(w->thread, NULL);
    mcd_queue_fini(&f->queue);
    mcd_segment_put(f->segment);
    free(f->local.map);
    free(f->target.map);
    free(f->memory);
    free(f->inbox);
    free(f->session);
    free(f->owner);
    mcd_engine_destroy(f->engine);
    close(w->a.epoll_fd);
    close(w->a.event_fd);
}

/* ---- opening ----------------------------------------------------------------------- */

static inline void world_opened(void *context, uint32_t status, const char *text,
                                struct mcd_segment *segment)
{
    struct world *w = context;

    cr_assert(!w->opened, "told twice");
    w->opened = true;
    w->status = status;
    w->segment = segment;
    snprintf(w->text, sizeof(w->text), "%s", text);
}

static inline void world_open(struct world *w, const char *name, uint64_t limit_ms)
{
    w->opened = false;
    w->segment = NULL;
    cr_assert_eq(mcd_mooncake_open(w->m, name, limit_ms, world_opened, w, &w->opening), 0);
    cr_assert(!w->opened, "from inside");
}

/* Runs one task; the slot. */
static inline struct mcs_slot world_run(struct world *w, const struct mcs_desc *d)
{
    uint64_t word;

    fix_push(&w->f, d);
    world_until(w, (word = mcs_slot_peek(&w->f.client, d->slot),
                    word >> 32 == d->generation && (word & 0x7f) > MCS_STATE_PENDING));
    return w->f.client.slot_table[d->slot];
}

/* ---- the other side, played by the test ---------------------------------------------- */

static inline int world_connect(uint16_t port)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_geq(fd, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static inline int world_listen(uint16_t *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 16) == 0 &&
              getsockname(fd, (struct sockaddr *)&at, &size) == 0);
    *port = ntohs(at.sin_port);
    return fd;
}

static inline int world_accept(struct world *w, int listener)
{
    int fd;

    world_until(w, (fd = accept(listener, NULL, NULL)) >= 0);
    return fd;
}

/* Reads until there are n bytes, or the end (n 0: the end is awaited); how many came. */
static inline size_t world_take(struct world *w, int fd, void *out, size_t room, size_t n)
{
    time_t limit = time(NULL) + 60;
    size_t have = 0;

    while (have < room && (n == 0 || have < n)) {
        ssize_t res = recv(fd, (char *)out + have, room - have, MSG_DONTWAIT);

        if (res == 0 || (res < 0 && errno != EAGAIN))
            break;
        have += res > 0 ? (size_t)res : 0;
        world_turn(w);
        cr_assert_lt(time(NULL), limit, "only %zu bytes come", have);
    }
    return have;
}

static inline uint16_t world_port(struct world *w)
{
    return (uint16_t)atoi(strrchr(mcd_mooncake_name(w->m), ':') + 1);
}

#endif
