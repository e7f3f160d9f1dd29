/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a run; the first one never loads the driver, which would not survive fork():
 *
 *   this one     starts the others, tells them what to do, makes and compares content, prints
 *   measuring    client core    tasks through the agent; the driver's own copies in between
 *   agent        engine core
 *   target       any            has published the device memory that is written and read
 */
#include "gpu.h"

#include "gpu_run.h"
#include "location.h"
#include "pattern.h"
#include "proc.h"
#include "progress.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ANSWER_MS 120000
#define CHUNK 4096u
#define NOTHING 0xa5 /* where nothing was written */

static const uint64_t default_sizes[] = {4u << 10,  64u << 10, 1u << 20,  4u << 20,
                                         16u << 20, 64u << 20, 256u << 20};

struct stage {
    const struct gpu_options *options;
    struct pin_cores cores;
    struct agent agent;
    struct gpu_context context;
    char segment[64], location[64];
    struct proc target, client;
    struct gpu_figures *figures;
};

static int ask(struct proc *p, const struct gpu_job *job, struct gpu_result *out)
{
    return proc_ask(p, job, sizeof(*job), out, sizeof(*out), ANSWER_MS);
}

static int move(struct proc *p, enum gpu_what what, uint64_t bytes)
{
    struct gpu_job job = {.what = what, .value = bytes};
    struct gpu_result ignored;

    return ask(p, &job, &ignored);
}

/* Content in the source, and none in the destination. */
static int lay_out(struct stage *s, const struct gpu_shape *shape, uint64_t span, uint32_t seed)
{
    uint8_t *desk = s->context.desk;
    bool back = shape->op == GPU_D2H;
    int rc;

    for (uint64_t at = 0; at < span; at += CHUNK)
        pattern_fill(desk + at, CHUNK, pattern_seed(at / CHUNK, seed));
    rc = back ? move(&s->target, GPU_PUT, span)
              : move(&s->client, shape->op == GPU_D2D ? GPU_PUT : GPU_PUT_HOST, span);
    memset(desk, NOTHING, span);
    if (rc == 0)
        rc = back ? move(&s->client, GPU_PUT_HOST, span) : move(&s->target, GPU_PUT, span);
    return rc;
}

/* Every piece of every place that a task wrote must hold what was there in the source. */
static int compare(struct stage *s, const struct gpu_shape *shape, uint64_t span, uint64_t places,
                   uint32_t seed)
{
    struct gpu_figures *f = s->figures;
    struct copy_plan plan = {.pieces = NULL};
    bool back = shape->op == GPU_D2H;
    int rc = back ? move(&s->client, GPU_GET_HOST, span) : move(&s->target, GPU_GET, span);

    if (rc == 0)
        rc = gpu_plan_make(shape, &plan);
    for (uint64_t k = 0; rc == 0 && k < places; k++)
        for (size_t i = 0; i < plan.count; i++) {
            const mcshm_piece *p = &plan.pieces[i];
            uint64_t base = k * shape->size;
            uint64_t from = base + (back ? p->remote_offset : p->local_offset);
            uint64_t to = base + (back ? p->local_offset : p->remote_offset);

            for (uint64_t at = 0; at < p->length; at += CHUNK)
                f->mismatches += pattern_check(s->context.desk + to + at, CHUNK,
                                               pattern_seed((from + at) / CHUNK, seed));
            f->verified += p->length;
        }
    copy_plan_free(&plan);
    return rc;
}

/* tasks: the most that a job has run so far. */
static int measure(struct stage *s, struct gpu_row *row, enum gpu_what what,
                   struct stats_rounds *into, uint64_t *tasks)
{
    struct gpu_job job = {.what = what, .shape = row->shape, .seconds = s->options->seconds};
    bool ours = what == GPU_TASKS || what == GPU_TASKS_ALONE;
    struct gpu_result r;
    int rc = ask(&s->client, &job, &r);

    if (rc != 0)
        return rc;
    stats_add(into,
              what == GPU_TASKS || what == GPU_BARE ? (double)r.bytes / r.seconds / 1e9 : r.p50_us);
    if (ours) {
        row->path = r.path;
        if (*tasks < r.tasks)
            *tasks = r.tasks;
    }
    return 0;
}

static int run_row(struct stage *s, struct gpu_row *row, uint32_t seed)
{
    uint64_t span = gpu_span(s->figures->region, row->shape.size), tasks = 0;
    struct stats_rounds discarded = {.count = 0};
    int rc = lay_out(s, &row->shape, span, seed);

    if (rc == 0)
        rc = measure(s, row, GPU_TASKS, &discarded, &tasks);
    if (rc == 0)
        rc = measure(s, row, GPU_BARE, &discarded, &tasks);
    for (uint64_t i = 0; rc == 0 && i < s->options->rounds; i++) {
        rc = measure(s, row, GPU_TASKS, &row->task, &tasks);
        if (rc == 0)
            rc = measure(s, row, GPU_BARE, &row->bare, &tasks);
        if (rc == 0)
            rc = measure(s, row, GPU_TASKS_ALONE, &row->task_alone, &tasks);
        if (rc == 0)
            rc = measure(s, row, GPU_BARE_ALONE, &row->bare_alone, &tasks);
    }
    if (rc == 0)
        rc = compare(s, &row->shape, span,
                     tasks < span / row->shape.size ? tasks : span / row->shape.size, seed);
    return rc;
}

