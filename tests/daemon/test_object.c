/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about objects that this host holds, through an engine's ring. */
#include "objects.h"

Test(object, put_and_get_of_scattered_bytes)
{
    static struct ob o;
    struct mcs_object_result r;
    uint8_t *m;

    ob_init(&o);
    m = o.f.local.map;
    ob_paint(m, 10000, 1);
    ob_begin(&o, MCS_OP_PUT, 0);
    ob_key(&o, "a\0/b", 4);
    ob_piece(&o, 100, 1000);
    ob_piece(&o, 5000, 1);
    ob_piece(&o, 2000, 2999);
    ob_name(&o, "empty");
    cr_assert_eq(ob_ok(&o), 4000u);
    r = ob_result(&o, 0);
    cr_assert_eq(r.status, MCS_OK);
    cr_assert(r.size == 4000 && r.version != 0 && r.copies == 1);
    cr_assert_eq(r.tier, MCS_TIER_MEMORY);
    cr_assert_eq(ob_result(&o, 1).status, MCS_OK);
    cr_assert_eq(ob_result(&o, 1).size, 0u);

    ob_begin(&o, MCS_OP_GET, 0);
    ob_name(&o, "empty");
    ob_key(&o, "a\0/b", 4);
    ob_piece(&o, 20000, 1);
    ob_piece(&o, 30000, 2000);
    ob_piece(&o, 40000, 5000); /* there may be more room */
    ob_key(&o, "a\0/c", 4);
    cr_assert_eq(ob_ok(&o), 4000u);
    cr_assert_eq(ob_result(&o, 0).status, MCS_OK);
    cr_assert_eq(ob_result(&o, 1).status, MCS_OK);
    cr_assert_eq(ob_result(&o, 1).size, 4000u);
    cr_assert_eq(ob_result(&o, 1).version, r.version);
    cr_assert_eq(ob_result(&o, 1).crc, r.crc);
    cr_assert_eq(ob_result(&o, 2).status, MCS_NOT_FOUND);
    cr_assert_eq(m[20000], m[100]);
    cr_assert_arr_eq(m + 30000, m + 101, 999);
    cr_assert_eq(m[30999], m[5000]);
    cr_assert_arr_eq(m + 31000, m + 2000, 1000);
    cr_assert_arr_eq(m + 40000, m + 3000, 1999);
    cr_assert_eq(m[41999], 0u);
    ob_paint(m + 50000, 4000, 0);
    memcpy(m + 50000, m + 100, 1000);
    m[51000] = m[5000];
    memcpy(m + 51001, m + 2000, 2999);
    cr_assert_eq(mct_crc32c(0, m + 50000, 4000), r.crc);
    ob_fini(&o);
}

Test(object, exist_of_a_thousand_keys)
{
    static struct ob o;
    char key[16];

    ob_init(&o);
    for (unsigned i = 0; i < 1000; i += 100) {
        ob_begin(&o, MCS_OP_PUT, 0);
        for (unsigned k = i; k < i + 100; k++) {
            snprintf(key, sizeof(key), "key-%u", k * 2);
            ob_name(&o, key);
            ob_piece(&o, k, 100);
        }
        cr_assert_eq(ob_ok(&o), 10000u);
    }
    ob_begin(&o, MCS_OP_EXIST, 0);
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(key, sizeof(key), "key-%u", i);
        ob_name(&o, key);
    }
    o.keys[10].length = 0; /* a bad one among them */
    cr_assert_eq(ob_ok(&o), 499u);
    for (unsigned i = 0; i < 1000; i++)
        cr_assert_eq(ob_byte(&o, i),
                     i == 10 ? MCS_BAD_KEY
                     : i % 2 ? MCS_NOT_FOUND
                             : MCS_OK,
                     "key %u: %u", i, ob_byte(&o, i));
    cr_assert_eq(o.f.engine->counters.objects.keys[MCS_OP_EXIST - MCS_OP_PUT], 1000u);
    ob_fini(&o);
}

