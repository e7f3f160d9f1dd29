/* SPDX-License-Identifier: Apache-2.0 */
#include "ring_client.h"

#include "client.h"
#include "clock.h"
#include "pin.h"
#include "proc.h"
#include "say.h"
#include "seccomp.h"
#include "stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SAMPLES_MAX (4u << 20)
#define RTT_TASKS 256u         /* tasks of the batch that round trips use before it is freed */
#define LOOK_EVERY 64u         /* trips between two looks at the time */
#define WARM_TICKS_DIVISOR 20u /* warm-up: 1/20 s */

struct loop {
    struct client k;
    mcshm_segment segment;
    uint64_t address;
    uint8_t *source;
    const uint8_t *destination; /* the target's buffer, read in place */
    struct raw raw;
    struct floor floor;
    struct wake wake;
    struct ring_job job;
    uint64_t hz;
    uint32_t *samples;
    /* state of the round trips */
    mcshm_batch batch;
    uint32_t index;
    uint64_t sequence;
    /* out */
    uint64_t count, ticks, sampled;
    mcshm_status error;
    mcshm_path path;
};

static void fill_request(const struct loop *l, mcshm_request *r, uint32_t place)
{
    uint64_t offset = (uint64_t)place * l->job.payload;

    memset(r, 0, sizeof(*r));
    r->opcode = MCSHM_WRITE;
    r->priority = MCSHM_CLASS_NORMAL;
    r->local = l->source + offset;
    r->segment = l->segment;
    r->remote_address = l->address + offset;
    r->length = l->job.payload;
}

/* One round trip: write the source, submit, poll, read the destination. */
static bool trip(struct loop *l, const mcshm_request *request)
{
    size_t words = l->job.payload / 8;
    uint64_t *source = (uint64_t *)l->source;
    const volatile uint64_t *destination = (const volatile uint64_t *)l->destination;
    mcshm_task_status status;
    mcshm_status s;

    if (l->index == RTT_TASKS) {
        while ((s = mcshm_batch_free(l->k.q, l->batch)) == MCSHM_BUSY)
            ;
        if (s == MCSHM_OK)
            s = mcshm_batch_alloc(l->k.q, RTT_TASKS, &l->batch);
        if (s != MCSHM_OK)
            goto failed;
        l->index = 0;
    }
    l->sequence++;
    if (words <= 8) {
        for (size_t w = 0; w < words; w++)
            source[w] = l->sequence;
    } else {
        source[0] = l->sequence;
        source[words - 1] = l->sequence;
    }
    s = mcshm_submit(l->k.q, l->batch, request, 1);
    if (s != MCSHM_OK)
        goto failed;
    do
        s = mcshm_task_poll(l->k.q, l->batch, l->index, &status);
    while (s == MCSHM_OK && status.state <= MCSHM_STATE_PENDING);
    if (s != MCSHM_OK)
        goto failed;
    l->index++;
    l->path = status.path;
    if (status.state != MCSHM_STATE_COMPLETED) {
        s = status.error;
        goto failed;
    }
    if (destination[0] == l->sequence && destination[words - 1] == l->sequence)
        return true;
    s = MCSHM_INTERNAL; /* COMPLETED, and yet not there */
failed:
    l->error = s;
    return false;
}

static void run_trips(struct loop *l, uint64_t until, uint64_t iterations, bool sampled)
{
    mcshm_request request;
    uint64_t before = mcs_ticks();

    fill_request(l, &request, 0);
    do {
        for (unsigned i = 0; i < LOOK_EVERY; i++) {
            if (!trip(l, &request))
                return;
            if (sampled && l->sampled < SAMPLES_MAX) {
                uint64_t now = mcs_ticks();

                l->samples[l->sampled++] = (uint32_t)(now - before);
                before = now;
            }
        }
        l->count += LOOK_EVERY;
    } while (iterations != 0 ? l->count < iterations : mcs_ticks() < until);
}

