/* SPDX-License-Identifier: Apache-2.0 */
#include "net_client.h"

#include "client.h"
#include "clock.h"
#include "pattern.h"
#include "proc.h"
#include "say.h"
#include "stats.h"

#include "shm/atomic.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TIMES_MAX (1u << 20)
#define WAIT_US 60000000
#define PIECE (UINT64_C(1) << 20) /* of NET_PUSH and NET_PULL */
#define ROOM_US 100000

struct state {
    const struct net_client_context *context;
    struct client k;
    mcshm_segment segment;
    uint64_t remote; /* address of its part of the target */
    uint8_t *memory;
    mcshm_request *requests; /* context->tasks of them */
    mcshm_batch *batches;
    uint32_t *times;
    uint32_t time_count;
    uint64_t put;       /* tasks so far in this job */
    uint64_t submit_ns; /* when the last batch was complete, but not yet submitted */
};

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The next tasks of a job; the k-th has its own place, until all of the span has been used. */
static mcshm_status submit(struct state *s, const struct net_job *job, uint32_t count,
                           mcshm_batch *batch)
{
    uint64_t places = job->span / job->size;
    mcshm_status status = mcshm_batch_alloc(s->k.q, count, batch);

    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = s->put++ % places * job->size;

        s->requests[i] = (mcshm_request){.opcode = job->opcode,
                                         .priority = MCSHM_CLASS_NORMAL,
                                         .local = s->memory + at,
                                         .segment = s->segment,
                                         .remote_address = s->remote + at,
                                         .length = job->size};
    }
    if (job->spin)
        s->submit_ns = clock_ns();
    return status != MCSHM_OK ? status : mcshm_submit(s->k.q, *batch, s->requests, count);
}

/* Takes what an ended batch came to into the result, and frees it. */
static mcshm_status collect(struct state *s, mcshm_batch batch, bool all_paths,
                            struct net_result *out)
{
    mcshm_batch_status sum;
    mcshm_task_status task;
    mcshm_status status = mcshm_batch_poll(s->k.q, batch, &sum);

    for (uint32_t i = 0; status == MCSHM_OK && i < (all_paths || sum.failed > 0 ? sum.tasks : 1);
         i++) {
        status = mcshm_task_poll(s->k.q, batch, i, &task);
        if (status != MCSHM_OK)
            break;
        if (task.path < NET_PATHS)
            out->paths[task.path]++;
        if (task.state == MCSHM_STATE_COMPLETED)
            out->path = task.path;
        else if (out->error == MCSHM_OK)
            out->error = task.error;
    }
    if (status != MCSHM_OK)
        return status;
    out->bytes += sum.bytes;
    out->tasks += sum.ended;
    out->failed += sum.failed;
    return mcshm_batch_free(s->k.q, batch);
}

/* *submitted: the time is from there on. */
static mcshm_status spin(struct state *s, mcshm_batch batch, uint64_t *submitted)
{
    mcshm_status status;

    *submitted = s->submit_ns;
    do
        status = mcshm_batch_poll(s->k.q, batch, NULL);
    while (status == MCSHM_BUSY);
    return status;
}

static int run(struct state *s, const struct net_job *job, struct net_result *out)
{
    uint64_t start = clock_ns(), end = start + (uint64_t)(job->seconds * 1e9);
    uint64_t cpu = cpu_ns(), now = start;
    mcshm_status status = MCSHM_OK;

    s->time_count = 0;
    do {
        uint64_t before = now;
        mcshm_batch batch;

        status = submit(s, job, job->batch, &batch);
        if (status == MCSHM_OK)
            status = job->spin ? spin(s, batch, &before) : mcshm_batch_wait(s->k.q, batch, WAIT_US);
        now = clock_ns();
        if (status == MCSHM_OK)
            status = collect(s, batch, job->all_paths, out);
        if (status == MCSHM_OK && out->failed > 0)
            status = out->error;
        if (s->time_count < TIMES_MAX)
            s->times[s->time_count++] =
                now - before > UINT32_MAX ? UINT32_MAX : (uint32_t)(now - before);
    } while (status == MCSHM_OK && now < end);
    if (status != MCSHM_OK)
        return say_error(-EIO, "%s of %" PRIu64 " bytes, %" PRIu32 " at a time: %s",
                         job->opcode == MCSHM_READ ? "READ" : "WRITE", job->size, job->batch,
                         mcshm_strerror(status));
    out->seconds = (double)(now - start) / 1e9;
    out->cpu_seconds = (double)(cpu_ns() - cpu) / 1e9;
    out->p50_us = stats_percentile_u32(s->times, s->time_count, 50) / 1e3;
    out->p99_us = stats_percentile_u32(s->times, s->time_count, 99) / 1e3;
    out->p999_us = stats_percentile_u32(s->times, s->time_count, 99.9) / 1e3;
    return 0;
}

static void note(struct net_timeline *t, uint64_t now, uint64_t bytes)
{
    uint64_t bin = (now - t->start_ns) / 1000000;

    if (bin < NET_BINS) /* partner: the parent reads when the job is done */
        mcs_store_relaxed(&t->bytes[bin], t->bytes[bin] + bytes);
}

