/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET and HOLD: what is here is pinned, copied or held, and unpinned; what is not is left to object_far.c.
 *
 *   fill --> pin all that is here --> copy each --> those that came from disk --> what is elsewhere --> results
 *
 * Here are the bytes of PUT, too, but for those of GPU memory (object_gpu.c).
 */
#include <string.h>

#include "fault.h"
#include "object_work.h"
#include "session.h"
#include "shm/failpoint.h"

#define GROUP 16u             /* slices posted together */
#define SUM_SLICE (32u << 10) /* bytes that are summed while the cache has them */
#define PIECE_COST 128u

/* ---- bytes ------------------------------------------------------------------------------- */

struct copy {
    struct mct_slice slices[GROUP], *posted[GROUP];
    unsigned n;
};

static bool in_ranges(const struct mcd_object *r)
{
    return (r->args.flags & MCS_OBJECT_RANGES) != 0;
}

static bool copied(const struct mcd_object *r, const struct mcd_item *it)
{
    return in_ranges(r) ? it->piece >= it->pieces : it->done >= it->view.size;
}

/* What comes next of a key, as far as one piece goes. The pieces may be others than when they were measured. */
static enum mcs_status next_part(const struct mcd_object *r, const struct mcd_item *it,
                                 struct mcd_object_part *out)
{
    struct mcs_object_piece p;
    enum mcs_status error;

    if (it->piece >= it->pieces)
        return MCS_BAD_RANGE;
    error = mcd_object_piece(r, it, it->piece, &p, &out->extent);
    if (error != MCS_OK)
        return error;
    if (it->piece_done >= p.length)
        return MCS_BAD_RANGE;
    out->handle = p.extent;
    out->local = p.local + it->piece_done;
    out->rest = out->length = p.length - it->piece_done;
    out->at = it->done;
    if (in_ranges(r)) {
        if (p.offset > it->view.size || p.length > it->view.size - p.offset)
            return MCS_BAD_RANGE;
        out->at = p.offset + it->piece_done;
    } else if (out->length > it->view.size - out->at) {
        out->length = it->view.size - out->at;
    }
    return MCS_OK;
}

/* So much of it is done. */
static void step(struct mcd_item *it, const struct mcd_object_part *p, uint64_t n)
{
    it->done += n;
    it->piece_done += n;
    if (n == p->rest) {
        it->piece++;
        it->piece_done = 0;
    }
}

/* The next slice of a key; MCD_ON_GPU: *p is none for this process. */
static enum mcs_status cut(const struct mcd_object *r, struct mcd_item *it, bool put, uint64_t most,
                           struct mct_slice *s, struct mcd_object_part *p)
{
    enum mcs_status error = next_part(r, it, p);

    if (error != MCS_OK)
        return error;
    if (p->extent->gpu != NULL)
        return MCD_ON_GPU;
    s->op = put ? MCT_WRITE : MCT_READ;
    s->length = p->length < most ? p->length : most;
    s->local = p->extent->map + p->local;
    s->remote = it->view.data + p->at;
    step(it, p, s->length);
    return MCS_OK;
}

enum mcs_status mcd_object_copy(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                                bool put, bool sum, uint64_t *budget)
{
    /* summed after it was written: it is to stay in the cache */
    bool large = it->view.size >= mcs_load_relaxed(&g->o.stream_min) && !(put && sum);
    unsigned long faults = mcd_fault_count();
    enum mcs_status error = MCS_OK;
    struct mcd_object_part p;
    struct copy c;

    while (error == MCS_OK && !copied(r, it)) {
        if (*budget == 0)
            return faults != mcd_fault_count() ? MCS_MEMORY_FAULT : MCS_BUSY;
        for (c.n = 0; c.n < GROUP && *budget != 0 && !copied(r, it); c.n++) {
            struct mct_slice *s = &c.slices[c.n];
            uint64_t most = sum && *budget > SUM_SLICE ? SUM_SLICE : *budget;

            error = cut(r, it, put, most, s, &p);
            if (error != MCS_OK)
                break;
            s->large = large;
            s->pass = r->started + r->desc.slot;
            c.posted[c.n] = s;
            mcd_object_pay(budget, s->length > PIECE_COST ? s->length : PIECE_COST);
            g->moved += s->length;
            if (sum) { /* one by one */
                if (!put)
                    it->crc = mcd_object_sum(g, it->crc, s->remote, s->length);
                g->local_ops->post(g->local, &c.posted[c.n], 1);
                if (put)
                    it->crc = mcd_object_sum(g, it->crc, s->remote, s->length);
            }
        }
        if (!sum && c.n != 0)
            g->local_ops->post(g->local, c.posted, c.n);
        if (error == MCD_ON_GPU) { /* with a sum: it was host memory when it was measured */
            error = sum ? MCS_BAD_RANGE : mcd_object_gpu_add(g, r, it, put, &p);
            if (error == MCS_OK)
                step(it, &p, p.length);
            mcd_object_pay(budget, PIECE_COST);
        }
        if (put)
            MCS_FAILPOINT(object_part);
    }
    if (faults != mcd_fault_count()) {
        mcs_count(&g->counters.faults, 1);
        error = MCS_MEMORY_FAULT;
    }
    return error;
}

