/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making room.  In this order: an extent more, while the owner's limit allows; what the arena's policy names, where a hole of the
 * size wanted comes of it; an extent of those who have more than their share, emptied.  With a disk objects go there first.
 * Under the store's lock; work is bounded.
 */
#include <string.h>

#include "internal.h"

#define CANDIDATES 4096u /* of the policy, that one call looks at */
#define CHOICES 8u       /* of them, that might go: the cheapest one does */
#define STEPS 2048u      /* ranges in one hole to be */
#define ALL_STEPS 16384u /* in all that one call looks at */
#define GOING 4u         /* times as much as one needs is on its way to disk for all that wait */
#define DRAIN_STEP 64u   /* objects taken out of an extent at a time */
#define DRAIN_LOOKS 16384u
#define DRAIN_PROBE                                                                                \
    8192u /* ranges of one extent: if so many could go, all the others are tried, too */
#define DRAIN_NS UINT64_C(2000000000)
#define STARVING_NS UINT64_C(1000000000)
#define SOME 256u /* objects that upkeep looks at in a call */

/* ---- may it go? -------------------------------------------------------------------------------- */

static bool may_go_locked(const struct mco_record *r, uint64_t now, bool soft)
{
    return (r->state == MCO_MEMORY || r->state == MCO_BOTH) && (r->flags & MCO_HARD) == 0 &&
           r->pins == 0 && r->lease_until <= now && (r->marks & MCO_GUARDED) == 0 &&
           (soft || r->soft_pin <= now >> MCO_SOFT_SHIFT);
}

static bool may_go_alone(struct mco_store *s, uint32_t n, uint64_t now, bool soft)
{
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    bool may;

    mco_lock(&sh->lock);
    may = may_go_locked(mco_record_at(s, n), now, soft);
    mco_unlock(&sh->lock);
    return may;
}

/* With all of its group, whose members count as looks. */
static bool may_go(struct mco_store *s, uint32_t n, uint64_t now, bool soft, unsigned *looks)
{
    const struct mco_group *g;

    if (!may_go_alone(s, n, now, soft))
        return false;
    g = mco_group_of(s, mco_record_at(s, n));
    for (uint32_t i = 0; g != NULL && i < g->count; i++, (*looks)++)
        if (!may_go_alone(s, g->members[i], now, soft))
            return false;
    return true;
}

/* Tasks of engines hold it, or the disk: it will be let go of soon. */
static bool is_held_shortly(struct mco_store *s, uint32_t n)
{
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    const struct mco_record *r = mco_record_at(s, n);
    bool held;

    mco_lock(&sh->lock);
    held = r->pins > r->in_place;
    mco_unlock(&sh->lock);
    return held;
}

/* ---- it goes ------------------------------------------------------------------------------------ */

/* False: somebody has just found it. */
static bool evict_alone(struct mco_store *s, uint32_t n, uint64_t now, bool soft, bool drop,
                        struct mco_after *after)
{
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    struct mco_record *r = mco_record_at(s, n);
    bool to_disk = false, may;

    mco_lock(&sh->lock);
    may = may_go_locked(r, now, soft) && (r->place == MCO_NO_PLACE || after->places < MCO_PLACES);
    if (may) {
        to_disk = r->state == MCO_BOTH && !drop;
        r->state = to_disk ? MCO_DISK : MCO_LEAVING;
    }
    mco_unlock(&sh->lock);
    if (!may)
        return false;
    mco_unorder(s, n, true);
    mco_group_remove(s, n);
    mco_counted(s, n, false);
    s->stats.evictions++;
    s->stats.evicted_bytes += r->size;
    mco_tell(s, n, to_disk ? MCO_TO_DISK : MCO_EVICTED);
    if (to_disk) {
        mco_record_left(s, n, MCO_AWAY); /* a later life has it from the disk */
        mco_space_give(s, n, after);
        mco_ring_add(s, &s->on_disk, n);
    } else {
        mco_free(s, n, after);
    }
    return true;
}

