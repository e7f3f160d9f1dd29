/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control requests of clients: dispatch, greeting, queues, queries, and what the other
 * handlers share.  Whatever takes reach away (free, unregister, withdraw, revoke, close)
 * first makes the thing unfindable, then waits for a grace period and for copies in callers'
 * threads, then replies.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "closer.h"
#include "cluster.h"
#include "fault.h"
#include "handlers.h"
#include "log.h"
#include "quiet.h"
#include "store.h"
#include "shm/region.h"
#include "userns.h"
#include "version.h"
#include "shm/failpoint.h"

/* The queues of all sessions may have as much memory as the pool, or this where that is less. */
#define QUEUE_MEMORY_MIN (UINT64_C(1) << 30)
#define CALLER_NS UINT64_C(2000000000) /* how long a copy in a caller's thread may keep us */

void mcd_reply(struct mcd_session *s, struct mcs_msg *m, size_t body_size)
{
    m->h.status = MCS_OK;
    mcd_session_reply(s, m, body_size, NULL, 0);
}

void mcd_reply_empty(struct mcd_session *s)
{
    struct mcs_msg m;

    mcd_reply(s, &m, 0);
}

void mcd_session_refuse_limit(struct mcd_session *s, enum mcd_limit what, uint64_t have,
                              uint64_t more)
{
    const struct mcd_tenant *t = s->account;
    const uint64_t limits[MCD_LIMIT_COUNT] = {[MCD_LIMIT_MEMORY] = t->limits.memory,
                                              [MCD_LIMIT_SESSIONS] = t->limits.sessions,
                                              [MCD_LIMIT_QUEUES] = t->limits.queues};

    mcd_session_refuse(
        s, MCS_LIMIT,
        "%llu %s more than the %llu that tenant %s has are beyond its limit, [tenant%s%s] %s = "
        "%llu: "
        "free or close some, or raise it",
        (unsigned long long)more, what == MCD_LIMIT_MEMORY ? "bytes" : mcd_limit_words[what],
        (unsigned long long)have, t->name, t->named ? ":" : "", t->named ? t->name : "",
        mcd_limit_words[what], (unsigned long long)limits[what]);
}

/* A name as it came over the wire: terminated, not empty, no control characters. */
/* Bytes of the well-formed UTF-8 character at p (RFC 3629), 0 when it is none. */
static size_t utf8_length(const unsigned char *p)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    uint32_t v = n == 1 ? p[0] : p[0] & (0x7fu >> n);

    for (size_t i = 1; i < n; i++) { /* a NUL ends the name and the character */
        if (p[i] >> 6 != 2)
            return 0;
        v = v << 6 | (p[i] & 0x3f);
    }
    return n != 0 && v >= least[n] && v <= 0x10ffff && (v < 0xd800 || v > 0xdfff) ? n : 0;
}

bool mcd_good_name(const char *name)
{
    const unsigned char *p = (const unsigned char *)name;
    size_t n = strnlen(name, MCS_NAME_MAX), step;

    if (n == 0 || n == MCS_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i += step) {
        step = utf8_length(p + i);
        if (step == 0 || p[i] < 0x20 || p[i] == 0x7f)
            return false;
    }
    return true;
}

/* ---- HELLO ----------------------------------------------------------------------- */

uint64_t mcd_features(const struct mcd_agent *a)
{
    return (a->config.idle == MCD_IDLE_BUSY ? MCS_FEATURE_NEVER_SLEEPS : 0) |
           (a->recovery.ledger != NULL ? MCS_FEATURE_KEPT : 0) |
           (a->store != NULL ? MCS_FEATURE_OBJECTS : 0) | (a->gpu != NULL ? MCS_FEATURE_GPU : 0);
}

/* Before the client hears of the session: a later agent must know what it may come back with. */
static int record_session(struct mcd_session *s)
{
    struct mcd_ledger *l = s->agent->recovery.ledger;
    struct mcd_ledger_session r = {
        .incarnation = s->incarnation,
        .segment = s->segment->incarnation,
        .tenant = s->tenant,
        .started = mcd_process_started(s->pid),
        .inbox_size = s->region.inbox_size,
        .id = s->id,
        .pid = s->pid,
        .uid = s->uid,
        .leaves = s->leaves,
    };
    struct stat st;

    if (l == NULL)
        return 0;
    if (fstat(s->region_fd, &st) != 0)
        return -errno;
    r.region_ino = st.st_ino;
    r.region_dev = st.st_dev;
    snprintf(r.name, sizeof(r.name), "%s", s->name);
    s->record = mcd_ledger_add(l, MCD_LEDGER_SESSION, &r);
    return s->record != NULL ? 0 : -ENOMEM;
}

