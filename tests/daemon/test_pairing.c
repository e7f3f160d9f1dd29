/* SPDX-License-Identifier: Apache-2.0 */
/* Two agents in one process with RDMA devices that exist only here: which belong together, queue pairs that come and go. */
#include "agents.h"
#include "daemon/log.h"
#include "daemon/net.h"
#include "daemon/way.h"
#include "tests/fake-verbs/fake.h"

struct world {
    struct fake_device *da[2], *db[2];
    struct ag a, b;
    struct ag_segment kv;
    struct ag_opened opened;
};

static void report(const struct world *w, struct mcd_route_report *r)
{
    const struct mcd_peer *p = ag_peer(&w->a, &w->b);

    memset(r, 0, sizeof(*r));
    if (p != NULL && p->ways != NULL && mcd_way_route(p, 0) != NULL)
        mcd_route_get_report(mcd_way_route(p, 0), r);
}

/* Index of the RDMA rail that begins at this device of a; -1: none. */
static int rail_of(const struct world *w, const struct fake_device *d)
{
    struct mcd_route_report r;
    char name[80];

    snprintf(name, sizeof(name), "%s/1", d->name);
    report(w, &r);
    for (unsigned i = 0; i < r.rails; i++)
        if (r.rail[i].ops == &mct_rdma_ops && strcmp(r.rail[i].local, name) == 0)
            return (int)i;
    return -1;
}

static bool is_up(const struct world *w, const struct fake_device *d, uint32_t conns)
{
    int i = rail_of(w, d);
    struct mcd_route_report r;

    report(w, &r);
    return i >= 0 && r.rail[i].conns == conns &&
           (r.rail[i].state == MCD_RAIL_UP || r.rail[i].state == MCD_RAIL_PROBATION);
}

static bool is_down(const struct world *w, const struct fake_device *d, enum mcd_rail_reason reason)
{
    int i = rail_of(w, d);
    struct mcd_route_report r;

    report(w, &r);
    return i >= 0 && r.rail[i].conns == 0 && r.rail[i].state == MCD_RAIL_DOWN &&
           r.rail[i].reason == reason;
}

/* Queue pairs that serve a at b. */
static unsigned served(const struct world *w)
{
    const struct mcd_peer *p = ag_peer(&w->b, &w->a);
    unsigned n = 0;

    for (const struct mcd_visitor *v = p == NULL ? NULL : p->visitors; v != NULL; v = v->next)
        n += mcs_load_relaxed(&v->pairs); /* partner: the engine */
    return n;
}

#define await(w, condition) ag_until(&(w)->a, &(w)->b, condition)

static void init(struct world *w)
{
    static const char *const names[] = {"here0", "here1", "there0", "there1"};
    struct fake_device **all[] = {&w->da[0], &w->da[1], &w->db[0], &w->db[1]};

    memset(w, 0, sizeof(*w));
    mcd_log_set_level(-1);
    fake_reset();
    for (unsigned i = 0; i < 4; i++)
        *all[i] = fake_add(names[i]);
    ag_init_rdma(&w->a, "127.0.0.1:0", 0, "here*");
    ag_init_rdma(&w->b, "127.0.0.1:0", 0, "there*");
    ag_publish(&w->b, &w->kv, "kv", 7);
}

static void begin(struct world *w)
{
    ag_open(&w->a, &w->opened, w->b.cluster->address, "kv", 7);
    await(w, w->opened.calls == 1);
    cr_assert_eq(w->opened.status, MCS_OK, "%s", w->opened.text);
}

static void fini(struct world *w)
{
    if (w->opened.segment != NULL)
        mcd_segment_put(w->opened.segment);
    ag_fini(&w->a);
    ag_unpublish(&w->kv);
    ag_fini(&w->b);
    cr_assert_eq(fake_leaks(), 0u);
    fake_reset();
}

