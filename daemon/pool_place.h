/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places: the ranges of addresses that extents are published at, on one host each at another.  An extent's place is taken
 * before it is made.  As long as there are some that nobody has had, each extent gets such a one.  When the range that a process
 * can map is through, places are used again, the longest unused first, under a rule that keeps whoever still says an old
 * address from reaching new memory: requests name a segment, which is one session's, and an address.  So
 *   - a session gets no place that was left since it has come, by itself perhaps: what is said of its segment ends BAD_ADDRESS;
 *   - one of an earlier agent gets none that may have been its own;
 *   - who says nothing but addresses (stock Mooncake processes) must have nowhere to go: where there may be such, only places
 *     of memory that did not come to be are used again.
 * Where no place is left by that, addresses go on beyond what can be mapped: still unique, and equal to no pointer.
 * Control thread only.
 */
#ifndef MCD_POOL_PLACE_H
#define MCD_POOL_PLACE_H

#include <stdbool.h>
#include <stdint.h>

/* Places begin at multiples of this, so that hugepages of any size may lie there. */
#define MCD_POOL_PLACE_STEP (UINT64_C(1) << 30)
/* No process maps anything beyond, unless it asks for that. */
#define MCD_POOL_PLACE_END (UINT64_C(1) << 47)

struct mcd_pool_places;

/* Of the addresses from base, a multiple of the step. NULL: no memory. */
struct mcd_pool_places *mcd_pool_places_create(uint64_t base);
/* NULL is nothing. */
void mcd_pool_places_destroy(struct mcd_pool_places *p);

/* What a session that comes now is to remember; never 0. */
uint64_t mcd_pool_places_now(const struct mcd_pool_places *p);
/* Nobody else has it until it is left. */
void mcd_pool_places_take(struct mcd_pool_places *p, uint64_t at, uint64_t size);
/* Takes one that may be used again, by who came then; 0: in an earlier agent's life. 0: there is none. Of places below `earlier` nobody
 * knows what that agent has done with them. */
uint64_t mcd_pool_places_again(struct mcd_pool_places *p, uint64_t size, uint64_t came,
                               uint64_t earlier);

enum mcd_pool_place_left {
    MCD_POOL_PLACE_UNNAMED, /* nobody has heard of it: it is as it was */
    MCD_POOL_PLACE_NAMED,   /* whoever had it may have told others */
    MCD_POOL_PLACE_SPENT    /* it is not used again */
};
void mcd_pool_places_leave(struct mcd_pool_places *p, uint64_t at, uint64_t size,
                           enum mcd_pool_place_left how);

#endif
