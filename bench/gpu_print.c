/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include "report.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define GOAL_CONTIGUOUS 0.97 /* of the bare rate, from GOAL_FROM on */
#define GOAL_FROM (UINT64_C(4) << 20)
#define GOAL_LIST 0.9 /* with pieces of GOAL_PIECE */
#define GOAL_PIECE (UINT64_C(64) << 10)
#define POLLERS 3
#define GOAL_ADDED_US 15.0 /* to a contiguous copy of the smallest size */

struct medians {
    double task, bare, alone, bare_alone;
};

/* NAN: no row of that kind was measured. */
struct goals {
    double contiguous, list, added_us;
};

static bool is_list(const struct gpu_row *r)
{
    return r->shape.piece != r->shape.size;
}

static void take_medians(struct gpu_row *r, struct medians *m)
{
    m->task = stats_median(&r->task);
    m->bare = stats_median(&r->bare);
    m->alone = stats_median(&r->task_alone);
    m->bare_alone = stats_median(&r->bare_alone);
}

/* The worst row counts. */
static void judge(struct gpu_figures *f, struct goals *g)
{
    uint64_t smallest = UINT64_MAX;

    *g = (struct goals){NAN, NAN, NAN};
    for (unsigned i = 0; i < f->count; i++)
        if (f->rows[i].shape.size < smallest)
            smallest = f->rows[i].shape.size;
    for (unsigned i = 0; i < f->count; i++) {
        struct gpu_row *r = &f->rows[i];
        struct medians m;

        take_medians(r, &m);
        if (!is_list(r) && r->shape.size >= GOAL_FROM && !(g->contiguous <= m.task / m.bare))
            g->contiguous = m.task / m.bare;
        if (is_list(r) && r->shape.piece == GOAL_PIECE && !(g->list <= m.task / m.bare))
            g->list = m.task / m.bare;
        if (!is_list(r) && r->shape.size == smallest && !(g->added_us >= m.alone - m.bare_alone))
            g->added_us = m.alone - m.bare_alone;
    }
}

static cJSON *row_json(struct gpu_row *r)
{
    cJSON *row = cJSON_CreateObject();
    struct medians m;

    take_medians(r, &m);
    report_text(row, "op", gpu_op_name(r->shape.op));
    report_count(row, "size", r->shape.size);
    report_count(row, "pieces", r->shape.size / r->shape.piece);
    report_count(row, "piece", r->shape.piece);
    report_number(row, "gbps", m.task, 6);
    report_number(row, "bare_gbps", m.bare, 6);
    report_number(row, "ratio", m.task / m.bare, 6);
    report_number(row, "p50_us", m.alone, 2);
    report_number(row, "bare_p50_us", m.bare_alone, 2);
    report_number(row, "added_us", m.alone - m.bare_alone, 2);
    report_text(row, "path", mcshm_path_name(r->path));
    return row;
}

static cJSON *goal_json(double got, double goal, int decimals)
{
    cJSON *o = cJSON_CreateObject();

    report_number(o, "worst", got, decimals);
    report_number(o, "goal", goal, 2);
    return o;
}

static const char *version(const struct device_info *info, char *out, unsigned size)
{
    snprintf(out, size, "%d.%d", info->driver / 1000, info->driver % 1000 / 10);
    return out;
}

static int print_json(const struct gpu_options *o, const struct agent *a,
                      const struct pin_cores *cores, const struct device_info *info,
                      struct gpu_figures *f)
{
    cJSON *doc = cJSON_CreateObject(), *list, *goals;
    struct goals g;
    char text[32];
    int rc;

