/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "closer.h"
#include "cluster.h"
#include "fault.h"
#include "handlers.h"
#include "log.h"
#include "quiet.h"
#include "store.h"
#include "shm/failpoint.h"
#include "tenant.h"
#include "userns.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* asm-generic/socket.h since 6.5 */
#endif

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

#define HELLO_NS UINT64_C(5000000000) /* a connection must greet within this */
#define SEND_TRIES 3u                 /* of a reply, while the kernel is short of memory */
#define MESSAGES_A_TURN 16            /* of one session, then the others' turn */
#define UNGREETED_MAX 64u /* connections that have not greeted, or were refused politely */
#define ENDING_MAX 256u   /* and those on their way out */

/* ---- birth ----------------------------------------------------------------------- */

/* A descriptor that tells the client's death: the socket alone would not, when the client
 * forked and the child keeps it open. -1 where neither kernel nor namespace gives one. */
static int open_pidfd(int socket, pid_t pid)
{
    socklen_t n = sizeof(int);
    int fd = -1;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &n) == 0)
        return fd;
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

void mcd_session_link(struct mcd_session *s)
{
    struct mcd_agent *a = s->agent;

    s->next = a->sessions;
    if (s->next != NULL)
        s->next->prev = s;
    a->sessions = s;
    a->nsessions++;
}

/* Whose session it is: by its user and all of its groups. */
static int find_account(struct mcd_session *s, gid_t gid)
{
    gid_t few[64], *gids = few, *many = NULL;
    socklen_t n = sizeof(few) - sizeof(gid_t);
    size_t known;
    int res = 0;

    if (getsockopt(s->socket, SOL_SOCKET, SO_PEERGROUPS, few + 1, &n) != 0) {
        if (errno == ERANGE) {
            many = malloc(sizeof(gid_t) + n);
            gids = many != NULL ? many : few;
        }
        if (many == NULL || getsockopt(s->socket, SOL_SOCKET, SO_PEERGROUPS, many + 1, &n) != 0)
            n = 0; /* a kernel before 4.13, or no memory: the primary group alone counts */
    }
    gids[0] = gid;
    known = mcd_userns_known_groups(gids, 1 + n / sizeof(gid_t));
    res = mcd_tenant_get(&s->agent->tenants, &s->agent->config, s->uid, gids, known, &s->account);
    free(many);
    if (res == 0)
        s->tenant = s->account->id;
    return res;
}

/* Connections at a time: those who come back have two for a moment. */
static unsigned connections_max(const struct mcd_agent *a)
{
    return (unsigned)a->config.sessions + UNGREETED_MAX + a->recovery.away;
}

/* The oldest connection that has not greeted gives way to a new one, which may be quicker. */
static bool make_room(struct mcd_agent *a)
{
    struct mcd_session *oldest = NULL;

    for (struct mcd_session *s = a->sessions; s != NULL; s = s->next)
        if (!s->greeted && !s->ending && !s->op.active)
            oldest = s;
    if (oldest == NULL)
        return false;
    a->refused++;
    mcd_session_end(oldest, "did not greet while others waited");
    return a->nsessions < connections_max(a) + ENDING_MAX;
}

void mcd_session_accept(struct mcd_agent *a, int socket)
{
    struct ucred cred = {.pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1};
    socklen_t n = sizeof(cred);
    struct mcd_session *s = NULL;

    if (a->nsessions >= connections_max(a) && !make_room(a)) {
        a->refused++;
        goto error;
    }
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &n) != 0)
        goto error;
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        goto error;
    s->agent = a;
    s->socket = socket;
    s->pidfd = s->doorbell = s->region_fd = s->region_guard = -1;
    s->pid = cred.pid;
    s->uid = cred.uid;
    if (find_account(s, cred.gid) != 0)
        goto error;
    s->id = ++a->next_session;
    if (a->recovery.ledger != NULL)
        mcd_ledger_head(a->recovery.ledger)->next_session = a->next_session;
    s->incarnation = mcd_incarnation();
    s->salt = (uint32_t)s->incarnation;
    s->came = mcd_pool_now(&a->pool);
    s->since = mcd_now_ns();
    s->segment = mcd_segment_create(s, s->tenant, mcd_incarnation());
    if (s->segment == NULL)
        goto error;
    if (MCS_FAIL(session_born) != 0 || mcd_control_watch(a, socket, MCD_SOURCE_SESSION, s) != 0)
        goto error;
    s->pidfd = MCS_FAIL(session_pidfd) != 0 ? -1 : open_pidfd(socket, cred.pid);
    if (s->pidfd >= 0)
        mcd_control_watch(a, s->pidfd, MCD_SOURCE_SESSION, s);
    mcd_session_link(s);
    a->accepted++;
    mcd_session_readable(s); /* who has greeted already need not fear to give way */
    return;

