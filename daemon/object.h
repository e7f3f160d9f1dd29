/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests about objects in an engine.  burst.c hands fresh ones over, task.c lets parked ones go on; each is a task like
 * any other: in the queue's lists, with its class, share, deadline and cancel.
 *
 *   take --> keys in the argument area are gone through, some a turn
 *     |        PUT, CREATE   start (catalog) -> space (BUSY: waits for ready()) -> copy, CRC32C -> seal -> end (catalog)
 *     |        GET, HOLD     here: pin, copy (or hold), unpin; else find (catalog) -> a leg reads it from its host
 *     |        EXIST, PREFIX here, then the catalog for the rest
 *     +--> results, slot
 *
 * What waits (space, disk, catalog, legs) is in the list of those that wait and is looked at when what it waits for says so.
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
 * *budget; parks the rest (mcd_task_park() does the listing). now_allowed: nothing stands before it.
 */
void mcd_object_take(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                     uint64_t age, uint64_t deadline, uint32_t queue_ns, bool now_allowed,
                     uint64_t *budget);
/* A RELEASE. */
void mcd_object_release(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d);
/* A parked one goes on, by up to *budget. OK: it has ended well and *o says how (the caller ends the task); MCS_BUSY: it goes on
 * later, `waits` tells whether something has to happen first; else why it has failed. */
enum mcs_status mcd_object_advance(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t,
                                   uint64_t *budget, struct mcd_outcome *o, bool *waits);
/* It is canceled, late or its queue goes: asks catalog and legs to let go. True: nothing of it is under way any more and its state is
 * gone; false: it will say so by mcd_object_awake(), ask again. */
bool mcd_object_drop(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t);

/* The engine's part of it all. */
struct mcd_objects;
int mcd_objects_create(struct mcd_engine *g, struct mcd_objects **out);
void mcd_objects_destroy(struct mcd_objects *o);
/* Every turn: answers of the catalog, store's ready(): those that wait for them go on. True: something happened. */
bool mcd_objects_turn(struct mcd_engine *g);
/* Something waits for another thread's word: the engine's sleep is woken by it (eventfd), no need to spin. */
/* Any thread: the store's ready(). */
void mcd_objects_ready(struct mcd_engine *g);

#endif
