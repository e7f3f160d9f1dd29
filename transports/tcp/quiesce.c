/* SPDX-License-Identifier: Apache-2.0 */
/* Taking memory away from under what is under way, in both roles. */
#include <errno.h>

#include "tcp.h"

static bool overlaps(const void *a, uint64_t a_size, const void *b, uint64_t b_size)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    return x < y ? y - x < a_size : x - y < b_size;
}

/* Does this send read from there? A target's answers that do go on with filler. */
static bool stop_send(struct mct_tcp_send *s, const void *base, uint64_t length)
{
    bool hit = false;

    for (unsigned i = 0; i < s->niov; i++) {
        struct mct_tcp_frame *f = s->payload_of[i];

        if (f == NULL || !overlaps(s->iov[i].iov_base, s->iov[i].iov_len, base, length))
            continue;
        hit = true;
        if (s->conn->link == NULL && f->stop == MCS_OK)
            f->stop = MCS_REVOKED;
    }
    return hit;
}

/* Slices with an end in there come back. */
static bool stop_slices(struct mct_tcp_conn *c, const void *base, uint64_t length)
{
    bool out = false;

    for (unsigned i = 0; i < c->fresh; i++) {
        struct mct_tcp_frame *f = &c->frames[i];

        if (!f->live || f->slice == NULL ||
            !overlaps(f->slice->local, f->slice->length, base, length))
            continue;
        if (!c->closing)
            mct_tcp_cancel_frame(f);
        out = out || f->slice != NULL;
    }
    return out;
}

static bool stop_conn(struct mct_tcp_conn *c, const void *base, uint64_t length)
{
    struct mct_tcp_rx *rx = &c->rx;
    bool busy = false;

    if (rx->busy && rx->where == MCT_TCP_RX_PLACE &&
        overlaps(rx->place, rx->place_size, base, length)) {
        busy = true;
        if (c->link == NULL) {
            if (!rx->drop)
                mct_tcp_count(c->t, dropped, 1);
            rx->drop = true;
            rx->status = MCS_REVOKED;
        }
        mct_tcp_cancel_receive(c);
    }
    if (c->link != NULL && stop_slices(c, base, length))
        busy = true;
    if (c->active != NULL && stop_send(c->active, base, length)) {
        busy = true;
        mct_tcp_cancel_send(c);
    }
    for (struct mct_tcp_send *s = c->awaiting; s != NULL; s = s->next)
        if (stop_send(s, base, length)) {
            busy = true;
            mct_tcp_close(c, -ECANCELED, "memory of a zero-copy send was taken away");
        }
    return busy;
}

int mct_tcp_quiesce(struct mct *t, const void *base, uint64_t length)
{
    bool busy = false;

    for (struct mct_tcp_conn *c = t->conns; c != NULL; c = c->next)
        busy = stop_conn(c, base, length) || busy;
    return busy ? -EINPROGRESS : 0;
}
