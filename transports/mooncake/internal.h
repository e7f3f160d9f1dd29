/* SPDX-License-Identifier: Apache-2.0 */
/* What the two roles of the Mooncake transport share.  One engine's thread only. */
#ifndef MCT_MOONCAKE_INTERNAL_H
#define MCT_MOONCAKE_INTERNAL_H

#include "protocol.h"
#include "shm/atomic.h"
#include "shm/status.h"
#include "transports/transport.h"
#include "transports/uring.h"

/* Bytes of one send or receive into memory that may be taken away: after each the range is looked
 * up again, and a cancel waits for no more. */
#define MCT_MOONCAKE_CHUNK (256u << 10)
/* Small answers and requests come in one receive: status or header and payload together. */
#define MCT_MOONCAKE_STAGE (8u << 10)
/* From its first byte on, a request's header must be complete within this time. */
#define MCT_MOONCAKE_HEADER_S 10u

struct mct_mooncake_out; /* a connection this side makes requests on: initiator.c */
struct mct_mooncake_in;  /* one that a peer makes requests on: target.c */

struct mct_link {
    struct mct *t;
    void *owner;
    struct mct_mooncake_out *conns;
    unsigned count;
    uint64_t progressed; /* of connections that are gone */
    struct mct_link *prev, *next;
};

struct mct {
    struct mct_env env;
    struct mct_stats stats;
    struct mct_link *links;
    struct mct_mooncake_in *incoming;
    struct mct_slice *back, **back_end; /* slices that come back in the next turn */
    struct mct_mooncake_out *dead_out;  /* closed: freed in the next turn, when no completion */
    struct mct_mooncake_in *dead_in;    /* of theirs can be under way in the call stack */
    bool queued;                        /* operations since the last turn */
    uint64_t slow_at;                   /* ticks: the first unfinished header is due; 0: none */
};

/* Any role: options of every data socket. */
void mct_mooncake_socket(int fd);
/* Copies payload. Who else touches the same bytes at the same time is the applications' affair, so this is a function of
 * its own, which tests/tsan.supp knows. */
void mct_mooncake_payload(void *to, const void *from, size_t n);
/* Calls done() of all slices in `back`. */
bool mct_mooncake_hand_back(struct mct *t);

/* initiator.c */
int mct_mooncake_connect(struct mct *t, void *owner, struct mct_link **out);
void mct_mooncake_disconnect(struct mct_link *link);
int mct_mooncake_adopt(struct mct_link *link, const struct mct_conn *conn);
void mct_mooncake_abort(struct mct_link *link, int error);
unsigned mct_mooncake_post(struct mct_link *link, struct mct_slice *const *slices, unsigned n);
void mct_mooncake_cancel(struct mct_link *link, struct mct_slice *slice);
uint64_t mct_mooncake_progress(struct mct_link *link);
/* Stops what uses local memory of the range; true when nothing does. */
bool mct_mooncake_out_quiesce(struct mct *t, uintptr_t base, uint64_t length);
void mct_mooncake_out_free_dead(struct mct *t);

/* target.c */
int mct_mooncake_serve(struct mct *t, const struct mct_conn *conn, void *visitor);
int mct_mooncake_dismiss(struct mct *t, void *visitor);
bool mct_mooncake_in_quiesce(struct mct *t, uintptr_t base, uint64_t length);
/* Closes connections whose header is late; sets slow_at for the others. */
void mct_mooncake_in_slow(struct mct *t, uint64_t now);
void mct_mooncake_in_free_dead(struct mct *t);

static inline bool mct_mooncake_overlaps(const void *p, uint64_t n, uintptr_t base, uint64_t length)
{
    uintptr_t at = (uintptr_t)p;

    return at < base ? base - at < n : at - base < length;
}

/* A slice that nothing refers to any more comes back in the next turn. */
static inline void mct_mooncake_give_back(struct mct *t, struct mct_slice *s)
{
    s->link_state = NULL;
    s->link_next = NULL;
    *t->back_end = s;
    t->back_end = &s->link_next;
}

#endif
