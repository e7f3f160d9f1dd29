/* SPDX-License-Identifier: Apache-2.0 */
/* How tasks to another host end before they are through: canceled, late, removed, taken away. */
#include "far.h"

#define MiB (1u << 20)

Test(remote_ends, cancel_at_every_stage)
{
    struct far x;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    far_init(&x, 1);
    fake.step = 10;
    /* stage 0: in the lane; 1: out and not begun; 2: begun; 3: answered in the meantime */
    for (unsigned stage = 0; stage < 4; stage++) {
        struct mct_link *l = far_link(&x, 0);
        struct mcs_slot s;

        l->max_out = stage == 0 ? 0 : 1024;
        l->rate = stage < 3 ? 0.000001 : 10;
        l->latency = stage == 3 ? 100000 : 0;
        if (stage == 1) /* the link is busy */
            l->busy_until = fake.now + 1000000000;
        d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 60 << 10);
        fix_push(&x.f, &d);
        far_turns(&x, 5);
        cr_assert_eq(fake.slices, stage != 0);
        cancel.slot = d.slot;
        cancel.generation = d.generation;
        fix_push(&x.f, &cancel);
        fake.step = stage == 3 ? 200000 : 10;
        s = fix_end(&x.f, &d);
        fake.step = 10;
        cr_assert_eq(fix_state(s), MCS_STATE_CANCELED);
        cr_assert_eq(fix_error(s), MCS_CANCELED);
        cr_assert_eq(far_settled(s), stage != 2, "stage %u", stage);
        cr_assert_eq(s.bytes, stage == 3 ? 60u << 10 : 0u);
        cr_assert_eq(fake.slices, 0u);
        l->busy_until = 0;
    }
    /* and of one that waits for a description */
    far_link(&x, 0)->latency = 0;
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, FAKE_SIZE, 64);
    fix_push(&x.f, &d);
    far_turns(&x, 5);
    cancel.generation = d.generation;
    fix_push(&x.f, &cancel);
    far_ends(&x, &d, MCS_STATE_CANCELED, MCS_CANCELED);
    far_fini(&x);
}

Test(remote_ends, an_ending_task_waits_for_a_kill_that_comes_soon)
{
    struct far x;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};
    struct mcs_slot s;

    far_init(&x, 2);
    fake.step = 10;
    for (unsigned i = 0; i < 2; i++)
        far_link(&x, i)->rate = 0.000001;
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    fix_push(&x.f, &d);
    far_until_out(&x, 1);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&x.f, &cancel);
    far_turns(&x, 3);
    cr_assert(!far_ended(&x, &d));
    for (unsigned i = 0; i < 2; i++)
        if (far_link(&x, i)->out != 0)
            fake_lose(far_link(&x, i), far_link(&x, i)->conns[0], -EPIPE);
    s = fix_end(&x.f, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_CANCELED);
    cr_assert(far_settled(s));
    cr_assert_eq(fake.killed, 1u);
    far_fini(&x);
}

/* A FENCE that comes while a task before it waits for a fresh description does not hold that one up. */
Test(remote_ends, a_fence_behind_one_that_is_looked_up_afresh)
{
    struct far x;
    struct mcs_desc first, fence;

    far_init(&x, 1);
    free(x.segment->snapshot);
    x.segment->snapshot = far_snapshot(4096, MCS_ACCESS_READ | MCS_ACCESS_WRITE);
    first = far_desc(&x, MCS_OP_WRITE, 0, 0, 4096, 64);
    fix_push(&x.f, &first);
    fence = far_desc(&x, MCS_OP_WRITE, 1, 0, 0, 64);
    fence.flags = MCS_DESC_FENCE;
    fix_push(&x.f, &fence);
    far_turns(&x, 100);
    cr_assert(!far_ended(&x, &first) && !far_ended(&x, &fence));
    free(x.segment->snapshot);
    x.segment->snapshot = far_snapshot(8192, MCS_ACCESS_READ | MCS_ACCESS_WRITE);
    mcs_store_release(&x.remote.fresh, 1u); /* partner: mcd_remote_timer() */
    far_completes(&x, &first, 64);
    far_completes(&x, &fence, 64);
    far_fini(&x);
}

/* A WRITE is canceled, and the peer never says what became of it; its connection has not failed. */
static void call_back_unanswered(struct far *x, unsigned rails)
{
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    far_init(x, rails);
    for (unsigned i = 0; i < rails; i++)
        far_link(x, i)->latency = UINT64_C(1) << 60;
    fake.step = 1; /* too little time to call it silent for that */
    d = far_desc(x, MCS_OP_WRITE, 0, 0, 0, 64);
    fix_push(&x->f, &d);
    far_until_out(x, 1);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&x->f, &cancel);
    far_ends(x, &d, MCS_STATE_CANCELED, MCS_CANCELED);
    cr_assert(!far_settled(x->f.client.slot_table[0]));
}

/* A task that was called back before the peer's answer, and then its connection is lost: the bytes must
 * not land over those of a later one. */
