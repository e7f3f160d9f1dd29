/* SPDX-License-Identifier: Apache-2.0 */
/* EXIST, PREFIX: keys in groups, first here, then all that is left in one question; and REMOVE. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "object_work.h"

#define GROUP 64u
#define GROUP_TEXT (GROUP * 256u) /* bytes of keys, from which on a group takes no more */
#define GROUP_TEXT_MAX (GROUP_TEXT + MCS_KEY_MAX)
#define FAR_KEYS 4096u /* of one question */
#define FAR_TEXT 64u   /* bytes of a key, in the mean */
#define FAR_SMALL                                                                                  \
    256u /* keys of a request whose question is made to measure; all others' are of one size, and pooled */
#define FAR_IDLE 8u

/* Keys of one look into the store. */
struct group {
    unsigned n, taken; /* that are to be looked for; that were read */
    uint32_t index[GROUP];
    struct mco_key keys[GROUP];
    struct mco_hint hints[GROUP];
    uint8_t status[GROUP];
    uint8_t text[GROUP_TEXT_MAX];
};

void mcd_far_put(struct mcd_objects *o, struct mcd_far *f)
{
    if (f->room != FAR_KEYS || o->nfar == FAR_IDLE) {
        free(f);
        return;
    }
    f->next = o->far;
    o->far = f;
    o->nfar++;
}

void mcd_far_free(struct mcd_objects *o)
{
    while (o->far != NULL) {
        struct mcd_far *f = o->far;

        o->far = f->next;
        free(f);
    }
}

static struct mcd_far *far_take(struct mcd_objects *o, uint32_t keys)
{
    uint32_t room = keys <= FAR_SMALL ? keys : FAR_KEYS;
    uint32_t text = room * FAR_TEXT + GROUP_TEXT_MAX;
    struct mcd_far *f = room == FAR_KEYS ? o->far : NULL;

    if (f != NULL) {
        o->far = f->next;
        o->nfar--;
    } else {
        f = malloc(sizeof(*f) + room * (sizeof(f->keys[0]) + sizeof(f->index[0])) + text);
        if (f == NULL)
            return NULL;
    }
    memset(f, 0, sizeof(*f));
    f->room = room;
    f->index = (uint32_t *)(f->keys + room);
    f->text = (uint8_t *)(f->index + room);
    f->text_room = text;
    return f;
}

static void far_done(struct mcd_engine *g, struct mcd_ask *a)
{
    struct mcd_far *f = a->context;

    f->asking = false;
    if (f->owner == NULL)
        mcd_far_put(g->objects, f);
    else
        mcd_object_awake(g, f->owner);
}

static struct mcd_far *far_of(struct mcd_engine *g, struct mcd_object *r)
{
    struct mcd_far *f = r->far;

    if (f != NULL)
        return f;
    f = far_take(g->objects, r->args.count);
    if (f == NULL)
        return NULL;
    f->owner = r;
    f->ask = (struct mcd_ask){
        .kind = MCD_ASK_EXIST,
        .flags = r->args.flags,
        .tenant = r->tenant,
        .deadline = mcd_object_deadline_ns(g, r),
        .keys = f->keys,
        .done = far_done,
        .context = f,
    };
    if ((r->args.flags & MCS_OBJECT_LEASE) != 0)
        f->ask.lease_ms =
            r->args.lease_ms != 0 ? r->args.lease_ms : (uint32_t)g->o.store->config.store_lease_ms;
    r->far = f;
    return f;
}

static bool far_full(const struct mcd_far *f)
{
    return f != NULL && (f->n == f->room || f->text_used + GROUP_TEXT_MAX > f->text_room);
}

static void far_add(struct mcd_far *f, uint32_t index, const struct mco_key *key)
{
    struct mcd_ask_key *k = &f->keys[f->n];

    *k = (struct mcd_ask_key){.key = *key};
    k->key.bytes = memcpy(f->text + f->text_used, key->bytes, key->length);
    f->text_used += key->length;
    f->index[f->n++] = index;
}

