/* SPDX-License-Identifier: Apache-2.0 */
#include "kv.h"

#include "pages.h"
#include "pin.h"
#include "report.h"
#include "say.h"
#include "stats.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct figures {
    double hit_ratio, gbps, p50, p99, p999;
    double queue, copy, notify;   /* shares of 1 */
    double agent_cpu, client_cpu; /* seconds per 10^9 bytes */
    char path[64];
};

static void name_paths(const struct kv_shared *s, char *out, size_t size)
{
    size_t used = 0;

    snprintf(out, size, "none");
    for (unsigned i = 0; i < KV_PATHS; i++)
        if (s->path_tasks[i] > 0 && used < size)
            used += (size_t)snprintf(out + used, size - used, "%s%s", used > 0 ? "+" : "",
                                     mcshm_path_name((mcshm_path)i));
}

static void work_out(struct kv_shared *s, double agent_ns, struct figures *f)
{
    double gb = (double)s->bytes / 1e9;
    double stages = (double)(s->queue_ns + s->copy_ns + s->notify_ns);

    f->hit_ratio = (double)s->hits / (double)s->blocks;
    f->gbps = (double)s->bytes / (double)s->transfer_ns;
    f->p50 = stats_percentile(s->request_us, s->transfers, 50);
    f->p99 = stats_percentile(s->request_us, s->transfers, 99);
    f->p999 = stats_percentile(s->request_us, s->transfers, 99.9);
    f->queue = (double)s->queue_ns / stages;
    f->copy = (double)s->copy_ns / stages;
    f->notify = (double)s->notify_ns / stages;
    f->agent_cpu = agent_ns < 0 ? NAN : agent_ns / 1e9 / gb;
    f->client_cpu = (double)(s->prefill_cpu_ns + s->decode_cpu_ns) / 1e9 / gb;
    name_paths(s, f->path, sizeof(f->path));
}

static int print_json(const struct kv_options *o, const struct agent *a, const struct kv_context *x,
                      const struct figures *f, double seconds)
{
    const struct kv_shared *s = x->shared;
    cJSON *doc = cJSON_CreateObject();
    char text[64];
    int rc;

    cJSON_AddStringToObject(doc, "bench", "kv");
    report_count(doc, "requests", x->trace.count);
    report_count(doc, "blocks", s->blocks);
    report_count(doc, "bytes", s->bytes);
    report_count(doc, "verified_bytes", s->verified_bytes);
    report_count(doc, "mismatches", s->mismatches);
    report_number(doc, "hit_ratio", f->hit_ratio, 4);
    report_number(doc, "gbps", f->gbps, 3);
    report_number(doc, "p50_us", f->p50, 1);
    report_number(doc, "p99_us", f->p99, 1);
    report_number(doc, "p999_us", f->p999, 1);
    report_number(doc, "queue_share", f->queue, 4);
    report_number(doc, "copy_share", f->copy, 4);
    report_number(doc, "notify_share", f->notify, 4);
    report_number(doc, "agent_cpu_s_per_gb", f->agent_cpu, 4);
    report_number(doc, "client_cpu_s_per_gb", f->client_cpu, 4);
    report_text(doc, "path", f->path);
    report_text(doc, "location", o->location != NULL ? o->location : "cpu");
    report_text(doc, "device", o->device.name[0] != '\0' ? o->device.name : NULL);
    cJSON_AddBoolToObject(doc, "fake_cuda", o->device.fake);
    report_text(doc, "order", o->device.name[0] == '\0' ? NULL : o->gates ? "gate" : "synced");
    report_count(doc, "hosts", x->hosts);
    report_text(doc, "congestion", x->hosts > 1 ? o->congestion : NULL);
    report_text(doc, "model", x->model.name);
    report_number(doc, "scale", x->model.scale, 6);
    report_text(doc, "trace", o->trace); /* null: generated */
    report_count(doc, "hit_blocks", s->hits);
    report_count(doc, "transfers", s->transfers);
    report_count(doc, "tasks", s->tasks);
    report_count(doc, "layers", x->model.layers);
    report_count(doc, "layer_bytes", x->model.layer_bytes);
    report_count(doc, "cache_blocks", x->cache_blocks);
    report_count(doc, "in_flight", x->in_flight);
    report_number(doc, "seconds", seconds, 3);
    report_text(doc, "idle_mode", a->own ? (a->busy ? "busy" : "sleep") : NULL);
    pages_name(s->page_size, text, sizeof(text));
    report_text(doc, "pages", o->device.name[0] != '\0' ? NULL : text);
    report_text(doc, "pages_note", a->pages_note);
    report_text(doc, "cpu", pin_cpu_model());
    rc = report_print(doc);
    cJSON_Delete(doc);
    return rc;
}

