/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 4096u

static size_t bucket_of(const struct mcm_cache *c, const char *name)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */

    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        h = (h ^ *p) * 1099511628211u;
    return (size_t)((h ^ h >> 32) % c->buckets_n);
}

int mcm_cache_init(struct mcm_cache *c, size_t limit, const char *address, uint64_t incarnation)
{
    *c = (struct mcm_cache){.limit = limit,
                            .buckets_n = BUCKETS,
                            .address = address,
                            .incarnation = incarnation,
                            .buckets = calloc(BUCKETS, sizeof(struct mcm_cached *))};
    return c->buckets ? 0 : -ENOMEM;
}

void mcm_cache_fini(struct mcm_cache *c)
{
    for (size_t i = 0; c->buckets && i < c->buckets_n; i++) {
        struct mcm_cached *e = c->buckets[i], *next;

        for (; e; e = next) {
            next = e->next;
            free(e);
        }
    }
    free(c->buckets);
    c->buckets = NULL;
}

static struct mcm_cached **place_of(struct mcm_cache *c, const char *name)
{
    struct mcm_cached **p = &c->buckets[bucket_of(c, name)];

    while (*p && strcmp((*p)->record.name, name) != 0)
        p = &(*p)->next;
    return p;
}

struct mcm_cached *mcm_cache_find(struct mcm_cache *c, const char *name)
{
    return *place_of(c, name);
}

static bool ours(const struct mcm_cache *c, const struct mcm_record *r)
{
    return r->agent_incarnation == c->incarnation && strcmp(r->agent, c->address) == 0;
}

static void discard(struct mcm_cache *c, struct mcm_cached **at)
{
    struct mcm_cached *e = *at;

    *at = e->next;
    c->count--;
    c->own -= ours(c, &e->record);
    free(e);
}

/* Room for one more: a record nobody asked for goes, else any. */
static void make_room(struct mcm_cache *c)
{
    for (size_t pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < c->buckets_n; i++) {
            struct mcm_cached **p = &c->buckets[c->clock];

            c->clock = (c->clock + 1) % c->buckets_n;
            while (*p && pass == 0 && (*p)->used)
                p = &(*p)->next;
            if (*p) {
                discard(c, p);
                return;
            }
        }
}

static bool older(struct mcm_stamp a, struct mcm_stamp b)
{
    return a.epoch != b.epoch ? a.epoch < b.epoch : a.revision < b.revision;
}

bool mcm_cache_put(struct mcm_cache *c, const struct mcm_record *r, struct mcm_stamp stamp,
                   struct mcm_cached **kept)
{
    struct mcm_cached *e = mcm_cache_find(c, r->name);
    bool changed = false;
    size_t bucket;

    if (kept)
        *kept = NULL;
    if (e) {
        e->list = c->list;
        if (older(stamp, e->stamp))
            return false;
        changed = e->used && (e->record.incarnation != r->incarnation ||
                              e->record.agent_incarnation != r->agent_incarnation ||
                              strcmp(e->record.agent, r->agent) != 0);
        c->own -= ours(c, &e->record);
    } else {
        if (c->count >= c->limit)
            make_room(c);
        e = calloc(1, sizeof(*e));
        if (!e)
            return false;
        bucket = bucket_of(c, r->name);
        e->next = c->buckets[bucket];
        e->list = c->list;
        c->buckets[bucket] = e;
        c->count++;
    }
    e->record = *r;
    e->stamp = stamp;
    c->own += ours(c, r);
    if (kept)
        *kept = e;
    return changed;
}

bool mcm_cache_drop(struct mcm_cache *c, const char *name, struct mcm_stamp stamp)
{
    struct mcm_cached **at = place_of(c, name);
    bool used;

    if (!*at || older(stamp, (*at)->stamp))
        return false;
    used = (*at)->used;
    discard(c, at);
    return used;
}

void mcm_cache_list_begin(struct mcm_cache *c)
{
    c->list++;
}

/* Drops entries of up to `stamp`: those a listing did not name, or those of revision `from` on. */
static void purge(struct mcm_cache *c, bool unlisted, uint64_t from, struct mcm_stamp stamp,
                  void (*gone)(void *context, const char *name), void *context)
{
    for (size_t i = 0; i < c->buckets_n; i++) {
        struct mcm_cached **p = &c->buckets[i];

        while (*p) {
            char name[MCM_NAME_MAX];
            struct mcm_cached *e = *p;
            bool used = e->used;
            bool stays = unlisted ? e->list == c->list
                                  : e->stamp.epoch != stamp.epoch || e->stamp.revision < from;

            /* a lookup may have brought something newer */
            if (stays || older(stamp, e->stamp)) {
                p = &e->next;
                continue;
            }
            strcpy(name, e->record.name);
            discard(c, p);
            if (used)
                gone(context, name);
        }
    }
}

void mcm_cache_list_end(struct mcm_cache *c, struct mcm_stamp stamp,
                        void (*gone)(void *context, const char *name), void *context)
{
    purge(c, true, 0, stamp, gone, context);
}

void mcm_cache_sweep(struct mcm_cache *c, uint64_t from, struct mcm_stamp stamp,
                     void (*gone)(void *context, const char *name), void *context)
{
    purge(c, false, from, stamp, gone, context);
}
