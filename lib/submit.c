/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submission.  Three steps: prepare (check every request, fill slots' records and
 * descriptors that nobody looks at yet), push (all descriptors at once), commit (count).
 * What fails before the push is as if it had not been: only argument chunks go back.
 */
#include "submit.h"
#include "shm/failpoint.h"

#include <unistd.h>

#define FLAGS (MCSHM_FENCE | MCSHM_NOTIFY | MCSHM_GPU_SYNCED)
static_assert(MCSHM_FENCE == MCS_DESC_FENCE && MCSHM_NOTIFY == MCS_DESC_NOTIFY &&
                  MCSHM_GPU_SYNCED == MCS_DESC_SYNCED,
              "public flags");

void mcl_doorbell(struct mcshm_queue *q)
{
    const uint64_t one = 1;

    if (!mcs_queue_must_wake(&q->shm))
        return;
    MCS_FAILPOINT(doorbell);
    mcs_count(&q->counters.doorbells, 1); /* relaxed: partner mcshm_get_stats() */
    /* an eventfd that nobody reads: the write itself is the event, and it cannot fill up */
    while (write(q->c->doorbell, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

mcshm_status mcl_submission_full(struct mcshm_queue *q, mcshm_status status)
{
    if (mcl_idle_down(q->c, &q->idle))
        return mcl_fail(MCSHM_AGENT_DOWN, "the agent ended the session: connect again");
    if (mcs_load_relaxed(&q->lost) != 0) /* partner: queues_back(), restore.c */
        return mcl_fail(MCSHM_AGENT_DOWN, "a later agent did not take the queue: open another");
    mcs_count(&q->counters.ring_full, 1); /* relaxed: partner mcshm_get_stats() */
    return status;
}

mcshm_status mcl_submission_begin(struct mcl_submission *s, mcshm_queue *q, mcshm_batch batch,
                                  size_t n)
{
    mcshm_status status = mcl_check_queue(q);

    if (status != MCSHM_OK)
        return status;
    s->q = q;
    s->b = mcl_batch_get(q, batch);
    s->batch = (uint32_t)batch;
    s->tasks = s->ring = s->staged = s->ngates = 0;
    s->order = 0;
    s->caller = (struct mcl_caller){.state = MCL_CALLER_UNTRIED};
    if (__builtin_expect(s->b == NULL, 0))
        return mcl_fail(MCSHM_INVALID_HANDLE, "batch 0x%llx was freed or is of another queue",
                        (unsigned long long)batch);
    if (__builtin_expect(mcl_down(q->c), 0))
        return mcl_fail(MCSHM_AGENT_DOWN, "the agent ended the session: connect again");
    if (n > s->b->capacity - s->b->tasks)
        return mcl_fail(MCSHM_TOO_MANY_TASKS, "%zu tasks: the batch has room for %u of %u", n,
                        s->b->capacity - s->b->tasks, s->b->capacity);
    if (n > q->shm.depth - 1)
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "%zu tasks in one submission: the queue's ring holds %u", n,
                        q->shm.depth - 1);
    if (n > q->nfree)
        return mcl_submission_full(q, MCSHM_NO_SLOTS);
    s->submitted = (uint32_t)(mcs_ticks() >> q->c->tick_shift);
    s->place = q->shm.ring->prod.tail;                          /* written by this thread alone */
    s->life = MCL_TASK_LIFE(mcs_load_relaxed(&q->c->restarts)); /* partner: resumed(), restore.c */
    return MCSHM_OK;
}

static mcshm_status check_notification(const mcshm_notification *n)
{
    if (n == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "request.notify is NULL");
    if (n->name_size > MCS_NOTIFY_NAME_MAX || n->message_size > MCS_NOTIFY_MESSAGE_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "a notification of %zu + %zu bytes: name has at most %u, message %u",
                        n->name_size, n->message_size, MCS_NOTIFY_NAME_MAX, MCS_NOTIFY_MESSAGE_MAX);
    if ((n->name == NULL && n->name_size != 0) || (n->message == NULL && n->message_size != 0))
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "the notification's name or message is NULL");
    return MCSHM_OK;
}

static MCL_COLD mcshm_status bad_request(const mcshm_request *r)
{
    if ((r->flags & ~FLAGS) != 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "request.flags 0x%x are unknown", r->flags);
    if ((unsigned)r->priority >= MCS_CLASS_COUNT)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "request.priority %u is not 0 .. %u",
                        (unsigned)r->priority, MCS_CLASS_COUNT - 1);
    return mcl_fail(MCSHM_INVALID_HANDLE, "request.segment 0 is never open");
}

