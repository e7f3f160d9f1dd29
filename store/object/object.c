/* SPDX-License-Identifier: Apache-2.0 */
/* An object's life: begun, sealed or undone, removed, replaced, gone. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "internal.h"

#define ROUNDS                                                                                     \
    64u /* of making room in the table for one object: a long key may need what many have */

uint64_t mco_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* ---- callbacks ------------------------------------------------------------------------------ */

void mco_after_init(struct mco_after *after)
{
    after->ready = after->want = after->background = false;
    after->idles = after->places = after->offloads = 0;
}

void mco_run_after(struct mco_store *s, struct mco_after *after)
{
    const struct mco_options *o = &s->o;

    if (after->want)
        o->want(o->context, after->want_tenant, after->want_open, after->want_size);
    for (unsigned i = 0; i < after->idles; i++)
        o->idle(o->context, after->idle[i]);
    for (unsigned i = 0; i < after->places; i++)
        o->tier->drop(o->tier_context, after->place[i]);
    if (after->offloads != 0)
        mco_run_offloads(s, after);
    if (after->ready && o->ready != NULL)
        o->ready(o->context);
    after->ready = after->want = false;
    after->idles = after->places = 0;
}

void mco_space_freed(struct mco_store *s, struct mco_after *after)
{
    if (mcs_load_relaxed(&s->waiting) != 0) {
        mcs_store_relaxed(&s->waiting, 0u); /* partner: mco_unpin() */
        after->ready = true;
    }
}

void mco_tell(struct mco_store *s, uint32_t n, enum mco_event_kind kind)
{
    const struct mco_record *r = mco_record_at(s, n);
    struct mco_event e = {.kind = kind, .version = mco_record_version(r), .size = r->size};

    if (s->o.event == NULL)
        return;
    mco_record_key(s, n, s->key);
    e.crc = r->crc;
    e.key = (struct mco_key){s->key, r->key_length, r->tenant, s->entries[n].hash};
    s->o.event(s->o.context, &e);
}

/* ---- views, states ---------------------------------------------------------------------------- */

void mco_fill_view(const struct mco_store *s, uint32_t n, struct mco_view *out)
{
    const struct mco_record *r = mco_record_at(s, n);
    const struct mco_space *sp = mco_space_of(s, r);

    *out = (struct mco_view){.object = mco_object_at(s, n),
                             .size = r->size,
                             .version = mco_record_version(r),
                             .crc = r->crc,
                             .summed = mco_record_summed(r)};
    if (sp != NULL) {
        out->offset = (uint64_t)r->offset * MCO_UNIT;
        out->data = (uint8_t *)sp->e.map + out->offset;
        out->owner = sp->e.owner;
        out->extent = sp->e.id;
    }
}

void mco_set_state(struct mco_store *s, uint32_t n, enum mco_state state)
{
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);

    mco_lock(&sh->lock);
    mco_record_at(s, n)->state = (uint8_t)state;
    mco_unlock(&sh->lock);
}

static void ring_add(struct mco_policy_entry *ring, struct mco_policy_entry *e)
{
    e->next = ring;
    e->prev = ring->prev;
    ring->prev->next = e;
    ring->prev = e;
}

static void ring_remove(struct mco_policy_entry *e)
{
    e->prev->next = e->next;
    e->next->prev = e->prev;
}

void mco_ring_add(struct mco_store *s, struct mco_policy_entry *ring, uint32_t n)
{
    ring_add(ring, &s->entries[n]);
}

void mco_ring_remove(struct mco_store *s, uint32_t n)
{
    ring_remove(&s->entries[n]);
}

/* ---- the end ---------------------------------------------------------------------------------- */

void mco_free(struct mco_store *s, uint32_t n, struct mco_after *after)
{
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    struct mco_record *r = mco_record_at(s, n);

    mco_lock(&sh->lock);
    if ((r->marks & MCO_KEEPS) == 0)
        mco_index_remove(s, sh, n);
    r->state = MCO_FREE;
    mco_unlock(&sh->lock);
    mco_place_drop(s, n, after);
    mco_record_invalid(s, n);
    mco_space_give(s, n, after);
    mco_record_free(s, n);
}

