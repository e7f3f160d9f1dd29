/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this agent knows of objects on other hosts: the client's half of the directory.  Engines ask, the control
 * thread answers, from its cache of places, from holders (leases) and from the master.
 *
 * Without [peer] listen, or with [store] master = off, this host is all there is, and every question is answered at
 * once, by the engine itself.
 */
#ifndef MCD_CATALOG_H
#define MCD_CATALOG_H

#include <protobuf-c/protobuf-c.h>

#include "engine.h"
#include "shm/message.h"
#include "store/object/store.h"

struct mcd_agent;
struct mcd_catalog;
struct mcd_peer;
struct mcd_reach;
struct mcd_wire_header;

enum mcd_ask_kind {
    MCD_ASK_EXIST, /* status: OK, NOT_FOUND, REBUILDING, NO_DIRECTORY. lease_ms != 0: holders lease what exists */
    MCD_ASK_FIND, /* where it can be read: segment, address, until; leased at its holder. EXISTS: here, by now */
    MCD_ASK_PULL,  /* brings it into this agent's own store */
    MCD_ASK_START, /* may it be written? version */
    MCD_ASK_END, /* it was sealed here (status OK), or given up (any other status). Answered when replicas are made */
    MCD_ASK_REMOVE /* everywhere; answered when no holder has it any more */
};

struct mcd_ask_key {
    struct mco_key key;         /* bytes stay where they are until the answer */
    uint64_t size;              /* START, END: in; FIND, PULL: out */
    struct mco_version version; /* END: in; START, FIND: out */
    uint32_t crc;               /* END: in; FIND: out */
    uint8_t status;             /* enum mcs_status: out; END: in, too */
    uint8_t copies;             /* END: out */
    bool summed;
    /* FIND */
    struct mcd_segment *segment; /* of the holder's store; held until mcd_ask_done_with() */
    uint64_t address;
    uint64_t until; /* ns of CLOCK_MONOTONIC, this host's, from before the lease was asked for */
    /* PULL by order: as its holder has it */
    bool hard_pin;
    uint32_t soft_pin_ms;
    uint64_t group; /* hash, 0: none */
    const struct mcd_segment
        *avoid;   /* in: others are asked before this one, which is only compared; NULL: none */
    bool damaged; /* in: the bytes had a wrong checksum there */
    /* the catalog's own */
    struct mcd_reach *reach;
    uint8_t given; /* END: the status that was asked with */
};

struct mcd_ask {
    enum mcd_ask_kind kind;
    uint32_t flags; /* MCS_OBJECT_* */
    uint32_t replicas, lease_ms;
    uint64_t tenant;
    char host[MCS_ADDRESS_MAX]; /* START: preferred; "": here */
    uint64_t deadline;          /* ns of CLOCK_MONOTONIC */
    /* START: keys that others write are asked for again until then (ns), unless another key of the question was granted: who
     * has something to write does that first, so that nobody waits for anybody who waits. 0: IN_USE at once */
    uint64_t patience;
    struct mcd_ask_key *keys;
    uint32_t n;
    /* Engine's thread, from mcd_objects_turn(). Called once when mcd_ask() has returned -EINPROGRESS. */
    void (*done)(struct mcd_engine *g, struct mcd_ask *a);
    void *context;
    /* the catalog's own while it has it */
    struct mcd_engine *engine;
    struct mcd_ask *next;
    void *state;
    uint32_t canceled; /* atomic: set by mcd_ask_cancel() */
};

/* Engine: 0: answered, done() is not called; -EINPROGRESS. */
int mcd_ask(struct mcd_engine *g, struct mcd_ask *a);
/* Engine: the answer is not wanted any more; done() still follows, soon. */
void mcd_ask_cancel(struct mcd_engine *g, struct mcd_ask *a);
/* Engine: segments of a FIND are not used any more. Leases run out by themselves. */
void mcd_ask_done_with(struct mcd_engine *g, struct mcd_ask *a);
/* Engine: a later life of the key than this one was seen here lately, or this one was called back: see mcd_place_is_over(). */
bool mcd_ask_is_over(struct mcd_engine *g, const struct mco_key *k, const struct mco_version *v);
/* Engine, every turn: calls done() of what was answered. True: there was something. */
bool mcd_asks_turn(struct mcd_engine *g);

