/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/wheel.h"

#define HZ UINT64_C(1048576000) /* a notch is 2^20 ticks */
#define NOTCH (UINT64_C(1) << 20)

struct bell {
    struct mcd_timer timer;
    unsigned rung;
    uint64_t at; /* when it rang last */
    bool again;  /* sets itself anew once */
};

static struct mcd_wheel wheel;
static uint64_t now;

static void ring(void *context, struct mcd_timer *t)
{
    struct bell *b = (struct bell *)t;

    cr_assert_eq(context, &wheel);
    cr_assert_leq(t->due, now, "never early");
    b->rung++;
    b->at = now;
    if (b->again) {
        b->again = false;
        mcd_wheel_set(&wheel, t, now + 3 * NOTCH);
    }
}

static void start(uint64_t at)
{
    now = at;
    mcd_wheel_init(&wheel, HZ, now);
    cr_assert_eq(wheel.shift, 20u);
}

static bool run_to(uint64_t at)
{
    now = at;
    return mcd_wheel_run(&wheel, now, ring, &wheel);
}

Test(wheel, a_timer_fires_once_not_early_and_soon)
{
    struct bell b = {0};

    start(12345);
    cr_assert_eq(mcd_wheel_next(&wheel, now), UINT64_MAX);
    mcd_wheel_set(&wheel, &b.timer, now + 10 * NOTCH);
    cr_assert_leq(mcd_wheel_next(&wheel, now), 11 * NOTCH);
    cr_assert_geq(mcd_wheel_next(&wheel, now), 10 * NOTCH);
    cr_assert_not(run_to(12344 + 10 * NOTCH));
    cr_assert(run_to(12345 + 11 * NOTCH));
    cr_assert_eq(b.rung, 1u);
    cr_assert_not(run_to(12345 + 10000 * NOTCH));
    cr_assert_eq(mcd_wheel_next(&wheel, now), UINT64_MAX);
}

Test(wheel, past_and_far_dues)
{
    struct bell past = {0}, far = {0};

    start(7 * NOTCH + 5);
    mcd_wheel_set(&wheel, &past.timer, 3);
    mcd_wheel_set(&wheel, &far.timer, now + 10 * MCD_WHEEL_NOTCHES * NOTCH);
    run_to(now + NOTCH);
    cr_assert_eq(past.rung, 1u);
    for (unsigned i = 1; i < 10; i++) {
        run_to(now + MCD_WHEEL_NOTCHES * NOTCH);
        cr_assert_eq(far.rung, 0u);
    }
    run_to(now + MCD_WHEEL_NOTCHES * NOTCH + NOTCH);
    cr_assert_eq(far.rung, 1u);
}

Test(wheel, a_timer_may_set_itself_and_others_be_cleared_meanwhile)
{
    struct bell b[3] = {0};

    start(0);
    for (unsigned i = 0; i < 3; i++)
        mcd_wheel_set(&wheel, &b[i].timer, 5 * NOTCH);
    b[0].again = true;
    mcd_wheel_clear(&wheel, &b[1].timer);
    mcd_wheel_clear(&wheel, &b[1].timer);
    cr_assert_eq(wheel.set, 2u);
    run_to(7 * NOTCH);
    cr_assert_eq(b[0].rung, 1u);
    cr_assert_eq(b[1].rung, 0u);
    cr_assert_eq(b[2].rung, 1u);
    run_to(12 * NOTCH);
    cr_assert_eq(b[0].rung, 2u);
    cr_assert_eq(wheel.set, 0u);
}

Test(wheel, random_against_a_list)
{
    static struct bell b[500];
    uint64_t due[500];

    srand(7);
    start(99);
    for (unsigned round = 0; round < 200; round++) {
        uint64_t next = UINT64_MAX, to;

        for (unsigned i = 0; i < 500; i++)
            if (b[i].timer.link == NULL && rand() % 4 == 0) {
                due[i] = now + (uint64_t)(rand() % 20000) * NOTCH / 3;
                mcd_wheel_set(&wheel, &b[i].timer, due[i]);
                b[i].rung = 0;
            } else if (b[i].timer.link != NULL && rand() % 64 == 0) {
                mcd_wheel_clear(&wheel, &b[i].timer);
            }
        for (unsigned i = 0; i < 500; i++)
            if (b[i].timer.link != NULL && due[i] < next)
                next = due[i];
        if (next != UINT64_MAX)
            cr_assert(mcd_wheel_next(&wheel, now) <= (next > now ? next - now : 0) + NOTCH);
        to = now + (uint64_t)(rand() % 3000) * NOTCH;
        run_to(to);
        for (unsigned i = 0; i < 500; i++)
            if (b[i].timer.link != NULL)
                cr_assert_gt(due[i] + 2 * NOTCH, now, "late");
            else
                cr_assert_leq(b[i].rung, 1u);
    }
}
