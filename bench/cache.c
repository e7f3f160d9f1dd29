/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"

#include "clock.h"
#include "kv_model.h"
#include "report.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_TRACE = OPTION_OWN,
    OPTION_TOKENS,
    OPTION_POLICY,
    OPTION_BLOCK,
    OPTION_REQUESTS,
    OPTION_OFFLINE
};

static void help(void)
{
    printf(
        "mcshm-bench cache: replays a trace through the store and tells how many of its blocks "
        "were\n"
        "found again: hits are blocks of the longest prefix of each request that was there.\n"
        "\n"
        "  --trace FILE      requests in Mooncake's format (hash_ids of %u tokens each); default:\n"
        "                    conversations made up, the same every time\n"
        "  --requests N      the first N of them; default: all, of made-up ones 4000\n"
        "  --capacity-tokens N   how much the store holds; 0: all; may be given again; default:\n"
        "                    3000000\n"
        "  --policy P        may be given again; default: all there are; lru is always among them\n"
        "  --block BYTES     of the objects that stand for a block; default 512\n"
        "  --offline         the policy alone, without an agent\n"
        "  --json            one JSON document on stdout\n"
        "  --mcshmd PATH     the agent's program; default: beside this one, else in PATH\n"
        "  --help\n",
        KV_BLOCK_TOKENS);
}

static int add_policy(struct cache_options *o, const char *name)
{
    for (unsigned i = 0; i < o->npolicies; i++)
        if (strcmp(o->policies[i], name) == 0)
            return 0;
    if (mco_policy_find(name) == NULL)
        return say_error(-EINVAL, "--policy %s: there is none; see [store] policy in docs/store.md",
                         name);
    if (o->npolicies < CACHE_POLICIES_MAX)
        o->policies[o->npolicies++] = name;
    return 0;
}

static int take_option(int option, struct cache_options *o)
{
    uint64_t n;
    int rc;

    switch (option) {
    case OPTION_TRACE:
        o->trace = optarg;
        return 0;
    case OPTION_TOKENS:
        rc = options_count("--capacity-tokens", optarg, 0, UINT64_C(1) << 40, &n);
        if (rc == 0 && n != 0 && n < KV_BLOCK_TOKENS)
            rc = say_error(-EINVAL, "--capacity-tokens %s: a block has %u tokens", optarg,
                           KV_BLOCK_TOKENS);
        if (rc == 0 && o->ncapacities == CACHE_CAPACITIES_MAX)
            rc = say_error(-EINVAL, "--capacity-tokens: at most %u of them", CACHE_CAPACITIES_MAX);
        if (rc == 0)
            o->capacities[o->ncapacities++] = n;
        return rc;
    case OPTION_POLICY:
        return add_policy(o, optarg);
    case OPTION_REQUESTS:
        return options_count("--requests", optarg, 1, UINT64_C(1) << 32, &o->requests);
    case OPTION_BLOCK:
        rc = options_count("--block", optarg, 64, 1u << 20, &o->block);
        if (rc == 0 && o->block % 64 != 0)
            rc = say_error(-EINVAL, "--block %s: a multiple of 64", optarg);
        return rc;
    case OPTION_OFFLINE:
        o->offline = true;
        return 0;
    default:
        return options_take(option, &o->common) ? 0 : -EINVAL;
    }
}

