/* SPDX-License-Identifier: Apache-2.0 */
#include "kv.h"

#include "clock.h"
#include "hosts.h"
#include "location.h"
#include "pair.h"
#include "pin.h"
#include "proc.h"
#include "progress.h"
#include "say.h"

#include "shm/atomic.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REQUESTS_DEFAULT 200u /* of a generated trace */
#define CACHE_BYTES (UINT64_C(512) << 20)
#define READY_MS 120000
#define LOOK_MS 100
#define GPU_POOL (UINT64_C(16) << 20) /* what clients with their blocks on a GPU need of the pool */

/* The agents of a run: one, or one on each of two hosts. */
struct place {
    struct agent one;
    struct hosts hosts;
    struct pair pair;
};

void kv_step_aside(const struct kv_context *x)
{
    if (x->hosts == HOSTS)
        pair_step_aside(&x->engines);
    else if (x->engines.engine >= 0)
        pin_away_from(x->engines.engine);
}

int kv_meet(int fd)
{
    char byte = 'R';
    int rc = proc_send(fd, &byte, 1);

    return rc != 0 ? rc : proc_recv(fd, &byte, 1, READY_MS);
}

int kv_part(int fd)
{
    char byte = 'D';
    int rc = proc_send(fd, &byte, 1);

    if (rc == 0)
        rc = proc_recv(fd, &byte, 1, -1);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: both are done */
}

static int await_byte(struct proc *p)
{
    char byte;
    int rc = proc_recv(p->fd, &byte, 1, READY_MS);

    if (rc == -EPIPE)
        return rc; /* it has said why */
    return rc == 0 ? 0 : say_error(rc, "%s was not ready: %s", p->name, strerror(-rc));
}

/* Until both have said that they are done; the bar moves meanwhile. */
static int await_end(struct proc *both[2], const struct kv_context *x)
{
    unsigned done = 0;
    int rc = 0;

    while (rc == 0 && done < 2) {
        struct pollfd waits[2] = {{.fd = both[0]->fd, .events = POLLIN},
                                  {.fd = both[1]->fd, .events = POLLIN}};

        poll(waits, 2, LOOK_MS);
        for (unsigned i = 0; rc == 0 && i < 2; i++) {
            char byte;

            if (waits[i].revents == 0)
                continue;
            rc = proc_recv(both[i]->fd, &byte, 1, 0);
            done += rc == 0;
        }
        /* Partner: the decode process counts. */
        progress_show(mcs_load_relaxed(&x->shared->finished), x->trace.count, "requests");
    }
    progress_end();
    return rc;
}

/* CPU time of all agents so far. Returns whether it is known. */
static bool agents_ns(const struct kv_context *x, const struct place *place, uint64_t *out)
{
    bool known = true;

    *out = 0;
    for (unsigned host = 0; known && host < x->hosts; host++) {
        uint64_t ns = 0;
        pid_t pid = x->hosts == HOSTS ? place->pair.agent[host].pid : place->one.pid;

        known = pid > 0 && clock_process_ns(pid, &ns) == 0;
        *out += ns;
    }
    return known;
}

static int replay(struct kv_context *x, const struct place *place, double *agent_ns,
                  double *seconds)
{
    struct proc prefill = {.pid = 0}, decode = {.pid = 0};
    struct proc *both[2] = {&prefill, &decode};
    uint64_t before = 0, after = 0, start;
    bool known;
    int rc;

    rc = proc_start(&prefill, "prefill", kv_prefill_main, x);
    if (rc == 0)
        rc = proc_start(&decode, "decode", kv_decode_main, x);
    for (unsigned i = 0; rc == 0 && i < 2; i++)
        rc = await_byte(both[i]);
    if (rc != 0)
        goto out;
    known = agents_ns(x, place, &before);
    start = clock_ns();
    for (unsigned i = 0; rc == 0 && i < 2; i++)
        rc = proc_send(both[i]->fd, "G", 1);
    if (rc == 0)
        rc = await_end(both, x);
    *seconds = (double)(clock_ns() - start) / 1e9;
    known = known && agents_ns(x, place, &after);
    *agent_ns = known ? (double)(after - before) : -1;
out:
    for (unsigned i = 0; i < 2; i++) {
        if (rc != 0)
            proc_kill(both[i]);
        else
            rc = proc_stop(both[i]);
    }
    return rc;
}

static int read_trace(const struct kv_options *o, struct kv_trace *out)
{
    size_t max = o->requests != 0 ? o->requests : SIZE_MAX;
    char error[256] = "out of memory";
    FILE *f;
    int rc;

    if (o->trace == NULL) {
        rc = kv_trace_generate(o->requests != 0 ? o->requests : REQUESTS_DEFAULT, out);
        return rc == 0 ? 0 : say_error(rc, "no trace: %s", error);
    }
    f = fopen(o->trace, "re");
    if (f == NULL)
        return say_error(-errno, "--trace %s: %m", o->trace);
    rc = kv_trace_load(f, max, out, error, sizeof(error));
    fclose(f);
    return rc == 0 ? 0 : say_error(rc, "--trace %s: %s", o->trace, error);
}

