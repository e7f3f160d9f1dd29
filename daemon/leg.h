/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A leg: bytes of an object of another host, read into memory of this one, as a part of a request about objects or for the
 * agent itself (a replica).  In an engine it is a task of the queue in a slot beyond those that its client has, so lanes, rails,
 * slices, deadlines and the promise of its end are those of every task; only its pieces and ends are private memory, and its
 * end is told to who began it and not to a slot.  Engine's thread.
 *
 * Legs of this host move what lies in GPU memory of the session's from and to objects that are here; their lanes are those of
 * the device (gpu_task.h).
 */
#ifndef MCD_LEG_H
#define MCD_LEG_H

#include "task.h"

#define MCD_LEGS 32u /* of a queue at a time */

struct mcd_leg_piece {
    uint64_t local;  /* offset in the extent */
    uint64_t remote; /* address in the segment; of this host: offset in `store` */
    uint64_t length;
};

struct mcd_leg {
    struct mcd_segment
        *segment;    /* of the other host's store; a reference is held by who begins it */
    uint32_t extent; /* the session's handle of the local end, */
    struct mcd_extent
        *store;              /* or, not NULL, an extent of the store; of this host: its other end */
    const uint32_t *extents; /* of this host: handles of each piece's local end; else NULL */
    bool write;              /* of this host: from the local end to the store */
    const struct mcd_leg_piece *pieces; /* stay where they are until its end */
    uint32_t npieces;
    uint64_t deadline; /* ticks */
    uint8_t priority;
    bool strict;
    /* Its end, once, from inside a turn: the local end is quiet. It may begin another one, but end no task. */
    void (*done)(struct mcd_engine *g, struct mcd_leg *l, const struct mcd_outcome *o);
    void *context;
    uint32_t slot; /* while it is under way */
};

/* 0; -EAGAIN: all MCD_LEGS are under way, again later; -EINVAL: a piece lies outside its extent; -ENOTCONN: no route. */
int mcd_leg_begin(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l);
/* Of this host: extents, pieces and store are set, the ranges in the store are good. 0; -EAGAIN as before; -ENOMEM; -EINVAL: the
 * first piece is not GPU memory. */
int mcd_leg_begin_here(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l);
/* Could one begin now? */
bool mcd_leg_is_free(const struct mcd_queue *q);
/* done() follows, perhaps later. */
void mcd_leg_cancel(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l);

/* remote.c, gpu_task.c: the task of a leg has ended like this and is not in the queue's lists any more. */
void mcd_leg_ended(struct mcd_engine *g, struct mcd_task *t, const struct mcd_outcome *o);

#endif
