/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of requests about objects: who has them, and what the catalog is asked and told of their keys. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "object_work.h"

#define WINDOWS_MAX 64u   /* that are kept for later requests */
#define QUEUE_WINDOWS 64u /* that requests of one queue may have: later ones wait for one */
#define ASIDE_MAX 3u      /* windows of a request that wait for an answer alone */

uint64_t mcd_now_ns(void);

/* ---- memory ------------------------------------------------------------------------------ */

static struct mcd_window *take_window(struct mcd_objects *o)
{
    struct mcd_window *w = o->windows;

    if (w != NULL) {
        o->windows = w->next;
        o->nwindows--;
    } else {
        w = malloc(sizeof(*w));
        if (w == NULL)
            return NULL;
        memset(w->leg, 0, sizeof(w->leg)); /* they have ended when it comes back */
    }
    w->owner = NULL;
    w->n = w->at = w->legs = w->text_used = w->leg_pieces_used = 0;
    w->asking = w->aside = w->legless = false;
    w->plan = NULL;
    w->ask.n = 0;
    return w;
}

static void put_window(struct mcd_objects *o, struct mcd_window *w)
{
    if (o->nwindows >= WINDOWS_MAX) {
        free(w);
        return;
    }
    w->next = o->windows;
    o->windows = w;
    o->nwindows++;
}

void mcd_windows_free(struct mcd_objects *o)
{
    free(o->undone);
    while (o->windows != NULL) {
        struct mcd_window *w = o->windows;

        o->windows = w->next;
        free(w);
    }
}

/* ---- who has them -------------------------------------------------------------------------- */

/* Out of the line for a window. */
void mcd_window_wait_no_more(struct mcd_object *r)
{
    struct mcd_queue *q = r->q;

    r->for_window = false;
    if (r->space_prev != NULL)
        r->space_prev->space_next = r->space_next;
    else
        q->windowless = r->space_next;
    if (r->space_next != NULL)
        r->space_next->space_prev = r->space_prev;
    else
        q->windowless_last = r->space_prev;
}

/* Who has waited longest goes on, when there may be a window more. */
void mcd_window_offer(struct mcd_engine *g, struct mcd_queue *q)
{
    if (q->windowless != NULL && q->windows < QUEUE_WINDOWS)
        mcd_object_awake(g, q->windowless);
}

/* A window for it. WAIT: its queue has as many as it may: when one is given back. */
enum mcd_run mcd_window_provide(struct mcd_engine *g, struct mcd_object *r)
{
    struct mcd_queue *q = r->q;

    if (q->windows >= QUEUE_WINDOWS) {
        if (!r->for_window) {
            r->for_window = true;
            r->space_next = NULL;
            r->space_prev = q->windowless_last;
            if (r->space_prev != NULL)
                r->space_prev->space_next = r;
            else
                q->windowless = r;
            q->windowless_last = r;
        }
        return MCD_RUN_WAIT;
    }
    r->window = take_window(g->objects);
    if (r->window == NULL) {
        r->error = MCS_NO_MEMORY;
        return MCD_RUN_FAILED;
    }
    r->window->owner = r;
    q->windows++;
    mcd_window_offer(g, q);
    return MCD_RUN_DONE;
}

/* The window is the request's no more; whoever waits for one goes on. */
void mcd_window_leave(struct mcd_engine *g, struct mcd_object *r)
{
    struct mcd_queue *q = r->q;

    r->window->owner = NULL;
    if (!r->window->asking)
        put_window(r->all, r->window);
    r->window = NULL;
    q->windows--;
    mcd_window_offer(g, q);
}

/* ---- questions --------------------------------------------------------------------------- */

uint64_t mcd_object_deadline_ns(const struct mcd_engine *g, const struct mcd_object *r)
{
    uint64_t left = r->deadline > g->now ? r->deadline - g->now : 0;

    return mcd_now_ns() + mcd_ticks_to_ns(g, left);
}

static void answered(struct mcd_engine *g, struct mcd_ask *a);

