/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One turn of an engine for one queue: take a burst of descriptors, run at once what fits into
 * the turn's budget, park the others, let the parked ones go on.
 */
#include <stddef.h>
#include <string.h>

#include "fault.h"
#include "log.h"
#include "object.h"
#include "session.h"
#include "task.h"
#include "shm/failpoint.h"
#include "tenant.h"

#define ALONE 4u    /* slices a turn while no other queue is active */
#define PARTS 2u    /* of a slice, between which rings are looked at: slices take unequally long */
#define SMALL 4096u /* bytes of what may pass others that have much to do */
#define SMALL_BURST 4096u /* bytes */

static void break_queue(struct mcd_engine *g, struct mcd_queue *q, const char *what)
{
    mcd_log_cause(what, MCD_LOG_WARNING, "session %u, queue %u: %s, ending the session",
                  q->session->id, q->id, what);
    mcs_count(&g->counters.broken, 1);
    q->broken = true;
    mcs_store_release(&q->error, (uint32_t)MCS_PROTOCOL); /* partner: mcd_sessions_poll() */
}

static void cancel(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d)
{
    if (d->slot < q->shm.slots && mcd_task_active(q, d->slot) &&
        q->tasks[d->slot].desc.generation == d->generation)
        mcd_task_cancel(g, q, d->slot);
}

static uint64_t age_of(const struct mcd_engine *g, const struct mcs_desc *d)
{
    uint32_t age = (uint32_t)(g->now >> g->o.tick_shift) - d->submitted;

    /* a submission after this turn began, or a made-up one */
    return age > INT32_MAX ? 0 : (uint64_t)age << g->o.tick_shift;
}

/* May this task run before everything that is parked? */
static bool may_run_now(const struct mcd_queue *q, const struct mcs_desc *d)
{
    if ((d->flags & MCS_DESC_FENCE) != 0 && q->age_head != MCD_NO_TASK)
        return false;
    if (q->parked == 0)
        return true;
    for (unsigned c = 0; c <= d->priority; c++)
        if (q->list_head[c] != MCD_NO_TASK)
            return false;
    return true;
}

/* Descriptors of one burst that can run at once. */
struct fresh {
    struct mcs_desc *descs[MCD_BURST];
    uint32_t queue_ns[MCD_BURST];
    struct mct_slice slices[MCD_BURST];
    struct mct_slice *posted[MCD_BURST];
    unsigned n;
    uint64_t bytes; /* of all of them */
    struct mcd_lookups found;
    /* a burst mostly has one stamp: how old it is */
    bool stamped;
    uint32_t stamp, stamp_ns;
    uint64_t age;
    /* where others want their share */
    bool shared;
    uint8_t asked, allowed; /* a bit a class: may tasks pass? */
    uint64_t given[MCS_CLASS_COUNT];
    uint64_t other
        [MCS_CLASS_COUNT]; /* what the others were kept waiting for, no byte of which was moved */
};

/* Into the trace; a burst that comes too soon after another one is left out. */
static void record_all(struct mcd_engine *g, struct mcd_queue *q, const struct fresh *f,
                       uint32_t move_ns)
{
    struct mcd_outcome o = {
        .state = MCS_STATE_COMPLETED, .path = g->local_ops->path, .move_ns = move_ns};

    for (unsigned i = 0; i < f->n; i++) {
        o.bytes = f->slices[i].length;
        o.queue_ns = f->queue_ns[i];
        mcd_trace_add(&q->trace, f->descs[i], &o, g->now);
    }
    q->trace.due = g->now + f->n * MCD_TRACE_US * g->ticks_per_us;
    mcs_count(&q->stats->sums.traced, f->n);
}

static uint64_t cost_of(const struct mcs_desc *d)
{
    return d->length > MCD_PIECE_COST ? d->length : MCD_PIECE_COST;
}

/* May this task go at once though other queues have something to do? Small ones may as long as its tenant,
 * session and queue are not ahead of the others; large ones if nobody waits. A turn has one slice of them, but
 * small ones of the highest class always may. */
