/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct check {
    const char *area, *name;
    void (*run)(struct doctor *d);
    bool (*wanted)(const struct doctor *d); /* also when its area is not asked for; NULL: always */
} checks[] = {
    {"agent", "configuration", doctor_check_config, NULL},
    {"agent", "socket", doctor_check_path, NULL},
    {"agent", "agent", doctor_check_alive, NULL},
    {"agent", "other agents", doctor_check_others, NULL},
    {"memory", "hugepages", doctor_check_hugepages, NULL},
    {"memory", "memory", doctor_check_memory, NULL},
    {"memory", "transparent hugepages", doctor_check_thp, NULL},
    {"memory", "cgroup memory", doctor_check_cgroup_memory, NULL},
    {"memory", "cgroup hugetlb", doctor_check_cgroup_hugetlb, NULL},
    {"memory", "locked memory", doctor_check_memlock, NULL},
    {"memory", "descriptors", doctor_check_nofile, NULL},
    {"cpu", "NUMA", doctor_check_numa, NULL},
    {"cpu", "engine cores", doctor_check_cores, NULL},
    {"cpu", "isolation", doctor_check_isolation, NULL},
    {"cpu", "governor", doctor_check_governor, NULL},
    {"cpu", "cgroup cpu", doctor_check_cgroup_cpu, NULL},
    {"cpu", "clock", doctor_check_clock, NULL},
    {"kernel", "memfd", doctor_check_memfd, NULL},
    {"kernel", "memfd of hugepages", doctor_check_hugetlb, NULL},
    {"kernel", "populate", doctor_check_populate, NULL},
    {"kernel", "membarrier", doctor_check_membarrier, NULL},
    {"kernel", "io_uring", doctor_check_uring, NULL},
    {"kernel", "pidfd", doctor_check_pidfd, NULL},
    {"kernel", "other rights", doctor_check_rights, NULL},
    {"host", "container", doctor_check_container, NULL},
    {"host", "seccomp", doctor_check_seccomp, NULL},
    {"cluster", "metadata", doctor_check_metadata, NULL},
    {"rdma", "use", doctor_check_rdma_use, NULL},
    {"rdma", "kernel", doctor_check_rdma_kernel, doctor_wants_rdma},
    {"rdma", "devices", doctor_check_rdma_devices, doctor_wants_rdma},
    {"rdma", "ports", doctor_check_rdma_ports, doctor_wants_rdma},
    {"rdma", "NUMA", doctor_check_rdma_numa, doctor_wants_rdma},
    {"rdma", "GPUs", doctor_check_rdma_gpus, doctor_wants_rdma},
    {"rdma", "locked memory", doctor_check_rdma_memlock, doctor_wants_rdma},
    {"rdma", "agent", doctor_check_rdma_agent, doctor_wants_rdma},
    {"gpu", "use", doctor_check_gpu_use, NULL},
    {"gpu", "files", doctor_check_gpu_files, doctor_wants_gpu},
    {"gpu", "devices", doctor_check_gpu_devices, doctor_wants_gpu},
    {"gpu", "visibility", doctor_check_gpu_visible, doctor_wants_gpu},
    {"gpu", "agent", doctor_check_gpu_agent, doctor_wants_gpu},
};
#define NCHECKS (sizeof(checks) / sizeof(checks[0]))

static const char *const words[] = {"ok", "note", "warn", "bad"};

void doctor_say(struct doctor *d, enum severity severity, const char *remedy, const char *format,
                ...)
{
    struct finding *f = realloc(d->findings, (d->nfindings + 1) * sizeof(*f));
    va_list ap;

    if (f == NULL)
        return;
    d->findings = f;
    f = &f[d->nfindings++];
    *f = (struct finding){.severity = severity, .area = d->area, .check = d->check};
    va_start(ap, format);
    vsnprintf(f->what, sizeof(f->what), format, ap);
    va_end(ap);
    if (remedy != NULL)
        snprintf(f->remedy, sizeof(f->remedy), "%s", remedy);
    for (char *p = f->what; *p != '\0'; p++) /* names are what others chose */
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
}

static enum severity worst(const struct doctor *d)
{
    enum severity w = DOCTOR_OK;

    for (size_t i = 0; i < d->nfindings; i++)
        if (d->findings[i].severity > w)
            w = d->findings[i].severity;
    return w;
}

