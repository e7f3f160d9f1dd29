/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random sequences beside a tiny model that knows who has pinned what: the store may evict as it likes, but never
 * what the model says is held; figures agree after each step; and when all have let go, everything may go.
 */
#include "tests/store/objects.h"

#define KEYS 40u
#define HELD 60u
#define STEPS 4000u

static struct world w;

static struct model {
    bool there, hard;
    uint32_t life; /* of its bytes */
    uint64_t size, lease_until, group;
    unsigned pins, in_place;
} keys[KEYS];

/* What the test holds; of a life that may have left since. */
static struct held {
    struct mco_view v;
    unsigned key;
    uint32_t life;
    bool writing, in_place;
} held[HELD];
static unsigned nheld;
static uint64_t now, state;
static uint32_t life;

static uint32_t pick(uint32_t below)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

static struct mco_key key_at(unsigned k)
{
    static char names[KEYS][80];

    snprintf(names[k], sizeof(names[k]), "%0*u", k % 2 == 0 ? 10 : 70, k);
    return key_of(1 + k % 2, names[k]);
}

static void model_event(void *context, const struct mco_event *e)
{
    unsigned k = (unsigned)strtoul(e->key.bytes, NULL, 10);
    char text[80];

    (void)context;
    memcpy(text, e->key.bytes, e->key.length);
    text[e->key.length] = '\0';
    k = (unsigned)strtoul(text, NULL, 10);
    cr_assert(k < KEYS);
    if (e->kind != MCO_EVICTED)
        return;
    cr_assert(keys[k].there);
    cr_assert_not(keys[k].hard, "pinned hard");
    cr_assert_eq(keys[k].pins, 0u, "somebody reads it");
    cr_assert(keys[k].lease_until <= now, "leased");
    keys[k].there = false;
}

static void set_bytes(const struct mco_view *v, uint32_t value)
{
    for (uint64_t i = 0; i + 4 <= v->size; i += 4)
        memcpy(v->data + i, &value, 4);
}

static void check_bytes(const struct held *h)
{
    for (uint64_t i = 0; i + 4 <= h->v.size; i += h->v.size / 64 * 4 + 4)
        cr_assert_eq(memcmp(h->v.data + i, &h->life, 4), 0, "key %u: memory used again", h->key);
}

static void begin_put(void)
{
    unsigned k = pick(KEYS), hard = pick(30) == 0;
    struct mco_put p = {.key = key_at(k), .size = 4 * pick(40000)};
    struct held *h = &held[nheld];
    enum mcs_status status;

    p.flags = (pick(2) != 0 ? MCS_OBJECT_UPSERT : 0) | (hard ? MCS_OBJECT_HARD_PIN : 0);
    p.group = k < 6 ? 9 : 0;
    p.open = k % 3 == 0;
    p.hint.now_ns = now;
    status = world_begin(&w, &p, &h->v);
    if (keys[k].there && (p.flags & MCS_OBJECT_UPSERT) == 0)
        cr_assert(status == MCS_EXISTS, "%d", status);
    if (status != MCS_OK)
        return;
    h->key = k;
    h->life = ++life;
    h->writing = true;
    h->in_place = p.open && hard;
    if (h->in_place)
        mco_pin_in_place(w.s, h->v.object, true);
    set_bytes(&h->v, h->life);
    nheld++;
}

static void end_put(struct held *h)
{
    struct model *m = &keys[h->key];
    bool aborts = pick(4) == 0;
    struct mco_listed o;
    struct mco_key key = key_at(h->key);

    if (h->in_place)
        mco_pin_in_place(w.s, h->v.object, false);
    if (aborts) {
        mco_abort(w.s, h->v.object);
        return;
    }
    /* the seal may not evict, so the old life leaves by it alone */
    cr_assert_eq(mco_seal(w.s, h->v.object, h->life, false, 1), MCS_OK);
    *m = (struct model){.there = true, .life = h->life, .size = h->v.size};
    cr_assert(mco_stat(w.s, &key, &o));
    m->hard = o.hard_pin;
    cr_assert_eq(o.size, h->v.size);
}

