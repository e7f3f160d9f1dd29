/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "table.h"

static const struct column segments[] = {
    {"SEGMENT", "name", CELL_TEXT},           {"SESSION", "session", CELL_COUNT},
    {"TENANT", "tenant", CELL_COUNT},         {"PUBLIC", "public", CELL_YES_NO},
    {"BUFFERS", "buffer_count", CELL_COUNT},  {"BYTES", "byte_count", CELL_BYTES},
    {"INCARNATION", "incarnation", CELL_HEX},
};
static const struct column buffers[] = {
    {"SEGMENT", "segment", CELL_TEXT},   {"ADDRESS", "address", CELL_HEX},
    {"SIZE", "size", CELL_BYTES},        {"ACCESS", "access", CELL_ACCESS},
    {"LOCATION", "location", CELL_TEXT},
};
static const struct column extents[] = {
    {"EXTENT", "id", CELL_COUNT},          {"SESSION", "session", CELL_COUNT},
    {"TENANT", "tenant", CELL_COUNT},      {"KIND", "kind", CELL_TEXT},
    {"SIZE", "size", CELL_BYTES},          {"USED", "used", CELL_BYTES},
    {"PAGES", "page_size", CELL_BYTES},    {"NODE", "node", CELL_TEXT},
    {"ALLOCS", "allocations", CELL_COUNT}, {"ADDRESS", "address", CELL_HEX},
};
static const struct column sessions[] = {
    {"SESSION", "id", CELL_COUNT},      {"NAME", "name", CELL_TEXT},
    {"PID", "pid", CELL_COUNT},         {"UID", "uid", CELL_COUNT},
    {"TENANT", "tenant", CELL_COUNT},   {"QUEUES", "queues", CELL_COUNT},
    {"EXTENTS", "extents", CELL_COUNT}, {"MEMORY", "memory", CELL_BYTES},
    {"TASKS", "tasks", CELL_COUNT},     {"BYTES", "bytes", CELL_BYTES},
};

static const struct column rails[] = {
    {"PEER", "peer", CELL_TEXT},      {"TRANSPORT", "transport", CELL_TEXT},
    {"TIER", "tier", CELL_COUNT},     {"LOCAL", "local", CELL_TEXT},
    {"REMOTE", "remote", CELL_TEXT},  {"STATE", "state", CELL_TEXT},
    {"REASON", "reason", CELL_TEXT},  {"ENGINE", "engine", CELL_COUNT},
    {"CONNS", "conns", CELL_COUNT},   {"RATE/s", "rate", CELL_BYTES},
    {"RTT us", "rtt_us", CELL_COUNT}, {"BYTES", "bytes", CELL_BYTES},
    {"SLICES", "slices", CELL_COUNT}, {"FAILED", "failed", CELL_COUNT},
    {"QUEUED", "queued", CELL_BYTES}, {"WHY", "why", CELL_TEXT},
};
static const struct column peers[] = {
    {"PEER", "address", CELL_TEXT},     {"STATE", "state", CELL_TEXT},
    {"REASON", "reason", CELL_TEXT},    {"AUTH", "auth", CELL_TEXT},
    {"VERSION", "version", CELL_TEXT},  {"SEGMENTS", "segments", CELL_COUNT},
    {"EXPORTS", "exports", CELL_COUNT}, {"INCARNATION", "incarnation", CELL_HEX},
};

static const struct column tenants[] = {
    {"TENANT", "name", CELL_TEXT},       {"WEIGHT", "weight", CELL_COUNT},
    {"MEMORY", "memory", CELL_BYTES},    {"SESSIONS", "sessions", CELL_COUNT},
    {"QUEUES", "queues", CELL_COUNT},    {"IN FLIGHT", "tasks_in_flight", CELL_COUNT},
    {"TASKS", "tasks", CELL_COUNT},      {"BYTES", "bytes", CELL_BYTES},
    {"RATE/s", "rate", CELL_BYTES},      {"THROTTLED ms", "throttled_ms", CELL_COUNT},
    {"REFUSED", "refusals", CELL_COUNT},
};

static const struct column nics[] = {
    {"NIC", "name", CELL_TEXT},        {"STATE", "state", CELL_TEXT},
    {"LINK", "link", CELL_TEXT},       {"GID", "gid", CELL_TEXT},
    {"INDEX", "gid_index", CELL_TEXT}, {"MTU", "mtu", CELL_COUNT},
    {"RATE/s", "rate", CELL_BITS},     {"NODE", "node", CELL_TEXT},
    {"PCI", "pci", CELL_TEXT},         {"NETDEV", "netdev", CELL_TEXT},
    {"PAIRS", "pairs", CELL_COUNT},    {"MEMORY", "memory", CELL_BYTES},
    {"EVENTS", "events", CELL_COUNT},  {"FAULTS", "faults", CELL_COUNT},
    {"WHY", "why", CELL_TEXT},
};

