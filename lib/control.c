/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control calls: one request and its reply on the agent's socket, one at a time.
 *
 * A reply that does not come in time leaves both sides with different ideas of what exists
 * (was the extent given, or not?), so the connection then ends: it says so to the agent and
 * makes no further call.
 *
 * Not so a reply that does not come because the agent has died.  A later one has what the
 * library hands back, which is what the lists say, and they are changed only after a reply: so
 * the request is sent again, to that one.
 */
#include "internal.h"
#include "shm/failpoint.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define IDLE_S 1 /* seconds without progress that make a look at the socket worth it */
#define LIVES 3u /* agents that one request is sent to: it may be what they die of */

static const char *const type_names[MCS_MSG_COUNT] = {
    [MCS_MSG_HELLO] = "HELLO",
    [MCS_MSG_QUEUE_OPEN] = "QUEUE_OPEN",
    [MCS_MSG_QUEUE_CLOSE] = "QUEUE_CLOSE",
    [MCS_MSG_ALLOC] = "ALLOC",
    [MCS_MSG_FREE] = "FREE",
    [MCS_MSG_REGISTER] = "REGISTER",
    [MCS_MSG_UNREGISTER] = "UNREGISTER",
    [MCS_MSG_PUBLISH] = "PUBLISH",
    [MCS_MSG_WITHDRAW] = "WITHDRAW",
    [MCS_MSG_BUFFER_ADD] = "BUFFER_ADD",
    [MCS_MSG_BUFFER_REMOVE] = "BUFFER_REMOVE",
    [MCS_MSG_REVOKE] = "REVOKE",
    [MCS_MSG_SEGMENT_OPEN] = "SEGMENT_OPEN",
    [MCS_MSG_SEGMENT_CLOSE] = "SEGMENT_CLOSE",
    [MCS_MSG_DESCRIBE] = "DESCRIBE",
    [MCS_MSG_MAP] = "MAP",
    [MCS_MSG_UNMAP] = "UNMAP",
    [MCS_MSG_QUERY] = "QUERY",
    [MCS_MSG_PING] = "PING",
    [MCS_MSG_RESTORE] = "RESTORE",
    [MCS_MSG_EXTENT_BACK] = "EXTENT_BACK",
    [MCS_MSG_ALLOCS_BACK] = "ALLOCS_BACK",
    [MCS_MSG_QUEUE_BACK] = "QUEUE_BACK",
    [MCS_MSG_OPEN_BACK] = "OPEN_BACK",
    [MCS_MSG_RESUME] = "RESUME",
    [MCS_MSG_RELOAD] = "RELOAD",
    [MCS_MSG_TRACE] = "TRACE",
    [MCS_MSG_OBJECT_MAP] = "OBJECT_MAP",
    [MCS_MSG_OBJECT_UNMAP] = "OBJECT_UNMAP",
    [MCS_MSG_OBJECTS] = "OBJECTS",
    [MCS_MSG_GPU_ALLOC] = "GPU_ALLOC",
    [MCS_MSG_GPU_IMPORT] = "GPU_IMPORT",
};

int64_t mcl_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void mcl_futex_wait(const void *word, uint32_t value, int64_t ns)
{
    struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

    /* not FUTEX_PRIVATE: the waker is another process. Woken for no reason is fine. */
    syscall(SYS_futex, word, FUTEX_WAIT, value, &ts, NULL, 0);
}

bool mcl_hangup(struct mcshm *c)
{
    struct pollfd p = {.fd = c->socket, .events = POLLRDHUP};

    if (c->watched) /* whose matter it is then */
        return mcl_down(c);
    if (!mcl_down(c) && poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0)
        mcs_store_relaxed(&c->down, 1u); /* partner: mcl_down() */
    return mcl_down(c);
}

void mcl_idle_look(struct mcshm *c, struct mcl_idle *idle)
{
    uint64_t now = mcs_ticks();

    if (idle->since == 0) {
        idle->since = now;
    } else if (now - idle->since > IDLE_S * c->info.tick_hz) {
        idle->since = now;
        (void)mcl_hangup(c);
    }
}

void mcl_close_fds(struct mcl_fds *fds)
{
    for (unsigned i = 0; i < fds->n; i++)
        close(fds->fd[i]);
    fds->n = 0;
}

