/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks in an engine: how their ranges are checked, how those that did not run at once are
 * parked and advance by slices.  burst.c has the fresh ones, complete.c those that have ended.
 *
 * Nothing is believed: descriptors, argument heads and pieces are copied, then checked, then
 * the copy is used, each time they are used.  Pointers are looked up anew in each turn.
 */
#include <errno.h>
#include <string.h>

#include "engine.h"
#include "fault.h"
#include "gate.h"
#include "gpu_task.h"
#include "leg.h"
#include "net.h"
#include "object.h"
#include "session.h"
#include "task.h"
#include "shm/failpoint.h"
#include "tenant.h"

#define CHECK_COST 128u   /* the same for only checking it */
#define GROUP 16u         /* slices posted together */
#define WAITING_LOOKS 64u /* tasks that wait for a receiver looked at a turn */

/* ---- checks ---------------------------------------------------------------------- */

static inline const struct mcd_extent *find_extent(const struct mcd_session *s, uint32_t handle)
{
    /* partner: the release in handlers.c that fills or clears the entry */
    struct mcd_extent *e = mcs_load_acquire(&s->extents[MCD_HANDLE_INDEX(handle)]);

    return e != NULL && e->handle == handle ? e : NULL;
}

static inline struct mcd_segment *find_segment(const struct mcd_session *s, uint32_t handle)
{
    struct mcd_open *o = mcs_load_acquire(&s->opens[MCD_HANDLE_INDEX(handle)]); /* likewise */

    return o != NULL && o->handle == handle ? o->segment : NULL;
}

const struct mcd_extent *mcd_find_extent(const struct mcd_queue *q, uint32_t handle)
{
    return find_extent(q->session, handle);
}

struct mcd_segment *mcd_find_segment(const struct mcd_queue *q, uint32_t handle)
{
    return find_segment(q->session, handle);
}

/* Why a segment of this host has no such buffer. */
enum mcs_status mcd_missing(const struct mcd_segment *seg)
{
    /* partner: the release in session.c when the owner ends; it outlives this turn */
    const struct mcd_session *owner = mcs_load_acquire(&seg->owner);

    if (owner == NULL)
        return seg->stale ? MCS_STALE : MCS_REVOKED;
    /* partner: drop_rest() in limbo.c */
    return mcs_load_acquire(&owner->recovering) != 0 ? MCS_AGENT_RESTARTED : MCS_BAD_RANGE;
}

/* The buffer that a remote range lies in. */
static enum mcs_status find_buffer(const struct mcd_queue *q, const struct mcs_desc *d,
                                   uint64_t remote_addr, uint64_t length, struct mcd_lookups *found)
{
    const struct mcd_segment *seg = find_segment(q->session, d->segment);
    const struct mcd_buffer *b;

    if (seg == NULL)
        return MCS_INVALID_HANDLE;
    if (seg->remote != NULL)
        return MCD_ELSEWHERE;
    /* partner: swap() in segment.c */
    b = mcd_snapshot_find(mcs_load_acquire(&seg->snapshot), remote_addr, length);
    if (b == NULL)
        return mcd_missing(seg);
    found->segment_handle = d->segment;
    found->buffer = b;
    return MCS_OK;
}

enum mcs_status mcd_resolve(const struct mcd_queue *q, const struct mcs_desc *d,
                            uint64_t local_offset, uint64_t remote_addr, uint64_t length,
                            struct mcd_lookups *found, struct mct_slice *slice)
{
    const struct mcd_extent *e = found->extent;
    const struct mcd_buffer *b = found->buffer;
    uint64_t remote_offset;

    if (e == NULL || found->extent_handle != d->extent) {
        e = find_extent(q->session, d->extent);
        if (e == NULL)
            return MCS_INVALID_HANDLE;
        found->extent_handle = d->extent;
        found->extent = e;
    }
    if (b == NULL || found->segment_handle != d->segment ||
        !mcd_buffer_holds(b, remote_addr, length)) {
        enum mcs_status res = find_buffer(q, d, remote_addr, length, found);

        if (res != MCS_OK)
            return res;
        b = found->buffer;
    }
    if (local_offset > e->size || length > e->size - local_offset)
        return MCS_BAD_RANGE;
    if ((b->access & (d->op == MCS_OP_READ ? MCS_ACCESS_READ : MCS_ACCESS_WRITE)) == 0)
        return MCS_ACCESS;
    remote_offset = b->offset + (remote_addr - b->address);
    if (b->extent == e && local_offset < remote_offset + length &&
        remote_offset < local_offset + length)
        return MCS_OVERLAP;
    if (e->gpu != NULL || b->extent->gpu != NULL)
        return MCD_ON_GPU;
    slice->op = (enum mct_op)d->op;
    slice->length = length;
    slice->local = e->map + local_offset;
    slice->remote = b->extent->map + remote_offset;
    return MCS_OK;
}