static bool may_pass(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                     struct fresh *f)
{
    unsigned class = d->priority;
    uint64_t spent = g->spent;

    if ((f->asked >> class & 1) == 0) {
        f->asked |= (uint8_t)(1u << class);
        if (mcd_share_may_pass(&g->shares, &q->leaf, class, g->now))
            f->allowed |= (uint8_t)(1u << class);
    }
    if ((f->allowed >> class & 1) == 0)
        return false;
    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++)
        spent += f->given[c];
    if (d->length <= SMALL)
        return class == MCS_CLASS_HIGH || spent < g->shares.quantum;
    return g->shares.nbusy == (q->leaf.share.busy != 0) && spent + d->length <= g->shares.quantum;
}

/* The good end of run_now(): what mcd_task_end() does for each, with the sums made once. */
static void complete_all(struct mcd_engine *g, struct mcd_queue *q, const struct fresh *f,
                         uint32_t move_ns)
{
    struct mcs_stats_sums *s = &q->stats->sums;
    uint32_t last = UINT32_MAX;
    struct mcd_batch *b = NULL;
    uint64_t bytes = 0;

    for (unsigned i = 0; i < f->n; i++) {
        const struct mcs_desc *d = f->descs[i];
        uint64_t length = f->slices[i].length;

        mcs_slot_complete(&q->shm, d->slot,
                          MCS_SLOT_WORD(d->generation, MCS_OK, g->local_ops->path,
                                        MCS_STATE_COMPLETED | MCS_SLOT_REMOTE_QUIESCED),
                          length, f->queue_ns[i], move_ns, 0);
        if (d->batch != last) {
            last = d->batch;
            b = &q->batches[last];
            mcd_batch_mark(q, last);
        }
        if (b->generation == d->batch_generation) {
            b->ended++;
            b->bytes += length;
        }
        bytes += length;
    }
    mcs_count(&s->tasks, f->n);
    mcs_count(&s->bytes, bytes);
    /* the mean of first and last stands for all: they were submitted in order */
    mcs_count(&s->queue_ns, ((uint64_t)f->queue_ns[0] + f->queue_ns[f->n - 1]) * f->n / 2);
    mcs_count(&s->move_ns, (uint64_t)move_ns * f->n);
    mcs_stats_latency(s, (uint64_t)f->queue_ns[0] + move_ns, f->n);
    if (mcd_trace_due(&q->trace, g->now))
        record_all(g, q, f, move_ns);
    mcs_count(&g->counters.tasks, f->n);
    mcs_count(&g->counters.bytes, bytes);
    mcs_count(&g->counters.states[MCS_STATE_COMPLETED], f->n);
    if (q->wake_due == 0)
        q->wake_due = g->turn + MCD_WAKE_TURNS;
}

/* Posts what was gathered and fills its slots. */
static void run_now(struct mcd_engine *g, struct mcd_queue *q, struct fresh *f)
{
    unsigned long faults = mcd_fault_count();
    uint32_t move_ns;
    uint64_t end;

    if (f->n == 0)
        return;
    /* One stamp for the burst, its start being the engine's last look at the clock: stage times are
     * as fine as a few turns. A small burst is stamped while its lines are still on their way,
     * where reading the clock costs nothing. */
    MCS_FAILPOINT(copy_begin);
    end = mcs_ticks();
    g->local_ops->post(g->local, f->posted, f->n);
    MCS_FAILPOINT(copy_done);
    if (f->bytes > SMALL_BURST)
        end = mcs_ticks();
    move_ns = mcd_clip32(mcd_ticks_to_ns(g, end - g->now));
    g->now = end;
    if (__builtin_expect(faults != mcd_fault_count(), 0)) {
        struct mcd_outcome o = {
            .state = MCS_STATE_FAILED, .error = MCS_MEMORY_FAULT, .path = g->local_ops->path};

        mcs_count(&g->counters.faults, 1);
        for (unsigned i = 0; i < f->n; i++)
            mcd_task_end(g, q, f->descs[i], &o);
    } else {
        complete_all(g, q, f, move_ns);
    }
    g->moved += f->bytes;
    f->n = 0;
    f->bytes = 0;
}

