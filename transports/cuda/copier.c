/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device's thread that copies: takes whatever engines have posted, begins it, sees when it is over, gives it back.  The driver
 * is asked (cuEventQuery) rather than trusted to call us: its host functions run on a thread of its own, and late.
 *
 * With nothing to do it looks for spin_ns, then sleeps on a futex.  While copies are under way it looks all the time at first,
 * since most are short, and then naps for a small part of the time that they have taken already.
 */
#include "internal.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A nap is this part of the time since something was over: what is late is so by 3 %. */
#define NAP_PART 32u
#define NAP_MAX_NS UINT64_C(1000000)
/* Shorter ones cost more than looking. */
#define NAP_MIN_NS UINT64_C(5000)

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---- any thread ------------------------------------------------------------------------------------ */

static void wake(struct mct_cuda_copier *p)
{
    mcs_fence_full(); /* with the one of doze(): it sees what we left there, or we see that it sleeps */
    if (mcs_load_relaxed(&p->sleeping) != 0 && mcs_exchange(&p->sleeping, 0u) != 0)
        (void)syscall(SYS_futex, &p->sleeping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void mct_cuda_copier_post(struct mct_cuda_copier *p, struct mct_cuda_job *j)
{
    struct mct_cuda_job *head = mcs_load_relaxed(&p->posted);

    do {
        j->next = head;
    } while (!mcs_compare_exchange(&p->posted, &head, j)); /* partner: take_posted() */
    wake(p);
}

void mct_cuda_copier_look(struct mct_cuda_copier *p, uint64_t now)
{
    struct mct_cuda *c = p->gpu->cuda;
    const uint64_t since = mcs_load_relaxed(&p->since);
    char title[MCT_CUDA_TITLE];

    if (p->said != 0 && since != p->said) {
        p->said = 0;
        mcs_fetch_add(&c->stats.stuck_now, (uint64_t)-1);
        MCT_CUDA_LOG(c, INFO, "%s copies again", mct_cuda_title(p->gpu, title));
    }
    if (p->said != 0 || since == 0 || now < since || now - since < c->env.stuck_ms)
        return;
    p->said = since;
    mcs_fetch_add(&c->stats.stuck, 1u);
    mcs_fetch_add(&c->stats.stuck_now, 1u);
    MCT_CUDA_LOG(c, WARNING,
                 "%s has not ended a copy for %llu ms: what was asked of it waits, other devices "
                 "go on (see the kernel's log)",
                 mct_cuda_title(p->gpu, title), (unsigned long long)(now - since));
}

/* ---- its thread ------------------------------------------------------------------------------------ */

static unsigned way_of(const struct mct_cuda_job *j)
{
    if (j->from_device == MCT_CUDA_HOST)
        return j->pinned ? MCT_CUDA_IN : MCT_CUDA_IN_UNPINNED;
    if (j->to_device == MCT_CUDA_HOST)
        return j->pinned ? MCT_CUDA_OUT : MCT_CUDA_OUT_UNPINNED;
    return MCT_CUDA_ACROSS + (unsigned)j->to_device;
}

/* Each job to those of its way. */
static bool take_posted(struct mct_cuda_copier *p)
{
    struct mct_cuda_job *j, *next, *first = NULL;

    if (mcs_load_relaxed(&p->posted) == NULL)
        return false;
    /* partner: mct_cuda_copier_post(). The stack has the last one on top. */
    for (j = mcs_exchange(&p->posted, NULL); j != NULL; j = next) {
        next = j->next;
        j->next = first;
        first = j;
    }
    for (j = first; j != NULL; j = next) {
        const unsigned way = way_of(j);

        next = j->next;
        mct_cuda_jobs_put(&p->ways[way], j);
        p->some |= UINT64_C(1) << way;
    }
    return true;
}

/* ns 0: until it is woken. */
static void doze(struct mct_cuda_copier *p, uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u),
                          .tv_nsec = (long)(ns % 1000000000u)};

    mcs_store_relaxed(&p->sleeping, 1u);
    mcs_fence_full(); /* with the one of wake() */
    if (mcs_load_relaxed(&p->posted) == NULL && mcs_load_relaxed(&p->stop) == 0)
        (void)syscall(SYS_futex, &p->sleeping, FUTEX_WAIT_PRIVATE, 1u, ns != 0 ? &ts : NULL, NULL,
                      0);
    mcs_store_relaxed(&p->sleeping, 0u);
}

static void let_go(struct mct_cuda_copier *p)
{
    if (p->current)
        mcs_cuda_leave(p->gpu->cuda->driver);
    p->current = false;
}