error:
    if (s != NULL && s->segment != NULL)
        mcd_segment_put(s->segment);
    if (s != NULL && s->account != NULL)
        mcd_tenant_put(&a->tenants, s->account);
    free(s);
    mcd_closer_hang_up(cred.uid, socket); /* it may have mail already, with descriptors */
}

/* ---- mail ------------------------------------------------------------------------ */

/* While an operation runs the session's socket is not read: only its hang-up counts. */
static void listen_to(struct mcd_session *s, bool requests)
{
    struct epoll_event ev = {.events = EPOLLRDHUP};

    if (requests)
        ev.events |= EPOLLIN;
    ev.data.u64 = (uint64_t)(uintptr_t)s | MCD_SOURCE_SESSION;
    epoll_ctl(s->agent->epoll_fd, EPOLL_CTL_MOD, s->socket, &ev);
}

/* The kernel is short of memory just now: no fault of the client's. */
static bool is_shortage(int res)
{
    return res == -ENOMEM || res == -ENOBUFS;
}

void mcd_session_reply(struct mcd_session *s, struct mcs_msg *m, size_t body_size, const int *fds,
                       unsigned nfds)
{
    unsigned tries = 0;
    int res;

    if (s->ending)
        return;
    m->h.type = s->request_type;
    m->h.id = s->request_id;
    res = MCS_FAIL(reply_send);
    if (res == 0)
        do
            res = mcs_msg_send(s->socket, m, body_size, fds, nfds);
        while (is_shortage(res) && ++tries < SEND_TRIES);
    if (res == -EAGAIN)
        mcd_session_end(s, "does not take its replies");
    else if (res != 0) /* it has died or closed in the meantime */
        mcd_session_end(s, NULL);
}

void mcd_session_refuse(struct mcd_session *s, uint32_t status, const char *format, ...)
{
    struct mcs_msg m;
    va_list ap;

    memset(&m, 0, sizeof(m.h) + sizeof(m.b.error));
    m.h.status = status;
    va_start(ap, format);
    vsnprintf(m.b.error.text, sizeof(m.b.error.text), format, ap);
    va_end(ap);
    if (status < MCS_STATUS_COUNT)
        s->agent->refusals[status]++;
    mcd_debug("session %u: refused: %s", s->id, m.b.error.text);
    mcd_session_reply(s, &m, sizeof(m.b.error), NULL, 0);
}

/* So many of the user's descriptors wait to be closed that no more of them are taken. The message stays in the
 * socket: what lies there is closed with it, by those who may hang over that. */
static void refuse_descriptors(struct mcd_session *s, const struct mcs_msg_header *h)
{
    s->request_type = h->type;
    s->request_id = h->id;
    mcd_session_refuse(s, MCS_LIMIT,
                       "earlier descriptors of this user still wait to be closed: pass memfds "
                       "only, or see what keeps them");
    mcd_session_end(s, "passed a descriptor while earlier ones of its user do not close");
}

