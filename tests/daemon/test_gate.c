/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: what a task waits for before its first byte, and what it says when it has ended. */
#include "daemon/gate.h"
#include "gpu_world.h"

#define WORDS (FIX_EXTENT_SIZE / 4)

static uint32_t *word(struct gpu_world *w, unsigned i)
{
    return (uint32_t *)(void *)w->f.local.map + i;
}

/* A stream, or another thread, writes the word. */
static void set(struct gpu_world *w, unsigned i, uint32_t value)
{
    mcs_store_release(word(w, i), value); /* partner: mcd_gate_look() */
}

/* An argument block with gates at `at`; the wait's word is i, the signal's i + 1. */
static struct mcs_args head(uint8_t flags)
{
    unsigned n = ((flags & MCS_DESC_WAIT) != 0) + ((flags & MCS_DESC_SIGNAL) != 0);

    return (struct mcs_args){.total = 64 + n * sizeof(struct mcs_gate), .gates = 64};
}

static void put_gates(struct gpu_world *w, uint32_t at, uint8_t flags, unsigned i)
{
    struct mcs_gate *gates = gw_args(w, at, head(flags));

    if ((flags & MCS_DESC_WAIT) != 0)
        *gates++ = (struct mcs_gate){.extent = FIX_EXTENT, .value = 5, .offset = i * 4};
    if ((flags & MCS_DESC_SIGNAL) != 0)
        *gates = (struct mcs_gate){.extent = FIX_EXTENT, .value = 9, .offset = (i + 1) * 4};
}

/* A copy of 64 bytes between host memory, in this slot, whose gates are words 2 * slot and the next. */
static struct mcs_desc gated(struct gpu_world *w, uint32_t slot, uint8_t flags)
{
    struct mcs_desc d = fix_desc(&w->f, MCS_OP_WRITE, 64);

    d.slot = slot;
    d.batch = slot % 16;
    d.flags = flags;
    d.args = slot * 2;
    d.local_offset = 65536;
    put_gates(w, slot * 128, flags, slot * 2);
    return d;
}

Test(gate, a_task_begins_when_its_gate_has_the_value)
{
    static const uint32_t closed[] = {0, 4, 5u + 0x80000000u, UINT32_MAX};
    static const uint32_t open[] = {5, 6, 4u + 0x80000000u};
    struct gpu_world w;
    struct mcs_desc d, other;

    gw_init(&w, 64 << 10);
    memset(w.f.local.map + 65536, 'x', 64);
    for (unsigned i = 0; i < 3; i++) {
        set(&w, 0, 0);
        memset(w.f.target.map, 0, 64);
        d = gated(&w, 0, MCS_DESC_WAIT);
        fix_push(&w.f, &d);
        for (unsigned k = 0; k < 4; k++) {
            set(&w, 0, closed[k]);
            gw_turns(&w, 50);
            cr_assert_eq(gw_state(&w, &d), MCS_STATE_WAITING, "%#x is before 5", closed[k]);
            cr_assert_eq(w.f.target.map[0], 0);
        }
        /* who comes later goes first */
        other = fix_desc(&w.f, MCS_OP_WRITE, 100);
        other.slot = other.batch = 1;
        cr_assert_eq(fix_state(fix_run(&w.f, &other)), MCS_STATE_COMPLETED);
        cr_assert_eq(gw_state(&w, &d), MCS_STATE_WAITING);
        set(&w, 0, open[i]);
        cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_COMPLETED);
        cr_assert_eq(w.f.target.map[0], 'x');
        /* and when it is open already */
        d = gated(&w, 0, MCS_DESC_WAIT);
        cr_assert_eq(fix_state(fix_run(&w.f, &d)), MCS_STATE_COMPLETED);
    }
    cr_assert_eq(w.f.engine->counters.gate_waits, 3u);
    gw_fini(&w);
}

