/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks that stand behind others: no time, order or room is lost on them. */
#include "fixture.h"

#define RW (MCS_ACCESS_READ | MCS_ACCESS_WRITE)

/* A head of `total` bytes at the start of the argument area; what follows it is the caller's. */
static void *put_args(struct fixture *f, struct mcs_args head)
{
    struct mcs_args *a = (struct mcs_args *)f->client.args;

    *a = head;
    return a + 1;
}

/* A large task and a small one behind it, both parked, slots 0 and 1. */
static void push_two(struct fixture *f, struct mcs_desc *large, struct mcs_desc *small,
                     uint32_t deadline_us)
{
    *large = fix_desc(f, MCS_OP_WRITE, FIX_EXTENT_SIZE);
    *small = fix_desc(f, MCS_OP_WRITE, 64);
    small->slot = small->batch = 1;
    small->deadline_us = deadline_us;
    fix_push(f, large);
    fix_push(f, small);
    while (f->queue.parked != 2)
        mcd_engine_turn(f->engine);
}

Test(parked, pieces_that_follow_each_other_are_copied_in_order)
{
    static const struct mcs_piece pieces[] = {{0, 64, 64}, {64, 128, 64}, {128, 192, 64}};
    struct fixture f;
    struct mcs_desc d;

    fix_init(&f, RW, 64 << 10);
    f.session->extents[MCD_HANDLE_INDEX(FIX_TARGET)] = &f.target; /* both ends in one extent */
    for (unsigned i = 0; i < 256; i++)
        f.target.map[i] = (uint8_t)i;
    memcpy(put_args(&f, (struct mcs_args){.total = 64 + sizeof(pieces), .count = 3, .pieces = 64}),
           pieces, sizeof(pieces));
    d = fix_desc(&f, MCS_OP_WRITE, 192);
    d.shape = MCS_SHAPE_LIST;
    d.args = 0;
    d.extent = FIX_TARGET;
    cr_assert_eq(fix_state(fix_run(&f, &d)), MCS_STATE_COMPLETED);
    /* each piece reads what the one before it wrote */
    for (unsigned i = 0; i < 256; i++)
        cr_assert_eq(f.target.map[i], i % 64, "byte %u is %u", i, f.target.map[i]);
    fix_fini(&f);
}

Test(parked, cancel_does_not_wait_for_those_before)
{
    struct fixture f;
    struct mcs_desc large, small, cancel = {.op = MCS_OP_CANCEL};

    fix_init(&f, RW, 4096);
    push_two(&f, &large, &small, 0);
    cancel.slot = small.slot;
    cancel.generation = small.generation;
    fix_push(&f, &cancel);
    cr_assert_eq(fix_state(fix_end(&f, &small)), MCS_STATE_CANCELED);
    cr_assert_eq(f.queue.parked, 1u, "the large one is still under way");
    cr_assert_eq(fix_state(fix_end(&f, &large)), MCS_STATE_COMPLETED);
    fix_fini(&f);
}

Test(parked, deadline_does_not_wait_for_those_before)
{
    struct fixture f;
    struct mcs_desc large, small;
    uint64_t start;

    fix_init(&f, RW, 4096);
    push_two(&f, &large, &small, 20000);
    start = mcs_ticks();
    while (mcs_ticks() - start < 25000 * f.engine->ticks_per_us)
        mcs_pause();
    for (int i = 0; i < 16 && f.queue.parked == 2; i++) /* it looks at the clock every 8 turns */
        mcd_engine_turn(f.engine);
    cr_assert_eq(f.queue.parked, 1u, "the large one is still under way");
    cr_assert_eq(fix_state(fix_end(&f, &small)), MCS_STATE_TIMEOUT);
    cr_assert_eq(fix_state(fix_end(&f, &large)), MCS_STATE_COMPLETED);
    fix_fini(&f);
}

