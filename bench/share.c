/* SPDX-License-Identifier: Apache-2.0 */
#include "share.h"

#include "agent.h"
#include "clock.h"
#include "options.h"
#include "pages.h"
#include "pin.h"
#include "proc.h"
#include "report.h"
#include "say.h"
#include "share_client.h"

#include <errno.h>
#include <math.h>
#include <mcshm.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EQUAL 4u
#define WEIGHTED 3u
#define FLOODS 4u
#define FLOOD_DEPTH 2u
#define CLIENTS (EQUAL + WEIGHTED + FLOODS + 1)
#define PROBE (CLIENTS - 1)
#define ANSWER_MS 120000
#define FIRST_UID 61001u /* as root each tenant is a user of its own */
#define MiB (UINT64_C(1) << 20)
#define SLICE (UINT64_C(256) << 10)

static const unsigned weights[WEIGHTED] = {1, 2, 4};

struct share_options {
    struct options_common common;
    double seconds; /* of one measurement */
    uint64_t size;  /* bytes of a task of those that share */
    uint64_t flood; /* bytes of one copy of the flood */
};

struct stage {
    struct share_options o;
    struct pin_cores cores;
    struct agent agent;
    struct share_client clients[CLIENTS];
    char names[CLIENTS][32];
    char folder[108], path[108];
    struct proc procs[CLIENTS];
    unsigned started;
    mcshm *c; /* the parent's own, for the agent's counters */
    bool users;
    /* results */
    double jain, weighted_error, shares[WEIGHTED];
    double equal_gbps, weighted_gbps, flood_gbps;
    struct share_answer idle, high;
    double slice_us;
    uint64_t page_size;
};

/* ---- the clients ----------------------------------------------------------------- */

static void describe(struct stage *s)
{
    for (unsigned i = 0; i < CLIENTS; i++) {
        struct share_client *c = &s->clients[i];
        const char *kind = i < EQUAL              ? "equal"
                           : i < EQUAL + WEIGHTED ? "weighted"
                           : i < PROBE            ? "flood"
                                                  : "probe";

        snprintf(s->names[i], sizeof(s->names[i]), "%s-%u", kind, i);
        *c = (struct share_client){
            .folder = s->folder[0] != '\0' ? s->folder : NULL,
            .socket = s->path,
            .name = s->names[i],
            .core = i == PROBE ? s->cores.client : -1,
            .not_on = s->cores.engine,
            .queues = i < EQUAL + WEIGHTED ? 1 + i % 2 : 2, /* a queue more is no larger share */
            /* deep enough for the time until a sleeper has the core that it shares with the others */
            .depth = i < EQUAL + WEIGHTED ? SHARE_DEPTH_MAX : FLOOD_DEPTH,
            .length = i < EQUAL + WEIGHTED ? s->o.size : s->o.flood,
            .tasks = i < EQUAL + WEIGHTED ? 64 : 1,
            .background = i >= EQUAL + WEIGHTED,
        };
        if (i == PROBE) {
            c->queues = 1;
            c->length = 64;
        }
        /* floods and the prober are one tenant: its classes part them */
        if (s->users)
            c->uid = FIRST_UID + (i < EQUAL + WEIGHTED ? i : EQUAL + WEIGHTED);
    }
}

static char *settings(const struct stage *s)
{
    size_t size = 4096, n = 0;
    char *text = malloc(size);

    if (text == NULL)
        return NULL;
    n += (size_t)snprintf(text, size, "[task]\ndeadline_ms = 120000\n");
    if (!s->users)
        return text;
    n += (size_t)snprintf(text + n, size - n, "[agent]\nsocket_mode = 0666\n");
    for (unsigned i = 0; i < EQUAL; i++)
        n += (size_t)snprintf(text + n, size - n, "[tenant:equal%u]\nuids = %u\nweight = 3\n", i,
                              FIRST_UID + i);
    for (unsigned i = 0; i < WEIGHTED; i++)
        n += (size_t)snprintf(text + n, size - n, "[tenant:weight%u]\nuids = %u\nweight = %u\n",
                              weights[i], FIRST_UID + EQUAL + i, weights[i]);
    snprintf(text + n, size - n, "[tenant:classes]\nuids = %u\n", FIRST_UID + EQUAL + WEIGHTED);
    return text;
}

