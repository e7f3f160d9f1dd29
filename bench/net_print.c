/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"

#include "net_rdma.h"
#include "pages.h"
#include "report.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static double larger(double a, double b)
{
    return isnan(a) || b > a ? b : a;
}

static const char *op_name(const struct net_row *r)
{
    return r->opcode == MCSHM_READ ? "READ" : "WRITE";
}

/* Mooncake's run like this row, or one of NANs. */
static const struct net_rival *rival_of(const struct net_figures *f, const struct net_row *r)
{
    static const struct net_rival none = {.plain = {NAN, NAN, NAN}, .pooled = {NAN, NAN, NAN}};

    for (unsigned i = 0; i < f->rival_count; i++)
        if (f->rivals[i].write == (r->opcode == MCSHM_WRITE) && f->rivals[i].size == r->size &&
            f->rivals[i].batch == r->batch && r->clients == 1)
            return &f->rivals[i];
    return &none;
}

static double ucx_of(const struct net_options *o, const struct net_figures *f,
                     const struct net_row *r)
{
    for (unsigned i = 0; i < o->sizes.count; i++)
        if (o->sizes.value[i] == r->size && r->opcode == MCSHM_WRITE && f->ucx_gbps[i] > 0)
            return f->ucx_gbps[i];
    return NAN;
}

/* The way that all rows went, or "mixed". */
static const char *path_of(const struct net_figures *f)
{
    for (unsigned i = 1; i < f->count; i++)
        if (f->rows[i].path != f->rows[0].path)
            return "mixed";
    return mcshm_path_name(f->count > 0 ? f->rows[0].path : MCSHM_PATH_NONE);
}

static cJSON *row_json(const struct net_options *o, struct net_figures *f, struct net_row *r)
{
    const struct net_rival *rival = rival_of(f, r);
    struct net_stream *stream = net_stream_of(f, r);
    cJSON *row = cJSON_CreateObject();

    report_text(row, "op", op_name(r));
    report_count(row, "size", r->size);
    report_count(row, "batch", r->batch);
    report_count(row, "clients", r->clients);
    if (o->wire.rdma) {
        report_count(row, "rails", r->rails);
        cJSON_AddNullToObject(row, "crc");
    } else if (o->peer == NULL) {
        report_count(row, "rails", r->rails);
        cJSON_AddBoolToObject(row, "crc", r->checksum);
    } else { /* the running agents know */
        cJSON_AddNullToObject(row, "rails");
        cJSON_AddNullToObject(row, "crc");
    }
    report_number(row, "gbps", stats_median(&r->gbps), 4);
    report_number(row, "tasks_s", stats_median(&r->tasks_s), 0);
    report_number(row, "p50_us", stats_median(&r->p50_us), 1);
    report_number(row, "p99_us", stats_median(&r->p99_us), 1);
    report_number(row, "p999_us", stats_median(&r->p999_us), 1);
    report_number(row, "cpu_s_per_gb", stats_median(&r->agents_cpu), 4);
    report_number(row, "initiator_cpu_s_per_gb", stats_median(&r->initiator_cpu), 4);
    report_number(row, "target_cpu_s_per_gb", stats_median(&r->target_cpu), 4);
    report_number(row, "client_cpu_s_per_gb", stats_median(&r->clients_cpu), 4);
    report_number(row, "iperf_gbps", stats_median(&f->iperf_gbps), 3);
    report_number(row, "iperf_cpu_s_per_gb", stats_median(&f->iperf_cpu), 4);
    report_count(row, "span", r->span);
    cJSON_AddBoolToObject(row, "warm", r->warm);
    report_number(row, "stream_gbps", stream == NULL ? NAN : stats_median(&stream->gbps), 3);
    report_number(row, "stream_cpu_s_per_gb", stream == NULL ? NAN : stats_median(&stream->cpu), 4);
    report_number(row, "mooncake_gbps", larger(rival->plain.gbps, rival->pooled.gbps), 4);
    report_number(row, "mooncake_tasks_s", larger(rival->plain.tasks_s, rival->pooled.tasks_s), 0);
    report_number(row, "mooncake_plain_gbps", rival->plain.gbps, 4);
    report_number(row, "mooncake_pooled_gbps", rival->pooled.gbps, 4);
    report_number(row, "mooncake_initiator_cpu_s_per_gb",
                  rival->plain.gbps > rival->pooled.gbps ? rival->plain.cpu_s_per_gb
                                                         : rival->pooled.cpu_s_per_gb,
                  4);
    report_number(row, "ucx_put_gbps", ucx_of(o, f, r), 4);
    report_number(row, "perftest_gbps", stats_median(&r->perftest_gbps), 4);
    report_number(row, "perftest_ratio", net_rdma_ratio(r), 3);
    report_text(row, "path", mcshm_path_name(r->path));
    return row;
}

