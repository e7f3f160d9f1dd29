/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's half of queue.c: the only file of shm/ that needs librte_ring. */
#include "queue.h"

int mcs_queue_create(struct mcs_queue *q, struct mcs_ring_consumer *consumer, void *mem,
                     const struct mcs_queue_layout *l, uint32_t queue_id,
                     uint64_t session_incarnation, uint64_t features)
{
    struct mcs_queue_header *h = mem;
    int res;

    res = rte_ring_init((struct rte_ring *)((uint8_t *)mem + l->ring_offset), "mcshm", l->depth,
                        RING_F_SP_ENQ | RING_F_SC_DEQ);
    if (res != 0)
        return res;
    *h = (struct mcs_queue_header){
        .abi_version = MCS_ABI_VERSION,
        .header_size = sizeof(*h),
        .features = features,
        .session_incarnation = session_incarnation,
        .queue_id = queue_id,
        .ring_header_size = sizeof(struct rte_ring),
        .ring_depth = l->depth,
        .desc_size = sizeof(struct mcs_desc),
        .slots = l->slots,
        .slot_size = sizeof(struct mcs_slot),
        .batches = l->batches,
        .batch_size = sizeof(struct mcs_batch_line),
        .args_size = l->args_size,
        .doorbell_offset = MCS_QUEUE_DOORBELL_OFFSET,
        .ring_offset = l->ring_offset,
        .batches_offset = l->batches_offset,
        .slots_offset = l->slots_offset,
        .args_offset = l->args_offset,
        .total_size = l->total_size,
    };
    h->magic = MCS_QUEUE_MAGIC;
    mcs_queue_view(q, mem, l, (features & MCS_FEATURE_NEVER_SLEEPS) != 0);
    *consumer = (struct mcs_ring_consumer){
        .ring = q->ring,
        .elements = (const struct mcs_desc *)(q->ring + 1),
        .taken = &q->doorbell->taken,
        .size = l->depth,
    };
    return 0;
}

int mcs_queue_resume(struct mcs_queue *q, struct mcs_ring_consumer *consumer, void *mem,
                     const struct mcs_queue_layout *l, uint32_t queue_id,
                     uint64_t session_incarnation, uint64_t features)
{
    struct mcs_queue_header *h = mem;
    struct mcs_queue_layout own;
    uint32_t taken;
    int res;

    res = mcs_queue_attach(q, mem, l->total_size);
    if (res != 0)
        return res;
    /* the client could have put another sound header there: the sizes are the agent's own */
    if (mcs_queue_layout(q->depth, q->slots, q->batches, q->args_size, &own) != 0 ||
        q->depth != l->depth || q->slots != l->slots || q->batches != l->batches ||
        q->args_size != l->args_size || own.total_size != l->total_size ||
        mcs_load_relaxed(&h->queue_id) != queue_id ||
        mcs_load_relaxed(&h->session_incarnation) != session_incarnation)
        return -EPROTO;
    mcs_queue_view(q, mem, l, (features & MCS_FEATURE_NEVER_SLEEPS) != 0);
    taken = mcs_load_relaxed(&q->doorbell->taken); /* L1: its writer is dead */
    /* A1, as in mcs_ring_take() */
    if (mcs_load_acquire(&q->ring->prod.tail) - taken > l->depth - 1)
        return -EPROTO;
    mcs_store_relaxed(&h->features, features);
    *consumer = (struct mcs_ring_consumer){
        .ring = q->ring,
        .elements = (const struct mcs_desc *)(q->ring + 1),
        .taken = &q->doorbell->taken,
        .size = l->depth,
        .head = taken,
    };
    mcs_ring_publish(consumer);
    return 0;
}

void mcs_queue_resumed(struct mcs_queue *q, const struct mcs_ring_consumer *consumer,
                       uint64_t agent_incarnation)
{
    mcs_store_relaxed(&q->doorbell->resumed, consumer->head);
    mcs_store_release(&q->doorbell->resumed_by, agent_incarnation); /* L2: mcs_queue_life() */
}
