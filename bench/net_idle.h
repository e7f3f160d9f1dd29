/* SPDX-License-Identifier: Apache-2.0 */
/* Many agents that another one knows and that do nothing. */
#ifndef BENCH_NET_IDLE_H
#define BENCH_NET_IDLE_H

#include <stdint.h>

#define NET_PEERS_MAX 80u

struct net_idle_context { /* for proc_start(): a process with a client at each of these agents */
    const char *sockets[NET_PEERS_MAX];
    unsigned count;
};

/* Publishes a small segment "idle" at each agent, says so, and waits. */
int net_idle_owner_main(int fd, void *context);

struct net_idle_watcher { /* for proc_start(): a client that opens a segment at each */
    const char *socket;
    char names[NET_PEERS_MAX][96];
};

struct net_idle_request {
    unsigned peers; /* that shall be open from now on */
    unsigned trips; /* 4 KiB READs, one after the other, from the first */
};

struct net_idle_answer {
    double median_us;
};

int net_idle_watcher_main(int fd, void *context);

#endif
