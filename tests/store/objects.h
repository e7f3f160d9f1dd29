/* SPDX-License-Identifier: Apache-2.0 */
/* A store of objects and its owner, who gives it extents of ordinary memory. */
#ifndef TESTS_STORE_OBJECTS_H
#define TESTS_STORE_OBJECTS_H

#include <criterion/criterion.h>
#include <fcntl.h>
#include <isa-l/crc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/object/store.h"

#define MIB (UINT64_C(1) << 20)
#define KIB (UINT64_C(1) << 10)
#define WORLD_EXTENTS 4096u

struct world_extent {
    uint32_t id;
    void *map;
    uint64_t size;
    bool idle;
};

struct world {
    struct mco_options o;
    struct mco_store *s;
    struct world_extent extents[WORLD_EXTENTS];
    unsigned count;
    /* asked for, and not served yet */
    struct {
        uint64_t tenant, size;
        bool open;
    } wants[64];
    unsigned nwants;
    uint32_t idles[WORLD_EXTENTS];
    unsigned nidles;
    unsigned ready, events[8];
    char last_key[64]; /* of the last event */
    bool fails;        /* extents cannot be had */
    bool lazy;         /* extents come only with world_serve() */
};

static inline void world_want(void *context, uint64_t tenant, bool open, uint64_t size)
{
    struct world *w = context;

    cr_assert(w->nwants < 64);
    w->wants[w->nwants].tenant = tenant;
    w->wants[w->nwants].open = open;
    w->wants[w->nwants++].size = size;
}

static inline void world_idle(void *context, uint32_t extent)
{
    struct world *w = context;

    w->idles[w->nidles++] = extent;
}

static inline void world_ready(void *context)
{
    ((struct world *)context)->ready++;
}

static inline void world_event(void *context, const struct mco_event *e)
{
    struct world *w = context;

    w->events[e->kind]++;
    snprintf(w->last_key, sizeof(w->last_key), "%.*s", (int)e->key.length,
             (const char *)e->key.bytes);
}

static inline struct mco_options world_options(struct world *w, uint64_t size, uint64_t extent_size)
{
    return (struct mco_options){.size = size,
                                .extent_size = extent_size,
                                .objects = 20000,
                                .high = 100,
                                .low = 95,
                                .policy = "lru",
                                .lease_ns = 1000000000,
                                .table_fd = -1,
                                .context = w,
                                .want = world_want,
                                .idle = world_idle,
                                .ready = world_ready,
                                .event = world_event};
}

static inline void world_open(struct world *w)
{
    char error[256] = "";

    cr_assert_eq(mco_create(&w->o, &w->s, error, sizeof(error)), 0, "%s", error);
}

/* A fresh store. */
static inline void world_init(struct world *w, uint64_t size, uint64_t extent_size)
{
    struct mco_recovered r;

    memset(w, 0, sizeof(*w));
    w->o = world_options(w, size, extent_size);
    world_open(w);
    mco_recover(w->s, &r);
    cr_assert_eq(r.objects + r.torn + r.guarded, 0u);
}

static inline void world_fini(struct world *w)
{
    mco_destroy(w->s);
    for (unsigned i = 0; i < w->count; i++)
        if (w->extents[i].map != NULL)
            munmap(w->extents[i].map, w->extents[i].size);
}

