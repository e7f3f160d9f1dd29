/* SPDX-License-Identifier: Apache-2.0 */
/* Batches and the state of their tasks. None of this takes a lock or makes a system call,
 * except a wait that sleeps. */
#include "internal.h"
#include "shm/failpoint.h"

#include <stdlib.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a futex is the low half of its word");

static mcshm_status bad_batch(mcshm_batch batch)
{
    return mcl_fail(MCSHM_INVALID_HANDLE, "batch 0x%llx was freed or is of another queue",
                    (unsigned long long)batch);
}

MCSHM_API mcshm_status mcshm_batch_alloc(mcshm_queue *q, uint32_t tasks, mcshm_batch *out)
{
    struct mcl_batch *b;
    uint32_t index;
    mcshm_status status = mcl_check_queue(q);

    if (status != MCSHM_OK)
        return status;
    if (out == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_batch_alloc: out is NULL");
    *out = MCSHM_INVALID_BATCH;
    if (tasks == 0 || tasks > q->shm.slots)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "a batch of %u tasks: the queue has 1 .. %u slots",
                        tasks, q->shm.slots);
    /* Nobody would end its tasks. Batches from before are seen to have been lost, outlived(). Partner:
     * queues_back(), restore.c */
    if (__builtin_expect(mcs_load_relaxed(&q->lost) != 0, 0))
        return mcl_fail(MCSHM_AGENT_DOWN, "a later agent did not take the queue: open another");
    if (q->nfree_batches == 0)
        return MCSHM_NO_BATCHES;
    index = q->free_batches[q->nfree_batches - 1];
    b = &q->batches[index];
    if (tasks > b->room) {
        uint32_t *slots = realloc(b->slots, tasks * sizeof(*slots));

        if (slots == NULL)
            return mcl_fail(MCSHM_NO_MEMORY, "out of memory for a batch of %u tasks", tasks);
        b->slots = slots;
        b->room = tasks;
    }
    q->nfree_batches--;
    b->capacity = tasks;
    b->tasks = b->caller_tasks = b->staged = 0;
    b->restarts = mcs_load_relaxed(&q->c->restarts); /* partner: resumed(), restore.c */
    b->caller_bytes = 0;
    *out = (uint64_t)b->generation << 32 | index;
    return MCSHM_OK;
}

/* Tasks of the batch that the agent has ended, from one look at its line. */
static uint32_t line_ended(const struct mcl_batch *b, uint64_t word)
{
    uint32_t ended = (uint32_t)word, most = b->tasks - b->caller_tasks;

    if (word >> 32 != b->generation) /* nothing has ended in this life of the line */
        return 0;
    return ended < most ? ended : most;
}

/* Was it alive when a later agent took over?  Its line then counts neither what went down with the
 * earlier one nor what that had ended but not counted; the slots tell all. */
static bool outlived(const struct mcshm_queue *q, const struct mcl_batch *b)
{
    /* relaxed: partner resumed(), restore.c; mcl_task_lost() looks again */
    return __builtin_expect(b->restarts != mcs_load_relaxed(&q->c->restarts), 0);
}

/* Have all ended, by the slots, which the agent fills before it writes the line: a caller that saw
 * each task end may free the batch although the line is still on its way. */
static bool complete_by_slots(const struct mcshm_queue *q, uint32_t index)
{
    const struct mcl_batch *b = &q->batches[index];

    for (uint32_t i = 0; i < b->tasks; i++)
        if ((q->tasks[b->slots[i]].flags & MCL_TASK_CALLER) == 0 &&
            mcl_task_end(q, b->slots[i]) == 0)
            return false;
    return true;
}

/* The same by the line, where that says all. */
static bool complete(const struct mcshm_queue *q, uint32_t index)
{
    const struct mcl_batch *b = &q->batches[index];

    if (b->tasks == b->caller_tasks)
        return true;
    return line_ended(b, mcs_batch_peek(&q->shm, index)) == b->tasks - b->caller_tasks ||
           (outlived(q, b) && complete_by_slots(q, index));
}

