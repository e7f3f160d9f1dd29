/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways to a peer: a route for each engine, and the upkeep of the connections of its rails.
 * Tokens come over the control connection; each buys one data connection, which is opened here and
 * then handed to the engine.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cluster.h"
#include <daemon/peer.pb-c.h>
#include "log.h"
#include "shm/status.h"
#include "way.h"
#include "shm/failpoint.h"

#define MS UINT64_C(1000000)
#define RETRY_MIN MCD_WAY_RETRY_MIN_NS
#define RETRY_MAX MCD_WAY_RETRY_MAX_NS
#define AGAIN_MIN (10 * MS)  /* after a connection that was opened */
#define RAILS_LIMIT_MS 2000u /* for the answer to RAILS */

/* ---- one data connection ----------------------------------------------------------- */

static void setup_free(struct mcd_way_setup *s)
{
    struct mcd_way *w = s->way;
    struct mcd_way_setup **link = &w->setups;

    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    w->rails[s->rail].opening--;
    mcd_alarm_clear(w->peer->cluster->agent, &s->timer);
    mcd_watch_remove(w->peer->cluster->agent, &s->watch);
    mcd_dial_cancel(s->dial);
    if (s->fd >= 0)
        close(s->fd);
    free(s);
}

void mcd_way_wait_longer(struct mcd_way_rail *r)
{
    uint64_t wait = RETRY_MIN << (r->failures < 7 ? r->failures : 7);
    uint64_t most = r->rdma ? MCD_WAY_RDMA_RETRY_MAX_NS : RETRY_MAX;

    r->failures++;
    r->retry_at = mcd_now_ns() + (wait < most ? wait : most);
}

/* One that is lost at once, again and again, must not keep both hosts busy. */
void mcd_way_adopted(struct mcd_way_rail *r)
{
    r->failures = 0;
    r->retry_at = mcd_now_ns() + (AGAIN_MIN << (r->adopted < 6 ? r->adopted : 6));
    r->adopted++;
}

static void setup_failed(struct mcd_way_setup *s, const char *why)
{
    struct mcd_way_rail *r = &s->way->rails[s->rail];

    if (r->failures == 0)
        mcd_log_limited(MCD_LOG_INFO, "peer %s, rail %s - %s: %s", s->way->peer->address,
                        r->local[0] != '\0' ? r->local : "any", r->peer, why);
    mcd_way_wait_longer(r);
    setup_free(s);
}

static void setup_timer(struct mcd_alarm *t)
{
    struct mcd_way_setup *s = t->context;

    if (!s->adopting) {
        setup_failed(s, "the peer did not answer on a fresh data connection");
    } else if (mcs_load_acquire(&s->command.done) == 0) { /* partner: the engine's release */
        mcd_alarm_set(s->way->peer->cluster->agent, t, mcd_now_ns() + MS / 5);
    } else {
        mcd_way_adopted(&s->way->rails[s->rail]);
        setup_free(s);
    }
}

static void setup_readable(struct mcd_watch *watch, uint32_t events)
{
    struct mcd_way_setup *s = watch->context;
    struct mcd_agent *a = s->way->peer->cluster->agent;
    char text[160];
    ssize_t n;

    (void)events;
    n = recv(s->fd, (char *)&s->opened + s->have, sizeof(s->opened) - s->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        setup_failed(s, "the peer closed a fresh data connection");
        return;
    }
    s->have += (size_t)n;
    if (s->have < sizeof(s->opened))
        return;
    if (s->opened.magic != MCT_TCP_MAGIC || s->opened.version != MCT_TCP_VERSION ||
        s->opened.size != sizeof(s->opened) || s->opened.conn != s->open.conn) {
        setup_failed(s, "what answers there does not speak this data protocol");
        return;
    }
    if (s->opened.status != MCS_OK) {
        snprintf(text, sizeof(text), "the peer refused a data connection, status %u",
                 s->opened.status);
        setup_failed(s, text);
        return;
    }
    if (MCS_FAIL(setup_answered) != 0) {
        setup_failed(s, "a test's failpoint");
        return;
    }
    mcd_watch_remove(a, &s->watch);
    s->conn = (struct mcd_route_conn){
        .route = s->way->route,
        .rail = s->rail,
        .conn = {.fd = s->fd, .id = s->open.conn, .features = s->opened.features},
    };
    s->fd = -1;
    s->adopting = true;
    mcd_alarm_set(a, &s->timer, mcd_now_ns() + MS / 10);
    mcd_engine_call(s->way->engine, &s->command, mcd_route_adopt, &s->conn);
}

