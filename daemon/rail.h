/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rail: one pair of addresses that a route can send over.  Here is what is known of it - whether
 * it works, how fast it is, how much is under way - as a machine that is told events and the
 * time, and does nothing by itself: route.c acts on it.  Engine's thread only.
 *
 *              connection                enough came through
 *     DOWN -----------------> PROBATION ---------------------> UP
 *      ^  ^                    |   ^                           |
 *      |  |  connections lost  |   | its time is over and      | silent, bytes damaged,
 *      |  +--------------------+   | a connection is there     | failing
 *      |  |                        |                           |
 *      |  +---------------------- SUSPECT <--------------------+
 *      +--- interface or address down, connections lost: from any state
 */
#ifndef MCD_RAIL_H
#define MCD_RAIL_H

#include <stdbool.h>
#include <stdint.h>

#define MCD_RAIL_SILENCE_NS UINT64_C(200000000)
#define MCD_RAIL_TRIAL_BYTES (UINT64_C(1) << 20)
#define MCD_RAIL_TRIAL_SLICES 8u
#define MCD_RAIL_STRIKES 3u                  /* damaged slices in a row */
#define MCD_RAIL_REST_NS UINT64_C(100000000) /* a suspect rests so long, then twice as long.. */
#define MCD_RAIL_REST_MAX_NS UINT64_C(8000000000)
#define MCD_RAIL_CALM_NS UINT64_C(10000000000) /* up for so long: former suspicions are forgotten */
#define MCD_RAIL_SMALL (UINT64_C(16) << 10)    /* slices whose time is latency */
#define MCD_RAIL_SLICE_MIN (UINT64_C(64) << 10) /* what larger tasks are never cut below */
#define MCD_RAIL_SLICE_NS UINT64_C(4000000)     /* a slice takes at most so long on its rail */
#define MCD_RAIL_WINDOW_NS UINT64_C(20000000)   /* and what is under way at most so long */
#define MCD_RAIL_LOOK_NS UINT64_C(500000000)    /* a rail not used for so long gets a slice */

enum mcd_rail_state {
    MCD_RAIL_DOWN,      /* no connection, or its interface is down */
    MCD_RAIL_PROBATION, /* back: gets little until that has come through */
    MCD_RAIL_UP,
    MCD_RAIL_SUSPECT /* silent with work under way, or failing: gets nothing new */
};

enum mcd_rail_reason {
    MCD_RAIL_FINE,
    MCD_RAIL_NEW,       /* never connected yet */
    MCD_RAIL_LOST,      /* connection reset or closed */
    MCD_RAIL_SILENT,    /* nothing came in max(silence_ns, 4 x the loaded round trip) */
    MCD_RAIL_CARRIER,   /* the local interface is down */
    MCD_RAIL_ADDRESS,   /* the local address is gone */
    MCD_RAIL_CHECKSUMS, /* bytes were damaged on it */
    MCD_RAIL_PEER       /* the peer took it back, or is gone */
};

/* Times are ns of the engine's clock. */
struct mcd_rail {
    enum mcd_rail_state state;
    enum mcd_rail_reason reason;
    unsigned rank; /* topology, 0 is nearest */
    bool usable;   /* interface and address are there */
    uint32_t conns;
    uint32_t dying;   /* of them, given up and not yet gone */
    uint32_t changes; /* of the state */
    /* limits */
    uint64_t slice_max, window_max; /* bytes */
    uint64_t silence_ns; /* without progress, at least; the transport may try again by itself */
    /* under way */
    uint64_t queued; /* bytes */
    uint32_t out;    /* slices */
    uint32_t room;   /* slices the transport was seen to take */
    /* measured */
    double rate;          /* bytes a ns; 0: not yet */
    uint64_t rtt_ns;      /* 0: not yet */
    uint64_t loaded_ns;   /* smoothed */
    uint64_t mark;        /* busy time is counted from here */
    uint64_t answered;    /* bytes answered since `mark` and not yet in the rate */
    uint64_t busy_ns;     /* the time they took, up to mark */
    uint64_t answered_at; /* last answer */
    /* life */
    uint64_t progress, progress_at;
    uint64_t rest_until, up_since;
    unsigned strikes, suspicions;
    uint64_t trial_bytes;
    unsigned trial_slices;
};

void mcd_rail_init(struct mcd_rail *r, unsigned rank, uint64_t slice_max, uint64_t window_max);

/* ---- events ---------------------------------------------------------------------- */

/* A connection more. */
void mcd_rail_connected(struct mcd_rail *r, uint64_t now);
/* One less. */
void mcd_rail_lost(struct mcd_rail *r, uint64_t now);
/* All that it has are given up. */
void mcd_rail_given_up(struct mcd_rail *r, uint64_t now);
/* The interface or address is there or not. True: its connections are to be given up. */
bool mcd_rail_tell(struct mcd_rail *r, bool usable, enum mcd_rail_reason reason, uint64_t now);
/* Distrusted from now on; its connections are to be given up. */
void mcd_rail_suspect(struct mcd_rail *r, enum mcd_rail_reason reason, uint64_t now);
/* A slice that it damaged came through on another try. True: that is once too often. */
bool mcd_rail_damaged(struct mcd_rail *r);
/* Time passes: a suspect may be tried again. `alone`: there is no other that works. */
void mcd_rail_tick(struct mcd_rail *r, bool alone, uint64_t now);
/* Work is under way and the path does not move: `progress` as the transport counts. */
bool mcd_rail_silent(struct mcd_rail *r, uint64_t progress, uint64_t now);

/* A slice goes out; comes back answered (`posted`: when it went), or not. */
void mcd_rail_posted(struct mcd_rail *r, uint64_t length, uint64_t now);
void mcd_rail_answered(struct mcd_rail *r, uint64_t length, uint64_t posted, uint64_t now);
void mcd_rail_returned(struct mcd_rail *r, uint64_t length, uint64_t now);

/* ---- questions ------------------------------------------------------------------- */

static inline bool mcd_rail_works(const struct mcd_rail *r)
{
    return r->state == MCD_RAIL_UP || r->state == MCD_RAIL_PROBATION;
}
/* Bytes a ns to reckon with; a rail that stopped answering is as slow as it looks. */
double mcd_rail_rate(const struct mcd_rail *r, uint64_t now);
/* Most bytes of one slice. */
uint64_t mcd_rail_slice(const struct mcd_rail *r, uint64_t now);
/* May it take a slice of so many bytes now? */
bool mcd_rail_has_room(const struct mcd_rail *r, uint64_t length, uint64_t now);
/* ns from now until a slice of so many bytes would be through. */
double mcd_rail_finish(const struct mcd_rail *r, uint64_t length, uint64_t now);
/* Is it due for a slice just to see how it does? */
bool mcd_rail_wants_look(const struct mcd_rail *r, uint64_t now);

#endif
