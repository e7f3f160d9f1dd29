/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last tasks of a queue, for `mcshm trace`.  A ring in the agent's private memory, written by the
 * queue's engine and read by the control thread while the engine goes on.  Tasks that were parked,
 * went to another host or did not complete are always recorded; of those that complete in the burst
 * that took them, at most one each MCD_TRACE_US on average, so that recording costs nothing.
 */
#ifndef MCD_TRACE_H
#define MCD_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/abi.h"

#define MCD_TRACE_SIZE 256u /* tasks; a power of two */
#define MCD_TRACE_US 1u

struct mcd_outcome;

struct mcd_traced {
    uint64_t when;        /* ticks: about when it ended */
    uint64_t bytes;       /* moved */
    uint64_t length;      /* asked for; 0 of what was only notified */
    uint64_t remote_addr; /* as asked */
    uint32_t queue_ns, move_ns, notify_ns;
    uint32_t segment; /* handle */
    uint8_t op, shape, flags, priority;
    uint16_t error;
    uint8_t state, path;
    uint32_t slot, generation;
};

struct mcd_trace {
    struct mcd_traced *ring;
    uint64_t head; /* ever recorded */
    uint64_t due;  /* engine, ticks: when a burst is recorded again */
};

int mcd_trace_init(struct mcd_trace *t);
void mcd_trace_fini(struct mcd_trace *t);

/* Engine: is a burst to be recorded? */
static inline bool mcd_trace_due(const struct mcd_trace *t, uint64_t now)
{
    return now >= t->due;
}
/* Engine. */
void mcd_trace_add(struct mcd_trace *t, const struct mcs_desc *d, const struct mcd_outcome *o,
                   uint64_t now);
/* Control thread: copies up to `max` of the last ones, the oldest first; returns how many. */
unsigned mcd_trace_copy(const struct mcd_trace *t, struct mcd_traced *out, unsigned max);

#endif
