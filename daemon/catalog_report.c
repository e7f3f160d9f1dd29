/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the leader is told of this agent: that it lives, how full it is, and what it has.  First everything, in parts, if
 * the leader asks for it; then what has happened since, by the numbers of the events.
 */
#include <stdlib.h>
#include <string.h>

#include "catalog_internal.h"
#include "log.h"
#include "shm/status.h"

#define REPORT_NS (50 * MCD_MS)    /* between looks for events */
#define SILENCE_NS (2000 * MCD_MS) /* of the leader, before it is said */
#define STALE_NS (200 * MCD_MS)    /* between beats while it is not known to be current */
#define DRIFT 64u                  /* part of a promise by which two hosts' clocks may differ */
#define FLAG_THERE 1u
#define FLAG_DISK 2u
#define COPIES_SHIFT 8

/* ---- a report that is being made ------------------------------------------------------------ */

struct building {
    struct mcd_names keys;
    uint64_t *tenant, *token, *sequence, *size;
    uint32_t *crc, *flags;
    uint64_t next; /* events: number after the last one in it */
    bool failed;
};

static bool building_create(struct building *b)
{
    uint8_t *at = malloc(MCD_NAMES_KEYS * (4 * sizeof(uint64_t) + 2 * sizeof(uint32_t)));

    *b = (struct building){0};
    if (at == NULL)
        return false;
    b->tenant = (uint64_t *)at;
    b->token = b->tenant + MCD_NAMES_KEYS;
    b->sequence = b->token + MCD_NAMES_KEYS;
    b->size = b->sequence + MCD_NAMES_KEYS;
    b->crc = (uint32_t *)(b->size + MCD_NAMES_KEYS);
    b->flags = b->crc + MCD_NAMES_KEYS;
    return true;
}

static void building_free(struct building *b)
{
    mcd_names_free(&b->keys);
    free(b->tenant);
}

static bool add(struct building *b, const struct mco_key *k, const struct mco_version *v,
                uint64_t size, uint32_t crc, uint32_t flags)
{
    uint32_t at = b->keys.n;

    if (mcd_names_add(&b->keys, k->bytes, k->length) != 0) {
        b->failed = true;
        return false;
    }
    b->tenant[at] = k->tenant;
    b->token[at] = v->token;
    b->sequence[at] = v->sequence;
    b->size[at] = size;
    b->crc[at] = crc;
    b->flags[at] = flags;
    return !mcd_names_full(&b->keys);
}

static bool add_listed(void *context, const struct mco_listed *o)
{
    struct building *b = context;

    if (o->writing || o->leaving)
        return true;
    return add(b, &o->key, &o->version, o->size, o->crc,
               FLAG_THERE | (o->tier == MCS_TIER_DISK ? FLAG_DISK : 0) | o->copies << COPIES_SHIFT);
}

static bool add_event(void *context, uint64_t number, const struct mco_event *e, const char *host)
{
    struct building *b = context;
    uint32_t flags = e->kind == MCO_STORED || e->kind == MCO_TO_MEMORY ? FLAG_THERE
                     : e->kind == MCO_TO_DISK                          ? FLAG_THERE | FLAG_DISK
                                                                       : 0;
    bool more = true;

    if (host == NULL || host[0] == '\0')
        more = add(b, &e->key, &e->version, e->size, e->crc, flags);
    if (!b->failed)
        b->next = number + 1;
    return more && !b->failed;
}

/* ---- what the leader promises ----------------------------------------------------------------- */

bool mcd_report_current(const struct mcd_catalog *c)
{
    return mcd_boot_ns() < c->report.current_until;
}

static void take_promise(struct mcd_catalog *c, uint64_t sent, uint32_t ms, bool stale)
{
    uint64_t until = sent + ms * MCD_MS - ms * MCD_MS / DRIFT, known = c->report.current_until;

    if (ms == 0)
        until =
            stale ? 0 : UINT64_MAX; /* of a leader that knows of no promises, nothing is asked */
    if (ms == 0 || known == UINT64_MAX || known < until)
        c->report.current_until = until;
}

/* ---- reporting ---------------------------------------------------------------------------------- */

static void reported(struct mcd_store_call *sc, uint32_t status, const uint8_t *payload,
                     size_t size)
{
    struct mcd_catalog *c = sc->catalog;
    Mcd__StoreReported *m =
        payload == NULL ? NULL : mcd__store_reported__unpack(NULL, size, payload);
    uint64_t sent = sc->sent;

    free(sc);
    c->report.reporting = NULL;
    c->stir++;
    c->again = true;
    if (status == MCS_OK && m != NULL && m->token == c->leader_token)
        take_promise(c, sent, m->current_ms, m->stale);
    if (m != NULL)
        mcd__store_reported__free_unpacked(m, NULL);
    if (status == MCS_OK) {
        c->stats.reports++;
        c->report.first = false;
        if (c->report.walking) {
            c->report.cursor = c->report.promised;
            if (c->report.cursor == UINT64_MAX)
                c->report.walking = false;
        } else {
            c->report.next = c->report.promised;
        }
        return;
    }
    if (status == MCS_FENCED)
        c->stats.fenced++;
    c->report.joined = false; /* joins again, and hears what is to be told */
    c->report.beat_at = c->now + REPORT_NS;
}

