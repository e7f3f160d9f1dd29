/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses: reservations, what is mapped where, who may use it, and questions about pointers. */
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct reservation {
    struct reservation *next;
    uint64_t at, size;
} * reservations;

/* ---- ranges, by address --------------------------------------------------------------------- */

/* The first one that ends behind the address. */
static unsigned range_place(uint64_t at)
{
    unsigned low = 0, high = fake.nranges, middle;

    while (low < high) {
        middle = (low + high) / 2;
        if (fake.ranges[middle]->at + fake.ranges[middle]->size <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct fake_range *fake_range_find(uint64_t at)
{
    const unsigned i = range_place(at);

    return i < fake.nranges && fake.ranges[i]->at <= at ? fake.ranges[i] : NULL;
}

void fake_range_insert(struct fake_range *r)
{
    const unsigned i = range_place(r->at);

    if (fake.nranges == fake.ranges_room) {
        fake.ranges_room = fake.ranges_room != 0 ? fake.ranges_room * 2 : 64;
        fake.ranges = realloc(fake.ranges, fake.ranges_room * sizeof(struct fake_range *));
        if (fake.ranges == NULL)
            abort();
    }
    memmove(&fake.ranges[i + 1], &fake.ranges[i], (fake.nranges - i) * sizeof(struct fake_range *));
    fake.ranges[i] = r;
    fake.nranges++;
}

void fake_range_remove(struct fake_range *r)
{
    const unsigned i = range_place(r->at);

    memmove(&fake.ranges[i], &fake.ranges[i + 1],
            (fake.nranges - i - 1) * sizeof(struct fake_range *));
    fake.nranges--;
}

unsigned fake_range_access(const struct fake_range *r, int device)
{
    if (r->kind == FAKE_MAPPED)
        return r->access[device];
    /* The others are their device's, and those contexts' that have enabled its peer access. */
    return device == r->p->device || (fake.contexts[device].retains > 0 &&
                                      (fake.contexts[device].peers >> r->p->device & 1))
               ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
               : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

bool fake_is_device_address(uint64_t at)
{
    const unsigned i = range_place(at);
    const struct reservation *v;

    for (v = reservations; v != NULL && (at < v->at || at - v->at >= v->size); v = v->next)
        ;
    return v != NULL || (i < fake.nranges && fake.ranges[i]->at <= at) ||
           (i > 0 &&
            at < fake.ranges[i - 1]->at - fake.ranges[i - 1]->offset + fake.ranges[i - 1]->p->size);
}

/* ---- addresses ------------------------------------------------------------------------------ */

/* By system calls, since ThreadSanitizer's mmap() knows neither such places nor MAP_FIXED_NOREPLACE. */
static uint64_t reserve(uint64_t at, uint64_t size, int more)
{
    return (uint64_t)syscall(SYS_mmap, at, size, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | more, -1, 0);
}

void fake_addresses_put(uint64_t at, uint64_t size)
{
    syscall(SYS_munmap, at, size);
}

/* Nobody's memory: the CPU faults there, as it does on a device's. */
uint64_t fake_addresses_get(uint64_t size, uint64_t align, uint64_t hint)
{
    uint64_t at, aligned;

    if (hint != 0 && hint % align == 0) {
        at = reserve(hint, size, MAP_FIXED_NOREPLACE);
        if (at == hint)
            return hint;
        if (at != UINT64_MAX)
            fake_addresses_put(at, size);
    }
    at = reserve(0, size + align, 0);
    if (at == UINT64_MAX)
        return 0;
    aligned = (at + align - 1) & ~(align - 1);
    if (aligned > at)
        fake_addresses_put(at, aligned - at);
    if (at + align > aligned)
        fake_addresses_put(aligned + size, at + align - aligned);
    return aligned;
}

CUresult fake_cuMemAddressReserve(CUdeviceptr *at, size_t size, size_t align, CUdeviceptr hint,
                                  unsigned long long flags)
{
    struct reservation *r;
    CUresult res = fake_enter(FAKE_cuMemAddressReserve, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    if (flags != 0 || size == 0 || size % fake.settings.granularity != 0 ||
        (align & (align - 1)) != 0) {
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE,
                          "size %zu (of a granularity of %llu), alignment %zu, flags %llu", size,
                          (unsigned long long)fake.settings.granularity, align, flags);
        return fake_leave(res);
    }
    if (align < fake.settings.granularity)
        align = fake.settings.granularity;
    *at = fake_addresses_get(size, align, hint);
    r = calloc(1, sizeof(*r));
    if (*at == 0 || r == NULL) {
        free(r);
        return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    r->at = *at;
    r->size = size;
    r->next = reservations;
    reservations = r;
    fake_count(0, FAKE_RESERVATIONS, 1);
    return fake_leave(res);
}

CUresult fake_cuMemAddressFree(CUdeviceptr at, size_t size)
{
    struct reservation **p, *r;
    unsigned i;
    CUresult res = fake_enter(FAKE_cuMemAddressFree, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    for (p = &reservations; *p != NULL && (*p)->at != at; p = &(*p)->next)
        ;
    r = *p;
    i = range_place(at);
    if (r == NULL || r->size != size) {
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "0x%llx of %zu bytes is no reservation", at,
                          size);
    } else if (i < fake.nranges && fake.ranges[i]->at < at + size) {
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "memory is still mapped at 0x%llx",
                          (unsigned long long)fake.ranges[i]->at);
    } else {
        *p = r->next;
        fake_addresses_put(r->at, r->size);
        free(r);
        fake_count(0, FAKE_RESERVATIONS, -1);
    }
    return fake_leave(res);
}

CUresult fake_cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle h,
                       unsigned long long flags)
{
    const struct reservation *v;
    struct fake_handle *handle;
    struct fake_range *r;
    unsigned i;
    CUresult res = fake_enter(FAKE_cuMemMap, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    handle = fake_object_find(FAKE_KIND_HANDLE, h);
    for (v = reservations; v != NULL && (at < v->at || at >= v->at + v->size); v = v->next)
        ;
    i = range_place(at);
    if (handle == NULL || handle->held == 0)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "the allocation handle was released");
    else if (offset != 0 || flags != 0 || size == 0 || size % fake.settings.granularity != 0 ||
             at % fake.settings.granularity != 0)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "offset %zu, flags %llu, %zu bytes at 0x%llx",
                          offset, flags, size, at);
    else if (size != handle->p->size) /* who imports has the size from somebody else */
        res = CUDA_ERROR_INVALID_VALUE;
    else if (v == NULL || size > v->at + v->size - at)
        res =
            fake_misuse(CUDA_ERROR_INVALID_VALUE, "%zu bytes at 0x%llx are not reserved", size, at);
    else if (i < fake.nranges && fake.ranges[i]->at < at + size)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "something is mapped at 0x%llx already",
                          (unsigned long long)fake.ranges[i]->at);
    else if (fake.contexts[handle->p->device].lost != CUDA_SUCCESS)
        res = fake.contexts[handle->p->device].lost;
    if (res != CUDA_SUCCESS)
        return fake_leave(res);
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        abort();
    r->at = at;
    r->size = size;
    r->kind = FAKE_MAPPED;
    r->p = handle->p;
    r->h = handle;
    r->id = ++fake.next_id;
    handle->references++;
    fake_range_insert(r);
    fake_count(r->p->device, FAKE_MAPPINGS, 1);
    return fake_leave(res);
}

/*
 * The ranges that make up exactly [at, at + size), all of them mapped by cuMemMap: the first one's place and how many.
 * 0: it is not so.
 */
static unsigned mapped_run(uint64_t at, uint64_t size, unsigned *first)
{
    uint64_t next = at;
    unsigned i;

    *first = i = range_place(at);
    for (; i < fake.nranges && next < at + size; i++) {
        if (fake.ranges[i]->at != next || fake.ranges[i]->kind != FAKE_MAPPED)
            return 0;
        next += fake.ranges[i]->size;
    }
    return next == at + size && size > 0 ? i - *first : 0;
}

CUresult fake_cuMemUnmap(CUdeviceptr at, size_t size)
{
    unsigned first, n;
    CUresult res = fake_enter(FAKE_cuMemUnmap, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    n = mapped_run(at, size, &first);
    if (n == 0)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "0x%llx of %zu bytes is not what is mapped", at,
                          size);
    for (unsigned i = first; i < first + n && res == CUDA_SUCCESS; i++) {
        if (fake.contexts[fake.ranges[i]->p->device].lost != CUDA_SUCCESS)
            res = fake.contexts[fake.ranges[i]->p->device].lost;
        else if (fake.ranges[i]->busy > 0)
            res = fake_misuse(CUDA_ERROR_ILLEGAL_STATE,
                              "unmapped at 0x%llx under an operation of a stream", at);
    }
    for (; n > 0 && res == CUDA_SUCCESS; n--) {
        struct fake_range *r = fake.ranges[first];

        fake_range_remove(r);
        fake_count(r->p->device, FAKE_MAPPINGS, -1);
        fake_handle_put(r->h);
        free(r);
    }
    return fake_leave(res);
}

CUresult fake_cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *d, size_t count)
{
    unsigned first, n;
    int device;
    CUresult res = fake_enter(FAKE_cuMemSetAccess, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    n = mapped_run(at, size, &first);
    if (n == 0 || count == 0)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "0x%llx of %zu bytes is not what is mapped", at,
                          size);
    for (size_t k = 0; k < count && res == CUDA_SUCCESS; k++) {
        device = d[k].location.type == CU_MEM_LOCATION_TYPE_DEVICE
                     ? fake_device_of(d[k].location.id)
                     : -1;
        if (device < 0)
            res = fake_misuse(CUDA_ERROR_INVALID_DEVICE, "there is no device %d", d[k].location.id);
        for (unsigned i = first; i < first + n && res == CUDA_SUCCESS; i++) {
            if (fake.contexts[fake.ranges[i]->p->device].lost != CUDA_SUCCESS)
                res = fake.contexts[fake.ranges[i]->p->device].lost;
            else if (fake.contexts[device].lost != CUDA_SUCCESS)
                res = fake.contexts[device].lost; /* also of who would be given access */
            else if (!fake_reaches(device, fake.ranges[i]->p->device))
                res = CUDA_ERROR_INVALID_DEVICE;
            else
                fake.ranges[i]->access[device] = (uint8_t)d[k].flags;
        }
    }
    return fake_leave(res);
}

