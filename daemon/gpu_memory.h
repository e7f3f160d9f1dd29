/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ties: what the GPU driver has of the agent's memory.  A tie is of an extent of GPU memory from before it is made or
 * imported until the driver has freed it, or of a host extent from when it is pinned until it is not.  The calls are
 * the driver's to take their time with (transports/cuda/cuda.h): an extent's memory is given back, and uncounted, only
 * when they have ended, and nobody but those who asked for it waits, for a limited time.  Control thread only.
 *
 *   plan -> MAKE, IMPORT --+--> extent of it --> its last put --> FREE --> gone
 *                          +--> failed, or nobody waits any more: FREE --> gone
 *   pin  -> PIN ----------------> its last put --> UNPIN --> unmapped
 *                     (or mcd_gpu_unpin() ------> UNPIN, and it stays)
 */
#ifndef MCD_GPU_MEMORY_H
#define MCD_GPU_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shm/cuda.h"

struct mcd_agent;
struct mcd_extent;
struct mcd_gpu_tie;
struct mcd_ledger_extent;
struct mcd_session;
struct mct_cuda_call;
struct mct_cuda_part;

/* A device's bytes. */
struct mcd_gpu_sums {
    uint64_t
        used; /* made, imported, on their way in or out, or of sessions that are to come back with them */
    uint64_t limit;   /* of `used` */
    uint64_t refused; /* requests refused for it */
};

/* UUID of the device that the memory is of. */
const struct mcs_gpu_id *mcd_gpu_tie_id(const struct mcd_gpu_tie *t);
/* Its call, with the results once it is done. */
const struct mct_cuda_call *mcd_gpu_tie_call(const struct mcd_gpu_tie *t);
/* Bytes that it counts. */
uint64_t mcd_gpu_tie_bytes(const struct mcd_gpu_tie *t);

/*
 * Plans memory on a device that the driver knows: rounds `size` up to its granularity, or to [gpu] extent_size where the
 * limits allow that and `room` (bytes that the tenant may have) does; counts it for the device and the session, whose
 * operation's tie it becomes. mcd_gpu_begin_make() must follow. 0; -ENOMEM: beyond the limit, or no memory here.
 */
int mcd_gpu_plan(struct mcd_session *s, unsigned device, uint64_t size, uint64_t room);
/* The same for n parts of memory that the client has made: they and their descriptors are the tie's from then on, in any case. */
int mcd_gpu_plan_import(struct mcd_session *s, unsigned device, uint64_t size,
                        struct mct_cuda_part *parts, unsigned n);
/* The same for an extent that an earlier agent gave: it is counted already, and so is its place. parts as before. */
int mcd_gpu_plan_back(struct mcd_session *s, unsigned device, const struct mcd_ledger_extent *r,
                      struct mct_cuda_part *parts, unsigned n);
/* Frees parts, and has their descriptors, which count, closed for that user. known: the driver has taken them for its own. */
void mcd_gpu_close_parts(struct mcd_agent *a, uid_t uid, struct mct_cuda_part *parts, unsigned n,
                         bool known);
/* May a tenant that has `own` such descriptors in parts have one more? Then it counts. All together have at most a quarter of what
 * the process may have, and each at most half of what others leave of that. */
bool mcd_gpu_may_keep(struct mcd_agent *a, unsigned own);
/* Has the driver make or import what was planned; mcd_gpu_is_made() is for mcd_session_await(). */
void mcd_gpu_begin(struct mcd_session *s);
bool mcd_gpu_is_made(struct mcd_session *s);
/* After it: the driver has not made it in the time that the operation has. Then it is abandoned, and until the call has come back
 * mcd_gpu_hangs() says so of each session of that process: one client has one hand of the driver's (transports/cuda). */
bool mcd_gpu_is_late(struct mcd_session *s);
bool mcd_gpu_hangs(const struct mcd_session *s);
/* After NO_MEMORY, where more was wanted than is needed for `size` bytes: plans just that. False: it was that already. */
bool mcd_gpu_plan_less(struct mcd_session *s, uint64_t size);
/* The session's operation lets go of its tie without an extent: what is made is freed, what comes will be. */
void mcd_gpu_abandon(struct mcd_session *s);
/* What was made becomes an extent with one reference; the tie is not the operation's any more. -ENOMEM: abandoned. */
int mcd_gpu_take(struct mcd_session *s, struct mcd_extent **out);

/* Begins to pin a host extent, if a device is in use; a session's operation (NULL: nobody's) may wait for it. */
void mcd_gpu_pin(struct mcd_agent *a, struct mcd_extent *e, struct mcd_session *waits);
/* Has the driver let go of a host extent that stays, where nothing is under way; `then` (NULL: nothing) follows, at once if
 * it has nothing of it. */
void mcd_gpu_unpin(struct mcd_extent *e, void (*then)(void *context), void *context);
/* Pins a host extent if a device is in use, then goes on with `then`: after 5 s in any case. */
void mcd_op_pin(struct mcd_session *s, struct mcd_extent *e, void (*then)(struct mcd_session *s));
/* Puts the session's extent, then goes on with `then` once the driver has let go of it: after 5 s in any case. */
void mcd_op_put(struct mcd_session *s, struct mcd_extent *e, void (*then)(struct mcd_session *s));

/* Of a session in limbo: counts, or counts no more, an extent of GPU memory that it may bring back. False: this agent
 * has no GPU memory. */
bool mcd_gpu_expect(struct mcd_agent *a, const struct mcd_ledger_extent *r);
void mcd_gpu_expect_no_more(struct mcd_agent *a, const struct mcd_ledger_extent *r);

/* A device's bytes, by its id. */
void mcd_gpu_get_sums(const struct mcd_agent *a, const struct mcs_gpu_id *id,
                      struct mcd_gpu_sums *out);

#endif
