/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations table of a transport: one way to move bytes.
 *
 * Words.  slice: the part of a task that one rail carries; the engine cuts tasks into slices
 * and decides which link gets which.  link: a transport's way to a peer on one rail: one or more
 * connections.  visitor: whom an inbound connection serves, a thing of the agent's.
 *
 * Instances and threads.  Each engine has an instance of its own; everything is
 * called by that engine's thread (init() may be before it runs), and nothing ever blocks.  Connections are opened and
 * authorised by the control thread and then handed over as sockets.
 *
 * Lifetime of a slice.  post() takes the slice; from then on it belongs to the transport
 * until host->done() hands it back with `status` set, whatever happens to the link: every slice
 * posted comes back exactly once, from turn(), arm() or a control call, never from inside post().  A
 * transport with MCT_CAP_SYNCHRONOUS hands it back in post() itself and calls nobody.
 *
 * The promise (docs/architecture.md): once a slice came back, its local end is quiet: the
 * source is no longer read, a READ's destination no longer written.  `settled` says whether
 * the peer's end is, too: it answered, or nothing of the slice was ever sent.  A slice that came
 * back unsettled may still land at the peer until its connection is killed (kill()).
 */
#ifndef MCT_TRANSPORT_H
#define MCT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mct;      /* an instance of a transport: one an engine */
struct mct_link; /* a way to a peer: one a rail */
struct mct_uring;
struct mct_rdma;        /* the host's RDMA devices, with... */
struct mct_rdma_memory; /* a registration on them, */
struct mct_rdma_keys;   /* a peer's keys, */
struct mct_rdma_pair;   /* and a connected queue pair: rdma/rdma.h */

#define MCT_CAP_SAME_HOST (UINT64_C(1) << 0)  /* reaches memory of this host */
#define MCT_CAP_CROSS_HOST (UINT64_C(1) << 1) /* reaches memory of other agents */
#define MCT_CAP_HOST_MEMORY (UINT64_C(1) << 2)
#define MCT_CAP_GPU_MEMORY (UINT64_C(1) << 3) /* takes slices with `gpu` */
#define MCT_CAP_FILE (UINT64_C(1) << 4)
#define MCT_CAP_SYNCHRONOUS (UINT64_C(1) << 5) /* post() completes its slices */
#define MCT_CAP_ENCRYPTED (UINT64_C(1) << 6)
#define MCT_CAP_KILL (UINT64_C(1) << 7) /* kill() settles what a lost connection left open */
/* What a lost connection left open is settled by the agents' control threads: the peer's end()s it. kill() is
 * not there. */
#define MCT_CAP_KILL_BY_AGENT (UINT64_C(1) << 8)
#define MCT_CAP_REGISTERED (UINT64_C(1) << 9) /* needs `registration` and `remote_keys` */

/* MCT_READ and MCT_WRITE as MCS_OP_READ and MCS_OP_WRITE. */
enum mct_op { MCT_READ = 1, MCT_WRITE = 2, MCT_NOTIFY = 3 };

struct mct_slice {
    enum mct_op op;
    bool large; /* of a large task: go past the cache where the target is not in it */
    bool gpu;   /* `local` is an address of a GPU: no load, no store, no system call may name it */
    uint64_t pass;   /* the same in all slices of a task, different in the next task */
    uint64_t length; /* bytes, not 0 */
    /* local end: the agent's pointer, good until the slice comes back */
    void *local;
    /* remote end: same host, the agent's pointer; else what the peer knows it by */
    void *remote;
    uint64_t remote_address;
    uint64_t remote_incarnation; /* of the segment */
    uint32_t remote_export;      /* index in the peer's table of what this agent opened there */
    /* MCT_CAP_REGISTERED: both good while post() runs; NULL: there is none */
    const struct mct_rdma_memory *registration; /* of the local extent */
    const struct mct_rdma_keys *remote_keys;    /* of the buffer */
    /* MCT_NOTIFY: `local` holds the name and then the message, `length` both together */
    uint32_t name_length;
    uint64_t source; /* incarnation of the sending session */
    uint64_t bytes;  /* moved by the task that carries the notification */
    /* result, set when the slice comes back */
    uint16_t status; /* enum mcs_status: OK; CANCELED after cancel(); RAIL: the connection was
                        lost, `error` says how; NOT_REGISTERED: nothing was sent, an end is not
                        registered with this link's devices; ACCESS from RDMA: the peer's device
                        refused the key or the range; else what the peer or a check said */
    int error;       /* 0 or a negative errno behind RAIL */
    bool settled;    /* nothing more of it can land at the peer */
    uint64_t conn;   /* the connection it went on; 0: it was never sent */
    uint64_t moved;  /* bytes */
    /* the engine's own */
    void *owner;
    uint64_t posted; /* ticks */
    struct mct_slice *next;
    /* the transport's own while it has the slice */
    struct mct_slice *link_next, *link_prev;
    void *link_state;
};

