/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of peers about this host's memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tcp.h"
#include "shm/failpoint.h"

uint16_t mct_tcp_resolve(struct mct_tcp_conn *c, enum mct_op op, const struct mct_request *r,
                         uint8_t **pointer)
{
    const struct mct_host *host = &c->t->env.host;
    struct mct_request request = *r;
    void *p = NULL;
    uint16_t status;

    request.op = op;
    status = host->resolve(host->context, c->visitor, &request, &p);
    *pointer = status == MCS_OK ? p : NULL;
    return status;
}

/* The place of a visitor's tombstones in their list, or its end. */
static struct mct_tcp_tombstones **find_tombstones(struct mct *t, const void *visitor)
{
    struct mct_tcp_tombstones **p = &t->tombstones;

    while (*p != NULL && (*p)->visitor != visitor)
        p = &(*p)->next;
    return p;
}

static bool is_buried(const struct mct_tcp_tombstones *s, uint64_t conn)
{
    for (unsigned i = 0; s != NULL && i < MCT_TCP_TOMBSTONES; i++)
        if (s->conns[i] == conn)
            return true;
    return false;
}

/* False: no memory. */
static bool bury(struct mct *t, void *visitor, uint64_t conn)
{
    struct mct_tcp_tombstones **p = find_tombstones(t, visitor);

    if (*p == NULL) {
        *p = calloc(1, sizeof(**p));
        if (*p == NULL)
            return false;
        (*p)->visitor = visitor;
    }
    if (!is_buried(*p, conn)) /* peers ask again */
        (*p)->conns[(*p)->at++ % MCT_TCP_TOMBSTONES] = conn;
    return true;
}

int mct_tcp_serve(struct mct *t, const struct mct_conn *conn, void *visitor)
{
    struct mct_tcp_conn *c;

    if (is_buried(*find_tombstones(t, visitor), conn->id)) {
        close(conn->fd);
        return -ECANCELED;
    }
    return mct_tcp_conn_create(t, conn, NULL, visitor, &c);
}

int mct_tcp_dismiss(struct mct *t, void *visitor)
{
    struct mct_tcp_tombstones **p, *gone;
    int res = 0;

    for (struct mct_tcp_conn *c = t->conns; c != NULL; c = c->next) {
        if (c->link != NULL || c->visitor != visitor)
            continue;
        mct_tcp_close(c, -ECONNABORTED, "its visitor was dismissed");
        res = -EINPROGRESS;
    }
    p = find_tombstones(t, visitor);
    gone = *p;
    if (res == 0 && gone != NULL) { /* the address may name another visitor from now on */
        *p = gone->next;
        free(gone);
    }
    return res;
}

void mct_tcp_answer(struct mct_tcp_frame *f, uint16_t status)
{
    struct mct *t = f->conn->t;

    f->status = status;
    if (status == MCS_OK)
        mct_tcp_count(t, served, 1);
    else
        mct_tcp_count(t, refused, 1);
    if (f->stage != NULL) /* others wait for it */
        t->env.host.unstage(t->env.host.context, f->stage);
    f->stage = NULL;
    mct_tcp_queue(f, false);
}

static void kill_conn(struct mct_tcp_conn *c, struct mct_tcp_frame *f, uint64_t id)
{
    struct mct *t = c->t;
    struct mct_tcp_conn *victim = t->conns;

    MCS_FAILPOINT(kill_served);
    while (victim != NULL &&
           (victim->link != NULL || victim->visitor != c->visitor || victim->id != id))
        victim = victim->next;
    if (victim == c) {
        mct_tcp_nonsense(c, "a connection asked for its own end");
        return;
    }
    if (victim == NULL) {
        /* gone, or not here yet: then it shall not come */
        if (bury(t, c->visitor, id))
            mct_tcp_answer(f, MCS_OK);
        else
            mct_tcp_close(c, -ENOMEM, "there is no memory to remember a killed connection");
        return;
    }
    mct_tcp_count(t, kills, 1);
    f->next = victim->killers; /* answered when its last I/O is over */
    victim->killers = f;
    mct_tcp_close(victim, -ECONNABORTED, "the peer asked for its end");
}

