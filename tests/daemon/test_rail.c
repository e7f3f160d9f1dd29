/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine and the measurements of a rail, told events and time. */
#include <criterion/criterion.h>

#include "daemon/rail.h"

#define MS UINT64_C(1000000)
#define KiB(n) ((uint64_t)(n) << 10)
#define MiB(n) ((uint64_t)(n) << 20)

static struct mcd_rail r;
static uint64_t now;

static void start(void)
{
    now = 1000 * MS;
    mcd_rail_init(&r, 0, MiB(1), MiB(8));
}

static void connect(void)
{
    start();
    mcd_rail_connected(&r, now);
    cr_assert_eq(r.state, MCD_RAIL_UP);
}

/* One slice there and back, alone. */
static void carry(uint64_t length, uint64_t ns)
{
    uint64_t posted = now;

    mcd_rail_posted(&r, length, now);
    now += ns;
    mcd_rail_answered(&r, length, posted, now);
}

Test(rail, states)
{
    start();
    cr_assert_eq(r.state, MCD_RAIL_DOWN);
    cr_assert_eq(r.reason, MCD_RAIL_NEW);
    mcd_rail_connected(&r, now);
    cr_assert_eq(r.state, MCD_RAIL_UP);
    cr_assert_eq(r.reason, MCD_RAIL_FINE);
    mcd_rail_connected(&r, now);
    mcd_rail_lost(&r, now);
    cr_assert_eq(r.state, MCD_RAIL_UP, "one is left");
    mcd_rail_lost(&r, now);
    cr_assert_eq(r.state, MCD_RAIL_DOWN);
    cr_assert_eq(r.reason, MCD_RAIL_LOST);
    mcd_rail_connected(&r, now);
    cr_assert_eq(r.state, MCD_RAIL_PROBATION);
    for (unsigned i = 0; i < MCD_RAIL_TRIAL_SLICES; i++) {
        cr_assert_eq(r.state, MCD_RAIL_PROBATION);
        carry(64, 1000);
    }
    cr_assert_eq(r.state, MCD_RAIL_UP);
    mcd_rail_lost(&r, now);
    mcd_rail_connected(&r, now);
    carry(MCD_RAIL_TRIAL_BYTES, 1000000);
    cr_assert_eq(r.state, MCD_RAIL_UP);
}

Test(rail, the_interface_has_the_last_word)
{
    connect();
    cr_assert(mcd_rail_tell(&r, false, MCD_RAIL_CARRIER, now));
    cr_assert_eq(r.state, MCD_RAIL_DOWN);
    cr_assert_eq(r.reason, MCD_RAIL_CARRIER);
    mcd_rail_lost(&r, now);
    cr_assert_eq(r.reason, MCD_RAIL_CARRIER);
    mcd_rail_connected(&r, now);
    cr_assert_eq(r.state, MCD_RAIL_DOWN, "not while it is gone");
    cr_assert_not(mcd_rail_tell(&r, true, MCD_RAIL_FINE, now));
    cr_assert_eq(r.state, MCD_RAIL_PROBATION);
    mcd_rail_suspect(&r, MCD_RAIL_SILENT, now);
    cr_assert(mcd_rail_tell(&r, false, MCD_RAIL_ADDRESS, now));
    cr_assert_eq(r.state, MCD_RAIL_DOWN);
    cr_assert_eq(r.reason, MCD_RAIL_ADDRESS);
}

Test(rail, a_suspect_rests_longer_each_time_unless_it_is_alone)
{
    connect();
    for (unsigned i = 0; i < 12; i++) {
        uint64_t rest = MCD_RAIL_REST_NS << (i < 7 ? i : 7);

        rest = rest < MCD_RAIL_REST_MAX_NS ? rest : MCD_RAIL_REST_MAX_NS;
        mcd_rail_suspect(&r, MCD_RAIL_SILENT, now);
        cr_assert_eq(r.state, MCD_RAIL_SUSPECT);
        mcd_rail_lost(&r, now);
        cr_assert_eq(r.state, MCD_RAIL_DOWN);
        cr_assert_eq(r.reason, MCD_RAIL_SILENT, "the cause, not what followed");
        mcd_rail_connected(&r, now);
        cr_assert_eq(r.state, MCD_RAIL_SUSPECT);
        mcd_rail_tick(&r, false, now + rest - 1);
        cr_assert_eq(r.state, MCD_RAIL_SUSPECT);
        now += rest;
        mcd_rail_tick(&r, false, now);
        cr_assert_eq(r.state, MCD_RAIL_PROBATION);
        carry(MiB(1), MS);
        cr_assert_eq(r.state, MCD_RAIL_UP);
    }
    now += MCD_RAIL_CALM_NS + 1;
    mcd_rail_suspect(&r, MCD_RAIL_CHECKSUMS, now);
    cr_assert_eq(r.rest_until, now + MCD_RAIL_REST_NS, "long ago is forgotten");
    mcd_rail_tick(&r, true, now);
    cr_assert_eq(r.state, MCD_RAIL_PROBATION);
}