bool mco_evict_one(struct mco_store *s, uint32_t n, uint64_t now, bool drop,
                   struct mco_after *after)
{
    return evict_alone(s, n, now, true, drop, after);
}

static bool wants_disk(const struct mco_store *s, uint32_t n)
{
    const struct mco_record *r = mco_record_at(s, n);

    return s->o.tier != NULL && r->state == MCO_MEMORY && r->node != MCO_NONE;
}

enum gone { STAYS, GONE, ON_ITS_WAY };

/* With all of its group, that is known to be able to go. */
static enum gone evict(struct mco_store *s, uint32_t n, uint64_t now, bool soft, bool drop,
                       struct mco_after *after)
{
    struct mco_group *g = mco_group_of(s, mco_record_at(s, n));
    uint32_t one = n, count = g != NULL ? g->count : 1;
    const uint32_t *members = g != NULL ? g->members : &one;
    enum gone res = GONE;

    for (uint32_t i = 0; !drop && !mco_disk_stalls(s, now) && i < count; i++)
        if (wants_disk(s, members[i]))
            res = mco_offload(s, members[i], !after->background, after) || res == ON_ITS_WAY
                      ? ON_ITS_WAY
                      : STAYS;
    if (res != GONE)
        return res;
    /* each one that goes leaves the group, whose last member takes its place */
    for (uint32_t i = count; i-- > 0;) {
        uint32_t m = g != NULL ? g->members[i] : n;

        if (count == 1 || i == 0)
            g = NULL; /* gone with its last member */
        if (!evict_alone(s, m, now, soft, drop, after))
            return STAYS;
    }
    return GONE;
}

/* ---- a hole ---------------------------------------------------------------------------------------- */

struct hole {
    uint32_t from, to; /* nodes */
    uint64_t bytes;    /* of objects in it */
    uint32_t objects;
    bool good;
};

/* Units that an aligned object would have in [from, to]. */
static uint64_t room_in(const struct mco_store *s, uint32_t from, uint32_t to, uint64_t size)
{
    uint32_t align = size < MCO_LARGE ? 1 : MCO_PAGE / MCO_UNIT;
    uint64_t at = s->nodes[from].offset, end = (uint64_t)s->nodes[to].offset + s->nodes[to].size;

    at = (at + align - 1) & ~(uint64_t)(align - 1);
    return at < end ? (end - at) * MCO_UNIT : 0;
}

/* What it costs to have this neighbour, too: UINT64_MAX: it stays. */
static uint64_t cost_of(struct mco_store *s, uint32_t node, uint64_t now, bool soft)
{
    uint32_t n;

    if (node == MCO_NONE)
        return UINT64_MAX;
    n = s->nodes[node].object;
    if (n == MCO_NONE)
        return 0;
    if ((mco_record_at(s, n)->flags & MCO_GROUPED) != 0 || !may_go_alone(s, n, now, soft))
        return UINT64_MAX;
    return (uint64_t)s->nodes[node].size * MCO_UNIT;
}

/* The hole that begins as object n's range and grows to its cheaper side until `need` fits. */
static struct hole hole_at(struct mco_store *s, uint32_t n, uint64_t need, uint64_t now, bool soft,
                           unsigned *steps)
{
    uint32_t node = mco_record_at(s, n)->node;
    struct hole h = {node, node, (uint64_t)s->nodes[node].size * MCO_UNIT, 1, false};

    for (unsigned step = 0; step<STEPS && * steps> 0; step++, (*steps)--) {
        uint64_t left, right, cost;

        if (room_in(s, h.from, h.to, need) >= mco_rounded(need)) {
            h.good = true;
            break;
        }
        left = cost_of(s, s->nodes[h.from].left, now, soft);
        right = cost_of(s, s->nodes[h.to].right, now, soft);
        cost = left < right ? left : right;
        if (cost == UINT64_MAX)
            break;
        if (left < right)
            h.from = s->nodes[h.from].left;
        else
            h.to = s->nodes[h.to].right;
        h.bytes += cost;
        h.objects += cost != 0;
    }
    return h;
}

