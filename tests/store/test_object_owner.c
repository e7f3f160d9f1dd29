/* SPDX-License-Identifier: Apache-2.0 */
/* An owner that is slow to bring extents, or to take them back: those who wait do without, where that can be. */
#include <time.h>

#include "objects.h"

static uint64_t clock_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* One put, of what lies `ms` ahead; nobody serves. */
static enum mcs_status later(struct world *w, const char *key, uint64_t size, uint64_t ms)
{
    struct mco_put p = {.key = key_of(1, key), .size = size};
    struct mco_view v;
    enum mcs_status status;

    p.hint.position = MCO_POSITION_NONE;
    p.hint.now_ns = clock_now() + ms * UINT64_C(1000000);
    status = mco_begin(w->s, &p, &v);
    if (status == MCS_OK)
        status = mco_seal(w->s, v.object, 0, false, 1);
    return status;
}

/* Full of 15 objects or so, in one of its extents. */
static void fill_one(struct world *w, uint32_t flags)
{
    char key[16];

    for (unsigned i = 0; i < 15; i++) {
        snprintf(key, sizeof(key), "old-%u", i);
        cr_assert_eq(put(w, 1, key, 64 * KIB, flags, i), MCS_OK);
    }
}

Test(object_owner, that_brings_nothing)
{
    static struct world w;

    world_init(&w, 4 * MIB, MIB);
    cr_assert_eq(later(&w, "first", 64 * KIB, 0), MCS_BUSY);
    cr_assert_eq(later(&w, "first", 64 * KIB, 10000), MCS_BUSY, "there is nothing else to be had");
    world_serve(&w);
    fill_one(&w, 0);
    w.nwants = 0;
    cr_assert_eq(later(&w, "new", 128 * KIB, 0), MCS_BUSY);
    cr_assert_eq(w.nwants, 1u);
    cr_assert_eq(later(&w, "new", 128 * KIB, 500), MCS_BUSY);
    cr_assert_eq(later(&w, "new", 128 * KIB, 3000), MCS_OK, "others have gone for it");
    cr_assert_eq(w.nwants, 1u, "it is not asked for twice");
    world_serve(&w);
    cr_assert_eq(stats_of(&w).extents, 2u);
    world_fini(&w);
}

Test(object_owner, that_takes_nothing_back)
{
    static struct world w;

    for (unsigned pinned = 0; pinned < 2; pinned++) {
        struct mco_put p = {.key = key_of(1, "c"), .size = 100, .open = true};
        struct mco_view v;

        world_init(&w, 2 * MIB, MIB);
        cr_assert_eq(world_begin(&w, &p, &v), MCS_OK);
        fill_one(&w, pinned ? MCS_OBJECT_HARD_PIN : 0);
        mco_abort(w.s, v.object);
        cr_assert_eq(later(&w, "new", 128 * KIB, 0), MCS_BUSY);
        cr_assert_eq(w.nidles, 1u, "the open one is to go");
        cr_assert_eq(later(&w, "new", 128 * KIB, 3000), pinned ? MCS_BUSY : MCS_OK);
        world_serve(&w);
        cr_assert_eq(stats_of(&w).extents, 1u);
        world_fini(&w);
    }
}
