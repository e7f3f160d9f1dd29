/* SPDX-License-Identifier: Apache-2.0 */
/* Lists and figures of what is held. */
#include <string.h>

#include "internal.h"

#define LEASES_STEP 2048u
#define WALK_STEP 4096u /* records that one call looks at, whosever they are */

/* Under the object's shard's lock, or the store's. */
static void list(const struct mco_store *s, uint32_t n, struct mco_listed *out)
{
    const struct mco_record *r = mco_record_at(s, n);
    uint32_t own = r->state == MCO_OFFLOADING || r->state == MCO_FETCHING; /* the store's pin */

    *out = (struct mco_listed){
        .key = {NULL, r->key_length, r->tenant, s->entries[n].hash},
        .version = mco_record_version(r),
        .size = r->size,
        .group = mco_record_group(r),
        .soft_pin_until = (uint64_t)r->soft_pin << MCO_SOFT_SHIFT,
        .lease_until = r->lease_until,
        .crc = r->crc,
        .pins = r->pins > own ? r->pins - own : 0,
        .in_place = r->in_place,
        .copies = r->copies,
        .hard_pin = (r->flags & MCO_HARD) != 0,
        .writing = r->state == MCO_WRITING,
        .leaving = r->state == MCO_LEAVING,
        .summed = mco_record_summed(r),
        .tier = r->state >= MCO_DISK && r->state <= MCO_AWAITED ? MCS_TIER_DISK : MCS_TIER_MEMORY,
    };
}

void mco_walk(struct mco_store *s, uint64_t tenant, uint64_t *cursor,
              bool (*each)(void *context, const struct mco_listed *o), void *context)
{
    uint8_t bytes[MCS_KEY_MAX];
    struct mco_listed o;
    bool go_on = true, found;
    uint64_t until = *cursor + WALK_STEP;

    /* relaxed: partner: grow_records(); records that came since are seen or not, as any that come during a walk */
    while (go_on && *cursor < until && *cursor < mcs_load_relaxed(&s->table.nrecords)) {
        uint32_t n = (uint32_t)(*cursor)++;
        const struct mco_record *r = mco_record_at(s, n);
        struct mco_shard *sh;

        mco_lock(&s->lock);
        found = r->state != MCO_FREE && (tenant == UINT64_MAX || r->tenant == tenant);
        if (found) {
            sh = mco_shard_of(s, s->entries[n].hash);
            mco_lock(&sh->lock);
            list(s, n, &o);
            mco_unlock(&sh->lock);
            mco_record_key(s, n, bytes);
            o.key.bytes = bytes;
        }
        mco_unlock(&s->lock);
        if (found)
            go_on = each(context, &o);
    }
    if (go_on && *cursor < until)
        *cursor = UINT64_MAX;
}

bool mco_stat(struct mco_store *s, const struct mco_key *key, struct mco_listed *out)
{
    struct mco_shard *sh = mco_shard_of(s, key->hash);
    uint32_t n;

    mco_lock(&sh->lock);
    n = mco_index_find(s, sh, key, MCO_STATES_SEALED);
    if (n != MCO_NONE) {
        list(s, n, out);
        out->key = *key;
    }
    mco_unlock(&sh->lock);
    return n != MCO_NONE;
}

void mco_count_leases(struct mco_store *s, uint64_t now)
{
    for (unsigned i = 0; i < LEASES_STEP; i++) {
        if (s->lease_cursor >= s->table.nrecords) {
            s->stats.leased = s->lease_count;
            s->lease_cursor = 0;
            s->lease_count = 0;
            break;
        }
        /* relaxed: partner: mco_lease(); a figure */
        s->lease_count += mcs_load_relaxed(&mco_record_at(s, s->lease_cursor)->lease_until) > now &&
                          mco_record_at(s, s->lease_cursor)->state != MCO_FREE;
        s->lease_cursor++;
    }
}

void mco_get_stats(struct mco_store *s, struct mco_stats *out)
{
    uint64_t now = mco_clock(), policies = 0;

    mco_lock(&s->lock);
    do
        mco_count_leases(s, now);
    while (s->lease_cursor != 0 && s->table.nrecords <= LEASES_STEP * 4);
    *out = s->stats;
    out->size = s->o.size;
    out->extents = s->extents;
    out->extent_bytes = s->extent_bytes;
    out->guarded = s->nguards;
    out->waiting = s->waited || mcs_load_relaxed(&s->waiting) != 0;
    out->table_bytes = mco_table_bytes(s);
    policies = (uint64_t)s->table.records_used *
               (sizeof(struct mco_policy_entry) + sizeof(*s->table.next));
    out->index_bytes = policies + (uint64_t)s->nnodes * sizeof(struct mco_node) +
                       mco_index_bytes(s) + mco_groups_bytes(s);
    mco_unlock(&s->lock);
    for (unsigned i = 0; i < MCO_SHARDS; i++) {
        struct mco_shard *sh = &s->shards[i];

        mco_lock(&sh->lock);
        out->lookups += sh->lookups;
        out->hits += sh->hits;
        out->misses += sh->misses;
        out->hit_bytes += sh->hit_bytes;
        out->disk_hits += sh->disk_hits;
        out->in_place += sh->in_place;
        out->pinned += sh->pinned;
        mco_unlock(&sh->lock);
    }
}