/* Empties it. Ranges that merge on the way change their node, so objects are noted first. */
static enum gone dig(struct mco_store *s, const struct hole *h, uint64_t now, bool soft,
                     struct mco_after *after)
{
    uint32_t objects[STEPS + 1], count = 0;
    enum gone res = GONE;

    for (uint32_t node = h->from; count <= STEPS; node = s->nodes[node].right) {
        if (s->nodes[node].object != MCO_NONE)
            objects[count++] = s->nodes[node].object;
        if (node == h->to)
            break;
    }
    for (uint32_t i = 0; i < count && res != STAYS; i++) {
        enum gone one = evict(s, objects[i], now, soft, false, after);

        if (one != GONE)
            res = one;
    }
    return res;
}

/* Finds who is to go for `need` bytes in one piece, and lets them go. *held: some are held, but not for long. *more: there
 * may be others, whom the next call comes to. */
static enum gone make_hole(struct mco_store *s, struct mco_arena *a, uint64_t need, uint64_t now,
                           bool soft, bool *held, bool *more, struct mco_after *after)
{
    struct mco_policy_entry *e = a->resume[soft];
    struct hole best = {.bytes = UINT64_MAX};
    unsigned looks = 0, members = 0, choices = 0, steps = ALL_STEPS;
    const struct mco_group *group, *stays = NULL; /* the one that was last seen to stay */
    bool passed = a->held[soft];
    uint32_t best_copies = 0;

    while (choices < CHOICES && looks++ < CANDIDATES && members < 4 * MCO_GROUP_MAX && steps > 0 &&
           (e = a->ops->next(a->policy, e)) != NULL) {
        uint32_t n = mco_entry_number(s, e), copies;
        struct hole h;

        if (mco_record_at(s, n)->node == MCO_NONE)
            continue; /* an empty one */
        if (s->spaces[s->nodes[mco_record_at(s, n)->node].space].drains)
            continue;
        group = mco_group_of(s, mco_record_at(s, n));
        if ((group != NULL && group == stays) || !may_go(s, n, now, soft, &members)) {
            stays = group;
            passed = passed || is_held_shortly(s, n);
            continue;
        }
        h = hole_at(s, n, need, now, soft, &steps);
        if (!h.good)
            continue;
        choices++;
        copies = mco_record_at(s, n)->copies;
        /* of those that stand next to each other, one that others have, too, goes before the last one of its kind */
        if (h.objects == 1 && best.objects != 1) {
            best = h;
            best_copies = copies;
            if (copies > 1 || !mcs_load_relaxed(&s->replicas))
                break;
        } else if (h.objects == 1 && copies > 1 && best_copies == 1) {
            best = h;
            break;
        } else if (h.objects > 1 && h.bytes < best.bytes) {
            best = h;
            best_copies = copies;
        }
        if (h.objects > 1 && h.bytes <= 2 * mco_rounded(need))
            break;
    }
    *more = !best.good && e != NULL;
    a->resume[soft] = *more ? e : NULL;
    a->held[soft] = *more && passed;
    *held = *held || passed;
    return best.good ? dig(s, &best, now, soft, after) : STAYS;
}

/* Lets so many bytes go, wherever they are. Returns how many went. */
static uint64_t make_bytes(struct mco_store *s, struct mco_arena *a, uint64_t bytes, unsigned most,
                           uint64_t now, bool soft, bool *on_way, struct mco_after *after)
{
    struct mco_policy_entry *e = a->policy == NULL ? NULL : a->ops->next(a->policy, NULL);
    uint64_t freed = 0;
    unsigned looks = 0;

    while (e != NULL && freed < bytes && looks++ < CANDIDATES && most > 0) {
        struct mco_policy_entry *next = a->ops->next(a->policy, e);
        uint32_t n = mco_entry_number(s, e);
        uint64_t before = s->stats.used;

        /* an empty one gives none */
        if (mco_record_at(s, n)->node != MCO_NONE && may_go(s, n, now, soft, &looks)) {
            bool grouped = (mco_record_at(s, n)->flags & MCO_GROUPED) != 0;
            enum gone gone = evict(s, n, now, soft, false, after);

            *on_way = *on_way || gone == ON_ITS_WAY;
            freed += before - s->stats.used;
            most--;
            if (grouped) /* the next one may be gone with it */
                next = a->ops->next(a->policy, NULL);
            if (gone == ON_ITS_WAY && after->offloads == MCO_OFFLOADS)
                break;
        }
        e = next;
    }
    return freed;
}

