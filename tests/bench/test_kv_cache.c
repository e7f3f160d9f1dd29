/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/kv_cache.c"

#include <criterion/criterion.h>
#include <stdbool.h>

static struct kv_cache cache;

static uint32_t put(uint64_t hash_id)
{
    uint32_t place = kv_cache_insert(&cache, hash_id);

    if (place != KV_CACHE_NONE)
        kv_cache_unpin(&cache, place);
    return place;
}

static bool holds(uint64_t hash_id)
{
    uint32_t place = kv_cache_find(&cache, hash_id);

    if (place == KV_CACHE_NONE)
        return false;
    kv_cache_unpin(&cache, place);
    return true;
}

static void destroy(void)
{
    kv_cache_destroy(&cache);
}

Test(kv_cache, the_longest_unused_goes_first, .fini = destroy)
{
    cr_assert_eq(kv_cache_create(&cache, 3), 0);
    put(1);
    put(2);
    put(3);
    cr_assert(holds(1)); /* and is now the newest */
    put(4);
    cr_assert(!holds(2));
    cr_assert(holds(3));
    cr_assert(holds(1));
    cr_assert(holds(4));
}

Test(kv_cache, pinned_blocks_stay, .fini = destroy)
{
    uint32_t one, two;

    cr_assert_eq(kv_cache_create(&cache, 2), 0);
    one = kv_cache_insert(&cache, 1);
    two = kv_cache_insert(&cache, 2);
    cr_assert_eq(cache.pinned, 2);
    cr_assert_eq(kv_cache_insert(&cache, 3), KV_CACHE_NONE);
    cr_assert_eq(kv_cache_find(&cache, 1), one); /* pinned twice */
    kv_cache_unpin(&cache, one);
    cr_assert_eq(kv_cache_insert(&cache, 3), KV_CACHE_NONE);
    kv_cache_unpin(&cache, two);
    cr_assert_eq(kv_cache_insert(&cache, 3), two);
    cr_assert_eq(kv_cache_find(&cache, 2), KV_CACHE_NONE);
}

Test(kv_cache, agrees_with_a_plain_list, .fini = destroy)
{
    enum { CAPACITY = 37, IDS = 90 };
    uint64_t order[CAPACITY]; /* oldest first */
    unsigned held = 0;
    uint64_t state = 7;

    cr_assert_eq(kv_cache_create(&cache, CAPACITY), 0);
    for (unsigned step = 0; step < 20000; step++) {
        uint64_t id;
        unsigned at;

        state = state * UINT64_C(6364136223846793005) + 1;
        id = (state >> 40) % IDS * UINT64_C(0x100000001);
        for (at = 0; at < held && order[at] != id; at++)
            ;
        cr_assert_eq(holds(id), at < held, "step %u", step);
        if (at == held) {
            put(id);
            if (held == CAPACITY)
                at = 0;
            else
                held++;
        }
        for (; at + 1 < held; at++)
            order[at] = order[at + 1];
        order[held - 1] = id;
    }
}