Test(object, prefix_ends_at_the_first_that_is_not_there)
{
    static struct ob o;
    char key[16];

    ob_init(&o);
    for (unsigned i = 0; i < 200; i++) {
        snprintf(key, sizeof(key), "block-%u", i);
        if (i != 150)
            cr_assert_eq(ob_put(&o, key, 0, 64, 0).status, MCS_OK);
    }
    for (unsigned first = 0; first < 160; first += 40) {
        ob_begin(&o, MCS_OP_PREFIX, MCS_OBJECT_CHAIN);
        for (unsigned i = first; i < 200; i++) {
            snprintf(key, sizeof(key), "block-%u", i);
            ob_name(&o, key);
        }
        cr_assert_eq(ob_ok(&o), 150u - first);
    }
    ob_fini(&o);
}

/* What was there when it was looked up may have gone since: the others are served. */
Test(object, one_of_a_prefix_goes_before_it_is_read)
{
    static struct ob o;
    char key[16];

    ob_init(&o);
    ob_begin(&o, MCS_OP_PUT, MCS_OBJECT_CHAIN);
    for (unsigned i = 0; i < 12; i++) {
        snprintf(key, sizeof(key), "block-%u", i);
        ob_name(&o, key);
        ob_piece(&o, i * 1000, 1000);
    }
    ob_paint(o.f.local.map, 12000, 8);
    ob_ok(&o);
    ob_begin(&o, MCS_OP_PREFIX, MCS_OBJECT_CHAIN);
    for (unsigned i = 0; i < 12; i++) {
        snprintf(key, sizeof(key), "block-%u", i);
        ob_name(&o, key);
    }
    cr_assert_eq(ob_ok(&o), 12u);
    cr_assert_eq(ob_remove(&o, "block-8", MCS_OBJECT_FORCE), MCS_OK);
    ob_begin(&o, MCS_OP_GET, MCS_OBJECT_CHAIN);
    for (unsigned i = 0; i < 12; i++) {
        snprintf(key, sizeof(key), "block-%u", i);
        ob_name(&o, key);
        ob_piece(&o, 100000 + i * 1000, 1000);
    }
    cr_assert_eq(ob_ok(&o), 11000u);
    for (unsigned i = 0; i < 12; i++) {
        cr_assert_eq(ob_result(&o, i).status, i == 8 ? MCS_NOT_FOUND : MCS_OK);
        if (i != 8)
            cr_assert_arr_eq(o.f.local.map + 100000 + i * 1000, o.f.local.map + i * 1000, 1000);
    }
    ob_fini(&o);
}

/* The source is the caller's again: what was put is what it was then. What changes in the store is found out, and touches
 * no other key. */
Test(object, bytes_that_change_afterwards)
{
    static struct ob o;
    struct mcs_object_result held;

    ob_init(&o);
    ob_paint(o.f.local.map, 4096, 1);
    ob_paint(o.f.local.map + 8192, 4096, 1);
    ob_put(&o, "a", 0, 4096, 0);
    ob_put(&o, "b", 0, 4096, 0);
    o.f.local.map[100] ^= 1;
    cr_assert_eq(ob_get(&o, "a", 16384, 4096, MCS_OBJECT_VERIFY).status, MCS_OK);
    cr_assert_arr_eq(o.f.local.map + 16384, o.f.local.map + 8192, 4096);
    held = ob_hold(&o, "a");
    o.extents[0].map[held.offset + 17] ^= 4;
    ob_release(&o, &held.hold, 1);
    ob_begin(&o, MCS_OP_GET, MCS_OBJECT_VERIFY);
    ob_name(&o, "a");
    ob_piece(&o, 16384, 4096);
    ob_name(&o, "b");
    ob_piece(&o, 32768, 4096);
    ob_ok(&o);
    cr_assert_eq(ob_result(&o, 0).status, MCS_CHECKSUM);
    cr_assert_eq(ob_result(&o, 1).status, MCS_OK);
    cr_assert_eq(ob_get(&o, "a", 0, 4096, 0).status, MCS_NOT_FOUND, "it is not given out again");
    ob_fini(&o);
}

