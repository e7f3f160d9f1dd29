/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sources behind store.h share.
 *
 *   table.c    the memfd: records, their checks, which are free
 *   index.c    key -> object: chains in shards
 *   space.c    extents, and ranges in them
 *   tenant.c   who has how much
 *   group.c    objects that go together
 *   object.c   begin, seal, abort, remove: an object's life
 *   find.c     pin, exist, leases
 *   evict.c    who goes, for want of space,
 *   full.c     or of a record
 *   tier.c     to disk and back
 *   recover.c  what an earlier life has left
 *   walk.c     lists and figures
 *
 * Two kinds of locks.  s->lock guards the policies, space, tenants, groups and which records are free; a
 * shard's lock guards its chains and, of its objects, state, pins, leases and counts.  A state changes
 * under both, so that either is enough to rely on it.  Order: s->lock, then one shard's. Callbacks are
 * kept in a struct mco_after and made when no lock is held, but event().
 */
#ifndef MCO_INTERNAL_H
#define MCO_INTERNAL_H

#include "lock.h"
#include "store.h"

#define MCO_NONE UINT32_MAX
#define MCO_NO_PLACE UINT64_MAX
#define MCO_UNIT 64u      /* bytes: ranges begin at a multiple, and have such sizes */
#define MCO_PAGE 4096u    /* what larger objects are rounded and aligned to, */
#define MCO_LARGE 65536u  /* from this size on */
#define MCO_SHARDS 256u   /* a power of two */
#define MCO_BINS 512u     /* 64 octaves of 8 */
#define MCO_SOFT_SHIFT 24 /* soft pins are kept in units of 2^24 ns */
#define MCO_EXTENTS_MAX (1u << 20)
#define MCO_PLACES 64u /* on disk, dropped by one call */
#define MCO_OFFLOADS 16u
#define MCO_GROUP_MAX 4096u /* objects in a group: they go in one step */
#define MCO_LIVES_MAX                                                                              \
    256u /* objects of one hash, by other keys or lives that are still read: a lookup passes them all */
#define MCO_SPOILED 32u /* keys whose asker is still to be told that they were damaged */

/* ---- the table --------------------------------------------------------------------------- */

enum mco_state {
    MCO_FREE,
    MCO_WRITING,
    MCO_MEMORY,     /* sealed, and not on disk */
    MCO_OFFLOADING, /* the same, on its way to disk, pinned for that */
    MCO_BOTH,
    MCO_DISK,     /* its bytes are on disk alone */
    MCO_FETCHING, /* and on their way to memory, pinned for that */
    MCO_AWAITED,  /* an earlier life had it on disk, which was not read through yet */
    MCO_LEAVING   /* found no more; its space is kept for those who read it */
};

/* record.flags, kept */
#define MCO_HARD 0x01u
#define MCO_OPEN 0x02u
#define MCO_GROUPED 0x04u /* the tail begins with the group's hash */

/* record.left, kept */
#define MCO_GONE 1u /* removed, replaced or undone */
#define MCO_AWAY 2u /* on disk alone: the range is none of its own */

/* record.marks, of this life */
#define MCO_ORDERED 0x01u /* in its arena's policy */
#define MCO_GUARDED 0x02u /* sessions of an earlier life may be in it */
#define MCO_KEEPS 0x04u   /* WRITING of an earlier life: in no chain */
#define MCO_GOES 0x08u    /* OFFLOADING because its space is wanted, */
#define MCO_URGENT 0x10u  /* and is dropped if the disk will not have it */

#define MCO_TAIL 24u

/*
 * An object. `check` is 0 while the record means nothing; else it covers what comes after `sealed` and does not change,
 * and the whole tail; while it is away, with the range or without it. What is not of a later life's interest is in the second half.
 */
struct mco_record {
    uint64_t check;
    uint64_t sealed; /* 0: being written; else a sum over check, crc and whether it is summed */
    uint64_t tenant, token, sequence, size;
    uint32_t offset; /* units */
    uint32_t extent; /* id; 0: an empty object */
    uint32_t cont;   /* the tail goes on there; MCO_NONE */
    uint16_t key_length;
    uint8_t flags;
    uint8_t state;
    /* each one word that may change; in_place and left matter to a later life at any instant */
    uint32_t in_place;
    uint32_t soft_pin; /* until, in units of 2^24 ns */
    uint16_t copies;
    uint8_t left; /* MCO_GONE, MCO_AWAY */
    uint8_t marks;
    uint32_t crc;
    uint32_t pins;
    uint32_t node; /* its range; MCO_NONE */
    uint64_t lease_until;
    uint64_t place; /* on disk; MCO_NO_PLACE */
    uint8_t tail[MCO_TAIL];
};
_Static_assert(sizeof(struct mco_record) == 128, "a record is two cache lines");

