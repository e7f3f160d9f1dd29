/* SPDX-License-Identifier: Apache-2.0 */
/* What holders have to do: duties, places, orders. */
#include "directory_internal.h"

#include <stdlib.h>
#include <string.h>

#define GIVEN_COPIES 64u  /* at a time, of one holder */
#define GIVEN_DROPS 8192u /* the same */
#define TRIES 3u          /* places that are tried for a copy */

enum { COPIES, DROPS }; /* indices of lists */

static unsigned list_of(const struct mco_duty *y)
{
    return y->kind == MCO_ORDER_DROP ? DROPS : COPIES;
}

static void append(struct mco_list *l, struct mco_duty *y)
{
    y->after = NULL;
    y->before = l->last;
    if (l->last != NULL)
        l->last->after = y;
    else
        l->first = y;
    l->last = y;
}

static void take(struct mco_list *l, struct mco_duty *y)
{
    if (y->before != NULL)
        y->before->after = y->after;
    else
        l->first = y->after;
    if (y->after != NULL)
        y->after->before = y->before;
    else
        l->last = y->before;
}

static void count(struct mco_directory *d, const struct mco_duty *y, int n)
{
    if (y->kind == MCO_ORDER_DROP)
        d->drops += (uint64_t)n;
    else
        d->copies += (uint64_t)n;
    if (y->kind == MCO_ORDER_MOVE)
        d->members[y->from]->nmoves += (uint64_t)n;
}

static void make_due(struct mco_directory *d, struct mco_duty *y)
{
    struct mco_member *h = d->members[y->holder];
    unsigned i = list_of(y);

    if (y->given == 0)
        return;
    take(&h->given[i], y);
    h->ngiven[i]--;
    y->given = 0;
    append(&h->due[i], y);
}

static void owe(struct mco_member *h, struct mco_duty *y)
{
    h->owed += !y->owed;
    y->owed = true;
}

void mco_duties_owe(struct mco_member *h)
{
    for (struct mco_duty *y = h->due[DROPS].first; y != NULL; y = y->after)
        owe(h, y);
    for (struct mco_duty *y = h->given[DROPS].first; y != NULL; y = y->after)
        owe(h, y);
}

static struct mco_duty *add(struct mco_directory *d, struct mco_entry *e, enum mco_order_kind kind,
                            uint32_t holder, uint32_t from, const struct mco_version *version)
{
    struct mco_duty *y = calloc(1, sizeof(*y));

    if (y == NULL)
        return NULL;
    y->e = e;
    y->kind = (uint8_t)kind;
    y->holder = holder;
    y->from = from;
    y->version = y->since = *version;
    y->next = e->duties;
    e->duties = y;
    if (kind == MCO_ORDER_DROP && !d->members[holder]->current)
        owe(d->members[holder], y);
    append(&d->members[holder]->due[list_of(y)], y);
    count(d, y, 1);
    return y;
}

void mco_duty_end(struct mco_directory *d, struct mco_duty *y)
{
    struct mco_member *h = d->members[y->holder];
    struct mco_duty **at = &y->e->duties;
    unsigned i = list_of(y);

    while (*at != y)
        at = &(*at)->next;
    *at = y->next;
    take(y->given != 0 ? &h->given[i] : &h->due[i], y);
    if (y->given != 0)
        h->ngiven[i]--;
    h->owed -= y->owed;
    count(d, y, -1);
    free(y);
}

struct mco_duty *mco_duty_of(const struct mco_entry *e, uint32_t holder, unsigned kind)
{
    struct mco_duty *y = e->duties;

    while (y != NULL && (y->holder != holder || y->kind != kind))
        y = y->next;
    return y;
}

