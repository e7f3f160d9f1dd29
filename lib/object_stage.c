/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory in requests about objects: each of its pieces through the shadow of the memory that
 * it lies in, as stage.c does it for other tasks.
 */
#include "internal.h"
#include "shm/failpoint.h"
#include "shm/object.h"

#include <stdlib.h>

static struct mcs_object_args *block(const struct mcshm_queue *q, uint32_t slot)
{
    return (struct mcs_object_args *)(void *)(q->shm.args +
                                              (uint64_t)q->tasks[slot].args * MCS_LINE);
}

static const struct mcs_object_piece *pieces(const struct mcs_object_args *a)
{
    return (const void *)((const uint8_t *)a + a->pieces);
}

/* In how many different memories the pieces lie, one after the other: each is held as often. */
static bool is_next(const struct mcl_object *o, uint32_t i)
{
    return i == 0 || o->stages[i].memory != o->stages[i - 1].memory;
}

static uint8_t *shadow(const struct mcl_object_stage *s)
{
    return s->memory->shadow + (s->local - s->memory->start);
}

bool mcl_object_reads_into(const struct mcshm_queue *q, uint32_t slot,
                           const struct mcl_private *memory, const uint8_t *local, uint64_t size)
{
    const struct mcl_object *o = &q->objects[slot];
    const struct mcs_object_args *a = block(q, slot);

    if (o->op != MCS_OP_GET || (uintptr_t)local >= o->high || (uintptr_t)local + size <= o->low)
        return false;
    for (uint32_t i = 0; i < o->nstages; i++) {
        const struct mcl_object_stage *s = &o->stages[i];

        if (s->memory == memory && (uintptr_t)s->local < (uintptr_t)local + size &&
            (uintptr_t)local < (uintptr_t)s->local + pieces(a)[s->piece].length)
            return true;
    }
    return false;
}

mcshm_status mcl_object_stage(struct mcshm_queue *q, uint32_t slot, uint32_t piece,
                              struct mcl_private *memory, uint8_t *local, uint64_t length)
{
    struct mcl_object *o = &q->objects[slot];

    if (o->nstages == o->stages_room) {
        uint32_t room = o->stages_room == 0 ? 8 : o->stages_room * 2;
        struct mcl_object_stage *stages = reallocarray(o->stages, room, sizeof(*stages));

        if (stages == NULL)
            return mcl_fail(MCSHM_NO_MEMORY, "out of memory for %u pieces of private memory", room);
        o->stages = stages;
        o->stages_room = room;
    }
    if ((uintptr_t)local < o->low)
        o->low = (uintptr_t)local;
    if ((uintptr_t)local + length > o->high)
        o->high = (uintptr_t)local + length;
    o->stages[o->nstages++] =
        (struct mcl_object_stage){.memory = memory, .local = local, .piece = piece};
    return MCSHM_OK;
}

/* Pieces from..to, all of one memory: at a glance, and where that says so one by one. */
static bool read_into(const struct mcshm_queue *q, const struct mcl_object *o,
                      const struct mcs_object_args *a, uint32_t from, uint32_t to)
{
    uintptr_t low = UINTPTR_MAX, high = 0;
    bool is;

    for (uint32_t i = from; i < to; i++) {
        uintptr_t at = (uintptr_t)o->stages[i].local;
        uintptr_t end = at + pieces(a)[o->stages[i].piece].length;

        low = at < low ? at : low;
        high = end > high ? end : high;
    }
    is = mcl_stage_reads_into(q, o->stages[from].memory, (const uint8_t *)low, high - low);
    if (!is || to - from == 1)
        return is;
    for (uint32_t i = from; i < to; i++)
        if (mcl_stage_reads_into(q, o->stages[i].memory, o->stages[i].local,
                                 pieces(a)[o->stages[i].piece].length))
            return true;
    return false;
}

