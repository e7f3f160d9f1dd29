/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine makes of descriptors, good and bad. */
#include "fixture.h"

#define RW (MCS_ACCESS_READ | MCS_ACCESS_WRITE)

static void fill(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 31 + seed + (i >> 8));
}

/* Writes an argument block for `count` pieces at the start of the argument area. */
static struct mcs_args *put_list(struct fixture *f, const struct mcs_piece *pieces, uint64_t count)
{
    struct mcs_args *a = (struct mcs_args *)f->client.args;

    *a = (struct mcs_args){
        .total = sizeof(*a) + count * sizeof(*pieces), .count = count, .pieces = sizeof(*a)};
    memcpy(a + 1, pieces, count * sizeof(*pieces));
    return a;
}

Test(task, moves_all_sizes_both_ways)
{
    static const uint64_t sizes[] = {
        1, 2, 63, 64, 65, 4096, 4097, 65536, 65537, 300000, FIX_EXTENT_SIZE};
    struct fixture f;

    fix_init(&f, RW, 64 << 10);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct mcs_desc d = fix_desc(&f, MCS_OP_WRITE, sizes[i]);
        struct mcs_slot s;

        fill(f.local.map, FIX_EXTENT_SIZE, (unsigned)i);
        memset(f.target.map, 0xee, FIX_EXTENT_SIZE);
        s = fix_run(&f, &d);
        cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED);
        cr_assert_eq(s.bytes, sizes[i]);
        cr_assert_eq(s.word >> 8 & 0xff, MCS_PATH_LOCAL);
        cr_assert((s.word & MCS_SLOT_REMOTE_QUIESCED) != 0);
        cr_assert_eq(memcmp(f.local.map, f.target.map, sizes[i]), 0);
        for (uint64_t j = sizes[i]; j < FIX_EXTENT_SIZE; j++)
            cr_assert_eq(f.target.map[j], 0xee, "byte %llu beyond the task changed",
                         (unsigned long long)j);
        fill(f.target.map, FIX_EXTENT_SIZE, (unsigned)i + 100);
        d = fix_desc(&f, MCS_OP_READ, sizes[i]);
        s = fix_run(&f, &d);
        cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED);
        cr_assert_eq(memcmp(f.local.map, f.target.map, sizes[i]), 0);
    }
    cr_assert_eq(f.engine->counters.tasks, 22u);
    fix_fini(&f);
}

Test(task, refuses_bad_ranges)
{
    static const struct {
        uint64_t local, remote, length;
    } bad[] = {
        {0, 0, FIX_EXTENT_SIZE + 1},
        {1, 0, FIX_EXTENT_SIZE},
        {0, 1, FIX_EXTENT_SIZE},
        {FIX_EXTENT_SIZE, 0, 1},
        {0, FIX_EXTENT_SIZE, 1},
        {UINT64_MAX, 0, 1},
        {UINT64_MAX - 7, 0, 16},
        {0, UINT64_MAX - FIX_ADDRESS, 16},
        {0, -(FIX_ADDRESS + (1u << 30)) - 8, 16}, /* ends beyond 2^64 */
        {0, 0, UINT64_MAX},
        {0, 0, UINT64_C(1) << 32},
        {8, 8, UINT64_MAX - 7},
    };
    struct fixture f;

    fix_init(&f, RW, 64 << 10);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mcs_desc d = fix_desc(&f, MCS_OP_WRITE, bad[i].length);

        d.local_offset = bad[i].local;
        d.remote_addr = f.target.address + bad[i].remote;
        fix_refused(&f, &d, MCS_BAD_RANGE);
    }
    fix_fini(&f);
}

