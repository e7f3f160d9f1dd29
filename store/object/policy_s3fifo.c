/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S3-FIFO (Yang and others, SOSP '23): three queues. What is new waits in a small one, a tenth of the
 * memory; what was used there goes on to the main one, the rest goes, and its hash is remembered
 * (the ghosts, as many as the main queue has entries): who comes back while remembered enters
 * the main queue at once. There, who was used since the last round gets another.
 *
 *   words[0]  uses since it was last passed, at most 3
 *   words[1]  1: in the main queue
 */
#include "policy.h"

#include <errno.h>
#include <stdlib.h>

#define USES_MAX 3u
#define GHOSTS_MIN 1024u

struct ghost {
    uint64_t hash;
    uint64_t turn; /* when it went, in evictions; 0: free */
};

struct mco_policy {
    struct mco_policy_entry small, main; /* heads; next: the oldest */
    uint64_t small_max, small_size;      /* bytes */
    uint64_t entries;
    bool main_first; /* next() began there */
    uint64_t turn;   /* evictions so far */
    struct ghost *ghosts;
    uint64_t nghosts; /* a power of two; a later ghost takes the place of one of the same slot */
};

static void head_init(struct mco_policy_entry *h)
{
    h->prev = h->next = h;
}

static void push(struct mco_policy_entry *head, struct mco_policy_entry *e)
{
    e->next = head;
    e->prev = head->prev;
    e->prev->next = e->next->prev = e;
}

static void unlink_entry(struct mco_policy_entry *e)
{
    e->prev->next = e->next;
    e->next->prev = e->prev;
}

static int s3_create(uint64_t capacity, struct mco_policy **out)
{
    struct mco_policy *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return -ENOMEM;
    head_init(&p->small);
    head_init(&p->main);
    p->small_max = capacity / 10;
    p->nghosts = GHOSTS_MIN;
    p->ghosts = calloc(p->nghosts, sizeof(p->ghosts[0]));
    if (p->ghosts == NULL) {
        free(p);
        return -ENOMEM;
    }
    *out = p;
    return 0;
}

static void s3_destroy(struct mco_policy *p)
{
    if (p != NULL)
        free(p->ghosts);
    free(p);
}

static struct ghost *slot_of(struct mco_policy *p, uint64_t hash)
{
    return &p->ghosts[hash & (p->nghosts - 1)];
}

/* Twice as many slots as there are entries, or more. Who is remembered now is forgotten: that is over soon. */
static void grow(struct mco_policy *p)
{
    struct ghost *ghosts = calloc(p->nghosts * 4, sizeof(*ghosts));

    if (ghosts == NULL)
        return; /* it works with less memory, too */
    free(p->ghosts);
    p->ghosts = ghosts;
    p->nghosts *= 4;
}

static void s3_insert(struct mco_policy *p, struct mco_policy_entry *e, const struct mco_hint *hint)
{
    struct ghost *g;

    (void)hint;
    p->entries++;
    if (p->entries > p->nghosts / 2)
        grow(p);
    g = slot_of(p, e->hash);
    e->words[0] = 0;
    if (g->turn != 0 && g->hash == e->hash && p->turn - g->turn <= p->entries) {
        g->turn = 0;
        e->words[1] = 1;
        push(&p->main, e);
        return;
    }
    e->words[1] = 0;
    p->small_size += e->size;
    push(&p->small, e);
}

static void s3_hit(struct mco_policy *p, struct mco_policy_entry *e, const struct mco_hint *hint)
{
    (void)p, (void)hint;
    if (e->words[0] < USES_MAX)
        e->words[0]++;
}

static void s3_miss(struct mco_policy *p, uint64_t hash, const struct mco_hint *hint)
{
    (void)p, (void)hash, (void)hint;
}

static void s3_remove(struct mco_policy *p, struct mco_policy_entry *e, bool evicted)
{
    unlink_entry(e);
    p->entries--;
    if (e->words[1] != 0)
        return;
    p->small_size -= e->size;
    if (evicted)
        *slot_of(p, e->hash) = (struct ghost){.hash = e->hash, .turn = ++p->turn};
}

/* The very first to go: moves what was used out of the way, each entry at most USES_MAX + 1 times. */
static struct mco_policy_entry *first(struct mco_policy *p)
{
    for (;;) {
        struct mco_policy_entry *e = p->small.next;

        if (e != &p->small && (p->small_size > p->small_max || p->main.next == &p->main)) {
            if (e->words[0] == 0)
                return e;
            unlink_entry(e);
            p->small_size -= e->size;
            e->words[0] = 0;
            e->words[1] = 1;
            push(&p->main, e);
            continue;
        }
        e = p->main.next;
        if (e == &p->main)
            return NULL;
        if (e->words[0] == 0)
            return e;
        e->words[0]--;
        unlink_entry(e);
        push(&p->main, e);
    }
}

static struct mco_policy_entry *s3_next(struct mco_policy *p, struct mco_policy_entry *after)
{
    struct mco_policy_entry *e;

    if (after == NULL) {
        e = first(p);
        p->main_first = e != NULL && e->words[1] != 0;
        return e;
    }
    e = after->next; /* the rest of its queue, then the other one */
    if (e == &p->small)
        e = p->main_first ? NULL : p->main.next;
    else if (e == &p->main && p->main_first)
        e = p->small.next;
    return e == &p->main || e == &p->small ? NULL : e;
}

const struct mco_policy_ops mco_policy_s3fifo = {
    .name = "s3fifo",
    .create = s3_create,
    .destroy = s3_destroy,
    .insert = s3_insert,
    .hit = s3_hit,
    .miss = s3_miss,
    .remove = s3_remove,
    .next = s3_next,
};
