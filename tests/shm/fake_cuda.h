/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of tests/fake-cuda share. Misuse gives errors here, and is counted. */
#ifndef TEST_FAKE_CUDA_H
#define TEST_FAKE_CUDA_H

#include <criterion/criterion.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "shm/cuda.h"
#include "tests/fake-cuda/kit.h"

#define SIZE (UINT64_C(4) << 20)
#define GRANULE (UINT64_C(2) << 20)

static struct fake_control *control;
static const struct mcs_cuda *d;
static CUcontext contexts[2];
static uint32_t misuses;

#define ok(call) cr_assert_eq((call), CUDA_SUCCESS, #call)
/* The call is a bug of the caller's, and the double says so, with this word. */
#define wrong(call, word)                                                                          \
    do {                                                                                           \
        cr_assert_neq((call), CUDA_SUCCESS, #call);                                                \
        cr_assert_eq(mcs_load_relaxed(&me()->misuses), ++misuses, #call);                          \
        cr_assert_not_null(strstr(me()->sentence, word), #call ": %s", me()->sentence);            \
    } while (0)
/* The call fails, and nobody is to blame. */
#define fails(call, error)                                                                         \
    do {                                                                                           \
        cr_assert_eq((call), (error), #call);                                                      \
        cr_assert_eq(mcs_load_relaxed(&me()->misuses), misuses, #call);                            \
    } while (0)

static inline const struct fake_process *me(void)
{
    return fake_cuda_process(control, getpid());
}

static inline int64_t count(enum fake_count what)
{
    return fake_cuda_count(control, getpid(), what);
}

static inline void load(void)
{
    char why[300] = "";

    setenv("FAKE_CUDA_ABORT", "0", 1);
    control = fake_cuda_begin();
    cr_assert_not_null(control);
    cr_assert_eq(mcs_cuda_load(&d, why, sizeof(why)), 0, "%s", why);
    fake_cuda_disarm(control);
    control->delay_us = 0;
    misuses = mcs_load_relaxed(&me()->misuses);
}

/* Both devices' contexts; the first one is current. */
static inline void begin(void)
{
    load();
    for (int i = 0; i < 2; i++)
        ok(d->primary_retain(&contexts[i], i));
    ok(d->ctx_push(contexts[0]));
}

static inline void end(void)
{
    fake_cuda_disarm(control);
    ok(d->ctx_pop(NULL));
    for (int i = 0; i < 2; i++)
        ok(d->primary_release(i));
    for (int k = 0; k < FAKE_OBJECTS; k++)
        cr_assert_eq(count(k), 0, "%d of kind %d are left", (int)count(k), k);
    cr_assert_eq(mcs_load_relaxed(&me()->misuses), misuses);
}

static inline CUmemAllocationProp properties(int device)
{
    CUmemAllocationProp p;

    memset(&p, 0, sizeof(p));
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    return p;
}

static inline void access_set(CUdeviceptr at, uint64_t size, int device)
{
    CUmemAccessDesc a = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                         .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    ok(d->mem_set_access(at, size, &a, 1));
}

static inline CUdeviceptr map(CUmemGenericAllocationHandle h, int device)
{
    CUdeviceptr at;

    ok(d->mem_reserve(&at, SIZE, 0, 0, 0));
    ok(d->mem_map(at, SIZE, 0, h, 0));
    if (device >= 0)
        access_set(at, SIZE, device);
    return at;
}

static inline void unmap(CUdeviceptr at)
{
    ok(d->mem_unmap(at, SIZE));
    ok(d->mem_address_free(at, SIZE));
}

static inline CUmemGenericAllocationHandle create(int device)
{
    const CUmemAllocationProp p = properties(device);
    CUmemGenericAllocationHandle h;

    ok(d->mem_create(&h, SIZE, &p, 0));
    return h;
}

static inline CUdeviceptr alloc(size_t size)
{
    CUdeviceptr at;

    ok(d->mem_alloc(&at, size));
    return at;
}

static inline void fill(uint8_t *bytes, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i * 31 + i / 253 + seed);
}

static inline void await_event(CUevent e)
{
    CUresult res;

    while ((res = d->event_query(e)) == CUDA_ERROR_NOT_READY)
        sched_yield();
    ok(res);
}

#endif
