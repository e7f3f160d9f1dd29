/* SPDX-License-Identifier: Apache-2.0 */
/* An object's life in the store. */
#include "tests/store/objects.h"

static struct world w;

Test(object, is_put_found_and_removed)
{
    struct mco_key key = key_of(7, "a"), other = key_of(8, "a");
    struct mco_listed o;
    uint8_t status;

    world_init(&w, 4 * MIB, MIB);
    cr_assert_eq(get(&w, 7, "a", 100, 1), MCS_NOT_FOUND);
    cr_assert_eq(put(&w, 7, "a", 100, 0, 1), MCS_OK);
    cr_assert_eq(get(&w, 7, "a", 100, 1), MCS_OK);
    cr_assert_eq(mco_exist(w.s, &key, NULL, 1, 0, 1, &status, NULL), 1u);
    cr_assert_eq(mco_exist(w.s, &other, NULL, 1, 0, 1, &status, NULL), 0u, "another tenant's name");
    cr_assert_eq(status, MCS_NOT_FOUND);
    cr_assert_eq(put(&w, 7, "a", 100, 0, 2), MCS_EXISTS);
    cr_assert_eq(get(&w, 7, "a", 100, 1), MCS_OK, "nothing was written");
    cr_assert(mco_stat(w.s, &key, &o));
    cr_assert_eq(o.size, 100u);
    cr_assert_eq(mco_remove(w.s, &key, NULL, false, 1), MCS_OK);
    cr_assert_eq(mco_remove(w.s, &key, NULL, false, 1), MCS_NOT_FOUND);
    cr_assert_eq(get(&w, 7, "a", 100, 1), MCS_NOT_FOUND);
    cr_assert_eq(stats_of(&w).used, 0u);
    cr_assert_eq(w.events[MCO_STORED], 1u);
    cr_assert_eq(w.events[MCO_REMOVED], 1u);
    cr_assert_str_eq(w.last_key, "a");
    world_fini(&w);
}

Test(object, keys_are_any_bytes_up_to_the_limit)
{
    static char long_key[MCS_KEY_MAX + 1];
    struct mco_put p = {.size = 1};
    struct mco_view v;

    world_init(&w, 4 * MIB, MIB);
    for (uint32_t length = 0; length <= MCS_KEY_MAX + 1; length++) {
        bool good = length > 0 && length <= MCS_KEY_MAX;

        if (length > 300 && length < MCS_KEY_MAX - 2 && length % 116 != 24)
            continue;
        for (uint32_t i = 0; i < length && i < sizeof(long_key); i++)
            long_key[i] = (char)(i * 7 + length);
        p.key = (struct mco_key){long_key, length, 1, 0};
        if (good)
            p.key = mco_key(1, long_key, length);
        p.group = length % 2;
        cr_assert_eq(world_begin(&w, &p, &v), good ? MCS_OK : MCS_BAD_KEY, "%u", length);
        if (!good)
            continue;
        v.data[0] = (uint8_t)length;
        cr_assert_eq(mco_seal(w.s, v.object, 0, false, 1), MCS_OK);
        cr_assert_eq(mco_pin(w.s, &p.key, NULL, 1, &v), MCS_OK);
        cr_assert_eq(v.data[0], (uint8_t)length);
        mco_unpin(w.s, v.object);
        long_key[length - 1]++;
        p.key = mco_key(1, long_key, length);
        cr_assert_eq(mco_pin(w.s, &p.key, NULL, 1, &v), MCS_NOT_FOUND, "%u", length);
    }
    world_fini(&w);
}

Test(object, is_not_found_before_it_is_sealed)
{
    struct mco_put p = {.key = key_of(1, "k"), .size = 5000};
    struct mco_view v, v2;

    world_init(&w, 4 * MIB, MIB);
    cr_assert_eq(world_begin(&w, &p, &v), MCS_OK);
    cr_assert_eq(mco_begin(w.s, &p, &v2), MCS_BUSY);
    cr_assert_eq(mco_pin(w.s, &p.key, NULL, 1, &v2), MCS_NOT_FOUND);
    cr_assert_eq(mco_remove(w.s, &p.key, NULL, true, 1), MCS_NOT_FOUND);
    mco_abort(w.s, v.object);
    cr_assert_eq(stats_of(&w).used, 0u);
    cr_assert_eq(world_begin(&w, &p, &v), MCS_OK);
    cr_assert_eq(mco_seal(w.s, v.object, 1, true, 1), MCS_OK);
    cr_assert_eq(mco_pin(w.s, &p.key, NULL, 1, &v2), MCS_OK);
    cr_assert_eq(v2.size, 5000u);
    cr_assert_eq(v2.crc, 1u);
    mco_unpin(w.s, v2.object);
    world_fini(&w);
}