/* Piece `index` of a task: offsets are sums, checked for overflow. */
enum mcs_status mcd_task_piece(const struct mcd_queue *q, const struct mcd_task *t, uint64_t index,
                               uint64_t *local, uint64_t *remote, uint64_t *length)
{
    const struct mcs_desc *d = &t->desc;
    struct mcs_piece p;

    if (t->leg != NULL) { /* private memory, and in its extent: mcd_leg_begin() */
        *local = t->leg->pieces[index].local;
        *remote = t->leg->pieces[index].remote;
        *length = t->leg->pieces[index].length;
        return MCS_OK;
    }
    switch (d->shape) {
    case MCS_SHAPE_LIST:
        /* in bounds: check_args() has compared count with the block's private size */
        memcpy(&p, q->shm.args + (uint64_t)d->args * MCS_LINE + t->args.pieces + index * sizeof(p),
               sizeof(p));
        break;
    case MCS_SHAPE_STRIDE:
        if (__builtin_mul_overflow(index, t->args.local_stride, &p.local) ||
            __builtin_mul_overflow(index, t->args.remote_stride, &p.remote))
            return MCS_BAD_RANGE;
        p.length = t->args.block;
        break;
    default:
        p = (struct mcs_piece){.length = d->length};
        break;
    }
    if (p.length == 0)
        return MCS_INVALID_ARGUMENT;
    if (__builtin_add_overflow(d->local_offset, p.local, local) ||
        __builtin_add_overflow(d->remote_addr, p.remote, remote))
        return MCS_BAD_RANGE;
    *length = p.length;
    return MCS_OK;
}

/* The head of the argument block, in private memory. */
static enum mcs_status check_args(const struct mcd_queue *q, struct mcd_task *t)
{
    const struct mcs_desc *d = &t->desc;
    struct mcs_args *a = &t->args;
    uint64_t at = (uint64_t)d->args * MCS_LINE;

    memset(a, 0, sizeof(*a));
    if (d->shape == MCS_SHAPE_ONE && d->op != MCS_OP_NOTIFY &&
        (d->flags & (MCS_DESC_NOTIFY | MCS_DESC_WAIT | MCS_DESC_SIGNAL)) == 0)
        return MCS_OK;
    if (d->args == MCS_ARGS_NONE || at >= q->shm.args_size || sizeof(*a) > q->shm.args_size - at)
        return MCS_BAD_RANGE;
    memcpy(a, q->shm.args + at, sizeof(*a));
    if (a->total < sizeof(*a) || a->total > q->shm.args_size - at)
        return MCS_BAD_RANGE;
    if (d->shape != MCS_SHAPE_ONE && a->count == 0)
        return MCS_INVALID_ARGUMENT;
    if (d->shape == MCS_SHAPE_LIST &&
        (a->pieces > a->total || a->count > (a->total - a->pieces) / sizeof(struct mcs_piece)))
        return MCS_BAD_RANGE;
    if (d->op == MCS_OP_NOTIFY || (d->flags & MCS_DESC_NOTIFY) != 0) {
        if (a->name_length > MCS_NOTIFY_NAME_MAX || a->message_length > MCS_NOTIFY_MESSAGE_MAX)
            return MCS_INVALID_ARGUMENT;
        if (a->notify > a->total ||
            (uint64_t)a->name_length + a->message_length > a->total - a->notify)
            return MCS_BAD_RANGE;
    }
    return (d->flags & (MCS_DESC_WAIT | MCS_DESC_SIGNAL)) != 0
               ? mcd_gates_check(q, d, a->gates, a->total, &t->gate)
               : MCS_OK;
}