/* ---- extents of others ------------------------------------------------------------------------------- */

/* True: some went. */
static bool drain_more(struct mco_store *s, uint64_t now, struct mco_after *after)
{
    uint32_t objects[DRAIN_STEP], count = 0, before;
    unsigned looks = 0;
    struct mco_space *sp;

    if (s->drains == MCO_NONE)
        return false;
    sp = &s->spaces[s->drains];
    before = sp->count;
    if (before < s->drain_left)
        s->drain_until = now + DRAIN_NS;
    s->drain_left = before;
    if (before != 0 && now > s->drain_until) {
        s->drains = MCO_NONE; /* somebody stays in it */
        mco_space_drain(s, sp, false);
        return false;
    }
    for (uint32_t node = sp->first; node != MCO_NONE && count < DRAIN_STEP && looks++ < DRAIN_LOOKS;
         node = s->nodes[node].right)
        if (s->nodes[node].object != MCO_NONE &&
            may_go(s, s->nodes[node].object, now, true, &looks))
            objects[count++] = s->nodes[node].object;
    for (uint32_t i = 0; i < count && after->places < MCO_PLACES && looks < 2 * DRAIN_LOOKS; i++)
        if (mco_record_at(s, objects[i])->node != MCO_NONE &&
            may_go(s, objects[i], now, true, &looks))
            (void)evict(s, objects[i], now, true, false, after);
    if (s->drains != MCO_NONE && sp->count == 0)
        mco_extent_empty(s, sp, after);
    return sp->count < before;
}

static bool goes_soon(struct mco_store *s, uint32_t n, uint64_t now, unsigned *looks)
{
    const struct mco_record *r = mco_record_at(s, n);

    return may_go(s, n, now, true, looks) || is_held_shortly(s, n) ||
           (r->pins == 0 && (r->flags & MCO_HARD) == 0 && (r->marks & MCO_GUARDED) == 0 &&
            mcs_load_relaxed(&r->lease_until) < now + DRAIN_NS); /* partner: mco_lease() */
}

/* Could all of it go, now or soon? */
static bool can_drain(struct mco_store *s, const struct mco_space *sp, uint64_t now,
                      unsigned *looks)
{
    uint32_t node = sp->hard == 0 ? sp->first : MCO_NONE;

    for (unsigned i = 0; node != MCO_NONE && i < DRAIN_PROBE; i++, node = s->nodes[node].right) {
        uint32_t n = s->nodes[node].object;

        if (++*looks > DRAIN_LOOKS)
            return false;
        if (n != MCO_NONE && !goes_soon(s, n, now, looks))
            return false;
    }
    return sp->hard == 0;
}

static uint64_t extents_of(const struct mco_tenant *t)
{
    return t->arenas[0].bytes + t->arenas[1].bytes;
}

/* The arena that gives an extent to `a`: of its own tenant, or of the tenant that has most beyond its share. */
static struct mco_arena *giver(struct mco_store *s, const struct mco_arena *a)
{
    struct mco_arena *other = &a->tenant->arenas[!a->open];
    uint64_t share, most, have = 0;
    uint32_t active = 0;

