/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a run, and the cores they are bound to:
 *
 *   this one     starts the others, tells them what to do, prints
 *   measuring    client core    submits and polls, or copies by itself for the baselines
 *   agent        engine core
 *   target       any            has published the buffer that is written to; sleeps
 *
 * UCX runs afterwards, on the same two cores, when the agent is gone.
 */
#include "copy.h"

#include "copy_client.h"
#include "proc.h"
#include "say.h"
#include "target.h"
#include "ucx.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 120000
#define UCX_ROUNDS 3u
#define REGION_MAX (UINT64_C(512) << 20)

static const uint64_t default_sizes[] = {4u << 10, 16u << 10, 64u << 10, 256u << 10, 1u << 20,
                                         4u << 20, 16u << 20, 64u << 20, 256u << 20};

struct stage {
    const struct copy_options *options;
    struct pin_cores cores;
    struct agent agent;
    struct copy_context context;
    char segment[64];
    struct proc target, client;
    struct copy_figures *figures;
};

static int do_job(struct stage *s, const struct copy_job *job, struct copy_result *out)
{
    return proc_ask(&s->client, job, sizeof(*job), out, sizeof(*out), ANSWER_MS);
}

/* path: how the tasks went, may be NULL. */
static int measure(struct stage *s, struct copy_row *row, enum copy_kind kind, bool warm,
                   struct stats_rounds *into, mcshm_path *path)
{
    struct copy_job job = {.kind = kind,
                           .shape = row->shape,
                           .size = row->size,
                           .warm = warm,
                           .seconds = s->options->seconds};
    struct copy_result r;
    int rc = do_job(s, &job, &r);

    if (rc != 0)
        return rc;
    stats_add(into, (double)r.bytes / r.seconds / 1e9);
    if (path != NULL)
        *path = r.path;
    return 0;
}

static int run_row(struct stage *s, struct copy_row *row)
{
    struct stats_rounds discarded = {.count = 0};
    int rc = measure(s, row, COPY_TASKS, false, &discarded, NULL);

    for (uint64_t i = 0; rc == 0 && i < s->options->rounds; i++) {
        rc = measure(s, row, COPY_TASKS, false, &row->task, &row->path);
        if (rc == 0)
            rc = measure(s, row, COPY_PLAIN, false, &row->plain, NULL);
        if (rc == 0)
            rc = measure(s, row, COPY_STREAM, false, &row->stream, NULL);
        if (rc == 0)
            rc = measure(s, row, COPY_TASKS, true, &row->warm_task, NULL);
        if (rc == 0)
            rc = measure(s, row, COPY_PLAIN, true, &row->warm_plain, NULL);
        if (rc == 0)
            rc = measure(s, row, COPY_STREAM, true, &row->warm_stream, NULL);
    }
    return rc;
}

static int publish(struct stage *s, uint32_t access, struct target_answer *answer)
{
    struct target_request request = {.access = access};

    return proc_ask(&s->target, &request, sizeof(request), answer, sizeof(*answer), ANSWER_MS);
}

static int run_in_place(struct stage *s)
{
    struct copy_figures *f = s->figures;
    struct copy_job job = {.kind = COPY_MAP, .seconds = 0.5};
    struct copy_result r;
    int rc;

    f->small = 4u << 10;
    f->large = f->region;
    job.size = f->small;
    rc = do_job(s, &job, &r);
    if (rc != 0)
        return rc;
    f->small_us = r.seconds * 1e6;
    job.size = f->large;
    rc = do_job(s, &job, &r);
    if (rc != 0)
        return rc;
    f->large_us = r.seconds * 1e6;
    job.kind = COPY_READ;
    rc = do_job(s, &job, &r);
    f->read_gbps = (double)r.bytes / r.seconds / 1e9;
    return rc;
}

