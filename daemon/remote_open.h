/* SPDX-License-Identifier: Apache-2.0 */
/* What describe.c (segments of other hosts) and remote_open.c (how they are found) share. */
#ifndef MCD_REMOTE_OPEN_H
#define MCD_REMOTE_OPEN_H

#include "peer.h"

struct mcd_remote_found { /* a peer's answer to OPEN */
    uint32_t export_index, flags;
    uint64_t incarnation, tenant;
};

struct mcd_remote *mcd_remote_find(const struct mcd_peer *p, uint64_t incarnation);
/* With a segment of one reference, and its first description under way. */
int mcd_remote_create(struct mcd_peer *p, const char *name, uint64_t tenant,
                      const struct mcd_remote_found *found, struct mcd_remote **out);
/* Its agent has opened it anew: what was withdrawn in the meantime is there again. */
void mcd_remote_revive(struct mcd_remote *r);
/* The first description has come, or never will: for the openings that wait for it. */
void mcd_openings_described(struct mcd_remote *r, uint32_t status, const char *text);

#endif
