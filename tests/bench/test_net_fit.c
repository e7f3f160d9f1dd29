/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/fit.c"

#include <criterion/criterion.h>
#include <string.h>

Test(net_fit, finds_the_line_that_the_points_lie_on)
{
    struct fit_point points[5];
    struct fit_line line;

    for (unsigned i = 0; i < 5; i++) {
        double size = (double)(UINT64_C(4096) << (4 * i));

        points[i] = (struct fit_point){.size = size, .time_us = 37.5 + size / 4e9 * 1e6};
    }
    line = fit_line(points, 5);
    cr_assert_float_eq(line.fixed_us, 37.5, 1e-6);
    cr_assert_float_eq(line.bytes_per_s / 4e9, 1, 1e-9);
}

Test(net_fit, a_large_task_that_is_a_little_off_does_not_move_the_fixed_cost_much)
{
    struct fit_point points[] = {{4096, 50 + 1.024}, {65536, 50 + 16.384}, {67108864, 17500}};
    struct fit_line line = fit_line(points, 3); /* 4 GB/s; the last one is 4 % slow */

    cr_assert(line.fixed_us > 49 && line.fixed_us < 51, "%f", line.fixed_us);
}

Test(net_fit, no_line_through_one_size)
{
    struct fit_point points[] = {{4096, 50}, {4096, 52}};

    cr_assert(isnan(fit_line(points, 0).fixed_us));
    cr_assert(isnan(fit_line(points, 1).fixed_us));
    cr_assert(isnan(fit_line(points, 2).fixed_us));
}

Test(net_fit, gap_ends_where_full_flow_begins)
{
    uint64_t bins[100];

    for (unsigned i = 0; i < 100; i++)
        bins[i] = i < 40 ? 400 : i < 65 ? 0 : 300;
    cr_assert_float_eq(fit_gap(bins, 100, 40, 10, 300, 0.9), 24, 0); /* nine of ten are full */
    cr_assert_float_eq(fit_gap(bins, 100, 40, 10, 300, 1), 25, 0);
    cr_assert_float_eq(fit_gap(bins, 100, 70, 10, 300, 0.9), 0, 0);
    cr_assert(isnan(fit_gap(bins, 100, 40, 10, 400, 0.9)));
    cr_assert(isnan(fit_gap(bins, 60, 40, 10, 300, 0.9)));
    cr_assert(isnan(fit_gap(bins, 100, 95, 10, 300, 0.9)));
}

Test(net_fit, a_stall_that_comes_late_is_a_gap_and_a_hiccup_is_none)
{
    uint64_t bins[1000];

    for (unsigned i = 0; i < 1000; i++)
        bins[i] = 300;
    memset(&bins[300], 0, 15 * sizeof(bins[0])); /* 15 ms, 200 ms after the cut */
    cr_assert_float_eq(fit_gap(bins, 1000, 100, 20, 300, 0.9), 0, 0);
    memset(&bins[300], 0, 150 * sizeof(bins[0]));
    cr_assert(fit_gap(bins, 1000, 100, 20, 300, 0.9) > 340);
}

Test(net_fit, rate_of_a_stretch)
{
    uint64_t bins[] = {1, 2, 3, 4};

    cr_assert_float_eq(fit_rate(bins, 1, 3), 2.5, 0);
    cr_assert(isnan(fit_rate(bins, 3, 3)));
    cr_assert(isnan(fit_rate(bins, 3, 1)));
}

Test(net_fit, still_is_the_longest_run_of_empty_bins)
{
    uint64_t bins[10] = {1, 0, 0, 5, 0, 0, 0, 2, 0, 0};

    cr_assert_eq(fit_still(bins, 0, 10), 3);
    cr_assert_eq(fit_still(bins, 0, 4), 2);
    cr_assert_eq(fit_still(bins, 5, 10), 2);
    cr_assert_eq(fit_still(bins, 3, 4), 0);
    cr_assert_eq(fit_still(bins, 4, 4), 0);
}