static int run_caller(struct stage *s)
{
    struct copy_job job = {.kind = COPY_OPEN};
    struct target_answer answer;
    struct copy_result r;
    int rc = publish(
        s, MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE | MCSHM_ACCESS_MAP_READ | MCSHM_ACCESS_MAP_WRITE,
        &answer);

    if (rc == 0)
        rc = do_job(s, &job, &r);
    for (unsigned i = 0; rc == 0 && i < s->figures->count; i++) {
        struct copy_row *row = &s->figures->rows[i];
        struct stats_rounds discarded = {.count = 0};
        mcshm_path path = MCSHM_PATH_NONE;

        rc = measure(s, row, COPY_TASKS, false, &discarded, NULL);
        for (uint64_t k = 0; rc == 0 && k < s->options->rounds; k++)
            rc = measure(s, row, COPY_TASKS, false, &row->caller, &path);
        if (path != MCSHM_PATH_CALLER)
            row->caller.count = 0; /* the library took another way: no figure of this one */
    }
    return rc;
}

static void run_ucx(struct stage *s)
{
    struct ucx_place here = {
        .address = "127.0.0.1", .client_core = s->cores.client, .server_core = s->cores.engine};

    s->figures->ucx = s->options->ucx && ucx_present();
    if (!s->figures->ucx)
        return;
    for (unsigned i = 0; i < s->figures->count; i++) {
        struct copy_row *row = &s->figures->rows[i];

        if (row->shape != COPY_CONTIGUOUS)
            continue;
        for (unsigned k = 0; k < UCX_ROUNDS; k++) {
            stats_add(&row->tag_posix, ucx_bandwidth(&here, "posix,self", "tag_bw", row->size));
            stats_add(&row->tag_cma, ucx_bandwidth(&here, "posix,cma,self", "tag_bw", row->size));
            stats_add(&row->put_posix, ucx_bandwidth(&here, "posix,self", "ucp_put_bw", row->size));
        }
    }
}

static uint64_t choose_region(const struct copy_options *o)
{
    uint64_t region = 2 * pin_cache_size();

    if (region > REGION_MAX)
        region = REGION_MAX;
    for (unsigned i = 0; i < o->size_count; i++)
        if (region < o->sizes[i])
            region = o->sizes[i];
    return region;
}

static int start_stage(struct stage *s)
{
    struct agent_options ao = {.socket = s->options->common.socket,
                               .program = s->options->common.mcshmd,
                               .core = s->cores.engine,
                               .busy = true,
                               .pool_size = 5 * s->figures->region};
    struct target_context tc = {
        .socket = s->agent.socket, .segment = s->segment, .size = 2 * s->figures->region};
    struct copy_job job = {.kind = COPY_OPEN};
    struct target_answer answer;
    struct copy_result r;
    int rc = agent_start(&ao, &s->agent);

    if (rc != 0)
        return rc;
    snprintf(s->segment, sizeof(s->segment), "mcshm-bench-copy-%d", (int)getpid());
    rc = proc_start(&s->target, "target", target_main, &tc);
    if (rc == 0)
        rc = publish(s, MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE | MCSHM_ACCESS_MAP_READ, &answer);
    if (rc != 0)
        return rc;
    s->figures->page_size = answer.page_size;
    s->context = (struct copy_context){.socket = s->agent.socket,
                                       .segment = s->segment,
                                       .address = answer.address,
                                       .region = s->figures->region,
                                       .core = s->cores.client};
    rc = proc_start(&s->client, "measuring", copy_client_main, &s->context);
    return rc != 0 ? rc : do_job(s, &job, &r);
}

static void stop_stage(struct stage *s, bool failed)
{
    if (failed) {
        proc_kill(&s->client);
        proc_kill(&s->target);
    } else {
        proc_stop(&s->client);
        proc_stop(&s->target);
    }
    agent_stop(&s->agent);
}

static int run(struct stage *s)
{
    struct copy_figures *f = s->figures;
    int rc = start_stage(s);

    for (unsigned i = 0; i < s->options->size_count; i++)
        for (int shape = 0; shape < COPY_SHAPES; shape++) {
            f->rows[f->count].size = s->options->sizes[i];
            f->rows[f->count].shape = (enum copy_shape)shape;
            f->count++;
        }
    for (unsigned i = 0; rc == 0 && i < f->count; i++)
        rc = run_row(s, &f->rows[i]);
    if (rc == 0)
        rc = run_in_place(s);
    if (rc == 0)
        rc = run_caller(s);
    stop_stage(s, rc != 0);
    if (rc == 0)
        run_ucx(s);
    return rc;
}

