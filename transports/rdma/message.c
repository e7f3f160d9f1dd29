/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications: sent, received, answered. */
#include <errno.h>
#include <string.h>

#include "engine.h"

void mct_rdma_notice_free(struct mct_rdma_notice *n)
{
    n->id = 0;
    n->slice = NULL;
    n->conn->t->unanswered--;
}

void mct_rdma_notices_end(struct mct_rdma_conn *c)
{
    for (unsigned i = 0; i < MCT_RDMA_NOTICES; i++) {
        struct mct_rdma_notice *n = &c->notices[i];
        struct mct_slice *s = n->slice;

        if (n->id == 0)
            continue;
        mct_rdma_notice_free(n);
        if (s == NULL)
            continue;
        s->error = c->error;
        mct_rdma_come_back(c->t, s, MCS_RAIL, false, c->id);
    }
}

/* Answers have no payload, and mostly go inline: then they need no buffer, so that a peer that does not take its
 * answers keeps none from others. */
static bool needs_buffer(const struct mct_rdma_conn *c)
{
    return c->initiator || c->pair->max_inline < sizeof(struct mct_rdma_header);
}

/* Into the connection's chain. It can_send(). */
static void send_message(struct mct_rdma_conn *c, const struct mct_rdma_header *h,
                         const void *payload, struct mct_rdma_notice *notice)
{
    struct mct_rdma_poller *p = c->poller;
    const struct mct_rdma_port *port = p->port;
    struct mct_rdma_sent sent = {.notice = notice, .buffer = MCT_RDMA_NO_BUFFER};
    uint8_t *buffer = (uint8_t *)&c->t->headers[c->t->chained];
    uint32_t size = (uint32_t)sizeof(*h) + h->length;
    struct ibv_send_wr *wr;

    if (needs_buffer(c)) {
        sent.buffer = p->sends[--p->nsends];
        buffer = port->slab + ((uint64_t)port->srq_depth + sent.buffer) * MCT_RDMA_MESSAGE;
    }
    memcpy(buffer, h, sizeof(*h));
    if (h->length != 0)
        memcpy(buffer + sizeof(*h), payload, h->length);
    wr = mct_rdma_chain(c, &sent);
    wr->opcode = IBV_WR_SEND;
    if (size <= c->pair->max_inline)
        wr->send_flags |= IBV_SEND_INLINE;
    wr->sg_list->addr = (uintptr_t)buffer;
    wr->sg_list->length = size;
    wr->sg_list->lkey = port->slab_key;
}

static bool can_send(const struct mct_rdma_conn *c)
{
    /* A peer that asks and does not acknowledge its answers shall not fill queues that others share. */
    if (!c->initiator && c->posted - c->known >= MCT_RDMA_NOTICES)
        return false;
    return (c->poller->nsends != 0 || !needs_buffer(c)) && c->t->chained < MCT_RDMA_CHAIN &&
           mct_rdma_has_room(c, 1);
}

enum mct_rdma_placed mct_rdma_post_notice(struct mct_rdma_conn *c, struct mct_slice *s)
{
    struct mct_rdma_header h = {
        .magic = MCT_RDMA_MAGIC,
        .version = MCT_RDMA_VERSION,
        .type = MCT_RDMA_NOTIFY,
        .name_length = (uint16_t)s->name_length,
        .conn = c->id,
        .address = s->remote_address,
        .incarnation = s->remote_incarnation,
        .source = s->source,
        .bytes = s->bytes,
        .export_index = s->remote_export,
        .length = (uint32_t)s->length,
    };
    unsigned i = 0;

    while (i < MCT_RDMA_NOTICES && c->notices[i].id != 0)
        i++;
    if (i == MCT_RDMA_NOTICES || !can_send(c))
        return MCT_RDMA_NO_ROOM;
    h.id = ++c->notice_id;
    c->notices[i] = (struct mct_rdma_notice){.conn = c, .slice = s, .id = h.id};
    c->t->unanswered++;
    c->asked_at = mcs_ticks();
    s->link_state = &c->notices[i];
    send_message(c, &h, s->local, &c->notices[i]);
    return MCT_RDMA_PLACED;
}

void mct_rdma_probe(struct mct_rdma_conn *c)
{
    const struct mct_rdma_sent sent = {.buffer = MCT_RDMA_NO_BUFFER};
    struct mct *t = c->t;
    struct ibv_send_wr *wr;
    unsigned i = 0;

    /* what is on its way finds out by itself */
    if (t->unanswered == 0 || !c->initiator || c->posted != c->known ||
        mcs_ticks() - c->asked_at < t->env.tick_hz)
        return;
    while (i < MCT_RDMA_NOTICES && c->notices[i].id == 0)
        i++;
    if (i == MCT_RDMA_NOTICES || t->chained == MCT_RDMA_CHAIN || !mct_rdma_has_room(c, 1))
        return;
    c->asked_at = mcs_ticks();
    wr = mct_rdma_chain(c, &sent);
    wr->opcode = IBV_WR_RDMA_WRITE; /* of no byte: it needs no key, and only the devices see it */
    wr->num_sge = 0;
    mct_rdma_flush(t);
}

/* ---- received -------------------------------------------------------------------- */

