/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a run:
 *
 *   this one     starts the others, kills the agent or has it restarted, prints
 *   supervisor   starts an agent, and another when it has died
 *   poller       keeps tasks in flight and never sleeps
 *   owner        has published the memory that they touch; makes no call in the meantime
 */
#include "restart.h"

#include "agent.h"
#include "options.h"
#include "pin.h"
#include "proc.h"
#include "report.h"
#include "say.h"
#include "stats.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 120000
#define POOL_SIZE (UINT64_C(96) << 20)

enum way { KILL, TERM, WAYS };

struct restart_options {
    struct options_common common;
    uint64_t rounds;
};

struct figures {
    double gap_ms[WAYS][STATS_ROUNDS_MAX];
    uint64_t completed[WAYS], failed[WAYS], lost[WAYS];
};

struct stage {
    const struct restart_options *options;
    struct pin_cores cores;
    struct agent agent; /* the supervisor */
    struct restart_context context;
    char segment[64];
    struct proc owner, poller;
    uint64_t restarts, page_size;
    struct figures figures;
};

/* The supervisor's child. */
static int find_agent(pid_t supervisor, pid_t *out)
{
    char path[64];
    FILE *f;
    int pid = 0;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)supervisor, (int)supervisor);
    f = fopen(path, "re");
    if (f == NULL)
        return say_error(-errno, "%s: %m", path);
    if (fscanf(f, "%d", &pid) != 1)
        pid = 0;
    fclose(f);
    *out = pid;
    return pid > 0 ? 0 : say_error(-ESRCH, "the supervisor has no agent");
}

static int strike(struct stage *s, enum way way)
{
    pid_t pid = 0;
    int rc;

    if (way == TERM)
        return kill(s->agent.pid, SIGUSR2) == 0 ? 0 : say_error(-errno, "SIGUSR2: %m");
    rc = find_agent(s->agent.pid, &pid);
    if (rc != 0)
        return rc;
    return kill(pid, SIGKILL) == 0 ? 0 : say_error(-errno, "SIGKILL: %m");
}

static int run_round(struct stage *s, enum way way, uint64_t index)
{
    struct restart_order order = {.restarts = ++s->restarts};
    struct figures *f = &s->figures;
    struct restart_owned owned;
    struct restart_seen seen;
    char byte = 0;
    int rc;

    rc = proc_ask(&s->poller, &order, sizeof(order), &seen, sizeof(seen), ANSWER_MS);
    if (rc == 0)
        rc = strike(s, way);
    for (int answers = 0; rc == 0 && answers < 2; answers++) { /* it flows again; it has ended */
        rc = proc_recv(s->poller.fd, &seen, sizeof(seen), ANSWER_MS);
        if (rc != 0)
            say_error(rc, "the poller did not get on: see its message");
    }
    if (rc == 0)
        rc = proc_ask(&s->owner, &byte, sizeof(byte), &owned, sizeof(owned), ANSWER_MS);
    if (rc != 0)
        return rc;
    f->gap_ms[way][index] = seen.gap_ms;
    f->completed[way] += seen.completed;
    f->failed[way] += seen.failed;
    /* what is wrong stays so: the last look says all */
    f->lost[way] = owned.lost + seen.lost;
    return 0;
}

static int start(struct stage *s)
{
    struct agent_options ao = {.program = s->options->common.mcshmd,
                               .core = s->cores.engine,
                               .supervise = true,
                               .pool_size = POOL_SIZE};
    struct restart_owned owned;
    char byte = 0;
    int rc;

    rc = agent_start(&ao, &s->agent);
    if (rc != 0)
        return rc;
    snprintf(s->segment, sizeof(s->segment), "mcshm-bench-restart-%d", (int)getpid());
    s->context.socket = s->agent.socket;
    s->context.segment = s->segment;
    rc = proc_start(&s->owner, "owner", restart_owner_main, &s->context);
    if (rc == 0)
        rc = proc_ask(&s->owner, &byte, sizeof(byte), &owned, sizeof(owned), ANSWER_MS);
    if (rc != 0)
        return rc;
    s->context.address = owned.address;
    s->page_size = owned.page_size;
    return proc_start(&s->poller, "poller", restart_poller_main, &s->context);
}

static void stop(struct stage *s, bool failed)
{
    struct proc *all[] = {&s->poller, &s->owner};

    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (failed)
            proc_kill(all[i]);
        else
            proc_stop(all[i]);
    }
    agent_stop(&s->agent);
}

static double largest(const double *values, uint64_t n)
{
    double max = 0;

    for (uint64_t i = 0; i < n; i++)
        max = values[i] > max ? values[i] : max;
    return max;
}

static double median(const double *values, uint64_t n)
{
    struct stats_rounds r = {.count = 0};

    for (uint64_t i = 0; i < n; i++)
        stats_add(&r, values[i]);
    return stats_median(&r);
}