static int parse_sizes(const char *text, struct copy_options *o)
{
    o->size_count = 0;
    while (*text != '\0') {
        uint64_t size = 0;
        const char *end = options_bytes(text, &size);

        if (end == NULL || (*end != '\0' && *end != ',') || size == 0 || size > (1u << 30) ||
            size % copy_piece_size(size) != 0)
            return say_error(-EINVAL,
                             "--sizes %s: expected sizes such as 4K,1M, each up to 1G, a "
                             "multiple of 4K, above 1M of 64K",
                             text);
        if (o->size_count == COPY_SIZES_MAX)
            return say_error(-EINVAL, "--sizes: at most %u sizes", COPY_SIZES_MAX);
        o->sizes[o->size_count++] = size;
        text = *end == ',' ? end + 1 : end;
    }
    return o->size_count > 0 ? 0 : say_error(-EINVAL, "--sizes: give at least one size");
}

static void help(void)
{
    printf("mcshm-bench copy: transfers of 4 KiB to 256 MiB, contiguous, as a list and as a\n"
           "stride, beside the best memcpy of the same pieces and, where installed, UCX.\n"
           "\n"
           "  --sizes LIST      such as 4K,64K,1M; default 4K,16K,64K,256K,1M,4M,16M,64M,256M\n"
           "  --seconds S       length of one measurement, 0.001 to 60; default 0.04\n"
           "  --rounds N        alternating rounds, 1 to 64; default 5; results are medians\n"
           "  --no-ucx          leave ucx_perftest out\n"
           "%s",
           OPTIONS_COMMON_HELP);
}

static int parse(int argc, char **argv, struct copy_options *o)
{
    enum { SIZES = OPTION_OWN, SECONDS, ROUNDS, NO_UCX };
    static const struct option known[] = {{"sizes", required_argument, NULL, SIZES},
                                          {"seconds", required_argument, NULL, SECONDS},
                                          {"rounds", required_argument, NULL, ROUNDS},
                                          {"no-ucx", no_argument, NULL, NO_UCX},
                                          OPTIONS_COMMON_LONG,
                                          {NULL, 0, NULL, 0}};
    int option, rc = 0;

    while (rc == 0 && (option = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        if (options_take(option, &o->common))
            continue;
        switch (option) {
        case SIZES:
            rc = parse_sizes(optarg, o);
            break;
        case SECONDS:
            rc = options_real("seconds", optarg, 0.001, 60, &o->seconds);
            break;
        case ROUNDS:
            rc = options_count("rounds", optarg, 1, STATS_ROUNDS_MAX, &o->rounds);
            break;
        case NO_UCX:
            o->ucx = false;
            break;
        case 'h':
            help();
            return 1;
        default:
            return -EINVAL; /* getopt has named it */
        }
    }
    return rc != 0 ? rc : options_end("copy", argc, argv);
}

int copy_command(int argc, char **argv)
{
    struct copy_options options = {.seconds = 0.04, .rounds = 5, .ucx = true};
    static struct copy_figures figures; /* too large for a stack frame */
    struct stage stage = {.options = &options, .figures = &figures};
    int rc;

    options.size_count = sizeof(default_sizes) / sizeof(default_sizes[0]);
    memcpy(options.sizes, default_sizes, sizeof(default_sizes));
    rc = parse(argc, argv, &options);
    if (rc != 0)
        return rc > 0 ? 0 : rc;
    rc = pin_pair("copy", &stage.cores);
    if (rc != 0)
        return rc;
    figures.region = choose_region(&options);
    rc = run(&stage);
    return rc != 0 ? rc : copy_print(&options, &stage.agent, &stage.cores, &figures);
}
