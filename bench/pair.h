/* SPDX-License-Identifier: Apache-2.0 */
/* Two agents, each on a host of its own (hosts.h), that know one another by address. */
#ifndef BENCH_PAIR_H
#define BENCH_PAIR_H

#include "agent.h"
#include "hosts.h"
#include "pin.h"

#define PAIR_PORT 7717 /* in a namespace of ours nobody else has it */

struct pair_options {
    const char *program; /* as in agent_options */
    uint64_t pool_size;  /* of each agent */
    bool busy;           /* engines poll for ever */
    unsigned rails;      /* the first so many of the hosts' */
    bool checksum;       /* of every slice */
    bool rdma;           /* over the ends' RDMA devices, and no other way */
    bool apart;          /* host 0's engine polls for ever, on the core that its client is not on */
    const char *settings; /* more of both ini files; NULL: nothing */
};

struct pair {
    struct agent agent[HOSTS];
    struct pin_cores
        cores; /* engines: host 0's on `client`, host 1's on `engine`; apart: swapped */
    unsigned mark;
    char pages_note[128];
};

/* 0, or a negative errno, said already. */
int pair_start(const struct pair_options *o, const struct hosts *h, struct pair *out);
void pair_stop(struct pair *p);
/* Only that host's agent, with hugepages for it. */
int pair_start_one(const struct pair_options *o, const struct hosts *h, unsigned host,
                   struct agent *out);

/* What a host's segment is called on the other one: "ADDRESS:PORT/NAME", in out, which it returns. */
const char *pair_name(const struct hosts *h, unsigned host, const char *name, char *out,
                      size_t size);

/* Keeps the calling process off the engines' cores, where there are others. */
void pair_step_aside(const struct pin_cores *cores);

#endif
