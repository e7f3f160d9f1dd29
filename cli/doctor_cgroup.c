/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of control groups, version 2 and 1: the narrowest on the way from the agent's group up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

/* The path of a group, of the agent's where there is one. controller: "" for version 2. */
static bool group_of(const struct doctor *d, const char *controller, char *out, size_t size)
{
    char text[8192], *line, *rest = text;
    bool found =
        d->agent_pid != 0 && doctor_read(d, text, sizeof(text), "/proc/%u/cgroup", d->agent_pid);

    if (!found && !doctor_read(d, text, sizeof(text), "/proc/self/cgroup"))
        return false;
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *names = strchr(line, ':'), *path, *name;

        if (names == NULL || (path = strchr(names + 1, ':')) == NULL)
            continue;
        *path++ = '\0';
        names++;
        if (controller[0] == '\0' && names[0] == '\0') {
            snprintf(out, size, "%s", path);
            return true;
        }
        while (controller[0] != '\0' && (name = strsep(&names, ",")) != NULL) {
            if (strcmp(name, controller) == 0) {
                snprintf(out, size, "%s", path);
                return true;
            }
        }
    }
    return false;
}

/* The least value of a file in the group and those above it; where names which. In a container the
 * path may name a group outside of what is mounted: then what is mounted is the group. */
static bool narrowest(const struct doctor *d, const char *mount, const char *path, const char *file,
                      uint64_t *out, char *where, size_t size)
{
    char group[512];
    bool any = false;

    snprintf(group, sizeof(group), "%s", path);
    for (;;) {
        char *slash;
        uint64_t v;

        if (doctor_read_number(d, &v, "%s%s/%s", mount, strcmp(group, "/") == 0 ? "" : group,
                               file) &&
            (!any || v < *out)) {
            any = true;
            *out = v;
            snprintf(where, size, "%s%s/%s", mount, strcmp(group, "/") == 0 ? "" : group, file);
        }
        if (group[0] == '\0' || strcmp(group, "/") == 0)
            return any;
        slash = strrchr(group, '/');
        if (slash == NULL)
            return any;
        *slash = '\0';
    }
}

/* A limit, whichever version has it. */
static bool limit(const struct doctor *d, const char *v2_file, const char *controller,
                  const char *v1_file, uint64_t *out, char *where, size_t size)
{
    char path[512], mount[64];

    if (group_of(d, "", path, sizeof(path)) &&
        narrowest(d, "/sys/fs/cgroup", path, v2_file, out, where, size))
        return true;
    if (!group_of(d, controller, path, sizeof(path)))
        return false;
    snprintf(mount, sizeof(mount), "/sys/fs/cgroup/%s", controller);
    if (!narrowest(d, mount, path, v1_file, out, where, size))
        return false;
    if (*out >= UINT64_C(1) << 60) /* how version 1 writes "none" */
        *out = UINT64_MAX;
    return true;
}

void doctor_check_cgroup_memory(struct doctor *d)
{
    uint64_t pool = doctor_pool_and_store(d), v;
    bool hugepages = strcmp(doctor_setting(d, "pool.pages"), "require") == 0;
    char where[600], text[32], pool_text[32];

    if (!limit(d, "memory.max", "memory", "memory.limit_in_bytes", &v, where, sizeof(where)) ||
        v == UINT64_MAX) {
        doctor_say(d, DOCTOR_OK, NULL, "no limit");
        return;
    }
    doctor_size(v, text, sizeof(text));
    doctor_size(pool, pool_text, sizeof(pool_text));
    if (v < UINT64_C(128) << 20)
        doctor_say(d, DOCTOR_BAD, "raise it, or the kernel kills the agent",
                   "%s is %s: less than an agent without a pool takes", where, text);
    else if (!hugepages && v < pool + (UINT64_C(128) << 20))
        doctor_say(d, DOCTOR_WARN,
                   "raise it, make [pool] or [store] size smaller, or reserve hugepages and set "
                   "[pool] pages = "
                   "require: hugepages do not count here",
                   "%s is %s; pool and object store of %s in ordinary pages do not fit, and the "
                   "kernel kills "
                   "whom it finds",
                   where, text, pool_text);
    else
        doctor_say(d, DOCTOR_OK, NULL, "%s is %s", where, text);
}

void doctor_check_cgroup_hugetlb(struct doctor *d)
{
    uint64_t page = doctor_setting_number(d, "pool.page_size", UINT64_C(2) << 20);
    uint64_t pool = doctor_setting_number(d, "pool.size", UINT64_C(1) << 30), v;
    const char *name = page == UINT64_C(1) << 30 ? "1GB" : "2MB";
    bool require = strcmp(doctor_setting(d, "pool.pages"), "require") == 0;
    char v2[64], v1[64], where[600], text[32], pool_text[32];

    snprintf(v2, sizeof(v2), "hugetlb.%s.max", name);
    snprintf(v1, sizeof(v1), "hugetlb.%s.limit_in_bytes", name);
    if (strcmp(doctor_setting(d, "pool.pages"), "off") == 0 ||
        !limit(d, v2, "hugetlb", v1, &v, where, sizeof(where)) || v == UINT64_MAX) {
        doctor_say(d, DOCTOR_OK, NULL, "no limit");
        return;
    }
    doctor_size(v, text, sizeof(text));
    doctor_size(pool, pool_text, sizeof(pool_text));
    if (v < pool)
        doctor_say(
            d, require ? DOCTOR_BAD : DOCTOR_WARN,
            "raise it (in Kubernetes: limits of hugepages-2Mi or hugepages-1Gi), or make [pool] "
            "size smaller",
            "%s is %s, less than the pool's %s, however many pages are free", where, text,
            pool_text);
    else
        doctor_say(d, DOCTOR_OK, NULL, "%s is %s", where, text);
}

void doctor_check_cgroup_cpu(struct doctor *d)
{
    char path[512], text[64], group[512];
    uint64_t quota = UINT64_MAX, period = 100000, v;
    double cpus = 1e9;

    if (group_of(d, "", path, sizeof(path))) {
        snprintf(group, sizeof(group), "%s", path);
        for (;;) {
            char *slash;

            if (doctor_read(d, text, sizeof(text), "/sys/fs/cgroup%s/cpu.max",
                            strcmp(group, "/") == 0 ? "" : group) &&
                sscanf(text, "%lu %lu", &quota, &period) == 2 && period != 0 &&
                (double)quota / (double)period < cpus)
                cpus = (double)quota / (double)period;
            slash = strrchr(group, '/');
            if (slash == NULL)
                break;
            *slash = '\0';
        }
    }
    if (cpus > 1e8 && group_of(d, "cpu", path, sizeof(path)) &&
        doctor_read(d, text, sizeof(text), "/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us", path) &&
        text[0] != '-' &&
        doctor_read_number(d, &v, "/sys/fs/cgroup/cpu%s/cpu.cfs_period_us", path) && v != 0)
        cpus = strtod(text, NULL) / (double)v;
    if (cpus > 1e8)
        doctor_say(d, DOCTOR_OK, NULL, "no limit");
    else
        doctor_say(
            d, DOCTOR_WARN,
            "give the agent whole cores by a cpuset instead of a share of time (in Kubernetes: "
            "static CPU manager, whole numbers)",
            "limited to the time of %.2f cores: when that is used up an engine stands still for "
            "the rest of the period, tens of milliseconds",
            cpus);
}
