/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `mcshm top`: rates from two looks at the agent's stats file.  It asks the agent nothing, so it also
 * shows an agent that hangs, and says that it does.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "table.h"

#define INTERVAL_MS 1000u
#define SILENT_NS UINT64_C(3000000000) /* the control thread says something once a second */
#define STUCK_NS UINT64_C(1000000000)  /* an engine in the middle of a turn */
#define COPIED_MS 50u
#define OTHER_LINES 12 /* of a screen, beside clients and tenants */

/* A look, kept beyond the monitor's next one. */
struct look {
    mcshm_monitor_agent agent;
    mcshm_monitor_engine *engines;
    size_t nengines;
    mcshm_monitor_client *clients;
    size_t nclients;
};

static void forget(struct look *l)
{
    free(l->engines);
    free(l->clients);
    *l = (struct look){0};
}

static int look_at(mcshm_monitor *m, struct look *out)
{
    const mcshm_monitor_view *v;
    mcshm_status status = mcshm_monitor_read(m, &v);

    if (status != MCSHM_OK)
        return cli_error("cannot read the agent's counters", status, NULL);
    *out = (struct look){.agent = v->agent, .nengines = v->nengines, .nclients = v->nclients};
    out->engines = calloc(v->nengines + 1, sizeof(*out->engines));
    out->clients = calloc(v->nclients + 1, sizeof(*out->clients));
    if (out->engines == NULL || out->clients == NULL) {
        forget(out);
        fprintf(stderr, "mcshm: out of memory\n");
        return CLI_FAILED;
    }
    memcpy(out->engines, v->engines, v->nengines * sizeof(*out->engines));
    memcpy(out->clients, v->clients, v->nclients * sizeof(*out->clients));
    return CLI_OK;
}

/* ---- what two looks say, as JSON ------------------------------------------------- */

static void number(cJSON *o, const char *name, double v)
{
    cJSON_AddNumberToObject(o, name, v);
}

static double rate(uint64_t now, uint64_t then, double seconds)
{
    return seconds > 0 && now > then ? (double)(now - then) / seconds : 0;
}

/* What has become of the process, as seen from here; "" when there is nothing to say. */
static void process_state(uint32_t pid, char *out, size_t size)
{
    char path[64], line[512];
    const char *p;
    FILE *f;

    out[0] = '\0';
    snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    f = fopen(path, "re");
    if (f == NULL) {
        snprintf(out, size, "there is no process %u", pid);
        return;
    }
    p = fgets(line, sizeof(line), f) != NULL ? strrchr(line, ')') : NULL;
    fclose(f);
    if (p == NULL || strstr(line, "(mcshmd") == NULL)
        snprintf(out, size, "there is no mcshmd with pid %u", pid);
    else if (p[1] == ' ' && p[2] == 'T')
        snprintf(out, size, "process %u is stopped", pid);
    else if (p[1] == ' ' && p[2] == 't')
        snprintf(out, size, "process %u is held by a debugger", pid);
    else if (p[1] == ' ' && (p[2] == 'Z' || p[2] == 'X'))
        snprintf(out, size, "process %u has ended", pid);
    else if (p[1] == ' ' && p[2] == 'D')
        snprintf(out, size, "process %u waits in the kernel", pid);
    else
        snprintf(out, size, "process %u lives", pid);
}

static cJSON *agent_json(const struct cli *cli, const struct look *l)
{
    const mcshm_monitor_agent *a = &l->agent;
    bool responds = a->silent_ns < SILENT_NS;
    cJSON *o = cJSON_CreateObject();
    char text[96];

    cJSON_AddStringToObject(o, "version", a->version);
    number(o, "pid", a->pid);
    cJSON_AddStringToObject(o, "socket", cli->socket);
    snprintf(text, sizeof(text), "0x%" PRIx64, a->incarnation);
    cJSON_AddStringToObject(o, "incarnation", text);
    number(o, "uptime_s", (double)(a->uptime_ns / 1000000) / 1000);
    number(o, "silent_s", (double)(a->silent_ns / 1000000) / 1000);
    cJSON_AddBoolToObject(o, "responds", responds);
    text[0] = '\0';
    if (!responds)
        process_state(a->pid, text, sizeof(text));
    cJSON_AddStringToObject(o, "process", text);
    cJSON_AddBoolToObject(o, "live_counters", !a->copied);
    number(o, "pool_size", (double)a->pool_size);
    number(o, "pool_used", (double)a->pool_used);
    number(o, "page_size", (double)a->pool_page_size);
    number(o, "extents", a->extents);
    number(o, "sessions", a->sessions);
    number(o, "sessions_left_out", a->sessions_left_out);
    number(o, "queues_left_out", a->queues_left_out);
    return o;
}

