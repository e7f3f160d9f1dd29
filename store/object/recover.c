/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an earlier life has left: records that are whole, lie in extents that came back, and overlap with none, are objects
 * again.  What sessions of that life may still read or write in place is kept as it is ("guarded") until they are gone.
 * Before anybody else uses the store, mco_unguard() excepted.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define SOME 256u

/* ---- extents ---------------------------------------------------------------------------------- */

int mco_extents_load(struct mco_store *s)
{
    struct mco_table *t = &s->table;
    struct mco_space *sp;
    int res = 0;

    t->free_extent = MCO_NONE;
    for (uint32_t i = t->nextents; i-- > 0 && res == 0;) {
        struct mco_extent_record *r = &t->extents[i];
        struct mco_extent e = {.id = r->id,
                               .open = r->open == 1,
                               .tenant = r->tenant,
                               .size = r->size,
                               .page_size = r->page_size,
                               .address = r->address,
                               .ino = r->ino,
                               .dev = r->dev,
                               .node = r->node};

        if (mco_extent_record_sound(s, i) && mco_space_by_id(s, r->id) == NULL) {
            res = mco_space_new(s, &e, i, false, &sp);
            while (res == 0 && (uint32_t)t->head->extent_ids < r->id)
                if (mco_extent_id(s) == 0)
                    break;
        } else {
            r->check = 0;
            r->more[0] = t->free_extent;
            t->free_extent = i;
        }
    }
    return res;
}

void mco_extents_kept(struct mco_store *s, bool (*each)(void *context, const struct mco_extent *e),
                      void *context)
{
    for (uint32_t i = 0; i < s->nspaces; i++)
        if (s->spaces[i].e.id != 0 && !s->spaces[i].there && !each(context, &s->spaces[i].e))
            break;
}

void mco_extent_back(struct mco_store *s, uint32_t id, void *map, void *owner)
{
    struct mco_space *sp = mco_space_by_id(s, id);

    if (sp == NULL)
        return;
    sp->e.map = map;
    sp->e.owner = owner;
    sp->there = true;
}

void mco_extent_lost(struct mco_store *s, uint32_t id)
{
    struct mco_space *sp = mco_space_by_id(s, id);

    if (sp == NULL || sp->count != 0)
        return;
    mco_extent_record_free(s, sp->record);
    mco_space_gone(s, sp);
}

/* ---- records ------------------------------------------------------------------------------------ */

struct found {
    uint64_t token, sequence;
    uint32_t space, offset, units, n;
    bool drop;
};

