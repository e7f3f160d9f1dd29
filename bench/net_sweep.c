/* SPDX-License-Identifier: Apache-2.0 */
#include "net_stage.h"

#include "progress.h"
#include "say.h"

#include "shm/abi.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPAN_MIN (UINT64_C(1) << 20)
#define STREAM_SECONDS 0.3

/* Every task of a batch has its place, which the next batch uses again, as Mooncake's and UCX's
 * benchmarks do. */
static uint64_t span_of(uint64_t size, uint64_t batch, bool warm)
{
    uint64_t span = warm ? size : size * batch;

    return span >= SPAN_MIN ? span : (SPAN_MIN + size - 1) / size * size;
}

/* READ and WRITE; the same again with one place for all tasks, where it is large and they are many. */
#define KINDS 4u

static bool has_warm(uint64_t size, uint64_t batch)
{
    return size >= SPAN_MIN && batch > 1;
}

static bool fits(uint64_t size, uint64_t batch, uint64_t clients)
{
    return batch == 1 || size * batch * clients <= NET_IN_FLIGHT_MAX;
}

static uint64_t largest(const struct net_list *list)
{
    uint64_t most = 0;

    for (unsigned i = 0; i < list->count; i++)
        if (list->value[i] > most)
            most = list->value[i];
    return most;
}

static uint64_t region_of(const struct net_options *o)
{
    uint64_t most = SPAN_MIN;

    for (unsigned i = 0; i < o->sizes.count; i++)
        for (unsigned k = 0; k < o->batches.count; k++)
            if (fits(o->sizes.value[i], o->batches.value[k], 1) &&
                span_of(o->sizes.value[i], o->batches.value[k], false) > most)
                most = span_of(o->sizes.value[i], o->batches.value[k], false);
    return most;
}

/* Takes one round of all clients into the row. */
static void add_round(struct net_row *row, const struct net_result *results,
                      const double before[HOSTS], const double after[HOSTS])
{
    double bytes = 0, tasks = 0, seconds = 0, cpu = 0, p50 = 0, p99 = 0, p999 = 0;
    double agent[HOSTS];

    for (unsigned i = 0; i < row->clients; i++) {
        const struct net_result *r = &results[i];

        bytes += (double)r->bytes;
        tasks += (double)r->tasks;
        cpu += r->cpu_seconds;
        seconds = fmax(seconds, r->seconds);
        p50 = fmax(p50, r->p50_us);
        p99 = fmax(p99, r->p99_us);
        p999 = fmax(p999, r->p999_us);
        row->path = r->path;
        for (unsigned k = 0; k < NET_PATHS; k++)
            row->paths[k] += r->paths[k];
    }
    stats_add(&row->gbps, bytes / seconds / 1e9);
    stats_add(&row->tasks_s, tasks / seconds);
    stats_add(&row->p50_us, p50);
    stats_add(&row->p99_us, p99);
    stats_add(&row->p999_us, p999);
    stats_add(&row->clients_cpu, cpu / (bytes / 1e9));
    for (unsigned host = 0; host < HOSTS; host++)
        agent[host] =
            before[host] < 0 || after[host] < 0 ? NAN : (after[host] - before[host]) / bytes;
    if (!isnan(agent[0]))
        stats_add(&row->initiator_cpu, agent[0]);
    if (!isnan(agent[1]))
        stats_add(&row->target_cpu, agent[1]);
    if (!isnan(agent[0]) && !isnan(agent[1]))
        stats_add(&row->agents_cpu, agent[0] + agent[1]);
}

uint64_t net_other_paths(const struct net_row *row, mcshm_path path)
{
    uint64_t others = 0;

    for (unsigned i = 0; i < NET_PATHS; i++)
        if (i != (unsigned)path)
            others += row->paths[i];
    return others;
}

int net_run_row(struct net_stage *s, struct net_row *row, struct net_figures *f,
                int (*beside)(void *context, struct net_row *row), void *context)
{
    const struct net_options *o = s->options;
    struct net_job job = {.kind = NET_RUN,
                          .opcode = row->opcode,
                          .size = row->size,
                          .batch = row->batch,
                          .span = row->span,
                          .seconds = o->seconds / 4,
                          .spin = s->apart,
                          .all_paths = o->wire.rdma};
    struct net_result results[NET_CLIENTS_MAX];
    uint64_t touched[NET_CLIENTS_MAX] = {0}; /* bytes that are compared: whole lines */
    int rc = net_stage_fill(s, row->opcode, row->clients, job.span);

    if (rc == 0)
        rc = net_stage_ask(s, row->clients, &job, results); /* warms up */
    job.seconds = o->seconds;
    for (uint64_t i = 0; rc == 0 && i < o->rounds; i++) {
        double before[HOSTS], after[HOSTS];

        net_stage_cpu(s, before);
        rc = net_stage_ask(s, row->clients, &job, results);
        net_stage_cpu(s, after);
        if (rc != 0)
            break;
        add_round(row, results, before, after);
        for (unsigned k = 0; k < row->clients; k++)
            if (results[k].touched > touched[k])
                touched[k] = results[k].touched / MCS_LINE * MCS_LINE;
        if (beside != NULL)
            rc = beside(context, row);
    }
    return rc != 0 ? rc
                   : net_stage_check(s, row->opcode, row->clients, touched, &f->mismatches,
                                     &f->checked_bytes);
}

