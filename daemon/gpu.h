/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner of a->cuda, this host's GPUs: opens the driver when a client first asks for GPU memory (or at the start with
 * [gpu] enable = require), makes, imports and frees extents of GPU memory (gpu_memory.h), and has host extents pinned with
 * the driver, all of those that there are when a device is first used, and each one later before its owner hears of it.
 * Control thread only.
 */
#ifndef MCD_GPU_H
#define MCD_GPU_H

#include "agent.h"
#include "shm/cuda.h"

/* a->cuda and a->gpu stay NULL with enable = off. On failure one sentence in error: enable = require and no device. */
int mcd_gpu_create(struct mcd_agent *a, char *error, size_t error_size);
/* After the engines and all extents. What the driver still has in hand by then is left to the kernel. */
void mcd_gpu_destroy(struct mcd_agent *a);
/* When the control thread's event descriptor was written, and once a second; true when something was brought. */
bool mcd_gpu_poll(struct mcd_agent *a);

/* Begins to open the driver, if nobody has, or if it has failed a while ago: what is not there at boot may come. There is an a->gpu. */
void mcd_gpu_open(struct mcd_agent *a);
enum mcd_gpu_state { MCD_GPU_CLOSED, MCD_GPU_OPENING, MCD_GPU_OPEN, MCD_GPU_FAILED };
/* CLOSED without an a->gpu. */
enum mcd_gpu_state mcd_gpu_state(const struct mcd_agent *a);
/* The sentence behind FAILED; never NULL. While it is tried again, that of the time before. */
const char *mcd_gpu_why(const struct mcd_agent *a);
/* The device is about to have memory of clients. When it is the first one: host memory is pinned from now on, all that there is
 * at once; that needs a context, and no device gets one that is not used. The driver is open. */
void mcd_gpu_use(struct mcd_agent *a, unsigned device);
/* Is host memory that was there then still being pinned? */
bool mcd_gpu_pinning(const struct mcd_agent *a);
/* Does the driver still have something in hand about memory? A clean stop waits for it, for a while. */
bool mcd_gpu_busy(const struct mcd_agent *a);

/* "cuda:" and the first 26 digits of the device's UUID, of an extent of GPU memory. */
void mcd_gpu_location(const struct mcd_extent *e, char text[MCS_LOCATION_MAX]);

#endif
