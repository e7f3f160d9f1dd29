/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: from a connected queue pair to its end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "engine.h"

/* ---- pollers --------------------------------------------------------------------- */

static void poller_free(struct mct_rdma_poller *p)
{
    free(p->sends);
    free(p->receives);
    free(p);
}

static int poller_create(struct mct *t, struct mct_rdma_port *port, struct mct_rdma_poller **out)
{
    struct epoll_event ev = {.events = EPOLLIN};
    struct mct_rdma_poller *p = calloc(1, sizeof(*p));
    int res = -ENOMEM;

    if (p == NULL)
        return res;
    p->sends = calloc(port->srq_depth, sizeof(*p->sends));
    p->receives = calloc(port->srq_depth, sizeof(*p->receives));
    if (p->sends == NULL || p->receives == NULL)
        goto fail;
    p->t = t;
    p->port = port;
    p->credit = port->cq_depth;
    p->failed = mcs_load_acquire(&port->failed) != 0; /* partner: nic's thread */
    for (uint32_t i = 0; i < port->srq_depth && !p->failed; i++) {
        p->sends[p->nsends++] = i;
        p->receives[p->nreceives++] = i;
    }
    if (t->env.epoll_fd >= 0 &&
        epoll_ctl(t->env.epoll_fd, EPOLL_CTL_ADD, port->channel->fd, &ev) != 0) {
        res = -errno;
        goto fail;
    }
    mct_rdma_refill(p);
    port->engine = p;
    p->next = t->pollers;
    t->pollers = p;
    *out = p;
    return 0;
fail:
    poller_free(p);
    return res;
}

void mct_rdma_drain_channel(struct mct_rdma_poller *p)
{
    struct ibv_cq *cq;
    void *context;
    unsigned n = 0;

    while (ibv_get_cq_event(p->port->channel, &cq, &context) == 0)
        n++;
    if (n != 0)
        ibv_ack_cq_events(p->port->cq, n);
}

void mct_rdma_poller_destroy(struct mct_rdma_poller *p, bool put)
{
    struct mct *t = p->t;
    struct mct_rdma_poller **link = &t->pollers;

    while (*link != p)
        link = &(*link)->next;
    *link = p->next;
    mct_rdma_drain_channel(p);
    if (t->env.epoll_fd >= 0)
        (void)epoll_ctl(t->env.epoll_fd, EPOLL_CTL_DEL, p->port->channel->fd, NULL);
    if (put)
        mct_rdma_port_put(p->port);
    poller_free(p);
}

/* ---- slots ----------------------------------------------------------------------- */

static int take_slot(struct mct *t, struct mct_rdma_conn *c)
{
    if (t->free_slot == UINT32_MAX) {
        uint32_t n = t->nslots == 0 ? 16 : t->nslots * 2;
        struct mct_rdma_slot *slots;

        if (n > MCT_RDMA_SLOTS)
            return -ENOSPC;
        slots = realloc(t->slots, n * sizeof(*slots));
        if (slots == NULL)
            return -ENOMEM;
        for (uint32_t i = t->nslots; i < n; i++)
            slots[i] =
                (struct mct_rdma_slot){.generation = 1, .next = i + 1 < n ? i + 1 : UINT32_MAX};
        t->free_slot = t->nslots;
        t->slots = slots;
        t->nslots = n;
    }
    c->slot = t->free_slot;
    t->free_slot = t->slots[c->slot].next;
    t->slots[c->slot].conn = c;
    return 0;
}

static void give_slot(struct mct *t, uint32_t slot)
{
    struct mct_rdma_slot *s = &t->slots[slot];

    s->conn = NULL;
    s->generation = (uint16_t)((s->generation + 1) & 0x7fff);
    s->next = t->free_slot;
    t->free_slot = slot;
}

struct mct_rdma_conn *mct_rdma_conn_of(struct mct *t, uint64_t wr_id)
{
    uint32_t slot = (uint32_t)(wr_id >> 32) & (MCT_RDMA_SLOTS - 1);

