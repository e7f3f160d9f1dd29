/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's GPUs over the double of the driver: calls that are awaited, jobs that are awaited, another process's memory. */
#ifndef TESTS_CUDA_RIG_H
#define TESTS_CUDA_RIG_H

#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/atomic.h"
#include "tests/fake-cuda/kit.h"
#include "transports/cuda/cuda.h"

#define MIB (UINT64_C(1) << 20)
#define FOREVER_MS 60000 /* a test that waits so long has failed */

static struct fake_control *fake;
static uint32_t rig_lines[3]; /* of the log, by level; any thread */
static char rig_line[512];    /* the last one */
static pthread_mutex_t rig_line_lock = PTHREAD_MUTEX_INITIALIZER;

struct rig {
    struct mct_cuda *cuda;
    int control_fd;
    int64_t before[FAKE_OBJECTS]; /* what the process had */
};

static __attribute__((format(printf, 2, 3))) void rig_log(int level, const char *format, ...)
{
    va_list ap;

    mcs_fetch_add(&rig_lines[level], 1u);
    pthread_mutex_lock(&rig_line_lock);
    va_start(ap, format);
    vsnprintf(rig_line, sizeof(rig_line), format, ap);
    va_end(ap);
    pthread_mutex_unlock(&rig_line_lock);
}

static inline int64_t rig_count(enum fake_count what)
{
    return fake_cuda_count(fake, getpid(), what);
}

static inline void rig_drain(int fd)
{
    uint64_t n;

    while (read(fd, &n, sizeof(n)) < 0 && errno == EINTR)
        continue;
}

/* Waits for the descriptor; ms. */
static inline bool rig_wait(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int n;

    do {
        n = poll(&p, 1, ms);
    } while (n < 0 && errno == EINTR);
    if (n > 0)
        rig_drain(fd);
    return n > 0;
}

static inline void rig_create(struct rig *r, unsigned streams, unsigned stuck_ms)
{
    struct mct_cuda_env env = {
        .log = rig_log, .streams = streams, .spin_ns = 20000, .stuck_ms = stuck_ms};

    memset(r, 0, sizeof(*r));
    fake = fake_cuda_begin();
    cr_assert_not_null(fake);
    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        r->before[i] = rig_count(i);
    r->control_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    env.control_fd = r->control_fd;
    cr_assert_eq(mct_cuda_create(&env, &r->cuda), 0);
}

static inline void rig_done(struct mct_cuda_call *call)
{
    *(bool *)call->context = true;
}

/* Hands it over; *done when it has come back. */
static inline void rig_begin(struct rig *r, struct mct_cuda_call *call, bool *done)
{
    *done = false;
    call->done = rig_done;
    call->context = done;
    mct_cuda_begin(r->cuda, call);
}

static inline void rig_await(struct rig *r, const bool *done)
{
    while (!*done) {
        if (!mct_cuda_poll(r->cuda))
            cr_assert(rig_wait(r->control_fd, FOREVER_MS), "a call does not come back");
    }
}

static inline enum mcs_status rig_call(struct rig *r, struct mct_cuda_call *call)
{
    bool done;

    rig_begin(r, call, &done);
    rig_await(r, &done);
    return call->status;
}

static inline enum mcs_status rig_open(struct rig *r)
{
    struct mct_cuda_call call = {.kind = MCT_CUDA_OPEN};

    return rig_call(r, &call);
}

static inline struct mct_cuda_call rig_make(struct rig *r, unsigned device, uint64_t size)
{
    struct mct_cuda_call call = {.kind = MCT_CUDA_MAKE, .device = device, .size = size};

    cr_assert_eq(rig_call(r, &call), MCS_OK, "%s", call.text);
    cr_assert_not_null(call.memory);
    close(call.fd);
    return call;
}

static inline enum mcs_status rig_free(struct rig *r, struct mct_cuda_memory *m)
{
    struct mct_cuda_call call = {.kind = MCT_CUDA_FREE, .memory = m};

    return rig_call(r, &call);
}

static inline void rig_pin(struct rig *r, void *at, uint64_t size, bool pin)
{
    struct mct_cuda_call call = {
        .kind = pin ? MCT_CUDA_PIN : MCT_CUDA_UNPIN, .host = at, .size = size};

    cr_assert_eq(rig_call(r, &call), MCS_OK, "%s", call.text);
}

