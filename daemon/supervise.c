/* SPDX-License-Identifier: Apache-2.0 */
#include "supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "keeper.h"
#include "log.h"

#define MS UINT64_C(1000000)
#define SHORT_LIFE_NS (1000 * MS)
#define DELAY_MIN_NS (10 * MS)
#define DELAY_MAX_NS (5000 * MS)
#define WATCHDOG_NS (10000 * MS)
#define ABORT_NS (2000 * MS)     /* from SIGABRT to SIGKILL */
#define RESTART_NS (10000 * MS)  /* from SIGTERM to SIGKILL */
#define OVERSLEPT_NS (1000 * MS) /* beyond the time asked for: this process was not running */
#define NOTIFICATIONS_A_TURN 64
#define FDS_MAX MCD_KEEPER_FDS_MAX
#define MESSAGE_FDS 16 /* most descriptors of one notification */
#define LAST_TURNS 64  /* of notifications, for what a dead agent has said */
#define TEXT_MAX 1024
#define FIRST_FD 3 /* SD_LISTEN_FDS_START */

struct supervisor {
    const char *path;
    char *const *argv;
    int ready_fd, notify_fd, signal_fd;
    char notify_name[32]; /* "@..." */
    struct mcd_kept kept[FDS_MAX];
    unsigned nkept;
    pid_t child; /* 0: none at present */
    struct mcd_life life;
    uint64_t born, heard, kill_at, start_at; /* ns; 0: not set */
    uint64_t delay;
    bool ever_ready;
    sigset_t mask; /* as it was */
};

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 * MS + (uint64_t)ts.tv_nsec;
}

struct mcd_verdict mcd_supervise_judge(const struct mcd_life *life, uint64_t delay_ns)
{
    int exited = WIFEXITED(life->status) ? WEXITSTATUS(life->status) : 128 + WTERMSIG(life->status);
    struct mcd_verdict v = {.exit = exited};

    if (life->stopping)
        return v;
    if (exited == 0 && !life->kept && !life->asked)
        return v; /* it was told to stop, and did */
    if (life->first && !life->ready && !life->asked && exited != 0)
        return v; /* it says what is missing, and that would be missing the next time, too */
    v.again = true;
    if (life->ready && (life->asked || life->kept || life->lived_ns >= SHORT_LIFE_NS))
        v.delay_ns = 0;
    else
        v.delay_ns = delay_ns == 0                 ? DELAY_MIN_NS
                     : delay_ns * 2 > DELAY_MAX_NS ? DELAY_MAX_NS
                                                   : delay_ns * 2;
    return v;
}

/* ---- the agent's birth --------------------------------------------------------------- */

static void set_number(const char *name, uint64_t v)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
    setenv(name, text, 1);
}

/* In the child: descriptors 3, 4, ... are those that are kept. */
static void pass_fds(const struct supervisor *s)
{
    /* an environment string has at most 128 KiB */
    static char names[FDS_MAX * sizeof(s->kept[0].name)];
    static int high[FDS_MAX];
    size_t n = 0;

    /* out of the way first: they may lie where others are to go */
    for (unsigned i = 0; i < s->nkept; i++)
        high[i] = fcntl(s->kept[i].fd, F_DUPFD_CLOEXEC, FIRST_FD + (int)s->nkept);
    for (unsigned i = 0; i < s->nkept; i++) {
        if (high[i] < 0 || dup2(high[i], FIRST_FD + (int)i) < 0)
            _exit(126);
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i != 0 ? ":" : "",
                              s->kept[i].name);
    }
    if (s->nkept == 0) {
        unsetenv("LISTEN_PID");
        unsetenv("LISTEN_FDS");
        unsetenv("LISTEN_FDNAMES");
        return;
    }
    set_number("LISTEN_PID", (uint64_t)getpid());
    set_number("LISTEN_FDS", s->nkept);
    setenv("LISTEN_FDNAMES", names, 1);
}

