/* SPDX-License-Identifier: Apache-2.0 */
/* Places of other hosts' objects. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/catalog_internal.h"
#include "daemon/remote.h"

#define LEASE UINT64_C(1000)

struct place_world {
    struct mcd_catalog *c;
    struct mcd_remote remote[2];
    struct mcd_segment *segments[2];
    struct mcd_reach reaches[2];
};

static void init(struct place_world *w)
{
    size_t size = (sizeof(*w->c) + 127) & ~(size_t)127;

    memset(w, 0, sizeof(*w));
    w->c = aligned_alloc(128, size);
    cr_assert_not_null(w->c);
    memset(w->c, 0, size);
    w->c->places = aligned_alloc(64, MCD_PLACE_SETS * sizeof(*w->c->places));
    cr_assert_not_null(w->c->places);
    memset(w->c->places, 0, MCD_PLACE_SETS * sizeof(*w->c->places));
    for (unsigned i = 0; i < 2; i++) {
        w->segments[i] = mcd_segment_create(NULL, 0, i + 1);
        w->segments[i]->remote = &w->remote[i];
        w->reaches[i].segment = w->segments[i];
    }
}

static void fini(struct place_world *w)
{
    mcd_places_drop(w->c, NULL);
    cr_assert_eq(mcd_places_count(w->c), 0u);
    for (unsigned i = 0; i < 2; i++)
        mcd_segment_put(w->segments[i]);
    free(w->c->places);
    free(w->c);
}

static struct mcd_ask_key key(const char *text)
{
    return (struct mcd_ask_key){.key = mco_key(7, text, (uint32_t)strlen(text))};
}

static void put(struct place_world *w, const char *text, unsigned reach, uint64_t sequence,
                uint64_t until)
{
    struct mcd_ask_key k = key(text);

    k.size = 100 + sequence;
    k.version = (struct mco_version){1, sequence};
    k.crc = 5;
    k.summed = true;
    k.address = 4096;
    k.until = until;
    k.reach = &w->reaches[reach];
    mcd_place_put(w->c, &k, LEASE);
}

static bool find(struct place_world *w, struct mcd_ask_key *k, uint64_t now)
{
    bool found = mcd_place_find(w->c, k, now);

    if (found)
        k->reach->users--; /* as mcd_ask_done_with() */
    return found;
}

Test(catalog_cache, what_was_put_is_found_while_half_of_its_lease_is_left)
{
    struct place_world w;
    struct mcd_ask_key k = key("a"), other = key("b");

    init(&w);
    cr_assert(!find(&w, &k, 0));
    put(&w, "a", 1, 3, 2 * LEASE);
    cr_assert(mcd_place_find(w.c, &k, LEASE));
    cr_assert_eq(w.reaches[1].users, 1u, "its reach is used");
    cr_assert(k.segment == w.segments[1] && k.reach == &w.reaches[1]);
    cr_assert(k.size == 103 && k.version.sequence == 3 && k.address == 4096 && k.summed);
    cr_assert_eq(k.until, 2 * LEASE);
    k.reach->users--;
    cr_assert(!find(&w, &other, 0));
    cr_assert(find(&w, &k, 2 * LEASE - LEASE / 2));
    cr_assert(!find(&w, &k, 2 * LEASE - LEASE / 2 + 1), "it is to be taken anew");
    cr_assert(mcd_place_exists(w.c, &k.key, 2 * LEASE - 1));
    cr_assert(!mcd_place_exists(w.c, &k.key, 2 * LEASE));
    cr_assert_eq(mcd_place_reach(w.c, &k.key), &w.reaches[1], "who had it is known still");
    k.key.tenant = 8;
    cr_assert(!find(&w, &k, 0), "another tenant's is another key");
    fini(&w);
}

Test(catalog_cache, a_life_that_is_over_is_forgotten_and_a_later_one_is_not)
{
    struct mco_version before = {1, 3}, later = {2, 1};
    struct place_world w;
    struct mcd_ask_key k = key("a");

    init(&w);
    put(&w, "a", 0, 4, 9 * LEASE);
    mcd_place_forget(w.c, &k.key, &before);
    cr_assert(find(&w, &k, 0));
    mcd_place_forget(w.c, &k.key, &later);
    cr_assert(!find(&w, &k, 0));
    put(&w, "a", 0, 5, 9 * LEASE);
    put(&w, "a", 1, 6, 9 * LEASE);
    cr_assert(find(&w, &k, 0) && k.version.sequence == 6, "the newest is known");
    cr_assert_eq(mcd_places_count(w.c), 1u);
    mcd_place_forget(w.c, &k.key, NULL);
    cr_assert(!find(&w, &k, 0));
    fini(&w);
}

