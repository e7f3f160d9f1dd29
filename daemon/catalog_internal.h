/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the catalog share.
 *
 *   catalog.c         asks on their way between engines and control thread; the clock
 *   catalog_cache.c   places of objects on other hosts, which engines look up by themselves
 *   catalog_op.c      one ask: messages to master and holders until each key has its answer
 *   catalog_call.c    those messages, also to a master of this agent; how holders' stores are reached
 *   catalog_lease.c   leases given to others, and their recall
 *   catalog_pull.c    objects brought here
 *   catalog_report.c  joining, beats, reports; orders of the master
 *   catalog_export.c  this agent's store as a segment that peers read
 *
 * Control thread only, but where said.
 */
#ifndef MCD_CATALOG_INTERNAL_H
#define MCD_CATALOG_INTERNAL_H

#include "catalog.h"
#include "cluster.h"
#include <daemon/peer.pb-c.h>
#include "leg.h"
#include "store.h"
#include "store_wire.h"

#define MCD_MS UINT64_C(1000000)
#define MCD_HOLDERS_MAX 4096u       /* that are remembered */
#define MCD_OP_HOLDERS 4u           /* of a key that are tried */
#define MCD_PULLS_MAX 512u          /* under way at a time, or waiting in their engine for a leg, */
#define MCD_PULLS_BYTES (64u << 20) /* and their bytes; one larger one is fine */
#define MCD_CALL_MS 5000u           /* most that a question waits for its answer */
#define MCD_PLACE_SETS 8192u        /* of the cache; a power of two */
#define MCD_PLACE_WAYS 8u           /* places of a set */
#define MCD_LEASE_MAX_MS 3600000u   /* longer ones are given and believed in for this long */
#define MCD_PULL_STEP (256u << 10)  /* bytes whose checksum is taken in one turn */

struct mcd_op;
struct mcd_pull;

/* ---- how holders are reached ------------------------------------------------------------ */

/* A holder's store as it was opened here once: the holder's present life, or an earlier one. */
struct mcd_reach {
    struct mcd_reach *next;
    struct mcd_segment *segment;
    uint32_t
        users; /* atomic: answers that are still used; taken only out of the cache, or by the control thread */
    bool over; /* goes when nobody uses it */
};

struct mcd_holder {
    struct mcd_holder *next;
    char address[MCD_ADDRESS_TEXT_MAX];
    struct mcd_reach *reach; /* NULL: it is not open */
    struct mcd_opening *opening;
    struct mcd_catalog *catalog;
    uint32_t failed;   /* why it could not be opened last; OK: it could, or was not tried */
    uint64_t retry_at; /* ns: then it may be tried again */
};

/* ---- messages ----------------------------------------------------------------------------- */

struct mcd_store_call {
    struct mcd_call call;
    struct mcd_catalog *catalog;
    struct mcd_store_call *next; /* of those under way */
    uint64_t sent;               /* ns of mcd_boot_ns() */
    uint32_t own;                /* to this agent's master: its number; 0: over a wire */
    uint64_t deadline;           /* likewise */
    bool to_master, ends;        /* ends: with its leader */
    /* Once, from the loop; payload NULL where there is no answer. It may free the call. */
    void (*answered)(struct mcd_store_call *sc, uint32_t status, const uint8_t *payload,
                     size_t size);
    void *context;
};

/* An answer of this agent's master, on its way. */
struct mcd_own_answer {
    struct mcd_own_answer *next;
    uint32_t own, status;
    size_t size;
    uint8_t payload[];
};

/* ---- places ------------------------------------------------------------------------------- */

struct mcd_place {
    uint64_t hash, tenant;
    void *key; /* NULL: the entry is free */
    uint32_t length, crc;
    struct mco_version
        version;    /* without a reach: the earliest that is not over, as far as is known, */
    uint64_t known; /* ns: until then earlier lives are not believed in */
    uint64_t size, address, until;
    uint64_t lease;          /* ns that were granted */
    struct mcd_reach *reach; /* NULL: its place is not known (any more) */
    uint32_t used;           /* when it was last looked up, by the set's clock */
    bool summed;
};

struct mcd_place_set {
    uint32_t lock, clock;
    struct mcd_place ways[MCD_PLACE_WAYS];
} __attribute__((aligned(64)));

/* ---- an engine's part ---------------------------------------------------------------------- */