Test(object, put_over_an_object)
{
    static struct ob o;
    struct mcs_object_result first, r, held;
    struct mcd_extent *e;

    ob_init(&o);
    ob_paint(o.f.local.map, 4096, 3);
    ob_paint(o.f.local.map + 4096, 4096, 77);
    first = ob_put(&o, "k", 0, 4096, 0);
    r = ob_put(&o, "k", 4096, 100, 0);
    cr_assert_eq(r.status, MCS_OK);
    cr_assert(r.version == first.version && r.size == 4096 && r.crc == first.crc);
    r = ob_put(&o, "k", 4096, 100, MCS_OBJECT_NEW);
    cr_assert(r.status == MCS_EXISTS && r.version == first.version);
    held = ob_hold(&o, "k");
    cr_assert(held.status == MCS_OK && held.hold != 0 && held.size == 4096);
    cr_assert_eq(held.path, o.f.engine->local_ops->path);
    r = ob_put(&o, "k", 4096, 4096, MCS_OBJECT_UPSERT);
    cr_assert_eq(r.status, MCS_OK);
    cr_assert_gt(r.version, first.version);
    /* who holds the old one goes on reading that */
    e = &o.extents[0];
    cr_assert_eq(e->handle, held.extent);
    cr_assert_arr_eq(e->map + held.offset, o.f.local.map, 4096);
    cr_assert_eq(ob_get(&o, "k", 8192, 4096, 0).version, r.version);
    cr_assert_arr_eq(o.f.local.map + 8192, o.f.local.map + 4096, 4096);
    ob_fini(&o);
}

Test(object, the_first_of_equal_keys_wins)
{
    static struct ob o;

    ob_init(&o);
    ob_paint(o.f.local.map, 8192, 1);
    ob_begin(&o, MCS_OP_PUT, 0);
    for (unsigned i = 0; i < 3; i++) {
        ob_name(&o, "same");
        ob_piece(&o, i * 1000, 1000);
    }
    cr_assert_eq(ob_ok(&o), 1000u);
    for (unsigned i = 0; i < 3; i++)
        cr_assert(ob_result(&o, i).status == MCS_OK &&
                  ob_result(&o, i).version == ob_result(&o, 0).version);
    ob_begin(&o, MCS_OP_PUT, MCS_OBJECT_NEW);
    for (unsigned i = 0; i < 2; i++) {
        ob_name(&o, "other");
        ob_piece(&o, i * 1000, 1000);
    }
    ob_ok(&o);
    cr_assert_eq(ob_result(&o, 0).status, MCS_OK);
    cr_assert_eq(ob_result(&o, 1).status, MCS_EXISTS);
    ob_begin(&o, MCS_OP_GET, 0);
    for (unsigned i = 0; i < 2; i++) {
        ob_name(&o, "same");
        ob_piece(&o, 10000 + i * 1000, 1000);
    }
    cr_assert_eq(ob_ok(&o), 2000u);
    cr_assert_arr_eq(o.f.local.map + 10000, o.f.local.map, 1000);
    cr_assert_arr_eq(o.f.local.map + 11000, o.f.local.map, 1000);
    ob_fini(&o);
}

Test(object, ranges_and_rooms)
{
    static struct ob o;
    struct mcs_object_result r;
    uint8_t *m;

    ob_init(&o);
    m = o.f.local.map;
    ob_paint(m, 4096, 9);
    ob_put(&o, "k", 0, 4096, 0);
    r = ob_get(&o, "k", 8192, 4095, 0);
    cr_assert(r.status == MCS_TOO_SMALL && r.size == 4096);
    r = ob_get(&o, "k", 8192, 0, 0);
    cr_assert(r.status == MCS_TOO_SMALL && r.size == 4096);
    for (uint32_t verify = 0; verify < 2; verify++) {
        ob_begin(&o, MCS_OP_GET, MCS_OBJECT_RANGES | (verify ? MCS_OBJECT_VERIFY : 0));
        ob_name(&o, "k");
        ob_piece(&o, 20000, 10)->offset = 4086;
        ob_piece(&o, 20010, 100)->offset = 7;
        ob_name(&o, "k");
        ob_piece(&o, 30000, 10)->offset = 4087;
        ob_name(&o, "k");
        ob_piece(&o, 30000, 2)->offset = UINT64_MAX;
        ob_name(&o, "k");
        cr_assert_eq(ob_ok(&o), 110u);
        cr_assert_eq(ob_result(&o, 0).status, MCS_OK);
        cr_assert_eq(ob_result(&o, 1).status, MCS_BAD_RANGE);
        cr_assert_eq(ob_result(&o, 2).status, MCS_BAD_RANGE);
        cr_assert_eq(ob_result(&o, 3).status, MCS_OK);
        cr_assert_arr_eq(m + 20000, m + 4086, 10);
        cr_assert_arr_eq(m + 20010, m + 7, 100);
        memset(m + 20000, 0, 200);
    }
    cr_assert_eq(ob_stats(&o).pinned, 0u);
    ob_fini(&o);
}