/* How far it is, by the slots. Returns how many of the agent's tasks have ended. */
static MCL_COLD uint32_t count_slots(const struct mcshm_queue *q, const struct mcl_batch *b,
                                     mcshm_batch_status *out)
{
    uint32_t ended = 0, failed = 0;
    uint64_t bytes = b->caller_bytes;

    for (uint32_t i = 0; i < b->tasks; i++) {
        uint32_t slot = b->slots[i];
        uint64_t word = (q->tasks[slot].flags & MCL_TASK_CALLER) != 0 ? 0 : mcl_task_end(q, slot);

        if (word == 0)
            continue;
        ended++;
        if ((word & 0xff & ~MCS_SLOT_REMOTE_QUIESCED) != MCS_STATE_COMPLETED)
            failed++;
        /* relaxed: the slot's word was loaded before, partner mcs_slot_complete() */
        if ((word >> 16 & 0xffff) != MCS_AGENT_RESTARTED)
            bytes += mcs_load_relaxed(&q->shm.slot_table[slot].bytes);
    }
    if (out != NULL)
        *out = (mcshm_batch_status){
            .tasks = b->tasks, .ended = b->caller_tasks + ended, .failed = failed, .bytes = bytes};
    return ended;
}

/* Once all have ended: READs into private memory arrive there. */
static void settle(struct mcshm_queue *q, struct mcl_batch *b)
{
    for (uint32_t i = 0; b->staged != 0 && i < b->tasks; i++)
        mcl_stage_finish(q, b, b->slots[i]);
}

/* A poll that found nothing.  Is the agent alive?  Its socket tells, at the price of a system
 * call: worth it only when nothing has moved for a long time. */
static mcshm_status unfinished(struct mcshm_queue *q)
{
    return mcl_idle_down(q->c, &q->idle) ? MCSHM_AGENT_DOWN : MCSHM_BUSY;
}

static void progress(struct mcshm_queue *q)
{
    q->idle = (struct mcl_idle){0};
}

MCSHM_API mcshm_status mcshm_batch_free(mcshm_queue *q, mcshm_batch batch)
{
    struct mcl_batch *b;
    mcshm_status status = mcl_check_queue(q);

    if (status != MCSHM_OK)
        return status;
    b = mcl_batch_get(q, batch);
    if (b == NULL)
        return bad_batch(batch);
    /* when the agent is gone no task ends any more, and none uses its slot either */
    if (!complete(q, (uint32_t)batch) && !complete_by_slots(q, (uint32_t)batch) &&
        unfinished(q) != MCSHM_AGENT_DOWN)
        return MCSHM_BUSY;
    settle(q, b);
    /* the last one first: the next batch then finds the slots in the same order */
    for (uint32_t i = b->tasks; i-- > 0;) {
        struct mcl_task *t = &q->tasks[b->slots[i]];

        if ((t->flags & MCL_TASK_CALLER) == 0 && t->args != MCS_ARGS_NONE)
            mcl_args_free(&q->args, t->args);
        t->args = MCS_ARGS_NONE;
        t->flags = 0;
        q->free_slots[q->nfree++] = b->slots[i];
        if (i == b->tasks / 2)
            MCS_FAILPOINT(batch_free);
    }
    b->capacity = 0;
    if (++b->generation == 0)
        b->generation = 1;
    q->free_batches[q->nfree_batches++] = (uint32_t)batch;
    return MCSHM_OK;
}

MCSHM_API mcshm_status mcshm_batch_poll(mcshm_queue *q, mcshm_batch batch, mcshm_batch_status *out)
{
    uint32_t index = (uint32_t)batch, ended = 0;
    struct mcl_batch *b;
    mcshm_status status = mcl_check_queue(q);

    if (status != MCSHM_OK)
        return status;
    b = mcl_batch_get(q, batch);
    if (b == NULL)
        return bad_batch(batch);
    if (b->tasks != b->caller_tasks)
        ended = line_ended(b, mcs_batch_peek(&q->shm, index));
    if (out != NULL) {
        const struct mcs_batch_line *line = &q->shm.batch_lines[index];

        *out = (mcshm_batch_status){
            .tasks = b->tasks, .ended = b->caller_tasks + ended, .bytes = b->caller_bytes};
        if (ended != 0) {
            /* relaxed: exact once all have ended, partner mcs_batch_publish() */
            out->failed = mcs_load_relaxed(&line->failed);
            out->bytes += mcs_load_relaxed(&line->bytes);
        }
    }
    if (b->caller_tasks + ended != b->tasks && outlived(q, b))
        ended = count_slots(q, b, out);
    if (b->caller_tasks + ended != b->tasks)
        return unfinished(q);
    MCS_FAILPOINT(batch_reaped);
    progress(q);
    if (b->staged != 0)
        settle(q, b);
    return MCSHM_OK;
}

