/* SPDX-License-Identifier: Apache-2.0 */
/* Posting work requests, with all that is wrong to do. */
#include "inside.h"

#include <stdlib.h>
#include <string.h>

static uint64_t order;

static void add_receive(struct receives *r, const struct ibv_recv_wr *wr, const struct device *d,
                        const char *what)
{
    struct receive *v;

    if (r->used == r->depth)
        fake_abort("%s: all %u places of the queue are taken", what, r->depth);
    if (wr->num_sge < 0 || (unsigned)wr->num_sge > r->max_sge || wr->num_sge > FAKE_SGES)
        fake_abort("%s: %d pieces, at most %u were asked for", what, wr->num_sge, r->max_sge);
    v = fake_alloc(sizeof(*v));
    v->id = wr->wr_id;
    v->n = (unsigned)wr->num_sge;
    for (unsigned i = 0; i < v->n; i++) {
        v->sges[i] = wr->sg_list[i];
        if (fake_region_of(d, v->sges[i].lkey, false) == NULL)
            fake_abort("%s: no registration has the lkey 0x%x", what, v->sges[i].lkey);
    }
    *r->end = v;
    r->end = &v->next;
    r->used++;
}

static unsigned receives_of(const struct cq *cq)
{
    unsigned n = 0;

    for (struct fake_object *o = fake_objects; o != NULL; o = o->next) {
        struct srq *srq = FAKE_OF(srq, o, o);

        if (!o->alive || o->kind != FAKE_SRQ)
            continue;
        for (struct fake_object *p = fake_objects; p != NULL; p = p->next)
            if (p->alive && p->kind == FAKE_QP && FAKE_OF(qp, o, p)->srq == srq &&
                FAKE_OF(qp, o, p)->recv_cq == cq) {
                n += srq->r.used;
                break;
            }
    }
    return n;
}

/* All that is posted may complete before the next poll: then, too, the queue must have places. */
static void check_room(struct cq *cq)
{
    struct fake_stats *s = &cq->o.device->stats;
    unsigned receives = receives_of(cq), most = cq->used + cq->coming + receives;

    if (most > s->most_completions)
        s->most_completions = most;
    if (most > (unsigned)cq->v.cqe)
        fake_abort(
            "a completion queue of %s can overrun: %u of its %d places are taken, and %u requests "
            "and %u receive buffers are posted whose completions go there",
            cq->o.device->v.name, cq->used, cq->v.cqe, cq->coming, receives);
}

static void check_pieces(const struct qp *q, const struct ibv_send_wr *wr, struct request *w)
{
    bool reads = wr->opcode == IBV_WR_RDMA_READ;

    for (unsigned i = 0; i < w->n; i++) {
        const struct ibv_sge *g = &wr->sg_list[i];

        w->sges[i] = *g;
        w->length += g->length;
        if ((wr->send_flags & IBV_SEND_INLINE) == 0 && g->length > 0 &&
            fake_inside(fake_region_of(q->o.device, g->lkey, false), q->pd, g->addr, g->length,
                        reads ? IBV_ACCESS_LOCAL_WRITE : 0) == NULL)
            fake_abort("ibv_post_send: the lkey 0x%x of %s does not cover 0x%lx, %u bytes, %s",
                       g->lkey, q->o.device->v.name, (unsigned long)g->addr, g->length,
                       reads ? "for writing" : "for reading");
    }
    if (w->length > q->o.device->v.ports[q->a.port_num - 1].attr.max_msg_sz)
        fake_abort("ibv_post_send: %lu bytes, the port's max_msg_sz is %u",
                   (unsigned long)w->length,
                   q->o.device->v.ports[q->a.port_num - 1].attr.max_msg_sz);
}

static void take_inline(const struct qp *q, const struct ibv_send_wr *wr, struct request *w)
{
    uint64_t at = 0;

    if (wr->opcode == IBV_WR_RDMA_READ)
        fake_abort("ibv_post_send: a READ cannot be inline");
    if (w->length > q->a.cap.max_inline_data)
        fake_abort("ibv_post_send: %lu bytes inline, the queue pair has %u",
                   (unsigned long)w->length, q->a.cap.max_inline_data);
    w->inlined = fake_alloc(w->length + 1);
    for (unsigned i = 0; i < w->n; i++) {
        if (w->sges[i].length > 0)
            memcpy(w->inlined + at, (void *)(uintptr_t)w->sges[i].addr, w->sges[i].length);
        at += w->sges[i].length;
    }
    q->o.device->stats.inlined++;
}

