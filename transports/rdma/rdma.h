/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The RDMA devices of this host: what all engines and clients of the agent share.
 *
 * Words.  nic: one port of an RDMA device, with a context, a protection domain and registrations of
 * its own.  memory: one range registered on all nics that are open.  pair: one RC queue pair, one end of a
 * connection between two agents.
 *
 * Threads.  Each nic has a thread of its own that makes every verbs call which enters the kernel:
 * opening, registering, making, moving and destroying queue pairs, asynchronous events.  So a nic whose
 * firmware hangs holds up neither the control thread, nor an engine, nor another nic.  The functions here
 * are the control thread's unless they say otherwise; they return at once, and what they began ends
 * with a callback from mct_rdma_run(), which is called when mct_rdma_fd() is readable.  Engines post and
 * poll (instance.c) and never enter the kernel for it.
 */
#ifndef MCT_RDMA_H
#define MCT_RDMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transports/transport.h"

#define MCT_RDMA_NICS_MAX 16u
#define MCT_RDMA_NAME_MAX 80u  /* "mlx5_0/1" */
#define MCT_RDMA_TEXT_MAX 320u /* a sentence */
#define MCT_RDMA_CHUNK_MIN (UINT64_C(1) << 20)

struct mct_rdma;
struct mct_rdma_memory;
struct mct_rdma_pair;

