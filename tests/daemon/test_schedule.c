/* SPDX-License-Identifier: Apache-2.0 */
/* long */
/* Which rail carries what, and who goes first: in simulated time, so that nothing here depends on
 * the machine. Rates are bytes a ns. */
#include "daemon/tenant.h"
#include "far.h"

#define MiB (1u << 20)

/* Keeps `depth` tasks of 1 MiB under way until `bytes` have ended. Returns the simulated ns. */
static uint64_t stream(struct far *x, unsigned depth, uint64_t bytes)
{
    struct mcs_desc d[64];
    uint64_t begin = fake.now, done = 0, sent = 0;
    bool busy[64] = {false};

    while (done < bytes) {
        for (uint32_t i = 0; i < depth; i++) {
            if (busy[i] && far_ended(x, &d[i])) {
                cr_assert_eq(fix_state(x->f.client.slot_table[i]), MCS_STATE_COMPLETED);
                busy[i] = false;
                done += MiB;
            }
            if (!busy[i] && sent < bytes) {
                d[i] = far_desc(x, MCS_OP_WRITE, i, 0, (i % 4) * MiB, MiB);
                d[i].deadline_us = 3000000000u;
                fix_push(&x->f, &d[i]);
                busy[i] = true;
                sent += MiB;
            }
        }
        mcd_engine_turn(x->f.engine);
    }
    return fake.now - begin;
}

static void set(struct far *x, unsigned rail, double rate, uint64_t latency)
{
    far_link(x, rail)->rate = rate;
    far_link(x, rail)->latency = latency;
}

Test(schedule, equal_rails_share_equally, .timeout = 60)
{
    struct far x;
    uint64_t ns, a, b;

    far_init(&x, 2);
    fake.step = 5000;
    set(&x, 0, 1, 50000);
    set(&x, 1, 1, 50000);
    stream(&x, 16, 64 * MiB);
    a = far_link(&x, 0)->moved;
    b = far_link(&x, 1)->moved;
    ns = stream(&x, 16, 256 * MiB);
    a = far_link(&x, 0)->moved - a;
    b = far_link(&x, 1)->moved - b;
    cr_assert(a * 10 > b * 9 && b * 10 > a * 9, "%llu and %llu", (unsigned long long)a,
              (unsigned long long)b);
    cr_assert_lt((double)ns, 256.0 * MiB / 2 * 1.1, "%.3f of the two", 128.0 * MiB / (double)ns);
    far_fini(&x);
}

static void a_tenth(uint64_t window)
{
    struct far x;
    uint64_t ns, fast, slow;

    far_init(&x, 2);
    x.route->rails[0].rail.window_max = x.route->rails[1].rail.window_max = window;
    fake.step = 5000;
    set(&x, 0, 1, 50000);
    set(&x, 1, 0.1, 50000);
    stream(&x, 16, 64 * MiB);
    fast = far_link(&x, 0)->moved;
    slow = far_link(&x, 1)->moved;
    ns = stream(&x, 16, 512 * MiB);
    fast = far_link(&x, 0)->moved - fast;
    slow = far_link(&x, 1)->moved - slow;
    cr_assert(slow * 100 > fast * 7 && slow * 100 < fast * 13, "%.4f", (double)slow / (double)fast);
    cr_assert_lt((double)ns, 512.0 * MiB / 1.1 * 1.05, "%.3f of both together",
                 512.0 * MiB / 1.1 / (double)ns);
    far_fini(&x);
}

Test(schedule, a_rail_of_a_tenth_gets_a_tenth, .timeout = 60)
{
    a_tenth(8 * MiB); /* the prediction sees to it, */
    a_tenth(MiB);     /* and where windows are full, the rule beside it */
}

