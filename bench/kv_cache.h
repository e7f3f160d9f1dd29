/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the decode process holds: places for blocks, found by hash id, the longest unused
 * given away first.  A block of a request under way is pinned and stays.
 */
#ifndef BENCH_KV_CACHE_H
#define BENCH_KV_CACHE_H

#include <stdint.h>

#define KV_CACHE_NONE UINT32_MAX

struct kv_cache_entry {
    uint64_t hash_id;
    uint32_t pins;
    uint32_t older, newer; /* of the unpinned */
    uint32_t chain;        /* of the same bucket */
};

struct kv_cache {
    struct kv_cache_entry *entries; /* index: the place */
    uint32_t *buckets;
    uint32_t capacity, mask;
    uint32_t oldest, newest;
    uint32_t filled; /* places used so far */
    uint32_t pinned;
};

int kv_cache_create(struct kv_cache *c, uint32_t capacity); /* 1 .. 2^30; 0 or -ENOMEM */
void kv_cache_destroy(struct kv_cache *c);

/* The place of a block that is held, pinned once more; KV_CACHE_NONE when it is not. */
uint32_t kv_cache_find(struct kv_cache *c, uint64_t hash_id);
/* A place for a block that is not held, pinned; KV_CACHE_NONE when all are pinned. */
uint32_t kv_cache_insert(struct kv_cache *c, uint64_t hash_id);
/* The last unpin makes the block the newest. */
void kv_cache_unpin(struct kv_cache *c, uint32_t place);

#endif
