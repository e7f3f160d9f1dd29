/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

static bool allowed(const struct doctor *d, struct cpu_set_bits *out)
{
    char text[1024];

    return doctor_read_field(d, "/proc/self/status", "Cpus_allowed_list", text, sizeof(text)) &&
           doctor_parse_list(text, out);
}

/* The engines' cores: as configured, or the last one allowed. */
static bool engine_cores(const struct doctor *d, const struct cpu_set_bits *may,
                         struct cpu_set_bits *out)
{
    const char *text = doctor_setting(d, "engine.cores");

    memset(out, 0, sizeof(*out));
    if (text[0] != '\0' && strcmp(text, "auto") != 0)
        return doctor_parse_list(text, out);
    for (unsigned i = DOCTOR_CPUS; i-- > 0;) {
        if (doctor_has_cpu(may, i)) {
            out->bits[i / 64] |= UINT64_C(1) << (i % 64);
            return true;
        }
    }
    return false;
}

void doctor_check_numa(struct doctor *d)
{
    struct cpu_set_bits nodes;
    char text[256];
    unsigned n;

    if (!doctor_read(d, text, sizeof(text), "/sys/devices/system/node/online") ||
        !doctor_parse_list(text, &nodes)) {
        doctor_say(d, DOCTOR_OK, NULL, "this kernel knows no nodes: one memory for all");
        return;
    }
    n = doctor_count_cpus(&nodes);
    if (n > 1)
        doctor_say(d, DOCTOR_OK, NULL,
                   "%u nodes (%s); memory comes from the node that a client asks for (\"cpu:N\")",
                   n, text);
    else
        doctor_say(d, DOCTOR_OK, NULL, "one node");
}

void doctor_check_cores(struct doctor *d)
{
    struct cpu_set_bits may, cores;
    const char *text = doctor_setting(d, "engine.cores");

    if (!allowed(d, &may)) {
        doctor_say(d, DOCTOR_NOTE, NULL, "/proc/self/status does not tell which cores are allowed");
        return;
    }
    if (!engine_cores(d, &may, &cores)) {
        doctor_say(d, DOCTOR_BAD, "want a list such as 2 or 2,3, or auto",
                   "[engine] cores = %s is no "
                   "list of cores",
                   text);
        return;
    }
    for (unsigned i = 0; i < DOCTOR_CPUS; i++) {
        if (doctor_has_cpu(&cores, i) && !doctor_has_cpu(&may, i)) {
            doctor_say(d, DOCTOR_BAD,
                       "name cores of that set, or widen it (cpuset, taskset, AllowedCPUs=)",
                       "[engine] cores names core %u, which is not in the set that is allowed "
                       "here: the agent "
                       "does not start",
                       i);
            return;
        }
    }
    if (doctor_count_cpus(&may) <= doctor_count_cpus(&cores))
        doctor_say(d, DOCTOR_WARN, "allow more cores, or fewer engines",
                   "%u cores are allowed, %u are engines': clients and engines take turns on them",
                   doctor_count_cpus(&may), doctor_count_cpus(&cores));
    else
        doctor_say(d, DOCTOR_OK, NULL, "%u of the %u cores that are allowed",
                   doctor_count_cpus(&cores), doctor_count_cpus(&may));
}

void doctor_check_isolation(struct doctor *d)
{
    bool busy = strcmp(doctor_setting(d, "engine.idle"), "busy") == 0;
    struct cpu_set_bits may, cores, isolated, nohz;
    char text[1024];
    unsigned n = 0;

    memset(&isolated, 0, sizeof(isolated));
    memset(&nohz, 0, sizeof(nohz));
    if (doctor_read(d, text, sizeof(text), "/sys/devices/system/cpu/isolated"))
        doctor_parse_list(text, &isolated);
    if (doctor_read(d, text, sizeof(text), "/sys/devices/system/cpu/nohz_full"))
        doctor_parse_list(text, &nohz);
    if (!allowed(d, &may) || !engine_cores(d, &may, &cores))
        return; /* said above */
    for (unsigned i = 0; i < DOCTOR_CPUS; i++)
        n +=
            doctor_has_cpu(&cores, i) && (doctor_has_cpu(&isolated, i) || doctor_has_cpu(&nohz, i));
    if (n == doctor_count_cpus(&cores))
        doctor_say(d, DOCTOR_OK, NULL,
                   "the engines' cores are isolated from others (isolcpus, nohz_full)");
    else if (busy)
        doctor_say(d, DOCTOR_WARN,
                   "boot with isolcpus=CORES nohz_full=CORES and name them in [engine] cores",
                   "[engine] idle = busy, but %u of %u engine cores are not isolated: whoever else "
                   "runs there "
                   "takes milliseconds from transfers",
                   doctor_count_cpus(&cores) - n, doctor_count_cpus(&cores));
    else
        doctor_say(d, DOCTOR_NOTE,
                   "for the lowest latency boot with isolcpus=CORES nohz_full=CORES",
                   "the engines' cores are not isolated from other processes");
}

void doctor_check_governor(struct doctor *d)
{
    bool busy = strcmp(doctor_setting(d, "engine.idle"), "busy") == 0;
    struct cpu_set_bits may, cores;
    char text[64];

    if (!allowed(d, &may) || !engine_cores(d, &may, &cores))
        return; /* said above */
    for (unsigned i = 0; i < DOCTOR_CPUS; i++) {
        if (!doctor_has_cpu(&cores, i))
            continue;
        if (!doctor_read(d, text, sizeof(text),
                         "/sys/devices/system/cpu/cpu%u/cpufreq/scaling_governor", i)) {
            doctor_say(d, DOCTOR_OK, NULL, "the kernel does not set this machine's clock rate");
            return;
        }
        if (strcmp(text, "performance") != 0) {
            doctor_say(d, busy ? DOCTOR_WARN : DOCTOR_NOTE, "cpupower frequency-set -g performance",
                       "core %u has the governor %s: it is slow to wake up and to speed up", i,
                       text);
            return;
        }
    }
    doctor_say(d, DOCTOR_OK, NULL, "performance");
}

void doctor_check_clock(struct doctor *d)
{
    static char info[16384];
    char text[64];

    if (!doctor_read(d, text, sizeof(text),
                     "/sys/devices/system/clocksource/clocksource0/current_clocksource")) {
        doctor_say(d, DOCTOR_NOTE, NULL, "the kernel does not tell its clock source");
        return;
    }
    if (doctor_read(d, info, sizeof(info), "/proc/cpuinfo") && strstr(info, "\nflags") != NULL &&
        strstr(info, " constant_tsc") == NULL)
        doctor_say(
            d, DOCTOR_WARN, "run on a processor (or virtual machine) with an invariant TSC",
            "the processor's counter does not run at a constant rate: deadlines and latencies are "
            "wrong by as much");
    else if (strcmp(text, "hpet") == 0 || strcmp(text, "acpi_pm") == 0 ||
             strcmp(text, "jiffies") == 0)
        doctor_say(
            d, DOCTOR_WARN, "find out why the kernel does not trust the TSC (dmesg | grep -i tsc)",
            "the clock source is %s: the kernel has found the processor's counter unreliable",
            text);
    else
        doctor_say(d, DOCTOR_OK, NULL, "%s", text);
}
