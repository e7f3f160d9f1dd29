/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_internal.h"
#include "log.h"
#include "shm/failpoint.h"

#define START_MS 60000 /* that the driver may take at the start with enable = require */
#define AGAIN_NS UINT64_C(5000000000) /* a driver that failed is left alone for so long */

/* ---- opening ------------------------------------------------------------------------------- */

static void say_devices(const struct mcd_gpu *g)
{
    const struct mct_cuda_device *d;
    char text[MCS_GPU_ID_TEXT];

    for (unsigned i = 0; (d = mct_cuda_device_get(g->agent->cuda, i)) != NULL; i++) {
        mcs_gpu_id_print(&d->id, d->name, text);
        mcd_info("GPU %s: %s, %s, node %d, %llu MiB%s%s", text, d->name, d->pci, d->node,
                 (unsigned long long)(d->total >> 20), d->mig ? ", MIG" : "",
                 d->exclusive ? ", exclusive" : "");
    }
}

static void opened(struct mct_cuda_call *call)
{
    struct mcd_gpu *g = call->context;

    if (call->status == MCS_OK) {
        g->state = MCD_GPU_OPEN;
        if (g->failed_opens != 0)
            mcd_info("the GPU driver is there now, after %llu attempts in vain",
                     (unsigned long long)g->failed_opens);
        g->why[0] = '\0';
        say_devices(g);
        return;
    }
    g->state = MCD_GPU_FAILED;
    g->again_ns = mcd_now_ns() + AGAIN_NS;
    g->failed_opens++;
    if (strcmp(g->why, call->text) != 0) /* the same again is no news */
        mcd_info("no GPU memory: %s", call->text);
    snprintf(g->why, sizeof(g->why), "%s", call->text);
}

void mcd_gpu_open(struct mcd_agent *a)
{
    struct mcd_gpu *g = a->gpu;

    if (g->state != MCD_GPU_CLOSED && (g->state != MCD_GPU_FAILED || mcd_now_ns() < g->again_ns))
        return;
    g->state = MCD_GPU_OPENING;
    g->opening = (struct mct_cuda_call){.kind = MCT_CUDA_OPEN, .done = opened, .context = g};
    MCS_FAILPOINT(gpu_open);
    mct_cuda_begin(a->cuda, &g->opening);
}

enum mcd_gpu_state mcd_gpu_state(const struct mcd_agent *a)
{
    return a->gpu == NULL ? MCD_GPU_CLOSED : a->gpu->state;
}

const char *mcd_gpu_why(const struct mcd_agent *a)
{
    return a->gpu == NULL ? "[gpu] enable = off" : a->gpu->why;
}

void mcd_gpu_use(struct mcd_agent *a, unsigned device)
{
    if (a->gpu->device >= 0)
        return;
    a->gpu->device = (int)device;
    mcd_gpu_pin_all(a->gpu);
}

bool mcd_gpu_pinning(const struct mcd_agent *a)
{
    return a->gpu != NULL && a->gpu->first != 0;
}

bool mcd_gpu_busy(const struct mcd_agent *a)
{
    return a->gpu != NULL && a->gpu->ties != 0;
}

/* Nobody is there yet whom a wait could hold up. */
static int open_now(struct mcd_agent *a, char *error, size_t error_size)
{
    struct pollfd p = {.fd = a->event_fd, .events = POLLIN};
    uint64_t end = mcd_now_ns() + START_MS * UINT64_C(1000000), v;

    mcd_gpu_open(a);
    while (a->gpu->state == MCD_GPU_OPENING && mcd_now_ns() < end) {
        if (poll(&p, 1, 100) == 1 && read(a->event_fd, &v, sizeof(v)) < 0) {
            /* somebody else's wake-up was read together with this one */
        }
        mcd_gpu_poll(a);
    }
    if (a->gpu->state == MCD_GPU_OPEN && mct_cuda_device_get(a->cuda, 0) != NULL)
        return 0;
    snprintf(error, error_size, "[gpu] enable = require: %s; enable = auto starts without",
             a->gpu->state == MCD_GPU_OPENING ? "the driver has not answered for 60 s"
             : a->gpu->why[0] != '\0'         ? a->gpu->why
                                              : "the driver has no device");
    return -ENODEV;
}

/* ---- life ---------------------------------------------------------------------------------- */

int mcd_gpu_create(struct mcd_agent *a, char *error, size_t error_size)
{
    const struct mct_cuda_env env = {
        .log = mcd_log_line,
        .control_fd = a->event_fd,
        .streams = (unsigned)a->config.gpu_streams,
        .spin_ns = a->config.spin_us * 1000,
    };
    int res;

    if (a->config.gpu_enable == MCD_GPU_OFF)
        return 0;
    a->gpu = calloc(1, sizeof(*a->gpu));
    res = a->gpu == NULL ? -ENOMEM : mct_cuda_create(&env, &a->cuda);
    if (res != 0) {
        free(a->gpu);
        a->gpu = NULL;
        return res;
    }
    a->gpu->agent = a;
    a->gpu->device = -1;
    a->pool.release = mcd_gpu_release;
    a->pool.release_context = a->gpu;
    return a->config.gpu_enable == MCD_GPU_REQUIRE ? open_now(a, error, error_size) : 0;
}

void mcd_gpu_destroy(struct mcd_agent *a)
{
    if (a->gpu == NULL)
        return;
    mcd_gpu_poll(a);
    if (a->gpu->ties != 0) {
        /* calls that hang: what they are about stays as it is until the process is gone */
        mcd_debug("the GPU driver is left to the kernel");
        return;
    }
    mct_cuda_destroy(a->cuda);
    a->cuda = NULL;
    free(a->gpu);
    a->gpu = NULL;
}

bool mcd_gpu_poll(struct mcd_agent *a)
{
    return a->cuda != NULL && mct_cuda_poll(a->cuda);
}

void mcd_gpu_location(const struct mcd_extent *e, char text[MCS_LOCATION_MAX])
{
    const uint8_t *id = mcd_gpu_tie_id(e->tie)->bytes;
    int n = snprintf(text, MCS_LOCATION_MAX, "cuda:");

    for (unsigned i = 0; i < 13; i++)
        n += snprintf(text + n, (size_t)(MCS_LOCATION_MAX - n), "%02x", id[i]);
}
