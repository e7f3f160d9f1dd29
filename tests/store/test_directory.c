/* SPDX-License-Identifier: Apache-2.0 */
/* The directory's rules. */
#include "directory_world.h"

Test(directory, a_put_is_found_when_it_has_ended)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_started s = begun(d, a, "k", 0, 1, MCO_NO_HOLDER, S);
    struct mco_found_at f;

    cr_assert_eq(s.status, MCS_OK);
    cr_assert_eq(s.version.token, 3);
    cr_assert_eq(s.version.sequence, 1);
    cr_assert_eq(found(d, "k", S).status, MCS_NOT_FOUND);
    cr_assert_eq(begun(d, b, "k", 0, 1, MCO_NO_HOLDER, S).status, MCS_IN_USE);
    cr_assert_eq(begun(d, b, "k", MCS_OBJECT_UPSERT, 1, MCO_NO_HOLDER, S).status, MCS_IN_USE);
    cr_assert_eq(ended(d, b, "k", s.version, true, S), MCS_NOT_OWNER);
    cr_assert_eq(ended(d, a, "k", s.version, true, S), MCS_OK);
    cr_assert_eq(ended(d, a, "k", s.version, true, S), MCS_OK, "twice is once");
    f = found(d, "k", S);
    cr_assert_eq(f.status, MCS_OK);
    cr_assert_eq(f.nholders, 1);
    cr_assert_eq(f.holders[0], a);
    cr_assert_eq(f.crc, 5);
    cr_assert_eq(f.size, 100);
    cr_assert(same(f.version, s.version));
    s = begun(d, b, "k", 0, 1, MCO_NO_HOLDER, S);
    cr_assert_eq(s.status, MCS_EXISTS);
    cr_assert(same(f.version, s.version));
    no_order(d, S);
    mco_directory_destroy(d);
}

Test(directory, a_put_is_given_up_or_lost_with_its_writer)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_started s = begun(d, a, "k", 0, 1, MCO_NO_HOLDER, S);
    struct mco_directory_stats st;

    cr_assert_eq(ended(d, a, "k", s.version, false, S), MCS_OK);
    s = begun(d, b, "k", 0, 1, MCO_NO_HOLDER, S);
    cr_assert_eq(s.status, MCS_OK);
    mco_directory_left(d, b, S);
    s = begun(d, a, "k", 0, 1, MCO_NO_HOLDER, S);
    cr_assert_eq(s.status, MCS_OK, "the put of one that has left is undone at once");
    mco_directory_heard(d, a, 31 * S);
    ticks(d, 31 * S);
    cr_assert_eq(begun(d, a, "k", 0, 1, MCO_NO_HOLDER, 31 * S).status, MCS_OK,
                 "it was under way for too long");
    joined(d, 1, "", 2, 31 * S,
           NULL); /* a new life of the agent knows nothing of the puts of the one before */
    mco_directory_get_stats(d, S, &st);
    cr_assert_eq(st.keys, 0);
    cr_assert_eq(st.puts_open, 0);
    cr_assert_eq(st.undone, 4);
    mco_directory_destroy(d);
}

/* Where it was sealed it has taken the place of what was there: refused, both would be gone. */
Test(directory, a_put_that_was_undone_and_ends_is_taken_unless_there_is_a_later_one)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_version v = put(d, a, "k", 0, 1, S), upto;
    struct mco_started s = begun(d, a, "k", MCS_OBJECT_UPSERT, 1, MCO_NO_HOLDER, S), t;
    struct mco_key k = key("k");
    unsigned left;

    mco_directory_left(d, a, S);
    joined(d, 1, "", 1, S, NULL);
    cr_assert_eq(ended(d, a, "k", s.version, true, S), MCS_OK);
    cr_assert(same(found(d, "k", S).version, s.version));
    cr_assert_gt(mco_version_compare(&s.version, &v), 0);
    /* another has begun one meanwhile, which is later */
    s = begun(d, a, "k", MCS_OBJECT_UPSERT, 1, MCO_NO_HOLDER, S);
    mco_directory_left(d, a, S);
    joined(d, 1, "", 1, S, NULL);
    t = begun(d, b, "k", MCS_OBJECT_UPSERT, 1, MCO_NO_HOLDER, S);
    cr_assert_eq(t.status, MCS_OK);
    cr_assert_eq(ended(d, a, "k", s.version, true, S), MCS_OK);
    cr_assert_eq(ended(d, b, "k", t.version, true, S), MCS_OK);
    cr_assert(same(found(d, "k", S).version, t.version));
    /* and here it has ended */
    s = begun(d, a, "k", MCS_OBJECT_UPSERT, 1, MCO_NO_HOLDER, S);
    mco_directory_left(d, a, S);
    joined(d, 1, "", 1, S, NULL);
    v = put(d, b, "k", MCS_OBJECT_UPSERT, 1, S);
    cr_assert_eq(ended(d, a, "k", s.version, true, S), MCS_NOT_OWNER);
    cr_assert(same(found(d, "k", S).version, v));
    mco_directory_remove(d, &k, &upto, S, &left);
    cr_assert_eq(ended(d, a, "k", s.version, true, S), MCS_NOT_OWNER, "or was removed");
    mco_directory_destroy(d);
}

