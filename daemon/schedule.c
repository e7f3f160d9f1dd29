/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which slice goes next, and on which rail.
 *
 * Rails of the best tier that has one which works go alone: what others carry is counted, and never what asked for the
 * best or nothing (MCS_DESC_STRICT).
 *
 * Next: what is to be sent again before others of its class, then the lanes by their shares.  Where: the rail that is
 * predicted to be through first.  When that one's window is full, another may take the slice only if it
 * is through with it before everything that waits could be: so a rail of a tenth of the speed gets a
 * tenth of the bytes, and the last slices of a burst never wait for it.
 */
#include <stddef.h>

#include "log.h"
#include "net.h"
#include "stage.h"

#define BURST 256u  /* slices posted to one route a turn */
#define HELD 64u    /* looks a turn at slices that a quiesce holds */
#define STARVED 16u /* slices after which what is to be sent again goes before higher classes */
#define FAR_NODE 1.25
#define LOOKS 64u           /* slices of a list looked at for one that may be sent again */
#define CHECKS (512u << 10) /* bytes' worth of checks of pieces a turn */

bool mcd_route_works(const struct mcd_route *r)
{
    for (unsigned i = 0; i < r->nrails; i++)
        if (mcd_rail_works(&r->rails[i].rail) && (!r->o.best_only || r->rails[i].tier == r->best))
            return true;
    return false;
}

unsigned mcd_route_tier(const struct mcd_route *r, uint32_t unfit, bool strict, uint64_t now)
{
    unsigned tier = MCD_NO_TIER;
    bool coming = false;

    for (unsigned i = 0; i < r->nrails; i++) {
        const struct mcd_route_rail *rr = &r->rails[i];
        const struct mcd_rail *rail = &rr->rail;

        if ((unfit >> i & 1) != 0)
            continue;
        if (mcd_rail_works(rail))
            tier = rr->tier < tier ? rr->tier : tier;
        else
            coming =
                coming || (rr->tier == r->best && rail->usable && rail->reason == MCD_RAIL_NEW);
    }
    if (tier != r->best &&
        (strict || r->o.best_only || (coming && now - r->attached_at < MCD_NEW_NS)))
        return MCD_NO_TIER;
    return tier;
}

/* How long everything that waits or is under way takes all rails of a tier together, ns. */
static double drain_time(const struct mcd_route *r, unsigned tier, uint64_t now)
{
    double bytes = (double)r->waiting, rate = 0;

    for (unsigned i = 0; i < r->nrails; i++) {
        const struct mcd_rail *rail = &r->rails[i].rail;

        if (r->rails[i].tier != tier)
            continue;
        bytes += (double)rail->queued;
        if (mcd_rail_works(rail))
            rate += mcd_rail_rate(rail, now);
    }
    return bytes / rate;
}

/* May it carry that, so far as tier and registrations go? */
static bool fits(const struct mcd_route *r, unsigned rail, unsigned tier, uint32_t unfit)
{
    return r->rails[rail].tier == tier && (unfit >> rail & 1) == 0 &&
           mcd_rail_works(&r->rails[rail].rail);
}

struct mcd_route_rail *mcd_schedule_rail(struct mcd_route *r, struct mcd_wish *w, uint64_t now)
{
    struct mcd_route_rail *best = NULL, *roomy = NULL, *look = NULL;
    unsigned working = 0, tier = mcd_route_tier(r, w->unfit, w->strict, now);
    double best_finish = 0, roomy_finish = 0;
    uint64_t whole = w->length;

    for (unsigned i = 0; i < r->nrails; i++)
        working += fits(r, i, tier, w->unfit);
    for (unsigned i = 0; i < r->nrails; i++) {
        struct mcd_route_rail *rr = &r->rails[i];
        struct mcd_rail *rail = &rr->rail;
        uint64_t part;
        double finish;

        if (!fits(r, i, tier, w->unfit) || (working > 1 && (int)i == w->avoid))
            continue;
        if (working > 1 && rail->room == 0)
            continue; /* its link took nothing at all; until the next tick others may */
        part = mcd_rail_slice(rail, now);
        part = part < whole ? part : whole;
        finish = mcd_rail_finish(rail, part, now);
        /* The way between two sockets is assumed to cost so much that a device of the memory's own node goes
         * before one of another node that would be through a quarter sooner. */
        if (w->node >= 0 && rr->node >= 0 && w->node != rr->node)
            finish *= FAR_NODE;
        if (best == NULL || finish < best_finish ||
            (finish <= best_finish && rail->rank < best->rail.rank)) {
            best = rr;
            best_finish = finish;
        }
        if (!mcd_rail_has_room(rail, part, now))
            continue;
        if (working > 1 && look == NULL && mcd_rail_wants_look(rail, now))
            look = rr;
        if (roomy == NULL || finish < roomy_finish) {
            roomy = rr;
            roomy_finish = finish;
        }
    }
    if (look != NULL)
        best = look;
    else if (roomy != best && (roomy == NULL || roomy_finish > drain_time(r, tier, now)))
        return NULL;
    else
        best = roomy;
    if (best == NULL)
        return NULL;
    whole = mcd_rail_slice(&best->rail, now);
    if (whole < w->length)
        w->length = whole;
    return best;
}