/* Sleeps once. MCSHM_BUSY: look again. */
static mcshm_status sleep_once(struct mcshm_queue *q, uint32_t index, int64_t deadline)
{
    const struct mcl_batch *b = &q->batches[index];
    const struct mcs_batch_line *line = &q->shm.batch_lines[index];
    mcshm_status status = MCSHM_BUSY;
    int64_t left = deadline - mcl_now_ns();
    uint64_t word;

    mcs_batch_renew(&q->shm, index, b->generation);
    mcs_queue_wait_begin(&q->shm, index);
    MCS_FAILPOINT(wait_begin);
    word = mcs_batch_peek(&q->shm, index);
    if (complete(q, index))
        status = MCSHM_OK;
    else if (mcl_hangup(q->c))
        status = complete(q, index) ? MCSHM_OK : MCSHM_AGENT_DOWN;
    else if (left <= 0)
        status = MCSHM_TIMEOUT;
    /* The line of a former life may have come after it was renewed (a batch can be freed when its
     * slots say so): its count is no value to sleep on. tests/model/client_sleep.pml, mutant 6. */
    if (status == MCSHM_BUSY && word >> 32 == b->generation) {
        mcs_count(&q->counters.sleeps, 1); /* relaxed: partner mcshm_get_stats() */
        mcl_futex_wait(&line->word, (uint32_t)word, left < MCL_SLEEP_NS ? left : MCL_SLEEP_NS);
    }
    MCS_FAILPOINT(wait_end);
    mcs_queue_wait_end(&q->shm);
    return status;
}

/* Spins for as long as the agent suggests, or the caller has. */
static mcshm_status spin(struct mcshm_queue *q, uint32_t index, int64_t timeout_us)
{
    uint64_t ticks = mcl_spin_ticks(q->c, timeout_us), start = mcs_ticks(), waited;

    do {
        if (complete(q, index))
            return MCSHM_OK;
        waited = mcs_ticks() - start;
        mcl_spin_pause(q->c, waited);
    } while (waited < ticks);
    return MCSHM_BUSY;
}

MCSHM_API mcshm_status mcshm_batch_wait(mcshm_queue *q, mcshm_batch batch, int64_t timeout_us)
{
    uint32_t index = (uint32_t)batch;
    int64_t deadline = INT64_MAX;
    struct mcl_batch *b;
    mcshm_status status = mcl_check_queue(q);

    if (status != MCSHM_OK)
        return status;
    b = mcl_batch_get(q, batch);
    if (b == NULL)
        return bad_batch(batch);
    if (complete(q, index)) {
        settle(q, b);
        return MCSHM_OK;
    }
    if (timeout_us == 0)
        return unfinished(q) == MCSHM_AGENT_DOWN ? MCSHM_AGENT_DOWN : MCSHM_TIMEOUT;
    if (timeout_us > 0 && timeout_us < INT64_MAX / 2000)
        deadline = mcl_now_ns() + timeout_us * 1000;
    status = spin(q, index, timeout_us);
    while (status == MCSHM_BUSY)
        status = sleep_once(q, index, deadline);
    if (status == MCSHM_OK)
        settle(q, b);
    return status;
}

