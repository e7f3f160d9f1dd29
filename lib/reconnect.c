/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coming back to a later agent.
 *
 * A thread of the connection, the watcher, sleeps until the agent hangs up.  Unless the agent
 * has ended the session for good, it then looks for a later one: it connects and sends RESTORE
 * with the session region, hands everything back (restore.c), and the queues run again.  Whoever
 * holds the mutex does the next step of that: the watcher, or a control call, which cannot go
 * on without.  Nothing else stops meanwhile: rings, slots and pool memory are all here.
 *
 * `socket` and `doorbell` keep their numbers over all lives: what they name is exchanged by
 * dup3(), so that a thread that just uses one never meets a closed or a foreign descriptor.
 */
#include "internal.h"
#include "shm/failpoint.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PAUSE_MS_MIN 5u
#define PAUSE_MS_MAX 100u
#define STACK_SIZE (256u << 10) /* the caller's log function runs there, too */

static void half_close(struct mcshm *c)
{
    if (c->half >= 0)
        close(c->half);
    c->half = -1;
}

/* The session is no more. */
static void give_up(struct mcshm *c, const char *why)
{
    half_close(c);
    c->away = c->welcome = false;
    mcs_store_relaxed(&c->down, 1u); /* partner: mcl_down() */
    mcl_log(c, MCSHM_LOG_ERROR, "the session has ended: %s", why);
}

void mcl_lost(struct mcshm *c)
{
    c->welcome = false;
    if (c->away)
        return;
    /* acquire: pairs with the agent's store before it hung up */
    if (mcs_load_acquire(&c->region.words->ended) != 0) {
        give_up(c, "the agent has ended it");
        return;
    }
    if (!c->kept || c->broken) {
        give_up(c, c->broken ? "a call was not answered" : "the agent is gone");
        return;
    }
    MCS_FAILPOINT(agent_lost);
    c->away = true;
    c->away_until = mcl_now_ns() + (int64_t)c->reconnect_ms * 1000000;
    c->pause_ms = PAUSE_MS_MIN;
    /* The later agent knows no grant of this session, and would not wait for a thread of ours that
     * copies into what an owner takes away: from now on there is none. */
    c->grants_off = c->grants_due = true;
    (void)mcl_view_update(c, NULL); /* when memory is short it knows less: that is safe */
    mcl_log(c, MCSHM_LOG_WARNING, "the agent is gone: waiting %u ms for a later one",
            c->reconnect_ms);
}

/* Connects and sends RESTORE; the answer will come on c->half. */
static int dial(struct mcshm *c)
{
    struct mcs_msg m = {
        .h = {.type = MCS_MSG_RESTORE, .id = ++c->last_id},
        .b.restore = {.abi_version = MCS_ABI_VERSION,
                      .agent_incarnation = c->info.agent_incarnation,
                      .session_incarnation = c->info.session_incarnation},
    };
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd, res, spare;

    /* A doorbell will come along with the answer. Without a place for it the session, which the
     * agent believes to be back then, would be lost: better wait until there is one. */
    spare = fcntl(c->stir, F_DUPFD_CLOEXEC, 0);
    if (spare < 0)
        return -errno;
    memcpy(address.sun_path, c->socket_path, strlen(c->socket_path) + 1);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    res = -errno;
    close(spare);
    if (fd < 0)
        return res;
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
        res = -errno;
        goto error;
    }
    res = MCS_FAIL(restore_send);
    if (res == 0)
        res = mcs_msg_send(fd, &m, sizeof(m.b.restore), &c->region_fd, 1);
    if (res != 0)
        goto error;
    MCS_FAILPOINT(restore_sent);
    c->half = fd;
    return 0;

error:
    close(fd);
    return res;
}

/* A refusal that will not be another one the next time. */
static bool is_final(uint32_t status)
{
    return status == MCS_NOT_FOUND || status == MCS_PERMISSION || status == MCS_BAD_SHM ||
           status == MCS_VERSION || status == MCS_INVALID_ARGUMENT;
}