/* A burst is through about when both rails together could have it through. */
static void tail(uint64_t window)
{
    struct far x;

    far_init(&x, 2);
    x.route->rails[0].rail.window_max = x.route->rails[1].rail.window_max = window;
    fake.step = 2000;
    set(&x, 0, 1, 50000);
    set(&x, 1, 0.1, 50000);
    stream(&x, 16, 64 * MiB);
    for (unsigned i = 0; i < 20; i++) {
        uint64_t ns = stream(&x, 4, 4 * MiB);

        cr_assert_lt((double)ns, 4.0 * MiB * 1.1 + 100000, "burst %u: %.3f ms", i,
                     (double)ns / 1e6);
    }
    far_fini(&x);
}

Test(schedule, a_tail_does_not_wait_for_a_slow_rail, .timeout = 60)
{
    tail(8 * MiB);
    tail(MiB);
}

Test(schedule, a_rail_throttled_under_way_loses_its_share, .timeout = 60)
{
    struct far x;
    uint64_t slow, all;

    far_init(&x, 2);
    fake.step = 5000;
    set(&x, 0, 1, 50000);
    set(&x, 1, 1, 50000);
    stream(&x, 16, 64 * MiB);
    set(&x, 1, 0.05, 50000);
    stream(&x, 16, 128 * MiB); /* finds out */
    slow = far_link(&x, 1)->moved;
    all = slow + far_link(&x, 0)->moved;
    stream(&x, 16, 256 * MiB);
    slow = far_link(&x, 1)->moved - slow;
    all = far_link(&x, 0)->moved + far_link(&x, 1)->moved - all;
    cr_assert_lt((double)slow, 0.08 * (double)all);
    cr_assert_gt((double)slow, 0.02 * (double)all);
    /* and gets it back */
    set(&x, 1, 1, 50000);
    stream(&x, 16, 2048ull * MiB);
    slow = far_link(&x, 1)->moved;
    all = slow + far_link(&x, 0)->moved;
    stream(&x, 16, 256 * MiB);
    slow = far_link(&x, 1)->moved - slow;
    all = far_link(&x, 0)->moved + far_link(&x, 1)->moved - all;
    cr_assert_gt((double)slow, 0.4 * (double)all, "%.3f", (double)slow / (double)all);
    far_fini(&x);
}

/* A rail that was not chosen for long is looked at again: it may have become the better one. */
Test(schedule, unused_rails_are_measured_again, .timeout = 60)
{
    struct far x;
    uint64_t before;
    struct mcs_desc d;

    far_init(&x, 2);
    fake.step = 5000;
    set(&x, 0, 1, 20000);
    set(&x, 1, 1, 5000000);
    for (unsigned i = 0; i < 50; i++) {
        d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 4096);
        fix_push(&x.f, &d);
        fix_end(&x.f, &d);
    }
    cr_assert_gt(far_link(&x, 0)->posted, 40u, "the near one is taken");
    before = far_link(&x, 1)->posted;
    for (unsigned i = 0; i < 200; i++) { /* two seconds */
        uint64_t until = fake.now + 10000000;

        d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 4096);
        fix_push(&x.f, &d);
        fix_end(&x.f, &d);
        while (fake.now < until)
            mcd_engine_turn(x.f.engine);
    }
    cr_assert_geq(far_link(&x, 1)->posted - before, 2u);
    cr_assert_leq(far_link(&x, 1)->posted - before, 8u);
    far_fini(&x);
}

Test(schedule, a_silent_rail_is_left_and_its_work_done_by_the_other, .timeout = 60)
{
    struct far x;
    struct mcs_desc d[16];
    uint64_t begin;

    far_init(&x, 2);
    fake.step = 5000;
    set(&x, 0, 1, 50000);
    set(&x, 1, 1, 50000);
    stream(&x, 16, 64 * MiB);
    for (uint32_t i = 0; i < 16; i++) {
        d[i] = far_desc(&x, MCS_OP_READ, i, 0, 0, MiB);
        fix_push(&x.f, &d[i]);
    }
    far_until_out(&x, 8);
    far_link(&x, 1)->silent = true;
    begin = fake.now;
    for (uint32_t i = 0; i < 16; i++)
        cr_assert_eq(fix_state(fix_end(&x.f, &d[i])), MCS_STATE_COMPLETED);
    cr_assert_lt(fake.now - begin, 300000000u, "%.1f ms", (double)(fake.now - begin) / 1e6);
    cr_assert_eq(x.route->rails[1].rail.reason, MCD_RAIL_SILENT);
    cr_assert_eq(x.route->rails[0].rail.state, MCD_RAIL_UP);
    cr_assert_gt(x.route->moved_over, 0u);
    /* it comes back: rests, gets little, then its share */
    far_link(&x, 1)->silent = false;
    far_adopt(&x, x.route, 1);
    cr_assert_eq(x.route->rails[1].rail.state, MCD_RAIL_SUSPECT);
    stream(&x, 16, 512 * MiB);
    cr_assert_eq(x.route->rails[1].rail.state, MCD_RAIL_UP);
    far_fini(&x);
}

