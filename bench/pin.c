/* SPDX-License-Identifier: Apache-2.0 */
#include "pin.h"

#include "say.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CACHE_DEFAULT (UINT64_C(32) << 20)

static int topology(int core, const char *what)
{
    char path[128];
    int value = -1;
    FILE *f;

    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/%s", core, what);
    f = fopen(path, "re");
    if (f == NULL)
        return -1;
    if (fscanf(f, "%d", &value) != 1)
        value = -1;
    fclose(f);
    return value;
}

/* Two threads of one core share its execution units: no place for two busy loops. */
static bool siblings(int a, int b)
{
    return topology(a, "core_id") >= 0 && topology(a, "core_id") == topology(b, "core_id") &&
           topology(a, "physical_package_id") == topology(b, "physical_package_id");
}

int pin_choose(struct pin_cores *out)
{
    cpu_set_t set;
    int second = -1;

    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return -errno;
    out->client = -1;
    out->engine = -1;
    for (int core = 0; core < CPU_SETSIZE && out->engine < 0; core++) {
        if (!CPU_ISSET(core, &set))
            continue;
        if (out->client < 0)
            out->client = core;
        else if (!siblings(out->client, core))
            out->engine = core;
        else if (second < 0)
            second = core;
    }
    if (out->engine < 0)
        out->engine = second;
    out->shared = out->engine < 0;
    if (out->shared)
        out->engine = out->client;
    return 0;
}

int pin_pair(const char *command, struct pin_cores *out)
{
    int rc = pin_choose(out);

    if (rc != 0)
        return say_error(rc, "cannot tell which cores are allowed: %s", strerror(-rc));
    if (out->shared)
        return say_error(-EINVAL,
                         "%s needs two cores and this process may use one; allow two (taskset, "
                         "cpuset)",
                         command);
    return 0;
}

int pin_to(int core)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(core, &set);
    return sched_setaffinity(0, sizeof(set), &set) == 0 ? 0 : -errno;
}

void pin_away_from(int core)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return;
    CPU_CLR(core, &set);
    if (CPU_COUNT(&set) > 0)
        sched_setaffinity(0, sizeof(set), &set);
}

uint64_t pin_cache_size(void)
{
    unsigned long long kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    long libc = sysconf(_SC_LEVEL3_CACHE_SIZE);

    /* libc asks the processor, and under a hypervisor hears of the whole host's cache */
    if (f != NULL) {
        if (fscanf(f, "%lluK", &kib) != 1)
            kib = 0;
        fclose(f);
    }
    if (kib > 0)
        return kib << 10;
    return libc > 0 ? (uint64_t)libc : CACHE_DEFAULT;
}

const char *pin_cpu_model(void)
{
    static char model[128];
    char line[256];
    FILE *f;

    if (model[0] != '\0')
        return model;
    strcpy(model, "unknown");
    f = fopen("/proc/cpuinfo", "re");
    if (f == NULL)
        return model;
    while (fgets(line, sizeof(line), f) != NULL) {
        const char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) == 0 && value != NULL) {
            snprintf(model, sizeof(model), "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
            break;
        }
    }
    fclose(f);
    return model;
}