/* A request of a peer about this host's memory, as the target's engine sees it. */
struct mct_request {
    enum mct_op op;
    uint32_t export_index;
    uint64_t incarnation; /* of the segment */
    uint64_t address;     /* in the segment's address space; of this part */
    uint64_t length;      /* bytes of this part */
};

/*
 * Host memory through which a target carries what lies in a GPU's memory: a WRITE is received into it and then moved, a
 * READ is moved into it and then sent.
 */
struct mct_stage {
    uint8_t *memory;
    uint64_t length; /* bytes, as asked for */
    /* The transport's.  done: the move is over; from the engine's turn, never from inside move(). */
    void (*done)(struct mct_stage *s, uint16_t status);
    void *owner;
};

/* What a transport asks of its engine; called by the engine's thread, from inside turn(). */
struct mct_host {
    void *context;
    /* A slice comes back. */
    void (*done)(void *context, struct mct_slice *slice);
    /* A connection of a link is gone; its slices have come back before. */
    void (*lost)(void *context, struct mct_link *link, uint64_t conn, int error);
    /* The peer has confirmed that the connection `conn` is dead and nothing of it lands any more. */
    void (*killed)(void *context, struct mct_link *link, uint64_t conn);
    /* An inbound connection is gone; `why` is a static sentence for the log. */
    void (*left)(void *context, void *visitor, uint64_t conn, int error, const char *why);
    /* Target: where is this, and may the visitor do it? Good until the next turn, and for I/O posted
     * with it until that is over or quiesce() asks. Returns an enum mcs_status. OK and NULL: it is memory of a
     * GPU, which only stage() and move() reach. */
    uint16_t (*resolve)(void *context, void *visitor, const struct mct_request *r, void **pointer);
    /* Target: puts a notification into the owner's inbox. OK, INBOX_FULL (the initiator tries
     * again), STALE, ... */
    uint16_t (*notify)(void *context, void *visitor, const struct mct_request *r, uint64_t source,
                       uint64_t bytes, const void *name, uint32_t name_length, const void *message,
                       uint32_t message_length);
    /* Target: host memory for so many bytes, 1 .. MCT_STAGE_MAX. NULL: none is free now; in a later turn. */
    struct mct_stage *(*stage)(void *context, uint64_t length);
    /* Gives it back; it is not being moved. */
    void (*unstage)(void *context, struct mct_stage *s);
    /*
     * Looks up anew what the visitor names, and moves it: MCT_WRITE out of s, MCT_READ into it, r->length bytes. OK: done()
     * follows, with OK when all of it is visible there; else why nothing was begun. Until done() s stays where it is. Moves
     * of one range are not in order.
     */
    uint16_t (*move)(void *context, void *visitor, const struct mct_request *r,
                     struct mct_stage *s);
};

#define MCT_STAGE_MAX (UINT64_C(16) << 20) /* the largest payload of one request: tcp/protocol.h */

struct mct_env {
    void (*log)(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
    struct mct_host host;
    struct mct_uring *uring; /* the engine's; NULL where no transport needs one */
    struct mct_rdma *rdma;   /* the host's; NULL: none */
    int epoll_fd; /* the engine sleeps on it: what is added with data.ptr NULL wakes it */
    uint64_t tick_hz;
    bool checksum;          /* CRC32C per slice, on what this side sends */
    uint64_t zero_copy_min; /* bytes; UINT64_MAX: never */
    unsigned
        max_requests; /* unanswered on one connection, as initiator and as target; 0: default */
};

/* A connected socket with its greeting done, or a connected queue pair. */
struct mct_conn {
    int fd; /* non-blocking; the transport's from now on, also on errors; -1: it is a pair */
    struct mct_rdma_pair *pair; /* likewise */
    uint64_t id;                /* random, not 0; names it in KILL */
    /* what the peer offers: the lower of both sides' */
    uint64_t features;
};

/* Counters of an instance; written by its engine, read relaxed by anybody. */
struct mct_stats {
    uint64_t conns, inbound;             /* open now */
    uint64_t sent_bytes, received_bytes; /* payload, both roles */
    uint64_t served;                     /* requests of peers answered OK */
    uint64_t refused;                    /* requests of peers refused: range, access, stale, ... */
    uint64_t protocol_errors;            /* inbound connections closed for nonsense */
    uint64_t checksum_errors;            /* found by this side */
    uint64_t dropped;            /* parts of requests that arrived after their end or revocation */
    uint64_t filler_bytes;       /* sent in the place of what was cancelled */
    uint64_t zero_copy;          /* sends without a copy */
    uint64_t zero_copy_copied;   /* asked for without, copied by the kernel after all */
    uint64_t kills;              /* inbound connections killed at a peer's request */
    uint64_t lost;               /* connections lost, both roles */
    uint64_t inlined;            /* requests whose bytes went with the work request */
    uint64_t doorbells, signals; /* posts, and work requests that asked for a completion */
    uint64_t full;               /* posts that found no room in a send or completion queue */
    uint64_t flushed, retry_exceeded, remote_refused, local_faults; /* completions, by class */
    uint64_t rnr_retries; /* receiver not ready: its shared receive queue was empty */
};

struct mct_ops {
    const char *name;      /* "local", "tcp", "rdma", "mooncake" */
    uint8_t path;          /* enum mcs_path reported in slots */
    uint64_t capabilities; /* MCT_CAP_* */

