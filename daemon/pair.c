/* SPDX-License-Identifier: Apache-2.0 */
/* Target role of RDMA: queue pairs that peers ask for, and their ends. */
#include "pair.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counters.h"
#include "log.h"
#include "net.h"
#include "shm/failpoint.h"
#include "shm/status.h"

#define MS UINT64_C(1000000)
#define SETUP_NS (4000 * MS) /* less than the asker waits */

enum stage {
    CREATING,
    CONNECTING,
    SERVING, /* the engine takes it */
    ENDING   /* the engine ends it */
};

/* A request that is not answered yet. */
struct mcd_answering {
    struct mcd_answering *next;
    struct mcd_peer *peer;
    struct mcd_visitor *visitor; /* counts it in `adopting` */
    struct mcd_wire_header h;
    enum stage stage;
    uint64_t conn, deadline;
    struct mct_rdma_pair *pair; /* NULL: the engine's */
    struct mct_rdma_end theirs, own;
    struct mcd_command command;
    struct mcd_serve serve;
};

/* ---- messages ----------------------------------------------------------------------- */

struct mct *mcd_pair_instance(const struct mcd_engine *g)
{
    return g->net == NULL ? NULL : mcd_net_find(g->net, &mct_rdma_ops);
}

const char *mcd_pair_why(int res)
{
    return res == -EBUSY ? "the RDMA device has not made the queue pairs that it was asked for "
                           "before: it hangs, or the host "
                           "asks for too many; see the kernel's log, lower [rdma] queue_pairs"
                         : strerror(-res);
}

void mcd_pair_end_write(const struct mct_rdma_end *e, Mcd__End *m)
{
    mcd__end__init(m);
    m->nic = e->nic;
    m->name = (char *)(uintptr_t)e->name;
    m->gid = (ProtobufCBinaryData){.len = sizeof(e->gid), .data = (uint8_t *)(uintptr_t)e->gid};
    m->lid = e->lid;
    m->infiniband = e->infiniband;
    m->qpn = e->qpn;
    m->psn = e->psn;
    m->mtu = e->mtu;
    m->reads = e->reads;
}

bool mcd_pair_end_read(const Mcd__End *m, struct mct_rdma_end *out)
{
    memset(out, 0, sizeof(*out));
    if (m == NULL || m->nic == 0 || m->gid.len != sizeof(out->gid) || m->qpn >> 24 != 0 ||
        m->psn >> 24 != 0 || m->lid > UINT16_MAX || m->mtu < 256 || m->mtu > 4096 ||
        (m->mtu & (m->mtu - 1)) != 0 || m->reads > 255)
        return false;
    out->nic = m->nic;
    memcpy(out->gid, m->gid.data, sizeof(out->gid));
    out->lid = m->lid;
    out->infiniband = m->infiniband;
    out->qpn = m->qpn;
    out->psn = m->psn;
    out->mtu = m->mtu;
    out->reads = m->reads;
    mcd_peer_text(out->name, sizeof(out->name), m->name);
    return true;
}

void mcd_nics_write(const struct mcd_cluster *c, Mcd__Hello *m, struct mcd_nics_hello *h)
{
    const struct mct_rdma *rdma = c->agent->rdma;

    m->nics = h->list;
    for (unsigned i = 0; rdma != NULL && i < mct_rdma_nics(rdma); i++) {
        struct mct_rdma_nic *n = &h->nics[i];
        Mcd__Nic *o = &h->m[m->n_nics];

        mct_rdma_nic(rdma, i, n);
        if (n->state != MCT_RDMA_UP)
            continue;
        mcd__nic__init(o);
        o->id = n->id;
        o->name = n->name;
        o->gid = (ProtobufCBinaryData){.len = sizeof(n->gid), .data = n->gid};
        o->prefix = n->prefix;
        o->infiniband = n->infiniband;
        o->rate = n->rate;
        o->node = n->node;
        h->list[m->n_nics++] = o;
    }
}

/* Its place: that of the same name, else a new one, else one that the peer has no more. */
static struct mcd_peer_nic *place(struct mcd_peer *p, const char *name)
{
    struct mcd_peer_nic *spare = NULL;

