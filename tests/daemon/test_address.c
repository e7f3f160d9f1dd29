/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <netinet/in.h>

#include "daemon/address.h"
#include "netns.h"

#define SA(s) ((const struct sockaddr *)&(s))

Test(address, good_ones_come_apart_and_print_back)
{
    static const struct {
        const char *text, *host;
        int port; /* -1: none */
        const char *printed;
    } good[] = {
        {"h", "h", -1, "h"},
        {"h:1", "h", 1, "h:1"},
        {"h:65535", "h", 65535, "h:65535"},
        {"host-1.rack_2.example:7474", "host-1.rack_2.example", 7474, "host-1.rack_2.example:7474"},
        {"192.0.2.1", "192.0.2.1", -1, "192.0.2.1"},
        {"192.0.2.1:9", "192.0.2.1", 9, "192.0.2.1:9"},
        {"0.0.0.0:9", "0.0.0.0", 9, "0.0.0.0:9"},
        {"::1", "::1", -1, "::1"},
        {"[::1]", "::1", -1, "::1"},
        {"[::1]:9", "::1", 9, "[::1]:9"},
        {"[::]:9", "::", 9, "[::]:9"},
        {"2001:db8::1", "2001:db8::1", -1, "2001:db8::1"},
        {"2001:db8::1:9", "2001:db8::1:9", -1, "2001:db8::1:9"},
        {"[fe80::1%lo]:9", "fe80::1%lo", 9, "[fe80::1%lo]:9"},
        {"fe80::1%lo", "fe80::1%lo", -1, "fe80::1%lo"},
        {"[::ffff:192.0.2.1]:9", "::ffff:192.0.2.1", 9, "[::ffff:192.0.2.1]:9"},
    };

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct mcd_address a, b;
        char text[MCD_ADDRESS_TEXT_MAX];

        cr_assert_eq(mcd_address_parse(good[i].text, false, &a), 0, "%s", good[i].text);
        cr_expect_str_eq(a.host, good[i].host, "%s", good[i].text);
        cr_expect_eq(a.has_port, good[i].port >= 0, "%s", good[i].text);
        cr_expect_eq(a.port, good[i].port >= 0 ? good[i].port : 0, "%s", good[i].text);
        mcd_address_print(&a, text, sizeof(text));
        cr_expect_str_eq(text, good[i].printed, "%s", good[i].text);
        cr_assert_eq(mcd_address_parse(text, false, &b), 0, "%s", text);
        cr_expect(strcmp(a.host, b.host) == 0 && a.port == b.port && a.has_port == b.has_port, "%s",
                  text);
    }
}

Test(address, bad_ones_are_refused)
{
    static const char *const bad[] = {"",
                                      ":9",
                                      "h:",
                                      "h:0",
                                      "h:65536",
                                      "h:99999",
                                      "[::1",
                                      "h:9x",
                                      "h:-1",
                                      "h:+1",
                                      "h: 1",
                                      "h:1:",
                                      "h:000001",
                                      "[::1]9",
                                      "[::1]:",
                                      "[::1]:0",
                                      "[::1]]:9",
                                      "[]:9",
                                      "[h]:9",
                                      "[192.0.2.1]:9",
                                      "a:b:c",
                                      "::1%",
                                      "[::1%]:9",
                                      "1:2:3",
                                      " h",
                                      "h ",
                                      "h\n:1",
                                      "h/x:1",
                                      "user@h:1",
                                      "h%lo:9",
                                      "192.0.2.256",
                                      "192.0.2:9",
                                      "127.1:9",
                                      "7:9",
                                      "[::1%a/b]:9",
                                      "::g",
                                      "[fe80::1%abcdefghijklmnopq]:9",
                                      "\303\244:1",
                                      "*:9"};
    struct mcd_address a;
    char longest[400];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_expect_eq(mcd_address_parse(bad[i], false, &a), -EINVAL, "'%s'", bad[i]);
    cr_expect_eq(mcd_address_parse("::", false, &a), 0);
    cr_expect_eq(mcd_address_parse("h:0", true, &a), 0);
    cr_expect(a.has_port && a.port == 0);
    cr_expect_eq(mcd_address_parse("[::1]:0", true, &a), 0);
    memset(longest, 'a', sizeof(longest));
    longest[255] = 0;
    cr_expect_eq(mcd_address_parse(longest, false, &a), 0);
    longest[255] = 'a';
    longest[256] = 0;
    cr_expect_eq(mcd_address_parse(longest, false, &a), -EINVAL);
}

static struct sockaddr_storage numeric(const char *text)
{
    struct sockaddr_storage s;
    struct mcd_address a;
    socklen_t size;

    cr_assert_eq(mcd_address_parse(text, true, &a), 0, "%s", text);
    cr_assert_eq(mcd_address_numeric(&a, &s, &size), 0, "%s", text);
    cr_expect_eq(size, mcd_sockaddr_size(SA(s)));
    return s;
}

