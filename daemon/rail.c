/* SPDX-License-Identifier: Apache-2.0 */
#include "rail.h"

#include <string.h>

#define GUESS 1.0                          /* bytes a ns of a rail that was not measured */
#define SAMPLE_BYTES (UINT64_C(256) << 10) /* a measurement has at least so many bytes */
#define SAMPLE_NS UINT64_C(500000)         /* and such a time, */
#define SAMPLE_SHORT_NS UINT64_C(50000)    /* or, when the rail has run dry, such a one */
#define SAMPLE_OLD_NS UINT64_C(1000000000) /* busy time after which any number will do */
#define RATE_GAIN 0.25

void mcd_rail_init(struct mcd_rail *r, unsigned rank, uint64_t slice_max, uint64_t window_max)
{
    memset(r, 0, sizeof(*r));
    r->reason = MCD_RAIL_NEW;
    r->rank = rank;
    r->usable = true;
    r->slice_max = slice_max > MCD_RAIL_SLICE_MIN ? slice_max : MCD_RAIL_SLICE_MIN;
    r->window_max = window_max;
    r->silence_ns = MCD_RAIL_SILENCE_NS;
    r->room = UINT32_MAX;
}

static void enter(struct mcd_rail *r, enum mcd_rail_state state, enum mcd_rail_reason reason,
                  uint64_t now)
{
    r->state = state;
    r->reason = reason;
    r->changes++;
    if (state == MCD_RAIL_UP)
        r->up_since = now;
    if (state == MCD_RAIL_PROBATION) {
        r->trial_bytes = 0;
        r->trial_slices = 0;
        r->strikes = 0;
    }
}

void mcd_rail_connected(struct mcd_rail *r, uint64_t now)
{
    r->conns++;
    r->room = UINT32_MAX;
    r->progress_at = now;
    if (r->state != MCD_RAIL_DOWN || !r->usable)
        return;
    if (r->reason == MCD_RAIL_NEW)
        enter(r, MCD_RAIL_UP, MCD_RAIL_FINE, now);
    else if (now < r->rest_until)
        enter(r, MCD_RAIL_SUSPECT, r->reason, now);
    else
        enter(r, MCD_RAIL_PROBATION, r->reason, now);
}

void mcd_rail_lost(struct mcd_rail *r, uint64_t now)
{
    if (r->conns != 0)
        r->conns--;
    if (r->dying != 0)
        r->dying--;
    r->room = UINT32_MAX;
    if (r->conns > r->dying || r->state == MCD_RAIL_DOWN)
        return;
    enter(r, MCD_RAIL_DOWN, r->state == MCD_RAIL_SUSPECT ? r->reason : MCD_RAIL_LOST, now);
}

void mcd_rail_given_up(struct mcd_rail *r, uint64_t now)
{
    r->dying = r->conns;
    if (mcd_rail_works(r))
        enter(r, MCD_RAIL_DOWN, MCD_RAIL_LOST, now);
}

bool mcd_rail_tell(struct mcd_rail *r, bool usable, enum mcd_rail_reason reason, uint64_t now)
{
    r->usable = usable;
    if (!usable) {
        if (r->state != MCD_RAIL_DOWN || r->reason != reason)
            enter(r, MCD_RAIL_DOWN, reason, now);
        return r->conns != 0;
    }
    if (r->state == MCD_RAIL_DOWN && r->conns > r->dying)
        enter(r, MCD_RAIL_PROBATION, r->reason, now);
    return false;
}

void mcd_rail_suspect(struct mcd_rail *r, enum mcd_rail_reason reason, uint64_t now)
{
    uint64_t rest;

    if (!mcd_rail_works(r))
        return;
    if (r->state == MCD_RAIL_UP && now - r->up_since > MCD_RAIL_CALM_NS)
        r->suspicions = 0;
    rest = MCD_RAIL_REST_NS << (r->suspicions < 7 ? r->suspicions : 7);
    r->suspicions++;
    r->rest_until = now + (rest < MCD_RAIL_REST_MAX_NS ? rest : MCD_RAIL_REST_MAX_NS);
    enter(r, MCD_RAIL_SUSPECT, reason, now);
}

bool mcd_rail_damaged(struct mcd_rail *r)
{
    return ++r->strikes >= MCD_RAIL_STRIKES;
}

void mcd_rail_tick(struct mcd_rail *r, bool alone, uint64_t now)
{
    if (r->state == MCD_RAIL_SUSPECT && r->conns > r->dying && (alone || now >= r->rest_until))
        enter(r, MCD_RAIL_PROBATION, r->reason, now);
    if (r->room == 0 && r->out == 0)
        r->room = UINT32_MAX; /* to be seen anew */
}

bool mcd_rail_silent(struct mcd_rail *r, uint64_t progress, uint64_t now)
{
    uint64_t limit = 4 * r->loaded_ns;

    if (limit < r->silence_ns)
        limit = r->silence_ns;
    if (r->out == 0 || progress != r->progress) {
        r->progress = progress;
        r->progress_at = now;
        return false;
    }
    return now - r->progress_at > limit;
}

/* ---- measuring ------------------------------------------------------------------- */

