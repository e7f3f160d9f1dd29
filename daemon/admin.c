/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /metrics (Prometheus text) and /health over libmicrohttpd, driven from the control
 * thread's event loop: no thread of its own, no lock.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cluster.h"
#include "counters.h"
#include "log.h"
#include "master.h"
#include "query_gpu.h"
#include "store.h"
#include "store_json.h"

#define CONNECTIONS 16
#define TIMEOUT_S 10 /* a slow reader is cut */
#define EVENTS_USUAL 1000u
#define EVENTS_MAX 10000u /* of one answer: the control thread writes it */

struct mcd_admin {
    struct mcd_agent *agent;
    struct MHD_Daemon *daemon;
    char listen[128];
};

struct text {
    char *at;
    size_t size, room;
    bool failed;
};

static void add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *t, const char *format, ...)
{
    va_list ap;
    int n;

    for (int i = 0; i < 2 && !t->failed; i++) {
        va_start(ap, format);
        n = vsnprintf(t->at + t->size, t->room - t->size, format, ap);
        va_end(ap);
        if (n < 0) {
            t->failed = true;
        } else if (t->size + (size_t)n < t->room) {
            t->size += (size_t)n;
            return;
        } else {
            size_t room = (t->room + (size_t)n) * 2;
            char *at = realloc(t->at, room);

            t->failed = at == NULL;
            if (at != NULL) {
                t->at = at;
                t->room = room;
            }
        }
    }
}

static void gauge(struct text *t, const char *name, const char *help, uint64_t v)
{
    add(t, "# HELP mcshm_%s %s\n# TYPE mcshm_%s gauge\nmcshm_%s %llu\n", name, help, name, name,
        (unsigned long long)v);
}

enum rail_value { RAIL_BYTES, RAIL_STATE, RAIL_RATE };

/* One line a rail; the peers' addresses are numeric or host names, harmless in labels. Lives that are over would
 * be second lines of the same labels. */
static void rail_lines(struct mcd_agent *a, struct text *t, const char *name, const char *type,
                       const char *help, enum rail_value what)
{
    add(t, "# HELP mcshm_rail_%s %s\n# TYPE mcshm_rail_%s %s\n", name, help, name, type);
    for (const struct mcd_peer *p = a->cluster->peers; p != NULL; p = p->next) {
        for (unsigned i = 0; p->ways != NULL && i < a->nengines; i++) {
            struct mcd_route_report r;

            if (mcd_way_route(p, i) == NULL || p->state == MCD_PEER_DEFUNCT)
                continue;
            mcd_route_get_report(mcd_way_route(p, i), &r);
            for (unsigned k = 0; k < r.rails; k++)
                add(t,
                    "mcshm_rail_%s{peer=\"%s\",local=\"%s\",remote=\"%s\",engine=\"%u\"} "
                    "%.0f\n",
                    name, p->address, r.rail[k].local, r.rail[k].peer, i,
                    what == RAIL_BYTES   ? (double)r.rail[k].bytes
                    : what == RAIL_STATE ? (double)r.rail[k].state
                                         : r.rail[k].rate);
        }
    }
}

static void rails(struct mcd_agent *a, struct text *t)
{
    uint64_t connected = 0, up = 0;

    if (a->cluster == NULL)
        return;
    rail_lines(a, t, "bytes_total", "counter", "Bytes carried by a rail", RAIL_BYTES);
    rail_lines(a, t, "state", "gauge", "0 down, 1 probation, 2 up, 3 suspect", RAIL_STATE);
    rail_lines(a, t, "rate_bytes", "gauge", "Bytes a second, measured while busy", RAIL_RATE);
    for (const struct mcd_peer *p = a->cluster->peers; p != NULL; p = p->next) {
        connected += p->state == MCD_PEER_UP;
        for (unsigned i = 0; p->ways != NULL && i < a->nengines; i++) {
            struct mcd_route_report r;

            if (mcd_way_route(p, i) == NULL)
                continue;
            mcd_route_get_report(mcd_way_route(p, i), &r);
            for (unsigned k = 0; k < r.rails; k++)
                up += r.rail[k].state == MCD_RAIL_UP;
        }
    }
    gauge(t, "peers_connected", "Agents that this one is connected with", connected);
    gauge(t, "rails_up", "Rails in state up", up);
}

enum nic_value { NIC_STATE, NIC_PAIRS, NIC_MEMORY, NIC_EVENTS, NIC_FAULTS, NIC_BYTES };