/* The gate that is this word; `name` says whose it is. */
static mcshm_status find_gate(struct mcl_submission *s, const uint32_t *word, uint32_t value,
                              const char *name)
{
    const struct mcl_range *range = mcl_queue_range(s->q, word);
    uint64_t offset;

    if (((uintptr_t)word & 3) != 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "request.order->%s: %p is not 4-byte aligned", name,
                        (const void *)word);
    if (range == NULL)
        return mcl_fail(MCSHM_NOT_REGISTERED,
                        "request.order->%s: %p lies in no allocation of this connection: "
                        "mcshm_gate_create() makes such words",
                        name, (const void *)word);
    if (range->staged != NULL || range->gpu)
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "request.order->%s: %p is %s: the word has to lie in host memory of "
                        "mcshm_alloc() or of a gate",
                        name, (const void *)word, range->gpu ? "GPU memory" : "private memory");
    offset = (uintptr_t)word - range->start;
    if (range->size - offset < sizeof(*word))
        return mcl_fail(MCSHM_BAD_RANGE, "request.order->%s: %p is at the end of its extent", name,
                        (const void *)word);
    s->gates[s->ngates++] = (struct mcs_gate){
        .extent = range->extent, .value = value, .offset = range->offset + offset};
    return MCSHM_OK;
}

mcshm_status mcl_submission_order(struct mcl_submission *s, const mcshm_order *o)
{
    mcshm_status status = MCSHM_OK;

    s->ngates = 0;
    s->order = 0;
    if (o != NULL && o->wait != NULL) {
        status = find_gate(s, o->wait, o->wait_value, "wait");
        s->order |= MCS_DESC_WAIT;
    }
    if (status == MCSHM_OK && o != NULL && o->signal != NULL) {
        status = find_gate(s, o->signal, o->signal_value, "signal");
        s->order |= MCS_DESC_SIGNAL;
    }
    return status;
}

/* What all kinds of requests have in common. */
static mcshm_status check_common(struct mcl_submission *s, const mcshm_request *r)
{
    mcshm_status status = MCSHM_OK;

    if (__builtin_expect((r->flags & ~FLAGS) != 0 || (unsigned)r->priority >= MCS_CLASS_COUNT ||
                             r->segment == 0,
                         0))
        return bad_request(r);
    if (__builtin_expect(r->order != NULL || s->order != 0, 0))
        status = mcl_submission_order(s, r->order);
    if (__builtin_expect(status == MCSHM_OK && (r->flags & MCSHM_NOTIFY) != 0, 0))
        status = check_notification(r->notify);
    return status;
}

/* Local memory that is not just memory of the host's. */
static MCL_COLD mcshm_status check_special(const struct mcl_submission *s, const mcshm_request *r,
                                           const struct mcl_range *range)
{
    if (range->gpu && (r->flags & MCSHM_GPU_SYNCED) == 0 && (s->order & MCS_DESC_WAIT) == 0)
        return mcl_fail(MCSHM_GPU_ORDER,
                        "%p is GPU memory: synchronise the stream that uses it and say so with "
                        "MCSHM_GPU_SYNCED, or let the request wait for it: order->wait, of "
                        "mcshm_gate_record()",
                        r->local);
    /* it is copied at submission and at the poll, so before the one gate and after the other */
    if (range->staged != NULL && s->order != 0)
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "%p is registered private memory, which is copied in the caller's thread "
                        "and cannot follow request.order: use memory of mcshm_alloc()",
                        r->local);
    return MCSHM_OK;
}