Test(rail, silence)
{
    connect();
    now += 5000 * MS;
    cr_assert_not(mcd_rail_silent(&r, 0, now), "nothing is under way");
    mcd_rail_posted(&r, MiB(1), now);
    cr_assert_not(mcd_rail_silent(&r, 0, now + MCD_RAIL_SILENCE_NS));
    cr_assert(mcd_rail_silent(&r, 0, now + MCD_RAIL_SILENCE_NS + 1));
    now += MCD_RAIL_SILENCE_NS + 1;
    cr_assert_not(mcd_rail_silent(&r, 1, now), "it moves");
    cr_assert_not(mcd_rail_silent(&r, 1, now + MCD_RAIL_SILENCE_NS));
    now += MCD_RAIL_SILENCE_NS / 2;
    mcd_rail_answered(&r, MiB(1), now - 400 * MS, now);
    mcd_rail_posted(&r, MiB(1), now);
    /* requests take 400 ms here: 200 ms of silence mean nothing */
    cr_assert_not(mcd_rail_silent(&r, 1, now + 1600 * MS));
    cr_assert(mcd_rail_silent(&r, 1, now + 1601 * MS));
}

Test(rail, three_damaged_in_a_row)
{
    connect();
    cr_assert_not(mcd_rail_damaged(&r));
    cr_assert_not(mcd_rail_damaged(&r));
    carry(64, 1000);
    cr_assert_not(mcd_rail_damaged(&r));
    cr_assert_not(mcd_rail_damaged(&r));
    cr_assert(mcd_rail_damaged(&r));
}

Test(rail, rate_and_latency_are_told_apart)
{
    connect();
    cr_assert_eq(mcd_rail_slice(&r, now), KiB(256), "a probe");
    for (unsigned i = 0; i < 10; i++) {
        carry(64, 200000);
        now += MS;
    }
    cr_assert_eq(r.rtt_ns, 200000u);
    cr_assert_eq(r.rate, 0);
    for (unsigned i = 0; i < 50; i++) {
        carry(MiB(1), 200000 + 2 * MiB(1)); /* half a byte a ns, and the latency */
        now += MS;
    }
    cr_assert_float_eq(r.rate, 0.5, 0.02, "%f", r.rate);
    cr_assert_float_eq(mcd_rail_finish(&r, MiB(1), now), 2.0 * (double)MiB(1) + 200000, 100000);
    cr_assert_eq(mcd_rail_slice(&r, now), MiB(1));
    /* many at a time */
    for (unsigned i = 0; i < 8; i++)
        mcd_rail_posted(&r, MiB(1), now);
    for (unsigned i = 0; i < 200; i++) {
        now += 4 * MiB(1); /* a quarter */
        mcd_rail_answered(&r, MiB(1), now - 32 * MiB(1), now);
        mcd_rail_posted(&r, MiB(1), now);
    }
    cr_assert_float_eq(r.rate, 0.25, 0.01, "%f", r.rate);
    cr_assert_eq(r.queued, MiB(8));
    cr_assert_eq(mcd_rail_slice(&r, now), (uint64_t)(r.rate * 4e6));
}

Test(rail, a_rail_that_stops_answering_looks_as_slow_as_it_is)
{
    connect();
    for (unsigned i = 0; i < 50; i++)
        carry(MiB(1), MiB(1));
    mcd_rail_posted(&r, MiB(1), now);
    cr_assert_gt(mcd_rail_rate(&r, now + MS), 0.9);
    cr_assert_lt(mcd_rail_rate(&r, now + 100 * MS), 0.03);
    mcd_rail_returned(&r, MiB(1), now + 100 * MS);
    cr_assert_eq(r.out, 0u);
    cr_assert_eq(r.queued, 0u);
}

Test(rail, windows)
{
    connect();
    mcd_rail_posted(&r, KiB(256), now);
    cr_assert(mcd_rail_has_room(&r, KiB(256), now));
    mcd_rail_posted(&r, KiB(256), now);
    cr_assert_not(mcd_rail_has_room(&r, 1, now), "two slices until it was measured");
    mcd_rail_returned(&r, KiB(256), now);
    mcd_rail_returned(&r, KiB(256), now);
    for (unsigned i = 0; i < 50; i++)
        carry(MiB(1), MiB(10)); /* 0.1: two megabytes in 20 ms */
    mcd_rail_posted(&r, KiB(400), now);
    cr_assert(mcd_rail_has_room(&r, KiB(1400), now));
    cr_assert_not(mcd_rail_has_room(&r, KiB(1700), now));
    mcd_rail_returned(&r, KiB(400), now);
    /* what the transport was seen to take, and a little more with each answer */
    mcd_rail_posted(&r, 64, now);
    r.room = 1;
    cr_assert_not(mcd_rail_has_room(&r, 64, now));
    mcd_rail_posted(&r, 64, now);
    mcd_rail_answered(&r, 64, now, now + 1000);
    cr_assert(mcd_rail_has_room(&r, 64, now));
    mcd_rail_suspect(&r, MCD_RAIL_SILENT, now);
    mcd_rail_tick(&r, true, now);
    cr_assert_eq(r.state, MCD_RAIL_PROBATION);
    cr_assert_not(mcd_rail_has_room(&r, 64, now), "one at a time");
}
