/* SPDX-License-Identifier: Apache-2.0 */
/* An engine, a session and a queue in one process, without sockets: the client's side is
 * played through shm/ alone, so that a test can write whatever a hostile client could. */
#ifndef TESTS_FIXTURE_H
#define TESTS_FIXTURE_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/session.h"

#define FIX_EXTENT_SIZE (1u << 20)
#define FIX_EXTENT 0x80001001u  /* handle of the local extent, entry 1 */
#define FIX_TARGET 0x80001002u  /* handle of the target's extent, entry 2, not the client's */
#define FIX_SEGMENT 0x80002003u /* handle of the open segment, entry 3 */
#define FIX_ADDRESS UINT64_C(0x200000000000)

struct fixture {
    struct mcd_engine *engine;
    struct mcd_session *session, *owner; /* who asks, whose segment it is */
    struct mcd_extent local, target;
    struct mcd_segment *segment;
    struct mcd_open open;
    struct mcd_queue queue;
    struct mcs_queue client; /* the client's view of the same memory */
    void *memory, *inbox;
    uint32_t generation;
};

static inline uint64_t fix_tick_hz(void)
{
    struct timespec a, b;
    uint64_t t0 = mcs_ticks(), ns;

    clock_gettime(CLOCK_MONOTONIC, &a);
    do {
        clock_gettime(CLOCK_MONOTONIC, &b);
        ns = (uint64_t)(b.tv_sec - a.tv_sec) * 1000000000u + (uint64_t)b.tv_nsec -
             (uint64_t)a.tv_nsec;
    } while (ns < 2000000);
    return (mcs_ticks() - t0) * 1000000000u / ns;
}

static inline void fix_extent(struct mcd_extent *e, uint64_t address, uint32_t handle)
{
    memset(e, 0, sizeof(*e));
    e->map = aligned_alloc(4096, FIX_EXTENT_SIZE);
    cr_assert_not_null(e->map);
    memset(e->map, 0, FIX_EXTENT_SIZE);
    e->size = FIX_EXTENT_SIZE;
    e->address = address;
    e->handle = handle;
}

/* access: rights of the one buffer that covers the target's extent. nets: what the engine's options
 * say of other hosts, NULL: nothing. */
static inline void fix_init_nets(struct fixture *f, uint32_t access, uint64_t slice,
                                 const struct mcd_engine_options *nets)
{
    struct mcd_engine_options o = nets != NULL ? *nets : (struct mcd_engine_options){0};
    struct mcs_queue_layout l;
    struct mcd_snapshot *old;
    struct mcd_command add = {.kind = MCD_COMMAND_ADD, .queue = &f->queue};
    struct mcs_session_header header = {.session_incarnation = 77};

    o.tick_hz = fix_tick_hz();
    o.tick_shift = 3;
    o.spin_us = 20;
    o.slice = slice;
    o.stream_min = 256 << 10;
    o.deadline_us = 30000000;
    o.control_fd = -1;
    memset(f, 0, sizeof(*f));
    cr_assert_eq(mcd_engine_create(&o, &f->engine), 0);
    f->session = calloc(1, sizeof(*f->session));
    f->owner = calloc(1, sizeof(*f->owner));
    cr_assert(f->session != NULL && f->owner != NULL);
    f->session->incarnation = 42;
    f->owner->incarnation = 77;
    f->inbox = calloc(1, mcs_session_region_size(MCS_INBOX_SIZE_MIN));
    mcs_session_region_create(&f->owner->region, f->inbox, MCS_INBOX_SIZE_MIN, &header);
    fix_extent(&f->local, FIX_ADDRESS, FIX_EXTENT);
    fix_extent(&f->target, FIX_ADDRESS + (1u << 30), FIX_TARGET);
    f->segment = mcd_segment_create(f->owner, 0, 5);
    cr_assert_not_null(f->segment);
    cr_assert_eq(mcd_segment_add(f->segment, &f->target, 0, FIX_EXTENT_SIZE, access, &old), 0);
    f->open = (struct mcd_open){.handle = FIX_SEGMENT, .segment = f->segment};
    f->session->extents[MCD_HANDLE_INDEX(FIX_EXTENT)] = &f->local;
    f->session->opens[MCD_HANDLE_INDEX(FIX_SEGMENT)] = &f->open;

    cr_assert_eq(mcs_queue_layout(64, 128, 16, 64 << 10, &l), 0);
    f->memory = aligned_alloc(4096, l.total_size);
    memset(f->memory, 0, l.total_size);
    f->queue.session = f->session;
    f->queue.engine = f->engine;
    cr_assert_eq(mcs_queue_create(&f->queue.shm, &f->queue.consumer, f->memory, &l, 1, 42, 0), 0);
    cr_assert_eq(mcs_queue_attach(&f->client, f->memory, l.total_size), 0);
    cr_assert_eq(mcd_queue_init(&f->queue), 0);
    mcd_engine_command(f->engine, &add);
    while (mcs_load_acquire(&add.done) == 0) /* partner: run_commands() */
        mcd_engine_turn(f->engine);
}

