/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events: a thread of each stream does what was put into it, in order. */
#include "inside.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Where ThreadSanitizer watches the program, it is told what a word in shared memory orders. */
void __tsan_acquire(void *at) __attribute__((weak));
void __tsan_release(void *at) __attribute__((weak));

struct fake_stream {
    struct fake_stream *next; /* of its context */
    struct fake_context *c;
    uint64_t handle;
    unsigned flags;
    struct fake_op *head, **tail; /* the first one is under way */
    bool ended;                   /* destroyed, or its context is gone: the thread frees it */
    pthread_cond_t work;
};

struct event {
    struct fake_context *c;
    struct fake_mark *mark; /* its last recording; NULL: none */
};

/* ---- operations ----------------------------------------------------------------------------- */

struct fake_op *fake_op_create(int kind)
{
    struct fake_op *op = calloc(1, sizeof(*op));

    if (op == NULL)
        abort();
    op->kind = kind;
    op->c = fake_current();
    return op;
}

static void mark_put(struct fake_mark *m)
{
    if (m != NULL && --m->users == 0)
        free(m);
}

static void op_release(struct fake_op *op)
{
    for (; op->nranges > 0; op->nranges--)
        op->ranges[op->nranges - 1]->busy--;
    for (; op->nhosts > 0; op->nhosts--)
        op->hosts[op->nhosts - 1]->busy--;
}

void fake_op_destroy(struct fake_op *op)
{
    op_release(op);
    mark_put(op->mark);
    free(op->pieces);
    free(op->ranges);
    free(op->hosts);
    free(op);
}

/* ---- a stream's thread ---------------------------------------------------------------------- */

static bool is_lost(struct fake_context *c)
{
    return mcs_load_relaxed(&c->lost) != CUDA_SUCCESS; /* set under the lock */
}

/* The null stream waits for all before it in the context's other streams, but non-blocking ones, and they for it. */
static bool must_wait(const struct fake_stream *s, const struct fake_op *op)
{
    const struct fake_stream *null = s->c->null_stream, *other;

    if (s->flags & CU_STREAM_NON_BLOCKING)
        return false;
    if (s != null)
        return null != NULL && null->head != NULL && null->head->seq < op->seq;
    for (other = s->c->streams; other != NULL; other = other->next) {
        if (!(other->flags & CU_STREAM_NON_BLOCKING) && other->head != NULL &&
            other->head->seq < op->seq)
            return true;
    }
    return false;
}

static void nap(uint64_t ns)
{
    const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = ns % 1000000000};

    nanosleep(&t, NULL);
}

static bool value_has_come(const struct fake_op *op)
{
    const uint32_t v = mcs_load_acquire((uint32_t *)op->pieces[0].to); /* whoever wrote it */

    switch (op->flags & 3) {
    case 0:
        return (int32_t)(v - op->value) >= 0;
    case 1:
        return v == op->value;
    case 2:
        return (v & op->value) != 0;
    default:
        return ~(v | op->value) != 0;
    }
}

/* The device looks at the word all the time; so do we, nearly. */
static void value_await(struct fake_op *op)
{
    while (!value_has_come(op) && !is_lost(op->c))
        nap(20000);
    if (__tsan_acquire != NULL)
        __tsan_acquire(op->pieces[0].to);
}

static void op_do(struct fake_op *op)
{
    static const enum fake_call calls[] = {
        [FAKE_OP_COPY] = FAKE_RUN_COPY,   [FAKE_OP_FILL] = FAKE_RUN_FILL,
        [FAKE_OP_WRITE] = FAKE_RUN_WRITE, [FAKE_OP_WAIT] = FAKE_RUN_WAIT,
        [FAKE_OP_HOST] = FAKE_RUN_HOST,
    };
    CUresult res;

    if (op->kind == FAKE_OP_RECORD || op->kind == FAKE_OP_WAIT_EVENT)
        return;
    if (fake_delay_us() > 0)
        nap((uint64_t)fake_delay_us() * 1000);
    res = fake_obey(calls[op->kind], op->c);
    if (op->fault == CUDA_SUCCESS)
        op->fault = res;
    if (op->fault != CUDA_SUCCESS || is_lost(op->c))
        return;
    switch (op->kind) {
    case FAKE_OP_WRITE:
        if (__tsan_release != NULL)
            __tsan_release(op->pieces[0].to);
        mcs_store_release((uint32_t *)op->pieces[0].to, op->value); /* who polls it */
        break;
    case FAKE_OP_WAIT:
        value_await(op);
        break;
    case FAKE_OP_HOST:
        fake_in_host_function(true);
        op->f(op->f_context);
        fake_in_host_function(false);
        break;
    default:
        fake_op_move(op);
        break;
    }
}