/* A copy that was ordered is counted on until it is said to be made: an earlier event may say that it is there, and another that it is
 * not any more. */
Test(directory, a_copy_that_is_being_made_is_dropped_with_the_rest)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_version v = put(d, a, "k", 0, 2, S), upto;
    struct mco_key k = key("k");
    struct mco_order o;
    unsigned left;

    o = next(d, S);
    cr_assert(o.kind == MCO_ORDER_COPY && o.holder == b);
    mco_directory_left(d, b, S); /* it was made, and evicted; that it was made is not heard */
    joined(d, 2, "", 1, S, NULL);
    o = next(d, S);
    cr_assert(o.kind == MCO_ORDER_COPY && o.holder == b);
    reported(d, b, "k", v, true, 1, S);
    reported(d, b, "k", v, false, 1, S);
    mco_directory_remove(d, &k, &upto, S, &left);
    cr_assert_eq(left, 2, "who makes a copy just now is to drop it, too");
    mco_directory_destroy(d);
}

Test(directory, an_upsert_switches_and_the_earlier_life_is_dropped)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_version v = put(d, a, "k", 0, 1, S), w;
    struct mco_started s = begun(d, b, "k", MCS_OBJECT_UPSERT, 1, MCO_NO_HOLDER, S);
    struct mco_key k = key("k");
    struct mco_order o;

    cr_assert(same(found(d, "k", S).version, v), "until it ends, what was there is found");
    w = s.version;
    cr_assert_eq(ended(d, b, "k", w, true, S), MCS_OK);
    cr_assert(same(found(d, "k", S).version, w));
    cr_assert_eq(found(d, "k", S).holders[0], b);
    cr_assert_eq(mco_directory_pending(d, &k, &w, S), 1);
    o = next(d, S);
    cr_assert_eq(o.kind, MCO_ORDER_DROP);
    cr_assert_eq(o.holder, a);
    cr_assert(same(o.version, v));
    mco_directory_done(d, &o, MCS_IN_USE, S);
    cr_assert_eq(mco_directory_pending(d, &k, &w, S), 1, "not confirmed");
    mco_directory_heard(d, a, 7 * S);
    mco_directory_heard(d, b, 7 * S);
    ticks(d, 7 * S);
    o = next(d, 7 * S);
    mco_directory_done(d, &o, MCS_OK, 7 * S);
    cr_assert_eq(mco_directory_pending(d, &k, &w, 7 * S), 0);
    /* the earlier one is told again, late */
    reported(d, a, "k", v, true, 1, 7 * S);
    o = next(d, 7 * S);
    cr_assert_eq(o.kind, MCO_ORDER_DROP);
    cr_assert_eq(o.holder, a);
    cr_assert(same(found(d, "k", 7 * S).version, w));
    mco_directory_destroy(d);
}

Test(directory, a_removal_is_final)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_version v = put(d, a, "k", 0, 1, S), upto, w;
    struct mco_key k = key("k");
    struct mco_order o, p;
    unsigned left;

    reported(d, b, "k", v, true, 1, S);
    cr_assert_eq(found(d, "k", S).nholders, 2);
    cr_assert_eq(mco_directory_remove(d, &k, &upto, S, &left), MCS_OK);
    cr_assert_eq(left, 2);
    cr_assert(same(upto, v));
    cr_assert_eq(found(d, "k", S).status, MCS_NOT_FOUND);
    cr_assert_eq(mco_directory_remove(d, &k, &upto, S, &left), MCS_NOT_FOUND);
    cr_assert_eq(left, 2, "who removes it again waits, too");
    o = next(d, S);
    p = next(d, S);
    no_order(d, S);
    cr_assert_eq(o.kind, MCO_ORDER_DROP);
    cr_assert_neq(o.holder, p.holder);
    /* what had not been told yet */
    reported(d, p.holder, "k", v, true, 1, S);
    cr_assert_eq(found(d, "k", S).status, MCS_NOT_FOUND);
    mco_directory_done(d, &o, MCS_OK, S);
    cr_assert_eq(mco_directory_pending(d, &k, &upto, S), 1);
    mco_directory_done(d, &p, MCS_NOT_FOUND, S);
    cr_assert_eq(mco_directory_pending(d, &k, &upto, S), 0);
    reported(d, p.holder, "k", v, true, 1, S);
    cr_assert_eq(found(d, "k", S).status, MCS_NOT_FOUND, "a late report brings nothing back");
    o = next(d, S);
    cr_assert_eq(o.kind, MCO_ORDER_DROP);
    cr_assert_eq(ended(d, a, "k", v, true, S), MCS_NOT_OWNER);
    w = put(d, a, "k", 0, 1, S);
    cr_assert_gt(mco_version_compare(&w, &v), 0);
    cr_assert_eq(found(d, "k", S).status, MCS_OK);
    mco_directory_destroy(d);
}