Test(pairing, each_device_gets_its_queue_pairs, .timeout = 60)
{
    struct mcd_way_ends ends;
    struct mcd_route_report r;
    struct world w;

    init(&w);
    begin(&w);
    await(&w, is_up(&w, w.da[0], 2) && is_up(&w, w.da[1], 2));
    report(&w, &r);
    cr_assert_eq(r.rails, 3u); /* and TCP */
    cr_assert_eq(served(&w), 4u);
    for (unsigned i = 0; i < 2; i++) {
        int rail = rail_of(&w, w.da[i]);
        char name[80];

        cr_assert(mcd_way_ends(ag_peer(&w.a, &w.b), 0, (unsigned)rail, &ends));
        snprintf(name, sizeof(name), "there%u/1 10.77.0.%u", i, i + 3);
        cr_assert_str_eq(ends.peer, name);
        cr_assert_eq(fake_count(FAKE_QP, w.db[i]), 2u);
        cr_assert_eq(r.rail[rail].tier, 0u);
    }
    cr_assert(!mcd_way_ends(ag_peer(&w.a, &w.b), 0, 0, &ends)); /* TCP's */
    fini(&w);
}

Test(pairing, a_port_that_goes_takes_its_rail_alone, .timeout = 60)
{
    struct world w;

    init(&w);
    begin(&w);
    await(&w, is_up(&w, w.da[0], 2) && is_up(&w, w.da[1], 2));
    for (unsigned k = 0; k < 3; k++) {
        fake_port_state(w.da[0], 1, IBV_PORT_DOWN, true);
        await(&w, is_down(&w, w.da[0], MCD_RAIL_CARRIER));
        await(&w, served(&w) == 2); /* and the other ends, too */
        cr_assert(is_up(&w, w.da[1], 2));
        fake_port_state(w.da[0], 1, IBV_PORT_ACTIVE, true);
        await(&w, is_up(&w, w.da[0], 2) && served(&w) == 4);
    }
    /* the peer's */
    fake_port_state(w.db[0], 1, IBV_PORT_DOWN, true);
    await(&w, is_down(&w, w.da[0], MCD_RAIL_PEER));
    fake_port_state(w.db[0], 1, IBV_PORT_ACTIVE, true);
    await(&w, is_up(&w, w.da[0], 2) && served(&w) == 4);
    fini(&w);
}

Test(pairing, another_address_gets_other_connections, .timeout = 60)
{
    struct fake_gid gid = {.gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [13] = 88, [15] = 9},
                           .type = IBV_GID_TYPE_ROCE_V2,
                           .ifindex = 1};
    struct mcd_way_ends ends;
    struct mcd_route_report r;
    uint64_t lost;
    struct world w;
    int rail;

    init(&w);
    begin(&w);
    await(&w, is_up(&w, w.da[0], 2) && is_up(&w, w.da[1], 2));
    rail = rail_of(&w, w.da[1]);
    report(&w, &r);
    lost = r.rail[rail].lost;
    fake_gid(w.db[1], 1, 1, &gid, true);
    do {
        ag_turn(&w.a, &w.b);
        cr_assert(mcd_way_ends(ag_peer(&w.a, &w.b), 0, (unsigned)rail, &ends));
    } while (strcmp(ends.peer, "there1/1 10.88.0.9") != 0);
    do {
        ag_turn(&w.a, &w.b);
        report(&w, &r);
    } while (r.rail[rail].lost != lost + 2);
    await(&w, is_up(&w, w.da[1], 2) && served(&w) == 4);
    cr_assert_eq(r.rails, 3u);
    cr_assert(is_up(&w, w.da[0], 2));
    fini(&w);
}

