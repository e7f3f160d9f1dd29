/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An extent: one memfd of memory that belongs to one session from its creation to its
 * destruction, never to another one after it.  The control thread creates, counts and
 * destroys extents; engines reach them through the tables of sessions and segments and
 * use only the fields marked so, which do not change.
 */
#ifndef MCD_EXTENT_H
#define MCD_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc.h"
#include "config.h"

struct mcd_ledger;
struct mcd_ledger_extent;
struct mct_cuda_memory;
struct mcd_gpu_tie;
struct mcd_pool_places;
struct mcd_pool;
struct mcd_registration;
struct mcd_session;

/* A kind of memory; of GPU memory: the granularity of the device, and the node that is near it. */
struct mcd_kind {
    uint64_t page_size; /* bytes; 4096: ordinary pages */
    int node;           /* NUMA node, -1: any */
};

struct mcd_extent {
    /* for engines, set before the extent can be found */
    uint8_t *map; /* with `gpu`: a device address, which this process must not touch */
    uint64_t size;
    uint64_t address;            /* published address of the first byte; unique on this host */
    uint32_t handle;             /* in the owner's table */
    struct mct_cuda_memory *gpu; /* NULL: host memory */
    int16_t gpu_device;          /* with `gpu`: index of the device */
    /* Host memory: whether the GPU driver has it registered; 0 no, 1 it is being registered, 2 yes, 3 it cannot be. control:
     * release, engines: acquire */
    uint32_t pinned;
    /* Local registration with the RDMA devices; NULL: none, or not yet. control: release, engines: acquire */
    struct mct_rdma_memory *registration;
    /* control thread only */
    struct mcd_pool *pool;
    struct mcd_gpu_tie *tie; /* what the GPU driver has of it; NULL: nothing. gpu_memory.h */
    struct mcd_registration *registered; /* what `registration` is of; NULL: none was asked for */
    struct mcd_kind kind;
    uint32_t id;
    int fd;        /* of GPU memory: what clients import it by; -1: it is imported itself */
    unsigned refs; /* the owner, each grant that maps it, and each registration of a part of it */
    bool foreign;  /* a memfd the client made, or GPU memory that it had made before */
    bool hollow;   /* its pages were given back, and counted so: only mappings of it are left */
    bool handed; /* clients have, or had, its descriptor: mappings may be left that nobody counts */
    bool partial;            /* came back with allocations that are not known: gives nothing more */
    struct mcd_alloc *alloc; /* NULL when foreign */
    struct mcd_session *owner;
    struct mcd_ledger_extent *record; /* NULL: no ledger is kept, or the owner is gone */
    uint64_t tenant;
    struct mcd_extent *prev, *next;
    int guard; /* entry in the fault table; -1: GPU memory, which is not touched */
};

/* All extents of the agent and the accounting of the pool. Control thread only. */
struct mcd_pool {
    const struct mcd_config *config;
    struct mcd_pool
        *places; /* whose addresses and ids it takes, so that none is given twice; NULL: its own */
    struct mcd_ledger *ledger; /* NULL: none is kept */
    struct mcd_extent *extents;
    uint64_t used;                /* bytes of all extents, also of those that may come back */
    uint64_t next_address;        /* behind all that was ever given */
    uint64_t earlier;             /* before this, an earlier agent may have given what it liked */
    struct mcd_pool_places *book; /* pool_place.h; made when it is first needed */
    uint32_t next_id;
    uint64_t page_size; /* of the newest pool extent; what `mcshm status` shows */
    uint64_t fallbacks; /* extents that wanted hugepages and got ordinary pages */
    uint64_t refused;   /* requests refused for want of memory */
    uint64_t count;
    bool warned;
    /* Tears a mapping down elsewhere, so that freeing a large extent keeps nobody waiting;
     * NULL: at once. In order with the making of new extents. */
    void (*reap)(void *context, void *map, uint64_t size, int fd);
    void *reap_context;
    /* Has the GPU driver let go of an extent with a tie, then calls mcd_extent_gone(). NULL: there is none. */
    void (*release)(void *context, struct mcd_extent *e);
    void *release_context;
};

/* How one extent is to be made; filled by the control thread, worked off by a worker. */
struct mcd_extent_job {
    uint64_t size;
    struct mcd_kind kind;
    bool may_fall_back;
    void *hint;
    /* result */
    int res;
    int fd;
    void *map;
    uint64_t page_size;
};