/* Bytes of all rails that begin at a device of this host. */
static double nic_bytes(struct mcd_agent *a, const char *name)
{
    struct mcd_route_report r;
    double sum = 0;

    for (const struct mcd_peer *p = a->cluster == NULL ? NULL : a->cluster->peers; p != NULL;
         p = p->next)
        for (unsigned i = 0; p->ways != NULL && i < a->nengines; i++) {
            if (mcd_way_route(p, i) == NULL)
                continue;
            mcd_route_get_report(mcd_way_route(p, i), &r);
            for (unsigned k = 0; k < r.rails; k++)
                if (r.rail[k].ops == &mct_rdma_ops &&
                    strncmp(r.rail[k].local, name, sizeof(r.rail[k].local) - 1) == 0)
                    sum += (double)r.rail[k].bytes;
        }
    return sum;
}

/* One line for each RDMA device; the kernel gives them harmless names. */
static void nics(struct mcd_agent *a, struct text *t)
{
    static const struct {
        const char *name, *type, *help;
        enum nic_value what;
    } list[] = {
        {"state", "gauge", "0 closed, 1 down, 2 up", NIC_STATE},
        {"queue_pairs", "gauge", "Queue pairs there now", NIC_PAIRS},
        {"memory_bytes", "gauge", "Memory registered with it", NIC_MEMORY},
        {"events_total", "counter", "Asynchronous events of it", NIC_EVENTS},
        {"faults_total", "counter", "Completions with a fault of its own", NIC_FAULTS},
        {"bytes", "gauge", "Bytes carried by its rails to the peers there are now", NIC_BYTES},
    };

    for (size_t i = 0; a->rdma != NULL && i < sizeof(list) / sizeof(list[0]); i++) {
        add(t, "# HELP mcshm_nic_%s %s\n# TYPE mcshm_nic_%s %s\n", list[i].name, list[i].help,
            list[i].name, list[i].type);
        for (unsigned k = 0; k < mct_rdma_nics(a->rdma); k++) {
            struct mct_rdma_nic n;

            mct_rdma_nic(a->rdma, k, &n);
            add(t, "mcshm_nic_%s{nic=\"%s\"} %.0f\n", list[i].name, n.name,
                list[i].what == NIC_STATE    ? (double)n.state
                : list[i].what == NIC_PAIRS  ? (double)n.pairs
                : list[i].what == NIC_MEMORY ? (double)n.memory_bytes
                : list[i].what == NIC_EVENTS ? (double)n.events
                : list[i].what == NIC_FAULTS ? (double)n.faults
                                             : nic_bytes(a, n.name));
        }
    }
}

enum engine_value { ENGINE_TASKS, ENGINE_BYTES, ENGINE_TURNS, ENGINE_ASLEEP };

/* One line an engine. */
static void engine_lines(struct mcd_agent *a, struct text *t, const char *name, const char *type,
                         const char *help, enum engine_value what)
{
    add(t, "# HELP mcshm_engine_%s %s\n# TYPE mcshm_engine_%s %s\n", name, help, name, type);
    for (unsigned i = 0; i < a->nengines; i++) {
        const struct mcd_engine *g = a->engines[i];
        uint64_t v = what == ENGINE_TASKS   ? mcs_load_relaxed(&g->counters.tasks)
                     : what == ENGINE_BYTES ? mcs_load_relaxed(&g->counters.bytes)
                     : what == ENGINE_TURNS ? mcs_load_relaxed(&g->counters.turns)
                                            : mcs_load_relaxed(&g->asleep) != 0;

        add(t, "mcshm_engine_%s{engine=\"%u\",core=\"%d\"} %llu\n", name, g->o.id, g->o.core,
            (unsigned long long)v);
    }
}

static void engines(struct mcd_agent *a, struct text *t)
{
    engine_lines(a, t, "tasks_total", "counter", "Tasks that an engine has ended", ENGINE_TASKS);
    engine_lines(a, t, "bytes_total", "counter", "Bytes that an engine has moved", ENGINE_BYTES);
    engine_lines(a, t, "turns_total", "counter", "Turns of an engine's loop", ENGINE_TURNS);
    engine_lines(a, t, "asleep", "gauge", "Does an engine sleep: 1, or 0", ENGINE_ASLEEP);
}

enum tenant_value {
    TENANT_MEMORY,
    TENANT_SESSIONS,
    TENANT_QUEUES,
    TENANT_IN_FLIGHT,
    TENANT_WEIGHT,
    TENANT_TASKS,
    TENANT_BYTES,
    TENANT_CALLER_BYTES,
    TENANT_THROTTLED
};