/* Two holders may say different things for a moment: what was seen once is not gone back behind. */
Test(catalog_cache, earlier_lives_than_the_last_one_seen_are_over)
{
    struct mco_version three = {1, 3}, four = {1, 4}, five = {1, 5}, six = {1, 6};
    struct place_world w;
    struct mcd_ask_key k = key("a"), other = key("b");

    init(&w);
    w.c->remember_ns = UINT64_C(1000000000000);
    cr_assert(!mcd_place_is_over(w.c, &k.key, &three));
    put(&w, "a", 0, 4, 9 * LEASE);
    cr_assert(mcd_place_is_over(w.c, &k.key, &three) && !mcd_place_is_over(w.c, &k.key, &four));
    cr_assert(!mcd_place_is_over(w.c, &other.key, &three), "of another key nothing is known");
    mcd_place_forget(w.c, &k.key, NULL);
    cr_assert(!find(&w, &k, 0) && mcd_place_reach(w.c, &k.key) == NULL);
    cr_assert_eq(mcd_places_count(w.c), 0u);
    cr_assert(mcd_place_is_over(w.c, &k.key, &three) && !mcd_place_is_over(w.c, &k.key, &four));
    mcd_place_forget(w.c, &k.key, &four); /* called back, or dropped */
    cr_assert(mcd_place_is_over(w.c, &k.key, &four) && !mcd_place_is_over(w.c, &k.key, &five));
    put(&w, "a", 1, 5, 9 * LEASE);
    cr_assert(find(&w, &k, 0));
    mcd_place_outdate(w.c, &k.key, &five);
    cr_assert(find(&w, &k, 0), "it is that one");
    mcd_place_outdate(w.c, &k.key, &six);
    cr_assert(!find(&w, &k, 0) && mcd_place_is_over(w.c, &k.key, &five));
    put(&w, "a", 1, 6, 9 * LEASE);
    mcd_places_drop(w.c, &w.reaches[1]);
    cr_assert(!find(&w, &k, 0) && mcd_place_is_over(w.c, &k.key, &five));
    w.c->remember_ns = 1; /* it counts as lost some time, and what is then there is what there is */
    put(&w, "a", 1, 6, 9 * LEASE);
    mcd_place_forget(w.c, &k.key, NULL);
    cr_assert(!mcd_place_is_over(w.c, &k.key, &five));
    fini(&w);
}

Test(catalog_cache, a_holder_of_another_life_is_not_found)
{
    struct place_world w;
    struct mcd_ask_key a = key("a"), b = key("b");

    init(&w);
    put(&w, "a", 0, 1, 9 * LEASE);
    put(&w, "b", 1, 1, 9 * LEASE);
    w.remote[0].status = MCS_STALE;
    cr_assert(!find(&w, &a, 0));
    cr_assert(!mcd_place_exists(w.c, &a.key, 0));
    cr_assert_null(mcd_place_reach(w.c, &a.key));
    cr_assert(find(&w, &b, 0));
    mcd_places_drop(w.c, &w.reaches[1]);
    cr_assert(!find(&w, &b, 0));
    cr_assert_eq(mcd_places_count(w.c), 1u);
    fini(&w);
}

/* Memory is bounded: what was not looked up for the longest time makes way. */
Test(catalog_cache, a_full_set_forgets_what_nobody_asks_for)
{
    struct place_world w;
    struct mcd_ask_key first = key("0");

    init(&w);
    for (unsigned i = 0; i < 4 * MCD_PLACE_WAYS; i++) {
        struct mcd_ask_key k;
        char text[16];

        snprintf(text, sizeof(text), "%u", i);
        k = key(text);
        k.key.hash = first.key.hash; /* all in one set */
        k.until = 9 * LEASE;
        k.reach = &w.reaches[0];
        mcd_place_put(w.c, &k, LEASE);
        cr_assert(find(&w, &first, 0), "asked for after each, %u", i);
    }
    cr_assert_eq(mcd_places_count(w.c), MCD_PLACE_WAYS);
    fini(&w);
}
