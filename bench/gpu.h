/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm-bench gpu`: copies with a GPU's memory at one end or both, beside the driver's own calls. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include "agent.h"
#include "device.h"
#include "gpu_shape.h"
#include "options.h"
#include "pin.h"
#include "stats.h"

#include <mcshm.h>

struct gpu_options {
    struct options_common common;
    uint64_t sizes[GPU_SIZES_MAX];
    unsigned size_count;
    double seconds; /* of one measurement */
    uint64_t rounds;
    const char *device; /* N, or GPU-... */
    bool fake;
};

struct gpu_row {
    struct gpu_shape shape;
    mcshm_path path;
    struct stats_rounds task, bare;             /* 10^9 bytes per second, several under way */
    struct stats_rounds task_alone, bare_alone; /* us, one at a time: the median of a round */
};

struct gpu_figures {
    struct gpu_row rows[GPU_ROWS_MAX];
    unsigned count;
    uint64_t region;     /* bytes of each side's memory */
    uint64_t verified;   /* bytes that were compared after the rows */
    uint64_t mismatches; /* 8-byte words of them that were wrong */
};

int gpu_command(int argc, char **argv);

int gpu_print(const struct gpu_options *o, const struct agent *a, const struct pin_cores *cores,
              const struct device_info *info, struct gpu_figures *f);

#endif