void mco_duty_drop(struct mco_directory *d, struct mco_entry *e, uint32_t holder,
                   const struct mco_version *upto)
{
    struct mco_duty *y = mco_duty_of(e, holder, MCO_ORDER_DROP);

    if (y == NULL) {
        if (add(d, e, MCO_ORDER_DROP, holder, MCO_NO_HOLDER, upto) == NULL) {
            d->members[holder]->told =
                false; /* no memory: it tells everything, and is ordered then */
            mco_holder_stale(d->members[holder]);
        }
        return;
    }
    if (!d->members[holder]->current)
        owe(d->members[holder], y);
    if (mco_version_compare(upto, &y->since) < 0)
        y->since = *upto;
    if (mco_version_compare(upto, &y->version) > 0) {
        y->version = *upto;
        make_due(d, y); /* what it may confirm is less than this */
    }
}

void mco_duties_cancel(struct mco_directory *d, struct mco_entry *e)
{
    struct mco_duty *y, *next;
    struct mco_version version;
    uint32_t holder;

    for (y = e->duties; y != NULL; y = next) {
        next = y->next;
        if (y->kind == MCO_ORDER_DROP)
            continue;
        holder = y->holder;
        version = y->version;
        if (!y->once) {
            mco_duty_end(d, y);
            continue;
        }
        mco_duty_end(d, y);
        mco_duty_drop(d, e, holder, &version); /* stands before `next`: not met again */
    }
}

bool mco_duties_forget(struct mco_directory *d, struct mco_entry *e)
{
    for (const struct mco_duty *y = e->duties; y != NULL; y = y->next)
        if (y->kind != MCO_ORDER_DROP || mco_here(d, y->holder))
            return false;
    while (e->duties != NULL) {
        d->members[e->duties->holder]->told = false;
        mco_holder_stale(d->members[e->duties->holder]);
        mco_duty_end(d, e->duties);
    }
    return true;
}

void mco_duties_again(struct mco_directory *d, struct mco_member *h, bool away)
{
    struct mco_duty *y;
    struct mco_entry *e;

    for (unsigned i = 0; i < 2; i++)
        while (h->given[i].first != NULL)
            make_due(d, h->given[i].first);
    while (away && (y = h->due[COPIES].first) != NULL) {
        e = y->e;
        if (y->once)
            h->told = false; /* it may be made still: asked for everything, the holder lets it be */
        mco_duty_end(d, y);
        mco_entry_settle(d, e);
        d->repair = true;
    }
}

void mco_duties_void(struct mco_directory *d, struct mco_member *h)
{
    struct mco_duty *y;
    struct mco_entry *e;

    while ((y = h->due[DROPS].first) != NULL) {
        e = y->e;
        mco_duty_end(d, y);
        mco_entry_settle(d, e);
    }
}

/* ---- places ---------------------------------------------------------------------------------- */

static bool fits(const struct mco_member *h, uint64_t size)
{
    return h->state == MCO_HOLDER_HERE && h->connected && !h->info.draining &&
           h->info.capacity >= size && h->info.capacity - size >= h->info.used;
}

static bool taken(const struct mco_entry *e, uint32_t holder)
{
    if (mco_entry_slot(e, holder) >= 0)
        return true;
    for (const struct mco_duty *y = e->duties; y != NULL; y = y->next)
        if (y->holder == holder)
            return true;
    return false;
}

static bool domain_taken(const struct mco_directory *d, const struct mco_entry *e, uint64_t domain)
{
    for (int i = 0; i < e->nholders; i++)
        if (d->members[e->holders[i] & MCO_SLOT_HOLDER]->domain == domain)
            return true;
    for (const struct mco_duty *y = e->duties; y != NULL; y = y->next)
        if (y->kind != MCO_ORDER_DROP && d->members[y->holder]->domain == domain)
            return true;
    return false;
}

uint32_t mco_place(const struct mco_directory *d, const struct mco_entry *e, uint32_t but)
{
    uint32_t best = MCO_NO_HOLDER;
    uint64_t best_free = 0;
    bool best_apart = false;

    const struct mco_member *not = mco_member(d, but);

    for (uint32_t i = 0; i < d->nmembers; i++) {
        const struct mco_member *h = d->members[i];
        uint64_t room;
        bool apart;

        if (h == NULL || h == not || !fits(h, e->size) || taken(e, i))
            continue;
        room = h->info.capacity - h->info.used;
        apart = !domain_taken(d, e, h->domain);
        if (best == MCO_NO_HOLDER || (apart && !best_apart) ||
            (apart == best_apart && room > best_free)) {
            best = i;
            best_free = room;
            best_apart = apart;
        }
    }
    return best;
}