static int start_stage(struct stage *s)
{
    struct agent_options ao = {.socket = s->options->common.socket,
                               .program = s->options->common.mcshmd,
                               .core = s->cores.engine,
                               .busy = true,
                               .pool_size = s->figures->region,
                               .warns = true, /* of what makes copies slower */
                               .settings = "[gpu]\nenable = require\n"};
    struct gpu_job job = {.what = GPU_OPEN};
    struct gpu_result r;
    int rc = agent_start(&ao, &s->agent);

    if (rc != 0)
        return rc;
    snprintf(s->segment, sizeof(s->segment), "mcshm-bench-gpu-%d", (int)getpid());
    s->context.socket = s->agent.socket;
    s->context.segment = s->segment;
    s->context.location = s->location;
    s->context.region = s->figures->region;
    s->context.core = s->cores.client;
    rc = proc_start(&s->target, "target", gpu_target_main, &s->context);
    if (rc == 0)
        rc = ask(&s->target, &job, &r);
    if (rc == 0)
        rc = proc_start(&s->client, "measuring", gpu_client_main, &s->context);
    job.value = r.value;
    return rc != 0 ? rc : ask(&s->client, &job, &r);
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
    struct gpu_figures *f = s->figures;
    uint64_t region = f->region;
    int rc;

    s->context.desk = mmap(NULL, region, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s->context.desk == MAP_FAILED)
        return say_error(-errno, "no memory to compare content: %m; smaller --sizes need less");
    rc = start_stage(s);
    for (unsigned i = 0; rc == 0 && i < f->count; i++) {
        progress_show(i, f->count, "rows");
        rc = run_row(s, &f->rows[i], i);
    }
    progress_end();
    stop_stage(s, rc != 0);
    munmap(s->context.desk, region);
    return rc;
}

static void help(void)
{
    printf(
        "mcshm-bench gpu: copies between two processes with a GPU's memory at one end or both,\n"
        "contiguous and as block lists, beside the driver's own calls in the same run.\n"
        "\n"
        "  --device N        or GPU-...: of this process's devices; default 0\n"
        "  --sizes LIST      such as 4K,64K,1M; default 4K,64K,1M,4M,16M,64M,256M\n"
        "  --seconds S       length of one measurement, 0.001 to 60; default 0.02\n"
        "  --rounds N        alternating rounds, 1 to 64; default 5; results are medians\n"
        "  --fake-cuda       on the double of tests/fake-cuda: what it prints says nothing of a\n"
        "                    GPU, only that all of this works\n"
        "%s",
        OPTIONS_COMMON_HELP);
}

static int parse(int argc, char **argv, struct gpu_options *o)
{
    enum { SIZES = OPTION_OWN, SECONDS, ROUNDS, DEVICE, FAKE };
    static const struct option known[] = {{"sizes", required_argument, NULL, SIZES},
                                          {"seconds", required_argument, NULL, SECONDS},
                                          {"rounds", required_argument, NULL, ROUNDS},
                                          {"device", required_argument, NULL, DEVICE},
                                          {"fake-cuda", no_argument, NULL, FAKE},
                                          OPTIONS_COMMON_LONG,
                                          {NULL, 0, NULL, 0}};
    int option, rc = 0;

    while (rc == 0 && (option = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        if (options_take(option, &o->common))
            continue;
        switch (option) {
        case SIZES:
            rc = gpu_parse_sizes(optarg, o->sizes, &o->size_count);
            break;
        case SECONDS:
            rc = options_real("seconds", optarg, 0.001, 60, &o->seconds);
            break;
        case ROUNDS:
            rc = options_count("rounds", optarg, 1, STATS_ROUNDS_MAX, &o->rounds);
            break;
        case DEVICE:
            o->device = optarg;
            break;
        case FAKE:
            o->fake = true;
            break;
        case 'h':
            help();
            return 1;
        default:
            return -EINVAL; /* getopt has named it */
        }
    }
    return rc != 0 ? rc : options_end("gpu", argc, argv);
}

static void make_rows(const struct gpu_options *o, struct gpu_figures *f)
{
    struct gpu_shape shapes[GPU_ROWS_MAX];

    f->count = gpu_make_rows(o->sizes, o->size_count, shapes);
    for (unsigned i = 0; i < f->count; i++)
        f->rows[i].shape = shapes[i];
    f->region = gpu_region(o->sizes, o->size_count);
}

int gpu_command(int argc, char **argv)
{
    struct gpu_options options = {.seconds = 0.02, .rounds = 5, .device = "0"};
    static struct gpu_figures figures; /* too large for a stack frame */
    struct stage stage = {.options = &options, .figures = &figures};
    struct mcs_gpu_id id;
    struct device_info info;
    int ordinal, rc;

    options.size_count = sizeof(default_sizes) / sizeof(default_sizes[0]);
    memcpy(options.sizes, default_sizes, sizeof(default_sizes));
    rc = parse(argc, argv, &options);
    if (rc != 0)
        return rc > 0 ? 0 : rc;
    snprintf(stage.location, sizeof(stage.location), "cuda:%s", options.device);
    rc = location_parse(stage.location, &ordinal, &id);
    if (rc != 0)
        return say_error(rc, "--device %s: expected a number, or GPU- and the rest of a UUID",
                         options.device);
    rc = options.fake ? device_take_double(argc, argv) : 0;
    if (rc == 0)
        rc = device_probe(stage.location, &info);
    if (rc == 0)
        rc = pin_pair("gpu", &stage.cores);
    if (rc != 0)
        return rc;
    make_rows(&options, &figures);
    rc = run(&stage);
    if (rc == 0)
        rc = gpu_print(&options, &stage.agent, &stage.cores, &info, &figures);
    if (rc == 0 && figures.mismatches > 0)
        rc = say_error(-EIO, "gpu: what arrived is not what was sent: %" PRIu64 " words",
                       figures.mismatches);
    return rc;
}
