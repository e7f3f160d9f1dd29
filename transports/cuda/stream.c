/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copier's streams: jobs of one way are begun together, as one driver call where it has such (cuMemcpyBatchAsync), and an event
 * behind them tells when they are over.  Each batch goes to the stream that has the least to do, so that ways, and jobs that came
 * later, do not wait for each other.
 */
#include "internal.h"

#include <string.h>

/* A failure of the whole batch: those of its jobs that have none of their own. */
static void fail(const struct mct_cuda_jobs *jobs, enum mcs_status status)
{
    for (struct mct_cuda_job *j = jobs->first; j != NULL; j = j->next)
        if (j->status == MCS_OK)
            j->status = status;
}

static void append(struct mct_cuda_jobs *to, struct mct_cuda_jobs *from)
{
    if (from->first == NULL)
        return;
    if (to->last != NULL)
        to->last->next = from->first;
    else
        to->first = from->first;
    to->last = from->last;
    *from = (struct mct_cuda_jobs){NULL, NULL};
}

/* ---- calls ----------------------------------------------------------------------------------------- */

/* What is said of the sources of a batch: they are written before it is begun, and not before it is over. */
static CUresult copy_many(const struct mcs_cuda *d, struct mct_cuda_copier *p, size_t n, CUstream s)
{
    CUmemcpyAttributes attributes;
    size_t first = 0, failed = 0;

    memset(&attributes, 0, sizeof(attributes));
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attributes.flags = CU_MEMCPY_FLAG_DEFAULT;
    if (d->copy_batch != NULL)
        return d->copy_batch(p->to, p->from, p->sizes, n, &attributes, &first, 1, s);
    return d->copy_batch_12(p->to, p->from, p->sizes, n, &attributes, &first, 1, &failed, s);
}

/* All pieces of all jobs, in as few calls as can be. */
static CUresult begin_together(struct mct_cuda_copier *p, const struct mct_cuda_batch *b)
{
    struct mct_cuda *c = p->gpu->cuda;
    const CUstream s = p->streams[b->stream].stream;
    CUresult e = CUDA_SUCCESS;
    size_t n = 0;

    for (const struct mct_cuda_job *j = b->jobs.first; j != NULL && e == CUDA_SUCCESS; j = j->next)
        for (uint32_t i = 0; i < j->n && e == CUDA_SUCCESS; i++) {
            p->to[n] = j->pieces[i].to;
            p->from[n] = j->pieces[i].from;
            p->sizes[n] = j->pieces[i].length;
            if (++n < MCT_CUDA_PIECES && (j->next != NULL || i + 1 < j->n))
                continue;
            e = copy_many(c->driver, p, n, s);
            mcs_fetch_add(&c->stats.batches, 1u);
            n = 0;
        }
    return e;
}

/* A job's pieces one by one. */
static CUresult begin_one(struct mct_cuda_copier *p, const struct mct_cuda_job *j, CUcontext peer,
                          CUstream s)
{
    const struct mcs_cuda *d = p->gpu->cuda->driver;
    CUresult e = CUDA_SUCCESS;

    for (uint32_t i = 0; i < j->n && e == CUDA_SUCCESS; i++) {
        const struct mct_cuda_piece *k = &j->pieces[i];

        e = peer != NULL ? d->copy_peer(k->to, peer, k->from, p->primary, k->length, s)
                         : d->copy(k->to, k->from, k->length, s);
    }
    return e;
}

/* One by one: who is refused is known then, and the others are not; true when nobody is. Copying again what a refused batch
 * may have begun already does no harm. */
static bool begin_singly(struct mct_cuda_copier *p, struct mct_cuda_batch *b, CUcontext peer)
{
    bool all = true;

    for (struct mct_cuda_job *j = b->jobs.first; j != NULL; j = j->next) {
        CUresult e = begin_one(p, j, peer, p->streams[b->stream].stream);

        if (e == CUDA_SUCCESS)
            continue;
        all = false;
        j->status = mct_cuda_status(e);
        if (mcs_cuda_is_lost(e)) {
            mct_cuda_lose(p->gpu, e);
            fail(&b->jobs, MCS_GPU_LOST);
            break;
        }
    }
    return all;
}