Test(task, refuses_bad_handles_rights_and_fields)
{
    struct fixture f;
    struct mcs_desc d;

    fix_init(&f, MCS_ACCESS_READ, 64 << 10);
    d = fix_desc(&f, MCS_OP_WRITE, 64);
    fix_refused(&f, &d, MCS_ACCESS);
    d = fix_desc(&f, MCS_OP_READ, 64);
    d.extent = FIX_TARGET; /* exists, but is another session's */
    fix_refused(&f, &d, MCS_INVALID_HANDLE);
    d = fix_desc(&f, MCS_OP_READ, 64);
    d.extent = FIX_EXTENT + (1u << 12); /* an earlier life of the entry */
    fix_refused(&f, &d, MCS_INVALID_HANDLE);
    d = fix_desc(&f, MCS_OP_READ, 64);
    d.segment = UINT32_MAX;
    fix_refused(&f, &d, MCS_INVALID_HANDLE);
    /* 0 is no handle, and what an engine's look-ups begin with */
    d = fix_desc(&f, MCS_OP_READ, 64);
    d.extent = 0;
    fix_refused(&f, &d, MCS_INVALID_HANDLE);
    d = fix_desc(&f, MCS_OP_READ, 64);
    d.segment = 0;
    fix_refused(&f, &d, MCS_INVALID_HANDLE);
    d = fix_desc(&f, MCS_OP_READ, 0);
    fix_refused(&f, &d, MCS_INVALID_ARGUMENT);
    d = fix_desc(&f, 200, 64);
    fix_refused(&f, &d, MCS_INVALID_ARGUMENT);
    d = fix_desc(&f, MCS_OP_READ, 64);
    d.shape = MCS_SHAPE_COUNT;
    fix_refused(&f, &d, MCS_INVALID_ARGUMENT);
    d = fix_desc(&f, MCS_OP_READ, 64);
    d.priority = MCS_CLASS_COUNT;
    fix_refused(&f, &d, MCS_INVALID_ARGUMENT);
    d = fix_desc(&f, MCS_OP_READ, 64);
    d.flags = 0x80;
    fix_refused(&f, &d, MCS_INVALID_ARGUMENT);
    fix_fini(&f);
}

Test(task, refuses_overlap_of_source_and_target)
{
    struct fixture f;
    struct mcd_snapshot *old;
    struct mcs_desc d;

    fix_init(&f, RW, 64 << 10);
    /* the client's own extent is the target too */
    cr_assert_eq(mcd_segment_add(f.segment, &f.local, 0, FIX_EXTENT_SIZE, RW, &old), 0);
    free(old);
    d = fix_desc(&f, MCS_OP_WRITE, 4096);
    d.remote_addr = f.local.address + 4095;
    fix_refused(&f, &d, MCS_OVERLAP);
    d = fix_desc(&f, MCS_OP_WRITE, 4096);
    d.remote_addr = f.local.address + 4096;
    cr_assert_eq(fix_state(fix_run(&f, &d)), MCS_STATE_COMPLETED);
    fix_fini(&f);
}

Test(task, list_moves_each_piece_and_nothing_else)
{
    struct fixture f;
    struct mcs_piece p[300];
    struct mcs_desc d;
    struct mcs_slot s;

    fix_init(&f, RW, 16 << 10);
    fill(f.local.map, FIX_EXTENT_SIZE, 9);
    memset(f.target.map, 0xee, FIX_EXTENT_SIZE);
    for (unsigned i = 0; i < 300; i++)
        p[i] =
            (struct mcs_piece){.local = i * 2048u, .remote = (299 - i) * 3000u, .length = 1000 + i};
    put_list(&f, p, 300);
    d = fix_desc(&f, MCS_OP_WRITE, 1);
    d.shape = MCS_SHAPE_LIST;
    d.args = 0;
    s = fix_run(&f, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED);
    cr_assert_eq(s.bytes, 300u * 1000 + 299u * 300 / 2);
    for (unsigned i = 0; i < 300; i++) {
        cr_assert_eq(memcmp(f.local.map + p[i].local, f.target.map + p[i].remote, p[i].length), 0);
        for (uint64_t j = p[i].remote + p[i].length; j < p[i].remote + 3000; j++)
            cr_assert_eq(f.target.map[j], 0xee);
    }
    fix_fini(&f);
}

