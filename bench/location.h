/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory is to be: "cpu", "cpu:N", "cuda:N" or "cuda:GPU-...". */
#ifndef BENCH_LOCATION_H
#define BENCH_LOCATION_H

#include "shm/cuda.h"

#include <stdbool.h>

/* NULL is no GPU's. */
bool location_is_gpu(const char *location);
/* A GPU: "cuda:N" in *ordinal, "cuda:GPU-..." in *id, and then *ordinal is -1. Returns 0 or -EINVAL. */
int location_parse(const char *location, int *ordinal, struct mcs_gpu_id *id);

#endif
