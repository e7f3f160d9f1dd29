/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The RDMA rails of the ways to a peer: which devices of both hosts belong together, and their queue pairs.
 *
 *   mct_rdma_pair_create --> PAIR --> Paired: the peer's receives --> mct_rdma_pair_connect --> the engine's
 *
 * Nothing is posted before the peer has said that its queue pair receives.  One that has ended, whatever
 * for, is ended at the peer as well (UNPAIR, unpair.c), and only its answer settles what was lost with it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include "counters.h"
#include <daemon/peer.pb-c.h>
#include "log.h"
#include "pair.h"
#include "shm/failpoint.h"
#include "shm/status.h"
#include "transports/rdma/gid.h"
#include "way.h"

#define MS UINT64_C(1000000)
#define ANSWER_MS 5000u      /* for the answer to PAIR */
#define SETUP_NS (8000 * MS) /* for everything up to the engine */
#define FEW_NS (10000 * MS)  /* so long what the peer's limit allows will do */
#define PAIRS_MAX 256u       /* of one way, those under way included */
#define BUFFER (MCT_RDMA_TEXT_MAX + 160)

enum stage { CREATING, ASKING, CONNECTING, ADOPTING };

/* A queue pair on its way to the engine. */
struct mcd_pairing {
    struct mcd_pairing *next;
    struct mcd_way *way;
    unsigned rail;
    enum stage stage;
    uint64_t conn, deadline;
    struct mct_rdma_pair *pair; /* NULL: the engine's */
    bool asked;                 /* the peer may have its half */
    struct mcd_call call;
    struct mcd_command command;
    struct mcd_route_conn adopt;
};

/* One that the engine was given. */
struct mcd_paired {
    struct mcd_paired *next;
    uint64_t conn;
};

/* ---- ends ------------------------------------------------------------------------- */

static bool forget_paired(struct mcd_way *w, uint64_t conn)
{
    struct mcd_paired **link = &w->paired, *p;

    while (*link != NULL && (*link)->conn != conn)
        link = &(*link)->next;
    p = *link;
    if (p == NULL)
        return false;
    *link = p->next;
    w->npaired--;
    free(p);
    return true;
}

static void take_ended(struct mcd_way *w)
{
    uint64_t conns[32];
    unsigned n;

    do {
        n = mcd_route_take_ended(w->route, conns, 32);
        for (unsigned i = 0; i < n; i++) {
            forget_paired(w, conns[i]);
            mcd_unpair(w->peer, w, w->id, conns[i]);
        }
    } while (n == 32);
}

/* ---- one queue pair ---------------------------------------------------------------- */

static void pairing_free(struct mcd_pairing *x)
{
    struct mcd_way *w = x->way;
    struct mcd_pairing **link = &w->pairings;

    while (*link != x)
        link = &(*link)->next;
    *link = x->next;
    w->npairings--;
    w->rails[x->rail].opening--;
    mcd_peer_forget(w->peer, &x->call);
    if (x->pair != NULL)
        mct_rdma_pair_destroy(x->pair);
    if (x->asked)
        mcd_unpair(w->peer, w, w->id, x->conn);
    free(x);
}

static void pairing_failed(struct mcd_pairing *x, const char *why)
{
    struct mcd_way *w = x->way;
    struct mcd_way_rail *r = &w->rails[x->rail];

    if (r->failures == 0)
        mcd_log_limited(MCD_LOG_WARNING, "peer %s, RDMA rail %s - %s: %s", w->peer->address,
                        r->local, r->peer, why);
    snprintf(r->why, sizeof(r->why), "%s", why);
    mcd_way_wait_longer(r);
    pairing_free(x);
}

