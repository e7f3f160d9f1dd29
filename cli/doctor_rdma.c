/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA on this host: what the kernel has, whether the agent may use it, which GID is chosen, and what the agent makes of
 * it. Reads sysfs and /dev only: what takes verbs to find out comes from the agent.
 */
#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor.h"
#include "table.h"
#include "transports/rdma/sysfs.h"

#define MELLANOX 0x15b3u
#define NVIDIA 0x10deu
#define AMD 0x1002u
#define CLASS_DISPLAY 0x03u
#define CLASS_INFINIBAND 0x0207u
#define CAP_IPC_LOCK_BIT 14u
#define MTU_MAX 4096u
#define MTU_OVERHEAD 96u /* what the kernel takes off an interface's MTU (iboe_get_mtu) */
#define NETDEV_MTU 4200u /* of an interface, as makers say it, for packets of 4096 bytes */

/* How bad it is when a device cannot be used. */
static enum severity harm(const struct doctor *d)
{
    return strcmp(doctor_setting(d, "rdma.enable"), "require") == 0 ? DOCTOR_BAD : DOCTOR_WARN;
}

static const char *sys_of(const struct doctor *d, char *out, size_t size)
{
    snprintf(out, size, "%s/sys", d->root);
    return out;
}

/* Is the port, "mlx5_0/1", on a list of names and patterns, parted by commas or blanks? As in transports/rdma/select.c. */
static bool listed(const char *list, const char *device, const char *port)
{
    char copy[256], *rest = copy, *word;

    snprintf(copy, sizeof(copy), "%s", list);
    while ((word = strsep(&rest, ", \t")) != NULL)
        if (word[0] != '\0' &&
            (strcmp(word, "auto") == 0 || fnmatch(word, device, FNM_NOESCAPE) == 0 ||
             fnmatch(word, port, FNM_NOESCAPE) == 0))
            return true;
    return false;
}

/* What of [rdma] decides which ports are used, and at which GID: the file's, or those in force in an agent. */
struct choice {
    const char *enable, *devices, *deny, *gid_index;
};

static struct choice of_settings(const struct doctor *d)
{
    return (struct choice){
        .enable = doctor_setting(d, "rdma.enable"),
        .devices = doctor_setting(d, "rdma.devices"),
        .deny = doctor_setting(d, "rdma.deny"),
        .gid_index = doctor_setting(d, "rdma.gid_index"),
    };
}

/* NULL, or the setting that keeps the agent from using the port. */
static const char *left_out(const struct choice *c, const char *device, unsigned port)
{
    char name[MCT_SYSFS_NAME_MAX + 8];

    snprintf(name, sizeof(name), "%s/%u", device, port);
    if (strcmp(c->enable, "off") == 0)
        return "enable = off";
    if (listed(c->deny, device, name))
        return "deny";
    if (c->devices[0] != '\0' && !listed(c->devices, device, name))
        return "devices";
    return NULL;
}

/* -1: auto */
static int wanted_gid(const struct choice *c)
{
    return c->gid_index[0] >= '0' && c->gid_index[0] <= '9' ? (int)strtoul(c->gid_index, NULL, 10)
                                                            : -1;
}

/* ---- is it used? ---------------------------------------------------------------------- */

/* NULL, or the setting by which no device is opened. */
static const char *idle_by(const struct doctor *d)
{
    if (strcmp(doctor_setting(d, "peer.listen"), "off") == 0)
        return "[peer] listen = off";
    if (strcmp(doctor_setting(d, "rdma.enable"), "off") == 0)
        return "[rdma] enable = off";
    return NULL;
}

static size_t device_count(const struct doctor *d)
{
    char sys[512], names[MCT_SYSFS_DEVICES_MAX][MCT_SYSFS_NAME_MAX];

    return mct_sysfs_devices(sys_of(d, sys, sizeof(sys)), names, MCT_SYSFS_DEVICES_MAX);
}

bool doctor_wants_rdma(const struct doctor *d)
{
    return strcmp(doctor_setting(d, "rdma.enable"), "require") == 0 ||
           (idle_by(d) == NULL && device_count(d) != 0);
}

