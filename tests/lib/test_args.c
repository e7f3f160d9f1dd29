/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "lib/args.h"

TestSuite(args, .timeout = 5);

Test(args, reclaims_in_order_whatever_the_order_of_freeing)
{
    struct mcl_args a;
    uint32_t at[4], oldest;

    cr_assert_eq(mcl_args_init(&a, 8), 0);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert(mcl_args_take(&a, 2, i, &at[i]));
        cr_assert_eq(at[i], 2 * i);
    }
    cr_assert_not(mcl_args_take(&a, 1, 9, &oldest), "the area is full");
    mcl_args_free(&a, at[1]);
    cr_assert_not(mcl_args_take(&a, 1, 9, &oldest), "the oldest chunk still holds its place");
    cr_assert_eq(mcl_args_oldest(&a, &oldest), 0);
    mcl_args_free(&a, at[0]);
    cr_assert_eq(mcl_args_oldest(&a, &oldest), 2);
    cr_assert(mcl_args_take(&a, 4, 9, &oldest));
    cr_assert_eq(oldest, 0);
    mcl_args_fini(&a);
}

Test(args, chunk_never_wraps)
{
    struct mcl_args a;
    uint32_t first, second, third;

    cr_assert_eq(mcl_args_init(&a, 8), 0);
    cr_assert(mcl_args_take(&a, 3, 0, &first));
    cr_assert(mcl_args_take(&a, 3, 1, &second));
    mcl_args_free(&a, first);
    cr_assert_not(mcl_args_take(&a, 4, 2, &third), "3 units at the start, 2 at the end");
    cr_assert(mcl_args_take(&a, 3, 2, &third));
    cr_assert_eq(third, 0);
    cr_assert_not(mcl_args_take(&a, 1, 3, &first));
    mcl_args_free(&a, second);
    mcl_args_free(&a, third);
    cr_assert_eq(a.used, 0);
    cr_assert(mcl_args_take(&a, 8, 0, &first), "the whole area in one chunk");
    mcl_args_fini(&a);
}

Test(args, newest_goes_back_as_if_never_taken)
{
    struct mcl_args a;
    uint32_t first, at;

    cr_assert_eq(mcl_args_init(&a, 8), 0);
    cr_assert(mcl_args_take(&a, 5, 0, &first));
    for (int i = 0; i < 100; i++) {
        cr_assert(mcl_args_take(&a, 3, 1, &at));
        mcl_args_free(&a, at);
    }
    cr_assert_eq(a.used, 5);
    mcl_args_fini(&a);
}

Test(args, empty_area_gives_nothing)
{
    struct mcl_args a;
    uint32_t at;

    cr_assert_eq(mcl_args_init(&a, 0), 0);
    cr_assert_not(mcl_args_take(&a, 1, 0, &at));
    cr_assert_eq(mcl_args_oldest(&a, &at), MCL_ARGS_NO_OWNER);
    mcl_args_fini(&a);
}

/* Against a map of units: no two chunks share one, and the area empties out in the end. */
Test(args, random_use_keeps_chunks_apart)
{
    enum { UNITS = 64, CHUNKS = 32 };
    struct mcl_args a;
    struct {
        uint32_t at, units;
    } chunks[CHUNKS] = {0};
    bool taken[UNITS] = {false};
    unsigned seed = 1;

    cr_assert_eq(mcl_args_init(&a, UNITS), 0);
    for (int round = 0; round < 100000; round++) {
        uint32_t k = (uint32_t)rand_r(&seed) % CHUNKS;

        if (chunks[k].units != 0) {
            for (uint32_t i = 0; i < chunks[k].units; i++)
                taken[chunks[k].at + i] = false;
            mcl_args_free(&a, chunks[k].at);
            chunks[k].units = 0;
            continue;
        }
        uint32_t want = 1 + (uint32_t)rand_r(&seed) % 9;

        if (!mcl_args_take(&a, want, k, &chunks[k].at))
            continue;
        chunks[k].units = want;
        cr_assert_leq(chunks[k].at + want, UNITS);
        for (uint32_t i = 0; i < want; i++) {
            cr_assert_not(taken[chunks[k].at + i]);
            taken[chunks[k].at + i] = true;
        }
    }
    for (uint32_t k = 0; k < CHUNKS; k++) {
        if (chunks[k].units != 0)
            mcl_args_free(&a, chunks[k].at);
    }
    cr_assert_eq(a.used, 0);
    mcl_args_fini(&a);
}