static void add_failover(cJSON *doc, const struct net_failover *o)
{
    cJSON *place;

    if (!o->done) {
        cJSON_AddNullToObject(doc, "failover");
        return;
    }
    place = cJSON_AddObjectToObject(doc, "failover");
    report_count(place, "rails", o->rails);
    report_number(place, "gap_ms", o->gap_ms, 0);
    report_count(place, "still_ms", o->still_ms);
    report_count(place, "failed_tasks", o->failed_tasks);
    report_number(place, "sum_ratio", o->sum_ratio, 3);
    report_number(place, "rails_ratio", o->all_gbps / o->one_gbps, 3);
    report_number(place, "limit_gbps", o->limit_gbps, 4);
    report_number(place, "one_rail_gbps", o->one_gbps, 4);
    report_number(place, "all_rails_gbps", o->all_gbps, 4);
    report_number(place, "after_cut_gbps", o->rest_gbps, 4);
    report_number(place, "after_return_gbps", o->back_gbps, 4);
    report_number(place, "slow_share", o->slow_share, 4);
    report_number(place, "slow_fair_share", o->slow_fair, 4);
    report_number(place, "slow_gbps", o->slow_gbps, 4);
}

static void add_idle(cJSON *doc, const struct net_idle *o)
{
    cJSON *place;

    if (!o->done) {
        cJSON_AddNullToObject(doc, "idle_peers");
        return;
    }
    place = cJSON_AddObjectToObject(doc, "idle_peers");
    report_count(place, "peers", o->peers);
    report_number(place, "cpu_share_one", o->cpu_one, 6);
    report_number(place, "cpu_share", o->cpu_many, 6);
    report_number(place, "read_4k_us_one", o->read_one_us, 1);
    report_number(place, "read_4k_us", o->read_many_us, 1);
}

static int print_json(const struct net_options *o, struct net_figures *f)
{
    cJSON *doc = cJSON_CreateObject(), *list;
    bool own = o->peer == NULL, rdma = o->wire.rdma;
    char text[64];
    int rc;

    cJSON_AddStringToObject(doc, "bench", "net");
    report_text(doc, "transport", own ? (rdma ? "rdma" : "tcp") : NULL);
    report_text(doc, "path", path_of(f));
    list = cJSON_AddArrayToObject(doc, "rows");
    for (unsigned i = 0; i < f->count; i++)
        cJSON_AddItemToArray(list, row_json(o, f, &f->rows[i]));
    report_number(doc, "fixed_cost_us", larger(f->read_line.fixed_us, f->write_line.fixed_us), 2);
    report_number(doc, "fixed_cost_read_us", f->read_line.fixed_us, 2);
    report_number(doc, "fixed_cost_write_us", f->write_line.fixed_us, 2);
    report_number(doc, "tcp_rtt_us", own && !rdma ? f->rtt.small_us : NAN, 2);
    report_number(doc, "tcp_rtt_4k_us", own && !rdma ? f->rtt.page_us : NAN, 2);
    add_failover(doc, &f->failover);
    net_rdma_json(doc, f);
    add_idle(doc, &f->idle);
    report_count(doc, "mismatches", f->mismatches);
    report_count(doc, "checked_bytes", f->checked_bytes);
    report_count(doc, "left_out", f->left_out);
    report_text(doc, "peer", o->peer);
    if (own && !rdma)
        cJSON_AddBoolToObject(doc, "zero_copy", f->zero_copy_sends > 0);
    else
        cJSON_AddNullToObject(doc, "zero_copy");
    report_text(doc, "congestion", own && !rdma ? o->congestion : NULL);
    report_text(doc, "idle_mode", own ? (o->busy ? "busy" : "sleep") : NULL);
    report_count(doc, "rounds", o->rounds);
    report_number(doc, "seconds", o->seconds, 3);
    pages_name(f->page_size, text, sizeof(text));
    report_text(doc, "pages", own ? text : NULL);
    report_text(doc, "pages_note", own ? f->pages_note : NULL);
    report_text(doc, "cpu", pin_cpu_model());
    rc = report_print(doc);
    cJSON_Delete(doc);
    return rc;
}