bool mcd_object_tell(struct mcd_engine *g, struct mcd_window *w)
{
    w->ask.keys = w->asked;
    w->ask.done = answered;
    w->ask.context = w;
    w->ask.deadline = mcd_now_ns() + mcs_load_relaxed(&g->o.deadline_us) * 1000;
    w->asking = mcd_ask(g, &w->ask) == -EINPROGRESS;
    return w->asking;
}

/* Nobody waits for the answer any more: what it has begun is given up. True: another question goes out for that. */
static bool give_up(struct mcd_engine *g, struct mcd_window *w)
{
    uint32_t n = 0;

    if (w->ask.kind != MCD_ASK_START)
        return false;
    for (uint32_t i = 0; i < w->ask.n; i++) {
        if (w->asked[i].status != MCS_OK)
            continue;
        w->asked[n] = w->asked[i];
        w->asked[n++].status = MCS_CANCELED;
    }
    w->ask.kind = MCD_ASK_END;
    w->ask.n = n;
    return n != 0 && mcd_object_tell(g, w);
}

/* It stood aside: its results, and it is not needed any more. */
static void told(struct mcd_engine *g, struct mcd_object *r, struct mcd_window *w)
{
    struct mcd_window **link = &r->aside;

    while (*link != w)
        link = &(*link)->next;
    *link = w->next;
    r->naside--;
    mcd_object_put_told(g, r, w);
    w->owner = NULL;
    put_window(g->objects, w);
}

static void answered(struct mcd_engine *g, struct mcd_ask *a)
{
    struct mcd_window *w = a->context;
    struct mcd_object *r = w->owner;

    w->asking = false;
    if (r != NULL) {
        if (w->aside)
            told(g, r, w);
        mcd_object_awake(g, r);
        return;
    }
    if (a->kind == MCD_ASK_FIND)
        mcd_ask_done_with(g, a);
    if (!give_up(g, w))
        put_window(g->objects, w);
}

bool mcd_object_ask(struct mcd_engine *g, struct mcd_object *r, struct mcd_window *w)
{
    w->ask.keys = w->asked;
    w->ask.done = answered;
    w->ask.context = w;
    w->ask.deadline = mcd_object_deadline_ns(g, r);
    w->asking = true;
    if (mcd_ask(g, &w->ask) == -EINPROGRESS)
        return false;
    w->asking = false;
    return true;
}

bool mcd_object_aside(struct mcd_engine *g, struct mcd_object *r)
{
    struct mcd_window *w = r->naside < ASIDE_MAX ? take_window(g->objects) : NULL;

    if (w == NULL)
        return false;
    w->owner = r;
    r->window->aside = true;
    r->window->next = r->aside;
    r->aside = r->window;
    r->naside++;
    r->window = w;
    return true;
}

/* ---- creations that are undone -------------------------------------------------------------- */

void mcd_window_send_undone(struct mcd_engine *g)
{
    struct mcd_window *w = g->objects->undone;

    g->objects->undone = NULL;
    if (!mcd_object_tell(g, w))
        put_window(g->objects, w);
}

/* The catalog is told that a creation will never be there, of many in one question. */
void mcd_window_add_undone(struct mcd_engine *g, const struct mcd_held *held)
{
    struct mcd_objects *o = g->objects;
    struct mcd_window *w = o->undone;
    struct mcd_ask_key *k;

    if (w != NULL && (w->ask.tenant != held->key.tenant || w->ask.n == MCD_WINDOW ||
                      held->key.length > MCD_WINDOW_TEXT - w->text_used)) {
        mcd_window_send_undone(g);
        w = NULL;
    }
    if (w == NULL) {
        w = take_window(o);
        if (w == NULL)
            return; /* it finds out when the writer's time is over */
        w->ask = (struct mcd_ask){.kind = MCD_ASK_END, .tenant = held->key.tenant};
        o->undone = w;
    }
    k = &w->asked[w->ask.n++];
    *k = (struct mcd_ask_key){
        .key = held->key, .version = held->view.version, .status = MCS_CANCELED};
    k->key.bytes = memcpy(w->text + w->text_used, held->text, held->key.length);
    w->text_used += held->key.length;
}
