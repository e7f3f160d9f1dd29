/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_shape.h"

#include "options.h"
#include "say.h"

#include <errno.h>

#define GRAIN (UINT64_C(4) << 10)
#define SIZE_MAX_ (UINT64_C(1) << 30)
#define LIST_BYTES (UINT64_C(16) << 20)
#define LIST_PIECES 8u
#define SPAN (UINT64_C(64) << 20) /* more than the second-level cache of a device: 50 MB (H100) */
#define REGION_TASKS 16u          /* of the largest size, where that is little */

static const uint64_t list_pieces[GPU_LISTS_MAX] = {4u << 10,   16u << 10, 64u << 10,
                                                    256u << 10, 1u << 20,  4u << 20};

const char *gpu_op_name(enum gpu_op op)
{
    static const char *const names[GPU_OPS] = {"d2d", "h2d", "d2h"};

    return names[op];
}

int gpu_parse_sizes(const char *text, uint64_t *sizes, unsigned *count)
{
    const char *rest = text;

    *count = 0;
    while (*rest != '\0') {
        uint64_t size = 0;
        const char *end = options_bytes(rest, &size);

        if (end == NULL || (*end != '\0' && *end != ',') || size == 0 || size > SIZE_MAX_ ||
            size % GRAIN != 0)
            return say_error(-EINVAL,
                             "--sizes %s: expected sizes such as 4K,1M, each up to 1G and a "
                             "multiple of 4K",
                             text);
        if (*count == GPU_SIZES_MAX)
            return say_error(-EINVAL, "--sizes %s: at most %u sizes", text, GPU_SIZES_MAX);
        sizes[(*count)++] = size;
        rest = *end == ',' ? end + 1 : end;
    }
    return *count > 0 ? 0 : say_error(-EINVAL, "--sizes: give at least one size");
}

static uint64_t largest(const uint64_t *sizes, unsigned count)
{
    uint64_t most = 0;

    for (unsigned i = 0; i < count; i++)
        if (most < sizes[i])
            most = sizes[i];
    return most;
}

unsigned gpu_make_rows(const uint64_t *sizes, unsigned count, struct gpu_shape *rows)
{
    uint64_t most = largest(sizes, count);
    unsigned n = 0;

    for (int op = 0; op < GPU_OPS; op++)
        for (unsigned i = 0; i < count; i++)
            rows[n++] =
                (struct gpu_shape){.op = (enum gpu_op)op, .size = sizes[i], .piece = sizes[i]};
    for (int op = 0; op < GPU_OPS; op++)
        for (unsigned i = 0; i < GPU_LISTS_MAX; i++) {
            uint64_t piece = list_pieces[i];
            uint64_t size = piece * LIST_PIECES > LIST_BYTES ? piece * LIST_PIECES : LIST_BYTES;

            if (size > most)
                size = most / piece * piece;
            if (size > piece)
                rows[n++] = (struct gpu_shape){.op = (enum gpu_op)op, .size = size, .piece = piece};
        }
    return n;
}

uint64_t gpu_span(uint64_t region, uint64_t size)
{
    uint64_t span = region < SPAN ? region : SPAN;

    return span < size ? size : span / size * size;
}

uint64_t gpu_region(const uint64_t *sizes, unsigned count)
{
    uint64_t most = largest(sizes, count), region = most * REGION_TASKS;

    if (region > SPAN)
        region = SPAN;
    return region < most ? most : region;
}

int gpu_plan_make(const struct gpu_shape *shape, struct copy_plan *out)
{
    return copy_plan_cut(shape->piece == shape->size ? COPY_CONTIGUOUS : COPY_LIST, shape->size,
                         shape->piece, out);
}
