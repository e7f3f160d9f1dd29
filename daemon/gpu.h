/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner of a->cuda, this host's GPUs: opens the driver when a client first asks for GPU memory (or at the start with
 * [gpu] enable = require), makes, imports and frees extents of GPU memory, and has host extents pinned with the driver,
 * all of those that there are at the first opening, and each one later before its owner hears of it.  Control thread only.
 */
#ifndef MCD_GPU_H
#define MCD_GPU_H

#include "agent.h"

/* a->cuda and a->gpu stay NULL with enable = off. On failure one sentence in error: enable = require and no device. */
int mcd_gpu_create(struct mcd_agent *a, char *error, size_t error_size);
/* After the engines and all extents. */
void mcd_gpu_destroy(struct mcd_agent *a);
/* In each round of the loop; true when something was brought. */
bool mcd_gpu_poll(struct mcd_agent *a);

#endif