Test(parked, a_full_inbox_costs_one_look_a_turn)
{
    struct fixture f;
    struct mcs_session_region reader;
    const struct mcs_inbox_record *r;
    struct mcs_desc d;
    uint64_t before;
    uint32_t last = 0;
    unsigned delivered = 0;
    uint8_t *text;

    fix_init(&f, RW, 64 << 10);
    mcs_session_region_attach(&reader, f.inbox, mcs_session_region_size(MCS_INBOX_SIZE_MIN));
    text = put_args(&f, (struct mcs_args){.total = 1064, .notify = 64, .message_length = 1000});
    memset(text, 'm', 1000);
    for (uint32_t i = 0; i < 120; i++) {
        d = fix_desc(&f, MCS_OP_NOTIFY, 0);
        d.slot = i;
        d.args = 0;
        fix_push(&f, &d);
        mcd_engine_turn(f.engine);
    }
    for (int i = 0; i < 8; i++)
        mcd_engine_turn(f.engine);
    cr_assert_gt(f.queue.parked, 90u);
    before = f.engine->counters.inbox_full;
    for (int i = 0; i < 100; i++)
        mcd_engine_turn(f.engine);
    cr_assert_leq(f.engine->counters.inbox_full - before, 100u, "%llu looks in 100 turns",
                  (unsigned long long)(f.engine->counters.inbox_full - before));
    /* a copy of the same queue and class passes them, at once */
    d = fix_desc(&f, MCS_OP_WRITE, 64);
    d.slot = 127;
    cr_assert_eq(fix_state(fix_run(&f, &d)), MCS_STATE_COMPLETED);
    /* and with room they come in the order in which they were sent */
    while (f.queue.parked != 0) {
        r = mcs_inbox_peek(&reader);
        cr_assert_not_null(r);
        mcs_inbox_release(&reader, r);
        for (int i = 0; i < 20; i++)
            mcd_engine_turn(f.engine);
        for (; last < 120; last++, delivered++)
            if (f.client.slot_table[last].word == 0 ||
                fix_state(f.client.slot_table[last]) != MCS_STATE_COMPLETED)
                break;
        for (uint32_t i = last; i < 120; i++)
            cr_assert_neq(fix_state(f.client.slot_table[i]), MCS_STATE_COMPLETED,
                          "%u came before %u", i, last);
    }
    cr_assert_eq(delivered, 120u);
    fix_fini(&f);
}

Test(parked, a_queue_that_goes_cold_gives_all_of_its_ring_back)
{
    struct fixture f;
    struct mcs_desc d;
    uint64_t start;

    fix_init(&f, RW, 64 << 10);
    for (uint32_t i = 0; i < 3; i++) {
        d = fix_desc(&f, MCS_OP_WRITE, 64);
        d.slot = i;
        fix_push(&f, &d);
    }
    fix_end(&f, &d);
    f.queue.wake_due = 0; /* else the queue stays hot for 64 turns more, long enough by itself */
    start = mcs_ticks();
    while (mcs_ticks() - start < 3000 * f.engine->ticks_per_us)
        mcs_pause();
    for (int i = 0; i < 9; i++)
        mcd_engine_turn(f.engine);
    cr_assert_eq(f.queue.hot, false);
    cr_assert_eq(mcs_ring_room(f.client.ring), 63u, "room for %u of 63",
                 mcs_ring_room(f.client.ring));
    fix_fini(&f);
}

/* Beside a flood, and with many others as quiet, a queue that was quiet is served after a few turns. */
Test(parked, a_cold_queue_is_found_beside_a_flood)
{
    enum { OTHERS = 128 };
    static struct mcd_queue others[OTHERS];
    static void *memory[OTHERS];
    struct mcs_queue_layout l;
    struct mcs_desc flood, first;
    struct fixture f;
    unsigned turns = 0;

    fix_init(&f, MCS_ACCESS_READ | MCS_ACCESS_WRITE, 64 << 10);
    cr_assert_eq(mcs_queue_layout(8, 8, 2, 0, &l), 0);
    for (unsigned i = 0; i < OTHERS; i++) {
        struct mcd_command add = {.kind = MCD_COMMAND_ADD, .queue = &others[i]};

        memory[i] = aligned_alloc(4096, l.total_size);
        memset(memory[i], 0, l.total_size);
        others[i].session = f.session;
        cr_assert_eq(
            mcs_queue_create(&others[i].shm, &others[i].consumer, memory[i], &l, i + 2, 42, 0), 0);
        cr_assert_eq(mcd_queue_init(&others[i]), 0);
        mcd_engine_command(f.engine, &add);
        while (mcs_load_acquire(&add.done) == 0) /* partner: run_commands() */
            mcd_engine_turn(f.engine);
    }
    flood = fix_desc(&f, MCS_OP_WRITE, FIX_EXTENT_SIZE);
    fix_push(&f, &flood);
    while (f.queue.parked == 0)
        mcd_engine_turn(f.engine);
    first = fix_desc(&f, MCS_OP_WRITE, 64);
    first.priority = MCS_CLASS_HIGH;
    cr_assert(mcs_ring_push(others[OTHERS - 1].shm.ring, &first, 1));
    for (; mcs_slot_peek(&others[OTHERS - 1].shm, 0) == 0; turns++) {
        mcd_engine_turn(f.engine);
        if (f.queue.parked == 0) { /* the flood goes on */
            flood = fix_desc(&f, MCS_OP_WRITE, FIX_EXTENT_SIZE);
            fix_push(&f, &flood);
        }
        cr_assert_lt(turns, 2 * OTHERS / 8, "turns beside a flood");
    }
    fix_end(&f, &flood);
    for (unsigned i = 0; i < OTHERS; i++) {
        struct mcd_command remove = {.kind = MCD_COMMAND_REMOVE, .queue = &others[i]};

        mcd_engine_command(f.engine, &remove);
        while (mcs_load_acquire(&remove.done) == 0) /* partner: run_commands() */
            mcd_engine_turn(f.engine);
        mcd_queue_fini(&others[i]);
        free(memory[i]);
    }
    fix_fini(&f);
}
