/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent of several lives on a socket of its own, in a thread.  A life is one connection: it
 * ends when the test, or the hook, kills it, and the next connection is the next life's.  It
 * keeps the memory of the session in descriptors of its own, executes no task by itself, and
 * writes down what it was asked.
 */
#ifndef TEST_LATER_H
#define TEST_LATER_H

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/internal.h"

#define LATER_EXTENT 7u
#define LATER_EXTENT_SIZE (UINT64_C(2) << 20)
#define LATER_QUEUE 3u
#define LATER_SEGMENT 5u
#define LATER_GPU 20u                              /* the extent of GPU memory */
#define LATER_IMPORT 30u                           /* and up: those that were imported */
#define LATER_GPU_ADDRESS UINT64_C(0x7e9000000000) /* TSan would have no other part of them */
#define LATER_GRANULARITY (UINT64_C(2) << 20)
#define LATER_LOG 256u

enum later_say { LATER_ANSWER, LATER_DIE, LATER_SILENCE, LATER_REFUSE };

struct later;
typedef enum later_say (*later_hook)(struct later *a, const struct mcs_msg *m, uint32_t *status);

struct later {
    char folder[64], path[96];
    int listener, doorbell, region_fd, queue_fd, extent_fd;
    struct mcs_session_region region;
    struct mcs_queue queue;
    struct mcs_ring_consumer consumer;
    struct mcs_queue_layout layout;
    uint8_t *extent;
    uint64_t allocated;
    /* GPU memory, exported by the test; gpu_size 0: there is none, and what is mapped is host memory */
    int gpu_fd;
    uint64_t gpu_size, gpu_allocated;
    uint32_t gpu_allocs, imports;
    pthread_t thread;
    uint64_t features; /* beside KEPT: atomic */
    bool orphan;       /* nobody keeps its table */
    bool over;         /* no more lives: atomic */
    bool held;         /* accepts nobody for the time being: atomic */
    int connection;    /* of the present life, -1: atomic */
    uint32_t lives;    /* atomic */
    uint32_t resumes;  /* RESUMEs answered: atomic */
    /* what to do with a message, by the thread; REFUSE: *status is the answer's */
    later_hook hook;               /* atomic */
    uint32_t asked[MCS_MSG_COUNT]; /* how often, in this life: the next clears them */
    pthread_mutex_t mutex;         /* below, and the queue: the test is its engine */
    uint32_t nlog;
    struct {
        uint32_t life;
        struct mcs_msg_header h;
        union mcs_msg_body b;
        ino_t ino; /* of the descriptor that came along */
    } log[LATER_LOG];
};

