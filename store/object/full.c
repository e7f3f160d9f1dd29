/* SPDX-License-Identifier: Apache-2.0 */
/* The table is full, of records or of long keys: who goes for one more. Under the store's lock; work is bounded. */
#include "internal.h"

#define CANDIDATES 4096u /* of a policy, or of those on disk, that one call looks at */

/* What one is short of. */
struct shortage {
    bool tails;                   /* long keys' room: those without any are no help */
    const struct mco_tenant *own; /* of it alone; NULL: of all */
};

static bool helps(const struct mco_store *s, uint32_t n, const struct shortage *w)
{
    const struct mco_record *r = mco_record_at(s, n);

    return (!w->tails || r->cont != MCO_NONE) && (w->own == NULL || r->tenant == w->own->tenant);
}

/* The oldest one that is on disk alone. */
static bool record_of_disk(struct mco_store *s, const struct shortage *w, uint64_t now,
                           struct mco_after *after)
{
    unsigned looks = 0;

    for (struct mco_policy_entry *e = s->on_disk.next;
         e != &s->on_disk && looks++ < CANDIDATES && after->places < MCO_PLACES; e = e->next) {
        uint32_t n = mco_entry_number(s, e);

        /* relaxed: partner: mco_lease(); one that is given just now keeps it */
        if (!helps(s, n, w) || mcs_load_relaxed(&mco_record_at(s, n)->lease_until) > now)
            continue;
        s->stats.evictions++;
        mco_leave(s, n, MCO_EVICTED, now, after);
        return true;
    }
    return false;
}

/* The arena's first that may go. */
static bool record_of(struct mco_store *s, struct mco_arena *a, const struct shortage *w, bool soft,
                      uint64_t now, struct mco_after *after)
{
    struct mco_policy_entry *e = NULL;
    unsigned looks = 0;

    while (a->policy != NULL && looks < CANDIDATES && (e = a->ops->next(a->policy, e)) != NULL) {
        uint32_t n = mco_entry_number(s, e);

        looks++;
        if (helps(s, n, w) && mco_let_go(s, n, now, soft, &looks, after))
            return true;
    }
    return false;
}

/* The arena that has most objects. */
static struct mco_arena *fullest(const struct mco_store *s)
{
    struct mco_arena *most = NULL;

    for (uint32_t i = 0; i < s->tenants_size; i++)
        for (unsigned k = 0; k < 2 && s->tenants[i] != NULL; k++)
            if (most == NULL || s->tenants[i]->arenas[k].ordered > most->ordered)
                most = &s->tenants[i]->arenas[k];
    return most;
}

enum mcs_status mco_make_record(struct mco_store *s, struct mco_arena *a, bool own, uint64_t now,
                                struct mco_after *after)
{
    const struct shortage w = {.tails = !own && s->table.free_record != MCO_NONE,
                               .own = own ? a->tenant : NULL};
    struct mco_arena *other = &a->tenant->arenas[!a->open];
    uint32_t had = w.tails ? s->table.conts_used : s->table.records_used;
    bool gone;

    mcs_store_relaxed(&s->waiting, 1u);
    mcs_fence_full(); /* partner: mco_unpin(), as in mco_make_space() */
    mco_sweep(s, now, after);
    gone = (w.tails ? s->table.conts_used : s->table.records_used) < had ||
           record_of_disk(s, &w, now, after);
    for (unsigned soft = 0; soft < 2 && !gone; soft++)
        gone = record_of(s, a, &w, soft != 0, now, after) ||
               record_of(s, own ? other : fullest(s), &w, soft != 0, now, after);
    if (gone)
        return MCS_OK;
    if (a->writing != 0 || mco_leaves_soon(s))
        return MCS_BUSY;
    return own ? MCS_LIMIT : MCS_NO_SPACE;
}
