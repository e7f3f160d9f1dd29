/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a task to another host when one of its slices has come back. */
#include <errno.h>

#include "net.h"
#include "remote_task.h"
#include "session.h"
#include "shm/failpoint.h"

/* ---- back ------------------------------------------------------------------------ */

void mcd_remote_again(struct mcd_engine *g, struct mcd_slice *s)
{
    struct mcd_route *r = s->task->lane->route;

    MCS_FAILPOINT(slice_again);
    mcd_slice_list_append(&r->again[s->class][mcd_slice_writes(s)], s);
    r->waiting += s->s.length;
    mcd_route_dirty(g->net, r);
}

/* All that was cut is through: on to the next phase. */
static void advance(struct mcd_engine *g, struct mcd_task *t)
{
    if (t->ending) {
        mcd_remote_try_end(g, t);
        return;
    }
    if (t->nslices != 0 || t->list != MCD_UNLISTED || t->inbox_full || t->awaits)
        return;
    if (t->phase == MCD_MOVE) {
        t->moved_at = g->net->ticks;
        if (mcd_task_notifies(t)) {
            t->phase = MCD_DELIVER;
            mcd_lane_add(t, true);
            mcd_route_dirty(g->net, t->lane->route);
            return;
        }
    }
    mcd_remote_end(g, t, MCS_STATE_COMPLETED, MCS_OK);
}

void mcd_remote_through(struct mcd_engine *g, struct mcd_slice *s)
{
    struct mcd_task *t = s->task;
    struct mcd_route *r = t->lane->route;
    const struct mcd_route_rail *rr = &r->rails[s->rail];
    unsigned damaged_on = s->damaged_on;

    if (!t->carried || rr->tier > t->tier) {
        t->tier = rr->tier;
        t->path = rr->ops->path;
    }
    t->carried = true;
    if (s->s.op != MCT_NOTIFY)
        t->bytes += s->s.length;
    else if (t->moved_at == 0)
        t->moved_at = t->started;
    mcd_remote_drop(g, t, s);
    advance(g, t);
    /* what arrives damaged everywhere was changed by its owner: no rail is blamed for that */
    if (damaged_on != 0 && mcd_rail_damaged(&r->rails[damaged_on - 1].rail)) {
        mcd_rail_suspect(&r->rails[damaged_on - 1].rail, MCD_RAIL_CHECKSUMS, g->net->now);
        mcd_route_abort(g, r, damaged_on - 1, -EBADMSG);
    }
}

/* Its connection was lost. */
static void lost(struct mcd_engine *g, struct mcd_task *t, struct mcd_slice *s)
{
    bool open = mcd_slice_writes(s) && s->s.conn != 0 && !s->s.settled;
    struct mcd_route *r = t->lane->route;

    s->s.settled = !open;
    if (open &&
        ((r->rails[s->rail].ops->capabilities & (MCT_CAP_KILL | MCT_CAP_KILL_BY_AGENT)) == 0 ||
         !mcd_route_unsettled(r, s->rail, s->s.conn))) {
        /* nothing can settle it: not sent again, and said */
        t->unsettled = true;
        mcd_remote_drop(g, t, s);
        mcd_remote_finish(g, t, MCS_STATE_FAILED, MCS_RAIL, false);
        return;
    }
    if (s->s.op == MCT_NOTIFY && open)
        s->s.remote_address |= MCD_NOTICE_AGAIN;
    if (t->ending && (s->s.settled || t->hurried)) {
        t->unsettled = t->unsettled || open;
        mcd_remote_drop(g, t, s);
        mcd_remote_try_end(g, t);
        return;
    }
    mcd_remote_again(g, s);
}

/* Called back: by this task's end, or since the memory is being taken away. */
static void canceled(struct mcd_engine *g, struct mcd_task *t, struct mcd_slice *s)
{
    bool open = mcd_slice_writes(s) && s->s.conn != 0 && !s->s.settled;
    struct mcd_route *r = t->lane->route;
    uint64_t can = r->rails[s->rail].ops->capabilities;

    if (!t->ending && !open) {
        mcd_remote_again(g, s); /* if the memory is still there */
        return;
    }
    /* Its connection ends, so that nothing written later over another one is overtaken; where it is the
     * only one, order does the same. A queue pair ends by itself, but for notifications: there WRITEs wait for its end
     * since mcd_route_doubt() said so, whatever has become of the other ways. */
    if (open &&
        ((can & MCT_CAP_KILL) != 0 ? mcd_route_has_ways(r)
                                   : (can & MCT_CAP_KILL_BY_AGENT) != 0 && s->s.op == MCT_NOTIFY &&
                                         mcd_route_is_unsettled(r, s->s.conn)))
        mcd_route_abort(g, r, s->rail, -ECANCELED);
    t->unsettled = t->unsettled || open;
    mcd_remote_drop(g, t, s);
    if (t->ending)
        mcd_remote_try_end(g, t);
    else
        mcd_remote_finish(g, t, MCS_STATE_FAILED, MCS_REVOKED, false);
}