    if (slot >= t->nslots || t->slots[slot].generation != wr_id >> 48)
        return NULL;
    return t->slots[slot].conn;
}

struct mct_rdma_conn *mct_rdma_conn_find(struct mct *t, uint64_t id, bool initiator)
{
    struct mct_rdma_conn *c = t->buckets[id % MCT_RDMA_BUCKETS];

    while (c != NULL && (c->id != id || c->initiator != initiator))
        c = c->hash_next;
    return c;
}

/* ---- life ------------------------------------------------------------------------ */

static void doom(struct mct *t, struct mct_rdma_pair *p)
{
    p->engine = t->doomed;
    t->doomed = p;
    mct_rdma_pair_ask(p, MCT_RDMA_STAGE_GONE);
}

/* The nic's thread says so. */
static bool is_gone(const struct mct_rdma_pair *p)
{
    return mcs_load_acquire(&p->reached) == MCT_RDMA_STAGE_GONE; /* partner: nic's thread */
}

static bool free_doomed(struct mct *t)
{
    struct mct_rdma_pair *p = t->doomed, *kept = NULL;
    bool any = false;

    while (p != NULL) {
        struct mct_rdma_pair *next = p->engine;

        if (is_gone(p)) {
            mct_rdma_pair_free(p);
            any = true;
        } else {
            p->engine = kept;
            kept = p;
        }
        p = next;
    }
    t->doomed = kept;
    return any;
}

static void conn_free(struct mct_rdma_conn *c)
{
    free(c->ring);
    free(c->requests);
    free(c);
}

static void link_in(struct mct *t, struct mct_rdma_conn *c)
{
    struct mct_rdma_conn **bucket = &t->buckets[c->id % MCT_RDMA_BUCKETS];

    c->hash_next = *bucket;
    *bucket = c;
    c->next = t->conns;
    if (c->next != NULL)
        c->next->prev = c;
    t->conns = c;
    c->poller->conns++;
    if (c->link != NULL) {
        c->link->conns[c->link->nconns++] = c;
        mct_rdma_count(t, conns, 1);
    } else {
        mct_rdma_count(t, inbound, 1);
    }
}

int mct_rdma_conn_create(struct mct *t, const struct mct_conn *from, struct mct_link *link,
                         void *visitor)
{
    struct mct_rdma_pair *pair = from->pair;
    struct mct_rdma_conn *c = NULL;
    int res = -EINVAL;

    if (pair == NULL)
        return res;
    if (pair->instance != t || pair->depth == 0 || pair->conn != from->id)
        goto fail;
    res = -EEXIST;
    if (mct_rdma_conn_find(t, from->id, link != NULL) != NULL)
        goto fail;
    res = -ENOSPC;
    if (link != NULL && link->nconns == MCT_RDMA_CONNS)
        goto fail;
    res = -ENOMEM;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        goto fail;
    c->ring = calloc(pair->depth, sizeof(*c->ring));
    c->requests = calloc(pair->depth, sizeof(*c->requests));
    if (c->ring == NULL || c->requests == NULL)
        goto fail;
    c->poller = pair->port->engine;
    if (c->poller == NULL) {
        res = poller_create(t, pair->port, &c->poller);
        if (res != 0)
            goto fail;
    }
    res = take_slot(t, c);
    if (res != 0)
        goto fail;
    for (uint32_t i = pair->depth; i-- > 0;) {
        c->requests[i].next = c->free_requests;
        c->free_requests = &c->requests[i];
    }
    c->t = t;
    c->link = link;
    c->visitor = visitor;
    c->initiator = link != NULL;
    c->pair = pair;
    c->id = from->id;
    pair->engine = c;
    link_in(t, c);
    return 0;
fail:
    if (c != NULL)
        conn_free(c);
    doom(t, pair);
    return res;
}

static void ask(struct mct_rdma_conn *c, enum mct_rdma_stage stage)
{
    if (c->asked >= (uint32_t)stage)
        return;
    c->asked = (uint32_t)stage;
    mct_rdma_pair_ask(c->pair, stage);
}

