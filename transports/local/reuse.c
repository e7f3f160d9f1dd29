/* SPDX-License-Identifier: Apache-2.0 */
#include "reuse.h"

#include <stdio.h>
#include <string.h>

uint64_t mct_cache_size(void)
{
    unsigned long long kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");

    /* not sysconf(): it multiplies by the sockets that a hypervisor makes up */
    if (f != NULL) {
        if (fscanf(f, "%lluK", &kib) != 1)
            kib = 0;
        fclose(f);
    }
    return kib != 0 ? kib << 10 : UINT64_C(16) << 20;
}

void mct_reuse_init(struct mct_reuse *r, uint64_t cache_size)
{
    memset(r, 0, sizeof(*r));
    r->window = cache_size / 2;
}
