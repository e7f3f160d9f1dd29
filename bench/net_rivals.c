/* SPDX-License-Identifier: Apache-2.0 */
/* Others over the same link in the same run. They come when no agent of ours is there. */
#include "net.h"

#include "progress.h"
#include "say.h"
#include "ucx.h"

#include <math.h>
#include <string.h>

#define IPERF_SECONDS 2u
#define UCX_VOLUME (UINT64_C(64) << 20) /* its large puts over TCP are slow */
#define MOONCAKE_SECONDS 2u
#define FAULTS_PER_S (UINT64_C(300) << 20) /* bytes that it touches for the first time meanwhile */

void net_run_iperf(const struct hosts *h, struct net_figures *f)
{
    struct iperf one;

    if (!iperf_present()) {
        if (f->iperf_gbps.count == 0 && f->count == 0)
            say_note(
                "there is no iperf3: not measured beside ours; scripts/deps.sh bench installs it");
        return;
    }
    iperf_run(h, IPERF_SECONDS, &one);
    if (isnan(one.gbps))
        return;
    stats_add(&f->iperf_gbps, one.gbps);
    stats_add(&f->iperf_cpu, one.cpu_s_per_gb);
}

static void run_ucx(const struct net_options *o, const struct hosts *h, struct net_figures *f)
{
    struct ucx_place place = {.address = h->end[1][0].address,
                              .device = h->end[1][0].link,
                              .client_netns = h->netns[0],
                              .server_netns = h->netns[1],
                              .client_core = f->cores.client,
                              .server_core = f->cores.engine,
                              .volume = UCX_VOLUME};

    if (!ucx_present()) {
        say_note("there is no ucx_perftest: not measured beside ours; scripts/deps.sh bench "
                 "installs it");
        return;
    }
    for (unsigned i = 0; i < o->sizes.count; i++) {
        f->ucx_gbps[i] = ucx_bandwidth(&place, "tcp", "ucp_put_bw", o->sizes.value[i]);
        progress_show(i + 1, o->sizes.count, "sizes of UCX");
    }
    progress_end();
}

/* Which rows Mooncake gets too: small ones in large batches, and large ones whose buffers do not
 * take longer to be touched for the first time than the run lasts. */
static bool worth(uint64_t size, uint64_t batch)
{
    return (size == 4096 || size == (1u << 20) || size == (16u << 20)) &&
           (batch == 1 || size * batch <= (UINT64_C(32) << 20));
}

static void run_mooncake(const struct net_options *o, const struct hosts *h, struct net_figures *f)
{
    char program[4096];

    if (o->mooncake == NULL) {
        say_note("Mooncake is not measured beside ours: --mooncake DIR names the virtual "
                 "environment of mooncake-transfer-engine-non-cuda");
        return;
    }
    if (!mooncake_find(o->mooncake, program, sizeof(program))) {
        say_note("--mooncake %s: there is no transfer_engine_bench in it", o->mooncake);
        return;
    }
    for (unsigned i = 0; i < o->sizes.count; i++)
        for (unsigned k = 0; k < o->batches.count; k++)
            for (unsigned op = 0; op < 2; op++)
                if (worth(o->sizes.value[i], o->batches.value[k]) &&
                    (op == 0 ? o->read : o->write) && f->rival_count < NET_LIST_MAX)
                    f->rivals[f->rival_count++] =
                        (struct net_rival){.write = op == 1,
                                           .size = o->sizes.value[i],
                                           .batch = o->batches.value[k],
                                           .plain = {.gbps = NAN, .tasks_s = NAN},
                                           .pooled = {.gbps = NAN, .tasks_s = NAN}};
    for (unsigned pooled = 0; pooled < 2; pooled++) {
        struct mooncake m;

        if (mooncake_start(&m, h, program, pooled != 0, UINT64_C(64) << 20) != 0)
            continue;
        for (unsigned i = 0; i < f->rival_count; i++) {
            struct net_rival *r = &f->rivals[i];
            unsigned more = (unsigned)(r->size * r->batch / FAULTS_PER_S);

            mooncake_run(&m, r->write, r->size, r->batch, 1, MOONCAKE_SECONDS + more,
                         pooled != 0 ? &r->pooled : &r->plain);
            progress_show(pooled * f->rival_count + i + 1, 2u * f->rival_count, "runs of Mooncake");
        }
        mooncake_stop(&m);
    }
    progress_end();
}

void net_run_rivals(const struct net_options *o, const struct hosts *h, struct net_figures *f)
{
    run_ucx(o, h, f);
    run_mooncake(o, h, f);
}
