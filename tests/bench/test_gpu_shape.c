/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of `mcshm-bench gpu`. */
#include "bench/copy_shape.c"
#include "bench/gpu_shape.c"
#include "bench/options.c"
#include "bench/say.c"

#include <criterion/criterion.h>
#include <string.h>

static unsigned rows_of(const char *text, struct gpu_shape rows[GPU_ROWS_MAX])
{
    uint64_t sizes[GPU_SIZES_MAX];
    unsigned count;

    cr_assert_eq(gpu_parse_sizes(text, sizes, &count), 0, "%s", text);
    return gpu_make_rows(sizes, count, rows);
}

Test(gpu_shape, sizes_that_are_none)
{
    static const char *const bad[] = {"",     ",",      "4",      "4X",     "4K,", "0",
                                      "4K,6", "2K,,4K", "2G",     "4097",   "-4K", "4K 64K",
                                      "1T",   "4KB",    "4K;64K", "4095K,1"};
    static const char many[] = "4K,4K,4K,4K,4K,4K,4K,4K,4K,4K,4K,4K,4K,4K,4K,4K,4K";
    uint64_t sizes[GPU_SIZES_MAX];
    unsigned count;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (strcmp(bad[i], "4K,") != 0) /* a comma at the end is let pass, as by copy */
            cr_expect_eq(gpu_parse_sizes(bad[i], sizes, &count), -EINVAL, "'%s'", bad[i]);
    cr_expect_eq(gpu_parse_sizes(many, sizes, &count), -EINVAL);
    cr_expect_eq(gpu_parse_sizes(many + 3, sizes, &count), 0);
    cr_expect_eq(count, GPU_SIZES_MAX);
    cr_expect_eq(gpu_parse_sizes("4K,1M,1G,8192", sizes, &count), 0);
    cr_expect_eq(count, 4);
    cr_expect_eq(sizes[2], 1u << 30);
    cr_expect_eq(sizes[3], 8192);
}

Test(gpu_shape, each_direction_contiguous_and_in_lists)
{
    struct gpu_shape rows[GPU_ROWS_MAX];
    unsigned n = rows_of("4K,4M,256M", rows), lists = 0;

    cr_assert_eq(n, GPU_OPS * (3 + GPU_LISTS_MAX));
    for (unsigned i = 0; i < n; i++) {
        struct copy_plan plan;
        uint64_t sum = 0, seen = 0;

        cr_assert_eq(gpu_plan_make(&rows[i], &plan), 0);
        cr_assert_eq(plan.count, rows[i].size / rows[i].piece);
        for (size_t k = 0; k < plan.count; k++) {
            cr_assert_eq(plan.pieces[k].length, rows[i].piece);
            cr_assert_leq(plan.pieces[k].remote_offset + rows[i].piece, rows[i].size);
            sum += plan.pieces[k].remote_offset / rows[i].piece;
            seen += plan.pieces[k].local_offset / rows[i].piece;
        }
        cr_assert_eq(sum, plan.count * (plan.count - 1) / 2, "a place twice");
        cr_assert_eq(sum, seen);
        lists += plan.count > 1;
        copy_plan_free(&plan);
    }
    cr_assert_eq(lists, GPU_OPS * GPU_LISTS_MAX);
}

/* A short run has small lists, or none. */
Test(gpu_shape, lists_are_no_larger_than_the_largest_size)
{
    struct gpu_shape rows[GPU_ROWS_MAX];

    cr_assert_eq(rows_of("4K", rows), GPU_OPS);
    cr_assert_eq(rows_of("64K", rows), GPU_OPS * (1 + 2)); /* of 4 and 16 KiB */
    for (unsigned i = 0; i < GPU_OPS * 3; i++)
        cr_assert_leq(rows[i].size, 64u << 10);
    cr_assert_eq(rows_of("20K", rows), GPU_OPS * (1 + 1)); /* 16 KiB would be one piece */
}

Test(gpu_shape, copies_rotate_over_what_caches_do_not_hold)
{
    uint64_t small[] = {4u << 10}, large[] = {4u << 10, 256u << 20};

    cr_assert_eq(gpu_region(small, 1), 64u << 10);
    cr_assert_eq(gpu_region(large, 2), 256u << 20);
    cr_assert_eq(gpu_span(256u << 20, 4u << 10), 64u << 20);
    cr_assert_eq(gpu_span(256u << 20, 256u << 20), 256u << 20);
    cr_assert_eq(gpu_span(256u << 20, 48u << 20), 48u << 20);
    cr_assert_eq(gpu_span(64u << 10, 4u << 10), 64u << 10);
}