/* The memory that the worker has made becomes the session's. */
static int take_session_region(struct mcd_session *s)
{
    struct mcd_agent *a = s->agent;
    struct mcs_session_header h = {
        .features = mcd_features(a),
        .agent_incarnation = a->incarnation,
        .session_incarnation = s->incarnation,
        .tick_hz = a->tick_hz,
        .tick_shift = a->tick_shift,
    };
    const struct mcd_extent_job *job = &s->op.making;
    int res = job->res;

    if (res != 0)
        return res;
    res = MCS_FAIL(hello_region);
    if (res == 0)
        res = MCS_FAIL(hello_guard);
    if (res == 0)
        res = s->region_guard = mcd_fault_add(job->map, job->size);
    if (res < 0) {
        mcs_region_unmap(job->map, job->size);
        close(job->fd);
        return res;
    }
    s->region_fd = job->fd;
    mcs_session_region_create(&s->region, job->map, a->config.inbox_size, &h);
    return 0;
}

void mcd_reply_hello(struct mcd_session *s, const int *fds, unsigned nfds)
{
    struct mcd_agent *a = s->agent;
    struct mcs_msg m;
    struct mcs_msg_hello_reply *r = &m.b.hello_reply;

    *r = (struct mcs_msg_hello_reply){
        .agent_incarnation = a->incarnation,
        .session_incarnation = s->incarnation,
        .features = mcd_features(a),
        .region_size = s->region.total_size,
        .tenant = s->tenant,
        .page_size = a->pool.page_size,
        /* what a client copies by itself would go around the limit */
        .caller_max = s->account->limits.rate != 0 ? 0 : a->config.caller_max,
        .spin_us = (uint32_t)a->config.spin_us,
        .deadline_us =
            (uint32_t)(a->config.deadline_ms * 1000 > UINT32_MAX ? UINT32_MAX
                                                                 : a->config.deadline_ms * 1000),
    };
    snprintf(r->agent_version, sizeof(r->agent_version), "%s", MCD_VERSION);
    m.h.status = MCS_OK;
    mcd_session_reply(s, &m, sizeof(*r), fds, nfds);
}

static void greet(struct mcd_session *s)
{
    int fds[2];
    int res = take_session_region(s);

    if (res == 0 && s->ending)
        return; /* it went meanwhile: its end takes the region, and no later agent is to wait for it */
    if (res == 0)
        res = mcd_store_session_new(s);
    if (res == 0)
        res = record_session(s);
    if (res != 0) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for the session: %s", strerror(-res));
        mcd_session_end(s, "no memory for it");
        return;
    }
    s->greeted = true;
    fds[0] = s->region_fd;
    fds[1] = s->doorbell;
    mcd_reply_hello(s, fds, 2);
}

