/* SPDX-License-Identifier: Apache-2.0 */
/* The control thread: the Unix socket, its event loop, start and stop. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "closer.h"
#include "cluster.h"
#include "fault.h"
#include "gpu.h"
#include "stage.h"
#include "log.h"
#include "master.h"
#include "mooncake.h"
#include "rdma.h"
#include "reload.h"
#include "store.h"
#include "shm/region.h"
#include "shm/failpoint.h"

#define BACKLOG 256
#define LOOK_MS 1000                   /* a look at all sessions at least so often */
#define QUICK_MAX (UINT64_C(16) << 20) /* bytes; more than that takes long to populate */
#define CLOSE_MS 1000                  /* what clients passed gets so long to be closed */
#define LINGER_MS 5000                 /* and as long while the agent lives, until it is nudged */
#define STOP_NS UINT64_C(5000000000)   /* how long a clean stop may take */
#define DRAIN_NS UINT64_C(100000000)   /* and what is under way before a restart */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t mcd_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t mcd_boot_ns(void)
{
    return clock_ns(CLOCK_BOOTTIME);
}

uint64_t mcd_incarnation(void)
{
    uint64_t v = 0;

    while (v == 0)
        if (getrandom(&v, sizeof(v), 0) != sizeof(v))
            v = mcd_now_ns(); /* before the kernel has entropy: the time is fresh, too */
    return v;
}

int mcd_control_watch(struct mcd_agent *a, int fd, enum mcd_source source, void *object)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP};

    ev.data.u64 = (uint64_t)(uintptr_t)object | source; /* objects are aligned to 16 */
    return epoll_ctl(a->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0 ? 0 : -errno;
}

