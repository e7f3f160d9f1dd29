/* SPDX-License-Identifier: Apache-2.0 */
/* Lives of the agent that are too short, agents that do not come, closing and forking meanwhile. */
#include "world.h"

#include <sys/wait.h>

TestSuite(reconnect_end, .timeout = 60);

static enum later_say die_half_way(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    static const uint16_t of[] = {0,
                                  0,
                                  MCS_MSG_RESTORE,
                                  MCS_MSG_EXTENT_BACK,
                                  MCS_MSG_ALLOCS_BACK,
                                  MCS_MSG_QUEUE_BACK,
                                  MCS_MSG_BUFFER_ADD,
                                  MCS_MSG_OPEN_BACK,
                                  MCS_MSG_RESUME};
    uint32_t life = mcs_load_relaxed(&a->lives);

    (void)status;
    return life < sizeof(of) / sizeof(of[0]) && m->h.type == of[life] ? LATER_DIE : LATER_ANSWER;
}

Test(reconnect_end, an_agent_that_dies_on_the_way_is_followed_by_the_next)
{
    struct world w = {0};
    struct mcs_desc d;
    mcshm_batch b;

    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, die_half_way);
    b = submit(&w, 2, 2);
    take(&w, &d, 1);
    later_kill(&w.a);
    await_restarts(&w, 1);
    cr_assert_eq(mcs_load_acquire(&w.a.lives), 9);
    expect_task(&w, b, 0, MCSHM_STATE_FAILED, MCSHM_AGENT_RESTARTED);
    expect_task(&w, b, 1, MCSHM_STATE_WAITING, MCSHM_OK);
    later_kill(&w.a);
    await_restarts(&w, 2);
    expect_task(&w, b, 1, MCSHM_STATE_WAITING, MCSHM_OK);
    tear_down(&w);
}

static void expect_down(struct world *w, mcshm_batch b)
{
    mcshm_notification n;
    void *p;

    cr_assert_eq(mcshm_alloc(w->c, 1, 0, NULL, &p), MCSHM_AGENT_DOWN);
    cr_assert_eq(mcshm_batch_wait(w->q, b, -1), MCSHM_AGENT_DOWN);
    cr_assert_eq(mcshm_notify_recv(w->c, &n, -1), MCSHM_AGENT_DOWN);
    cr_assert_eq(mcshm_batch_free(w->q, b), MCSHM_OK);
}

Test(reconnect_end, ended_for_good_is_down_at_once)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000};
    struct world w = {0};
    mcshm_batch b;

    set_up(&w, &o);
    b = submit(&w, 1, 1);
    mcs_store_release(&w.a.region.words->ended, 1u);
    later_kill(&w.a);
    expect_down(&w, b);
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_RESTORE), 0);
    tear_down(&w);
}

Test(reconnect_end, an_agent_that_nobody_keeps_is_not_waited_for)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000};
    struct world w = {.a.orphan = true};
    mcshm_batch b;

    set_up(&w, &o);
    cr_assert_not(w.c->watched);
    b = submit(&w, 1, 1);
    later_kill(&w.a);
    expect_down(&w, b);
    tear_down(&w);
}

Test(reconnect_end, without_reconnect_there_is_no_thread_and_no_descriptor)
{
    mcshm_options o = {.reconnect_ms = 0, .control_timeout_ms = 10000};
    struct world w = {0};
    mcshm_batch b;

    set_up(&w, &o);
    cr_assert(!w.c->watched && w.c->region_fd == -1 && w.q->fd == -1 && w.c->extents[0].fd == -1);
    b = submit(&w, 1, 1);
    later_kill(&w.a);
    expect_down(&w, b);
    tear_down(&w);
}

static enum later_say unknown(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a, (void)status;
    return m->h.type == MCS_MSG_RESTORE ? LATER_REFUSE : LATER_ANSWER;
}

Test(reconnect_end, an_agent_that_knows_the_session_not_is_no_later_one)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000};
    struct world w = {0};
    mcshm_batch b;

    set_up(&w, &o);
    b = submit(&w, 1, 1);
    mcs_store_release(&w.a.hook, unknown);
    later_kill(&w.a);
    expect_down(&w, b);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_RESTORE), 1);
    tear_down(&w);
}

static enum later_say busy_twice(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    *status = MCS_BUSY;
    return m->h.type == MCS_MSG_RESTORE && mcs_load_relaxed(&a->lives) < 4 ? LATER_REFUSE
                                                                           : LATER_ANSWER;
}

Test(reconnect_end, a_refusal_that_may_pass_is_asked_again)
{
    struct world w = {0};

    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, busy_twice);
    later_kill(&w.a);
    await_restarts(&w, 1);
    cr_assert_eq(mcs_load_acquire(&w.a.lives), 4);
    tear_down(&w);
}

Test(reconnect_end, none_that_comes_in_time_is_the_end)
{
    mcshm_options o = {.reconnect_ms = 300, .control_timeout_ms = 20000};
    struct world w = {0};
    mcshm_batch b;
    int64_t start;

    set_up(&w, &o);
    b = submit(&w, 1, 1);
    mcs_store_release(&w.a.held, true);
    start = mcl_now_ns();
    later_kill(&w.a);
    cr_assert_eq(mcshm_batch_wait(w.q, b, -1), MCSHM_AGENT_DOWN);
    cr_assert_geq(mcl_now_ns() - start, 300 * 1000000);
    expect_down(&w, b);
    tear_down(&w);
}