void mcd_pool_init(struct mcd_pool *p, const struct mcd_config *c);
/* All extents are gone, or left to the end of the process. */
void mcd_pool_fini(struct mcd_pool *p);
/* Bytes that may still be taken: none when the limit was lowered below what is used. */
static inline uint64_t mcd_pool_left(const struct mcd_pool *p)
{
    return p->config->pool_size > p->used ? p->config->pool_size - p->used : 0;
}

/* With pages = require: are there enough free hugepages for the whole pool? Writes the
 * sentence to error when not. 0 or -ENOMEM. */
int mcd_pool_check(const struct mcd_pool *p, char *error, size_t error_size);

/* Extents are multiples of this, in bytes. */
uint64_t mcd_pool_page(const struct mcd_pool *p);
/* Plans an extent that holds `size` bytes, for who came then (mcd_pool_place()): rounds, up to `room` where that is enough, checks the
 * pool's limit, reserves. On success mcd_pool_finish() must follow. -ENOMEM: the pool is too small, -E2BIG: larger than the pool. */
int mcd_pool_plan(struct mcd_pool *p, uint64_t size, int node, uint64_t room, uint64_t came,
                  struct mcd_extent_job *job);
/* Makes the memory. Any thread; may take long. */
void mcd_extent_job_run(struct mcd_extent_job *job);
/* Turns a finished job into an extent with one reference, or gives the reservation back. */
int mcd_pool_finish(struct mcd_pool *p, struct mcd_extent_job *job, struct mcd_extent **out);

/* Takes a client's sealed memfd in. fd becomes the extent's on success. */
int mcd_extent_adopt(struct mcd_pool *p, int fd, uint64_t size, uint64_t came,
                     struct mcd_extent **out);

/*
 * Where so many bytes are published: by a rule that pool_place.h tells, for which a session is to remember when it came: mcd_pool_now(),
 * or 0 of what goes on from an earlier agent. It is left with the extent; where none came to be, by mcd_pool_unplace().
 */
uint64_t mcd_pool_place(struct mcd_pool *p, uint64_t size, uint64_t came);
uint64_t mcd_pool_now(struct mcd_pool *p);
/* Nobody has heard of that range. */
void mcd_pool_unplace(struct mcd_pool *p, uint64_t address, uint64_t size);
/* What was there is gone; with an extent it is left by itself. */
void mcd_pool_leave(struct mcd_pool *p, uint64_t address, uint64_t size);
/*
 * An extent of GPU memory: map, size, address, gpu, gpu_device, fd, kind, foreign, tie and, of one that comes back, id
 * are those of `as`. It counts in no
 * pool of host memory. One reference. 0 or -ENOMEM.
 */
int mcd_extent_of_gpu(struct mcd_pool *p, const struct mcd_extent *as, struct mcd_extent **out);
/* Nothing reaches it any more: unmaps it and forgets it. For mcd_pool.release. */
void mcd_extent_gone(struct mcd_extent *e);

/*
 * Takes an extent in that an earlier agent gave, or took in: at the same address, with nothing
 * allocated. Its bytes are counted already. fd becomes the extent's on success. -EBADF, -EPERM,
 * -ERANGE as mcs_region_check(); -ESTALE: not the memfd that the record is of; -ENOMEM.
 */
int mcd_extent_take_back(struct mcd_pool *p, struct mcd_ledger_extent *r, int fd,
                         struct mcd_extent **out);
/* Enters it, whose handle is set, for the ledger. 0 or -ENOMEM. */
int mcd_extent_record(struct mcd_pool *p, struct mcd_extent *e, uint64_t session);
/* It has no owner any more, and nobody can hand it back. */
void mcd_extent_forget(struct mcd_pool *p, struct mcd_extent *e);
/* An earlier agent gave that range, and it is in use. At the start. */
void mcd_pool_keep(struct mcd_pool *p, uint64_t address, uint64_t size);

struct mcd_extent *mcd_extent_get(struct mcd_extent *e);
/* The last put unmaps, once no RDMA device reaches it any more: until then it counts as used. Engines must not
 * find it any more. */
void mcd_extent_put(struct mcd_pool *p, struct mcd_extent *e);

#endif
