/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stock Mooncake processes of which segments are open here.
 *
 *   DESCRIBING -> CONNECTING -> OPEN -> LEAVING      one for each name; clients share it
 *        +-------------+------------------^
 *
 * Each engine has a route with one rail and a few connections, since each carries one request.  A
 * connection that is lost is opened again: at once when requests came through since, else after a while.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dial.h"
#include "later.h"
#include "log.h"
#include "mooncake_internal.h"
#include "shm/status.h"
#include "transports/mooncake/protocol.h"

#define RETRY_MIN_NS (50 * MCD_MOONCAKE_MS)
#define RETRY_DOUBLINGS 5u /* up to 1.6 s */
#define FETCH_MS 5000u
#define FETCH_NS                                                                                   \
    (2000 * MCD_MOONCAKE_MS) /* a peer that fails is described anew once in such a time */

enum state { DESCRIBING, CONNECTING, OPEN, LEAVING };

/* A connection on its way to an engine. */
struct setup {
    struct way *way;
    struct setup *next;
    struct mcd_dial *dial; /* NULL: connected, the engine is taking it */
    struct mcd_command command;
    struct mcd_route_conn conn;
};

struct way {
    struct mcd_mooncake_peer *peer;
    struct mcd_engine *engine;
    struct mcd_route *route;
    struct mcd_command command; /* attach, then detach */
    struct setup *setups;
    unsigned opening;     /* setups */
    unsigned since;       /* connections made since a request came through last */
    unsigned failures;    /* dials in a row */
    uint64_t retry_at;    /* ns */
    uint64_t slices_seen; /* of the report */
};

/* What hangs on the segment: goes with it, engines may look at it until then. */
struct outer {
    struct mcd_remote remote; /* first: segments point to it */
    struct mcd_mooncake_peer *peer;
};

struct mcd_mooncake_opening {
    struct mcd_alarm limit; /* then, as soon as there is a result: now */
    struct mcd_mooncake_peer *peer;
    struct mcd_mooncake_opening *next, *prev;
    mcd_opened done;
    void *context;
    bool ready;
    uint32_t status;
    char text[512];
    struct mcd_segment *segment;
};

struct mcd_mooncake_peer {
    struct mcd_mooncake *m;
    struct mcd_mooncake_peer *next;
    char name[MCS_NAME_MAX];
    enum state state;
    char target[MCD_ADDRESS_TEXT_MAX];
    bool v2;
    bool stale; /* another process has the name: not to be opened any more */
    struct mcd_mooncake_fetch *fetch;
    uint32_t asked;              /* the `wanted` that the description under way answers */
    uint64_t fetched_at;         /* ns */
    struct mcd_segment *segment; /* no reference: it tells when it goes */
    struct outer *outer;
    struct mcd_mooncake_opening *openings;
    unsigned nways;
    struct way ways[];
};

static void upkeep(struct mcd_mooncake_peer *p);

/* ---- openings ----------------------------------------------------------------------- */

static void opening_free(struct mcd_mooncake_opening *o)
{
    struct mcd_mooncake_peer *p = o->peer;

    mcd_alarm_clear(p->m->agent, &o->limit);
    if (o->prev != NULL)
        o->prev->next = o->next;
    else
        p->openings = o->next;
    if (o->next != NULL)
        o->next->prev = o->prev;
    free(o);
}

static void opening_end(struct mcd_mooncake_opening *o, uint32_t status, const char *text)
{
    struct mcd_mooncake_peer *p = o->peer;

    if (o->ready)
        return;
    o->ready = true;
    o->status = status;
    snprintf(o->text, sizeof(o->text), "%s", text);
    if (status == MCS_OK)
        o->segment = mcd_segment_get(p->segment);
    mcd_alarm_set(p->m->agent, &o->limit, mcd_now_ns());
}

static void openings_end(struct mcd_mooncake_peer *p, uint32_t status, const char *text)
{
    for (struct mcd_mooncake_opening *o = p->openings; o != NULL; o = o->next)
        opening_end(o, status, text);
}

