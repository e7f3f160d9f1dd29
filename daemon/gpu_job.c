/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_job.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "log.h"
#include "shm/failpoint.h"

#define CLOSE_MS 5000u /* an engine that ends waits so long for its copies */
#define CLOSE_LOOK_MS 10

int mcd_gpu_jobs_create(struct mcd_engine *g, struct mcd_gpu_jobs **out)
{
    struct mcd_gpu_jobs *all = calloc(1, sizeof(*all));
    int res;

    if (all == NULL)
        return -ENOMEM;
    res = mct_cuda_port_open(g->o.cuda, g->event_fd, &all->port);
    if (res != 0) {
        free(all);
        return res;
    }
    *out = all;
    return 0;
}

static void take_out(struct mcd_gpu_jobs *all, struct mcd_gpu_job *j)
{
    if (j->prev != NULL)
        j->prev->next = j->next;
    else
        all->out = j->next;
    if (j->next != NULL)
        j->next->prev = j->prev;
    all->n--;
}

bool mcd_gpu_jobs_close(struct mcd_engine *g)
{
    struct mcd_gpu_jobs *all = g->gpu_jobs;
    uint64_t begun = mcs_ticks();
    struct epoll_event event;

    if (all == NULL || all->stranded)
        return all == NULL;
    while (all->n != 0) {
        struct mct_cuda_job *job = mct_cuda_port_take(all->port);

        if (job != NULL) {
            take_out(all, (struct mcd_gpu_job *)job);
            continue;
        }
        if ((mcs_ticks() - begun) / g->ticks_per_us >= CLOSE_MS * 1000) {
            mcd_error("engine %u: %u copies of GPU memory did not come back within %u ms: the "
                      "driver hangs; what they "
                      "use is left to the end of the process",
                      g->o.id, all->n, CLOSE_MS);
            all->stranded = true;
            return false;
        }
        if (mct_cuda_port_arm(all->port)) /* the loop has ended: this is all that rings */
            epoll_wait(g->epoll_fd, &event, 1, CLOSE_LOOK_MS);
    }
    return true;
}

void mcd_gpu_jobs_destroy(struct mcd_engine *g)
{
    if (g->gpu_jobs == NULL || !mcd_gpu_jobs_close(g))
        return;
    mct_cuda_port_close(g->gpu_jobs->port);
    free(g->gpu_jobs);
    g->gpu_jobs = NULL;
}

void mcd_gpu_job_post(struct mcd_engine *g, struct mcd_gpu_job *j)
{
    struct mcd_gpu_jobs *all = g->gpu_jobs;

    j->prev = NULL;
    j->next = all->out;
    if (all->out != NULL)
        all->out->prev = j;
    all->out = j;
    all->n++;
    MCS_FAILPOINT(gpu_job_post);
    mct_cuda_post(all->port, &j->job);
}

bool mcd_gpu_jobs_turn(struct mcd_engine *g)
{
    struct mcd_gpu_jobs *all = g->gpu_jobs;
    struct mct_cuda_job *job;
    bool any = false;

    while (all->n != 0 && (job = mct_cuda_port_take(all->port)) != NULL) {
        struct mcd_gpu_job *j = (struct mcd_gpu_job *)job;

        take_out(all, j);
        MCS_FAILPOINT(gpu_job_back);
        j->back(g, j);
        any = true;
    }
    return any;
}

bool mcd_gpu_jobs_may_sleep(struct mcd_engine *g)
{
    struct mcd_gpu_jobs *all = g->gpu_jobs;

    return all == NULL || all->n == 0 || mct_cuda_port_arm(all->port);
}

static bool reaches(uint64_t at, uint64_t size, uint64_t base, uint64_t length)
{
    return at < base + length && base < at + size;
}

bool mcd_gpu_jobs_quiet(const struct mcd_engine *g, const void *base, uint64_t length)
{
    uint64_t at = (uint64_t)(uintptr_t)base;

    if (g->gpu_jobs == NULL)
        return true;
    for (const struct mcd_gpu_job *j = g->gpu_jobs->out; j != NULL; j = j->next)
        for (uint32_t i = 0; i < j->job.n; i++) {
            const struct mct_cuda_piece *p = &j->job.pieces[i];

            if (reaches(p->from, p->length, at, length) || reaches(p->to, p->length, at, length))
                return false;
        }
    return true;
}