/* The driver says this of batches, and takes each piece by itself. Once is chance. */
static void note_refused(struct mct_cuda_copier *p, CUresult e)
{
    char title[MCT_CUDA_TITLE];

    if (e != CUDA_ERROR_NOT_SUPPORTED && ++p->refused < MCT_CUDA_REFUSED_MAX)
        return;
    p->singly = true;
    MCT_CUDA_LOG(p->gpu->cuda, WARNING,
                 "%s takes no batched copies (%s): pieces are copied one by one",
                 mct_cuda_title(p->gpu, title), mcs_cuda_error(p->gpu->cuda->driver, e));
}

/* ---- ways ------------------------------------------------------------------------------------------ */

/* Whether the context may touch what is in the other device's, as memory has it that was not made here. Once a device. */
static bool reaches(struct mct_cuda_copier *p, unsigned to)
{
    struct mct_cuda_gpu *g = p->gpu, *other = &g->cuda->gpus[to];
    CUcontext peer = mcs_load_acquire(&other->primary); /* partner: use() */
    CUresult e;

    if (other == g)
        return true;
    if (!mct_cuda_reaches(g, other))
        return false;
    if ((p->peers >> to & 1u) == 0 && peer != NULL) {
        p->peers |= UINT32_C(1) << to;
        e = g->cuda->driver->ctx_enable_peer(peer, 0);
        if (e != CUDA_SUCCESS && e != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
            char title[MCT_CUDA_TITLE];

            p->unpeered |= UINT32_C(1) << to;
            MCT_CUDA_LOG(
                g->cuda, WARNING,
                "%s does not reach device %u after all (%s): copies go through host memory",
                mct_cuda_title(g, title), to, mcs_cuda_error(g->cuda->driver, e));
        }
    }
    return (p->unpeered >> to & 1u) == 0;
}

/* The next way that has jobs, in turn. */
static unsigned next_way(struct mct_cuda_copier *p)
{
    const uint64_t later = p->some & ~((UINT64_C(2) << p->way) - 1u);

    p->way = (unsigned)__builtin_ctzll(later != 0 ? later : p->some);
    return p->way;
}

static unsigned least_stream(const struct mct_cuda_copier *p)
{
    unsigned best = 0;

    for (unsigned i = 1; i < p->nstreams; i++)
        if (p->streams[i].bytes < p->streams[best].bytes)
            best = i;
    return best;
}

/* Jobs of a way, as many as go together; those that would be staged and must not be go back, and those to a device that is
 * lost, so that a healthy one does not touch its memory. */
static uint32_t gather(struct mct_cuda_copier *p, unsigned way, bool staged,
                       struct mct_cuda_batch *b)
{
    struct mct_cuda_jobs *q = &p->ways[way], refused = {NULL, NULL};
    const bool lost =
        way >= MCT_CUDA_ACROSS && mct_cuda_lost(&p->gpu->cuda->gpus[way - MCT_CUDA_ACROSS]);
    struct mct_cuda_job *j;
    uint32_t n = 0;

    b->bytes = 0;
    while ((j = q->first) != NULL) {
        if (lost || (staged && j->strict)) {
            j->status = lost ? MCS_GPU_LOST : MCS_STRICT;
            mct_cuda_jobs_put(&refused, mct_cuda_jobs_take(q));
            continue;
        }
        if (n != 0 && (n + j->n > MCT_CUDA_PIECES || b->bytes >= MCT_CUDA_BATCH_BYTES))
            break;
        j->staged = staged;
        n += j->n;
        b->bytes += j->bytes;
        mct_cuda_jobs_put(&b->jobs, mct_cuda_jobs_take(q));
    }
    if (q->first == NULL)
        p->some &= ~(UINT64_C(1) << way);
    mct_cuda_give(&refused);
    return n;
}

static void count(struct mct_cuda *c, unsigned way, bool staged, uint32_t n, uint64_t bytes)
{
    mcs_fetch_add(&c->stats.copies, n);
    mcs_fetch_add(&c->stats.bytes, bytes);
    if (staged)
        mcs_fetch_add(way < MCT_CUDA_ACROSS ? &c->stats.unpinned : &c->stats.peer_staged, n);
}

