/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key -> object: shards by the upper bits of the mixed hash, chains in buckets by the lower ones.  A shard grows bucket by
 * bucket (linear hashing), so that no insertion ever pays for all of it; its heads have address space for as many as can be.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "internal.h"

#define PAGE UINT64_C(4096)
#define BUCKETS_MIN 16u

static uint32_t bucket_of(const struct mco_store *s, const struct mco_shard *sh, uint64_t hash)
{
    uint32_t mixed = (uint32_t)mco_mixed(s, hash), b = mixed & sh->mask;

    return b < sh->split ? mixed & (sh->mask * 2 + 1) : b;
}

uint32_t mco_index_find(const struct mco_store *s, const struct mco_shard *sh,
                        const struct mco_key *key, unsigned states)
{
    uint32_t n = sh->heads[bucket_of(s, sh, key->hash)];

    while (n != MCO_NONE &&
           (s->entries[n].hash != key->hash || (1u << mco_record_at(s, n)->state & states) == 0 ||
            !mco_record_is(s, n, key)))
        n = s->table.next[n];
    return n;
}

void mco_index_lives(const struct mco_store *s, const struct mco_shard *sh,
                     const struct mco_key *key, struct mco_lives *out)
{
    uint32_t n = sh->heads[bucket_of(s, sh, key->hash)];

    out->sealed = out->writing = MCO_NONE;
    out->others = out->leaving = 0;
    for (; n != MCO_NONE; n = s->table.next[n]) {
        uint8_t state = mco_record_at(s, n)->state;

        if (s->entries[n].hash != key->hash)
            continue;
        if (state == MCO_LEAVING || !mco_record_is(s, n, key)) {
            out->others++;
            out->leaving += state == MCO_LEAVING;
        } else if (mco_is_sealed(state))
            out->sealed = n;
        else if (state == MCO_WRITING)
            out->writing = n;
    }
}

/* One more bucket: it gets its part of the one that is next to be split. */
static void split(struct mco_store *s, struct mco_shard *sh)
{
    uint32_t from = sh->split, to = sh->buckets, n = sh->heads[from];
    uint32_t heads[2] = {MCO_NONE, MCO_NONE};

    while (n != MCO_NONE) {
        uint32_t next = s->table.next[n];
        bool moves = ((uint32_t)mco_mixed(s, s->entries[n].hash) & (sh->mask * 2 + 1)) == to;

        s->table.next[n] = heads[moves];
        heads[moves] = n;
        n = next;
    }
    /* relaxed, as those of mco_index_add(): partner: mco_index_head(), which only guesses */
    mcs_store_relaxed(&sh->heads[from], heads[0]);
    mcs_store_relaxed(&sh->heads[to], heads[1]);
    mcs_store_relaxed(&sh->buckets, sh->buckets + 1); /* a figure to others */
    if (from == sh->mask) {
        mcs_store_relaxed(&sh->split, 0u);
        mcs_store_relaxed(&sh->mask, sh->mask * 2 + 1);
    } else {
        mcs_store_relaxed(&sh->split, from + 1);
    }
}

void mco_index_add(struct mco_store *s, struct mco_shard *sh, uint32_t n)
{
    uint32_t b;

    if (sh->objects >= sh->buckets && sh->buckets < sh->max)
        split(s, sh);
    b = bucket_of(s, sh, s->entries[n].hash);
    s->table.next[n] = sh->heads[b];
    mcs_store_relaxed(&sh->heads[b], n); /* partner: mco_index_head() */
    sh->objects++;
}

void mco_index_remove(struct mco_store *s, struct mco_shard *sh, uint32_t n)
{
    uint32_t b = bucket_of(s, sh, s->entries[n].hash), at = sh->heads[b];

    if (at == n) {
        mcs_store_relaxed(&sh->heads[b], s->table.next[n]); /* partner: mco_index_head() */
    } else {
        while (s->table.next[at] != n)
            at = s->table.next[at];
        s->table.next[at] = s->table.next[n];
    }
    sh->objects--;
}

const uint32_t *mco_index_head(const struct mco_store *s, uint64_t hash)
{
    const struct mco_shard *sh = mco_shard_of(s, hash);
    /* relaxed: partner: split(); whoever looks wants a line in the cache, and may be wrong */
    uint32_t mask = mcs_load_relaxed(&sh->mask), mixed = (uint32_t)mco_mixed(s, hash);
    uint32_t b = mixed & mask;

    return &sh->heads[b < mcs_load_relaxed(&sh->split) ? mixed & (mask * 2 + 1) : b];
}

int mco_index_create(struct mco_store *s)
{
    uint64_t max = s->table.max_records / MCO_SHARDS * 2 + BUCKETS_MIN * 4, each;

    if (getrandom(&s->mixer, sizeof(s->mixer), 0) != (ssize_t)sizeof(s->mixer))
        return -EIO;
    s->mixer |= 1;
    each = (max * sizeof(uint32_t) + PAGE - 1) / PAGE * PAGE;
    s->heads_size = each * MCO_SHARDS;
    s->heads = mmap(NULL, s->heads_size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->heads == MAP_FAILED) {
        s->heads = NULL;
        return -errno;
    }
    s->shards = aligned_alloc(64, MCO_SHARDS * sizeof(*s->shards));
    if (s->shards == NULL)
        return -ENOMEM;
    memset(s->shards, 0, MCO_SHARDS * sizeof(*s->shards));
    for (unsigned i = 0; i < MCO_SHARDS; i++) {
        struct mco_shard *sh = &s->shards[i];

        sh->heads = (uint32_t *)((uint8_t *)s->heads + i * each);
        sh->buckets = BUCKETS_MIN;
        sh->mask = BUCKETS_MIN - 1;
        sh->max = (uint32_t)(each / sizeof(uint32_t));
        memset(sh->heads, 0xff, BUCKETS_MIN * sizeof(uint32_t));
    }
    return 0;
}

void mco_index_destroy(struct mco_store *s)
{
    if (s->heads != NULL)
        munmap(s->heads, s->heads_size);
    free(s->shards);
}

uint64_t mco_index_bytes(const struct mco_store *s)
{
    uint64_t buckets = 0;

    for (unsigned i = 0; i < MCO_SHARDS; i++)
        buckets += mcs_load_relaxed(&s->shards[i].buckets); /* a figure */
    return MCO_SHARDS * sizeof(struct mco_shard) + buckets * sizeof(uint32_t);
}