/* The word is set after the bytes, before the slot, and whatever the end. */
Test(gate, a_task_that_has_ended_says_so)
{
    struct gpu_world w;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    gw_init(&w, 64 << 10);
    d = gated(&w, 0, MCS_DESC_SIGNAL);
    cr_assert_eq(fix_state(fix_run(&w.f, &d)), MCS_STATE_COMPLETED);
    cr_assert_eq(*word(&w, 1), 9u);
    /* refused: for the request itself, a range, rights, a bad operation, its list */
    for (unsigned i = 0; i < 5; i++) {
        set(&w, 1, 0);
        d = gated(&w, 0, MCS_DESC_SIGNAL);
        if (i == 0)
            d.length = 0;
        else if (i == 1)
            d.length = FIX_EXTENT_SIZE + 1;
        else if (i == 2)
            d.segment++;
        else if (i == 3)
            d.op = MCS_OP_COUNT;
        else
            d.shape = MCS_SHAPE_LIST;
        cr_assert_eq(fix_state(fix_run(&w.f, &d)), MCS_STATE_INVALID, "%u", i);
        cr_assert_eq(*word(&w, 1), 9u, "%u", i);
    }
    /* too late when it is taken */
    set(&w, 1, 0);
    d = gated(&w, 0, MCS_DESC_SIGNAL);
    d.deadline_us = 1;
    d.submitted -= (uint32_t)(1000 * w.f.engine->ticks_per_us >> 3);
    cr_assert_eq(fix_state(fix_run(&w.f, &d)), MCS_STATE_TIMEOUT);
    cr_assert_eq(*word(&w, 1), 9u);
    /* canceled while it waits; late while it waits */
    set(&w, 1, 0);
    d = gated(&w, 0, MCS_DESC_WAIT | MCS_DESC_SIGNAL);
    fix_push(&w.f, &d);
    gw_turns(&w, 20);
    cr_assert_eq(gw_state(&w, &d), MCS_STATE_WAITING);
    cr_assert_eq(*word(&w, 1), 0u);
    cancel.generation = d.generation;
    fix_push(&w.f, &cancel);
    cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_CANCELED);
    cr_assert_eq(*word(&w, 1), 9u);
    set(&w, 1, 0);
    d = gated(&w, 0, MCS_DESC_WAIT | MCS_DESC_SIGNAL);
    d.deadline_us = 3000;
    cr_assert_eq(fix_state(fix_run(&w.f, &d)), MCS_STATE_TIMEOUT);
    cr_assert_eq(fix_error(w.f.client.slot_table[0]), MCS_TIMEOUT);
    cr_assert_eq(*word(&w, 1), 9u);
    cr_assert_eq(w.f.engine->counters.gates_gone, 0u);
    cr_assert_null(w.f.engine->gates.first);
    gw_fini(&w);
}

/* With copies out the word is set when they are back, not before. */
Test(gate, gpu_copies_between_two_gates)
{
    struct gpu_world w;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    d = gated(&w, 0, MCS_DESC_WAIT | MCS_DESC_SIGNAL);
    d.extent = GW_LOCAL;
    d.remote_addr = w.target.extent.address;
    d.length = 32 << 20;
    fix_push(&w.f, &d);
    gw_turns(&w, 100);
    cr_assert_eq(gw.jobs, 0u, "copied before its gate has opened");
    set(&w, 0, 5);
    gw_out(&w, 2);
    gw_finish(MCS_OK);
    gw_turns(&w, 50);
    cr_assert_eq(*word(&w, 1), 0u);
    gw_finish(MCS_OK);
    cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_COMPLETED);
    cr_assert_eq(*word(&w, 1), 9u);
    cr_assert_eq(w.f.client.slot_table[0].bytes, 32u << 20);
    /* canceled with copies out: when they are back */
    set(&w, 1, 0);
    d.generation = d.batch_generation = ++w.f.generation;
    fix_push(&w.f, &d);
    gw_out(&w, 2);
    fix_push(&w.f, &(struct mcs_desc){.op = MCS_OP_CANCEL, .generation = d.generation});
    gw_turns(&w, 50);
    cr_assert_eq(*word(&w, 1), 0u);
    gw.at_once = true;
    cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_CANCELED);
    cr_assert_eq(*word(&w, 1), 9u);
    gw_fini(&w);
}

/* A FENCE behind it waits; one on it waits for those before, and then for its gate. */
Test(gate, fences)
{
    struct gpu_world w;
    struct mcs_desc a, b, c, d;

    gw_init(&w, 64 << 10);
    a = gated(&w, 0, MCS_DESC_WAIT);
    fix_push(&w.f, &a);
    b = gated(&w, 1, MCS_DESC_FENCE | MCS_DESC_WAIT);
    fix_push(&w.f, &b);
    c = fix_desc(&w.f, MCS_OP_WRITE, 100);
    c.slot = c.batch = 2;
    c.flags = MCS_DESC_FENCE;
    fix_push(&w.f, &c);
    d = fix_desc(&w.f, MCS_OP_WRITE, 100); /* of another class: passes */
    d.slot = d.batch = 3;
    d.priority = MCS_CLASS_HIGH;
    cr_assert_eq(fix_state(fix_run(&w.f, &d)), MCS_STATE_COMPLETED);
    set(&w, 2, 5); /* of b, whose turn it is not */
    gw_turns(&w, 100);
    cr_assert_eq(gw_state(&w, &b), MCS_STATE_WAITING);
    cr_assert_eq(gw_state(&w, &c), MCS_STATE_WAITING);
    set(&w, 2, 0);
    set(&w, 0, 5);
    cr_assert_eq(fix_state(fix_end(&w.f, &a)), MCS_STATE_COMPLETED);
    gw_turns(&w, 100);
    cr_assert_eq(gw_state(&w, &b), MCS_STATE_WAITING);
    cr_assert_eq(gw_state(&w, &c), MCS_STATE_WAITING);
    set(&w, 2, 7);
    cr_assert_eq(fix_state(fix_end(&w.f, &c)), MCS_STATE_COMPLETED);
    cr_assert_eq(gw_state(&w, &b), MCS_STATE_COMPLETED);
    gw_fini(&w);
}

