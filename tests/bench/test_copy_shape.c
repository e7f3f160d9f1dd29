/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/copy_shape.c"

#include <criterion/criterion.h>
#include <string.h>

Test(copy_shape, pieces_of_every_shape_cover_the_task_once)
{
    static const uint64_t sizes[] = {4u << 10, 64u << 10, 1u << 20, 4u << 20};

    for (int shape = 0; shape < COPY_SHAPES; shape++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            uint64_t size = sizes[i], piece;
            struct copy_plan p;
            uint8_t *seen;

            cr_assert_eq(copy_plan_make((enum copy_shape)shape, size, &p), 0);
            piece = p.pieces[0].length;
            seen = calloc(p.count, 2);
            cr_assert_eq(p.count * piece, size);
            for (size_t k = 0; k < p.count; k++) {
                cr_assert_eq(p.pieces[k].local_offset, k * piece);
                cr_assert_leq(p.pieces[k].remote_offset + piece, p.remote_span);
                cr_assert_eq(seen[p.pieces[k].remote_offset / piece]++, 0);
            }
            free(seen);
            copy_plan_free(&p);
        }
}

Test(copy_shape, a_stride_says_the_same_as_its_pieces)
{
    struct copy_plan p;

    cr_assert_eq(copy_plan_make(COPY_STRIDE, 1u << 20, &p), 0);
    cr_assert_eq(p.stride.count, p.count);
    for (size_t k = 0; k < p.count; k++) {
        cr_assert_eq(p.pieces[k].remote_offset, k * p.stride.remote_stride);
        cr_assert_eq(p.pieces[k].local_offset, k * p.stride.local_stride);
        cr_assert_eq(p.pieces[k].length, p.stride.block);
    }
    cr_assert_eq(p.remote_span, 2u << 20);
    copy_plan_free(&p);
}

Test(copy_shape, the_list_is_shuffled)
{
    struct copy_plan p;
    size_t in_place = 0;

    cr_assert_eq(copy_plan_make(COPY_LIST, 1u << 20, &p), 0);
    for (size_t k = 0; k < p.count; k++)
        in_place += p.pieces[k].remote_offset == p.pieces[k].local_offset;
    cr_assert_lt(in_place, p.count / 8);
    copy_plan_free(&p);
}

Test(copy_shape, sizes_that_are_no_whole_pieces_are_refused)
{
    struct copy_plan p;

    cr_assert_eq(copy_plan_make(COPY_LIST, 5000, &p), -EINVAL);
    cr_assert_eq(copy_plan_make(COPY_STRIDE, 0, &p), -EINVAL);
}