/* Finds the local side: [r->local, r->local + size) must lie in one extent. */
static mcshm_status find_local(struct mcl_submission *s, const mcshm_request *r, uint64_t size,
                               const struct mcl_range **out)
{
    struct mcshm_queue *q = s->q;
    const struct mcl_range *range;
    uint64_t offset;

    if (__builtin_expect(r->opcode != MCSHM_READ && r->opcode != MCSHM_WRITE, 0))
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "request.opcode %u is neither READ nor WRITE",
                        (unsigned)r->opcode);
    if (__builtin_expect(r->local == NULL || size == 0, 0))
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "request.%s",
                        size == 0 ? "length is 0" : "local is NULL");
    range = mcl_queue_range(q, r->local);
    if (__builtin_expect(range == NULL, 0))
        return mcl_fail(MCSHM_NOT_REGISTERED,
                        "%p lies in no allocation or registration of this connection", r->local);
    offset = (uintptr_t)r->local - range->start;
    if (__builtin_expect(size > range->size - offset, 0))
        return mcl_fail(MCSHM_BAD_RANGE, "%llu bytes at %p: there are %llu",
                        (unsigned long long)size, r->local,
                        (unsigned long long)(range->size - offset));
    *out = range;
    if (__builtin_expect(range->gpu || range->staged != NULL, 0))
        return check_special(s, r, range);
    return MCSHM_OK;
}

struct mcl_task *mcl_submission_task(struct mcl_submission *s, const mcshm_request *r,
                                     uint64_t length, uint32_t *slot)
{
    struct mcshm_queue *q = s->q;
    struct mcl_task *t;

    *slot = q->free_slots[q->nfree - 1 - s->tasks];
    t = &q->tasks[*slot];
    if (__builtin_expect(++t->generation == 0, 0))
        t->generation = 1;
    t->flags = s->life;
    t->cookie = r->cookie;
    t->length = length;
    t->args = MCS_ARGS_NONE;
    s->b->slots[s->b->tasks + s->tasks] = *slot;
    s->tasks++;
    return t;
}

struct mcs_desc *mcl_submission_desc(struct mcl_submission *s, const mcshm_request *r,
                                     struct mcl_task *t, uint32_t slot, uint8_t op)
{
    struct mcs_desc *d = &s->q->descs[s->ring];

    t->place = s->place + s->ring++;

    *d = (struct mcs_desc){
        .op = op,
        .flags = (uint8_t)(r->flags | (s->q->c->strict ? MCS_DESC_STRICT : 0) | s->order),
        .priority = (uint8_t)r->priority,
        .slot = slot,
        .generation = t->generation,
        .batch = s->batch,
        .batch_generation = s->b->generation,
        .segment = r->segment,
        .submitted = s->submitted,
        .remote_addr = r->remote_address,
        .length = t->length,
        .args = MCS_ARGS_NONE,
        .deadline_us = r->deadline_us,
    };
    return d;
}

/* Takes back argument chunks of tasks that have ended, oldest first. False: none. */
static bool sweep_args(struct mcshm_queue *q)
{
    uint32_t at, slot;
    bool any = false;

    while ((slot = mcl_args_oldest(&q->args, &at)) != MCL_ARGS_NO_OWNER) {
        /* a staged task still needs its pieces, one about objects keeps its results there: the batch
         * will be polled, and freed */
        if ((q->tasks[slot].flags & (MCL_TASK_OPEN | MCL_TASK_OBJECT)) != 0 ||
            mcl_task_end(q, slot) == 0)
            break;
        mcl_args_free(&q->args, at);
        q->tasks[slot].args = MCS_ARGS_NONE;
        any = true;
    }
    return any;
}