static cJSON *engine_json(const mcshm_monitor_engine *e, const mcshm_monitor_engine *then,
                          double seconds, bool copied)
{
    double idle = seconds > 0 ? rate(e->idle_ns, then->idle_ns, seconds) / 1e9 : 1;
    bool stuck = !copied && e->silent_ns > STUCK_NS;
    cJSON *o = cJSON_CreateObject();

    number(o, "id", e->id);
    number(o, "core", e->core);
    cJSON_AddStringToObject(o, "state",
                            stuck             ? "stuck"
                            : e->asleep       ? "asleep"
                            : e->never_sleeps ? "polling"
                                              : "awake");
    number(o, "silent_s", (double)(e->silent_ns / 1000000) / 1000);
    number(o, "busy_percent", stuck ? 100 : idle < 1 ? 100 * (1 - idle) : 0);
    number(o, "tasks_rate", rate(e->tasks, then->tasks, seconds));
    number(o, "bytes_rate", rate(e->bytes, then->bytes, seconds));
    number(o, "tasks", (double)e->tasks);
    number(o, "bytes", (double)e->bytes);
    number(o, "failed", (double)e->failed);
    number(o, "sleeps", (double)e->sleeps);
    number(o, "queues_hot", e->hot);
    number(o, "queues_cold", e->cold);
    return o;
}

/* An upper bound of what a share of the tasks took; < 0: there is none. */
static double percentile(const uint64_t *now, const uint64_t *then, double share)
{
    uint64_t total = 0, seen = 0;

    for (int i = 0; i < MCSHM_MONITOR_BUCKETS; i++)
        total += now[i] - then[i];
    for (int i = 0; i < MCSHM_MONITOR_BUCKETS && total != 0; i++) {
        seen += now[i] - then[i];
        if ((double)seen >= share * (double)total)
            return (double)(UINT64_C(2) << i);
    }
    return -1;
}

static void mean(cJSON *o, const char *name, uint64_t sum, uint64_t n)
{
    number(o, name, n != 0 ? (double)sum / (double)n : -1);
}

/* By its rule's name, else by its uid. */
static void name_tenant(cJSON *o, uint64_t id, const char *name)
{
    if (name[0] != '\0')
        cJSON_AddStringToObject(o, "tenant", name);
    else
        number(o, "tenant", (double)id);
}

static cJSON *client_json(const mcshm_monitor_client *c, const mcshm_monitor_client *then,
                          double seconds)
{
    uint64_t tasks = c->tasks - then->tasks;
    cJSON *o = cJSON_CreateObject();

    number(o, "session", c->session);
    cJSON_AddStringToObject(o, "name", c->name);
    name_tenant(o, c->tenant, c->tenant_name);
    number(o, "pid", c->pid);
    number(o, "uid", c->uid);
    number(o, "queues", c->queues);
    number(o, "memory", (double)c->memory);
    number(o, "depth", (double)c->depth);
    number(o, "bytes_rate",
           rate(c->bytes + c->caller_bytes, then->bytes + then->caller_bytes, seconds));
    number(o, "tasks_rate",
           rate(c->tasks + c->caller_tasks, then->tasks + then->caller_tasks, seconds));
    mean(o, "queue_ns", c->queue_ns - then->queue_ns, tasks);
    mean(o, "move_ns", c->move_ns - then->move_ns, tasks);
    mean(o, "notify_ns", c->notify_ns - then->notify_ns, c->notified - then->notified);
    number(o, "p50_ns", percentile(c->latency, then->latency, 0.50));
    number(o, "p99_ns", percentile(c->latency, then->latency, 0.99));
    number(o, "tasks", (double)(c->tasks + c->caller_tasks));
    number(o, "bytes", (double)(c->bytes + c->caller_bytes));
    number(o, "failed", (double)c->failed);
    number(o, "caller_tasks", (double)c->caller_tasks);
    number(o, "caller_bytes", (double)c->caller_bytes);
    return o;
}