/* Its IPv4 address is taken away: what is left cannot reach the peer's, and nobody tries. */
Test(pairing, addresses_of_two_kinds_are_not_tried, .timeout = 60)
{
    struct fake_gid v6 = {
        .gid = {[0] = 0xfe, [1] = 0x80, [15] = 9}, .type = IBV_GID_TYPE_ROCE_V2, .ifindex = 1};
    struct fake_gid v4 = {.gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [13] = 88, [15] = 9},
                          .type = IBV_GID_TYPE_ROCE_V2,
                          .ifindex = 1};
    struct mcd_way_ends ends;
    struct world w;

    init(&w);
    begin(&w);
    await(&w, is_up(&w, w.da[0], 2) && is_up(&w, w.da[1], 2));
    fake_gid(w.db[1], 1, 1, &v6, true);
    await(&w, is_down(&w, w.da[1], MCD_RAIL_ADDRESS) && served(&w) == 2);
    cr_assert(mcd_way_ends(ag_peer(&w.a, &w.b), 0, (unsigned)rail_of(&w, w.da[1]), &ends));
    cr_assert(strstr(ends.why, "IPv6") != NULL, "%s", ends.why);
    cr_assert_eq(fake_count(FAKE_QP, w.db[1]), 0u);
    fake_gid(w.db[1], 1, 1, &v4, true);
    await(&w, is_up(&w, w.da[1], 2) && served(&w) == 4);
    fini(&w);
}

Test(pairing, a_device_that_comes_back_has_its_rail_again, .timeout = 60)
{
    struct mcd_route_report r;
    struct world w;

    init(&w);
    begin(&w);
    await(&w, is_up(&w, w.da[0], 2) && is_up(&w, w.da[1], 2));
    fake_remove(w.db[0]);
    await(&w, is_down(&w, w.da[0], MCD_RAIL_PEER) && served(&w) == 2);
    w.db[0] = fake_add("there0");
    await(&w, is_up(&w, w.da[0], 2) && served(&w) == 4);
    report(&w, &r);
    cr_assert_eq(r.rails, 3u);
    fini(&w);
}

/* While one is away the others stay with those that they were with, and nobody takes its place. */
Test(pairing, a_device_that_is_away_keeps_its_place, .timeout = 60)
{
    struct mcd_route_report r;
    struct world w;

    init(&w);
    begin(&w);
    await(&w, is_up(&w, w.da[0], 2) && is_up(&w, w.da[1], 2));
    fake_remove(w.da[0]);
    await(&w, served(&w) == 2);
    for (int i = 0; i < 100; i++)
        ag_turn(&w.a, &w.b);
    report(&w, &r);
    cr_assert_eq(r.rails, 3u);
    cr_assert_eq(served(&w), 2u);
    w.da[0] = fake_add("here0");
    await(&w, is_up(&w, w.da[0], 2) && served(&w) == 4);
    report(&w, &r);
    cr_assert_eq(r.rails, 3u);
    fini(&w);
}

/* A device that changes between our Hello and the peer's: the peer hears of it all the same. */
Test(pairing, a_change_amid_the_greeting_is_told, .timeout = 60)
{
    const struct mcd_peer *p;
    struct mct_rdma_nic nic;
    struct world w;

    init(&w);
    ag_open(&w.a, &w.opened, w.b.cluster->address, "kv", 7);
    while (w.a.cluster->wire_stats.frames_out == 0) {
        loop_once(w.a.agent, 1);
        if (w.a.cluster->wire_stats.frames_out == 0)
            loop_once(w.b.agent, 1);
    }
    cr_assert_eq(w.a.cluster->peers->state, MCD_PEER_GREETING);
    fake_port_state(w.da[0], 1, IBV_PORT_DOWN, true);
    do {
        loop_once(w.a.agent, 1);
        mct_rdma_nic(w.a.agent->rdma, 0, &nic);
    } while (nic.state == MCT_RDMA_UP);
    for (int i = 0; i < 20; i++) /* it is told to the rails */
        loop_once(w.a.agent, 1);
    cr_assert_eq(w.a.cluster->peers->state, MCD_PEER_GREETING);
    await(&w, ag_is_up(&w.a, &w.b) && ag_is_up(&w.b, &w.a));
    p = ag_peer(&w.b, &w.a);
    await(&w, p->nnics == 2 && !p->nics[0].there && p->nics[1].there);
    await(&w, w.opened.calls == 1);
    fini(&w);
}