void mct_tcp_request_begin(struct mct_tcp_conn *c)
{
    struct mct_tcp_rx *rx = &c->rx;
    const struct mct_tcp_header *h = &rx->header;
    struct mct_tcp_frame *f;
    struct mct_request r = {.export_index = h->export_index,
                            .incarnation = h->incarnation,
                            .address = h->address,
                            .length = h->length};

    if (MCS_FAIL(serve_request) != 0) {
        mct_tcp_close(c, -ENOMEM, "a test's failpoint");
        return;
    }
    if (h->id != c->expected_id) {
        mct_tcp_nonsense(c, "a request's id did not follow the one before");
        return;
    }
    c->expected_id++;
    f = mct_tcp_frame_get(c); /* there is one: take_header() looked */
    f->id = h->id;
    f->type = mct_tcp_answer_type(h->type);
    switch (h->type) {
    case MCT_TCP_READ:
        f->export_index = h->export_index;
        f->incarnation = h->incarnation;
        f->address = h->address;
        f->length = h->length;
        f->flags = h->flags;
        if (c->t->env.checksum)
            f->flags |= MCT_TCP_CHECKSUM;
        if (MCS_FAIL(serve_read) != 0) {
            mct_tcp_close(c, -ENOMEM, "a test's failpoint");
            return;
        }
        mct_tcp_queue(f, false); /* looked up when it is sent */
        break;
    case MCT_TCP_WRITE:
        rx->frame = f;
        rx->state = MCT_TCP_RX_PAYLOAD;
        rx->status = mct_tcp_resolve(c, MCT_WRITE, &r, &rx->pointer);
        rx->drop = rx->status != MCS_OK;
        if (rx->status == MCS_OK && rx->pointer == NULL) {
            f->export_index = h->export_index;
            f->incarnation = h->incarnation;
            f->address = h->address;
            f->length = h->length;
            mct_tcp_stage_write(f);
        }
        break;
    case MCT_TCP_NOTIFY:
        rx->frame = f;
        rx->state = MCT_TCP_RX_PAYLOAD;
        break;
    case MCT_TCP_KILL:
        kill_conn(c, f, h->address);
        break;
    default:
        mct_tcp_answer(f, MCS_OK); /* PING */
        break;
    }
}

static uint16_t notify(struct mct_tcp_conn *c)
{
    const struct mct_host *host = &c->t->env.host;
    const struct mct_tcp_header *h = &c->rx.header;
    struct mct_request r = {.op = MCT_NOTIFY,
                            .export_index = h->export_index,
                            .incarnation = h->incarnation,
                            .address = h->address,
                            .length = h->length};
    uint64_t bytes = h->task_bytes_lo | (uint64_t)h->task_bytes_hi << 32;

    return host->notify(host->context, c->visitor, &r, h->source, bytes, c->notification,
                        h->name_length, c->notification + h->name_length,
                        (uint32_t)h->length - h->name_length);
}

void mct_tcp_request_end(struct mct_tcp_conn *c, const struct mct_tcp_trailer *trailer)
{
    struct mct_tcp_frame *f = c->rx.frame;
    uint16_t status = c->rx.status;

    c->rx.frame = NULL;
    if (trailer->status != MCS_OK)
        status = MCS_CANCELED; /* what came was filler in the end */
    else if (status == MCS_OK && c->rx.header.type == MCT_TCP_NOTIFY)
        status = notify(c);
    if (MCS_FAIL(serve_applied) != 0) { /* applied, and never answered */
        mct_tcp_close(c, -ENOMEM, "a test's failpoint");
        return;
    }
    if (status == MCS_OK && f->stage != NULL)
        mct_tcp_stage_land(f);
    else
        mct_tcp_answer(f, status);
}

void mct_tcp_target_end(struct mct_tcp_conn *c)
{
    struct mct_tcp_frame *f;

    while ((f = c->killers) != NULL) {
        c->killers = f->next;
        if (!f->conn->closing)
            mct_tcp_answer(f, MCS_OK);
    }
    /* its own questions wait for nothing any more */
    for (struct mct_tcp_conn *other = c->t->conns; other != NULL; other = other->next)
        for (struct mct_tcp_frame **p = &other->killers; *p != NULL;)
            if ((*p)->conn == c)
                *p = (*p)->next;
            else
                p = &(*p)->next;
}
