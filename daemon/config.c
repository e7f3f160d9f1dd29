/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <iniparser/iniparser.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "key.h"
#include "rule.h"
#include "store/object/policy.h"
#include "shm/abi.h"
#include "shm/inbox.h"
#include "transports/rdma/gid.h"
#include "transports/rdma/rdma.h"

#define TEXT MCD_KEY_TEXT
#define NUMBER MCD_KEY_NUMBER
#define OCTAL MCD_KEY_OCTAL
#define SIZE MCD_KEY_SIZE
#define CHOICE MCD_KEY_CHOICE

#define K(f) offsetof(struct mcd_config, f)
static const struct mcd_key keys[] = {
    {"agent", "socket", TEXT, K(socket), "/run/mcshm/mcshmd.sock", 1, 107, NULL, "path",
     "Unix socket that clients connect to; its folder is made if it is missing", false},
    {"agent", "socket_mode", OCTAL, K(socket_mode), "0660", 0, 0777, NULL, "octal mode",
     "who may connect: the socket's mode, with the agent's user and group", false},
    {"agent", "unmapped_users", CHOICE, K(unmapped_users), "refuse", 0, 0, "refuse|share", "word",
     "clients whose users the agent's own user namespace does not map, so that they all look the "
     "same to it: refuse them, or make one tenant of them",
     true},
    {"agent", "log_level", CHOICE, K(log_level), "info", 0, 0, "error|warning|info|debug", "word",
     "least severe lines that are written to stderr", true},
    {"agent", "barrier_ms", NUMBER, K(barrier_ms), "200", 0, 60000, NULL, "milliseconds",
     "after a restart: how long clients that are back wait for those that are not, before their "
     "tasks "
     "go on",
     false},
    {"agent", "recovery_s", NUMBER, K(recovery_s), "30", 1, 3600, NULL, "seconds",
     "after a restart: how long a client in another PID namespace may take to come back; others "
     "have "
     "as long as they live",
     false},
    {"pool", "size", SIZE, K(pool_size), "1G", MiB(2), TiB(64), NULL, "bytes",
     "most memory that all clients together may have; taken as they ask for it", true},
    {"pool", "pages", CHOICE, K(pages), "prefer", 0, 0, "prefer|require|off", "word",
     "hugepages: prefer them and say so when there are none, require them, or never use them",
     false},
    {"pool", "page_size", SIZE, K(page_size), "2M", MiB(2), GiB(1), NULL, "bytes",
     "hugepage size: 2M or 1G", false},
    {"pool", "extent_size", SIZE, K(extent_size), "32M", MiB(2), GiB(64), NULL, "bytes",
     "smallest extent (memfd) that is made for a client; small allocations share one", false},
    {"pool", "address_base", SIZE, K(address_base), "32T", GiB(4), TiB(96), NULL, "address",
     "where in the address space extents are placed, in the agent and, if free, in clients", false},
    {"engine", "cores", TEXT, K(cores), "auto", 1, 255, NULL, "list",
     "cores that copy, one engine each, such as 2 or 2,3; auto: the last core allowed", false},
    {"engine", "idle", CHOICE, K(idle), "sleep", 0, 0, "sleep|busy", "word",
     "what an engine without work does: sleep until a client rings, or poll for ever", false},
    {"engine", "spin_us", NUMBER, K(spin_us), "50", 0, 1000000, NULL, "microseconds",
     "how long an idle engine and a waiting client spin before they sleep", true},
    {"engine", "slice", SIZE, K(slice), "256K", KiB(4), MiB(64), NULL, "bytes",
     "most bytes copied for one queue before others get their turn; four times that when none "
     "wants it",
     true},
    {"queue", "depth", NUMBER, K(queue_depth), "1024", MCS_QUEUE_DEPTH_MIN, MCS_QUEUE_DEPTH_MAX,
     NULL, "descriptors", "submission ring of a queue that asks for no size; a power of two", true},
    {"queue", "slots", NUMBER, K(queue_slots), "4096", 1, MCS_QUEUE_SLOTS_MAX, NULL, "tasks",
     "completion slots of a queue that asks for no number", true},
    {"queue", "batches", NUMBER, K(queue_batches), "1024", 1, MCS_QUEUE_BATCHES_MAX, NULL,
     "batches", "batches of a queue that asks for no number", true},
    {"queue", "args_size", SIZE, K(queue_args_size), "512K", KiB(16), MCS_QUEUE_ARGS_MAX, NULL,
     "bytes", "argument area (block lists, notifications) of a queue that asks for no size", true},
    {"queue", "max_per_session", NUMBER, K(queues_per_session), "64", 1, 4096, NULL, "queues",
     "most queues that one session may open", true},
    {"session", "max", NUMBER, K(sessions), "1024", 1, 16384, NULL, "sessions",
     "most sessions at a time", true},
    {"session", "max_allocs", NUMBER, K(max_allocs), "65536", 1, 1u << 26, NULL, "allocations",
     "most allocations that one session may have; each takes some 100 bytes of the agent's own "
     "memory",
     true},
    {"session", "inbox_size", SIZE, K(inbox_size), "256K", MCS_INBOX_SIZE_MIN, MCS_INBOX_SIZE_MAX,
     NULL, "bytes", "notifications that wait for one client; a power of two", true},
    {"local", "caller_max", SIZE, K(caller_max), "64K", 0, TiB(1), NULL, "bytes",
     "largest copy that a client which maps both sides makes in its own thread; 0: none", true},
    {"local", "stream_min", SIZE, K(stream_min), "64K", 0, TiB(1), NULL, "bytes",
     "tasks from this size on are copied past the cache where their target is not in it", true},
    {"peer", "listen", TEXT, K(peer_listen), "off", 1, 255, NULL, "address:port",
     "where other agents connect, for control and data; off: this host alone", false},
    {"peer", "advertise", TEXT, K(peer_advertise), "auto", 1, 255, NULL, "address:port",
     "what others are told to connect to; auto: listen, or with a wildcard the first address of "
     "this "
     "host that others can reach",
     false},
    {"peer", "auth", CHOICE, K(peer_auth), "none", 0, 0, "none|psk|tls", "word",
     "how agents prove who they are; none is refused beyond loopback unless allow_insecure = yes",
     false},
    {"peer", "psk_file", TEXT, K(psk_file), "", 0, 255, NULL, "path",
     "the key that all agents share with auth = psk: 16 to 4096 bytes, not readable by others",
     false},
    {"peer", "tls_cert", TEXT, K(tls_cert), "", 0, 255, NULL, "path",
     "this agent's certificate chain for auth = tls, PEM", false},
    {"peer", "tls_key", TEXT, K(tls_key), "", 0, 255, NULL, "path", "its private key, PEM", false},
    {"peer", "tls_ca", TEXT, K(tls_ca), "", 0, 255, NULL, "path",
     "whose certificates other agents must have, PEM", false},
    {"peer", "allow_insecure", CHOICE, K(allow_insecure), "no", 0, 0, "no|yes", "word",
     "accept auth = none beyond loopback: whoever reaches the port reads and writes published "
     "memory",
     false},
    {"peer", "require_encryption", CHOICE, K(require_encryption), "no", 0, 0, "no|yes", "word",
     "refuse rails that carry data in plain text", false},
    {"peer", "connect_ms", NUMBER, K(connect_ms), "1000", 10, 60000, NULL, "milliseconds",
     "limit of one attempt to connect; a peer that cannot be reached is tried once in such a time",
     true},
    {"peer", "ping_ms", NUMBER, K(ping_ms), "5000", 10, 60000, NULL, "milliseconds",
     "silence on a control connection after which the peer is asked whether it lives", true},
    {"peer", "dead_ms", NUMBER, K(dead_ms), "15000", 100, 600000, NULL, "milliseconds",
     "silence after which a control connection is given up", true},
    {"peer", "down_ms", NUMBER, K(down_ms), "2000", 0, 600000, NULL, "milliseconds",
     "how long tasks wait for a peer without any rail before they end with PEER_UNREACHABLE", true},
    {"peer", "open_ms", NUMBER, K(open_ms), "5000", 10, 600000, NULL, "milliseconds",
     "limit for opening a segment of another host: metadata, connection and answer together", true},
    {"peer", "max", NUMBER, K(peers_max), "1024", 1, 16384, NULL, "peers",
     "most agents that this one is connected with", true},
    {"meta", "backend", CHOICE, K(meta_backend), "memory", 0, 0, "memory|p2p|etcd|http", "word",
     "where segment names are published: in this agent alone, nowhere (names are HOST:PORT/NAME), "
     "in "
     "etcd, or in a metadata server of Mooncake's kind",
     false},
    {"meta", "endpoints", TEXT, K(meta_endpoints), "http://127.0.0.1:2379", 1, 255, NULL, "URLs",
     "etcd: its members, parted by commas; http: the server with its path", false},
    {"meta", "prefix", TEXT, K(meta_prefix), "mcshm", 1, 64, NULL, "text",
     "what keys begin with: one a cluster", false},
    {"meta", "ttl_s", NUMBER, K(meta_ttl_s), "10", 2, 3600, NULL, "seconds",
     "lease of what this agent registers: how long names of a dead host stay taken", false},
    {"meta", "timeout_ms", NUMBER, K(meta_timeout_ms), "3000", 10, 60000, NULL, "milliseconds",
     "limit of one metadata request, retries included", false},
    {"meta", "user", TEXT, K(meta_user), "", 0, 255, NULL, "name", "etcd user; empty: none", false},
    {"meta", "password_file", TEXT, K(meta_password_file), "", 0, 255, NULL, "path",
     "file with the user's password", false},
    {"meta", "ca", TEXT, K(meta_ca), "", 0, 255, NULL, "path",
     "whose certificates the service must have, PEM; empty: the system's", false},
    {"meta", "cert", TEXT, K(meta_cert), "", 0, 255, NULL, "path", "client certificate, PEM",
     false},
    {"meta", "key", TEXT, K(meta_key), "", 0, 255, NULL, "path", "its private key, PEM", false},
    {"tcp", "rails", TEXT, K(tcp_rails), "auto", 1, 255, NULL, "list",
     "local addresses or interfaces that carry data, parted by commas; auto: the listening "
     "address, or "
     "with a wildcard all that are up",
     false},
    {"tcp", "connections", NUMBER, K(tcp_connections), "1", 1, 16, NULL, "connections",
     "of each engine and rail", false},
    {"tcp", "slice", SIZE, K(tcp_slice), "1M", KiB(64), MiB(16), NULL, "bytes",
     "most bytes of a task that one request carries", false},
    {"tcp", "window", SIZE, K(tcp_window), "8M", KiB(256), GiB(1), NULL, "bytes",
     "most bytes under way on one rail of one engine", false},
    {"tcp", "checksum", CHOICE, K(tcp_checksum), "on", 0, 0, "on|off", "word",
     "CRC32C of every slice, checked where it arrives", false},
    {"tcp", "zero_copy_min", SIZE, K(zero_copy_min), "256K", 0, GiB(1), NULL, "bytes",
     "sends from this size on leave the copy to the network card where the kernel can; 0: never",
     false},
    {"rdma", "enable", CHOICE, K(rdma_enable), "auto", 0, 0, "auto|off|require", "word",
     "RDMA devices beside TCP, with [peer] listen: those that are there and work, none, or refuse "
     "to "
     "start without one that is up and refuse memory that cannot be registered",
     false},
    {"rdma", "devices", TEXT, K(rdma_devices), "auto", 1, 255, NULL, "list",
     "devices or ports that are used, such as mlx5_0 mlx5_1/1 rxe*, parted by commas; auto: all",
     false},
    {"rdma", "deny", TEXT, K(rdma_deny), "", 0, 255, NULL, "list",
     "devices or ports that are never used; goes before devices", false},
    {"rdma", "gid_index", TEXT, K(rdma_gid_index), "auto", 1, 5, NULL, "auto or number",
     "entry of each port's GID table, 0 to 255; auto: chosen, `mcshm doctor rdma` tells why",
     false},
    {"rdma", "queue_pairs", NUMBER, K(rdma_queue_pairs), "2", 1, 16, NULL, "queue pairs",
     "of each engine and rail", false},
    {"rdma", "depth", NUMBER, K(rdma_depth), "256", 16, 32768, NULL, "requests",
     "send queue of a queue pair", false},
    {"rdma", "cq_depth", NUMBER, K(rdma_cq_depth), "4096", 16, 1048576, NULL, "completions",
     "completion queue of an engine and device", false},
    {"rdma", "inline", NUMBER, K(rdma_inline), "220", 0, 4096, NULL, "bytes",
     "writes up to this size go with their request, at most what the device can", false},
    {"rdma", "reads", NUMBER, K(rdma_reads), "16", 1, 255, NULL, "requests",
     "RDMA READs under way on one queue pair, at most what both devices can", false},
    {"rdma", "slice", SIZE, K(rdma_slice), "1M", KiB(64), MiB(64), NULL, "bytes",
     "most bytes of a task that one request carries", false},
    {"rdma", "window", SIZE, K(rdma_window), "16M", KiB(256), GiB(1), NULL, "bytes",
     "most bytes under way on one rail of one engine", false},
    {"rdma", "timeout", NUMBER, K(rdma_timeout), "14", 1, 31, NULL, "exponent",
     "local ACK timeout: 4.096 us x 2^timeout until a device sends again; 14 is 67 ms", false},
    {"rdma", "retries", NUMBER, K(rdma_retries), "7", 0, 7, NULL, "times",
     "that a device sends again before its queue pair is given up", false},
    {"rdma", "mtu", CHOICE, K(rdma_mtu), "auto", 0, 0, "auto|256|512|1024|2048|4096", "bytes",
     "largest packet; auto: what both ports can", false},
    {"rdma", "chunk", SIZE, K(rdma_chunk), "1G", MiB(1), TiB(1), NULL, "bytes",
     "most bytes of one registration; a multiple of 1M", false},
    {"rdma", "traffic_class", NUMBER, K(rdma_traffic_class), "0", 0, 255, NULL, "number",
     "of packets: DSCP and ECN bits with RoCE", false},
    {"rdma", "service_level", NUMBER, K(rdma_service_level), "0", 0, 15, NULL, "number",
     "of packets: InfiniBand's lane, the priority with RoCE", false},
    {"rdma", "silent_ms", NUMBER, K(rdma_silent_ms), "1000", 10, 600000, NULL, "milliseconds",
     "without any completion while requests are under way, after which a rail is given up", false},
    {"rdma", "fallback", CHOICE, K(rdma_fallback), "yes", 0, 0, "yes|no", "word",
     "TCP rails carry what no RDMA rail to that peer can; no: it waits for one", false},
    {"gpu", "enable", CHOICE, K(gpu_enable), "auto", 0, 0, "auto|off|require", "word",
     "GPU memory: the driver is loaded when a client first asks for some, never, or at the start, "
     "which fails where there is no driver or no device",
     false},
    {"gpu", "size", SIZE, K(gpu_size), "0", 0, TiB(64), NULL, "bytes",
     "most memory of each device that all clients together may have; 0: all that there is", true},
    {"gpu", "extent_size", SIZE, K(gpu_extent_size), "32M", MiB(2), GiB(64), NULL, "bytes",
     "smallest extent of GPU memory that is made for a client; small allocations share one", false},
    {"gpu", "staging", SIZE, K(gpu_staging), "32M", 0, GiB(4), NULL, "bytes",
     "host memory of an engine, taken when it is first needed, through which GPU memory goes to "
     "and from other hosts where "
     "no network card reaches it; at least 32M; 0: none, and such requests are refused",
     false},
    {"gpu", "streams", NUMBER, K(gpu_streams), "4", 1, 16, NULL, "streams",
     "of each device, that copies are spread over", false},
    {"gpu", "call_s", NUMBER, K(gpu_call_s), "25", 1, 3600, NULL, "seconds",
     "that a request waits for the GPU driver before its client is told so; clients wait 30 s for "
     "an answer, unless they say otherwise",
     true},
    {"mooncake", "listen", TEXT, K(mooncake_listen), "off", 1, 255, NULL, "address:port",
     "where stock Mooncake processes shake hands with this agent; they are not asked who they are "
     "and "
     "reach all public segments; port 0: a free one",
     false},
    {"mooncake", "advertise", TEXT, K(mooncake_advertise), "auto", 1, 255, NULL, "host:port",
     "this agent's name for them; auto: the listening address", false},
    {"mooncake", "metadata", TEXT, K(mooncake_metadata), "P2PHANDSHAKE", 1, 255, NULL, "text",
     "what they were started with: P2PHANDSHAKE, http://host:port/metadata or etcd://host:port",
     false},
    {"mooncake", "cluster", TEXT, K(mooncake_cluster), "", 0, 64, NULL, "text",
     "their MC_METADATA_CLUSTER_ID", false},
    {"mooncake", "connections", NUMBER, K(mooncake_connections), "4", 1, 64, NULL, "connections",
     "of each engine to one of them: its protocol has one request a connection", false},
    {"store", "size", SIZE, K(store_size), "1G", 0, TiB(64), NULL, "bytes",
     "most memory for objects, beside [pool]; taken as it is needed; 0: no objects on this host",
     false},
    {"store", "extent_size", SIZE, K(store_extent_size), "64M", MiB(2), GiB(64), NULL, "bytes",
     "how much is taken at a time; size has at most 768 of them", false},
    {"store", "objects", NUMBER, K(store_objects), "1000000", 1000, 1000000000, NULL, "objects",
     "most objects on this host; each takes 230 to 360 bytes beside its own", false},
    {"store", "policy", TEXT, K(store_policy), "chain", 1, 31, NULL, "word",
     "who is evicted: docs/store.md lists the policies and how they did on traces", false},
    {"store", "high", NUMBER, K(store_high), "97", 10, 100, NULL, "percent",
     "of size: above, eviction begins in the background", true},
    {"store", "low", NUMBER, K(store_low), "94", 5, 100, NULL, "percent", "and ends below", true},
    {"store", "checksum", CHOICE, K(store_checksum), "on", 0, 0, "on|off", "word",
     "CRC32C of every object, taken when it is put or sealed", false},
    {"store", "verify", CHOICE, K(store_verify), "remote", 0, 0, "remote|always|never", "word",
     "when it is checked: on reads from other hosts and from disk, on all, or on none", false},
    {"store", "lease_ms", NUMBER, K(store_lease_ms), "10000", 10, 3600000, NULL, "milliseconds",
     "how long what another host (or a lookup with a lease) was told of stays where it is", true},
    {"store", "holds", NUMBER, K(store_holds), "65536", 1, 16777216, NULL, "objects",
     "most objects that one session reads or fills in place at a time", false},
    {"store", "master", TEXT, K(store_master), "embedded", 1, 255, NULL, "word or host:port",
     "the directory: embedded, this agent may lead it; follow, others do; HOST:PORT, that agent "
     "does, whatever [meta] says; off, no other host's objects",
     false},
    {"store", "keys", NUMBER, K(store_keys), "0", 0, UINT64_C(100000000000), NULL, "keys",
     "most keys that this agent's directory takes while it leads, up to 200 bytes each; 0: as "
     "many as agents hold",
     false},
    {"store", "domain", TEXT, K(store_domain), "", 0, 64, NULL, "text",
     "failure domain, such as a rack: replicas go to different ones; empty: this host is one",
     false},
    {"store", "beat_ms", NUMBER, K(store_beat_ms), "1000", 10, 60000, NULL, "milliseconds",
     "how often agents tell the master that they live", false},
    {"store", "away_ms", NUMBER, K(store_away_ms), "10000", 50, 3600000, NULL, "milliseconds",
     "silence after which nobody waits for that agent; what it alone holds is PEER_UNREACHABLE",
     false},
    {"store", "gone_ms", NUMBER, K(store_gone_ms), "60000", 50, 86400000, NULL, "milliseconds",
     "silence after which its objects count as lost and replicas are made anew", false},
    {"store", "rebuild_ms", NUMBER, K(store_rebuild_ms), "5000", 100, 600000, NULL, "milliseconds",
     "how long a new leader waits for reports of agents that do not come; agents that hear of no "
     "leader for so long lease nothing to others",
     false},
    {"store", "put_ms", NUMBER, K(store_put_ms), "600000", 50, 86400000, NULL, "milliseconds",
     "after which a put that has not ended is undone", false},
    {"store", "disk", TEXT, K(store_disk), "", 0, 255, NULL, "path",
     "folder that objects go to before they are dropped; empty: none", false},
    {"store", "disk_size", SIZE, K(store_disk_size), "0", 0, TiB(1024), NULL, "bytes",
     "most bytes there; 0: nine tenths of what the file system has free", false},
    {"store", "events", SIZE, K(store_events), "16M", MiB(1), GiB(4), NULL, "bytes",
     "of the last events, for who reads the feed and for reports to the master; a power of two",
     false},
    {"task", "deadline_ms", NUMBER, K(deadline_ms), "30000", 1, 4000000, NULL, "milliseconds",
     "deadline of a task that names none", true},
    {"admin", "listen", TEXT, K(listen), "127.0.0.1:9419", 1, 255, NULL, "address:port",
     "where /metrics and /health are served; port 0: any that is free", false},
    {"admin", "mode", CHOICE, K(admin_mode), "best-effort", 0, 0, "best-effort|required|off",
     "word", "when that address is taken: go on with a warning, refuse to start, or never serve",
     false},
    {"admin", "events", CHOICE, K(admin_events), "off", 0, 0, "off|on", "word",
     "serve /events there, too: keys of all tenants' objects, for cache-aware routers; whoever "
     "reaches "
     "the port reads them",
     true},
};
#define NKEYS (sizeof(keys) / sizeof(keys[0]))

