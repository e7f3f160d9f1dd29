/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work requests: doing them, and their completions.
 *
 * A request waits in its queue pair until fake_pace says that it is done; then it is checked as an
 * adapter checks it, at both ends, bytes move, and its completion, if there is one, goes into the queue.
 */
#include "inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#define LIES 64
#define NOT_NOW (-1) /* the receiver has no buffer, and the sender tries for ever */

struct lie {
    const struct device *device, *to;
    unsigned skip, times;
    enum ibv_wc_status status;
    uint64_t landed;
};

static struct lie lies[LIES];
static unsigned nlies;
static struct flight *flights, **flights_end = &flights;
static bool cuts[FAKE_DEVICES][FAKE_DEVICES];

static pthread_t mover;
static bool mover_runs, mover_ends;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;

/* ---- completions ----------------------------------------------------------------- */

static void push(struct cq *cq, const struct completion *c)
{
    unsigned depth = (unsigned)cq->v.cqe;

    if (cq->broken)
        return;
    if (cq->used == depth)
        fake_abort("a completion queue of %s has overrun: all its %u places are taken",
                   cq->o.device->v.name, depth);
    cq->ring[(cq->head + cq->used++) % depth] = *c;
    if (cq->armed && cq->v.channel != NULL) {
        struct channel *ch = FAKE_OF(channel, v, cq->v.channel);
        struct event *e = fake_alloc(sizeof(*e));

        cq->armed = false;
        e->object = &cq->o;
        *ch->events_end = e;
        ch->events_end = &e->next;
        if (eventfd_write(ch->v.fd, 1) != 0)
            fake_abort("eventfd: %s", strerror(errno));
    }
}

/* What an adapter leaves undefined is nonsense here, so that nobody reads it. */
static void completion(struct completion *c, struct qp *q, uint64_t id, enum ibv_wc_status status)
{
    memset(c, 0, sizeof(*c));
    c->qp = q;
    c->wc.wr_id = id;
    c->wc.status = status;
    c->wc.qp_num = q->v.qp_num;
    c->wc.opcode = (enum ibv_wc_opcode)0x7f;
    c->wc.byte_len = 0xdeadbeef;
    c->wc.vendor_err = status != IBV_WC_SUCCESS ? 0x51 : 0;
}

int fake_poll(struct ibv_cq *v, int n, struct ibv_wc *wc)
{
    struct cq *cq = FAKE_OF(cq, v, v);
    int got = 0;

    if (fake_enter_on(FAKE_POLL, &cq->o, "ibv_poll_cq") != 0) {
        fake_leave();
        return -1;
    }
    for (; got < n && cq->used > 0; got++) {
        const struct completion *c = &cq->ring[cq->head];

        cq->head = (cq->head + 1) % (unsigned)v->cqe;
        cq->used--;
        wc[got] = c->wc;
        if (c->qp->o.alive && c->reclaims > c->qp->reclaimed)
            c->qp->reclaimed = c->reclaims;
    }
    fake_leave();
    return got;
}

int fake_notify(struct ibv_cq *v, int solicited)
{
    struct cq *cq = FAKE_OF(cq, v, v);
    int error = fake_enter_on(FAKE_NOTIFY, &cq->o, "ibv_req_notify_cq");

    (void)solicited;
    if (error == 0)
        cq->armed = true;
    fake_leave();
    return error;
}

/* ---- receives -------------------------------------------------------------------- */

void fake_receives_init(struct receives *r, unsigned depth, unsigned max_sge)
{
    *r = (struct receives){.end = &r->first, .depth = depth, .max_sge = max_sge};
}

static bool take_receive(struct receives *r, struct receive *out)
{
    struct receive *v = r->first;

    if (v == NULL)
        return false;
    *out = *v;
    r->first = v->next;
    if (r->first == NULL)
        r->end = &r->first;
    r->used--;
    free(v);
    return true;
}

/* ---- doing a request ------------------------------------------------------------- */

