/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the TCP transport: connections, frames on their way out, the frame that comes in.
 *
 *   initiator   post() -> frame -> out list -> sendmsg -> table, until the answer came
 *   target      request -> (resolve, receive in place) -> frame -> out list -> sendmsg -> free
 *
 * Memory of a GPU is reached through a stage (transport.h), which the request's frame has from then on.  A WRITE's payload
 * goes into it, all of it, and is answered when it was moved; a READ's answer leaves the out list while it is fetched:
 *
 *   WRITE   header -> stage (else the connection's reading waits) -> payload -> move -> answer
 *   READ    out list -> stage (else it waits in `starved`) -> move -> out list -> sendmsg
 *
 * A connection has one receive and one send under way at most, and zero-copy sends whose memory
 * the kernel still reads. It is freed when all of them are over, from turn(), never from inside a
 * callback of the uring. Calls to the engine that may come back in (done, lost, left, killed) are
 * made from turn() and control calls only; see deliver.
 */
#ifndef MCT_TCP_TCP_H
#define MCT_TCP_TCP_H

#include <sys/uio.h>

#include "frame.h"
#include "shm/atomic.h"
#include "shm/status.h"
#include "transports/transport.h"
#include "transports/uring.h"

#define MCT_TCP_REQUESTS 256u              /* unanswered on one connection, by default */
#define MCT_TCP_REQUESTS_MAX 4096u         /* the same, at most */
#define MCT_TCP_SPARE 8u                   /* KILLs beside them */
#define MCT_TCP_WINDOW (UINT64_C(8) << 20) /* payload of unanswered requests, bytes */
#define MCT_TCP_CHUNK ((size_t)256 << 10)  /* payload of one receive, and looked up at once */
#define MCT_TCP_STAGING ((size_t)64 << 10) /* small frames are received together */
#define MCT_TCP_LOW_WATER                                                                          \
    ((size_t)256 << 10)                   /* of a large payload: fewer are not worth a wake-up */
#define MCT_TCP_DIRECT ((size_t)16 << 10) /* more than this goes straight to its place */
#define MCT_TCP_SEND ((size_t)1 << 20)    /* payload of one send */
#define MCT_TCP_SEND_SUMMED ((size_t)512 << 10) /* ... with checksums: what a cache holds */
#define MCT_TCP_SEND_FRAMES 64u                 /* frames of one send */
#define MCT_TCP_SEND_IOVS 144u                  /* two a frame, and some for filler */
#define MCT_TCP_HELD 16u                        /* answers that wait for each other, at most */
#define MCT_TCP_SENDS 8u                        /* one under way, others await their notification */
#define MCT_TCP_COPIED_MAX 3u                   /* zero-copy sends in a row that were copied */
#define MCT_TCP_ZEROS ((size_t)64 << 10)        /* filler comes from here */
#define MCT_TCP_TOMBSTONES 256u                 /* of one visitor: killed before they were served */
#define MCT_TCP_META (sizeof(struct mct_tcp_header) + sizeof(struct mct_tcp_trailer))
#define MCT_TCP_HEADER sizeof(struct mct_tcp_header)
#define MCT_TCP_TRAILER sizeof(struct mct_tcp_trailer)

struct mct_tcp_conn;

/* A frame on its way out; with the initiator it lives until it is answered. */
struct mct_tcp_frame {
    struct mct_tcp_frame *next, *prev; /* out list; `next` also in lists of free and waiting ones */
    struct mct_tcp_conn *conn;
    struct mct_slice *slice; /* initiator; NULL: it came back, or there was none */
    const uint8_t *local;    /* initiator: the payload */
    uint64_t id;             /* initiator: 0 until it is given to the kernel */
    uint64_t address, length, incarnation, source, bytes;
    uint64_t payload;     /* bytes between header and trailer; 0: there is no trailer either */
    uint64_t sent;        /* bytes of the frame that the kernel took */
    uint64_t crc_done;    /* bytes of payload that are in crc */
    uint64_t filler_from; /* payload from here on was filler; UINT64_MAX: none was */
    uint32_t crc;
    uint32_t export_index;
    uint32_t refs; /* sends that still hold it */
    uint16_t name_length;
    uint16_t status; /* answers: of the header; requests: what the answer said */
    uint16_t stop;   /* not OK: filler from now on, and the trailer says this */
    uint8_t type, flags;
    bool live;     /* in use */
    bool queued;   /* in the out list */
    bool answered; /* initiator */
    bool cancel;   /* initiator: the slice is to come back as soon as its memory is quiet */
    bool away;     /* target: not in the out list, since its stage is awaited or being filled */
    struct mct_stage *stage;        /* target: of a request about a GPU's memory */
    struct mct_tcp_trailer trailer; /* as it was sent in part */
};

struct mct_tcp_send {
    struct mct_io io;
    struct mct_tcp_conn *conn;
    struct mct_tcp_send *next; /* free, or awaiting the notification */
    struct msghdr msg;
    size_t meta_size;
    unsigned nframes, niov;
    bool zero_copy, canceled;
    struct mct_tcp_frame *frames[MCT_TCP_SEND_FRAMES];
    struct iovec iov[MCT_TCP_SEND_IOVS];
    struct mct_tcp_frame *payload_of[MCT_TCP_SEND_IOVS]; /* NULL: headers, trailers, filler */
    uint8_t meta[MCT_TCP_SEND_FRAMES * MCT_TCP_META];    /* headers and trailers */
};

enum mct_tcp_rx_state { MCT_TCP_RX_HEADER, MCT_TCP_RX_PAYLOAD, MCT_TCP_RX_TRAILER };
enum mct_tcp_rx_where { MCT_TCP_RX_STAGING, MCT_TCP_RX_PLACE, MCT_TCP_RX_SCRATCH };

struct mct_tcp_rx {
    struct mct_io io;
    bool busy, canceled;
    bool paused;   /* no frame is free for an answer: the peer reads none */
    int low_water; /* SO_RCVLOWAT as it is set; 0: never was */
    bool lean;     /* large payloads come: leave them in the socket until their place is known */
    bool drop;     /* the payload goes nowhere */
    bool starved;  /* the payload has no stage yet: the peer waits */
    enum mct_tcp_rx_where where;
    enum mct_tcp_rx_state state;
    uint8_t *staging;
    size_t start, end; /* of what is in it */
    struct mct_tcp_header header;
    uint64_t offset; /* payload bytes received */
    uint32_t crc;
    uint16_t status;             /* of the frame so far */
    struct mct_tcp_frame *frame; /* target: will be the answer; initiator: is being answered */
    uint8_t *pointer;            /* target: place of the whole payload; within one call only */
    uint8_t *place;              /* MCT_TCP_RX_PLACE: of what is under way */
    size_t place_size;
};

struct mct_tcp_conn {
    struct mct *t;
    struct mct_link *link;            /* initiator; NULL: target */
    void *visitor;                    /* target */
    struct mct_tcp_conn *next, *prev; /* of the instance */
    struct mct_tcp_conn *link_next;   /* of the link */
    struct mct_tcp_conn *ready_next;  /* has something to send */
    uint64_t id, features;
    int fd;
    bool ready, closing;
    int error;
    const char *why;
    struct mct_tcp_rx rx;
    /* out */
    struct mct_tcp_frame *head, *tail;
    struct mct_tcp_send *active, *idle, *awaiting;
    unsigned sends; /* made so far */
    bool zero_copy;
    unsigned copied;  /* in a row */
    unsigned careful; /* sends that take one frame only */
    struct mct_tcp_frame *frames, *free_frames;
    unsigned nframes, fresh; /* frames[fresh..nframes) were never used */
    unsigned in_use;
    unsigned queued, bare; /* frames in the out list; of them, answers without payload */
    uint64_t progress;     /* turn in which something was received last */
    /* initiator */
    struct mct_tcp_frame **table; /* by id & mask */
    uint64_t mask, next_id;
    unsigned requests;
    uint64_t bytes; /* payload of unanswered requests */
    /* target */
    uint64_t expected_id;
    struct mct_tcp_frame *killers; /* of other connections: answers that wait for this one's end */
    struct mct_tcp_frame *moving;  /* whose stages are being moved */
    struct mct_tcp_frame *held,
        **held_end; /* WRITEs that wait for earlier ones of the same bytes */
    uint8_t *notification;
};

struct mct_link {
    void *owner; /* first: mct_link_owner() */
    struct mct *t;
    struct mct_link *next, *prev;
    struct mct_tcp_conn *conns;
    unsigned pins; /* calls on the stack that still need it */
    bool gone;
};

/* Connections that a visitor had killed and that are not here, or not yet. Each visitor has its own, so
 * that none makes another's be forgotten. */
struct mct_tcp_tombstones {
    struct mct_tcp_tombstones *next;
    void *visitor;
    unsigned at;                        /* the oldest */
    uint64_t conns[MCT_TCP_TOMBSTONES]; /* 0: none */
};

struct mct {
    struct mct_env env;
    struct mct_stats stats;
    unsigned max_requests;
    struct mct_tcp_conn *conns;
    struct mct_link *links;
    struct mct_tcp_conn *ready;
    uint64_t turns;
    struct mct_slice *done, **done_end;
    struct mct_tcp_frame *killed; /* answered KILLs that the engine has not heard of */
    struct mct_tcp_frame *starved, **starved_end; /* requests that wait for a stage */
    unsigned moves;                               /* stages that are being moved */
    uint64_t busy_at; /* ticks: when BUSY was said last, or the first of these began */
    unsigned closing; /* connections */
    uint8_t *scratch; /* MCT_TCP_CHUNK bytes: what nobody wants */
    struct mct_tcp_tombstones *tombstones;
};

/* The stats are read by other threads: partner is whoever reads what stats() points to. */
#define mct_tcp_count(t, field, n) mcs_count(&(t)->stats.field, (uint64_t)(n))

static inline uint64_t mct_tcp_total(const struct mct_tcp_frame *f)
{
    return MCT_TCP_HEADER + (f->payload == 0 ? 0 : f->payload + MCT_TCP_TRAILER);
}

/* conn.c */
int mct_tcp_conn_create(struct mct *t, const struct mct_conn *from, struct mct_link *link,
                        void *visitor, struct mct_tcp_conn **out);
/* Begins the end; the rest comes in turn(). `why` is static. */
void mct_tcp_close(struct mct_tcp_conn *c, int error, const char *why);
/* The same for what a peer must not send. */
void mct_tcp_nonsense(struct mct_tcp_conn *c, const char *why);
/* Frees what is closing and has no I/O under way; true: something was. */
bool mct_tcp_reap(struct mct *t);
/* Tells the engine of slices that came back and of KILLs that were answered; true: there were any. */
bool mct_tcp_deliver(struct mct *t);
/* NULL: none is free. */
struct mct_tcp_frame *mct_tcp_frame_get(struct mct_tcp_conn *c);
void mct_tcp_frame_put(struct mct_tcp_frame *f);
/* The link is freed when nothing holds it any more. */
void mct_tcp_link_unpin(struct mct_link *link);

/* send.c */
/* Appends to the out list; `urgent`: before all that is not yet on its way. */
void mct_tcp_queue(struct mct_tcp_frame *f, bool urgent);
void mct_tcp_withdraw(struct mct_tcp_frame *f);
void mct_tcp_ready(struct mct_tcp_conn *c);
/* Makes sends of what is queued. A target's answers without payload may wait while its connection goes
 * on receiving in every turn, so that one send carries many; last: of this turn. */
void mct_tcp_flush(struct mct *t, bool last);
/* Asks the kernel to stop the send under way. */
void mct_tcp_cancel_send(struct mct_tcp_conn *c);

/* receive.c */
/* Works on what was received and asks for more. */
void mct_tcp_receive(struct mct_tcp_conn *c);
void mct_tcp_cancel_receive(struct mct_tcp_conn *c);

/* initiator.c */
unsigned mct_tcp_post(struct mct_link *link, struct mct_slice *const *slices, unsigned n);
void mct_tcp_cancel(struct mct_link *link, struct mct_slice *slice);
int mct_tcp_kill(struct mct_link *link, uint64_t conn);
void mct_tcp_cancel_frame(struct mct_tcp_frame *f);
/* A slice goes into the list of those that come back. */
void mct_tcp_give_back(struct mct_tcp_frame *f, uint16_t status, bool settled);
/* Something about a request changed: gives its slice back, and the frame, when they can be. */
void mct_tcp_request_check_end(struct mct_tcp_frame *f);
/* A header of an answer came in: sets rx up for its payload, or ends it. */
void mct_tcp_answer_begin(struct mct_tcp_conn *c);
void mct_tcp_answer_end(struct mct_tcp_conn *c, const struct mct_tcp_trailer *trailer);
/* The connection is over: all its slices come back. */
void mct_tcp_initiator_end(struct mct_tcp_conn *c);

/* target.c */
int mct_tcp_serve(struct mct *t, const struct mct_conn *conn, void *visitor);
int mct_tcp_dismiss(struct mct *t, void *visitor);
void mct_tcp_request_begin(struct mct_tcp_conn *c);
void mct_tcp_request_end(struct mct_tcp_conn *c, const struct mct_tcp_trailer *trailer);
uint16_t mct_tcp_resolve(struct mct_tcp_conn *c, enum mct_op op, const struct mct_request *r,
                         uint8_t **pointer);
/* The request's end: its answer is `status`. */
void mct_tcp_answer(struct mct_tcp_frame *f, uint16_t status);
void mct_tcp_target_end(struct mct_tcp_conn *c);

/* stage.c: requests about memory of a GPU */
/* A WRITE whose payload comes next: gives it a stage, or stops the connection's reading until there is one. */
void mct_tcp_stage_write(struct mct_tcp_frame *f);
/* All of a WRITE's payload is in its stage; answered when it is in its place. */
void mct_tcp_stage_land(struct mct_tcp_frame *f);
/* An answer to READ, which is in the out list: leaves it, and is back with its bytes in a stage, or refused. */
void mct_tcp_stage_fetch(struct mct_tcp_frame *f);
/* Gives stages to those that wait, and says BUSY to those whose bytes are moved; true: there were any of the former. */
bool mct_tcp_stage_turn(struct mct *t);
/* The connection goes, and nothing of it is being moved: gives back all that it has. */
void mct_tcp_stage_end(struct mct_tcp_conn *c);

/* quiesce.c */
int mct_tcp_quiesce(struct mct *t, const void *base, uint64_t length);

#endif