bool mco_free_left(struct mco_store *s, uint32_t n, uint64_t now, struct mco_after *after)
{
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    struct mco_record *r = mco_record_at(s, n);
    bool may;

    mco_lock(&sh->lock);
    may = r->state == MCO_LEAVING && r->pins == 0 && r->lease_until <= now &&
          (r->marks & MCO_GUARDED) == 0 && (r->place == MCO_NO_PLACE || after->places < MCO_PLACES);
    mco_unlock(&sh->lock);
    if (!may)
        return false; /* nobody finds it, so nobody comes to it any more either */
    ring_remove(&s->entries[n]);
    s->stats.leaving--;
    mco_free(s, n, after);
    return true;
}

void mco_leave(struct mco_store *s, uint32_t n, enum mco_event_kind kind, uint64_t now,
               struct mco_after *after)
{
    struct mco_record *r = mco_record_at(s, n);

    mco_unorder(s, n, kind == MCO_EVICTED);
    mco_group_remove(s, n);
    if (mco_in_memory(r->state))
        mco_counted(s, n, false);
    if (r->state == MCO_DISK || r->state == MCO_AWAITED)
        mco_ring_remove(s, n);
    if (r->state == MCO_WRITING) {
        mco_arena_of(s, n)->writing--;
        s->stats.writing--;
    }
    mco_record_left(s, n, MCO_GONE); /* a later life drops it, unless somebody is in it */
    mco_set_state(s, n, MCO_LEAVING);
    ring_add(&s->leaving, &s->entries[n]);
    s->stats.leaving++;
    /* now, and not when its last reader has gone: that may be the end of this agent, and the next one finds it there */
    if (after->places < MCO_PLACES)
        mco_place_drop(s, n, after);
    if (kind != 0)
        mco_tell(s, n, kind);
    (void)mco_free_left(s, n, now, after);
}

/* ---- begin ------------------------------------------------------------------------------------ */

/* Too many lives of a hash. What leaves is gone when its readers and leases are, which upkeep says. */
static enum mcs_status crowded(struct mco_store *s, const struct mco_lives *lives)
{
    if (lives->leaving == 0)
        return MCS_LIMIT;
    mcs_store_relaxed(&s->waiting, 1u); /* under the lock, as those who end it are */
    return MCS_BUSY;
}

/* Another one is being written. By an engine: that is over soon, mco_seal() and mco_abort() say so; a client takes its time. */
static enum mcs_status writing(struct mco_store *s, uint32_t n)
{
    if ((mco_record_at(s, n)->flags & MCO_OPEN) != 0)
        return MCS_IN_USE;
    mcs_store_relaxed(&s->waiting, 1u); /* under the lock, as those who end it are */
    return MCS_BUSY;
}

/* May the key be written? */
static enum mcs_status may_write(struct mco_store *s, const struct mco_put *p, struct mco_view *out)
{
    struct mco_shard *sh = mco_shard_of(s, p->key.hash);
    enum mcs_status status = MCS_OK;
    struct mco_lives lives;
    uint32_t n;

    mco_lock(&sh->lock);
    mco_index_lives(s, sh, &p->key, &lives);
    n = lives.sealed;
    if (n != MCO_NONE) {
        struct mco_version there = mco_record_version(mco_record_at(s, n));

        if ((p->flags & MCS_OBJECT_UPSERT) == 0 ||
            (p->version.sequence != 0 && mco_version_compare(&there, &p->version) >= 0))
            status = MCS_EXISTS;
        out->version = there;
        out->size = mco_record_at(s, n)->size;
        out->crc = mco_record_at(s, n)->crc;
        out->summed = mco_record_summed(mco_record_at(s, n));
    }
    if (status == MCS_OK && lives.writing != MCO_NONE)
        status = writing(s, lives.writing);
    if (status == MCS_OK && lives.others >= MCO_LIVES_MAX)
        status = crowded(s, &lives);
    mco_unlock(&sh->lock);
    return status;
}

/* What the policy is to be told when it is sealed lies in its part until then. */
static void keep_hint(struct mco_policy_entry *e, const struct mco_hint *h)
{
    e->words[0] = h->now_ns;
    e->words[1] = h->previous;
    e->words[2] = h->group;
    e->words[3] = (uint64_t)h->length << 32 | h->position;
}

static struct mco_hint kept_hint(const struct mco_policy_entry *e)
{
    return (struct mco_hint){.now_ns = e->words[0],
                             .previous = e->words[1],
                             .group = e->words[2],
                             .length = (uint32_t)(e->words[3] >> 32),
                             .position = (uint32_t)e->words[3]};
}