static void copy_to(struct mco_directory *d, struct mco_entry *e, uint32_t holder, uint8_t tries)
{
    struct mco_duty *y = add(d, e, MCO_ORDER_COPY, holder, MCO_NO_HOLDER, &e->version);

    if (y == NULL) {
        d->lacking = true;
        return;
    }
    y->tries = tries;
    d->placed++;
    d->members[holder]->info.used += e->size; /* until it says itself what it uses */
}

bool mco_duty_move(struct mco_directory *d, struct mco_entry *e, uint32_t from, uint32_t to)
{
    if (to == MCO_NO_HOLDER)
        to = mco_place(d, e, from);
    if (to == MCO_NO_HOLDER || add(d, e, MCO_ORDER_MOVE, to, from, &e->version) == NULL)
        return false;
    d->members[to]->info.used += e->size;
    return true;
}

static bool room_anywhere(const struct mco_directory *d, uint64_t size)
{
    bool any = false;

    for (uint32_t i = 0; i < d->nmembers && !any; i++)
        any = d->members[i] != NULL && fits(d->members[i], size);
    return any;
}

void mco_duties_place(struct mco_directory *d, struct mco_entry *e, uint32_t preferred)
{
    unsigned have = 0;
    uint32_t at;

    if (preferred != MCO_NO_HOLDER && !taken(e, preferred) &&
        fits(d->members[preferred], e->size)) {
        if (e->copies <= 1)
            mco_duty_move(d, e, e->holders[0] & MCO_SLOT_HOLDER, preferred);
        else
            copy_to(d, e, preferred, 0);
    }
    for (int i = 0; i < e->nholders; i++)
        have += d->members[e->holders[i] & MCO_SLOT_HOLDER]->state != MCO_HOLDER_GONE;
    for (const struct mco_duty *y = e->duties; y != NULL; y = y->next)
        have += y->kind == MCO_ORDER_COPY;
    for (; have < e->copies; have++) {
        at = mco_place(d, e, MCO_NO_HOLDER);
        if (at == MCO_NO_HOLDER) {
            d->lacking = true;
            if (e->size < d->no_room && !room_anywhere(d, e->size))
                d->no_room = e->size;
            return;
        }
        copy_to(d, e, at, 0);
    }
}

/* ---- places that were asked for ----------------------------------------------------------------- */

/* Off this one: another has it. */
static void leave_place(struct mco_directory *d, struct mco_entry *e, int slot)
{
    uint32_t holder = e->holders[slot] & MCO_SLOT_HOLDER;

    mco_entry_drop(d, e, slot);
    mco_duty_drop(d, e, holder, &e->version);
}

static enum mcs_status place_new(struct mco_directory *d, struct mco_entry *e, uint32_t from,
                                 uint32_t to)
{
    unsigned have = e->nholders;

    if (taken(e, to))
        return MCS_IN_USE;
    if (!fits(d->members[to], e->size))
        return d->members[to]->state == MCO_HOLDER_HERE && d->members[to]->connected
                   ? MCS_NO_SPACE
                   : MCS_PEER_UNREACHABLE;
    if (from != MCO_NO_HOLDER) {
        for (const struct mco_duty *y = e->duties; y != NULL; y = y->next)
            if (y->kind == MCO_ORDER_MOVE && y->from == from)
                return MCS_IN_USE;
        return mco_duty_move(d, e, from, to) ? MCS_OK : MCS_NO_MEMORY;
    }
    for (const struct mco_duty *y = e->duties; y != NULL; y = y->next)
        have += y->kind == MCO_ORDER_COPY;
    if (have >= MCS_REPLICAS_MAX)
        return MCS_LIMIT;
    copy_to(d, e, to, TRIES); /* there, and nowhere else */
    if (mco_duty_of(e, to, MCO_ORDER_COPY) == NULL)
        return MCS_NO_MEMORY;
    if (e->copies <= have)
        e->copies = (uint8_t)(have + 1);
    return MCS_OK;
}

