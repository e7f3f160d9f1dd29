/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a run, and the cores they are bound to:
 *
 *   this one       starts the others, tells them what to do, prints
 *   measuring      client core    submits and polls, or drives the bare loops
 *   agent          engine core    paused while a bare loop is measured
 *   partner        engine core    other end of the bare loops
 *   target         any            has published the buffer that is written to; sleeps
 *   idle           any            holds up to 256 connections that do nothing
 */
#include "ring.h"

#include "clock.h"
#include "idle.h"
#include "proc.h"
#include "ring_client.h"
#include "say.h"
#include "target.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 120000
#define POOL_SIZE (UINT64_C(64) << 20)
#define IDLE_SECONDS 3
#define IDLE_SLEEPERS 64u

const uint32_t ring_idle_steps[RING_IDLE_STEPS] = {0, 1, 8, 64, 256};
const uint32_t ring_payloads[RING_PAYLOADS] = {4u << 10, 64u << 10};

struct stage {
    const struct ring_options *options;
    struct pin_cores cores;
    struct agent agent;
    struct ring_context context;
    char segment[64];
    struct proc partner, target, idle, client;
    struct ring_figures *figures;
};

static int partner_main(int fd, void *context)
{
    struct stage *s = context;
    enum ring_kind kind;
    int rc;

    pin_to(s->cores.engine);
    while ((rc = proc_recv(fd, &kind, sizeof(kind), -1)) == 0) {
        if (kind == RING_RAW_RTT)
            raw_rtt_partner(&s->context.raw);
        else if (kind == RING_RAW_RATE)
            raw_rate_partner(&s->context.raw);
        else if (kind == RING_RAW_WAKE)
            wake_partner(&s->context.wake);
        else
            floor_partner(&s->context.floor);
        proc_send(fd, &kind, sizeof(kind));
    }
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}

static int set_idle(struct stage *s, uint32_t clients)
{
    struct idle_request request = {.clients = clients};
    struct idle_answer answer;

    return proc_ask(&s->idle, &request, sizeof(request), &answer, sizeof(answer), ANSWER_MS);
}

static int do_job(struct stage *s, enum ring_kind kind, uint32_t payload, double seconds,
                  struct ring_result *result)
{
    struct ring_job job = {
        .kind = kind, .payload = payload, .seconds = seconds, .iterations = s->options->iterations};
    int rc = proc_ask(&s->client, &job, sizeof(job), result, sizeof(*result), ANSWER_MS);

    if (rc != 0)
        return rc;
    if (!result->filtered && kind != RING_WAKE && kind != RING_RAW_WAKE) {
        s->figures->filtered = false;
        s->figures->filter_error = result->filter_error;
    }
    if (result->path != MCSHM_PATH_NONE)
        s->figures->path = result->path;
    return 0;
}

/* A bare loop takes the agent's core. */
static int do_bare(struct stage *s, enum ring_kind kind, struct ring_result *result)
{
    enum ring_kind done;
    int rc = agent_pause(&s->agent);

    if (rc != 0)
        return rc;
    raw_reset(&s->context.raw);
    floor_reset(&s->context.floor);
    wake_reset(&s->context.wake);
    rc = proc_send(s->partner.fd, &kind, sizeof(kind));
    if (rc == 0)
        rc = do_job(s, kind, MCS_LINE, s->options->seconds, result);
    if (rc == 0)
        rc = proc_recv(s->partner.fd, &done, sizeof(done), ANSWER_MS);
    if (rc == 0 && result->count == 0)
        rc = say_error(-EIO, "the bare loop read something else than was written");
    agent_resume(&s->agent);
    return rc;
}

static void add_trip(struct stats_rounds *rounds, const struct ring_result *r)
{
    stats_add(rounds, r->seconds * 1e9 / (double)r->count);
}

static void add_rate(struct stats_rounds *rounds, const struct ring_result *r)
{
    stats_add(rounds, (double)r->count / r->seconds / 1e6);
}

