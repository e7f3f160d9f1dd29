/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails that are lost and rails that are slow: hosts of their own whose links are limited, so that
 * it is the links and not this machine's cores that bound what flows.
 *
 *   one rail alone         what a rail carries
 *   all rails              and then, in the same stream:
 *     one is cut           until the others carry what they can: the gap
 *     it comes back
 *   one slowed to a tenth  how many bytes it still gets
 */
#include "net_stage.h"

#include "clock.h"
#include "say.h"
#include "tell.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define LIMIT_BITS 1e9
#define TASK (UINT64_C(256) << 10)
#define IN_FLIGHT 96u
#define REGION (UINT64_C(32) << 20)
#define CUT_RAIL 1u /* not the one that the agents talk over */
#define BEFORE_MS 2000u
#define CUT_MS 2500u
#define BACK_MS 3000u
#define SLOW_MS 3000u
#define SETTLE_MS 700u /* of a stream: not counted */
#define WINDOW_MS 100u
#define FULL_SHARE 0.9

/* Until the timeline is so old. */
static void await_age(const struct net_timeline *t, unsigned ms)
{
    uint64_t end = t->start_ns + UINT64_C(1000000) * ms;

    for (uint64_t now; (now = clock_ns()) < end;)
        poll(NULL, 0, (int)((end - now) / 1000000) + 1);
}

static size_t bin_now(const struct net_timeline *t)
{
    return (size_t)((clock_ns() - t->start_ns) / 1000000);
}

static int begin(struct net_stage *s, struct net_timeline *t, unsigned ms)
{
    struct net_job job = {.kind = NET_STREAM,
                          .opcode = MCSHM_WRITE,
                          .size = TASK,
                          .batch = IN_FLIGHT,
                          .span = REGION,
                          .seconds = ms / 1e3};
    int rc = net_stage_fill(s, MCSHM_WRITE, 1, REGION);

    memset(t->bytes, 0, sizeof(t->bytes));
    t->start_ns = clock_ns();
    return rc != 0 ? rc : net_stage_send(s, 1, &job);
}

static int finish(struct net_stage *s, struct net_figures *f)
{
    struct net_result r;
    int rc = net_stage_receive(s, 1, &r);

    if (rc != 0)
        return rc;
    f->failover.failed_tasks += r.failed;
    if (r.failed > 0)
        say_note("%llu tasks failed, the first because of: %s", (unsigned long long)r.failed,
                 mcshm_strerror(r.error));
    return net_stage_check(s, MCSHM_WRITE, 1, &r.touched, &f->mismatches, &f->checked_bytes);
}

static double gbps(const struct net_timeline *t, size_t from, size_t to)
{
    return fit_rate(t->bytes, from, to) / 1e6;
}

/* A stream of its own over agents with so many rails. */
static int run_plain(struct net_stage *s, struct net_figures *f, double *out)
{
    struct net_timeline *t = s->timeline;
    int rc = begin(s, t, BEFORE_MS);

    if (rc == 0)
        rc = finish(s, f);
    *out = gbps(t, SETTLE_MS, BEFORE_MS);
    return rc;
}

/* Takes a rail down, or up with the routes that it had. */
static int cut(const struct hosts *h, bool up, struct hosts_routes *routes)
{
    int rc = up ? 0 : hosts_get_routes(h, CUT_RAIL, routes);

    if (rc == 0)
        rc = hosts_link(h, CUT_RAIL, up);
    return rc == 0 && up ? hosts_put_routes(h, routes) : rc;
}

static int run_cut(struct net_stage *s, struct net_figures *f)
{
    struct net_failover *o = &f->failover;
    struct net_timeline *t = s->timeline;
    struct hosts_routes routes;
    size_t down, back = 0, full;
    double others;
    int rc = begin(s, t, BEFORE_MS + CUT_MS + BACK_MS);

    if (rc != 0)
        return rc;
    await_age(t, BEFORE_MS);
    down = bin_now(t);
    rc = cut(s->hosts, false, &routes);
    await_age(t, BEFORE_MS + CUT_MS);
    if (rc == 0) {
        back = bin_now(t);
        rc = cut(s->hosts, true, &routes);
    }
    if (rc == 0)
        rc = finish(s, f);
    if (rc != 0)
        return rc;
    o->all_gbps = gbps(t, SETTLE_MS, down);
    /* what the other rails carry: each as much as one alone, or as it did just before */
    others = fmax(o->one_gbps * (o->rails - 1), o->all_gbps * (o->rails - 1) / o->rails);
    o->gap_ms = fit_gap(t->bytes, back, down, WINDOW_MS, others * 1e6, FULL_SHARE);
    o->still_ms = fit_still(t->bytes, down, back);
    full = isnan(o->gap_ms) ? back : down + (size_t)o->gap_ms;
    o->rest_gbps = gbps(t, full < back ? full : down, back);
    o->sum_ratio = o->rest_gbps / others;
    o->back_gbps = gbps(t, back + BACK_MS / 2, back + BACK_MS);
    return 0;
}

