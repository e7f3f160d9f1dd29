/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_shape.h"

#include <errno.h>
#include <stdlib.h>

#define SMALL_PIECE (UINT64_C(4) << 10)
#define LARGE_PIECE (UINT64_C(64) << 10)
#define SMALL_TASK (UINT64_C(1) << 20)

const char *copy_shape_name(enum copy_shape shape)
{
    static const char *const names[COPY_SHAPES] = {"contiguous", "list", "stride"};

    return names[shape];
}

uint64_t copy_piece_size(uint64_t size)
{
    return size <= SMALL_TASK ? SMALL_PIECE : LARGE_PIECE;
}

static void shuffle(mcshm_piece *pieces, size_t count)
{
    uint64_t state = 1;

    for (size_t i = count; i > 1; i--) {
        size_t other;
        uint64_t t;

        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        other = (size_t)((state >> 33) % i);
        t = pieces[i - 1].remote_offset;
        pieces[i - 1].remote_offset = pieces[other].remote_offset;
        pieces[other].remote_offset = t;
    }
}

int copy_plan_cut(enum copy_shape shape, uint64_t size, uint64_t piece, struct copy_plan *out)
{
    uint64_t gap = shape == COPY_STRIDE ? piece : 0;

    if (size == 0 || piece == 0 || size % piece != 0)
        return -EINVAL;
    out->shape = shape;
    out->size = size;
    out->count = (size_t)(size / piece);
    out->remote_span = (piece + gap) * out->count;
    out->stride = (mcshm_stride){
        .count = out->count, .block = piece, .local_stride = piece, .remote_stride = piece + gap};
    out->pieces = malloc(out->count * sizeof(out->pieces[0]));
    if (out->pieces == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < out->count; i++)
        out->pieces[i] = (mcshm_piece){
            .local_offset = piece * i, .remote_offset = (piece + gap) * i, .length = piece};
    if (shape == COPY_LIST)
        shuffle(out->pieces, out->count);
    return 0;
}

int copy_plan_make(enum copy_shape shape, uint64_t size, struct copy_plan *out)
{
    return copy_plan_cut(shape, size, shape == COPY_CONTIGUOUS ? size : copy_piece_size(size), out);
}

void copy_plan_free(struct copy_plan *p)
{
    free(p->pieces);
    p->pieces = NULL;
}
