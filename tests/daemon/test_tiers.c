/* SPDX-License-Identifier: Apache-2.0 */
/* Routes with rails of two transports, a better and a slower one: who carries what, in simulated time. */
#include "far.h"

#define MiB (1u << 20)

/* Rails 0 .. rdma - 1 of the better transport, then one of the other, all connected. */
static void begin(struct far *x, unsigned rdma, bool best_only)
{
    far_init_tiers(x, rdma, 1, best_only);
    for (unsigned i = 0; i <= rdma; i++)
        far_adopt(x, x->route, i);
    far_fill(x->f.local.map, MiB, 3);
}

static struct mcs_desc push(struct far *x, uint8_t op, uint32_t slot, uint64_t at, uint64_t length,
                            uint8_t flags)
{
    struct mcs_desc d = far_desc(x, op, slot, at, at, length);

    d.flags |= flags;
    fix_push(&x->f, &d);
    return d;
}

/* No answer for long, and no rail is called silent for that: deadlines go by real time, silence by simulated time. */
static void answer_late(struct far *x, unsigned rail)
{
    far_link(x, rail)->latency = 10000000000;
    x->route->rails[rail].rail.silence_ns = UINT64_MAX;
}

static void lose(struct far *x, unsigned rail)
{
    fake_lose(far_link(x, rail), far_link(x, rail)->conns[0], -ECONNRESET);
}

/* What the control thread does: each connection that has ended is ended at the peer, too. */
static unsigned confirm(struct far *x)
{
    uint64_t conns[8];
    unsigned n = mcd_route_take_ended(x->route, conns, 8);

    for (unsigned i = 0; i < n; i++) {
        fake_end(conns[i]);
        fix_call(x->f.engine, mcd_route_confirm,
                 &(struct mcd_route_confirmed){.route = x->route, .conn = conns[i]});
    }
    return n;
}

Test(tiers, the_best_rails_carry_all)
{
    struct far x;

    begin(&x, 2, false);
    for (unsigned i = 0; i < 16; i++) {
        struct mcs_desc d = push(&x, MCS_OP_WRITE, 0, 0, MiB, 0);

        far_completes_over(&x, &d, MiB, MCS_PATH_RDMA);
    }
    cr_assert(far_link(&x, 0)->posted != 0 && far_link(&x, 1)->posted != 0);
    cr_assert_eq(far_link(&x, 2)->posted, 0u);
    cr_assert_eq(x.f.engine->counters.fallback_slices, 0u);
    cr_assert_arr_eq(fake.memory, x.f.local.map, MiB);
    far_fini(&x);
}

Test(tiers, a_slower_one_takes_over_and_that_is_counted)
{
    struct far x;
    struct mcs_desc d, strict;

    begin(&x, 1, false);
    lose(&x, 0);
    cr_assert_eq(confirm(&x), 1u);
    d = push(&x, MCS_OP_WRITE, 0, 0, MiB, 0);
    far_completes_over(&x, &d, MiB, MCS_PATH_TCP);
    cr_assert_gt(x.f.engine->counters.fallback_slices, 0u);
    cr_assert_eq(x.f.engine->counters.fallback_bytes, MiB);
    /* who asked for the best or nothing waits, and holds up nobody */
    strict = push(&x, MCS_OP_WRITE, 1, 0, 64, MCS_DESC_STRICT);
    d = push(&x, MCS_OP_READ, 0, 0, 4096, 0);
    far_completes_over(&x, &d, 4096, MCS_PATH_TCP);
    cr_assert(!far_ended(&x, &strict));
    far_adopt(&x, x.route, 0);
    far_completes_over(&x, &strict, 64, MCS_PATH_RDMA);
    far_fini(&x);
}

/* What a link does not take at once is counted when it takes it. */
Test(tiers, what_a_full_link_gives_back_is_counted_once)
{
    struct mcs_desc d;
    struct far x;

    begin(&x, 1, false);
    lose(&x, 0);
    cr_assert_eq(confirm(&x), 1u);
    far_link(&x, 1)->max_out = 1;
    d = push(&x, MCS_OP_WRITE, 0, 0, MiB, 0);
    far_completes_over(&x, &d, MiB, MCS_PATH_TCP);
    cr_assert_gt(far_link(&x, 1)->posted, 1u);
    cr_assert_eq(x.f.engine->counters.fallback_slices, far_link(&x, 1)->posted);
    cr_assert_eq(x.f.engine->counters.fallback_bytes, MiB);
    far_fini(&x);
}

