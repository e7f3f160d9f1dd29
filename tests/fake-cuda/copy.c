/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills: what an address is to a device, and moving the bytes. */
#include "inside.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BATCH_MAX (UINT64_C(1) << 20)

static void hold_range(struct fake_op *op, struct fake_range *r)
{
    if (op->nranges > 0 && op->ranges[op->nranges - 1] == r)
        return;
    if (op->nranges == op->ranges_room) {
        op->ranges_room = op->ranges_room != 0 ? op->ranges_room * 2 : 2;
        op->ranges = realloc(op->ranges, op->ranges_room * sizeof(*op->ranges));
        if (op->ranges == NULL)
            abort();
    }
    op->ranges[op->nranges++] = r;
    r->busy++;
}

static void hold_host(struct fake_op *op, struct fake_host *h)
{
    if (op->nhosts > 0 && op->hosts[op->nhosts - 1] == h)
        return;
    if (op->nhosts == op->hosts_room) {
        op->hosts_room = op->hosts_room != 0 ? op->hosts_room * 2 : 2;
        op->hosts = realloc(op->hosts, op->hosts_room * sizeof(*op->hosts));
        if (op->hosts == NULL)
            abort();
    }
    op->hosts[op->nhosts++] = h;
    h->busy++;
}

static CUresult hold_device(struct fake_op *op, struct fake_range *r, bool writes)
{
    const unsigned needs =
        writes ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;

    if ((fake_range_access(r, op->c->device) & needs) != needs) {
        /* For copies the memory's own device steps in, and host memory between the two. */
        if (op->kind == FAKE_OP_COPY && (fake_range_access(r, r->p->device) & needs) == needs)
            op->staged = true;
        else
            op->fault = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (fake.contexts[r->p->device].lost != CUDA_SUCCESS)
        return fake.contexts[r->p->device].lost;
    hold_range(op, r);
    return CUDA_SUCCESS;
}

CUresult fake_op_hold(struct fake_op *op, uint64_t at, uint64_t size, bool writes, uint8_t **out,
                      size_t *run)
{
    struct fake_range *r = fake_range_find(at);
    struct fake_host *h = r == NULL ? fake_host_find(at) : NULL;
    uint64_t end;

    if (r != NULL) {
        end = r->at + r->size;
        *out = fake_physical_bytes(r->p) + r->offset + (at - r->at);
    } else if (h != NULL) {
        end = h->at + h->size;
        *out = (uint8_t *)(uintptr_t)at;
    } else {
        end = at + size;
        *out = (uint8_t *)(uintptr_t)at;
    }
    *run = end - at < size ? end - at : size;
    if (r != NULL)
        return hold_device(op, r, writes);
    if (h != NULL) {
        if (*run < size)
            return fake_misuse(CUDA_ERROR_INVALID_VALUE, "0x%llx is registered, but not %llu bytes",
                               (unsigned long long)at, (unsigned long long)size);
        hold_host(op, h);
        if (!h->portable && h->c != op->c)
            op->pageable = true;
        return CUDA_SUCCESS;
    }
    op->pageable = true;
    for (h = fake.hosts; h != NULL && (h->at <= at || h->at >= end); h = h->next)
        ;
    if (h != NULL)
        return fake_misuse(CUDA_ERROR_INVALID_VALUE, "0x%llx is not registered, 0x%llx is",
                           (unsigned long long)at, (unsigned long long)h->at);
    if (fake_is_device_address(at))
        return fake_misuse(CUDA_ERROR_INVALID_VALUE, "0x%llx lies outside an allocation",
                           (unsigned long long)at);
    if (op->kind != FAKE_OP_COPY || !fake_host_is_mapped(at, *run))
        return fake_misuse(CUDA_ERROR_INVALID_VALUE, "there is no memory at 0x%llx, or no such",
                           (unsigned long long)at);
    return CUDA_SUCCESS;
}

static void piece_add(struct fake_op *op, uint8_t *to, const uint8_t *from, size_t size)
{
    if (op->npieces == op->room) {
        op->room = op->room != 0 ? op->room * 2 : 2;
        op->pieces = realloc(op->pieces, op->room * sizeof(*op->pieces));
        if (op->pieces == NULL)
            abort();
    }
    op->pieces[op->npieces++] = (struct fake_piece){to, from, size};
}

/* One copy as a call wants it, which may reach over several allocations at either end. */
static CUresult copy_add(struct fake_op *op, uint64_t to, uint64_t from, size_t size)
{
    size_t to_run = 0, from_run = 0, n;
    uint8_t *target = NULL, *source = NULL;
    CUresult res = CUDA_SUCCESS;

    while (size > 0 && res == CUDA_SUCCESS) {
        if (to_run == 0)
            res = fake_op_hold(op, to, size, true, &target, &to_run);
        if (res == CUDA_SUCCESS && from_run == 0)
            res = fake_op_hold(op, from, size, false, &source, &from_run);
        if (res != CUDA_SUCCESS)
            break;
        n = to_run < from_run ? to_run : from_run;
        piece_add(op, target, source, n);
        to += n, from += n, size -= n;
        target += n, source += n;
        to_run -= n, from_run -= n;
    }
    return res;
}

/* A copy touches host memory that is not registered before the call returns. */
static CUresult op_push(CUstream stream, struct fake_op *op, bool wait, CUresult res)
{
    struct fake_stream *s = res == CUDA_SUCCESS ? fake_stream_find(stream) : NULL;

    if (s == NULL) {
        fake_op_destroy(op);
        return res != CUDA_SUCCESS ? res : CUDA_ERROR_INVALID_HANDLE;
    }
    if (wait || op->pageable)
        return fake_stream_push_wait(s, op);
    return fake_stream_push(s, op);
}

static CUresult copy_call(enum fake_call call, CUdeviceptr to, CUdeviceptr from, size_t size,
                          CUstream stream, bool wait)
{
    struct fake_op *op;
    CUresult res = fake_enter(call, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    if (size == 0)
        return fake_leave(CUDA_SUCCESS);
    op = fake_op_create(FAKE_OP_COPY);
    res = copy_add(op, to, from, size);
    return fake_leave(op_push(stream, op, wait, res));
}

CUresult fake_cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream s)
{
    return copy_call(FAKE_cuMemcpyAsync, to, from, size, s, false);
}

/* Whether the memory is of the device that the context is of. */
static bool is_of(CUdeviceptr at, const struct fake_context *c)
{
    const struct fake_range *r = fake_range_find(at);

    return r != NULL && c != NULL && r->p->device == c->device;
}

CUresult fake_cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                CUcontext from_context, size_t size, CUstream s)
{
    struct fake_op *op;
    CUresult res = fake_enter(FAKE_cuMemcpyPeerAsync, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    if (!is_of(to, fake_object_find(FAKE_KIND_CONTEXT, (uint64_t)(uintptr_t)to_context)) ||
        !is_of(from, fake_object_find(FAKE_KIND_CONTEXT, (uint64_t)(uintptr_t)from_context)))
        return fake_leave(fake_misuse(CUDA_ERROR_INVALID_VALUE,
                                      "0x%llx or 0x%llx is not of the device of its context", to,
                                      from));
    if (size == 0)
        return fake_leave(CUDA_SUCCESS);
    op = fake_op_create(FAKE_OP_COPY);
    res = copy_add(op, to, from, size);
    return fake_leave(op_push(s, op, false, res));
}

CUresult fake_cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    return copy_call(FAKE_cuMemcpyDtoH_v2, (CUdeviceptr)(uintptr_t)to, from, size, NULL, true);
}

