/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>

#include "daemon/address.h"
#include "daemon/netlink.h"
#include "netns.h"

#define KEPT 256u

struct seen {
    struct mcd_net_change changes[KEPT];
    unsigned count;
};

static void changed(void *context, const struct mcd_net_change *c)
{
    struct seen *s = context;

    if (s->count < KEPT)
        s->changes[s->count] = *c;
    s->count++;
}

/* The newest of what is known of an interface: MCD_NET_UP or DOWN, -1: nothing. */
static int state_of(const struct seen *s, const char *interface)
{
    for (unsigned i = s->count < KEPT ? s->count : KEPT; i-- > 0;)
        if (s->changes[i].event <= MCD_NET_DOWN && strcmp(s->changes[i].interface, interface) == 0)
            return (int)s->changes[i].event;
    return -1;
}

static int state_of_address(const struct seen *s, const char *text)
{
    char printed[80];

    for (unsigned i = s->count < KEPT ? s->count : KEPT; i-- > 0;) {
        if (s->changes[i].event != MCD_NET_ADDRESS_NEW &&
            s->changes[i].event != MCD_NET_ADDRESS_GONE)
            continue;
        mcd_sockaddr_print((const struct sockaddr *)&s->changes[i].address, printed,
                           sizeof(printed));
        if (strcmp(printed, text) == 0)
            return (int)s->changes[i].event;
    }
    return -1;
}

/* Runs until the wanted state is there; most changes are told before the change returns, a
 * carrier's a moment later. */
static bool becomes(int fd, struct seen *s, const char *interface, int state)
{
    for (unsigned i = 0; state_of(s, interface) != state && i < 100; i++) {
        struct pollfd p = {.fd = fd, .events = POLLIN};

        if (poll(&p, 1, 5000) <= 0)
            return false;
        cr_assert_eq(mcd_netlink_run(fd, changed, s), 0);
    }
    return state_of(s, interface) == state;
}

static bool address_becomes(int fd, struct seen *s, const char *text, int state)
{
    for (unsigned i = 0; state_of_address(s, text) != state && i < 100; i++) {
        struct pollfd p = {.fd = fd, .events = POLLIN};

        if (poll(&p, 1, 5000) <= 0)
            return false;
        cr_assert_eq(mcd_netlink_run(fd, changed, s), 0);
    }
    return state_of_address(s, text) == state;
}

static void enter(int *fd)
{
    NETNS_ENTER();
    cr_assert_eq(mcd_netlink_open(fd), 0);
}

Test(netlink, a_cable_that_is_pulled)
{
    struct seen s = {.count = 0};
    int fd, res;

    enter(&fd);
    cr_expect_eq(mcd_netlink_run(fd, changed, &s), 0);
    cr_expect_eq(s.count, 0u);
    res = netns_link("eth0", "veth", "other");
    if (res != 0)
        cr_skip_test("no veth here: %s", strerror(-res));
    cr_expect(becomes(fd, &s, "eth0", MCD_NET_DOWN));
    /* switched on, but with nothing at the other end */
    cr_assert_eq(netns_set("eth0", true), 0);
    cr_expect_eq(mcd_netlink_run(fd, changed, &s), 0);
    cr_expect_eq(state_of(&s, "eth0"), (int)MCD_NET_DOWN);
    cr_assert_eq(netns_set("other", true), 0);
    cr_expect(becomes(fd, &s, "eth0", MCD_NET_UP));
    cr_expect(becomes(fd, &s, "other", MCD_NET_UP));
    for (unsigned i = 0; i < s.count; i++)
        if (strcmp(s.changes[i].interface, "eth0") == 0)
            cr_expect_eq(s.changes[i].ifindex, if_nametoindex("eth0"));
    /* the other end goes down, ours stays switched on */
    s.count = 0;
    cr_assert_eq(netns_set("other", false), 0);
    cr_expect(becomes(fd, &s, "eth0", MCD_NET_DOWN));
    cr_assert_eq(netns_set("other", true), 0);
    cr_expect(becomes(fd, &s, "eth0", MCD_NET_UP));
    s.count = 0;
    cr_assert_eq(netns_set("eth0", false), 0);
    cr_expect(becomes(fd, &s, "eth0", MCD_NET_DOWN));
    cr_assert_eq(netns_set("eth0", true), 0);
    cr_expect(becomes(fd, &s, "eth0", MCD_NET_UP));
    s.count = 0;
    cr_assert_eq(netns_unlink("eth0"), 0);
    cr_expect(becomes(fd, &s, "eth0", MCD_NET_DOWN));
    close(fd);
}

