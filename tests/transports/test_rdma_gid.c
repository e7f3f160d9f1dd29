/* SPDX-License-Identifier: Apache-2.0 */
/* Which GID is chosen: tables and addresses as they have been met in the field. */
#include "transports/rdma/gid.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAX 8

static struct mct_gid_entry table[MAX];
static struct mct_gid_address addresses[MAX];
static size_t nentries, naddresses;
static struct mct_gid_choice choice;

static void parse(const char *text, uint8_t gid[16])
{
    if (strchr(text, ':') == NULL) {
        memset(gid, 0, 16);
        gid[10] = gid[11] = 0xff;
        cr_assert_eq(inet_pton(AF_INET, text, gid + 12), 1, "%s", text);
    } else {
        cr_assert_eq(inet_pton(AF_INET6, text, gid), 1, "%s", text);
    }
}

static void entry(int index, const char *gid, enum mct_gid_type type, const char *netdev)
{
    struct mct_gid_entry *e = &table[nentries++];

    cr_assert_leq(nentries, MAX);
    *e = (struct mct_gid_entry){.index = index, .type = type};
    parse(gid, e->gid);
    snprintf(e->netdev, sizeof(e->netdev), "%s", netdev);
}

static void address(const char *netdev, const char *text, unsigned prefix, bool up)
{
    struct mct_gid_address *a = &addresses[naddresses++];

    cr_assert_leq(naddresses, MAX);
    *a = (struct mct_gid_address){.up = up, .prefix = (uint8_t)prefix};
    parse(text, a->gid);
    snprintf(a->netdev, sizeof(a->netdev), "%s", netdev);
}

static int choose(int wanted)
{
    return mct_gid_choose(table, nentries, false, addresses, naddresses, wanted, &choice);
}

/* The choice is this index, and the reason has these words. */
static void expect(int wanted, int index, const char *words)
{
    cr_assert_eq(choose(wanted), 0, "%s", choice.why);
    cr_assert_eq(choice.index, index, "%d: %s", choice.index, choice.why);
    cr_assert_not_null(strstr(choice.why, words), "\"%s\" lacks \"%s\"", choice.why, words);
}

static void begin(void)
{
    nentries = naddresses = 0;
}

TestSuite(rdma_gid, .init = begin);

Test(rdma_gid, ipv4_before_link_local)
{
    entry(0, "fe80::1", MCT_GID_ROCE_V2, "eth0");
    entry(1, "10.1.2.3", MCT_GID_ROCE_V2, "eth0");
    address("eth0", "fe80::1", 64, true);
    address("eth0", "10.1.2.3", 96 + 24, true);
    expect(-1, 1, "GID 1 (10.1.2.3, RoCE v2) of 2: IPv4, the address of eth0, which is up");
    cr_assert_eq(choice.prefix, 120);
    cr_assert_str_eq(choice.netdev, "eth0");
}

Test(rdma_gid, own_before_foreign)
{
    entry(3, "10.244.0.7", MCT_GID_ROCE_V2, "");
    entry(7, "10.1.2.3", MCT_GID_ROCE_V2, "eth0");
    address("eth0", "10.1.2.3", 96 + 16, true);
    expect(-1, 7, "which is up");
}

Test(rdma_gid, beyond_the_largest_index_of_an_address_vector)
{
    entry(255, "fe80::1", MCT_GID_ROCE_V2, "eth0");
    entry(256, "10.1.2.3", MCT_GID_ROCE_V2, "eth0");
    address("eth0", "fe80::1", 64, true);
    address("eth0", "10.1.2.3", 96 + 24, true);
    expect(-1, 255, "link-local");
    expect(255, 255, "as [rdma] gid_index says");
    cr_assert_eq(choose(256), -ENOENT);
}

Test(rdma_gid, own_without_interface_in_the_table)
{
    entry(3, "10.244.0.7", MCT_GID_ROCE_V2, "");
    entry(7, "10.1.2.3", MCT_GID_ROCE_V2, "");
    address("eth0", "10.1.2.3", 96 + 16, true);
    expect(-1, 7, "an address of eth0, which is up (the table names no interface)");
}

/* In a container the address that works may be one that only the host sees. */
Test(rdma_gid, foreign_when_there_is_nothing_else)
{
    entry(0, "fe80::1", MCT_GID_ROCE_V2, "");
    entry(3, "10.244.0.7", MCT_GID_ROCE_V2, "");
    expect(-1, 3, "no address of an interface that is seen here");
    cr_assert_eq(choice.prefix, 0, "of a network nothing is known");
}

Test(rdma_gid, unique_local_before_link_local)
{
    entry(0, "fe80::1", MCT_GID_ROCE_V2, "eth0");
    entry(1, "fd00:12::5", MCT_GID_ROCE_V2, "eth0");
    address("eth0", "fe80::1", 64, true);
    address("eth0", "fd00:12::5", 64, true);
    expect(-1, 1, "unique local IPv6");
    cr_assert_eq(choice.prefix, 64);
}

