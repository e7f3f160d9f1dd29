/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent tells about itself, as JSON: for `mcshm status` and `mcshm ls`. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cluster.h"
#include "counters.h"
#include "gpu.h"
#include "mooncake.h"
#include "query_gpu.h"
#include "query_rdma.h"
#include "store.h"
#include "version.h"

static void add_u64(cJSON *o, const char *key, uint64_t v)
{
    cJSON_AddNumberToObject(o, key, (double)v);
}

/* Incarnations and addresses do not fit into a double. */
static void add_hex(cJSON *o, const char *key, uint64_t v)
{
    char text[24];

    snprintf(text, sizeof(text), "0x%llx", (unsigned long long)v);
    cJSON_AddStringToObject(o, key, text);
}

bool mcd_may_see(const struct mcd_session *asker, uint64_t tenant)
{
    return asker->uid == 0 || asker->uid == geteuid() || asker->tenant == tenant;
}

/* A tenant by its rule's name, else by its uid. */
static void add_tenant(struct mcd_agent *a, cJSON *o, const char *key, uint64_t id)
{
    for (const struct mcd_tenant *t = a->tenants.list; t != NULL && id >> 63 != 0; t = t->next) {
        if (t->id == id) {
            cJSON_AddStringToObject(o, key, t->name);
            return;
        }
    }
    if (id >> 63 != 0)
        add_hex(o, key, id); /* another host's, or it has been forgotten */
    else
        add_u64(o, key, id);
}

static void tenants(struct mcd_agent *a, const struct mcd_session *asker, cJSON *root)
{
    cJSON *list = cJSON_AddArrayToObject(root, "tenants");

    mcd_tenants_sum(&a->tenants, a->sessions);
    for (struct mcd_tenant *t = a->tenants.list; t != NULL; t = t->next) {
        uint64_t refusals = 0;
        cJSON *o, *r;

        if (!mcd_may_see(asker, t->id))
            continue;
        o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "name", t->name);
        add_hex(o, "id", t->id);
        cJSON_AddBoolToObject(o, "named", t->named);
        add_u64(o, "weight", t->limits.weight);
        add_u64(o, "memory", t->memory);
        add_u64(o, "sessions", t->sessions);
        add_u64(o, "queues", t->queues);
        add_u64(o, "tasks_in_flight", mcs_load_relaxed(&t->tasks));
        add_u64(o, "batches_in_flight", mcs_load_relaxed(&t->batches));
        add_u64(o, "tasks", t->sums.tasks);
        add_u64(o, "bytes", t->sums.bytes);
        add_u64(o, "caller_bytes", t->sums.caller_bytes);
        add_u64(o, "throttled_ms", mcd_tenant_throttled_ms(t, a->tick_hz));
        r = cJSON_AddObjectToObject(o, "refused");
        for (unsigned i = 0; i < MCD_LIMIT_COUNT; i++) {
            add_u64(r, mcd_limit_words[i], mcs_load_relaxed(&t->refused[i]));
            refusals += mcs_load_relaxed(&t->refused[i]);
        }
        add_u64(o, "refusals", refusals);
        r = cJSON_AddObjectToObject(o, "limits");
        add_u64(r, "memory", t->limits.memory);
        add_u64(r, "sessions", t->limits.sessions);
        add_u64(r, "queues", t->limits.queues);
        add_u64(r, "tasks", t->limits.tasks);
        add_u64(r, "batches", t->limits.batches);
        add_u64(r, "rate", t->limits.rate);
        add_u64(o, "rate", t->limits.rate);
        cJSON_AddItemToArray(list, o);
    }
}

static void cluster(struct mcd_agent *a, cJSON *root)
{
    static const char *const healths[] = {"ok", "degraded", "down"};
    struct mcm_state m;
    cJSON *o;

    if (a->cluster == NULL) {
        cJSON_AddNullToObject(root, "cluster");
        return;
    }
    mcm_get_state(a->cluster->meta, &m);
    o = cJSON_AddObjectToObject(root, "cluster");
    cJSON_AddStringToObject(o, "address", a->cluster->address);
    add_u64(o, "peers", a->cluster->npeers);
    add_u64(o, "rails", a->cluster->nrails);
    o = cJSON_AddObjectToObject(o, "metadata");
    cJSON_AddStringToObject(o, "backend", m.backend);
    cJSON_AddStringToObject(o, "endpoint", m.endpoint);
    cJSON_AddStringToObject(o, "health", healths[m.health]);
    cJSON_AddStringToObject(o, "error", m.error);
    add_u64(o, "registered", m.registered);
    add_u64(o, "wanted", m.wanted);
    add_u64(o, "cached", m.cached);
    add_u64(o, "requests", m.requests);
    add_u64(o, "failures", m.failures);
    add_u64(o, "retries", m.retries);
    add_u64(o, "leases_lost", m.leases_lost);
    add_u64(o, "relists", m.relists);
}