    for (uint32_t i = 0; i < s->tenants_size; i++)
        active +=
            s->tenants[i] != NULL && (s->tenants[i] == a->tenant || extents_of(s->tenants[i]) != 0);
    share = s->o.size / (active == 0 ? 1 : active);
    most = share;
    for (uint32_t i = 0; i < s->tenants_size && extents_of(a->tenant) < share; i++) {
        struct mco_tenant *t = s->tenants[i];

        have = t == NULL || t == a->tenant ? 0 : extents_of(t);
        if (have != 0 && t->limit != 0 && have > t->limit + s->o.extent_size)
            have = UINT64_MAX; /* its limit has come down */
        if (have > most) {
            most = have;
            other = &t->arenas[t->arenas[1].bytes > t->arenas[0].bytes];
        }
    }
    return other->spaces != 0 ? other : NULL;
}

/* One in which nothing lies, of any other arena, its own tenant's first, goes back to the owner. */
static bool give_back_empty(struct mco_store *s, const struct mco_arena *a, struct mco_after *after)
{
    const struct mco_arena *own = &a->tenant->arenas[!a->open];

    for (uint32_t i = own->first; s->empty != 0 && i != MCO_NONE; i = s->spaces[i].next)
        if (s->spaces[i].count == 0 && mco_extent_idle(s, &s->spaces[i], after))
            return true;
    for (uint32_t i = 0; s->empty != 0 && i < s->nspaces; i++) {
        struct mco_space *sp = &s->spaces[i];

        if (sp->e.id != 0 && sp->count == 0 && sp->arena != a && mco_extent_idle(s, sp, after))
            return true;
    }
    return false;
}

/* Begins to empty an extent of the arena. False: none can be. */
static bool drain_one(struct mco_store *s, struct mco_arena *from, unsigned *looks, uint64_t now,
                      struct mco_after *after)
{
    struct mco_policy_entry *e = NULL;
    struct mco_space *sp = NULL;

    if (from == NULL || from->policy == NULL || from->spaces == 0)
        return false;
    for (uint32_t i = from->first; s->empty != 0 && i != MCO_NONE && sp == NULL;
         i = s->spaces[i].next)
        if (s->spaces[i].count == 0 && !s->spaces[i].idle && s->spaces[i].there)
            sp = &s->spaces[i];
    while (sp == NULL && *looks < DRAIN_LOOKS && (e = from->ops->next(from->policy, e)) != NULL) {
        const struct mco_record *r = mco_record_at(s, mco_entry_number(s, e));

        ++*looks;
        if (r->node != MCO_NONE && can_drain(s, mco_space_of(s, r), now, looks))
            sp = mco_space_of(s, r);
    }
    if (sp == NULL)
        return false;
    mco_space_drain(s, sp, true);
    s->drains = (uint32_t)(sp - s->spaces);
    s->drain_until = now + DRAIN_NS;
    s->drain_left = sp->count;
    (void)drain_more(s, now, after);
    return true;
}

/* For `a`: of its own ones if they are too small, of who has more than its share, of its tenant's other kind; where nothing
 * of its own can go, of anybody. */
static bool drain_for(struct mco_store *s, struct mco_arena *a, uint64_t need, bool nothing,
                      uint64_t now, struct mco_after *after)
{
    unsigned looks = 0;
    bool drains = s->drains != MCO_NONE;

    if (drains || s->o.idle == NULL)
        return drains;
    drains = (need > s->o.extent_size && drain_one(s, a, &looks, now, after)) ||
             drain_one(s, giver(s, a), &looks, now, after) ||
             drain_one(s, &a->tenant->arenas[!a->open], &looks, now, after);
    for (uint32_t i = 0; nothing && !drains && i < s->tenants_size && looks < DRAIN_LOOKS; i++)
        for (unsigned k = 0; k < 2 && !drains; k++)
            if (s->tenants[i] != NULL && s->tenants[i] != a->tenant)
                drains = drain_one(s, &s->tenants[i]->arenas[k], &looks, now, after);
    return drains;
}

static bool may_grow(const struct mco_store *s, const struct mco_arena *a)
{
    return a->tenant->limit == 0 || extents_of(a->tenant) < a->tenant->limit + s->o.extent_size;
}