/* Many at once, opened in any order: each ends by its own, and none is looked at in vain for long. */
Test(gate, many_wait_at_once)
{
    enum { N = 128 };
    struct gpu_world w;
    struct mcs_desc d[N];

    gw_init(&w, 64 << 10);
    for (unsigned i = 0; i < N; i++) {
        if (i % 32 == 31)
            gw_turns(&w, 8);
        d[i] = gated(&w, i, MCS_DESC_WAIT | MCS_DESC_SIGNAL);
        d[i].local_offset = 65536 + 64 * i;
        d[i].remote_addr += 64 * i;
        fix_push(&w.f, &d[i]);
    }
    gw_turns(&w, 10);
    cr_assert_eq(w.f.queue.waits, (unsigned)N);
    for (unsigned i = 0; i < N; i++) {
        unsigned k = i * 37 % N;

        set(&w, k * 2, 5);
        gw_turns(&w, 4); /* a turn looks at 64 of them */
        cr_assert_eq(gw_state(&w, &d[k]), MCS_STATE_COMPLETED, "%u", k);
        cr_assert_eq(w.f.queue.waits, N - 1 - i);
    }
    cr_assert_null(w.f.engine->gates.first);
    cr_assert_null(w.f.engine->gates.last);
    gw_fini(&w);
}

/* What a hostile or careless client may write; nothing outside its own host memory is touched. */
Test(gate, bad_gates_are_refused)
{
    static const struct {
        struct mcs_gate gate;
        uint32_t gates, args, total; /* where they stand; the block; its size */
        unsigned error;
    } cases[] = {
        {{FIX_EXTENT, 0, 2}, 64, 0, 0, MCS_INVALID_ARGUMENT},
        {{FIX_EXTENT, 0, 1}, 64, 0, 0, MCS_INVALID_ARGUMENT},
        {{FIX_EXTENT, 0, FIX_EXTENT_SIZE}, 64, 0, 0, MCS_BAD_RANGE},
        {{FIX_EXTENT, 0, UINT64_MAX - 3}, 64, 0, 0, MCS_BAD_RANGE},
        {{FIX_EXTENT + MCD_TABLE_SIZE, 0, 0}, 64, 0, 0, MCS_INVALID_HANDLE},
        {{0, 0, 0}, 64, 0, 0, MCS_INVALID_HANDLE},
        {{FIX_TARGET, 0, 0}, 64, 0, 0, MCS_INVALID_HANDLE}, /* another session's */
        {{GW_LOCAL, 0, 0}, 64, 0, 0, MCS_NOT_SUPPORTED},
        {{FIX_EXTENT, 0, 0}, 60, 0, 0, MCS_INVALID_ARGUMENT},
        {{FIX_EXTENT, 0, 0}, UINT32_MAX - 7, 0, 0, MCS_BAD_RANGE},
        {{FIX_EXTENT, 0, 0}, 64, 0, 79, MCS_BAD_RANGE},
        {{FIX_EXTENT, 0, 0}, 64, MCS_ARGS_NONE, 0, MCS_BAD_RANGE},
        {{FIX_EXTENT, 0, 0}, 64, 1024, 0, MCS_BAD_RANGE},
    };
    struct gpu_world w;
    uint8_t *before = malloc(FIX_EXTENT_SIZE);

    gw_init(&w, 64 << 10);
    cr_assert_not_null(before);
    memset(w.f.local.map, 0xee, FIX_EXTENT_SIZE);
    memcpy(before, w.f.local.map, FIX_EXTENT_SIZE);
    for (unsigned flag = MCS_DESC_WAIT; flag <= MCS_DESC_SIGNAL; flag <<= 1)
        for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct mcs_desc d = fix_desc(&w.f, MCS_OP_WRITE, 64);
            struct mcs_args a = {.total = cases[i].total != 0 ? cases[i].total : 80,
                                 .gates = cases[i].gates};
            struct mcs_gate *g = gw_args(&w, 0, a);
            struct mcs_slot s;

            *g = cases[i].gate;
            d.flags = (uint8_t)flag;
            d.args = cases[i].args;
            s = fix_run(&w.f, &d);
            cr_assert_eq(fix_state(s), MCS_STATE_INVALID, "flag %u, case %u", flag, i);
            cr_assert_eq(fix_error(s), cases[i].error, "flag %u, case %u: %u", flag, i,
                         fix_error(s));
        }
    cr_assert_arr_eq(w.f.local.map, before, FIX_EXTENT_SIZE);
    cr_assert_eq(w.f.engine->counters.gates_gone, sizeof(cases) / sizeof(cases[0]));
    free(before);
    gw_fini(&w);
}

