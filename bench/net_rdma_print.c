/* SPDX-License-Identifier: Apache-2.0 */
#include "net_rdma.h"

#include "pages.h"
#include "report.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* The row of the same kind and size over one rail. */
static struct net_row *over_one(struct net_figures *f, const struct net_row *r)
{
    for (unsigned i = 0; i < f->count; i++)
        if (f->rows[i].rails == 1 && f->rows[i].opcode == r->opcode && f->rows[i].size == r->size)
            return &f->rows[i];
    return NULL;
}

/* What the row flows by that of one rail, ours or perftest's. */
static double by_one(struct net_figures *f, struct net_row *r, bool perftest)
{
    struct net_row *one = r->rails > 1 ? over_one(f, r) : NULL;

    if (one == NULL)
        return NAN;
    return perftest ? stats_median(&r->perftest_gbps) / stats_median(&one->perftest_gbps)
                    : stats_median(&r->gbps) / stats_median(&one->gbps);
}

/* Of both agents and the clients, the share of all cores' time while the row ran; the rest is
 * the kernel's own threads' and nobody's. */
static double cpu_of(struct net_row *r)
{
    return stats_median(&r->agents_cpu) + stats_median(&r->clients_cpu);
}

static double small_ratio(struct net_rdma *r)
{
    return stats_median(&r->write_us) / (stats_median(&r->bare_us) + stats_median(&r->hops_us));
}

static double register_ratio(struct net_rdma *r)
{
    return stats_median(&r->register_s) / stats_median(&r->bare_register_s);
}

double net_rdma_ratio(struct net_row *r)
{
    return stats_median(&r->gbps) / stats_median(&r->perftest_gbps);
}

