/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of other hosts: the catalog finds and leases them, legs read them into the caller's memory; several small ones from
 * one host are one leg.  What is to be held in place, or to go to GPU memory, is brought here first.
 *
 *   FAR --FIND--> FOUND --> LEG --> READ --lease, checksum--> DONE
 *    ^                               |
 *    '--------- once more <----------'
 */
#include <errno.h>
#include <string.h>

#include "fault.h"
#include "object_work.h"
#include "session.h"

#define LONG_LEASE_MS 60000u /* of a second try */
#define TRIES 2u             /* reads of a key from other hosts */
#define PIECE_COST 128u
#define SUM_SLICE (256u << 10)

uint64_t mcd_now_ns(void);

static bool in_ranges(const struct mcd_object *r)
{
    return (r->args.flags & MCS_OBJECT_RANGES) != 0;
}

/* ---- the question --------------------------------------------------------------------------- */

static bool is_pulled(const struct mcd_object *r, const struct mcd_item *it)
{
    return r->desc.op == MCS_OP_HOLD || it->gpu;
}

/* As many as one question is for: what is to be brought here, or what is to be found; the others are asked for after them. */
static void ask_places(struct mcd_object *r, struct mcd_window *w)
{
    bool pulled = false;

    w->ask = (struct mcd_ask){.flags = r->args.flags, .tenant = r->tenant};
    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];

        it->asked = -1;
        if (it->state != MCD_ITEM_FAR)
            continue;
        if (w->ask.n == 0)
            pulled = is_pulled(r, it);
        if (is_pulled(r, it) != pulled)
            continue;
        it->asked = (int16_t)w->ask.n;
        if (it->tries++ != 0) /* the holder's own lease was too short, perhaps */
            w->ask.lease_ms = LONG_LEASE_MS;
        w->asked[w->ask.n++] =
            (struct mcd_ask_key){.key = it->key, .avoid = it->avoid, .damaged = it->damaged};
    }
    w->ask.kind = pulled ? MCD_ASK_PULL : MCD_ASK_FIND;
}

/* Where its own catalog says that it is. */
static void take_place(struct mcd_object *r, struct mcd_item *it, const struct mcd_ask_key *k)
{
    if (k->status == MCS_EXISTS) {
        it->state = MCD_ITEM_MEASURED; /* as one that was here from the start */
        return;
    }
    if (k->status != MCS_OK) {
        /* its holder may have dropped it meanwhile because of that */
        bool dropped = it->damaged && k->status == MCS_NOT_FOUND;
        /* larger than this host's store: no range of the caller's */
        bool large = r->desc.op == MCS_OP_GET && is_pulled(r, it) && k->status == MCS_BAD_RANGE;

        mcd_object_end_item(it, dropped ? MCS_CHECKSUM
                                : large ? MCS_NO_SPACE
                                        : (enum mcs_status)k->status);
        return;
    }
    if (is_pulled(r, it)) {
        it->state = MCD_ITEM_MEASURED; /* it is here now: pinned as any other */
        return;
    }
    it->result.size = it->view.size = k->size;
    it->result.crc = it->view.crc = k->crc;
    it->view.summed = k->summed;
    it->version = k->version;
    it->result.version = mco_version_number(&k->version);
    if (!in_ranges(r) && it->size < k->size) {
        mcd_object_end_item(it, MCS_TOO_SMALL);
        return;
    }
    it->state = MCD_ITEM_FOUND;
    it->piece = 0;
    it->piece_done = it->done = 0;
    it->crc = 0;
    it->legs = 0;
    it->leg_error = MCS_OK;
    if (k->segment == NULL && k->size != 0)
        mcd_object_end_item(it, MCS_PEER_UNREACHABLE);
}

/* ---- legs ------------------------------------------------------------------------------------ */

static bool issued(const struct mcd_object *r, const struct mcd_item *it)
{
    return in_ranges(r) ? it->piece >= it->pieces : it->done >= it->view.size;
}