static int print_json(const struct stage *s)
{
    static const char *const names[WAYS] = {"kill", "term"};
    const struct figures *f = &s->figures;
    uint64_t n = s->options->rounds;
    cJSON *doc = cJSON_CreateObject();
    int rc;

    cJSON_AddStringToObject(doc, "bench", "restart");
    for (int way = 0; way < WAYS; way++) {
        cJSON *o = cJSON_AddObjectToObject(doc, names[way]), *list;
        char text[32];

        report_number(o, "gap_ms", median(f->gap_ms[way], n), 3);
        report_number(o, "gap_max_ms", largest(f->gap_ms[way], n), 3);
        report_count(o, "failed", f->failed[way]);
        report_count(o, "lost", f->lost[way]);
        report_count(o, "completed", f->completed[way]);
        list = cJSON_AddArrayToObject(o, "gaps_ms");
        for (uint64_t i = 0; i < n; i++) {
            snprintf(text, sizeof(text), "%.3f", f->gap_ms[way][i]);
            cJSON_AddItemToArray(list, cJSON_CreateRaw(text));
        }
    }
    report_count(doc, "rounds", n);
    report_count(doc, "task_bytes", RESTART_TASK);
    report_count(doc, "in_flight", RESTART_BATCH * RESTART_FLIGHT);
    report_count(doc, "checked_bytes", 2 * RESTART_MEMORY);
    report_place(doc, &s->agent, &s->cores, s->page_size);
    cJSON_ReplaceItemInObject(doc, "idle_mode", cJSON_CreateString("sleep"));
    rc = report_print(doc);
    cJSON_Delete(doc);
    return rc;
}

static int print(const struct stage *s)
{
    static const char *const names[WAYS] = {"kill -9 of the agent", "restart in good order"};
    const struct figures *f = &s->figures;
    uint64_t n = s->options->rounds;

    if (s->options->common.json)
        return print_json(s);
    printf(
        "%u tasks of %llu KiB in flight, %llu rounds; every byte of 2 x %llu MiB checked after "
        "each\n\n"
        "                          longest pause, ms       tasks failed    completed   bytes lost\n"
        "                          median      max\n",
        RESTART_BATCH * RESTART_FLIGHT, (unsigned long long)RESTART_TASK >> 10,
        (unsigned long long)n, (unsigned long long)RESTART_MEMORY >> 20);
    for (int way = 0; way < WAYS; way++)
        printf("%-24s %7.1f  %7.1f   %16llu %12llu %12llu\n", names[way], median(f->gap_ms[way], n),
               largest(f->gap_ms[way], n), (unsigned long long)f->failed[way],
               (unsigned long long)f->completed[way], (unsigned long long)f->lost[way]);
    return 0;
}

static void help(void)
{
    printf("mcshm-bench restart: an agent under its supervisor is killed, and restarted in good\n"
           "order, while a client polls: how long nothing completes, which tasks are lost, and\n"
           "whether a byte of pool memory is.\n"
           "\n"
           "  --rounds N        of either, 1 to %u; default 10; gap_ms is their median\n"
           "  --json            one JSON document on stdout\n"
           "  --mcshmd PATH     the agent's program; default: beside this one, else in PATH\n"
           "  --help\n",
           STATS_ROUNDS_MAX);
}

static int parse(int argc, char **argv, struct restart_options *o)
{
    enum { ROUNDS = OPTION_OWN };
    static const struct option known[] = {
        {"rounds", required_argument, NULL, ROUNDS}, OPTIONS_COMMON_LONG, {NULL, 0, NULL, 0}};
    int option, rc = 0;

    while (rc == 0 && (option = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        if (options_take(option, &o->common))
            continue;
        switch (option) {
        case ROUNDS:
            rc = options_count("rounds", optarg, 1, STATS_ROUNDS_MAX, &o->rounds);
            break;
        case 'h':
            help();
            return 1;
        default:
            return -EINVAL; /* getopt has named it */
        }
    }
    if (rc == 0 && o->common.socket != NULL)
        rc = say_error(-EINVAL, "--socket: an agent that others use is not killed; restart starts "
                                "its own");
    return rc != 0 ? rc : options_end("restart", argc, argv);
}

int restart_command(int argc, char **argv)
{
    struct restart_options options = {.rounds = 10};
    struct stage s = {.options = &options};
    uint64_t lost = 0;
    int rc = parse(argc, argv, &options);

    if (rc != 0)
        return rc > 0 ? 0 : rc;
    rc = pin_choose(&s.cores);
    if (rc != 0)
        return say_error(rc, "no core to run on: %s", strerror(-rc));
    rc = start(&s);
    for (uint64_t i = 0; rc == 0 && i < options.rounds; i++) {
        /* in turns: what drifts cancels out */
        for (int way = 0; rc == 0 && way < WAYS; way++)
            rc = run_round(&s, (enum way)way, i);
    }
    stop(&s, rc != 0);
    if (rc == 0)
        rc = print(&s);
    for (int way = 0; way < WAYS; way++)
        lost += s.figures.lost[way];
    return rc != 0 ? rc : lost != 0 ? -EIO : 0;
}
