/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that go to a disk, which the test plays, and come back. */
#include <errno.h>
#include <time.h>

#include "tests/store/objects.h"

#define PLACES 4096u
#define JOBS 256u

static struct world w;

static struct disk {
    struct {
        bool used;
        char key[64];
        uint32_t length;
        uint64_t tenant, size;
        uint32_t crc;
        bool summed;
        struct mco_version version;
        uint8_t *data;
    } places[PLACES];
    uint64_t count;
    struct {
        struct mco_view v;
        bool write;
        uint64_t place;
        char key[64];
        uint32_t length;
        uint64_t tenant;
    } jobs[JOBS];
    unsigned njobs, drops;
    int refuses; /* errno that offload and fetch give */
    bool loses;  /* what is to be fetched is lost just then */
} disk;

static int offload(void *context, const struct mco_key *key, const struct mco_view *v)
{
    struct disk *d = context;

    if (d->refuses != 0 || d->njobs == JOBS)
        return d->refuses != 0 ? d->refuses : -EBUSY;
    d->jobs[d->njobs].v = *v;
    d->jobs[d->njobs].write = true;
    d->jobs[d->njobs].length = key->length;
    d->jobs[d->njobs].tenant = key->tenant;
    memcpy(d->jobs[d->njobs++].key, key->bytes, key->length);
    return 0;
}

static int fetch(void *context, const struct mco_key *key, uint64_t place, const struct mco_view *v)
{
    struct disk *d = context;

    (void)key;
    if (d->loses) {
        mco_disk_lost(w.s, false, place);
        return -EBUSY;
    }
    if (d->refuses != 0 || d->njobs == JOBS)
        return d->refuses != 0 ? d->refuses : -EBUSY;
    d->jobs[d->njobs].v = *v;
    d->jobs[d->njobs].write = false;
    d->jobs[d->njobs++].place = place;
    return 0;
}

static void drop(void *context, uint64_t place)
{
    struct disk *d = context;

    cr_assert(d->places[place].used, "a place that is there");
    d->places[place].used = false;
    free(d->places[place].data);
    d->drops++;
}

static const struct mco_tier_ops ops = {offload, fetch, drop};

/* The disk does what it was asked; res: how it goes. */
static void work(int res)
{
    while (disk.njobs > 0) {
        unsigned i = --disk.njobs;
        struct mco_view v = disk.jobs[i].v;
        uint64_t at = disk.jobs[i].place;

        if (!disk.jobs[i].write) {
            if (res == 0 && disk.places[at].used)
                memcpy(v.data, disk.places[at].data, v.size);
            mco_fetched(w.s, v.object, res);
            continue;
        }
        at = disk.count++;
        if (res == 0) {
            cr_assert(at < PLACES);
            disk.places[at].used = true;
            memcpy(disk.places[at].key, disk.jobs[i].key, 64);
            disk.places[at].length = disk.jobs[i].length;
            disk.places[at].tenant = disk.jobs[i].tenant;
            disk.places[at].size = v.size;
            disk.places[at].crc = v.crc;
            disk.places[at].summed = v.summed;
            disk.places[at].version = v.version;
            disk.places[at].data = malloc(v.size);
            memcpy(disk.places[at].data, v.data, v.size);
        }
        mco_offloaded(w.s, v.object, res, at);
    }
}

static void begin_over_disk(uint64_t size, uint64_t extent_size)
{
    struct mco_recovered r;

    memset(&w, 0, sizeof(w));
    w.o = world_options(&w, size, extent_size);
    w.o.tier = &ops;
    w.o.tier_context = &disk;
    world_open(&w);
    mco_recover(w.s, &r);
}

static void begin_with_disk(uint64_t size, uint64_t extent_size)
{
    memset(&disk, 0, sizeof(disk));
    begin_over_disk(size, extent_size);
}

static enum mcs_status put_n(unsigned n, uint64_t size, uint32_t flags)
{
    enum mcs_status status = MCS_BUSY;
    char name[32];

    snprintf(name, sizeof(name), "k%u", n);
    for (unsigned i = 0; i < 50 && status == MCS_BUSY; i++) {
        status = put(&w, 1, name, size, flags, n);
        world_serve(&w);
        if (status == MCS_BUSY)
            work(0);
    }
    return status;
}

