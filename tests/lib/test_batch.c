/* SPDX-License-Identifier: Apache-2.0 */
/* Slots, batches and their tasks, with the test in the engine's place. */
#include "local.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/wait.h>

TestSuite(batch, .timeout = 10, .fini = local_teardown);

Test(batch, slots_are_used_in_order_and_reused_with_a_new_generation)
{
    struct mcs_desc d[4];
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 0);
    for (uint32_t round = 1; round <= 3; round++) {
        mcshm_request r[3] = {local_request(&l, 64), local_request(&l, 64), local_request(&l, 64)};

        b = local_batch(&l, 4);
        cr_assert_eq((uint32_t)b, 0);
        cr_assert_eq(b >> 32, round);
        cr_assert_eq(mcshm_submit(l.q, b, r, 3), MCSHM_OK);
        cr_assert_eq(local_take(&l, d, 4), 3);
        for (uint32_t i = 0; i < 3; i++) {
            cr_assert_eq(d[i].slot, i);
            cr_assert_eq(d[i].generation, round);
            cr_assert_eq(d[i].batch_generation, round);
            local_end(&l, &d[i], MCS_STATE_COMPLETED, MCS_OK, i + 1, 0);
        }
        cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
        cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_INVALID_HANDLE);
    }
    cr_assert_eq(l.q->nfree, 8);
}

Test(batch, handles_of_freed_batches_and_invented_ones_are_refused)
{
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 0);
    b = local_batch(&l, 1);
    cr_assert_eq(mcshm_batch_poll(l.q, b + 1, NULL), MCSHM_INVALID_HANDLE);
    cr_assert_eq(mcshm_batch_poll(l.q, b + (1ull << 32), NULL), MCSHM_INVALID_HANDLE);
    cr_assert_eq(mcshm_batch_poll(l.q, MCSHM_INVALID_BATCH, NULL), MCSHM_INVALID_HANDLE);
    cr_assert_eq(mcshm_batch_poll(l.q, b, NULL), MCSHM_OK, "no tasks: all have ended");
    cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
    cr_assert_eq(mcshm_batch_poll(l.q, b + (1ull << 32), NULL), MCSHM_INVALID_HANDLE,
                 "the next life is not yet");
}

Test(batch, runs_out_of_batches_and_comes_back)
{
    struct local l;
    mcshm_batch b[3];

    local_setup(&l, 8, 8, 2, 0);
    cr_assert_eq(mcshm_batch_alloc(l.q, 0, &b[0]), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_batch_alloc(l.q, 9, &b[0]), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_batch_alloc(l.q, 8, &b[0]), MCSHM_OK);
    cr_assert_eq(mcshm_batch_alloc(l.q, 8, &b[1]), MCSHM_OK);
    cr_assert_eq(mcshm_batch_alloc(l.q, 8, &b[2]), MCSHM_NO_BATCHES);
    cr_assert_eq(b[2], MCSHM_INVALID_BATCH);
    cr_assert_eq(mcshm_batch_free(l.q, b[0]), MCSHM_OK);
    cr_assert_eq(mcshm_batch_alloc(l.q, 8, &b[2]), MCSHM_OK);
}

Test(batch, counts_what_has_ended)
{
    mcshm_batch_status s;
    mcshm_request r[2];
    struct mcs_desc d[2];
    mcshm_task_status t;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 0);
    b = local_batch(&l, 2);
    r[0] = local_request(&l, 100);
    r[0].cookie = 42;
    r[1] = local_request(&l, 50);
    cr_assert_eq(mcshm_submit(l.q, b, r, 2), MCSHM_OK);
    cr_assert_eq(local_take(&l, d, 2), 2);
    cr_assert_eq(mcshm_batch_poll(l.q, b, &s), MCSHM_BUSY);
    cr_assert(s.tasks == 2 && s.ended == 0 && s.failed == 0 && s.bytes == 0);
    cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_BUSY);
    cr_assert_eq(mcshm_task_poll(l.q, b, 0, &t), MCSHM_OK);
    cr_assert(t.state == MCSHM_STATE_WAITING && t.cookie == 42);

    local_end(&l, &d[0], MCS_STATE_COMPLETED, MCS_OK, 1, 0);
    cr_assert_eq(mcshm_batch_poll(l.q, b, &s), MCSHM_BUSY);
    cr_assert(s.ended == 1 && s.bytes == 100);
    cr_assert_eq(mcshm_task_poll(l.q, b, 0, &t), MCSHM_OK);
    cr_assert(t.state == MCSHM_STATE_COMPLETED && t.path == MCSHM_PATH_LOCAL && t.bytes == 100 &&
              t.remote_quiesced && t.queue_ns == 10 && t.move_ns == 20 && t.notify_ns == 30);

    local_end(&l, &d[1], MCS_STATE_FAILED, MCS_REVOKED, 2, 1);
    cr_assert_eq(mcshm_batch_poll(l.q, b, &s), MCSHM_OK);
    cr_assert(s.ended == 2 && s.failed == 1);
    cr_assert_eq(mcshm_task_poll(l.q, b, 1, &t), MCSHM_OK);
    cr_assert(t.state == MCSHM_STATE_FAILED && t.error == MCSHM_REVOKED);
    cr_assert_eq(mcshm_task_poll(l.q, b, 2, &t), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_batch_wait(l.q, b, -1), MCSHM_OK);
}

