/* SPDX-License-Identifier: Apache-2.0 */
#include "sysfs.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NUMBER_MAX 999999u /* that any file here may hold and be believed */

bool mct_sysfs_is_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && strlen(name) < MCT_SYSFS_NAME_MAX &&
           strchr(name, '/') == NULL;
}

/* The first line of a file, without blanks around it. 0 or a negative errno; "" then. */
static int read_line(char *out, size_t size, const char *sys, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int read_line(char *out, size_t size, const char *sys, const char *format, ...)
{
    char path[PATH_MAX];
    va_list ap;
    ssize_t n = -1;
    int fd, k, res = 0;

    out[0] = '\0';
    k = snprintf(path, sizeof(path), "%s", sys);
    if (k < 0 || (size_t)k >= sizeof(path))
        return -ENAMETOOLONG;
    va_start(ap, format);
    vsnprintf(path + k, sizeof(path) - (size_t)k, format, ap);
    va_end(ap);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    n = read(fd, out, size - 1);
    if (n < 0) {
        res = -errno;
        n = 0;
    }
    close(fd);
    out[n] = '\0';
    out[strcspn(out, "\n")] = '\0';
    k = (int)strspn(out, " \t");
    memmove(out, out + k, strlen(out + k) + 1);
    for (n = (ssize_t)strlen(out); n > 0 && (out[n - 1] == ' ' || out[n - 1] == '\t'); n--)
        out[n - 1] = '\0';
    return res;
}

/* A whole number, decimal or with 0x; `otherwise` when it is none that can be believed. */
static long to_number(const char *text, long otherwise)
{
    char *end;
    long v;

    errno = 0;
    v = strtol(text, &end, 0);
    return end == text || *end != '\0' || errno != 0 || v < -1 || v > (long)NUMBER_MAX ? otherwise
                                                                                       : v;
}

/* "4: ACTIVE" */
static void read_state(char *out, size_t size, const char *sys, const char *name, unsigned port,
                       const char *file)
{
    char text[64];
    const char *word;

    read_line(text, sizeof(text), sys, "/class/infiniband/%s/ports/%u/%s", name, port, file);
    word = strchr(text, ':');
    word = word != NULL ? word + 1 : text;
    word += strspn(word, " ");
    snprintf(out, size, "%.*s", (int)size - 1, word);
}

uint64_t mct_sysfs_rate(const char *text)
{
    uint64_t bits = 0, unit = UINT64_C(1000000000);
    const char *p = text + strspn(text, " \t");

    if (*p < '0' || *p > '9')
        return 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        bits = bits * 10 + (uint64_t)(*p - '0');
        if (bits > NUMBER_MAX)
            return 0;
    }
    bits *= unit;
    if (*p == '.')
        for (p++; *p >= '0' && *p <= '9'; p++) {
            unit /= 10;
            bits += unit * (uint64_t)(*p - '0');
        }
    return strncmp(p + strspn(p, " \t"), "Gb/s", 4) == 0 ? bits : 0;
}

/* ---- PCI --------------------------------------------------------------------------- */

/* "0000:3b:00.0" */
static bool is_pci(const char *s, size_t n)
{
    static const char shape[] = "xxxx:xx:xx.x"; /* domains may have more digits than four */
    size_t extra = n > sizeof(shape) - 1 ? n - (sizeof(shape) - 1) : 0;

    if (n < sizeof(shape) - 1 || extra > 4)
        return false;
    for (size_t i = 0; i < n; i++) {
        char want = i < extra ? 'x' : shape[i - extra];

        if (want == 'x' ? strchr("0123456789abcdefABCDEF", s[i]) == NULL : s[i] != want)
            return false;
    }
    return true;
}

struct chain { /* the PCI devices from the host bridge to one of them */
    char path[PATH_MAX];
    const char *at[32]; /* into path */
    size_t length[32];
    size_t n;
};

/* What a link below `sys` leads to. False: to no PCI device. */
static bool follow(struct chain *c, const char *link)
{
    c->n = 0;
    if (realpath(link, c->path) == NULL)
        return false;
    for (const char *p = c->path; *p != '\0';) {
        size_t n = strcspn(p, "/");

        if (is_pci(p, n) && c->n < sizeof(c->at) / sizeof(c->at[0])) {
            c->at[c->n] = p;
            c->length[c->n++] = n;
        }
        p += n + (p[n] == '/');
    }
    return c->n != 0;
}

static bool pci_chain(struct chain *c, const char *sys, const char *pci)
{
    char link[PATH_MAX];

    c->n = 0;
    if (!is_pci(pci, strlen(pci)))
        return false;
    return snprintf(link, sizeof(link), "%s/bus/pci/devices/%s", sys, pci) < (int)sizeof(link) &&
           follow(c, link);
}

