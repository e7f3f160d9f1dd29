/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare round trip of TCP between two hosts of ours: two blocking sockets, no framing, nothing
 * else.  What a request costs beyond it is ours.
 */
#ifndef BENCH_RTT_H
#define BENCH_RTT_H

#include "hosts.h"

#include <stdint.h>

struct rtt {
    double small_us; /* 64 bytes there, 64 back: median */
    double page_us;  /* 64 bytes there, 4,096 more back: median */
};

/* cores: of the asking and the answering process; -1: any. 0, or a negative errno, said already. */
int rtt_measure(const struct hosts *h, const int cores[HOSTS], struct rtt *out);

#endif
