/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory that is made here, and host memory that the driver knows. */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

unsigned mct_cuda_memory_device(const struct mct_cuda_memory *m)
{
    return m->gpu->index;
}

struct mct_cuda_memory *mct_cuda_memory_create(struct mct_cuda_gpu *g, unsigned n, uint64_t reserve,
                                               uint64_t hint, CUresult *e)
{
    struct mct_cuda_memory *m = calloc(1, sizeof(*m) + n * sizeof(m->mappings[0]));
    const uint64_t align = (g->unit & (g->unit - 1)) == 0 ? g->unit : 0; /* as cuMemMap wants it */

    *e = CUDA_SUCCESS;
    if (m == NULL)
        return NULL;
    m->gpu = g;
    if (reserve != 0)
        *e = g->cuda->driver->mem_reserve(&m->reserved, reserve, align, hint, 0);
    if (*e != CUDA_SUCCESS) {
        free(m);
        return NULL;
    }
    m->reserved_size = reserve;
    m->address = m->reserved;
    return m;
}

CUresult mct_cuda_memory_map(struct mct_cuda_memory *m, CUmemGenericAllocationHandle handle,
                             uint64_t size)
{
    struct mct_cuda_mapping *k = &m->mappings[m->n];
    CUresult e;

    k->handle = handle;
    k->at = m->n == 0 ? m->reserved : k[-1].at + k[-1].size;
    k->size = size;
    m->n++;
    e = m->gpu->cuda->driver->mem_map(k->at, size, 0, handle, 0);
    k->mapped = e == CUDA_SUCCESS;
    return e;
}