    judge(f, &g);
    report_text(doc, "bench", "gpu");
    report_text(doc, "device", info->name);
    report_text(doc, "uuid", info->uuid);
    report_text(doc, "driver", version(info, text, sizeof(text)));
    cJSON_AddBoolToObject(doc, "fake", info->fake);
    list = cJSON_AddArrayToObject(doc, "rows");
    for (unsigned i = 0; i < f->count; i++)
        cJSON_AddItemToArray(list, row_json(&f->rows[i]));
    goals = cJSON_AddObjectToObject(doc, "goals");
    cJSON_AddItemToObject(goals, "ratio_from_4m", goal_json(g.contiguous, GOAL_CONTIGUOUS, 4));
    cJSON_AddItemToObject(goals, "ratio_lists_of_64k", goal_json(g.list, GOAL_LIST, 4));
    cJSON_AddItemToObject(goals, "added_us", goal_json(g.added_us, GOAL_ADDED_US, 2));
    report_count(doc, "verified_bytes", f->verified);
    report_count(doc, "mismatches", f->mismatches);
    cJSON_AddBoolToObject(doc, "batch_calls", info->batch);
    report_count(doc, "device_bytes", info->total);
    report_text(doc, "idle_mode", a->own ? "busy" : NULL);
    report_count(doc, "cores", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
    report_count(doc, "client_core", (uint64_t)cores->client);
    report_count(doc, "engine_core", (uint64_t)cores->engine);
    report_text(doc, "pages_note", a->pages_note);
    report_text(doc, "cpu", pin_cpu_model());
    report_count(doc, "rounds", o->rounds);
    report_number(doc, "seconds", o->seconds, 3);
    rc = report_print(doc);
    cJSON_Delete(doc);
    return rc;
}

static void print_warning(const struct device_info *info)
{
    if (info->fake)
        printf(
            "*** FAKE: %s. No GPU was used: these figures are of a program in host memory. ***\n",
            info->name);
}

/* Engine, client and the agent's copier each poll. */
static void print_cores(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    if (cores < POLLERS + 1)
        printf("only %ld cores: the agent's engine and copier and the client, which all poll, wait "
               "for one "
               "another\n",
               cores);
}

static void print_goal(const char *what, double got, const char *is, double goal, int decimals)
{
    char cell[32];

    printf("  %-44s %s; goal %s %g\n", what, report_cell(got, decimals, cell, sizeof(cell)), is,
           goal);
}

static void print_row(struct gpu_row *r)
{
    char size[32], c[6][24];
    struct medians m;

    take_medians(r, &m);
    printf("  %-4s %-8s ", gpu_op_name(r->shape.op),
           report_size(r->shape.size, size, sizeof(size)));
    if (is_list(r))
        printf("%5" PRIu64 " x %-8s", r->shape.size / r->shape.piece,
               report_size(r->shape.piece, size, sizeof(size)));
    else
        printf("%-16s", "contiguous");
    printf(" %8s %8s %6s %9s %9s %8s %s\n", report_cell(m.task, 2, c[0], sizeof(c[0])),
           report_cell(m.bare, 2, c[1], sizeof(c[1])),
           report_cell(m.task / m.bare, 3, c[2], sizeof(c[2])),
           report_cell(m.alone, 1, c[3], sizeof(c[3])),
           report_cell(m.bare_alone, 1, c[4], sizeof(c[4])),
           report_cell(m.alone - m.bare_alone, 1, c[5], sizeof(c[5])), mcshm_path_name(r->path));
}

static int print_table(const struct gpu_options *o, const struct agent *a,
                       const struct pin_cores *cores, const struct device_info *info,
                       struct gpu_figures *f)
{
    char text[32], cell[32];
    struct goals g;

    judge(f, &g);
    print_warning(info);
    printf("gpu: %s, %s, driver for CUDA %s; client on core %d, engine on core %d, agent %s, %s\n"
           "medians of %u alternating rounds of %.3f s; GB/s (10^9 bytes) with 4 copies under way "
           "below 1 MiB, else 2; us: one at a time\n"
           "bare: cuMemcpyAsync, of lists %s, in the client's process, host memory pinned\n",
           info->name, info->uuid, version(info, text, sizeof(text)), cores->client, cores->engine,
           a->own ? "busy" : "as it runs", pin_cpu_model(), (unsigned)o->rounds, o->seconds,
           info->batch ? "cuMemcpyBatchAsync" : "one for each piece");
    print_cores();
    printf("\n  %-4s %-8s %-16s %8s %8s %6s %9s %9s %8s %s\n", "op", "size", "pieces", "GB/s",
           "bare", "ratio", "us", "bare us", "added", "path");
    for (unsigned i = 0; i < f->count; i++)
        print_row(&f->rows[i]);
    printf("\n");
    print_goal("contiguous from 4 MiB, worst ratio", g.contiguous, ">=", GOAL_CONTIGUOUS, 3);
    print_goal("lists of 64 KiB pieces, worst ratio", g.list, ">=", GOAL_LIST, 3);
    print_goal("added to the smallest copy, worst, us", g.added_us, "<=", GOAL_ADDED_US, 1);
    printf("  %-44s %s, %" PRIu64 " words wrong\n", "compared after the rows",
           report_size(f->verified, cell, sizeof(cell)), f->mismatches);
    print_warning(info);
    return fflush(stdout) == 0 ? 0 : say_error(-EIO, "cannot write the result to stdout");
}

int gpu_print(const struct gpu_options *o, const struct agent *a, const struct pin_cores *cores,
              const struct device_info *info, struct gpu_figures *f)
{
    return o->common.json ? print_json(o, a, cores, info, f) : print_table(o, a, cores, info, f);
}