/* Slow is not silent: a path that moves is left alone, however long a slice takes. */
Test(schedule, a_slow_rail_is_not_taken_for_dead, .timeout = 60)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 1);
    fake.step = 50000;
    set(&x, 0, 0.0001, 50000); /* 64 KiB take 0.65 s */
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 256 << 10);
    fix_push(&x.f, &d);
    cr_assert_eq(fix_state(fix_end(&x.f, &d)), MCS_STATE_COMPLETED);
    cr_assert_eq(x.route->rails[0].lost, 0u);
    far_fini(&x);
}

Test(schedule, slices_suit_the_rail, .timeout = 60)
{
    struct far x;
    struct mcs_desc d;

    far_init(&x, 1);
    fake.step = 5000;
    set(&x, 0, 0.02, 50000); /* 80 KiB in 4 ms */
    stream(&x, 8, 32 * MiB);
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, MiB);
    fix_push(&x.f, &d);
    far_until_out(&x, 1);
    cr_assert_geq(fake.last_length, 60u << 10);
    cr_assert_leq(fake.last_length, 100u << 10);
    fix_end(&x.f, &d);
    set(&x, 0, 2, 50000);
    stream(&x, 8, 512 * MiB);
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, MiB);
    fix_push(&x.f, &d);
    far_until_out(&x, 1);
    cr_assert_eq(fake.last_length, 256u << 10, "%llu", (unsigned long long)fake.last_length);
    fix_end(&x.f, &d);
    /* small ones are never cut */
    d = far_desc(&x, MCS_OP_WRITE, 0, 0, 0, 60000);
    fix_push(&x.f, &d);
    far_until_out(&x, 1);
    cr_assert_eq(fake.last_length, 60000u);
    fix_end(&x.f, &d);
    far_fini(&x);
}

Test(schedule, classes_are_strict_and_nobody_starves, .timeout = 60)
{
    struct far x;
    struct mcs_desc d[48];
    unsigned ended[3] = {0, 0, 0};
    bool seen[48] = {false};
    unsigned high_first = 0, total = 0;

    far_init(&x, 1);
    far_link(&x, 0)->max_out = 1;
    set(&x, 0, 1, 0);
    x.route->rails[0].rail.window_max = 1;
    for (uint32_t i = 0; i < 48; i++) {
        d[i] = far_desc(&x, MCS_OP_WRITE, i, 0, 0, 4096);
        d[i].priority = (uint8_t)(2 - i / 16); /* background first, high last */
        fix_push(&x.f, &d[i]);
    }
    while (total < 48) {
        mcd_engine_turn(x.f.engine);
        for (unsigned i = 0; i < 48; i++) {
            if (seen[i] || !far_ended(&x, &d[i]))
                continue;
            seen[i] = true;
            total++;
            ended[d[i].priority]++;
            if (ended[0] == 16 && high_first == 0)
                high_first = total;
        }
    }
    /* what was out before, and one in 16 of others */
    cr_assert_geq(high_first, 16u);
    cr_assert_leq(high_first, 20u);
    far_fini(&x);
}

