/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Target role: what peers may reach here.  Asked when a request arrives and again for each further part of it;
 * looks everything up anew each time, so that what was taken away is out of reach after a
 * grace period and a quiesce.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "gpu_job.h"
#include "log.h"
#include "net.h"
#include "remote_task.h"
#include "serve.h"
#include "session.h"
#include "shm/failpoint.h"
#include "task.h"

/* The index that the peer was given, and the life of the segment that it means. */
static struct mcd_segment *find_export(const struct mcd_visitor *v, const struct mct_request *r)
{
    const struct mcd_export *e;

    if (v->exports == NULL || r->export_index >= MCD_EXPORTS_MAX)
        return NULL;
    /* partner: the control thread's release when the peer opens or closes it */
    e = mcs_load_acquire(&v->exports->slots[r->export_index]);
    return e != NULL && e->incarnation == r->incarnation ? e->segment : NULL;
}

uint16_t mcd_serve_find(const struct mcd_engine *g, const struct mcd_visitor *v,
                        const struct mct_request *r, const struct mcd_buffer **out)
{
    const struct mcd_snapshot *snapshot;
    const struct mcd_buffer *b;
    enum mcs_status missing = MCS_BAD_RANGE;

    if (v->exports == NULL) {
        /* partner: mcd_engine_open_buffers() */
        snapshot = mcs_load_acquire(&g->net->open_buffers);
        if (snapshot == NULL)
            return MCS_BAD_RANGE;
    } else {
        const struct mcd_segment *seg = find_export(v, r);

        if (seg == NULL)
            return MCS_STALE;
        if (seg->remote != NULL)
            return MCS_INVALID_HANDLE; /* no agent passes on what is another's */
        /* partner: swap() in segment.c; the release in session.c when the owner ends */
        snapshot = mcs_load_acquire(&seg->snapshot);
        missing = mcd_missing(seg);
    }
    b = mcd_snapshot_find(snapshot, r->address, r->length);
    if (b == NULL)
        return (uint16_t)missing;
    if ((b->access & (r->op == MCT_READ ? MCS_ACCESS_READ : MCS_ACCESS_WRITE)) == 0)
        return MCS_ACCESS;
    /* no pointer of this process leads there; and what Mooncake's own processes ask for is sent in place */
    if (b->extent->gpu != NULL && (g->stages == NULL || v->exports == NULL))
        return MCS_NOT_SUPPORTED;
    *out = b;
    return MCS_OK;
}

uint16_t mcd_serve_resolve(void *context, void *visitor, const struct mct_request *r,
                           void **pointer)
{
    struct mcd_engine *g = context;
    const struct mcd_buffer *b = NULL;
    uint16_t status = mcd_serve_find(g, visitor, r, &b);

    if (status != MCS_OK)
        mcs_count(&g->counters.served_refused[status], 1);
    else if (b->extent->gpu != NULL)
        *pointer = NULL; /* through a stage: serve_stage.c */
    else
        *pointer = b->extent->map + b->offset + (r->address - b->address);
    return status;
}

/* Has a notification that is sent again arrived before? Its answer was lost with its connection. */
static bool seen_before(const struct mcd_visitor *v, uint64_t notice)
{
    if ((notice & MCD_NOTICE_AGAIN) == 0)
        return false;
    for (unsigned i = 0; i < MCD_NOTICES; i++)
        if (v->notices[i] == (notice & ~MCD_NOTICE_AGAIN))
            return true;
    return false;
}

uint16_t mcd_serve_notify(void *context, void *visitor, const struct mct_request *r,
                          uint64_t source, uint64_t bytes, const void *name, uint32_t name_length,
                          const void *message, uint32_t message_length)
{
    struct mcd_engine *g = context;
    struct mcd_visitor *v = visitor;
    const struct mcd_segment *seg = find_export(v, r);
    struct mcd_session *owner;
    uint16_t status = MCS_OK;
    int res;

    if (seg == NULL)
        status = MCS_STALE;
    else if (seg->remote != NULL)
        status = MCS_INVALID_HANDLE;
    else if (name_length > MCS_NOTIFY_NAME_MAX || message_length > MCS_NOTIFY_MESSAGE_MAX)
        status = MCS_INVALID_ARGUMENT;
    if (status == MCS_OK && !seen_before(v, r->address)) {
        /* partner: the release in session.c when the owner ends; its region outlives this turn */
        MCS_FAILPOINT(serve_notify);
        owner = mcs_load_acquire(&seg->owner);
        res = owner == NULL ? -ENOTCONN
                            : mcd_inbox_deliver(g, owner, source, bytes, name, name_length, message,
                                                message_length);
        if (res == -EAGAIN)
            return MCS_INBOX_FULL;
        if (res != 0)
            status = res == -ECONNRESET ? MCS_AGENT_RESTARTED : MCS_REVOKED;
        else
            v->notices[v->next_notice++ % MCD_NOTICES] = r->address & ~MCD_NOTICE_AGAIN;
    }
    if (status != MCS_OK)
        mcs_count(&g->counters.served_refused[status], 1);
    return status;
}

