/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floor: what a task must cost on this machine.  One ring hop of a descriptor, the
 * copy of 64 bytes, one store of a slot; no check, no right, no handle.
 */
#ifndef BENCH_FLOOR_H
#define BENCH_FLOOR_H

#include "shm/ring.h"

#include <stdint.h>

#define FLOOR_SLOTS 512u
#define FLOOR_BURST 32u

struct floor {
    struct rte_ring *ring;
    struct mcs_slot *slots;
    uint8_t *source, *destination; /* FLOOR_SLOTS lines each */
    uint32_t *stop;
};

/* Memory that forked children share. Returns 0 or a negative errno, said already. */
int floor_create(struct floor *f);
/* Empties everything. Neither side may be inside. */
void floor_reset(struct floor *f);

void floor_partner(struct floor *f); /* serves both */
uint64_t floor_rtt_client(struct floor *f, uint64_t until);
uint64_t floor_rate_client(struct floor *f, uint64_t until); /* counts tasks */

#endif