static void send_part(struct mcd_catalog *c, struct building *b, bool full, bool last)
{
    Mcd__StoreReport m = MCD__STORE_REPORT__INIT;
    struct mcd_store_call *sc = calloc(1, sizeof(*sc));

    if (sc == NULL)
        return; /* again by the clock */
    m.token = c->leader_token;
    m.full = full;
    m.first = full && c->report.first;
    m.last = last;
    m.next = full ? c->report.next : b->next;
    m.keys = mcd_names_data(&b->keys);
    m.n_tenant = m.n_version_token = m.n_version_sequence = m.n_size = m.n_crc = m.n_flags =
        b->keys.n;
    m.tenant = b->tenant;
    m.version_token = b->token;
    m.version_sequence = b->sequence;
    m.size = b->size;
    m.crc = b->crc;
    m.flags = b->flags;
    sc->answered = reported;
    if (mcd_store_call(c, NULL, sc, MCD_WIRE_STORE_REPORT, &m.base, MCD_CALL_MS) == 0)
        c->report.reporting = sc;
    else
        free(sc);
}

/* The next part of everything. */
static void walk(struct mcd_catalog *c)
{
    uint64_t cursor = c->report.cursor;
    struct building b;

    if (!building_create(&b))
        return;
    while (cursor != UINT64_MAX && !mcd_names_full(&b.keys) && !b.failed)
        mco_walk(c->store->objects, UINT64_MAX, &cursor, add_listed, &b);
    if (!b.failed) {
        c->report.promised = cursor;
        send_part(c, &b, true, cursor == UINT64_MAX);
    }
    building_free(&b);
}

/* What has happened since. */
static void tell_events(struct mcd_catalog *c)
{
    struct building b;
    uint64_t first, next;

    mco_events_range(c->store->events, &first, &next);
    if (c->report.next == next)
        return;
    if (c->report.next < first) { /* some are not kept any more: everything again */
        mcd_log_limited(MCD_LOG_WARNING,
                        "events of objects were overwritten before the directory had heard of "
                        "them: everything is told again; raise [store] events");
        c->report.walking = c->report.first = true;
        c->report.cursor = 0;
        c->report.next = next;
        c->again = true;
        return;
    }
    if (!building_create(&b))
        return;
    b.next = c->report.next;
    (void)mco_events_read(c->store->events, c->report.next, MCD_NAMES_KEYS, add_event, &b);
    if (!b.failed && b.next != c->report.next) {
        c->report.promised = b.next;
        send_part(c, &b, false, false);
    }
    building_free(&b);
}

static void forget(struct mcd_store_call **sc)
{
    if (*sc != NULL)
        mcd_store_forget(*sc);
    free(*sc);
    *sc = NULL;
}

/* ---- joining ---------------------------------------------------------------------------------------- */

static void not_joined(struct mcd_catalog *c)
{
    c->report.joined = false;
    if (c->report.silent_at == 0)
        c->report.silent_at = c->now;
}

/* Said once for each time, and not when it is about to be over. */
static void tell_silence(struct mcd_catalog *c)
{
    if (c->report.joined || c->report.silence_said || c->report.silent_at == 0 ||
        c->now < c->report.silent_at + SILENCE_NS)
        return;
    c->report.silence_said = true;
    mcd_warning(
        "the store's directory at %s does not answer: objects of this host, and places that "
        "are known, are read on, puts and lookups wait; is mcshm-master or the agent there "
        "running ([store] master)?",
        c->leader[0] != '\0' ? c->leader : "this agent");
}

static void tell_joined(struct mcd_catalog *c)
{
    if (c->report.silence_said)
        mcd_info("the store's directory at %s answers again, token %llu",
                 c->leader[0] != '\0' ? c->leader : "this agent",
                 (unsigned long long)c->leader_token);
    c->report.silence_said = false;
    c->report.silent_at = 0;
}