void doctor_check_rdma_use(struct doctor *d)
{
    const char *setting = idle_by(d);
    size_t n = device_count(d);

    if (n != 0 && setting != NULL)
        doctor_say(d, DOCTOR_NOTE, NULL,
                   "%zu RDMA device%s: not used with this configuration, which has %s; `mcshm "
                   "doctor rdma` looks at them",
                   n, n == 1 ? "" : "s", setting);
}

/* ---- kernel ------------------------------------------------------------------------- */

/* PCI functions that would have an RDMA device with their driver loaded. */
static unsigned bare_cards(const struct doctor *d, char *list, size_t size)
{
    char sys[512], path[600], link[700];
    size_t used = 0;
    unsigned n = 0;
    struct dirent *e;
    DIR *dir;

    list[0] = '\0';
    snprintf(path, sizeof(path), "%s/bus/pci/devices", sys_of(d, sys, sizeof(sys)));
    dir = opendir(path);
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        char text[32];
        unsigned long vendor, class;

        if (!mct_sysfs_is_name(e->d_name))
            continue;
        doctor_read(d, text, sizeof(text), "/sys/bus/pci/devices/%.32s/vendor", e->d_name);
        vendor = strtoul(text, NULL, 16);
        doctor_read(d, text, sizeof(text), "/sys/bus/pci/devices/%.32s/class", e->d_name);
        class = strtoul(text, NULL, 16) >> 8;
        if (class != CLASS_INFINIBAND && (vendor != MELLANOX || class >> 8 != 2))
            continue;
        snprintf(link, sizeof(link), "%s/%.32s/infiniband", path, e->d_name);
        if (access(link, F_OK) == 0)
            continue;
        n++;
        if (used < size)
            used += (size_t)snprintf(list + used, size - used, " %.32s", e->d_name);
    }
    if (dir != NULL)
        closedir(dir);
    return n;
}

void doctor_check_rdma_kernel(struct doctor *d)
{
    char sys[512], names[1][MCT_SYSFS_NAME_MAX], path[600], list[200];
    size_t devices = mct_sysfs_devices(sys_of(d, sys, sizeof(sys)), names, 1);
    unsigned bare = bare_cards(d, list, sizeof(list));

    if (bare != 0)
        doctor_say(d, harm(d),
                   "modprobe mlx5_ib (mlx4_ib with ConnectX-3), then start the agent anew",
                   "%u PCI function%s that can do RDMA %s no RDMA device:%s", bare,
                   bare == 1 ? "" : "s", bare == 1 ? "has" : "have", list);
    snprintf(path, sizeof(path), "%s/class/infiniband_verbs", sys);
    if (devices == 0) {
        doctor_say(d, harm(d) == DOCTOR_BAD ? DOCTOR_BAD : DOCTOR_NOTE,
                   harm(d) == DOCTOR_BAD ? "[rdma] enable = auto goes on without" : NULL,
                   "the kernel shows no RDMA device: transfers between hosts go over TCP");
    } else if (access(path, F_OK) != 0) {
        doctor_say(d, harm(d), "modprobe ib_uverbs",
                   "there are RDMA devices, but programs cannot reach them: the kernel module "
                   "ib_uverbs is not loaded");
    } else {
        doctor_say(d, DOCTOR_OK, NULL, "programs can reach RDMA devices (ib_uverbs)");
    }
}

/* ---- may the agent open it? ----------------------------------------------------------- */

