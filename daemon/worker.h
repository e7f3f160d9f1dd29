/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread for what takes long and must not hold up the control thread: making and
 * tearing down memory.  Jobs run in the order they came; their `done` runs in the control
 * thread, from mcd_worker_reap().
 */
#ifndef MCD_WORKER_H
#define MCD_WORKER_H

#include <stdbool.h>

struct mcd_job {
    void (*run)(struct mcd_job *job);                 /* worker's thread */
    void (*done)(struct mcd_job *job, void *context); /* control thread; owns the job again */
    struct mcd_job *next;
};

struct mcd_worker;

/* notify_fd: an eventfd that is written when jobs are done. */
int mcd_worker_create(int notify_fd, struct mcd_worker **out);
/* Runs what is queued, ends the thread, calls `done` of all that were run. */
void mcd_worker_destroy(struct mcd_worker *w, void *context);
void mcd_worker_submit(struct mcd_worker *w, struct mcd_job *job);
/* Calls `done` of the finished jobs. */
void mcd_worker_reap(struct mcd_worker *w, void *context);

#endif
