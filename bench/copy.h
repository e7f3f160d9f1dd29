/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm-bench copy`: large transfers of three shapes beside memcpy and UCX. */
#ifndef BENCH_COPY_H
#define BENCH_COPY_H

#include "agent.h"
#include "copy_shape.h"
#include "options.h"
#include "pin.h"
#include "stats.h"

#include <mcshm.h>

#define COPY_SIZES_MAX 16u

struct copy_options {
    struct options_common common;
    uint64_t sizes[COPY_SIZES_MAX];
    unsigned size_count;
    double seconds; /* of one measurement */
    uint64_t rounds;
    bool ucx;
};

/* Everything in 10^9 bytes per second. */
struct copy_row {
    uint64_t size;
    enum copy_shape shape;
    mcshm_path path;
    struct stats_rounds task, plain, stream, caller;
    struct stats_rounds warm_task, warm_plain, warm_stream;
    struct stats_rounds tag_posix, tag_cma, put_posix;
};

struct copy_figures {
    struct copy_row rows[COPY_SIZES_MAX * COPY_SHAPES];
    unsigned count;
    uint64_t region; /* bytes that sources rotate over */
    uint64_t page_size;
    uint64_t small, large; /* in place: bytes mapped */
    double small_us, large_us, read_gbps;
    bool ucx; /* was there */
};

int copy_command(int argc, char **argv);

int copy_print(const struct copy_options *o, const struct agent *a, const struct pin_cores *cores,
               struct copy_figures *f);

#endif