static enum mcs_status get_n(unsigned n, uint64_t size)
{
    enum mcs_status status = MCS_BUSY;
    char name[32];

    snprintf(name, sizeof(name), "k%u", n);
    for (unsigned i = 0; i < 50 && status == MCS_BUSY; i++) {
        status = get(&w, 1, name, size, n);
        if (status == MCS_BUSY)
            work(0);
    }
    return status;
}

static uint8_t tier_of(unsigned n)
{
    struct mco_listed o;
    struct mco_key key;
    char name[32];

    snprintf(name, sizeof(name), "k%u", n);
    key = key_of(1, name);
    return mco_stat(w.s, &key, &o) ? o.tier : (uint8_t)MCS_TIER_NONE;
}

Test(object_tier, nothing_is_lost_while_the_disk_has_room)
{
    begin_with_disk(4 * MIB, MIB);
    for (unsigned i = 0; i < 200; i++)
        cr_assert_eq(put_n(i, 64 * KIB, 0), MCS_OK, "%u", i);
    cr_assert_eq(stats_of(&w).objects + stats_of(&w).disk_objects >= 200, 1);
    cr_assert_eq(w.events[MCO_EVICTED], 0u);
    cr_assert(w.events[MCO_TO_DISK] >= 136u);
    for (unsigned i = 0; i < 200; i++)
        cr_assert_eq(get_n(i, 64 * KIB), MCS_OK, "%u", i);
    cr_assert(w.events[MCO_TO_MEMORY] >= 136u);
    for (unsigned i = 0; i < 200; i++) {
        char name[32];
        struct mco_key key;

        snprintf(name, sizeof(name), "k%u", i);
        key = key_of(1, name);
        cr_assert_eq(mco_remove(w.s, &key, NULL, false, 1), MCS_OK);
    }
    work(0);
    cr_assert_eq(stats_of(&w).used, 0u);
    cr_assert_eq(stats_of(&w).disk_objects, 0u);
    for (unsigned i = 0; i < PLACES; i++)
        cr_assert_not(disk.places[i].used, "and the disk has nothing left");
    world_fini(&w);
}

Test(object_tier, a_disk_that_will_not_have_it_loses_it)
{
    begin_with_disk(4 * MIB, MIB);
    for (unsigned i = 0; i < 64; i++)
        cr_assert_eq(put_n(i, 64 * KIB, 0), MCS_OK);
    disk.refuses = -ENOSPC;
    for (unsigned i = 64; i < 100; i++)
        cr_assert_eq(put_n(i, 64 * KIB, 0), MCS_OK);
    cr_assert_eq(w.events[MCO_EVICTED], 36u);
    cr_assert_eq(stats_of(&w).offload_refused, 36u);
    cr_assert_eq(get_n(0, 64 * KIB), MCS_NOT_FOUND);
    world_fini(&w);
}

Test(object_tier, in_the_background_a_busy_disk_loses_nothing)
{
    begin_with_disk(4 * MIB, MIB);
    for (unsigned i = 0; i < 64; i++)
        cr_assert_eq(put_n(i, 64 * KIB, 0), MCS_OK);
    mco_tune(w.s, 50, 25, 1);
    disk.refuses = -EBUSY;
    (void)mco_upkeep(w.s, 1);
    cr_assert_eq(stats_of(&w).objects, 64u);
    disk.refuses = 0;
    for (unsigned i = 0; i < 20; i++) {
        (void)mco_upkeep(w.s, 1);
        work(0);
    }
    cr_assert_eq(stats_of(&w).used, MIB);
    cr_assert_eq(w.events[MCO_EVICTED], 0u);
    cr_assert_eq(w.events[MCO_TO_DISK], 48u);
    cr_assert_eq(tier_of(0), MCS_TIER_DISK);
    cr_assert_eq(tier_of(63), MCS_TIER_MEMORY);
    world_fini(&w);
}

