/* SPDX-License-Identifier: Apache-2.0 */
/* A submission under way, shared by submit.c and object.c: prepared, pushed, then counted. */
#ifndef MCL_SUBMIT_H
#define MCL_SUBMIT_H

#include "caller.h"

struct mcl_submission {
    struct mcshm_queue *q;
    struct mcl_batch *b;
    uint32_t batch;     /* its index */
    uint32_t tasks;     /* prepared */
    uint32_t ring;      /* of them in descriptors */
    uint32_t staged;    /* of these on private memory */
    uint32_t submitted; /* time, as descriptors have it */
    uint32_t place;     /* in the ring, of the first */
    uint32_t life;      /* of the session, as tasks note it */
    uint8_t order;      /* of the request being prepared: MCS_DESC_WAIT, MCS_DESC_SIGNAL */
    uint32_t ngates;
    struct mcs_gate gates[2];
    struct mcl_caller caller;
};

/* A submission of n tasks; nothing is taken yet. */
mcshm_status mcl_submission_begin(struct mcl_submission *s, mcshm_queue *q, mcshm_batch batch,
                                  size_t n);
/* The record of the next slot. It counts only when committed. */
struct mcl_task *mcl_submission_task(struct mcl_submission *s, const mcshm_request *r,
                                     uint64_t length, uint32_t *slot);
struct mcs_desc *mcl_submission_desc(struct mcl_submission *s, const mcshm_request *r,
                                     struct mcl_task *t, uint32_t slot, uint8_t op);
/* The gates of a request's order (NULL: none) into s->gates, and s->order. */
mcshm_status mcl_submission_order(struct mcl_submission *s, const mcshm_order *o) MCL_COLD;
/* A block of `size` bytes in the argument area, for the task in `slot`. ARGS_FULL. */
mcshm_status mcl_submission_args(struct mcl_submission *s, uint64_t size, uint32_t slot,
                                 struct mcs_desc *d, void **out);
/* Everything is as it was before mcl_submission_begin(). Returns `status`. */
mcshm_status mcl_submission_undo(struct mcl_submission *s, mcshm_status status);
/* Pushes what is prepared and counts it, or undoes it. shape: of the one caller's copy, or NULL. */
mcshm_status mcl_submission_finish(struct mcl_submission *s, const struct mcl_shape *shape);
/* A refusal that the caller is to retry, for as long as somebody works it off; else AGENT_DOWN. */
mcshm_status mcl_submission_full(struct mcshm_queue *q, mcshm_status status);

#endif
