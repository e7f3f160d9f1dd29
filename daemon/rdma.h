/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner of a->rdma, this host's RDMA devices: makes them at the start, listens to them, and tells
 * the log and the rails when one has become another.  Control thread only.
 */
#ifndef MCD_RDMA_H
#define MCD_RDMA_H

#include "agent.h"

/*
 * Opens the devices that [rdma] allows; a->rdma stays NULL where none are used. Before the engines are made.
 * Errors, with one sentence: the lists are malformed, or enable = require and no device is up.
 */
int mcd_rdma_create(struct mcd_agent *a, char *error, size_t error_size);
/* Once the control thread's loop can look after descriptors: what devices tell arrives from now on. 0 or a negative errno. */
int mcd_rdma_watch(struct mcd_agent *a);
/* Before that loop's descriptor is closed. */
void mcd_rdma_unwatch(struct mcd_agent *a);
/* After the engines. */
void mcd_rdma_destroy(struct mcd_agent *a);

#endif
