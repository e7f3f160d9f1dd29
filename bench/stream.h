/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare stream between two hosts of ours: blocking sockets, one writes 1 MiB at a time out of
 * `span` bytes of memory, the other reads into as much; nothing else.  What a kernel's TCP gives on
 * this link with this much memory under way: iperf3 is the same with a span of 1 MiB.
 */
#ifndef BENCH_STREAM_H
#define BENCH_STREAM_H

#include "hosts.h"

#include <stdint.h>

struct stream {
    double gbps;         /* 10^9 bytes a second */
    double cpu_s_per_gb; /* of both processes */
};

/* span: bytes, a multiple of 1 MiB. cores: of the writing and the reading process; -1: any. 0, or a
 * negative errno, said already. */
int stream_measure(const struct hosts *h, const int cores[HOSTS], uint64_t span, double seconds,
                   struct stream *out);

#endif
