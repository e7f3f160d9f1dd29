/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of `gpu` and what their parent asks of them.  Content goes in and out through the desk, memory that
 * all of them share: what lies on it is put into a place of theirs, or what they have there is laid on it.
 */
#ifndef BENCH_GPU_RUN_H
#define BENCH_GPU_RUN_H

#include "gpu_shape.h"

#include <mcshm.h>
#include <stdint.h>

#define GPU_LATENCIES_MAX 16384u

struct gpu_context { /* for proc_start() */
    const char *socket;
    const char *segment;  /* the target's */
    const char *location; /* of both processes' device memory */
    uint64_t region;      /* bytes of it */
    int core;             /* the measuring process's */
    uint8_t *desk;        /* region bytes */
};

enum gpu_what {
    GPU_OPEN,  /* target: publishes, *value: the address; measuring: opens, value: that address */
    GPU_TASKS, /* measuring: several tasks under way */
    GPU_BARE,  /* the same by the driver's calls */
    GPU_TASKS_ALONE, /* one at a time */
    GPU_BARE_ALONE,
    GPU_PUT,      /* desk -> device memory that is published, or that tasks read from */
    GPU_GET,      /* back */
    GPU_PUT_HOST, /* measuring: desk -> host memory of its tasks */
    GPU_GET_HOST
};

struct gpu_job {
    enum gpu_what what;
    struct gpu_shape shape;
    double seconds;
    uint64_t value; /* bytes of a PUT or GET; OPEN: an address */
};

struct gpu_result {
    uint64_t value;
    uint64_t tasks, bytes;
    double seconds;
    double p50_us; /* of those that measure one at a time */
    mcshm_path path;
};

int gpu_target_main(int fd, void *context);
int gpu_client_main(int fd, void *context);

#endif