static void leg_done(struct mcd_engine *g, struct mcd_leg *l, const struct mcd_outcome *o)
{
    struct mcd_window_leg *wl = l->context;
    struct mcd_window *w = wl->window;
    struct mcd_object *r = w->owner;

    wl->busy = false;
    w->legs--;
    if (o->path != MCS_PATH_NONE)
        r->path = o->path;
    mcs_count(&g->counters.objects.leg_bytes, o->bytes);
    for (int16_t i = wl->first; i <= wl->last; i++) {
        struct mcd_item *it = &w->items[i];

        if (it->state != MCD_ITEM_LEG)
            continue;
        it->legs--;
        it->result.path = o->path;
        if (o->state != MCS_STATE_COMPLETED)
            it->leg_error = o->error != MCS_OK ? (uint8_t)o->error : MCS_INTERNAL;
        if (it->legs == 0 && (it->leg_error != MCS_OK || issued(r, it)))
            it->state = MCD_ITEM_READ;
    }
    if (r->all->space != NULL) /* others may wait for a leg */
        mcd_objects_ready(g);
    mcd_object_awake(g, r);
}

/* What is being put together. */
struct plan {
    struct mcd_window_leg *leg; /* NULL: nothing yet */
    uint64_t bytes;
};

static struct mcd_window_leg *unused_leg(struct mcd_window *w)
{
    for (unsigned i = 0; i < MCD_LEGS; i++)
        if (!w->leg[i].busy)
            return &w->leg[i];
    return NULL;
}

/* Sends it off. 0, or why not: -EAGAIN: its keys are as if it had not been; else as if it had failed. */
static int begin_leg(struct mcd_engine *g, struct mcd_object *r, struct plan *p)
{
    struct mcd_window_leg *wl = p->leg;
    struct mcd_window *w = r->window;
    int res;

    if (wl == NULL)
        return 0;
    p->leg = NULL;
    p->bytes = 0;
    wl->leg.npieces = wl->pieces;
    wl->leg.pieces = &w->leg_pieces[wl->piece];
    wl->leg.deadline = r->deadline;
    wl->leg.priority = r->desc.priority;
    wl->leg.strict = (r->desc.flags & MCS_DESC_STRICT) != 0;
    wl->leg.done = leg_done;
    wl->leg.context = wl;
    wl->window = w;
    wl->busy = true;
    w->legs++;
    mcs_count(&g->counters.objects.legs, 1);
    res = mcd_leg_begin(g, r->q, &wl->leg);
    if (res == 0)
        return 0;
    wl->busy = false;
    w->legs--;
    for (int16_t i = wl->first; i <= wl->last; i++) {
        struct mcd_item *it = &w->items[i];

        if (it->state != MCD_ITEM_LEG)
            continue;
        it->legs--;
        if (res != -EAGAIN) {
            it->leg_error = res == -ENOTCONN ? MCS_PEER_UNREACHABLE : MCS_REVOKED;
        } else { /* on from where it was, later */
            it->piece = i == wl->first ? wl->first_piece : 0;
            it->done = i == wl->first ? wl->first_done : 0;
        }
        if (it->legs == 0 && it->leg_error != MCS_OK)
            it->state = MCD_ITEM_READ;
    }
    return res;
}

/* The next piece of a key into the plan. 0; -EAGAIN: no leg is to be had now. */
static int plan_piece(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it, int16_t i,
                      struct plan *p, enum mcs_status *error)
{
    struct mcd_window *w = r->window;
    const struct mcd_ask_key *k = &w->asked[it->asked];
    struct mcs_object_piece piece;
    uint64_t at = it->done, length;
    const struct mcd_extent *e;
    int res = 0;

