/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer may ask of us: segments, descriptions, data connections. */
#include "agents.h"

/* One life of an agent that is always at the same address. */
static void peer_init_life(struct ag_raw *r, struct ag *a, uint64_t incarnation)
{
    ag_raw_call(r, a, incarnation);
    ag_until(a, NULL, (ag_raw_run(r), r->ready != 0));
    ag_raw_hello(r, "127.0.0.1:1");
    ag_until(a, NULL, (ag_raw_run(r), r->hellos != 0));
}

static void peer_init(struct ag_raw *r, struct ag *a)
{
    peer_init_life(r, a, 77);
}

/* Status of the answer. */
static uint32_t ask(struct ag_raw *r, struct ag *a, uint16_t type, const ProtobufCMessage *m)
{
    static uint32_t id;
    struct mcd_wire_header h = {.type = type, .id = ++id, .deadline_ms = 1000};

    cr_assert_eq(mcd_wire_send(r->wire, &h, m), 0);
    ag_until(a, NULL, (ag_raw_run(r), r->last.reply && r->last.id == id));
    return r->last.status;
}

static uint32_t rails(struct ag_raw *r, struct ag *a, uint64_t route, uint32_t count)
{
    Mcd__Rails m = MCD__RAILS__INIT;

    m.route = route;
    m.count = count;
    return ask(r, a, MCD_WIRE_RAILS, &m.base);
}

/* Routes without connections make way for new ones, and no peer has all tokens. */
Test(export, asks_for_routes_without_end, .timeout = 60)
{
    struct ag a;
    struct ag_raw r;
    struct mcd_peer *p;
    uint64_t route = 1;

    ag_init(&a);
    peer_init(&r, &a);
    p = a.cluster->peers;
    cr_assert_eq(rails(&r, &a, 0, 1), MCS_PROTOCOL);
    cr_assert_eq(rails(&r, &a, 1, 100000), MCS_PROTOCOL);
    while (rails(&r, &a, route, 1) == MCS_OK && route < 10000)
        route++;
    cr_assert_eq(r.last.status, MCS_LIMIT);
    cr_assert_lt(route, 1000);
    ag_until(&a, NULL, p->nvisitors < route - 1 || rails(&r, &a, route, 1) == MCS_OK);
    cr_assert_eq(rails(&r, &a, route + 1, 1) == MCS_PROTOCOL, false);
    for (int i = 0; i < 300 && rails(&r, &a, 2, 256) == MCS_OK; i++)
        ;
    cr_assert_eq(r.last.status, MCS_LIMIT);
    cr_assert_lt(a.cluster->ntokens, MCD_TOKENS_MAX / 2, "there are some left for others");
    ag_raw_fini(&r);
    ag_fini(&a);
}

/* What an earlier life has sent may still be in this host's receive queues. */
Test(export, a_later_life_waits_for_the_end_of_the_earlier_ones_connections, .timeout = 60)
{
    struct ag a;
    struct ag_raw first, second;
    struct mcd_visitor *v;
    struct mcd_peer *p;

    ag_init(&a);
    peer_init(&first, &a);
    cr_assert_eq(rails(&first, &a, 1, 1), MCS_OK);
    p = a.cluster->peers;
    v = p->visitors;
    v->adopting++; /* a connection that is on its way to the engine */
    ag_raw_fini(&first);
    ag_until(&a, NULL, p->state != MCD_PEER_UP);
    peer_init_life(&second, &a, 78);
    cr_assert_eq(p->state, MCD_PEER_DEFUNCT);
    cr_assert_eq(rails(&second, &a, 2, 1), MCS_BUSY);
    ag_settle(&a);
    cr_assert_eq(rails(&second, &a, 2, 1), MCS_BUSY, "not only the first time");
    v->adopting--;
    ag_until(&a, NULL, rails(&second, &a, 2, 1) == MCS_OK);
    ag_raw_fini(&second);
    ag_fini(&a);
}

static uint32_t open_it(struct ag_raw *r, struct ag *a, const char *name, uint64_t tenant,
                        uint64_t incarnation)
{
    Mcd__Open m = MCD__OPEN__INIT;

    m.name = (char *)name;
    m.tenant = tenant;
    m.incarnation = incarnation;
    return ask(r, a, MCD_WIRE_OPEN, &m.base);
}