static void check_file(struct doctor *d, const struct mct_sysfs_device *dev)
{
    char path[600], file[64], remedy[400];
    const struct group *g;
    struct doctor_user u;
    struct stat st;
    int fd = -1;

    if (dev->uverbs[0] == '\0')
        return; /* the kernel's check tells of it */
    snprintf(file, sizeof(file), "/dev/infiniband/%s", dev->uverbs);
    snprintf(path, sizeof(path), "%s%s", d->root, file);
    if (stat(path, &st) != 0) {
        doctor_say(d, harm(d),
                   "in a container pass it (--device /dev/infiniband, docs/rdma.md); on a host "
                   "udevadm trigger makes it",
                   "%s: its file %s: %s", dev->name, path, strerror(errno));
        return;
    }
    if (doctor_hidden_from_agent(d, file)) {
        doctor_say(d, harm(d),
                   "systemctl edit mcshmd: [Service] PrivateDevices=no, DeviceAllow="
                   "char-infiniband_verbs rw; a container takes --device /dev/infiniband "
                   "(docs/rdma.md)",
                   "%s: %s is there, but not for the agent, whose unit or container hides it",
                   dev->name, path);
        return;
    }
    g = getgrgid(st.st_gid);
    if (!doctor_user_read(d, &u)) {
        doctor_say(d, DOCTOR_NOTE, NULL, "%s: who opens %s is not known", dev->name, path);
        return;
    }
    if (!doctor_may_open(&u, &st)) {
        snprintf(remedy, sizeof(remedy),
                 "chmod 0666 %.200s by a udev rule, or usermod -aG %.64s for the agent's user",
                 path, g != NULL ? g->gr_name : "GROUP");
        doctor_say(d, harm(d), remedy, "%s: %s (uid %u) may not open %s: mode %04o of %u:%.64s",
                   dev->name, u.whose, u.uid, path, st.st_mode & 07777, st.st_uid,
                   g != NULL ? g->gr_name : "?");
        return;
    }
    /* What bits do not tell: a container's rules for devices, a device that has gone. */
    if (d->agent_pid == 0 && (fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK)) < 0) {
        doctor_say(d, harm(d),
                   "in a container pass it (--device /dev/infiniband, docs/rdma.md), else look at "
                   "dmesg",
                   "%s: %s cannot be opened although its mode allows it: %s", dev->name, path,
                   strerror(errno));
        return;
    }
    if (fd >= 0)
        close(fd);
    doctor_say(d, DOCTOR_OK, NULL, "%s: %s may open %s", dev->name, u.whose, path);
}

/* ---- devices and ports ----------------------------------------------------------------- */

static void describe_device(struct doctor *d, const struct mct_sysfs_device *dev)
{
    char text[400], type[32];
    size_t n = 0;

    text[0] = '\0';
#define ADD(...)                                                                                   \
    do {                                                                                           \
        if (n < sizeof(text))                                                                      \
            n += (size_t)snprintf(text + n, sizeof(text) - n, __VA_ARGS__);                        \
    } while (0)
    if (dev->netdev[0] != '\0')
        ADD(", software on %s", dev->netdev);
    if (dev->pci[0] != '\0')
        ADD(", PCI %s", dev->pci);
    if (dev->node >= 0)
        ADD(", NUMA node %d", dev->node);
    if (dev->board[0] != '\0')
        ADD(", board %s", dev->board);
    if (dev->firmware[0] != '\0')
        ADD(", firmware %s", dev->firmware);
#undef ADD
    doctor_read(d, type, sizeof(type), "/sys/class/infiniband/%s/node_type", dev->name);
    if (type[0] != '\0' && strncmp(type, "1:", 2) != 0)
        doctor_say(d, DOCTOR_NOTE, NULL,
                   "%s is no InfiniBand or RoCE device (%s) and is not used%s", dev->name, type,
                   text);
    else
        doctor_say(d, DOCTOR_OK, NULL, "%s, %u port%s%s", dev->name, dev->nports,
                   dev->nports == 1 ? "" : "s", text);
}

static unsigned packet(unsigned netdev_mtu)
{
    unsigned mtu = MTU_MAX;

    while (mtu > 128 && mtu + MTU_OVERHEAD > netdev_mtu)
        mtu >>= 1;
    return mtu >= 256 ? mtu : 0;
}

static void check_mtu(struct doctor *d, const char *name, const struct mct_sysfs_port *p)
{
    char remedy[160];
    unsigned mtu = packet(p->netdev_mtu);

    if (p->infiniband || p->netdev_mtu == 0)
        return;
    if (mtu == MTU_MAX) {
        doctor_say(d, DOCTOR_OK, NULL, "%s: MTU %u of %s carries packets of %u bytes", name,
                   p->netdev_mtu, p->netdev, MTU_MAX);
        return;
    }
    snprintf(remedy, sizeof(remedy),
             "ip link set %s mtu %u (or 9000), at the peers and switches, too", p->netdev,
             NETDEV_MTU);
    doctor_say(d, mtu == 0 ? harm(d) : DOCTOR_NOTE, remedy,
               "%s: MTU %u of %s carries packets of %u bytes, not of %u", name, p->netdev_mtu,
               p->netdev, mtu, MTU_MAX);
}