/* Two removals of two lives: the first is not answered by what the second still waits for, nor the other way. */
Test(directory, a_drop_that_grows_is_given_again)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1);
    struct mco_version first, second;
    struct mco_key k = key("k");
    struct mco_order o, p;
    unsigned left;

    put(d, a, "k", 0, 1, S);
    mco_directory_remove(d, &k, &first, S, &left);
    o = next(d, S);
    put(d, a, "k", 0, 1, S);
    mco_directory_remove(d, &k, &second, S, &left);
    cr_assert_eq(left, 1);
    mco_directory_done(d, &o, MCS_OK, S);
    cr_assert_eq(mco_directory_pending(d, &k, &second, S), 1);
    p = next(d, S);
    cr_assert(same(p.version, second));
    mco_directory_done(d, &p, MCS_OK, S);
    cr_assert_eq(mco_directory_pending(d, &k, &first, S), 0);
    cr_assert_eq(mco_directory_pending(d, &k, &second, S), 0);
    mco_directory_destroy(d);
}

Test(directory, nothing_is_absent_before_all_have_reported)
{
    struct mco_directory *d = made(9, 20 * S, 0);
    struct mco_version v = {5, 1}, w = {6, 1}, upto;
    struct mco_key k = key("unknown");
    struct mco_order o;
    bool report;
    unsigned left;
    uint32_t a, b;

    mco_directory_expect(d, "10.0.0.1:1");
    mco_directory_expect(d, "10.0.0.2:1");
    mco_directory_expected(d);
    cr_assert(mco_directory_rebuilding(d, S));
    a = joined(d, 1, "", 1, S, &report);
    cr_assert(report);
    mco_directory_report_begins(d, a);
    reported(d, a, "k", v, true, 1, S);
    reported(d, a, "both", v, true, 1, S);
    cr_assert_eq(found(d, "k", S).status, MCS_OK, "what is told is known at once");
    cr_assert_eq(found(d, "unknown", S).status, MCS_REBUILDING);
    cr_assert_eq(begun(d, a, "unknown", 0, 1, MCO_NO_HOLDER, S).status, MCS_REBUILDING);
    cr_assert_eq(mco_directory_remove(d, &k, &upto, S, &left), MCS_REBUILDING);
    k = key("k");
    cr_assert_eq(mco_directory_remove(d, &k, &upto, S, &left), MCS_REBUILDING,
                 "another may have it, too");
    cr_assert_eq(mco_directory_pending(d, &k, &v, S), 1);
    mco_directory_report_ends(d, a, S);
    cr_assert_eq(found(d, "unknown", S).status, MCS_REBUILDING, "another is missing");
    b = joined(d, 2, "", 1, S, &report);
    mco_directory_report_begins(d, b);
    reported(d, b, "both", w, true, 1, S);
    mco_directory_report_ends(d, b, S);
    ticks(d, S);
    cr_assert_not(mco_directory_rebuilding(d, S));
    cr_assert_eq(mco_directory_pending(d, &k, &v, S), 0);
    cr_assert_eq(found(d, "unknown", S).status, MCS_NOT_FOUND);
    /* of two lives the later one is it */
    cr_assert(same(found(d, "both", S).version, w));
    o = next(d, S);
    cr_assert_eq(o.kind, MCO_ORDER_DROP);
    cr_assert_eq(o.holder, a);
    cr_assert(same(o.version, v));
    joined(d, 1, "", 1, S, &report);
    cr_assert_not(report, "a beat");
    mco_directory_destroy(d);

    /* one that never comes is not waited for longer than said */
    d = made(9, 20 * S, 0);
    mco_directory_expect(d, "10.0.0.1:1");
    mco_directory_expected(d);
    ticks(d, S / 2); /* a clock that was read before the reign began */
    cr_assert(mco_directory_rebuilding(d, 20 * S));
    cr_assert_not(mco_directory_rebuilding(d, 21 * S));
    mco_directory_destroy(d);
    d = made(9, 20 * S, 0);
    cr_assert(mco_directory_rebuilding(d, 20 * S), "nobody has said who is expected");
    mco_directory_destroy(d);
}

