/* SPDX-License-Identifier: Apache-2.0 */
#include "closer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 64u
#define IDLE_S 2        /* a thread without work stays so long */
#define PENDING_MAX 64u /* descriptors of one user */
#define STACK_SIZE (64u * 1024u)

/* What came along with one message. */
struct bundle {
    struct bundle *next;
    uid_t uid;
    bool taken; /* a thread is at it */
    unsigned n;
    int fds[];
};

/* Threads may hang beyond the agent's life, so this belongs to the process. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    struct bundle *bundles; /* all that are not through, in order of arrival */
    unsigned waiting;       /* bundles that no thread has taken */
    unsigned threads, idle;
} closer = {.lock = PTHREAD_MUTEX_INITIALIZER, .wanted = PTHREAD_COND_INITIALIZER};

static struct bundle *take(void)
{
    struct bundle *b = closer.bundles;

    while (b != NULL && b->taken)
        b = b->next;
    if (b != NULL) {
        b->taken = true;
        closer.waiting--;
    }
    return b;
}

static void drop(struct bundle *b)
{
    struct bundle **link = &closer.bundles;

    while (*link != b)
        link = &(*link)->next;
    *link = b->next;
    free(b);
}

static void *work(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&closer.lock);
    for (;;) {
        struct bundle *b = take();
        struct timespec until;

        if (b != NULL) {
            pthread_mutex_unlock(&closer.lock);
            for (unsigned i = 0; i < b->n; i++)
                close(b->fds[i]);
            pthread_mutex_lock(&closer.lock);
            drop(b);
            continue;
        }
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += IDLE_S;
        closer.idle++;
        if (pthread_cond_timedwait(&closer.wanted, &closer.lock, &until) != 0 &&
            closer.waiting == 0) {
            closer.idle--;
            break;
        }
        closer.idle--;
    }
    closer.threads--;
    pthread_mutex_unlock(&closer.lock);
    return NULL;
}

/* With the lock. Without a thread the bundle waits for one of those that hang. */
static void need_thread(void)
{
    pthread_attr_t attr;
    pthread_t thread;

    if (closer.idle >= closer.waiting) {
        pthread_cond_signal(&closer.wanted);
        return;
    }
    if (closer.threads == THREADS_MAX || pthread_attr_init(&attr) != 0)
        return;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_SIZE);
    if (pthread_create(&thread, &attr, work, NULL) == 0)
        closer.threads++;
    pthread_attr_destroy(&attr);
}

void mcd_closer_put(uid_t uid, const int *fds, unsigned n)
{
    struct bundle *b, **link = &closer.bundles;

    if (n == 0)
        return;
    b = malloc(sizeof(*b) + n * sizeof(*fds));
    if (b == NULL) { /* then here and now, whatever it takes */
        for (unsigned i = 0; i < n; i++)
            close(fds[i]);
        return;
    }
    *b = (struct bundle){.uid = uid, .n = n};
    memcpy(b->fds, fds, n * sizeof(*fds));
    pthread_mutex_lock(&closer.lock);
    while (*link != NULL)
        link = &(*link)->next;
    *link = b;
    closer.waiting++;
    need_thread();
    pthread_mutex_unlock(&closer.lock);
}

bool mcd_closer_choked(uid_t uid)
{
    unsigned n = 0;

    pthread_mutex_lock(&closer.lock);
    for (const struct bundle *b = closer.bundles; b != NULL; b = b->next)
        if (b->uid == uid)
            n += b->n;
    pthread_mutex_unlock(&closer.lock);
    return n >= PENDING_MAX;
}

bool mcd_closer_drain(unsigned limit_ms)
{
    struct timespec ms = {.tv_nsec = 1000000};
    bool empty = false;

    for (unsigned i = 0; i <= limit_ms && !empty; i++) {
        pthread_mutex_lock(&closer.lock);
        empty = closer.bundles == NULL;
        pthread_mutex_unlock(&closer.lock);
        if (!empty)
            nanosleep(&ms, NULL);
    }
    return empty;
}
