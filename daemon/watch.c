/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <errno.h>
#include <stddef.h>
#include <sys/epoll.h>

#include "agent.h"

static int control(struct mcd_agent *a, struct mcd_watch *w, int op, uint32_t events)
{
    struct epoll_event ev = {.events = events};

    ev.data.u64 = (uint64_t)(uintptr_t)w | MCD_SOURCE_WATCH; /* watches are aligned to 16 */
    return epoll_ctl(a->epoll_fd, op, w->fd, &ev) == 0 ? 0 : -errno;
}

int mcd_watch_add(struct mcd_agent *a, struct mcd_watch *w, int fd, uint32_t events)
{
    int res;

    w->fd = fd;
    res = control(a, w, EPOLL_CTL_ADD, events);
    if (res != 0)
        w->fd = -1;
    return res;
}

int mcd_watch_change(struct mcd_agent *a, struct mcd_watch *w, uint32_t events)
{
    return control(a, w, EPOLL_CTL_MOD, events);
}

void mcd_watch_remove(struct mcd_agent *a, struct mcd_watch *w)
{
    uint64_t mine = (uint64_t)(uintptr_t)w | MCD_SOURCE_WATCH;

    if (w->fd < 0)
        return;
    control(a, w, EPOLL_CTL_DEL, 0);
    w->fd = -1;
    for (int i = 0; i < a->nevents; i++)
        if (a->events[i].data.u64 == mine)
            a->events[i].data.u64 = MCD_SOURCE_NONE;
}

/* ---- timers: a list by time; a few per peer, most of them far away ----------------- */

void mcd_alarm_clear(struct mcd_agent *a, struct mcd_alarm *t)
{
    if (t->at == 0)
        return;
    if (t->prev != NULL)
        t->prev->next = t->next;
    else
        a->alarms = t->next;
    if (t->next != NULL)
        t->next->prev = t->prev;
    t->prev = t->next = NULL;
    t->at = 0;
}

void mcd_alarm_set(struct mcd_agent *a, struct mcd_alarm *t, uint64_t at)
{
    struct mcd_alarm *before = NULL, *after;

    mcd_alarm_clear(a, t);
    t->at = at != 0 ? at : 1;
    for (after = a->alarms; after != NULL && after->at <= t->at; after = after->next)
        before = after;
    t->prev = before;
    t->next = after;
    if (before != NULL)
        before->next = t;
    else
        a->alarms = t;
    if (after != NULL)
        after->prev = t;
}

uint64_t mcd_alarms_run(struct mcd_agent *a, uint64_t now)
{
    while (a->alarms != NULL && a->alarms->at <= now) {
        struct mcd_alarm *t = a->alarms;

        mcd_alarm_clear(a, t);
        t->fire(t);
    }
    return a->alarms != NULL ? a->alarms->at - now : UINT64_MAX;
}