/* Whoever was told BUSY for it hears of it, whatever becomes of it; of a client's creation nobody knows when it ends. */
Test(object, that_is_being_written_is_waited_for)
{
    struct mco_put p = {.key = key_of(1, "k")};
    struct mco_view v, v2;
    unsigned readies;

    world_init(&w, 4 * MIB, MIB);
    for (unsigned i = 0; i < 6; i++) {
        p.size = i < 3 ? 0 : 5000;
        cr_assert_eq(world_begin(&w, &p, &v), MCS_OK);
        cr_assert_eq(mco_begin(w.s, &p, &v2), MCS_BUSY);
        cr_assert(!mco_is_created(w.s, &p.key));
        readies = w.ready;
        if (i % 3 == 0)
            mco_abort(w.s, v.object);
        else if (i % 3 == 1)
            mco_damaged(w.s, v.object);
        else
            cr_assert_eq(mco_seal(w.s, v.object, 1, true, 1), MCS_OK);
        cr_assert_gt(w.ready, readies, "way %u", i);
        if (i % 3 == 1) {
            cr_assert_eq(mco_begin(w.s, &p, &v2), MCS_OK, "the key is free");
            mco_abort(w.s, v2.object);
            mco_abort(w.s, v.object);
        }
        cr_assert_eq(mco_remove(w.s, &p.key, NULL, true, 1), i % 3 == 2 ? MCS_OK : MCS_NOT_FOUND);
    }
    p.open = true;
    cr_assert_eq(world_begin(&w, &p, &v), MCS_OK);
    cr_assert(mco_is_created(w.s, &p.key));
    cr_assert_eq(mco_begin(w.s, &p, &v2), MCS_IN_USE);
    p.open = false;
    cr_assert_eq(mco_begin(w.s, &p, &v2), MCS_IN_USE);
    mco_abort(w.s, v.object);
    cr_assert(!mco_is_created(w.s, &p.key));
    world_fini(&w);
}

Test(object, of_no_bytes_is_one)
{
    world_init(&w, 4 * MIB, MIB);
    cr_assert_eq(put(&w, 1, "empty", 0, 0, 0), MCS_OK);
    cr_assert_eq(get(&w, 1, "empty", 0, 0), MCS_OK);
    cr_assert_eq(stats_of(&w).extents, 0u);
    world_fini(&w);
}

Test(object, too_large_for_the_store_is_said_so)
{
    world_init(&w, 4 * MIB, MIB);
    cr_assert_eq(put(&w, 1, "k", 4 * MIB + 1, 0, 0), MCS_BAD_RANGE);
    cr_assert_eq(put(&w, 1, "k", UINT64_MAX, 0, 0), MCS_BAD_RANGE);
    cr_assert_eq(put(&w, 1, "k", 4 * MIB, 0, 0), MCS_OK, "just as large");
    world_fini(&w);
}

Test(object, is_replaced_at_once_and_readers_keep_what_they_have)
{
    struct mco_key key = key_of(1, "k");
    struct mco_view old;

    world_init(&w, 4 * MIB, MIB);
    cr_assert_eq(put(&w, 1, "k", 1000, 0, 1), MCS_OK);
    cr_assert_eq(mco_pin(w.s, &key, NULL, 1, &old), MCS_OK);
    cr_assert_eq(put(&w, 1, "k", 2000, MCS_OBJECT_UPSERT, 2), MCS_OK);
    cr_assert_eq(get(&w, 1, "k", 2000, 2), MCS_OK);
    cr_assert(mco_leaving(w.s, &key));
    cr_assert_eq(put(&w, 1, "x", 3 * MIB, 0, 3), MCS_OK);
    for (unsigned i = 0; i < 1000; i++)
        cr_assert_eq(old.data[i], (uint8_t)(31 + i * 7 + (i >> 8)));
    mco_unpin(w.s, old.object);
    cr_assert_not(mco_leaving(w.s, &key));
    cr_assert_eq(w.events[MCO_REPLACED], 1u);
    cr_assert_eq(stats_of(&w).objects, 2u);
    world_fini(&w);
}