/* ---- control thread ------------------------------------------------------------------- */

int mcd_catalog_create(struct mcd_agent *a, struct mcd_catalog **out, char *error,
                       size_t error_size);
/* What waits is answered with AGENT_DOWN; engines still turn. */
void mcd_catalog_stop(struct mcd_catalog *c);
void mcd_catalog_destroy(struct mcd_catalog *c);
/* What engines ask, the clock: reports, beats, leases. */
void mcd_catalog_poll(struct mcd_catalog *c);
/* An extent of the store has come or is about to go: peers may read it, or not any more. */
void mcd_catalog_extent(struct mcd_catalog *c, struct mcd_extent *e, bool there);
/* The store as a segment for peers' agents (MCD_STORE_SEGMENT); NULL: there is none. */
struct mcd_segment *mcd_catalog_segment(const struct mcd_agent *a);
/* A put that began at this version (none: it did not) and whose writer is gone: the directory undoes it. The key is copied. c
 * may be NULL. */
void mcd_catalog_give_up(struct mcd_catalog *c, const struct mco_key *key,
                         const struct mco_version *v);
/* Is the whole host drained, by what a leader has said last? */
bool mcd_catalog_draining(const struct mcd_catalog *c);
/* A peer has come or gone; messages of the store's from a peer (peer.proto, Store*). True: it was one. */
void mcd_catalog_peer(struct mcd_catalog *c, struct mcd_peer *p, bool up);
bool mcd_catalog_on_message(struct mcd_catalog *c, struct mcd_peer *p,
                            const struct mcd_wire_header *h, const uint8_t *payload, size_t size);
/* The leader is this agent (master != NULL: ask it directly), or at that address with this token, or not known (""). */
struct mcd_master;
void mcd_catalog_leader(struct mcd_catalog *c, const char *address, uint64_t token,
                        struct mcd_master *master);

/* The same messages between a catalog and a master of one agent: each is given to mcd_master_on_message() or
 * mcd_catalog_on_message() with the peer NULL, and answered here, or by mcd_master_answer(), before or after those have
 * returned. */
void mcd_catalog_answer(struct mcd_catalog *c, const struct mcd_wire_header *h, uint32_t status,
                        const ProtobufCMessage *m);

/*
 * What the whole cluster is asked for by one session: removals by pattern (StoreRemove), lists, statistics, drains (StoreList),
 * at the leader. 0: told() is called once, maybe from inside; -ENOTSUP: this host is all there is; -ENOMEM. m stays where it
 * is until then. deadline: ns of CLOCK_MONOTONIC.
 */
typedef void mcd_catalog_told(void *context, enum mcs_status status, uint64_t removed,
                              const char *json, const char *error);
int mcd_catalog_objects(struct mcd_catalog *c, const struct mcs_msg_objects *m, uint64_t tenant,
                        uint64_t deadline, mcd_catalog_told *told, void *context);

struct mcd_catalog_stats {
    char leader[MCS_ADDRESS_MAX]; /* "": none is known */
    uint64_t token;
    bool here, joined; /* the leader is this agent; it has our report */
    uint64_t asks[6], answered_here, cached, cache_hits, leases, recalls;
    uint64_t leases_refused; /* keys: this host may have missed that they are over */
    uint64_t pulls, pulled_bytes, pull_failures, fenced, reports, retries,
        lag; /* lag: events not reported yet */
};
void mcd_catalog_get_stats(const struct mcd_catalog *c, struct mcd_catalog_stats *out);

#endif
