/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue: submission ring, completion slots, batch lines and arguments of one
 * client thread, in memory shared with a process that the agent does not trust.
 * abi.h draws the layout.
 *
 * Who writes what:  client  ring elements and prod words, waiters, caller line, arguments
 *                   agent   header, ring's cons words, need_wakeup, life line, batch lines, slots
 * Who may die:      either side, at any instruction; nothing here is ever locked.
 *
 * Two store-then-load handshakes (each side: store, full fence, load):
 *   sleep of the engine   agent  need_wakeup = 1; fence; look at the ring
 *                         client push;            fence; look at need_wakeup
 *   sleep of the client   client waiters = b;     fence; look at the batch line
 *                         agent  batch line;      fence; look at waiters
 * and one for copies in the caller's thread (grants are in the session region):
 *   withdrawal of a grant client caller_active = 1;   fence; look at grants_version
 *                         agent  grants_version += 1; fence; look at caller_active
 * tests/model/ has a model of each (engine_sleep, client_sleep, caller) and of completions
 * (completion), run with all interleavings.
 */
#ifndef MCS_QUEUE_H
#define MCS_QUEUE_H

#include "ring.h"

struct mcs_queue_layout {
    uint32_t depth, slots, batches;
    uint64_t args_size;
    uint64_t ring_offset, batches_offset, slots_offset, args_offset, total_size;
};

/* A mapped queue.  Sizes are private copies. */
struct mcs_queue {
    struct mcs_queue_header *header;
    struct mcs_doorbell *doorbell;
    struct rte_ring *ring;
    struct mcs_batch_line *batch_lines;
    struct mcs_slot *slot_table;
    uint8_t *args;
    uint32_t depth, slots, batches;
    uint64_t args_size, total_size;
    bool never_sleeps;
};

/* Computes offsets. Returns 0, or -EINVAL when a size is out of its range in abi.h:
 * depth a power of two; args_size a multiple of MCS_LINE. */
int mcs_queue_layout(uint32_t depth, uint32_t slots, uint32_t batches, uint64_t args_size,
                     struct mcs_queue_layout *out);

/* Sets q's pointers and private sizes; for the two functions below. */
void mcs_queue_view(struct mcs_queue *q, void *mem, const struct mcs_queue_layout *layout,
                    bool never_sleeps);

/* Agent: lays a queue out in zeroed memory of layout->total_size bytes and views it. */
int mcs_queue_create(struct mcs_queue *q, struct mcs_ring_consumer *consumer, void *mem,
                     const struct mcs_queue_layout *layout, uint32_t queue_id,
                     uint64_t session_incarnation, uint64_t features);

/*
 * Agent: views a queue that an earlier agent laid out and that its client has kept, and goes on
 * where that one was: everything up to mcs_doorbell.taken was in its hands. The layout is what
 * the agent's own table says; the header must agree with it. Nothing is written but the ring's
 * consumer words. -EPROTONOSUPPORT: laid out by another build; -EPROTO: the header is not this
 * queue's, or the ring claims more than it holds.
 */
int mcs_queue_resume(struct mcs_queue *q, struct mcs_ring_consumer *consumer, void *mem,
                     const struct mcs_queue_layout *layout, uint32_t queue_id,
                     uint64_t session_incarnation, uint64_t features);

/* Agent: says so to the client, once the queue is about to be served again. */
void mcs_queue_resumed(struct mcs_queue *q, const struct mcs_ring_consumer *consumer,
                       uint64_t agent_incarnation);

/* Client: views a queue that the agent laid out. -EPROTONOSUPPORT: built against another
 * ABI or another rte_ring; -EPROTO: the header contradicts itself or `size`. */
int mcs_queue_attach(struct mcs_queue *q, void *mem, uint64_t size);

/* ---- client ---------------------------------------------------------------------- */

/* After a push: must the engine be woken?  Client half of the engine's sleep. */
static inline bool mcs_queue_must_wake(const struct mcs_queue *q)
{
    if (mcs_load_relaxed(&q->never_sleeps)) /* partner: queue_back() of the library */
        return false;
    mcs_fence_full(); /* orders the push before this look; partner: mcs_queue_sleep() */
    return mcs_load_relaxed(&q->doorbell->need_wakeup) != 0;
}

/* The slot's word. It belongs to the task iff its high half is the task's generation.
 * S1: acquire, pairs with the release in mcs_slot_complete(). */
static inline uint64_t mcs_slot_peek(const struct mcs_queue *q, uint32_t slot)
{
    return mcs_load_acquire(&q->slot_table[slot].word);
}

