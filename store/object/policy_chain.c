/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of prompts are prefix chains, and conversations come back: the same chain and a little more.
 *
 * What one request touches is a visit: a stretch of a chain, which is of use as far as it is there from its front
 * on. So only ends of chains go, from the last block of a visit towards its first, and a block whose predecessor
 * is gone goes before all others. Visits that look alike (a class: how often the conversation came back, how much
 * was new, how long it is) and are of one age share a cell; policy_value.h tells what each cell is worth, and the
 * oldest visit of the least worthy cell is the next to lose blocks. The record of a visit outlives its blocks
 * for a while (a ghost), found by the first block that it lost: so the policy learns from whom it should have kept.
 *
 * Blocks by themselves lie in batches, which are visits without an order: what was asked for without a chain
 * (LOOSE), last blocks of prompts, which the next turn of the conversation replaces (LAST), and what
 * has lost its predecessor (ORPHAN).
 *
 *   words[0]  its visit        words[1]  its link, or 0        words[2]  position
 */
#include "policy_visit.h"

#include <errno.h>
#include <stdlib.h>

#define NEAR_END 5u /* who comes back to a block so close to a chain's end goes on with it */

/* ---- walks ---------------------------------------------------------------------------------------------- */

static void close_walk(struct mco_policy *p, struct mco_walk *w)
{
    struct mco_visit *v = w->visit;

    if (v != NULL) {
        v->walked = false;
        if (!v->classed)
            mco_visit_classify(p, v, w->position);
        if (v->count == 0)
            mco_visit_empty(p, v);
    }
    mco_link_put(p, w->link);
    *w = (struct mco_walk){0};
}

/* The walk that comes to this key, or a new one. NULL: no memory. */
static struct mco_walk *walk_to(struct mco_policy *p, uint64_t hash, const struct mco_hint *hint)
{
    struct mco_walk *w = &p->walks[0];
    unsigned i;

    for (i = 0; i < MCO_WALKS; i++) {
        struct mco_walk *k = &p->walks[i];

        if (k->used != 0 && k->position == hint->position &&
            (k->expect != 0 ? k->expect == hash
                            : k->last == hint->previous && hint->previous != 0)) {
            w = k;
            break;
        }
        if (k->used < w->used)
            w = k;
    }
    if (i == MCO_WALKS) {
        if (w->used != 0)
            close_walk(p, w);
        w->last = hint->previous;
    }
    w->used = p->now;
    w->expect = 0;
    if (w->length < hint->length)
        w->length = hint->length;
    w->position = hint->position;
    if (w->visit != NULL)
        w->visit->length = w->length;
    return w;
}

static void step(struct mco_policy *p, struct mco_walk *w, struct mco_policy_entry *e)
{
    struct mco_link *l = mco_link_of(e);

    if (l != NULL)
        l->uses++;
    mco_link_put(p, w->link);
    w->link = l;
    w->last = e->hash;
    w->position++;
}

/* Is e so near the end of what its visit touched that who goes on from there is the visit's next turn? */
static bool goes_on(const struct mco_policy_entry *e)
{
    const struct mco_visit *v = mco_visit_of(e);
    const struct mco_link *l = mco_link_of(e);

    return !v->batch && v->watched && e->words[2] + NEAR_END >= v->length &&
           (l == NULL || l->behind <= 1);
}

/* The visit of the walk's last block, if a walk is still on that and this one goes on with it; else NULL. */
static struct mco_visit *taken_over(struct mco_policy *p, struct mco_walk *w)
{
    struct mco_visit *v;

    if (w->link == NULL || w->link->entry == NULL || !goes_on(w->link->entry))
        return NULL;
    v = mco_visit_of(w->link->entry);
    if (!v->walked)
        return NULL;
    for (unsigned i = 0; i < MCO_WALKS; i++)
        if (p->walks[i].visit == v)
            p->walks[i].visit = NULL;
    mco_visit_renew(p, v);
    return v;
}

/* The walk's visit; NULL: no memory. */
static struct mco_visit *visit_for(struct mco_policy *p, struct mco_walk *w)
{
    struct mco_visit *v = w->visit;

    if (v != NULL)
        return v;
    v = taken_over(p, w);
    if (v == NULL) {
        v = mco_visit_take(p);
        if (v == NULL)
            return NULL;
        v->watched = true;
        mco_visits_add(&p->open, v);
        v->where = MCO_OPEN;
        mco_visit_age_add(p, v);
        if (w->link != NULL && w->link->entry != NULL && goes_on(w->link->entry))
            mco_visit_came_back(p, mco_visit_of(w->link->entry), v);
    }
    v->walked = true;
    v->length = w->length;
    w->visit = v;
    mco_visits_refresh(p);
    mco_visits_refresh(p);
    return v;
}

