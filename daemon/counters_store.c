/* SPDX-License-Identifier: Apache-2.0 */
/* What /metrics tells of the store. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "catalog.h"
#include "counters.h"
#include "hold.h"
#include "store_internal.h"
#include "store_json.h"

struct figure {
    const char *name, *type, *help;
    uint64_t value;
};

static void put(FILE *out, const struct figure *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        fprintf(out, "# HELP mcshm_store_%s %s\n# TYPE mcshm_store_%s %s\nmcshm_store_%s %llu\n",
                f[i].name, f[i].help, f[i].name, f[i].type, f[i].name,
                (unsigned long long)f[i].value);
}

static void objects(struct mcd_store *st, FILE *out)
{
    const struct mcd_store_work *w = st->work;
    struct mco_stats s;

    mco_get_stats(st->objects, &s);
    {
        const struct figure list[] = {
            {"size_bytes", "gauge", "Most memory for objects", s.size},
            {"memory_bytes", "gauge", "Memory taken for them, in extents", s.extent_bytes},
            {"extents", "gauge", "Extents of objects", s.extents},
            {"used_bytes", "gauge", "Bytes that objects take of it", s.used},
            {"objects", "gauge", "Objects in memory", s.objects},
            {"bytes", "gauge", "Bytes of objects in memory", s.bytes},
            {"disk_objects", "gauge", "Objects that are on disk, only there or also",
             s.disk_objects},
            {"disk_object_bytes", "gauge", "Bytes of these objects", s.disk_bytes},
            {"writing", "gauge", "Objects being written", s.writing},
            {"leaving", "gauge", "Objects that are gone, and whose space readers or leases keep",
             s.leaving},
            {"pinned", "gauge", "Objects with a reader", s.pinned},
            {"leased", "gauge", "Objects with a lease that runs", s.leased},
            {"in_place", "gauge", "Objects read or filled in place", s.in_place},
            {"guarded", "gauge",
             "Objects that sessions of an earlier agent may still have in place", s.guarded},
            {"table_bytes", "gauge", "Memory of the table of objects", s.table_bytes},
            {"index_bytes", "gauge", "Memory of the index", s.index_bytes},
            {"puts_total", "counter", "Objects put or sealed", s.puts},
            {"put_bytes_total", "counter", "Bytes of them", s.put_bytes},
            {"put_exists_total", "counter", "Puts of a key that was there", s.put_exists},
            {"replaced_total", "counter", "Objects that a later version replaced", s.replaced},
            {"aborted_total", "counter", "Puts and creations that were undone", s.aborted},
            {"lookups_total", "counter", "Keys looked up", s.lookups},
            {"hits_total", "counter", "Keys that were here", s.hits},
            {"misses_total", "counter", "Keys that were not", s.misses},
            {"hit_bytes_total", "counter", "Bytes of objects that were read", s.hit_bytes},
            {"disk_hits_total", "counter", "Keys that were on disk only", s.disk_hits},
            {"evictions_total", "counter", "Objects evicted for want of space", s.evictions},
            {"evicted_bytes_total", "counter", "Bytes of them", s.evicted_bytes},
            {"offloads_total", "counter", "Objects written to disk before they left memory",
             s.offloads},
            {"offload_bytes_total", "counter", "Bytes of them", s.offload_bytes},
            {"fetches_total", "counter", "Objects that came back from disk", s.fetches},
            {"fetch_bytes_total", "counter", "Bytes of them", s.fetch_bytes},
            {"removed_total", "counter", "Objects removed by request", s.removed},
            {"damaged_total", "counter", "Objects whose checksum was wrong, or that the disk lost",
             s.damaged},
            {"no_space_total", "counter",
             "Puts refused since all that is held is leased, pinned or being written", s.no_space},
            {"busy_total", "counter", "Times that a put or get had to wait for space", s.busy},
            {"extents_made_total", "counter", "Extents made", w->made},
            {"extents_removed_total", "counter", "Extents given back", w->removed},
            {"extents_refused_total", "counter", "Extents that could not be had", w->not_made},
            {"extents_unkept_total", "counter",
             "Extents that could not be given into keeping: a later agent has not what is in them",
             w->not_kept},
            {"recovered_objects", "gauge", "Objects that this agent has taken over",
             w->recovered.objects},
            {"recovery_dropped", "gauge",
             "Objects that it found half written or damaged, and dropped",
             w->recovered.unfinished + w->recovered.torn},
        };

        put(out, list, sizeof(list) / sizeof(list[0]));
    }
}

static void events(struct mcd_store *st, FILE *out)
{
    uint64_t first, next;

    mco_events_range(st->events, &first, &next);
    {
        const struct figure list[] = {
            {"events_total", "counter", "Events in the feed, ever", next - 1},
            {"events_kept", "gauge", "Events that can be read again", next - first},
        };

        put(out, list, sizeof(list) / sizeof(list[0]));
    }
}

static void holds(struct mcd_store *st, FILE *out)
{
    uint64_t n = 0, creations = 0, bytes = 0;

    for (const struct mcd_session *s = st->agent->sessions; s != NULL; s = s->next) {
        uint64_t a = 0, b = 0, c = 0;

        if (s->holds != NULL)
            mcd_holds_count(s->holds, &a, &b, &c);
        n += a;
        creations += b;
        bytes += c;
    }
    {
        const struct figure list[] = {
            {"holds", "gauge", "Objects that sessions read in place", n},
            {"creations", "gauge", "Objects that sessions fill in place", creations},
            {"held_bytes", "gauge", "Bytes of both", bytes},
        };

        put(out, list, sizeof(list) / sizeof(list[0]));
    }
}

static void catalog(struct mcd_store *st, FILE *out)
{
    struct mcd_catalog_stats c = {.leader = ""};

    if (st->catalog == NULL)
        return;
    mcd_catalog_get_stats(st->catalog, &c);
    {
        const struct figure list[] = {
            {"directory_joined", "gauge", "Does the directory know what is here: 1, or 0",
             c.joined},
            {"directory_here", "gauge", "Is this agent its leader: 1, or 0", c.here},
            {"directory_token", "gauge", "Fencing token of its leader", c.token},
            {"directory_unreported", "gauge", "Events that it has not heard of", c.lag},
            {"directory_reports_total", "counter", "Reports to it", c.reports},
            {"directory_retries_total", "counter", "Requests to it that had to be made again",
             c.retries},
            {"directory_fenced_total", "counter", "Orders of earlier leaders that were refused",
             c.fenced},
            {"places", "gauge", "Places of other hosts' objects that are known", c.cached},
            {"place_hits_total", "counter", "Objects of other hosts found among them",
             c.cache_hits},
            {"leases_taken_total", "counter", "Leases taken at other hosts", c.leases},
            {"recalls_total", "counter", "Leases that were recalled", c.recalls},
            {"leases_refused_total", "counter",
             "Keys that were not leased to others: the leader may have said that they are over",
             c.leases_refused},
            {"pulls_total", "counter", "Objects copied from other hosts into this store", c.pulls},
            {"pulled_bytes_total", "counter", "Bytes of them", c.pulled_bytes},
            {"pull_failures_total", "counter", "Such copies that failed", c.pull_failures},
        };

        put(out, list, sizeof(list) / sizeof(list[0]));
    }
}

static void disk(struct mcd_store *st, FILE *out)
{
    struct mco_disk_stats d;

    if (st->disk == NULL)
        return;
    mco_disk_get_stats(st->disk, &d);
    {
        const struct figure list[] = {
            {"disk_size_bytes", "gauge", "Most bytes on disk", d.size},
            {"disk_used_bytes", "gauge", "Bytes on disk", d.used},
            {"disk_queued", "gauge", "Reads and writes under way", d.queued},
            {"disk_lost", "gauge", "Has the disk failed: 1, or 0", d.lost},
            {"disk_writes_total", "counter", "Objects written", d.writes},
            {"disk_write_bytes_total", "counter", "Bytes of them", d.write_bytes},
            {"disk_reads_total", "counter", "Objects read", d.reads},
            {"disk_read_bytes_total", "counter", "Bytes of them", d.read_bytes},
            {"disk_evictions_total", "counter", "Objects dropped for want of room on disk",
             d.evictions},
            {"disk_write_errors_total", "counter", "Writes that failed", d.write_errors},
            {"disk_read_errors_total", "counter", "Reads that failed", d.read_errors},
            {"disk_torn_total", "counter", "Records that were found half written", d.torn},
            {"disk_checksum_errors_total", "counter", "Records whose checksum was wrong",
             d.checksum_errors},
            {"disk_full_total", "counter", "Writes that found no room", d.full},
            {"disk_buffered_total", "counter", "Reads and writes without O_DIRECT", d.buffered},
        };

        put(out, list, sizeof(list) / sizeof(list[0]));
    }
}

enum tenant_value { OBJECTS, BYTES, MEMORY, LIMIT, HITS, MISSES, EVICTIONS, REFUSED };

static uint64_t value_of(const struct mco_tenant_stats *t, enum tenant_value what)
{
    switch (what) {
    case OBJECTS:
        return t->objects;
    case BYTES:
        return t->bytes;
    case MEMORY:
        return t->extent_bytes;
    case LIMIT:
        return t->limit;
    case HITS:
        return t->hits;
    case MISSES:
        return t->misses;
    case EVICTIONS:
        return t->evictions;
    case REFUSED:
        return t->refused;
    }
    return 0;
}

/* One line a tenant; their names are harmless in labels. */
static void tenants(struct mcd_store *st, FILE *out)
{
    static const struct {
        const char *name, *type, *help;
        enum tenant_value what;
    } list[] = {
        {"objects", "gauge", "Objects of a tenant", OBJECTS},
        {"bytes", "gauge", "Bytes of them", BYTES},
        {"memory_bytes", "gauge", "Memory that is a tenant's, in extents", MEMORY},
        {"limit_bytes", "gauge", "Most bytes it may have, 0: as much as there is", LIMIT},
        {"hits_total", "counter", "Keys of a tenant that were here", HITS},
        {"misses_total", "counter", "Keys that were not", MISSES},
        {"evictions_total", "counter", "Objects of a tenant that were evicted", EVICTIONS},
        {"refused_total", "counter", "Puts of a tenant refused for its limit", REFUSED},
    };
    size_t n = mco_tenants(st->objects, NULL, 0);
    struct mco_tenant_stats *t = n == 0 ? NULL : calloc(n, sizeof(*t));
    size_t have = t == NULL ? 0 : mco_tenants(st->objects, t, n);

    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        fprintf(out, "# HELP mcshm_store_tenant_%s %s\n# TYPE mcshm_store_tenant_%s %s\n",
                list[i].name, list[i].help, list[i].name, list[i].type);
        for (size_t k = 0; k < have && k < n; k++) {
            char name[MCD_TENANT_NAME_MAX];

            mcd_store_tenant_name(&st->config, t[k].tenant, name);
            fprintf(out, "mcshm_store_tenant_%s{tenant=\"%s\"} %llu\n", list[i].name, name,
                    (unsigned long long)value_of(&t[k], list[i].what));
        }
    }
    free(t);
}

