/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for a driver's calls: how they start, how they are woken, and who is waited for. */
#include <criterion/criterion.h>

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transports/thread.h"

struct work {
    sem_t there, go, gone;
    sigset_t mask;
    pid_t tid;
};

static struct work *new_work(void)
{
    static struct work w; /* one that is detached outlives its test */

    sem_init(&w.there, 0, 0);
    sem_init(&w.go, 0, 0);
    sem_init(&w.gone, 0, 0);
    return &w;
}

static void await(sem_t *s)
{
    while (sem_wait(s) != 0)
        cr_assert_eq(errno, EINTR);
}

static void *work(void *arg)
{
    struct work *w = arg;

    pthread_sigmask(SIG_SETMASK, NULL, &w->mask);
    w->tid = gettid();
    sem_post(&w->there);
    while (sem_wait(&w->go) != 0)
        continue;
    sem_post(&w->gone);
    return NULL;
}

Test(thread, takes_no_signals_and_leaves_its_makers_mask_alone)
{
    struct work *w = new_work();
    sigset_t before, after;
    pthread_t thread;
    char name[16] = "";

    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    cr_assert_eq(mct_thread_start(&thread, work, w, "one-of-them"), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    cr_assert(sigismember(&after, SIGUSR2) == 1 && sigismember(&after, SIGTERM) == 0);
    await(&w->there);
    cr_assert(sigismember(&w->mask, SIGTERM) == 1 && sigismember(&w->mask, SIGUSR1) == 1 &&
              sigismember(&w->mask, SIGUSR2) == 1);
    cr_assert_eq(pthread_getname_np(thread, name, sizeof(name)), 0);
    cr_assert_str_eq(name, "one-of-them");
    sem_post(&w->go);
    cr_assert(mct_thread_join(thread, UINT64_MAX));
}

Test(thread, one_that_hangs_is_waited_for_until_the_end_and_left)
{
    struct work *w = new_work();
    const uint64_t began = mct_ms();
    pthread_t thread;

    cr_assert_eq(mct_thread_start(&thread, work, w, "hangs"), 0);
    cr_assert(!mct_thread_join(thread, began + 60));
    cr_assert_geq(mct_ms() - began, 60);
    sem_post(&w->go);
    await(&w->gone); /* it goes on */
}

Test(thread, one_that_has_ended_needs_no_time)
{
    struct work *w = new_work();
    char task[64];
    pthread_t thread;

    cr_assert_eq(mct_thread_start(&thread, work, w, "ended"), 0);
    await(&w->there);
    snprintf(task, sizeof(task), "/proc/self/task/%d", (int)w->tid);
    sem_post(&w->go);
    while (access(task, F_OK) == 0)
        sched_yield();
    cr_assert(mct_thread_join(thread, 0));
}

Test(thread, a_kick_is_seen_even_where_it_does_not_fit)
{
    const uint64_t most = UINT64_MAX - 1;
    struct pollfd fd = {.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), .events = POLLIN};
    uint64_t n = 0;

    cr_assert_geq(fd.fd, 0);
    mct_kick(fd.fd);
    mct_kick(fd.fd);
    cr_assert_eq(read(fd.fd, &n, sizeof(n)), sizeof(n));
    cr_assert_eq(n, 2);
    cr_assert_eq(write(fd.fd, &most, sizeof(most)), sizeof(most));
    mct_kick(fd.fd);
    cr_assert_eq(poll(&fd, 1, 0), 1);
    close(fd.fd);
}

Test(thread, a_timed_wait_goes_by_the_clock_that_nobody_sets)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const uint64_t end = mct_ms() + 60;
    const struct timespec ts = mct_until(end);
    pthread_cond_t c;
    int res = 0;

    mct_cond_init(&c);
    pthread_mutex_lock(&lock);
    while (res == 0)
        res = pthread_cond_timedwait(&c, &lock, &ts);
    pthread_mutex_unlock(&lock);
    cr_assert_eq(res, ETIMEDOUT);
    cr_assert_geq(mct_ms(), end);
    pthread_cond_destroy(&c);
}
