/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "location.h"
#include "proc.h"
#include "say.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROBE_MS 60000 /* a driver that has to wake its devices takes seconds */
#define FAKE_NAME "FAKE GPU"

bool device_is_fake(const char *name)
{
    return strncmp(name, FAKE_NAME, strlen(FAKE_NAME)) == 0;
}

int device_check(const struct device *d, CUresult e, const char *what)
{
    return e == CUDA_SUCCESS ? 0 : say_error(-EIO, "%s: %s", what, mcs_cuda_error(d->driver, e));
}

/* The driver's number of the device that the location names. */
static int find(struct device *d, const char *location)
{
    struct mcs_gpu_id wanted;
    int ordinal, count = 0, rc;

    rc = location_parse(location, &ordinal, &wanted);
    if (rc != 0)
        return say_error(rc, "%s: expected cuda:N, or cuda:GPU- and the rest of a UUID", location);
    rc = device_check(d, d->driver->device_get_count(&count), "counting devices");
    if (rc != 0)
        return rc;
    for (int i = ordinal >= 0 ? ordinal : 0; i < count; i++) {
        CUuuid uuid;

        rc = device_check(d, d->driver->device_get(&d->number, i), location);
        if (rc != 0 || ordinal >= 0)
            return rc;
        rc = device_check(d, d->driver->device_get_uuid(&uuid, d->number), location);
        if (rc != 0 || memcmp(uuid.bytes, wanted.bytes, sizeof(wanted.bytes)) == 0)
            return rc;
    }
    return say_error(-ENODEV,
                     "%s: there is no such device here; this process sees %d (nvidia-smi -L lists "
                     "them, CUDA_VISIBLE_DEVICES hides them)",
                     location, count);
}

static int load(struct device *d)
{
    char why[400];
    int rc = mcs_cuda_load(&d->driver, why, sizeof(why));

    if (rc == 0)
        return 0;
    d->driver = NULL;
    return say_error(rc, "no GPU can be used here: %s", why);
}

int device_open(const char *location, struct device *out)
{
    struct device d = {.driver = NULL};
    int rc = load(&d);

    *out = (struct device){.driver = NULL};
    if (rc == 0)
        rc = find(&d, location);
    if (rc == 0)
        rc = device_check(&d, d.driver->primary_retain(&d.context, d.number),
                          "the device's primary context");
    if (rc != 0)
        return rc;
    rc = device_check(&d, mcs_cuda_enter(d.driver, d.context), "making a context current");
    if (rc != 0)
        goto release;
    rc = device_check(&d, d.driver->stream_create(&d.stream, CU_STREAM_NON_BLOCKING),
                      "creating a stream");
    if (rc != 0)
        goto leave;
    *out = d;
    return 0;
leave:
    mcs_cuda_leave(d.driver);
release:
    d.driver->primary_release(d.number);
    return rc;
}

void device_close(struct device *d)
{
    if (d->driver == NULL)
        return;
    d->driver->stream_destroy(d->stream);
    mcs_cuda_leave(d->driver);
    d->driver->primary_release(d->number);
    d->driver = NULL;
}

static int probe(struct device *d, const char *location, struct device_info *out)
{
    const struct mcs_cuda *driver;
    struct mcs_gpu_id id;
    size_t total = 0;
    CUuuid uuid;
    int rc = load(d);

    if (rc == 0)
        rc = find(d, location);
    if (rc != 0)
        return rc;
    driver = d->driver;
    rc =
        device_check(d, driver->device_get_name(out->name, sizeof(out->name), d->number), location);
    if (rc == 0)
        rc = device_check(d, driver->device_get_uuid(&uuid, d->number), location);
    if (rc == 0)
        rc = device_check(d, driver->device_total_mem(&total, d->number), location);
    if (rc != 0)
        return rc;
    memcpy(id.bytes, uuid.bytes, sizeof(id.bytes));
    mcs_gpu_id_print(&id, out->name, out->uuid);
    out->driver = driver->version;
    out->total = total;
    out->batch = driver->copy_batch != NULL || driver->copy_batch_12 != NULL;
    out->fake = device_is_fake(out->name);
    return 0;
}

/* In the process that asks: the driver is loaded and gone with it. */
static int probe_main(int fd, void *context)
{
    struct device_info info = {.name = ""};
    struct device d = {.driver = NULL};
    int rc = probe(&d, context, &info);

    return rc != 0 ? rc : proc_send(fd, &info, sizeof(info));
}

int device_probe(const char *location, struct device_info *out)
{
    struct proc p = {.pid = 0};
    char copy[128];
    int rc, end;

    snprintf(copy, sizeof(copy), "%s", location);
    rc = proc_start(&p, "device", probe_main, copy);
    if (rc != 0)
        return rc;
    rc = proc_recv(p.fd, out, sizeof(*out), PROBE_MS);
    if (rc == -ETIMEDOUT) {
        proc_kill(&p);
        return say_error(rc, "the driver gave no device within %d s: see the kernel's log",
                         PROBE_MS / 1000);
    }
    end = proc_stop(&p); /* it has said what is wrong */
    return rc != 0 ? -ENODEV : end;
}

int device_put(struct device *d, uint64_t to, const void *from, size_t size)
{
    int rc = device_check(d, d->driver->copy(to, (CUdeviceptr)(uintptr_t)from, size, d->stream),
                          "copying to the device");

    return rc != 0 ? rc
                   : device_check(d, d->driver->stream_synchronize(d->stream),
                                  "waiting for a copy to the device");
}

int device_get(struct device *d, void *to, uint64_t from, size_t size)
{
    int rc = device_check(d, d->driver->copy((CUdeviceptr)(uintptr_t)to, from, size, d->stream),
                          "copying from the device");

    return rc != 0 ? rc
                   : device_check(d, d->driver->stream_synchronize(d->stream),
                                  "waiting for a copy from the device");
}