Test(task, list_with_one_bad_piece_moves_nothing)
{
    static const struct mcs_piece bad[] = {
        {FIX_EXTENT_SIZE - 10, 0, 11},
        {0, FIX_EXTENT_SIZE - 10, 11},
        {UINT64_MAX, 0, 8},
        {0, UINT64_MAX - FIX_ADDRESS, 8},
        {0, 0, UINT64_MAX},
        {0, 0, UINT64_C(5) << 30},
        {UINT64_MAX - 3, UINT64_MAX - 3, 4},
    };
    struct fixture f;

    fix_init(&f, RW, 16 << 10);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mcs_piece p[20];
        struct mcs_desc d;

        for (unsigned k = 0; k < 20; k++)
            p[k] = (struct mcs_piece){.local = k * 64u, .remote = k * 64u, .length = 64};
        p[19] = bad[i];
        memset(f.target.map, 0xee, FIX_EXTENT_SIZE);
        put_list(&f, p, 20);
        d = fix_desc(&f, MCS_OP_WRITE, 1280);
        d.shape = MCS_SHAPE_LIST;
        d.args = 0;
        fix_refused(&f, &d, MCS_BAD_RANGE);
        for (unsigned j = 0; j < FIX_EXTENT_SIZE; j++)
            cr_assert_eq(f.target.map[j], 0xee, "byte %u moved before the bad piece was found", j);
    }
    fix_fini(&f);
}

Test(task, refuses_bad_argument_blocks)
{
    struct mcs_piece p = {0, 0, 64};
    struct fixture f;
    struct mcs_args *a;
    struct mcs_desc d;

#define LIST_WITH(change, want)                                                                    \
    do {                                                                                           \
        a = put_list(&f, &p, 1);                                                                   \
        d = fix_desc(&f, MCS_OP_WRITE, 64);                                                        \
        d.shape = MCS_SHAPE_LIST;                                                                  \
        d.args = 0;                                                                                \
        change;                                                                                    \
        fix_refused(&f, &d, want);                                                                 \
    } while (0)

    fix_init(&f, RW, 16 << 10);
    LIST_WITH(d.args = MCS_ARGS_NONE, MCS_BAD_RANGE);
    LIST_WITH(d.args = (64 << 10) / 64, MCS_BAD_RANGE);
    LIST_WITH(d.args = UINT32_MAX - 1, MCS_BAD_RANGE);
    LIST_WITH(a->total = 63, MCS_BAD_RANGE);
    LIST_WITH(a->total = UINT64_MAX, MCS_BAD_RANGE);
    LIST_WITH(a->total = (64 << 10) + 1, MCS_BAD_RANGE);
    LIST_WITH(a->count = 0, MCS_INVALID_ARGUMENT);
    LIST_WITH(a->count = UINT64_MAX, MCS_BAD_RANGE);
    LIST_WITH(a->count = 2, MCS_BAD_RANGE);
    LIST_WITH(a->pieces = UINT32_MAX, MCS_BAD_RANGE);
    LIST_WITH(((struct mcs_piece *)(a + 1))->length = 0, MCS_INVALID_ARGUMENT);
    LIST_WITH((a->name_length = 257, d.flags = MCS_DESC_NOTIFY), MCS_INVALID_ARGUMENT);
    LIST_WITH((a->message_length = 4097, d.flags = MCS_DESC_NOTIFY), MCS_INVALID_ARGUMENT);
    LIST_WITH((a->notify = UINT32_MAX, d.flags = MCS_DESC_NOTIFY), MCS_BAD_RANGE);
    LIST_WITH((a->notify = 80, a->name_length = 100, d.flags = MCS_DESC_NOTIFY), MCS_BAD_RANGE);
    fix_fini(&f);
}