Test(tiers, the_path_is_that_of_the_slowest)
{
    struct far x;
    struct mcs_desc d;

    begin(&x, 1, false);
    far_link(&x, 0)->rate = 0.01;
    d = push(&x, MCS_OP_READ, 0, 0, MiB, 0);
    while (far_link(&x, 0)->moved == 0)
        far_turns(&x, 1);
    lose(&x, 0);
    far_completes_over(&x, &d, MiB, MCS_PATH_TCP);
    cr_assert_gt(far_link(&x, 1)->moved, 0u);
    cr_assert_lt(far_link(&x, 1)->moved, MiB);
    far_fini(&x);
}

/* However many wait for the best rail, those behind them go over another one. */
Test(tiers, many_strict_ones_hold_up_nobody)
{
    struct mcs_desc strict[100], d = {0};
    struct far x;

    begin(&x, 1, false);
    far_link(&x, 0)->latency = 1000000000;
    for (unsigned i = 0; i < 101; i++) {
        struct mcs_desc one = push(&x, MCS_OP_READ, i, 0, 64, i < 100 ? MCS_DESC_STRICT : 0);

        if (i < 100)
            strict[i] = one;
        else
            d = one;
        far_until_out(&x, i + 1);
    }
    lose(&x, 0);
    far_completes_over(&x, &d, 64, MCS_PATH_TCP);
    for (unsigned i = 0; i < 100; i++)
        cr_assert(!far_ended(&x, &strict[i]));
    far_fini(&x);
}

Test(tiers, strict_ends_strict)
{
    struct far x;
    struct mcs_desc d, late;

    begin(&x, 1, false);
    fake.step = 100000;
    lose(&x, 0);
    d = push(&x, MCS_OP_WRITE, 0, 0, 64, MCS_DESC_STRICT);
    late = far_desc(&x, MCS_OP_READ, 1, 0, 0, 64);
    late.flags |= MCS_DESC_STRICT;
    late.deadline_us = 5000;
    fix_push(&x.f, &late);
    far_ends(&x, &late, MCS_STATE_TIMEOUT, MCS_STRICT);
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_STRICT);
    /* without any rail it is not strictness that stands in the way */
    lose(&x, 1);
    d = push(&x, MCS_OP_WRITE, 0, 0, 64, MCS_DESC_STRICT);
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_PEER_UNREACHABLE);
    far_fini(&x);
}

Test(tiers, without_fallback_all_wait_for_the_best)
{
    struct far x;
    struct mcs_desc d;

    begin(&x, 1, true);
    fake.step = 100000;
    lose(&x, 0);
    cr_assert_eq(confirm(&x), 1u);
    d = push(&x, MCS_OP_WRITE, 0, 0, 64, 0);
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_PEER_UNREACHABLE);
    d = push(&x, MCS_OP_WRITE, 0, 0, 64, 0);
    far_turns(&x, 10);
    far_adopt(&x, x.route, 0);
    far_completes_over(&x, &d, 64, MCS_PATH_RDMA);
    cr_assert_eq(far_link(&x, 1)->posted, 0u);
    far_fini(&x);
}

