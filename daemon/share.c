/* SPDX-License-Identifier: Apache-2.0 */
#include "share.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "shm/atomic.h"
#include "tenant.h"

#define STARVED 16u   /* a lower class that waits gets one part in so many */
#define AHEAD 2u      /* quanta that small things may be ahead */
#define REMEMBERED 4u /* quanta of debt that are remembered while somebody wants nothing */

/* Whose sessions have no tenant: tests, and what runs before there is one. */
static struct mcd_tenant nobody = {.scale = MCD_SHARE_ONE};

void mcd_shares_init(struct mcd_shares *s, uint64_t quantum, uint64_t tick_hz)
{
    memset(s, 0, sizeof(*s));
    s->quantum = quantum;
    s->tick_hz = tick_hz;
    s->turn = 1;
}

void mcd_shares_fini(struct mcd_shares *s)
{
    while (s->all != NULL) {
        struct mcd_share_tenant *t = s->all;

        s->all = t->next;
        free(t);
    }
}

/* ---- joining --------------------------------------------------------------------- */

int mcd_share_join(struct mcd_shares *s, struct mcd_share_leaf *l, struct mcd_tenant *tenant,
                   const void *key)
{
    struct mcd_share_tenant *t = s->all;
    struct mcd_share_session *k;

    tenant = tenant != NULL ? tenant : &nobody;
    while (t != NULL && t->tenant != tenant)
        t = t->next;
    if (t == NULL) {
        t = calloc(1, sizeof(*t));
        if (t == NULL)
            return -ENOMEM;
        t->tenant = tenant;
        t->next = s->all;
        s->all = t;
    }
    k = t->all;
    while (k != NULL && k->key != key)
        k = k->next;
    if (k == NULL) {
        k = calloc(1, sizeof(*k));
        if (k == NULL)
            return -ENOMEM; /* a tenant without sessions does no harm and goes with the next one's */
        k->key = key;
        k->tenant = t;
        k->next = t->all;
        t->all = k;
    }
    k->members++;
    memset(l, 0, sizeof(*l));
    l->session = k;
    return 0;
}

/* A tenant's record goes with its last session: the tenant itself may go then. */
static void drop_session(struct mcd_shares *s, struct mcd_share_session *k)
{
    struct mcd_share_session **link = &k->tenant->all;
    struct mcd_share_tenant **tlink = &s->all;

    while (*link != k)
        link = &(*link)->next;
    *link = k->next;
    if (k->tenant->all == NULL) {
        while (*tlink != k->tenant)
            tlink = &(*tlink)->next;
        *tlink = k->tenant->next;
        free(k->tenant);
    }
    free(k);
}

void mcd_share_leave(struct mcd_shares *s, struct mcd_share_leaf *l)
{
    struct mcd_share_session *k = l->session;

    if (k == NULL)
        return;
    mcd_share_set(s, l, 0, 0);
    l->session = NULL;
    if (--k->members == 0)
        drop_session(s, k);
}

/* ---- who wants something --------------------------------------------------------- */

/* Virtual times wrap around: only differences mean something. */
static inline bool before(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) < 0;
}

/* Had it no leave to go when it was last looked at? Then nobody waits for it. */
static bool held_back(const struct mcd_share *tenant)
{
    return ((const struct mcd_share_tenant *)tenant)->throttled_since != 0;
}

/* The virtual time of the one furthest behind of those that are busy in this class. */
static uint64_t floor_of(const struct mcd_shares *s, struct mcd_share_group *g, unsigned class,
                         bool tenants)
{
    uint64_t least = g->floor[class];
    bool any = false;

    if (g->looked_at[class] == s->turn)
        return least;
    g->looked_at[class] = s->turn;
    for (const struct mcd_share *m = g->busy; m != NULL; m = m->next) {
        if (tenants ? held_back(m) : (m->busy >> class & 1) == 0)
            continue;
        if (any && !before(m->at[class], least))
            continue;
        least = m->at[class];
        any = true;
    }
    g->floor[class] = least;
    return least;
}

static void list_add(struct mcd_share_group *g, struct mcd_share *m)
{
    m->prev = NULL;
    m->next = g->busy;
    if (g->busy != NULL)
        g->busy->prev = m;
    g->busy = m;
}

static void list_remove(struct mcd_share_group *g, struct mcd_share *m)
{
    if (m->prev != NULL)
        m->prev->next = m->next;
    else
        g->busy = m->next;
    if (m->next != NULL)
        m->next->prev = m->prev;
}

/* Who begins to want something has saved nothing up while it wanted nothing, and owes what it had too much of
 * a moment ago. */
static void arrive(struct mcd_share *m, unsigned class, uint64_t floor, uint64_t remembered)
{
    if (m->at[class] - floor > remembered)
        m->at[class] = floor;
}