Test(object, remove)
{
    static struct ob o;
    struct mcs_object_result held;

    ob_init(&o);
    cr_assert_eq(ob_remove(&o, "k", 0), MCS_NOT_FOUND);
    ob_put(&o, "k", 0, 100, 0);
    held = ob_hold(&o, "k");
    cr_assert_eq(ob_remove(&o, "k", 0), MCS_IN_USE);
    ob_release(&o, &held.hold, 1);
    cr_assert_eq(ob_remove(&o, "k", 0), MCS_OK);
    cr_assert(!ob_exists(&o, "k"));
    ob_put(&o, "k", 0, 100, 0);
    ob_begin(&o, MCS_OP_EXIST, MCS_OBJECT_LEASE);
    o.args.lease_ms = 60000;
    ob_name(&o, "k");
    ob_ok(&o);
    cr_assert_eq(ob_remove(&o, "k", 0), MCS_IN_USE);
    cr_assert_eq(ob_remove(&o, "k", MCS_OBJECT_FORCE), MCS_OK);
    cr_assert(!ob_exists(&o, "k"));
    ob_fini(&o);
}

Test(object, created_filled_sealed)
{
    static struct ob o;
    struct mcs_object_result c, s;
    uint64_t n, creations, bytes;

    ob_init(&o);
    c = ob_create(&o, "k", 5000);
    cr_assert(c.status == MCS_OK && c.hold != 0);
    cr_assert(!ob_exists(&o, "k"), "nobody finds it before it is sealed");
    cr_assert_eq(o.extents[0].handle, c.extent);
    ob_paint(o.extents[0].map + c.offset, 5000, 5);
    mcd_holds_count(o.f.session->holds, &n, &creations, &bytes);
    cr_assert(n == 1 && creations == 1 && bytes == 5000);
    s = ob_seal(&o, c.hold);
    cr_assert_eq(s.status, MCS_OK);
    cr_assert_eq(s.crc, mct_crc32c(0, o.extents[0].map + c.offset, 5000));
    cr_assert(s.size == 5000 && s.version == c.version);
    cr_assert_eq(ob_seal(&o, c.hold).status, MCS_NOT_OWNER);
    cr_assert_eq(ob_get(&o, "k", 0, 5000, 0).status, MCS_OK);
    cr_assert_arr_eq(o.f.local.map, o.extents[0].map + c.offset, 5000);
    cr_assert_eq(ob_create(&o, "k", 5000).status, MCS_EXISTS);
    mcd_holds_count(o.f.session->holds, &n, &creations, &bytes);
    cr_assert(n == 0 && creations == 0 && bytes == 0);

    c = ob_create(&o, "given up", 5000);
    ob_release(&o, &c.hold, 1);
    cr_assert_eq(ob_seal(&o, c.hold).status, MCS_NOT_OWNER);
    cr_assert_eq(ob_stats(&o).writing, 0u);
    cr_assert_eq(ob_put(&o, "given up", 0, 10, 0).status, MCS_OK, "the key is free again");
    /* what is only held is no creation */
    c = ob_hold(&o, "k");
    cr_assert_eq(ob_seal(&o, c.hold).status, MCS_NOT_OWNER);
    mcd_holds_count(o.f.session->holds, &n, &creations, &bytes);
    cr_assert_eq(n, 1u);
    ob_fini(&o);
}

