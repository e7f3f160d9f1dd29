/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory: as much pool memory stands beside it (the shadow), and the library
 * copies between the two in the caller's thread.  The agent only ever sees the shadow.
 */
#include "internal.h"
#include "shm/failpoint.h"

#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

/* False: a thread that reads there would fault. Where the kernel does not say, it is believed. */
static bool readable(const uint8_t *at)
{
    uint8_t byte;
    struct iovec to = {.iov_base = &byte, .iov_len = 1};
    struct iovec from = {.iov_base = (void *)(uintptr_t)at, .iov_len = 1};

    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 || errno != EFAULT;
}

static bool overlaps(const void *a, uint64_t a_size, const void *b, uint64_t b_size)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    return x < y ? y - x < a_size : x - y < b_size;
}

struct mcl_private *mcl_private_overlap(struct mcshm *c, const void *at, uint64_t size)
{
    for (struct mcl_private *p = c->privates; p != NULL; p = p->next) {
        if (overlaps(p->start, p->size, at, size))
            return p;
    }
    return NULL;
}

static mcshm_status check_overlap(struct mcshm *c, const void *address, size_t size)
{
    const struct mcl_private *p = mcl_private_overlap(c, address, size);

    if (p != NULL)
        return mcl_fail(MCSHM_OVERLAP, "%zu bytes at %p overlap the registered %llu bytes at %p",
                        size, address, (unsigned long long)p->size, (void *)p->start);
    for (size_t i = 0; i < c->nextents; i++) {
        const struct mcl_extent *e = &c->extents[i];

        if (overlaps(e->base, e->map_size, address, size))
            return mcl_fail(MCSHM_OVERLAP,
                            "%zu bytes at %p overlap pool memory, which needs no registration",
                            size, address);
    }
    return MCSHM_OK;
}

static mcshm_status private_add(struct mcshm *c, void *address, size_t size)
{
    struct mcl_private *p;
    mcshm_status status = check_overlap(c, address, size);

    if (status != MCSHM_OK)
        return status;
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for one more registration");
    *p = (struct mcl_private){.start = address, .size = size, .references = 1};
    status = mcl_pool_alloc(c, size, 0, NULL, &p->shadow);
    if (status != MCSHM_OK)
        goto error_free;
    p->next = c->privates;
    c->privates = p;
    if (mcl_view_extend(c) != 0) {
        status = mcl_fail(MCSHM_NO_MEMORY, "out of memory for the table of registrations");
        goto error_remove;
    }
    mcl_log(c, MCSHM_LOG_INFO,
            "%zu bytes at %p are private memory: transfers go through pool memory, one copy more; "
            "allocate with mcshm_alloc() to avoid it",
            size, address);
    return MCSHM_OK;

error_remove:
    c->privates = p->next;
    (void)mcl_pool_free(c, mcl_alloc_index(c, p->shadow), NULL);
error_free:
    free(p);
    return status;
}

MCSHM_API mcshm_status mcshm_register(mcshm *c, void *address, size_t size)
{
    struct mcl_private *p;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (address == NULL || size == 0 || size > UINTPTR_MAX - (uintptr_t)address)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_register: %zu bytes at %p are no range",
                        size, address);
    if (c->strict)
        return mcl_fail(MCSHM_STRICT,
                        "private memory would be staged, one copy more, and options.strict "
                        "forbids it: use mcshm_alloc() or mcshm_register_memfd()");
    if (!readable(address) || !readable((const uint8_t *)address + size - 1))
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "mcshm_register: %zu bytes at %p are not memory that the host can read: "
                        "that of a GPU is "
                        "registered by mcshm_register_gpu()",
                        size, address);
    pthread_mutex_lock(&c->mutex);
    p = mcl_private_overlap(c, address, size);
    if (p != NULL && p->start == address && p->size == size)
        p->references++;
    else
        status = private_add(c, address, size);
    pthread_mutex_unlock(&c->mutex);
    return status;
}

