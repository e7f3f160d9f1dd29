/* SPDX-License-Identifier: Apache-2.0 */
#include "route.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "net.h"
#include "shm/failpoint.h"

#define DETACH_NS UINT64_C(1000000000)
#define ASK_AGAIN_NS                                                                               \
    UINT64_C(300000000) /* a kill that is not confirmed by then is asked for again */

static const char *const state_words[] = {"down", "probation", "up", "suspect"};
static const char *const reason_words[] = {
    "fine",       "new",          "connection lost", "silent",
    "no carrier", "address gone", "damaged bytes",   "peer took it back"};

const char *mcd_rail_state_word(enum mcd_rail_state s)
{
    return (unsigned)s < sizeof(state_words) / sizeof(state_words[0]) ? state_words[s] : "unknown";
}

const char *mcd_rail_reason_word(enum mcd_rail_reason r)
{
    return (unsigned)r < sizeof(reason_words) / sizeof(reason_words[0]) ? reason_words[r]
                                                                        : "unknown";
}

static uint64_t monotonic(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- control thread -------------------------------------------------------------- */

int mcd_route_create(const struct mcd_route_options *o, struct mcd_route **out)
{
    struct mcd_route *r = calloc(1, sizeof(*r));

    if (r == NULL)
        return -ENOMEM;
    r->o = *o;
    mcd_shares_init(&r->shares, o->slice, o->engine->o.tick_hz);
    r->shares.by_turns = true;
    for (uint32_t w = 0; w < MCD_ROUTES_MAX / 64; w++) {
        uint64_t *word = &o->engine->routes_used[w];

        if (~*word == 0)
            continue;
        r->index = w * 64 + (uint32_t)__builtin_ctzll(~*word);
        *word |= UINT64_C(1) << (r->index % 64);
        *out = r;
        return 0;
    }
    free(r);
    return -ENOSPC;
}

void mcd_route_destroy(struct mcd_route *r)
{
    if (r == NULL)
        return;
    r->o.engine->routes_used[r->index / 64] &= ~(UINT64_C(1) << (r->index % 64));
    mcd_shares_fini(&r->shares);
    free(r);
}

int mcd_route_rail(struct mcd_route *r, const struct mcd_rail_options *o)
{
    struct mcd_route_rail *rr = &r->rails[r->made];

    if (r->made == MCD_ROUTE_RAILS_MAX)
        return -ENOSPC;
    snprintf(rr->local, sizeof(rr->local), "%s", o->local);
    snprintf(rr->peer, sizeof(rr->peer), "%s", o->peer);
    rr->ops = o->ops;
    rr->tier = o->tier;
    rr->rank = o->rank;
    rr->node = o->node;
    rr->slice = o->slice;
    rr->window = o->window;
    rr->silence_ns = o->silence_ns;
    rr->shown.reason = MCD_RAIL_NEW;
    mcs_store_release(&r->made, r->made + 1); /* partner: take_rails() */
    return (int)r->made - 1;
}

unsigned mcd_route_take_ended(struct mcd_route *r, uint64_t *conns, unsigned n)
{
    uint32_t head = mcs_load_acquire(&r->ended_head); /* partner: ended() */
    unsigned taken = 0;

    while (taken < n && r->ended_tail != head) {
        conns[taken++] = r->ended[r->ended_tail % MCD_ENDED];
        mcs_store_release(&r->ended_tail, r->ended_tail + 1); /* partner: ended() */
    }
    return taken;
}

void mcd_route_get_report(const struct mcd_route *r, struct mcd_route_report *out)
{
    memset(out, 0, sizeof(*out));
    out->rails = r->made;
    for (unsigned i = 0; i < out->rails; i++) {
        const struct mcd_route_rail *rr = &r->rails[i];
        struct mcd_rail_report *p = &out->rail[i];

        p->state = (enum mcd_rail_state)mcs_load_relaxed(&rr->shown.state);
        p->reason = (enum mcd_rail_reason)mcs_load_relaxed(&rr->shown.reason);
        p->since_ns = mcs_load_relaxed(&rr->shown.since_ns);
        p->ops = rr->ops;
        p->tier = rr->tier;
        memcpy(p->local, rr->local, sizeof(p->local));
        memcpy(p->peer, rr->peer, sizeof(p->peer));
        p->rank = rr->rank;
        p->conns = mcs_load_relaxed(&rr->shown.conns);
        p->lost = mcs_load_relaxed(&rr->lost);
        p->bytes = mcs_load_relaxed(&rr->bytes);
        p->slices = mcs_load_relaxed(&rr->slices);
        p->failed = mcs_load_relaxed(&rr->failed);
        p->queued = mcs_load_relaxed(&rr->shown.queued);
        p->rate = (double)mcs_load_relaxed(&rr->shown.rate);
        p->rtt_ns = mcs_load_relaxed(&rr->shown.rtt_ns);
        p->loaded_ns = mcs_load_relaxed(&rr->shown.loaded_ns);
    }
    out->moved_over = mcs_load_relaxed(&r->moved_over);
    out->waiting = mcs_load_relaxed(&r->tasks);
    out->unsettled = mcs_load_relaxed(&r->nunsettled);
    out->wants = mcs_load_relaxed(&r->wants) != 0;
}

/* ---- engine: what is active, what has changed ------------------------------------ */

static void activate(struct mcd_net *n, struct mcd_route *r)
{
    if (r->active)
        return;
    r->active = true;
    r->active_prev = NULL;
    r->active_next = n->active;
    if (n->active != NULL)
        n->active->active_prev = r;
    n->active = r;
}

static void deactivate(struct mcd_net *n, struct mcd_route *r)
{
    if (!r->active)
        return;
    r->active = false;
    if (r->active_prev != NULL)
        r->active_prev->active_next = r->active_next;
    else
        n->active = r->active_next;
    if (r->active_next != NULL)
        r->active_next->active_prev = r->active_prev;
}

void mcd_route_dirty(struct mcd_net *n, struct mcd_route *r)
{
    if (r->dirty || !r->attached)
        return;
    r->dirty = true;
    r->dirty_next = n->dirty;
    n->dirty = r;
    activate(n, r);
}

static void forget_dirty(struct mcd_net *n, struct mcd_route *r)
{
    struct mcd_route **link = &n->dirty;

    while (*link != NULL && *link != r)
        link = &(*link)->dirty_next;
    if (*link == r)
        *link = r->dirty_next;
    r->dirty = false;
}

void mcd_route_show(struct mcd_engine *g, struct mcd_route *r)
{
    bool works = mcd_route_works(r), wants = r->tasks != 0 && !works, best = false;

    for (unsigned i = 0; i < r->nrails; i++) {
        struct mcd_route_rail *rr = &r->rails[i];
        const struct mcd_rail *rail = &rr->rail;

        best = best || (rr->tier == r->best && mcd_rail_works(rail));
        mcs_store_relaxed(&rr->shown.conns, rail->conns);
        mcs_store_relaxed(&rr->shown.queued, rail->queued);
        mcs_store_relaxed(&rr->shown.rate, (uint64_t)(rail->rate * 1e9));
        mcs_store_relaxed(&rr->shown.rtt_ns, rail->rtt_ns);
        mcs_store_relaxed(&rr->shown.loaded_ns, rail->loaded_ns);
        if (rr->changes == rail->changes)
            continue;
        rr->changes = rail->changes;
        mcs_store_relaxed(&rr->shown.state, (uint32_t)rail->state);
        mcs_store_relaxed(&rr->shown.reason, (uint32_t)rail->reason);
        mcs_store_relaxed(&rr->shown.since_ns, monotonic());
        mcd_log_limited(MCD_LOG_INFO, "engine %u, peer %s: rail %s - %s is %s (%s)", g->o.id,
                        r->o.peer, rr->local, rr->peer, mcd_rail_state_word(rail->state),
                        mcd_rail_reason_word(rail->reason));
        mcd_engine_tell_control(g);
    }
    if (works)
        r->down_since = 0;
    else if (r->down_since == 0)
        r->down_since = g->net->now;
    if (best && r->best_down_since != 0)
        r->fallen = false;
    if (best)
        r->best_down_since = 0;
    else if (r->best_down_since == 0)
        r->best_down_since = g->net->now;
    if (wants && r->wants == 0)
        mcd_engine_tell_control(g);
    mcs_store_relaxed(&r->wants, wants ? 1u : 0u);
}

void mcd_route_abort(struct mcd_engine *g, struct mcd_route *r, unsigned rail, int error)
{
    struct mcd_route_rail *rr = &r->rails[rail];

    if (rr->rail.conns == rr->rail.dying)
        return;
    rr->ops->abort(rr->link, error);
    mcd_rail_given_up(&rr->rail, g->net->now);
    mcd_route_show(g, r);
}

/* Tasks that have waited for a rail for too long; the oldest come first. strict: those that take only the best. */
static void give_up_waiting(struct mcd_engine *g, struct mcd_route *r, uint64_t since, bool strict,
                            enum mcs_status error)
{
    uint64_t now = g->net->ticks, limit;

    if (since == 0 || g->net->now - since < r->o.down_ns)
        return;
    limit = r->o.down_ns / 1000 * g->ticks_per_us;
    for (struct mcd_lane *l = r->lanes; l != NULL; l = l->route_next) {
        uint32_t slot = l->q->age_head;

        while (slot != MCD_NO_TASK && l->tasks != 0) {
            struct mcd_task *t = &l->q->tasks[slot];

            slot = t->age_next;
            if (now - t->taken < limit)
                break;
            if (t->lane == l && (!strict || (t->desc.flags & MCS_DESC_STRICT) != 0))
                mcd_remote_finish(g, t, MCS_STATE_FAILED, error, false);
        }
    }
}

void mcd_route_tick(struct mcd_engine *g, struct mcd_route *r, bool late)
{
    bool works = mcd_route_works(r), resting = false;
    uint64_t now = g->net->now;

    for (unsigned i = 0; i < r->nrails; i++) {
        struct mcd_route_rail *rr = &r->rails[i];

        mcd_rail_tick(&rr->rail, !works, now);
        works = works || mcd_rail_works(&rr->rail);
        resting = resting || rr->rail.state == MCD_RAIL_SUSPECT;
        if (rr->rail.conns == rr->rail.dying || rr->rail.out == 0)
            continue;
        if (late)
            rr->rail.progress_at = now;
        if (mcd_rail_silent(&rr->rail, rr->ops->progress(rr->link), now)) {
            mcd_rail_suspect(&rr->rail, MCD_RAIL_SILENT, now);
            mcd_route_abort(g, r, i, -ETIMEDOUT);
        }
    }
    if (r->nunsettled != 0)
        mcd_route_ask_kills(g, r);
    mcd_route_show(g, r);
    give_up_waiting(g, r, r->down_since, false, MCS_PEER_UNREACHABLE);
    if (r->down_since == 0)
        give_up_waiting(g, r, r->best_down_since, true, MCS_STRICT);
    if (r->tasks != 0)
        mcd_route_dirty(g->net, r);
    else if (r->nunsettled == 0 && !resting && !r->dirty)
        deactivate(g->net, r);
}

/* ---- lost connections ------------------------------------------------------------ */

bool mcd_route_is_unsettled(const struct mcd_route *r, uint64_t conn)
{
    for (unsigned i = 0; i < r->nunsettled; i++)
        if (r->unsettled[i].conn == conn)
            return true;
    return false;
}

bool mcd_route_unsettled(struct mcd_route *r, unsigned rail, uint64_t conn)
{
    bool by_agent = (r->rails[rail].ops->capabilities & MCT_CAP_KILL_BY_AGENT) != 0;

    if (mcd_route_is_unsettled(r, conn))
        return true;
    if (r->nunsettled == MCD_UNSETTLED)
        return false;
    r->unsettled[r->nunsettled] = (struct mcd_unsettled){.conn = conn, .by_agent = by_agent};
    mcs_store_relaxed(&r->nunsettled, r->nunsettled + 1);
    return true;
}

bool mcd_route_has_ways(const struct mcd_route *r)
{
    unsigned living = 0;

    for (unsigned i = 0; i < r->nrails; i++)
        living += r->rails[i].rail.conns - r->rails[i].rail.dying;
    return living > 1;
}

void mcd_route_doubt(struct mcd_route *r, unsigned rail, uint64_t conn, bool write)
{
    uint64_t can = r->rails[rail].ops->capabilities;

    if ((can & (MCT_CAP_KILL | MCT_CAP_KILL_BY_AGENT)) == 0)
        return;
    /* what is written over another one would come before it; and a queue pair that a WRITE was called back from is being
     * lost now */
    if (mcd_route_has_ways(r) || (write && (can & MCT_CAP_KILL_BY_AGENT) != 0)) {
        (void)mcd_route_unsettled(r, rail, conn);
        return;
    }
    for (unsigned i = 0; i < r->ndoubtful; i++)
        if (r->doubtful[i].conn == conn)
            return;
    if (r->ndoubtful < MCD_DOUBTFUL)
        r->doubtful[r->ndoubtful++] = (struct mcd_doubtful){conn, rail};
    else
        (void)mcd_route_unsettled(r, rail,
                                  conn); /* killed at once, then; full: writes wait anyway */
}

/* There is another connection now, over which later WRITEs could pass what was called back. */
static void settle_doubts(struct mcd_engine *g, struct mcd_route *r)
{
    if (!mcd_route_has_ways(r))
        return;
    while (r->ndoubtful != 0) {
        const struct mcd_doubtful *d = &r->doubtful[--r->ndoubtful];

        (void)mcd_route_unsettled(r, d->rail, d->conn);
        if ((r->rails[d->rail].ops->capabilities & MCT_CAP_KILL_BY_AGENT) != 0)
            mcd_route_abort(g, r, d->rail, -ECANCELED); /* nobody can be asked over it */
    }
}

/* It is lost: what was called back may still land. */
static void end_doubt(struct mcd_route *r, uint64_t conn)
{
    for (unsigned i = 0; i < r->ndoubtful; i++)
        if (r->doubtful[i].conn == conn) {
            unsigned rail = r->doubtful[i].rail;

            r->doubtful[i] = r->doubtful[--r->ndoubtful];
            (void)mcd_route_unsettled(r, rail, conn);
            return;
        }
}

void mcd_route_ask_kills(struct mcd_engine *g, struct mcd_route *r)
{
    for (unsigned i = 0; i < r->nunsettled; i++) {
        struct mcd_unsettled *u = &r->unsettled[i];

        if (u->by_agent || (u->asked && g->net->now - u->asked_at < ASK_AGAIN_NS))
            continue;
        u->asked = false;
        for (unsigned k = 0; k < r->nrails && !u->asked; k++) {
            unsigned rail = r->next_killer++ % r->nrails;
            const struct mcd_route_rail *rr = &r->rails[rail];

            if (rr->rail.conns == rr->rail.dying || !rr->rail.usable ||
                (rr->ops->capabilities & MCT_CAP_KILL) == 0 ||
                rr->ops->kill(rr->link, u->conn) != 0)
                continue;
            u->asked = true;
            u->rail = rail;
            u->asked_at = g->net->now;
        }
    }
}

/* Lost connections and kills are rare: a search is good enough. */
static struct mcd_route *find_link(struct mcd_net *n, const struct mct_link *link, unsigned *rail)
{
    for (struct mcd_route *r = n->routes; r != NULL; r = r->next)
        for (unsigned i = 0; i < r->nrails; i++)
            if (r->rails[i].link == link) {
                *rail = i;
                return r;
            }
    return NULL;
}

/* The control thread sees to it that the peer's end goes, too. There is room: it opens no more than it knows of. */
static void ended(struct mcd_route *r, uint64_t conn)
{
    if (r->ended_head - mcs_load_acquire(&r->ended_tail) == MCD_ENDED) { /* partner: take_ended() */
        mcd_log_limited(MCD_LOG_ERROR, "peer %s: more than %u connections have ended unseen",
                        r->o.peer, MCD_ENDED);
        return;
    }
    r->ended[r->ended_head % MCD_ENDED] = conn;
    mcs_store_release(&r->ended_head, r->ended_head + 1); /* partner: mcd_route_take_ended() */
}

void mcd_route_on_lost(struct mcd_engine *g, struct mct_link *link, uint64_t conn, int error)
{
    unsigned rail;
    struct mcd_route *r = find_link(g->net, link, &rail);
    struct mcd_route_rail *rr;

    if (r == NULL)
        return;
    rr = &r->rails[rail];
    end_doubt(r, conn);
    mcd_debug("engine %u, peer %s: rail %s - %s lost connection %016llx: %s", g->o.id, r->o.peer,
              rr->local, rr->peer, (unsigned long long)conn, strerror(-error));
    mcd_rail_lost(&rr->rail, g->net->now);
    mcs_store_relaxed(&rr->lost, rr->lost + 1);
    if ((rr->ops->capabilities & MCT_CAP_KILL_BY_AGENT) != 0)
        ended(r, conn);
    for (unsigned i = 0; i < r->nunsettled; i++)
        if (r->unsettled[i].rail == rail)
            r->unsettled[i].asked = false;
    mcd_engine_tell_control(g); /* it opens a new one */
    mcd_route_show(g, r);
    mcd_route_dirty(g->net, r);
}

/* Nothing of it lands any more: what waited for that goes on. */
static void killed(struct mcd_engine *g, struct mcd_route *r, uint64_t conn)
{
    unsigned i = 0;

    while (i < r->nunsettled && r->unsettled[i].conn != conn)
        i++;
    if (i == r->nunsettled)
        return;
    MCS_FAILPOINT(kill_confirmed);
    r->unsettled[i] = r->unsettled[r->nunsettled - 1];
    mcs_store_relaxed(&r->nunsettled, r->nunsettled - 1);
    mcs_count(&g->counters.kills, 1);
    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++) {
        struct mcd_slice *s, *next;

        for (s = r->again[c][1].head; s != NULL; s = next) {
            next = s->again_next;
            if (!s->s.settled && s->s.conn == conn)
                mcd_remote_settled(g, s);
        }
    }
    mcd_route_dirty(g->net, r);
}

