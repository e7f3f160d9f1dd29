/* SPDX-License-Identifier: Apache-2.0 */
#include "child.h"

#include "cleanup.h"
#include "clock.h"
#include "netns.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

bool child_present(const char *name)
{
    const char *path = getenv("PATH");
    char file[4096];

    while (path != NULL && *path != '\0') {
        size_t n = strcspn(path, ":");

        snprintf(file, sizeof(file), "%.*s/%s", (int)n, path, name);
        if (access(file, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

static void child_run(const struct child_options *o, int output, pid_t parent)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    cleanup_forget();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || null < 0)
        _exit(127);
    if (o->netns > 0 && netns_settle(o->netns) != 0)
        _exit(127);
    dup2(null, STDIN_FILENO);
    dup2(o->output ? output : null, STDOUT_FILENO);
    dup2(o->errors ? output : null, STDERR_FILENO);
    for (const char *const *set = o->sets; set != NULL && *set != NULL; set++)
        putenv((char *)*set);
    execvp(o->argv[0], o->argv);
    _exit(127);
}

int child_start(const struct child_options *o, struct child *out)
{
    int pipes[2] = {-1, -1};
    pid_t parent = getpid();
    int rc = 0;

    out->pid = 0;
    out->out = -1;
    if ((o->output || o->errors) && pipe2(pipes, O_CLOEXEC) != 0)
        return -errno;
    out->pid = fork();
    if (out->pid == 0)
        child_run(o, pipes[1], parent);
    if (out->pid < 0) {
        rc = -errno;
        out->pid = 0;
    }
    if (pipes[1] >= 0)
        close(pipes[1]);
    if (rc != 0 && pipes[0] >= 0)
        close(pipes[0]);
    else
        out->out = pipes[0];
    return rc;
}

bool child_read(struct child *c, const char *until, int timeout_ms, char *text, size_t size,
                size_t *used)
{
    uint64_t last = clock_ns() + UINT64_C(1000000) * (unsigned)timeout_ms;
    struct pollfd wait = {.fd = c->out, .events = POLLIN};

    for (;;) {
        uint64_t now = clock_ns();
        char dropped[1024];
        bool full = *used >= size - 1;
        ssize_t n;
        int ready;

        text[*used] = '\0';
        if (until != NULL && strstr(text, until) != NULL)
            return true;
        ready = now >= last ? 0 : poll(&wait, 1, (int)((last - now) / 1000000) + 1);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return false;
        n = full ? read(c->out, dropped, sizeof(dropped))
                 : read(c->out, text + *used, size - 1 - *used);
        if (n <= 0)
            return until == NULL;
        if (!full)
            *used += (size_t)n;
    }
}

static double seconds(const struct timeval *t)
{
    return (double)t->tv_sec + (double)t->tv_usec / 1e6;
}

/* A descriptor that turns readable when the process ends. */
static void await_end(pid_t pid, int timeout_ms)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd wait = {.fd = fd, .events = POLLIN};

    if (fd < 0)
        return;
    while (poll(&wait, 1, timeout_ms) < 0 && errno == EINTR)
        ;
    close(fd);
}

int child_end(struct child *c, int number, int timeout_ms, double *cpu_seconds)
{
    struct rusage usage = {0};
    int status = 0;

    if (cpu_seconds != NULL)
        *cpu_seconds = 0;
    if (c->out >= 0)
        close(c->out);
    c->out = -1;
    if (c->pid == 0)
        return -1;
    if (number != 0)
        kill(c->pid, number);
    await_end(c->pid, timeout_ms);
    if (wait4(c->pid, &status, WNOHANG, &usage) == 0) {
        kill(c->pid, SIGKILL);
        while (wait4(c->pid, &status, 0, &usage) < 0 && errno == EINTR)
            ;
    }
    c->pid = 0;
    if (cpu_seconds != NULL)
        *cpu_seconds = seconds(&usage.ru_utime) + seconds(&usage.ru_stime);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A look that does not connect: the server would take it for its client. */
static bool listening(pid_t pid, int port)
{
    static const char *const tables[] = {"tcp", "tcp6"};
    bool found = false;

    for (unsigned t = 0; t < 2 && !found; t++) {
        char line[512];
        FILE *f;

        snprintf(line, sizeof(line), "/proc/%d/net/%s", (int)pid, tables[t]);
        f = fopen(line, "re");
        while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
            unsigned local, state;

            if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &local, &state) == 2 &&
                (int)local == port && state == 0x0a)
                found = true;
        }
        if (f != NULL)
            fclose(f);
    }
    return found;
}

bool child_await_port(const struct child *c, int port, int timeout_ms)
{
    uint64_t last = clock_ns() + UINT64_C(1000000) * (unsigned)timeout_ms;
    bool there;

    while (!(there = listening(c->pid, port)) && clock_ns() < last)
        poll(NULL, 0, 1);
    return there;
}
