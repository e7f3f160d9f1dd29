/* SPDX-License-Identifier: Apache-2.0 */
/* What the directory is held to when there is much, little room, or damage. */
#include "directory_world.h"

/* Lives that are over are remembered, and do not take the place of those that are there. */
Test(directory_bounds, graves_make_way_for_keys)
{
    struct mco_directory *d = made(3, 0, 10);
    uint32_t a = holder(d, 1);
    struct mco_directory_stats st;
    struct mco_order o;
    char text[16];

    for (unsigned i = 0; i < 200; i++) {
        struct mco_key k;
        struct mco_version upto;
        unsigned left;

        snprintf(text, sizeof(text), "k%u", i);
        k = key(text);
        put(d, a, text, 0, 1, S);
        cr_assert_eq(mco_directory_remove(d, &k, &upto, S, &left), MCS_OK);
        o = next(d, S);
        cr_assert_eq(o.kind, MCO_ORDER_DROP);
        mco_directory_done(d, &o, MCS_OK, S);
    }
    for (unsigned i = 0; i < 10; i++) {
        snprintf(text, sizeof(text), "n%u", i);
        put(d, a, text, 0, 1, S);
    }
    cr_assert_eq(begun(d, a, "more", 0, 1, MCO_NO_HOLDER, S).status, MCS_LIMIT);
    mco_directory_get_stats(d, S, &st);
    cr_assert_eq(st.keys, 10);
    mco_directory_destroy(d);
}

static uint32_t filled(struct mco_directory *d, unsigned n, uint64_t used, uint64_t now)
{
    struct mco_holder h = {.identity = n, .life = 1, .capacity = 1 << 20, .used = used};
    bool report;

    snprintf(h.address, sizeof(h.address), "10.0.0.%u:1", n);
    return mco_directory_join(d, &h, now, &report);
}

/* A copy for which nobody had room is made when somebody has. */
Test(directory_bounds, copies_get_a_place_later)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b;
    uint64_t now = S;
    struct mco_order o;

    b = filled(d, 2, 1 << 20, S);
    mco_directory_report_begins(d, b);
    mco_directory_report_ends(d, b, S);
    put(d, a, "k", 0, 2, S);
    for (; now < 20 * S; now += S) {
        mco_directory_heard(d, a, now);
        cr_assert_eq(filled(d, 2, 1 << 20, now), b);
        ticks(d, now);
        no_order(d, now);
    }
    cr_assert_eq(filled(d, 2, 0, now), b);
    for (uint64_t end = now + 70 * S; !mco_directory_next_order(d, now, &o); now += S) {
        cr_assert_lt(now, end);
        mco_directory_heard(d, a, now);
        mco_directory_heard(d, b, now);
        ticks(d, now);
    }
    cr_assert_eq(o.kind, MCO_ORDER_COPY);
    cr_assert_eq(o.holder, b);
    mco_directory_destroy(d);
}

/* Whatever a holder says it has: nobody else's object is dropped for a life that was never given. */
Test(directory_bounds, lives_that_nobody_gave_take_no_place)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_version v = put(d, a, "k", 0, 1, S);

    reported(d, b, "k", (struct mco_version){3, UINT64_C(1) << 50}, true, 1, S);
    reported(d, b, "k", (struct mco_version){4, 1}, true, 1, S);
    reported(d, b, "k", (struct mco_version){UINT64_MAX, UINT64_MAX}, true, 1, S);
    cr_assert(same(found(d, "k", S).version, v));
    cr_assert_eq(found(d, "k", S).holders[0], a);
    no_order(d, S);
    v = put(d, a, "k", MCS_OBJECT_UPSERT, 1, S);
    cr_assert(same(found(d, "k", S).version, v));
    mco_directory_destroy(d);
}

/* A leader that was started anew may have the token of its former life: what that one gave is there, and it goes on behind it. */
Test(directory_bounds, a_former_life_with_the_same_token_is_believed)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1);
    const struct mco_version before = {3, 100};

    reported(d, a, "k", before, true, 1, S);
    cr_assert(same(found(d, "k", S).version, before));
    cr_assert_gt(put(d, a, "other", 0, 1, S).sequence, before.sequence);
    mco_directory_destroy(d);
}

/* Memories that are no more do not use holders' places up, though there was something left for them to drop. */
Test(directory_bounds, dead_memories_make_way)
{
    struct mco_directory *d = made(3, 0, 0);
    uint64_t now = S;
    char text[16];

    for (unsigned i = 1; i <= MCO_HOLDERS_MAX + 100; i++) {
        struct mco_holder h = {
            .identity = i, .life = i, .capacity = 1 << 30, .address = "10.0.0.1:1"};
        struct mco_version upto;
        struct mco_key k;
        unsigned left;
        bool report;
        uint32_t at = mco_directory_join(d, &h, now, &report);

        cr_assert_neq(at, MCO_NO_HOLDER, "life %u", i);
        mco_directory_report_begins(d, at);
        mco_directory_report_ends(d, at, now);
        snprintf(text, sizeof(text), "k%u", i);
        k = key(text);
        put(d, at, text, 0, 1, now);
        now += 6 * S;
        mco_directory_tick(d, now);
        cr_assert_eq(mco_directory_state(d, at), MCO_HOLDER_AWAY);
        cr_assert_eq(mco_directory_remove(d, &k, &upto, now, &left), MCS_OK);
        cr_assert_eq(left, 0u);
        if (i % 1000 == 0)
            ticks(d, now);
    }
    mco_directory_destroy(d);
}

Test(directory_bounds, those_that_are_silent_are_counted)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_version v = put(d, a, "k", 0, 1, S);

    reported(d, b, "k", v, true, 1, S);
    cr_assert_eq(found(d, "k", S).nholders, 2u);
    cr_assert_eq(found(d, "k", S).naway, 0u);
    mco_directory_heard(d, a, 6 * S);
    mco_directory_tick(d, 7 * S);
    cr_assert_eq(found(d, "k", 7 * S).nholders, 1u);
    cr_assert_eq(found(d, "k", 7 * S).naway, 1u);
    mco_directory_destroy(d);
}

/* One report after the other: what the first one did not name is looked for while the second one is still being told. */
Test(directory_bounds, a_report_that_is_being_told_takes_nothing_back)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1);
    struct mco_version v[100];
    bool report;
    char text[16];

    put(d, a, "goes", 0, 1, S);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(text, sizeof(text), "k%u", i);
        v[i] = put(d, a, text, 0, 1, S);
    }
    for (uint64_t life = 2; life < 4; life++) {
        joined(d, 1, "", life, S, &report);
        cr_assert(report);
        mco_directory_report_begins(d, a);
        for (unsigned round = 0; round < 100; round++)
            mco_directory_tick(d, S);
        for (unsigned i = 0; i < 100; i++) {
            snprintf(text, sizeof(text), "k%u", i);
            cr_assert_eq(found(d, text, S).status, MCS_OK, "%s, life %lu", text, life);
            reported(d, a, text, v[i], true, 1, S);
        }
        mco_directory_report_ends(d, a, S);
        mco_directory_tick(d, S); /* what it has not named begins to be looked for */
    }
    for (unsigned round = 0; round < 100; round++)
        mco_directory_tick(d, S);
    cr_assert_eq(found(d, "goes", S).status, MCS_NOT_FOUND);
    mco_directory_destroy(d);
}
