/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cache_offline.h"

#include <criterion/criterion.h>

#include "bench/cache_offline.c"
#include "bench/kv_trace.c"

static struct cache_count replay(const struct kv_trace *t, const char *policy, uint64_t capacity)
{
    struct cache_count n;

    cr_assert_eq(cache_offline(mco_policy_find(policy), t, capacity, &n), 0);
    cr_assert_eq(n.blocks, t->blocks);
    cr_assert_eq(n.requests, t->count);
    return n;
}

Test(cache_offline, a_hit_ends_with_the_first_block_that_is_not_there)
{
    uint64_t a[] = {1, 2, 3, 4}, b[] = {1, 9, 3, 4}, c[] = {1, 2, 3, 5};
    struct kv_request r[] = {
        {.hash_ids = a, .count = 4}, {.hash_ids = b, .count = 4}, {.hash_ids = c, .count = 4}};
    struct kv_trace t = {.requests = r, .count = 3, .blocks = 12, .longest = 4};

    for (unsigned i = 0; mco_policies[i] != NULL; i++) {
        cr_expect_eq(replay(&t, mco_policies[i]->name, 0).hits, 4u);
        cr_expect_eq(replay(&t, mco_policies[i]->name, 6).hits, 4u);
    }
    /* 2 of the first, 5 of the last, is gone when it is asked for */
    cr_expect_eq(replay(&t, "fifo", 1).hits, 0u);
}

/* Of conversations under way all at once, chain keeps whole ones where LRU keeps a bit of each. */
Test(cache_offline, without_a_limit_all_are_equal_and_with_one_they_are_not)
{
    struct kv_trace t;
    uint64_t all;

    cr_assert_eq(kv_trace_generate(4000, &t), 0);
    all = replay(&t, "lru", 0).hits;
    for (unsigned i = 0; mco_policies[i] != NULL; i++) {
        struct cache_count n = replay(&t, mco_policies[i]->name, 300);

        cr_expect_eq(replay(&t, mco_policies[i]->name, 0).hits, all);
        cr_expect_gt(n.hits, 0u);
        cr_expect_lt(n.hits, all);
    }
    cr_expect_gt(replay(&t, "chain", 300).hits, replay(&t, "lru", 300).hits);
    kv_trace_free(&t);
}
