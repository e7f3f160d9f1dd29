/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cluster metadata: where a segment's owner is.  One interface, a back end a file: memory (this
 * process alone), p2p (names say where), etcd (v3 JSON gateway), http (Mooncake's metadata
 * server).  Records are small; buffers are asked from the agent that owns them.
 *
 * Threads.  A network back end has a thread of its own with its own libcurl handles; calls here only
 * queue a request and return.  All calls, and all callbacks (from mcm_run()), belong to one
 * thread, the agent's control thread.  Every request's callback is called exactly once, within its
 * time limit, also at mcm_destroy() (-ECANCELED).
 *
 * An outage stops registrations and lookups of names not seen before; it never takes away what is known:
 * records in the cache keep answering, marked by mcm_state.
 */
#ifndef MCM_META_H
#define MCM_META_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MCM_NAME_MAX 256u    /* with its NUL */
#define MCM_ADDRESS_MAX 256u /* "host:port", with its NUL */
#define MCM_KEY_MAX 512u
#define MCM_VALUE_MAX                                                                              \
    (512u << 10) /* bytes of one value; answers beyond MCM_REPLY_MAX are refused */
#define MCM_REPLY_MAX (8u << 20)
#define MCM_VERSION 1u /* of records */

enum mcm_backend { MCM_MEMORY, MCM_P2P, MCM_ETCD, MCM_HTTP };