static void setup_dialed(void *context, int fd, int error, const char *text)
{
    struct mcd_way_setup *s = context;
    struct mcd_agent *a = s->way->peer->cluster->agent;

    (void)error;
    s->dial = NULL;
    s->fd = fd;
    if (fd < 0) {
        setup_failed(s, text);
        return;
    }
    s->watch.ready = setup_readable;
    s->watch.context = s;
    /* the first bytes on a fresh connection: there is room */
    if (MCS_FAIL(setup_sent) != 0 ||
        send(fd, &s->open, sizeof(s->open), MSG_NOSIGNAL | MSG_DONTWAIT) !=
            (ssize_t)sizeof(s->open) ||
        mcd_watch_add(a, &s->watch, fd, EPOLLIN | EPOLLRDHUP) != 0) {
        setup_failed(s, "a fresh data connection broke");
        return;
    }
    mcd_alarm_set(a, &s->timer, mcd_now_ns() + a->config.connect_ms * MS);
}

static void setup_begin(struct mcd_way *w, unsigned rail, const ProtobufCBinaryData *token)
{
    struct mcd_cluster *c = w->peer->cluster;
    struct mcd_way_rail *r = &w->rails[rail];
    struct mcd_way_setup *s = aligned_alloc(16, (sizeof(*s) + 15) & ~(size_t)15);

    if (s == NULL)
        return;
    memset(s, 0, sizeof(*s));
    s->way = w;
    s->rail = rail;
    s->fd = s->watch.fd = -1;
    s->timer.fire = setup_timer;
    s->timer.context = s;
    s->open = (struct mct_tcp_open){
        .magic = MCT_TCP_MAGIC,
        .version = MCT_TCP_VERSION,
        .size = sizeof(s->open),
        .conn = mcd_incarnation(),
        .features = MCT_TCP_FEATURES,
    };
    memcpy(s->open.token, token->data, sizeof(s->open.token));
    s->next = w->setups;
    w->setups = s;
    r->opening++;
    if (mcd_dial(c->agent, r->peer, r->local, c->agent->config.connect_ms, setup_dialed, s,
                 &s->dial) != 0)
        setup_failed(s, "its addresses do not fit together");
}

/* ---- rails ------------------------------------------------------------------------ */

static void add_rail(struct mcd_way *w, const char *local, const char *peer)
{
    const struct mcd_config *config = &w->peer->cluster->agent->config;
    struct mcd_rail_options o = {
        .ops = &mct_tcp_ops,
        .peer = peer,
        .tier = 1,
        .node = -1,
        .slice = config->tcp_slice,
        .window = config->tcp_window,
    };
    struct mcd_way_rail *r;
    unsigned others = 0;

    for (unsigned i = 0; i < w->nrails; i++)
        others += !w->rails[i].rdma;
    for (unsigned i = 0; i < w->nrails; i++)
        if (!w->rails[i].rdma && strcmp(w->rails[i].local, local) == 0 &&
            strcmp(w->rails[i].peer, peer) == 0)
            return;
    o.local = local[0] != '\0' ? local : "any";
    if (++others > MCD_RAILS_MAX || mcd_route_rail(w->route, &o) != (int)w->nrails)
        return;
    r = &w->rails[w->nrails++];
    snprintf(r->local, sizeof(r->local), "%s", local);
    snprintf(r->peer, sizeof(r->peer), "%s", peer);
}

