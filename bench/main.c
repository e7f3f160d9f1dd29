/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"
#include "cleanup.h"
#include "copy.h"
#include "gpu.h"
#include "kv.h"
#include "net.h"
#include "restart.h"
#include "ring.h"
#include "say.h"
#include "share.h"
#include "store.h"

#include <mcshm.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {{"ring", ring_command},   {"copy", copy_command},   {"kv", kv_command},
                {"net", net_command},     {"share", share_command}, {"restart", restart_command},
                {"cache", cache_command}, {"store", store_command}, {"gpu", gpu_command}};

static void help(FILE *out)
{
    fputs("mcshm-bench: measures mcshm on this host and between two\n"
          "\n"
          "  mcshm-bench ring      small transfers: round trip, rate, what idle clients cost\n"
          "  mcshm-bench copy      4 KiB to 256 MiB, contiguous, list and stride, beside memcpy\n"
          "  mcshm-bench kv        a prefill and a decode process replay a trace of requests\n"
          "  mcshm-bench net       READ and WRITE between two hosts, beside iperf3, UCX, Mooncake\n"
          "  mcshm-bench share     who gets how much of an engine; a small task beside a flood\n"
          "  mcshm-bench restart   what clients see of an agent that is killed or restarted\n"
          "  mcshm-bench store     objects: put, get, exist, beside redis and memcached; the "
          "directory\n"
          "  mcshm-bench cache     a trace through the store: hits by capacity and policy\n"
          "  mcshm-bench gpu       copies with GPU memory, beside the driver's own calls\n"
          "  mcshm-bench --version\n"
          "\n"
          "Each has --help and --json. They start a private agent unless --socket names one.\n",
          out);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("mcshm-bench %s\n", mcshm_version());
        return 0;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        cleanup_install();
        return commands[i].run(argc - 1, argv + 1) == 0 ? 0 : 1;
    }
    say_error(0,
              "there is no %s; there are ring, copy, kv, net, share, restart, store, cache and gpu",
              argv[1]);
    return 2;
}