/* Both ends can send: the engine may post. */
static void connected(void *context, int res, const char *text)
{
    struct mcd_pairing *x = context;
    struct mcd_way *w = x->way;
    struct mcd_paired *p;

    if (res == 0 && MCS_FAIL(pair_connected) != 0) {
        res = -EIO;
        text = "a test's failpoint";
    }
    p = res != 0 ? NULL : malloc(sizeof(*p));
    if (p == NULL) {
        pairing_failed(x, res != 0 ? text : "out of memory");
        return;
    }
    *p = (struct mcd_paired){.next = w->paired, .conn = x->conn};
    w->paired = p;
    w->npaired++;
    x->stage = ADOPTING;
    x->adopt = (struct mcd_route_conn){
        .route = w->route,
        .rail = x->rail,
        .conn = {.fd = -1, .pair = x->pair, .id = x->conn, .features = MCT_TCP_FEATURE_NOTIFY},
    };
    x->pair = NULL;
    x->asked = false; /* from now on it is the engine that tells of its end */
    mcd_engine_call(w->engine, &x->command, mcd_route_adopt, &x->adopt);
}

/* The engine has it, or not. */
static void adopted(struct mcd_pairing *x)
{
    struct mcd_way *w = x->way;
    struct mcd_way_rail *r = &w->rails[x->rail];

    if (x->adopt.res == 0) {
        r->why[0] = '\0';
        mcd_way_adopted(r);
        pairing_free(x);
        return;
    }
    forget_paired(w, x->conn);
    if (x->adopt.handed_back)
        x->pair = x->adopt.conn.pair;
    x->asked = true;
    pairing_failed(x, strerror(-x->adopt.res));
}

static void answered(struct mcd_call *call, uint32_t status, const uint8_t *payload, size_t size)
{
    struct mcd_pairing *x = call->context;
    struct mcd_way_rail *r = &x->way->rails[x->rail];
    Mcd__Paired *m = payload == NULL ? NULL : mcd__paired__unpack(NULL, size, payload);
    struct mct_rdma_end peer;
    char text[BUFFER], theirs[256] = "";

    if (m != NULL)
        mcd_peer_text(theirs, sizeof(theirs), m->error);
    if (status == MCS_LIMIT)
        r->few_until = mcd_now_ns() + FEW_NS;
    if (status == MCS_OK &&
        (m == NULL || !mcd_pair_end_read(m->end, &peer) || peer.nic != r->theirs.id)) {
        status = MCS_PROTOCOL;
        snprintf(theirs, sizeof(theirs), "its answer makes no sense");
    }
    if (m != NULL)
        mcd__paired__free_unpacked(m, NULL);
    if (status != MCS_OK) {
        /* what it has refused it does not have; without an answer nobody knows */
        x->asked =
            status == MCS_TIMEOUT || status == MCS_PEER_UNREACHABLE || status == MCS_PROTOCOL;
        snprintf(text, sizeof(text), "the peer has not made its queue pair: %s",
                 theirs[0] != '\0' ? theirs : mcd_status_word(status));
        pairing_failed(x, text);
        return;
    }
    x->stage = CONNECTING;
    mct_rdma_pair_connect(x->pair, &peer, connected, x);
}

static void created(void *context, int res, const char *text)
{
    struct mcd_pairing *x = context;
    struct mcd_way *w = x->way;
    struct mcd_way_rail *r = &w->rails[x->rail];
    Mcd__Pair m = MCD__PAIR__INIT;
    Mcd__End end = MCD__END__INIT;

    if (res != 0) {
        if (res == -ENOSPC || res == -ENOMEM)
            r->few_until = mcd_now_ns() + FEW_NS; /* the device has no more */
        pairing_failed(x, text);
        return;
    }
    if (mct_rdma_pair_end(x->pair)->nic != r->own.id) {
        pairing_failed(x, "the device has become another one meanwhile");
        return;
    }
    mcd_pair_end_write(mct_rdma_pair_end(x->pair), &end);
    m.route = w->id;
    m.conn = x->conn;
    m.nic = r->theirs.id;
    m.end = &end;
    x->stage = ASKING;
    x->asked = true;
    x->call.done = answered;
    x->call.context = x;
    res = mcd_peer_call(w->peer, &x->call, MCD_WIRE_PAIR, &m.base, ANSWER_MS);
    if (res != 0) {
        x->asked = false;
        pairing_failed(x, "the peer is not connected");
    }
}

