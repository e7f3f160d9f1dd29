/* SPDX-License-Identifier: Apache-2.0 */
/* A network namespace for a test, and what it puts into it. The namespace and all that is in it go
 * with the process. Include criterion first. */
#ifndef TESTS_NETNS_H
#define TESTS_NETNS_H

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* A fresh namespace for the calling thread, or the test is skipped. */
#define NETNS_ENTER()                                                                              \
    do {                                                                                           \
        if (unshare(CLONE_NEWNET) != 0)                                                            \
            cr_skip_test("no network namespace may be made here: %s", strerror(errno));            \
    } while (0)

struct netns_request {
    struct nlmsghdr head;
    union {
        struct ifinfomsg link;
        struct ifaddrmsg address;
    } body;
    char attributes[512];
};

static inline struct rtattr *netns_add(struct netns_request *r, int type, const void *data,
                                       size_t n)
{
    struct nlmsghdr *h = &r->head;
    struct rtattr *a = (struct rtattr *)(void *)((char *)r + NLMSG_ALIGN(h->nlmsg_len));

    a->rta_type = (unsigned short)type;
    a->rta_len = (unsigned short)RTA_LENGTH(n);
    if (n > 0)
        memcpy(RTA_DATA(a), data, n);
    h->nlmsg_len = NLMSG_ALIGN(h->nlmsg_len) + (unsigned)RTA_ALIGN(a->rta_len);
    return a;
}

static inline void netns_end(struct netns_request *r, struct rtattr *a)
{
    a->rta_len = (unsigned short)((char *)r + r->head.nlmsg_len - (char *)a);
}

/* Sends it and takes the kernel's answer: 0 or a negative errno. */
static inline int netns_ask(struct nlmsghdr *h)
{
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    struct {
        struct nlmsghdr head;
        struct nlmsgerr body;
        char more[1024];
    } answer;
    int res = -EIO;

    h->nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
    if (fd >= 0 && send(fd, h, h->nlmsg_len, 0) >= 0 &&
        recv(fd, &answer, sizeof(answer), 0) >= (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)) &&
        answer.head.nlmsg_type == NLMSG_ERROR)
        res = answer.body.error;
    if (fd >= 0)
        close(fd);
    return res;
}

/* kind: "veth" (its other end is PEER), "bridge", "dummy". */
static inline int netns_link(const char *name, const char *kind, const char *peer)
{
    struct netns_request r = {
        .head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg)),
                 .nlmsg_type = RTM_NEWLINK,
                 .nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL},
    };
    struct rtattr *info, *data, *end;
    struct ifinfomsg other = {.ifi_family = AF_UNSPEC};

    netns_add(&r, IFLA_IFNAME, name, strlen(name) + 1);
    info = netns_add(&r, IFLA_LINKINFO, NULL, 0);
    netns_add(&r, IFLA_INFO_KIND, kind, strlen(kind) + 1);
    if (peer != NULL) {
        data = netns_add(&r, IFLA_INFO_DATA, NULL, 0);
        end = netns_add(&r, VETH_INFO_PEER, &other, sizeof(other));
        netns_add(&r, IFLA_IFNAME, peer, strlen(peer) + 1);
        netns_end(&r, end);
        netns_end(&r, data);
    }
    netns_end(&r, info);
    return netns_ask(&r.head);
}

static inline int netns_unlink(const char *name)
{
    struct netns_request r = {
        .head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg)), .nlmsg_type = RTM_DELLINK},
        .body.link.ifi_index = (int)if_nametoindex(name),
    };

    return netns_ask(&r.head);
}

static inline int netns_set(const char *name, bool up)
{
    struct netns_request r = {
        .head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg)), .nlmsg_type = RTM_NEWLINK},
        .body.link = {.ifi_index = (int)if_nametoindex(name),
                      .ifi_flags = up ? IFF_UP : 0,
                      .ifi_change = IFF_UP},
    };

    return netns_ask(&r.head);
}

/* Until its carrier is there. The kernel tells of carriers from a work queue that it wakes once a second at most. */
static inline bool netns_await_running(const char *name)
{
    struct ifreq r = {.ifr_flags = 0};
    struct pollfd nothing = {.fd = -1};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
    for (unsigned i = 0; i < 5000 && ioctl(fd, SIOCGIFFLAGS, &r) == 0; i++) {
        if ((r.ifr_flags & IFF_RUNNING) != 0)
            break;
        poll(&nothing, 1, 2);
    }
    close(fd);
    return (r.ifr_flags & IFF_RUNNING) != 0;
}

/* text: an address of either family, without waiting for anybody else to have it. */
static inline int netns_address(const char *name, const char *text, unsigned prefix, bool add)
{
    uint8_t bytes[16];
    bool v6 = strchr(text, ':') != NULL;
    struct netns_request r = {
        .head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifaddrmsg)),
                 .nlmsg_type = add ? RTM_NEWADDR : RTM_DELADDR,
                 .nlmsg_flags = add ? NLM_F_CREATE | NLM_F_EXCL : 0},
        .body.address = {.ifa_family = v6 ? AF_INET6 : AF_INET,
                         .ifa_prefixlen = (unsigned char)prefix,
                         .ifa_flags = v6 ? IFA_F_NODAD : 0,
                         .ifa_index = if_nametoindex(name)},
    };

    if (inet_pton(v6 ? AF_INET6 : AF_INET, text, bytes) != 1)
        return -EINVAL;
    netns_add(&r, IFA_LOCAL, bytes, v6 ? 16 : 4);
    netns_add(&r, IFA_ADDRESS, bytes, v6 ? 16 : 4);
    return netns_ask(&r.head);
}

#endif
