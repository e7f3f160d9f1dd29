/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of `net --transport rdma`; each 0 or a negative errno, said already. */
#ifndef BENCH_NET_RDMA_H
#define BENCH_NET_RDMA_H

#include "net.h"

#include <cjson/cJSON.h>

/* One small WRITE beside one over bare verbs and two hops of a bare ring. */
int net_rdma_latency(const struct net_options *o, const struct hosts *h, struct net_figures *f);
/* A buffer that is published beside one ibv_reg_mr() of as many bytes. */
int net_rdma_register(const struct net_options *o, const struct hosts *h, struct net_figures *f);

/* What the row flows by what perftest does; NAN: it was not measured. */
double net_rdma_ratio(struct net_row *r);
void net_rdma_json(cJSON *doc, struct net_figures *f);
int net_rdma_print(const struct net_options *o, struct net_figures *f);
void net_print_failover(const struct net_failover *o); /* net_print.c */

#endif