/* One task a batch, so that each is seen when it ends; one that fails is put again. */
static int stream(struct state *s, const struct net_job *job, struct net_result *out)
{
    uint64_t end = s->context->timeline->start_ns + (uint64_t)(job->seconds * 1e9);
    mcshm_status status = MCSHM_OK;
    uint32_t flying = 0;

    while (status == MCSHM_OK && flying < job->batch)
        status = submit(s, job, 1, &s->batches[flying++]);
    while (status == MCSHM_OK && flying > 0) {
        bool any = false;

        for (uint32_t i = 0; status == MCSHM_OK && i < flying; i++) {
            uint64_t bytes = out->bytes, now;

            status = mcshm_batch_poll(s->k.q, s->batches[i], NULL);
            if (status == MCSHM_BUSY) {
                status = MCSHM_OK;
                continue;
            }
            now = clock_ns();
            any = true;
            if (status == MCSHM_OK)
                status = collect(s, s->batches[i], true, out);
            note(s->context->timeline, now, out->bytes - bytes);
            if (status == MCSHM_OK && now < end)
                status = submit(s, job, 1, &s->batches[i]);
            else
                s->batches[i--] = s->batches[--flying];
        }
        /* oldest or not: any end wakes it soon enough for bins of a millisecond */
        if (!any && flying > 0)
            mcshm_batch_wait(s->k.q, s->batches[0], 200);
    }
    out->seconds = job->seconds;
    return status == MCSHM_OK ? 0 : say_error(-EIO, "streaming: %s", mcshm_strerror(status));
}

/* All of the span, once. */
static int move_all(struct state *s, const struct net_job *job, mcshm_opcode opcode)
{
    struct net_result ignored = {.tasks = 0};

    for (uint64_t at = 0; at < job->span; at += PIECE) {
        mcshm_request r = {.opcode = opcode,
                           .priority = MCSHM_CLASS_NORMAL,
                           .local = s->memory + at,
                           .segment = s->segment,
                           .remote_address = s->remote + at,
                           .length = job->span - at < PIECE ? job->span - at : PIECE};
        mcshm_batch batch;
        mcshm_status status = mcshm_batch_alloc(s->k.q, 1, &batch);

        if (status == MCSHM_OK)
            status = mcshm_submit(s->k.q, batch, &r, 1);
        if (status == MCSHM_OK)
            status = mcshm_batch_wait(s->k.q, batch, WAIT_US);
        if (status == MCSHM_OK)
            status = collect(s, batch, false, &ignored);
        if (status == MCSHM_OK)
            status = ignored.error;
        if (status != MCSHM_OK)
            return say_error(-EIO, "preparing or checking the target's memory: %s",
                             mcshm_strerror(status));
    }
    return 0;
}

static int do_job(struct state *s, const struct net_job *job, struct net_result *out)
{
    int rc = 0;

    memset(out, 0, sizeof(*out));
    s->put = 0;
    switch (job->kind) {
    case NET_RUN:
        rc = run(s, job, out);
        break;
    case NET_STREAM:
        rc = stream(s, job, out);
        break;
    case NET_FILL:
        pattern_fill(s->memory, job->span, job->seed);
        break;
    case NET_CHECK:
        out->mismatches = pattern_check(s->memory, job->span, job->seed);
        break;
    case NET_PUSH:
        rc = move_all(s, job, MCSHM_WRITE);
        break;
    case NET_PULL:
        rc = move_all(s, job, MCSHM_READ);
        break;
    }
    out->touched = s->put * job->size < job->span ? s->put * job->size : job->span;
    return rc;
}

static int open_target(struct state *s)
{
    const struct net_client_context *x = s->context;
    mcshm_buffer buffer;
    size_t count = 1;
    mcshm_status status = mcshm_segment_open(s->k.c, x->segment, &s->segment);

    if (status == MCSHM_OK)
        status = mcshm_segment_describe(s->k.c, s->segment, &buffer, &count);
    if (status != MCSHM_OK)
        return say_status(s->k.c, status, x->segment);
    if (count == 0 || buffer.size < x->offset + x->region)
        return say_error(-EINVAL,
                         "%s offers a buffer of %" PRIu64 " bytes and this run needs %" PRIu64
                         "; serve a larger one, or ask for smaller --sizes or --batch",
                         x->segment, count > 0 ? buffer.size : 0, x->offset + x->region);
    s->remote = buffer.address + x->offset;
    return 0;
}

static int prepare(struct state *s)
{
    const struct net_client_context *x = s->context;
    mcshm_queue_options queue = {.size = sizeof(queue), .depth = 64};
    void *memory = NULL;
    mcshm_status status;
    int rc;

    while (queue.depth <= 2 * x->tasks)
        queue.depth *= 2;
    queue.batches = queue.depth;
    s->requests = calloc(x->tasks, sizeof(s->requests[0]));
    s->batches = calloc(x->tasks, sizeof(s->batches[0]));
    s->times = calloc(TIMES_MAX, sizeof(s->times[0]));
    if (s->requests == NULL || s->batches == NULL || s->times == NULL)
        return say_error(-ENOMEM, "net: out of memory");
    rc = client_open(&s->k, x->socket, "bench-net", 0, &queue);
    if (rc != 0)
        return rc;
    status = mcshm_alloc(s->k.c, x->region, 2u << 20, NULL, &memory);
    if (status != MCSHM_OK)
        return say_status(s->k.c, status, "allocating a client's memory");
    s->memory = memory;
    memset(memory, 1, x->region); /* first touches, outside all measurements */
    return open_target(s);
}

int net_client_main(int fd, void *context)
{
    struct state s = {.context = context};
    struct net_result result = {.tasks = 0};
    struct net_job job;
    int rc = prepare(&s);

    if (rc == 0)
        rc = proc_send(fd, &result, sizeof(result)); /* ready */
    while (rc == 0 && (rc = proc_recv(fd, &job, sizeof(job), -1)) == 0) {
        rc = do_job(&s, &job, &result);
        if (rc == 0)
            rc = proc_send(fd, &result, sizeof(result));
    }
    client_close(&s.k);
    free(s.requests);
    free(s.batches);
    free(s.times);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}
