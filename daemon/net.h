/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The half of an engine that reaches other hosts: instances of its transports, its routes, and the
 * way of a task through them.  Engine's thread only, but where it says otherwise.
 *
 *   burst.c    remote.c              schedule.c                transports
 *   taken ---> parked in a lane ---> cut, on the best rail --> posted
 *              again ^  ended <------------- net.c: comes back <--'
 */
#ifndef MCD_NET_H
#define MCD_NET_H

#include "engine.h"
#include "lane.h"
#include "rail.h"
#include "route.h"
#include "slice.h"
#include "task.h"

#define MCD_GATHER 32u     /* slices given to a transport at a time */
#define MCD_UNSETTLED 256u /* connections of a route that await their kill */
#define MCD_DOUBTFUL 256u  /* connections of a route with WRITEs that were called back */
#define MCD_TICK_NS UINT64_C(10000000)
#define MCD_GRACE_US 20000u /* an ending task lets the peer's answers in for so long */
#define MCD_ENDED 1024u     /* connections of a route that have ended and were not taken note of */
#define MCD_NEW_NS                                                                                 \
    UINT64_C(1000000000)      /* a fresh route waits so long for its best rails' first connection */
#define MCD_STUCK_US 1000000u /* what a transport does not hand back by then is taken by force */
#define MCD_AGAIN_US 2000u    /* between tries to deliver into a full inbox, at first: it doubles */
#define MCD_AGAIN_DOUBLES 4u  /* so many times */
#define MCD_DAMAGES 4u        /* tries of a slice that arrives damaged */

/* What the control thread sees of a rail: written relaxed by the engine. */
struct mcd_rail_shown {
    uint32_t state, reason, conns;
    uint64_t since_ns, queued, rate, rtt_ns, loaded_ns;
};

struct mcd_route_rail {
    struct mcd_rail rail;
    struct mct_link *link; /* NULL: could not be made */
    struct mct_slice *gather[MCD_GATHER];
    unsigned ngather;
    uint32_t changes;                     /* of the rail that have been told */
    uint64_t lost, bytes, slices, failed; /* read relaxed by the control thread */
    struct mcd_rail_shown shown;
    struct mct *transport;
    /* set by the control thread before `made` counts it */
    const struct mct_ops *ops;
    char local[72], peer[72];
    uint8_t tier;
    unsigned rank;
    int node;
    uint64_t slice, window, silence_ns;
};

/* A lost connection on which a WRITE may still be on its way. */
struct mcd_unsettled {
    uint64_t conn;
    bool by_agent; /* the control threads see to it */
    bool asked;
    unsigned rail; /* over which its kill was asked */
    uint64_t asked_at;
};

/* A living connection on which a WRITE was called back before its answer came. */
struct mcd_doubtful {
    uint64_t conn;
    unsigned rail;
};

struct mcd_route {
    struct mcd_route_options o;
    uint32_t index; /* in lanes of queues */
    unsigned made;  /* rails; control: release, engine: acquire */
    struct mcd_route_rail rails[MCD_ROUTE_RAILS_MAX];
    /* connections that have ended: engine writes, control reads; heads are release / acquire */
    uint64_t ended[MCD_ENDED];
    uint32_t ended_head, ended_tail;
    /* engine */
    unsigned nrails; /* that have a link */
    unsigned best;   /* tier of the best rails, working or not */
    uint64_t attached_at;
    uint64_t detached_at;
    bool fallen;      /* a lower tier has carried something since the best worked last */
    bool hold_strict; /* no rail of the best tier works */
    uint32_t full;    /* tiers without room in this turn, a bit each; not that of fresh tasks */
    uint64_t best_down_since; /* ns; 0: one does */
    bool attached, detached, dirty, active, wants_told;
    enum mcs_status verdict;
    struct mcd_lane *lanes;
    struct mcd_shares shares;                        /* of lanes */
    bool stuck;                                      /* there are such lanes */
    struct mcd_slice_list again[MCS_CLASS_COUNT][2]; /* READs; WRITEs and NOTIFYs */
    unsigned passed;                                 /* slices that went before a lower class's */
    uint64_t waiting;                                /* bytes, in lanes and to be sent again */
    uint64_t tasks;                                  /* read relaxed by the control thread */
    struct mcd_unsettled unsettled[MCD_UNSETTLED];
    uint32_t nunsettled; /* read relaxed by the control thread */
    struct mcd_doubtful doubtful[MCD_DOUBTFUL];
    unsigned ndoubtful;
    unsigned next_killer; /* the rail that asks next */
    uint64_t down_since;  /* ns; 0: a rail works */
    uint64_t moved_over;  /* read relaxed by the control thread */
    uint32_t wants;
    bool staged;                   /* GPU memory went through host memory, and that was said */
    uint64_t notices;              /* names of notifications */
    struct mcd_route *next, *prev; /* of all */
    struct mcd_route *active_next, *active_prev; /* of those that are not idle */
    struct mcd_route *dirty_next;
};