static void begin(struct mcd_way *w, unsigned rail)
{
    struct mcd_agent *a = w->peer->cluster->agent;
    struct mcd_way_rail *r = &w->rails[rail];
    struct mct *instance = mcd_pair_instance(w->engine);
    struct mcd_pairing *x = calloc(1, sizeof(*x));
    int res;

    if (x == NULL || instance == NULL) {
        free(x);
        mcd_way_wait_longer(r);
        return;
    }
    x->way = w;
    x->rail = rail;
    x->conn = mcd_incarnation();
    x->deadline = mcd_now_ns() + SETUP_NS;
    x->next = w->pairings;
    w->pairings = x;
    w->npairings++;
    r->opening++;
    res = MCS_FAIL(pair_begun);
    if (res == 0)
        res = mct_rdma_pair_create(a->rdma, r->nic, instance, x->conn, created, x, &x->pair);
    if (res != 0)
        pairing_failed(x, mcd_pair_why(res));
}

void mcd_way_rdma_poll(struct mcd_way *w, uint64_t now)
{
    const struct mcd_config *config = &w->peer->cluster->agent->config;
    struct mcd_route_report report;
    struct mcd_pairing *next;

    if (w->route == NULL)
        return;
    for (struct mcd_pairing *x = w->pairings; x != NULL; x = next) {
        next = x->next;
        if (x->stage == ADOPTING) {
            if (mcs_load_acquire(&x->command.done) != 0) /* partner: the engine's release */
                adopted(x);
        } else if (now > x->deadline) {
            pairing_failed(x, x->stage == CREATING ? "the device has not made a queue pair in time"
                                                   : "the queue pair was not connected in time");
        }
    }
    take_ended(w);
    if (w->leaving || w->peer->state != MCD_PEER_UP || w->peer->remotes == NULL)
        return;
    mcd_route_get_report(w->route, &report);
    for (unsigned i = 0; i < w->nrails; i++) {
        struct mcd_way_rail *r = &w->rails[i];
        uint64_t there = report.rail[i].conns + r->opening;

        if (!r->rdma)
            continue;
        if (report.rail[i].conns != 0 && now > r->retry_at + MCD_WAY_RETRY_MAX_NS)
            r->adopted = 0; /* they have lasted */
        if (r->unusable || now < r->retry_at || (there != 0 && now < r->few_until))
            continue;
        for (; there < config->rdma_queue_pairs && w->npaired + w->npairings < PAIRS_MAX &&
               mcd_unpairs(w->peer) < PAIRS_MAX && now >= r->retry_at;
             there++)
            begin(w, i);
    }
}

bool mcd_way_rdma_leave(struct mcd_way *w)
{
    struct mcd_pairing *next;

    for (struct mcd_pairing *x = w->pairings; x != NULL; x = next) {
        next = x->next;
        if (x->stage != ADOPTING)
            pairing_free(x);
        else if (mcs_load_acquire(&x->command.done) != 0) /* partner: the engine's release */
            adopted(x);
    }
    return w->pairings == NULL && mcd_unpairs_release(w->peer, w);
}

void mcd_way_rdma_left(struct mcd_way *w)
{
    while (w->paired != NULL) {
        uint64_t conn = w->paired->conn;

        forget_paired(w, conn);
        mcd_unpair(w->peer, NULL, w->id, conn);
    }
}

/* A device with its address, IPv4 as such. */
static void print_end(const char *name, const struct mcd_nic_key *key, char *out, size_t size)
{
    char text[MCT_GID_TEXT_MAX] = "";

    if (key->id != 0) /* else it is away */
        (void)mct_gid_text(key->gid, text);
    snprintf(out, size, "%s%s%s", name, text[0] != '\0' ? " " : "", text);
}

bool mcd_way_ends(const struct mcd_peer *p, unsigned engine, unsigned rail,
                  struct mcd_way_ends *out)
{
    const struct mcd_way *w = &p->ways[engine];
    const struct mcd_way_rail *r = &w->rails[rail];