bool fake_resolve(const uint8_t gid[16], uint16_t lid, struct device **d, int *port)
{
    for (*d = fake_devices; *d != NULL; *d = (*d)->next)
        for (unsigned p = 0; !(*d)->gone && p < (*d)->v.nports; p++) {
            const struct fake_port *at = &(*d)->v.ports[p];

            *port = (int)p + 1;
            if (gid == NULL && at->attr.lid == lid && lid != 0)
                return true;
            for (unsigned g = 0; gid != NULL && g < FAKE_GIDS; g++)
                if (memcmp(at->gids[g].gid, gid, 16) == 0)
                    return true;
        }
    return false;
}

static bool is_up(const struct device *d, int port)
{
    return !d->gone && !d->fatal && d->v.ports[port - 1].attr.state == IBV_PORT_ACTIVE;
}

/* Where the queue pair's address leads. */
static bool destination(const struct qp *q, struct device **d, int *port)
{
    const struct ibv_ah_attr *ah = &q->a.ah_attr;

    return fake_resolve(ah->is_global ? ah->grh.dgid.raw : NULL, ah->dlid, d, port);
}

static struct qp *number(const struct device *d, uint32_t qpn)
{
    for (struct fake_object *o = fake_objects; o != NULL; o = o->next)
        if (o->alive && o->kind == FAKE_QP && o->device == d && FAKE_OF(qp, o, o)->v.qp_num == qpn)
            return FAKE_OF(qp, o, o);
    return NULL;
}

static enum ibv_gid_type own_type(const struct qp *q)
{
    return q->o.device->v.ports[q->a.port_num - 1].gids[q->a.ah_attr.grh.sgid_index].type;
}

/* The other end, when packets of q reach it and it takes them as of this connection; else NULL. */
static struct qp *other_end(const struct qp *q)
{
    struct device *d, *back;
    struct qp *p;
    int port, back_port;

    if (!is_up(q->o.device, q->a.port_num) || !destination(q, &d, &port) || !is_up(d, port) ||
        cuts[q->o.device->v.index][d->v.index])
        return NULL;
    p = number(d, q->a.dest_qp_num);
    if (p == NULL || (p->a.qp_state != IBV_QPS_RTR && p->a.qp_state != IBV_QPS_RTS) ||
        p->a.port_num != port || p->a.dest_qp_num != q->v.qp_num || p->a.rq_psn != q->a.sq_psn ||
        p->a.path_mtu != q->a.path_mtu || !destination(p, &back, &back_port) ||
        back != q->o.device || back_port != q->a.port_num ||
        p->a.ah_attr.is_global != q->a.ah_attr.is_global ||
        (q->a.ah_attr.is_global && own_type(p) != own_type(q)))
        return NULL;
    return p;
}

uint8_t *fake_inside(struct region *r, struct pd *pd, uint64_t address, uint64_t length,
                     unsigned access)
{
    if (r == NULL || r->pd != pd || (r->r.access & access) != access || address < r->r.iova ||
        length > r->r.length || address - r->r.iova > r->r.length - length)
        return NULL;
    return r->bytes + (address - r->r.iova);
}

/* Copies between pieces and one range; to: into the range. */
static void copy(const struct device *d, struct pd *pd, const struct ibv_sge *sges, unsigned n,
                 uint8_t *range, uint64_t length, bool to)
{
    for (unsigned i = 0; i < n && length > 0; i++) {
        uint64_t part = sges[i].length < length ? sges[i].length : length;
        uint8_t *p = fake_inside(fake_region_of(d, sges[i].lkey, false), pd, sges[i].addr, part,
                                 to ? 0 : IBV_ACCESS_LOCAL_WRITE);

        if (part > 0 && p == NULL)
            fake_abort("a piece at 0x%lx, %lu bytes, of %s is not registered any more",
                       (unsigned long)sges[i].addr, (unsigned long)part, d->v.name);
        if (part > 0)
            memmove(to ? range : p, to ? p : range, part);
        range += part;
        length -= part;
    }
}

static void read_request(const struct qp *q, const struct request *w, uint8_t *range,
                         uint64_t length)
{
    if (w->inlined != NULL && length > 0)
        memcpy(range, w->inlined, length);
    else if (w->inlined == NULL)
        copy(q->o.device, q->pd, w->sges, w->n, range, length, true);
}

static void access_error(struct qp *p)
{
    fake_qp_error(p);
    fake_tell(p->o.device, IBV_EVENT_QP_ACCESS_ERR, &p->o, &p->v, 0);
}

