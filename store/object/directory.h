/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory: which agents hold which keys, who may write one, where it is to go, what has to be copied or
 * dropped.  Soft state in memory, made of what agents report; no sockets, no threads, no clock: one caller (the
 * master), which gives it the time and carries its orders.  docs/consistency.md tells the rules.
 *
 *   holder   one agent's store, by its identity; joined, reporting (its first report is not complete), here,
 *            away (silent: what only it holds is not found, but not forgotten), gone
 *   entry    key -> version, size, crc, holders; perhaps a put under way; at most 200 bytes with a key of 64 bytes
 *            and two holders
 *
 * Until all holders that are expected have reported in full, or the time for that is over, keys that are not known are
 * REBUILDING, not NOT_FOUND, and cannot be begun.
 */
#ifndef MCO_DIRECTORY_H
#define MCO_DIRECTORY_H

#include <stddef.h>

#include "key.h"
#include "shm/object.h"

#define MCO_HOLDERS_MAX 4096u
#define MCO_NO_HOLDER UINT32_MAX
#define MCO_TEXT_MAX 256u

struct mco_directory;
struct mco_holder;

struct mco_directory_options {
    uint64_t token;      /* of this leader, greater than all before */
    uint64_t keys_max;   /* most entries; 0: no limit */
    uint64_t rebuild_ns; /* from creation: how long holders are waited for */
    uint64_t put_ns; /* a put under way that its holder does not speak of is undone after so long */
    uint64_t away_ns;    /* a holder that is silent for so long is away, */
    uint64_t gone_ns;    /* and after so long its objects count as lost: replicas are made anew */
    uint64_t now;        /* ns */
    uint64_t graves_max; /* lives that are over and remembered; 0: 1 Mi */
    /* A key has lost a holder, which is gone; `left` others have it. Must not call back. May be NULL. */
    void (*lost)(void *context, const struct mco_key *key, const struct mco_version *version,
                 uint64_t size, const struct mco_holder *holder, unsigned left);
    void *context;
};
int mco_directory_create(const struct mco_directory_options *o, struct mco_directory **out);
void mco_directory_destroy(struct mco_directory *d);
uint64_t mco_directory_token(const struct mco_directory *d);
/* A holder that is expected to come (from the cluster's metadata): the rebuilding waits for it. */
void mco_directory_expect(struct mco_directory *d, const char *address);
/* Agents that may hold objects: those that have joined and are not gone, and those that are expected and were not heard yet (for
 * gone_ms). The number changes when they do. */
uint64_t mco_directory_members(struct mco_directory *d, uint64_t now,
                               void (*each)(void *context, const char *address), void *context);
/* All that are expected have been named: the rebuilding is over when they have reported, and not later than rebuild_ns. */
void mco_directory_expected(struct mco_directory *d);

/* ---- holders ------------------------------------------------------------------------ */

struct mco_holder {
    uint64_t identity;                                /* of the store's memory */
    uint64_t life;                                    /* incarnation of the agent */
    char address[MCO_TEXT_MAX], domain[MCO_TEXT_MAX]; /* domain "": its own */
    uint64_t capacity, used;                          /* bytes */
    bool draining;
    bool
        current; /* the leader before this one has promised it, for now: see mco_directory_promise() */
};
/* Joins, or says how it is; heard of now. *report: its objects have to be told in full. Its index, or MCO_NO_HOLDER: too many. */
uint32_t mco_directory_join(struct mco_directory *d, const struct mco_holder *h, uint64_t now,
                            bool *report);
