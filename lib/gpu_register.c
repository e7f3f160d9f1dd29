/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registration of GPU memory that another library has allocated.  The range is cut where allocations meet; the agent
 * gets each part by an exported handle or, where the range lies in one allocation that has none, by CUDA IPC.
 */
#include "gpu.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define PARTS_MAX 65536u /* of one range: a mapping has at least 2 MiB, so no less than 128 GiB */
#define LIVES 3u         /* agents that may die during one registration */

/* What a look at the range goes by. */
struct look {
    struct mcshm *c;
    uint64_t start, end, at; /* addresses */
    unsigned device;
    CUcontext context; /* of the memory, or NULL */
    struct mcl_import *import;
};

void mcl_import_free(struct mcl_import *import)
{
    for (size_t i = 0; i < import->nparts; i++) {
        if (import->parts[i].fd >= 0)
            close(import->parts[i].fd);
    }
    free(import->parts);
    free(import);
}

void mcl_import_message(const struct mcl_import *import, size_t i, struct mcs_msg *m)
{
    const struct mcl_import_part *p = &import->parts[i];

    *m = (struct mcs_msg){.b.gpu_import = {.total = import->size,
                                           .at = p->at,
                                           .size = p->size,
                                           .offset = p->offset,
                                           .whole = p->whole,
                                           .allocation = p->allocation,
                                           .ipc = p->shares,
                                           .last = i + 1 == import->nparts}};
    memcpy(m->b.gpu_import.gpu, import->gpu.bytes, sizeof(m->b.gpu_import.gpu));
    if (p->shares) {
        static_assert(sizeof(p->ipc) == sizeof(m->b.gpu_import.handle), "a CUipcMemHandle");
        memcpy(m->b.gpu_import.handle, &p->ipc, sizeof(m->b.gpu_import.handle));
    }
}

/* ---- looking at the range ------------------------------------------------------------ */

/* False: the driver does not say. */
static bool attribute(const struct look *k, CUpointer_attribute what, void *out)
{
    return k->c->gpu->driver->pointer_attribute(out, what, k->at) == CUDA_SUCCESS;
}

/* What lies at k->at: memory of a device, and of the same one as before. */
static mcshm_status look_kind(struct look *k)
{
    unsigned kind = 0, managed = 0;
    int ordinal = -1;
    const struct mcs_cuda *driver = k->c->gpu->driver;
    CUresult e = driver->pointer_attribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, k->at);

    if (e == CUDA_SUCCESS)
        e = driver->pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, k->at);
    /* the driver says INVALID_VALUE of what it does not know, and anything else of itself */
    if (e != CUDA_SUCCESS && e != CUDA_ERROR_INVALID_VALUE)
        return mcl_gpu_fail(k->c, k->device, e, "what lies there (cuPointerGetAttribute)");
    if (e != CUDA_SUCCESS || ordinal < 0 || (unsigned)ordinal >= k->c->gpu->ndevices)
        return mcl_fail(MCSHM_NOT_REGISTERED,
                        "no memory of a device lies at 0x%llx, %llu bytes into the range",
                        (unsigned long long)k->at, (unsigned long long)(k->at - k->start));
    (void)attribute(k, CU_POINTER_ATTRIBUTE_IS_MANAGED, &managed);
    if (kind != CU_MEMORYTYPE_DEVICE || managed != 0)
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "0x%llx is %s memory, which moves between host and devices: only memory "
                        "that stays on a "
                        "device can be registered",
                        (unsigned long long)k->at, managed != 0 ? "managed" : "host or unified");
    if (k->at != k->start && (unsigned)ordinal != k->device)
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "the range begins on cuda:%u, and what lies at 0x%llx is on cuda:%d: "
                        "register each device's part by itself",
                        k->device, (unsigned long long)k->at, ordinal);
    k->device = (unsigned)ordinal;
    k->context = NULL;
    (void)attribute(k, CU_POINTER_ATTRIBUTE_CONTEXT, &k->context);
    return MCSHM_OK;
}

