/* SPDX-License-Identifier: Apache-2.0 */
/* The last events. */
#include "events.h"

#include <errno.h>

int mco_events_create(uint64_t memory, struct mco_events **out)
{
    (void)memory;
    (void)out;
    return -ENOTSUP;
}

void mco_events_destroy(struct mco_events *e)
{
    (void)e;
}

uint64_t mco_events_add(struct mco_events *e, const struct mco_event *event, const char *host)
{
    (void)e;
    (void)event;
    (void)host;
    return 0;
}

void mco_events_range(struct mco_events *e, uint64_t *first, uint64_t *next)
{
    (void)e;
    (void)first;
    (void)next;
}

uint64_t mco_events_read(struct mco_events *e, uint64_t from, size_t n,
                         bool (*each)(void *context, uint64_t number, const struct mco_event *event,
                                      const char *host),
                         void *context)
{
    (void)e;
    (void)from;
    (void)n;
    (void)each;
    (void)context;
    return 0;
}