/* Reads until the socket is empty, an operation begins or the session's turn is over. */
void mcd_session_readable(struct mcd_session *s)
{
    struct mcs_msg m;
    int fds[MCS_MSG_FDS_ALL];
    unsigned nfds;
    bool carries = false;
    int res;

    for (int i = 0; i < MESSAGES_A_TURN && !s->ending && !s->op.active; i++) {
        if (mcd_closer_choked(s->uid)) {
            res = mcs_msg_peek(s->socket, &m.h, &carries);
            if (res == -EAGAIN || res == -EINTR || is_shortage(res))
                break;
            if (res == 0 && carries) {
                refuse_descriptors(s, &m.h);
                break;
            }
        }
        res = mcs_msg_recv_all(s->socket, &m, fds, MCS_MSG_FDS_ALL, &nfds);
        if (res == -EAGAIN || res == -EINTR || is_shortage(res))
            break; /* what is still there is told again */
        if (res != 0) {
            s->agent->descriptors_unwanted += nfds;
            mcd_closer_put(s->uid, fds, nfds);
        }
        if (res == -EPIPE) {
            mcd_session_end(s, NULL);
        } else if (res == -EPROTONOSUPPORT) {
            s->agent->version_errors++;
            s->request_type = m.h.type;
            s->request_id = m.h.id;
            mcd_session_refuse(s, MCS_VERSION,
                               "the client speaks control protocol %u, this agent %u: install "
                               "libmcshm and mcshmd of one version",
                               m.h.version, MCS_MSG_VERSION);
            mcd_session_end(s, "speaks another protocol version");
        } else if (res == -EMFILE) {
            s->request_type = m.h.type;
            s->request_id = m.h.id;
            mcd_session_refuse(s, MCS_LIMIT,
                               "the agent has no file descriptor left for the one that came along: "
                               "raise its limit (ulimit -n, LimitNOFILE=)");
        } else if (res != 0) {
            s->agent->protocol_errors++;
            mcd_session_end(s, "sent a malformed message");
        } else {
            s->requests++;
            s->agent->requests++;
            s->request_type = m.h.type;
            s->request_id = m.h.id;
            MCS_FAILPOINT(request_taken);
            mcd_session_handle(s, &m, fds, nfds);
            if (m.h.type == MCS_MSG_QUERY || m.h.type == MCS_MSG_TRACE ||
                m.h.type == MCS_MSG_RELOAD)
                break; /* it takes long: one a turn */
        }
    }
}

/* ---- operations ------------------------------------------------------------------ */

void mcd_session_defer(struct mcd_session *s, bool (*ready)(struct mcd_session *s),
                       void (*finish)(struct mcd_session *s))
{
    if (!s->op.active)
        listen_to(s, false);
    s->op.active = true;
    s->op.ready = ready;
    s->op.rings = false;
    s->op.finish = finish;
    mcd_grace_begin(&s->op.grace, s->agent->engines, s->agent->nengines);
}

void mcd_session_await(struct mcd_session *s, uint64_t deadline,
                       bool (*ready)(struct mcd_session *s), void (*finish)(struct mcd_session *s))
{
    mcd_session_defer(s, ready, finish);
    s->op.deadline = deadline;
    s->op.rings = true;
}

static void poll_operation(struct mcd_session *s)
{
    struct mcd_operation *op = &s->op;
    void (*finish)(struct mcd_session *) = op->finish;

    if (!mcd_grace_over(&op->grace) || (op->ready != NULL && !op->ready(s)))
        return;
    op->finish = NULL;
    finish(s);
    if (op->finish != NULL) /* the next stage */
        return;
    *op = (struct mcd_operation){.active = false};
    if (!s->ending)
        listen_to(s, true);
}

/* True when nobody tells that it is to be looked at again. */
static bool is_silent(struct mcd_session *s, uint64_t *due)
{
    const struct mcd_operation *op = &s->op;

    if (!op->active)
        return false;
    if (!op->rings || !mcd_grace_over(&s->op.grace)) /* engines ring for nobody */
        return true;
    if (op->deadline != 0 && op->deadline < *due)
        *due = op->deadline;
    return false;
}

/* ---- death ----------------------------------------------------------------------- */

void mcd_session_meta_record(const struct mcd_session *s, struct mcm_record *out)
{
    const struct mcd_segment *seg = s->segment;

    *out = (struct mcm_record){
        .incarnation = seg->incarnation,
        .agent_incarnation = s->agent->incarnation,
        .tenant = seg->tenant,
        .flags = seg->flags,
        .version = MCM_VERSION,
    };
    snprintf(out->name, sizeof(out->name), "%s", seg->name);
    snprintf(out->agent, sizeof(out->agent), "%.255s", s->agent->cluster->address);
}

void mcd_session_name(struct mcd_session *s)
{
    struct mcd_segment *seg = s->segment;

    seg->named = true;
    seg->prev = NULL;
    seg->next = s->agent->segments;
    if (seg->next != NULL)
        seg->next->prev = seg;
    s->agent->segments = seg;
    mcd_ledger_name(s->record, seg->name, seg->flags);
}

void mcd_session_unname(struct mcd_session *s)
{
    struct mcd_segment *seg = s->segment;

    mcd_ledger_name(s->record, NULL, 0);
    if (seg->named) {
        if (seg->prev != NULL)
            seg->prev->next = seg->next;
        else
            s->agent->segments = seg->next;
        if (seg->next != NULL)
            seg->next->prev = seg->prev;
        seg->prev = seg->next = NULL;
        seg->named = false;
    }
}