Test(tiers, a_fresh_route_waits_a_second_for_its_best_rails)
{
    struct far x;
    struct mcs_desc d;

    far_init_tiers(&x, 1, 1, false);
    fake.step = 100000;
    far_adopt(&x, x.route, 1);
    d = push(&x, MCS_OP_READ, 0, 0, 64, 0);
    far_turns(&x, 1000);
    cr_assert(!far_ended(&x, &d));
    far_adopt(&x, x.route, 0);
    far_completes_over(&x, &d, 64, MCS_PATH_RDMA);
    far_fini(&x);
    /* and no longer */
    far_init_tiers(&x, 1, 1, false);
    fake.step = 10000000;
    far_adopt(&x, x.route, 1);
    d = push(&x, MCS_OP_READ, 0, 0, 64, 0);
    far_completes_over(&x, &d, 64, MCS_PATH_TCP);
    cr_assert_geq(fake.now, 2000000000u);
    far_fini(&x);
    /* nor for one whose device is down */
    far_init_tiers(&x, 1, 1, false);
    fix_call(x.f.engine, mcd_route_tell,
             &(struct mcd_route_word){.route = x.route, .rail = 0, .reason = MCD_RAIL_CARRIER});
    far_adopt(&x, x.route, 1);
    d = push(&x, MCS_OP_READ, 0, 0, 64, 0);
    far_completes_over(&x, &d, 64, MCS_PATH_TCP);
    cr_assert_lt(fake.now, 1500000000u);
    far_fini(&x);
}

static void refuse(struct far *x, unsigned rail, unsigned times, uint16_t status)
{
    far_link(x, rail)->refuse = times;
    far_link(x, rail)->refuse_with = status;
}

Test(tiers, what_is_not_registered_goes_elsewhere)
{
    struct far x;
    struct mcs_desc d;

    begin(&x, 2, false);
    refuse(&x, 0, 1, MCS_NOT_REGISTERED);
    d = push(&x, MCS_OP_WRITE, 0, 0, 4096, 0);
    far_completes_over(&x, &d, 4096, MCS_PATH_RDMA);
    refuse(&x, 0, 1, MCS_NOT_REGISTERED);
    refuse(&x, 1, 1, MCS_NOT_REGISTERED);
    d = push(&x, MCS_OP_WRITE, 0, 0, 4096, 0);
    far_completes_over(&x, &d, 4096, MCS_PATH_TCP);
    cr_assert_eq(far_link(&x, 0)->refuse + far_link(&x, 1)->refuse, 0u);
    refuse(&x, 0, 1, MCS_NOT_REGISTERED);
    refuse(&x, 1, 1, MCS_NOT_REGISTERED);
    d = push(&x, MCS_OP_WRITE, 0, 0, 4096, MCS_DESC_STRICT);
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_NOT_REGISTERED);
    cr_assert_eq(far_link(&x, 2)->posted, 1u);
    refuse(&x, 0, 1, MCS_LIMIT); /* in more pieces than its queues take */
    refuse(&x, 1, 1, MCS_LIMIT);
    d = push(&x, MCS_OP_WRITE, 0, 0, 4096, 0);
    far_completes_over(&x, &d, 4096, MCS_PATH_TCP);
    cr_assert_arr_eq(fake.memory, x.f.local.map, 4096);
    far_fini(&x);
}

/* Who has only the slower rails holds up nobody on the better ones, and is not cut to pieces that wait for room. */
Test(tiers, what_waits_for_a_slower_rail_waits_alone)
{
    struct mcs_desc slow, fast;
    struct far x;

    begin(&x, 1, false);
    far_link(&x, 1)->rate = 0.001;
    far_link(&x, 1)->max_out = 1;
    refuse(&x, 0, 1000, MCS_NOT_REGISTERED);
    slow = push(&x, MCS_OP_WRITE, 0, 0, MiB, 0);
    far_turns(&x, 1000);
    cr_assert_eq(far_link(&x, 1)->posted, 1u);
    cr_assert_lt(x.f.engine->net->slices.used, 8u);
    refuse(&x, 0, 0, MCS_OK);
    fast = push(&x, MCS_OP_READ, 1, 0, 4096, 0);
    far_completes_over(&x, &fast, 4096, MCS_PATH_RDMA);
    cr_assert_eq(far_link(&x, 1)->posted, 1u); /* the first one is out still */
    fake.step = 100000;
    far_completes_over(&x, &slow, MiB, MCS_PATH_TCP);
    cr_assert_arr_eq(fake.memory, x.f.local.map, MiB);
    far_fini(&x);
}