Test(task, stride_moves_blocks_and_refuses_overflow)
{
    struct fixture f;
    struct mcs_args *a;
    struct mcs_desc d;
    struct mcs_slot s;

    fix_init(&f, RW, 16 << 10);
    a = (struct mcs_args *)f.client.args;
    *a = (struct mcs_args){
        .total = 64, .count = 100, .block = 777, .local_stride = 777, .remote_stride = 5000};
    fill(f.local.map, FIX_EXTENT_SIZE, 3);
    memset(f.target.map, 0xee, FIX_EXTENT_SIZE);
    d = fix_desc(&f, MCS_OP_WRITE, 77700);
    d.shape = MCS_SHAPE_STRIDE;
    d.args = 0;
    s = fix_run(&f, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED);
    cr_assert_eq(s.bytes, 77700u);
    for (unsigned i = 0; i < 100; i++) {
        cr_assert_eq(memcmp(f.local.map + i * 777, f.target.map + i * 5000, 777), 0);
        cr_assert_eq(f.target.map[i * 5000 + 777], 0xee);
    }
#define STRIDE_WITH(change, want)                                                                  \
    do {                                                                                           \
        *a = (struct mcs_args){                                                                    \
            .total = 64, .count = 4, .block = 64, .local_stride = 64, .remote_stride = 64};        \
        change;                                                                                    \
        d = fix_desc(&f, MCS_OP_WRITE, 256);                                                       \
        d.shape = MCS_SHAPE_STRIDE;                                                                \
        d.args = 0;                                                                                \
        fix_refused(&f, &d, want);                                                                 \
    } while (0)
    STRIDE_WITH(a->block = 0, MCS_INVALID_ARGUMENT);
    STRIDE_WITH(a->count = 0, MCS_INVALID_ARGUMENT);
    STRIDE_WITH(a->remote_stride = UINT64_MAX / 2, MCS_BAD_RANGE);
    STRIDE_WITH(a->local_stride = UINT64_C(1) << 62, MCS_BAD_RANGE);
    STRIDE_WITH(a->count = UINT64_MAX, MCS_BAD_RANGE);
    STRIDE_WITH(a->block = UINT64_MAX, MCS_BAD_RANGE);
    fix_fini(&f);
}

/* A descriptor that would make the agent write where it must not ends the session. */
Test(task, breaks_the_queue_for_impossible_descriptors)
{
    for (int i = 0; i < 4; i++) {
        struct fixture f;
        struct mcs_desc d;

        fix_init(&f, RW, 4096);
        d = fix_desc(&f, MCS_OP_WRITE, 64);
        if (i == 0)
            d.slot = 128;
        else if (i == 1)
            d.batch = 16;
        else if (i == 2)
            d.length = 65536; /* parked: its slot stays in use */
        if (i == 3)
            f.client.ring->prod.tail = 1000;
        else
            fix_push(&f, &d);
        if (i == 2)
            fix_push(&f, &d);
        for (int t = 0; t < 2000 && mcs_load_acquire(&f.queue.error) == 0; t++)
            mcd_engine_turn(f.engine);
        cr_assert_eq(f.queue.error, (uint32_t)MCS_PROTOCOL, "case %d", i);
        cr_assert_eq(f.engine->counters.broken, 1u);
        cr_assert_eq(f.engine->nhot + f.engine->ncold, 0u);
        cr_assert_eq(f.queue.parked, 0u);
        fix_fini(&f);
    }
}

Test(task, cancel_ends_a_parked_task_and_leaves_the_rest)
{
    struct fixture f;
    struct mcs_desc d, other, cancel = {.op = MCS_OP_CANCEL};
    struct mcs_slot s;

    fix_init(&f, RW, 4096);
    d = fix_desc(&f, MCS_OP_WRITE, FIX_EXTENT_SIZE);
    other = fix_desc(&f, MCS_OP_WRITE, FIX_EXTENT_SIZE);
    other.slot = 1;
    other.batch = 1;
    fix_push(&f, &d);
    fix_push(&f, &other);
    while (f.queue.parked != 2)
        mcd_engine_turn(f.engine);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&f, &cancel);
    s = fix_end(&f, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_CANCELED);
    cr_assert_eq(fix_error(s), MCS_CANCELED);
    cr_assert_lt(s.bytes, FIX_EXTENT_SIZE);
    /* and once it says so, nothing more of it moves */
    memset(f.target.map, 0xee, s.bytes);
    s = fix_end(&f, &other);
    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED);
    /* canceling what has ended, or a stale generation, does nothing */
    fix_push(&f, &cancel);
    cancel.slot = 5000;
    fix_push(&f, &cancel);
    for (int i = 0; i < 100; i++)
        mcd_engine_turn(f.engine);
    cr_assert_eq(f.queue.error, 0u);
    fix_fini(&f);
}

