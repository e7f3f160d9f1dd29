/* SPDX-License-Identifier: Apache-2.0 */
#include "clock.h"

#include "shm/atomic.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <time.h>

#define CALIBRATION_NS 20000000u

static uint64_t read_clock(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t clock_thread_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

double clock_tick_hz(void)
{
    static double hz;
    uint64_t t0, n0, n1;

    if (hz > 0)
        return hz;
    n0 = clock_ns();
    t0 = mcs_ticks();
    do
        n1 = clock_ns();
    while (n1 - n0 < CALIBRATION_NS);
    hz = (double)(mcs_ticks() - t0) * 1e9 / (double)(n1 - n0);
    return hz;
}

int clock_process_ns(pid_t pid, uint64_t *out)
{
    char path[64];
    struct dirent *entry;
    DIR *tasks;

    *out = 0;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    tasks = opendir(path);
    if (tasks == NULL)
        return -errno;
    while ((entry = readdir(tasks)) != NULL) {
        char file[384];
        unsigned long long ns = 0;
        FILE *f;

        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof(file), "%s/%s/schedstat", path, entry->d_name);
        f = fopen(file, "re");
        if (f == NULL)
            continue; /* the thread ended between the two looks */
        if (fscanf(f, "%llu", &ns) == 1)
            *out += ns;
        fclose(f);
    }
    closedir(tasks);
    return 0;
}
