/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the control thread's loop looks after: descriptors and points in time.  Control thread only.
 * A watch or timer that was removed is never called any more, also not for events that the loop
 * already holds.
 */
#ifndef MCD_WATCH_H
#define MCD_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct mcd_agent;

struct mcd_watch {
    void (*ready)(struct mcd_watch *w, uint32_t events); /* EPOLL* */
    void *context;
    int fd;                     /* -1: not watched */
} __attribute__((aligned(16))); /* its address is tagged in epoll's data */

/* The fd stays the caller's; remove the watch before closing it. 0 or a negative errno. */
int mcd_watch_add(struct mcd_agent *a, struct mcd_watch *w, int fd, uint32_t events);
int mcd_watch_change(struct mcd_agent *a, struct mcd_watch *w, uint32_t events);
void mcd_watch_remove(struct mcd_agent *a, struct mcd_watch *w);

struct mcd_alarm {
    uint64_t at; /* ns of CLOCK_MONOTONIC; 0: not set */
    void (*fire)(struct mcd_alarm *t);
    void *context;
    struct mcd_alarm *prev, *next;
};

/* Sets, or sets anew. fire() is called once, at `at` or a little later. */
void mcd_alarm_set(struct mcd_agent *a, struct mcd_alarm *t, uint64_t at);
void mcd_alarm_clear(struct mcd_agent *a, struct mcd_alarm *t);
/* The loop's: calls those that are due; ns until the next one, UINT64_MAX: none. */
uint64_t mcd_alarms_run(struct mcd_agent *a, uint64_t now);

#endif