/*
 * Sets the bits of a member in its group. `floors` has the virtual time of the group by class; a tenant has
 * one for all classes.
 */
static void change(const struct mcd_shares *s, struct mcd_share_group *g, struct mcd_share *m,
                   uint8_t busy, uint8_t ready, uint64_t scale, bool tenants)
{
    uint8_t fresh = (uint8_t)(busy & ~m->busy);

    if (tenants && m->busy == 0 && busy != 0)
        arrive(m, 0, floor_of(s, g, 0, true), REMEMBERED * s->quantum * scale);
    for (unsigned c = 0; !tenants && c < MCS_CLASS_COUNT; c++)
        if ((fresh >> c & 1) != 0)
            arrive(m, c, floor_of(s, g, c, false), REMEMBERED * s->quantum);
    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++) {
        g->nbusy[c] += (uint32_t)(busy >> c & 1) - (uint32_t)(m->busy >> c & 1);
        g->nready[c] += (uint32_t)(ready >> c & 1) - (uint32_t)(m->ready >> c & 1);
    }
    if (m->busy == 0 && busy != 0)
        list_add(g, m);
    else if (m->busy != 0 && busy == 0)
        list_remove(g, m);
    m->busy = busy;
    m->ready = ready;
}

static uint8_t bits(const uint32_t *n)
{
    return (uint8_t)((n[0] != 0) | (n[1] != 0) << 1 | (n[2] != 0) << 2);
}

void mcd_share_change(struct mcd_shares *s, struct mcd_share_leaf *l, uint8_t busy, uint8_t ready)
{
    struct mcd_share_session *k = l->session;
    struct mcd_share_tenant *t = k->tenant;
    /* partner: set_limits() in tenant.c */
    uint64_t scale = mcs_load_relaxed(&t->tenant->scale);

    s->nbusy += (uint32_t)(busy != 0) - (uint32_t)(l->share.busy != 0);
    s->nready += (uint32_t)(ready != 0) - (uint32_t)(l->share.ready != 0);
    /* from below, so that each knows what is in it; who arrives looks at those who are there already */
    change(s, &k->leaves, &l->share, busy, ready, 1, false);
    change(s, &t->sessions, &k->share, bits(k->leaves.nbusy), bits(k->leaves.nready), 1, false);
    change(s, &s->tenants, &t->share, bits(t->sessions.nbusy), bits(t->sessions.nready), scale,
           true);
    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++)
        if (t->sessions.nbusy[c] == 0)
            t->passed[c] = 0;
    if (t->share.busy == 0)
        t->throttled_since = 0;
}

/* ---- who is next ----------------------------------------------------------------- */

/* The class that a tenant would be served in, MCS_CLASS_COUNT: none can be now. */
static unsigned class_of(const struct mcd_shares *s, const struct mcd_share_tenant *t)
{
    const struct mcd_share_group *g = &t->sessions;

    for (unsigned c = MCS_CLASS_COUNT; c-- > 1;)
        if (g->nready[c] != 0 && t->passed[c] >= (STARVED - 1) * s->quantum)
            return c;
    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++)
        if (g->nbusy[c] != 0)
            return g->nready[c] != 0 ? c : MCS_CLASS_COUNT;
    return MCS_CLASS_COUNT;
}

/* The ready one furthest behind; NULL: none may go before those that are only busy. */
static struct mcd_share *furthest_behind(struct mcd_shares *s, struct mcd_share_group *g,
                                         unsigned class)
{
    struct mcd_share *best = NULL;
    uint64_t least = 0;
    bool any = false;

    for (struct mcd_share *m = g->busy; m != NULL; m = m->next) {
        if ((m->busy >> class & 1) == 0)
            continue;
        if (!any || before(m->at[class], least))
            least = m->at[class];
        any = true;
        if ((m->ready >> class & 1) != 0 && (best == NULL || before(m->at[class], best->at[class])))
            best = m;
    }
    if (any) {
        g->floor[class] = least;
        g->looked_at[class] = s->turn;
    }
    return best != NULL && best->at[class] - least <= s->quantum ? best : NULL;
}

/* Has it leave to go? Counts the time that it has not, in which the others go on: it saves up no more than
 * a few quanta, or it would keep them all waiting as soon as its rate is raised. */
static bool has_leave(const struct mcd_shares *s, struct mcd_share_tenant *t, uint64_t now)
{
    bool may = mcd_tenant_may(t->tenant, now);

    if (!may) {
        /* partner: set_limits() in tenant.c */
        uint64_t least =
            s->tenants.floor[0] - REMEMBERED * s->quantum * mcs_load_relaxed(&t->tenant->scale);

        if (before(t->share.at[0], least))
            t->share.at[0] = least;
        if (t->throttled_since == 0)
            t->throttled_since = now;
    } else if (may && t->throttled_since != 0) {
        mcs_fetch_add(&t->tenant->throttled, now - t->throttled_since);
        t->throttled_since = 0;
    }
    return may;
}

