/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of `mcshm-bench share`: floods, which keep deep queues full and sleep meanwhile, and a prober,
 * which times small tasks of class high.  Each may be another user's.
 */
#ifndef BENCH_SHARE_CLIENT_H
#define BENCH_SHARE_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SHARE_DEPTH_MAX 8u

struct share_client {
    const char *folder,
        *socket;      /* the socket by its name in the folder, or by its path alone (folder NULL) */
    const char *name; /* of client and segment; its tenant's alone */
    uid_t uid;        /* 0: as it is */
    int core;         /* to run on; -1: any but `not_on` */
    int not_on;
    unsigned queues;
    unsigned depth;  /* batches under way of a queue */
    uint64_t length; /* bytes of a task */
    unsigned tasks;  /* of a batch */
    bool background; /* class, else normal */
};

/* What a parent asks: a flood starts and answers, flows until it is told to stop, and answers again. A prober
 * measures and answers. */
struct share_order {
    bool go;
    double seconds;
};
struct share_answer {
    uint64_t tasks;
    double p50_us, p99_us; /* of a prober */
};

int share_flood_main(int fd, void *context);
int share_probe_main(int fd, void *context);

#endif
