/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task to a segment of another host: how it is parked, checked, cut into slices, what its slices
 * say when they come back, how it ends.
 *
 *   CHECK --> MOVE --> (all data slices answered) --> DELIVER --> ends COMPLETED
 *     |         |                                        |
 *     |         +---- refused, late, canceled, ... ------+
 *     v                        v
 *   ends INVALID        ending: what can come back by itself gets MCD_GRACE_US, what is left is
 *   (after a look at    called back, then taken by force. The task ends when nothing is out.
 *   a fresh description)
 *
 * The snapshot of a remote segment is only what its owner said last; what is allowed is decided
 * there.  An address that it does not have is looked up afresh once before it is refused.
 */
#include <errno.h>
#include <string.h>

#include "net.h"
#include "remote_task.h"
#include "session.h"
#include "shm/failpoint.h"

#define LOOKS 64u /* tasks of a lane looked at for one that may go */
#define CHECK_COST 128u
#define JOINED 64u     /* pieces of one slice: each costs a look */
#define FRESH_US 1000u /* between looks for a fresh description */

void mcd_remote_arm(struct mcd_engine *g, struct mcd_task *t, uint64_t us)
{
    uint64_t due = g->net->ticks + us * g->ticks_per_us;

    mcd_wheel_set(g->wheel, &t->timer, t->ending || due < t->deadline ? due : t->deadline);
}

/* ---- ends ------------------------------------------------------------------------ */

/* A slice that is not out goes. */
void mcd_remote_drop(struct mcd_engine *g, struct mcd_task *t, struct mcd_slice *s)
{
    if (s->prev != NULL)
        s->prev->next = s->next;
    else
        t->slices = s->next;
    if (s->next != NULL)
        s->next->prev = s->prev;
    t->nslices--;
    mcd_remote_unstage(g, s);
    mcd_slice_put(&g->net->slices, s);
}

void mcd_remote_drop_again(struct mcd_engine *g, struct mcd_task *t, struct mcd_slice *s)
{
    struct mcd_route *r = t->lane->route;

    mcd_slice_list_remove(&r->again[s->class][mcd_slice_writes(s)], s);
    r->waiting -= s->s.length;
    mcd_remote_drop(g, t, s);
}

/* Nothing of it is out: fills its slot. */
void mcd_remote_end(struct mcd_engine *g, struct mcd_task *t, enum mcs_state state,
                    enum mcs_status error)
{
    struct mcd_queue *q = t->q;
    struct mcd_route *r = t->lane->route;
    uint64_t last = t->moved_at != 0 ? t->moved_at : g->net->ticks;
    struct mcd_outcome o = {
        .state = (uint8_t)state,
        .error = (uint16_t)error,
        .path = t->started != 0 ? t->path : MCS_PATH_NONE,
        .unsettled = t->unsettled,
        .bytes = t->bytes,
        .queue_ns = t->queue_ns,
        .move_ns = t->started != 0 ? mcd_clip32(mcd_ticks_to_ns(g, last - t->started)) : 0,
        .notify_ns = t->moved_at != 0 && t->phase == MCD_DELIVER
                         ? mcd_clip32(mcd_ticks_to_ns(g, g->net->ticks - t->moved_at))
                         : 0,
    };

    MCS_FAILPOINT(remote_end);
    if (t->list != MCD_UNLISTED)
        mcd_lane_remove(t);
    mcd_age_remove(g, q, t);
    t->lane->tasks--;
    q->remote--;
    mcs_store_relaxed(&r->tasks, r->tasks - 1);
    if (t->leg != NULL) {
        mcd_leg_ended(g, t, &o);
        return;
    }
    mcd_task_end(g, q, &t->desc, &o);
    mcd_net_touch(g->net, q);
}

