/* SPDX-License-Identifier: Apache-2.0 */
#include "proc.h"

#include "cleanup.h"
#include "say.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int proc_start(struct proc *p, const char *name, proc_main run, void *context)
{
    pid_t parent = getpid();
    int pair[2];

    p->pid = 0;
    p->name = name;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return say_error(-errno, "no socket pair for the %s process: %m", name);
    p->pid = fork();
    if (p->pid < 0) {
        int err = -errno;

        p->pid = 0;
        close(pair[0]);
        close(pair[1]);
        return say_error(err, "cannot start the %s process: %s", name, strerror(-err));
    }
    if (p->pid == 0) {
        cleanup_forget();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1); /* it died before the line above */
        close(pair[0]);
        _exit(run(pair[1], context) == 0 ? 0 : 1);
    }
    cleanup_watch(p->pid);
    close(pair[1]);
    p->fd = pair[0];
    return 0;
}

static int reap(struct proc *p)
{
    int status = 0;

    cleanup_unwatch(p->pid);
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
        ;
    p->pid = 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
        return say_error(-EIO,
                         "the %s process made a system call where it may only exit (the kernel's "
                         "log has its number); run again when nothing else uses the cores",
                         p->name);
    if (WIFSIGNALED(status))
        return say_error(-EIO, "the %s process was killed by signal %d", p->name, WTERMSIG(status));
    return WEXITSTATUS(status) == 0 ? 0 : -EIO;
}

int proc_stop(struct proc *p)
{
    if (p->pid == 0)
        return 0;
    shutdown(p->fd, SHUT_RDWR); /* reaches the child even where a sibling holds a copy */
    close(p->fd);
    return reap(p);
}

void proc_kill(struct proc *p)
{
    if (p->pid == 0)
        return;
    cleanup_unwatch(p->pid);
    kill(p->pid, SIGKILL);
    close(p->fd);
    while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    p->pid = 0;
}

int proc_send(int fd, const void *message, size_t size)
{
    ssize_t n = send(fd, message, size, MSG_NOSIGNAL);

    return n == (ssize_t)size ? 0 : n < 0 ? -errno : -EPROTO;
}

int proc_recv(int fd, void *message, size_t size, int timeout_ms)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    ssize_t n;
    int ready;

    do
        ready = poll(&wait, 1, timeout_ms);
    while (ready < 0 && errno == EINTR);
    if (ready < 0)
        return -errno;
    if (ready == 0)
        return -ETIMEDOUT;
    n = recv(fd, message, size, MSG_TRUNC);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
        return -EPIPE;
    if (n < 0)
        return -errno;
    return n == (ssize_t)size ? 0 : -EPROTO;
}

int proc_ask(struct proc *p, const void *request, size_t request_size, void *answer,
             size_t answer_size, int timeout_ms)
{
    int rc = proc_send(p->fd, request, request_size);

    if (rc == 0)
        rc = proc_recv(p->fd, answer, answer_size, timeout_ms);
    if (rc == -EPIPE) {
        close(p->fd);
        rc = reap(p); /* says what killed it; a failure of its own it has said itself */
        return rc != 0 ? rc : say_error(-EIO, "the %s process ended too early", p->name);
    }
    if (rc == -ETIMEDOUT)
        return say_error(rc, "the %s process did not answer within %d s", p->name,
                         timeout_ms / 1000);
    if (rc != 0)
        return say_error(rc, "talking to the %s process: %s", p->name, strerror(-rc));
    return 0;
}
