/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stock Mooncake processes as peers.  To them this agent is one process more: it answers on a
 * handshake port, describes all buffers of public segments, and serves them on a data port.  In turn
 * its clients open "mooncake:NAME", with NAME as Mooncake's own openSegment() takes it.
 *
 * docs/mooncake.md tells how the two live side by side.  Control thread only, unless said otherwise.
 */
#ifndef MCD_MOONCAKE_H
#define MCD_MOONCAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "peer.h"

struct mcd_agent;
struct mcd_mooncake;
struct mcd_mooncake_opening;
struct mcd_route;
struct mcd_segment;

#define MCD_MOONCAKE_PREFIX "mooncake:" /* of the names that clients open */

struct mcd_mooncake_counters {
    uint64_t handshakes;       /* connections taken on the handshake port */
    uint64_t handshakes_open;  /* now */
    uint64_t pushed_out;       /* oldest ones closed to make room */
    uint64_t bad_frames;       /* and wrong lengths, bad JSON, no end in time */
    uint64_t metadata, probes; /* answered, by kind */
    uint64_t connections;      /* RDMA handshakes, answered with an empty object */
    uint64_t notifies;         /* delivered to one session at least */
    uint64_t notifies_refused; /* nobody public, or an inbox full */
    uint64_t data_accepted, data_refused, data_open;
    uint64_t opens, opens_failed;       /* of our clients */
    uint64_t peers;                     /* open now */
    uint64_t described;                 /* descriptors fetched */
    uint64_t described_failed;          /* not there, not reachable, or nonsense */
    uint64_t dials, dials_failed;       /* data connections to peers */
    uint64_t published, publish_failed; /* records written to their metadata service */
    uint64_t buffers;                   /* public now */
    uint64_t buffers_left_out;          /* of the descriptor, which has a limit */
};

/*
 * With [mooncake] listen = off *out is NULL, and 0 is returned. On failure one sentence in error.  Engines must run, and
 * must have been made with mct_mooncake_ops among their `nets`.
 */
int mcd_mooncake_create(struct mcd_agent *a, struct mcd_mooncake **out, char *error,
                        size_t error_size);
/* After the sessions, while engines still run: withdraws what is published, closes everything. NULL is fine. */
void mcd_mooncake_destroy(struct mcd_mooncake *m);

/* Public segments or their buffers have changed. To be called after each swap of such a segment's snapshot or
 * change of its flags and before the grace period begins: engines look addresses up in a table of their own, which
 * this makes anew. NULL is fine. */
void mcd_mooncake_changed(struct mcd_mooncake *m);
/* Engines say that something has happened (the agent's event_fd). NULL is fine. */
void mcd_mooncake_poll(struct mcd_mooncake *m);

/*
 * Opens a segment of a stock process; name without the prefix. done() is called once, not from inside: OK with
 * a segment, of which one reference is the callee's, or a status with one sentence. The last mcd_segment_put() takes
 * the connections down. Everybody who opens one name shares them. -ENOMEM.
 */
int mcd_mooncake_open(struct mcd_mooncake *m, const char *name, uint64_t limit_ms, mcd_opened done,
                      void *context, struct mcd_mooncake_opening **out);
/* done() is not called any more. */
void mcd_mooncake_cancel(struct mcd_mooncake_opening *o);

const struct mcd_mooncake_counters *mcd_mooncake_get_counters(const struct mcd_mooncake *m);
/* "192.0.2.1:12345": what stock processes open, and where they connect. */
const char *mcd_mooncake_name(const struct mcd_mooncake *m);
uint16_t mcd_mooncake_data_port(const struct mcd_mooncake *m);

/* What this agent has open at stock processes, for `mcshm ls`. */
struct mcd_mooncake_view {
    const char *name;   /* as it was opened */
    const char *target; /* "host:port" of its data port */
    bool v2;
    unsigned engine;
    struct mcd_route *route; /* of this engine */
    struct mcd_segment *segment;
};
void mcd_mooncake_each(struct mcd_mooncake *m,
                       void (*fn)(void *context, const struct mcd_mooncake_view *v), void *context);

#endif
