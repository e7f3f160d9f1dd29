/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm ls-objects`, `mcshm stat` and `mcshm drain`: what the agent knows of objects. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "object.h"
#include "table.h"

#define LIMIT 1000u

static cJSON *field(cJSON *o, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(o, name);
}

/* Keys that are no text show as digits. */
static void name_key(cJSON *row)
{
    const cJSON *hex = field(row, "key_hex");
    size_t room = cJSON_IsString(hex) ? strlen(hex->valuestring) + 3 : 0;
    char *text = room != 0 ? malloc(room) : NULL;

    if (text == NULL)
        return;
    snprintf(text, room, "0x%s", hex->valuestring);
    cJSON_AddStringToObject(row, "key", text);
    free(text);
}

/* A list of the whole store's names hosts, one of this host alone says in which tier. */
static void name_place(cJSON *row)
{
    const cJSON *hosts = field(row, "hosts"), *tier = field(row, "tier"), *host;
    char text[1024] = "";
    size_t at = 0;

    cJSON_ArrayForEach(host, hosts)
    {
        if (cJSON_IsString(host) && at < sizeof(text))
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", at != 0 ? " " : "",
                                   host->valuestring);
    }
    if (cJSON_IsString(tier))
        snprintf(text, sizeof(text), "%s", tier->valuestring);
    cJSON_AddStringToObject(row, "place", text);
    if (hosts != NULL)
        cJSON_AddNumberToObject(row, "copies", cJSON_GetArraySize(hosts));
}

int cli_ls_objects(const struct cli *cli)
{
    static const struct column columns[] = {
        {"KEY", "key", CELL_TEXT},         {"SIZE", "size", CELL_BYTES},
        {"VERSION", "version", CELL_TEXT}, {"PINS", "pins", CELL_COUNT},
        {"COPIES", "copies", CELL_COUNT},  {"WHERE", "place", CELL_TEXT},
    };
    uint64_t limit = cli->count != 0 ? cli->count : LIMIT;
    mcshm_key prefix = {0};
    mcshm *c = NULL;
    mcshm_status status;
    cJSON *d = NULL;
    char *text;
    int res = cli->prefix != NULL ? cli_key(cli, cli->prefix, &prefix) : CLI_OK;

    if (res == CLI_OK)
        res = cli_connect(cli, &c);
    if (res != CLI_OK)
        goto out;
    status = mcshm_objects_list(c, prefix.bytes, prefix.size, 0, 0, limit, &text);
    res = status != MCSHM_OK ? cli_error("no list", status, c) : cli_parse(text, &d);
    if (res == CLI_OK) {
        if (cli->json) {
            puts(text);
        } else {
            cJSON *row, *rows = field(d, "objects");

            cJSON_ArrayForEach(row, rows)
            {
                name_key(row);
                name_place(row);
            }
            table_print(columns, sizeof(columns) / sizeof(columns[0]), field(d, "objects"));
            if (cJSON_IsTrue(field(d, "more")))
                printf("there are more: --limit N, --prefix P\n");
        }
        cJSON_Delete(d);
        free(text);
    }
    mcshm_close(c);
out:
    free((void *)(uintptr_t)prefix.bytes);
    return res;
}

int cli_stat(const struct cli *cli, const char *word)
{
    mcshm *c = NULL;
    mcshm_status status;
    cJSON *d = NULL;
    mcshm_key key;
    char *text;
    int res = cli_key(cli, word, &key);

    if (res == CLI_OK)
        res = cli_connect(cli, &c);
    if (res != CLI_OK)
        goto out;
    status = mcshm_object_stat(c, &key, &text);
    if (status == MCSHM_NOT_FOUND)
        res = cli_key_error(&key, status);
    else
        res = status != MCSHM_OK ? cli_error("no answer", status, c) : cli_parse(text, &d);
    if (res == CLI_OK)
        res = cli_print_fields(cli, text, d);
    mcshm_close(c);
out:
    free((void *)(uintptr_t)key.bytes);
    return res;
}

int cli_drain(const struct cli *cli, const char *host)
{
    mcshm *c = NULL;
    mcshm_status status;
    cJSON *d = NULL;
    char *text;
    int res = cli_connect(cli, &c);

    if (res != CLI_OK)
        return res;
    status = mcshm_drain(c, host, !cli->undo, &text);
    res = status != MCSHM_OK ? cli_error("no answer", status, c) : cli_parse(text, &d);
    if (res == CLI_OK)
        res = cli_print_fields(cli, text, d);
    mcshm_close(c);
    return res;
}
