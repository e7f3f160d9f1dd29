/* SPDX-License-Identifier: Apache-2.0 */
/* What a leader promises to holders: to wait for them before it says that a life is over which they may have. */
#include "directory_world.h"

/* The leader waits for a holder before it says that a life is over; the holder is told for how long. */
Test(directory_promise, who_may_have_what_is_over_is_promised_nothing)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2);
    struct mco_version v;
    struct mco_key k = key("k");
    struct mco_order o;

    cr_assert_eq(mco_directory_promise(d, a, S), 5 * S, "as long as it is waited for");
    put(d, a, "k", 0, 1, S);
    v = put(d, b, "k", MCS_OBJECT_UPSERT, 1, S);
    cr_assert_eq(mco_directory_pending(d, &k, &v, S), 1);
    cr_assert_eq(mco_directory_promise(d, a, S), 5 * S, "it is still waited for");
    mco_directory_heard(d, b, 6 * S);
    ticks(d, 6 * S);
    cr_assert_eq(mco_directory_state(d, a), MCO_HOLDER_AWAY);
    cr_assert_eq(mco_directory_pending(d, &k, &v, 6 * S), 0, "and now it is not");
    cr_assert_eq(mco_directory_promise(d, a, 6 * S), 0);
    joined(d, 1, "", 1, 6 * S, NULL);
    cr_assert_eq(mco_directory_promise(d, a, 6 * S), 0, "it is back, and has not dropped it");
    o = next(d, 6 * S);
    cr_assert(o.kind == MCO_ORDER_DROP && o.holder == a);
    mco_directory_left(d, a, 6 * S);
    joined(d, 1, "", 1, 6 * S, NULL);
    cr_assert_eq(mco_directory_promise(d, a, 6 * S), 0);
    o = next(d, 6 * S);
    mco_directory_done(d, &o, MCS_OK, 6 * S);
    cr_assert_eq(mco_directory_promise(d, a, 6 * S), 5 * S);
    /* another life of the agent is to tell first what it has */
    joined(d, 1, "", 2, 6 * S, NULL);
    cr_assert_eq(mco_directory_promise(d, a, 6 * S), 0);
    mco_directory_report_begins(d, a);
    reported(d, a, "k", (struct mco_version){3, 1}, true, 1, 6 * S);
    mco_directory_report_ends(d, a, 6 * S);
    cr_assert_eq(mco_directory_promise(d, a, 6 * S), 0, "it had an earlier life");
    o = next(d, 6 * S);
    mco_directory_done(d, &o, MCS_OK, 6 * S);
    cr_assert_eq(mco_directory_promise(d, a, 6 * S), 5 * S);
    mco_directory_destroy(d);
}

/* A leader's promises are kept by the next one, which waits as long for reports before it says that anything is over. */
Test(directory_promise, a_promise_goes_on_over_a_change_of_the_leader)
{
    struct mco_holder h = {.identity = 1, .life = 1, .capacity = 1 << 30, .address = "10.0.0.1:1"};
    struct mco_directory *d = made(3, 2 * S, 0);
    uint32_t a, b;
    bool report;

    mco_directory_expect(d, "10.0.0.1:1");
    mco_directory_expect(d, "10.0.0.2:1");
    mco_directory_expect(d, "10.0.0.3:1");
    mco_directory_expected(d);
    h.current = true;
    a = mco_directory_join(d, &h, S, &report);
    cr_assert_eq(mco_directory_promise(d, a, S), 2 * S, "until the rebuilding is over in any case");
    cr_assert_eq(mco_directory_promise(d, a, 2 * S), S);
    mco_directory_report_begins(d, a);
    cr_assert_eq(mco_directory_promise(d, a, 2 * S), S);
    mco_directory_report_ends(d, a, 2 * S);
    cr_assert_eq(mco_directory_promise(d, a, 2 * S), 2 * S, "never longer than the next one waits");
    b = joined(d, 2, "", 1, 2 * S, NULL);
    mco_directory_report_begins(d, b);
    cr_assert_eq(mco_directory_promise(d, b, 2 * S), 0, "it was promised nothing");
    mco_directory_report_ends(d, b, 2 * S);
    cr_assert_eq(mco_directory_promise(d, b, 2 * S), 0, "another may have a later life");
    (void)holder(d, 3);
    cr_assert_eq(mco_directory_promise(d, b, 2 * S), 2 * S, "all have told what they have");
    mco_directory_destroy(d);

    /* one that has not told everything in time is not waited for */
    d = made(3, 2 * S, 0);
    a = mco_directory_join(d, &h, S, &report);
    mco_directory_report_begins(d, a);
    cr_assert_eq(mco_directory_promise(d, a, 3 * S - 1), 1);
    cr_assert_eq(mco_directory_promise(d, a, 3 * S), 0);
    mco_directory_report_ends(d, a, 3 * S);
    cr_assert_eq(mco_directory_promise(d, a, 3 * S), 2 * S);
    /* one that comes when it is over is too late with what it was promised */
    h = (struct mco_holder){.identity = 2, .life = 1, .capacity = 1 << 30, .address = "10.0.0.2:1"};
    h.current = true;
    b = mco_directory_join(d, &h, 3 * S, &report);
    cr_assert_eq(mco_directory_promise(d, b, 3 * S), 0);
    mco_directory_destroy(d);
}

/* A copy that was ordered of a holder that is silent is made elsewhere; it may make it all the same. */
Test(directory_promise, who_may_still_make_a_copy_tells_everything)
{
    struct mco_directory *d = made(3, 0, 0);
    uint32_t a = holder(d, 1), b = holder(d, 2), c;
    struct mco_order o;
    bool report;

    put(d, a, "k", 0, 2, S);
    o = next(d, S);
    cr_assert(o.kind == MCO_ORDER_COPY && o.holder == b);
    c = holder(d, 3);
    mco_directory_heard(d, a, 6 * S);
    mco_directory_heard(d, c, 6 * S);
    ticks(d, 6 * S);
    cr_assert_eq(mco_directory_state(d, b), MCO_HOLDER_AWAY);
    o = next(d, 6 * S);
    cr_assert(o.kind == MCO_ORDER_COPY && o.holder == c);
    joined(d, 2, "", 1, 6 * S, &report);
    cr_assert(report);
    cr_assert_eq(mco_directory_promise(d, b, 6 * S), 0, "it may have what was removed without it");
    mco_directory_report_begins(d, b);
    mco_directory_report_ends(d, b, 6 * S);
    cr_assert_eq(mco_directory_promise(d, b, 6 * S), 5 * S);
    mco_directory_destroy(d);
}