static void take_info(struct mcshm *c, const struct mcs_msg_hello_reply *r)
{
    pthread_mutex_lock(&c->info_mutex);
    c->info.agent_incarnation = r->agent_incarnation;
    c->info.deadline_us = r->deadline_us;
    c->info.never_sleeps = (r->features & MCS_FEATURE_NEVER_SLEEPS) != 0;
    memcpy(c->info.agent_version, r->agent_version, sizeof(c->info.agent_version) - 1);
    pthread_mutex_unlock(&c->info_mutex);
    c->kept = (r->features & MCS_FEATURE_KEPT) != 0;
    /* relaxed: partner mcshm_submit_objects() */
    mcs_store_relaxed(&c->objects, (uint32_t)((r->features & MCS_FEATURE_OBJECTS) != 0));
    /* relaxed: partner mcl_gpu_open() */
    mcs_store_relaxed(&c->gpus, (uint32_t)((r->features & MCS_FEATURE_GPU) != 0));
}

/* A later agent has answered RESTORE: its socket and doorbell take the place of the old ones. */
static int take_place(struct mcshm *c, const struct mcs_msg *m, const struct mcl_fds *fds)
{
    const struct mcs_msg_hello_reply *r = &m->b.hello_reply;

    if (fds->n != 1 || r->session_incarnation != c->info.session_incarnation)
        return -EPROTO;
    if (dup3(fds->fd[0], c->doorbell, O_CLOEXEC) < 0 || dup3(c->half, c->socket, O_CLOEXEC) < 0)
        return -errno;
    half_close(c);
    take_info(c, r);
    MCS_FAILPOINT(restore_welcome);
    c->welcome = true;
    return 0;
}

/* One more step. 0: back, or down for good; -EAGAIN: wait for c->half or c->pause_ms. */
static int step(struct mcshm *c)
{
    struct mcl_fds fds = {.n = 0};
    struct mcs_msg m;
    int res = 0;

    if (c->half < 0)
        res = dial(c);
    if (res == 0)
        res = mcs_msg_recv(c->half, &m, fds.fd, &fds.n);
    if (res == 0)
        res = mcl_check_reply(&m, MCS_MSG_RESTORE, c->last_id);
    if (res == 0 && m.h.status != MCS_OK) {
        m.b.error.text[sizeof(m.b.error.text) - 1] = '\0';
        if (is_final(m.h.status)) {
            give_up(c, m.b.error.text);
            return 0;
        }
        res = -EBUSY;
    }
    if (res == 0)
        res = take_place(c, &m, &fds);
    mcl_close_fds(&fds);
    if (res == 0)
        res = mcl_hand_back(c);
    switch (res) {
    case 0:
        c->away = c->welcome = false;
        return 0;
    case -EAGAIN:
    case -EINTR:
    case -ECANCELED: /* closing: the later agent sees the hang-up */
        break;
    case -ETIMEDOUT: /* of the handing back: nobody knows what it has */
    case -EPROTO:
    case -EPROTONOSUPPORT:
        mcl_end_session(c);
        give_up(c, "the later agent does not understand this library: use the libmcshm that came "
                   "with it");
        return 0;
    default:
        c->welcome = false;
        half_close(c);
    }
    if (mcl_now_ns() > c->away_until) {
        give_up(c, "no later agent came in time");
        return 0;
    }
    return -EAGAIN;
}

/* Until which time step() need not be called, unless c->half becomes readable. */
static int next_pause(struct mcshm *c)
{
    uint32_t ms = c->half >= 0 ? PAUSE_MS_MAX : c->pause_ms;

    if (c->half < 0 && c->pause_ms < PAUSE_MS_MAX)
        c->pause_ms = c->pause_ms * 3 / 2;
    return (int)(ms + mcs_ticks() % (ms / 4 + 1)); /* not all clients at the same moment */
}

