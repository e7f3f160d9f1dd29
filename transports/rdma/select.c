/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of devices: NAME, NAME/PORT, or patterns of either, parted by commas or blanks.
 */
#include "devices.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTS ", \t\r\n"

/* The next entry of a list, copied out; false: there is none. Longer ones are cut: _check refuses them. */
static bool next_entry(const char **at, char out[MCT_RDMA_NAME_MAX + 1])
{
    size_t length;

    *at += strspn(*at, PARTS);
    length = strcspn(*at, PARTS);
    if (length == 0)
        return false;
    snprintf(out, MCT_RDMA_NAME_MAX + 1, "%.*s", (int)length, *at);
    *at += length;
    return true;
}

static bool is_pattern(const char *entry)
{
    return strpbrk(entry, "*?[") != NULL;
}

/* 1..255; 0: it is no port. */
static unsigned port_of(const char *text)
{
    char *end;
    unsigned long n;

    if (text[0] < '0' || text[0] > '9')
        return 0;
    n = strtoul(text, &end, 10);
    return *end == 0 && n <= 255 ? (unsigned)n : 0;
}

int mct_rdma_select_check(const char *list, char *error, size_t error_size)
{
    char entry[MCT_RDMA_NAME_MAX + 1];
    const char *slash;

    while (next_entry(&list, entry)) {
        slash = strchr(entry, '/');
        if (strlen(entry) >= MCT_RDMA_NAME_MAX) {
            snprintf(error, error_size,
                     "'%s...' in a list of RDMA devices: want a name of at most %u characters",
                     entry, MCT_RDMA_NAME_MAX - 1);
            return -EINVAL;
        }
        if (slash == entry || (slash != NULL && strchr(slash + 1, '/') != NULL) ||
            (slash != NULL && !is_pattern(entry) && port_of(slash + 1) == 0)) {
            snprintf(error, error_size,
                     "'%s' in a list of RDMA devices: want NAME, NAME/PORT with a port of 1 to "
                     "255, or a pattern of either",
                     entry);
            return -EINVAL;
        }
    }
    return 0;
}

static bool matches(const char *entry, const char *device, unsigned port)
{
    char full[MCT_RDMA_NAME_MAX + 16];

    snprintf(full, sizeof(full), "%s/%u", device, port);
    return strcmp(entry, "auto") == 0 || fnmatch(entry, device, FNM_NOESCAPE) == 0 ||
           fnmatch(entry, full, FNM_NOESCAPE) == 0;
}

static bool list_has(const char *list, const char *device, unsigned port)
{
    char entry[MCT_RDMA_NAME_MAX + 1];

    while (next_entry(&list, entry))
        if (matches(entry, device, port))
            return true;
    return false;
}

bool mct_rdma_select_allows(const char *devices, const char *deny, const char *device,
                            unsigned port)
{
    return !list_has(deny, device, port) && list_has(devices, device, port);
}

void mct_rdma_select_names(const char *list,
                           void (*name)(void *context, const char *device, unsigned port),
                           void *context)
{
    char entry[MCT_RDMA_NAME_MAX + 1], *slash;

    while (next_entry(&list, entry)) {
        if (is_pattern(entry) || strcmp(entry, "auto") == 0)
            continue;
        slash = strchr(entry, '/');
        if (slash != NULL)
            *slash = 0;
        name(context, entry, slash != NULL ? port_of(slash + 1) : 1);
    }
}

void mct_rdma_select_unmatched(const char *list, struct mct_rdma_device *const *devices, unsigned n,
                               void (*entry)(void *context, const char *text), void *context)
{
    char text[MCT_RDMA_NAME_MAX + 1];
    unsigned i;

    while (next_entry(&list, text)) {
        if (strcmp(text, "auto") == 0)
            continue;
        for (i = 0; i < n; i++)
            if (matches(text, devices[i]->device, devices[i]->port))
                break;
        if (i == n)
            entry(context, text);
    }
}
