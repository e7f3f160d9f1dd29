/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines over loopback sockets with the real TCP transport: one has the tasks, the other
 * serves the segment of its own session.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net.h"
#include "fixture.h"
#include "transports/tcp/protocol.h"

#define PEER_SEGMENT 0x80003004u
#define PUBLISHED (FIX_EXTENT_SIZE)
#define RW (MCS_ACCESS_READ | MCS_ACCESS_WRITE)

struct pair {
    struct fixture here, there;
    struct mcd_route *route;
    struct mcd_remote remote;
    struct mcd_segment *segment;
    struct mcd_open open;
    struct mcd_exports exports;
    struct mcd_export export;
    struct mcd_visitor visitor;
    bool threads;
    uint64_t next_conn;
    pthread_t thread[2];
};

static struct pair x;

/* A command to an engine, whose thread may be this one. */
static void call(struct mcd_engine *g, bool (*f)(struct mcd_engine *, struct mcd_command *),
                 void *context)
{
    struct mcd_command c;

    mcd_engine_call(g, &c, f, context);
    while (mcs_load_acquire(&c.done) == 0) { /* partner: finish_command() */
        if (x.threads) {
            sched_yield();
        } else {
            mcd_engine_turn(x.here.engine);
            mcd_engine_turn(x.there.engine);
        }
    }
}

static void sockets(int fd[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(a);
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(bind(l, (struct sockaddr *)&a, sizeof(a)), 0);
    cr_assert_eq(listen(l, 1), 0);
    cr_assert_eq(getsockname(l, (struct sockaddr *)&a, &size), 0);
    fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd[0], (struct sockaddr *)&a, sizeof(a)), 0);
    fd[1] = accept(l, NULL, NULL);
    cr_assert_geq(fd[1], 0);
    close(l);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(fcntl(fd[i], F_SETFL, O_NONBLOCK), 0);
}

static void add_connection(unsigned rail)
{
    struct mcd_route_conn a = {.route = x.route, .rail = rail};
    struct mcd_serve s = {.ops = &mct_tcp_ops, .visitor = &x.visitor};
    int fd[2];

    sockets(fd);
    a.conn =
        (struct mct_conn){.fd = fd[0], .id = ++x.next_conn, .features = MCT_TCP_FEATURE_NOTIFY};
    s.conn = (struct mct_conn){.fd = fd[1], .id = x.next_conn, .features = MCT_TCP_FEATURE_NOTIFY};
    call(x.there.engine, mcd_serve_adopt, &s);
    cr_assert_eq(s.res, 0);
    call(x.here.engine, mcd_route_adopt, &a);
}

static void *run(void *arg)
{
    mcd_engine_run(arg);
    return NULL;
}

static void start(unsigned rails, bool threads)
{
    static const struct mct_ops *const nets[] = {&mct_tcp_ops};
    struct mcd_engine_options o = {
        .nets = nets, .nnets = 1, .network = true, .checksum = true, .zero_copy_min = UINT64_MAX};
    struct mcd_route_options ro = {
        .id = 1, .slice = 256 << 10, .down_ns = 2000000000, .peer = "there"};
    struct mcd_rail_options rail = {.ops = &mct_tcp_ops,
                                    .local = "127.0.0.1",
                                    .peer = "127.0.0.1",
                                    .node = -1,
                                    .slice = 256 << 10,
                                    .window = 8 << 20};
    struct mcd_snapshot *s;

    memset(&x, 0, sizeof(x));
    fix_init_nets(&x.here, RW, 256 << 10, &o);
    fix_init_nets(&x.there, RW, 256 << 10, &o);
    x.threads = threads;
    /* before the first call: a ring belongs to the thread that enables it */
    if (threads) {
        cr_assert_eq(pthread_create(&x.thread[0], NULL, run, x.here.engine), 0);
        cr_assert_eq(pthread_create(&x.thread[1], NULL, run, x.there.engine), 0);
    }
    x.export = (struct mcd_export){.segment = x.there.segment, .incarnation = 77, .index = 3};
    x.exports.slots[3] = &x.export;
    x.visitor.exports = &x.exports;
    strcpy(x.visitor.name, "here");
    ro.engine = x.here.engine;
    cr_assert_eq(mcd_route_create(&ro, &x.route), 0);
    for (unsigned i = 0; i < rails; i++)
        cr_assert_eq(mcd_route_rail(x.route, &rail), (int)i);
    call(x.here.engine, mcd_route_attach, x.route);
    x.segment = mcd_segment_create(NULL, 0, 77);
    x.remote = (struct mcd_remote){.routes = {x.route}, .incarnation = 77, .export_index = 3};
    s = calloc(1, sizeof(*s) + sizeof(struct mcd_buffer));
    s->count = 1;
    s->buffers[0] =
        (struct mcd_buffer){.address = x.there.target.address, .length = PUBLISHED, .access = RW};
    x.segment->snapshot = s;
    x.segment->remote = &x.remote;
    x.open = (struct mcd_open){.handle = PEER_SEGMENT, .segment = x.segment};
    x.here.session->opens[MCD_HANDLE_INDEX(PEER_SEGMENT)] = &x.open;
    for (unsigned i = 0; i < rails; i++)
        add_connection(i);
}

