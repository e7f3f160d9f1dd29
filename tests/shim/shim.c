/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into agent or client, makes chosen calls of the C library short, interrupted or failing.  What
 * to do lies in a page that the test shares (MCSHM_SHIM names its file; tests/scenario/shim.py is
 * the other side).  Calls made by the C library itself and those of io_uring are not seen here:
 * for the latter there are failpoints (uring_*).
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/atomic.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* asm-generic/mman-common.h since 5.14 */
#endif

enum action { OFF, FAILS, INTERRUPTED, SHORT };

struct page {
    uint32_t action;
    uint32_t at;    /* the call that it happens to, counted from 1 since the arming */
    uint32_t times; /* and so many from there on; 0: all */
    uint32_t calls; /* since the arming, of those that this can happen to */
    uint64_t acted;
    uint32_t per_million; /* not 0: by chance instead of `at` */
    uint32_t seed;
    char last[32];  /* whom it happened to */
    uint64_t which; /* bits of enum call; 0: all */
    uint32_t error; /* instead of the call's own */
};

#define CALLS(X)                                                                                   \
    X(read)                                                                                        \
    X(pread)                                                                                       \
    X(write)                                                                                       \
    X(recv)                                                                                        \
    X(recvmsg)                                                                                     \
    X(send)                                                                                        \
    X(sendmsg)                                                                                     \
    X(poll)                                                                                        \
    X(epoll_wait)                                                                                  \
    X(epoll_ctl)                                                                                   \
    X(epoll_create1)                                                                               \
    X(accept4)                                                                                     \
    X(connect)                                                                                     \
    X(socket)                                                                                      \
    X(bind)                                                                                        \
    X(listen)                                                                                      \
    X(dup)                                                                                         \
    X(open)                                                                                        \
    X(fcntl)                                                                                       \
    X(memfd_create)                                                                                \
    X(eventfd)                                                                                     \
    X(signalfd)                                                                                    \
    X(ftruncate)                                                                                   \
    X(fchmod)                                                                                      \
    X(fallocate)                                                                                   \
    X(mmap)                                                                                        \
    X(madvise)

enum call {
#define ENUM(name) CALL_##name,
    CALLS(ENUM)
#undef ENUM
};

static const char *const names[] = {
#define NAME(name) #name,
    CALLS(NAME)
#undef NAME
};

static struct page *page;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("MCSHM_SHIM");
    long fd = path == NULL ? -1 : syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    long mem;

    if (fd < 0)
        return;
    mem = syscall(SYS_mmap, NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (mem > 0)
        page = (struct page *)mem;
}

/* Does it happen to this call?  The same seed gives the same pattern for the same order of calls. */
static bool happens(enum call call, enum action action)
{
    uint32_t n, hash;

    if (page == NULL || mcs_load_acquire(&page->action) != (uint32_t)action ||
        (page->which != 0 && (page->which >> call & 1) == 0))
        return false;
    n = mcs_fetch_add(&page->calls, 1u) + 1;
    if (page->per_million != 0) {
        hash = (n + page->seed * 2654435761u) * 2246822519u;
        hash = (hash ^ hash >> 15) * 3266489917u;
        if ((hash ^ hash >> 16) % 1000000 >= page->per_million)
            return false;
    } else if (n < page->at || (page->times != 0 && n - page->at >= page->times)) {
        return false;
    }
    mcs_fetch_add(&page->acted, UINT64_C(1));
    strncpy(page->last, names[call], sizeof(page->last) - 1);
    return true;
}

/* True: the call fails, errno says how. `may`: it can be interrupted. */
static bool fails(enum call call, int error, bool may)
{
    if (may && happens(call, INTERRUPTED)) {
        errno = EINTR;
        return true;
    }
    if (error != 0 && happens(call, FAILS)) {
        errno = page->error != 0 ? (int)page->error : error;
        return true;
    }
    return false;
}

enum kind { OTHER, REGULAR, STREAM };

/* What can be short at all: files, byte streams. Events and packets come whole. */
static enum kind kind_of(int fd)
{
    int type = 0, saved = errno;
    socklen_t n = sizeof(type);
    enum kind kind = OTHER;
    struct stat st;

    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        kind = REGULAR;
    else if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_STREAM)
        kind = STREAM;
    errno = saved;
    return kind;
}

static size_t shorter(enum call call, int fd, size_t n)
{
    return n > 1 && page != NULL && page->action == SHORT && kind_of(fd) != OTHER &&
                   happens(call, SHORT)
               ? (n + 1) / 2
               : n;
}