/* The peer's device has fewer queue pairs than are wanted: the rail works with what there is. */
Test(pairing, a_limit_leaves_a_rail_with_fewer, .timeout = 60)
{
    struct world w;

    init(&w);
    fake_fail(FAKE_CREATE_QP, w.db[0], 2, 1000000, ENOMEM);
    begin(&w);
    await(&w, is_up(&w, w.da[0], 1) && is_up(&w, w.da[1], 2));
    await(&w, w.b.cluster->counters.pairs_refused != 0);
    for (int i = 0; i < 200; i++)
        ag_turn(&w.a, &w.b);
    cr_assert(is_up(&w, w.da[0], 1) && served(&w) == 3);
    cr_assert_lt(w.b.cluster->counters.pairs_refused, 4u); /* nor is it asked over and over */
    fake_mend();
    fini(&w);
}

#define ASKERS 4u

static void turn_all(struct ag *b, struct ag *a)
{
    static unsigned turns;

    cr_assert_lt(++turns, 100000u, "waited in vain");
    loop_once(b->agent, 1);
    for (unsigned i = 0; i < ASKERS; i++)
        if (a[i].agent != NULL)
            loop_once(a[i].agent, 1);
}

/* Queue pairs of an asker's RDMA rail; *lost: those that it has lost. */
static uint32_t pairs_of(const struct ag *a, const struct ag *b, uint64_t *lost)
{
    const struct mcd_peer *p = ag_peer(a, b);
    struct mcd_route_report r;

    *lost = 0;
    if (p == NULL || p->ways == NULL)
        return 0;
    mcd_route_get_report(mcd_way_route(p, 0), &r);
    for (unsigned i = 0; i < r.rails; i++)
        if (r.rail[i].ops == &mct_rdma_ops) {
            *lost = r.rail[i].lost;
            return r.rail[i].conns;
        }
    return 0;
}

/* Four agents, and a device that has three queue pairs: none in use is taken from anybody, and what is given back somebody
 * else gets (B64). */
Test(pairing, a_device_with_few_queue_pairs_serves_whom_it_can, .timeout = 120)
{
    struct ag b, a[ASKERS];
    struct ag_segment kv;
    struct ag_opened opened[ASKERS];
    struct fake_device *d;
    uint64_t lost, end;
    uint32_t sum;

    mcd_log_set_level(-1);
    fake_reset();
    d = fake_add("there0");
    d->attr.max_qp = 3;
    for (unsigned i = 0; i < ASKERS; i++)
        fake_add((const char *[]){"here0", "here1", "here2", "here3"}[i]);
    ag_init_rdma(&b, "127.0.0.1:0", 0, "there0");
    ag_publish(&b, &kv, "kv", 7);
    for (unsigned i = 0; i < ASKERS; i++)
        ag_init_rdma(&a[i], "127.0.0.1:0", 0,
                     (const char *[]){"here0", "here1", "here2", "here3"}[i]);
    for (unsigned i = 0; i < ASKERS; i++) {
        ag_open(&a[i], &opened[i], b.cluster->address, "kv", 7);
        while (opened[i].calls == 0 || (i == 0 && pairs_of(&a[0], &b, &lost) < 2))
            turn_all(&b, a);
        cr_assert_eq(opened[i].status, MCS_OK);
    }
    do {
        turn_all(&b, a);
        sum = 0;
        for (unsigned i = 0; i < ASKERS; i++)
            sum += pairs_of(&a[i], &b, &lost);
    } while (sum < 3);
    for (end = mcd_now_ns() + UINT64_C(1500000000);
         mcd_now_ns() < end;) { /* all ask again meanwhile */
        turn_all(&b, a);
        cr_assert_leq(fake_count(FAKE_QP, d), 3u);
        cr_assert_eq(pairs_of(&a[0], &b, &lost), 2u);
        cr_assert_eq(lost, 0u);
    }
    cr_assert_gt(b.cluster->counters.pairs_refused, 2u);
    mcd_segment_put(opened[0].segment);
    ag_fini(&a[0]);
    a[0].agent = NULL;
    do { /* what it had others get */
        turn_all(&b, a);
        sum = 0;
        for (unsigned i = 1; i < ASKERS; i++) {
            sum += pairs_of(&a[i], &b, &lost);
            cr_assert_eq(lost, 0u);
        }
    } while (sum < 3);
    for (unsigned i = 1; i < ASKERS; i++) {
        mcd_segment_put(opened[i].segment);
        ag_fini(&a[i]);
    }
    ag_unpublish(&kv);
    ag_fini(&b);
    cr_assert_eq(fake_leaks(), 0u);
    fake_reset();
}