/*
 * Pairs local and peer addresses: those of one network belong to one cable. Where no two share a
 * network, the n-th goes with the n-th, and the routes decide.
 */
static void pair_rails(struct mcd_way *w)
{
    const struct mcd_cluster *c = w->peer->cluster;
    struct sockaddr_storage peers[MCD_RAILS_MAX];
    bool any = false;
    unsigned np = 0;

    for (unsigned i = 0; i < w->peer->nrails; i++) {
        struct mcd_address a;
        socklen_t n;

        if (mcd_address_parse(w->peer->rails[i], false, &a) == 0 &&
            mcd_address_numeric(&a, &peers[np], &n) == 0)
            np++;
    }
    for (unsigned i = 0; i < np; i++) {
        for (unsigned k = 0; k < c->nrails; k++) {
            char text[MCD_ADDRESS_TEXT_MAX];

            if (!mcd_sockaddr_same_network((const struct sockaddr *)&peers[i],
                                           (const struct sockaddr *)&c->rails[k].address.address,
                                           c->rails[k].address.prefix))
                continue;
            mcd_sockaddr_print((const struct sockaddr *)&peers[i], text, sizeof(text));
            add_rail(w, c->rails[k].text, text);
            any = true;
        }
    }
    for (unsigned i = 0; !any && np != 0 && i < (np > c->nrails ? np : c->nrails); i++) {
        char text[MCD_ADDRESS_TEXT_MAX];
        const struct mcd_local_rail *l = c->nrails != 0 ? &c->rails[i % c->nrails] : NULL;

        if (l != NULL && l->address.address.ss_family != peers[i % np].ss_family)
            l = NULL;
        mcd_sockaddr_print((const struct sockaddr *)&peers[i % np], text, sizeof(text));
        add_rail(w, l != NULL ? l->text : "", text);
    }
}

void mcd_ways_pair(struct mcd_peer *p)
{
    for (unsigned i = 0; p->ways != NULL && i < p->cluster->agent->nengines; i++)
        if (!p->ways[i].leaving) {
            pair_rails(&p->ways[i]);
            mcd_way_rdma_pair(&p->ways[i]);
        }
}

/* ---- tokens ------------------------------------------------------------------------ */

static void got_tokens(struct mcd_call *call, uint32_t status, const uint8_t *payload, size_t size)
{
    struct mcd_way *w = call->context;
    Mcd__Tokens *m = payload == NULL ? NULL : mcd__tokens__unpack(NULL, size, payload);
    uint64_t now = mcd_now_ns();
    size_t used = 0;
    char text[256];

    if (MCS_FAIL(rails_answered) != 0)
        status = MCS_BUSY;
    if (status == MCS_ENCRYPTION)
        mcd_ways_verdict(w->peer, MCS_ENCRYPTION);
    if (status != MCS_OK || m == NULL) {
        if (m != NULL && m->error[0] != '\0') {
            mcd_peer_text(text, sizeof(text), m->error);
            mcd_log_limited(MCD_LOG_WARNING, "peer %s gives no data connections: %s",
                            w->peer->address, text);
        }
        for (unsigned i = 0; i < w->nrails; i++)
            if (!w->rails[i].rdma)
                w->rails[i].retry_at = now + (status == MCS_BUSY ? RETRY_MIN : RETRY_MAX);
    } else {
        for (unsigned i = 0; i < w->nrails; i++)
            for (; w->asked[i] != 0 && used < m->n_token; w->asked[i]--, used++)
                if (m->token[used].len == MCT_TCP_TOKEN && !w->leaving)
                    setup_begin(w, i, &m->token[used]);
        for (unsigned i = 0; i < w->nrails; i++)
            if (w->asked[i] != 0) /* fewer came than were asked for: not again at once */
                w->rails[i].retry_at = now + RETRY_MAX;
    }
    memset(w->asked, 0, sizeof(w->asked));
    if (m != NULL)
        mcd__tokens__free_unpacked(m, NULL);
}

