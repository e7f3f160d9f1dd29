/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hosts of one: RDMA devices do not follow into a network namespace, so both agents live in
 * that of this process, each with devices and an address of its own.  Which devices make a rail is
 * told, or found: those whose names differ in one letter, a and b (rxea0, rxeb0), else the first
 * half and the second.
 */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include "hosts.h"

#include <getopt.h>

struct wire_options {
    bool rdma;                  /* --transport rdma */
    const char *devices[HOSTS]; /* parted by commas, in the order of rails; NULL: found */
    const char *address[HOSTS]; /* of the first rail; NULL: that of its device */
};

/* Values for long options; beyond OPTION_OWN and whatever follows it. */
enum { WIRE_TRANSPORT = 2000, WIRE_DEVICES_A, WIRE_DEVICES_B, WIRE_ADDRESS_A, WIRE_ADDRESS_B };

#define WIRE_LONG                                                                                  \
    {"transport", required_argument, NULL, WIRE_TRANSPORT},                                        \
        {"devices-a", required_argument, NULL, WIRE_DEVICES_A},                                    \
        {"devices-b", required_argument, NULL, WIRE_DEVICES_B},                                    \
        {"address-a", required_argument, NULL, WIRE_ADDRESS_A},                                    \
    {                                                                                              \
        "address-b", required_argument, NULL, WIRE_ADDRESS_B                                       \
    }

#define WIRE_HELP                                                                                  \
    "  --transport T     tcp (default) or rdma: both agents in this namespace, on RDMA devices\n"  \
    "  --devices-a LIST  of the first host, parted by commas, one a rail; default: found by\n"     \
    "  --devices-b LIST  their names (rxea0 and rxeb0, ...), else each host has half of them\n"    \
    "  --address-a IP    that the first host's agent listens on; default: of its first device\n"   \
    "  --address-b IP    and the second's; with tcp, too, these four mean devices of this host\n"

/* True when the option was one of these; *rc: 0, or -EINVAL, said already. */
bool wire_take(int option, struct wire_options *o, int *rc);

/* Are both hosts in this namespace? */
bool wire_asked(const struct wire_options *o);

/*
 * The ends of all rails, *rails of them. sysfs: "/sys". 0, or a negative errno, said already:
 * -ENODEV: there are no devices.
 */
int wire_find(const struct wire_options *o, const char *sysfs,
              struct hosts_end ends[HOSTS][HOSTS_RAILS_MAX], unsigned *rails);

/* The same, as hosts; at most so many rails. */
int wire_open(const struct wire_options *o, unsigned rails, struct hosts *h);

#endif