Test(object_tier, what_is_read_meanwhile_stays)
{
    struct mco_key key = key_of(1, "k0");
    struct mco_view v;

    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(put_n(i, 256 * KIB, 0), MCS_OK);
    w.lazy = true;
    cr_assert_eq(put(&w, 1, "k4", 256 * KIB, 0, 4), MCS_BUSY);
    w.lazy = false;
    cr_assert_eq(disk.njobs, 1u);
    cr_assert_eq(mco_pin(w.s, &key, NULL, 1, &v), MCS_OK, "on its way, and still there");
    work(0);
    cr_assert_eq(tier_of(0), MCS_TIER_MEMORY);
    cr_assert_eq(put_n(4, 256 * KIB, 0), MCS_OK);
    cr_assert_eq(tier_of(1), MCS_TIER_DISK);
    cr_assert_eq(v.data[7], (uint8_t)(0 * 31 + 7 * 7));
    mco_unpin(w.s, v.object);
    cr_assert_eq(put_n(5, 256 * KIB, 0), MCS_OK);
    cr_assert(disk.count >= 2);
    world_fini(&w);
}

Test(object_tier, removed_or_replaced_on_the_way)
{
    struct mco_key key = key_of(1, "k0");

    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(put_n(i, 256 * KIB, 0), MCS_OK);
    w.lazy = true;
    cr_assert_eq(put(&w, 1, "k4", 256 * KIB, 0, 4), MCS_BUSY);
    w.lazy = false;
    cr_assert_eq(mco_remove(w.s, &key, NULL, false, 1), MCS_OK);
    work(0);
    cr_assert_eq(disk.drops, 1u, "it is not wanted there either");
    cr_assert_eq(put_n(4, 256 * KIB, 0), MCS_OK);
    cr_assert_eq(put_n(5, 256 * KIB, 0), MCS_OK);
    cr_assert_eq(tier_of(1), MCS_TIER_DISK);
    /* one that comes back, and is removed before it is there */
    cr_assert_eq(get(&w, 1, "k1", 256 * KIB, 1), MCS_BUSY);
    work(0);
    key = key_of(1, "k1");
    cr_assert_eq(mco_remove(w.s, &key, NULL, false, 1) == MCS_OK, 1);
    work(0);
    cr_assert_eq(get_n(1, 256 * KIB), MCS_NOT_FOUND);
    for (unsigned i = 2; i < 6; i++)
        cr_assert_eq(get_n(i, 256 * KIB), MCS_OK);
    cr_assert_eq(put_n(3, 256 * KIB, MCS_OBJECT_UPSERT), MCS_OK);
    cr_assert_eq(get_n(3, 256 * KIB), MCS_OK);
    world_fini(&w);
}

Test(object_tier, what_cannot_be_read_is_gone)
{
    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(put_n(i, 256 * KIB, 0), MCS_OK);
    cr_assert_eq(tier_of(0), MCS_TIER_DISK);
    disk.refuses = -EIO;
    /* memory first has to be made, which a disk that refuses does not hinder */
    cr_assert_eq(get(&w, 1, "k0", 256 * KIB, 0), MCS_BUSY);
    cr_assert_eq(get(&w, 1, "k0", 256 * KIB, 0), MCS_DISK);
    disk.refuses = 0;
    for (unsigned i = 0; i < 20 && disk.njobs == 0; i++)
        cr_assert_eq(get(&w, 1, "k0", 256 * KIB, 0), MCS_BUSY);
    work(-EBADMSG);
    cr_assert_eq(get_n(0, 256 * KIB), MCS_CHECKSUM, "told once");
    cr_assert_eq(get_n(0, 256 * KIB), MCS_NOT_FOUND);
    cr_assert_eq(w.events[MCO_DAMAGED], 1u);
    world_fini(&w);
}

Test(object_tier, the_disk_is_lost)
{
    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 40; i++)
        cr_assert_eq(put_n(i, 128 * KIB, 0), MCS_OK);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(get_n(i, 128 * KIB), MCS_OK, "in both");
    mco_disk_lost(w.s, false, 7);
    cr_assert_eq(get_n(0, 128 * KIB), MCS_OK);
    mco_disk_lost(w.s, true, 0);
    cr_assert_eq(stats_of(&w).disk_objects, 0u);
    cr_assert_eq(get_n(20, 128 * KIB), MCS_NOT_FOUND);
    cr_assert_eq(get_n(39, 128 * KIB), MCS_OK, "in memory alone");
    world_fini(&w);
}