static int run_round(struct stage *s)
{
    struct ring_figures *f = s->figures;
    double seconds = s->options->seconds;
    struct ring_result r;
    int rc;

    rc = do_job(s, RING_RTT, MCS_LINE, seconds, &r);
    if (rc != 0)
        return rc;
    add_trip(&f->rtt_ns, &r);
    rc = do_job(s, RING_RATE, MCS_LINE, seconds, &r);
    if (rc != 0)
        return rc;
    add_rate(&f->rate_mops, &r);
    rc = do_job(s, RING_LATENCY, MCS_LINE, seconds, &r);
    if (rc != 0)
        return rc;
    stats_add(&f->p50_ns, r.p50_ns);
    stats_add(&f->p99_ns, r.p99_ns);
    stats_add(&f->p999_ns, r.p999_ns);
    if (!s->agent.own)
        return 0; /* somebody else's agent is not paused, and its core is busy */
    rc = do_bare(s, RING_RAW_RTT, &r);
    if (rc != 0)
        return rc;
    add_trip(&f->raw_rtt_ns, &r);
    rc = do_bare(s, RING_FLOOR_RTT, &r);
    if (rc != 0)
        return rc;
    add_trip(&f->floor_rtt_ns, &r);
    rc = do_bare(s, RING_RAW_RATE, &r);
    if (rc != 0)
        return rc;
    add_rate(&f->raw_rate_mops, &r);
    rc = do_bare(s, RING_FLOOR_RATE, &r);
    if (rc == 0)
        add_rate(&f->floor_rate_mops, &r);
    return rc;
}

static int run_payloads(struct stage *s)
{
    struct ring_result r;
    int rc;

    for (unsigned i = 0; i < RING_PAYLOADS; i++) {
        rc = do_job(s, RING_RTT, ring_payloads[i], s->options->seconds / 2, &r);
        if (rc != 0)
            return rc;
        add_trip(&s->figures->payload_rtt_ns[i], &r);
        rc = do_job(s, RING_RATE, ring_payloads[i], s->options->seconds / 2, &r);
        if (rc != 0)
            return rc;
        add_rate(&s->figures->payload_rate_mops[i], &r);
    }
    return 0;
}

/* Each round begins with no idle client, so that a drift of the machine cancels out. */
static int run_idle_clients(struct stage *s)
{
    struct ring_result r;
    int rc;

    for (unsigned i = 0; i < RING_IDLE_STEPS; i++) {
        rc = set_idle(s, ring_idle_steps[i]);
        if (rc == 0)
            rc = do_job(s, RING_RTT, MCS_LINE, s->options->seconds, &r);
        if (rc != 0)
            return rc;
        add_trip(&s->figures->idle_rtt_ns[i], &r);
    }
    return set_idle(s, 0);
}

static void stop_stage(struct stage *s, bool failed)
{
    struct proc *all[] = {&s->client, &s->idle, &s->partner, &s->target};

    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (failed)
            proc_kill(all[i]);
        else
            proc_stop(all[i]);
    }
    agent_stop(&s->agent);
}

static int start_stage(struct stage *s, bool busy)
{
    struct agent_options ao = {.socket = s->options->common.socket,
                               .program = s->options->common.mcshmd,
                               .core = s->cores.engine,
                               .busy = busy,
                               .pool_size = POOL_SIZE};
    struct target_context tc = {.socket = s->agent.socket, .size = RING_BUFFER_SIZE};
    struct idle_context ic = {.socket = s->agent.socket};
    struct target_request request = {.access = MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE |
                                               MCSHM_ACCESS_MAP_READ};
    struct target_answer target;
    int rc;

    rc = agent_start(&ao, &s->agent);
    if (rc != 0)
        return rc;
    snprintf(s->segment, sizeof(s->segment), "mcshm-bench-ring-%d", (int)getpid());
    tc.segment = s->segment;
    rc = proc_start(&s->target, "target", target_main, &tc);
    if (rc == 0)
        rc = proc_ask(&s->target, &request, sizeof(request), &target, sizeof(target), ANSWER_MS);
    if (rc == 0)
        rc = proc_start(&s->idle, "idle", idle_main, &ic);
    if (rc == 0)
        rc = proc_start(&s->partner, "partner", partner_main, s);
    if (rc != 0)
        return rc;
    s->figures->page_size = target.page_size;
    s->context.socket = s->agent.socket;
    s->context.segment = s->segment;
    s->context.address = target.address;
    s->context.core = s->cores.client;
    return proc_start(&s->client, "measuring", ring_client_main, &s->context);
}

static int run_busy(struct stage *s)
{
    int rc = start_stage(s, true);

    for (uint64_t i = 0; rc == 0 && i < s->options->rounds; i++) {
        rc = run_round(s);
        if (rc == 0)
            rc = run_payloads(s);
    }
    for (uint64_t i = 0; rc == 0 && i < s->options->rounds; i++)
        rc = run_idle_clients(s);
    stop_stage(s, rc != 0);
    return rc;
}

