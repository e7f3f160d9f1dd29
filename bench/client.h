/* SPDX-License-Identifier: Apache-2.0 */
/* A connection with one queue, the way most processes of a measurement need it. */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <mcshm.h>

struct client {
    mcshm *c;
    mcshm_queue *q;
};

/* name may be NULL; caller_max as in mcshm_options; o may be NULL. Says what fails; on
 * failure nothing is left open. */
int client_open(struct client *k, const char *socket, const char *name, uint64_t caller_max,
                const mcshm_queue_options *o);
void client_close(struct client *k);

#endif