static int one_sided(struct qp *q, struct request *w, struct qp *p, uint64_t landed)
{
    bool reads = w->opcode == IBV_WR_RDMA_READ;
    unsigned access = reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    uint8_t *range;

    if (w->length == 0)
        return IBV_WC_SUCCESS;
    if (reads && q->a.max_rd_atomic > p->a.max_dest_rd_atomic) {
        access_error(p);
        return IBV_WC_REM_INV_REQ_ERR;
    }
    range = fake_inside(fake_region_of(p->o.device, w->rkey, true), p->pd, w->address, w->length,
                        access);
    if ((p->a.qp_access_flags & access) == 0 || range == NULL) {
        access_error(p);
        return IBV_WC_REM_ACCESS_ERR;
    }
    if (reads)
        copy(q->o.device, q->pd, w->sges, w->n, range, landed, false);
    else
        read_request(q, w, range, landed);
    return IBV_WC_SUCCESS;
}

static int two_sided(struct qp *q, struct request *w, struct qp *p, uint64_t landed)
{
    struct receive r;
    struct completion c;
    uint64_t room = 0;
    uint8_t *bytes;

    if (!take_receive(p->srq != NULL ? &p->srq->r : &p->r, &r))
        return q->a.rnr_retry == 7 ? NOT_NOW : IBV_WC_RNR_RETRY_EXC_ERR;
    if (p->srq == NULL)
        p->recv_cq->coming--;
    if (p->srq != NULL && p->srq->limit > p->srq->r.used) {
        p->srq->limit = 0;
        fake_tell(p->o.device, IBV_EVENT_SRQ_LIMIT_REACHED, &p->srq->o, &p->srq->v, 0);
    }
    for (unsigned i = 0; i < r.n; i++)
        room += r.sges[i].length;
    if (room < w->length) {
        completion(&c, p, r.id, IBV_WC_LOC_LEN_ERR);
        push(p->recv_cq, &c);
        fake_qp_error(p);
        return IBV_WC_REM_INV_REQ_ERR;
    }
    bytes = fake_alloc(w->length + 1);
    read_request(q, w, bytes, landed);
    copy(p->o.device, p->srq != NULL ? p->srq->pd : p->pd, r.sges, r.n, bytes, landed, false);
    free(bytes);
    if (landed < w->length)
        return IBV_WC_SUCCESS; /* lost half-way: the caller's lie says what becomes of it */
    completion(&c, p, r.id, IBV_WC_SUCCESS);
    c.wc.opcode = IBV_WC_RECV;
    c.wc.byte_len = (uint32_t)w->length;
    c.wc.src_qp = q->v.qp_num;
    if (w->opcode == IBV_WR_SEND_WITH_IMM) {
        c.wc.wc_flags = IBV_WC_WITH_IMM;
        c.wc.imm_data = w->imm;
    }
    push(p->recv_cq, &c);
    return IBV_WC_SUCCESS;
}

static bool lie_about(const struct qp *q, enum ibv_wc_status *status, uint64_t *landed)
{
    struct device *to;
    int port;
    bool leads = destination(q, &to, &port);

    for (unsigned i = 0; i < nlies; i++) {
        struct lie *l = &lies[i];

        if (l->device != q->o.device || l->times == 0 || (l->to != NULL && (!leads || l->to != to)))
            continue;
        if (l->skip > 0) {
            l->skip--;
            continue;
        }
        l->times--;
        *status = l->status;
        *landed = l->landed;
        return true;
    }
    return false;
}

static bool by_peer(enum ibv_wc_status status)
{
    return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR ||
           status == IBV_WC_REM_OP_ERR;
}

static int perform(struct qp *q, struct request *w)
{
    struct qp *p = other_end(q);
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    uint64_t landed = w->length, part;
    bool lie = lie_about(q, &status, &part);
    int res;

    if (lie && part < landed)
        landed = part;
    if (lie && p != NULL && by_peer(status)) { /* no peer refuses and goes on */
        access_error(p);
        return (int)status;
    }
    if (lie && (part == 0 || p == NULL))
        return (int)status;
    if (p == NULL)
        return IBV_WC_RETRY_EXC_ERR;
    res = w->opcode == IBV_WR_SEND || w->opcode == IBV_WR_SEND_WITH_IMM
              ? two_sided(q, w, p, landed)
              : one_sided(q, w, p, landed);
    return lie && res == IBV_WC_SUCCESS ? (int)status : res;
}

