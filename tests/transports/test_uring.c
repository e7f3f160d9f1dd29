/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's io_uring: order, cancellation, sleeping, and what happens when queues are full. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transports/uring.h"

struct op {
    struct mct_io io;
    int res, calls;
    uint32_t flags;
    struct mct_uring *again; /* receive once more from inside done() */
    int fd;
    char byte[2];
};

static void op_done(struct mct_io *io, int res, uint32_t flags)
{
    struct op *op = (struct op *)io;

    op->res = res;
    op->flags = flags;
    op->calls++;
    if (op->again != NULL && op->calls == 1)
        mct_uring_recv(op->again, io, op->fd, &op->byte[1], 1, 0);
}

static struct mct_uring *create(unsigned entries)
{
    struct mct_uring *u = NULL;
    char error[256] = "";
    int res = mct_uring_create(entries, &u, error, sizeof(error));

    cr_assert_eq(res, 0, "%s", error);
    return u;
}

static struct mct_uring *ready(unsigned entries)
{
    struct mct_uring *u = create(entries);

    cr_assert_eq(mct_uring_enable(u), 0);
    return u;
}

static void pair(int fds[2])
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
}

static void drain(struct mct_uring *u)
{
    while (mct_uring_inflight(u) != 0)
        if (mct_uring_turn(u) == 0)
            mct_uring_wait(u, 1000);
}

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

