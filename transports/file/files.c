/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's thread: who calls it, when it sleeps, which requests are under way. step.c has a request's way. */
#include "transports/file/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/atomic.h"

#define DEPTH 64u
#define BOUNCES 32u
#define SPINS 2000u
#define AGAIN_MS 100

/* ---- calls from other threads --------------------------------------------------------------- */

static void lock(struct mct_files *f)
{
    unsigned spins = 0;

    while (mcs_exchange(&f->lock, 1u) != 0) { /* with unlock() */
        while (mcs_load_relaxed(&f->lock) != 0) {
            mcs_pause();
            if (++spins % SPINS == 0) /* its holder has lost its core: it gets ours */
                sched_yield();
        }
    }
}

static void unlock(struct mct_files *f)
{
    mcs_store_release(&f->lock, 0u); /* with lock() */
}

static void wake(struct mct_files *f)
{
    const uint64_t one = 1;

    if (write(f->wake, &one, sizeof(one)) < 0 && errno != EAGAIN)
        abort(); /* an eventfd refuses nothing else */
}

void mct_files_post(struct mct_files *f, struct mct_files_call *call)
{
    call->next = NULL;
    lock(f);
    *f->posted_last = call;
    f->posted_last = &call->next;
    mcs_store_relaxed(&f->any_posted, 1u); /* with look() and its fence */
    unlock(f);
    mcs_fence_full(); /* with that of sleep_until_woken(): one of the two sees the other */
    if (mcs_load_relaxed(&f->sleeping) != 0 && mcs_exchange(&f->sleeping, 0u) != 0)
        wake(f);
}

static bool look(struct mct_files *f)
{
    return mcs_load_relaxed(&f->any_posted) != 0; /* with mct_files_post() */
}

static unsigned make_calls(struct mct_files *f)
{
    struct mct_files_call *c, *next;
    unsigned n = 0;

    if (!look(f))
        return 0;
    lock(f);
    c = f->posted;
    f->posted = NULL;
    f->posted_last = &f->posted;
    mcs_store_relaxed(&f->any_posted, 0u); /* under the lock, as where it is set */
    unlock(f);
    for (; c != NULL; c = next, n++) {
        next = c->next;
        c->fn(c);
    }
    return n;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void sleep_until_woken(struct mct_files *f)
{
    struct pollfd p[2] = {{.fd = f->wake, .events = POLLIN},
                          {.fd = f->backend->event_fd(f->b), .events = POLLIN}};
    uint64_t value;

    mcs_store_relaxed(&f->sleeping, 1u);
    mcs_fence_full(); /* with that of mct_files_post() */
    /* While something is under way not for ever: what the kernel did not take in arm() is tried again. */
    if (!look(f) && f->backend->arm(f->b))
        (void)poll(p, p[1].fd < 0 ? 1 : 2, f->stats.queued > 0 ? AGAIN_MS : -1);
    mcs_store_relaxed(&f->sleeping, 0u); /* a wake too many is drained below or in the next turn */
    if (read(f->wake, &value, sizeof(value)) < 0)
        return; /* it was the other one */
}

static int begin(struct mct_files *f)
{
    char why[256] = "";
    int res;

    if (f->backend == NULL) {
        f->backend = &mct_file_ring;
        res = f->no_uring ? -ENOTSUP
                          : f->backend->create(NULL, f->depth, f->memory, f->memory_size, f->wake,
                                               &f->b, why, sizeof(why));
        if (res == 0)
            return 0;
        if (!f->no_uring)
            f->log(1, "%s; files are read and written by threads until then, which is slower", why);
        f->backend = &mct_file_pool;
    }
    return f->backend->create(f->backend_context, f->depth, f->memory, f->memory_size, f->wake,
                              &f->b, f->error, f->error_size);
}

static void *run(void *context)
{
    struct mct_files *f = context;
    unsigned n;
    bool stop = false;

    f->begun = begin(f);
    mcs_store_relaxed(&f->uring, f->begun == 0 && f->backend == &mct_file_ring ? 1u : 0u);
    mcs_store_relaxed(&f->registered, f->begun == 0 && f->backend->registered(f->b) ? 1u : 0u);
    sem_post(&f->ready);
    if (f->begun != 0)
        return NULL;
    while (!stop || f->stats.queued > 0) {
        n = make_calls(f);
        n += mct_files_go_on(f);
        n += f->backend->turn(f->b);
        stop = f->stopping;
        if (n == 0 && (!stop || f->stats.queued > 0))
            sleep_until_woken(f);
    }
    f->backend->destroy(f->b);
    return NULL;
}

static void stop(struct mct_files_call *c)
{
    struct mct_files *f = (struct mct_files *)((char *)c - offsetof(struct mct_files, stop));

    f->stopping = true;
}

static void say_nothing(int level, const char *format, ...)
{
    (void)level;
    (void)format;
}

int mct_files_create(const struct mct_files_options *o, struct mct_files **out, char *error,
                     size_t error_size)
{
    struct mct_files *f = calloc(1, sizeof(*f));
    int res = -ENOMEM;

    if (f == NULL)
        goto fail;
    f->depth = o->depth == 0 ? DEPTH : o->depth;
    f->nbounces = o->bounces == 0 ? BOUNCES : o->bounces;
    f->no_uring = o->no_uring;
    f->backend = o->backend;
    f->backend_context = o->backend_context;
    f->log = o->log == NULL ? say_nothing : o->log;
    f->error = error;
    f->error_size = error_size;
    f->stop.fn = stop;
    f->posted_last = &f->posted;
    f->ready_last = &f->ready_first;
    f->waiting_last = &f->waiting;
    f->memory_size = (size_t)f->nbounces * MCT_FILE_BOUNCE + o->scratch;
    f->memory =
        mmap(NULL, f->memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f->memory == MAP_FAILED)
        goto fail_alloc;
    f->free_bounces = calloc(f->nbounces, sizeof(*f->free_bounces));
    if (f->free_bounces == NULL)
        goto fail_memory;
    for (unsigned i = 0; i < f->nbounces; i++)
        f->free_bounces[f->nfree++] = f->memory + (size_t)i * MCT_FILE_BOUNCE;
    f->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->wake < 0) {
        res = -errno;
        goto fail_bounces;
    }
    sem_init(&f->ready, 0, 0);
    error[0] = '\0';
    res = -pthread_create(&f->thread, NULL, run, f);
    if (res != 0)
        goto fail_wake;
    while (sem_wait(&f->ready) != 0)
        continue; /* a signal */
    res = f->begun;
    f->error = NULL;
    if (res != 0)
        goto fail_thread;
    *out = f;
    return 0;
fail_thread:
    pthread_join(f->thread, NULL);
fail_wake:
    sem_destroy(&f->ready);
    close(f->wake);
fail_bounces:
    free(f->free_bounces);
fail_memory:
    munmap(f->memory, f->memory_size);
fail_alloc:
    free(f);
fail:
    if (error[0] == '\0' || res == -ENOMEM)
        snprintf(error, error_size, "no engine for files: %s", strerror(-res));
    return res;
}