struct tenant {
    const char *name;
    uint64_t id, memory, depth, bytes;
    double bytes_rate, tasks_rate;
    unsigned clients;
};

static void add_tenant(struct tenant *t, const cJSON *o)
{
    t->clients++;
    t->memory += table_number(cJSON_GetObjectItemCaseSensitive(o, "memory"));
    t->depth += table_number(cJSON_GetObjectItemCaseSensitive(o, "depth"));
    t->bytes += table_number(cJSON_GetObjectItemCaseSensitive(o, "bytes"));
    t->bytes_rate += cJSON_GetObjectItemCaseSensitive(o, "bytes_rate")->valuedouble;
    t->tasks_rate += cJSON_GetObjectItemCaseSensitive(o, "tasks_rate")->valuedouble;
}

struct ranked {
    cJSON *row;
    double rate, tasks;
};

static int faster_first(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->rate < y->rate || x->rate > y->rate)
        return x->rate < y->rate ? 1 : -1;
    return x->tasks < y->tasks ? 1 : x->tasks > y->tasks ? -1 : 0;
}

static void add_clients(cJSON *root, const struct look *now, const struct look *then,
                        double seconds)
{
    cJSON *list = cJSON_AddArrayToObject(root, "clients");
    cJSON *tenants = cJSON_AddArrayToObject(root, "tenants");
    struct ranked *rows = calloc(now->nclients + 1, sizeof(*rows));
    struct tenant *sums = calloc(now->nclients + 1, sizeof(*sums));
    size_t n = 0, k = 0;

    for (size_t i = 0; rows != NULL && sums != NULL && i < now->nclients; i++) {
        static const mcshm_monitor_client nothing;
        const mcshm_monitor_client *c = &now->clients[i], *before = &nothing;
        size_t t = 0;

        /* both are by session */
        while (k < then->nclients && then->clients[k].session < c->session)
            k++;
        if (k < then->nclients && then->clients[k].session == c->session)
            before = &then->clients[k];
        rows[i].row = client_json(c, before, seconds);
        rows[i].rate = cJSON_GetObjectItemCaseSensitive(rows[i].row, "bytes_rate")->valuedouble;
        rows[i].tasks = cJSON_GetObjectItemCaseSensitive(rows[i].row, "tasks_rate")->valuedouble;
        while (t < n && sums[t].id != c->tenant)
            t++;
        if (t == n)
            sums[n++] = (struct tenant){.id = c->tenant, .name = c->tenant_name};
        add_tenant(&sums[t], rows[i].row);
    }
    if (rows != NULL)
        qsort(rows, now->nclients, sizeof(*rows), faster_first);
    for (size_t i = 0; rows != NULL && i < now->nclients; i++)
        cJSON_AddItemToArray(list, rows[i].row);
    for (size_t t = 0; t < n; t++) {
        cJSON *o = cJSON_CreateObject();

        name_tenant(o, sums[t].id, sums[t].name);
        number(o, "clients", sums[t].clients);
        number(o, "memory", (double)sums[t].memory);
        number(o, "depth", (double)sums[t].depth);
        number(o, "bytes_rate", sums[t].bytes_rate);
        number(o, "tasks_rate", sums[t].tasks_rate);
        number(o, "bytes", (double)sums[t].bytes);
        cJSON_AddItemToArray(tenants, o);
    }
    free(rows);
    free(sums);
}

static cJSON *compare(const struct cli *cli, const struct look *now, const struct look *then)
{
    static const mcshm_monitor_engine nothing;
    bool same = now->agent.incarnation == then->agent.incarnation;
    double seconds = same ? (double)(now->agent.sampled_ns - then->agent.sampled_ns) / 1e9 : 0;
    const struct look none = {0};
    cJSON *root = cJSON_CreateObject(), *list;

    cJSON_AddItemToObject(root, "agent", agent_json(cli, now));
    number(root, "seconds", seconds);
    list = cJSON_AddArrayToObject(root, "engines");
    for (size_t i = 0; i < now->nengines; i++)
        cJSON_AddItemToArray(list,
                             engine_json(&now->engines[i],
                                         same && i < then->nengines ? &then->engines[i] : &nothing,
                                         seconds, now->agent.copied));
    add_clients(root, now, same ? then : &none, seconds);
    return root;
}

