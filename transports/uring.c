/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's io_uring, over liburing. */
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/atomic.h"
#include "transports/uring.h"
#include "shm/failpoint.h"

/* Since Linux 6.2; liburing 2.3 does not name them. */
#ifndef IORING_SEND_ZC_REPORT_USAGE
#define IORING_SEND_ZC_REPORT_USAGE (1U << 3)
#endif

static_assert(MCT_IO_MORE == IORING_CQE_F_MORE && MCT_IO_NOTIF == IORING_CQE_F_NOTIF,
              "flags are the kernel's");

struct mct_uring {
    struct io_uring ring;
    int event_fd;
    bool enabled, armed;
    uint32_t features;
    unsigned inflight;
    uint64_t enters;
    struct mct_io *canceled; /* to be cancelled until they have ended; see mct_uring_cancel() */
    /* What found no place in the submission queue, in order: before the ring is enabled, or while
     * the kernel is short of memory. */
    struct io_uring_sqe *backlog;
    unsigned backlog_first, backlog_end, backlog_size;
};

/* From the best to what every kernel with io_uring sockets has. */
static const unsigned setups[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
        IORING_SETUP_SUBMIT_ALL,                                                     /* 6.1 */
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL, /* 5.19 */
    0,
};

static void explain(int error, char *text, size_t size)
{
    const char *why;

    switch (-error) {
    case EPERM:
    case EACCES:
        why = "it is forbidden here; set sysctl kernel.io_uring_disabled = 0, or allow "
              "io_uring_setup in the container's seccomp profile";
        break;
    case ENOSYS:
        why = "the kernel or a seccomp profile does not know it; use Linux 5.19 or later, or allow "
              "io_uring_setup in the container's seccomp profile";
        break;
    case ENOMEM:
        why = "memory is short; raise the memory limit of the service (and, before Linux 5.12, "
              "LimitMEMLOCK)";
        break;
    case EMFILE:
    case ENFILE:
        why = "descriptors have run out; raise LimitNOFILE of the service";
        break;
    case EINVAL:
        why = "the kernel is too old; use Linux 5.19 or later";
        break;
    default:
        why = "see the error";
        break;
    }
    snprintf(text, size, "io_uring cannot be set up (%s): %s", strerror(-error), why);
}

int mct_uring_create(unsigned entries, struct mct_uring **out, char *error, size_t error_size)
{
    struct mct_uring *u = calloc(1, sizeof(*u));
    struct io_uring_params p;
    int res = -ENOMEM;

    if (u == NULL)
        goto fail;
    u->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (u->event_fd < 0) {
        res = -errno;
        goto fail_alloc;
    }
    for (size_t i = 0; i < sizeof(setups) / sizeof(setups[0]); i++) {
        memset(&p, 0, sizeof(p));
        p.flags = setups[i] | IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
        p.cq_entries = entries * 4;
        res = io_uring_queue_init_params(entries, &u->ring, &p);
        if (res != -EINVAL)
            break;
    }
    if (res < 0)
        goto fail_event;
    if ((p.flags & IORING_SETUP_DEFER_TASKRUN) != 0)
        u->features |= MCT_URING_DEFER;
    if ((p.flags & IORING_SETUP_TASKRUN_FLAG) != 0)
        u->features |= MCT_URING_POLL_FIRST; /* they came together, with 5.19 */
    res = io_uring_register_eventfd(&u->ring, u->event_fd);
    if (res < 0)
        goto fail_ring;
    (void)io_uring_cq_eventfd_toggle(&u->ring, false);
    *out = u;
    return 0;
fail_ring:
    io_uring_queue_exit(&u->ring);
fail_event:
    close(u->event_fd);
fail_alloc:
    free(u);
fail:
    explain(res, error, error_size);
    return res;
}

void mct_uring_destroy(struct mct_uring *u)
{
    if (u == NULL)
        return;
    io_uring_queue_exit(&u->ring);
    close(u->event_fd);
    free(u->backlog);
    free(u);
}

static void count_enter(struct mct_uring *u)
{
    mcs_count(&u->enters, 1); /* with mct_uring_enters() */
}

