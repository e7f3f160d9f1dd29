/* SPDX-License-Identifier: Apache-2.0 */
/* Entries, and the table that finds them: shards with linear probing, half to three quarters full. */
#include "directory_internal.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define SHARD(hash) ((hash) >> 52)
#define TAG(hash) ((hash) << 16 & UINT64_C(0xffff000000000000))
#define TAG_MASK UINT64_C(0xffff000000000000)
#define FIRST 8u

static struct mco_entry *entry_of(uint64_t slot)
{
    return (struct mco_entry *)(uintptr_t)(slot & ~TAG_MASK);
}

void mco_table_prefetch(const struct mco_directory *d, uint64_t hash)
{
    const struct mco_shard *s = &d->shards[SHARD(hash)];

    if (s->size != 0)
        __builtin_prefetch(&s->slots[hash & (s->size - 1)]);
}

void mco_table_prefetch_entry(const struct mco_directory *d, uint64_t hash)
{
    const struct mco_shard *s = &d->shards[SHARD(hash)];
    const struct mco_entry *e;

    if (s->size == 0)
        return;
    e = entry_of(s->slots[hash & (s->size - 1)]);
    __builtin_prefetch(e);
    __builtin_prefetch((const char *)e + 64);
}

struct mco_entry *mco_entry_find(const struct mco_directory *d, const struct mco_key *key)
{
    const struct mco_shard *s = &d->shards[SHARD(key->hash)];
    struct mco_entry *e;
    uint32_t i;

    if (s->size == 0)
        return NULL;
    for (i = (uint32_t)key->hash & (s->size - 1); s->slots[i] != 0; i = (i + 1) & (s->size - 1)) {
        if ((s->slots[i] & TAG_MASK) != TAG(key->hash))
            continue;
        e = entry_of(s->slots[i]);
        if (e->hash == key->hash && e->tenant == key->tenant && e->length == key->length &&
            memcmp(e->key, key->bytes, key->length) == 0)
            return e;
    }
    return NULL;
}

static void put_slot(struct mco_shard *s, uint64_t hash, uint64_t slot)
{
    uint32_t i = (uint32_t)hash & (s->size - 1);

    while (s->slots[i] != 0)
        i = (i + 1) & (s->size - 1);
    s->slots[i] = slot;
}

static bool grow(struct mco_directory *d, struct mco_shard *s)
{
    struct mco_shard t = {.size = s->size == 0 ? FIRST : s->size * 2, .count = s->count};

    t.slots = calloc(t.size, sizeof(t.slots[0]));
    if (t.slots == NULL)
        return false;
    for (uint32_t i = 0; i < s->size; i++)
        if (s->slots[i] != 0)
            put_slot(&t, entry_of(s->slots[i])->hash, s->slots[i]);
    free(s->slots);
    d->memory += (uint64_t)(t.size - s->size) * sizeof(t.slots[0]);
    *s = t;
    return true;
}

static void forget_oldest(struct mco_directory *d);

static bool is_full(const struct mco_directory *d)
{
    return d->o.keys_max != 0 && d->stats.keys >= d->o.keys_max;
}

struct mco_entry *mco_entry_make(struct mco_directory *d, const struct mco_key *key)
{
    struct mco_shard *s = &d->shards[SHARD(key->hash)];
    struct mco_entry *e;

    /* what is only remembered makes way for what is there */
    for (unsigned n = 0; is_full(d) && d->grave_count != 0 && n < 64; n++)
        forget_oldest(d);
    if (is_full(d))
        return NULL;
    if (s->count + 1 > s->size / 4 * 3 && !grow(d, s))
        return NULL;
    e = malloc(sizeof(*e) + key->length);
    if (e == NULL)
        return NULL;
    memset(e, 0, sizeof(*e));
    e->hash = key->hash;
    e->tenant = key->tenant;
    e->length = (uint16_t)key->length;
    memcpy(e->key, key->bytes, key->length);
    put_slot(s, e->hash, TAG(e->hash) | (uintptr_t)e);
    s->count++;
    d->stats.keys++;
    d->memory += malloc_usable_size(e) + sizeof(size_t);
    return e;
}

