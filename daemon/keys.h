/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA keys in the description of a segment (peer.proto, Buffers): what its owner writes there, and what others
 * read out of it.  Control thread only.
 */
#ifndef MCD_KEYS_H
#define MCD_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include <daemon/peer.pb-c.h>

#include "registration.h"
#include "segment.h"

#define MCD_PAGE_BUFFERS 8192u /* in one message: with their keys at most some 920 KB of 1 MiB */
#define MCD_PAGE_KEYS 131072u  /* likewise */
#define MCD_PAGE_NICS 32u
#define MCD_KEYS_MAX (UINT64_C(4) << 20) /* of one segment of a peer: 16 MiB */

/* The keys of one page of a description. */
struct mcd_keys_page {
    uint64_t nic[MCD_PAGE_NICS];
    uint32_t nnics, nbuffers, nkeys;
    uint64_t chunk[MCD_PAGE_BUFFERS];
    uint32_t nics[MCD_PAGE_BUFFERS];
    uint32_t rkey[MCD_PAGE_KEYS];
};

/*
 * Appends what peers need of one buffer of this host, also when that is nothing. False: the page has no room
 * for it, it is the first of the next one. What has too many keys for a page has them for some of the
 * devices only, or for none, which is logged.
 */
bool mcd_keys_add(struct mcd_keys_page *p, const struct mct_rdma *rdma, const struct mcd_buffer *b);
/* Makes the message refer to the page. */
void mcd_keys_fill(struct mcd_keys_page *p, Mcd__Buffers *m);

/* Do the vectors of keys contradict each other or the buffers, whose vectors are good? */
bool mcd_keys_are_good(const Mcd__Buffers *m);
/*
 * The last buffers of the snapshot are those of the message, which is good: gives them its keys, in a block of the
 * snapshot's. *left: how many keys the segment may have more; what is beyond that is left out. -ENOMEM: all of them are.
 * -E2BIG: some are.
 */
int mcd_keys_take(struct mcd_snapshot *s, const Mcd__Buffers *m, uint64_t *left);

#endif
