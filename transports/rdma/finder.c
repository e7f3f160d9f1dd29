/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA: which devices there are, at the start and later. */
#include "devices.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "sysfs.h"

/* Nothing tells that a device has come: the list is read again this often. */
#define LOOK_MS 10000u

/* The highest number of a port. sysfs tells it without opening the device, which may hang, or not be allowed. */
static unsigned count_ports(const struct mct_rdma *r, const char *device)
{
    struct mct_sysfs_device s;

    if (mct_sysfs_device(r->options.sysfs, device, &s) != 0 || s.nports == 0)
        return 1;
    return s.ports[s.nports - 1];
}

int mct_rdma_find(struct mct_rdma *r,
                  int (*found)(struct mct_rdma *r, struct ibv_device *device, unsigned port))
{
    struct ibv_device **list;
    unsigned port, ports;
    const char *name;
    int n = 0, i, res = 0;

    list = ibv_get_device_list(&n);
    /* ENOSYS: the kernel has no RDMA at all */
    if (list == NULL)
        return errno == ENOMEM ? -ENOMEM : 0;
    for (i = 0; i < n && res == 0; i++) {
        name = ibv_get_device_name(list[i]);
        ports = count_ports(r, name);
        for (port = 1; port <= ports && res == 0; port++)
            if (mct_rdma_select_allows(r->options.devices, r->options.deny, name, port))
                res = found(r, list[i], port);
    }
    ibv_free_device_list(list);
    return res;
}

/* With the lock held. A device that was given another name while it is open is known, too. */
static bool is_known(const struct mct_rdma *r, struct ibv_device *device, unsigned port)
{
    const char *name = ibv_get_device_name(device);
    unsigned i;

    for (i = 0; i < r->ndevices; i++) {
        const struct mct_rdma_device *d = r->devices[i];

        if (d->port == port && (strcmp(d->device, name) == 0 ||
                                (d->context != NULL && strcmp(d->verbs, device->dev_name) == 0)))
            return true;
    }
    for (i = 0; i < r->nfound; i++)
        if (r->found[i].port == port && strcmp(r->found[i].device, name) == 0)
            return true;
    return false;
}

static int note(struct mct_rdma *r, struct ibv_device *device, unsigned port)
{
    struct mct_rdma_found *f;

    pthread_mutex_lock(&r->lock);
    if (r->nfound < MCT_RDMA_NICS_MAX && !is_known(r, device, port)) {
        f = &r->found[r->nfound++];
        f->port = port;
        snprintf(f->device, sizeof(f->device), "%s", ibv_get_device_name(device));
        mct_kick(r->fd);
    }
    pthread_mutex_unlock(&r->lock);
    return 0;
}

static void *look(void *rdma)
{
    struct mct_rdma *r = rdma;
    struct timespec ts;
    uint64_t due = mct_ms() + LOOK_MS;

    pthread_mutex_lock(&r->lock);
    while (!r->stop && !r->full) {
        if (mct_ms() < due) {
            ts = mct_until(due);
            pthread_cond_timedwait(&r->find, &r->lock, &ts);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        (void)mct_rdma_find(r, note); /* out of memory: the next time */
        due = mct_ms() + LOOK_MS;
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int mct_rdma_finder_start(struct mct_rdma *r)
{
    int res = mct_thread_start(&r->finder, look, r, "rdma-find");

    r->finding = res == 0;
    return res;
}