void mcd_control_unwatch(struct mcd_agent *a, int fd)
{
    epoll_ctl(a->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

/* ---- the socket ------------------------------------------------------------------ */

static int make_folder(const char *path, char *error, size_t error_size)
{
    char folder[MCD_TEXT_MAX];
    char *slash;

    snprintf(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (slash == NULL || slash == folder)
        return 0;
    *slash = '\0';
    if (mkdir(folder, 0755) == 0 || errno == EEXIST)
        return 0;
    snprintf(error, error_size, "cannot make the folder %s for [agent] socket: %s", folder,
             strerror(errno));
    return -EINVAL;
}

/* One agent a socket: the lock dies with the process, so a dirty stop leaves nothing held. */
static int take_lock(struct mcd_agent *a, char *error, size_t error_size)
{
    char path[MCD_TEXT_MAX + 8];
    int res;

    snprintf(path, sizeof(path), "%s.lock", a->config.socket);
    a->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (a->lock_fd < 0) {
        res = -errno;
        snprintf(error, error_size,
                 "cannot open %s: %s: [agent] socket must lie in a folder that "
                 "this user may write to",
                 path, strerror(-res));
        return res;
    }
    if (flock(a->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        snprintf(error, error_size,
                 "another agent serves %s: stop it, or set another [agent] "
                 "socket",
                 a->config.socket);
        return -EBUSY;
    }
    return 0;
}

/* The socket of the agent before: who connects in between waits in its backlog. Its file must be
 * where the configuration wants it. */
static bool adopt_socket(struct mcd_agent *a, const struct sockaddr_un *wanted)
{
    struct sockaddr_un addr = {.sun_family = AF_UNSPEC};
    socklen_t n = sizeof(addr);
    struct stat st;

    if (a->keeper.socket_fd < 0 ||
        getsockname(a->keeper.socket_fd, (struct sockaddr *)&addr, &n) != 0 ||
        addr.sun_family != AF_UNIX || n > sizeof(addr) ||
        strncmp(addr.sun_path, wanted->sun_path, sizeof(addr.sun_path)) != 0 ||
        lstat(addr.sun_path, &st) != 0 || !S_ISSOCK(st.st_mode) ||
        fcntl(a->keeper.socket_fd, F_SETFL, O_RDWR | O_NONBLOCK) != 0)
        return false;
    a->listen_fd = a->keeper.socket_fd;
    a->keeper.socket_fd = -1;
    return true;
}

/* Clients may stand in the backlog of a socket that is not to be served any more: they see its end,
 * and connect again. */
static void drop_kept_socket(struct mcd_keeper *k)
{
    if (k->socket_fd < 0)
        return;
    shutdown(k->socket_fd, SHUT_RDWR);
    close(k->socket_fd);
    k->socket_fd = -1;
}

static int open_socket(struct mcd_agent *a, char *error, size_t error_size)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct stat st;
    int res;

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%.107s", a->config.socket);
    if (adopt_socket(a, &addr)) {
        a->bound = true;
        if (chmod(addr.sun_path, (mode_t)a->config.socket_mode) != 0)
            goto error;
        return mcd_control_watch(a, a->listen_fd, MCD_SOURCE_LISTEN, NULL);
    }
    drop_kept_socket(&a->keeper);
    a->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (a->listen_fd < 0)
        goto error;
    /* the lock says that nobody serves it; a file of another kind is somebody's mistake */
    if (lstat(addr.sun_path, &st) == 0 && S_ISSOCK(st.st_mode))
        unlink(addr.sun_path);
    if (bind(a->listen_fd, (struct sockaddr *)&addr, sizeof(addr)) != 0)
        goto error;
    a->bound = true;
    errno = -MCS_FAIL(start_socket);
    if (errno != 0 || chmod(addr.sun_path, (mode_t)a->config.socket_mode) != 0 ||
        listen(a->listen_fd, BACKLOG) != 0)
        goto error;
    mcd_keeper_store(&a->keeper, MCD_KEEPER_SOCKET, a->listen_fd);
    return mcd_control_watch(a, a->listen_fd, MCD_SOURCE_LISTEN, NULL);

error:
    res = -errno;
    snprintf(error, error_size, "cannot listen on [agent] socket = %s: %s", a->config.socket,
             strerror(-res));
    return res;
}

static int open_signals(struct mcd_agent *a)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    a->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (a->signal_fd < 0)
        return -errno;
    return mcd_control_watch(a, a->signal_fd, MCD_SOURCE_SIGNAL, NULL);
}

/* ---- memory ---------------------------------------------------------------------- */

struct mcd_worker *mcd_worker_of(struct mcd_agent *a, uint64_t page_size, uint64_t size)
{
    return page_size <= 4096 && size <= QUICK_MAX ? a->quick : a->worker;
}

/* Freeing memory in a worker's thread, extents in turn with making them. */
struct reap_job {
    struct mcd_job job;
    void *map;
    uint64_t size;
    int fd;
};

static void run_reap(struct mcd_job *job)
{
    struct reap_job *r = (struct reap_job *)job;

    MCS_FAILPOINT(reap_run);
    mcs_region_unmap(r->map, r->size);
    close(r->fd);
}

static void reap_done(struct mcd_job *job, void *context)
{
    (void)context;
    free(job);
}

static void reap(struct mcd_worker *w, void *map, uint64_t size, int fd)
{
    struct reap_job *r = calloc(1, sizeof(*r));

    if (r == NULL) { /* then here and now */
        mcs_region_unmap(map, size);
        close(fd);
        return;
    }
    *r = (struct reap_job){
        .job = {.run = run_reap, .done = reap_done}, .map = map, .size = size, .fd = fd};
    mcd_worker_submit(w, &r->job);
}

static void reap_extent(void *context, void *map, uint64_t size, int fd)
{
    struct mcd_agent *a = context;

    reap(a->worker, map, size, fd);
}

void mcd_reap_region(struct mcd_agent *a, void *map, uint64_t size, int fd)
{
    reap(mcd_worker_of(a, 4096, size), map, size, fd);
}

int mcd_control_init(struct mcd_agent *a, char *error, size_t error_size)
{
    int res;

    a->epoll_fd = a->listen_fd = a->lock_fd = a->signal_fd = -1;
    error[0] = '\0';
    a->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (a->epoll_fd < 0) {
        res = -errno;
        goto error;
    }
    res = MCS_FAIL(start_control);
    if (res == 0 && !a->master_only)
        res = make_folder(a->config.socket, error, error_size);
    if (res == 0 && !a->master_only)
        res = take_lock(a, error, error_size);
    if (res == 0)
        res = MCS_FAIL(start_lock);
    if (res == 0)
        res = open_signals(a);
    if (res == 0)
        res = mcd_control_watch(a, a->event_fd, MCD_SOURCE_EVENT, NULL);
    if (res == 0)
        res = mcd_fault_init(a->event_fd);
    if (res == 0)
        res = MCS_FAIL(start_worker);
    if (res == 0)
        res = mcd_worker_create(a->event_fd, &a->worker);
    if (res == 0)
        res = mcd_worker_create(a->event_fd, &a->quick);
    if (res != 0)
        goto error;
    if (!a->master_only)
        mcd_stats_create(a);
    a->pool.reap = reap_extent;
    a->pool.reap_context = a;
    if (a->config.admin_mode != MCD_ADMIN_OFF) {
        res = mcd_admin_create(a, &a->admin, error, error_size);
        if (res != 0 && a->config.admin_mode == MCD_ADMIN_REQUIRED)
            return res;
        if (res != 0)
            mcd_warning("%s; going on without /metrics ([admin] mode = best-effort)", error);
        error[0] = '\0';
    }
    res = MCS_FAIL(start_cluster);
    if (res == 0 && !a->master_only)
        res = mcd_rdma_watch(a);
    if (res == 0)
        res = mcd_cluster_create(a, error, error_size);
    if (res == 0 && !a->master_only)
        res = mcd_store_begin(a, error, error_size);
    if (res == 0)
        res = mcd_master_create(a, &a->master, error, error_size);
    if (res == 0 && a->master_only)
        return 0;
    if (res == 0) {
        mcd_recovery_begin(a);
        return open_socket(a, error, error_size);
    }

error:
    if (error[0] == '\0') /* nobody has said it better */
        snprintf(error, error_size, "cannot set up the control thread: %s%s", strerror(-res),
                 res == -EMFILE ? ": raise the limit (ulimit -n, LimitNOFILE=)" : "");
    return res;
}

/* ---- the loop -------------------------------------------------------------------- */

static void accept_all(struct mcd_agent *a)
{
    int fd;

    if (a->deaf)
        return;
    for (int i = 0; i < BACKLOG; i++) {
        fd = accept4(a->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0 && MCS_FAIL(session_accept) != 0) {
            close(fd);
            continue;
        }
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            mcd_log_limited(MCD_LOG_WARNING, "out of file descriptors, a client has to wait: raise "
                                             "the limit (ulimit -n, LimitNOFILE=)");
            a->refused++;
            /* the connection stays in the backlog: not to be told of it over and over */
            mcd_control_unwatch(a, a->listen_fd);
            a->deaf = true;
            break;
        }
        if (fd < 0 && errno != EINTR && errno != ECONNABORTED)
            break;
        if (fd >= 0)
            mcd_session_accept(a, fd);
    }
}

static void drain(int fd)
{
    uint64_t v;

    if (read(fd, &v, sizeof(v)) < 0) {
        /* somebody else's wake-up was read together with this one */
    }
}

static void on_signal(struct mcd_agent *a)
{
    struct signalfd_siginfo info;

    while (read(a->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGHUP) {
            mcd_reload_for_signal(a);
            continue;
        }
        if (a->stopping)
            _exit(1); /* asked twice: at once */
        /* TERM is what a restart begins with; without somebody who keeps there is none */
        a->keeping =
            info.ssi_signo == SIGTERM && a->recovery.ledger != NULL && mcd_keeper_keeps(&a->keeper);
        mcd_info("%s: stopping%s", strsignal((int)info.ssi_signo),
                 a->keeping ? ", clients come back to the next agent" : "");
        mcd_keeper_tell(&a->keeper, a->keeping ? "STOPPING=1\n" MCD_KEEPER_KEPT : "STOPPING=1");
        a->stopping = true;
    }
}

static void dispatch(struct mcd_agent *a, const struct epoll_event *ev)
{
    struct mcd_session *s = (struct mcd_session *)(uintptr_t)(ev->data.u64 & ~UINT64_C(15));
    struct pollfd hung;

    switch ((enum mcd_source)(ev->data.u64 & 15)) {
    case MCD_SOURCE_LISTEN:
        accept_all(a);
        break;
    case MCD_SOURCE_EVENT:
        drain(a->event_fd);
        mcd_worker_reap(a->worker, a);
        mcd_worker_reap(a->quick, a);
        mcd_gpu_poll(a);
        mcd_staging_look(a);
        mcd_resolvers_reap(a);
        mcd_cluster_poll(a);
        mcd_mooncake_poll(a->mooncake);
        a->look = true;
        break;
    case MCD_SOURCE_SIGNAL:
        on_signal(a);
        break;
    case MCD_SOURCE_ADMIN:
        mcd_admin_run(a->admin);
        break;
    case MCD_SOURCE_WATCH: {
        struct mcd_watch *w = (struct mcd_watch *)(uintptr_t)(ev->data.u64 & ~UINT64_C(15));

        w->ready(w, ev->events);
        break;
    }
    case MCD_SOURCE_NONE:
        break;
    case MCD_SOURCE_SESSION:
        if (s->ending)
            break;
        if (!s->op.active && s->socket >= 0)
            mcd_session_readable(s);
        hung = (struct pollfd){.fd = s->pidfd, .events = POLLIN};
        if ((ev->events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0 ||
            (s->pidfd >= 0 && poll(&hung, 1, 0) == 1))
            mcd_session_end(s, NULL);
        break;
    }
}

/* Nothing can be waited for with an event while engines finish their turn: it is over in
 * microseconds, so look a few times, then once a millisecond. */
static int poll_sessions(struct mcd_agent *a)
{
    for (int i = 0; i < 100; i++) {
        if (!mcd_sessions_poll(a))
            return LOOK_MS;
        mcs_pause();
    }
    return 1;
}

/* Of a time from now and one of the clock. */
static uint64_t sooner(uint64_t left, uint64_t due)
{
    uint64_t now = mcd_now_ns();

    if (due <= now)
        return 0;
    return due - now < left ? due - now : left;
}

/* Once a second: what no event tells. */
static void look_around(struct mcd_agent *a)
{
    a->look = true;
    mcd_stats_refresh(a);
    mcd_log_flush();
    mcd_closer_nudge(LINGER_MS);
    mcd_registry_look(&a->registry, mcd_now_ns());
    mcd_gpu_poll(a);
    mcd_staging_look(a);
    if (a->admin != NULL)
        mcd_admin_run(a->admin); /* its time limits */
    if (a->deaf && !a->stopping)
        a->deaf = mcd_control_watch(a, a->listen_fd, MCD_SOURCE_LISTEN, NULL) != 0;
}

/* Engines that do not turn, and whoever waits for this thread, say that something hangs. */
static void beat(struct mcd_alarm *t)
{
    struct mcd_agent *a = t->context;
    bool alive = true;

    for (unsigned i = 0; i < a->nengines; i++) {
        struct mcd_engine *g = a->engines[i];
        uint64_t epoch = mcs_load_relaxed(&g->epoch); /* any value that has changed will do */

        bool turns = epoch != a->epochs[i] || mcs_load_relaxed(&g->asleep) != 0;

        /* At the first look it may not have begun, and at any it may have just woken up: what does
         * not turn says so twice. */
        a->stills[i] = turns ? 0 : a->stills[i] + 1;
        if (a->stills[i] > 1) {
            alive = false;
            mcd_log_limited(MCD_LOG_ERROR, "engine %u does not turn any more", i);
        }
        a->epochs[i] = epoch;
    }
    if (alive)
        mcd_keeper_beat(&a->keeper);
    mcd_alarm_set(a, t, mcd_now_ns() + a->keeper.watchdog_ns / 4);
}

/* Between the loop and the end of a life that another follows: what was taken is ended, within
 * DRAIN_NS; of what is left clients learn that an agent has died over it. */
static void drain_engines(struct mcd_agent *a)
{
    static struct mcd_command commands[MCD_ENGINES_MAX];
    uint64_t end = mcd_now_ns() + DRAIN_NS;
    bool all = false;

    for (unsigned i = 0; i < a->nengines; i++)
        mcd_engine_call(a->engines[i], &commands[i], mcd_engine_drain, NULL);
    while (!all && mcd_now_ns() < end) {
        all = true;
        for (unsigned i = 0; i < a->nengines; i++)
            all &= mcs_load_acquire(&commands[i].done) != 0; /* partner: finish_command() */
        if (!all)
            usleep(500);
    }
}

/* The lead is given back first: others take it while this agent still ends. */
static void stop_store(struct mcd_agent *a)
{
    mcd_master_destroy(a->master);
    a->master = NULL;
    mcd_store_stop(a);
}

void mcd_control_run(struct mcd_agent *a)
{
    struct epoll_event events[64];
    uint64_t deadline = 0, last_look = mcd_now_ns(), next;
    int timeout = LOOK_MS;

    a->events = events;
    mcd_recovery_serve(a);
    a->pulse = (struct mcd_alarm){.fire = beat, .context = a};
    if (a->keeper.watchdog_ns != 0)
        beat(&a->pulse);
    while (!a->stopping || ((a->sessions != NULL || a->registry.count != 0 || mcd_gpu_busy(a)) &&
                            mcd_now_ns() < deadline)) {
        a->nevents = epoll_wait(a->epoll_fd, events, 64, timeout);
        for (int i = 0; i < a->nevents; i++)
            dispatch(a, &events[i]);
        a->nevents = 0;
        mcd_stats_beat(a);
        if (mcd_now_ns() - last_look > LOOK_MS * UINT64_C(1000000)) {
            last_look = mcd_now_ns();
            look_around(a);
        }
        if (a->keeping) {
            drain_engines(a);
            return;
        }
        if (a->stopping && deadline == 0) {
            deadline = mcd_now_ns() + STOP_NS;
            mcd_control_unwatch(a, a->listen_fd);
            MCS_FAILPOINT(stop_asked);
            if (a->bound)
                unlink(a->config.socket);
            a->bound = false;
            for (struct mcd_session *s = a->sessions; s != NULL; s = s->next)
                mcd_session_end(s, NULL);
        }
        timeout = poll_sessions(a);
        if (a->stopping && a->sessions == NULL)
            stop_store(a);
        else if (mcd_store_poll(a))
            timeout = 1;
        next = mcd_alarms_run(a, mcd_now_ns());
        next = sooner(next, a->due);
        if (next / 1000000 < (uint64_t)timeout)
            timeout = (int)(next / 1000000) + 1;
    }
    if (a->sessions != NULL)
        mcd_warning("%u sessions did not end in time; leaving them to the kernel", a->nsessions);
    if (a->registry.count != 0)
        mcd_warning(
            "RDMA devices have not let go of %llu registrations in time; leaving them to the "
            "kernel",
            (unsigned long long)a->registry.count);
    if (mcd_gpu_busy(a))
        mcd_warning("the GPU driver has not let go of memory in time; leaving it to the kernel");
    /* while engines run: they let go of what peers had */
    MCS_FAILPOINT(stop_quiet);
    mcd_mooncake_destroy(a->mooncake);
    a->mooncake = NULL;
    stop_store(a);
    mcd_store_end(a);
    mcd_cluster_destroy(a);
    MCS_FAILPOINT(stop_peers);
}

void mcd_control_fini(struct mcd_agent *a)
{
    mcd_alarm_clear(a, &a->pulse);
    mcd_mooncake_destroy(a->mooncake);
    mcd_master_destroy(a->master);
    mcd_store_end(a);
    mcd_cluster_destroy(a); /* the start has failed */
    mcd_resolvers_destroy(a);
    if (a->admin != NULL)
        mcd_admin_destroy(a->admin);
    mcd_worker_destroy(a->worker, a);
    mcd_worker_destroy(a->quick, a);
    if (!mcd_closer_drain(CLOSE_MS))
        mcd_warning("descriptors of clients do not close; leaving them to the kernel");
    mcd_tenants_fini(&a->tenants);
    mcd_rdma_unwatch(a);
    if (a->bound && a->recovery.before == 0)
        unlink(a->config.socket); /* the start has failed */
    mcd_stats_remove(a);
    if (a->listen_fd >= 0)
        close(a->listen_fd);
    if (a->signal_fd >= 0)
        close(a->signal_fd);
    if (a->epoll_fd >= 0)
        close(a->epoll_fd);
    if (a->lock_fd >= 0) {
        /* The lock file stays: removing it would let two agents hold locks on two files of one
         * name. It is empty and the next start reuses it. */
        close(a->lock_fd);
    }
}