static const struct column gpus[] = {
    {"GPU", "uuid", CELL_TEXT},     {"NAME", "name", CELL_TEXT},    {"PCI", "pci", CELL_TEXT},
    {"NODE", "node", CELL_TEXT},    {"TOTAL", "total", CELL_BYTES}, {"OURS", "ours", CELL_BYTES},
    {"PEERS", "peers", CELL_COUNT}, {"LOST", "lost", CELL_YES_NO},
};

#define COLUMNS(c) c, sizeof(c) / sizeof((c)[0])

static const struct list {
    const char *name;
    mcshm_query_what query;
    const char *array; /* the field with the rows in the agent's answer */
    const struct column *columns;
    size_t n;
} lists[] = {
    {"segments", MCSHM_QUERY_SEGMENTS, "segments", COLUMNS(segments)},
    {"buffers", MCSHM_QUERY_SEGMENTS, "segments", COLUMNS(buffers)},
    {"extents", MCSHM_QUERY_EXTENTS, "extents", COLUMNS(extents)},
    {"sessions", MCSHM_QUERY_SESSIONS, "sessions", COLUMNS(sessions)},
    {"rails", MCSHM_QUERY_RAILS, "rails", COLUMNS(rails)},
    {"peers", MCSHM_QUERY_PEERS, "peers", COLUMNS(peers)},
    {"tenants", MCSHM_QUERY_TENANTS, "tenants", COLUMNS(tenants)},
    {"nics", MCSHM_QUERY_NICS, "nics", COLUMNS(nics)},
    {"gpus", MCSHM_QUERY_GPUS, "devices", COLUMNS(gpus)},
};

/* Gives each segment the number and the bytes of its buffers. */
static void add_sums(cJSON *rows)
{
    cJSON *segment;
    const cJSON *buffer;

    cJSON_ArrayForEach(segment, rows)
    {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(segment, "buffers");
        double bytes = 0;

        cJSON_ArrayForEach(buffer, list)
        {
            bytes += (double)table_number(cJSON_GetObjectItemCaseSensitive(buffer, "size"));
        }
        cJSON_AddNumberToObject(segment, "buffer_count", cJSON_GetArraySize(list));
        cJSON_AddNumberToObject(segment, "byte_count", bytes);
    }
}

/* The buffers of all segments as one document, {"buffers":[...]}, each with its segment. */
static cJSON *flatten(const cJSON *rows)
{
    cJSON *out = cJSON_CreateObject();
    cJSON *list = cJSON_AddArrayToObject(out, "buffers");
    const cJSON *segment, *buffer;

    cJSON_ArrayForEach(segment, rows)
    {
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(segment, "name");
        const cJSON *own = cJSON_GetObjectItemCaseSensitive(segment, "buffers");

        cJSON_ArrayForEach(buffer, own)
        {
            cJSON *copy = cJSON_Duplicate(buffer, true);

            cJSON_AddStringToObject(copy, "segment", cJSON_IsString(name) ? name->valuestring : "");
            cJSON_AddItemToArray(list, copy);
        }
    }
    return out;
}

static int print_list(const struct cli *cli, const struct list *l)
{
    bool of_buffers = l->columns == buffers;
    cJSON *d, *rows;
    char *text;
    int res = cli_query(cli, l->query, &text, &d);

    if (res != CLI_OK)
        return res;
    rows = cJSON_GetObjectItemCaseSensitive(d, l->array);
    if (of_buffers) {
        cJSON *flat = flatten(rows);

        cJSON_Delete(d);
        d = flat;
        rows = cJSON_GetObjectItemCaseSensitive(d, l->name);
    }
    if (cli->json && of_buffers) {
        free(text);
        text = cJSON_PrintUnformatted(d);
    }
    if (cli->json) {
        puts(text != NULL ? text : "{}");
    } else {
        if (l->columns == segments)
            add_sums(rows);
        table_print(l->columns, l->n, rows);
    }
    cJSON_Delete(d);
    free(text);
    return res;
}

void cli_print_list(const char *name, const cJSON *rows)
{
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        if (strcmp(lists[i].name, name) == 0)
            table_print(lists[i].columns, lists[i].n, rows);
}

int cli_ls(const struct cli *cli, const char *what)
{
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        if (strcmp(lists[i].name, what) == 0)
            return print_list(cli, &lists[i]);
    return CLI_NO_SUCH_LIST;
}
