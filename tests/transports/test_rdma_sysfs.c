/* SPDX-License-Identifier: Apache-2.0 */
/* What is read from sysfs, on trees of made-up files. */
#include "transports/rdma/sysfs.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static int drop(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void begin(void)
{
    snprintf(root, sizeof(root), "/tmp/mcshm-sysfs-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void end(void)
{
    nftw(root, drop, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(rdma_sysfs, .init = begin, .fini = end);

static void folders(char *full)
{
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(full, 0755);
        *p = '/';
    }
}

static void put(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    snprintf(full, sizeof(full), "%s/%s", root, path);
    folders(full);
    f = fopen(full, "w");
    cr_assert_not_null(f, "%s", full);
    fputs(text, f);
    fclose(f);
}

static void point(const char *path, const char *target)
{
    char full[512], at[512];

    snprintf(full, sizeof(full), "%s/%s", root, path);
    snprintf(at, sizeof(at), "%s/%s", root, target);
    folders(full);
    cr_assert_eq(symlink(at, full), 0, "%s", full);
}

static void gid(unsigned index, const char *text, const char *type, const char *netdev)
{
    char path[128];

    snprintf(path, sizeof(path), "class/infiniband/mlx5_0/ports/1/gids/%u", index);
    put(path, text);
    snprintf(path, sizeof(path), "class/infiniband/mlx5_0/ports/1/gid_attrs/types/%u", index);
    if (type != NULL)
        put(path, type);
    snprintf(path, sizeof(path), "class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/%u", index);
    if (netdev != NULL)
        put(path, netdev);
}

#define PORT "class/infiniband/mlx5_0/ports/1/"
#define BRIDGE "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"

/* A card with one port behind a PCIe switch. */
static void card(void)
{
    put(BRIDGE "/0000:3c:00.0/0000:3d:00.0/numa_node", "1\n");
    point("bus/pci/devices/0000:3d:00.0", BRIDGE "/0000:3c:00.0/0000:3d:00.0");
    point("class/infiniband/mlx5_0/device", BRIDGE "/0000:3c:00.0/0000:3d:00.0");
    put("class/infiniband/mlx5_0/fw_ver", "22.31.1014\n");
    put("class/infiniband/mlx5_0/board_id", "MT_0000000359\n");
    put("class/infiniband_verbs/abi_version", "6\n");
    put("class/infiniband_verbs/uverbs0/ibdev", "mlx4_0\n");
    put("class/infiniband_verbs/uverbs1/ibdev", "mlx5_0\n");
    put(PORT "state", "4: ACTIVE\n");
    put(PORT "phys_state", "5: LinkUp\n");
    put(PORT "link_layer", "Ethernet\n");
    put(PORT "rate", "100 Gb/sec (4X EDR)\n");
    put(PORT "lid", "0x0\n");
    put("class/net/eth4/mtu", "9000\n");
    put("class/net/eth4/operstate", "up\n");
}

Test(rdma_sysfs, rates)
{
    cr_assert_eq(mct_sysfs_rate("100 Gb/sec (4X EDR)"), UINT64_C(100000000000));
    cr_assert_eq(mct_sysfs_rate("2.5 Gb/sec (1X SDR)\n"), UINT64_C(2500000000));
    cr_assert_eq(mct_sysfs_rate("56 Gb/sec (4X FDR)"), UINT64_C(56000000000));
    cr_assert_eq(mct_sysfs_rate("800 Gb/sec (8X HDR)"), UINT64_C(800000000000));
    cr_assert_eq(mct_sysfs_rate(""), 0);
    cr_assert_eq(mct_sysfs_rate("fast"), 0);
    cr_assert_eq(mct_sysfs_rate("100"), 0);
    cr_assert_eq(mct_sysfs_rate("-1 Gb/sec"), 0);
    cr_assert_eq(mct_sysfs_rate("99999999999999999999 Gb/sec"), 0);
    cr_assert_eq(mct_sysfs_rate("2.500000000000000000000 Gb/sec"), UINT64_C(2500000000));
}

Test(rdma_sysfs, a_card)
{
    struct mct_sysfs_device d;
    struct mct_sysfs_port p;

    card();
    gid(0, "fe80:0000:0000:0000:0000:0000:0000:0001\n", "RoCE v2\n", "eth4\n");
    cr_assert_eq(mct_sysfs_device(root, "mlx5_0", &d), 0);
    cr_assert_str_eq(d.pci, "0000:3d:00.0");
    cr_assert_str_eq(d.uverbs, "uverbs1");
    cr_assert_str_eq(d.firmware, "22.31.1014");
    cr_assert_str_eq(d.board, "MT_0000000359");
    cr_assert_str_eq(d.netdev, "", "only software RDMA has a parent");
    cr_assert_eq(d.node, 1);
    cr_assert_eq(d.nports, 1);
    cr_assert_eq(d.ports[0], 1);
    cr_assert_eq(mct_sysfs_port(root, "mlx5_0", 1, &p), 0);
    cr_assert_str_eq(p.state, "ACTIVE");
    cr_assert_str_eq(p.phys_state, "LinkUp");
    cr_assert_not(p.infiniband);
    cr_assert_eq(p.rate, UINT64_C(100000000000));
    cr_assert_str_eq(p.netdev, "eth4");
    cr_assert_eq(p.netdev_mtu, 9000);
    cr_assert_str_eq(p.netdev_state, "up");
    cr_assert_eq(mct_sysfs_port(root, "mlx5_0", 2, &p), -ENODEV);
}

Test(rdma_sysfs, infiniband)
{
    struct mct_sysfs_port p;
    struct mct_gid_entry e[4];

    card();
    put(PORT "link_layer", "InfiniBand\n");
    put(PORT "lid", "0x1f\n");
    put(PORT "state", "2: INIT\n");
    gid(0, "fe80:0000:0000:0000:0002:c903:0000:0001\n", "IB/RoCE v1\n", NULL);
    cr_assert_eq(mct_sysfs_port(root, "mlx5_0", 1, &p), 0);
    cr_assert(p.infiniband);
    cr_assert_eq(p.lid, 0x1f);
    cr_assert_str_eq(p.state, "INIT");
    cr_assert_eq(mct_sysfs_gids(root, "mlx5_0", 1, e, 4), 1);
    cr_assert_eq(e[0].type, MCT_GID_IB);
}

/* The interface of a port: the one of the card's interfaces that has the port's number. */
Test(rdma_sysfs, interface_of_a_second_port)
{
    struct mct_sysfs_port p;

    card();
    put("class/infiniband/mlx5_0/ports/2/state", "1: DOWN\n");
    put("class/net/eth4/dev_port", "0\n");
    put("class/net/eth5/dev_port", "1\n");
    put("class/net/eth5/operstate", "down\n");
    put(BRIDGE "/0000:3c:00.0/0000:3d:00.0/net/eth4/mtu", "9000\n");
    put(BRIDGE "/0000:3c:00.0/0000:3d:00.0/net/eth5/mtu", "1500\n");
    cr_assert_eq(mct_sysfs_port(root, "mlx5_0", 2, &p), 0);
    cr_assert_str_eq(p.netdev, "eth5");
    cr_assert_str_eq(p.netdev_state, "down");
    cr_assert_str_eq(p.state, "DOWN");
    cr_assert_eq(p.rate, 0);
}

/* Soft RoCE has no `device`: its parent's counts. */
Test(rdma_sysfs, software)
{
    struct mct_sysfs_device d;
    struct mct_sysfs_port p;

    put("class/infiniband/rxe0/parent", "eth0\n");
    put("class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
    put("devices/pci0000:00/0000:00:03.0/virtio0/type", "x\n");
    put("devices/pci0000:00/0000:00:03.0/numa_node", "0\n");
    point("class/net/eth0/device", "devices/pci0000:00/0000:00:03.0");
    put("class/net/eth0/mtu", "1500\n");
    cr_assert_eq(mct_sysfs_device(root, "rxe0", &d), 0);
    cr_assert_str_eq(d.netdev, "eth0");
    cr_assert_str_eq(d.pci, "0000:00:03.0");
    cr_assert_eq(d.node, 0);
    cr_assert_eq(mct_sysfs_port(root, "rxe0", 1, &p), 0);
    cr_assert_str_eq(p.netdev, "eth0");
    cr_assert_eq(p.netdev_mtu, 1500);
}

Test(rdma_sysfs, nothing_is_there)
{
    char names[4][MCT_SYSFS_NAME_MAX];
    struct mct_sysfs_device d;
    struct mct_sysfs_port p;
    struct mct_gid_entry e[4];
    struct mct_gid_choice c;

    cr_assert_eq(mct_sysfs_devices(root, names, 4), 0);
    cr_assert_eq(mct_sysfs_device(root, "mlx5_0", &d), -ENODEV);
    cr_assert_eq(mct_sysfs_port(root, "mlx5_0", 1, &p), -ENODEV);
    cr_assert_eq(mct_sysfs_gids(root, "mlx5_0", 1, e, 4), 0);
    cr_assert_eq(mct_sysfs_choose_gid(root, "mlx5_0", 1, false, -1, &c), -ENOENT);
    cr_assert_eq(c.index, -1);
    cr_assert_neq(c.why[0], '\0');
}

Test(rdma_sysfs, names_lead_nowhere_else)
{
    struct mct_sysfs_device d;

    put("class/secret/ports/1/state", "4: ACTIVE\n");
    put("class/infiniband/x/fw_ver", "1\n");
    cr_assert_eq(mct_sysfs_device(root, "../secret", &d), -ENODEV);
    cr_assert_eq(mct_sysfs_device(root, "", &d), -ENODEV);
    cr_assert_eq(mct_sysfs_device(root, ".", &d), -ENODEV);
    put("class/infiniband/rxe0/parent", "../../class/secret\n");
    cr_assert_eq(mct_sysfs_device(root, "rxe0", &d), 0);
    cr_assert_str_eq(d.pci, "");
    cr_assert_eq(d.node, -1);
}

Test(rdma_sysfs, devices_in_order)
{
    char names[4][MCT_SYSFS_NAME_MAX];

    put("class/infiniband/mlx5_10/fw_ver", "1\n");
    put("class/infiniband/mlx5_2/fw_ver", "1\n");
    put("class/infiniband/mlx5_0/fw_ver", "1\n");
    cr_assert_eq(mct_sysfs_devices(root, names, 4), 3);
    cr_assert_str_eq(names[0], "mlx5_0");
    cr_assert_str_eq(names[1], "mlx5_2");
    cr_assert_str_eq(names[2], "mlx5_10");
    cr_assert_eq(mct_sysfs_devices(root, names, 2), 2);
}

Test(rdma_sysfs, a_table_with_holes)
{
    struct mct_gid_entry e[8];
    struct mct_gid_choice c;

    card();
    gid(0, "fe80:0000:0000:0000:0000:0000:0000:0001\n", "IB/RoCE v1\n", "eth4\n");
    gid(1, "fe80:0000:0000:0000:0000:0000:0000:0001\n", "RoCE v2\n", "eth4\n");
    gid(2, "0000:0000:0000:0000:0000:0000:0000:0000\n", NULL, NULL);
    gid(3, "0000:0000:0000:0000:0000:ffff:0a01:0203\n", "RoCE v2\n", NULL);
    gid(4, "what is this?\n", "RoCE v2\n", "eth4\n");
    /* the kernel answers EINVAL for one that has gone; so does a folder, as EISDIR */
    put(PORT "gids/5/x", "");
    gid(6, "fd00:0000:0000:0000:0000:0000:0000:0001\n", "RoCE v2\n", "eth4.7\n");
    cr_assert_eq(mct_sysfs_gids(root, "mlx5_0", 1, e, 8), 4);
    cr_assert_eq(e[0].index, 0);
    cr_assert_eq(e[0].type, MCT_GID_ROCE_V1);
    cr_assert_eq(e[1].index, 1);
    cr_assert_eq(e[1].type, MCT_GID_ROCE_V2);
    cr_assert_str_eq(e[1].netdev, "eth4");
    cr_assert_eq(e[2].index, 3);
    cr_assert_eq(e[2].gid[12], 10);
    cr_assert_eq(e[2].gid[15], 3);
    cr_assert_str_eq(e[2].netdev, "");
    cr_assert_eq(e[3].index, 6);
    cr_assert_str_eq(e[3].netdev, "eth4.7");
    cr_assert_eq(mct_sysfs_gids(root, "mlx5_0", 1, e, 2), 2, "no more than there is room for");
    cr_assert_eq(mct_sysfs_choose_gid(root, "mlx5_0", 1, false, -1, &c), 0);
    cr_assert_eq(c.index, 3, "%s", c.why);
    cr_assert_eq(mct_sysfs_choose_gid(root, "mlx5_0", 1, false, 0, &c), 0);
    cr_assert_eq(c.index, 0, "%s", c.why);
    cr_assert_eq(mct_sysfs_choose_gid(root, "mlx5_0", 1, false, 2, &c), -ENOENT);
}

static void device(const char *pci, const char *path, const char *node)
{
    char file[256], link[128];

    snprintf(file, sizeof(file), "%s/numa_node", path);
    put(file, node);
    snprintf(link, sizeof(link), "bus/pci/devices/%s", pci);
    point(link, path);
}

Test(rdma_sysfs, distances)
{
    card();
    device("0000:3d:00.1", BRIDGE "/0000:3c:00.0/0000:3d:00.1", "1\n");
    device("0000:3e:00.0", BRIDGE "/0000:3c:04.0/0000:3e:00.0", "1\n");
    device("0000:40:00.0", "devices/pci0000:3a/0000:3a:01.0/0000:40:00.0", "1\n");
    device("0000:5e:00.0", "devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0", "1\n");
    device("0000:86:00.0", "devices/pci0000:85/0000:85:00.0/0000:86:00.0", "0\n");
    device("0000:87:00.0", "devices/pci0000:86/0000:86:01.0/0000:87:00.0", "-1\n");
#define DISTANCE(b) mct_sysfs_pci_distance(root, "0000:3d:00.0", b)
    cr_assert_eq(DISTANCE("0000:3d:00.0"), MCT_SYSFS_SAME);
    cr_assert_eq(DISTANCE("0000:3d:00.1"), MCT_SYSFS_SAME);
    cr_assert_eq(DISTANCE("0000:3e:00.0"), MCT_SYSFS_SWITCH);
    cr_assert_eq(DISTANCE("0000:40:00.0"), MCT_SYSFS_ROOT);
    cr_assert_eq(DISTANCE("0000:5e:00.0"), MCT_SYSFS_NODE);
    cr_assert_eq(DISTANCE("0000:86:00.0"), MCT_SYSFS_FAR);
    cr_assert_eq(DISTANCE("0000:87:00.0"), MCT_SYSFS_UNKNOWN);
    cr_assert_eq(DISTANCE("0000:99:00.0"), MCT_SYSFS_UNKNOWN);
    cr_assert_eq(DISTANCE("../../../etc"), MCT_SYSFS_UNKNOWN);
    cr_assert_eq(mct_sysfs_node_distance(root, "0000:3d:00.0", 1), MCT_SYSFS_NODE);
    cr_assert_eq(mct_sysfs_node_distance(root, "0000:3d:00.0", 0), MCT_SYSFS_FAR);
    cr_assert_eq(mct_sysfs_node_distance(root, "0000:3d:00.0", -1), MCT_SYSFS_UNKNOWN);
    cr_assert_eq(mct_sysfs_node_distance(root, "", 0), MCT_SYSFS_UNKNOWN);
}

Test(rdma_sysfs, addresses_of_this_host)
{
    struct mct_gid_address *a;
    size_t n;
    bool loopback = false;

    cr_assert_eq(mct_sysfs_addresses(&a, &n), 0);
    for (size_t i = 0; i < n; i++)
        if (strcmp(a[i].netdev, "lo") == 0 && a[i].gid[12] == 127 && a[i].gid[11] == 0xff)
            loopback = a[i].prefix == 96 + 8 && a[i].up;
    cr_assert(loopback, "127.0.0.1/8 on lo, among %zu", n);
    free(a);
}