Test(remote_ends, what_was_called_back_is_killed_with_its_connection)
{
    struct far x;
    struct mcs_desc next;

    call_back_unanswered(&x, 1);
    cr_assert_eq(x.route->nunsettled, 0u, "the connection lives");
    fake_lose(far_link(&x, 0), far_link(&x, 0)->conns[0], -ECONNRESET);
    cr_assert_eq(x.route->nunsettled, 1u);
    far_link(&x, 0)->latency = 100000;
    fake.step = 1000;
    far_adopt(&x, x.route, 0);
    next = far_desc(&x, MCS_OP_WRITE, 1, 0, 0, 64);
    fix_push(&x.f, &next);
    far_completes(&x, &next, 64);
    cr_assert_eq(fake.killed, 1u);
    cr_assert_null(fake.leftovers, "before it was written");
    cr_assert_eq(x.route->ndoubtful, 0u);
    far_fini(&x);
}

/* The same with two rails: a later write must not take the other one and be overtaken. */
Test(remote_ends, what_was_called_back_is_dead_before_another_rail_writes)
{
    struct far x;
    struct mcs_desc next;

    call_back_unanswered(&x, 2);
    far_link(&x, 0)->latency = far_link(&x, 1)->latency = 100000;
    fake.step = 1000;
    next = far_desc(&x, MCS_OP_WRITE, 1, 0, 0, 64);
    fix_push(&x.f, &next);
    far_completes(&x, &next, 64);
    cr_assert_eq(fake.killed, 1u);
    cr_assert_null(fake.leftovers, "before the later one was written");
    cr_assert_eq(x.route->ndoubtful, 0u);
    far_fini(&x);
}

Test(remote_ends, what_is_back_already_is_not_canceled)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 1);
    far_link(&x, 0)->rate = 0.000001;
    d = far_desc(&x, MCS_OP_READ, 0, 0, 0, 64);
    fix_push(&x.f, &d);
    far_until_out(&x, 1);
    fake_lose(far_link(&x, 0), far_link(&x, 0)->conns[0], -EPIPE);
    mcd_queue_cancel_all(x.f.engine, &x.f.queue);
    cr_assert(!far_ended(&x, &d));
    far_ends(&x, &d, MCS_STATE_CANCELED, MCS_CANCELED);
    far_fini(&x);
}

Test(remote_ends, what_does_not_come_back_is_taken_by_force)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 1);
    fake.step = 1;
    fake.stubborn = true;
    far_link(&x, 0)->rate = 0.000001;
    d = far_desc(&x, MCS_OP_READ, 0, 0, 0, 64);
    d.deadline_us = 1000;
    fix_push(&x.f, &d);
    for (unsigned i = 0; i < 1000000000 && !far_ended(&x, &d); i++)
        mcd_engine_turn(x.f.engine);
    far_ends(&x, &d, MCS_STATE_TIMEOUT, MCS_TIMEOUT);
    cr_assert_eq(x.route->rails[0].lost, 1u);
    far_fini(&x);
}

Test(remote_ends, deadline_of_what_is_under_way)
{
    struct far x;
    struct mcs_desc d;
    struct mcs_slot s;

    far_init(&x, 1);
    fake.step = 1; /* too little time to call the rail silent */
    for (unsigned op = MCS_OP_READ; op <= MCS_OP_WRITE; op++) {
        far_link(&x, 0)->silent = true;
        d = far_desc(&x, (uint8_t)op, 0, 0, 0, MiB);
        d.deadline_us = 10000;
        fix_push(&x.f, &d);
        s = fix_end(&x.f, &d);
        cr_assert_eq(fix_state(s), MCS_STATE_TIMEOUT);
        cr_assert_eq(fix_error(s), MCS_TIMEOUT);
        cr_assert_eq(far_settled(s), op == MCS_OP_READ);
        cr_assert_eq(s.bytes, 0u);
        cr_assert_eq(fake.slices, 0u, "its local end is quiet");
        far_link(&x, 0)->silent = false;
        far_turns(&x, 10);
    }
    far_fini(&x);
}

Test(remote_ends, a_queue_that_is_removed_takes_its_tasks_with_it)
{
    struct far x;
    struct mcs_desc d[4];
    struct mcd_command remove, add = {.kind = MCD_COMMAND_ADD, .queue = &x.f.queue};

    far_init(&x, 1);
    far_link(&x, 0)->rate = 0.00001;
    for (unsigned i = 0; i < 4; i++) {
        d[i] = far_desc(&x, i % 2 == 0 ? MCS_OP_WRITE : MCS_OP_READ, i, 0, 0, MiB);
        fix_push(&x.f, &d[i]);
    }
    far_until_out(&x, 1);
    remove = (struct mcd_command){.kind = MCD_COMMAND_REMOVE, .queue = &x.f.queue};
    mcd_engine_command(x.f.engine, &remove);
    while (mcs_load_acquire(&remove.done) == 0) /* partner: run_commands() */
        mcd_engine_turn(x.f.engine);
    cr_assert_eq(fake.slices, 0u);
    cr_assert_eq(x.f.queue.remote, 0u);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert(far_ended(&x, &d[i]));
        cr_assert_eq(fix_state(x.f.client.slot_table[i]), MCS_STATE_CANCELED);
    }
    cr_assert_null(x.route->lanes);
    x.f.queue.broken = false;
    mcd_engine_command(x.f.engine, &add);
    while (mcs_load_acquire(&add.done) == 0) /* as above */
        mcd_engine_turn(x.f.engine);
    far_fini(&x);
}