/* there: of the life that it is to replace, none: 0. */
static void fill_record(struct mco_store *s, uint32_t n, const struct mco_put *p,
                        const struct mco_version *there)
{
    struct mco_version v = p->version;
    struct mco_record *r = mco_record_at(s, n);

    if (v.sequence == 0 &&
        there->token != 0) /* a leader gave that one, and there is none any more */
        v = (struct mco_version){there->token, there->sequence + 1};
    else if (v.sequence == 0)
        v = (struct mco_version){0, mco_sequence(s)};
    else if (v.token == 0)
        mco_sequence_beyond(s, v.sequence);
    r->token = v.token;
    r->sequence = v.sequence;
    r->size = p->size;
    if (p->soft_pin_until != 0)
        r->soft_pin = (uint32_t)((p->soft_pin_until >> MCO_SOFT_SHIFT) + 1);
    r->copies = 1;
    keep_hint(&s->entries[n], &p->hint);
}

enum mcs_status mco_take_space(struct mco_store *s, struct mco_arena *a, uint32_t n, uint64_t size,
                               uint64_t now, struct mco_after *after)
{
    struct mco_tenant *t = a->tenant;
    enum mcs_status status = MCS_OK;
    unsigned rounds = 0;

    while (status == MCS_OK) {
        bool over = t->limit != 0 && t->used + mco_rounded(size) > t->limit;

        if (!over && mco_space_take(s, a, size, n))
            break;
        status = rounds++ < 4 ? mco_make_space(s, a, size, now, after) : MCS_BUSY;
    }
    if (status == MCS_OK && s->starving == a)
        s->starving = NULL;
    return status;
}

static enum mcs_status take_record(struct mco_store *s, const struct mco_put *p,
                                   struct mco_arena *a, uint64_t now, uint32_t *n,
                                   struct mco_after *after)
{
    enum mcs_status status = MCS_OK;
    unsigned rounds = 0;

    while (status == MCS_OK) {
        bool own = a->tenant->records >= mco_tenant_records(s, a->tenant);

        *n = own ? MCO_NONE : mco_record_new(s, &p->key, p->group);
        if (*n != MCO_NONE)
            break;
        status = rounds++ < ROUNDS ? mco_make_record(s, a, own, now, after) : MCS_BUSY;
    }
    if (status == MCS_OK)
        mco_record_at(s, *n)->flags |=
            (uint8_t)(((p->flags & MCS_OBJECT_HARD_PIN) != 0 ? MCO_HARD : 0u) |
                      (p->open ? MCO_OPEN : 0u));
    return status;
}

static enum mcs_status begin(struct mco_store *s, const struct mco_put *p, uint64_t now,
                             struct mco_view *out, struct mco_after *after)
{
    enum mcs_status status = may_write(s, p, out);
    struct mco_version there = out->version;
    struct mco_tenant *t;
    struct mco_shard *sh;
    struct mco_arena *a;
    uint32_t n = MCO_NONE;
    int res;

    if (status != MCS_OK)
        return status;
    t = mco_tenant_get(s, p->key.tenant);
    if (t == NULL)
        return MCS_NO_MEMORY;
    a = &t->arenas[p->open];
    if (mco_arena_ready(s, a) != 0)
        return MCS_NO_MEMORY;
    status = take_record(s, p, a, now, &n, after);
    if (status != MCS_OK)
        return status;
    if (p->size != 0)
        status = mco_take_space(s, a, n, p->size, now, after);
    res = status == MCS_OK ? mco_group_add(s, n) : 0;
    if (res != 0)
        status = res == -ENOSPC ? MCS_LIMIT : MCS_NO_MEMORY;
    if (status != MCS_OK) {
        mco_space_give(s, n, after);
        mco_record_free(s, n);
        return status;
    }
    fill_record(s, n, p, &there);
    mco_record_valid(s, n, true);
    a->writing++;
    s->stats.writing++;
    sh = mco_shard_of(s, p->key.hash);
    mco_lock(&sh->lock);
    mco_record_at(s, n)->state = MCO_WRITING;
    mco_pin_more(sh, mco_record_at(s, n)); /* the writer's */
    mco_index_add(s, sh, n);
    mco_unlock(&sh->lock);
    mco_fill_view(s, n, out);
    return MCS_OK;
}

