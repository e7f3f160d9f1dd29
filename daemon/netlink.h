/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel says about interfaces and addresses, as it happens. Control thread only. */
#ifndef MCD_NETLINK_H
#define MCD_NETLINK_H

#include <net/if.h>
#include <stdbool.h>
#include <sys/socket.h>

enum mcd_net_event {
    MCD_NET_UP, /* switched on, with a carrier */
    MCD_NET_DOWN,
    MCD_NET_ADDRESS_NEW,
    MCD_NET_ADDRESS_GONE,
    MCD_NET_LOST /* news were lost: all that is there follows anew, what is not among it has gone */
};

struct mcd_net_change {
    enum mcd_net_event event;
    unsigned ifindex;
    char interface[IF_NAMESIZE];     /* UP, DOWN */
    struct sockaddr_storage address; /* ADDRESS_*: port 0 */
};

/* A non-blocking socket that becomes readable with each change. */
int mcd_netlink_open(int *fd);
/* Reads what is there. Events may repeat what is known. After lost messages (ENOBUFS): LOST, then all interfaces as UP or
 * DOWN, and all addresses as ADDRESS_NEW. 0 or a negative errno. */
int mcd_netlink_run(int fd, void (*changed)(void *context, const struct mcd_net_change *c),
                    void *context);

#endif
