/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Initiator: slices whose local end is in a GPU's memory, on rails that do not reach it.
 *
 *   WRITE   cut --> copied into a stage --> again list --> posted from there --> answered
 *   READ    cut --> posted into a stage --> answered --> copied to its place
 *
 * While it is copied a slice is `out` as it is while a transport has it, and `copying`.  So while some slices are on the
 * wire others are copied, as far as the stages reach; and a task that is ending waits for its copies, and begins none.
 */
#include "log.h"
#include "net.h"
#include "remote_task.h"
#include "stage.h"

static void count(struct mcd_engine *g, const struct mcd_slice *s)
{
    struct mcd_route *r = s->task->lane->route;

    mcs_count(&g->counters.gpu_staged_out, 1);
    mcs_count(&g->counters.gpu_staged_out_bytes, s->s.length);
    if (r->staged)
        return;
    r->staged = true;
    mcd_info("engine %u, peer %s: no transport there reaches GPU memory itself: it is staged "
             "through host memory",
             g->o.id, r->o.peer);
}

static void fail(struct mcd_engine *g, struct mcd_slice *s, enum mcs_status error)
{
    struct mcd_task *t = s->task;

    mcd_remote_drop(g, t, s);
    if (t->ending)
        mcd_remote_try_end(g, t);
    else
        mcd_remote_finish(g, t, MCS_STATE_FAILED, error, false);
}

static void copied(struct mcd_engine *g, struct mcd_gpu_job *j)
{
    struct mcd_stage *stage = j->context;
    struct mcd_slice *s = stage->slice;
    struct mcd_task *t = s->task;

    stage->moving = false;
    s->out = s->copying = false;
    if (j->job.status != MCS_OK) {
        fail(g, s, j->job.status);
    } else if (s->s.op == MCT_READ) {
        mcd_remote_through(g, s);
    } else if (t->ending) {
        mcd_remote_drop(g, t, s);
        mcd_remote_try_end(g, t);
    } else {
        s->filled = true;
        mcd_remote_again(g, s);
    }
}

static void copy(struct mcd_engine *g, struct mcd_slice *s, const struct mcd_extent *e)
{
    s->out = s->copying = true;
    mcd_stage_move(g, s->stage, s->s.op == MCT_READ, e->gpu_device, e->map + s->local_offset,
                   s->s.length, copied);
}

bool mcd_remote_stage(struct mcd_engine *g, struct mcd_slice *s, const struct mcd_route_rail *rr)
{
    struct mcd_task *t = s->task;
    const struct mcd_extent *e = mcd_remote_extent(t);
    enum mcs_status error = MCS_OK;

    if ((rr->ops->capabilities & MCT_CAP_GPU_MEMORY) != 0) {
        mcd_remote_unstage(g, s);
        return true;
    }
    if ((t->desc.flags & MCS_DESC_STRICT) != 0) {
        fail(g, s, MCS_STRICT);
        return false;
    }
    if (!s->s.gpu) /* the peer sees to its own */
        return true;
    if (e == NULL || e->gpu == NULL) /* it was there a moment ago */
        error = MCS_REVOKED;
    else if (g->stages == NULL)
        error = MCS_NOT_SUPPORTED;
    else if (s->s.length > g->stages->size / MCD_STAGE_HALVES)
        error = MCS_LIMIT;
    if (error != MCS_OK) {
        fail(g, s, error);
        return false;
    }
    if (s->stage == NULL) {
        s->stage = mcd_stage_get(g, MCD_STAGE_OUT, s->s.length);
        s->hungry = s->stage == NULL;
        if (s->hungry) {
            mcd_remote_again(g, s);
            return false;
        }
        s->stage->slice = s;
        count(g, s);
    }
    if (s->s.op == MCT_WRITE && !s->filled) {
        copy(g, s, e);
        return false;
    }
    s->s.local = s->stage->s.memory;
    s->s.gpu = false;
    s->s.registration = NULL;
    return true;
}

void mcd_remote_unstage(struct mcd_engine *g, struct mcd_slice *s)
{
    if (s->stage != NULL)
        mcd_stage_put(g, s->stage);
    s->stage = NULL;
    s->filled = s->hungry = false;
}

void mcd_remote_land(struct mcd_engine *g, struct mcd_slice *s)
{
    struct mcd_task *t = s->task;
    const struct mcd_extent *e = mcd_remote_extent(t);

    if (t->ending) { /* its destination is not written any more */
        mcd_remote_drop(g, t, s);
        mcd_remote_try_end(g, t);
        return;
    }
    if (e == NULL || e->gpu == NULL || s->local_offset > e->size ||
        s->s.length > e->size - s->local_offset) {
        fail(g, s, MCS_REVOKED);
        return;
    }
    s->s.local = e->map + s->local_offset;
    if (g->calls != NULL && mcd_net_holds(g, s))
        mcd_remote_again(g, s); /* it is read anew when that memory is still there then */
    else
        copy(g, s, e);
}
