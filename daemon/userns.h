/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's user namespace. A client whose user it does not map is shown to the agent as the
 * overflow user, and so is every other such client, of whichever container.
 */
#ifndef MCD_USERNS_H
#define MCD_USERNS_H

#include <stdbool.h>
#include <sys/types.h>

/* May this user, of a socket's peer, be any of several? Never in the host's own namespace, where the
 * overflow user is nobody and nobody else. The first call decides about the namespace. */
bool mcd_userns_unmapped(uid_t uid);

/* Does this text of a uid_map map every user to itself, as the host's own namespace does? */
bool mcd_userns_is_whole(const char *map);
/* Leaves out those of these groups that are unmapped: they look all the same, so no rule may go by them. Returns
 * how many are left. */
size_t mcd_userns_known_groups(gid_t *gids, size_t n);

#endif
