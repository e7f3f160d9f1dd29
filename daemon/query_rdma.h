/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent tells of its RDMA devices: for `mcshm ls nics` and `mcshm doctor rdma`. Control thread. */
#ifndef MCD_QUERY_RDMA_H
#define MCD_QUERY_RDMA_H

#include <cjson/cJSON.h>

#include "agent.h"
#include "peer.h"

/* Adds "enable", "devices", "deny" and "gid_index" as in [rdma], "used" and "nics", one object a nic, to an answer. */
void mcd_query_nics(const struct mcd_agent *a, cJSON *root);

/* Adds "nics": the RDMA devices that a peer has told of, those that it uses now. */
void mcd_query_peer_nics(const struct mcd_peer *p, cJSON *o);

#endif
