/* SPDX-License-Identifier: Apache-2.0 */
#include "policy_visit.h"

#include <stdlib.h>

enum {
    FIRST_TURN = 0,  /* + log2 of the length, 0 .. 8 */
    FIRST_KNOWN = 9, /* the same, of those that found more than a system prompt */
    LATER_TURN = 18, /* + 7 x (turn - 1, at most 2) + log2 of what is new, 0 .. 5; 6: nothing is */
};

#define BATCH_MAX 64u  /* entries of a batch, */
#define BATCH_AGE 512u /* and touches between its first and its last one */
/* Records of visits without blocks; as many as visits with some if those are more. */
#define GHOSTS_MIN 8192u
#define SLAB_VISITS 64u
#define SLAB_LINKS 256u

/* ---- memory ------------------------------------------------------------------------------------- */

static void *slab(struct mco_policy *p, size_t bytes)
{
    char *s = calloc(1, bytes + 16);

    if (s == NULL)
        return NULL;
    *(void **)s = p->slabs;
    p->slabs = s;
    return s + 16;
}

struct mco_visit *mco_visit_take(struct mco_policy *p)
{
    struct mco_visit *v = p->free_visits;

    if (v == NULL) {
        v = slab(p, SLAB_VISITS * sizeof(*v));
        for (unsigned i = 0; v != NULL && i < SLAB_VISITS; i++) {
            v[i].next = p->free_visits;
            p->free_visits = &v[i];
        }
        v = p->free_visits;
    }
    if (v != NULL) {
        p->free_visits = v->next;
        *v = (struct mco_visit){.born = p->now};
        p->nvisits++;
    }
    return v;
}

struct mco_link *mco_link_take(struct mco_policy *p)
{
    struct mco_link *l = p->free_links;

    if (l == NULL) {
        l = slab(p, SLAB_LINKS * sizeof(*l));
        for (unsigned i = 0; l != NULL && i < SLAB_LINKS; i++) {
            l[i].before = p->free_links;
            p->free_links = &l[i];
        }
        l = p->free_links;
    }
    if (l != NULL) {
        p->free_links = l->before;
        *l = (struct mco_link){.uses = 1};
    }
    return l;
}

void mco_link_put(struct mco_policy *p, struct mco_link *l)
{
    while (l != NULL && --l->uses == 0) {
        struct mco_link *before = l->before;

        l->before = p->free_links;
        p->free_links = l;
        l = before;
    }
}

/* ---- lists ---------------------------------------------------------------------------------------- */

void mco_visits_add(struct mco_visits *l, struct mco_visit *v)
{
    v->next = NULL;
    v->prev = l->last;
    *(l->last != NULL ? &l->last->next : &l->first) = v;
    l->last = v;
}

static void add_first(struct mco_visits *l, struct mco_visit *v)
{
    v->prev = NULL;
    v->next = l->first;
    *(l->first != NULL ? &l->first->prev : &l->last) = v;
    l->first = v;
}

static void take_out(struct mco_visits *l, struct mco_visit *v)
{
    *(v->prev != NULL ? &v->prev->next : &l->first) = v->next;
    *(v->next != NULL ? &v->next->prev : &l->last) = v->prev;
}

static void level_add(struct mco_policy *p, struct mco_cell *c)
{
    c->prev = NULL;
    c->next = p->levels[c->level];
    if (c->next != NULL)
        c->next->prev = c;
    p->levels[c->level] = c;
    p->full[c->level / 64] |= UINT64_C(1) << c->level % 64;
}

static void level_remove(struct mco_policy *p, struct mco_cell *c)
{
    *(c->prev != NULL ? &c->prev->next : &p->levels[c->level]) = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    if (p->levels[c->level] == NULL)
        p->full[c->level / 64] &= ~(UINT64_C(1) << c->level % 64);
}

void mco_visit_leave(struct mco_policy *p, struct mco_visit *v)
{
    struct mco_cell *c = &p->cells[v->class][v->age];

    if (v->where == MCO_OPEN) {
        take_out(&p->open, v);
    } else if (v->where == MCO_STUCK) {
        take_out(&p->stuck, v);
    } else if (v->where == MCO_GHOST) {
        take_out(&p->ghosts, v);
        p->nghosts--;
    } else if (v->where == MCO_CELL) {
        take_out(&c->visits, v);
        if (c->visits.first == NULL)
            level_remove(p, c);
    }
    v->where = MCO_FREE;
}

