/* SPDX-License-Identifier: Apache-2.0 */
/* Channels, completion queues, shared receive queues, queue pairs: their lives and states. */
#include "inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FIRST_QPN 17u

static struct context *context_of(struct ibv_context *c)
{
    return FAKE_OF(context, v.context, c);
}

/* ---- channels -------------------------------------------------------------------- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct context *c = context_of(context);
    int error = fake_enter_on(FAKE_CREATE_CHANNEL, &c->o, "ibv_create_comp_channel");
    struct channel *ch = NULL;

    if (error == 0 && c->o.device->fatal)
        error = EIO;
    if (error == 0) {
        ch = fake_alloc(sizeof(*ch));
        ch->events_end = &ch->events;
        ch->v.context = context;
        ch->v.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
        if (ch->v.fd < 0)
            fake_abort("eventfd: %s", strerror(errno));
        c->users++;
        fake_live(&ch->o, FAKE_CHANNEL, c->o.device, &ch->v, sizeof(ch->v));
    }
    fake_leave();
    errno = error != 0 ? error : errno;
    return ch != NULL ? &ch->v : NULL;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *v)
{
    struct channel *ch = FAKE_OF(channel, v, v);
    int error = fake_enter_on(FAKE_DESTROY_CHANNEL, &ch->o, "ibv_destroy_comp_channel");

    if (error == 0) {
        if (ch->users != 0)
            fake_abort("ibv_destroy_comp_channel: %u completion queues use it", ch->users);
        close(ch->v.fd);
        context_of(v->context)->users--;
        fake_die(&ch->o);
    }
    fake_leave();
    return error;
}

int ibv_get_cq_event(struct ibv_comp_channel *v, struct ibv_cq **cq, void **context)
{
    struct channel *ch = FAKE_OF(channel, v, v);
    struct event *e = NULL;
    eventfd_t one;

    pthread_mutex_lock(&fake_lock);
    fake_need(&ch->o, "ibv_get_cq_event");
    fake_leave();
    while (e == NULL) {
        if (eventfd_read(v->fd, &one) != 0)
            return -1;
        pthread_mutex_lock(&fake_lock);
        e = ch->events; /* none: its queue is gone */
        if (e != NULL) {
            ch->events = e->next;
            if (ch->events == NULL)
                ch->events_end = &ch->events;
            *cq = &FAKE_OF(cq, o, e->object)->v;
            *context = (*cq)->cq_context;
            FAKE_OF(cq, o, e->object)->unacked++;
            free(e);
        }
        fake_leave();
    }
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *v, unsigned int n)
{
    struct cq *cq = FAKE_OF(cq, v, v);

    pthread_mutex_lock(&fake_lock);
    fake_need(&cq->o, "ibv_ack_cq_events");
    if (n > cq->unacked)
        fake_abort("ibv_ack_cq_events: %u acknowledged, %u were got", n, cq->unacked);
    cq->unacked -= n;
    fake_leave();
}

/* ---- completion queues ----------------------------------------------------------- */

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int vector)
{
    struct context *c = context_of(context);
    int error = fake_enter_on(FAKE_CREATE_CQ, &c->o, "ibv_create_cq");
    struct cq *cq = NULL;

    if (error == 0 && c->o.device->fatal)
        error = EIO;
    if (error == 0 && (cqe < 1 || cqe > c->o.device->v.attr.max_cqe || vector < 0 ||
                       vector >= context->num_comp_vectors))
        error = EINVAL;
    if (error == 0) {
        if (channel != NULL) {
            fake_need(&FAKE_OF(channel, v, channel)->o, "ibv_create_cq: its channel");
            FAKE_OF(channel, v, channel)->users++;
        }
        cq = fake_alloc(sizeof(*cq));
        cq->ring = fake_alloc((unsigned)cqe * sizeof(*cq->ring));
        cq->v.context = context;
        cq->v.channel = channel;
        cq->v.cq_context = cq_context;
        cq->v.cqe = cqe; /* not one more than asked for, though adapters often round up */
        c->users++;
        fake_live(&cq->o, FAKE_CQ, c->o.device, &cq->v, sizeof(cq->v));
    }
    fake_leave();
    errno = error != 0 ? error : errno;
    return cq != NULL ? &cq->v : NULL;
}