/* A put that began under the leader before, and ends under this one. */
Test(directory, a_put_over_a_change_of_the_leader)
{
    struct mco_directory *d = made(9, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_started s;
    struct mco_order o;

    cr_assert_eq(ended(d, a, "k", (struct mco_version){5, 4}, true, S), MCS_OK);
    cr_assert_eq(found(d, "k", S).status, MCS_OK);
    cr_assert_eq(ended(d, b, "k", (struct mco_version){5, 3}, true, S), MCS_NOT_OWNER);
    cr_assert_eq(ended(d, b, "z", (struct mco_version){9, 77}, true, S), MCS_NOT_OWNER,
                 "this one has begun no such put");
    cr_assert_eq(ended(d, b, "z", (struct mco_version){11, 1}, true, S), MCS_NOT_OWNER,
                 "of a later leader");
    /* the same key on both sides */
    s = begun(d, b, "m", 0, 1, MCO_NO_HOLDER, S);
    cr_assert_eq(ended(d, a, "m", (struct mco_version){5, 5}, true, S), MCS_OK);
    cr_assert_eq(ended(d, b, "m", s.version, true, S), MCS_OK);
    cr_assert(same(found(d, "m", S).version, s.version));
    o = next(d, S);
    cr_assert_eq(o.holder, a);
    s = begun(d, b, "n", 0, 1, MCO_NO_HOLDER, S);
    cr_assert_eq(ended(d, b, "n", s.version, true, S), MCS_OK);
    cr_assert_eq(ended(d, a, "n", (struct mco_version){5, 6}, true, S), MCS_NOT_OWNER);
    cr_assert(same(found(d, "n", S).version, s.version));
    mco_directory_destroy(d);
}

Test(directory, replicas_lie_apart)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = joined(d, 1, "east", 1, S, NULL), b = joined(d, 2, "east", 1, S, NULL),
             c = joined(d, 3, "west", 1, S, NULL), all[] = {a, b, c};
    struct mco_version v;
    struct mco_key k = key("k");
    struct mco_order o;
    unsigned copies;

    for (unsigned i = 0; i < 3; i++) {
        mco_directory_report_begins(d, all[i]);
        mco_directory_report_ends(d, all[i], S);
    }
    v = put(d, a, "k", 0, 2, S);
    cr_assert_eq(mco_directory_missing(d, &k, &v, &copies), 1);
    cr_assert_eq(copies, 1);
    o = next(d, S);
    cr_assert_eq(o.kind, MCO_ORDER_COPY);
    cr_assert_eq(o.from, a);
    cr_assert_eq(o.holder, c, "in another domain");
    mco_directory_done(d, &o, MCS_NO_SPACE, S);
    o = next(d, S);
    cr_assert_eq(o.holder, b, "another place, then");
    mco_directory_done(d, &o, MCS_OK, S);
    cr_assert_eq(mco_directory_missing(d, &k, &v, &copies), 0);
    cr_assert_eq(copies, 2);
    cr_assert_eq(found(d, "k", S).nholders, 2);
    no_order(d, S);
    /* more than there are hosts */
    v = put(d, a, "l", 0, 8, S);
    k = key("l");
    cr_assert_eq(mco_directory_missing(d, &k, &v, &copies), 2);
    mco_directory_destroy(d);
}

Test(directory, a_preferred_host_gets_it)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_started s = begun(d, a, "k", 0, 1, b, S);
    struct mco_order o;

    cr_assert_eq(s.nplaces, 2);
    cr_assert_eq(s.places[0], a);
    cr_assert_eq(s.places[1], b);
    cr_assert_eq(ended(d, a, "k", s.version, true, S), MCS_OK);
    o = next(d, S);
    cr_assert_eq(o.kind, MCO_ORDER_MOVE);
    cr_assert_eq(o.holder, b);
    cr_assert_eq(o.from, a);
    mco_directory_done(d, &o, MCS_OK, S);
    o = next(d, S);
    cr_assert_eq(o.kind, MCO_ORDER_DROP);
    cr_assert_eq(o.holder, a);
    cr_assert_eq(found(d, "k", S).nholders, 1);
    cr_assert_eq(found(d, "k", S).holders[0], b);
    reported(d, a, "k", s.version, true, 1, S);
    cr_assert_eq(found(d, "k", S).nholders, 1, "it is about to be dropped there");
    mco_directory_done(d, &o, MCS_OK, S);
    mco_directory_destroy(d);
}

