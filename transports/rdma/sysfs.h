/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA devices as sysfs shows them.  All functions take the folder to read in ("/sys"; tests
 * have trees of their own), read small files only, and take what is missing or unreadable as unknown.
 * They enter the kernel: not for engines.  Any thread.
 */
#ifndef MCT_SYSFS_H
#define MCT_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gid.h"

#define MCT_SYSFS_NAME_MAX 64u /* IB_DEVICE_NAME_MAX */
#define MCT_SYSFS_DEVICES_MAX 128u
#define MCT_SYSFS_PORTS_MAX 16u  /* of a device */
#define MCT_SYSFS_GIDS_MAX 1024u /* of a port; drivers have 256 at most */
#define MCT_SYSFS_PCI_MAX 32u    /* "0000:3b:00.0" */

/* A name as the kernel gives them: one folder below, nothing that leads elsewhere. */
bool mct_sysfs_is_name(const char *name);

struct mct_sysfs_device {
    char name[MCT_SYSFS_NAME_MAX];
    char pci[MCT_SYSFS_PCI_MAX];     /* "" unknown */
    char netdev[MCT_GID_NETDEV_MAX]; /* what software RDMA runs on (`parent`); "": real hardware */
    char uverbs[32];                 /* "uverbs0": its file in /dev/infiniband; "" unknown */
    char firmware[64], board[64];    /* "" unknown */
    int node;                        /* NUMA, -1 unknown */
    unsigned ports[MCT_SYSFS_PORTS_MAX]; /* numbers, rising */
    unsigned nports;
};

struct mct_sysfs_port {
    char state[32];      /* "ACTIVE", "DOWN", ...; "" unknown */
    char phys_state[32]; /* "LinkUp", "Disabled", "Polling", ... */
    bool infiniband;     /* the link layer; false: Ethernet */
    uint64_t rate;       /* bits a second, 0 unknown */
    uint32_t lid;
    char netdev
        [MCT_GID_NETDEV_MAX]; /* RoCE: that of the GID table, else that of the device; "" unknown */
    unsigned netdev_mtu;      /* bytes, 0 unknown */
    char netdev_state[16];    /* operstate: "up", "down", ...; "" unknown */
};

/* Names of the devices, sorted. Returns how many; 0 also where the kernel knows no RDMA. */
size_t mct_sysfs_devices(const char *sys, char (*names)[MCT_SYSFS_NAME_MAX], size_t max);
/* 0, or -ENODEV: there is none of this name. */
int mct_sysfs_device(const char *sys, const char *name, struct mct_sysfs_device *out);
/* 0, or -ENODEV: there is no such port. */
int mct_sysfs_port(const char *sys, const char *name, unsigned port, struct mct_sysfs_port *out);

/* The port's GIDs that are not zero, by index. Returns how many there are in `out`. */
size_t mct_sysfs_gids(const char *sys, const char *name, unsigned port, struct mct_gid_entry *out,
                      size_t max);
/* The addresses of this host's interfaces (getifaddrs). 0 or a negative errno; free() *out. */
int mct_sysfs_addresses(struct mct_gid_address **out, size_t *n);

/* All of it: reads the table and the addresses, and chooses. Returns and errors as mct_gid_choose(); -ENOMEM. */
int mct_sysfs_choose_gid(const char *sys, const char *name, unsigned port, bool infiniband,
                         int wanted, struct mct_gid_choice *out);

/* "100 Gb/sec (4X EDR)" in bits a second; 0 when it is no such text. */
uint64_t mct_sysfs_rate(const char *text);

/* What lies between two PCI devices, near to far. */
enum mct_sysfs_distance {
    MCT_SYSFS_SAME,   /* functions of one device */
    MCT_SYSFS_SWITCH, /* below one PCIe switch */
    MCT_SYSFS_ROOT,   /* below one root port, or at one host bridge */
    MCT_SYSFS_NODE,   /* at one NUMA node */
    MCT_SYSFS_FAR,    /* at two */
    MCT_SYSFS_UNKNOWN
};
/* a, b: PCI addresses, "0000:3b:00.0". */
enum mct_sysfs_distance mct_sysfs_pci_distance(const char *sys, const char *a, const char *b);
/* Of a PCI device and the memory of a NUMA node: NODE, FAR or UNKNOWN. */
enum mct_sysfs_distance mct_sysfs_node_distance(const char *sys, const char *pci, int node);
/* NUMA node of a PCI device, -1 unknown. */
int mct_sysfs_pci_node(const char *sys, const char *pci);

#endif
