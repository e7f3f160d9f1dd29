/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space: ranges of extents, handed out without ever touching the extent.  Ranges tile an extent, neighbours that are free
 * merge at once.  Free ranges of all extents of an arena hang in bins by size (eight an octave): O(1).  Under the store's lock.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"

#define LOOKS 256u /* ranges of uncertain fit that one request looks at: bounds its time */

/* ---- bins ---------------------------------------------------------------------------------- */

/* The bin whose sizes all are >= its floor; `up` rounds to a bin all of whose ranges fit. */
static unsigned bin_of(uint64_t units, bool up)
{
    unsigned top, part;

    if (units < 8)
        return (unsigned)units;
    top = 63u - (unsigned)__builtin_clzll(units);
    part = (unsigned)(units >> (top - 3)) & 7u;
    if (up && (units & ((UINT64_C(1) << (top - 3)) - 1)) != 0)
        part++;
    return (top - 2) * 8 + part;
}

static void bin_add(struct mco_store *s, uint32_t n)
{
    struct mco_node *node = &s->nodes[n];
    struct mco_space *sp = &s->spaces[node->space];
    struct mco_arena *a = sp->arena;
    unsigned b = bin_of(node->size, false);

    node->object = MCO_NONE;
    if (sp->drains)
        return;
    node->bin_prev = MCO_NONE;
    node->bin_next = a->bins[b];
    if (a->bins[b] != MCO_NONE)
        s->nodes[a->bins[b]].bin_prev = n;
    a->bins[b] = n;
    a->bin_map[b / 64] |= UINT64_C(1) << (b % 64);
}

static void bin_remove(struct mco_store *s, uint32_t n)
{
    struct mco_node *node = &s->nodes[n];
    struct mco_space *sp = &s->spaces[node->space];
    struct mco_arena *a = sp->arena;
    unsigned b = bin_of(node->size, false);

    if (sp->drains)
        return;
    if (node->bin_prev != MCO_NONE)
        s->nodes[node->bin_prev].bin_next = node->bin_next;
    else
        a->bins[b] = node->bin_next;
    if (node->bin_next != MCO_NONE)
        s->nodes[node->bin_next].bin_prev = node->bin_prev;
    if (a->bins[b] == MCO_NONE)
        a->bin_map[b / 64] &= ~(UINT64_C(1) << (b % 64));
}

static uint32_t first_from(const struct mco_arena *a, unsigned bin)
{
    for (unsigned w = bin / 64; w < MCO_BINS / 64; w++) {
        uint64_t map = a->bin_map[w];

        if (w == bin / 64)
            map &= ~UINT64_C(0) << (bin % 64);
        if (map != 0)
            return a->bins[w * 64 + (unsigned)__builtin_ctzll(map)];
    }
    return MCO_NONE;
}

/* ---- nodes --------------------------------------------------------------------------------- */

/* There is one for each object, one between any two, and one more for each extent. */
static uint32_t node_new(struct mco_store *s, const struct mco_node *as)
{
    uint32_t n = s->free_node;

    if (n != MCO_NONE)
        s->free_node = s->nodes[n].bin_next;
    else
        n = s->nnodes++;
    s->nodes[n] = *as;
    if (as->left != MCO_NONE)
        s->nodes[as->left].right = n;
    else
        s->spaces[as->space].first = n;
    if (as->right != MCO_NONE)
        s->nodes[as->right].left = n;
    s->nodes_used++;
    return n;
}

static void node_free(struct mco_store *s, uint32_t n)
{
    s->nodes[n].bin_next = s->free_node;
    s->free_node = n;
    s->nodes_used--;
}

/* Free range n gets what its free right neighbour has. */
static void swallow_right(struct mco_store *s, uint32_t n)
{
    struct mco_node *node = &s->nodes[n];
    uint32_t r = node->right;

    node->size += s->nodes[r].size;
    node->right = s->nodes[r].right;
    if (node->right != MCO_NONE)
        s->nodes[node->right].left = n;
    node_free(s, r);
}

static uint32_t pad_of(const struct mco_node *node, uint32_t align)
{
    return -node->offset & (align - 1);
}

/* A free range that holds so many units. Bins above answer at once; when they are empty, ranges that may fit are looked at. */
static uint32_t find(const struct mco_store *s, const struct mco_arena *a, uint64_t units,
                     uint32_t align)
{
    uint32_t n = first_from(a, bin_of(units + align - 1, true));
    unsigned looks = 0;

    if (n != MCO_NONE)
        return n;
    for (unsigned b = bin_of(units, false); b < MCO_BINS && looks < LOOKS; b++)
        for (n = a->bins[b]; n != MCO_NONE && looks++ < LOOKS; n = s->nodes[n].bin_next) {
            const struct mco_node *node = &s->nodes[n];
            uint32_t pad = pad_of(node, align);

            if (pad <= node->size && node->size - pad >= units)
                return n;
        }
    return MCO_NONE;
}