/* What the agent has said about the task in its slot. */
static void read_slot(const struct mcshm_queue *q, uint32_t slot, mcshm_task_status *out)
{
    const struct mcl_task *t = &q->tasks[slot];
    const struct mcs_slot *s = &q->shm.slot_table[slot];
    uint64_t word = mcs_slot_peek(&q->shm, slot);
    uint32_t state = word & 0xff & ~MCS_SLOT_REMOTE_QUIESCED;

    if (word >> 32 != t->generation || state < MCS_STATE_INVALID) {
        uint64_t end = mcl_task_end(q, slot); /* if only because its agent did */

        if ((end >> 16 & 0xffff) == MCS_AGENT_RESTARTED) {
            out->state = MCSHM_STATE_FAILED;
            out->error = MCSHM_AGENT_RESTARTED;
            return;
        }
    }
    if (word >> 32 != t->generation)
        return; /* not taken yet */
    out->state = (mcshm_state)state;
    out->error = (mcshm_status)(word >> 16 & 0xffff);
    out->path = (mcshm_path)(word >> 8 & 0xff);
    out->remote_quiesced = (word & MCS_SLOT_REMOTE_QUIESCED) != 0;
    /* relaxed: exact once the task has ended, partner mcs_slot_complete() */
    out->bytes = mcs_load_relaxed(&s->bytes);
    out->queue_ns = mcs_load_relaxed(&s->queue_ns);
    out->move_ns = mcs_load_relaxed(&s->move_ns);
    out->notify_ns = mcs_load_relaxed(&s->notify_ns);
    if ((t->flags & MCL_TASK_STAGED) != 0 && out->path == MCSHM_PATH_LOCAL)
        out->path = MCSHM_PATH_STAGED;
}

MCSHM_API mcshm_status mcshm_task_poll(mcshm_queue *q, mcshm_batch batch, uint32_t index,
                                       mcshm_task_status *out)
{
    struct mcl_batch *b;
    const struct mcl_task *t;
    uint32_t slot;
    mcshm_status status = mcl_check_queue(q);

    if (status != MCSHM_OK)
        return status;
    if (out == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_task_poll: out is NULL");
    b = mcl_batch_get(q, batch);
    if (b == NULL)
        return bad_batch(batch);
    if (index >= b->tasks)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "task %u of a batch with %u submitted", index,
                        b->tasks);
    slot = b->slots[index];
    t = &q->tasks[slot];
    *out = (mcshm_task_status){.state = MCSHM_STATE_WAITING, .cookie = t->cookie};
    if ((t->flags & MCL_TASK_CALLER) != 0) {
        out->state = MCSHM_STATE_COMPLETED;
        out->path = MCSHM_PATH_CALLER;
        out->remote_quiesced = true;
        out->bytes = t->length;
        out->move_ns = t->move_ns;
        return MCSHM_OK;
    }
    read_slot(q, slot, out);
    if (out->state >= MCSHM_STATE_INVALID) {
        MCS_FAILPOINT(task_reaped);
        progress(q);
        mcl_stage_finish(q, b, slot);
    } else if (unfinished(q) == MCSHM_AGENT_DOWN) {
        out->state = MCSHM_STATE_FAILED;
        out->error = MCSHM_AGENT_DOWN;
    }
    return MCSHM_OK;
}

MCSHM_API mcshm_status mcshm_cancel(mcshm_queue *q, mcshm_batch batch, uint32_t index)
{
    struct mcl_batch *b;
    struct mcs_desc d = {.op = MCS_OP_CANCEL, .args = MCS_ARGS_NONE};
    mcshm_status status = mcl_check_queue(q);

    if (status != MCSHM_OK)
        return status;
    b = mcl_batch_get(q, batch);
    if (b == NULL)
        return bad_batch(batch);
    if (index >= b->tasks)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "task %u of a batch with %u submitted", index,
                        b->tasks);
    d.slot = b->slots[index];
    d.generation = q->tasks[d.slot].generation;
    if ((q->tasks[d.slot].flags & MCL_TASK_CALLER) != 0 || mcl_task_end(q, d.slot) != 0)
        return MCSHM_OK;
    if (mcl_down(q->c))
        return MCSHM_AGENT_DOWN;
    if (!mcs_ring_push(q->shm.ring, &d, 1))
        return unfinished(q) == MCSHM_AGENT_DOWN ? MCSHM_AGENT_DOWN : MCSHM_RING_FULL;
    MCS_FAILPOINT(cancel_pushed);
    mcl_doorbell(q);
    return MCSHM_OK;
}
