/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_cache.h"

#include <errno.h>
#include <stdlib.h>

int kv_cache_create(struct kv_cache *c, uint32_t capacity)
{
    uint32_t buckets = 1;

    while (buckets < capacity)
        buckets *= 2;
    *c = (struct kv_cache){.capacity = capacity,
                           .mask = buckets - 1,
                           .oldest = KV_CACHE_NONE,
                           .newest = KV_CACHE_NONE};
    c->entries = calloc(capacity, sizeof(c->entries[0]));
    c->buckets = malloc(buckets * sizeof(c->buckets[0]));
    if (c->entries == NULL || c->buckets == NULL) {
        kv_cache_destroy(c);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < buckets; i++)
        c->buckets[i] = KV_CACHE_NONE;
    return 0;
}

void kv_cache_destroy(struct kv_cache *c)
{
    free(c->entries);
    free(c->buckets);
    *c = (struct kv_cache){0};
}

static uint32_t *bucket_of(struct kv_cache *c, uint64_t hash_id)
{
    return &c->buckets[(hash_id * UINT64_C(0x9e3779b97f4a7c15) >> 32) & c->mask];
}

/* Takes an unpinned place out of the order of age. */
static void leave_order(struct kv_cache *c, uint32_t place)
{
    struct kv_cache_entry *e = &c->entries[place];

    if (e->older != KV_CACHE_NONE)
        c->entries[e->older].newer = e->newer;
    else
        c->oldest = e->newer;
    if (e->newer != KV_CACHE_NONE)
        c->entries[e->newer].older = e->older;
    else
        c->newest = e->older;
}

uint32_t kv_cache_find(struct kv_cache *c, uint64_t hash_id)
{
    uint32_t place = *bucket_of(c, hash_id);

    while (place != KV_CACHE_NONE && c->entries[place].hash_id != hash_id)
        place = c->entries[place].chain;
    if (place == KV_CACHE_NONE)
        return place;
    if (c->entries[place].pins++ == 0) {
        leave_order(c, place);
        c->pinned++;
    }
    return place;
}

static void forget(struct kv_cache *c, uint32_t place)
{
    uint32_t *link = bucket_of(c, c->entries[place].hash_id);

    while (*link != place)
        link = &c->entries[*link].chain;
    *link = c->entries[place].chain;
}

uint32_t kv_cache_insert(struct kv_cache *c, uint64_t hash_id)
{
    uint32_t *bucket = bucket_of(c, hash_id);
    uint32_t place;

    if (c->filled < c->capacity) {
        place = c->filled++;
    } else if (c->oldest != KV_CACHE_NONE) {
        place = c->oldest;
        leave_order(c, place);
        forget(c, place);
    } else {
        return KV_CACHE_NONE;
    }
    c->entries[place].hash_id = hash_id;
    c->entries[place].pins = 1;
    c->entries[place].chain = *bucket;
    *bucket = place;
    c->pinned++;
    return place;
}

void kv_cache_unpin(struct kv_cache *c, uint32_t place)
{
    struct kv_cache_entry *e = &c->entries[place];

    if (--e->pins > 0)
        return;
    c->pinned--;
    e->older = c->newest;
    e->newer = KV_CACHE_NONE;
    if (c->newest != KV_CACHE_NONE)
        c->entries[c->newest].newer = place;
    else
        c->oldest = place;
    c->newest = place;
}