static void post_one(struct qp *q, const struct ibv_send_wr *wr)
{
    struct fake_stats *s = &q->o.device->stats;
    struct request *w;

    if (q->a.qp_state != IBV_QPS_RTS && q->a.qp_state != IBV_QPS_ERR)
        fake_abort("ibv_post_send: the queue pair %u of %s is not in RTS yet (state %d)",
                   q->v.qp_num, q->o.device->v.name, q->a.qp_state);
    if (q->posted - q->reclaimed >= q->a.cap.max_send_wr)
        fake_abort(
            "ibv_post_send: all %u places of the send queue are taken (one is free again when a "
            "completion of it or of a later one was polled)",
            q->a.cap.max_send_wr);
    if (wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_READ &&
        wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM)
        fake_abort("ibv_post_send: the fake does not know opcode %d", wr->opcode);
    if (wr->num_sge < 0 || (unsigned)wr->num_sge > q->a.cap.max_send_sge)
        fake_abort("ibv_post_send: %d pieces, at most %u were asked for", wr->num_sge,
                   q->a.cap.max_send_sge);
    if (wr->opcode == IBV_WR_RDMA_READ && q->a.max_rd_atomic == 0 && q->a.qp_state == IBV_QPS_RTS)
        fake_abort("ibv_post_send: a READ on a queue pair that was made with max_rd_atomic 0");
    w = fake_alloc(sizeof(*w));
    w->id = wr->wr_id;
    w->order = ++order;
    w->sequence = ++q->posted;
    w->opcode = wr->opcode;
    w->flags = wr->send_flags;
    w->n = (unsigned)wr->num_sge;
    w->address = wr->wr.rdma.remote_addr;
    w->rkey = wr->wr.rdma.rkey;
    w->imm = wr->imm_data;
    check_pieces(q, wr, w);
    if (wr->send_flags & IBV_SEND_INLINE)
        take_inline(q, wr, w);
    *q->end = w;
    q->end = &w->next;
    q->outstanding++;
    q->reads += w->opcode == IBV_WR_RDMA_READ;
    q->send_cq->coming++;
    fake_use_regions(q->o.device, w, true);
    s->signalled += (w->flags & IBV_SEND_SIGNALED) != 0;
    if (q->outstanding > s->most_outstanding)
        s->most_outstanding = q->outstanding;
    if (q->reads > s->most_reads)
        s->most_reads = q->reads;
    check_room(q->send_cq);
}

int fake_post_send(struct ibv_qp *v, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct qp *q = FAKE_OF(qp, v, v);
    int error = 0;

    pthread_mutex_lock(&fake_lock);
    fake_need(&q->o, "ibv_post_send");
    q->o.device->stats.doorbells++;
    for (; wr != NULL; wr = wr->next) {
        error = fake_step(FAKE_POST_SEND, q->o.device);
        if (error != 0) {
            *bad = wr;
            break;
        }
        post_one(q, wr);
    }
    fake_run(q);
    fake_leave();
    return error;
}

int fake_post_recv(struct ibv_qp *v, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct qp *q = FAKE_OF(qp, v, v);
    int error = 0;

    pthread_mutex_lock(&fake_lock);
    fake_need(&q->o, "ibv_post_recv");
    if (q->srq != NULL)
        fake_abort("ibv_post_recv: the queue pair has a shared receive queue");
    for (; wr != NULL; wr = wr->next) {
        error = fake_step(FAKE_POST_RECV, q->o.device);
        if (error != 0) {
            *bad = wr;
            break;
        }
        if (q->a.qp_state == IBV_QPS_RESET)
            fake_abort("ibv_post_recv: the queue pair is in RESET");
        add_receive(&q->r, wr, q->o.device, "ibv_post_recv");
        q->recv_cq->coming++;
        check_room(q->recv_cq);
    }
    fake_run_all();
    fake_leave();
    return error;
}

int fake_post_srq_recv(struct ibv_srq *v, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct srq *srq = FAKE_OF(srq, v, v);
    int error = 0;

    pthread_mutex_lock(&fake_lock);
    fake_need(&srq->o, "ibv_post_srq_recv");
    for (; wr != NULL; wr = wr->next) {
        error = fake_step(FAKE_POST_RECV, srq->o.device);
        if (error != 0) {
            *bad = wr;
            break;
        }
        add_receive(&srq->r, wr, srq->o.device, "ibv_post_srq_recv");
    }
    fake_run_all();
    fake_leave();
    return error;
}