CUresult fake_cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    return copy_call(FAKE_cuMemcpyHtoD_v2, to, (CUdeviceptr)(uintptr_t)from, size, NULL, true);
}

static CUresult batch_check(const size_t *sizes, size_t count, const CUmemcpyAttributes *attributes,
                            const size_t *first, size_t nattributes, CUstream s)
{
    if ((uintptr_t)s <= 1)
        return fake_misuse(CUDA_ERROR_INVALID_VALUE, "batches do not go into the null stream");
    if (count == 0 || count > BATCH_MAX || nattributes == 0 || nattributes > count)
        return fake_misuse(CUDA_ERROR_INVALID_VALUE, "%zu copies, %zu attributes", count,
                           nattributes);
    for (size_t i = 0; i < count; i++) {
        if (sizes[i] == 0)
            return fake_misuse(CUDA_ERROR_INVALID_VALUE, "copy %zu has 0 bytes", i);
    }
    for (size_t i = 0; i < nattributes; i++) {
        if ((i == 0) != (first[i] == 0) || (i > 0 && first[i] <= first[i - 1]) ||
            first[i] >= count || attributes[i].flags > 1 ||
            attributes[i].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
            attributes[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
            return fake_misuse(CUDA_ERROR_INVALID_VALUE,
                               "attributes %zu: first copy %zu, order %d, flags %u", i, first[i],
                               (int)attributes[i].srcAccessOrder, attributes[i].flags);
    }
    return CUDA_SUCCESS;
}

static CUresult batch_call(enum fake_call call, CUdeviceptr *to, CUdeviceptr *from, size_t *sizes,
                           size_t count, CUmemcpyAttributes *attributes, size_t *first,
                           size_t nattributes, size_t *failed, CUstream s)
{
    bool at_once = false;
    struct fake_op *op;
    CUresult res = fake_enter(call, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    if (failed != NULL)
        *failed = SIZE_MAX;
    res = batch_check(sizes, count, attributes, first, nattributes, s);
    if (res != CUDA_SUCCESS)
        return fake_leave(res);
    for (size_t i = 0; i < nattributes; i++)
        at_once =
            at_once || attributes[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    op = fake_op_create(FAKE_OP_COPY);
    for (size_t i = 0; i < count && res == CUDA_SUCCESS; i++) {
        res = copy_add(op, to[i], from[i], sizes[i]);
        if (res != CUDA_SUCCESS && failed != NULL)
            *failed = i;
    }
    fake_count(op->c->device, FAKE_BATCHES, 1);
    return fake_leave(op_push(s, op, at_once, res));
}

CUresult fake_cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                    CUmemcpyAttributes *attributes, size_t *first,
                                    size_t nattributes, CUstream s)
{
    return batch_call(FAKE_cuMemcpyBatchAsync_v2, to, from, sizes, count, attributes, first,
                      nattributes, NULL, s);
}

CUresult fake_cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                 CUmemcpyAttributes *attributes, size_t *first, size_t nattributes,
                                 size_t *failed, CUstream s)
{
    return batch_call(FAKE_cuMemcpyBatchAsync, to, from, sizes, count, attributes, first,
                      nattributes, failed, s);
}

static CUresult fill_call(enum fake_call call, CUdeviceptr at, uint32_t value, unsigned width,
                          size_t count, CUstream s)
{
    struct fake_op *op;
    size_t size = count * width, run;
    uint8_t *to;
    CUresult res = fake_enter(call, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    if (at % width != 0 || count > SIZE_MAX / width)
        return fake_leave(fake_misuse(CUDA_ERROR_INVALID_VALUE, "0x%llx is not aligned", at));
    if (count == 0)
        return fake_leave(CUDA_SUCCESS);
    op = fake_op_create(FAKE_OP_FILL);
    op->value = value;
    op->width = width;
    while (size > 0 && res == CUDA_SUCCESS) {
        res = fake_op_hold(op, at, size, true, &to, &run);
        if (res == CUDA_SUCCESS)
            piece_add(op, to, NULL, run);
        at += run, size -= run;
    }
    return fake_leave(op_push(s, op, false, res));
}

CUresult fake_cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t count, CUstream s)
{
    return fill_call(FAKE_cuMemsetD8Async, at, value, 1, count, s);
}

CUresult fake_cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream s)
{
    return fill_call(FAKE_cuMemsetD32Async, at, value, 4, count, s);
}

/*
 * As a device does it: nothing of the process's tools sees bytes move.  The C library's functions are ThreadSanitizer's in a process
 * that has it, which then reports, or with a suppression slowly finds out not to report, each pair of copies that clients have left
 * without an order.
 */
static void move(uint8_t *to, const uint8_t *from, size_t size)
{
#ifdef __x86_64__
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
#else
    memmove(to, from, size);
#endif
}

static void set(uint8_t *to, uint8_t value, size_t size)
{
#ifdef __x86_64__
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(value) : "memory");
#else
    memset(to, value, size);
#endif
}