void mcd_serve_left(void *context, void *visitor, uint64_t conn, int error, const char *why)
{
    struct mcd_engine *g = context;
    struct mcd_visitor *v = visitor;

    mcs_store_relaxed(&v->conns, v->conns - 1);
    if (g->net->closing)
        return;
    mcd_debug("engine %u: connection %016llx of peer %s is gone: %s%s%s", g->o.id,
              (unsigned long long)conn, v->name, why != NULL ? why : "closed",
              error != 0 ? ": " : "", error != 0 ? strerror(-error) : "");
    mcd_engine_tell_control(g);
}

void mcd_serve_pair_left(void *context, void *visitor, uint64_t conn, int error, const char *why)
{
    struct mcd_visitor *v = visitor;

    mcs_store_relaxed(&v->pairs, v->pairs - 1);
    mcd_serve_left(context, visitor, conn, error, why);
}

/* ---- commands -------------------------------------------------------------------- */

/* The transport has not seen it. */
static void hand_back(struct mcd_serve *s)
{
    if (s->conn.pair != NULL)
        s->handed_back = true;
    else
        close(s->conn.fd);
}

static void count(struct mcd_serve *s, int more)
{
    mcs_store_relaxed(&s->visitor->conns, s->visitor->conns + (uint32_t)more);
    if (s->conn.pair != NULL)
        mcs_store_relaxed(&s->visitor->pairs, s->visitor->pairs + (uint32_t)more);
}

bool mcd_serve_adopt(struct mcd_engine *g, struct mcd_command *c)
{
    struct mcd_serve *s = c->context;
    struct mct *t = mcd_net_find(g->net, s->ops);

    if (t == NULL) {
        hand_back(s);
        s->res = -EOPNOTSUPP;
        return true;
    }
    /* before, since it may be gone again at once */
    count(s, 1);
    s->res = MCS_FAIL(serve_adopt);
    if (s->res == 0)
        s->res = s->ops->serve(t, &s->conn, s->visitor);
    else
        hand_back(s);
    if (s->res != 0)
        count(s, -1);
    return true;
}

bool mcd_serve_dismiss(struct mcd_engine *g, struct mcd_command *c)
{
    struct mcd_serve *s = c->context;
    bool gone = true;

    for (unsigned i = 0; i < g->net->n; i++) {
        const struct mct_ops *ops = g->net->nets[i].ops;

        if (s->ops == NULL || s->ops == ops)
            gone &= ops->dismiss(g->net->nets[i].t, s->visitor) != -EINPROGRESS;
    }
    return gone;
}

bool mcd_serve_end(struct mcd_engine *g, struct mcd_command *c)
{
    struct mcd_serve *s = c->context;
    struct mct *t = mcd_net_find(g->net, s->ops);

    return t == NULL || s->ops->end(t, s->visitor, s->conn.id) != -EINPROGRESS;
}

/* While it is not over it stands in the engine's list of calls: mcd_net_holds() looks there. */
bool mcd_engine_quiesce(struct mcd_engine *g, struct mcd_command *c)
{
    const struct mcd_quiesce *q = c->context;
    bool quiet = true;

    for (unsigned i = 0; i < g->net->n; i++)
        quiet &= g->net->nets[i].ops->quiesce(g->net->nets[i].t, q->base, q->length) == 0;
    return quiet && mcd_gpu_jobs_quiet(g, q->base, q->length);
}

void mcd_engine_open_buffers(struct mcd_engine *g, struct mcd_snapshot *buffers)
{
    mcs_store_release(&g->net->open_buffers, buffers); /* partner: mcd_serve_find() */
}