struct mcd_net {
    unsigned n;
    struct {
        const struct mct_ops *ops;
        struct mct *t;
    } nets[MCD_NETS_MAX];
    struct mct_uring *uring;
    uint64_t backs;                     /* slices that came back */
    uint64_t bulk_bytes, bulk_requests; /* when mcd_net_was_bulk() was asked last */
    bool enabled, closing;
    unsigned quiet;      /* turns of the transports since something happened */
    uint64_t ticks, now; /* of this turn: ticks, and ns of its clock */
    uint64_t tick_at;    /* ns: next look at all active routes */
    struct mct_slice *returned, **returned_end; /* that have come back and were not looked at */
    struct mcd_route *routes, *active, *dirty;
    struct mcd_queue *touched;
    struct mcd_slices slices;
    struct mcd_snapshot *open_buffers; /* control: release, engine: acquire */
};

/* ---- net.c ----------------------------------------------------------------------- */

int mcd_net_create(struct mcd_engine *g);
/* Everything is given back; in the engine's thread when there is one. Idempotent. */
void mcd_net_close(struct mcd_engine *g);
void mcd_net_destroy(struct mcd_engine *g);
/* Before the first use of a transport: rings belong to the thread that enables them. */
void mcd_net_enable(struct mcd_engine *g);
struct mct *mcd_net_find(const struct mcd_net *n, const struct mct_ops *ops);

bool mcd_net_turn(struct mcd_engine *g);
/* Nothing to do in a turn? So it is where no other host was ever reached. */
static inline bool mcd_net_idle(const struct mcd_net *n)
{
    return !n->enabled && n->touched == NULL;
}
/* Was what went over networks since this was asked last much, and in large requests? */
bool mcd_net_was_bulk(struct mcd_engine *g);
/* The last look before sleep: true when nothing waits, and whatever comes will ring. */
bool mcd_net_may_sleep(struct mcd_engine *g);
/* Milliseconds that the engine may sleep, -1: any time. */
int mcd_net_timeout(const struct mcd_engine *g);
/* The clock, where no turn has looked at it. */
void mcd_net_look_at_clock(struct mcd_engine *g);
/* Takes care of all slices that have come back. */
bool mcd_net_reap(struct mcd_engine *g);
/* Lies it in memory that is being made quiet? */
bool mcd_net_holds(const struct mcd_engine *g, const struct mcd_slice *s);
/* Publishes the batches of queues that were touched. */
void mcd_net_publish(struct mcd_engine *g);
/* The queue has batches to publish. */
void mcd_net_touch(struct mcd_net *n, struct mcd_queue *q);

/* ---- route.c --------------------------------------------------------------------- */

/* To be scheduled in this turn or the next. */
void mcd_route_dirty(struct mcd_net *n, struct mcd_route *r);
/* The look at an active route every few ms; late: it was much longer. */
void mcd_route_tick(struct mcd_engine *g, struct mcd_route *r, bool late);
/* All connections of a rail are given up. */
void mcd_route_abort(struct mcd_engine *g, struct mcd_route *r, unsigned rail, int error);
/* Is there a rail that works and may carry something? */
bool mcd_route_works(const struct mcd_route *r);
/* The tier of the rails that such a slice may go over now; MCD_NO_TIER: none. unfit: rails, a bit each, that it cannot
 * take; strict: the best tier or none. */
#define MCD_NO_TIER UINT32_MAX
unsigned mcd_route_tier(const struct mcd_route *r, uint32_t unfit, bool strict, uint64_t now);
/* Tells log and control thread what has changed. */
void mcd_route_show(struct mcd_engine *g, struct mcd_route *r);

/* A WRITE came back from a lost connection without an answer. False: there are too many. */
bool mcd_route_unsettled(struct mcd_route *r, unsigned rail, uint64_t conn);
/* Does its end at the peer wait to be confirmed? */
bool mcd_route_is_unsettled(const struct mcd_route *r, uint64_t conn);
/* Is there more than one living connection? */
bool mcd_route_has_ways(const struct mcd_route *r);
/* A WRITE was called back from a connection before its answer came: if that connection is lost, it is
 * to be killed like one that lost WRITEs, or the bytes could land over later ones; so it is at once where
 * later ones could take another connection. write: not a notification. */
