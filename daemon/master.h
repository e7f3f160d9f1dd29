/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A master: the directory (store/object/directory.h) with messages, a leader's lease and the clock around it.  Embedded in
 * an agent, or in mcshm-master, which is an agent without engines, pool and clients.  Control thread.
 *
 * Who leads:   [meta] backend = etcd: whoever holds the key PREFIX/store/leader, under a lease of its own; the token is the
 *              revision at which it was taken, so tokens only grow. It answers only while its lease is surely alive by its own clock.
 *              [store] master = HOST:PORT: that agent leads, for good; its token is one more than any that holders have seen.
 *              else: this agent leads, for itself alone; without [peer] listen there is none.
 */
#ifndef MCD_MASTER_H
#define MCD_MASTER_H

#include <stdio.h>

#include "catalog.h"
#include "store/object/directory.h"

struct mcd_master;

/* 0; *out may be NULL: [store] master names another, or is off. */
int mcd_master_create(struct mcd_agent *a, struct mcd_master **out, char *error, size_t error_size);
/* Gives the leadership up. */
void mcd_master_destroy(struct mcd_master *m);
void mcd_master_poll(struct mcd_master *m);
bool mcd_master_leads(const struct mcd_master *m);
/* The directory while it leads, for who looks into it (tests); NULL. */
struct mco_directory *mcd_master_directory(struct mcd_master *m);
/* Messages of agents for their master (StoreJoin ... StoreRemove). True: it was one. p NULL: of this agent's own catalog,
 * answered by mcd_catalog_answer(). */
bool mcd_master_on_message(struct mcd_master *m, struct mcd_peer *p,
                           const struct mcd_wire_header *h, const uint8_t *payload, size_t size);
/* The answer of this agent's own catalog to an order (catalog.h). */
void mcd_master_answer(struct mcd_master *m, const struct mcd_wire_header *h, uint32_t status,
                       const ProtobufCMessage *answer);
void mcd_master_peer_gone(struct mcd_master *m, struct mcd_peer *p);
/* Where the leader names what hosts that are gone have had: the agent's own feed, in a process without a store one of the master's. */
struct mco_events *mcd_master_events(struct mcd_master *m);
struct mcd_master_stats {
    uint64_t terms, raised; /* times that it took the lead; that it took a greater token */
    uint64_t requests, malformed, fenced, not_leading;
    uint64_t orders, orders_failed; /* messages */
    uint64_t waiting,
        late;      /* answers that wait now; that did not get what they waited for in time */
    uint64_t lost; /* keys whose last holder is gone */
};
void mcd_master_get_stats(const struct mcd_master *m, struct mcd_master_stats *out);
/* Lines for /metrics. */
void mcd_master_metrics(struct mcd_master *m, FILE *out);
/* JSON for `mcshm store top` and lists; free() it. */
char *mcd_master_json(struct mcd_master *m);

#endif