/* Everything posted is known: nothing touches this host's memory on its behalf any more. */
static void check_drained(struct mct_rdma_conn *c)
{
    if (c->drained || c->posted != c->known)
        return;
    c->drained = true;
    mct_rdma_notices_end(c);
}

void mct_rdma_conn_end(struct mct_rdma_conn *c, int error, const char *why)
{
    struct mct *t = c->t;

    if (c->ending)
        return;
    c->ending = true;
    c->error = error;
    c->why = why;
    c->ended = mcs_ticks();
    t->ending++;
    t->answers -= c->nanswers;
    c->nanswers = 0;
    t->env.log(MCT_RDMA_LOG_DEBUG, "rdma connection %016llx, %s - %s: %s (%s)",
               (unsigned long long)c->id, c->pair->own.name, c->pair->peer.name, why,
               strerror(-error));
    ask(c, MCT_RDMA_STAGE_ERROR);
}

void mct_rdma_nonsense(struct mct_rdma_conn *c, const char *why)
{
    if (c->ending)
        return;
    mct_rdma_count(c->t, protocol_errors, 1);
    c->t->env.log(MCT_RDMA_LOG_WARNING, "rdma connection %016llx, %s - %s, is ended: %s",
                  (unsigned long long)c->id, c->pair->own.name, c->pair->peer.name, why);
    mct_rdma_conn_end(c, -EPROTO, why);
}

/* A queue pair that is destroyed completes nothing more, but what it has completed may still lie in the queue:
 * its entries are free again once the queue was empty, or all that it can hold was polled. */
static void sweep(struct mct_rdma_conn *c)
{
    const struct mct_rdma_poller *p = c->poller;

    if (!c->sweeping) {
        c->sweeping = true;
        c->sweep_emptied = p->emptied;
        c->sweep_polled = p->polled;
    } else if (p->failed || p->emptied != c->sweep_emptied ||
               p->polled - c->sweep_polled >= (uint64_t)p->port->cq_depth + p->port->srq_depth) {
        while (c->known != c->posted) {
            mct_rdma_count(c->t, flushed, 1);
            mct_rdma_known(c, false, MCS_OK);
        }
        c->swept = true;
    }
    c->t->again = c->t->again || !c->swept;
}

static void look_at(struct mct_rdma_conn *c)
{
    struct mct *t = c->t;

    if (!c->ending) {
        if (c->poller->failed)
            mct_rdma_conn_end(c, -ENODEV, "its device is lost");
        else if (mcs_load_acquire(&c->pair->reached) != MCT_RDMA_STAGE_LIVES) /* partner: nic */
            mct_rdma_conn_end(c, -ECONNRESET, "its device says that its queue pair has failed");
        else
            mct_rdma_probe(c);
        if (!c->ending)
            return;
    }
    if (c->asked == MCT_RDMA_STAGE_GONE && !c->swept && is_gone(c->pair))
        sweep(c);
    check_drained(c);
    /* A message that was half received holds a buffer of the shared queue until it is flushed: so the error state comes
     * first, and all that it brought is polled. */
    if (mcs_load_acquire(&c->pair->reached) != MCT_RDMA_STAGE_LIVES) { /* partner: nic's thread */
        if (c->drained && c->flushing && c->poller->emptied != c->flush_emptied)
            ask(c, MCT_RDMA_STAGE_GONE);
        if (!c->flushing)
            c->flush_emptied = c->poller->emptied;
        c->flushing = true;
        t->again = t->again || (c->drained && c->asked != MCT_RDMA_STAGE_GONE);
    }
    /* a device that does not flush is not waited for: a destroyed queue pair is as quiet */
    if (c->poller->failed || c->silent || mcs_ticks() - c->ended > t->env.tick_hz)
        ask(c, MCT_RDMA_STAGE_GONE);
}

