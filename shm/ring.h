/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The submission ring: a DPDK rte_ring of 64-byte descriptors in shared memory,
 * one producer (the client's thread), one consumer (the agent's engine).
 *
 * The client uses DPDK's inline enqueue.  The agent reads one word of the ring's
 * header, prod.tail, and writes two, cons.head and cons.tail; size, mask and its
 * index stay in struct mcs_ring_consumer, which the client cannot reach.
 * tests/model/ring.pml is a model of both sides.
 *
 * What was taken is counted outside of the ring, too, before any of it is executed
 * (mcs_doorbell.taken): an agent that takes over from one that was killed goes on
 * there, and the client learns which of its descriptors were in the dead one's hands
 * (tests/model/restart.pml).
 */
#ifndef MCS_RING_H
#define MCS_RING_H

/* The C11 flavour of the ring says which accesses are atomic; on x86 it compiles
 * to the same instructions as the default one, and TSan understands it. */
#ifndef RTE_USE_C11_MEM_MODEL
#define RTE_USE_C11_MEM_MODEL 1
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wconversion"
#include <rte_config.h>
#include <rte_ring.h>
#include <rte_ring_elem.h>
#pragma GCC diagnostic pop

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "abi.h"
#include "atomic.h"

/* Puts all of n descriptors or none.  Client's thread only.
 * R1: the enqueue's store of prod.tail (release) pairs with A1 below. */
static inline bool mcs_ring_push(struct rte_ring *ring, const struct mcs_desc *descs, unsigned n)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
    return rte_ring_sp_enqueue_bulk_elem(ring, descs, sizeof(*descs), n, NULL) != 0;
#pragma GCC diagnostic pop
}

#ifdef MCS_FAILPOINTS
/* What a push has done before its store of prod.tail: for a death in between. */
static inline void mcs_ring_write(struct rte_ring *ring, const struct mcs_desc *descs, unsigned n)
{
    struct mcs_desc *elements = (struct mcs_desc *)(void *)(ring + 1);

    if (n > ring->capacity - (ring->prod.tail - mcs_load_relaxed(&ring->cons.tail)))
        return;
    for (unsigned i = 0; i < n; i++)
        elements[(ring->prod.tail + i) & ring->mask] = descs[i];
}
#endif

/* Free elements as the client may see them: never more than there are. */
static inline unsigned mcs_ring_room(const struct rte_ring *ring)
{
    /* cons.tail: partner mcs_ring_publish(), which only ever makes it more */
    return ring->capacity - (ring->prod.tail - mcs_load_relaxed(&ring->cons.tail));
}

struct mcs_ring_consumer {
    struct rte_ring *ring;
    const struct mcs_desc *elements;
    uint32_t *taken;    /* the doorbell's: what `head` is, for a later agent */
    uint32_t size;      /* power of two */
    uint32_t head;      /* next element to take; free-running */
    uint32_t published; /* what cons.tail says */
    uint32_t quiet;     /* empty looks since the last element */
};

/* cons.tail is written late, so that the producer's look at it stays a cache hit. */
#define MCS_RING_QUIET_LOOKS 32u

static inline void mcs_ring_publish(struct mcs_ring_consumer *c)
{
    mcs_store_relaxed(&c->ring->cons.head, c->head);
    /* A2: frees the elements; pairs with the producer's load of cons.tail. */
    mcs_store_release(&c->ring->cons.tail, c->head);
    c->published = c->head;
}

/*
 * Copies up to `max` descriptors out.  Returns how many, or -EPROTO when the tail
 * claims more than the ring holds: the producer is broken, end its session.
 */
static inline int mcs_ring_take(struct mcs_ring_consumer *c, struct mcs_desc *out, unsigned max)
{
    /* A1: pairs with R1, so that the elements below are whole. */
    uint32_t tail = mcs_load_acquire(&c->ring->prod.tail);
    uint32_t n = tail - c->head;

    if (n == 0) {
        if (c->published != c->head && ++c->quiet >= MCS_RING_QUIET_LOOKS)
            mcs_ring_publish(c);
        return 0;
    }
    if (n > c->size - 1)
        return -EPROTO;
    if (n > max)
        n = max;
    for (uint32_t i = 0; i < n; i++)
        memcpy(&out[i], &c->elements[(c->head + i) & (c->size - 1)], sizeof(*out));
    c->head += n;
    /* L1: after the copies above, before what the caller does with them; partner: whoever looks
     * after this process's death, mcs_queue_resume() and the client. */
    mcs_fence_compiler();
    mcs_store_relaxed(c->taken, c->head);
    mcs_fence_compiler();
    c->quiet = 0;
    if (c->head - c->published >= (c->size >= 16 ? c->size / 8 : 1))
        mcs_ring_publish(c);
    return (int)n;
}

/* Before a consumer stops looking for long: the producer gets all of the room. */
static inline void mcs_ring_settle(struct mcs_ring_consumer *c)
{
    if (c->published != c->head)
        mcs_ring_publish(c);
}

/* True when the producer has put something that was not taken yet. */
static inline bool mcs_ring_pending(const struct mcs_ring_consumer *c)
{
    return mcs_load_acquire(&c->ring->prod.tail) != c->head; /* pairs with R1 */
}

#endif