static void mcd_on_hello(struct mcd_session *s, struct mcs_msg *m)
{
    struct mcd_agent *a = s->agent;

    if (m->b.hello.abi_version != MCS_ABI_VERSION) {
        a->version_errors++;
        mcd_session_refuse(s, MCS_VERSION,
                           "the client was built for shared-memory ABI %u, this agent has %u: "
                           "install libmcshm and mcshmd of one version",
                           m->b.hello.abi_version, MCS_ABI_VERSION);
        mcd_session_end(s, "built for another ABI version");
        return;
    }
    if (mcd_userns_unmapped(s->uid) && a->config.unmapped_users == MCD_UNMAPPED_REFUSE) {
        a->unmapped_refused++;
        mcd_session_refuse(s, MCS_PERMISSION,
                           "the client's user is not mapped into the agent's user namespace, where "
                           "it looks like any other such user (%u): run the agent on the host, map "
                           "the users, or set [agent] unmapped_users = share",
                           s->uid);
        mcd_session_end(s, NULL);
        return;
    }
    if (a->nadmitted >= a->config.sessions) {
        a->refused++;
        mcd_session_refuse(s, MCS_LIMIT,
                           "%u sessions are open, [session] max is %llu: close some or raise it",
                           a->nadmitted, (unsigned long long)a->config.sessions);
        mcd_session_end(s, NULL);
        return;
    }
    if (!mcd_tenant_allows(s->account, MCD_LIMIT_SESSIONS, s->account->sessions, 1)) {
        a->refused++;
        mcd_session_refuse_limit(s, MCD_LIMIT_SESSIONS, s->account->sessions, 1);
        mcd_session_end(s, NULL);
        return;
    }
    m->b.hello.name[MCS_NAME_MAX - 1] = '\0';
    if (m->b.hello.name[0] != '\0' && !mcd_good_name(m->b.hello.name)) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT,
                           "the client's name has control characters or is not UTF-8");
        return;
    }
    s->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->doorbell < 0) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "no doorbell for the session: %s", strerror(errno));
        mcd_session_end(s, "no doorbell for it");
        return;
    }
    snprintf(s->name, sizeof(s->name), "%s", m->b.hello.name);
    s->leaves = (m->b.hello.features & MCS_FEATURE_LEAVES) != 0;
    s->admitted = true;
    s->account->sessions++;
    a->nadmitted++;
    s->op.making = (struct mcd_extent_job){.size = mcs_session_region_size(a->config.inbox_size),
                                           .kind = {.page_size = 4096, .node = -1},
                                           .fd = -1};
    mcd_make(s, greet);
}

/* ---- queues ---------------------------------------------------------------------- */

static void job_done(struct mcd_job *job, void *context)
{
    struct mcd_session *s =
        (struct mcd_session *)((char *)job - offsetof(struct mcd_session, op.job));

    (void)context;
    s->op.job_done = true;
}

static void run_making(struct mcd_job *job)
{
    struct mcd_session *s =
        (struct mcd_session *)((char *)job - offsetof(struct mcd_session, op.job));

    mcd_extent_job_run(&s->op.making);
}

static bool job_is_done(struct mcd_session *s)
{
    return s->op.job_done;
}

/* Makes memory in a worker's thread, the small ones not behind the large, then goes on with `then`. The session cannot go away
 * in between: its end waits for the operation. */
void mcd_make(struct mcd_session *s, void (*then)(struct mcd_session *s))
{
    const struct mcd_extent_job *job = &s->op.making;

    s->op.job_done = false;
    s->op.job.run = run_making;
    s->op.job.done = job_done;
    mcd_session_defer(s, job_is_done, then);
    mcd_worker_submit(mcd_worker_of(s->agent, job->kind.page_size, job->size), &s->op.job);
}

static void queue_opened(struct mcd_session *s)
{
    struct mcd_queue *q = s->op.queue;
    struct mcs_msg m;

    MCS_FAILPOINT(queue_opened);
    if (mcs_load_acquire(&q->error) == MCS_NO_MEMORY) { /* partner: run_command() */
        mcd_session_free_queue(s, q);
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for one more queue in its engine");
        return;
    }
    q->opened = mcd_now_ns();
    q->next = s->queues;
    s->queues = q;
    s->nqueues++;
    m.b.queue_open_reply = (struct mcs_msg_queue_open_reply){
        .queue_id = q->id,
        .engine = q->engine->o.id,
        .total_size = q->shm.total_size,
    };
    m.h.status = MCS_OK;
    mcd_session_reply(s, &m, sizeof(m.b.queue_open_reply), &q->fd, 1);
}

static bool command_is_done(struct mcd_session *s)
{
    return mcs_load_acquire(&s->op.command.done) != 0; /* partner: run_commands() */
}

int mcd_queue_record(struct mcd_session *s, struct mcd_queue *q)
{
    struct mcd_ledger *l = s->agent->recovery.ledger;
    struct mcd_ledger_queue r = {
        .session = s->incarnation,
        .args_size = q->shm.args_size,
        .id = q->id,
        .depth = q->shm.depth,
        .slots = q->shm.slots,
        .batches = q->shm.batches,
    };
    struct stat st;

    if (l == NULL)
        return 0;
    if (fstat(q->fd, &st) != 0)
        return -errno;
    r.ino = st.st_ino;
    r.dev = st.st_dev;
    q->record = mcd_ledger_add(l, MCD_LEDGER_QUEUE, &r);
    return q->record != NULL ? 0 : -ENOMEM;
}