/* Counts a refusal. */
static void refused(struct mco_store *s, uint64_t tenant, enum mcs_status status)
{
    struct mco_tenant *t = mco_tenant_find(s, tenant);

    if (status == MCS_EXISTS)
        s->stats.put_exists++;
    if (status == MCS_BUSY)
        s->stats.busy++;
    if (status == MCS_NO_SPACE)
        s->stats.no_space++;
    if (t != NULL && (status == MCS_NO_SPACE || status == MCS_LIMIT))
        t->refused++;
}

enum mcs_status mco_begin(struct mco_store *s, const struct mco_put *p, struct mco_view *out)
{
    uint64_t now = p->hint.now_ns != 0 ? p->hint.now_ns : mco_clock();
    struct mco_after after;
    enum mcs_status status;

    memset(out, 0, sizeof(*out));
    if (p->key.length == 0 || p->key.length > MCS_KEY_MAX)
        return MCS_BAD_KEY;
    if (p->size > s->o.size || p->size / MCO_UNIT >= MCO_NONE - MCO_PAGE)
        return MCS_BAD_RANGE;
    mco_after_init(&after);
    mco_lock(&s->lock);
    status = begin(s, p, now, out, &after);
    if (status != MCS_OK)
        refused(s, p->key.tenant, status);
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
    return status;
}

/* ---- seal, abort --------------------------------------------------------------------------------- */

static void drop_pin(struct mco_store *s, uint32_t n)
{
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);

    mco_lock(&sh->lock);
    (void)mco_pin_less(sh, mco_record_at(s, n));
    mco_unlock(&sh->lock);
}

/* The writer lets go of it. */
static void undo(struct mco_store *s, uint32_t n, struct mco_after *after)
{
    uint64_t now = mco_clock();

    s->stats.aborted++;
    drop_pin(s, n);
    if (mco_record_at(s, n)->state == MCO_WRITING)
        mco_leave(s, n, 0, now, after);
    else
        (void)mco_free_left(s, n, now, after);
    mco_space_freed(s, after); /* its key, if nothing else */
}

static enum mcs_status seal(struct mco_store *s, uint32_t n, uint32_t crc, bool summed,
                            unsigned copies, struct mco_after *after)
{
    struct mco_record *r = mco_record_at(s, n);
    struct mco_version mine = mco_record_version(r), there;
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    struct mco_hint hint;
    struct mco_lives lives;
    struct mco_key key;
    uint32_t old;

    if (r->state != MCO_WRITING)
        return MCS_NOT_OWNER;
    mco_record_key(s, n, s->key);
    key = (struct mco_key){s->key, r->key_length, r->tenant, s->entries[n].hash};
    mco_lock(&sh->lock);
    mco_index_lives(s, sh, &key, &lives);
    mco_unlock(&sh->lock);
    old = lives.sealed;
    if (old != MCO_NONE) {
        there = mco_record_version(mco_record_at(s, old));
        if (mco_version_compare(&there, &mine) >= 0)
            return MCS_NOT_OWNER;
        mco_unorder(s, old, false);
    }
    if (copies > 1)
        mcs_store_relaxed(&s->replicas, true); /* as in mco_set_copies() */
    r->copies = (uint16_t)(copies > UINT16_MAX ? UINT16_MAX : copies);
    mco_lock(&sh->lock);
    mco_record_seal(s, n, crc, summed);
    r->state = MCO_MEMORY;
    (void)mco_pin_less(sh, r);
    mco_unlock(&sh->lock);
    hint = kept_hint(&s->entries[n]);
    mco_order(s, n, &hint);
    mco_counted(s, n, true);
    mco_arena_of(s, n)->writing--;
    s->stats.writing--;
    s->stats.puts++;
    s->stats.put_bytes += r->size;
    if (copies <= 1) /* a copy of another host's is no news: its version says which is later */
        mco_early(s, key.hash);
    mco_tell(s, n, MCO_STORED);
    if (old != MCO_NONE) {
        s->stats.replaced++;
        mco_leave(s, old, MCO_REPLACED, hint.now_ns != 0 ? hint.now_ns : mco_clock(), after);
    }
    mco_space_freed(s, after); /* it may be evicted from now on */
    return MCS_OK;
}

