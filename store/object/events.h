/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has happened to objects, numbered: the last events are kept and can be read again from any number
 * on.  The agent's reports to the directory and the feed for cache-aware routers are both read from here.
 * Any thread may add; a spin lock is held for the copy of one event.
 */
#ifndef MCO_EVENTS_H
#define MCO_EVENTS_H

#include "store.h"

struct mco_events;

/* memory: bytes kept; a power of two, at least 1 MiB. 0 or -ENOMEM. */
int mco_events_create(uint64_t memory, struct mco_events **out);
void mco_events_destroy(struct mco_events *e);
/* Its number, from 1. `host` (may be NULL): whose object it is, when not this agent's. */
uint64_t mco_events_add(struct mco_events *e, const struct mco_event *event, const char *host);
/* The number that comes next, and the first that is kept. */
void mco_events_range(struct mco_events *e, uint64_t *first, uint64_t *next);
/*
 * Calls each() for up to n kept events from number `from` on, until it returns false; key bytes and host are good during the call.
 * Returns the number after the last one that was given. Fewer than asked: there are no more.
 */
uint64_t mco_events_read(struct mco_events *e, uint64_t from, size_t n,
                         bool (*each)(void *context, uint64_t number, const struct mco_event *event,
                                      const char *host),
                         void *context);

#endif