static unsigned find_all(void)
{
    unsigned wanted = 0;

    for (uint64_t i = 0; i < disk.count; i++) {
        struct mco_key key;

        if (!disk.places[i].used)
            continue;
        key = mco_key(disk.places[i].tenant, disk.places[i].key, disk.places[i].length);
        wanted += mco_disk_found(w.s, &key, &disk.places[i].version, disk.places[i].size,
                                 disk.places[i].crc, disk.places[i].summed, i);
    }
    return wanted;
}

Test(object_tier, a_later_life_knows_what_to_expect)
{
    struct mco_key key = key_of(1, "k1"), other = key_of(1, "k2");
    struct mco_recovered r;

    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 20; i++)
        cr_assert_eq(put_n(i, 128 * KIB, 0), MCS_OK);
    cr_assert_eq(tier_of(1), MCS_TIER_DISK);
    cr_assert_eq(mco_remove(w.s, &key, NULL, false, 1), MCS_OK);
    disk.places[disk.count - 1].used = true;
    /* one is on its way to memory */
    for (unsigned i = 0; i < 20 && disk.njobs == 0; i++)
        cr_assert_eq(get(&w, 1, "k0", 128 * KIB, 0), MCS_BUSY);
    disk.njobs = 0;
    r = world_die(&w, NULL);
    cr_assert_eq(r.torn, 0u);
    cr_assert_eq(get(&w, 1, "k0", 128 * KIB, 0), MCS_BUSY, "nobody has said yet that it is there");
    cr_assert_eq(put(&w, 1, "k0", 128 * KIB, 0, 0), MCS_EXISTS);
    cr_assert_eq(put_n(3, 128 * KIB, MCS_OBJECT_UPSERT), MCS_OK);
    cr_assert_eq(mco_remove(w.s, &other, NULL, false, 1), MCS_OK, "and it does not come back");
    cr_assert(find_all() >= 8);
    w.ready = 0;
    cr_assert_eq(get(&w, 1, "k4", 128 * KIB, 4), MCS_BUSY);
    mco_disk_known(w.s);
    cr_assert(w.ready > 0);
    cr_assert_eq(get_n(1, 128 * KIB), MCS_NOT_FOUND);
    cr_assert_eq(get_n(2, 128 * KIB), MCS_NOT_FOUND);
    cr_assert_eq(get_n(0, 128 * KIB), MCS_OK);
    for (unsigned i = 3; i < 20; i++)
        cr_assert_eq(get_n(i, 128 * KIB), MCS_OK, "%u", i);
    world_fini(&w);
}

Test(object_tier, without_a_table_the_disk_decides)
{
    struct mco_version older = {0, 0};
    struct mco_key key = key_of(1, "k0");

    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 20; i++)
        cr_assert_eq(put_n(i, 128 * KIB, 0), MCS_OK);
    world_fini(&w);
    begin_over_disk(MIB, MIB);
    cr_assert_eq(put_n(5, 128 * KIB, 0), MCS_OK);
    cr_assert(find_all() >= 11); /* but k5, which this life has put anew */
    mco_disk_known(w.s);
    cr_assert_not(mco_disk_found(w.s, &key, &older, 128 * KIB, 0, true, 4000), "an older life");
    for (unsigned i = 0; i < 12; i++)
        cr_assert_eq(get_n(i, 128 * KIB), MCS_OK, "%u", i);
    cr_assert_eq(put_n(0, 64 * KIB, MCS_OBJECT_UPSERT), MCS_OK, "its version goes on");
    cr_assert_eq(get_n(0, 64 * KIB), MCS_OK);
    world_fini(&w);
}