Test(netlink, addresses_come_and_go)
{
    struct seen s = {.count = 0};
    int fd;

    enter(&fd);
    cr_assert_eq(netns_set("lo", true), 0);
    cr_expect(becomes(fd, &s, "lo", MCD_NET_UP));
    cr_assert_eq(netns_address("lo", "198.51.100.7", 24, true), 0);
    cr_expect(address_becomes(fd, &s, "198.51.100.7", MCD_NET_ADDRESS_NEW));
    cr_assert_eq(netns_address("lo", "198.51.100.7", 24, false), 0);
    cr_expect(address_becomes(fd, &s, "198.51.100.7", MCD_NET_ADDRESS_GONE));
    if (netns_address("lo", "2001:db8::7", 64, true) == 0) {
        cr_expect(address_becomes(fd, &s, "2001:db8::7", MCD_NET_ADDRESS_NEW));
        cr_assert_eq(netns_address("lo", "2001:db8::7", 64, false), 0);
        cr_expect(address_becomes(fd, &s, "2001:db8::7", MCD_NET_ADDRESS_GONE));
    }
    close(fd);
}

Test(netlink, what_was_lost_is_read_anew)
{
    struct seen s = {.count = 0};
    int fd, small = 1, lost = 0;

    enter(&fd);
    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    cr_assert_eq(netns_set("lo", true), 0);
    /* far more than the smallest buffer holds; the last word is: up, and one address there */
    for (unsigned i = 0; i < 200; i++) {
        cr_assert_eq(netns_address("lo", "198.51.100.7", 24, true), 0);
        cr_assert_eq(netns_address("lo", "198.51.100.7", 24, false), 0);
    }
    cr_assert_eq(netns_set("lo", false), 0);
    cr_assert_eq(netns_set("lo", true), 0);
    cr_assert_eq(netns_address("lo", "198.51.100.8", 24, true), 0);
    cr_expect_eq(mcd_netlink_run(fd, changed, &s), 0);
    cr_assert_lt(s.count, KEPT);
    for (unsigned i = 0; i < s.count; i++) {
        if (s.changes[i].event == MCD_NET_LOST)
            lost = (int)i + 1;
    }
    cr_assert_gt(lost, 0);
    cr_expect_eq(state_of(&s, "lo"), (int)MCD_NET_UP);
    cr_expect_eq(state_of_address(&s, "198.51.100.8"), (int)MCD_NET_ADDRESS_NEW);
    /* behind LOST stands all that there is, and nothing else */
    memmove(s.changes, s.changes + lost, (s.count - (unsigned)lost) * sizeof(s.changes[0]));
    s.count -= (unsigned)lost;
    cr_expect_eq(state_of(&s, "lo"), (int)MCD_NET_UP);
    cr_expect_eq(state_of_address(&s, "198.51.100.8"), (int)MCD_NET_ADDRESS_NEW);
    cr_expect_eq(state_of_address(&s, "127.0.0.1"), (int)MCD_NET_ADDRESS_NEW);
    cr_expect_eq(state_of_address(&s, "198.51.100.7"), -1);
    /* and it goes on as usual */
    s.count = 0;
    cr_assert_eq(netns_address("lo", "198.51.100.8", 24, false), 0);
    cr_expect(address_becomes(fd, &s, "198.51.100.8", MCD_NET_ADDRESS_GONE));
    close(fd);
}

Test(netlink, only_the_kernel_is_believed)
{
    struct {
        struct nlmsghdr head;
        struct ifinfomsg body;
    } fake = {
        .head = {.nlmsg_len = sizeof(fake), .nlmsg_type = RTM_DELLINK},
        .body = {.ifi_family = AF_UNSPEC, .ifi_index = 1},
    };
    struct sockaddr_nl to;
    socklen_t size = sizeof(to);
    struct seen s = {.count = 0};
    int fd, other;

    enter(&fd);
    other = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&to, &size), 0);
    if (sendto(other, &fake, sizeof(fake), 0, (struct sockaddr *)&to, size) < 0)
        cr_skip_test("the kernel does not let others send: %s", strerror(errno));
    cr_expect_eq(mcd_netlink_run(fd, changed, &s), 0);
    cr_expect_eq(s.count, 0u);
    close(other);
    close(fd);
}
