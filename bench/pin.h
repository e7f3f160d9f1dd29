/* SPDX-License-Identifier: Apache-2.0 */
/* Which cores a measurement runs on. */
#ifndef BENCH_PIN_H
#define BENCH_PIN_H

#include <stdbool.h>
#include <stdint.h>

struct pin_cores {
    int client;  /* the measuring thread */
    int engine;  /* the agent's engine, or a bare partner */
    bool shared; /* only one core is allowed: both are the same */
};

/* Chooses two of the cores this process may run on, on different physical cores where
 * there are such. Returns 0 or a negative errno. */
int pin_choose(struct pin_cores *out);

/* The same, and they must be two. Returns 0 or a negative errno, said already. */
int pin_pair(const char *command, struct pin_cores *out);

/* Binds the calling thread. Returns 0 or a negative errno. */
int pin_to(int core);

/* Lets the calling process run anywhere but there, where that leaves a core. */
void pin_away_from(int core);

/* Bytes of the last-level cache as the kernel sees it; 32 MiB when it does not say. */
uint64_t pin_cache_size(void);

/* The processor's name; never NULL, static. */
const char *pin_cpu_model(void);

#endif