static void ask(struct mcd_way *w, uint64_t now)
{
    const struct mcd_config *config = &w->peer->cluster->agent->config;
    struct mcd_route_report report;
    Mcd__Rails m = MCD__RAILS__INIT;

    if (w->call.id != 0)
        return;
    mcd_route_get_report(w->route, &report);
    for (unsigned i = 0; i < w->nrails; i++) {
        struct mcd_way_rail *r = &w->rails[i];
        uint64_t there = report.rail[i].conns + r->opening;

        if (!r->rdma && report.rail[i].conns >= config->tcp_connections &&
            now > r->retry_at + RETRY_MAX)
            r->adopted = 0; /* they have lasted */
        if (r->rdma || r->unusable || now < r->retry_at || there >= config->tcp_connections)
            continue;
        w->asked[i] = (unsigned)(config->tcp_connections - there);
        m.count += w->asked[i];
    }
    if (m.count == 0)
        return;
    m.route = w->id;
    w->call.done = got_tokens;
    w->call.context = w;
    if (mcd_peer_call(w->peer, &w->call, MCD_WIRE_RAILS, &m.base, RAILS_LIMIT_MS) != 0)
        memset(w->asked, 0, sizeof(w->asked));
}

/* ---- words to the engine ------------------------------------------------------------ */

void mcd_way_say(struct mcd_way *w, const struct mcd_route_word *word)
{
    struct mcd_way_said *s = calloc(1, sizeof(*s));

    if (s == NULL) {
        mcd_log_limited(MCD_LOG_ERROR, "no memory to tell an engine about a rail");
        return;
    }
    s->word = *word;
    s->word.route = w->route;
    s->next = w->said;
    w->said = s;
    mcd_engine_call(w->engine, &s->command, mcd_route_tell, &s->word);
}

static void reap_said(struct mcd_way *w)
{
    struct mcd_way_said **link = &w->said;

    while (*link != NULL) {
        struct mcd_way_said *s = *link;

        if (mcs_load_acquire(&s->command.done) == 0) { /* partner: the engine's release */
            link = &s->next;
            continue;
        }
        *link = s->next;
        free(s);
    }
}

void mcd_ways_verdict(struct mcd_peer *p, enum mcs_status verdict)
{
    struct mcd_route_word word = {.rail = -1, .usable = true, .verdict = verdict};

    if (p->ways == NULL)
        return;
    for (unsigned i = 0; i < p->cluster->agent->nengines; i++)
        if (!p->ways[i].leaving)
            mcd_way_say(&p->ways[i], &word);
}

void mcd_ways_net_change(struct mcd_peer *p, const struct mcd_local_rail *rail)
{
    for (unsigned i = 0; p->ways != NULL && i < p->cluster->agent->nengines; i++) {
        struct mcd_way *w = &p->ways[i];

        for (unsigned k = 0; k < w->nrails && !w->leaving; k++) {
            struct mcd_route_word word = {.rail = (int)k,
                                          .usable = rail->usable,
                                          .reason = rail->address.up ? MCD_RAIL_ADDRESS
                                                                     : MCD_RAIL_CARRIER,
                                          .verdict = MCS_OK};

            if (w->rails[k].rdma || strcmp(w->rails[k].local, rail->text) != 0)
                continue;
            w->rails[k].unusable = !rail->usable;
            w->rails[k].retry_at = 0;
            w->rails[k].failures = 0;
            mcd_way_say(w, &word);
        }
    }
}

/* ---- life --------------------------------------------------------------------------- */

struct mcd_route *mcd_way_route(const struct mcd_peer *p, unsigned engine)
{
    return p->ways[engine].route;
}

bool mcd_ways_leave(const struct mcd_peer *p)
{
    bool leaving = false;

    for (unsigned i = 0; p->ways != NULL && i < p->cluster->agent->nengines; i++)
        leaving |= p->ways[i].leaving;
    return leaving;
}