/* How many blocks decode holds: what fits the default size, but two rounds of the longest. */
static int size_cache(const struct kv_options *o, struct kv_context *x)
{
    uint64_t block = x->model.layers * x->model.layer_bytes;
    uint64_t count = o->cache_blocks;

    if (count == 0) {
        uint64_t least = (uint64_t)x->trace.longest * (x->in_flight + 1);

        count = CACHE_BYTES / block;
        if (count > x->trace.blocks)
            count = x->trace.blocks;
        if (count < least)
            count = least;
        if (count == 0)
            count = 1;
    }
    if (count < x->trace.longest)
        return say_error(-EINVAL,
                         "--cache-blocks %llu: the longest request has %u blocks, which "
                         "all must fit",
                         (unsigned long long)count, x->trace.longest);
    x->cache_blocks = (uint32_t)count;
    return 0;
}

static int start_one(const struct kv_options *o, uint64_t pool, struct kv_context *x,
                     struct place *place)
{
    struct agent_options ao = {.socket = o->common.socket,
                               .program = o->common.mcshmd,
                               .busy = o->busy,
                               .pool_size = pool,
                               .settings = o->settings};
    int rc = pin_choose(&x->engines);

    if (rc != 0)
        return say_error(rc, "cannot tell which cores are allowed: %s", strerror(-rc));
    ao.core = x->engines.engine;
    if (ao.socket != NULL)
        x->engines.engine = -1;
    rc = agent_start(&ao, &place->one);
    x->decode_socket = x->prefill_socket = place->one.socket;
    snprintf(x->decode_peer, sizeof(x->decode_peer), "%s", x->decode);
    snprintf(x->prefill_peer, sizeof(x->prefill_peer), "%s", x->prefill);
    return rc;
}

/* Prefill on host 0, decode on host 1. */
static int start_two(const struct kv_options *o, uint64_t pool, struct kv_context *x,
                     struct place *place)
{
    struct pair_options po = {.program = o->common.mcshmd,
                              .pool_size = pool,
                              .busy = o->busy,
                              .rails = (unsigned)o->rails,
                              .checksum = true,
                              .rdma = o->wire.rdma,
                              .settings = o->settings};
    int rc = wire_asked(&o->wire) ? wire_open(&o->wire, (unsigned)o->rails, &place->hosts)
                                  : hosts_open(&place->hosts, (unsigned)o->rails, o->congestion);

    if (rc != 0)
        return rc;
    rc = pair_start(&po, &place->hosts, &place->pair);
    if (rc != 0) {
        hosts_close(&place->hosts);
        return rc;
    }
    x->engines = place->pair.cores;
    x->prefill_socket = place->pair.agent[0].socket;
    x->decode_socket = place->pair.agent[1].socket;
    pair_name(&place->hosts, 0, x->prefill, x->prefill_peer, sizeof(x->prefill_peer));
    pair_name(&place->hosts, 1, x->decode, x->decode_peer, sizeof(x->decode_peer));
    place->one = place->pair.agent[1]; /* what is printed of it */
    memcpy(place->one.pages_note, place->pair.pages_note, sizeof(place->one.pages_note));
    return 0;
}

static void stop_place(const struct kv_context *x, struct place *place)
{
    if (x->hosts == HOSTS) {
        pair_stop(&place->pair);
        hosts_close(&place->hosts);
    } else {
        agent_stop(&place->one);
    }
}

static int check_path(const struct kv_shared *s, mcshm_path wanted)
{
    uint64_t others = 0;

    for (unsigned i = 0; i < KV_PATHS; i++)
        if (i != wanted)
            others += s->path_tasks[i];
    return others == 0 ? 0
                       : say_error(-EIO, "kv: %llu tasks did not go over %s",
                                   (unsigned long long)others, mcshm_path_name(wanted));
}