/* Ends it now if nothing is out. True: it has ended. */
bool mcd_remote_try_end(struct mcd_engine *g, struct mcd_task *t)
{
    if (t->nslices != 0)
        return false;
    mcd_remote_end(g, t, (enum mcs_state)t->state, (enum mcs_status)t->error);
    return true;
}

/* Asks for all slices; those that wait for their connection's kill are given up. */
static void call_back(struct mcd_engine *g, struct mcd_task *t)
{
    struct mcd_slice *s, *next;

    t->hurried = true;
    for (s = t->slices; s != NULL; s = next) {
        struct mcd_route_rail *rr = &t->lane->route->rails[s->rail];

        next = s->next;
        if (!s->out) {
            t->unsettled = t->unsettled || !s->s.settled;
            mcd_remote_drop_again(g, t, s);
        } else if (!s->asked && !s->back && !s->copying) {
            s->asked = true;
            rr->ops->cancel(rr->link, &s->s);
        }
    }
}

void mcd_remote_finish(struct mcd_engine *g, struct mcd_task *t, enum mcs_state state,
                       enum mcs_status error, bool hurry)
{
    struct mcd_slice *s, *next;

    if (!t->ending) {
        t->ending = true;
        t->state = (uint8_t)state;
        t->error = (uint16_t)error;
        t->awaits = t->inbox_full = false;
        if (t->list != MCD_UNLISTED)
            mcd_lane_remove(t);
        for (s = t->slices; s != NULL; s = next) {
            next = s->next;
            if (!s->out && s->s.settled)
                mcd_remote_drop_again(g, t, s);
        }
        if (t->nslices != 0 && !hurry)
            mcd_remote_arm(g, t, MCD_GRACE_US);
    }
    if (t->nslices != 0 && hurry && !t->hurried) {
        mcd_remote_arm(g, t, MCD_STUCK_US);
        call_back(g, t);
    }
    mcd_remote_try_end(g, t);
}

void mcd_remote_finish_lane(struct mcd_engine *g, struct mcd_lane *l, enum mcs_state state,
                            enum mcs_status error, bool hurry)
{
    uint32_t slot = l->q->age_head;

    while (slot != MCD_NO_TASK && l->tasks != 0) {
        struct mcd_task *t = &l->q->tasks[slot];

        slot = t->age_next;
        if (t->lane == l)
            mcd_remote_finish(g, t, state, error, hurry);
    }
}

/* What the peer refused, or what a check found. */
void mcd_remote_refuse(struct mcd_engine *g, struct mcd_task *t, enum mcs_status error)
{
    bool invalid = error == MCS_BAD_RANGE || error == MCS_ACCESS || error == MCS_STALE ||
                   error == MCS_INVALID_HANDLE || error == MCS_INVALID_ARGUMENT;

    mcd_remote_finish(g, t, invalid && t->bytes == 0 ? MCS_STATE_INVALID : MCS_STATE_FAILED, error,
                      false);
}

static void late(struct mcd_engine *g, struct mcd_task *t)
{
    enum mcs_status error = MCS_TIMEOUT;

    if (!mcd_route_works(t->lane->route))
        error = MCS_PEER_UNREACHABLE;
    else if (t->error == MCS_INBOX_FULL)
        error = MCS_INBOX_FULL;
    else if ((t->desc.flags & MCS_DESC_STRICT) != 0 && t->lane->route->best_down_since != 0)
        error = MCS_STRICT;
    mcd_remote_finish(g, t, MCS_STATE_TIMEOUT, error, false);
}

/* ---- checks ---------------------------------------------------------------------- */