static void print_head(const struct net_options *o, struct net_figures *f)
{
    char pages[64], crc[32];

    snprintf(crc, sizeof(crc), "%s",
             o->checksums.count > 1       ? "on and off"
             : o->checksums.value[0] != 0 ? "on"
                                          : "off");
    pages_name(f->page_size, pages, sizeof(pages));
    if (o->peer != NULL)
        printf("net: path %s, agents as they run, peer %s\n", path_of(f), o->peer);
    else
        printf("net: path %s, zero-copy %s, crc %s, congestion %s, two namespaces joined by veth\n"
               "engines on cores %d and %d (%s when idle), %s (%s), %s\n",
               path_of(f), f->zero_copy_sends > 0 ? "on" : "off", crc, o->congestion,
               f->cores.client, f->cores.engine, o->busy ? "busy" : "asleep", pages, f->pages_note,
               pin_cpu_model());
    printf("medians of %u rounds of %.2f s; GB/s are 10^9 bytes; latencies are a batch's; CPU is "
           "seconds per GB\n\n",
           (unsigned)o->rounds, o->seconds);
}

static void print_rows(const struct net_options *o, struct net_figures *f)
{
    printf("  %-5s %-8s %5s %7s %5s %3s %7s %9s %9s %9s %9s %6s %6s %8s %8s %7s %7s %6s\n", "op",
           "size", "batch", "clients", "rails", "crc", "GB/s", "tasks/s", "p50 us", "p99 us",
           "p99.9 us", "agents", "client", "Mooncake", "pooled", "UCX put", "stream", "CPU");
    for (unsigned i = 0; i < f->count; i++) {
        struct net_row *r = &f->rows[i];
        const struct net_rival *rival = rival_of(f, r);
        struct net_stream *stream = net_stream_of(f, r);
        char size[32], batch[16], rails[16], c[12][16];

        snprintf(rails, sizeof(rails), "%u", r->rails);
        snprintf(batch, sizeof(batch), "%u%s", r->batch, r->warm ? "w" : "");
        printf("  %-5s %-8s %5s %7u %5s %3s %7s %9s %9s %9s %9s %6s %6s %8s %8s %7s %7s %6s\n",
               op_name(r), report_size(r->size, size, sizeof(size)), batch, r->clients,
               o->peer == NULL ? rails : "-",
               o->peer != NULL ? "-"
               : r->checksum   ? "on"
                               : "off",
               report_cell(stats_median(&r->gbps), 3, c[0], sizeof(c[0])),
               report_cell(stats_median(&r->tasks_s), 0, c[1], sizeof(c[1])),
               report_cell(stats_median(&r->p50_us), 1, c[2], sizeof(c[2])),
               report_cell(stats_median(&r->p99_us), 1, c[3], sizeof(c[3])),
               report_cell(stats_median(&r->p999_us), 1, c[4], sizeof(c[4])),
               report_cell(stats_median(&r->agents_cpu), 3, c[5], sizeof(c[5])),
               report_cell(stats_median(&r->clients_cpu), 3, c[6], sizeof(c[6])),
               report_cell(rival->plain.gbps, 3, c[7], sizeof(c[7])),
               report_cell(rival->pooled.gbps, 3, c[8], sizeof(c[8])),
               report_cell(ucx_of(o, f, r), 3, c[9], sizeof(c[9])),
               report_cell(stream == NULL ? NAN : stats_median(&stream->gbps), 3, c[10],
                           sizeof(c[10])),
               report_cell(stream == NULL ? NAN : stats_median(&stream->cpu), 3, c[11],
                           sizeof(c[11])));
    }
    printf(
        "  w: all tasks have one place, as warm as iperf3's buffer; stream: bare sockets over as "
        "much memory as the row's\n");
    if (f->left_out > 0)
        printf("  %u combinations left out: more than %u MiB in flight\n", f->left_out,
               (unsigned)(NET_IN_FLIGHT_MAX >> 20));
}

