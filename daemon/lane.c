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
    l->q = q;
    l->route = r;
    l->weight = 1;
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
    l->q->lanes[l->route->index] = NULL;
    free(l);
}

static void ring_add(struct mcd_lane *l, unsigned class)
{
    struct mcd_lane_list *list = &l->lists[class];
    struct mcd_lane **turn = &l->route->turn[class];

    list->on = true;
    list->deficit = 0;
    if (*turn == NULL) {
        list->next = list->prev = l;
        *turn = l;
        return;
    }
    /* before the one whose turn it is: the last of the round */
    list->next = *turn;
    list->prev = (*turn)->lists[class].prev;
    list->prev->lists[class].next = l;
    list->next->lists[class].prev = l;
}

static void ring_remove(struct mcd_lane *l, unsigned class)
{
    struct mcd_lane_list *list = &l->lists[class];
    struct mcd_lane **turn = &l->route->turn[class];

    list->on = false;
    if (list->next == l) {
        *turn = NULL;
        return;
    }
    list->prev->lists[class].next = list->next;
    list->next->lists[class].prev = list->prev;
    if (*turn == l)
        *turn = list->next;
}

void mcd_lane_next(struct mcd_route *r, unsigned class)
{
    struct mcd_lane *l = r->turn[class]->lists[class].next;

    r->turn[class] = l;
    l->lists[class].deficit += (int64_t)MCD_LANE_QUANTUM * l->weight;
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
    if (!list->on)
        ring_add(l, class);
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
    if (list->head == MCD_NO_TASK)
        ring_remove(l, class);
}