void mcd_route_on_killed(struct mcd_engine *g, struct mct_link *link, uint64_t conn)
{
    unsigned rail;
    struct mcd_route *r = find_link(g->net, link, &rail);

    if (r != NULL)
        killed(g, r, conn);
}

/* ---- engine: commands ------------------------------------------------------------ */

/* Rails that the control thread has added since. */
static void take_rails(struct mcd_engine *g, struct mcd_route *r)
{
    unsigned made = mcs_load_acquire(&r->made); /* partner: mcd_route_rail() */

    mcd_net_look_at_clock(g);
    while (r->attached && r->nrails < made) {
        struct mcd_route_rail *rr = &r->rails[r->nrails];
        int res = -EOPNOTSUPP;

        rr->transport = mcd_net_find(g->net, rr->ops);
        if (rr->transport != NULL)
            res = rr->ops->connect(rr->transport, rr, &rr->link);

        if (res != 0) {
            mcd_log_limited(MCD_LOG_WARNING, "engine %u, peer %s: cannot make a rail: %s", g->o.id,
                            r->o.peer, strerror(-res));
            return;
        }
        mcd_rail_init(&rr->rail, rr->rank, rr->slice, rr->window);
        if (rr->silence_ns != 0)
            rr->rail.silence_ns = rr->silence_ns;
        if (r->nrails == 0 || rr->tier < r->best)
            r->best = rr->tier;
        r->nrails++;
    }
}