/* Nobody has it open and nobody waits for it. */
static void leave_if_unused(struct mcd_mooncake_peer *p)
{
    if (p->state == LEAVING || p->openings != NULL)
        return;
    if (p->segment != NULL && p->segment->refs > 1)
        return;
    p->state = LEAVING;
    if (p->segment != NULL)
        mcd_segment_put(p->segment); /* the peer's own reference */
}

static void opening_told(struct mcd_alarm *t)
{
    struct mcd_mooncake_opening *o = t->context;
    struct mcd_mooncake_peer *p = o->peer;
    struct mcd_mooncake_opening told = *o;

    if (!o->ready) {
        told.status = MCS_PEER_UNREACHABLE;
        snprintf(told.text, sizeof(told.text), "'%s' could not be reached in time", p->name);
        told.segment = NULL;
    }
    opening_free(o);
    if (told.status == MCS_OK)
        p->m->counters.opens++;
    else
        p->m->counters.opens_failed++;
    told.done(told.context, told.status, told.text, told.segment);
    leave_if_unused(p);
}

void mcd_mooncake_cancel(struct mcd_mooncake_opening *o)
{
    struct mcd_mooncake_peer *p;

    if (o == NULL)
        return;
    p = o->peer;
    if (o->segment != NULL)
        mcd_segment_put(o->segment);
    opening_free(o);
    leave_if_unused(p);
}

static void give_up(struct mcd_mooncake_peer *p, uint32_t status, const char *text)
{
    openings_end(p, status, text);
    p->state = LEAVING;
    if (p->segment != NULL)
        mcd_segment_put(p->segment);
}

/* ---- the segment --------------------------------------------------------------------- */

static void segment_gone(struct mcd_segment *s)
{
    struct outer *outer = (struct outer *)(void *)s->remote;

    outer->peer->segment = NULL;
    outer->peer->outer = NULL;
    free(outer);
}

static void free_old(void *context)
{
    free(context);
}

static void take_buffers(struct mcd_mooncake_peer *p, struct mcd_mooncake_descriptor *d)
{
    struct mcd_snapshot *old = NULL;

    mcd_segment_swap(p->segment, d->buffers, &old);
    d->buffers = NULL;
    if (old != NULL)
        mcd_after_grace(p->m->agent, free_old, old);
}

static int make_segment(struct mcd_mooncake_peer *p)
{
    struct outer *outer = calloc(1, sizeof(*outer));
    struct mcd_segment *s = NULL;

    if (outer != NULL)
        s = mcd_segment_create(NULL, 0, mcd_incarnation());
    if (s == NULL) {
        free(outer);
        return -ENOMEM;
    }
    outer->peer = p;
    outer->remote.incarnation = s->incarnation;
    outer->remote.segment = s;
    for (unsigned i = 0; i < p->nways; i++)
        outer->remote.routes[i] = p->ways[i].route;
    snprintf(outer->remote.name, sizeof(outer->remote.name), MCD_MOONCAKE_PREFIX "%.*s",
             (int)(sizeof(outer->remote.name) - sizeof(MCD_MOONCAKE_PREFIX)), p->name);
    snprintf(s->name, sizeof(s->name), "%s", outer->remote.name);
    s->remote = &outer->remote;
    s->gone = segment_gone;
    s->flags =
        MCS_SEGMENT_PUBLIC; /* whoever may talk to the agent: nobody there asks for a tenant */
    p->segment = s;
    p->outer = outer;
    return 0;
}

/* ---- connections --------------------------------------------------------------------- */

static void setup_free(struct setup *s)
{
    struct setup **link = &s->way->setups;

    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    s->way->opening--;
    mcd_dial_cancel(s->dial);
    free(s);
}

static uint64_t back_off(unsigned n)
{
    return mcd_now_ns() + (RETRY_MIN_NS << (n < RETRY_DOUBLINGS ? n : RETRY_DOUBLINGS));
}

