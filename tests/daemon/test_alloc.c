/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/alloc.h"

Test(alloc, hands_out_everything_once_and_takes_it_back)
{
    struct mcd_alloc *a = mcd_alloc_create(1 << 20);
    uint64_t at[16384], n = 0;

    while (mcd_alloc_take(a, 64, 64, &at[n]) == 0)
        n++;
    cr_assert_eq(n, 16384u);
    cr_assert_eq(mcd_alloc_used(a), 1u << 20);
    for (uint64_t i = 0; i < n; i += 2)
        cr_assert_eq(mcd_alloc_give(a, at[i]), 0);
    for (uint64_t i = 1; i < n; i += 2)
        cr_assert_eq(mcd_alloc_give(a, at[i]), 0);
    cr_assert_eq(mcd_alloc_used(a), 0u);
    cr_assert_eq(mcd_alloc_count(a), 0u);
    /* all neighbours have merged: the whole is there in one piece */
    cr_assert_eq(mcd_alloc_take(a, 1 << 20, 64, &at[0]), 0);
    cr_assert_eq(at[0], 0u);
    cr_assert_eq(mcd_alloc_take(a, 64, 64, &at[1]), -ENOSPC);
    mcd_alloc_destroy(a);
}

Test(alloc, refuses_what_it_cannot_do)
{
    struct mcd_alloc *a = mcd_alloc_create(4096);
    uint64_t at;

    cr_assert_eq(mcd_alloc_take(a, 0, 64, &at), -ENOSPC);
    cr_assert_eq(mcd_alloc_take(a, 4097, 64, &at), -ENOSPC);
    cr_assert_eq(mcd_alloc_take(a, UINT64_MAX, 64, &at), -ENOSPC);
    cr_assert_eq(mcd_alloc_take(a, UINT64_MAX - 100, 1 << 30, &at), -ENOSPC);
    cr_assert_eq(mcd_alloc_give(a, 0), -ENOENT);
    cr_assert_eq(mcd_alloc_take(a, 100, 64, &at), 0);
    cr_assert_eq(mcd_alloc_size_at(a, at), 128u);
    cr_assert_eq(mcd_alloc_give(a, at + 64), -ENOENT);
    cr_assert_eq(mcd_alloc_give(a, at), 0);
    cr_assert_eq(mcd_alloc_give(a, at), -ENOENT);
    mcd_alloc_destroy(a);
}

/* Random traffic against a map of the space: nothing overlaps, nothing is lost. */
Test(alloc, random_traffic_never_overlaps)
{
    enum { SPACE = 1 << 16, LIVE = 300, STEPS = 60000 };
    static uint8_t map[SPACE / 64];
    struct {
        uint64_t at, size;
    } live[LIVE] = {{0, 0}};
    struct mcd_alloc *a = mcd_alloc_create(SPACE);
    uint64_t used = 0;

    srand(7);
    for (int step = 0; step < STEPS; step++) {
        int i = rand() % LIVE;

        if (live[i].size != 0) {
            for (uint64_t u = 0; u < live[i].size / 64; u++)
                map[live[i].at / 64 + u] = 0;
            cr_assert_eq(mcd_alloc_give(a, live[i].at), 0);
            used -= live[i].size;
            live[i].size = 0;
        } else {
            uint64_t size = 1 + (uint64_t)rand() % 2000, align = UINT64_C(64) << rand() % 6, at;

            if (mcd_alloc_take(a, size, align, &at) != 0)
                continue;
            size = (size + 63) / 64 * 64;
            cr_assert_eq(at % align, 0u);
            cr_assert_leq(at + size, (uint64_t)SPACE);
            cr_assert_eq(mcd_alloc_size_at(a, at), size);
            for (uint64_t u = 0; u < size / 64; u++) {
                cr_assert_eq(map[at / 64 + u], 0, "handed out twice");
                map[at / 64 + u] = 1;
            }
            live[i].at = at;
            live[i].size = size;
            used += size;
        }
        cr_assert_eq(mcd_alloc_used(a), used);
    }
    mcd_alloc_destroy(a);
}

Test(alloc, made_anew_of_what_is_taken)
{
    struct mcd_alloc *a = mcd_alloc_create(4096);
    uint64_t at, first;

    cr_assert_eq(mcd_alloc_take_at(a, 128, 100), 0);
    cr_assert_eq(mcd_alloc_size_at(a, 128), 128u);
    cr_assert_eq(mcd_alloc_take_at(a, 256, 64), 0);
    cr_assert_eq(mcd_alloc_take_at(a, 256, 64), -ENOSPC, "twice");
    cr_assert_eq(mcd_alloc_take_at(a, 192, 64), -ENOSPC, "overlaps");
    cr_assert_eq(mcd_alloc_take_at(a, 0, 64), -ENOSPC, "not in rising order");
    cr_assert_eq(mcd_alloc_take_at(a, 330, 64), -ENOSPC, "not where one could begin");
    cr_assert_eq(mcd_alloc_take_at(a, 1024, 3073), -ENOSPC, "beyond the end");
    cr_assert_eq(mcd_alloc_take_at(a, 8192, 64), -ENOSPC, "outside");
    cr_assert_eq(mcd_alloc_take_at(a, UINT64_MAX - 63, 64), -ENOSPC);
    cr_assert_eq(mcd_alloc_take_at(a, 1024, UINT64_MAX), -ENOSPC);
    cr_assert_eq(mcd_alloc_take_at(a, 1024, 0), -ENOSPC);
    cr_assert_eq(mcd_alloc_take_at(a, 4032, 64), 0, "to the end");
    cr_assert_eq(mcd_alloc_take_at(a, 4032, 64), -ENOSPC);
    cr_assert_eq(mcd_alloc_count(a), 3u);
    cr_assert_eq(mcd_alloc_used(a), 256u);
    /* the gaps are there for others */
    cr_assert_eq(mcd_alloc_take(a, 128, 64, &first), 0);
    cr_assert_eq(first, 0u);
    cr_assert_eq(mcd_alloc_take(a, 3712, 64, &at), 0);
    cr_assert_eq(at, 320u);
    cr_assert_eq(mcd_alloc_take(a, 64, 64, &at), -ENOSPC);
    cr_assert_eq(mcd_alloc_give(a, 0), 0);
    cr_assert_eq(mcd_alloc_give(a, 320), 0);
    cr_assert_eq(mcd_alloc_give(a, 256), 0);
    cr_assert_eq(mcd_alloc_give(a, 4032), 0);
    cr_assert_eq(mcd_alloc_give(a, 128), 0);
    cr_assert_eq(mcd_alloc_take_at(a, 0, 4096), 0, "all has merged");
    mcd_alloc_destroy(a);
}