static bool same_link(const struct chain *a, const struct chain *b, size_t i)
{
    return a->length[i] == b->length[i] && memcmp(a->at[i], b->at[i], a->length[i]) == 0;
}

int mct_sysfs_pci_node(const char *sys, const char *pci)
{
    char text[32];

    if (!is_pci(pci, strlen(pci)))
        return -1;
    read_line(text, sizeof(text), sys, "/bus/pci/devices/%s/numa_node", pci);
    return (int)to_number(text, -1);
}

enum mct_sysfs_distance mct_sysfs_node_distance(const char *sys, const char *pci, int node)
{
    int own = mct_sysfs_pci_node(sys, pci);

    return own < 0 || node < 0 ? MCT_SYSFS_UNKNOWN : own == node ? MCT_SYSFS_NODE : MCT_SYSFS_FAR;
}

enum mct_sysfs_distance mct_sysfs_pci_distance(const char *sys, const char *a, const char *b)
{
    struct chain ca, cb;
    size_t common = 0, bridge_a, bridge_b;
    bool known = pci_chain(&ca, sys, a) && pci_chain(&cb, sys, b);

    if (!known)
        return MCT_SYSFS_UNKNOWN;
    while (common < ca.n && common < cb.n && same_link(&ca, &cb, common))
        common++;
    /* functions differ in the digit after the point alone */
    if (strlen(a) == strlen(b) && strncasecmp(a, b, strlen(a) - 1) == 0)
        return MCT_SYSFS_SAME;
    if (common >= 2) /* a root port and a switch's upstream port */
        return MCT_SYSFS_SWITCH;
    if (common == 1)
        return MCT_SYSFS_ROOT;
    bridge_a = (size_t)(ca.at[0] - ca.path);
    bridge_b = (size_t)(cb.at[0] - cb.path);
    if (bridge_a == bridge_b && memcmp(ca.path, cb.path, bridge_a) == 0)
        return MCT_SYSFS_ROOT;
    return mct_sysfs_node_distance(sys, a, mct_sysfs_pci_node(sys, b));
}

/* ---- devices ------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    return strverscmp(a, b);
}

/* The names in a folder, sorted as people count. */
static size_t names_in(const char *path, char (*names)[MCT_SYSFS_NAME_MAX], size_t max)
{
    DIR *dir = opendir(path);
    struct dirent *e;
    size_t n = 0;

    while (n < max && dir != NULL && (e = readdir(dir)) != NULL)
        if (mct_sysfs_is_name(e->d_name))
            snprintf(names[n++], sizeof(names[0]), "%.*s", (int)sizeof(names[0]) - 1, e->d_name);
    if (dir != NULL)
        closedir(dir);
    qsort(names, n, sizeof(names[0]), by_name);
    return n;
}

size_t mct_sysfs_devices(const char *sys, char (*names)[MCT_SYSFS_NAME_MAX], size_t max)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/class/infiniband", sys);
    return names_in(path, names, max);
}

static void find_pci(const char *sys, struct mct_sysfs_device *d)
{
    char link[PATH_MAX];
    struct chain c;
    bool found;

    snprintf(link, sizeof(link), "%s/class/infiniband/%s/device", sys, d->name);
    found = follow(&c, link);
    if (!found && mct_sysfs_is_name(d->netdev)) {
        snprintf(link, sizeof(link), "%s/class/net/%s/device", sys, d->netdev);
        found = follow(&c, link);
    }
    if (found)
        snprintf(d->pci, sizeof(d->pci), "%.*s", (int)c.length[c.n - 1], c.at[c.n - 1]);
}

static void find_node(const char *sys, struct mct_sysfs_device *d)
{
    char text[32];

    if (read_line(text, sizeof(text), sys, "/class/infiniband/%s/device/numa_node", d->name) != 0 &&
        mct_sysfs_is_name(d->netdev))
        read_line(text, sizeof(text), sys, "/class/net/%s/device/numa_node", d->netdev);
    d->node = (int)to_number(text, -1);
}

static void find_uverbs(const char *sys, struct mct_sysfs_device *d)
{
    char path[PATH_MAX], names[MCT_SYSFS_DEVICES_MAX][MCT_SYSFS_NAME_MAX], text[64];
    size_t n;

    snprintf(path, sizeof(path), "%s/class/infiniband_verbs", sys);
    n = names_in(path, names, MCT_SYSFS_DEVICES_MAX);
    for (size_t i = 0; i < n && d->uverbs[0] == '\0'; i++)
        if (read_line(text, sizeof(text), sys, "/class/infiniband_verbs/%s/ibdev", names[i]) == 0 &&
            strcmp(text, d->name) == 0)
            snprintf(d->uverbs, sizeof(d->uverbs), "%.*s", (int)sizeof(d->uverbs) - 1, names[i]);
}

