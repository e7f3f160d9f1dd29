/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mcshm-bench restart: what clients see of an agent that dies, or is restarted, under its
 * supervisor while it works.
 */
#ifndef BENCH_RESTART_H
#define BENCH_RESTART_H

#include <stdbool.h>
#include <stdint.h>

#define RESTART_MEMORY (UINT64_C(32) << 20) /* of owner and of poller, bytes */
#define RESTART_TASK (UINT64_C(256) << 10)  /* of one task */
#define RESTART_BATCH 8u                    /* tasks of one batch */
#define RESTART_FLIGHT 16u                  /* batches under way */

struct restart_context {
    const char *socket;
    const char *segment;
    uint64_t address; /* the owner's memory, where the poller writes */
};

/* To the poller: keep tasks in flight; what it answers when they flow, and when they flow again. */
struct restart_order {
    uint64_t restarts; /* that it will have seen then */
};

struct restart_seen {
    uint64_t restarts;
    double gap_ms;      /* longest time between two completions */
    uint64_t completed; /* tasks */
    uint64_t failed;    /* tasks that ended FAILED with AGENT_RESTARTED */
    uint64_t lost;      /* bytes of its memory that are not what they were */
};

/* Of the owner, which makes no call in the meantime. */
struct restart_owned {
    uint64_t address;
    uint64_t page_size;
    uint64_t lost; /* bytes of its memory that are not what they were */
};

/* The owner: publishes its memory, answers each byte it gets with a struct restart_owned. */
int restart_owner_main(int fd, void *context);
/* The poller: a struct restart_order is answered by two struct restart_seen. */
int restart_poller_main(int fd, void *context);

int restart_command(int argc, char **argv);

#endif