/* The agent fills slots first and the batch line after them. */
Test(batch, a_batch_whose_slots_have_all_ended_can_be_freed_before_its_line_says_so)
{
    mcshm_request r[2];
    struct mcs_desc d[2];
    mcshm_task_status t;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 0);
    b = local_batch(&l, 2);
    r[0] = r[1] = local_request(&l, 100);
    cr_assert_eq(mcshm_submit(l.q, b, r, 2), MCSHM_OK);
    cr_assert_eq(local_take(&l, d, 2), 2);
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_BUSY);
        mcs_slot_complete(
            &l.q->shm, d[i].slot,
            MCS_SLOT_WORD(d[i].generation, MCS_OK, MCS_PATH_LOCAL, MCS_STATE_COMPLETED), 100, 0, 0,
            0);
        cr_assert_eq(mcshm_task_poll(l.q, b, i, &t), MCSHM_OK);
        cr_assert_eq(t.state, MCSHM_STATE_COMPLETED);
    }
    cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
}

Test(batch, a_line_of_an_earlier_life_counts_nothing)
{
    mcshm_request r;
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 0);
    r = local_request(&l, 8);
    for (int life = 0; life < 2; life++) {
        b = local_submit(&l, 1, &r);
        cr_assert_eq(mcshm_batch_poll(l.q, b, NULL), MCSHM_BUSY);
        cr_assert_eq(local_take(&l, &d, 1), 1);
        local_end(&l, &d, MCS_STATE_COMPLETED, MCS_OK, 1, 0);
        cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
    }
}

Test(batch, pending_is_not_an_end)
{
    mcshm_request r;
    struct mcs_desc d;
    mcshm_task_status t;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 0);
    r = local_request(&l, 8);
    b = local_submit_taken(&l, 1, &r, &d);
    mcs_slot_complete(&l.q->shm, d.slot,
                      MCS_SLOT_WORD(d.generation, MCS_OK, MCS_PATH_LOCAL, MCS_STATE_PENDING), 3, 1,
                      0, 0);
    cr_assert_eq(mcshm_task_poll(l.q, b, 0, &t), MCSHM_OK);
    cr_assert(t.state == MCSHM_STATE_PENDING && t.bytes == 3);
    cr_assert_eq(mcl_task_end(l.q, d.slot), 0);
}

/* The count of a batch's former life may be the one it is to come to in this life. A sleeper
 * on it could not tell the two apart, and would lose a wake-up between look and sleep. */
Test(batch, a_sleeper_never_sleeps_on_the_count_of_a_former_life)
{
    mcshm_request r;
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 0);
    r = local_request(&l, 8);
    b = local_submit_taken(&l, 1, &r, &d);
    local_end(&l, &d, MCS_STATE_COMPLETED, MCS_OK, 1, 0);
    cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);

    b = local_submit(&l, 1, &r);
    cr_assert_eq((uint32_t)mcs_batch_peek(&l.q->shm, (uint32_t)b), 1);
    cr_assert_eq(mcshm_batch_wait(l.q, b, 1000), MCSHM_TIMEOUT);
    cr_assert_eq((uint32_t)mcs_batch_peek(&l.q->shm, (uint32_t)b), 0);
}