/* *fresh: a newer description may say otherwise. */
static enum mcs_status look_up(const struct mcd_task *t, uint64_t local, uint64_t remote,
                               uint64_t length, struct mcd_lookups *found, bool *fresh)
{
    const struct mcs_desc *d = &t->desc;

    if (found->extent == NULL || found->extent_handle != d->extent) {
        found->extent = mcd_remote_extent(t);
        if (found->extent == NULL)
            return MCS_INVALID_HANDLE;
        found->extent_handle = d->extent;
    }
    if (local > found->extent->size || length > found->extent->size - local)
        return MCS_BAD_RANGE;
    if (found->buffer == NULL || found->segment_handle != d->segment ||
        !mcd_buffer_holds(found->buffer, remote, length)) {
        const struct mcd_segment *seg = mcd_remote_segment(t);

        if (seg == NULL || seg->remote == NULL)
            return MCS_INVALID_HANDLE;
        *fresh = true;
        /* partner: swap() in segment.c */
        found->buffer = mcd_snapshot_find(mcs_load_acquire(&seg->snapshot), remote, length);
        found->segment_handle = d->segment;
        if (found->buffer == NULL)
            return MCS_BAD_RANGE;
    }
    *fresh = true;
    if ((found->buffer->access & (d->op == MCS_OP_READ ? MCS_ACCESS_READ : MCS_ACCESS_WRITE)) == 0)
        return MCS_ACCESS;
    return MCS_OK;
}

/* The description may be old: asks for a fresh one and waits, off the lane. */
static void await_fresh(struct mcd_engine *g, struct mcd_task *t)
{
    struct mcd_segment *seg = mcd_remote_segment(t);

    if (seg == NULL || seg->remote == NULL) { /* closed since it was found, a moment ago */
        mcd_remote_refuse(g, t, MCS_INVALID_HANDLE);
        return;
    }
    if (t->list != MCD_UNLISTED)
        mcd_lane_remove(t);
    t->piece = t->total = 0;
    t->awaits = true;
    /* relaxed: only counts; partner: the control thread, which is rung */
    t->wanted = mcs_fetch_add(&seg->remote->wanted, 1u) + 1;
    mcd_engine_tell_control(g);
    mcd_remote_arm(g, t, FRESH_US);
}

void mcd_remote_want_fresh(struct mcd_engine *g, struct mcd_slice *s)
{
    struct mcd_segment *seg = mcd_remote_segment(s->task);

    if (seg == NULL || seg->remote == NULL)
        return; /* it is revoked when it is to be sent again */
    s->awaits = true;
    s->wanted = mcs_fetch_add(&seg->remote->wanted, 1u) + 1; /* as in await_fresh() */
    mcd_engine_tell_control(g);
}

bool mcd_remote_is_fresh(const struct mcd_slice *s)
{
    const struct mcd_segment *seg = mcd_remote_segment(s->task);

    /* partner: the control thread, once the description is in the snapshot */
    return seg == NULL || seg->remote == NULL ||
           (int32_t)(mcs_load_acquire(&seg->remote->fresh) - s->wanted) >= 0 ||
           mcs_load_acquire(&seg->remote->status) != MCS_OK;
}

/* Looks at the pieces before any is sent. False: not done with it - the budget is used up, or the task
 * waits or has ended. */
static bool check(struct mcd_engine *g, struct mcd_task *t, uint64_t *budget)
{
    uint64_t n = mcd_task_pieces(t);
    struct mcd_lookups found = {0};
    bool fresh = false;

    while (t->piece < n) {
        uint64_t local, remote, length;
        enum mcs_status error;

        if (*budget < CHECK_COST) {
            *budget = 0;
            return false;
        }
        *budget -= CHECK_COST;
        fresh = false;
        error = mcd_task_piece(t->q, t, t->piece, &local, &remote, &length);
        if (error == MCS_OK)
            error = look_up(t, local, remote, length, &found, &fresh);
        if (error == MCS_OK && __builtin_add_overflow(t->total, length, &t->total))
            error = MCS_BAD_RANGE;
        if (error != MCS_OK) {
            if (fresh && !t->looked)
                await_fresh(g, t);
            else
                mcd_remote_refuse(g, t, error);
            return false;
        }
        t->piece++;
    }
    t->piece = 0;
    if (found.extent != NULL) {
        t->node = (int8_t)found.extent->kind.node;
        t->on_gpu = found.extent->gpu != NULL;
    }
    t->uncut = t->total;
    if (t->list != MCD_UNLISTED)
        t->lane->route->waiting += t->uncut;
    t->phase = MCD_MOVE;
    return true;
}