static void queue_made(struct mcd_session *s)
{
    struct mcd_agent *a = s->agent;
    struct mcd_extent_job *job = &s->op.making;
    struct mcd_queue *q = s->op.queue;
    struct mcs_queue_layout layout;
    int res = job->res;

    if (res != 0)
        goto error;
    q->fd = job->fd;
    mcs_queue_layout(q->shm.depth, q->shm.slots, q->shm.batches, q->shm.args_size, &layout);
    q->guard = MCS_FAIL(queue_guard);
    if (q->guard == 0)
        q->guard = mcd_fault_add(job->map, job->size);
    if (q->guard < 0) {
        mcs_region_unmap(job->map, job->size);
        res = q->guard;
        goto error;
    }
    q->shm.header = job->map;
    q->shm.total_size = job->size;
    res = mcs_queue_create(&q->shm, &q->consumer, job->map, &layout, q->id, s->incarnation,
                           s->region.header->features & MCS_FEATURE_NEVER_SLEEPS);
    q->engine = a->engines[a->next_engine++ % a->nengines];
    mcd_stats_queue(s, q);
    if (res == 0)
        res = MCS_FAIL(queue_init);
    if (res == 0)
        res = mcd_queue_init(q);
    if (res == 0)
        res = mcd_queue_record(s, q);
    if (res == 0 && (s->watched >> q->engine->o.id & 1) == 0) {
        res = MCS_FAIL(queue_watch);
        if (res == 0)
            res = mcd_engine_watch(q->engine, s->doorbell);
        if (res == 0)
            s->watched |= UINT64_C(1) << q->engine->o.id;
    }
    if (res != 0)
        goto error;
    s->op.command = (struct mcd_command){.kind = MCD_COMMAND_ADD, .queue = q};
    mcd_session_defer(s, command_is_done, queue_opened);
    q->given = true;
    mcd_engine_command(q->engine, &s->op.command);
    return;

error:
    mcd_session_free_queue(s, q);
    mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for a queue of %llu bytes: %s",
                       (unsigned long long)job->size, strerror(-res));
}

static void mcd_on_queue_open(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_queue_open *r = &m->b.queue_open;
    const struct mcd_config *c = &s->agent->config;
    uint32_t depth = r->depth != 0 ? r->depth : (uint32_t)c->queue_depth;
    uint32_t slots =
        r->slots != 0 ? r->slots
        : r->depth != 0
            ? (uint32_t)(depth * 4ull < MCS_QUEUE_SLOTS_MAX ? depth * 4ull : MCS_QUEUE_SLOTS_MAX)
            : (uint32_t)c->queue_slots;
    uint32_t batches = r->batches != 0 ? r->batches : (uint32_t)c->queue_batches;
    uint64_t args = r->args_size != 0 ? r->args_size : c->queue_args_size;
    struct mcs_queue_layout layout;
    struct mcd_queue *q;
    uint64_t memory, limit;

    if (s->nqueues >= c->queues_per_session) {
        mcd_session_refuse(s, MCS_LIMIT, "%u queues are open, [queue] max_per_session is %llu",
                           s->nqueues, (unsigned long long)c->queues_per_session);
        return;
    }
    if (!mcd_tenant_allows(s->account, MCD_LIMIT_QUEUES, s->account->queues, 1)) {
        mcd_session_refuse_limit(s, MCD_LIMIT_QUEUES, s->account->queues, 1);
        return;
    }
    if (args > MCS_QUEUE_ARGS_MAX ||
        mcs_queue_layout(depth, slots, batches, args & ~63ull, &layout) != 0) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT,
                           "queue of depth %u, slots %u, batches %u, args_size %llu: want a power "
                           "of two %u to %u, 1 to %u, 1 to %u, at most %llu",
                           depth, slots, batches, (unsigned long long)args, MCS_QUEUE_DEPTH_MIN,
                           MCS_QUEUE_DEPTH_MAX, MCS_QUEUE_SLOTS_MAX, MCS_QUEUE_BATCHES_MAX,
                           (unsigned long long)MCS_QUEUE_ARGS_MAX);
        return;
    }
    memory = layout.total_size + slots * sizeof(struct mcd_task) +
             MCD_TRACE_SIZE * sizeof(struct mcd_traced);
    limit = c->pool_size > QUEUE_MEMORY_MIN ? c->pool_size : QUEUE_MEMORY_MIN;
    if (limit < s->agent->queue_memory || memory > limit - s->agent->queue_memory) {
        mcd_session_refuse(s, MCS_NO_MEMORY,
                           "a queue of %llu bytes: the queues of all sessions have %llu of at most "
                           "%llu; ask for fewer slots or a smaller args_size, or close some",
                           (unsigned long long)memory, (unsigned long long)s->agent->queue_memory,
                           (unsigned long long)limit);
        return;
    }
    q = aligned_alloc(64, (sizeof(*q) + 63) & ~(size_t)63);
    if (q == NULL) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for a queue");
        return;
    }
    memset(q, 0, sizeof(*q));
    q->session = s;
    q->tenant = s->account;
    q->id = ++s->next_queue;
    q->fd = q->guard = -1;
    q->shm.depth = depth;
    q->shm.slots = slots;
    q->shm.batches = batches;
    q->shm.args_size = layout.args_size;
    q->memory = memory;
    s->agent->queue_memory += memory;
    s->account->queues++;
    s->op.queue = q;
    s->op.making = (struct mcd_extent_job){
        .size = layout.total_size, .kind = {.page_size = 4096, .node = -1}, .fd = -1};
    mcd_make(s, queue_made);
}