static void check_gid(struct doctor *d, const struct mct_sysfs_device *dev, unsigned port,
                      const char *name, const struct mct_sysfs_port *p)
{
    const struct choice settings = of_settings(d);
    struct mct_gid_choice c;
    char sys[512];

    if (mct_sysfs_choose_gid(sys_of(d, sys, sizeof(sys)), dev->name, port, p->infiniband,
                             wanted_gid(&settings), &c) != 0)
        doctor_say(d, harm(d), "see docs/rdma.md, GIDs", "%s: %s", name, c.why);
    else if (!p->infiniband && c.type == MCT_GID_ROCE_V1)
        doctor_say(d, DOCTOR_WARN,
                   "give the interface an address; RoCE v1 does not cross routers, and peers must "
                   "have it, too",
                   "%s: %s", name, c.why);
    else if (!p->infiniband && c.prefix == 0)
        doctor_say(d, DOCTOR_NOTE, NULL, "%s: %s; its network is not known", name, c.why);
    else
        doctor_say(d, DOCTOR_OK, NULL, "%s: %s", name, c.why);
}

static void check_port(struct doctor *d, const struct mct_sysfs_device *dev, unsigned port)
{
    const struct choice settings = of_settings(d);
    const char *setting = left_out(&settings, dev->name, port);
    char name[MCT_SYSFS_NAME_MAX + 8], sys[512], interface[80] = "", rate[48] = "", remedy[200];
    struct mct_sysfs_port p;
    bool active;

    snprintf(name, sizeof(name), "%s/%u", dev->name, port);
    if (mct_sysfs_port(sys_of(d, sys, sizeof(sys)), dev->name, port, &p) != 0) {
        doctor_say(d, DOCTOR_NOTE, NULL, "%s: its state cannot be read", name);
        return;
    }
    if (p.netdev[0] != '\0')
        snprintf(interface, sizeof(interface), ", interface %s (%s)", p.netdev,
                 p.netdev_state[0] != '\0' ? p.netdev_state : "state unknown");
    if (p.rate != 0)
        snprintf(rate, sizeof(rate), ", %g Gb/s", (double)p.rate / 1e9);
    active = strcmp(p.state, "ACTIVE") == 0;
    if (p.infiniband)
        snprintf(remedy, sizeof(remedy), "look at cable and switch, and at the subnet manager");
    else
        snprintf(remedy, sizeof(remedy), "ip link set %s up; look at cable and switch",
                 p.netdev[0] != '\0' ? p.netdev : "INTERFACE");
    doctor_say(d, active || setting != NULL ? DOCTOR_OK : harm(d),
               active || setting != NULL ? NULL : remedy, "%s: %s%s%s, %s%s%s", name, p.state,
               p.phys_state[0] != '\0' ? ", " : "", p.phys_state,
               p.infiniband ? "InfiniBand" : "Ethernet", rate, interface);
    if (setting != NULL) {
        doctor_say(d, DOCTOR_NOTE, NULL, "%s: not used, [rdma] %s leaves it out", name, setting);
        return;
    }
    check_mtu(d, name, &p);
    check_gid(d, dev, port, name, &p);
}

/* Calls for each device that sysfs shows. */
static void each(struct doctor *d,
                 void (*call)(struct doctor *d, const struct mct_sysfs_device *dev))
{
    char sys[512], names[MCT_SYSFS_DEVICES_MAX][MCT_SYSFS_NAME_MAX];
    size_t n = mct_sysfs_devices(sys_of(d, sys, sizeof(sys)), names, MCT_SYSFS_DEVICES_MAX);
    struct mct_sysfs_device dev;

    for (size_t i = 0; i < n; i++)
        if (mct_sysfs_device(sys, names[i], &dev) == 0)
            call(d, &dev);
}

