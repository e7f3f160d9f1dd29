/* SPDX-License-Identifier: Apache-2.0 */
/* What the GPU driver told of itself, in a process of its own: a driver that hangs does not hang the doctor. */
#ifndef DOCTOR_GPU_H
#define DOCTOR_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/cuda.h"

#define DOCTOR_GPUS 32u

struct doctor_gpu {
    char uuid[MCS_GPU_ID_TEXT];
    char name[128], pci[16];
    uint64_t total;   /* bytes */
    int compute_mode; /* CUcomputemode */
    bool vmm, posix_handles, dmabuf, rdma;
    uint32_t peers; /* how many it reaches directly */
};

struct doctor_gpus {
    int result; /* of mcs_cuda_load(), or -ETIMEDOUT: the driver did not answer; -EIO: its process ended without a word */
    char why[400];
    int version; /* 13000: 13.0 */
    uint32_t count, left_out;
    struct doctor_gpu gpus[DOCTOR_GPUS];
};

/* Loads the driver in another process and asks it; waits for it for so long at most. */
void doctor_gpus_ask(struct doctor_gpus *out, int timeout_ms);

bool doctor_gpu_is_fake(const struct doctor_gpu *g);
bool doctor_gpu_is_mig(const struct doctor_gpu *g);

#endif
