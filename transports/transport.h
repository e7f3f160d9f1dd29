/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations table of a transport: one way to move bytes.
 *
 * Words.  memory: a stretch of this host's memory that the agent owns or was given (an
 * extent).  registration: what the transport needs to reach a memory (an MR, a fixed
 * buffer, a driver mapping); NULL where it needs nothing.  peer: where the other side of a
 * slice lives.  link: a transport's established way to a peer, one per rail.  slice: the
 * part of a task that one link carries; the engine cuts tasks into slices and decides
 * which link gets which.
 *
 * Threads.  Control calls (init .. disconnect, describe) come from the control thread and
 * may take their time, but never block on a third party.  Data calls (post, poll, cancel,
 * quiesce) come from the one engine that owns the link; they never block.
 *
 * Lifetime of a slice.  post() takes the slice; from then on it belongs to the transport
 * until poll() hands it back with `status` set, whatever happens to the link: every slice
 * posted comes back exactly once.  A transport with MCT_CAP_SYNCHRONOUS hands it back in
 * post() itself and is never polled.
 *
 * The promise (docs/architecture.md): once a slice came back, its local end is quiet: the
 * source is no longer read, a READ's destination no longer written.  quiesced says whether
 * the peer has confirmed the same for its side.
 */
#ifndef MCT_TRANSPORT_H
#define MCT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mct;      /* an instance of a transport */
struct mct_reg;  /* a registration */
struct mct_link; /* a way to a peer */

#define MCT_CAP_SAME_HOST (UINT64_C(1) << 0)  /* reaches memory of this host */
#define MCT_CAP_CROSS_HOST (UINT64_C(1) << 1) /* reaches memory of other agents */
#define MCT_CAP_HOST_MEMORY (UINT64_C(1) << 2)
#define MCT_CAP_GPU_MEMORY (UINT64_C(1) << 3)
#define MCT_CAP_FILE (UINT64_C(1) << 4)
#define MCT_CAP_SYNCHRONOUS (UINT64_C(1) << 5) /* post() completes its slices */
#define MCT_CAP_ENCRYPTED (UINT64_C(1) << 6)

enum mct_memory_kind { MCT_MEMORY_HOST = 0, MCT_MEMORY_GPU = 1, MCT_MEMORY_FILE = 2 };

struct mct_memory {
    enum mct_memory_kind kind;
    void *base;         /* agent's mapping; NULL for GPU and file memory */
    int fd;             /* memfd, dmabuf or file; -1 */
    uint64_t size;      /* bytes */
    uint64_t page_size; /* bytes */
    int node;           /* NUMA node, -1 unknown */
    uint32_t access;    /* MCS_ACCESS_* that remote sides get; 0: local use only */
};

/* Where a link goes. Same-host transports take NULL. */
struct mct_peer {
    const char *address;    /* host:port, as the transport prints it in describe() */
    const char *local;      /* local interface, address or device; NULL: any */
    uint64_t incarnation;   /* of the peer's agent */
    const void *parameters; /* the peer's answer in the transport's own format */
    size_t parameters_size;
};

enum mct_op { MCT_READ = 1, MCT_WRITE = 2 }; /* as MCS_OP_READ and MCS_OP_WRITE */

struct mct_slice {
    enum mct_op op;
    bool large;      /* of a large task: go past the cache where the target is not in it */
    uint64_t pass;   /* the same in all slices of a task, different in the next task */
    uint64_t length; /* bytes, not 0 */
    /* local end */
    struct mct_reg *local_reg;
    void *local; /* agent's pointer, or NULL with an offset into local_reg */
    uint64_t local_offset;
    /* remote end: same host, the agent's pointer; else address and key at the peer */
    void *remote;
    uint64_t remote_address;
    uint64_t remote_key;
    /* result, set when the slice comes back */
    int status;     /* 0 or a negative errno; -ECANCELED after cancel */
    bool quiesced;  /* the remote end has confirmed that nothing more lands */
    uint64_t moved; /* bytes */
    /* the engine's own */
    void *owner;
    struct mct_slice *next;
};

struct mct_env {
    void (*log)(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
    const char *(*option)(const char *key); /* configuration value of [transport] key, or NULL */
    unsigned engines;
};

struct mct_ops {
    const char *name;      /* "local", "tcp", "rdma" */
    uint8_t path;          /* enum mcs_path reported in slots */
    uint64_t capabilities; /* MCT_CAP_*, before probing */

    int (*init)(const struct mct_env *env, struct mct **out);
    void (*fini)(struct mct *t);

    /* NULL where memory needs no registration. */
    int (*reg)(struct mct *t, const struct mct_memory *memory, struct mct_reg **out);
    void (*unreg)(struct mct *t, struct mct_reg *reg);

    /* -EINPROGRESS: the link comes up later, post() says -EAGAIN until it is. */
    int (*connect)(struct mct *t, const struct mct_peer *peer, unsigned engine,
                   struct mct_link **out);
    void (*disconnect)(struct mct_link *link);

    /* Takes slices in order; returns how many were taken, 0 when the link is full or down. */
    unsigned (*post)(struct mct_link *link, struct mct_slice *const *slices, unsigned n);
    /* Hands back up to n finished slices. */
    unsigned (*poll)(struct mct_link *link, struct mct_slice **done, unsigned n);
    /* Asks for a slice to end early; it comes back through poll(). */
    void (*cancel)(struct mct_link *link, struct mct_slice *slice);
    /* Stops all writing into [address, address + length) on behalf of peers.
     * 0: quiet; -EINPROGRESS: ask again. */
    int (*quiesce)(struct mct *t, uint64_t address, uint64_t length);

    /* One JSON object about the transport or, with link, about that link. Returns the bytes
     * it needs, like snprintf(). */
    size_t (*describe)(struct mct *t, struct mct_link *link, char *out, size_t size);
};

extern const struct mct_ops mct_local_ops;

#endif
