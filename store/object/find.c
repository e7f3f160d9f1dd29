/* SPDX-License-Identifier: Apache-2.0 */
/* Finding objects, and what keeps them while they are read: pins and leases. */
#include <string.h>

#include "internal.h"

#define GROUP 32u /* keys whose lines are fetched into the cache together */

/* ---- the policy is told ----------------------------------------------------------------------- */

/* Under the store's lock. n was found a moment ago; whether it still is there shows here. */
static void hit(struct mco_store *s, uint32_t n, uint64_t hash, const struct mco_hint *hint)
{
    struct mco_arena *a;

    if (s->entries[n].hash != hash || (mco_record_at(s, n)->marks & MCO_ORDERED) == 0)
        return;
    a = mco_arena_of(s, n);
    a->tenant->hits++;
    mco_step_over(a, &s->entries[n]);
    a->ops->hit(a->policy, &s->entries[n], hint);
}

static void miss(struct mco_store *s, const struct mco_key *key, const struct mco_hint *hint)
{
    struct mco_tenant *t = mco_tenant_find(s, key->tenant);
    struct mco_arena *a;

    if (t == NULL)
        return;
    t->misses++;
    a = &t->arenas[t->arenas[0].policy == NULL];
    if (a->policy != NULL)
        a->ops->miss(a->policy, key->hash, hint);
}

static void touch(struct mco_store *s, uint32_t n, const struct mco_key *key,
                  const struct mco_hint *hint)
{
    mco_lock(&s->lock);
    if (n != MCO_NONE)
        hit(s, n, key->hash, hint);
    else
        miss(s, key, hint);
    mco_unlock(&s->lock);
}

/* ---- pins ------------------------------------------------------------------------------------------ */

/* OK; NOT_FOUND, *found MCO_NONE; BUSY: it is on disk. */
static enum mcs_status pin(struct mco_store *s, const struct mco_key *key, uint32_t *found,
                           struct mco_view *out)
{
    struct mco_shard *sh = mco_shard_of(s, key->hash);
    enum mcs_status status = MCS_OK;
    uint32_t n;

    mco_lock(&sh->lock);
    n = mco_index_find(s, sh, key, MCO_STATES_SEALED);
    sh->lookups++;
    if (n != MCO_NONE) {
        struct mco_record *r = mco_record_at(s, n);

        if (mco_in_memory(r->state)) {
            mco_pin_more(sh, r);
            sh->hits++;
            sh->hit_bytes += r->size;
            mco_fill_view(s, n, out);
        } else {
            sh->disk_hits += r->state == MCO_DISK;
            status = MCS_BUSY;
        }
    } else {
        sh->misses++;
        status = MCS_NOT_FOUND;
    }
    mco_unlock(&sh->lock);
    *found = n;
    return status;
}

enum mcs_status mco_pin(struct mco_store *s, const struct mco_key *key, const struct mco_hint *hint,
                        uint64_t now, struct mco_view *out)
{
    enum mcs_status status;
    uint32_t n = MCO_NONE;

    memset(out, 0, sizeof(*out));
    if (key->length == 0 || key->length > MCS_KEY_MAX)
        return MCS_BAD_KEY;
    status = pin(s, key, &n, out);
    while (status == MCS_BUSY) {
        status = mco_fetch(s, key, now);
        if (status != MCS_OK)
            return status;
        status = pin(s, key, &n, out); /* it has just come */
    }
    if (hint != NULL)
        touch(s, n, key, hint);
    /* relaxed: partner: mco_spoil(); who waited for the disk has been woken by its thread since */
    if (status == MCS_NOT_FOUND && mcs_load_relaxed(&s->nspoiled) != 0 &&
        mco_is_spoiled(s, key->hash))
        status = MCS_CHECKSUM;
    return status;
}

void mco_pin_again(struct mco_store *s, struct mco_object *o)
{
    uint32_t n = mco_number(s, o);
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);

    mco_lock(&sh->lock);
    mco_pin_more(sh, mco_record_at(s, n));
    mco_unlock(&sh->lock);
}

void mco_unpin(struct mco_store *s, struct mco_object *o)
{
    uint32_t n = mco_number(s, o);
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    struct mco_record *r = mco_record_at(s, n);
    struct mco_after after;
    bool last, left;

    mco_lock(&sh->lock);
    last = mco_pin_less(sh, r);
    left = r->state == MCO_LEAVING;
    mco_unlock(&sh->lock);
    if (!last)
        return;
    mcs_fence_full(); /* partner: mco_make_space(): one of us sees what the other did */
    if (!left && mcs_load_relaxed(&s->waiting) == 0)
        return;
    mco_after_init(&after);
    mco_lock(&s->lock);
    /* by now it may have been freed by another thread, and be another object even: looked at anew */
    if (left)
        (void)mco_free_left(s, n, mco_clock(), &after);
    mco_space_freed(s, &after);
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
}