Test(object, of_an_older_version_is_refused)
{
    struct mco_put p = {
        .key = key_of(1, "k"), .size = 10, .flags = MCS_OBJECT_UPSERT, .version = {5, 7}};
    struct mco_view older, v;
    struct mco_version upto = {5, 6};

    world_init(&w, 4 * MIB, MIB);
    p.version = (struct mco_version){5, 6};
    cr_assert_eq(world_begin(&w, &p, &older), MCS_OK);
    /* the store allows one writer of a key; a later life comes by another way */
    mco_damaged(w.s, older.object);
    p.version = (struct mco_version){5, 7};
    cr_assert_eq(world_begin(&w, &p, &v), MCS_OK);
    cr_assert_eq(mco_seal(w.s, v.object, 7, true, 1), MCS_OK);
    cr_assert_eq(mco_seal(w.s, older.object, 6, true, 1), MCS_NOT_OWNER);
    p.version = (struct mco_version){5, 6};
    cr_assert_eq(world_begin(&w, &p, &v), MCS_EXISTS);
    cr_assert_eq(v.version.sequence, 7u);
    cr_assert_eq(mco_remove(w.s, &p.key, &upto, false, 1), MCS_NOT_FOUND, "only an older life");
    upto = (struct mco_version){6, 1};
    cr_assert_eq(mco_remove(w.s, &p.key, &upto, false, 1), MCS_OK);
    world_fini(&w);
}

Test(object, removed_and_put_again_is_the_new_one)
{
    struct mco_key key = key_of(1, "k");

    world_init(&w, 4 * MIB, MIB);
    for (unsigned i = 0; i < 20; i++) {
        uint64_t size = i % 2 == 0 ? 64 : MIB / 2;

        cr_assert_eq(put(&w, 1, "k", size, 0, i), MCS_OK);
        cr_assert_eq(get(&w, 1, "k", size, i), MCS_OK);
        cr_assert_eq(mco_remove(w.s, &key, NULL, false, 1), MCS_OK);
    }
    world_fini(&w);
}

Test(object, leased_or_pinned_is_not_removed_without_force)
{
    struct mco_key key = key_of(1, "k");
    struct mco_view v;

    world_init(&w, 4 * MIB, MIB);
    cr_assert_eq(put(&w, 1, "k", 64, 0, 1), MCS_OK);
    cr_assert_eq(mco_pin(w.s, &key, NULL, 1, &v), MCS_OK);
    cr_assert_eq(mco_remove(w.s, &key, NULL, false, 1), MCS_IN_USE);
    mco_lease(w.s, v.object, 1000);
    mco_unpin(w.s, v.object);
    cr_assert_eq(mco_remove(w.s, &key, NULL, false, 999), MCS_IN_USE);
    cr_assert_eq(mco_remove(w.s, &key, NULL, true, 999), MCS_OK);
    cr_assert(stats_of(&w).used != 0, "its lease still runs");
    mco_upkeep(w.s, 1001);
    cr_assert_eq(stats_of(&w).used, 0u);
    cr_assert_eq(put(&w, 1, "k", 64, MCS_OBJECT_HARD_PIN, 1), MCS_OK);
    cr_assert_eq(mco_remove(w.s, &key, NULL, false, 2000), MCS_IN_USE);
    cr_assert_eq(mco_remove(w.s, &key, NULL, true, 2000), MCS_OK);
    world_fini(&w);
}

Test(object, is_evicted_oldest_first)
{
    char name[32];

    world_init(&w, 4 * MIB, MIB);
    for (unsigned i = 0; i < 64; i++) {
        snprintf(name, sizeof(name), "k%u", i);
        cr_assert_eq(put(&w, 1, name, 64 * KIB, 0, i), MCS_OK);
    }
    cr_assert_eq(w.events[MCO_EVICTED], 0u);
    cr_assert_eq(get(&w, 1, "k0", 64 * KIB, 0), MCS_OK, "it is young again");
    cr_assert_eq(put(&w, 1, "more", 64 * KIB, 0, 99), MCS_OK);
    cr_assert_eq(w.events[MCO_EVICTED], 1u, "not more than needed");
    cr_assert_str_eq(w.last_key, "more");
    cr_assert_eq(get(&w, 1, "k1", 64 * KIB, 1), MCS_NOT_FOUND);
    cr_assert_eq(get(&w, 1, "k0", 64 * KIB, 0), MCS_OK);
    world_fini(&w);
}

static bool count_listed(void *context, const struct mco_listed *o)
{
    uint64_t *sum = context;

    sum[0]++;
    sum[1] += o->size;
    cr_assert_eq(o->key.hash, mco_key_hash(o->key.tenant, o->key.bytes, o->key.length));
    return true;
}

