/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one agent holds: its objects, in memory that outlives it.
 *
 *   table    a memfd with a checksummed record for each object (key, version, extent, offset, size,
 *            CRC32C, pins) and each extent; kept by whoever keeps the agent's ledger. After a death
 *            at any instruction each record is whole or not there.
 *   extents  memfds that the owner (the agent) makes and gives; each of one tenant. Of two kinds:
 *            closed ones are written by the agent alone, open ones hold what clients create in place,
 *            and may be mapped writable by clients of the tenant. Allocation is out of band, in private memory.
 *   index    key -> object, in private memory, made anew from the table at each start.
 *
 * An object is WRITING (nobody finds it), then sealed, then perhaps on disk, too, or only there; it
 * leaves when it is removed, replaced or evicted: no longer found, its space reused when nobody reads
 * it any more (pins) and no lease runs.
 *
 * Threads: every call may be made by any thread, engines included: none waits for anything but
 * spin locks that are held for a bounded, short time.  Callbacks are called without locks, by
 * whichever thread is inside a call; they must not call back into the store, nor wait. event() alone is called
 * under a lock, which keeps events in order: it takes its copy and calls nothing.
 * Times are ns of CLOCK_MONOTONIC, given by the caller.
 */
#ifndef MCO_STORE_H
#define MCO_STORE_H

#include <stddef.h>
#include <sys/types.h>

#include "key.h"
#include "policy.h"
#include "shm/object.h"

struct mco_store;
struct mco_object; /* stays where it is while it is pinned */

/* A pinned object, or one being written. */
struct mco_view {
    struct mco_object *object; /* NULL: none */
    uint8_t *data;             /* in the owner's mapping; of an empty object NULL */
    uint64_t size;             /* bytes */
    struct mco_version version;
    void *owner;     /* as given with the extent */
    uint64_t offset; /* of data in the extent */
    uint32_t extent; /* id */
    uint32_t crc;    /* CRC32C, when `summed` */
    bool summed;
};

/* ---- the owner's side ------------------------------------------------------------- */

enum mco_event_kind {
    MCO_STORED = 1,    /* sealed here, whoever brought it */
    MCO_REMOVED = 2,   /* by request */
    MCO_REPLACED = 3,  /* by a later version of the key */
    MCO_EVICTED = 4,   /* for want of space: it is not here any more */
    MCO_TO_DISK = 5,   /* it is on disk only, from now on */
    MCO_TO_MEMORY = 6, /* and is in memory (again) */
    MCO_DAMAGED = 7,   /* checksum wrong, or the disk lost it: not here any more */
    MCO_LOST = 8       /* the leader says: its host is gone */
};

struct mco_event {
    enum mco_event_kind kind;
    struct mco_key key; /* bytes good during the call */
    struct mco_version version;
    uint64_t size;
    uint32_t crc;
};

/* Where objects go before they are dropped: disk.h. All calls return at once. */
struct mco_tier_ops {
    /* Begins to write v (pinned until mco_offloaded() is called). 0; -EBUSY: not now; -ENOSPC; -EIO. */
    int (*offload)(void *context, const struct mco_key *key, const struct mco_view *v);
    /* Begins to read what is at `place` into v->data; mco_fetched() follows. 0 or -EBUSY, -EIO. */
    int (*fetch)(void *context, const struct mco_key *key, uint64_t place,
                 const struct mco_view *v);
    /* What is there is not wanted any more. */
    void (*drop)(void *context, uint64_t place);
};