static void dialed(void *context, int fd, int error, const char *text)
{
    struct setup *s = context;
    struct way *w = s->way;
    struct mcd_mooncake_peer *p = w->peer;

    s->dial = NULL;
    if (fd < 0) {
        p->m->counters.dials_failed++;
        if (w->failures == 0 && p->state == OPEN)
            mcd_log_limited(MCD_LOG_INFO, "mooncake peer %s: %s", p->name, text);
        w->retry_at = back_off(w->failures++);
        setup_free(s);
        if (p->state == CONNECTING)
            give_up(p,
                    error == -EMFILE || error == -ENFILE || error == -EADDRNOTAVAIL
                        ? MCS_LOCAL_RESOURCE
                        : MCS_PEER_UNREACHABLE,
                    text);
        return;
    }
    w->failures = 0;
    w->since++;
    s->conn = (struct mcd_route_conn){
        .route = w->route,
        .conn = {.fd = fd,
                 .id = mcd_incarnation(),
                 .features = p->v2 ? MCT_MOONCAKE_FEATURE_V2 : 0},
    };
    mcd_engine_call(w->engine, &s->command, mcd_route_adopt, &s->conn);
}

static void dial(struct way *w)
{
    struct mcd_mooncake_peer *p = w->peer;
    struct setup *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return;
    s->way = w;
    s->next = w->setups;
    w->setups = s;
    w->opening++;
    p->m->counters.dials++;
    if (mcd_dial(p->m->agent, p->target, NULL, p->m->agent->config.connect_ms, dialed, s,
                 &s->dial) != 0) {
        w->retry_at = back_off(w->failures++);
        setup_free(s);
    }
}

/* Setups that are through. */
static void reap(struct way *w)
{
    struct setup *next;

    for (struct setup *s = w->setups; s != NULL; s = next) {
        next = s->next;
        if (s->dial != NULL ||
            mcs_load_acquire(&s->command.done) == 0) /* partner: the engine's release */
            continue;
        if (w->peer->state == CONNECTING) {
            w->peer->state = OPEN;
            openings_end(w->peer, MCS_OK, "");
        }
        setup_free(s);
    }
}

static void connect_more(struct way *w, uint64_t now)
{
    struct mcd_mooncake_peer *p = w->peer;
    unsigned want = (unsigned)p->m->agent->config.mooncake_connections;
    struct mcd_route_report report;

    mcd_route_get_report(w->route, &report);
    if (report.rail[0].slices != w->slices_seen) {
        w->slices_seen = report.rail[0].slices;
        w->since = 0;
    }
    /* connections that end before they were of any use: not over and over */
    if (w->since > 2 * want) {
        w->retry_at = back_off(w->failures++);
        w->since = want;
    }
    if (now < w->retry_at)
        return;
    if (w->failures != 0 && report.rail[0].conns == 0 && w->opening == 0)
        want = 1; /* one feels its way */
    for (unsigned there = report.rail[0].conns + w->opening; there < want; there++)
        dial(w);
}

/* ---- descriptions -------------------------------------------------------------------- */

static int make_ways(struct mcd_mooncake_peer *p)
{
    const struct mcd_config *c = &p->m->agent->config;
    int res = 0;

    for (unsigned i = 0; i < p->nways && res == 0; i++) {
        struct mcd_route_options o = {
            .engine = p->m->agent->engines[i],
            .id = mcd_incarnation(),
            .slice = c->tcp_slice,
            .down_ns = c->down_ms * MCD_MOONCAKE_MS,
            .peer = p->name,
        };

        struct mcd_rail_options rail = {
            .ops = &mct_mooncake_ops,
            .local = "any",
            .peer = p->target,
            .node = -1,
            .slice = c->tcp_slice,
            .window = c->tcp_window,
        };

        p->ways[i].peer = p;
        p->ways[i].engine = p->m->agent->engines[i];
        res = mcd_route_create(&o, &p->ways[i].route);
        if (res == 0 && mcd_route_rail(p->ways[i].route, &rail) != 0)
            res = -ENOSPC;
    }
    if (res == 0)
        res = make_segment(p);
    for (unsigned i = 0; i < p->nways; i++) {
        struct way *w = &p->ways[i];

        if (w->route == NULL)
            continue;
        if (res == 0) {
            mcd_engine_call(w->engine, &w->command, mcd_route_attach, w->route);
        } else {
            mcd_route_destroy(w->route);
            w->route = NULL;
        }
    }
    return res;
}

/* A process chooses its data port when it starts: with another one it is another life of the name, and
 * addresses of the first mean nothing there. Who has it open has to open it again. */
