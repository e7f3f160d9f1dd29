/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way in.  One receive under way a connection: into the staging buffer, where small
 * frames come many at a time, or, of a large payload, straight to its place. A target looks
 * the place up anew for each piece: between two pieces the range may have been revoked.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "tcp.h"
#include "transports/crc32c.h"
#include "shm/failpoint.h"

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Nothing more of this frame's payload is put anywhere. */
static void refuse(struct mct_tcp_conn *c, uint16_t status)
{
    c->rx.drop = true;
    if (c->rx.status == MCS_OK)
        c->rx.status = status;
}

/* Where the next n bytes of payload go; NULL: nowhere. */
static uint8_t *place(struct mct_tcp_conn *c, size_t n)
{
    struct mct_tcp_rx *rx = &c->rx;
    struct mct_request r;
    uint8_t *pointer = NULL;
    uint16_t status;

    if (rx->drop)
        return NULL;
    if (c->link != NULL) {
        if (rx->frame->slice != NULL && !rx->frame->cancel)
            return (uint8_t *)rx->frame->slice->local + rx->offset;
        rx->drop = true;
        mct_tcp_count(c->t, dropped, 1);
        return NULL;
    }
    if (rx->header.type == MCT_TCP_NOTIFY)
        return c->notification + rx->offset;
    if (rx->frame->stage != NULL)
        return rx->frame->stage->memory + rx->offset;
    if (rx->pointer != NULL)
        return rx->pointer + rx->offset;
    r = (struct mct_request){.op = MCT_WRITE,
                             .export_index = rx->header.export_index,
                             .incarnation = rx->header.incarnation,
                             .address = rx->header.address + rx->offset,
                             .length = n};
    status = mct_tcp_resolve(c, MCT_WRITE, &r, &pointer);
    if (status != MCS_OK) {
        refuse(c, status);
        mct_tcp_count(c->t, dropped, 1);
        return NULL;
    }
    return pointer;
}

static void sum(struct mct_tcp_conn *c, const uint8_t *data, size_t n)
{
    if ((c->rx.header.flags & MCT_TCP_CHECKSUM) != 0 && !c->rx.drop)
        c->rx.crc = mct_crc32c(c->rx.crc, data, n);
    mct_tcp_count(c->t, received_bytes, n);
}

/* Payload that lies in the staging buffer. */
static void take_staged(struct mct_tcp_conn *c)
{
    struct mct_tcp_rx *rx = &c->rx;
    size_t n = (size_t)(rx->header.length - rx->offset);
    uint8_t *to;

    n = min_size(n, rx->end - rx->start);
    to = place(c, n);
    if (to != NULL)
        memcpy(to, rx->staging + rx->start, n);
    sum(c, rx->staging + rx->start, n);
    rx->start += n;
    rx->offset += n;
}

static bool take_header(struct mct_tcp_conn *c)
{
    struct mct_tcp_rx *rx = &c->rx;
    const char *wrong;

    if (c->link == NULL && c->in_use == c->nframes) {
        rx->paused = true; /* goes on when an answer has left */
        return false;
    }
    wrong = mct_tcp_header_open(&rx->header, rx->staging + rx->start);
    if (wrong == NULL)
        wrong = c->link != NULL ? mct_tcp_answer_check(&rx->header)
                                : mct_tcp_request_check(&rx->header);
    if (wrong != NULL) {
        mct_tcp_nonsense(c, wrong);
        return false;
    }
    rx->start += MCT_TCP_HEADER;
    rx->offset = 0;
    rx->crc = 0;
    rx->status = MCS_OK;
    rx->drop = false;
    rx->frame = NULL;
    rx->pointer = NULL;
    rx->lean = rx->header.length > MCT_TCP_DIRECT && rx->header.type != MCT_TCP_READ;
    if (c->link != NULL)
        mct_tcp_answer_begin(c);
    else
        mct_tcp_request_begin(c);
    return true;
}

static bool take_trailer(struct mct_tcp_conn *c)
{
    struct mct_tcp_rx *rx = &c->rx;
    struct mct_tcp_trailer trailer;
    const char *wrong;

    wrong = mct_tcp_trailer_open(&trailer, rx->staging + rx->start, rx->header.id);
    if (wrong != NULL) {
        mct_tcp_nonsense(c, wrong);
        return false;
    }
    rx->start += sizeof(trailer);
    rx->state = MCT_TCP_RX_HEADER;
    if ((rx->header.flags & MCT_TCP_CHECKSUM) != 0 && !rx->drop && trailer.status == MCS_OK &&
        trailer.crc != rx->crc) {
        mct_tcp_count(c->t, checksum_errors, 1);
        rx->status = MCS_CHECKSUM;
    }
    if (c->link != NULL)
        mct_tcp_answer_end(c, &trailer);
    else
        mct_tcp_request_end(c, &trailer);
    rx->frame = NULL;
    rx->pointer = NULL;
    return true;
}

/* Works on what is in the staging buffer. */
static void parse(struct mct_tcp_conn *c)
{
    struct mct_tcp_rx *rx = &c->rx;
    bool more = true;

    while (more && !c->closing) {
        size_t have = rx->end - rx->start;

        switch (rx->state) {
        case MCT_TCP_RX_HEADER:
            more = have >= MCT_TCP_HEADER && take_header(c);
            break;
        case MCT_TCP_RX_PAYLOAD:
            if (have > 0 && !rx->starved)
                take_staged(c);
            more = rx->offset == rx->header.length;
            if (more)
                rx->state = MCT_TCP_RX_TRAILER;
            break;
        case MCT_TCP_RX_TRAILER:
            more = have >= MCT_TCP_TRAILER && take_trailer(c);
            break;
        }
    }
}