static void stop(void)
{
    struct mcd_serve s = {.ops = &mct_tcp_ops, .visitor = &x.visitor};

    call(x.there.engine, mcd_serve_dismiss, &s);
    cr_assert_eq(mcs_load_relaxed(&x.visitor.conns), 0u);
    call(x.here.engine, mcd_route_detach, x.route);
    mcd_route_destroy(x.route);
    cr_assert_eq(x.here.engine->net->slices.used, 0u);
    mcd_segment_put(x.segment);
    fix_fini(&x.here);
    fix_fini(&x.there);
}

static struct mcs_desc desc(uint8_t op, uint32_t slot, uint64_t local, uint64_t remote,
                            uint64_t length)
{
    struct mcs_desc d = fix_desc(&x.here, op, length);

    d.slot = slot;
    d.segment = PEER_SEGMENT;
    d.local_offset = local;
    d.remote_addr = x.there.target.address + remote;
    return d;
}

static bool ended(const struct mcs_desc *d)
{
    uint64_t word = mcs_slot_peek(&x.here.client, d->slot);

    return word >> 32 == d->generation && (word & 0x7f) > MCS_STATE_PENDING;
}

static struct mcs_slot await(const struct mcs_desc *d)
{
    for (unsigned i = 0; i < 100000000 && !ended(d); i++) {
        mcd_engine_turn(x.here.engine);
        mcd_engine_turn(x.there.engine);
    }
    cr_assert(ended(d));
    return x.here.client.slot_table[d->slot];
}

static void fill(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 13 + (i >> 9) + seed);
}

Test(remote_tcp, all_kinds_of_tasks, .timeout = 60)
{
    static const uint64_t sizes[] = {1, 63, 4096, 100000, FIX_EXTENT_SIZE};
    struct mcs_args *a;
    struct mcs_desc d;
    struct mcs_slot s;

    start(2, false);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        fill(x.here.local.map, sizes[i], i);
        d = desc(MCS_OP_WRITE, 0, 0, FIX_EXTENT_SIZE - sizes[i], sizes[i]);
        fix_push(&x.here, &d);
        s = await(&d);
        cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED, "error %u", fix_error(s));
        cr_assert_eq(s.bytes, sizes[i]);
        cr_assert_arr_eq(x.there.target.map + FIX_EXTENT_SIZE - sizes[i], x.here.local.map,
                         sizes[i]);
        fill(x.there.target.map, sizes[i], i + 100);
        d = desc(MCS_OP_READ, 1, 0, 0, sizes[i]);
        fix_push(&x.here, &d);
        s = await(&d);
        cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED, "error %u", fix_error(s));
        cr_assert_arr_eq(x.there.target.map, x.here.local.map, sizes[i]);
    }
    a = (struct mcs_args *)x.here.client.args;
    *a = (struct mcs_args){.total = 64 + 9, .notify = 64, .name_length = 4, .message_length = 5};
    memcpy(a + 1, "namehello", 9);
    d = desc(MCS_OP_WRITE, 0, 0, 0, 5000);
    d.flags = MCS_DESC_NOTIFY;
    d.args = 0;
    fix_push(&x.here, &d);
    s = await(&d);
    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED, "error %u", fix_error(s));
    cr_assert_eq(x.there.engine->counters.notifications, 1u);
    cr_assert_arr_eq((char *)x.there.inbox + MCS_SESSION_INBOX_OFFSET +
                         sizeof(struct mcs_inbox_record),
                     "namehello", 9);
    /* refused there */
    x.export.incarnation++;
    d = desc(MCS_OP_WRITE, 0, 0, 0, 5000);
    fix_push(&x.here, &d);
    s = await(&d);
    cr_assert_eq(fix_state(s), MCS_STATE_INVALID);
    cr_assert_eq(fix_error(s), MCS_STALE);
    x.export.incarnation--;
    cr_assert_eq(x.route->rails[0].lost + x.route->rails[1].lost, 0u);
    stop();
}