struct mcd_catalog_engine {
    struct mcd_ask *answered;           /* control pushes, the engine takes all; atomic */
    struct mcd_pull *begun;             /* likewise */
    uint64_t answered_here, cache_hits; /* one writer, the engine */
    /* engine */
    struct mcd_pull *waiting, *verifying;
} __attribute__((aligned(128)));

/* ---- leases given --------------------------------------------------------------------------- */

struct mcd_borrower {
    struct mcd_borrower *next;
    uint64_t incarnation; /* of the agent */
    uint64_t until;       /* ns: it may use what it was told until then */
};

/* Keys whose leases are called back. done(): nobody uses what he was told of them any more. */
struct mcd_recall {
    struct mcd_recall *next;
    struct mcd_catalog *catalog;
    struct mcd_names keys;
    uint64_t *tenants, *tokens, *sequences; /* by key */
    uint32_t room;
    unsigned left;  /* borrowers that have not answered */
    uint64_t until; /* ns: then all leases have run out */
    void (*done)(struct mcd_recall *r);
    void *context;
};

/* ---- lives that are over ---------------------------------------------------------------------- */

struct mcd_over {
    struct mco_key key; /* bytes lie in the message */
    struct mco_version upto;
    uint32_t index; /* in the message */
};

struct mcd_catalog {
    struct mcd_agent *agent;
    struct mcd_store *store;
    struct mcd_ask *asked; /* engines push, control takes all; atomic */
    uint32_t stopping;     /* control: release; engines: acquire */
    struct mcd_catalog_engine engines[MCD_ENGINES_MAX];
    struct mcd_place_set *places; /* engines and control */
    uint64_t
        remember_ns; /* for how long lives that were seen are remembered: until they count as lost */
    /* control */
    bool polling, again;
    uint64_t now, due; /* ns: of this round; when the next one is due */
    struct mcd_alarm alarm;
    struct mcd_op *ops;
    uint32_t stir;   /* counts what all ops may have waited for */
    uint64_t flight; /* bytes of questions under way, and of their answers, about */
    struct mcd_holder *holders;
    unsigned nholders;
    struct mcd_reach *reaches;
    struct mcd_store_call *calls;
    struct mcd_own_answer *own_answers, **own_end;
    uint32_t next_own;
    /* the leader */
    char leader[MCD_ADDRESS_TEXT_MAX];
    uint64_t leader_token, told_token; /* of its answers; of who told that it leads */
    struct mcd_master *master;
    /* catalog_report.c */
    struct {
        bool joined, first, walking;
        bool draining;   /* as a leader has said last: the next one hears it */
        uint64_t next;   /* number of the first event that is not reported */
        uint64_t cursor; /* of the walk */
        uint64_t beat_at, report_at, beat_ns;
        struct mcd_store_call *joining, *reporting;
        uint64_t promised;  /* what `next` becomes when the report under way is answered */
        uint64_t silent_at; /* ns: since when the leader has not answered; 0: it does */
        bool silence_said;
        uint64_t current_until; /* ns of mcd_boot_ns(): see mcd_report_current() */
    } report;
    /* catalog_lease.c */
    struct mcd_borrower *borrowers;
    struct mcd_recall *recalls;
    /* catalog_pull.c */
    struct mcd_pull *pulled; /* engines push what is over; atomic */
    struct mcd_pull *pulls;  /* all under way */
    unsigned pulling;
    uint64_t pulling_bytes;
    struct mcd_session *own; /* whose queue the pulls are in */
    struct mcd_queue *queue; /* NULL: not made yet */
    void *queue_memory;
    struct mcd_command queue_add;
    struct mcd_engine *queue_engine;
    /* catalog_export.c */
    struct mcd_segment *segment;
    struct mcd_leaving *leaving; /* extents */
    struct mcd_catalog_stats stats;
};

/* When the catalog is to be looked at again, at the latest. */
static inline void mcd_catalog_due(struct mcd_catalog *c, uint64_t at)
{
    if (at < c->due)
        c->due = at;
}

/* ---- catalog.c ------------------------------------------------------------------------------ */

void mcd_catalog_answered(struct mcd_catalog *c, struct mcd_ask *a);
/* A round, as soon as whoever calls has returned to the loop. */
void mcd_catalog_soon(struct mcd_catalog *c);

/* ---- catalog_cache.c: any thread, but what says otherwise --------------------------------------- */

