/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of a task to another host share: remote.c, its way there, and remote_back.c, what its slices say when they
 * come back. Engine's thread only. */
#ifndef MCD_REMOTE_TASK_H
#define MCD_REMOTE_TASK_H

#include "leg.h"
#include "net.h"

#define MCD_NOTICE_AGAIN (UINT64_C(1) << 63) /* address of a NOTIFY: it may have arrived before */

static inline bool mcd_slice_writes(const struct mcd_slice *s)
{
    return s->s.op != MCT_READ;
}

/* Its ends here and there, as they are now; NULL: not any more. */
static inline struct mcd_segment *mcd_remote_segment(const struct mcd_task *t)
{
    return t->leg != NULL ? t->leg->segment : mcd_find_segment(t->q, t->desc.segment);
}

static inline const struct mcd_extent *mcd_remote_extent(const struct mcd_task *t)
{
    return t->leg != NULL && t->leg->store != NULL ? t->leg->store
                                                   : mcd_find_extent(t->q, t->desc.extent);
}

/* It has its lane and is one of the queue's tasks from now on; not in the lane's lists yet. */
void mcd_remote_list(struct mcd_engine *g, struct mcd_task *t);
/* Its timer fires in so many microseconds, or at its deadline. */
void mcd_remote_arm(struct mcd_engine *g, struct mcd_task *t, uint64_t us);
/* A slice that is not out goes; _again: one of the route's list of those to be sent again. */
void mcd_remote_drop(struct mcd_engine *g, struct mcd_task *t, struct mcd_slice *s);
void mcd_remote_drop_again(struct mcd_engine *g, struct mcd_task *t, struct mcd_slice *s);
/* remote_back.c: it is to be sent again. */
void mcd_remote_again(struct mcd_engine *g, struct mcd_slice *s);
/* Likewise: its bytes are in their place. */
void mcd_remote_through(struct mcd_engine *g, struct mcd_slice *s);
/* remote_stage.c: the bytes of a READ have come into its stage. */
void mcd_remote_land(struct mcd_engine *g, struct mcd_slice *s);
/* Nothing of it is out: fills its slot. */
void mcd_remote_end(struct mcd_engine *g, struct mcd_task *t, enum mcs_state state,
                    enum mcs_status error);
/* Ends one that is ending now if nothing is out. True: it has ended. */
bool mcd_remote_try_end(struct mcd_engine *g, struct mcd_task *t);
/* What the peer refused, or what a check found. */
void mcd_remote_refuse(struct mcd_engine *g, struct mcd_task *t, enum mcs_status error);

#endif