/* Bytes that each rail has carried so far, by the agent's own account. */
static int read_rails(const struct net_stage *s, double *bytes, unsigned rails)
{
    cJSON *doc = tell_ask(s->pair.agent[0].socket, "ls", "rails");
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(doc, "rails"), *rail;
    int rc = 0;

    memset(bytes, 0, rails * sizeof(bytes[0]));
    cJSON_ArrayForEach(rail, list)
    {
        const cJSON *local = cJSON_GetObjectItemCaseSensitive(rail, "local");
        const cJSON *count = cJSON_GetObjectItemCaseSensitive(rail, "bytes");

        for (unsigned i = 0; cJSON_IsString(local) && cJSON_IsNumber(count) && i < rails; i++) {
            const char *address = s->hosts->end[0][i].address;
            size_t length = strlen(address);

            if (strncmp(local->valuestring, address, length) == 0 &&
                !isdigit((unsigned char)local->valuestring[length]))
                bytes[i] += count->valuedouble;
        }
    }
    if (doc == NULL)
        rc = -EIO;
    else if (cJSON_GetArraySize(list) == 0)
        rc = say_error(-EPROTO, "mcshm ls rails tells no rails");
    cJSON_Delete(doc);
    return rc;
}

static int run_slow(struct net_stage *s, struct net_figures *f)
{
    struct net_failover *o = &f->failover;
    double before[HOSTS_RAILS_MAX], after[HOSTS_RAILS_MAX], sum = 0;
    struct net_timeline *t = s->timeline;
    int rc = hosts_limit(s->hosts, CUT_RAIL, LIMIT_BITS / 10);

    if (rc == 0)
        rc = begin(s, t, SETTLE_MS + SLOW_MS);
    if (rc == 0) {
        await_age(t, SETTLE_MS);
        rc = read_rails(s, before, o->rails);
    }
    if (rc == 0) {
        await_age(t, SETTLE_MS + SLOW_MS - 100);
        rc = read_rails(s, after, o->rails);
    }
    if (rc == 0)
        rc = finish(s, f);
    if (rc != 0)
        return rc;
    for (unsigned i = 0; i < o->rails; i++)
        sum += after[i] - before[i];
    o->slow_share = sum > 0 ? (after[CUT_RAIL] - before[CUT_RAIL]) / sum : NAN;
    o->slow_fair = 0.1 / (o->rails - 1 + 0.1);
    o->slow_gbps = gbps(t, SETTLE_MS, SETTLE_MS + SLOW_MS);
    return 0;
}

int net_run_failover(const struct net_options *o, const struct hosts *given, struct net_figures *f)
{
    struct net_stage_options so = {
        .clients = 1, .rails = 1, .checksum = true, .region = REGION, .tasks = IN_FLIGHT};
    struct net_failover *out = &f->failover;
    struct net_stage s;
    struct hosts h;
    int rc;

    for (unsigned i = 0; i < o->rails.count; i++)
        if (o->rails.value[i] > out->rails)
            out->rails = (unsigned)o->rails.value[i];
    if (out->rails < 2)
        return 0;
    out->limit_gbps = given != NULL ? NAN : LIMIT_BITS / 8e9;
    out->slow_share = out->slow_fair = out->slow_gbps = NAN;
    so.timeline =
        mmap(NULL, sizeof(*so.timeline), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (so.timeline == MAP_FAILED)
        return say_error(-errno, "no memory for a timeline: %m");
    rc = given != NULL ? 0 : hosts_open(&h, out->rails, o->congestion);
    if (rc != 0)
        goto out;
    if (given != NULL)
        h = *given;
    for (unsigned rail = 0; rc == 0 && given == NULL && rail < out->rails; rail++)
        rc = hosts_limit(&h, rail, LIMIT_BITS);
    if (rc == 0)
        rc = net_stage_start(o, &h, &so, &s);
    if (rc == 0) {
        rc = run_plain(&s, f, &out->one_gbps);
        net_stage_stop(&s);
    }
    so.rails = out->rails;
    if (rc == 0)
        rc = net_stage_start(o, &h, &so, &s);
    if (rc == 0) {
        rc = run_cut(&s, f);
        if (rc == 0 && given == NULL)
            rc = run_slow(&s, f);
        net_stage_stop(&s);
    }
    out->done = rc == 0;
    if (given == NULL)
        hosts_close(&h);
out:
    munmap(so.timeline, sizeof(*so.timeline));
    return rc;
}
