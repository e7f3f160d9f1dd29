/* SPDX-License-Identifier: Apache-2.0 */
/* Time: the system's clock, the processor's counter, CPU time of processes. */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include <stdint.h>
#include <sys/types.h>

uint64_t clock_ns(void);        /* monotonic */
uint64_t clock_thread_ns(void); /* CPU time of the calling thread */

/* Rate of mcs_ticks(), measured against the system's clock at the first call (20 ms). */
double clock_tick_hz(void);

/* CPU time that all threads of a process have used so far. Returns 0 or a negative errno. */
int clock_process_ns(pid_t pid, uint64_t *out);

#endif
