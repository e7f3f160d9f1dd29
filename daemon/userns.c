/* SPDX-License-Identifier: Apache-2.0 */
#include "userns.h"

#include <stdio.h>

#define OVERFLOW_ID 65534 /* the kernel's default; kept where /proc says nothing */

/* Users, or groups. */
struct shown {
    const char *map, *overflow; /* files */
    bool known, whole;
    unsigned as;
};
static struct shown users = {.map = "/proc/self/uid_map",
                             .overflow = "/proc/sys/kernel/overflowuid"};
static struct shown groups = {.map = "/proc/self/gid_map",
                              .overflow = "/proc/sys/kernel/overflowgid"};

bool mcd_userns_is_whole(const char *map)
{
    unsigned first, outer, count;

    return sscanf(map, "%u %u %u", &first, &outer, &count) == 3 && first == 0 && outer == 0 &&
           count == (unsigned)-1;
}

static void look(struct shown *s)
{
    char line[128] = "";
    FILE *f = fopen(s->map, "re");

    /* without /proc there is no telling: then what may be shared counts as shared */
    if (f != NULL) {
        s->whole = fgets(line, sizeof(line), f) != NULL && mcd_userns_is_whole(line);
        fclose(f);
    }
    s->as = OVERFLOW_ID;
    f = fopen(s->overflow, "re");
    if (f != NULL) {
        if (fscanf(f, "%u", &s->as) != 1)
            s->as = OVERFLOW_ID;
        fclose(f);
    }
    s->known = true;
}

static bool unmapped(struct shown *s, unsigned id)
{
    if (!s->known)
        look(s);
    return !s->whole && id == s->as;
}

bool mcd_userns_unmapped(uid_t uid)
{
    return unmapped(&users, uid);
}

size_t mcd_userns_known_groups(gid_t *gids, size_t n)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++)
        if (!unmapped(&groups, gids[i]))
            gids[k++] = gids[i];
    return k;
}