/* Fills k and takes one use of its reach, if the place is known and half of its lease is left. */
bool mcd_place_find(struct mcd_catalog *c, struct mcd_ask_key *k, uint64_t now);
/* Is it known to exist, leased for now? */
bool mcd_place_exists(struct mcd_catalog *c, const struct mco_key *k, uint64_t now);
/* Whose store it was last known to be in; NULL. Control thread. */
struct mcd_reach *mcd_place_reach(struct mcd_catalog *c, const struct mco_key *k);
/* Control thread: k's place is k->address in k->reach; lease: ns that were granted. */
void mcd_place_put(struct mcd_catalog *c, const struct mcd_ask_key *k, uint64_t lease);
/* A later life of the key than this one was seen here lately, or this one was called back: it is over, whoever says that he has it. */
bool mcd_place_is_over(struct mcd_catalog *c, const struct mco_key *k, const struct mco_version *v);
/* This life of it is there: what is known of the place of an earlier one is over. */
void mcd_place_outdate(struct mcd_catalog *c, const struct mco_key *k, const struct mco_version *v);
/* Forgets where it is, up to this life; upto NULL: whichever is known. */
void mcd_place_forget(struct mcd_catalog *c, const struct mco_key *k,
                      const struct mco_version *upto);
/* All that are in this reach; NULL: all. */
void mcd_places_drop(struct mcd_catalog *c, const struct mcd_reach *reach);
uint64_t mcd_places_count(struct mcd_catalog *c);

/* ---- catalog_call.c ------------------------------------------------------------------------------ */

/* To the leader (address NULL) or another agent. 0: answered() comes; -ENOTCONN: not now. */
int mcd_store_call(struct mcd_catalog *c, const char *address, struct mcd_store_call *sc,
                   uint16_t type, const ProtobufCMessage *m, uint64_t limit_ms);
/* answered() does not come any more. */
void mcd_store_forget(struct mcd_store_call *sc);
/* Answers of the own master that have come, and those that will not. */
void mcd_store_calls_poll(struct mcd_catalog *c);
/* All questions to the leader end PEER_UNREACHABLE. */
void mcd_store_calls_leaderless(struct mcd_catalog *c);
/* UP, in this life; NULL. */
struct mcd_peer *mcd_catalog_peer_of(const struct mcd_catalog *c, uint64_t incarnation);

/* The holder with this address, made if there is none; NULL: no memory, too many, or that is no address. */
struct mcd_holder *mcd_holder_get(struct mcd_catalog *c, const char *address);
struct mcd_holder *mcd_holder_of(struct mcd_catalog *c, const struct mcd_reach *reach);
/* OK: h->reach can be used; BUSY: it is being opened; else why it cannot be. */
uint32_t mcd_holder_open(struct mcd_holder *h);
/* Reaches of earlier lives that nobody uses go. all: nobody uses any. */
void mcd_reaches_poll(struct mcd_catalog *c, bool all);

/* ---- catalog_op.c -------------------------------------------------------------------------------- */

/* done: instead of the engine's answer, for the catalog's own asks. from: every key is at this holder; NULL: the master knows. -ENOMEM. */
int mcd_op_begin(struct mcd_catalog *c, struct mcd_ask *a, struct mcd_holder *from,
                 void (*done)(struct mcd_catalog *c, struct mcd_ask *a));
/* The clock, holders, the leader: those that wait may go on. */
void mcd_ops_poll(struct mcd_catalog *c);
/* Does anybody wait for its answers? */
bool mcd_op_waits(const struct mcd_op *op);
/* A pull of key i has ended. */
void mcd_op_pulled(struct mcd_op *op, uint32_t i, enum mcs_status status);
/* n > 0 keys of a message, each with the life up to which it is over, by their hashes; free(). NULL: no memory. */
struct mcd_over *mcd_over_create(const ProtobufCBinaryData *keys, const uint64_t *tenant,
                                 const uint64_t *token, const uint64_t *sequence, uint32_t n);
/* Is this life of the key among them? */
bool mcd_over_has(const struct mcd_over *over, uint32_t n, const struct mco_key *key,
                  const struct mco_version *v);
/* These lives are over: pulls of them come to nothing. recalled: by a holder, else by the master's order. */
void mcd_ops_unwant(struct mcd_catalog *c, const struct mcd_over *over, uint32_t n, bool recalled);
/* Another leads: ends of puts that are told it are late. */
void mcd_ops_late(struct mcd_catalog *c);
/* Is this the life of a put that began under an earlier leader, and of which the present one has not said yet whether it is the last
 * one? The put may have been undone, and a later life be over with who has it. */
