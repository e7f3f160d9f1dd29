/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of host memory.  mct_copy() goes through the cache; mct_stream() goes past it, for
 * pieces of tasks that would only wash the cache out.  Kernels are chosen once, at run time.
 */
#ifndef MCT_COPY_H
#define MCT_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Chooses the kernels. Idempotent; call it before the first copy. */
void mct_copy_init(void);

/* src and dst do not overlap. */
static inline void mct_copy(void *dst, const void *src, size_t n)
{
    if (n == 64) /* a constant size compiles to a few moves */
        memcpy(dst, src, 64);
    else
        memcpy(dst, src, n);
}

/* The same with non-temporal stores, which nothing orders before later stores but the fence. */
void mct_stream(void *dst, const void *src, size_t n);
void mct_stream_fence(void);

/* The name of the streaming kernel in use ("avx512", "avx2", "sse2", "memcpy"). */
const char *mct_copy_kernel(void);

#endif