Test(rdma_gid, order_of_kinds)
{
    entry(0, "fe80::1", MCT_GID_ROCE_V2, "eth0");
    entry(1, "169.254.3.4", MCT_GID_ROCE_V2, "eth0");
    entry(2, "fd00:12::5", MCT_GID_ROCE_V2, "eth0");
    entry(3, "2001:db8::5", MCT_GID_ROCE_V2, "eth0");
    entry(4, "192.0.2.5", MCT_GID_ROCE_V2, "eth0");
    for (size_t i = 0; i < 5; i++) {
        addresses[i] = (struct mct_gid_address){.netdev = "eth0", .prefix = 64, .up = true};
        memcpy(addresses[i].gid, table[i].gid, 16);
    }
    naddresses = 5;
    for (int i = 4; i >= 0; i--, nentries--)
        expect(-1, i, "eth0");
    cr_assert_eq(choice.prefix, 0, "link-local networks are all called the same");
}

Test(rdma_gid, version_two_of_one_address)
{
    entry(2, "10.1.2.3", MCT_GID_ROCE_V1, "eth0");
    entry(3, "10.1.2.3", MCT_GID_ROCE_V2, "eth0");
    address("eth0", "10.1.2.3", 96 + 24, true);
    expect(-1, 3, "RoCE v2");
    nentries = 1;
    expect(-1, 2, "RoCE v1");
}

/* An address of an interface that is down is no better than one that works, whatever its kind. */
Test(rdma_gid, up_before_down)
{
    entry(0, "198.51.100.1", MCT_GID_ROCE_V2, "dummy0");
    entry(1, "2001:db8::5", MCT_GID_ROCE_V2, "eth0");
    address("dummy0", "198.51.100.1", 96 + 24, false);
    address("eth0", "2001:db8::5", 64, true);
    expect(-1, 1, "eth0");
    nentries = 1;
    expect(-1, 0, "the address of dummy0, which is down");
}

Test(rdma_gid, empty_table)
{
    cr_assert_eq(choose(-1), -ENOENT);
    cr_assert_eq(choice.index, -1);
    cr_assert_not_null(strstr(choice.why, "has no GID"), "%s", choice.why);
    cr_assert_eq(choose(0), -ENOENT);
    cr_assert_not_null(strstr(choice.why, "empty"), "%s", choice.why);
}

Test(rdma_gid, nothing_that_can_be_reached)
{
    entry(0, "127.0.0.1", MCT_GID_ROCE_V2, "lo");
    entry(1, "::1", MCT_GID_ROCE_V2, "lo");
    entry(2, "ff02::1", MCT_GID_ROCE_V2, "eth0");
    entry(3, "::", MCT_GID_ROCE_V2, "eth0");
    entry(4, "224.0.0.1", MCT_GID_ROCE_V2, "eth0");
    cr_assert_eq(choose(-1), -ENOENT);
    cr_assert_not_null(strstr(choice.why, "5 GIDs"), "%s", choice.why);
}

Test(rdma_gid, infiniband_takes_the_first)
{
    entry(0, "fe80::2:c903:1", MCT_GID_IB, "");
    entry(1, "fd00::2:c903:1", MCT_GID_IB, "");
    cr_assert_eq(mct_gid_choose(table, nentries, true, NULL, 0, -1, &choice), 0);
    cr_assert_eq(choice.index, 0, "%s", choice.why);
    cr_assert_eq(choice.prefix, 64, "the subnet's");
    cr_assert_eq(mct_gid_choose(table, nentries, true, NULL, 0, 1, &choice), 0);
    cr_assert_eq(choice.index, 1, "%s", choice.why);
    cr_assert_eq(mct_gid_choose(table, 0, true, NULL, 0, -1, &choice), -ENOENT);
    cr_assert_not_null(strstr(choice.why, "subnet manager"), "%s", choice.why);
}

Test(rdma_gid, explicit_index_wins)
{
    entry(0, "fe80::1", MCT_GID_ROCE_V1, "eth0");
    entry(1, "10.1.2.3", MCT_GID_ROCE_V2, "eth0");
    address("eth0", "10.1.2.3", 96 + 24, true);
    expect(0, 0, "as [rdma] gid_index says");
    expect(1, 1, "as [rdma] gid_index says");
}

Test(rdma_gid, explicit_index_that_is_not_there)
{
    entry(0, "fe80::1", MCT_GID_ROCE_V2, "eth0");
    entry(1, "10.1.2.3", MCT_GID_ROCE_V2, "eth0");
    cr_assert_eq(choose(9), -ENOENT);
    cr_assert_eq(choice.index, -1);
    cr_assert_not_null(strstr(choice.why, "GID index 9"), "%s", choice.why);
    cr_assert_not_null(strstr(choice.why, "gid_index = auto"), "%s", choice.why);
}
