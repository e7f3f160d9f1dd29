/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm-bench kv`: a prefill and a decode process replay a trace of requests. */
#ifndef BENCH_KV_H
#define BENCH_KV_H

#include "agent.h"
#include "device.h"
#include "kv_run.h"
#include "options.h"
#include "wire.h"

struct kv_options {
    struct options_common common;
    const char *trace; /* NULL: generated */
    const char *model;
    uint64_t requests, cache_blocks, in_flight; /* 0: default */
    double scale;                               /* 0: default */
    bool busy;
    uint64_t hosts; /* 1; 2: prefill's agent and decode's on hosts of their own */
    uint64_t rails; /* between two hosts */
    const char *congestion;
    struct wire_options wire;
    char settings[1024];       /* more of two agents' ini files */
    const char *location;      /* of both caches; NULL: pool memory */
    bool gates;                /* --order gate */
    bool fake;                 /* --fake-cuda */
    struct device_info device; /* of a GPU's location */
};

int kv_command(int argc, char **argv);

/* a: decode's. agent_ns: CPU time of the agents during the replay; negative: not known. */
int kv_print(const struct kv_options *o, const struct agent *a, const struct kv_context *x,
             double agent_ns, double seconds);

#endif