/* ---- what the engines did ---------------------------------------------------------------------- */

static const char *const ops[MCD_OBJECT_OPS] = {"put",    "get",    "exist", "prefix",
                                                "remove", "create", "seal",  "hold"};

/* The sum over all engines of a counter that lies at this offset in their struct mcd_object_counters. */
static uint64_t sum(const struct mcd_agent *a, size_t offset)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < a->nengines; i++) /* relaxed: counters, of their engines */
        n += mcs_load_relaxed(
            (const uint64_t *)(const void *)((const char *)&a->engines[i]->counters.objects +
                                             offset));
    return n;
}
#define AT(field) offsetof(struct mcd_object_counters, field)

static void by_op(const struct mcd_agent *a, FILE *out, const char *name, const char *help,
                  size_t offset)
{
    fprintf(out, "# HELP mcshm_store_%s %s\n# TYPE mcshm_store_%s counter\n", name, help, name);
    for (size_t i = 0; i < MCD_OBJECT_OPS; i++)
        fprintf(out, "mcshm_store_%s{op=\"%s\"} %llu\n", name, ops[i],
                (unsigned long long)sum(a, offset + i * sizeof(uint64_t)));
}

static void engines(const struct mcd_agent *a, FILE *out)
{
    const struct figure list[] = {
        {"space_waits_total", "counter", "Keys that had to wait for space or for the disk",
         sum(a, AT(space_waits))},
        {"far_keys_total", "counter", "Keys read from other hosts", sum(a, AT(far_keys))},
        {"legs_total", "counter", "Reads of other hosts' stores", sum(a, AT(legs))},
        {"leg_bytes_total", "counter", "Bytes of them", sum(a, AT(leg_bytes))},
        {"leg_retries_total", "counter", "Such reads that had to be made again",
         sum(a, AT(retries))},
        {"gpu_put_bytes_total", "counter", "Bytes put from GPU memory", sum(a, AT(gpu_put_bytes))},
        {"gpu_get_bytes_total", "counter", "Bytes got into GPU memory", sum(a, AT(gpu_get_bytes))},
        {"checksum_errors_total", "counter", "Objects whose checksum was wrong when they were read",
         sum(a, AT(damaged))},
        {"checksum_bytes_total", "counter", "Bytes that checksums were computed over",
         sum(a, AT(summed_bytes))},
        {"checksum_ns_total", "counter", "Nanoseconds that this took", sum(a, AT(summed_ns))},
        {"released_total", "counter", "Holds that were given back", sum(a, AT(released))},
    };

    by_op(a, out, "requests_total", "Requests about objects that completed", AT(requests));
    by_op(a, out, "keys_total", "Keys in them", AT(keys));
    by_op(a, out, "op_bytes_total", "Bytes that they moved", AT(bytes));
    fprintf(out, "# HELP mcshm_store_results_total Results of keys with this status\n"
                 "# TYPE mcshm_store_results_total counter\n");
    for (uint32_t e = 0; e < MCS_STATUS_COUNT; e++) {
        uint64_t n = sum(a, AT(statuses) + e * sizeof(uint64_t));

        if (n != 0 || e == MCS_OK)
            fprintf(out, "mcshm_store_results_total{status=\"%s\"} %llu\n", mcd_status_word(e),
                    (unsigned long long)n);
    }
    put(out, list, sizeof(list) / sizeof(list[0]));
}

void mcd_store_metrics(struct mcd_agent *a, FILE *out)
{
    if (a->store == NULL)
        return;
    engines(a, out);
    objects(a->store, out);
    events(a->store, out);
    holds(a->store, out);
    catalog(a->store, out);
    disk(a->store, out);
    tenants(a->store, out);
}