int ibv_destroy_cq(struct ibv_cq *v)
{
    struct cq *cq = FAKE_OF(cq, v, v);
    int error = fake_enter_on(FAKE_DESTROY_CQ, &cq->o, "ibv_destroy_cq");

    if (error != 0)
        goto out;
    if (cq->users != 0)
        fake_abort("ibv_destroy_cq: %u queue pairs use it", cq->users);
    if (cq->unacked != 0 || cq->unacked_async != 0)
        fake_abort(
            "ibv_destroy_cq: would wait for ever for %u events that were got and not acknowledged",
            cq->unacked + cq->unacked_async);
    fake_untell(&cq->o);
    if (v->channel != NULL) {
        struct channel *ch = FAKE_OF(channel, v, v->channel);

        for (struct event **e = &ch->events; *e != NULL;) {
            struct event *gone = *e;

            if (gone->object != &cq->o) {
                e = &gone->next;
                continue;
            }
            *e = gone->next;
            free(gone);
        }
        ch->events_end = &ch->events;
        while (*ch->events_end != NULL)
            ch->events_end = &(*ch->events_end)->next;
        ch->users--;
    }
    context_of(v->context)->users--;
    fake_die(&cq->o);
out:
    fake_leave();
    return error;
}

/* ---- shared receive queues ------------------------------------------------------- */

struct ibv_srq *ibv_create_srq(struct ibv_pd *vpd, struct ibv_srq_init_attr *init)
{
    struct pd *pd = FAKE_OF(pd, v, vpd);
    int error = fake_enter_on(FAKE_CREATE_SRQ, &pd->o, "ibv_create_srq");
    const struct ibv_device_attr *most = &pd->o.device->v.attr;
    struct srq *srq = NULL;

    if (error == 0 && pd->o.device->fatal)
        error = EIO;
    if (error == 0 && (init->attr.max_wr < 1 || init->attr.max_wr > (uint32_t)most->max_srq_wr ||
                       init->attr.max_sge > (uint32_t)most->max_srq_sge))
        error = EINVAL;
    if (error == 0) {
        srq = fake_alloc(sizeof(*srq));
        srq->pd = pd;
        srq->v.context = vpd->context;
        srq->v.srq_context = init->srq_context;
        srq->v.pd = vpd;
        fake_receives_init(&srq->r, init->attr.max_wr, init->attr.max_sge);
        pd->users++;
        fake_live(&srq->o, FAKE_SRQ, pd->o.device, &srq->v, sizeof(srq->v));
    }
    fake_leave();
    errno = error != 0 ? error : errno;
    return srq != NULL ? &srq->v : NULL;
}

int ibv_modify_srq(struct ibv_srq *v, struct ibv_srq_attr *attr, int mask)
{
    struct srq *srq = FAKE_OF(srq, v, v);
    int error = fake_enter_on(FAKE_MODIFY_SRQ, &srq->o, "ibv_modify_srq");

    if (error == 0 && (mask != IBV_SRQ_LIMIT || attr->srq_limit > srq->r.depth))
        error = EINVAL;
    if (error == 0)
        srq->limit = attr->srq_limit;
    fake_leave();
    return error;
}

int ibv_query_srq(struct ibv_srq *v, struct ibv_srq_attr *attr)
{
    struct srq *srq = FAKE_OF(srq, v, v);
    int error = fake_enter_on(FAKE_MODIFY_SRQ, &srq->o, "ibv_query_srq");

    if (error == 0)
        *attr = (struct ibv_srq_attr){
            .max_wr = srq->r.depth, .max_sge = srq->r.max_sge, .srq_limit = srq->limit};
    fake_leave();
    return error;
}

static void drop_receives(struct receives *r)
{
    while (r->first != NULL) {
        struct receive *gone = r->first;

        r->first = gone->next;
        free(gone);
    }
    fake_receives_init(r, r->depth, r->max_sge);
}

int ibv_destroy_srq(struct ibv_srq *v)
{
    struct srq *srq = FAKE_OF(srq, v, v);
    int error = fake_enter_on(FAKE_DESTROY_SRQ, &srq->o, "ibv_destroy_srq");

    if (error != 0)
        goto out;
    if (srq->users != 0)
        fake_abort("ibv_destroy_srq: %u queue pairs use it", srq->users);
    if (srq->unacked != 0)
        fake_abort(
            "ibv_destroy_srq: would wait for ever for events that were got and not acknowledged");
    fake_untell(&srq->o);
    drop_receives(&srq->r);
    srq->pd->users--;
    fake_die(&srq->o);
out:
    fake_leave();
    return error;
}

/* ---- queue pairs ----------------------------------------------------------------- */

/* The lowest number that is free: adapters use them again at once, and each begins with the same. */
static uint32_t free_number(const struct device *d)
{
    for (uint32_t n = FIRST_QPN;; n++) {
        bool taken = false;

        for (struct fake_object *o = fake_objects; o != NULL && !taken; o = o->next)
            taken = o->alive && o->kind == FAKE_QP && o->device == d &&
                    FAKE_OF(qp, o, o)->v.qp_num == n;
        if (!taken)
            return n;
    }
}

