/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include "report.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define MIB (1u << 20)

static const char *const op_names[STORE_OPS] = {"put",   "get",    "get_in_place",
                                                "exist", "prefix", "remove"};

static const struct store_row *find(const struct store_rows *rows, enum store_op op, uint64_t size,
                                    uint64_t batch, bool remote)
{
    for (unsigned i = 0; i < rows->count; i++) {
        const struct store_row *r = &rows->row[i];

        if (r->op == op && (size == 0 || r->size == size) && r->batch == batch &&
            r->remote == remote)
            return r;
    }
    return NULL;
}

/* ---- goals: a figure, what it is to be, and whether more is better ------------------------------ */

struct goal {
    const char *name;
    double value, goal;
    bool at_most;
};

#define GOALS 13u

/* Of median requests: what disturbs a few of them counts in ops_s, not here. */
static double per(const struct store_row *a, const struct store_row *b)
{
    return a != NULL && b != NULL ? b->p50_us / a->p50_us : NAN;
}

static double of_limit(const struct store_row *r)
{
    return r != NULL ? (double)(r->size * r->batch) / (r->p50_us * 1e3) / r->limit : NAN;
}

static void list_goals(const struct store_figures *f, struct goal *g)
{
    const struct store_rows *ours = &f->ours, *redis = &f->peers[STORE_REDIS];
    const struct store_row *exist = find(ours, STORE_EXIST, 0, 1024, false);
    double in_place = NAN;

    for (unsigned i = 0; i < ours->count; i++) { /* the worst size */
        const struct store_row *r = &ours->row[i];

        if (r->op == STORE_GET_IN_PLACE && r->batch == 1 && !(r->p50_us * 1e3 <= in_place))
            in_place = r->p50_us * 1e3;
    }
    g[0] = (struct goal){"exist_per_s", exist != NULL ? 1024e6 / exist->p50_us : NAN, 2e6, false};
    g[1] = (struct goal){"get_in_place_by_ring_rtt", in_place / f->ring_rtt_ns, 2, true};
    g[2] = (struct goal){
        "put_4k_by_redis",
        per(find(ours, STORE_PUT, 4096, 1, false), find(redis, STORE_PUT, 4096, 1, false)), 10,
        false};
    g[3] = (struct goal){
        "get_4k_by_redis",
        per(find(ours, STORE_GET, 4096, 1, false), find(redis, STORE_GET, 4096, 1, false)), 10,
        false};
    g[11] = (struct goal){
        "put_4k_by_mooncake",
        per(find(ours, STORE_PUT, 4096, 1, false), find(&f->mooncake, STORE_PUT, 4096, 1, false)),
        10, false};
    g[12] = (struct goal){
        "get_4k_by_mooncake",
        per(find(ours, STORE_GET, 4096, 1, false), find(&f->mooncake, STORE_GET, 4096, 1, false)),
        10, false};
    g[4] = (struct goal){"get_1m_by_memcpy", of_limit(find(ours, STORE_GET, MIB, 1, false)), 0.9,
                         false};
    g[5] = (struct goal){"remote_get_1m_by_read", of_limit(find(ours, STORE_GET, MIB, 1, true)),
                         0.9, false};
    g[6] = (struct goal){"remote_get_1m_64_by_read", of_limit(find(ours, STORE_GET, MIB, 64, true)),
                         0.9, false};
    g[7] = (struct goal){"directory_exist_per_s", f->directory.exist_s, 1e6, false};
    g[8] = (struct goal){"directory_start_end_per_s", f->directory.start_end_s, 2e5, false};
    g[9] = (struct goal){"directory_bytes_per_key", f->directory.bytes_per_key, 200, true};
    g[10] = (struct goal){"directory_rebuild_s", f->directory.rebuild_s, 2, true};
}

