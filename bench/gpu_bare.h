/* SPDX-License-Identifier: Apache-2.0 */
/* The same copies by the driver's own calls, in one process: what there is to be had. */
#ifndef BENCH_GPU_BARE_H
#define BENCH_GPU_BARE_H

#include "copy_shape.h"
#include "device.h"
#include "gpu_run.h"

#define GPU_BARE_STREAMS 4u

struct gpu_bare {
    struct device *device;
    CUstream streams[GPU_BARE_STREAMS]; /* one a copy under way */
    uint8_t *pinned;                    /* host memory of the driver's own */
    uint64_t from, to;                  /* device memory */
    CUdeviceptr *tos, *froms;           /* of a list */
    size_t *sizes;
    size_t room;
    bool singly; /* the driver has no batches, or has refused one */
};

/* from, to: device memory of region bytes each; the caller's. 0, or a negative errno, said already. */
int gpu_bare_init(struct gpu_bare *b, struct device *d, uint64_t region, uint64_t from,
                  uint64_t to);
void gpu_bare_fini(struct gpu_bare *b); /* also of one that is all zero */

/* Queues the copies of plan, from place `at` in the source to the same in the target, on streams[stream]: one
 * cuMemcpyAsync(), or, of a list, one cuMemcpyBatchAsync() where the driver has it and takes it. 0, or a negative errno, said already. */
int gpu_bare_copy(struct gpu_bare *b, enum gpu_op op, const struct copy_plan *plan, uint64_t at,
                  unsigned stream);
/* Looks until all on the stream has ended. */
int gpu_bare_await(struct gpu_bare *b, unsigned stream);

#endif