/* The context current, for as long as there is something to do; else all that was asked for fails. */
static bool ready(struct mct_cuda_copier *p)
{
    CUresult e;

    if (!p->current && !mct_cuda_lost(p->gpu)) {
        e = mcs_cuda_enter(p->gpu->cuda->driver, p->primary);
        p->current = e == CUDA_SUCCESS;
        if (mcs_cuda_is_lost(e))
            mct_cuda_lose(p->gpu, e);
    }
    if (mct_cuda_lost(p->gpu))
        mct_cuda_streams_fail(p, MCS_GPU_LOST);
    else if (!p->current)
        mct_cuda_streams_fail(p, MCS_GPU_CONTEXT);
    return p->current && !mct_cuda_lost(p->gpu);
}

/* For mct_cuda_copier_look(). */
static void note_oldest(struct mct_cuda_copier *p)
{
    uint64_t since = p->some != 0 ? mct_ms() : 0; /* no room for more, or a call hangs */

    for (unsigned i = 0; i < p->nstreams; i++) {
        const struct mct_cuda_batch *b = p->streams[i].first;

        if (b != NULL && (since == 0 || b->since < since))
            since = b->since;
    }
    mcs_store_relaxed(&p->since, since);
}

/* One turn: true when something has moved on. */
static bool turn(struct mct_cuda_copier *p)
{
    bool moved = take_posted(p);

    if (p->some == 0 && p->under_way == 0)
        return moved;
    if (mcs_load_relaxed(&p->since) == 0)
        note_oldest(p);
    if (!ready(p))
        return true;
    moved = mct_cuda_streams_begin(p) || moved;
    return mct_cuda_streams_poll(p) || moved;
}

static void *work(void *arg)
{
    struct mct_cuda_copier *p = arg;
    const uint64_t spin = p->gpu->cuda->env.spin_ns;
    uint64_t last = now_ns(), now, nap;

    prctl(PR_SET_TIMERSLACK, 1000ul); /* naps of microseconds */
    for (;;) {
        if (turn(p)) {
            last = now_ns();
            note_oldest(p);
            continue;
        }
        now = now_ns();
        if (p->under_way != 0 || p->some != 0) {
            nap = (now - last) / NAP_PART;
            if (now - last > spin && nap >= NAP_MIN_NS)
                doze(p, nap < NAP_MAX_NS ? nap : NAP_MAX_NS);
            else
                mcs_pause();
            continue;
        }
        if (mcs_load_acquire(&p->stop) != 0) /* partner: mct_cuda_copier_stop() */
            break;
        if (now - last <= spin) {
            mcs_pause();
            continue;
        }
        let_go(p);
        doze(p, 0);
    }
    let_go(p);
    return NULL;
}

/* ---- hands ----------------------------------------------------------------------------------------- */

struct mct_cuda_copier *mct_cuda_copier_create(struct mct_cuda_gpu *g, CUcontext primary,
                                               CUresult *e, int *res)
{
    const struct mcs_cuda *d = g->cuda->driver;
    struct mct_cuda_copier *p;
    char name[16];

    *e = CUDA_SUCCESS;
    *res = 0;
    if (posix_memalign((void **)&p, 64, sizeof(*p)) != 0) {
        *res = -ENOMEM;
        return NULL;
    }
    memset(p, 0, sizeof(*p));
    p->gpu = g;
    p->primary = primary;
    p->singly = d->copy_batch == NULL && d->copy_batch_12 == NULL;
    while (p->nstreams < g->cuda->env.streams && *e == CUDA_SUCCESS) {
        *e = d->stream_create(&p->streams[p->nstreams].stream, CU_STREAM_NON_BLOCKING);
        if (*e == CUDA_SUCCESS)
            p->nstreams++;
    }
    for (unsigned i = 0; i < MCT_CUDA_BATCHES && *e == CUDA_SUCCESS; i++) {
        struct mct_cuda_batch *b = &p->batches[i];

        *e = d->event_create(&b->event, CU_EVENT_DISABLE_TIMING);
        if (*e == CUDA_SUCCESS) {
            b->next = p->idle;
            p->idle = b;
        }
    }
    if (*e == CUDA_SUCCESS) {
        snprintf(name, sizeof(name), "gpu-copy%u", g->index);
        *res = mct_thread_start(&p->thread, work, p, name);
    }
    if (*e == CUDA_SUCCESS && *res == 0)
        return p;
    mct_cuda_copier_destroy(p, true);
    return NULL;
}

bool mct_cuda_copier_stop(struct mct_cuda_copier *p, uint64_t end)
{
    mcs_store_release(&p->stop, 1u); /* partner: work() */
    wake(p);
    return mct_thread_join(p->thread, end);
}

void mct_cuda_copier_destroy(struct mct_cuda_copier *p, bool current)
{
    const struct mcs_cuda *d = p->gpu->cuda->driver;

    for (struct mct_cuda_batch *b = p->idle; b != NULL && current; b = b->next)
        (void)d->event_destroy(b->event);
    for (unsigned i = 0; i < p->nstreams && current; i++)
        (void)d->stream_destroy(p->streams[i].stream);
    free(p);
}