static bool is_met(const struct goal *g)
{
    return g->at_most ? g->value <= g->goal : g->value >= g->goal;
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

static void add_rows(cJSON *d, const char *name, const struct store_rows *rows)
{
    cJSON *list = cJSON_AddArrayToObject(d, name);

    for (unsigned i = 0; i < rows->count; i++) {
        const struct store_row *r = &rows->row[i];
        cJSON *o = cJSON_CreateObject();

        report_text(o, "op", op_names[r->op]);
        report_count(o, "size", r->size);
        report_count(o, "batch", r->batch);
        report_text(o, "where", r->remote ? "remote" : "local");
        report_number(o, "ops_s", r->ops_s, 1);
        report_number(o, "gbps", r->gbps, 4);
        report_number(o, "p50_us", r->p50_us, 3);
        report_number(o, "p99_us", r->p99_us, 3);
        report_number(o, "cpu_s_per_gb", r->cpu_s_per_gb, 4);
        report_number(o, "queue_us", r->queue_us, 3);
        report_number(o, "move_us", r->move_us, 3);
        report_number(o, "rest_us", r->rest_us, 3);
        report_number(o, "limit_gbps", r->limit, 4);
        cJSON_AddItemToArray(list, o);
    }
}

static int print_json(const struct agent *a, const struct pin_cores *cores,
                      const struct store_figures *f)
{
    cJSON *d = cJSON_CreateObject(), *o;
    struct goal goals[GOALS];
    int rc;

    if (d == NULL)
        return say_error(-ENOMEM, "no memory for the report");
    report_place(d, a, cores, f->page_size);
    report_number(d, "ring_rtt_ns", f->ring_rtt_ns, 1);
    add_rows(d, "rows", &f->ours);
    report_text(d, "no_remote", f->no_remote);
    for (unsigned i = 0; i < STORE_PEERS; i++) {
        if (f->peer_there[i])
            add_rows(d, store_peer_names[i], &f->peers[i]);
        else
            cJSON_AddNullToObject(d, store_peer_names[i]);
    }
    if (f->mooncake_there)
        add_rows(d, "mooncake", &f->mooncake);
    else
        cJSON_AddNullToObject(d, "mooncake");
    o = cJSON_AddObjectToObject(d, "directory");
    report_count(o, "keys", f->directory.keys);
    report_number(o, "exist_s", f->directory.exist_s, 0);
    report_number(o, "start_end_s", f->directory.start_end_s, 0);
    report_number(o, "bytes_per_key", f->directory.bytes_per_key, 1);
    report_count(o, "rebuilt", f->directory.rebuilt);
    report_number(o, "rebuild_s", f->directory.rebuild_s, 4);
    o = cJSON_AddObjectToObject(d, "goals");
    list_goals(f, goals);
    for (unsigned i = 0; i < GOALS; i++)
        report_number(o, goals[i].name, goals[i].value, 3);
    rc = report_print(d);
    cJSON_Delete(d);
    return rc;
}

/* ---- for people ----------------------------------------------------------------------------------- */

static void print_rows(const char *who, const struct store_rows *rows)
{
    char size[32], cells[6][32];

    for (unsigned i = 0; i < rows->count; i++) {
        const struct store_row *r = &rows->row[i];

        printf(
            "%-10s %-12s %8s %6" PRIu64 "  %-6s %12s %8s %11s %11s %9s %8s\n", who, op_names[r->op],
            report_size(r->size, size, sizeof(size)), r->batch, r->remote ? "remote" : "local",
            report_cell(r->ops_s, 0, cells[0], 32), report_cell(r->gbps, 2, cells[1], 32),
            report_cell(r->p50_us, 2, cells[2], 32), report_cell(r->p99_us, 2, cells[3], 32),
            report_cell(r->cpu_s_per_gb, 3, cells[4], 32), report_cell(r->limit, 2, cells[5], 32));
    }
}

static void print_table(const struct store_options *o, const struct store_figures *f)
{
    const struct store_directory *d = &f->directory;
    struct goal goals[GOALS];

    printf("%-10s %-12s %8s %6s  %-6s %12s %8s %11s %11s %9s %8s\n", "", "op", "size", "batch",
           "where", "keys/s", "GB/s", "p50 us", "p99 us", "cpu s/GB", "limit");
    print_rows("mcshm", &f->ours);
    for (unsigned i = 0; i < STORE_PEERS; i++) {
        print_rows(store_peer_names[i], &f->peers[i]);
        if (!f->peer_there[i] && !o->no_peers)
            printf("%s is not installed\n", store_peer_names[i]);
    }
    print_rows("mooncake", &f->mooncake);
    if (!f->mooncake_there && !o->no_peers)
        printf("Mooncake Store: --mooncake DIR names its virtual environment\n");
    if (f->no_remote != NULL)
        printf("no other host: %s\n", f->no_remote);
    printf(
        "\nA 64-byte WRITE through the ring: %.0f ns. limit: memcpy, or READs of the same size.\n"
        "The directory, %" PRIu64 " keys: %.2f M exist/s, %.0f k start and end/s, %.0f bytes a "
        "key; %" PRIu64 " objects reported in %.2f s\n\n",
        f->ring_rtt_ns, d->keys, d->exist_s / 1e6, d->start_end_s / 1e3, d->bytes_per_key,
        d->rebuilt, d->rebuild_s);
    list_goals(f, goals);
    for (unsigned i = 0; i < GOALS; i++)
        if (!isnan(goals[i].value))
            printf("%-28s %14.2f   %s %g%s\n", goals[i].name, goals[i].value,
                   goals[i].at_most ? "at most " : "at least", goals[i].goal,
                   is_met(&goals[i]) ? "" : "   MISSED");
}

int store_print(const struct store_options *o, const struct agent *a, const struct pin_cores *cores,
                const struct store_figures *f)
{
    if (o->common.json)
        return print_json(a, cores, f);
    print_table(o, f);
    return 0;
}