enum mcs_status mco_seal(struct mco_store *s, struct mco_object *o, uint32_t crc, bool summed,
                         unsigned copies)
{
    uint32_t n = mco_number(s, o);
    struct mco_after after;
    enum mcs_status status;

    mco_after_init(&after);
    mco_lock(&s->lock);
    status = seal(s, n, crc, summed, copies, &after);
    if (status != MCS_OK)
        undo(s, n, &after);
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
    return status;
}

void mco_abort(struct mco_store *s, struct mco_object *o)
{
    struct mco_after after;

    mco_after_init(&after);
    mco_lock(&s->lock);
    undo(s, mco_number(s, o), &after);
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
}

/* ---- removal --------------------------------------------------------------------------------------- */

enum mcs_status mco_remove(struct mco_store *s, const struct mco_key *key,
                           const struct mco_version *upto, bool force, uint64_t now)
{
    struct mco_shard *sh = mco_shard_of(s, key->hash);
    enum mcs_status status = MCS_NOT_FOUND;
    struct mco_after after;
    uint32_t n;

    mco_after_init(&after);
    mco_lock(&s->lock);
    mco_lock(&sh->lock);
    n = mco_index_find(s, sh, key, MCO_STATES_SEALED);
    if (n != MCO_NONE) {
        const struct mco_record *r = mco_record_at(s, n);
        struct mco_version v = mco_record_version(r);
        unsigned own = r->state == MCO_OFFLOADING || r->state == MCO_FETCHING; /* the store's pin */

        if (upto == NULL || mco_version_compare(&v, upto) <= 0)
            status = !force && ((r->flags & MCO_HARD) != 0 || r->pins > own ||
                                r->lease_until > now || (r->marks & MCO_GUARDED) != 0)
                         ? MCS_IN_USE
                         : MCS_OK;
    }
    mco_unlock(&sh->lock);
    if (status != MCS_IN_USE)
        mco_early(s, key->hash);
    if (status == MCS_OK) {
        s->stats.removed++;
        mco_leave(s, n, MCO_REMOVED, now, &after);
    }
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
    return status;
}

void mco_damaged(struct mco_store *s, struct mco_object *o)
{
    uint32_t n = mco_number(s, o);
    struct mco_after after;
    uint8_t state;

    mco_after_init(&after);
    mco_lock(&s->lock);
    state = mco_record_at(s, n)->state;
    if (mco_is_sealed(state)) {
        s->stats.damaged++;
        mco_leave(s, n, MCO_DAMAGED, mco_clock(), &after);
    } else if (state == MCO_WRITING) {
        mco_leave(s, n, 0, mco_clock(), &after);
        mco_space_freed(s, &after); /* the key may be written by who waits for it */
    }
    mco_unlock(&s->lock);
    mco_run_after(s, &after);
}

bool mco_leaving(struct mco_store *s, const struct mco_key *key)
{
    struct mco_shard *sh = mco_shard_of(s, key->hash);
    bool leaves;

    mco_lock(&sh->lock);
    leaves = mco_index_find(s, sh, key, 1u << MCO_LEAVING) != MCO_NONE;
    mco_unlock(&sh->lock);
    return leaves;
}

bool mco_is_created(struct mco_store *s, const struct mco_key *key)
{
    struct mco_shard *sh = mco_shard_of(s, key->hash);
    uint32_t n;
    bool is;

    mco_lock(&sh->lock);
    n = mco_index_find(s, sh, key, 1u << MCO_WRITING);
    is = n != MCO_NONE && (mco_record_at(s, n)->flags & MCO_OPEN) != 0;
    mco_unlock(&sh->lock);
    return is;
}

void mco_set_copies(struct mco_store *s, const struct mco_key *key, unsigned copies)
{
    struct mco_shard *sh = mco_shard_of(s, key->hash);
    uint32_t n;

    mco_lock(&sh->lock);
    n = mco_index_find(s, sh, key, MCO_STATES_SEALED);
    if (n != MCO_NONE)
        mco_record_at(s, n)->copies = (uint16_t)(copies > UINT16_MAX ? UINT16_MAX : copies);
    mco_unlock(&sh->lock);
    if (copies > 1)
        mcs_store_relaxed(&s->replicas, true); /* partner: make_hole(), which may look in vain */
}