mcshm_status mcl_object_stage_check(const struct mcshm_queue *q, uint32_t slot)
{
    const struct mcl_object *o = &q->objects[slot];
    uint32_t from = 0;

    if (o->op != MCS_OP_PUT || q->staged_reads == 0)
        return MCSHM_OK;
    for (uint32_t to = 1; to <= o->nstages; to++) {
        if (to < o->nstages && !is_next(o, to))
            continue;
        if (read_into(q, o, block(q, slot), from, to))
            return mcl_fail(MCSHM_BUSY,
                            "a READ or GET into this private memory is unfinished: poll it to its "
                            "end, then submit the PUT");
        from = to;
    }
    return MCSHM_OK;
}

bool mcl_object_stage_hold(struct mcshm_queue *q, uint32_t slot)
{
    struct mcl_object *o = &q->objects[slot];
    bool there = true;

    q->tasks[slot].flags |= MCL_TASK_OPEN;
    q->staged_reads += o->op == MCS_OP_GET;
    for (uint32_t i = 0; i < o->nstages; i++) {
        if (is_next(o, i))
            mcs_fetch_add(&o->stages[i].memory->tasks, 1u);
    }
    mcs_fence_full(); /* store, then load; partner: mcl_private_unregister() */
    for (uint32_t i = 0; i < o->nstages; i++) {
        if (is_next(o, i) && mcs_load_relaxed(&o->stages[i].memory->gone) != 0)
            there = false;
    }
    return there;
}

void mcl_object_stage_release(struct mcshm_queue *q, uint32_t slot)
{
    struct mcl_object *o = &q->objects[slot];

    q->tasks[slot].flags &= ~MCL_TASK_OPEN;
    q->staged_reads -= o->op == MCS_OP_GET;
    mcs_fence_full(); /* the copy is done before the memory is free to go */
    for (uint32_t i = 0; i < o->nstages; i++) {
        if (is_next(o, i))
            mcs_fetch_add(&o->stages[i].memory->tasks, UINT32_MAX); /* partner: as above */
    }
}

void mcl_object_stage_begin(struct mcshm_queue *q, uint32_t slot)
{
    const struct mcl_object *o = &q->objects[slot];
    const struct mcs_object_args *a = block(q, slot);

    if (o->op != MCS_OP_PUT)
        return;
    for (uint32_t i = 0; i < o->nstages; i++)
        memcpy(shadow(&o->stages[i]), o->stages[i].local, pieces(a)[o->stages[i].piece].length);
    MCS_FAILPOINT(stage_copied);
}

/* What a GET has brought into the pieces of one key; *at: the next one in private memory. */
static void copy_back(const struct mcl_object *o, const struct mcs_object_args *a,
                      const struct mcs_object_key *key, const struct mcs_object_result *r,
                      uint32_t *at)
{
    uint64_t left = r->status == MCS_OK ? r->size : 0;

    for (uint32_t p = key->first; p < key->first + key->pieces; p++) {
        uint64_t n = pieces(a)[p].length;

        if ((a->flags & MCS_OBJECT_RANGES) != 0) {
            n = r->status == MCS_OK ? n : 0;
        } else {
            n = n < left ? n : left;
            left -= n;
        }
        if (*at < o->nstages && o->stages[*at].piece == p) {
            if (n != 0)
                memcpy(o->stages[*at].local, shadow(&o->stages[*at]), n);
            ++*at;
        }
    }
}

void mcl_object_stage_end(struct mcshm_queue *q, uint32_t slot)
{
    const struct mcl_object *o = &q->objects[slot];
    const struct mcs_object_args *a = block(q, slot);
    const struct mcs_object_key *keys = (const void *)((const uint8_t *)a + a->keys);
    const struct mcs_object_result *results = (const void *)((const uint8_t *)a + o->results);
    uint32_t at = 0;

    if (o->op != MCS_OP_GET || (mcl_task_end(q, slot) & 0x7f) != MCS_STATE_COMPLETED)
        return;
    for (uint32_t i = 0; i < o->count; i++)
        copy_back(o, a, &keys[i], &results[i], &at);
}
