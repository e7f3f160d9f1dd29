/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of `gpu`: directions, sizes, pieces. */
#ifndef BENCH_GPU_SHAPE_H
#define BENCH_GPU_SHAPE_H

#include "copy_shape.h"

#include <stdint.h>

#define GPU_SIZES_MAX 16u
#define GPU_LISTS_MAX 6u

/* From one process's memory to another's, or back. */
enum gpu_op {
    GPU_D2D, /* WRITE of device memory into the other process's, on the same device */
    GPU_H2D, /* WRITE of host memory into the other process's device memory */
    GPU_D2H, /* READ of the other process's device memory into host memory */
    GPU_OPS
};
#define GPU_ROWS_MAX (GPU_OPS * (GPU_SIZES_MAX + GPU_LISTS_MAX))

struct gpu_shape {
    enum gpu_op op;
    uint64_t size;  /* bytes of a task */
    uint64_t piece; /* bytes of each of its pieces; contiguous: size */
};

const char *gpu_op_name(enum gpu_op op);

/* "4K,1M": each a multiple of 4 KiB, at most 1 GiB, GPU_SIZES_MAX at most. *count: how many. 0, or -EINVAL, said already. */
int gpu_parse_sizes(const char *text, uint64_t *sizes, unsigned *count);

/*
 * The rows for these sizes: each op contiguous in each size, then each op in lists of 4 KiB to 4 MiB pieces, as a paged KV
 * cache has them, of 16 MiB or 8 pieces, or of the largest size where that is less; lists of one piece are left out.
 * Returns how many, at most GPU_ROWS_MAX.
 */
unsigned gpu_make_rows(const uint64_t *sizes, unsigned count, struct gpu_shape *rows);

/* Bytes that tasks of that size rotate over, which a region of so many holds: past the caches, if they fit. */
uint64_t gpu_span(uint64_t region, uint64_t size);
/* Bytes of each side's memory for these sizes. */
uint64_t gpu_region(const uint64_t *sizes, unsigned count);

/* Of copy_shape.h: pieces one after another in the source, shuffled in the target. */
int gpu_plan_make(const struct gpu_shape *shape, struct copy_plan *out);

#endif
