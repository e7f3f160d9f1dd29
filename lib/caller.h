/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies in the caller's own thread: for small tasks whose both sides this process has
 * mapped, that is faster than a hop to the agent.  The task has ended when it is submitted.
 *
 * From the first such task of a submission until its last copy, caller_active is set in the
 * queue's doorbell, so that a withdrawal of the target waits for the copies or is seen here.
 */
#ifndef MCL_CALLER_H
#define MCL_CALLER_H

#include "internal.h"

enum mcl_caller_state { MCL_CALLER_UNTRIED, MCL_CALLER_ON, MCL_CALLER_OFF };

struct mcl_caller {
    enum mcl_caller_state state;
    uint32_t copies;
    uint8_t *remote; /* of the task just taken */
};

/* A list or a stride; neither: one piece. */
struct mcl_shape {
    const mcshm_piece *pieces;
    size_t count; /* of pieces */
    const mcshm_stride *stride;
};

/* May the caller copy this himself? Then c->remote is the other side. The spans say how far
 * the sides reach from their bases. */
static inline bool mcl_caller_take(struct mcl_caller *c, struct mcshm_queue *q,
                                   const mcshm_request *r, const struct mcl_range *range,
                                   uint64_t length, uint64_t local_span, uint64_t remote_span);

bool mcl_caller_find(struct mcl_caller *c, struct mcshm_queue *q, const mcshm_request *r,
                     uint64_t local_span, uint64_t remote_span);
/* Notes the task taken. */
void mcl_caller_add(struct mcl_caller *c, struct mcshm_queue *q, const mcshm_request *r,
                    uint32_t slot);
/* Makes the copies; with a shape there is one. Returns their bytes. */
uint64_t mcl_caller_copy(struct mcl_caller *c, struct mcshm_queue *q,
                         const struct mcl_shape *shape);
void mcl_caller_end(struct mcl_caller *c, struct mcshm_queue *q);

static inline bool mcl_caller_take(struct mcl_caller *c, struct mcshm_queue *q,
                                   const mcshm_request *r, const struct mcl_range *range,
                                   uint64_t length, uint64_t local_span, uint64_t remote_span)
{
    return length <= q->caller_max && (r->flags & (MCSHM_FENCE | MCSHM_NOTIFY)) == 0 &&
           r->order == NULL && range->staged == NULL && !range->gpu && q->view->ntargets != 0 &&
           mcl_caller_find(c, q, r, local_span, remote_span);
}

#endif
