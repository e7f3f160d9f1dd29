/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that devices reach: the driver's own, and what was registered. */
#include "inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGES_AT_ONCE 4096

struct fake_host *fake_host_find(uint64_t at)
{
    struct fake_host *h;

    for (h = fake.hosts; h != NULL && (at < h->at || at - h->at >= h->size); h = h->next)
        ;
    return h;
}

bool fake_host_is_mapped(uint64_t at, uint64_t size)
{
    const uint64_t end = (at + size + FAKE_PAGE - 1) & ~(FAKE_PAGE - 1);
    unsigned char residence[PAGES_AT_ONCE];
    uint64_t n;

    for (uint64_t page = at & ~(FAKE_PAGE - 1); page < end; page += n) {
        n = end - page < PAGES_AT_ONCE * FAKE_PAGE ? end - page : PAGES_AT_ONCE * FAKE_PAGE;
        if (mincore((void *)(uintptr_t)page, n, residence) != 0)
            return false; /* ENOMEM: something there is not mapped */
    }
    return true;
}

static void host_add(struct fake_context *c, void *at, uint64_t size, unsigned flags, bool ours)
{
    struct fake_host *h = calloc(1, sizeof(*h));

    if (h == NULL)
        abort();
    h->at = (uint64_t)(uintptr_t)at;
    h->size = size;
    h->c = c;
    h->portable = (flags & CU_MEMHOSTREGISTER_PORTABLE) != 0;
    h->mapped = ours || (flags & CU_MEMHOSTREGISTER_DEVICEMAP) != 0;
    h->ours = ours;
    h->id = ++fake.next_id;
    h->next = fake.hosts;
    fake.hosts = h;
    fake_count_thing(c, ours ? FAKE_HOST : FAKE_REGISTRATIONS, 1);
    if (!ours)
        fake_count(c->device, FAKE_REGISTERED_BYTES, (int64_t)size);
}

/* Takes it off the list; NULL after a sentence. */
static struct fake_host *host_take(void *at, bool ours)
{
    struct fake_host **p, *h;

    for (p = &fake.hosts; *p != NULL && (*p)->at != (uint64_t)(uintptr_t)at; p = &(*p)->next)
        ;
    h = *p;
    if (h == NULL || h->ours != ours) {
        fake_misuse(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "nothing such begins at %p", at);
        return NULL;
    }
    if (h->busy > 0) {
        fake_misuse(CUDA_ERROR_ILLEGAL_STATE, "under an operation of a stream");
        return NULL;
    }
    if (!fake_host_is_mapped(h->at, h->size)) {
        fake_misuse(CUDA_ERROR_ILLEGAL_STATE, "the memory at %p was unmapped before", at);
        return NULL;
    }
    *p = h->next;
    fake_count_thing(h->c, ours ? FAKE_HOST : FAKE_REGISTRATIONS, -1);
    if (!ours)
        fake_count(h->c->device, FAKE_REGISTERED_BYTES, -(int64_t)h->size);
    return h;
}

CUresult fake_cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
    void *at;
    CUresult res = fake_enter(FAKE_cuMemHostAlloc, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    at = size == 0 ? MAP_FAILED
                   : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (size == 0 || flags > 7) {
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "%zu bytes, flags %u", size, flags);
    } else if (at == MAP_FAILED) {
        res = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        host_add(fake_current(), at, size, flags, true);
        *out = at;
    }
    return fake_leave(res);
}

CUresult fake_cuMemFreeHost(void *at)
{
    struct fake_host *h;
    CUresult res = fake_enter(FAKE_cuMemFreeHost, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    h = host_take(at, true);
    if (h == NULL) {
        res = CUDA_ERROR_INVALID_VALUE;
    } else {
        munmap(at, h->size);
        free(h);
    }
    return fake_leave(res);
}

CUresult fake_cuMemHostRegister_v2(void *at, size_t size, unsigned flags)
{
    const uint64_t begin = (uint64_t)(uintptr_t)at;
    const struct fake_host *h;
    CUresult res = fake_enter(FAKE_cuMemHostRegister_v2, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    for (h = fake.hosts; h != NULL && (begin >= h->at + h->size || h->at >= begin + size);
         h = h->next)
        ;
    if (size == 0 || flags > 15)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "%zu bytes, flags %u", size, flags);
    else if (h != NULL && h->at <= begin && begin + size <= h->at + h->size &&
             !fake_host_is_mapped(h->at, h->size))
        res = fake_misuse(CUDA_ERROR_ILLEGAL_STATE,
                          "the memory at 0x%llx was unmapped while it was registered",
                          (unsigned long long)h->at);
    else if (h != NULL)
        res = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else if (!fake_host_is_mapped(begin, size))
        res = CUDA_ERROR_INVALID_VALUE;
    else
        host_add(fake_current(), at, size, flags, false);
    return fake_leave(res);
}

CUresult fake_cuMemHostUnregister(void *at)
{
    struct fake_host *h;
    CUresult res = fake_enter(FAKE_cuMemHostUnregister, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    h = host_take(at, false);
    if (h == NULL)
        res = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    free(h);
    return fake_leave(res);
}

CUresult fake_cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *at, unsigned flags)
{
    const struct fake_host *h;
    CUresult res = fake_enter(FAKE_cuMemHostGetDevicePointer_v2, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    h = fake_host_find((uint64_t)(uintptr_t)at);
    if (flags != 0)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "flags must be 0, not %u", flags);
    else if (h == NULL || (!h->portable && h->c != fake_current()) || !h->mapped)
        res = CUDA_ERROR_INVALID_VALUE;
    else
        *out = (uint64_t)(uintptr_t)at; /* one address for all */
    return fake_leave(res);
}
