/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_client.h"

#include "client.h"
#include "clock.h"
#include "nt.h"
#include "pin.h"
#include "proc.h"
#include "say.h"
#include "stats.h"

#include <errno.h>
#include <string.h>

#define PIPELINE_MAX 4u
#define CALLER_MAX (UINT64_C(1) << 40) /* any size, where the target lets itself be mapped */
#define MAP_TRIES 25u
#define ARGS_SIZE (UINT64_C(4) << 20) /* four lists of 64 KiB pieces for 256 MiB each, and room */

struct state {
    const struct copy_context *context;
    struct client k;
    mcshm_segment segment;
    uint8_t *source, *own; /* own: where the baselines copy to */
    struct copy_plan plan;
    nt_copy *stream;
};

unsigned copy_pipeline(uint64_t size)
{
    return size < (UINT64_C(1) << 20) ? PIPELINE_MAX : 2;
}

/* Where the k-th task reads and writes. */
static void place(const struct state *s, const struct copy_job *job, uint64_t k, uint64_t *local,
                  uint64_t *remote)
{
    uint64_t sources = s->context->region / s->plan.size;
    uint64_t targets = 2 * s->context->region / s->plan.remote_span;

    *local = job->warm ? 0 : k % sources * s->plan.size;
    *remote = job->warm ? 0 : k % targets * s->plan.remote_span;
}

static mcshm_status submit(struct state *s, const struct copy_job *job, uint64_t k,
                           mcshm_batch *batch)
{
    mcshm_request r = {.opcode = MCSHM_WRITE,
                       .priority = MCSHM_CLASS_NORMAL,
                       .segment = s->segment,
                       .length = s->plan.size};
    uint64_t local, remote;
    mcshm_status status;

    place(s, job, k, &local, &remote);
    r.local = s->source + local;
    r.remote_address = s->context->address + remote;
    status = mcshm_batch_alloc(s->k.q, 1, batch);
    if (status != MCSHM_OK)
        return status;
    switch (s->plan.shape) {
    case COPY_LIST:
        return mcshm_submit_list(s->k.q, *batch, &r, s->plan.pieces, s->plan.count);
    case COPY_STRIDE:
        return mcshm_submit_stride(s->k.q, *batch, &r, &s->plan.stride);
    default:
        return mcshm_submit(s->k.q, *batch, &r, 1);
    }
}

static mcshm_status collect(struct state *s, mcshm_batch batch, struct copy_result *out)
{
    mcshm_task_status task;
    mcshm_status status;

    while ((status = mcshm_batch_poll(s->k.q, batch, NULL)) == MCSHM_BUSY)
        ;
    if (status == MCSHM_OK)
        status = mcshm_task_poll(s->k.q, batch, 0, &task);
    if (status != MCSHM_OK)
        return status;
    if (task.state != MCSHM_STATE_COMPLETED)
        return task.error;
    out->bytes += task.bytes;
    out->path = task.path;
    return mcshm_batch_free(s->k.q, batch);
}

static int run_tasks(struct state *s, const struct copy_job *job, struct copy_result *out)
{
    unsigned depth = copy_pipeline(job->size);
    mcshm_batch batches[PIPELINE_MAX];
    uint64_t start = clock_ns(), end = start + (uint64_t)(job->seconds * 1e9);
    uint64_t put = 0, taken = 0;
    mcshm_status status = MCSHM_OK;

    while (status == MCSHM_OK && (put == 0 || clock_ns() < end)) {
        while (status == MCSHM_OK && put - taken < depth) {
            status = submit(s, job, put, &batches[put % depth]);
            put++;
        }
        if (status == MCSHM_OK)
            status = collect(s, batches[taken++ % depth], out);
    }
    while (status == MCSHM_OK && taken < put)
        status = collect(s, batches[taken++ % depth], out);
    out->seconds = (double)(clock_ns() - start) / 1e9;
    return status == MCSHM_OK
               ? 0
               : say_error(-EIO, "a %s copy of %llu bytes failed: %s", copy_shape_name(job->shape),
                           (unsigned long long)job->size, mcshm_strerror(status));
}

static void run_memcpy(struct state *s, const struct copy_job *job, struct copy_result *out)
{
    uint64_t start = clock_ns(), end = start + (uint64_t)(job->seconds * 1e9);
    uint64_t k = 0, now;

    do {
        uint64_t local, remote;

        place(s, job, k++, &local, &remote);
        for (size_t i = 0; i < s->plan.count; i++) {
            const mcshm_piece *p = &s->plan.pieces[i];
            uint8_t *to = s->own + remote + p->remote_offset;
            const uint8_t *from = s->source + local + p->local_offset;

            if (job->kind == COPY_STREAM)
                s->stream(to, from, p->length);
            else
                memcpy(to, from, p->length);
            /* the compiler must not see through to the end that nobody reads it */
            __asm__ __volatile__("" : : "r"(to) : "memory");
        }
        out->bytes += s->plan.size;
        now = clock_ns();
    } while (now < end);
    out->seconds = (double)(now - start) / 1e9;
}