static void begin(struct mct_cuda_copier *p, struct mct_cuda_batch *b, unsigned way, bool staged,
                  uint32_t n)
{
    const struct mcs_cuda *d = p->gpu->cuda->driver;
    CUcontext peer = NULL;
    CUresult e = CUDA_ERROR_NOT_SUPPORTED, refused = CUDA_SUCCESS; /* batches */

    if (staged && way >= MCT_CUDA_ACROSS) {
        peer = mcs_load_acquire(
            &p->gpu->cuda->gpus[way - MCT_CUDA_ACROSS].primary); /* partner: use() */
        if (peer == NULL) {
            fail(&b->jobs, MCS_NO_GPU);
            return;
        }
    }
    if (n > 1 && !staged && !p->singly) {
        e = begin_together(p, b);
        if (mcs_cuda_is_lost(e)) {
            mct_cuda_lose(p->gpu, e);
            fail(&b->jobs, MCS_GPU_LOST);
        }
        refused = e;
        if (e == CUDA_SUCCESS)
            p->refused = 0;
    }
    if (e != CUDA_SUCCESS && !mct_cuda_lost(p->gpu) && begin_singly(p, b, peer) &&
        refused != CUDA_SUCCESS)
        note_refused(p, refused);
    b->recorded = d->event_record(b->event, p->streams[b->stream].stream) == CUDA_SUCCESS;
}

bool mct_cuda_streams_begin(struct mct_cuda_copier *p)
{
    bool any = false;

    while (p->some != 0 && p->idle != NULL) {
        const unsigned way = next_way(p);
        const bool staged = way == MCT_CUDA_IN_UNPINNED || way == MCT_CUDA_OUT_UNPINNED ||
                            (way >= MCT_CUDA_ACROSS && !reaches(p, way - MCT_CUDA_ACROSS));
        struct mct_cuda_batch *b = p->idle;
        struct mct_cuda_stream *s;
        uint32_t n;

        any = true;
        n = gather(p, way, staged, b);
        if (n == 0)
            continue;
        p->idle = b->next;
        b->next = NULL;
        b->stream = least_stream(p);
        b->recorded = false;
        b->since = mct_ms();
        begin(p, b, way, staged, n);
        count(p->gpu->cuda, way, staged, n, b->bytes);
        s = &p->streams[b->stream];
        if (s->last != NULL)
            s->last->next = b;
        else
            s->first = b;
        s->last = b;
        s->bytes += b->bytes;
        p->under_way++;
    }
    return any;
}

/* ---- what is under way ----------------------------------------------------------------------------- */

/* The stream's first batch is over. */
static void over(struct mct_cuda_copier *p, struct mct_cuda_stream *s, struct mct_cuda_jobs *done)
{
    struct mct_cuda_batch *b = s->first;

    s->first = b->next;
    if (s->first == NULL)
        s->last = NULL;
    s->bytes -= b->bytes;
    p->under_way--;
    append(done, &b->jobs);
    b->next = p->idle;
    p->idle = b;
}

bool mct_cuda_streams_poll(struct mct_cuda_copier *p)
{
    const struct mcs_cuda *d = p->gpu->cuda->driver;
    struct mct_cuda_jobs done = {NULL, NULL};
    bool any = false;

    for (unsigned i = 0; i < p->nstreams; i++) {
        struct mct_cuda_stream *s = &p->streams[i];
        struct mct_cuda_batch *b;
        CUresult e;

        while ((b = s->first) != NULL) {
            e = b->recorded ? d->event_query(b->event) : d->stream_query(s->stream);
            if (e == CUDA_ERROR_NOT_READY)
                break;
            if (mcs_cuda_is_lost(e))
                mct_cuda_lose(p->gpu, e);
            if (e != CUDA_SUCCESS)
                fail(&b->jobs, mct_cuda_status(e));
            if (e != CUDA_SUCCESS && !mct_cuda_lost(p->gpu) && b->recorded) {
                b->recorded =
                    false; /* the event tells nothing, and copies may be under way: the stream is asked */
                continue;
            }
            over(p, s, &done);
            any = true;
        }
    }
    mct_cuda_give(&done);
    return any;
}

void mct_cuda_streams_fail(struct mct_cuda_copier *p, enum mcs_status status)
{
    struct mct_cuda_jobs done = {NULL, NULL};

    for (unsigned i = 0; i < p->nstreams; i++)
        while (p->streams[i].first != NULL)
            over(p, &p->streams[i], &done);
    for (unsigned i = 0; i < MCT_CUDA_WAYS; i++)
        append(&done, &p->ways[i]);
    p->some = 0;
    for (struct mct_cuda_job *j = done.first; j != NULL; j = j->next)
        if (j->status == MCS_OK)
            j->status = status;
    mct_cuda_give(&done);
}
