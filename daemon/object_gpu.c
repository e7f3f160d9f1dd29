/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces of PUT and GET that lie in GPU memory: put together into legs of this host, several pieces of several keys in one, and
 * what becomes of the keys when a leg has ended.  A leg is of one device, so one that is lost takes no keys of another along.
 * A key counts its pieces that are in legs (item.legs); nothing of it is sealed, given up or unpinned before they are back.
 */
#include <errno.h>

#include "object_work.h"
#include "session.h"

/* Its pieces are in no leg any more. */
static void over(struct mcd_window_leg *wl, enum mcs_status error)
{
    struct mcd_window *w = wl->window;

    wl->busy = false;
    w->legs--;
    for (uint32_t i = wl->piece; i < wl->piece + wl->pieces; i++) {
        struct mcd_item *it = &w->items[w->leg_items[i]];

        it->legs--;
        if (error != MCS_OK)
            it->leg_error = (uint8_t)error;
    }
}

static void leg_done(struct mcd_engine *g, struct mcd_leg *l, const struct mcd_outcome *o)
{
    struct mcd_window_leg *wl = l->context;
    struct mcd_object *r = wl->window->owner;
    enum mcs_status error = MCS_OK;

    if (o->state != MCS_STATE_COMPLETED)
        error = o->error != MCS_OK ? (enum mcs_status)o->error : MCS_INTERNAL;
    if (o->path != MCS_PATH_NONE)
        r->path = o->path;
    mcs_count(l->write ? &g->counters.objects.gpu_put_bytes : &g->counters.objects.gpu_get_bytes,
              o->bytes);
    over(wl, error);
    if (r->all->space != NULL) /* others may wait for a leg */
        mcd_objects_ready(g);
    mcd_object_awake(g, r);
}

/* Sends off what is put together. False: its pieces have failed. */
static bool begin(struct mcd_engine *g, struct mcd_object *r)
{
    struct mcd_window *w = r->window;
    struct mcd_window_leg *wl = w->plan;
    int res;

    w->plan = NULL;
    wl->leg.pieces = &w->leg_pieces[wl->piece];
    wl->leg.extents = &w->leg_extents[wl->piece];
    wl->leg.npieces = wl->pieces;
    wl->leg.deadline = r->deadline;
    wl->leg.priority = r->desc.priority;
    wl->leg.strict = (r->desc.flags & MCS_DESC_STRICT) != 0;
    wl->leg.done = leg_done;
    wl->leg.context = wl;
    wl->window = w;
    wl->busy = true;
    w->legs++;
    res = mcd_leg_begin_here(g, r->q, &wl->leg);
    if (res != 0)
        over(wl, res == -ENOMEM ? MCS_NO_MEMORY : MCS_REVOKED);
    return res == 0;
}

/* A leg to put together; false: none is to be had now. */
static bool plan(struct mcd_object *r, struct mcd_extent *store, int device, bool put)
{
    struct mcd_window *w = r->window;
    unsigned i = 0;

    if (w->legs == 0)
        w->leg_pieces_used = 0;
    while (i < MCD_LEGS && w->leg[i].busy)
        i++;
    if (i == MCD_LEGS || w->leg_pieces_used == MCD_WINDOW_PIECES || !mcd_leg_is_free(r->q))
        return false;
    w->plan = &w->leg[i];
    w->plan_bytes = 0;
    w->plan->leg = (struct mcd_leg){.store = store, .write = put};
    w->plan->piece = w->leg_pieces_used;
    w->plan->pieces = 0;
    w->plan->device = device;
    return true;
}

enum mcs_status mcd_object_gpu_add(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                                   bool put, const struct mcd_object_part *p)
{
    struct mcd_window *w = r->window;
    uint32_t at;

    if (w->plan != NULL &&
        (w->plan->leg.store != it->view.owner || w->plan->device != p->extent->gpu_device ||
         w->plan_bytes >= MCD_LEG_BYTES || w->leg_pieces_used == MCD_WINDOW_PIECES))
        (void)begin(g, r);
    if (w->plan == NULL && !plan(r, it->view.owner, p->extent->gpu_device, put)) {
        w->legless = true;
        return MCS_BUSY;
    }
    at = w->leg_pieces_used++;
    w->leg_pieces[at] = (struct mcd_leg_piece){
        .local = p->local, .remote = it->view.offset + p->at, .length = p->length};
    w->leg_extents[at] = p->handle;
    w->leg_items[at] = (int16_t)(it - w->items);
    w->plan->pieces++;
    w->plan_bytes += p->length;
    it->legs++;
    return MCS_OK;
}

enum mcd_run mcd_object_gpu_go(struct mcd_engine *g, struct mcd_object *r, enum mcd_run run)
{
    struct mcd_window *w = r->window;
    bool failed;

    if (run == MCD_RUN_FAILED)
        w->plan = NULL;
    failed = w->plan != NULL && !begin(g, r);
    if (run == MCD_RUN_MORE && w->legless)
        run = w->legs != 0 ? MCD_RUN_WAIT : MCD_RUN_SPACE;
    if ((run == MCD_RUN_WAIT || run == MCD_RUN_SPACE) && failed)
        run = MCD_RUN_MORE; /* nothing rings for those keys */
    w->legless = false;
    return run;
}
