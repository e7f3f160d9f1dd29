/* SPDX-License-Identifier: Apache-2.0 */
#include "caller.h"
#include "shm/failpoint.h"

/* Announces the copies to the agent and to the other threads of this process. */
static void announce(struct mcl_caller *c, struct mcshm_queue *q)
{
    c->state = MCL_CALLER_OFF;
    if (!mcs_caller_begin(&q->shm, q->c->region.words, q->view->grants_version))
        return;
    /* V3: the fence is in mcs_caller_begin(), the partner in settle(), view.c */
    if (mcs_load_acquire(&q->c->view) == q->view)
        c->state = MCL_CALLER_ON;
    else
        mcs_caller_end(&q->shm);
}

static const struct mcl_target *find_target(struct mcshm_queue *q, const mcshm_request *r)
{
    const struct mcl_target *t = q->target;

    if (t == NULL || t->segment != r->segment || r->remote_address - t->address >= t->size) {
        t = mcl_view_target(q->view, r->segment, r->remote_address);
        q->target = t;
    }
    return t;
}

bool mcl_caller_find(struct mcl_caller *c, struct mcshm_queue *q, const mcshm_request *r,
                     uint64_t local_span, uint64_t remote_span)
{
    const struct mcl_target *t = find_target(q, r);
    uintptr_t local = (uintptr_t)r->local, remote;

    if (t == NULL || remote_span > t->size - (r->remote_address - t->address) ||
        !(r->opcode == MCSHM_WRITE ? t->writable : t->readable))
        return false; /* the agent says what is wrong with it */
    c->remote = t->memory + (r->remote_address - t->address);
    remote = (uintptr_t)c->remote;
    if (local < remote ? remote - local < local_span : local - remote < remote_span)
        return false;
    if (c->state == MCL_CALLER_UNTRIED)
        announce(c, q);
    return c->state == MCL_CALLER_ON;
}

void mcl_caller_add(struct mcl_caller *c, struct mcshm_queue *q, const mcshm_request *r,
                    uint32_t slot)
{
    bool write = r->opcode == MCSHM_WRITE;

    q->tasks[slot].flags = MCL_TASK_CALLER;
    q->copies[c->copies++] = (struct mcl_copy){
        .to = write ? (void *)c->remote : r->local,
        .from = write ? r->local : (const void *)c->remote,
        .slot = slot,
        .write = write,
    };
}

static void copy_shape(const struct mcl_copy *copy, const struct mcl_shape *shape)
{
    uint8_t *to = copy->to;
    const uint8_t *from = copy->from;
    const mcshm_stride *st = shape->stride;

    for (size_t i = 0; i < shape->count; i++) {
        const mcshm_piece *p = &shape->pieces[i];

        memcpy(to + (copy->write ? p->remote_offset : p->local_offset),
               from + (copy->write ? p->local_offset : p->remote_offset), p->length);
    }
    for (uint64_t i = 0; st != NULL && i < st->count; i++)
        memcpy(to + i * (copy->write ? st->remote_stride : st->local_stride),
               from + i * (copy->write ? st->local_stride : st->remote_stride), st->block);
}

uint64_t mcl_caller_copy(struct mcl_caller *c, struct mcshm_queue *q, const struct mcl_shape *shape)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < c->copies; i++) {
        const struct mcl_copy *copy = &q->copies[i];
        struct mcl_task *t = &q->tasks[copy->slot];
        uint64_t start = mcs_ticks();
        double ns;

        MCS_FAILPOINT(caller_copy);
        if (shape != NULL)
            copy_shape(copy, shape);
        else
            memcpy(copy->to, copy->from, t->length);
        MCS_FAILPOINT(caller_copied);
        ns = (double)(mcs_ticks() - start) * q->c->tick_ns;
        t->move_ns = ns < (double)UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
        bytes += t->length;
    }
    /* relaxed, one writer: partners are mcshm_get_stats() and the agent's counters */
    mcs_count(&q->counters.caller_tasks, c->copies);
    mcs_count(&q->counters.caller_bytes, bytes);
    mcs_count(&q->shm.doorbell->caller_tasks, c->copies);
    mcs_count(&q->shm.doorbell->caller_bytes, bytes);
    return bytes;
}

void mcl_caller_end(struct mcl_caller *c, struct mcshm_queue *q)
{
    if (c->state == MCL_CALLER_ON)
        mcs_caller_end(&q->shm);
}
