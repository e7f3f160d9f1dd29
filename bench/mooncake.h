/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake's transfer_engine_bench beside ours, over TCP on the first rail: its target process
 * on host 1, its initiator on host 0.
 */
#ifndef BENCH_MOONCAKE_H
#define BENCH_MOONCAKE_H

#include "child.h"
#include "hosts.h"

#include <stdbool.h>
#include <stdint.h>

struct mooncake {
    const struct hosts *hosts;
    char program[4096];
    char target[96]; /* the target's name */
    bool pooled;     /* MC_TCP_ENABLE_CONNECTION_POOL=1 */
    struct child child;
};

struct mooncake_result {
    double gbps; /* NAN: it gave no result */
    double tasks_s;
    double cpu_s_per_gb; /* of the initiator */
};

/* folder: a virtual environment, or a folder with transfer_engine_bench. Returns whether it is there. */
bool mooncake_find(const char *folder, char *program, unsigned size);

/* Starts the target. buffer: its bytes. 0, or a negative errno, said already. */
int mooncake_start(struct mooncake *m, const struct hosts *h, const char *program, bool pooled,
                   uint64_t buffer);
/* One run of whole seconds. */
void mooncake_run(struct mooncake *m, bool write, uint64_t size, uint64_t batch, unsigned threads,
                  unsigned seconds, struct mooncake_result *out);
void mooncake_stop(struct mooncake *m);

/* The port in "... P2P handshake, listening on ADDRESS:PORT"; 0: not there. */
unsigned mooncake_parse_port(const char *text);
/* Seconds and batches in "Test completed: duration 2.00, batch count 4972, ..."; 0 or -EINVAL. */
int mooncake_parse_result(const char *text, double *seconds, uint64_t *batches);

#endif