void mcd_rail_posted(struct mcd_rail *r, uint64_t length, uint64_t now)
{
    if (r->out == 0) {
        /* the first answer takes the latency besides: that is not the rate's */
        r->mark = now + r->rtt_ns;
        r->progress_at = now;
    }
    r->queued += length;
    r->out++;
}

static void sample(struct mcd_rail *r, bool dry, uint64_t now)
{
    uint64_t ns = r->busy_ns + (now > r->mark ? now - r->mark : 0);
    bool enough = r->answered >= SAMPLE_BYTES &&
                  (ns >= SAMPLE_NS || (dry && ns >= SAMPLE_SHORT_NS)); /* the usual case */

    /* the first guess is better early than good */
    if (r->rate <= 0 && r->answered >= MCD_RAIL_SLICE_MIN && ns >= SAMPLE_SHORT_NS)
        enough = true;
    if (ns >= SAMPLE_OLD_NS && r->answered >= MCD_RAIL_SLICE_MIN)
        enough = true;
    if (enough) {
        double rate = (double)r->answered / (double)ns;

        r->rate = r->rate <= 0 ? rate : r->rate + (rate - r->rate) * RATE_GAIN;
        r->answered = 0;
        r->busy_ns = 0;
        r->mark = now;
    } else if (dry) {
        r->busy_ns = ns;
        r->mark = now;
        /* small requests one by one say nothing of the rate */
        if (r->busy_ns >= SAMPLE_OLD_NS) {
            r->busy_ns = 0;
            r->answered = 0;
        }
    }
}

void mcd_rail_answered(struct mcd_rail *r, uint64_t length, uint64_t posted, uint64_t now)
{
    uint64_t ns = now > posted ? now - posted : 1;

    r->queued -= length;
    r->out--;
    r->answered += length;
    r->answered_at = now;
    r->progress_at = now;
    r->strikes = 0;
    if (r->room < UINT32_MAX)
        r->room++;
    r->loaded_ns = r->loaded_ns == 0 ? ns : r->loaded_ns - r->loaded_ns / 8 + ns / 8;
    if (length <= MCD_RAIL_SMALL && r->out == 0) {
        if (r->rtt_ns == 0 || ns < r->rtt_ns)
            r->rtt_ns = ns;
        else
            r->rtt_ns += (ns - r->rtt_ns) / 64; /* the least, lately */
    }
    sample(r, r->out == 0, now);
    if (r->state == MCD_RAIL_PROBATION) {
        r->trial_bytes += length;
        if (++r->trial_slices >= MCD_RAIL_TRIAL_SLICES || r->trial_bytes >= MCD_RAIL_TRIAL_BYTES)
            enter(r, MCD_RAIL_UP, MCD_RAIL_FINE, now);
    }
}

void mcd_rail_returned(struct mcd_rail *r, uint64_t length, uint64_t now)
{
    r->queued -= length;
    r->out--;
    if (r->out == 0) {
        r->busy_ns += now > r->mark ? now - r->mark : 0;
        r->mark = now;
    }
}

/* ---- questions ------------------------------------------------------------------- */

double mcd_rail_rate(const struct mcd_rail *r, uint64_t now)
{
    double rate = r->rate > 0 ? r->rate : GUESS;

    /* Nothing for four times as long as a slice should take: what has come, and one slice more,
     * in the time it took. */
    if (r->out != 0 && now > r->mark) {
        double waited = (double)(now - r->mark), most = (double)(r->answered + r->slice_max);

        if (waited * rate > 4 * most)
            rate = most / waited;
    }
    return rate;
}

uint64_t mcd_rail_slice(const struct mcd_rail *r, uint64_t now)
{
    double most = mcd_rail_rate(r, now) * (double)MCD_RAIL_SLICE_NS;

    if (r->rate <= 0 || r->state == MCD_RAIL_PROBATION)
        return r->slice_max / 4 > MCD_RAIL_SLICE_MIN ? r->slice_max / 4 : MCD_RAIL_SLICE_MIN;
    if (most >= (double)r->slice_max)
        return r->slice_max;
    return most <= (double)MCD_RAIL_SLICE_MIN ? MCD_RAIL_SLICE_MIN : (uint64_t)most;
}

bool mcd_rail_has_room(const struct mcd_rail *r, uint64_t length, uint64_t now)
{
    double window = mcd_rail_rate(r, now) * (double)MCD_RAIL_WINDOW_NS;
    double two = 2 * (double)mcd_rail_slice(r, now);

    if (r->out == 0)
        return true;
    if (r->out >= r->room || r->state == MCD_RAIL_PROBATION)
        return false;
    if (r->rate <= 0 || window < two)
        window = two;
    if (window > (double)r->window_max)
        window = (double)r->window_max;
    return (double)(r->queued + length) <= window;
}

double mcd_rail_finish(const struct mcd_rail *r, uint64_t length, uint64_t now)
{
    return (double)(r->queued + length) / mcd_rail_rate(r, now) + (double)r->rtt_ns;
}

bool mcd_rail_wants_look(const struct mcd_rail *r, uint64_t now)
{
    return r->out == 0 && (r->state == MCD_RAIL_PROBATION || r->answered_at == 0 ||
                           now - r->answered_at > MCD_RAIL_LOOK_NS);
}