Test(task, deadline_ends_a_task_that_was_late_or_takes_too_long)
{
    struct fixture f;
    struct mcs_desc d;
    struct mcs_slot s;

    fix_init(&f, RW, 4096);
    d = fix_desc(&f, MCS_OP_WRITE, 64);
    d.submitted -= (uint32_t)(f.engine->ticks_per_us * 1000 >> 3); /* a millisecond ago */
    d.deadline_us = 500;
    s = fix_run(&f, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_TIMEOUT);
    cr_assert_eq(fix_error(s), MCS_TIMEOUT);
    cr_assert_eq(s.bytes, 0u);
    /* parked behind a fence that never opens before the deadline */
    d = fix_desc(&f, MCS_OP_WRITE, FIX_EXTENT_SIZE);
    d.deadline_us = 1;
    fix_push(&f, &d);
    s = fix_end(&f, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_TIMEOUT);
    cr_assert_lt(s.bytes, FIX_EXTENT_SIZE);
    /* a stamp from the future counts as now */
    d = fix_desc(&f, MCS_OP_WRITE, 64);
    d.submitted += 1u << 30;
    d.deadline_us = 1000000;
    cr_assert_eq(fix_state(fix_run(&f, &d)), MCS_STATE_COMPLETED);
    fix_fini(&f);
}

Test(task, fence_waits_for_all_earlier_tasks)
{
    struct fixture f;
    struct mcs_desc big, small;
    uint8_t *mark;

    fix_init(&f, RW, 4096);
    mark = f.target.map + FIX_EXTENT_SIZE - 64;
    memset(f.local.map, 1, FIX_EXTENT_SIZE);
    big = fix_desc(&f, MCS_OP_WRITE, FIX_EXTENT_SIZE / 2);
    big.priority = MCS_CLASS_BACKGROUND;
    small = fix_desc(&f, MCS_OP_WRITE, 64);
    small.slot = 1;
    small.batch = 1;
    small.priority = MCS_CLASS_HIGH;
    small.flags = MCS_DESC_FENCE;
    small.remote_addr = f.target.address + FIX_EXTENT_SIZE - 64;
    fix_push(&f, &big);
    fix_push(&f, &small);
    while (fix_state(f.client.slot_table[0]) != MCS_STATE_COMPLETED) {
        cr_assert_eq(*mark, 0, "the fenced task ran before an earlier one had ended");
        mcd_engine_turn(f.engine);
    }
    cr_assert_eq(fix_state(fix_end(&f, &small)), MCS_STATE_COMPLETED);
    cr_assert_eq(*mark, 1);
    fix_fini(&f);
}

Test(task, high_class_overtakes_what_is_parked)
{
    struct fixture f;
    struct mcs_desc big, small;

    fix_init(&f, RW, 4096);
    big = fix_desc(&f, MCS_OP_WRITE, FIX_EXTENT_SIZE);
    big.priority = MCS_CLASS_BACKGROUND;
    fix_push(&f, &big);
    while (f.queue.parked == 0)
        mcd_engine_turn(f.engine);
    small = fix_desc(&f, MCS_OP_WRITE, 64);
    small.slot = 1;
    small.batch = 1;
    small.priority = MCS_CLASS_HIGH;
    fix_push(&f, &small);
    cr_assert_eq(fix_state(fix_end(&f, &small)), MCS_STATE_COMPLETED);
    cr_assert_eq(f.queue.parked, 1u, "the small task waited for the large one");
    cr_assert_eq(fix_state(fix_end(&f, &big)), MCS_STATE_COMPLETED);
    fix_fini(&f);
}

