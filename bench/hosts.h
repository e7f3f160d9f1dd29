/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hosts on one machine: two network namespaces with as many links (rails) between them as
 * are asked for.  They have no name anywhere: the kernel takes them and their links away when the
 * last process and descriptor in them is gone, however this program ends.
 *
 *   host 0                      host 1
 *   rail0  10.200.0.1  ------  10.200.0.2  rail0
 *   rail1  10.200.1.1  ------  10.200.1.2  rail1
 */
#ifndef BENCH_HOSTS_H
#define BENCH_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

#define HOSTS 2u
#define HOSTS_RAILS_MAX 8u

struct hosts {
    int netns[HOSTS]; /* descriptors */
    int home;         /* the namespace this process was started in */
    unsigned rails;
};

/* congestion: such as "reno". Needs root and iproute2. 0, or a negative errno, said already. */
int hosts_open(struct hosts *h, unsigned rails, const char *congestion);
void hosts_close(struct hosts *h);

/* The calling thread goes into a host, or home (HOSTS). 0, or a negative errno, said already. */
int hosts_enter(const struct hosts *h, unsigned host);

/* "10.200.RAIL.N", in out, which it returns. */
const char *hosts_address(unsigned host, unsigned rail, char *out, size_t size);

/* Takes host 0's end of a rail down, or up: both ends lose their carrier, or have it again. One
 * system call. 0, or a negative errno, said already. */
int hosts_link(const struct hosts *h, unsigned rail, bool up);

/* Limits what either end of a rail sends, in bits per second; 0: no limit. */
int hosts_limit(const struct hosts *h, unsigned rail, double bits);

#endif
