/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session region and its inbox: notifications from the agent to one client.
 * A byte ring of 64-byte units with one producer (the agent, which serialises its
 * engines) and one consumer (the client).  A record never wraps: what does not fit
 * before the end is filled by a record whose source is 0.
 */
#ifndef MCS_INBOX_H
#define MCS_INBOX_H

#include <stdbool.h>

#include "abi.h"
#include "atomic.h"

/* Smallest inbox: two of the largest records. */
#define MCS_INBOX_SIZE_MIN 16384u
#define MCS_INBOX_SIZE_MAX (1u << 28)

struct mcs_session_region {
    struct mcs_session_header *header;
    struct mcs_session_words *words;
    uint8_t *inbox;
    uint64_t inbox_size;
    uint64_t total_size;
};

/* Bytes of a session region with an inbox of inbox_size (a power of two), or 0. */
uint64_t mcs_session_region_size(uint64_t inbox_size);

/* Agent: fills zeroed memory. `h` gives incarnations, features and ticks. */
void mcs_session_region_create(struct mcs_session_region *r, void *mem, uint64_t inbox_size,
                               const struct mcs_session_header *h);

/*
 * Agent: views a region that an earlier agent filled and that its client has kept; tells the client
 * who serves it now. *head and *tail: of the inbox. -EPROTO: the header is not this session's, or
 * the inbox's words are impossible.
 */
int mcs_session_region_resume(struct mcs_session_region *r, void *mem, uint64_t inbox_size,
                              uint64_t session_incarnation, uint64_t agent_incarnation,
                              uint64_t features, uint64_t *head, uint64_t *tail);

/* Client: -EPROTONOSUPPORT for another ABI, -EPROTO for a contradiction. */
int mcs_session_region_attach(struct mcs_session_region *r, void *mem, uint64_t size);

/*
 * Agent: appends one notification. *head is the agent's private copy of inbox_head.
 * 0; -EAGAIN: no room; -EPROTO: the client's tail is impossible, end its session;
 * -EMSGSIZE: longer than the limits in abi.h.
 */
int mcs_inbox_put(struct mcs_session_region *r, uint64_t *head, uint64_t source, uint64_t bytes,
                  const void *name, uint32_t name_length, const void *message,
                  uint32_t message_length);

/* Agent, after a put: does the client sleep on the inbox? */
static inline bool mcs_inbox_reader_waits(const struct mcs_session_region *r)
{
    mcs_fence_full(); /* orders inbox_head before this look; partner: mcs_inbox_wait_begin() */
    return mcs_load_relaxed(&r->words->inbox_waiting) != 0;
}

/* Client: the next record, or NULL; it stays valid until mcs_inbox_release(). */
const struct mcs_inbox_record *mcs_inbox_peek(struct mcs_session_region *r);
void mcs_inbox_release(struct mcs_session_region *r, const struct mcs_inbox_record *record);

/* Client half of its sleep; returns the futex value to sleep on. Look once more after it. */
static inline uint32_t mcs_inbox_wait_begin(struct mcs_session_region *r)
{
    mcs_store_relaxed(&r->words->inbox_waiting, 1u);
    mcs_fence_full(); /* partner: mcs_inbox_reader_waits() */
    return (uint32_t)mcs_load_acquire(&r->words->inbox_head);
}

static inline void mcs_inbox_wait_end(struct mcs_session_region *r)
{
    mcs_store_relaxed(&r->words->inbox_waiting, 0u);
}

#endif
