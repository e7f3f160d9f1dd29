/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of segments, by name. A record carries the revision at which the service held it,
 * so that an answer overtaken by an event does not bring back the past; `epoch` rises when the
 * service has lost its history (it was emptied), which makes all older revisions worthless.
 */
#ifndef MCM_CACHE_H
#define MCM_CACHE_H

#include "meta.h"

#define MCM_CACHE_MAX 100000u /* records; those that nobody asked for make room first */

struct mcm_stamp {
    uint64_t epoch, revision;
};

struct mcm_cached {
    struct mcm_cached *next;
    struct mcm_stamp stamp;
    uint64_t list; /* the listing it was last seen in */
    bool used;     /* was handed to the caller, who wants to hear of changes */
    struct mcm_record record;
};

struct mcm_cache {
    struct mcm_cached **buckets;
    size_t count, limit, buckets_n;
    size_t clock; /* where the search for room goes on */
    uint64_t list;
    uint64_t own; /* of them this agent's */
    const char *address;
    uint64_t incarnation;
};

/* limit: records kept at most. -ENOMEM. `address` stays the caller's. */
int mcm_cache_init(struct mcm_cache *c, size_t limit, const char *address, uint64_t incarnation);
void mcm_cache_fini(struct mcm_cache *c);

struct mcm_cached *mcm_cache_find(struct mcm_cache *c, const char *name);

/* Takes a record over. Returns whether the caller has to hear of it: it had another incarnation
 * of this name. *kept: the entry, NULL when there was no room or what is there is newer. */
bool mcm_cache_put(struct mcm_cache *c, const struct mcm_record *r, struct mcm_stamp stamp,
                   struct mcm_cached **kept);
/* The name is gone as of `stamp`. Returns whether the caller has to hear of it. */
bool mcm_cache_drop(struct mcm_cache *c, const char *name, struct mcm_stamp stamp);

/* A listing: mcm_cache_put() between marks records as seen; what end() finds unmarked is gone.
 * `gone` is called with names that the caller has to hear of. */
void mcm_cache_list_begin(struct mcm_cache *c);
void mcm_cache_list_end(struct mcm_cache *c, struct mcm_stamp stamp,
                        void (*gone)(void *context, const char *name), void *context);
/* What was found at revision `from` or later, up to `stamp`, is gone by then. */
void mcm_cache_sweep(struct mcm_cache *c, uint64_t from, struct mcm_stamp stamp,
                     void (*gone)(void *context, const char *name), void *context);

#endif