/* ---- the send queue -------------------------------------------------------------- */

void fake_use_regions(const struct device *d, const struct request *w, bool use)
{
    for (unsigned i = 0; w->inlined == NULL && i < w->n; i++) {
        struct region *r = fake_region_of(d, w->sges[i].lkey, false);

        if (r != NULL)
            r->users += use ? 1u : -1u;
    }
}

static void drop(struct qp *q)
{
    struct request *w = q->first;

    q->first = w->next;
    if (q->first == NULL)
        q->end = &q->first;
    q->outstanding--;
    q->reads -= w->opcode == IBV_WR_RDMA_READ;
    q->send_cq->coming--;
    fake_use_regions(q->o.device, w, false);
    free(w->inlined);
    free(w);
}

/* The oldest request goes, and its bytes may be on the wire. */
static void take_off(struct qp *q)
{
    struct request *w = q->first;
    struct qp *p = other_end(q);
    struct flight *f;

    if (!q->o.device->lingers || (w->done && w->status != IBV_WC_RETRY_EXC_ERR) ||
        w->opcode != IBV_WR_RDMA_WRITE || p == NULL)
        return;
    f = fake_alloc(sizeof(*f) + w->length);
    f->target = p;
    f->address = w->address;
    f->length = w->length;
    f->rkey = w->rkey;
    read_request(q, w, f->bytes, w->length);
    *flights_end = f;
    flights_end = &f->next;
}

