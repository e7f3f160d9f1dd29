/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "log.h"
#include "stage.h"
#include "transports/uring.h"

#define URING_ENTRIES 1024u
#define SLEEP_MAX_MS 1000
#define BUSY_MS 50 /* transports have something to say that often while peers wait for GPU memory */
#define QUIET_TURNS 64u /* turns of the transports without anything */
#define QUIET_EVERY 4u
#define LONG_TURN 8192u /* bytes copied */
#define LATE_NS (5 * MCD_TICK_NS)
#define BULK_BYTES                                                                                 \
    (UINT64_C(64) << 10) /* of one request, and of all since the engine was idle last */

static void transport_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void transport_log(int level, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    mcd_log_line_v(level, format, ap);
    va_end(ap);
}

/* ---- called by the transports ---------------------------------------------------- */

/* Slices come back in the middle of anything, even of a call to a transport: they are only taken
 * in, and looked at between two such calls. */
static void on_done(void *context, struct mct_slice *s)
{
    struct mcd_engine *g = context;
    struct mcd_net *n = g->net;
    struct mcd_slice *slice = s->owner;

    if (n->closing)
        return;
    slice->back = true;
    if (s->status == MCS_CANCELED && s->op != MCT_READ && s->conn != 0 && !s->settled)
        mcd_route_doubt(slice->task->lane->route, slice->rail, s->conn,
                        s->op == MCT_WRITE); /* before it can be lost */
    s->next = NULL;
    *n->returned_end = s;
    n->returned_end = &s->next;
    n->backs++;
}

static void on_lost(void *context, struct mct_link *link, uint64_t conn, int error)
{
    struct mcd_engine *g = context;

    if (!g->net->closing)
        mcd_route_on_lost(g, link, conn, error);
}

static void on_killed(void *context, struct mct_link *link, uint64_t conn)
{
    struct mcd_engine *g = context;

    if (!g->net->closing)
        mcd_route_on_killed(g, link, conn);
}

/* ---- life ------------------------------------------------------------------------ */

int mcd_net_create(struct mcd_engine *g)
{
    struct mcd_net *n = calloc(1, sizeof(*n));
    struct mct_env env = {
        .log = transport_log,
        .host = {.context = g,
                 .done = on_done,
                 .lost = on_lost,
                 .killed = on_killed,
                 .left = mcd_serve_left,
                 .resolve = mcd_serve_resolve,
                 .notify = mcd_serve_notify,
                 .stage = mcd_serve_stage,
                 .unstage = mcd_serve_unstage,
                 .move = mcd_serve_move},
        .rdma = g->o.rdma,
        .epoll_fd = g->epoll_fd,
        .tick_hz = g->o.tick_hz,
        .checksum = g->o.checksum,
        .zero_copy_min = g->o.zero_copy_min,
        .max_requests = g->o.max_requests,
    };
    char error[256] = "";
    int res;

    g->net = n;
    if (n == NULL)
        return -ENOMEM;
    n->returned_end = &n->returned;
    if (g->o.nnets > MCD_NETS_MAX)
        return -EINVAL;
    if (g->o.network) {
        struct epoll_event ev = {.events = EPOLLIN};

        res = mct_uring_create(URING_ENTRIES, &n->uring, error, sizeof(error));
        if (res != 0) {
            mcd_error("engine %u: %s", g->o.id, error);
            return res;
        }
        if (epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, mct_uring_event_fd(n->uring), &ev) != 0)
            return -errno;
        env.uring = n->uring;
    }
    for (unsigned i = 0; i < g->o.nnets; i++) {
        env.host.left = g->o.nets[i] == &mct_rdma_ops ? mcd_serve_pair_left : mcd_serve_left;
        res = g->o.nets[i]->init(&env, &n->nets[i].t);
        if (res != 0)
            return res;
        n->nets[i].ops = g->o.nets[i];
        n->n++;
    }
    return 0;
}