Test(object, who_writes_after_the_seal_is_found_out)
{
    static struct ob o;
    struct mcs_object_result c;

    ob_init(&o);
    c = ob_create(&o, "k", 5000);
    ob_seal(&o, c.hold);
    cr_assert_eq(ob_get(&o, "k", 0, 5000, MCS_OBJECT_VERIFY).status, MCS_OK);
    o.extents[0].map[c.offset + 4999] ^= 1;
    cr_assert_eq(ob_get(&o, "k", 0, 5000, 0).status, MCS_OK, "nobody asked");
    cr_assert_eq(ob_get(&o, "k", 0, 5000, MCS_OBJECT_VERIFY).status, MCS_CHECKSUM);
    cr_assert_eq(ob_get(&o, "k", 0, 5000, MCS_OBJECT_VERIFY).status, MCS_NOT_FOUND);
    cr_assert_eq(o.f.engine->counters.objects.damaged, 1u);
    /* and whatever is asked */
    o.st.verify = MCD_VERIFY_ALWAYS;
    for (unsigned how = 0; how < 2; how++) {
        ob_put(&o, "p", 0, 5000, 0);
        c = ob_hold(&o, "p");
        cr_assert_eq(c.status, MCS_OK);
        ob_release(&o, &c.hold, 1);
        for (unsigned i = 0; i < o.nextents; i++)
            if (o.extents[i].handle == c.extent)
                o.extents[i].map[c.offset] ^= 1;
        if (how == 0)
            cr_assert_eq(ob_hold(&o, "p").status, MCS_CHECKSUM);
        else
            cr_assert_eq(ob_get(&o, "p", 0, 5000, 0).status, MCS_CHECKSUM);
    }
    cr_assert_eq(ob_stats(&o).pinned, 0u);
    ob_fini(&o);
}

Test(object, a_thousand_holds_go_with_the_session)
{
    static struct ob o;
    uint64_t n, creations, bytes;

    ob_init(&o);
    ob_put(&o, "k", 0, 100, 0);
    for (unsigned i = 0; i < 10; i++) {
        ob_begin(&o, MCS_OP_HOLD, 0);
        for (unsigned k = 0; k < 99; k++)
            ob_name(&o, "k");
        cr_assert_eq(ob_ok(&o), 99u);
    }
    for (unsigned i = 0; i < 10; i++) {
        char key[8] = {'c', (char)('0' + i)};

        cr_assert_eq(ob_create(&o, key, 1000).status, MCS_OK);
    }
    cr_assert_eq(ob_hold(&o, "k").status, MCS_LIMIT);
    cr_assert_eq(ob_create(&o, "one more", 10).status, MCS_LIMIT);
    mcd_holds_count(o.f.session->holds, &n, &creations, &bytes);
    cr_assert(n == 1000 && creations == 10 && bytes == 990 * 100 + 10 * 1000);
    cr_assert_eq(ob_stats(&o).writing, 10u);
    mcd_holds_destroy(o.f.session->holds, o.st.objects);
    o.f.session->holds = NULL;
    cr_assert(ob_stats(&o).in_place == 0 && ob_stats(&o).pinned == 0 && ob_stats(&o).writing == 0);
    cr_assert_eq(ob_remove(&o, "k", 0), MCS_OK, "nobody reads it any more");
    cr_assert_eq(ob_hold(&o, "k").status, MCS_NOT_FOUND);
    ob_fini(&o);
}

Test(object, holds_are_given_back_once)
{
    static struct ob o;
    struct mcs_object_result a, b;
    uint64_t holds[MCS_RELEASE_MAX] = {0}, n, creations, bytes;

    ob_init(&o);
    ob_put(&o, "k", 0, 100, 0);
    a = ob_hold(&o, "k");
    holds[0] = holds[6] = a.hold;
    holds[1] = UINT64_MAX;
    holds[2] = a.hold + 1;
    holds[3] = a.hold + (UINT64_C(1) << 32);
    ob_release(&o, holds, 7);
    b = ob_hold(&o, "k");
    cr_assert_neq(a.hold, b.hold, "a hold's number is used once");
    ob_release(&o, &a.hold, 1);
    mcd_holds_count(o.f.session->holds, &n, &creations, &bytes);
    cr_assert_eq(n, 1u);
    ob_fini(&o);
}
