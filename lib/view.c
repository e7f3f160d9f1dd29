/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views: see internal.h.
 *
 * V1  a view is whole before its pointer is there    replace() / mcl_queue_range()
 * V2  store-then-load: a queue pins, fence, looks at c->view once more;
 *     the updater stores c->view, fence, looks at the pins    mcl_view_pin() / reclaim
 * V3  store-then-load: a queue sets caller_active, fence, looks at c->view;
 *     the updater stores c->view, fence, looks at caller_active    caller.c / settle()
 */
#include "internal.h"
#include "shm/failpoint.h"

#include <sched.h>
#include <stdlib.h>

int mcl_grow(void *array, size_t count, size_t *room, size_t element)
{
    void **pointer = array;
    size_t want = *room == 0 ? 8 : *room * 2;
    void *p;

    if (count < *room)
        return 0;
    p = reallocarray(*pointer, want, element);
    if (p == NULL)
        return -ENOMEM;
    *pointer = p;
    *room = want;
    return 0;
}

static int by_start(const void *a, const void *b)
{
    const struct mcl_range *x = a, *y = b;

    return (x->start > y->start) - (x->start < y->start);
}

static int by_address(const void *a, const void *b)
{
    const struct mcl_target *x = a, *y = b;

    if (x->segment != y->segment)
        return x->segment < y->segment ? -1 : 1;
    return (x->address > y->address) - (x->address < y->address);
}

static size_t count_targets(const struct mcshm *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->nsegments; i++)
        n += c->segments[i].own ? c->nbuffers : c->segments[i].ngrants;
    return n;
}

static void add_ranges(const struct mcshm *c, struct mcl_view *v)
{
    for (size_t i = 0; i < c->nextents; i++) {
        const struct mcl_extent *e = &c->extents[i];

        if (e->base != NULL)
            v->ranges[v->nranges++] = (struct mcl_range){
                .start = (uintptr_t)e->base, .size = e->size, .extent = e->handle, .gpu = e->gpu};
    }
    for (struct mcl_private *p = c->privates; p != NULL; p = p->next) {
        for (size_t i = 0; i < c->nextents; i++) {
            const struct mcl_extent *e = &c->extents[i];

            if ((uintptr_t)p->shadow - (uintptr_t)e->base < e->size)
                v->ranges[v->nranges++] = (struct mcl_range){
                    .start = (uintptr_t)p->start,
                    .size = p->size,
                    .offset = (uint64_t)(p->shadow - e->base),
                    .extent = e->handle,
                    .staged = p,
                };
        }
    }
    qsort(v->ranges, v->nranges, sizeof(*v->ranges), by_start);
}

static void add_targets(const struct mcshm *c, struct mcl_view *v)
{
    for (size_t i = 0; i < c->nsegments; i++) {
        const struct mcl_segment *s = &c->segments[i];

        for (size_t k = 0; s->own && k < c->nbuffers; k++) {
            const struct mcl_buffer *b = &c->buffers[k];

            if (b->gpu)
                continue;
            v->targets[v->ntargets++] = (struct mcl_target){
                .address = b->address,
                .size = b->size,
                .memory = b->start,
                .segment = s->handle,
                .readable = (b->access & MCS_ACCESS_READ) != 0,
                .writable = (b->access & MCS_ACCESS_WRITE) != 0,
            };
        }
        for (size_t k = 0; !c->grants_off && k < s->ngrants; k++) {
            const struct mcl_grant *g = &s->grants[k];

            v->targets[v->ntargets++] = (struct mcl_target){
                .address = g->address,
                .size = g->size,
                .memory = g->extent + (g->address - g->extent_address),
                .segment = s->handle,
                .readable = (g->access & MCS_ACCESS_READ) != 0,
                .writable = g->writable && (g->access & MCS_ACCESS_WRITE) != 0,
            };
        }
    }
    qsort(v->targets, v->ntargets, sizeof(*v->targets), by_address);
}

static struct mcl_view *build(const struct mcshm *c)
{
    size_t privates = 0, ranges, targets = count_targets(c);
    struct mcl_view *v;

    for (const struct mcl_private *p = c->privates; p != NULL; p = p->next)
        privates++;
    ranges = c->nextents + privates;
    v = MCS_FAIL(view_built) != 0
            ? NULL
            : malloc(sizeof(*v) + ranges * sizeof(*v->ranges) + targets * sizeof(*v->targets));
    if (v == NULL)
        return NULL;
    *v = (struct mcl_view){.grants_version = c->grants_version};
    v->ranges = (struct mcl_range *)(v + 1);
    v->targets = (struct mcl_target *)(v->ranges + ranges);
    add_ranges(c, v);
    add_targets(c, v);
    return v;
}

