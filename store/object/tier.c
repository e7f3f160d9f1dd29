/* SPDX-License-Identifier: Apache-2.0 */
/* To disk before it is dropped, and back when it is asked for. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define STALL_NS UINT64_C(5000000000)
#define EARLY_BITS (UINT64_C(1) << 23)

/* ---- place -> object ---------------------------------------------------------------------------- */

struct mco_places {
    uint32_t *slots; /* open addressing, a power of two */
    uint32_t size, used;
};

static uint32_t slot_of(const struct mco_places *p, uint64_t place)
{
    return (uint32_t)(place * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (p->size - 1);
}

static void slot_put(const struct mco_store *s, uint32_t n)
{
    struct mco_places *p = s->places;
    uint32_t i = slot_of(p, mco_record_at(s, n)->place);

    while (p->slots[i] != MCO_NONE)
        i = (i + 1) & (p->size - 1);
    p->slots[i] = n;
}

static int place_add(struct mco_store *s, uint32_t n)
{
    struct mco_places *p = s->places;

    if (p == NULL)
        p = s->places = calloc(1, sizeof(*p));
    if (p == NULL)
        return -ENOMEM;
    if (p->used * 2 >= p->size) {
        uint32_t old = p->size, size = old == 0 ? 256 : old * 2, *from = p->slots;
        uint32_t *to = malloc(size * sizeof(*to));

        if (to == NULL)
            return -ENOMEM;
        memset(to, 0xff, size * sizeof(*to));
        p->slots = to;
        p->size = size;
        for (uint32_t i = 0; i < old; i++)
            if (from[i] != MCO_NONE)
                slot_put(s, from[i]);
        free(from);
    }
    slot_put(s, n);
    p->used++;
    return 0;
}

static uint32_t place_slot(const struct mco_store *s, uint64_t place)
{
    const struct mco_places *p = s->places;

    if (p == NULL || p->size == 0)
        return MCO_NONE;
    for (uint32_t i = slot_of(p, place); p->slots[i] != MCO_NONE; i = (i + 1) & (p->size - 1))
        if (mco_record_at(s, p->slots[i])->place == place)
            return i;
    return MCO_NONE;
}

void mco_place_remove(struct mco_store *s, uint64_t place)
{
    struct mco_places *p = s->places;
    uint32_t i = place_slot(s, place);

    if (i == MCO_NONE)
        return;
    p->slots[i] = MCO_NONE;
    p->used--;
    for (i = (i + 1) & (p->size - 1); p->slots[i] != MCO_NONE; i = (i + 1) & (p->size - 1)) {
        uint32_t moved = p->slots[i];

        p->slots[i] = MCO_NONE;
        slot_put(s, moved);
    }
}

void mco_places_free(struct mco_store *s)
{
    if (s->places != NULL)
        free(s->places->slots);
    free(s->places);
}

/* It is on disk at `place`. -ENOMEM: it is as before. */
static int put_place(struct mco_store *s, uint32_t n, uint64_t place)
{
    struct mco_record *r = mco_record_at(s, n);
    int res;

    r->place = place;
    res = place_add(s, n);
    if (res != 0)
        r->place = MCO_NO_PLACE;
    else
        mco_counted_on_disk(s, n, true);
    return res;
}

/* Under s->lock. It is not to be had from disk any more. */
static void forget_place(struct mco_store *s, uint32_t n)
{
    struct mco_record *r = mco_record_at(s, n);

    mco_place_remove(s, r->place);
    r->place = MCO_NO_PLACE;
    mco_counted_on_disk(s, n, false);
}

void mco_place_drop(struct mco_store *s, uint32_t n, struct mco_after *after)
{
    struct mco_record *r = mco_record_at(s, n);

    if (r->place == MCO_NO_PLACE)
        return;
    after->place[after->places++] = r->place;
    forget_place(s, n);
}

static struct mco_key key_at(const struct mco_store *s, uint32_t n, uint8_t *bytes)
{
    const struct mco_record *r = mco_record_at(s, n);

    mco_record_key(s, n, bytes);
    return (struct mco_key){bytes, r->key_length, r->tenant, s->entries[n].hash};
}

/* ---- to disk ------------------------------------------------------------------------------------- */

bool mco_offload(struct mco_store *s, uint32_t n, bool goes, struct mco_after *after)
{
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    struct mco_record *r = mco_record_at(s, n);

    if (after->offloads == MCO_OFFLOADS)
        return false;
    mco_lock(&sh->lock);
    r->state = MCO_OFFLOADING;
    mco_pin_more(sh, r);
    r->marks |= (uint8_t)(MCO_GOES | (goes ? MCO_URGENT : 0));
    mco_unlock(&sh->lock);
    if (s->offloading++ == 0)
        s->disk_moved = mco_clock();
    after->offload[after->offloads++] = n;
    mco_arena_of(s, n)->going += s->entries[n].size;
    return true;
}

bool mco_disk_stalls(const struct mco_store *s, uint64_t now)
{
    return s->offloading != 0 && now > s->disk_moved && now - s->disk_moved > STALL_NS;
}

/* Without locks: they are pinned. */
void mco_run_offloads(struct mco_store *s, struct mco_after *after)
{
    uint8_t bytes[MCS_KEY_MAX];

    for (unsigned i = 0; i < after->offloads; i++) {
        uint32_t n = after->offload[i];
        struct mco_key key = key_at(s, n, bytes);
        struct mco_view v;
        int res;

        mco_fill_view(s, n, &v);
        res = s->o.tier->offload(s->o.tier_context, &key, &v);
        if (res != 0)
            mco_offloaded(s, v.object, res, MCO_NO_PLACE);
    }
    after->offloads = 0;
}

void mco_offloaded(struct mco_store *s, struct mco_object *o, int res, uint64_t place)
{
    uint32_t n = mco_number(s, o);
    struct mco_record *r = mco_record_at(s, n);
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    uint64_t now = mco_clock();
    struct mco_after after;
    bool urgent, goes, left;

    mco_after_init(&after);
    mco_lock(&s->lock);
    goes = (r->marks & MCO_GOES) != 0;
    urgent = (r->marks & MCO_URGENT) != 0;
    left = r->state != MCO_OFFLOADING;
    mco_arena_of(s, n)->going -= s->entries[n].size;
    s->offloading--;
    if (res != -EBUSY)
        s->disk_moved = now;
    if (res == 0) {
        if (!left)
            res = put_place(s, n, place);
        if (left || res != 0) /* nobody will ask for it there */
            after.place[after.places++] = place;
    }
    mco_lock(&sh->lock);
    r->marks &= (uint8_t) ~(MCO_GOES | MCO_URGENT);
    (void)mco_pin_less(sh, r);
    if (!left)
        r->state = res == 0 ? MCO_BOTH : MCO_MEMORY;
    mco_unlock(&sh->lock);
    if (res == 0) {
        s->stats.offloads++;
        s->stats.offload_bytes += r->size;
    } else {
        s->stats.offload_refused++;
    }
    if (left)
        (void)mco_free_left(s, n, now, &after);
    else if (res == -EBUSY ? urgent : goes) /* who is in no hurry waits for a disk that is busy */
        (void)mco_evict_one(s, n, now, res != 0, &after); /* if nobody has come for it */
    mco_space_freed(s, &after);
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
}

/* ---- damaged there ------------------------------------------------------------------------------- */

void mco_spoil(struct mco_store *s, uint64_t hash)
{
    s->spoiled[s->next_spoiled++ % MCO_SPOILED] = hash;
    mcs_store_relaxed(&s->nspoiled,
                      1u); /* partner: mco_pin(), which looks here when it finds nothing */
}

bool mco_is_spoiled(struct mco_store *s, uint64_t hash)
{
    bool found = false, left = false;

    mco_lock(&s->lock);
    for (unsigned i = 0; i < MCO_SPOILED; i++) {
        if (s->spoiled[i] == hash) {
            s->spoiled[i] = 0;
            found = true;
        }
        left = left || s->spoiled[i] != 0;
    }
    mcs_store_relaxed(&s->nspoiled, left ? 1u : 0u); /* as in mco_spoil() */
    mco_unlock(&s->lock);
    return found;
}

/* ---- and back ------------------------------------------------------------------------------------- */

/* It is as it was before. */
static void unfetch(struct mco_store *s, uint32_t n, struct mco_after *after)
{
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    struct mco_record *r = mco_record_at(s, n);
    bool left;

    mco_lock(&sh->lock);
    (void)mco_pin_less(sh, r);
    left = r->state != MCO_FETCHING;
    if (!left)
        r->state = MCO_DISK;
    mco_unlock(&sh->lock);
    if (left) {
        (void)mco_free_left(s, n, mco_clock(), after);
        return;
    }
    mco_space_give(s, n, after);
    mco_ring_add(s, &s->on_disk, n);
    if (r->place == MCO_NO_PLACE) /* lost while it was fetched */
        mco_leave(s, n, MCO_DAMAGED, mco_clock(), after);
}

/* Those who wait try again when something else has ended, or upkeep comes by, and not at once, over and over. */
static void later(struct mco_store *s, struct mco_after *after)
{
    after->ready = false;
    mcs_store_relaxed(&s->waiting, 1u); /* as in mco_make_space() */
}

enum mcs_status mco_fetch(struct mco_store *s, const struct mco_key *key, uint64_t now)
{
    struct mco_shard *sh = mco_shard_of(s, key->hash);
    enum mcs_status status = MCS_NOT_FOUND;
    uint64_t place = MCO_NO_PLACE;
    struct mco_after after;
    bool fetch = false;
    struct mco_view v;
    uint32_t n;
    int res;

    mco_after_init(&after);
    mco_lock(&s->lock);
    mco_lock(&sh->lock);
    n = mco_index_find(s, sh, key, MCO_STATES_SEALED);
    mco_unlock(&sh->lock);
    if (n != MCO_NONE)
        status = mco_in_memory(mco_record_at(s, n)->state) ? MCS_OK : MCS_BUSY;
    if (status == MCS_BUSY)
        mcs_store_relaxed(&s->waiting, 1u); /* under the lock, as mco_fetched() is */
    if (status == MCS_BUSY && mco_record_at(s, n)->state == MCO_DISK) {
        struct mco_record *r = mco_record_at(s, n);

        mco_record_valid(s, n, false); /* its range is about to change */
        status = mco_take_space(s, mco_arena_of(s, n), n, r->size, now, &after);
        if ((status == MCS_NO_SPACE || status == MCS_LIMIT) &&
            mco_leases_end(s, status == MCS_LIMIT ? mco_arena_of(s, n)->tenant : NULL, now))
            status = MCS_BUSY;
        fetch = status == MCS_OK;
        if (fetch) {
            place = r->place;
            mco_ring_remove(s, n);
            mco_lock(&sh->lock);
            r->state = MCO_FETCHING;
            mco_pin_more(sh, r);
            mco_unlock(&sh->lock);
            mco_fill_view(s, n, &v);
            status = MCS_BUSY;
        }
    }
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
    if (!fetch)
        return status;
    res = s->o.tier->fetch(s->o.tier_context, key, place, &v);
    if (res != 0) {
        mco_after_init(&after);
        mco_lock(&s->lock);
        unfetch(s, n, &after);
        if (res == -EBUSY)
            later(s, &after);
        mco_unlock(&s->lock);
        mco_run_after(s, &after);
        status = res == -EBUSY ? MCS_BUSY : MCS_DISK;
    }
    return status;
}

void mco_fetched(struct mco_store *s, struct mco_object *o, int res)
{
    uint32_t n = mco_number(s, o);
    struct mco_record *r = mco_record_at(s, n);
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    struct mco_hint hint = {.now_ns = mco_clock(), .position = MCO_POSITION_NONE};
    struct mco_after after;
    bool left;

    mco_after_init(&after);
    mco_lock(&s->lock);
    if (res == -EBUSY) {
        unfetch(s, n, &after);
        later(s, &after);
        mco_unlock(&s->lock);
        mco_run_after(s, &after);
        return;
    }
    left = r->state != MCO_FETCHING;
    mco_lock(&sh->lock);
    (void)mco_pin_less(sh, r);
    if (!left && res == 0) {
        mco_record_valid(s, n, true);
        mco_record_left(s, n, 0);
        r->state = r->place != MCO_NO_PLACE ? MCO_BOTH : MCO_MEMORY;
    }
    mco_unlock(&sh->lock);
    if (left) {
        (void)mco_free_left(s, n, hint.now_ns, &after);
    } else if (res == 0) {
        s->stats.fetches++;
        s->stats.fetch_bytes += r->size;
        mco_counted(s, n, true);
        mco_order(s, n, &hint);
        (void)mco_group_add(s, n); /* without memory it goes alone */
        mco_tell(s, n, MCO_TO_MEMORY);
    } else {
        s->stats.damaged++;
        if (res == -EBADMSG)
            mco_spoil(s, s->entries[n].hash);
        mco_leave(s, n, MCO_DAMAGED, hint.now_ns, &after);
    }
    mco_space_freed(s, &after);
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
}

/* ---- what is found there, what is lost there -------------------------------------------------------- */

/* A record of its own. */
static bool enter_disk(struct mco_store *s, const struct mco_key *key,
                       const struct mco_version *version, uint64_t size, uint32_t crc, bool summed,
                       uint64_t place)
{
    struct mco_shard *sh = mco_shard_of(s, key->hash);
    struct mco_tenant *t = mco_tenant_get(s, key->tenant);
    uint32_t n =
        t == NULL || mco_arena_ready(s, &t->arenas[0]) != 0 ? MCO_NONE : mco_record_new(s, key, 0);
    struct mco_record *r;

    if (n == MCO_NONE)
        return false;
    r = mco_record_at(s, n);
    r->token = version->token;
    r->sequence = version->sequence;
    r->size = size;
    r->copies = 1;
    r->left = MCO_AWAY;
    mco_record_seal(s, n, crc, summed);
    if (put_place(s, n, place) != 0) {
        mco_record_free(s, n);
        return false;
    }
    if (version->token == 0)
        mco_sequence_beyond(s, version->sequence);
    mco_record_valid(s, n, false);
    mco_lock(&sh->lock);
    r->state = MCO_DISK;
    mco_index_add(s, sh, n);
    mco_unlock(&sh->lock);
    mco_ring_add(s, &s->on_disk, n);
    mco_tell(s, n, MCO_TO_DISK);
    return true;
}

/* The table of an earlier life says what to expect, and nothing else is wanted. */
static bool enter_awaited(struct mco_store *s, const struct mco_key *key,
                          const struct mco_version *version, uint64_t size, uint32_t crc,
                          uint64_t place)
{
    struct mco_shard *sh = mco_shard_of(s, key->hash);
    struct mco_version there;
    struct mco_record *r;
    uint32_t n;

    mco_lock(&sh->lock);
    n = mco_index_find(s, sh, key, 1u << MCO_AWAITED);
    mco_unlock(&sh->lock);
    if (n == MCO_NONE)
        return false;
    r = mco_record_at(s, n);
    there = mco_record_version(r);
    if (mco_version_compare(&there, version) != 0 || r->size != size ||
        (mco_record_summed(r) && r->crc != crc) || put_place(s, n, place) != 0)
        return false;
    mco_ring_remove(s, n);
    mco_set_state(s, n, MCO_DISK);
    mco_ring_add(s, &s->on_disk, n);
    mco_tell(s, n, MCO_TO_DISK);
    return true;
}

int mco_early_create(struct mco_store *s)
{
    if (s->o.tier == NULL || s->adopted)
        return 0;
    s->early = calloc(EARLY_BITS / 8, 1);
    return s->early == NULL ? -ENOMEM : 0;
}

void mco_early(struct mco_store *s, uint64_t hash)
{
    if (s->early != NULL)
        s->early[hash % EARLY_BITS / 8] |= (uint8_t)(1u << hash % 8);
}

static bool is_early(const struct mco_store *s, uint64_t hash)
{
    return s->early != NULL && (s->early[hash % EARLY_BITS / 8] >> hash % 8 & 1) != 0;
}

void mco_disk_known(struct mco_store *s)
{
    struct mco_after after;
    uint8_t *early;
    bool more = true;

    mco_lock(&s->lock);
    early = s->early;
    s->early = NULL;
    mco_unlock(&s->lock);
    free(early);
    while (more) {
        mco_after_init(&after);
        mco_lock(&s->lock);
        for (unsigned i = 0; i < 256 && s->awaited.next != &s->awaited; i++)
            mco_leave(s, mco_entry_number(s, s->awaited.next), MCO_DAMAGED, UINT64_MAX, &after);
        more = s->awaited.next != &s->awaited;
        mco_space_freed(s, &after); /* who has asked for one of them is told */
        mco_unlock(&s->lock);
        mco_run_after(s, &after);
    }
}

bool mco_disk_found(struct mco_store *s, const struct mco_key *key,
                    const struct mco_version *version, uint64_t size, uint32_t crc, bool summed,
                    uint64_t place)
{
    struct mco_shard *sh = mco_shard_of(s, key->hash);
    struct mco_after after;
    bool wanted = false;
    uint32_t n;

    if (key->length == 0 || key->length > MCS_KEY_MAX || size == 0 || size > s->o.size ||
        place == MCO_NO_PLACE)
        return false;
    /* what is put from now on is to be later than what earlier leaders have had written */
    if (version->token > mco_token(s))
        mco_note_token(s, version->token);
    mco_after_init(&after);
    mco_lock(&s->lock);
    mco_lock(&sh->lock);
    n = mco_index_find(s, sh, key, MCO_STATES_SEALED);
    mco_unlock(&sh->lock);
    if (is_early(s, key->hash)) {
        wanted = false; /* what this life did with the key is newer */
    } else if (s->adopted && (n == MCO_NONE || mco_record_at(s, n)->state == MCO_AWAITED)) {
        wanted = enter_awaited(s, key, version, size, crc, place);
    } else if (n == MCO_NONE) {
        wanted = enter_disk(s, key, version, size, crc, summed, place);
    } else {
        struct mco_record *r = mco_record_at(s, n);
        struct mco_version there = mco_record_version(r);
        int order = mco_version_compare(&there, version);

        if (order < 0 && !s->adopted) {
            mco_leave(s, n, MCO_REPLACED, mco_clock(), &after);
            wanted = enter_disk(s, key, version, size, crc, summed, place);
        } else if (order == 0 && r->state == MCO_MEMORY && r->size == size &&
                   (!mco_record_summed(r) || r->crc == crc) && put_place(s, n, place) == 0) {
            mco_set_state(s, n, MCO_BOTH);
            wanted = true;
        }
    }
    mco_space_freed(s, &after);
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
    return wanted;
}

static void lose(struct mco_store *s, uint32_t n, enum mco_event_kind kind, struct mco_after *after)
{
    struct mco_record *r = mco_record_at(s, n);

    forget_place(s, n);
    if (r->state == MCO_BOTH)
        mco_set_state(s, n, MCO_MEMORY);
    else if (r->state == MCO_DISK)
        mco_leave(s, n, kind, mco_clock(), after);
}

void mco_disk_lost(struct mco_store *s, bool all, uint64_t place)
{
    struct mco_after after;
    uint32_t i = 0;
    bool more;

    do {
        more = false;
        mco_after_init(&after);
        mco_lock(&s->lock);
        if (!all) {
            i = place_slot(s, place);
            if (i != MCO_NONE)
                lose(s, s->places->slots[i], MCO_EVICTED, &after);
        }
        for (unsigned k = 0; all && k < 256 && s->places != NULL && i < s->places->size; k++) {
            if (s->places->slots[i] != MCO_NONE)
                lose(s, s->places->slots[i], MCO_DAMAGED, &after); /* another one may come here */
            else
                i++;
            more = true;
        }
        mco_space_freed(s, &after);
        mco_unlock(&s->lock);
        mco_run_after(s, &after);
    } while (more);
    if (all)
        mco_disk_known(s);
}