/* Bytes that extents may still have. */
static uint64_t room_of(const struct mco_store *s)
{
    uint64_t taken = s->extent_bytes + s->wanted_bytes;

    return s->o.size > taken ? s->o.size - taken : 0;
}

/* Asks the owner for an extent if there may be one more. True: one is on its way. */
static bool want_more(struct mco_store *s, struct mco_arena *a, uint64_t need, uint64_t now,
                      struct mco_after *after)
{
    uint64_t room = room_of(s);
    uint64_t size = s->o.extent_size > need ? s->o.extent_size : need;

    size = (size + MCO_PAGE - 1) & ~(uint64_t)(MCO_PAGE - 1);
    if (a->wanted != 0)
        return now < a->wanted_until;
    if (s->o.want == NULL || after->want || now < a->refused_until)
        return false;
    if (s->starving != NULL && s->starving != a && now < s->starving_until &&
        extents_of(a->tenant) != 0)
        return false; /* who has less is served first */
    if (!may_grow(s, a))
        return false;
    if (room < size) {
        /* what is left may be enough */
        size = room >= (UINT64_C(2) << 20) ? room & ~((UINT64_C(2) << 20) - 1)
                                           : room & ~(uint64_t)(MCO_PAGE - 1);
        if (size < need || size == 0)
            return false;
    }
    a->wanted = size;
    a->wanted_until = now + MCO_OWNER_NS;
    s->wanted_bytes += size;
    after->want = true;
    after->want_tenant = a->tenant->tenant;
    after->want_open = a->open;
    after->want_size = size;
    return true;
}

/* Under the tenant's own limit. */
static enum mcs_status make_limit(struct mco_store *s, struct mco_arena *a, uint64_t need,
                                  uint64_t now, struct mco_after *after)
{
    struct mco_tenant *t = a->tenant;
    uint64_t over = t->used + need - t->limit, freed = 0;
    bool on_way = false;

    if (need > t->limit)
        return MCS_LIMIT;
    for (unsigned soft = 0; soft < 2 && freed < over && !on_way; soft++)
        for (unsigned k = 0; k < 2 && freed < over; k++)
            freed += make_bytes(s, &t->arenas[k == 0 ? a->open : !a->open], over - freed, SOME, now,
                                soft != 0, &on_way, after);
    if (freed >= over || (freed != 0 && !on_way))
        return MCS_OK;
    return on_way ? MCS_BUSY : MCS_LIMIT;
}

bool mco_leaves_soon(struct mco_store *s)
{
    unsigned looks = 0;

    for (struct mco_policy_entry *e = s->leaving.next; e != &s->leaving && looks++ < SOME;
         e = e->next)
        if (is_held_shortly(s, mco_entry_number(s, e)))
            return true;
    return false;
}

/* Are extents on their way back to the owner, or from it to be had again, that will do? */
static bool returns(const struct mco_store *s, const struct mco_arena *a, uint64_t need,
                    uint64_t now)
{
    uint64_t room = room_of(s);

    need = (need + MCO_PAGE - 1) & ~(uint64_t)(MCO_PAGE - 1);
    if (room >= need)
        return now < a->refused_until && s->removed_at != 0 && now < s->removed_at + MCO_RETURNS_NS;
    return now < s->idle_until && room + s->idle_bytes >= need;
}

/* Nothing but its lease keeps it. */
static bool is_leased_only(struct mco_store *s, uint32_t n, uint64_t now)
{
    struct mco_shard *sh = mco_shard_of(s, s->entries[n].hash);
    const struct mco_record *r = mco_record_at(s, n);
    bool is;

    mco_lock(&sh->lock);
    is = r->node != MCO_NONE && mco_in_memory(r->state) && (r->flags & MCO_HARD) == 0 &&
         r->pins == 0 && (r->marks & MCO_GUARDED) == 0 && r->lease_until > now;
    mco_unlock(&sh->lock);
    return is;
}