static void run_batches(struct loop *l, uint64_t until, uint64_t iterations)
{
    mcshm_request requests[RING_BATCH];
    mcshm_batch batches[RING_IN_FLIGHT];
    mcshm_batch_status status;
    mcshm_status s = MCSHM_OK;
    unsigned at = 0;

    for (uint32_t i = 0; i < RING_BATCH; i++)
        fill_request(l, &requests[i], i);
    for (unsigned b = 0; b < RING_IN_FLIGHT; b++)
        batches[b] = MCSHM_INVALID_BATCH;
    do {
        for (unsigned b = 0; b < RING_IN_FLIGHT; b++) {
            if (batches[at] != MCSHM_INVALID_BATCH) {
                while ((s = mcshm_batch_poll(l->k.q, batches[at], &status)) == MCSHM_BUSY)
                    ;
                if (s == MCSHM_OK && status.failed != 0)
                    s = MCSHM_INTERNAL;
                if (s == MCSHM_OK)
                    s = mcshm_batch_free(l->k.q, batches[at]);
                if (s != MCSHM_OK)
                    goto out;
                l->count += RING_BATCH;
            }
            s = mcshm_batch_alloc(l->k.q, RING_BATCH, &batches[at]);
            if (s == MCSHM_OK)
                s = mcshm_submit(l->k.q, batches[at], requests, RING_BATCH);
            if (s != MCSHM_OK)
                goto out;
            at = (at + 1) % RING_IN_FLIGHT;
        }
    } while (iterations != 0 ? l->count < iterations : mcs_ticks() < until);
    for (unsigned b = 0; b < RING_IN_FLIGHT; b++, at = (at + 1) % RING_IN_FLIGHT) {
        while ((s = mcshm_batch_poll(l->k.q, batches[at], &status)) == MCSHM_BUSY)
            ;
        if (s == MCSHM_OK)
            s = mcshm_batch_free(l->k.q, batches[at]);
        if (s != MCSHM_OK)
            goto out;
        l->count += RING_BATCH;
    }
out:
    l->error = s;
}

static bool through_agent(enum ring_kind kind)
{
    return kind == RING_RTT || kind == RING_LATENCY || kind == RING_RATE || kind == RING_WAKE;
}

static void warm(void *context)
{
    struct loop *l = context;
    uint64_t until = mcs_ticks() + l->hz / WARM_TICKS_DIVISOR;

    if (l->job.kind == RING_RATE)
        run_batches(l, until, 0);
    else if (through_agent(l->job.kind))
        run_trips(l, until, 0, l->job.kind == RING_LATENCY);
    l->count = 0;
    l->sampled = 0;
}

static void measure(void *context)
{
    struct loop *l = context;
    uint64_t start = mcs_ticks();
    uint64_t until = start + (uint64_t)(l->job.seconds * (double)l->hz);

    if (l->error != MCSHM_OK)
        return;
    switch (l->job.kind) {
    case RING_RTT:
    case RING_LATENCY:
        run_trips(l, until, l->job.iterations, l->job.kind == RING_LATENCY);
        break;
    case RING_RATE:
        run_batches(l, until, l->job.iterations);
        break;
    case RING_RAW_RTT:
        l->count = raw_rtt_client(&l->raw, until);
        break;
    case RING_RAW_RATE:
        l->count = raw_rate_client(&l->raw, until);
        break;
    case RING_FLOOR_RTT:
        l->count = floor_rtt_client(&l->floor, until);
        break;
    case RING_FLOOR_RATE:
        l->count = floor_rate_client(&l->floor, until);
        break;
    case RING_WAKE:
    case RING_RAW_WAKE:
        break;
    }
    l->ticks = mcs_ticks() - start;
}

/* Idleness, then one task: what it takes with the engine asleep. */
static void measure_wake(struct loop *l)
{
    mcshm_request request;

    fill_request(l, &request, 0);
    for (unsigned i = 0; i < WAKE_SAMPLES; i++) {
        uint64_t before;

        wake_idle();
        before = mcs_ticks();
        if (!trip(l, &request))
            return;
        l->samples[l->sampled++] = (uint32_t)(mcs_ticks() - before);
    }
    l->count = l->sampled;
}

