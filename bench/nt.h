/* SPDX-License-Identifier: Apache-2.0 */
/* The widest copy past the caches that this processor has; a baseline beside memcpy. */
#ifndef BENCH_NT_H
#define BENCH_NT_H

#include <stddef.h>

typedef void nt_copy(void *to, const void *from, size_t size);

/* Never NULL; plain memcpy where the architecture has no such stores. *name is static. */
nt_copy *nt_choose(const char **name);

#endif