Test(schedule, background_gets_its_sixteenth, .timeout = 60)
{
    struct far x;
    struct mcs_desc high[8], low;
    unsigned n = 0;

    far_init(&x, 1);
    set(&x, 0, 1, 0);
    x.route->rails[0].rail.window_max = 1;
    for (uint32_t i = 0; i < 8; i++) {
        high[i] = far_desc(&x, MCS_OP_WRITE, i, 0, 0, 4096);
        high[i].priority = MCS_CLASS_HIGH;
        fix_push(&x.f, &high[i]);
    }
    low = far_desc(&x, MCS_OP_WRITE, 8, 0, 0, 4096);
    low.priority = MCS_CLASS_BACKGROUND;
    fix_push(&x.f, &low);
    while (!far_ended(&x, &low)) { /* the high ones never run out */
        mcd_engine_turn(x.f.engine);
        for (uint32_t i = 0; i < 8; i++)
            if (far_ended(&x, &high[i])) {
                high[i] = far_desc(&x, MCS_OP_WRITE, i, 0, 0, 4096);
                high[i].priority = MCS_CLASS_HIGH;
                fix_push(&x.f, &high[i]);
                n++;
            }
    }
    cr_assert_geq(n, 12u);
    cr_assert_leq(n, 20u);
    far_fini(&x);
}

/* Two queues, one with large and one with small tasks, each always full: bytes are shared. */
Test(schedule, lanes_share_by_bytes, .timeout = 60)
{
    struct far x;
    struct far_queue other;
    struct mcs_desc large[8], small[64];

    far_init(&x, 1);
    far_queue_init(&x, &other);
    fake.step = 5000;
    set(&x, 0, 1, 10000);
    x.route->rails[0].rail.window_max = 1 << 20;
    for (uint32_t i = 0; i < 8; i++) {
        large[i] = far_desc(&x, MCS_OP_WRITE, i, 0, 0, MiB);
        fix_push(&x.f, &large[i]);
    }
    for (uint32_t i = 0; i < 60; i++) {
        small[i] = far_desc(&x, MCS_OP_WRITE, i, 0, 0, 16384);
        cr_assert(mcs_ring_push(other.client.ring, &small[i], 1));
    }
    while (x.f.queue.stats->sums.bytes + other.queue.stats->sums.bytes < 400ull * MiB) {
        mcd_engine_turn(x.f.engine);
        for (uint32_t i = 0; i < 8; i++)
            if (far_ended(&x, &large[i])) {
                large[i] = far_desc(&x, MCS_OP_WRITE, i, 0, 0, MiB);
                fix_push(&x.f, &large[i]);
            }
        for (uint32_t i = 0; i < 60; i++) {
            uint64_t word = mcs_slot_peek(&other.client, i);

            if (word >> 32 != small[i].generation || (word & 0x7f) <= MCS_STATE_PENDING)
                continue;
            small[i] = far_desc(&x, MCS_OP_WRITE, i, 0, 0, 16384);
            cr_assert(mcs_ring_push(other.client.ring, &small[i], 1));
        }
    }
    cr_assert_gt(other.queue.stats->sums.bytes * 10, x.f.queue.stats->sums.bytes * 7,
                 "%llu and %llu", (unsigned long long)other.queue.stats->sums.bytes,
                 (unsigned long long)x.f.queue.stats->sums.bytes);
    cr_assert_gt(x.f.queue.stats->sums.bytes * 10, other.queue.stats->sums.bytes * 7);
    far_queue_fini(&x, &other);
    far_fini(&x);
}