/* What ended without a byte moved, or went on elsewhere, has cost the others time as well: without that, somebody whose
 * ring is full of nonsense would never get ahead, and be waited for without end. */
static void count_other(struct fresh *f, const struct mcs_desc *d)
{
    if (f->shared)
        f->other[d->priority < MCS_CLASS_COUNT ? d->priority : MCS_CLASS_NORMAL] += MCD_PIECE_COST;
}

static void refuse(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                   struct fresh *f, enum mcs_state state, enum mcs_status error)
{
    mcd_task_refuse(g, q, d, f->stamp_ns, state, error);
    count_other(f, d);
}

/* Behind what came before. */
static void park(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                 struct fresh *f, uint64_t deadline)
{
    uint32_t parked = q->parked;

    run_now(g, q, f);
    mcd_task_park(g, q, d, f->age, deadline);
    if (q->parked == parked) /* else it counts when its turn comes */
        count_other(f, d);
}

static bool good_fields(const struct mcs_desc *d)
{
    if (mcd_op_is_object(d->op))
        return d->shape == 0 && d->priority < MCS_CLASS_COUNT &&
               (d->flags & ~(MCS_DESC_FLAGS ^ MCS_DESC_NOTIFY)) == 0 &&
               (d->extent | d->segment | d->local_offset | d->remote_addr | d->length) == 0;
    return (d->op == MCS_OP_READ || d->op == MCS_OP_WRITE || d->op == MCS_OP_NOTIFY) &&
           d->shape < MCS_SHAPE_COUNT && d->priority < MCS_CLASS_COUNT &&
           (d->flags & ~MCS_DESC_FLAGS) == 0 &&
           (d->op == MCS_OP_NOTIFY || d->shape != MCS_SHAPE_ONE || d->length != 0);
}

/* A request about objects. What was gathered goes first; where others want their share, not much is done at once. */
static void take_object(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                        struct fresh *f, uint64_t deadline, uint64_t *budget)
{
    uint64_t room, given;
    bool now;

    run_now(g, q, f);
    now = may_run_now(q, d) && (!f->shared || may_pass(g, q, d, f));
    room = f->shared && *budget > SMALL * 2 ? SMALL * 2 : *budget;
    given = room;
    mcd_object_take(g, q, d, f->age, deadline, f->stamp_ns, now, &room);
    given -= room;
    *budget -= given;
    if (given == 0)
        count_other(f, d);
    else if (f->shared)
        f->given[d->priority] += given > MCD_PIECE_COST ? given : MCD_PIECE_COST;
}

