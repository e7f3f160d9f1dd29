/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/net_options.c"
#include "bench/options.c"
#include "bench/say.c"
#include "bench/wire.c"

#include <criterion/criterion.h>

static int parse(struct net_options *o, char *a, char *b)
{
    char *argv[] = {"net", a, b, NULL};

    optind = 0; /* getopt starts anew */
    return net_options_parse(b != NULL ? 3 : a != NULL ? 2 : 1, argv, o);
}

Test(net_options, defaults)
{
    struct net_options o;

    cr_assert_eq(parse(&o, NULL, NULL), 0);
    cr_assert_eq(o.sizes.count, 5);
    cr_assert_eq(o.sizes.value[0], 4096);
    cr_assert_eq(o.sizes.value[4], 64u << 20);
    cr_assert_eq(o.batches.value[2], 128);
    cr_assert_eq(o.rails.value[1], 4);
    cr_assert_eq(o.checksums.count, 1);
    cr_assert_eq(o.checksums.value[0], 1);
    cr_assert_str_eq(o.congestion, "reno");
    cr_assert(o.read && o.write && o.failover && o.rivals && !o.busy);
    cr_assert_eq(o.idle_peers, 0);
}

Test(net_options, lists)
{
    struct net_list list;

    cr_assert_eq(net_options_list("sizes", "4K,1M", 64, 1u << 30, &list), 0);
    cr_assert_eq(list.count, 2);
    cr_assert_eq(list.value[0], 4096);
    cr_assert_eq(list.value[1], 1u << 20);
    cr_assert_eq(net_options_list("sizes", "", 64, 1u << 30, &list), -EINVAL);
    cr_assert_eq(net_options_list("sizes", "4K,,1M", 64, 1u << 30, &list), -EINVAL);
    cr_assert_eq(net_options_list("sizes", "4Kx", 64, 1u << 30, &list), -EINVAL);
    cr_assert_eq(net_options_list("sizes", "-1", 64, 1u << 30, &list), -EINVAL);
    cr_assert_eq(net_options_list("sizes", "63", 64, 1u << 30, &list), -EINVAL);
    cr_assert_eq(net_options_list("rails", "1,9", 1, 8, &list), -EINVAL);
    cr_assert_eq(net_options_list("rails", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", 1, 8, &list), 0);
    cr_assert_eq(net_options_list("rails", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", 1, 8, &list),
                 -EINVAL);
}

Test(net_options, rdma_has_defaults_of_its_own)
{
    struct net_options o;

    cr_assert_eq(parse(&o, "--transport", "tcp"), 0);
    cr_assert(!o.wire.rdma && !wire_asked(&o.wire));
    cr_assert_eq(parse(&o, "--transport=rdma", NULL), 0);
    cr_assert(o.wire.rdma && wire_asked(&o.wire));
    cr_assert_eq(o.batches.count, 0);
    cr_assert_eq(o.rails.value[1], 2);
    cr_assert_eq(o.sizes.value[0], 64u << 10);
    cr_assert_eq(parse(&o, "--transport=rdma", "--sizes=1M"), 0);
    cr_assert_eq(o.sizes.count, 1);
    cr_assert_eq(o.sizes.value[0], 1u << 20);
    cr_assert_eq(parse(&o, "--address-b=192.0.2.2", NULL), 0);
    cr_assert(wire_asked(&o.wire));
    cr_assert_eq(parse(&o, "--transport=ib", NULL), -EINVAL);
    cr_assert_eq(parse(&o, "--transport=rdma", "--peer=192.0.2.2:1/x"), -EINVAL);
}

Test(net_options, words)
{
    struct net_options o;

    cr_assert_eq(parse(&o, "--checksum", "both"), 0);
    cr_assert_eq(o.checksums.count, 2);
    cr_assert_eq(o.checksums.value[1], 0);
    cr_assert_eq(parse(&o, "--checksum", "off"), 0);
    cr_assert_eq(o.checksums.count, 1);
    cr_assert_eq(o.checksums.value[0], 0);
    cr_assert_eq(parse(&o, "--checksum", "maybe"), -EINVAL);
    cr_assert_eq(parse(&o, "--op", "read"), 0);
    cr_assert(o.read && !o.write);
    cr_assert_eq(parse(&o, "--op", "copy"), -EINVAL);
    cr_assert_eq(parse(&o, "--idle", "never"), -EINVAL);
    cr_assert_eq(parse(&o, "--sizes", "100"), -EINVAL);
    cr_assert_eq(parse(&o, "--idle-peers", "1"), -EINVAL);
    cr_assert_eq(parse(&o, "--bytes", "4K"), -EINVAL);
    cr_assert_eq(parse(&o, "--socket", "/x"), -EINVAL);
    cr_assert_eq(parse(&o, "surplus", NULL), -EINVAL);
}

Test(net_options, settings_become_lines_of_an_ini_file)
{
    char lines[64] = "";

    cr_assert_eq(options_setting("tcp.window=16M", lines, sizeof(lines)), 0);
    cr_assert_eq(options_setting("engine.spin_us=0", lines, sizeof(lines)), 0);
    cr_assert_str_eq(lines, "[tcp]\nwindow = 16M\n[engine]\nspin_us = 0\n");
    cr_assert_eq(options_setting("engine.spin_us=1000000000", lines, sizeof(lines)), -EINVAL);
    lines[0] = '\0';
    cr_assert_eq(options_setting("window=16M", lines, sizeof(lines)), -EINVAL);
    cr_assert_eq(options_setting(".window=16M", lines, sizeof(lines)), -EINVAL);
    cr_assert_eq(options_setting("tcp.=16M", lines, sizeof(lines)), -EINVAL);
    cr_assert_eq(options_setting("tcp.window", lines, sizeof(lines)), -EINVAL);
    cr_assert_eq(options_setting("tcp.window=1\n[pool]", lines, sizeof(lines)), -EINVAL);
}