/* Does the kernel take this flag of zero-copy sends? No socket is needed: flags come first. */
static bool takes_usage(struct mct_uring *u)
{
    struct msghdr msg = {0};
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    struct io_uring_cqe *cqe;
    bool takes = false;

    if (sqe == NULL)
        return false;
    io_uring_prep_sendmsg_zc(sqe, -1, &msg, MSG_NOSIGNAL);
    sqe->ioprio = IORING_SEND_ZC_REPORT_USAGE;
    sqe->user_data = 0;
    count_enter(u);
    if (io_uring_submit_and_wait(&u->ring, 1) != 1)
        return false;
    while (io_uring_peek_cqe(&u->ring, &cqe) == 0 && cqe != NULL) {
        /* a failed one may be told twice, too */
        if ((cqe->flags & IORING_CQE_F_NOTIF) == 0)
            takes = cqe->res != -EINVAL;
        io_uring_cqe_seen(&u->ring, cqe);
    }
    return takes;
}

int mct_uring_enable(struct mct_uring *u)
{
    struct io_uring_probe *probe;

    if (u->enabled)
        return 0;
    /* liburing 2.3 declares io_uring_enable_rings() and forgets to export it */
    if (syscall(SYS_io_uring_register, u->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0)
        return -errno;
    u->enabled = true;
    (void)io_uring_register_ring_fd(&u->ring); /* cheaper system calls where it works */
    probe = io_uring_get_probe_ring(&u->ring);
    if (probe != NULL && io_uring_opcode_supported(probe, IORING_OP_SENDMSG_ZC)) {
        u->features |= MCT_URING_SEND_ZC;
        if (takes_usage(u))
            u->features |= MCT_URING_ZC_USAGE;
    }
    io_uring_free_probe(probe);
    return 0;
}

uint32_t mct_uring_features(const struct mct_uring *u)
{
    return u->features;
}

int mct_uring_event_fd(const struct mct_uring *u)
{
    return u->event_fd;
}

unsigned mct_uring_inflight(const struct mct_uring *u)
{
    return u->inflight;
}

uint64_t mct_uring_enters(const struct mct_uring *u)
{
    return mcs_load_relaxed(&u->enters); /* with count_enter() */
}

static void submit(struct mct_uring *u)
{
    if (!u->enabled || io_uring_sq_ready(&u->ring) == 0 || MCS_FAIL(uring_submit) != 0)
        return;
    count_enter(u);
    (void)io_uring_submit(&u->ring); /* what is left over goes with the next */
}

/* Moves the backlog into the submission queue as far as it goes; true: nothing is left of it. */
static bool drain_backlog(struct mct_uring *u)
{
    while (u->backlog_first != u->backlog_end) {
        struct io_uring_sqe *sqe = u->enabled ? io_uring_get_sqe(&u->ring) : NULL;

        if (sqe == NULL)
            return false;
        *sqe = u->backlog[u->backlog_first++];
    }
    u->backlog_first = u->backlog_end = 0;
    return true;
}

/* A place behind everything that is queued. The kernel's queue is only full of what it did not take:
 * then the backlog grows, and when there is no memory for that either, nothing but trying again can
 * keep the promise that no operation is lost. */
static struct io_uring_sqe *next_sqe(struct mct_uring *u)
{
    for (;;) {
        struct io_uring_sqe *sqe, *grown;
        unsigned size = u->backlog_size == 0 ? 64 : u->backlog_size * 2;

        if (drain_backlog(u) && u->enabled) {
            sqe = io_uring_get_sqe(&u->ring);
            if (sqe != NULL)
                return sqe;
            submit(u);
            sqe = io_uring_get_sqe(&u->ring);
            if (sqe != NULL)
                return sqe;
        }
        if (u->backlog_end == u->backlog_size) {
            grown = realloc(u->backlog, size * sizeof(*grown));
            if (grown == NULL) {
                submit(u);
                continue;
            }
            u->backlog = grown;
            u->backlog_size = size;
        }
        return &u->backlog[u->backlog_end++];
    }
}

static void finish(struct mct_uring *u, struct io_uring_sqe *sqe, struct mct_io *io)
{
    sqe->user_data = (uint64_t)(uintptr_t)io;
    io->busy = true;
    io->canceled = false;
    u->inflight++;
}

#ifdef MCS_FAILPOINTS
/* The operation is not done, and ends with `error`. */
static bool forced(struct io_uring_sqe *sqe, struct mct_io *io, int error)
{
    io->forced = error;
    if (error != 0)
        io_uring_prep_nop(sqe);
    return error != 0;
}

static bool force_recv(struct io_uring_sqe *sqe, struct mct_io *io)
{
    if (forced(sqe, io, MCS_FAIL(uring_recv)))
        return true;
    if (MCS_FAIL(uring_recv_short) != 0)
        sqe->len = 1;
    return false;
}

static bool force_send(struct io_uring_sqe *sqe, struct mct_io *io, const struct msghdr *msg)
{
    if (forced(sqe, io, MCS_FAIL(uring_send)))
        return true;
    if (MCS_FAIL(uring_send_short) == 0)
        return false;
    io_uring_prep_send(sqe, sqe->fd, msg->msg_iov[0].iov_base, 1, MSG_NOSIGNAL);
    return true;
}

static void force_file(struct io_uring_sqe *sqe, struct mct_io *io, int error)
{
    if (!forced(sqe, io, error) && sqe->opcode != IORING_OP_FSYNC && MCS_FAIL(file_short) != 0 &&
        sqe->len > 4096)
        sqe->len = 4096;
}
#else
#define force_file(sqe, io, error) ((void)0)
#define force_recv(sqe, io) ((void)0)
#define force_send(sqe, io, msg) false
#endif

void mct_uring_recv(struct mct_uring *u, struct mct_io *io, int fd, void *buffer, size_t size,
                    int flags)
{
    struct io_uring_sqe *sqe = next_sqe(u);

    io_uring_prep_recv(sqe, fd, buffer, size, flags);
    (void)force_recv(sqe, io);
    finish(u, sqe, io);
}

void mct_uring_recv_ready(struct mct_uring *u, struct mct_io *io, int fd, void *buffer, size_t size,
                          int flags)
{
    struct io_uring_sqe *sqe = next_sqe(u);

    io_uring_prep_recv(sqe, fd, buffer, size, flags);
    if ((u->features & MCT_URING_POLL_FIRST) != 0)
        sqe->ioprio = IORING_RECVSEND_POLL_FIRST;
    (void)force_recv(sqe, io);
    finish(u, sqe, io);
}

void mct_uring_sendmsg(struct mct_uring *u, struct mct_io *io, int fd, const struct msghdr *msg,
                       int flags)
{
    struct io_uring_sqe *sqe = next_sqe(u);

    io_uring_prep_sendmsg(sqe, fd, msg, (unsigned)flags | MSG_NOSIGNAL);
    (void)force_send(sqe, io, msg);
    finish(u, sqe, io);
}

void mct_uring_sendmsg_zc(struct mct_uring *u, struct mct_io *io, int fd, const struct msghdr *msg,
                          int flags)
{
    struct io_uring_sqe *sqe = next_sqe(u);

    io_uring_prep_sendmsg_zc(sqe, fd, msg, (unsigned)flags | MSG_NOSIGNAL);
    if (!force_send(sqe, io, msg) && (u->features & MCT_URING_ZC_USAGE) != 0)
        sqe->ioprio = IORING_SEND_ZC_REPORT_USAGE;
    finish(u, sqe, io);
}

static void place_file(struct io_uring_sqe *sqe, int file)
{
    if (file < 0)
        return;
    sqe->fd = file;
    sqe->flags |= IOSQE_FIXED_FILE;
}

/* The kernel takes 32 bits of length, and ends it at a page itself; the rest is the caller's next. */
static unsigned length_of(const struct mct_uring_span *s)
{
    return s->size > (1u << 30) ? 1u << 30 : (unsigned)s->size;
}

void mct_uring_read(struct mct_uring *u, struct mct_io *io, const struct mct_uring_span *s)
{
    struct io_uring_sqe *sqe = next_sqe(u);

    if (s->memory >= 0)
        io_uring_prep_read_fixed(sqe, s->fd, s->buffer, length_of(s), s->offset, s->memory);
    else
        io_uring_prep_read(sqe, s->fd, s->buffer, length_of(s), s->offset);
    place_file(sqe, s->file);
    force_file(sqe, io, MCS_FAIL(file_read));
    finish(u, sqe, io);
}

void mct_uring_write(struct mct_uring *u, struct mct_io *io, const struct mct_uring_span *s)
{
    struct io_uring_sqe *sqe = next_sqe(u);

    if (s->memory >= 0)
        io_uring_prep_write_fixed(sqe, s->fd, s->buffer, length_of(s), s->offset, s->memory);
    else
        io_uring_prep_write(sqe, s->fd, s->buffer, length_of(s), s->offset);
    place_file(sqe, s->file);
    force_file(sqe, io, MCS_FAIL(file_write));
    finish(u, sqe, io);
}

void mct_uring_datasync(struct mct_uring *u, struct mct_io *io, int fd)
{
    struct io_uring_sqe *sqe = next_sqe(u);

    io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
    force_file(sqe, io, MCS_FAIL(file_sync));
    finish(u, sqe, io);
}

int mct_uring_memory(struct mct_uring *u, const struct iovec *v, unsigned n)
{
    return io_uring_register_buffers(&u->ring, v, n);
}

int mct_uring_files(struct mct_uring *u, unsigned places)
{
    return io_uring_register_files_sparse(&u->ring, places);
}

int mct_uring_file(struct mct_uring *u, unsigned place, int fd)
{
    int res = io_uring_register_files_update(&u->ring, place, &fd, 1);

    return res < 0 ? res : 0;
}

/* The kernel does not find an operation that it is just about to try once more, and then lets it wait.
 * So a cancel is repeated in every turn until the operation has ended. Queues are in order: it
 * reaches the kernel before anything that uses the same mct_io anew. */
static void queue_cancel(struct mct_uring *u, struct mct_io *io)
{
    struct io_uring_sqe *sqe = next_sqe(u);

    io_uring_prep_cancel(sqe, io, 0);
    sqe->user_data = 0;
}

void mct_uring_cancel(struct mct_uring *u, struct mct_io *io)
{
    if (!io->busy || io->canceled)
        return;
    io->canceled = true;
    io->next = u->canceled;
    u->canceled = io;
}

static void forget_cancel(struct mct_uring *u, const struct mct_io *io)
{
    struct mct_io **p = &u->canceled;

    while (*p != NULL && *p != io)
        p = &(*p)->next;
    if (*p != NULL)
        *p = io->next;
}

/* Submits and lets the kernel do what it has deferred, in one system call, when there is any. */
static void enter(struct mct_uring *u)
{
    if (!u->enabled)
        return;
    for (struct mct_io *io = u->canceled; io != NULL; io = io->next)
        queue_cancel(u, io);
    (void)drain_backlog(u);
    if (io_uring_sq_ready(&u->ring) != 0 && MCS_FAIL(uring_submit) == 0) {
        count_enter(u);
        (void)io_uring_submit_and_get_events(&u->ring);
    } else if ((mcs_load_relaxed(u->ring.sq.kflags) & /* with the kernel's store */
                (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0) {
        count_enter(u);
        (void)io_uring_get_events(&u->ring);
    }
}

static void disarm(struct mct_uring *u)
{
    uint64_t value;

    if (!u->armed)
        return;
    u->armed = false;
    (void)io_uring_cq_eventfd_toggle(&u->ring, false);
    if (read(u->event_fd, &value, sizeof(value)) < 0)
        return; /* nothing was told */
}

/* Only what waits now: what the callbacks queue completes in a later turn. */
static unsigned reap(struct mct_uring *u)
{
    unsigned n = 0;

    for (unsigned ready = io_uring_cq_ready(&u->ring); ready > 0; ready--) {
        struct io_uring_cqe *cqe;
        struct mct_io *io;
        uint32_t flags;
        int res;

        if (io_uring_peek_cqe(&u->ring, &cqe) != 0 || cqe == NULL)
            break;
        io = (struct mct_io *)(uintptr_t)cqe->user_data;
        res = cqe->res;
        flags = cqe->flags;
        io_uring_cq_advance(&u->ring, 1);
        if (io == NULL)
            continue; /* a cancel */
#ifdef MCS_FAILPOINTS
        if (io->forced != 0)
            res = io->forced;
        io->forced = 0;
#endif
        if ((flags & MCT_IO_MORE) == 0)
            u->inflight--;
        if (io->canceled && io->busy)
            forget_cancel(u, io);
        io->busy = false; /* of a zero-copy send only the notification is to come */
        io->done(io, res, flags);
        n++;
    }
    return n;
}

unsigned mct_uring_turn(struct mct_uring *u)
{
    disarm(u);
    enter(u);
    return reap(u);
}

bool mct_uring_arm(struct mct_uring *u)
{
    if (!u->enabled)
        return true;
    u->armed = true;
    (void)io_uring_cq_eventfd_toggle(&u->ring, true);
    mcs_fence_full(); /* with the kernel's queueing of work before it looks at the flag */
    (void)drain_backlog(u);
    /* Enter in any case: work queued before the flag was up is done here, later work is told. */
    count_enter(u);
    if (io_uring_sq_ready(&u->ring) != 0)
        (void)io_uring_submit_and_get_events(&u->ring);
    else
        (void)io_uring_get_events(&u->ring);
    return io_uring_cq_ready(&u->ring) == 0 && u->canceled == NULL;
}

void mct_uring_wait(struct mct_uring *u, int timeout_ms)
{
    struct pollfd p = {.fd = u->event_fd, .events = POLLIN};

    if (mct_uring_arm(u))
        (void)poll(&p, 1, timeout_ms);
}
