/* SPDX-License-Identifier: Apache-2.0 */
/* Slices become work requests. */
#include <errno.h>

#include "engine.h"
#include "shm/failpoint.h"

void mct_rdma_come_back(struct mct *t, struct mct_slice *s, uint16_t status, bool settled,
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

static void refuse(struct mct *t, struct mct_slice *s, uint16_t status)
{
    s->error = 0;
    mct_rdma_come_back(t, s, status, true, 0);
}

/* ---- requests -------------------------------------------------------------------- */

/* All its work requests are known: the slice goes back. */
static void request_end(struct mct_rdma_request *r)
{
    struct mct_rdma_conn *c = r->conn;
    struct mct *t = c->t;
    struct mct_slice *s = r->slice;
    bool read = s->op == MCT_READ;

    c->bytes -= s->length;
    s->error = 0;
    if (!r->failed) {
        if (read)
            mct_rdma_count(t, received_bytes, s->length);
        else
            mct_rdma_count(t, sent_bytes, s->length);
        mct_rdma_come_back(t, s, MCS_OK, true, c->id);
    } else if (r->status != MCS_OK) {
        /* The peer's device has answered, and takes nothing more from this queue pair. */
        mct_rdma_come_back(t, s, r->status, true, c->id);
    } else {
        bool sent = r->unsent < r->pieces;

        if (!r->canceled)
            s->error = c->error;
        mct_rdma_come_back(t, s, r->canceled ? MCS_CANCELED : MCS_RAIL, read || !sent,
                           sent ? c->id : 0);
    }
    r->slice = NULL;
    r->next = c->free_requests;
    c->free_requests = r;
}

static void piece_end(struct mct_rdma_request *r)
{
    if (r->slice->op == MCT_READ)
        r->conn->reads--;
    if (--r->left == 0)
        request_end(r);
}

static void release_entry(struct mct_rdma_conn *c, const struct mct_rdma_sent *e)
{
    struct mct_rdma_poller *p = c->poller;

    p->credit++;
    c->t->outstanding--;
    if (e->buffer != MCT_RDMA_NO_BUFFER)
        p->sends[p->nsends++] = e->buffer;
}

void mct_rdma_known(struct mct_rdma_conn *c, bool ok, uint16_t status)
{
    const struct mct_rdma_sent *e = &c->ring[c->known++ % c->pair->depth];
    struct mct_rdma_request *r = e->request;

    release_entry(c, e);
    /* a probe tells that the peer's device lives, not that its agent gets on */
    if (ok && c->link != NULL && (r != NULL || e->notice != NULL))
        c->link->progress++;
    if (r == NULL)
        return;
    if (!ok) {
        r->failed = true;
        if (status != MCS_OK)
            r->status = status;
    }
    piece_end(r);
}

/* ---- chains ---------------------------------------------------------------------- */

bool mct_rdma_has_room(const struct mct_rdma_conn *c, uint32_t n)
{
    return c->pair->depth - (c->posted - c->known) >= n && c->poller->credit >= n;
}

/* The newest work request asks for a completion. */
static void ask(struct mct_rdma_conn *c, struct ibv_send_wr *wr)
{
    c->unsignaled = 0;
    if ((wr->send_flags & IBV_SEND_SIGNALED) != 0)
        return;
    wr->send_flags |= IBV_SEND_SIGNALED;
    mct_rdma_count(c->t, signals, 1);
}

struct ibv_send_wr *mct_rdma_chain(struct mct_rdma_conn *c, const struct mct_rdma_sent *sent)
{
    struct mct *t = c->t;
    struct ibv_send_wr *wr = &t->wrs[t->chained];

    *wr = (struct ibv_send_wr){
        .wr_id = (uint64_t)t->slots[c->slot].generation << 48 | (uint64_t)c->slot << 32 |
                 (uint32_t)c->posted,
        .sg_list = &t->sges[t->chained],
        .num_sge = 1,
    };
    t->chained++;
    c->ring[c->posted++ % c->pair->depth] = *sent;
    c->poller->credit--;
    t->outstanding++;
    if (++c->unsignaled == MCT_RDMA_SIGNAL)
        ask(c, wr);
    if (c->head == NULL) {
        c->head = wr;
        c->chain_next = t->chains;
        t->chains = c;
    } else {
        c->tail->next = wr;
    }
    c->tail = wr;
    return wr;
}

/* The newest work request was not taken by the provider. */
static void take_back(struct mct_rdma_conn *c)
{
    const struct mct_rdma_sent *e = &c->ring[--c->posted % c->pair->depth];

    release_entry(c, e);
    if (e->notice != NULL) {
        struct mct_slice *s = e->notice->slice;

        mct_rdma_notice_free(e->notice);
        if (s != NULL) {
            s->error = c->error;
            mct_rdma_come_back(c->t, s, MCS_RAIL, true, 0);
        }
    } else if (e->request != NULL) {
        e->request->failed = true;
        e->request->unsent++;
        piece_end(e->request);
    }
}

static void flush_one(struct mct_rdma_conn *c)
{
    struct mct *t = c->t;
    struct ibv_send_wr *bad = c->head;
    int res;

    ask(c, c->tail);
    mct_rdma_count(t, doorbells, 1);
    res = ibv_post_send(c->pair->qp, c->head, &bad);
    c->head = c->tail = NULL;
    if (res == 0)
        return;
    /* Those before may come through, and the one that would have told of them was not taken. */
    c->silent = true;
    mct_rdma_conn_end(c, res < 0 ? res : -res, "its provider did not take a work request");
    for (; bad != NULL; bad = bad->next)
        take_back(c);
}

void mct_rdma_flush(struct mct *t)
{
    while (t->chains != NULL) {
        struct mct_rdma_conn *c = t->chains;

        t->chains = c->chain_next;
        c->chain_next = NULL;
        flush_one(c);
    }
    t->chained = 0;
}

/* ---- placing --------------------------------------------------------------------- */

struct piece {
    uint64_t local, remote;
    uint32_t length, lkey, rkey;
};

/* The remote key for an address, and how many bytes from there it covers. */
static bool remote_key(const struct mct_rdma_keys *k, uint64_t nic, uint64_t address,
                       uint32_t *rkey, uint64_t *left)
{
    uint64_t at, chunk, rest;

    if (k == NULL || k->chunk == 0 || address < k->address || address - k->address >= k->length)
        return false;
    at = address - k->address;
    chunk = at / k->chunk;
    if (chunk >= k->nchunks)
        return false;
    for (uint32_t n = 0; n < k->nnics; n++) {
        if (k->nics[n] != nic)
            continue;
        *rkey = k->rkeys[(uint64_t)n * k->nchunks + chunk];
        *left = k->chunk - at % k->chunk;
        rest = k->length - at;
        if (rest < *left)
            *left = rest;
        return true;
    }
    return false;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Cuts the slice where a key ends. */
static enum mct_rdma_placed cut(const struct mct_rdma_conn *c, const struct mct_slice *s,
                                bool inlined, struct piece *pieces, uint32_t *n)
{
    const struct mct_rdma_port *port = c->poller->port;
    uint64_t at = 0;

    *n = 0;
    while (at < s->length) {
        struct piece *p = &pieces[*n];
        uint64_t length = least(s->length - at, port->max_message), left;

        if (*n == MCT_RDMA_PIECES)
            return MCT_RDMA_TOO_MANY;
        p->remote = s->remote_address + at;
        p->local = (uintptr_t)s->local + at;
        p->lkey = 0;
        if (!remote_key(s->remote_keys, c->pair->peer.nic, p->remote, &p->rkey, &left))
            return MCT_RDMA_NO_KEY;
        length = least(length, left);
        if (!inlined) {
            if (s->registration == NULL ||
                !mct_rdma_memory_lkey(s->registration, port, (const uint8_t *)s->local + at,
                                      &p->lkey, &left))
                return MCT_RDMA_NO_KEY;
            length = least(length, left);
        }
        if (length == 0)
            return MCT_RDMA_NO_KEY;
        p->length = (uint32_t)least(length, UINT64_C(1) << 31);
        at += p->length;
        (*n)++;
    }
    return MCT_RDMA_PLACED;
}

static enum mct_rdma_placed place(struct mct_rdma_conn *c, struct mct_slice *s)
{
    struct mct *t = c->t;
    struct piece pieces[MCT_RDMA_PIECES];
    bool read = s->op == MCT_READ;
    /* what goes inline is read by this thread */
    bool inlined = !read && !s->gpu && s->length <= c->pair->max_inline;
    struct mct_rdma_sent sent = {.buffer = MCT_RDMA_NO_BUFFER};
    struct mct_rdma_request *r;
    enum mct_rdma_placed res;
    uint32_t n;

    res = cut(c, s, inlined, pieces, &n);
    if (res != MCT_RDMA_PLACED)
        return res;
    if (n > c->pair->depth || n > c->poller->port->cq_depth)
        return MCT_RDMA_TOO_MANY;
    /* more READs than the devices do at a time would only stand in the way of WRITEs */
    if (!mct_rdma_has_room(c, n) || (read && c->reads > 0 && c->reads + n > c->pair->reads))
        return MCT_RDMA_NO_ROOM;
    if (t->chained + n > MCT_RDMA_CHAIN) {
        mct_rdma_flush(t);
        if (c->ending)
            return MCT_RDMA_NO_ROOM;
    }
    r = c->free_requests; /* there is one: each has a work request */
    c->free_requests = r->next;
    *r = (struct mct_rdma_request){.conn = c, .slice = s, .pieces = n, .left = n};
    s->link_state = r;
    c->bytes += s->length;
    if (read)
        c->reads += n;
    if (inlined)
        mct_rdma_count(t, inlined, 1);
    sent.request = r;
    for (uint32_t i = 0; i < n; i++) {
        const struct piece *p = &pieces[i];
        struct ibv_send_wr *wr = mct_rdma_chain(c, &sent);

        wr->opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        if (inlined)
            wr->send_flags |= IBV_SEND_INLINE;
        wr->sg_list->addr = p->local;
        wr->sg_list->length = p->length;
        wr->sg_list->lkey = p->lkey;
        wr->wr.rdma.remote_addr = p->remote;
        wr->wr.rdma.rkey = MCS_FAIL(rdma_guess) == 0 ? p->rkey : ~p->rkey;
        /* READs are few at a time: their room is known again before they have run dry */
        if (read && c->unsignaled >= c->pair->reads / MCT_RDMA_READ_PARTS)
            ask(c, wr);
    }
    return MCT_RDMA_PLACED;
}

/* The living connection with the fewest bytes under way that is not in `tried`; nconns: none. */
static unsigned choose(const struct mct_link *link, unsigned tried)
{
    unsigned best = link->nconns;

    for (unsigned i = 0; i < link->nconns; i++) {
        const struct mct_rdma_conn *c = link->conns[i];

        if ((tried >> i & 1) != 0 || c->ending)
            continue;
        if (best == link->nconns || c->bytes < link->conns[best]->bytes)
            best = i;
    }
    return best;
}

static uint16_t check(const struct mct_slice *s)
{
    if (s->length == 0)
        return MCS_INVALID_ARGUMENT;
    if (s->op == MCT_NOTIFY && (s->length > MCT_RDMA_PAYLOAD || s->name_length > s->length ||
                                s->name_length > MCS_NOTIFY_NAME_MAX))
        return MCS_INVALID_ARGUMENT;
    return s->op == MCT_READ || s->op == MCT_WRITE || s->op == MCT_NOTIFY ? MCS_OK
                                                                          : MCS_NOT_SUPPORTED;
}

/* False: not taken. */
static bool post_one(struct mct_link *link, struct mct_slice *s)
{
    struct mct *t = link->t;
    unsigned tried = 0, i;
    bool full = false, many = false;
    uint16_t wrong = check(s);

    while ((i = choose(link, tried)) < link->nconns) {
        struct mct_rdma_conn *c = link->conns[i];
        enum mct_rdma_placed placed;

        if (wrong != MCS_OK) {
            refuse(t, s, wrong);
            return true;
        }
        placed = s->op == MCT_NOTIFY ? mct_rdma_post_notice(c, s) : place(c, s);
        if (placed == MCT_RDMA_PLACED)
            return true;
        full = full || placed == MCT_RDMA_NO_ROOM;
        many = many || placed == MCT_RDMA_TOO_MANY;
        tried |= 1u << i;
    }
    if (full || tried == 0) {
        if (full)
            mct_rdma_count(t, full, 1);
        return false;
    }
    if (many && !link->told) {
        link->told = true;
        t->env.log(
            MCT_RDMA_LOG_WARNING,
            "rdma: a slice of %llu bytes needs more work requests than the %u that go into a "
            "queue: use larger registrations ([rdma] chunk) or deeper queues ([rdma] depth)",
            (unsigned long long)s->length,
            (unsigned)least(MCT_RDMA_PIECES, link->conns[0]->pair->depth));
    }
    refuse(t, s, many ? MCS_LIMIT : MCS_NOT_REGISTERED);
    return true;
}

unsigned mct_rdma_post_slices(struct mct_link *link, struct mct_slice *const *slices, unsigned n)
{
    unsigned i;

    for (i = 0; i < n; i++)
        if (!post_one(link, slices[i]))
            break;
    mct_rdma_flush(link->t);
    return i;
}

void mct_rdma_cancel(struct mct_link *link, struct mct_slice *slice)
{
    struct mct *t = link->t;

    if (slice->link_state == NULL)
        return; /* it is on its way back already */
    if (slice->op == MCT_NOTIFY) {
        /* its bytes were copied; the answer is not waited for */
        struct mct_rdma_notice *n = slice->link_state;

        n->slice = NULL;
        slice->error = 0;
        mct_rdma_come_back(t, slice, MCS_CANCELED, false, n->conn->id);
    } else {
        /* no device takes a work request back: its queue pair is stopped */
        struct mct_rdma_request *r = slice->link_state;

        r->canceled = true;
        mct_rdma_conn_end(r->conn, -ECANCELED, "a slice on it was called back");
    }
}
