/* SPDX-License-Identifier: Apache-2.0 */
#include "agent.h"

#include "clock.h"
#include "cleanup.h"
#include "netns.h"
#include "pages.h"
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_MS 120000 /* populating gigabytes of ordinary pages takes most of a minute */
#define SESSIONS 400
#define POOL_SLACK (UINT64_C(128) << 20)

static int find_program(const char *given, char *out, size_t size)
{
    char self[4096];
    ssize_t n;
    char *slash;

    if (given != NULL) {
        snprintf(out, size, "%s", given);
        return access(out, X_OK) == 0
                   ? 0
                   : say_error(-errno, "--mcshmd %s: %m; give the path of the agent", given);
    }
    n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n > 0) {
        self[n] = '\0';
        slash = strrchr(self, '/');
        if (slash != NULL)
            *slash = '\0';
        snprintf(out, size, "%s/mcshmd", self);
        if (access(out, X_OK) == 0)
            return 0;
        snprintf(out, size, "%s/../sbin/mcshmd", self);
        if (access(out, X_OK) == 0)
            return 0;
    }
    snprintf(out, size, "mcshmd"); /* execvp looks in PATH and has the last word */
    return 0;
}

/* Extents are rounded up. */
static uint64_t slack(const struct agent_options *o)
{
    return o->small ? 0 : POOL_SLACK;
}

static int write_config(const char *path, const struct agent *a, const struct agent_options *o)
{
    FILE *f = fopen(path, "we");
    int bad;

    if (f == NULL)
        return -errno;
    fprintf(f,
            "[agent]\n"
            "socket = %s\n"
            "log_level = %s\n"
            "[pool]\n"
            "size = %" PRIu64 "M\n"
            "pages = %s\n"
            "[engine]\n"
            "cores = %d\n"
            "idle = %s\n"
            "[session]\n"
            "max = %d\n"
            "[admin]\n"
            "mode = off\n"
            "%s",
            a->socket, o->warns ? "warning" : "error", (o->pool_size + slack(o)) >> 20,
            o->small ? "off" : "prefer", o->core, o->busy ? "busy" : "sleep", SESSIONS,
            o->settings != NULL ? o->settings : "");
    bad = ferror(f);
    return fclose(f) == 0 && !bad ? 0 : -EIO;
}