/* The buffer may have been cut and registered anew: its owner is asked, and so is a target that looks at requests. */
Test(tiers, a_refused_key_is_looked_up_afresh_once)
{
    struct far x;
    struct mcs_desc d;

    begin(&x, 1, false);
    fake.step = 100000;
    refuse(&x, 0, 1, MCS_ACCESS);
    d = push(&x, MCS_OP_WRITE, 0, 0, 4096, 0);
    far_turns(&x, 500);
    cr_assert(!far_ended(&x, &d));
    cr_assert_eq(x.remote.wanted, 1u);
    mcs_store_release(&x.remote.fresh, 1u); /* partner: mcd_remote_is_fresh() */
    far_completes_over(&x, &d, 4096, MCS_PATH_RDMA);
    refuse(&x, 0, 2, MCS_ACCESS);
    refuse(&x, 1, 1, MCS_REVOKED);
    d = push(&x, MCS_OP_WRITE, 0, 0, 4096, 0);
    while (x.remote.wanted != 2)
        far_turns(&x, 1);
    mcs_store_release(&x.remote.fresh, 2u); /* as above */
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_REVOKED);
    cr_assert_eq(far_link(&x, 1)->refuse, 0u);
    /* nobody else to ask */
    refuse(&x, 0, 2, MCS_ACCESS);
    d = push(&x, MCS_OP_WRITE, 0, 0, 4096, MCS_DESC_STRICT);
    while (x.remote.wanted != 3)
        far_turns(&x, 1);
    mcs_store_release(&x.remote.fresh, 3u); /* as above */
    far_ends(&x, &d, MCS_STATE_FAILED, MCS_REVOKED);
    cr_assert_eq(far_link(&x, 1)->posted, 1u);
    far_fini(&x);
}

/* A lost WRITE may land until the peer's agent has ended its connection: none overtakes it, over no transport. */
Test(tiers, what_was_lost_is_not_overtaken_by_another_transport)
{
    struct far x;
    struct mcs_desc lost, next, read;

    begin(&x, 1, false);
    fake.haunt = true;
    far_link(&x, 0)->rate = 0.001;
    lost = push(&x, MCS_OP_WRITE, 0, 0, 4096, 0);
    far_until_out(&x, 1);
    lose(&x, 0);
    next = push(&x, MCS_OP_WRITE, 1, 64, 4096, 0);
    read = push(&x, MCS_OP_READ, 2, 512 << 10, 4096, 0);
    far_completes_over(&x, &read, 4096, MCS_PATH_TCP);
    far_turns(&x, 1000);
    cr_assert(!far_ended(&x, &lost) && !far_ended(&x, &next));
    cr_assert_eq(far_link(&x, 1)->posted, 1u);
    cr_assert_eq(confirm(&x), 1u);
    far_completes_over(&x, &lost, 4096, MCS_PATH_TCP);
    far_completes_over(&x, &next, 4096, MCS_PATH_TCP);
    cr_assert_eq(mcs_load_relaxed(&x.route->nunsettled), 0u);
    cr_assert_eq(confirm(&x), 0u);
    far_fini(&x);
}

/* What is called back from a queue pair costs that pair: later WRITEs wait for its end at the peer. */
Test(tiers, a_canceled_write_is_settled_by_the_agents)
{
    struct far x;
    struct mcs_desc d;
    struct mcs_slot s;

    begin(&x, 1, false);
    fake.haunt = true;
    far_link(&x, 0)->rate = 0.000001;
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 64 << 10);
    d.deadline_us = 2000;
    fix_push(&x.f, &d);
    s = fix_end(&x.f, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_TIMEOUT);
    cr_assert(!far_settled(s));
    cr_assert_eq(mcs_load_relaxed(&x.route->nunsettled), 1u);
    d = push(&x, MCS_OP_WRITE, 0, 0, 4096, 0);
    far_turns(&x, 1000);
    cr_assert(!far_ended(&x, &d));
    lose(&x, 0); /* as the transport does with that pair */
    far_turns(&x, 1000);
    cr_assert(!far_ended(&x, &d));
    cr_assert_eq(confirm(&x), 1u);
    far_completes_over(&x, &d, 4096, MCS_PATH_TCP);
    far_fini(&x);
}