/* Into its lane, when it can be said at once that it may; a list is checked when its turn comes. */
static void enter(struct mcd_engine *g, struct mcd_task *t)
{
    uint64_t budget = CHECK_COST;

    if (t->desc.op == MCS_OP_NOTIFY)
        t->phase = MCD_DELIVER;
    else if (t->desc.shape == MCS_SHAPE_ONE && !check(g, t, &budget))
        return;
    /* one that has waited goes before those that came later: one with FENCE among them waits for it, and lets nobody
     * pass */
    mcd_lane_add(t, t->q->age_tail != t->desc.slot);
    mcd_route_dirty(g->net, t->lane->route);
}

void mcd_remote_list(struct mcd_engine *g, struct mcd_task *t)
{
    struct mcd_route *r = t->lane->route;

    t->list = MCD_UNLISTED;
    t->node = -1;
    t->lane->tasks++;
    t->q->remote++;
    mcs_store_relaxed(&r->tasks, r->tasks + 1);
    if (!mcd_task_active(t->q, t->desc.slot)) /* else it has waited for a gate */
        mcd_age_add(t->q, t);
    mcd_wheel_set(g->wheel, &t->timer, t->deadline);
    mcd_route_dirty(g->net, r); /* active from now on: it may be without any rail */
}

/* Its lane, or why there is none. */
static enum mcs_status find_lane(struct mcd_engine *g, struct mcd_task *t, struct mcd_segment *seg)
{
    struct mcd_queue *q = t->q;
    struct mcd_route *r = seg->remote->routes[g->o.id];
    const struct mcd_extent *e = t->desc.op == MCS_OP_NOTIFY ? NULL : mcd_remote_extent(t);
    /* partner: the control thread, when it learns that the peer is another one or gone */
    enum mcs_status status = (enum mcs_status)mcs_load_acquire(&seg->remote->status);

    if (e != NULL && e->gpu != NULL && status == MCS_OK)
        status = mcd_gpu_order(&t->desc);
    if (status == MCS_OK && (r == NULL || r->detached))
        status = MCS_PEER_UNREACHABLE;
    if (status == MCS_OK)
        status = r->verdict;
    if (status == MCS_OK) {
        t->lane = mcd_lane_get(q, r);
        if (t->lane == NULL)
            status = MCS_NO_MEMORY;
    }
    return status;
}

/* The state that a task ends in which never had a lane. */
static enum mcs_state refused(enum mcs_status error)
{
    return error == MCS_STALE || error == MCS_LIMIT || error == MCS_GPU_ORDER ||
                   error == MCS_NOT_SUPPORTED || error == MCS_INVALID_HANDLE
               ? MCS_STATE_INVALID
               : MCS_STATE_FAILED;
}

static void go(struct mcd_engine *g, struct mcd_task *t)
{
    mcd_remote_list(g, t);
    MCS_FAILPOINT(remote_parked);
    enter(g, t);
}

void mcd_remote_park(struct mcd_engine *g, struct mcd_task *t, struct mcd_segment *seg)
{
    struct mcd_queue *q = t->q;
    enum mcs_status status = find_lane(g, t, seg);

    if (status == MCS_OK && !mcd_task_admit(q, &t->desc))
        status = MCS_LIMIT;
    if (status == MCS_OK)
        go(g, t);
    else
        mcd_task_refuse(g, q, &t->desc, t->queue_ns, refused(status), status);
}

