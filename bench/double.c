/* SPDX-License-Identifier: Apache-2.0 */
/* --fake-cuda: the loader reads LD_LIBRARY_PATH once, when a program starts; so this one starts again. */
#include "device.h"

#include "say.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Beside bin/, where the build puts it. */
static int find_folder(char *out, size_t size)
{
    char self[PATH_MAX], folder[PATH_MAX + 32], library[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    if (n < 0)
        return say_error(-errno, "--fake-cuda: where is this program? /proc/self/exe: %m");
    self[n] = '\0';
    slash = strrchr(self, '/');
    *slash = '\0';
    slash = strrchr(self, '/');
    snprintf(folder, sizeof(folder), "%.*s/fake-cuda", slash != NULL ? (int)(slash - self) : 0,
             self);
    snprintf(library, sizeof(library), "%s/" MCS_CUDA_LIBRARY, folder);
    if (access(library, R_OK) != 0)
        return say_error(-errno,
                         "--fake-cuda: %s: %m; it is a part of the tests, `make unit` builds it",
                         library);
    return (size_t)snprintf(out, size, "%s", folder) < size ? 0 : -ENAMETOOLONG;
}

int device_take_double(int argc, char **argv)
{
    const char *old = getenv("LD_LIBRARY_PATH");
    char folder[PATH_MAX], *path = NULL, **args;
    int rc = find_folder(folder, sizeof(folder));
    size_t n = strlen(folder);

    if (rc != 0)
        return rc;
    if (old != NULL && strncmp(old, folder, n) == 0 && (old[n] == '\0' || old[n] == ':'))
        return 0; /* started again already */
    args = calloc((size_t)argc + 2, sizeof(args[0]));
    if (args == NULL || asprintf(&path, "%s%s%s", folder, old != NULL && *old != '\0' ? ":" : "",
                                 old != NULL ? old : "") < 0)
        return say_error(-ENOMEM, "--fake-cuda: out of memory");
    args[0] = "mcshm-bench";
    memcpy(&args[1], argv, (size_t)argc * sizeof(args[0]));
    setenv("LD_LIBRARY_PATH", path, 1);
    execv("/proc/self/exe", args);
    rc = say_error(-errno, "--fake-cuda: cannot start again: %m");
    free(path);
    free(args);
    return rc;
}
