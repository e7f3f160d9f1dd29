/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For unit tests: makes the double the libcuda.so.1 of this process and of its children, arms rules, reads counts.
 * fake_cuda_begin() comes before anything loads the driver.
 */
#ifndef FAKE_CUDA_KIT_H
#define FAKE_CUDA_KIT_H

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"
#include "shm/atomic.h"

/* What the build has put beside the tests: $B/tests/FOLDER/PROGRAM -> $B/fake-cuda. */
static inline void fake_cuda_folder(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);

    out[n > 0 ? n : 0] = '\0';
    for (int i = 0; i < 3 && strrchr(out, '/') != NULL; i++)
        *strrchr(out, '/') = '\0';
    strncat(out, "/fake-cuda", size - strlen(out) - 1);
}

/* The control file, empty, unless the process has one already. NULL: the double is not there. */
static inline struct fake_control *fake_cuda_begin(void)
{
    static struct fake_control *control;
    char folder[4096], path[sizeof(folder) + 16], name[64], libraries[2 * sizeof(folder)];
    const char *old = getenv("LD_LIBRARY_PATH");
    void *at;
    int fd;

    if (control != NULL)
        return control;
    fake_cuda_folder(folder, sizeof(folder));
    snprintf(path, sizeof(path), "%s/libcuda.so.1", folder);
    fd = memfd_create("fake-cuda-control", 0);
    if (fd < 0 || ftruncate(fd, sizeof(*control)) != 0)
        return NULL;
    at = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    snprintf(name, sizeof(name), "/proc/%d/fd/%d", getpid(), fd);
    setenv("FAKE_CUDA_CONTROL", name, 1);
    snprintf(libraries, sizeof(libraries), "%s%s%s", folder, old != NULL ? ":" : "",
             old != NULL ? old : "");
    setenv("LD_LIBRARY_PATH", libraries, 1); /* of children */
    /* Whoever asks for libcuda.so.1 by its name from now on gets this one. */
    if (at != MAP_FAILED && dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL)
        control = at;
    else
        fprintf(stderr, "%s\n", at == MAP_FAILED ? "no memory" : dlerror());
    return control;
}

/* At calls of that name from the first-th on, `times` of them (0: all). */
static inline void fake_cuda_arm(struct fake_control *c, unsigned place, const char *call,
                                 enum fake_action action, int result, uint64_t first,
                                 uint64_t times)
{
    struct fake_rule *r = &c->rules[place];

    mcs_store_release(&r->action, FAKE_OFF); /* the double reads the rest only of one that acts */
    memset(r->call, 0, sizeof(r->call));
    strncpy(r->call, call, sizeof(r->call) - 1);
    r->result = result;
    r->ms = (uint32_t)result;
    r->pid = 0;
    r->first = first;
    r->times = times;
    mcs_store_relaxed(&r->seen, 0);
    mcs_store_relaxed(&r->acted, 0);
    mcs_store_release(&r->action, action); /* likewise */
}

static inline void fake_cuda_disarm(struct fake_control *c)
{
    for (unsigned i = 0; i < FAKE_CUDA_RULES; i++)
        mcs_store_release(&c->rules[i].action, FAKE_OFF); /* fake_cuda_arm() */
}

/* What a process has; NULL: it never called the double. */
static inline const struct fake_process *fake_cuda_process(const struct fake_control *c, pid_t pid)
{
    const struct fake_process *found = NULL;

    for (unsigned i = 0; i < FAKE_CUDA_PROCESSES; i++) {
        if (mcs_load_acquire(&c->processes[i].pid) == (uint32_t)pid) /* written last */
            found = &c->processes[i];
    }
    return found;
}

/* On all devices together; 0 for a process that never called the double. */
static inline int64_t fake_cuda_count(const struct fake_control *c, pid_t pid, enum fake_count what)
{
    const struct fake_process *p = fake_cuda_process(c, pid);
    int64_t sum = 0;

    for (unsigned d = 0; p != NULL && d < FAKE_CUDA_DEVICES; d++)
        sum += mcs_load_relaxed(&p->counts[d][what]);
    return sum;
}

/* How often it has called a function. */
static inline uint64_t fake_cuda_calls(const struct fake_control *c, pid_t pid, const char *call)
{
    const struct fake_process *p = fake_cuda_process(c, pid);

    for (unsigned i = 0; p != NULL && i < c->calls; i++) {
        if (strcmp(c->names[i], call) == 0)
            return mcs_load_relaxed(&p->calls[i]);
    }
    return 0;
}

#endif