static enum mco_placed placed(struct mco_directory *d, const char *text, uint32_t from, uint32_t to)
{
    struct mco_key k = key(text);

    return mco_directory_placed(d, &k, from, to);
}

static enum mcs_status place(struct mco_directory *d, const char *text, uint32_t from, uint32_t to)
{
    struct mco_key k = key(text);

    return mco_directory_place(d, &k, from, to, S);
}

Test(directory, copies_and_moves_by_request)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2), c = holder(d, 3);
    struct mco_order o;

    put(d, a, "k", 0, 1, S);
    cr_assert_eq(place(d, "l", MCO_NO_HOLDER, b), MCS_NOT_FOUND);
    cr_assert_eq(place(d, "k", MCO_NO_HOLDER, 77), MCS_NOT_FOUND);
    cr_assert_eq(place(d, "k", 77, b), MCS_NOT_FOUND);
    cr_assert_eq(place(d, "k", c, b), MCS_NOT_FOUND, "it is not there");
    cr_assert_eq(place(d, "k", MCO_NO_HOLDER, a), MCS_OK, "it has it");
    cr_assert_eq(place(d, "k", a, a), MCS_OK);
    no_order(d, S);

    /* one more; asked for twice it is made once */
    cr_assert_eq(place(d, "k", MCO_NO_HOLDER, b), MCS_OK);
    cr_assert_eq(place(d, "k", MCO_NO_HOLDER, b), MCS_OK);
    cr_assert_eq(placed(d, "k", MCO_NO_HOLDER, b), MCO_PLACING);
    o = next(d, S);
    cr_assert_eq(o.kind, MCO_ORDER_COPY);
    cr_assert_eq(o.holder, b);
    no_order(d, S);
    cr_assert_eq(place(d, "k", a, b), MCS_IN_USE, "it is on its way there");
    mco_directory_done(d, &o, MCS_NO_SPACE, S);
    cr_assert_eq(placed(d, "k", MCO_NO_HOLDER, b), MCO_NOT_PLACED);
    no_order(d, S); /* there or nowhere */
    cr_assert_eq(place(d, "k", MCO_NO_HOLDER, b), MCS_OK);
    o = next(d, S);
    mco_directory_done(d, &o, MCS_OK, S);
    cr_assert_eq(placed(d, "k", MCO_NO_HOLDER, b), MCO_PLACED);
    cr_assert_eq(found(d, "k", S).nholders, 2);

    /* from one to another: not before the first has dropped it */
    cr_assert_eq(place(d, "k", a, c), MCS_OK);
    o = next(d, S);
    cr_assert_eq(o.kind, MCO_ORDER_MOVE);
    cr_assert_eq(o.holder, c);
    cr_assert_eq(o.from, a);
    mco_directory_done(d, &o, MCS_OK, S);
    cr_assert_eq(placed(d, "k", a, c), MCO_PLACING);
    o = next(d, S);
    cr_assert_eq(o.kind, MCO_ORDER_DROP);
    cr_assert_eq(o.holder, a);
    cr_assert_eq(place(d, "k", c, a), MCS_IN_USE, "it is to drop it first");
    mco_directory_done(d, &o, MCS_OK, S);
    cr_assert_eq(placed(d, "k", a, c), MCO_PLACED);

    /* both have it */
    cr_assert_eq(place(d, "k", b, c), MCS_OK);
    o = next(d, S);
    cr_assert_eq(o.kind, MCO_ORDER_DROP);
    cr_assert_eq(o.holder, b);
    mco_directory_done(d, &o, MCS_OK, S);
    cr_assert_eq(found(d, "k", S).nholders, 1);
    cr_assert_eq(found(d, "k", S).holders[0], c);
    ticks(d, S);
    no_order(d, S); /* one is as many as it is to have now */

    mco_directory_drain(d, a, true);
    cr_assert_eq(place(d, "k", MCO_NO_HOLDER, a), MCS_NO_SPACE, "drained");
    mco_directory_left(d, b, S);
    cr_assert_eq(place(d, "k", MCO_NO_HOLDER, b), MCS_PEER_UNREACHABLE);
    mco_directory_destroy(d);
}

struct lost {
    unsigned n, left;
    char text[64];
};