static int start_client(struct stage *s, unsigned i)
{
    struct share_answer ready;
    int rc = proc_start(&s->procs[i], s->names[i], i == PROBE ? share_probe_main : share_flood_main,
                        &s->clients[i]);

    if (rc != 0)
        return rc;
    s->started = i + 1;
    rc = proc_recv(s->procs[i].fd, &ready, sizeof(ready), ANSWER_MS);
    return rc == 0 ? 0 : say_error(rc, "the %s process is not ready", s->names[i]);
}

static int start_stage(struct stage *s)
{
    struct agent_options ao = {.program = s->o.common.mcshmd,
                               .core = s->cores.engine,
                               .busy = true,
                               .pool_size =
                                   2 * FLOODS * s->o.flood + (EQUAL + WEIGHTED + 2) * 34 * MiB,
                               .open = true};
    char *text = settings(s), *slash;
    mcshm_options options;
    mcshm_info info;
    mcshm_status status;
    int rc;

    if (text == NULL)
        return -ENOMEM;
    ao.settings = text;
    rc = agent_start(&ao, &s->agent);
    free(text);
    if (rc != 0)
        return rc;
    snprintf(s->path, sizeof(s->path), "%s", s->agent.socket);
    slash = strrchr(s->agent.socket, '/');
    if (s->users && slash != NULL) {
        snprintf(s->folder, sizeof(s->folder), "%.*s", (int)(slash - s->agent.socket),
                 s->agent.socket);
        snprintf(s->path, sizeof(s->path), "./%.100s", slash + 1);
    }
    describe(s);
    for (unsigned i = 0; rc == 0 && i < CLIENTS; i++)
        rc = start_client(s, i);
    if (rc != 0)
        return rc;
    mcshm_options_init(&options);
    options.socket_path = s->agent.socket;
    options.name = "share";
    status = mcshm_connect(&options, &s->c);
    if (status == MCSHM_OK)
        status = mcshm_get_info(s->c, &info);
    if (status != MCSHM_OK)
        return say_status(NULL, status, "connecting to the agent");
    s->page_size = info.page_size;
    return 0;
}

static void stop_stage(struct stage *s, bool failed)
{
    if (s->c != NULL)
        mcshm_close(s->c);
    for (unsigned i = 0; i < s->started; i++) {
        if (failed)
            proc_kill(&s->procs[i]);
        else
            proc_stop(&s->procs[i]);
    }
    agent_stop(&s->agent);
}

/* ---- measurements ---------------------------------------------------------------- */

/* Bytes that the agent has moved for each client, all of them at one moment, by its own account. */
static int look(struct stage *s, double *bytes)
{
    const cJSON *row;
    cJSON *d;
    char *text;
    mcshm_status status = mcshm_query(s->c, MCSHM_QUERY_SESSIONS, &text);

    if (status != MCSHM_OK)
        return say_status(s->c, status, "asking the agent");
    d = cJSON_Parse(text);
    free(text);
    memset(bytes, 0, CLIENTS * sizeof(*bytes));
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(d, "sessions"))
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "name"));

        for (unsigned i = 0; name != NULL && i < CLIENTS; i++)
            if (strcmp(name, s->names[i]) == 0)
                bytes[i] = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(row, "bytes"));
    }
    cJSON_Delete(d);
    return 0;
}

/* Lets clients flow or rest; tasks: what they have done so far is added. */
static int order(struct stage *s, unsigned first, unsigned n, bool go, uint64_t *tasks)
{
    struct share_order what = {.go = go, .seconds = s->o.seconds};
    struct share_answer answer;
    int rc = 0;

    for (unsigned i = first; rc == 0 && i < first + n; i++)
        rc = proc_send(s->procs[i].fd, &what, sizeof(what));
    for (unsigned i = first; rc == 0 && i < first + n; i++) {
        rc = proc_recv(s->procs[i].fd, &answer, sizeof(answer), ANSWER_MS);
        if (rc == 0 && tasks != NULL)
            *tasks += answer.tasks;
    }
    return rc == 0 ? 0 : say_error(rc, "a client does not answer");
}

/* The bytes of clients that all want as much as they can get, between two looks; then they rest. */
static int saturate(struct stage *s, unsigned first, unsigned n, double *bytes, double *gbps)
{
    double before[CLIENTS], after[CLIENTS], all = 0;
    int rc = order(s, first, n, true, NULL);

    if (rc == 0)
        rc = look(s, before);
    poll(NULL, 0, (int)(s->o.seconds * 1000)); /* the time is what is measured */
    if (rc == 0)
        rc = look(s, after);
    if (rc == 0)
        rc = order(s, first, n, false, NULL);
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        bytes[i] = after[first + i] - before[first + i];
        all += bytes[i];
    }
    *gbps = all / s->o.seconds / 1e9;
    return rc;
}

