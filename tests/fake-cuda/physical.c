/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory: memfds, whose names say what they are, so that another process knows one by its descriptor; and the
 * handles of allocations.
 */
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "fake-cuda gpu=%d vmm=%d exportable=%d rdma=%d"
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static struct fake_physical *physical_new(int fd, int device, uint64_t size, uint64_t inode)
{
    struct fake_physical *p = calloc(1, sizeof(*p));

    if (p == NULL)
        abort();
    p->fd = fd;
    p->device = device;
    p->size = size;
    p->inode = inode;
    p->users = 1;
    p->next = fake.physicals;
    fake.physicals = p;
    return p;
}

/* New memory is not empty: it has what was there before. A little of it everywhere, since tests ask for much. */
static bool dirty(int fd, uint64_t size)
{
    const uint64_t step =
        size / 512 > FAKE_GRANULE ? size / 512 / FAKE_PAGE * FAKE_PAGE : FAKE_GRANULE;
    uint8_t page[FAKE_PAGE];
    bool good = true;

    memset(page, 0xdb, sizeof(page));
    for (uint64_t at = 0; at < size && good; at += step) {
        const uint64_t end = size - at < step ? size : at + step;

        good = pwrite(fd, page, sizeof(page), (off_t)at) == (ssize_t)sizeof(page) &&
               pwrite(fd, page, sizeof(page), (off_t)(end - FAKE_PAGE)) == (ssize_t)sizeof(page);
    }
    return good;
}

int fake_physical_create(int device, uint64_t size, bool vmm, bool exportable, bool rdma,
                         struct fake_physical **out)
{
    char name[100];
    struct stat st;
    int fd, res = 0;

    snprintf(name, sizeof(name), NAME, device, vmm, exportable, rdma);
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0 ||
        fstat(fd, &st) != 0) {
        res = -errno;
    } else if (!fake_memory_add(device, st.st_ino, size)) {
        res = -ENOMEM;
    } else if (!dirty(fd, size)) {
        res = -EIO;
        fake_memory_drop(st.st_ino);
    } else {
        *out = physical_new(fd, device, size, st.st_ino);
        (*out)->vmm = vmm;
        (*out)->exportable = exportable;
        (*out)->rdma = rdma;
    }
    if (res != 0 && fd >= 0)
        close(fd);
    return res;
}

struct fake_physical *fake_physical_open(int fd)
{
    char path[64], link[256];
    struct fake_physical *p = NULL;
    int device, vmm, exportable, rdma;
    struct stat st;
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    n = readlink(path, link, sizeof(link) - 1);
    link[n > 0 ? n : 0] = '\0';
    if (sscanf(link, "/memfd:" NAME, &device, &vmm, &exportable, &rdma) == 4 && device >= 0 &&
        (unsigned)device < fake.settings.devices && fcntl(fd, F_GET_SEALS) == SEALS &&
        fstat(fd, &st) == 0) {
        p = physical_new(fd, device, (uint64_t)st.st_size, st.st_ino);
        p->vmm = vmm;
        p->exportable = exportable;
        p->rdma = rdma;
        fake_memory_join(device, p->inode, p->size);
    }
    return p;
}

void fake_physical_put(struct fake_physical *p)
{
    struct fake_physical **at, *other;

    if (--p->users > 0)
        return;
    for (at = &fake.physicals; *at != p; at = &(*at)->next)
        ;
    *at = p->next;
    /* The same memory may have been imported more than once. */
    for (other = fake.physicals; other != NULL && other->inode != p->inode; other = other->next)
        ;
    if (other == NULL)
        fake_memory_drop(p->inode);
    if (p->bytes != NULL)
        munmap(p->bytes, p->size);
    close(p->fd);
    free(p);
}

uint8_t *fake_physical_bytes(struct fake_physical *p)
{
    void *at;

    if (p->bytes == NULL) {
        at = mmap(NULL, p->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, p->fd, 0);
        if (at == MAP_FAILED) {
            perror("fake-cuda: mapping of device memory");
            abort();
        }
        p->bytes = at;
    }
    return p->bytes;
}

/* ---- handles -------------------------------------------------------------------------------- */

static CUmemGenericAllocationHandle handle_new(struct fake_physical *p)
{
    struct fake_handle *h = calloc(1, sizeof(*h));

    if (h == NULL)
        abort();
    h->p = p;
    h->references = h->held = 1;
    h->id = ++fake.next_id;
    h->value = fake_object_add(FAKE_KIND_HANDLE, h);
    fake_count(p->device, FAKE_HANDLES, 1);
    return h->value;
}

/* Something that holds it is gone: the application's last reference, or a mapping. */
void fake_handle_put(struct fake_handle *h)
{
    if (--h->references == 0) {
        fake_object_remove(h->value);
        fake_physical_put(h->p);
        free(h);
    }
}

/* What the application still holds. */
static struct fake_handle *handle_find(CUmemGenericAllocationHandle value)
{
    struct fake_handle *h = fake_object_find(FAKE_KIND_HANDLE, value);

    if (h != NULL && h->held == 0) {
        fake_misuse(CUDA_ERROR_INVALID_VALUE, "the allocation handle was released already");
        h = NULL;
    }
    return h;
}