Test(object, all_are_listed)
{
    uint64_t sum[2] = {0, 0}, cursor = 0;
    char name[300];

    world_init(&w, 4 * MIB, MIB);
    for (unsigned i = 1; i <= 200; i++) {
        snprintf(name, sizeof(name), "%0*u", (int)i, i);
        cr_assert_eq(put(&w, i % 2, name, i, 0, i), MCS_OK);
    }
    while (cursor != UINT64_MAX)
        mco_walk(w.s, 1, &cursor, count_listed, sum);
    cr_assert_eq(sum[0], 100u);
    cr_assert_eq(sum[1], 100u * 100u);
    cursor = 0;
    while (cursor != UINT64_MAX)
        mco_walk(w.s, UINT64_MAX, &cursor, count_listed, sum);
    cr_assert_eq(sum[0], 300u);
    world_fini(&w);
}

static bool lose_first(unsigned i)
{
    return i == 0;
}

Test(object, outlives_the_agent)
{
    struct mco_put p = {.key = key_of(1, "half"), .size = 100};
    struct mco_recovered r;
    struct mco_view v;
    uint64_t identity;

    world_init(&w, 4 * MIB, MIB);
    for (unsigned i = 0; i < 40; i++) {
        char name[64];

        snprintf(name, sizeof(name), "%060u", i);
        cr_assert_eq(put(&w, i % 3, name, 1000 + i * 100, 0, i), MCS_OK);
    }
    cr_assert_eq(world_begin(&w, &p, &v), MCS_OK);
    identity = mco_identity(w.s);
    mco_note_token(w.s, 77);
    r = world_die(&w, NULL);
    cr_assert_eq(r.objects, 40u);
    cr_assert_eq(r.unfinished, 1u);
    cr_assert_eq(r.torn, 0u);
    cr_assert_eq(mco_identity(w.s), identity);
    cr_assert_eq(mco_token(w.s), 77u);
    for (unsigned i = 0; i < 40; i++) {
        char name[64];

        snprintf(name, sizeof(name), "%060u", i);
        cr_assert_eq(get(&w, i % 3, name, 1000 + i * 100, i), MCS_OK);
        cr_assert_eq(put(&w, i % 3, name, 1000, MCS_OBJECT_UPSERT, i + 1), MCS_OK);
        cr_assert_eq(get(&w, i % 3, name, 1000, i + 1), MCS_OK);
    }
    r = world_die(&w, lose_first);
    cr_assert_eq(r.objects + r.torn, 40u);
    cr_assert(r.torn >= 13, "what lay in it is gone");
    world_fini(&w);
}

Test(object, read_in_place_is_guarded_in_the_next_life)
{
    struct mco_key key = key_of(1, "k");
    struct mco_put p = {.key = key_of(1, "fill"), .size = MIB, .open = true};
    struct mco_recovered r;
    struct mco_view v, filled;

    world_init(&w, 2 * MIB, MIB);
    cr_assert_eq(put(&w, 1, "k", MIB, 0, 1), MCS_OK);
    cr_assert_eq(mco_pin(w.s, &key, NULL, 1, &v), MCS_OK);
    mco_pin_in_place(w.s, v.object, true);
    cr_assert_eq(world_begin(&w, &p, &filled), MCS_OK);
    mco_pin_in_place(w.s, filled.object, true);
    r = world_die(&w, NULL);
    cr_assert_eq(r.objects, 1u);
    cr_assert_eq(r.unfinished, 1u);
    cr_assert_eq(r.guarded, 2u);
    cr_assert_eq(get(&w, 1, "k", MIB, 1), MCS_OK);
    cr_assert_eq(put(&w, 1, "x", MIB, 0, 2), MCS_NO_SPACE);
    p.key = key_of(1, "other");
    cr_assert_eq(world_begin(&w, &p, &filled), MCS_NO_SPACE);
    cr_assert_eq(get(&w, 1, "k", MIB, 1), MCS_OK);
    mco_unguard(w.s);
    cr_assert_eq(stats_of(&w).guarded, 0u);
    cr_assert_eq(put(&w, 1, "x", MIB, 0, 2), MCS_OK);
    cr_assert_eq(get(&w, 1, "k", MIB, 1), MCS_OK, "what was half filled is free");
    cr_assert_eq(world_begin(&w, &p, &filled), MCS_OK);
    cr_assert_eq(stats_of(&w).objects, 1u);
    world_fini(&w);
}