void mco_visit_enter_cell(struct mco_policy *p, struct mco_visit *v, bool as_oldest)
{
    struct mco_cell *c = &p->cells[v->class][v->age];

    if (c->visits.first == NULL)
        level_add(p, c);
    if (as_oldest)
        add_first(&c->visits, v);
    else
        mco_visits_add(&c->visits, v);
    v->where = MCO_CELL;
}

/* ---- ages -------------------------------------------------------------------------------------------- */

/* Of a batch each entry is watched by itself. */
static int weight(const struct mco_visit *v)
{
    return v->batch ? (int)v->count : v->watched && v->classed;
}

void mco_visit_age_add(struct mco_policy *p, struct mco_visit *v)
{
    struct mco_visits *l = &p->ages[v->age];

    v->age_next = NULL;
    v->age_prev = l->last;
    *(l->last != NULL ? &l->last->age_next : &l->first) = v;
    l->last = v;
}

static void age_remove(struct mco_policy *p, struct mco_visit *v)
{
    struct mco_visits *l = &p->ages[v->age];

    *(v->age_prev != NULL ? &v->age_prev->age_next : &l->first) = v->age_next;
    *(v->age_next != NULL ? &v->age_next->age_prev : &l->last) = v->age_prev;
}

static void watch(struct mco_policy *p, const struct mco_visit *v, int change)
{
    if (change != 0)
        mco_values_watch(&p->values, v->class, v->age, change, p->now);
}

void mco_visits_grow_older(struct mco_policy *p)
{
    struct mco_visit *v;

    p->aged = p->now;
    for (unsigned a = MCO_VALUE_AGES - 1; a-- > 0;)
        while ((v = p->ages[a].first) != NULL && p->now - v->born >= mco_values_begin(a + 1)) {
            bool in_cell = v->where == MCO_CELL;

            if (in_cell)
                mco_visit_leave(p, v);
            watch(p, v, -weight(v));
            age_remove(p, v);
            v->age++;
            mco_visit_age_add(p, v);
            watch(p, v, weight(v));
            if (in_cell)
                mco_visit_enter_cell(p, v, false);
        }
}

/* ---- visits ------------------------------------------------------------------------------------------- */

static void gone_forget(struct mco_policy *p, struct mco_visit *v)
{
    struct mco_visit **at = &p->gone[v->gone % MCO_GONE_SLOTS];

    if (v->gone == 0)
        return;
    while (*at != v)
        at = &(*at)->gone_next;
    *at = v->gone_next;
    v->gone = 0;
}

void mco_gone_remember(struct mco_policy *p, struct mco_visit *v, const struct mco_policy_entry *e)
{
    if (v->gone != 0 && v->gone_position < e->words[2])
        return;
    gone_forget(p, v);
    v->gone = e->hash;
    v->gone_position = (uint32_t)e->words[2];
    v->gone_next = p->gone[v->gone % MCO_GONE_SLOTS];
    p->gone[v->gone % MCO_GONE_SLOTS] = v;
}

struct mco_visit *mco_gone_find(struct mco_policy *p, uint64_t hash)
{
    struct mco_visit *v = p->gone[hash % MCO_GONE_SLOTS];

    while (v != NULL && (v->gone != hash || !v->watched))
        v = v->gone_next;
    return v;
}

static void free_visit(struct mco_policy *p, struct mco_visit *v)
{
    mco_visit_leave(p, v);
    gone_forget(p, v);
    watch(p, v, -weight(v));
    age_remove(p, v);
    v->next = p->free_visits;
    p->free_visits = v;
    p->nvisits--;
}

/* Nothing lies in it, and nobody adds to it any more. */
void mco_visit_empty(struct mco_policy *p, struct mco_visit *v)
{
    if (v == &p->spare)
        return;
    if (v->batch || !v->watched || !v->classed || v->gone == 0) {
        free_visit(p, v);
        return;
    }
    mco_visit_leave(p, v);
    mco_visits_add(&p->ghosts, v);
    v->where = MCO_GHOST;
    p->nghosts++;
    if (p->nghosts > GHOSTS_MIN && p->nghosts > p->nvisits / 2)
        free_visit(p, p->ghosts.first);
}

static bool is_newest_batch(const struct mco_policy *p, const struct mco_visit *v)
{
    return v == p->batches[0] || v == p->batches[1] || v == p->batches[2];
}

void mco_visit_lose(struct mco_policy *p, struct mco_policy_entry *e)
{
    struct mco_visit *v = mco_visit_of(e);

    *(e->prev != NULL ? &e->prev->next : &v->first) = e->next;
    *(e->next != NULL ? &e->next->prev : &v->last) = e->prev;
    v->count--;
    if (v->batch)
        watch(p, v, -1);
    if (v->where == MCO_STUCK) { /* its end may be free now */
        mco_visit_leave(p, v);
        mco_visit_enter_cell(p, v, true);
    }
    if (v->count == 0 && !v->walked && !is_newest_batch(p, v))
        mco_visit_empty(p, v);
}