Test(task, revoked_buffer_fails_what_is_under_way)
{
    struct fixture f;
    struct mcd_snapshot *old;
    struct mcs_desc d;
    struct mcs_slot s;

    fix_init(&f, RW, 4096);
    d = fix_desc(&f, MCS_OP_WRITE, FIX_EXTENT_SIZE);
    memset(f.local.map, 1, FIX_EXTENT_SIZE);
    fix_push(&f, &d);
    while (f.queue.tasks[0].bytes == 0)
        mcd_engine_turn(f.engine);
    cr_assert_eq(mcd_segment_cut(f.segment, &f.target, FIX_EXTENT_SIZE / 2, 64, &old), 0);
    s = fix_end(&f, &d);
    free(old);
    cr_assert_eq(fix_state(s), MCS_STATE_FAILED);
    cr_assert_eq(fix_error(s), MCS_REVOKED);
    cr_assert_lt(s.bytes, FIX_EXTENT_SIZE);
    cr_assert_eq(f.target.map[FIX_EXTENT_SIZE / 2], 0, "a revoked byte was written");
    fix_fini(&f);
}

Test(task, notification_follows_the_data_and_waits_for_room)
{
    struct fixture f;
    struct mcs_args *a;
    struct mcs_desc d;
    const struct mcs_inbox_record *r;
    struct mcs_session_region reader;
    unsigned n = 0;

    fix_init(&f, RW, 4096);
    mcs_session_region_attach(&reader, f.inbox, mcs_session_region_size(MCS_INBOX_SIZE_MIN));
    a = (struct mcs_args *)f.client.args;
    *a = (struct mcs_args){
        .total = 64 + 4 + 1000, .notify = 64, .name_length = 4, .message_length = 1000};
    memcpy(a + 1, "name", 4);
    memset((char *)(a + 1) + 4, 'm', 1000);
    memset(f.local.map, 5, 100);
    for (;; n++) { /* until the inbox is full */
        d = fix_desc(&f, MCS_OP_WRITE, 100);
        d.flags = MCS_DESC_NOTIFY;
        d.args = 0;
        fix_push(&f, &d);
        for (int i = 0; i < 200; i++)
            mcd_engine_turn(f.engine);
        if (f.queue.parked != 0)
            break;
        cr_assert_lt(n, 100u);
    }
    cr_assert_gt(n, 3u);
    cr_assert_gt(f.engine->counters.inbox_full, 0u);
    r = mcs_inbox_peek(&reader);
    cr_assert_not_null(r);
    cr_assert_eq(r->source, 42u);
    cr_assert_eq(r->bytes, 100u);
    cr_assert_eq(memcmp(r + 1, "namemmmm", 8), 0);
    cr_assert_eq(f.target.map[99], 5);
    mcs_inbox_release(&reader, r);
    cr_assert_eq(fix_state(fix_end(&f, &d)), MCS_STATE_COMPLETED,
                 "room came, the task did not end");
    /* a receiver that never takes its mail costs the sender a deadline, nothing else */
    d = fix_desc(&f, MCS_OP_NOTIFY, 0);
    d.args = 0;
    d.deadline_us = 2000;
    cr_assert_eq(fix_error(fix_run(&f, &d)), MCS_INBOX_FULL);
    cr_assert_eq(fix_state(f.client.slot_table[0]), MCS_STATE_TIMEOUT);
    fix_fini(&f);
}

Test(task, batch_line_counts_what_ended)
{
    struct fixture f;
    struct mcs_desc d[40];
    uint64_t word;

    fix_init(&f, RW, 64 << 10);
    for (unsigned i = 0; i < 40; i++) {
        d[i] = fix_desc(&f, MCS_OP_WRITE, i % 4 == 3 ? 0 : 64);
        d[i].slot = i;
        d[i].batch = 3;
        d[i].batch_generation = 9;
    }
    cr_assert(mcs_ring_push(f.client.ring, d, 40));
    fix_end(&f, &d[39]);
    for (int i = 0; i < 4; i++)
        mcd_engine_turn(f.engine);
    word = mcs_batch_peek(&f.client, 3);
    cr_assert_eq(word >> 32, 9u);
    cr_assert_eq((uint32_t)word, 40u);
    cr_assert_eq(f.client.batch_lines[3].failed, 10u);
    cr_assert_eq(f.client.batch_lines[3].bytes, 30u * 64);
    fix_fini(&f);
}