static const struct mcd_key *find(const char *section, const char *name)
{
    for (size_t i = 0; i < NKEYS; i++)
        if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

void mcd_config_init(struct mcd_config *c)
{
    char error[256];

    memset(c, 0, sizeof(*c));
    for (size_t i = 0; i < NKEYS; i++)
        if (mcd_key_assign(c, keys[i].section, &keys[i], keys[i].initial, error, sizeof(error)) !=
            0)
            abort(); /* a default outside its own range: tests/daemon/test_config.c sees it first */
    mcd_tenant_rule_init(&c->tenants[0], "");
}

/* iniparser prints its complaints; they are collected into the error sentence instead. */
static char parser_complaint[160];

static int parser_error(const char *format, ...)
{
    va_list ap;
    int n;

    va_start(ap, format);
    n = vsnprintf(parser_complaint, sizeof(parser_complaint), format, ap);
    va_end(ap);
    return n;
}

static int load_section(struct mcd_config *c, const dictionary *d, const char *section, char *error,
                        size_t error_size)
{
    int n = iniparser_getsecnkeys(d, section);
    const char **names;
    int res = 0;

    if (n <= 0)
        return 0;
    names = calloc((size_t)n, sizeof(*names));
    if (names == NULL || iniparser_getseckeys(d, section, names) == NULL) {
        free(names);
        return -ENOMEM;
    }
    for (int i = 0; i < n && res == 0; i++) {
        const char *name = names[i] + strlen(section) + 1;
        const struct mcd_key *k = find(section, name);

        if (k == NULL) {
            snprintf(error, error_size,
                     "[%s] %s: unknown key; `mcshmd --sample-config` lists all keys", section,
                     name);
            res = -EINVAL;
        } else {
            res = mcd_key_assign(c, section, k, iniparser_getstring(d, names[i], ""), error,
                                 error_size);
        }
    }
    free(names);
    return res;
}

/* Where a key was set. */
struct place {
    char section[64], name[64];
    unsigned line;
};

/* iniparser takes the last of two keys of one name without a word: whoever wrote both believes in the
 * wrong one. */
static int find_doubles(const char *path, char *error, size_t error_size)
{
    struct place *seen = NULL, p = {.section = ""};
    size_t n = 0, room = 0;
    char line[1024];
    FILE *f = fopen(path, "re");
    int res = 0;

    if (f == NULL)
        return -errno;
    while (res == 0 && fgets(line, sizeof(line), f) != NULL) {
        p.line++;
        if (sscanf(line, " [%63[^]]]", p.section) == 1 ||
            sscanf(line, " %63[^=; \t#]", p.name) != 1 ||
            (find(p.section, p.name) == NULL && strncasecmp(p.section, "tenant", 6) != 0))
            continue;
        for (size_t i = 0; i < n && res == 0; i++) {
            if (strcasecmp(seen[i].section, p.section) != 0 ||
                strcasecmp(seen[i].name, p.name) != 0)
                continue;
            snprintf(error, error_size,
                     "[%s] %s is set in line %u and again in line %u of %s: "
                     "remove one",
                     p.section, p.name, seen[i].line, p.line, path);
            res = -EINVAL;
        }
        if (n == room) {
            struct place *more = realloc(seen, (room * 2 + 64) * sizeof(*seen));

            if (more == NULL) {
                res = -ENOMEM;
                break;
            }
            seen = more;
            room = room * 2 + 64;
        }
        seen[n++] = p;
    }
    free(seen);
    fclose(f);
    return res;
}

/*
 * [tenant] and [tenant:NAME]. To the parser everything behind the first colon is the name of a key, so
 * these sections are found entry by entry: "tenant:weight", "tenant:NAME", "tenant:NAME:weight". They
 * come in the file's order, which decides who belongs where.
 */
static int load_tenants(struct mcd_config *c, const dictionary *d, char *error, size_t error_size)
{
    int res = 0;

    for (ssize_t i = 0; i < d->size && res == 0; i++) {
        char section[MCD_TENANT_NAME_MAX + 16];
        const char *name, *key;

        if (d->key[i] == NULL || strncmp(d->key[i], "tenant:", 7) != 0)
            continue;
        name = d->key[i] + 7;
        key = strrchr(name, ':');
        if (key == NULL && d->val[i] == NULL)
            res = mcd_tenant_rule_set(c, d->key[i], NULL, NULL, error, error_size);
        else if (key == NULL)
            res = mcd_tenant_rule_set(c, "tenant", name, d->val[i], error, error_size);
        else if ((size_t)(key - d->key[i]) >= sizeof(section))
            res = -E2BIG;
        else {
            snprintf(section, sizeof(section), "%.*s", (int)(key - d->key[i]), d->key[i]);
            res = mcd_tenant_rule_set(c, section, key + 1, d->val[i], error, error_size);
        }
        if (res == -E2BIG) {
            snprintf(error, error_size, "[%.80s]: a tenant's name has at most %u characters",
                     d->key[i], MCD_TENANT_NAME_MAX - 1);
            res = -EINVAL;
        }
    }
    return res;
}

int mcd_config_load(struct mcd_config *c, const char *path, char *error, size_t error_size)
{
    dictionary *d;
    int res = 0;

    if (access(path, R_OK) != 0) {
        res = -errno;
        snprintf(error, error_size, "cannot read the configuration %s: %s", path, strerror(-res));
        return res;
    }
    res = find_doubles(path, error, error_size);
    if (res != 0)
        return res;
    parser_complaint[0] = '\0';
    iniparser_set_error_callback(parser_error);
    d = iniparser_load(path);
    iniparser_set_error_callback(NULL);
    if (d == NULL) {
        parser_complaint[strcspn(parser_complaint, "\n")] = '\0';
        snprintf(error, error_size, "%s is not an ini file: %s", path, parser_complaint);
        return -EINVAL;
    }
    for (int i = 0; i < iniparser_getnsec(d) && res == 0; i++) {
        const char *section = iniparser_getsecname(d, i);
        bool known = strcmp(section, "tenant") == 0;

        for (size_t k = 0; k < NKEYS; k++)
            known = known || strcmp(keys[k].section, section) == 0;
        if (!known) {
            snprintf(error, error_size,
                     "[%s]: unknown section; `mcshmd --sample-config` lists all keys", section);
            res = -EINVAL;
        } else if (strcmp(section, "tenant") != 0) {
            res = load_section(c, d, section, error, error_size);
        }
    }
    if (res == 0)
        res = load_tenants(c, d, error, error_size);
    iniparser_freedict(d);
    return res;
}

int mcd_config_set(struct mcd_config *c, const char *assignment, char *error, size_t error_size)
{
    const char *dot = strchr(assignment, '.');
    const char *equals = dot == NULL ? NULL : strchr(dot, '=');
    char section[64], name[64];
    const struct mcd_key *k;

    if (equals == NULL || (size_t)(dot - assignment) >= sizeof(section) ||
        (size_t)(equals - dot) > sizeof(name)) {
        snprintf(error, error_size, "--set %s: want section.key=value", assignment);
        return -EINVAL;
    }
    snprintf(section, sizeof(section), "%.*s", (int)(dot - assignment), assignment);
    snprintf(name, sizeof(name), "%.*s", (int)(equals - dot - 1), dot + 1);
    if (strcmp(section, "tenant") == 0 || strncmp(section, "tenant:", 7) == 0)
        return mcd_tenant_rule_set(c, section, name, equals + 1, error, error_size);
    k = find(section, name);
    if (k == NULL) {
        snprintf(error, error_size, "[%s] %s: unknown key; `mcshmd --sample-config` lists all keys",
                 section, name);
        return -EINVAL;
    }
    return mcd_key_assign(c, section, k, equals + 1, error, error_size);
}

static bool power_of_two(uint64_t v)
{
    return v != 0 && (v & (v - 1)) == 0;
}

int mcd_config_gid_index(const struct mcd_config *c)
{
    char *end;
    unsigned long v;

    if (strcmp(c->rdma_gid_index, "auto") == 0)
        return -1;
    if (c->rdma_gid_index[0] < '0' || c->rdma_gid_index[0] > '9')
        return -2;
    v = strtoul(c->rdma_gid_index, &end, 10);
    return *end != '\0' || v > MCT_GID_INDEX_MAX ? -2 : (int)v;
}

/* "lru, fifo" */
static void list_policies(char *out, size_t size)
{
    size_t n = 0;

    out[0] = '\0';
    for (unsigned i = 0; mco_policies[i] != NULL && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i != 0 ? ", " : "", mco_policies[i]->name);
}

static int check_store(const struct mcd_config *c, char *error, size_t error_size)
{
    char names[128];

    if (c->store_size == 0)
        return 0;
    if (mco_policy_find(c->store_policy) == NULL) {
        list_policies(names, sizeof(names));
        snprintf(error, error_size, "[store] policy = %s: there is no such, want one of: %s",
                 c->store_policy, names);
        return -EINVAL;
    }
    if (c->store_high <= c->store_low) {
        snprintf(error, error_size, "[store] high = %llu: want more than low = %llu",
                 (unsigned long long)c->store_high, (unsigned long long)c->store_low);
        return -EINVAL;
    }
    if (c->store_extent_size > c->store_size) {
        snprintf(
            error, error_size,
            "[store] extent_size = %llu: larger than [store] size = %llu, make one fit the other",
            (unsigned long long)c->store_extent_size, (unsigned long long)c->store_size);
        return -EINVAL;
    }
    if (c->pages != MCD_PAGES_OFF && c->store_size < c->page_size) {
        snprintf(error, error_size,
                 "[store] size = %llu: less than one page, [pool] page_size = %llu, make one fit "
                 "the other",
                 (unsigned long long)c->store_size, (unsigned long long)c->page_size);
        return -EINVAL;
    }
    if (c->store_size / c->store_extent_size > MCD_STORE_EXTENTS_MAX) {
        snprintf(error, error_size,
                 "[store] size = %llu: has more than %u extents of extent_size = %llu, want at "
                 "least %llu",
                 (unsigned long long)c->store_size, MCD_STORE_EXTENTS_MAX,
                 (unsigned long long)c->store_extent_size,
                 (unsigned long long)(c->store_size / MCD_STORE_EXTENTS_MAX));
        return -EINVAL;
    }
    if (!power_of_two(c->store_events)) {
        snprintf(error, error_size, "[store] events = %llu: want a power of two",
                 (unsigned long long)c->store_events);
        return -EINVAL;
    }
    if (c->store_away_ms <= c->store_beat_ms) {
        snprintf(error, error_size, "[store] away_ms = %llu: want more than beat_ms = %llu",
                 (unsigned long long)c->store_away_ms, (unsigned long long)c->store_beat_ms);
        return -EINVAL;
    }
    if (c->store_gone_ms < c->store_away_ms) {
        snprintf(error, error_size, "[store] gone_ms = %llu: want at least away_ms = %llu",
                 (unsigned long long)c->store_gone_ms, (unsigned long long)c->store_away_ms);
        return -EINVAL;
    }
    if (c->store_disk[0] != '\0' && c->store_disk[0] != '/') {
        snprintf(error, error_size, "[store] disk = %s: want a path that begins with /",
                 c->store_disk);
        return -EINVAL;
    }
    if (strcmp(c->store_master, "embedded") != 0 && strcmp(c->store_master, "follow") != 0 &&
        strcmp(c->store_master, "off") != 0 && strchr(c->store_master, ':') == NULL) {
        snprintf(error, error_size,
                 "[store] master = %s: want embedded, follow, off or the host:port of an agent",
                 c->store_master);
        return -EINVAL;
    }
    return 0;
}

int mcd_config_check(const struct mcd_config *c, char *error, size_t error_size)
{
    const struct {
        const char *key, *value;
    } lists[] = {{"devices", c->rdma_devices}, {"deny", c->rdma_deny}};

    if (c->page_size != MiB(2) && c->page_size != GiB(1)) {
        snprintf(error, error_size, "[pool] page_size = %llu: want 2M or 1G",
                 (unsigned long long)c->page_size);
        return -EINVAL;
    }
    if (c->address_base % GiB(1) != 0) {
        snprintf(error, error_size, "[pool] address_base = %llu: want a multiple of 1G",
                 (unsigned long long)c->address_base);
        return -EINVAL;
    }
    if (!power_of_two(c->queue_depth)) {
        snprintf(error, error_size, "[queue] depth = %llu: want a power of two",
                 (unsigned long long)c->queue_depth);
        return -EINVAL;
    }
    if (!power_of_two(c->inbox_size)) {
        snprintf(error, error_size, "[session] inbox_size = %llu: want a power of two",
                 (unsigned long long)c->inbox_size);
        return -EINVAL;
    }
    if (c->queue_args_size % MCS_LINE != 0) {
        snprintf(error, error_size, "[queue] args_size = %llu: want a multiple of %u",
                 (unsigned long long)c->queue_args_size, MCS_LINE);
        return -EINVAL;
    }
    if (strcmp(c->peer_listen, "off") == 0 && c->meta_backend != 0) {
        snprintf(
            error, error_size,
            "[meta] backend is set, but [peer] listen = off: nobody could reach what is published; "
            "set it to the address:port that other agents connect to");
        return -EINVAL;
    }
    if (c->peer_auth == 1 && c->psk_file[0] == '\0') {
        snprintf(error, error_size, "[peer] auth = psk needs psk_file, a file with the shared key");
        return -EINVAL;
    }
    if (c->peer_auth == 2 &&
        (c->tls_cert[0] == '\0' || c->tls_key[0] == '\0' || c->tls_ca[0] == '\0')) {
        snprintf(error, error_size, "[peer] auth = tls needs tls_cert, tls_key and tls_ca");
        return -EINVAL;
    }
    if (c->dead_ms <= c->ping_ms) {
        snprintf(error, error_size, "[peer] dead_ms = %llu: want more than ping_ms = %llu",
                 (unsigned long long)c->dead_ms, (unsigned long long)c->ping_ms);
        return -EINVAL;
    }
    if (c->rdma_chunk % MiB(1) != 0) {
        snprintf(error, error_size, "[rdma] chunk = %llu: want a multiple of 1M",
                 (unsigned long long)c->rdma_chunk);
        return -EINVAL;
    }
    if (mcd_config_gid_index(c) < -1) {
        snprintf(error, error_size, "[rdma] gid_index = %s: want auto or 0 to %d",
                 c->rdma_gid_index, MCT_GID_INDEX_MAX);
        return -EINVAL;
    }
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        char what[256];

        if (mct_rdma_select_check(lists[i].value, what, sizeof(what)) != 0) {
            snprintf(error, error_size, "[rdma] %s: %s", lists[i].key, what);
            return -EINVAL;
        }
    }
    if (c->rdma_enable == MCD_RDMA_REQUIRE && strcmp(c->peer_listen, "off") == 0) {
        snprintf(
            error, error_size,
            "[rdma] enable = require, but [peer] listen = off: RDMA goes to other agents; want "
            "the address:port that they connect to");
        return -EINVAL;
    }
    if (c->rdma_enable == MCD_RDMA_REQUIRE && c->require_encryption != 0) {
        snprintf(error, error_size,
                 "[rdma] enable = require, but [peer] require_encryption = yes: RDMA rails carry "
                 "plain text, choose one of the two");
        return -EINVAL;
    }
    if (c->extent_size > c->pool_size) {
        snprintf(
            error, error_size,
            "[pool] extent_size = %llu: larger than [pool] size = %llu, make one fit the other",
            (unsigned long long)c->extent_size, (unsigned long long)c->pool_size);
        return -EINVAL;
    }
    if (check_store(c, error, error_size) != 0)
        return -EINVAL;
    return mcd_tenant_rules_check(c, error, error_size);
}