static int parse(int argc, char **argv, struct cache_options *o)
{
    static const struct option longs[] = {
        {"trace", required_argument, NULL, OPTION_TRACE},
        {"capacity-tokens", required_argument, NULL, OPTION_TOKENS},
        {"policy", required_argument, NULL, OPTION_POLICY},
        {"block", required_argument, NULL, OPTION_BLOCK},
        {"requests", required_argument, NULL, OPTION_REQUESTS},
        {"offline", no_argument, NULL, OPTION_OFFLINE},
        OPTIONS_COMMON_LONG,
        {NULL, 0, NULL, 0}};
    int option, rc;

    while ((option = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        if (option == 'h') {
            help();
            return 1;
        }
        rc = take_option(option, o);
        if (rc != 0)
            return rc;
    }
    rc = options_end("cache", argc, argv);
    if (rc != 0)
        return rc;
    if (o->common.socket != NULL)
        return say_error(-EINVAL,
                         "--socket: the agent's store must have the size that is asked for: cache "
                         "starts its own agents");
    if (o->npolicies == 0)
        for (unsigned i = 0; mco_policies[i] != NULL; i++)
            add_policy(o, mco_policies[i]->name);
    add_policy(o, "lru");
    if (o->ncapacities == 0)
        o->capacities[o->ncapacities++] = 3000000;
    return 0;
}

static int load(const struct cache_options *o, struct kv_trace *t)
{
    char error[256] = "";
    FILE *f;
    int rc;

    if (o->trace == NULL) {
        rc = kv_trace_generate(o->requests != 0 ? o->requests : 4000, t);
        return rc == 0 ? 0 : say_error(rc, "no memory for a trace");
    }
    f = fopen(o->trace, "re");
    if (f == NULL)
        return say_error(-errno, "--trace %s: %m", o->trace);
    rc = kv_trace_load(f, o->requests != 0 ? o->requests : SIZE_MAX, t, error, sizeof(error));
    fclose(f);
    return rc == 0 ? 0 : say_error(rc, "--trace %s: %s", o->trace, error);
}

static double ratio(const struct cache_row *r)
{
    return r->count.blocks == 0 ? 0 : (double)r->count.hits / (double)r->count.blocks;
}

static int print_json(const struct cache_options *o, const struct kv_trace *t,
                      const struct cache_row *rows, unsigned n)
{
    cJSON *d = cJSON_CreateObject(), *list;
    int rc;

    if (d == NULL)
        return say_error(-ENOMEM, "no memory for the report");
    report_text(d, "trace", o->trace);
    report_count(d, "requests", t->count);
    report_count(d, "blocks", t->blocks);
    report_count(d, "block_tokens", KV_BLOCK_TOKENS);
    report_count(d, "block_bytes", o->block);
    cJSON_AddBoolToObject(d, "offline", o->offline);
    list = cJSON_AddArrayToObject(d, "rows");
    for (unsigned i = 0; i < n; i++) {
        cJSON *r = cJSON_CreateObject();

        report_text(r, "policy", rows[i].policy);
        report_count(r, "capacity_tokens", rows[i].capacity_tokens);
        report_count(r, "capacity_blocks", rows[i].capacity_blocks);
        report_number(r, "hit_ratio", ratio(&rows[i]), 5);
        report_count(r, "hits", rows[i].count.hits);
        report_count(r, "blocks", rows[i].count.blocks);
        report_count(r, "requests", rows[i].count.requests);
        report_count(r, "refused", rows[i].refused);
        report_number(r, "seconds", rows[i].seconds, 3);
        cJSON_AddItemToArray(list, r);
    }
    rc = report_print(d);
    cJSON_Delete(d);
    return rc;
}

static void print_table(const struct cache_options *o, const struct kv_trace *t,
                        const struct cache_row *rows, unsigned n)
{
    printf("%s: %zu requests, %" PRIu64 " blocks of %u tokens\n\n"
           "%14s  %-8s  %9s  %10s\n",
           o->trace != NULL ? o->trace : "made-up conversations", t->count, t->blocks,
           KV_BLOCK_TOKENS, "tokens", "policy", "hits", "hit ratio");
    for (unsigned i = 0; i < n; i++) {
        char capacity[24] = "all";

        if (rows[i].capacity_tokens != 0)
            snprintf(capacity, sizeof(capacity), "%" PRIu64, rows[i].capacity_tokens);
        printf("%14s  %-8s  %9" PRIu64 "  %8.2f %%%s\n", capacity, rows[i].policy,
               rows[i].count.hits, 100 * ratio(&rows[i]),
               rows[i].refused != 0 ? "  (blocks were refused)" : "");
    }
}

static int measure(const struct cache_options *o, const struct kv_trace *t, struct cache_row *row)
{
    uint64_t start = clock_ns();
    int rc;

    if (!o->offline)
        return cache_replay(o, t, row);
    rc = cache_offline(mco_policy_find(row->policy), t, row->capacity_blocks, &row->count);
    row->seconds = (double)(clock_ns() - start) / 1e9;
    return rc == 0 ? 0 : say_error(rc, "no memory for the policy");
}

int cache_command(int argc, char **argv)
{
    struct cache_options o = {.block = 512};
    struct cache_row *rows;
    struct kv_trace t;
    unsigned n = 0;
    int rc = parse(argc, argv, &o);

    if (rc != 0)
        return rc > 0 ? 0 : rc;
    rc = load(&o, &t);
    if (rc != 0)
        return rc;
    rows = calloc((size_t)o.ncapacities * o.npolicies, sizeof(rows[0]));
    if (rows == NULL)
        rc = say_error(-ENOMEM, "no memory for the results");
    for (unsigned c = 0; rc == 0 && c < o.ncapacities; c++)
        for (unsigned i = 0; rc == 0 && i < o.npolicies; i++) {
            rows[n] = (struct cache_row){.policy = o.policies[i],
                                         .capacity_tokens = o.capacities[c],
                                         .capacity_blocks = o.capacities[c] / KV_BLOCK_TOKENS};
            rc = measure(&o, &t, &rows[n++]);
        }
    if (rc == 0 && o.common.json)
        rc = print_json(&o, &t, rows, n);
    else if (rc == 0)
        print_table(&o, &t, rows, n);
    free(rows);
    kv_trace_free(&t);
    return rc;
}
