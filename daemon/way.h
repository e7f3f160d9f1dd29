/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the ways to a peer: way.c with rails of TCP, way_rdma.c with those of RDMA. Control thread only. */
#ifndef MCD_WAY_H
#define MCD_WAY_H

#include "cluster.h"
#include "transports/rdma/rdma.h"

#define MCD_WAY_RETRY_MIN_NS UINT64_C(50000000)
#define MCD_WAY_RETRY_MAX_NS UINT64_C(1000000000)
/* Queue pairs that cannot be made cost both devices' threads a second each, and fill the peer's log. */
#define MCD_WAY_RDMA_RETRY_MAX_NS UINT64_C(6400000000)

/* Connections between two devices hold as long as both are these. */
struct mcd_nic_key {
    uint64_t id; /* 0: not up, or not there */
    uint8_t gid[16];
};

struct mcd_way_rail {
    char local[MCT_RDMA_NAME_MAX];   /* "": any; RDMA: the device's name */
    char peer[MCD_ADDRESS_TEXT_MAX]; /* likewise */
    unsigned opening;                /* connections being set up */
    unsigned failures;               /* to open one, since the last success */
    unsigned adopted;                /* opened, since they last lasted */
    uint64_t retry_at;               /* ns */
    bool unusable;                   /* its local end is gone; RDMA: either one */
    /* RDMA */
    bool rdma;
    unsigned nic, peer_nic;         /* index among this host's, and in the peer's nics[] */
    struct mcd_nic_key own, theirs; /* as its connections were made for */
    uint64_t few_until;             /* ns: so long fewer queue pairs than wanted will do */
    char why[MCT_RDMA_TEXT_MAX];    /* the last one was not made */
};

/* A data connection on its way. */
struct mcd_way_setup {
    struct mcd_watch watch;
    struct mcd_alarm timer;
    struct mcd_way *way;
    struct mcd_way_setup *next;
    unsigned rail;
    struct mcd_dial *dial;
    int fd;
    struct mct_tcp_open open;
    struct mct_tcp_opened opened;
    size_t have;
    bool adopting;
    struct mcd_command command;
    struct mcd_route_conn conn;
};

/* Something said to the engine about a route. */
struct mcd_way_said {
    struct mcd_way_said *next;
    struct mcd_command command;
    struct mcd_route_word word;
};

struct mcd_way {
    struct mcd_peer *peer;
    struct mcd_route *route;
    struct mcd_engine *engine;
    uint64_t id;
    struct mcd_way_rail rails[MCD_ROUTE_RAILS_MAX];
    unsigned nrails;
    struct mcd_way_setup *setups;
    struct mcd_way_said *said;
    struct mcd_pairing *pairings; /* queue pairs on their way */
    struct mcd_paired *paired;    /* those that the engine has */
    unsigned npairings, npaired;
    struct mcd_call call;
    unsigned asked[MCD_ROUTE_RAILS_MAX]; /* connections that the tokens on their way are for */
    struct mcd_command command;          /* attach, then detach */
    bool leaving;
};

/* way.c: the time of the next try after one that failed, and after a connection that was opened. */
void mcd_way_wait_longer(struct mcd_way_rail *r);
void mcd_way_adopted(struct mcd_way_rail *r);
/* Tells the engine. */
void mcd_way_say(struct mcd_way *w, const struct mcd_route_word *word);

/* way_rdma.c: pairs the devices of both hosts, and gives up what was made for others than those that are there. */
void mcd_way_rdma_pair(struct mcd_way *w);
/* Makes what is missing, takes note of what has ended. */
void mcd_way_rdma_poll(struct mcd_way *w, uint64_t now);
/* Nothing new; true once nothing of it is under way: ask again. */
bool mcd_way_rdma_leave(struct mcd_way *w);
/* The route is gone: the peer's ends of what it had go, too. */
void mcd_way_rdma_left(struct mcd_way *w);

#endif