void mcl_stir(struct mcshm *c)
{
    const uint64_t one = 1;

    while (c->watched && write(c->stir, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

mcshm_status mcl_come_back(struct mcshm *c, int64_t deadline)
{
    int res = step(c);

    while (res == -EAGAIN) {
        struct pollfd p = {.fd = c->half, .events = POLLIN};
        int64_t left = deadline - mcl_now_ns();
        int pause = next_pause(c);

        if (left <= 0)
            return mcl_fail(MCSHM_AGENT_DOWN,
                            "the agent is gone and no later one came within control_timeout_ms "
                            "(%u): call again, or connect anew",
                            c->control_timeout_ms);
        if (c->inside && mcs_load_acquire(&c->closing) != 0) /* partner: mcl_watch_stop() */
            return mcl_fail(MCSHM_AGENT_DOWN, "the connection is being closed");
        (void)poll(&p, 1, left / 1000000 < pause ? (int)(left / 1000000) + 1 : pause);
        res = step(c);
    }
    mcl_stir(c); /* the watcher has grants to ask for */
    return mcl_down(c) ? mcl_fail(MCSHM_AGENT_DOWN, "the session has ended, connect again")
                       : MCSHM_OK;
}

void mcl_leave(struct mcshm *c)
{
    /* With what is sent, or is on its way, already, the later agent finds session and hang-up at once. */
    if (c->half < 0 && !c->welcome)
        (void)dial(c);
}

static bool hung_up(const struct mcshm *c)
{
    struct pollfd p = {.fd = c->socket, .events = POLLRDHUP};

    return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

/* The mutex is held. Returns how many milliseconds to wait for *fd, -1: for ever. */
static int attend(struct mcshm *c, struct pollfd *what)
{
    if (!c->away && hung_up(c))
        mcl_lost(c);
    if (c->away && step(c) == -EAGAIN) {
        *what = (struct pollfd){.fd = c->half, .events = POLLIN};
        return next_pause(c);
    }
    if (c->grants_due && !mcl_down(c))
        mcl_regrant(c);
    if (!c->away && !mcl_down(c))
        mcl_object_maps_sweep(c);
    *what = (struct pollfd){.fd = c->socket, .events = POLLRDHUP};
    return c->away ? 0 : -1;
}

static void *watch(void *arg)
{
    struct mcshm *c = arg;
    bool down = false;

    (void)pthread_setname_np(pthread_self(), "mcshm-watch");
    while (!down && mcs_load_acquire(&c->closing) == 0) { /* partner: mcl_watch_stop() */
        struct pollfd p[2] = {[1] = {.fd = c->stir, .events = POLLIN}};
        uint64_t stirs;
        int ms;

        pthread_mutex_lock(&c->mutex);
        c->inside = true;
        ms = attend(c, &p[0]);
        down = mcl_down(c);
        c->inside = false;
        pthread_mutex_unlock(&c->mutex);
        /* a call of attend() may have heard the stir that says so */
        if (mcs_load_acquire(&c->closing) != 0)
            break;
        if (!down && poll(p, 2, ms) > 0 && p[1].revents != 0)
            (void)!read(c->stir, &stirs, sizeof(stirs));
    }
    return NULL;
}

mcshm_status mcl_watch_start(struct mcshm *c, const char *socket_path)
{
    sigset_t all, before;
    pthread_attr_t attr;
    int res;

    c->socket_path = strdup(socket_path);
    c->stir = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->socket_path == NULL || c->stir < 0)
        return mcl_fail(MCSHM_NO_MEMORY, "eventfd: %s", strerror(errno));
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_SIZE);
    c->watched = true;
    sigfillset(&all); /* signals are the caller's threads' */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    res = pthread_create(&c->watcher, &attr, watch, c);
    if (res == EINVAL) /* thread-local variables of the program take more than that */
        res = pthread_create(&c->watcher, NULL, watch, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (res != 0) {
        c->watched = false;
        return mcl_fail(MCSHM_NO_MEMORY,
                        "the thread that waits for a later agent: %s; options.reconnect_ms = 0 "
                        "does without",
                        strerror(res));
    }
    return MCSHM_OK;
}

void mcl_watch_stop(struct mcshm *c)
{
    if (!c->watched)
        return;
    mcs_store_release(&c->closing, 1u); /* pairs with the looks of the watcher */
    mcl_stir(c);
    pthread_join(c->watcher, NULL);
}
