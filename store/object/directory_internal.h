/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the directory.
 *
 *   entry   one key: its last life, who holds it, and, while there is something to do, a put that is open and duties.
 *           One allocation with the key's bytes behind it; found by a table that is cut into shards by the hash, so that no growth
 *           and no walk ever has more in hand than one shard.
 *   duty    what one holder has to do about one entry: COPY, MOVE or DROP. It is due, then given (as an order), then done.
 *   grave   the ring of entries that remember a life that is over (removed, or replaced in this leader's reign and then lost):
 *           who still reports an older one is ordered to drop it. When the ring is full the oldest are forgotten; `floor`
 *           says up to which version, and a holder that was not heard before then drops what is older and not known.
 */
#ifndef MCO_DIRECTORY_INTERNAL_H
#define MCO_DIRECTORY_INTERNAL_H

#include "directory.h"

#define MCO_SHARDS 4096u
#define MCO_SLOT_HOLDER 0x0fffu /* of an entry's holder word */
#define MCO_SLOT_DISK 0x1000u
#define MCO_SLOT_TURN 13u /* three bits: the holder's report that it was last seen in */

enum {
    MCO_ENTRY_GRAVE = 1,   /* it is in the ring */
    MCO_ENTRY_EARLIER = 2, /* it has had an earlier life in this reign: is to be remembered */
    MCO_ENTRY_REMOVED = 4  /* its last life was removed, not only lost */
};

struct mco_duty {
    struct mco_entry *e;
    struct mco_duty *next;           /* of the entry */
    struct mco_duty *before, *after; /* in the holder's list, due or given */
    struct mco_version version;
    struct mco_version since; /* DROP: the oldest life that it was ordered for */
    uint64_t given;           /* ns; 0: due */
    uint32_t holder, from;
    uint8_t kind, tries;
    bool once; /* it was given once: it may have been done, whatever came back */
    bool owed; /* DROP: nobody waits for it, so its holder is not current before it is done */
};

struct mco_opened { /* a put that is under way */
    struct mco_entry *e;
    struct mco_opened *before, *after; /* oldest first */
    struct mco_version version;
    uint64_t size, started;
    uint32_t writer, preferred;
    uint8_t replicas;
};

struct mco_entry {
    uint64_t hash, tenant;
    struct mco_version version; /* of its last life, 0: there was none */
    uint64_t size;
    struct mco_duty *duties;
    struct mco_opened *put;
    uint32_t crc;
    uint16_t length;
    uint8_t nholders; /* 0: it is not there */
    uint8_t copies;   /* hosts that are to hold it */
    uint16_t holders[MCS_REPLICAS_MAX];
    uint8_t flags;
    uint8_t key[];
};

struct mco_shard {
    uint64_t *slots; /* 16 bits of the hash, 48 of the entry's address; 0: free */
    uint32_t size;   /* a power of two, or 0 */
    uint32_t count;
};

struct mco_list {
    struct mco_duty *first, *last;
};

enum { MCO_SCAN_SWEEP = 1, MCO_SCAN_LOST = 2, MCO_SCAN_DRAIN = 4 };

struct mco_member {
    struct mco_holder info;
    uint64_t domain; /* hash; of its own identity when it has none */
    uint64_t heard;  /* ns */
    enum mco_holder_state state;
    bool connected;
    bool ordered;                     /* to be emptied, by order */
    bool told;                        /* has reported in full in this reign */
    bool current;                     /* nothing was said to be over that it may still have */
    uint8_t turn;                     /* of its reports, 0 .. 7 */
    uint8_t scan;                     /* MCO_SCAN_*: wanted from the next pass on */
    uint8_t scans;                    /* in this pass */
    uint64_t objects, marked;         /* entries that name it; those of this turn */
    struct mco_list due[2], given[2]; /* copies and moves; drops */
    uint64_t ngiven[2], nmoves;       /* nmoves: duties that pull from it for a drain */
    uint64_t puts;                    /* that it has under way */
    uint64_t owed;                    /* duties of the kind */
    uint64_t drain_at;                /* when a drain looks again */
};

struct mco_expected {
    char address[MCO_TEXT_MAX];
    bool joined, heard;
};

struct mco_directory {
    struct mco_directory_options o;
    uint64_t sequence, created;
    struct mco_shard shards[MCO_SHARDS];
    struct mco_member *members[MCO_HOLDERS_MAX];
    uint32_t nmembers; /* ends at the last that there is */
    uint32_t turn;     /* whose orders come next */
    struct mco_expected *expected;
    size_t nexpected, expected_room;
    bool expected_all, rebuilt;
    bool repair, repairs; /* wanted from the next pass on; in this one */
    bool lacking;         /* there was no place for some copy */
    uint64_t lack_at,
        lack_ns; /* when that is tried again, and how long after the last time; 0: not set */
    uint64_t placed, placed_before; /* copies that got a place; before this pass */
    uint64_t no_room;               /* in this pass: nobody has room for so many bytes */
    struct mco_opened *oldest, *newest;
    struct mco_entry **grave;
    uint64_t grave_size, grave_first, grave_count;
    struct mco_version floor;
    bool scanning;
    uint32_t scan_at;
    uint64_t copies; /* duties of the kind */
    uint64_t drops;
    uint64_t memory; /* of entries and slots */
    struct mco_directory_stats stats;
};

/* ---- directory_table.c */
struct mco_entry *mco_entry_find(const struct mco_directory *d, const struct mco_key *key);
/* NULL: no memory, or `keys_max` are there. */
struct mco_entry *mco_entry_make(struct mco_directory *d, const struct mco_key *key);
/* Takes it out when nothing needs it any more. True: it is gone. */
bool mco_entry_settle(struct mco_directory *d, struct mco_entry *e);
/* One that has a life that is over, which is to be remembered. */
void mco_entry_bury(struct mco_directory *d, struct mco_entry *e);
/* Forgets the oldest graves when there are more than graves_max; some at a time. Entries may go. */
void mco_graves_trim(struct mco_directory *d);
void mco_entries_destroy(struct mco_directory *d);
/* f: true when the entry is gone; it may take out no other. */
void mco_shard_each(struct mco_directory *d, uint32_t shard,
                    bool (*f)(void *context, struct mco_directory *d, struct mco_entry *e),
                    void *context);
void mco_table_prefetch(const struct mco_directory *d, uint64_t hash);
void mco_table_prefetch_entry(const struct mco_directory *d, uint64_t hash);
static inline struct mco_key mco_entry_key(const struct mco_entry *e)
{
    return (struct mco_key){e->key, e->length, e->tenant, e->hash};
}

/* ---- directory.c */
struct mco_member *mco_member(const struct mco_directory *d, uint32_t holder);
static inline bool mco_here(const struct mco_directory *d, uint32_t holder)
{
    return d->members[holder]->state <= MCO_HOLDER_HERE;
}
/* Its index in e->holders, or -1. */
int mco_entry_slot(const struct mco_entry *e, uint32_t holder);
/* False: it has as many as it can. */
bool mco_entry_add(struct mco_directory *d, struct mco_entry *e, uint32_t holder, bool disk);
void mco_entry_drop(struct mco_directory *d, struct mco_entry *e, int slot);
/* It may have lives that are said to be over: whatever it is to drop is owed. */
void mco_holder_stale(struct mco_member *h);
/* Is the rebuilding over? Then it is from here on, whoever joins. */
void mco_rebuilt_look(struct mco_directory *d, uint64_t now);
/* What it had is lost, as far as it does not come back and tell. */
void mco_holder_gone(struct mco_directory *d, struct mco_member *h);

/* ---- directory_keys.c */
/* The put that is under way is over. */
void mco_put_over(struct mco_directory *d, struct mco_entry *e);
/* All puts of a holder. */
void mco_puts_undo(struct mco_directory *d, uint32_t writer);

/* ---- directory_orders.c */
void mco_duty_drop(struct mco_directory *d, struct mco_entry *e, uint32_t holder,
                   const struct mco_version *upto);
/* Copies that are missing, and (from a holder that is to be emptied, or for `preferred`) moves. */
void mco_duties_place(struct mco_directory *d, struct mco_entry *e, uint32_t preferred);
/* False: nobody has room. */
bool mco_duty_move(struct mco_directory *d, struct mco_entry *e, uint32_t from, uint32_t to);
void mco_duty_end(struct mco_directory *d, struct mco_duty *y);
/* The life of an entry is over: copies of it are not made; who may have made one drops it. */
void mco_duties_cancel(struct mco_directory *d, struct mco_entry *e);
/* A holder is away, or has a new connection: what was given is due again; away: copies go elsewhere. */
void mco_duties_again(struct mco_directory *d, struct mco_member *h, bool away);
/* Nobody waits any more for what it is to drop. */
void mco_duties_owe(struct mco_member *h);
struct mco_duty *mco_duty_of(const struct mco_entry *e, uint32_t holder, unsigned kind);
void mco_duties_late(struct mco_directory *d, uint64_t now);
/* Who gets one more copy, or MCO_NO_HOLDER. */
uint32_t mco_place(const struct mco_directory *d, const struct mco_entry *e, uint32_t but);
/* Its memory is no more: it has nothing to drop. */
void mco_duties_void(struct mco_directory *d, struct mco_member *h);
/* Drops that only holders which are away would have to do are forgotten: those drop all up to then when they come. False: others
 * are to drop it, too. */
bool mco_duties_forget(struct mco_directory *d, struct mco_entry *e);

#endif
