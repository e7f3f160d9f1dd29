/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of a segment's reach beyond its host.
 *
 * Initiator: struct mcd_remote hangs on a struct mcd_segment whose owner is at another agent; its
 * snapshot holds that agent's description (buffers without extents).  Target: what a peer has opened
 * here (exports), and whom inbound connections serve (visitors).
 *
 * The control thread makes, changes and frees all of it, frees only after a grace period; engines read.
 */
#ifndef MCD_REMOTE_H
#define MCD_REMOTE_H

#include "engine.h"
#include "segment.h"

struct mcd_peer;
struct mcd_route;

struct mcd_remote {
    /* for engines */
    struct mcd_route *routes[MCD_ENGINES_MAX]; /* by engine; set before it can be found */
    uint64_t incarnation;                      /* of the segment at its owner */
    uint32_t export_index; /* at the peer; relaxed: may change when a peer has forgotten us */
    /* OK, or what tasks end with: STALE, PEER_UNREACHABLE, ...; control: release, engines: acquire */
    uint32_t status;
    /* An engine met an address that the snapshot does not have: it counts `wanted` up and rings the
     * control thread, which brings a fresh description and then sets `fresh` to the `wanted` it began
     * with. Only then is the address refused. Both relaxed / release-acquire. */
    uint32_t wanted, fresh;
    /* control thread only */
    struct mcd_peer *peer;
    struct mcd_segment *segment;
    struct mcd_remote *next; /* of the peer */
    uint32_t asked;          /* the `wanted` that the description under way answers */
    uint64_t version;        /* of the description */
    bool describing;         /* `call` is under way */
    bool again;              /* the description is out of date, or could not be had */
    uint32_t opens;          /* of ours at the peer: what Close gives back */
    uint64_t tenant;         /* that opened it first */
    char name[MCS_NAME_MAX];
    struct mcd_call *call; /* under way: DESCRIBE, or OPEN after a peer forgot us */
    struct mcd_snapshot *building;
    uint64_t building_version;
    uint32_t building_total; /* buffers that `building` has room for */
    uint64_t building_keys;  /* and RDMA keys that it may have more */
    bool described;          /* once at least */
};

#define MCD_EXPORTS_MAX 4096u

struct mcd_export {
    /* for engines */
    struct mcd_segment *segment;
    uint64_t incarnation;
    /* control thread only */
    uint32_t index;
    uint32_t opens; /* not yet closed */
    uint64_t told;  /* version that the peer was last told of */
    bool gone_told;
};

/* A peer's table of what it opened here. */
struct mcd_exports {
    struct mcd_export *slots[MCD_EXPORTS_MAX]; /* acquire / release */
    uint32_t count;                            /* control thread */
};

struct mcd_visitor;
struct
    mcd_serve { /* context of mcd_serve_adopt, mcd_serve_dismiss and mcd_serve_end: target role */
    const struct mct_ops *ops; /* dismiss: NULL: all */
    struct mcd_visitor *visitor;
    struct mct_conn conn; /* adopt */
    int res;              /* adopt: 0 or a negative errno; */
    bool handed_back;     /* and then the pair is the caller's again */
};

#define MCD_NOTICES 4096u

/* Whom the inbound connections of one route of a peer serve, all at one engine. */
struct mcd_visitor {
    /* for the engine */
    struct mcd_exports *exports; /* NULL: Mooncake's, which reach all public segments */
    struct mcd_engine *engine;
    uint32_t conns; /* engine: relaxed; open now, */
    uint32_t pairs; /* likewise; of them, queue pairs */
    char name[64];  /* of the peer, for the log */
    /* engine only: numbers of the last notifications, so that one sent again is not put twice */
    uint64_t notices[MCD_NOTICES];
    uint32_t next_notice;
    /* control thread only */
    uint64_t route; /* the peer's name for it */
    struct mcd_visitor *next;
    uint32_t adopting; /* connections on their way to the engine */
    bool leaving;
    struct mcd_command command; /* that dismisses it */
    struct mcd_serve serve;
};

#endif