static int do_job(struct loop *l, int core, struct ring_result *out)
{
    struct seccomp_run run = {.warm = warm, .measure = measure, .context = l, .core = core};
    double ns = 1e9 / (double)l->hz;
    mcshm_status s;
    int rc = 0;

    memset(out, 0, sizeof(*out));
    l->count = l->sampled = l->ticks = 0;
    l->error = MCSHM_OK;
    l->path = MCSHM_PATH_NONE;
    if (through_agent(l->job.kind) && l->job.kind != RING_RATE) {
        l->index = 0;
        s = mcshm_batch_alloc(l->k.q, RTT_TASKS, &l->batch);
        if (s != MCSHM_OK)
            return say_status(l->k.c, s, "allocating a batch");
    }
    if (l->job.kind == RING_WAKE)
        measure_wake(l);
    else if (l->job.kind == RING_RAW_WAKE)
        l->count = l->sampled = wake_client(&l->wake, l->samples);
    else
        rc = seccomp_thread(&run);
    if (rc != 0)
        return say_error(rc, "no thread to measure in: %s", strerror(-rc));
    if (l->error != MCSHM_OK)
        return say_error(-EIO, "a task failed while measuring: %s", mcshm_strerror(l->error));
    if (through_agent(l->job.kind) && l->job.kind != RING_RATE)
        while (mcshm_batch_free(l->k.q, l->batch) == MCSHM_BUSY)
            ;
    out->count = l->count;
    out->seconds = (double)l->ticks / (double)l->hz;
    out->filtered = run.filtered;
    out->filter_error = run.error;
    out->path = l->path;
    out->p50_ns = stats_percentile_u32(l->samples, l->sampled, 50) * ns;
    out->p99_ns = stats_percentile_u32(l->samples, l->sampled, 99) * ns;
    out->p999_ns = stats_percentile_u32(l->samples, l->sampled, 99.9) * ns;
    return 0;
}

static int prepare(struct loop *l, const struct ring_context *context)
{
    const mcshm_queue_options queue = {.size = sizeof(queue), .depth = 1024};
    const void *mapped;
    void *memory;
    mcshm_status s;
    int rc;

    rc = client_open(&l->k, context->socket, "bench-ring", 0, &queue);
    if (rc != 0)
        return rc;
    s = mcshm_alloc(l->k.c, RING_BUFFER_SIZE, 2u << 20, NULL, &memory);
    if (s != MCSHM_OK)
        return say_status(l->k.c, s, "allocating the source");
    memset(memory, 1, RING_BUFFER_SIZE);
    l->source = memory;
    l->address = context->address;
    s = mcshm_segment_open(l->k.c, context->segment, &l->segment);
    if (s != MCSHM_OK)
        return say_status(l->k.c, s, "opening the target's segment");
    s = mcshm_map(l->k.c, l->segment, l->address, RING_BUFFER_SIZE, &mapped);
    if (s != MCSHM_OK)
        return say_status(l->k.c, s, "mapping the target's buffer");
    l->destination = mapped;
    return 0;
}

int ring_client_main(int fd, void *argument)
{
    const struct ring_context *context = argument;
    struct loop l = {.raw = context->raw, .floor = context->floor, .wake = context->wake};
    struct ring_result result;
    int rc;

    l.hz = (uint64_t)clock_tick_hz();
    l.samples = mmap(NULL, SAMPLES_MAX * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (l.samples == MAP_FAILED)
        return say_error(-errno, "no memory for samples: %m");
    pin_to(context->core);
    rc = prepare(&l, context);
    while (rc == 0 && (rc = proc_recv(fd, &l.job, sizeof(l.job), -1)) == 0) {
        rc = do_job(&l, context->core, &result);
        if (rc == 0)
            rc = proc_send(fd, &result, sizeof(result));
    }
    client_close(&l.k);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}