#define NEXT(name, result, ...)                                                                    \
    static result (*next)(__VA_ARGS__);                                                            \
    if (next == NULL)                                                                              \
    next = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

ssize_t read(int fd, void *buffer, size_t n)
{
    NEXT(read, ssize_t, int, void *, size_t);
    return fails(CALL_read, kind_of(fd) == REGULAR ? EIO : 0, true)
               ? -1
               : next(fd, buffer, shorter(CALL_read, fd, n));
}

ssize_t __read_chk(int fd, void *buffer, size_t n, size_t size);
ssize_t __read_chk(int fd, void *buffer, size_t n, size_t size)
{
    return n > size ? (abort(), -1) : read(fd, buffer, n);
}

ssize_t pread(int fd, void *buffer, size_t n, off_t at)
{
    NEXT(pread, ssize_t, int, void *, size_t, off_t);
    return fails(CALL_pread, EIO, true) ? -1 : next(fd, buffer, shorter(CALL_pread, fd, n), at);
}

ssize_t __pread_chk(int fd, void *buffer, size_t n, off_t at, size_t size);
ssize_t __pread_chk(int fd, void *buffer, size_t n, off_t at, size_t size)
{
    return n > size ? (abort(), -1) : pread(fd, buffer, n, at);
}

ssize_t write(int fd, const void *buffer, size_t n)
{
    NEXT(write, ssize_t, int, const void *, size_t);
    return fails(CALL_write, kind_of(fd) == REGULAR ? ENOSPC : 0, true)
               ? -1
               : next(fd, buffer, shorter(CALL_write, fd, n));
}

ssize_t recv(int fd, void *buffer, size_t n, int flags)
{
    NEXT(recv, ssize_t, int, void *, size_t, int);
    return fails(CALL_recv, ENOMEM, true) ? -1 : next(fd, buffer, shorter(CALL_recv, fd, n), flags);
}

ssize_t __recv_chk(int fd, void *buffer, size_t n, size_t size, int flags);
ssize_t __recv_chk(int fd, void *buffer, size_t n, size_t size, int flags)
{
    return n > size ? (abort(), -1) : recv(fd, buffer, n, flags);
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
    NEXT(recvmsg, ssize_t, int, struct msghdr *, int);
    return fails(CALL_recvmsg, ENOMEM, true) ? -1 : next(fd, m, flags);
}

ssize_t send(int fd, const void *buffer, size_t n, int flags)
{
    NEXT(send, ssize_t, int, const void *, size_t, int);
    return fails(CALL_send, ENOBUFS, true) ? -1
                                           : next(fd, buffer, shorter(CALL_send, fd, n), flags);
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    NEXT(sendmsg, ssize_t, int, const struct msghdr *, int);
    return fails(CALL_sendmsg, ENOMEM, true) ? -1 : next(fd, m, flags);
}

int poll(struct pollfd *fds, nfds_t n, int timeout)
{
    NEXT(poll, int, struct pollfd *, nfds_t, int);
    return fails(CALL_poll, ENOMEM, timeout != 0) ? -1 : next(fds, n, timeout);
}

int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size);
int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size)
{
    return n > size / sizeof(*fds) ? (abort(), -1) : poll(fds, n, timeout);
}

int epoll_wait(int fd, struct epoll_event *events, int n, int timeout)
{
    NEXT(epoll_wait, int, int, struct epoll_event *, int, int);
    return fails(CALL_epoll_wait, 0, timeout != 0) ? -1 : next(fd, events, n, timeout);
}

int epoll_ctl(int fd, int op, int other, struct epoll_event *event)
{
    NEXT(epoll_ctl, int, int, int, int, struct epoll_event *);
    return fails(CALL_epoll_ctl, op == EPOLL_CTL_ADD ? ENOMEM : 0, false)
               ? -1
               : next(fd, op, other, event);
}

int epoll_create1(int flags)
{
    NEXT(epoll_create1, int, int);
    return fails(CALL_epoll_create1, EMFILE, false) ? -1 : next(flags);
}

int accept4(int fd, struct sockaddr *from, socklen_t *n, int flags)
{
    NEXT(accept4, int, int, struct sockaddr *, socklen_t *, int);
    return fails(CALL_accept4, EMFILE, true) ? -1 : next(fd, from, n, flags);
}

int connect(int fd, const struct sockaddr *to, socklen_t n)
{
    NEXT(connect, int, int, const struct sockaddr *, socklen_t);
    return fails(CALL_connect, ENOMEM, true) ? -1 : next(fd, to, n);
}