static void begin_get(void)
{
    unsigned k = pick(KEYS);
    struct mco_key key = key_at(k);
    struct held *h = &held[nheld];
    struct mco_hint hint = {.now_ns = now, .position = MCO_POSITION_NONE};
    enum mcs_status status = mco_pin(w.s, &key, &hint, now, &h->v);

    cr_assert_eq(status, keys[k].there ? MCS_OK : MCS_NOT_FOUND, "key %u: %d", k, status);
    if (status != MCS_OK)
        return;
    cr_assert_eq(h->v.crc, keys[k].life);
    cr_assert_eq(h->v.size, keys[k].size);
    h->key = k;
    h->life = keys[k].life;
    h->writing = false;
    h->in_place = pick(2) != 0;
    keys[k].pins++;
    if (h->in_place) {
        mco_pin_in_place(w.s, h->v.object, true);
        keys[k].in_place++;
    }
    nheld++;
}

static void end_get(struct held *h)
{
    struct model *m = &keys[h->key];

    check_bytes(h);
    if (m->there && m->life == h->life) {
        m->pins--;
        m->in_place -= h->in_place;
        if (pick(5) == 0) {
            m->lease_until = now + pick(2000);
            mco_lease(w.s, h->v.object, m->lease_until);
        }
    }
    if (h->in_place)
        mco_pin_in_place(w.s, h->v.object, false);
    mco_unpin(w.s, h->v.object);
}

static void end_one(unsigned i)
{
    struct held h = held[i];

    held[i] = held[--nheld];
    if (h.writing)
        end_put(&h);
    else
        end_get(&h);
}

static void remove_one(void)
{
    unsigned k = pick(KEYS);
    struct mco_key key = key_at(k);
    bool force = pick(2) != 0, free_now;
    struct model *m = &keys[k];
    enum mcs_status status = mco_remove(w.s, &key, NULL, force, now);

    free_now = m->pins == 0 && m->lease_until <= now && !m->hard;
    cr_assert_eq(status, !m->there ? MCS_NOT_FOUND : force || free_now ? MCS_OK : MCS_IN_USE);
    if (status == MCS_OK)
        *m = (struct model){.there = false};
}

static void damage_one(void)
{
    struct held *h = nheld == 0 ? NULL : &held[pick(nheld)];

    if (h == NULL || h->writing)
        return;
    mco_damaged(w.s, h->v.object);
    if (keys[h->key].there && keys[h->key].life == h->life)
        keys[h->key] = (struct model){.there = false};
}

static void check_figures(void)
{
    struct mco_stats st = stats_of(&w);
    uint64_t there = 0, bytes = 0, in_place = 0, writing = 0;

    for (unsigned k = 0; k < KEYS; k++) {
        struct mco_key key = key_at(k);
        struct mco_listed o;
        bool found = mco_stat(w.s, &key, &o);

        cr_assert_eq(found, keys[k].there, "key %u", k);
        if (!found)
            continue;
        cr_assert_eq(o.pins, keys[k].pins, "key %u: %u pins, not %u", k, o.pins, keys[k].pins);
        cr_assert_eq(o.in_place, keys[k].in_place);
        there++;
        bytes += keys[k].size;
    }
    for (unsigned i = 0; i < nheld; i++) {
        in_place += held[i].in_place;
        writing += held[i].writing;
        check_bytes(&held[i]);
    }
    cr_assert_eq(st.objects, there);
    cr_assert_eq(st.bytes, bytes);
    cr_assert_eq(st.in_place, in_place);
    cr_assert_eq(st.writing, writing);
}

static void run(uint64_t seed)
{
    struct mco_key key;

    world_init(&w, 4 * MIB, MIB);
    mco_destroy(w.s);
    w.o.event = model_event;
    world_open(&w);
    mco_recover(w.s, &(struct mco_recovered){0});
    memset(keys, 0, sizeof(keys));
    nheld = 0;
    state = seed;
    now = 1000;
    for (unsigned i = 0; i < STEPS; i++) {
        now += pick(200);
        switch (pick(10)) {
        case 0:
        case 1:
        case 2:
            if (nheld < HELD)
                begin_put();
            break;
        case 3:
        case 4:
            if (nheld < HELD)
                begin_get();
            break;
        case 5:
        case 6:
        case 7:
            if (nheld > 0)
                end_one(pick(nheld));
            break;
        case 8:
            if (pick(3) == 0)
                remove_one();
            else if (pick(5) == 0)
                damage_one();
            break;
        default:
            (void)mco_upkeep(w.s, now);
            world_serve(&w);
            break;
        }
        check_figures();
    }
    while (nheld > 0)
        end_one(0);
    now += 10000;
    for (unsigned k = 0; k < KEYS; k++)
        if (keys[k].hard) {
            key = key_at(k);
            cr_assert_eq(mco_remove(w.s, &key, NULL, true, now), MCS_OK);
            keys[k] = (struct model){.there = false};
        }
    (void)mco_upkeep(w.s, now);
    for (unsigned i = 0; i < 20; i++) {
        struct mco_put p = {.key = key_at(0), .size = MIB, .flags = MCS_OBJECT_UPSERT};
        struct mco_view v;

        p.hint.now_ns = now;
        key = key_at(0);
        if (mco_remove(w.s, &key, NULL, true, now) == MCS_OK)
            keys[0] = (struct model){.there = false};
        cr_assert_eq(world_begin(&w, &p, &v), MCS_OK, "everything may go");
        mco_abort(w.s, v.object);
        p.size = 4 * MIB;
        p.open = i % 2 != 0;
        world_serve(&w);
        cr_assert_eq(world_begin(&w, &p, &v), MCS_OK, "also in one piece");
        mco_abort(w.s, v.object);
        world_serve(&w);
    }
    world_fini(&w);
}

