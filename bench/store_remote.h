/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_STORE_REMOTE_H
#define BENCH_STORE_REMOTE_H

#include "store.h"

/* Rows of objects that lie on another host, with stores of so many bytes and requests of so many keys. *why_not: why there are
 * none, NULL otherwise. 0, or a negative errno, said already. */
int store_remote(const struct store_options *o, uint64_t store, uint64_t keys,
                 struct store_rows *rows, const char **why_not);

#endif
