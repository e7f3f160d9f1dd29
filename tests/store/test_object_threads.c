/* SPDX-License-Identifier: Apache-2.0 */
/* Engines and the control thread at once. */
#include <pthread.h>

#include "shm/atomic.h"
#include "tests/store/objects.h"

#define THREADS 4u
#define KEYS 200u
#define STEPS 6000u

static struct world w;
static pthread_mutex_t served = PTHREAD_MUTEX_INITIALIZER;
static uint32_t stop;

static void want_locked(void *context, uint64_t tenant, bool open, uint64_t size)
{
    pthread_mutex_lock(&served);
    world_want(context, tenant, open, size);
    pthread_mutex_unlock(&served);
}

static void idle_locked(void *context, uint32_t extent)
{
    pthread_mutex_lock(&served);
    world_idle(context, extent);
    pthread_mutex_unlock(&served);
}

static void count_ready(void *context)
{
    mcs_fetch_add(&((struct world *)context)->ready, 1u); /* partner: itself, in other threads */
}

static void count_event(void *context, const struct mco_event *e)
{
    struct world *x = context;

    x->events[e->kind]++; /* under the store's lock */
}

static uint32_t next_random(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525 + 1013904223;
    return (*state >> 8) % below;
}

/* The owner: gives and takes extents, which nobody but it touches. */
static void *own(void *unused)
{
    uint64_t cursor = 0;

    (void)unused;
    while (mcs_load_acquire(&stop) == 0) { /* partner: the test's end */
        struct world asked;

        pthread_mutex_lock(&served);
        asked.nwants = w.nwants;
        memcpy(asked.wants, w.wants, sizeof(asked.wants));
        asked.nidles = w.nidles;
        memcpy(asked.idles, w.idles, sizeof(w.idles[0]) * w.nidles);
        w.nwants = w.nidles = 0;
        pthread_mutex_unlock(&served);
        for (unsigned i = 0; i < asked.nidles; i++) {
            if (mco_extent_remove(w.s, asked.idles[i]) != 0)
                continue;
            for (unsigned k = 0; k < w.count; k++)
                if (w.extents[k].id == asked.idles[i]) {
                    munmap(w.extents[k].map, w.extents[k].size);
                    w.extents[k] = (struct world_extent){0};
                }
        }
        for (unsigned i = 0; i < asked.nwants; i++) {
            struct mco_extent e = {.tenant = asked.wants[i].tenant,
                                   .open = asked.wants[i].open,
                                   .size = asked.wants[i].size,
                                   .page_size = 4096};
            struct world_extent *x = &w.extents[w.count];

            e.map = mmap(NULL, e.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            e.owner = x;
            if (mco_extent_add(w.s, &e, &x->id) != 0) {
                munmap(e.map, e.size);
                continue;
            }
            x->map = e.map;
            x->size = e.size;
            w.count++;
        }
        mco_upkeep(w.s, 1000);
        (void)stats_of(&w);
        if (cursor == UINT64_MAX)
            cursor = 0;
        sched_yield();
    }
    return NULL;
}

/* Bytes of an object all say whose they are and which life; they never change under a reader. */
static void write_life(struct mco_view *v, uint32_t key, uint32_t life)
{
    uint32_t *p = (uint32_t *)v->data;

    for (uint64_t i = 0; i + 8 <= v->size; i += 8) {
        *p++ = key;
        *p++ = life;
    }
}

static void check_life(const struct mco_view *v, uint32_t key)
{
    const uint32_t *p = (const uint32_t *)v->data;

    cr_assert_eq(p[0], key);
    for (uint64_t i = 0; i + 8 <= v->size; i += 8, p += 2)
        if (p[0] != key || p[1] != v->crc)
            cr_assert(false, "foreign bytes in key %u: %u %u, not %u", key, p[0], p[1], v->crc);
}

struct engine {
    unsigned number;
    unsigned puts, gets, refused;
};

static void step(struct engine *g, uint32_t *state, uint32_t life)
{
    uint32_t k = next_random(state, KEYS), what = next_random(state, 10);
    uint64_t tenant = k % 2;
    struct mco_put p = {.size = 8 * (1 + next_random(state, 5000))};
    struct mco_hint hint = {.now_ns = 100, .position = MCO_POSITION_NONE};
    enum mcs_status status;
    struct mco_key keys[8];
    uint8_t found[8];
    char names[8][32];
    struct mco_view v;

    snprintf(names[0], sizeof(names[0]), "key-%u-and-some-more", k);
    p.key = keys[0] = key_of(tenant, names[0]);
    p.hint = hint;
    p.flags = next_random(state, 2) != 0 ? MCS_OBJECT_UPSERT : 0;
    p.group = k % 10 == 0 ? 5 : 0;
    p.open = k % 3 == 0;
    if (what < 5) {
        status = mco_begin(w.s, &p, &v);
        for (unsigned i = 0; i < 200 && status == MCS_BUSY; i++) {
            sched_yield();
            status = mco_begin(w.s, &p, &v);
        }
        if (status == MCS_OK) {
            write_life(&v, k, life);
            if (next_random(state, 20) == 0)
                mco_abort(w.s, v.object);
            else
                g->puts += mco_seal(w.s, v.object, life, true, 1) == MCS_OK;
        } else {
            g->refused += status == MCS_BUSY || status == MCS_NO_SPACE;
        }
    } else if (what < 8) {
        if (mco_pin(w.s, &p.key, &hint, 100, &v) == MCS_OK) {
            if (what == 7) {
                mco_pin_again(w.s, v.object);
                mco_pin_in_place(w.s, v.object, true);
            }
            check_life(&v, k);
            if (next_random(state, 8) == 0)
                mco_lease(w.s, v.object, 100 + next_random(state, 2000));
            if (what == 7) {
                mco_pin_in_place(w.s, v.object, false);
                mco_unpin(w.s, v.object);
            }
            check_life(&v, k);
            mco_unpin(w.s, v.object);
            g->gets++;
        }
    } else if (what == 8) {
        (void)mco_remove(w.s, &p.key, NULL, next_random(state, 2) != 0, 100);
        (void)mco_leaving(w.s, &p.key);
        mco_set_copies(w.s, &p.key, 2);
    } else {
        struct mco_hint hints[8];

        for (unsigned i = 0; i < 8; i++) {
            snprintf(names[i], sizeof(names[i]), "key-%u-and-some-more", (k + i) % KEYS);
            keys[i] = key_of((k + i) % KEYS % 2, names[i]);
            hints[i] = hint;
        }
        mco_exist(w.s, keys, next_random(state, 2) != 0 ? hints : NULL, 8,
                  next_random(state, 10) == 0 ? 5 : 0, 100, found, NULL);
    }
}

static void *engine(void *context)
{
    struct engine *g = context;
    uint32_t state = g->number * 7919 + 1;

    for (uint32_t i = 0; i < STEPS; i++)
        step(g, &state, g->number * STEPS + i);
    return NULL;
}

static bool look(void *context, const struct mco_listed *o)
{
    (void)o;
    ++*(unsigned *)context;
    return true;
}

static void *walk(void *context)
{
    uint64_t cursor = 0;

    while (mcs_load_acquire(&stop) == 0) { /* partner: the test's end */
        mco_walk(w.s, UINT64_MAX, &cursor, look, context);
        if (cursor == UINT64_MAX)
            cursor = 0;
        mco_note_token(w.s, mco_token(w.s) + 1);
        sched_yield();
    }
    return NULL;
}

static void run(uint64_t limit)
{
    struct engine g[THREADS];
    pthread_t threads[THREADS], owner, walker;
    unsigned puts = 0, gets = 0, seen = 0;
    struct mco_stats st;
    uint64_t cursor = 0;

    world_init(&w, 4 * MIB, 512 * KIB);
    mco_destroy(w.s);
    w.o.want = want_locked;
    w.o.idle = idle_locked;
    w.o.ready = count_ready;
    w.o.event = count_event;
    w.o.objects = 150;
    w.o.high = 90;
    w.o.low = 80;
    world_open(&w);
    mco_recover(w.s, &(struct mco_recovered){0});
    mco_tenant_limit(w.s, 1, limit);
    stop = 0;
    cr_assert_eq(pthread_create(&owner, NULL, own, NULL), 0);
    cr_assert_eq(pthread_create(&walker, NULL, walk, &seen), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        g[i] = (struct engine){.number = i + 1};
        cr_assert_eq(pthread_create(&threads[i], NULL, engine, &g[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        puts += g[i].puts;
        gets += g[i].gets;
    }
    mcs_store_release(&stop, 1u); /* partners: owner and walker */
    pthread_join(owner, NULL);
    pthread_join(walker, NULL);
    cr_assert(puts > STEPS / 10 && gets > STEPS / 10, "%u puts, %u gets", puts, gets);
    while (mco_upkeep(w.s, UINT64_MAX))
        continue;
    st = stats_of(&w);
    cr_assert_eq(st.pinned, 0u);
    cr_assert_eq(st.in_place, 0u);
    cr_assert_eq(st.writing, 0u);
    cr_assert_eq(st.leaving, 0u);
    cr_assert_eq(st.puts, puts);
    while (cursor != UINT64_MAX)
        mco_walk(w.s, UINT64_MAX, &cursor, look, &seen);
    for (uint32_t k = 0; k < KEYS; k++) {
        char name[32];
        struct mco_key key;

        snprintf(name, sizeof(name), "key-%u-and-some-more", k);
        key = key_of(k % 2, name);
        mco_remove(w.s, &key, NULL, true, UINT64_MAX);
    }
    mco_upkeep(w.s, UINT64_MAX);
    st = stats_of(&w);
    cr_assert_eq(st.used, 0u);
    cr_assert_eq(st.objects, 0u);
    world_fini(&w);
}

Test(object_threads, see_whole_objects_only, .timeout = 200)
{
    run(0);
}

Test(object_threads, also_under_a_limit, .timeout = 200)
{
    run(MIB);
}