int mct_sysfs_device(const char *sys, const char *name, struct mct_sysfs_device *out)
{
    char path[PATH_MAX], names[MCT_SYSFS_PORTS_MAX][MCT_SYSFS_NAME_MAX];
    size_t n;

    *out = (struct mct_sysfs_device){.node = -1};
    snprintf(path, sizeof(path), "%s/class/infiniband/%s", sys, name);
    if (!mct_sysfs_is_name(name) || access(path, F_OK) != 0)
        return -ENODEV;
    snprintf(out->name, sizeof(out->name), "%s", name);
    read_line(out->netdev, sizeof(out->netdev), sys, "/class/infiniband/%s/parent", name);
    read_line(out->firmware, sizeof(out->firmware), sys, "/class/infiniband/%s/fw_ver", name);
    read_line(out->board, sizeof(out->board), sys, "/class/infiniband/%s/board_id", name);
    find_pci(sys, out);
    find_node(sys, out);
    find_uverbs(sys, out);
    snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports", sys, name);
    n = names_in(path, names, MCT_SYSFS_PORTS_MAX);
    for (size_t i = 0; i < n; i++) {
        long port = to_number(names[i], 0);

        if (port >= 1 && port <= 255)
            out->ports[out->nports++] = (unsigned)port;
    }
    return 0;
}

/* The interface of a RoCE port. */
static void find_netdev(const char *sys, const char *name, unsigned port,
                        struct mct_sysfs_port *out)
{
    char path[PATH_MAX], names[32][MCT_SYSFS_NAME_MAX], text[32];
    size_t n;

    read_line(out->netdev, sizeof(out->netdev), sys,
              "/class/infiniband/%s/ports/%u/gid_attrs/ndevs/0", name, port);
    if (out->netdev[0] == '\0') /* software RDMA */
        read_line(out->netdev, sizeof(out->netdev), sys, "/class/infiniband/%s/parent", name);
    snprintf(path, sizeof(path), "%s/class/infiniband/%s/device/net", sys, name);
    n = out->netdev[0] == '\0' ? names_in(path, names, sizeof(names) / sizeof(names[0])) : 0;
    for (size_t i = 0; i < n && out->netdev[0] == '\0'; i++) {
        if (strlen(names[i]) >= sizeof(out->netdev) ||
            read_line(text, sizeof(text), sys, "/class/net/%s/dev_port", names[i]) != 0)
            continue;
        if (to_number(text, -1) == (long)port - 1)
            snprintf(out->netdev, sizeof(out->netdev), "%.*s", (int)sizeof(out->netdev) - 1,
                     names[i]);
    }
    if (!mct_sysfs_is_name(out->netdev))
        out->netdev[0] = '\0';
}

int mct_sysfs_port(const char *sys, const char *name, unsigned port, struct mct_sysfs_port *out)
{
    char text[64];

    *out = (struct mct_sysfs_port){.rate = 0};
    if (!mct_sysfs_is_name(name))
        return -ENODEV;
    read_state(out->state, sizeof(out->state), sys, name, port, "state");
    if (out->state[0] == '\0')
        return -ENODEV;
    read_state(out->phys_state, sizeof(out->phys_state), sys, name, port, "phys_state");
    read_line(text, sizeof(text), sys, "/class/infiniband/%s/ports/%u/link_layer", name, port);
    out->infiniband = strcmp(text, "InfiniBand") == 0;
    read_line(text, sizeof(text), sys, "/class/infiniband/%s/ports/%u/rate", name, port);
    out->rate = mct_sysfs_rate(text);
    read_line(text, sizeof(text), sys, "/class/infiniband/%s/ports/%u/lid", name, port);
    out->lid = (uint32_t)to_number(text, 0);
    find_netdev(sys, name, port, out);
    if (out->netdev[0] != '\0') {
        read_line(text, sizeof(text), sys, "/class/net/%s/mtu", out->netdev);
        out->netdev_mtu = (unsigned)to_number(text, 0);
        read_line(out->netdev_state, sizeof(out->netdev_state), sys, "/class/net/%s/operstate",
                  out->netdev);
    }
    return 0;
}

/* ---- GIDs ---------------------------------------------------------------------------- */

