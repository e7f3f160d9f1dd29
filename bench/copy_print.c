/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#include "copy_client.h"
#include "nt.h"
#include "pages.h"
#include "report.h"
#include "say.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

struct medians {
    double task, memcpy_best, warm_task, warm_memcpy_best, caller, tag_posix, tag_cma, put_posix;
};

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void take_medians(struct copy_row *r, struct medians *m)
{
    m->task = stats_median(&r->task);
    m->memcpy_best = larger(stats_median(&r->plain), stats_median(&r->stream));
    m->warm_task = stats_median(&r->warm_task);
    m->warm_memcpy_best = larger(stats_median(&r->warm_plain), stats_median(&r->warm_stream));
    m->caller = stats_median(&r->caller);
    m->tag_posix = stats_median(&r->tag_posix);
    m->tag_cma = stats_median(&r->tag_cma);
    m->put_posix = stats_median(&r->put_posix);
}

static cJSON *row_json(struct copy_row *r)
{
    cJSON *row = cJSON_CreateObject();
    struct medians m;

    take_medians(r, &m);
    report_count(row, "size", r->size);
    report_text(row, "shape", copy_shape_name(r->shape));
    report_number(row, "gbps", m.task, 6);
    report_number(row, "memcpy_gbps", m.memcpy_best, 3);
    report_number(row, "ratio", m.task / m.memcpy_best, 4);
    report_text(row, "path", mcshm_path_name(r->path));
    report_number(row, "plain_gbps", stats_median(&r->plain), 3);
    report_number(row, "nontemporal_gbps", stats_median(&r->stream), 3);
    report_number(row, "warm_gbps", m.warm_task, 3);
    report_number(row, "warm_memcpy_gbps", m.warm_memcpy_best, 3);
    report_number(row, "caller_gbps", m.caller, 3);
    report_number(row, "ucx_tag_bw_gbps", m.tag_posix, 3);
    report_number(row, "ucx_cma_tag_bw_gbps", m.tag_cma, 3);
    report_number(row, "ucx_put_bw_gbps", m.put_posix, 3);
    report_count(row, "in_flight", copy_pipeline(r->size));
    return row;
}

static int print_json(const struct copy_options *o, const struct agent *a,
                      const struct pin_cores *cores, struct copy_figures *f)
{
    cJSON *doc = cJSON_CreateObject(), *list, *place;
    const char *stream;
    int rc;

    nt_choose(&stream);
    cJSON_AddStringToObject(doc, "bench", "copy");
    list = cJSON_AddArrayToObject(doc, "rows");
    for (unsigned i = 0; i < f->count; i++)
        cJSON_AddItemToArray(list, row_json(&f->rows[i]));
    place = cJSON_AddObjectToObject(doc, "in_place");
    report_count(place, "small", f->small);
    report_number(place, "small_map_us", f->small_us, 2);
    report_count(place, "large", f->large);
    report_number(place, "large_map_us", f->large_us, 2);
    report_number(place, "read_gbps", f->read_gbps, 2);
    report_place(doc, a, cores, f->page_size);
    report_text(doc, "nontemporal", stream);
    report_count(doc, "source_bytes", f->region);
    report_count(doc, "target_bytes", 2 * f->region);
    report_count(doc, "rounds", o->rounds);
    report_number(doc, "seconds", o->seconds, 3);
    rc = report_print(doc);
    cJSON_Delete(doc);
    return rc;
}

static int print_tables(const struct copy_options *o, const struct agent *a,
                        const struct pin_cores *cores, struct copy_figures *f)
{
    char pages[64], source[32], target[32];
    const char *stream;

    nt_choose(&stream);
    pages_name(f->page_size, pages, sizeof(pages));
    printf("copy: client on core %d, engine on core %d, %s (%s), agent %s, %s\n"
           "medians of %u alternating rounds of %.3f s in GB/s (10^9 bytes); 4 tasks in flight "
           "below 1 MiB, else 2\n"
           "sources rotate over %s, targets over %s; memcpy: the better of plain and %s past the "
           "caches\n"
           "warm: always the same place; ucx_perftest is always warm; caller: copied in the "
           "caller's thread\n\n",
           cores->client, cores->engine, pages, a->pages_note, a->own ? "busy" : "as it runs",
           pin_cpu_model(), (unsigned)o->rounds, o->seconds,
           report_size(f->region, source, sizeof(source)),
           report_size(2 * f->region, target, sizeof(target)), stream);
    printf("  %-8s %-10s %7s %7s %6s %-7s %7s %7s %7s %7s %7s %7s\n", "size", "shape", "mcshm",
           "memcpy", "ratio", "path", "warm", "memcpy", "caller", "ucx tag", "cma tag", "ucx put");
    for (unsigned i = 0; i < f->count; i++) {
        struct copy_row *r = &f->rows[i];
        struct medians m;
        char c[9][16];

        take_medians(r, &m);
        printf("  %-8s %-10s %7s %7s %6s %-7s %7s %7s %7s %7s %7s %7s\n",
               report_size(r->size, source, sizeof(source)), copy_shape_name(r->shape),
               report_cell(m.task, 2, c[0], sizeof(c[0])),
               report_cell(m.memcpy_best, 2, c[1], sizeof(c[1])),
               report_cell(m.task / m.memcpy_best, 3, c[2], sizeof(c[2])), mcshm_path_name(r->path),
               report_cell(m.warm_task, 2, c[3], sizeof(c[3])),
               report_cell(m.warm_memcpy_best, 2, c[4], sizeof(c[4])),
               report_cell(m.caller, 2, c[5], sizeof(c[5])),
               report_cell(m.tag_posix, 2, c[6], sizeof(c[6])),
               report_cell(m.tag_cma, 2, c[7], sizeof(c[7])),
               report_cell(m.put_posix, 2, c[8], sizeof(c[8])));
    }
    printf(
        "\n  read in place: first byte of %s after %.1f us, of %s after %.1f us; then %.1f GB/s\n",
        report_size(f->small, source, sizeof(source)), f->small_us,
        report_size(f->large, target, sizeof(target)), f->large_us, f->read_gbps);
    if (!f->ucx)
        printf("  UCX: not measured (%s)\n",
               o->ucx ? "ucx_perftest is missing: install ucx-utils" : "--no-ucx");
    return fflush(stdout) == 0 ? 0 : say_error(-EIO, "cannot write the result to stdout");
}

int copy_print(const struct copy_options *o, const struct agent *a, const struct pin_cores *cores,
               struct copy_figures *f)
{
    return o->common.json ? print_json(o, a, cores, f) : print_tables(o, a, cores, f);
}