/* The engine of the peer stands still, then its connections are gone: work goes on over new ones. */
Test(remote_tcp, lost_connections_are_killed_and_the_work_done, .timeout = 60)
{
    struct mcs_desc d[16];
    struct mcd_serve s = {.ops = &mct_tcp_ops, .visitor = &x.visitor};

    start(1, false);
    fill(x.here.local.map, FIX_EXTENT_SIZE, 9);
    for (uint32_t round = 0; round < 20; round++) {
        memset(x.there.target.map, 0, FIX_EXTENT_SIZE);
        for (uint32_t i = 0; i < 16; i++) {
            d[i] = desc(MCS_OP_WRITE, i, i * 65536, i * 65536, 65536);
            fix_push(&x.here, &d[i]);
        }
        for (uint32_t i = 0; i < round; i++)
            mcd_engine_turn(x.here.engine);
        for (uint32_t i = 0; i < round / 2; i++)
            mcd_engine_turn(x.there.engine);
        if (round % 2 == 0) {
            struct mcd_route_word w = {
                .route = x.route, .rail = 0, .usable = false, .reason = MCD_RAIL_CARRIER};

            call(x.here.engine, mcd_route_tell, &w);
            w.usable = true;
            call(x.here.engine, mcd_route_tell, &w);
        } else {
            call(x.there.engine, mcd_serve_dismiss, &s);
        }
        while (x.route->rails[0].rail.conns != 0) {
            mcd_engine_turn(x.here.engine);
            mcd_engine_turn(x.there.engine);
        }
        add_connection(0);
        for (uint32_t i = 0; i < 16; i++) {
            struct mcs_slot slot = await(&d[i]);

            cr_assert_eq(fix_state(slot), MCS_STATE_COMPLETED, "round %u: state %u error %u", round,
                         fix_state(slot), fix_error(slot));
        }
        cr_assert_arr_eq(x.there.target.map, x.here.local.map, FIX_EXTENT_SIZE);
        cr_assert_eq(x.route->nunsettled, 0u);
    }
    cr_assert_gt(x.here.engine->counters.kills, 0u);
    stop();
}

Test(remote_tcp, cancels_and_deadlines_leave_connections_alone, .timeout = 60)
{
    struct mcs_desc d[8], cancel = {.op = MCS_OP_CANCEL};

    start(1, false);
    for (uint32_t round = 0; round < 30; round++) {
        for (uint32_t i = 0; i < 8; i++) {
            d[i] = desc(i % 2 == 0 ? MCS_OP_WRITE : MCS_OP_READ, i, 0, 0, FIX_EXTENT_SIZE);
            if (i >= 6)
                d[i].deadline_us = 200;
            fix_push(&x.here, &d[i]);
        }
        for (uint32_t i = 0; i < round; i++) {
            mcd_engine_turn(x.here.engine);
            mcd_engine_turn(x.there.engine);
        }
        for (uint32_t i = 0; i < 4; i++) {
            cancel.slot = i;
            cancel.generation = d[i].generation;
            fix_push(&x.here, &cancel);
        }
        for (uint32_t i = 0; i < 8; i++) {
            struct mcs_slot s = await(&d[i]);
            unsigned state = fix_state(s);

            cr_assert(state == MCS_STATE_COMPLETED || (state == MCS_STATE_CANCELED && i < 4) ||
                          (state == MCS_STATE_TIMEOUT && i >= 6),
                      "state %u error %u", state, fix_error(s));
        }
    }
    cr_assert_eq(x.route->rails[0].lost, 0u);
    stop();
}

/* Both engines in threads of their own, asleep whenever they can be. */
Test(remote_tcp, engines_that_sleep_are_woken, .timeout = 120)
{
    struct fixture *f[2] = {&x.here, &x.there};
    uint64_t sleeps;

    start(1, true);
    for (uint32_t round = 1; round <= 300; round++) {
        struct mcs_desc d = desc(round % 2 == 0 ? MCS_OP_WRITE : MCS_OP_READ, 0, 0, 0,
                                 round % 10 == 0 ? FIX_EXTENT_SIZE : 4096);

        fix_push(&x.here, &d);
        if (mcs_queue_must_wake(&x.here.client)) {
            uint64_t one = 1;

            cr_assert_eq(write(x.here.engine->event_fd, &one, sizeof(one)), (ssize_t)sizeof(one));
        }
        while (!ended(&d))
            sched_yield();
        cr_assert_eq(fix_state(x.here.client.slot_table[0]), MCS_STATE_COMPLETED);
        sleeps = mcs_load_relaxed(&x.here.engine->counters.sleeps);
        if (round % 50 == 0) /* until it sleeps again */
            while (mcs_load_relaxed(&x.here.engine->counters.sleeps) == sleeps &&
                   mcs_load_relaxed(&x.here.engine->asleep) == 0)
                sched_yield();
    }
    call(x.here.engine, mcd_route_detach, x.route);
    for (unsigned i = 0; i < 2; i++) {
        mcd_engine_stop(f[i]->engine);
        cr_assert_eq(pthread_join(x.thread[i], NULL), 0);
    }
    x.threads = false;
    mcd_route_destroy(x.route);
    mcd_segment_put(x.segment);
    fix_fini(&x.here);
    fix_fini(&x.there);
}