/* Also checks what both calls are given. */
static CUresult properties_check(const CUmemAllocationProp *p, int *device)
{
    *device = p->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? fake_device_of(p->location.id) : -1;
    if (*device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (p->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        (p->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
         p->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return fake_misuse(CUDA_ERROR_INVALID_VALUE, "allocation type %d, handle types %d",
                           (int)p->type, (int)p->requestedHandleTypes);
    if (!fake.settings.vmm ||
        (p->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE && !fake.settings.posix) ||
        (p->allocFlags.gpuDirectRDMACapable && !fake.settings.rdma))
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult fake_cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *p,
                                            CUmemAllocationGranularity_flags option)
{
    int device;
    CUresult res = fake_enter(FAKE_cuMemGetAllocationGranularity, FAKE_INIT);

    if (res == CUDA_SUCCESS) {
        res = properties_check(p, &device);
        if (res == CUDA_SUCCESS && option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
            option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
            res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "option %d", (int)option);
        else if (res == CUDA_SUCCESS)
            *out = fake.settings.granularity;
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuMemCreate(CUmemGenericAllocationHandle *h, size_t size,
                          const CUmemAllocationProp *p, unsigned long long flags)
{
    struct fake_physical *physical;
    int device, error;
    CUresult res = fake_enter(FAKE_cuMemCreate, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    res = properties_check(p, &device);
    if (res == CUDA_SUCCESS && flags != 0)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "flags must be 0, not %llu", flags);
    if (res == CUDA_SUCCESS && (size == 0 || size % fake.settings.granularity != 0))
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "%zu bytes are no multiple of %llu", size,
                          (unsigned long long)fake.settings.granularity);
    if (res == CUDA_SUCCESS)
        res = fake.contexts[device].lost;
    if (res == CUDA_SUCCESS) {
        error = fake_physical_create(device, size, true,
                                     p->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE,
                                     p->allocFlags.gpuDirectRDMACapable, &physical);
        if (error != 0)
            res = error == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
        else
            *h = handle_new(physical);
    }
    return fake_leave(res);
}

CUresult fake_cuMemRelease(CUmemGenericAllocationHandle value)
{
    struct fake_handle *h;
    CUresult res = fake_enter(FAKE_cuMemRelease, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    h = handle_find(value);
    if (h == NULL) {
        res = CUDA_ERROR_INVALID_VALUE;
    } else if (fake.contexts[h->p->device].lost != CUDA_SUCCESS) {
        res = fake.contexts[h->p->device].lost;
    } else {
        fake_count(h->p->device, FAKE_HANDLES, -1);
        h->held--;
        fake_handle_put(h);
    }
    return fake_leave(res);
}

CUresult fake_cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle value,
                                           CUmemAllocationHandleType type, unsigned long long flags)
{
    struct fake_handle *h;
    int fd;
    CUresult res = fake_enter(FAKE_cuMemExportToShareableHandle, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    h = handle_find(value);
    if (h == NULL) {
        res = CUDA_ERROR_INVALID_VALUE;
    } else if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0) {
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "type %d, flags %llu", (int)type, flags);
    } else if (!h->p->exportable) {
        res = CUDA_ERROR_INVALID_VALUE; /* it was not asked for */
    } else {
        fd = dup(h->p->fd); /* nothing is said of exec() */
        if (fd < 0)
            res = CUDA_ERROR_OPERATING_SYSTEM;
        else
            *(int *)out = fd;
    }
    return fake_leave(res);
}

CUresult fake_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
                                             CUmemAllocationHandleType type)
{
    struct fake_physical *p = NULL;
    int fd;
    CUresult res = fake_enter(FAKE_cuMemImportFromShareableHandle, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "type %d", (int)type);
    /* The descriptor stays the caller's. Who gave it may be anybody. */
    fd = res == CUDA_SUCCESS ? fcntl((int)(uintptr_t)os_handle, F_DUPFD_CLOEXEC, 0) : -1;
    if (fd >= 0)
        p = fake_physical_open(fd);
    if (p != NULL && p->vmm && p->exportable && fake_ordinal_of(p->device) >= 0) {
        *out = handle_new(p);
    } else {
        res = p != NULL && p->vmm && p->exportable ? CUDA_ERROR_INVALID_DEVICE
                                                   : CUDA_ERROR_INVALID_VALUE;
        if (p != NULL)
            fake_physical_put(p);
        else if (fd >= 0)
            close(fd);
    }
    return fake_leave(res);
}

CUresult fake_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *at)
{
    struct fake_range *r;
    CUresult res = fake_enter(FAKE_cuMemRetainAllocationHandle, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    r = fake_range_find((uint64_t)(uintptr_t)at);
    if (r == NULL || r->kind != FAKE_MAPPED) {
        res = CUDA_ERROR_INVALID_VALUE;
    } else {
        r->h->references++;
        r->h->held++;
        fake_count(r->p->device, FAKE_HANDLES, 1);
        *out = r->h->value;
    }
    return fake_leave(res);
}

CUresult fake_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *p,
                                                     CUmemGenericAllocationHandle value)
{
    const struct fake_handle *h;
    CUresult res = fake_enter(FAKE_cuMemGetAllocationPropertiesFromHandle, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    h = handle_find(value);
    if (h == NULL) {
        res = CUDA_ERROR_INVALID_VALUE;
    } else {
        memset(p, 0, sizeof(*p));
        p->type = CU_MEM_ALLOCATION_TYPE_PINNED;
        p->requestedHandleTypes =
            h->p->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
        p->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        p->location.id = fake_ordinal_of(h->p->device);
        p->allocFlags.gpuDirectRDMACapable = h->p->rdma;
    }
    return fake_leave(res);
}