void mco_pin_in_place(struct mco_store *s, struct mco_object *o, bool begins)
{
    uint32_t n = mco_number(s, o), count;
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    struct mco_record *r = mco_record_at(s, n);

    mco_lock(&sh->lock);
    count = r->in_place + (begins ? 1 : UINT32_MAX);
    mcs_store_relaxed(&r->in_place, count); /* partner: recovery, after this process's death */
    sh->in_place += begins ? 1 : UINT64_MAX;
    mco_unlock(&sh->lock);
}

void mco_lease(struct mco_store *s, struct mco_object *o, uint64_t until)
{
    uint32_t n = mco_number(s, o);
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    struct mco_record *r = mco_record_at(s, n);

    mco_lock(&sh->lock);
    if (until > r->lease_until)
        mcs_store_relaxed(&r->lease_until, until); /* partner: mco_count_leases() */
    mco_unlock(&sh->lock);
}

/* ---- existence --------------------------------------------------------------------------------------- */

static enum mcs_status exists(struct mco_store *s, const struct mco_key *key, uint64_t lease_until,
                              struct mco_found *out, uint32_t *found)
{
    struct mco_shard *sh = mco_shard_of(s, key->hash);
    struct mco_record *r;
    uint32_t n;

    *found = MCO_NONE;
    if (key->length == 0 || key->length > MCS_KEY_MAX)
        return MCS_BAD_KEY;
    mco_lock(&sh->lock);
    n = mco_index_find(s, sh, key, MCO_STATES_SEALED);
    sh->lookups++;
    if (n != MCO_NONE) {
        sh->hits++;
        r = mco_record_at(s, n);
        if (lease_until > r->lease_until)
            mcs_store_relaxed(&r->lease_until, lease_until); /* as in mco_lease() */
        if (out != NULL)
            *out = (struct mco_found){.version = mco_record_version(r),
                                      .size = r->size,
                                      .crc = r->crc,
                                      .tier = mco_in_memory(r->state) ? MCS_TIER_MEMORY
                                                                      : MCS_TIER_DISK};
    } else {
        sh->misses++;
    }
    mco_unlock(&sh->lock);
    *found = n;
    return n != MCO_NONE ? MCS_OK : MCS_NOT_FOUND;
}

/* Lines of the index and the records that the keys probably are. */
static void fetch_lines(const struct mco_store *s, const struct mco_key *keys, size_t n)
{
    const uint32_t *heads[GROUP];

    for (size_t i = 0; i < n; i++) {
        heads[i] = mco_index_head(s, keys[i].hash);
        __builtin_prefetch(heads[i]);
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t at = mcs_load_relaxed(heads[i]); /* partner: mco_index_add(); a guess */

        if (at < s->table.max_records) {
            __builtin_prefetch(&s->entries[at]);
            __builtin_prefetch(mco_record_at(s, at));
            __builtin_prefetch((const uint8_t *)mco_record_at(s, at) + 64);
            __builtin_prefetch(&s->table.next[at]);
        }
    }
}

size_t mco_exist(struct mco_store *s, const struct mco_key *keys, const struct mco_hint *hints,
                 size_t n, uint64_t lease_ns, uint64_t now, uint8_t *status, struct mco_found *out)
{
    uint64_t until = lease_ns != 0 ? now + lease_ns : 0;
    uint32_t found[GROUP];
    size_t there = 0;

    for (size_t from = 0; from < n; from += GROUP) {
        size_t part = n - from < GROUP ? n - from : GROUP;

        fetch_lines(s, keys + from, part);
        for (size_t i = 0; i < part; i++) {
            enum mcs_status st =
                exists(s, &keys[from + i], until, out != NULL ? &out[from + i] : NULL, &found[i]);

            status[from + i] = (uint8_t)st;
            there += st == MCS_OK;
        }
        if (hints == NULL)
            continue;
        mco_lock(&s->lock);
        for (size_t i = 0; i < part; i++)
            if (found[i] != MCO_NONE)
                hit(s, found[i], keys[from + i].hash, &hints[from + i]);
            else
                miss(s, &keys[from + i], &hints[from + i]);
        mco_unlock(&s->lock);
    }
    return there;
}
