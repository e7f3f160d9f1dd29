/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants: what each has, and the order in which its objects go. Under the store's lock. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static uint32_t place_of(const struct mco_store *s, uint64_t tenant)
{
    uint64_t h = (tenant ^ tenant >> 32) * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)(h >> 32) & (s->tenants_size - 1);
}

struct mco_tenant *mco_tenant_find(const struct mco_store *s, uint64_t tenant)
{
    if (s->tenants_size == 0)
        return NULL;
    for (uint32_t i = place_of(s, tenant);; i = (i + 1) & (s->tenants_size - 1))
        if (s->tenants[i] == NULL || s->tenants[i]->tenant == tenant)
            return s->tenants[i];
}

static int grow(struct mco_store *s)
{
    uint32_t old = s->tenants_size, size = old == 0 ? 16 : old * 2;
    struct mco_tenant **to = calloc(size, sizeof(struct mco_tenant *)), **from = s->tenants;

    if (to == NULL)
        return -ENOMEM;
    s->tenants = to;
    s->tenants_size = size;
    for (uint32_t i = 0; i < old; i++)
        if (from[i] != NULL) {
            uint32_t k = place_of(s, from[i]->tenant);

            while (to[k] != NULL)
                k = (k + 1) & (size - 1);
            to[k] = from[i];
        }
    free(from);
    return 0;
}

struct mco_tenant *mco_tenant_get(struct mco_store *s, uint64_t tenant)
{
    struct mco_tenant *t = mco_tenant_find(s, tenant);
    uint32_t i;

    if (t != NULL)
        return t;
    if (s->tenants_used * 2 >= s->tenants_size && grow(s) != 0)
        return NULL;
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return NULL;
    t->tenant = tenant;
    for (unsigned k = 0; k < 2; k++) {
        struct mco_arena *a = &t->arenas[k];

        a->tenant = t;
        a->open = k == 1;
        a->ops = s->ops;
        a->first = MCO_NONE;
        memset(a->bins, 0xff, sizeof(a->bins));
    }
    i = place_of(s, tenant);
    while (s->tenants[i] != NULL)
        i = (i + 1) & (s->tenants_size - 1);
    s->tenants[i] = t;
    s->tenants_used++;
    return t;
}

uint64_t mco_tenant_records(const struct mco_store *s, const struct mco_tenant *t)
{
    uint64_t all = s->table.max_records, share;

    if (t->limit == 0 || t->limit >= s->o.size)
        return all;
    share = (uint64_t)((double)all * ((double)t->limit / (double)s->o.size));
    return share > 0 ? share : 1;
}

int mco_arena_ready(struct mco_store *s, struct mco_arena *a)
{
    return a->policy != NULL ? 0 : a->ops->create(s->o.size, &a->policy);
}

void mco_tenants_free(struct mco_store *s)
{
    for (uint32_t i = 0; i < s->tenants_size; i++) {
        if (s->tenants[i] == NULL)
            continue;
        for (unsigned k = 0; k < 2; k++)
            if (s->tenants[i]->arenas[k].policy != NULL)
                s->ops->destroy(s->tenants[i]->arenas[k].policy);
        free(s->tenants[i]);
    }
    free(s->tenants);
}

struct mco_arena *mco_arena_of(const struct mco_store *s, uint32_t n)
{
    const struct mco_record *r = mco_record_at(s, n);
    struct mco_tenant *t = mco_tenant_find(s, r->tenant); /* it is there as long as objects are */

    return &t->arenas[(r->flags & MCO_OPEN) != 0];
}

void mco_step_over(struct mco_arena *a, struct mco_policy_entry *e)
{
    for (unsigned soft = 0; soft < 2; soft++)
        if (a->resume[soft] == e)
            a->resume[soft] = a->ops->next(a->policy, e);
}

void mco_order(struct mco_store *s, uint32_t n, const struct mco_hint *hint)
{
    struct mco_record *r = mco_record_at(s, n);
    struct mco_arena *a = mco_arena_of(s, n);

    if ((r->flags & MCO_HARD) != 0)
        return; /* it never is a candidate */
    memset(s->entries[n].words, 0, sizeof(s->entries[n].words));
    r->marks |= MCO_ORDERED;
    a->ordered++;
    a->ops->insert(a->policy, &s->entries[n], hint);
}

void mco_unorder(struct mco_store *s, uint32_t n, bool evicted)
{
    struct mco_record *r = mco_record_at(s, n);
    struct mco_arena *a = mco_arena_of(s, n);

    if (evicted)
        a->tenant->evictions++;
    if ((r->marks & MCO_ORDERED) == 0)
        return;
    r->marks &= (uint8_t)~MCO_ORDERED;
    mco_step_over(a, &s->entries[n]);
    a->ordered--;
    a->ops->remove(a->policy, &s->entries[n], evicted);
}

void mco_counted(struct mco_store *s, uint32_t n, bool comes)
{
    struct mco_tenant *t = mco_arena_of(s, n)->tenant;
    uint64_t one = comes ? 1 : UINT64_MAX, size = mco_record_at(s, n)->size;

    size = comes ? size : -size;
    s->stats.objects += one;
    s->stats.bytes += size;
    t->objects += one;
    t->bytes += size;
}

void mco_counted_on_disk(struct mco_store *s, uint32_t n, bool comes)
{
    uint64_t size = mco_record_at(s, n)->size;

    s->stats.disk_objects += comes ? 1 : UINT64_MAX;
    s->stats.disk_bytes += comes ? size : -size;
}

void mco_tenant_limit(struct mco_store *s, uint64_t tenant, uint64_t bytes)
{
    struct mco_tenant *t;

    mco_lock(&s->lock);
    t = bytes != 0 ? mco_tenant_get(s, tenant) : mco_tenant_find(s, tenant);
    if (t != NULL)
        t->limit = bytes;
    mco_unlock(&s->lock);
}

size_t mco_tenants(struct mco_store *s, struct mco_tenant_stats *out, size_t n)
{
    size_t count = 0;

    mco_lock(&s->lock);
    for (uint32_t i = 0; i < s->tenants_size; i++) {
        const struct mco_tenant *t = s->tenants[i];

        if (t == NULL)
            continue;
        if (count < n)
            out[count] = (struct mco_tenant_stats){
                .tenant = t->tenant,
                .limit = t->limit,
                .extent_bytes = t->arenas[0].bytes + t->arenas[1].bytes,
                .objects = t->objects,
                .bytes = t->bytes,
                .hits = t->hits,
                .misses = t->misses,
                .evictions = t->evictions,
                .refused = t->refused,
            };
        count++;
    }
    mco_unlock(&s->lock);
    return count;
}