/* Reads keys; those that are bad have their answer. */
static void take_group(struct mcd_object *r, struct group *k, uint64_t *budget)
{
    uint32_t used = 0;

    k->n = k->taken = 0;
    while (k->taken < GROUP && r->next + k->taken < r->args.count && used < GROUP_TEXT &&
           (k->taken == 0 || *budget >= MCD_KEY_COST) &&
           (r->far == NULL || r->far->n + k->n < r->far->room)) {
        struct mcs_object_key record;
        struct mco_key *key = &k->keys[k->n];
        uint32_t index = r->next + k->taken;
        enum mcs_status error = mcd_object_key(r, index, k->text + used, key, &record);

        mcd_object_pay(budget, MCD_KEY_COST);
        if (error != MCS_OK) {
            if (r->desc.op == MCS_OP_PREFIX) {
                r->error = (uint16_t)error;
                break;
            }
            mcd_object_show_byte(r, index, (uint8_t)error);
        } else {
            used += key->length;
            k->index[k->n] = index;
            k->hints[k->n] = mcd_object_hint(r, key, index, r->previous);
            r->previous = key->hash;
            k->n++;
        }
        k->taken++;
    }
}

static uint64_t lease_of(struct mcd_engine *g, const struct mcd_object *r)
{
    uint64_t ms = r->args.lease_ms != 0 ? r->args.lease_ms : g->o.store->config.store_lease_ms;

    return (r->args.flags & MCS_OBJECT_LEASE) != 0 ? ms * 1000000 : 0;
}

/* What is not here is asked for later on, or is not there. False: no memory. */
static bool exist_group(struct mcd_engine *g, struct mcd_object *r, struct group *k)
{
    struct mcd_far *f = NULL;
    size_t found;

    found = mco_exist(g->o.store->objects, k->keys, NULL, k->n, lease_of(g, r), r->now, k->status,
                      NULL);
    r->bytes += found;
    if (r->catalog && found < k->n) {
        f = far_of(g, r);
        if (f == NULL)
            return false;
    }
    for (unsigned i = 0; i < k->n; i++) {
        if (k->status[i] != MCS_OK && f != NULL)
            far_add(f, k->index[i], &k->keys[i]);
        else
            mcd_object_show_byte(r, k->index[i], k->status[i]);
    }
    return true;
}

/* Without other hosts it ends at the first key that is not here; the policy is told of no key behind that. */
static bool prefix_group(struct mcd_engine *g, struct mcd_object *r, struct group *k)
{
    struct mco_store *s = g->o.store->objects;
    struct mcd_far *f = NULL;
    unsigned first = 0;

    mco_exist(s, k->keys, NULL, k->n, 0, r->now, k->status, NULL);
    while (first < k->n && k->status[first] == MCS_OK)
        first++;
    if (r->catalog && (first < k->n || r->far != NULL)) {
        f = far_of(g, r);
        if (f == NULL)
            return false;
    }
    if (f == NULL) {
        mco_exist(s, k->keys, k->hints, first < k->n ? first + 1 : first, lease_of(g, r), r->now,
                  k->status, NULL);
        for (first = 0; first < k->n && k->status[first] == MCS_OK; first++)
            r->bytes++;
        r->ended = r->ended || first < k->n;
        return true;
    }
    mco_exist(s, k->keys, k->hints, k->n, lease_of(g, r), r->now, k->status, NULL);
    if (r->far->n == 0)
        for (first = 0; first < k->n && k->status[first] == MCS_OK; first++)
            r->bytes++;
    for (; first < k->n; first++)
        if (k->status[first] != MCS_OK)
            far_add(f, k->index[first], &k->keys[first]);
    return true;
}

/* The answer is there. */
static void far_answered(struct mcd_object *r)
{
    struct mcd_far *f = r->far;
    uint32_t i;

    if (r->desc.op == MCS_OP_EXIST) {
        for (i = 0; i < f->n; i++) {
            mcd_object_show_byte(r, f->index[i], f->keys[i].status);
            r->bytes += f->keys[i].status == MCS_OK;
        }
    } else {
        for (i = 0; i < f->n && f->keys[i].status == MCS_OK; i++) {
        }
        r->ended = i < f->n;
        r->bytes = r->ended ? f->index[i] : r->next;
        if (r->ended && f->keys[i].status != MCS_NOT_FOUND && r->error == 0)
            r->error = f->keys[i].status;
    }
    f->n = f->text_used = 0;
}