static unsigned pairs_of(const struct device *d)
{
    unsigned n = 0;

    for (struct fake_object *o = fake_objects; o != NULL; o = o->next)
        n += o->alive && o->kind == FAKE_QP && o->device == d;
    return n;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *vpd, struct ibv_qp_init_attr *init)
{
    struct pd *pd = FAKE_OF(pd, v, vpd);
    int error = fake_enter_on(FAKE_CREATE_QP, &pd->o, "ibv_create_qp");
    struct device *d = pd->o.device;
    const struct ibv_device_attr *most = &d->v.attr;
    const struct ibv_qp_cap *cap = &init->cap;
    struct qp *q = NULL;

    if (error == 0 && d->fatal)
        error = EIO;
    if (error == 0 &&
        (init->qp_type != IBV_QPT_RC || init->send_cq == NULL || init->recv_cq == NULL ||
         cap->max_send_wr > (uint32_t)most->max_qp_wr ||
         cap->max_recv_wr > (uint32_t)most->max_qp_wr ||
         cap->max_send_sge > (uint32_t)most->max_sge ||
         cap->max_recv_sge > (uint32_t)most->max_sge || cap->max_inline_data > d->v.max_inline))
        error = EINVAL;
    if (error == 0 && pairs_of(d) >= (unsigned)most->max_qp)
        error = ENOMEM;
    if (error != 0)
        goto out;
    q = fake_alloc(sizeof(*q));
    q->pd = pd;
    q->send_cq = FAKE_OF(cq, v, init->send_cq);
    q->recv_cq = FAKE_OF(cq, v, init->recv_cq);
    q->srq = init->srq != NULL ? FAKE_OF(srq, v, init->srq) : NULL;
    fake_need(&q->send_cq->o, "ibv_create_qp: its completion queue");
    fake_need(&q->recv_cq->o, "ibv_create_qp: its completion queue");
    q->send_cq->users++;
    q->recv_cq->users++;
    if (q->srq != NULL) {
        fake_need(&q->srq->o, "ibv_create_qp: its shared receive queue");
        q->srq->users++;
    }
    q->signal_all = init->sq_sig_all != 0;
    q->end = &q->first;
    q->a.cap = *cap;
    q->a.qp_state = IBV_QPS_RESET;
    fake_receives_init(&q->r, q->srq != NULL ? 0 : cap->max_recv_wr, cap->max_recv_sge);
    q->v = (struct ibv_qp){
        .context = vpd->context,
        .qp_context = init->qp_context,
        .pd = vpd,
        .send_cq = init->send_cq,
        .recv_cq = init->recv_cq,
        .srq = init->srq,
        .qp_num = free_number(d),
        .state = IBV_QPS_RESET,
        .qp_type = IBV_QPT_RC,
    };
    pd->users++;
    fake_live(&q->o, FAKE_QP, d, &q->v, sizeof(q->v));
out:
    fake_leave();
    errno = error != 0 ? error : errno;
    return q != NULL ? &q->v : NULL;
}

int ibv_destroy_qp(struct ibv_qp *v)
{
    struct qp *q = FAKE_OF(qp, v, v);
    int error = fake_enter_on(FAKE_DESTROY_QP, &q->o, "ibv_destroy_qp");

    if (error != 0)
        goto out;
    if (q->unacked != 0)
        fake_abort(
            "ibv_destroy_qp: would wait for ever for %u events that were got and not acknowledged",
            q->unacked);
    fake_untell(&q->o);
    fake_qp_forget(q);
    drop_receives(&q->r);
    q->send_cq->users--;
    q->recv_cq->users--;
    if (q->srq != NULL)
        q->srq->users--;
    q->pd->users--;
    fake_die(&q->o);
out:
    fake_leave();
    return error;
}

int ibv_query_qp(struct ibv_qp *v, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init)
{
    struct qp *q = FAKE_OF(qp, v, v);
    int error = fake_enter_on(FAKE_QUERY_QP, &q->o, "ibv_query_qp");

    (void)mask;
    if (error == 0 && q->o.device->fatal)
        error = EIO;
    if (error == 0) {
        *attr = q->a;
        attr->cur_qp_state = q->a.qp_state;
        *init = (struct ibv_qp_init_attr){
            .qp_context = v->qp_context,
            .send_cq = v->send_cq,
            .recv_cq = v->recv_cq,
            .srq = v->srq,
            .cap = q->a.cap,
            .qp_type = IBV_QPT_RC,
            .sq_sig_all = q->signal_all,
        };
    }
    fake_leave();
    return error;
}

/* What a step needs, and may have, beside IBV_QP_STATE: as the kernel's table for RC has it. */
static const struct step {
    enum ibv_qp_state from, to;
    int needs, may;
} steps[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
         IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
         IBV_QP_PATH_MIG_STATE},
};

static bool is_step(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++)
        if (steps[i].from == from && steps[i].to == to)
            return (steps[i].needs & ~mask) == 0 &&
                   (mask & ~(steps[i].needs | steps[i].may | IBV_QP_STATE)) == 0;
    return false;
}