#define MCO_CONT_BYTES 116u
struct mco_cont {
    uint32_t next; /* MCO_NONE: the last */
    uint32_t used; /* of this life: 1 */
    uint32_t zero;
    uint8_t bytes[MCO_CONT_BYTES];
};
_Static_assert(sizeof(struct mco_cont) == 128, "as records");

struct mco_extent_record {
    uint64_t check;
    uint32_t id, open;
    uint64_t tenant, size, page_size, address, ino, dev;
    int32_t node;
    uint32_t zero;
    uint64_t more[7];
};
_Static_assert(sizeof(struct mco_extent_record) == 128, "as records");

struct mco_table_head {
    uint64_t magic;
    uint32_t version, zero;
    uint64_t identity;
    /* words that tell of damage: the number below, its complement above */
    uint64_t extents, objects, conts; /* records that have memory */
    uint64_t extent_ids;              /* ids given out */
    uint64_t sequence;                /* no version without token was given beyond */
    uint64_t token[2]; /* the greater one that is sound; the other is being written */
    uint64_t token_check[2];
};

struct mco_table {
    int fd;
    struct mco_table_head *head;
    struct mco_extent_record *extents;
    struct mco_record *records;
    struct mco_cont *conts;
    uint32_t nextents, nrecords, nconts; /* that have memory */
    uint32_t max_extents, max_records, max_conts;
    uint32_t free_record, free_cont, free_extent; /* chains: through next[], next, more[0] */
    uint32_t records_used, conts_used;
    uint32_t *next; /* of a record in use: in its chain of the index; else of the free ones */
};

/* ---- index --------------------------------------------------------------------------------- */

struct mco_shard {
    struct mco_lock lock;
    uint32_t *heads; /* room for all buckets that it can ever need */
    uint32_t buckets, mask, split, max, objects;
    uint64_t lookups, hits, misses, hit_bytes, disk_hits, in_place;
    uint64_t pinned; /* objects */
} __attribute__((aligned(64)));

/* ---- space ---------------------------------------------------------------------------------- */

/* A range of an extent, free or taken; ranges tile it without a gap. */
struct mco_node {
    uint32_t offset, size;       /* units */
    uint32_t left, right;        /* neighbours */
    uint32_t bin_prev, bin_next; /* free: others of the bin; unused node: bin_next chains them */
    uint32_t space;              /* index of its extent */
    uint32_t object;             /* MCO_NONE: free */
};

struct mco_space {
    struct mco_extent e; /* id 0: none */
    struct mco_arena *arena;
    uint32_t first, last; /* nodes; last: while it is filled anew */
    uint32_t record;
    uint64_t used;       /* bytes */
    uint32_t count;      /* objects, */
    uint32_t hard;       /* of them pinned hard */
    uint32_t prev, next; /* in the arena; next: of the unused */
    bool there;          /* mapped: else of an earlier life, not back yet */
    bool drains;         /* no new objects; its free ranges are in no bin */
    bool idle;           /* the owner was told */
};

struct mco_arena {
    struct mco_tenant *tenant;
    bool open;
    const struct mco_policy_ops *ops;
    struct mco_policy *policy;
    uint32_t bins[MCO_BINS];
    uint64_t bin_map[MCO_BINS / 64];
    uint32_t first; /* extent; MCO_NONE */
    uint32_t spaces;
    uint64_t bytes;         /* of extents that are there */
    uint64_t used;          /* by objects */
    uint64_t wanted;        /* bytes that the owner was asked for; 0: nothing */
    uint64_t refused_until; /* ns: it was not to be had: not asked again before */
    uint64_t
        wanted_until; /* ns: a wanted extent is waited for until then; later others go for what it would have held */
    uint64_t ordered; /* objects in the policy */
    uint64_t writing; /* by engines or in place */
    uint64_t going;   /* bytes on their way to disk, to be free then */
    /* where a look for somebody to go has ended without one, soft pins passed by or not; NULL: it begins anew */
    struct mco_policy_entry *resume[2];
    bool held[2]; /* and has passed some by that are held for a short time */
};