static int by_place(const void *a, const void *b)
{
    const struct found *x = a, *y = b;

    if (x->space != y->space)
        return x->space < y->space ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int by_age(const void *a, const void *b)
{
    const struct found *x = a, *y = b;

    if (x->token != y->token)
        return x->token < y->token ? -1 : 1;
    if (x->sequence != y->sequence)
        return x->sequence < y->sequence ? -1 : 1;
    return x->n < y->n ? -1 : x->n > y->n;
}

/* Does it lie in an extent as its record says? */
static bool in_its_place(const struct mco_store *s, uint32_t n, struct found *f)
{
    const struct mco_record *r = mco_record_at(s, n);
    const struct mco_space *sp = mco_space_by_id(s, r->extent);
    uint64_t units;

    *f = (struct found){r->token, r->sequence, MCO_NONE, 0, 0, n, false};
    if (r->left == MCO_AWAY)
        return r->in_place == 0;
    if (r->size == 0)
        return r->extent == 0;
    if (sp == NULL || !sp->there || sp->e.tenant != r->tenant ||
        sp->e.open != ((r->flags & MCO_OPEN) != 0) || r->size > sp->e.size)
        return false;
    units = mco_rounded(r->size) / MCO_UNIT;
    f->space = (uint32_t)(sp - s->spaces);
    f->offset = r->offset;
    f->units = (uint32_t)units;
    return r->offset + units <= sp->e.size / MCO_UNIT;
}

/* Which records are worth to be looked at; the others are free. */
static size_t gather(struct mco_store *s, struct found *all, uint64_t *seen,
                     struct mco_recovered *out)
{
    struct mco_table *t = &s->table;
    size_t count = 0;

    for (uint32_t n = 0; n < t->nrecords; n++) {
        struct mco_record *r = &t->records[n];

        r->state = MCO_FREE;
        if (r->check == 0)
            continue;
        if (!mco_record_sound(s, n, seen) || !in_its_place(s, n, &all[count])) {
            out->torn++;
            continue;
        }
        if (r->left == MCO_AWAY && s->o.tier == NULL)
            continue;
        if (r->in_place == 0 &&
            (r->left == MCO_GONE || (r->sealed == 0 && (r->flags & MCO_OPEN) == 0))) {
            out->unfinished += r->left != MCO_GONE;
            continue;
        }
        count++;
    }
    return count;
}

/* Of those that claim the same bytes none is believed. */
static void drop_overlaps(struct found *all, size_t count, struct mco_recovered *out)
{
    size_t last = 0; /* the one that reaches furthest in its extent */

    for (size_t i = 1; i < count; i++) {
        if (all[i].space == MCO_NONE)
            break;
        if (all[i].space == all[last].space && all[i].offset < all[last].offset + all[last].units) {
            out->torn += !all[i].drop + !all[last].drop;
            all[i].drop = all[last].drop = true;
            if (all[i].offset + all[i].units > all[last].offset + all[last].units)
                last = i;
        } else {
            last = i;
        }
    }
}

static void guard(struct mco_store *s, uint32_t n, struct mco_recovered *out)
{
    struct mco_record *r = mco_record_at(s, n);

    r->marks |= MCO_GUARDED;
    s->guards[s->nguards++] = (struct mco_guard){n, r->in_place};
    out->guarded++;
}

/* It is nobody's any more, but sessions may be in it. */
static void keep(struct mco_store *s, uint32_t n, struct mco_recovered *out)
{
    struct mco_record *r = mco_record_at(s, n);

    r->left = MCO_GONE;
    r->marks |= MCO_KEEPS;
    r->state = MCO_LEAVING;
    mco_ring_add(s, &s->leaving, n);
    s->stats.leaving++;
    guard(s, n, out);
}

/* In rising age; of two of one key the later one stays. */
static void enter(struct mco_store *s, uint32_t n, uint8_t *bytes, struct mco_recovered *out)
{
    struct mco_record *r = mco_record_at(s, n);
    struct mco_hint hint = {.position = MCO_POSITION_NONE};
    struct mco_shard *sh;
    struct mco_key key;
    uint32_t old;

    mco_record_key(s, n, bytes);
    key = mco_key(r->tenant, bytes, r->key_length);
    s->entries[n].hash = key.hash;
    if (r->token == 0)
        mco_sequence_beyond(s, r->sequence);
    sh = mco_shard_of(s, key.hash);
    if (r->left == MCO_GONE || r->sealed == 0) {
        if (r->sealed == 0)
            out->unfinished += r->left == 0;
        keep(s, n, out);
        return;
    }
    old = mco_index_find(s, sh, &key, MCO_STATES_SEALED);
    if (old != MCO_NONE && mco_record_at(s, old)->state == MCO_AWAITED) {
        mco_ring_remove(s, old);
        mco_index_remove(s, sh, old);
        mco_record_at(s, old)->state = MCO_FREE;
        mco_record_free(s, old);
    } else if (old != MCO_NONE) { /* died between the two stores of a replacement */
        mco_unorder(s, old, false);
        mco_group_remove(s, old);
        mco_counted(s, old, false);
        out->objects--;
        out->bytes -= mco_record_at(s, old)->size;
        mco_index_remove(s, sh, old);
        if ((mco_record_at(s, old)->marks & MCO_GUARDED) != 0) {
            s->nguards--; /* it is noted anew; the places of guards do not matter */
            for (size_t i = 0; i < s->nguards; i++)
                if (s->guards[i].object == old)
                    s->guards[i] = s->guards[s->nguards];
            out->guarded--;
            keep(s, old, out);
        } else {
            mco_record_at(s, old)->state = MCO_FREE;
            mco_record_invalid(s, old);
            mco_space_give(s, old, NULL); /* an extent that it leaves empty is there to be used */
            mco_record_free(s, old);
        }
    }
    r->state = r->left == MCO_AWAY ? MCO_AWAITED : MCO_MEMORY;
    mco_index_add(s, sh, n);
    if (r->left == MCO_AWAY) {
        mco_ring_add(s, &s->awaited, n);
        return;
    }
    if (mco_group_add(s, n) != 0 && s->o.log != NULL)
        s->o.log(1, "store: no memory for a group of objects: its members go alone");
    mco_order(s, n, &hint);
    mco_counted(s, n, true);
    out->objects++;
    out->bytes += r->size;
    if (r->in_place != 0)
        guard(s, n, out);
}

/* What of a record is of this life only. */
static void refresh(struct mco_store *s, uint32_t n)
{
    struct mco_record *r = mco_record_at(s, n);

    r->marks = 0;
    r->pins = 0;
    r->node = MCO_NONE;
    r->lease_until = 0;
    r->place = MCO_NO_PLACE;
    if (r->copies == 0)
        r->copies = 1;
    s->entries[n] = (struct mco_policy_entry){.hash = 0};
}

/* Everything that was not kept is free. */
static void free_rest(struct mco_store *s, const uint64_t *seen, const uint64_t *kept)
{
    struct mco_table *t = &s->table;

    t->free_record = t->free_cont = MCO_NONE;
    t->records_used = t->conts_used = 0;
    for (uint32_t n = t->nrecords; n-- > 0;) {
        if ((kept[n / 64] >> n % 64 & 1) != 0) {
            t->records_used++;
            continue;
        }
        t->records[n].check = 0;
        t->next[n] = t->free_record;
        t->free_record = n;
    }
    for (uint32_t c = t->nconts; c-- > 0;) {
        if ((seen[c / 64] >> c % 64 & 1) != 0) {
            t->conts_used++;
            continue;
        }
        t->conts[c].next = t->free_cont;
        t->free_cont = c;
    }
}

static void recover(struct mco_store *s, struct found *all, uint64_t *seen, uint64_t *kept,
                    struct mco_recovered *out)
{
    size_t count = gather(s, all, seen, out), left = 0;
    uint8_t *bytes = s->key;

    qsort(all, count, sizeof(*all), by_place);
    drop_overlaps(all, count, out);
    for (size_t i = 0; i < count; i++) {
        struct found *f = &all[i];
        struct mco_tenant *t;

        refresh(s, f->n);
        t = mco_tenant_get(s, mco_record_at(s, f->n)->tenant);
        if (t == NULL ||
            mco_arena_ready(s, &t->arenas[(mco_record_at(s, f->n)->flags & MCO_OPEN) != 0]) != 0)
            f->drop = true;
        if (!f->drop && f->space != MCO_NONE &&
            !mco_space_take_at(s, &s->spaces[f->space], f->offset, f->units, f->n))
            f->drop = true;
        if (f->drop)
            continue;
        kept[f->n / 64] |= UINT64_C(1) << f->n % 64;
        t->records++;
        all[left++] = *f;
    }
    memset(seen, 0, ((size_t)s->table.nconts + 63) / 64 * 8);
    for (size_t i = 0; i < left; i++)
        for (uint32_t at = mco_record_at(s, all[i].n)->cont; at != MCO_NONE;
             at = s->table.conts[at].next)
            seen[at / 64] |= UINT64_C(1) << at % 64;
    free_rest(s, seen, kept);
    qsort(all, left, sizeof(*all), by_age);
    for (size_t i = 0; i < left; i++)
        enter(s, all[i].n, bytes, out);
}

void mco_recover(struct mco_store *s, struct mco_recovered *out)
{
    struct mco_table *t = &s->table;
    struct found *all = calloc((size_t)t->nrecords + 1, sizeof(*all));
    uint64_t *seen = calloc((size_t)t->nconts / 64 + 1, sizeof(*seen));
    uint64_t *kept = calloc((size_t)t->nrecords / 64 + 1, sizeof(*kept));

    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < s->nspaces; i++)
        if (s->spaces[i].e.id != 0 && !s->spaces[i].there)
            mco_extent_lost(s, s->spaces[i].e.id);
    s->guards = calloc((size_t)t->nrecords + 1, sizeof(*s->guards));
    if (all != NULL && seen != NULL && kept != NULL && s->guards != NULL) {
        recover(s, all, seen, kept, out);
    } else {
        if (s->o.log != NULL)
            s->o.log(0, "store: no memory to recover %u records: objects are lost", t->nrecords);
        t->nrecords = t->nconts = 0; /* not touched any more */
        t->max_records = t->max_conts = 0;
    }
    for (uint32_t i = 0; i < s->nspaces; i++)
        if (s->spaces[i].e.id != 0 && !s->spaces[i].idle)
            mco_space_drain(s, &s->spaces[i], false);
    free(all);
    free(seen);
    free(kept);
}

void mco_unguard(struct mco_store *s)
{
    struct mco_after after;
    size_t left = 1;

    while (left > 0) {
        mco_after_init(&after);
        mco_lock(&s->lock);
        for (unsigned i = 0; i < SOME && s->nguards > 0; i++) {
            struct mco_guard *g = &s->guards[--s->nguards];
            struct mco_record *r = mco_record_at(s, g->object);
            struct mco_shard *sh = mco_shard_of(s, s->entries[g->object].hash);

            mco_lock(&sh->lock);
            mcs_store_relaxed(&r->in_place, r->in_place - g->in_place); /* as mco_pin_in_place() */
            r->marks &= (uint8_t)~MCO_GUARDED;
            mco_unlock(&sh->lock);
            (void)mco_free_left(s, g->object, mco_clock(), &after);
        }
        left = s->nguards;
        mco_space_freed(s, &after);
        mco_unlock(&s->lock);
        mco_run_after(s, &after);
    }
}