/* A queue behind a FENCE saves no turns up: when it may go, the others keep their share. */
Test(schedule, who_cannot_go_saves_nothing_up, .timeout = 60)
{
    enum { SMALL = 60, LARGE = 20 };
    struct far x;
    struct far_queue other;
    struct mcs_desc waits, large[LARGE], small[SMALL];
    uint64_t before = 0;
    bool freed = false;

    far_init(&x, 1);
    far_queue_init(&x, &other);
    fake.step = 5000;
    set(&x, 0, 1, 10000);
    x.route->rails[0].rail.window_max = 128 << 10;
    waits = far_desc(&x, MCS_OP_WRITE, LARGE, 0, FAKE_SIZE, 64); /* for a fresh description */
    waits.deadline_us = 3000000000u;
    fix_push(&x.f, &waits);
    for (uint32_t i = 0; i < LARGE; i++) {
        large[i] = far_desc(&x, MCS_OP_WRITE, i, 0, 0, MiB);
        large[i].deadline_us = 3000000000u;
        large[i].flags = i == 0 ? MCS_DESC_FENCE : 0;
        fix_push(&x.f, &large[i]);
    }
    for (uint32_t i = 0; i < SMALL; i++) {
        small[i] = far_desc(&x, MCS_OP_WRITE, i, 0, 0, 16384);
        cr_assert(mcs_ring_push(other.client.ring, &small[i], 1));
    }
    while (x.f.queue.stats->sums.bytes < 10 * MiB) {
        mcd_engine_turn(x.f.engine);
        for (uint32_t i = 0; i < SMALL; i++) {
            uint64_t word = mcs_slot_peek(&other.client, i);

            if (word >> 32 != small[i].generation || (word & 0x7f) <= MCS_STATE_PENDING)
                continue;
            small[i] = far_desc(&x, MCS_OP_WRITE, i, 0, 0, 16384);
            cr_assert(mcs_ring_push(other.client.ring, &small[i], 1));
        }
        if (x.f.queue.stats->sums.bytes == 0)
            before = other.queue.stats->sums.bytes;
        if (!freed && other.queue.stats->sums.bytes > 100 * MiB) {
            freed = true;
            cr_assert_eq(x.f.queue.stats->sums.bytes, 0u);
            mcs_store_release(&x.remote.fresh, x.remote.wanted); /* partner: mcd_remote_timer() */
        }
    }
    cr_assert_gt(other.queue.stats->sums.bytes - before, 5 * MiB, "%llu",
                 (unsigned long long)(other.queue.stats->sums.bytes - before));
    far_queue_fini(&x, &other);
    far_fini(&x);
}

/* A link whose only connection is about to go takes nothing and says nothing yet. */
Test(schedule, a_link_that_takes_nothing_keeps_nothing_from_the_other, .timeout = 60)
{
    struct far x;
    uint64_t before;

    far_init(&x, 2);
    set(&x, 0, 1, 10000);
    set(&x, 1, 1, 10000);
    far_link(&x, 0)->max_out = 0;
    stream(&x, 4, 16 * MiB);
    cr_assert_eq(far_link(&x, 0)->moved, 0u);
    far_link(&x, 0)->max_out = 1024;
    before = fake.now;
    while (fake.now < before + 20000000)
        stream(&x, 4, 4 * MiB);
    cr_assert_gt(far_link(&x, 0)->moved, 0u, "and is asked again soon");
    far_fini(&x);
}

/* A queue more of another session, whose tasks go the same way. */
struct other {
    struct mcd_session *session;
    struct mcd_queue queue;
    struct mcs_queue client;
    void *memory;
};

static void add_other(struct far *x, struct other *o, struct mcd_tenant *t)
{
    struct mcd_command add = {.kind = MCD_COMMAND_ADD, .queue = &o->queue};
    struct mcs_queue_layout l;

    memset(o, 0, sizeof(*o));
    o->session = calloc(1, sizeof(*o->session));
    o->session->extents[MCD_HANDLE_INDEX(FIX_EXTENT)] = &x->f.local;
    o->session->opens[MCD_HANDLE_INDEX(FAR_SEGMENT)] = &x->open;
    cr_assert_eq(mcs_queue_layout(64, 128, 16, 4096, &l), 0);
    o->memory = aligned_alloc(4096, (l.total_size + 4095) & ~4095ull);
    memset(o->memory, 0, l.total_size);
    o->queue.session = o->session;
    o->queue.engine = x->f.engine;
    o->queue.tenant = t;
    cr_assert_eq(mcs_queue_create(&o->queue.shm, &o->queue.consumer, o->memory, &l, 2, 42, 0), 0);
    cr_assert_eq(mcs_queue_attach(&o->client, o->memory, l.total_size), 0);
    cr_assert_eq(mcd_queue_init(&o->queue), 0);
    mcd_engine_command(x->f.engine, &add);
    while (mcs_load_acquire(&add.done) == 0) /* partner: run_commands() */
        mcd_engine_turn(x->f.engine);
}

