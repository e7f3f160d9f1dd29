/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU as a process of a measurement uses it, the way a framework would: the driver, the device's primary context
 * current on the thread for as long as it is open, and a stream.  The driver does not survive fork(): the parent
 * never opens a device, it asks a process of its own (device_probe()).
 */
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include "shm/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device {
    const struct mcs_cuda *driver; /* NULL: not open */
    CUdevice number;
    CUcontext context;
    CUstream stream;
};

struct device_info {
    char name[128];
    char uuid[MCS_GPU_ID_TEXT];
    int driver; /* 13000: 13.0 */
    uint64_t total;
    bool batch; /* it copies lists by one call */
    bool fake;  /* the double of tests/fake-cuda: no figure says anything about a GPU */
};

/* 0, or a negative errno, said already. */
int device_open(const char *location, struct device *out);
void device_close(struct device *d); /* also of one that is not open */

/* The name of the double begins so. */
bool device_is_fake(const char *name);

/* Loads the driver in another process and says what it found there. 0, or a negative errno, said already. */
int device_probe(const char *location, struct device_info *out);

/* Between host and device memory; return when all of it is there. 0 or -EIO, said already. */
int device_put(struct device *d, uint64_t to, const void *from, size_t size);
int device_get(struct device *d, void *to, uint64_t from, size_t size);

/* Says what the driver refused and its word for why. Returns -EIO, or 0 for success. */
int device_check(const struct device *d, CUresult e, const char *what);

/*
 * The command's --fake-cuda: starts this program again with the double of tests/fake-cuda in the driver's place, for
 * it and all of its processes.  Returns 0 when that is so, or a negative errno, said already; argv is the command's.
 */
int device_take_double(int argc, char **argv);

#endif