int mcd_ways_create(struct mcd_peer *p)
{
    struct mcd_agent *a = p->cluster->agent;
    int res = 0;

    if (p->ways != NULL)
        return mcd_ways_leave(p) ? -EAGAIN : 0;
    p->ways = calloc(a->nengines, sizeof(*p->ways));
    if (p->ways == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < a->nengines && res == 0; i++) {
        struct mcd_way *w = &p->ways[i];
        struct mcd_route_options o = {
            .engine = a->engines[i],
            .slice = a->config.tcp_slice,
            .down_ns = a->config.down_ms * MS,
            .best_only = a->config.rdma_fallback != 0,
            .peer = p->address,
        };

        w->peer = p;
        w->engine = a->engines[i];
        o.id = w->id = mcd_incarnation();
        res = MCS_FAIL(ways_made);
        if (res == 0)
            res = mcd_route_create(&o, &w->route);
        if (res == 0)
            pair_rails(w);
    }
    if (res != 0) {
        for (unsigned i = 0; i < a->nengines; i++)
            if (p->ways[i].route != NULL)
                mcd_route_destroy(p->ways[i].route);
        free(p->ways);
        p->ways = NULL;
        return res;
    }
    for (unsigned i = 0; i < a->nengines; i++) {
        mcd_engine_call(p->ways[i].engine, &p->ways[i].command, mcd_route_attach, p->ways[i].route);
        mcd_way_rdma_pair(&p->ways[i]);
    }
    mcd_ways_poll(p, mcd_now_ns());
    return 0;
}

void mcd_ways_poll(struct mcd_peer *p, uint64_t now)
{
    /* once begun it goes on, also when the peer is wanted again: new ones can be made only then */
    if (mcd_ways_leave(p) && mcd_ways_drop(p) && p->state == MCD_PEER_UP)
        mcd_openings_peer_up(p);
    for (unsigned i = 0; p->ways != NULL && i < p->cluster->agent->nengines; i++) {
        struct mcd_way *w = &p->ways[i];

        reap_said(w);
        mcd_way_rdma_poll(w, now);
        if (p->state == MCD_PEER_UP && !w->leaving && p->remotes != NULL)
            ask(w, now);
    }
}

/* True: the route is gone. */
static bool drop_way(struct mcd_way *w)
{
    struct mcd_way_setup *next;

    if (!w->leaving) {
        if (mcs_load_acquire(&w->command.done) == 0) /* partner: the engine attaches it still */
            return false;
        w->leaving = true;
        mcd_peer_forget(w->peer, &w->call);
        for (struct mcd_way_setup *s = w->setups; s != NULL; s = next) {
            next = s->next;
            if (!s->adopting)
                setup_free(s);
        }
        memset(&w->command, 0, sizeof(w->command));
        mcd_engine_call(w->engine, &w->command, mcd_route_detach, w->route);
    }
    for (struct mcd_way_setup *s = w->setups; s != NULL; s = next) {
        next = s->next;
        if (mcs_load_acquire(&s->command.done) != 0) /* partner: the engine's release */
            setup_free(s);
    }
    reap_said(w);
    if (!mcd_way_rdma_leave(w) || w->setups != NULL || w->said != NULL ||
        mcs_load_acquire(&w->command.done) == 0)
        return false;
    mcd_way_rdma_left(w);
    if (w->route != NULL)
        mcd_route_destroy(w->route);
    w->route = NULL;
    return true;
}

bool mcd_ways_drop(struct mcd_peer *p)
{
    bool gone = true;

    if (p->ways == NULL)
        return true;
    for (unsigned i = 0; i < p->cluster->agent->nengines; i++)
        gone = (p->ways[i].route == NULL || drop_way(&p->ways[i])) && gone;
    if (!gone)
        return false;
    free(p->ways);
    p->ways = NULL;
    return true;
}
