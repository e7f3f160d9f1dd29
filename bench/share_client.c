/* SPDX-License-Identifier: Apache-2.0 */
#include "share_client.h"

#include "client.h"
#include "clock.h"
#include "pin.h"
#include "proc.h"
#include "say.h"
#include "stats.h"

#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define QUEUES_MAX 16u
#define SAMPLES_MAX (2u << 20)
#define WAIT_US (60 * 1000000) /* for a batch: 256 MiB, beside many others, on a slow machine */

struct flood {
    mcshm *c;
    mcshm_queue *q[QUEUES_MAX];
    mcshm_batch batch[QUEUES_MAX][SHARE_DEPTH_MAX];
    unsigned next[QUEUES_MAX];
    mcshm_segment segment;
    uint64_t address;
    uint8_t *memory;
    uint64_t tasks;
};

/* Another user from now on, in the folder where the agent's socket is: the folders above may be closed to it. */
static int become(const struct share_client *o)
{
    pid_t parent = getppid();

    if (o->core >= 0)
        pin_to(o->core);
    else
        pin_away_from(o->not_on);
    if (o->folder != NULL && chdir(o->folder) != 0)
        return say_error(-errno, "cannot enter %s: %m", o->folder);
    if (o->uid == 0)
        return 0;
    if (setgroups(0, NULL) != 0 || setgid(o->uid) != 0 || setuid(o->uid) != 0)
        return say_error(-errno, "cannot become user %u: %m", (unsigned)o->uid);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* forgotten with the old user */
    return getppid() == parent ? 0 : -EPIPE;
}

/* A segment of its own: source and destination lie behind each other. */
static int prepare(const struct share_client *o, struct flood *f)
{
    mcshm_options options;
    mcshm_status s;

    mcshm_options_init(&options);
    options.socket_path = o->socket;
    options.name = o->name;
    options.caller_max = 0;
    s = mcshm_connect(&options, &f->c);
    if (s != MCSHM_OK)
        return say_status(NULL, s, "connecting to the agent");
    for (unsigned i = 0; s == MCSHM_OK && i < o->queues; i++)
        s = mcshm_queue_open(f->c, NULL, &f->q[i]);
    if (s == MCSHM_OK)
        s = mcshm_alloc(f->c, 2 * o->length, 64, NULL, (void **)&f->memory);
    if (s == MCSHM_OK) {
        memset(f->memory, 1, 2 * o->length);
        s = mcshm_segment_publish(f->c, o->name, 0);
    }
    if (s == MCSHM_OK)
        s = mcshm_buffer_publish(f->c, f->memory + o->length, o->length,
                                 MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE, &f->address);
    if (s == MCSHM_OK)
        s = mcshm_segment_open(f->c, o->name, &f->segment);
    return s == MCSHM_OK ? 0 : say_status(f->c, s, "preparing a client");
}

static void unprepare(const struct share_client *o, struct flood *f)
{
    for (unsigned i = 0; i < o->queues; i++)
        if (f->q[i] != NULL)
            mcshm_queue_close(f->q[i]);
    mcshm_close(f->c);
}

static mcshm_request request_of(const struct share_client *o, const struct flood *f)
{
    return (mcshm_request){
        .opcode = MCSHM_WRITE,
        .priority = o->background ? MCSHM_CLASS_BACKGROUND : MCSHM_CLASS_NORMAL,
        .local = f->memory,
        .segment = f->segment,
        .remote_address = f->address,
        .length = o->length,
        .deadline_us = WAIT_US,
    };
}

/* ---- floods ---------------------------------------------------------------------- */

static mcshm_status refill(const struct share_client *o, struct flood *f, unsigned q)
{
    mcshm_request r = request_of(o, f);
    mcshm_batch *b = &f->batch[q][f->next[q]];
    mcshm_status s = mcshm_batch_alloc(f->q[q], o->tasks, b);

    for (unsigned i = 0; s == MCSHM_OK && i < o->tasks; i++)
        s = mcshm_submit(f->q[q], *b, &r, 1);
    f->next[q] = (f->next[q] + 1) % o->depth;
    return s;
}

/* The oldest batch of a queue: sleeps until it has ended. */
static mcshm_status await_oldest(const struct share_client *o, struct flood *f, unsigned q)
{
    mcshm_batch b = f->batch[q][f->next[q]];
    mcshm_batch_status status;
    mcshm_status s = mcshm_batch_wait(f->q[q], b, WAIT_US);

    if (s == MCSHM_OK)
        s = mcshm_batch_poll(f->q[q], b, &status);
    if (s == MCSHM_OK && status.failed != 0)
        s = MCSHM_INTERNAL;
    if (s == MCSHM_OK)
        s = mcshm_batch_free(f->q[q], b);
    f->tasks += o->tasks;
    return s;
}