mcshm_status mcl_submission_args(struct mcl_submission *s, uint64_t size, uint32_t slot,
                                 struct mcs_desc *d, void **out)
{
    struct mcshm_queue *q = s->q;
    uint32_t at;

    while (!mcl_args_take(&q->args, (uint32_t)((size + MCS_LINE - 1) / MCS_LINE), slot, &at)) {
        if (!sweep_args(q))
            return mcl_submission_full(q, MCSHM_ARGS_FULL);
    }
    q->tasks[slot].args = d->args = at;
    *out = q->shm.args + (uint64_t)at * MCS_LINE;
    return MCSHM_OK;
}

/* Takes an argument block for the task with room for n pieces, and with its gates and notification. */
static mcshm_status take_args(struct mcl_submission *s, const mcshm_request *r, size_t n,
                              bool notify, uint32_t slot, struct mcs_desc *d, struct mcs_args **out)
{
    struct mcshm_queue *q = s->q;
    uint64_t size = sizeof(struct mcs_args), pieces = size, gates = s->ngates * sizeof(*s->gates);
    const mcshm_notification *note = notify ? r->notify : NULL;
    mcshm_status status;
    struct mcs_args *a;
    void *block;

    if (n > q->shm.args_size / sizeof(struct mcs_piece))
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "%zu pieces need more than the %llu bytes of the queue's argument area", n,
                        (unsigned long long)q->shm.args_size);
    size += n * sizeof(struct mcs_piece) + gates;
    if (note != NULL)
        size += note->name_size + note->message_size;
    if (size > q->shm.args_size)
        return mcl_fail(
            MCSHM_INVALID_ARGUMENT,
            "%zu pieces, gates and the notification need %llu bytes: the queue's argument "
            "area has %llu",
            n, (unsigned long long)size, (unsigned long long)q->shm.args_size);
    status = mcl_submission_args(s, size, slot, d, &block);
    if (status != MCSHM_OK)
        return status;
    a = block;
    *a = (struct mcs_args){.total = size, .pieces = (uint32_t)pieces};
    if (gates != 0) {
        a->gates = (uint32_t)(pieces + n * sizeof(struct mcs_piece));
        memcpy((uint8_t *)a + a->gates, s->gates, gates);
    }
    if (note != NULL) {
        a->notify = (uint32_t)(pieces + n * sizeof(struct mcs_piece) + gates);
        a->name_length = (uint32_t)note->name_size;
        a->message_length = (uint32_t)note->message_size;
        if (note->name_size != 0)
            memcpy((uint8_t *)a + a->notify, note->name, note->name_size);
        if (note->message_size != 0)
            memcpy((uint8_t *)a + a->notify + note->name_size, note->message, note->message_size);
    }
    *out = a;
    return MCSHM_OK;
}

static mcshm_status set_local(struct mcl_submission *s, const mcshm_request *r,
                              const struct mcl_range *range, uint32_t slot, struct mcs_desc *d)
{
    d->extent = range->extent;
    d->local_offset = range->offset + ((uintptr_t)r->local - range->start);
    if (__builtin_expect(range->staged == NULL, 1))
        return MCSHM_OK;
    s->staged++;
    s->q->tasks[slot].flags |= MCL_TASK_STAGED;
    return mcl_stage_prepare(s->q, slot, d, range->staged, r->local);
}

static mcshm_status prepare_one(struct mcl_submission *s, const mcshm_request *r)
{
    const struct mcl_range *range;
    struct mcl_task *t;
    struct mcs_desc *d;
    struct mcs_args *a;
    uint32_t slot;
    mcshm_status status = check_common(s, r);

    if (status == MCSHM_OK)
        status = find_local(s, r, r->length, &range);
    if (status != MCSHM_OK)
        return status;
    t = mcl_submission_task(s, r, r->length, &slot);
    if (r->length <= s->q->caller_max &&
        mcl_caller_take(&s->caller, s->q, r, range, r->length, r->length, r->length)) {
        mcl_caller_add(&s->caller, s->q, r, slot);
        return MCSHM_OK;
    }
    d = mcl_submission_desc(s, r, t, slot, (uint8_t)r->opcode);
    if (__builtin_expect((r->flags & MCSHM_NOTIFY) != 0 || s->ngates != 0, 0)) {
        status = take_args(s, r, 0, (r->flags & MCSHM_NOTIFY) != 0, slot, d, &a);
        if (status != MCSHM_OK)
            return status;
    }
    return set_local(s, r, range, slot, d);
}