enum mcs_status mcd_object_sum_rest(struct mcd_engine *g, struct mcd_item *it, uint64_t *budget)
{
    while (it->done < it->view.size) {
        uint64_t n = it->view.size - it->done;

        if (*budget == 0)
            return MCS_BUSY;
        n = n < *budget ? n : *budget;
        it->crc = mcd_object_sum(g, it->crc, it->view.data + it->done, n);
        it->done += n;
        mcd_object_pay(budget, n);
    }
    return MCS_OK;
}

/* ---- one key ------------------------------------------------------------------------------- */

static bool is_hold(const struct mcd_object *r)
{
    return r->desc.op == MCS_OP_HOLD;
}

static bool verifies(const struct mcd_engine *g, const struct mcd_object *r,
                     const struct mcd_item *it)
{
    return it->view.summed &&
           ((r->args.flags & MCS_OBJECT_VERIFY) != 0 || g->o.store->verify == MCD_VERIFY_ALWAYS);
}

static void pin(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it, uint32_t i)
{
    uint64_t previous = i != 0 ? r->window->items[i - 1].key.hash : r->previous;
    struct mco_hint hint = mcd_object_hint(r, &it->key, r->next + i, previous);
    enum mcs_status res = mco_pin(g->o.store->objects, &it->key, &hint, r->now, &it->view);

    if (res != MCS_OK)
        it->view.object = NULL;
    if (res == MCS_OK) {
        it->state = MCD_ITEM_OPEN;
        it->verified = false;
        it->done = it->crc = 0;
        it->piece = 0;
        it->piece_done = 0;
        it->legs = 0;
        it->leg_error = MCS_OK;
        if (!is_hold(r) && it->view.data != NULL)
            __builtin_prefetch(it->view.data);
    } else if (res == MCS_BUSY) {
        it->state = MCD_ITEM_BUSY;
        it->from_disk = true;
        mcs_count(&g->counters.objects.space_waits, 1);
    } else if ((res == MCS_NOT_FOUND || res == MCS_CHECKSUM) && r->catalog && it->tries < 2) {
        it->state = MCD_ITEM_FAR;
    } else {
        mcd_object_end_item(it, res);
    }
}

/* False: the budget is used up. */
static bool measure(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it, uint32_t i,
                    uint64_t *budget)
{
    bool measures = !is_hold(r) && (!in_ranges(r) || mcd_object_may_gpu(r));
    enum mcs_status error = MCS_OK;

    if (it->state == MCD_ITEM_FRESH) {
        if (measures && !mcd_object_measure(r, it, budget, &error))
            return false;
        if (error != MCS_OK) {
            mcd_object_end_item(it, error);
            return true;
        }
        it->state = MCD_ITEM_MEASURED;
    }
    if (it->state == MCD_ITEM_MEASURED || it->state == MCD_ITEM_BUSY)
        pin(g, r, it, i);
    return true;
}

static void end_here(struct mcd_engine *g, struct mcd_item *it, enum mcs_status status)
{
    struct mco_store *s = g->o.store->objects;

    if (status == MCS_CHECKSUM) {
        mcs_count(&g->counters.objects.damaged, 1);
        mco_damaged(s, it->view.object);
    }
    mcd_object_end_item(it, status);
    it->result.size = it->view.size;
    it->result.version = mco_version_number(&it->view.version);
    it->result.crc = it->view.crc;
    it->result.tier = it->tries != 0  ? MCS_TIER_REMOTE /* it was brought here */
                      : it->from_disk ? MCS_TIER_DISK
                                      : MCS_TIER_MEMORY;
}

/* The whole object's checksum, before anything of it is given out. BUSY: the budget is used up. */
static enum mcs_status sum_first(struct mcd_engine *g, struct mcd_item *it, uint64_t *budget)
{
    enum mcs_status error = mcd_object_sum_rest(g, it, budget);

    return error == MCS_OK && it->crc != it->view.crc ? MCS_CHECKSUM : error;
}

static enum mcs_status hold(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it)
{
    struct mcd_holds *h = r->q->session->holds;
    uint64_t name =
        h == NULL ? 0 : mcd_hold_add(h, g->o.store->objects, &it->view, &it->key, false);

    if (name == 0)
        return MCS_LIMIT;
    end_here(g, it, MCS_OK);
    it->result.hold = name;
    it->result.path = g->local_ops->path;
    it->result.offset = it->view.offset;
    it->result.extent = it->view.extent;
    it->view.object = NULL; /* the hold's */
    MCS_FAILPOINT(object_held);
    return MCS_OK;
}

