/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include "pages.h"
#include "report.h"
#include "ring_client.h"
#include "say.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct medians {
    double rtt, raw_rtt, floor_rtt, rate, raw_rate, floor_rate;
    double idle[RING_IDLE_STEPS];
    double payload_rtt[RING_PAYLOADS], payload_rate[RING_PAYLOADS];
    double p50, p99, p999;
    double idle256_cost;
};

static void take_medians(struct ring_figures *f, struct medians *m)
{
    m->rtt = stats_median(&f->rtt_ns);
    m->raw_rtt = stats_median(&f->raw_rtt_ns);
    m->floor_rtt = stats_median(&f->floor_rtt_ns);
    m->rate = stats_median(&f->rate_mops);
    m->raw_rate = stats_median(&f->raw_rate_mops);
    m->floor_rate = stats_median(&f->floor_rate_mops);
    m->p50 = stats_median(&f->p50_ns);
    m->p99 = stats_median(&f->p99_ns);
    m->p999 = stats_median(&f->p999_ns);
    for (unsigned i = 0; i < RING_IDLE_STEPS; i++)
        m->idle[i] = stats_median(&f->idle_rtt_ns[i]);
    for (unsigned i = 0; i < RING_PAYLOADS; i++) {
        m->payload_rtt[i] = stats_median(&f->payload_rtt_ns[i]);
        m->payload_rate[i] = stats_median(&f->payload_rate_mops[i]);
    }
    m->idle256_cost = m->idle[RING_IDLE_STEPS - 1] / m->idle[0] - 1;
}

static int print_json(const struct ring_options *o, const struct agent *a,
                      const struct pin_cores *cores, const struct ring_figures *f,
                      const struct medians *m)
{
    cJSON *doc = cJSON_CreateObject(), *list, *item;
    char text[64];
    int rc;

    cJSON_AddStringToObject(doc, "bench", "ring");
    report_number(doc, "rtt_ns", m->rtt, 1);
    report_number(doc, "raw_rtt_ns", m->raw_rtt, 1);
    report_number(doc, "floor_rtt_ns", m->floor_rtt, 1);
    report_number(doc, "rtt_ratio", m->rtt / m->raw_rtt, 4);
    report_number(doc, "rtt_floor_ratio", m->rtt / m->floor_rtt, 4);
    report_number(doc, "rate_mops", m->rate, 3);
    report_number(doc, "raw_rate_mops", m->raw_rate, 3);
    report_number(doc, "floor_rate_mops", m->floor_rate, 3);
    report_number(doc, "rate_ratio", m->rate / m->raw_rate, 4);
    report_number(doc, "rate_floor_ratio", m->rate / m->floor_rate, 4);
    report_number(doc, "idle256_cost", m->idle256_cost, 4);
    if (f->filtered) {
        report_count(doc, "client_syscalls", 0);
        cJSON_AddStringToObject(doc, "seccomp", "exit only");
    } else {
        cJSON_AddNullToObject(doc, "client_syscalls");
        snprintf(text, sizeof(text), "not installed: %s", strerror(-f->filter_error));
        cJSON_AddStringToObject(doc, "seccomp", text);
    }
    report_number(doc, "p50_ns", m->p50, 1);
    report_number(doc, "p99_ns", m->p99, 1);
    report_number(doc, "p999_ns", m->p999, 1);
    list = cJSON_AddArrayToObject(doc, "idle");
    for (unsigned i = 0; i < RING_IDLE_STEPS; i++) {
        item = cJSON_CreateObject();
        report_count(item, "clients", ring_idle_steps[i]);
        report_number(item, "rtt_ns", m->idle[i], 1);
        cJSON_AddItemToArray(list, item);
    }
    list = cJSON_AddArrayToObject(doc, "payloads");
    for (unsigned i = 0; i < RING_PAYLOADS; i++) {
        item = cJSON_CreateObject();
        report_count(item, "size", ring_payloads[i]);
        report_number(item, "rtt_ns", m->payload_rtt[i], 1);
        report_number(item, "rate_mops", m->payload_rate[i], 4);
        report_number(item, "gbps", m->payload_rate[i] * ring_payloads[i] / 1e3, 2);
        cJSON_AddItemToArray(list, item);
    }
    report_number(doc, "idle_cpu_percent", f->idle_cpu_percent, 3);
    report_number(doc, "wake_us", f->wake_us, 2);
    report_number(doc, "wake_p99_us", f->wake_p99_us, 2);
    report_number(doc, "raw_wake_us", f->raw_wake_us, 2);
    report_number(doc, "raw_wake_p99_us", f->raw_wake_p99_us, 2);
    report_text(doc, "path", mcshm_path_name(f->path));
    report_place(doc, a, cores, f->page_size);
    report_count(doc, "rounds", o->rounds);
    report_number(doc, "seconds", o->seconds, 3);
    report_count(doc, "batch", RING_BATCH);
    report_count(doc, "batches_in_flight", RING_IN_FLIGHT);
    rc = report_print(doc);
    cJSON_Delete(doc);
    return rc;
}

