/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "table.h"

#define COUNT 20

static const cJSON *get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static void print(const cJSON *d)
{
    static const struct column columns[] = {
        {"AGO", "ago_us", CELL_AGO},         {"SESSION", "session", CELL_COUNT},
        {"QUEUE", "queue", CELL_COUNT},      {"OP", "op", CELL_TEXT},
        {"SHAPE", "shape", CELL_TEXT},       {"CLASS", "class", CELL_TEXT},
        {"BYTES", "bytes", CELL_BYTES},      {"OF", "length", CELL_BYTES},
        {"PATH", "path", CELL_TEXT},         {"QUEUE us", "queue_ns", CELL_MICROS},
        {"MOVE us", "move_ns", CELL_MICROS}, {"NOTIFY us", "notify_ns", CELL_MICROS},
        {"STATE", "state", CELL_TEXT},       {"ERROR", "error", CELL_TEXT},
    };
    uint64_t tasks = 0, recorded = 0;
    const cJSON *s;

    cJSON_ArrayForEach(s, get(d, "sessions"))
    {
        char name[320], tenant[80];

        table_cell(tenant, sizeof(tenant), get(s, "tenant"), CELL_TEXT);
        table_cell(name, sizeof(name), get(s, "name"), CELL_TEXT);
        printf("session %llu, %s, pid %llu, uid %llu, tenant %s\n",
               (unsigned long long)table_number(get(s, "id")), name,
               (unsigned long long)table_number(get(s, "pid")),
               (unsigned long long)table_number(get(s, "uid")), tenant);
        tasks += table_number(get(s, "tasks"));
        recorded += table_number(get(s, "recorded"));
    }
    table_print(columns, sizeof(columns) / sizeof(columns[0]), get(d, "tasks"));
    printf(
        "%llu of the %llu tasks of the open queues were recorded, the last 256 of each queue are "
        "kept",
        (unsigned long long)recorded, (unsigned long long)tasks);
    if (recorded < tasks)
        printf(";\nof small ones that complete at once about one a microsecond is, of all others "
               "each");
    printf("\n");
}

int cli_trace(const struct cli *cli, const char *client)
{
    mcshm *c = NULL;
    mcshm_status status;
    cJSON *d = NULL;
    char *text;
    int res = cli_connect(cli, &c);

    if (res != CLI_OK)
        return res;
    status = mcshm_trace(c, client, cli->count != 0 ? (uint32_t)cli->count : COUNT, &text);
    res = status != MCSHM_OK ? cli_error("no trace", status, c) : cli_parse(text, &d);
    if (res == CLI_OK) {
        if (cli->json)
            puts(text);
        else
            print(d);
        cJSON_Delete(d);
        free(text);
    }
    mcshm_close(c);
    return res;
}