bool mcd_route_attach(struct mcd_engine *g, struct mcd_command *c)
{
    struct mcd_route *r = c->context;
    struct mcd_net *n = g->net;

    r->attached = true;
    r->next = n->routes;
    if (n->routes != NULL)
        n->routes->prev = r;
    n->routes = r;
    take_rails(g, r);
    r->attached_at = n->now;
    mcd_route_show(g, r);
    mcd_route_dirty(n, r);
    return true;
}

/* Connections whose end the devices have not confirmed: while they are awaited, disconnect() need not wait. */
static bool ends(const struct mcd_engine *g, const struct mcd_route *r)
{
    for (unsigned i = 0; i < r->nrails; i++)
        if ((r->rails[i].ops->capabilities & MCT_CAP_KILL_BY_AGENT) != 0 &&
            r->rails[i].rail.conns != 0)
            return g->net->now - r->detached_at < DETACH_NS;
    return false;
}

bool mcd_route_detach(struct mcd_engine *g, struct mcd_command *c)
{
    struct mcd_route *r = c->context;
    struct mcd_net *n = g->net;

    mcd_net_look_at_clock(g);
    if (!r->detached) {
        r->detached = true;
        r->detached_at = n->now;
        for (struct mcd_lane *l = r->lanes; l != NULL; l = l->route_next)
            mcd_remote_finish_lane(g, l, MCS_STATE_FAILED, MCS_PEER_UNREACHABLE, true);
        for (unsigned i = 0; i < r->nrails; i++)
            mcd_route_abort(g, r, i, -ECONNABORTED);
    }
    mcd_net_reap(g);
    if (r->tasks != 0 || ends(g, r))
        return false;
    while (r->nrails != 0) {
        struct mcd_route_rail *rr = &r->rails[--r->nrails];

        rr->ops->disconnect(rr->link);
    }
    while (r->lanes != NULL)
        mcd_lane_free(r->lanes);
    if (r->attached) {
        forget_dirty(n, r);
        deactivate(n, r);
        if (r->prev != NULL)
            r->prev->next = r->next;
        else
            n->routes = r->next;
        if (r->next != NULL)
            r->next->prev = r->prev;
        r->attached = false;
    }
    return true;
}

