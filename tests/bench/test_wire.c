/* SPDX-License-Identifier: Apache-2.0 */
/* Which RDMA devices make two hosts, read from trees like /sys. */
#include "bench/say.c"
#include "bench/wire.c"

#include <criterion/criterion.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static void prepare(void)
{
    strcpy(root, "/tmp/mcshm-wire-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static int take(const char *path, const struct stat *s, int kind, struct FTW *f)
{
    (void)s, (void)kind, (void)f;
    return remove(path);
}

static void clean_up(void)
{
    nftw(root, take, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(wire, .init = prepare, .fini = clean_up);

/* A line in a file below root, and the folders on its way. */
static void put(const char *path, const char *line)
{
    char full[PATH_MAX];
    FILE *f;

    snprintf(full, sizeof(full), "%s/class/infiniband/%s", root, path);
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(full, 0700);
        *at = '/';
    }
    f = fopen(full, "w");
    cr_assert_not_null(f, "%s", full);
    fprintf(f, "%s\n", line);
    fclose(f);
}

static void device(const char *name, unsigned last, const char *netdev)
{
    char path[128], gid[64];

    snprintf(path, sizeof(path), "%s/ports/1/gids/0", name);
    put(path, "fe80:0000:0000:0000:0000:00ff:fe00:0001");
    snprintf(path, sizeof(path), "%s/ports/1/gids/1", name);
    snprintf(gid, sizeof(gid), "0000:0000:0000:0000:0000:ffff:c000:02%02x", last);
    put(path, gid);
    snprintf(path, sizeof(path), "%s/ports/1/gid_attrs/types/1", name);
    put(path, "RoCE v2");
    snprintf(path, sizeof(path), "%s/ports/1/gid_attrs/ndevs/1", name);
    put(path, netdev);
}

static int find(struct wire_options *o, struct hosts_end ends[HOSTS][HOSTS_RAILS_MAX],
                unsigned *rails)
{
    return wire_find(o, root, ends, rails);
}

Test(wire, names_that_differ_in_a_and_b_are_a_rail)
{
    struct hosts_end ends[HOSTS][HOSTS_RAILS_MAX] = {0};
    struct wire_options o = {.rdma = true};
    unsigned rails = 0;

    device("rxeb1", 22, "b1");
    device("rxea1", 21, "a1");
    device("rxea0", 1, "a0");
    device("rxeb0", 2, "b0");
    device("mlx5_0", 9, "eth0");
    cr_assert_eq(find(&o, ends, &rails), 0);
    cr_assert_eq(rails, 2);
    cr_assert_str_eq(ends[0][0].device, "rxea0");
    cr_assert_str_eq(ends[1][0].device, "rxeb0");
    cr_assert_str_eq(ends[0][1].device, "rxea1");
    cr_assert_str_eq(ends[1][1].device, "rxeb1");
    cr_assert_str_eq(ends[0][0].address, "192.0.2.1");
    cr_assert_str_eq(ends[1][1].address, "192.0.2.22");
    cr_assert_str_eq(ends[1][1].link, "b1");
    cr_assert_eq(ends[0][0].gid_index, 1);
}

Test(wire, else_each_host_has_half_of_them_in_order_of_numbers)
{
    struct hosts_end ends[HOSTS][HOSTS_RAILS_MAX] = {0};
    struct wire_options o = {.rdma = true, .address = {NULL, "198.51.100.7"}};
    unsigned rails = 0;

    device("mlx5_10", 4, "eth10");
    device("mlx5_2", 3, "eth2");
    device("mlx5_1", 2, "eth1");
    device("mlx5_0", 1, "eth0");
    cr_assert_eq(find(&o, ends, &rails), 0);
    cr_assert_eq(rails, 2);
    cr_assert_str_eq(ends[0][1].device, "mlx5_1");
    cr_assert_str_eq(ends[1][0].device, "mlx5_2");
    cr_assert_str_eq(ends[1][1].device, "mlx5_10");
    cr_assert_str_eq(ends[1][0].address, "198.51.100.7");
    cr_assert_str_eq(ends[1][1].address, "192.0.2.4");
}

Test(wire, what_is_told_goes_before_what_is_found)
{
    struct hosts_end ends[HOSTS][HOSTS_RAILS_MAX] = {0};
    struct wire_options o = {.devices = {"mlx5_1", "mlx5_0"}};
    unsigned rails = 0;

    device("mlx5_0", 1, "eth0");
    device("mlx5_1", 2, "eth1");
    cr_assert_eq(find(&o, ends, &rails), 0);
    cr_assert_eq(rails, 1);
    cr_assert_str_eq(ends[0][0].device, "mlx5_1");
    o.devices[1] = "mlx5_0,mlx5_2";
    cr_assert_eq(find(&o, ends, &rails), -ENODEV);
    o.devices[1] = NULL;
    cr_assert_eq(find(&o, ends, &rails), -EINVAL);
    o.devices[1] = ",";
    cr_assert_eq(find(&o, ends, &rails), -EINVAL);
    o.devices[1] = "mlx5_7";
    cr_assert_eq(find(&o, ends, &rails), -ENODEV);
}

Test(wire, nothing_one_device_and_none_with_an_address)
{
    struct hosts_end ends[HOSTS][HOSTS_RAILS_MAX] = {0};
    struct wire_options o = {.rdma = true};
    unsigned rails = 0;

    cr_assert_eq(find(&o, ends, &rails), -ENODEV);
    device("mlx5_0", 1, "eth0");
    cr_assert_eq(find(&o, ends, &rails), -ENODEV);
    put("mlx5_1/ports/1/gids/0", "fe80:0000:0000:0000:0000:00ff:fe00:0002");
    cr_assert_eq(find(&o, ends, &rails), -ENODEV);
    put("mlx5_1/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:c000:0205");
    put("mlx5_1/ports/1/gid_attrs/types/1", "IB/RoCE v1");
    cr_assert_eq(find(&o, ends, &rails), -ENODEV);
    put("mlx5_1/ports/1/gid_attrs/types/1", "RoCE v2");
    put("mlx5_1/parent", "eth1"); /* no gid_attrs/ndevs: a software device */
    cr_assert_eq(find(&o, ends, &rails), 0);
    cr_assert_str_eq(ends[1][0].link, "eth1");
    cr_assert_str_eq(ends[1][0].address, "192.0.2.5");
}