static int measure_shares(struct stage *s)
{
    double bytes[EQUAL + WEIGHTED], sum = 0, squares = 0, all = 0, of_weights = 0;
    int rc = saturate(s, 0, EQUAL, bytes, &s->equal_gbps);

    if (rc != 0)
        return rc;
    for (unsigned i = 0; i < EQUAL; i++) {
        sum += bytes[i];
        squares += bytes[i] * bytes[i];
    }
    s->jain = squares > 0 ? sum * sum / (EQUAL * squares) : NAN;
    if (!s->users)
        return 0;
    rc = saturate(s, EQUAL, WEIGHTED, bytes, &s->weighted_gbps);
    if (rc != 0)
        return rc;
    for (unsigned i = 0; i < WEIGHTED; i++) {
        all += bytes[i];
        of_weights += weights[i];
    }
    s->weighted_error = 0;
    for (unsigned i = 0; i < WEIGHTED; i++) {
        double error;

        s->shares[i] = bytes[i] / all;
        error = fabs(s->shares[i] * of_weights / weights[i] - 1);
        s->weighted_error = error > s->weighted_error ? error : s->weighted_error;
    }
    return 0;
}

static int ask_prober(struct stage *s, double seconds, struct share_answer *out)
{
    struct share_order what = {.go = true, .seconds = seconds};

    return proc_ask(&s->procs[PROBE], &what, sizeof(what), out, sizeof(*out), ANSWER_MS);
}

/*
 * The rate of the flood is that of all its copies, from the first submission until the last one has ended: the engine
 * does nothing else, and its copies are too large to count how many end in a given time.
 */
static int measure_flood(struct stage *s)
{
    uint64_t start, tasks = 0;
    int rc = ask_prober(s, s->o.seconds / 4, &s->idle); /* first touches */

    if (rc == 0)
        rc = ask_prober(s, s->o.seconds, &s->idle);
    start = clock_ns();
    if (rc == 0)
        rc = order(s, EQUAL + WEIGHTED, FLOODS, true, NULL);
    if (rc == 0)
        rc = ask_prober(s, s->o.seconds * 2, &s->high);
    if (rc == 0)
        rc = order(s, EQUAL + WEIGHTED, FLOODS, false, &tasks);
    s->flood_gbps = (double)(tasks * s->o.flood) / (double)(clock_ns() - start);
    return rc;
}

/* ---- results --------------------------------------------------------------------- */

static int print(const struct stage *s)
{
    char pages[64];
    cJSON *doc, *list;
    int rc;

    if (!s->o.common.json) {
        pages_name(s->page_size, pages, sizeof(pages));
        printf("share: prober on core %d, engine on core %d, %s (%s), %s\n"
               "%s; %.2f s each; floods sleep while they wait\n\n"
               "  equal weights, %u clients of %s:  Jain index %.5f (%.2f GB/s)\n",
               s->cores.client, s->cores.engine, pages, s->agent.pages_note, pin_cpu_model(),
               s->users ? "each client is a user, and a tenant of its own"
                        : "not root: all clients are one user, so one tenant; no weights",
               s->o.seconds, EQUAL, s->users ? "as many tenants" : "one tenant", s->jain,
               s->equal_gbps);
        if (s->users)
            printf("  weights 1:2:4:  %.4f : %.4f : %.4f of the bytes, largest error %.2f %% (%.2f "
                   "GB/s)\n",
                   s->shares[0], s->shares[1], s->shares[2], s->weighted_error * 100,
                   s->weighted_gbps);
        printf(
            "  a 64-byte task of class high: idle p50 %.2f us, p99 %.2f us\n"
            "  beside %u clients with %u background copies of %llu MiB (%.2f GB/s): p50 %.2f us, "
            "p99 %.2f us\n"
            "  one slice (256 KiB) at that rate: %.2f us\n",
            s->idle.p50_us, s->idle.p99_us, FLOODS, FLOODS * 2 * FLOOD_DEPTH,
            (unsigned long long)(s->o.flood / MiB), s->flood_gbps, s->high.p50_us, s->high.p99_us,
            s->slice_us);
        return fflush(stdout) == 0 ? 0 : say_error(-EIO, "cannot write the result to stdout");
    }
    doc = cJSON_CreateObject();
    cJSON_AddStringToObject(doc, "bench", "share");
    report_number(doc, "jain", s->jain, 6);
    report_number(doc, "weighted_error", s->weighted_error, 6);
    report_number(doc, "p99_idle_us", s->idle.p99_us, 3);
    report_number(doc, "p99_high_us", s->high.p99_us, 3);
    report_number(doc, "slice_us", s->slice_us, 3);
    report_number(doc, "p50_idle_us", s->idle.p50_us, 3);
    report_number(doc, "p50_high_us", s->high.p50_us, 3);
    list = cJSON_AddArrayToObject(doc, "weighted_shares");
    for (unsigned i = 0; s->users && i < WEIGHTED; i++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber(s->shares[i]));
    report_number(doc, "equal_gbps", s->equal_gbps, 3);
    report_number(doc, "weighted_gbps", s->weighted_gbps, 3);
    report_number(doc, "flood_gbps", s->flood_gbps, 3);
    report_count(doc, "flood_bytes", s->o.flood);
    report_count(doc, "slice_bytes", SLICE);
    report_count(doc, "samples", s->high.tasks);
    cJSON_AddBoolToObject(doc, "users", s->users);
    report_place(doc, &s->agent, &s->cores, s->page_size);
    report_number(doc, "seconds", s->o.seconds, 3);
    rc = report_print(doc);
    cJSON_Delete(doc);
    return rc;
}

