/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer: what this agent knows of another one in that one's present life (incarnation).  Control
 * thread only.
 *
 *   IDLE -> CONNECTING -> GREETING -> UP      WAITING: until the next attempt
 *              ^  |           |       |       DEFUNCT: a later incarnation has taken its place;
 *              |  v           v       v                goes when nobody uses it any more
 *              WAITING <------+-------+
 *
 * Data connections and exports live on while the control connection is away; they end when it has
 * been away for MCD_PEER_LINGER_NS, or when the peer comes back with another incarnation.
 */
#ifndef MCD_PEER_H
#define MCD_PEER_H

#include "address.h"
#include "dial.h"
#include "remote.h"
#include "route.h"
#include "transports/rdma/rdma.h"
#include "watch.h"
#include "wire.h"

#define MCD_PEER_LINGER_NS UINT64_C(30000000000)

enum mcd_wire_type {
    MCD_WIRE_HELLO = 1,
    MCD_WIRE_OPEN = 2,
    MCD_WIRE_CLOSE = 3,
    MCD_WIRE_DESCRIBE = 4,
    MCD_WIRE_CHANGED = 5,
    MCD_WIRE_RAILS = 6,
    MCD_WIRE_PING = 7,
    MCD_WIRE_BYE = 8,
    MCD_WIRE_PAIR = 9,
    MCD_WIRE_UNPAIR = 10,
    /* the object store: catalog.h, master.h */
    MCD_WIRE_STORE_JOIN = 32,
    MCD_WIRE_STORE_REPORT = 33,
    MCD_WIRE_STORE_EXIST = 34,
    MCD_WIRE_STORE_FIND = 35,
    MCD_WIRE_STORE_START = 36,
    MCD_WIRE_STORE_END = 37,
    MCD_WIRE_STORE_REMOVE = 38,
    MCD_WIRE_STORE_LIST = 39,
    MCD_WIRE_STORE_ORDER = 40,
    MCD_WIRE_STORE_LEASE = 41,
    MCD_WIRE_STORE_RECALL = 42
};

struct mcd_cluster;
struct mcd_local_rail;
struct mcd_opening;
struct mcd_way;
struct mcd_answering;
struct mcd_unpair;

/* An RDMA device of a peer, from its Hello. */
struct mcd_peer_nic {
    uint64_t id;
    char name[MCT_RDMA_NAME_MAX];
    uint8_t gid[16];
    uint8_t prefix;
    bool infiniband;
    bool there; /* it is named still */
};

enum mcd_peer_state {
    MCD_PEER_IDLE,
    MCD_PEER_CONNECTING,
    MCD_PEER_GREETING,
    MCD_PEER_UP,
    MCD_PEER_WAITING,
    MCD_PEER_DEFUNCT
};

/* A request of ours that awaits its answer. Embedded in whatever asks. */
struct mcd_call {
    /* status: of the answer, or TIMEOUT, PEER_UNREACHABLE; payload NULL then. Called once. */
    void (*done)(struct mcd_call *c, uint32_t status, const uint8_t *payload, size_t size);
    void *context;
    uint32_t id; /* 0: not under way */
    uint64_t deadline;
    struct mcd_call *next;
};

struct mcd_peer {
    struct mcd_watch watch; /* of the wire's socket */
    struct mcd_cluster *cluster;
    struct mcd_peer *next;
    char address[MCD_ADDRESS_TEXT_MAX];
    uint64_t incarnation; /* 0: not known yet */
    uint64_t
        alias; /* of the agent that was found at this address, and has a peer of its own; 0: none */
    bool doubted; /* it calls us though we are connected: is the connection alive? */
    enum mcd_peer_state state;
    uint32_t status; /* why it is not UP */
    char text[256];
    char version[32];
    uint64_t since; /* ns: in this state */
    struct mcd_wire *wire;
    bool greeted;        /* its Hello came on this wire */
    bool untold;         /* what our Hello said on it has changed since */
    char wire_local[72]; /* the wire's local address, numeric, no port */
    struct mcd_dial *dial;
    uint32_t dial_status; /* how the last candidate failed */
    char dial_text[256];
    struct mcd_alarm timer;
    uint64_t retry_at, last_attempt, pinged_at, away_since; /* ns */
    unsigned attempts, candidate;
    uint32_t next_id;
    struct mcd_call *calls, *late; /* late: past their deadlines, about to be told so */
    struct mcd_call ping;
    uint64_t features;
    char rails[MCD_RAILS_MAX][MCD_ADDRESS_TEXT_MAX]; /* where its data connections go */
    unsigned nrails;
    struct mcd_peer_nic nics[MCT_RDMA_NICS_MAX]; /* places are kept */
    unsigned nnics;