/* The owner does what it was asked. Returns how much it did. */
static inline unsigned world_serve(struct world *w)
{
    unsigned done = 0;

    while (w->nidles > 0) {
        uint32_t id = w->idles[--w->nidles];

        done++;
        if (mco_extent_remove(w->s, id) != 0)
            continue;
        for (unsigned i = 0; i < w->count; i++)
            if (w->extents[i].id == id) {
                munmap(w->extents[i].map, w->extents[i].size);
                w->extents[i].map = NULL;
                w->extents[i].id = 0;
            }
    }
    while (w->nwants > 0) {
        struct mco_extent e = {.tenant = w->wants[w->nwants - 1].tenant,
                               .open = w->wants[w->nwants - 1].open,
                               .size = w->wants[w->nwants - 1].size,
                               .page_size = 4096,
                               .node = -1};
        struct world_extent *x = &w->extents[w->count];

        w->nwants--;
        done++;
        if (w->fails) {
            mco_extent_failed(w->s, e.tenant, e.open);
            continue;
        }
        cr_assert(w->count < WORLD_EXTENTS);
        /* shared, so that a child may write it */
        e.map = mmap(NULL, e.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(e.map, MAP_FAILED);
        e.owner = x;
        e.address = (uint64_t)(uintptr_t)e.map;
        if (mco_extent_add(w->s, &e, &x->id) != 0) {
            munmap(e.map, e.size);
            continue;
        }
        x->map = e.map;
        x->size = e.size;
        w->count++;
    }
    return done;
}

static inline struct mco_key key_of(uint64_t tenant, const char *text)
{
    return mco_key(tenant, text, (uint32_t)strlen(text));
}

/* As begin, with an owner who serves; tells NO_SPACE and the like. */
static inline enum mcs_status world_begin(struct world *w, const struct mco_put *p,
                                          struct mco_view *v)
{
    enum mcs_status status = mco_begin(w->s, p, v);

    for (unsigned i = 0; i < 100 && status == MCS_BUSY && !w->lazy; i++) {
        if (world_serve(w) == 0 && i > 0 && w->ready == 0)
            break;
        w->ready = 0;
        status = mco_begin(w->s, p, v);
    }
    return status;
}

static inline uint32_t crc_of(const void *data, uint64_t size)
{
    return size == 0 ? 0 : crc32_iscsi((unsigned char *)(uintptr_t)data, (int)size, 0);
}

/* Bytes that tell whose they are. */
static inline void fill(uint8_t *data, uint64_t size, uint64_t seed)
{
    for (uint64_t i = 0; i < size; i++)
        data[i] = (uint8_t)(seed * 31 + i * 7 + (i >> 8));
}

static inline enum mcs_status put(struct world *w, uint64_t tenant, const char *text, uint64_t size,
                                  uint32_t flags, uint64_t seed)
{
    struct mco_put p = {.key = key_of(tenant, text), .size = size, .flags = flags};
    struct mco_view v;
    enum mcs_status status;

    p.hint.position = MCO_POSITION_NONE;
    status = world_begin(w, &p, &v);
    if (status != MCS_OK)
        return status;
    if (size != 0)
        fill(v.data, size, seed);
    return mco_seal(w->s, v.object, crc_of(v.data, size), true, 1);
}

/* Pinned, and with the bytes of the seed; unpinned again. */
static inline enum mcs_status get(struct world *w, uint64_t tenant, const char *text, uint64_t size,
                                  uint64_t seed)
{
    struct mco_key key = key_of(tenant, text);
    struct mco_hint hint = {.position = MCO_POSITION_NONE};
    struct mco_view v;
    enum mcs_status status = mco_pin(w->s, &key, &hint, 1, &v);

    if (status != MCS_OK)
        return status;
    cr_assert_eq(v.size, size);
    cr_assert_eq(v.crc, crc_of(v.data, size));
    for (uint64_t i = 0; i < size; i++)
        cr_assert_eq(v.data[i], (uint8_t)(seed * 31 + i * 7 + (i >> 8)), "%s at %llu", text,
                     (unsigned long long)i);
    mco_unpin(w->s, v.object);
    return MCS_OK;
}

static inline struct mco_stats stats_of(struct world *w)
{
    struct mco_stats st;

    mco_get_stats(w->s, &st);
    return st;
}

/* The agent dies; the next one has the table and the extents, but those that `lose` says. */
static inline struct mco_recovered world_die(struct world *w, bool (*lose)(unsigned i))
{
    struct mco_recovered r;

    w->o.table_fd = fcntl(mco_table_fd(w->s), F_DUPFD_CLOEXEC, 0);
    cr_assert(w->o.table_fd >= 0);
    mco_destroy(w->s);
    w->nwants = w->nidles = 0;
    world_open(w);
    for (unsigned i = 0; i < w->count; i++) {
        if (w->extents[i].id == 0)
            continue;
        if (lose != NULL && lose(i))
            mco_extent_lost(w->s, w->extents[i].id);
        else
            mco_extent_back(w->s, w->extents[i].id, w->extents[i].map, &w->extents[i]);
    }
    mco_recover(w->s, &r);
    return r;
}

#endif
