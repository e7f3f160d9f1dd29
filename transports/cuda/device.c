/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: what they can do, their first use, and their loss. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *mct_cuda_title(const struct mct_cuda_gpu *g, char text[MCT_CUDA_TITLE])
{
    char id[MCS_GPU_ID_TEXT];

    mcs_gpu_id_print(&g->device.id, g->device.name, id);
    snprintf(text, MCT_CUDA_TITLE, "%s (%.48s)", id, g->device.name);
    return text;
}

void mct_cuda_lose(struct mct_cuda_gpu *g, CUresult e)
{
    char title[MCT_CUDA_TITLE];

    if (mcs_exchange(&g->device.lost, 1u) != 0) /* with itself: one line a device */
        return;
    MCT_CUDA_LOG(
        g->cuda, ERROR,
        "%s has failed (%s): whatever uses its memory fails until the agent is started anew; see "
        "the kernel's log for Xid",
        mct_cuda_title(g, title), mcs_cuda_error(g->cuda->driver, e));
}

void mct_cuda_part(struct mct_cuda_gpu *g, const struct mct_cuda_gpu *other, CUresult e)
{
    const uint32_t bit = UINT32_C(1) << other->index;
    char title[MCT_CUDA_TITLE];
    uint32_t before;

    pthread_mutex_lock(&g->cuda->lock);
    before = mcs_load_relaxed(&g->apart);
    mcs_store_relaxed(&g->apart, before | bit);
    pthread_mutex_unlock(&g->cuda->lock);
    mcs_fetch_add(&g->cuda->stats.unreached, 1u);
    if ((before & bit) == 0)
        MCT_CUDA_LOG(
            g->cuda, WARNING,
            "%s is given no access to memory of device %u (cuMemSetAccess: %s): copies from "
            "one to the other go through host memory",
            mct_cuda_title(g, title), other->index, mcs_cuda_error(g->cuda->driver, e));
}

/* ---- discovery ------------------------------------------------------------------------------------- */

static int attribute(const struct mcs_cuda *d, CUdevice handle, CUdevice_attribute a, int otherwise)
{
    int value;

    /* drivers that are older than an attribute do not know it */
    return d->device_get_attribute(&value, a, handle) == CUDA_SUCCESS ? value : otherwise;
}