/* Waits until the socket is ready for `events`. 0, -ETIMEDOUT, -ECANCELED: the watcher is to end. */
static int await(struct mcshm *c, short events, int64_t deadline)
{
    struct pollfd p[] = {{.fd = c->socket, .events = events}, {.fd = c->stir, .events = POLLIN}};

    for (;;) {
        int64_t left = deadline - mcl_now_ns();
        uint64_t stirs;
        int n;

        if (left <= 0)
            return -ETIMEDOUT;
        if (c->inside && mcs_load_acquire(&c->closing) != 0) /* partner: mcl_watch_stop() */
            return -ECANCELED;
        n = poll(p, c->inside ? 2 : 1, (int)((left + 999999) / 1000000));
        if (n > 0 && p[0].revents != 0)
            return 0;
        if (n > 0 && read(c->stir, &stirs, sizeof(stirs)) < 0 && errno != EAGAIN)
            return -errno;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
}

static int exchange(struct mcshm *c, struct mcs_msg *m, size_t body, int send_fd,
                    struct mcl_fds *fds, int64_t deadline)
{
    int res = MCS_FAIL(call_send);

    if (res != 0)
        return res;
    do {
        res = mcs_msg_send(c->socket, m, body, &send_fd, send_fd >= 0 ? 1 : 0);
        if (res == -EAGAIN) {
            res = await(c, POLLOUT, deadline);
            if (res == 0)
                res = -EAGAIN;
        }
    } while (res == -EAGAIN);
    if (res == 0)
        res = MCS_FAIL(call_sent);
    while (res == 0) {
        res = await(c, POLLIN, deadline);
        if (res != 0)
            break;
        res = mcs_msg_recv(c->socket, m, fds->fd, &fds->n);
        if (res != -EAGAIN && res != -EINTR)
            break;
        res = 0;
    }
    return res;
}

/* Checks a reply before anything in it is used. */
int mcl_check_reply(const struct mcs_msg *m, uint16_t type, uint32_t id)
{
    size_t body = m->h.length - sizeof(m->h);

    if (m->h.type != type || m->h.id != id)
        return -EPROTO;
    if (m->h.status != MCS_OK)
        return body == sizeof(struct mcs_msg_error) ? 0 : -EPROTO;
    if (type != MCS_MSG_DESCRIBE)
        return body == mcs_msg_reply_size(type) ? 0 : -EPROTO;
    if (body < mcs_msg_reply_size(type) || m->b.describe_reply.count > MCS_MSG_DESCRIBE_MAX)
        return -EPROTO;
    return body == mcs_msg_reply_size(type) +
                       m->b.describe_reply.count * sizeof(struct mcs_msg_buffer_info)
               ? 0
               : -EPROTO;
}

/* After this the agent ends the session, and mcl_hangup() or the watcher sees it do so. */
void mcl_end_session(struct mcshm *c)
{
    c->broken = true;
    shutdown(c->socket, SHUT_WR);
}

static mcshm_status transport_error(struct mcshm *c, int res, uint16_t type)
{
    const char *name = type_names[type];
    mcshm_status status;

    switch (res) {
    case -ECANCELED: /* the watcher's; the session is about to end anyhow */
        return mcl_fail(MCSHM_AGENT_DOWN, "%s: the connection is being closed", name);
    case -ETIMEDOUT:
        status = mcl_fail(MCSHM_TIMEOUT, "no answer to %s within %u ms (%s): the connection ends",
                          name, c->control_timeout_ms,
                          type == MCS_MSG_HELLO ? "connect_timeout_ms" : "control_timeout_ms");
        break;
    case -EPIPE:
    case -ECONNRESET:
    case -ENOTCONN:
        mcs_store_relaxed(&c->down, 1u); /* partner: mcl_down() */
        status = mcl_fail(MCSHM_AGENT_DOWN, "the agent ended the session during %s: connect again",
                          name);
        break;
    case -EPROTONOSUPPORT:
        status = mcl_fail(MCSHM_VERSION_MISMATCH,
                          "the agent speaks another protocol version than %u: use the libmcshm "
                          "that came with it",
                          MCS_MSG_VERSION);
        break;
    case -EPROTO:
        status = mcl_fail(MCSHM_PROTOCOL, "malformed answer to %s: the connection ends", name);
        break;
    default:
        status = mcl_fail(MCSHM_INTERNAL, "%s: %s", name, strerror(-res));
        break;
    }
    mcl_end_session(c);
    return status;
}

bool mcl_is_hangup(int res)
{
    return res == -EPIPE || res == -ECONNRESET || res == -ENOTCONN;
}

int mcl_exchange(struct mcshm *c, uint16_t type, struct mcs_msg *m, int send_fd,
                 struct mcl_fds *fds, int64_t deadline)
{
    int res;

    fds->n = 0;
    m->h = (struct mcs_msg_header){.type = type, .id = ++c->last_id};
    res = exchange(c, m, mcs_msg_request_size(type), send_fd, fds, deadline);
    if (res == 0) {
        res = MCS_FAIL(call_received);
        if (res == 0)
            res = mcl_check_reply(m, type, c->last_id);
        if (res != 0)
            mcl_close_fds(fds);
    }
    return res;
}

/* Is it the only allocation of its extent? */
static bool is_last(const struct mcshm *c, const struct mcs_msg_free *r)
{
    for (size_t i = 0; i < c->nallocs; i++) {
        if (c->allocs[i].extent == r->extent && c->allocs[i].offset != r->offset)
            return false;
    }
    return true;
}

/* About what a later agent has not taken back: because the dead one had done it, or for want of memory. The
 * agent knows nothing of it, and the answer is what it would have been. */
static bool was_done(struct mcshm *c, uint16_t type, struct mcs_msg *m)
{
    const struct mcl_extent *e;

    switch (type) {
    case MCS_MSG_FREE:
        e = mcl_extent_by_handle(c, m->b.free.extent);
        if (e == NULL || !e->lost)
            return false;
        m->b.free_reply = (struct mcs_msg_free_reply){.extent_gone = is_last(c, &m->b.free)};
        return true;
    case MCS_MSG_UNREGISTER:
        e = mcl_extent_by_handle(c, m->b.unregister.extent);
        return e != NULL && e->lost;
    case MCS_MSG_QUEUE_CLOSE:
        for (const struct mcshm_queue *q = c->queues; q != NULL; q = q->next) {
            if (q->id == m->b.queue_close.queue_id)
                return mcs_load_relaxed(&q->lost) != 0;
        }
        return false;
    default:
        return false;
    }
}

/* The answer to a request that is made again. */
static bool is_done(uint16_t type, uint32_t status)
{
    return type == MCS_MSG_WITHDRAW && status == MCS_NOT_FOUND;
}

mcshm_status mcl_call(struct mcshm *c, uint16_t type, struct mcs_msg *m, int send_fd,
                      struct mcl_fds *fds)
{
    int64_t deadline = mcl_now_ns() + (int64_t)c->control_timeout_ms * 1000000;
    const char *name = type_names[type];
    struct mcl_fds none = {.n = 0};
    struct mcl_fds *got = fds != NULL ? fds : &none;
    mcshm_status status = MCSHM_OK;
    unsigned lives = 0;
    int res = 0;

    got->n = 0;
    c->calling = type;
    for (;;) {
        if (c->broken || mcl_down(c)) {
            status = mcl_fail(MCSHM_AGENT_DOWN, "%s: the session has ended, connect again", name);
            goto out;
        }
        if (c->away) {
            status = mcl_come_back(c, deadline);
            if (status != MCSHM_OK)
                goto out;
        }
        if (lives == LIVES) {
            status = mcl_fail(MCSHM_AGENT_RESTARTED, "%u agents died before they answered %s",
                              lives, name);
            goto out;
        }
        if (was_done(c, type, m))
            goto out;
        res = mcl_exchange(c, type, m, send_fd, got, deadline);
        if (!mcl_is_hangup(res) || !c->kept)
            break;
        mcl_lost(c);
        lives++;
    }
    if (res != 0) {
        status = transport_error(c, res, type);
        goto out;
    }
    if (m->h.status != MCS_OK && !(lives != 0 && is_done(type, m->h.status))) {
        m->b.error.text[sizeof(m->b.error.text) - 1] = '\0';
        status = m->h.status < MCS_STATUS_COUNT ? (mcshm_status)m->h.status : MCSHM_INTERNAL;
        mcl_fail(status, "%s", m->b.error.text[0] != '\0' ? m->b.error.text : name);
        mcl_close_fds(got);
        goto out;
    }
    if (fds == NULL)
        mcl_close_fds(got);
out:
    c->calling = 0;
    return status;
}
