/* SPDX-License-Identifier: Apache-2.0 */
/* perftest (ib_write_bw, ib_read_bw, ib_write_lat) beside ours, over the same devices. */
#ifndef BENCH_PERFTEST_H
#define BENCH_PERFTEST_H

#include "hosts.h"

#include <stdint.h>

struct perftest_run {
    const char *program;               /* "ib_write_bw" */
    const struct hosts_end *from, *to; /* the side that posts, the other one */
    uint64_t size;                     /* of a message, bytes */
    unsigned depth;                    /* messages in flight; 0: not told (latencies) */
    uint64_t count;                    /* messages, at least 5 */
};

bool perftest_present(void);

/*
 * So many runs at the same time, a port each. out: 10^9 bytes per second of each, or the typical time
 * of one way in microseconds; NAN: it gave no result.
 */
void perftest_measure(const struct perftest_run *runs, unsigned count, double *out);

/* The row of figures after the line that begins with "#bytes": 10^9 bytes per second, of the average; and
 * t_typical. NAN without one. */
double perftest_parse_rate(const char *output);
double perftest_parse_latency(const char *output);

#endif