/* Takes `peer`, NULL: none was asked for. */
static void print_json(const struct doctor *d, cJSON *peer)
{
    cJSON *root = cJSON_CreateObject(), *list;
    char *text;

    cJSON_AddStringToObject(root, "worst", words[worst(d)]);
    cJSON_AddStringToObject(root, "socket", d->socket);
    list = cJSON_AddArrayToObject(root, "findings");
    for (size_t i = 0; i < d->nfindings; i++) {
        const struct finding *f = &d->findings[i];
        cJSON *o = cJSON_CreateObject();

        cJSON_AddStringToObject(o, "area", f->area);
        cJSON_AddStringToObject(o, "check", f->check);
        cJSON_AddStringToObject(o, "severity", words[f->severity]);
        cJSON_AddStringToObject(o, "what", f->what);
        cJSON_AddStringToObject(o, "remedy", f->remedy);
        cJSON_AddItemToArray(list, o);
    }
    if (peer != NULL)
        cJSON_AddItemToObject(root, "peer", peer);
    text = cJSON_PrintUnformatted(root);
    puts(text != NULL ? text : "{}");
    cJSON_free(text);
    cJSON_Delete(root);
}

static void print(const struct doctor *d)
{
    static const char *const marks[] = {"ok  ", "note", "WARN", "BAD "};
    size_t counts[4] = {0};
    const char *area = "";

    for (size_t i = 0; i < d->nfindings; i++) {
        const struct finding *f = &d->findings[i];

        counts[f->severity]++;
        if (strcmp(area, f->area) != 0)
            printf("%s%s\n", i == 0 ? "" : "\n", f->area);
        area = f->area;
        printf("  %s  %s: %s\n", marks[f->severity], f->check, f->what);
        if (f->remedy[0] != '\0')
            printf("        -> %s\n", f->remedy);
    }
    printf("\n%zu bad, %zu warnings, %zu notes, %zu ok\n", counts[DOCTOR_BAD], counts[DOCTOR_WARN],
           counts[DOCTOR_NOTE], counts[DOCTOR_OK]);
}

static bool known_area(const char *area)
{
    for (size_t i = 0; i < NCHECKS; i++)
        if (strcmp(checks[i].area, area) == 0)
            return true;
    return false;
}

static void run_checks(struct doctor *d, const char *area)
{
    for (size_t i = 0; i < NCHECKS; i++) {
        size_t before = d->nfindings;

        d->area = checks[i].area;
        d->check = checks[i].name;
        if (area != NULL ? strcmp(area, d->area) == 0
                         : checks[i].wanted == NULL || checks[i].wanted(d))
            checks[i].run(d);
        else if (checks[i].run == doctor_check_alive) { /* whose limits others look at */
            checks[i].run(d);
            d->nfindings = before;
        }
    }
}

int cli_doctor(const struct cli *cli, const char *area)
{
    struct doctor d = {.cli = cli, .root = "", .area = "agent", .check = "configuration"};
    cJSON *peer = NULL;
    enum severity w;
    int res;

    if (area != NULL && !known_area(area))
        return CLI_NO_SUCH_LIST;
    if ((cli->peer != NULL || cli->serve) && (area == NULL || strcmp(area, "rdma") != 0)) {
        fprintf(stderr, "mcshm: --peer and --serve are of 'mcshm doctor rdma'\n");
        return CLI_USAGE;
    }
    doctor_load_settings(&d);
    snprintf(d.socket, sizeof(d.socket), "%s",
             !cli->socket_given && doctor_setting(&d, "agent.socket")[0] != '\0'
                 ? doctor_setting(&d, "agent.socket")
                 : cli->socket);
    if (cli->serve) {
        res = doctor_serve(&d);
        goto out;
    }
    run_checks(&d, area);
    w = worst(&d);
    if (!cli->json)
        print(&d);
    if (cli->peer != NULL) { /* then the verdict is of it alone */
        peer = cJSON_CreateObject();
        w = doctor_peer(&d, cli->peer, peer);
    }
    if (cli->json)
        print_json(&d, peer);
    else
        cJSON_Delete(peer);
    res = w == DOCTOR_BAD ? 2 : w == DOCTOR_WARN ? 1 : 0;
out:
    free(d.findings);
    free(d.settings);
    return res;
}