bool mco_leases_end(struct mco_store *s, const struct mco_tenant *t, uint64_t now)
{
    unsigned looks = 0;

    for (uint32_t i = 0; i < s->tenants_size; i++)
        for (unsigned k = 0; k < 2 && s->tenants[i] != NULL; k++) {
            struct mco_arena *a = &s->tenants[i]->arenas[k];
            struct mco_policy_entry *e = NULL;

            while ((t == NULL || t == a->tenant) && a->policy != NULL && looks++ < CANDIDATES &&
                   (e = a->ops->next(a->policy, e)) != NULL)
                if (is_leased_only(s, mco_entry_number(s, e), now))
                    return true;
        }
    return false;
}

static void starve(struct mco_store *s, struct mco_arena *a, uint64_t now)
{
    if (s->starving == NULL) {
        s->starving = a;
        s->starving_until = now + STARVING_NS;
    }
}

enum mcs_status mco_make_space(struct mco_store *s, struct mco_arena *a, uint64_t size,
                               uint64_t now, struct mco_after *after)
{
    uint64_t need = mco_rounded(size), used = s->stats.used;
    enum gone gone = STAYS;
    bool held = false, more = false;

    mcs_store_relaxed(&s->waiting, 1u);
    mcs_fence_full(); /* partner: mco_unpin(): one of us sees what the other did */
    if (a->tenant->limit != 0 && a->tenant->used + need > a->tenant->limit)
        return make_limit(s, a, need, now, after);
    if (want_more(s, a, need, now, after))
        return MCS_BUSY;
    if ((s->starving == NULL || s->starving == a) && may_grow(s, a) &&
        (returns(s, a, need, now) || give_back_empty(s, a, after))) {
        starve(s, a, now);
        return MCS_BUSY;
    }
    mco_sweep(s, now, after);
    if (s->stats.used < used)
        return MCS_OK;
    (void)drain_more(s, now, after);
    if (a->going >= GOING * need && !mco_disk_stalls(s, now))
        return MCS_BUSY; /* it is being seen to */
    for (unsigned soft = 0; soft < 2 && gone == STAYS && !more; soft++)
        gone = make_hole(s, a, need, now, soft != 0, &held, &more, after);
    held = held || more;
    /* who has less than others grows beside that */
    if (gone != GONE || (s->drains == MCO_NONE && s->tenants_used > 1 && giver(s, a) != NULL &&
                         giver(s, a)->tenant != a->tenant)) {
        bool drains = drain_for(s, a, need, gone == STAYS && !held, now, after);

        held = held || drains;
        if (drains)
            starve(s, a, now);
    }
    if (gone == GONE)
        return MCS_OK;
    if (gone == ON_ITS_WAY || held || (a->writing != 0 && !a->open) || after->offloads != 0 ||
        mco_leaves_soon(s) || a->wanted != 0 ||
        (may_grow(s, a) && s->idle_bytes != 0 && room_of(s) + s->idle_bytes >= need))
        return MCS_BUSY; /* the owner may be slow: its answer is all that is left to wait for */
    return MCS_NO_SPACE;
}

bool mco_let_go(struct mco_store *s, uint32_t n, uint64_t now, bool soft, unsigned *looks,
                struct mco_after *after)
{
    return may_go(s, n, now, soft, looks) && evict(s, n, now, soft, true, after) == GONE;
}

/* ---- upkeep ------------------------------------------------------------------------------------------------ */

void mco_sweep(struct mco_store *s, uint64_t now, struct mco_after *after)
{
    struct mco_policy_entry *e = s->leaving.next;

    for (unsigned i = 0; i < SOME && e != &s->leaving; i++) {
        struct mco_policy_entry *next = e->next;
        uint32_t n = mco_entry_number(s, e);

        if (!mco_free_left(s, n, now, after)) { /* the next call begins with others */
            e->prev->next = e->next;
            e->next->prev = e->prev;
            e->next = &s->leaving;
            e->prev = s->leaving.prev;
            e->prev->next = e;
            s->leaving.prev = e;
        }
        e = next;
    }
}

