/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of this host: slices become frames, answers give them back, cancelling takes them back. */
#include <errno.h>

#include "tcp.h"
#include "shm/failpoint.h"

/* Puts the slice into the list of those that come back; the engine hears of it in deliver. */
static void come_back(struct mct *t, struct mct_slice *s, uint16_t status, bool settled,
                      uint64_t conn)
{
    s->status = status;
    s->settled = settled;
    s->conn = conn;
    s->moved = status == MCS_OK ? s->length : 0;
    s->link_state = NULL;
    s->link_next = NULL;
    *t->done_end = s;
    t->done_end = &s->link_next;
}

void mct_tcp_give_back(struct mct_tcp_frame *f, uint16_t status, bool settled)
{
    struct mct_slice *s = f->slice;

    if (s == NULL)
        return;
    f->slice = NULL;
    f->local = NULL;
    s->error = status == MCS_RAIL ? f->conn->error : 0;
    come_back(f->conn->t, s, status, settled, f->sent == 0 && f->refs == 0 ? 0 : f->conn->id);
}

static void refuse(struct mct *t, struct mct_slice *s, uint16_t status)
{
    s->error = 0;
    come_back(t, s, status, true, 0);
}

/* The least loaded connection with room for it; NULL: none has. */
static struct mct_tcp_conn *choose(struct mct_link *link, const struct mct_slice *s)
{
    struct mct_tcp_conn *best = NULL;
    unsigned limit = link->t->max_requests;

    for (struct mct_tcp_conn *c = link->conns; c != NULL; c = c->link_next) {
        if (c->closing || c->requests >= limit ||
            (c->bytes > 0 && c->bytes + s->length > MCT_TCP_WINDOW))
            continue;
        if (best == NULL || c->bytes < best->bytes ||
            (c->bytes == best->bytes && c->requests < best->requests))
            best = c;
    }
    return best;
}

static uint16_t check(const struct mct_slice *s)
{
    if (s->gpu)
        return MCS_NOT_SUPPORTED;
    if (s->length == 0 || s->length > MCT_TCP_LENGTH_MAX)
        return MCS_INVALID_ARGUMENT;
    if (s->op == MCT_NOTIFY && (s->length > MCT_TCP_NOTIFY_MAX || s->name_length > s->length ||
                                s->name_length > MCS_NOTIFY_NAME_MAX))
        return MCS_INVALID_ARGUMENT;
    return s->op == MCT_READ || s->op == MCT_WRITE || s->op == MCT_NOTIFY ? MCS_OK
                                                                          : MCS_NOT_SUPPORTED;
}

static bool post_one(struct mct_link *link, struct mct_slice *s)
{
    struct mct *t = link->t;
    struct mct_tcp_conn *c = choose(link, s);
    struct mct_tcp_frame *f;
    uint16_t wrong;

    if (c == NULL)
        return false;
    wrong = check(s);
    if (wrong == MCS_OK && s->op == MCT_NOTIFY && (c->features & MCT_TCP_FEATURE_NOTIFY) == 0)
        wrong = MCS_NOT_SUPPORTED;
    if (wrong != MCS_OK) {
        refuse(t, s, wrong);
        return true;
    }
    f = mct_tcp_frame_get(c);
    if (f == NULL)
        return false;
    f->type = s->op == MCT_READ    ? MCT_TCP_READ
              : s->op == MCT_WRITE ? MCT_TCP_WRITE
                                   : MCT_TCP_NOTIFY;
    f->flags = t->env.checksum ? MCT_TCP_CHECKSUM : 0;
    f->slice = s;
    f->local = s->local;
    f->address = s->remote_address;
    f->length = s->length;
    f->incarnation = s->remote_incarnation;
    f->export_index = s->remote_export;
    f->payload = s->op == MCT_READ ? 0 : s->length;
    if (s->op == MCT_NOTIFY) {
        f->name_length = (uint16_t)s->name_length;
        f->source = s->source;
        f->bytes = s->bytes;
    }
    s->link_state = f;
    c->requests++;
    c->bytes += f->length;
    mct_tcp_queue(f, false);
    return true;
}

unsigned mct_tcp_post(struct mct_link *link, struct mct_slice *const *slices, unsigned n)
{
    unsigned i;

    for (i = 0; i < n; i++)
        if (!post_one(link, slices[i]))
            break;
    return i;
}

int mct_tcp_kill(struct mct_link *link, uint64_t conn)
{
    for (struct mct_tcp_conn *c = link->conns; c != NULL; c = c->link_next) {
        struct mct_tcp_frame *f = c->closing || c->id == conn ? NULL : mct_tcp_frame_get(c);

        if (f == NULL)
            continue;
        MCS_FAILPOINT(kill_asked);
        f->type = MCT_TCP_KILL;
        f->address = conn;
        mct_tcp_queue(f, true);
        return 0;
    }
    return -EAGAIN;
}

/* Out of the books; its frame may be used again. */
static void retire(struct mct_tcp_frame *f)
{
    struct mct_tcp_conn *c = f->conn;

    if (f->id != 0)
        c->table[f->id & c->mask] = NULL;
    if (f->type != MCT_TCP_KILL) {
        c->requests--;
        c->bytes -= f->length;
        mct_tcp_frame_put(f);
    } else {
        f->next = c->t->killed; /* deliver frees it */
        c->t->killed = f;
    }
}