static void row(const char *what, double ours, double raw, double floor_value, int decimals)
{
    char a[32], b[32], c[32], d[32], e[32];

    printf(
        "  %-28s %10s %10s %10s %9s %9s\n", what, report_cell(ours, decimals, a, sizeof(a)),
        report_cell(raw, decimals, b, sizeof(b)), report_cell(floor_value, decimals, c, sizeof(c)),
        report_cell(ours / raw, 3, d, sizeof(d)), report_cell(ours / floor_value, 3, e, sizeof(e)));
}

static int print_tables(const struct ring_options *o, const struct agent *a,
                        const struct pin_cores *cores, const struct ring_figures *f,
                        const struct medians *m)
{
    char pages[64], size[32], cell[32];

    pages_name(f->page_size, pages, sizeof(pages));
    printf("ring: path %s, client on core %d, engine on core %d, %s (%s), agent %s, %s\n"
           "medians of %u alternating rounds of %.2f s\n\n",
           mcshm_path_name(f->path), cores->client, cores->engine, pages, a->pages_note,
           a->own ? "busy" : "as it runs", pin_cpu_model(), (unsigned)o->rounds, o->seconds);
    printf("  %-28s %10s %10s %10s %9s %9s\n", "64-byte tasks", "mcshm", "bare ring", "floor",
           "of ring", "of floor");
    row("round trip, ns", m->rtt, m->raw_rtt, m->floor_rtt, 1);
    row("rate, million a second", m->rate, m->raw_rate, m->floor_rate, 2);
    printf("\n  round trip, each timed: p50 %.0f ns, p99 %.0f ns, p99.9 %.0f ns\n", m->p50, m->p99,
           m->p999);
    if (f->filtered)
        printf("  system calls of the measuring thread: 0 (seccomp: exit only)\n\n");
    else
        printf("  system calls of the measuring thread: not known, no seccomp filter: %s\n\n",
               strerror(-f->filter_error));
    printf("  %-28s %10s\n", "connected idle clients", "rtt, ns");
    for (unsigned i = 0; i < RING_IDLE_STEPS; i++)
        printf("  %-28u %10.1f\n", (unsigned)ring_idle_steps[i], m->idle[i]);
    printf("  256 of them cost %.1f %%\n\n", 100 * m->idle256_cost);
    printf("  %-28s %10s %10s %10s\n", "payload", "rtt, us", "M tasks/s", "GB/s");
    for (unsigned i = 0; i < RING_PAYLOADS; i++)
        printf("  %-28s %10.2f %10.3f %10.1f\n", report_size(ring_payloads[i], size, sizeof(size)),
               m->payload_rtt[i] / 1e3, m->payload_rate[i],
               m->payload_rate[i] * ring_payloads[i] / 1e3);
    printf("\n  sleeping agent with 64 idle clients: %s %% of a core",
           report_cell(f->idle_cpu_percent, 3, cell, sizeof(cell)));
    printf(", wake-up %s us", report_cell(f->wake_us, 1, cell, sizeof(cell)));
    printf(" (p99 %s us)\n", report_cell(f->wake_p99_us, 1, cell, sizeof(cell)));
    printf("  bare wake-up of a process in epoll_wait: %s us",
           report_cell(f->raw_wake_us, 1, cell, sizeof(cell)));
    printf(" (p99 %s us)\n", report_cell(f->raw_wake_p99_us, 1, cell, sizeof(cell)));
    return fflush(stdout) == 0 ? 0 : say_error(-EIO, "cannot write the result to stdout");
}

int ring_print(const struct ring_options *o, const struct agent *a, const struct pin_cores *cores,
               struct ring_figures *f)
{
    struct medians m;

    take_medians(f, &m);
    return o->common.json ? print_json(o, a, cores, f, &m) : print_tables(o, a, cores, f, &m);
}