/* All rows that need no other agents. */
static int run_stage(const struct net_options *o, const struct hosts *h, unsigned rails,
                     bool checksum, unsigned total, struct net_figures *f)
{
    struct net_stage_options so = {.clients = (unsigned)largest(&o->clients),
                                   .rails = rails,
                                   .checksum = checksum,
                                   .region = region_of(o),
                                   .tasks = (uint32_t)largest(&o->batches)};
    struct net_stage s;
    int rc = net_stage_start(o, h, &so, &s);

    if (rc != 0)
        return rc;
    f->cores = s.pair.cores;
    f->page_size = s.page_size;
    memcpy(f->pages_note, s.pair.pages_note, sizeof(f->pages_note));
    for (unsigned c = 0; c < o->clients.count; c++)
        for (unsigned i = 0; i < o->sizes.count; i++)
            for (unsigned k = 0; k < o->batches.count; k++)
                for (unsigned kind = 0; rc == 0 && kind < KINDS; kind++) {
                    struct net_row *row = &f->rows[f->count];
                    unsigned op = kind % 2 == 0 ? MCSHM_READ : MCSHM_WRITE;
                    bool warm = kind >= 2;

                    if (op == MCSHM_READ ? !o->read : !o->write)
                        continue;
                    if (warm && !has_warm(o->sizes.value[i], o->batches.value[k]))
                        continue;
                    if (!fits(o->sizes.value[i], o->batches.value[k], o->clients.value[c]) ||
                        f->count == NET_ROWS_MAX) {
                        f->left_out++;
                        continue;
                    }
                    *row = (struct net_row){
                        .opcode = (mcshm_opcode)op,
                        .size = o->sizes.value[i],
                        .batch = (unsigned)o->batches.value[k],
                        .clients = (unsigned)o->clients.value[c],
                        .rails = h != NULL ? rails : 0,
                        .warm = warm,
                        .span = span_of(o->sizes.value[i], o->batches.value[k], warm),
                        .checksum = checksum};
                    rc = net_run_row(&s, row, f, NULL, NULL);
                    f->count++;
                    progress_show(f->count + f->left_out, total, "rows");
                }
    f->zero_copy_sends += net_stage_zero_copy(&s);
    net_stage_stop(&s);
    progress_end();
    return rc;
}

struct net_stream *net_stream_of(struct net_figures *f, const struct net_row *r)
{
    for (unsigned i = 0; i < f->stream_count; i++)
        if (f->streams[i].span == r->span && r->size >= SPAN_MIN)
            return &f->streams[i];
    return NULL;
}

int net_run_streams(const struct net_options *o, const struct hosts *h, struct net_figures *f)
{
    const int cores[HOSTS] = {f->cores.client, f->cores.engine};
    int rc = 0;

    for (unsigned i = 0; i < f->count && f->stream_count < NET_STREAMS_MAX; i++) {
        struct net_row *r = &f->rows[i];

        if (r->size >= SPAN_MIN && net_stream_of(f, r) == NULL)
            f->streams[f->stream_count++] = (struct net_stream){.span = r->span};
    }
    for (uint64_t round = 0; rc == 0 && round < o->rounds; round++) {
        for (unsigned i = 0; rc == 0 && i < f->stream_count; i++) {
            struct net_stream *s = &f->streams[i];
            struct stream one;

            rc = stream_measure(h, cores, s->span, STREAM_SECONDS, &one);
            if (rc == 0) {
                stats_add(&s->gbps, one.gbps);
                stats_add(&s->cpu, one.cpu_s_per_gb);
            }
        }
    }
    return rc;
}

int net_sweep(const struct net_options *o, const struct hosts *h, struct net_figures *f)
{
    unsigned stages = h != NULL ? o->rails.count * o->checksums.count : 1;
    unsigned total = 0;
    int rc = 0;

    for (unsigned i = 0; i < o->sizes.count; i++)
        for (unsigned k = 0; k < o->batches.count; k++)
            total += stages * o->clients.count * (unsigned)(o->read + o->write) *
                     (1 + has_warm(o->sizes.value[i], o->batches.value[k]));
    for (unsigned i = 0; rc == 0 && i < stages; i++) {
        if (h != NULL && o->rivals)
            net_run_iperf(h, f);
        rc = run_stage(o, h, (unsigned)o->rails.value[i % o->rails.count],
                       o->checksums.value[i / o->rails.count] != 0, total, f);
    }
    if (rc == 0 && h != NULL && o->rivals)
        net_run_iperf(h, f);
    if (rc == 0 && h != NULL && o->rivals)
        rc = net_run_streams(o, h, f);
    net_fit(f);
    return rc;
}

void net_fit(struct net_figures *f)
{
    struct fit_point points[HOSTS][NET_ROWS_MAX];
    size_t counts[HOSTS] = {0, 0};

    for (unsigned i = 0; i < f->count; i++) {
        struct net_row *r = &f->rows[i];
        unsigned which = r->opcode == MCSHM_WRITE;

        /* those like the first: its checksums, the fewest rails */
        if (r->batch == 1 && r->clients == 1 && r->checksum == f->rows[0].checksum &&
            r->rails == f->rows[0].rails)
            points[which][counts[which]++] =
                (struct fit_point){.size = (double)r->size, .time_us = stats_median(&r->p50_us)};
    }
    f->read_line = fit_line(points[0], counts[0]);
    f->write_line = fit_line(points[1], counts[1]);
}
