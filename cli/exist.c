/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm exist` and `mcshm rm`: the keys of the command line in as many requests as it takes. */
#include <stdio.h>
#include <stdlib.h>

#include "object.h"

#define KEYS 1024u /* of one request */
#define ARGS_SIZE (UINT64_C(8) << 20)

static void free_keys(mcshm_key *keys, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        free((void *)(uintptr_t)keys[i].bytes);
    free(keys);
}

static int read_keys(const struct cli *cli, mcshm_key **out)
{
    mcshm_key *keys = calloc(cli->nargs, sizeof(*keys));
    int res = keys != NULL ? CLI_OK : CLI_FAILED;

    for (unsigned i = 0; res == CLI_OK && i < cli->nargs; i++)
        res = cli_key(cli, cli->args[i], &keys[i]);
    if (res == CLI_OK)
        *out = keys;
    else if (keys != NULL)
        free_keys(keys, cli->nargs);
    else
        fprintf(stderr, "mcshm: out of memory\n");
    return res;
}

static int ask(struct cli_objects *o, mcshm_object_op op, uint32_t flags, const mcshm_key *keys,
               unsigned n, mcshm_object_result *results)
{
    for (unsigned at = 0; at < n; at += KEYS) {
        mcshm_object_request r = {.op = op,
                                  .flags = flags,
                                  .priority = MCSHM_CLASS_NORMAL,
                                  .keys = keys + at,
                                  .count = n - at < KEYS ? n - at : KEYS};
        mcshm_status status = mcshm_objects(o->q, &r, results + at, NULL, -1);

        if (status != MCSHM_OK)
            return cli_error("the agent did not do it", status, o->c);
    }
    return CLI_OK;
}

/* One line a key, or one document; returns how many are OK. */
static unsigned report(const struct cli *cli, const mcshm_key *keys,
                       const mcshm_object_result *results, const char *yes, const char *no)
{
    cJSON *d = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(d, "objects");
    unsigned ok = 0;
    char *text;

    for (unsigned i = 0; i < cli->nargs; i++) {
        cJSON *o = cJSON_CreateObject();
        const char *what = results[i].status == MCSHM_OK          ? yes
                           : results[i].status == MCSHM_NOT_FOUND ? no
                                                                  : NULL;

        ok += results[i].status == MCSHM_OK;
        cli_add_key(o, &keys[i]);
        cJSON_AddNumberToObject(o, "status", results[i].status);
        cJSON_AddStringToObject(o, "says", cli_key_says(results[i].status));
        cJSON_AddItemToArray(list, o);
        text = cli_key_text(&keys[i]);
        if (!cli->json)
            printf("%s: %s\n", text != NULL ? text : "?",
                   what != NULL ? what : mcshm_strerror(results[i].status));
        free(text);
    }
    if (cli->json) {
        text = cJSON_PrintUnformatted(d);
        puts(text != NULL ? text : "{}");
        cJSON_free(text);
    }
    cJSON_Delete(d);
    return ok;
}

static int by_keys(const struct cli *cli, mcshm_object_op op, uint32_t flags, const char *yes,
                   const char *no)
{
    mcshm_object_result *results = calloc(cli->nargs, sizeof(*results));
    mcshm_key *keys = NULL;
    struct cli_objects o;
    int res = results != NULL ? read_keys(cli, &keys) : CLI_FAILED;

    if (res == CLI_OK)
        res = cli_objects_open(cli, ARGS_SIZE, &o);
    if (res == CLI_OK) {
        res = ask(&o, op, flags, keys, cli->nargs, results);
        cli_objects_close(&o);
        if (res == CLI_OK && report(cli, keys, results, yes, no) != cli->nargs)
            res = CLI_FAILED;
    }
    if (keys != NULL)
        free_keys(keys, cli->nargs);
    free(results);
    return res;
}

int cli_exist(const struct cli *cli)
{
    return by_keys(cli, MCSHM_EXIST, 0, "there", "not there");
}

static int by_pattern(const struct cli *cli, uint32_t flags)
{
    mcshm *c = NULL;
    mcshm_key prefix = {0};
    uint64_t removed = 0;
    mcshm_status status;
    int res = cli->prefix != NULL ? cli_key(cli, cli->prefix, &prefix) : CLI_OK;

    if (res == CLI_OK)
        res = cli_connect(cli, &c);
    if (res != CLI_OK)
        goto out;
    if (cli->prefix != NULL)
        status = mcshm_objects_remove_prefix(c, prefix.bytes, prefix.size, flags, &removed);
    else if (cli->regex != NULL)
        status = mcshm_objects_remove_regex(c, cli->regex, flags, &removed);
    else
        status = mcshm_objects_remove_all(c, flags, &removed);
    if (status != MCSHM_OK)
        res = cli_error("nothing was removed", status, c);
    else
        printf(cli->json ? "{\"removed\":%llu}\n" : "%llu removed\n", (unsigned long long)removed);
    mcshm_close(c);
out:
    free((void *)(uintptr_t)prefix.bytes);
    return res;
}

int cli_rm(const struct cli *cli)
{
    uint32_t flags = cli->force ? MCSHM_OBJECT_FORCE : 0;
    int ways = (cli->nargs != 0) + (cli->prefix != NULL) + (cli->regex != NULL) + cli->all;

    if (ways != 1) {
        fprintf(stderr, "mcshm: rm wants keys, --prefix, --regex or --all%s\n",
                ways != 0 ? ", and only one of them" : "");
        return CLI_USAGE;
    }
    return cli->nargs != 0 ? by_keys(cli, MCSHM_REMOVE, flags, "removed", "not there")
                           : by_pattern(cli, flags);
}
