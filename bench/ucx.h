/* SPDX-License-Identifier: Apache-2.0 */
/* UCX's own benchmark beside ours: ucx_perftest between two processes. */
#ifndef BENCH_UCX_H
#define BENCH_UCX_H

#include <stdbool.h>
#include <stdint.h>

bool ucx_present(void); /* is ucx_perftest in PATH? */

/* Where the two processes of a run are. */
struct ucx_place {
    const char *address; /* of the server */
    const char *device;  /* network interface between two namespaces; NULL: on this host */
    int client_netns, server_netns; /* 0: ours */
    int client_core, server_core;
    uint64_t volume; /* bytes of a run, about; 0: 1 GiB */
};

/* One run: test as in `ucx_perftest -t`, tls as in UCX_TLS. Returns 10^9 bytes per second, NAN when
 * it gave no result. */
double ucx_bandwidth(const struct ucx_place *place, const char *tls, const char *test,
                     uint64_t size);

/* The average bandwidth in the output of a run, 10^9 bytes per second; NAN without one. */
double ucx_parse(const char *output);

#endif