static void check_device(struct doctor *d, const struct mct_sysfs_device *dev)
{
    describe_device(d, dev);
    check_file(d, dev);
}

static void check_ports(struct doctor *d, const struct mct_sysfs_device *dev)
{
    for (unsigned i = 0; i < dev->nports; i++)
        check_port(d, dev, dev->ports[i]);
}

void doctor_check_rdma_devices(struct doctor *d)
{
    each(d, check_device);
}

void doctor_check_rdma_ports(struct doctor *d)
{
    each(d, check_ports);
}

/* ---- NUMA ------------------------------------------------------------------------------- */

void doctor_check_rdma_numa(struct doctor *d)
{
    char sys[512], names[MCT_SYSFS_DEVICES_MAX][MCT_SYSFS_NAME_MAX], text[256];
    size_t n = mct_sysfs_devices(sys_of(d, sys, sizeof(sys)), names, MCT_SYSFS_DEVICES_MAX);
    const struct choice settings = of_settings(d);
    struct cpu_set_bits nodes;

    if (n == 0 || !doctor_read(d, text, sizeof(text), "/sys/devices/system/node/has_memory") ||
        !doctor_parse_list(text, &nodes) || doctor_count_cpus(&nodes) < 2)
        return;
    for (unsigned node = 0; node < DOCTOR_CPUS; node++) {
        unsigned near = 0, known = 0;

        if (!doctor_has_cpu(&nodes, node))
            continue;
        for (size_t i = 0; i < n; i++) {
            struct mct_sysfs_device dev;
            enum mct_sysfs_distance distance;

            if (mct_sysfs_device(sys, names[i], &dev) != 0 ||
                left_out(&settings, names[i], 1) != NULL)
                continue;
            distance = mct_sysfs_node_distance(sys, dev.pci, (int)node);
            near += distance == MCT_SYSFS_NODE;
            known += distance != MCT_SYSFS_UNKNOWN;
        }
        if (near != 0)
            doctor_say(d, DOCTOR_OK, NULL, "memory of node %u has %u RDMA device%s near it", node,
                       near, near == 1 ? "" : "s");
        else if (known != 0)
            doctor_say(d, DOCTOR_NOTE,
                       "let clients that send much take memory of a node with a device "
                       "(location \"cpu:N\")",
                       "memory of node %u has no RDMA device near it: its bytes cross to another "
                       "node",
                       node);
    }
}

/* ---- GPUs ------------------------------------------------------------------------------- */

static const char *distance_words(enum mct_sysfs_distance distance)
{
    static const char *const words[] = {
        "in one device",    "below one switch",  "at one root port or bridge",
        "at one NUMA node", "at two NUMA nodes", "at unknown distance",
    };

    return words[distance];
}

/* How far each RDMA device is from a GPU. */
static void say_gpu(struct doctor *d, const char *gpu)
{
    char sys[512], names[MCT_SYSFS_DEVICES_MAX][MCT_SYSFS_NAME_MAX], text[600];
    size_t n = mct_sysfs_devices(sys_of(d, sys, sizeof(sys)), names, MCT_SYSFS_DEVICES_MAX);
    bool near = false;
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        enum mct_sysfs_distance distance;
        struct mct_sysfs_device dev;

        if (mct_sysfs_device(sys, names[i], &dev) != 0 || dev.pci[0] == '\0')
            continue;
        distance = mct_sysfs_pci_distance(sys, gpu, dev.pci);
        near = near || distance <= MCT_SYSFS_SWITCH;
        if (used < sizeof(text))
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s %s",
                                     used == 0 ? "" : ", ", dev.name, distance_words(distance));
    }
    if (used != 0)
        doctor_say(d, near ? DOCTOR_OK : DOCTOR_NOTE, NULL, "GPU %s: %s", gpu, text);
}

