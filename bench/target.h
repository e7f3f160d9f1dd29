/* SPDX-License-Identifier: Apache-2.0 */
/* The process on the other side of ring and copy: it publishes one buffer and sleeps. */
#ifndef BENCH_TARGET_H
#define BENCH_TARGET_H

#include "proc.h"

#include <stdint.h>

struct target_context { /* for proc_start() */
    const char *socket;
    const char *segment; /* its name */
    uint64_t size;       /* of the buffer, bytes */
};

/* Asked by the parent: publish with these rights (anew when it was already). */
struct target_request {
    uint32_t access;
};

struct target_answer {
    int rc;
    uint64_t address;
    uint64_t page_size;
};

int target_main(int fd, void *context);

#endif
