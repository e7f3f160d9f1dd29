/* SPDX-License-Identifier: Apache-2.0 */
/* iperf3 beside ours: one stream of 1 MiB writes over the first rail. */
#ifndef BENCH_IPERF_H
#define BENCH_IPERF_H

#include "hosts.h"

#include <stdbool.h>

struct iperf {
    double gbps;         /* 10^9 bytes per second; NAN: it gave no result */
    double cpu_s_per_gb; /* of both ends */
};

bool iperf_present(void);

/* seconds: length of the run. */
void iperf_run(const struct hosts *h, unsigned seconds, struct iperf *out);

/* Bytes per second and bytes that arrived, from its JSON. 0, or -EINVAL when they are not in it. */
int iperf_parse(const char *text, double *rate, double *bytes);

#endif
