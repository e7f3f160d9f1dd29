/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory on the client's side.  The driver is loaded when GPU memory is first asked for; every call of it is made
 * with the primary context of a device pushed, so that the caller's thread finds the context that it had, or none.
 *
 * Locks: gpu_mutex around what brings new device memory, then mutex.  A call of the driver may last as long as what is
 * queued on the process's streams, and that may wait for the agent: so no driver call is made under `mutex`, which the
 * watcher needs to come back to a later agent, nor by the watcher.
 */
#ifndef MCL_GPU_H
#define MCL_GPU_H

#include "internal.h"
#include "shm/cuda.h"

struct mcl_gate_page;
struct mcl_import;

struct mcl_gpu_device {
    CUdevice device;
    CUcontext
        primary; /* NULL: not used yet. Set under gpu_mutex, kept until the connection closes */
    struct mcs_gpu_id id;
    unsigned wait_flags; /* of its streams' waits for words */
    char name[64];
};

struct mcl_gpu {
    const struct mcs_cuda *driver;
    struct mcl_gate_page *gates; /* gate.c, under gpu_mutex */
    unsigned ndevices;
    struct mcl_gpu_device devices[]; /* as this process sees them: "cuda:N" is devices[N] */
};

/* ---- gpu.c ------------------------------------------------------------------------- */

/* "cuda:..." */
bool mcl_gpu_is_location(const char *location);
/* With gpu_mutex: the driver, loaded. NO_GPU. */
mcshm_status mcl_gpu_open(struct mcshm *c);
/* With gpu_mutex: the device of "cuda:N", "cuda:GPU-..." or of a location as others' buffers have it, its primary context
 * retained. NO_GPU, NOT_SUPPORTED (no such location), GPU_CONTEXT. */
mcshm_status mcl_gpu_use(struct mcshm *c, const char *location, unsigned *device);
/* Makes the context current until mcl_gpu_leave(): NULL stands for the device's primary one, which mcl_gpu_use() has
 * retained. */
mcshm_status mcl_gpu_enter(struct mcshm *c, unsigned device, CUcontext context);
void mcl_gpu_leave(struct mcshm *c);
/* The status that a refusal of the driver's stands for, with a sentence about `what`, which names no device. */
mcshm_status mcl_gpu_fail(struct mcshm *c, unsigned device, CUresult e, const char *what) MCL_COLD;
/*
 * Unmaps all device memory and lets go of the driver, for no longer than control_timeout_ms: a call that hangs is left
 * behind. `mapped`: false in a forked child, where the driver is not to be called.
 */
void mcl_gpu_fini(struct mcshm *c, bool mapped);

/* ---- gpu_map.c: without the mutex --------------------------------------------------- */

/* Maps `size` bytes of the exported allocation, of a device in use, for that device and for those that reach it. hint: the
 * address wanted, if that is free. */
mcshm_status mcl_gpu_map(struct mcshm *c, unsigned device, int fd, uint64_t size, uint64_t hint,
                         uint8_t **out);
/* 0, or what the driver says. */
CUresult mcl_gpu_unmap(const struct mcl_gpu *g, unsigned device, uint8_t *base, uint64_t size);

/* ---- gpu_memory.c -------------------------------------------------------------------- */

mcshm_status mcl_gpu_alloc(struct mcshm *c, uint64_t size, uint64_t align, const char *location,
                           void **out);
/* Unmaps an extent that is off the list, or forgets what another library owns. Without the mutex. */
void mcl_gpu_let_go(struct mcshm *c, const struct mcl_extent *e);

/* ---- gpu_register.c ------------------------------------------------------------------ */

/* A piece of another library's memory: an allocation, or a part of one. */
struct mcl_import_part {
    int fd;                /* exported; -1: it goes by `ipc`, or no later agent will want it */
    bool shares;           /* by a handle of CUDA IPC */
    CUipcMemHandle ipc;    /* of its allocation */
    uint64_t allocation;   /* its id */
    uint64_t at;           /* in the range, bytes */
    uint64_t offset, size; /* in the allocation, bytes */
    uint64_t whole;        /* bytes of the allocation, where it goes by a descriptor */
};

/* Memory that mcshm_register_gpu() was given. */
struct mcl_import {
    struct mcs_gpu_id gpu;
    uint64_t size;
    uint32_t references; /* how often registered */
    size_t nparts, room;
    struct mcl_import_part *parts; /* one behind the other */
};

/* The message that hands over part `i`. */
void mcl_import_message(const struct mcl_import *import, size_t i, struct mcs_msg *m);
/* With the mutex: undoes one registration. */
mcshm_status mcl_gpu_unregister(struct mcshm *c, struct mcl_extent *e);
void mcl_import_free(struct mcl_import *import);

#endif
