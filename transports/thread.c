/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that may hang in a driver, and the time that they are given. */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "transports/thread.h"

uint64_t mct_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000u + (uint64_t)ts.tv_nsec / 1000000u;
}

void mct_kick(int fd)
{
    const uint64_t one = 1;

    /* full is as good as written: it is readable */
    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
        continue;
}

int mct_thread_start(pthread_t *out, void *(*work)(void *), void *arg, const char *name)
{
    sigset_t all, before;
    int res;

    /* signals are the control thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    res = -pthread_create(out, NULL, work, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (res == 0)
        pthread_setname_np(*out, name);
    return res;
}

bool mct_thread_join(pthread_t thread, uint64_t end)
{
    uint64_t now = mct_ms(), ms = end > now ? end - now : 0;
    struct timespec ts;

    /* pthread_clockjoin_np() would need no sum, but GCC 12's ThreadSanitizer does not know that it joins */
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += (time_t)(ms / 1000u);
    ts.tv_nsec += (long)(ms % 1000u) * 1000000;
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_sec++;
        ts.tv_nsec -= 1000000000;
    }
    if (pthread_timedjoin_np(thread, NULL, &ts) == 0)
        return true;
    pthread_detach(thread);
    return false;
}

void mct_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

struct timespec mct_until(uint64_t ms)
{
    return (struct timespec){.tv_sec = (time_t)(ms / 1000u),
                             .tv_nsec = (long)(ms % 1000u) * 1000000};
}
