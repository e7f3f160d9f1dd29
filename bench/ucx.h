/* SPDX-License-Identifier: Apache-2.0 */
/* UCX's own benchmark beside ours: ucx_perftest between two processes of this host. */
#ifndef BENCH_UCX_H
#define BENCH_UCX_H

#include <stdbool.h>
#include <stdint.h>

bool ucx_present(void); /* is ucx_perftest in PATH? */

/*
 * One run: test as in `ucx_perftest -t`, tls as in UCX_TLS. The client runs on one core and
 * the server on the other. Returns 10^9 bytes per second, NAN when it gave no result.
 */
double ucx_bandwidth(const char *tls, const char *test, uint64_t size, int client_core,
                     int server_core);

/* The average bandwidth in the output of a run, 10^9 bytes per second; NAN without one. */
double ucx_parse(const char *output);

#endif