Test(export, segments_by_name_tenant_and_incarnation, .timeout = 60)
{
    struct ag a;
    struct ag_raw r;
    struct ag_segment s, t, u;
    Mcd__Describe d = MCD__DESCRIBE__INIT;
    Mcd__Close c = MCD__CLOSE__INIT;
    Mcd__Opened *m;
    char *name;

    ag_init(&a);
    ag_publish(&a, &s, "s", 5);
    peer_init(&r, &a);
    cr_assert_eq(open_it(&r, &a, "", 5, 0), MCS_OK, "the only one that there is");
    cr_assert_eq(open_it(&r, &a, "", 6, 0), MCS_NOT_FOUND);
    ag_publish(&a, &t, "t", 5);
    ag_publish(&a, &u, "u", 6);
    cr_assert_eq(open_it(&r, &a, "", 5, 0), MCS_NOT_FOUND, "which one?");
    cr_assert_eq(open_it(&r, &a, "", 5, s.segment->incarnation), MCS_OK, "that one");
    cr_assert_eq(open_it(&r, &a, "", 5, u.segment->incarnation), MCS_NOT_FOUND, "not theirs");
    cr_assert_eq(open_it(&r, &a, "u", 5, 0), MCS_ACCESS);
    cr_assert_eq(open_it(&r, &a, "t", 5, 1), MCS_STALE);
    cr_assert_eq(open_it(&r, &a, "s", 5, 0), MCS_OK);
    name = malloc(500000);
    memset(name, 'n', 499999);
    name[499999] = '\0';
    cr_assert_eq(open_it(&r, &a, name, 5, 0), MCS_NOT_FOUND);
    free(name);
    cr_assert_eq(open_it(&r, &a, "s", 5, 0), MCS_OK);
    m = mcd__opened__unpack(NULL, r.size, r.payload);
    d.export = m->export;
    d.incarnation = m->incarnation;
    cr_assert_eq(ask(&r, &a, MCD_WIRE_DESCRIBE, &d.base), MCS_OK);
    d.first = UINT32_MAX;
    cr_assert_eq(ask(&r, &a, MCD_WIRE_DESCRIBE, &d.base), MCS_OK);
    d.incarnation++;
    cr_assert_eq(ask(&r, &a, MCD_WIRE_DESCRIBE, &d.base), MCS_STALE);
    d.incarnation--;
    d.export = UINT32_MAX;
    cr_assert_eq(ask(&r, &a, MCD_WIRE_DESCRIBE, &d.base), MCS_STALE);
    c.export = m->export;
    c.incarnation = m->incarnation;
    c.count = UINT32_MAX;
    cr_assert_eq(mcd_wire_send(r.wire, &(struct mcd_wire_header){.type = MCD_WIRE_CLOSE}, &c.base),
                 0);
    d.export = m->export;
    d.first = 0;
    cr_assert_eq(ask(&r, &a, MCD_WIRE_DESCRIBE, &d.base), MCS_STALE);
    mcd__opened__free_unpacked(m, NULL);
    cr_assert_eq(a.cluster->peers->exports->count, 0);
    ag_settle(&a);
    ag_raw_fini(&r);
    ag_unpublish(&s);
    ag_unpublish(&t);
    ag_unpublish(&u);
    ag_fini(&a);
}

/* Frames without a sense are counted, and the connection lives on. */
Test(export, nonsense_in_frames, .timeout = 60)
{
    struct ag a;
    struct ag_raw r;
    struct mcd_wire_header h = {.type = 999, .id = 1000000};
    Mcd__Hello m = MCD__HELLO__INIT; /* as the body of everything else */

    ag_init(&a);
    peer_init(&r, &a);
    m.agent_version = (char *)"x";
    m.address = (char *)"y";
    m.features = UINT64_MAX;
    for (uint16_t type = 2; type < 12; type++) {
        if (type == MCD_WIRE_BYE)
            continue;
        h.type = type;
        h.id++;
        cr_assert_eq(mcd_wire_send(r.wire, &h, &m.base), 0);
    }
    h.type = MCD_WIRE_PING;
    h.id++;
    cr_assert_eq(mcd_wire_send(r.wire, &h, NULL), 0);
    ag_until(&a, NULL, (ag_raw_run(&r), r.last.reply && r.last.id == h.id));
    cr_assert_eq(r.last.status, MCS_OK);
    h.type = MCD_WIRE_OPEN;
    h.reply = true;
    h.id = 77; /* nobody asked */
    cr_assert_eq(mcd_wire_send(r.wire, &h, &m.base), 0);
    h.reply = false;
    h.type = MCD_WIRE_PING;
    cr_assert_eq(mcd_wire_send(r.wire, &h, NULL), 0);
    ag_until(&a, NULL, (ag_raw_run(&r), r.last.type == MCD_WIRE_PING && r.last.id == 77));
    cr_assert_eq(r.broken, 0);
    ag_raw_fini(&r);
    ag_fini(&a);
}