/* Nothing of it is under way any more. sums: of what was copied. */
static void end_given(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it, bool sums,
                      enum mcs_status error)
{
    if (error == MCS_OK && sums && it->crc != it->view.crc)
        error = MCS_CHECKSUM;
    if (error == MCS_OK) {
        r->bytes += it->done;
        it->result.path = it->gpu ? MCS_PATH_CUDA : g->local_ops->path;
    }
    end_here(g, it, error);
    mco_unpin(g->o.store->objects, it->view.object);
    it->view.object = NULL;
}

/* Bytes of one that is pinned. OK: it is over, or MOVING; BUSY: the budget is used up, or a leg has to be waited for; else the task
 * has failed. */
static enum mcs_status give(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                            uint64_t *budget)
{
    bool verify = verifies(g, r, it);
    bool first = verify && (is_hold(r) || in_ranges(r) || it->gpu);
    enum mcs_status error = (enum mcs_status)it->leg_error;

    if (error != MCS_OK) {
        /* a part of it has failed */
    } else if (!is_hold(r) && !in_ranges(r) && it->size < it->view.size) {
        error = MCS_TOO_SMALL;
    } else if (first && !it->verified) {
        error = sum_first(g, it, budget);
    }
    if (error == MCS_OK && first && !it->verified) {
        it->verified = true;
        it->done = 0;
    }
    if (error == MCS_OK && is_hold(r))
        error = hold(g, r, it);
    else if (error == MCS_OK)
        error = mcd_object_copy(g, r, it, false, verify && !first, budget);
    if (error == MCS_BUSY)
        return error;
    if (it->view.object == NULL) /* held */
        return MCS_OK;
    if (error == MCS_OK)
        error = (enum mcs_status)it->leg_error; /* of a leg that could not begin */
    if (it->legs != 0) {
        it->leg_error = (uint8_t)error;
        it->state = MCD_ITEM_MOVING;
    } else {
        end_given(g, r, it, verify && !first, error);
    }
    return error == MCS_MEMORY_FAULT ? error : MCS_OK;
}

/* ---- a window ------------------------------------------------------------------------------- */

static enum mcd_run give_all(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    struct mcd_window *w = r->window;
    bool busy = false, moving = false;

    for (uint32_t i = 0; i < w->n; i++)
        if (w->items[i].state <= MCD_ITEM_BUSY && !measure(g, r, &w->items[i], i, budget))
            return MCD_RUN_MORE;
    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];
        enum mcs_status error;

        busy = busy || it->state == MCD_ITEM_BUSY;
        if (it->state == MCD_ITEM_MOVING && it->legs == 0)
            end_given(g, r, it, false, (enum mcs_status)it->leg_error);
        error = it->state == MCD_ITEM_OPEN ? give(g, r, it, budget) : MCS_OK;
        if (error == MCS_BUSY)
            return MCD_RUN_MORE;
        if (error != MCS_OK) {
            r->error = (uint16_t)error;
            return MCD_RUN_FAILED;
        }
        moving = moving || it->state == MCD_ITEM_MOVING;
    }
    return moving ? MCD_RUN_WAIT : busy ? MCD_RUN_SPACE : MCD_RUN_DONE;
}

static bool any_in(const struct mcd_window *w, enum mcd_item_state state)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->items[i].state == state)
            return true;
    return false;
}

enum mcd_run mcd_object_get(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    struct mcd_window *w = r->window;
    enum mcd_run run;

    for (;;) {
        switch (r->step) {
        case MCD_STEP_FILL:
            if (r->next == r->args.count)
                return MCD_RUN_DONE;
            if (*budget < MCD_KEY_COST)
                return MCD_RUN_MORE;
            mcd_object_fill(r, w, budget);
            r->step = MCD_STEP_WORK;
            break;
        case MCD_STEP_WORK:
            run = mcd_object_gpu_go(g, r, give_all(g, r, budget));
            if (run != MCD_RUN_DONE)
                return run;
            r->step = any_in(w, MCD_ITEM_FAR) ? MCD_STEP_ASK : MCD_STEP_SHOW;
            break;
        case MCD_STEP_SHOW:
            mcd_object_show(g, r, w);
            r->previous = w->items[w->n - 1].key.hash;
            r->next += w->n;
            r->step = MCD_STEP_FILL;
            break;
        default:
            run = mcd_object_fetch(g, r, budget);
            if (run != MCD_RUN_DONE)
                return run;
            /* what was brought here is pinned now; then what is left elsewhere is asked for */
            r->step = any_in(w, MCD_ITEM_MEASURED) || any_in(w, MCD_ITEM_FAR) ? MCD_STEP_WORK
                                                                              : MCD_STEP_SHOW;
            break;
        }
    }
}