mcshm_status mcl_private_unregister(struct mcshm *c, void *start)
{
    struct mcl_private **at = &c->privates, *p;
    mcshm_status status;
    uint32_t tasks;

    while (*at != NULL && (*at)->start != start)
        at = &(*at)->next;
    p = *at;
    if (p == NULL)
        return mcl_fail(MCSHM_NOT_REGISTERED, "%p is not the start of registered memory", start);
    if (p->references > 1) {
        p->references--;
        return MCSHM_OK;
    }
    /* store, then load; the partner is mcl_stage_hold(). Acquire: pairs with the fence in
     * mcl_stage_release() */
    mcs_store_relaxed(&p->gone, 1u);
    mcs_fence_full();
    tasks = mcs_load_acquire(&p->tasks);
    if (tasks != 0) {
        mcs_store_relaxed(&p->gone, 0u);
        return mcl_fail(MCSHM_BUSY,
                        "%u staged tasks on %p are unfinished or were not polled to their end",
                        tasks, start);
    }
    *at = p->next;
    status = mcl_pool_free(c, mcl_alloc_index(c, p->shadow), p);
    if (status != MCSHM_OK) { /* the shadow is still ours */
        mcs_store_relaxed(&p->gone, 0u);
        p->next = c->privates;
        c->privates = p;
        (void)mcl_view_extend(c); /* when memory is short it knows less: that is safe */
    }
    return status;
}

void mcl_private_fini(struct mcshm *c)
{
    while (c->privates != NULL) {
        struct mcl_private *p = c->privates;

        c->privates = p->next;
        free(p);
    }
}

/* The bytes from the first to the last that the task touches, relative to its local pointer. */
static uint64_t span(const struct mcshm_queue *q, const struct mcl_task *t, uint8_t shape)
{
    const struct mcs_args *a = (const void *)(q->shm.args + (uint64_t)t->args * MCS_LINE);
    const struct mcs_piece *pieces = (const void *)(a + 1);
    uint64_t end = 0;

    switch (shape) {
    case MCS_SHAPE_LIST:
        for (uint64_t i = 0; i < a->count; i++) {
            if (pieces[i].local + pieces[i].length > end)
                end = pieces[i].local + pieces[i].length;
        }
        return end;
    case MCS_SHAPE_STRIDE:
        return (a->count - 1) * a->local_stride + a->block;
    default:
        return t->length;
    }
}

bool mcl_stage_reads_into(const struct mcshm_queue *q, const struct mcl_private *memory,
                          const uint8_t *local, uint64_t size)
{
    uint32_t left = q->staged_reads;

    for (uint32_t i = 0; left != 0 && i < q->shm.slots; i++) {
        const struct mcl_stage *s;

        if ((q->tasks[i].flags & MCL_TASK_OPEN) == 0)
            continue;
        if ((q->tasks[i].flags & MCL_TASK_OBJECT) != 0) {
            left -= q->objects[i].op == MCS_OP_GET;
            if (mcl_object_reads_into(q, i, memory, local, size))
                return true;
            continue;
        }
        s = &q->stages[i];
        left -= s->op == MCS_OP_READ;
        if (s->memory == memory && s->op == MCS_OP_READ &&
            overlaps(s->local, span(q, &q->tasks[i], s->shape), local, size))
            return true;
    }
    return false;
}

mcshm_status mcl_stage_prepare(struct mcshm_queue *q, uint32_t slot, const struct mcs_desc *d,
                               struct mcl_private *memory, uint8_t *local)
{
    if (q->stages == NULL) {
        q->stages = calloc(q->shm.slots, sizeof(*q->stages));
        if (q->stages == NULL)
            return mcl_fail(MCSHM_NO_MEMORY, "out of memory for staged tasks");
    }
    q->stages[slot] =
        (struct mcl_stage){.memory = memory, .local = local, .op = d->op, .shape = d->shape};
    /* else the shadow is not ours to fill */
    if (d->op == MCS_OP_WRITE && mcs_load_relaxed(&memory->tasks) != 0 &&
        mcl_stage_reads_into(q, memory, local, span(q, &q->tasks[slot], d->shape)))
        return mcl_fail(MCSHM_BUSY,
                        "a READ into this private memory is unfinished: poll it to its end, then "
                        "submit the WRITE");
    return MCSHM_OK;
}

