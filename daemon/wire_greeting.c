/* SPDX-License-Identifier: Apache-2.0 */
/* What is said before frames: greetings, refusals; and the frames' own head. */
#include "wire_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *mcd_wire_method_name(unsigned method)
{
    switch (method) {
    case MCD_WIRE_NONE:
        return "none";
    case MCD_WIRE_PSK:
        return "psk";
    case MCD_WIRE_TLS:
        return "tls";
    default:
        return "unknown";
    }
}

int mcd_wire_greeting_check(const struct mcd_wire_greeting *ours,
                            const struct mcd_wire_greeting *theirs, uint16_t *version, char *error,
                            size_t error_size)
{
    uint16_t low =
        ours->version_min > theirs->version_min ? ours->version_min : theirs->version_min;
    uint16_t high =
        ours->version_max < theirs->version_max ? ours->version_max : theirs->version_max;

    if (theirs->magic != MCD_WIRE_MAGIC) {
        snprintf(error, error_size, "the other end does not speak mcshm's control protocol");
        return -EPROTO;
    }
    if (theirs->version_min == 0 || theirs->version_min > theirs->version_max ||
        theirs->incarnation == 0) {
        snprintf(error, error_size,
                 "the greeting is malformed: versions %u to %u, incarnation %llx",
                 theirs->version_min, theirs->version_max, (unsigned long long)theirs->incarnation);
        return -EPROTO;
    }
    /* Our own greeting, sent back to us, ends here at the latest. */
    if (theirs->role !=
        (ours->role == MCD_WIRE_INITIATOR ? MCD_WIRE_ACCEPTOR : MCD_WIRE_INITIATOR)) {
        snprintf(error, error_size,
                 "the greeting's role is %u, that of this end is %u: a reflection", theirs->role,
                 ours->role);
        return -EPROTO;
    }
    if (low > high) {
        snprintf(
            error, error_size,
            "protocol versions %u to %u are spoken here, %u to %u there: upgrade the older agent",
            ours->version_min, ours->version_max, theirs->version_min, theirs->version_max);
        return -EPROTONOSUPPORT;
    }
    if (theirs->method != ours->method) {
        snprintf(error, error_size,
                 "[peer] auth is %s here and %s there: it has to be the same on all agents",
                 mcd_wire_method_name(ours->method), mcd_wire_method_name(theirs->method));
        return -EPERM;
    }
    *version = high;
    return 0;
}

void mcd_wire_refusal_make(struct mcd_wire_refusal *r, uint32_t status, const char *text)
{
    memset(r, 0, sizeof(*r));
    r->magic = MCD_WIRE_REFUSAL_MAGIC;
    r->status = (uint16_t)status;
    r->length = (uint16_t)strnlen(text, sizeof(r->text));
    memcpy(r->text, text, r->length);
}

uint32_t mcd_wire_refusal_read(const struct mcd_wire_refusal *r, char *text, size_t size)
{
    size_t n = r->length < sizeof(r->text) ? r->length : sizeof(r->text), i;

    if (n >= size)
        n = size - 1;
    for (i = 0; i < n; i++)
        text[i] = r->text[i] >= ' ' && r->text[i] <= '~' ? r->text[i] : '?';
    text[n] = 0;
    /* It is not yet known who says this: nothing but a reason to give up is taken from it. */
    switch (r->status) {
    case MCS_AUTH:
    case MCS_VERSION:
    case MCS_LIMIT:
    case MCS_TIMEOUT:
    case MCS_ENCRYPTION:
        return r->status;
    default:
        return MCS_PROTOCOL;
    }
}

void mcd_wire_frame_make(struct mcd_wire_frame *f, const struct mcd_wire_header *h, size_t size,
                         uint16_t version, uint64_t sequence)
{
    memset(f, 0, sizeof(*f));
    f->magic = MCD_WIRE_FRAME_MAGIC;
    f->version = version;
    f->type = h->type;
    f->length = (uint32_t)size;
    f->id = h->id;
    f->sequence = sequence;
    if (h->reply) {
        f->flags = MCD_WIRE_REPLY;
        f->status = (uint16_t)h->status;
    } else {
        f->deadline_ms = h->deadline_ms;
    }
}

int mcd_wire_frame_check(const struct mcd_wire_frame *f, uint16_t version, uint64_t sequence,
                         struct mcd_wire_header *h, char *error, size_t error_size)
{
    bool reply = (f->flags & MCD_WIRE_REPLY) != 0;

    if (f->magic != MCD_WIRE_FRAME_MAGIC) {
        snprintf(error, error_size, "a frame begins with %08x instead of %08x", f->magic,
                 MCD_WIRE_FRAME_MAGIC);
        return -EPROTO;
    }
    if (f->version != version) {
        snprintf(error, error_size, "a frame is of version %u, agreed on was %u", f->version,
                 version);
        return -EPROTO;
    }
    if (f->length > MCD_WIRE_FRAME_MAX) {
        snprintf(error, error_size, "a frame announces %u bytes, the limit is %u", f->length,
                 MCD_WIRE_FRAME_MAX);
        return -EPROTO;
    }
    if (f->sequence != sequence) {
        snprintf(error, error_size, "a frame has number %llu, due is %llu: lost or repeated",
                 (unsigned long long)f->sequence, (unsigned long long)sequence);
        return -EPROTO;
    }
    if (f->type == 0 || (f->flags & ~MCD_WIRE_REPLY) != 0 || (reply && f->id == 0) ||
        (reply && f->deadline_ms != 0) || (!reply && f->status != 0)) {
        snprintf(error, error_size,
                 "a frame's head contradicts itself: type %u, flags %x, id %u, status %u, "
                 "deadline %u",
                 f->type, f->flags, f->id, f->status, f->deadline_ms);
        return -EPROTO;
    }
    memset(h, 0, sizeof(*h));
    h->type = f->type;
    h->reply = reply;
    h->id = f->id;
    h->status = f->status;
    h->deadline_ms = f->deadline_ms;
    return 0;
}