static double tenant_value(struct mcd_agent *a, const struct mcd_tenant *n, enum tenant_value what)
{
    switch (what) {
    case TENANT_MEMORY:
        return (double)n->memory;
    case TENANT_SESSIONS:
        return n->sessions;
    case TENANT_QUEUES:
        return n->queues;
    case TENANT_IN_FLIGHT:
        return (double)mcs_load_relaxed(&n->tasks); /* partner: mcd_tenant_admit() */
    case TENANT_WEIGHT:
        return (double)n->limits.weight;
    case TENANT_TASKS:
        return (double)n->sums.tasks;
    case TENANT_BYTES:
        return (double)n->sums.bytes;
    case TENANT_CALLER_BYTES:
        return (double)n->sums.caller_bytes;
    case TENANT_THROTTLED:
        return (double)mcd_tenant_throttled_ms(n, a->tick_hz) / 1000;
    }
    return 0;
}

/* One line a tenant; their names are harmless in labels. */
static void tenants(struct mcd_agent *a, struct text *t)
{
    static const struct {
        const char *name, *type, *help;
        enum tenant_value what;
    } list[] = {
        {"memory_bytes", "gauge", "Memory and mappings of its sessions", TENANT_MEMORY},
        {"sessions", "gauge", "Sessions", TENANT_SESSIONS},
        {"queues", "gauge", "Queues", TENANT_QUEUES},
        {"tasks_in_flight", "gauge", "Tasks taken and not ended", TENANT_IN_FLIGHT},
        {"weight", "gauge", "Its share beside others", TENANT_WEIGHT},
        {"tasks_total", "counter", "Tasks that ended", TENANT_TASKS},
        {"bytes_total", "counter", "Bytes moved by engines", TENANT_BYTES},
        {"caller_bytes_total", "counter",
         "Bytes copied in callers' threads, as clients report them", TENANT_CALLER_BYTES},
        {"throttled_seconds_total", "counter", "Time that engines held its work back for its rate",
         TENANT_THROTTLED},
    };

    mcd_tenants_sum(&a->tenants, a->sessions);
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        add(t, "# HELP mcshm_tenant_%s %s\n# TYPE mcshm_tenant_%s %s\n", list[i].name, list[i].help,
            list[i].name, list[i].type);
        for (const struct mcd_tenant *n = a->tenants.list; n != NULL; n = n->next)
            add(t, "mcshm_tenant_%s{tenant=\"%s\"} %.*f\n", list[i].name, n->name,
                list[i].what == TENANT_THROTTLED ? 3 : 0, tenant_value(a, n, list[i].what));
    }
    add(t, "# HELP mcshm_tenant_refused_total What it was refused for a limit of its own\n"
           "# TYPE mcshm_tenant_refused_total counter\n");
    for (const struct mcd_tenant *n = a->tenants.list; n != NULL; n = n->next)
        for (unsigned i = 0; i < MCD_LIMIT_COUNT; i++)
            add(t, "mcshm_tenant_refused_total{tenant=\"%s\",limit=\"%s\"} %llu\n", n->name,
                mcd_limit_words[i], (unsigned long long)mcs_load_relaxed(&n->refused[i]));
}

/* What others write. */
static void areas(struct mcd_agent *a, struct text *t)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    if (f != NULL) {
        mcd_store_metrics(a, f);
        mcd_master_metrics(a->master, f);
        mcd_gpu_metrics(a, f);
        fclose(f);
    }
    t->failed |= f == NULL || text == NULL;
    if (text != NULL)
        add(t, "%s", text);
    free(text);
}