/* The memory of a gate is freed under a task that waits: it will never open. */
Test(gate, a_gate_that_is_freed)
{
    struct gpu_world w;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    d = gated(&w, 0, MCS_DESC_WAIT | MCS_DESC_SIGNAL);
    d.extent = GW_LOCAL;
    d.remote_addr = w.target.extent.address;
    fix_push(&w.f, &d);
    gw_turns(&w, 20);
    cr_assert_eq(gw_state(&w, &d), MCS_STATE_WAITING);
    w.f.session->extents[MCD_HANDLE_INDEX(FIX_EXTENT)] = NULL;
    cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_FAILED);
    cr_assert_eq(fix_error(w.f.client.slot_table[0]), MCS_REVOKED);
    cr_assert_eq(w.f.engine->counters.gates_gone, 1u);
    w.f.session->extents[MCD_HANDLE_INDEX(FIX_EXTENT)] = &w.f.local;
    gw_fini(&w);
}

/* A notification alone waits likewise; its session may end meanwhile. */
Test(gate, a_notification_waits)
{
    struct mcs_session_region reader;
    struct gpu_world w;
    struct mcs_desc d;
    struct mcs_gate *g;

    gw_init(&w, 64 << 10);
    mcs_session_region_attach(&reader, w.f.inbox, mcs_session_region_size(MCS_INBOX_SIZE_MIN));
    for (unsigned i = 0; i < 2; i++) {
        g = gw_args(
            &w, 0,
            (struct mcs_args){
                .total = 88, .gates = 64, .notify = 80, .name_length = 4, .message_length = 4});
        *g = (struct mcs_gate){.extent = FIX_EXTENT, .value = i + 1};
        d = fix_desc(&w.f, MCS_OP_NOTIFY, 0);
        d.flags = MCS_DESC_WAIT;
        d.args = 0;
        fix_push(&w.f, &d);
        gw_turns(&w, 50);
        cr_assert_null(mcs_inbox_peek(&reader));
        if (i == 0) {
            set(&w, 0, 1);
            cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_COMPLETED);
            cr_assert_not_null(mcs_inbox_peek(&reader));
            mcs_inbox_release(&reader, mcs_inbox_peek(&reader));
        }
    }
    gw_fini(&w); /* ends it */
    cr_assert_eq(w.f.generation, 2u);
}

/* Nothing rings when a stream writes a word: an idle engine naps, the longer the wait, and no longer than a millisecond. */
Test(gate, naps_grow_with_the_wait)
{
    struct gpu_world w;
    struct mcs_desc d;
    uint64_t first;

    gw_init(&w, 64 << 10);
    cr_assert_eq(mcd_gates_nap(w.f.engine), UINT64_MAX);
    d = gated(&w, 0, MCS_DESC_WAIT);
    fix_push(&w.f, &d);
    gw_turns(&w, 20);
    w.f.engine->now = w.f.engine->gates.since;
    first = mcd_gates_nap(w.f.engine);
    cr_assert_gt(first, 0u);
    w.f.engine->now = w.f.engine->gates.since + 4000 * w.f.engine->ticks_per_us;
    cr_assert_gt(mcd_gates_nap(w.f.engine), first);
    cr_assert_leq(mcd_gates_nap(w.f.engine), 500000u + 1000);
    w.f.engine->now = w.f.engine->gates.since + 9000000 * w.f.engine->ticks_per_us;
    cr_assert_eq(mcd_gates_nap(w.f.engine), 1000000u);
    w.f.engine->now = mcs_ticks();
    set(&w, 0, 5);
    cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_COMPLETED);
    gw_fini(&w);
}