static void lose(void *context, const struct mco_key *k, const struct mco_version *version,
                 uint64_t size, const struct mco_holder *h, unsigned left)
{
    struct lost *l = context;

    (void)version, (void)size, (void)h;
    l->n++;
    if (left != 0)
        l->left = left;
    else
        snprintf(l->text, sizeof(l->text), "%.*s", (int)k->length, (const char *)k->bytes);
}

Test(directory, a_host_is_silent_then_lost)
{
    struct lost l = {0};
    struct mco_directory_options o = {.token = 3,
                                      .put_ns = 30 * S,
                                      .away_ns = 5 * S,
                                      .gone_ns = 60 * S,
                                      .now = S,
                                      .lost = lose,
                                      .context = &l};
    struct mco_directory *d;
    struct mco_order order;
    uint32_t a, b, c;
    uint64_t now = S;
    bool report;

    cr_assert_eq(mco_directory_create(&o, &d), 0);
    a = holder(d, 1);
    b = holder(d, 2);
    c = holder(d, 3);
    put(d, a, "only", 0, 1, now);
    put(d, a, "two", 0, 2, now);
    order = next(d, now);
    mco_directory_done(d, &order, MCS_OK, now);
    now = 8 * S;
    mco_directory_stood_still(d, 4 * S);
    ticks(d, now);
    cr_assert_eq(mco_directory_state(d, a), MCO_HOLDER_HERE, "it was not listened to meanwhile");
    now = 11 * S;
    mco_directory_heard(d, b, now);
    mco_directory_heard(d, c, now);
    ticks(d, now);
    cr_assert_eq(mco_directory_state(d, a), MCO_HOLDER_AWAY);
    cr_assert_eq(found(d, "only", now).status, MCS_PEER_UNREACHABLE);
    cr_assert_eq(found(d, "two", now).status, MCS_OK);
    cr_assert_eq(found(d, "two", now).nholders, 1);
    no_order(d, now);
    /* it was only stalled: it has what it had */
    cr_assert_eq(joined(d, 1, "", 1, now, &report), a);
    cr_assert_not(report);
    cr_assert_eq(found(d, "only", now).status, MCS_OK);
    now = 80 * S;
    mco_directory_heard(d, b, now);
    mco_directory_heard(d, c, now);
    ticks(d, now);
    cr_assert_eq(mco_directory_state(d, a), MCO_HOLDER_GONE);
    cr_assert_eq(found(d, "only", now).status, MCS_NOT_FOUND);
    cr_assert_eq(l.n, 2, "all that the host has had is told, also what others have");
    cr_assert_str_eq(l.text, "only");
    cr_assert_eq(l.left, 1);
    order = next(d, now);
    cr_assert_eq(order.kind, MCO_ORDER_COPY, "the one that is left is copied");
    mco_directory_done(d, &order, MCS_OK, now);
    cr_assert_eq(found(d, "two", now).nholders, 2);
    no_order(d, now);
    /* and it comes back after all */
    joined(d, 1, "", 1, now, &report);
    cr_assert(report);
    mco_directory_report_begins(d, a);
    reported(d, a, "only", (struct mco_version){3, 1}, true, 1, now);
    mco_directory_report_ends(d, a, now);
    cr_assert_eq(found(d, "only", now).status, MCS_OK);
    mco_directory_destroy(d);
}

Test(directory, who_comes_back_drops_what_was_removed_meanwhile)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_version upto;
    struct mco_key k = key("k");
    struct mco_order o;
    unsigned left;
    bool report;

    put(d, a, "k", 0, 1, S);
    put(d, a, "m", 0, 1, S);
    mco_directory_left(d, a, S);
    mco_directory_heard(d, b, 8 * S);
    ticks(d, 8 * S);
    cr_assert_eq(mco_directory_remove(d, &k, &upto, 8 * S, &left), MCS_OK);
    cr_assert_eq(left, 0, "one that is away is not waited for");
    /* a key whose holders are all away can be put anew */
    put(d, b, "m", 0, 1, 8 * S);
    no_order(d, 8 * S);
    joined(d, 1, "", 1, 8 * S, &report);
    cr_assert_not(report);
    cr_assert_eq(found(d, "k", 8 * S).status, MCS_NOT_FOUND);
    o = next(d, 8 * S);
    cr_assert_eq(o.kind, MCO_ORDER_DROP);
    cr_assert_eq(o.holder, a);
    o = next(d, 8 * S);
    cr_assert_eq(o.kind, MCO_ORDER_DROP);
    cr_assert_eq(found(d, "m", 8 * S).holders[0], b);
    mco_directory_destroy(d);
}