/* devices: a bit each */
static CUresult allow(const struct mct_cuda_memory *m, uint32_t devices)
{
    const struct mct_cuda *c = m->gpu->cuda;
    CUmemAccessDesc access[MCT_CUDA_DEVICES];
    size_t n = 0;

    memset(access, 0, sizeof(access));
    for (unsigned i = 0; i < c->ngpus; i++) {
        if ((devices >> i & 1u) == 0)
            continue;
        access[n].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access[n].location.id = c->gpus[i].handle;
        access[n++].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return c->driver->mem_set_access(m->reserved, m->reserved_size, access, n);
}

CUresult mct_cuda_memory_allow(struct mct_cuda_memory *m)
{
    const uint32_t own = UINT32_C(1) << m->gpu->index;
    struct mct_cuda *c = m->gpu->cuda;
    uint32_t others = 0;
    CUresult e, refused;

    for (unsigned i = 0; i < c->ngpus; i++)
        if (&c->gpus[i] != m->gpu && mct_cuda_reaches(&c->gpus[i], m->gpu) &&
            !mct_cuda_lost(&c->gpus[i]))
            others |= UINT32_C(1) << i;
    e = allow(m, own | others);
    if (e == CUDA_SUCCESS || others == 0)
        return e;
    /* One of the others may have failed without anybody's having noticed: that is no reason to have no memory here. */
    e = allow(m, own);
    for (unsigned i = 0; i < c->ngpus && e == CUDA_SUCCESS; i++) {
        refused = (others >> i & 1u) != 0 ? allow(m, UINT32_C(1) << i) : CUDA_SUCCESS;
        if (refused != CUDA_SUCCESS)
            mct_cuda_part(&c->gpus[i], m->gpu, refused);
    }
    return e;
}

CUresult mct_cuda_memory_destroy(struct mct_cuda_memory *m, const char **what)
{
    struct mct_cuda *c = m->gpu->cuda;
    const struct mcs_cuda *d = c->driver;
    CUresult first = CUDA_SUCCESS, e;
    bool stays = false;

#define STEP(call, name)                                                                           \
    do {                                                                                           \
        e = (call);                                                                                \
        if (first == CUDA_SUCCESS && e != CUDA_SUCCESS) {                                          \
            first = e;                                                                             \
            *what = (name);                                                                        \
        }                                                                                          \
    } while (0)
    if (m->opened != NULL)
        STEP(mct_cuda_opened_put(c, m->opened), "cuIpcCloseMemHandle");
    for (unsigned i = 0; i < m->n; i++) {
        if (!m->mappings[i].mapped)
            continue;
        STEP(d->mem_unmap(m->mappings[i].at, m->mappings[i].size), "cuMemUnmap");
        stays = stays || e != CUDA_SUCCESS;
    }
    /* addresses with something behind them cannot be given back */
    if (m->reserved != 0 && !stays)
        STEP(d->mem_address_free(m->reserved, m->reserved_size), "cuMemAddressFree");
    for (unsigned i = 0; i < m->n; i++)
        STEP(d->mem_release(m->mappings[i].handle), "cuMemRelease");
#undef STEP
    free(m);
    return first;
}

void mct_cuda_memory_forget(struct mct_cuda_memory *m)
{
    if (m->opened != NULL)
        mct_cuda_opened_forget(m->gpu->cuda, m->opened);
    free(m);
}

/* ---- made here ------------------------------------------------------------------------------------- */

/* A descriptor that the driver has made: whoever is executed would keep the memory. */
static int own(int fd)
{
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

/* What was another tenant's a moment ago may be in it: the driver promises nothing of what new memory holds. */
static CUresult clear(const struct mct_cuda_memory *m)
{
    const struct mcs_cuda *d = m->gpu->cuda->driver;
    CUresult e = d->fill32(m->address, 0, m->size / 4, m->gpu->chores);

    if (e == CUDA_SUCCESS)
        e = d->stream_synchronize(m->gpu->chores);
    if (e != CUDA_SUCCESS)
        (void)d->stream_synchronize(m->gpu->chores); /* nothing writes there when it goes */
    return e;
}

/* The allocation gets addresses, rights and zeros; *what: of what a failure is. The handle is the memory's in any case. */
static struct mct_cuda_memory *settle(struct mct_cuda_gpu *g, struct mct_cuda_call *call,
                                      CUmemGenericAllocationHandle handle, CUresult *e,
                                      const char **what)
{
    const struct mcs_cuda *d = g->cuda->driver;
    struct mct_cuda_memory *m;
    const char *ignored;

    *what = "cuMemAddressReserve";
    m = mct_cuda_memory_create(g, 1, call->size, call->hint, e);
    if (m == NULL) {
        (void)d->mem_release(handle);
        return NULL;
    }
    m->size = call->size;
    m->made = true;
    *what = "cuMemMap";
    *e = mct_cuda_memory_map(m, handle, call->size);
    if (*e == CUDA_SUCCESS) {
        *what = "cuMemSetAccess";
        *e = mct_cuda_memory_allow(m);
    }
    if (*e == CUDA_SUCCESS) {
        *what = "clearing new memory";
        *e = clear(m);
    }
    if (*e == CUDA_SUCCESS)
        return m;
    (void)mct_cuda_memory_destroy(m, &ignored);
    return NULL;
}

/* On success the memory, else NULL and in the call why. */
static struct mct_cuda_memory *make(struct mct_cuda_gpu *g, struct mct_cuda_call *call)
{
    const struct mcs_cuda *d = g->cuda->driver;
    const CUmemAllocationProp p = mct_cuda_properties(g);
    CUmemGenericAllocationHandle handle;
    struct mct_cuda_memory *m = NULL;
    const char *what, *ignored;
    char text[64];
    CUresult e;
    int fd = -1;

    snprintf(text, sizeof(text), "cuMemCreate of %llu bytes", (unsigned long long)call->size);
    what = text;
    e = d->mem_create(&handle, call->size, &p, 0);
    if (e == CUDA_SUCCESS)
        m = settle(g, call, handle, &e, &what);
    if (m != NULL) {
        what = "cuMemExportToShareableHandle";
        e = d->mem_export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (e == CUDA_SUCCESS) {
            call->fd = own(fd);
            return m;
        }
        (void)mct_cuda_memory_destroy(m, &ignored);
    }
    if (e == CUDA_SUCCESS)
        mct_cuda_say(call, MCS_LOCAL_RESOURCE,
                     "out of host memory for what is noted of GPU memory");
    else
        mct_cuda_refused(g, call, e, what);
    return NULL;
}

void mct_cuda_make(struct mct_cuda *c, struct mct_cuda_call *call)
{
    struct mct_cuda_gpu *g;
    const struct mct_cuda_device *v = mct_cuda_device_get(c, call->device);
    char title[MCT_CUDA_TITLE];

    call->memory = NULL;
    if (v != NULL && (!v->vmm || !v->posix_handles)) {
        mct_cuda_say(
            call, MCS_NOT_SUPPORTED,
            "%s has no memory that can be exported as descriptors: register what a framework "
            "has allocated",
            mct_cuda_title(&c->gpus[call->device], title));
        return;
    }
    if (v != NULL && (call->size == 0 || call->size % v->granularity != 0)) {
        mct_cuda_say(call, MCS_INVALID_ARGUMENT, "%llu bytes of GPU memory: not a multiple of %llu",
                     (unsigned long long)call->size, (unsigned long long)v->granularity);
        return;
    }
    g = mct_cuda_enter(c, call);
    if (g == NULL)
        return;
    call->memory = make(g, call);
    if (call->memory != NULL)
        call->address = call->memory->address;
    mct_cuda_leave(g);
}

void mct_cuda_free(struct mct_cuda *c, struct mct_cuda_call *call)
{
    struct mct_cuda_gpu *g = call->memory->gpu;
    const char *what = NULL;
    CUresult e;

    call->device = g->index;
    g = mct_cuda_enter(c, call);
    if (g == NULL) {
        /* its context cannot even be made current: what the driver has goes with the process */
        mct_cuda_memory_forget(call->memory);
        call->memory = NULL;
        return;
    }
    e = mct_cuda_memory_destroy(call->memory, &what);
    call->memory = NULL;
    if (e != CUDA_SUCCESS)
        mct_cuda_refused(g, call, e, what);
    mct_cuda_leave(g);
}

void mct_cuda_export(struct mct_cuda *c, struct mct_cuda_call *call)
{
    const struct mct_cuda_memory *m = call->memory;
    struct mct_cuda_gpu *g;
    CUresult e;
    int fd = -1;

    call->device = m->gpu->index;
    if (!m->made) {
        mct_cuda_say(call, MCS_NOT_SUPPORTED, "imported GPU memory is exported by who made it");
        return;
    }
    g = mct_cuda_enter(c, call);
    if (g == NULL)
        return;
    e = c->driver->mem_export(&fd, m->mappings[0].handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              0);
    if (e == CUDA_SUCCESS)
        call->fd = own(fd);
    else
        mct_cuda_refused(g, call, e, "cuMemExportToShareableHandle");
    mct_cuda_leave(g);
}

void mct_cuda_dmabuf(struct mct_cuda *c, struct mct_cuda_call *call)
{
    const struct mct_cuda_memory *m = call->memory;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct mct_cuda_gpu *g;
    char title[MCT_CUDA_TITLE];
    CUresult e;
    int fd = -1;

    call->device = m->gpu->index;
    if (!m->gpu->device.dmabuf) {
        mct_cuda_say(call, MCS_NOT_SUPPORTED,
                     "%s exports no dmabuf: it needs the open kernel modules",
                     mct_cuda_title(m->gpu, title));
        return;
    }
    if (call->offset > m->size || call->size > m->size - call->offset || call->size == 0 ||
        (m->address + call->offset) % page != 0 || call->size % page != 0) {
        mct_cuda_say(call, MCS_BAD_RANGE,
                     "dmabuf of %llu bytes from %llu: not pages of the %llu bytes that there are",
                     (unsigned long long)call->size, (unsigned long long)call->offset,
                     (unsigned long long)m->size);
        return;
    }
    g = mct_cuda_enter(c, call);
    if (g == NULL)
        return;
    e = c->driver->mem_range_handle(&fd, m->address + call->offset, call->size,
                                    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (e == CUDA_SUCCESS)
        call->fd = own(fd);
    else
        mct_cuda_refused(g, call, e, "cuMemGetHandleForAddressRange");
    mct_cuda_leave(g);
}

/* ---- host memory ----------------------------------------------------------------------------------- */

void mct_cuda_pin(struct mct_cuda *c, struct mct_cuda_call *call)
{
    struct mct_cuda_gpu *g = mct_cuda_enter_any(c, call);
    CUresult e;
    char text[64];

    if (g == NULL)
        return;
    e = c->driver->host_register(call->host, call->size, CU_MEMHOSTREGISTER_PORTABLE);
    if (e == CUDA_SUCCESS) {
        mcs_fetch_add(&c->stats.registered_bytes, call->size);
    } else {
        snprintf(text, sizeof(text), "cuMemHostRegister of %llu bytes",
                 (unsigned long long)call->size);
        mct_cuda_refused(g, call, e, text);
    }
    mct_cuda_leave(g);
}

void mct_cuda_unpin(struct mct_cuda *c, struct mct_cuda_call *call)
{
    struct mct_cuda_gpu *g = mct_cuda_enter_any(c, call);
    CUresult e;

    if (g == NULL)
        return;
    e = c->driver->host_unregister(call->host);
    if (e != CUDA_SUCCESS)
        mct_cuda_refused(g, call, e, "cuMemHostUnregister");
    mcs_fetch_add(&c->stats.registered_bytes, (uint64_t)-call->size);
    mct_cuda_leave(g);
}