/* False: the queue is broken. */
static bool accept(struct mcd_engine *g, struct mcd_queue *q, struct mcs_desc *d, struct fresh *f,
                   uint64_t *budget)
{
    struct mct_slice *slice = &f->slices[f->n];
    struct mcd_batch *b;
    enum mcs_status error;
    uint64_t deadline;

    if (__builtin_expect(d->op == MCS_OP_CANCEL, 0)) {
        cancel(g, q, d);
        count_other(f, d);
        return true;
    }
    if (__builtin_expect(d->op == MCS_OP_RELEASE, 0)) {
        mcd_object_release(g, q, d);
        count_other(f, d);
        return true;
    }
    if (d->slot >= q->shm.slots || d->batch >= q->shm.batches) {
        break_queue(g, q, "a descriptor names a slot or batch beyond the queue's");
        return false;
    }
    if (mcd_task_active(q, d->slot)) {
        break_queue(g, q, "a descriptor names a slot that is in use");
        return false;
    }
    b = &q->batches[d->batch];
    if (b->generation != d->batch_generation)
        *b = (struct mcd_batch){
            .generation = d->batch_generation, .open = b->open, .dirty = b->dirty};
    b->taken++;
    if (!f->stamped || f->stamp != d->submitted) {
        f->stamped = true;
        f->stamp = d->submitted;
        f->age = age_of(g, d);
        f->stamp_ns = mcd_clip32(mcd_ticks_to_ns(g, f->age));
    }
    if (!good_fields(d)) {
        refuse(g, q, d, f, MCS_STATE_INVALID, MCS_INVALID_ARGUMENT);
        return true;
    }
    deadline = (d->deadline_us != 0 ? d->deadline_us : mcs_load_relaxed(&g->o.deadline_us)) *
               g->ticks_per_us;
    if (f->age >= deadline) {
        refuse(g, q, d, f, MCS_STATE_TIMEOUT, MCS_TIMEOUT);
        return true;
    }
    if (mcd_op_is_object(d->op)) {
        take_object(g, q, d, f, deadline, budget);
        return true;
    }
    if (d->op == MCS_OP_NOTIFY || d->shape != MCS_SHAPE_ONE ||
        (d->flags & (MCS_DESC_NOTIFY | MCS_DESC_WAIT | MCS_DESC_SIGNAL)) != 0 ||
        d->length > *budget || !may_run_now(q, d) || (f->shared && !may_pass(g, q, d, f))) {
        park(g, q, d, f, deadline);
        return true;
    }
    error = mcd_resolve(q, d, d->local_offset, d->remote_addr, d->length, &f->found, slice);
    if (error == MCD_ELSEWHERE || error == MCD_ON_GPU) {
        park(g, q, d, f, deadline);
        return true;
    }
    if (error != MCS_OK) {
        refuse(g, q, d, f, mcd_state_of(error), error);
        return true;
    }
    __builtin_prefetch(d->op == MCS_OP_WRITE ? slice->local : slice->remote, 0);
    mcs_prefetch_write(d->op == MCS_OP_WRITE ? slice->remote : slice->local);
    mcs_prefetch_write(&q->shm.slot_table[d->slot]);
    slice->large = d->length >= mcs_load_relaxed(&g->o.stream_min);
    slice->pass = g->now + d->slot;
    f->posted[f->n] = slice;
    f->descs[f->n] = d;
    f->queue_ns[f->n] = f->stamp_ns;
    f->n++;
    f->bytes += d->length;
    *budget -= d->length;
    if (f->shared)
        f->given[d->priority] += cost_of(d);
    return true;
}

static void show_depth(struct mcd_queue *q, bool full)
{
    uint64_t depth = q->parked + q->remote + q->waits;

    if (full) /* else the ring was empty a moment ago */
        depth += mcs_load_relaxed(&q->consumer.ring->prod.tail) - q->consumer.head;
    mcs_store_relaxed(&q->stats->depth, depth);
}

static void charge(struct mcd_engine *g, struct mcd_queue *q, const struct fresh *f)
{
    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++) {
        if (f->other[c] != 0)
            mcd_share_count(&g->shares, &q->leaf, c, f->other[c]);
        if (f->given[c] == 0)
            continue;
        g->spent += f->given[c];
        mcd_share_charge(&g->shares, &q->leaf, c, f->given[c], g->now);
    }
}

/* Classes of which something parked could go on, a bit each. */
static unsigned ready_classes(const struct mcd_queue *q)
{
    unsigned ready = 0;

    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++) {
        uint32_t slot = q->list_head[c];

        if (slot != MCD_NO_TASK &&
            ((q->tasks[slot].desc.flags & MCS_DESC_FENCE) == 0 || q->age_head == slot))
            ready |= 1u << c;
    }
    return ready;
}

void mcd_queue_share(struct mcd_engine *g, struct mcd_queue *q)
{
    unsigned ready = ready_classes(q), busy;

    busy = ready | (q->full ? 1u << q->full_class : 0);
    mcd_share_set(&g->shares, &q->leaf, (uint8_t)busy, (uint8_t)ready);
}