Test(object_tier, groups_too)
{
    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 30; i++) {
        struct mco_put p = {.size = 64 * KIB, .group = 1 + i / 4};
        enum mcs_status status = MCS_BUSY;
        struct mco_view v;
        char name[32];

        snprintf(name, sizeof(name), "k%u", i);
        p.key = key_of(1, name);
        for (unsigned k = 0; k < 50 && status == MCS_BUSY; k++) {
            status = mco_begin(w.s, &p, &v);
            world_serve(&w);
            if (status == MCS_BUSY)
                work(0);
        }
        cr_assert_eq(status, MCS_OK, "%u", i);
        fill(v.data, v.size, i);
        cr_assert_eq(mco_seal(w.s, v.object, crc_of(v.data, v.size), true, 1), MCS_OK);
    }
    for (unsigned i = 0; i < 30; i++)
        cr_assert_eq(get_n(i, 64 * KIB), MCS_OK, "%u", i);
    world_fini(&w);
}

/* ---- a disk that is slow, short of something, or gone at the wrong time ------------------------------------------ */

Test(object_tier, in_the_background_a_disk_that_has_no_use_for_it_holds_nothing_up)
{
    static const int errors[] = {-EIO, -ENOSPC};

    for (unsigned k = 0; k < 2; k++) {
        begin_with_disk(4 * MIB, MIB);
        for (unsigned i = 0; i < 64; i++)
            cr_assert_eq(put_n(i, 64 * KIB, 0), MCS_OK);
        mco_tune(w.s, 50, 25, 1);
        disk.refuses = errors[k];
        for (unsigned i = 0; i < 20; i++)
            (void)mco_upkeep(w.s, 1);
        cr_assert_eq(stats_of(&w).used, MIB);
        cr_assert_eq(w.events[MCO_EVICTED], 48u);
        world_fini(&w);
    }
}

static uint64_t seconds_from_now(unsigned n)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)(t.tv_sec + n) * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static char said[512];

__attribute__((format(printf, 2, 3))) static void say(int level, const char *format, ...)
{
    (void)level;
    snprintf(said, sizeof(said), "%s", format);
}

Test(object_tier, a_disk_that_stands_still_is_waited_for_some_seconds)
{
    struct mco_recovered r;
    struct mco_put p = {.size = 64 * KIB};
    enum mcs_status status = MCS_BUSY;
    struct mco_view v;
    char name[32];

    memset(&disk, 0, sizeof(disk));
    memset(&w, 0, sizeof(w));
    w.o = world_options(&w, 4 * MIB, MIB);
    w.o.tier = &ops;
    w.o.tier_context = &disk;
    w.o.log = say;
    world_open(&w);
    mco_recover(w.s, &r);
    for (unsigned i = 0; i < 64; i++)
        cr_assert_eq(put_n(i, 64 * KIB, 0), MCS_OK);
    p.key = key_of(1, "new");
    p.hint.now_ns = seconds_from_now(0);
    for (unsigned i = 0; i < 20; i++)
        cr_assert_eq(mco_begin(w.s, &p, &v), MCS_BUSY, "it may be slow");
    (void)mco_upkeep(w.s, seconds_from_now(0));
    cr_assert_eq(said[0], '\0');
    for (unsigned i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "new%u", i);
        p.key = key_of(1, name);
        p.hint.now_ns = seconds_from_now(10);
        status = mco_begin(w.s, &p, &v);
        cr_assert_eq(status, MCS_OK, "%u", i);
        cr_assert_eq(mco_seal(w.s, v.object, 0, false, 1), MCS_OK);
    }
    cr_assert(disk.njobs <= 20u, "and gets no more of them");
    (void)mco_upkeep(w.s, seconds_from_now(10));
    cr_assert_not_null(strstr(said, "nothing for seconds"), "%s", said);
    work(0);
    p.key = key_of(1, "after");
    p.hint.now_ns = seconds_from_now(0);
    status = mco_begin(w.s, &p, &v);
    if (status == MCS_BUSY)
        cr_assert(disk.njobs > 0, "it is used again");
    else
        mco_abort(w.s, v.object);
    (void)mco_upkeep(w.s, seconds_from_now(0));
    cr_assert_not_null(strstr(said, "again"), "%s", said);
    world_fini(&w);
}

