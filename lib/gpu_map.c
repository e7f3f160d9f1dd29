/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory that others have exported, in this process's address space. */
#include "gpu.h"

#define ALIGN_MAX (UINT64_C(1) << 30) /* of an allocation; more an address need not have */

/* A place like the published one: what is aligned there is so here. */
static CUresult reserve(const struct mcs_cuda *driver, uint64_t size, uint64_t hint,
                        CUdeviceptr *out)
{
    uint64_t align = hint & -hint;
    CUresult e;

    if (align > ALIGN_MAX)
        align = ALIGN_MAX;
    e = driver->mem_reserve(out, size, align, hint, 0);
    if (e != CUDA_SUCCESS) /* the driver's own, which is enough for all but large `align`s */
        e = driver->mem_reserve(out, size, 0, hint, 0);
    return e;
}

/* For the device, and for those of this process that reach its memory. */
static CUresult set_access(struct mcshm *c, unsigned device, CUdeviceptr at, uint64_t size)
{
    const struct mcl_gpu *g = c->gpu;
    CUmemAccessDesc d = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = g->devices[device].device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult e = g->driver->mem_set_access(at, size, &d, 1);

    for (unsigned i = 0; e == CUDA_SUCCESS && i < g->ndevices; i++) {
        int can = 0;

        if (i == device ||
            g->driver->device_can_access_peer(&can, g->devices[i].device,
                                              g->devices[device].device) != CUDA_SUCCESS ||
            can == 0)
            continue;
        d.location.id = g->devices[i].device;
        if (g->driver->mem_set_access(at, size, &d, 1) != CUDA_SUCCESS)
            mcl_log(c, MCSHM_LOG_WARNING,
                    "the memory of cuda:%u at 0x%llx is not accessible for cuda:%u, though it can "
                    "reach it",
                    device, (unsigned long long)at, i);
    }
    return e;
}

mcshm_status mcl_gpu_map(struct mcshm *c, unsigned device, int fd, uint64_t size, uint64_t hint,
                         uint8_t **out)
{
    const struct mcs_cuda *driver = c->gpu->driver;
    mcshm_status status = mcl_gpu_enter(c, device, NULL);
    CUmemGenericAllocationHandle h;
    const char *what;
    CUdeviceptr at;
    CUresult e;

    if (status != MCSHM_OK)
        return status;
    what = "importing an exported allocation (cuMemImportFromShareableHandle)";
    e = driver->mem_import(&h, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (e != CUDA_SUCCESS)
        goto out_leave;
    what = "reserving addresses (cuMemAddressReserve)";
    e = reserve(driver, size, hint, &at);
    if (e != CUDA_SUCCESS)
        goto out_release;
    what = "mapping an imported allocation (cuMemMap)";
    e = driver->mem_map(at, size, 0, h, 0);
    if (e != CUDA_SUCCESS)
        goto out_free;
    what = "giving the device access (cuMemSetAccess)";
    e = set_access(c, device, at, size);
    if (e != CUDA_SUCCESS)
        (void)driver->mem_unmap(at, size);
out_free:
    if (e != CUDA_SUCCESS)
        (void)driver->mem_address_free(at, size);
out_release:
    (void)driver->mem_release(h); /* the mapping holds it */
out_leave:
    mcl_gpu_leave(c);
    if (e != CUDA_SUCCESS)
        return mcl_gpu_fail(c, device, e, what);
    *out = (uint8_t *)(uintptr_t)at;
    return MCSHM_OK;
}

CUresult mcl_gpu_unmap(const struct mcl_gpu *g, unsigned device, uint8_t *base, uint64_t size)
{
    CUdeviceptr at = (uintptr_t)base;
    CUresult e = mcs_cuda_enter(g->driver, g->devices[device].primary);

    if (e != CUDA_SUCCESS)
        return e;
    e = g->driver->mem_unmap(at, size);
    if (e == CUDA_SUCCESS)
        e = g->driver->mem_address_free(at, size);
    mcs_cuda_leave(g->driver);
    return e;
}