    int (*init)(const struct mct_env *env, struct mct **out);
    /* Closes what is open; slices still out come back first. */
    void (*fini)(struct mct *t);

    /* A link without connections. `owner` comes back through mct_link_owner(). */
    int (*connect)(struct mct *t, void *owner, struct mct_link **out);
    /* All its connections go (see abort), then the link: when this returns, all its slices came back
     * through done() and nobody is told of it any more. Waits for no peer; where zero-copy sends may
     * be out, abort() first and wait for lost(), then it does not wait for the network card either.
     * From done(), lost() and killed(), too. */
    void (*disconnect)(struct mct_link *link);
    /* One connection more for a link. */
    int (*adopt)(struct mct_link *link, const struct mct_conn *conn);
    /* Gives all connections of the link up at once: slices come back with RAIL. */
    void (*abort)(struct mct_link *link, int error);

    /* Takes slices in order; returns how many were taken: 0 when the link is full or down. */
    unsigned (*post)(struct mct_link *link, struct mct_slice *const *slices, unsigned n);
    /* Asks for a slice to end early; it comes back through done(), soon: what is unsent is withdrawn
     * or replaced by filler, and what awaits only the peer's answer comes back unsettled. */
    void (*cancel)(struct mct_link *link, struct mct_slice *slice);
    /* Asks the peer, over this link, to end connection `conn` of the same route; host->killed()
     * answers. -EAGAIN: the link has no connection. */
    int (*kill)(struct mct_link *link, uint64_t conn);
    /* Bytes that the peer's kernel has acknowledged or that came from it, over all living
     * connections of the link: grows while the path lives, however slow. */
    uint64_t (*progress)(struct mct_link *link);

    /* Target role: a connection that serves `visitor`. */
    int (*serve)(struct mct *t, const struct mct_conn *conn, void *visitor);
    /* Ends all connections that serve the visitor; 0: gone, -EINPROGRESS: ask again next turn. */
    int (*dismiss)(struct mct *t, void *visitor);
    /* Ends one of them, by its number; 0: it is gone or was never there, and nothing of it lands any more.
     * Only with MCT_CAP_KILL_BY_AGENT, else NULL. */
    int (*end)(struct mct *t, void *visitor, uint64_t conn);

    /* Stops all I/O of this engine into and out of [base, base + length), both roles: slices come
     * back CANCELED, peers' requests are refused with REVOKED. 0: quiet; -EINPROGRESS: again. */
    int (*quiesce)(struct mct *t, const void *base, uint64_t length);

    /* Moves everything on; true when something happened. */
    bool (*turn)(struct mct *t);
    /* Before the engine sleeps: true when whatever happens from now on makes epoll_fd readable; false:
     * something has happened, it must not sleep. NULL: the uring's descriptor is all there is. */
    bool (*arm)(struct mct *t);
    /* Is anything under way that will need a turn? (An event on the uring's descriptor tells when.) */
    bool (*pending)(const struct mct *t);
    const struct mct_stats *(*stats)(const struct mct *t);
};

/* `owner` of connect(): every transport's struct mct_link begins with it. */
static inline void *mct_link_owner(const struct mct_link *link)
{
    return *(void *const *)(const void *)link;
}

extern const struct mct_ops mct_local_ops;
extern const struct mct_ops mct_tcp_ops;
extern const struct mct_ops mct_rdma_ops;
extern const struct mct_ops mct_mooncake_ops;

#endif
