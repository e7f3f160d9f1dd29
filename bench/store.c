/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process is the client, on the client core; the agent's engine polls on the engine core, as do the peers' servers
 * afterwards. One after the other: nothing else runs while something is measured.
 */
#include "store.h"

#include "say.h"
#include "store_remote.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    OPTION_SIZES = OPTION_OWN,
    OPTION_BATCHES,
    OPTION_SECONDS,
    OPTION_MOST,
    OPTION_KEYS,
    OPTION_MOONCAKE,
    OPTION_NO_REMOTE,
    OPTION_NO_PEERS
};

static void help(void)
{
    fputs("mcshm-bench store: put, get, get in place, exist and prefix, on one host and between "
          "two,\n"
          "beside redis-server, memcached and Mooncake Store; and the directory by itself.\n"
          "\n"
          "  --sizes LIST      of objects; default 4K,64K,1M,16M\n"
          "  --batches LIST    keys of a request; default 1,64,1024,65536\n"
          "  --most BYTES      of one request: rows beyond are left out; default 256M\n"
          "  --seconds S       of one row; default 0.3\n"
          "  --directory-keys N    default 10000000\n"
          "  --no-remote       one host alone\n"
          "  --no-peers        without redis-server, memcached and Mooncake Store\n"
          "  --mooncake DIR    the virtual environment with Mooncake Store; default: the "
          "environment's\n"
          "                    MOONCAKE\n" OPTIONS_COMMON_HELP,
          stdout);
}

static int take_list(const char *name, const char *text, uint64_t max, uint64_t *out, unsigned *n)
{
    *n = 0;
    while (*text != '\0') {
        uint64_t value;
        const char *end = options_bytes(text, &value);

        if (end == NULL || value == 0 || value > max || (*end != '\0' && *end != ','))
            return say_error(-EINVAL, "%s %s: want numbers of 1 to %llu, parted by commas", name,
                             text, (unsigned long long)max);
        if (*n == STORE_SIZES_MAX)
            return say_error(-EINVAL, "%s: at most %u of them", name, STORE_SIZES_MAX);
        out[(*n)++] = value;
        text = *end == ',' ? end + 1 : end;
    }
    return *n != 0 ? 0 : say_error(-EINVAL, "%s: want at least one number", name);
}

static int take_option(int option, struct store_options *o)
{
    const char *end;

    switch (option) {
    case OPTION_SIZES:
        return take_list("--sizes", optarg, UINT64_C(1) << 30, o->sizes, &o->nsizes);
    case OPTION_BATCHES:
        return take_list("--batches", optarg, MCSHM_KEYS_MAX, o->batches, &o->nbatches);
    case OPTION_SECONDS:
        return options_real("--seconds", optarg, 0.001, 60, &o->seconds);
    case OPTION_KEYS:
        return options_count("--directory-keys", optarg, 1024, 1000000000, &o->directory_keys);
    case OPTION_MOST:
        end = options_bytes(optarg, &o->most);
        return end != NULL && *end == '\0' && o->most >= 1u << 20 && o->most <= UINT64_C(1) << 36
                   ? 0
                   : say_error(-EINVAL, "--most %s: want 1M to 64G", optarg);
    case OPTION_MOONCAKE:
        o->mooncake = optarg;
        return 0;
    case OPTION_NO_REMOTE:
        o->no_remote = true;
        return 0;
    case OPTION_NO_PEERS:
        o->no_peers = true;
        return 0;
    default:
        return options_take(option, &o->common) ? 0 : -EINVAL;
    }
}

