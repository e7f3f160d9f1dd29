/* SPDX-License-Identifier: Apache-2.0 */
/* What sessions hold in place. */
#include "hold.h"

#include <errno.h>

int mcd_holds_create(uint64_t max, struct mcd_holds **out)
{
    (void)max;
    (void)out;
    return 0;
}

void mcd_holds_destroy(struct mcd_holds *h, struct mco_store *s)
{
    (void)h;
    (void)s;
}

uint64_t mcd_hold_add(struct mcd_holds *h, struct mco_store *s, const struct mco_view *v,
                      const struct mco_key *key, bool creation)
{
    (void)h;
    (void)s;
    (void)v;
    (void)key;
    (void)creation;
    return 0;
}

bool mcd_hold_take(struct mcd_holds *h, struct mco_store *s, uint64_t hold, struct mcd_held *out)
{
    (void)h;
    (void)s;
    (void)hold;
    (void)out;
    return false;
}

void mcd_holds_count(struct mcd_holds *h, uint64_t *holds, uint64_t *creations, uint64_t *bytes)
{
    (void)h;
    (void)holds;
    (void)creations;
    (void)bytes;
}
