/* SPDX-License-Identifier: Apache-2.0 */
/* One tenant does its worst; the others must not pay for it. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "objects.h"
#include "shm/failpoint.h"

static struct world w;

static struct mco_put put_of(char *text, size_t room, uint64_t tenant, const char *name, unsigned i)
{
    struct mco_put p = {.hint.position = MCO_POSITION_NONE};

    snprintf(text, room, "%s%u", name, i);
    p.key = key_of(tenant, text);
    return p;
}

static enum mcs_status put_it(const struct mco_put *p)
{
    struct mco_view v;
    enum mcs_status status = world_begin(&w, p, &v);

    return status == MCS_OK ? mco_seal(w.s, v.object, 0, false, 1) : status;
}

static unsigned count_of(uint64_t tenant)
{
    struct mco_tenant_stats t[16];
    size_t n = mco_tenants(w.s, t, 16);

    for (size_t i = 0; i < n; i++)
        if (t[i].tenant == tenant)
            return (unsigned)t[i].objects;
    return 0;
}

static uint64_t extents_of(uint64_t tenant)
{
    struct mco_tenant_stats t[16];
    size_t n = mco_tenants(w.s, t, 16);

    for (size_t i = 0; i < n; i++)
        if (t[i].tenant == tenant)
            return t[i].extent_bytes;
    return 0;
}

static void fill_with(uint64_t tenant, uint64_t size, unsigned n)
{
    char text[32];

    for (unsigned i = 0; i < n; i++) {
        struct mco_put p = put_of(text, sizeof(text), tenant, "k", i);

        p.size = size;
        cr_assert_eq(put_it(&p), MCS_OK, "%u", i);
    }
}

static void start(uint64_t size, uint64_t extent_size, uint64_t objects)
{
    struct mco_recovered r;

    memset(&w, 0, sizeof(w));
    w.o = world_options(&w, size, extent_size);
    w.o.objects = objects;
    world_open(&w);
    mco_recover(w.s, &r);
}

/* Asks as an engine does, beside an agent's upkeep. */
static enum mcs_status put_patiently(const struct mco_put *p)
{
    enum mcs_status status = MCS_BUSY;

    for (unsigned i = 0; i < 4000 && status == MCS_BUSY; i++) {
        status = put_it(p);
        (void)mco_upkeep(w.s, (uint64_t)1 << 62);
        world_serve(&w);
    }
    return status;
}

Test(object_hostile, extents_of_many_tiny_objects_are_emptied_too)
{
    char text[32];
    struct mco_put p = put_of(text, sizeof(text), 2, "other", 0);

    start(16 * MIB, 8 * MIB, 200000);
    fill_with(1, 128, (unsigned)(16 * MIB / 128));
    cr_assert_eq(extents_of(1), 16 * MIB);
    p.size = MIB;
    cr_assert_eq(put_patiently(&p), MCS_OK);
    cr_assert_eq(extents_of(2), 8 * MIB);
    world_fini(&w);
}

Test(object_hostile, a_long_key_costs_others_nothing)
{
    static char keys[64][MCS_KEY_MAX];
    struct mco_put p = {.hint.position = MCO_POSITION_NONE, .flags = MCS_OBJECT_HARD_PIN};
    enum mcs_status status = MCS_OK;
    unsigned i;

    start(16 * MIB, 8 * MIB, 1000);
    for (i = 0; i < 50; i++) {
        memset(keys[i], 'a' + (int)i / 26, sizeof(keys[i]));
        keys[i][0] = (char)i;
        p.key = mco_key(1, keys[i], MCS_KEY_MAX);
        cr_assert_eq(put_it(&p), MCS_OK, "%u", i);
    }
    fill_with(2, 64, 900);
    for (; i < 64 && status == MCS_OK; i++) {
        keys[i][0] = (char)i;
        p.key = mco_key(1, keys[i], MCS_KEY_MAX);
        status = put_it(&p);
    }
    cr_assert_eq(status, MCS_NO_SPACE, "no room for keys is left");
    cr_assert(count_of(2) >= 890, "%u", count_of(2));
    world_fini(&w);
}

Test(object_hostile, long_keys_make_room_for_long_keys)
{
    static char key[MCS_KEY_MAX];
    struct mco_put p = {.hint.position = MCO_POSITION_NONE};

    start(16 * MIB, 8 * MIB, 1000);
    fill_with(1, 64, 500);
    for (unsigned i = 0; i < 300; i++) {
        memcpy(key, &i, sizeof(i));
        p.key = mco_key(1, key, MCS_KEY_MAX);
        cr_assert_eq(put_it(&p), MCS_OK, "%u", i);
    }
    cr_assert(count_of(1) >= 500, "%u", count_of(1));
    world_fini(&w);
}

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Nothing of a group goes while one of it stays: that costs no look at all of it for each candidate. */
Test(object_hostile, a_large_group_is_looked_at_within_limits, .timeout = 120)
{
    enum mcs_status status = MCS_OK;
    uint64_t before, took;
    struct mco_view v;
    char text[32];
    struct mco_put p;
    unsigned i;

    start(16 * MIB, 8 * MIB, 200000);
    for (i = 0; i < 100000 && status == MCS_OK; i++) {
        p = put_of(text, sizeof(text), 1, "g", i);
        p.size = 128;
        p.group = 77;
        status = put_it(&p);
    }
    cr_assert_eq(status, MCS_LIMIT, "%u", i);
    p = put_of(text, sizeof(text), 1, "last", 0);
    p.size = 16 * MIB - i * 128;
    before = now_ms();
    (void)mco_begin(w.s, &p, &v);
    took = now_ms() - before;
    cr_assert(took < 2000, "%llu ms", (unsigned long long)took);
    world_fini(&w);
}

