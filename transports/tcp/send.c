/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way out.  One send under way a connection; it gathers the first frames of the out list:
 * headers and trailers from the send's own buffer, payload from where it lies.  Frames stay in the
 * list until the kernel took their last byte, so a short send needs nothing but another one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tcp.h"
#include "transports/crc32c.h"

static const uint8_t zeros[MCT_TCP_ZEROS];

void mct_tcp_ready(struct mct_tcp_conn *c)
{
    if (c->ready)
        return;
    c->ready = true;
    c->ready_next = c->t->ready;
    c->t->ready = c;
}

/* Which of an initiator's frames may no longer be overtaken: ids rise in the order of sending. */
static bool is_on_its_way(const struct mct_tcp_frame *f)
{
    return f->id != 0 || f->sent > 0;
}

void mct_tcp_queue(struct mct_tcp_frame *f, bool urgent)
{
    struct mct_tcp_conn *c = f->conn;
    struct mct_tcp_frame *before = c->tail;

    if (urgent)
        while (before != NULL && !is_on_its_way(before))
            before = before->prev;
    f->prev = before;
    f->next = before != NULL ? before->next : c->head;
    if (f->prev != NULL)
        f->prev->next = f;
    else
        c->head = f;
    if (f->next != NULL)
        f->next->prev = f;
    else
        c->tail = f;
    f->queued = true;
    c->queued++;
    c->bare += f->type == MCT_TCP_DONE;
    mct_tcp_ready(c);
}

void mct_tcp_withdraw(struct mct_tcp_frame *f)
{
    struct mct_tcp_conn *c = f->conn;

    if (f->prev != NULL)
        f->prev->next = f->next;
    else
        c->head = f->next;
    if (f->next != NULL)
        f->next->prev = f->prev;
    else
        c->tail = f->prev;
    f->queued = false;
    c->queued--;
    c->bare -= f->type == MCT_TCP_DONE;
}

void mct_tcp_cancel_send(struct mct_tcp_conn *c)
{
    if (c->active == NULL || c->active->canceled)
        return;
    c->active->canceled = true;
    mct_uring_cancel(c->t->env.uring, &c->active->io);
}

/* Piece by piece into the send's vector; metadata that follows metadata makes no new one. */
static void add_iov(struct mct_tcp_send *s, const void *base, size_t size,
                    struct mct_tcp_frame *payload_of)
{
    s->iov[s->niov] = (struct iovec){.iov_base = (void *)(uintptr_t)base, .iov_len = size};
    s->payload_of[s->niov++] = payload_of;
}

static void add_meta(struct mct_tcp_send *s, const void *data, size_t size)
{
    uint8_t *at = s->meta + s->meta_size;
    struct iovec *last = s->niov > 0 ? &s->iov[s->niov - 1] : NULL;

    memcpy(at, data, size);
    s->meta_size += size;
    if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == at)
        last->iov_len += size;
    else
        add_iov(s, at, size, NULL);
}

static void add_header(struct mct_tcp_send *s, const struct mct_tcp_frame *f)
{
    bool asks = f->type == MCT_TCP_READ || f->type == MCT_TCP_NOTIFY || f->type == MCT_TCP_WRITE;
    struct mct_tcp_header h = {
        .type = f->type,
        .flags = f->flags,
        .status = asks ? 0 : f->status,
        .name_length = f->name_length,
        .id = f->id,
        .address = f->type == MCT_TCP_DATA ? 0 : f->address,
        .length = f->type == MCT_TCP_READ ? f->length : f->payload,
        .incarnation = asks ? f->incarnation : 0,
        .export_index = asks ? f->export_index : 0,
        .source = f->source,
        .task_bytes_lo = (uint32_t)f->bytes,
        .task_bytes_hi = (uint16_t)(f->bytes >> 32),
    };

    mct_tcp_header_seal(&h);
    add_meta(s, (const uint8_t *)&h + f->sent, sizeof(h) - f->sent);
}

