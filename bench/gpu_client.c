/* SPDX-License-Identifier: Apache-2.0 */
/* The measuring process: tasks through the agent, and the same copies by the driver in this process. */
#include "gpu_run.h"

#include "client.h"
#include "clock.h"
#include "device.h"
#include "gpu_bare.h"
#include "pin.h"
#include "proc.h"
#include "say.h"
#include "stats.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define SMALL (UINT64_C(1) << 20)
#define ARGS_SIZE (UINT64_C(4) << 20) /* lists of 4096 pieces, several */

struct state {
    const struct gpu_context *x;
    struct device device;
    struct client k;
    mcshm_segment segment;
    uint64_t target; /* address of the other process's memory */
    uint64_t memory,
        own;       /* device memory: tasks read from the first, bare copies write the second */
    uint8_t *host; /* pool memory */
    struct gpu_bare bare;
    struct gpu_shape shape; /* of the plan */
    struct copy_plan plan;
    double us[GPU_LATENCIES_MAX];
};

/* Copies under way at a time. */
static unsigned depth_of(const struct gpu_shape *shape)
{
    return shape->size < SMALL ? GPU_BARE_STREAMS : 2;
}

/* Where the k-th copy reads and writes, on both sides. */
static uint64_t place(const struct state *s, uint64_t k)
{
    uint64_t places = gpu_span(s->x->region, s->shape.size) / s->shape.size;

    return k % places * s->shape.size;
}

static int submit(struct state *s, uint64_t k, mcshm_batch *batch)
{
    enum gpu_op op = s->shape.op;
    uint64_t at = place(s, k);
    mcshm_request r = {.opcode = op == GPU_D2H ? MCSHM_READ : MCSHM_WRITE,
                       .priority = MCSHM_CLASS_NORMAL,
                       .segment = s->segment,
                       .remote_address = s->target + at,
                       .length = s->shape.size};
    mcshm_status status = mcshm_batch_alloc(s->k.q, 1, batch);

    if (op == GPU_D2D) {
        r.local = (void *)(uintptr_t)(s->memory + at);
        r.flags = MCSHM_GPU_SYNCED; /* nothing else uses it meanwhile */
    } else {
        r.local = s->host + at;
    }
    if (status == MCSHM_OK)
        status = s->plan.count == 1
                     ? mcshm_submit(s->k.q, *batch, &r, 1)
                     : mcshm_submit_list(s->k.q, *batch, &r, s->plan.pieces, s->plan.count);
    return status == MCSHM_OK ? 0 : say_status(s->k.c, status, "submitting a copy");
}

static int collect(struct state *s, mcshm_batch batch, struct gpu_result *out)
{
    mcshm_task_status task;
    mcshm_status status;

    while ((status = mcshm_batch_poll(s->k.q, batch, NULL)) == MCSHM_BUSY)
        ;
    if (status == MCSHM_OK)
        status = mcshm_task_poll(s->k.q, batch, 0, &task);
    if (status == MCSHM_OK && task.state != MCSHM_STATE_COMPLETED)
        status = task.error;
    if (status == MCSHM_OK) {
        out->bytes += task.bytes;
        out->path = task.path;
        status = mcshm_batch_free(s->k.q, batch);
    }
    if (status != MCSHM_OK)
        return say_error(-EIO, "%s of %" PRIu64 " bytes in pieces of %" PRIu64 ": %s",
                         gpu_op_name(s->shape.op), s->shape.size, s->shape.piece,
                         mcshm_strerror(status));
    return out->path == MCSHM_PATH_CUDA
               ? 0
               : say_error(-EIO, "%s of %" PRIu64 " bytes went by the path %s, not cuda",
                           gpu_op_name(s->shape.op), s->shape.size, mcshm_path_name(out->path));
}

static int run_tasks(struct state *s, unsigned depth, double seconds, struct gpu_result *out)
{
    uint64_t start = clock_ns(), end = start + (uint64_t)(seconds * 1e9);
    mcshm_batch batches[GPU_BARE_STREAMS];
    uint64_t put = 0, taken = 0;
    int rc = 0;

    while (rc == 0 && (put == 0 || clock_ns() < end)) {
        while (rc == 0 && put - taken < depth) {
            rc = submit(s, put, &batches[put % depth]);
            put++;
        }
        if (rc == 0)
            rc = collect(s, batches[taken++ % depth], out);
    }
    while (rc == 0 && taken < put)
        rc = collect(s, batches[taken++ % depth], out);
    out->tasks = put;
    out->seconds = (double)(clock_ns() - start) / 1e9;
    return rc;
}

static int run_bare(struct state *s, unsigned depth, double seconds, struct gpu_result *out)
{
    uint64_t start = clock_ns(), end = start + (uint64_t)(seconds * 1e9);
    uint64_t put = 0, taken = 0;
    int rc = 0;

    while (rc == 0 && (put == 0 || clock_ns() < end)) {
        for (; rc == 0 && put - taken < depth; put++)
            rc = gpu_bare_copy(&s->bare, s->shape.op, &s->plan, place(s, put),
                               (unsigned)(put % depth));
        if (rc == 0)
            rc = gpu_bare_await(&s->bare, (unsigned)(taken++ % depth));
    }
    while (rc == 0 && taken < put)
        rc = gpu_bare_await(&s->bare, (unsigned)(taken++ % depth));
    out->tasks = put;
    out->bytes = put * s->shape.size;
    out->seconds = (double)(clock_ns() - start) / 1e9;
    return rc;
}