Test(object_model, pins_are_what_the_model_says, .timeout = 200)
{
    for (uint64_t seed = 1; seed <= 12; seed++)
        run(seed * 7919);
}

/* ---- whose extent is gone ------------------------------------------------------------------------- */

enum deed { PUT, ABORT, SEAL, GET, EXISTS, REMOVE, UPSERT, DAMAGE, DEEDS };

static void do_deed(enum deed d, struct mco_view *writing)
{
    struct mco_put p = {.key = key_of(1, "k"), .size = 1000};
    struct mco_view v;
    uint8_t status = 0;

    switch (d) {
    case UPSERT:
        p.flags = MCS_OBJECT_UPSERT;
        /* fall through */
    case PUT:
        if (writing->object == NULL && world_begin(&w, &p, &v) == MCS_OK) {
            set_bytes(&v, 5);
            *writing = v;
        }
        break;
    case ABORT:
        if (writing->object != NULL)
            mco_abort(w.s, writing->object);
        writing->object = NULL;
        break;
    case SEAL:
        if (writing->object != NULL)
            mco_seal(w.s, writing->object, 5, false, 1);
        writing->object = NULL;
        break;
    case GET:
        if (mco_pin(w.s, &p.key, NULL, 1, &v) == MCS_OK) {
            cr_assert_eq(v.data[0], 5);
            mco_unpin(w.s, v.object);
        }
        break;
    case EXISTS:
        mco_exist(w.s, &p.key, NULL, 1, 0, 1, &status, NULL);
        break;
    case REMOVE:
        mco_remove(w.s, &p.key, NULL, true, 1);
        break;
    default:
        if (mco_pin(w.s, &p.key, NULL, 1, &v) == MCS_OK) {
            mco_damaged(w.s, v.object);
            mco_unpin(w.s, v.object);
        }
        break;
    }
}

static bool lose_all(unsigned i)
{
    (void)i;
    return true;
}

/* Objects that are written, sealed, left while the extent goes with the agent's death; then all that one may do, in all orders. */
Test(object_model, whose_extent_is_gone_in_all_orders, .timeout = 200)
{
    for (unsigned order = 0; order < DEEDS * DEEDS * DEEDS; order++) {
        enum deed deeds[3] = {(enum deed)(order % DEEDS), (enum deed)(order / DEEDS % DEEDS),
                              (enum deed)(order / DEEDS / DEEDS)};

        for (unsigned before = 0; before < 3; before++) {
            struct mco_view writing = {.object = NULL};

            world_init(&w, MIB, MIB / 4);
            do_deed(PUT, &writing);
            if (before > 0)
                do_deed(SEAL, &writing);
            if (before > 1)
                do_deed(UPSERT, &writing);
            (void)world_die(&w, order % 2 != 0 ? lose_all : NULL);
            for (unsigned i = 0; i < w.count && order % 2 != 0; i++)
                w.extents[i].id = 0;
            writing.object = NULL;
            for (unsigned i = 0; i < 3; i++)
                do_deed(deeds[i], &writing);
            for (unsigned i = 0; i < 3; i++)
                do_deed(deeds[2 - i], &writing);
            do_deed(ABORT, &writing);
            (void)world_die(&w, NULL);
            do_deed(GET, &writing);
            world_fini(&w);
        }
    }
}