static void answered(struct mct_rdma_conn *c, const struct mct_rdma_header *h)
{
    unsigned i = 0;
    struct mct_slice *s;

    while (i < MCT_RDMA_NOTICES && (h->id == 0 || c->notices[i].id != h->id))
        i++;
    if (i == MCT_RDMA_NOTICES) {
        mct_rdma_nonsense(c,
                          "an answer's id belongs to no notification, or its second answer came");
        return;
    }
    s = c->notices[i].slice;
    mct_rdma_notice_free(&c->notices[i]);
    if (s == NULL)
        return;
    s->error = 0;
    if (h->status == MCS_OK)
        mct_rdma_count(c->t, sent_bytes, s->length);
    mct_rdma_come_back(c->t, s, h->status < MCS_STATUS_COUNT ? h->status : MCS_INTERNAL, true,
                       c->id);
}

static void notify(struct mct_rdma_conn *c, const struct mct_rdma_header *h, const uint8_t *payload)
{
    struct mct *t = c->t;
    const struct mct_host *host = &t->env.host;
    struct mct_request r = {.op = MCT_NOTIFY,
                            .export_index = h->export_index,
                            .incarnation = h->incarnation,
                            .address = h->address,
                            .length = h->length};
    uint16_t status;

    if (h->id != c->notice_id + 1) {
        mct_rdma_nonsense(c, "a notification's id did not follow the one before");
        return;
    }
    if (c->nanswers == MCT_RDMA_NOTICES) {
        mct_rdma_nonsense(c, "more notifications came than may wait for their answer");
        return;
    }
    c->notice_id++;
    status = host->notify(host->context, c->visitor, &r, h->source, h->bytes, payload,
                          h->name_length, payload + h->name_length, h->length - h->name_length);
    if (status == MCS_OK) {
        mct_rdma_count(t, served, 1);
        mct_rdma_count(t, received_bytes, h->length);
    } else {
        mct_rdma_count(t, refused, 1);
    }
    c->answers[c->nanswers].id = h->id;
    c->answers[c->nanswers++].status = status;
    t->answers++;
}

/* NULL: well-formed. */
static const char *wrong(const struct mct_rdma_header *h, uint32_t size, bool initiator)
{
    if (h->magic != MCT_RDMA_MAGIC || h->version != MCT_RDMA_VERSION)
        return "a message with another magic or version came";
    if (h->length != size - sizeof(*h))
        return "a message's length is not what came";
    if (h->type == MCT_RDMA_NOTIFY && !initiator)
        return h->status != 0 || h->name_length > h->length || h->name_length > MCS_NOTIFY_NAME_MAX
                   ? "a notification's name is longer than it may be, or it has a status"
                   : NULL;
    if (h->type == MCT_RDMA_DONE && initiator)
        return h->length != 0 || h->name_length != 0 ? "an answer has a payload" : NULL;
    return "a message came of a type that this end of a connection does not take";
}

/* Whose it may be, when it does not say so. */
static struct mct_rdma_conn *suspect(struct mct_rdma_poller *p, uint32_t qpn)
{
    for (struct mct_rdma_conn *c = p->t->conns; c != NULL; c = c->next)
        if (!c->ending && c->poller == p && c->pair->own.qpn == qpn)
            return c;
    return NULL;
}

void mct_rdma_message(struct mct_rdma_poller *p, const struct ibv_wc *wc, const uint8_t *buffer)
{
    struct mct *t = p->t;
    struct mct_rdma_header h;
    struct mct_rdma_conn *c;
    const char *why;

    if (wc->status == IBV_WC_WR_FLUSH_ERR)
        return;
    if (wc->status != IBV_WC_SUCCESS || wc->byte_len < sizeof(h) ||
        wc->byte_len > MCT_RDMA_MESSAGE) {
        c = suspect(p, wc->qp_num);
        if (c != NULL)
            mct_rdma_nonsense(c, "a message came that is shorter or longer than any may be");
        return;
    }
    memcpy(&h, buffer, sizeof(h));
    /* The number says from which queue pair it is, the id whether that is the one of now. */
    c = mct_rdma_conn_find(t, h.conn, h.type != MCT_RDMA_NOTIFY);
    if (c == NULL || c->poller != p || c->ending || c->pair->own.qpn != wc->qp_num) {
        bool stale = c != NULL && c->ending;

        mct_rdma_count(t, dropped, 1);
        c = stale ? NULL : suspect(p, wc->qp_num);
        if (c != NULL)
            mct_rdma_nonsense(c, "a message came that names another connection");
        return;
    }
    why = wrong(&h, wc->byte_len, c->initiator);
    if (why != NULL)
        mct_rdma_nonsense(c, why);
    else if (c->initiator)
        answered(c, &h);
    else
        notify(c, &h, buffer + sizeof(h));
}

static void answer_conn(struct mct_rdma_conn *c)
{
    unsigned n = 0;

    while (n < c->nanswers && can_send(c)) {
        struct mct_rdma_header h = {
            .magic = MCT_RDMA_MAGIC,
            .version = MCT_RDMA_VERSION,
            .type = MCT_RDMA_DONE,
            .status = c->answers[n].status,
            .conn = c->id,
            .id = c->answers[n].id,
        };

        send_message(c, &h, NULL, NULL);
        n++;
    }
    c->nanswers -= n;
    c->t->answers -= n;
    memmove(c->answers, c->answers + n, c->nanswers * sizeof(c->answers[0]));
}

void mct_rdma_answer(struct mct *t)
{
    if (t->answers == 0)
        return;
    for (struct mct_rdma_conn *c = t->conns; c != NULL; c = c->next)
        if (c->nanswers != 0 && !c->ending)
            answer_conn(c);
    mct_rdma_flush(t);
}