/*
 * The next task that can go, by the shares of the lanes, and its class; NULL: none. Lanes that cannot go now are left
 * out, and save nothing up. *check: what may be spent on checks.
 */
static struct mcd_task *next_task(struct mcd_engine *g, struct mcd_route *r, bool hold,
                                  uint64_t *check, unsigned *class)
{
    struct mcd_share_leaf *leaf;

    while ((leaf = mcd_share_pick(&r->shares, g->net->ticks, class)) != NULL) {
        struct mcd_lane *l = (struct mcd_lane *)((char *)leaf - offsetof(struct mcd_lane, leaf));
        struct mcd_task *t = mcd_remote_next(g, l, *class, hold, check);

        if (t != NULL || *check == 0)
            return t;
        if ((leaf->share.ready >> *class & 1) != 0)
            mcd_lane_stick(l, *class);
    }
    return NULL;
}

static void charge(struct mcd_engine *g, struct mcd_lane *l, unsigned class, uint64_t length)
{
    mcd_share_charge(&l->route->shares, &l->leaf, class,
                     length > MCD_PIECE_COST ? length : MCD_PIECE_COST, g->net->ticks);
}

static void count_fallback(struct mcd_engine *g, struct mcd_route *r,
                           const struct mcd_route_rail *rr, unsigned slices, uint64_t bytes)
{
    mcs_count(&g->counters.fallback_slices, slices);
    mcs_count(&g->counters.fallback_bytes, bytes);
    if (!r->fallen)
        mcd_log_limited(MCD_LOG_WARNING,
                        "engine %u, peer %s: %s carries what no faster rail can now", g->o.id,
                        r->o.peer, rr->ops->name);
    r->fallen = true;
}

/* Gives the transport what was gathered; what it does not take is to be sent again. */
static void flush(struct mcd_engine *g, struct mcd_route *r, struct mcd_route_rail *rr)
{
    unsigned n = rr->ngather, taken;
    uint64_t bytes = 0;

    if (n == 0)
        return;
    rr->ngather = 0;
    for (unsigned i = 0; i < n; i++) /* before they are the transport's */
        bytes += rr->gather[i]->length;
    taken = rr->ops->post(rr->link, rr->gather, n);
    for (unsigned i = n; i-- > taken;) {
        struct mcd_slice *s = rr->gather[i]->owner;

        bytes -= s->s.length;
        mcd_rail_returned(&rr->rail, s->s.length, g->net->now);
        s->out = false;
        mcd_slice_list_prepend(&r->again[s->class][s->s.op != MCT_READ], s);
        r->waiting += s->s.length;
    }
    if (taken < n)
        rr->rail.room = rr->rail.out;
    if (taken != 0 && rr->tier != r->best)
        count_fallback(g, r, rr, taken, bytes);
}

static void gather(struct mcd_engine *g, struct mcd_route *r, struct mcd_route_rail *rr,
                   struct mcd_slice *s)
{
    unsigned index = (unsigned)(rr - r->rails);

    if (s->failed && s->rail != index) {
        mcs_store_relaxed(&r->moved_over, r->moved_over + 1);
        mcs_count(&g->counters.moved_over, 1);
    }
    s->failed = false;
    s->rail = (uint8_t)index;
    s->posted = g->net->now;
    s->s.settled = true;
    s->s.conn = 0;
    s->s.status = MCS_OK;
    mcd_remote_posting(g, s);
    mcd_rail_posted(&rr->rail, s->s.length, g->net->now);
    rr->gather[rr->ngather++] = &s->s;
    if (rr->ngather == MCD_GATHER)
        flush(g, r, rr);
}

static bool is_strict(const struct mcd_task *t)
{
    return (t->desc.flags & MCS_DESC_STRICT) != 0;
}

/* Has it what it waits for: a description that was asked for, a rail that may carry it? */
static bool may_go(const struct mcd_route *r, struct mcd_slice *s, uint64_t now)
{
    unsigned tier;

    if (s->awaits && !mcd_remote_is_fresh(s))
        return false;
    s->awaits = false;
    if (s->hungry && !mcd_stage_may_get(r->o.engine, MCD_STAGE_OUT))
        return false;
    tier = mcd_route_tier(r, s->unfit, is_strict(s->task), now);
    return tier != MCD_NO_TIER && (r->full >> tier & 1) == 0;
}

/* Do all rails of a tier reach memory of GPUs? */
static bool reaches_gpus(const struct mcd_route *r, unsigned tier)
{
    for (unsigned i = 0; i < r->nrails; i++)
        if (r->rails[i].tier == tier && (r->rails[i].ops->capabilities & MCT_CAP_GPU_MEMORY) == 0)
            return false;
    return true;
}

