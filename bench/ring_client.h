/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measuring process of `ring`: it does one job at a time, each in a thread that may
 * make no system call (seccomp.h).
 */
#ifndef BENCH_RING_CLIENT_H
#define BENCH_RING_CLIENT_H

#include "floor.h"
#include "raw.h"
#include "wake.h"

#include <mcshm.h>
#include <stdbool.h>
#include <stdint.h>

enum ring_kind {
    RING_RTT,     /* one task at a time */
    RING_LATENCY, /* the same, each trip timed by itself */
    RING_RATE,    /* batches, many in flight */
    RING_RAW_RTT,
    RING_RAW_RATE,
    RING_FLOOR_RTT,
    RING_FLOOR_RATE,
    /* after idleness, again and again; not filtered, for they must wake */
    RING_WAKE, /* one task */
    RING_RAW_WAKE,
};

#define RING_BATCH 32u
#define RING_IN_FLIGHT 16u
#define RING_PAYLOAD_MAX (64u << 10)
/* Each task of a batch has a place of its own on both sides. */
#define RING_BUFFER_SIZE ((uint64_t)RING_BATCH * RING_PAYLOAD_MAX)

struct ring_context { /* for proc_start() */
    const char *socket;
    const char *segment;
    uint64_t address; /* of the target's buffer */
    int core;
    struct raw raw;
    struct floor floor;
    struct wake wake;
};

struct ring_job {
    enum ring_kind kind;
    uint32_t payload;    /* bytes of one task */
    uint64_t iterations; /* 0: as many as fit into seconds */
    double seconds;
};

struct ring_result {
    int rc;
    uint64_t count; /* tasks, elements or trips */
    double seconds;
    double p50_ns, p99_ns, p999_ns; /* RING_LATENCY, RING_WAKE, RING_RAW_WAKE */
    bool filtered;
    int filter_error;
    mcshm_path path;
    mcshm_status error; /* of the first task that failed */
};

int ring_client_main(int fd, void *context);

#endif