void mcd_route_doubt(struct mcd_route *r, unsigned rail, uint64_t conn, bool write);
void mcd_route_ask_kills(struct mcd_engine *g, struct mcd_route *r);
/* From the transports. */
void mcd_route_on_lost(struct mcd_engine *g, struct mct_link *link, uint64_t conn, int error);
void mcd_route_on_killed(struct mcd_engine *g, struct mct_link *link, uint64_t conn);

/* ---- schedule.c ------------------------------------------------------------------ */

/* What a rail is wanted for. */
struct mcd_wish {
    uint64_t length; /* bytes at most; becomes what the rail wants */
    int avoid;       /* the rail that failed it, or -1 */
    uint32_t unfit;  /* rails that cannot carry it, a bit each */
    bool strict;     /* the best tier or none */
    int node;        /* NUMA, of its memory here; -1 unknown */
};
/* The rail for it; NULL: none for now. */
struct mcd_route_rail *mcd_schedule_rail(struct mcd_route *r, struct mcd_wish *w, uint64_t now);
/* May a slice more of the task be cut? Not where others of it wait for room on the only rails that take them. */
bool mcd_schedule_may_cut(const struct mcd_route *r, const struct mcd_task *t, uint64_t now);
/* Posts what may go. True when something did. */
bool mcd_schedule(struct mcd_engine *g, struct mcd_route *r);

/* ---- remote.c -------------------------------------------------------------------- */

/* A fresh task to a segment of another host. */
void mcd_remote_park(struct mcd_engine *g, struct mcd_task *t, struct mcd_segment *seg);
/* One that has waited for its gate, among the queue's tasks. */
void mcd_remote_resume(struct mcd_engine *g, struct mcd_task *t);
/* The task ends so, once all its slices are back. hurry: without waiting for the peer's answers. */
void mcd_remote_finish(struct mcd_engine *g, struct mcd_task *t, enum mcs_state state,
                       enum mcs_status error, bool hurry);
void mcd_remote_timer(struct mcd_engine *g, struct mcd_task *t);
/* A slice has come back. */
void mcd_remote_back(struct mcd_engine *g, struct mcd_slice *s);
/* The connection that a slice to be sent again was lost on is dead for sure. */
void mcd_remote_settled(struct mcd_engine *g, struct mcd_slice *s);
/* The next task of a lane that may send; NULL: none. `check` is what may be spent on checks. */
struct mcd_task *mcd_remote_next(struct mcd_engine *g, struct mcd_lane *l, unsigned class,
                                 bool hold_writes, uint64_t *check);
/* Bytes that its next slice has at most. */
uint64_t mcd_remote_want(const struct mcd_task *t);
/* Cuts the next slice, up to `length` bytes; NULL: the task has ended. */
struct mcd_slice *mcd_remote_cut(struct mcd_engine *g, struct mcd_task *t, uint64_t length);
/* Makes a slice ready to be sent again. False: its task has ended. */
bool mcd_remote_recut(struct mcd_engine *g, struct mcd_slice *s);
/* The slice is about to be posted. */
void mcd_remote_posting(struct mcd_engine *g, struct mcd_slice *s);
/* The description that a slice was aimed by may be old: it is sent again by a fresh one. */
void mcd_remote_want_fresh(struct mcd_engine *g, struct mcd_slice *s);
/* Is that there, or not to be had? */
bool mcd_remote_is_fresh(const struct mcd_slice *s);
/* remote_stage.c: a slice with an end in GPU memory, here or there, is to go over this rail. True: it may be posted, perhaps out of
 * or into a stage. False: it is being copied, waits for room in the route's list of those to be sent again, or its task is
 * ending. */
bool mcd_remote_stage(struct mcd_engine *g, struct mcd_slice *s, const struct mcd_route_rail *rr);
/* It needs its stage no more. */
void mcd_remote_unstage(struct mcd_engine *g, struct mcd_slice *s);
/* Ends all tasks of a lane alike. */
void mcd_remote_finish_lane(struct mcd_engine *g, struct mcd_lane *l, enum mcs_state state,
                            enum mcs_status error, bool hurry);

/* ---- serve.c --------------------------------------------------------------------- */

uint16_t mcd_serve_resolve(void *context, void *visitor, const struct mct_request *r,
                           void **pointer);
uint16_t mcd_serve_notify(void *context, void *visitor, const struct mct_request *r,
                          uint64_t source, uint64_t bytes, const void *name, uint32_t name_length,
                          const void *message, uint32_t message_length);
void mcd_serve_left(void *context, void *visitor, uint64_t conn, int error, const char *why);
/* The same of a queue pair. */
void mcd_serve_pair_left(void *context, void *visitor, uint64_t conn, int error, const char *why);

#endif