static void op_count(const struct fake_op *op)
{
    int64_t bytes = 0;

    if (op->kind != FAKE_OP_COPY || is_lost(op->c))
        return;
    for (size_t i = 0; i < op->npieces; i++)
        bytes += (int64_t)op->pieces[i].size;
    fake_count(op->c->device, FAKE_COPIES, (int64_t)op->npieces);
    fake_count(op->c->device, FAKE_BYTES, bytes);
    fake_count(op->c->device, FAKE_STAGED, op->staged);
    fake_count(op->c->device, FAKE_PAGEABLE, op->pageable);
}

/* Under the lock. */
static void op_end(struct fake_stream *s, struct fake_op *op)
{
    s->head = op->next;
    if (s->head == NULL)
        s->tail = &s->head;
    if (op->fault != CUDA_SUCCESS && !is_lost(op->c))
        mcs_store_relaxed(&op->c->lost, op->fault); /* is_lost() */
    op_count(op);
    op_release(op);
    if (op->kind == FAKE_OP_RECORD && !is_lost(op->c))
        op->mark->done = true;
    op->done = true;
    if (!op->waited)
        fake_op_destroy(op);
    pthread_cond_broadcast(&fake.changed);
}

static void *stream_run(void *context)
{
    struct fake_stream *s = context;
    struct fake_op *op;

    pthread_mutex_lock(&fake.lock);
    for (;;) {
        while (s->head == NULL && !s->ended)
            pthread_cond_wait(&s->work, &fake.lock);
        op = s->head;
        if (op == NULL)
            break;
        while (!is_lost(op->c) &&
               (must_wait(s, op) || (op->kind == FAKE_OP_WAIT_EVENT && !op->mark->done)))
            pthread_cond_wait(&fake.changed, &fake.lock);
        if (!is_lost(op->c)) {
            pthread_mutex_unlock(&fake.lock);
            op_do(op);
            pthread_mutex_lock(&fake.lock);
        }
        op_end(s, op);
    }
    pthread_mutex_unlock(&fake.lock);
    pthread_cond_destroy(&s->work);
    free(s);
    return NULL;
}

static struct fake_stream *stream_new(struct fake_context *c, unsigned flags)
{
    struct fake_stream *s = calloc(1, sizeof(*s));
    pthread_attr_t attr;
    sigset_t all, old;
    pthread_t thread;

    if (s == NULL)
        abort();
    s->c = c;
    s->flags = flags;
    s->tail = &s->head;
    pthread_cond_init(&s->work, NULL);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    /* The program's signals are none of its business. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&thread, &attr, stream_run, s) != 0)
        abort();
    pthread_setname_np(thread, "fake-cuda");
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return s;
}

static void stream_end(struct fake_stream *s)
{
    s->ended = true;
    pthread_cond_signal(&s->work);
}

void fake_null_stream_end(struct fake_context *c)
{
    if (c->null_stream != NULL)
        stream_end(c->null_stream);
    c->null_stream = NULL;
}

struct fake_stream *fake_stream_find(CUstream handle)
{
    struct fake_context *c = fake_current();
    struct fake_stream *s;

    if ((uintptr_t)handle <= 1) { /* CU_STREAM_LEGACY is the same one */
        if (c->null_stream == NULL)
            c->null_stream = stream_new(c, 0);
        return c->null_stream;
    }
    s = fake_object_find(FAKE_KIND_STREAM, (uint64_t)(uintptr_t)handle);
    if (s != NULL && s->c != c) {
        fake_misuse(CUDA_ERROR_INVALID_HANDLE,
                    "the stream is of device %d, the current context of %d", s->c->device,
                    c->device);
        s = NULL;
    }
    return s;
}

CUresult fake_stream_push(struct fake_stream *s, struct fake_op *op)
{
    op->seq = ++fake.next_seq;
    *s->tail = op;
    s->tail = &op->next;
    pthread_cond_signal(&s->work);
    return CUDA_SUCCESS;
}

CUresult fake_stream_push_wait(struct fake_stream *s, struct fake_op *op)
{
    struct fake_context *c = op->c;

    op->waited = true;
    fake_stream_push(s, op);
    while (!op->done)
        pthread_cond_wait(&fake.changed, &fake.lock);
    fake_op_destroy(op);
    return c->lost;
}

/* ---- calls about streams -------------------------------------------------------------------- */

