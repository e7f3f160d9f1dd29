/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs between two agents, as the control connection speaks of them: Nic, Pair, Unpair of peer.proto.  Control
 * thread only.  The asking side is way_rdma.c; pair.c answers; unpair.c has the ends that the peer still has to confirm.
 */
#ifndef MCD_PAIR_H
#define MCD_PAIR_H

#include "cluster.h"
#include <daemon/peer.pb-c.h>
#include "transports/rdma/rdma.h"

#define MCD_PAIRS_OF_A_PEER 256u /* queue pairs that serve one peer here */

struct mcd_way;

/* ---- pair.c ------------------------------------------------------------------------ */

/* The engine's instance of RDMA; NULL: it has none. */
struct mct *mcd_pair_instance(const struct mcd_engine *g);
/* Why mct_rdma_pair_create() did not take a request. */
const char *mcd_pair_why(int res);
/* *m points into *e. */
void mcd_pair_end_write(const struct mct_rdma_end *e, Mcd__End *m);
/* False: it makes no sense. */
bool mcd_pair_end_read(const Mcd__End *m, struct mct_rdma_end *out);

struct mcd_nics_hello { /* what a Hello's nics point to */
    struct mct_rdma_nic nics[MCT_RDMA_NICS_MAX];
    Mcd__Nic m[MCT_RDMA_NICS_MAX], *list[MCT_RDMA_NICS_MAX];
};
/* The devices of this host that take connections, into a Hello. */
void mcd_nics_write(const struct mcd_cluster *c, Mcd__Hello *m, struct mcd_nics_hello *h);
/* A peer's. One that it no longer names keeps its place, so that what is paired with it stays paired. */
void mcd_nics_read(struct mcd_peer *p, const Mcd__Hello *m);

/* Its agent has ended, and with it the other halves of all queue pairs: they do not close as sockets do. */
void mcd_nics_gone(struct mcd_peer *p);

void mcd_pair_on_pair(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *m,
                      size_t size);
void mcd_pair_on_unpair(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *m,
                        size_t size);
/* What has come of them since. */
void mcd_pairs_poll(struct mcd_peer *p, uint64_t now);
/* Those being set up for the peer are given up; what an engine has is its visitor's. */
void mcd_pairs_drop(struct mcd_peer *p);

/* ---- unpair.c ---------------------------------------------------------------------- */

/* A queue pair of ours has ended: the peer's end of it is to go, too, and is asked to until it says so. way: whose engine
 * is told then; NULL: nobody waits for it. */
void mcd_unpair(struct mcd_peer *p, struct mcd_way *way, uint64_t route, uint64_t conn);
/* How many are not confirmed. */
unsigned mcd_unpairs(const struct mcd_peer *p);
void mcd_unpairs_poll(struct mcd_peer *p, uint64_t now);
/* The way's engine is told of none any more. False: it is being told just now, ask again. */
bool mcd_unpairs_release(struct mcd_peer *p, const struct mcd_way *way);
/* The peer is gone, and with it its ends; its ways are, too. */
void mcd_unpairs_drop(struct mcd_peer *p);

#endif