/* The transport has not seen it. */
static void hand_back(struct mcd_route_conn *a)
{
    if (a->conn.pair != NULL)
        a->handed_back = true;
    else
        close(a->conn.fd);
}

bool mcd_route_adopt(struct mcd_engine *g, struct mcd_command *c)
{
    struct mcd_route_conn *a = c->context;
    struct mcd_route *r = a->route;
    struct mcd_route_rail *rr = &r->rails[a->rail];
    int res;

    take_rails(g, r);
    a->res = 0;
    if (r->detached || a->rail >= r->nrails) {
        a->res = -ECANCELED;
        hand_back(a);
        return true;
    }
    res = MCS_FAIL(rail_adopted);
    if (res == 0)
        res = rr->ops->adopt(rr->link, &a->conn);
    else
        hand_back(a);
    a->res = res;
    if (res != 0) {
        /* to the control thread the same as one that was lost at once: it tries again */
        mcd_log_limited(MCD_LOG_WARNING, "engine %u, peer %s: no connection on rail %s - %s: %s",
                        g->o.id, r->o.peer, rr->local, rr->peer, strerror(-res));
        mcs_store_relaxed(&rr->lost, rr->lost + 1);
        mcd_engine_tell_control(g);
        return true;
    }
    mcd_rail_connected(&rr->rail, g->net->now);
    settle_doubts(g, r);
    if (!rr->rail.usable)
        mcd_route_abort(g, r, a->rail, -ENETDOWN);
    else if (!mcd_route_works(r))
        mcd_rail_tick(&rr->rail, true, g->net->now);
    mcd_route_show(g, r);
    mcd_route_dirty(g->net, r);
    return true;
}

bool mcd_route_confirm(struct mcd_engine *g, struct mcd_command *c)
{
    const struct mcd_route_confirmed *k = c->context;

    mcd_net_look_at_clock(g);
    killed(g, k->route, k->conn);
    return true;
}

bool mcd_route_tell(struct mcd_engine *g, struct mcd_command *c)
{
    const struct mcd_route_word *w = c->context;
    struct mcd_route *r = w->route;

    take_rails(g, r);
    for (unsigned i = 0; i < r->nrails; i++) {
        if (w->rail >= 0 && (unsigned)w->rail != i)
            continue;
        if (mcd_rail_tell(&r->rails[i].rail, w->usable, w->reason, g->net->now))
            mcd_route_abort(g, r, i, -ENETDOWN);
    }
    if (w->rail < 0) {
        r->verdict = w->verdict;
        if (r->verdict != MCS_OK)
            for (struct mcd_lane *l = r->lanes; l != NULL; l = l->route_next)
                mcd_remote_finish_lane(g, l, MCS_STATE_FAILED, r->verdict, false);
    }
    mcd_route_show(g, r);
    mcd_route_dirty(g->net, r);
    return true;
}