/* ---- questions ------------------------------------------------------------------------------ */

CUresult fake_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr at)
{
    const struct fake_range *r;
    uint64_t before;
    CUresult res = fake_enter(FAKE_cuMemGetAddressRange_v2, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    r = fake_range_find(at);
    if (r == NULL)
        return fake_leave(CUDA_ERROR_NOT_FOUND);
    /* Of what was opened it is the block that is known. */
    before = r->kind == FAKE_OPENED_IPC ? r->offset : 0;
    if (base != NULL)
        *base = r->at - before;
    if (size != NULL)
        *size = r->size + before;
    return fake_leave(res);
}

CUresult fake_cuMemGetHandleForAddressRange(void *out, CUdeviceptr at, size_t size,
                                            CUmemRangeHandleType type, unsigned long long flags)
{
    const struct fake_range *r;
    int fd;
    CUresult res = fake_enter(FAKE_cuMemGetHandleForAddressRange, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    r = fake_range_find(at);
    if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags > 1 || at % FAKE_PAGE != 0 ||
        size % FAKE_PAGE != 0 || size == 0)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "type %d, flags %llu, %zu bytes at 0x%llx",
                          (int)type, flags, size, at);
    else if (r == NULL || size > r->at + r->size - at)
        res = CUDA_ERROR_INVALID_VALUE;
    else if (!fake.settings.dmabuf || at != r->at || r->offset != 0)
        res = CUDA_ERROR_NOT_SUPPORTED; /* a memfd cannot say where it begins */
    if (res == CUDA_SUCCESS) {
        fd = dup(r->p->fd);
        if (fd < 0)
            res = CUDA_ERROR_OPERATING_SYSTEM;
        else
            *(int *)out = fd;
    }
    return fake_leave(res);
}

