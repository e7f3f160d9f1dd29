/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes of `copy`: which pieces one task of a given size consists of. */
#ifndef BENCH_COPY_SHAPE_H
#define BENCH_COPY_SHAPE_H

#include <mcshm.h>
#include <stddef.h>
#include <stdint.h>

enum copy_shape { COPY_CONTIGUOUS, COPY_LIST, COPY_STRIDE, COPY_SHAPES };

struct copy_plan {
    enum copy_shape shape;
    uint64_t size; /* bytes of the task */
    uint64_t remote_span;
    mcshm_piece *pieces; /* of contiguous: one */
    size_t count;
    mcshm_stride stride; /* of COPY_STRIDE: the same pieces */
};

const char *copy_shape_name(enum copy_shape shape);

/* Bytes of a piece of a list or stride of that size. */
uint64_t copy_piece_size(uint64_t size);

/*
 * list: pieces one after another in the source, shuffled in the target (the same shuffle
 * every time); stride: a gap as large as the piece after each piece of the target.
 * size: a multiple of copy_piece_size(). -EINVAL, -ENOMEM. Freed by copy_plan_free().
 */
int copy_plan_make(enum copy_shape shape, uint64_t size, struct copy_plan *out);
/* The same of pieces of that size, of which `size` is a multiple. */
int copy_plan_cut(enum copy_shape shape, uint64_t size, uint64_t piece, struct copy_plan *out);
void copy_plan_free(struct copy_plan *p);

#endif
