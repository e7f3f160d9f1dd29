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

int mcd_route_rail(struct mcd_route *r, const char *local, const char *peer, unsigned rank)
{
    struct mcd_route_rail *rr = &r->rails[r->made];

    if (r->made == MCD_RAILS_MAX)
        return -ENOSPC;
    snprintf(rr->local, sizeof(rr->local), "%s", local);
    snprintf(rr->peer, sizeof(rr->peer), "%s", peer);
    rr->rank = rank;
    rr->shown.reason = MCD_RAIL_NEW;
    mcs_store_release(&r->made, r->made + 1); /* partner: take_rails() */
    return (int)r->made - 1;
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
    bool works = mcd_route_works(r), wants = r->tasks != 0 && !works;

    for (unsigned i = 0; i < r->nrails; i++) {
        struct mcd_route_rail *rr = &r->rails[i];
        const struct mcd_rail *rail = &rr->rail;

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
    if (wants && r->wants == 0)
        mcd_engine_tell_control(g);
    mcs_store_relaxed(&r->wants, wants ? 1u : 0u);
}

void mcd_route_abort(struct mcd_engine *g, struct mcd_route *r, unsigned rail, int error)
{
    struct mcd_route_rail *rr = &r->rails[rail];

    if (rr->rail.conns == rr->rail.dying)
        return;
    r->o.ops->abort(rr->link, error);
    mcd_rail_given_up(&rr->rail, g->net->now);
    mcd_route_show(g, r);
}

/* Tasks that have waited for a rail for too long; the oldest come first. */
static void give_up_waiting(struct mcd_engine *g, struct mcd_route *r)
{
    uint64_t now = g->net->ticks, limit;

    if (r->down_since == 0 || g->net->now - r->down_since < r->o.down_ns)
        return;
    limit = r->o.down_ns / 1000 * g->ticks_per_us;
    for (struct mcd_lane *l = r->lanes; l != NULL; l = l->route_next) {
        uint32_t slot = l->q->age_head;

        while (slot != MCD_NO_TASK && l->tasks != 0) {
            struct mcd_task *t = &l->q->tasks[slot];

            slot = t->age_next;
            if (now - t->taken < limit)
                break;
            if (t->lane == l)
                mcd_remote_finish(g, t, MCS_STATE_FAILED, MCS_PEER_UNREACHABLE, false);
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
        if (mcd_rail_silent(&rr->rail, r->o.ops->progress(rr->link), now)) {
            mcd_rail_suspect(&rr->rail, MCD_RAIL_SILENT, now);
            mcd_route_abort(g, r, i, -ETIMEDOUT);
        }
    }
    if (r->nunsettled != 0)
        mcd_route_ask_kills(g, r);
    mcd_route_show(g, r);
    give_up_waiting(g, r);
    if (r->tasks != 0)
        mcd_route_dirty(g->net, r);
    else if (r->nunsettled == 0 && !resting && !r->dirty)
        deactivate(g->net, r);
}

/* ---- lost connections ------------------------------------------------------------ */

bool mcd_route_unsettled(struct mcd_route *r, uint64_t conn)
{
    for (unsigned i = 0; i < r->nunsettled; i++)
        if (r->unsettled[i].conn == conn)
            return true;
    if (r->nunsettled == MCD_UNSETTLED)
        return false;
    r->unsettled[r->nunsettled] = (struct mcd_unsettled){.conn = conn};
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

void mcd_route_doubt(struct mcd_route *r, uint64_t conn)
{
    if ((r->o.ops->capabilities & MCT_CAP_KILL) == 0)
        return;
    if (mcd_route_has_ways(r)) { /* what is written over another one would come before it */
        (void)mcd_route_unsettled(r, conn);
        return;
    }
    for (unsigned i = 0; i < r->ndoubtful; i++)
        if (r->doubtful[i] == conn)
            return;
    if (r->ndoubtful < MCD_DOUBTFUL)
        r->doubtful[r->ndoubtful++] = conn;
    else
        (void)mcd_route_unsettled(r, conn); /* killed at once, then; full: writes wait anyway */
}

/* There is another connection now, over which later WRITEs could pass what was called back. */
static void settle_doubts(struct mcd_route *r)
{
    if (!mcd_route_has_ways(r))
        return;
    while (r->ndoubtful != 0)
        (void)mcd_route_unsettled(r, r->doubtful[--r->ndoubtful]);
}

/* It is lost: what was called back may still land. */
static void end_doubt(struct mcd_route *r, uint64_t conn)
{
    for (unsigned i = 0; i < r->ndoubtful; i++)
        if (r->doubtful[i] == conn) {
            r->doubtful[i] = r->doubtful[--r->ndoubtful];
            (void)mcd_route_unsettled(r, conn);
            return;
        }
}

void mcd_route_ask_kills(struct mcd_engine *g, struct mcd_route *r)
{
    for (unsigned i = 0; i < r->nunsettled; i++) {
        struct mcd_unsettled *u = &r->unsettled[i];

        if (u->asked && g->net->now - u->asked_at < ASK_AGAIN_NS)
            continue;
        u->asked = false;
        for (unsigned k = 0; k < r->nrails && !u->asked; k++) {
            unsigned rail = r->next_killer++ % r->nrails;

            if (r->rails[rail].rail.conns == r->rails[rail].rail.dying ||
                !r->rails[rail].rail.usable || r->o.ops->kill(r->rails[rail].link, u->conn) != 0)
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
    for (unsigned i = 0; i < r->nunsettled; i++)
        if (r->unsettled[i].rail == rail)
            r->unsettled[i].asked = false;
    mcd_engine_tell_control(g); /* it opens a new one */
    mcd_route_show(g, r);
    mcd_route_dirty(g->net, r);
}

void mcd_route_on_killed(struct mcd_engine *g, struct mct_link *link, uint64_t conn)
{
    unsigned rail, i = 0;
    struct mcd_route *r = find_link(g->net, link, &rail);

    while (r != NULL && i < r->nunsettled && r->unsettled[i].conn != conn)
        i++;
    if (r == NULL || i == r->nunsettled)
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

/* ---- engine: commands ------------------------------------------------------------ */

/* Rails that the control thread has added since. */
static void take_rails(struct mcd_engine *g, struct mcd_route *r)
{
    unsigned made = mcs_load_acquire(&r->made); /* partner: mcd_route_rail() */

    mcd_net_look_at_clock(g);
    while (r->transport != NULL && r->nrails < made) {
        struct mcd_route_rail *rr = &r->rails[r->nrails];
        int res = r->o.ops->connect(r->transport, rr, &rr->link);

        if (res != 0) {
            mcd_log_limited(MCD_LOG_WARNING, "engine %u, peer %s: no memory for a rail: %s",
                            g->o.id, r->o.peer, strerror(-res));
            return;
        }
        mcd_rail_init(&rr->rail, rr->rank, r->o.slice, r->o.window);
        r->nrails++;
    }
}

bool mcd_route_attach(struct mcd_engine *g, struct mcd_command *c)
{
    struct mcd_route *r = c->context;
    struct mcd_net *n = g->net;

    r->transport = mcd_net_find(n, r->o.ops);
    r->attached = true;
    r->next = n->routes;
    if (n->routes != NULL)
        n->routes->prev = r;
    n->routes = r;
    take_rails(g, r);
    mcd_route_show(g, r);
    mcd_route_dirty(n, r);
    return true;
}

bool mcd_route_detach(struct mcd_engine *g, struct mcd_command *c)
{
    struct mcd_route *r = c->context;
    struct mcd_net *n = g->net;

    mcd_net_look_at_clock(g);
    if (!r->detached) {
        r->detached = true;
        for (struct mcd_lane *l = r->lanes; l != NULL; l = l->route_next)
            mcd_remote_finish_lane(g, l, MCS_STATE_FAILED, MCS_PEER_UNREACHABLE, true);
        for (unsigned i = 0; i < r->nrails; i++)
            mcd_route_abort(g, r, i, -ECONNABORTED);
    }
    mcd_net_reap(g);
    if (r->tasks != 0)
        return false;
    while (r->nrails != 0) {
        struct mct_link *link = r->rails[--r->nrails].link;

        r->o.ops->disconnect(link);
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

bool mcd_route_adopt(struct mcd_engine *g, struct mcd_command *c)
{
    struct mcd_route_conn *a = c->context;
    struct mcd_route *r = a->route;
    struct mcd_route_rail *rr = &r->rails[a->rail];
    int res;

    take_rails(g, r);
    if (r->detached || a->rail >= r->nrails) {
        close(a->conn.fd);
        return true;
    }
    res = MCS_FAIL(rail_adopted);
    if (res == 0)
        res = r->o.ops->adopt(rr->link, &a->conn);
    else
        close(a->conn.fd);
    if (res != 0) {
        /* to the control thread the same as one that was lost at once: it tries again */
        mcd_log_limited(MCD_LOG_WARNING, "engine %u, peer %s: no connection on rail %s - %s: %s",
                        g->o.id, r->o.peer, rr->local, rr->peer, strerror(-res));
        mcs_store_relaxed(&rr->lost, rr->lost + 1);
        mcd_engine_tell_control(g);
        return true;
    }
    mcd_rail_connected(&rr->rail, g->net->now);
    settle_doubts(r);
    if (!rr->rail.usable)
        mcd_route_abort(g, r, a->rail, -ENETDOWN);
    else if (!mcd_route_works(r))
        mcd_rail_tick(&rr->rail, true, g->net->now);
    mcd_route_show(g, r);
    mcd_route_dirty(g->net, r);
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
