/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_bare.h"

#include "say.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int gpu_bare_init(struct gpu_bare *b, struct device *d, uint64_t region, uint64_t from, uint64_t to)
{
    void *pinned = NULL;
    int rc = 0;

    *b = (struct gpu_bare){.device = d, .from = from, .to = to};
    b->singly = d->driver->copy_batch == NULL && d->driver->copy_batch_12 == NULL;
    for (unsigned i = 0; rc == 0 && i < GPU_BARE_STREAMS; i++)
        rc = device_check(d, d->driver->stream_create(&b->streams[i], CU_STREAM_NON_BLOCKING),
                          "creating a stream");
    if (rc == 0)
        rc = device_check(d, d->driver->host_alloc(&pinned, region, 0),
                          "allocating pinned host memory");
    b->pinned = pinned;
    if (rc == 0)
        memset(pinned, 0, region); /* first touches, outside all measurements */
    return rc;
}

void gpu_bare_fini(struct gpu_bare *b)
{
    for (unsigned i = 0; i < GPU_BARE_STREAMS; i++)
        if (b->streams[i] != NULL)
            b->device->driver->stream_destroy(b->streams[i]);
    if (b->pinned != NULL)
        b->device->driver->host_free(b->pinned);
    free(b->tos);
    free(b->froms);
    free(b->sizes);
    *b = (struct gpu_bare){.device = NULL};
}

static int make_room(struct gpu_bare *b, size_t count)
{
    if (count <= b->room)
        return 0;
    free(b->tos);
    free(b->froms);
    free(b->sizes);
    b->tos = calloc(count, sizeof(b->tos[0]));
    b->froms = calloc(count, sizeof(b->froms[0]));
    b->sizes = calloc(count, sizeof(b->sizes[0]));
    b->room = b->tos != NULL && b->froms != NULL && b->sizes != NULL ? count : 0;
    return b->room > 0 ? 0 : say_error(-ENOMEM, "no memory for a list of %zu pieces", count);
}

static CUresult copy_batch(struct gpu_bare *b, size_t count, CUstream stream)
{
    const struct mcs_cuda *driver = b->device->driver;
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t first = 0, failed = 0;

    if (driver->copy_batch != NULL)
        return driver->copy_batch(b->tos, b->froms, b->sizes, count, &attributes, &first, 1,
                                  stream);
    return driver->copy_batch_12(b->tos, b->froms, b->sizes, count, &attributes, &first, 1, &failed,
                                 stream);
}

static int copy_list(struct gpu_bare *b, size_t count, CUstream stream)
{
    CUresult e = b->singly ? CUDA_ERROR_NOT_SUPPORTED : copy_batch(b, count, stream);

    if (e != CUDA_SUCCESS && !b->singly && !mcs_cuda_is_lost(e)) {
        b->singly = true;
        say_note("the driver has refused a batch of %zu bare copies (%s): they are made one by one",
                 count, mcs_cuda_error(b->device->driver, e));
    }
    if (b->singly) {
        e = CUDA_SUCCESS;
        for (size_t i = 0; e == CUDA_SUCCESS && i < count; i++)
            e = b->device->driver->copy(b->tos[i], b->froms[i], b->sizes[i], stream);
    }
    return device_check(b->device, e, "a bare list of copies");
}

int gpu_bare_copy(struct gpu_bare *b, enum gpu_op op, const struct copy_plan *plan, uint64_t at,
                  unsigned stream)
{
    uint64_t host = (uintptr_t)b->pinned;
    uint64_t from = (op == GPU_H2D ? host : b->from) + at;
    uint64_t to = (op == GPU_D2H ? host : b->to) + at;
    int rc;

    if (plan->count == 1)
        return device_check(b->device,
                            b->device->driver->copy(to, from, plan->size, b->streams[stream]),
                            "a bare copy");
    rc = make_room(b, plan->count);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < plan->count; i++) {
        const mcshm_piece *p = &plan->pieces[i];

        b->tos[i] = to + p->remote_offset;
        b->froms[i] = from + p->local_offset;
        b->sizes[i] = p->length;
    }
    return copy_list(b, plan->count, b->streams[stream]);
}

int gpu_bare_await(struct gpu_bare *b, unsigned stream)
{
    CUresult e;

    while ((e = b->device->driver->stream_query(b->streams[stream])) == CUDA_ERROR_NOT_READY)
        ;
    return device_check(b->device, e, "waiting for bare copies");
}
