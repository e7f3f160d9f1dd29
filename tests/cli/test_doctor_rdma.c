/* SPDX-License-Identifier: Apache-2.0 */
/* What the doctor says of RDMA, on trees of made-up files. */
#include "cli/doctor_memory.c"
#include "cli/doctor_rdma.c"
#include "cli/doctor_read.c"
#include "cli/doctor_user.c"
#include "cli/table.c"

#include "doctor_tree.h"

#define PORT "/sys/class/infiniband/mlx5_0/ports/1/"

static void point(const char *path, const char *target)
{
    char full[512], at[512];

    snprintf(full, sizeof(full), "%s%s", root, path);
    snprintf(at, sizeof(at), "%s%s", root, target);
    cr_assert_eq(symlink(at, full), 0, "%s", full);
}

static void file_mode(const char *path, mode_t mode)
{
    char full[512];

    snprintf(full, sizeof(full), "%s%s", root, path);
    cr_assert_eq(chmod(full, mode), 0, "%s", full);
}

static void user(const char *uid, const char *gid, const char *groups, const char *capabilities)
{
    char text[400];

    snprintf(text, sizeof(text),
             "Name:\tx\nUid:\t%s\t%s\t%s\t%s\nGid:\t%s\t%s\t%s\t%s\nGroups:\t%s\nCapEff:\t%s\n",
             uid, uid, uid, uid, gid, gid, gid, gid, groups, capabilities);
    put("/proc/self/status", text);
}

static void memlock(const char *bytes)
{
    char text[200];

    snprintf(text, sizeof(text),
             "Limit            Soft Limit    Hard Limit    Units\nMax locked memory    %s    %s    "
             "bytes\n",
             bytes, bytes);
    put("/proc/self/limits", text);
}

