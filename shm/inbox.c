/* SPDX-License-Identifier: Apache-2.0 */
#include "inbox.h"

#include <errno.h>
#include <string.h>

uint64_t mcs_session_region_size(uint64_t inbox_size)
{
    if (inbox_size < MCS_INBOX_SIZE_MIN || inbox_size > MCS_INBOX_SIZE_MAX ||
        (inbox_size & (inbox_size - 1)) != 0)
        return 0;
    return (MCS_SESSION_INBOX_OFFSET + inbox_size + 4095) & ~UINT64_C(4095);
}

static void view(struct mcs_session_region *r, void *mem, uint64_t inbox_size)
{
    r->header = mem;
    r->words = (struct mcs_session_words *)((uint8_t *)mem + MCS_SESSION_WORDS_OFFSET);
    r->inbox = (uint8_t *)mem + MCS_SESSION_INBOX_OFFSET;
    r->inbox_size = inbox_size;
    r->total_size = mcs_session_region_size(inbox_size);
}

void mcs_session_region_create(struct mcs_session_region *r, void *mem, uint64_t inbox_size,
                               const struct mcs_session_header *h)
{
    struct mcs_session_header *out = mem;

    *out = *h;
    out->abi_version = MCS_ABI_VERSION;
    out->header_size = sizeof(*out);
    out->words_offset = MCS_SESSION_WORDS_OFFSET;
    out->inbox_offset = MCS_SESSION_INBOX_OFFSET;
    out->inbox_size = inbox_size;
    out->total_size = mcs_session_region_size(inbox_size);
    out->magic = MCS_SESSION_MAGIC;
    view(r, mem, inbox_size);
}

int mcs_session_region_attach(struct mcs_session_region *r, void *mem, uint64_t size)
{
    const struct mcs_session_header *h = mem;
    uint64_t want;

    if (size < MCS_SESSION_INBOX_OFFSET || h->magic != MCS_SESSION_MAGIC)
        return -EPROTO;
    if (h->abi_version != MCS_ABI_VERSION || h->header_size != sizeof(*h))
        return -EPROTONOSUPPORT;
    want = mcs_session_region_size(h->inbox_size);
    if (want == 0 || want != h->total_size || size < want ||
        h->words_offset != MCS_SESSION_WORDS_OFFSET || h->inbox_offset != MCS_SESSION_INBOX_OFFSET)
        return -EPROTO;
    view(r, mem, h->inbox_size);
    return 0;
}

int mcs_session_region_resume(struct mcs_session_region *r, void *mem, uint64_t inbox_size,
                              uint64_t session_incarnation, uint64_t agent_incarnation,
                              uint64_t features, uint64_t *head, uint64_t *tail)
{
    struct mcs_session_header *h = mem;

    if (mcs_session_region_attach(r, mem, mcs_session_region_size(inbox_size)) != 0 ||
        r->inbox_size != inbox_size)
        return -EPROTO;
    view(r, mem, inbox_size); /* the client could have put another sound header there */
    *head = mcs_load_acquire(&r->words->inbox_head); /* I2: its writer is dead */
    *tail = mcs_load_acquire(&r->words->inbox_tail); /* I1 */
    if (mcs_load_relaxed(&h->session_incarnation) != session_incarnation || *head % MCS_LINE != 0 ||
        *tail % MCS_LINE != 0 || *head - *tail > inbox_size)
        return -EPROTO;
    mcs_store_relaxed(&h->agent_incarnation, agent_incarnation);
    mcs_store_relaxed(&h->features, features);
    return 0;
}

static uint64_t record_size(uint32_t name_length, uint32_t message_length)
{
    uint64_t n = sizeof(struct mcs_inbox_record) + (uint64_t)name_length + message_length;

    return (n + MCS_LINE - 1) & ~(uint64_t)(MCS_LINE - 1);
}

int mcs_inbox_put(struct mcs_session_region *r, uint64_t *head, uint64_t source, uint64_t bytes,
                  const void *name, uint32_t name_length, const void *message,
                  uint32_t message_length)
{
    /* I1: acquire pairs with the release in mcs_inbox_release(): space is really free. */
    uint64_t tail = mcs_load_acquire(&r->words->inbox_tail);
    uint64_t at = *head & (r->inbox_size - 1);
    uint64_t to_end = r->inbox_size - at;
    uint64_t need, fill;
    struct mcs_inbox_record *rec;

    if (name_length > MCS_NOTIFY_NAME_MAX || message_length > MCS_NOTIFY_MESSAGE_MAX)
        return -EMSGSIZE;
    need = record_size(name_length, message_length);
    if (*head - tail > r->inbox_size || tail % MCS_LINE != 0)
        return -EPROTO;
    fill = need > to_end ? to_end : 0;
    if (fill + need > r->inbox_size - (*head - tail))
        return -EAGAIN;
    if (fill != 0) {
        rec = (struct mcs_inbox_record *)(r->inbox + at);
        *rec = (struct mcs_inbox_record){.size = (uint32_t)fill};
        at = 0;
    }
    rec = (struct mcs_inbox_record *)(r->inbox + at);
    *rec = (struct mcs_inbox_record){
        .size = (uint32_t)need,
        .name_length = name_length,
        .message_length = message_length,
        .source = source,
        .bytes = bytes,
    };
    memcpy(rec + 1, name, name_length);
    memcpy((uint8_t *)(rec + 1) + name_length, message, message_length);
    *head += fill + need;
    /* I2: publishes the record; pairs with the acquire in mcs_inbox_peek(). */
    mcs_store_release(&r->words->inbox_head, *head);
    return 0;
}

const struct mcs_inbox_record *mcs_inbox_peek(struct mcs_session_region *r)
{
    uint64_t tail = mcs_load_relaxed(&r->words->inbox_tail);

    /* pairs with I2 */
    while (mcs_load_acquire(&r->words->inbox_head) != tail) {
        const struct mcs_inbox_record *rec =
            (const void *)(r->inbox + (tail & (r->inbox_size - 1)));

        if (rec->source != 0)
            return rec;
        mcs_inbox_release(r, rec);
        tail = mcs_load_relaxed(&r->words->inbox_tail);
    }
    return NULL;
}

void mcs_inbox_release(struct mcs_session_region *r, const struct mcs_inbox_record *record)
{
    /* pairs with I1 */
    mcs_store_release(&r->words->inbox_tail,
                      mcs_load_relaxed(&r->words->inbox_tail) + record->size);
}
