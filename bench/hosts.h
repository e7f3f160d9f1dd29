/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hosts on one machine: two network namespaces with as many links (rails) between them as
 * are asked for.  They have no name anywhere: the kernel takes them and their links away when the
 * last process and descriptor in them is gone, however this program ends.
 *
 *   host 0                      host 1
 *   rail0  10.200.0.1  ------  10.200.0.2  rail0
 *   rail1  10.200.1.1  ------  10.200.1.2  rail1
 *
 * Or, where links and addresses are there already (RDMA devices do not follow into a namespace), two
 * "hosts" that differ only in their addresses (wire.h): both are the namespace of this process.
 */
#ifndef BENCH_HOSTS_H
#define BENCH_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

#define HOSTS 2u
#define HOSTS_RAILS_MAX 8u
#define HOSTS_NAME_MAX 64u

struct hosts_end {                /* of a rail */
    char address[HOSTS_NAME_MAX]; /* IPv4 */
    char link[HOSTS_NAME_MAX];    /* network interface */
    char device[HOSTS_NAME_MAX];  /* RDMA device; "": none */
    int gid_index;                /* of that address on port 1 of the device */
};

struct hosts {
    int netns[HOSTS]; /* descriptors; 0: the namespace of this process */
    int home;         /* the namespace this process was started in */
    unsigned rails;
    struct hosts_end end[HOSTS][HOSTS_RAILS_MAX];
};

/* congestion: such as "reno". Needs root and iproute2. 0, or a negative errno, said already. */
int hosts_open(struct hosts *h, unsigned rails, const char *congestion);
void hosts_close(struct hosts *h);

/* The calling thread goes into a host, or home (HOSTS). 0, or a negative errno, said already. */
int hosts_enter(const struct hosts *h, unsigned host);

/* Takes host 0's end of a rail down, or up: both ends lose their carrier, or have it again. One
 * system call. 0, or a negative errno, said already. */
int hosts_link(const struct hosts *h, unsigned rail, bool up);

/* The kernel drops the routes of a link that is taken down. Those of host 0's end of a rail, while it
 * is up, and back again. 0, or a negative errno, said already. */
struct hosts_routes {
    char link[HOSTS_NAME_MAX];
    char text[4096]; /* as `ip route` prints them */
};
int hosts_get_routes(const struct hosts *h, unsigned rail, struct hosts_routes *out);
int hosts_put_routes(const struct hosts *h, const struct hosts_routes *r);

/* Limits what either end of a rail sends, in bits per second; 0: no limit. */
int hosts_limit(const struct hosts *h, unsigned rail, double bits);

#endif
