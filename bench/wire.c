/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include "say.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES_MAX (HOSTS * HOSTS_RAILS_MAX)
#define GIDS_MAX 256
#define MAPPED "0000:0000:0000:0000:0000:ffff:" /* an IPv4 address, as a GID */

struct names {
    char name[DEVICES_MAX][HOSTS_NAME_MAX];
    unsigned count;
};

bool wire_take(int option, struct wire_options *o, int *rc)
{
    switch (option) {
    case WIRE_TRANSPORT:
        o->rdma = strcmp(optarg, "rdma") == 0;
        if (!o->rdma && strcmp(optarg, "tcp") != 0)
            *rc = say_error(-EINVAL, "--transport %s: expected tcp or rdma", optarg);
        return true;
    case WIRE_DEVICES_A:
    case WIRE_DEVICES_B:
        o->devices[option - WIRE_DEVICES_A] = optarg;
        return true;
    case WIRE_ADDRESS_A:
    case WIRE_ADDRESS_B:
        o->address[option - WIRE_ADDRESS_A] = optarg;
        return true;
    default:
        return false;
    }
}

bool wire_asked(const struct wire_options *o)
{
    return o->rdma || o->devices[0] != NULL || o->devices[1] != NULL || o->address[0] != NULL ||
           o->address[1] != NULL;
}

/* The first line of a file below sysfs, without its end. Returns whether there is one. */
static bool read_line(const char *sysfs, const char *device, const char *rest, char *out,
                      size_t size)
{
    char path[PATH_MAX];
    FILE *f;
    bool ok;

    snprintf(path, sizeof(path), "%s/class/infiniband/%s/%s", sysfs, device, rest);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    ok = fgets(out, (int)size, f) != NULL;
    fclose(f);
    if (ok)
        out[strcspn(out, "\n")] = '\0';
    return ok && out[0] != '\0';
}

static int by_version(const void *a, const void *b)
{
    return strverscmp(a, b);
}

static void list_devices(const char *sysfs, struct names *out)
{
    char path[PATH_MAX];
    struct dirent *entry;
    DIR *folder;

    out->count = 0;
    snprintf(path, sizeof(path), "%s/class/infiniband", sysfs);
    folder = opendir(path);
    while (folder != NULL && (entry = readdir(folder)) != NULL)
        if (entry->d_name[0] != '.' && out->count < DEVICES_MAX &&
            strlen(entry->d_name) < HOSTS_NAME_MAX)
            strcpy(out->name[out->count++], entry->d_name);
    if (folder != NULL)
        closedir(folder);
    qsort(out->name, out->count, sizeof(out->name[0]), by_version);
}

/* Is b what a becomes when one letter a in it is made b? */
static bool partners(const char *a, const char *b)
{
    size_t at = 0;

    while (a[at] != '\0' && a[at] == b[at])
        at++;
    return a[at] == 'a' && b[at] == 'b' && strcmp(a + at + 1, b + at + 1) == 0;
}

static void pair_by_name(const struct names *all, struct names out[HOSTS])
{
    for (unsigned i = 0; i < all->count; i++)
        for (unsigned k = 0; k < all->count; k++)
            if (out[0].count < HOSTS_RAILS_MAX && partners(all->name[i], all->name[k])) {
                strcpy(out[0].name[out[0].count++], all->name[i]);
                strcpy(out[1].name[out[1].count++], all->name[k]);
            }
    if (out[0].count > 0)
        return;
    for (unsigned i = 0; i < all->count / HOSTS; i++) {
        strcpy(out[0].name[out[0].count++], all->name[i]);
        strcpy(out[1].name[out[1].count++], all->name[all->count / HOSTS + i]);
    }
}

static int split(const char *option, const char *text, struct names *out)
{
    char copy[1024], *rest;

    snprintf(copy, sizeof(copy), "%s", text);
    for (char *name = strtok_r(copy, ", ", &rest); name != NULL;
         name = strtok_r(NULL, ", ", &rest)) {
        if (out->count == HOSTS_RAILS_MAX || strlen(name) >= HOSTS_NAME_MAX)
            return say_error(-EINVAL, "--%s: at most %u devices, with names of at most %u bytes",
                             option, HOSTS_RAILS_MAX, HOSTS_NAME_MAX - 1);
        strcpy(out->name[out->count++], name);
    }
    return out->count > 0 ? 0 : say_error(-EINVAL, "--%s: give at least one device", option);
}

