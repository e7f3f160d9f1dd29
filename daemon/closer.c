/* SPDX-License-Identifier: Apache-2.0 */
#include "closer.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 128u
#define THREADS_USER 16u /* of them, at one user's: others' descriptors do not wait for his */
#define IDLE_S 2         /* a thread without work stays so long */
#define PENDING_MAX 64u  /* descriptors of one user */
#define MANY_WEIGHT 32u  /* of any number that came over many messages: two such may hang */
#define STACK_SIZE (64u * 1024u)
#define NUDGE SIGURG /* ignored by default, and nobody else uses it here */

/* Who has something here. */
struct user {
    struct user *next;
    uid_t uid;
    unsigned pending; /* descriptors that he has passed; how many connections end says nothing */
    unsigned bundles, taken; /* all of his, and those that a thread is at */
};

/* What came along with one message. */
struct bundle {
    struct bundle *next;
    struct user *user;
    bool hang_up; /* it is a connection of ours */
    bool taken;   /* a thread is at it: this one, since then */
    pthread_t thread;
    uint64_t since_ms;
    unsigned weight; /* descriptors that it counts for */
    unsigned n;
    int fds[];
};

/* Threads may hang beyond the agent's life, so this belongs to the process. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    struct user *users;
    struct bundle *bundles; /* all that are not through, in order of arrival */
    unsigned threads, idle;
} closer = {.lock = PTHREAD_MUTEX_INITIALIZER, .wanted = PTHREAD_COND_INITIALIZER};

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static struct user *find_user(uid_t uid)
{
    struct user *u = closer.users;

    while (u != NULL && u->uid != uid)
        u = u->next;
    return u;
}

/* NULL: no memory. */
static struct user *get_user(uid_t uid)
{
    struct user *u = find_user(uid);

    if (u == NULL && (u = calloc(1, sizeof(*u))) != NULL) {
        u->uid = uid;
        u->next = closer.users;
        closer.users = u;
    }
    return u;
}

static void put_user(struct user *u)
{
    struct user **link = &closer.users;

    if (u->bundles != 0)
        return;
    while (*link != u)
        link = &(*link)->next;
    *link = u->next;
    free(u);
}

/* Bundles that a thread may take now. */
static unsigned count_ready(void)
{
    unsigned n = 0;

    for (const struct user *u = closer.users; u != NULL; u = u->next) {
        unsigned waiting = u->bundles - u->taken, left = THREADS_USER - u->taken;

        n += waiting < left ? waiting : left;
    }
    return n;
}

static struct bundle *take(void)
{
    struct bundle *b = closer.bundles;

    while (b != NULL && (b->taken || b->user->taken == THREADS_USER))
        b = b->next;
    if (b != NULL) {
        b->taken = true;
        b->thread = pthread_self();
        b->since_ms = now_ms();
        b->user->taken++;
    }
    return b;
}

static void drop(struct bundle *b)
{
    struct bundle **link = &closer.bundles;

    while (*link != b)
        link = &(*link)->next;
    *link = b->next;
    b->user->taken--;
    b->user->bundles--;
    b->user->pending -= b->weight;
    put_user(b->user);
    free(b);
}

/* A connection that is closed over unread mail takes from its peer what that has not read yet, such as
 * the reason. Nothing can come any more once it is shut down. */
static void discard_mail(int socket)
{
    char byte;

    shutdown(socket, SHUT_RDWR);
    while (recv(socket, &byte, sizeof(byte), MSG_DONTWAIT) > 0) {
        /* descriptors that come along are closed right there */
    }
}

static void *work(void *arg)
{
    sigset_t nudge;

    (void)arg;
    sigemptyset(&nudge);
    sigaddset(&nudge, NUDGE);
    pthread_sigmask(SIG_UNBLOCK, &nudge, NULL);
    pthread_mutex_lock(&closer.lock);
    for (;;) {
        struct bundle *b = take();
        struct timespec until;
        int res;

        if (b != NULL) {
            pthread_mutex_unlock(&closer.lock);
            if (b->hang_up)
                discard_mail(b->fds[0]);
            for (unsigned i = 0; i < b->n; i++)
                close(b->fds[i]);
            pthread_mutex_lock(&closer.lock);
            drop(b);
            continue;
        }
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += IDLE_S;
        closer.idle++;
        res = pthread_cond_timedwait(&closer.wanted, &closer.lock, &until);
        closer.idle--;
        if (res != 0 && count_ready() == 0)
            break;
    }
    closer.threads--;
    pthread_mutex_unlock(&closer.lock);
    return NULL;
}

/* With the lock. Without a thread the bundle waits for one of those that hang. */
static void need_thread(void)
{
    unsigned ready = count_ready();
    pthread_attr_t attr;
    pthread_t thread;

    if (ready == 0)
        return; /* its user's threads will come to it */
    if (closer.idle >= ready) {
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

static void put(uid_t uid, const int *fds, unsigned n, unsigned weight, bool hang_up)
{
    struct bundle *b, **link = &closer.bundles;
    struct user *u;

    if (n == 0)
        return;
    b = malloc(sizeof(*b) + n * sizeof(*fds));
    pthread_mutex_lock(&closer.lock);
    u = b == NULL ? NULL : get_user(uid);
    if (u == NULL) { /* then here and now, whatever it takes */
        pthread_mutex_unlock(&closer.lock);
        free(b);
        for (unsigned i = 0; i < n; i++)
            close(fds[i]);
        return;
    }
    *b = (struct bundle){.user = u, .hang_up = hang_up, .weight = weight, .n = n};
    memcpy(b->fds, fds, n * sizeof(*fds));
    u->bundles++;
    u->pending += weight;
    while (*link != NULL)
        link = &(*link)->next;
    *link = b;
    need_thread();
    pthread_mutex_unlock(&closer.lock);
}

void mcd_closer_put(uid_t uid, const int *fds, unsigned n)
{
    put(uid, fds, n, n, false);
}

void mcd_closer_put_many(uid_t uid, const int *fds, unsigned n)
{
    put(uid, fds, n, n < MANY_WEIGHT ? n : MANY_WEIGHT, false);
}

void mcd_closer_put_known(uid_t uid, const int *fds, unsigned n)
{
    put(uid, fds, n, 0, false);
}

void mcd_closer_hang_up(uid_t uid, int socket)
{
    put(uid, &socket, 1, 0, true);
}

bool mcd_closer_choked(uid_t uid)
{
    const struct user *u;
    bool choked;

    pthread_mutex_lock(&closer.lock);
    u = find_user(uid);
    choked = u != NULL && u->pending >= PENDING_MAX;
    pthread_mutex_unlock(&closer.lock);
    return choked;
}

static void on_nudge(int number)
{
    (void)number; /* that it came is all */
}

static void handle_nudges(void)
{
    struct sigaction sa = {.sa_handler = on_nudge, .sa_flags = SA_RESTART};

    sigaction(NUDGE, &sa, NULL);
}

void mcd_closer_nudge(unsigned after_ms)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint64_t now;

    pthread_once(&once, handle_nudges);
    pthread_mutex_lock(&closer.lock);
    now = now_ms();
    for (const struct bundle *b = closer.bundles; b != NULL; b = b->next)
        if (b->taken && now - b->since_ms >= after_ms)
            pthread_kill(b->thread, NUDGE); /* it is there: its bundle is in the list */
    pthread_mutex_unlock(&closer.lock);
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