Test(remote_ends, a_route_that_is_detached_ends_everything)
{
    struct far x;
    struct mcs_desc out, waits;

    far_init(&x, 1);
    far_link(&x, 0)->rate = 0.00001;
    far_link(&x, 0)->max_out = 1;
    out = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    waits = far_desc(&x, MCS_OP_READ, 1, 0, 0, 64);
    fix_push(&x.f, &out);
    fix_push(&x.f, &waits);
    far_until_out(&x, 1);
    fix_call(x.f.engine, mcd_route_detach, x.route);
    far_ends(&x, &out, MCS_STATE_FAILED, MCS_PEER_UNREACHABLE);
    far_ends(&x, &waits, MCS_STATE_FAILED, MCS_PEER_UNREACHABLE);
    cr_assert_null(fake.links);
    out = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64);
    fix_push(&x.f, &out);
    far_ends(&x, &out, MCS_STATE_FAILED, MCS_PEER_UNREACHABLE);
    mcd_route_destroy(x.route);
    x.route = NULL;
    far_fini(&x);
}

Test(remote_ends, what_was_taken_away_is_not_touched_again)
{
    struct far x;
    struct mcs_desc d, other;
    struct mcd_quiesce q;

    far_init(&x, 1);
    far_link(&x, 0)->max_out = 1;
    far_link(&x, 0)->rate = 0.00001;
    d = far_desc(&x, MCS_OP_READ, 0, 0, 0, 64);
    other = far_desc(&x, MCS_OP_READ, 1, 128, 0, 64);
    fix_push(&x.f, &d);
    fix_push(&x.f, &other);
    far_until_out(&x, 1);
    /* a range beside it: nothing happens */
    q = (struct mcd_quiesce){.base = x.f.local.map + 4096, .length = 4096};
    fix_call(x.f.engine, mcd_engine_quiesce, &q);
    cr_assert_eq(fake.slices, 1u);
    /* the extent is still there: it goes on */
    q = (struct mcd_quiesce){.base = x.f.local.map, .length = 64};
    fix_call(x.f.engine, mcd_engine_quiesce, &q);
    far_until_out(&x, 1);
    cr_assert(!far_ended(&x, &d));
    /* it is not */
    mcs_store_release(&x.f.session->extents[MCD_HANDLE_INDEX(FIX_EXTENT)], NULL); /* engines */
    fix_call(x.f.engine, mcd_engine_quiesce, &q);
    q.length = FIX_EXTENT_SIZE;
    fix_call(x.f.engine, mcd_engine_quiesce, &q);
    cr_assert_eq(fake.slices, 0u);
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_REVOKED);
    far_ends(&x, &other, MCS_STATE_FAILED, MCS_REVOKED);
    far_fini(&x);
}

Test(remote_ends, quiesce_is_over_in_spite_of_new_work)
{
    struct far x;
    struct mcs_desc d[16];
    struct mcd_quiesce q;
    struct mcd_command c;
    unsigned turns = 0;
    bool busy[16] = {false};

    far_init(&x, 1);
    fake.cancel_turns = 3;
    far_link(&x, 0)->latency = 20000;
    q = (struct mcd_quiesce){.base = x.f.local.map, .length = 4096};
    for (unsigned round = 0; round < 5; round++) {
        mcd_engine_call(x.f.engine, &c, mcd_engine_quiesce, &q);
        for (turns = 0; turns < 10000; turns++) {
            uint32_t slot = turns % 16;

            if (!busy[slot] || far_ended(&x, &d[slot])) {
                d[slot] = far_desc(&x, MCS_OP_READ, slot, slot * 64, 0, 64);
                fix_push(&x.f, &d[slot]);
                busy[slot] = true;
            }
            mcd_engine_turn(x.f.engine);
            if (mcs_load_acquire(&c.done) != 0) /* partner: finish_command() */
                break;
        }
        cr_assert_lt(turns, 10000u);
    }
    for (uint32_t i = 0; i < 16; i++)
        if (busy[i])
            far_completes(&x, &d[i], 64);
    far_fini(&x);
}

/* What a transport still has under way may end by its own clock, with nothing that rings. */
Test(remote_ends, sleep_is_short_while_a_transport_has_something)
{
    struct far x;

    far_init(&x, 1);
    for (unsigned i = 0; x.f.engine->net->active != NULL; i++) {
        cr_assert_lt(i, 1000000u);
        mcd_engine_turn(x.f.engine);
    }
    cr_assert_eq(mcd_net_timeout(x.f.engine), -1);
    fake.slices++;
    cr_assert_eq(mcd_net_timeout(x.f.engine), 1000);
    fake.slices--;
    far_fini(&x);
}