static void unregistered(void *context, const struct mcm_result *result)
{
    struct mcd_session *s = context;

    (void)result; /* the metadata tries on until the name or its lease is gone */
    if (s != NULL)
        s->op.answered = true; /* it cannot go away: its end waits for its operation */
}

void mcd_session_withdraw(struct mcd_session *s, struct mcd_snapshot **old)
{
    struct mcd_segment *seg = s->segment;
    struct mcd_agent *a = s->agent;

    if (seg->named && a->cluster != NULL)
        MCS_FAILPOINT(meta_withdraw);
    if (seg->named && a->cluster != NULL)
        mcm_unregister(a->cluster->meta, seg->name, seg->incarnation, unregistered,
                       s->ending ? NULL : s);
    mcd_session_unname(s);
    mcd_segment_clear(seg, old);
    MCS_FAILPOINT(withdrawn);
    mcd_segments_changed(a);
}

void mcd_session_end(struct mcd_session *s, const char *why)
{
    if (s->ending)
        return;
    s->ending = true;
    s->stage = MCD_LIVING;
    s->since = mcd_now_ns();
    if (why != NULL)
        mcd_log_cause(why, MCD_LOG_WARNING, "session %u (%s, pid %d, uid %u): ended: %s", s->id,
                      s->name[0] != '\0' ? s->name : "no name", (int)s->pid, s->uid, why);
    /* no later agent will know it, and the client need not look for one */
    mcd_ledger_drop(s->agent->recovery.ledger, MCD_LEDGER_SESSION, s->record);
    s->record = NULL;
    if (s->region.words != NULL)
        mcs_store_release(&s->region.words->ended,
                          1u); /* before the hang-up; partner: the client */
    if (s->socket >= 0)
        mcd_control_unwatch(s->agent, s->socket);
    if (s->pidfd >= 0)
        mcd_control_unwatch(s->agent, s->pidfd);
    s->agent->ended++;
    s->agent->fault_ends += why != NULL && s->greeted;
}

void mcd_session_move(struct mcd_session *s, struct mcd_session *t)
{
    struct mcd_agent *a = s->agent;

    if (s->pidfd >= 0) {
        mcd_control_unwatch(a, s->pidfd);
        close(s->pidfd);
    }
    mcd_control_unwatch(a, t->socket);
    if (t->pidfd >= 0)
        mcd_control_unwatch(a, t->pidfd);
    s->socket = t->socket;
    s->pidfd = t->pidfd;
    t->socket = t->pidfd = -1;
    s->request_type = t->request_type;
    s->request_id = t->request_id;
    s->since = mcd_now_ns();
    mcd_session_end(t, NULL);
    a->ended--; /* it was none */
    if (mcd_control_watch(a, s->socket, MCD_SOURCE_SESSION, s) != 0)
        mcd_session_end(s, "cannot be watched");
    if (s->pidfd >= 0)
        mcd_control_watch(a, s->pidfd, MCD_SOURCE_SESSION, s);
}

static void unwatch_doorbell(struct mcd_session *s)
{
    for (unsigned i = 0; i < s->agent->nengines; i++)
        if ((s->watched >> i & 1) != 0)
            mcd_engine_unwatch(s->agent->engines[i], s->doorbell);
    s->watched = 0;
}

static void add_reported(struct mcd_reported *sum, const struct mcd_reported *r)
{
    sum->caller_tasks += r->caller_tasks;
    sum->caller_bytes += r->caller_bytes;
    sum->staged_tasks += r->staged_tasks;
    sum->staged_bytes += r->staged_bytes;
}

/* Added up as far as it can be true: no client makes a copy each nanosecond, or moves a page in one. */
void mcd_queue_reported(const struct mcd_queue *q, struct mcd_reported *sum)
{
    const struct mcs_doorbell *d = q->shm.doorbell;
    uint64_t tasks_max = mcd_now_ns() - q->opened, bytes_max = tasks_max * 4096;
    /* relaxed: only counts, and the client writes what it likes */
    struct mcd_reported r = {
        .caller_tasks = mcs_load_relaxed(&d->caller_tasks),
        .caller_bytes = mcs_load_relaxed(&d->caller_bytes),
        .staged_tasks = mcs_load_relaxed(&d->staged_tasks),
        .staged_bytes = mcs_load_relaxed(&d->staged_bytes),
    };

    if (r.caller_tasks > tasks_max || r.staged_tasks > tasks_max || r.caller_bytes > bytes_max ||
        r.staged_bytes > bytes_max)
        return;
    add_reported(sum, &r);
}