enum mcs_status mco_directory_place(struct mco_directory *d, const struct mco_key *key,
                                    uint32_t from, uint32_t to, uint64_t now)
{
    struct mco_entry *e = mco_entry_find(d, key);
    struct mco_found_at f;
    int slot;

    mco_directory_find(d, key, 1, now, &f);
    if (f.status != MCS_OK)
        return (enum mcs_status)f.status;
    if (mco_member(d, to) == NULL || (from != MCO_NO_HOLDER && mco_member(d, from) == NULL))
        return MCS_NOT_FOUND;
    if (mco_directory_placed(d, key, from, to) != MCO_NOT_PLACED)
        return MCS_OK;
    slot = from == MCO_NO_HOLDER ? -1 : mco_entry_slot(e, from);
    if (from != MCO_NO_HOLDER && slot < 0)
        return MCS_NOT_FOUND;
    if (from != MCO_NO_HOLDER && !mco_here(d, from))
        return MCS_PEER_UNREACHABLE;
    if (mco_entry_slot(e, to) < 0)
        return place_new(d, e, from, to);
    if (from != MCO_NO_HOLDER && from != to) { /* both have it */
        leave_place(d, e, slot);
        if (e->copies > e->nholders)
            e->copies = e->nholders;
    }
    return MCS_OK;
}

enum mco_placed mco_directory_placed(const struct mco_directory *d, const struct mco_key *key,
                                     uint32_t from, uint32_t to)
{
    const struct mco_entry *e = mco_entry_find(d, key);
    bool apart = from != MCO_NO_HOLDER && from != to;

    if (e == NULL || e->nholders == 0)
        return MCO_NOT_PLACED;
    for (const struct mco_duty *y = e->duties; y != NULL; y = y->next)
        if ((y->holder == to && y->kind == (apart ? MCO_ORDER_MOVE : MCO_ORDER_COPY) &&
             (!apart || y->from == from)) ||
            (apart && y->holder == from && y->kind == MCO_ORDER_DROP && mco_here(d, from)))
            return MCO_PLACING;
    if (mco_entry_slot(e, to) < 0 || (apart && mco_entry_slot(e, from) >= 0))
        return MCO_NOT_PLACED;
    return MCO_PLACED;
}

/* ---- orders ------------------------------------------------------------------------------------ */

static uint32_t source(const struct mco_directory *d, const struct mco_duty *y)
{
    const struct mco_entry *e = y->e;
    uint32_t found = MCO_NO_HOLDER;

    if (mco_version_compare(&e->version, &y->version) != 0)
        return MCO_NO_HOLDER;
    if (y->kind == MCO_ORDER_MOVE)
        return mco_entry_slot(e, y->from) >= 0 && mco_here(d, y->from) ? y->from : MCO_NO_HOLDER;
    for (int i = 0; i < e->nholders; i++)
        if (mco_here(d, e->holders[i] & MCO_SLOT_HOLDER) &&
            (found == MCO_NO_HOLDER || !(e->holders[i] & MCO_SLOT_DISK)))
            found = e->holders[i] & MCO_SLOT_HOLDER;
    return found;
}

static bool give(struct mco_directory *d, struct mco_member *h, unsigned list, uint64_t now,
                 struct mco_order *out)
{
    struct mco_duty *y = h->due[list].first;
    struct mco_entry *e = y->e;
    uint32_t from = list == DROPS ? MCO_NO_HOLDER : source(d, y);

    if (list == COPIES && from == MCO_NO_HOLDER) {
        mco_duty_end(d, y);
        d->repair = true; /* perhaps another can give it */
        mco_entry_settle(d, e);
        return false;
    }
    take(&h->due[list], y);
    append(&h->given[list], y);
    h->ngiven[list]++;
    y->given = now != 0 ? now : 1;
    y->once = true;
    out->kind = y->kind;
    out->holder = y->holder;
    out->from = from;
    out->version = y->version;
    out->tenant = e->tenant;
    out->size = e->size;
    out->crc = e->crc;
    out->length = e->length;
    memcpy(out->key, e->key, e->length);
    d->stats.orders++;
    return true;
}