static void metrics(struct mcd_agent *a, struct text *t)
{
    struct mcd_totals totals;

    mcd_totals(a, &totals);
    for (size_t i = 0; i < mcd_counter_count; i++) {
        const char *name = mcd_counter_list[i].name;

        add(t, "# HELP mcshm_%s_total %s\n# TYPE mcshm_%s_total counter\nmcshm_%s_total %llu\n",
            name, mcd_counter_list[i].help, name, name,
            (unsigned long long)mcd_counter_value(&totals, i));
    }
    add(t, "# HELP mcshm_task_errors_total Tasks that ended with this cause\n"
           "# TYPE mcshm_task_errors_total counter\n");
    for (uint32_t e = 1; e < MCS_STATUS_COUNT; e++) {
        uint64_t n = 0;

        for (unsigned i = 0; i < a->nengines; i++)
            n += mcs_load_relaxed(&a->engines[i]->counters.errors[e]);
        if (n != 0)
            add(t, "mcshm_task_errors_total{cause=\"%s\"} %llu\n", mcd_status_word(e),
                (unsigned long long)n);
    }
    add(t, "# HELP mcshm_refusals_total Control requests refused with this status\n"
           "# TYPE mcshm_refusals_total counter\n");
    for (uint32_t e = 1; e < MCS_STATUS_COUNT; e++)
        if (a->refusals[e] != 0)
            add(t, "mcshm_refusals_total{status=\"%s\"} %llu\n", mcd_status_word(e),
                (unsigned long long)a->refusals[e]);
    add(t, "# HELP mcshm_served_refused_total Requests of other hosts refused with this cause\n"
           "# TYPE mcshm_served_refused_total counter\n");
    for (uint32_t e = 1; e < MCS_STATUS_COUNT; e++) {
        uint64_t n = 0;

        for (unsigned i = 0; i < a->nengines; i++)
            n += mcs_load_relaxed(&a->engines[i]->counters.served_refused[e]);
        if (n != 0)
            add(t, "mcshm_served_refused_total{cause=\"%s\"} %llu\n", mcd_status_word(e),
                (unsigned long long)n);
    }
    engines(a, t);
    rails(a, t);
    nics(a, t);
    tenants(a, t);
    areas(a, t);
    gauge(t, "sessions", "Sessions", a->nsessions);
    gauge(t, "sessions_limbo", "Sessions of an earlier agent that are not back yet",
          a->recovery.away + a->recovery.coming);
    gauge(t, "engines", "Engines", a->nengines);
    gauge(t, "pool_size_bytes", "Most memory that clients may have", a->config.pool_size);
    gauge(t, "pool_used_bytes", "Memory that clients have", a->pool.used);
    gauge(t, "pool_page_bytes", "Page size of the newest extent", a->pool.page_size);
    gauge(t, "extents", "Extents", a->pool.count);
    gauge(t, "rdma_unregistered_bytes",
          "Extents and buffers that are reached over other transports, since RDMA devices did not "
          "take them",
          a->registry.unregistered_bytes);
    gauge(t, "rdma_registrations_pending",
          "Extents and buffers that RDMA devices are taking, or letting go of",
          a->registry.pending);
    gauge(t, "uptime_seconds", "Time since the agent started",
          (mcd_now_ns() - a->started_ns) / 1000000000);
}

/* A number in the URL; false: it is none. */
static bool argument(struct MHD_Connection *c, const char *name, uint64_t *v)
{
    const char *text = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, name);
    char *end;

    if (text == NULL)
        return true;
    if (text[0] < '0' || text[0] > '9')
        return false;
    *v = strtoull(text, &end, 10);
    return *end == '\0';
}

/* The feed of objects' events, of all tenants. Returns the HTTP status. */
static unsigned events(struct mcd_agent *a, struct MHD_Connection *c, struct text *t)
{
    struct mco_events *feed = a->store != NULL ? a->store->events : mcd_master_events(a->master);
    uint64_t from = 1, limit = EVENTS_USUAL;
    char *text = NULL;
    size_t size = 0;
    FILE *f;

    if (a->config.admin_events == 0) {
        add(t, "events show the keys of all tenants: [admin] events = on serves them\n");
        return MHD_HTTP_FORBIDDEN;
    }
    if (feed == NULL) {
        add(t, "this agent holds no objects: [store] size = 0\n");
        return MHD_HTTP_NOT_FOUND;
    }
    if (!argument(c, "from", &from) || !argument(c, "limit", &limit) || limit == 0 ||
        limit > EVENTS_MAX) {
        add(t, "want /events?from=NUMBER&limit=1 to %u\n", EVENTS_MAX);
        return MHD_HTTP_BAD_REQUEST;
    }
    f = open_memstream(&text, &size);
    if (f != NULL) {
        mcd_json_events(f, &a->config, feed, a->incarnation, UINT64_MAX, from, limit);
        fclose(f);
    }
    t->failed |= f == NULL || text == NULL;
    if (text != NULL)
        add(t, "%s\n", text);
    free(text);
    return MHD_HTTP_OK;
}

static enum MHD_Result answer(void *context, struct MHD_Connection *c, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_size, void **state)
{
    struct mcd_admin *admin = context;
    struct text t = {.room = 16384};
    const char *type = "text/plain; version=0.0.4";
    unsigned code = MHD_HTTP_OK;
    struct MHD_Response *r;
    enum MHD_Result res;