/* Waits until no queue copies by the view that was replaced. */
static void settle(struct mcshm *c)
{
    mcs_fence_full(); /* V3, V2 */
    for (struct mcshm_queue *q = c->queues; q != NULL; q = q->next) {
        /* acquire: pairs with the release in mcs_caller_end(): its bytes are in place */
        for (unsigned looks = 0; mcs_load_acquire(&q->shm.doorbell->caller_active) != 0; looks++) {
            if (looks < 1000)
                mcs_pause();
            else
                sched_yield();
        }
    }
}

static void replace(struct mcshm *c, struct mcl_view *new, struct mcl_private *dropped)
{
    struct mcl_view *old = c->view;

    mcs_store_release(&c->view, new); /* V1 */
    settle(c);
    if (old != &c->empty) {
        old->next = NULL;
        if (c->retired_last != NULL)
            c->retired_last->next = old;
        else
            c->retired = old;
        c->retired_last = old;
    }
    if (dropped != NULL) {
        struct mcl_private **list =
            c->retired_last != NULL ? &c->retired_last->dropped : &c->empty.dropped;

        dropped->next = *list;
        *list = dropped;
    }
    mcl_view_reclaim(c);
}

int mcl_view_update(struct mcshm *c, struct mcl_private *dropped)
{
    struct mcl_view *new = build(c);

    replace(c, new != NULL ? new : &c->empty, dropped);
    return new != NULL ? 0 : -ENOMEM;
}

int mcl_view_extend(struct mcshm *c)
{
    struct mcl_view *new = build(c);

    if (new == NULL)
        return -ENOMEM;
    replace(c, new, NULL);
    return 0;
}

static void view_free(struct mcl_view *v)
{
    while (v->dropped != NULL) {
        struct mcl_private *p = v->dropped;

        v->dropped = p->next;
        free(p);
    }
    free(v);
}

static bool pinned(const struct mcshm *c, const struct mcl_view *v)
{
    for (struct mcshm_queue *q = c->queues; q != NULL; q = q->next) {
        /* V2; acquire: pairs with the release in mcl_view_pin(): its reads are over */
        if (mcs_load_acquire(&q->view) == v)
            return true;
    }
    return false;
}

/* Gives an older view that remains what it knows of that which `from` was the last to know.
 * What that one does not know, none before it does. */
static void hand_over(struct mcl_view *from, struct mcl_view *older)
{
    struct mcl_private **at = &from->dropped;

    while (*at != NULL) {
        struct mcl_private *p = *at;
        const struct mcl_range *r = mcl_view_range(older, (uintptr_t)p->start);

        if (r != NULL && r->staged == p) {
            *at = p->next;
            p->next = older->dropped;
            older->dropped = p;
        } else {
            at = &p->next;
        }
    }
}

void mcl_view_reclaim(struct mcshm *c)
{
    struct mcl_view **at = &c->retired, *older = NULL;

    while (*at != NULL) {
        struct mcl_view *v = *at;

        if (pinned(c, v)) {
            older = v;
            at = &v->next;
            continue;
        }
        *at = v->next;
        if (older != NULL)
            hand_over(v, older);
        view_free(v);
    }
    c->retired_last = older;
}

void mcl_view_fini(struct mcshm *c)
{
    while (c->retired != NULL) {
        struct mcl_view *v = c->retired;

        c->retired = v->next;
        view_free(v);
    }
    if (c->view != &c->empty)
        free(c->view);
    c->view = &c->empty;
    while (c->empty.dropped != NULL) {
        struct mcl_private *p = c->empty.dropped;

        c->empty.dropped = p->next;
        free(p);
    }
}

void mcl_view_pin(struct mcshm_queue *q, struct mcl_view *view)
{
    struct mcl_view *now = view;

    do {
        view = now;
        mcs_store_release(&q->view, view); /* V2 */
        mcs_fence_full();                  /* V2 */
        now = mcs_load_acquire(&q->c->view);
    } while (now != view);
    q->range = NULL;
    q->target = NULL;
}

const struct mcl_range *mcl_view_range(const struct mcl_view *view, uintptr_t at)
{
    size_t low = 0, high = view->nranges;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (view->ranges[mid].start <= at)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == 0 || at - view->ranges[low - 1].start >= view->ranges[low - 1].size)
        return NULL;
    return &view->ranges[low - 1];
}

const struct mcl_target *mcl_view_target(const struct mcl_view *view, uint32_t segment,
                                         uint64_t address)
{
    size_t low = 0, high = view->ntargets;
    const struct mcl_target *t;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        t = &view->targets[mid];
        if (t->segment < segment || (t->segment == segment && t->address <= address))
            low = mid + 1;
        else
            high = mid;
    }
    if (low == 0)
        return NULL;
    t = &view->targets[low - 1];
    return t->segment == segment && address - t->address < t->size ? t : NULL;
}
