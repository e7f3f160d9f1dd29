/* SPDX-License-Identifier: Apache-2.0 */
#include "later.h"

#include <stdlib.h>

#include "agent.h"
#include "log.h"

#define LOOK_NS UINT64_C(1000000)

struct later {
    struct mcd_alarm timer;
    struct mcd_agent *agent;
    struct mcd_grace grace;
    void (*fn)(void *context);
    void *context;
};

static void look(struct mcd_alarm *t)
{
    struct later *l = t->context;

    if (!mcd_grace_over(&l->grace)) {
        mcd_alarm_set(l->agent, t, mcd_now_ns() + LOOK_NS);
        return;
    }
    l->fn(l->context);
    free(l);
}

void mcd_after_grace(struct mcd_agent *a, void (*fn)(void *context), void *context)
{
    struct later *l = calloc(1, sizeof(*l));

    if (l == NULL) {
        mcd_log_limited(MCD_LOG_ERROR, "out of memory: something is not freed");
        return;
    }
    l->agent = a;
    l->fn = fn;
    l->context = context;
    l->timer.fire = look;
    l->timer.context = l;
    mcd_grace_begin(&l->grace, a->engines, a->nengines);
    mcd_alarm_set(a, &l->timer, mcd_now_ns());
}
