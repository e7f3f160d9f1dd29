/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of objects of other hosts; copies between objects here and GPU memory. */
#include "leg.h"

#include <errno.h>

#include "gpu_task.h"
#include "net.h"
#include "remote_task.h"

/* A slot beyond the client's; those of the queue: none is free. */
static uint32_t free_slot(const struct mcd_queue *q)
{
    uint32_t slot = q->shm.slots;

    while (slot < q->shm.slots + MCD_LEGS && mcd_task_active(q, slot))
        slot++;
    return slot;
}

bool mcd_leg_is_free(const struct mcd_queue *q)
{
    return free_slot(q) != q->shm.slots + MCD_LEGS;
}

static bool fits(const struct mcd_extent *e, const struct mcd_leg *l)
{
    bool good = e != NULL && e->gpu == NULL && l->npieces != 0;

    for (uint32_t i = 0; good && i < l->npieces; i++) {
        const struct mcd_leg_piece *p = &l->pieces[i];

        good = p->length != 0 && p->local <= e->size && p->length <= e->size - p->local;
    }
    return good;
}

int mcd_leg_begin(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l)
{
    struct mcd_remote *remote = l->segment->remote;
    struct mcd_route *r = remote == NULL ? NULL : remote->routes[g->o.id];
    uint32_t slot = free_slot(q);
    struct mcd_task *t;

    if (slot == q->shm.slots + MCD_LEGS)
        return -EAGAIN;
    if (!fits(l->store != NULL ? l->store : mcd_find_extent(q, l->extent), l))
        return -EINVAL;
    /* partner: set_status() in describe.c */
    if (r == NULL || r->detached || r->verdict != MCS_OK ||
        mcs_load_acquire(&remote->status) != MCS_OK)
        return -ENOTCONN;
    t = &q->tasks[slot];
    *t = (struct mcd_task){
        .desc = {.op = MCS_OP_READ,
                 .shape = MCS_SHAPE_LIST,
                 .priority = l->priority,
                 .flags = l->strict ? MCS_DESC_STRICT : 0,
                 .slot = slot,
                 .extent = l->extent,
                 .args = MCS_ARGS_NONE},
        .args = {.count = l->npieces},
        .q = q,
        .leg = l,
        .taken = g->now,
        .deadline = l->deadline,
        .phase = MCD_CHECK,
    };
    t->lane = mcd_lane_get(q, r);
    if (t->lane == NULL)
        return -EAGAIN; /* as memory may be there again later */
    l->slot = slot;
    mcd_remote_list(g, t);
    mcd_lane_add(t, false); /* checked when its turn has come: done() is not called from here */
    return 0;
}

int mcd_leg_begin_here(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l)
{
    const struct mcd_extent *e = mcd_find_extent(q, l->extents[0]);
    uint32_t slot = free_slot(q);
    struct mcd_task *t;

    if (slot == q->shm.slots + MCD_LEGS)
        return -EAGAIN;
    if (e == NULL || e->gpu == NULL || g->gpu_tasks == NULL)
        return -EINVAL;
    t = &q->tasks[slot];
    *t = (struct mcd_task){
        .desc = {.op = l->write ? MCS_OP_WRITE : MCS_OP_READ,
                 .shape = MCS_SHAPE_LIST,
                 .priority = l->priority,
                 /* its request says what it comes after */
                 .flags = MCS_DESC_SYNCED | (l->strict ? MCS_DESC_STRICT : 0),
                 .slot = slot,
                 .args = MCS_ARGS_NONE},
        .args = {.count = l->npieces},
        .q = q,
        .leg = l,
        .taken = g->now,
        .deadline = l->deadline,
        .phase = MCD_MOVE,
        .list = MCD_UNLISTED,
        .gpu = (int8_t)e->gpu_device,
    };
    l->slot = slot;
    return mcd_gpu_task_leg(g, t);
}

void mcd_leg_cancel(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l)
{
    struct mcd_task *t = &q->tasks[l->slot];

    if (!mcd_task_active(q, l->slot) || t->leg != l)
        return;
    if (t->lane != NULL)
        mcd_remote_finish(g, t, MCS_STATE_CANCELED, MCS_CANCELED, false);
    else
        mcd_gpu_task_finish(g, t, MCS_STATE_CANCELED, MCS_CANCELED);
}

void mcd_leg_ended(struct mcd_engine *g, struct mcd_task *t, const struct mcd_outcome *o)
{
    struct mcd_leg *l = t->leg;

    t->leg = NULL;
    l->done(g, l, o);
}