static void receive_done(struct mct_io *io, int res, uint32_t flags);

/* The kernel wakes us for so many bytes, no fewer. Never more than are sure to come. */
static void set_low_water(struct mct_tcp_conn *c, size_t bytes)
{
    int value = (int)min_size(bytes, MCT_TCP_LOW_WATER);

    if (c->rx.low_water == value || (c->rx.low_water == 0 && value == 1))
        return;
    if (setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value)) == 0)
        c->rx.low_water = value;
}

/* again: what the socket held has just been taken, and more is to come. */
static void post(struct mct_tcp_conn *c, enum mct_tcp_rx_where where, uint8_t *to, size_t size,
                 bool again)
{
    struct mct_tcp_rx *rx = &c->rx;

    rx->where = where;
    rx->busy = true;
    rx->canceled = false;
    rx->io.done = receive_done;
    set_low_water(c, where == MCT_TCP_RX_STAGING ? 1 : size);
    if (again)
        mct_uring_recv_ready(c->t->env.uring, &rx->io, c->fd, to, size, 0);
    else
        mct_uring_recv(c->t->env.uring, &rx->io, c->fd, to, size, 0);
}

/* Large payloads go past the staging buffer. */
static bool post_payload(struct mct_tcp_conn *c, bool again)
{
    struct mct_tcp_rx *rx = &c->rx;
    uint64_t rest = rx->header.length - rx->offset;
    size_t n = rest < MCT_TCP_CHUNK ? (size_t)rest : MCT_TCP_CHUNK;
    uint8_t *to;

    if (rest <= MCT_TCP_DIRECT || rx->header.type == MCT_TCP_NOTIFY)
        return false;
    rx->place_size = n;
    to = place(c, n);
    if (to != NULL) {
        rx->place = to;
        post(c, MCT_TCP_RX_PLACE, to, n, again);
    } else {
        post(c, MCT_TCP_RX_SCRATCH, c->t->scratch, n, again);
    }
    return true;
}

static void post_staging(struct mct_tcp_conn *c)
{
    struct mct_tcp_rx *rx = &c->rx;
    size_t have = rx->end - rx->start, size;

    if (rx->start > 0) {
        memmove(rx->staging, rx->staging + rx->start, have); /* less than a header */
        rx->start = 0;
        rx->end = have;
    }
    size = MCT_TCP_STAGING - have;
    if (rx->lean) {
        /* up to the next place where a large payload can begin */
        size = MCT_TCP_HEADER;
        if (rx->state == MCT_TCP_RX_TRAILER)
            size += MCT_TCP_TRAILER;
        else if (rx->state == MCT_TCP_RX_PAYLOAD)
            size += MCT_TCP_TRAILER + (size_t)(rx->header.length - rx->offset);
        size -= have;
    }
    post(c, MCT_TCP_RX_STAGING, rx->staging + have, size, false);
}

static void receive(struct mct_tcp_conn *c, bool again)
{
    struct mct_tcp_rx *rx = &c->rx;

    if (rx->busy || rx->paused || rx->starved || c->closing)
        return;
    parse(c);
    if (!rx->paused && !rx->starved && !c->closing &&
        (rx->state != MCT_TCP_RX_PAYLOAD || !post_payload(c, again)))
        post_staging(c);
    rx->pointer = NULL; /* good in this turn only */
}

void mct_tcp_receive(struct mct_tcp_conn *c)
{
    receive(c, false);
}

void mct_tcp_cancel_receive(struct mct_tcp_conn *c)
{
    if (!c->rx.busy || c->rx.canceled)
        return;
    c->rx.canceled = true;
    mct_uring_cancel(c->t->env.uring, &c->rx.io);
}

static void receive_done(struct mct_io *io, int res, uint32_t flags)
{
    struct mct_tcp_conn *c =
        (struct mct_tcp_conn *)(void *)((char *)io - offsetof(struct mct_tcp_conn, rx.io));
    struct mct_tcp_rx *rx = &c->rx;
    struct mct_tcp_frame *f = rx->frame;

    bool short_one = rx->where != MCT_TCP_RX_STAGING && res > 0 && (size_t)res < rx->place_size;

    (void)flags;
    c->progress = c->t->turns;
    rx->busy = false;
    if (c->closing)
        return;
    if (res == 0) {
        mct_tcp_close(c, -ECONNRESET, "the peer closed it");
        return;
    }
    if (res == -EFAULT && rx->where == MCT_TCP_RX_PLACE) {
        refuse(c, MCS_MEMORY_FAULT);
        res = 0;
    }
    if (res < 0 && res != -ECANCELED && res != -EAGAIN && res != -EINTR && res != -ENOMEM &&
        res != -ENOBUFS) {
        mct_tcp_close(c, res, "a receive failed");
        return;
    }
    if (res > 0 && rx->where == MCT_TCP_RX_STAGING) {
        rx->end += (size_t)res;
    } else if (res > 0) {
        if (c->link == NULL)
            MCS_FAILPOINT(serve_half);
        sum(c, rx->where == MCT_TCP_RX_PLACE ? rx->place : c->t->scratch, (size_t)res);
        rx->offset += (size_t)res;
    }
    if (f != NULL && f->cancel && c->link != NULL && rx->state == MCT_TCP_RX_PAYLOAD)
        mct_tcp_request_check_end(f); /* its memory is quiet now */
    receive(c, short_one);
}