struct mcm_options {
    enum mcm_backend backend;
    const char *endpoints;       /* comma list of base URLs; http: one URL with its path */
    const char *prefix;          /* etcd: keys begin with it and '/'; "mcshm" */
    const char *user, *password; /* NULL or "": none */
    const char *ca, *cert, *key; /* files; NULL or "": system's, none, none */
    uint64_t ttl_s;              /* lease of what this agent registers, 2 .. 3600 */
    uint64_t timeout_ms;         /* of one request, all endpoints and retries together */
    const char *address;         /* this agent's "host:port": part of its host record */
    uint64_t incarnation;        /* of this agent */
    int notify_fd; /* non-blocking eventfd, written when mcm_run() has something to do; the caller's */
    /* Called from the back end's thread too; 0 error, 1 warning, 2 info, 3 debug. May be NULL. */
    void (*log)(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
    void *context; /* for changed */
    /* A record seen before was replaced or is gone (record->incarnation 0). May be NULL. */
    void (*changed)(void *context, const char *name, uint64_t incarnation);
};

/* A segment's record. */
struct mcm_record {
    char name[MCM_NAME_MAX];
    uint64_t incarnation;        /* of the segment */
    char agent[MCM_ADDRESS_MAX]; /* where its agent's control port is */
    uint64_t agent_incarnation;
    uint64_t tenant;
    uint32_t flags; /* MCS_SEGMENT_* */
    uint32_t version;
};

struct mcm_result {
    /* 0; -ENOENT: no such name; -EEXIST: a living other owner, see record; -EINVAL: bad name;
     * -ECOMM: the service does not answer; -ENOSPC: it is full; -EACCES: it refuses us; -EBADMSG: its answer is
     * nonsense; -EMSGSIZE: the value is too large; -ECANCELED: mcm_destroy(). */
    int res;
    const struct mcm_record *record; /* LOOKUP: found; REGISTER -EEXIST: the holder's; else NULL */
    const char *value;               /* GET: the bytes; NUL-terminated beyond `size` */
    size_t size;
    const char *text; /* on failure one sentence: which endpoint, what, the remedy */
};

typedef void (*mcm_done)(void *context, const struct mcm_result *result);

enum mcm_health {
    MCM_OK,
    MCM_DEGRADED,
    MCM_DOWN
}; /* DEGRADED: some endpoint or the watch is away */

struct mcm_state {
    enum mcm_health health;
    char backend[16], endpoint[MCM_ADDRESS_MAX]; /* in use */
    char error[256];                             /* the last failure, "" when healthy */
    uint64_t lease;                              /* etcd's lease id, 0: none */
    uint64_t registered; /* names of this agent that are in the service now */
    uint64_t wanted;     /* names of this agent that should be */
    uint64_t cached;     /* records of others */
    /* counters */
    uint64_t requests, failures, retries, leases_lost, relists, watch_restarts, bad_replies,
        stale_taken;
};

/* Who leads the store's masters, as far as is known. */
struct mcm_leader {
    char address[MCM_ADDRESS_MAX]; /* "": nobody is known to lead */
    uint64_t incarnation;          /* of its agent */
    uint64_t token;                /* greater than that of every leader before */
    bool mine;                     /* this agent leads, */
    uint64_t
        until; /* and until then (ms of CLOCK_BOOTTIME) no other can: look at the clock first, always */
};

struct mcm;

/* On failure one sentence in error. Does not wait for the service: a service that is down at the start comes later. */
int mcm_create(const struct mcm_options *o, struct mcm **out, char *error, size_t error_size);
/* Withdraws what is registered, within timeout_ms; then ends the thread. */
void mcm_destroy(struct mcm *m);
/* Calls the callbacks of what has finished. */
void mcm_run(struct mcm *m);
void mcm_get_state(struct mcm *m, struct mcm_state *out);

/* A name is 1 .. 255 bytes of UTF-8, no control characters, not blank. */
bool mcm_good_name(const char *name);

/*
 * Registers record->name if no living other owner has it: create-if-absent; a record of a dead incarnation (lease gone,
 * or of an earlier life of an agent at this very address) is taken over by compare-and-swap. Kept
 * registered (again after a lost lease or an emptied service) until mcm_unregister(). When res is
 * not 0 it is not kept, and what may have got there all the same is removed in the background.
 * p2p and memory: always this agent's to decide; 0.
 */
void mcm_register(struct mcm *m, const struct mcm_record *record, mcm_done done, void *context);
/* Removes it if it is still of this incarnation; retried in the background until done or the lease is gone. */
void mcm_unregister(struct mcm *m, const char *name, uint64_t incarnation, mcm_done done,
                    void *context);

/* Where is the segment? From the cache while the watch is in step, else asked (one request in flight a name,
 * however many ask). fresh: ask the service, whatever the cache says. p2p: "HOST:PORT/NAME" answers at once, with
 * incarnation 0; every back end answers such explicit names so. */
void mcm_lookup(struct mcm *m, const char *name, bool fresh, mcm_done done, void *context);

/*
 * Leadership of the store's masters (lead.c): etcd only, else -ENOTSUP. From the call on it is known who leads; a candidate
 * takes the lead when nobody has it, under a lease of its own, and keeps it until that is lost or mcm_destroy().
 */
int mcm_lead(struct mcm *m, bool candidate);
/* At any time, also from within a stall's end: reads what is known and the time of the own lease. */
void mcm_lead_get(struct mcm *m, struct mcm_leader *out);
/* The leader does not answer: looks now whether it is another one. */
void mcm_lead_hurry(struct mcm *m);
/* This agent leads with a token that is not above `token`, and takes a greater one. emptied: it is another agent that has seen that
 * token, so etcd has lost its history; with the same transaction goes what has been noted since (mcm_lead_note()), because whoever
 * has objects need not be in it. */
void mcm_lead_raise(struct mcm *m, uint64_t token, bool emptied);
/* Agents with a store when the lead was taken: those that are named there now (their keys PREFIX/store/holders/ADDRESS) and those that
 * the leader before has noted. Their number; *out is an array to be freed, NULL when there are none. */
size_t mcm_lead_holders(struct mcm *m, char (**out)[MCM_ADDRESS_MAX]);

/* Whether there was such a note when the lead was taken: none, and an earlier leader, is an etcd that was emptied. */
bool mcm_lead_noted(struct mcm *m);
/* While this agent leads: addresses, a line each, that the next leader is to know. Kept without a lease, in PREFIX/store/members. */
void mcm_lead_note(struct mcm *m, const char *lines);

/*
 * Raw keys of the service, for Mooncake's own records; memory and p2p: -ENOTSUP. No prefix is
 * added. What was put is kept: with etcd it stands under this agent's lease and is put again after
 * a lost one; it goes by mcm_delete() or at mcm_destroy(). A put that failed is not kept, yet may
 * have been done. http: -EEXIST where the server refuses
 * to replace a key (Mooncake's do, for rpc_meta).
 */
void mcm_get(struct mcm *m, const char *key, mcm_done done, void *context);
void mcm_put(struct mcm *m, const char *key, const char *value, size_t size, mcm_done done,
             void *context);
void mcm_delete(struct mcm *m, const char *key, mcm_done done, void *context);

#endif
