/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registrations of the agent's memory with its RDMA devices: one of each extent, for this host's own
 * transfers, and one of each published buffer that peers may read or write, with just that access.  GPU memory is
 * registered by a dmabuf of it; where driver or device have none, its registration fails, which is said once for each GPU.
 *
 *   create --> SOON --+--> MADE ----+--> drop --> GOING --> done(), freed
 *                     +--> FAILED --+
 *
 * A registration of a buffer holds a reference to its extent, and an extent with a registration of its own
 * is unmapped only when that is gone.  So memory that a device may still reach is never unmapped, however
 * long the device takes, and nobody else waits for it.  Control thread only.
 */
#ifndef MCD_REGISTRATION_H
#define MCD_REGISTRATION_H

#include <stdbool.h>
#include <stdint.h>

#include "transports/rdma/rdma.h"

struct mcd_dmabuf;
struct mcd_extent;
struct mcd_registration;
struct mct_cuda;

/* All registrations of the agent. */
struct mcd_registry {
    struct mct_rdma *rdma; /* NULL: nothing is registered */
    struct mct_cuda *cuda; /* NULL: there is no GPU memory */
    bool require;          /* memory that cannot be registered is refused */
    struct mcd_registration *all;
    uint64_t count;              /* that are there, being made or on their way out */
    uint64_t pending;            /* of them: being made or on their way out */
    uint64_t failed;             /* that could not be made, ever */
    uint64_t unregistered_bytes; /* of extents and buffers that go without one now */
    uint32_t gpus_told;          /* GPUs, a bit each, of which was said that they go without */
    bool told;                   /* that devices do not answer */
};

enum mcd_registration_state {
    MCD_REGISTRATION_SOON, /* being made */
    MCD_REGISTRATION_MADE,
    MCD_REGISTRATION_FAILED,
    MCD_REGISTRATION_GOING /* dropped */
};

struct mcd_registration {
    struct mcd_registry *registry;
    struct mct_rdma_memory *memory; /* NULL: failed, or its dmabuf is not there yet */
    struct mcd_dmabuf *dmabuf;      /* of GPU memory */
    bool borrows;                   /* it is that of the extent's own registration */
    struct mcd_extent *extent;      /* that it is of, or a part of */
    uint64_t offset, length;        /* of the part in it, bytes */
    unsigned access;                /* MCT_RDMA_REMOTE_*; 0: whole */
    uint64_t since;                 /* ns of CLOCK_MONOTONIC: in this state */
    enum mcd_registration_state state;
    bool whole;          /* of the extent itself, for this host's use */
    mct_rdma_done *done; /* NULL: nobody waits for it to be made, or to be gone */
    void *context;
    struct mcd_registration *next, *prev; /* of the registry */
    struct mcd_registration *dropped;     /* next of a segment's list of those to be dropped */
};

/* rdma: NULL where none is used. require: [rdma] enable = require. */
void mcd_registry_init(struct mcd_registry *g, struct mct_rdma *rdma, bool require);

/*
 * Begins to register the part [offset, offset + length) of an extent for peers. access: MCT_RDMA_REMOTE_*, not
 * 0. done (may be NULL): as mct_rdma_memory_create(), but also from inside when it fails at once; a failure is counted and
 * logged before. -ENOMEM: done is not called, *out is NULL.
 */
int mcd_registration_create(struct mcd_registry *g, struct mcd_extent *e, uint64_t offset,
                            uint64_t length, unsigned access, mct_rdma_done *done, void *context,
                            struct mcd_registration **out);
/* The same for a whole extent and this host's own transfers: engines find it in e->registration once it is
 * made, and it is in e->registered from the start. */
int mcd_registration_create_whole(struct mcd_registry *g, struct mcd_extent *e, mct_rdma_done *done,
                                  void *context);
/*
 * Nobody uses it any more, engines cannot find it, and their transfers with it have ended: deregisters and
 * frees it. done (may be NULL): no device reaches the memory any more; also from inside, where there is
 * nothing to wait for. It may be under way already, in either direction: then this done takes the place of an earlier one.
 */
void mcd_registration_drop(struct mcd_registration *r, mct_rdma_done *done, void *context);
/* Nothing calls back with the context `from` any more, but `done` (may be NULL) does with `to`. Returns how many those are. */
unsigned mcd_registrations_pass(struct mcd_registry *g, const void *from, mct_rdma_done *done,
                                void *to);

/* Now and then: says once when devices take very long. now: ns of CLOCK_MONOTONIC. */
void mcd_registry_look(struct mcd_registry *g, uint64_t now);

/* The access of a registration that MCS_ACCESS_* of a buffer ask for; 0: it needs none. */
unsigned mcd_registration_access(uint32_t access);

#endif