/* ---- parked tasks ---------------------------------------------------------------- */

void mcd_list_add(struct mcd_queue *q, uint32_t slot, unsigned list)
{
    struct mcd_task *t = &q->tasks[slot];

    t->list = (uint8_t)list;
    t->list_next = MCD_NO_TASK;
    t->list_prev = q->list_tail[list];
    if (t->list_prev != MCD_NO_TASK)
        q->tasks[t->list_prev].list_next = slot;
    else
        q->list_head[list] = slot;
    q->list_tail[list] = slot;
}

void mcd_list_remove(struct mcd_queue *q, uint32_t slot)
{
    struct mcd_task *t = &q->tasks[slot];

    if (t->list_prev != MCD_NO_TASK)
        q->tasks[t->list_prev].list_next = t->list_next;
    else
        q->list_head[t->list] = t->list_next;
    if (t->list_next != MCD_NO_TASK)
        q->tasks[t->list_next].list_prev = t->list_prev;
    else
        q->list_tail[t->list] = t->list_prev;
    if (q->resume == slot)
        q->resume = t->list_next;
}

void mcd_list_add_first(struct mcd_queue *q, uint32_t slot)
{
    struct mcd_task *t = &q->tasks[slot];
    unsigned list = t->desc.priority;

    t->list = (uint8_t)list;
    t->list_prev = MCD_NO_TASK;
    t->list_next = q->list_head[list];
    if (t->list_next != MCD_NO_TASK)
        q->tasks[t->list_next].list_prev = slot;
    else
        q->list_tail[list] = slot;
    q->list_head[list] = slot;
}

bool mcd_task_admit(struct mcd_queue *q, const struct mcs_desc *d)
{
    return q->tenant == NULL ||
           mcd_tenant_admit(q->tenant, q->batches[d->batch].open) == MCD_LIMIT_COUNT;
}

void mcd_age_add(struct mcd_queue *q, struct mcd_task *t)
{
    uint32_t slot = t->desc.slot;

    if (t->leg == NULL) /* a leg is a part of a task that counts */
        q->batches[t->desc.batch].open++;
    q->active[slot / 64] |= UINT64_C(1) << (slot % 64);
    t->age_next = MCD_NO_TASK;
    t->age_prev = q->age_tail;
    if (t->age_prev != MCD_NO_TASK)
        q->tasks[t->age_prev].age_next = slot;
    else
        q->age_head = slot;
    q->age_tail = slot;
}

