/* SPDX-License-Identifier: Apache-2.0 */
/* What came first goes first, used or not. What the others are measured against. */
#include "policy.h"

#include <errno.h>
#include <stdlib.h>

struct mco_policy {
    struct mco_policy_entry head; /* next: the oldest; prev: the newest */
};

static int fifo_create(uint64_t capacity, struct mco_policy **out)
{
    (void)capacity;
    *out = calloc(1, sizeof(**out));
    if (*out == NULL)
        return -ENOMEM;
    (*out)->head.prev = (*out)->head.next = &(*out)->head;
    return 0;
}

static void fifo_destroy(struct mco_policy *p)
{
    free(p);
}

static void fifo_insert(struct mco_policy *p, struct mco_policy_entry *e,
                        const struct mco_hint *hint)
{
    (void)hint;
    e->next = &p->head;
    e->prev = p->head.prev;
    e->prev->next = e->next->prev = e;
}

static void fifo_hit(struct mco_policy *p, struct mco_policy_entry *e, const struct mco_hint *hint)
{
    (void)p, (void)e, (void)hint;
}

static void fifo_miss(struct mco_policy *p, uint64_t hash, const struct mco_hint *hint)
{
    (void)p, (void)hash, (void)hint;
}

static void fifo_remove(struct mco_policy *p, struct mco_policy_entry *e, bool evicted)
{
    (void)p, (void)evicted;
    e->prev->next = e->next;
    e->next->prev = e->prev;
}

static struct mco_policy_entry *fifo_next(struct mco_policy *p, struct mco_policy_entry *after)
{
    struct mco_policy_entry *e = after == NULL ? p->head.next : after->next;

    return e == &p->head ? NULL : e;
}

const struct mco_policy_ops mco_policy_fifo = {
    .name = "fifo",
    .create = fifo_create,
    .destroy = fifo_destroy,
    .insert = fifo_insert,
    .hit = fifo_hit,
    .miss = fifo_miss,
    .remove = fifo_remove,
    .next = fifo_next,
};