static void is_missing(struct mco_policy *p, struct mco_visit *v, uint64_t hash, uint32_t found)
{
    struct mco_visit *old = mco_gone_find(p, hash);

    if (old != NULL)
        mco_visit_came_back(p, old, v);
    mco_visit_classify(p, v, found);
}

static void tick(struct mco_policy *p)
{
    p->now++;
    if (p->now - p->aged >= 32)
        mco_visits_grow_older(p);
}

/* Puts an entry that the walk has come to where it belongs. */
static void settle(struct mco_policy *p, struct mco_walk *w, struct mco_visit *v,
                   struct mco_policy_entry *e, bool orphan)
{
    if (orphan)
        mco_batch_gain(p, MCO_ORPHAN, e);
    else if (w->position + 1 == w->length && w->length > 1)
        mco_batch_gain(p, MCO_LAST, e);
    else
        mco_visit_gain(v, e);
}

/* ---- the interface ----------------------------------------------------------------------------------------- */

static int chain_create(uint64_t capacity, struct mco_policy **out)
{
    struct mco_policy *p = calloc(1, sizeof(*p));

    (void)capacity;
    if (p == NULL)
        return -ENOMEM;
    p->now = 1;
    mco_values_init(&p->values);
    for (unsigned c = 0; c < MCO_VALUE_CLASSES; c++)
        for (unsigned a = 0; a < MCO_VALUE_AGES; a++)
            p->cells[c][a].level = c == MCO_ORPHAN ? 0 : p->values.level[c][a];
    p->spare.batch = p->spare.classed = true;
    p->spare.class = MCO_LOOSE;
    mco_visit_age_add(p, &p->spare);
    mco_visit_enter_cell(p, &p->spare, true);
    *out = p;
    return 0;
}

static void chain_destroy(struct mco_policy *p)
{
    while (p != NULL && p->slabs != NULL) {
        void *s = p->slabs;

        p->slabs = *(void **)s;
        free(s);
    }
    free(p);
}

static void chain_insert(struct mco_policy *p, struct mco_policy_entry *e,
                         const struct mco_hint *hint)
{
    struct mco_walk *w;
    struct mco_visit *v;
    struct mco_link *l, *before;
    bool orphan;

    tick(p);
    if (hint->position == MCO_POSITION_NONE) {
        mco_batch_gain(p, MCO_LOOSE, e);
        return;
    }
    w = walk_to(p, e->hash, hint);
    v = visit_for(p, w);
    l = mco_link_take(p);
    if (v == NULL || l == NULL) {
        mco_link_put(p, l);
        mco_batch_gain(p, MCO_LOOSE, e);
        return;
    }
    if (!v->classed)
        is_missing(p, v, e->hash, hint->position);
    before = w->link;
    orphan = before != NULL && before->entry == NULL;
    e->words[1] = (uint64_t)(uintptr_t)l;
    e->words[2] = hint->position;
    l->entry = e;
    if (before != NULL && !orphan) {
        struct mco_policy_entry *b = before->entry;

        l->before = before;
        before->uses++;
        before->behind++;
        if (mco_visit_of(b)->batch &&
            mco_visit_of(b)->class == MCO_LAST) { /* it is not, after all */
            mco_visit_lose(p, b);
            mco_visit_gain(v, b);
        }
    }
    settle(p, w, v, e, orphan);
    step(p, w, e);
}

static void hit_alone(struct mco_policy *p, struct mco_policy_entry *e)
{
    struct mco_visit *v = mco_visit_of(e);
    unsigned class;

    if (!v->batch)
        return; /* who names no chain does not tell of one */
    class = v->class;
    mco_values_returned(&p->values, class, v->age);
    mco_visit_lose(p, e);
    mco_batch_gain(p, class == MCO_ORPHAN ? MCO_LOOSE : class, e);
}

/* The last block of a request, after others of it that its own walk has just touched. */
static bool is_seen_again(const struct mco_walk *w, const struct mco_visit *v)
{
    return v->batch && v->class == MCO_LAST && w->link != NULL && w->link->entry != NULL &&
           mco_visit_of(w->link->entry)->walked;
}

static void chain_hit(struct mco_policy *p, struct mco_policy_entry *e, const struct mco_hint *hint)
{
    struct mco_visit *old, *v;
    struct mco_walk *w;

    tick(p);
    if (hint->position == MCO_POSITION_NONE) {
        hit_alone(p, e);
        return;
    }
    w = walk_to(p, e->hash, hint);
    old = mco_visit_of(e);
    if (w->visit == NULL && (old->walked || is_seen_again(w, old))) {
        step(p, w, e);
        return;
    }
    v = visit_for(p, w);
    if (v == NULL || v == old) {
        step(p, w, e);
        return;
    }
    if (old->batch)
        mco_values_returned(&p->values, old->class, old->age);
    e->words[2] = hint->position;
    if (goes_on(e))
        mco_visit_came_back(p, old, v);
    mco_visit_lose(p, e);
    settle(p, w, v, e, false);
    step(p, w, e);
    if (w->position == w->length)
        mco_visit_classify(p, v, w->position);
}

