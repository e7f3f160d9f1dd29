/* SPDX-License-Identifier: Apache-2.0 */
/* The host's GPUs: made, opened when they are first asked for, ended. */
#include "internal.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Those whose threads did not end in time: theirs, but never lost sight of. Control thread. */
static struct mct_cuda *abandoned[4];
static unsigned nabandoned;

uint64_t mct_cuda_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000u + (uint64_t)ts.tv_nsec / 1000000u;
}

void mct_cuda_kick(int fd)
{
    const uint64_t one = 1;

    /* full is as good as written: it is readable */
    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
        continue;
}

int mct_cuda_thread(pthread_t *out, void *(*work)(void *), void *arg, const char *name)
{
    sigset_t all, before;
    int res;

    /* signals are the control thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    res = -pthread_create(out, NULL, work, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (res == 0)
        pthread_setname_np(*out, name);
    return res;
}

bool mct_cuda_join(pthread_t thread, uint64_t end)
{
    uint64_t now = mct_cuda_ms(), ms = end > now ? end - now : 0;
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += (time_t)(ms / 1000u);
    ts.tv_nsec += (long)(ms % 1000u) * 1000000;
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_sec++;
        ts.tv_nsec -= 1000000000;
    }
    if (pthread_timedjoin_np(thread, NULL, &ts) == 0)
        return true;
    pthread_detach(thread);
    return false;
}

int mct_cuda_create(const struct mct_cuda_env *env, struct mct_cuda **out)
{
    struct mct_cuda *c = calloc(1, sizeof(*c));
    pthread_condattr_t attr;

    *out = NULL;
    if (c == NULL)
        return -ENOMEM;
    c->env = *env;
    if (c->env.streams == 0 || c->env.streams > MCT_CUDA_STREAMS)
        c->env.streams = c->env.streams == 0 ? 1 : MCT_CUDA_STREAMS;
    if (c->env.stuck_ms == 0)
        c->env.stuck_ms = MCT_CUDA_STUCK_MS;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->open_lock, NULL);
    pthread_mutex_init(&c->imports_lock, NULL);
    pthread_mutex_init(&c->ports_lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->some, &attr);
    pthread_cond_init(&c->over, &attr);
    pthread_cond_init(&c->imports_changed, &attr);
    pthread_condattr_destroy(&attr);
    for (unsigned i = 0; i < MCT_CUDA_DEVICES; i++) {
        c->gpus[i].cuda = c;
        c->gpus[i].index = i;
        pthread_mutex_init(&c->gpus[i].lock, NULL);
    }
    *out = c;
    return 0;
}

static void destroy_ports(struct mct_cuda *c)
{
    struct mct_cuda_port *p;

    while ((p = c->ports) != NULL) {
        c->ports = p->next;
        close(p->wake_fd);
        free(p);
    }
}

void mct_cuda_destroy(struct mct_cuda *c)
{
    if (c == NULL)
        return;
    if (!mct_cuda_hands_end(c, mct_cuda_ms() + c->env.stuck_ms)) {
        MCT_CUDA_LOG(c, WARNING,
                     "the GPU driver does not return from a call: its thread is left behind");
        if (nabandoned < sizeof(abandoned) / sizeof(abandoned[0]))
            abandoned[nabandoned++] = c;
        return;
    }
    destroy_ports(c);
    for (unsigned i = 0; i < MCT_CUDA_DEVICES; i++)
        pthread_mutex_destroy(&c->gpus[i].lock);
    pthread_cond_destroy(&c->some);
    pthread_cond_destroy(&c->over);
    pthread_cond_destroy(&c->imports_changed);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->open_lock);
    pthread_mutex_destroy(&c->imports_lock);
    pthread_mutex_destroy(&c->ports_lock);
    free(c);
}

void mct_cuda_open(struct mct_cuda *c, struct mct_cuda_call *call)
{
    const struct mcs_cuda *d;

    pthread_mutex_lock(&c->open_lock);
    if (mcs_load_acquire(&c->driver) == NULL) { /* partner: below, in an earlier OPEN */
        if (mcs_cuda_load(&d, call->text, sizeof(call->text)) != 0)
            call->status = MCS_NO_GPU;
        else if (mct_cuda_discover(c, d, call) == 0)
            mcs_store_release(&c->driver, d); /* partner: whoever looks at devices */
    }
    pthread_mutex_unlock(&c->open_lock);
}

bool mct_cuda_close(struct mct_cuda *c, uint64_t end)
{
    bool all = true;

    for (unsigned i = 0; i < c->ngpus; i++)
        all = mct_cuda_device_close(&c->gpus[i], end) && all;
    return all;
}

const struct mct_cuda_device *mct_cuda_device_get(const struct mct_cuda *c, unsigned index)
{
    if (mcs_load_acquire(&c->driver) == NULL || index >= c->ngpus) /* partner: mct_cuda_open() */
        return NULL;
    return &c->gpus[index].device;
}

int mct_cuda_device_find(const struct mct_cuda *c, const struct mcs_gpu_id *id)
{
    const struct mct_cuda_device *d;

    for (unsigned i = 0; (d = mct_cuda_device_get(c, i)) != NULL; i++)
        if (memcmp(&d->id, id, sizeof(*id)) == 0)
            return (int)i;
    return -1;
}

int mct_cuda_driver_version(const struct mct_cuda *c)
{
    const struct mcs_cuda *d = mcs_load_acquire(&c->driver); /* partner: mct_cuda_open() */

    return d != NULL ? d->version : 0;
}

const struct mct_cuda_stats *mct_cuda_stats(const struct mct_cuda *c)
{
    return &c->stats;
}

/* ---- what a call came to --------------------------------------------------------------------------- */

void mct_cuda_say(struct mct_cuda_call *call, enum mcs_status status, const char *format, ...)
{
    va_list ap;

    call->status = status;
    va_start(ap, format);
    vsnprintf(call->text, sizeof(call->text), format, ap);
    va_end(ap);
}

enum mcs_status mct_cuda_status(CUresult e)
{
    if (mcs_cuda_is_lost(e))
        return MCS_GPU_LOST;
    switch (e) {
    case CUDA_SUCCESS:
        return MCS_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return MCS_NO_MEMORY;
    case CUDA_ERROR_NOT_SUPPORTED:
        return MCS_NOT_SUPPORTED;
    default:
        return MCS_GPU_CONTEXT;
    }
}

void mct_cuda_refused(struct mct_cuda_gpu *g, struct mct_cuda_call *call, CUresult e,
                      const char *what)
{
    const char *remedy = "see nvidia-smi and the kernel's log";
    char title[MCT_CUDA_TITLE];

    if (mcs_cuda_is_lost(e)) {
        mct_cuda_lose(g, e);
        remedy = "restart the agent, and see the kernel's log";
    } else if (e == CUDA_ERROR_OUT_OF_MEMORY) {
        remedy = "free memory of the device";
    } else if (g->device.exclusive &&
               (e == CUDA_ERROR_DEVICE_UNAVAILABLE || e == CUDA_ERROR_INVALID_DEVICE)) {
        remedy = "another process has it (nvidia-smi -c DEFAULT)";
    } else if (e == CUDA_ERROR_DEVICE_UNAVAILABLE) {
        remedy = "its compute mode keeps all out (nvidia-smi -c DEFAULT)";
    }
    mct_cuda_say(call, mct_cuda_status(e), "%s: %s: %s: %s", mct_cuda_title(g, title), what,
                 mcs_cuda_error(g->cuda->driver, e), remedy);
}