void mco_visit_gain(struct mco_visit *v, struct mco_policy_entry *e)
{
    e->words[0] = (uint64_t)(uintptr_t)v;
    e->next = NULL;
    e->prev = v->last;
    *(v->last != NULL ? &v->last->next : &v->first) = e;
    v->last = e;
    v->count++;
}

static struct mco_visit *batch_for(struct mco_policy *p, unsigned class)
{
    struct mco_visit **at = &p->batches[class - MCO_LOOSE], *v = *at;

    if (v != NULL && v->count < BATCH_MAX && p->now - v->born < BATCH_AGE)
        return v;
    v = mco_visit_take(p);
    if (v == NULL)
        return *at != NULL ? *at : &p->spare;
    v->batch = v->classed = true;
    v->class = (uint8_t) class;
    mco_visit_age_add(p, v);
    mco_visit_enter_cell(p, v, false);
    if (*at != NULL && (*at)->count == 0) {
        struct mco_visit *old = *at;

        *at = v;
        mco_visit_empty(p, old);
    }
    *at = v;
    return v;
}

void mco_batch_gain(struct mco_policy *p, unsigned class, struct mco_policy_entry *e)
{
    struct mco_visit *v = batch_for(p, class);

    e->words[0] = (uint64_t)(uintptr_t)v;
    e->prev = NULL;
    e->next = v->first;
    *(v->first != NULL ? &v->first->prev : &v->last) = e;
    v->first = e;
    v->count++;
    watch(p, v, 1);
}

/* It came back, and goes on as v. */
void mco_visit_came_back(struct mco_policy *p, struct mco_visit *old, struct mco_visit *v)
{
    if (old == v || !old->watched || old->batch)
        return;
    if (old->classed) {
        watch(p, old, -1);
        mco_values_returned(&p->values, old->class, old->age);
    }
    old->watched = false;
    gone_forget(p, old);
    v->turn = old->turn + 1;
    if (v->known + 1 < old->length)
        v->known = old->length - 1;
    if (old->where == MCO_GHOST)
        free_visit(p, old);
}

void mco_visit_renew(struct mco_policy *p, struct mco_visit *v)
{
    mco_visit_leave(p, v);
    watch(p, v, -weight(v));
    if (v->classed)
        mco_values_returned(&p->values, v->class, v->age);
    gone_forget(p, v);
    age_remove(p, v);
    v->born = p->now;
    v->age = 0;
    v->classed = false;
    v->turn++;
    v->known = v->length - 1;
    mco_visit_age_add(p, v);
    mco_visits_add(&p->open, v);
    v->where = MCO_OPEN;
}

static unsigned log2_of(uint32_t n, unsigned most)
{
    unsigned log = n == 0 ? 0 : 31u - (unsigned)__builtin_clz(n);

    return log < most ? log : most;
}

static unsigned class_of(const struct mco_visit *v, uint32_t found)
{
    unsigned turn = v->turn < 3 ? v->turn : 3;
    uint32_t known = v->known < v->length ? v->known : v->length;

    if (turn == 0)
        return (found >= 3 ? FIRST_KNOWN : FIRST_TURN) + log2_of(v->length, 8);
    return LATER_TURN + 7 * (turn - 1) + (known == v->length ? 6 : log2_of(v->length - known, 5));
}

/* Enough of the request was seen to tell what it is like. */
void mco_visit_classify(struct mco_policy *p, struct mco_visit *v, uint32_t found)
{
    if (found > v->known)
        v->known = found;
    mco_visit_leave(p, v);
    watch(p, v, -weight(v));
    v->class = (uint8_t)class_of(v, found);
    v->classed = true;
    watch(p, v, weight(v));
    mco_visit_enter_cell(p, v, false);
}

static bool pooled(unsigned class)
{
    return class < MCO_LAST;
}

void mco_visits_refresh(struct mco_policy *p)
{
    unsigned class = mco_values_refresh(&p->values, p->now, pooled);

    for (unsigned a = 0; a < MCO_VALUE_AGES; a++) {
        struct mco_cell *c = &p->cells[class][a];
        uint8_t level = class == MCO_ORPHAN ? 0 : p->values.level[class][a];

        if (c->level == level)
            continue;
        if (c->visits.first != NULL)
            level_remove(p, c);
        c->level = level;
        if (c->visits.first != NULL)
            level_add(p, c);
    }
}
