/* SPDX-License-Identifier: Apache-2.0 */
#include "store/meta/cache.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct mcm_record record(const char *name, uint64_t incarnation)
{
    struct mcm_record r = {.incarnation = incarnation, .agent_incarnation = 1};

    snprintf(r.name, sizeof(r.name), "%s", name);
    strcpy(r.agent, "other:1");
    return r;
}

static bool put(struct mcm_cache *c, const char *name, uint64_t incarnation, uint64_t epoch,
                uint64_t revision)
{
    struct mcm_record r = record(name, incarnation);

    return mcm_cache_put(c, &r, (struct mcm_stamp){epoch, revision}, NULL);
}

static bool drop(struct mcm_cache *c, const char *name, uint64_t epoch, uint64_t revision)
{
    return mcm_cache_drop(c, name, (struct mcm_stamp){epoch, revision});
}

static uint64_t incarnation(struct mcm_cache *c, const char *name)
{
    struct mcm_cached *e = mcm_cache_find(c, name);

    return e ? e->record.incarnation : 0;
}

Test(cache, what_is_older_does_not_replace_what_is_newer)
{
    struct mcm_cache c;

    cr_assert_eq(mcm_cache_init(&c, 10, "me:1", 7), 0);
    put(&c, "n", 1, 1, 10);
    put(&c, "n", 2, 1, 9);
    cr_assert_eq(incarnation(&c, "n"), 1u, "an answer that was overtaken");
    drop(&c, "n", 1, 9);
    cr_assert_eq(incarnation(&c, "n"), 1u, "a removal before it");
    put(&c, "n", 3, 1, 11);
    cr_assert_eq(incarnation(&c, "n"), 3u);
    put(&c, "n", 4, 2, 1);
    cr_assert_eq(incarnation(&c, "n"), 4u, "a service that began anew counts from one");
    put(&c, "n", 3, 1, 99);
    cr_assert_eq(incarnation(&c, "n"), 4u, "and the old history is over");
    drop(&c, "n", 2, 1);
    cr_assert_eq(incarnation(&c, "n"), 0u);
    mcm_cache_fini(&c);
}

Test(cache, tells_changes_of_what_was_handed_out_only)
{
    struct mcm_cache c;

    cr_assert_eq(mcm_cache_init(&c, 10, "me:1", 7), 0);
    cr_expect_not(put(&c, "n", 1, 1, 1), "new");
    cr_expect_not(put(&c, "n", 2, 1, 2), "nobody has asked for it");
    mcm_cache_find(&c, "n")->used = true;
    cr_expect_not(put(&c, "n", 2, 1, 3), "the same incarnation");
    cr_expect(put(&c, "n", 3, 1, 4));
    cr_expect(drop(&c, "n", 1, 5));
    cr_expect_not(drop(&c, "n", 1, 6));
    mcm_cache_fini(&c);
}

Test(cache, counts_this_agents_own)
{
    struct mcm_record own = record("own", 1);
    struct mcm_cache c;

    cr_assert_eq(mcm_cache_init(&c, 10, "me:1", 7), 0);
    strcpy(own.agent, "me:1");
    own.agent_incarnation = 7;
    mcm_cache_put(&c, &own, (struct mcm_stamp){1, 1}, NULL);
    put(&c, "n", 1, 1, 1);
    cr_assert_eq(c.count, 2u);
    cr_assert_eq(c.own, 1u);
    put(&c, "own", 1, 1, 2); /* another took it over */
    cr_assert_eq(c.own, 0u);
    mcm_cache_put(&c, &own, (struct mcm_stamp){1, 3}, NULL);
    drop(&c, "own", 1, 4);
    cr_assert_eq(c.own, 0u);
    cr_assert_eq(c.count, 1u);
    mcm_cache_fini(&c);
}

static void count_gone(void *context, const char *name)
{
    (void)name;
    ++*(unsigned *)context;
}

Test(cache, a_listing_takes_away_what_it_does_not_name)
{
    struct mcm_cache c;
    unsigned gone = 0;

    cr_assert_eq(mcm_cache_init(&c, 10, "me:1", 7), 0);
    put(&c, "stays", 1, 1, 1);
    put(&c, "goes", 1, 1, 2);
    put(&c, "goes-unseen", 1, 1, 3);
    put(&c, "newer", 1, 1, 50);
    mcm_cache_find(&c, "goes")->used = true;
    mcm_cache_find(&c, "stays")->used = true;
    mcm_cache_list_begin(&c);
    put(&c, "stays", 1, 1, 1);
    mcm_cache_list_end(&c, (struct mcm_stamp){1, 40}, count_gone, &gone);
    cr_assert_eq(gone, 1u);
    cr_assert_eq(c.count, 2u);
    cr_assert_eq(incarnation(&c, "stays"), 1u);
    cr_assert_eq(incarnation(&c, "newer"), 1u, "a lookup brought it after the listing");
    mcm_cache_fini(&c);
}

Test(cache, a_sweep_takes_what_lookups_found_meanwhile)
{
    struct mcm_cache c;
    unsigned gone = 0;

    cr_assert_eq(mcm_cache_init(&c, 10, "me:1", 7), 0);
    put(&c, "before", 1, 1, 9);
    put(&c, "within", 1, 1, 10);
    put(&c, "last", 1, 1, 20);
    put(&c, "after", 1, 1, 21);
    put(&c, "other-epoch", 1, 2, 15);
    mcm_cache_find(&c, "within")->used = true;
    mcm_cache_sweep(&c, 10, (struct mcm_stamp){1, 20}, count_gone, &gone);
    cr_assert_eq(gone, 1u);
    cr_assert_eq(c.count, 3u);
    cr_assert_eq(incarnation(&c, "within"), 0u);
    cr_assert_eq(incarnation(&c, "last"), 0u);
    mcm_cache_fini(&c);
}

Test(cache, makes_room_among_what_nobody_asked_for)
{
    struct mcm_cache c;
    char name[16];

    cr_assert_eq(mcm_cache_init(&c, 8, "me:1", 7), 0);
    put(&c, "used", 1, 1, 1);
    mcm_cache_find(&c, "used")->used = true;
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(name, sizeof(name), "n%u", i);
        put(&c, name, 1, 1, i + 2);
        cr_assert_eq(incarnation(&c, name), 1u);
        cr_assert_leq(c.count, 8u);
        cr_assert_eq(incarnation(&c, "used"), 1u);
    }
    mcm_cache_fini(&c);
}
