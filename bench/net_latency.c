/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One WRITE of 8 bytes, from submit to COMPLETED: client on one core, its engine, which never sleeps, on the
 * other; the peer's agent has nothing to do with it.  In turns with the same WRITE over bare verbs, two hops of a bare
 * ring between the same cores, and ib_write_lat.
 */
#include "net_rdma.h"

#include "net_stage.h"
#include "perftest.h"
#include "progress.h"
#include "raw.h"
#include "rdma_raw.h"
#include "say.h"

#include "clock.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

#define SIZE 8u
#define SPAN (UINT64_C(1) << 20)
#define SECONDS 0.5
#define HOP_SECONDS 0.2
#define PERFTEST_COUNT 2000u
#define ANSWER_MS 30000

struct hop_context {
    struct raw raw;
    struct pin_cores cores;
};

static int partner_main(int fd, void *context)
{
    struct hop_context *x = context;

    (void)fd;
    pin_to(x->cores.engine);
    raw_rtt_partner(&x->raw);
    return 0;
}

static int hop_main(int fd, void *context)
{
    struct hop_context *x = context;
    uint64_t start, ns, trips;
    double us;

    pin_to(x->cores.client);
    trips = (uint64_t)(HOP_SECONDS * clock_tick_hz());
    start = clock_ns();
    trips = raw_rtt_client(&x->raw, mcs_ticks() + trips);
    ns = clock_ns() - start;
    us = (double)ns / (double)trips / 1e3;
    return proc_send(fd, &us, sizeof(us));
}

/* There and back: two hops. */
static int measure_hops(const struct pin_cores *cores, struct raw *raw, double *us)
{
    struct hop_context x = {.raw = *raw, .cores = *cores};
    struct proc partner = {.pid = 0}, client = {.pid = 0};
    int rc;

    raw_reset(raw);
    rc = proc_start(&partner, "ring", partner_main, &x);
    if (rc == 0)
        rc = proc_start(&client, "ring", hop_main, &x);
    if (rc == 0)
        rc = proc_recv(client.fd, us, sizeof(*us), ANSWER_MS);
    proc_kill(&client);
    proc_kill(&partner);
    return rc;
}

static int measure_ours(const struct net_options *o, const struct hosts *h, struct net_row *row,
                        struct net_figures *f)
{
    struct net_stage_options so = {
        .clients = 1, .rails = 1, .apart = true, .region = SPAN, .tasks = 1};
    struct net_stage s;
    int rc = net_stage_start(o, h, &so, &s);

    if (rc != 0)
        return rc;
    rc = net_run_row(&s, row, f, NULL, NULL);
    net_stage_stop(&s);
    return rc;
}

int net_rdma_latency(const struct net_options *o, const struct hosts *h, struct net_figures *f)
{
    struct net_options once = *o;
    struct net_row row = {
        .opcode = MCSHM_WRITE, .size = SIZE, .batch = 1, .clients = 1, .rails = 1, .span = SPAN};
    struct perftest_run lat = {.program = "ib_write_lat",
                               .from = &h->end[0][0],
                               .to = &h->end[1][0],
                               .size = SIZE,
                               .count = PERFTEST_COUNT};
    struct raw raw;
    double us;
    int rc = raw_create(&raw);

    once.rounds = 1;
    once.seconds = SECONDS;
    for (uint64_t i = 0; rc == 0 && i < o->rounds; i++) {
        rc = measure_ours(&once, h, &row, f);
        if (rc == 0 && rdma_raw_present())
            rc = rdma_raw_write(&h->end[0][0], &h->end[1][0], f->cores.client, SECONDS, &us);
        if (rc == 0 && rdma_raw_present())
            stats_add(&f->rdma.bare_us, us);
        if (rc == 0)
            rc = measure_hops(&f->cores, &raw, &us);
        if (rc == 0)
            stats_add(&f->rdma.hops_us, us);
        if (rc == 0 && o->rivals && perftest_present()) {
            perftest_measure(&lat, 1, &us);
            if (!isnan(us))
                stats_add(&f->rdma.perftest_us, us);
        }
        progress_show((unsigned)i + 1, (unsigned)o->rounds, "small WRITEs");
    }
    progress_end();
    f->rdma.write_us = row.p50_us;
    if (rc == 0 && net_other_paths(&row, MCSHM_PATH_RDMA) > 0)
        rc = say_error(-EIO, "WRITEs of %u bytes did not go over rdma", SIZE);
    if (rc == 0 && !rdma_raw_present())
        say_note("built without libibverbs: bare verbs are not measured beside ours");
    return rc;
}