/* Many sessions in one process need many descriptors, here and in the agent. */
static void raise_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void child_exec(const struct agent_options *o, const char *program, const char *config,
                       int ready, pid_t parent)
{
    char number[16];
    char *const argv[] = {"mcshmd",     "--config", (char *)config,
                          "--ready-fd", number,     o->supervise ? "--supervise" : NULL,
                          NULL};

    cleanup_forget();
    /* KILL, because a paused agent would not hear a TERM; it leaves nothing behind either way. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    if (o->netns > 0 && netns_settle(o->netns) != 0) {
        say_error(0, "the agent cannot enter its network namespace: %m");
        _exit(127);
    }
    snprintf(number, sizeof(number), "%d", ready);
    fcntl(ready, F_SETFD, 0);
    execvp(program, argv);
    say_error(0, "cannot start %s: %m; build it, or give its path with --mcshmd", program);
    _exit(127);
}

static int await_ready(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    uint64_t end = clock_ns() + UINT64_C(1000000) * READY_MS;
    char byte = 0;

    for (;;) {
        uint64_t now = clock_ns();
        int n = now >= end ? 0 : poll(&wait, 1, (int)((end - now) / 1000000) + 1);

        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            return say_error(-ETIMEDOUT, "the agent was not ready within %d s", READY_MS / 1000);
        if (n < 0 || read(fd, &byte, 1) != 1 || byte != 'R')
            return say_error(-EIO, "the agent ended instead of getting ready: see its message");
        return 0;
    }
}

static int start_own(const struct agent_options *o, struct agent *a)
{
    const char *base = getenv("TMPDIR");
    char program[4200], folder[96], config[128], lock[128], counters[128];
    int ready[2] = {-1, -1};
    pid_t parent = getpid();
    int rc;

    a->own = true;
    rc = find_program(o->program, program, sizeof(program));
    if (rc != 0)
        return rc;
    if (base == NULL || base[0] != '/' || strlen(base) > 64)
        base = "/tmp"; /* a socket's path has room for 107 bytes */
    snprintf(folder, sizeof(folder), "%s/mcshm-bench-XXXXXX", base);
    if (mkdtemp(folder) == NULL)
        return say_error(-errno, "no folder for the agent under %s: %m; set TMPDIR", base);
    cleanup_add_folder(folder);
    if (o->open && chmod(folder, 0711) != 0)
        return say_error(-errno, "cannot open %s to others: %m", folder);
    snprintf(config, sizeof(config), "%s/mcshmd.ini", folder);
    snprintf(a->socket, sizeof(a->socket), "%s/socket", folder);
    snprintf(lock, sizeof(lock), "%s.lock", a->socket);
    snprintf(counters, sizeof(counters), "%s.stats", a->socket);
    cleanup_add_file(lock);
    cleanup_add_file(counters); /* an agent that is killed leaves it */
    cleanup_add_file(a->socket);
    cleanup_add_file(config);
    rc = write_config(config, a, o);
    if (rc != 0) {
        say_error(rc, "cannot write %s: %s", config, strerror(-rc));
        goto out;
    }
    raise_files();
    if (pipe2(ready, O_CLOEXEC) != 0) {
        rc = say_error(-errno, "no pipe to the agent: %m");
        goto out;
    }
    a->pid = fork();
    if (a->pid == 0)
        child_exec(o, program, config, ready[1], parent);
    if (a->pid < 0) {
        rc = say_error(-errno, "cannot start a process for the agent: %m");
        a->pid = 0;
        goto out;
    }
    cleanup_add_process(a->pid);
    close(ready[1]);
    ready[1] = -1;
    rc = await_ready(ready[0]);
out:
    if (ready[0] >= 0)
        close(ready[0]);
    if (ready[1] >= 0)
        close(ready[1]);
    return rc;
}

/* Whose socket it is, for its CPU time. */
static pid_t socket_owner(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer = {.pid = 0};
    socklen_t size = sizeof(peer);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return 0;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    close(fd);
    return peer.pid;
}

void agent_reserve(const struct agent_options *o, unsigned agents, char *note, unsigned note_size)
{
    if (o->small)
        snprintf(note, note_size, "ordinary pages wanted");
    else
        pages_prepare(agents * (o->pool_size + slack(o)), note, note_size);
}

int agent_start(const struct agent_options *o, struct agent *a)
{
    int rc;

    memset(a, 0, sizeof(*a));
    a->mark = cleanup_mark();
    a->busy = o->busy;
    if (o->socket != NULL) {
        if (strlen(o->socket) >= sizeof(a->socket))
            return say_error(-EINVAL, "--socket: a path has at most %zu bytes",
                             sizeof(a->socket) - 1);
        strcpy(a->socket, o->socket);
        a->pid = socket_owner(a->socket);
        snprintf(a->pages_note, sizeof(a->pages_note), "a running agent's pool");
        return 0;
    }
    agent_reserve(o, 1, a->pages_note, sizeof(a->pages_note));
    rc = start_own(o, a);
    if (rc != 0)
        agent_stop(a);
    return rc;
}

void agent_stop(struct agent *a)
{
    cleanup_undo(a->mark);
    a->pid = 0;
}

int agent_pause(struct agent *a)
{
    int status;

    if (kill(a->pid, SIGSTOP) != 0)
        return say_error(-errno, "cannot pause the agent: %m");
    while (waitpid(a->pid, &status, WUNTRACED) < 0)
        if (errno != EINTR)
            return say_error(-errno, "cannot pause the agent: %m");
    return WIFSTOPPED(status) ? 0 : say_error(-EIO, "the agent ended during the measurement");
}

void agent_resume(struct agent *a)
{
    kill(a->pid, SIGCONT);
}