static int run(const struct kv_options *o, struct kv_context *x)
{
    uint64_t block = x->model.layers * x->model.layer_bytes;
    bool gpu = location_is_gpu(o->location);
    uint64_t pool =
        gpu ? GPU_POOL : block * (x->cache_blocks + (uint64_t)x->trace.longest * x->in_flight);
    size_t shared_size = sizeof(*x->shared) + x->trace.count * sizeof(double);
    struct place place;
    double agent_ns = -1, seconds = 0;
    int rc;

    x->shared = mmap(NULL, shared_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (x->shared == MAP_FAILED)
        return say_error(-errno, "no memory for results: %m");
    snprintf(x->decode, sizeof(x->decode), "mcshm-bench-decode-%d", (int)getpid());
    snprintf(x->prefill, sizeof(x->prefill), "mcshm-bench-prefill-%d", (int)getpid());
    rc = x->hosts == HOSTS ? start_two(o, pool, x, &place) : start_one(o, pool, x, &place);
    if (rc != 0)
        goto out;
    rc = replay(x, &place, &agent_ns, &seconds);
    stop_place(x, &place);
    if (rc == 0)
        rc = kv_print(o, &place.one, x, agent_ns, seconds);
    if (rc == 0 && o->wire.rdma)
        rc = check_path(x->shared, MCSHM_PATH_RDMA);
    if (rc == 0 && gpu && x->hosts == 1)
        rc = check_path(x->shared, MCSHM_PATH_CUDA);
    if (rc == 0 && x->shared->mismatches > 0)
        rc = say_error(-EIO, "kv: what arrived is not what was sent");
    else if (rc == 0 && x->shared->verified_bytes != x->shared->bytes)
        rc = say_error(-EIO, "kv: not every byte that moved was checked");
out:
    munmap(x->shared, shared_size);
    return rc;
}

static int parse_scale(const char *text, double *out)
{
    double top, bottom;
    char rest;

    if (sscanf(text, "%lf/%lf%c", &top, &bottom, &rest) == 2 && bottom > 0)
        *out = top / bottom;
    else if (sscanf(text, "%lf%c", &top, &rest) == 1)
        *out = top;
    else
        *out = -1;
    if (*out > 0 && *out <= 1)
        return 0;
    return say_error(-EINVAL, "--scale %s: expected a number or a fraction above 0, at most 1",
                     text);
}

static void help(void)
{
    printf(
        "mcshm-bench kv: a prefill and a decode process replay a trace of requests. Prefill\n"
        "writes the KV blocks that decode does not hold, layer by layer; decode checks every\n"
        "byte. The trace's timestamps are not kept: requests follow each other at once.\n"
        "\n"
        "  --trace FILE      JSON lines with timestamp, input_length, output_length, hash_ids\n"
        "                    (one hash id: one block of 512 tokens); default: generated\n"
        "  --requests N      of the trace; default: all of a file, 200 of a generated one\n"
        "  --model NAME      llama3-8b (default), llama3-70b, deepseek-v3, or bytes=N a block\n"
        "  --scale F         bytes of a block by this factor, such as 1/16; default 1/64\n"
        "  --cache-blocks N  blocks that decode holds; default: 512 MiB, or more for long ones\n"
        "  --inflight N      requests under way at a time, 1 to 16; default 1\n"
        "  --idle MODE       of a private agent's engine: sleep (default) or busy\n"
        "  --hosts N         2: prefill's agent and decode's each in a network namespace of its\n"
        "                    own, which takes root; default 1: one agent for both\n"
        "  --rails N         links between two hosts, 1 to 8; default 1\n"
        "  --congestion NAME of two hosts' TCP: reno (default), bbr, cubic\n"
        "  --set S.K=V       a key of both agents' configuration, with --hosts 2; may be given "
        "often\n"
        "  --location WHERE  of both caches: cpu (default), cpu:N (NUMA node) or cuda:N, a GPU's\n"
        "                    memory, which is checked after copying it back\n"
        "  --order HOW       with a GPU: synced (default), prefill waits for its stream and then\n"
        "                    submits; gate: it submits, and the tasks wait for the stream\n"
        "  --fake-cuda       on the double of tests/fake-cuda: says nothing of a GPU's speed\n"
        "%s"
        "%s",
        WIRE_HELP, OPTIONS_COMMON_HELP);
}

static int check_location(const struct kv_options *o)
{
    bool gpu = location_is_gpu(o->location);
    struct mcs_gpu_id id;
    int ordinal;

    if (o->location != NULL && strncmp(o->location, "cpu", 3) != 0 &&
        location_parse(o->location, &ordinal, &id) != 0)
        return say_error(-EINVAL, "--location %s: expected cpu, cpu:N, cuda:N or cuda:GPU-...",
                         o->location);
    if (!gpu && (o->fake || o->gates))
        return say_error(-EINVAL, "kv: --fake-cuda and --order gate go with --location cuda:N");
    return 0;
}

static int parse(int argc, char **argv, struct kv_options *o)
{
    enum {
        TRACE = OPTION_OWN,
        REQUESTS,
        MODEL,
        SCALE,
        CACHE,
        IN_FLIGHT,
        IDLE,
        N_HOSTS,
        RAILS,
        CONGESTION,
        SET,
        LOCATION,
        ORDER,
        FAKE
    };
    static const struct option known[] = {{"trace", required_argument, NULL, TRACE},
                                          {"requests", required_argument, NULL, REQUESTS},
                                          {"model", required_argument, NULL, MODEL},
                                          {"scale", required_argument, NULL, SCALE},
                                          {"cache-blocks", required_argument, NULL, CACHE},
                                          {"inflight", required_argument, NULL, IN_FLIGHT},
                                          {"idle", required_argument, NULL, IDLE},
                                          {"hosts", required_argument, NULL, N_HOSTS},
                                          {"rails", required_argument, NULL, RAILS},
                                          {"congestion", required_argument, NULL, CONGESTION},
                                          {"set", required_argument, NULL, SET},
                                          {"location", required_argument, NULL, LOCATION},
                                          {"order", required_argument, NULL, ORDER},
                                          {"fake-cuda", no_argument, NULL, FAKE},
                                          WIRE_LONG,
                                          OPTIONS_COMMON_LONG,
                                          {NULL, 0, NULL, 0}};
    int option, rc = 0;

    while (rc == 0 && (option = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        if (options_take(option, &o->common) || wire_take(option, &o->wire, &rc))
            continue;
        switch (option) {
        case TRACE:
            o->trace = optarg;
            break;
        case REQUESTS:
            rc = options_count("requests", optarg, 1, 100000000, &o->requests);
            break;
        case MODEL:
            o->model = optarg;
            break;
        case SCALE:
            rc = parse_scale(optarg, &o->scale);
            break;
        case CACHE:
            rc = options_count("cache-blocks", optarg, 1, 1u << 30, &o->cache_blocks);
            break;
        case IN_FLIGHT:
            rc = options_count("inflight", optarg, 1, 16, &o->in_flight);
            break;
        case IDLE:
            o->busy = strcmp(optarg, "busy") == 0;
            if (!o->busy && strcmp(optarg, "sleep") != 0)
                rc = say_error(-EINVAL, "--idle %s: expected sleep or busy", optarg);
            break;
        case N_HOSTS:
            rc = options_count("hosts", optarg, 1, HOSTS, &o->hosts);
            break;
        case RAILS:
            rc = options_count("rails", optarg, 1, HOSTS_RAILS_MAX, &o->rails);
            break;
        case CONGESTION:
            o->congestion = optarg;
            break;
        case SET:
            rc = options_setting(optarg, o->settings, sizeof(o->settings));
            break;
        case LOCATION:
            o->location = optarg;
            break;
        case ORDER:
            o->gates = strcmp(optarg, "gate") == 0;
            if (!o->gates && strcmp(optarg, "synced") != 0)
                rc = say_error(-EINVAL, "--order %s: expected synced or gate", optarg);
            break;
        case FAKE:
            o->fake = true;
            break;
        case 'h':
            help();
            return 1;
        default:
            return -EINVAL; /* getopt has named it */
        }
    }
    if (rc == 0 && o->hosts == HOSTS && o->common.socket != NULL)
        rc = say_error(-EINVAL, "kv: --hosts 2 starts two agents and goes without --socket");
    if (rc == 0 && o->hosts != HOSTS && (wire_asked(&o->wire) || o->settings[0] != '\0'))
        rc = say_error(-EINVAL,
                       "kv: --transport rdma, devices, addresses and --set go with --hosts 2");
    if (rc == 0)
        rc = check_location(o);
    return rc != 0 ? rc : options_end("kv", argc, argv);
}

/* Its agents must have it, too. */
static int prepare_device(struct kv_options *o)
{
    int rc = device_probe(o->location, &o->device);

    return rc != 0 ? rc : options_setting("gpu.enable=require", o->settings, sizeof(o->settings));
}

int kv_command(int argc, char **argv)
{
    struct kv_options options = {
        .model = "llama3-8b", .in_flight = 1, .hosts = 1, .rails = 1, .congestion = "reno"};
    struct kv_context context = {.hosts = 1};
    char error[256];
    int rc = parse(argc, argv, &options);

    if (rc != 0)
        return rc > 0 ? 0 : rc;
    if (options.fake)
        rc = device_take_double(argc, argv);
    if (rc == 0 && location_is_gpu(options.location))
        rc = prepare_device(&options);
    if (rc != 0)
        return rc;
    if (kv_model_parse(options.model, options.scale, &context.model, error, sizeof(error)) != 0)
        return say_error(-EINVAL, "--model: %s", error);
    rc = read_trace(&options, &context.trace);
    if (rc != 0)
        return rc;
    context.in_flight = (uint32_t)options.in_flight;
    context.hosts = (unsigned)options.hosts;
    context.location = options.location;
    context.gates = options.gates;
    rc = size_cache(&options, &context);
    if (rc == 0)
        rc = run(&options, &context);
    kv_trace_free(&context.trace);
    return rc;
}
