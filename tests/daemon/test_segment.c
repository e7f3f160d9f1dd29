/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/segment.h"

static struct mcd_extent extent = {.size = 1 << 20, .address = UINT64_C(0x200000000000)};
static struct mcd_extent next_door = {.size = 1 << 20, .address = UINT64_C(0x200000100000)};

static const struct mcd_buffer *find(struct mcd_segment *s, uint64_t offset, uint64_t length)
{
    return mcd_snapshot_find(s->snapshot, extent.address + offset, length);
}

static int add(struct mcd_segment *s, uint64_t offset, uint64_t length, uint32_t access)
{
    struct mcd_snapshot *old = NULL;
    int res = mcd_segment_add(s, &extent, offset, length, access, &old);

    free(old);
    return res;
}

static int cut(struct mcd_segment *s, uint64_t offset, uint64_t length)
{
    struct mcd_snapshot *old = NULL;
    int res = mcd_segment_cut(s, &extent, offset, length, &old);

    free(old);
    return res;
}

static int take_out(struct mcd_segment *s, uint64_t offset, uint64_t length)
{
    struct mcd_snapshot *old = NULL;
    int res = mcd_segment_remove(s, &extent, offset, length, &old);

    free(old);
    return res;
}

Test(segment, finds_exactly_what_lies_inside_one_buffer)
{
    struct mcd_segment *s = mcd_segment_create(NULL, 0, 1);

    cr_assert_null(find(s, 0, 1));
    for (uint64_t i = 0; i < 20; i++) /* out of order */
        cr_assert_eq(add(s, (i * 7 % 20) * 4096, 2048, MCS_ACCESS_READ), 0);
    for (uint64_t i = 0; i < 20; i++) {
        cr_assert_not_null(find(s, i * 4096, 2048));
        cr_assert_not_null(find(s, i * 4096 + 2047, 1));
        cr_assert_null(find(s, i * 4096 + 2047, 2));
        cr_assert_null(find(s, i * 4096 + 2048, 1));
        cr_assert_null(find(s, i * 4096, UINT64_MAX));
        cr_assert_null(find(s, i * 4096 + 1, UINT64_MAX));
    }
    cr_assert_null(mcd_snapshot_find(s->snapshot, UINT64_MAX, 1));
    cr_assert_null(mcd_snapshot_find(s->snapshot, 0, 1));
    mcd_segment_put(s);
}

Test(segment, same_range_counts_and_other_overlap_is_refused)
{
    struct mcd_segment *s = mcd_segment_create(NULL, 0, 1);

    cr_assert_eq(add(s, 4096, 4096, MCS_ACCESS_READ), 0);
    cr_assert_eq(add(s, 4096, 4096, MCS_ACCESS_READ), 0);
    cr_assert_eq(add(s, 4096, 4096, MCS_ACCESS_WRITE), -EEXIST);
    cr_assert_eq(add(s, 4095, 2, MCS_ACCESS_READ), -EEXIST);
    cr_assert_eq(add(s, 8191, 2, MCS_ACCESS_READ), -EEXIST);
    cr_assert_eq(add(s, 0, 1 << 20, MCS_ACCESS_READ), -EEXIST);
    cr_assert_eq(add(s, 0, 4096, MCS_ACCESS_READ), 0);
    cr_assert_eq(add(s, 8192, 4096, MCS_ACCESS_READ), 0);
    cr_assert_eq(take_out(s, 4096, 4096), 0);
    cr_assert_not_null(find(s, 4096, 4096), "the second publication still holds");
    cr_assert_eq(take_out(s, 4096, 4096), 0);
    cr_assert_null(find(s, 4096, 1));
    cr_assert_eq(take_out(s, 4096, 4096), -ENOENT);
    cr_assert_eq(take_out(s, 0, 100), -ENOENT, "an interior range is no buffer");
    mcd_segment_put(s);
}

Test(segment, neighbours_are_never_merged)
{
    struct mcd_segment *s = mcd_segment_create(NULL, 0, 1);
    struct mcd_snapshot *old;

    cr_assert_eq(add(s, (1 << 20) - 4096, 4096, MCS_ACCESS_READ), 0);
    cr_assert_eq(mcd_segment_add(s, &next_door, 0, 4096, MCS_ACCESS_READ, &old), 0);
    free(old);
    cr_assert_not_null(find(s, (1 << 20) - 1, 1));
    cr_assert_not_null(find(s, 1 << 20, 1));
    cr_assert_null(find(s, (1 << 20) - 1, 2), "a range across two extents");
    mcd_segment_put(s);
}

Test(segment, cut_keeps_what_lies_beside)
{
    struct mcd_segment *s = mcd_segment_create(NULL, 0, 1);

    cr_assert_eq(add(s, 4096, 12288, MCS_ACCESS_READ), 0);
    cr_assert_eq(cut(s, 8192, 100), 0);
    cr_assert_not_null(find(s, 4096, 4096));
    cr_assert_null(find(s, 8191, 2));
    cr_assert_null(find(s, 8192, 1));
    cr_assert_null(find(s, 8291, 1));
    cr_assert_not_null(find(s, 8292, 16384 - 8292));
    cr_assert_eq(s->snapshot->count, 2u);
    cr_assert_eq(cut(s, 0, 5000), 0);
    cr_assert_null(find(s, 4999, 1));
    cr_assert_not_null(find(s, 5000, 1));
    cr_assert_eq(cut(s, 1 << 19, 4096), 0, "nothing there is no error");
    cr_assert_eq(cut(s, 0, 1 << 20), 0);
    cr_assert_eq(s->snapshot->count, 0u);
    mcd_segment_put(s);
}