static void remove_other(struct far *x, struct other *o)
{
    struct mcd_command remove = {.kind = MCD_COMMAND_REMOVE, .queue = &o->queue};

    mcd_engine_command(x->f.engine, &remove);
    while (mcs_load_acquire(&remove.done) == 0) /* partner: run_commands() */
        mcd_engine_turn(x->f.engine);
    mcd_queue_fini(&o->queue);
    free(o->memory);
    free(o->session);
}

/* Keeps four tasks of each under way for so many turns; bytes[i]: that have ended. */
static void saturate(struct far *x, struct other *o, unsigned n, const uint8_t *classes,
                     unsigned turns, uint64_t *bytes)
{
    static uint32_t generation;
    struct mcs_desc d[8][4];
    bool out[8][4] = {{false}};

    memset(bytes, 0, n * sizeof(*bytes));
    for (unsigned t = 0; t < turns; t++) {
        for (unsigned i = 0; i < n; i++) {
            for (uint32_t k = 0; k < 4; k++) {
                uint64_t word = mcs_slot_peek(&o[i].client, k);

                if (out[i][k] &&
                    (word >> 32 != d[i][k].generation || (word & 0x7f) <= MCS_STATE_PENDING))
                    continue;
                if (out[i][k])
                    bytes[i] += MiB;
                d[i][k] = far_desc(x, MCS_OP_WRITE, k, 0, 0, MiB);
                d[i][k].generation = d[i][k].batch_generation = ++generation;
                d[i][k].priority = classes[i];
                d[i][k].deadline_us = 3000000000u;
                cr_assert(mcs_ring_push(o[i].client.ring, &d[i][k], 1));
                out[i][k] = true;
            }
        }
        mcd_engine_turn(x->f.engine);
    }
}

#ifdef __SANITIZE_THREAD__
#define TURNS 120000u /* one thread, and slow */
#else
#define TURNS 400000u
#endif

/* To another host bytes are shared as on this one: by weight between tenants whatever their classes, between classes
 * inside one, equally between its sessions. */
Test(schedule, lanes_have_their_shares, .timeout = 120)
{
    static const uint8_t mixed[] = {0, 1, 2, 2}, same[] = {1, 1, 1, 1};
    struct mcd_tenant t[3];
    struct other o[4];
    uint64_t bytes[4], all;
    struct far x;

    far_init(&x, 1);
    fake.step = 20000;
    set(&x, 0, 1, 50000);
    for (unsigned i = 0; i < 3; i++) {
        memset(&t[i], 0, sizeof(t[i]));
        t[i].scale = MCD_SHARE_ONE / (1u << i);
    }
    for (unsigned i = 0; i < 4; i++)
        add_other(&x, &o[i], &t[i < 3 ? i : 2]);
    for (unsigned round = 0; round < 2; round++) {
        saturate(&x, o, 4, round == 0 ? mixed : same, TURNS, bytes);
        all = bytes[0] + bytes[1] + bytes[2] + bytes[3];
        cr_assert_gt(all, TURNS / 400ull * MiB);
        for (unsigned i = 0; i < 4; i++) { /* 1:2:4, of which two sessions have half each */
            double share = (double)bytes[i] / (double)all, want = (i == 0 ? 1 : 2) / 7.0;

            cr_assert(share > want * 0.97 && share < want * 1.03, "%u: %.4f of %.4f, round %u", i,
                      share, want, round);
        }
        for (unsigned i = 0; i < 4; i++) {
            remove_other(&x, &o[i]);
            add_other(&x, &o[i], &t[i < 3 ? i : 2]);
        }
    }
    for (unsigned i = 0; i < 4; i++)
        remove_other(&x, &o[i]);
    cr_assert_null(x.route->shares.all);
    far_fini(&x);
}
