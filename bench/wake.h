/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare wake-up: a process that sleeps in epoll_wait() on an eventfd, as an engine does,
 * and one that wakes it and sees in shared memory that it is awake.  On virtual machines
 * most of it is the start of a halted virtual processor, which no agent can shorten.
 */
#ifndef BENCH_WAKE_H
#define BENCH_WAKE_H

#include <stddef.h>
#include <stdint.h>

#define WAKE_SAMPLES 200u

struct wake {
    int event;
    uint32_t *awake; /* how often the sleeper has been woken */
    uint32_t *stop;
};

/* For forked children to share. Returns 0 or a negative errno, said already. */
int wake_create(struct wake *w);
/* Neither side may be inside. */
void wake_reset(struct wake *w);

/* Longer than the 5 ms of idleness that a wake-up is for. */
void wake_idle(void);

void wake_partner(struct wake *w);
/* WAKE_SAMPLES times in ticks, from before the write; returns how many, 0 when it failed. */
size_t wake_client(struct wake *w, uint32_t *samples);

#endif
