/* SPDX-License-Identifier: Apache-2.0 */
#include "netlink.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define TURN_MAX 64    /* datagrams a call takes; the socket stays readable for more */
#define LOSS_MAX 65536 /* and after a loss: more than a socket's buffer holds */

#define BUFFER (32u << 10)
/* Switched on, with a carrier. IFF_RUNNING alone is not yet right just after switching on, and
 * IFF_LOWER_UP stands in <linux/if.h>, which does not go together with <net/if.h>. */
#define ALIVE (IFF_UP | IFF_RUNNING | 1u << 16)

int mcd_netlink_open(int *fd)
{
    struct sockaddr_nl me = {.nl_family = AF_NETLINK,
                             .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};
    int s = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE), res;

    if (s < 0)
        return -errno;
    if (bind(s, (struct sockaddr *)&me, sizeof(me)) != 0) {
        res = -errno;
        close(s);
        return res;
    }
    *fd = s;
    return 0;
}

typedef void (*changed_fn)(void *context, const struct mcd_net_change *c);

static void on_link(const struct nlmsghdr *h, changed_fn changed, void *context)
{
    const struct ifinfomsg *m = NLMSG_DATA(h);
    struct mcd_net_change c = {.event = MCD_NET_DOWN};
    int left;

    if (h->nlmsg_len < NLMSG_LENGTH(sizeof(*m)))
        return;
    left = (int)(h->nlmsg_len - NLMSG_LENGTH(sizeof(*m)));
    c.ifindex = (unsigned)m->ifi_index;
    /* news of a bridge about its ports, not of the interface */
    if (m->ifi_family == AF_BRIDGE)
        return;
    if (h->nlmsg_type == RTM_NEWLINK && (m->ifi_flags & ALIVE) == ALIVE)
        c.event = MCD_NET_UP;
    for (const struct rtattr *a = IFLA_RTA(m); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        size_t n = RTA_PAYLOAD(a);

        if (a->rta_type != IFLA_IFNAME)
            continue;
        if (n >= sizeof(c.interface))
            n = sizeof(c.interface) - 1;
        memcpy(c.interface, RTA_DATA(a), n);
    }
    changed(context, &c);
}

static void on_address(const struct nlmsghdr *h, changed_fn changed, void *context)
{
    const struct ifaddrmsg *m = NLMSG_DATA(h);
    struct mcd_net_change c = {.event = h->nlmsg_type == RTM_NEWADDR ? MCD_NET_ADDRESS_NEW
                                                                     : MCD_NET_ADDRESS_GONE};
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    const void *own = NULL;
    size_t need;
    int left;

    if (h->nlmsg_len < NLMSG_LENGTH(sizeof(*m)))
        return;
    left = (int)(h->nlmsg_len - NLMSG_LENGTH(sizeof(*m)));
    if (m->ifa_family != AF_INET && m->ifa_family != AF_INET6)
        return;
    need = m->ifa_family == AF_INET ? sizeof(four.sin_addr) : sizeof(six.sin6_addr);
    c.ifindex = m->ifa_index;
    for (const struct rtattr *a = IFA_RTA(m); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        if (RTA_PAYLOAD(a) < need)
            continue;
        /* on a point-to-point link IFA_ADDRESS is the other end and IFA_LOCAL this one */
        if (a->rta_type == IFA_LOCAL || (a->rta_type == IFA_ADDRESS && own == NULL))
            own = RTA_DATA(a);
    }
    if (own == NULL)
        return;
    /* not yet, or never, usable: another host has it, too */
    if (c.event == MCD_NET_ADDRESS_NEW && (m->ifa_flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED)) != 0)
        return;
    if (m->ifa_family == AF_INET) {
        memcpy(&four.sin_addr, own, need);
        memcpy(&c.address, &four, sizeof(four));
    } else {
        memcpy(&six.sin6_addr, own, need);
        if (IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr))
            six.sin6_scope_id = c.ifindex;
        memcpy(&c.address, &six, sizeof(six));
    }
    changed(context, &c);
}

/* One datagram; true if it ends an answer. */
static bool take(const void *data, size_t size, changed_fn changed, void *context)
{
    const struct nlmsghdr *h = data;
    size_t left = size;

    for (; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
        switch (h->nlmsg_type) {
        case RTM_NEWLINK:
        case RTM_DELLINK:
            on_link(h, changed, context);
            break;
        case RTM_NEWADDR:
        case RTM_DELADDR:
            on_address(h, changed, context);
            break;
        case NLMSG_DONE:
        case NLMSG_ERROR:
            return true;
        default:
            break;
        }
    }
    return false;
}

/* A datagram of the kernel's into buffer; other processes may send here, too: those are 0 bytes. */
static ssize_t receive(int fd, char buffer[BUFFER])
{
    struct sockaddr_nl from;
    socklen_t size = sizeof(from);
    ssize_t n;

    do
        n = recvfrom(fd, buffer, BUFFER, MSG_DONTWAIT, (struct sockaddr *)&from, &size);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    return from.nl_pid == 0 ? n : 0;
}

/* All links or all addresses, asked on a socket of its own: the answer is made while it is read,
 * so this never waits, and no other news can be lost over it. */
static int dump(int type, char buffer[BUFFER], changed_fn changed, void *context)
{
    struct {
        struct nlmsghdr head;
        struct rtgenmsg body;
    } request = {
        .head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct rtgenmsg)),
                 .nlmsg_type = (uint16_t)type,
                 .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
        .body = {.rtgen_family = AF_UNSPEC},
    };
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
    int res = fd < 0 ? -errno : 0;
    bool ended = false;
    ssize_t n;

    if (res == 0 && send(fd, &request, request.head.nlmsg_len, 0) < 0)
        res = -errno;
    while (res == 0 && !ended) {
        n = receive(fd, buffer);
        if (n < 0)
            res = n == -EAGAIN ? -EIO : (int)n;
        else
            ended = take(buffer, (size_t)n, changed, context);
    }
    if (fd >= 0)
        close(fd);
    return res;
}

int mcd_netlink_run(int fd, void (*changed)(void *context, const struct mcd_net_change *c),
                    void *context)
{
    static _Alignas(struct nlmsghdr) char buffer[BUFFER]; /* control thread only */
    struct mcd_net_change lost = {.event = MCD_NET_LOST};
    bool loss = false;
    int res = 0;

    for (unsigned i = 0; i < (loss ? LOSS_MAX : TURN_MAX); i++) {
        ssize_t n = receive(fd, buffer);

        if (n == -EAGAIN)
            break;
        if (n == -ENOBUFS) {
            /* Told before what had come earlier: that goes first, so that what is read anew is the
             * newest. What comes after it is in the socket and is read later. */
            loss = true;
        } else if (n < 0) {
            return (int)n;
        } else {
            take(buffer, (size_t)n, changed, context);
        }
    }
    if (loss) {
        changed(context, &lost);
        res = dump(RTM_GETLINK, buffer, changed, context);
        if (res == 0)
            res = dump(RTM_GETADDR, buffer, changed, context);
    }
    return res;
}