/* One after the other, each timed by itself, from before it is asked for until its end is seen. */
static int run_alone(struct state *s, bool bare, double seconds, struct gpu_result *out)
{
    uint64_t start = clock_ns(), end = start + (uint64_t)(seconds * 1e9);
    uint64_t before = start, k = 0;
    int rc = 0;

    while (rc == 0 && k < GPU_LATENCIES_MAX && (k == 0 || before < end)) {
        mcshm_batch batch;

        before = clock_ns();
        if (bare) {
            rc = gpu_bare_copy(&s->bare, s->shape.op, &s->plan, place(s, k), 0);
            if (rc == 0)
                rc = gpu_bare_await(&s->bare, 0);
        } else {
            rc = submit(s, k, &batch);
            if (rc == 0)
                rc = collect(s, batch, out);
        }
        s->us[k++] = (double)(clock_ns() - before) / 1e3;
    }
    out->tasks = k;
    out->seconds = (double)(clock_ns() - start) / 1e9;
    if (rc == 0)
        out->p50_us = stats_percentile(s->us, k, 50);
    return rc;
}

static int open_target(struct state *s, const char *name, uint64_t address)
{
    mcshm_status status = mcshm_segment_open(s->k.c, name, &s->segment);

    s->target = address;
    return status == MCSHM_OK ? 0 : say_status(s->k.c, status, "opening the target's segment");
}

static int take_shape(struct state *s, const struct gpu_shape *shape)
{
    int rc = 0;

    if (s->plan.pieces == NULL || s->shape.size != shape->size || s->shape.piece != shape->piece) {
        copy_plan_free(&s->plan);
        rc = gpu_plan_make(shape, &s->plan);
    }
    s->shape = *shape;
    return rc == 0 ? 0
                   : say_error(rc, "no plan for %" PRIu64 " bytes: %s", shape->size, strerror(-rc));
}

static int do_job(struct state *s, const struct gpu_job *job, struct gpu_result *out)
{
    switch (job->what) {
    case GPU_OPEN:
        return open_target(s, s->x->segment, job->value);
    case GPU_PUT:
        return device_put(&s->device, s->memory, s->x->desk, job->value);
    case GPU_GET:
        return device_get(&s->device, s->x->desk, s->memory, job->value);
    case GPU_PUT_HOST:
        memcpy(s->host, s->x->desk, job->value);
        return 0;
    case GPU_GET_HOST:
        memcpy(s->x->desk, s->host, job->value);
        return 0;
    case GPU_TASKS:
        return run_tasks(s, depth_of(&s->shape), job->seconds, out);
    case GPU_BARE:
        return run_bare(s, depth_of(&s->shape), job->seconds, out);
    case GPU_TASKS_ALONE:
        return run_alone(s, false, job->seconds, out);
    case GPU_BARE_ALONE:
        return run_alone(s, true, job->seconds, out);
    }
    return say_error(-EPROTO, "the measuring process was asked for what it does not do");
}

static int prepare(struct state *s)
{
    const mcshm_queue_options queue = {.size = sizeof(queue), .args_size = ARGS_SIZE};
    void *memory = NULL, *own = NULL, *host = NULL;
    mcshm_status status;
    int rc = device_open(s->x->location, &s->device);

    if (rc == 0)
        rc = client_open(&s->k, s->x->socket, "bench-gpu", 0, &queue);
    if (rc != 0)
        return rc;
    status = mcshm_alloc(s->k.c, s->x->region, 0, s->x->location, &memory);
    if (status == MCSHM_OK)
        status = mcshm_alloc(s->k.c, s->x->region, 0, s->x->location, &own);
    if (status == MCSHM_OK)
        status = mcshm_alloc(s->k.c, s->x->region, 2u << 20, NULL, &host);
    if (status != MCSHM_OK)
        return say_status(s->k.c, status, "allocating the measuring process's memory");
    s->memory = (uintptr_t)memory;
    s->own = (uintptr_t)own;
    s->host = host;
    memset(host, 0, s->x->region); /* first touches, outside all measurements */
    return gpu_bare_init(&s->bare, &s->device, s->x->region, s->memory, s->own);
}

int gpu_client_main(int fd, void *context)
{
    static struct state s; /* too large for a stack frame */
    struct gpu_job job;
    int rc;

    s.x = context;
    pin_to(s.x->core);
    rc = prepare(&s);
    while (rc == 0 && (rc = proc_recv(fd, &job, sizeof(job), -1)) == 0) {
        struct gpu_result result = {.path = MCSHM_PATH_NONE};

        rc = job.shape.size > 0 ? take_shape(&s, &job.shape) : 0;
        if (rc == 0)
            rc = do_job(&s, &job, &result);
        if (rc == 0)
            rc = proc_send(fd, &result, sizeof(result));
    }
    copy_plan_free(&s.plan);
    gpu_bare_fini(&s.bare);
    if (s.k.c != NULL)
        client_close(&s.k);
    device_close(&s.device);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}