static inline void fix_init(struct fixture *f, uint32_t access, uint64_t slice)
{
    fix_init_nets(f, access, slice, NULL);
}

/* A command, until it is over. */
static inline void fix_call(struct mcd_engine *g,
                            bool (*call)(struct mcd_engine *, struct mcd_command *), void *context)
{
    struct mcd_command c;

    mcd_engine_call(g, &c, call, context);
    while (mcs_load_acquire(&c.done) == 0) /* partner: run_commands() */
        mcd_engine_turn(g);
}

static inline void fix_fini(struct fixture *f)
{
    struct mcd_command remove = {.kind = MCD_COMMAND_REMOVE, .queue = &f->queue};

    mcd_engine_command(f->engine, &remove);
    while (mcs_load_acquire(&remove.done) == 0) /* partner: run_commands() */
        mcd_engine_turn(f->engine);
    mcd_queue_fini(&f->queue);
    mcd_segment_put(f->segment);
    free(f->local.map);
    free(f->target.map);
    free(f->memory);
    free(f->inbox);
    free(f->session);
    free(f->owner);
    mcd_engine_destroy(f->engine);
}

/* A good descriptor for a fresh generation of slot and batch 0. */
static inline struct mcs_desc fix_desc(struct fixture *f, uint8_t op, uint64_t length)
{
    return (struct mcs_desc){
        .op = op,
        .priority = MCS_CLASS_NORMAL,
        .generation = ++f->generation,
        .batch_generation = f->generation,
        .extent = FIX_EXTENT,
        .segment = FIX_SEGMENT,
        .remote_addr = f->target.address,
        .length = length,
        .args = MCS_ARGS_NONE,
        .submitted = (uint32_t)(mcs_ticks() >> 3),
    };
}

static inline void fix_push(struct fixture *f, const struct mcs_desc *d)
{
    cr_assert(mcs_ring_push(f->client.ring, d, 1));
}

/* Turns until the slot has this generation in an end state; returns the slot. */
static inline struct mcs_slot fix_end(struct fixture *f, const struct mcs_desc *d)
{
    for (int i = 0; i < 10000000; i++) {
        uint64_t word = mcs_slot_peek(&f->client, d->slot);

        if (word >> 32 == d->generation && (word & 0x7f) > MCS_STATE_PENDING)
            return f->client.slot_table[d->slot];
        mcd_engine_turn(f->engine);
    }
    cr_assert_fail("the task does not end");
    return f->client.slot_table[d->slot];
}

static inline unsigned fix_state(struct mcs_slot s)
{
    return s.word & 0x7f;
}

static inline unsigned fix_error(struct mcs_slot s)
{
    return s.word >> 16 & 0xffff;
}

static inline struct mcs_slot fix_run(struct fixture *f, const struct mcs_desc *d)
{
    fix_push(f, d);
    return fix_end(f, d);
}

/* Expects the task to be refused with this error, no byte moved. */
#define fix_refused(f, d, want)                                                                    \
    do {                                                                                           \
        struct mcs_slot slot_ = fix_run((f), (d));                                                 \
        cr_assert_eq(fix_state(slot_), MCS_STATE_INVALID, "state %u", fix_state(slot_));           \
        cr_assert_eq(fix_error(slot_), (want), "error %u", fix_error(slot_));                      \
        cr_assert_eq(slot_.bytes, 0u);                                                             \
    } while (0)

#endif
