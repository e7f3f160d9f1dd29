/* SPDX-License-Identifier: Apache-2.0 */
/* What gpu.c, gpu_memory.c and query_gpu.c share. */
#ifndef MCD_GPU_INTERNAL_H
#define MCD_GPU_INTERNAL_H

#include "gpu.h"
#include "gpu_memory.h"
#include "transports/cuda/cuda.h"

/* A device's bytes; also of one that the driver was not yet asked about. */
struct mcd_gpu_use {
    struct mcs_gpu_id id;
    bool taken; /* this entry is a device's */
    uint64_t used, refused;
};

struct mcd_gpu {
    struct mcd_agent *agent;
    struct mcd_gpu_tie *late; /* their calls have taken so long that nobody waits for them */
    enum mcd_gpu_state state;
    struct mct_cuda_call opening;
    uint64_t again_ns;     /* of the clock: FAILED is tried again from then on */
    uint64_t failed_opens; /* times that it did not open */
    char why[sizeof(((struct mct_cuda_call *)NULL)->text)];
    struct mcd_gpu_use uses[MCT_CUDA_DEVICES];
    uint64_t ties;  /* there now */
    uint64_t calls; /* of ties, under way */
    uint64_t first; /* of them: of host extents that were there when a device was first used */
    int device;     /* that one, -1: none yet */
    bool all;       /* host extents that are there are just being asked for */
    uint64_t descriptors; /* of clients, in parts that wait to be imported */
    /* counters */
    uint64_t unpinned; /* host extents that the driver did not take */
    uint64_t free_failed;
    uint64_t told_late; /* requests answered before the driver did */
};

/* The entry of that device, made if there is none; NULL: there are more than a host has. */
struct mcd_gpu_use *mcd_gpu_use_of(struct mcd_gpu *g, const struct mcs_gpu_id *id);
/* The pool's hook. */
void mcd_gpu_release(void *context, struct mcd_extent *e);
/* Pins all host extents that there are. */
void mcd_gpu_pin_all(struct mcd_gpu *g);
/* Bytes of a device that clients may have. */
uint64_t mcd_gpu_limit(const struct mcd_gpu *g, const struct mcs_gpu_id *id);

#endif
