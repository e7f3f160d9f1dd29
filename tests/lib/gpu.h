/* SPDX-License-Identifier: Apache-2.0 */
/* A client of an agent in a thread (later.h) that has GPU memory, on the double of the driver. */
#ifndef TEST_GPU_H
#define TEST_GPU_H

#include "later.h"
#include "shm/cuda.h"
#include "tests/fake-cuda/kit.h"

#define GPU_SIZE (UINT64_C(4) << 20)

struct gpu_world {
    struct later a;
    mcshm *c;
    struct fake_control *fake;
    const struct mcs_cuda *cuda; /* NULL until gpu_driver() */
    CUcontext primary[2];        /* the test's own references */
    CUmemGenericAllocationHandle handle;
};

/* Everything but the driver, which is not loaded by this. features: MCS_FEATURE_GPU or 0. */
static inline void gpu_start(struct gpu_world *w, uint64_t features, mcshm_options *own)
{
    mcshm_options o;

    w->fake = fake_cuda_begin();
    cr_assert_not_null(w->fake, "make builds the double");
    fake_cuda_disarm(w->fake);
    w->a.features = features;
    w->a.gpu_fd = -1;
    later_start(&w->a, &o);
    if (own != NULL) {
        o.control_timeout_ms = own->control_timeout_ms;
        o.reconnect_ms = own->reconnect_ms;
    }
    cr_assert_eq(mcshm_connect(&o, &w->c), MCSHM_OK, "%s", mcshm_last_error(NULL));
}

static inline void gpu_check(CUresult e)
{
    cr_assert_eq(e, CUDA_SUCCESS, "the driver says %d", (int)e);
}

/* Memory of device 0 for the agent to give, and a context of each device that is the test's. */
static inline void gpu_driver(struct gpu_world *w)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    char why[256];
    CUdevice d;

    cr_assert_eq(mcs_cuda_load(&w->cuda, why, sizeof(why)), 0, "%s", why);
    for (int i = 0; i < 2; i++) {
        gpu_check(w->cuda->device_get(&d, i));
        gpu_check(w->cuda->primary_retain(&w->primary[i], d));
    }
    gpu_check(mcs_cuda_enter(w->cuda, w->primary[0]));
    gpu_check(w->cuda->mem_create(&w->handle, GPU_SIZE, &p, 0));
    gpu_check(
        w->cuda->mem_export(&w->a.gpu_fd, w->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    mcs_cuda_leave(w->cuda);
    w->a.gpu_size = GPU_SIZE;
}

static inline int64_t gpu_count(struct gpu_world *w, enum fake_count what)
{
    return fake_cuda_count(w->fake, getpid(), what);
}

/* The library has nothing left: what is there is gpu_driver()'s. */
static inline void gpu_assert_flat(struct gpu_world *w)
{
    cr_assert_eq(gpu_count(w, FAKE_MAPPINGS), 0);
    cr_assert_eq(gpu_count(w, FAKE_RESERVATIONS), 0);
    cr_assert_eq(gpu_count(w, FAKE_HANDLES), w->cuda != NULL);
    cr_assert_eq(gpu_count(w, FAKE_REGISTRATIONS), 0);
    cr_assert_eq(gpu_count(w, FAKE_RETAINS), w->cuda != NULL ? 2 : 0);
}

static inline void gpu_close(struct gpu_world *w)
{
    if (w->c != NULL) {
        /* nobody reads the answer of an agent that is asked to end while it is there */
        mcs_store_relaxed(&w->a.region.words->ended, 1u);
        mcshm_close(w->c);
    }
    w->c = NULL;
    later_stop(&w->a);
}

/* What gpu_driver() has made. */
static inline void gpu_release(struct gpu_world *w)
{
    if (w->cuda == NULL)
        return;
    gpu_check(mcs_cuda_enter(w->cuda, w->primary[0]));
    gpu_check(w->cuda->mem_release(w->handle));
    mcs_cuda_leave(w->cuda);
    for (int i = 0; i < 2; i++)
        gpu_check(w->cuda->primary_release(i));
    close(w->a.gpu_fd);
}

static inline void gpu_stop(struct gpu_world *w)
{
    gpu_close(w);
    fake_cuda_disarm(w->fake);
    gpu_assert_flat(w);
    gpu_release(w);
}

/* The thread's context, NULL: none. */
static inline CUcontext gpu_current(struct gpu_world *w)
{
    CUcontext now = NULL;

    gpu_check(w->cuda->ctx_get_current(&now));
    return now;
}

/* The last message of that type as it was sent, -1: none. */
static inline int gpu_asked_last(struct gpu_world *w, uint16_t type)
{
    int found = -1;

    pthread_mutex_lock(&w->a.mutex);
    for (uint32_t i = 0; i < w->a.nlog; i++) {
        if (w->a.log[i].h.type == type)
            found = (int)i;
    }
    pthread_mutex_unlock(&w->a.mutex);
    return found;
}

static inline CUstream stream_make(struct gpu_world *w, unsigned device)
{
    CUstream s;

    gpu_check(mcs_cuda_enter(w->cuda, w->primary[device]));
    gpu_check(w->cuda->stream_create(&s, CU_STREAM_NON_BLOCKING));
    mcs_cuda_leave(w->cuda);
    return s;
}

static inline CUresult stream_end(struct gpu_world *w, unsigned device, CUstream s)
{
    CUresult e;

    gpu_check(mcs_cuda_enter(w->cuda, w->primary[device]));
    e = w->cuda->stream_synchronize(s);
    gpu_check(w->cuda->stream_destroy(s));
    mcs_cuda_leave(w->cuda);
    return e;
}

#endif
