/* SPDX-License-Identifier: Apache-2.0 */
#include "agents.h"

/* What a round of this agent's loop finds: has it one connection with the other? */
static unsigned wires(const struct ag *g)
{
    unsigned n = 0;

    for (const struct mcd_peer *p = g->cluster->peers; p != NULL; p = p->next)
        n += p->wire != NULL;
    return n;
}

Test(peer, opens_a_segment_of_another_agent, .timeout = 60)
{
    struct ag a, b;
    struct ag_segment s;
    struct ag_opened o;

    ag_init(&a);
    ag_init(&b);
    ag_publish(&b, &s, "x", 5);
    ag_open(&a, &o, b.cluster->address, "x", 5);
    ag_until(&a, &b, o.calls != 0);
    cr_assert_eq(o.status, MCS_OK, "%s", o.text);
    cr_assert_eq(o.segment->snapshot->count, 1);
    cr_assert_eq(o.segment->snapshot->buffers[0].address, AG_ADDRESS);
    mcd_segment_put(o.segment);
    ag_open(&a, &o, b.cluster->address, "x", 6);
    ag_until(&a, &b, o.calls != 0);
    cr_assert_eq(o.status, MCS_ACCESS, "%s", o.text);
    ag_fini(&a);
    ag_unpublish(&s);
    ag_fini(&b);
}

/* Both call at the same moment: one connection is left, and nobody's opening fails for it. */
Test(peer, calls_that_cross_leave_one_connection, .timeout = 120)
{
    for (unsigned round = 0; round < 24; round++) {
        struct ag a, b;
        struct ag_segment sa, sb;
        struct ag_opened oa, ob;

        /* either may be the larger one */
        ag_init_at(&a, "127.0.0.1:0", round % 2 == 0 ? 7 : 9);
        ag_init_at(&b, "127.0.0.1:0", 8);
        ag_publish(&a, &sa, "a", 5);
        ag_publish(&b, &sb, "b", 5);
        ag_open(&a, &oa, b.cluster->address, "b", 5);
        for (unsigned i = 0; i < round / 2; i++) /* one is ahead by some rounds */
            ag_turn(&a, &b);
        ag_open(&b, &ob, a.cluster->address, "a", 5);
        ag_until(&a, &b, oa.calls != 0 && ob.calls != 0);
        cr_assert_eq(oa.status, MCS_OK, "round %u: %s", round, oa.text);
        cr_assert_eq(ob.status, MCS_OK, "round %u: %s", round, ob.text);
        ag_until(&a, &b, ag_is_up(&a, &b) && ag_is_up(&b, &a));
        for (int i = 0; i < 5; i++)
            ag_turn(&a, &b);
        cr_assert(wires(&a) == 1 && wires(&b) == 1);
        mcd_segment_put(oa.segment);
        mcd_segment_put(ob.segment);
        ag_unpublish(&sa);
        ag_unpublish(&sb);
        ag_fini(&a);
        ag_fini(&b);
    }
}

/* An agent that is connected is not called again by its other names. */
Test(peer, another_address_of_a_connected_agent_goes_over_the_connection_that_there_is,
     .timeout = 60)
{
    for (unsigned larger = 0; larger < 2; larger++) {
        struct ag a, b;
        struct ag_segment s;
        struct ag_opened o, p;
        char other[64];
        uint64_t since, incarnation;

        ag_init_at(&a, "127.0.0.1:0", 7 + 2 * larger);
        ag_init_at(&b, "127.0.0.1:0", 8);
        ag_publish(&b, &s, "x", 5);
        ag_open(&a, &o, b.cluster->address, "x", 5);
        ag_until(&a, &b, o.calls != 0);
        cr_assert_eq(o.status, MCS_OK, "%s", o.text);
        since = ag_peer(&a, &b)->since;
        incarnation = o.segment->incarnation;
        for (int i = 0; i < 3; i++) {
            struct mcd_wire *wire = ag_peer(&b, &a)->wire;

            snprintf(other, sizeof(other), "localhost:%u", b.cluster->port);
            ag_open(&a, &p, other, "x", 5);
            ag_until(&a, &b, p.calls != 0);
            cr_assert_eq(p.status, MCS_OK, "%s", p.text);
            cr_assert_eq(p.segment->incarnation, incarnation);
            cr_assert_eq(p.segment, o.segment, "one description is enough");
            mcd_segment_put(p.segment);
            cr_assert_eq(ag_peer(&b, &a)->wire, wire, "the connection was not disturbed");
        }
        cr_assert_eq(ag_peer(&a, &b)->since, since);
        mcd_segment_put(o.segment);
        ag_fini(&a);
        ag_unpublish(&s);
        ag_fini(&b);
    }
}

Test(peer, an_agent_does_not_call_itself, .timeout = 60)
{
    struct ag a;
    struct ag_opened o;
    char other[64];

    ag_init(&a);
    snprintf(other, sizeof(other), "localhost:%u", a.cluster->port);
    ag_open(&a, &o, other, "x", 5);
    ag_until(&a, NULL, o.calls != 0);
    cr_assert_eq(o.status, MCS_INVALID_ARGUMENT, "%s", o.text);
    ag_fini(&a);
}