struct sleeper {
    struct local *l;
    struct mcs_desc d;
};

/* As an engine does: end, fence, look for who sleeps, wake. */
static void *end_and_wake(void *arg)
{
    struct sleeper *s = arg;

    while (mcs_queue_waiter(&s->l->q->shm) == MCS_WAIT_NONE)
        mcs_pause();
    local_end(s->l, &s->d, MCS_STATE_COMPLETED, MCS_OK, 1, 0);
    cr_assert_leq(mcs_queue_waiter(&s->l->q->shm), MCS_WAIT_BATCH(s->d.batch));
    syscall(SYS_futex, &s->l->q->shm.batch_lines[s->d.batch].word, FUTEX_WAKE, 1, NULL, NULL, 0);
    return NULL;
}

Test(batch, a_sleeper_is_woken)
{
    struct sleeper s;
    mcshm_request r;
    pthread_t thread;
    struct local l;
    mcshm_batch b;
    int64_t start;

    local_setup(&l, 8, 8, 2, 0);
    r = local_request(&l, 8);
    s.l = &l;
    start = mcl_now_ns();
    for (int life = 0; life < 100; life++) {
        b = local_submit(&l, 1, &r);
        cr_assert_eq(local_take(&l, &s.d, 1), 1);
        cr_assert_eq(pthread_create(&thread, NULL, end_and_wake, &s), 0);
        cr_assert_eq(mcshm_batch_wait(l.q, b, -1), MCSHM_OK);
        pthread_join(thread, NULL);
        cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
    }
    cr_assert_lt(mcl_now_ns() - start, 50 * MCL_SLEEP_NS, "no sleep ran its full length");
}

Test(batch, renewing_a_line_keeps_what_was_published)
{
    struct local l;

    local_setup(&l, 8, 8, 2, 0);
    mcs_batch_publish(&l.q->shm, 1, 5, 3, 0, 3, 0);
    mcs_batch_renew(&l.q->shm, 1, 5);
    cr_assert_eq(mcs_batch_peek(&l.q->shm, 1), 5ull << 32 | 3);
    mcs_batch_renew(&l.q->shm, 1, 6);
    cr_assert_eq(mcs_batch_peek(&l.q->shm, 1), 6ull << 32);
}

Test(batch, wait_times_out)
{
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 0);
    r = local_request(&l, 8);
    b = local_submit(&l, 1, &r);
    cr_assert_eq(mcshm_batch_wait(l.q, b, 0), MCSHM_TIMEOUT);
    cr_assert_eq(mcshm_batch_wait(l.q, b, 2000), MCSHM_TIMEOUT);
    cr_assert_eq(l.q->shm.doorbell->waiters, MCS_WAIT_NONE);
}

Test(batch, agents_death_is_noticed)
{
    mcshm_task_status t;
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 0);
    r = local_request(&l, 8);
    b = local_submit(&l, 2, &r);
    close(l.agent);
    cr_assert_eq(mcshm_batch_poll(l.q, b, NULL), MCSHM_BUSY, "a poll makes no system call");
    cr_assert_eq(mcshm_batch_wait(l.q, b, -1), MCSHM_AGENT_DOWN);
    cr_assert_eq(mcshm_batch_poll(l.q, b, NULL), MCSHM_AGENT_DOWN);
    cr_assert_eq(mcshm_submit(l.q, b, &r, 1), MCSHM_AGENT_DOWN);
    cr_assert_eq(mcshm_task_poll(l.q, b, 0, &t), MCSHM_OK);
    cr_assert(t.state == MCSHM_STATE_FAILED && t.error == MCSHM_AGENT_DOWN);
    cr_assert_eq(mcshm_batch_free(l.q, b), MCSHM_OK);
}

Test(batch, a_poller_that_never_waits_learns_of_the_death_too)
{
    mcshm_status status;
    mcshm_request r;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 8, 8, 2, 0);
    r = local_request(&l, 8);
    b = local_submit(&l, 1, &r);
    close(l.agent);
    do
        status = mcshm_batch_poll(l.q, b, NULL);
    while (status == MCSHM_BUSY);
    cr_assert_eq(status, MCSHM_AGENT_DOWN);
}