/* Is there any rail, working or not, that it may go over? */
static bool has_rail(const struct mcd_route *r, const struct mcd_slice *s)
{
    bool best = (s->task->desc.flags & MCS_DESC_STRICT) != 0 || r->o.best_only;

    for (unsigned i = 0; i < r->nrails; i++)
        if ((s->unfit >> i & 1) == 0 && (!best || r->rails[i].tier == r->best))
            return true;
    return false;
}

/*
 * An end of it is not registered with the rail's device, or only in more pieces than that takes; or the peer's device has refused key or range; nothing has landed.
 * Without registration: another rail, or a slower transport.  Refused: what is known of the buffer may be old, since its
 * owner has cut it and registered it anew; so once more by a fresh description. Refused again: a transport whose target
 * looks at the request itself carries it or says what is wrong with it. True: it is sent again.
 */
static bool elsewhere(struct mcd_engine *g, struct mcd_task *t, struct mcd_slice *s)
{
    struct mcd_route *r = t->lane->route;

    if ((r->rails[s->rail].ops->capabilities & MCT_CAP_REGISTERED) == 0)
        return false;
    if (s->s.status != MCS_ACCESS) {
        s->unfit |= UINT32_C(1) << s->rail;
    } else if (s->denied++ == 0) {
        mcd_remote_want_fresh(g, s);
    } else {
        for (unsigned i = 0; i < r->nrails; i++)
            if ((r->rails[i].ops->capabilities & MCT_CAP_REGISTERED) != 0)
                s->unfit |= UINT32_C(1) << i;
        /* nobody else can be asked: the owner has taken it back, or it is not its peer's business */
        if (mcd_route_tier(r, s->unfit, (t->desc.flags & MCS_DESC_STRICT) != 0, g->net->now) ==
            MCD_NO_TIER) {
            s->s.status = MCS_REVOKED;
            return false;
        }
    }
    if (!has_rail(r, s))
        return false;
    t->unfit |= s->unfit;
    mcd_remote_again(g, s);
    return true;
}

void mcd_remote_back(struct mcd_engine *g, struct mcd_slice *s)
{
    struct mcd_task *t = s->task;
    struct mcd_route *r = t->lane->route;
    struct mcd_route_rail *rr = &r->rails[s->rail];
    const struct mcd_segment *seg;

    MCS_FAILPOINT(slice_back);
    s->out = s->back = false;
    mcd_route_dirty(g->net, r);
    if (s->s.status == MCS_OK) {
        mcd_rail_answered(&rr->rail, s->s.length, s->posted, g->net->now);
        mcs_store_relaxed(&rr->bytes, rr->bytes + s->s.length);
        mcs_store_relaxed(&rr->slices, rr->slices + 1);
        if (s->stage != NULL && s->s.op == MCT_READ)
            mcd_remote_land(g, s);
        else
            mcd_remote_through(g, s);
        return;
    }
    mcd_rail_returned(&rr->rail, s->s.length, g->net->now);
    switch (s->s.status) {
    case MCS_RAIL:
        s->failed = true;
        mcs_store_relaxed(&rr->failed, rr->failed + 1);
        lost(g, t, s);
        return;
    case MCS_CANCELED:
        canceled(g, t, s);
        return;
    case MCS_CHECKSUM:
        s->failed = true;
        mcs_store_relaxed(&rr->failed, rr->failed + 1);
        s->damaged_on = (uint8_t)(s->rail + 1);
        s->s.settled = true; /* answered */
        if (!t->ending && ++s->damages < MCD_DAMAGES) {
            mcd_remote_again(g, s);
            return;
        }
        break;
    case MCS_NOT_REGISTERED:
    case MCS_ACCESS:
    case MCS_LIMIT:
        if (!t->ending && elsewhere(g, t, s))
            return;
        break;
    case MCS_INBOX_FULL:
        if (t->ending || s->s.op != MCT_NOTIFY)
            break;
        mcd_remote_drop(g, t, s);
        t->error = MCS_INBOX_FULL;
        t->inbox_full = true;
        mcd_remote_arm(g, t, MCD_AGAIN_US << t->fulls);
        if (t->fulls < MCD_AGAIN_DOUBLES)
            t->fulls++;
        return;
    case MCS_STALE:
    case MCS_INVALID_HANDLE:
        /* the peer has forgotten what was opened there, and it is open again by now */
        seg = mcd_remote_segment(t);
        if (!t->ending && seg != NULL && seg->remote != NULL &&
            mcs_load_relaxed(&seg->remote->export_index) != s->s.remote_export) {
            mcd_remote_again(g, s);
            return;
        }
        break;
    default:
        break;
    }
    {
        enum mcs_status error =
            s->s.status < MCS_STATUS_COUNT ? (enum mcs_status)s->s.status : MCS_PROTOCOL;

        t->unsettled = t->unsettled || (mcd_slice_writes(s) && s->s.conn != 0 && !s->s.settled);
        mcd_remote_drop(g, t, s);
        if (t->ending)
            mcd_remote_try_end(g, t);
        else
            mcd_remote_refuse(g, t, error);
    }
}

void mcd_remote_settled(struct mcd_engine *g, struct mcd_slice *s)
{
    struct mcd_task *t = s->task;

    s->s.settled = true;
    if (!t->ending)
        return;
    mcd_remote_drop_again(g, t, s);
    mcd_remote_try_end(g, t);
}