static void status(struct mcd_agent *a, cJSON *root)
{
    cJSON *list, *o;
    struct mcd_totals t;

    cJSON_AddStringToObject(root, "version", MCD_VERSION);
    add_u64(root, "pid", (uint64_t)getpid());
    add_hex(root, "incarnation", a->incarnation);
    cJSON_AddNumberToObject(root, "uptime_s",
                            (double)((mcd_now_ns() - a->started_ns) / 1000000) / 1000.0);
    cJSON_AddStringToObject(root, "socket", a->config.socket);
    cJSON_AddStringToObject(root, "idle", a->config.idle == MCD_IDLE_BUSY ? "busy" : "sleep");
    list = cJSON_AddArrayToObject(root, "engines");
    for (unsigned i = 0; i < a->nengines; i++) {
        const struct mcd_engine *g = a->engines[i];

        o = cJSON_CreateObject();
        add_u64(o, "id", g->o.id);
        cJSON_AddNumberToObject(o, "core", g->o.core);
        cJSON_AddStringToObject(o, "state", mcs_load_relaxed(&g->asleep) != 0 ? "asleep" : "awake");
        add_u64(o, "turns", mcs_load_relaxed(&g->counters.turns));
        add_u64(o, "sleeps", mcs_load_relaxed(&g->counters.sleeps));
        add_u64(o, "tasks", mcs_load_relaxed(&g->counters.tasks));
        add_u64(o, "bytes", mcs_load_relaxed(&g->counters.bytes));
        cJSON_AddItemToArray(list, o);
    }
    o = cJSON_AddObjectToObject(root, "pool");
    add_u64(o, "size", a->config.pool_size);
    add_u64(o, "used", a->pool.used);
    add_u64(o, "page_size", a->pool.page_size);
    add_u64(o, "extents", a->pool.count);
    add_u64(o, "fallbacks", a->pool.fallbacks);
    add_u64(root, "sessions", a->nsessions);
    o = cJSON_AddObjectToObject(root, "recovery");
    cJSON_AddBoolToObject(o, "kept", a->recovery.ledger != NULL);
    add_hex(o, "before", a->recovery.before);
    add_u64(o, "away", a->recovery.away);
    add_u64(o, "coming", a->recovery.coming);
    {
        uint64_t n = 0;

        for (const struct mcd_segment *s = a->segments; s != NULL; s = s->next)
            n++;
        add_u64(root, "segments", n);
    }
    o = cJSON_AddObjectToObject(root, "admin");
    if (a->admin != NULL)
        cJSON_AddStringToObject(o, "listen", mcd_admin_listen(a->admin));
    else
        cJSON_AddNullToObject(o, "listen");
    mcd_query_gpu_status(a, root);
    cluster(a, root);
    mcd_totals(a, &t);
    o = cJSON_AddObjectToObject(root, "counters");
    for (size_t i = 0; i < mcd_counter_count; i++)
        add_u64(o, mcd_counter_list[i].name, mcd_counter_value(&t, i));
}

/* ends: of an RDMA rail, else NULL. */
static void add_rail(cJSON *list, const char *peer, unsigned engine,
                     const struct mcd_rail_report *r, const struct mcd_way_ends *ends)
{
    cJSON *o = cJSON_CreateObject();

    cJSON_AddStringToObject(o, "peer", peer);
    cJSON_AddStringToObject(o, "address", r->peer);
    cJSON_AddStringToObject(o, "transport", r->ops->name);
    add_u64(o, "tier", r->tier);
    cJSON_AddStringToObject(o, "local", ends != NULL ? ends->local : r->local);
    cJSON_AddStringToObject(o, "remote", ends != NULL ? ends->peer : r->peer);
    cJSON_AddStringToObject(o, "why", ends != NULL ? ends->why : "");
    cJSON_AddStringToObject(o, "state", mcd_rail_state_word(r->state));
    cJSON_AddStringToObject(o, "reason", mcd_rail_reason_word(r->reason));
    add_u64(o, "engine", engine);
    add_u64(o, "conns", r->conns);
    cJSON_AddNumberToObject(o, "rate", r->rate);
    cJSON_AddNumberToObject(o, "rtt_us", (double)r->rtt_ns / 1000);
    cJSON_AddNumberToObject(o, "loaded_us", (double)r->loaded_ns / 1000);
    add_u64(o, "bytes", r->bytes);
    add_u64(o, "slices", r->slices);
    add_u64(o, "failed", r->failed);
    add_u64(o, "lost", r->lost);
    add_u64(o, "queued", r->queued);
    cJSON_AddItemToArray(list, o);
}