    *error =
        it->piece < it->pieces ? mcd_object_piece(r, it, it->piece, &piece, &e) : MCS_BAD_RANGE;
    if (*error == MCS_OK && e->gpu != NULL) /* it was host memory when it was measured */
        *error = MCS_BAD_RANGE;
    if (*error != MCS_OK)
        return 0;
    length = piece.length;
    if (in_ranges(r)) {
        at = piece.offset;
        if (at > it->view.size || length > it->view.size - at)
            *error = MCS_BAD_RANGE;
    } else if (length > it->view.size - at) {
        length = it->view.size - at;
    }
    if (*error != MCS_OK)
        return 0;
    if (p->leg != NULL &&
        (p->leg->leg.segment != k->segment || p->leg->leg.extent != piece.extent ||
         p->bytes >= MCD_LEG_BYTES || w->leg_pieces_used == MCD_WINDOW_PIECES))
        res = begin_leg(g, r, p);
    if (res == -EAGAIN)
        return res;
    if (p->leg == NULL) {
        if (w->legs == 0)
            w->leg_pieces_used = 0;
        p->leg = w->leg_pieces_used < MCD_WINDOW_PIECES ? unused_leg(w) : NULL;
        if (p->leg == NULL)
            return -EAGAIN;
        p->leg->leg = (struct mcd_leg){.segment = k->segment, .extent = piece.extent};
        p->leg->piece = w->leg_pieces_used;
        p->leg->pieces = 0;
        p->leg->first = i;
        p->leg->last = -1;
        p->leg->first_piece = it->piece;
        p->leg->first_done = it->done;
    }
    if (p->leg->last != i) {
        p->leg->last = i;
        it->legs++;
        it->state = MCD_ITEM_LEG;
    }
    w->leg_pieces[w->leg_pieces_used++] =
        (struct mcd_leg_piece){.local = piece.local, .remote = k->address + at, .length = length};
    p->leg->pieces++;
    p->bytes += length;
    it->done += length;
    it->piece++;
    return 0;
}

/* Legs for what was found. DONE: all are out; SPACE: none can be begun now; WAIT: a leg of this window has to end first. */
static enum mcd_run begin_legs(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    struct mcd_window *w = r->window;
    struct plan p = {0};
    int res = 0;

    for (uint32_t i = 0; i < w->n && res != -EAGAIN; i++) {
        struct mcd_item *it = &w->items[i];
        enum mcs_status error = MCS_OK;

        if (it->state != MCD_ITEM_FOUND && it->state != MCD_ITEM_LEG)
            continue;
        if (it->state == MCD_ITEM_FOUND && issued(r, it)) { /* empty */
            it->state = MCD_ITEM_READ;
            continue;
        }
        while (!issued(r, it) && it->leg_error == MCS_OK && error == MCS_OK) {
            if (*budget < PIECE_COST) {
                begin_leg(g, r, &p);
                return MCD_RUN_MORE;
            }
            mcd_object_pay(budget, PIECE_COST);
            res = plan_piece(g, r, it, (int16_t)i, &p, &error);
            if (res == -EAGAIN)
                break;
        }
        if (error != MCS_OK) {
            it->leg_error = (uint8_t)error;
            it->tries = TRIES; /* the caller's mistake */
            if (it->legs == 0)
                it->state = MCD_ITEM_READ;
        }
    }
    if (begin_leg(g, r, &p) == -EAGAIN)
        res = -EAGAIN;
    if (res == -EAGAIN && w->legs == 0)
        return MCD_RUN_SPACE;
    return w->legs != 0 ? MCD_RUN_WAIT : MCD_RUN_DONE;
}

/* ---- what has come ---------------------------------------------------------------------------- */

static void again(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                  enum mcs_status error)
{
    if (it->tries < TRIES && g->now < r->deadline) {
        it->state = MCD_ITEM_FAR;
        it->damaged = error == MCS_CHECKSUM;
        it->avoid = error == MCS_LEASE ? NULL : r->window->asked[it->asked].segment;
        mcs_count(&g->counters.objects.retries, 1);
        return;
    }
    mcd_object_end_item(it, error);
    it->result.size = it->view.size;
}

/* CRC32C of what lies in the caller's memory. True: through. */
static bool sum_pieces(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                       uint64_t *budget)
{
    while (it->done < it->view.size && it->piece < it->pieces) {
        struct mcs_object_piece p;
        const struct mcd_extent *e;
        uint64_t n;

        if (*budget == 0)
            return false;
        if (mcd_object_piece(r, it, it->piece, &p, &e) != MCS_OK || e->gpu != NULL ||
            it->piece_done >= p.length)
            return true; /* and the sum is wrong */
        n = p.length - it->piece_done;
        n = n < it->view.size - it->done ? n : it->view.size - it->done;
        n = n < SUM_SLICE ? n : SUM_SLICE;
        n = n < *budget ? n : *budget;
        it->crc = mcd_object_sum(g, it->crc, e->map + p.local + it->piece_done, n);
        it->done += n;
        it->piece_done += n;
        if (it->piece_done == p.length) {
            it->piece++;
            it->piece_done = 0;
        }
        mcd_object_pay(budget, n);
    }
    return true;
}