void mcd_remote_resume(struct mcd_engine *g, struct mcd_task *t)
{
    struct mcd_segment *seg = mcd_remote_segment(t);
    enum mcs_status status = MCS_INVALID_HANDLE;

    if (seg != NULL && seg->remote != NULL)
        status = find_lane(g, t, seg);
    if (status == MCS_OK) {
        t->q->waits--;
        go(g, t);
    } else {
        mcd_task_finish(g, t->q, t, refused(status), status);
        mcd_net_touch(g->net, t->q);
    }
}

void mcd_remote_timer(struct mcd_engine *g, struct mcd_task *t)
{
    struct mcd_route *r = t->lane->route;
    struct mcd_segment *seg;

    if (t->ending) {
        mcd_remote_arm(g, t, MCD_STUCK_US);
        if (t->hurried) {
            for (const struct mcd_slice *s = t->slices; s != NULL; s = s->next)
                if (!s->copying)
                    mcd_route_abort(g, r, s->rail, -ETIMEDOUT);
        } else {
            call_back(g, t);
            mcd_remote_try_end(g, t);
        }
        return;
    }
    if (g->net->ticks >= t->deadline) {
        late(g, t);
        return;
    }
    if (t->inbox_full) {
        t->inbox_full = false;
        mcd_lane_add(t, true);
        mcd_route_dirty(g->net, r);
    } else if (t->awaits) {
        enum mcs_status status;

        seg = mcd_remote_segment(t);
        if (seg == NULL || seg->remote == NULL) {
            mcd_remote_refuse(g, t, MCS_INVALID_HANDLE);
            return;
        }
        status = (enum mcs_status)mcs_load_acquire(&seg->remote->status); /* as in park */
        if (status != MCS_OK) {
            mcd_remote_refuse(g, t, status);
            return;
        }
        /* partner: the control thread, once the description is in the snapshot */
        if ((int32_t)(mcs_load_acquire(&seg->remote->fresh) - t->wanted) < 0) {
            mcd_remote_arm(g, t, FRESH_US);
            return;
        }
        t->awaits = false;
        t->looked = true;
        mcd_wheel_set(g->wheel, &t->timer, t->deadline);
        enter(g, t);
        return;
    }
    mcd_wheel_set(g->wheel, &t->timer, t->deadline);
}

/* ---- on their way ---------------------------------------------------------------- */

struct mcd_task *mcd_remote_next(struct mcd_engine *g, struct mcd_lane *l, unsigned class,
                                 bool hold_writes, uint64_t *check_budget)
{
    struct mcd_queue *q = l->q;
    uint32_t slot = l->lists[class].head;

    for (unsigned i = 0; i < LOOKS && slot != MCD_NO_TASK; i++) {
        struct mcd_task *t = &q->tasks[slot];
        uint32_t next = t->list_next;

        if ((t->desc.flags & MCS_DESC_FENCE) != 0 && q->age_head != slot)
            return NULL;
        if (t->phase == MCD_CHECK && !check(g, t, check_budget)) {
            if (*check_budget == 0)
                return NULL;
        } else if ((!hold_writes || (t->desc.op == MCS_OP_READ && t->phase == MCD_MOVE)) &&
                   (!l->route->hold_strict || (t->desc.flags & MCS_DESC_STRICT) == 0) &&
                   mcd_schedule_may_cut(l->route, t, g->net->now)) {
            return t;
        }
        slot = next;
    }
    return NULL;
}

uint64_t mcd_remote_want(const struct mcd_task *t)
{
    return t->phase == MCD_DELIVER ? (uint64_t)t->args.name_length + t->args.message_length
                                   : t->uncut;
}

static struct mcd_slice *new_slice(struct mcd_engine *g, struct mcd_task *t)
{
    struct mcd_slice *s = MCS_FAIL(slice_cut) != 0 ? NULL : mcd_slice_get(&g->net->slices);

    if (s == NULL)
        return NULL;
    s->task = t;
    s->class = t->desc.priority;
    s->s.owner = s;
    s->s.settled = true;
    s->s.pass = t->taken + t->desc.slot;
    s->next = t->slices;
    if (t->slices != NULL)
        t->slices->prev = s;
    t->slices = s;
    t->nslices++;
    return s;
}