Test(object_tier, what_could_not_be_read_now_is_read_later)
{
    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(put_n(i, 256 * KIB, 0), MCS_OK);
    cr_assert_eq(tier_of(0), MCS_TIER_DISK);
    for (unsigned i = 0; i < 20 && (disk.njobs == 0 || disk.jobs[0].write); i++) {
        work(0);
        cr_assert_eq(get(&w, 1, "k0", 256 * KIB, 0), MCS_BUSY);
    }
    w.ready = 0;
    work(-EBUSY);
    cr_assert_eq(w.ready, 0u, "not at once");
    cr_assert_eq(tier_of(0), MCS_TIER_DISK);
    (void)mco_upkeep(w.s, 1);
    cr_assert_eq(w.ready, 1u, "but soon");
    cr_assert_eq(get_n(0, 256 * KIB), MCS_OK);
    cr_assert_eq(w.events[MCO_DAMAGED], 0u);
    world_fini(&w);
}

Test(object_tier, lost_just_when_it_was_to_be_fetched)
{
    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(put_n(i, 256 * KIB, 0), MCS_OK);
    cr_assert_eq(tier_of(0), MCS_TIER_DISK);
    disk.loses = true;
    for (unsigned i = 0; i < 20 && tier_of(0) == MCS_TIER_DISK; i++) {
        (void)get(&w, 1, "k0", 256 * KIB, 0);
        work(0);
    }
    cr_assert_eq(tier_of(0), MCS_TIER_NONE, "nobody is told that it is there");
    world_fini(&w);
}

/* Who wants back what is on disk waits for leases, as far as nothing else is in the way. */
Test(object_tier, full_of_leases_it_comes_back_later)
{
    uint64_t until = seconds_from_now(0) + UINT64_C(200000000);
    struct mco_key key;
    struct mco_view v;
    char name[32];

    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(put_n(i, 256 * KIB, 0), MCS_OK);
    cr_assert_eq(tier_of(0), MCS_TIER_DISK);
    work(0);
    for (unsigned i = 0; i < 8; i++) {
        snprintf(name, sizeof(name), "k%u", i);
        key = key_of(1, name);
        if (tier_of(i) != MCS_TIER_MEMORY)
            continue;
        cr_assert_eq(mco_pin(w.s, &key, NULL, 1, &v), MCS_OK);
        mco_lease(w.s, v.object, until);
        mco_unpin(w.s, v.object);
    }
    key = key_of(1, "k0");
    w.ready = 0;
    cr_assert_eq(mco_pin(w.s, &key, NULL, until - 1, &v), MCS_BUSY);
    cr_assert_eq(disk.njobs, 0u, "there is no room for it");
    (void)mco_upkeep(w.s, until);
    cr_assert_eq(w.ready, 1u, "who waits tries again");
    for (unsigned i = 0; i < 20 && tier_of(0) == MCS_TIER_DISK; i++) {
        cr_assert_eq(mco_pin(w.s, &key, NULL, until, &v), MCS_BUSY);
        work(0);
    }
    cr_assert_eq(tier_of(0), MCS_TIER_MEMORY);
    world_fini(&w);
}

Test(object_tier, full_of_what_never_goes_it_does_not_come_back)
{
    struct mco_key key = key_of(1, "k0");
    struct mco_view v;

    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(put_n(i, 256 * KIB, 0), MCS_OK);
    for (unsigned i = 4; i < 8; i++)
        cr_assert_eq(put_n(i, 256 * KIB, MCS_OBJECT_HARD_PIN), MCS_OK);
    work(0);
    cr_assert_eq(tier_of(0), MCS_TIER_DISK);
    cr_assert_eq(mco_pin(w.s, &key, NULL, 1, &v), MCS_NO_SPACE);
    world_fini(&w);
}

/* ---- what is not wanted any more ---------------------------------------------------------------------------------- */

Test(object_tier, a_reader_does_not_keep_what_is_on_disk)
{
    struct mco_key key = key_of(1, "k0");
    struct mco_view v;

    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(put_n(i, 256 * KIB, 0), MCS_OK);
    cr_assert_eq(get_n(0, 256 * KIB), MCS_OK, "in both");
    cr_assert_eq(mco_pin(w.s, &key, NULL, 1, &v), MCS_OK);
    disk.drops = 0;
    cr_assert_eq(mco_remove(w.s, &key, NULL, true, 1), MCS_OK);
    cr_assert_eq(disk.drops, 1u, "a later life finds it no more");
    mco_unpin(w.s, v.object);
    cr_assert_eq(disk.drops, 1u);
    world_fini(&w);
}

