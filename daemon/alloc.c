/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define BINS 512u  /* 64 octaves of 8 */
#define LOOKS 256u /* ranges of uncertain fit that one request looks at: bounds its time */

/* A range of the space, free or taken; ranges tile the space without a gap. */
struct node {
    uint64_t offset, size;
    uint32_t left, right;        /* neighbours in the space */
    uint32_t bin_prev, bin_next; /* free: others of the bin; unused node: bin_next chains them */
    uint32_t hash_next;          /* taken: others of the hash bucket */
    bool taken;
};

struct mcd_alloc {
    struct node *nodes;
    uint32_t capacity, unused;
    uint32_t last; /* the range at the end of the space */
    uint32_t bins[BINS];
    uint64_t bin_map[BINS / 64];
    uint32_t *buckets; /* taken ranges by offset; as many buckets as nodes */
    uint64_t used, count;
};

/* The bin whose sizes all are >= its floor; `up` rounds to a bin all of whose ranges fit. */
static unsigned bin_of(uint64_t size, bool up)
{
    unsigned top, octave, part;

    if (size < 8)
        return (unsigned)size;
    top = 63u - (unsigned)__builtin_clzll(size);
    octave = top - 2;
    part = (unsigned)(size >> (top - 3)) & 7u;
    if (up && (size & ((UINT64_C(1) << (top - 3)) - 1)) != 0)
        part++;
    return octave * 8 + part;
}

