/* SPDX-License-Identifier: Apache-2.0 */
/* Least recently used goes first. */
#include "policy.h"

#include <errno.h>
#include <stdlib.h>

struct mco_policy {
    struct mco_policy_entry head; /* next: the oldest; prev: the newest */
};

static int lru_create(uint64_t capacity, struct mco_policy **out)
{
    (void)capacity;
    *out = calloc(1, sizeof(**out));
    if (*out == NULL)
        return -ENOMEM;
    (*out)->head.prev = (*out)->head.next = &(*out)->head;
    return 0;
}

static void lru_destroy(struct mco_policy *p)
{
    free(p);
}

static void append(struct mco_policy *p, struct mco_policy_entry *e)
{
    e->next = &p->head;
    e->prev = p->head.prev;
    e->prev->next = e->next->prev = e;
}

static void unlink_entry(struct mco_policy_entry *e)
{
    e->prev->next = e->next;
    e->next->prev = e->prev;
}

static void lru_insert(struct mco_policy *p, struct mco_policy_entry *e,
                       const struct mco_hint *hint)
{
    (void)hint;
    append(p, e);
}

static void lru_hit(struct mco_policy *p, struct mco_policy_entry *e, const struct mco_hint *hint)
{
    (void)hint;
    unlink_entry(e);
    append(p, e);
}

static void lru_miss(struct mco_policy *p, uint64_t hash, const struct mco_hint *hint)
{
    (void)p, (void)hash, (void)hint;
}

static void lru_remove(struct mco_policy *p, struct mco_policy_entry *e, bool evicted)
{
    (void)p, (void)evicted;
    unlink_entry(e);
}

static struct mco_policy_entry *lru_next(struct mco_policy *p, struct mco_policy_entry *after)
{
    struct mco_policy_entry *e = after == NULL ? p->head.next : after->next;

    return e == &p->head ? NULL : e;
}

const struct mco_policy_ops mco_policy_lru = {
    .name = "lru",
    .create = lru_create,
    .destroy = lru_destroy,
    .insert = lru_insert,
    .hit = lru_hit,
    .miss = lru_miss,
    .remove = lru_remove,
    .next = lru_next,
};