/*
 * Where the allocation at k->at begins, and what of it is there.  mapped: it has a handle, and what is asked for is its mapping, of
 * which several may lie one behind the other.  cuMemGetAddressRange() is documented to give that, and the attributes are the
 * mapping's by their names: the driver is taken at the narrower word.  Not so of cuMemAlloc(), which cuts many allocations from
 * one mapping.
 */
static mcshm_status look_bounds(const struct look *k, bool mapped, uint64_t *base, uint64_t *size)
{
    CUdeviceptr from = 0, map_from = 0;
    size_t bytes = 0, map_bytes = 0;
    uint64_t end;
    CUresult e = k->c->gpu->driver->mem_range(&from, &bytes, k->at);

    if (e != CUDA_SUCCESS)
        return mcl_gpu_fail(k->c, k->device, e, "an allocation's bounds (cuMemGetAddressRange)");
    end = from + bytes;
    if (mapped && attribute(k, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, &map_from) &&
        attribute(k, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, &map_bytes) && map_bytes != 0) {
        from = map_from > from ? map_from : from;
        end = map_from + map_bytes < end ? map_from + map_bytes : end;
    }
    if (k->at < from || k->at >= end)
        return mcl_fail(MCSHM_INTERNAL, "the driver says that 0x%llx lies in %llu bytes at 0x%llx",
                        (unsigned long long)k->at, (unsigned long long)(end - from),
                        (unsigned long long)from);
    *base = from;
    *size = end - from;
    return MCSHM_OK;
}

/* The allocation's handle, exported. NOT_SUPPORTED: it has none. */
static mcshm_status export_part(const struct look *k, struct mcl_import_part *p)
{
    const struct mcs_cuda *driver = k->c->gpu->driver;
    CUmemAllocationProp properties = {0};
    CUmemGenericAllocationHandle h;
    CUresult e = driver->mem_retain(&h, (void *)(uintptr_t)k->at);
    int fd = -1;

    if (e != CUDA_SUCCESS)
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "the memory at 0x%llx has no handle (cuMemRetainAllocationHandle: %s)",
                        (unsigned long long)k->at, mcs_cuda_error(driver, e));
    e = driver->mem_properties(&properties, h);
    if (e == CUDA_SUCCESS &&
        ((unsigned)properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0)
        e = CUDA_ERROR_NOT_PERMITTED;
    if (e == CUDA_SUCCESS)
        e = driver->mem_export(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    (void)driver->mem_release(h);
    if (e != CUDA_SUCCESS)
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "the handle of the memory at 0x%llx cannot be exported as a descriptor "
                        "(%s): it has to be made with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
                        (unsigned long long)k->at, mcs_cuda_error(driver, e));
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* who is executed would keep the memory */
    p->fd = fd;
    return MCSHM_OK;
}

/* A handle of CUDA IPC. `why` says why there is no other one. */
static mcshm_status share_part(const struct look *k, uint64_t base, const char *why,
                               struct mcl_import_part *p)
{
    unsigned capable = 0;
    CUresult e;

    (void)attribute(k, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, &capable);
    e = capable == 0 ? CUDA_ERROR_NOT_SUPPORTED : k->c->gpu->driver->ipc_get(&p->ipc, base);
    if (mcs_cuda_is_lost(e))
        return mcl_gpu_fail(k->c, k->device, e, "a CUDA IPC handle (cuIpcGetMemHandle)");
    if (e != CUDA_SUCCESS)
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "%.200s; nor can it be shared by CUDA IPC%s: allocate it by cuMemAlloc() "
                        "(PyTorch's default), "
                        "or with expandable segments, or by mcshm_alloc()",
                        why, capable == 0 ? " (a pool's, or another process's)" : "");
    p->shares = true;
    return MCSHM_OK;
}