bool mco_directory_next_order(struct mco_directory *d, uint64_t now, struct mco_order *out)
{
    struct mco_member *h;
    bool given = false;

    /* one holder's drops, then its copies, then the next one's: they go well into one message */
    for (uint32_t n = 0; !given && n < d->nmembers; n++) {
        if (d->turn >= d->nmembers)
            d->turn = 0;
        h = d->members[d->turn];
        if (h != NULL && h->connected && h->state <= MCO_HOLDER_HERE) {
            while (!given && h->due[DROPS].first != NULL && h->ngiven[DROPS] < GIVEN_DROPS)
                given = give(d, h, DROPS, now, out);
            while (!given && h->due[COPIES].first != NULL && h->ngiven[COPIES] < GIVEN_COPIES)
                given = give(d, h, COPIES, now, out);
        }
        if (!given)
            d->turn++;
    }
    return given;
}

static void copied(struct mco_directory *d, struct mco_duty *y)
{
    struct mco_entry *e = y->e;
    uint32_t holder = y->holder, from = y->from;
    struct mco_version version = y->version;
    bool moved = y->kind == MCO_ORDER_MOVE;
    int slot;

    mco_duty_end(d, y);
    if (mco_version_compare(&version, &e->version) != 0 || !mco_entry_add(d, e, holder, false)) {
        mco_duty_drop(d, e, holder, &version);
        return;
    }
    slot = moved ? mco_entry_slot(e, from) : -1;
    if (slot >= 0) {
        mco_entry_drop(d, e, slot);
        mco_duty_drop(d, e, from, &version);
    }
}

static void not_copied(struct mco_directory *d, struct mco_duty *y)
{
    struct mco_entry *e = y->e;
    uint32_t but = y->holder, at;
    uint8_t tries = (uint8_t)(y->tries + 1);
    bool again = y->kind == MCO_ORDER_COPY && tries < TRIES && e->nholders != 0 &&
                 mco_version_compare(&y->version, &e->version) == 0;

    mco_duty_end(d, y);
    at = again ? mco_place(d, e, but) : MCO_NO_HOLDER;
    if (at != MCO_NO_HOLDER)
        copy_to(d, e, at, tries);
    else
        d->lacking = true;
    d->stats.refused++;
}

void mco_directory_done(struct mco_directory *d, const struct mco_order *o, uint32_t status,
                        uint64_t now)
{
    struct mco_key key = mco_key(o->tenant, o->key, o->length);
    struct mco_entry *e = mco_entry_find(d, &key);
    struct mco_duty *y = e == NULL ? NULL : mco_duty_of(e, o->holder, o->kind);
    bool gone = status == MCS_OK || status == MCS_NOT_FOUND;

    if (mco_member(d, o->holder) != NULL)
        mco_directory_heard(d, o->holder, now);
    if (y == NULL || y->given == 0 || mco_version_compare(&y->version, &o->version) != 0)
        return;
    if (o->kind != MCO_ORDER_DROP && (status == MCS_OK || status == MCS_EXISTS))
        copied(d, y);
    else if (o->kind != MCO_ORDER_DROP)
        not_copied(d, y);
    else if (gone)
        mco_duty_end(d, y);
    mco_entry_settle(d, e);
    mco_graves_trim(d);
}

void mco_duties_late(struct mco_directory *d, uint64_t now)
{
    const uint64_t limit[2] = {d->o.put_ns, d->o.away_ns};
    struct mco_duty *y;

    for (uint32_t n = 0; n < d->nmembers; n++)
        for (unsigned i = 0; d->members[n] != NULL && i < 2; i++)
            while ((y = d->members[n]->given[i].first) != NULL && now - y->given >= limit[i])
                make_due(d, y);
}
