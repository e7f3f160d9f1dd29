/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that other processes' frameworks have allocated.  Sizes and offsets come from clients: nothing is mapped beyond what the
 * driver says there is, since a copy that leaves an allocation breaks the device for everybody.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IPC_OPEN "cuIpcOpenMemHandle"

/* ---- by exported handles --------------------------------------------------------------------------- */

/* Bytes of addresses for all parts; 0: they cannot lie one behind the other. */
static uint64_t layout(const struct mct_cuda_gpu *g, const struct mct_cuda_call *call)
{
    uint64_t total = 0;

    for (unsigned i = 0; i < call->nparts; i++) {
        const struct mct_cuda_part *p = &call->parts[i];

        if (p->fd < 0 || p->size == 0 || p->whole % g->unit != 0 || p->whole > g->device.total ||
            p->offset > p->whole || p->size > p->whole - p->offset || (i != 0 && p->offset != 0) ||
            (i + 1 < call->nparts && p->size != p->whole - p->offset) ||
            (total += p->whole) > g->device.total)
            return 0;
    }
    return total;
}

/* One part: imported, found to be of this device, mapped with all of its allocation, since the driver refuses to map less than
 * that. *what: of what a failure is; BAD: it is the client's. */
static CUresult map_part(struct mct_cuda_memory *m, const struct mct_cuda_part *p,
                         const char **what, bool *bad)
{
    const struct mcs_cuda *d = m->gpu->cuda->driver;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties;
    CUresult e;

    *bad = true;
    *what = "cuMemImportFromShareableHandle";
    e = d->mem_import(&handle, (void *)(intptr_t)p->fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (e != CUDA_SUCCESS)
        return e;
    *what = "the allocation's device";
    memset(&properties, 0, sizeof(properties));
    e = d->mem_properties(&properties, handle);
    if (e == CUDA_SUCCESS && (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
                              properties.location.id != m->gpu->handle))
        e = CUDA_ERROR_INVALID_DEVICE;
    if (e != CUDA_SUCCESS) {
        (void)d->mem_release(handle);
        return e;
    }
    *what = "cuMemMap";
    return mct_cuda_memory_map(m, handle, p->whole);
}

static struct mct_cuda_memory *import_handles(struct mct_cuda_gpu *g, struct mct_cuda_call *call)
{
    struct mct_cuda_memory *m;
    uint64_t reserve = layout(g, call);
    const char *what = "cuMemAddressReserve", *ignored;
    bool bad = false;
    CUresult e;

    if (reserve == 0) {
        mct_cuda_say(
            call, MCS_INVALID_ARGUMENT,
            "%u parts of GPU memory that cannot lie one behind the other: all but the first begin "
            "their allocations, all but the last end them, and these are multiples of %llu bytes",
            call->nparts, (unsigned long long)g->unit);
        return NULL;
    }
    m = mct_cuda_memory_create(g, call->nparts, reserve, call->hint, &e);
    if (m == NULL)
        goto out;
    m->address = m->reserved + call->parts[0].offset;
    for (unsigned i = 0; i < call->nparts && e == CUDA_SUCCESS; i++) {
        m->size += call->parts[i].size;
        e = map_part(m, &call->parts[i], &what, &bad);
    }
    if (e == CUDA_SUCCESS) {
        bad = false;
        what = "cuMemSetAccess";
        e = mct_cuda_memory_allow(m);
    }
    if (e == CUDA_SUCCESS)
        return m;
    (void)mct_cuda_memory_destroy(m, &ignored);
out:
    if (e == CUDA_SUCCESS)
        mct_cuda_say(call, MCS_LOCAL_RESOURCE,
                     "out of host memory for what is noted of GPU memory");
    else
        mct_cuda_refused(g, call, e, what);
    if (bad && call->status == MCS_GPU_CONTEXT)
        call->status = MCS_BAD_SHM;
    return NULL;
}

/* ---- by IPC handles -------------------------------------------------------------------------------- */

/* With imports_lock. One open an allocation: by who asked for it first, or by another session of the same process, whose
 * handle of it is the same. */
static struct mct_cuda_opened *find(struct mct_cuda *c, unsigned device,
                                    const struct mct_cuda_part *p)
{
    struct mct_cuda_opened *o;

    for (o = c->imports; o != NULL; o = o->next)
        if (o->device == device && o->allocation == p->allocation &&
            memcmp(&o->ipc, &p->ipc, sizeof(o->ipc)) == 0)
            return o;
    return NULL;
}

/* With imports_lock. Is what the handle names open for somebody else? Whoever has seen its bytes could ask for it. */
static bool is_of_another(const struct mct_cuda *c, unsigned device, const struct mct_cuda_part *p)
{
    const struct mct_cuda_opened *o = c->imports;

    while (o != NULL && (o->device != device || o->tenant == p->tenant ||
                         memcmp(&o->ipc, &p->ipc, sizeof(o->ipc)) != 0))
        o = o->next;
    return o != NULL;
}

/* With imports_lock. */
static void forget(struct mct_cuda *c, struct mct_cuda_opened *o)
{
    struct mct_cuda_opened **at = &c->imports;

    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    pthread_cond_broadcast(&c->imports_changed);
    free(o);
}

/*
 * Opens it and finds out how large it is.  The driver cuts small allocations from a larger block, and opens the block: what is reported
 * for the address may begin before it, and end behind what was allocated.  All of that is the same process's.
 */
static CUresult open_handle(struct mct_cuda_gpu *g, struct mct_cuda_opened *o, const char **what)
{
    const struct mcs_cuda *d = g->cuda->driver;
    CUdeviceptr base = 0;
    size_t size = 0;
    CUresult e;
    int ordinal = -1;

    *what = IPC_OPEN;
    e = d->ipc_open(&o->base, o->ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (e != CUDA_SUCCESS)
        return e;
    *what = "the allocation's range";
    e = d->mem_range(&base, &size, o->base);
    if (e == CUDA_SUCCESS && (o->base < base || o->base - base >= size))
        e = CUDA_ERROR_INVALID_VALUE;
    if (e == CUDA_SUCCESS) {
        *what = "the allocation's device";
        e = d->pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, o->base);
        if (e == CUDA_SUCCESS && ordinal != g->handle)
            e = CUDA_ERROR_INVALID_DEVICE;
    }
    if (e == CUDA_SUCCESS)
        o->size = base + size - o->base;
    else
        (void)d->ipc_close(o->base);
    return e;
}

/* The driver's word does not tell one reason from another: the usual one is who the two processes are. */
static void refused_ipc(struct mct_cuda_gpu *g, struct mct_cuda_call *call, CUresult e,
                        const char *what)
{
    char title[MCT_CUDA_TITLE];

    mct_cuda_refused(g, call, e, what);
    if (call->status == MCS_GPU_CONTEXT && strcmp(what, IPC_OPEN) == 0)
        mct_cuda_say(call, MCS_BAD_SHM,
                     "%s: %s: %s: CUDA IPC wants one user and PID namespace on both sides; else "
                     "use expandable segments",
                     mct_cuda_title(g, title), what, mcs_cuda_error(g->cuda->driver, e));
    else if (call->status == MCS_GPU_CONTEXT)
        call->status = MCS_BAD_SHM;
}

/* The open allocation, one user more; NULL: the call says why. */
static struct mct_cuda_opened *get(struct mct_cuda_gpu *g, struct mct_cuda_call *call)
{
    struct mct_cuda *c = g->cuda;
    const struct mct_cuda_part *p = &call->parts[0];
    struct mct_cuda_opened *o;
    const char *what;
    CUresult e;

    pthread_mutex_lock(&c->imports_lock);
    if (is_of_another(c, g->index, p)) {
        pthread_mutex_unlock(&c->imports_lock);
        mct_cuda_say(call, MCS_ACCESS, "this IPC handle is in use by another tenant");
        return NULL;
    }
    while ((o = find(c, g->index, p)) != NULL && !o->ready)
        pthread_cond_wait(&c->imports_changed,
                          &c->imports_lock); /* another hand opens or closes it */
    if (o != NULL)
        o->users++;
    if (o != NULL || (o = calloc(1, sizeof(*o))) == NULL) {
        pthread_mutex_unlock(&c->imports_lock);
        if (o == NULL)
            mct_cuda_say(call, MCS_LOCAL_RESOURCE,
                         "out of host memory for what is noted of GPU memory");
        return o;
    }
    o->device = g->index;
    o->ipc = p->ipc;
    o->allocation = p->allocation;
    o->tenant = p->tenant;
    o->next = c->imports;
    c->imports = o;
    pthread_mutex_unlock(&c->imports_lock);

    e = open_handle(g, o, &what);
    pthread_mutex_lock(&c->imports_lock);
    if (e == CUDA_SUCCESS) {
        o->ready = true;
        o->users = 1;
        mcs_fetch_add(&c->stats.imports_open, 1u);
        pthread_cond_broadcast(&c->imports_changed);
    } else {
        forget(c, o);
        o = NULL;
    }
    pthread_mutex_unlock(&c->imports_lock);
    if (e != CUDA_SUCCESS)
        refused_ipc(g, call, e, what);
    return o;
}

/* Whether this was the last user. */
static bool leave(struct mct_cuda *c, struct mct_cuda_opened *o)
{
    bool last;

    pthread_mutex_lock(&c->imports_lock);
    last = --o->users == 0;
    if (last)
        o->ready = false; /* who wants it meanwhile waits, and opens it anew */
    pthread_mutex_unlock(&c->imports_lock);
    return last;
}

static void close_over(struct mct_cuda *c, struct mct_cuda_opened *o)
{
    mcs_fetch_add(&c->stats.imports_open, (uint64_t)-1);
    pthread_mutex_lock(&c->imports_lock);
    forget(c, o);
    pthread_mutex_unlock(&c->imports_lock);
}

CUresult mct_cuda_opened_put(struct mct_cuda *c, struct mct_cuda_opened *o)
{
    CUresult e = CUDA_SUCCESS;

    if (leave(c, o)) {
        e = c->driver->ipc_close(o->base);
        close_over(c, o);
    }
    return e;
}

void mct_cuda_opened_forget(struct mct_cuda *c, struct mct_cuda_opened *o)
{
    if (leave(c, o))
        close_over(c, o);
}

static struct mct_cuda_memory *import_ipc(struct mct_cuda_gpu *g, struct mct_cuda_call *call)
{
    const struct mct_cuda_part *p = &call->parts[0];
    struct mct_cuda_memory *m;
    struct mct_cuda_opened *o;
    const char *ignored;
    CUresult e;

    o = get(g, call);
    if (o == NULL)
        return NULL;
    m = mct_cuda_memory_create(g, 0, 0, 0, &e);
    if (m == NULL) {
        (void)mct_cuda_opened_put(g->cuda, o);
        mct_cuda_say(call, MCS_LOCAL_RESOURCE,
                     "out of host memory for what is noted of GPU memory");
        return NULL;
    }
    m->opened = o;
    m->address = o->base + p->offset;
    m->size = p->size;
    if (p->size == 0 || p->offset > o->size || p->size > o->size - p->offset) {
        mct_cuda_say(call, MCS_BAD_RANGE, "%llu bytes from %llu of an allocation of %llu bytes",
                     (unsigned long long)p->size, (unsigned long long)p->offset,
                     (unsigned long long)o->size);
        (void)mct_cuda_memory_destroy(m, &ignored);
        return NULL;
    }
    return m;
}

void mct_cuda_import(struct mct_cuda *c, struct mct_cuda_call *call)
{
    struct mct_cuda_gpu *g;
    bool ipc;

    call->memory = NULL;
    ipc = call->nparts != 0 && call->parts[0].fd < 0;
    if (call->nparts == 0 || (ipc && call->nparts != 1)) {
        mct_cuda_say(
            call, MCS_INVALID_ARGUMENT,
            "GPU memory of %u parts: one, or as many as have exported handles; register each "
            "allocation by itself",
            call->nparts);
        return;
    }
    g = mct_cuda_enter(c, call);
    if (g == NULL)
        return;
    call->memory = ipc ? import_ipc(g, call) : import_handles(g, call);
    if (call->memory != NULL) {
        call->address = call->memory->address;
        mcs_fetch_add(&c->stats.imports, 1u);
    }
    mct_cuda_leave(g);
}