static void queue_closed(struct mcd_session *s)
{
    MCS_FAILPOINT(queue_closed);
    mcd_session_free_queue(s, s->op.queue);
    mcd_reply_empty(s);
}

static void mcd_on_queue_close(struct mcd_session *s, struct mcs_msg *m)
{
    struct mcd_queue *q = s->queues;

    while (q != NULL && q->id != m->b.queue_close.queue_id)
        q = q->next;
    if (q == NULL) {
        mcd_session_refuse(s, MCS_INVALID_HANDLE, "queue %u is not open",
                           m->b.queue_close.queue_id);
        return;
    }
    s->op.queue = q;
    s->op.command = (struct mcd_command){.kind = MCD_COMMAND_REMOVE, .queue = q};
    mcd_session_defer(s, command_is_done, queue_closed);
    mcd_engine_command(q->engine, &s->op.command);
}

/* ---- taking reach away: tests/model/caller.pml ------------------------------------- */

/* May client t copy in its own thread into extent e of session s (NULL: into any of them)? The
 * owner itself does not count: its library knows of its own withdrawals and settles its threads
 * before the call returns. */
static bool reaches(const struct mcd_session *t, const struct mcd_session *s,
                    const struct mcd_extent *e)
{
    if (t == s || t->ending || t->region.words == NULL)
        return false;
    for (const struct mcd_grant *g = t->grants; g != NULL; g = g->next)
        if (e != NULL ? g->extent == e : g->extent->owner == s)
            return true;
    return false;
}

/* Tells every client that may copy in its own thread to look again before the next copy. */
static void outdate_grants(struct mcd_session *s, const struct mcd_extent *e)
{
    for (struct mcd_session *t = s->agent->sessions; t != NULL; t = t->next)
        if (reaches(t, s, e))
            /* partner: mcs_caller_begin(); the grace period brings the fence */
            mcs_store_release(&t->region.words->grants_version, ++t->grants_version);
}

/* Has each queue of t been seen without a copy since `since`? Not all at one time: a copy that
 * begins later has seen the new version. */
static bool was_quiet(const struct mcd_session *t, uint64_t since, uint64_t now)
{
    bool all = true;

    for (struct mcd_queue *q = t->queues; q != NULL; q = q->next) {
        /* partner: the release in mcs_caller_end() */
        if (mcs_load_acquire(&q->shm.doorbell->caller_active) == 0)
            q->quiet_at = now;
        all &= q->quiet_at >= since;
    }
    return all;
}

