/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/stats.c"

#include <criterion/criterion.h>

Test(stats, median_of_odd_and_even_counts)
{
    struct stats_rounds r = {.count = 0};

    cr_assert(isnan(stats_median(&r)));
    stats_add(&r, 9);
    stats_add(&r, 1);
    stats_add(&r, 4);
    cr_assert_float_eq(stats_median(&r), 4, 0);
    stats_add(&r, 6);
    cr_assert_float_eq(stats_median(&r), 5, 0);
}

Test(stats, rounds_beyond_the_room_are_ignored)
{
    struct stats_rounds r = {.count = 0};

    for (unsigned i = 0; i < STATS_ROUNDS_MAX + 10; i++)
        stats_add(&r, i < STATS_ROUNDS_MAX ? 1 : 100);
    cr_assert_eq(r.count, STATS_ROUNDS_MAX);
    cr_assert_float_eq(stats_median(&r), 1, 0);
}

Test(stats, percentiles_by_nearest_rank)
{
    double values[100];
    uint32_t few[] = {30, 10, 20};

    for (int i = 0; i < 100; i++)
        values[i] = 100 - i;
    cr_assert_float_eq(stats_percentile(values, 100, 50), 50, 0);
    cr_assert_float_eq(stats_percentile(values, 100, 99), 99, 0);
    cr_assert_float_eq(stats_percentile(values, 100, 99.9), 100, 0);
    cr_assert_float_eq(stats_percentile(values, 100, 0), 1, 0);
    cr_assert_float_eq(stats_percentile_u32(few, 3, 50), 20, 0);
    cr_assert_float_eq(stats_percentile_u32(few, 3, 99.9), 30, 0);
    cr_assert(isnan(stats_percentile(values, 0, 50)));
}
