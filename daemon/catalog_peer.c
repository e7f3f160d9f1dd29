/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer's control connection brings to the object store. */
#include "cluster.h"
#include "master.h"
#include "store.h"

static struct mcd_catalog *catalog_of(const struct mcd_peer *p)
{
    const struct mcd_agent *a = p->cluster->agent;

    return a->store == NULL ? NULL : a->store->catalog;
}

void mcd_peer_came(struct mcd_peer *p)
{
    if (catalog_of(p) != NULL)
        mcd_catalog_peer(catalog_of(p), p, true);
}

void mcd_peer_went(struct mcd_peer *p)
{
    struct mcd_agent *a = p->cluster->agent;

    p->away_since = mcd_now_ns();
    if (catalog_of(p) != NULL)
        mcd_catalog_peer(catalog_of(p), p, false);
    if (a->master != NULL)
        mcd_master_peer_gone(a->master, p);
}

bool mcd_peer_on_store(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *payload,
                       size_t size)
{
    struct mcd_agent *a = p->cluster->agent;

    return (catalog_of(p) != NULL && mcd_catalog_on_message(catalog_of(p), p, h, payload, size)) ||
           (a->master != NULL && mcd_master_on_message(a->master, p, h, payload, size));
}