size_t mct_sysfs_gids(const char *sys, const char *name, unsigned port, struct mct_gid_entry *out,
                      size_t max)
{
    static const uint8_t zero[16];
    size_t n = 0;

    if (!mct_sysfs_is_name(name))
        return 0;
    for (unsigned i = 0; i < MCT_SYSFS_GIDS_MAX && n < max; i++) {
        struct mct_gid_entry *e = &out[n];
        char text[64], type[64];
        int res;

        res = read_line(text, sizeof(text), sys, "/class/infiniband/%s/ports/%u/gids/%u", name,
                        port, i);
        if (res == -ENOENT)
            break;
        *e = (struct mct_gid_entry){.index = (int)i};
        if (res != 0 || inet_pton(AF_INET6, text, e->gid) != 1 ||
            memcmp(e->gid, zero, sizeof(zero)) == 0)
            continue;
        /* EINVAL: the entry has gone in the meantime; kernels without types have IB or RoCE v1 only */
        if (read_line(type, sizeof(type), sys, "/class/infiniband/%s/ports/%u/gid_attrs/types/%u",
                      name, port, i) == -EINVAL)
            continue;
        read_line(text, sizeof(text), sys, "/class/infiniband/%s/ports/%u/link_layer", name, port);
        e->type = strcmp(type, "RoCE v2") == 0      ? MCT_GID_ROCE_V2
                  : strcmp(text, "InfiniBand") == 0 ? MCT_GID_IB
                                                    : MCT_GID_ROCE_V1;
        read_line(e->netdev, sizeof(e->netdev), sys,
                  "/class/infiniband/%s/ports/%u/gid_attrs/ndevs/%u", name, port, i);
        n++;
    }
    return n;
}

static uint8_t ones(const uint8_t *mask, size_t n)
{
    uint8_t bits = 0;

    for (size_t i = 0; i < n && mask[i] != 0; i++)
        bits = (uint8_t)(bits + __builtin_popcount(mask[i]));
    return bits;
}

static bool to_address(const struct ifaddrs *i, struct mct_gid_address *out)
{
    size_t n = strcspn(i->ifa_name, ":"); /* an address may have a label, "eth0:1" */

    *out = (struct mct_gid_address){.up = (i->ifa_flags & IFF_UP) != 0 &&
                                          (i->ifa_flags & IFF_RUNNING) != 0};
    if (i->ifa_addr == NULL || i->ifa_netmask == NULL || n >= sizeof(out->netdev))
        return false;
    snprintf(out->netdev, sizeof(out->netdev), "%.*s", (int)n, i->ifa_name);
    if (i->ifa_addr->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const void *)i->ifa_addr, *m = (const void *)i->ifa_netmask;

        out->gid[10] = out->gid[11] = 0xff;
        memcpy(out->gid + 12, &a->sin_addr, 4);
        out->prefix = (uint8_t)(96 + ones((const void *)&m->sin_addr, 4));
        return true;
    }
    if (i->ifa_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const void *)i->ifa_addr, *m = (const void *)i->ifa_netmask;

        memcpy(out->gid, &a->sin6_addr, 16);
        out->prefix = ones((const void *)&m->sin6_addr, 16);
        return true;
    }
    return false;
}

int mct_sysfs_addresses(struct mct_gid_address **out, size_t *n)
{
    struct ifaddrs *list = NULL;
    size_t max = 0;
    int res = 0;

    *out = NULL;
    *n = 0;
    if (getifaddrs(&list) != 0)
        return -errno;
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next)
        max++;
    if (max != 0)
        *out = calloc(max, sizeof(**out));
    if (max != 0 && *out == NULL) {
        res = -ENOMEM;
        goto end;
    }
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next)
        if (to_address(i, &(*out)[*n]))
            ++*n;
end:
    freeifaddrs(list);
    return res;
}

int mct_sysfs_choose_gid(const char *sys, const char *name, unsigned port, bool infiniband,
                         int wanted, struct mct_gid_choice *out)
{
    struct mct_gid_entry *table = calloc(MCT_SYSFS_GIDS_MAX, sizeof(*table));
    struct mct_gid_address *addresses = NULL;
    size_t n, naddresses = 0;
    int res = -ENOMEM;

    *out = (struct mct_gid_choice){.index = -1};
    if (table != NULL)
        res = mct_sysfs_addresses(&addresses, &naddresses);
    if (res != 0) {
        snprintf(out->why, sizeof(out->why), "the addresses of this host cannot be read: %s",
                 strerror(-res));
        goto end;
    }
    n = mct_sysfs_gids(sys, name, port, table, MCT_SYSFS_GIDS_MAX);
    res = mct_gid_choose(table, n, infiniband, addresses, naddresses, wanted, out);
end:
    free(addresses);
    free(table);
    return res;
}