uint32_t mco_directory_holder(const struct mco_directory *d, uint64_t identity);
/* By its address; one that is gone only if there is no other. */
uint32_t mco_directory_holder_named(const struct mco_directory *d, const char *address);
const struct mco_holder *mco_directory_holder_at(const struct mco_directory *d, uint32_t holder);
void mco_directory_heard(struct mco_directory *d, uint32_t holder, uint64_t now);
/* The caller itself stood still for so long: nobody's silence in that time counts. */
void mco_directory_stood_still(struct mco_directory *d, uint64_t ns);
/* Its connection is gone: its puts under way are undone at once; away and gone follow by the clock. */
void mco_directory_left(struct mco_directory *d, uint32_t holder, uint64_t now);
/* By order, until it is taken back. What a holder says of itself counts when it joins for the first time: it was told so by the
 * leader before. */
void mco_directory_drain(struct mco_directory *d, uint32_t holder, bool drain);
/*
 * ns for which whoever leads waits for this holder before it says that a life is over which that one may have: for so long what it
 * has may be leased, counted from when it sent what was just heard. 0: it may have a life that is over, or it is not known yet
 * whether it has one. Never longer than a leader that comes next waits for reports, which keeps the promise.
 */
uint64_t mco_directory_promise(struct mco_directory *d, uint32_t holder, uint64_t now);
/* Entries that name it. */
uint64_t mco_directory_objects(const struct mco_directory *d, uint32_t holder);

enum mco_holder_state { MCO_HOLDER_REPORTING, MCO_HOLDER_HERE, MCO_HOLDER_AWAY, MCO_HOLDER_GONE };
enum mco_holder_state mco_directory_state(const struct mco_directory *d, uint32_t holder);

/* What a holder has, or has not any more. Versions decide: an older one than the entry's is ordered to be dropped. */
struct mco_report {
    struct mco_key key;
    struct mco_version version;
    uint64_t size;
    uint32_t crc;
    bool there, disk;
    uint8_t copies; /* hosts that were to hold it, as far as the holder knows; 0: 1 */
};
void mco_directory_report(struct mco_directory *d, uint32_t holder, const struct mco_report *r,
                          size_t n, uint64_t now);
/* A full report begins: what was known of the holder and does not come again is dropped at its end. */
void mco_directory_report_begins(struct mco_directory *d, uint32_t holder);
void mco_directory_report_ends(struct mco_directory *d, uint32_t holder, uint64_t now);
bool mco_directory_rebuilding(const struct mco_directory *d, uint64_t now);

/* ---- keys: each has its own status --------------------------------------------------- */

struct mco_found_at {
    uint8_t status; /* OK, NOT_FOUND, REBUILDING; PEER_UNREACHABLE: all its holders are away */
    uint8_t nholders, naway; /* those that are here; that are silent */
    struct mco_version version;
    uint64_t size;
    uint32_t crc;
    uint32_t holders[MCS_REPLICAS_MAX]; /* memory before disk */
};
void mco_directory_find(struct mco_directory *d, const struct mco_key *keys, size_t n, uint64_t now,
                        struct mco_found_at *out);
/* Status alone. Returns how many are OK. */
size_t mco_directory_exist(struct mco_directory *d, const struct mco_key *keys, size_t n,
                           uint64_t now, uint8_t *status);

struct mco_start {
    struct mco_key key;
    uint64_t size;
    uint32_t flags;     /* MCS_OBJECT_UPSERT */
    uint8_t replicas;   /* 1 .. MCS_REPLICAS_MAX */
    uint32_t preferred; /* holder, or MCO_NO_HOLDER */
};
struct mco_started {
    uint8_t
        status; /* OK; EXISTS; IN_USE: another put is under way; REBUILDING; LIMIT: too many keys */
    struct mco_version version; /* of this put */
    uint8_t nplaces;
    uint32_t places
        [MCS_REPLICAS_MAX]; /* the writer's own first, when it has room or nobody else has; the others pull */
};
/* By `writer`, whose agent undoes, ends or loses it. */
void mco_directory_start(struct mco_directory *d, uint32_t writer, const struct mco_start *s,
                         size_t n, uint64_t now, struct mco_started *out);
/* The writer holds it now, sealed (there), or gives it up. status: OK; NOT_OWNER: the put is over, another's, or a later version is
 * there. */