struct mco_tenant {
    uint64_t tenant, limit;
    uint64_t used;    /* bytes, as rounded */
    uint64_t records; /* of the table, those on disk and those that leave included */
    uint64_t objects, bytes, hits, misses, evictions, refused;
    struct mco_arena arenas[2]; /* closed, open */
};

/* ---- callbacks to be made when the locks are free -------------------------------------------- */

struct mco_after {
    bool ready, want;
    bool want_open;
    uint64_t want_tenant, want_size;
    unsigned idles, places, offloads;
    uint32_t idle[16];
    uint64_t place[MCO_PLACES];
    uint32_t offload[MCO_OFFLOADS];
    bool background; /* nobody waits for the space */
};

struct mco_guard {
    uint32_t object, in_place;
};

struct mco_store {
    struct mco_options o;
    const struct mco_policy_ops *ops;
    struct mco_lock lock;
    struct mco_table table;
    struct mco_policy_entry *entries; /* of each record: what the policy keeps */
    struct mco_shard *shards;
    uint64_t mixer; /* odd, random: nobody can tell which keys come to lie in one bucket */
    void *heads;
    size_t heads_size;

    struct mco_node *nodes;
    uint32_t nnodes, max_nodes, free_node, nodes_used;
    struct mco_space *spaces;
    uint32_t nspaces, free_space;
    struct mco_space **ids; /* by id: open addressing, a power of two */
    uint32_t ids_size, ids_used;
    uint64_t extent_bytes, wanted_bytes;
    uint64_t idle_bytes;      /* of extents that the owner was told to remove */
    uint64_t removed_at;      /* ns: when it last did; its memory may come back a little later */
    uint32_t empty;           /* extents that nothing lies in, and that the owner was not told of */
    uint32_t extents, drains; /* drains: index of the extent that is being emptied, or NONE */

    uint64_t drain_until;       /* ns: given up then, if nothing goes any more */
    uint32_t drain_left;        /* objects in it, when last looked at */
    uint64_t idle_until;        /* ns: likewise for extents that the owner was told of */
    uint64_t starving_until;    /* ns */
    struct mco_arena *starving; /* has less than its share, and waits for an extent */
    bool replicas;              /* some objects have other copies */

    struct mco_tenant **tenants; /* by hash: open addressing */
    uint32_t tenants_size, tenants_used;
    struct mco_groups *groups;
    struct mco_places *places;

    struct mco_policy_entry leaving; /* ring */
    struct mco_policy_entry on_disk; /* ring: oldest first */
    struct mco_policy_entry awaited; /* ring */
    bool adopted;                    /* the table is of an earlier life */
    struct mco_guard *guards;
    size_t nguards;
    uint64_t sequence;               /* next version without token */
    uint8_t key[MCS_KEY_MAX];        /* of the event that is told */
    uint32_t waiting;                /* atomic: somebody was told BUSY */
    bool waited;                     /* somebody was, at the last upkeep */
    bool evicting;                   /* above the high watermark, and not below the low one since */
    uint64_t spoiled[MCO_SPOILED];   /* hashes of keys; 0: none */
    uint32_t nspoiled, next_spoiled; /* nspoiled: atomic: some are there */
    uint8_t *
        early; /* bits by hash: written or removed before the disk was read through; NULL: it is, or there is a table */
    uint32_t offloading;    /* objects on their way to disk */
    uint64_t disk_moved;    /* ns: when the last of them was there, or the first began */
    bool told_stalls;       /* upkeep's */
    uint32_t lease_cursor;  /* records that were looked at for leases, */
    uint64_t lease_count;   /* and leases in them */
    struct mco_stats stats; /* under the lock, those of shards excepted */
};

/* Puts it among those whose bytes came damaged from disk; was it, and nobody was told yet? */
void mco_spoil(struct mco_store *s, uint64_t hash);
bool mco_is_spoiled(struct mco_store *s, uint64_t hash);

/* A record's number stands for the object in all that is private. */
static inline uint32_t mco_number(const struct mco_store *s, const struct mco_object *o)
{
    return (uint32_t)((const struct mco_record *)o - s->table.records);
}

static inline struct mco_object *mco_object_at(const struct mco_store *s, uint32_t n)
{
    return (struct mco_object *)&s->table.records[n];
}

static inline struct mco_record *mco_record_at(const struct mco_store *s, uint32_t n)
{
    return &s->table.records[n];
}

