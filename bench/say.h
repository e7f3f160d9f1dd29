/* SPDX-License-Identifier: Apache-2.0 */
/* What goes to stderr: one sentence for each failure, with the remedy in it. */
#ifndef BENCH_SAY_H
#define BENCH_SAY_H

#include <mcshm.h>

/* Prints "mcshm-bench: ..." and returns err, a negative errno. */
int say_error(int err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints what failed, the status and the library's own sentence. Returns -EIO. */
int say_status(const mcshm *c, mcshm_status status, const char *what);

/* A remark that is no failure. */
void say_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