    if (rail >= w->nrails || !r->rdma)
        return false;
    print_end(r->local, &r->own, out->local, sizeof(out->local));
    print_end(p->nics[r->peer_nic].name, &r->theirs, out->peer, sizeof(out->peer));
    memcpy(out->why, r->why, sizeof(out->why));
    return true;
}

/* ---- which devices belong together --------------------------------------------------- */

static bool same_network(const struct mcd_own_nic *own, const struct mcd_peer_nic *theirs)
{
    unsigned whole = own->prefix / 8, bits = own->prefix % 8;

    return own->infiniband == theirs->infiniband && own->prefix != 0 && own->prefix <= 128 &&
           memcmp(own->gid, theirs->gid, whole) == 0 &&
           (bits == 0 || ((own->gid[whole] ^ theirs->gid[whole]) >> (8 - bits)) == 0);
}

static struct mcd_way_rail *find_rail(struct mcd_way *w, unsigned nic, unsigned peer_nic)
{
    for (unsigned i = 0; i < w->nrails; i++)
        if (w->rails[i].rdma && w->rails[i].nic == nic && w->rails[i].peer_nic == peer_nic)
            return &w->rails[i];
    return NULL;
}

static void add_rail(struct mcd_way *w, unsigned nic, const struct mct_rdma_nic *own,
                     unsigned peer_nic)
{
    const struct mcd_config *c = &w->peer->cluster->agent->config;
    const struct mcd_peer_nic *theirs = &w->peer->nics[peer_nic];
    struct mcd_rail_options o = {
        .ops = &mct_rdma_ops,
        .local = own->name,
        .peer = theirs->name,
        .node = own->node,
        .slice = c->rdma_slice,
        .window = c->rdma_window,
        .silence_ns = c->rdma_silent_ms * MS,
    };
    struct mcd_way_rail *r;
    unsigned n = 0;

    for (unsigned i = 0; i < w->nrails; i++)
        n += w->rails[i].rdma;
    if (n == MCD_RAILS_MAX || find_rail(w, nic, peer_nic) != NULL ||
        mcd_route_rail(w->route, &o) != (int)w->nrails)
        return;
    r = &w->rails[w->nrails++];
    r->rdma = true;
    r->nic = nic;
    r->peer_nic = peer_nic;
    r->unusable = true;
    memcpy(r->local, own->name, sizeof(own->name));
    memcpy(r->peer, theirs->name, sizeof(theirs->name));
    mcd_way_say(
        w, &(struct mcd_route_word){.rail = (int)w->nrails - 1,
                                    .reason = MCD_RAIL_NEW,
                                    .verdict = MCS_OK}); /* until both ends are seen to be there */
}

/* Of those that may go together, the n-th of one side goes with the n-th of the other, and where one side has more, its
 * others go round: each device has a rail, and none has one to all. */
static bool nth_with_nth(unsigned own, unsigned nown, unsigned theirs, unsigned ntheirs)
{
    return nown >= ntheirs ? own % ntheirs == theirs : theirs % nown == own;
}

/* May they go together? In the first pass those of one network do, in the second one all of one link layer. */
static bool together(unsigned pass, const struct mcd_own_nic *own,
                     const struct mcd_peer_nic *theirs)
{
    return own->known &&
           (pass == 0 ? same_network(own, theirs) : own->infiniband == theirs->infiniband);
}

/* Among those that each of them may go with, are they each other's? */
static bool belong(const struct mcd_peer *p, unsigned pass, unsigned own, unsigned nown,
                   unsigned theirs)
{
    const struct mcd_own_nic *nics = p->cluster->nics;
    unsigned before_own = 0, all_own = 0, before = 0, all = 0;

    for (unsigned i = 0; i < nown; i++) {
        bool may = together(pass, &nics[i], &p->nics[theirs]);

        all_own += may;
        before_own += may && i < own;
    }
    for (unsigned i = 0; i < p->nnics; i++) {
        bool may = together(pass, &nics[own], &p->nics[i]);

        all += may;
        before += may && i < theirs;
    }
    return nth_with_nth(before_own, all_own, before, all);
}

