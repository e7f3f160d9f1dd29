/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's half of the directory: questions on their way between engines and the control thread, and the
 * clock of everything else.
 */
#include "catalog_internal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "object.h"

#define IDLE_NS (250 * MCD_MS) /* between rounds where nothing is due */

/* ---- engines ------------------------------------------------------------------------- */

/* This host is all there is, or the agent stops: what it does not hold is not to be had. */
static void answer_alone(struct mcd_ask *a, enum mcs_status missing)
{
    for (uint32_t i = 0; i < a->n; i++) {
        struct mcd_ask_key *k = &a->keys[i];

        switch (a->kind) {
        case MCD_ASK_START:
            k->version = (struct mco_version){0};
            k->status = missing == MCS_NOT_FOUND ? MCS_OK : (uint8_t)missing;
            break;
        case MCD_ASK_END:
            k->copies = k->status == MCS_OK;
            k->status = missing == MCS_NOT_FOUND ? MCS_OK : (uint8_t)missing;
            break;
        default:
            k->segment = NULL;
            k->reach = NULL;
            k->status = (uint8_t)missing;
            break;
        }
    }
}

static struct mcd_catalog *catalog_of(const struct mcd_engine *g)
{
    /* partner: mcd_catalog_create(), mcd_catalog_destroy() */
    return g->o.store == NULL ? NULL : mcs_load_acquire(&g->o.store->catalog);
}

/* What the cache of places tells. True: all of it. */
static bool answer_here(struct mcd_catalog *c, struct mcd_catalog_engine *e, struct mcd_ask *a)
{
    uint64_t now = mcd_now_ns();
    uint32_t hits = 0;

    for (uint32_t i = 0; i < a->n; i++) {
        struct mcd_ask_key *k = &a->keys[i];
        bool hit;

        k->segment = NULL;
        k->reach = NULL;
        k->status = MCS_BUSY;        /* not answered */
        if (a->kind == MCD_ASK_FIND) /* a lease of its own comes from the holder */
            hit = a->lease_ms == 0 && mcd_place_find(c, k, now);
        else
            hit = mcd_place_exists(c, &k->key, now + a->lease_ms * MCD_MS);
        if (hit) {
            k->status = MCS_OK;
            hits++;
        }
    }
    mcs_count(&e->cache_hits, hits);
    mcs_count(&e->answered_here, hits == a->n);
    return hits == a->n;
}

/* On the stack of what engines ask; the first one rings. */
static void hand_over(struct mcd_engine *g, struct mcd_catalog *c, struct mcd_ask *a)
{
    struct mcd_ask *head = mcs_load_relaxed(&c->asked);

    do {
        a->next = head;
    } while (!mcs_compare_exchange(&c->asked, &head, a)); /* partner: take_asked() */
    if (head == NULL)
        mcd_engine_tell_control(g);
}

int mcd_ask(struct mcd_engine *g, struct mcd_ask *a)
{
    struct mcd_catalog *c = catalog_of(g);

    if (c == NULL) {
        answer_alone(a, MCS_NOT_FOUND);
        return 0;
    }
    if (mcs_load_acquire(&c->stopping) != 0) { /* partner: mcd_catalog_stop() */
        answer_alone(a, MCS_AGENT_DOWN);
        return 0;
    }
    if ((a->kind == MCD_ASK_FIND || a->kind == MCD_ASK_EXIST) &&
        answer_here(c, &c->engines[g->o.id], a))
        return 0;
    a->engine = g;
    a->state = NULL;
    mcs_store_relaxed(&a->canceled, 0u);
    hand_over(g, c, a);
    return -EINPROGRESS;
}

void mcd_ask_cancel(struct mcd_engine *g, struct mcd_ask *a)
{
    struct mcd_catalog *c = catalog_of(g);

    if (c == NULL)
        return;
    mcs_store_relaxed(&a->canceled,
                      1u); /* partner: mcd_ops_poll(): a hint, and the ring comes after it */
    mcd_engine_tell_control(g);
}

void mcd_ask_done_with(struct mcd_engine *g, struct mcd_ask *a)
{
    (void)g;
    for (uint32_t i = 0; a->kind == MCD_ASK_FIND && i < a->n; i++) {
        struct mcd_reach *r = a->keys[i].reach;

        if (r == NULL)
            continue;
        a->keys[i].reach = NULL;
        a->keys[i].segment = NULL;
        mcs_fence_release(); /* all use of the segment is before; partner: mcd_reaches_poll() */
        (void)mcs_fetch_add(&r->users, UINT32_MAX);
    }
}

bool mcd_ask_is_over(struct mcd_engine *g, const struct mco_key *k, const struct mco_version *v)
{
    struct mcd_catalog *c = catalog_of(g);

    return c != NULL && mcd_place_is_over(c, k, v);
}