void net_print_failover(const struct net_failover *o)
{
    if (isnan(o->limit_gbps))
        printf("\n  %u rails: ", o->rails);
    else
        printf("\n  %u rails of %.3f GB/s each: ", o->rails, o->limit_gbps);
    printf("one alone %.3f GB/s, all %.3f (%.2f times)\n", o->one_gbps, o->all_gbps,
           o->all_gbps / o->one_gbps);
    if (isnan(o->gap_ms))
        printf("  one cut: the others never came to 0.9 of what they can carry, ");
    else
        printf("  one cut: full flow of the others after %.0f ms, ", o->gap_ms);
    printf("then %.3f GB/s (%.2f of their sum), %" PRIu64 " failed tasks, %" PRIu64
           " ms at most without a completion; back: %.3f GB/s\n",
           o->rest_gbps, o->sum_ratio, o->failed_tasks, o->still_ms, o->back_gbps);
    if (isnan(o->slow_share))
        return;
    printf("  one slowed to a tenth: it gets %.3f of the bytes (its rate: %.3f), all %.3f GB/s\n",
           o->slow_share, o->slow_fair, o->slow_gbps);
}

static int print_tables(const struct net_options *o, struct net_figures *f)
{
    char a[32], b[32];

    print_head(o, f);
    print_rows(o, f);
    printf("\n  T = a + S/B of one task at a time: READ a = %s us, ",
           report_cell(f->read_line.fixed_us, 1, a, sizeof(a)));
    printf("WRITE a = %s us", report_cell(f->write_line.fixed_us, 1, a, sizeof(a)));
    if (o->peer == NULL)
        printf("; bare TCP round trip %.1f us, with 4 KiB back %.1f us", f->rtt.small_us,
               f->rtt.page_us);
    printf("\n");
    if (o->peer == NULL)
        printf(
            "  iperf3, one stream of 1 MiB writes: %s GB/s at %s CPU seconds per GB (both ends)\n",
            report_cell(stats_median(&f->iperf_gbps), 2, a, sizeof(a)),
            report_cell(stats_median(&f->iperf_cpu), 3, b, sizeof(b)));
    if (f->failover.done)
        net_print_failover(&f->failover);
    if (f->idle.done)
        printf("\n  idle peers: agent takes %.4f %% of a core with 1, %.4f %% with %u; 4 KiB READ "
               "%.1f us, %.1f us\n",
               100 * f->idle.cpu_one, 100 * f->idle.cpu_many, f->idle.peers, f->idle.read_one_us,
               f->idle.read_many_us);
    printf("\n  bytes checked %" PRIu64 ", mismatches %" PRIu64 "\n", f->checked_bytes,
           f->mismatches);
    return fflush(stdout) == 0 ? 0 : say_error(-EIO, "cannot write the result to stdout");
}

int net_print(const struct net_options *o, struct net_figures *f)
{
    if (o->common.json)
        return print_json(o, f);
    return o->wire.rdma ? net_rdma_print(o, f) : print_tables(o, f);
}
