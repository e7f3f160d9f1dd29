/* SPDX-License-Identifier: Apache-2.0 */
/* The process on the other host: it has published one buffer, makes and checks its content. */
#ifndef BENCH_NET_OWNER_H
#define BENCH_NET_OWNER_H

#include <stdbool.h>
#include <stdint.h>

struct net_owner_context { /* for proc_start() */
    const char *socket;
    const char *segment; /* its name, as its own agent knows it */
    uint64_t size;       /* of the buffer */
};

/* fill: its memory becomes the pattern of `seed`; else: is it? */
struct net_owner_request {
    bool fill;
    uint64_t offset, bytes, seed;
};

struct net_owner_answer {
    uint64_t mismatches; /* 8-byte words */
    uint64_t page_size;
};

/* Says it is ready with an answer, then answers requests. */
int net_owner_main(int fd, void *context);

/* `net --serve`: publishes to everybody and waits until a signal ends the program. */
int net_owner_serve(const struct net_owner_context *x);

#endif