bool mcd_asks_turn(struct mcd_engine *g)
{
    struct mcd_catalog *c = catalog_of(g);
    struct mcd_catalog_engine *e;
    struct mcd_ask *a = NULL, *next;
    bool any;

    if (c == NULL)
        return false;
    e = &c->engines[g->o.id];
    if (mcs_load_relaxed(&e->answered) != NULL)
        a = mcs_exchange(&e->answered, NULL); /* partner: mcd_catalog_answered() */
    any = a != NULL;
    for (; a != NULL; a = next) {
        next = a->next;
        a->done(g, a);
    }
    return mcd_pulls_turn(g, e) || any;
}

/* ---- control thread ------------------------------------------------------------------- */

void mcd_catalog_answered(struct mcd_catalog *c, struct mcd_ask *a)
{
    struct mcd_engine *g = a->engine;
    struct mcd_catalog_engine *e = &c->engines[g->o.id];
    struct mcd_ask *head = mcs_load_relaxed(&e->answered);

    do {
        a->next = head;
    } while (!mcs_compare_exchange(&e->answered, &head, a)); /* partner: mcd_asks_turn() */
    mcd_objects_wake(g);
}

/* In the order in which they were asked. */
static struct mcd_ask *take_asked(struct mcd_catalog *c)
{
    struct mcd_ask *a = NULL, *out = NULL, *next;

    if (mcs_load_relaxed(&c->asked) != NULL)
        a = mcs_exchange(&c->asked, NULL); /* partner: hand_over() */
    for (; a != NULL; a = next) {
        next = a->next;
        a->next = out;
        out = a;
    }
    return out;
}

static void begin_asked(struct mcd_catalog *c)
{
    struct mcd_ask *a = take_asked(c), *next;

    for (; a != NULL; a = next) {
        next = a->next;
        c->stats.asks[a->kind]++;
        if (mcs_load_relaxed(&c->stopping) != 0) {
            answer_alone(a, MCS_AGENT_DOWN);
            mcd_catalog_answered(c, a);
        } else if (mcd_op_begin(c, a, NULL, NULL) != 0) {
            answer_alone(a, MCS_NO_MEMORY);
            mcd_catalog_answered(c, a);
        }
    }
}

void mcd_catalog_soon(struct mcd_catalog *c)
{
    uint64_t one = 1;

    c->again = true;
    if (!c->polling && write(c->agent->event_fd, &one, sizeof(one)) < 0)
        mcd_alarm_set(c->agent, &c->alarm, mcd_now_ns());
}

void mcd_catalog_poll(struct mcd_catalog *c)
{
    if (c == NULL || c->polling)
        return; /* called from inside: `again` is set where that matters */
    c->polling = true;
    do {
        c->again = false;
        c->now = mcd_now_ns();
        c->due = c->now + IDLE_NS;
        begin_asked(c);
        mcd_store_calls_poll(c);
        mcd_pulls_poll(c);
        mcd_recalls_poll(c);
        mcd_ops_poll(c);
        mcd_reaches_poll(c, false);
        mcd_catalog_export_poll(c);
        if (mcs_load_relaxed(&c->stopping) == 0)
            mcd_report_poll(c);
    } while (c->again);
    c->polling = false;
    mcd_alarm_set(c->agent, &c->alarm, c->due);
}

static void fire(struct mcd_alarm *t)
{
    mcd_catalog_poll(t->context);
}

int mcd_catalog_create(struct mcd_agent *a, struct mcd_catalog **out, char *error,
                       size_t error_size)
{
    struct mcd_catalog *c;
    size_t size = (sizeof(*c) + 127) & ~(size_t)127;

    *out = NULL;
    if (a->cluster == NULL || a->store == NULL || strcmp(a->config.store_master, "off") == 0)
        return 0;
    c = aligned_alloc(128, size);
    if (c != NULL) {
        memset(c, 0, size);
        c->places = aligned_alloc(64, MCD_PLACE_SETS * sizeof(*c->places));
    }
    if (c == NULL || c->places == NULL) {
        snprintf(error, error_size, "no memory for the catalog of other hosts' objects");
        free(c);
        return -ENOMEM;
    }
    memset(c->places, 0, MCD_PLACE_SETS * sizeof(*c->places));
    c->agent = a;
    c->store = a->store;
    c->remember_ns = a->config.store_gone_ms * MCD_MS;
    c->own_end = &c->own_answers;
    c->alarm.fire = fire;
    c->alarm.context = c;
    if (mcd_catalog_export_create(c) != 0) {
        snprintf(error, error_size, "no memory for the segment of this host's objects");
        free(c->places);
        free(c);
        return -ENOMEM;
    }
    mcd_alarm_set(a, &c->alarm, mcd_now_ns());
    mcs_store_release(out, c); /* partner: catalog_of() */
    return 0;
}

void mcd_catalog_stop(struct mcd_catalog *c)
{
    if (c == NULL || mcs_load_relaxed(&c->stopping) != 0)
        return;
    mcs_store_release(&c->stopping, 1u); /* partner: mcd_ask() */
    c->leader[0] = '\0';
    c->master = NULL; /* it may be gone already */
    mcd_store_calls_leaderless(c);
    mcd_report_stop(c);
    begin_asked(c);
    mcd_ops_end(c, MCS_AGENT_DOWN);
    mcd_pulls_stop(c);
    mcd_catalog_poll(c);
}

