/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests about objects in an engine.  burst.c hands fresh ones over, task.c lets parked ones go on; each is a task like
 * any other: in the queue's lists, with its class, share, deadline and cancel.
 *
 *   take --> keys in the argument area are gone through, some a turn
 *     |        PUT, CREATE   start (catalog) -> space (BUSY: waits for ready()) -> copy, CRC32C -> seal -> end (catalog)
 *     |        GET, HOLD     here: pin, copy (or hold), unpin; else find (catalog) -> a leg reads it from its host
 *     |        EXIST, PREFIX here, then the catalog for the rest
 *     |        what lies in the caller's GPU memory goes by legs of this host (object_gpu.c)
 *     +--> results, slot
 *
 * What waits (space, disk, catalog, legs) is in no list of the queue and costs a turn nothing; it goes on when what it waits for
 * says so.
 */
#ifndef MCD_OBJECT_H
#define MCD_OBJECT_H

#include "task.h"

struct mcd_object; /* a request's state beyond its mcd_task; pooled by the engine */

static inline bool mcd_op_is_object(uint8_t op)
{
    return op >= MCS_OP_PUT && op <= MCS_OP_HOLD;
}

/*
 * A fresh descriptor that has passed what all have to pass. Runs at once what is small and need not wait, within
 * *budget; parks the rest. now_allowed: nothing stands before it.
 */
void mcd_object_take(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                     uint64_t age, uint64_t deadline, uint32_t queue_ns, bool now_allowed,
                     uint64_t *budget);
/* A RELEASE. */
void mcd_object_release(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d);
/* A parked one goes on, by up to *budget: it ends, stays where it is, or waits (MCD_UNLISTED). True when something happened. */
bool mcd_object_advance(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t,
                        uint64_t *budget);
/* A parked one ends so, as soon as nothing of it is under way. */
void mcd_object_finish(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t,
                       enum mcs_state state, enum mcs_status error);

/* Its gate has opened, or (error) never will. */
void mcd_object_open(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t,
                     enum mcs_status error);

/* The engine's part of it all. */
struct mcd_objects;
int mcd_objects_create(struct mcd_engine *g, struct mcd_objects **out);
/* The engine has no queues. NULL is fine. */
void mcd_objects_destroy(struct mcd_objects *o);
/* Every turn: answers of the catalog, store's ready(): those that wait for them go on. True: something happened. */
bool mcd_objects_turn(struct mcd_engine *g);
/* The last look before sleep: is there something for mcd_objects_turn()? */
bool mcd_objects_pending(const struct mcd_engine *g);
/* Any thread: the store's ready(). Wakes the engine. */
void mcd_objects_ready(struct mcd_engine *g);
/* Any thread: mcd_asks_turn() has something to do. Wakes the engine. */
void mcd_objects_wake(struct mcd_engine *g);

#endif
