/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: the tasks of one queue that go over one route and are not yet all under way, FIFO by class.
 * What stands in a lane waits for nobody in another: a peer that is slow or gone holds
 * up what goes there, nothing else.  Lanes of one class take turns by bytes (deficit round
 * robin, by weight).  Engine's thread only.
 */
#ifndef MCD_LANE_H
#define MCD_LANE_H

#include "engine.h"

struct mcd_route;

#define MCD_LANE_QUANTUM (64 << 10) /* bytes a round and weight */

struct mcd_lane_list {
    uint32_t head, tail; /* tasks */
    int64_t deficit;     /* bytes it may still send in this round */
    bool on;             /* in the ring of its class: there is a task */
    struct mcd_lane *next, *prev;
};

struct mcd_lane {
    struct mcd_queue *q;
    struct mcd_route *route;
    uint32_t weight;
    uint32_t tasks; /* all of them, waiting or under way */
    struct mcd_lane_list lists[MCS_CLASS_COUNT];
    struct mcd_lane *route_next, *route_prev;
};

/* The lane of a queue and a route, made when there is none; NULL: no memory. */
struct mcd_lane *mcd_lane_get(struct mcd_queue *q, struct mcd_route *r);
/* It is empty. */
void mcd_lane_free(struct mcd_lane *l);

/* In the list of its class: behind the others, or before them. */
void mcd_lane_add(struct mcd_task *t, bool first);
void mcd_lane_remove(struct mcd_task *t);
/* The lane whose turn it is goes on: its share of this round is used up, or it cannot go. */
void mcd_lane_next(struct mcd_route *r, unsigned class);

#endif
