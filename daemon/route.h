/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A route: one engine's way to one peer.  It has rails (a local end, a peer's end, a
 * transport's link), of one or more transports, lanes (the tasks of one queue that go this way), slices under way.
 *
 * The control thread makes routes, adds rails and connections, says what it hears of interfaces and
 * of the peer, reads the report; everything else is the engine's.  All calls that change an
 * attached route are commands (mcd_engine_call) and are over when their `done` is set.
 */
#ifndef MCD_ROUTE_H
#define MCD_ROUTE_H

#include "engine.h"
#include "rail.h"
#include "remote.h"

#define MCD_RAILS_MAX 16u       /* of one transport, and ends of this host */
#define MCD_ROUTE_RAILS_MAX 32u /* of one route */

struct mcd_route_options {
    struct mcd_engine *engine;
    uint64_t id;      /* random: names the route to the peer */
    uint64_t slice;   /* bytes: what lanes are charged in turns of */
    uint64_t down_ns; /* how long tasks wait without any rail */
    bool
        best_only; /* rails of a lower tier carry nothing while there are better ones, working or not */
    const char *peer; /* for the log */
};

struct mcd_rail_options {
    const struct mct_ops *ops;
    const char *local, *peer; /* for people */
    uint8_t tier;             /* 0 is best: what lower ones carry is counted as fallback */
    unsigned rank;            /* topology, 0 is nearest */
    int node;                 /* NUMA, of its device; -1 unknown */
    uint64_t slice;           /* bytes */
    uint64_t window;          /* bytes under way */
    uint64_t silence_ns;      /* without progress; 0: MCD_RAIL_SILENCE_NS */
};

/* Control thread. -ENOSPC: the engine has MCD_ROUTES_MAX, -ENOMEM. Tasks may come before it is attached;
 * they wait. */
int mcd_route_create(const struct mcd_route_options *o, struct mcd_route **out);
/* Once detached. */
void mcd_route_destroy(struct mcd_route *r);
/* Control thread, any time: a rail more; its index. -ENOSPC. The engine sees it with the next command about the
 * route. */
int mcd_route_rail(struct mcd_route *r, const struct mcd_rail_options *o);
/* Control thread: connections that have ended, of transports with MCT_CAP_KILL_BY_AGENT, since this was asked
 * last; how many. Each is to be ended at the peer, too, and then mcd_route_confirm()ed. */
unsigned mcd_route_take_ended(struct mcd_route *r, uint64_t *conns, unsigned n);

/* Commands, for mcd_engine_call(). Contexts live until the command is done. */
bool mcd_route_attach(struct mcd_engine *g, struct mcd_command *c); /* context: the route */
/* Fails what waits (PEER_UNREACHABLE), ends what is under way, closes its connections. context: the route */
bool mcd_route_detach(struct mcd_engine *g, struct mcd_command *c);

struct mcd_route_conn { /* context of mcd_route_adopt: a connection for a rail */
    struct mcd_route *route;
    unsigned rail;
    struct mct_conn conn; /* the fd is the engine's from now on, whatever happens */
    int res;              /* once done: 0, or a negative errno; */
    bool handed_back;     /* and then the pair is the caller's again */
};
bool mcd_route_adopt(struct mcd_engine *g, struct mcd_command *c);

struct mcd_route_confirmed { /* context of mcd_route_confirm: the peer has ended this connection */
    struct mcd_route *route;
    uint64_t conn;
};
bool mcd_route_confirm(struct mcd_engine *g, struct mcd_command *c);

struct mcd_route_word { /* context of mcd_route_tell */
    struct mcd_route *route;
    int rail;    /* -1: all */
    bool usable; /* false: the interface or address is down, connections are given up at once */
    enum mcd_rail_reason reason;
    /* What everything that waits, and all that comes until it is OK again, ends with at once: OK: nothing;
     * STALE: the peer was replaced; ... Only with rail -1. */
    enum mcs_status verdict;
};
bool mcd_route_tell(struct mcd_engine *g, struct mcd_command *c);

bool mcd_serve_adopt(struct mcd_engine *g, struct mcd_command *c);
bool mcd_serve_dismiss(struct mcd_engine *g, struct mcd_command *c); /* done: none is left */
bool mcd_serve_end(struct mcd_engine *g, struct mcd_command *c); /* done: conn.id is not there */

/* Context of mcd_engine_quiesce: all transports of the engine; several engines may share it. Nothing
 * new is sent from or received into the range until it is quiet. */
struct mcd_quiesce {
    const void *base;
    uint64_t length;
};
bool mcd_engine_quiesce(struct mcd_engine *g, struct mcd_command *c);

/* What the control thread and `mcshm ls rails` see. Any time while the route exists. */
struct mcd_rail_report {
    enum mcd_rail_state state;
    enum mcd_rail_reason reason;
    uint64_t since_ns; /* in this state, CLOCK_MONOTONIC */
    const struct mct_ops *ops;
    unsigned tier;
    char local[72], peer[72];
    unsigned rank;
    uint32_t conns;         /* open */
    uint64_t lost;          /* connections lost so far: the control thread opens new ones */
    uint64_t bytes, slices; /* carried */
    uint64_t failed;        /* slices that did not come through */
    uint64_t queued;        /* bytes under way */
    double rate;            /* bytes a second, measured while busy */
    uint64_t rtt_ns;        /* of small requests on an idle rail, least lately */
    uint64_t loaded_ns;     /* of any request, smoothed */
};
struct mcd_route_report {
    unsigned rails;
    struct mcd_rail_report rail[MCD_ROUTE_RAILS_MAX];
    uint64_t moved_over; /* slices that went on to another rail */
    uint64_t waiting;    /* tasks */
    uint64_t unsettled;  /* connections that await their kill */
    bool wants;          /* tasks wait and no rail is up */
};
void mcd_route_get_report(const struct mcd_route *r, struct mcd_route_report *out);
const char *mcd_rail_state_word(enum mcd_rail_state s);
const char *mcd_rail_reason_word(enum mcd_rail_reason r);

#endif
