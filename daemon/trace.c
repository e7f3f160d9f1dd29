/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/atomic.h"
#include "task.h"

#define WORDS (sizeof(struct mcd_traced) / sizeof(uint64_t))
static_assert(sizeof(struct mcd_traced) == 64, "a record is one cache line");

int mcd_trace_init(struct mcd_trace *t)
{
    *t = (struct mcd_trace){.ring = calloc(MCD_TRACE_SIZE, sizeof(*t->ring))};
    return t->ring == NULL ? -ENOMEM : 0;
}

void mcd_trace_fini(struct mcd_trace *t)
{
    free(t->ring);
    t->ring = NULL;
}

void mcd_trace_add(struct mcd_trace *t, const struct mcs_desc *d, const struct mcd_outcome *o,
                   uint64_t now)
{
    const struct mcd_traced record = {
        .when = now,
        .bytes = o->bytes,
        .length = d->length,
        .remote_addr = d->remote_addr,
        .queue_ns = o->queue_ns,
        .move_ns = o->move_ns,
        .notify_ns = o->notify_ns,
        .segment = d->segment,
        .op = d->op,
        .shape = d->shape,
        .flags = d->flags,
        .priority = d->priority,
        .error = o->error,
        .state = o->state,
        .path = o->path,
        .slot = d->slot,
        .generation = d->generation,
    };
    uint64_t *to = (uint64_t *)&t->ring[t->head & (MCD_TRACE_SIZE - 1)];
    uint64_t from[WORDS];

    memcpy(from, &record, sizeof(record));
    /* T1: the head that covers the record before this one is stored before any word of what it
     * overwrites; pairs with T2 */
    mcs_fence_release();
    for (unsigned i = 0; i < WORDS; i++)
        mcs_store_relaxed(&to[i], from[i]);
    mcs_store_release(&t->head, t->head + 1); /* partner: mcd_trace_copy() */
}

unsigned mcd_trace_copy(const struct mcd_trace *t, struct mcd_traced *out, unsigned max)
{
    uint64_t head = mcs_load_acquire(&t->head); /* partner: mcd_trace_add() */
    uint64_t n = head < MCD_TRACE_SIZE ? head : MCD_TRACE_SIZE;
    uint64_t first, lost;

    if (n > max)
        n = max;
    first = head - n;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t *from = (const uint64_t *)&t->ring[(first + i) & (MCD_TRACE_SIZE - 1)];
        uint64_t to[WORDS];

        for (unsigned k = 0; k < WORDS; k++)
            to[k] = mcs_load_relaxed(&from[k]);
        memcpy(&out[i], to, sizeof(out[i]));
    }
    mcs_fence_acquire(); /* T2: pairs with T1 */
    head = mcs_load_relaxed(&t->head);
    /* what the engine has written over meanwhile, and what it may be writing over right now */
    lost = head + 1 > MCD_TRACE_SIZE ? head + 1 - MCD_TRACE_SIZE : 0;
    lost = lost > first ? lost - first : 0;
    if (lost >= n)
        return 0;
    memmove(out, out + lost, (n - lost) * sizeof(*out));
    return (unsigned)(n - lost);
}
