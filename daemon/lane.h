/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: the tasks of one queue that go over one route and are not yet all under way, FIFO by class.
 * What stands in a lane waits for nobody in another: a peer that is slow or gone holds
 * up what goes there, nothing else.  Whose turn it is on a route say its shares (share.h).  Engine's thread
 * only.
 */
#ifndef MCD_LANE_H
#define MCD_LANE_H

#include "engine.h"

struct mcd_route;

struct mcd_lane_list {
    uint32_t head, tail; /* tasks */
};

struct mcd_lane {
    struct mcd_queue *q;
    struct mcd_route *route;
    uint32_t tasks; /* all of them, waiting or under way */
    struct mcd_lane_list lists[MCS_CLASS_COUNT];
    struct mcd_share_leaf leaf;
    uint8_t
        stuck; /* a bit a class: none of its tasks could go, until the route is looked at anew */
    struct mcd_lane *route_next, *route_prev;
};

/* The lane of a queue and a route, made when there is none; NULL: no memory. */
struct mcd_lane *mcd_lane_get(struct mcd_queue *q, struct mcd_route *r);
/* It is empty. */
void mcd_lane_free(struct mcd_lane *l);

/* In the list of its class: behind the others, or before them. */
void mcd_lane_add(struct mcd_task *t, bool first);
void mcd_lane_remove(struct mcd_task *t);
/* None of its tasks of this class can go now: others are not kept waiting for it. */
void mcd_lane_stick(struct mcd_lane *l, unsigned class);
/* What could not go may be tried again. */
void mcd_lanes_loosen(struct mcd_route *r);

#endif