/* The batch's counters, the slots and the rest are as they were; chunks of arguments go back,
 * newest first, as if they had never been taken. */
mcshm_status mcl_submission_undo(struct mcl_submission *s, mcshm_status status)
{
    struct mcshm_queue *q = s->q;

    mcl_caller_end(&s->caller, q);
    for (uint32_t i = s->tasks; i-- > 0;) {
        struct mcl_task *t = &q->tasks[s->b->slots[s->b->tasks + i]];

        if ((t->flags & MCL_TASK_CALLER) == 0 && t->args != MCS_ARGS_NONE)
            mcl_args_free(&q->args, t->args);
        if ((t->flags & MCL_TASK_OPEN) != 0)
            mcl_stage_release(q, s->b->slots[s->b->tasks + i]);
        t->args = MCS_ARGS_NONE;
        t->flags = 0;
    }
    return status;
}

/* The private memory of all staged tasks stays, or none of it is held. */
static mcshm_status hold_staged(struct mcl_submission *s)
{
    struct mcshm_queue *q = s->q;

    for (uint32_t i = 0; i < s->tasks; i++) {
        uint32_t slot = s->b->slots[s->b->tasks + i];

        if ((q->tasks[slot].flags & MCL_TASK_STAGED) != 0 && !mcl_stage_hold(q, slot))
            return mcl_fail(MCSHM_NOT_REGISTERED,
                            "private memory of the submission is being unregistered");
    }
    return MCSHM_OK;
}

static void begin_staged(struct mcl_submission *s)
{
    for (uint32_t i = 0; i < s->tasks; i++) {
        uint32_t slot = s->b->slots[s->b->tasks + i];

        if ((s->q->tasks[slot].flags & MCL_TASK_STAGED) != 0)
            mcl_stage_begin(s->q, slot);
    }
    s->b->staged += s->staged;
}

/* Pushes what is prepared and counts it. The library's own copies are made before the push:
 * a fenced task behind them may start right after it. */
mcshm_status mcl_submission_finish(struct mcl_submission *s, const struct mcl_shape *shape)
{
    struct mcshm_queue *q = s->q;
    struct mcl_batch *b = s->b;
    mcshm_status status = MCSHM_OK;

    if (MCS_FAIL(submit_prepared) != 0)
        return mcl_submission_undo(s, mcl_submission_full(q, MCSHM_RING_FULL));
    if (s->ring != 0 && (s->caller.copies != 0 || __builtin_expect(s->staged != 0, 0))) {
        /* nothing may fail once bytes have moved; the room only grows */
        if (s->ring > mcs_ring_room(q->shm.ring))
            status = mcl_submission_full(q, MCSHM_RING_FULL);
        else if (s->staged != 0)
            status = hold_staged(s);
        if (status != MCSHM_OK)
            return mcl_submission_undo(s, status);
    }
    if (s->caller.copies != 0) {
        b->caller_bytes += mcl_caller_copy(&s->caller, q, shape);
        b->caller_tasks += s->caller.copies;
        mcl_caller_end(&s->caller, q); /* before the longer copies: withdrawals wait for it */
    }
    if (__builtin_expect(s->staged != 0, 0))
        begin_staged(s);
#ifdef MCS_FAILPOINTS
    if (s->ring != 0) {
        mcs_ring_write(q->shm.ring, q->descs, s->ring);
        MCS_FAILPOINT(submit_written);
    }
#endif
    if (s->ring != 0 && !mcs_ring_push(q->shm.ring, q->descs, s->ring))
        return mcl_submission_undo(s, mcl_submission_full(q, MCSHM_RING_FULL));
    if (s->ring != 0) {
        MCS_FAILPOINT(submit_pushed);
        mcl_doorbell(q);
    }
    q->nfree -= s->tasks;
    b->tasks += s->tasks;
    if (s->ring != 0)
        mcs_count(&q->counters.submitted, s->ring); /* relaxed: partner mcshm_get_stats() */
    return MCSHM_OK;
}