/* Takes `units`, `pad` behind the start of free range n, for an object. */
static void cut(struct mco_store *s, uint32_t n, uint32_t pad, uint32_t units, uint32_t object)
{
    struct mco_node *node = &s->nodes[n], part;
    struct mco_space *sp = &s->spaces[node->space];
    uint64_t bytes = (uint64_t)units * MCO_UNIT;

    bin_remove(s, n);
    if (pad != 0) {
        part = *node;
        part.size = pad;
        part.right = n;
        bin_add(s, node_new(s, &part));
        node->offset += pad;
        node->size -= pad;
    }
    if (node->size > units) {
        part = *node;
        part.offset += units;
        part.size -= units;
        part.left = n;
        bin_add(s, node_new(s, &part));
        node->size = units;
    }
    node->object = object;
    sp->used += bytes;
    s->empty -= sp->count++ == 0;
    sp->arena->used += bytes;
    sp->arena->tenant->used += bytes;
    s->stats.used += bytes;
    s->entries[object].size = bytes;
}

static void place(struct mco_store *s, uint32_t n, uint32_t object)
{
    struct mco_record *r = mco_record_at(s, object);
    struct mco_node *node = &s->nodes[n];

    r->extent = s->spaces[node->space].e.id;
    r->offset = node->offset;
    r->node = n;
    s->spaces[node->space].hard += (r->flags & MCO_HARD) != 0;
}

bool mco_space_take(struct mco_store *s, struct mco_arena *a, uint64_t size, uint32_t object)
{
    uint32_t align = size < MCO_LARGE ? 1 : MCO_PAGE / MCO_UNIT;
    uint32_t units = (uint32_t)(mco_rounded(size) / MCO_UNIT);
    uint32_t n = find(s, a, units, align);

    if (n == MCO_NONE)
        return false;
    cut(s, n, pad_of(&s->nodes[n], align), units, object);
    place(s, n, object);
    return true;
}

/* The free range at the end of the extent is where its `last` one is: objects come in rising order. */
bool mco_space_take_at(struct mco_store *s, struct mco_space *sp, uint32_t offset, uint32_t units,
                       uint32_t object)
{
    uint32_t n = sp->last;
    const struct mco_node *node = &s->nodes[n];

    if (node->object != MCO_NONE || offset < node->offset || units == 0 ||
        (uint64_t)offset + units > (uint64_t)node->offset + node->size)
        return false;
    cut(s, n, offset - node->offset, units, object);
    if (s->nodes[n].right != MCO_NONE)
        sp->last = s->nodes[n].right;
    place(s, n, object);
    return true;
}

void mco_space_give(struct mco_store *s, uint32_t object, struct mco_after *after)
{
    struct mco_record *r = mco_record_at(s, object);
    uint32_t n = r->node, left, right;
    struct mco_space *sp;
    uint64_t bytes;

    if (n == MCO_NONE)
        return;
    sp = &s->spaces[s->nodes[n].space];
    bytes = (uint64_t)s->nodes[n].size * MCO_UNIT;
    r->node = MCO_NONE;
    sp->hard -= (r->flags & MCO_HARD) != 0;
    sp->used -= bytes;
    s->empty += --sp->count == 0;
    sp->arena->used -= bytes;
    sp->arena->tenant->used -= bytes;
    s->stats.used -= bytes;
    s->nodes[n].object = MCO_NONE;
    left = s->nodes[n].left;
    right = s->nodes[n].right;
    if (right != MCO_NONE && s->nodes[right].object == MCO_NONE) {
        bin_remove(s, right);
        swallow_right(s, n);
    }
    if (left != MCO_NONE && s->nodes[left].object == MCO_NONE) {
        bin_remove(s, left);
        swallow_right(s, left);
        n = left;
    }
    bin_add(s, n);
    if (after == NULL)
        return;
    if (sp->count == 0)
        mco_extent_empty(s, sp, after);
    mco_space_freed(s, after);
}

/* ---- extents ------------------------------------------------------------------------------- */

static uint32_t id_place(const struct mco_store *s, uint32_t id)
{
    return id * UINT32_C(0x9e3779b1) & (s->ids_size - 1);
}

struct mco_space *mco_space_by_id(const struct mco_store *s, uint32_t id)
{
    if (s->ids_size == 0 || id == 0)
        return NULL;
    for (uint32_t i = id_place(s, id);; i = (i + 1) & (s->ids_size - 1))
        if (s->ids[i] == NULL || s->ids[i]->e.id == id)
            return s->ids[i];
}

static void id_put(struct mco_store *s, struct mco_space *sp)
{
    uint32_t i = id_place(s, sp->e.id);

    while (s->ids[i] != NULL)
        i = (i + 1) & (s->ids_size - 1);
    s->ids[i] = sp;
}

static int id_add(struct mco_store *s, struct mco_space *sp)
{
    if (s->extents * 2 >= s->ids_size) {
        uint32_t old = s->ids_size, size = old == 0 ? 64 : old * 2;
        struct mco_space **from = s->ids, **to = calloc(size, sizeof(struct mco_space *));

        if (to == NULL)
            return -ENOMEM;
        s->ids = to;
        s->ids_size = size;
        for (uint32_t i = 0; i < old; i++)
            if (from[i] != NULL)
                id_put(s, from[i]);
        free(from);
    }
    id_put(s, sp);
    return 0;
}