/* The last GID of RoCE v2 that is an IPv4 address, and whose it is. */
static int look_at(const char *sysfs, const char *device, struct hosts_end *out)
{
    char text[256], rest[64];

    *out = (struct hosts_end){.gid_index = -1};
    snprintf(out->device, sizeof(out->device), "%s", device);
    for (int i = 0; i < GIDS_MAX; i++) {
        unsigned high, low;
        struct in_addr address;

        snprintf(rest, sizeof(rest), "ports/1/gids/%d", i);
        if (!read_line(sysfs, device, rest, text, sizeof(text)))
            break;
        if (strncmp(text, MAPPED, strlen(MAPPED)) != 0 ||
            sscanf(text + strlen(MAPPED), "%x:%x", &high, &low) != 2)
            continue;
        snprintf(rest, sizeof(rest), "ports/1/gid_attrs/types/%d", i);
        if (read_line(sysfs, device, rest, text, sizeof(text)) && strstr(text, "v2") == NULL)
            continue;
        address.s_addr = htonl(high << 16 | low);
        inet_ntop(AF_INET, &address, out->address, sizeof(out->address));
        out->gid_index = i;
        snprintf(rest, sizeof(rest), "ports/1/gid_attrs/ndevs/%d", i);
        if (read_line(sysfs, device, rest, text, sizeof(text)) ||
            read_line(sysfs, device, "parent", text, sizeof(text)))
            snprintf(out->link, sizeof(out->link), "%.*s", (int)HOSTS_NAME_MAX - 1, text);
    }
    return out->gid_index >= 0
               ? 0
               : say_error(-ENODEV,
                           "%s has no RoCE v2 GID of an IPv4 address on port 1: give its network "
                           "interface one, or name other devices with --devices-a and --devices-b",
                           device);
}

int wire_find(const struct wire_options *o, const char *sysfs,
              struct hosts_end ends[HOSTS][HOSTS_RAILS_MAX], unsigned *rails)
{
    static const char *const options[] = {"devices-a", "devices-b"};
    struct names all, chosen[HOSTS] = {{.count = 0}, {.count = 0}};
    int rc = 0;

    list_devices(sysfs, &all);
    if (all.count == 0)
        return say_error(-ENODEV, "there is no RDMA device on this host; `make bench-rdma` runs "
                                  "this in a virtual machine that has some (tests/rdma/vm.sh)");
    if ((o->devices[0] == NULL) != (o->devices[1] == NULL))
        return say_error(-EINVAL, "--devices-a and --devices-b go together");
    if (o->devices[0] == NULL)
        pair_by_name(&all, chosen);
    for (unsigned host = 0; rc == 0 && o->devices[0] != NULL && host < HOSTS; host++)
        rc = split(options[host], o->devices[host], &chosen[host]);
    if (rc != 0)
        return rc;
    if (chosen[0].count == 0 || chosen[0].count != chosen[1].count)
        return say_error(-ENODEV, "two hosts take as many RDMA devices each: %u and %u are there",
                         chosen[0].count, chosen[0].count == 0 ? all.count : chosen[1].count);
    *rails = chosen[0].count;
    for (unsigned i = 0; rc == 0 && i < HOSTS * *rails; i++)
        rc = look_at(sysfs, chosen[i % HOSTS].name[i / HOSTS], &ends[i % HOSTS][i / HOSTS]);
    for (unsigned host = 0; rc == 0 && host < HOSTS; host++)
        if (o->address[host] != NULL)
            snprintf(ends[host][0].address, HOSTS_NAME_MAX, "%s", o->address[host]);
    return rc;
}

int wire_open(const struct wire_options *o, unsigned rails, struct hosts *h)
{
    struct hosts_end ends[HOSTS][HOSTS_RAILS_MAX] = {0};
    unsigned found;
    int rc = wire_find(o, "/sys", ends, &found);

    if (rc != 0)
        return rc;
    if (rails > found)
        return say_error(-ENODEV, "%u rails take as many RDMA devices of each host: there are %u",
                         rails, found);
    *h = (struct hosts){.rails = rails};
    memcpy(h->end, ends, sizeof(h->end));
    return 0;
}