/* Nothing on the way there succeeds for a while; then all does, and nothing is left of the tries. */
Test(pairing, tries_that_fail_leave_nothing, .timeout = 120)
{
    static const enum fake_call calls[] = {FAKE_CREATE_QP, FAKE_MODIFY_QP, FAKE_CREATE_CQ,
                                           FAKE_CREATE_SRQ};

    for (unsigned i = 0; i < 2 * sizeof(calls) / sizeof(calls[0]); i++) {
        struct world w;
        unsigned made;

        init(&w);
        fake_fail(calls[i / 2], i % 2 == 0 ? w.da[0] : w.db[0], 1, 3, EIO);
        begin(&w);
        await(&w, is_up(&w, w.da[0], 2) && is_up(&w, w.da[1], 2) && served(&w) == 4);
        made = fake_count(FAKE_QP, NULL);
        cr_assert_eq(made, 8u, "%s: %u queue pairs", fake_call_name(calls[i / 2]), made);
        fini(&w);
    }
}

static bool rails_are_gone(const struct ag *a)
{
    struct mcd_route_report r;
    bool gone = true;

    for (const struct mcd_peer *p = a->cluster->peers; p != NULL; p = p->next) {
        if (p->ways == NULL)
            continue;
        mcd_route_get_report(mcd_way_route(p, 0), &r);
        for (unsigned i = 0; i < r.rails; i++)
            gone = gone && (r.rail[i].ops != &mct_rdma_ops ||
                            (r.rail[i].state == MCD_RAIL_DOWN && r.rail[i].conns == 0 &&
                             r.rail[i].reason == MCD_RAIL_PEER));
    }
    return gone;
}

/* Queue pairs with an agent that has ended do not close as sockets do. */
Test(pairing, an_agent_that_has_ended_takes_its_queue_pairs_along, .timeout = 60)
{
    char address[MCD_ADDRESS_TEXT_MAX];
    struct ag_opened again;
    struct world w;

    init(&w);
    begin(&w);
    await(&w, is_up(&w, w.da[0], 2) && is_up(&w, w.da[1], 2));
    snprintf(address, sizeof(address), "%s", w.b.cluster->address);
    ag_unpublish(&w.kv);
    ag_fini(&w.b);
    ag_until(&w.a, NULL, rails_are_gone(&w.a));
    ag_until(&w.a, NULL, fake_count(FAKE_QP, NULL) == 0);
    /* the next life of it; what was opened in the former one is still held */
    ag_init_rdma(&w.b, address, 0, "there*");
    ag_publish(&w.b, &w.kv, "kv", 7);
    ag_open(&w.a, &again, address, "kv", 7);
    await(&w, again.calls == 1);
    cr_assert_eq(again.status, MCS_OK, "%s", again.text);
    await(&w, is_up(&w, w.da[0], 2) && is_up(&w, w.da[1], 2) && served(&w) == 4);
    cr_assert_eq(fake_count(FAKE_QP, NULL), 8u);
    mcd_segment_put(again.segment);
    fini(&w);
}

/* Tries become rare while nothing comes of them. */
Test(pairing, tries_that_fail_become_rare)
{
    for (unsigned i = 0; i < 2; i++) {
        struct mcd_way_rail r = {.rdma = i == 1};
        uint64_t most = r.rdma ? MCD_WAY_RDMA_RETRY_MAX_NS : MCD_WAY_RETRY_MAX_NS, begun;

        for (unsigned k = 0; k < 100; k++) {
            begun = mcd_now_ns();
            mcd_way_wait_longer(&r);
            cr_assert_leq(r.retry_at, mcd_now_ns() + most);
        }
        cr_assert_geq(r.retry_at, begun + most);
    }
}