static int reopen(struct state *s)
{
    mcshm_status status = MCSHM_OK;

    if (s->segment != 0)
        status = mcshm_segment_close(s->k.c, s->segment);
    if (status == MCSHM_OK)
        status = mcshm_segment_open(s->k.c, s->context->segment, &s->segment);
    return status == MCSHM_OK ? 0 : say_status(s->k.c, status, "opening the target's segment");
}

/* The time until the first byte can be read, as a median. */
static int run_map(struct state *s, const struct copy_job *job, struct copy_result *out)
{
    struct stats_rounds tries = {.count = 0};

    for (unsigned i = 0; i < MAP_TRIES; i++) {
        uint64_t before = clock_ns();
        const void *mapped;
        mcshm_status status =
            mcshm_map(s->k.c, s->segment, s->context->address, job->size, &mapped);

        if (status != MCSHM_OK)
            return say_status(s->k.c, status, "mapping the target's buffer");
        (void)*(const volatile uint8_t *)mapped;
        stats_add(&tries, (double)(clock_ns() - before) / 1e9);
        mcshm_unmap(s->k.c, mapped);
    }
    out->seconds = stats_median(&tries);
    out->bytes = job->size;
    return 0;
}

/* Reads as an application would that looks at all of it: four words a step. */
static uint64_t read_all(const uint64_t *words, size_t count)
{
    uint64_t a = 0, b = 0, c = 0, d = 0;

    for (size_t i = 0; i + 4 <= count; i += 4) {
        a ^= words[i];
        b ^= words[i + 1];
        c ^= words[i + 2];
        d ^= words[i + 3];
    }
    return a ^ b ^ c ^ d;
}

static int run_read(struct state *s, const struct copy_job *job, struct copy_result *out)
{
    const void *mapped;
    volatile uint64_t sum;
    uint64_t start, end, now;
    mcshm_status status = mcshm_map(s->k.c, s->segment, s->context->address, job->size, &mapped);

    if (status != MCSHM_OK)
        return say_status(s->k.c, status, "mapping the target's buffer");
    sum = read_all(mapped, job->size / 8); /* page tables filled once, outside the time */
    start = clock_ns();
    end = start + (uint64_t)(job->seconds * 1e9);
    do {
        sum = read_all(mapped, job->size / 8);
        out->bytes += job->size;
        now = clock_ns();
    } while (now < end);
    (void)sum;
    out->seconds = (double)(now - start) / 1e9;
    mcshm_unmap(s->k.c, mapped);
    return 0;
}

static int do_job(struct state *s, const struct copy_job *job, struct copy_result *out)
{
    int rc = 0;

    memset(out, 0, sizeof(*out));
    switch (job->kind) {
    case COPY_OPEN:
        return reopen(s);
    case COPY_MAP:
        return run_map(s, job, out);
    case COPY_READ:
        return run_read(s, job, out);
    case COPY_TASKS:
    case COPY_PLAIN:
    case COPY_STREAM:
        break;
    }
    if (s->plan.pieces == NULL || s->plan.size != job->size || s->plan.shape != job->shape) {
        copy_plan_free(&s->plan);
        rc = copy_plan_make(job->shape, job->size, &s->plan);
        if (rc != 0)
            return say_error(rc, "no plan for %llu bytes: %s", (unsigned long long)job->size,
                             strerror(-rc));
    }
    if (job->kind == COPY_TASKS)
        rc = run_tasks(s, job, out);
    else
        run_memcpy(s, job, out);
    return rc;
}

static int prepare(struct state *s)
{
    const mcshm_queue_options queue = {.size = sizeof(queue), .args_size = ARGS_SIZE};
    void *source = NULL, *own = NULL;
    mcshm_status status;
    int rc;

    rc = client_open(&s->k, s->context->socket, "bench-copy", CALLER_MAX, &queue);
    if (rc != 0)
        return rc;
    status = mcshm_alloc(s->k.c, s->context->region, 2u << 20, NULL, &source);
    if (status == MCSHM_OK)
        status = mcshm_alloc(s->k.c, 2 * s->context->region, 2u << 20, NULL, &own);
    if (status != MCSHM_OK)
        return say_status(s->k.c, status, "allocating sources");
    s->source = source;
    s->own = own;
    memset(source, 1, s->context->region); /* first touches, outside all measurements */
    memset(own, 2, 2 * s->context->region);
    return 0;
}

int copy_client_main(int fd, void *context)
{
    struct state s = {.context = context};
    struct copy_result result;
    struct copy_job job;
    const char *name;
    int rc;

    pin_to(s.context->core);
    s.stream = nt_choose(&name);
    rc = prepare(&s);
    while (rc == 0 && (rc = proc_recv(fd, &job, sizeof(job), -1)) == 0) {
        rc = do_job(&s, &job, &result);
        if (rc == 0)
            rc = proc_send(fd, &result, sizeof(result));
    }
    copy_plan_free(&s.plan);
    client_close(&s.k);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}