/* What is known of both ends, anew for each try. e: NULL for a notification. likely: a buffer that was found in this
 * turn, or NULL. */
static bool aim(struct mcd_slice *s, const struct mcd_extent *e, const struct mcd_buffer *likely)
{
    const struct mcd_segment *seg = mcd_remote_segment(s->task);

    s->s.registration = NULL;
    s->s.remote_keys = NULL;
    if (seg == NULL || seg->remote == NULL)
        return false;
    s->s.remote_incarnation = seg->remote->incarnation;
    /* relaxed: an old one is refused by the peer */
    s->s.remote_export = mcs_load_relaxed(&seg->remote->export_index);
    s->s.gpu = e != NULL && e->gpu != NULL;
    if (e != NULL) /* partner: made() in registration.c */
        s->s.registration = mcs_load_acquire(&e->registration);
    if (s->s.registration != NULL) /* partner: swap() in segment.c */
        s->s.remote_keys = mcd_snapshot_keys(
            mcs_load_acquire(&seg->snapshot), likely, s->s.remote_address, s->s.length,
            s->s.op == MCT_READ ? MCS_ACCESS_READ : MCS_ACCESS_WRITE);
    return true;
}

static struct mcd_slice *cut_notice(struct mcd_engine *g, struct mcd_task *t)
{
    const struct mcd_queue *q = t->q;
    struct mcd_route *r = t->lane->route;
    struct mcd_slice *s = new_slice(g, t);

    mcd_lane_remove(t);
    if (s != NULL)
        s->text = mcd_text_get(&g->net->slices);
    if (s == NULL || s->text == NULL || !aim(s, NULL, NULL)) {
        enum mcs_status error = s == NULL || s->text == NULL ? MCS_NO_MEMORY : MCS_REVOKED;

        if (s != NULL)
            mcd_remote_drop(g, t, s);
        mcd_remote_finish(g, t, MCS_STATE_FAILED, error, false);
        return NULL;
    }
    s->s.op = MCT_NOTIFY;
    s->s.name_length = t->args.name_length;
    s->s.length = (uint64_t)t->args.name_length + t->args.message_length;
    /* in bounds: check_args() */
    memcpy(s->text->bytes, q->shm.args + (uint64_t)t->desc.args * MCS_LINE + t->args.notify,
           s->s.length);
    s->s.local = s->text->bytes;
    s->s.source = q->session->incarnation;
    s->s.bytes = t->bytes;
    s->s.remote_address = ++r->notices & ~MCD_NOTICE_AGAIN;
    return s;
}

/* Bytes of a piece's rest for one slice: even parts rather than a small last one. */
static uint64_t part_of(uint64_t rest, uint64_t most)
{
    uint64_t parts, part;

    if (rest <= most)
        return rest;
    parts = (rest + most - 1) / most;
    part = ((rest + parts - 1) / parts + 4095) & ~UINT64_C(4095);
    return part < most ? part : most;
}

struct mcd_slice *mcd_remote_cut(struct mcd_engine *g, struct mcd_task *t, uint64_t length)
{
    struct mcd_lane *l = t->lane;
    uint64_t n = mcd_task_pieces(t), local = 0, remote = 0, whole, taken = 0;
    uint64_t start = 0, at = 0; /* of the slice: in the extent, in the segment */
    struct mcd_lookups found = {0};
    enum mcs_status error = MCS_OK;
    struct mcd_slice *s;
    bool fresh;

