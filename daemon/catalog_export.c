/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This agent's store as a segment of its own, which peers' agents read and nobody else can name: its buffers are the
 * store's extents.  What an extent leaves behind in engines and devices is gone before its memory is.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "catalog_internal.h"
#include "later.h"
#include "log.h"
#include "quiet.h"
#include "registration.h"

/* An extent that peers may not read any more, until they do not. */
struct mcd_leaving {
    struct mcd_leaving *next;
    struct mcd_extent *extent; /* with a reference */
    struct mcd_snapshot *old;
    struct mcd_registration *dropped;
    struct mcd_grace grace;
    struct mcd_quieting *quieting;
    bool graced;
};

int mcd_catalog_export_create(struct mcd_catalog *c)
{
    struct mcd_segment *s = mcd_segment_create(NULL, 0, mcd_incarnation());

    if (s == NULL)
        return -ENOMEM;
    snprintf(s->name, sizeof(s->name), "%s", MCD_STORE_SEGMENT);
    s->named = s->agents = true;
    c->segment = s;
    return 0;
}

struct mcd_segment *mcd_catalog_segment(const struct mcd_agent *a)
{
    return a->store == NULL || a->store->catalog == NULL ? NULL : a->store->catalog->segment;
}

static void free_old(void *snapshot)
{
    mcd_snapshot_free(snapshot);
}

/* A device has registered it: peers learn the keys. */
static void registered(void *context, int res, const char *text)
{
    struct mcd_catalog *c = context;

    (void)text;
    if (res != 0 || c->segment == NULL)
        return; /* other transports carry it; counted and said */
    c->segment->version++;
    mcd_segments_changed(c->agent);
}

static void came(struct mcd_catalog *c, struct mcd_extent *e)
{
    struct mcd_registry *g = &c->agent->registry;
    struct mcd_registration *r = NULL;
    struct mcd_snapshot *old;

    if (mcd_segment_add(c->segment, e, 0, e->size, MCS_ACCESS_READ, &old) != 0) {
        mcd_log_limited(MCD_LOG_ERROR,
                        "other hosts cannot read extent %u of the store: no memory "
                        "for its description, or too many extents",
                        e->id);
        return;
    }
    if (old != NULL)
        mcd_after_grace(c->agent, free_old, old);
    if (g->rdma != NULL &&
        mcd_registration_create(g, e, 0, e->size, mcd_registration_access(MCS_ACCESS_READ),
                                registered, c, &r) == 0 &&
        !mcd_segment_attach(c->segment, e, 0, e->size, r))
        mcd_registration_drop(r, NULL, NULL);
    mcd_segments_changed(c->agent);
}

static void goes(struct mcd_catalog *c, struct mcd_extent *e)
{
    struct mcd_leaving *l = calloc(1, sizeof(*l));
    struct mcd_snapshot *old = NULL;
    int res = l == NULL ? -ENOMEM : mcd_segment_cut(c->segment, e, 0, e->size, &old);

    if (res != 0) { /* it stays: memory that peers may read is never unmapped */
        mcd_log_limited(MCD_LOG_ERROR,
                        "no memory to take extent %u of the store from other "
                        "hosts: it stays",
                        e->id);
        (void)mcd_extent_get(e);
        free(l);
        return;
    }
    l->extent = mcd_extent_get(e);
    l->old = old;
    l->dropped = mcd_segment_dropped(c->segment);
    mcd_grace_begin(&l->grace, c->agent->engines, c->agent->nengines);
    l->next = c->leaving;
    c->leaving = l;
    mcd_segments_changed(c->agent);
    mcd_catalog_due(c, mcd_now_ns());
    mcd_alarm_set(c->agent, &c->alarm, mcd_now_ns());
}

void mcd_catalog_extent(struct mcd_catalog *c, struct mcd_extent *e, bool there)
{
    if (c == NULL)
        return;
    if (there)
        came(c, e);
    else
        goes(c, e);
}

/* True: nobody reads it any more, and it is freed. */
static bool leave(struct mcd_catalog *c, struct mcd_leaving *l)
{
    struct mcd_agent *a = c->agent;
    struct mcd_registration *r, *next;

    l->graced = l->graced || mcd_grace_over(&l->grace);
    if (!l->graced || !mcd_quiet(a, &l->quieting, NULL, l->extent, 0, l->extent->size))
        return false;
    for (r = l->dropped; r != NULL; r = next) {
        next = r->dropped;
        mcd_registration_drop(r, NULL, NULL); /* it has a reference to the extent of its own */
    }
    mcd_snapshot_free(l->old);
    mcd_extent_put(l->extent->pool, l->extent);
    free(l);
    return true;
}

void mcd_catalog_export_poll(struct mcd_catalog *c)
{
    struct mcd_leaving **link = &c->leaving;

    while (*link != NULL) {
        struct mcd_leaving *l = *link, *next = l->next;

        if (leave(c, l)) {
            *link = next;
        } else {
            link = &l->next;
            mcd_catalog_due(c, c->now + MCD_MS);
        }
    }
}

void mcd_catalog_export_destroy(struct mcd_catalog *c)
{
    struct mcd_segment *s = c->segment;
    struct mcd_snapshot *old = NULL;
    struct mcd_registration *r, *next;
    uint64_t end = mcd_now_ns() + 2000 * MCD_MS;

    s->named = false; /* peers that ask are told that it is gone */
    c->segment = NULL;
    (void)mcd_registrations_pass(&c->agent->registry, c, NULL, NULL);
    (void)mcd_segment_clear(s, &old);
    for (r = mcd_segment_dropped(s); r != NULL; r = next) {
        next = r->dropped;
        mcd_registration_drop(r, NULL, NULL);
    }
    if (old != NULL)
        mcd_after_grace(c->agent, free_old, old);
    while (c->leaving != NULL && mcd_now_ns() < end)
        mcd_catalog_export_poll(c);
    mcd_segment_put(s); /* exports have their own references */
}
