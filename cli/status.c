/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "table.h"

static const cJSON *get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static void line(const char *title, const cJSON *value, enum cell_kind kind)
{
    char cell[320];

    table_cell(cell, sizeof(cell), value, kind);
    printf("%-12s %s\n", title, cell);
}

static void print_uptime(uint64_t seconds)
{
    printf("%-12s ", "uptime");
    if (seconds >= 86400)
        printf("%" PRIu64 "d ", seconds / 86400);
    printf("%02" PRIu64 ":%02" PRIu64 ":%02" PRIu64 "\n", seconds / 3600 % 24, seconds / 60 % 60,
           seconds % 60);
}

static void print_pool(const cJSON *pool)
{
    char used[32], size[32], page[32], extents[32];

    table_cell(used, sizeof(used), get(pool, "used"), CELL_BYTES);
    table_cell(size, sizeof(size), get(pool, "size"), CELL_BYTES);
    table_cell(page, sizeof(page), get(pool, "page_size"), CELL_BYTES);
    table_cell(extents, sizeof(extents), get(pool, "extents"), CELL_COUNT);
    printf("%-12s %s of %s in use, pages of %s, %s extents\n", "pool", used, size, page, extents);
}

static void print_gpu(const cJSON *gpu)
{
    const cJSON *why = get(gpu, "why");
    uint64_t driver = table_number(get(gpu, "driver")), lost = table_number(get(gpu, "lost"));
    uint64_t devices = table_number(get(gpu, "devices"));
    char ours[32];

    if (gpu == NULL || cJSON_IsNull(gpu)) {
        printf("%-12s off: [gpu] enable = off\n", "gpu");
    } else if (driver == 0) {
        printf("%-12s %s\n", "gpu",
               cJSON_IsString(why) && why->valuestring[0] != '\0'
                   ? why->valuestring
                   : "driver not loaded, no client has asked for GPU memory");
    } else {
        table_cell(ours, sizeof(ours), get(gpu, "ours"), CELL_BYTES);
        printf("%-12s %" PRIu64 " device%s, %s in use, driver %" PRIu64 ".%" PRIu64, "gpu", devices,
               devices == 1 ? "" : "s", ours, driver / 1000, driver % 1000 / 10);
        if (lost != 0)
            printf(", %" PRIu64 " LOST", lost);
        printf("\n");
    }
}

static void print_counters(const cJSON *counters)
{
    const cJSON *counter;

    if (counters == NULL || counters->child == NULL)
        return;
    printf("\nCOUNTERS\n");
    cJSON_ArrayForEach(counter, counters)
    {
        char cell[64];

        if (cJSON_IsObject(counter) || cJSON_IsArray(counter))
            continue;
        table_cell(cell, sizeof(cell), counter, CELL_COUNT);
        printf("  %-32s %s\n", counter->string, cell);
    }
}

int cli_status(const struct cli *cli)
{
    static const struct column engines[] = {
        {"ENGINE", "id", CELL_COUNT},   {"CORE", "core", CELL_TEXT},
        {"STATE", "state", CELL_TEXT},  {"TURNS", "turns", CELL_COUNT},
        {"TASKS", "tasks", CELL_COUNT}, {"BYTES", "bytes", CELL_BYTES},
    };
    char *text;
    cJSON *d;
    int res = cli_query(cli, MCSHM_QUERY_STATUS, &text, &d);

    if (res != CLI_OK)
        return res;
    if (cli->json) {
        puts(text);
        goto out;
    }
    line("version", get(d, "version"), CELL_TEXT);
    line("pid", get(d, "pid"), CELL_TEXT);
    line("socket", get(d, "socket"), CELL_TEXT);
    line("incarnation", get(d, "incarnation"), CELL_HEX);
    print_uptime(table_number(get(d, "uptime_s")));
    line("admin", get(get(d, "admin"), "listen"), CELL_TEXT);
    line("idle", get(d, "idle"), CELL_TEXT);
    print_pool(get(d, "pool"));
    print_gpu(get(d, "gpu"));
    line("sessions", get(d, "sessions"), CELL_TEXT);
    line("segments", get(d, "segments"), CELL_TEXT);
    printf("\n");
    table_print(engines, sizeof(engines) / sizeof(engines[0]), get(d, "engines"));
    print_counters(get(d, "counters"));
out:
    cJSON_Delete(d);
    free(text);
    return res;
}