int socket(int family, int type, int protocol)
{
    NEXT(socket, int, int, int, int);
    return fails(CALL_socket, EMFILE, false) ? -1 : next(family, type, protocol);
}

int bind(int fd, const struct sockaddr *to, socklen_t n)
{
    NEXT(bind, int, int, const struct sockaddr *, socklen_t);
    return fails(CALL_bind, ENOMEM, false) ? -1 : next(fd, to, n);
}

int listen(int fd, int n)
{
    NEXT(listen, int, int, int);
    return fails(CALL_listen, EADDRINUSE, false) ? -1 : next(fd, n);
}

int dup(int fd)
{
    NEXT(dup, int, int);
    return fails(CALL_dup, EMFILE, false) ? -1 : next(fd);
}

/* All names of open() lead here. */
static int open_any(int folder, const char *path, int flags, mode_t mode)
{
    return fails(CALL_open, EMFILE, false) ? -1
                                           : (int)syscall(SYS_openat, folder, path, flags, mode);
}

#define MODE(flags, mode)                                                                          \
    do {                                                                                           \
        va_list ap_;                                                                               \
        va_start(ap_, flags);                                                                      \
        (mode) = ((flags) & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(ap_, mode_t) : 0;                 \
        va_end(ap_);                                                                               \
    } while (0)

int open(const char *path, int flags, ...)
{
    mode_t mode;

    MODE(flags, mode);
    return open_any(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    mode_t mode;

    MODE(flags, mode);
    return open_any(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    mode_t mode;

    MODE(flags, mode);
    return open_any(folder, path, flags, mode);
}

int __open_2(const char *path, int flags);
int __open_2(const char *path, int flags)
{
    return open_any(AT_FDCWD, path, flags, 0);
}

int __open64_2(const char *path, int flags);
int __open64_2(const char *path, int flags)
{
    return open_any(AT_FDCWD, path, flags, 0);
}

static int fcntl_any(int fd, int command, void *arg)
{
    int error = command == F_ADD_SEALS                             ? EBUSY
                : command == F_DUPFD_CLOEXEC || command == F_DUPFD ? EMFILE
                                                                   : 0;

    return fails(CALL_fcntl, error, false) ? -1 : (int)syscall(SYS_fcntl, fd, command, arg);
}

int fcntl(int fd, int command, ...)
{
    va_list ap;
    void *arg;

    va_start(ap, command);
    arg = va_arg(ap, void *);
    va_end(ap);
    return fcntl_any(fd, command, arg);
}

int fcntl64(int fd, int command, ...)
{
    va_list ap;
    void *arg;

    va_start(ap, command);
    arg = va_arg(ap, void *);
    va_end(ap);
    return fcntl_any(fd, command, arg);
}

int memfd_create(const char *name, unsigned flags)
{
    NEXT(memfd_create, int, const char *, unsigned);
    return fails(CALL_memfd_create, EMFILE, false) ? -1 : next(name, flags);
}

int eventfd(unsigned value, int flags)
{
    NEXT(eventfd, int, unsigned, int);
    return fails(CALL_eventfd, EMFILE, false) ? -1 : next(value, flags);
}

int signalfd(int fd, const sigset_t *set, int flags)
{
    NEXT(signalfd, int, int, const sigset_t *, int);
    return fails(CALL_signalfd, EMFILE, false) ? -1 : next(fd, set, flags);
}

int ftruncate(int fd, off_t size)
{
    NEXT(ftruncate, int, int, off_t);
    return fails(CALL_ftruncate, ENOSPC, true) ? -1 : next(fd, size);
}

int fchmod(int fd, mode_t mode)
{
    NEXT(fchmod, int, int, mode_t);
    return fails(CALL_fchmod, EPERM, false) ? -1 : next(fd, mode);
}

int fallocate(int fd, int mode, off_t at, off_t size)
{
    NEXT(fallocate, int, int, int, off_t, off_t);
    return fails(CALL_fallocate, ENOSPC, true) ? -1 : next(fd, mode, at, size);
}

void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
    NEXT(mmap, void *, void *, size_t, int, int, int, off_t);
    return fails(CALL_mmap, ENOMEM, false) ? MAP_FAILED : next(at, size, prot, flags, fd, offset);
}

int madvise(void *at, size_t size, int advice)
{
    NEXT(madvise, int, void *, size_t, int);
    return fails(CALL_madvise, advice == MADV_POPULATE_WRITE ? EFAULT : 0,
                 advice == MADV_POPULATE_WRITE)
               ? -1
               : next(at, size, advice);
}
