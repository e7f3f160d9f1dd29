/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA: threads beside the nic's own, for what may take long. */
#include "devices.h"

#include <stdio.h>

void mct_rdma_worker_init(struct mct_rdma_worker *w, struct mct_rdma_device *d)
{
    w->device = d;
    mct_cond_init(&w->wake);
}

void mct_rdma_worker_fini(struct mct_rdma_worker *w)
{
    pthread_cond_destroy(&w->wake);
}

void mct_rdma_worker_put(struct mct_rdma_worker *w, struct mct_rdma_job *j)
{
    pthread_mutex_lock(&w->device->rdma->lock);
    mct_rdma_jobs_put(&w->jobs, j);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->device->rdma->lock);
}

bool mct_rdma_worker_drop(struct mct_rdma_worker *w, const struct mct_rdma_job *j)
{
    struct mct_rdma_jobs rest = {NULL, NULL};
    struct mct_rdma_job *k;
    bool found = false;

    pthread_mutex_lock(&w->device->rdma->lock);
    while ((k = mct_rdma_jobs_take(&w->jobs)) != NULL) {
        found = found || k == j;
        if (k != j)
            mct_rdma_jobs_put(&rest, k);
    }
    w->jobs = rest;
    pthread_mutex_unlock(&w->device->rdma->lock);
    return found;
}

/* The first job that is due; else *wait is when the next one is. */
static struct mct_rdma_job *take_due(struct mct_rdma_jobs *q, uint64_t now, uint64_t *wait)
{
    struct mct_rdma_jobs rest = {NULL, NULL};
    struct mct_rdma_job *j, *found = NULL;

    *wait = UINT64_MAX;
    if (q->first == NULL || q->first->due <= now)
        return mct_rdma_jobs_take(q);
    while ((j = mct_rdma_jobs_take(q)) != NULL) {
        if (found == NULL && j->due <= now) {
            found = j;
            continue;
        }
        if (j->due < *wait)
            *wait = j->due;
        mct_rdma_jobs_put(&rest, j);
    }
    *q = rest;
    return found;
}

/* false: it is to be tried again when it is due. */
static bool do_job(struct mct_rdma_device *d, struct mct_rdma_job *j)
{
    switch (j->kind) {
    case MCT_RDMA_JOB_REGISTER:
        mct_rdma_register(d, j);
        mct_rdma_result(j);
        return true;
    case MCT_RDMA_JOB_PAIR_CONNECT:
        mct_rdma_pair_move(d, j);
        j->kind = MCT_RDMA_JOB_PAIR_MOVED;
        mct_rdma_post(d, j);
        return true;
    default: /* DEREGISTER */
        if (!mct_rdma_deregister(d, j))
            return false;
        mct_rdma_result(j);
        return true;
    }
}

static void *work(void *worker)
{
    struct mct_rdma_worker *w = worker;
    struct mct_rdma_device *d = w->device;
    struct mct_rdma *r = d->rdma;
    struct mct_rdma_job *j;
    uint64_t wait;
    struct timespec ts;
    bool done;

    pthread_mutex_lock(&r->lock);
    while (!d->stop) {
        j = take_due(&w->jobs, mct_ms(), &wait);
        if (j == NULL) {
            ts = mct_until(wait);
            if (wait == UINT64_MAX)
                pthread_cond_wait(&w->wake, &r->lock);
            else
                pthread_cond_timedwait(&w->wake, &r->lock, &ts);
            continue;
        }
        w->at_work++;
        pthread_mutex_unlock(&r->lock);
        done = do_job(d, j);
        pthread_mutex_lock(&r->lock);
        w->at_work--;
        if (!done)
            mct_rdma_jobs_put(&w->jobs, j);
    }
    mct_kick(d->kick_fd); /* end_device() waits for what is at work */
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int mct_rdma_worker_start(struct mct_rdma_worker *w, unsigned n, const char *name)
{
    char full[16];
    int res = 0;

    snprintf(full, sizeof(full), "rdma-%s%u", name, w->device->index);
    while (w->n < n && res == 0) {
        res = mct_thread_start(&w->threads[w->n], work, w, full);
        if (res == 0)
            w->n++;
    }
    return res;
}