static void be_the_agent(const struct supervisor *s, pid_t parent)
{
    sigset_t mask = s->mask;

    /* a supervisor that is gone keeps nothing: the agent stops for good then */
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    if (getppid() != parent)
        _exit(1);
    /* what is passed on before the agent listens waits for it, and does not kill it */
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGHUP);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    pass_fds(s);
    setenv("NOTIFY_SOCKET", s->notify_name, 1);
    set_number("WATCHDOG_USEC", WATCHDOG_NS / 1000);
    set_number("WATCHDOG_PID", (uint64_t)getpid());
    set_number("FDSTORE", FDS_MAX);
    set_number(MCD_KEEPER_SUPERVISOR, (uint64_t)parent);
    execv(s->path, s->argv);
    mcd_error("cannot execute %s: %s", s->path, strerror(errno));
    _exit(127);
}

static int start(struct supervisor *s)
{
    pid_t parent = getpid(), child = fork();

    if (child == 0)
        be_the_agent(s, parent);
    if (child < 0)
        return -errno;
    s->child = child;
    s->life = (struct mcd_life){.first = !s->ever_ready};
    s->born = s->heard = now_ns();
    s->kill_at = s->start_at = 0;
    return 0;
}

/* ---- what it tells ------------------------------------------------------------------------ */

static void forget(struct supervisor *s, const char *name)
{
    for (unsigned i = 0; i < s->nkept;) {
        if (strcmp(s->kept[i].name, name) != 0) {
            i++;
            continue;
        }
        close(s->kept[i].fd);
        s->kept[i] = s->kept[--s->nkept];
    }
}

static void keep(struct supervisor *s, const char *name, const int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (name[0] == '\0' || s->nkept == FDS_MAX) {
            mcd_warning("supervisor: no room to keep '%s'", name);
            close(fds[i]);
            continue;
        }
        snprintf(s->kept[s->nkept].name, sizeof(s->kept[0].name), "%s", name);
        s->kept[s->nkept++].fd = fds[i];
    }
}

static void on_ready(struct supervisor *s)
{
    s->life.ready = true;
    if (s->ever_ready)
        return;
    s->ever_ready = true;
    if (s->ready_fd >= 0) {
        if (write(s->ready_fd, "R", 1) != 1)
            mcd_warning("nobody reads --ready-fd");
        close(s->ready_fd);
        s->ready_fd = -1;
    }
    (void)sd_notify(0, "READY=1"); /* this process may be a service itself */
}

static void on_notification(struct supervisor *s, char *text, const int *fds, unsigned nfds)
{
    bool store = false, drop = false;
    char name[sizeof(s->kept[0].name)] = "";
    char *rest = text;

    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        store = store || strcmp(line, "FDSTORE=1") == 0;
        drop = drop || strcmp(line, "FDSTOREREMOVE=1") == 0;
        if (strncmp(line, "FDNAME=", 7) == 0 && strchr(line + 7, ':') == NULL)
            snprintf(name, sizeof(name), "%.63s", line + 7);
        else if (strcmp(line, "READY=1") == 0)
            on_ready(s);
        else if (strcmp(line, MCD_KEEPER_KEPT) == 0)
            s->life.kept = true;
    }
    s->heard = now_ns();
    if (drop)
        forget(s, name);
    if (store) {
        keep(s, name, fds, nfds);
        return;
    }
    for (unsigned i = 0; i < nfds; i++)
        close(fds[i]);
}

