/* SPDX-License-Identifier: Apache-2.0 */
/* Gates of tasks to another host: nothing is sent before one opens, and the other is set at every end. */
#include "far.h"

#define WORD (FIX_EXTENT_SIZE / 2)

static uint32_t *word(struct far *x, unsigned i)
{
    return (uint32_t *)(void *)(x->f.local.map + WORD) + i;
}

static void set(struct far *x, unsigned i, uint32_t value)
{
    mcs_store_release(word(x, i), value); /* partner: mcd_gate_look() */
}

/* A WRITE of 64 bytes to the peer, which waits for word 0 to be 1 and sets word 1 to 2. */
static struct mcs_desc gated(struct far *x, uint32_t slot)
{
    struct mcs_desc d = far_desc(x, MCS_OP_WRITE, slot, 0, 0, 64);
    struct mcs_args *a = (struct mcs_args *)(x->f.client.args + slot * 128);
    struct mcs_gate *gates = (struct mcs_gate *)(a + 1);

    *a = (struct mcs_args){.total = 96, .gates = 64};
    gates[0] = (struct mcs_gate){.extent = FIX_EXTENT, .value = 1, .offset = WORD};
    gates[1] = (struct mcs_gate){.extent = FIX_EXTENT, .value = 2, .offset = WORD + 4};
    d.flags = MCS_DESC_WAIT | MCS_DESC_SIGNAL;
    d.args = slot * 2;
    return d;
}

/* Pushed, and waits. */
static void begin(struct far *x, const struct mcs_desc *d)
{
    set(x, 0, 0);
    set(x, 1, 0);
    fix_push(&x->f, d);
    far_turns(x, 100);
    cr_assert(!far_ended(x, d));
    cr_assert_eq(x->f.queue.waits, 1u);
    cr_assert_eq(fake.slices, 0u);
}

Test(gate_far, nothing_is_sent_before_it_opens)
{
    struct far x;
    struct mcs_desc d, other;

    far_init(&x, 1);
    far_fill(x.f.local.map, 64, 1);
    d = gated(&x, 0);
    begin(&x, &d);
    other = far_desc(&x, MCS_OP_WRITE, 1, 4096, 4096, 64); /* who comes later goes first */
    fix_push(&x.f, &other);
    far_completes(&x, &other, 64);
    cr_assert(!far_ended(&x, &d));
    far_fill(x.f.local.map, 64, 2);
    set(&x, 0, 1);
    far_completes(&x, &d, 64);
    cr_assert_eq(mcs_load_acquire(word(&x, 1)), 2u); /* partner: mcd_gate_signal() */
    cr_assert_arr_eq(fake.memory, x.f.local.map, 64);
    cr_assert_eq(x.f.queue.waits + x.f.queue.remote, 0u);
    /* open already */
    d = gated(&x, 0);
    fix_push(&x.f, &d);
    far_completes(&x, &d, 64);
    far_fini(&x);
}

/* The one that waits keeps its place: a FENCE behind it begins when it has ended, not when its gate has opened. */
Test(gate_far, a_fence_behind_it_waits_for_its_end)
{
    struct far x;
    struct mcs_desc d, there, here;

    far_init(&x, 1);
    d = gated(&x, 0);
    begin(&x, &d);
    there = far_desc(&x, MCS_OP_WRITE, 1, 4096, 4096, 64);
    there.flags = MCS_DESC_FENCE;
    fix_push(&x.f, &there);
    here = fix_desc(&x.f, MCS_OP_WRITE, 64);
    here.slot = here.batch = 2;
    here.flags = MCS_DESC_FENCE;
    fix_push(&x.f, &here);
    far_turns(&x, 100);
    far_link(&x, 0)->latency = 1000000; /* the answer takes its time */
    fake.step = 10;
    set(&x, 0, 1);
    far_turns(&x, 100);
    cr_assert(!far_ended(&x, &d));
    cr_assert(!far_ended(&x, &there));
    cr_assert(!far_ended(&x, &here));
    cr_assert_neq(fake.slices, 0u);
    fake.step = 100000;
    far_completes(&x, &d, 64);
    far_completes(&x, &there, 64);
    cr_assert_eq(fix_state(fix_end(&x.f, &here)), MCS_STATE_COMPLETED);
    far_fini(&x);
}

Test(gate_far, how_one_ends_that_waits)
{
    struct far x;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};
    struct mcd_open *open = NULL;

    far_init(&x, 1);
    for (unsigned i = 0; i < 4; i++) {
        static const unsigned states[] = {MCS_STATE_CANCELED, MCS_STATE_TIMEOUT, MCS_STATE_FAILED,
                                          MCS_STATE_INVALID};
        static const unsigned errors[] = {MCS_CANCELED, MCS_TIMEOUT, MCS_PEER_UNREACHABLE,
                                          MCS_INVALID_HANDLE};
        struct mcs_slot s;

        d = gated(&x, 0);
        d.deadline_us = i == 1 ? 50000 : 0;
        begin(&x, &d);
        if (i == 0) {
            cancel.generation = d.generation;
            fix_push(&x.f, &cancel);
        } else if (i == 2) { /* the peer is gone when it opens */
            x.route->verdict = MCS_PEER_UNREACHABLE;
            set(&x, 0, 1);
        } else if (i == 3) { /* its segment was closed */
            x.route->verdict = MCS_OK;
            open = x.f.session->opens[MCD_HANDLE_INDEX(FAR_SEGMENT)];
            x.f.session->opens[MCD_HANDLE_INDEX(FAR_SEGMENT)] = NULL;
            set(&x, 0, 1);
        }
        s = fix_end(&x.f, &d);
        cr_assert_eq(fix_state(s), states[i], "%u: state %u", i, fix_state(s));
        cr_assert_eq(fix_error(s), errors[i], "%u: error %u", i, fix_error(s));
        cr_assert_eq(mcs_load_acquire(word(&x, 1)), 2u, "%u", i); /* partner: mcd_gate_signal() */
        cr_assert(far_settled(s));
        cr_assert_eq(x.f.queue.waits + x.f.queue.remote, 0u);
        cr_assert_eq(x.f.queue.age_head, MCD_NO_TASK);
    }
    x.f.session->opens[MCD_HANDLE_INDEX(FAR_SEGMENT)] = open;
    /* its session ends */
    d = gated(&x, 0);
    begin(&x, &d);
    far_fini(&x);
}

/* Ends on its way signal, too. */
Test(gate_far, a_task_on_its_way_signals_when_it_has_ended)
{
    struct far x;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    far_init(&x, 1);
    far_link(&x, 0)->rate = 0.000001;
    fake.step = 10;
    d = gated(&x, 0);
    begin(&x, &d);
    set(&x, 0, 1);
    far_until_out(&x, 1);
    cr_assert_eq(mcs_load_acquire(word(&x, 1)), 0u); /* partner: mcd_gate_signal() */
    cancel.generation = d.generation;
    fix_push(&x.f, &cancel);
    cr_assert_eq(fix_state(fix_end(&x.f, &d)), MCS_STATE_CANCELED);
    cr_assert_eq(mcs_load_acquire(word(&x, 1)), 2u);
    far_fini(&x);
}