struct mct_rdma_options {
    /* Lists, parted by commas or blanks, of NAME, NAME/PORT or fnmatch(3) patterns of either. */
    const char *devices; /* "auto": all */
    const char *deny;    /* "": none; goes before `devices` */
    int gid_index;       /* -1: chosen by gid.h */
    unsigned mtu;        /* bytes: 256..4096, most for a path; 0: the port's active MTU */
    uint64_t chunk;      /* bytes of one registration at most; a multiple of MCT_RDMA_CHUNK_MIN */
    unsigned depth;      /* send queue of a pair, work requests */
    unsigned cq_depth;   /* completion queue of an engine and nic */
    unsigned max_inline; /* bytes */
    unsigned max_reads;  /* RDMA READs under way on one pair, at most what both devices can */
    unsigned timeout;    /* local ACK timeout, 4.096 us << timeout; 1..31 */
    unsigned retries;    /* 0..7 */
    unsigned traffic_class, service_level;
    const char *sysfs; /* NULL: "/sys"; others for tests */
    void (*log)(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
};

enum mct_rdma_state {
    MCT_RDMA_CLOSED, /* it could not be opened, or is gone: tried again now and then */
    MCT_RDMA_DOWN, /* open; its port is down, it has no usable GID, or faults of its own keep it out */
    MCT_RDMA_UP
};

/* One end of a connection, as the agents tell each other. Also what error texts name. */
struct mct_rdma_end {
    uint64_t nic; /* id of the nic, made anew whenever it is opened: keys carry it, too */
    uint8_t gid[16];
    uint32_t lid; /* InfiniBand; 0 with RoCE */
    bool infiniband;
    uint32_t qpn, psn; /* psn: random, 24 bits, fresh for each pair */
    uint32_t mtu;      /* bytes */
    uint32_t reads;    /* RDMA READs it takes at a time */
    char name[MCT_RDMA_NAME_MAX];
};

struct mct_rdma_nic {
    char name[MCT_RDMA_NAME_MAX]; /* "mlx5_0/1" */
    enum mct_rdma_state state;
    char why[MCT_RDMA_TEXT_MAX]; /* why not UP; or why this GID was chosen */
    uint64_t id;
    bool infiniband;
    uint8_t gid[16];
    int gid_index;
    uint8_t prefix; /* leading bits of the GID that name its network; 0: not known */
    uint32_t lid;
    uint32_t mtu;  /* bytes, active */
    uint64_t rate; /* bits a second */
    int node;      /* NUMA, -1 unknown */
    char pci[32];  /* "0000:3b:00.0", "" unknown */
    char netdev[32];
    uint64_t max_message; /* bytes */
    uint64_t max_region;  /* bytes of one registration that the device takes */
    uint32_t max_pairs;   /* queue pairs of all processes together */
    uint32_t max_reads;
    uint64_t memory_bytes, memory_regions; /* registered on it now */
    uint64_t pairs;                        /* there now */
    uint64_t events, faults; /* asynchronous events; completions with faults of its own */
    uint64_t registrations_failed;
};

struct mct_rdma_host {
    void *context;
    /* From mct_rdma_run(): a nic has become another: state, GID, MTU, id; or there is one more. */
    void (*changed)(void *context, unsigned nic);
    /* From mct_rdma_run(): memories have keys on more or fewer nics than before. */
    void (*keys_changed)(void *context);
};

/* Is this a list as `devices` and `deny` are: NAME, NAME/PORT (1..255) or patterns of either, parted by commas or
 * blanks? 0, or -EINVAL and a sentence about the first entry that is not. Any thread. */
int mct_rdma_select_check(const char *list, char *error, size_t error_size);

/*
 * Opens every device that the lists allow, and waits for all, for at most five seconds. Those that come later are found
 * within some ten seconds, as long as there are fewer than MCT_RDMA_NICS_MAX. 0 also where there is none, or none could be
 * opened: mct_rdma_nics() tells. Error: the lists are malformed, or memory or descriptors are out; one
 * sentence in `error`. It sets an environment variable of libibverbs: called
 * while no other thread asks for one.
 */
int mct_rdma_create(const struct mct_rdma_options *o, const struct mct_rdma_host *h,
                    struct mct_rdma **out, char *error, size_t error_size);
/* After the engines' instances have ended and all memories were destroyed. Waits for the nics' threads, for at most ten
 * seconds: what one that hangs may touch stays. */
void mct_rdma_destroy(struct mct_rdma *r);
int mct_rdma_fd(const struct mct_rdma *r);
void mct_rdma_run(struct mct_rdma *r);

/* Nics that were ever seen keep their index. */
unsigned mct_rdma_nics(const struct mct_rdma *r);
void mct_rdma_nic(const struct mct_rdma *r, unsigned nic, struct mct_rdma_nic *out);

/* ---- memory ---------------------------------------------------------------------- */

#define MCT_RDMA_REMOTE_READ 1u
#define MCT_RDMA_REMOTE_WRITE 2u

struct mct_rdma_range {
    void *address;   /* the agent's pointer; with dmabuf_fd: NULL */
    uint64_t length; /* bytes, not 0 */
    uint64_t
        published; /* the address that peers name; what the keys count from. With dmabuf_fd and without access: what
                           slices name as `local` */
    unsigned access; /* MCT_RDMA_REMOTE_*; 0: local only, and written by READs of this host */
    int dmabuf_fd;   /* -1: host memory; the caller's, open until the memory is destroyed */
    uint64_t dmabuf_offset;
};

/* res: 0 or a negative errno with a sentence that names value, limit and remedy. */
typedef void mct_rdma_done(void *context, int res, const char *text);

/*
 * Registers a range on every open nic, in chunks, the nics in parallel, large ranges with several chunks at a time.
 * done: all have it; or one failed and it is registered nowhere. Nics that open later get it, too. The range stays
 * mapped until it was destroyed. done is always called, from mct_rdma_run(); *out is the caller's from the
 * start, to destroy after `done` (also when that said an error).
 */
int mct_rdma_memory_create(struct mct_rdma *r, const struct mct_rdma_range *range,
                           mct_rdma_done *done, void *context, struct mct_rdma_memory **out);
/*
 * Deregisters it everywhere. done (may be NULL): no nic can reach it any more, nor can any peer. A nic
 * that does not answer keeps it waiting. The engines' I/O with it has ended before (mct_ops.quiesce), and none finds it any
 * more.
 */
void mct_rdma_memory_destroy(struct mct_rdma *r, struct mct_rdma_memory *m, mct_rdma_done *done,
                             void *context);

/* Bytes that one key covers; the last one of a range may cover less. */
uint64_t mct_rdma_memory_chunk(const struct mct_rdma_memory *m);
/* Its remote keys on a nic, by chunk, ceil(length / chunk) of them; NULL: it has none there. *id: the nic's id.
 * Good until the next mct_rdma_run(). */
const uint32_t *mct_rdma_memory_keys(const struct mct_rdma_memory *m, unsigned nic, uint64_t *id);

/* The remote keys of one buffer as the agent that owns it has described them. Immutable. */
struct mct_rdma_keys {
    uint64_t address, length; /* what they cover: the buffer */
    uint64_t chunk;
    uint32_t nnics;
    uint32_t nchunks; /* ceil(length / chunk) */
    /* by nic, then by chunk: rkeys[n * nchunks + c] */
    const uint64_t *nics; /* ids */
    const uint32_t *rkeys;
};

/* ---- pairs ----------------------------------------------------------------------- */

#define MCT_RDMA_BACKLOG 4096u

/*
 * Makes a queue pair on a nic for an engine's instance, in INIT, and with it what the instance needs of
 * this nic. -EINVAL: no such nic; -ENOMEM; -EBUSY: its thread has not come to the last MCT_RDMA_BACKLOG requests yet, so the
 * device hangs, or nearly. done 0: own end in *out's mct_rdma_pair_end(). *out is the caller's from the start; after
 * `done` it goes to mct_rdma_pair_destroy(), or, once connected, into mct_ops.adopt() or .serve().
 */
int mct_rdma_pair_create(struct mct_rdma *r, unsigned nic, struct mct *instance, uint64_t conn,
                         mct_rdma_done *done, void *context, struct mct_rdma_pair **out);
const struct mct_rdma_end *mct_rdma_pair_end(const struct mct_rdma_pair *p);
/* To RTR and RTS with the peer's end. done 0: it receives, and may send as soon as the peer's does
 * receive. Every error text names both ends' parameters. */
void mct_rdma_pair_connect(struct mct_rdma_pair *p, const struct mct_rdma_end *peer,
                           mct_rdma_done *done, void *context);
/* While it is no instance's. Also before `done`, which is not called any more then. */
void mct_rdma_pair_destroy(struct mct_rdma_pair *p);

#endif