/* Notes the part that begins at k->at, and goes on to its end. */
static mcshm_status look_part(struct look *k)
{
    struct mcl_import *import = k->import;
    struct mcl_import_part p = {.fd = -1};
    unsigned long long id = 0;
    uint64_t base = 0, size = 0;
    mcshm_status status;

    if (import->nparts == PARTS_MAX ||
        mcl_grow(&import->parts, import->nparts, &import->room, sizeof(p)) != 0)
        return mcl_fail(MCSHM_NO_MEMORY, "a range of %zu allocations: there is room for %u",
                        import->nparts + 1, PARTS_MAX);
    status = export_part(k, &p);
    if (status == MCSHM_OK) {
        status = look_bounds(k, true, &base, &size);
        p.whole = size;
    } else {
        char why[256];

        snprintf(why, sizeof(why), "%s", mcshm_last_error(k->c));
        status = look_bounds(k, false, &base, &size);
        if (status == MCSHM_OK)
            status = share_part(k, base, why, &p);
    }
    if (status != MCSHM_OK) {
        if (p.fd >= 0)
            close(p.fd);
        return status;
    }
    (void)attribute(k, CU_POINTER_ATTRIBUTE_BUFFER_ID, &id);
    p.allocation = id;
    p.at = k->at - k->start;
    p.offset = k->at - base;
    p.size = base + size < k->end ? base + size - k->at : k->end - k->at;
    import->parts[import->nparts++] = p;
    if (p.shares && p.size != import->size)
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "the range reaches from one allocation to another, and these can only be "
                        "shared by CUDA IPC, "
                        "which puts them at places of its own: register the %llu bytes at 0x%llx "
                        "and the rest by themselves",
                        (unsigned long long)p.size, (unsigned long long)k->at);
    k->at += p.size;
    return MCSHM_OK;
}

/* With gpu_mutex: what the range consists of. */
static mcshm_status look(struct look *k)
{
    mcshm_status status = MCSHM_OK;
    char location[16];
    unsigned device;

    while (k->at < k->end && status == MCSHM_OK) {
        status = look_kind(k);
        if (status == MCSHM_OK && k->context == NULL) {
            snprintf(location, sizeof(location), "cuda:%u", k->device);
            status = mcl_gpu_use(k->c, location, &device);
        }
        if (status == MCSHM_OK)
            status = mcl_gpu_enter(k->c, k->device, k->context);
        if (status != MCSHM_OK)
            break;
        status = look_part(k);
        mcl_gpu_leave(k->c);
    }
    if (status == MCSHM_OK)
        k->import->gpu = k->c->gpu->devices[k->device].id;
    return status;
}

/* ---- handing it over: the mutex ------------------------------------------------------ */

static mcshm_status send_parts(struct mcshm *c, const struct mcl_import *import,
                               struct mcs_msg_extent_reply *r)
{
    mcshm_status status = MCSHM_OK;

    for (size_t i = 0; i < import->nparts && status == MCSHM_OK; i++) {
        struct mcs_msg m;

        mcl_import_message(import, i, &m);
        status = mcl_call(c, MCS_MSG_GPU_IMPORT, &m, import->parts[i].fd, NULL);
        *r = m.b.extent_reply;
    }
    return status;
}

/* An agent that dies in between leaves a later one with parts that follow upon nothing: then all of it again. */
static mcshm_status send_all(struct mcshm *c, const struct mcl_import *import,
                             struct mcs_msg_extent_reply *r)
{
    mcshm_status status = MCSHM_OK;

    for (unsigned lives = 0; lives < LIVES; lives++) {
        uint32_t life = c->restarts;

        status = send_parts(c, import, r);
        if (status == MCSHM_OK || life == c->restarts)
            break;
    }
    return status;
}