/* What stands behind it moves up, so that no chain of probes breaks. */
static void take_out(struct mco_directory *d, struct mco_entry *e)
{
    struct mco_shard *s = &d->shards[SHARD(e->hash)];
    uint32_t mask = s->size - 1, i = (uint32_t)e->hash & mask, j, home;

    while (entry_of(s->slots[i]) != e)
        i = (i + 1) & mask;
    for (j = (i + 1) & mask; s->slots[j] != 0; j = (j + 1) & mask) {
        home = (uint32_t)entry_of(s->slots[j])->hash & mask;
        if (((j - home) & mask) >= ((j - i) & mask)) {
            s->slots[i] = s->slots[j];
            i = j;
        }
    }
    s->slots[i] = 0;
    s->count--;
    d->stats.keys--;
    d->memory -= malloc_usable_size(e) + sizeof(size_t);
    free(e);
}

bool mco_entry_settle(struct mco_directory *d, struct mco_entry *e)
{
    if (e->nholders != 0 || e->put != NULL || e->duties != NULL || (e->flags & MCO_ENTRY_GRAVE))
        return false;
    if (e->flags & MCO_ENTRY_EARLIER) {
        mco_entry_bury(d, e);
        return false;
    }
    take_out(d, e);
    return true;
}

static bool grow_graves(struct mco_directory *d)
{
    uint64_t size = d->grave_size == 0 ? 64 : d->grave_size * 2;
    struct mco_entry **grave = malloc(size * sizeof(grave[0]));

    if (grave == NULL)
        return false;
    for (uint64_t i = 0; i < d->grave_count; i++)
        grave[i] = d->grave[(d->grave_first + i) & (d->grave_size - 1)];
    free(d->grave);
    d->memory += (size - d->grave_size) * sizeof(grave[0]);
    d->grave = grave;
    d->grave_size = size;
    d->grave_first = 0;
    return true;
}

static void raise_floor(struct mco_directory *d, const struct mco_entry *e)
{
    if (mco_version_compare(&e->version, &d->floor) > 0)
        d->floor = e->version;
}

void mco_entry_bury(struct mco_directory *d, struct mco_entry *e)
{
    e->flags |= MCO_ENTRY_EARLIER;
    if (e->flags & MCO_ENTRY_GRAVE)
        return;
    if (d->grave_count == d->grave_size && !grow_graves(d)) {
        raise_floor(d, e);
        e->flags &= (uint8_t)~MCO_ENTRY_EARLIER;
        return;
    }
    d->grave[(d->grave_first + d->grave_count++) & (d->grave_size - 1)] = e;
    e->flags |= MCO_ENTRY_GRAVE;
}

static void forget_oldest(struct mco_directory *d)
{
    struct mco_entry *e = d->grave[d->grave_first];

    d->grave_first = (d->grave_first + 1) & (d->grave_size - 1);
    d->grave_count--;
    e->flags &= (uint8_t)~MCO_ENTRY_GRAVE;
    if (e->nholders != 0 || e->put != NULL)
        return; /* it lives again; it is buried again when that is over */
    if (!mco_duties_forget(d, e)) {
        mco_entry_bury(d, e);
        return;
    }
    raise_floor(d, e);
    e->flags &= (uint8_t)~MCO_ENTRY_EARLIER;
    mco_entry_settle(d, e);
}

void mco_graves_trim(struct mco_directory *d)
{
    for (unsigned n = 0; d->grave_count > d->o.graves_max && n < 64; n++)
        forget_oldest(d);
}

void mco_shard_each(struct mco_directory *d, uint32_t shard,
                    bool (*f)(void *context, struct mco_directory *d, struct mco_entry *e),
                    void *context)
{
    struct mco_shard *s = &d->shards[shard];
    uint32_t i = 0;

    /* where one has gone another may stand now */
    while (i < s->size)
        if (s->slots[i] == 0 || !f(context, d, entry_of(s->slots[i])))
            i++;
}

void mco_entries_destroy(struct mco_directory *d)
{
    struct mco_duty *y, *next;

    for (size_t n = 0; n < MCO_SHARDS; n++) {
        for (uint32_t i = 0; i < d->shards[n].size; i++) {
            struct mco_entry *e = entry_of(d->shards[n].slots[i]);

            if (e == NULL)
                continue;
            for (y = e->duties; y != NULL; y = next) {
                next = y->next;
                free(y);
            }
            free(e->put);
            free(e);
        }
        free(d->shards[n].slots);
    }
    free(d->grave);
}
