/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_offline.h"

#include <errno.h>
#include <stdlib.h>

struct block {
    struct mco_policy_entry entry; /* first: an entry is its block */
    uint64_t id;
    bool used, there;
};

struct table {
    struct block *blocks; /* every block of the trace gets one */
    uint64_t mask;
};

static uint64_t mixed(uint64_t id)
{
    id = (id + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return id ^ id >> 29;
}

static struct block *find(struct table *t, uint64_t id)
{
    uint64_t i = mixed(id) & t->mask;

    while (t->blocks[i].used && t->blocks[i].id != id)
        i = (i + 1) & t->mask;
    t->blocks[i].used = true;
    t->blocks[i].id = id;
    return &t->blocks[i];
}

int cache_offline(const struct mco_policy_ops *ops, const struct kv_trace *t, uint64_t capacity,
                  struct cache_count *out)
{
    struct table table = {.mask = 1};
    struct mco_policy *p = NULL;
    uint64_t held = 0;
    int rc = -ENOMEM;

    *out = (struct cache_count){.requests = t->count, .blocks = t->blocks};
    while (table.mask < 2 * t->blocks)
        table.mask *= 2;
    table.blocks = calloc(table.mask--, sizeof(table.blocks[0]));
    if (table.blocks == NULL || ops->create(capacity == 0 ? t->blocks : capacity, &p) != 0)
        goto out;
    for (size_t i = 0; i < t->count; i++) {
        const struct kv_request *r = &t->requests[i];
        struct mco_hint hint = {.now_ns = r->timestamp * UINT64_C(1000000), .length = r->count};
        bool missed = false;

        for (uint32_t k = 0; k < r->count; k++) {
            struct block *b = find(&table, r->hash_ids[k]);

            hint.position = k;
            hint.previous = k == 0 ? 0 : mixed(r->hash_ids[k - 1]);
            if (b->there) {
                out->hits += !missed;
                ops->hit(p, &b->entry, &hint);
                continue;
            }
            if (!missed)
                ops->miss(p, mixed(b->id), &hint);
            missed = true;
            if (capacity != 0 && held == capacity) {
                struct mco_policy_entry *gone = ops->next(p, NULL);

                ops->remove(p, gone, true);
                ((struct block *)gone)->there = false;
                held--;
            }
            b->there = true;
            b->entry = (struct mco_policy_entry){.hash = mixed(b->id), .size = 1};
            ops->insert(p, &b->entry, &hint);
            held++;
        }
    }
    rc = 0;
out:
    if (p != NULL)
        ops->destroy(p);
    free(table.blocks);
    return rc;
}