void mcd_net_close(struct mcd_engine *g)
{
    struct mcd_net *n = g->net;

    if (n == NULL || n->closing)
        return;
    n->closing = true; /* no task is told anything any more */
    /* all at once, so that a device which hangs is waited for once */
    for (struct mcd_route *r = n->routes; r != NULL; r = r->next)
        for (unsigned i = 0; i < r->nrails; i++)
            r->rails[i].ops->abort(r->rails[i].link, -ECANCELED);
    /* no connection goes before the copies into and out of its stages */
    (void)mcd_gpu_jobs_close(g);
    mcd_stages_cancel(g);
    for (struct mcd_route *r = n->routes; r != NULL; r = r->next) {
        for (unsigned i = 0; i < r->nrails; i++)
            r->rails[i].ops->disconnect(r->rails[i].link);
        r->nrails = 0;
    }
    while (n->n != 0) {
        n->n--;
        n->nets[n->n].ops->fini(n->nets[n->n].t);
    }
    if (n->uring != NULL)
        mct_uring_destroy(n->uring);
    n->uring = NULL;
    mcd_slices_fini(&n->slices);
}

void mcd_net_destroy(struct mcd_engine *g)
{
    mcd_net_close(g);
    free(g->net);
    g->net = NULL;
}

void mcd_net_enable(struct mcd_engine *g)
{
    struct mcd_net *n = g->net;
    int res;

    if (n->enabled)
        return;
    n->enabled = true;
    if (n->uring == NULL)
        return;
    res = mct_uring_enable(n->uring);
    if (res != 0)
        mcd_error("engine %u: cannot enable its io_uring: %s", g->o.id, strerror(-res));
}

struct mct *mcd_net_find(const struct mcd_net *n, const struct mct_ops *ops)
{
    for (unsigned i = 0; i < n->n; i++)
        if (n->nets[i].ops == ops)
            return n->nets[i].t;
    return NULL;
}

/* ---- a turn ---------------------------------------------------------------------- */

void mcd_net_look_at_clock(struct mcd_engine *g)
{
    struct mcd_net *n = g->net;

    n->ticks = mcs_ticks();
    n->now = g->o.clock != NULL ? g->o.clock() : mcd_ticks_to_ns(g, n->ticks);
}

void mcd_net_touch(struct mcd_net *n, struct mcd_queue *q)
{
    if (q->touched)
        return;
    q->touched = true;
    q->touched_next = n->touched;
    n->touched = q;
}

void mcd_net_publish(struct mcd_engine *g)
{
    struct mcd_net *n = g->net;

    while (n->touched != NULL) {
        struct mcd_queue *q = n->touched;

        n->touched = q->touched_next;
        q->touched = false;
        mcd_batches_flush(q);
        if (q->broken) /* no turn of its own any more */
            mcd_queue_wake(g, q);
    }
}

bool mcd_net_reap(struct mcd_engine *g)
{
    struct mcd_net *n = g->net;
    bool any = n->returned != NULL;

    while (n->returned != NULL) {
        struct mct_slice *s = n->returned;

        n->returned = s->next;
        if (n->returned == NULL)
            n->returned_end = &n->returned;
        mcd_remote_back(g, s->owner);
    }
    return any;
}

bool mcd_net_holds(const struct mcd_engine *g, const struct mcd_slice *s)
{
    uintptr_t at = (uintptr_t)s->s.local;

    for (const struct mcd_command *c = g->calls; c != NULL; c = c->next) {
        const struct mcd_quiesce *q = c->context;
        uintptr_t base;

        if (c->kind != MCD_COMMAND_CALL || c->call != mcd_engine_quiesce)
            continue;
        base = (uintptr_t)q->base;
        if (at < base + q->length && base < at + s->s.length)
            return true;
    }
    return false;
}

static bool run_routes(struct mcd_engine *g)
{
    struct mcd_net *n = g->net;
    struct mcd_route *r = n->dirty;
    bool any = false;

    n->dirty = NULL;
    while (r != NULL) {
        struct mcd_route *next = r->dirty_next;

        r->dirty = false;
        any |= mcd_schedule(g, r);
        r = next;
    }
    return any;
}