void mco_directory_end(struct mco_directory *d, uint32_t writer, const struct mco_report *r,
                       size_t n, uint64_t now, uint8_t *status);
/* From now on not found; DROP orders go to all holders. *left: holders that have to confirm, see mco_directory_pending(). */
enum mcs_status mco_directory_remove(struct mco_directory *d, const struct mco_key *key,
                                     struct mco_version *upto, uint64_t now, unsigned *left);
/* How many holders of older lives of this key than `version` have not confirmed that they dropped them (away ones are
 * not waited for beyond away_ns); while the directory is rebuilt, one more, for those that are not known. An upsert or a removal is
 * acknowledged at 0. */
unsigned mco_directory_pending(struct mco_directory *d, const struct mco_key *key,
                               const struct mco_version *version, uint64_t now);
/* How many copies of this life are still to be made; *copies (may be NULL): how many hold it. */
unsigned mco_directory_missing(struct mco_directory *d, const struct mco_key *key,
                               const struct mco_version *version, unsigned *copies);

/*
 * One more holder is to have it, or `to` instead of `from` (MCO_NO_HOLDER: none). OK: it has, or will have, see
 * mco_directory_placed(). NOT_FOUND; PEER_UNREACHABLE: nobody who is here has it, or `to` is not; NO_SPACE; LIMIT: as many as can
 * be; IN_USE: `to` is to drop an earlier life first, or other moves of it are under way.
 */
enum mcs_status mco_directory_place(struct mco_directory *d, const struct mco_key *key,
                                    uint32_t from, uint32_t to, uint64_t now);
enum mco_placed { MCO_PLACED, MCO_PLACING, MCO_NOT_PLACED };
enum mco_placed mco_directory_placed(const struct mco_directory *d, const struct mco_key *key,
                                     uint32_t from, uint32_t to);

/* ---- orders --------------------------------------------------------------------------- */

enum mco_order_kind {
    MCO_ORDER_COPY, /* pull it from `from`, keep it */
    MCO_ORDER_DROP, /* up to this version */
    MCO_ORDER_MOVE, /* as COPY; the source is ordered to drop it afterwards */
    MCO_ORDER_CHECK /* is it pinned, leased or read? The master's own, before a removal without force */
};
struct mco_order {
    enum mco_order_kind kind;
    uint32_t holder; /* who is to do it */
    uint32_t from;   /* COPY, MOVE */
    struct mco_version version;
    uint64_t tenant, size;
    uint32_t crc, length;
    uint8_t key[MCS_KEY_MAX];
};
/* The next order that is due, given once (again when its holder comes back or it was not confirmed in time). False: none. */
bool mco_directory_next_order(struct mco_directory *d, uint64_t now, struct mco_order *out);
/* How it went: OK, or why not. A report of the holder's says the same. */
void mco_directory_done(struct mco_directory *d, const struct mco_order *o, uint32_t status,
                        uint64_t now);
/* The clock: holders away and gone, puts undone, replicas missing, drains. A bounded amount of work; true: there is more. */
bool mco_directory_tick(struct mco_directory *d, uint64_t now);

/* Keys of a holder that is gone (or away), or all of a tenant's: cursor as in mco_walk(). */
void mco_directory_walk(struct mco_directory *d, uint64_t tenant, uint32_t holder, uint64_t *cursor,
                        bool (*each)(void *context, const struct mco_key *key,
                                     const struct mco_found_at *f),
                        void *context);

struct mco_directory_stats {
    uint64_t keys, bytes_memory; /* entries, and what the directory takes for all of it */
    uint64_t holders, here, away, gone, reporting;
    uint64_t puts_open, copies_wanted, drops_pending;
    uint64_t finds, exists, starts, ends, undone, removes, reports, orders, refused,
        lost; /* lost: keys without a holder left */
    bool rebuilding;
};
void mco_directory_get_stats(const struct mco_directory *d, uint64_t now,
                             struct mco_directory_stats *out);

#endif