struct mco_options {
    uint64_t size;        /* bytes of all extents together */
    uint64_t extent_size; /* bytes, as a rule; larger ones for objects that need it */
    uint64_t objects;     /* most of them, writing and disk included */
    unsigned high, low;   /* percent of size: eviction in the background begins above, ends below */
    const char *policy;   /* mco_policy_find() */
    uint64_t lease_ns;    /* default lease */
    int table_fd; /* of an earlier life, the store's from now on also on failure; -1: none */
    void *context;
    /* An extent of `size` bytes at least is wanted for the tenant: mco_extent_add() is to follow, or
     * mco_extent_failed(). Asked for once at a time for each (tenant, open). Where the answer takes long, others are evicted
     * meanwhile. */
    void (*want)(void *context, uint64_t tenant, bool open, uint64_t size);
    /* Nothing lies in the extent and it is not needed: the owner calls mco_extent_remove() when it can. */
    void (*idle)(void *context, uint32_t extent);
    /* What a caller was told BUSY for may be there: try again. */
    void (*ready)(void *context);
    void (*event)(void *context, const struct mco_event *e);
    const struct mco_tier_ops *tier; /* NULL: none */
    void *tier_context;
    void (*log)(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
};

/* On failure one sentence in error. A table that cannot be read is logged and replaced by a fresh one. */
int mco_create(const struct mco_options *o, struct mco_store **out, char *error, size_t error_size);
/* Everything in private memory goes; table and extents live on with whoever keeps them. No other call is under way. */
void mco_destroy(struct mco_store *s);
int mco_table_fd(const struct mco_store *s); /* to be kept */
/* Random, made with the table: the same as long as objects survive. */
uint64_t mco_identity(const struct mco_store *s);
/* Greatest token ever noted; orders of an earlier leader are refused with it. Kept in the table. */
uint64_t mco_token(const struct mco_store *s);
void mco_note_token(struct mco_store *s, uint64_t token);

struct mco_extent {
    uint32_t id; /* 0: a new one gets its own */
    bool open;
    uint64_t tenant, size, page_size, address; /* published address; size a multiple of the page */
    uint64_t ino, dev;                         /* of the memfd */
    int32_t node;
    void *map;   /* the owner's mapping */
    void *owner; /* comes back in views */
};
/* A new extent, in use from now on; its id in *id. 0 or -ENOMEM, -ENOSPC: beyond `size`. */
int mco_extent_add(struct mco_store *s, const struct mco_extent *e, uint32_t *id);
/* What was wanted could not be had: those who wait for it evict, or get NO_SPACE. Asked for again after a second; soon, where an
 * extent was removed just now, whose memory may be on its way back. */
void mco_extent_failed(struct mco_store *s, uint64_t tenant, bool open);
/* Takes an empty extent out for good. -EBUSY: something lies in it (again). */
int mco_extent_remove(struct mco_store *s, uint32_t id);

/* Start over a table of an earlier life: each extent that it has, in any order. false ends the walk. */
void mco_extents_kept(struct mco_store *s, bool (*each)(void *context, const struct mco_extent *e),
                      void *context);
/* This one is there again (map, owner), with the very bytes; lost: what lay in it is gone. */
void mco_extent_back(struct mco_store *s, uint32_t id, void *map, void *owner);
void mco_extent_lost(struct mco_store *s, uint32_t id);
struct mco_recovered {
    uint64_t objects, bytes; /* there again */
    uint64_t unfinished,
        torn; /* dropped: half written; record damaged, out of place or overlapping */
    uint64_t
        guarded; /* read or written in place by sessions of the earlier life: kept as they are, see below */
};
/* After all of them: the rest is dropped, the index is made. Called once, also for a fresh table. */
void mco_recover(struct mco_store *s, struct mco_recovered *out);
/* No session of the earlier life is left that could read or write in place. */
void mco_unguard(struct mco_store *s);

/* ---- objects ----------------------------------------------------------------------- */

struct mco_put {
    struct mco_key key;
    uint64_t size;              /* bytes; 0: an empty object */
    struct mco_version version; /* none: the store gives one */
    uint32_t flags;             /* MCS_OBJECT_UPSERT, MCS_OBJECT_HARD_PIN */
    bool open;                  /* in an extent that clients may map writable */
    uint64_t soft_pin_until;    /* ns; 0: none */
    uint64_t group;             /* hash of its name, 0: none */
    struct mco_hint hint;
};

/*
 * Space for a new object, which nobody finds before it is sealed. OK: *out is the writer's, until mco_seal() or
 * mco_abort(). EXISTS: a sealed one of this key is there (and no UPSERT, or it is of a later version). IN_USE:
 * a client fills another in place, which may take long. BUSY: another is being written (not open), or space is being made (extents,
 * disk, readers who leave): again after ready().
 * NO_SPACE: nothing more can be evicted. LIMIT: the tenant's, of bytes or (the same share) of the table; of its group's 4,096
 * objects; or 256 lives of the key are still read. BAD_RANGE: larger than the store.
 */
enum mcs_status mco_begin(struct mco_store *s, const struct mco_put *p, struct mco_view *out);
/* It is there from now on; an earlier version of its key leaves. crc: CRC32C of its bytes, when `summed`.
 * copies: hosts that hold it, this one included. NOT_OWNER: it was given up (mco_damaged()), or a later version is there;
 * it is over then as after mco_abort(). Its pin in place, if it had one, has ended before. */
enum mcs_status mco_seal(struct mco_store *s, struct mco_object *o, uint32_t crc, bool summed,
                         unsigned copies);
void mco_abort(struct mco_store *s, struct mco_object *o);

/*
 * Finds and pins. hint: NULL: the policy is not told. NOT_FOUND. BUSY: it is on disk and on its way to memory: again after
 * ready(). NO_SPACE, DISK: it is on disk and cannot be had now. CHECKSUM: it came damaged from there, and is gone (told once).
 */
enum mcs_status mco_pin(struct mco_store *s, const struct mco_key *key, const struct mco_hint *hint,
                        uint64_t now, struct mco_view *out);
/* One more pin of an object that is pinned. */
void mco_pin_again(struct mco_store *s, struct mco_object *o);
void mco_unpin(struct mco_store *s, struct mco_object *o);
/* The pin is that of a reader (or writer) in place from now on, counted in the table: a later life guards it. */
void mco_pin_in_place(struct mco_store *s, struct mco_object *o, bool begins);
/* It is not evicted, and its space not reused, before `until`. */
void mco_lease(struct mco_store *s, struct mco_object *o, uint64_t until);
/* Its bytes are not what they were, or it must go: not found from now on. Of one being written: its key is free for others,
 * its space is kept until the writer seals (NOT_OWNER) or aborts. */
void mco_damaged(struct mco_store *s, struct mco_object *o);

struct mco_found {
    struct mco_version version;
    uint64_t size;
    uint32_t crc;
    uint8_t tier; /* enum mcs_tier */
};
/* Is it here? OK or NOT_FOUND for each key; out may be NULL. hints: one a key, or NULL. lease_ns: 0: none. Returns how many. */
size_t mco_exist(struct mco_store *s, const struct mco_key *keys, const struct mco_hint *hints,
                 size_t n, uint64_t lease_ns, uint64_t now, uint8_t *status, struct mco_found *out);

/*
 * Not found from now on. upto: only a life up to this one; NULL: whatever is there. OK, NOT_FOUND, IN_USE: leased, pinned
 * hard or read, without force. The space follows when readers and leases have ended.
 */
enum mcs_status mco_remove(struct mco_store *s, const struct mco_key *key,
                           const struct mco_version *upto, bool force, uint64_t now);
/* Does anybody still read what was removed or replaced of this key (leases, pins)? For who must wait for that. */
bool mco_leaving(struct mco_store *s, const struct mco_key *key);
/* Does a client fill one of this key in place (open, not sealed)? */
bool mco_is_created(struct mco_store *s, const struct mco_key *key);
void mco_set_copies(struct mco_store *s, const struct mco_key *key, unsigned copies);

struct mco_listed {
    struct mco_key key;
    struct mco_version version;
    uint64_t size, group, soft_pin_until, lease_until;
    uint32_t crc, pins, in_place, copies;
    bool hard_pin, writing, leaving, summed;
    uint8_t tier;
};
/* Objects of a tenant (UINT64_MAX: all), some at a time: *cursor 0 to begin, UINT64_MAX at the end. each() is called without locks;
 * a key's bytes are good during the call. A call looks at some thousand records at most. Not for engines. */
void mco_walk(struct mco_store *s, uint64_t tenant, uint64_t *cursor,
              bool (*each)(void *context, const struct mco_listed *o), void *context);
/* One of them. False: there is none. key bytes in out are the asker's. */
bool mco_stat(struct mco_store *s, const struct mco_key *key, struct mco_listed *out);

/* ---- upkeep ------------------------------------------------------------------------- */

/* Evicts in the background while above the low watermark once it was above the high one, frees what leases kept. At most
 * some hundred objects a call. True: there is more to do. */
bool mco_upkeep(struct mco_store *s, uint64_t now);
/* Most bytes of one tenant; 0: as much as there is. */
void mco_tenant_limit(struct mco_store *s, uint64_t tenant, uint64_t bytes);
void mco_tune(struct mco_store *s, unsigned high, unsigned low, uint64_t lease_ns);

/* tier */
void mco_offloaded(struct mco_store *s, struct mco_object *o, int res, uint64_t place);
/* res: -EBUSY: it is there, but could not be read now; any other error: it is gone. */
void mco_fetched(struct mco_store *s, struct mco_object *o, int res);
/* At the start, after mco_recover(): an object that was found on disk. False: not wanted, drop it. With the table of an
 * earlier life only what that knows is wanted: what is not in it was removed or replaced. */
bool mco_disk_found(struct mco_store *s, const struct mco_key *key,
                    const struct mco_version *version, uint64_t size, uint32_t crc, bool summed,
                    uint64_t place);
/* The disk was read through: what an earlier life had there and was not found is gone. */
void mco_disk_known(struct mco_store *s);
/* The disk is gone, or what was at this place is. */
void mco_disk_lost(struct mco_store *s, bool all, uint64_t place);

struct mco_stats {
    uint64_t size, extents, extent_bytes; /* bytes that may be, and are; */
    uint64_t used;                        /* by objects, their rounding included */
    uint64_t objects, bytes;              /* sealed, in memory */
    uint64_t disk_objects, disk_bytes;    /* also or only on disk */
    uint64_t writing, leaving, pinned, leased, in_place, guarded;
    uint64_t waiting; /* 1: somebody was told BUSY, lately: upkeep soon */
    uint64_t table_bytes, index_bytes;
    /* counters */
    uint64_t puts, put_bytes, put_exists, replaced, aborted;
    uint64_t lookups, hits, misses, hit_bytes, disk_hits;
    uint64_t evictions, evicted_bytes, offload_refused, offloads, offload_bytes, fetches,
        fetch_bytes;
    uint64_t removed, damaged, no_space, busy;
};
void mco_get_stats(struct mco_store *s, struct mco_stats *out);
struct mco_tenant_stats {
    uint64_t tenant, limit, extent_bytes, objects, bytes, hits, misses, evictions, refused;
};
/* Returns how many there are; fills up to n. */
size_t mco_tenants(struct mco_store *s, struct mco_tenant_stats *out, size_t n);

#endif