static void help(void)
{
    printf(
        "mcshm-bench share: who gets how much of an engine, and what a flood costs a small task.\n"
        "As root each client is a user of its own (uids %u and up) and so a tenant.\n"
        "\n"
        "  --seconds S       length of one measurement, 0.05 to 60; default 2\n"
        "  --size SIZE       bytes of a task of those that share, 4K to 16M; default 1M\n"
        "  --flood SIZE      bytes of one copy of the flood, 1M to 1G; default 256M\n"
        "  --json            one JSON document on stdout\n"
        "  --mcshmd PATH     the agent's program; default: beside this one, else in PATH\n"
        "  --help\n",
        FIRST_UID);
}

static int parse(int argc, char **argv, struct share_options *o)
{
    enum { SECONDS = OPTION_OWN, SIZE, FLOOD };
    static const struct option known[] = {{"seconds", required_argument, NULL, SECONDS},
                                          {"size", required_argument, NULL, SIZE},
                                          {"flood", required_argument, NULL, FLOOD},
                                          OPTIONS_COMMON_LONG,
                                          {NULL, 0, NULL, 0}};
    int option, rc = 0;
    const char *end;

    while (rc == 0 && (option = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        if (options_take(option, &o->common))
            continue;
        switch (option) {
        case SECONDS:
            rc = options_real("seconds", optarg, 0.05, 60, &o->seconds);
            break;
        case SIZE:
            end = options_bytes(optarg, &o->size);
            if (end == NULL || *end != '\0' || o->size < 4096 || o->size > 16 * MiB)
                rc = say_error(-EINVAL, "--size %s: expected bytes from 4K to 16M", optarg);
            break;
        case FLOOD:
            end = options_bytes(optarg, &o->flood);
            if (end == NULL || *end != '\0' || o->flood < MiB || o->flood > 1024 * MiB)
                rc = say_error(-EINVAL, "--flood %s: expected bytes from 1M to 1G", optarg);
            break;
        case 'h':
            help();
            return 1;
        default:
            return -EINVAL; /* getopt has named it */
        }
    }
    if (rc == 0 && o->common.socket != NULL)
        rc = say_error(-EINVAL, "share: --socket: it measures an agent with tenants of its own");
    return rc != 0 ? rc : options_end("share", argc, argv);
}

int share_command(int argc, char **argv)
{
    struct stage s = {.o = {.seconds = 2, .size = MiB, .flood = 256 * MiB}, .weighted_error = NAN};
    int rc = parse(argc, argv, &s.o);

    if (rc != 0)
        return rc > 0 ? 0 : rc;
    rc = pin_pair("share", &s.cores);
    if (rc != 0)
        return rc;
    s.users = geteuid() == 0;
    rc = start_stage(&s);
    if (rc == 0)
        rc = measure_shares(&s);
    if (rc == 0)
        rc = measure_flood(&s);
    stop_stage(&s, rc != 0);
    s.slice_us = (double)SLICE / s.flood_gbps / 1e3;
    return rc != 0 ? rc : print(&s);
}