/* Nothing is left of what the process did not have before. */
static inline void rig_same(const struct rig *r, const char *when)
{
    static const char *const names[FAKE_OBJECTS] = {
        [FAKE_CONTEXTS] = "contexts",
        [FAKE_RETAINS] = "retains",
        [FAKE_HANDLES] = "handles",
        [FAKE_MAPPINGS] = "mappings",
        [FAKE_RESERVATIONS] = "reservations",
        [FAKE_ALLOCATIONS] = "allocations",
        [FAKE_OPENED] = "opened handles",
        [FAKE_HOST] = "host allocations",
        [FAKE_REGISTRATIONS] = "registrations",
        [FAKE_STREAMS] = "streams",
        [FAKE_EVENTS] = "events",
    };

    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        cr_assert_eq(rig_count(i), r->before[i], "%s: %s: %lld, not %lld", when, names[i],
                     (long long)rig_count(i), (long long)r->before[i]);
}

static inline void rig_destroy(struct rig *r)
{
    mct_cuda_destroy(r->cuda);
    close(r->control_fd);
    rig_same(r, "at the end");
}

/* ---- jobs ----------------------------------------------------------------------------------------- */

struct rig_port {
    struct mct_cuda_port *port;
    int fd;
};

static inline void rig_port_open(struct rig *r, struct rig_port *p)
{
    p->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert_eq(mct_cuda_port_open(r->cuda, p->fd, &p->port), 0);
}

static inline void rig_port_close(struct rig_port *p)
{
    mct_cuda_port_close(p->port);
    close(p->fd);
}

/* The next one that comes back; sleeps as an engine does. ms: NULL when none has come until then. */
static inline struct mct_cuda_job *rig_take_for(struct rig_port *p, int ms)
{
    struct mct_cuda_job *j;

    while ((j = mct_cuda_port_take(p->port)) == NULL)
        if (mct_cuda_port_arm(p->port) && !rig_wait(p->fd, ms))
            return mct_cuda_port_take(p->port);
    return j;
}

static inline struct mct_cuda_job *rig_take(struct rig_port *p)
{
    struct mct_cuda_job *j = rig_take_for(p, FOREVER_MS);

    cr_assert_not_null(j, "a job does not come back");
    return j;
}

static inline uint64_t rig_bytes(const struct mct_cuda_job *j)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < j->n; i++)
        n += j->pieces[i].length;
    return n;
}

static inline void rig_post(struct rig_port *p, struct mct_cuda_job *j)
{
    j->bytes = rig_bytes(j);
    mct_cuda_post(p->port, j);
}

/* One piece, awaited. */
static inline enum mcs_status rig_copy(struct rig_port *p, int to_device, uint64_t to,
                                       int from_device, uint64_t from, uint64_t length, bool pinned)
{
    struct mct_cuda_piece piece = {.to = to, .from = from, .length = length};
    struct mct_cuda_job j = {.to_device = to_device,
                             .from_device = from_device,
                             .pinned = pinned,
                             .n = 1,
                             .pieces = &piece};

    rig_post(p, &j);
    cr_assert_eq(rig_take(p), &j);
    return j.status;
}

static inline void rig_write(struct rig_port *p, int device, uint64_t to, const void *from,
                             uint64_t length)
{
    cr_assert_eq(rig_copy(p, device, to, MCT_CUDA_HOST, (uintptr_t)from, length, false), MCS_OK);
}

static inline void rig_read(struct rig_port *p, int device, void *to, uint64_t from,
                            uint64_t length)
{
    cr_assert_eq(rig_copy(p, MCT_CUDA_HOST, (uintptr_t)to, device, from, length, false), MCS_OK);
}

static inline void rig_pattern(uint8_t *at, uint64_t size, uint64_t seed)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

    for (uint64_t i = 0; i < size; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        at[i] = (uint8_t)x;
    }
}

/* ---- another process with memory of its own ------------------------------------------------------- */

enum other_op { OTHER_ALLOC, OTHER_FREE, OTHER_VMM, OTHER_SECOND };

struct other_ask {
    enum other_op op;
    int device;
    uint64_t size; /* of ALLOC, VMM */
    uint64_t address;
    uint8_t fill;
};

struct other_answer {
    CUresult e;
    uint64_t address, id;
    CUipcMemHandle ipc; /* ALLOC */
};

struct other {
    pid_t pid;
    int fd;
};

static inline bool other_send(int fd, const void *data, size_t size, int with)
{
    struct iovec io = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};

    if (with >= 0) {
        memset(&control, 0, sizeof(control));
        m.msg_control = &control;
        m.msg_controllen = sizeof(control.room);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &with, sizeof(int));
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)size;
}

static inline bool other_receive(int fd, void *data, size_t size, int *with)
{
    struct iovec io = {.iov_base = data, .iov_len = size};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = &io,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof(control)};
    ssize_t n;

    do {
        n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    *with = -1;
    if (n > 0 && m.msg_controllen >= CMSG_LEN(sizeof(int)))
        memcpy(with, CMSG_DATA(&control.header), sizeof(int));
    return n == (ssize_t)size;
}

