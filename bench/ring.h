/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm-bench ring`: what a small task costs, beside a bare ring and the floor. */
#ifndef BENCH_RING_H
#define BENCH_RING_H

#include "agent.h"
#include "pin.h"
#include "options.h"
#include "stats.h"

#include <mcshm.h>

#define RING_IDLE_STEPS 5u
#define RING_PAYLOADS 2u

extern const uint32_t ring_idle_steps[RING_IDLE_STEPS]; /* connected idle clients */
extern const uint32_t ring_payloads[RING_PAYLOADS];     /* bytes */

struct ring_options {
    struct options_common common;
    double seconds; /* of one measurement */
    uint64_t iterations;
    uint64_t rounds;
};

struct ring_figures {
    struct stats_rounds rtt_ns, raw_rtt_ns, floor_rtt_ns;
    struct stats_rounds rate_mops, raw_rate_mops, floor_rate_mops;
    struct stats_rounds p50_ns, p99_ns, p999_ns;
    struct stats_rounds idle_rtt_ns[RING_IDLE_STEPS];
    struct stats_rounds payload_rtt_ns[RING_PAYLOADS], payload_rate_mops[RING_PAYLOADS];
    /* NAN: not measured */
    double idle_cpu_percent, wake_us, wake_p99_us, raw_wake_us, raw_wake_p99_us;
    bool filtered; /* every measurement so far */
    int filter_error;
    mcshm_path path;
    uint64_t page_size;
};

int ring_command(int argc, char **argv);

/* Prints the result, as JSON or as tables. */
int ring_print(const struct ring_options *o, const struct agent *a, const struct pin_cores *cores,
               struct ring_figures *f);

#endif