/* No engine has it in its hands any more. Engines turn, unless the start has failed before they did. */
static void leave_engines(struct mcd_catalog *c)
{
    uint64_t end = mcd_now_ns() + 1000 * MCD_MS;
    struct mcd_grace grace;

    mcs_store_release(&c->store->catalog, NULL); /* partner: catalog_of() */
    mcd_grace_begin(&grace, c->agent->engines, c->agent->nengines);
    while (!mcd_grace_over(&grace) && mcd_now_ns() < end)
        sched_yield();
}

void mcd_catalog_destroy(struct mcd_catalog *c)
{
    if (c == NULL)
        return;
    mcd_catalog_stop(c);
    leave_engines(c);
    c->polling = true; /* no round any more */
    begin_asked(c);    /* of an engine that had not seen that it stops */
    while (c->calls != NULL) {
        struct mcd_store_call *sc = c->calls;

        mcd_store_forget(sc);
        sc->answered(sc, MCS_AGENT_DOWN, NULL, 0);
    }
    mcd_leases_destroy(c);
    for (struct mcd_holder *h = c->holders, *next; h != NULL; h = next) {
        next = h->next;
        if (h->opening != NULL)
            mcd_remote_cancel(h->opening);
        free(h);
    }
    c->holders = NULL;
    mcd_places_drop(c, NULL);
    for (struct mcd_reach *r = c->reaches; r != NULL; r = r->next)
        r->over = true;
    mcd_reaches_poll(c, true);
    while (c->own_answers != NULL) {
        struct mcd_own_answer *next = c->own_answers->next;

        free(c->own_answers);
        c->own_answers = next;
    }
    mcd_catalog_export_destroy(c);
    mcd_alarm_clear(c->agent, &c->alarm);
    free(c->places);
    free(c);
}

bool mcd_catalog_draining(const struct mcd_catalog *c)
{
    return c->report.draining;
}

void mcd_catalog_peer(struct mcd_catalog *c, struct mcd_peer *p, bool up)
{
    (void)p;
    (void)up;
    c->stir++;
    mcd_catalog_soon(c); /* not from inside the peer */
}

bool mcd_catalog_on_message(struct mcd_catalog *c, struct mcd_peer *p,
                            const struct mcd_wire_header *h, const uint8_t *payload, size_t size)
{
    if (h->type != MCD_WIRE_STORE_LEASE && h->type != MCD_WIRE_STORE_RECALL &&
        h->type != MCD_WIRE_STORE_ORDER)
        return false;
    c->now = mcd_now_ns();
    if (h->type == MCD_WIRE_STORE_LEASE)
        mcd_lease_on_lease(c, p, h, payload, size);
    else if (h->type == MCD_WIRE_STORE_RECALL)
        mcd_lease_on_recall(c, p, h, payload, size);
    else
        mcd_order_on_order(c, p, h, payload, size);
    mcd_catalog_poll(c);
    return true;
}

void mcd_catalog_leader(struct mcd_catalog *c, const char *address, uint64_t token,
                        struct mcd_master *master)
{
    if (strcmp(c->leader, address) == 0 && c->told_token == token && c->master == master)
        return;
    c->told_token = token;
    c->stir++;
    snprintf(c->leader, sizeof(c->leader), "%s", address);
    c->leader_token = token;
    c->master = master;
    mcd_ops_late(c);
    mcd_report_leader(c);
    mcd_store_calls_leaderless(c);
    if (address[0] != '\0' && token == 0)
        mcd_info("the store's directory is led by %s ([store] master)", address);
    else if (address[0] != '\0')
        mcd_info("the store's directory is led by %s, token %llu",
                 master != NULL ? "this agent" : address, (unsigned long long)token);
    else
        mcd_warning("no master leads the store's directory: objects of other hosts are found as "
                    "far as their places are known");
    mcd_catalog_soon(c);
}

void mcd_catalog_get_stats(const struct mcd_catalog *c, struct mcd_catalog_stats *out)
{
    uint64_t first, next;

    *out = c->stats;
    snprintf(out->leader, sizeof(out->leader), "%.255s", c->leader);
    out->token = c->leader_token;
    out->here = c->master != NULL;
    out->joined = c->report.joined;
    for (unsigned i = 0; i < MCD_ENGINES_MAX; i++) { /* partner: the engine's mcs_count() */
        out->answered_here += mcs_load_relaxed(&c->engines[i].answered_here);
        out->cache_hits += mcs_load_relaxed(&c->engines[i].cache_hits);
    }
    out->cached = mcd_places_count((struct mcd_catalog *)c);
    mco_events_range(c->store->events, &first, &next);
    out->lag = next - c->report.next;
}
