/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks that have ended: slots, batch lines, gates, sums, and clients that sleep. */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gate.h"
#include "object.h"
#include "session.h"
#include "shm/failpoint.h"
#include "task.h"

void mcd_batches_flush(struct mcd_queue *q)
{
    if (q->ndirty != 0)
        MCS_FAILPOINT(slots_filled);
    for (uint32_t i = 0; i < q->ndirty; i++) {
        struct mcd_batch *b = &q->batches[q->dirty[i]];

        b->dirty = false;
        mcs_batch_publish(&q->shm, q->dirty[i], b->generation, b->ended, b->failed, b->taken,
                          b->bytes);
        MCS_FAILPOINT(batch_told);
    }
    q->ndirty = 0;
}

void mcd_batch_mark(struct mcd_queue *q, uint32_t batch)
{
    if (q->batches[batch].dirty)
        return;
    if (q->ndirty == sizeof(q->dirty) / sizeof(q->dirty[0]))
        mcd_batches_flush(q);
    q->batches[batch].dirty = true;
    q->dirty[q->ndirty++] = batch;
}

static void count_end(struct mcd_queue *q, const struct mcs_desc *d, const struct mcd_outcome *o)
{
    bool notifies = d->op == MCS_OP_NOTIFY || (d->flags & MCS_DESC_NOTIFY) != 0;
    struct mcs_stats_sums *s = &q->stats->sums;

    mcs_count(&s->tasks, 1);
    mcs_count(&s->failed, o->state != MCS_STATE_COMPLETED);
    mcs_count(&s->bytes, o->bytes);
    mcs_count(&s->queue_ns, o->queue_ns);
    mcs_count(&s->move_ns, o->move_ns);
    mcs_count(&s->notify_ns, notifies ? o->notify_ns : 0);
    mcs_count(&s->notified, notifies && o->state == MCS_STATE_COMPLETED);
    mcs_count(&s->traced, 1);
    mcs_stats_latency(s, (uint64_t)o->queue_ns + o->move_ns + o->notify_ns, 1);
    mcs_store_relaxed(&q->stats->depth, q->parked + q->remote + q->waits);
}

void mcd_task_end(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                  const struct mcd_outcome *o)
{
    struct mcd_batch *b = &q->batches[d->batch];
    /* Same host: the agent was the only writer, so the target's side is quiet too. */
    uint32_t state = (uint32_t)o->state | (o->unsettled ? 0 : MCS_SLOT_REMOTE_QUIESCED);

    if ((d->flags & MCS_DESC_SIGNAL) != 0)
        mcd_gate_signal(g, q, d);
    mcs_slot_complete(&q->shm, d->slot, MCS_SLOT_WORD(d->generation, o->error, o->path, state),
                      o->bytes, o->queue_ns, o->move_ns, o->notify_ns);
    if (b->generation == d->batch_generation) {
        b->ended++;
        b->bytes += o->bytes;
        b->failed += o->state != MCS_STATE_COMPLETED;
        mcd_batch_mark(q, d->batch);
    }
    count_end(q, d, o);
    mcd_trace_add(&q->trace, d, o, g->now);
    mcs_count(&g->counters.tasks, 1);
    mcs_count(&g->counters.bytes, o->bytes);
    mcs_count(&g->counters.states[o->state], 1);
    if (o->error != MCS_OK)
        mcs_count(&g->counters.errors[o->error], 1);
    if (q->wake_due == 0)
        q->wake_due = g->turn + MCD_WAKE_TURNS;
}

void mcd_task_refuse(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                     uint32_t queue_ns, enum mcs_state state, enum mcs_status error)
{
    struct mcd_outcome o = {
        .state = (uint8_t)state, .error = (uint16_t)error, .queue_ns = queue_ns};

    mcd_task_end(g, q, d, &o);
}

void mcd_queue_wake(struct mcd_engine *g, struct mcd_queue *q)
{
    uint32_t waiter;

    q->wake_due = 0;
    waiter = mcs_queue_waiter(&q->shm);
    if (waiter == MCS_WAIT_NONE || waiter > q->shm.batches)
        return;
    MCS_FAILPOINT(client_wake);
    syscall(SYS_futex, &q->shm.batch_lines[waiter - 1].word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    mcs_count(&g->counters.futex_wakes, 1);
}
