/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's half of the RDMA transport.
 *
 *   post.c      slice -> request -> work requests, chained by connection -> ibv_post_send
 *   poll.c      completion -> work requests known -> request over -> slice in the list of those that come back
 *   message.c   NOTIFY and DONE
 *   conn.c      connections: from a connected queue pair to its end, and the calls that tell the engine of it
 *   quiesce.c   calling slices back
 *   instance.c  the table of operations; turns; sleep
 *
 * Credits.  Each work request that was posted holds an entry of its connection's send queue and one of its port's
 * completion queue until it is known how it ended: in error each of them produces a completion, however few of them
 * asked for one. Messages received have entries of their own. So nothing overflows.
 *
 * The end of a connection:  live -> ending: ERROR was asked for, what was posted flushes -> drained: all is known, all
 * slices are back, the link has lost it -> GONE was asked for and reached, no completion of it is left -> freed.
 */
#ifndef MCT_RDMA_ENGINE_H
#define MCT_RDMA_ENGINE_H

#include "internal.h"
#include "protocol.h"
#include "shm/abi.h"
#include "shm/status.h"

#define MCT_RDMA_CONNS 16u  /* of one link */
#define MCT_RDMA_BATCH 32u  /* completions polled at a time */
#define MCT_RDMA_BATCHES 8u /* of one port in one turn */
#define MCT_RDMA_SIGNAL                                                                            \
    16u /* every n-th work request asks for a completion, and the last of a chain */
#define MCT_RDMA_READ_PARTS 4u /* and of READs so many of those that a pair has at a time */
#define MCT_RDMA_PIECES 64u    /* work requests of one slice */
#define MCT_RDMA_CHAIN 256u    /* work requests put together before they are posted */
#define MCT_RDMA_SLOTS 65536u
#define MCT_RDMA_NO_BUFFER UINT32_MAX
#define MCT_RDMA_PAYLOAD (MCT_RDMA_MESSAGE - (uint32_t)sizeof(struct mct_rdma_header))

/* Levels of env->log, as the agent counts them. */
#define MCT_RDMA_LOG_ERROR 0
#define MCT_RDMA_LOG_WARNING 1
#define MCT_RDMA_LOG_DEBUG 3

struct mct_rdma_conn;

/* A READ or WRITE under way. */
struct mct_rdma_request {
    struct mct_rdma_conn *conn;
    struct mct_slice *slice;
    uint32_t pieces, left; /* work requests: of all, of which the end is not known */
    uint32_t unsent;       /* that the provider did not take */
    uint16_t status;       /* of a piece that the peer's device refused */
    bool failed, canceled;
    uint64_t recalled; /* ticks: since when a quiesce waits for it; 0: none does */
    struct mct_rdma_request *next;
};

/* A NOTIFY that waits for its answer. */
struct mct_rdma_notice {
    struct mct_rdma_conn *conn;
    struct mct_slice *slice; /* NULL: it was called back */
    uint64_t id;             /* 0: free */
};

/* A work request in a send queue. */
struct mct_rdma_sent {
    struct mct_rdma_request *request; /* NULL: a message */
    struct mct_rdma_notice *notice;   /* NULL: no NOTIFY */
    uint32_t buffer;                  /* of the message */
};

/* What an engine keeps of a port. */
struct mct_rdma_poller {
    struct mct_rdma_poller *next;
    struct mct *t;
    struct mct_rdma_port *port;
    unsigned conns;  /* that are not freed */
    uint32_t credit; /* free entries of the completion queue */
    uint32_t *sends; /* free message buffers to send */
    uint32_t nsends;
    uint32_t *receives; /* message buffers that are to be posted */
    uint32_t nreceives;
    bool failed;              /* lost */
    bool fine;                /* something came through, and the nic was not told */
    uint64_t polled, emptied; /* completions; polls that left none */
};

