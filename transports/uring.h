/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine's io_uring: one for all transports that need one.  Owned and used by the
 * engine's thread alone.  What the kernel offers is probed; see mct_uring_features().
 *
 * Nothing here waits but mct_uring_wait().  Operations queued are submitted in the next turn,
 * and everything that completed is told from inside mct_uring_turn(), never from the call
 * that queued it.
 */
#ifndef MCT_URING_H
#define MCT_URING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

struct mct_uring;

/* One operation under way. Embedded in whatever it belongs to; must live until done() was called
 * without MCT_IO_MORE. From inside that call it may be used again. */
struct mct_io {
    /* res: as the kernel says it. flags: MCT_IO_*. A zero-copy send calls done() twice when the
     * first call has MCT_IO_MORE: the second one (MCT_IO_NOTIF) says that the memory is no longer
     * read. */
    void (*done)(struct mct_io *io, int res, uint32_t flags);
    /* the uring's; zero at first */
    struct mct_io *next;
    bool busy, canceled;
#ifdef MCS_FAILPOINTS
    int forced; /* what a test wants for res; 0: what the kernel says */
#endif
};

#define MCT_IO_MORE 0x2u  /* done() will be called again */
#define MCT_IO_NOTIF 0x8u /* the second call of a zero-copy send */
/* res of a MCT_IO_NOTIF call: the kernel copied after all. Told with MCT_URING_ZC_USAGE only. */
#define MCT_IO_COPIED 0x80000000u

#define MCT_URING_SEND_ZC 0x1u  /* zero-copy sends */
#define MCT_URING_ZC_USAGE 0x2u /* and whether they were any (MCT_IO_COPIED) */
#define MCT_URING_DEFER 0x4u    /* completions are worked on in turn() only */
#define MCT_URING_POLL_FIRST 0x8u

/* entries: submissions a turn before an extra system call. On failure, a negative errno and one
 * sentence with the remedy in error. Any thread may create; see mct_uring_enable(). */
int mct_uring_create(unsigned entries, struct mct_uring **out, char *error, size_t error_size);
/* Everything must have completed. NULL is fine. */
void mct_uring_destroy(struct mct_uring *u);
/* The engine's thread, before its first turn: a ring with one issuer belongs to who enables it.
 * Operations may be queued before. */
int mct_uring_enable(struct mct_uring *u);
/* MCT_URING_*; complete after mct_uring_enable(). */
uint32_t mct_uring_features(const struct mct_uring *u);

/* Each queues one operation; it is submitted in the next turn. Never fails. Sockets must not have
 * O_NONBLOCK: io_uring then waits for readiness itself, else it would give -EAGAIN back. */
void mct_uring_recv(struct mct_uring *u, struct mct_io *io, int fd, void *buffer, size_t size,
                    int flags);
/* A receive that waits for the socket to be readable (SO_RCVLOWAT) before it tries: for who has just
 * emptied it. Where the kernel has no such thing it tries at once. */
void mct_uring_recv_ready(struct mct_uring *u, struct mct_io *io, int fd, void *buffer, size_t size,
                          int flags);
/* msg and its iovecs must live until done(); with zero copy until it was called the last time. */
void mct_uring_sendmsg(struct mct_uring *u, struct mct_io *io, int fd, const struct msghdr *msg,
                       int flags);
void mct_uring_sendmsg_zc(struct mct_uring *u, struct mct_io *io, int fd, const struct msghdr *msg,
                          int flags);

/* What is read from a file, or written to it. */
struct mct_uring_span {
    int fd;
    int file; /* its registered place, mct_uring_files(); -1: none */
    void *buffer;
    size_t size;
    uint64_t offset;
    int memory; /* the registered memory that buffer lies in, mct_uring_memory(); -1: none */
};
void mct_uring_read(struct mct_uring *u, struct mct_io *io, const struct mct_uring_span *s);
void mct_uring_write(struct mct_uring *u, struct mct_io *io, const struct mct_uring_span *s);
/* fdatasync(): data of all writes to it that have completed. */
void mct_uring_datasync(struct mct_uring *u, struct mct_io *io, int fd);
/* Registers memory (once, while nothing is under way), places for files (once), a file at a place (fd -1: takes it out). After
 * mct_uring_enable(). 0 or a negative errno: everything goes without, too. */
int mct_uring_memory(struct mct_uring *u, const struct iovec *v, unsigned n);
int mct_uring_files(struct mct_uring *u, unsigned places);
int mct_uring_file(struct mct_uring *u, unsigned place, int fd);

/* Cancels an operation that is under way; its own done() says soon how it ended: -ECANCELED, or what
 * it had come to. Of no effect on one that is not under way. */
void mct_uring_cancel(struct mct_uring *u, struct mct_io *io);

/* Submits what is queued and calls done() of what completed. Returns the number of completions. No
 * system call when there is nothing to submit and nothing to reap. Not from inside done(). */
unsigned mct_uring_turn(struct mct_uring *u);

/* An eventfd for epoll (level-triggered). It tells of completions only while armed: an engine that
 * is awake shall not pay for it. */
int mct_uring_event_fd(const struct mct_uring *u);
/* Before the thread sleeps: submits what is queued and arms the event descriptor until the next
 * mct_uring_turn(), which also drains it. false: completions wait already; do not sleep, turn. */
bool mct_uring_arm(struct mct_uring *u);
/* Sleeps until a completion waits or the time is over. For threads that have nothing else to do. */
void mct_uring_wait(struct mct_uring *u, int timeout_ms);

/* Operations queued or under way. */
unsigned mct_uring_inflight(const struct mct_uring *u);
/* System calls made; any thread. */
uint64_t mct_uring_enters(const struct mct_uring *u);

#endif