static int flow(int fd, const struct share_client *o, struct flood *f)
{
    struct share_order order = {.go = true};
    struct share_answer answer = {0};
    mcshm_status s = MCSHM_OK;
    int rc;

    memset(f->next, 0, sizeof(f->next));
    for (unsigned q = 0; q < o->queues; q++)
        for (unsigned i = 0; s == MCSHM_OK && i < o->depth; i++)
            s = refill(o, f, q);
    rc = s != MCSHM_OK ? say_status(f->c, s, "submitting") : proc_send(fd, &answer, sizeof(answer));
    while (rc == 0 && order.go) {
        for (unsigned q = 0; s == MCSHM_OK && q < o->queues; q++) {
            s = await_oldest(o, f, q);
            if (s == MCSHM_OK)
                s = refill(o, f, q);
        }
        if (s != MCSHM_OK)
            return say_status(f->c, s, "a flood");
        rc = proc_recv(fd, &order, sizeof(order), 0);
        rc = rc == -ETIMEDOUT ? 0 : rc;
    }
    for (unsigned q = 0; rc == 0 && q < o->queues; q++)
        for (unsigned i = 0; s == MCSHM_OK && i < o->depth; i++) {
            s = await_oldest(o, f, q);
            f->next[q] = (f->next[q] + 1) % o->depth;
        }
    if (s != MCSHM_OK)
        return say_status(f->c, s, "the end of a flood");
    answer.tasks = f->tasks;
    return rc != 0 ? rc : proc_send(fd, &answer, sizeof(answer));
}

int share_flood_main(int fd, void *context)
{
    const struct share_client *o = context;
    struct share_answer answer = {0};
    struct flood f = {.c = NULL};
    struct share_order order;
    int rc = become(o);

    if (rc == 0)
        rc = prepare(o, &f);
    if (rc == 0)
        rc = proc_send(fd, &answer, sizeof(answer));
    while (rc == 0) {
        rc = proc_recv(fd, &order, sizeof(order), -1);
        if (rc == 0)
            rc = flow(fd, o, &f);
    }
    unprepare(o, &f);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}

/* ---- the prober ------------------------------------------------------------------ */

/* Times tasks of 64 bytes, one after the other, from before their submission until their end is seen. */
static int probe(const struct share_client *o, struct flood *f, double seconds, double *samples,
                 struct share_answer *out)
{
    mcshm_request r = request_of(o, f);
    uint64_t end = clock_ns() + (uint64_t)(seconds * 1e9), now;
    size_t n = 0;

    r.priority = MCSHM_CLASS_HIGH;
    do {
        uint64_t start;
        mcshm_task_status status;
        mcshm_batch b;
        mcshm_status s = mcshm_batch_alloc(f->q[0], 1, &b);

        start = clock_ns();
        if (s == MCSHM_OK)
            s = mcshm_submit(f->q[0], b, &r, 1);
        do
            s = s == MCSHM_OK ? mcshm_task_poll(f->q[0], b, 0, &status) : s;
        while (s == MCSHM_OK && status.state <= MCSHM_STATE_PENDING);
        now = clock_ns();
        if (s == MCSHM_OK && status.state != MCSHM_STATE_COMPLETED)
            s = status.error;
        while (s == MCSHM_OK && (s = mcshm_batch_free(f->q[0], b)) == MCSHM_BUSY)
            s = MCSHM_OK;
        if (s != MCSHM_OK)
            return say_status(f->c, s, "a small task");
        samples[n++] = (double)(now - start) / 1e3;
    } while (now < end && n < SAMPLES_MAX);
    out->tasks = n;
    out->p50_us = stats_percentile(samples, n, 50);
    out->p99_us = stats_percentile(samples, n, 99);
    return 0;
}

int share_probe_main(int fd, void *context)
{
    const struct share_client *o = context;
    double *samples = malloc(SAMPLES_MAX * sizeof(*samples));
    struct share_answer answer = {0};
    struct flood f = {.c = NULL};
    struct share_order order;
    int rc = samples == NULL ? -ENOMEM : become(o);

    if (rc == 0)
        rc = prepare(o, &f);
    if (rc == 0)
        rc = proc_send(fd, &answer, sizeof(answer));
    while (rc == 0) {
        rc = proc_recv(fd, &order, sizeof(order), -1);
        if (rc == 0)
            rc = probe(o, &f, order.seconds, samples, &answer);
        if (rc == 0)
            rc = proc_send(fd, &answer, sizeof(answer));
    }
    unprepare(o, &f);
    free(samples);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}