void mct_rdma_look(struct mct *t, bool all)
{
    t->again = false;
    for (struct mct_rdma_poller *p = t->pollers; p != NULL; p = p->next) {
        /* partner: nic's thread */
        if (p->failed || mcs_load_acquire(&p->port->failed) == 0)
            continue;
        p->failed = true;
        all = true;
    }
    if (all || t->ending != 0)
        for (struct mct_rdma_conn *c = t->conns; c != NULL; c = c->next)
            if (all || c->ending)
                look_at(c);
    if (!all && t->nslots != 0) {
        struct mct_rdma_conn *c;

        t->cursor = t->cursor + 1 < t->nslots ? t->cursor + 1 : 0;
        c = t->slots[t->cursor].conn;
        if (c != NULL && !c->ending)
            look_at(c);
    }
}

void mct_rdma_detach(struct mct_rdma_conn *c)
{
    struct mct_link *link = c->link;

    for (unsigned i = 0; i < link->nconns; i++)
        if (link->conns[i] == c) {
            link->conns[i] = link->conns[--link->nconns];
            break;
        }
    c->link = NULL;
    mct_rdma_count(c->t, conns, -1);
    mct_rdma_count(c->t, lost, 1);
}

static void link_out(struct mct_rdma_conn *c)
{
    struct mct *t = c->t;
    struct mct_rdma_conn **bucket = &t->buckets[c->id % MCT_RDMA_BUCKETS];

    while (*bucket != c)
        bucket = &(*bucket)->hash_next;
    *bucket = c->hash_next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        t->conns = c->next;
    give_slot(t, c->slot);
    c->poller->conns--;
    t->ending--;
    if (!c->initiator) {
        mct_rdma_count(t, inbound, -1);
        mct_rdma_count(t, lost, 1);
    }
}

/* Its end is complete. */
static void over(struct mct_rdma_conn *c)
{
    const struct mct_host *host = &c->t->env.host;
    void *visitor = c->visitor;
    const char *why = c->why;
    uint64_t id = c->id;
    int error = c->error;

    link_out(c);
    mct_rdma_pair_free(c->pair);
    conn_free(c);
    if (visitor != NULL)
        host->left(host->context, visitor, id, error, why);
}

/* The link loses it; its slices came back before. */
static void lose(struct mct_rdma_conn *c)
{
    const struct mct_host *host = &c->t->env.host;
    struct mct_link *link;

    (void)mct_rdma_deliver(c->t);
    link = c->link;
    if (link == NULL)
        return; /* the engine gave the link up when it heard of them */
    mct_rdma_detach(c);
    host->lost(host->context, link, c->id, c->error);
}

bool mct_rdma_deliver(struct mct *t)
{
    const struct mct_host *host = &t->env.host;
    bool any = t->done != NULL;

    while (t->done != NULL) {
        struct mct_slice *s = t->done;

        t->done = s->link_next;
        if (t->done == NULL)
            t->done_end = &t->done;
        host->done(host->context, s);
    }
    return any;
}

/* Ports that have failed, without connections. */
static bool put_pollers(struct mct *t)
{
    bool any = false;

    for (struct mct_rdma_poller *p = t->pollers, *next; p != NULL; p = next) {
        next = p->next;
        /* partner: nic's thread. Pairs that were refused count, too: their ports must outlive them. */
        if (p->conns != 0 || t->doomed != NULL || mcs_load_acquire(&p->port->failed) == 0)
            continue;
        mct_rdma_poller_destroy(p, true);
        any = true;
    }
    return any;
}

bool mct_rdma_reap(struct mct *t)
{
    bool any = t->doomed != NULL && free_doomed(t);
    struct mct_rdma_conn *c;

    /* From the start each time: what the engine does when it is told may change the list. */
    do {
        c = t->ending == 0 ? NULL : t->conns;
        while (c != NULL && !(c->drained && (c->link != NULL || c->swept)))
            c = c->next;
        if (c == NULL)
            break;
        any = true;
        if (c->link != NULL)
            lose(c);
        else
            over(c);
    } while (true);
    return put_pollers(t) || any;
}
