/* SPDX-License-Identifier: Apache-2.0 */
/* What the store tells of itself as JSON: `mcshm store top`. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "catalog.h"
#include "hold.h"
#include "master.h"
#include "store_internal.h"
#include "store_json.h"

static void add_u64(cJSON *o, const char *key, uint64_t v)
{
    cJSON_AddNumberToObject(o, key, (double)v);
}

static void add_hex(cJSON *o, const char *key, uint64_t v)
{
    char text[24];

    snprintf(text, sizeof(text), "0x%llx", (unsigned long long)v);
    cJSON_AddStringToObject(o, key, text);
}

static void tiers(cJSON *root, const struct mco_stats *s)
{
    cJSON *o = cJSON_AddObjectToObject(root, "tiers"), *t;

    t = cJSON_AddObjectToObject(o, "memory");
    add_u64(t, "objects", s->objects);
    add_u64(t, "bytes", s->bytes);
    add_u64(t, "hits", s->hits - (s->disk_hits < s->hits ? s->disk_hits : s->hits));
    t = cJSON_AddObjectToObject(o, "disk");
    add_u64(t, "objects", s->disk_objects);
    add_u64(t, "bytes", s->disk_bytes);
    add_u64(t, "hits", s->disk_hits);
}

static void tenants(const struct mcd_store *st, const struct mcd_session *asker, cJSON *root)
{
    cJSON *list = cJSON_AddArrayToObject(root, "tenants");
    size_t n = mco_tenants(st->objects, NULL, 0);
    struct mco_tenant_stats *t = n == 0 ? NULL : calloc(n, sizeof(*t));
    size_t have = t == NULL ? 0 : mco_tenants(st->objects, t, n);

    for (size_t i = 0; i < have && i < n; i++) {
        char name[MCD_TENANT_NAME_MAX];
        cJSON *o;

        if (!mcd_may_see(asker, t[i].tenant))
            continue;
        o = cJSON_CreateObject();
        mcd_store_tenant_name(&st->config, t[i].tenant, name);
        cJSON_AddStringToObject(o, "name", name);
        add_u64(o, "objects", t[i].objects);
        add_u64(o, "bytes", t[i].bytes);
        add_u64(o, "memory", t[i].extent_bytes);
        add_u64(o, "limit", t[i].limit);
        add_u64(o, "hits", t[i].hits);
        add_u64(o, "misses", t[i].misses);
        add_u64(o, "evictions", t[i].evictions);
        add_u64(o, "refused", t[i].refused);
        cJSON_AddItemToArray(list, o);
    }
    free(t);
}

static void directory(struct mcd_store *st, cJSON *root)
{
    struct mcd_catalog_stats c = {.leader = ""};
    char *text = st->agent->master != NULL ? mcd_master_json(st->agent->master) : NULL;
    cJSON *o = cJSON_AddObjectToObject(root, "directory"), *master;

    if (st->catalog != NULL)
        mcd_catalog_get_stats(st->catalog, &c);
    cJSON_AddBoolToObject(o, "used", st->catalog != NULL);
    cJSON_AddStringToObject(o, "leader", c.leader);
    cJSON_AddBoolToObject(o, "here", c.here);
    cJSON_AddBoolToObject(o, "joined", c.joined);
    add_u64(o, "token", c.token);
    cJSON_AddBoolToObject(o, "draining", st->catalog != NULL && mcd_catalog_draining(st->catalog));
    add_u64(o, "cached_places", c.cached);
    add_u64(o, "cache_hits", c.cache_hits);
    add_u64(o, "leases_taken", c.leases);
    add_u64(o, "recalls", c.recalls);
    add_u64(o, "pulls", c.pulls);
    add_u64(o, "pulled_bytes", c.pulled_bytes);
    add_u64(o, "pull_failures", c.pull_failures);
    add_u64(o, "fenced", c.fenced);
    add_u64(o, "unreported", c.lag);
    master = text != NULL ? cJSON_Parse(text) : NULL;
    if (master != NULL)
        cJSON_AddItemToObject(o, "master", master);
    free(text);
}

static void disk(const struct mcd_store *st, cJSON *root)
{
    struct mco_disk_stats d;
    cJSON *o;

    if (st->disk == NULL) {
        cJSON_AddNullToObject(root, "disk");
        return;
    }
    mco_disk_get_stats(st->disk, &d);
    o = cJSON_AddObjectToObject(root, "disk");
    cJSON_AddStringToObject(o, "path", st->agent->config.store_disk);
    add_u64(o, "size", d.size);
    add_u64(o, "used", d.used);
    add_u64(o, "objects", d.objects);
    add_u64(o, "writes", d.writes);
    add_u64(o, "write_bytes", d.write_bytes);
    add_u64(o, "reads", d.reads);
    add_u64(o, "read_bytes", d.read_bytes);
    add_u64(o, "write_errors", d.write_errors);
    add_u64(o, "read_errors", d.read_errors);
    add_u64(o, "checksum_errors", d.checksum_errors);
    add_u64(o, "torn", d.torn);
    add_u64(o, "full", d.full);
    cJSON_AddBoolToObject(o, "lost", d.lost);
    cJSON_AddBoolToObject(o, "scanned", mco_disk_scanned(st->disk));
}

static void holds(struct mcd_store *st, const struct mcd_session *asker, cJSON *root)
{
    uint64_t n = 0, creations = 0, bytes = 0;
    cJSON *o = cJSON_AddObjectToObject(root, "in_place");

    for (const struct mcd_session *s = st->agent->sessions; s != NULL; s = s->next) {
        uint64_t a = 0, b = 0, c = 0;

        if (s->holds == NULL || !mcd_may_see(asker, s->tenant))
            continue;
        mcd_holds_count(s->holds, &a, &b, &c);
        n += a;
        creations += b;
        bytes += c;
    }
    add_u64(o, "holds", n);
    add_u64(o, "creations", creations);
    add_u64(o, "bytes", bytes);
}

static void store(struct mcd_store *st, const struct mcd_session *asker, cJSON *root)
{
    uint64_t first, next;
    struct mco_stats s;
    cJSON *o;

    mco_get_stats(st->objects, &s);
    add_hex(root, "identity", mco_identity(st->objects));
    cJSON_AddStringToObject(root, "policy", st->config.store_policy);
    add_u64(root, "size", s.size);
    add_u64(root, "memory", s.extent_bytes);
    add_u64(root, "extents", s.extents);
    add_u64(root, "used", s.used);
    add_u64(root, "objects", s.objects);
    add_u64(root, "bytes", s.bytes);
    tiers(root, &s);
    cJSON_AddNumberToObject(root, "hit_ratio",
                            s.lookups != 0 ? (double)s.hits / (double)s.lookups : 0);
    add_u64(root, "lookups", s.lookups);
    add_u64(root, "hits", s.hits);
    add_u64(root, "misses", s.misses);
    add_u64(root, "hit_bytes", s.hit_bytes);
    add_u64(root, "puts", s.puts);
    add_u64(root, "put_bytes", s.put_bytes);
    add_u64(root, "put_exists", s.put_exists);
    add_u64(root, "replaced", s.replaced);
    add_u64(root, "removed", s.removed);
    add_u64(root, "aborted", s.aborted);
    add_u64(root, "evictions", s.evictions);
    add_u64(root, "evicted_bytes", s.evicted_bytes);
    add_u64(root, "offloads", s.offloads);
    add_u64(root, "fetches", s.fetches);
    add_u64(root, "damaged", s.damaged);
    add_u64(root, "no_space", s.no_space);
    add_u64(root, "leases", s.leased);
    add_u64(root, "pinned", s.pinned);
    add_u64(root, "writing", s.writing);
    add_u64(root, "leaving", s.leaving);
    add_u64(root, "guarded", s.guarded);
    add_u64(root, "table_bytes", s.table_bytes);
    add_u64(root, "index_bytes", s.index_bytes);
    holds(st, asker, root);
    tenants(st, asker, root);
    directory(st, root);
    disk(st, root);
    mco_events_range(st->events, &first, &next);
    o = cJSON_AddObjectToObject(root, "events");
    add_hex(o, "epoch", st->agent->incarnation);
    add_u64(o, "first", first);
    add_u64(o, "next", next);
    o = cJSON_AddObjectToObject(root, "recovered");
    add_u64(o, "objects", st->work->recovered.objects);
    add_u64(o, "bytes", st->work->recovered.bytes);
    add_u64(o, "unfinished", st->work->recovered.unfinished);
    add_u64(o, "torn", st->work->recovered.torn);
    add_u64(o, "lost_extents", st->work->lost_extents);
}

char *mcd_query_store(struct mcd_agent *a, const struct mcd_session *asker)
{
    cJSON *root = cJSON_CreateObject();
    char *text;

    cJSON_AddBoolToObject(root, "enabled", a->store != NULL);
    if (a->store != NULL)
        store(a->store, asker, root);
    text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
}
