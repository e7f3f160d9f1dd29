/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm store top`: how full the object store is, how it is used, and by whom. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "object.h"
#include "table.h"

#define INTERVAL_MS 1000u

static const cJSON *field(const cJSON *o, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(o, name);
}

/* One value of a document as a cell: "-" when it is not there. */
static void cell(char *out, size_t size, const cJSON *o, const char *name, enum cell_kind kind)
{
    table_cell(out, size, field(o, name), kind);
}

/* A second, between two looks. */
static double rate(const cJSON *now, const cJSON *then, const char *name, double seconds)
{
    uint64_t a = table_number(field(now, name)), b = table_number(field(then, name));

    return then != NULL && a > b ? (double)(a - b) / seconds : 0;
}

static void rate_bytes(char *out, size_t size, const cJSON *now, const cJSON *then,
                       const char *name, double seconds)
{
    cJSON *n = cJSON_CreateNumber(rate(now, then, name, seconds));

    table_cell(out, size, n, CELL_BYTES);
    cJSON_Delete(n);
}

/* A nested document's plain fields on one line. */
static void print_part(const cJSON *d, const char *name)
{
    const cJSON *part = field(d, name), *f;
    bool any = false;

    cJSON_ArrayForEach(f, part)
    {
        char value[128];

        if (cJSON_IsObject(f) || cJSON_IsArray(f))
            continue;
        if (cJSON_IsBool(f))
            snprintf(value, sizeof(value), "%s", cJSON_IsTrue(f) ? "yes" : "no");
        else
            table_cell(value, sizeof(value), f,
                       strstr(f->string, "bytes") != NULL || strcmp(f->string, "size") == 0
                           ? CELL_BYTES
                           : CELL_TEXT);
        if (any)
            printf(", %s %s", f->string, value);
        else
            printf("%-9s %s %s", name, f->string, value);
        any = true;
    }
    if (any)
        printf("\n");
}

/* The tiers as rows, each with its name. */
static void print_tiers(const cJSON *d)
{
    static const struct column columns[] = {
        {"TIER", "tier", CELL_TEXT},
        {"OBJECTS", "objects", CELL_COUNT},
        {"BYTES", "bytes", CELL_BYTES},
        {"HITS", "hits", CELL_COUNT},
    };
    const cJSON *tiers = field(d, "tiers"), *tier;
    cJSON *rows = cJSON_CreateArray();

    cJSON_ArrayForEach(tier, tiers)
    {
        cJSON *row = cJSON_Duplicate(tier, true);

        cJSON_AddStringToObject(row, "tier", tier->string != NULL ? tier->string : "?");
        cJSON_AddItemToArray(rows, row);
    }
    table_print(columns, sizeof(columns) / sizeof(columns[0]), rows);
    cJSON_Delete(rows);
}

static void print_numbers(const cJSON *now, const cJSON *then, double seconds)
{
    const cJSON *ratio = field(now, "hit_ratio"), *in_place = field(now, "in_place");
    char a[32], b[32], c[32], d[32], e[32], f[32];
    double lookups = rate(now, then, "lookups", seconds);

#define CELLS(o, n1, k1, n2, k2, n3, k3)                                                           \
    cell(a, sizeof(a), o, n1, k1);                                                                 \
    cell(b, sizeof(b), o, n2, k2);                                                                 \
    cell(c, sizeof(c), o, n3, k3)
    CELLS(now, "used", CELL_BYTES, "size", CELL_BYTES, "objects", CELL_COUNT);
    cell(d, sizeof(d), now, "memory", CELL_BYTES);
    cell(e, sizeof(e), now, "policy", CELL_TEXT);
    printf("store     %s of %s used, %s objects, %s of memory, policy %s\n", a, b, c, d, e);
    CELLS(now, "lookups", CELL_COUNT, "puts", CELL_COUNT, "put_bytes", CELL_BYTES);
    rate_bytes(d, sizeof(d), now, then, "hit_bytes", seconds);
    printf("hits      %.1f %% of %s lookups; now %.1f %% of %.0f/s, %s/s\n",
           100 * (cJSON_IsNumber(ratio) ? ratio->valuedouble : 0), a,
           lookups > 0 ? 100 * rate(now, then, "hits", seconds) / lookups : 0, lookups, d);
    rate_bytes(d, sizeof(d), now, then, "put_bytes", seconds);
    printf("puts      %s, %s; now %.0f/s, %s/s\n", b, c, rate(now, then, "puts", seconds), d);
    CELLS(now, "evictions", CELL_COUNT, "removed", CELL_COUNT, "replaced", CELL_COUNT);
    cell(d, sizeof(d), now, "no_space", CELL_COUNT);
    cell(e, sizeof(e), now, "damaged", CELL_COUNT);
    rate_bytes(f, sizeof(f), now, then, "evicted_bytes", seconds);
    printf("evicted   %s, now %.0f/s, %s/s; removed %s, replaced %s, no room %s, damaged %s\n", a,
           rate(now, then, "evictions", seconds), f, b, c, d, e);
    CELLS(in_place, "holds", CELL_COUNT, "creations", CELL_COUNT, "bytes", CELL_BYTES);
    cell(d, sizeof(d), now, "leases", CELL_COUNT);
    cell(e, sizeof(e), now, "leaving", CELL_COUNT);
    printf("in place  %s held, %s being filled, %s; leases %s, leaving %s\n", a, b, c, d, e);
#undef CELLS
}

static void print(const cJSON *now, const cJSON *then, double seconds)
{
    static const struct column tenants[] = {
        {"TENANT", "name", CELL_TEXT},      {"OBJECTS", "objects", CELL_COUNT},
        {"BYTES", "bytes", CELL_BYTES},     {"MEMORY", "memory", CELL_BYTES},
        {"LIMIT", "limit", CELL_BYTES},     {"HITS", "hits", CELL_COUNT},
        {"MISSES", "misses", CELL_COUNT},   {"EVICTED", "evictions", CELL_COUNT},
        {"REFUSED", "refused", CELL_COUNT},
    };

    static const struct column hosts[] = {
        {"HOST", "address", CELL_TEXT},       {"STATE", "state", CELL_TEXT},
        {"DOMAIN", "domain", CELL_TEXT},      {"OBJECTS", "objects", CELL_COUNT},
        {"USED", "used", CELL_BYTES},         {"SIZE", "capacity", CELL_BYTES},
        {"DRAINED", "draining", CELL_YES_NO},
    };
    const cJSON *holders = field(field(field(now, "directory"), "master"), "holders");

    print_numbers(now, then, seconds);
    if (cJSON_IsTrue(field(field(now, "directory"), "used")))
        print_part(now, "directory");
    print_part(now, "disk");
    printf("\n");
    print_tiers(now);
    printf("\n");
    table_print(tenants, sizeof(tenants) / sizeof(tenants[0]), field(now, "tenants"));
    if (cJSON_IsTrue(field(field(now, "directory"), "used")) && cJSON_GetArraySize(holders) != 0) {
        printf("\n");
        table_print(hosts, sizeof(hosts) / sizeof(hosts[0]), holders);
    }
}

static void show(const struct cli *cli, const char *text, const cJSON *now, const cJSON *then,
                 double seconds)
{
    unsigned lines;

    if (cli->json) {
        puts(text);
    } else {
        if (!cli->once && cli_screen(&lines))
            printf("\033[H\033[J");
        print(now, then, seconds);
        if (!cli->once)
            printf("\n");
    }
    fflush(stdout);
}

static int top(const struct cli *cli, mcshm *c)
{
    uint64_t interval = cli->interval_ms != 0 ? cli->interval_ms : INTERVAL_MS;
    uint64_t left = cli->once ? 1 : cli->count;
    cJSON *then = NULL, *now = NULL;
    int res = CLI_OK;

    while (res == CLI_OK) {
        char *text = NULL;
        mcshm_status status = mcshm_query(c, MCSHM_QUERY_STORE, &text);

        res = status != MCSHM_OK ? cli_error("the agent did not answer", status, c)
                                 : cli_parse(text, &now);
        if (res != CLI_OK)
            break;
        if (cJSON_IsFalse(field(now, "enabled")) && !cli->json) {
            fprintf(stderr, "mcshm: the agent holds no objects: [store] size is 0\n");
            res = CLI_FAILED;
        } else {
            show(cli, text, now, then, (double)interval / 1000);
        }
        free(text);
        cJSON_Delete(then);
        then = now;
        now = NULL;
        if (res != CLI_OK || (left != 0 && --left == 0))
            break;
        if (ferror(stdout) != 0) /* a pipe that nobody reads */
            res = CLI_FAILED;
        else
            cli_pause_ms(interval);
    }
    cJSON_Delete(then);
    return res;
}

int cli_store(const struct cli *cli, const char *what)
{
    mcshm *c = NULL;
    int res;

    if (strcmp(what, "top") != 0) {
        fprintf(stderr, "mcshm: store '%s' is unknown: 'store top' is what there is\n", what);
        return CLI_USAGE;
    }
    res = cli_connect(cli, &c);
    if (res != CLI_OK)
        return res;
    res = top(cli, c);
    mcshm_close(c);
    return res;
}
