/* SPDX-License-Identifier: Apache-2.0 */
/* The measuring process of `copy`: one job at a time, through the agent or by itself. */
#ifndef BENCH_COPY_CLIENT_H
#define BENCH_COPY_CLIENT_H

#include "copy_shape.h"

#include <mcshm.h>
#include <stdbool.h>
#include <stdint.h>

enum copy_kind {
    COPY_TASKS,  /* tasks of mcshm */
    COPY_PLAIN,  /* memcpy in the measuring process */
    COPY_STREAM, /* the same past the caches */
    COPY_OPEN,   /* open the target's segment anew: its rights have changed */
    COPY_MAP,    /* map and read the first byte: seconds of one */
    COPY_READ,   /* read a mapped buffer in place */
};

struct copy_context { /* for proc_start() */
    const char *socket;
    const char *segment;
    uint64_t address; /* of the target's buffer */
    uint64_t region;  /* bytes that sources rotate over; targets over twice as many */
    int core;
};

struct copy_job {
    enum copy_kind kind;
    enum copy_shape shape;
    uint64_t size;
    bool warm; /* always the same place instead of rotating */
    double seconds;
};

struct copy_result {
    uint64_t bytes;
    double seconds;
    mcshm_path path;
};

/* Tasks in flight. */
unsigned copy_pipeline(uint64_t size);

int copy_client_main(int fd, void *context);

#endif
