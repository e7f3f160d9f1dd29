/* SPDX-License-Identifier: Apache-2.0 */
/* Who goes for want of space, and who does not. */
#include "store/object/internal.h"
#include "tests/store/objects.h"

static struct world w;

static enum mcs_status put_n(unsigned n, uint64_t tenant, uint64_t size, uint32_t flags,
                             uint64_t group)
{
    struct mco_put p = {.size = size, .flags = flags, .group = group};
    enum mcs_status status;
    struct mco_view v;
    char name[32];

    snprintf(name, sizeof(name), "k%u", n);
    p.key = key_of(tenant, name);
    p.hint.position = MCO_POSITION_NONE;
    status = world_begin(&w, &p, &v);
    if (status != MCS_OK)
        return status;
    if (size != 0)
        fill(v.data, size, n);
    return mco_seal(w.s, v.object, crc_of(v.data, size), true, 1);
}

static enum mcs_status get_n(unsigned n, uint64_t tenant, uint64_t size)
{
    char name[32];

    snprintf(name, sizeof(name), "k%u", n);
    return get(&w, tenant, name, size, n);
}

/* Without being used for it. */
static bool is_here(unsigned n, uint64_t tenant)
{
    struct mco_listed o;
    struct mco_key key;
    char name[32];

    snprintf(name, sizeof(name), "k%u", n);
    key = key_of(tenant, name);
    return mco_stat(w.s, &key, &o);
}

static struct mco_view pin_n(unsigned n, uint64_t tenant)
{
    struct mco_view v;
    struct mco_key key;
    char name[32];

    snprintf(name, sizeof(name), "k%u", n);
    key = key_of(tenant, name);
    cr_assert_eq(mco_pin(w.s, &key, NULL, 1, &v), MCS_OK);
    return v;
}

