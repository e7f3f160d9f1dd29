/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the agent's store share. Control thread, but where said. */
#ifndef MCD_STORE_INTERNAL_H
#define MCD_STORE_INTERNAL_H

#include "agent.h"
#include "store.h"
#include "store/object/lock.h"

/* An extent of the store's. */
struct mcd_store_extent {
    struct mcd_extent *memory;
    uint64_t tenant;
    uint32_t id; /* the core's; 0: not given to it yet */
    bool open;
    bool kept;                      /* whoever keeps has it, or was told to */
    uint64_t pin_until;             /* ns: how long the GPU driver is waited for; 0: not asked */
    char name[MCD_KEEPER_NAME_MAX]; /* under this name */
    struct mcd_store_extent *next;
};

/* What the core has asked for, from whatever thread. */
struct mcd_store_note {
    uint64_t tenant, size; /* of a wanted extent; size 0: */
    uint64_t until;  /* ns: how long it waits for memory on its way back; 0: it has not begun to */
    uint32_t extent; /* this one is idle */
    bool open;
};

struct mcd_store_work {
    /* any thread, under the lock; partners of it are all who take it */
    struct mco_lock lock;
    uint32_t nnotes, notes_room;
    struct mcd_store_note *notes;
    uint64_t notes_lost; /* atomic: no memory for them; */
    uint64_t notes_seen; /* so many were made up for */
    /* control thread */
    struct mcd_store_extent *extents;
    uint64_t making;                /* bytes, of extents being made by the worker */
    struct mcd_store_note *waiting; /* wanted extents that wait for memory on its way back */
    uint32_t nwaiting;
    bool stopped;
    uint64_t made, removed, not_made, not_kept;
    struct mco_recovered recovered;
    uint64_t lost_extents; /* of the life before */
    bool guarded;          /* what sessions of that life have in place is kept as it is */
    uint64_t unguard_at;   /* ns: where nobody knows those sessions; 0: by their end */
    bool told_unkept;
    struct mcd_alarm upkeep;
    uint64_t puts;            /* as of the last upkeep */
    struct mcd_worker *lists; /* walks through keys */
    unsigned doubts;          /* objects that it is to look at */
};

/* store_extent.c: the memory under the objects. */

/* mco_options' want and idle, any thread; context: the store. */
void mcd_store_want(void *context, uint64_t tenant, bool open, uint64_t size);
void mcd_store_idle(void *context, uint32_t extent);
/* Works off what was asked for. True: something could not be done yet. */
bool mcd_store_notes(struct mcd_store *st);
/* At the start: extents that the life before has left, or has lost. */
void mcd_store_take_back(struct mcd_store *st);
/* At the end: lets go of all of them. */
void mcd_store_drop_extents(struct mcd_store *st);
struct mcd_store_extent *mcd_store_find(struct mcd_store *st, uint32_t id);

/* handlers_object.c: the session maps nothing of the store's any more. */
void mcd_store_unmap_all(struct mcd_session *s);
/* No session's mapping of this extent counts any more. */
void mcd_store_unmap_extent(struct mcd_agent *a, const struct mcd_extent *e);
/* store_list.c: lists, removals by pattern, the feed, drains. Checked are what, flags and length. Replies. */
void mcd_store_list(struct mcd_session *s, const struct mcs_msg_objects *m);

#endif
