/* SPDX-License-Identifier: Apache-2.0 */
/* The clock: who is away or gone, which puts are over, and passes over all entries, some shards at a time. */
#include "directory_internal.h"

#include <stdlib.h>

#define STEP 4096u                   /* entries of a pass in one call */
#define STEP_SHARDS 128u             /* the same */
#define COPIES_MAX 16384u            /* that are wanted at a time: a pass waits beyond */
#define MOVES_MAX 256u               /* off one holder */
#define DRAIN_NS 500000000           /* between two passes for one holder */
#define LACK_NS UINT64_C(1000000000) /* until copies without a place are tried again */
#define LACK_MAX_NS (60 * LACK_NS)

static void states(struct mco_directory *d, uint64_t now)
{
    struct mco_member *h;

    for (uint32_t i = 0; i < d->nmembers; i++) {
        h = d->members[i];
        if (h == NULL || h->state == MCO_HOLDER_GONE || now < h->heard)
            continue;
        if (h->state <= MCO_HOLDER_HERE && now - h->heard >= d->o.away_ns) {
            h->state = MCO_HOLDER_AWAY;
            mco_holder_stale(h);
            mco_puts_undo(d, i);
            mco_duties_again(d, h, true);
        }
        if (now - h->heard >= d->o.gone_ns)
            mco_holder_gone(d, h);
    }
}

