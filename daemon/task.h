/* SPDX-License-Identifier: Apache-2.0 */
/* What task.c (checks, parked tasks), burst.c (fresh descriptors), complete.c (ends) and deliver.c (notifications) share. Engines only. */
#ifndef MCD_TASK_H
#define MCD_TASK_H

#include "engine.h"

/* What was found last. Good for one turn: nothing that can be found is freed within it. */
struct mcd_lookups {
    /* whose they are; a descriptor may name any handle, 0 too */
    uint32_t extent_handle, segment_handle;
    const struct mcd_extent *extent; /* NULL: none was found yet */
    const struct mcd_buffer *buffer; /* likewise */
};

/* How a task ended. */
struct mcd_outcome {
    uint8_t state;
    uint8_t path;
    uint16_t error;
    bool unsettled; /* something may still land at the peer */
    uint64_t bytes;
    uint32_t queue_ns, move_ns, notify_ns;
};

/* What mcd_resolve() says of a segment at another agent; no status. */
#define MCD_ELSEWHERE MCS_STATUS_COUNT
/* And of GPU memory at either end, which no pointer of this process may be used for: gpu_task.h. The lookups are filled. */
#define MCD_ON_GPU ((enum mcs_status)(MCS_STATUS_COUNT + 1))

#define MCD_PIECE_COST 256u /* bytes that the handling of a piece, or a task, counts for at least */
#define MCD_WAKE_TURNS 64u  /* turns between a completion and the look for a sleeping client */

static inline uint32_t mcd_clip32(uint64_t v)
{
    return v > UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

static inline bool mcd_task_active(const struct mcd_queue *q, uint32_t slot)
{
    return (q->active[slot / 64] >> (slot % 64) & 1) != 0;
}

/* Both ends of one piece, as pointers of the agent to host memory. Good for this turn only. Not OK: there is none in
 * *slice. */
enum mcs_status mcd_resolve(const struct mcd_queue *q, const struct mcs_desc *d,
                            uint64_t local_offset, uint64_t remote_addr, uint64_t length,
                            struct mcd_lookups *found, struct mct_slice *slice);

/* May a task have this GPU memory as its local end? GPU_ORDER: it does not say what it comes after. */
static inline enum mcs_status mcd_gpu_order(const struct mcs_desc *d)
{
    return (d->flags & (MCS_DESC_SYNCED | MCS_DESC_WAIT)) != 0 ? MCS_OK : MCS_GPU_ORDER;
}

/* Why a segment of this host has no such buffer. */
enum mcs_status mcd_missing(const struct mcd_segment *seg);
/* The state that a task has which ends for this before a byte has moved: is the request to blame? */
static inline enum mcs_state mcd_state_of(enum mcs_status error)
{
    return error == MCS_AGENT_RESTARTED ? MCS_STATE_FAILED : MCS_STATE_INVALID;
}
/* Handles of the session: NULL when there is none such (any more). */
const struct mcd_extent *mcd_find_extent(const struct mcd_queue *q, uint32_t handle);
struct mcd_segment *mcd_find_segment(const struct mcd_queue *q, uint32_t handle);
/* Does a buffer hold the range? */
static inline bool mcd_buffer_holds(const struct mcd_buffer *b, uint64_t address, uint64_t length)
{
    uint64_t at = address - b->address;

    return address >= b->address && at < b->length && length <= b->length - at;
}
/* Piece `index` of a task. */
enum mcs_status mcd_task_piece(const struct mcd_queue *q, const struct mcd_task *t, uint64_t index,
                               uint64_t *local, uint64_t *remote, uint64_t *length);
static inline uint64_t mcd_task_pieces(const struct mcd_task *t)
{
    return t->desc.shape == MCS_SHAPE_ONE ? 1 : t->args.count;
}
static inline bool mcd_task_notifies(const struct mcd_task *t)
{
    return t->desc.op == MCS_OP_NOTIFY || (t->desc.flags & MCS_DESC_NOTIFY) != 0;
}
/* One task more that does not end at once; false: its tenant may have no more. */
bool mcd_task_admit(struct mcd_queue *q, const struct mcs_desc *d);
/* The queue's lists of parked tasks. */
void mcd_list_add(struct mcd_queue *q, uint32_t slot, unsigned list);
void mcd_list_remove(struct mcd_queue *q, uint32_t slot);
/* One that has waited, as the class's first: before those that came later, as one with FENCE among them waits for it, and lets nobody
 * pass. */
void mcd_list_add_first(struct mcd_queue *q, uint32_t slot);
/* Out of all of them, and of the count of those that wait. */
void mcd_task_unpark(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t);
/* The queue's FIFO of all tasks that are not over. Into it once admitted. */
void mcd_age_add(struct mcd_queue *q, struct mcd_task *t);
void mcd_age_remove(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t);

/* Puts a notification into an inbox of this host. 0, -EAGAIN: no room, -ENOTCONN: nobody to read it,
 * -ECONNRESET: who reads it has not come back since the agent restarted. */
int mcd_inbox_deliver(struct mcd_engine *g, struct mcd_session *owner, uint64_t source,
                      uint64_t bytes, const void *name, uint32_t name_length, const void *message,
                      uint32_t message_length);

/* The batch's line is to be published at the end of the turn. */
void mcd_batch_mark(struct mcd_queue *q, uint32_t batch);
void mcd_batches_flush(struct mcd_queue *q);

/* Every task ends here, once, or in burst.c's complete_all(). */
void mcd_task_end(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                  const struct mcd_outcome *o);
/* The same for one that was refused: no byte has moved. */
void mcd_task_refuse(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                     uint32_t queue_ns, enum mcs_state state, enum mcs_status error);

/* Parks a fresh descriptor, or refuses it for its arguments. Ticks. */
void mcd_task_park(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                   uint64_t age, uint64_t deadline);
/* Ends a parked task as CANCELED: between two turns nothing of it is under way, when it is between host memory of this
 * host; else as soon as that is so. */
void mcd_task_cancel(struct mcd_engine *g, struct mcd_queue *q, uint32_t slot);
/* Moves parked tasks of a class on by up to `budget` bytes. *spent: what of it that took; *cost: what the queue was
 * given for it, where each byte that is moved counts once. True when something happened. */
bool mcd_parked_run(struct mcd_engine *g, struct mcd_queue *q, unsigned class, uint64_t budget,
                    uint64_t *spent, uint64_t *cost);
/* Tries those again that wait for room in an inbox. */
bool mcd_waiting_run(struct mcd_engine *g, struct mcd_queue *q);
/* Ends a task of this host of which nothing is under way. */
void mcd_task_finish(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t,
                     enum mcs_state state, enum mcs_status error);
/* Its gate has opened, or (error) never will. */
void mcd_task_open(struct mcd_engine *g, struct mcd_task *t, enum mcs_status error);
/* The first byte moves now. */
void mcd_task_start(struct mcd_engine *g, struct mcd_task *t);
/* The last byte of a task that is in none of the queue's lists is in place: it ends, or its notification goes. */
void mcd_task_moved(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t);

/* deliver.c: puts the task's notification into the inbox of the segment's owner. As mcd_inbox_deliver(); -ESTALE: a handle of
 * an earlier life. */
int mcd_task_deliver(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t);

#endif