void mcd_session_free_queue(struct mcd_session *s, struct mcd_queue *q)
{
    struct mcd_queue **link = &s->queues;

    while (*link != NULL && *link != q)
        link = &(*link)->next;
    if (*link == q) {
        *link = q->next;
        s->nqueues--;
    }
    if (q->shm.doorbell != NULL) {
        struct mcd_reported r = {0};

        mcd_queue_reported(q, &r);
        add_reported(&s->agent->reported, &r);
        s->account->caller_bytes_gone += r.caller_bytes;
    }
    s->agent->queue_memory -= q->memory;
    s->account->queues--;
    if (q->stats != NULL) {
        s->account->tasks_gone += mcs_load_relaxed(&q->stats->sums.tasks);
        s->account->bytes_gone += mcs_load_relaxed(&q->stats->sums.bytes);
    }
    mcd_ledger_drop(s->agent->recovery.ledger, MCD_LEDGER_QUEUE, q->record);
    mcd_stats_queue_gone(s, q);
    mcd_queue_fini(q);
    if (q->guard >= 0)
        mcd_fault_remove(q->guard);
    if (q->shm.header != NULL)
        mcd_reap_region(s->agent, q->shm.header, q->shm.total_size, q->fd);
    else if (q->fd >= 0)
        close(q->fd);
    free(q);
}

/* Takes everything out of the engines' reach. */
static void begin_leaving(struct mcd_session *s)
{
    mcd_session_withdraw(s, &s->op.old);
    mcs_store_release(&s->segment->owner, NULL); /* partner: deliver() in task.c */
    for (struct mcd_queue *q = s->queues; q != NULL; q = q->next) {
        q->leave = (struct mcd_command){.kind = MCD_COMMAND_REMOVE, .queue = q};
        if (q->given)
            mcd_engine_command(q->engine, &q->leave);
        else
            q->leave.done = 1; /* it came back, and no engine has had it yet */
    }
    s->stage = MCD_LEAVING;
}

static bool queues_left(const struct mcd_session *s)
{
    for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next)
        if (mcs_load_acquire(&q->leave.done) == 0) /* partner: run_commands() in engine.c */
            return true;
    return false;
}

static void free_session(struct mcd_session *s)
{
    struct mcd_registration *r = mcd_segment_dropped(s->segment), *next;
    struct mcd_agent *a = s->agent;

    /* Nobody waits for the devices: the extents are there until these are gone. */
    for (; r != NULL; r = next) {
        next = r->dropped;
        mcd_registration_drop(r, NULL, NULL);
    }
    unwatch_doorbell(s);
    free(s->op.old);
    mcd_limbo_free(s);
    while (s->queues != NULL)
        mcd_session_free_queue(s, s->queues);
    mcd_stats_forget(s);
    mcd_import_drop(s);
    while (s->grants != NULL) {
        struct mcd_grant *g = s->grants;

        s->grants = g->next;
        mcd_extent_put(&a->pool, g->extent);
        free(g);
    }
    for (uint32_t i = 0; i < MCD_TABLE_SIZE; i++) {
        if (s->extents[i] != NULL) {
            mcd_extent_forget(&a->pool, s->extents[i]);
            mcd_extent_put(&a->pool, s->extents[i]);
        }
        if (s->opens[i] != NULL) {
            mcd_segment_put(s->opens[i]->segment);
            free(s->opens[i]);
        }
    }
    MCS_FAILPOINT(session_gone);
    mcd_segment_put(s->segment);
    if (s->region.header != NULL) {
        mcd_fault_remove(s->region_guard);
        mcd_reap_region(a, s->region.header, s->region.total_size, s->region_fd);
    }
    if (s->doorbell >= 0)
        close(s->doorbell);
    if (s->pidfd >= 0)
        close(s->pidfd);
    if (s->socket >= 0)
        mcd_closer_hang_up(s->uid, s->socket); /* with unread mail, and the descriptors in it */
    if (s->prev != NULL)
        s->prev->next = s->next;
    else
        a->sessions = s->next;
    if (s->next != NULL)
        s->next->prev = s->prev;
    a->nsessions--;
    mcd_session_hold(s, -(int64_t)s->memory);
    s->account->sessions -= s->admitted;
    mcd_tenant_put(&a->tenants, s->account);
    a->nadmitted -= s->admitted;
    mcd_debug("session %u: gone", s->id);
    free(s);
}

