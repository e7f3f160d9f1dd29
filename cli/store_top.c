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

static double rate(const cJSON *now, const cJSON *then, const char *name, double seconds)
{
    uint64_t a = table_number(field(now, name)), b = table_number(field(then, name));

    return then != NULL && a > b ? (double)(a - b) / seconds : 0;
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
        printf("%s%s %s", any ? ", " : "", f->string, value);
        any = true;
    }
    if (any)
        printf("  [%s]\n", name);
}

static void print_tiers(const cJSON *d)
{
    const cJSON *tiers = field(d, "tiers"), *tier;

    cJSON_ArrayForEach(tier, tiers)
    {
        char objects[32], bytes[32];

        cell(objects, sizeof(objects), tier, "objects", CELL_COUNT);
        cell(bytes, sizeof(bytes), tier, "bytes", CELL_BYTES);
        printf("%-8s %s objects, %s\n", tier->string != NULL ? tier->string : "?", objects, bytes);
    }
}

static void print(const cJSON *now, const cJSON *then, double seconds)
{
    static const struct column tenants[] = {
        {"TENANT", "name", CELL_TEXT},        {"OBJECTS", "objects", CELL_COUNT},
        {"BYTES", "bytes", CELL_BYTES},       {"LIMIT", "limit", CELL_BYTES},
        {"HITS", "hits", CELL_COUNT},         {"MISSES", "misses", CELL_COUNT},
        {"EVICTED", "evictions", CELL_COUNT}, {"REFUSED", "refused", CELL_COUNT},
    };
    char used[32], size[32], objects[32], leases[32], evictions[32];
    const cJSON *ratio = field(now, "hit_ratio");

    cell(used, sizeof(used), now, "used", CELL_BYTES);
    cell(size, sizeof(size), now, "size", CELL_BYTES);
    cell(objects, sizeof(objects), now, "objects", CELL_COUNT);
    cell(leases, sizeof(leases), now, "leases", CELL_COUNT);
    cell(evictions, sizeof(evictions), now, "evictions", CELL_COUNT);
    printf("store    %s of %s used, %s objects, %s leased\n", used, size, objects, leases);
    printf("hits     %.1f %% ever; evicted %s, %.0f/s\n",
           100 * (cJSON_IsNumber(ratio) ? ratio->valuedouble : 0), evictions,
           rate(now, then, "evictions", seconds));
    print_tiers(now);
    print_part(now, "directory");
    print_part(now, "disk");
    table_print(tenants, sizeof(tenants) / sizeof(tenants[0]), field(now, "tenants"));
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
