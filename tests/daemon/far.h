/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture with a route to a fake peer: a segment of that peer is open beside the local one. */
#ifndef TESTS_FAR_H
#define TESTS_FAR_H

#include "daemon/net.h"
#include "fake_net.h"
#include "fixture.h"

#define FAR_SEGMENT 0x80003004u /* handle of the peer's segment, entry 4 */

struct far {
    struct fixture f;
    struct mcd_route *route;
    struct mcd_remote remote;
    struct mcd_segment *segment;
    struct mcd_open open;
    uint64_t next_conn;
};

static inline struct mcd_snapshot *far_snapshot(uint64_t size, uint32_t access)
{
    struct mcd_snapshot *s = calloc(1, sizeof(*s) + sizeof(struct mcd_buffer));

    s->count = 1;
    s->buffers[0] = (struct mcd_buffer){.address = FAKE_BASE, .length = size, .access = access};
    return s;
}

/* A segment of another peer; its route is given. */
static inline struct mcd_segment *far_segment(struct mcd_remote *remote, struct mcd_route *r)
{
    struct mcd_segment *s = mcd_segment_create(NULL, 0, 9);

    cr_assert_not_null(s);
    memset(remote, 0, sizeof(*remote));
    remote->routes[0] = r;
    remote->incarnation = 9;
    remote->export_index = 3;
    s->snapshot = far_snapshot(FAKE_SIZE, MCS_ACCESS_READ | MCS_ACCESS_WRITE);
    s->remote = remote;
    return s;
}

/* Rails of the better transport, then of the other. */
static inline struct mcd_route *far_route_tiers(struct mcd_engine *g, unsigned rdma, unsigned tcp,
                                                uint64_t slice, bool best_only)
{
    struct mcd_route_options o = {
        .engine = g,
        .id = 1,
        .slice = slice,
        .down_ns = 50000000,
        .best_only = best_only,
        .peer = "peer",
    };
    struct mcd_rail_options rail = {
        .ops = &fake_ops,
        .peer = "203.0.113.1:1",
        .node = -1,
        .slice = slice,
        .window = 8 << 20,
    };
    struct mcd_route *r;
    char local[32];

    rail.local = local;

    cr_assert_eq(mcd_route_create(&o, &r), 0);
    for (unsigned i = 0; i < rdma + tcp; i++) {
        rail.ops = i < rdma ? &fake_rdma_ops : &fake_ops;
        rail.tier = i < rdma ? 0 : 1;
        snprintf(local, sizeof(local), "198.51.100.%u", i + 1);
        rail.rank = i;
        cr_assert_eq(mcd_route_rail(r, &rail), (int)i);
    }
    fix_call(g, mcd_route_attach, r);
    return r;
}

static inline struct mcd_route *far_route(struct mcd_engine *g, unsigned rails, uint64_t slice)
{
    return far_route_tiers(g, 0, rails, slice, false);
}

static inline struct mct_link *far_link(const struct far *x, unsigned rail)
{
    return x->route->rails[rail].link;
}

static inline uint64_t far_adopt(struct far *x, struct mcd_route *r, unsigned rail)
{
    struct mcd_route_conn c = {.route = r, .rail = rail, .conn = {.fd = -1, .id = ++x->next_conn}};

    fix_call(x->f.engine, mcd_route_adopt, &c);
    return c.conn.id;
}

/* more: what the engine's options have besides. */
static inline void far_init_with(struct far *x, unsigned rdma, unsigned tcp, bool best_only,
                                 const struct mcd_engine_options *more)
{
    static const struct mct_ops *const nets[] = {&fake_ops, &fake_rdma_ops};
    struct mcd_engine_options o = *more;

    o.nets = nets;
    o.nnets = 2;
    o.clock = fake_clock;
    memset(x, 0, sizeof(*x));
    memset(&fake, 0, sizeof(fake));
    fake.now = 1000000000;
    fake.step = 1000;
    fake.random = 1;
    fake.inbox_room = UINT32_MAX;
    fake.memory = calloc(1, FAKE_SIZE);
    fix_init_nets(&x->f, MCS_ACCESS_READ | MCS_ACCESS_WRITE, 256 << 10, &o);
    x->route = far_route_tiers(x->f.engine, rdma, tcp, 256 << 10, best_only);
    x->segment = far_segment(&x->remote, x->route);
    x->open = (struct mcd_open){.handle = FAR_SEGMENT, .segment = x->segment};
    x->f.session->opens[MCD_HANDLE_INDEX(FAR_SEGMENT)] = &x->open;
}

static inline void far_init_tiers(struct far *x, unsigned rdma, unsigned tcp, bool best_only)
{
    far_init_with(x, rdma, tcp, best_only, &(struct mcd_engine_options){0});
}

static inline void far_init(struct far *x, unsigned rails)
{
    far_init_tiers(x, 0, rails, false);
    for (unsigned i = 0; i < rails; i++)
        far_adopt(x, x->route, i);
}

static inline void far_fini(struct far *x)
{
    struct mcd_engine *g = x->f.engine;

    if (x->route != NULL) {
        fix_call(g, mcd_route_detach, x->route);
        cr_assert_eq(x->route->tasks, 0u);
        mcd_route_destroy(x->route);
    }
    cr_assert_eq(fake.slices, 0u);
    cr_assert_eq(g->net->slices.used, 0u);
    cr_assert_eq(g->wheel->set, x->f.queue.parked + x->f.queue.waits);
    cr_assert_null(g->net->active);
    mcd_segment_put(x->segment);
    fix_fini(&x->f);
    free(fake.memory);
}

