/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that may make no system call but exit: anything else kills the process.
 * A measurement that comes back from such a thread has made none.
 */
#ifndef BENCH_SECCOMP_H
#define BENCH_SECCOMP_H

#include <stdbool.h>

struct seccomp_run {
    void (*warm)(void *context); /* before the filter; may be NULL */
    void (*measure)(void *context);
    void *context;
    int core;
    /* out */
    bool filtered;
    int error; /* why not, a negative errno */
};

/* Runs warm and measure in a thread of their own on the given core. When the filter cannot
 * be installed the measurement runs without. 0, or a negative errno when no thread starts. */
int seccomp_thread(struct seccomp_run *run);

#endif