/* ---- a screen -------------------------------------------------------------------- */

static const cJSON *get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static void cell(char *out, size_t size, const cJSON *o, const char *name, enum cell_kind kind)
{
    table_cell(out, size, get(o, name), kind);
}

static void print_agent(const cJSON *a)
{
    uint64_t up = table_number(get(a, "uptime_s"));
    char used[32], size[32], page[32], socket[160], version[64];

    cell(used, sizeof(used), a, "pool_used", CELL_BYTES);
    cell(size, sizeof(size), a, "pool_size", CELL_BYTES);
    cell(page, sizeof(page), a, "page_size", CELL_BYTES);
    cell(socket, sizeof(socket), a, "socket", CELL_TEXT);
    cell(version, sizeof(version), a, "version", CELL_TEXT);
    printf("mcshmd %s, pid %" PRIu64 ", up %" PRIu64 "d %02" PRIu64 ":%02" PRIu64 ":%02" PRIu64
           ", %s\n",
           version, table_number(get(a, "pid")), up / 86400, up / 3600 % 24, up / 60 % 60, up % 60,
           socket);
    printf("pool %s of %s, pages of %s, %" PRIu64 " extents; %" PRIu64
           " sessions; last sign of life %.1f s ago\n",
           used, size, page, table_number(get(a, "extents")), table_number(get(a, "sessions")),
           get(a, "silent_s")->valuedouble);
    if (!cJSON_IsTrue(get(a, "responds")))
        printf("THE AGENT DOES NOT RESPOND for %.0f s (%s); below is what its counters say\n",
               get(a, "silent_s")->valuedouble, get(a, "process")->valuestring);
    if (!cJSON_IsTrue(get(a, "live_counters")))
        printf("counts are as of the last sign of life: the socket's folder is on no tmpfs\n");
}

static void print_stuck(const cJSON *engines)
{
    const cJSON *e;

    cJSON_ArrayForEach(e, engines)
    {
        if (strcmp(get(e, "state")->valuestring, "stuck") == 0)
            printf("ENGINE %" PRIu64 " DOES NOT RESPOND for %.0f s\n", table_number(get(e, "id")),
                   get(e, "silent_s")->valuedouble);
    }
}

static void print(const cJSON *d)
{
    static const struct column engines[] = {
        {"ENGINE", "id", CELL_COUNT},          {"CORE", "core", CELL_TEXT},
        {"STATE", "state", CELL_TEXT},         {"BUSY %", "busy_percent", CELL_PERCENT},
        {"BYTES/s", "bytes_rate", CELL_BYTES}, {"TASKS/s", "tasks_rate", CELL_COUNT},
        {"HOT", "queues_hot", CELL_COUNT},     {"COLD", "queues_cold", CELL_COUNT},
        {"TASKS", "tasks", CELL_COUNT},        {"BYTES", "bytes", CELL_BYTES},
        {"FAILED", "failed", CELL_COUNT},
    };
    static const struct column clients[] = {
        {"SESSION", "session", CELL_COUNT},    {"NAME", "name", CELL_TEXT},
        {"TENANT", "tenant", CELL_COUNT},      {"PID", "pid", CELL_COUNT},
        {"BYTES/s", "bytes_rate", CELL_BYTES}, {"TASKS/s", "tasks_rate", CELL_COUNT},
        {"DEPTH", "depth", CELL_COUNT},        {"QUEUE us", "queue_ns", CELL_MICROS},
        {"MOVE us", "move_ns", CELL_MICROS},   {"NOTIFY us", "notify_ns", CELL_MICROS},
        {"P50< us", "p50_ns", CELL_MICROS},    {"P99< us", "p99_ns", CELL_MICROS},
        {"BYTES", "bytes", CELL_BYTES},        {"FAILED", "failed", CELL_COUNT},
        {"MEMORY", "memory", CELL_BYTES},
    };
    static const struct column tenants[] = {
        {"TENANT", "tenant", CELL_COUNT},      {"CLIENTS", "clients", CELL_COUNT},
        {"BYTES/s", "bytes_rate", CELL_BYTES}, {"TASKS/s", "tasks_rate", CELL_COUNT},
        {"DEPTH", "depth", CELL_COUNT},        {"BYTES", "bytes", CELL_BYTES},
        {"MEMORY", "memory", CELL_BYTES},
    };
    const cJSON *a = get(d, "agent");
    uint64_t left = table_number(get(a, "sessions_left_out"));
    uint64_t queues = table_number(get(a, "queues_left_out"));

#define TABLE(columns, rows) table_print(columns, sizeof(columns) / sizeof((columns)[0]), rows)
    print_agent(a);
    print_stuck(get(d, "engines"));
    printf("\n");
    TABLE(engines, get(d, "engines"));
    printf("\n");
    TABLE(clients, get(d, "clients"));
    if (left != 0 || queues != 0)
        printf("%" PRIu64 " sessions and %" PRIu64 " queues have no row in the stats file\n", left,
               queues);
    printf("\n");
    TABLE(tenants, get(d, "tenants"));
#undef TABLE
}

