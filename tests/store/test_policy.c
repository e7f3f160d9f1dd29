/* SPDX-License-Identifier: Apache-2.0 */
#include "store/object/policy.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES 512u

/* A store of objects of size 1, which keeps the promises of policy.h. */
struct held {
    const struct mco_policy_ops *ops;
    struct mco_policy *p;
    struct mco_policy_entry entries[ENTRIES];
    bool there[ENTRIES];
    unsigned count;
};

static uint64_t hash_of(unsigned n)
{
    return (n + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static struct mco_hint alone(void)
{
    return (struct mco_hint){.position = MCO_POSITION_NONE};
}

static void open_held(struct held *h, const struct mco_policy_ops *ops, uint64_t capacity)
{
    memset(h, 0, sizeof(*h));
    h->ops = ops;
    cr_assert_eq(ops->create(capacity, &h->p), 0);
}

static void insert(struct held *h, unsigned n, const struct mco_hint *hint)
{
    h->entries[n] = (struct mco_policy_entry){.hash = hash_of(n), .size = 1};
    h->ops->insert(h->p, &h->entries[n], hint);
    h->there[n] = true;
    h->count++;
}

static void drop(struct held *h, unsigned n, bool evicted)
{
    h->ops->remove(h->p, &h->entries[n], evicted);
    memset(&h->entries[n], 0xee, sizeof(h->entries[n]));
    h->there[n] = false;
    h->count--;
}

static unsigned number(const struct held *h, const struct mco_policy_entry *e)
{
    return (unsigned)(e - h->entries);
}

static unsigned evict(struct held *h)
{
    struct mco_policy_entry *e = h->ops->next(h->p, NULL);
    unsigned n;

    cr_assert_not_null(e, "%s: %u are there, none may go", h->ops->name, h->count);
    n = number(h, e);
    cr_assert(h->there[n], "%s: %u is not there", h->ops->name, n);
    drop(h, n, true);
    return n;
}

/* A request for blocks from .. from + n - 1 behind the shared ones; returns how many of its prefix were there. */
static unsigned request(struct held *h, unsigned capacity, const unsigned *blocks, unsigned n)
{
    struct mco_hint hint = {.length = n};
    unsigned hits = 0;

    for (unsigned i = 0; i < n; i++) {
        hint.position = i;
        hint.previous = i == 0 ? 0 : hash_of(blocks[i - 1]);
        if (h->there[blocks[i]]) {
            hits += hits == i;
            h->ops->hit(h->p, &h->entries[blocks[i]], &hint);
            continue;
        }
        if (hits == i)
            h->ops->miss(h->p, hash_of(blocks[i]), &hint);
        while (h->count >= capacity)
            evict(h);
        insert(h, blocks[i], &hint);
    }
    return hits;
}

/* All that is there is named by next(), each at least once, whatever may go. */
static void check_all_named(struct held *h)
{
    bool named[ENTRIES] = {false};
    unsigned count = 0, asked = 0;

    for (struct mco_policy_entry *e = h->ops->next(h->p, NULL); e != NULL;
         e = h->ops->next(h->p, e)) {
        unsigned n = number(h, e);

        cr_assert(h->there[n], "%s: %u is not there", h->ops->name, n);
        count += !named[n];
        named[n] = true;
        cr_assert_leq(++asked, 2 * ENTRIES, "%s: it does not end", h->ops->name);
    }
    cr_assert_eq(count, h->count, "%s: %u of %u", h->ops->name, count, h->count);
}

Test(policy, are_found_by_name)
{
    for (unsigned i = 0; mco_policies[i] != NULL; i++)
        cr_expect_eq(mco_policy_find(mco_policies[i]->name), mco_policies[i]);
    cr_expect_not_null(mco_policy_find("lru"));
    cr_expect_not_null(mco_policy_find("fifo"));
    cr_expect_not_null(mco_policy_find("s3fifo"));
    cr_expect_not_null(mco_policy_find("chain"));
    cr_expect_null(mco_policy_find("belady"));
    cr_expect_null(mco_policy_find(""));
}

Test(policy, each_names_all_that_is_there_and_nothing_else)
{
    static struct held h;

    for (unsigned i = 0; mco_policies[i] != NULL; i++) {
        uint64_t state = 7;

        open_held(&h, mco_policies[i], 100);
        for (unsigned k = 0; k < 200000; k++) {
            struct mco_hint hint = alone();
            unsigned n, what;

            state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
            n = (unsigned)(state >> 40) % ENTRIES;
            what = (unsigned)(state >> 33) % 16;
            if (what >= 8) { /* a chain through neighbours, whole or in part */
                hint.position = n % 32;
                hint.previous = n % 32 == 0 ? 0 : hash_of(n - 1);
                hint.length = 1 + n % 32 + (what & 3);
            }
            if (h.there[n] && what % 8 == 0)
                drop(&h, n, (state >> 50 & 1) != 0);
            else if (h.there[n])
                h.ops->hit(h.p, &h.entries[n], &hint);
            else if (what % 8 < 3)
                h.ops->miss(h.p, hash_of(n), &hint);
            else
                insert(&h, n, &hint);
            while (h.count > 100)
                evict(&h);
            if (k % 1000 == 0)
                check_all_named(&h);
        }
        while (h.count != 0)
            evict(&h);
        cr_expect_null(h.ops->next(h.p, NULL), "%s", h.ops->name);
        h.ops->destroy(h.p);
    }
}

Test(policy, lru_and_fifo_keep_to_their_order)
{
    static struct held h;
    const struct mco_hint hint = alone();

    open_held(&h, mco_policy_find("lru"), 3);
    for (unsigned n = 0; n < 3; n++)
        insert(&h, n, &hint);
    h.ops->hit(h.p, &h.entries[0], &hint);
    cr_expect_eq(evict(&h), 1u);
    cr_expect_eq(evict(&h), 2u);
    cr_expect_eq(evict(&h), 0u);
    h.ops->destroy(h.p);
    open_held(&h, mco_policy_find("fifo"), 3);
    for (unsigned n = 0; n < 3; n++)
        insert(&h, n, &hint);
    h.ops->hit(h.p, &h.entries[0], &hint);
    cr_expect_eq(evict(&h), 0u);
    cr_expect_eq(evict(&h), 1u);
    h.ops->destroy(h.p);
}

Test(policy, s3fifo_keeps_what_was_used_through_a_scan)
{
    static struct held h;
    const struct mco_hint hint = alone();

    open_held(&h, mco_policy_find("s3fifo"), 100);
    for (unsigned n = 0; n < 50; n++) {
        insert(&h, n, &hint);
        h.ops->hit(h.p, &h.entries[n], &hint);
        h.ops->hit(h.p, &h.entries[n], &hint);
    }
    for (unsigned n = 50; n < 500; n++) {
        while (h.count >= 100)
            evict(&h);
        insert(&h, n, &hint);
    }
    for (unsigned n = 0; n < 50; n++)
        cr_expect(h.there[n], "%u", n);
    for (unsigned n = 500; n < 501; n++) { /* one that comes back soon after it went stays */
        unsigned gone = evict(&h);

        insert(&h, gone, &hint);
        for (unsigned k = 0; k < 20; k++)
            evict(&h);
        cr_expect(h.there[gone]);
    }
    h.ops->destroy(h.p);
}

Test(policy, a_chain_goes_from_its_end)
{
    static struct held h;
    unsigned blocks[20];

    open_held(&h, mco_policy_find("chain"), 100);
    for (unsigned i = 0; i < 20; i++)
        blocks[i] = i;
    request(&h, 100, blocks, 20);
    for (unsigned i = 20; i-- > 0;)
        cr_expect_eq(evict(&h), i);
    h.ops->destroy(h.p);
}

/* While the walk of the turn before is still open, and looked at again in between, as a GET does. */
Test(policy, a_conversation_that_comes_back_at_once_goes_on_as_one)
{
    static struct held h;
    unsigned blocks[] = {0, 1, 2, 3, 5, 6, 7}, other[] = {100, 101, 102};

    open_held(&h, mco_policy_find("chain"), 100);
    blocks[4] = 4; /* the last block of the first turn, which the second one does not have */
    request(&h, 100, blocks, 5);
    cr_expect_eq(request(&h, 100, blocks, 5), 5u);
    request(&h, 100, other, 3);
    blocks[4] = 5;
    cr_expect_eq(request(&h, 100, blocks, 7), 4u);
    cr_expect_eq(request(&h, 100, blocks, 4), 4u);
    drop(&h, 4, false);
    for (unsigned last = 8, i = 0; i < 10; i++) {
        unsigned n = evict(&h);

        if (n >= 100)
            continue;
        cr_expect_lt(n, last, "%u before %u", n, last);
        last = n;
    }
    cr_expect_eq(h.count, 0u);
    h.ops->destroy(h.p);
}

Test(policy, what_has_blocks_behind_it_stays)
{
    static struct held h;
    unsigned a[] = {0, 1, 2, 3, 4}, b[] = {0, 1, 5, 6, 7};
    bool gone[8] = {false};

    open_held(&h, mco_policy_find("chain"), 100);
    request(&h, 100, a, 5);
    cr_expect_eq(request(&h, 100, b, 5), 2u);
    while (h.count != 0) {
        unsigned n = evict(&h);

        gone[n] = true;
        if (n == 1)
            cr_expect(gone[2] && gone[5]);
        if (n == 0)
            cr_expect(gone[1]);
        if (n == 2 || n == 3 || n == 5 || n == 6)
            cr_expect(gone[n + 1], "%u before the one behind it", n);
    }
    h.ops->destroy(h.p);
}

Test(policy, what_lost_its_predecessor_goes_first)
{
    static struct held h;
    unsigned a[] = {0, 1, 2, 3};
    struct mco_hint hint = {.position = 2, .length = 4};

    open_held(&h, mco_policy_find("chain"), 100);
    request(&h, 100, a, 2);
    hint.previous = hash_of(1);
    insert(&h, 2, &hint);
    drop(&h, 2, true); /* it made room for its own successor */
    hint.position = 3;
    hint.previous = hash_of(2);
    insert(&h, 3, &hint);
    cr_expect_eq(evict(&h), 3u);
    h.ops->destroy(h.p);
}

/* Conversations that come back, and prompts that never do, in a memory that holds a few of them. */
static unsigned talk(const struct mco_policy_ops *ops)
{
    static struct held h;
    unsigned hits = 0;

    open_held(&h, ops, 60);
    for (unsigned round = 0; round < 400; round++) {
        unsigned blocks[40], talker = round % 4, turn = round / 4 % 10;

        /* 4 talkers: the next turn is the last one and a block more, and its last block comes anew each time */
        for (unsigned i = 0; i < 2 + turn; i++)
            blocks[i] = 20 * talker + i;
        blocks[1 + turn] = 80 + 10 * talker + turn;
        hits += request(&h, 60, blocks, 2 + turn);
        /* and between them a long prompt of somebody who asks once */
        for (unsigned i = 0; i < 40; i++)
            blocks[i] = 120 + (40 * round + i) % 360;
        request(&h, 60, blocks, 40);
    }
    h.ops->destroy(h.p);
    return hits;
}

Test(policy, chain_learns_who_comes_back)
{
    unsigned lru = talk(mco_policy_find("lru")), chain = talk(mco_policy_find("chain"));

    cr_expect_gt(chain, lru, "%u, and %u", chain, lru);
    cr_expect_gt(chain, 1000u, "%u of 2200", chain);
}