static struct mcd_share_tenant *pick_tenant(struct mcd_shares *s, uint64_t now, unsigned *class)
{
    struct mcd_share_tenant *best = NULL;
    uint64_t least = 0;
    bool any = false;

    for (struct mcd_share *m = s->tenants.busy; m != NULL; m = m->next) {
        struct mcd_share_tenant *t = (struct mcd_share_tenant *)m;
        unsigned c;

        if (!has_leave(s, t, now))
            continue;
        if (!any || before(m->at[0], least))
            least = m->at[0];
        any = true;
        c = class_of(s, t);
        if (c == MCS_CLASS_COUNT || (best != NULL && !before(m->at[0], best->share.at[0])))
            continue;
        best = t;
        *class = c;
    }
    if (any) {
        s->tenants.floor[0] = least;
        s->tenants.looked_at[0] = s->turn;
    }
    if (best == NULL ||
        best->share.at[0] - least > s->quantum * mcs_load_relaxed(&best->tenant->scale))
        return NULL;
    return best;
}

struct mcd_share_leaf *mcd_share_pick(struct mcd_shares *s, uint64_t now, unsigned *class)
{
    struct mcd_share_tenant *t = s->nready == 0 ? NULL : pick_tenant(s, now, class);
    struct mcd_share *m = t == NULL ? NULL : furthest_behind(s, &t->sessions, *class);

    if (m != NULL)
        m = furthest_behind(s, &((struct mcd_share_session *)m)->leaves, *class);
    return (struct mcd_share_leaf *)m;
}

/* Where nobody else wants anything the time goes on with who was served, and nobody gets ahead. */
static void give(struct mcd_share_group *g, struct mcd_share *m, unsigned class, uint64_t what,
                 bool others)
{
    m->at[class] += what;
    if (!others)
        g->floor[class] = m->at[class];
}

/* Does another one want something in this class? */
static bool has_others(const struct mcd_share_group *g, const struct mcd_share *m, unsigned class)
{
    return g->nbusy[class] != (uint32_t)(m->busy >> class & 1);
}

void mcd_share_count(struct mcd_shares *s, struct mcd_share_leaf *l, unsigned class, uint64_t bytes)
{
    struct mcd_share_session *k = l->session;
    struct mcd_share_tenant *t = k->tenant;
    uint64_t turn = s->by_turns ? s->quantum : bytes;
    uint64_t most = 2 * STARVED * s->quantum, owed = (STARVED - 1) * turn;

    give(&k->leaves, &l->share, class, bytes, has_others(&k->leaves, &l->share, class));
    give(&t->sessions, &k->share, class, bytes, has_others(&t->sessions, &k->share, class));
    /* partner: set_limits() in tenant.c */
    give(&s->tenants, &t->share, 0, bytes * mcs_load_relaxed(&t->tenant->scale),
         s->tenants.busy != NULL && (s->tenants.busy != &t->share || t->share.next != NULL));
    t->passed[class] -= owed < t->passed[class] ? owed : t->passed[class];
    for (unsigned c = class + 1; c < MCS_CLASS_COUNT; c++)
        if (t->sessions.nbusy[c] != 0 && t->passed[c] < most)
            t->passed[c] += turn;
}

void mcd_share_charge(struct mcd_shares *s, struct mcd_share_leaf *l, unsigned class,
                      uint64_t bytes, uint64_t now)
{
    mcd_share_count(s, l, class, bytes);
    mcd_tenant_pay(l->session->tenant->tenant, bytes, now, s->tick_hz);
}

static bool is_ahead(const struct mcd_shares *s, struct mcd_share_group *g,
                     const struct mcd_share *m, unsigned class, bool tenants, uint64_t by)
{
    uint64_t floor = floor_of(s, g, class, tenants);

    return before(floor, m->at[class]) && m->at[class] - floor > by;
}

bool mcd_share_may_pass(struct mcd_shares *s, struct mcd_share_leaf *l, unsigned class,
                        uint64_t now)
{
    struct mcd_share_session *k = l->session;
    struct mcd_share_tenant *t = k->tenant;
    struct mcd_share_group *g = &t->sessions;
    uint64_t ahead = AHEAD * s->quantum;

    if (!mcd_tenant_may(t->tenant, now))
        return false;
    for (unsigned c = 0; c < class; c++)
        if (g->nready[c] != 0)
            return false;
    /* partner: set_limits() in tenant.c */
    return !is_ahead(s, &s->tenants, &t->share, 0, true,
                     ahead * mcs_load_relaxed(&t->tenant->scale)) &&
           !is_ahead(s, g, &k->share, class, false, ahead) &&
           !is_ahead(s, &k->leaves, &l->share, class, false, ahead);
}
