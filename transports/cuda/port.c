/* SPDX-License-Identifier: Apache-2.0 */
/* Engines' ways to the copiers: jobs go there one by one, and come back in bunches. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int mct_cuda_port_open(struct mct_cuda *c, int wake_fd, struct mct_cuda_port **out)
{
    struct mct_cuda_port *p;

    *out = NULL;
    if (posix_memalign((void **)&p, 64, sizeof(*p)) != 0)
        return -ENOMEM;
    *p = (struct mct_cuda_port){.cuda = c};
    p->wake_fd = fcntl(wake_fd, F_DUPFD_CLOEXEC, 0);
    if (p->wake_fd < 0) {
        int res = -errno;

        free(p);
        return res;
    }
    pthread_mutex_lock(&c->ports_lock);
    p->next = c->ports;
    c->ports = p;
    pthread_mutex_unlock(&c->ports_lock);
    *out = p;
    return 0;
}

void mct_cuda_port_close(struct mct_cuda_port *p)
{
    /* The copier that gave the last job back may not have looked yet whether to wake: neither the memory nor the
     * descriptor goes before it has ended. */
    if (p != NULL)
        mcs_store_relaxed(&p->sleeping, 0u);
}

/* The device whose copier carries it: the source's, since a device writes to others faster than it reads from them. */
static struct mct_cuda_copier *copier_of(struct mct_cuda *c, const struct mct_cuda_job *j)
{
    const int device = j->from_device != MCT_CUDA_HOST ? j->from_device : j->to_device;

    if (device < 0 || mct_cuda_device_get(c, (unsigned)device) == NULL ||
        (j->to_device != MCT_CUDA_HOST && mct_cuda_device_get(c, (unsigned)j->to_device) == NULL) ||
        j->n == 0)
        return NULL;
    return mcs_load_acquire(&c->gpus[device].copier); /* partner: use() in device.c */
}

void mct_cuda_post(struct mct_cuda_port *p, struct mct_cuda_job *job)
{
    struct mct_cuda_copier *copier = copier_of(p->cuda, job);

    job->port = p;
    job->status = MCS_OK;
    job->staged = false;
    if (copier == NULL) {
        job->status = MCS_NO_GPU; /* nothing lies there */
        mct_cuda_jobs_put(&p->taken, job);
        return;
    }
    mct_cuda_copier_post(copier, job);
}

struct mct_cuda_job *mct_cuda_port_take(struct mct_cuda_port *p)
{
    struct mct_cuda_job *j, *next, *first = NULL;

    if (p->armed) {
        p->armed = false;
        mcs_store_relaxed(&p->sleeping, 0u);
    }
    if (p->taken.first == NULL && mcs_load_relaxed(&p->back) != NULL) {
        /* partner: give(). The stack has the last one on top. */
        for (j = mcs_exchange(&p->back, NULL); j != NULL; j = next) {
            next = j->next;
            j->next = first;
            first = j;
            if (p->taken.last == NULL)
                p->taken.last = j;
        }
        p->taken.first = first;
    }
    return mct_cuda_jobs_take(&p->taken);
}

bool mct_cuda_port_arm(struct mct_cuda_port *p)
{
    p->armed = true;
    mcs_store_relaxed(&p->sleeping, 1u);
    mcs_fence_full(); /* with the one of give(): it sees that we sleep, or we see what came back */
    return p->taken.first == NULL && mcs_load_relaxed(&p->back) == NULL;
}

/* Jobs of one port. */
static void give(struct mct_cuda_port *p, struct mct_cuda_job *top, struct mct_cuda_job *bottom)
{
    struct mct_cuda_job *head = mcs_load_relaxed(&p->back);

    do {
        bottom->next = head;
    } while (!mcs_compare_exchange(&p->back, &head, top)); /* partner: mct_cuda_port_take() */
    mcs_fence_full();                                      /* with the one of mct_cuda_port_arm() */
    if (mcs_load_relaxed(&p->sleeping) != 0 && mcs_exchange(&p->sleeping, 0u) != 0)
        mct_kick(p->wake_fd);
}

void mct_cuda_give(struct mct_cuda_jobs *jobs)
{
    struct mct_cuda_job *j, *top, *bottom;
    struct mct_cuda_port *p;

    while ((j = mct_cuda_jobs_take(jobs)) != NULL) {
        p = j->port;
        top = bottom = j;
        while (jobs->first != NULL && jobs->first->port == p) {
            j = mct_cuda_jobs_take(jobs);
            j->next = top;
            top = j;
        }
        give(p, top, bottom);
    }
}