/* Whatever a thread repeats in vain, it learns in the end that the agent is down. */
Test(batch, a_thread_that_only_retries_learns_of_the_death_too)
{
    enum { FREE, WAIT, SUBMIT, CANCEL, RECEIVE, CALLS };

    for (int call = 0; call < CALLS; call++) {
        mcshm_status status = MCSHM_OK;
        mcshm_notification n;
        mcshm_request r;
        struct local l;
        mcshm_batch b;

        local_setup(&l, 2, 8, 2, 0);
        r = local_request(&l, 8);
        b = local_batch(&l, 2);
        cr_assert_eq(mcshm_submit(l.q, b, &r, 1), MCSHM_OK, "and the ring is full");
        close(l.agent);
        do {
            switch (call) {
            case FREE:
                status = mcshm_batch_free(l.q, b);
                break;
            case WAIT:
                status = mcshm_batch_wait(l.q, b, 0);
                break;
            case SUBMIT:
                status = mcshm_submit(l.q, b, &r, 1);
                break;
            case CANCEL:
                status = mcshm_cancel(l.q, b, 0);
                break;
            default:
                status = mcshm_notify_recv(l.c, &n, 0);
                break;
            }
        } while (status == MCSHM_BUSY || status == MCSHM_TIMEOUT || status == MCSHM_RING_FULL);
        cr_assert_eq(status, call == FREE ? MCSHM_OK : MCSHM_AGENT_DOWN, "call %d", call);
        local_teardown();
    }
}

Test(batch, receiving_spins_no_longer_than_asked)
{
    mcshm_notification n;
    struct local l;
    int64_t start;

    local_setup(&l, 8, 8, 2, 0);
    l.c->spin_ticks = UINT64_C(1) << 62;
    start = mcl_now_ns();
    cr_assert_eq(mcshm_notify_recv(l.c, &n, 2000), MCSHM_TIMEOUT);
    cr_assert_lt(mcl_now_ns() - start, 2000000000);
}

Test(batch, cancel_names_slot_and_generation)
{
    mcshm_request r;
    struct mcs_desc d;
    struct local l;
    mcshm_batch b;

    local_setup(&l, 4, 8, 2, 0);
    r = local_request(&l, 8);
    b = local_submit(&l, 4, &r);
    cr_assert_eq(mcshm_cancel(l.q, b, 1), MCSHM_INVALID_ARGUMENT);
    cr_assert_eq(mcshm_cancel(l.q, b, 0), MCSHM_OK);
    cr_assert_eq(mcshm_cancel(l.q, b, 0), MCSHM_OK);
    cr_assert_eq(mcshm_cancel(l.q, b, 0), MCSHM_RING_FULL);
    cr_assert_eq(local_take(&l, &d, 1), 1);
    cr_assert_eq(d.op, MCS_OP_WRITE);
    local_end(&l, &d, MCS_STATE_CANCELED, MCS_CANCELED, 1, 1);
    cr_assert_eq(local_take(&l, &d, 1), 1);
    cr_assert(d.op == MCS_OP_CANCEL && d.slot == 0 && d.generation == 1);
    cr_assert_eq(mcshm_cancel(l.q, b, 0), MCSHM_OK, "it has ended");
}

Test(batch, child_of_a_fork_is_refused_everywhere)
{
    mcshm_notification n;
    mcshm_request r;
    struct local l;
    mcshm_batch b;
    void *p;
    pid_t child;
    int status;

    local_setup(&l, 8, 8, 2, 0);
    r = local_request(&l, 8);
    b = local_batch(&l, 1);
    child = fork();
    if (child == 0) {
        bool good = mcshm_batch_poll(l.q, b, NULL) == MCSHM_FORKED &&
                    mcshm_submit(l.q, b, &r, 1) == MCSHM_FORKED &&
                    mcshm_batch_wait(l.q, b, -1) == MCSHM_FORKED &&
                    mcshm_batch_free(l.q, b) == MCSHM_FORKED &&
                    mcshm_cancel(l.q, b, 0) == MCSHM_FORKED &&
                    mcshm_queue_close(l.q) == MCSHM_FORKED &&
                    mcshm_alloc(l.c, 1, 0, NULL, &p) == MCSHM_FORKED &&
                    mcshm_notify_recv(l.c, &n, -1) == MCSHM_FORKED;
        _exit(good ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_eq(mcshm_submit(l.q, b, &r, 1), MCSHM_OK, "the parent goes on");
}