static void chain_miss(struct mco_policy *p, uint64_t hash, const struct mco_hint *hint)
{
    struct mco_walk *w;
    struct mco_visit *v;

    if (hint->position == MCO_POSITION_NONE)
        return;
    w = walk_to(p, hash, hint);
    w->expect = hash;
    v = visit_for(p, w);
    if (v != NULL)
        is_missing(p, v, hash, hint->position);
}

static void chain_remove(struct mco_policy *p, struct mco_policy_entry *e, bool evicted)
{
    struct mco_visit *v = mco_visit_of(e);
    struct mco_link *l = mco_link_of(e), *before = l == NULL ? NULL : l->before;

    if (evicted && !v->batch)
        mco_gone_remember(p, v, e);
    mco_visit_lose(p, e);
    if (l == NULL)
        return;
    l->entry = NULL;
    if (before != NULL && --before->behind == 0 && before->entry != NULL) {
        v = mco_visit_of(before->entry);
        if (v->where == MCO_STUCK) {
            mco_visit_leave(p, v);
            mco_visit_enter_cell(p, v, true);
        }
    }
    mco_link_put(p, l);
}

/* ---- who is next --------------------------------------------------------------------------------------------- */

/* May e go, when `after`, which follows it, goes, too? */
static bool is_end(const struct mco_policy_entry *e, const struct mco_policy_entry *after)
{
    const struct mco_link *l = mco_link_of(e), *k = after == NULL ? NULL : mco_link_of(after);

    return l == NULL || l->behind == 0 || (l->behind == 1 && k != NULL && k->before == l);
}

static struct mco_cell *cell_from(struct mco_policy *p, unsigned level)
{
    for (unsigned i = level / 64; i < MCO_VALUE_LEVELS / 64; i++) {
        uint64_t full = i == level / 64 ? p->full[i] & UINT64_MAX << level % 64 : p->full[i];

        if (full != 0)
            return p->levels[64 * i + (unsigned)__builtin_ctzll(full)];
    }
    return NULL;
}

/* The visit that loses blocks after v (NULL: the first one): cells by worth, then what is stuck, then what is not classed yet. */
static struct mco_visit *visit_after(struct mco_policy *p, const struct mco_visit *v)
{
    struct mco_cell *c;

    if (v != NULL && v->next != NULL)
        return v->next;
    if (v == NULL || v->where == MCO_CELL) {
        if (v == NULL) {
            c = cell_from(p, 0);
        } else {
            const struct mco_cell *at = &p->cells[v->class][v->age];

            c = at->next;
            if (c == NULL && at->level + 1u < MCO_VALUE_LEVELS)
                c = cell_from(p, at->level + 1u);
        }
        if (c != NULL)
            return c->visits.first;
        if (p->stuck.first != NULL)
            return p->stuck.first;
        return p->open.first;
    }
    return v->where == MCO_STUCK ? p->open.first : NULL;
}

static struct mco_policy_entry *chain_next(struct mco_policy *p, struct mco_policy_entry *after)
{
    struct mco_visit *v = NULL, *next;

    if (after == NULL) {
        p->rest = false;
        v = visit_after(p, NULL);
    } else {
        v = mco_visit_of(after);
        if (after->prev != NULL && (p->rest || v->batch || is_end(after->prev, after)))
            return after->prev;
        v = visit_after(p, v);
    }
    for (;;) {
        if (v == NULL && p->rest)
            return NULL;
        if (v == NULL) { /* no end of a chain may go: then what is inside of them */
            p->rest = true;
            v = visit_after(p, NULL);
            continue;
        }
        next = visit_after(p, v);
        if (v->last != NULL && (p->rest || v->batch || is_end(v->last, NULL)))
            return v->last;
        if (v->last != NULL && v->where == MCO_CELL) { /* not looked at again before that changes */
            mco_visit_leave(p, v);
            mco_visits_add(&p->stuck, v);
            v->where = MCO_STUCK;
        }
        v = next;
    }
}

const struct mco_policy_ops mco_policy_chain = {
    .name = "chain",
    .create = chain_create,
    .destroy = chain_destroy,
    .insert = chain_insert,
    .hit = chain_hit,
    .miss = chain_miss,
    .remove = chain_remove,
    .next = chain_next,
};