/* ---- what peers may say -------------------------------------------------------------------- */

static void ask(struct world *w, struct ag_raw *r, uint16_t type, const ProtobufCMessage *m)
{
    static uint32_t id = 100;
    struct mcd_wire_header h = {.type = type, .id = ++id};

    cr_assert_eq(mcd_wire_send(r->wire, &h, m), 0);
    while (r->last.id != id && r->broken == 0) {
        ag_raw_run(r);
        loop_once(w->b.agent, 1);
    }
    cr_assert_eq(r->broken, 0u);
}

static void greet(struct world *w, struct ag_raw *r)
{
    ag_raw_call(r, &w->b, 4711);
    while (r->ready == 0) {
        ag_raw_run(r);
        loop_once(w->b.agent, 1);
    }
    ag_raw_hello(r, "127.0.0.1:1");
    while (r->hellos == 0) {
        ag_raw_run(r);
        loop_once(w->b.agent, 1);
    }
}

static unsigned served_raw(const struct world *w)
{
    unsigned n = 0;

    for (const struct mcd_peer *p = w->b.cluster->peers; p != NULL; p = p->next)
        for (const struct mcd_visitor *v = p->visitors; v != NULL; v = v->next)
            n += mcs_load_relaxed(&v->pairs); /* partner: the engine */
    return n;
}