static bool makes_sense(const struct qp *q, const struct ibv_qp_attr *a, int mask)
{
    const struct device *d = q->o.device;
    unsigned p = (mask & IBV_QP_PORT) ? a->port_num : q->a.port_num;
    const struct fake_port *port;

    if (p < 1 || p > d->v.nports)
        return false;
    port = &d->v.ports[p - 1];
    if ((mask & IBV_QP_PKEY_INDEX) && a->pkey_index != 0)
        return false;
    if ((mask & IBV_QP_PATH_MTU) &&
        (a->path_mtu < IBV_MTU_256 || a->path_mtu > port->attr.active_mtu))
        return false;
    if ((mask & IBV_QP_AV)) {
        bool ethernet = port->attr.link_layer == IBV_LINK_LAYER_ETHERNET;

        if (a->ah_attr.port_num != p || (ethernet && !a->ah_attr.is_global))
            return false;
        if (a->ah_attr.is_global &&
            (a->ah_attr.grh.sgid_index >= FAKE_GIDS ||
             memcmp(port->gids[a->ah_attr.grh.sgid_index].gid, (uint8_t[16]){0}, 16) == 0))
            return false;
    }
    if (((mask & IBV_QP_RQ_PSN) && a->rq_psn >> 24 != 0) ||
        ((mask & IBV_QP_SQ_PSN) && a->sq_psn >> 24 != 0) ||
        ((mask & IBV_QP_DEST_QPN) && a->dest_qp_num >> 24 != 0))
        return false;
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a->max_dest_rd_atomic > d->v.attr.max_qp_rd_atom)
        return false;
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a->max_rd_atomic > d->v.attr.max_qp_init_rd_atom)
        return false;
    return !((mask & IBV_QP_TIMEOUT) && a->timeout > 31) &&
           !((mask & IBV_QP_RETRY_CNT) && a->retry_cnt > 7) &&
           !((mask & IBV_QP_RNR_RETRY) && a->rnr_retry > 7);
}

static void take(struct ibv_qp_attr *to, const struct ibv_qp_attr *a, int mask)
{
    if (mask & IBV_QP_PKEY_INDEX)
        to->pkey_index = a->pkey_index;
    if (mask & IBV_QP_PORT)
        to->port_num = a->port_num;
    if (mask & IBV_QP_ACCESS_FLAGS)
        to->qp_access_flags = a->qp_access_flags;
    if (mask & IBV_QP_AV)
        to->ah_attr = a->ah_attr;
    if (mask & IBV_QP_PATH_MTU)
        to->path_mtu = a->path_mtu;
    if (mask & IBV_QP_DEST_QPN)
        to->dest_qp_num = a->dest_qp_num;
    if (mask & IBV_QP_RQ_PSN)
        to->rq_psn = a->rq_psn;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
        to->max_dest_rd_atomic = a->max_dest_rd_atomic;
    if (mask & IBV_QP_MIN_RNR_TIMER)
        to->min_rnr_timer = a->min_rnr_timer;
    if (mask & IBV_QP_TIMEOUT)
        to->timeout = a->timeout;
    if (mask & IBV_QP_RETRY_CNT)
        to->retry_cnt = a->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY)
        to->rnr_retry = a->rnr_retry;
    if (mask & IBV_QP_SQ_PSN)
        to->sq_psn = a->sq_psn;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
        to->max_rd_atomic = a->max_rd_atomic;
}

int ibv_modify_qp(struct ibv_qp *v, struct ibv_qp_attr *attr, int mask)
{
    struct qp *q = FAKE_OF(qp, v, v);
    int error = fake_enter_on(FAKE_MODIFY_QP, &q->o, "ibv_modify_qp");
    enum ibv_qp_state to = (mask & IBV_QP_STATE) ? attr->qp_state : q->a.qp_state;

    if (error == 0 && q->o.device->fatal)
        error = EIO;
    if (error != 0)
        goto out;
    if (to == IBV_QPS_ERR && mask == IBV_QP_STATE) {
        if (q->a.qp_state == IBV_QPS_RESET)
            error = EINVAL;
        else
            fake_qp_error(q);
    } else if (to == IBV_QPS_RESET && mask == IBV_QP_STATE) {
        fake_qp_forget(q);
        q->a = (struct ibv_qp_attr){.cap = q->a.cap, .qp_state = IBV_QPS_RESET};
    } else if (!is_step(q->a.qp_state, to, mask) || !makes_sense(q, attr, mask)) {
        error = EINVAL;
    } else {
        take(&q->a, attr, mask);
        q->a.qp_state = to;
    }
    if (error == 0)
        v->state = to;
out:
    fake_leave();
    return error;
}