    for (unsigned i = 0; i < p->nnics; i++) {
        if (strcmp(p->nics[i].name, name) == 0)
            return p->nics[i].there ? NULL : &p->nics[i]; /* named twice: the first counts */
        if (!p->nics[i].there)
            spare = &p->nics[i];
    }
    return p->nnics < MCT_RDMA_NICS_MAX ? &p->nics[p->nnics++] : spare;
}

void mcd_nics_read(struct mcd_peer *p, const Mcd__Hello *m)
{
    for (unsigned i = 0; i < p->nnics; i++)
        p->nics[i].there = false;
    for (size_t i = 0; i < m->n_nics && i < MCT_RDMA_NICS_MAX; i++) {
        const Mcd__Nic *n = m->nics[i];
        struct mcd_peer_nic *to;
        char name[MCT_RDMA_NAME_MAX];

        if (n->id == 0 || n->gid.len != sizeof(to->gid) || n->prefix > 128 || n->name[0] == '\0')
            continue;
        mcd_peer_text(name, sizeof(name), n->name);
        to = place(p, name);
        if (to == NULL)
            continue;
        *to = (struct mcd_peer_nic){
            .id = n->id, .prefix = (uint8_t)n->prefix, .infiniband = n->infiniband, .there = true};
        memcpy(to->name, name, sizeof(to->name));
        memcpy(to->gid, n->gid.data, sizeof(to->gid));
    }
}

void mcd_nics_gone(struct mcd_peer *p)
{
    for (unsigned i = 0; i < p->nnics; i++)
        p->nics[i].there = false;
    mcd_ways_pair(p);
}

/* ---- PAIR --------------------------------------------------------------------------- */

static void remove_it(struct mcd_answering *x)
{
    struct mcd_answering **link = &x->peer->answering;

    while (*link != x)
        link = &(*link)->next;
    *link = x->next;
    x->visitor->adopting--;
    if (x->pair != NULL)
        mct_rdma_pair_destroy(x->pair);
    free(x);
}

static void refuse(struct mcd_peer *p, const struct mcd_wire_header *h, uint32_t status,
                   const char *text)
{
    Mcd__Paired m = MCD__PAIRED__INIT;

    m.error = (char *)(uintptr_t)text;
    p->cluster->counters.pairs_refused++;
    mcd_log_limited(MCD_LOG_WARNING, "a queue pair for peer %s was refused: %s", p->address, text);
    mcd_peer_answer(p, h, status, &m.base);
}

static void give_up(struct mcd_answering *x, uint32_t status, const char *text)
{
    refuse(x->peer, &x->h, status, text);
    remove_it(x);
}

/* It receives. */
static void connected(void *context, int res, const char *text)
{
    struct mcd_answering *x = context;

    if (res != 0) {
        give_up(x, MCS_RAIL, text);
        return;
    }
    if (x->visitor->leaving) {
        give_up(x, MCS_STALE, "the route that it was for has ended");
        return;
    }
    x->own = *mct_rdma_pair_end(x->pair);
    x->serve = (struct mcd_serve){
        .ops = &mct_rdma_ops,
        .visitor = x->visitor,
        .conn = {.fd = -1, .pair = x->pair, .id = x->conn, .features = MCT_TCP_FEATURE_NOTIFY},
    };
    x->pair = NULL;
    x->stage = SERVING;
    mcd_engine_call(x->visitor->engine, &x->command, mcd_serve_adopt, &x->serve);
}

static void served(struct mcd_answering *x)
{
    Mcd__Paired m = MCD__PAIRED__INIT;
    Mcd__End end = MCD__END__INIT;

    if (x->serve.handed_back)
        x->pair = x->serve.conn.pair;
    if (x->serve.res != 0) {
        give_up(x, MCS_LOCAL_RESOURCE, strerror(-x->serve.res));
        return;
    }
    mcd_pair_end_write(&x->own, &end);
    m.end = &end;
    m.error = (char *)"";
    x->peer->cluster->counters.pairs++;
    MCS_FAILPOINT(pair_ready);
    mcd_peer_answer(x->peer, &x->h, MCS_OK, &m.base);
    remove_it(x);
}