/* What the slice ends with, given what the peer said. */
static uint16_t verdict(const struct mct_tcp_frame *f)
{
    if (f->status == MCS_OK || f->stop == MCS_OK)
        return f->status;
    return f->stop == MCS_MEMORY_FAULT ? MCS_MEMORY_FAULT : MCS_CANCELED;
}

static bool covers(const struct mct_tcp_send *s, const struct mct_tcp_frame *f)
{
    for (unsigned i = 0; s != NULL && i < s->nframes; i++)
        if (s->frames[i] == f)
            return true;
    return false;
}

/* A cancelled slice: back with it as soon as nothing touches its memory. */
static void take_back(struct mct_tcp_frame *f)
{
    struct mct_tcp_conn *c = f->conn;
    struct mct_tcp_rx *rx = &c->rx;

    if (f->refs == 0 && f->sent == 0) { /* none of it ever left */
        mct_tcp_withdraw(f);
        mct_tcp_give_back(f, MCS_CANCELED, true);
        retire(f);
        return;
    }
    if (f->type == MCT_TCP_READ) {
        if (rx->frame == f && rx->busy && rx->where == MCT_TCP_RX_PLACE)
            mct_tcp_cancel_receive(c);
        else
            mct_tcp_give_back(f, MCS_CANCELED, true);
        return;
    }
    if (f->refs == 0)
        mct_tcp_give_back(f, MCS_CANCELED, false);
    else if (covers(c->active, f))
        mct_tcp_cancel_send(c);
    else /* the kernel may read it until the peer's kernel has it all: no waiting for that */
        mct_tcp_close(c, -ECANCELED, "a zero-copy send was cancelled");
}

void mct_tcp_request_check_end(struct mct_tcp_frame *f)
{
    if (!f->live || f->conn->closing)
        return;
    if (f->answered && f->refs == 0 && !f->queued) {
        mct_tcp_give_back(f, verdict(f), true);
        retire(f);
    } else if (f->cancel && f->slice != NULL) {
        take_back(f);
    }
}

void mct_tcp_cancel_frame(struct mct_tcp_frame *f)
{
    f->cancel = true;
    if (f->stop == MCS_OK)
        f->stop = MCS_CANCELED;
    mct_tcp_request_check_end(f);
}

void mct_tcp_cancel(struct mct_link *link, struct mct_slice *slice)
{
    struct mct_tcp_frame *f = slice->link_state;

    (void)link;
    if (f != NULL && f->slice == slice) /* else it is on its way back already */
        mct_tcp_cancel_frame(f);
}

/* Ends a request with what its answer said. */
static void answered(struct mct_tcp_conn *c, struct mct_tcp_frame *f, uint16_t status)
{
    if (f->sent < mct_tcp_total(f) && f->refs == 0) {
        mct_tcp_nonsense(c, "a request was answered before it was sent");
        return;
    }
    f->answered = true;
    f->status = status < MCS_STATUS_COUNT ? status : MCS_INTERNAL;
    mct_tcp_request_check_end(f);
}

void mct_tcp_answer_begin(struct mct_tcp_conn *c)
{
    const struct mct_tcp_header *h = &c->rx.header;
    struct mct_tcp_frame *f = c->table[h->id & c->mask];

    if (h->type == MCT_TCP_BUSY) {
        if ((c->features & MCT_TCP_FEATURE_BUSY) == 0)
            mct_tcp_nonsense(c, "the peer says BUSY, and does not offer to");
        return; /* that it came is all it says: progress() */
    }
    if (f == NULL || f->id != h->id || h->id == 0 || f->answered) {
        mct_tcp_nonsense(c, "an answer's id belongs to no request, or its second answer came");
    } else if (mct_tcp_answer_type(f->type) != h->type) {
        mct_tcp_nonsense(c, "an answer is of another type than its request");
    } else if (h->type == MCT_TCP_DATA && h->status == MCS_OK) {
        if (h->length != f->length) {
            mct_tcp_nonsense(c, "an answer's length is not what was asked for");
            return;
        }
        c->rx.frame = f;
        c->rx.state = MCT_TCP_RX_PAYLOAD;
    } else {
        answered(c, f, h->status);
    }
}

void mct_tcp_answer_end(struct mct_tcp_conn *c, const struct mct_tcp_trailer *trailer)
{
    struct mct_tcp_frame *f = c->rx.frame;

    c->rx.frame = NULL;
    answered(c, f, c->rx.status != MCS_OK ? c->rx.status : trailer->status);
}

void mct_tcp_initiator_end(struct mct_tcp_conn *c)
{
    struct mct_tcp_frame **p = &c->t->killed;

    for (unsigned i = 0; i < c->fresh; i++) {
        struct mct_tcp_frame *f = &c->frames[i];

        if (!f->live || f->slice == NULL)
            continue;
        if (f->answered)
            mct_tcp_give_back(f, verdict(f), true);
        else
            mct_tcp_give_back(f, f->cancel ? MCS_CANCELED : MCS_RAIL,
                              f->sent == 0 || f->type == MCT_TCP_READ);
    }
    /* KILLs that were answered but not told: asking again does no harm */
    while (*p != NULL)
        if ((*p)->conn == c)
            *p = (*p)->next;
        else
            p = &(*p)->next;
}