/* The arena with most bytes, over its tenant's limit first. */
static struct mco_arena *largest(struct mco_store *s)
{
    struct mco_arena *most = NULL;
    bool over = false;

    for (uint32_t i = 0; i < s->tenants_size; i++)
        for (unsigned k = 0; k < 2 && s->tenants[i] != NULL; k++) {
            struct mco_arena *a = &s->tenants[i]->arenas[k];
            bool mine = a->tenant->limit != 0 && a->tenant->used > a->tenant->limit;

            if (a->ordered != 0 &&
                (most == NULL || (mine && !over) || (mine == over && a->used > most->used))) {
                most = a;
                over = mine;
            }
        }
    return most;
}

static uint64_t percent_of(uint64_t size, unsigned percent)
{
    return size / 100 * percent + size % 100 * percent / 100;
}

static bool shrink(struct mco_store *s, uint64_t now, struct mco_after *after)
{
    uint64_t low = percent_of(s->o.size, s->o.low), freed = 0;
    struct mco_arena *a;
    bool on_way = false;

    if (s->stats.used > percent_of(s->o.size, s->o.high))
        s->evicting = true;
    if (s->stats.used <= low)
        s->evicting = false;
    a = s->evicting ? largest(s) : NULL;
    for (unsigned soft = 0; a != NULL && soft < 2 && freed == 0 && !on_way; soft++)
        freed =
            make_bytes(s, a, s->stats.used - low, DRAIN_STEP / 2, now, soft != 0, &on_way, after);
    return s->evicting && freed != 0 && !on_way;
}

/* More than there may be now: [store] size has come down with a new agent. */
static void shed(struct mco_store *s, uint64_t now, struct mco_after *after)
{
    struct mco_arena *most = NULL;
    unsigned looks = 0;

    if (s->extent_bytes <= s->o.size + s->idle_bytes || s->drains != MCO_NONE || s->o.idle == NULL)
        return;
    for (uint32_t i = 0; i < s->tenants_size; i++)
        for (unsigned k = 0; k < 2 && s->tenants[i] != NULL; k++)
            if (most == NULL || s->tenants[i]->arenas[k].bytes > most->bytes)
                most = &s->tenants[i]->arenas[k];
    (void)drain_one(s, most, &looks, now, after);
}

static void tell_of_stalls(struct mco_store *s, uint64_t now)
{
    bool stalls;

    mco_lock(&s->lock);
    stalls = mco_disk_stalls(s, now);
    mco_unlock(&s->lock);
    if (stalls && !s->told_stalls && s->o.log != NULL)
        s->o.log(1, "the store's disk has written nothing for seconds: until it does, what finds "
                    "no room in memory is dropped");
    if (!stalls && s->told_stalls && s->o.log != NULL)
        s->o.log(2, "the store's disk writes again");
    s->told_stalls = stalls;
}

bool mco_upkeep(struct mco_store *s, uint64_t now)
{
    struct mco_after after;
    bool more = true, drains;

    mco_table_ahead(s);
    tell_of_stalls(s, now);
    for (unsigned i = 0; i < SOME / DRAIN_STEP && more; i++) {
        mco_after_init(&after);
        after.background = true;
        mco_lock(&s->lock);
        mco_sweep(s, now, &after);
        drains = drain_more(s, now, &after);
        shed(s, now, &after);
        mco_count_leases(s, now);
        s->waited = (i > 0 && s->waited) ||
                    mcs_load_relaxed(&s->waiting) != 0; /* partner: mco_make_space() */
        mco_space_freed(s, &after); /* leases have run out, what was refused may be there now */
        more = shrink(s, now, &after) || drains;
        if (s->starving != NULL && now >= s->starving_until)
            s->starving = NULL;
        mco_unlock(&s->lock);
        mco_run_after(s, &after);
    }
    return more;
}