static inline uint32_t mco_entry_number(const struct mco_store *s, const struct mco_policy_entry *e)
{
    return (uint32_t)(e - s->entries);
}

/* Whoever chooses keys knows their hashes. */
static inline uint64_t mco_mixed(const struct mco_store *s, uint64_t hash)
{
    uint64_t h = hash * s->mixer;

    return h ^ h >> 32;
}

static inline struct mco_shard *mco_shard_of(const struct mco_store *s, uint64_t hash)
{
    return &s->shards[mco_mixed(s, hash) >> 56 & (MCO_SHARDS - 1)];
}

/* Under the shard's lock. */
static inline void mco_pin_more(struct mco_shard *sh, struct mco_record *r)
{
    sh->pinned += r->pins++ == 0;
}

/* Was it the last one? */
static inline bool mco_pin_less(struct mco_shard *sh, struct mco_record *r)
{
    bool last = --r->pins == 0;

    sh->pinned -= last;
    return last;
}

static inline struct mco_version mco_record_version(const struct mco_record *r)
{
    return (struct mco_version){r->token, r->sequence};
}

static inline bool mco_is_sealed(uint8_t state)
{
    return state >= MCO_MEMORY && state <= MCO_AWAITED;
}

static inline bool mco_in_memory(uint8_t state)
{
    return state >= MCO_MEMORY && state <= MCO_BOTH;
}

static inline uint64_t mco_rounded(uint64_t size)
{
    uint64_t to = size < MCO_LARGE ? MCO_UNIT : MCO_PAGE;

    return (size + to - 1) & ~(to - 1);
}

uint64_t mco_clock(void);

/* ---- table.c */
int mco_table_open(struct mco_store *s, char *error, size_t error_size);
void mco_table_close(struct mco_table *t);
/* A record with a tail that has room; its key and all that check covers are the caller's to fill. MCO_NONE: none is free, or no memory. */
uint32_t mco_record_new(struct mco_store *s, const struct mco_key *key, uint64_t group);
void mco_record_free(struct mco_store *s, uint32_t n);
/* It means something from now on: fields and tail are filled. ranged: its range, too; else it is away. */
void mco_record_valid(struct mco_store *s, uint32_t n, bool ranged);
/* From one to the other, by one store. */
void mco_record_left(struct mco_store *s, uint32_t n, uint8_t left);
void mco_record_invalid(struct mco_store *s, uint32_t n);
void mco_record_seal(struct mco_store *s, uint32_t n, uint32_t crc, bool summed);
bool mco_record_summed(const struct mco_record *r);
/* As an earlier life has left it: is it whole? seen: one bit a cont, those of sound records are set. */
bool mco_record_sound(const struct mco_store *s, uint32_t n, uint64_t *seen);
bool mco_record_is(const struct mco_store *s, uint32_t n, const struct mco_key *key);
/* Copies the key's bytes. */
void mco_record_key(const struct mco_store *s, uint32_t n, uint8_t *bytes);
uint64_t mco_record_group(const struct mco_record *r);
int mco_extent_record_new(struct mco_store *s, const struct mco_extent *e, uint32_t *n);
void mco_extent_record_free(struct mco_store *s, uint32_t n);
bool mco_extent_record_sound(const struct mco_store *s, uint32_t n);
uint32_t mco_extent_id(struct mco_store *s); /* 0: there are no more */
uint64_t mco_sequence(struct mco_store *s);
void mco_sequence_beyond(struct mco_store *s, uint64_t sequence);
uint64_t mco_table_bytes(const struct mco_store *s);
/* More records have memory than are used soon. For who may make system calls. */
void mco_table_ahead(struct mco_store *s);

/* ---- index.c */
int mco_index_create(struct mco_store *s);
void mco_index_destroy(struct mco_store *s);
/* Under the shard's lock. First object of the key whose state is in the set of bits. */
uint32_t mco_index_find(const struct mco_store *s, const struct mco_shard *sh,
                        const struct mco_key *key, unsigned states);
/* At most one of each kind; or MCO_NONE. */
struct mco_lives {
    uint32_t sealed, writing;
    uint32_t others;  /* of the same hash: other keys, and lives that leave; */
    uint32_t leaving; /* these alone */
};
void mco_index_lives(const struct mco_store *s, const struct mco_shard *sh,
                     const struct mco_key *key, struct mco_lives *out);