/* As the driver says, else as the kernel does. */
static int node_of(const struct mcs_cuda *d, CUdevice handle, const char *pci)
{
    int node = attribute(d, handle, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
    char path[64];
    FILE *f;

    if (node >= 0)
        return node;
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", pci);
    f = fopen(path, "re");
    if (f != NULL) {
        if (fscanf(f, "%d", &node) != 1)
            node = -1;
        fclose(f);
    }
    return node < 0 ? -1 : node;
}

CUmemAllocationProp mct_cuda_properties(const struct mct_cuda_gpu *g)
{
    CUmemAllocationProp p;

    memset(&p, 0, sizeof(p));
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = g->handle;
    p.allocFlags.gpuDirectRDMACapable = g->device.rdma;
    return p;
}

static CUresult discover_memory(struct mct_cuda_gpu *g, const struct mcs_cuda *d)
{
    const CUmemAllocationProp p = mct_cuda_properties(g);
    size_t bytes = 0;
    CUresult e;

    e = d->device_total_mem(&bytes, g->handle);
    g->device.total = bytes;
    g->unit = g->device.granularity = UINT64_C(2)
                                      << 20; /* as IPC memory has, where nothing is said */
    if (e != CUDA_SUCCESS || !g->device.vmm || !g->device.posix_handles)
        return e;
    bytes = 0;
    e = d->mem_granularity(&bytes, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (e != CUDA_SUCCESS || bytes == 0)
        return e != CUDA_SUCCESS ? e : CUDA_ERROR_INVALID_VALUE;
    g->unit = g->device.granularity = bytes;
    bytes = 0;
    if (d->mem_granularity(&bytes, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS &&
        bytes >= g->unit && bytes % g->unit == 0)
        g->device.granularity = bytes;
    return e;
}

static CUresult discover_one(struct mct_cuda_gpu *g, const struct mcs_cuda *d, int ordinal)
{
    struct mct_cuda_device *v = &g->device;
    CUuuid uuid;
    CUresult e;

    memset(v, 0, sizeof(*v));
    e = d->device_get(&g->handle, ordinal);
    if (e == CUDA_SUCCESS)
        e = d->device_get_uuid(&uuid, g->handle);
    if (e == CUDA_SUCCESS)
        e = d->device_get_name(v->name, (int)sizeof(v->name), g->handle);
    if (e != CUDA_SUCCESS)
        return e;
    memcpy(v->id.bytes, uuid.bytes, sizeof(v->id.bytes));
    v->name[sizeof(v->name) - 1] = '\0';
    if (d->device_get_pci_bus_id(v->pci, (int)sizeof(v->pci), g->handle) != CUDA_SUCCESS)
        v->pci[0] = '\0';
    v->pci[sizeof(v->pci) - 1] = '\0';
    for (char *p = v->pci; *p != '\0'; p++)
        *p = (char)(*p >= 'A' && *p <= 'F' ? *p | 0x20 : *p); /* as sysfs has it */
    v->node = node_of(d, g->handle, v->pci);
    v->vmm =
        attribute(d, g->handle, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0) > 0;
    v->posix_handles =
        attribute(d, g->handle, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                  0) > 0;
    v->dmabuf = d->mem_range_handle != NULL &&
                attribute(d, g->handle, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0) > 0;
    /* Ordered for the owner: what a NIC has written is seen by whatever the GPU begins after the completion that tells of
     * it.  Else it would take a flush by the owner, who hears of no WRITE. */
    v->rdma =
        attribute(d, g->handle, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 0) >=
            CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER &&
        attribute(d, g->handle, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 0) > 0 &&
        attribute(d, g->handle, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0) > 0;
    v->mig = mcs_gpu_is_instance(v->name);
    v->exclusive = attribute(d, g->handle, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
                             CU_COMPUTEMODE_DEFAULT) == CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
    return discover_memory(g, d);
}

int mct_cuda_discover(struct mct_cuda *c, const struct mcs_cuda *d, struct mct_cuda_call *call)
{
    int count = 0, can;
    unsigned n, i, k;
    CUresult e = d->device_get_count(&count);

    n = count < 0 ? 0 : (unsigned)count;
    if (n > MCT_CUDA_DEVICES) {
        MCT_CUDA_LOG(c, WARNING,
                     "%u GPUs, of which an agent uses the first %u; the others are left out", n,
                     MCT_CUDA_DEVICES);
        n = MCT_CUDA_DEVICES;
    }
    for (i = 0; i < n && e == CUDA_SUCCESS; i++)
        e = discover_one(&c->gpus[i], d, (int)i);
    if (e != CUDA_SUCCESS) {
        mct_cuda_say(call, MCS_GPU_CONTEXT,
                     "the GPU driver does not tell what its %d devices are: %s: see nvidia-smi",
                     count, mcs_cuda_error(d, e));
        return -1;
    }
    for (i = 0; i < n; i++)
        for (k = 0; k < n; k++) {
            can = 0;
            if (i != k &&
                d->device_can_access_peer(&can, c->gpus[i].handle, c->gpus[k].handle) ==
                    CUDA_SUCCESS &&
                can != 0)
                c->gpus[i].device.peers |= UINT32_C(1) << k;
        }
    c->ngpus = n;
    return 0;
}

/* ---- use ------------------------------------------------------------------------------------------- */

/* With the device's lock: its context, and what copies with it. */
static int use(struct mct_cuda_gpu *g, struct mct_cuda_call *call)
{
    const struct mcs_cuda *d = g->cuda->driver;
    struct mct_cuda_copier *copier = NULL;
    CUstream chores = NULL;
    CUcontext primary = NULL;
    const char *what = "cuDevicePrimaryCtxRetain";
    char title[MCT_CUDA_TITLE];
    CUresult e;
    int res = 0;

    e = d->primary_retain(&primary, g->handle);
    if (e != CUDA_SUCCESS)
        goto out;
    what = "cuCtxPushCurrent";
    e = mcs_cuda_enter(d, primary);
    if (e != CUDA_SUCCESS)
        goto out_release;
    what = "cuStreamCreate";
    e = d->stream_create(&chores, CU_STREAM_NON_BLOCKING);
    if (e == CUDA_SUCCESS) {
        what = "streams and events for copies";
        copier = mct_cuda_copier_create(g, primary, &e, &res);
        if (copier == NULL)
            (void)d->stream_destroy(chores);
    }
    mcs_cuda_leave(d);
    if (copier == NULL)
        goto out_release;
    mcs_fetch_add(&g->cuda->stats.contexts, 1u);
    g->chores = chores;
    mcs_store_release(&g->copier, copier); /* partners: post(), mct_cuda_poll() */
    mcs_store_release(&g->primary,
                      primary); /* partners: mct_cuda_enter(), other devices' copiers */
    return 0;

out_release:
    (void)d->primary_release(g->handle);
out:
    if (res != 0)
        mct_cuda_say(call, MCS_LOCAL_RESOURCE, "%s: no thread for its copies: %s",
                     mct_cuda_title(g, title), strerror(-res));
    else
        mct_cuda_refused(g, call, e, what);
    return -1;
}

static struct mct_cuda_gpu *enter(struct mct_cuda_gpu *g, struct mct_cuda_call *call)
{
    char title[MCT_CUDA_TITLE];
    CUresult e;
    int res = 0;

    if (mct_cuda_lost(g) && call->kind != MCT_CUDA_FREE && call->kind != MCT_CUDA_UNPIN) {
        mct_cuda_say(call, MCS_GPU_LOST,
                     "%s has failed: start the agent anew, and see the kernel's log",
                     mct_cuda_title(g, title));
        return NULL;
    }
    if (mcs_load_acquire(&g->primary) == NULL) { /* partner: use() */
        pthread_mutex_lock(&g->lock);
        if (g->primary == NULL)
            res = use(g, call);
        pthread_mutex_unlock(&g->lock);
    }
    if (res != 0)
        return NULL;
    e = mcs_cuda_enter(g->cuda->driver, g->primary);
    if (e == CUDA_SUCCESS)
        return g;
    mct_cuda_refused(g, call, e, "cuCtxPushCurrent");
    return NULL;
}

struct mct_cuda_gpu *mct_cuda_enter(struct mct_cuda *c, struct mct_cuda_call *call)
{
    if (mct_cuda_device_get(c, call->device) == NULL) {
        mct_cuda_say(call, MCS_NO_GPU, "no GPU %u: the driver has %u", call->device, c->ngpus);
        return NULL;
    }
    return enter(&c->gpus[call->device], call);
}

void mct_cuda_leave(const struct mct_cuda_gpu *g)
{
    mcs_cuda_leave(g->cuda->driver);
}

struct mct_cuda_gpu *mct_cuda_enter_any(struct mct_cuda *c, struct mct_cuda_call *call)
{
    struct mct_cuda_gpu *g;

    for (unsigned i = 0; mct_cuda_device_get(c, i) != NULL; i++) {
        g = &c->gpus[i];
        if (mcs_load_acquire(&g->primary) != NULL && !mct_cuda_lost(g)) /* partner: use() */
            return enter(g, call);
    }
    return mct_cuda_enter(c, call);
}

bool mct_cuda_device_close(struct mct_cuda_gpu *g, uint64_t end)
{
    const struct mcs_cuda *d = g->cuda->driver;
    bool current;

    if (g->primary == NULL)
        return true;
    /* one that hangs keeps what it has */
    if (!mct_cuda_copier_stop(g->copier, end))
        return false;
    current = mcs_cuda_enter(d, g->primary) == CUDA_SUCCESS;
    mct_cuda_copier_destroy(g->copier, current);
    if (current) {
        (void)d->stream_destroy(g->chores);
        mcs_cuda_leave(d);
    }
    g->copier = NULL;
    g->primary = NULL;
    (void)d->primary_release(g->handle);
    mcs_fetch_add(&g->cuda->stats.contexts, (uint64_t)-1);
    return true;
}
