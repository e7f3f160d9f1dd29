/* SPDX-License-Identifier: Apache-2.0 */
/* The measuring process of `net`, one for each client: does one job at a time. */
#ifndef BENCH_NET_CLIENT_H
#define BENCH_NET_CLIENT_H

#include <mcshm.h>
#include <stdbool.h>
#include <stdint.h>

enum net_kind {
    NET_RUN,    /* batch after batch, each waited for */
    NET_STREAM, /* tasks all the time; completions go into the timeline, failures are counted */
    NET_FILL,   /* its own memory becomes the pattern of `seed` */
    NET_CHECK,  /* is it? */
    NET_PUSH,   /* writes its memory to the target's, outside all measurements */
    NET_PULL,   /* the other way round */
};

#define NET_PATHS 9u    /* values of mcshm_path */
#define NET_BINS 20000u /* milliseconds of a timeline */

/* Shared with the parent. */
struct net_timeline {
    uint64_t start_ns;        /* of the first bin */
    uint64_t bytes[NET_BINS]; /* that completed in each millisecond */
};

struct net_client_context { /* for proc_start() */
    const char *socket;
    const char *segment;           /* of the target; NULL: an idle client that opens none */
    uint64_t region;               /* bytes of its own memory */
    uint64_t offset;               /* its part of the target's buffer begins there */
    uint32_t tasks;                /* most in flight */
    struct net_timeline *timeline; /* NULL: no NET_STREAM */
};

struct net_job {
    enum net_kind kind;
    mcshm_opcode opcode;
    uint64_t size;  /* of a task, bytes */
    uint32_t batch; /* tasks of one batch; NET_STREAM: tasks in flight */
    uint64_t span;  /* bytes that tasks rotate over; of the other kinds: from the start */
    double seconds; /* of NET_RUN and NET_STREAM */
    bool spin;      /* NET_RUN polls for the end of a batch, and times it from mcshm_submit() on */
    bool all_paths; /* NET_RUN looks at every task's path; else at one of a batch */
    uint64_t seed;
};

struct net_result {
    uint64_t bytes, tasks, failed;
    uint64_t mismatches; /* 8-byte words */
    uint64_t touched;    /* bytes from the start that tasks have covered */
    double seconds, cpu_seconds;
    double p50_us, p99_us, p999_us; /* of a batch, from before its submission */
    mcshm_path path;                /* of the last task looked at */
    uint64_t paths[NET_PATHS];      /* tasks that went each way */
    mcshm_status error;             /* of the first task that failed */
};

int net_client_main(int fd, void *context);

#endif