MCSHM_API mcshm_status mcshm_submit(mcshm_queue *q, mcshm_batch batch,
                                    const mcshm_request *requests, size_t n)
{
    struct mcl_submission s;
    mcshm_status status = mcl_submission_begin(&s, q, batch, n);

    if (status != MCSHM_OK)
        return status;
    if (requests == NULL || n == 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_submit: %s",
                        n == 0 ? "n is 0" : "requests is NULL");
    for (size_t i = 0; i < n; i++) {
        status = prepare_one(&s, &requests[i]);
        if (__builtin_expect(status != MCSHM_OK, 0))
            return mcl_submission_undo(&s, status);
    }
    return mcl_submission_finish(&s, NULL);
}

/* Bytes of all pieces, and how far both sides reach from their bases. */
static mcshm_status measure_list(const mcshm_piece *pieces, size_t n, uint64_t *total,
                                 uint64_t *local_span, uint64_t *remote_span)
{
    *total = *local_span = *remote_span = 0;
    for (size_t i = 0; i < n; i++) {
        const mcshm_piece *p = &pieces[i];
        uint64_t local, remote;

        if (p->length == 0)
            return mcl_fail(MCSHM_INVALID_ARGUMENT, "piece %zu has length 0", i);
        if (__builtin_add_overflow(p->local_offset, p->length, &local) ||
            __builtin_add_overflow(p->remote_offset, p->length, &remote) ||
            __builtin_add_overflow(*total, p->length, total))
            return mcl_fail(MCSHM_BAD_RANGE, "piece %zu reaches beyond 2^64", i);
        if (local > *local_span)
            *local_span = local;
        if (remote > *remote_span)
            *remote_span = remote;
    }
    return MCSHM_OK;
}

/* One task of many pieces whose ranges have been measured: copied here and now where the caller may,
 * else one descriptor with an argument block. */
static mcshm_status submit_shape(struct mcl_submission *s, const mcshm_request *r,
                                 const struct mcl_shape *shape, const struct mcl_range *range,
                                 uint64_t total, uint64_t local_span, uint64_t remote_span)
{
    const mcshm_stride *st = shape->stride;
    struct mcshm_queue *q = s->q;
    mcshm_status status;
    struct mcl_task *t;
    struct mcs_desc *d;
    struct mcs_args *a;
    uint32_t slot;

    t = mcl_submission_task(s, r, total, &slot);
    if (total <= q->caller_max &&
        mcl_caller_take(&s->caller, q, r, range, total, local_span, remote_span)) {
        mcl_caller_add(&s->caller, q, r, slot);
        return mcl_submission_finish(s, shape);
    }
    d = mcl_submission_desc(s, r, t, slot, (uint8_t)r->opcode);
    d->shape = st != NULL ? MCS_SHAPE_STRIDE : MCS_SHAPE_LIST;
    status = take_args(s, r, shape->count, (r->flags & MCSHM_NOTIFY) != 0, slot, d, &a);
    if (status != MCSHM_OK)
        return mcl_submission_undo(s, status);
    if (st != NULL) {
        a->count = st->count;
        a->block = st->block;
        a->local_stride = st->local_stride;
        a->remote_stride = st->remote_stride;
    } else {
        a->count = shape->count;
        memcpy((uint8_t *)a + a->pieces, shape->pieces, shape->count * sizeof(*shape->pieces));
    }
    status = set_local(s, r, range, slot, d);
    return status == MCSHM_OK ? mcl_submission_finish(s, NULL) : mcl_submission_undo(s, status);
}