/* Graves are bounded: what was forgotten does not come back either. */
Test(directory, a_forgotten_grave_leaves_a_floor)
{
    struct mco_directory_options opt = {.token = 3,
                                        .put_ns = 30 * S,
                                        .away_ns = 5 * S,
                                        .gone_ns = 600 * S,
                                        .graves_max = 10,
                                        .now = S};
    struct mco_directory *d;
    struct mco_directory_stats st;
    struct mco_version first = {0}, v, upto;
    struct mco_order o;
    uint32_t a, b;
    unsigned left;
    bool report;
    char text[16];

    cr_assert_eq(mco_directory_create(&opt, &d), 0);
    a = holder(d, 1);
    b = holder(d, 2);
    first = put(d, a, "first", 0, 1, S);
    v = put(d, a, "kept", 0, 1, S);
    mco_directory_left(d, a, S);
    mco_directory_heard(d, b, 8 * S);
    ticks(d, 8 * S);
    struct mco_key k = key("first");
    cr_assert_eq(mco_directory_remove(d, &k, &upto, 8 * S, &left), MCS_OK);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(text, sizeof(text), "x%u", i);
        put(d, b, text, 0, 1, 8 * S);
        k = key(text);
        mco_directory_remove(d, &k, &upto, 8 * S, &left);
        o = next(d, 8 * S);
        mco_directory_done(d, &o, MCS_OK, 8 * S);
    }
    mco_directory_get_stats(d, 8 * S, &st);
    cr_assert_leq(st.keys, 12);
    joined(d, 1, "", 1, 8 * S, &report);
    cr_assert(report, "what it would have to drop is not known any more");
    mco_directory_report_begins(d, a);
    reported(d, a, "first", first, true, 1, 8 * S);
    reported(d, a, "kept", v, true, 1, 8 * S);
    mco_directory_report_ends(d, a, 8 * S);
    ticks(d, 8 * S);
    cr_assert_eq(found(d, "first", 8 * S).status, MCS_NOT_FOUND);
    cr_assert_eq(found(d, "kept", 8 * S).status, MCS_OK);
    o = next(d, 8 * S);
    cr_assert_eq(o.kind, MCO_ORDER_DROP);
    cr_assert(same(o.version, first) || mco_version_compare(&o.version, &first) > 0);
    mco_directory_destroy(d);
}

Test(directory, a_full_report_takes_back_what_it_does_not_name)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1);
    struct mco_version v = put(d, a, "stays", 0, 1, S);
    bool report;

    put(d, a, "goes", 0, 1, S);
    joined(d, 1, "", 2, S, &report);
    cr_assert(report, "another life of the agent");
    mco_directory_report_begins(d, a);
    reported(d, a, "stays", v, true, 1, S);
    mco_directory_report_ends(d, a, S);
    ticks(d, S);
    cr_assert_eq(found(d, "stays", S).status, MCS_OK);
    cr_assert_eq(found(d, "goes", S).status, MCS_NOT_FOUND);
    /* another memory at the same address: what the one before had is lost */
    struct mco_holder h = {.identity = 99, .life = 3, .capacity = 1 << 20};
    snprintf(h.address, sizeof(h.address), "10.0.0.1:1");
    mco_directory_join(d, &h, S, &report);
    cr_assert(report);
    ticks(d, S);
    cr_assert_eq(found(d, "stays", S).status, MCS_NOT_FOUND);
    mco_directory_destroy(d);
}

Test(directory, eviction_is_told_and_makes_no_copies)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1);
    struct mco_version v;
    struct mco_order o;

    holder(d, 2);
    v = put(d, a, "k", 0, 2, S);
    o = next(d, S);
    mco_directory_done(d, &o, MCS_OK, S);
    reported(d, a, "k", v, false, 0, S);
    cr_assert_eq(found(d, "k", S).nholders, 1);
    ticks(d, S);
    no_order(d, S);
    reported(d, o.holder, "k", v, false, 0, S);
    cr_assert_eq(found(d, "k", S).status, MCS_NOT_FOUND);
    struct mco_directory_stats st;
    mco_directory_get_stats(d, S, &st);
    cr_assert_eq(st.keys, 0);
    mco_directory_destroy(d);
}