void mcd_age_remove(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t)
{
    uint32_t slot = t->desc.slot;

    if (t->age_prev != MCD_NO_TASK)
        q->tasks[t->age_prev].age_next = t->age_next;
    else
        q->age_head = t->age_next;
    if (t->age_next != MCD_NO_TASK)
        q->tasks[t->age_next].age_prev = t->age_prev;
    else
        q->age_tail = t->age_prev;
    q->active[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    if (t->leg == NULL) {
        q->batches[t->desc.batch].open--;
        if (q->tenant != NULL)
            mcd_tenant_release(q->tenant, q->batches[t->desc.batch].open);
    }
    mcd_wheel_clear(g->wheel, &t->timer);
    if (q->age_head != MCD_NO_TASK && q->tasks[q->age_head].lane != NULL &&
        (q->tasks[q->age_head].desc.flags & MCS_DESC_FENCE) != 0)
        mcd_route_dirty(g->net, q->tasks[q->age_head].lane->route); /* it may start */
}

void mcd_task_unpark(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t)
{
    if (t->list != MCD_UNLISTED) {
        mcd_list_remove(q, t->desc.slot);
        q->parked--;
    } else {
        q->waits--;
    }
    if (t->gated)
        mcd_gate_leave(g, t);
    mcd_age_remove(g, q, t);
}

void mcd_task_park(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                   uint64_t age, uint64_t deadline)
{
    struct mcd_task *t = &q->tasks[d->slot];
    struct mcd_segment *seg;
    enum mcs_status error;

    *t = (struct mcd_task){
        .desc = *d,
        .q = q,
        .taken = g->now,
        .deadline = g->now + (deadline - age),
        .queue_ns = mcd_clip32(mcd_ticks_to_ns(g, age)),
        .phase = MCD_CHECK,
        .path = (uint8_t)g->local_ops->path,
        .gpu = -1,
    };
    error = check_args(q, t);
    if (error != MCS_OK) {
        mcd_task_refuse(g, q, d, t->queue_ns, MCS_STATE_INVALID, error);
        return;
    }
    seg = find_segment(q->session, d->segment);
    if (seg != NULL && seg->remote != NULL && (d->flags & MCS_DESC_WAIT) == 0) {
        mcd_remote_park(g, t, seg);
        return;
    }
    if (!mcd_task_admit(q, d)) {
        mcd_task_refuse(g, q, d, t->queue_ns, MCS_STATE_INVALID, MCS_LIMIT);
        return;
    }
    mcd_age_add(q, t);
    mcd_wheel_set(g->wheel, &t->timer, t->deadline);
    if (seg != NULL && seg->remote != NULL) { /* mcd_task_open() sends it on */
        t->list = MCD_UNLISTED;
        q->waits++;
        mcd_gate_wait(g, t);
    } else {
        mcd_list_add(q, d->slot, d->priority);
        q->parked++;
    }
    MCS_FAILPOINT(task_parked);
}

void mcd_task_finish(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t,
                     enum mcs_state state, enum mcs_status error)
{
    uint64_t end = t->moved_at != 0 ? t->moved_at : mcs_ticks();
    struct mcd_outcome o = {
        .state = (uint8_t)state,
        .error = (uint16_t)error,
        .path = t->bytes != 0 || t->carried ? t->path : MCS_PATH_NONE,
        .bytes = t->bytes,
        .queue_ns = t->queue_ns,
        .move_ns = t->started != 0 ? mcd_clip32(mcd_ticks_to_ns(g, end - t->started)) : 0,
        .notify_ns = t->moved_at != 0 && t->phase == MCD_DELIVER
                         ? mcd_clip32(mcd_ticks_to_ns(g, mcs_ticks() - t->moved_at))
                         : 0,
    };

    mcd_task_unpark(g, q, t);
    mcd_task_end(g, q, &t->desc, &o);
}

static void end_late(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t)
{
    bool delivers = t->phase == MCD_DELIVER && !t->gated;

    mcd_task_finish(g, q, t, MCS_STATE_TIMEOUT, delivers ? MCS_INBOX_FULL : MCS_TIMEOUT);
}

/* hurry: without waiting for another host's answers. */
static void cancel(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t, bool hurry)
{
    if (t->lane != NULL)
        mcd_remote_finish(g, t, MCS_STATE_CANCELED, MCS_CANCELED, hurry);
    else if (t->object != NULL)
        mcd_object_finish(g, q, t, MCS_STATE_CANCELED, MCS_CANCELED);
    else if (t->way != NULL)
        mcd_gpu_task_finish(g, t, MCS_STATE_CANCELED, MCS_CANCELED);
    else
        mcd_task_finish(g, q, t, MCS_STATE_CANCELED, MCS_CANCELED);
}

void mcd_task_cancel(struct mcd_engine *g, struct mcd_queue *q, uint32_t slot)
{
    cancel(g, q, &q->tasks[slot], false);
}

void mcd_task_timer(struct mcd_engine *g, struct mcd_timer *timer)
{
    struct mcd_task *t = (struct mcd_task *)((char *)timer - offsetof(struct mcd_task, timer));

    if (t->lane != NULL) {
        mcd_remote_timer(g, t);
    } else {
        struct mcd_queue *q = t->q;

        if (t->object != NULL)
            mcd_object_finish(g, q, t, MCS_STATE_TIMEOUT, MCS_TIMEOUT);
        else if (t->way != NULL)
            mcd_gpu_task_timer(g, t);
        else
            end_late(g, q, t);
        mcd_net_touch(g->net, q);
    }
}

/* Looks at the pieces before any moves. False: the budget is used up. */
static bool check_pieces(struct mcd_queue *q, struct mcd_task *t, uint64_t *budget,
                         enum mcs_status *error)
{
    uint64_t n = mcd_task_pieces(t);
    struct mcd_lookups found = {0};

    while (t->piece < n) {
        uint64_t local, remote, length;
        struct mct_slice slice;

        if (*budget < CHECK_COST)
            return false;
        *budget -= CHECK_COST;
        t->checked += CHECK_COST;
        *error = mcd_task_piece(q, t, t->piece, &local, &remote, &length);
        if (*error == MCS_OK)
            *error = mcd_resolve(q, &t->desc, local, remote, length, &found, &slice);
        if (*error == MCD_ON_GPU)
            *error = mcd_gpu_task_meets(t, &found);
        if (*error == MCD_ELSEWHERE)
            *error = MCS_INVALID_HANDLE; /* it named nothing when the task was parked */
        if (*error == MCS_OK && __builtin_add_overflow(t->total, length, &t->total))
            *error = MCS_BAD_RANGE;
        if (*error != MCS_OK)
            return true;
        t->piece++;
    }
    t->piece = 0;
    return true;
}

/* The same bytes in one slice where one piece goes on where the last one stopped. */
static bool joins(const struct mct_slice *last, const struct mct_slice *s)
{
    uintptr_t local = (uintptr_t)last->local, remote = (uintptr_t)last->remote;
    uint64_t apart = local < remote ? remote - local : local - remote;

    /* pieces are copied in order: as one they must not read what the first of them writes */
    return local + last->length == (uintptr_t)s->local &&
           remote + last->length == (uintptr_t)s->remote && last->length + s->length <= apart;
}

/* Moves up to *budget bytes. True when the task is through, or *error is set. */
static bool move_pieces(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t,
                        uint64_t *budget, enum mcs_status *error)
{
    uint64_t n = mcd_task_pieces(t);
    unsigned long faults = mcd_fault_count();
    struct mcd_lookups found = {0};

    while (t->piece < n && *budget != 0) {
        struct mct_slice slices[GROUP], *posted[GROUP];
        unsigned k = 0;

        while (t->piece < n && *budget != 0 && k < GROUP) {
            struct mct_slice *s = &slices[k];
            uint64_t local, remote, whole, part = 0;

            *error = mcd_task_piece(q, t, t->piece, &local, &remote, &whole);
            /* the client may have made the piece shorter since it was begun */
            if (*error == MCS_OK && t->piece_done >= whole)
                *error = MCS_BAD_RANGE;
            if (*error == MCS_OK) {
                part = whole - t->piece_done < *budget ? whole - t->piece_done : *budget;
                *error = mcd_resolve(q, &t->desc, local + t->piece_done, remote + t->piece_done,
                                     part, &found, s);
            }
            if (*error != MCS_OK)
                break;
            s->large = t->total >= mcs_load_relaxed(&g->o.stream_min);
            s->pass = t->taken + t->desc.slot;
            g->moved += part;
            t->piece_done += part;
            if (t->piece_done == whole) {
                t->piece++;
                t->piece_done = 0;
            }
            if (part < MCD_PIECE_COST)
                part = MCD_PIECE_COST;
            *budget -= part < *budget ? part : *budget;
            if (k != 0 && joins(&slices[k - 1], s)) {
                slices[k - 1].length += s->length;
            } else {
                posted[k] = s;
                k++;
            }
        }
        g->local_ops->post(g->local, posted, k);
        MCS_FAILPOINT(slice_moved);
        for (unsigned i = 0; i < k; i++)
            t->bytes += slices[i].length;
        if (*error != MCS_OK) {
            /* it was good when it was checked: the buffer went away since */
            if (*error == MCS_BAD_RANGE || *error == MCS_INVALID_HANDLE ||
                *error == MCD_ELSEWHERE || *error == MCD_ON_GPU)
                *error = MCS_REVOKED;
            break;
        }
    }
    if (faults != mcd_fault_count()) {
        mcs_count(&g->counters.faults, 1);
        *error = MCS_MEMORY_FAULT;
    }
    return *error != MCS_OK || t->piece == n;
}

void mcd_task_start(struct mcd_engine *g, struct mcd_task *t)
{
    t->started = mcs_ticks();
    t->queue_ns = mcd_clip32(t->queue_ns + mcd_ticks_to_ns(g, t->started - t->taken));
}

/* Out of the queue's lists: it waits for something that rings, or is under way. */
static void unlist(struct mcd_queue *q, struct mcd_task *t)
{
    mcd_list_remove(q, t->desc.slot);
    t->list = MCD_UNLISTED;
    q->parked--;
    q->waits++;
}

static void relist(struct mcd_queue *q, struct mcd_task *t)
{
    q->waits--;
    q->parked++;
    if (t->phase == MCD_DELIVER && t->moved_at != 0)
        mcd_list_add(q, t->desc.slot, MCD_WAITING);
    else
        mcd_list_add_first(q, t->desc.slot);
}

void mcd_task_open(struct mcd_engine *g, struct mcd_task *t, enum mcs_status error)
{
    struct mcd_queue *q = t->q;

    if (t->object != NULL) {
        mcd_object_open(g, q, t, error);
    } else if (error != MCS_OK) {
        mcd_task_finish(g, q, t, MCS_STATE_FAILED, error);
        mcd_net_touch(g->net, q);
    } else if (t->phase == MCD_CHECK) {
        mcd_remote_resume(g, t);
    } else if (t->gpu >= 0) {
        mcd_gpu_task_enter(g, t);
    } else {
        mcd_task_start(g, t);
        relist(q, t);
        if (q->leaf.session != NULL)
            mcd_queue_share(g, q);
    }
}

void mcd_task_moved(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t)
{
    t->moved_at = mcs_ticks();
    t->phase = MCD_DELIVER;
    if (mcd_task_notifies(t)) {
        relist(q, t); /* behind those that wait for the same receiver */
    } else {
        mcd_task_finish(g, q, t, MCS_STATE_COMPLETED, MCS_OK);
        mcd_net_touch(g->net, q);
    }
}

/* Moves one parked task on. True when something happened. */
static bool advance(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t, uint64_t *budget)
{
    enum mcs_status error = MCS_OK;
    bool notify = mcd_task_notifies(t);
    bool any = false;
    int res;

    if (t->object != NULL)
        return mcd_object_advance(g, q, t, budget);
    if (g->now >= t->deadline) {
        end_late(g, q, t);
        return true;
    }
    if (t->phase == MCD_CHECK) {
        bool through = t->desc.op == MCS_OP_NOTIFY || check_pieces(q, t, budget, &error);

        any = true;
        if (error != MCS_OK) {
            mcd_task_finish(g, q, t, mcd_state_of(error), error);
            return true;
        }
        if (!through)
            return true;
        t->phase = t->desc.op == MCS_OP_NOTIFY ? MCD_DELIVER : MCD_MOVE;
        if ((t->desc.flags & MCS_DESC_WAIT) != 0) {
            bool open = false;

            error = mcd_gate_look(q, t, &open);
            if (error != MCS_OK) {
                mcd_task_finish(g, q, t, MCS_STATE_FAILED, error);
                return true;
            }
            if (!open) {
                unlist(q, t);
                mcd_gate_wait(g, t);
                return true;
            }
        }
        if (t->gpu >= 0) {
            unlist(q, t);
            mcd_gpu_task_enter(g, t);
            return true;
        }
        mcd_task_start(g, t);
    }
    if (t->phase == MCD_MOVE) {
        bool begun = t->bytes != 0;

        if (*budget == 0)
            return any;
        any = true;
        if (!move_pieces(g, q, t, budget, &error)) {
            if (begun)
                return true;
            /* PENDING, for who looks */
            mcs_slot_complete(
                &q->shm, t->desc.slot,
                MCS_SLOT_WORD(t->desc.generation, MCS_OK, g->local_ops->path, MCS_STATE_PENDING),
                t->bytes, t->queue_ns, 0, 0);
            return true;
        }
        t->moved_at = mcs_ticks();
        if (error != MCS_OK) {
            mcd_task_finish(g, q, t, MCS_STATE_FAILED, error);
            return true;
        }
        t->phase = MCD_DELIVER;
    }
    if (!notify) {
        mcd_task_finish(g, q, t, MCS_STATE_COMPLETED, MCS_OK);
        return true;
    }
    if (t->moved_at == 0)
        t->moved_at = mcs_ticks();
    MCS_FAILPOINT(notify_deliver);
    res = mcd_task_deliver(g, q, t);
    if (res == 0)
        MCS_FAILPOINT(notify_delivered);
    if (res == -EAGAIN) {
        /* the receiver's inbox is full: again in later turns, until the deadline */
        if (t->list != MCD_WAITING) {
            mcd_list_remove(q, t->desc.slot);
            mcd_list_add(q, t->desc.slot, MCD_WAITING);
        }
        return any;
    }
    if (res == 0)
        mcd_task_finish(g, q, t, MCS_STATE_COMPLETED, MCS_OK);
    else
        mcd_task_finish(g, q, t, MCS_STATE_FAILED,
                        res == -ECONNRESET ? MCS_AGENT_RESTARTED
                        : res == -ESTALE   ? MCS_STALE
                                           : MCS_REVOKED);
    return true;
}

/*
 * Tries those again that wait for room in an inbox, a bounded number a turn: a receiver that
 * never reads must not cost other queues their time.  The first of them has its try in every
 * turn, and none for the same receiver comes before it.
 */
bool mcd_waiting_run(struct mcd_engine *g, struct mcd_queue *q)
{
    uint32_t slot = q->list_head[MCD_WAITING], first;
    uint64_t budget = 0; /* delivery needs none */
    unsigned looks = 0;
    bool any = false;

    for (; slot != MCD_NO_TASK && looks < WAITING_LOOKS; looks++) {
        advance(g, q, &q->tasks[slot], &budget);
        if (q->list_head[MCD_WAITING] == slot)
            break;
        slot = q->list_head[MCD_WAITING];
        any = true;
    }
    first = slot;
    if (first == MCD_NO_TASK)
        return any;
    slot = q->resume != MCD_NO_TASK ? q->resume : q->tasks[first].list_next;
    for (; slot != MCD_NO_TASK && looks < WAITING_LOOKS; looks++) {
        struct mcd_task *t = &q->tasks[slot];

        slot = t->list_next;
        if (t->desc.segment != q->tasks[first].desc.segment)
            any |= advance(g, q, t, &budget);
    }
    q->resume = slot;
    return any;
}

/*
 * A task with FENCE starts when it is the oldest of the queue; until then it holds up the later ones of
 * its class only, so the oldest task can always run.  A task that waits for a receiver lets the ones
 * behind it pass.
 */
bool mcd_parked_run(struct mcd_engine *g, struct mcd_queue *q, unsigned class, uint64_t budget,
                    uint64_t *spent, uint64_t *cost)
{
    uint32_t slot = q->list_head[class];
    uint64_t left = budget;
    bool any = false;

    *cost = 0;
    while (slot != MCD_NO_TASK && left >= CHECK_COST) {
        struct mcd_task *t = &q->tasks[slot];
        uint64_t before = left, checked = t->checked, made_up;
        uint32_t next = t->list_next;

        if ((t->desc.flags & MCS_DESC_FENCE) != 0 && q->age_head != slot && g->now < t->deadline)
            break;
        any |= advance(g, q, t, &left);
        if (before - left < MCD_PIECE_COST)
            left = before < MCD_PIECE_COST ? 0 : before - MCD_PIECE_COST;
        /* Checks count until the bytes that were checked are moved and count themselves; the record is the
         * task's until another one takes its slot. */
        made_up = before - left - (t->checked - checked);
        made_up = made_up < t->checked ? made_up : t->checked;
        t->checked -= made_up;
        *cost += before - left - made_up;
        if (mcd_task_active(q, slot) && t->phase != MCD_DELIVER && t->list != MCD_UNLISTED)
            break; /* the budget is used up */
        slot = next;
    }
    *spent = budget - left;
    return any;
}

bool mcd_queue_cancel_all(struct mcd_engine *g, struct mcd_queue *q)
{
    uint32_t slot = q->age_head;

    while (slot != MCD_NO_TASK) {
        struct mcd_task *t = &q->tasks[slot];

        if (!mcd_task_active(q, slot)) { /* a leg, which has gone with the one before it */
            slot = q->age_head;
            continue;
        }
        slot = t->age_next;
        cancel(g, q, t, true);
    }
    q->full = false;
    if (q->leaf.session != NULL)
        mcd_queue_share(g, q);
    mcd_net_touch(g->net, q);
    mcd_net_publish(g);
    mcd_queue_wake(g, q);
    if (q->age_head != MCD_NO_TASK)
        return false;
    for (uint32_t i = 0; i < q->nlanes; i++)
        if (q->lanes[i] != NULL)
            mcd_lane_free(q->lanes[i]);
    mcd_gpu_lanes_free(q);
    return true;
}