/* A descriptor to the peer, in slot and batch `slot`. */
static inline struct mcs_desc far_desc(struct far *x, uint8_t op, uint32_t slot, uint64_t local,
                                       uint64_t remote, uint64_t length)
{
    struct mcs_desc d = fix_desc(&x->f, op, length);

    d.slot = slot;
    d.segment = FAR_SEGMENT;
    d.local_offset = local;
    d.remote_addr = FAKE_BASE + remote;
    return d;
}

static inline bool far_ended(const struct far *x, const struct mcs_desc *d)
{
    uint64_t word = mcs_slot_peek(&x->f.client, d->slot);

    return word >> 32 == d->generation && (word & 0x7f) > MCS_STATE_PENDING;
}

static inline bool far_settled(struct mcs_slot s)
{
    return (s.word & MCS_SLOT_REMOTE_QUIESCED) != 0;
}

static inline unsigned far_path(struct mcs_slot s)
{
    return s.word >> 8 & 0xff;
}

static inline void far_turns(struct far *x, unsigned n)
{
    while (n-- != 0)
        mcd_engine_turn(x->f.engine);
}

/* Turns until it is out on a rail, in at least n slices. */
static inline void far_until_out(struct far *x, unsigned n)
{
    for (int i = 0; i < 1000000 && fake.slices < n; i++)
        mcd_engine_turn(x->f.engine);
    cr_assert_geq(fake.slices, n);
}

/* A second queue of the same session. */
struct far_queue {
    struct mcd_queue queue;
    struct mcs_queue client;
    void *memory;
};

static inline void far_queue_init(struct far *x, struct far_queue *q)
{
    struct mcd_command add = {.kind = MCD_COMMAND_ADD, .queue = &q->queue};
    struct mcs_queue_layout l;

    memset(q, 0, sizeof(*q));
    cr_assert_eq(mcs_queue_layout(64, 128, 16, 64 << 10, &l), 0);
    q->memory = aligned_alloc(4096, l.total_size);
    memset(q->memory, 0, l.total_size);
    q->queue.session = x->f.session;
    q->queue.engine = x->f.engine;
    cr_assert_eq(mcs_queue_create(&q->queue.shm, &q->queue.consumer, q->memory, &l, 1, 42, 0), 0);
    cr_assert_eq(mcs_queue_attach(&q->client, q->memory, l.total_size), 0);
    cr_assert_eq(mcd_queue_init(&q->queue), 0);
    mcd_engine_command(x->f.engine, &add);
    while (mcs_load_acquire(&add.done) == 0) /* partner: run_commands() */
        mcd_engine_turn(x->f.engine);
}

static inline void far_queue_fini(struct far *x, struct far_queue *q)
{
    struct mcd_command remove = {.kind = MCD_COMMAND_REMOVE, .queue = &q->queue};

    mcd_engine_command(x->f.engine, &remove);
    while (mcs_load_acquire(&remove.done) == 0) /* partner: run_commands() */
        mcd_engine_turn(x->f.engine);
    mcd_queue_fini(&q->queue);
    free(q->memory);
}

static inline void far_fill(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 7 + (i >> 8) + seed);
}

/* The argument block at the start of the argument area: pieces, then the notification. */
static inline void far_args(struct far *x, const struct mcs_piece *pieces, uint64_t n,
                            const char *name, const char *message)
{
    struct mcs_args *a = (struct mcs_args *)x->f.client.args;
    uint8_t *at = (uint8_t *)(a + 1);

    *a =
        (struct mcs_args){.count = n, .pieces = 64, .notify = (uint32_t)(64 + n * sizeof(*pieces))};
    if (n != 0)
        memcpy(at, pieces, n * sizeof(*pieces));
    at += n * sizeof(*pieces);
    a->name_length = (uint32_t)strlen(name);
    a->message_length = (uint32_t)strlen(message);
    memcpy(at, name, a->name_length);
    memcpy(at + a->name_length, message, a->message_length);
    a->total = a->notify + a->name_length + a->message_length;
}

static inline void far_completes_over(struct far *x, const struct mcs_desc *d, uint64_t bytes,
                                      unsigned path)
{
    struct mcs_slot s = fix_end(&x->f, d);

    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED, "state %u error %u", fix_state(s),
                 fix_error(s));
    cr_assert_eq(fix_error(s), MCS_OK);
    cr_assert_eq(s.bytes, bytes);
    cr_assert_eq(far_path(s), path, "path %u", far_path(s));
    cr_assert(far_settled(s));
}

static inline void far_completes(struct far *x, const struct mcs_desc *d, uint64_t bytes)
{
    far_completes_over(x, d, bytes, MCS_PATH_TCP);
}

static inline void far_ends(struct far *x, const struct mcs_desc *d, unsigned state, unsigned error)
{
    struct mcs_slot s = fix_end(&x->f, d);

    cr_assert_eq(fix_state(s), state, "state %u error %u", fix_state(s), fix_error(s));
    cr_assert_eq(fix_error(s), error, "state %u error %u", fix_state(s), fix_error(s));
}

#endif