static void sessions(struct mcd_agent *a, const struct mcd_session *asker, cJSON *root)
{
    cJSON *list = cJSON_AddArrayToObject(root, "sessions");

    for (const struct mcd_session *s = a->sessions; s != NULL; s = s->next) {
        struct mcd_reported own = {0};
        uint64_t tasks = 0, bytes = 0;
        cJSON *o;

        if (!s->greeted || !mcd_may_see(asker, s->tenant))
            continue;
        o = cJSON_CreateObject();
        add_u64(o, "id", s->id);
        cJSON_AddStringToObject(o, "name", s->name);
        cJSON_AddNumberToObject(o, "pid", s->pid);
        add_u64(o, "uid", s->uid);
        add_tenant(a, o, "tenant", s->tenant);
        add_hex(o, "incarnation", s->incarnation);
        add_u64(o, "queues", s->nqueues);
        add_u64(o, "allocations", s->nallocs);
        add_u64(o, "extents", s->nextents);
        add_u64(o, "memory", s->memory);
        add_u64(o, "open_segments", s->nopens);
        add_u64(o, "mappings", s->ngrants);
        for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next) {
            tasks += mcs_load_relaxed(&q->stats->sums.tasks);
            bytes += mcs_load_relaxed(&q->stats->sums.bytes);
            mcd_queue_reported(q, &own);
        }
        add_u64(o, "tasks", tasks + own.caller_tasks);
        add_u64(o, "bytes", bytes + own.caller_bytes);
        cJSON_AddBoolToObject(o, "ending", s->ending);
        cJSON_AddBoolToObject(o, "limbo", s->limbo != NULL);
        cJSON_AddItemToArray(list, o);
    }
}

static void add_location(cJSON *o, const struct mcd_extent *e, int node)
{
    char text[MCS_LOCATION_MAX];

    if (e != NULL && e->gpu != NULL)
        mcd_gpu_location(e, text);
    else if (node >= 0)
        snprintf(text, sizeof(text), "cpu:%d", node);
    else
        snprintf(text, sizeof(text), "cpu");
    cJSON_AddStringToObject(o, "location", text);
}

static void extents(struct mcd_agent *a, const struct mcd_session *asker, cJSON *root)
{
    cJSON *list = cJSON_AddArrayToObject(root, "extents");

    for (const struct mcd_extent *e = a->pool.extents; e != NULL; e = e->next) {
        cJSON *o;

        if (!mcd_may_see(asker, e->tenant))
            continue;
        o = cJSON_CreateObject();
        add_u64(o, "id", e->id);
        if (e->owner != NULL)
            add_u64(o, "session", e->owner->id);
        else
            cJSON_AddNullToObject(o, "session"); /* only mappings hold it */
        add_tenant(a, o, "tenant", e->tenant);
        cJSON_AddStringToObject(o, "kind",
                                e->gpu != NULL ? (e->foreign ? "gpu import" : "gpu")
                                : e->foreign   ? "memfd"
                                               : "pool");
        add_location(o, e, e->kind.node);
        add_u64(o, "size", e->size);
        add_u64(o, "used", e->alloc != NULL ? mcd_alloc_used(e->alloc) : e->size);
        add_u64(o, "allocations", e->alloc != NULL ? mcd_alloc_count(e->alloc) : 1);
        add_u64(o, "page_size", e->kind.page_size);
        cJSON_AddNumberToObject(o, "node", e->kind.node);
        add_hex(o, "address", e->address);
        cJSON_AddItemToArray(list, o);
    }
}

