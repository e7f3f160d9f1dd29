/* SPDX-License-Identifier: Apache-2.0 */
/* Target role: what peers ask of published GPU memory goes through stages. */
#include "log.h"
#include "net.h"
#include "serve.h"
#include "stage.h"

struct mct_stage *mcd_serve_stage(void *context, uint64_t length)
{
    struct mcd_engine *g = context;
    struct mcd_stage *s = mcd_stage_get(g, MCD_STAGE_IN, length);

    return s == NULL ? NULL : &s->s;
}

void mcd_serve_unstage(void *context, struct mct_stage *s)
{
    mcd_stage_put(context, (struct mcd_stage *)s);
}

static void moved(struct mcd_engine *g, struct mcd_gpu_job *j)
{
    struct mcd_stage *s = j->context;

    s->moving = false;
    g->net->quiet = 0; /* the answer goes in the transport's next turn */
    s->s.done(&s->s, (uint16_t)j->job.status);
}

uint16_t mcd_serve_move(void *context, void *visitor, const struct mct_request *r,
                        struct mct_stage *s)
{
    struct mcd_engine *g = context;
    const struct mcd_buffer *b = NULL;
    uint16_t status =
        g->net->closing ? (uint16_t)MCS_AGENT_DOWN : mcd_serve_find(g, visitor, r, &b);

    if (status == MCS_OK && b->extent->gpu == NULL)
        status = MCS_REVOKED; /* another memory has taken its place since */
    if (status != MCS_OK) {
        mcs_count(&g->counters.served_refused[status], 1);
        return status;
    }
    mcs_count(&g->counters.gpu_staged_in, 1);
    mcs_count(&g->counters.gpu_staged_in_bytes, r->length);
    if (!g->stages->told_in) {
        g->stages->told_in = true;
        mcd_info("engine %u: GPU memory that others reach over a transport which cannot reach it "
                 "itself is staged through "
                 "host memory",
                 g->o.id);
    }
    mcd_stage_move(g, (struct mcd_stage *)s, r->op == MCT_WRITE, b->extent->gpu_device,
                   b->extent->map + b->offset + (r->address - b->address), r->length, moved);
    return MCS_OK;
}
