/* SPDX-License-Identifier: Apache-2.0 */
#include "dmabuf.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "extent.h"
#include "transports/cuda/cuda.h"

struct mcd_dmabuf {
    struct mct_cuda_call call;
    mcd_dmabuf_done *done;
    void *context;
};

static void made(struct mct_cuda_call *call)
{
    struct mcd_dmabuf *d = call->context;

    d->done(d->context,
            call->status == MCS_OK              ? 0
            : call->status == MCS_NOT_SUPPORTED ? -EOPNOTSUPP
            : call->status == MCS_NO_MEMORY     ? -ENOMEM
                                                : -EIO,
            call->text);
}

int mcd_dmabuf_create(struct mct_cuda *cuda, const struct mcd_extent *e, mcd_dmabuf_done *done,
                      void *context, struct mcd_dmabuf **out)
{
    const struct mct_cuda_device *device =
        cuda == NULL ? NULL : mct_cuda_device_get(cuda, (unsigned)e->gpu_device);
    struct mcd_dmabuf *d;

    *out = NULL;
    if (device == NULL || !device->dmabuf || !device->rdma)
        return -EOPNOTSUPP;
    d = calloc(1, sizeof(*d));
    if (d == NULL)
        return -ENOMEM;
    d->done = done;
    d->context = context;
    d->call = (struct mct_cuda_call){
        .kind = MCT_CUDA_DMABUF,
        .device = (unsigned)e->gpu_device,
        .memory = e->gpu,
        .size = e->size,
        .fd = -1,
        .done = made,
        .context = d,
    };
    *out = d;
    mct_cuda_begin(cuda, &d->call);
    return 0;
}

int mcd_dmabuf_fd(const struct mcd_dmabuf *d)
{
    return d->call.fd;
}

void mcd_dmabuf_destroy(struct mcd_dmabuf *d)
{
    if (d == NULL)
        return;
    if (d->call.status == MCS_OK && d->call.fd >= 0)
        close(d->call.fd);
    free(d);
}
