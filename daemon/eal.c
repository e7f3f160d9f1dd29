/* SPDX-License-Identifier: Apache-2.0 */
#include "eal.h"

#include <errno.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

#define HEAP_MB "32" /* of EAL itself */

int mcd_cores_parse(const char *text, int *cores, unsigned *n, char *error, size_t error_size)
{
    cpu_set_t allowed;
    const char *p = text;

    *n = 0;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return -errno;
    if (strcmp(text, "auto") == 0) {
        for (int cpu = CPU_SETSIZE - 1; cpu >= 0 && *n == 0; cpu--)
            if (CPU_ISSET(cpu, &allowed))
                cores[(*n)++] = cpu;
        return *n != 0 ? 0 : -EINVAL;
    }
    for (;;) {
        char *end;
        long cpu = strtol(p, &end, 10);
        bool twice = false;

        for (unsigned i = 0; i < *n; i++)
            twice = twice || cores[i] == cpu;
        if (end == p || (*end != '\0' && *end != ',') || cpu < 0 || cpu >= CPU_SETSIZE ||
            !CPU_ISSET((int)cpu, &allowed) || twice || *n == MCD_ENGINES_MAX) {
            char list[128] = "";
            size_t len = 0;

            for (int i = 0; i < CPU_SETSIZE && len < sizeof(list) - 8; i++)
                if (CPU_ISSET(i, &allowed))
                    len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%d",
                                            len != 0 ? "," : "", i);
            snprintf(error, error_size,
                     "[engine] cores = %s: want auto, or up to %u different ones of the cores this "
                     "process may run on (%s), parted by commas",
                     text, MCD_ENGINES_MAX, list);
            return -EINVAL;
        }
        cores[(*n)++] = (int)cpu;
        if (*end == '\0')
            return 0;
        p = end + 1;
    }
}

/* DPDK's own threads abort the process when they cannot start. */
static void on_abort(int sig)
{
    static const char text[] = "mcshmd: error: DPDK gave up while it started, its own lines above "
                               "say why: mostly memory or "
                               "file descriptors have run out, raise the limits of the service\n";

    (void)sig;
    if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0) {
        /* nobody reads it */
    }
    _exit(1);
}

void mcd_eal_started(void)
{
    signal(SIGABRT, SIG_DFL);
}

/* The linker puts this in the place of EAL's own measurement, which sleeps for 100 ms (Makefile; not
 * where DPDK is a shared library). */
uint64_t __wrap_get_tsc_freq(uint64_t hint);
uint64_t __real_get_tsc_freq(uint64_t hint) __attribute__((weak));

static uint64_t known_hz;

uint64_t __wrap_get_tsc_freq(uint64_t hint)
{
    if (known_hz != 0)
        return known_hz;
    return __real_get_tsc_freq != NULL ? __real_get_tsc_freq(hint) : 0;
}

/* The same way: of each of the 128 processors that could be, whether it is in each of 32 NUMA nodes that
 * could be. Of one that is not there the answer is 0 without asking. */
unsigned __wrap_eal_cpu_socket_id(unsigned cpu);
unsigned __real_eal_cpu_socket_id(unsigned cpu) __attribute__((weak));

unsigned __wrap_eal_cpu_socket_id(unsigned cpu)
{
    char path[64];

    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u", cpu);
    if (access(path, F_OK) != 0 || __real_eal_cpu_socket_id == NULL)
        return 0;
    return __real_eal_cpu_socket_id(cpu);
}

int mcd_eal_init(const int *cores, unsigned n, uint64_t tick_hz, char *error, size_t error_size)
{
    char lcores[2048], allowed_list[1024] = "";
    char *argv[16];
    int argc = 0;
    size_t len = 0;
    cpu_set_t allowed;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return -errno;
    known_hz = tick_hz;
    /* lcore 0, the control thread, keeps all allowed cores; engine i is lcore i + 1 */
    for (int cpu = 0; cpu < CPU_SETSIZE && len < sizeof(allowed_list) - 8; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            len += (size_t)snprintf(allowed_list + len, sizeof(allowed_list) - len, "%s%d",
                                    len != 0 ? "," : "", cpu);
    len = (size_t)snprintf(lcores, sizeof(lcores), "--lcores=0@(%s)", allowed_list);
    for (unsigned i = 0; i < n && len < sizeof(lcores); i++)
        len += (size_t)snprintf(lcores + len, sizeof(lcores) - len, ",%u@%d", i + 1, cores[i]);

    argv[argc++] = (char *)"mcshmd";
    argv[argc++] = lcores;
    argv[argc++] = (char *)"--no-pci";
    argv[argc++] = (char *)"--no-telemetry";
    argv[argc++] = (char *)"--log-level=*:error";
    /* Without files that other processes could share, and without hugepages: those are the pools', and
     * in a container whose filter denies set_mempolicy() EAL could not take them. */
    argv[argc++] = (char *)"--no-shconf";
    argv[argc++] = (char *)"--no-huge";
    argv[argc++] = (char *)"-m";
    argv[argc++] = (char *)HEAP_MB;
    argv[argc] = NULL;
    signal(SIGABRT, on_abort);
    if (rte_eal_init(argc, argv) < 0) {
        snprintf(error, error_size,
                 "DPDK's environment does not start: %s; its own lines above "
                 "say more",
                 rte_strerror(rte_errno));
        return -EIO;
    }
    return 0;
}

static int run(void *arg)
{
    mcd_engine_run(arg);
    return 0;
}

int mcd_eal_launch(struct mcd_engine *g, unsigned index)
{
    return rte_eal_remote_launch(run, g, index + 1);
}

void mcd_eal_fini(void)
{
    char folder[256];
    char *slash;

    rte_eal_mp_wait_lcore();
    snprintf(folder, sizeof(folder), "%s", rte_eal_get_runtime_dir());
    rte_eal_cleanup();
    /* DPDK makes a folder and one above it for files that this configuration does not have; both go
     * unless another DPDK program uses them */
    if (rmdir(folder) == 0) {
        slash = strrchr(folder, '/');
        if (slash != NULL) {
            *slash = '\0';
            (void)rmdir(folder);
        }
    }
}
