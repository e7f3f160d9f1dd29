/* SPDX-License-Identifier: Apache-2.0 */
#include "worker.h"
#include "shm/failpoint.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

struct list {
    struct mcd_job *head, **tail;
};

struct mcd_worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    struct list todo, finished;
    bool stop;
    int notify_fd;
};

static void list_init(struct list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}

static void list_add(struct list *l, struct mcd_job *job)
{
    job->next = NULL;
    *l->tail = job;
    l->tail = &job->next;
}

static struct mcd_job *list_take(struct list *l)
{
    struct mcd_job *job = l->head;

    if (job != NULL) {
        l->head = job->next;
        if (l->head == NULL)
            l->tail = &l->head;
    }
    return job;
}

static void *work(void *arg)
{
    struct mcd_worker *w = arg;
    uint64_t one = 1;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct mcd_job *job = list_take(&w->todo);

        if (job != NULL) {
            pthread_mutex_unlock(&w->lock);
            MCS_FAILPOINT(worker_run);
            job->run(job);
            MCS_FAILPOINT(worker_ran);
            pthread_mutex_lock(&w->lock);
            list_add(&w->finished, job);
            while (write(w->notify_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
                /* again; when it is full of unread wake-ups, one of them is enough */
            }
        } else if (w->stop) {
            break;
        } else {
            pthread_cond_wait(&w->wanted, &w->lock);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int mcd_worker_create(int notify_fd, struct mcd_worker **out)
{
    struct mcd_worker *w = calloc(1, sizeof(*w));
    int res;

    if (w == NULL)
        return -ENOMEM;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wanted, NULL);
    list_init(&w->todo);
    list_init(&w->finished);
    w->notify_fd = notify_fd;
    res = -pthread_create(&w->thread, NULL, work, w);
    if (res != 0) {
        pthread_cond_destroy(&w->wanted);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return res;
    }
    *out = w;
    return 0;
}

void mcd_worker_destroy(struct mcd_worker *w, void *context)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wanted);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    mcd_worker_reap(w, context);
    pthread_cond_destroy(&w->wanted);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void mcd_worker_submit(struct mcd_worker *w, struct mcd_job *job)
{
    pthread_mutex_lock(&w->lock);
    list_add(&w->todo, job);
    pthread_cond_signal(&w->wanted);
    pthread_mutex_unlock(&w->lock);
}

void mcd_worker_reap(struct mcd_worker *w, void *context)
{
    struct mcd_job *job;

    for (;;) {
        pthread_mutex_lock(&w->lock);
        job = list_take(&w->finished);
        pthread_mutex_unlock(&w->lock);
        if (job == NULL)
            break;
        job->done(job, context);
    }
}