static int parse(int argc, char **argv, struct store_options *o)
{
    static const struct option longs[] = {{"sizes", required_argument, NULL, OPTION_SIZES},
                                          {"batches", required_argument, NULL, OPTION_BATCHES},
                                          {"most", required_argument, NULL, OPTION_MOST},
                                          {"seconds", required_argument, NULL, OPTION_SECONDS},
                                          {"directory-keys", required_argument, NULL, OPTION_KEYS},
                                          {"mooncake", required_argument, NULL, OPTION_MOONCAKE},
                                          {"no-remote", no_argument, NULL, OPTION_NO_REMOTE},
                                          {"no-peers", no_argument, NULL, OPTION_NO_PEERS},
                                          OPTIONS_COMMON_LONG,
                                          {NULL, 0, NULL, 0}};
    int option, rc;

    while ((option = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        if (option == 'h') {
            help();
            return 1;
        }
        rc = take_option(option, o);
        if (rc != 0)
            return rc;
    }
    rc = options_end("store", argc, argv);
    for (unsigned i = 0; rc == 0 && i < o->nsizes; i++)
        if (o->sizes[i] < 8 || o->sizes[i] > o->most)
            rc = say_error(-EINVAL, "--sizes: %llu: want 8 to --most, %llu",
                           (unsigned long long)o->sizes[i], (unsigned long long)o->most);
    return rc;
}

/* Keys of the largest request that is made. */
static uint64_t most_keys(const struct store_options *o)
{
    uint64_t most = 1;

    for (unsigned i = 0; i < o->nsizes; i++)
        for (unsigned b = 0; b < o->nbatches; b++)
            if (o->batches[b] > most && o->sizes[i] * o->batches[b] <= o->most)
                most = o->batches[b];
    return most;
}

/* Room for what one request puts, twice, and some for holes. */
static uint64_t store_size(const struct store_options *o)
{
    return (2 * o->most + (UINT64_C(256) << 20)) & ~((UINT64_C(64) << 20) - 1);
}

static int run_local(const struct store_options *o, const struct pin_cores *cores, struct agent *a,
                     struct store_figures *f)
{
    char settings[256];
    struct agent_options ao = {.socket = o->common.socket,
                               .program = o->common.mcshmd,
                               .core = cores->engine,
                               .busy = true,
                               .pool_size = o->most + (UINT64_C(64) << 20),
                               .settings = settings};
    struct store_client *k = NULL;
    struct store_driver d;
    int rc;

    snprintf(settings, sizeof(settings), "[store]\nsize = %lluM\nobjects = %llu\nmaster = off\n",
             (unsigned long long)(store_size(o) >> 20),
             (unsigned long long)(2 * most_keys(o) + 1000));
    rc = agent_start(&ao, a);
    if (rc != 0)
        return rc;
    pin_to(cores->client);
    rc = store_client_open(a->socket, o->most, most_keys(o), NULL, &a->pid, a->pid != 0, &k);
    if (rc == 0) {
        f->page_size = store_client_page_size(k);
        f->ring_rtt_ns = store_client_rtt(k, o->seconds);
        store_client_drive(k, false, &d);
        rc = store_measure(o, &d, &f->ours);
    }
    store_client_close(k);
    return rc;
}

static int run_peers(const struct store_options *o, const struct pin_cores *cores,
                     struct store_figures *f)
{
    uint8_t *buffer = mmap(NULL, o->most, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    int rc = 0;

    if (buffer == MAP_FAILED)
        return say_error(-errno, "no memory for what peers put and get: %m");
    memset(buffer, 1, o->most);
    for (unsigned i = 0; rc == 0 && i < STORE_PEERS; i++) {
        rc = store_peer(i, o, cores, buffer, &f->peers[i]);
        f->peer_there[i] = rc == 0;
        if (rc == -ENOENT)
            rc = 0;
    }
    munmap(buffer, o->most);
    if (rc == 0) {
        rc = store_mooncake(o, cores, &f->mooncake);
        f->mooncake_there = rc == 0;
        if (rc == -ENOENT)
            rc = 0;
    }
    return rc;
}

int store_command(int argc, char **argv)
{
    static struct store_figures f = {.ring_rtt_ns = NAN};
    struct store_options o = {.sizes = {4u << 10, 64u << 10, 1u << 20, 16u << 20},
                              .batches = {1, 64, 1024, 65536},
                              .nsizes = 4,
                              .nbatches = 4,
                              .seconds = 0.3,
                              .most = UINT64_C(256) << 20,
                              .directory_keys = 10000000,
                              .mooncake = getenv("MOONCAKE")};
    struct pin_cores cores;
    cpu_set_t all;
    struct agent agent, described;
    int rc = parse(argc, argv, &o);

    if (rc != 0)
        return rc > 0 ? 0 : rc;
    rc = pin_pair("store", &cores);
    if (rc != 0)
        return rc;
    sched_getaffinity(0, sizeof(all), &all);
    rc = run_local(&o, &cores, &agent, &f);
    described = agent;
    agent_stop(&agent);
    if (rc == 0 && !o.no_peers)
        rc = run_peers(&o, &cores, &f);
    sched_setaffinity(0, sizeof(all), &all); /* agents of hosts choose their cores themselves */
    if (rc == 0 && o.no_remote)
        f.no_remote = "not wanted";
    else if (rc == 0)
        rc = store_remote(&o, store_size(&o), most_keys(&o), &f.ours, &f.no_remote);
    if (rc == 0)
        rc = store_directory(o.directory_keys, o.seconds, &f.directory);
    return rc != 0 ? rc : store_print(&o, &described, &cores, &f);
}
