/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that an engine has handed to the copiers of the host's GPUs (transports/cuda/cuda.h) and that are not back:
 * whoever in the engine makes them, quieting, sleep and the engine's end look after all of them here.  Engine's thread
 * only.
 */
#ifndef MCD_GPU_JOB_H
#define MCD_GPU_JOB_H

#include "engine.h"
#include "transports/cuda/cuda.h"

struct mcd_gpu_job {
    struct mct_cuda_job job; /* first; its `context` is not used */
    /* It is back, and job.status says how; it may be freed or posted again. Called once a posting, but not any more when the
     * engine ends. */
    void (*back)(struct mcd_engine *g, struct mcd_gpu_job *j);
    void *context;
    /* its own */
    struct mcd_gpu_job *next, *prev; /* of those that are out */
};

/* Of an engine with [gpu] enable = off there are none. */
struct mcd_gpu_jobs {
    struct mct_cuda_port *port;
    struct mcd_gpu_job *out;
    uint32_t n;    /* of them */
    bool stranded; /* the engine has ended, and some did not come back: their memory stays */
};

/* g->o.cuda is not NULL. */
int mcd_gpu_jobs_create(struct mcd_engine *g, struct mcd_gpu_jobs **out);
/* Waits, for a bounded time, until all are back, in the engine's thread when there is one. Nothing is told any more. Idempotent.
 * False: some are still out. */
bool mcd_gpu_jobs_close(struct mcd_engine *g);
void mcd_gpu_jobs_destroy(struct mcd_engine *g);

/* It and its pieces stay where they are until back(). */
void mcd_gpu_job_post(struct mcd_engine *g, struct mcd_gpu_job *j);
/* Takes those back that are through; true: there were some. */
bool mcd_gpu_jobs_turn(struct mcd_engine *g);
/* The last look before sleep: true when whatever comes back from now on wakes the engine. */
bool mcd_gpu_jobs_may_sleep(struct mcd_engine *g);
/* Does nothing that is out read or write the range? Of host memory, or device addresses: the driver gives each address
 * once. */
bool mcd_gpu_jobs_quiet(const struct mcd_engine *g, const void *base, uint64_t length);

#endif
