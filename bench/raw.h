/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare ring: two rte_rings of 64-byte elements in a memfd that two processes share,
 * driven by DPDK's inline functions and nothing else.
 *
 *   client  --- there --->  partner
 *   client  <--- back ----  partner      (round trip only)
 */
#ifndef BENCH_RAW_H
#define BENCH_RAW_H

#include "shm/ring.h"

#include <stdint.h>

#define RAW_DEPTH 1024u
#define RAW_BURST 32u

struct raw {
    struct rte_ring *there, *back;
    uint32_t *stop; /* client sets it, partner leaves when it has drained the ring */
};

/* Memory that forked children share. Returns 0 or a negative errno, said already. */
int raw_create(struct raw *r);
/* A ring by hand, as rte_ring_init() would: that function needs DPDK's library. */
void raw_ring_init(struct rte_ring *ring, uint32_t depth);
/* Empties everything. Neither side may be inside. */
void raw_reset(struct raw *r);

/* Loops; each returns how often it went round. The client's end after `until` ticks. */
void raw_rtt_partner(struct raw *r);
uint64_t raw_rtt_client(struct raw *r, uint64_t until);
void raw_rate_partner(struct raw *r);
uint64_t raw_rate_client(struct raw *r, uint64_t until); /* counts elements */

#endif