/* Have the copies in callers' threads that began before outdate_grants() ended? */
static bool callers_quiet(struct mcd_session *s)
{
    uint64_t now = mcd_now_ns();
    bool late = now >= s->op.deadline, all = true;

    for (struct mcd_session *t = s->agent->sessions; t != NULL; t = t->next) {
        if (!mcd_limbo_may_write(t, s->tenant) &&
            (!reaches(t, s, s->op.extent) || was_quiet(t, s->op.deadline - CALLER_NS, now)))
            continue;
        if (t->ending)
            continue; /* of those in limbo */
        all = false;
        if (!late)
            continue;
        s->op.late = true;
        s->agent->revoke_timeouts++;
        mcd_session_end(t, t->limbo != NULL
                               ? "it may still copy into revoked memory and does not come back"
                               : "a copy in its own thread into revoked memory does not end");
    }
    return all || late;
}

/* Nothing can be begun any more; has all ended that was? */
static bool all_quiet(struct mcd_session *s)
{
    const struct mcd_operation *op = &s->op;

    /* Tasks may have any part of an extent as their own end, not just what is allocated. */
    return callers_quiet(s) &&
           mcd_quiet(s->agent, &s->op.quieting, s, op->extent, op->last ? 0 : op->offset,
                     op->last ? op->extent->size : op->length);
}

/* Starts the wait that ends in `finish`; op.old and op.extent are set. */
void mcd_take_away(struct mcd_session *s, void (*finish)(struct mcd_session *s))
{
    s->op.deadline = mcd_now_ns() + CALLER_NS;
    mcd_segments_changed(s->agent);
    outdate_grants(s, s->op.extent);
    MCS_FAILPOINT(taken_away);
    s->op.then = finish;
    mcd_session_defer(s, all_quiet, mcd_op_deregister);
}

void mcd_reply_taken(struct mcd_session *s, size_t body_size, struct mcs_msg *m)
{
    free(s->op.old);
    if (s->op.late)
        mcd_session_refuse(s, MCS_TIMEOUT,
                           "a client that was granted a writable mapping is in a copy that does "
                           "not end; its session was ended, its mapping lives until it dies");
    else
        mcd_reply(s, m, body_size);
}

/* ---- queries --------------------------------------------------------------------- */

/* All of it, in as many calls as that takes. */
static bool write_all(int fd, const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t written = write(fd, text + at, n - at);

        if (written <= 0 && errno != EINTR)
            return false;
        at += written > 0 ? (size_t)written : 0;
    }
    return true;
}

