/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs of others that a measurement runs: peers to compare with, ip and tc.  Each dies
 * with this process, may live in another network namespace, and tells its CPU time at its end.
 */
#ifndef BENCH_CHILD_H
#define BENCH_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct child_options {
    char *const *argv;       /* argv[0]: a path, or a name to be looked up in PATH */
    const char *const *sets; /* "NAME=VALUE" for its environment, ended by NULL; may be NULL */
    int netns;               /* descriptor of a network namespace; 0: ours */
    bool output, errors;     /* read its stdout, its stderr; otherwise they go nowhere */
};

struct child {
    pid_t pid; /* 0: not running */
    int out;   /* -1: nothing to read */
};

/* Is a program of this name in PATH? */
bool child_present(const char *name);

/* 0 or a negative errno, nothing said. A program that cannot be started ends with 127. */
int child_start(const struct child_options *o, struct child *out);

/*
 * Reads on until `until` has been printed (NULL: until the output ends) or the time is over.
 * *used: bytes in text so far, which stays NUL-terminated; what does not fit is dropped.
 * Returns whether that came.
 */
bool child_read(struct child *c, const char *until, int timeout_ms, char *text, size_t size,
                size_t *used);

/* Until somebody listens on that TCP port in the child's network namespace, or the time is over.
 * Returns whether somebody does. */
bool child_await_port(const struct child *c, int port, int timeout_ms);

/*
 * Sends the signal (0: none) and waits; after timeout_ms it is killed. Returns its exit status, or
 * -1 when a signal ended it. cpu_seconds (may be NULL): user and system time of it and its children.
 */
int child_end(struct child *c, int number, int timeout_ms, double *cpu_seconds);

#endif
