/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy of the store alone, without one: what it would hold of a trace's blocks, all of one size.
 * Each request uses its longest prefix that is there (the hits) and adds the rest of its blocks.
 */
#ifndef BENCH_CACHE_OFFLINE_H
#define BENCH_CACHE_OFFLINE_H

#include "kv_trace.h"
#include "store/object/policy.h"

struct cache_count {
    uint64_t requests, blocks, hits;
};

/* capacity: blocks, 0: no limit. 0 or -ENOMEM. */
int cache_offline(const struct mco_policy_ops *ops, const struct kv_trace *t, uint64_t capacity,
                  struct cache_count *out);

#endif