/* Keys are made that have one hash: each lookup of one would go through all of them, under a lock. */
Test(object_hostile, keys_of_one_hash_are_few)
{
    enum mcs_status status = MCS_OK;
    char text[32];
    unsigned i;

    start(16 * MIB, 8 * MIB, 20000);
    for (i = 0; i < 1000 && status == MCS_OK; i++) {
        struct mco_put p = put_of(text, sizeof(text), 1, "k", i);

        p.key.hash = 0x1234567890;
        p.size = 64;
        status = put_it(&p);
    }
    cr_assert_eq(status, MCS_LIMIT);
    cr_assert(i > 4 && i < 300, "%u", i);
    world_fini(&w);
}

/* One key is put and removed again and again while readers elsewhere have leases: who puts it waits for them. */
Test(object_hostile, lives_that_leave_are_waited_for)
{
    enum mcs_status status = MCS_OK;
    uint64_t now = 1000;
    struct mco_view v;
    char text[32];
    struct mco_put p = put_of(text, sizeof(text), 1, "hot", 0);
    unsigned i;

    start(16 * MIB, 8 * MIB, 20000);
    p.size = 64;
    for (i = 0; i < 1000 && status == MCS_OK; i++) {
        status = put_it(&p);
        if (status != MCS_OK)
            break;
        cr_assert_eq(mco_pin(w.s, &p.key, NULL, now, &v), MCS_OK);
        mco_lease(w.s, v.object, now + 1000);
        mco_unpin(w.s, v.object);
        cr_assert_eq(mco_remove(w.s, &p.key, NULL, true, now), MCS_OK);
    }
    cr_assert_eq(status, MCS_BUSY, "%u", i);
    cr_assert(i > 4 && i < 300, "%u", i);
    mco_upkeep(w.s, now + 1001);
    cr_assert_eq(put_it(&p), MCS_OK);
    world_fini(&w);
}

/* Objects of no bytes cost no space, but records. */
Test(object_hostile, a_limited_tenant_does_not_take_the_whole_table)
{
    enum mcs_status status = MCS_OK;
    struct mco_put p;
    char text[32];
    unsigned i;

    start(16 * MIB, 8 * MIB, 2000);
    mco_tenant_limit(w.s, 1, 8 * MIB);
    for (i = 0; i < 2000 && status == MCS_OK; i++) {
        p = put_of(text, sizeof(text), 1, "pin", i);
        p.flags = MCS_OBJECT_HARD_PIN;
        status = put_it(&p);
    }
    cr_assert_eq(status, MCS_LIMIT, "%u", i);
    cr_assert(i >= 1000 && i <= 1002, "%u", i);
    fill_with(2, 64, 900);
    cr_assert_eq(count_of(2), 900u);
    world_fini(&w);
}

/* And evicts its own before. */
Test(object_hostile, a_limited_tenant_evicts_its_own_records)
{
    start(16 * MIB, 8 * MIB, 2000);
    mco_tenant_limit(w.s, 1, 8 * MIB);
    fill_with(2, 64, 900);
    fill_with(1, 0, 1500);
    cr_assert_eq(count_of(2), 900u);
    cr_assert_eq(count_of(1), 1000u);
    world_fini(&w);
}

/* Lives of one key that somebody reads still: a lookup passes all of them. */
Test(object_hostile, lives_that_are_still_read_are_few)
{
    static struct mco_view held[1000];
    struct mco_key key = key_of(1, "key");
    enum mcs_status status = MCS_OK;
    unsigned n = 0;

    start(16 * MIB, 8 * MIB, 20000);
    while (n < 1000 && status == MCS_OK) {
        status = put(&w, 1, "key", 64, 0, n);
        if (status == MCS_OK) {
            cr_assert_eq(mco_pin(w.s, &key, NULL, 1, &held[n++]), MCS_OK);
            cr_assert_eq(mco_remove(w.s, &key, NULL, true, 1), MCS_OK);
        }
    }
    cr_assert_eq(status, MCS_BUSY); /* it waits for them */
    cr_assert(n > 100 && n < 300, "%u", n);
    while (n-- > 0)
        mco_unpin(w.s, held[n].object);
    cr_assert_eq(put(&w, 1, "key", 64, 0, 1), MCS_OK);
    world_fini(&w);
}

/* ---- many who may not go stand before those who may ---------------------------------------------- */

#define FIRST 10000u
#define ALL (unsigned)(16 * MIB / 256)

