/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of objects of other hosts. */
#include "leg.h"

#include <errno.h>

int mcd_leg_begin(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l)
{
    (void)g;
    (void)q;
    (void)l;
    return -ENOTSUP;
}

void mcd_leg_cancel(struct mcd_engine *g, struct mcd_queue *q, struct mcd_leg *l)
{
    (void)g;
    (void)q;
    (void)l;
}