/* Copies the task's pieces one way. */
static void copy(struct mcshm_queue *q, uint32_t slot, bool to_shadow)
{
    const struct mcl_task *t = &q->tasks[slot];
    const struct mcl_stage *s = &q->stages[slot];
    const struct mcs_args *a = (const void *)(q->shm.args + (uint64_t)t->args * MCS_LINE);
    const struct mcs_piece *pieces = (const void *)(a + 1);
    uint8_t *shadow = s->memory->shadow + (s->local - s->memory->start);
    uint8_t *to = to_shadow ? shadow : s->local;
    const uint8_t *from = to_shadow ? s->local : shadow;

    switch (s->shape) {
    case MCS_SHAPE_LIST:
        for (uint64_t i = 0; i < a->count; i++)
            memcpy(to + pieces[i].local, from + pieces[i].local, pieces[i].length);
        break;
    case MCS_SHAPE_STRIDE:
        for (uint64_t i = 0; i < a->count; i++)
            memcpy(to + i * a->local_stride, from + i * a->local_stride, a->block);
        break;
    default:
        memcpy(to, from, t->length);
        break;
    }
}

bool mcl_stage_hold(struct mcshm_queue *q, uint32_t slot)
{
    struct mcl_private *p; /* a pinned view knows it */

    if ((q->tasks[slot].flags & MCL_TASK_OBJECT) != 0)
        return mcl_object_stage_hold(q, slot);
    p = q->stages[slot].memory;
    q->tasks[slot].flags |= MCL_TASK_OPEN;
    q->staged_reads += q->stages[slot].op == MCS_OP_READ;
    mcs_fetch_add(&p->tasks, 1u);
    mcs_fence_full(); /* store, then load; partner: mcl_private_unregister() */
    return mcs_load_relaxed(&p->gone) == 0;
}

void mcl_stage_release(struct mcshm_queue *q, uint32_t slot)
{
    if ((q->tasks[slot].flags & MCL_TASK_OBJECT) != 0) {
        mcl_object_stage_release(q, slot);
        return;
    }
    q->tasks[slot].flags &= ~MCL_TASK_OPEN;
    q->staged_reads -= q->stages[slot].op == MCS_OP_READ;
    mcs_fence_full(); /* the copy is done before the memory is free to go */
    mcs_fetch_add(&q->stages[slot].memory->tasks, UINT32_MAX); /* partner: as above */
}

void mcl_stage_begin(struct mcshm_queue *q, uint32_t slot)
{
    if ((q->tasks[slot].flags & MCL_TASK_OBJECT) != 0) {
        mcl_object_stage_begin(q, slot);
    } else if (q->stages[slot].op == MCS_OP_WRITE) {
        copy(q, slot, true);
        MCS_FAILPOINT(stage_copied);
    }
}

void mcl_stage_finish(struct mcshm_queue *q, struct mcl_batch *b, uint32_t slot)
{
    if ((q->tasks[slot].flags & MCL_TASK_OPEN) == 0)
        return;
    if ((q->tasks[slot].flags & MCL_TASK_OBJECT) != 0)
        mcl_object_stage_end(q, slot);
    else if (q->stages[slot].op == MCS_OP_READ &&
             (mcl_task_end(q, slot) & 0x7f) == MCS_STATE_COMPLETED)
        copy(q, slot, false);
    b->staged--;
    mcs_count(&q->counters.staged_tasks, 1);
    mcs_count(&q->counters.staged_bytes, q->tasks[slot].length);
    mcs_count(&q->shm.doorbell->staged_tasks, 1);
    mcs_count(&q->shm.doorbell->staged_bytes, q->tasks[slot].length);
    mcl_stage_release(q, slot);
}