static unsigned first_left(void)
{
    unsigned left = 0;

    for (unsigned i = 0; i < FIRST; i++) {
        char text[32];
        struct mco_put p = put_of(text, sizeof(text), 1, "k", i);
        uint8_t status;

        left += (unsigned)mco_exist(w.s, &p.key, NULL, 1, 0, 1, &status, NULL);
    }
    return left;
}

static void put_one_more(void)
{
    char text[32];
    struct mco_put p = put_of(text, sizeof(text), 1, "more", 0);

    p.size = 256;
    for (unsigned i = 0; i < 50; i++) {
        p = put_of(text, sizeof(text), 1, "more", i);
        p.size = 256;
        cr_assert_eq(put_patiently(&p), MCS_OK, "%u", i);
    }
    cr_assert_eq(first_left(), FIRST);
}

Test(object_hostile, leased_ones_are_passed_by_however_many)
{
    start(16 * MIB, 8 * MIB, 200000);
    fill_with(1, 256, ALL);
    for (unsigned i = 0; i < FIRST; i++) {
        char text[32];
        struct mco_put p = put_of(text, sizeof(text), 1, "k", i);
        uint8_t status;

        cr_assert_eq(mco_exist(w.s, &p.key, NULL, 1, UINT64_C(1) << 63, 1, &status, NULL), 1u);
    }
    put_one_more();
    world_fini(&w);
}

Test(object_hostile, softly_pinned_ones_are_passed_by_however_many)
{
    start(16 * MIB, 8 * MIB, 200000);
    for (unsigned i = 0; i < ALL; i++) {
        char text[32];
        struct mco_put p = put_of(text, sizeof(text), 1, "k", i);

        p.size = 256;
        p.soft_pin_until = i < FIRST ? UINT64_C(1) << 55 : 0;
        cr_assert_eq(put_it(&p), MCS_OK, "%u", i);
    }
    for (unsigned i = 0; i < 50; i++) {
        char text[32];
        struct mco_put p = put_of(text, sizeof(text), 1, "more", i);
        struct mco_view v;
        enum mcs_status status = MCS_BUSY;

        p.size = 256;
        for (unsigned k = 0; k < 100 && status == MCS_BUSY; k++)
            status = mco_begin(w.s, &p, &v);
        cr_assert_eq(status, MCS_OK, "%u", i);
        cr_assert_eq(mco_seal(w.s, v.object, 0, false, 1), MCS_OK);
    }
    cr_assert_eq(first_left(), FIRST);
    world_fini(&w);
}

/* ---- with failpoints -------------------------------------------------------------------------------- */

#ifdef MCS_FAILPOINTS

/* The table cannot grow: what is there goes for what comes, and nothing else happens. */
Test(object_hostile, a_table_that_cannot_grow)
{
    char text[32];
    struct mco_put p = put_of(text, sizeof(text), 1, "first", 0);
    struct mco_stats st;

    start(16 * MIB, 8 * MIB, 20000);
    p.size = 64;
    cr_assert_eq(mcs_failpoint_set("objects_grow=fail:ENOMEMx0"), 0);
    cr_assert_eq(put_it(&p), MCS_NO_SPACE, "not even one");
    cr_assert_eq(mcs_failpoint_set("objects_grow=off"), 0);
    cr_assert_eq(put_it(&p), MCS_OK);
    cr_assert_eq(mcs_failpoint_set("objects_grow=fail:ENOSPCx0"), 0);
    fill_with(1, 64, 3000);
    st = stats_of(&w);
    cr_assert_eq(st.objects, 2048u, "%llu", (unsigned long long)st.objects);
    cr_assert_eq(st.evictions, 3001u - 2048u);
    cr_assert_eq(get(&w, 1, "first0", 64, 0), MCS_NOT_FOUND);
    cr_assert_eq(mcs_failpoint_set("objects_grow=off"), 0);
    fill_with(2, 64, 1000);
    cr_assert_eq(count_of(1), 2048u);
    world_fini(&w);
}

/* Died between the two stores of a replacement: the extent that the old one leaves empty is used again. */
Test(object_hostile, an_extent_left_empty_by_recovery_is_used)
{
    char text[32];
    struct mco_put p = put_of(text, sizeof(text), 1, "other", 0);
    struct mco_view v;
    int status = 0;
    pid_t child;

    start(2 * MIB, MIB, 2000);
    for (unsigned i = 0; i < 2; i++) {
        w.wants[w.nwants].tenant = 1;
        w.wants[w.nwants].open = false;
        w.wants[w.nwants++].size = MIB;
        world_serve(&w);
    }
    cr_assert_eq(put(&w, 1, "key", MIB, 0, 1), MCS_OK);
    child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        mcs_failpoint_set("object_sealed=kill");
        put(&w, 1, "key", MIB, MCS_OBJECT_UPSERT, 2);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    cr_assert_eq(world_die(&w, NULL).objects, 1u);
    p.size = MIB;
    cr_assert_eq(mco_begin(w.s, &p, &v), MCS_OK);
    mco_abort(w.s, v.object);
    cr_assert_eq(get(&w, 1, "key", MIB, 2), MCS_OK);
    world_fini(&w);
}

#endif
