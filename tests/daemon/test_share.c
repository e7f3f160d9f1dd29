/* SPDX-License-Identifier: Apache-2.0 */
/* Shares between tenants, sessions, queues and classes, in turns of an engine and in simulated time. */
#include "sharers.h"

#define KiB(n) ((uint64_t)(n) << 10)
#define SLICE KiB(16)

static double distance(double v)
{
    return v < 0 ? -v : v;
}

/* The share of each group by its bytes, as far off as `percent` at most. */
#define share_is(part, whole, want, percent)                                                       \
    cr_assert(distance((double)(part) / (double)(whole) - (want)) <= (want) * (percent) / 100.0,   \
              "%s has %.4f, wanted %.4f", #part, (double)(part) / (double)(whole), (double)(want))

Test(share, equal_tenants_get_equal_bytes, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t[4];
    uint64_t all = 0;

    shr_init(&x, SLICE);
    for (unsigned i = 0; i < 4; i++) { /* of all sizes, deep and less deep */
        static const uint64_t lengths[] = {1 << 20, 100000, 5000, 40000};
        struct sharer *s;

        shr_tenant(&t[i], 1);
        s = shr_add(&x, &t[i], NULL);
        s->length = lengths[i];
        s->depth = i == 2 ? 200 : 8;
    }
    shr_run(&x, 500);
    shr_forget(&x);
    shr_run(&x, 80000);
    for (unsigned i = 0; i < 4; i++)
        all += shr_bytes(&x.s[i]);
    for (unsigned i = 0; i < 4; i++)
        share_is(shr_bytes(&x.s[i]), all, 0.25, 1);
    shr_fini(&x);
}

/* Weights hold whatever number of sessions and queues a tenant comes with. */
Test(share, weights_1_2_4_whatever_queues, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t[3];
    uint64_t of[3] = {0, 0, 0}, all = 0, sessions[2] = {0, 0}, of_queue[3] = {0, 0, 0};
    struct sharer *s;

    shr_init(&x, SLICE);
    for (unsigned i = 0; i < 3; i++)
        shr_tenant(&t[i], 1u << i);
    for (unsigned i = 0; i < 9; i++) { /* the lightest: nine sessions */
        s = shr_add(&x, &t[0], NULL);
        s->length = KiB(64);
    }
    s = shr_add(&x, &t[1], NULL); /* one queue, and a session of three queues */
    s->length = KiB(200);
    for (unsigned i = 0; i < 3; i++) {
        s = shr_add(&x, &t[1], i == 0 ? NULL : s);
        s->length = KiB(30);
    }
    s = shr_add(&x, &t[2], NULL);
    s->length = 1 << 20;
    for (unsigned i = 0; i < x.n; i++)
        x.s[i].depth = 6;
    shr_run(&x, 1000);
    shr_forget(&x);
    shr_run(&x, 40000);
    for (unsigned i = 0; i < x.n; i++) {
        of[i < 9 ? 0 : i < 13 ? 1 : 2] += shr_bytes(&x.s[i]);
        all += shr_bytes(&x.s[i]);
    }
    share_is(of[0], all, 1 / 7.0, 1);
    share_is(of[1], all, 2 / 7.0, 1);
    share_is(of[2], all, 4 / 7.0, 1);
    sessions[0] = shr_bytes(&x.s[9]);
    for (unsigned i = 0; i < 3; i++) {
        of_queue[i] = shr_bytes(&x.s[10 + i]);
        sessions[1] += of_queue[i];
    }
    share_is(sessions[0], of[1], 0.5, 1);
    for (unsigned i = 0; i < 3; i++)
        share_is(of_queue[i], sessions[1], 1 / 3.0, 1);
    shr_fini(&x);
}

/* Small tasks that are done as they come count as well: many queues full of them are no way around. */
Test(share, floods_of_small_tasks_have_their_share, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t[2];
    uint64_t many = 0;

    shr_init(&x, SLICE);
    shr_tenant(&t[0], 1);
    shr_tenant(&t[1], 1);
    for (unsigned i = 0; i < 8; i++) {
        struct sharer *s = shr_add(&x, &t[0], NULL);

        s->length = 512;
        s->depth = 200;
    }
    shr_add(&x, &t[1], NULL);
    x.s[8].length = 512;
    x.s[8].depth = 200;
    shr_run(&x, 1000);
    shr_forget(&x);
    shr_run(&x, 5000);
    for (unsigned i = 0; i < 8; i++)
        many += shr_bytes(&x.s[i]);
    share_is(shr_bytes(&x.s[8]), many + shr_bytes(&x.s[8]), 0.5, 2);
    /* and beside large ones */
    x.s[8].length = KiB(512);
    x.s[8].depth = 4;
    shr_run(&x, 2000);
    shr_forget(&x);
    shr_run(&x, 20000);
    many = 0;
    for (unsigned i = 0; i < 8; i++)
        many += shr_bytes(&x.s[i]);
    share_is(shr_bytes(&x.s[8]), many + shr_bytes(&x.s[8]), 0.5, 2);
    shr_fini(&x);
}

/* Classes are strict over all queues of a tenant; a lower one that waits gets a sixteenth. */
Test(share, classes_are_strict_across_queues_and_none_starves, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t;
    uint64_t all = 0;

    shr_init(&x, SLICE);
    shr_tenant(&t, 1);
    for (unsigned c = 0; c < 3; c++) {
        struct sharer *s = shr_add(&x, &t, NULL);

        s->class = (uint8_t)c;
        s->length = KiB(64);
        s->depth = 4;
    }
    x.s[1].depth = 0; /* high and background alone */
    shr_run(&x, 1000);
    shr_forget(&x);
    shr_run(&x, 16000);
    all = shr_bytes(&x.s[0]) + shr_bytes(&x.s[2]);
    share_is(shr_bytes(&x.s[0]), all, 15 / 16.0, 1);
    share_is(shr_bytes(&x.s[2]), all, 1 / 16.0, 2);
    x.s[1].depth = 4; /* all three */
    shr_run(&x, 1000);
    shr_forget(&x);
    shr_run(&x, 32000);
    all = shr_bytes(&x.s[0]) + shr_bytes(&x.s[1]) + shr_bytes(&x.s[2]);
    cr_assert_gt(shr_bytes(&x.s[0]) * 100, all * 86);
    cr_assert_gt(shr_bytes(&x.s[1]) * 18, all);
    cr_assert_gt(shr_bytes(&x.s[2]) * 18, all);
    shr_fini(&x);
}

/* Between tenants the class is nobody's affair. */
Test(share, a_class_is_no_way_to_a_larger_share, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t[2];

    shr_init(&x, SLICE);
    for (unsigned i = 0; i < 2; i++) {
        struct sharer *s;

        shr_tenant(&t[i], 1);
        s = shr_add(&x, &t[i], NULL);
        s->class = i == 0 ? MCS_CLASS_HIGH : MCS_CLASS_BACKGROUND;
        s->length = KiB(64);
        s->depth = 4;
    }
    shr_run(&x, 100);
    shr_forget(&x);
    shr_run(&x, 5000);
    share_is(shr_bytes(&x.s[0]), shr_bytes(&x.s[0]) + shr_bytes(&x.s[1]), 0.5, 1);
    shr_fini(&x);
}

/* Beside a flood of any number of queues, of its own tenant or another, a small task is done in the turn in which it
 * comes, after no more than a slice. */
Test(share, a_small_task_waits_for_one_slice, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t[2];
    struct sharer *small;

    shr_init(&x, SLICE);
    x.f.engine->cool_ticks = UINT64_MAX / 2; /* a pause of this process is none of the client's */
    shr_tenant(&t[0], 1);
    shr_tenant(&t[1], 1);
    for (unsigned i = 0; i < 44; i++) {
        struct sharer *s = shr_add(&x, &t[0], i % 4 == 0 ? NULL : &x.s[i - 1]);

        s->class = MCS_CLASS_BACKGROUND;
        s->length = 1 << 20;
        s->depth = 2;
    }
    for (unsigned k = 0; k < 2; k++) {
        small = shr_add(&x, &t[k], NULL);
        shr_run(&x, 500);
        for (unsigned i = 0; i < 200; i++) {
            uint64_t before = x.f.engine->counters.bytes, bytes = 0;
            uint32_t slot = shr_submit(&x, small, 64, MCS_CLASS_HIGH, 0);
            unsigned turns = 0;

            for (; !shr_ended(small, slot); turns++) {
                mcd_engine_turn(x.f.engine);
                bytes += x.f.engine->moved;
            }
            (void)before;
            cr_assert_leq(turns, i == 0 ? 2u + 45 / 8 : 1u, "%u turns at try %u", turns, i);
            cr_assert(i == 0 || bytes <= SLICE + 64, "%llu bytes at try %u",
                      (unsigned long long)bytes, i);
            shr_run(&x, 3);
        }
    }
    shr_fini(&x);
}

Test(share, a_fence_waits_and_keeps_its_share, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t;
    struct sharer *a, *b;
    uint32_t first, fence;

    shr_init(&x, SLICE);
    shr_tenant(&t, 1);
    a = shr_add(&x, &t, NULL);
    b = shr_add(&x, &t, NULL);
    b->length = KiB(256);
    b->depth = 3;
    b->class = MCS_CLASS_HIGH;
    shr_run(&x, 50);
    first = shr_submit(&x, a, KiB(512), MCS_CLASS_BACKGROUND, 0);
    fence = shr_submit(&x, a, KiB(64), MCS_CLASS_HIGH, MCS_DESC_FENCE);
    for (unsigned i = 0; i < 100000 && !shr_ended(a, fence); i++) {
        shr_run(&x, 1);
        cr_assert(!shr_ended(a, fence) || shr_ended(a, first) || a->free[first] == 0);
    }
    cr_assert(shr_ended(a, fence) || a->free[fence] == 0);
    shr_fini(&x);
}

/* Who fills his ring with what cannot be done is not waited for longer than his share of the time. */
Test(share, nonsense_keeps_nobody_waiting, .timeout = 60)
{
    enum { TURNS = 2000 };

    for (unsigned kind = 0; kind < 3; kind++) {
        struct sharers x;
        struct mcd_tenant t[2];
        struct sharer *bad, *good;

        shr_init(&x, SLICE);
        shr_tenant(&t[0], 1);
        shr_tenant(&t[1], 1);
        bad = shr_add(&x, &t[0], NULL);
        good = shr_add(&x, &t[1], NULL);
        good->length = KiB(64);
        good->depth = 4;
        for (unsigned i = 0; i < TURNS; i++) {
            for (uint32_t k = 0; k < MCD_BURST; k++) {
                struct mcs_desc d = fix_desc(&x.f, MCS_OP_WRITE, 64);

                d.slot = d.batch = k;
                d.generation = d.batch_generation = ++bad->generation;
                d.priority = MCS_CLASS_NORMAL;
                if (kind == 0)
                    d.op = 77;
                else if (kind == 1)
                    d.op = MCS_OP_CANCEL;
                else
                    d.extent = 0;
                if (!mcs_ring_push(bad->client.ring, &d, 1))
                    break;
            }
            shr_run(&x, 1);
        }
        cr_assert_gt(shr_bytes(good), TURNS * KiB(1), "%llu bytes, kind %u",
                     (unsigned long long)shr_bytes(good), kind);
        shr_fini(&x);
    }
}

/* Who wanted nothing for a while has saved nothing up, and does not pay for it either. */
Test(share, nothing_is_saved_up, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t[2];

    shr_init(&x, SLICE);
    for (unsigned i = 0; i < 2; i++) {
        struct sharer *s;

        shr_tenant(&t[i], 1);
        s = shr_add(&x, &t[i], NULL);
        s->length = KiB(64);
        s->depth = 4;
    }
    x.s[1].depth = 0;
    shr_run(&x, 5000);
    x.s[1].depth = 4;
    shr_run(&x, 20);
    shr_forget(&x);
    shr_run(&x, 400);
    share_is(shr_bytes(&x.s[0]), shr_bytes(&x.s[0]) + shr_bytes(&x.s[1]), 0.5, 5);
    x.s[0].depth = 0;
    shr_run(&x, 5000);
    x.s[0].depth = 4;
    shr_run(&x, 20);
    shr_forget(&x);
    shr_run(&x, 400);
    share_is(shr_bytes(&x.s[0]), shr_bytes(&x.s[0]) + shr_bytes(&x.s[1]), 0.5, 5);
    shr_fini(&x);
}

/* A weight that changes counts from then on. */
Test(share, weights_change_under_way, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t[2];

    shr_init(&x, SLICE);
    for (unsigned i = 0; i < 2; i++) {
        struct sharer *s;

        shr_tenant(&t[i], 1);
        s = shr_add(&x, &t[i], NULL);
        s->length = KiB(64);
        s->depth = 4;
    }
    shr_run(&x, 1000);
    t[1].scale = MCD_SHARE_ONE / 3;
    shr_run(&x, 100);
    shr_forget(&x);
    shr_run(&x, 8000);
    share_is(shr_bytes(&x.s[1]), shr_bytes(&x.s[0]) + shr_bytes(&x.s[1]), 0.75, 1);
    shr_fini(&x);
}

/* ---- limits ---------------------------------------------------------------------- */

Test(share, more_tasks_than_the_limit_are_refused, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t;
    struct sharer *a, *b;

    shr_init(&x, SLICE);
    shr_tenant(&t, 1);
    t.tasks_max = 10;
    a = shr_add(&x, &t, NULL);
    b = shr_add(&x, &t, NULL);
    for (unsigned i = 0; i < 8; i++) {
        shr_submit(&x, a, KiB(512), MCS_CLASS_NORMAL, 0);
        shr_submit(&x, b, KiB(512), MCS_CLASS_NORMAL, 0);
    }
    while (mcs_ring_pending(&a->queue.consumer) || mcs_ring_pending(&b->queue.consumer))
        mcd_engine_turn(x.f.engine);
    shr_reap(a);
    shr_reap(b);
    cr_assert_eq(a->refused + b->refused, 6u);
    cr_assert_eq(t.tasks, 10u);
    cr_assert_eq(t.batches, 10u);
    cr_assert_eq(t.refused[MCD_LIMIT_TASKS], 6u);
    while (a->under_way + b->under_way != 0)
        shr_run(&x, 1);
    cr_assert_eq(t.tasks, 0u);
    cr_assert_eq(t.batches, 0u);
    cr_assert_eq(shr_bytes(a) + shr_bytes(b), 10 * KiB(512));
    shr_fini(&x);
}

Test(share, more_batches_than_the_limit_are_refused, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t;
    struct mcs_desc d;
    struct sharer *a;

    shr_init(&x, SLICE);
    shr_tenant(&t, 1);
    t.batches_max = 2;
    a = shr_add(&x, &t, NULL);
    for (uint32_t i = 0; i < 9; i++) { /* three batches of three */
        d = fix_desc(&x.f, MCS_OP_WRITE, KiB(512));
        d.slot = i;
        d.batch = i / 3;
        d.batch_generation = 1;
        a->sent[i] = d;
        a->free[i] = 1;
        a->under_way++;
        cr_assert(mcs_ring_push(a->client.ring, &d, 1));
    }
    mcd_engine_turn(x.f.engine);
    while (t.tasks == 0)
        mcd_engine_turn(x.f.engine);
    shr_reap(a);
    cr_assert_eq(a->refused, 3u);
    cr_assert_eq(t.batches, 2u);
    for (uint32_t i = 6; i < 9; i++)
        cr_assert_eq(fix_error(a->client.slot_table[i]), MCS_LIMIT);
    while (a->under_way != 0)
        shr_run(&x, 1);
    cr_assert_eq(t.batches, 0u);
    shr_fini(&x);
}

/* A batch's next life may begin while the agent still has tasks of the one before: the count holds. */
Test(share, batches_are_counted_whatever_the_client_does, .timeout = 60)
{
    struct sharers x;
    struct mcd_tenant t;
    struct mcs_desc d;
    struct sharer *a;

    shr_init(&x, SLICE);
    shr_tenant(&t, 1);
    a = shr_add(&x, &t, NULL);
    for (uint32_t i = 0; i < 64; i++) {
        d = fix_desc(&x.f, MCS_OP_WRITE, KiB(100));
        d.slot = i;
        d.batch = i % 3;
        d.batch_generation = i;
        a->sent[i] = d;
        a->free[i] = 1;
        a->under_way++;
        cr_assert(mcs_ring_push(a->client.ring, &d, 1));
    }
    while (t.tasks < 30)
        mcd_engine_turn(x.f.engine);
    cr_assert_eq(t.batches, 3u);
    while (a->under_way != 0)
        shr_run(&x, 1);
    cr_assert_eq(t.tasks, 0u);
    cr_assert_eq(t.batches, 0u);
    shr_fini(&x);
}

/* ---- the rate, in simulated time ------------------------------------------------- */

#define HZ UINT64_C(1000000000)

Test(share, a_rate_is_kept_to_the_byte, .timeout = 60)
{
    struct mcd_tenant t;
    uint64_t given = 0, now = 5 * HZ, end = now + 10 * HZ;

    shr_tenant(&t, 1);
    t.rate = 100000000;
    for (; now < end; now += 100000) { /* several engines look at any time, and take a slice */
        for (unsigned engine = 0; engine < 4; engine++) {
            if (!mcd_tenant_may(&t, now))
                continue;
            mcd_tenant_pay(&t, KiB(256), now, HZ);
            given += KiB(256);
        }
    }
    /* ten seconds' worth, the fiftieth that was saved up, and a slice under way for each */
    cr_assert_geq(given, 1000000000u);
    cr_assert_leq(given, 1000000000u + 2000000 + 4 * KiB(256));
    /* who uses nothing saves up no more than that fiftieth */
    now += 100 * HZ;
    given = 0;
    while (mcd_tenant_may(&t, now)) {
        mcd_tenant_pay(&t, KiB(64), now, HZ);
        given += KiB(64);
    }
    cr_assert_leq(given, 2000000 + KiB(64));
    cr_assert_geq(given, 2000000u);
}

/* Who has no leave keeps nobody waiting, and has his own share when it is back. */
Test(share, without_leave_others_go_on, .timeout = 60)
{
    struct mcd_shares s;
    struct mcd_share_leaf l[2];
    struct mcd_tenant t[2];
    uint64_t given[2] = {0, 0}, now = HZ;
    unsigned class, idle = 0;

    mcd_shares_init(&s, SLICE, HZ);
    for (unsigned i = 0; i < 2; i++) {
        shr_tenant(&t[i], 1);
        cr_assert_eq(mcd_share_join(&s, &l[i], &t[i], &l[i]), 0);
        mcd_share_set(&s, &l[i], 2, 2);
    }
    t[0].rate = 1000000000; /* a byte a ns: a fourth of what there is */
    for (unsigned i = 0; i < 1000000; i++, now += SLICE / 4) {
        struct mcd_share_leaf *got;

        s.turn++;
        got = mcd_share_pick(&s, now, &class);
        cr_assert_not_null(got);
        cr_assert_eq(class, 1u);
        mcd_share_charge(&s, got, class, SLICE, now);
        given[got - l] += SLICE;
    }
    share_is(given[0], given[0] + given[1], 0.25, 1);
    /* alone it is nobody's turn meanwhile */
    mcd_share_set(&s, &l[1], 0, 0);
    given[0] = 0;
    for (unsigned i = 0; i < 1000000; i++, now += SLICE / 4) {
        s.turn++;
        if (mcd_share_pick(&s, now, &class) == NULL) {
            idle++;
            continue;
        }
        mcd_share_charge(&s, &l[0], class, SLICE, now);
        given[0] += SLICE;
    }
    share_is(given[0], 1000000 * SLICE, 0.25, 1);
    cr_assert_gt(idle, 740000u);
    cr_assert_gt(t[0].throttled, 1000000 * SLICE / 4 / 10 * 7);
    for (unsigned i = 0; i < 2; i++)
        mcd_share_leave(&s, &l[i]);
    cr_assert_null(s.all);
    mcd_shares_fini(&s);
}

/* Who was held back by his rate has saved nothing up against the others, nor is he taken for one who is ahead; and
 * who comes meanwhile begins where those are who go on. */
Test(share, who_is_held_back_saves_nothing_up, .timeout = 60)
{
    struct mcd_shares s;
    struct mcd_share_leaf l[3];
    struct mcd_tenant t[3];
    uint64_t given[3] = {0, 0, 0};
    unsigned class, first = 0;

    mcd_shares_init(&s, SLICE, HZ);
    for (unsigned i = 0; i < 3; i++) {
        shr_tenant(&t[i], 1);
        cr_assert_eq(mcd_share_join(&s, &l[i], &t[i], &l[i]), 0);
    }
    t[0].rate = 1; /* a slice, and then nothing for hours */
    mcd_share_set(&s, &l[0], 2, 2);
    mcd_share_set(&s, &l[1], 2, 2);
    for (unsigned i = 0; i < 20000; i++) {
        struct mcd_share_leaf *got;

        s.turn++;
        if (i == 16000)
            mcd_share_set(&s, &l[2], 2, 2);
        got = mcd_share_pick(&s, HZ, &class);
        cr_assert_not_null(got);
        /* so much that differences of virtual times wrap around unless they are kept small */
        mcd_share_charge(&s, got, class, got == &l[0] ? SLICE : UINT64_C(1) << 30, HZ);
        given[got - l] += i >= 16000;
    }
    cr_assert_eq(given[0], 0u);
    share_is(given[1], given[1] + given[2], 0.5, 1);
    t[0].rate = 0;
    memset(given, 0, sizeof(given));
    for (unsigned i = 0; i < 3000; i++) {
        struct mcd_share_leaf *got;

        s.turn++;
        got = mcd_share_pick(&s, HZ, &class);
        cr_assert_not_null(got);
        if (first == 0 && got == &l[0])
            first = i + 1;
        mcd_share_charge(&s, got, class, UINT64_C(1) << 30, HZ);
        given[got - l]++;
    }
    cr_assert(first > 0 && first < 10, "its turn comes at once: %u", first);
    for (unsigned i = 0; i < 3; i++)
        cr_assert(given[i] > 990 && given[i] < 1010, "%u has %llu of 3000", i,
                  (unsigned long long)given[i]);
    for (unsigned i = 0; i < 3; i++)
        mcd_share_leave(&s, &l[i]);
    mcd_shares_fini(&s);
}

/* Any order of joining, wanting, being served and leaving. */
Test(share, any_order_of_events_is_survived, .timeout = 60)
{
    struct mcd_shares s;
    struct mcd_share_leaf l[32] = {0};
    struct mcd_tenant t[5];
    int sessions[9];
    uint32_t seed = 1;

    mcd_shares_init(&s, SLICE, HZ);
    for (unsigned i = 0; i < 5; i++)
        shr_tenant(&t[i], 1 + i * 7);
    for (unsigned i = 0; i < 300000; i++) {
        struct mcd_share_leaf *m = &l[(seed = seed * 1103515245 + 12345) >> 16 & 31], *got;
        unsigned what = seed >> 24 & 7, class, ready = 0;

        s.turn += what & 1;
        if (m->session == NULL) {
            unsigned k = seed >> 8 & 7;

            cr_assert_eq(mcd_share_join(&s, m, &t[k % 5], &sessions[k]), 0);
        } else if (what == 0) {
            mcd_share_leave(&s, m);
        } else if (what < 4) {
            mcd_share_set(&s, m, (uint8_t)(seed >> 9 & 7), (uint8_t)(seed >> 9 & seed >> 12 & 7));
        } else {
            got = mcd_share_pick(&s, i, &class);
            if (got != NULL) {
                cr_assert((got->share.ready >> class & 1) != 0);
                mcd_share_charge(&s, got, class, seed >> 10, i);
            }
        }
        for (unsigned k = 0; k < 32; k++)
            ready += l[k].session != NULL && l[k].share.ready != 0;
        cr_assert_eq(s.nready, ready);
    }
    for (unsigned k = 0; k < 32; k++)
        mcd_share_leave(&s, &l[k]);
    cr_assert_null(s.all);
    mcd_shares_fini(&s);
}
