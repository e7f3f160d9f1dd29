/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks of this host with an end in GPU memory: no thread of the agent touches those bytes, copiers of the device do.
 *
 *   CHECK (task.c) --> [gate] --> a lane of its device --> jobs, as the window allows --> all are back --> DELIVER (task.c)
 *                                        |                        |
 *                                        +-- late, canceled, refused, failed: nothing new is posted;
 *                                            the task ends when what is out is back
 *
 * What an engine has out on one device is bounded (MCD_GPU_WINDOW), so that whoever wants it to be quiet - a cancel, a deadline, a
 * revocation - waits for that much at most, and so that the rest waits here, where shares say whose turn it is. A lane holds the
 * tasks of one queue that go to one device: a device that is slow or gone holds up nobody else.  Pieces are posted in order and
 * copied in none.  Engine's thread only.
 */
#ifndef MCD_GPU_TASK_H
#define MCD_GPU_TASK_H

#include "gpu_job.h"
#include "task.h"

#define MCD_GPU_PIECES 512u /* of one job: what one call of the driver is worth preparing for */
/*
 * Bytes that an engine has out on one device, where those that cross a bus count MCD_GPU_BUS times: a copy within a device
 * runs at hundreds of GB/s or more, one over PCIe or to another device at tens (PCIe 4.0 x16 about 25, 5.0 about 50).  So a
 * whole window takes less than a millisecond, and is several times what is needed to keep copiers busy for the microseconds
 * that a turn of the engine takes.
 */
#define MCD_GPU_WINDOW (UINT64_C(64) << 20)
#define MCD_GPU_BUS 4u
#define MCD_GPU_JOB                                                                                \
    (MCD_GPU_WINDOW / 4)  /* of one job, counted likewise: the next ones wait behind it */
#define MCD_GPU_JOBS 256u /* out on one device, however small */

/* What an engine has under way with one device. */
struct mcd_gpu_way {
    struct mcd_shares shares; /* of lanes */
    uint64_t out;             /* bytes, as the window counts them */
    uint32_t jobs;
};

/* Tasks of one queue, FIFO by class. */
struct mcd_gpu_lane {
    struct mcd_queue *q;
    struct mcd_gpu_way *way;
    struct mcd_share_leaf leaf;
    struct {
        uint32_t head, tail;
    } lists[MCS_CLASS_COUNT];
    unsigned device;
    struct mcd_gpu_lane *next; /* of the queue */
};

struct mcd_gpu_copy; /* a job of a task */

struct mcd_gpu_tasks {
    struct mcd_gpu_way *ways[MCT_CUDA_DEVICES]; /* made at the first use */
    unsigned nways;                             /* index of the last one, + 1 */
    struct mcd_gpu_copy *free, *all;
};

/* With g->gpu_jobs. g->o.cuda is not NULL. */
int mcd_gpu_tasks_create(struct mcd_engine *g);
/* The engine has no queues. Nothing is done where there is none. */
void mcd_gpu_tasks_destroy(struct mcd_engine *g);
/* The queue's lanes go: it has no tasks. */
void mcd_gpu_lanes_free(struct mcd_queue *q);

/* A piece of the task has an end in GPU memory, which mcd_resolve() has just found. OK, or why it cannot go on. */
enum mcs_status mcd_gpu_task_meets(struct mcd_task *t, const struct mcd_lookups *found);
/* Checked, and in none of the queue's lists: moves from now on. */
void mcd_gpu_task_enter(struct mcd_engine *g, struct mcd_task *t);
/* The same for a leg of this host (leg.h), which is none of the queue's tasks yet. 0 or -ENOMEM. */
int mcd_gpu_task_leg(struct mcd_engine *g, struct mcd_task *t);
/* It has entered, and ends so as soon as nothing of it is out. The first word counts. */
void mcd_gpu_task_finish(struct mcd_engine *g, struct mcd_task *t, enum mcs_state state,
                         enum mcs_status error);
void mcd_gpu_task_timer(struct mcd_engine *g, struct mcd_task *t);

/* Is there anything for mcd_gpu_tasks_turn()? */
static inline bool mcd_gpu_tasks_any(const struct mcd_engine *g)
{
    return g->gpu_tasks->nways != 0 || g->gpu_jobs->n != 0;
}
/* Takes back what is through, posts what may go. True when something happened. */
bool mcd_gpu_tasks_turn(struct mcd_engine *g);
/* Does something wait here that nothing will ring for: leave to go, by its tenant's rate? */
bool mcd_gpu_tasks_wait(const struct mcd_engine *g);

#endif
