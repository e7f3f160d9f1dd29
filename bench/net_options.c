/* SPDX-License-Identifier: Apache-2.0 */
#include "net_options.h"

#include "net_idle.h"
#include "say.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_MIN UINT64_C(64)
#define SIZE_MAX_NET (UINT64_C(1) << 30)
#define BATCH_MAX 4096u

int net_options_list(const char *name, const char *text, uint64_t min, uint64_t max,
                     struct net_list *out)
{
    const char *all = text;

    out->count = 0;
    while (*text != '\0') {
        uint64_t value = 0;
        const char *end = options_bytes(text, &value);

        if (end == NULL || (*end != ',' && *end != '\0') || value < min || value > max)
            return say_error(-EINVAL,
                             "--%s %s: expected numbers from %" PRIu64 " to %" PRIu64
                             " (K, M and G count), parted by commas",
                             name, all, min, max);
        if (out->count == NET_LIST_MAX)
            return say_error(-EINVAL, "--%s: at most %u of them", name, NET_LIST_MAX);
        out->value[out->count++] = value;
        text = *end == ',' ? end + 1 : end;
    }
    return out->count > 0 ? 0 : say_error(-EINVAL, "--%s: give at least one", name);
}

static int parse_checksum(const char *text, struct net_list *out)
{
    out->count = 1;
    out->value[0] = strcmp(text, "off") != 0;
    if (strcmp(text, "both") == 0) {
        out->count = 2;
        out->value[1] = 0;
    } else if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0) {
        return say_error(-EINVAL, "--checksum %s: expected on, off or both", text);
    }
    return 0;
}

static int parse_operations(const char *text, struct net_options *o)
{
    o->read = strcmp(text, "read") == 0 || strcmp(text, "both") == 0;
    o->write = strcmp(text, "write") == 0 || strcmp(text, "both") == 0;
    return o->read || o->write ? 0
                               : say_error(-EINVAL, "--op %s: expected read, write or both", text);
}

static int parse_bytes(const char *name, const char *text, uint64_t *out)
{
    const char *end = options_bytes(text, out);

    if (end == NULL || *end != '\0' || *out < (1u << 20))
        return say_error(-EINVAL, "--%s %s: expected a number of bytes from 1M", name, text);
    return 0;
}

static void help(void)
{
    printf(
        "mcshm-bench net: READ and WRITE between two hosts. By default the hosts are two\n"
        "network namespaces that this program makes (as root), with an agent in each; iperf3,\n"
        "UCX and Mooncake run beside it over the same link. All bytes are checked.\n"
        "\n"
        "  --op OP           read, write or both (default)\n"
        "  --sizes LIST      of a task; default 4K,64K,1M,16M,64M; multiples of 64\n"
        "  --batch LIST      tasks submitted together; default 1,32,128\n"
        "  --clients LIST    processes at a time; default 1,2\n"
        "  --rails LIST      links that carry data, up to 8; default 1,4\n"
        "  --checksum C      on (default), off or both\n"
        "  --congestion NAME of both hosts' TCP: reno (default), bbr, cubic\n"
        "  --seconds S       length of one measurement, 0.001 to 60; default 0.15\n"
        "  --rounds N        of each row, 1 to 64; default 3; results are medians\n"
        "  --idle MODE       of the agents' engines: sleep (default) or busy\n"
        "  --set S.K=V       a key of both agents' configuration; may be given often\n"
        "  --no-rivals       leave iperf3, UCX and Mooncake out\n"
        "  --mooncake DIR    the virtual environment with Mooncake's transfer_engine_bench;\n"
        "                    default: the environment's MOONCAKE\n"
        "  --no-failover     do not cut and slow rails\n"
        "  --register N      bytes that are registered with --transport rdma; default: what\n"
        "                    fits, at most 4G\n"
        "  --idle-peers N    also measure what 2 to %u idle peers cost\n"
        "  --peer H:P/NAME   another host's segment, through the agent at --socket\n"
        "  --serve NAME      be the other side of --peer, at the agent at --socket\n"
        "  --bytes N         its buffer; default 256M\n"
        "%s"
        "With --transport rdma the sizes, batches, clients and seconds have other defaults, and\n"
        "perftest runs beside it instead; see bench/README.md.\n"
        "%s",
        NET_PEERS_MAX, WIRE_HELP, OPTIONS_COMMON_HELP);
}

static void set_defaults(struct net_options *o)
{
    *o = (struct net_options){
        .sizes = {{4u << 10, 64u << 10, 1u << 20, 16u << 20, 64u << 20}, 5},
        .batches = {{1, 32, 128}, 3},
        .clients = {{1, 2}, 2},
        .rails = {{1, 4}, 2},
        .checksums = {{1}, 1},
        .read = true,
        .write = true,
        .seconds = 0.15,
        .rounds = 3,
        .congestion = "reno",
        .serve_bytes = NET_IN_FLIGHT_MAX,
        .rivals = true,
        .failover = true,
        .mooncake = getenv("MOONCAKE"),
    };
}

/* An emulated machine with software devices has its result in a few minutes. */
static void set_rdma_defaults(const struct net_options *plain, struct net_options *o)
{
    if (memcmp(&o->sizes, &plain->sizes, sizeof(o->sizes)) == 0)
        o->sizes = (struct net_list){{64u << 10, 256u << 10, 1u << 20, 8u << 20}, 4};
    if (memcmp(&o->batches, &plain->batches, sizeof(o->batches)) == 0)
        o->batches.count = 0; /* so many that 16 MiB are in flight */
    if (memcmp(&o->rails, &plain->rails, sizeof(o->rails)) == 0)
        o->rails = (struct net_list){{1, 2}, 2};
    if (o->seconds == plain->seconds)
        o->seconds = 1;
}