static void id_remove(struct mco_store *s, struct mco_space *sp)
{
    uint32_t i = id_place(s, sp->e.id);

    while (s->ids[i] != sp)
        i = (i + 1) & (s->ids_size - 1);
    s->ids[i] = NULL;
    /* those behind it may have been pushed there by it */
    for (i = (i + 1) & (s->ids_size - 1); s->ids[i] != NULL; i = (i + 1) & (s->ids_size - 1)) {
        struct mco_space *moved = s->ids[i];

        s->ids[i] = NULL;
        id_put(s, moved);
    }
}

int mco_space_new(struct mco_store *s, const struct mco_extent *e, uint32_t record, bool there,
                  struct mco_space **out)
{
    struct mco_tenant *t = mco_tenant_get(s, e->tenant);
    struct mco_arena *a = t == NULL ? NULL : &t->arenas[e->open];
    uint32_t i = s->free_space;
    struct mco_space *sp;
    int res = a == NULL ? -ENOMEM : mco_arena_ready(s, a);

    if (res == 0 && i == MCO_NONE && s->nspaces == MCO_EXTENTS_MAX)
        res = -ENOSPC;
    if (res != 0)
        return res;
    sp = &s->spaces[i == MCO_NONE ? s->nspaces : i];
    i = (uint32_t)(sp - s->spaces);
    if (i == s->nspaces) {
        s->nspaces++;
    } else {
        s->free_space = sp->next;
    }
    *sp = (struct mco_space){.e = *e, .arena = a, .record = record, .first = MCO_NONE};
    res = id_add(s, sp);
    if (res != 0) {
        sp->e.id = 0;
        sp->next = s->free_space;
        s->free_space = i;
        return res;
    }
    sp->prev = MCO_NONE;
    sp->next = a->first;
    if (a->first != MCO_NONE)
        s->spaces[a->first].prev = i;
    a->first = i;
    a->spaces++;
    a->bytes += e->size;
    s->extents++;
    s->empty++;
    s->extent_bytes += e->size;
    sp->there = there;
    sp->last = node_new(s, &(struct mco_node){.size = (uint32_t)(e->size / MCO_UNIT),
                                              .left = MCO_NONE,
                                              .right = MCO_NONE,
                                              .space = i,
                                              .object = MCO_NONE});
    sp->drains = !there;
    bin_add(s, sp->last);
    *out = sp;
    return 0;
}

void mco_space_gone(struct mco_store *s, struct mco_space *sp)
{
    struct mco_arena *a = sp->arena;

    bin_remove(s, sp->first);
    node_free(s, sp->first);
    if (sp->prev != MCO_NONE)
        s->spaces[sp->prev].next = sp->next;
    else
        a->first = sp->next;
    if (sp->next != MCO_NONE)
        s->spaces[sp->next].prev = sp->prev;
    a->spaces--;
    a->bytes -= sp->e.size;
    s->extents--;
    s->extent_bytes -= sp->e.size;
    if (sp->idle)
        s->idle_bytes -= sp->e.size;
    else
        s->empty--;
    id_remove(s, sp);
    if (s->drains == (uint32_t)(sp - s->spaces))
        s->drains = MCO_NONE;
    sp->e.id = 0;
    sp->next = s->free_space;
    s->free_space = (uint32_t)(sp - s->spaces);
}

void mco_space_drain(struct mco_store *s, struct mco_space *sp, bool drains)
{
    if (sp->drains == drains)
        return;
    if (!drains)
        sp->drains = false;
    for (uint32_t n = sp->first; n != MCO_NONE; n = s->nodes[n].right) {
        if (s->nodes[n].object != MCO_NONE)
            continue;
        if (drains)
            bin_remove(s, n);
        else
            bin_add(s, n);
    }
    sp->drains = drains;
}

/* ---- life -------------------------------------------------------------------------------------- */

static void *reserve(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

int mco_space_create(struct mco_store *s)
{
    uint64_t nodes = (uint64_t)s->table.max_records * 2 + MCO_EXTENTS_MAX + 2;

    s->max_nodes = (uint32_t)nodes;
    s->free_node = s->free_space = s->drains = MCO_NONE;
    s->nodes = reserve(nodes * sizeof(struct mco_node));
    s->spaces = reserve(MCO_EXTENTS_MAX * sizeof(struct mco_space));
    return s->nodes == NULL || s->spaces == NULL ? -ENOMEM : 0;
}

void mco_space_destroy(struct mco_store *s)
{
    if (s->nodes != NULL)
        munmap(s->nodes, (uint64_t)s->max_nodes * sizeof(struct mco_node));
    if (s->spaces != NULL)
        munmap(s->spaces, MCO_EXTENTS_MAX * sizeof(struct mco_space));
    free(s->ids);
}
