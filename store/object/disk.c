/* SPDX-License-Identifier: Apache-2.0 */
/* The SSD tier. */
#include "disk.h"

#include <errno.h>

int mco_disk_open(const struct mco_disk_options *o, struct mco_disk **out, char *error,
                  size_t error_size)
{
    (void)o;
    (void)out;
    (void)error;
    (void)error_size;
    return -ENOTSUP;
}

void mco_disk_start(struct mco_disk *d, struct mco_store *store)
{
    (void)d;
    (void)store;
}

bool mco_disk_scanned(struct mco_disk *d)
{
    (void)d;
    return false;
}

void mco_disk_close(struct mco_disk *d)
{
    (void)d;
}

void mco_disk_get_stats(struct mco_disk *d, struct mco_disk_stats *out)
{
    (void)d;
    (void)out;
}