static void tick(struct mcd_engine *g)
{
    struct mcd_net *n = g->net;
    struct mcd_route *r = n->active;
    /* This thread stood still, or slept: nobody else is called silent for that. */
    bool late = n->now > n->tick_at + LATE_NS;

    n->tick_at = n->now + MCD_TICK_NS;
    while (r != NULL) {
        struct mcd_route *next = r->active_next;

        mcd_route_tick(g, r, late);
        r = next;
    }
    mcd_net_reap(g);
}

/* What is new is posted first and goes out in the same turn; what comes back makes room for the
 * next. Each transport's turn is one of the io_uring, too. */
bool mcd_net_turn(struct mcd_engine *g)
{
    struct mcd_net *n = g->net;
    bool any = false;

    if (n->dirty != NULL) {
        mcd_net_look_at_clock(g);
        any |=
            mcd_net_reap(g); /* what a command has called back: no WRITE goes before it is known */
        any |= run_routes(g);
    }
    /* where nothing comes and turns are short, a look at every one of them would only slow the
     * local tasks down */
    if (n->enabled &&
        (any || n->quiet < QUIET_TURNS || g->moved >= LONG_TURN || g->turn % QUIET_EVERY == 0)) {
        bool moved = false;

        for (unsigned i = 0; i < n->n; i++)
            moved |= n->nets[i].ops->turn(n->nets[i].t);
        n->quiet = moved || any ? 0 : n->quiet + 1;
        any |= moved;
    }
    if (n->active != NULL || n->returned != NULL) {
        mcd_net_look_at_clock(g);
        any |= mcd_net_reap(g);
        if (n->now >= n->tick_at)
            tick(g);
    }
    if (n->touched != NULL) {
        mcd_net_publish(g);
        any = true;
    }
    return any;
}

bool mcd_net_was_bulk(struct mcd_engine *g)
{
    struct mcd_net *n = g->net;
    uint64_t bytes = 0, requests, since;

    if (n == NULL || !n->enabled)
        return false;
    requests = n->backs;
    for (unsigned i = 0; i < n->n; i++) {
        const struct mct_stats *s = n->nets[i].ops->stats(n->nets[i].t);

        bytes += s->sent_bytes + s->received_bytes;
        requests += s->served;
    }
    since = bytes - n->bulk_bytes;
    requests -= n->bulk_requests;
    n->bulk_bytes += since;
    n->bulk_requests += requests;
    return since >= BULK_BYTES && since / BULK_BYTES >= requests;
}

bool mcd_net_may_sleep(struct mcd_engine *g)
{
    struct mcd_net *n = g->net;

    if (n->returned != NULL || n->dirty != NULL)
        return false;
    if (!n->enabled)
        return true;
    for (unsigned i = 0; i < n->n; i++)
        if (n->nets[i].ops->arm != NULL && !n->nets[i].ops->arm(n->nets[i].t))
            return false;
    if (n->returned != NULL || n->dirty != NULL) /* arming looks once more */
        return false;
    return n->uring == NULL || mct_uring_arm(n->uring);
}

static int timeout_of(const struct mcd_engine *g)
{
    const struct mcd_net *n = g->net;
    uint64_t ticks = mcd_wheel_next(g->wheel, g->now), ms;

    if (ticks == UINT64_MAX) {
        if (n->active != NULL)
            return (int)(MCD_TICK_NS / 1000000);
        /* a transport's own waits end, too, when nothing rings */
        for (unsigned i = 0; n->enabled && i < n->n; i++)
            if (n->nets[i].ops->pending(n->nets[i].t))
                return SLEEP_MAX_MS;
        return -1;
    }
    ms = ticks / g->ticks_per_us / 1000 + 1;
    if (n->active != NULL && ms > MCD_TICK_NS / 1000000)
        ms = MCD_TICK_NS / 1000000;
    return ms < SLEEP_MAX_MS ? (int)ms : SLEEP_MAX_MS;
}

int mcd_net_timeout(const struct mcd_engine *g)
{
    int ms = timeout_of(g);

    return mcd_stages_serve(g) && (ms < 0 || ms > BUSY_MS) ? BUSY_MS : ms;
}
