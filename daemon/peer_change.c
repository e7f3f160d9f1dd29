/* SPDX-License-Identifier: Apache-2.0 */
/* What this host's interfaces and devices turn into, for its peers. */
#include <string.h>

#include "cluster.h"
#include "shm/status.h"

void mcd_peer_tell(struct mcd_peer *p)
{
    p->untold = p->wire != NULL;
    if (p->state != MCD_PEER_UP || mcd_hello_send(p->cluster, p->wire) != 0)
        return; /* in the greeting ours is on its way already: again once it is over */
    p->untold = false;
    mcd_peer_rewatch(p);
}

void mcd_peers_net_change(struct mcd_cluster *c, const struct mcd_local_rail *rail)
{
    struct mcd_peer *next;

    for (struct mcd_peer *p = c->peers; p != NULL; p = next) {
        next = p->next;
        mcd_ways_net_change(p, rail);
        /* a control connection over that cable is as dead as the rail: find another way at once */
        if (!rail->usable && p->wire != NULL && strcmp(p->wire_local, rail->text) == 0)
            mcd_peer_failed(p, MCS_PEER_UNREACHABLE,
                            "the local interface of its control connection is down");
        /* it may pair its own addresses with one that it was never told of */
        if (rail->usable)
            mcd_peer_tell(p);
    }
}

void mcd_peers_nics_changed(struct mcd_cluster *c)
{
    for (struct mcd_peer *p = c->peers; p != NULL; p = p->next) {
        mcd_ways_pair(p);
        mcd_peer_tell(p);
    }
}