static int print_table(const struct kv_options *o, const struct agent *a,
                       const struct kv_context *x, const struct figures *f, double seconds)
{
    const struct kv_shared *s = x->shared;
    char text[64], cell[32];

    pages_name(s->page_size, text, sizeof(text));
    if (o->device.fake)
        printf("*** FAKE: %s. No GPU was used: times are of a program in host memory. ***\n",
               o->device.name);
    printf("kv: trace %s, model %s at scale %g: %" PRIu32 " layers of ",
           o->trace != NULL ? o->trace : "generated", x->model.name, x->model.scale,
           x->model.layers);
    printf("%s a block; decode holds %" PRIu32 " blocks\n",
           report_size(x->model.layer_bytes, cell, sizeof(cell)), x->cache_blocks);
    if (x->hosts > 1)
        printf("two hosts joined by %u rails, congestion %s; CPU of both agents\n",
               (unsigned)o->rails, o->congestion);
    if (o->device.name[0] != '\0')
        printf("both caches on %s, %s, driver for CUDA %d.%d; order: %s\n", o->location,
               o->device.name, o->device.driver / 1000, o->device.driver % 1000 / 10,
               o->gates ? "gate" : "synced");
    printf("path %s, %s (%s), agent %s, %" PRIu32 " in flight, %s\n\n", f->path, text,
           a->pages_note, a->own ? (a->busy ? "busy" : "sleeps when idle") : "as it runs",
           x->in_flight, pin_cpu_model());
    printf("  %-34s %zu, of them %" PRIu64 " with a transfer\n", "requests", x->trace.count,
           s->transfers);
    printf("  %-34s %" PRIu64 "\n", "blocks", s->blocks);
    printf("  %-34s %.3f (%" PRIu64 " blocks)\n", "prefix hit ratio", f->hit_ratio, s->hits);
    printf("  %-34s %" PRIu64 "\n", "bytes moved", s->bytes);
    printf("  %-34s %" PRIu64 "\n", "bytes verified", s->verified_bytes);
    printf("  %-34s %" PRIu64 "\n", "mismatches", s->mismatches);
    printf("  %-34s %s\n", "GB/s while transferring", report_cell(f->gbps, 2, cell, sizeof(cell)));
    printf("  %-34s %.0f / %.0f / %.0f us\n", "transfer of a request p50/p99/p99.9", f->p50, f->p99,
           f->p999);
    printf("  %-34s queue %.1f %%, copy %.1f %%, notification %.1f %%\n", "of that time",
           100 * f->queue, 100 * f->copy, 100 * f->notify);
    printf("  %-34s agent %s, ", "CPU seconds per GB",
           report_cell(f->agent_cpu, 3, cell, sizeof(cell)));
    printf("clients %s (without making and checking content)\n",
           report_cell(f->client_cpu, 3, cell, sizeof(cell)));
    printf("  %-34s %.1f s\n", "whole replay", seconds);
    return fflush(stdout) == 0 ? 0 : say_error(-EIO, "cannot write the result to stdout");
}

int kv_print(const struct kv_options *o, const struct agent *a, const struct kv_context *x,
             double agent_ns, double seconds)
{
    struct figures f;

    work_out(x->shared, agent_ns, &f);
    return o->common.json ? print_json(o, a, x, &f, seconds) : print_table(o, a, x, &f, seconds);
}
