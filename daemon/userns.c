/* SPDX-License-Identifier: Apache-2.0 */
#include "userns.h"

#include <stdio.h>

#define OVERFLOW_UID 65534 /* the kernel's default; kept where /proc says nothing */

static struct {
    bool known, whole;
    unsigned overflow;
} self;

bool mcd_userns_is_whole(const char *map)
{
    unsigned first, outer, count;

    return sscanf(map, "%u %u %u", &first, &outer, &count) == 3 && first == 0 && outer == 0 &&
           count == (unsigned)-1;
}

static void look(void)
{
    char line[128] = "";
    FILE *f = fopen("/proc/self/uid_map", "re");

    /* without /proc there is no telling: then what may be shared counts as shared */
    if (f != NULL) {
        self.whole = fgets(line, sizeof(line), f) != NULL && mcd_userns_is_whole(line);
        fclose(f);
    }
    self.overflow = OVERFLOW_UID;
    f = fopen("/proc/sys/kernel/overflowuid", "re");
    if (f != NULL) {
        if (fscanf(f, "%u", &self.overflow) != 1)
            self.overflow = OVERFLOW_UID;
        fclose(f);
    }
    self.known = true;
}

bool mcd_userns_unmapped(uid_t uid)
{
    if (!self.known)
        look();
    return !self.whole && uid == self.overflow;
}