/* True: there is more. */
static bool on_notify(struct supervisor *s)
{
    /* whoever shares the network namespace may send without an end: signals have their turn, too */
    for (int turn = 0; turn < NOTIFICATIONS_A_TURN; turn++) {
        char text[TEXT_MAX + 1];
        union {
            char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int) * MESSAGE_FDS)];
            struct cmsghdr align;
        } space;
        struct iovec iov = {.iov_base = text, .iov_len = TEXT_MAX};
        struct msghdr mh = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = space.bytes,
                            .msg_controllen = sizeof(space.bytes)};
        ssize_t n = recvmsg(s->notify_fd, &mh, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        int fds[MESSAGE_FDS];
        unsigned nfds = 0;
        pid_t from = 0;

        if (n < 0)
            return false;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&mh); c != NULL; c = CMSG_NXTHDR(&mh, c)) {
            if (c->cmsg_level != SOL_SOCKET)
                continue;
            if (c->cmsg_type == SCM_RIGHTS) {
                nfds = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
                memcpy(fds, CMSG_DATA(c), nfds * sizeof(int));
            } else if (c->cmsg_type == SCM_CREDENTIALS) {
                struct ucred cred;

                memcpy(&cred, CMSG_DATA(c), sizeof(cred));
                from = cred.pid;
            }
        }
        text[n] = '\0';
        /* whoever shares the network namespace can send here: only the agent is listened to */
        if (from != s->child || s->child == 0 || (mh.msg_flags & MSG_TRUNC) != 0) {
            for (unsigned i = 0; i < nfds; i++)
                close(fds[i]);
            continue;
        }
        on_notification(s, text, fds, nfds);
    }
    return true;
}

/* ---- signals and deaths ----------------------------------------------------------------- */

/* The agent has ended: true. Others are orphans of a container whose first process this is. */
static bool reap(const struct supervisor *s, int *status)
{
    bool ended = false;
    int other;
    pid_t pid;

    while ((pid = waitpid(-1, &other, WNOHANG)) > 0) {
        if (pid != s->child)
            continue;
        *status = other;
        ended = true;
    }
    return ended;
}

static void on_child(struct supervisor *s, int *exit_status, bool *over)
{
    struct mcd_verdict v;
    int status = 0;

    if (!reap(s, &status))
        return;
    for (unsigned i = 0; i < LAST_TURNS && on_notify(s); i++)
        continue; /* what it said last: extents that it gave into keeping are in there */
    s->life.status = status;
    s->life.lived_ns = now_ns() - s->born;
    v = mcd_supervise_judge(&s->life, s->delay);
    s->child = 0;
    s->kill_at = 0;
    if (!v.again) {
        *exit_status = v.exit;
        *over = true;
        return;
    }
    s->delay = v.delay_ns;
    s->start_at = now_ns() + v.delay_ns;
    if (WIFSIGNALED(status))
        mcd_warning("supervisor: the agent died of signal %d (%s) after %.3f s, starting it anew%s",
                    WTERMSIG(status), strsignal(WTERMSIG(status)), (double)s->life.lived_ns / 1e9,
                    v.delay_ns >= 1000 * MS ? ", not too fast" : "");
    else
        mcd_info("supervisor: the agent ended with status %d, starting it anew",
                 WEXITSTATUS(status));
}

/* True: leave at once, with *exit_status. */
static bool on_signal(struct supervisor *s, int *exit_status)
{
    struct signalfd_siginfo info;

    while (read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        switch (info.ssi_signo) {
        case SIGHUP:
            if (s->child != 0)
                kill(s->child, SIGHUP);
            break;
        case SIGUSR2:
            /* a second SIGTERM would cut the first one's stop short */
            if (s->child != 0 && !s->life.stopping && !s->life.asked) {
                s->life.asked = true;
                s->kill_at = now_ns() + RESTART_NS;
                kill(s->child, SIGTERM);
            }
            break;
        case SIGTERM:
        case SIGINT:
            *exit_status = s->life.stopping ? 1 : 0;
            if (s->life.stopping && s->child != 0) {
                kill(s->child, SIGKILL);
                waitpid(s->child, NULL, 0);
                s->child = 0;
            }
            if (s->child == 0)
                return true;
            s->life.stopping = true;
            s->kill_at = 0;
            kill(s->child, SIGINT);
            break;
        default:
            break; /* SIGCHLD: looked after in the loop */
        }
    }
    return false;
}