    /* what we opened there */
    struct mcd_remote *remotes;
    struct mcd_opening *openings; /* that need this peer now */
    struct mcd_way *ways;         /* one an engine; NULL before the first remote segment */
    struct mcd_unpair
        *unpairs; /* our queue pairs that have ended, whose other ends it has to end */
    unsigned nunpairs;

    /* what it opened here */
    struct mcd_exports *exports;
    struct mcd_visitor *visitors;
    unsigned nvisitors;
    struct mcd_answering *answering; /* its requests about queue pairs */
};

/* ---- peer.c ---------------------------------------------------------------------- */

/* The one with this address, made if there is none. -EINVAL: no address; -ENOSPC: [peer] max; -ENOMEM. */
int mcd_peer_get(struct mcd_cluster *c, const char *address, struct mcd_peer **out);
/* Connects, unless it is connected or was tried a moment ago. */
void mcd_peer_want(struct mcd_peer *p);
struct mcd_turned_down {
    uint32_t status; /* enum mcs_status */
    bool crossed;    /* our own call to it stays */
    char text[400];
};
/* An authenticated wire of an agent that called us and has said Hello. True: the wire is the peer's; false: it
 * remains the caller's, who says Bye with *why. */
bool mcd_peer_welcome(struct mcd_cluster *c, struct mcd_wire *w, const uint8_t *hello, size_t size,
                      struct mcd_turned_down *why);
/* The attempt, or the connection, has ended like this. */
void mcd_peer_failed(struct mcd_peer *p, uint32_t status, const char *text);
/* The wire's events, once a peer has it. */
extern const struct mcd_wire_events mcd_peer_events;
/* What a Hello says of us. */
int mcd_hello_send(struct mcd_cluster *c, struct mcd_wire *w);
/* The clock or an engine: upkeep of connections, descriptions, endings. */
void mcd_peers_poll(struct mcd_cluster *c);
void mcd_peers_destroy(struct mcd_cluster *c);
/* An RDMA device of this host has become another: peers are told. */
void mcd_peers_nics_changed(struct mcd_cluster *c);
/* Our Hello once more: what it says has changed. */
void mcd_peer_tell(struct mcd_peer *p);
/* A local interface or address went or came. */
void mcd_peers_net_change(struct mcd_cluster *c, const struct mcd_local_rail *rail);
const char *mcd_peer_state_word(enum mcd_peer_state s);
/* After something was sent. */
void mcd_peer_rewatch(struct mcd_peer *p);

/* catalog_peer.c: it is UP, or not any more: who has to do with objects is told. */
void mcd_peer_came(struct mcd_peer *p);
void mcd_peer_went(struct mcd_peer *p);
/* A request about objects, for who holds them or for their master. False: it is none, or there is nobody. */
bool mcd_peer_on_store(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *payload,
                       size_t size);

/* ---- peer_call.c ------------------------------------------------------------------ */

/* 0, or -ENOTCONN, -ENOBUFS. done() comes later in any case where 0 was returned. */
int mcd_peer_call(struct mcd_peer *p, struct mcd_call *call, uint16_t type,
                  const ProtobufCMessage *m, uint64_t limit_ms);
void mcd_peer_forget(struct mcd_peer *p, struct mcd_call *call);
/* The same where it is not known whom was asked. */
void mcd_peers_forget(struct mcd_cluster *c, struct mcd_call *call);
/* One frame without an answer. */
int mcd_peer_send(struct mcd_peer *p, uint16_t type, const ProtobufCMessage *m);
/* The answer to a request. */
void mcd_peer_answer(struct mcd_peer *p, const struct mcd_wire_header *h, uint32_t status,
                     const ProtobufCMessage *m);
/* All that are under way end so. */
void mcd_peer_fail_calls(struct mcd_peer *p, uint32_t status);
void mcd_peer_late_calls(struct mcd_peer *p, uint64_t now);
void mcd_peer_on_reply(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *payload,
                       size_t size);