bool mcd_schedule_may_cut(const struct mcd_route *r, const struct mcd_task *t, uint64_t now)
{
    unsigned tier;

    /* it would only wait for a stage */
    if (t->on_gpu && r->o.engine->stages != NULL &&
        !mcd_stage_may_get(r->o.engine, MCD_STAGE_OUT) && t->phase == MCD_MOVE &&
        !reaches_gpus(r, mcd_route_tier(r, t->unfit, is_strict(t), now)))
        return false;
    if (t->unfit == 0 || t->phase != MCD_MOVE)
        return true;
    tier = mcd_route_tier(r, t->unfit, is_strict(t), now);
    return tier == MCD_NO_TIER ? t->nslices == 0 : (r->full >> tier & 1) == 0;
}

/* The first slice that is to be sent again, of the highest class; NULL: none can be. */
static struct mcd_slice *again_slice(struct mcd_route *r, bool hold, uint64_t now)
{
    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++)
        for (unsigned w = 0; w < (hold ? 1u : 2u); w++) {
            struct mcd_slice *s = r->again[c][w].head;

            for (unsigned i = 0; s != NULL && i < LOOKS; i++, s = s->again_next)
                if (may_go(r, s, now))
                    return s;
            /* those behind get their look, too: what waits for a better rail holds up nobody */
            for (unsigned i = 0; s != NULL && i < LOOKS; i++) {
                struct mcd_slice *first = r->again[c][w].head;

                mcd_slice_list_remove(&r->again[c][w], first);
                mcd_slice_list_append(&r->again[c][w], first);
            }
        }
    return NULL;
}

bool mcd_schedule(struct mcd_engine *g, struct mcd_route *r)
{
    uint64_t check = CHECKS, now = g->net->now;
    bool hold = r->nunsettled != 0, any = false;
    unsigned n = 0, held = 0;

    if (!r->attached || r->detached || r->verdict != MCS_OK)
        return false;
    if (hold)
        mcd_route_ask_kills(g, r);
    r->hold_strict = mcd_route_tier(r, 0, true, now) == MCD_NO_TIER;
    r->full = 0;
    r->shares.turn++;
    mcd_lanes_loosen(r);
    while (n < BURST) {
        struct mcd_slice *s = again_slice(r, hold, now);
        unsigned class = MCS_CLASS_COUNT;
        struct mcd_task *t = check == 0 ? NULL : next_task(g, r, hold, &check, &class);
        struct mcd_route_rail *rr;
        struct mcd_wish wish = {.avoid = -1, .node = -1};

        if (check == 0) { /* what was cut already goes on */
            mcd_route_dirty(g->net, r);
            any = true;
        }
        if (t == NULL && s == NULL)
            break;
        /* what has gone before goes again before others of its class, but not before higher ones, nor never */
        if (s != NULL && t != NULL && s->class > class && r->passed < STARVED) {
            r->passed++;
            s = NULL;
        }
        if (s != NULL) {
            wish.length = s->s.length;
            wish.avoid = s->failed ? s->rail : -1;
            wish.unfit = s->unfit;
            wish.strict = is_strict(s->task);
            wish.node = s->task->node;
            rr = mcd_schedule_rail(r, &wish, now);
            if (rr == NULL) {
                unsigned tier = mcd_route_tier(r, wish.unfit, wish.strict, now);

                if (tier == mcd_route_tier(r, 0, false, now))
                    break;
                r->full |= 1u << tier; /* it waits, and holds up nobody on better rails */
                continue;
            }
            r->passed = 0;
            class = s->class;
            mcd_slice_list_remove(&r->again[class][s->s.op != MCT_READ], s);
            r->waiting -= s->s.length;
            if (!mcd_remote_recut(g, s))
                continue;
        } else {
            struct mcd_lane *l = t->lane;

            wish.length = mcd_remote_want(t);
            wish.strict = is_strict(t);
            wish.node = t->node;
            rr = mcd_schedule_rail(r, &wish, now);
            if (rr == NULL)
                break;
            s = mcd_remote_cut(g, t, wish.length);
            if (s == NULL)
                continue;
            charge(g, l, class, s->s.length);
        }
        if (g->calls != NULL && mcd_net_holds(g, s)) {
            mcd_slice_list_append(&r->again[class][s->s.op != MCT_READ], s);
            r->waiting += s->s.length;
            mcd_route_dirty(g->net, r);
            if (++held == HELD)
                break;
            continue;
        }
        if ((s->s.gpu || s->far_gpu) && !mcd_remote_stage(g, s, rr)) {
            any = true;
            continue;
        }
        gather(g, r, rr, s);
        any = true;
        n++;
    }
    for (unsigned i = 0; i < r->nrails; i++)
        flush(g, r, &r->rails[i]);
    if (n == BURST)
        mcd_route_dirty(g->net, r);
    return any;
}