static void segments(struct mcd_agent *a, const struct mcd_session *asker, cJSON *root)
{
    cJSON *list = cJSON_AddArrayToObject(root, "segments");

    for (const struct mcd_segment *s = a->segments; s != NULL; s = s->next) {
        bool public = (s->flags & MCS_SEGMENT_PUBLIC) != 0;
        cJSON *o, *buffers;

        if (!public && !mcd_may_see(asker, s->tenant))
            continue;
        o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "name", s->name);
        add_u64(o, "session", s->owner->id);
        add_tenant(a, o, "tenant", s->tenant);
        add_hex(o, "incarnation", s->incarnation);
        cJSON_AddBoolToObject(o, "public", public);
        buffers = cJSON_AddArrayToObject(o, "buffers");
        for (uint32_t i = 0; i < s->snapshot->count; i++) {
            const struct mcd_buffer *b = &s->snapshot->buffers[i];
            char text[8];
            cJSON *j = cJSON_CreateObject();

            add_hex(j, "address", b->address);
            add_u64(j, "size", b->length);
            snprintf(text, sizeof(text), "%s%s%s%s", b->access & MCS_ACCESS_READ ? "r" : "-",
                     b->access & MCS_ACCESS_WRITE ? "w" : "-",
                     b->access & MCS_ACCESS_MAP_READ ? "R" : "-",
                     b->access & MCS_ACCESS_MAP_WRITE ? "W" : "-");
            cJSON_AddStringToObject(j, "access", text);
            add_location(j, b->extent, b->node);
            cJSON_AddItemToArray(buffers, j);
        }
        cJSON_AddItemToArray(list, o);
    }
}

static void add_route(cJSON *list, const char *peer, unsigned engine, const struct mcd_route *route,
                      const struct mcd_peer *p)
{
    struct mcd_route_report r;

    if (route == NULL)
        return;
    mcd_route_get_report(route, &r);
    for (unsigned k = 0; k < r.rails; k++) {
        struct mcd_way_ends ends;
        bool rdma = p != NULL && mcd_way_ends(p, engine, k, &ends);

        add_rail(list, peer, engine, &r.rail[k], rdma ? &ends : NULL);
    }
}

static void add_mooncake(void *context, const struct mcd_mooncake_view *v)
{
    add_route(context, v->name, v->engine, v->route, NULL);
}

static void rails(struct mcd_agent *a, cJSON *root)
{
    cJSON *list = cJSON_AddArrayToObject(root, "rails");

    for (const struct mcd_peer *p = a->cluster != NULL ? a->cluster->peers : NULL; p != NULL;
         p = p->next)
        for (unsigned i = 0; p->ways != NULL && i < a->nengines; i++)
            add_route(list, p->address, i, mcd_way_route(p, i), p);
    if (a->mooncake != NULL)
        mcd_mooncake_each(a->mooncake, add_mooncake, list);
}

static void peers(struct mcd_agent *a, cJSON *root)
{
    static const char *const auths[] = {"none", "psk", "tls"};
    cJSON *list = cJSON_AddArrayToObject(root, "peers");

    if (a->cluster == NULL)
        return;
    for (const struct mcd_peer *p = a->cluster->peers; p != NULL; p = p->next) {
        uint64_t segments_open = 0;
        cJSON *o = cJSON_CreateObject();

        for (const struct mcd_remote *r = p->remotes; r != NULL; r = r->next)
            segments_open++;
        cJSON_AddStringToObject(o, "address", p->address);
        add_hex(o, "incarnation", p->incarnation);
        cJSON_AddStringToObject(o, "state", mcd_peer_state_word(p->state));
        cJSON_AddStringToObject(o, "reason", p->text);
        cJSON_AddStringToObject(o, "auth", auths[a->config.peer_auth]);
        cJSON_AddStringToObject(o, "version", p->version);
        add_u64(o, "segments", segments_open);
        add_u64(o, "exports", p->exports != NULL ? p->exports->count : 0);
        add_u64(o, "rails", p->nrails);
        cJSON_AddNumberToObject(o, "since_s", (double)(mcd_now_ns() - p->since) / 1e9);
        mcd_query_peer_nics(p, o);
        cJSON_AddItemToArray(list, o);
    }
}

char *mcd_query_json(struct mcd_agent *a, const struct mcd_session *asker, uint32_t what)
{
    cJSON *root;
    char *text = NULL;

    if (what == MCS_QUERY_STORE)
        return mcd_query_store(a, asker);
    root = cJSON_CreateObject();
    switch (what) {
    case MCS_QUERY_STATUS:
        status(a, root);
        break;
    case MCS_QUERY_SEGMENTS:
        segments(a, asker, root);
        break;
    case MCS_QUERY_EXTENTS:
        extents(a, asker, root);
        break;
    case MCS_QUERY_SESSIONS:
        sessions(a, asker, root);
        break;
    case MCS_QUERY_RAILS:
        rails(a, root);
        break;
    case MCS_QUERY_TENANTS:
        tenants(a, asker, root);
        break;
    case MCS_QUERY_PEERS:
        peers(a, root);
        break;
    case MCS_QUERY_NICS:
        mcd_query_nics(a, root);
        break;
    case MCS_QUERY_GPUS:
        mcd_query_gpus(a, root);
        break;
    }
    text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
}