bool mcd_ops_doubt(const struct mcd_catalog *c, const struct mco_key *k,
                   const struct mco_version *v);
/* Copies that were ordered are not made any more. */
void mcd_ops_disown(struct mcd_catalog *c);
/* All of them end with this. */
void mcd_ops_end(struct mcd_catalog *c, enum mcs_status status);

/* ---- catalog_lease.c ------------------------------------------------------------------------------- */

void mcd_lease_on_lease(struct mcd_catalog *c, struct mcd_peer *p, const struct mcd_wire_header *h,
                        const uint8_t *payload, size_t size);
/* The holder of this store hears that the bytes of k had a wrong checksum. */
void mcd_lease_doubt(struct mcd_catalog *c, const struct mco_key *k, const struct mcd_segment *at);
void mcd_lease_on_recall(struct mcd_catalog *c, struct mcd_peer *p, const struct mcd_wire_header *h,
                         const uint8_t *payload, size_t size);
/* Has anybody a lease? */
bool mcd_leases_any(const struct mcd_catalog *c);
/*
 * Lives of k up to v are over: into *r, which is made where it is NULL. One that is full begins, and another one is made: true.
 * mcd_recall_last() begins the last one; 1, or 0: there was none. done() comes once for each that has begun, from the loop.
 */
bool mcd_recall_add_to(struct mcd_catalog *c, struct mcd_recall **r, const struct mco_key *k,
                       const struct mco_version *v, void (*done)(struct mcd_recall *r),
                       void *context);
unsigned mcd_recall_last(struct mcd_recall *r, void (*done)(struct mcd_recall *r), void *context);
void mcd_recalls_poll(struct mcd_catalog *c);
void mcd_leases_destroy(struct mcd_catalog *c);

/* ---- catalog_pull.c ---------------------------------------------------------------------------------- */

/* Brings k (leased at k->reach, whose use goes over) here. 0: mcd_op_pulled() follows; -EAGAIN: not now, see
 * mcd_catalog_due(); else *status says why not, or OK: it is here. */
int mcd_pull_begin(struct mcd_catalog *c, struct mcd_op *op, uint32_t i, struct mcd_ask_key *k,
                   enum mcs_status *status);
/* These lives are not to be here: pulls of them that are under way come to nothing. Then comes their removal
 * (mco_remove()): between the two nothing slips through. */
void mcd_pulls_unwant(struct mcd_catalog *c, const struct mcd_over *over, uint32_t n);
/* Pulls of this op that are under way come to nothing. */
void mcd_pulls_unwant_of(struct mcd_catalog *c, const struct mcd_op *op);
/* This life of the key is there: pulls of earlier ones come to nothing. */
void mcd_pulls_outdate(struct mcd_catalog *c, const struct mco_key *k, const struct mco_version *v);
void mcd_pulls_poll(struct mcd_catalog *c);
/* Engine. */
bool mcd_pulls_turn(struct mcd_engine *g, struct mcd_catalog_engine *e);
/* Ends them and takes the queue from its engine. */
void mcd_pulls_stop(struct mcd_catalog *c);

/* ---- catalog_report.c ---------------------------------------------------------------------------------- */

void mcd_report_poll(struct mcd_catalog *c);
/* Another leader, or none. */
void mcd_report_leader(struct mcd_catalog *c);
/* Does the leader wait for this agent before it says that a life is over that may be here? Else nothing here is leased: it may be over,
 * and this agent has not heard of it. */
bool mcd_report_current(const struct mcd_catalog *c);
/* Something of weight has happened: reported in this round. */
void mcd_report_soon(struct mcd_catalog *c);
void mcd_report_stop(struct mcd_catalog *c);
/* catalog_order.c */
void mcd_order_on_order(struct mcd_catalog *c, struct mcd_peer *p, const struct mcd_wire_header *h,
                        const uint8_t *payload, size_t size);

/* ---- catalog_export.c ---------------------------------------------------------------------------------- */

int mcd_catalog_export_create(struct mcd_catalog *c);
void mcd_catalog_export_poll(struct mcd_catalog *c);
void mcd_catalog_export_destroy(struct mcd_catalog *c);

#endif