/* Zeros take no memory: pages are given back instead, so that a test may clear gigabytes. */
static void clear(uint8_t *to, size_t size)
{
    uint8_t *first = (uint8_t *)(((uintptr_t)to + FAKE_PAGE - 1) & ~(uintptr_t)(FAKE_PAGE - 1));
    uint8_t *last = (uint8_t *)((uintptr_t)(to + size) & ~(uintptr_t)(FAKE_PAGE - 1));

    if (size < FAKE_GRANULE || madvise(first, (size_t)(last - first), MADV_REMOVE) != 0) {
        set(to, 0, size);
    } else {
        set(to, 0, (size_t)(first - to));
        set(last, 0, (size_t)(to + size - last));
    }
}

/* The last one first: nobody promises an order within a batch. */
void fake_op_move(struct fake_op *op)
{
    for (size_t i = op->npieces; i-- > 0;) {
        const struct fake_piece *p = &op->pieces[i];

        if (op->kind == FAKE_OP_COPY) {
            move(p->to, p->from, p->size);
        } else if (op->value == 0) {
            clear(p->to, p->size);
        } else if (op->width == 1) {
            set(p->to, (uint8_t)op->value, p->size);
        } else {
            for (size_t k = 0; k < p->size; k += 4)
                memcpy(p->to + k, &op->value, 4);
        }
    }
}