/* ---- the loop -------------------------------------------------------------------- */

bool cli_screen(unsigned *lines)
{
    const char *term = getenv("TERM");
    struct winsize w;

    *lines = 0;
    if (!isatty(STDOUT_FILENO) || term == NULL || term[0] == '\0' || strcmp(term, "dumb") == 0)
        return false;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0)
        *lines = w.ws_row;
    return true;
}

void cli_pause_ms(uint64_t ms)
{
    struct timespec ts = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};

    while (nanosleep(&ts, &ts) != 0 && errno == EINTR)
        ;
}

static void show(const struct cli *cli, const struct look *now, const struct look *then)
{
    cJSON *d = compare(cli, now, then);
    unsigned lines;
    char *text;

    if (cli->json) {
        text = cJSON_PrintUnformatted(d);
        puts(text != NULL ? text : "{}");
        cJSON_free(text);
    } else {
        if (!cli->once && cli_screen(&lines)) {
            printf("\033[H\033[J");
            table_set_limit(lines > 2 * OTHER_LINES ? lines - OTHER_LINES : OTHER_LINES);
        }
        print(d);
        if (!cli->once)
            printf("\n");
    }
    fflush(stdout);
    cJSON_Delete(d);
}

/* Where the control thread copies the counts out, waits until it has done so again, or should have. */
static int look_at_new(mcshm_monitor *m, const struct look *then, struct look *now)
{
    int res = look_at(m, now);

    while (res == CLI_OK && now->agent.copied && now->agent.silent_ns < SILENT_NS &&
           now->agent.incarnation == then->agent.incarnation &&
           now->agent.sampled_ns == then->agent.sampled_ns) {
        forget(now);
        cli_pause_ms(COPIED_MS);
        res = look_at(m, now);
    }
    return res;
}

int cli_top(const struct cli *cli)
{
    uint64_t interval = cli->interval_ms != 0 ? cli->interval_ms : INTERVAL_MS;
    uint64_t left = cli->once ? 1 : cli->count;
    struct look then = {0}, now = {0};
    mcshm_monitor *m = NULL;
    mcshm_status status = mcshm_monitor_open(cli->socket, &m);
    int res;

    if (status != MCSHM_OK)
        return cli_error("cannot read the agent's counters", status, NULL);
    res = look_at(m, &then);
    while (res == CLI_OK) {
        mcshm_monitor *fresh;

        cli_pause_ms(interval);
        /* another agent has the socket: go on with its counters */
        if (!mcshm_monitor_current(m) && mcshm_monitor_open(cli->socket, &fresh) == MCSHM_OK) {
            mcshm_monitor_close(m);
            m = fresh;
        }
        res = look_at_new(m, &then, &now);
        if (res != CLI_OK)
            break;
        show(cli, &now, &then);
        forget(&then);
        then = now;
        now = (struct look){0};
        if (left != 0 && --left == 0)
            break;
        if (ferror(stdout) != 0) /* a pipe that nobody reads */
            res = CLI_FAILED;
    }
    forget(&then);
    mcshm_monitor_close(m);
    return res;
}