struct mct_rdma_conn {
    struct mct_rdma_conn *next, *prev; /* of the instance */
    struct mct_rdma_conn *hash_next;   /* of those with alike ids */
    struct mct *t;
    struct mct_link *link; /* NULL: a visitor's, or the link has lost it */
    void *visitor;         /* NULL: a link's */
    struct mct_rdma_pair *pair;
    struct mct_rdma_poller *poller;
    uint64_t id;
    uint32_t slot;
    bool initiator, ending, drained;
    uint32_t asked; /* enum mct_rdma_stage */
    int error;      /* why it ends, */
    const char *why;
    uint64_t ended; /* and since when, ticks */
    bool flushing;  /* the queue pair is in the error state */
    bool silent;    /* what came through may never be told */
    bool sweeping, swept;
    uint64_t flush_emptied, sweep_polled, sweep_emptied; /* of the poller */
    /* send queue */
    struct mct_rdma_sent *ring; /* pair->depth */
    uint64_t posted, known;     /* work requests ever; includes those in a chain */
    unsigned unsignaled;        /* in a row */
    unsigned reads;             /* READs in it */
    uint64_t bytes;             /* of slices under way */
    struct mct_rdma_request *requests, *free_requests;
    /* what is to be posted */
    struct ibv_send_wr *head, *tail;
    struct mct_rdma_conn *chain_next;
    /* messages */
    struct mct_rdma_notice notices[MCT_RDMA_NOTICES];
    uint64_t asked_at;  /* ticks: the last NOTIFY's, or probe's */
    uint64_t notice_id; /* initiator: the last one's; target: likewise */
    struct {
        uint64_t id;
        uint16_t status;
    } answers[MCT_RDMA_NOTICES]; /* that wait for room */
    unsigned nanswers;
};

struct mct_link {
    void *owner; /* first: mct_link_owner() */
    struct mct *t;
    struct mct_link *next, *prev;
    struct mct_rdma_conn *conns[MCT_RDMA_CONNS];
    unsigned nconns;
    uint64_t progress; /* work requests that came through */
    bool told;         /* of a slice with too many pieces */
};

struct mct_rdma_slot {
    struct mct_rdma_conn *conn; /* NULL: free */
    uint16_t generation;        /* 15 bits; another one each time */
    uint32_t next;              /* free ones */
};

#define MCT_RDMA_BUCKETS 256u

struct mct {
    struct mct_env env;
    struct mct_stats stats;
    int wake_fd;
    struct mct_link *links;
    struct mct_rdma_poller *pollers;
    struct mct_rdma_conn *conns;
    struct mct_rdma_conn *buckets[MCT_RDMA_BUCKETS];
    /* Pairs that were handed over and are no connection's: they go, and are freed once they are GONE. The list goes
     * through `engine`. */
    struct mct_rdma_pair *doomed;
    struct mct_rdma_slot *slots;
    uint32_t nslots, free_slot; /* UINT32_MAX: none */
    uint32_t cursor;            /* slot that is looked at next */
    unsigned ending;            /* connections */
    unsigned answers;           /* that wait for room */
    uint64_t outstanding;       /* work requests */
    unsigned unanswered;        /* NOTIFYs */
    bool closing;
    struct mct *kept;                   /* the next one that a hanging device has kept */
    bool again;                         /* an end goes on in the next turn, whatever comes */
    struct mct_slice *done, **done_end; /* that come back */
    struct mct_rdma_conn *chains;       /* connections with a chain */
    unsigned chained;
    struct ibv_send_wr wrs[MCT_RDMA_CHAIN];
    struct ibv_sge sges[MCT_RDMA_CHAIN];
    struct mct_rdma_header headers[MCT_RDMA_CHAIN]; /* of answers that go inline */
};

/* The stats are read by other threads: partner is whoever reads what stats() points to. */
#define mct_rdma_count(t, field, n) mcs_count(&(t)->stats.field, (uint64_t)(n))

/*
 * wr_id.  Of a work request sent: 0, 15 bits generation, 16 bits slot, low 32 bits of its number. Of a message buffer:
 * bit 63 and its index. Queue pair numbers name nothing.
 */
