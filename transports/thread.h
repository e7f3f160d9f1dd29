/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that make a driver's calls for others: started, woken, ended by a time, since a call may never return.
 * Times are ms of CLOCK_MONOTONIC.
 */
#ifndef MCT_THREAD_H
#define MCT_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

uint64_t mct_ms(void);

/* Whoever polls the eventfd, which does not block, finds it readable. */
void mct_kick(int fd);

/* With all signals blocked. 0, or a negative errno. */
int mct_thread_start(pthread_t *out, void *(*work)(void *), void *arg, const char *name);
/* end: UINT64_MAX: whenever. False: it has not ended by then, and is detached: what it may touch has to stay. */
bool mct_thread_join(pthread_t thread, uint64_t end);

/* Its timed waits are until mct_until(). */
void mct_cond_init(pthread_cond_t *c);
struct timespec mct_until(uint64_t ms);

#endif
