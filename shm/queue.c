/* SPDX-License-Identifier: Apache-2.0 */
#include "queue.h"

static uint64_t align_up(uint64_t v, uint64_t a)
{
    return (v + a - 1) & ~(a - 1);
}

int mcs_queue_layout(uint32_t depth, uint32_t slots, uint32_t batches, uint64_t args_size,
                     struct mcs_queue_layout *out)
{
    if (depth < MCS_QUEUE_DEPTH_MIN || depth > MCS_QUEUE_DEPTH_MAX || (depth & (depth - 1)) != 0)
        return -EINVAL;
    if (slots == 0 || slots > MCS_QUEUE_SLOTS_MAX || batches == 0 ||
        batches > MCS_QUEUE_BATCHES_MAX)
        return -EINVAL;
    if (args_size > MCS_QUEUE_ARGS_MAX || args_size % MCS_LINE != 0)
        return -EINVAL;

    out->depth = depth;
    out->slots = slots;
    out->batches = batches;
    out->args_size = args_size;
    out->ring_offset = align_up(MCS_QUEUE_DOORBELL_OFFSET + sizeof(struct mcs_doorbell), 1024);
    out->batches_offset = align_up(out->ring_offset + sizeof(struct rte_ring) +
                                       (uint64_t)depth * sizeof(struct mcs_desc),
                                   MCS_GUARD);
    out->slots_offset = align_up(
        out->batches_offset + (uint64_t)batches * sizeof(struct mcs_batch_line), MCS_GUARD);
    out->args_offset =
        align_up(out->slots_offset + (uint64_t)slots * sizeof(struct mcs_slot), 4096);
    out->total_size = align_up(out->args_offset + args_size, 4096);
    return 0;
}

void mcs_queue_view(struct mcs_queue *q, void *mem, const struct mcs_queue_layout *l,
                    bool never_sleeps)
{
    uint8_t *base = mem;

    q->header = mem;
    q->doorbell = (struct mcs_doorbell *)(base + MCS_QUEUE_DOORBELL_OFFSET);
    q->ring = (struct rte_ring *)(base + l->ring_offset);
    q->batch_lines = (struct mcs_batch_line *)(base + l->batches_offset);
    q->slot_table = (struct mcs_slot *)(base + l->slots_offset);
    q->args = base + l->args_offset;
    q->depth = l->depth;
    q->slots = l->slots;
    q->batches = l->batches;
    q->args_size = l->args_size;
    q->total_size = l->total_size;
    q->never_sleeps = never_sleeps;
}

int mcs_queue_attach(struct mcs_queue *q, void *mem, uint64_t size)
{
    const struct mcs_queue_header *h = mem;
    struct mcs_queue_layout l;

    if (size < MCS_QUEUE_DOORBELL_OFFSET || h->magic != MCS_QUEUE_MAGIC)
        return -EPROTO;
    if (h->abi_version != MCS_ABI_VERSION || h->header_size != sizeof(*h) ||
        h->ring_header_size != sizeof(struct rte_ring) || h->desc_size != sizeof(struct mcs_desc) ||
        h->slot_size != sizeof(struct mcs_slot) || h->batch_size != sizeof(struct mcs_batch_line))
        return -EPROTONOSUPPORT;
    if (mcs_queue_layout(h->ring_depth, h->slots, h->batches, h->args_size, &l) != 0)
        return -EPROTO;
    if (h->doorbell_offset != MCS_QUEUE_DOORBELL_OFFSET || h->ring_offset != l.ring_offset ||
        h->batches_offset != l.batches_offset || h->slots_offset != l.slots_offset ||
        h->args_offset != l.args_offset || h->total_size != l.total_size || size < l.total_size)
        return -EPROTO;
    mcs_queue_view(q, mem, &l, (h->features & MCS_FEATURE_NEVER_SLEEPS) != 0);
    return 0;
}