/* One step of a session's end, when its last request has been worked off. True while it is not over. */
static bool poll_ending(struct mcd_session *s)
{
    if (s->stage == MCD_LIVING) {
        begin_leaving(s);
        MCS_FAILPOINT(session_leaving);
    }
    if (s->stage == MCD_LEAVING) {
        if (queues_left(s))
            return true;
        MCS_FAILPOINT(session_fading);
        mcd_store_session_gone(s);
        /* The other end sees the hang-up only now: its tasks are quiet. */
        if (s->socket >= 0)
            shutdown(s->socket, SHUT_RDWR);
        /* engines that serve others may still look at its memory: until the grace is over */
        mcd_grace_begin(&s->op.grace, s->agent->engines, s->agent->nengines);
        s->stage = MCD_FADING;
    }
    if (s->stage == MCD_FADING) {
        if (!mcd_grace_over(&s->op.grace))
            return true;
        s->stage = MCD_QUIETING;
    }
    /* peers' transfers into and out of its memory that began before */
    if (!mcd_quiet(s->agent, &s->op.quieting, s, NULL, 0, 0))
        return true;
    MCS_FAILPOINT(session_quiet);
    free_session(s);
    return false;
}

/* What of this session's memory was taken away under the agent? NULL: nothing. */
static const char *fault_of(const struct mcd_session *s)
{
    if (s->region_guard >= 0 && mcd_fault_happened(s->region_guard))
        return "took its session's memory away";
    for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next)
        if (mcd_fault_happened(q->guard))
            return "took its queue's memory away";
    for (uint32_t i = 0; s->nextents != 0 && i < MCD_TABLE_SIZE; i++)
        if (s->extents[i] != NULL && s->extents[i]->guard >= 0 &&
            mcd_fault_happened(s->extents[i]->guard))
            return "took memory of an extent away";
    return NULL;
}

/* Why must this session end? NULL when it need not. */
static const char *complaint(const struct mcd_session *s, uint64_t now, bool faults)
{
    if (!s->greeted) /* while its region is being made it has */
        return !s->op.active && now - s->since > HELLO_NS ? "did not greet in 5 s" : NULL;
    if (mcs_load_acquire(&s->inbox_error) != 0) /* partner: deliver() in task.c */
        return "its inbox words are impossible";
    for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next)
        if (mcs_load_acquire(&q->error) != 0) /* partner: break_queue() in burst.c */
            return "broke the protocol of its queue";
    return faults ? fault_of(s) : NULL;
}

bool mcd_sessions_poll(struct mcd_agent *a)
{
    uint64_t now = mcd_now_ns();
    uint32_t total = mcd_fault_total();
    bool faults = total != a->faults;
    struct mcd_session *next;
    bool waiting = false;

    a->look |= faults;
    a->due = UINT64_MAX;

    for (struct mcd_session *s = a->sessions; s != NULL; s = next) {
        next = s->next;
        if (!s->ending && a->look) {
            const char *why = complaint(s, now, faults);

            if (why != NULL)
                mcd_session_end(s, why);
        }
        if (s->op.active) {
            poll_operation(s);
            waiting |= is_silent(s, &a->due);
        }
        if (s->ending && !s->op.active)
            waiting |= poll_ending(s);
    }
    a->look = false;
    a->faults = total;
    return waiting;
}

/* ---- tables ---------------------------------------------------------------------- */

void mcd_session_hold(struct mcd_session *s, int64_t bytes)
{
    s->memory += (uint64_t)bytes;
    s->account->memory += (uint64_t)bytes;
}

uint32_t mcd_session_handle_new(struct mcd_session *s, void *const *table)
{
    for (uint32_t i = 0; i < MCD_TABLE_SIZE; i++) {
        if (table[i] == NULL) {
            /* salted, so that a handle of another session or an earlier life misses */
            s->salt = s->salt * 1664525u + 1013904223u;
            return ((s->salt | 0x80000000u) & ~(MCD_TABLE_SIZE - 1)) | i;
        }
    }
    return 0;
}

struct mcd_extent *mcd_session_extent(struct mcd_session *s, uint32_t handle)
{
    struct mcd_extent *e = s->extents[MCD_HANDLE_INDEX(handle)];

    return e != NULL && e->handle == handle ? e : NULL;
}

struct mcd_open *mcd_session_open(struct mcd_session *s, uint32_t handle)
{
    struct mcd_open *o = s->opens[MCD_HANDLE_INDEX(handle)];

    return o != NULL && o->handle == handle ? o : NULL;
}
