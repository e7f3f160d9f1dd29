/* SPDX-License-Identifier: Apache-2.0 */
/* The host's GPUs: made, opened when they are first asked for, ended. */
#include "internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Those whose threads did not end in time: theirs, but never lost sight of. Control thread. */
static struct mct_cuda *abandoned[4];
static unsigned nabandoned;

int mct_cuda_create(const struct mct_cuda_env *env, struct mct_cuda **out)
{
    struct mct_cuda *c = calloc(1, sizeof(*c));

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
    mct_cond_init(&c->some);
    mct_cond_init(&c->over);
    mct_cond_init(&c->imports_changed);
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
    if (!mct_cuda_hands_end(c, mct_ms() + c->env.stuck_ms)) {
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