/* What is asked of device memory (r) or of the driver's or registered host memory (h). */
static CUresult attribute_of(void *out, CUpointer_attribute a, uint64_t at,
                             const struct fake_range *r, const struct fake_host *h)
{
    const struct fake_context *c = r != NULL ? r->c : h->c;

    switch ((int)a) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)out = c != NULL ? (CUcontext)(uintptr_t)c->handle : NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = r != NULL ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)out = at;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (h == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)out = (void *)(uintptr_t)at;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)out = r != NULL ? r->id : h->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)out = r != NULL && r->h != NULL ? r->h->id
                                     : r != NULL               ? r->id
                                                               : h->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)out = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = fake_ordinal_of(r != NULL ? r->p->device : h->c->device);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned char *)out = r != NULL && r->kind == FAKE_ALLOCATED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)out = r != NULL ? r->at : h->at;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)out = r != NULL ? r->size : h->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned char *)out = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)out = r != NULL && r->kind == FAKE_MAPPED && r->p->exportable
                                         ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                         : CU_MEM_HANDLE_TYPE_NONE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned char *)out = r != NULL && (r->kind != FAKE_MAPPED || r->p->rdma);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(void **)out = NULL;
        return CUDA_SUCCESS;
    default:
        return fake_misuse(CUDA_ERROR_INVALID_VALUE, "attribute %d is not known to the double", a);
    }
}

CUresult fake_cuPointerGetAttribute(void *out, CUpointer_attribute a, CUdeviceptr at)
{
    const struct fake_range *r;
    const struct fake_host *h;
    CUresult res = fake_enter(FAKE_cuPointerGetAttribute, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    r = fake_range_find(at);
    h = r == NULL ? fake_host_find(at) : NULL;
    if (r == NULL && h == NULL)
        res = CUDA_ERROR_INVALID_VALUE; /* memory that the driver does not know */
    else
        res = attribute_of(out, a, at, r, h);
    return fake_leave(res);
}
