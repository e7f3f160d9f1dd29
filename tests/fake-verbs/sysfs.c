/* SPDX-License-Identifier: Apache-2.0 */
/* The folders and files in which Linux says what is known of RDMA devices. */
#include "inside.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *fake_sysfs_dir;

/* Below the folder: format says which; with all the folders above it. */
static void path_of(char path[PATH_MAX], const char *format, va_list args)
{
    int n = snprintf(path, PATH_MAX, "%s/", fake_sysfs_dir);

    vsnprintf(path + n, (size_t)(PATH_MAX - n), format, args);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0755) != 0 && errno != EEXIST)
            fake_abort("mkdir %s: %s", path, strerror(errno));
        *slash = '/';
    }
}

static void put(const char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(const char *text, const char *format, ...)
{
    char path[PATH_MAX];
    va_list args;
    FILE *f;

    va_start(args, format);
    path_of(path, format, args);
    va_end(args);
    f = fopen(path, "we");
    if (f == NULL || fprintf(f, "%s\n", text) < 0 || fclose(f) != 0)
        fake_abort("%s: %s", path, strerror(errno));
}

static void link_to(const char *target, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void link_to(const char *target, const char *format, ...)
{
    char path[PATH_MAX];
    va_list args;

    va_start(args, format);
    path_of(path, format, args);
    va_end(args);
    if (symlink(target, path) != 0 && errno != EEXIST)
        fake_abort("%s: %s", path, strerror(errno));
}

/* A device that was pulled out has no files any more; its folder stays, with a name that nobody looks for. */
static void hide(const char *folder, const char *name)
{
    char from[PATH_MAX], to[PATH_MAX];

    snprintf(from, sizeof(from), "%s/%s/%s", fake_sysfs_dir, folder, name);
    for (unsigned n = 0; n < 1000; n++) {
        snprintf(to, sizeof(to), "%s/gone/%s.%u", fake_sysfs_dir, name, n);
        if (access(to, F_OK) != 0)
            break;
    }
    snprintf(from, sizeof(from), "%s/gone", fake_sysfs_dir);
    (void)mkdir(from, 0755);
    snprintf(from, sizeof(from), "%s/%s/%s", fake_sysfs_dir, folder, name);
    if (rename(from, to) != 0 && errno != ENOENT)
        fake_abort("%s: %s", from, strerror(errno));
}

static void write_gid(const char *name, unsigned port, unsigned index, const struct fake_gid *g,
                      bool infiniband)
{
    bool empty = memcmp(g->gid, (uint8_t[16]){0}, 16) == 0;
    char text[64];
    size_t n = 0;

    for (unsigned i = 0; i < 16; i += 2)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%02x%02x", i > 0 ? ":" : "", g->gid[i],
                              g->gid[i + 1]);
    put(text, "class/infiniband/%s/ports/%u/gids/%u", name, port, index);
    if (empty) /* reading these fails in the kernel: here they are not there */
        return;
    put(g->type == IBV_GID_TYPE_ROCE_V2 && !infiniband ? "RoCE v2" : "IB/RoCE v1",
        "class/infiniband/%s/ports/%u/gid_attrs/types/%u", name, port, index);
    put(g->netdev, "class/infiniband/%s/ports/%u/gid_attrs/ndevs/%u", name, port, index);
}

static void write_port(const struct device *d, unsigned p)
{
    static const char *const states[] = {"0: NOP",   "1: DOWN",   "2: INIT",
                                         "3: ARMED", "4: ACTIVE", "5: ACTIVE_DEFER"};
    const struct fake_port *port = &d->v.ports[p - 1];
    bool infiniband = port->attr.link_layer == IBV_LINK_LAYER_INFINIBAND;
    const char *name = d->v.name, *netdev = port->gids[0].netdev;
    char text[32];

    put(states[port->attr.state], "class/infiniband/%s/ports/%u/state", name, p);
    put(port->attr.state == IBV_PORT_ACTIVE ? "5: LinkUp" : "3: Disabled",
        "class/infiniband/%s/ports/%u/phys_state", name, p);
    put(infiniband ? "InfiniBand" : "Ethernet", "class/infiniband/%s/ports/%u/link_layer", name, p);
    put("100 Gb/sec (4X EDR)", "class/infiniband/%s/ports/%u/rate", name, p);
    snprintf(text, sizeof(text), "0x%x", port->attr.lid);
    put(text, "class/infiniband/%s/ports/%u/lid", name, p);
    for (unsigned g = 0; g < FAKE_GIDS; g++)
        write_gid(name, p, g, &port->gids[g], infiniband);
    if (infiniband || netdev[0] == '\0')
        return;
    put(port->attr.state == IBV_PORT_ACTIVE ? "up" : "down", "class/net/%s/operstate", netdev);
    put("1500", "class/net/%s/mtu", netdev);
    snprintf(text, sizeof(text), "%u", p - 1);
    put(text, "class/net/%s/dev_port", netdev);
}

static void write_device(const struct device *d)
{
    const char *name = d->v.name;
    char target[PATH_MAX], text[16];

    put("1: CA", "class/infiniband/%s/node_type", name);
    put(d->v.attr.fw_ver, "class/infiniband/%s/fw_ver", name);
    put(name, "class/infiniband_verbs/uverbs%u/ibdev", d->v.index);
    for (unsigned p = 1; p <= d->v.nports; p++)
        write_port(d, p);
    if (d->v.pci[0] == '\0')
        return;
    snprintf(text, sizeof(text), "%d", d->v.node);
    put(text, "devices/pci0000:00/%s/numa_node", d->v.pci);
    snprintf(target, sizeof(target), "../../../devices/pci0000:00/%s", d->v.pci);
    link_to(target, "class/infiniband/%s/device", name);
    link_to(target, "bus/pci/devices/%s", d->v.pci);
}

/* Another device may have its name by now. */
static void hide_device(struct device *d)
{
    char uverbs[32];
    bool again = false;

    d->hidden = true;
    for (const struct device *o = d->next; o != NULL; o = o->next)
        again = again || strcmp(o->v.name, d->v.name) == 0;
    snprintf(uverbs, sizeof(uverbs), "uverbs%u", d->v.index);
    hide("class/infiniband_verbs", uverbs);
    if (!again)
        hide("class/infiniband", d->v.name);
}

void fake_sysfs_update(void)
{
    for (struct device *d = fake_devices; fake_sysfs_dir != NULL && d != NULL; d = d->next)
        if (!d->gone)
            write_device(d);
        else if (!d->hidden)
            hide_device(d);
}

void fake_sysfs(const char *dir)
{
    pthread_mutex_lock(&fake_lock);
    free(fake_sysfs_dir);
    fake_sysfs_dir = strdup(dir);
    fake_sysfs_update();
    fake_leave();
}