Test(address, numeric_ones_need_no_resolver)
{
    struct sockaddr_storage s = numeric("192.0.2.1:9");
    struct mcd_address a;
    socklen_t size;
    char text[80];

    cr_expect_eq(s.ss_family, AF_INET);
    cr_expect_eq(mcd_sockaddr_port(SA(s)), 9);
    mcd_sockaddr_print(SA(s), text, sizeof(text));
    cr_expect_str_eq(text, "192.0.2.1:9");
    s = numeric("[2001:db8::1]:9");
    cr_expect_eq(s.ss_family, AF_INET6);
    mcd_sockaddr_print(SA(s), text, sizeof(text));
    cr_expect_str_eq(text, "[2001:db8::1]:9");
    mcd_sockaddr_set_port((struct sockaddr *)&s, 0);
    mcd_sockaddr_print(SA(s), text, sizeof(text));
    cr_expect_str_eq(text, "2001:db8::1");
    /* one address has one form */
    s = numeric("[::ffff:192.0.2.1]:9");
    cr_expect_eq(s.ss_family, AF_INET);
    mcd_sockaddr_print(SA(s), text, sizeof(text));
    cr_expect_str_eq(text, "192.0.2.1:9");
    s = numeric("[fe80::1%1]:9");
    cr_expect_eq(((struct sockaddr_in6 *)&s)->sin6_scope_id, 1u);
    cr_assert_eq(mcd_address_parse("host:9", false, &a), 0);
    cr_expect_eq(mcd_address_numeric(&a, &s, &size), -EINVAL);
    cr_assert_eq(mcd_address_parse("[fe80::1%nosuchlink]:9", false, &a), 0);
    cr_expect_eq(mcd_address_numeric(&a, &s, &size), -ENODEV);
}

Test(address, a_mapped_peer_is_its_ipv4_self)
{
    struct sockaddr_in6 mapped = {.sin6_family = AF_INET6, .sin6_port = htons(9)};
    struct sockaddr_storage s;
    char text[80];

    cr_assert_eq(inet_pton(AF_INET6, "::ffff:192.0.2.1", &mapped.sin6_addr), 1);
    mcd_sockaddr_print(SA(mapped), text, sizeof(text));
    cr_expect_str_eq(text, "192.0.2.1:9");
    s = numeric("192.0.2.1:77");
    cr_expect(mcd_sockaddr_same_host(SA(mapped), SA(s)));
    cr_expect_not(mcd_sockaddr_is_loopback(SA(mapped)));
    cr_assert_eq(inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr), 1);
    cr_expect(mcd_sockaddr_is_loopback(SA(mapped)));
}

Test(address, loopback_wildcard_and_networks)
{
    struct sockaddr_storage a, b;

    a = numeric("127.3.2.1");
    cr_expect(mcd_sockaddr_is_loopback(SA(a)));
    a = numeric("::1");
    cr_expect(mcd_sockaddr_is_loopback(SA(a)) && !mcd_sockaddr_is_wildcard(SA(a)));
    a = numeric("128.0.0.1");
    cr_expect_not(mcd_sockaddr_is_loopback(SA(a)));
    a = numeric("0.0.0.0");
    cr_expect(mcd_sockaddr_is_wildcard(SA(a)));
    a = numeric("::");
    cr_expect(mcd_sockaddr_is_wildcard(SA(a)));
    a = numeric("10.1.2.3");
    b = numeric("10.1.3.200");
    cr_expect_not(mcd_sockaddr_is_wildcard(SA(a)));
    cr_expect(mcd_sockaddr_same_network(SA(a), SA(b), 16));
    cr_expect(mcd_sockaddr_same_network(SA(a), SA(b), 23));
    cr_expect_not(mcd_sockaddr_same_network(SA(a), SA(b), 24));
    cr_expect_not(mcd_sockaddr_same_host(SA(a), SA(b)));
    cr_expect(mcd_sockaddr_same_network(SA(a), SA(b), 0));
    b = numeric("10.1.2.3:5");
    cr_expect(mcd_sockaddr_same_host(SA(a), SA(b)));
    b = numeric("2001:db8::1");
    cr_expect_not(mcd_sockaddr_same_network(SA(a), SA(b), 0));
    a = numeric("2001:db8::8000:1");
    cr_expect(mcd_sockaddr_same_network(SA(a), SA(b), 64));
    cr_expect_not(mcd_sockaddr_same_network(SA(a), SA(b), 97));
    a = numeric("fe80::1%1");
    b = numeric("fe80::1%2");
    cr_expect_not(mcd_sockaddr_same_host(SA(a), SA(b)));
}