static bool land(const struct flight *f)
{
    struct qp *p = f->target;
    uint8_t *to;

    if (!p->o.alive || (p->a.qp_state != IBV_QPS_RTR && p->a.qp_state != IBV_QPS_RTS) ||
        (p->a.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0)
        return false;
    to = fake_inside(fake_region_of(p->o.device, f->rkey, true), p->pd, f->address, f->length,
                     IBV_ACCESS_REMOTE_WRITE);
    if (to == NULL)
        return false;
    memcpy(to, f->bytes, f->length);
    return true;
}

static struct flight *next_flight(void)
{
    struct flight *f = flights;

    if (f != NULL) {
        flights = f->next;
        if (flights == NULL)
            flights_end = &flights;
    }
    return f;
}

unsigned fake_land(unsigned n)
{
    struct flight *f;
    unsigned landed = 0;

    pthread_mutex_lock(&fake_lock);
    for (; n > 0 && (f = next_flight()) != NULL; n--) {
        landed += land(f);
        free(f);
    }
    fake_leave();
    return landed;
}

void fake_linger(struct fake_device *d, bool linger)
{
    pthread_mutex_lock(&fake_lock);
    fake_device_of(d)->lingers = linger;
    fake_leave();
}

static void finish(struct qp *q, enum ibv_wc_status status)
{
    struct request *w = q->first;
    struct fake_stats *s = &q->o.device->stats;
    struct completion c;
    bool signalled = q->signal_all || (w->flags & IBV_SEND_SIGNALED) != 0;

    completion(&c, q, w->id, status);
    c.reclaims = w->sequence;
    if (status == IBV_WC_SUCCESS) {
        c.wc.opcode = w->opcode == IBV_WR_RDMA_READ    ? IBV_WC_RDMA_READ
                      : w->opcode == IBV_WR_RDMA_WRITE ? IBV_WC_RDMA_WRITE
                                                       : IBV_WC_SEND;
        c.wc.byte_len = (uint32_t)w->length;
        s->requests++;
        s->bytes += w->length;
    } else {
        s->flushed += status == IBV_WC_WR_FLUSH_ERR;
        s->failed += status != IBV_WC_WR_FLUSH_ERR;
    }
    if (status == IBV_WC_WR_FLUSH_ERR || status == IBV_WC_RETRY_EXC_ERR)
        take_off(q);
    drop(q);
    if (status != IBV_WC_SUCCESS || signalled)
        push(q->send_cq, &c);
    if (status != IBV_WC_SUCCESS)
        fake_qp_error(q);
}

/* Moves the bytes of the first request of which they have not; false: there is none, or it cannot be now. */
static bool advance(struct qp *q)
{
    struct request *w = q->first;
    int status;

    for (; w != NULL && w->done; w = w->next)
        if (w->status != IBV_WC_SUCCESS)
            return false;
    if (w == NULL)
        return false;
    status = perform(q, w);
    if (status == NOT_NOW)
        return false;
    if (q->a.qp_state == IBV_QPS_ERR) /* it is its own other end, and w is gone with it */
        return true;
    w->done = true;
    w->status = (enum ibv_wc_status)status;
    return true;
}

/* Ends the oldest request; false: it cannot be done now. */
static bool step(struct qp *q)
{
    if (q->a.qp_state != IBV_QPS_ERR && !q->first->done && !advance(q))
        return false;
    if (q->first != NULL)
        finish(q, q->a.qp_state == IBV_QPS_ERR ? IBV_WC_WR_FLUSH_ERR : q->first->status);
    return true;
}

static bool is_fatal(const struct qp *q)
{
    return q->o.device->fatal && q->a.qp_state != IBV_QPS_ERR;
}

void fake_run(struct qp *q)
{
    struct device *d = q->o.device;

    if (d->pace == FAKE_THREAD) {
        pthread_cond_signal(&work);
        return;
    }
    if (d->pace == FAKE_HELD && q->a.qp_state != IBV_QPS_ERR)
        return;
    if (q->a.qp_state == IBV_QPS_ERR && d->holds_flushes)
        return;
    while (q->first != NULL && !is_fatal(q) &&
           (d->pace == FAKE_AT_ONCE || q->a.qp_state == IBV_QPS_ERR ? step(q) : advance(q)))
        ;
}

/* Those that found no buffer at the other end. */
void fake_run_all(void)
{
    for (struct fake_object *o = fake_objects; o != NULL; o = o->next)
        if (o->alive && o->kind == FAKE_QP && FAKE_OF(qp, o, o)->first != NULL)
            fake_run(FAKE_OF(qp, o, o));
}

void fake_qp_error(struct qp *q)
{
    struct receive r;

    if (q->a.qp_state == IBV_QPS_ERR || q->a.qp_state == IBV_QPS_RESET)
        return;
    q->a.qp_state = IBV_QPS_ERR;
    while (q->srq == NULL && take_receive(&q->r, &r)) {
        struct completion c;

        q->recv_cq->coming--;
        completion(&c, q, r.id, IBV_WC_WR_FLUSH_ERR);
        push(q->recv_cq, &c);
    }
    if (q->srq != NULL)
        fake_tell(q->o.device, IBV_EVENT_QP_LAST_WQE_REACHED, &q->o, &q->v, 0);
    while (q->first != NULL && !q->o.device->holds_flushes)
        finish(q, IBV_WC_WR_FLUSH_ERR);
}

static void clean(struct cq *cq, const struct qp *q)
{
    unsigned depth = (unsigned)cq->v.cqe, kept = 0;

    for (unsigned i = 0; i < cq->used; i++) {
        const struct completion *c = &cq->ring[(cq->head + i) % depth];

        if (c->qp != q)
            cq->ring[(cq->head + kept++) % depth] = *c;
    }
    cq->used = kept;
}

void fake_qp_forget(struct qp *q)
{
    struct receive r;

    while (q->first != NULL) {
        take_off(q);
        drop(q);
    }
    while (q->srq == NULL && take_receive(&q->r, &r))
        q->recv_cq->coming--;
    if (!q->o.device->v.keeps_completions) {
        clean(q->send_cq, q);
        clean(q->recv_cq, q);
    }
    q->posted = q->reclaimed = 0;
}

/* ---- paces ----------------------------------------------------------------------- */

static struct qp *oldest(const struct device *d)
{
    struct qp *found = NULL;

    for (struct fake_object *o = fake_objects; o != NULL; o = o->next) {
        struct qp *q = FAKE_OF(qp, o, o);

        if (o->alive && o->kind == FAKE_QP && o->device == d && q->first != NULL && !is_fatal(q) &&
            (found == NULL || q->first->order < found->first->order))
            found = q;
    }
    return found;
}

unsigned fake_release(struct fake_device *d, unsigned n)
{
    unsigned done = 0;
    struct qp *q;

    pthread_mutex_lock(&fake_lock);
    while (done < n && (q = oldest(fake_device_of(d))) != NULL && step(q))
        done++;
    fake_leave();
    return done;
}

unsigned fake_waiting(const struct fake_device *d)
{
    unsigned n = 0;

    pthread_mutex_lock(&fake_lock);
    for (struct fake_object *o = fake_objects; o != NULL; o = o->next)
        if (o->alive && o->kind == FAKE_QP && o->device == fake_device_of(d))
            n += FAKE_OF(qp, o, o)->outstanding;
    fake_leave();
    return n;
}

void fake_hold_flushes(struct fake_device *d, bool hold)
{
    pthread_mutex_lock(&fake_lock);
    fake_device_of(d)->holds_flushes = hold;
    if (!hold)
        fake_run_all();
    fake_leave();
}

static struct qp *any(unsigned *seed)
{
    struct qp *found = NULL;
    unsigned n = 0;

    for (struct fake_object *o = fake_objects; o != NULL; o = o->next) {
        struct qp *q = FAKE_OF(qp, o, o);

        if (o->alive && o->kind == FAKE_QP && o->device->pace == FAKE_THREAD && q->first != NULL &&
            !is_fatal(q) && (q->a.qp_state != IBV_QPS_ERR || !o->device->holds_flushes) &&
            (unsigned)rand_r(seed) % ++n == 0)
            found = q;
    }
    return found;
}

static void *move(void *arg)
{
    unsigned seed = 1;
    struct qp *q;

    (void)arg;
    pthread_mutex_lock(&fake_lock);
    while (!mover_ends) {
        q = any(&seed);
        if (q == NULL || !step(q)) {
            pthread_cond_wait(&work, &fake_lock);
            continue;
        }
        pthread_mutex_unlock(&fake_lock);
        sched_yield();
        pthread_mutex_lock(&fake_lock);
    }
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

void fake_pace(struct fake_device *d, enum fake_pace pace)
{
    pthread_mutex_lock(&fake_lock);
    fake_device_of(d)->pace = pace;
    if (pace == FAKE_THREAD && !mover_runs) {
        mover_ends = false;
        if (pthread_create(&mover, NULL, move, NULL) != 0)
            fake_abort("no thread");
        mover_runs = true;
    }
    if (pace == FAKE_AT_ONCE)
        while (oldest(fake_device_of(d)) != NULL && step(oldest(fake_device_of(d))))
            ;
    pthread_cond_signal(&work);
    fake_leave();
}

void fake_truth(void)
{
    nlies = 0;
}

void fake_move_reset(void)
{
    bool runs;

    pthread_mutex_lock(&fake_lock);
    memset(cuts, 0, sizeof(cuts));
    while (flights != NULL)
        free(next_flight());
    runs = mover_runs;
    mover_ends = true;
    mover_runs = false;
    pthread_cond_signal(&work);
    fake_leave();
    if (runs)
        pthread_join(mover, NULL);
}

void fake_spoil(const struct fake_device *d, const struct fake_device *to, unsigned nth,
                unsigned times, enum ibv_wc_status status, uint64_t landed)
{
    unsigned i;

    pthread_mutex_lock(&fake_lock);
    for (i = 0; i < nlies && lies[i].times > 0; i++)
        ;
    if (i == LIES || nth == 0)
        fake_abort("fake_spoil(): %s",
                   nth == 0 ? "requests count from 1" : "too many are asked for");
    if (i == nlies)
        nlies++;
    lies[i] = (struct lie){.device = fake_device_of(d),
                           .to = to != NULL ? fake_device_of(to) : NULL,
                           .skip = nth - 1,
                           .times = times,
                           .status = status,
                           .landed = landed};
    fake_leave();
}

void fake_cut(const struct fake_device *a, const struct fake_device *b, bool cut)
{
    pthread_mutex_lock(&fake_lock);
    cuts[a->index][b->index] = cuts[b->index][a->index] = cut;
    fake_leave();
}