/* Where the next piece of the payload lies; shortens nothing. NULL: filler from here on. */
static const uint8_t *locate(struct mct_tcp_frame *f, uint64_t offset, uint64_t length)
{
    struct mct_request r = {.op = MCT_READ,
                            .export_index = f->export_index,
                            .incarnation = f->incarnation,
                            .address = f->address + offset,
                            .length = length};
    uint8_t *pointer = NULL;

    if (f->stop != MCS_OK)
        return NULL;
    if (f->conn->link != NULL)
        return f->local + offset;
    if (f->stage != NULL)
        return f->stage->memory + offset;
    f->stop = mct_tcp_resolve(f->conn, MCT_READ, &r, &pointer);
    if (f->stop != MCS_OK)
        mct_tcp_count(f->conn->t, dropped, 1);
    return pointer;
}

/* An answer to READ: all of it is looked up before its header promises it. *away: not now, since it has to be fetched. */
static const uint8_t *open_answer(struct mct_tcp_frame *f, bool *away)
{
    struct mct_request r = {.op = MCT_READ,
                            .export_index = f->export_index,
                            .incarnation = f->incarnation,
                            .address = f->address,
                            .length = f->length};
    uint8_t *pointer = NULL;

    if (f->stop == MCS_OK && f->stage != NULL)
        pointer = f->stage->memory;
    else if (f->stop == MCS_OK)
        f->stop = mct_tcp_resolve(f->conn, MCT_READ, &r, &pointer);
    *away = f->stop == MCS_OK && pointer == NULL;
    f->status = f->stop;
    f->payload = f->status == MCS_OK ? f->length : 0;
    return pointer;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The kernel's copy is slow where it misses the cache at each line; asking for the lines beforehand is
 * cheaper than that. A checksum does the same by the way. */
static void announce(const uint8_t *at, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch(at + i, 0, 2);
}

/* Adds payload from `offset` on, as far as there is room; returns where it came to. */
static uint64_t add_payload(struct mct_tcp_send *s, struct mct_tcp_frame *f, uint64_t offset,
                            const uint8_t *whole, size_t *room)
{
    while (offset<f->payload && * room> 0 && s->niov < MCT_TCP_SEND_IOVS - 2) {
        size_t n = (size_t)min_u64(min_u64(f->payload - offset, *room), MCT_TCP_CHUNK);
        const uint8_t *at = whole != NULL ? whole + offset : locate(f, offset, n);

        if (at == NULL) {
            if (f->filler_from == UINT64_MAX)
                f->filler_from = offset;
            n = n < sizeof(zeros) ? n : sizeof(zeros);
            add_iov(s, zeros, n, NULL);
        } else {
            if ((f->flags & MCT_TCP_CHECKSUM) == 0 && n >= MCT_TCP_DIRECT && !s->zero_copy) {
                announce(at, n);
            } else if ((f->flags & MCT_TCP_CHECKSUM) != 0 && offset + n > f->crc_done) {
                uint64_t from = f->crc_done > offset ? f->crc_done - offset : 0;

                f->crc = mct_crc32c(f->crc, at + from, n - (size_t)from);
                f->crc_done = offset + n;
            }
            add_iov(s, at, n, f);
        }
        offset += n;
        *room -= n;
    }
    return offset;
}

/* One frame more; true: all of it is in, or it left the out list to be fetched. */
static bool add_frame(struct mct_tcp_send *s, struct mct_tcp_frame *f, size_t *room)
{
    const uint8_t *whole = NULL;
    uint64_t at, end;
    bool away = false;

    if (f->sent == 0 && f->type == MCT_TCP_DATA)
        whole = open_answer(f, &away);
    if (away) {
        mct_tcp_stage_fetch(f);
        return true;
    }
    s->frames[s->nframes++] = f;
    f->refs++;
    if (f->sent < MCT_TCP_HEADER)
        add_header(s, f);
    if (f->payload == 0)
        return true;
    end = MCT_TCP_HEADER + f->payload;
    at = f->sent < MCT_TCP_HEADER ? MCT_TCP_HEADER : f->sent;
    if (at < end) {
        if (f->stop == MCS_OK &&
            f->payload - (at - MCT_TCP_HEADER) >= f->conn->t->env.zero_copy_min)
            s->zero_copy = f->conn->zero_copy;
        at = MCT_TCP_HEADER + add_payload(s, f, at - MCT_TCP_HEADER, whole, room);
        if (at < end)
            return false;
    }
    if (f->sent <= end) /* one that went out in part stays what it was */
        mct_tcp_trailer_make(&f->trailer, f->id, f->stop,
                             (f->flags & MCT_TCP_CHECKSUM) != 0 && f->stop == MCS_OK ? f->crc : 0);
    add_meta(s, (const uint8_t *)&f->trailer + (at - end), MCT_TCP_TRAILER - (at - end));
    return true;
}

/* A place in the table, at the moment of sending: so ids never have gaps. */
static bool give_id(struct mct_tcp_frame *f)
{
    struct mct_tcp_conn *c = f->conn;

    if (c->link == NULL || f->id != 0)
        return true;
    if (c->table[c->next_id & c->mask] != NULL)
        return false; /* an old request is not answered yet */
    f->id = c->next_id++;
    c->table[f->id & c->mask] = f;
    return true;
}

static void send_done(struct mct_io *io, int res, uint32_t flags);

static struct mct_tcp_send *take_send(struct mct_tcp_conn *c)
{
    struct mct_tcp_send *s = c->idle;

    if (s != NULL) {
        c->idle = s->next;
    } else if (c->sends < MCT_TCP_SENDS) {
        s = malloc(sizeof(*s));
        if (s == NULL)
            return NULL; /* one that is out comes back */
        c->sends++;
        s->conn = c;
    } else {
        return NULL;
    }
    s->io.done = send_done;
    s->nframes = s->niov = 0;
    s->meta_size = 0;
    s->zero_copy = s->canceled = false;
    return s;
}

static void gather(struct mct_tcp_conn *c)
{
    struct mct_tcp_send *s;
    size_t room = c->t->env.checksum ? MCT_TCP_SEND_SUMMED : MCT_TCP_SEND;

    if (c->closing || c->active != NULL || c->head == NULL || (s = take_send(c)) == NULL)
        return;
    for (struct mct_tcp_frame *f = c->head, *next; f != NULL; f = next) {
        next = f->next;
        if (room == 0 || s->nframes == MCT_TCP_SEND_FRAMES || s->niov + 3 > MCT_TCP_SEND_IOVS - 2 ||
            (c->careful > 0 && s->nframes > 0) || !give_id(f) || !add_frame(s, f, &room))
            break;
    }
    if (c->careful > 0)
        c->careful--;
    if (s->nframes == 0) {
        s->next = c->idle;
        c->idle = s;
        return;
    }
    s->msg = (struct msghdr){.msg_iov = s->iov, .msg_iovlen = s->niov};
    c->active = s;
    if (s->zero_copy)
        mct_uring_sendmsg_zc(c->t->env.uring, &s->io, c->fd, &s->msg, MSG_WAITALL | MSG_NOSIGNAL);
    else
        mct_uring_sendmsg(c->t->env.uring, &s->io, c->fd, &s->msg, MSG_WAITALL | MSG_NOSIGNAL);
}

static bool may_wait(const struct mct_tcp_conn *c, bool last)
{
    return c->link == NULL && !c->closing && c->queued != 0 && c->queued == c->bare &&
           c->bare < MCT_TCP_HELD && (!last || c->progress == c->t->turns);
}

void mct_tcp_flush(struct mct *t, bool last)
{
    struct mct_tcp_conn *kept = NULL;

    while (t->ready != NULL) {
        struct mct_tcp_conn *c = t->ready;

        t->ready = c->ready_next;
        if (may_wait(c, last)) {
            c->ready_next = kept;
            kept = c;
            continue;
        }
        c->ready = false;
        gather(c);
    }
    t->ready = kept; /* there is a next turn for who is in this list */
}

/* Payload bytes of [from, from + n) of the frame, and how many of them were filler. */
static void count_sent(struct mct_tcp_frame *f, uint64_t from, uint64_t n)
{
    uint64_t first = from < MCT_TCP_HEADER ? 0 : from - MCT_TCP_HEADER;
    uint64_t last = from + n < MCT_TCP_HEADER ? 0 : from + n - MCT_TCP_HEADER;

    last = min_u64(last, f->payload);
    first = min_u64(first, last);
    if (f->filler_from < last) {
        uint64_t filler = f->filler_from > first ? f->filler_from : first;

        mct_tcp_count(f->conn->t, filler_bytes, last - filler);
        last = filler;
    }
    mct_tcp_count(f->conn->t, sent_bytes, last - first);
}

/* The kernel took n bytes more of the out list. */
static void advance(struct mct_tcp_conn *c, uint64_t n)
{
    struct mct_tcp_frame *f;

    while (n > 0 && (f = c->head) != NULL) {
        uint64_t take = min_u64(n, mct_tcp_total(f) - f->sent);

        if (f->payload != 0)
            count_sent(f, f->sent, take);
        f->sent += take;
        n -= take;
        if (f->sent == mct_tcp_total(f))
            mct_tcp_withdraw(f);
    }
    if (c->link == NULL)
        return;
    /* after a short send: those of which nothing went out give their ids back */
    f = c->head != NULL && c->head->sent > 0 ? c->head->next : c->head;
    if (f != NULL && f->id != 0)
        c->next_id = f->id;
    for (; f != NULL && f->id != 0; f = f->next) {
        /* its frame must not be used again while what came for it is put into its memory */
        if (f->answered || f == c->rx.frame)
            mct_tcp_nonsense(c, "a request was answered before it was sent");
        c->table[f->id & c->mask] = NULL;
        f->id = 0;
    }
}

static void retire_answer(struct mct_tcp_frame *f)
{
    if (f->type == MCT_TCP_DATA && f->stop == MCS_OK)
        mct_tcp_count(f->conn->t, served, 1);
    else if (f->type == MCT_TCP_DATA)
        mct_tcp_count(f->conn->t, refused, 1);
    mct_tcp_frame_put(f);
}

static void release(struct mct_tcp_send *s)
{
    struct mct_tcp_conn *c = s->conn;

    s->next = c->idle;
    c->idle = s;
    for (unsigned i = 0; i < s->nframes; i++) {
        struct mct_tcp_frame *f = s->frames[i];

        if (--f->refs > 0 || c->closing)
            continue;
        if (c->link != NULL)
            mct_tcp_request_check_end(f);
        else if (!f->queued)
            retire_answer(f);
    }
}

/* The notification of a zero-copy send: its memory is free. */
static void notified(struct mct_tcp_send *s, int res)
{
    struct mct_tcp_conn *c = s->conn;

    for (struct mct_tcp_send **p = &c->awaiting; *p != NULL; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    if (((uint32_t)res & MCT_IO_COPIED) != 0) {
        mct_tcp_count(c->t, zero_copy_copied, 1);
        if (++c->copied >= MCT_TCP_COPIED_MAX)
            c->zero_copy = false; /* this way always copies: then the plain kind is cheaper */
    } else {
        mct_tcp_count(c->t, zero_copy, 1);
        c->copied = 0;
    }
    release(s);
    mct_tcp_ready(c);
}

/* Memory of the first frame is gone; or, when others went with it, of one of them: they go one by one
 * for a while. */
static void fault(struct mct_tcp_conn *c, const struct mct_tcp_send *s)
{
    struct mct_tcp_frame *f = c->head;

    if (s->nframes > 1)
        c->careful = MCT_TCP_SEND_FRAMES;
    else if (f == NULL || f->payload == 0 || f->sent > MCT_TCP_HEADER + f->payload)
        mct_tcp_close(c, -EFAULT, "a send met memory that is not there");
    else
        f->stop = MCS_MEMORY_FAULT;
}

static void send_done(struct mct_io *io, int res, uint32_t flags)
{
    struct mct_tcp_send *s = (struct mct_tcp_send *)(void *)io;
    struct mct_tcp_conn *c = s->conn;

    if ((flags & MCT_IO_NOTIF) != 0) {
        notified(s, res);
        return;
    }
    c->active = NULL;
    advance(c, res > 0 ? (uint64_t)res : 0); /* also at the end: it says what is settled */
    if (!c->closing) {
        if (res == -EFAULT)
            fault(c, s);
        else if (s->zero_copy &&
                 (res == -ENOMEM || res == -ENOBUFS || res == -EOPNOTSUPP || res == -EINVAL))
            c->zero_copy = false; /* pinned memory is limited, or the socket cannot */
        else if (res < 0 && res != -ECANCELED && res != -EAGAIN && res != -EINTR &&
                 res != -ENOBUFS && res != -ENOMEM)
            mct_tcp_close(c, res, "a send failed");
    }
    if ((flags & MCT_IO_MORE) != 0) {
        s->next = c->awaiting;
        c->awaiting = s;
        if (!c->closing && c->link != NULL)
            for (unsigned i = 0; i < s->nframes; i++)
                mct_tcp_request_check_end(s->frames[i]); /* one of them may be waited for */
    } else {
        release(s);
    }
    mct_tcp_ready(c);
}
