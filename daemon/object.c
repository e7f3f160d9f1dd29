/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about objects. */
#include "object.h"

#include <errno.h>

void mcd_object_take(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                     uint64_t age, uint64_t deadline, uint32_t queue_ns, bool now_allowed,
                     uint64_t *budget)
{
    (void)g;
    (void)q;
    (void)d;
    (void)age;
    (void)deadline;
    (void)queue_ns;
    (void)now_allowed;
    (void)budget;
}

void mcd_object_release(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d)
{
    (void)g;
    (void)q;
    (void)d;
}

enum mcs_status mcd_object_advance(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t,
                                   uint64_t *budget, struct mcd_outcome *o, bool *waits)
{
    (void)g;
    (void)q;
    (void)t;
    (void)budget;
    (void)o;
    (void)waits;
    return MCS_NOT_SUPPORTED;
}

bool mcd_object_drop(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t)
{
    (void)g;
    (void)q;
    (void)t;
    return false;
}

int mcd_objects_create(struct mcd_engine *g, struct mcd_objects **out)
{
    (void)g;
    (void)out;
    return 0;
}

void mcd_objects_destroy(struct mcd_objects *o)
{
    (void)o;
}

bool mcd_objects_turn(struct mcd_engine *g)
{
    (void)g;
    return false;
}

void mcd_objects_ready(struct mcd_engine *g)
{
    (void)g;
}