static void pair_devices(struct mcd_way *w, const struct mct_rdma_nic *nics, unsigned nown)
{
    const struct mcd_peer *p = w->peer;
    bool any = false;

    for (unsigned pass = 0; pass < 2 && !any; pass++) {
        for (unsigned i = 0; i < nown; i++) {
            for (unsigned k = 0; k < p->nnics; k++) {
                if (!together(pass, &p->cluster->nics[i], &p->nics[k]))
                    continue;
                any = true;
                if (belong(p, pass, i, nown, k))
                    add_rail(w, i, &nics[i], k);
            }
        }
    }
}

/* What is known of a device that is away, or without an address, stays: others do not take its place. */
static void remember(struct mcd_own_nic *own, const struct mct_rdma_nic *nic)
{
    static const uint8_t none[16];

    if (nic->id == 0)
        return;
    own->known = true;
    own->infiniband = nic->infiniband;
    if (memcmp(nic->gid, none, sizeof(none)) == 0)
        return;
    memcpy(own->gid, nic->gid, sizeof(own->gid));
    own->prefix = nic->prefix;
}

/* Is a rail's end another than its connections were made for? They are given up at once. */
static void look_at_ends(struct mcd_way *w, unsigned rail, const struct mct_rdma_nic *nic)
{
    struct mcd_way_rail *r = &w->rails[rail];
    const struct mcd_peer_nic *t = &w->peer->nics[r->peer_nic];
    struct mcd_nic_key own = {0}, theirs = {0};
    struct mcd_route_word word = {.rail = (int)rail, .verdict = MCS_OK};
    struct mcd_pairing *next;

    if (nic->state == MCT_RDMA_UP) {
        own.id = nic->id;
        memcpy(own.gid, nic->gid, sizeof(own.gid));
    }
    if (t->there) {
        theirs.id = t->id;
        memcpy(theirs.gid, t->gid, sizeof(theirs.gid));
    }
    if (memcmp(&own, &r->own, sizeof(own)) == 0 && memcmp(&theirs, &r->theirs, sizeof(own)) == 0)
        return;
    word.reason = own.id == 0      ? MCD_RAIL_CARRIER
                  : theirs.id == 0 ? MCD_RAIL_PEER
                                   : MCD_RAIL_ADDRESS;
    if (!r->unusable)
        mcd_way_say(w, &word);
    for (struct mcd_pairing *x = w->pairings; x != NULL; x = next) {
        next = x->next;
        if (x->rail == rail && x->stage != ADOPTING)
            pairing_free(x);
    }
    r->own = own;
    r->theirs = theirs;
    r->unusable = own.id == 0 || theirs.id == 0;
    /* a device that has lost its IPv4 address falls back to a link-local one, mostly for a moment */
    if (!r->unusable && !nic->infiniband &&
        mct_gid_is_ipv4(own.gid) != mct_gid_is_ipv4(theirs.gid)) {
        r->unusable = true;
        snprintf(r->why, sizeof(r->why), "one end has an IPv4 address, the other one an IPv6 one");
    }
    r->failures = r->adopted = 0;
    r->retry_at = r->few_until = 0;
    if (r->unusable)
        return;
    word.usable = true;
    mcd_way_say(w, &word);
}

void mcd_way_rdma_pair(struct mcd_way *w)
{
    struct mct_rdma *rdma = w->peer->cluster->agent->rdma;
    static struct mct_rdma_nic own[MCT_RDMA_NICS_MAX]; /* the control thread's */
    unsigned n;

    if (rdma == NULL || w->route == NULL || w->leaving)
        return;
    n = mct_rdma_nics(rdma);
    for (unsigned i = 0; i < n; i++) {
        mct_rdma_nic(rdma, i, &own[i]);
        remember(&w->peer->cluster->nics[i], &own[i]);
    }
    pair_devices(w, own, n);
    for (unsigned i = 0; i < w->nrails; i++)
        if (w->rails[i].rdma)
            look_at_ends(w, i, &own[w->rails[i].nic]);
}
