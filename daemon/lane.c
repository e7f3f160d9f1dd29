/* SPDX-License-Identifier: Apache-2.0 */
#include "lane.h"

#include <stdlib.h>
#include <string.h>

#include "net.h"

struct mcd_lane *mcd_lane_get(struct mcd_queue *q, struct mcd_route *r)
{
    struct mcd_lane *l;

    if (r->index >= q->nlanes) {
        uint32_t room = q->nlanes == 0 ? 8 : q->nlanes;
        struct mcd_lane **lanes;

        while (room <= r->index)
            room *= 2;
        lanes = realloc(q->lanes, room * sizeof(struct mcd_lane *));
        if (lanes == NULL)
            return NULL;
        memset(lanes + q->nlanes, 0, (room - q->nlanes) * sizeof(struct mcd_lane *));
        q->lanes = lanes;
        q->nlanes = room;
    }
    l = q->lanes[r->index];
    if (l != NULL)
        return l;
    l = calloc(1, sizeof(*l));
    if (l == NULL)
        return NULL;
    if (mcd_share_join(&r->shares, &l->leaf, q->tenant, q->session) != 0) {
        free(l);
        return NULL;
    }
    l->q = q;
    l->route = r;
    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++)
        l->lists[c].head = l->lists[c].tail = MCD_NO_TASK;
    l->route_next = r->lanes;
    if (r->lanes != NULL)
        r->lanes->route_prev = l;
    r->lanes = l;
    q->lanes[r->index] = l;
    return l;
}

void mcd_lane_free(struct mcd_lane *l)
{
    if (l->route_prev != NULL)
        l->route_prev->route_next = l->route_next;
    else
        l->route->lanes = l->route_next;
    if (l->route_next != NULL)
        l->route_next->route_prev = l->route_prev;
    mcd_share_leave(&l->route->shares, &l->leaf);
    l->q->lanes[l->route->index] = NULL;
    free(l);
}

static void share(struct mcd_lane *l)
{
    unsigned ready = 0;

    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++)
        if (l->lists[c].head != MCD_NO_TASK)
            ready |= 1u << c;
    ready &= ~(unsigned)l->stuck;
    mcd_share_set(&l->route->shares, &l->leaf, (uint8_t)ready, (uint8_t)ready);
}

void mcd_lane_stick(struct mcd_lane *l, unsigned class)
{
    l->stuck |= (uint8_t)(1u << class);
    l->route->stuck = true;
    share(l);
}

void mcd_lanes_loosen(struct mcd_route *r)
{
    if (!r->stuck)
        return;
    r->stuck = false;
    for (struct mcd_lane *l = r->lanes; l != NULL; l = l->route_next) {
        l->stuck = 0;
        share(l);
    }
}

void mcd_lane_add(struct mcd_task *t, bool first)
{
    struct mcd_lane *l = t->lane;
    struct mcd_task *tasks = l->q->tasks;
    unsigned class = t->desc.priority;
    struct mcd_lane_list *list = &l->lists[class];
    uint32_t slot = t->desc.slot;

    t->list = (uint8_t) class;
    t->list_prev = first ? MCD_NO_TASK : list->tail;
    t->list_next = first ? list->head : MCD_NO_TASK;
    if (t->list_prev != MCD_NO_TASK)
        tasks[t->list_prev].list_next = slot;
    else
        list->head = slot;
    if (t->list_next != MCD_NO_TASK)
        tasks[t->list_next].list_prev = slot;
    else
        list->tail = slot;
    l->route->waiting += t->uncut;
    share(l);
}

void mcd_lane_remove(struct mcd_task *t)
{
    struct mcd_lane *l = t->lane;
    struct mcd_task *tasks = l->q->tasks;
    unsigned class = t->list;
    struct mcd_lane_list *list = &l->lists[class];

    if (t->list_prev != MCD_NO_TASK)
        tasks[t->list_prev].list_next = t->list_next;
    else
        list->head = t->list_next;
    if (t->list_next != MCD_NO_TASK)
        tasks[t->list_next].list_prev = t->list_prev;
    else
        list->tail = t->list_prev;
    t->list = MCD_UNLISTED;
    l->route->waiting -= t->uncut;
    share(l);
}