/* Asks, when it was silent for long, whether it lives; one that does not is given up. */
void mcd_peer_ping(struct mcd_peer *p, uint64_t now);
/* A peer's words, cut to fit, for logs and clients: what is not printable becomes '?'. */
void mcd_peer_text(char *out, size_t size, const char *theirs);

/* ---- export.c: what peers open here ----------------------------------------------- */

void mcd_export_on_open(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *m,
                        size_t size);
void mcd_export_on_close(struct mcd_peer *p, const uint8_t *m, size_t size);
void mcd_export_on_describe(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *m,
                            size_t size);
void mcd_export_on_rails(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *m,
                         size_t size);
/* Tells the peer what changed since it was told last. */
void mcd_exports_tell(struct mcd_peer *p);
/* Whom the connections of this route of the peer serve, made when there is none; NULL: too many, or no memory. */
struct mcd_visitor *mcd_visitor_of(struct mcd_peer *p, uint64_t route);
/* Does an engine still take what an agent's earlier life has sent? They are ended; ask again. */
bool mcd_earlier_lives_go_on(struct mcd_cluster *c);
/* All data connections of the peer are on their way out. */
void mcd_visitors_dismiss(struct mcd_peer *p);
/* Ends of routes that are over. */
void mcd_exports_poll(struct mcd_peer *p);
/* Its data connections are ended and its exports given back. True once that is over: ask again. */
bool mcd_exports_drop(struct mcd_peer *p);

/* ---- way.c: routes to a peer and the connections of their rails ------------------- */

/* 0; -EAGAIN: earlier ones are on their way out, see mcd_ways_leave(); -ENOMEM, -ENOSPC. */
int mcd_ways_create(struct mcd_peer *p);
bool mcd_ways_leave(const struct mcd_peer *p);
/* The peer's rails may be others now. */
void mcd_ways_pair(struct mcd_peer *p);
/* Opens what is missing. */
void mcd_ways_poll(struct mcd_peer *p, uint64_t now);
/* Everything ends with this from now on; OK: nothing does. */
void mcd_ways_verdict(struct mcd_peer *p, enum mcs_status verdict);
void mcd_ways_net_change(struct mcd_peer *p, const struct mcd_local_rail *rail);
/* Takes the routes down. True once that is over: ask again. */
bool mcd_ways_drop(struct mcd_peer *p);
struct mcd_route *mcd_way_route(const struct mcd_peer *p, unsigned engine);

struct mcd_way_ends {
    char local[MCT_RDMA_NAME_MAX + 48], peer[MCT_RDMA_NAME_MAX + 48]; /* "mlx5_0/1 10.0.0.1" */
    char why[MCT_RDMA_TEXT_MAX]; /* its last queue pair was not made; "": it was */
};
/* Both ends of an RDMA rail, as they are now. False: it is none. */
bool mcd_way_ends(const struct mcd_peer *p, unsigned engine, unsigned rail,
                  struct mcd_way_ends *out);

/* ---- remote_open.c, describe.c: segments of other hosts -------------------------------------------- */

/*
 * Opens a segment that is not of this host. done(): OK with a segment (one reference, for the
 * callee), or a status with one sentence. Called once, not from inside, within [peer] open_ms.
 */
typedef void (*mcd_opened)(void *context, uint32_t status, const char *text,
                           struct mcd_segment *segment);
int mcd_remote_open(struct mcd_cluster *c, const char *name, uint64_t tenant, mcd_opened done,
                    void *context, struct mcd_opening **out);
/* done() is not called any more. */
void mcd_remote_cancel(struct mcd_opening *o);
/* The peer is UP, or an attempt has failed. */
void mcd_openings_peer_up(struct mcd_peer *p);
void mcd_openings_peer_failed(struct mcd_peer *p, uint32_t status, const char *text);
/* They go on with another peer object of the same agent. */
void mcd_openings_move(struct mcd_peer *from, struct mcd_peer *to);
void mcd_remotes_peer_up(struct mcd_peer *p);
void mcd_remotes_stale(struct mcd_peer *p);
void mcd_remote_on_changed(struct mcd_peer *p, const uint8_t *m, size_t size);
/* Descriptions that engines miss. */
void mcd_remotes_poll(struct mcd_peer *p);
/* Splits "HOST:PORT/NAME"; false when the name is not of that form. */
bool mcd_name_split(const char *name, char address[MCD_ADDRESS_TEXT_MAX], const char **rest);

#endif
