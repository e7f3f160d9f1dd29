/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "daemon/pool_place.h"

#define STEP MCD_POOL_PLACE_STEP
#define N 8u
#define BASE (MCD_POOL_PLACE_END - N * STEP)
#define A UINT64_C(1)         /* who came first */
#define B (UINT64_C(1) << 40) /* after all that happens here */

static struct mcd_pool_places *p;

static void begin(void)
{
    p = mcd_pool_places_create(BASE);
    cr_assert_not_null(p);
}

static void end(void)
{
    mcd_pool_places_destroy(p);
}

TestSuite(pool_place, .init = begin, .fini = end, .timeout = 10);

Test(pool_place, what_is_taken_is_nobody_elses)
{
    uint64_t at;

    mcd_pool_places_take(p, BASE, 3 * STEP);
    mcd_pool_places_take(p, BASE + 4 * STEP, 1);
    at = mcd_pool_places_again(p, 2 * STEP, B, 0);
    cr_assert_eq(at, BASE + 5 * STEP);
    cr_assert_eq(mcd_pool_places_again(p, 2 * STEP, B, 0), 0, "nothing goes over the end");
    cr_assert_eq(mcd_pool_places_again(p, STEP, B, 0), BASE + 7 * STEP);
    cr_assert_eq(mcd_pool_places_again(p, 1, B, 0), BASE + 3 * STEP);
    cr_assert_eq(mcd_pool_places_again(p, 1, B, 0), 0);
    cr_assert_eq(mcd_pool_places_again(p, (N + 1) * STEP, B, 0), 0);
    cr_assert_eq(mcd_pool_places_again(p, UINT64_MAX, B, 0), 0);
    cr_assert_eq(mcd_pool_places_again(p, 0, B, 0), 0);
}

Test(pool_place, nobody_gets_what_was_left_since_it_came_and_what_was_left_last_comes_last)
{
    uint64_t came;

    cr_assert_eq(mcd_pool_places_now(p), A);
    mcd_pool_places_take(p, BASE, N * STEP);
    mcd_pool_places_leave(p, BASE + 2 * STEP, STEP, MCD_POOL_PLACE_NAMED);
    came = mcd_pool_places_now(p);
    cr_assert_eq(mcd_pool_places_again(p, STEP, A, 0), 0);
    cr_assert_eq(mcd_pool_places_again(p, STEP, 0, 0), 0, "nor who came nobody knows when");
    cr_assert_eq(mcd_pool_places_again(p, STEP, came, 0), BASE + 2 * STEP);
    mcd_pool_places_leave(p, BASE + 2 * STEP, STEP, MCD_POOL_PLACE_NAMED);
    mcd_pool_places_leave(p, BASE + 4 * STEP, STEP, MCD_POOL_PLACE_NAMED);
    mcd_pool_places_leave(p, BASE, STEP, MCD_POOL_PLACE_NAMED);
    cr_assert_eq(mcd_pool_places_again(p, STEP, came, 0), 0);
    came = mcd_pool_places_now(p);
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(mcd_pool_places_again(p, STEP, came, 0), BASE + (i + 2) % 3 * 2 * STEP, "%u",
                     i);
}

Test(pool_place, what_came_to_nothing_is_no_more_anybodys_than_it_was)
{
    mcd_pool_places_take(p, BASE, N * STEP);
    mcd_pool_places_leave(p, BASE, STEP, MCD_POOL_PLACE_NAMED);
    cr_assert_eq(mcd_pool_places_again(p, STEP, B, 0), BASE);
    mcd_pool_places_leave(p, BASE, STEP, MCD_POOL_PLACE_UNNAMED);
    cr_assert_eq(mcd_pool_places_again(p, STEP, A, 0), 0, "A may have named it");
    cr_assert_eq(mcd_pool_places_again(p, STEP, B, 0), BASE);
}

Test(pool_place, neighbours_that_are_left_are_one_place)
{
    mcd_pool_places_take(p, BASE, N * STEP);
    mcd_pool_places_leave(p, BASE + 5 * STEP, STEP, MCD_POOL_PLACE_NAMED);
    mcd_pool_places_leave(p, BASE + 4 * STEP, STEP, MCD_POOL_PLACE_UNNAMED);
    mcd_pool_places_leave(p, BASE + 6 * STEP, 1, MCD_POOL_PLACE_NAMED);
    cr_assert_eq(mcd_pool_places_again(p, 3 * STEP, B, 0), BASE + 4 * STEP);
}

Test(pool_place, what_nobody_has_heard_of_is_as_good_as_new)
{
    mcd_pool_places_take(p, BASE, N * STEP);
    for (unsigned i = 0; i < 3; i++) {
        mcd_pool_places_leave(p, BASE, N * STEP, MCD_POOL_PLACE_UNNAMED);
        cr_assert_eq(mcd_pool_places_again(p, N * STEP, A, 0), BASE);
    }
    mcd_pool_places_leave(p, BASE, N * STEP, MCD_POOL_PLACE_UNNAMED);
    cr_assert_eq(mcd_pool_places_again(p, N * STEP, 0, 0), BASE);
}

Test(pool_place, what_an_earlier_agent_gave_is_only_for_those_who_came_later)
{
    mcd_pool_places_take(p, BASE + 5 * STEP, STEP);
    cr_assert_eq(mcd_pool_places_again(p, 3 * STEP, 0, BASE + 6 * STEP), 0);
    cr_assert_eq(mcd_pool_places_again(p, 2 * STEP, 0, BASE + 6 * STEP), BASE + 6 * STEP);
    cr_assert_eq(mcd_pool_places_again(p, 5 * STEP, B, BASE + 6 * STEP), BASE);
}

Test(pool_place, what_is_spent_is_nobodys)
{
    mcd_pool_places_take(p, BASE, N * STEP);
    mcd_pool_places_leave(p, BASE, N * STEP, MCD_POOL_PLACE_SPENT);
    cr_assert_eq(mcd_pool_places_again(p, 1, B, 0), 0);
}

Test(pool_place, what_lies_outside_is_no_matter)
{
    mcd_pool_places_take(p, BASE - STEP, N * STEP);
    mcd_pool_places_take(p, MCD_POOL_PLACE_END, STEP);
    mcd_pool_places_take(p, MCD_POOL_PLACE_END - STEP, UINT64_MAX);
    mcd_pool_places_leave(p, UINT64_MAX, UINT64_MAX, MCD_POOL_PLACE_SPENT);
    mcd_pool_places_take(NULL, BASE, STEP);
    cr_assert_eq(mcd_pool_places_again(NULL, STEP, A, 0), 0);
    cr_assert_eq(mcd_pool_places_again(p, (N - 1) * STEP, B, 0), BASE);
}
