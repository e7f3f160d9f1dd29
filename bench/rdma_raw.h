/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare verbs beneath an RDMA rail: one process, two queue pairs, no agent.  What a WRITE or a
 * registration costs beyond these is ours.
 */
#ifndef BENCH_RDMA_RAW_H
#define BENCH_RDMA_RAW_H

#include "hosts.h"

#include <stdint.h>

/* Was this program built with libibverbs? Without it the others return -ENOTSUP, said already. */
bool rdma_raw_present(void);

/*
 * WRITEs of so many bytes (at most 64, inline), each posted and then polled for until it is complete, from
 * `from` to `to`, for so long, on that core. *median_us: of one. 0, or a negative errno, said already.
 */
int rdma_raw_write(const struct hosts_end *from, const struct hosts_end *to, int core,
                   double seconds, double *median_us);

/* One ibv_reg_mr() of so many bytes, touched before, in pages of that size. As above. */
int rdma_raw_register(const struct hosts_end *end, uint64_t bytes, uint64_t page_size,
                      double *seconds);

#endif