/* More of the same is on its way: others do not get ahead of this queue in the meantime, if it was given something
 * or something of that class waits for its turn. For what waits behind a FENCE nobody waits. */
static void note_full(struct mcd_queue *q, const struct mcs_desc *last, const struct fresh *f)
{
    unsigned class = last->priority;
    bool any = false;

    if (class < MCS_CLASS_COUNT)
        any = (ready_classes(q) >> class & 1) != 0;
    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++)
        any = any || f->given[c] != 0 || f->other[c] != 0;
    q->full = any && class < MCS_CLASS_COUNT;
    q->full_class = (uint8_t) class;
}

bool mcd_queue_turn(struct mcd_engine *g, struct mcd_queue *q)
{
    struct mcs_desc descs[MCD_BURST];
    bool alone = g->nhot == 1;
    uint64_t budget = g->shares.quantum * (alone ? ALONE : 1);
    struct fresh fresh;
    bool any;
    int n;

    n = mcs_ring_take(&q->consumer, descs, g->burst);
    if (n == 0 && q->parked == 0 && q->leaf.share.busy == 0)
        return false;
    if (n < 0) {
        break_queue(g, q, "the submission ring claims more than it holds");
        return true;
    }
    if (n != 0)
        MCS_FAILPOINT(ring_taken);
    fresh.n = 0;
    fresh.bytes = 0;
    fresh.stamped = false;
    fresh.found = (struct mcd_lookups){0};
    /* partner: set_limits() in tenant.c */
    fresh.shared = !alone || (q->tenant != NULL && mcs_load_relaxed(&q->tenant->rate) != 0);
    if (fresh.shared) {
        fresh.asked = fresh.allowed = 0;
        memset(fresh.given, 0, sizeof(fresh.given));
        memset(fresh.other, 0, sizeof(fresh.other));
    }
    for (int i = 0; i < n; i++)
        if (!accept(g, q, &descs[i], &fresh, &budget))
            break;
    run_now(g, q, &fresh);
    if (fresh.shared)
        charge(g, q, &fresh);
    any = n != 0;
    q->full = false;
    if (n == (int)MCD_BURST && !alone)
        note_full(q, &descs[n - 1], &fresh);
    if (q->list_head[MCD_WAITING] != MCD_NO_TASK && !q->broken)
        any |= mcd_waiting_run(g, q);
    if (q->parked != 0 || q->full || q->leaf.share.busy != 0)
        mcd_queue_share(g, q);
    mcd_batches_flush(q);
    show_depth(q, n == MCD_BURST);
    return any;
}

/*
 * Half a slice of parked work: of whom it is, is asked again each time and whenever a task ends. What was done at once in this turn is a part of it, but never all.
 */
bool mcd_parked_turn(struct mcd_engine *g)
{
    uint64_t whole = g->nhot == 1 ? g->shares.quantum * ALONE : g->shares.quantum / PARTS;
    uint64_t before = g->nhot == 1 ? g->moved : g->spent;
    uint64_t left = before < whole - whole / 4 ? whole - before : whole / 4;
    struct mcd_share_leaf *l;
    bool any = false;
    unsigned class;

    while (left >= MCD_PIECE_COST &&
           (l = mcd_share_pick(&g->shares, mcs_ticks(), &class)) != NULL) {
        struct mcd_queue *q = (struct mcd_queue *)((char *)l - offsetof(struct mcd_queue, leaf));
        uint64_t spent, cost;

        any |= mcd_parked_run(g, q, class, left < g->shares.quantum ? left : g->shares.quantum,
                              &spent, &cost);
        q->last_work = g->now;
        mcd_share_charge(&g->shares, l, class, cost, mcs_ticks());
        left -= spent;
        mcd_batches_flush(q);
        mcd_queue_share(g, q);
        if (spent == 0 && (l->share.ready >> class & 1) != 0)
            break; /* nothing could be done of it: in another turn */
    }
    return any;
}
