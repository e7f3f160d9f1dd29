/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that are evicted together: the members of each group. Under the store's lock. */
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

struct mco_groups {
    struct mco_group **slots; /* by hash: open addressing, a power of two */
    uint32_t size, used;
    uint64_t bytes;
};

static uint32_t place_of(const struct mco_groups *g, uint64_t tenant, uint64_t hash)
{
    return (uint32_t)((hash ^ tenant * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (g->size - 1);
}

int mco_groups_create(struct mco_store *s)
{
    s->groups = calloc(1, sizeof(*s->groups));
    return s->groups == NULL ? -ENOMEM : 0;
}

void mco_groups_destroy(struct mco_store *s)
{
    struct mco_groups *g = s->groups;

    if (g == NULL)
        return;
    for (uint32_t i = 0; i < g->size; i++)
        if (g->slots[i] != NULL) {
            free(g->slots[i]->members);
            free(g->slots[i]);
        }
    free(g->slots);
    free(g);
}

static struct mco_group *find(const struct mco_groups *g, uint64_t tenant, uint64_t hash)
{
    if (g->size == 0)
        return NULL;
    for (uint32_t i = place_of(g, tenant, hash);; i = (i + 1) & (g->size - 1))
        if (g->slots[i] == NULL || (g->slots[i]->hash == hash && g->slots[i]->tenant == tenant))
            return g->slots[i];
}

static void put(struct mco_groups *g, struct mco_group *x)
{
    uint32_t i = place_of(g, x->tenant, x->hash);

    while (g->slots[i] != NULL)
        i = (i + 1) & (g->size - 1);
    g->slots[i] = x;
}

static int grow(struct mco_groups *g)
{
    uint32_t old = g->size, size = old == 0 ? 64 : old * 2;
    struct mco_group **from = g->slots, **to = calloc(size, sizeof(struct mco_group *));

    if (to == NULL)
        return -ENOMEM;
    g->slots = to;
    g->size = size;
    for (uint32_t i = 0; i < old; i++)
        if (from[i] != NULL)
            put(g, from[i]);
    free(from);
    g->bytes += (size - old) * sizeof(struct mco_group *);
    return 0;
}

static void drop(struct mco_groups *g, struct mco_group *x)
{
    uint32_t i = place_of(g, x->tenant, x->hash);

    while (g->slots[i] != x)
        i = (i + 1) & (g->size - 1);
    g->slots[i] = NULL;
    for (i = (i + 1) & (g->size - 1); g->slots[i] != NULL; i = (i + 1) & (g->size - 1)) {
        struct mco_group *moved = g->slots[i];

        g->slots[i] = NULL;
        put(g, moved);
    }
    g->used--;
    g->bytes -= sizeof(*x) + x->room * sizeof(*x->members);
    free(x->members);
    free(x);
}

struct mco_group *mco_group_of(struct mco_store *s, const struct mco_record *r)
{
    return (r->flags & MCO_GROUPED) == 0 ? NULL : find(s->groups, r->tenant, mco_record_group(r));
}

int mco_group_add(struct mco_store *s, uint32_t n)
{
    const struct mco_record *r = mco_record_at(s, n);
    struct mco_groups *g = s->groups;
    struct mco_group *x;

    if ((r->flags & MCO_GROUPED) == 0)
        return 0;
    x = mco_group_of(s, r);
    if (x != NULL && x->count == MCO_GROUP_MAX)
        return -ENOSPC;
    if (x == NULL) {
        if (g->used * 2 >= g->size && grow(g) != 0)
            return -ENOMEM;
        x = calloc(1, sizeof(*x));
        if (x == NULL)
            return -ENOMEM;
        x->tenant = r->tenant;
        x->hash = mco_record_group(r);
        put(g, x);
        g->used++;
        g->bytes += sizeof(*x);
    }
    if (x->count == x->room) {
        uint32_t room = x->room == 0 ? 4 : x->room * 2;
        uint32_t *members = realloc(x->members, room * sizeof(*members));

        if (members == NULL) {
            if (x->count == 0)
                drop(g, x);
            return -ENOMEM;
        }
        g->bytes += (room - x->room) * sizeof(*members);
        x->members = members;
        x->room = room;
    }
    x->members[x->count++] = n;
    return 0;
}

void mco_group_remove(struct mco_store *s, uint32_t n)
{
    struct mco_group *x = mco_group_of(s, mco_record_at(s, n));

    if (x == NULL)
        return;
    for (uint32_t i = x->count; i-- > 0;) /* who lets all of it go begins with the last */
        if (x->members[i] == n) {
            x->members[i] = x->members[--x->count];
            break;
        }
    if (x->count == 0)
        drop(s->groups, x);
}

uint64_t mco_groups_bytes(const struct mco_store *s)
{
    return s->groups->bytes;
}
