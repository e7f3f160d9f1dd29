/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers of an engine: a wheel of about a millisecond a notch, so that a hundred thousand
 * deadlines cost a store each and a turn without a due one costs a comparison.  A timer never fires
 * early, and late by a notch and the turn that is under way.
 */
#ifndef MCD_WHEEL_H
#define MCD_WHEEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MCD_WHEEL_NOTCHES 4096u

/* Embedded in what it belongs to. All zeros: not set. */
struct mcd_timer {
    struct mcd_timer *next, **link; /* link: what points here; NULL: not set */
    uint64_t due;                   /* ticks */
    uint32_t notch;
};

struct mcd_wheel {
    uint64_t at; /* the last notch that was looked at; free-running */
    unsigned shift;
    uint32_t set; /* timers */
    uint64_t used[MCD_WHEEL_NOTCHES / 64];
    struct mcd_timer *notches[MCD_WHEEL_NOTCHES];
};

void mcd_wheel_init(struct mcd_wheel *w, uint64_t tick_hz, uint64_t now);
/* Sets a timer, anew if it is set. */
void mcd_wheel_set(struct mcd_wheel *w, struct mcd_timer *t, uint64_t due);
void mcd_wheel_clear(struct mcd_wheel *w, struct mcd_timer *t);
/* Is a notch due that has not been looked at? */
static inline bool mcd_wheel_due(const struct mcd_wheel *w, uint64_t now)
{
    return now >> w->shift > w->at;
}
/* Calls fire() for each timer that is due; it is not set any more by then. fire() may set and
 * clear any timer. True when there was one. */
bool mcd_wheel_run(struct mcd_wheel *w, uint64_t now,
                   void (*fire)(void *context, struct mcd_timer *t), void *context);
/* Ticks until the wheel wants to be looked at, UINT64_MAX: no timer is set. */
uint64_t mcd_wheel_next(const struct mcd_wheel *w, uint64_t now);

#endif