Test(directory, a_host_is_drained)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2), c = holder(d, 3);
    struct mco_order o;
    uint64_t now = S;
    char text[16];

    for (unsigned i = 0; i < 1000; i++) {
        snprintf(text, sizeof(text), "k%u", i);
        put(d, a, text, 0, 1, now);
    }
    put(d, a, "two", 0, 2, now);
    o = next(d, now);
    mco_directory_done(d, &o, MCS_OK, now);
    mco_directory_drain(d, a, true);
    for (unsigned round = 0; round < 40; round++) {
        now += S;
        mco_directory_heard(d, a, now);
        mco_directory_heard(d, b, now);
        mco_directory_heard(d, c, now);
        ticks(d, now);
        while (mco_directory_next_order(d, now, &o)) {
            cr_assert(o.kind == MCO_ORDER_DROP ? o.holder == a : o.holder != a);
            mco_directory_done(d, &o, MCS_OK, now);
        }
    }
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(text, sizeof(text), "k%u", i);
        struct mco_found_at f = found(d, text, now);
        cr_assert_eq(f.status, MCS_OK);
        cr_assert_eq(f.nholders, 1);
        cr_assert_neq(f.holders[0], a);
    }
    cr_assert_neq(found(d, "two", now).holders[0], a);
    cr_assert_eq(begun(d, b, "new", 0, 1, a, now).nplaces, 2);
    mco_directory_destroy(d);
}

/* Copies that are to be on more hosts than there are: the one to be emptied is, as long as another host has it. */
Test(directory, a_drain_ends_where_all_others_have_it)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_order o;
    uint64_t now = S;

    put(d, a, "both", 0, 5, now);
    o = next(d, now);
    cr_assert_eq(o.holder, b);
    mco_directory_done(d, &o, MCS_OK, now);
    mco_directory_drain(d, a, true);
    for (unsigned round = 0; round < 80; round++) {
        now += S;
        mco_directory_heard(d, a, now);
        mco_directory_heard(d, b, now);
        if (round == 40)
            mco_directory_drain(d, b, true); /* the last copy stays */
        ticks(d, now);
        while (mco_directory_next_order(d, now, &o)) {
            cr_assert_eq(o.kind, MCO_ORDER_DROP);
            cr_assert_eq(o.holder, a);
            mco_directory_done(d, &o, MCS_OK, now);
        }
    }
    cr_assert_eq(mco_directory_objects(d, a), 0);
    cr_assert_eq(found(d, "both", now).nholders, 1);
    cr_assert_eq(found(d, "both", now).holders[0], b);
    mco_directory_destroy(d);
}

Test(directory, keys_are_limited)
{
    struct mco_directory *d = made(3, 0, 3);
    uint32_t a = holder(d, 1);
    struct mco_directory_stats st;

    put(d, a, "1", 0, 1, S);
    put(d, a, "2", 0, 1, S);
    put(d, a, "3", 0, 1, S);
    cr_assert_eq(begun(d, a, "4", 0, 1, MCO_NO_HOLDER, S).status, MCS_LIMIT);
    reported(d, a, "5", (struct mco_version){1, 1}, true, 1, S);
    cr_assert_eq(found(d, "5", S).status, MCS_NOT_FOUND);
    mco_directory_get_stats(d, S, &st);
    cr_assert_eq(st.keys, 3);
    cr_assert_eq(st.refused, 2);
    mco_directory_destroy(d);
}

static bool count_key(void *context, const struct mco_key *k, const struct mco_found_at *f)
{
    (void)k;
    cr_assert_eq(f->status, MCS_OK);
    ++*(unsigned *)context;
    return true;
}

Test(directory, many_keys_are_small_and_found)
{
    enum { N = 200000 };
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_directory_stats st;
    uint64_t cursor = 0;
    unsigned n = 0;
    char text[80];

    for (unsigned i = 0; i < N; i++) {
        snprintf(text, sizeof(text), "%064u", i);
        struct mco_version v = put(d, a, text, 0, 1, S);
        reported(d, b, text, v, true, 1, S);
    }
    mco_directory_get_stats(d, S, &st);
    cr_assert_eq(st.keys, N);
    cr_assert_leq(st.bytes_memory, UINT64_C(200) * N, "%lu bytes a key", st.bytes_memory / N);
    for (unsigned i = 0; i < N; i++) {
        snprintf(text, sizeof(text), "%064u", i);
        cr_assert_eq(found(d, text, S).nholders, 2);
    }
    while (cursor != UINT64_MAX)
        mco_directory_walk(d, TENANT, a, &cursor, count_key, &n);
    cr_assert_eq(n, N);
    for (n = 0, cursor = 0; cursor != UINT64_MAX;)
        mco_directory_walk(d, TENANT + 1, MCO_NO_HOLDER, &cursor, count_key, &n);
    cr_assert_eq(n, 0);
    mco_directory_destroy(d);
}
