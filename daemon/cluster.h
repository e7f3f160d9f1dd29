/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything of the agent that reaches beyond its host: the listening port, the peers, the metadata,
 * the local rails.  Control thread only.  There is none while [peer] listen = off.
 */
#ifndef MCD_CLUSTER_H
#define MCD_CLUSTER_H

#include "address.h"
#include "agent.h"
#include "netlink.h"
#include "peer.h"
#include "route.h"
#include "store/meta/meta.h"
#include "transports/tcp/protocol.h"
#include "wire.h"

#define MCD_LISTENERS_MAX 17u
#define MCD_TOKENS_MAX 8192u

/* One local end of rails. */
struct mcd_local_rail {
    struct mcd_local_address address;
    char text[72]; /* "192.0.2.1" */
    bool there;    /* the address is on an interface */
    bool usable;   /* and that is up */
};

/* An RDMA device of this host as it was when it was open last: what goes together with it stays so while it is away. */
struct mcd_own_nic {
    bool known; /* it was open once */
    bool infiniband;
    uint8_t gid[16];
    uint8_t prefix;
};

/* Leave for one data connection. */
struct mcd_token {
    uint8_t bytes[MCT_TCP_TOKEN];
    struct mcd_peer *peer;
    struct mcd_visitor *visitor;
    uint64_t expires; /* ns */
    struct mcd_token *next;
};

struct mcd_cluster_counters {
    uint64_t guests_accepted, guests_refused; /* connections before they are known */
    uint64_t data_accepted, data_refused;
    uint64_t opens, opens_refused;              /* of peers, here */
    uint64_t remote_opens, remote_opens_failed; /* of our clients, there */
    uint64_t connects, connects_failed;
    uint64_t pairs, pairs_refused; /* queue pairs of peers, here */
};

struct mcd_cluster {
    struct mcd_agent *agent;
    char address[MCD_ADDRESS_TEXT_MAX]; /* what others connect to */
    uint16_t port;
    struct mcd_wire_auth *auth;
    struct mcd_wire_stats wire_stats;
    struct mcm *meta;
    struct mcd_watch meta_watch;
    int meta_fd;
    struct {
        struct mcd_watch watch;
        int fd;
    } listeners[MCD_LISTENERS_MAX];
    unsigned nlisteners;
    struct mcd_watch netlink_watch;
    int netlink_fd;
    struct mcd_local_rail rails[MCD_RAILS_MAX];
    unsigned nrails;
    bool moved; /* an address went over to another interface */
    struct mcd_own_nic nics[MCT_RDMA_NICS_MAX];
    struct mcd_guest *guests;
    unsigned nguests;
    struct mcd_peer *peers;
    unsigned npeers;
    struct mcd_token *tokens;
    unsigned ntokens;
    struct mcd_alarm tick;       /* upkeep, four times a second */
    struct mcd_alarm told_timer; /* peers are told of changed segments */
    struct mcd_alarm deaf_timer; /* out of descriptors: listens again */
    unsigned next_visitor;       /* engine of the next one */
    struct mcd_cluster_counters counters;
};

/* One sentence in error. *a's cluster is set, or stays NULL with [peer] listen = off. */
int mcd_cluster_create(struct mcd_agent *a, char *error, size_t error_size);
/* After the sessions: says goodbye to peers, closes everything; engines still run. */
void mcd_cluster_destroy(struct mcd_agent *a);
/* Engines or the clock say that something may have changed. */
void mcd_cluster_poll(struct mcd_agent *a);
/* A segment's buffers, name or flags changed: those who reach it from other hosts are told, soon. After the
 * swap, before the grace period. Without a cluster, too. */
void mcd_segments_changed(struct mcd_agent *a);

/* The addresses of the usable local rails with our port, into text; pointers to them into out. Their number. */
size_t mcd_rails_print(const struct mcd_cluster *c, char text[MCD_RAILS_MAX][MCD_ADDRESS_TEXT_MAX],
                       char *out[MCD_RAILS_MAX]);

/* guest.c: connections that came in and are not yet known. */
void mcd_guest_accept(struct mcd_cluster *c, int fd);
void mcd_guests_destroy(struct mcd_cluster *c);

/* token.c */
int mcd_token_create(struct mcd_cluster *c, struct mcd_peer *p, struct mcd_visitor *v,
                     uint8_t out[MCT_TCP_TOKEN]);
/* Takes it out of the table; NULL: never issued, used or too late. free() it. */
struct mcd_token *mcd_token_take(struct mcd_cluster *c, const uint8_t bytes[MCT_TCP_TOKEN]);
/* All tokens of a peer go, or those of one of its visitors. */
void mcd_tokens_revoke(struct mcd_cluster *c, const struct mcd_peer *p,
                       const struct mcd_visitor *v);

#endif
