/* SPDX-License-Identifier: Apache-2.0 */
/* A process that holds many connected clients which do nothing. */
#ifndef BENCH_IDLE_H
#define BENCH_IDLE_H

#include "proc.h"

#include <stdint.h>

#define IDLE_CLIENTS_MAX 256u

struct idle_context { /* for proc_start() */
    const char *socket;
};

struct idle_request {
    uint32_t clients; /* that shall be connected from now on */
};

struct idle_answer {
    int rc;
};

int idle_main(int fd, void *context);

#endif
