/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_NETNS_H
#define BENCH_NETNS_H

/*
 * The calling process goes into a network namespace for good, and sees its interfaces in /sys too,
 * where programs look them up. 0 or a negative errno.
 */
int netns_settle(int fd);

#endif
