/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the master share.
 *
 *   master.c         who leads, and the clock
 *   master_holder.c  agents that join, beat and report
 *   master_keys.c    questions about keys, puts, removals
 *   master_order.c   what holders are ordered to do
 *   master_list.c    removals by pattern, lists, drains
 *
 * Control thread only. Whoever asks is a peer, or (peer NULL) this agent's own catalog: the messages are the same.
 */
#ifndef MCD_MASTER_INTERNAL_H
#define MCD_MASTER_INTERNAL_H

#include "cluster.h"
#include <daemon/peer.pb-c.h>
#include "master.h"
#include "store.h"
#include "store_wire.h"

#define MCD_MASTER_MS UINT64_C(1000000)

/* Who asked, and what: enough to answer later. */
struct mcd_asker {
    struct mcd_peer *peer; /* NULL: this agent's own catalog */
    struct mcd_wire_header header;
};

/* An agent's store, as it joined. */
struct mcd_joined {
    struct mcd_joined *next;
    struct mcd_peer *peer; /* NULL: this agent's own, or `away` */
    bool away;             /* it has no connection */
    uint32_t holder;
    uint64_t identity, life;
    uint64_t told; /* number of its next event that was not heard of; 0: none was */
};

/* An answer that waits until copies are made, or lives dropped, in the order of its keys. */
struct mcd_waiting {
    struct mcd_waiting *next;
    struct mcd_asker asker;
    uint64_t deadline; /* ns */
    uint64_t tenant;
    uint32_t n, at; /* keys; how many of the first are settled */
    const uint8_t *next_key;
    uint8_t *keys; /* a key list */
    struct mco_version *versions;
    uint8_t *status, *copies;
    struct mcd_check *check; /* a removal that is not begun before this is over; NULL */
};

struct mcd_order_call;
struct mcd_walk_job;

/* The question whether keys are pinned, leased or read at one of their holders, to all of those at a time. */
struct mcd_check {
    uint32_t n, room; /* keys, numbered from 0 */
    uint8_t *used;    /* one a key */
    /* Called once, maybe from inside mcd_check_send(); it is gone afterwards. NULL: nobody waits any more. A holder that does not
     * answer uses nothing. */
    void (*done)(struct mcd_master *m, struct mcd_check *k);
    void *context;
    unsigned left;              /* orders without an answer, and one while it is made */
    struct mcd_order_call **by; /* by holder: the one that is filled */
};

struct mcd_master {
    struct mcd_agent *agent;
    struct mcd_alarm alarm;
    bool elects;       /* by etcd */
    bool told_catalog; /* who leads */
    bool unsure;       /* the metadata has forgotten who has objects */
    unsigned busy; /* with a message, or the clock: what comes from inside must not end the reign */
    uint64_t raise; /* a token that is to be exceeded, as soon as it is not busy; 0: none */
    char leader[MCD_ADDRESS_TEXT_MAX];
    uint64_t leader_token;
    uint64_t seen;           /* the greatest token of a leader that it has heard of */
    struct mco_directory *d; /* NULL: it does not lead */
    uint64_t token;          /* of this reign, or of the last one */
    uint64_t polled;         /* ns: when its clock was last looked at */
    uint64_t members;        /* as the metadata was told of them */
    struct mcd_joined *joined;
    struct mcd_waiting *waiting, **waiting_end;
    struct mcd_order_call *orders;
    struct mcd_walk_job *jobs;
    uint32_t next_own;         /* of orders to the own catalog */
    struct mco_events *events; /* of a process without a store; NULL */
    struct mcd_master_stats stats;
};

/* ---- master.c */
void mcd_master_reply(struct mcd_master *m, const struct mcd_asker *who, uint32_t status,
                      const ProtobufCMessage *answer);
/* Looks at everything soon. */
void mcd_master_soon(struct mcd_master *m);
/* Somebody has seen a token that is not below this leader's. False: no leader can have had that one. */
bool mcd_master_raise(struct mcd_master *m, uint64_t token);
/* When an answer is wanted at the latest, ns. */
uint64_t mcd_master_deadline(const struct mcd_wire_header *h);

/* ---- master_holder.c */
struct mcd_joined *mcd_joined_of(struct mcd_master *m, const struct mcd_peer *peer);
struct mcd_joined *mcd_joined_at(struct mcd_master *m, uint32_t holder);
void mcd_master_on_join(struct mcd_master *m, const struct mcd_asker *who, const Mcd__StoreJoin *q);
void mcd_master_on_report(struct mcd_master *m, const struct mcd_asker *who,
                          const Mcd__StoreReport *q);
/* Its wire is gone. */
void mcd_joined_left(struct mcd_master *m, const struct mcd_peer *peer);
void mcd_joined_destroy(struct mcd_master *m);

/* ---- master_keys.c */
void mcd_master_on_find(struct mcd_master *m, const struct mcd_asker *who, const Mcd__StoreFind *q);
void mcd_master_on_start(struct mcd_master *m, const struct mcd_asker *who,
                         const Mcd__StoreStart *q);
void mcd_master_on_end(struct mcd_master *m, const struct mcd_asker *who, const Mcd__StoreEnd *q);
void mcd_master_on_remove(struct mcd_master *m, const struct mcd_asker *who,
                          const Mcd__StoreRemove *q);
void mcd_waitings_poll(struct mcd_master *m, uint64_t now);
/* Of one peer, or all (everybody): with NO_DIRECTORY where somebody is left to hear it. */
void mcd_waitings_end(struct mcd_master *m, const struct mcd_peer *peer, bool everybody);

/* ---- master_order.c */
void mcd_orders_send(struct mcd_master *m, uint64_t now);
void mcd_orders_destroy(struct mcd_master *m);
/* NULL: no memory. */
struct mcd_check *mcd_check_create(void (*done)(struct mcd_master *m, struct mcd_check *k),
                                   void *context);
/* False: no memory; then mcd_check_destroy(). */
bool mcd_check_add(struct mcd_master *m, struct mcd_check *k, const struct mco_key *key,
                   uint64_t now);
void mcd_check_send(struct mcd_master *m, struct mcd_check *k);
/* One that was not sent. */
void mcd_check_destroy(struct mcd_check *k);

/* ---- master_list.c */
void mcd_master_on_remove_many(struct mcd_master *m, const struct mcd_asker *who,
                               const Mcd__StoreRemove *q);
void mcd_master_on_list(struct mcd_master *m, const struct mcd_asker *who, const Mcd__StoreList *q);
/* True: there is more to do at once. */
bool mcd_jobs_poll(struct mcd_master *m);
void mcd_jobs_end(struct mcd_master *m, const struct mcd_peer *peer, bool everybody);

#endif