Test(address, names_are_resolved)
{
    struct sockaddr_storage found[8];
    struct mcd_address a;
    size_t n = 99;

    cr_assert_eq(mcd_address_parse("localhost:4711", false, &a), 0);
    cr_assert_eq(mcd_address_resolve(&a, found, 8, &n), 0);
    cr_assert(n >= 1 && n <= 8);
    for (size_t i = 0; i < n; i++) {
        cr_expect(mcd_sockaddr_is_loopback(SA(found[i])));
        cr_expect_eq(mcd_sockaddr_port(SA(found[i])), 4711);
    }
    cr_assert_eq(mcd_address_resolve(&a, found, 1, &n), 0);
    cr_expect_eq(n, 1u);
    cr_assert_eq(mcd_address_parse("[2001:db8::1]:4711", false, &a), 0);
    cr_assert_eq(mcd_address_resolve(&a, found, 8, &n), 0);
    cr_expect_eq(n, 1u);
}

static int place_of(const struct mcd_local_address *all, size_t n, const char *text)
{
    char printed[80];

    for (size_t i = 0; i < n; i++) {
        mcd_sockaddr_print(SA(all[i].address), printed, sizeof(printed));
        if (strcmp(printed, text) == 0)
            return (int)i;
    }
    return -1;
}

Test(address, the_best_address_for_publication_comes_first)
{
    struct mcd_local_address all[16];
    bool have_v6;
    size_t n;
    int res;

    NETNS_ENTER();
    /* the first one is down, the second a bridge for containers, the third one is it */
    res = netns_link("aaa0", "veth", "aaa1");
    if (res != 0)
        cr_skip_test("no veth here: %s", strerror(-res));
    cr_assert_eq(netns_address("aaa0", "198.51.100.1", 24, true), 0);
    cr_assert_eq(netns_link("docker0", "veth", "container0"), 0);
    cr_assert_eq(netns_address("docker0", "172.17.0.1", 16, true), 0);
    cr_assert_eq(netns_link("eth0", "veth", "eth1"), 0);
    have_v6 = netns_address("eth0", "2001:db8::5", 64, true) == 0;
    cr_assert_eq(netns_address("eth0", "203.0.113.5", 27, true), 0);
    cr_assert_eq(netns_address("eth0", "169.254.7.7", 16, true), 0);
    cr_assert_eq(netns_set("docker0", true), 0);
    cr_assert_eq(netns_set("container0", true), 0);
    cr_assert_eq(netns_set("eth0", true), 0);
    cr_assert_eq(netns_set("eth1", true), 0);
    cr_assert_eq(netns_set("lo", true), 0);
    cr_assert(netns_await_running("docker0") && netns_await_running("eth0"));

    cr_assert_eq(mcd_local_addresses(all, 16, &n), 0);
    cr_expect_eq(place_of(all, n, "203.0.113.5"), 0);
    cr_expect_eq(all[0].prefix, 27u);
    cr_expect_eq(all[0].ifindex, if_nametoindex("eth0"));
    cr_expect_str_eq(all[0].interface, "eth0");
    cr_expect(all[0].up && !all[0].loopback && !all[0].bridge);
    if (have_v6)
        cr_expect_eq(place_of(all, n, "2001:db8::5"), 1);
    res = place_of(all, n, "172.17.0.1");
    cr_assert_gt(res, 0);
    cr_expect(all[res].bridge && all[res].up);
    cr_expect_gt(place_of(all, n, "127.0.0.1"), res);
    res = place_of(all, n, "198.51.100.1");
    cr_expect_eq(res, (int)n - 1);
    cr_expect_not(all[res].up);
    cr_expect_eq(place_of(all, n, "169.254.7.7"), -1);
    for (size_t i = 0; i < n; i++)
        cr_expect(all[i].address.ss_family != AF_INET6 ||
                  !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)&all[i].address)->sin6_addr));
    /* with little room the best ones stay */
    cr_assert_eq(mcd_local_addresses(all, 1, &n), 0);
    cr_expect_eq(n, 1u);
    cr_expect_eq(place_of(all, n, "203.0.113.5"), 0);
    /* switched off: now the bridge is better */
    cr_assert_eq(netns_set("eth0", false), 0);
    cr_assert_eq(mcd_local_addresses(all, 16, &n), 0);
    cr_expect_eq(place_of(all, n, "172.17.0.1"), 0);
}

Test(address, a_bridge_is_known_under_any_name)
{
    struct mcd_local_address all[16];
    size_t n;
    int res, at;

    NETNS_ENTER();
    res = netns_link("uplink", "bridge", NULL);
    if (res != 0)
        cr_skip_test("no bridge here: %s", strerror(-res));
    cr_assert_eq(netns_address("uplink", "192.0.2.77", 24, true), 0);
    cr_assert_eq(mcd_local_addresses(all, 16, &n), 0);
    at = place_of(all, n, "192.0.2.77");
    cr_assert_geq(at, 0);
    cr_expect(all[at].bridge);
}