static void end_of_life(struct mcd_mooncake_peer *p, const char *target)
{
    mcd_info("mooncake peer %s: another process has its name now, at %s instead of %s", p->name,
             target, p->target);
    p->stale = true;
    /* partner: the engines' acquire in remote.c */
    mcs_store_release(&p->outer->remote.status, (uint32_t)MCS_STALE);
    mcs_store_release(&p->outer->remote.fresh, p->asked);
}

static void described(void *context, uint32_t status, const char *text,
                      struct mcd_mooncake_descriptor *d, const char *target)
{
    struct mcd_mooncake_peer *p = context;

    p->fetch = NULL;
    if (p->state == LEAVING)
        return;
    p->fetched_at = mcd_now_ns();
    if (status != MCS_OK && p->state == DESCRIBING) {
        give_up(p, status, text);
        return;
    }
    if (status == MCS_OK && p->state == OPEN && strcmp(p->target, target) != 0) {
        end_of_life(p, target);
        return;
    }
    if (p->state == DESCRIBING) {
        snprintf(p->target, sizeof(p->target), "%s", target);
        p->v2 = d->v2;
        if (make_ways(p) != 0) {
            give_up(p, MCS_NO_MEMORY, "out of memory");
            return;
        }
        p->state = CONNECTING;
    }
    if (status == MCS_OK)
        take_buffers(p, d);
    else /* what was known stays: better than nothing, and the peer refuses what is wrong */
        mcd_log_limited(MCD_LOG_INFO, "mooncake peer %s: no fresh descriptor: %s", p->name, text);
    /* partner: the engines' acquire in lane.c: with `fresh` comes the snapshot */
    mcs_store_release(&p->outer->remote.fresh, p->asked);
    upkeep(p);
}

static void describe(struct mcd_mooncake_peer *p, uint64_t limit_ms)
{
    if (p->outer != NULL)
        p->asked = mcs_load_relaxed(&p->outer->remote.wanted); /* partner: lane.c counts */
    if (mcd_mooncake_fetch(p->m, p->name, limit_ms, described, p, &p->fetch) != 0 &&
        p->state == DESCRIBING)
        give_up(p, MCS_NO_MEMORY, "out of memory");
}

/* ---- upkeep -------------------------------------------------------------------------- */

static void upkeep(struct mcd_mooncake_peer *p)
{
    uint64_t now = mcd_now_ns();
    bool failing = false;

    for (unsigned i = 0; i < p->nways; i++) {
        if (p->ways[i].route == NULL)
            continue;
        reap(&p->ways[i]);
        if ((p->state == OPEN && !p->stale) ||
            (p->state == CONNECTING && p->ways[i].setups == NULL))
            connect_more(&p->ways[i], now);
        failing |= p->ways[i].failures > 3;
    }
    if (p->state != OPEN || p->stale || p->fetch != NULL)
        return;
    /* an address that is not known here; or it is somewhere else by now */
    if (mcs_load_relaxed(&p->outer->remote.wanted) != p->outer->remote.fresh ||
        (failing && now - p->fetched_at > FETCH_NS))
        describe(p, FETCH_MS);
}

/* True: nothing of it is left. */
static bool drop(struct mcd_mooncake_peer *p)
{
    bool gone = true;

    mcd_mooncake_fetch_cancel(p->fetch);
    p->fetch = NULL;
    for (unsigned i = 0; i < p->nways; i++) {
        struct way *w = &p->ways[i];
        struct setup *next;

        for (struct setup *s = w->setups; s != NULL; s = next) {
            next = s->next;
            if (s->dial != NULL ||
                mcs_load_acquire(&s->command.done) != 0) /* partner: the engine's release */
                setup_free(s);
        }
        if (w->route == NULL)
            continue;
        gone = false;
        if (w->setups != NULL ||
            mcs_load_acquire(&w->command.done) == 0) /* partner: the engine's release */
            continue;
        if (w->command.call == mcd_route_detach) {
            mcd_route_destroy(w->route);
            w->route = NULL;
        } else {
            memset(&w->command, 0, sizeof(w->command));
            mcd_engine_call(w->engine, &w->command, mcd_route_detach, w->route);
        }
    }
    return gone && p->openings == NULL && p->segment == NULL;
}

