/* SPDX-License-Identifier: Apache-2.0 */
/* A master with fake agents around it: real wires, and at their far ends the test, which says what agents would say. */
#ifndef TESTS_MASTER_WORLD_H
#define TESTS_MASTER_WORLD_H

#include <criterion/criterion.h>

#include "daemon/master_internal.h"
#include "wire_pair.h"

#define WORLD_TENANT 7u

/* An order that has come. */
struct world_order {
    struct mcd_wire_header header;
    Mcd__StoreOrder *order;
};

struct world_agent {
    struct world *world;
    struct mcd_peer peer; /* as the master sees it */
    struct wp wp;         /* a: the master's end */
    uint32_t next_id;
    struct mcd_wire_header reply; /* the last one */
    ProtobufCMessage *answer;
    const ProtobufCMessageDescriptor *wanted; /* what it is to be */
    bool answered;
    struct world_order orders[64];
    unsigned norders, taken;
};

struct world {
    struct mcd_agent agent;
    struct mcd_cluster cluster;
    struct mcd_master *master;
    struct mcd_wire_auth *none;
    struct world_agent agents[3];
};

static inline void world_at_master(void *context, struct mcd_wire *w,
                                   const struct mcd_wire_header *h, const uint8_t *payload,
                                   size_t size)
{
    struct world_agent *g = context;

    (void)w;
    if (h->reply)
        mcd_peer_on_reply(&g->peer, h, payload, size);
    else
        cr_assert(mcd_master_on_message(g->world->master, &g->peer, h, payload, size));
}

static inline void world_at_agent(void *context, struct mcd_wire *w,
                                  const struct mcd_wire_header *h, const uint8_t *payload,
                                  size_t size)
{
    struct world_agent *g = context;

    (void)w;
    if (h->reply) {
        g->reply = *h;
        g->answered = true;
        if (g->answer != NULL)
            protobuf_c_message_free_unpacked(g->answer, NULL);
        g->answer = protobuf_c_message_unpack(g->wanted, NULL, size, payload);
        return;
    }
    cr_assert_eq(h->type, MCD_WIRE_STORE_ORDER);
    cr_assert_lt(g->norders, 64u);
    g->orders[g->norders].header = *h;
    g->orders[g->norders].order = mcd__store_order__unpack(NULL, size, payload);
    cr_assert_not_null(g->orders[g->norders++].order);
}

static inline void world_broken(void *context, struct mcd_wire *w, uint32_t status,
                                const char *text)
{
    (void)context, (void)w, (void)status, (void)text;
}

static inline void world_connect(struct world *x, unsigned i)
{
    struct world_agent *g = &x->agents[i];
    struct mcd_wire_events at_master = {g, NULL, world_at_master, world_broken};
    struct mcd_wire_events at_agent = {g, NULL, world_at_agent, world_broken};

    g->world = x;
    wp_open(&g->wp, x->none, x->none, false);
    wp_run(&g->wp);
    cr_assert(wp_both_ready(&g->wp));
    mcd_wire_set_events(g->wp.a.wire, &at_master);
    mcd_wire_set_events(g->wp.b.wire, &at_agent);
    g->peer = (struct mcd_peer){.cluster = &x->cluster, .state = MCD_PEER_UP, .watch = {.fd = -1}};
    snprintf(g->peer.address, sizeof(g->peer.address), "10.0.0.%u:1", i + 1);
    g->peer.wire = g->wp.a.wire;
}

static inline void world_disconnect(struct world *x, unsigned i)
{
    struct world_agent *g = &x->agents[i];

    g->peer.state = MCD_PEER_WAITING;
    g->peer.wire = NULL;
    mcd_peer_fail_calls(&g->peer, MCS_PEER_UNREACHABLE);
    mcd_master_peer_gone(x->master, &g->peer);
    wp_close(&g->wp);
}

static inline void world_run(struct world *x)
{
    for (unsigned round = 0; round < 4; round++) {
        mcd_master_poll(x->master);
        for (unsigned i = 0; i < 3; i++)
            if (x->agents[i].peer.wire != NULL)
                wp_run(&x->agents[i].wp);
    }
}

static inline struct world *world_create(void)
{
    struct world *x = aligned_alloc(64, (sizeof(*x) + 63) & ~(size_t)63);
    char error[256];

    memset(x, 0, sizeof(*x));
    x->none = wp_none();
    mcd_config_init(&x->agent.config);
    x->agent.config.meta_backend = MCM_P2P;
    x->agent.config.store_rebuild_ms = 0;
    snprintf(x->agent.config.store_master, sizeof(x->agent.config.store_master), "10.0.0.9:1");
    x->agent.cluster = &x->cluster;
    x->cluster.agent = &x->agent;
    snprintf(x->cluster.address, sizeof(x->cluster.address), "10.0.0.9:1");
    cr_assert_eq(mcd_master_create(&x->agent, &x->master, error, sizeof(error)), 0);
    cr_assert_not_null(x->master);
    for (unsigned i = 0; i < 3; i++)
        world_connect(x, i);
    return x;
}

static inline void world_destroy(struct world *x)
{
    for (unsigned i = 0; i < 3; i++) {
        struct world_agent *g = &x->agents[i];

        if (g->peer.wire != NULL)
            world_disconnect(x, i);
        if (g->answer != NULL)
            protobuf_c_message_free_unpacked(g->answer, NULL);
        for (unsigned k = 0; k < g->norders; k++)
            mcd__store_order__free_unpacked(g->orders[k].order, NULL);
    }
    mcd_master_destroy(x->master);
    mcd_wire_auth_destroy(x->none);
    free(x);
}

/* Asks; what comes is in g->reply and g->answer once it is there (g->answered). */
static inline void world_post(struct world *x, unsigned i, uint16_t type, const ProtobufCMessage *q,
                              const ProtobufCMessageDescriptor *wanted, uint32_t limit_ms)
{
    struct world_agent *g = &x->agents[i];
    struct mcd_wire_header h = {.type = type, .id = ++g->next_id, .deadline_ms = limit_ms};

    g->wanted = wanted;
    g->answered = false;
    cr_assert_eq(mcd_wire_send(g->wp.b.wire, &h, q), 0);
    world_run(x);
}

static inline uint32_t world_ask(struct world *x, unsigned i, uint16_t type,
                                 const ProtobufCMessage *q,
                                 const ProtobufCMessageDescriptor *wanted)
{
    world_post(x, i, type, q, wanted, 5000);
    cr_assert(x->agents[i].answered);
    return x->agents[i].reply.status;
}

/* The next order that came to the agent. */
static inline struct world_order *world_order(struct world *x, unsigned i)
{
    struct world_agent *g = &x->agents[i];

    world_run(x);
    return g->taken < g->norders ? &g->orders[g->taken++] : NULL;
}

static inline void world_done(struct world *x, unsigned i, struct world_order *o, uint8_t status)
{
    struct mcd_wire_header h = {
        .type = MCD_WIRE_STORE_ORDER, .reply = true, .id = o->header.id, .status = MCS_OK};
    Mcd__StoreDone a = MCD__STORE_DONE__INIT;
    uint8_t all[8192];

    memset(all, status, sizeof(all));
    a.status.data = all;
    a.status.len = o->order->n_tenant;
    cr_assert_eq(mcd_wire_send(x->agents[i].wp.b.wire, &h, &a.base), 0);
    world_run(x);
}

#endif