Test(object_tier, what_this_life_did_is_newer_than_what_the_disk_has_of_another)
{
    struct mco_key key = key_of(1, "k1");
    struct mco_listed o;
    uint64_t before;

    begin_with_disk(MIB, MIB);
    for (unsigned i = 0; i < 20; i++)
        cr_assert_eq(put_n(i, 128 * KIB, 0), MCS_OK);
    cr_assert(tier_of(0) == MCS_TIER_DISK && tier_of(5) == MCS_TIER_DISK);
    cr_assert(mco_stat(w.s, &key, &o));
    before = o.version.sequence;
    world_fini(&w);
    begin_over_disk(MIB, MIB);
    /* also where the clock has been set back */
    for (unsigned i = 0; i < disk.count; i += 2)
        disk.places[i].version.sequence += UINT64_C(1) << 60;
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(put_n(i, 64 * KIB, 0), MCS_OK);
    cr_assert(mco_stat(w.s, &key, &o));
    cr_assert_gt(o.version.sequence, before);
    key = key_of(1, "k2");
    cr_assert_eq(mco_remove(w.s, &key, NULL, false, 1), MCS_OK);
    key = key_of(1, "k3");
    cr_assert_eq(mco_remove(w.s, &key, NULL, false, 1), MCS_NOT_FOUND);
    cr_assert(find_all() >= 6);
    mco_disk_known(w.s);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(get_n(i, 64 * KIB), MCS_OK, "%u", i);
    for (unsigned i = 2; i < 4; i++)
        cr_assert_eq(get_n(i, 128 * KIB), MCS_NOT_FOUND, "%u", i);
    for (unsigned i = 4; i < 10; i++)
        cr_assert_eq(get_n(i, 128 * KIB), MCS_OK, "%u", i);
    world_fini(&w);
}

/* A leader that is started anew without its memory gives smaller tokens than the disk has; what was put under it is newer all the same, and
 * it is to hear of the greater ones. */
Test(object_tier, tokens_that_start_anew)
{
    struct mco_version first = {5, 9}, anew = {1, 1};
    struct mco_put p = {.size = 64 * KIB, .version = first};
    struct mco_key key = key_of(1, "k");
    struct mco_listed o;
    struct mco_view v;

    begin_with_disk(MIB, MIB);
    p.key = key;
    for (unsigned i = 0; i < 2; i++) {
        while (mco_begin(w.s, &p, &v) == MCS_BUSY)
            world_serve(&w);
        memset(v.data, 'a', p.size);
        cr_assert_eq(mco_seal(w.s, v.object, crc32_iscsi(v.data, (int)p.size, 0), false, 1),
                     MCS_OK);
        p.key = key_of(1, "other");
    }
    for (unsigned i = 0; i < 20; i++)
        cr_assert_eq(put_n(i, 128 * KIB, 0), MCS_OK);
    work(0);
    world_fini(&w);

    begin_over_disk(MIB, MIB);
    cr_assert_eq(mco_token(w.s), 0u);
    p.key = key;
    p.version = anew;
    while (mco_begin(w.s, &p, &v) == MCS_BUSY)
        world_serve(&w);
    cr_assert_eq(mco_seal(w.s, v.object, 0, false, 1), MCS_OK);
    cr_assert(find_all() > 0);
    mco_disk_known(w.s);
    cr_assert_eq(mco_token(w.s), 5u, "the next leader's is greater");
    cr_assert(mco_stat(w.s, &key, &o));
    cr_assert(mco_version_compare(&o.version, &anew) == 0, "it was put later");
    /* without a leader, too, what is put is later than what a leader had written */
    p.key = key_of(1, "other");
    p.version = (struct mco_version){0};
    p.flags = MCS_OBJECT_UPSERT;
    while (mco_begin(w.s, &p, &v) == MCS_BUSY) {
        world_serve(&w);
        work(0);
    }
    cr_assert(v.version.token == 5 && v.version.sequence == 10, "%lu.%lu", v.version.token,
              v.version.sequence);
    cr_assert_eq(mco_seal(w.s, v.object, 0, false, 1), MCS_OK);
    world_fini(&w);
}