static inline CUresult other_vmm(const struct mcs_cuda *d, const struct other_ask *a, int *fd)
{
    CUmemAllocationProp p;
    CUmemAccessDesc access;
    CUmemGenericAllocationHandle h;
    CUdeviceptr at = 0;
    CUresult e;

    memset(&p, 0, sizeof(p));
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = a->device;
    access.location = p.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    e = d->mem_create(&h, a->size, &p, 0);
    if (e == CUDA_SUCCESS)
        e = d->mem_reserve(&at, a->size, 0, 0, 0);
    if (e == CUDA_SUCCESS)
        e = d->mem_map(at, a->size, 0, h, 0);
    if (e == CUDA_SUCCESS)
        e = d->mem_set_access(at, a->size, &access, 1);
    if (e == CUDA_SUCCESS)
        e = d->fill8(at, a->fill, a->size, NULL);
    if (e == CUDA_SUCCESS)
        e = d->stream_synchronize(NULL);
    if (e == CUDA_SUCCESS)
        e = d->mem_export(fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return e;
}

static inline void other_serve(const struct mcs_cuda *d, const struct other_ask *a,
                               struct other_answer *w, int *fd)
{
    CUdeviceptr at = 0;

    switch (a->op) {
    case OTHER_ALLOC:
        w->e = d->mem_alloc(&at, a->size);
        if (w->e == CUDA_SUCCESS)
            w->e = d->fill8(at, a->fill, a->size, NULL);
        if (w->e == CUDA_SUCCESS)
            w->e = d->stream_synchronize(NULL);
        if (w->e == CUDA_SUCCESS)
            w->e = d->ipc_get(&w->ipc, at);
        if (w->e == CUDA_SUCCESS)
            w->e = d->pointer_attribute(&w->id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
        w->address = at;
        break;
    case OTHER_FREE:
        w->e = d->mem_free(a->address);
        break;
    default:
        w->e = other_vmm(d, a, fd);
        break;
    }
}

/* The other process: this program again. */
static __attribute__((constructor)) void other_main(void)
{
    const char *text = getenv("CUDA_RIG_OTHER");
    const struct mcs_cuda *d;
    CUcontext contexts[2] = {NULL, NULL};
    struct other_ask ask;
    char why[256];
    int fd, with;

    if (text == NULL)
        return;
    fd = atoi(text);
    if (mcs_cuda_load(&d, why, sizeof(why)) != 0) {
        fprintf(stderr, "the other process: %s\n", why);
        _exit(1);
    }
    while (other_receive(fd, &ask, sizeof(ask), &with)) {
        struct other_answer answer;

        memset(&answer, 0, sizeof(answer));
        with = -1;
        answer.e = CUDA_SUCCESS;
        if (contexts[ask.device] == NULL)
            answer.e = d->primary_retain(&contexts[ask.device], ask.device);
        if (answer.e == CUDA_SUCCESS)
            answer.e = mcs_cuda_enter(d, contexts[ask.device]);
        if (answer.e == CUDA_SUCCESS) {
            other_serve(d, &ask, &answer, &with);
            mcs_cuda_leave(d);
        }
        if (!other_send(fd, &answer, sizeof(answer), with))
            break;
        if (with >= 0)
            close(with);
    }
    _exit(0);
}

static inline void other_start(struct other *o)
{
    extern char **environ;
    char *argv[] = {"other", NULL}, number[16];
    int fds[2];

    fake = fake_cuda_begin();
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
    cr_assert_eq(fcntl(fds[0], F_SETFD, FD_CLOEXEC), 0);
    snprintf(number, sizeof(number), "%d", fds[1]);
    setenv("CUDA_RIG_OTHER", number, 1);
    cr_assert_eq(posix_spawn(&o->pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    unsetenv("CUDA_RIG_OTHER");
    close(fds[1]);
    o->fd = fds[0];
}

static inline struct other_answer other_ask(struct other *o, struct other_ask ask, int *fd)
{
    struct other_answer answer;
    int with;

    memset(&answer, 0, sizeof(answer));
    cr_assert(other_send(o->fd, &ask, sizeof(ask), -1));
    cr_assert(other_receive(o->fd, &answer, sizeof(answer), &with), "the other process has ended");
    cr_assert_eq(answer.e, CUDA_SUCCESS, "the other process: error %d", (int)answer.e);
    if (fd != NULL)
        *fd = with;
    else if (with >= 0)
        close(with);
    return answer;
}

static inline void other_end(struct other *o)
{
    int status = 0;

    close(o->fd);
    cr_assert_eq(waitpid(o->pid, &status, 0), o->pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process: status %x",
              (unsigned)status);
}

#endif