void net_rdma_json(cJSON *doc, struct net_figures *f)
{
    struct net_rdma *r = &f->rdma;
    cJSON *place, *list;

    if (!r->done) {
        cJSON_AddNullToObject(doc, "rdma");
        return;
    }
    place = cJSON_AddObjectToObject(doc, "rdma");
    list = cJSON_AddArrayToObject(place, "devices");
    for (unsigned i = 0; i < r->rails; i++) {
        char text[2 * HOSTS_NAME_MAX + 2];

        snprintf(text, sizeof(text), "%s %s", r->device[0][i], r->device[1][i]);
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
    report_number(place, "write_8_us", stats_median(&r->write_us), 2);
    report_number(place, "bare_write_8_us", stats_median(&r->bare_us), 2);
    report_number(place, "two_hops_us", stats_median(&r->hops_us), 3);
    report_number(place, "write_8_ratio", small_ratio(r), 3);
    report_number(place, "ib_write_lat_us", stats_median(&r->perftest_us), 2);
    list = cJSON_AddArrayToObject(place, "several");
    for (unsigned i = 0; i < f->count; i++) {
        cJSON *row;

        if (f->rows[i].rails < 2)
            continue;
        row = cJSON_CreateObject();
        report_text(row, "op", f->rows[i].opcode == MCSHM_READ ? "READ" : "WRITE");
        report_count(row, "size", f->rows[i].size);
        report_count(row, "rails", f->rows[i].rails);
        report_number(row, "by_one", by_one(f, &f->rows[i], false), 3);
        report_number(row, "perftest_by_one", by_one(f, &f->rows[i], true), 3);
        cJSON_AddItemToArray(list, row);
    }
    if (r->registered > 0)
        report_count(place, "registered_bytes", r->registered);
    else
        cJSON_AddNullToObject(place, "registered_bytes");
    report_number(place, "register_s", stats_median(&r->register_s), 4);
    report_number(place, "bare_register_s", stats_median(&r->bare_register_s), 4);
    report_number(place, "register_ratio", register_ratio(r), 3);
}

static void print_rows(struct net_figures *f)
{
    printf("  %-5s %-8s %5s %5s %7s %9s %7s %9s %9s %6s %6s\n", "op", "size", "batch", "rails",
           "GB/s", "perftest", "ratio", "p50 us", "p99 us", "agents", "client");
    for (unsigned i = 0; i < f->count; i++) {
        struct net_row *r = &f->rows[i];
        char size[32], c[7][16];

        printf("  %-5s %-8s %5u %5u %7s %9s %7s %9s %9s %6s %6s\n",
               r->opcode == MCSHM_READ ? "READ" : "WRITE", report_size(r->size, size, sizeof(size)),
               r->batch, r->rails, report_cell(stats_median(&r->gbps), 4, c[0], sizeof(c[0])),
               report_cell(stats_median(&r->perftest_gbps), 4, c[1], sizeof(c[1])),
               report_cell(net_rdma_ratio(r), 3, c[2], sizeof(c[2])),
               report_cell(stats_median(&r->p50_us), 1, c[3], sizeof(c[3])),
               report_cell(stats_median(&r->p99_us), 1, c[4], sizeof(c[4])),
               report_cell(stats_median(&r->agents_cpu), 2, c[5], sizeof(c[5])),
               report_cell(stats_median(&r->clients_cpu), 2, c[6], sizeof(c[6])));
    }
}

static void print_several(struct net_figures *f)
{
    for (unsigned i = 0; i < f->count; i++) {
        struct net_row *r = &f->rows[i], *one = over_one(f, r);
        char a[16], b[16], size[32];

        if (r->rails < 2 || one == NULL)
            continue;
        printf("  %s of %s over %u rails: %s times one, perftest over as many devices %s; agents "
               "and client took %.2f CPU seconds a second over one, %.2f over %u\n",
               r->opcode == MCSHM_READ ? "READ" : "WRITE", report_size(r->size, size, sizeof(size)),
               r->rails, report_cell(by_one(f, r, false), 2, a, sizeof(a)),
               report_cell(by_one(f, r, true), 2, b, sizeof(b)),
               cpu_of(one) * stats_median(&one->gbps), cpu_of(r) * stats_median(&r->gbps),
               r->rails);
    }
}

int net_rdma_print(const struct net_options *o, struct net_figures *f)
{
    struct net_rdma *r = &f->rdma;
    char pages[64], size[32], c[5][16];

    pages_name(f->page_size, pages, sizeof(pages));
    printf("net: path rdma,");
    for (unsigned i = 0; i < r->rails; i++)
        printf("%s %s-%s", i > 0 ? "," : "", r->device[0][i], r->device[1][i]);
    printf("; engines on cores %d and %d (%s when idle), %s (%s), %s\n", f->cores.client,
           f->cores.engine, o->busy ? "busy" : "asleep", pages, f->pages_note, pin_cpu_model());
    printf(
        "medians of %u rounds of %.2f s, perftest between them; GB/s are 10^9 bytes; latencies are "
        "a batch's;\nCPU is seconds per GB\n\n",
        (unsigned)o->rounds, o->seconds);
    print_rows(f);
    printf("\n");
    print_several(f);
    printf(
        "  8-byte WRITE, submit to COMPLETED: %s us; over bare verbs %s us, two ring hops %s us: "
        "%s of their sum; ib_write_lat %s us one way\n",
        report_cell(stats_median(&r->write_us), 2, c[0], sizeof(c[0])),
        report_cell(stats_median(&r->bare_us), 2, c[1], sizeof(c[1])),
        report_cell(stats_median(&r->hops_us), 2, c[2], sizeof(c[2])),
        report_cell(small_ratio(r), 2, c[3], sizeof(c[3])),
        report_cell(stats_median(&r->perftest_us), 2, c[4], sizeof(c[4])));
    if (r->registered > 0)
        printf("  registering %s: %s s until it is published, one bare ibv_reg_mr %s s: %s\n",
               report_size(r->registered, size, sizeof(size)),
               report_cell(stats_median(&r->register_s), 3, c[0], sizeof(c[0])),
               report_cell(stats_median(&r->bare_register_s), 3, c[1], sizeof(c[1])),
               report_cell(register_ratio(r), 2, c[2], sizeof(c[2])));
    if (f->failover.done)
        net_print_failover(&f->failover);
    printf("\n  all tasks went over rdma; bytes checked %" PRIu64 ", mismatches %" PRIu64 "\n",
           f->checked_bytes, f->mismatches);
    return fflush(stdout) == 0 ? 0 : say_error(-EIO, "cannot write the result to stdout");
}
