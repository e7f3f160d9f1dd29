/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_NET_OPTIONS_H
#define BENCH_NET_OPTIONS_H

#include "net.h"

/* 0; 1 after --help; -EINVAL, said already. */
int net_options_parse(int argc, char **argv, struct net_options *out);

/* "4K,1M": sizes or counts from min to max, parted by commas. -EINVAL, said already. */
int net_options_list(const char *name, const char *text, uint64_t min, uint64_t max,
                     struct net_list *out);

#endif