/* What an agent costs that nobody uses, and how fast it is back. */
static int run_asleep(struct stage *s)
{
    struct ring_result r;
    uint64_t before, after, start;
    int rc = start_stage(s, false);

    if (rc == 0)
        rc = set_idle(s, IDLE_SLEEPERS);
    if (rc == 0)
        rc = do_job(s, RING_WAKE, MCS_LINE, 0, &r); /* first touches, once */
    if (rc == 0)
        rc = clock_process_ns(s->agent.pid, &before);
    if (rc == 0) {
        start = clock_ns();
        poll(NULL, 0, IDLE_SECONDS * 1000); /* the idleness is what is measured */
        rc = clock_process_ns(s->agent.pid, &after);
        s->figures->idle_cpu_percent =
            100 * (double)(after - before) / (double)(clock_ns() - start);
    }
    if (rc == 0)
        rc = do_job(s, RING_WAKE, MCS_LINE, 0, &r);
    if (rc == 0) {
        s->figures->wake_us = r.p50_ns / 1e3;
        s->figures->wake_p99_us = r.p99_ns / 1e3;
        rc = do_bare(s, RING_RAW_WAKE, &r);
    }
    if (rc == 0) {
        s->figures->raw_wake_us = r.p50_ns / 1e3;
        s->figures->raw_wake_p99_us = r.p99_ns / 1e3;
    }
    stop_stage(s, rc != 0);
    return rc;
}

static void help(void)
{
    printf("mcshm-bench ring: round trip, rate and idle cost of small transfers, beside a bare\n"
           "rte_ring and a loop without checks. The measuring thread may make no system call.\n"
           "\n"
           "  --seconds S       length of one measurement, 0.01 to 60; default 0.25\n"
           "  --iterations N    tasks of one measurement instead of seconds\n"
           "  --rounds N        alternating rounds, 1 to 64; default 7; results are medians\n"
           "%s",
           OPTIONS_COMMON_HELP);
}

static int parse(int argc, char **argv, struct ring_options *o)
{
    enum { SECONDS = OPTION_OWN, ITERATIONS, ROUNDS };
    static const struct option known[] = {{"seconds", required_argument, NULL, SECONDS},
                                          {"iterations", required_argument, NULL, ITERATIONS},
                                          {"rounds", required_argument, NULL, ROUNDS},
                                          OPTIONS_COMMON_LONG,
                                          {NULL, 0, NULL, 0}};
    int option, rc = 0;

    while (rc == 0 && (option = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        if (options_take(option, &o->common))
            continue;
        switch (option) {
        case SECONDS:
            rc = options_real("seconds", optarg, 0.01, 60, &o->seconds);
            break;
        case ITERATIONS:
            rc = options_count("iterations", optarg, 1, 1000000000, &o->iterations);
            break;
        case ROUNDS:
            rc = options_count("rounds", optarg, 1, STATS_ROUNDS_MAX, &o->rounds);
            break;
        case 'h':
            help();
            return 1;
        default:
            return -EINVAL; /* getopt has named it */
        }
    }
    return rc != 0 ? rc : options_end("ring", argc, argv);
}

int ring_command(int argc, char **argv)
{
    struct ring_options options = {.seconds = 0.25, .rounds = 7};
    struct ring_figures figures = {.filtered = true,
                                   .idle_cpu_percent = NAN,
                                   .wake_us = NAN,
                                   .wake_p99_us = NAN,
                                   .raw_wake_us = NAN,
                                   .raw_wake_p99_us = NAN};
    struct stage stage = {.options = &options, .figures = &figures};
    struct agent described;
    int rc = parse(argc, argv, &options);

    if (rc != 0)
        return rc > 0 ? 0 : rc;
    rc = pin_pair("ring", &stage.cores);
    if (rc != 0)
        return rc;
    rc = raw_create(&stage.context.raw);
    if (rc == 0)
        rc = floor_create(&stage.context.floor);
    if (rc == 0)
        rc = wake_create(&stage.context.wake);
    if (rc == 0)
        rc = run_busy(&stage);
    described = stage.agent;
    if (rc == 0 && options.common.socket == NULL)
        rc = run_asleep(&stage);
    return rc != 0 ? rc : ring_print(&options, &described, &stage.cores, &figures);
}