static int check(const struct net_options *o)
{
    for (unsigned i = 0; i < o->sizes.count; i++)
        if (o->sizes.value[i] % SIZE_MIN != 0)
            return say_error(-EINVAL, "--sizes: %" PRIu64 " is no multiple of %" PRIu64,
                             o->sizes.value[i], SIZE_MIN);
    if (wire_asked(&o->wire) && (o->peer != NULL || o->serve != NULL || o->idle_peers > 0))
        return say_error(-EINVAL,
                         "net: --transport rdma, --devices-a, --devices-b, --address-a and "
                         "--address-b go without --peer, --serve and --idle-peers");
    if (o->common.socket != NULL && o->peer == NULL && o->serve == NULL)
        return say_error(-EINVAL, "net: --socket goes with --peer or --serve; without them two "
                                  "agents are started");
    return 0;
}

int net_options_parse(int argc, char **argv, struct net_options *o)
{
    enum {
        OP = OPTION_OWN,
        SIZES,
        BATCH,
        CLIENTS,
        RAILS,
        CHECKSUM,
        CONGESTION,
        SECONDS,
        ROUNDS,
        IDLE,
        SET,
        NO_RIVALS,
        MOONCAKE,
        NO_FAILOVER,
        REGISTER,
        IDLE_PEERS,
        PEER,
        SERVE,
        BYTES
    };
    static const struct option known[] = {{"op", required_argument, NULL, OP},
                                          {"sizes", required_argument, NULL, SIZES},
                                          {"batch", required_argument, NULL, BATCH},
                                          {"clients", required_argument, NULL, CLIENTS},
                                          {"rails", required_argument, NULL, RAILS},
                                          {"checksum", required_argument, NULL, CHECKSUM},
                                          {"congestion", required_argument, NULL, CONGESTION},
                                          {"seconds", required_argument, NULL, SECONDS},
                                          {"rounds", required_argument, NULL, ROUNDS},
                                          {"idle", required_argument, NULL, IDLE},
                                          {"set", required_argument, NULL, SET},
                                          {"no-rivals", no_argument, NULL, NO_RIVALS},
                                          {"mooncake", required_argument, NULL, MOONCAKE},
                                          {"no-failover", no_argument, NULL, NO_FAILOVER},
                                          {"register", required_argument, NULL, REGISTER},
                                          {"idle-peers", required_argument, NULL, IDLE_PEERS},
                                          {"peer", required_argument, NULL, PEER},
                                          {"serve", required_argument, NULL, SERVE},
                                          {"bytes", required_argument, NULL, BYTES},
                                          WIRE_LONG,
                                          OPTIONS_COMMON_LONG,
                                          {NULL, 0, NULL, 0}};
    struct net_options plain;
    int option, rc = 0;

    set_defaults(o);
    plain = *o;
    while (rc == 0 && (option = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        if (options_take(option, &o->common) || wire_take(option, &o->wire, &rc))
            continue;
        switch (option) {
        case OP:
            rc = parse_operations(optarg, o);
            break;
        case SIZES:
            rc = net_options_list("sizes", optarg, SIZE_MIN, SIZE_MAX_NET, &o->sizes);
            break;
        case BATCH:
            rc = net_options_list("batch", optarg, 1, BATCH_MAX, &o->batches);
            break;
        case CLIENTS:
            rc = net_options_list("clients", optarg, 1, NET_CLIENTS_MAX, &o->clients);
            break;
        case RAILS:
            rc = net_options_list("rails", optarg, 1, HOSTS_RAILS_MAX, &o->rails);
            break;
        case CHECKSUM:
            rc = parse_checksum(optarg, &o->checksums);
            break;
        case CONGESTION:
            o->congestion = optarg;
            break;
        case SECONDS:
            rc = options_real("seconds", optarg, 0.001, 60, &o->seconds);
            break;
        case ROUNDS:
            rc = options_count("rounds", optarg, 1, STATS_ROUNDS_MAX, &o->rounds);
            break;
        case IDLE:
            o->busy = strcmp(optarg, "busy") == 0;
            if (!o->busy && strcmp(optarg, "sleep") != 0)
                rc = say_error(-EINVAL, "--idle %s: expected sleep or busy", optarg);
            break;
        case SET:
            rc = options_setting(optarg, o->settings, sizeof(o->settings));
            break;
        case NO_RIVALS:
            o->rivals = false;
            break;
        case MOONCAKE:
            o->mooncake = optarg;
            break;
        case NO_FAILOVER:
            o->failover = false;
            break;
        case REGISTER:
            rc = parse_bytes("register", optarg, &o->register_bytes);
            break;
        case IDLE_PEERS:
            rc = options_count("idle-peers", optarg, 2, NET_PEERS_MAX, &o->idle_peers);
            break;
        case PEER:
            o->peer = optarg;
            break;
        case SERVE:
            o->serve = optarg;
            break;
        case BYTES:
            rc = parse_bytes("bytes", optarg, &o->serve_bytes);
            break;
        case 'h':
            help();
            return 1;
        default:
            return -EINVAL; /* getopt has named it */
        }
    }
    if (rc == 0)
        rc = options_end("net", argc, argv);
    if (rc == 0 && o->wire.rdma)
        set_rdma_defaults(&plain, o);
    return rc != 0 ? rc : check(o);
}