Test(tiers, devices_near_the_memory_go_first)
{
    struct far x;
    struct mcs_desc d;

    begin(&x, 2, false);
    x.f.local.kind.node = 1;
    x.route->rails[0].node = 0;
    x.route->rails[1].node = 1;
    for (unsigned i = 0; i < 200; i++) {
        d = push(&x, MCS_OP_WRITE, 0, 0, 64, 0);
        far_completes_over(&x, &d, 64, MCS_PATH_RDMA);
    }
    cr_assert_gt(far_link(&x, 1)->posted, 150u);
    far_fini(&x);
}

/* A notification that is called back does not cost its queue pair by itself: the route ends it, where later WRITEs could go over
 * another one. */
Test(tiers, a_canceled_notification_is_settled_too)
{
    struct far x;
    struct mcs_desc d;
    struct mcs_slot s;

    begin(&x, 2, false);
    answer_late(&x, 0);
    answer_late(&x, 1);
    far_args(&x, NULL, 0, "late", "");
    d = far_desc(&x, MCS_OP_NOTIFY, 0, 0, 0, 0);
    d.args = 0;
    d.deadline_us = 2000;
    fix_push(&x.f, &d);
    s = fix_end(&x.f, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_TIMEOUT);
    far_link(&x, 0)->latency = far_link(&x, 1)->latency = 0;
    d = push(&x, MCS_OP_WRITE, 0, 0, 4096, 0);
    far_turns(&x, 1000);
    cr_assert(!far_ended(&x, &d));
    cr_assert_eq(confirm(&x), 1u);
    far_completes_over(&x, &d, 4096, MCS_PATH_RDMA);
    far_fini(&x);
}

/* Those that are called back at the same time cost all their queue pairs, though the first leaves only one other way. */
Test(tiers, notifications_canceled_together_are_all_settled)
{
    struct mcs_desc d[2];
    struct far x;

    begin(&x, 2, false);
    answer_late(&x, 0);
    answer_late(&x, 1);
    lose(&x, 2);
    far_args(&x, NULL, 0, "late", "");
    for (unsigned i = 0; i < 2; i++) {
        d[i] = far_desc(&x, MCS_OP_NOTIFY, i, 0, 0, 0);
        d[i].args = 0;
        d[i].deadline_us = 2000;
        fix_push(&x.f, &d[i]);
    }
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(fix_state(fix_end(&x.f, &d[i])), MCS_STATE_TIMEOUT);
    cr_assert(far_link(&x, 0)->posted == 1 && far_link(&x, 1)->posted == 1);
    cr_assert_eq(mcs_load_relaxed(&x.route->nunsettled), 2u);
    cr_assert_eq(confirm(&x), 2u);
    cr_assert_eq(mcs_load_relaxed(&x.route->nunsettled), 0u);
    far_link(&x, 0)->latency = 0;
    far_adopt(&x, x.route, 0);
    d[0] = push(&x, MCS_OP_WRITE, 0, 0, 4096, 0);
    far_completes_over(&x, &d[0], 4096, MCS_PATH_RDMA);
    far_fini(&x);
}

/* One that was the only way costs its queue pair once there is another. */
Test(tiers, a_doubt_is_settled_when_there_is_another_way)
{
    struct far x;
    struct mcs_desc d;
    struct mcs_slot s;

    far_init_tiers(&x, 2, 0, false);
    far_adopt(&x, x.route, 0);
    answer_late(&x, 0);
    far_args(&x, NULL, 0, "late", "");
    d = far_desc(&x, MCS_OP_NOTIFY, 0, 0, 0, 0);
    d.args = 0;
    d.deadline_us = 2000;
    fix_push(&x.f, &d);
    s = fix_end(&x.f, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_TIMEOUT);
    cr_assert_eq(mcs_load_relaxed(&x.route->nunsettled), 0u);
    far_adopt(&x, x.route, 1);
    cr_assert_eq(mcs_load_relaxed(&x.route->nunsettled), 1u);
    cr_assert_eq(confirm(&x), 1u);
    cr_assert_eq(mcs_load_relaxed(&x.route->nunsettled), 0u);
    d = push(&x, MCS_OP_WRITE, 0, 0, 4096, 0);
    far_completes_over(&x, &d, 4096, MCS_PATH_RDMA);
    far_fini(&x);
}