void mcd_mooncake_peers_poll(struct mcd_mooncake *m)
{
    struct mcd_mooncake_peer **link = &m->peers;

    m->counters.peers = 0;
    while (*link != NULL) {
        struct mcd_mooncake_peer *p = *link;

        if (p->state != LEAVING) {
            upkeep(p);
            leave_if_unused(p);
        }
        if (p->state == LEAVING && drop(p)) {
            *link = p->next;
            free(p);
            continue;
        }
        m->counters.peers += p->state == OPEN;
        link = &p->next;
    }
}

int mcd_mooncake_open(struct mcd_mooncake *m, const char *name, uint64_t limit_ms, mcd_opened done,
                      void *context, struct mcd_mooncake_opening **out)
{
    struct mcd_mooncake_opening *o = calloc(1, sizeof(*o));
    struct mcd_mooncake_peer *p;

    if (o == NULL)
        return -ENOMEM;
    while (*name == '/')
        name++;
    for (p = m->peers; p != NULL; p = p->next)
        if (p->state != LEAVING && !p->stale && strcmp(p->name, name) == 0)
            break;
    if (p == NULL) {
        p = calloc(1, sizeof(*p) + m->agent->nengines * sizeof(p->ways[0]));
        if (p == NULL) {
            free(o);
            return -ENOMEM;
        }
        p->m = m;
        p->nways = m->agent->nengines;
        snprintf(p->name, sizeof(p->name), "%s", name);
        p->next = m->peers;
        m->peers = p;
    }
    o->peer = p;
    o->done = done;
    o->context = context;
    o->limit.fire = opening_told;
    o->limit.context = o;
    o->next = p->openings;
    if (p->openings != NULL)
        p->openings->prev = o;
    p->openings = o;
    mcd_alarm_set(m->agent, &o->limit, mcd_now_ns() + limit_ms * MCD_MOONCAKE_MS);
    if (strlen(name) >= sizeof(p->name) || *name == '\0')
        opening_end(o, MCS_INVALID_ARGUMENT, "a Mooncake segment's name has 1 to 255 bytes");
    else if (p->state == OPEN)
        opening_end(o, MCS_OK, "");
    else if (p->state == DESCRIBING && p->fetch == NULL)
        describe(p, limit_ms);
    if (m->tick.at == 0)
        mcd_alarm_set(m->agent, &m->tick, mcd_now_ns());
    *out = o;
    return 0;
}

void mcd_mooncake_each(struct mcd_mooncake *m,
                       void (*fn)(void *context, const struct mcd_mooncake_view *v), void *context)
{
    for (struct mcd_mooncake_peer *p = m->peers; p != NULL; p = p->next)
        for (unsigned i = 0; p->state == OPEN && i < p->nways; i++)
            fn(context, &(struct mcd_mooncake_view){.name = p->name,
                                                    .target = p->target,
                                                    .v2 = p->v2,
                                                    .engine = i,
                                                    .route = p->ways[i].route,
                                                    .segment = p->segment});
}

void mcd_mooncake_peers_fini(struct mcd_mooncake *m)
{
    for (struct mcd_mooncake_peer *p = m->peers; p != NULL; p = p->next) {
        while (p->openings != NULL) {
            if (p->openings->segment != NULL)
                mcd_segment_put(p->openings->segment);
            opening_free(p->openings);
        }
        leave_if_unused(p);
    }
    while (m->peers != NULL) {
        struct mcd_mooncake_peer *p = m->peers;

        if (drop(p)) {
            m->peers = p->next;
            free(p);
            continue;
        }
        for (unsigned i = 0; i < p->nways; i++) {
            for (struct setup *s = p->ways[i].setups; s != NULL; s = s->next)
                mcd_mooncake_await(m, &s->command);
            if (p->ways[i].route != NULL)
                mcd_mooncake_await(m, &p->ways[i].command);
        }
    }
    while (m->fetches != NULL) /* requests to the metadata service have ended by now */
        mcd_mooncake_fetch_cancel(m->fetches);
}