static void created(void *context, int res, const char *text)
{
    struct mcd_answering *x = context;

    if (res == 0)
        res = MCS_FAIL(pair_made);
    if (res != 0) {
        /* the device has no more of them, or no memory: fewer will have to do */
        give_up(x, res == -ENOSPC || res == -ENOMEM ? MCS_LIMIT : MCS_RAIL, text);
        return;
    }
    x->stage = CONNECTING;
    mct_rdma_pair_connect(x->pair, &x->theirs, connected, x);
}

static struct mcd_answering *find(const struct mcd_peer *p, uint64_t conn)
{
    struct mcd_answering *x = p->answering;

    while (x != NULL && x->conn != conn)
        x = x->next;
    return x;
}

/* Queue pairs that serve the peer, those on their way included. */
static unsigned count(const struct mcd_peer *p)
{
    unsigned n = 0;

    for (const struct mcd_visitor *v = p->visitors; v != NULL; v = v->next)
        n += mcs_load_relaxed(&v->pairs);
    for (const struct mcd_answering *x = p->answering; x != NULL; x = x->next)
        n += x->stage != ENDING;
    return n;
}

/* The device of this id; -1: none, or it is not up. */
static int find_nic(const struct mct_rdma *rdma, uint64_t id)
{
    for (unsigned i = 0; i < mct_rdma_nics(rdma); i++) {
        struct mct_rdma_nic n;

        mct_rdma_nic(rdma, i, &n);
        if (n.id == id)
            return n.state == MCT_RDMA_UP ? (int)i : -1;
    }
    return -1;
}

static void take(struct mcd_peer *p, const struct mcd_wire_header *h, const Mcd__Pair *m,
                 const struct mct_rdma_end *theirs)
{
    struct mcd_agent *a = p->cluster->agent;
    struct mcd_answering *x = NULL;
    struct mcd_visitor *v;
    struct mct *instance;
    char text[MCD_ADDRESS_TEXT_MAX + 120];
    int nic, res;

    nic = a->rdma == NULL ? -1 : find_nic(a->rdma, m->nic);
    if (nic < 0) {
        snprintf(text, sizeof(text),
                 "%s has no such RDMA device that is up: it has told of others since",
                 p->cluster->address);
        refuse(p, h, MCS_STALE, text);
        return;
    }
    if (count(p) >= MCD_PAIRS_OF_A_PEER) {
        snprintf(text, sizeof(text),
                 "%s serves one agent with at most %u queue pairs: lower [rdma] queue_pairs there",
                 p->cluster->address, MCD_PAIRS_OF_A_PEER);
        refuse(p, h, MCS_LIMIT, text);
        return;
    }
    if (mcd_earlier_lives_go_on(p->cluster)) {
        refuse(p, h, MCS_BUSY, "what the agent's earlier life has sent is being ended first");
        return;
    }
    v = mcd_visitor_of(p, m->route);
    instance = v == NULL ? NULL : mcd_pair_instance(v->engine);
    x = instance == NULL ? NULL : calloc(1, sizeof(*x));
    if (x == NULL) {
        refuse(p, h, MCS_LIMIT, "too many routes, or no memory");
        return;
    }
    x->peer = p;
    x->visitor = v;
    x->h = *h;
    x->conn = m->conn;
    x->theirs = *theirs;
    x->deadline = mcd_now_ns() + SETUP_NS;
    x->next = p->answering;
    p->answering = x;
    v->adopting++;
    res = mct_rdma_pair_create(a->rdma, (unsigned)nic, instance, x->conn, created, x, &x->pair);
    if (res != 0)
        give_up(x, MCS_LOCAL_RESOURCE, mcd_pair_why(res));
}

