/* SPDX-License-Identifier: Apache-2.0 */
/* The control thread's loop, without sessions and engines: for tests of what only has watches and
 * alarms. */
#ifndef TESTS_LOOP_H
#define TESTS_LOOP_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/agent.h"
#include "daemon/cluster.h"
#include "daemon/dial.h"

static inline struct mcd_agent *loop_init(void)
{
    struct mcd_agent *a = calloc(1, sizeof(*a));

    cr_assert_not_null(a);
    a->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    a->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert(a->epoll_fd >= 0 && a->event_fd >= 0);
    cr_assert_eq(mcd_control_watch(a, a->event_fd, MCD_SOURCE_EVENT, NULL), 0);
    return a;
}

static inline void loop_fini(struct mcd_agent *a)
{
    mcd_resolvers_destroy(a);
    close(a->epoll_fd);
    close(a->event_fd);
    free(a);
}

/* One round; waits at most wait_ms for something to happen. */
static inline void loop_once(struct mcd_agent *a, int wait_ms)
{
    struct epoll_event events[16];
    uint64_t next = mcd_alarms_run(a, mcd_now_ns());
    uint64_t v;

    if (next / 1000000 < (uint64_t)wait_ms)
        wait_ms = (int)(next / 1000000) + 1;
    a->events = events;
    a->nevents = epoll_wait(a->epoll_fd, events, 16, wait_ms);
    for (int i = 0; i < a->nevents; i++) {
        struct mcd_watch *w = (struct mcd_watch *)(uintptr_t)(events[i].data.u64 & ~UINT64_C(15));

        switch (events[i].data.u64 & 15) {
        case MCD_SOURCE_WATCH:
            w->ready(w, events[i].events);
            break;
        case MCD_SOURCE_EVENT:
            cr_assert_eq(read(a->event_fd, &v, sizeof(v)), (ssize_t)sizeof(v));
            mcd_resolvers_reap(a);
            if (a->cluster != NULL)
                mcd_cluster_poll(a);
            break;
        }
    }
    a->nevents = 0;
    mcd_alarms_run(a, mcd_now_ns());
}

/* Rounds until the condition holds; fails after ten seconds. */
#define loop_until(a, condition)                                                                   \
    do {                                                                                           \
        uint64_t end_ = mcd_now_ns() + UINT64_C(10000000000);                                      \
        while (!(condition)) {                                                                     \
            cr_assert(mcd_now_ns() < end_, "waited in vain for " #condition);                      \
            loop_once((a), 50);                                                                    \
        }                                                                                          \
    } while (0)

#endif
