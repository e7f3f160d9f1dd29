/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `net --transport rdma`: the rows over RDMA rails, perftest over the same devices between their
 * rounds, one small WRITE beside the same over bare verbs, a rail that is cut, a registration.
 *
 * Nothing that is compared runs at the same time: on two cores each would take them from the other.
 */
#include "net_rdma.h"

#include "net_stage.h"
#include "perftest.h"
#include "progress.h"
#include "rdma_raw.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define IN_FLIGHT (UINT64_C(16) << 20) /* bytes of a row's tasks, where --batch says nothing */
#define BATCH_MIN 4u
#define BATCH_MAX 128u
#define SEVERAL_SIZE (UINT64_C(1) << 20) /* rows over several rails have this size alone */

struct beside { /* context of run_perftest() */
    const struct net_options *options;
    const struct hosts *hosts;
};

static unsigned batch_of(const struct net_options *o, uint64_t size)
{
    uint64_t batch = IN_FLIGHT / size;

    if (o->batches.count > 0)
        return (unsigned)o->batches.value[0];
    return (unsigned)(batch < BATCH_MIN ? BATCH_MIN : batch > BATCH_MAX ? BATCH_MAX : batch);
}

static uint64_t span_of(uint64_t size, unsigned batch)
{
    return size * batch;
}

static int check_path(const struct net_row *row)
{
    uint64_t others = net_other_paths(row, MCSHM_PATH_RDMA);

    return others == 0
               ? 0
               : say_error(-EIO, "%" PRIu64 " tasks of %" PRIu64 " bytes did not go over rdma",
                           others, row->size);
}

/* perftest for as long as the round took, with as many messages in flight, on all rails of the row. */
static int run_perftest(void *context, struct net_row *row)
{
    const struct beside *x = context;
    struct perftest_run runs[HOSTS_RAILS_MAX];
    double gbps = row->gbps.value[row->gbps.count - 1], rates[HOSTS_RAILS_MAX], sum = 0;
    double count = gbps * 1e9 * x->options->seconds / (double)row->size / row->rails;

    if (!x->options->rivals || !perftest_present())
        return 0;
    for (unsigned i = 0; i < row->rails; i++)
        runs[i] = (struct perftest_run){
            .program = row->opcode == MCSHM_READ ? "ib_read_bw" : "ib_write_bw",
            .from = &x->hosts->end[0][i],
            .to = &x->hosts->end[1][i],
            .size = row->size,
            .depth = row->batch,
            .count = count > row->batch + 5 ? (uint64_t)count : row->batch + 5};
    perftest_measure(runs, row->rails, rates);
    for (unsigned i = 0; i < row->rails; i++)
        sum += rates[i];
    if (!isnan(sum))
        stats_add(&row->perftest_gbps, sum);
    return 0;
}

static int run_rows(const struct net_options *o, const struct hosts *h, unsigned rails,
                    const struct net_list *sizes, unsigned total, struct net_figures *f)
{
    struct beside x = {.options = o, .hosts = h};
    struct net_stage_options so = {.clients = 1, .rails = rails};
    struct net_stage s;
    int rc;

    for (unsigned i = 0; i < sizes->count; i++) {
        unsigned batch = batch_of(o, sizes->value[i]);

        if (span_of(sizes->value[i], batch) > so.region)
            so.region = span_of(sizes->value[i], batch);
        if (batch > so.tasks)
            so.tasks = batch;
    }
    rc = net_stage_start(o, h, &so, &s);
    if (rc != 0)
        return rc;
    f->cores = s.pair.cores;
    f->page_size = s.page_size;
    memcpy(f->pages_note, s.pair.pages_note, sizeof(f->pages_note));
    for (unsigned i = 0; rc == 0 && i < sizes->count; i++)
        for (unsigned kind = 0; rc == 0 && kind < 2 && f->count < NET_ROWS_MAX; kind++) {
            struct net_row *row = &f->rows[f->count];

            if (kind == 0 ? !o->read : !o->write)
                continue;
            *row = (struct net_row){.opcode = kind == 0 ? MCSHM_READ : MCSHM_WRITE,
                                    .size = sizes->value[i],
                                    .batch = batch_of(o, sizes->value[i]),
                                    .clients = 1,
                                    .rails = rails};
            row->span = span_of(row->size, row->batch);
            rc = net_run_row(&s, row, f, run_perftest, &x);
            if (rc == 0)
                rc = check_path(row);
            f->count++;
            progress_show(f->count, total, "rows");
        }
    net_stage_stop(&s);
    progress_end();
    return rc;
}

int net_run_rdma(const struct net_options *o, struct net_figures *f)
{
    static const struct net_list several = {{SEVERAL_SIZE}, 1};
    struct hosts h;
    unsigned rails = 1, total = (unsigned)(o->read + o->write) *
                                (o->sizes.count + (o->rails.count - 1) * several.count);
    int rc;

    for (unsigned i = 0; i < o->rails.count; i++)
        if (o->rails.value[i] > rails)
            rails = (unsigned)o->rails.value[i];
    rc = wire_open(&o->wire, rails, &h);
    if (rc != 0)
        return rc;
    if (o->rivals && !perftest_present())
        say_note("there is no perftest (ib_write_bw, ib_read_bw, ib_write_lat): not measured "
                 "beside ours; scripts/deps.sh bench installs it");
    f->rdma.rails = rails;
    for (unsigned i = 0; i < HOSTS * rails; i++)
        strcpy(f->rdma.device[i % HOSTS][i / HOSTS], h.end[i % HOSTS][i / HOSTS].device);
    for (unsigned i = 0; rc == 0 && i < o->rails.count; i++)
        rc = run_rows(o, &h, (unsigned)o->rails.value[i], i == 0 ? &o->sizes : &several, total, f);
    if (rc == 0)
        rc = net_rdma_latency(o, &h, f);
    if (rc == 0)
        rc = net_rdma_register(o, &h, f);
    if (rc == 0 && o->failover)
        rc = net_run_failover(o, &h, f);
    f->rdma.done = rc == 0;
    hosts_close(&h);
    return rc;
}
