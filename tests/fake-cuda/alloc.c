/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of cuMemAlloc, and how other processes reach it: IPC handles. */
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SMALL (UINT64_C(1) << 20)
#define CUT 512u /* bytes */
#define IPC_MAGIC UINT64_C(0x4350494554554b46)

/* What is in an IPC handle: where its memory is found, and how it is known there. */
struct ipc {
    uint64_t magic, inode, size, offset;
    int32_t pid, fd, device;
    uint32_t reserved[5];
};
static_assert(sizeof(struct ipc) <= CU_IPC_HANDLE_SIZE, "an IPC handle has 64 bytes");

/* Where in its block a small allocation lies: the driver cuts several from one, and shares and opens the block. */
static uint64_t place(uint64_t size)
{
    return size <= SMALL ? CUT : 0;
}

static uint64_t rounded(uint64_t size)
{
    return (size + FAKE_GRANULE - 1) / FAKE_GRANULE * FAKE_GRANULE;
}

CUresult fake_cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    uint64_t used;
    CUresult res = fake_enter(FAKE_cuMemGetInfo_v2, FAKE_CURRENT);

    if (res == CUDA_SUCCESS) {
        used = fake_memory_used(fake_current()->device);
        *total = fake.settings.memory;
        *free_bytes = used < *total ? *total - used : 0;
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuMemAlloc_v2(CUdeviceptr *at, size_t size)
{
    struct fake_context *c;
    struct fake_physical *p;
    struct fake_range *r;
    int error;
    CUresult res = fake_enter(FAKE_cuMemAlloc_v2, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    c = fake_current();
    if (size == 0)
        return fake_leave(fake_misuse(CUDA_ERROR_INVALID_VALUE, "0 bytes"));
    if (size > fake.settings.memory)
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    error = fake_physical_create(c->device, rounded(place(size) + size), false, false, true, &p);
    if (error != 0)
        return fake_leave(error == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY
                                           : CUDA_ERROR_OPERATING_SYSTEM);
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        abort();
    r->at = fake_addresses_get(p->size, FAKE_GRANULE, 0);
    if (r->at == 0) {
        fake_physical_put(p);
        free(r);
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    r->offset = place(size);
    r->at += r->offset;
    r->size = size;
    r->kind = FAKE_ALLOCATED;
    r->p = p;
    r->c = c;
    r->id = ++fake.next_id;
    fake_range_insert(r);
    fake_count_thing(c, FAKE_ALLOCATIONS, 1);
    *at = r->at;
    return fake_leave(res);
}

/* The end of an allocation, or of another process's that was opened. */
static CUresult range_end(CUdeviceptr at, enum fake_range_kind kind, enum fake_count what)
{
    struct fake_range *r = fake_range_find(at);
    CUresult res = CUDA_SUCCESS;

    if (r == NULL || r->at != at || r->kind != kind) {
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "0x%llx is not such memory, or no longer", at);
    } else if (r->busy > 0) {
        res = fake_misuse(CUDA_ERROR_ILLEGAL_STATE, "under an operation of a stream");
    } else {
        fake_range_remove(r);
        fake_addresses_put(r->at - r->offset, r->p->size);
        fake_physical_put(r->p);
        fake_count_thing(r->c, what, -1);
        free(r);
    }
    return res;
}

CUresult fake_cuMemFree_v2(CUdeviceptr at)
{
    CUresult res = fake_enter(FAKE_cuMemFree_v2, FAKE_CURRENT);

    return res == CUDA_SUCCESS ? fake_leave(range_end(at, FAKE_ALLOCATED, FAKE_ALLOCATIONS)) : res;
}

CUresult fake_cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr at)
{
    const struct fake_range *r;
    struct ipc ipc = {.magic = IPC_MAGIC};
    CUresult res = fake_enter(FAKE_cuIpcGetMemHandle, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    r = fake_range_find(at);
    if (r == NULL || r->kind != FAKE_ALLOCATED || r->at != at) {
        res = CUDA_ERROR_INVALID_VALUE;
    } else {
        ipc.inode = r->p->inode;
        ipc.size = r->size;
        ipc.offset = r->offset;
        ipc.pid = fake.pid;
        ipc.fd = r->p->fd;
        ipc.device = r->p->device;
        memset(out, 0, sizeof(*out));
        memcpy(out, &ipc, sizeof(ipc));
    }
    return fake_leave(res);
}

/* Handles come from other processes, so that nothing about them is the caller's mistake, but opening twice. */
CUresult fake_cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags)
{
    struct fake_physical *p = NULL;
    struct fake_context *c;
    struct fake_range *r;
    struct ipc ipc;
    char path[64];
    int fd = -1;
    CUresult res = fake_enter(FAKE_cuIpcOpenMemHandle_v2, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    c = fake_current();
    memcpy(&ipc, &handle, sizeof(ipc));
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "flags must be %d, not %u",
                          CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, flags);
    else if (ipc.magic != IPC_MAGIC)
        res = CUDA_ERROR_INVALID_VALUE;
    else if (ipc.pid == fake.pid)
        res = fake_misuse(CUDA_ERROR_INVALID_CONTEXT, "a handle of this very process");
    for (unsigned i = 0; i < fake.nranges && res == CUDA_SUCCESS; i++) {
        if (fake.ranges[i]->kind == FAKE_OPENED_IPC && fake.ranges[i]->ipc_inode == ipc.inode &&
            fake.ranges[i]->c == c)
            res = fake_misuse(CUDA_ERROR_ALREADY_MAPPED, "open already, at 0x%llx",
                              (unsigned long long)fake.ranges[i]->at);
    }
    if (res == CUDA_SUCCESS && !fake_reaches(c->device, ipc.device))
        res = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (res != CUDA_SUCCESS)
        return fake_leave(res);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc.pid, ipc.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        p = fake_physical_open(fd);
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        abort();
    if (p != NULL && p->inode == ipc.inode && !p->vmm && ipc.size <= p->size &&
        ipc.offset <= p->size - ipc.size)
        r->at = fake_addresses_get(p->size, FAKE_GRANULE, 0);
    if (r->at == 0) { /* it is gone, or its process */
        if (p != NULL)
            fake_physical_put(p);
        else if (fd >= 0)
            close(fd);
        free(r);
        return fake_leave(CUDA_ERROR_INVALID_VALUE);
    }
    r->offset = ipc.offset;
    r->at += r->offset;
    r->size = p->size -
              r->offset; /* the block's end: nothing keeps who has opened it from what follows */
    r->kind = FAKE_OPENED_IPC;
    r->p = p;
    r->c = c;
    r->id = ++fake.next_id;
    r->ipc_inode = ipc.inode;
    if (c->device != p->device)
        c->peers |= UINT32_C(1) << p->device; /* as the flag asks for */
    fake_range_insert(r);
    fake_count_thing(c, FAKE_OPENED, 1);
    fake_count(c->device, FAKE_OPENS, 1);
    *at = r->at;
    return fake_leave(res);
}

CUresult fake_cuIpcCloseMemHandle(CUdeviceptr at)
{
    CUresult res = fake_enter(FAKE_cuIpcCloseMemHandle, FAKE_CURRENT);

    return res == CUDA_SUCCESS ? fake_leave(range_end(at, FAKE_OPENED_IPC, FAKE_OPENED)) : res;
}