void mcd_pair_on_pair(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *m,
                      size_t size)
{
    Mcd__Pair *r = mcd__pair__unpack(NULL, size, m);
    struct mct_rdma_end theirs;

    if (r == NULL || r->route == 0 || r->conn == 0 || !mcd_pair_end_read(r->end, &theirs) ||
        find(p, r->conn) != NULL) {
        p->cluster->wire_stats.malformed++;
        refuse(p, h, MCS_PROTOCOL, "the request for a queue pair is malformed");
    } else {
        take(p, h, r, &theirs);
    }
    if (r != NULL)
        mcd__pair__free_unpacked(r, NULL);
}

/* ---- UNPAIR -------------------------------------------------------------------------- */

static void end(struct mcd_answering *x)
{
    x->stage = ENDING;
    x->serve = (struct mcd_serve){
        .ops = &mct_rdma_ops, .visitor = x->visitor, .conn = {.fd = -1, .id = x->conn}};
    memset(&x->command, 0, sizeof(x->command));
    mcd_engine_call(x->visitor->engine, &x->command, mcd_serve_end, &x->serve);
}

/* *v: the visitor that it may serve, or NULL. False: ask again, one of that route is on its way out. */
static bool find_visitor(struct mcd_peer *p, uint64_t route, struct mcd_visitor **out)
{
    *out = NULL;
    for (struct mcd_visitor *v = p->visitors; v != NULL; v = v->next) {
        if (v->route != route)
            continue;
        if (v->leaving)
            return false;
        *out = v;
    }
    return true;
}

static void unpair(struct mcd_peer *p, const struct mcd_wire_header *h, const Mcd__Unpair *m)
{
    struct mcd_answering *x = find(p, m->conn);
    struct mcd_visitor *v;

    if (x != NULL && x->stage == ENDING) {
        x->h = *h; /* asked again: that one is answered */
        return;
    }
    if (x != NULL && x->stage == SERVING) {
        mcd_peer_answer(p, h, MCS_BUSY, NULL);
        return;
    }
    if (x != NULL) { /* no engine has seen it, and the asker wants it no more */
        remove_it(x);
        mcd_peer_answer(p, h, MCS_OK, NULL);
        return;
    }
    if (!find_visitor(p, m->route, &v)) {
        mcd_peer_answer(p, h, MCS_BUSY, NULL);
        return;
    }
    x = v == NULL ? NULL : calloc(1, sizeof(*x));
    if (x == NULL) {
        mcd_peer_answer(p, h, v == NULL ? MCS_OK : MCS_NO_MEMORY, NULL);
        return;
    }
    x->peer = p;
    x->visitor = v;
    x->h = *h;
    x->conn = m->conn;
    x->next = p->answering;
    p->answering = x;
    v->adopting++;
    end(x);
}

void mcd_pair_on_unpair(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *m,
                        size_t size)
{
    Mcd__Unpair *r = mcd__unpair__unpack(NULL, size, m);

    if (r == NULL) {
        p->cluster->wire_stats.malformed++;
        mcd_peer_answer(p, h, MCS_PROTOCOL, NULL);
        return;
    }
    unpair(p, h, r);
    mcd__unpair__free_unpacked(r, NULL);
}

/* ---- upkeep -------------------------------------------------------------------------- */

void mcd_pairs_poll(struct mcd_peer *p, uint64_t now)
{
    struct mcd_answering *next;

    for (struct mcd_answering *x = p->answering; x != NULL; x = next) {
        next = x->next;
        if (x->stage >= SERVING) {
            if (mcs_load_acquire(&x->command.done) == 0) /* partner: the engine's release */
                continue;
            if (x->stage == SERVING) {
                served(x);
            } else {
                mcd_peer_answer(p, &x->h, MCS_OK, NULL);
                remove_it(x);
            }
        } else if (now > x->deadline) {
            give_up(x, MCS_TIMEOUT, "the RDMA device has not made a queue pair in time");
        }
    }
}

void mcd_pairs_drop(struct mcd_peer *p)
{
    struct mcd_answering *next;

    mcd_pairs_poll(p, mcd_now_ns());
    for (struct mcd_answering *x = p->answering; x != NULL; x = next) {
        next = x->next;
        if (x->stage < SERVING)
            remove_it(x);
    }
}