#define MCT_RDMA_RECEIVE (UINT64_C(1) << 63)

/* conn.c */
/* The pair is the transport's from now on, also on errors. One of link and visitor is NULL. */
int mct_rdma_conn_create(struct mct *t, const struct mct_conn *from, struct mct_link *link,
                         void *visitor);
/* Begins the end; the rest comes in turns. `why` is static. */
void mct_rdma_conn_end(struct mct_rdma_conn *c, int error, const char *why);
/* The same for what a peer must not send. */
void mct_rdma_nonsense(struct mct_rdma_conn *c, const char *why);
/* NULL: that one has been freed. */
struct mct_rdma_conn *mct_rdma_conn_of(struct mct *t, uint64_t wr_id);
/* By its id and role; NULL: there is none. */
struct mct_rdma_conn *mct_rdma_conn_find(struct mct *t, uint64_t id, bool initiator);
/* Moves ends on, and finds connections that were lost without a completion: all of them, or a few a turn. */
void mct_rdma_look(struct mct *t, bool all);
/* Tells the engine of slices that came back; true: there were any. */
bool mct_rdma_deliver(struct mct *t);
/* Tells of lost connections, frees those that are over; true: there were any. */
bool mct_rdma_reap(struct mct *t);
/* The link forgets the connection. */
void mct_rdma_detach(struct mct_rdma_conn *c);
/* Takes all events of the port's channel. */
void mct_rdma_drain_channel(struct mct_rdma_poller *p);
/* put: the port has failed, and no connection of it is left. */
void mct_rdma_poller_destroy(struct mct_rdma_poller *p, bool put);

/* post.c */
unsigned mct_rdma_post_slices(struct mct_link *link, struct mct_slice *const *slices, unsigned n);
void mct_rdma_cancel(struct mct_link *link, struct mct_slice *slice);
/* Posts what is chained. */
void mct_rdma_flush(struct mct *t);
/* Is there room for n work requests? */
bool mct_rdma_has_room(const struct mct_rdma_conn *c, uint32_t n);
/* A work request more in the connection's chain, its number and its entry in the ring taken; the caller fills in
 * the rest. There is room for it. */
struct ibv_send_wr *mct_rdma_chain(struct mct_rdma_conn *c, const struct mct_rdma_sent *sent);
/* Puts the slice into the list of those that come back. */
void mct_rdma_come_back(struct mct *t, struct mct_slice *s, uint16_t status, bool settled,
                        uint64_t conn);
/* It is known how the oldest work request ended. */
void mct_rdma_known(struct mct_rdma_conn *c, bool ok, uint16_t status);

/* poll.c */
/* True: there were completions. */
bool mct_rdma_poll(struct mct_rdma_poller *p);
/* Posts the message buffers that are to be posted. */
void mct_rdma_refill(struct mct_rdma_poller *p);

/* message.c */
enum mct_rdma_placed { MCT_RDMA_PLACED, MCT_RDMA_NO_ROOM, MCT_RDMA_NO_KEY, MCT_RDMA_TOO_MANY };
enum mct_rdma_placed mct_rdma_post_notice(struct mct_rdma_conn *c, struct mct_slice *s);
void mct_rdma_message(struct mct_rdma_poller *p, const struct ibv_wc *wc, const uint8_t *buffer);
/* Sends answers that have waited for room. */
void mct_rdma_answer(struct mct *t);
/* A NOTIFY that was acknowledged waits for an answer, and a queue pair that has nothing to send does not hear that the
 * peer's is gone: so it is asked now and then. */
void mct_rdma_probe(struct mct_rdma_conn *c);
/* The answers will not come: the slices do. */
void mct_rdma_notices_end(struct mct_rdma_conn *c);
void mct_rdma_notice_free(struct mct_rdma_notice *n);

/* quiesce.c */
int mct_rdma_quiesce(struct mct *t, const void *base, uint64_t length);

#endif
