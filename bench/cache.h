/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm-bench cache`: how much of a trace the store finds again, by capacity and policy. */
#ifndef BENCH_CACHE_H
#define BENCH_CACHE_H

#include "cache_offline.h"
#include "options.h"

#define CACHE_POLICIES_MAX 16u
#define CACHE_CAPACITIES_MAX 32u

struct cache_options {
    struct options_common common;
    const char *trace;
    uint64_t requests; /* the first so many of the trace */
    uint64_t block;    /* bytes that stand for a block of KV_BLOCK_TOKENS tokens */
    uint64_t capacities[CACHE_CAPACITIES_MAX]; /* tokens; 0: no limit */
    unsigned ncapacities;
    const char *policies[CACHE_POLICIES_MAX];
    unsigned npolicies;
    bool offline; /* the policy alone, without an agent */
};

struct cache_row {
    const char *policy;
    uint64_t capacity_tokens, capacity_blocks; /* 0: no limit */
    struct cache_count count;
    uint64_t refused; /* blocks that the store did not take */
    double seconds;
};

/* Replays a trace through a store that holds so many blocks (0: all of them). 0, or a negative errno, said already. */
int cache_replay(const struct cache_options *o, const struct kv_trace *t, struct cache_row *row);

int cache_command(int argc, char **argv);

#endif