void mcd_reply_text(struct mcd_session *s, struct mcs_msg *m, char *text)
{
    int fd = text == NULL ? -1 : memfd_create("mcshm-query", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    size_t n = text == NULL ? 0 : strlen(text);

    if (fd < 0 || MCS_FAIL(query_made) != 0 || !write_all(fd, text, n) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for the answer");
    } else {
        m->b.query_reply.length = n;
        m->h.status = MCS_OK;
        mcd_session_reply(s, m, sizeof(m->b.query_reply), &fd, 1);
    }
    if (fd >= 0)
        close(fd);
    free(text);
}

static void mcd_on_query(struct mcd_session *s, struct mcs_msg *m)
{
    if (m->b.query.what >= MCS_QUERY_COUNT)
        mcd_session_refuse(s, MCS_NOT_SUPPORTED, "query %u is not known", m->b.query.what);
    else
        mcd_reply_text(s, m, mcd_query_json(s->agent, s, m->b.query.what));
}

static bool is_greeting(uint16_t type)
{
    return type == MCS_MSG_HELLO || type == MCS_MSG_RESTORE;
}

static bool takes_descriptor(uint16_t type)
{
    return type == MCS_MSG_REGISTER || type == MCS_MSG_RESTORE || type == MCS_MSG_EXTENT_BACK ||
           type == MCS_MSG_QUEUE_BACK || type == MCS_MSG_GPU_IMPORT;
}

/* Of those that only make sense while a session comes back. */
static bool restores(uint16_t type)
{
    return type >= MCS_MSG_EXTENT_BACK && type <= MCS_MSG_RESUME;
}

void mcd_session_handle(struct mcd_session *s, struct mcs_msg *m, int *fds, unsigned nfds)
{
    size_t body = m->h.length - sizeof(m->h);

    if (s->import != NULL && m->h.type != MCS_MSG_GPU_IMPORT)
        mcd_import_drop(s);
    if (m->h.status != 0 || body != mcs_msg_request_size(m->h.type) ||
        s->greeted == is_greeting(m->h.type) ||
        (s->limbo != NULL && !mcd_is_for_restore(m->h.type)) ||
        (s->limbo == NULL && restores(m->h.type)) || (nfds != 0 && !takes_descriptor(m->h.type))) {
        s->agent->protocol_errors++;
        mcd_session_refuse(s, MCS_PROTOCOL,
                           "message of type %u, %zu bytes, %u descriptors: out of "
                           "place or of the wrong size",
                           m->h.type, body, nfds);
        mcd_session_end(s, "sent a message that is out of place or of the wrong size");
    } else {
        switch (m->h.type) {
        case MCS_MSG_HELLO:
            mcd_on_hello(s, m);
            break;
        case MCS_MSG_QUEUE_OPEN:
            mcd_on_queue_open(s, m);
            break;
        case MCS_MSG_QUEUE_CLOSE:
            mcd_on_queue_close(s, m);
            break;
        case MCS_MSG_ALLOC:
            mcd_on_alloc(s, m);
            break;
        case MCS_MSG_FREE:
            mcd_on_free(s, m);
            break;
        case MCS_MSG_REGISTER:
            mcd_on_register(s, m, fds, &nfds);
            break;
        case MCS_MSG_UNREGISTER:
            mcd_on_unregister(s, m);
            break;
        case MCS_MSG_PUBLISH:
            mcd_on_publish(s, m);
            break;
        case MCS_MSG_WITHDRAW:
            mcd_on_withdraw(s);
            break;
        case MCS_MSG_BUFFER_ADD:
            mcd_on_buffer_add(s, m);
            break;
        case MCS_MSG_BUFFER_REMOVE:
            mcd_on_buffer_remove(s, m, false);
            break;
        case MCS_MSG_REVOKE:
            mcd_on_buffer_remove(s, m, true);
            break;
        case MCS_MSG_SEGMENT_OPEN:
            mcd_on_segment_open(s, m);
            break;
        case MCS_MSG_SEGMENT_CLOSE:
            mcd_on_segment_close(s, m);
            break;
        case MCS_MSG_DESCRIBE:
            mcd_on_describe(s, m);
            break;
        case MCS_MSG_GPU_ALLOC:
            mcd_on_gpu_alloc(s, m);
            break;
        case MCS_MSG_GPU_IMPORT:
            mcd_on_gpu_import(s, m, fds, &nfds);
            break;
        case MCS_MSG_MAP:
            mcd_on_map(s, m);
            break;
        case MCS_MSG_UNMAP:
            mcd_on_unmap(s, m);
            break;
        case MCS_MSG_QUERY:
            mcd_on_query(s, m);
            break;
        case MCS_MSG_PING:
            mcd_on_ping(s, m);
            break;
        case MCS_MSG_RESTORE:
            mcd_on_restore(s, m, fds, &nfds);
            break;
        case MCS_MSG_EXTENT_BACK:
            mcd_on_extent_back(s, m, fds, &nfds);
            break;
        case MCS_MSG_ALLOCS_BACK:
            mcd_on_allocs_back(s, m);
            break;
        case MCS_MSG_QUEUE_BACK:
            mcd_on_queue_back(s, m, fds, &nfds);
            break;
        case MCS_MSG_OPEN_BACK:
            mcd_on_open_back(s, m);
            break;
        case MCS_MSG_RESUME:
            mcd_on_resume(s);
            break;
        case MCS_MSG_RELOAD:
            mcd_on_reload(s, m);
            break;
        case MCS_MSG_TRACE:
            mcd_on_trace(s, m);
            break;
        case MCS_MSG_OBJECT_MAP:
            mcd_on_object_map(s, m);
            break;
        case MCS_MSG_OBJECT_UNMAP:
            mcd_on_object_unmap(s, m);
            break;
        case MCS_MSG_OBJECTS:
            mcd_on_objects(s, m);
            break;
        default:
            break; /* mcs_msg_request_size() knows no other */
        }
    }
    s->agent->descriptors_unwanted += nfds;
    mcd_closer_put(s->uid, fds, nfds);
}
