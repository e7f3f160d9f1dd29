/* SPDX-License-Identifier: Apache-2.0 */
#include "loop.h"

#include <sys/socket.h>

static int order[8], norder;

static void note(struct mcd_alarm *t)
{
    order[norder++] = *(int *)t->context;
}

Test(watch, alarms_go_off_by_time_and_once)
{
    struct mcd_agent *a = loop_init();
    int numbers[3] = {0, 1, 2};
    struct mcd_alarm t[3] = {0};
    uint64_t now = mcd_now_ns();

    norder = 0;
    for (int i = 0; i < 3; i++) {
        t[i].fire = note;
        t[i].context = &numbers[i];
    }
    mcd_alarm_set(a, &t[0], now + 300);
    mcd_alarm_set(a, &t[1], now + 100);
    mcd_alarm_set(a, &t[2], now + 200);
    mcd_alarm_set(a, &t[0], now + 50); /* anew: earlier than all */
    mcd_alarm_clear(a, &t[2]);
    cr_assert_eq(mcd_alarms_run(a, now + 49), 1u);
    cr_assert_eq(norder, 0);
    cr_assert_eq(mcd_alarms_run(a, now + 1000), UINT64_MAX);
    cr_assert_eq(norder, 2);
    cr_assert_eq(order[0], 0);
    cr_assert_eq(order[1], 1);
    cr_assert_eq(mcd_alarms_run(a, now + 2000), UINT64_MAX);
    cr_assert_eq(norder, 2);
    loop_fini(a);
}

static struct mcd_agent *again_agent;

static void set_again(struct mcd_alarm *t)
{
    note(t);
    if (norder < 3)
        mcd_alarm_set(again_agent, t, 1);
}

Test(watch, an_alarm_may_set_itself_again)
{
    int number = 7;
    struct mcd_alarm t = {.fire = set_again, .context = &number};

    again_agent = loop_init();
    norder = 0;
    mcd_alarm_set(again_agent, &t, 1);
    mcd_alarms_run(again_agent, mcd_now_ns());
    cr_assert_eq(norder, 3);
    loop_fini(again_agent);
}

struct pair {
    struct mcd_agent *a;
    struct mcd_watch w[2];
    int calls[2];
};

/* Each one's event takes the other away: the other must not be called for an event of this round. */
static void remove_the_other(struct mcd_watch *w, uint32_t events)
{
    struct pair *p = w->context;
    int me = w == &p->w[1];

    (void)events;
    p->calls[me]++;
    mcd_watch_remove(p->a, &p->w[1 - me]);
}

Test(watch, one_that_was_removed_is_not_called_for_events_at_hand)
{
    struct pair p = {.a = loop_init()};
    int fds[2][2];

    for (int i = 0; i < 2; i++) {
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds[i]), 0);
        p.w[i] = (struct mcd_watch){.ready = remove_the_other, .context = &p, .fd = -1};
        cr_assert_eq(mcd_watch_add(p.a, &p.w[i], fds[i][0], EPOLLIN), 0);
        cr_assert_eq(write(fds[i][1], "x", 1), 1);
    }
    loop_once(p.a, 1000);
    cr_assert_eq(p.calls[0] + p.calls[1], 1);
    for (int i = 0; i < 2; i++) {
        mcd_watch_remove(p.a, &p.w[i]);
        mcd_watch_remove(p.a, &p.w[i]); /* twice is fine */
        close(fds[i][0]);
        close(fds[i][1]);
    }
    loop_fini(p.a);
}