void doctor_check_rdma_gpus(struct doctor *d)
{
    char sys[512], path[600];
    struct dirent *e;
    DIR *dir;

    snprintf(path, sizeof(path), "%s/bus/pci/devices", sys_of(d, sys, sizeof(sys)));
    dir = opendir(path);
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        char text[32], gpu[MCT_SYSFS_PCI_MAX];
        unsigned long vendor;

        if (!mct_sysfs_is_name(e->d_name) || strlen(e->d_name) >= sizeof(gpu))
            continue;
        snprintf(gpu, sizeof(gpu), "%.31s", e->d_name);
        doctor_read(d, text, sizeof(text), "/sys/bus/pci/devices/%s/vendor", gpu);
        vendor = strtoul(text, NULL, 16);
        doctor_read(d, text, sizeof(text), "/sys/bus/pci/devices/%s/class", gpu);
        if ((vendor == NVIDIA || vendor == AMD) && strtoul(text, NULL, 16) >> 16 == CLASS_DISPLAY)
            say_gpu(d, gpu);
    }
    if (dir != NULL)
        closedir(dir);
}

/* ---- locked memory ---------------------------------------------------------------------- */

void doctor_check_rdma_memlock(struct doctor *d)
{
    char sys[512], names[MCT_SYSFS_DEVICES_MAX][MCT_SYSFS_NAME_MAX], text[32], want_text[32];
    size_t all = mct_sysfs_devices(sys_of(d, sys, sizeof(sys)), names, MCT_SYSFS_DEVICES_MAX),
           n = 0;
    const struct choice settings = of_settings(d);
    uint64_t pool = doctor_setting_number(d, "pool.size", UINT64_C(1) << 30), want, limit;
    struct doctor_user u = {.uid = 0};
    const char *whose;

    for (size_t i = 0; i < all; i++)
        n += left_out(&settings, names[i], 1) == NULL;
    if (n == 0)
        return;
    want = pool > UINT64_MAX / n ? UINT64_MAX : pool * n;
    if (!doctor_read_limit(d, "Max locked memory", false, &limit, &whose)) {
        doctor_say(d, DOCTOR_NOTE, NULL, "/proc/self/limits cannot be read");
        return;
    }
    doctor_size(limit, text, sizeof(text));
    doctor_size(want, want_text, sizeof(want_text));
    if (doctor_user_read(d, &u) && (u.capabilities >> CAP_IPC_LOCK_BIT & 1) != 0)
        doctor_say(d, DOCTOR_OK, NULL, "%s has CAP_IPC_LOCK: its limit of %s does not count",
                   u.whose, text);
    else if (limit < want)
        doctor_say(d, harm(d),
                   "LimitMEMLOCK=infinity in the agent's unit, ulimit -l unlimited before it, or "
                   "CAP_IPC_LOCK; in containers --ulimit memlock=-1",
                   "%s limit is %s; registering a whole pool with %zu device%s locks %s, and "
                   "published memory as much again",
                   whose, text, n, n == 1 ? "" : "s", want_text);
    else
        doctor_say(d, DOCTOR_OK, NULL, "%s limit is %s; the pool takes %s", whose, text, want_text);
}

/* ---- the agent --------------------------------------------------------------------------- */

static const char *text_of(const cJSON *o, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

    return cJSON_IsString(v) ? v->valuestring : "";
}

static unsigned long long count_of(const cJSON *o, const char *key)
{
    return table_number(cJSON_GetObjectItemCaseSensitive(o, key));
}

/* The agent's GID, and the one that would be chosen from what is seen here. */
static void compare_gid(struct doctor *d, const cJSON *o, const struct choice *in_force)
{
    const cJSON *index = cJSON_GetObjectItemCaseSensitive(o, "gid_index");
    char device[MCT_SYSFS_NAME_MAX], sys[512];
    const char *name = text_of(o, "name"), *slash = strchr(name, '/');
    bool infiniband = strcmp(text_of(o, "link"), "InfiniBand") == 0;
    struct mct_gid_choice c;

    if (slash == NULL || (size_t)(slash - name) >= sizeof(device) || !cJSON_IsNumber(index))
        return;
    snprintf(device, sizeof(device), "%.*s", (int)(slash - name), name);
    if (mct_sysfs_choose_gid(sys_of(d, sys, sizeof(sys)), device,
                             (unsigned)strtoul(slash + 1, NULL, 10), infiniband,
                             wanted_gid(in_force), &c) == 0 &&
        c.index != index->valueint)
        doctor_say(d, DOCTOR_NOTE, NULL,
                   "%s: the agent uses GID %d, seen from here it would be %s: the agent sees other "
                   "addresses, as in another network namespace",
                   name, index->valueint, c.why);
}