static void old_puts(struct mco_directory *d, uint64_t now)
{
    struct mco_opened *p;
    struct mco_entry *e;

    while ((p = d->oldest) != NULL && now - p->started >= d->o.put_ns) {
        e = p->e;
        mco_put_over(d, e);
        mco_entry_settle(d, e);
        d->stats.undone++;
    }
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* What was not told again, or was a dead one's. */
static void sweep(struct mco_directory *d, struct mco_entry *e)
{
    struct mco_key key = mco_entry_key(e);
    struct mco_member *h;
    bool lost;

    for (int i = e->nholders - 1; i >= 0; i--) {
        h = d->members[e->holders[i] & MCO_SLOT_HOLDER];
        if (!(h->scans & (MCO_SCAN_SWEEP | MCO_SCAN_LOST)) ||
            e->holders[i] >> MCO_SLOT_TURN == h->turn)
            continue;
        lost = (h->scans & MCO_SCAN_LOST) != 0;
        mco_entry_drop(d, e, i);
        d->stats.lost += lost && e->nholders == 0;
        if (lost && d->o.lost != NULL)
            d->o.lost(d->o.context, &key, &e->version, e->size, &h->info, e->nholders);
    }
}

/* Is there an agent that has it not and may be given it, now or when it has room or is back? */
static bool others_could_have_it(const struct mco_directory *d, const struct mco_entry *e)
{
    for (uint32_t i = 0; i < d->nmembers; i++) {
        const struct mco_member *h = d->members[i];

        if (h != NULL && h->state != MCO_HOLDER_GONE && !h->info.draining &&
            mco_entry_slot(e, i) < 0)
            return true;
    }
    return false;
}

/* Off a holder that is to be emptied: to another one, or nowhere when enough others have it, or all that there are. */
static void move_off(struct mco_directory *d, struct mco_entry *e)
{
    unsigned others = 0;
    uint32_t holder;

    for (int i = 0; i < e->nholders; i++)
        others += !d->members[e->holders[i] & MCO_SLOT_HOLDER]->info.draining &&
                  mco_here(d, e->holders[i] & MCO_SLOT_HOLDER);
    for (int i = e->nholders - 1; i >= 0; i--) {
        holder = e->holders[i] & MCO_SLOT_HOLDER;
        if (!(d->members[holder]->scans & MCO_SCAN_DRAIN) || !d->members[holder]->info.draining)
            continue;
        if (others > 0 && (others >= e->copies || !others_could_have_it(d, e))) {
            mco_entry_drop(d, e, i);
            mco_duty_drop(d, e, holder, &e->version);
        } else if (e->duties == NULL && d->members[holder]->nmoves < MOVES_MAX) {
            mco_duty_move(d, e, holder, MCO_NO_HOLDER);
        }
    }
}

static bool pass_entry(void *context, struct mco_directory *d, struct mco_entry *e)
{
    unsigned *n = context;

    ++*n;
    sweep(d, e);
    if (e->nholders != 0) {
        move_off(d, e);
        if (d->repairs && e->nholders < e->copies && e->size < d->no_room)
            mco_duties_place(d, e, MCO_NO_HOLDER);
    }
    return mco_entry_settle(d, e);
}

/* Is there something for a new pass? It serves all who want one. */
static bool pass_begins(struct mco_directory *d, uint64_t now)
{
    struct mco_member *h;
    bool wanted = d->repair && d->rebuilt;

    for (uint32_t i = 0; i < d->nmembers; i++) {
        h = d->members[i];
        if (h == NULL)
            continue;
        if (h->info.draining && h->state != MCO_HOLDER_GONE && h->objects != 0 && d->rebuilt &&
            now >= h->drain_at)
            h->scan |= MCO_SCAN_DRAIN;
        h->scans = h->scan & (uint8_t) ~(d->rebuilt ? 0 : MCO_SCAN_DRAIN);
        h->scan &= (uint8_t)~h->scans;
        if (h->scans & MCO_SCAN_DRAIN)
            h->drain_at = now + DRAIN_NS;
        wanted |= h->scans != 0;
    }
    d->repairs = d->repair && d->rebuilt;
    if (d->repairs) {
        d->repair = d->lacking = false;
        d->placed_before = d->placed;
        d->no_room = UINT64_MAX;
    }
    d->scan_at = 0;
    return wanted;
}

static bool pass(struct mco_directory *d, uint64_t now)
{
    unsigned n = 0;

    if (!d->scanning)
        d->scanning = pass_begins(d, now);
    for (unsigned shards = 0; d->scanning && n < STEP && shards < STEP_SHARDS; shards++) {
        if (d->copies >= COPIES_MAX)
            return false;
        mco_shard_each(d, d->scan_at, pass_entry, &n);
        if (++d->scan_at == MCO_SHARDS) {
            d->scanning = false;
            for (uint32_t i = 0; i < d->nmembers; i++)
                if (d->members[i] != NULL)
                    d->members[i]->scans = 0;
        }
    }
    return d->scanning;
}

/* Copies for which there was no place: others have room again some time. Ever more seldom, as long as it leads to nothing. */
static void lacks(struct mco_directory *d, uint64_t now)
{
    if (!d->lacking || d->scanning || d->repair || !d->rebuilt)
        return;
    if (d->lack_at == 0) {
        d->lack_ns = d->placed != d->placed_before ? LACK_NS : d->lack_ns * 2;
        d->lack_ns = d->lack_ns < LACK_NS       ? LACK_NS
                     : d->lack_ns > LACK_MAX_NS ? LACK_MAX_NS
                                                : d->lack_ns;
        d->lack_at = now + d->lack_ns;
    } else if (now >= d->lack_at) {
        d->lack_at = 0;
        d->repair = true;
    }
}

bool mco_directory_tick(struct mco_directory *d, uint64_t now)
{
    bool more;

    mco_rebuilt_look(d, now);
    states(d, now);
    old_puts(d, now);
    mco_duties_late(d, now);
    lacks(d, now);
    more = pass(d, now);
    mco_graves_trim(d);
    return more;
}

/* ---- walks ------------------------------------------------------------------------------------- */

struct walk {
    uint64_t tenant;
    uint32_t holder;
    bool (*each)(void *context, const struct mco_key *key, const struct mco_found_at *f);
    void *context;
    bool ended;
};

static bool walk_entry(void *context, struct mco_directory *d, struct mco_entry *e)
{
    struct walk *w = context;
    struct mco_key key = mco_entry_key(e);
    struct mco_found_at f = {.status = MCS_PEER_UNREACHABLE,
                             .version = e->version,
                             .size = e->size,
                             .crc = e->crc,
                             .nholders = e->nholders};

    if (w->ended || e->nholders == 0 || (w->tenant != UINT64_MAX && e->tenant != w->tenant) ||
        (w->holder != MCO_NO_HOLDER && mco_entry_slot(e, w->holder) < 0))
        return false;
    for (int i = 0; i < e->nholders; i++) {
        f.holders[i] = e->holders[i] & MCO_SLOT_HOLDER;
        if (mco_here(d, f.holders[i]))
            f.status = MCS_OK;
    }
    w->ended = !w->each(w->context, &key, &f);
    return false;
}

void mco_directory_walk(struct mco_directory *d, uint64_t tenant, uint32_t holder, uint64_t *cursor,
                        bool (*each)(void *context, const struct mco_key *key,
                                     const struct mco_found_at *f),
                        void *context)
{
    struct walk w = {.tenant = tenant, .holder = holder, .each = each, .context = context};

    if (*cursor >= MCO_SHARDS) {
        *cursor = UINT64_MAX;
        return;
    }
    mco_shard_each(d, (uint32_t)*cursor, walk_entry, &w);
    *cursor = w.ended || *cursor + 1 == MCO_SHARDS ? UINT64_MAX : *cursor + 1;
}