/* A later life is not kept out by [peer] max, and the earlier life's segments are stale. */
Test(peer, a_later_life_takes_the_place_of_the_earlier_one, .timeout = 60)
{
    struct ag a, b;
    struct ag_segment s;
    struct ag_opened o, again;
    char address[MCD_ADDRESS_TEXT_MAX];

    ag_init(&a);
    a.agent->config.peers_max = 1;
    ag_init_at(&b, "127.0.0.1:0", 8);
    snprintf(address, sizeof(address), "%s", b.cluster->address);
    ag_publish(&b, &s, "x", 5);
    ag_open(&a, &o, address, "x", 5);
    ag_until(&a, &b, o.calls != 0);
    cr_assert_eq(o.status, MCS_OK, "%s", o.text);
    ag_unpublish(&s);
    ag_fini(&b);
    ag_init_at(&b, address, 9);
    ag_publish(&b, &s, "x", 5);
    ag_open(&a, &again, address, "x", 5);
    ag_until(&a, &b, again.calls != 0);
    cr_assert_eq(again.status, MCS_OK, "%s", again.text);
    cr_assert_eq(o.segment->remote->status, MCS_STALE);
    cr_assert_eq(again.segment->remote->status, MCS_OK);
    cr_assert_neq(o.segment->remote->peer, again.segment->remote->peer);
    mcd_segment_put(o.segment);
    mcd_segment_put(again.segment);
    ag_fini(&a);
    ag_unpublish(&s);
    ag_fini(&b);
}

/* The agent at an address calls by another one first, in its next life: what was opened under the
 * old address is stale, and nobody goes on calling there. */
Test(peer, a_later_life_that_calls_itself_otherwise, .timeout = 60)
{
    struct ag a, b;
    struct ag_segment s;
    struct ag_opened o;
    struct ag_raw r;
    struct mcd_peer *old, *now;

    ag_init(&a);
    ag_init_at(&b, "127.0.0.1:0", 8);
    ag_publish(&b, &s, "x", 5);
    ag_open(&a, &o, b.cluster->address, "x", 5);
    ag_until(&a, &b, o.calls != 0);
    cr_assert_eq(o.status, MCS_OK, "%s", o.text);
    old = ag_peer(&a, &b);
    b.agent->incarnation = 9; /* lived on in everything but the name */
    ag_raw_call(&r, &a, 9);
    ag_until(&a, &b, (ag_raw_run(&r), r.ready != 0));
    ag_raw_hello(&r, "127.0.0.1:1");
    ag_until(&a, &b, (ag_raw_run(&r), r.hellos != 0));
    now = ag_peer(&a, &b);
    cr_assert(now != NULL && now != old);
    mcd_peer_failed(now, MCS_PEER_UNREACHABLE, "test");
    mcd_peer_failed(old, MCS_PEER_UNREACHABLE, "test"); /* needed: calls again */
    ag_until(&a, &b, old->state == MCD_PEER_DEFUNCT);
    cr_assert_eq(o.segment->remote->status, MCS_STALE);
    ag_until(&a, &b, ag_is_up(&a, &b));
    cr_assert_eq(ag_peer(&a, &b), now);
    ag_raw_fini(&r);
    mcd_segment_put(o.segment);
    ag_fini(&a);
    ag_unpublish(&s);
    ag_fini(&b);
}

Test(peer, addresses_where_nobody_is_keep_nobody_out, .timeout = 60)
{
    struct ag a, b;
    struct ag_segment s;
    struct ag_opened o;
    struct mcd_peer *p;
    char text[64];

    ag_init(&a);
    ag_init(&b);
    a.agent->config.peers_max = 4;
    for (unsigned i = 0; i < 4; i++) {
        snprintf(text, sizeof(text), "127.0.0.%u:1", i + 2);
        ag_open(&a, &o, text, "x", 5);
        ag_until(&a, NULL, o.calls != 0);
        cr_assert_eq(o.status, MCS_PEER_UNREACHABLE, "%s", o.text);
    }
    ag_publish(&b, &s, "x", 5);
    ag_open(&a, &o, b.cluster->address, "x", 5);
    ag_until(&a, &b, o.calls != 0);
    cr_assert_eq(o.status, MCS_OK, "%s", o.text);
    cr_assert_leq(a.cluster->npeers, 4);
    cr_assert_eq(mcd_peer_get(a.cluster, b.cluster->address, &p), 0);
    cr_assert_eq(p, ag_peer(&a, &b));
    mcd_segment_put(o.segment);
    ag_fini(&a);
    ag_unpublish(&s);
    ag_fini(&b);
}

/* Who is turned down is told why, and so are its clients. */
Test(peer, says_why_a_call_is_turned_down, .timeout = 60)
{
    struct ag a, b;
    struct ag_opened o;
    struct ag_raw r;

    ag_init(&a);
    ag_init(&b);
    b.agent->config.peers_max = 1;
    ag_raw_call(&r, &b, 77);
    ag_until(&b, NULL, (ag_raw_run(&r), r.ready != 0));
    ag_raw_hello(&r, "127.0.0.1:1");
    ag_until(&b, NULL, (ag_raw_run(&r), r.hellos != 0));
    cr_assert_str_eq(b.cluster->peers->version, "raw??", "what is not text is not let through");
    ag_open(&a, &o, b.cluster->address, "x", 5);
    ag_until(&a, &b, o.calls != 0);
    cr_assert_eq(o.status, MCS_LIMIT, "%s", o.text);
    cr_assert_not_null(strstr(o.text, "max = 1"), "%s", o.text);
    ag_until(&a, &b, b.cluster->nguests == 0);
    ag_raw_fini(&r);
    ag_fini(&a);
    ag_fini(&b);
}