static enum mcd_run ask_far(struct mcd_engine *g, struct mcd_object *r)
{
    struct mcd_far *f = r->far;

    f->ask.n = f->n;
    r->step = MCD_STEP_CHECK;
    f->asking = true;
    if (mcd_ask(g, &f->ask) == -EINPROGRESS)
        return MCD_RUN_WAIT;
    f->asking = false;
    return MCD_RUN_DONE;
}

enum mcd_run mcd_object_exist(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    bool prefix = r->desc.op == MCS_OP_PREFIX;
    struct group k;

    for (;;) {
        bool over;

        if (r->step == MCD_STEP_CHECK) {
            if (r->far->asking)
                return MCD_RUN_WAIT;
            far_answered(r);
            r->step = MCD_STEP_FILL;
        }
        over = r->next == r->args.count || r->ended || r->error != 0;
        if (r->far != NULL && r->far->n != 0 && !r->ended && (over || far_full(r->far))) {
            if (ask_far(g, r) == MCD_RUN_WAIT)
                return MCD_RUN_WAIT;
            continue;
        }
        if (over)
            return r->error != 0 ? MCD_RUN_FAILED : MCD_RUN_DONE;
        if (*budget < MCD_KEY_COST)
            return MCD_RUN_MORE;
        take_group(r, &k, budget);
        if (k.n != 0 && !(prefix ? prefix_group(g, r, &k) : exist_group(g, r, &k))) {
            r->error = MCS_NO_MEMORY;
            return MCD_RUN_FAILED;
        }
        r->next += k.taken;
    }
}

/* ---- REMOVE ------------------------------------------------------------------------- */

/* Is somebody at it here? Other hosts are asked only when not. */
static bool in_use(struct mco_store *s, const struct mco_key *key, uint64_t now)
{
    struct mco_listed l;

    return mco_stat(s, key, &l) && !l.leaving &&
           (l.hard_pin || l.pins != 0 || l.in_place != 0 || l.lease_until > now);
}

static void remove_here(struct mcd_engine *g, struct mcd_object *r, struct mcd_window *w)
{
    struct mco_store *s = g->o.store->objects;
    bool force = (r->args.flags & MCS_OBJECT_FORCE) != 0;

    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];

        if (it->state == MCD_ITEM_DONE)
            continue;
        if (!r->catalog)
            mcd_object_end_item(it, mco_remove(s, &it->key, NULL, force, r->now));
        else if (!force && in_use(s, &it->key, r->now))
            mcd_object_end_item(it, MCS_IN_USE);
        else
            it->state = MCD_ITEM_FAR;
    }
}

static void ask_removal(struct mcd_object *r, struct mcd_window *w)
{
    w->ask = (struct mcd_ask){.kind = MCD_ASK_REMOVE, .flags = r->args.flags, .tenant = r->tenant};
    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];

        it->asked = -1;
        if (it->state != MCD_ITEM_FAR)
            continue;
        it->asked = (int16_t)w->ask.n;
        w->asked[w->ask.n++] = (struct mcd_ask_key){.key = it->key};
    }
}

enum mcd_run mcd_object_remove(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    struct mcd_window *w = r->window;

    for (;;) {
        switch (r->step) {
        case MCD_STEP_FILL:
            if (r->next == r->args.count)
                return MCD_RUN_DONE;
            if (*budget < MCD_KEY_COST)
                return MCD_RUN_MORE;
            mcd_object_fill(r, w, budget);
            remove_here(g, r, w);
            ask_removal(r, w);
            r->step = MCD_STEP_TELL;
            if (w->ask.n != 0 && !mcd_object_ask(g, r, w))
                return MCD_RUN_WAIT;
            break;
        case MCD_STEP_TELL:
            if (w->asking)
                return MCD_RUN_WAIT;
            for (uint32_t i = 0; i < w->n; i++)
                if (w->items[i].state == MCD_ITEM_FAR)
                    mcd_object_end_item(&w->items[i],
                                        (enum mcs_status)w->asked[w->items[i].asked].status);
            r->step = MCD_STEP_SHOW;
            break;
        default:
            mcd_object_show(g, r, w);
            r->next += w->n;
            r->step = MCD_STEP_FILL;
            break;
        }
    }
}