static void say_nic(struct doctor *d, const cJSON *o, const struct choice *in_force)
{
    bool up = strcmp(text_of(o, "state"), "up") == 0;
    const cJSON *memory = cJSON_GetObjectItemCaseSensitive(o, "memory");
    unsigned long long failed = count_of(o, "registrations_failed");
    char bytes[32], message[32], region[32];

    doctor_size(table_number(memory), bytes, sizeof(bytes));
    doctor_size(table_number(cJSON_GetObjectItemCaseSensitive(o, "max_message")), message,
                sizeof(message));
    doctor_size(table_number(cJSON_GetObjectItemCaseSensitive(o, "max_region")), region,
                sizeof(region));
    doctor_say(d, up ? DOCTOR_OK : harm(d), up ? NULL : "the ports above, and the agent's log",
               "the agent has %s %s: %s; MTU %llu, messages up to %s, registrations up to %s, %llu "
               "READs at a time, %s registered, %llu of at most %llu queue pairs, %llu faults",
               text_of(o, "name"), text_of(o, "state"), text_of(o, "why"), count_of(o, "mtu"),
               message, region, count_of(o, "max_reads"), bytes, count_of(o, "pairs"),
               count_of(o, "max_pairs"), count_of(o, "faults"));
    if (up)
        compare_gid(d, o, in_force);
    if (failed != 0)
        doctor_say(d, DOCTOR_WARN, "see locked memory above, and the agent's log",
                   "%llu registrations of memory with %s have failed", failed, text_of(o, "name"));
}

/* Is the device one of those that the agent has? */
static bool has_device(const cJSON *nics, const char *device)
{
    size_t n = strlen(device);
    const cJSON *o;

    cJSON_ArrayForEach(o, nics)
    {
        const char *name = text_of(o, "name");

        if (strncmp(name, device, n) == 0 && name[n] == '/')
            return true;
    }
    return false;
}

void doctor_check_rdma_nics(struct doctor *d, const cJSON *answer)
{
    const cJSON *nics = cJSON_GetObjectItemCaseSensitive(answer, "nics"), *o;
    const struct choice in_force = {text_of(answer, "enable"), text_of(answer, "devices"),
                                    text_of(answer, "deny"), text_of(answer, "gid_index")};
    char sys[512], names[MCT_SYSFS_DEVICES_MAX][MCT_SYSFS_NAME_MAX];
    size_t n = mct_sysfs_devices(sys_of(d, sys, sizeof(sys)), names, MCT_SYSFS_DEVICES_MAX);

    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(answer, "used")))
        doctor_say(d, n == 0 ? DOCTOR_OK : DOCTOR_NOTE,
                   n == 0 || strcmp(text_of(answer, "enable"), "off") == 0
                       ? NULL
                       : "RDMA takes [peer] listen; a device that came after the agent's start "
                         "takes a restart, each kind of device its driver for libibverbs (package "
                         "ibverbs-providers)",
                   "the agent uses no RDMA device ([rdma] enable = %s)", text_of(answer, "enable"));
    cJSON_ArrayForEach(o, nics)
    {
        say_nic(d, o, &in_force);
    }
    for (size_t i = 0; i < n && cJSON_GetArraySize(nics) != 0; i++)
        if (!has_device(nics, names[i]) && left_out(&in_force, names[i], 1) == NULL)
            doctor_say(d, DOCTOR_WARN,
                       "if it has just come, wait ten seconds; an agent uses 16 ports at most: "
                       "name those that it is to use in [rdma] devices",
                       "the agent does not know %s", names[i]);
}

void doctor_check_rdma_agent(struct doctor *d)
{
    cJSON *answer = doctor_ask_agent(d, MCSHM_QUERY_NICS, "devices");

    if (answer != NULL)
        doctor_check_rdma_nics(d, answer);
    cJSON_Delete(answer);
}