/* A card with an active RoCE port at 192.0.2.1, which this host does not have. */
static void card(void)
{
    put("/sys/devices/pci0000:3a/0000:3b:00.0/numa_node", "1\n");
    put("/sys/devices/pci0000:3a/0000:3b:00.0/vendor", "0x15b3\n");
    put("/sys/devices/pci0000:3a/0000:3b:00.0/class", "0x020000\n");
    put("/sys/devices/pci0000:3a/0000:3b:00.0/infiniband/mlx5_0/x", "");
    put("/sys/bus/pci/devices/.x", "");
    point("/sys/bus/pci/devices/0000:3b:00.0", "/sys/devices/pci0000:3a/0000:3b:00.0");
    put("/sys/class/infiniband/mlx5_0/fw_ver", "22.31.1014\n");
    put("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
    point("/sys/class/infiniband/mlx5_0/device", "/sys/devices/pci0000:3a/0000:3b:00.0");
    put("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
    put("/dev/infiniband/uverbs0", "");
    put(PORT "state", "4: ACTIVE\n");
    put(PORT "phys_state", "5: LinkUp\n");
    put(PORT "link_layer", "Ethernet\n");
    put(PORT "rate", "100 Gb/sec (4X EDR)\n");
    put(PORT "gids/0", "0000:0000:0000:0000:0000:ffff:c000:0201\n");
    put(PORT "gid_attrs/types/0", "RoCE v2\n");
    put(PORT "gid_attrs/ndevs/0", "eth4\n");
    put("/sys/class/net/eth4/mtu", "9000\n");
    put("/sys/class/net/eth4/operstate", "up\n");
    user("1000", "1000", "1000", "0000000000000000");
}

TestSuite(doctor_rdma, .init = begin, .fini = end);

Test(doctor_rdma, no_device)
{
    expect(doctor_check_rdma_kernel, 0, DOCTOR_NOTE, "shows no RDMA device");
    set("rdma.enable", "require");
    expect(doctor_check_rdma_kernel, 0, DOCTOR_BAD, "shows no RDMA device");
    d.nfindings = 0;
    doctor_check_rdma_devices(&d);
    doctor_check_rdma_ports(&d);
    doctor_check_rdma_memlock(&d);
    cr_assert_eq(d.nfindings, 0);
}

/* Asked for nothing in particular, the doctor looks at RDMA where it is required or there are devices for it. */
Test(doctor_rdma, where_nobody_asks)
{
    set("rdma.enable", "auto");
    set("peer.listen", "0.0.0.0:9420");
    cr_assert_not(doctor_wants_rdma(&d));
    card();
    cr_assert(doctor_wants_rdma(&d));
    doctor_check_rdma_use(&d);
    cr_assert_eq(d.nfindings, 0);
    snprintf(d.settings[0].value, sizeof(d.settings[0].value), "off");
    cr_assert_not(doctor_wants_rdma(&d));
    expect(doctor_check_rdma_use, 0, DOCTOR_NOTE, "1 RDMA device: not used");
    cr_assert_not_null(strstr(d.findings[0].what, "[rdma] enable = off"), "%s", d.findings[0].what);
    snprintf(d.settings[0].value, sizeof(d.settings[0].value), "auto");
    snprintf(d.settings[1].value, sizeof(d.settings[1].value), "off");
    cr_assert_not(doctor_wants_rdma(&d));
    expect(doctor_check_rdma_use, 0, DOCTOR_NOTE, "[peer] listen = off");
}

Test(doctor_rdma, where_nobody_asks_and_it_is_required)
{
    set("rdma.enable", "require");
    set("peer.listen", "0.0.0.0:9420");
    cr_assert(doctor_wants_rdma(&d));
    doctor_check_rdma_use(&d);
    cr_assert_eq(d.nfindings, 0);
}

Test(doctor_rdma, drivers)
{
    card();
    expect(doctor_check_rdma_kernel, 0, DOCTOR_OK, "ib_uverbs");
    put("/sys/bus/pci/devices/0000:5e:00.0/vendor", "0x15b3\n");
    put("/sys/bus/pci/devices/0000:5e:00.0/class", "0x020700\n");
    put("/sys/bus/pci/devices/0000:5f:00.0/vendor", "0x8086\n"); /* another network card */
    put("/sys/bus/pci/devices/0000:5f:00.0/class", "0x020000\n");
    put("/sys/bus/pci/devices/0000:60:00.0/vendor", "0x15b3\n"); /* a bridge of the same maker's */
    put("/sys/bus/pci/devices/0000:60:00.0/class", "0x060400\n");
    expect(doctor_check_rdma_kernel, 0, DOCTOR_WARN,
           "1 PCI function that can do RDMA has no RDMA device: 0000:5e:00.0");
    cr_assert_not_null(strstr(d.findings[0].remedy, "modprobe"));
}

Test(doctor_rdma, programs_cannot_reach_them)
{
    put("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
    expect(doctor_check_rdma_kernel, 0, DOCTOR_WARN, "ib_uverbs is not loaded");
}

Test(doctor_rdma, a_device)
{
    card();
    file_mode("/dev/infiniband/uverbs0", 0666);
    expect(doctor_check_rdma_devices, 0, DOCTOR_OK,
           "mlx5_0, 1 port, PCI 0000:3b:00.0, NUMA node 1, firmware 22.31.1014");
    expect(doctor_check_rdma_devices, 1, DOCTOR_OK, "may open");
    put("/sys/class/infiniband/mlx5_0/node_type", "4: RNIC\n");
    expect(doctor_check_rdma_devices, 0, DOCTOR_NOTE, "4: RNIC");
}

Test(doctor_rdma, permission)
{
    struct stat st;
    char path[200], gid[16];

    card();
    snprintf(path, sizeof(path), "%s/dev/infiniband/uverbs0", root);
    file_mode("/dev/infiniband/uverbs0", 0660);
    cr_assert_eq(stat(path, &st), 0);
    snprintf(gid, sizeof(gid), "%u", st.st_gid);
    user("4242", "4242", "4242 4243", "0");
    expect(doctor_check_rdma_devices, 1, DOCTOR_WARN, "this user (uid 4242) may not open");
    cr_assert_not_null(strstr(d.findings[1].what, "mode 0660 of "), "%s", d.findings[1].what);
    cr_assert_not_null(strstr(d.findings[1].remedy, "usermod"), "%s", d.findings[1].remedy);
    set("rdma.enable", "require");
    expect(doctor_check_rdma_devices, 1, DOCTOR_BAD, "may not open");
    user("4242", "4242", gid, "0"); /* by its group */
    expect(doctor_check_rdma_devices, 1, DOCTOR_OK, "may open");
    user("4242", gid, "", "0");
    expect(doctor_check_rdma_devices, 1, DOCTOR_OK, "may open");
    user("0", "0", "0", "0");
    expect(doctor_check_rdma_devices, 1, DOCTOR_OK, "may open");
    file_mode("/dev/infiniband/uverbs0", 0664); /* reading alone is not enough */
    user("4242", "4242", "4242", "0");
    expect(doctor_check_rdma_devices, 1, DOCTOR_BAD, "may not open");
}

Test(doctor_rdma, file_is_not_there)
{
    char path[200];

    card();
    snprintf(path, sizeof(path), "%s/dev/infiniband/uverbs0", root);
    unlink(path);
    expect(doctor_check_rdma_devices, 1, DOCTOR_WARN, "No such file");
    cr_assert_not_null(strstr(d.findings[1].remedy, "--device"), "%s", d.findings[1].remedy);
}

/* The host has it, the agent's own /dev does not: a unit with PrivateDevices=yes. */
Test(doctor_rdma, file_that_the_agent_does_not_see)
{
    card();
    d.agent_pid = 7;
    put("/proc/7/status",
        "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t\n");
    file_mode("/dev/infiniband/uverbs0", 0666);
    expect(doctor_check_rdma_devices, 1, DOCTOR_OK,
           "the agent may open"); /* whose /dev nobody may look into */
    put("/proc/7/root/dev/null", "");
    expect(doctor_check_rdma_devices, 1, DOCTOR_WARN, "but not for the agent");
    cr_assert_not_null(strstr(d.findings[1].remedy, "PrivateDevices=no"), "%s",
                       d.findings[1].remedy);
    put("/proc/7/root/dev/infiniband/uverbs0", "");
    expect(doctor_check_rdma_devices, 1, DOCTOR_OK, "the agent may open");
}

/* Its mode allows it, yet it cannot be opened: as in a container without the device. */
Test(doctor_rdma, file_that_does_not_open)
{
    char path[200];

    card();
    snprintf(path, sizeof(path), "%s/dev/infiniband/uverbs0", root);
    unlink(path);
    cr_assert_eq(mkdir(path, 0777), 0);
    cr_assert_eq(chmod(path, 0777), 0);
    expect(doctor_check_rdma_devices, 1, DOCTOR_WARN, "although its mode allows it");
}

Test(doctor_rdma, a_port)
{
    card();
    expect(doctor_check_rdma_ports, 0, DOCTOR_OK,
           "mlx5_0/1: ACTIVE, LinkUp, Ethernet, 100 Gb/s, interface eth4 (up)");
    expect(doctor_check_rdma_ports, 1, DOCTOR_OK, "packets of 4096 bytes");
    expect(doctor_check_rdma_ports, 2, DOCTOR_NOTE, "GID 0 (192.0.2.1, RoCE v2)");
    put(PORT "state", "1: DOWN\n");
    put(PORT "phys_state", "3: Disabled\n");
    expect(doctor_check_rdma_ports, 0, DOCTOR_WARN, "DOWN, Disabled");
    cr_assert_not_null(strstr(d.findings[0].remedy, "ip link set eth4 up"));
    set("rdma.enable", "require");
    expect(doctor_check_rdma_ports, 0, DOCTOR_BAD, "DOWN");
}

Test(doctor_rdma, packets)
{
    card();
    put("/sys/class/net/eth4/mtu", "1500\n");
    expect(doctor_check_rdma_ports, 1, DOCTOR_NOTE, "packets of 1024 bytes, not of 4096");
    cr_assert_not_null(strstr(d.findings[1].remedy, "mtu 4200"), "%s", d.findings[1].remedy);
    put("/sys/class/net/eth4/mtu", "4200\n");
    expect(doctor_check_rdma_ports, 1, DOCTOR_OK, "4096");
    put("/sys/class/net/eth4/mtu", "300\n");
    expect(doctor_check_rdma_ports, 1, DOCTOR_WARN, "packets of 0 bytes");
    put(PORT "link_layer", "InfiniBand\n"); /* its MTU is the subnet manager's */
    expect(doctor_check_rdma_ports, 1, DOCTOR_OK, "InfiniBand's own");
}

Test(doctor_rdma, gids)
{
    card();
    put(PORT "gid_attrs/types/0", "IB/RoCE v1\n");
    expect(doctor_check_rdma_ports, 2, DOCTOR_WARN, "RoCE v1");
    set("rdma.gid_index", "3");
    expect(doctor_check_rdma_ports, 2, DOCTOR_WARN, "GID index 3 is wanted");
    d.nsettings = 0;
    put(PORT "gids/0", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    expect(doctor_check_rdma_ports, 2, DOCTOR_WARN, "has no GID");
    put(PORT "gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
    expect(doctor_check_rdma_ports, 2, DOCTOR_WARN, "that a peer could reach");
}

/* What a setting leaves out is told, and is no fault. */
Test(doctor_rdma, left_out_by_a_setting)
{
    card();
    put(PORT "state", "1: DOWN\n");
    set("rdma.deny", "mlx5_1, mlx5_0/*");
    expect(doctor_check_rdma_ports, 0, DOCTOR_OK, "DOWN");
    expect(doctor_check_rdma_ports, 1, DOCTOR_NOTE, "[rdma] deny leaves it out");
    cr_assert_eq(d.nfindings, 2);
    d.nsettings = 0;
    set("rdma.devices", "rxe* mlx5_0/2");
    expect(doctor_check_rdma_ports, 1, DOCTOR_NOTE, "[rdma] devices leaves it out");
    d.nsettings = 0;
    set("rdma.devices", "mlx5_?");
    expect(doctor_check_rdma_ports, 0, DOCTOR_WARN, "DOWN");
    d.nsettings = 0;
    set("rdma.enable", "off");
    expect(doctor_check_rdma_ports, 1, DOCTOR_NOTE, "[rdma] enable = off leaves it out");
}

Test(doctor_rdma, numa)
{
    card();
    put("/sys/devices/system/node/has_memory", "0\n");
    d.nfindings = 0;
    doctor_check_rdma_numa(&d);
    cr_assert_eq(d.nfindings, 0, "one node is near to all");
    put("/sys/devices/system/node/has_memory", "0-1\n");
    expect(doctor_check_rdma_numa, 0, DOCTOR_NOTE, "memory of node 0 has no RDMA device near it");
    expect(doctor_check_rdma_numa, 1, DOCTOR_OK, "memory of node 1 has 1 RDMA device near it");
    put("/sys/devices/pci0000:3a/0000:3b:00.0/numa_node", "-1\n");
    d.nfindings = 0;
    doctor_check_rdma_numa(&d);
    cr_assert_eq(d.nfindings, 0, "nothing is known");
}

Test(doctor_rdma, gpus)
{
    card();
    expect(doctor_check_rdma_kernel, 0, DOCTOR_OK, "ib_uverbs");
    d.nfindings = 0;
    doctor_check_rdma_gpus(&d);
    cr_assert_eq(d.nfindings, 0, "there is none");
    put("/sys/devices/pci0000:85/0000:86:00.0/numa_node", "0\n");
    put("/sys/devices/pci0000:85/0000:86:00.0/vendor", "0x10de\n");
    put("/sys/devices/pci0000:85/0000:86:00.0/class", "0x030200\n");
    point("/sys/bus/pci/devices/0000:86:00.0", "/sys/devices/pci0000:85/0000:86:00.0");
    expect(doctor_check_rdma_gpus, 0, DOCTOR_NOTE, "GPU 0000:86:00.0: mlx5_0 at two NUMA nodes");
    put("/sys/devices/pci0000:85/0000:86:00.0/class", "0x040300\n"); /* its sound */
    d.nfindings = 0;
    doctor_check_rdma_gpus(&d);
    cr_assert_eq(d.nfindings, 0);
}

Test(doctor_rdma, locked_memory)
{
    card();
    put("/sys/class/infiniband/mlx5_1/node_type", "1: CA\n");
    set("pool.size", "1073741824");
    memlock("1073741824");
    expect(doctor_check_rdma_memlock, 0, DOCTOR_WARN,
           "limit is 1G; registering a whole pool with 2");
    cr_assert_not_null(strstr(d.findings[0].what, "locks 2G"), "%s", d.findings[0].what);
    cr_assert_not_null(strstr(d.findings[0].remedy, "LimitMEMLOCK"), "%s", d.findings[0].remedy);
    set("rdma.deny", "mlx5_1"); /* which then locks nothing */
    expect(doctor_check_rdma_memlock, 0, DOCTOR_OK, "limit is 1G; the pool takes 1G");
    d.nsettings = 1;
    memlock("2147483648");
    expect(doctor_check_rdma_memlock, 0, DOCTOR_OK, "limit is 2G");
    memlock("unlimited");
    expect(doctor_check_rdma_memlock, 0, DOCTOR_OK, "unlimited");
    memlock("65536");
    user("1000", "1000", "1000", "0000000000004000");
    expect(doctor_check_rdma_memlock, 0, DOCTOR_OK, "CAP_IPC_LOCK");
}

/* The agent's answer, and one finding of it. */
static void expect_of(const char *json, size_t index, enum severity severity, const char *words)
{
    cJSON *answer = cJSON_Parse(json);

    cr_assert_not_null(answer, "%s", json);
    d.nfindings = 0;
    doctor_check_rdma_nics(&d, answer);
    cJSON_Delete(answer);
    cr_assert_gt(d.nfindings, index);
    cr_assert_eq(d.findings[index].severity, severity, "%s", d.findings[index].what);
    cr_assert_not_null(strstr(d.findings[index].what, words), "%s", d.findings[index].what);
}

Test(doctor_rdma, the_agents_view)
{
    expect_of("{\"enable\":\"off\",\"used\":false,\"nics\":[]}", 0, DOCTOR_OK, "enable = off");
    card();
    expect_of("{\"enable\":\"off\",\"used\":false,\"nics\":[]}", 0, DOCTOR_NOTE, "enable = off");
    cr_assert_str_eq(d.findings[0].remedy, "");
    expect_of("{\"enable\":\"auto\",\"used\":false,\"nics\":[]}", 0, DOCTOR_NOTE, "enable = auto");
    cr_assert_neq(d.findings[0].remedy[0], '\0');
    expect_of(
        "{\"enable\":\"auto\",\"used\":true,\"nics\":[{\"name\":\"mlx5_0/1\",\"state\":\"up\","
        "\"why\":\"GID "
        "0\",\"mtu\":4096,\"max_message\":8388608,\"max_reads\":16,\"max_region\":\"2147483648\","
        "\"max_pairs\":100,\"memory\":1048576,\"pairs\":4,"
        "\"faults\":0}]}",
        0, DOCTOR_OK,
        "mlx5_0/1 up: GID 0; MTU 4096, messages up to 8M, registrations up to 2G, 16 READs at "
        "a time, 1M registered, 4 of at most 100 queue pairs");
    cr_assert_eq(d.nfindings, 1);
    expect_of(
        "{\"enable\":\"auto\",\"used\":true,\"nics\":[{\"name\":\"mlx5_0/1\",\"state\":\"up\","
        "\"link\":\"Ethernet\",\"gid_index\":5}]}",
        1, DOCTOR_NOTE, "uses GID 5, seen from here it would be GID 0 (192.0.2.1, RoCE v2)");
    expect_of(
        "{\"enable\":\"auto\",\"used\":true,\"nics\":[{\"name\":\"mlx5_0/1\",\"state\":\"up\","
        "\"link\":\"Ethernet\",\"gid_index\":0}]}",
        0, DOCTOR_OK, "up");
    cr_assert_eq(d.nfindings, 1);
    expect_of(
        "{\"enable\":\"auto\",\"used\":true,\"nics\":[{\"name\":\"mlx5_0/1\",\"state\":\"down\","
        "\"why\":\"its port is DOWN\",\"registrations_failed\":3}]}",
        0, DOCTOR_WARN, "down: its port is DOWN");
    cr_assert_not_null(strstr(d.findings[1].what, "3 registrations"), "%s", d.findings[1].what);
    expect_of(
        "{\"enable\":\"auto\",\"used\":true,\"nics\":[{\"name\":\"mlx5_00/1\",\"state\":\"up\"}]}",
        1, DOCTOR_WARN, "does not know mlx5_0");
    /* what keeps it out is the agent's setting, not the file's */
    expect_of("{\"enable\":\"auto\",\"used\":true,\"devices\":\"mlx5_00\",\"deny\":\"\",\"nics\":["
              "{\"name\":\"mlx5_00/1\",\"state\":\"up\"}]}",
              0, DOCTOR_OK, "mlx5_00/1 up");
    cr_assert_eq(d.nfindings, 1);
    expect_of("{\"used\":true,\"nics\":[{\"name\":7},null,[]]}", 0, DOCTOR_WARN, "the agent has");
}
