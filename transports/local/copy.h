/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of host memory.  mct_copy() goes through the cache; mct_stream() goes past it, for
 * pieces of tasks that would only wash the cache out.  Kernels are chosen once, at run time.
 */
#ifndef MCT_COPY_H
#define MCT_COPY_H

#include <stddef.h>
#include <stdint.h>

/* Chooses the kernels. Idempotent; call it before the first copy. */
void mct_copy_init(void);

/* src and dst do not overlap. */
void mct_copy(void *dst, const void *src, size_t n);
/* The same with non-temporal stores; ordered before any later store when it returns. */
void mct_stream(void *dst, const void *src, size_t n);

/* The name of the streaming kernel in use ("avx512", "avx2", "sse2", "memcpy"). */
const char *mct_copy_kernel(void);

#endif