static void take_joined(struct mcd_catalog *c, const Mcd__StoreJoined *m)
{
    uint64_t first, next;
    bool fresh = !c->report.joined;

    mco_note_token(c->store->objects, m->token);
    c->report.joined = true;
    if (c->report.draining != m->draining)
        mcd_info("this host's objects are %s, by order of the store's master",
                 m->draining ? "moved to others" : "not moved to others any more");
    c->report.draining = m->draining;
    if (m->beat_ms != 0)
        c->report.beat_ns = m->beat_ms * MCD_MS;
    mco_events_range(c->store->events, &first, &next);
    if (m->report && c->report.walking && !fresh)
        return; /* it is being told */
    /* A leader that does not know what was ordered before, or orders it anew: a copy that was made all the same could be missed when
     * its life is said to be over. Before everything is told. */
    if (fresh || m->report)
        mcd_ops_disown(c);
    if (m->report) {
        /* the answer to what was told before this was asked for says nothing of it */
        forget(&c->report.reporting);
        c->report.walking = c->report.first = true;
        c->report.cursor = 0;
        c->report.next = next;
    } else if (fresh && !c->report.walking) {
        /* a leader that knows this agent: it goes on where it stopped */
        c->report.next = m->told != 0 && m->told <= next ? m->told : next;
    }
}

static void joined(struct mcd_store_call *sc, uint32_t status, const uint8_t *payload, size_t size)
{
    struct mcd_catalog *c = sc->catalog;
    Mcd__StoreJoined *m = payload == NULL ? NULL : mcd__store_joined__unpack(NULL, size, payload);
    uint64_t known = mco_token(c->store->objects), sent = sc->sent;

    free(sc);
    c->report.joining = NULL;
    c->stir++;
    c->again = true;
    if (status == MCS_OK && m != NULL && m->token < known) {
        c->stats.fenced++; /* it leads no more, and does not know it */
        not_joined(c);
    } else if (status == MCS_OK && m != NULL) {
        if (m->token != c->leader_token)
            mcd_ops_late(c);
        c->leader_token = m->token;
        take_promise(c, sent, m->current_ms, m->stale);
        take_joined(c, m);
        tell_joined(c);
    } else {
        not_joined(c);
        c->report.beat_at = c->now + REPORT_NS + (c->now >> 7) % REPORT_NS;
    }
    if (m != NULL)
        mcd__store_joined__free_unpacked(m, NULL);
}

static void beat(struct mcd_catalog *c)
{
    Mcd__StoreJoin m = MCD__STORE_JOIN__INIT;
    struct mcd_store_call *sc = calloc(1, sizeof(*sc));
    struct mco_stats s;
    uint64_t first, next, stale = STALE_NS + (c->now >> 7) % STALE_NS;
    bool current = mcd_report_current(c);

    c->report.beat_at = c->now + (!c->report.joined ? REPORT_NS + (c->now >> 7) % REPORT_NS
                                  : current || c->report.beat_ns < stale ? c->report.beat_ns
                                                                         : stale);
    if (sc == NULL)
        return;
    mco_get_stats(c->store->objects, &s);
    mco_events_range(c->store->events, &first, &next);
    m.identity = mco_identity(c->store->objects);
    m.life = c->agent->incarnation;
    m.address = c->agent->cluster->address;
    m.domain = c->agent->config.store_domain;
    m.capacity = s.size;
    m.used = s.used;
    m.draining = c->report.draining;
    m.token = mco_token(c->store->objects);
    m.next = next;
    m.current = current;
    sc->answered = joined;
    if (mcd_store_call(c, NULL, sc, MCD_WIRE_STORE_JOIN, &m.base, MCD_CALL_MS) == 0) {
        c->report.joining = sc;
        return;
    }
    free(sc);
    not_joined(c);
}

/* ---- the clock ------------------------------------------------------------------------------------------ */

void mcd_report_poll(struct mcd_catalog *c)
{
    if (c->leader[0] == '\0' && c->master == NULL)
        return;
    if (c->report.beat_ns == 0)
        c->report.beat_ns = c->agent->config.store_beat_ms * MCD_MS;
    if (c->report.joining == NULL && c->now >= c->report.beat_at)
        beat(c);
    tell_silence(c);
    mcd_catalog_due(c, c->report.beat_at > c->now ? c->report.beat_at : c->now + REPORT_NS);
    if (!c->report.joined || c->report.reporting != NULL)
        return;
    if (c->report.walking) {
        walk(c);
    } else if (c->now >= c->report.report_at) {
        tell_events(c);
        c->report.report_at = c->now + REPORT_NS;
    }
    mcd_catalog_due(c, c->report.report_at > c->now ? c->report.report_at : c->now + REPORT_NS);
}

void mcd_report_soon(struct mcd_catalog *c)
{
    c->report.report_at = 0;
    c->again = true;
}

void mcd_report_leader(struct mcd_catalog *c)
{
    c->report.joined = c->report.walking = false;
    c->report.beat_at = c->report.silent_at = 0;
}

void mcd_report_stop(struct mcd_catalog *c)
{
    forget(&c->report.joining);
    forget(&c->report.reporting);
}
