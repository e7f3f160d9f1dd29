/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on files by a few threads, where io_uring cannot be had. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/failpoint.h"
#include "transports/file/internal.h"

#define THREADS 4u
/* Beyond it the kernel gives short results by itself. */
#define SIZE_MOST (1u << 30)

struct list {
    struct mct_file_step *first, **last;
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct list todo, ended;
    bool stop;
    int wake;
    unsigned nthreads;
    pthread_t threads[THREADS];
};

static void append(struct list *l, struct mct_file_step *s)
{
    s->next = NULL;
    *l->last = s;
    l->last = &s->next;
}

static struct mct_file_step *take(struct list *l)
{
    struct mct_file_step *s = l->first;

    if (s == NULL)
        return NULL;
    l->first = s->next;
    if (s->next == NULL)
        l->last = &l->first;
    return s;
}

static int carry_out(struct mct_file_step *s)
{
    size_t size = s->size > SIZE_MOST ? SIZE_MOST : s->size;
    ssize_t n;
    int res = 0;

    if (s->op == MCT_FILE_READ) {
        res = MCS_FAIL(file_read);
    } else if (s->op == MCT_FILE_WRITE) {
        res = MCS_FAIL(file_write);
    } else {
        res = MCS_FAIL(file_sync);
    }
    if (res != 0)
        return res;
    if (s->op != MCT_FILE_SYNC && size > MCT_FILE_BLOCK && MCS_FAIL(file_short) != 0)
        size = MCT_FILE_BLOCK;
    if (s->op == MCT_FILE_READ)
        n = pread(s->fd, s->memory, size, (off_t)s->offset);
    else if (s->op == MCT_FILE_WRITE)
        n = pwrite(s->fd, s->memory, size, (off_t)s->offset);
    else
        n = fdatasync(s->fd);
    return n < 0 ? -errno : (int)n;
}

static void *work(void *context)
{
    struct pool *p = context;
    const uint64_t one = 1;
    bool first;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        struct mct_file_step *s = take(&p->todo);

        if (s == NULL && p->stop)
            break;
        if (s == NULL) {
            pthread_cond_wait(&p->some, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        s->res = carry_out(s);
        pthread_mutex_lock(&p->lock);
        first = p->ended.first == NULL;
        append(&p->ended, s);
        if (first && write(p->wake, &one, sizeof(one)) < 0 && errno != EAGAIN)
            abort(); /* an eventfd refuses nothing else */
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void destroy(void *b)
{
    struct pool *p = b;

    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->some);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->nthreads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->some);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static int create(void *context, unsigned depth, void *memory, size_t size, int wake, void **out,
                  char *error, size_t error_size)
{
    struct pool *p = calloc(1, sizeof(*p));
    int res = 0;

    (void)context;
    (void)depth;
    (void)memory;
    (void)size;
    if (p == NULL) {
        snprintf(error, error_size, "out of memory");
        return -ENOMEM;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->some, NULL);
    p->todo.last = &p->todo.first;
    p->ended.last = &p->ended.first;
    p->wake = wake;
    for (; p->nthreads < THREADS; p->nthreads++) {
        res = -pthread_create(&p->threads[p->nthreads], NULL, work, p);
        if (res != 0)
            break;
    }
    if (p->nthreads == 0) {
        snprintf(error, error_size, "threads for files cannot be started (%s)", strerror(-res));
        destroy(p);
        return res;
    }
    *out = p;
    return 0;
}

static bool registered(void *b)
{
    (void)b;
    return false;
}

static bool place(void *b, unsigned at, int fd)
{
    (void)b;
    (void)at;
    (void)fd;
    return false;
}

static void start(void *b, struct mct_file_step *s)
{
    struct pool *p = b;

    pthread_mutex_lock(&p->lock);
    append(&p->todo, s);
    pthread_cond_signal(&p->some);
    pthread_mutex_unlock(&p->lock);
}

static unsigned turn(void *b)
{
    struct pool *p = b;
    struct mct_file_step *s, *next;
    unsigned n = 0;

    pthread_mutex_lock(&p->lock);
    s = p->ended.first;
    p->ended.first = NULL;
    p->ended.last = &p->ended.first;
    pthread_mutex_unlock(&p->lock);
    for (; s != NULL; s = next, n++) {
        next = s->next;
        mct_file_ended(s, s->res);
    }
    return n;
}

static bool arm(void *b)
{
    struct pool *p = b;
    bool none;

    pthread_mutex_lock(&p->lock);
    none = p->ended.first == NULL;
    pthread_mutex_unlock(&p->lock);
    return none;
}

static int event_fd(void *b)
{
    (void)b;
    return -1;
}

const struct mct_file_backend mct_file_pool = {
    .name = "threads",
    .create = create,
    .destroy = destroy,
    .registered = registered,
    .place = place,
    .start = start,
    .turn = turn,
    .arm = arm,
    .event_fd = event_fd,
};