CUresult fake_cuStreamCreate(CUstream *out, unsigned flags)
{
    struct fake_context *c;
    struct fake_stream *s;
    CUresult res = fake_enter(FAKE_cuStreamCreate, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    c = fake_current();
    if (flags > CU_STREAM_NON_BLOCKING)
        return fake_leave(fake_misuse(CUDA_ERROR_INVALID_VALUE, "flags %u", flags));
    s = stream_new(c, flags);
    s->next = c->streams;
    c->streams = s;
    s->handle = fake_object_add(FAKE_KIND_STREAM, s);
    fake_count_thing(c, FAKE_STREAMS, 1);
    *out = (CUstream)(uintptr_t)s->handle;
    return fake_leave(res);
}

/* What is in it is done all the same. */
CUresult fake_cuStreamDestroy_v2(CUstream handle)
{
    struct fake_stream *s, **p;
    CUresult res = fake_enter(FAKE_cuStreamDestroy_v2, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    s = fake_object_find(FAKE_KIND_STREAM, (uint64_t)(uintptr_t)handle);
    if (s == NULL) {
        res = CUDA_ERROR_INVALID_HANDLE;
    } else {
        for (p = &s->c->streams; *p != s; p = &(*p)->next)
            ;
        *p = s->next;
        fake_object_remove(s->handle);
        fake_count_thing(s->c, FAKE_STREAMS, -1);
        stream_end(s);
    }
    return fake_leave(res);
}

CUresult fake_cuStreamSynchronize(CUstream handle)
{
    struct fake_stream *s;
    struct fake_context *c;
    uint64_t seq;
    CUresult res = fake_enter(FAKE_cuStreamSynchronize, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    c = fake_current();
    seq = fake.next_seq;
    s = fake_stream_find(handle);
    /* The stream may be destroyed meanwhile, by another thread; then that is the caller's mistake. */
    while (s != NULL && s->head != NULL && s->head->seq <= seq)
        pthread_cond_wait(&fake.changed, &fake.lock);
    return fake_leave(s == NULL ? CUDA_ERROR_INVALID_HANDLE : c->lost);
}

CUresult fake_cuCtxSynchronize(void)
{
    struct fake_context *c;
    struct fake_stream *s;
    CUresult res = fake_enter(FAKE_cuCtxSynchronize, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    c = fake_current();
    do {
        for (s = c->streams; s != NULL && s->head == NULL; s = s->next)
            ;
        if (s == NULL && c->null_stream != NULL && c->null_stream->head != NULL)
            s = c->null_stream;
        if (s != NULL)
            pthread_cond_wait(&fake.changed, &fake.lock);
    } while (s != NULL);
    return fake_leave(c->lost);
}

CUresult fake_cuStreamQuery(CUstream handle)
{
    const struct fake_stream *s;
    CUresult res = fake_enter(FAKE_cuStreamQuery, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    s = fake_stream_find(handle);
    if (s == NULL)
        res = CUDA_ERROR_INVALID_HANDLE;
    else if (s->head != NULL)
        res = CUDA_ERROR_NOT_READY;
    return fake_leave(res);
}

/* Words that both sides reach. */
static CUresult stream_word(enum fake_call call, int kind, CUstream handle, CUdeviceptr at,
                            uint32_t value, unsigned flags, unsigned known)
{
    struct fake_stream *s;
    struct fake_op *op;
    uint8_t *word;
    size_t run;
    CUresult res = fake_enter(call, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    s = fake_stream_find(handle);
    if (s == NULL || at % 4 != 0 || (flags & ~known) != 0)
        return fake_leave(fake_misuse(CUDA_ERROR_INVALID_VALUE, "0x%llx, flags %u", at, flags));
    op = fake_op_create(kind);
    op->value = value;
    op->flags = flags;
    res = fake_op_hold(op, at, 4, kind == FAKE_OP_WRITE, &word, &run);
    if (res == CUDA_SUCCESS && op->pageable)
        res = CUDA_ERROR_INVALID_VALUE; /* not registered */
    op->pieces = calloc(1, sizeof(*op->pieces));
    if (op->pieces == NULL)
        abort();
    if (res == CUDA_SUCCESS) {
        op->pieces[0].to = word;
        op->npieces = 1;
        res = fake_stream_push(s, op);
    } else {
        fake_op_destroy(op);
    }
    return fake_leave(res);
}

CUresult fake_cuStreamWriteValue32_v2(CUstream s, CUdeviceptr at, uint32_t value, unsigned flags)
{
    return stream_word(FAKE_cuStreamWriteValue32_v2, FAKE_OP_WRITE, s, at, value, flags, 0);
}

CUresult fake_cuStreamWaitValue32_v2(CUstream s, CUdeviceptr at, uint32_t value, unsigned flags)
{
    return stream_word(FAKE_cuStreamWaitValue32_v2, FAKE_OP_WAIT, s, at, value, flags,
                       3 | (fake.settings.flush ? CU_STREAM_WAIT_VALUE_FLUSH : 0u));
}

CUresult fake_cuLaunchHostFunc(CUstream handle, CUhostFn f, void *context)
{
    struct fake_stream *s;
    struct fake_op *op;
    CUresult res = fake_enter(FAKE_cuLaunchHostFunc, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    s = fake_stream_find(handle);
    if (s == NULL || f == NULL)
        return fake_leave(fake_misuse(CUDA_ERROR_INVALID_VALUE, "no stream, or no function"));
    op = fake_op_create(FAKE_OP_HOST);
    op->f = f;
    op->f_context = context;
    return fake_leave(fake_stream_push(s, op));
}

/* ---- events --------------------------------------------------------------------------------- */

CUresult fake_cuEventCreate(CUevent *out, unsigned flags)
{
    struct event *e;
    CUresult res = fake_enter(FAKE_cuEventCreate, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    if (flags > 7 || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return fake_leave(fake_misuse(CUDA_ERROR_INVALID_VALUE, "flags %u", flags));
    e = calloc(1, sizeof(*e));
    if (e == NULL)
        abort();
    e->c = fake_current();
    fake_count_thing(e->c, FAKE_EVENTS, 1);
    *out = (CUevent)(uintptr_t)fake_object_add(FAKE_KIND_EVENT, e);
    return fake_leave(res);
}

/* The way into calls about an event. */
static CUresult event_enter(enum fake_call call, CUevent handle, struct event **out)
{
    CUresult res = fake_enter(call, FAKE_CURRENT);

    if (res == CUDA_SUCCESS) {
        *out = fake_object_find(FAKE_KIND_EVENT, (uint64_t)(uintptr_t)handle);
        if (*out == NULL)
            res = fake_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    return res;
}

CUresult fake_cuEventDestroy_v2(CUevent handle)
{
    struct event *e;
    CUresult res = event_enter(FAKE_cuEventDestroy_v2, handle, &e);

    if (res == CUDA_SUCCESS) {
        mark_put(e->mark);
        fake_object_remove((uint64_t)(uintptr_t)handle);
        fake_count_thing(e->c, FAKE_EVENTS, -1);
        free(e);
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuEventRecord(CUevent handle, CUstream stream)
{
    struct fake_stream *s;
    struct event *e;
    struct fake_op *op;
    CUresult res = event_enter(FAKE_cuEventRecord, handle, &e);

    if (res != CUDA_SUCCESS)
        return res;
    s = fake_stream_find(stream);
    if (s == NULL || s->c != e->c)
        return fake_leave(fake_misuse(CUDA_ERROR_INVALID_HANDLE,
                                      "the event is of device %d, not the stream's", e->c->device));
    mark_put(e->mark);
    e->mark = calloc(1, sizeof(*e->mark));
    if (e->mark == NULL)
        abort();
    e->mark->users = 2;
    op = fake_op_create(FAKE_OP_RECORD);
    op->mark = e->mark;
    return fake_leave(fake_stream_push(s, op));
}

CUresult fake_cuEventQuery(CUevent handle)
{
    struct event *e;
    CUresult res = event_enter(FAKE_cuEventQuery, handle, &e);

    if (res == CUDA_SUCCESS) {
        if (e->c->lost != CUDA_SUCCESS)
            res = e->c->lost;
        else if (e->mark != NULL && !e->mark->done)
            res = CUDA_ERROR_NOT_READY;
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuEventSynchronize(CUevent handle)
{
    struct fake_context *c;
    struct fake_mark *mark;
    struct event *e;
    CUresult res = event_enter(FAKE_cuEventSynchronize, handle, &e);

    if (res != CUDA_SUCCESS)
        return res;
    c = e->c;
    mark = e->mark;
    if (mark != NULL) {
        mark->users++;
        while (!mark->done && c->lost == CUDA_SUCCESS)
            pthread_cond_wait(&fake.changed, &fake.lock);
        mark_put(mark);
    }
    return fake_leave(c->lost);
}

CUresult fake_cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned flags)
{
    struct fake_stream *s;
    struct event *e;
    struct fake_op *op;
    CUresult res = event_enter(FAKE_cuStreamWaitEvent, handle, &e);

    if (res != CUDA_SUCCESS)
        return res;
    s = fake_stream_find(stream);
    if (s == NULL || flags != 0)
        return fake_leave(fake_misuse(CUDA_ERROR_INVALID_VALUE, "no stream, or flags %u", flags));
    if (e->mark != NULL) {
        op = fake_op_create(FAKE_OP_WAIT_EVENT);
        op->mark = e->mark;
        op->mark->users++;
        res = fake_stream_push(s, op);
    }
    return fake_leave(res);
}