MCSHM_API mcshm_status mcshm_submit_list(mcshm_queue *q, mcshm_batch batch, const mcshm_request *r,
                                         const mcshm_piece *pieces, size_t n)
{
    struct mcl_shape shape = {.pieces = pieces, .count = n};
    uint64_t total, local_span, remote_span;
    const struct mcl_range *range;
    struct mcl_submission s;
    mcshm_status status = mcl_submission_begin(&s, q, batch, 1);

    if (status != MCSHM_OK)
        return status;
    if (r == NULL || pieces == NULL || n == 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_submit_list: %s",
                        n == 0 ? "n is 0" : "request or pieces is NULL");
    status = check_common(&s, r);
    if (status == MCSHM_OK)
        status = measure_list(pieces, n, &total, &local_span, &remote_span);
    if (status == MCSHM_OK)
        status = find_local(&s, r, local_span, &range);
    if (status != MCSHM_OK)
        return status;
    return submit_shape(&s, r, &shape, range, total, local_span, remote_span);
}

/* (count - 1) * stride + block, or an overflow. */
static bool stride_span(const mcshm_stride *st, uint64_t stride, uint64_t *out)
{
    return !__builtin_mul_overflow(st->count - 1, stride, out) &&
           !__builtin_add_overflow(*out, st->block, out);
}

MCSHM_API mcshm_status mcshm_submit_stride(mcshm_queue *q, mcshm_batch batch,
                                           const mcshm_request *r, const mcshm_stride *st)
{
    struct mcl_shape shape = {.stride = st};
    uint64_t total, local_span, remote_span;
    const struct mcl_range *range;
    struct mcl_submission s;
    mcshm_status status = mcl_submission_begin(&s, q, batch, 1);

    if (status != MCSHM_OK)
        return status;
    if (r == NULL || st == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_submit_stride: request or stride is NULL");
    if (st->count == 0 || st->block == 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "a stride of %llu blocks of %llu bytes",
                        (unsigned long long)st->count, (unsigned long long)st->block);
    status = check_common(&s, r);
    if (status != MCSHM_OK)
        return status;
    if (__builtin_mul_overflow(st->count, st->block, &total) ||
        !stride_span(st, st->local_stride, &local_span) ||
        !stride_span(st, st->remote_stride, &remote_span))
        return mcl_fail(MCSHM_BAD_RANGE, "the stride reaches beyond 2^64");
    status = find_local(&s, r, local_span, &range);
    if (status != MCSHM_OK)
        return status;
    return submit_shape(&s, r, &shape, range, total, local_span, remote_span);
}

MCSHM_API mcshm_status mcshm_submit_notify(mcshm_queue *q, mcshm_batch batch,
                                           const mcshm_request *r)
{
    struct mcl_submission s;
    struct mcl_task *t;
    struct mcs_desc *d;
    struct mcs_args *a;
    uint32_t slot;
    mcshm_status status = mcl_submission_begin(&s, q, batch, 1);

    if (status != MCSHM_OK)
        return status;
    if (r == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_submit_notify: request is NULL");
    status = check_common(&s, r);
    if (status == MCSHM_OK)
        status = check_notification(r->notify);
    if (status != MCSHM_OK)
        return status;
    t = mcl_submission_task(&s, r, 0, &slot);
    d = mcl_submission_desc(&s, r, t, slot, MCS_OP_NOTIFY);
    d->flags &= (uint8_t) ~(MCS_DESC_NOTIFY | MCS_DESC_SYNCED); /* there is no data */
    d->remote_addr = 0;
    status = take_args(&s, r, 0, true, slot, d, &a);
    return status == MCSHM_OK ? mcl_submission_finish(&s, NULL) : mcl_submission_undo(&s, status);
}
