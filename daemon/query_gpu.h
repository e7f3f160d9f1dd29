/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent tells of this host's GPUs. Control thread only. */
#ifndef MCD_QUERY_GPU_H
#define MCD_QUERY_GPU_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "agent.h"

/* MCS_QUERY_GPUS. `driver` is null while nobody has needed it, or where it cannot be had, which `why` tells. */
void mcd_query_gpus(const struct mcd_agent *a, cJSON *root);
/* The part of MCS_QUERY_STATUS, or null with [gpu] enable = off. */
void mcd_query_gpu_status(const struct mcd_agent *a, cJSON *root);
/* mcshm_gpu_*, as text; nothing with [gpu] enable = off. */
void mcd_gpu_metrics(const struct mcd_agent *a, FILE *out);

#endif