void mco_index_add(struct mco_store *s, struct mco_shard *sh, uint32_t n);
void mco_index_remove(struct mco_store *s, struct mco_shard *sh, uint32_t n);
/* Without the lock: where the key's chain begins, as a rule. To be fetched into the cache. */
const uint32_t *mco_index_head(const struct mco_store *s, uint64_t hash);
uint64_t mco_index_bytes(const struct mco_store *s);
#define MCO_STATES_SEALED                                                                          \
    (1u << MCO_MEMORY | 1u << MCO_OFFLOADING | 1u << MCO_BOTH | 1u << MCO_DISK |                   \
     1u << MCO_FETCHING | 1u << MCO_AWAITED)

/* ---- tenant.c */
struct mco_tenant *mco_tenant_find(const struct mco_store *s, uint64_t tenant);
struct mco_tenant *mco_tenant_get(struct mco_store *s, uint64_t tenant); /* NULL: no memory */
/* Records that it may have at most: of the table what its limit is of the store. */
uint64_t mco_tenant_records(const struct mco_store *s, const struct mco_tenant *t);
/* Makes the arena's policy. 0 or -ENOMEM. */
int mco_arena_ready(struct mco_store *s, struct mco_arena *a);
void mco_tenants_free(struct mco_store *s);
struct mco_arena *mco_arena_of(const struct mco_store *s, uint32_t n);
/* It is about to leave its place in the policy's order, where a look may have ended. */
void mco_step_over(struct mco_arena *a, struct mco_policy_entry *e);
/* In and out of the policy. */
void mco_order(struct mco_store *s, uint32_t n, const struct mco_hint *hint);
void mco_unorder(struct mco_store *s, uint32_t n, bool evicted);
/* A sealed object more, or less, in memory; on disk. */
void mco_counted(struct mco_store *s, uint32_t n, bool comes);
void mco_counted_on_disk(struct mco_store *s, uint32_t n, bool comes);

/* ---- space.c */
int mco_space_create(struct mco_store *s);
void mco_space_destroy(struct mco_store *s);
/* A range for object n. False: no hole is large enough. */
bool mco_space_take(struct mco_store *s, struct mco_arena *a, uint64_t size, uint32_t n);
/* after: NULL: nobody is told, nor an extent given back for it. */
void mco_space_give(struct mco_store *s, uint32_t n, struct mco_after *after);
/* For an extent that is filled anew, in rising order. */
bool mco_space_take_at(struct mco_store *s, struct mco_space *sp, uint32_t offset, uint32_t units,
                       uint32_t n);
/* An extent and its arena. Not there: one that nothing is put into. 0 or a negative errno. */
int mco_space_new(struct mco_store *s, const struct mco_extent *e, uint32_t record, bool there,
                  struct mco_space **out);
/* Nothing lies in it. */
void mco_space_gone(struct mco_store *s, struct mco_space *sp);
struct mco_space *mco_space_by_id(const struct mco_store *s, uint32_t id);
/* Its free ranges leave the bins, or come back. */
void mco_space_drain(struct mco_store *s, struct mco_space *sp, bool drains);
static inline struct mco_space *mco_space_of(const struct mco_store *s, const struct mco_record *r)
{
    return r->node == MCO_NONE ? NULL : &s->spaces[s->nodes[r->node].space];
}

/* ---- group.c */
struct mco_group {
    uint64_t tenant, hash;
    uint32_t *members, count, room;
};
int mco_groups_create(struct mco_store *s);
void mco_groups_destroy(struct mco_store *s);
/* 0; -ENOMEM; -ENOSPC: it has as many as it may. */
int mco_group_add(struct mco_store *s, uint32_t n);
void mco_group_remove(struct mco_store *s, uint32_t n);
struct mco_group *mco_group_of(struct mco_store *s, const struct mco_record *r);
uint64_t mco_groups_bytes(const struct mco_store *s);

/* ---- object.c */
/* Under s->lock. Not found from now on; freed when nobody is left in it. */
void mco_leave(struct mco_store *s, uint32_t n, enum mco_event_kind kind, uint64_t now,
               struct mco_after *after);