Test(uring, sends_and_receives)
{
    struct mct_uring *u = ready(8);
    struct op in = {.io.done = op_done}, out = {.io.done = op_done};
    struct iovec iov[2] = {{(void *)(uintptr_t) "abc", 3}, {(void *)(uintptr_t) "defg", 4}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    char buffer[8] = "";
    int fds[2];

    pair(fds);
    mct_uring_recv(u, &in.io, fds[0], buffer, 7, MSG_WAITALL);
    mct_uring_sendmsg(u, &out.io, fds[1], &msg, MSG_WAITALL);
    cr_assert_eq(in.calls + out.calls, 0, "nothing is told before a turn");
    drain(u);
    cr_assert_eq(in.res, 7);
    cr_assert_eq(out.res, 7);
    cr_assert_str_eq(buffer, "abcdefg");
    close(fds[0]);
    close(fds[1]);
    mct_uring_destroy(u);
}

Test(uring, operations_queued_before_enabling_keep_their_order)
{
    struct mct_uring *u = create(4);
    struct op ops[200];
    char bytes[200];
    int fds[2];

    pair(fds);
    for (int i = 0; i < 200; i++) {
        ops[i] = (struct op){.io.done = op_done};
        mct_uring_recv(u, &ops[i].io, fds[0], &bytes[i], 1, 0);
    }
    cr_assert_eq(mct_uring_turn(u), 0u);
    cr_assert_eq(mct_uring_inflight(u), 200u);
    cr_assert_eq(mct_uring_enable(u), 0);
    cr_assert_eq(mct_uring_enable(u), 0, "twice does no harm");
    for (int i = 0; i < 200; i++)
        cr_assert_eq(write(fds[1], &(char){(char)i}, 1), 1);
    drain(u);
    for (int i = 0; i < 200; i++)
        cr_assert_eq(bytes[i], (char)i, "byte %d", i);
    close(fds[0]);
    close(fds[1]);
    mct_uring_destroy(u);
}

Test(uring, more_operations_than_entries)
{
    struct mct_uring *u = ready(4);
    struct op ops[150];
    char bytes[150];
    int fds[2];

    pair(fds);
    for (int i = 0; i < 150; i++) {
        ops[i] = (struct op){.io.done = op_done};
        mct_uring_recv(u, &ops[i].io, fds[0], &bytes[i], 1, 0);
    }
    /* more than the completion queue holds, too: the kernel keeps the rest */
    for (int i = 0; i < 150; i++)
        cr_assert_eq(write(fds[1], &(char){(char)i}, 1), 1);
    drain(u);
    for (int i = 0; i < 150; i++)
        cr_assert(ops[i].calls == 1 && ops[i].res == 1, "operation %d", i);
    for (int i = 0; i < 150; i++) /* which of them gets which byte is the kernel's choice */
        cr_assert_not_null(memchr(bytes, i, sizeof(bytes)), "byte %d", i);
    close(fds[0]);
    close(fds[1]);
    mct_uring_destroy(u);
}

Test(uring, cancel_ends_what_waits)
{
    struct mct_uring *u = ready(8);
    struct op waits = {.io.done = op_done}, part = {.io.done = op_done};
    char buffer[8];
    int a[2], b[2];

    pair(a);
    pair(b);
    mct_uring_recv(u, &waits.io, a[0], buffer, 1, 0);
    mct_uring_recv(u, &part.io, b[0], buffer, 8, MSG_WAITALL);
    cr_assert_eq(write(b[1], "123", 3), 3);
    mct_uring_turn(u);
    mct_uring_turn(u);
    cr_assert_eq(waits.calls + part.calls, 0);
    mct_uring_cancel(u, &waits.io);
    mct_uring_cancel(u, &part.io);
    drain(u);
    cr_assert_eq(waits.res, -ECANCELED);
    cr_assert_eq(part.res, 3, "what it had come to is told: %d", part.res);
    mct_uring_cancel(u, &waits.io); /* what is over stays as it is */
    cr_assert_eq(mct_uring_turn(u), 0u);
    cr_assert(mct_uring_arm(u), "and keeps nobody awake");
    cr_assert_eq(waits.calls + part.calls, 2);
    for (int i = 0; i < 2; i++) {
        close(a[i]);
        close(b[i]);
    }
    mct_uring_destroy(u);
}

/* Queued in the same turn, with a part of the bytes there: the kernel is about to try once more. */
Test(uring, cancel_reaches_what_was_just_submitted)
{
    struct mct_uring *u = ready(8);
    int fds[2];

    pair(fds);
    for (int i = 0; i < 100; i++) {
        struct op op = {.io.done = op_done};
        char buffer[8];

        if (i % 2 == 0)
            cr_assert_eq(write(fds[1], "123", 3), 3);
        mct_uring_recv(u, &op.io, fds[0], buffer, 8, MSG_WAITALL);
        mct_uring_cancel(u, &op.io);
        for (int turns = 0; op.calls == 0; turns++) {
            cr_assert_lt(turns, 10, "round %d: it waits for bytes", i);
            mct_uring_turn(u);
        }
        cr_assert(op.res == -ECANCELED || op.res == 3, "%d", op.res);
    }
    close(fds[0]);
    close(fds[1]);
    mct_uring_destroy(u);
}

Test(uring, an_operation_may_be_used_again_in_its_callback)
{
    struct mct_uring *u = ready(8);
    struct op op = {.io.done = op_done, .again = u};
    int fds[2];

    pair(fds);
    op.fd = fds[0];
    mct_uring_recv(u, &op.io, fds[0], &op.byte[0], 1, 0);
    /* a cancel queued before the second use does not reach it */
    cr_assert_eq(write(fds[1], "x", 1), 1);
    while (op.calls == 0)
        mct_uring_turn(u);
    cr_assert_eq(write(fds[1], "y", 1), 1);
    drain(u);
    cr_assert_eq(op.calls, 2);
    cr_assert_eq(op.byte[0], 'x');
    cr_assert_eq(op.byte[1], 'y');
    close(fds[0]);
    close(fds[1]);
    mct_uring_destroy(u);
}

Test(uring, idle_turns_make_no_system_call)
{
    struct mct_uring *u = ready(8);
    struct op op = {.io.done = op_done};
    uint64_t enters;
    int fds[2];

    pair(fds);
    mct_uring_recv(u, &op.io, fds[0], op.byte, 1, 0);
    mct_uring_turn(u);
    enters = mct_uring_enters(u);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(mct_uring_turn(u), 0u);
    cr_assert_eq(mct_uring_enters(u), enters);
    cr_assert_eq(write(fds[1], "x", 1), 1);
    drain(u);
    cr_assert_eq(op.res, 1);
    close(fds[0]);
    close(fds[1]);
    mct_uring_destroy(u);
}

Test(uring, the_event_descriptor_tells_only_while_armed)
{
    struct mct_uring *u = ready(8);
    struct op op = {.io.done = op_done};
    int fds[2];

    pair(fds);
    mct_uring_recv(u, &op.io, fds[0], op.byte, 1, 0);
    cr_assert(mct_uring_arm(u), "nothing waits: sleep");
    cr_assert(!readable(mct_uring_event_fd(u)));
    cr_assert_eq(write(fds[1], "x", 1), 1);
    cr_assert(readable(mct_uring_event_fd(u)));
    cr_assert_eq(mct_uring_turn(u), 1u);
    cr_assert(!readable(mct_uring_event_fd(u)), "a turn drains it");
    /* awake: it stays silent, and arming says that something waits */
    mct_uring_recv(u, &op.io, fds[0], op.byte, 1, 0);
    mct_uring_turn(u);
    cr_assert_eq(write(fds[1], "x", 1), 1);
    cr_assert(!readable(mct_uring_event_fd(u)));
    cr_assert(!mct_uring_arm(u), "a completion waits: no sleep");
    cr_assert_eq(mct_uring_turn(u), 1u);
    close(fds[0]);
    close(fds[1]);
    mct_uring_destroy(u);
}

Test(uring, zero_copy_tells_when_memory_is_free)
{
    struct mct_uring *u = ready(8);
    struct op op = {.io.done = op_done};
    struct iovec iov = {(void *)(uintptr_t) "abcd", 4};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    int fds[2];

    if ((mct_uring_features(u) & MCT_URING_SEND_ZC) == 0)
        cr_skip_test("this kernel has no zero-copy sendmsg");
    pair(fds); /* sockets that cannot: an error in one call or two, and never a lost one */
    mct_uring_sendmsg_zc(u, &op.io, fds[0], &msg, MSG_WAITALL);
    drain(u);
    cr_assert_geq(op.calls, 1);
    cr_assert_eq(op.flags & MCT_IO_MORE, 0u);
    close(fds[0]);
    close(fds[1]);
    mct_uring_destroy(u);
}

Test(uring, two_hundred_in_a_row)
{
    for (int i = 0; i < 200; i++) {
        struct mct_uring *u = ready(64);

        mct_uring_turn(u);
        mct_uring_destroy(u);
    }
}

Test(uring, no_descriptors_are_an_error_with_a_remedy)
{
    struct rlimit old, none;
    struct mct_uring *u = NULL;
    char error[256] = "";
    int res;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = old;
    none.rlim_cur = 3;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    res = mct_uring_create(8, &u, error, sizeof(error));
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    cr_assert_eq(res, -EMFILE, "%d", res);
    cr_assert_null(u);
    cr_assert_not_null(strstr(error, "LimitNOFILE"), "%s", error);
}

static void *use_it(void *context)
{
    struct mct_uring *u = context;
    struct op op = {.io.done = op_done};
    int fds[2];

    pair(fds);
    if (mct_uring_enable(u) == 0) {
        mct_uring_recv(u, &op.io, fds[0], op.byte, 1, 0);
        mct_uring_turn(u);
        if (write(fds[1], "x", 1) == 1)
            drain(u);
    }
    close(fds[0]);
    close(fds[1]);
    return (void *)(uintptr_t)(op.res == 1);
}

Test(uring, created_by_one_thread_and_used_by_another)
{
    struct mct_uring *u = create(8);
    pthread_t thread;
    void *res = NULL;

    cr_assert_eq(pthread_create(&thread, NULL, use_it, u), 0);
    cr_assert_eq(pthread_join(thread, &res), 0);
    cr_assert_not_null(res);
    mct_uring_destroy(u);
}

/* As container runtimes do it. In a process of its own, since it cannot be undone. */
static void refused_with(int error_number, const char *remedy)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error_number),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = filter};
    int status;
    pid_t child = fork();

    cr_assert(child >= 0);
    if (child == 0) {
        struct mct_uring *u = NULL;
        char error[256] = "";
        int res;

        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
            _exit(3);
        res = mct_uring_create(8, &u, error, sizeof(error));
        _exit(res == -error_number && u == NULL && strstr(error, remedy) != NULL ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d", status);
}

Test(uring, a_container_that_forbids_it_is_an_error_with_a_remedy)
{
    refused_with(EPERM, "io_uring_disabled");
    refused_with(ENOSYS, "seccomp");
    refused_with(ENOMEM, "memory limit");
}