static uint32_t pick(uint32_t below)
{
    static uint64_t state = 1;

    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

/* Of sizes of all kinds: what goes is at most twice what is needed, over all. */
Test(object_evict, is_no_more_than_twice_what_is_needed)
{
    uint64_t asked = 0, evicted;

    world_init(&w, 16 * MIB, 4 * MIB);
    for (unsigned i = 0; i < 400; i++)
        (void)put_n(i, 1, 1 + pick(1 << (8 + pick(12))), 0, 0);
    evicted = stats_of(&w).evicted_bytes;
    for (unsigned i = 1000; i < 4000; i++) {
        uint64_t size = 1 + pick(1u << (8 + pick(13)));

        cr_assert_eq(put_n(i, 1, size, 0, 0), MCS_OK, "%u of %llu bytes", i,
                     (unsigned long long)size);
        asked += size;
    }
    evicted = stats_of(&w).evicted_bytes - evicted;
    cr_assert(evicted <= 2 * asked, "%llu for %llu", (unsigned long long)evicted,
              (unsigned long long)asked);
    cr_assert(stats_of(&w).used > 8 * MIB, "memory is used");
    cr_assert_eq(stats_of(&w).no_space, 0u);
    world_fini(&w);
}

static void with_pinned(unsigned percent)
{
    unsigned pinned = 64 * percent / 100;

    world_init(&w, 16 * MIB, 4 * MIB);
    for (unsigned i = 0; i < 64; i++)
        cr_assert_eq(put_n(i, 1, 256 * KIB, i < pinned ? MCS_OBJECT_HARD_PIN : 0, 0), MCS_OK);
    for (unsigned i = 100; i < 1000; i++)
        cr_assert_eq(put_n(i, 1, 256 * KIB, 0, 0), MCS_OK);
    for (unsigned i = 0; i < pinned; i++)
        cr_assert_eq(get_n(i, 1, 256 * KIB), MCS_OK);
    cr_assert_eq(stats_of(&w).no_space, 0u);
    cr_assert_eq(put_n(2000, 1, 2 * MIB, 0, 0), percent < 80 ? MCS_OK : MCS_NO_SPACE,
                 "at once, not after a while");
    for (unsigned i = 0; i < pinned; i++)
        cr_assert_eq(get_n(i, 1, 256 * KIB), MCS_OK);
    world_fini(&w);
}

Test(object_evict, goes_on_beside_what_is_pinned)
{
    with_pinned(0);
    with_pinned(50);
    with_pinned(95);
}

Test(object_evict, nothing_may_go)
{
    struct mco_view v[4];
    struct mco_stats before, after;

    world_init(&w, 4 * MIB, MIB);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(put_n(i, 1, MIB, i == 0 ? MCS_OBJECT_HARD_PIN : 0, 0), MCS_OK);
    for (unsigned i = 1; i < 4; i++)
        v[i] = pin_n(i, 1);
    mco_lease(w.s, v[1].object, UINT64_MAX);
    mco_unpin(w.s, v[1].object);
    mco_pin_in_place(w.s, v[2].object, true);
    mco_pin_in_place(w.s, v[3].object, true);
    before = stats_of(&w);
    for (unsigned i = 10; i < 20; i++)
        cr_assert_eq(put_n(i, 1, 4096, 0, 0), MCS_NO_SPACE);
    after = stats_of(&w);
    cr_assert_eq(after.no_space, before.no_space + 10);
    cr_assert_eq(after.evictions, 0u);
    cr_assert_eq(after.objects, 4u);
    /* a task's pin ends soon: wait for it */
    mco_pin_in_place(w.s, v[3].object, false);
    w.ready = 0;
    cr_assert_eq(put_n(30, 1, 4096, 0, 0), MCS_BUSY);
    w.ready = 0;
    mco_unpin(w.s, v[3].object);
    cr_assert(w.ready > 0, "who was told BUSY is told");
    cr_assert_eq(put_n(30, 1, 4096, 0, 0), MCS_OK);
    world_fini(&w);
}

Test(object_evict, what_is_written_is_waited_for)
{
    struct mco_put p = {.key = key_of(1, "w"), .size = MIB};
    struct mco_view v;

    world_init(&w, MIB, MIB);
    cr_assert_eq(world_begin(&w, &p, &v), MCS_OK);
    cr_assert_eq(put_n(1, 1, 4096, 0, 0), MCS_BUSY);
    w.ready = 0;
    cr_assert_eq(mco_seal(w.s, v.object, 0, false, 1), MCS_OK);
    cr_assert(w.ready > 0);
    cr_assert_eq(put_n(1, 1, 4096, 0, 0), MCS_OK);
    world_fini(&w);
}

Test(object_evict, soft_pins_go_last)
{
    struct mco_put p = {.size = MIB};
    struct mco_view v;

    world_init(&w, 4 * MIB, MIB);
    for (unsigned i = 0; i < 4; i++) {
        char name[8];

        snprintf(name, sizeof(name), "k%u", i);
        p.key = key_of(1, name);
        p.soft_pin_until = i < 2 ? UINT64_C(1) << 50 : 0;
        p.hint.now_ns = 1;
        cr_assert_eq(world_begin(&w, &p, &v), MCS_OK);
        fill(v.data, MIB, i);
        cr_assert_eq(mco_seal(w.s, v.object, crc_of(v.data, MIB), true, 1), MCS_OK);
    }
    p.soft_pin_until = 0;
    for (unsigned i = 10; i < 13; i++) {
        char name[8];

        snprintf(name, sizeof(name), "k%u", i);
        p.key = key_of(1, name);
        cr_assert_eq(world_begin(&w, &p, &v), MCS_OK);
        if (i < 12) /* still being read: only those with soft pins are left */
            mco_pin_again(w.s, v.object);
        cr_assert_eq(mco_seal(w.s, v.object, 0, false, 1), MCS_OK);
        cr_assert_eq(is_here(0, 1), i < 12);
        cr_assert(is_here(1, 1));
    }
    world_fini(&w);
}

Test(object_evict, groups_go_together_or_not_at_all)
{
    struct mco_view v;

    world_init(&w, 4 * MIB, MIB);
    for (unsigned i = 0; i < 16; i++)
        cr_assert_eq(put_n(i, 1, 256 * KIB, 0, i < 4 ? 77 : i < 8 ? 78 : 0), MCS_OK);
    v = pin_n(2, 1);
    cr_assert_eq(put_n(20, 1, 256 * KIB, 0, 0), MCS_OK);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(get_n(i, 1, 256 * KIB), MCS_OK, "one of them is read");
    for (unsigned i = 4; i < 8; i++)
        cr_assert_eq(get_n(i, 1, 256 * KIB), MCS_NOT_FOUND);
    cr_assert_eq(w.events[MCO_EVICTED], 4u);
    mco_unpin(w.s, v.object);
    for (unsigned i = 30; i < 46; i++) {
        unsigned there = 0;

        cr_assert_eq(put_n(i, 1, 256 * KIB, 0, 0), MCS_OK);
        for (unsigned k = 0; k < 4; k++)
            there += is_here(k, 1);
        cr_assert(there == 0 || there == 4, "%u of 4", there);
    }
    world_fini(&w);
}

Test(object_evict, others_copies_go_before_the_last_one)
{
    struct mco_key key = key_of(1, "k1");

    world_init(&w, 4 * MIB, MIB);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(put_n(i, 1, MIB, 0, 0), MCS_OK);
    mco_set_copies(w.s, &key, 2);
    cr_assert_eq(put_n(9, 1, MIB, 0, 0), MCS_OK);
    cr_assert_eq(get_n(0, 1, MIB), MCS_OK);
    cr_assert_eq(get_n(1, 1, MIB), MCS_NOT_FOUND);
    world_fini(&w);
}

Test(object_evict, above_the_high_watermark_in_the_background)
{
    world_init(&w, 8 * MIB, MIB);
    mco_tune(w.s, 75, 50, 1000);
    for (unsigned i = 0; i < 6 * 16; i++)
        cr_assert_eq(put_n(i, 1, 64 * KIB, 0, 0), MCS_OK);
    while (mco_upkeep(w.s, 1))
        continue;
    cr_assert_eq(stats_of(&w).objects, 96u, "not above it");
    for (unsigned i = 100; i < 104; i++)
        cr_assert_eq(put_n(i, 1, 64 * KIB, 0, 0), MCS_OK);
    while (mco_upkeep(w.s, 1))
        continue;
    cr_assert_eq(stats_of(&w).used, 4 * MIB);
    cr_assert_eq(get_n(0, 1, 64 * KIB), MCS_NOT_FOUND);
    cr_assert_eq(get_n(103, 1, 64 * KIB), MCS_OK);
    world_fini(&w);
}

/* ---- tenants ------------------------------------------------------------------------------------- */

static uint64_t extents_of(uint64_t tenant)
{
    struct mco_tenant_stats t[16];
    size_t n = mco_tenants(w.s, t, 16);

    for (size_t i = 0; i < n; i++)
        if (t[i].tenant == tenant)
            return t[i].extent_bytes;
    return 0;
}

Test(object_evict, a_tenant_gets_its_share_from_who_has_more)
{
    world_init(&w, 8 * MIB, MIB);
    for (unsigned i = 0; i < 200; i++)
        cr_assert_eq(put_n(i, 1, 64 * KIB, 0, 0), MCS_OK);
    cr_assert_eq(extents_of(1), 8 * MIB);
    for (unsigned i = 0; i < 300; i++) {
        cr_assert_eq(put_n(i, 2, 64 * KIB, 0, 0), MCS_OK, "%u", i);
        world_serve(&w);
    }
    cr_assert(extents_of(2) >= 3 * MIB && extents_of(2) <= 5 * MIB, "%llu",
              (unsigned long long)extents_of(2));
    for (unsigned i = 300; i < 600; i++) {
        cr_assert_eq(put_n(i, 1, 64 * KIB, 0, 0), MCS_OK);
        world_serve(&w);
    }
    cr_assert(extents_of(2) >= 3 * MIB, "and keeps it");
    cr_assert_eq(get_n(299, 2, 64 * KIB), MCS_OK);
    world_fini(&w);
}

Test(object_evict, memory_goes_from_one_kind_to_the_other)
{
    struct mco_put p = {.key = key_of(1, "in place"), .size = 3 * MIB, .open = true};
    struct mco_view v;

    world_init(&w, 4 * MIB, MIB);
    for (unsigned i = 0; i < 100; i++)
        cr_assert_eq(put_n(i, 1, 64 * KIB, 0, 0), MCS_OK);
    cr_assert_eq(world_begin(&w, &p, &v), MCS_OK, "larger than any extent");
    cr_assert_eq(v.extent, w.extents[w.count - 1].id);
    cr_assert_eq(mco_seal(w.s, v.object, 0, false, 1), MCS_OK);
    for (unsigned i = 0; i < 100; i++)
        cr_assert_eq(put_n(i, 1, 64 * KIB, MCS_OBJECT_UPSERT, 0), MCS_OK);
    world_fini(&w);
}

Test(object_evict, empty_extents_are_given_back_before_anything_goes)
{
    struct mco_put p = {.size = 256 * KIB, .open = true};
    struct mco_view v[8];
    char name[16];

    world_init(&w, 4 * MIB, MIB);
    for (unsigned i = 0; i < 8; i++) {
        snprintf(name, sizeof(name), "o%u", i);
        p.key = key_of(1, name);
        cr_assert_eq(world_begin(&w, &p, &v[i]), MCS_OK);
    }
    for (unsigned i = 0; i < 8; i++)
        mco_abort(w.s, v[i].object);
    for (unsigned i = 0; i < 16; i++)
        cr_assert_eq(put_n(i, 1, 256 * KIB, 0, 0), MCS_OK);
    cr_assert_eq(w.events[MCO_EVICTED], 0u);
    cr_assert_eq(stats_of(&w).objects, 16u);
    world_fini(&w);
}

Test(object_evict, no_more_extents_are_emptied_than_are_needed)
{
    struct mco_put p = {.size = 256 * KIB, .open = true};
    struct mco_view v[8];
    char name[16];

    world_init(&w, 8 * MIB, MIB);
    for (unsigned i = 0; i < 32; i++)
        cr_assert_eq(put_n(i, 1, 256 * KIB, 0, 0), MCS_OK);
    /* many wait before the owner has done anything, */
    for (unsigned i = 0; i < 8; i++) {
        snprintf(name, sizeof(name), "o%u", i);
        p.key = key_of(1, name);
        cr_assert_eq(mco_begin(w.s, &p, &v[i]), MCS_BUSY);
    }
    cr_assert_eq(w.events[MCO_EVICTED], 4u);
    cr_assert_eq(w.nidles, 1u);
    /* and memory that it gave away does not come back at once */
    w.fails = true;
    for (unsigned k = 0; k < 5; k++) {
        world_serve(&w);
        for (unsigned i = 0; i < 8; i++) {
            snprintf(name, sizeof(name), "o%u", i);
            p.key = key_of(1, name);
            cr_assert_eq(mco_begin(w.s, &p, &v[i]), MCS_BUSY);
        }
    }
    cr_assert_eq(w.events[MCO_EVICTED], 4u);
    w.fails = false;
    p.hint.now_ns = UINT64_C(1) << 60; /* later */
    for (unsigned i = 0; i < 8; i++) {
        snprintf(name, sizeof(name), "o%u", i);
        p.key = key_of(1, name);
        cr_assert_eq(world_begin(&w, &p, &v[i]), MCS_OK, "%u", i);
    }
    cr_assert(w.events[MCO_EVICTED] <= 12u, "%u", w.events[MCO_EVICTED]);
    world_fini(&w);
}

Test(object_evict, a_limit_holds_for_one_tenant)
{
    world_init(&w, 16 * MIB, MIB);
    mco_tenant_limit(w.s, 1, 2 * MIB);
    for (unsigned i = 0; i < 100; i++)
        cr_assert_eq(put_n(i, 1, 64 * KIB, 0, 0), MCS_OK);
    cr_assert_eq(stats_of(&w).used, 2 * MIB);
    cr_assert_eq(put_n(200, 1, 2 * MIB + 1, 0, 0), MCS_LIMIT);
    for (unsigned i = 300; i < 332; i++)
        cr_assert_eq(put_n(i, 1, 64 * KIB, MCS_OBJECT_HARD_PIN, 0), MCS_OK);
    cr_assert_eq(put_n(400, 1, 64 * KIB, 0, 0), MCS_LIMIT);
    cr_assert_eq(put_n(1, 2, 4 * MIB, 0, 0), MCS_OK, "others do not feel it");
    world_fini(&w);
}

Test(object_evict, a_smaller_store_in_the_next_life)
{
    struct mco_recovered r;

    world_init(&w, 8 * MIB, MIB);
    for (unsigned i = 0; i < 100; i++)
        cr_assert_eq(put_n(i, 1, 64 * KIB, 0, 0), MCS_OK);
    w.o.size = 4 * MIB;
    r = world_die(&w, NULL);
    cr_assert_eq(r.objects, 100u);
    for (unsigned i = 0; i < 40; i++) {
        (void)mco_upkeep(w.s, 1);
        world_serve(&w);
    }
    cr_assert_eq(stats_of(&w).extent_bytes, 4 * MIB);
    cr_assert_eq(put_n(200, 1, 64 * KIB, 0, 0), MCS_OK);
    cr_assert_eq(stats_of(&w).extent_bytes, 4 * MIB);
    world_fini(&w);
}

Test(object_evict, where_no_extent_can_be_had)
{
    uint64_t until = mco_clock() + UINT64_C(60000000000);
    enum mcs_status status;

    world_init(&w, 8 * MIB, MIB);
    cr_assert_eq(put_n(0, 1, 64 * KIB, 0, 0), MCS_OK);
    w.fails = true;
    for (unsigned i = 1; i < 40; i++)
        cr_assert_eq(put_n(i, 1, 64 * KIB, 0, 0), MCS_OK, "with what is there");
    cr_assert_eq(put_n(0, 2, 64 * KIB, 0, 0), MCS_BUSY, "the other tenant's is on its way");
    w.fails = false;
    do /* for some milliseconds it is not asked for again */
        status = put_n(0, 2, 64 * KIB, 0, 0);
    while (status == MCS_BUSY && mco_clock() < until);
    cr_assert_eq(status, MCS_OK);
    world_fini(&w);
}

/* ---- the table ------------------------------------------------------------------------------------- */

static uint64_t resident(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    cr_assert_eq(fscanf(f, "%*u %lu", &pages), 1);
    fclose(f);
    return pages * 4096u;
}

Test(object_evict, masses_of_tiny_objects_have_a_limit, .timeout = 120)
{
    uint64_t first = 0, now;
    struct mco_stats st;

    world_init(&w, 64 * MIB, 16 * MIB);
    for (unsigned i = 0; i < 200000; i++) {
        cr_assert_eq(put_n(i, 1, 1, 0, 0), MCS_OK);
        if (i == 40000)
            first = resident();
    }
    now = resident();
    st = stats_of(&w);
    cr_assert_eq(st.objects, 20000u);
    cr_assert_eq(get_n(199999, 1, 1), MCS_OK);
    cr_assert_eq(get_n(180000, 1, 1), MCS_OK);
    cr_assert_eq(get_n(179999, 1, 1), MCS_NOT_FOUND, "the oldest went");
    cr_assert(now <= first + first / 5, "%llu, it was %llu", (unsigned long long)now,
              (unsigned long long)first);
    cr_assert(st.table_bytes + st.index_bytes < 20000u * 270, "%llu + %llu",
              (unsigned long long)st.table_bytes, (unsigned long long)st.index_bytes);
    world_fini(&w);
}