static void await_restore(struct world *w, uint32_t life)
{
    int64_t until = mcl_now_ns() + INT64_C(10000000000);

    while (later_asked(&w->a, life, MCS_MSG_RESTORE) == 0) {
        cr_assert_lt(mcl_now_ns(), until, "the later agent never learns of it");
        usleep(1000);
    }
}

Test(reconnect_end, one_that_comes_too_late_learns_that_nobody_comes_back)
{
    mcshm_options o = {.reconnect_ms = 100, .control_timeout_ms = 20000};
    struct world w = {0};
    uint32_t lives;

    set_up(&w, &o);
    mcs_store_release(&w.a.held, true);
    later_kill(&w.a);
    later_await(&w.c->down, 1);
    /* what the library has asked until then waits in the backlog, and is no question any more */
    mcs_store_release(&w.a.held, false);
    await_restore(&w, 2);
    while (mcs_load_acquire(&w.a.connection) != -1)
        usleep(1000);
    mcs_store_release(&w.a.held, true);
    lives = mcs_load_acquire(&w.a.lives);
    mcshm_close(w.c);
    mcs_store_release(&w.a.held, false);
    await_restore(&w, lives + 1);
    later_stop(&w.a);
}

Test(reconnect_end, a_call_waits_no_longer_than_control_timeout)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 200};
    struct world w = {0};
    void *p;

    set_up(&w, &o);
    mcs_store_release(&w.a.held, true);
    later_kill(&w.a);
    cr_assert_eq(mcshm_alloc(w.c, 1, 0, NULL, &p), MCSHM_AGENT_DOWN);
    cr_assert_not_null(strstr(mcshm_last_error(w.c), "control_timeout_ms"));
    w.c->control_timeout_ms = 20000;
    mcs_store_release(&w.a.held, false);
    cr_assert_eq(mcshm_alloc(w.c, 1, 0, NULL, &p), MCSHM_OK, "it came back all the same: %s",
                 mcshm_last_error(NULL));
    tear_down(&w);
}

Test(reconnect_end, closing_while_it_is_away_waits_for_nobody_and_is_told)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000};
    struct world w = {0};

    for (int quick = 0; quick < 2; quick++) {
        w = (struct world){0};
        set_up(&w, &o);
        mcs_store_release(&w.a.held, true);
        later_kill(&w.a);
        if (quick == 0)
            later_await(&w.losses, 1);
        mcshm_close(w.c);
        mcs_store_release(&w.a.held, false);
        for (int64_t until = mcl_now_ns() + INT64_C(10000000000);
             later_asked(&w.a, 2, MCS_MSG_RESTORE) == 0;) {
            cr_assert_lt(mcl_now_ns(), until, "the later agent never learns of it");
            usleep(1000);
        }
        later_stop(&w.a);
    }
}

static enum later_say mute_resume(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a, (void)status;
    return m->h.type == MCS_MSG_RESUME ? LATER_SILENCE : LATER_ANSWER;
}

static enum later_say mute_map(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)status;
    return m->h.type == MCS_MSG_MAP && mcs_load_relaxed(&a->lives) > 1 ? LATER_SILENCE
                                                                       : LATER_ANSWER;
}

Test(reconnect_end, closing_during_the_return_waits_for_nobody)
{
    static const struct {
        later_hook hook;
        uint16_t at;
    } cases[] = {{mute_resume, MCS_MSG_RESUME}, {mute_map, MCS_MSG_MAP}};
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000, .caller_max = 4096};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world w = {0};

        set_up(&w, &o);
        mcs_store_release(&w.a.hook, cases[i].hook);
        later_kill(&w.a);
        while (later_asked(&w.a, 2, cases[i].at) == 0)
            usleep(500);
        mcshm_close(w.c);
        later_stop(&w.a);
    }
}

static enum later_say slow(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a, (void)status;
    if (m->h.type == MCS_MSG_RESUME)
        usleep(300000);
    return LATER_ANSWER;
}

Test(reconnect_end, the_return_may_take_longer_than_a_call)
{
    mcshm_options o = {.reconnect_ms = 10000, .control_timeout_ms = 100};
    struct world w = {0};

    set_up(&w, &o);
    mcs_store_release(&w.a.hook, slow);
    later_kill(&w.a);
    await_restarts(&w, 1);
    tear_down(&w);
}

Test(reconnect_end, a_forked_child_frees_what_it_inherited_at_any_time)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000};
    struct world w = {0};

    set_up(&w, &o);
    for (int away = 0; away < 2; away++) {
        pid_t child;
        int status;

        if (away) {
            mcs_store_release(&w.a.held, true);
            later_kill(&w.a);
            later_await(&w.losses, 1);
        }
        child = fork();
        if (child == 0) {
            void *p;
            bool good = mcshm_alloc(w.c, 1, 0, NULL, &p) == MCSHM_FORKED;

            mcshm_close(w.c);
            _exit(good ? 0 : 1);
        }
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    mcs_store_release(&w.a.held, false);
    await_restarts(&w, 1);
    tear_down(&w);
}

Test(reconnect_end, reconnect_ms_has_a_limit)
{
    mcshm_options o;
    mcshm *c;

    mcshm_options_init(&o);
    cr_assert_eq(o.reconnect_ms, 10000);
    o.reconnect_ms = 600001;
    cr_assert_eq(mcshm_connect(&o, &c), MCSHM_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(mcshm_last_error(NULL), "reconnect_ms is 600001"));
}