static uint32_t bucket_of(const struct mcd_alloc *a, uint64_t offset)
{
    return (uint32_t)((offset * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (a->capacity - 1);
}

static void bin_add(struct mcd_alloc *a, uint32_t n)
{
    unsigned b = bin_of(a->nodes[n].size, false);

    a->nodes[n].taken = false;
    a->nodes[n].bin_prev = NONE;
    a->nodes[n].bin_next = a->bins[b];
    if (a->bins[b] != NONE)
        a->nodes[a->bins[b]].bin_prev = n;
    a->bins[b] = n;
    a->bin_map[b / 64] |= UINT64_C(1) << (b % 64);
}

static void bin_remove(struct mcd_alloc *a, uint32_t n)
{
    struct node *node = &a->nodes[n];
    unsigned b = bin_of(node->size, false);

    if (node->bin_prev != NONE)
        a->nodes[node->bin_prev].bin_next = node->bin_next;
    else
        a->bins[b] = node->bin_next;
    if (node->bin_next != NONE)
        a->nodes[node->bin_next].bin_prev = node->bin_prev;
    if (a->bins[b] == NONE)
        a->bin_map[b / 64] &= ~(UINT64_C(1) << (b % 64));
}

static void hash_add(struct mcd_alloc *a, uint32_t n)
{
    uint32_t b = bucket_of(a, a->nodes[n].offset);

    a->nodes[n].hash_next = a->buckets[b];
    a->buckets[b] = n;
}

static int grow(struct mcd_alloc *a)
{
    uint32_t old = a->capacity, capacity = old == 0 ? 64 : old * 2;
    struct node *nodes;
    uint32_t *buckets;

    if (capacity == 0 || capacity > NONE / 2)
        return -ENOMEM;
    nodes = realloc(a->nodes, capacity * sizeof(*nodes));
    if (nodes == NULL)
        return -ENOMEM;
    a->nodes = nodes;
    buckets = realloc(a->buckets, capacity * sizeof(*buckets));
    if (buckets == NULL)
        return -ENOMEM;
    a->buckets = buckets;
    a->capacity = capacity;
    for (uint32_t i = capacity; i-- > old;) {
        memset(&nodes[i], 0, sizeof(nodes[i]));
        nodes[i].bin_next = a->unused;
        a->unused = i;
    }
    memset(buckets, 0xff, capacity * sizeof(*buckets));
    for (uint32_t i = 0; i < old; i++)
        if (nodes[i].taken)
            hash_add(a, i);
    return 0;
}

static uint32_t node_new(struct mcd_alloc *a, uint64_t offset, uint64_t size, uint32_t left,
                         uint32_t right)
{
    uint32_t n = a->unused;

    a->unused = a->nodes[n].bin_next;
    a->nodes[n] = (struct node){.offset = offset, .size = size, .left = left, .right = right};
    if (left != NONE)
        a->nodes[left].right = n;
    if (right != NONE)
        a->nodes[right].left = n;
    else
        a->last = n;
    return n;
}

/* Takes node n out of the space, whose range `into`, a neighbour, has swallowed. */
static void node_swallow(struct mcd_alloc *a, uint32_t into, uint32_t n)
{
    struct node *node = &a->nodes[n];

    a->nodes[into].size += node->size;
    if (node->left == into) {
        a->nodes[into].right = node->right;
        if (node->right != NONE)
            a->nodes[node->right].left = into;
    } else {
        a->nodes[into].offset = node->offset;
        a->nodes[into].left = node->left;
        if (node->left != NONE)
            a->nodes[node->left].right = into;
    }
    if (a->last == n)
        a->last = into;
    node->taken = false;
    node->bin_next = a->unused;
    a->unused = n;
}

struct mcd_alloc *mcd_alloc_create(uint64_t size)
{
    struct mcd_alloc *a = calloc(1, sizeof(*a));

    if (a == NULL)
        return NULL;
    a->unused = NONE;
    memset(a->bins, 0xff, sizeof(a->bins));
    if (grow(a) != 0) {
        mcd_alloc_destroy(a);
        return NULL;
    }
    bin_add(a, node_new(a, 0, size, NONE, NONE));
    return a;
}

void mcd_alloc_destroy(struct mcd_alloc *a)
{
    if (a == NULL)
        return;
    free(a->nodes);
    free(a->buckets);
    free(a);
}

static uint32_t first_from(const struct mcd_alloc *a, unsigned bin)
{
    for (unsigned w = bin / 64; w < BINS / 64; w++) {
        uint64_t map = a->bin_map[w];

        if (w == bin / 64)
            map &= ~UINT64_C(0) << (bin % 64);
        if (map != 0)
            return a->bins[w * 64 + (unsigned)__builtin_ctzll(map)];
    }
    return NONE;
}

static bool fits(const struct node *n, uint64_t size, uint64_t align)
{
    uint64_t pad = -n->offset & (align - 1);

    return pad <= n->size && n->size - pad >= size;
}

/* A free range that holds size at align. The bins above answer at once; when they are empty,
 * ranges of the bins that may fit are looked at one by one, some of them. */
static uint32_t find(const struct mcd_alloc *a, uint64_t size, uint64_t align)
{
    uint64_t safe = size + align - MCD_ALLOC_UNIT;
    uint32_t n = safe < size ? NONE : first_from(a, bin_of(safe, true));
    unsigned looks = 0;

    if (n != NONE)
        return n;
    for (unsigned b = bin_of(size, false); b < BINS; b++)
        for (n = a->bins[b]; n != NONE && looks++ < LOOKS; n = a->nodes[n].bin_next)
            if (fits(&a->nodes[n], size, align))
                return n;
    return NONE;
}

/* Takes `size` bytes, `pad` bytes from the start of the free range n. */
static int take(struct mcd_alloc *a, uint32_t n, uint64_t pad, uint64_t size)
{
    /* up to two more nodes: the space before and the space behind */
    while (a->unused == NONE || a->nodes[a->unused].bin_next == NONE)
        if (grow(a) != 0)
            return -ENOMEM;
    bin_remove(a, n);
    if (pad != 0) {
        bin_add(a, node_new(a, a->nodes[n].offset, pad, a->nodes[n].left, n));
        a->nodes[n].offset += pad;
        a->nodes[n].size -= pad;
    }
    if (a->nodes[n].size > size) {
        bin_add(a, node_new(a, a->nodes[n].offset + size, a->nodes[n].size - size, n,
                            a->nodes[n].right));
        a->nodes[n].size = size;
    }
    a->nodes[n].taken = true;
    hash_add(a, n);
    a->used += size;
    a->count++;
    return 0;
}

static uint64_t round_up(uint64_t size)
{
    return (size + MCD_ALLOC_UNIT - 1) & ~(uint64_t)(MCD_ALLOC_UNIT - 1);
}

int mcd_alloc_take(struct mcd_alloc *a, uint64_t size, uint64_t align, uint64_t *offset)
{
    uint32_t n;
    int res;

    if (size == 0 || size > UINT64_MAX - MCD_ALLOC_UNIT)
        return -ENOSPC;
    n = find(a, round_up(size), align);
    if (n == NONE)
        return -ENOSPC;
    res = take(a, n, -a->nodes[n].offset & (align - 1), round_up(size));
    if (res == 0)
        *offset = a->nodes[n].offset;
    return res;
}

int mcd_alloc_take_at(struct mcd_alloc *a, uint64_t offset, uint64_t size)
{
    const struct node *last = &a->nodes[a->last];

    if (size == 0 || size > UINT64_MAX - MCD_ALLOC_UNIT || offset % MCD_ALLOC_UNIT != 0 ||
        last->taken || offset < last->offset || offset - last->offset > last->size ||
        round_up(size) > last->size - (offset - last->offset))
        return -ENOSPC;
    return take(a, a->last, offset - last->offset, round_up(size));
}

static uint32_t lookup(const struct mcd_alloc *a, uint64_t offset)
{
    uint32_t n = a->buckets[bucket_of(a, offset)];

    while (n != NONE && a->nodes[n].offset != offset)
        n = a->nodes[n].hash_next;
    return n;
}

int mcd_alloc_give(struct mcd_alloc *a, uint64_t offset)
{
    uint32_t n = lookup(a, offset), left, right;
    uint32_t *link;

    if (n == NONE)
        return -ENOENT;
    link = &a->buckets[bucket_of(a, offset)];
    while (*link != n)
        link = &a->nodes[*link].hash_next;
    *link = a->nodes[n].hash_next;
    a->used -= a->nodes[n].size;
    a->count--;
    a->nodes[n].taken = false;
    left = a->nodes[n].left;
    right = a->nodes[n].right;
    if (left != NONE && !a->nodes[left].taken) {
        bin_remove(a, left);
        node_swallow(a, left, n);
        n = left;
    }
    if (right != NONE && !a->nodes[right].taken) {
        bin_remove(a, right);
        node_swallow(a, n, right);
    }
    bin_add(a, n);
    return 0;
}

uint64_t mcd_alloc_size_at(const struct mcd_alloc *a, uint64_t offset)
{
    uint32_t n = lookup(a, offset);

    return n == NONE ? 0 : a->nodes[n].size;
}

uint64_t mcd_alloc_used(const struct mcd_alloc *a)
{
    return a->used;
}

uint64_t mcd_alloc_count(const struct mcd_alloc *a)
{
    return a->count;
}