/* If nobody is left in it. */
bool mco_free_left(struct mco_store *s, uint32_t n, uint64_t now, struct mco_after *after);
/* All that is left of it goes. Its state is FREE from then on. */
void mco_free(struct mco_store *s, uint32_t n, struct mco_after *after);
void mco_tell(struct mco_store *s, uint32_t n, enum mco_event_kind kind);
void mco_fill_view(const struct mco_store *s, uint32_t n, struct mco_view *out);
/* Sets the state under the shard's lock; s->lock is held. */
void mco_set_state(struct mco_store *s, uint32_t n, enum mco_state state);
/* A range for object n of the arena, others going for it if need be. */
enum mcs_status mco_take_space(struct mco_store *s, struct mco_arena *a, uint32_t n, uint64_t size,
                               uint64_t now, struct mco_after *after);
void mco_after_init(struct mco_after *after);
void mco_run_after(struct mco_store *s, struct mco_after *after);
/* Those who were told BUSY are told. */
void mco_space_freed(struct mco_store *s, struct mco_after *after);
/* Nothing lies in it any more: is it needed? */
void mco_extent_empty(struct mco_store *s, struct mco_space *sp, struct mco_after *after);
/* The owner is told that it is not. False: it cannot be told now. */
bool mco_extent_idle(struct mco_store *s, struct mco_space *sp, struct mco_after *after);
#define MCO_RETURNS_NS                                                                             \
    UINT64_C(2000000000) /* so long what was removed may still be on its way back */
#define MCO_OWNER_NS                                                                               \
    UINT64_C(                                                                                      \
        2000000000) /* so long extents that the owner brings or takes are waited for where others could go instead */

/* Of objects that are in no policy: their entries make rings. */
void mco_ring_add(struct mco_store *s, struct mco_policy_entry *ring, uint32_t n);
void mco_ring_remove(struct mco_store *s, uint32_t n);

/* ---- find.c, tier.c */
/* It is on disk: has it brought. BUSY: it is on its way; OK: it is there already, look again. */
enum mcs_status mco_fetch(struct mco_store *s, const struct mco_key *key, uint64_t now);
/* Puts it on its way to disk. False: there is no room in `after`. */
bool mco_offload(struct mco_store *s, uint32_t n, bool goes, struct mco_after *after);
void mco_run_offloads(struct mco_store *s, struct mco_after *after);
void mco_places_free(struct mco_store *s);
void mco_place_remove(struct mco_store *s, uint64_t place);
/* Under s->lock: what is on disk of it, if anything, is not wanted any more. There is room in `after`. */
void mco_place_drop(struct mco_store *s, uint32_t n, struct mco_after *after);
/* Nothing has come to its end on the disk for seconds: nobody waits for it. Under s->lock. */
bool mco_disk_stalls(const struct mco_store *s, uint64_t now);
int mco_early_create(struct mco_store *s);
/* Under s->lock. Records of this key that a disk has from an earlier life are older than what happened now. */
void mco_early(struct mco_store *s, uint64_t hash);

/* ---- walk.c */
/* Goes on counting leases, some records a call. Under the store's lock. */
void mco_count_leases(struct mco_store *s, uint64_t now);

/* ---- recover.c */
int mco_extents_load(struct mco_store *s);

/* ---- evict.c */
/* Makes room for `size` bytes. OK: look again; BUSY, NO_SPACE, LIMIT. */
enum mcs_status mco_make_space(struct mco_store *s, struct mco_arena *a, uint64_t size,
                               uint64_t now, struct mco_after *after);
/* It alone, if nobody holds it; drop: not to disk. False: somebody does. */
bool mco_evict_one(struct mco_store *s, uint32_t n, uint64_t now, bool drop,
                   struct mco_after *after);
/* With its group, if nobody holds one of it, and not to disk. False: it stays. looks: at members, are added. */
bool mco_let_go(struct mco_store *s, uint32_t n, uint64_t now, bool soft, unsigned *looks,
                struct mco_after *after);
/* Those go whose readers and leases have gone. */
void mco_sweep(struct mco_store *s, uint64_t now, struct mco_after *after);
/* Do readers leave soon, of what is found no more? */
bool mco_leaves_soon(struct mco_store *s);
/* Is there any, of this tenant or (NULL) of all, that only waits for its lease to end before it can make room? */
bool mco_leases_end(struct mco_store *s, const struct mco_tenant *t, uint64_t now);

/* ---- full.c */
/* Makes room in the table; own: the arena's tenant has its share, and one of it goes. OK: look again; BUSY, NO_SPACE, LIMIT. */
enum mcs_status mco_make_record(struct mco_store *s, struct mco_arena *a, bool own, uint64_t now,
                                struct mco_after *after);

#endif