    if (t->phase == MCD_DELIVER)
        return cut_notice(g, t);
    for (unsigned i = 0; i < JOINED && t->piece < n && taken < length; i++) {
        uint64_t part;

        error = mcd_task_piece(t->q, t, t->piece, &local, &remote, &whole);
        /* the client may have written to the pieces since they were checked */
        if (error == MCS_OK && (t->piece_done >= whole || whole - t->piece_done > t->uncut))
            error = MCS_BAD_RANGE;
        if (error != MCS_OK)
            break;
        local += t->piece_done;
        remote += t->piece_done;
        part = part_of(whole - t->piece_done, length);
        if (taken == 0) {
            start = local;
            at = remote;
        } else if (part > length - taken || start + taken != local || at + taken != remote) {
            break;
        }
        /* one slice lies in one buffer: the peer takes nothing else */
        error = look_up(t, start, at, taken + part, &found, &fresh);
        if (error != MCS_OK && taken != 0) {
            error = MCS_OK;
            break;
        }
        if (error == MCS_BAD_RANGE && found.extent != NULL && taken + part <= found.extent->size &&
            start <= found.extent->size - (taken + part))
            error = MCS_OK; /* the snapshot has changed: the peer knows */
        if (error == MCS_ACCESS)
            error = MCS_OK; /* likewise */
        if (error != MCS_OK)
            break;
        taken += part;
        t->uncut -= part;
        l->route->waiting -= part;
        t->piece_done += part;
        if (t->piece_done < whole)
            break;
        t->piece++;
        t->piece_done = 0;
    }
    s = error == MCS_OK || taken != 0 ? new_slice(g, t) : NULL;
    if (s != NULL) {
        s->s.op = (enum mct_op)t->desc.op;
        s->s.length = taken;
        s->s.local = found.extent->map + start;
        s->s.remote_address = at;
        s->local_offset = start;
        s->far_gpu = found.buffer != NULL && found.buffer->gpu;
    }
    if (s == NULL || !aim(s, found.extent, found.buffer)) {
        if (s != NULL)
            mcd_remote_drop(g, t, s);
        else if (error == MCS_OK)
            error = MCS_NO_MEMORY;
        /* it was good when it was checked */
        mcd_remote_finish(
            g, t, MCS_STATE_FAILED,
            error == MCS_NO_MEMORY || error == MCS_INVALID_ARGUMENT ? error : MCS_REVOKED, false);
        return NULL;
    }
    if (t->piece == n)
        mcd_lane_remove(t);
    return s;
}

bool mcd_remote_recut(struct mcd_engine *g, struct mcd_slice *s)
{
    struct mcd_task *t = s->task;
    const struct mcd_extent *e;

    e = s->s.op == MCT_NOTIFY ? NULL : mcd_remote_extent(t);
    if (!aim(s, e, NULL))
        goto revoked;
    if (s->s.op == MCT_NOTIFY)
        return true;
    if (e == NULL || s->local_offset > e->size || s->s.length > e->size - s->local_offset)
        goto revoked;
    s->s.local = e->map + s->local_offset;
    return true;

revoked:
    mcd_remote_drop(g, t, s);
    mcd_remote_finish(g, t, MCS_STATE_FAILED, MCS_REVOKED, false);
    return false;
}

void mcd_remote_posting(struct mcd_engine *g, struct mcd_slice *s)
{
    struct mcd_task *t = s->task;
    const struct mcd_route_rail *rr = &t->lane->route->rails[s->rail];

    MCS_FAILPOINT(slice_post);
    if (!t->carried) {
        t->tier = rr->tier;
        t->path = rr->ops->path;
    }
    s->out = true;
    s->asked = false;
    if (t->started != 0)
        return;
    t->started = g->net->ticks;
    t->queue_ns = mcd_clip32(t->queue_ns + mcd_ticks_to_ns(g, t->started - t->taken));
    if (t->leg != NULL)
        return;
    mcs_slot_complete(&t->q->shm, t->desc.slot,
                      MCS_SLOT_WORD(t->desc.generation, MCS_OK, t->path, MCS_STATE_PENDING), 0,
                      t->queue_ns, 0, 0);
}
