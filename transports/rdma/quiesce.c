/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking memory away from under slices. Peers' one-sided requests are not seen here: their right ends with the
 * registration, and the agent takes that back. Messages received never lie in clients' memory, and those that
 * are sent were copied.
 */
#include <errno.h>

#include "engine.h"

#define GRACE_PER_SECOND                                                                           \
    50u /* 20 ms: what is under way mostly ends by itself, and nobody loses a queue pair */

static bool overlaps(const void *a, uint64_t a_size, const void *b, uint64_t b_size)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    return x < y ? y - x < a_size : x - y < b_size;
}

/* True: slices of it are still out. */
static bool quiesce_conn(struct mct_rdma_conn *c, const void *base, uint64_t length, bool stop,
                         bool *late)
{
    bool busy = false;

    for (uint64_t i = c->known; i != c->posted; i++) {
        struct mct_rdma_request *r = c->ring[i % c->pair->depth].request;
        uint64_t now = mcs_ticks() | 1;

        if (r == NULL || !overlaps(r->slice->local, r->slice->length, base, length))
            continue;
        busy = true;
        if (r->recalled == 0)
            r->recalled = now;
        *late = *late || now - r->recalled > c->t->env.tick_hz / GRACE_PER_SECOND;
        r->canceled = r->canceled || stop;
    }
    return busy;
}

int mct_rdma_quiesce(struct mct *t, const void *base, uint64_t length)
{
    bool busy = false;

    for (struct mct_rdma_conn *c = t->conns; c != NULL; c = c->next) {
        bool late = false;

        if (!quiesce_conn(c, base, length, c->ending, &late))
            continue;
        busy = true;
        if (!late || c->ending)
            continue;
        (void)quiesce_conn(c, base, length, true, &late);
        mct_rdma_conn_end(c, -ECANCELED, "memory of a slice on it was taken away");
    }
    return busy ? -EINPROGRESS : 0;
}