unsigned mcd_config_adopt(struct mcd_config *to, const struct mcd_config *from,
                          void (*told)(void *context, const char *key, bool changed), void *context)
{
    unsigned adopted = 0;

    for (size_t i = 0; i < NKEYS; i++) {
        char name[96];

        if (!mcd_key_differs(to, from, &keys[i]))
            continue;
        if (keys[i].live) {
            mcd_key_copy(to, from, &keys[i]);
            adopted++;
        }
        snprintf(name, sizeof(name), "%s.%s", keys[i].section, keys[i].name);
        told(context, name, keys[i].live);
    }
    return adopted + mcd_tenant_rules_adopt(to, from, told, context);
}

void mcd_config_dump(const struct mcd_config *c, FILE *out)
{
    char value[MCD_TEXT_MAX];

    for (size_t i = 0; i < NKEYS; i++) {
        if (i == 0 || strcmp(keys[i].section, keys[i - 1].section) != 0)
            fprintf(out, "%s[%s]\n", i == 0 ? "" : "\n", keys[i].section);
        mcd_key_format(c, &keys[i], value, sizeof(value));
        fprintf(out, "%s = %s\n", keys[i].name, value);
    }
    mcd_tenant_rules_dump(c, out);
}

void mcd_config_sample(FILE *out)
{
    fprintf(out,
            "; mcshmd's configuration, every key at its default. Made by `mcshmd "
            "--sample-config`.\n; Keys marked live change with SIGHUP, the others with the agent's "
            "next start.\n");
    for (size_t i = 0; i < NKEYS; i++) {
        if (i == 0 || strcmp(keys[i].section, keys[i - 1].section) != 0)
            fprintf(out, "\n[%s]\n", keys[i].section);
        mcd_key_sample(&keys[i], "", out);
    }
    mcd_tenant_rules_sample(out);
}

void mcd_config_man_text(const char *text, FILE *out)
{
    for (const char *p = text; *p != '\0'; p++) {
        if ((*p == '.' || *p == '\'') && (p == text || p[-1] == '\n'))
            fputs("\\&", out);
        if (*p == '\\')
            fputs("\\e", out);
        else if (*p == '-')
            fputs("\\-", out);
        else
            fputc(*p, out);
    }
}

void mcd_config_man(FILE *out)
{
    for (size_t i = 0; i < NKEYS; i++) {
        if (i == 0 || strcmp(keys[i].section, keys[i - 1].section) != 0)
            fprintf(out, ".SS [%s]\n", keys[i].section);
        mcd_key_man(&keys[i], out);
    }
    mcd_tenant_rules_man(out);
}