/* S2: acquire, pairs with the release in mcs_batch_publish(). */
static inline uint64_t mcs_batch_peek(const struct mcs_queue *q, uint32_t batch)
{
    return mcs_load_acquire(&q->batch_lines[batch].word);
}

/* Client half of its own sleep: after this and one more look at the batch line the
 * client may sleep on the line's futex. */
static inline void mcs_queue_wait_begin(struct mcs_queue *q, uint32_t batch)
{
    mcs_store_relaxed(&q->doorbell->waiters, MCS_WAIT_BATCH(batch));
    mcs_fence_full(); /* partner: mcs_queue_waiter() */
}

static inline void mcs_queue_wait_end(struct mcs_queue *q)
{
    mcs_store_relaxed(&q->doorbell->waiters, MCS_WAIT_NONE);
}

/*
 * Client, about to sleep: makes the low half of a line that still shows the batch's former
 * life 0.  Otherwise the futex value could be the same before and after the first task
 * ends (1 then, 1 now), and the wake-up between look and sleep would be lost.  Compare and
 * swap: what the agent has published in between stays.
 */
static inline void mcs_batch_renew(struct mcs_queue *q, uint32_t batch, uint32_t generation)
{
    uint64_t word = mcs_batch_peek(q, batch);

    if (word >> 32 != generation) /* partner: mcs_batch_publish() */
        mcs_compare_exchange(&q->batch_lines[batch].word, &word, (uint64_t)generation << 32);
}

/*
 * Client half of the withdrawal of a grant: announces a copy in its own thread.  False: a
 * grant has been withdrawn since `version`; nothing was announced, take the agent's path.
 */
static inline bool mcs_caller_begin(struct mcs_queue *q, const struct mcs_session_words *words,
                                    uint64_t version)
{
    mcs_store_relaxed(&q->doorbell->caller_active, 1u);
    mcs_fence_full(); /* orders it before the look; partner: the agent's withdrawal, above */
    if (mcs_load_acquire(&words->grants_version) == version)
        return true;
    mcs_store_release(&q->doorbell->caller_active, 0u);
    return false;
}

/* The copy is over: release, pairs with the acquire of who waits for caller_active to be 0. */
static inline void mcs_caller_end(struct mcs_queue *q)
{
    mcs_store_release(&q->doorbell->caller_active, 0u);
}

/*
 * Which agent serves the queue (0: the one that made it), and from which descriptor on: those
 * pushed at a place before *from were in the hands of an earlier one. L2: acquire, pairs with the
 * release in mcs_queue_resumed().
 */
static inline uint64_t mcs_queue_life(const struct mcs_queue *q, uint32_t *from)
{
    uint64_t by = mcs_load_acquire(&q->doorbell->resumed_by);

    *from = mcs_load_relaxed(&q->doorbell->resumed);
    return by;
}

/* ---- agent ----------------------------------------------------------------------- */

/* S1's partner: the task's last word. */
static inline void mcs_slot_complete(struct mcs_queue *q, uint32_t slot, uint64_t word,
                                     uint64_t bytes, uint32_t queue_ns, uint32_t move_ns,
                                     uint32_t notify_ns)
{
    struct mcs_slot *s = &q->slot_table[slot];

    mcs_store_relaxed(&s->bytes, bytes);
    mcs_store_relaxed(&s->queue_ns, queue_ns);
    mcs_store_relaxed(&s->move_ns, move_ns);
    mcs_store_relaxed(&s->notify_ns, notify_ns);
    mcs_store_release(&s->word, word);
}

/* S2's partner: how far the batch is. */
static inline void mcs_batch_publish(struct mcs_queue *q, uint32_t batch, uint32_t generation,
                                     uint32_t ended, uint32_t failed, uint32_t taken,
                                     uint64_t bytes)
{
    struct mcs_batch_line *line = &q->batch_lines[batch];

    /* relaxed: a client that looks at a batch under way gets each of them whole */
    mcs_store_relaxed(&line->bytes, bytes);
    mcs_store_relaxed(&line->failed, failed);
    mcs_store_relaxed(&line->taken, taken);
    mcs_store_release(&line->word, (uint64_t)generation << 32 | ended);
}

/* Agent half of the client's sleep: who sleeps on this queue, after a full fence. */
static inline uint32_t mcs_queue_waiter(const struct mcs_queue *q)
{
    mcs_fence_full(); /* orders the batch line before this look; partner: mcs_queue_wait_begin() */
    return mcs_load_relaxed(&q->doorbell->waiters);
}

/* Agent half of the engine's sleep; a full fence and a look at each ring must follow. */
static inline void mcs_queue_sleep(struct mcs_queue *q, bool asleep)
{
    mcs_store_relaxed(&q->doorbell->need_wakeup, asleep ? 1u : 0u);
}

#endif