static mcshm_status add(struct mcshm *c, const struct look *k)
{
    struct mcs_msg_extent_reply r = {0};
    struct mcl_extent e = {.gpu = true,
                           .device = k->device,
                           .import = k->import,
                           .fd = -1,
                           .base = (uint8_t *)(uintptr_t)k->start,
                           .size = k->import->size,
                           .map_size = k->import->size},
                      gone;
    mcshm_status status;

    if (mcl_grow(&c->extents, c->nextents, &c->extents_room, sizeof(e)) != 0)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for one more registration");
    status = send_all(c, k->import, &r);
    if (status != MCSHM_OK)
        return status;
    if (r.extent == 0 || r.extent_size != e.size)
        return mcl_fail(MCSHM_PROTOCOL, "the agent has imported %llu of %llu bytes",
                        (unsigned long long)r.extent_size, (unsigned long long)e.size);
    e.handle = r.extent;
    c->extents[c->nextents++] = e;
    if (mcl_view_extend(c) == 0)
        return MCSHM_OK;
    gone = mcl_extent_remove(c, e.handle);
    {
        struct mcs_msg m = {.b.unregister.extent = gone.handle};

        (void)mcl_call(c, MCS_MSG_UNREGISTER, &m, -1, NULL);
    }
    return mcl_fail(MCSHM_NO_MEMORY, "out of memory for the table of registrations");
}

/* The registration of just this range, or an overlap. */
static struct mcl_extent *find(struct mcshm *c, const uint8_t *start, uint64_t size,
                               mcshm_status *status)
{
    for (size_t i = 0; i < c->nextents; i++) {
        struct mcl_extent *e = &c->extents[i];

        if (e->base == NULL || start >= e->base + e->size || e->base >= start + size)
            continue;
        if (e->import != NULL && e->base == start && e->size == size)
            return e;
        *status =
            mcl_fail(MCSHM_OVERLAP, "%llu bytes at %p overlap the %llu bytes at %p, which are %s",
                     (unsigned long long)size, (const void *)start, (unsigned long long)e->size,
                     (void *)e->base,
                     e->import != NULL ? "registered" : "the agent's, and need no registration");
        return NULL;
    }
    return NULL;
}

/* With gpu_mutex. True: it is registered already, and counted once more; or *status says why it cannot be. */
static bool known(struct mcshm *c, const uint8_t *start, uint64_t size, mcshm_status *status)
{
    struct mcl_extent *e;

    pthread_mutex_lock(&c->mutex);
    e = find(c, start, size, status);
    if (e != NULL)
        e->import->references++;
    pthread_mutex_unlock(&c->mutex);
    return e != NULL || *status != MCSHM_OK;
}

/* What is handed over needs no descriptors here, unless a later agent may want them. */
static void close_parts(struct mcl_import *import)
{
    for (size_t i = 0; i < import->nparts; i++) {
        if (import->parts[i].fd >= 0)
            close(import->parts[i].fd);
        import->parts[i].fd = -1;
    }
}

MCSHM_API mcshm_status mcshm_register_gpu(mcshm *c, void *address, size_t size)
{
    struct look k = {.c = c, .start = (uintptr_t)address, .at = (uintptr_t)address};
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (address == NULL || size == 0 || size > UINTPTR_MAX - (uintptr_t)address)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_register_gpu: %zu bytes at %p are no range",
                        size, address);
    k.end = k.start + size;
    k.import = calloc(1, sizeof(*k.import));
    if (k.import == NULL)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for one more registration");
    *k.import = (struct mcl_import){.size = size, .references = 1};
    pthread_mutex_lock(&c->gpu_mutex);
    if (!known(c, address, size, &status)) {
        status = mcl_gpu_open(c);
        if (status == MCSHM_OK)
            status = look(&k);
        if (status == MCSHM_OK) {
            pthread_mutex_lock(&c->mutex);
            status = add(c, &k);
            pthread_mutex_unlock(&c->mutex);
        }
        if (status == MCSHM_OK) {
            if (!c->watched)
                close_parts(k.import);
            k.import = NULL; /* the extent's */
        }
    }
    pthread_mutex_unlock(&c->gpu_mutex);
    if (k.import != NULL)
        mcl_import_free(k.import);
    return status;
}

mcshm_status mcl_gpu_unregister(struct mcshm *c, struct mcl_extent *e)
{
    if (e->import->references > 1) {
        e->import->references--;
        return MCSHM_OK;
    }
    return mcl_extent_unregister(c, e);
}