    (void)version;
    (void)upload;
    (void)state;
    if (*upload_size != 0)
        return MHD_NO;
    t.at = malloc(t.room);
    if (t.at == NULL)
        return MHD_NO;
    t.at[0] = '\0';
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        code = MHD_HTTP_METHOD_NOT_ALLOWED;
        add(&t, "only GET\n");
    } else if (strcmp(url, "/metrics") == 0) {
        metrics(admin->agent, &t);
    } else if (strcmp(url, "/health") == 0) {
        /* the control thread is alive, or this would not be answered */
        code = admin->agent->stopping ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK;
        add(&t, "%s\n", admin->agent->stopping ? "stopping" : "ok");
    } else if (strcmp(url, "/events") == 0) {
        code = events(admin->agent, c, &t);
        if (code == MHD_HTTP_OK)
            type = "application/json";
    } else {
        code = MHD_HTTP_NOT_FOUND;
        add(&t, "try /metrics, /health or /events\n");
    }
    if (t.failed) {
        free(t.at);
        return MHD_NO;
    }
    r = MHD_create_response_from_buffer(t.size, t.at, MHD_RESPMEM_MUST_FREE);
    if (r == NULL) {
        free(t.at);
        return MHD_NO;
    }
    MHD_add_response_header(r, "Content-Type", type);
    res = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return res;
}

/* "127.0.0.1:9419", "[::1]:0". Literals only: no resolver is asked. */
static int parse_listen(const char *text, struct sockaddr_storage *out, socklen_t *size)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    const char *colon = strrchr(text, ':');
    struct addrinfo *found;
    char host[MCD_TEXT_MAX], *end;
    unsigned long port;
    size_t n;

    if (colon == NULL || colon[1] < '0' || colon[1] > '9')
        return -EINVAL;
    port = strtoul(colon + 1, &end, 10);
    if (*end != '\0' || port > 65535)
        return -EINVAL;
    n = (size_t)(colon - text);
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']')
        snprintf(host, sizeof(host), "%.*s", (int)n - 2, text + 1);
    else
        snprintf(host, sizeof(host), "%.*s", (int)n, text);
    if (getaddrinfo(host[0] != '\0' ? host : NULL, colon + 1, &hints, &found) != 0)
        return -EINVAL;
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *size = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

static void note_address(struct mcd_admin *admin, int fd)
{
    struct sockaddr_storage addr;
    socklen_t n = sizeof(addr);
    char host[NI_MAXHOST], port[NI_MAXSERV];

    if (getsockname(fd, (struct sockaddr *)&addr, &n) == 0 &&
        getnameinfo((struct sockaddr *)&addr, n, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(admin->listen, sizeof(admin->listen),
                 addr.ss_family == AF_INET6 ? "[%.100s]:%.8s" : "%.100s:%.8s", host, port);
}

int mcd_admin_create(struct mcd_agent *a, struct mcd_admin **out, char *error, size_t error_size)
{
    struct mcd_admin *admin = calloc(1, sizeof(*admin));
    const union MHD_DaemonInfo *info;
    struct sockaddr_storage addr;
    socklen_t size;
    int fd = -1, one = 1, res;

    if (admin == NULL)
        return -ENOMEM;
    admin->agent = a;
    res = parse_listen(a->config.listen, &addr, &size);
    if (res != 0) {
        snprintf(error, error_size,
                 "[admin] listen = %s: want a literal ADDRESS:PORT, such as "
                 "127.0.0.1:9419 or [::1]:0",
                 a->config.listen);
        goto error;
    }
    fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, (struct sockaddr *)&addr, size) != 0 || listen(fd, CONNECTIONS) != 0) {
        res = -errno;
        snprintf(error, error_size, "cannot listen on [admin] listen = %s: %s", a->config.listen,
                 strerror(-res));
        goto error;
    }
    note_address(admin, fd);
    admin->daemon =
        MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, answer, admin, MHD_OPTION_LISTEN_SOCKET, fd,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_END);
    info =
        admin->daemon == NULL ? NULL : MHD_get_daemon_info(admin->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (info == NULL) {
        res = -EIO;
        snprintf(error, error_size, "cannot start the HTTP server on %s", a->config.listen);
        goto error;
    }
    res = mcd_control_watch(a, info->epoll_fd, MCD_SOURCE_ADMIN, NULL);
    if (res != 0) {
        snprintf(error, error_size, "cannot watch the HTTP server: %s", strerror(-res));
        goto error;
    }
    mcd_info("serving /metrics and /health on http://%s", admin->listen);
    *out = admin;
    return 0;

error:
    if (admin->daemon != NULL)
        MHD_stop_daemon(admin->daemon);
    else if (fd >= 0)
        close(fd);
    free(admin);
    return res;
}

void mcd_admin_destroy(struct mcd_admin *admin)
{
    MHD_stop_daemon(admin->daemon);
    free(admin);
}

void mcd_admin_run(struct mcd_admin *admin)
{
    MHD_run(admin->daemon);
}

const char *mcd_admin_listen(const struct mcd_admin *admin)
{
    return admin->listen;
}