static inline ino_t later_ino(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

static inline void later_note(struct later *a, const struct mcs_msg *m, const int *fds,
                              unsigned nfds)
{
    pthread_mutex_lock(&a->mutex);
    if (a->nlog < LATER_LOG) {
        a->log[a->nlog].life = mcs_load_relaxed(&a->lives);
        a->log[a->nlog].h = m->h;
        a->log[a->nlog].b = m->b;
        a->log[a->nlog++].ino = nfds != 0 ? later_ino(fds[0]) : 0;
    }
    pthread_mutex_unlock(&a->mutex);
    if (m->h.type < MCS_MSG_COUNT)
        a->asked[m->h.type]++;
}

static inline void later_region(struct later *a)
{
    struct mcs_session_header h = {.tick_hz = 1000000000, .session_incarnation = 3};
    uint64_t size = mcs_session_region_size(MCS_INBOX_SIZE_MIN);
    void *mem;

    cr_assert_eq(mcs_region_create("region", size, 0, -1, NULL, &a->region_fd, &mem), 0);
    mcs_session_region_create(&a->region, mem, MCS_INBOX_SIZE_MIN, &h);
    cr_assert_eq(mcs_queue_layout(8, 32, 8, 8192, &a->layout), 0);
    cr_assert_eq(mcs_region_create("queue", a->layout.total_size, 0, -1, NULL, &a->queue_fd, &mem),
                 0);
    cr_assert_eq(
        mcs_queue_create(&a->queue, &a->consumer, mem, &a->layout, LATER_QUEUE, 3, a->features), 0);
    cr_assert_eq(mcs_region_create("extent", LATER_EXTENT_SIZE, 0, -1, NULL, &a->extent_fd, &mem),
                 0);
    a->extent = mem;
}

static inline void later_hello(struct later *a, struct mcs_msg *m, int *fds, unsigned *nfds)
{
    bool again = m->h.type == MCS_MSG_RESTORE;

    memset(&m->b, 0, sizeof(m->b));
    m->b.hello_reply = (struct mcs_msg_hello_reply){
        .agent_incarnation = 100 + mcs_load_relaxed(&a->lives),
        .session_incarnation = 3,
        .features = mcs_load_acquire(&a->features) | (a->orphan ? 0 : MCS_FEATURE_KEPT),
        .region_size = a->region.total_size,
        .caller_max = 4096,
        .agent_version = "9.9.9",
    };
    a->doorbell = eventfd(0, EFD_CLOEXEC);
    if (!again)
        fds[(*nfds)++] = a->region_fd;
    fds[(*nfds)++] = a->doorbell;
}

static inline void later_queue_back(struct later *a)
{
    int res;

    pthread_mutex_lock(&a->mutex);
    res = mcs_queue_resume(&a->queue, &a->consumer, a->queue.header, &a->layout, LATER_QUEUE, 3,
                           mcs_load_acquire(&a->features));
    pthread_mutex_unlock(&a->mutex);
    cr_assert_eq(res, 0);
}

/* About GPU memory, and FREE, of any. */
static inline void later_gpu(struct later *a, struct mcs_msg *m, int *fds, unsigned *nfds)
{
    union mcs_msg_body b = m->b;
    uint64_t align;

    memset(&m->b, 0, sizeof(m->b));
    switch (m->h.type) {
    case MCS_MSG_GPU_ALLOC:
        align = b.gpu_alloc.align != 0 ? b.gpu_alloc.align : 256;
        a->gpu_allocated = (a->gpu_allocated + align - 1) / align * align;
        m->b.extent_reply = (struct mcs_msg_extent_reply){.extent = LATER_GPU,
                                                          .is_new = a->gpu_allocs == 0,
                                                          .offset = a->gpu_allocated,
                                                          .extent_size = a->gpu_size,
                                                          .address = LATER_GPU_ADDRESS,
                                                          .page_size = LATER_GRANULARITY};
        if (a->gpu_allocs++ == 0)
            fds[(*nfds)++] = a->gpu_fd;
        a->gpu_allocated += b.gpu_alloc.size;
        break;
    case MCS_MSG_GPU_IMPORT:
        if (b.gpu_import.last != 0)
            m->b.extent_reply = (struct mcs_msg_extent_reply){.extent = LATER_IMPORT + a->imports++,
                                                              .extent_size = b.gpu_import.total,
                                                              .page_size = LATER_GRANULARITY};
        break;
    default:
        if (b.free.extent == LATER_GPU && --a->gpu_allocs == 0) {
            a->gpu_allocated = 0;
            m->b.free_reply.extent_gone = 1;
        }
    }
}

/* Fills in the good answer. Returns the size of its body. */
static inline size_t later_answer(struct later *a, struct mcs_msg *m, int *fds, unsigned *nfds)
{
    struct mcs_msg_alloc alloc;

    switch (m->h.type) {
    case MCS_MSG_HELLO:
    case MCS_MSG_RESTORE:
        later_hello(a, m, fds, nfds);
        break;
    case MCS_MSG_QUEUE_OPEN:
        m->b.queue_open_reply = (struct mcs_msg_queue_open_reply){
            .queue_id = LATER_QUEUE, .total_size = a->layout.total_size};
        fds[(*nfds)++] = a->queue_fd;
        break;
    case MCS_MSG_QUEUE_BACK:
        later_queue_back(a);
        m->b.queue_open_reply = (struct mcs_msg_queue_open_reply){.queue_id = LATER_QUEUE};
        break;
    case MCS_MSG_ALLOC:
        alloc = m->b.alloc;
        m->b.extent_reply = (struct mcs_msg_extent_reply){.extent = LATER_EXTENT,
                                                          .is_new = a->allocated == 0,
                                                          .offset = a->allocated,
                                                          .extent_size = LATER_EXTENT_SIZE,
                                                          .page_size = 4096};
        if (a->allocated == 0)
            fds[(*nfds)++] = a->extent_fd;
        a->allocated += alloc.size;
        break;
    case MCS_MSG_GPU_ALLOC:
    case MCS_MSG_GPU_IMPORT:
    case MCS_MSG_FREE:
        later_gpu(a, m, fds, nfds);
        break;
    case MCS_MSG_REGISTER:
        m->b.extent_reply = (struct mcs_msg_extent_reply){.extent = LATER_EXTENT + 1,
                                                          .is_new = 1,
                                                          .extent_size = m->b.reg.size,
                                                          .page_size = 4096};
        break;
    case MCS_MSG_SEGMENT_OPEN:
    case MCS_MSG_OPEN_BACK:
        m->b.segment_open_reply = (struct mcs_msg_segment_open_reply){
            .segment = LATER_SEGMENT, .same_tenant = 1, .incarnation = 77};
        break;
    case MCS_MSG_DESCRIBE:
        memset(&m->b, 0, sizeof(m->b));
        m->b.describe_reply.total = m->b.describe_reply.count = 1;
        m->b.describe_reply.buffers[0] = (struct mcs_msg_buffer_info){
            .address = 0x10000, .length = 4096, .access = MCS_ACCESS_ALL};
        if (a->gpu_size != 0) {
            m->b.describe_reply.buffers[0].memory = MCS_MEMORY_GPU;
            strcpy(m->b.describe_reply.buffers[0].location, "cuda:facecd00");
        }
        return offsetof(struct mcs_msg_describe_reply, buffers) +
               sizeof(m->b.describe_reply.buffers[0]);
    case MCS_MSG_MAP:
        m->b.map_reply = (struct mcs_msg_map_reply){.grant = 40 + mcs_load_relaxed(&a->lives),
                                                    .extent_size = LATER_EXTENT_SIZE};
        if (a->gpu_size != 0) {
            m->b.map_reply.memory = MCS_MEMORY_GPU;
            m->b.map_reply.extent_size = a->gpu_size;
            m->b.map_reply.offset = 4096;
        }
        fds[(*nfds)++] = a->gpu_size != 0 ? a->gpu_fd : a->extent_fd;
        break;
    case MCS_MSG_OBJECT_MAP: /* every extent of the store's is the same one */
        m->b.object_map_reply =
            (struct mcs_msg_object_map_reply){.size = LATER_EXTENT_SIZE, .page_size = 4096};
        fds[(*nfds)++] = a->extent_fd;
        break;
    case MCS_MSG_RESUME:
        pthread_mutex_lock(&a->mutex);
        mcs_queue_resumed(&a->queue, &a->consumer, 100 + mcs_load_relaxed(&a->lives));
        pthread_mutex_unlock(&a->mutex);
        break;
    default:
        memset(&m->b, 0, sizeof(m->b));
    }
    return mcs_msg_reply_size(m->h.type);
}

/* One message. False: the life has ended. */
static inline bool later_serve_one(struct later *a, int connection)
{
    enum later_say say = LATER_ANSWER;
    later_hook hook;
    uint32_t status = MCS_NOT_FOUND;
    int fds[MCS_MSG_FDS_MAX], got[MCS_MSG_FDS_MAX], res;
    unsigned nfds = 0, ngot;
    uint16_t type;
    struct mcs_msg m;
    size_t size;

    if (mcs_msg_recv(connection, &m, got, &ngot) != 0)
        return false;
    type = m.h.type;
    later_note(a, &m, got, ngot);
    for (unsigned i = 0; i < ngot; i++)
        close(got[i]);
    hook = mcs_load_acquire(&a->hook);
    if (hook != NULL)
        say = hook(a, &m, &status);
    if (say == LATER_DIE)
        return false;
    if (say == LATER_SILENCE)
        return true;
    if (say == LATER_REFUSE) {
        m.h.status = status;
        memset(&m.b, 0, sizeof(m.b));
        snprintf(m.b.error.text, sizeof(m.b.error.text), "refused by the test");
        size = sizeof(m.b.error);
    } else {
        size = later_answer(a, &m, fds, &nfds);
    }
    res = mcs_msg_send(connection, &m, size, fds, nfds);
    if (say == LATER_ANSWER && (type == MCS_MSG_HELLO || type == MCS_MSG_RESTORE))
        close(a->doorbell);
    if (res == 0 && say == LATER_ANSWER && type == MCS_MSG_RESUME)
        mcs_store_release(&a->resumes, a->resumes + 1); /* pairs with later_await() */
    return res == 0;
}

static inline void *later_serve(void *arg)
{
    struct later *a = arg;

    while (!mcs_load_acquire(&a->over)) {
        struct timeval short_time = {.tv_usec = 20000};
        int connection;

        while (mcs_load_acquire(&a->held) && !mcs_load_acquire(&a->over))
            usleep(1000);
        setsockopt(a->listener, SOL_SOCKET, SO_RCVTIMEO, &short_time, sizeof(short_time));
        connection = accept4(a->listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0)
            continue;
        mcs_store_release(&a->lives, a->lives + 1);
        memset(a->asked, 0, sizeof(a->asked));
        mcs_store_release(&a->connection, connection);
        while (later_serve_one(a, connection))
            ;
        mcs_store_release(&a->connection, -1);
        close(connection);
    }
    return NULL;
}

static inline void later_start(struct later *a, mcshm_options *o)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    strcpy(a->folder, "/tmp/mcshm-test-XXXXXX");
    cr_assert_not_null(mkdtemp(a->folder));
    snprintf(a->path, sizeof(a->path), "%s/sock", a->folder);
    memcpy(address.sun_path, a->path, strlen(a->path) + 1);
    a->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(a->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    cr_assert_eq(listen(a->listener, 4), 0);
    a->connection = -1;
    pthread_mutex_init(&a->mutex, NULL);
    later_region(a);
    cr_assert_eq(pthread_create(&a->thread, NULL, later_serve, a), 0);
    mcshm_options_init(o);
    o->socket_path = a->path;
    o->caller_max = 0;
}

/* The present life dies as by a signal: without a word. */
static inline void later_kill(struct later *a)
{
    int connection = mcs_load_acquire(&a->connection);

    cr_assert_geq(connection, 0, "there is a life to take");
    shutdown(connection, SHUT_RDWR);
}

static inline void later_await(const uint32_t *what, uint32_t value)
{
    int64_t end = mcl_now_ns() + INT64_C(15000000000);

    while (mcs_load_acquire(what) < value) {
        cr_assert_lt(mcl_now_ns(), end, "waited in vain for %u, it is %u", value,
                     mcs_load_acquire(what));
        usleep(500);
    }
}

/* How often it was asked this in that life, 0: in any. */
static inline uint32_t later_asked(struct later *a, uint32_t life, uint16_t type)
{
    uint32_t n = 0;

    pthread_mutex_lock(&a->mutex);
    for (uint32_t i = 0; i < a->nlog; i++)
        n += a->log[i].h.type == type && (life == 0 || a->log[i].life == life);
    pthread_mutex_unlock(&a->mutex);
    return n;
}

static inline void later_stop(struct later *a)
{
    int connection;

    mcs_store_release(&a->over, true);
    connection = mcs_load_acquire(&a->connection);
    if (connection >= 0)
        shutdown(connection, SHUT_RDWR);
    pthread_join(a->thread, NULL);
    close(a->listener);
    munmap(a->region.header, a->region.total_size);
    munmap(a->queue.header, a->layout.total_size);
    munmap(a->extent, LATER_EXTENT_SIZE);
    close(a->region_fd);
    close(a->queue_fd);
    close(a->extent_fd);
    unlink(a->path);
    rmdir(a->folder);
}

#endif