/* What time brings; ms until the next look. */
static int on_time(struct supervisor *s)
{
    uint64_t now = now_ns(), next = UINT64_MAX, silent;
    int res;

    if (s->child == 0) {
        if (now >= s->start_at) {
            res = start(s);
            if (res == 0)
                return on_time(s);
            mcd_log_limited(MCD_LOG_ERROR, "supervisor: cannot fork: %s", strerror(-res));
            s->start_at = now + DELAY_MAX_NS;
        }
        next = s->start_at;
    } else {
        silent = s->heard + WATCHDOG_NS;
        if (s->kill_at != 0 && now >= s->kill_at) {
            kill(s->child, SIGKILL);
            s->kill_at = 0;
        }
        if (s->life.ready && now >= silent && s->kill_at == 0) {
            mcd_error("supervisor: the agent has been silent for %llu s, aborting it",
                      (unsigned long long)(WATCHDOG_NS / (1000 * MS)));
            kill(s->child, SIGABRT);
            s->heard = now;
            s->kill_at = now + ABORT_NS;
        }
        if (s->kill_at != 0)
            next = s->kill_at;
        if (s->life.ready && silent > now && silent < next)
            next = silent;
    }
    if (next == UINT64_MAX)
        return -1;
    return next <= now ? 1 : (int)((next - now) / MS) + 1;
}

/* What is kept takes descriptors, and as many once more while it is passed on. */
static void raise_limit(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

static int open_all(struct supervisor *s)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    socklen_t n = sizeof(addr);
    sigset_t set;
    int one = 1;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, &s->mask);
    signal(SIGPIPE, SIG_IGN); /* who reads the log, or --ready-fd, may go before */
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    s->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* without a path: the kernel gives a name that is nobody else's */
    if (s->signal_fd < 0 || s->notify_fd < 0 ||
        setsockopt(s->notify_fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)) != 0 ||
        bind(s->notify_fd, (struct sockaddr *)&addr, sizeof(addr.sun_family)) != 0 ||
        getsockname(s->notify_fd, (struct sockaddr *)&addr, &n) != 0)
        return -errno;
    snprintf(s->notify_name, sizeof(s->notify_name), "@%.*s",
             (int)(n - offsetof(struct sockaddr_un, sun_path) - 1), addr.sun_path + 1);
    return 0;
}

int mcd_supervise(const char *path, char *const *argv, int ready_fd)
{
    struct supervisor s = {
        .path = path, .argv = argv, .ready_fd = ready_fd, .notify_fd = -1, .signal_fd = -1};
    int exit_status = 0, res;
    bool over = false;

    if (ready_fd >= 0)
        fcntl(ready_fd, F_SETFD, FD_CLOEXEC); /* it is told by this process */
    raise_limit();
    res = open_all(&s);
    if (res != 0) {
        mcd_error("supervisor: cannot start: %s", strerror(-res));
        return 1;
    }
    while (!over) {
        struct pollfd p[] = {{.fd = s.signal_fd, .events = POLLIN},
                             {.fd = s.notify_fd, .events = POLLIN}};
        int ms = on_time(&s);
        uint64_t slept = now_ns();

        poll(p, 2, ms);
        /* Stopped, or frozen together with the agent, which could not speak meanwhile. */
        if (ms >= 0 && now_ns() - slept > (uint64_t)ms * MS + OVERSLEPT_NS)
            s.heard = now_ns();
        (void)on_notify(&s);
        over = on_signal(&s, &exit_status);
        if (!over)
            on_child(&s, &exit_status, &over);
    }
    for (unsigned i = 0; i < s.nkept; i++)
        close(s.kept[i].fd);
    if (s.ready_fd >= 0)
        close(s.ready_fd);
    close(s.notify_fd);
    close(s.signal_fd);
    return exit_status;
}