Test(pairing, what_a_peer_asks_for_is_looked_at, .timeout = 60)
{
    uint8_t gid[17] = {[10] = 0xff, [11] = 0xff, [12] = 10, [13] = 77, [15] = 1};
    Mcd__Pair m = MCD__PAIR__INIT;
    Mcd__End end = MCD__END__INIT, good;
    Mcd__Unpair un = MCD__UNPAIR__INIT;
    struct mct_rdma_nic nic;
    struct ag_raw r;
    struct world w;

    init(&w);
    mct_rdma_nic(w.b.agent->rdma, 0, &nic);
    greet(&w, &r);
    m.route = 5;
    m.conn = 6;
    m.nic = nic.id;
    m.end = &end;
    end.nic = 99;
    end.name = (char *)"raw\n";
    end.gid = (ProtobufCBinaryData){.len = 16, .data = gid};
    end.qpn = 17;
    end.psn = 1;
    end.mtu = 1024;
    end.reads = 16;
    good = end;
#define REFUSED(change, want)                                                                      \
    do {                                                                                           \
        change;                                                                                    \
        ask(&w, &r, MCD_WIRE_PAIR, &m.base);                                                       \
        cr_assert_eq(r.last.status, (uint32_t)(want), "%s: %u", #change, r.last.status);           \
        end = good;                                                                                \
        m.end = &end;                                                                              \
        m.route = 5;                                                                               \
        m.conn = 6;                                                                                \
        m.nic = nic.id;                                                                            \
    } while (0)
    REFUSED(m.end = NULL, MCS_PROTOCOL);
    REFUSED(m.route = 0, MCS_PROTOCOL);
    REFUSED(m.conn = 0, MCS_PROTOCOL);
    REFUSED(end.nic = 0, MCS_PROTOCOL);
    REFUSED(end.gid.len = 15, MCS_PROTOCOL);
    REFUSED(end.gid.len = 17, MCS_PROTOCOL);
    REFUSED(end.gid.len = 0, MCS_PROTOCOL);
    REFUSED(end.qpn = 1u << 24, MCS_PROTOCOL);
    REFUSED(end.psn = UINT32_MAX, MCS_PROTOCOL);
    REFUSED(end.mtu = 0, MCS_PROTOCOL);
    REFUSED(end.mtu = 1500, MCS_PROTOCOL);
    REFUSED(end.mtu = 8192, MCS_PROTOCOL);
    REFUSED(end.reads = 256, MCS_PROTOCOL);
    REFUSED(end.lid = 1u << 16, MCS_PROTOCOL);
    REFUSED(m.nic = nic.id + 1, MCS_STALE);
    REFUSED(end.infiniband = true, MCS_RAIL); /* the other link layer */
    cr_assert_eq(served_raw(&w), 0u);
    cr_assert_eq(fake_count(FAKE_QP, NULL), 0u);
    /* what nobody knows is gone */
    un.route = 5;
    un.conn = 77;
    ask(&w, &r, MCD_WIRE_UNPAIR, &un.base);
    cr_assert_eq(r.last.status, (uint32_t)MCS_OK);
    /* as many as one peer may have, then no more, until one is given back */
    for (unsigned i = 0; i < 256; i++) {
        m.conn = 1000 + i;
        ask(&w, &r, MCD_WIRE_PAIR, &m.base);
        cr_assert_eq(r.last.status, (uint32_t)MCS_OK, "%u: %u", i, r.last.status);
    }
    cr_assert_eq(served_raw(&w), 256u);
    REFUSED(m.conn = 5000, MCS_LIMIT);
    un.conn = 1003;
    for (unsigned i = 0; i < 2; i++) { /* asked again, it is gone still */
        ask(&w, &r, MCD_WIRE_UNPAIR, &un.base);
        cr_assert_eq(r.last.status, (uint32_t)MCS_OK);
        cr_assert_eq(served_raw(&w), 255u);
    }
    REFUSED(m.conn = 5000, MCS_OK);
    /* it asks, and is gone before the answer: nothing is left in the end */
    un.conn = 1004;
    ask(&w, &r, MCD_WIRE_UNPAIR, &un.base);
    m.conn = 5001;
    cr_assert_eq(
        mcd_wire_send(r.wire, &(struct mcd_wire_header){.type = MCD_WIRE_PAIR, .id = 1}, &m.base),
        0);
    ag_raw_run(&r);
    ag_raw_fini(&r);
    for (int i = 0; i < 20; i++)
        loop_once(w.b.agent, 1);
    fini(&w);
}

/* ---- what a peer's Hello says of its devices ------------------------------------------------- */

Test(pairing, a_hello_with_nonsense_names_no_device, .timeout = 60)
{
    uint8_t gid[16] = {[0] = 0xfe, [1] = 0x80};
    Mcd__Hello m = MCD__HELLO__INIT;
    Mcd__Nic nics[20], *list[20];
    struct mcd_wire_header h = {.type = MCD_WIRE_HELLO};
    const struct mcd_peer *p;
    struct ag_raw r;
    struct world w;

    init(&w);
    greet(&w, &r);
    for (unsigned i = 0; i < 20; i++) {
        mcd__nic__init(&nics[i]);
        nics[i].id = i + 1;
        nics[i].name = (char *)(i == 3 ? "" : i == 4 ? "same\x01" : i == 5 ? "same?" : "nic");
        nics[i].gid = (ProtobufCBinaryData){.len = i == 2 ? 4 : 16, .data = gid};
        nics[i].prefix = i == 1 ? 129 : 64;
        list[i] = &nics[i];
    }
    nics[0].id = 0;
    m.agent_version = (char *)"";
    m.address = (char *)"127.0.0.1:1";
    m.nics = list;
    m.n_nics = 20;
    cr_assert_eq(mcd_wire_send(r.wire, &h, &m.base), 0);
    p = w.b.cluster->peers;
    while (p->nnics == 0) {
        ag_raw_run(&r);
        loop_once(w.b.agent, 1);
    }
    cr_assert_eq(p->nnics, 2u); /* one "same?", one "nic" */
    cr_assert_str_eq(p->nics[0].name, "same?");
    cr_assert_eq(p->nics[0].id, 5u);
    cr_assert_eq(p->nics[1].id, 7u);
    ag_raw_fini(&r);
    fini(&w);
}