/* False: the budget is used up. */
static bool check(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it, uint64_t *budget)
{
    const struct mcd_ask_key *k = &r->window->asked[it->asked];
    bool sums =
        it->view.summed && !in_ranges(r) &&
        (g->o.store->verify != MCD_VERIFY_NEVER || (r->args.flags & MCS_OBJECT_VERIFY) != 0);

    if (it->leg_error != MCS_OK) {
        again(g, r, it, (enum mcs_status)it->leg_error);
        return true;
    }
    if (it->view.size != 0 && !sums && r->now > k->until) {
        again(g, r, it,
              MCS_LEASE); /* it may be another object's bytes, and nothing else would tell */
        return true;
    }
    if (sums && !it->verified) {
        it->verified = true;
        it->piece = 0;
        it->piece_done = it->done = 0;
        it->crc = 0;
    }
    if (sums && !sum_pieces(g, r, it, budget))
        return false;
    if (sums && it->crc != it->view.crc) {
        mcs_count(&g->counters.objects.damaged, 1);
        it->verified = false;
        again(g, r, it, MCS_CHECKSUM);
        return true;
    }
    r->bytes += it->done;
    mcd_object_end_item(it, MCS_OK);
    it->result.tier = MCS_TIER_REMOTE;
    it->result.size = it->view.size;
    it->result.crc = it->view.crc;
    mcs_count(&g->counters.objects.far_keys, 1);
    return true;
}

static bool check_all(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    unsigned long faults = mcd_fault_count();
    struct mcd_window *w = r->window;

    for (uint32_t i = 0; i < w->n; i++)
        if (w->items[i].state == MCD_ITEM_READ && !check(g, r, &w->items[i], budget))
            return false;
    if (faults != mcd_fault_count()) {
        mcs_count(&g->counters.faults, 1);
        r->error = MCS_MEMORY_FAULT;
    }
    return true;
}

static bool any_far(const struct mcd_window *w)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->items[i].state == MCD_ITEM_FAR)
            return true;
    return false;
}

enum mcd_run mcd_object_fetch(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    struct mcd_window *w = r->window;
    enum mcd_run run;

    for (;;) {
        switch (r->step) {
        case MCD_STEP_ASK:
            ask_places(r, w);
            r->step = MCD_STEP_TELL;
            if (w->ask.n != 0 && !mcd_object_ask(g, r, w))
                return MCD_RUN_WAIT;
            break;
        case MCD_STEP_TELL:
            if (w->asking)
                return MCD_RUN_WAIT;
            for (uint32_t i = 0; i < w->n; i++)
                if (w->items[i].state == MCD_ITEM_FAR && w->items[i].asked >= 0)
                    take_place(r, &w->items[i], &w->asked[w->items[i].asked]);
            if (w->ask.kind == MCD_ASK_PULL)
                return MCD_RUN_DONE;
            r->step = MCD_STEP_CHECK;
            break;
        default:
            if (r->task == NULL)
                return MCD_RUN_MORE; /* legs are of tasks that have a place in the queue */
            run = begin_legs(g, r, budget);
            if (run == MCD_RUN_MORE)
                return run;
            /* what has come is summed while the rest is on its way */
            if (!check_all(g, r, budget))
                return MCD_RUN_MORE;
            if (run != MCD_RUN_DONE)
                return run;
            if (r->error != 0)
                return MCD_RUN_FAILED;
            mcd_ask_done_with(g, &w->ask);
            w->ask.n = 0;
            if (!any_far(w))
                return MCD_RUN_DONE;
            r->step = MCD_STEP_ASK;
            break;
        }
    }
}