void mct_files_destroy(struct mct_files *f)
{
    if (f == NULL)
        return;
    mct_files_post(f, &f->stop);
    pthread_join(f->thread, NULL);
    sem_destroy(&f->ready);
    close(f->wake);
    free(f->free_bounces);
    munmap(f->memory, f->memory_size);
    free(f);
}

uint8_t *mct_files_scratch(struct mct_files *f)
{
    return f->memory + (size_t)f->nbounces * MCT_FILE_BOUNCE;
}

void mct_files_get_stats(const struct mct_files *f, struct mct_files_stats *out)
{
    const struct mct_files_stats *s = &f->stats;

    *out = (struct mct_files_stats){
        /* with the thread's mcs_count(): each by itself, they need not fit together */
        .reads = mcs_load_relaxed(&s->reads),
        .read_bytes = mcs_load_relaxed(&s->read_bytes),
        .writes = mcs_load_relaxed(&s->writes),
        .write_bytes = mcs_load_relaxed(&s->write_bytes),
        .syncs = mcs_load_relaxed(&s->syncs),
        .errors = mcs_load_relaxed(&s->errors),
        .shorts = mcs_load_relaxed(&s->shorts),
        .again = mcs_load_relaxed(&s->again),
        .bounced = mcs_load_relaxed(&s->bounced),
        .cached = mcs_load_relaxed(&s->cached),
        .cached_bytes = mcs_load_relaxed(&s->cached_bytes),
        .refused = mcs_load_relaxed(&s->refused),
        .queued = mcs_load_relaxed(&s->queued),
        .uring = mcs_load_relaxed(&f->uring) != 0,
        .registered = mcs_load_relaxed(&f->registered) != 0,
    };
}

/* ---- files ------------------------------------------------------------------------------------ */

void mct_file_refused(struct mct_file *file, int error)
{
    struct mct_files *f = file->files;

    file->straight = false;
    mcs_count(&f->stats.refused, 1); /* with mct_files_get_stats() */
    if (!f->told_refused)
        f->log(1,
               "O_DIRECT is refused for %s (%s): its file system's files go through the page cache",
               file->name, strerror(error));
    f->told_refused = true;
}

int mct_file_open(struct mct_files *f, int folder, const char *name, int flags, mode_t mode,
                  struct mct_file **out)
{
    struct mct_file *file = calloc(1, sizeof(*file));
    int res = -ENOMEM;

    if (file == NULL)
        goto fail;
    file->files = f;
    file->place = -1;
    file->name = strdup(name);
    if (file->name == NULL)
        goto fail_alloc;
    file->fd = openat(folder, name, flags | O_CLOEXEC, mode);
    if (file->fd < 0) {
        res = -errno;
        goto fail_name;
    }
    file->straight_fd =
        openat(folder, name, (flags & ~(O_CREAT | O_EXCL | O_TRUNC)) | O_CLOEXEC | O_DIRECT);
    file->straight = file->straight_fd >= 0;
    if (!file->straight && errno != EINVAL && errno != EOPNOTSUPP) {
        res = -errno;
        goto fail_fd;
    }
    if (!file->straight)
        mct_file_refused(file, errno);
    for (unsigned i = 0; file->straight && file->place < 0 && i < MCT_FILE_PLACES; i++) {
        if ((f->places >> i & 1) != 0)
            continue;
        if (!f->backend->place(f->b, i, file->straight_fd))
            break;
        file->place = (int)i;
        f->places |= UINT64_C(1) << i;
    }
    *out = file;
    return 0;
fail_fd:
    close(file->fd);
fail_name:
    free(file->name);
fail_alloc:
    free(file);
fail:
    return res;
}

void mct_file_close(struct mct_file *file)
{
    struct mct_files *f;

    if (file == NULL)
        return;
    f = file->files;
    if (file->place >= 0) {
        (void)f->backend->place(f->b, (unsigned)file->place, -1);
        f->places &= ~(UINT64_C(1) << file->place);
    }
    if (file->straight_fd >= 0)
        close(file->straight_fd);
    close(file->fd);
    free(file->name);
    free(file);
}

int mct_file_fd(const struct mct_file *file)
{
    return file->fd;
}
