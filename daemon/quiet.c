/* SPDX-License-Identifier: Apache-2.0 */
#include "quiet.h"

#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "route.h"
#include "transports/cuda/cuda.h"

/* One range at a time, in all engines at once. */
struct mcd_quieting {
    uint32_t next; /* entry of the session's table */
    bool under_way;
    struct mcd_quiesce range;
    struct mcd_command commands[MCD_ENGINES_MAX];
};

static void begin(struct mcd_agent *a, struct mcd_quieting *q, const void *base, uint64_t length)
{
    q->range = (struct mcd_quiesce){.base = base, .length = length};
    q->under_way = true;
    memset(q->commands, 0, sizeof(q->commands));
    for (unsigned i = 0; i < a->nengines; i++)
        mcd_engine_call(a->engines[i], &q->commands[i], mcd_engine_quiesce, &q->range);
}

static bool is_over(const struct mcd_agent *a, const struct mcd_quieting *q)
{
    for (unsigned i = 0; i < a->nengines; i++)
        if (mcs_load_acquire(&q->commands[i].done) == 0) /* partner: the engine's release */
            return false;
    return true;
}

bool mcd_quiet(struct mcd_agent *a, struct mcd_quieting **out, const struct mcd_session *s,
               const struct mcd_extent *e, uint64_t offset, uint64_t length)
{
    struct mcd_quieting *q = *out;

    /* nor have engines copies of GPU memory before the driver was opened */
    if (!a->network && (a->cuda == NULL || mct_cuda_device_get(a->cuda, 0) == NULL))
        return true;
    if (q == NULL) {
        q = calloc(1, sizeof(*q));
        if (q == NULL)
            return false; /* again in the next round: memory must not go before */
        *out = q;
        if (e != NULL)
            begin(a, q, e->map + offset, length);
    }
    if (q->under_way && !is_over(a, q))
        return false;
    q->under_way = false;
    while (e == NULL && q->next < MCD_TABLE_SIZE) {
        const struct mcd_extent *x = s->extents[q->next++];

        if (x == NULL)
            continue;
        begin(a, q, x->map, x->size);
        return false;
    }
    free(q);
    *out = NULL;
    return true;
}
