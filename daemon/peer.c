/* SPDX-License-Identifier: Apache-2.0 */
/* A peer's control connection: who calls whom, which of two connections stays, requests and
 * answers, and what happens when the other agent goes, comes back, or is another one. */
#include "peer.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "cluster.h"
#include <daemon/peer.pb-c.h>
#include "log.h"
#include "pair.h"
#include "shm/status.h"
#include "version.h"
#include "shm/failpoint.h"

#define MS UINT64_C(1000000)

static void wire_ready(void *context, struct mcd_wire *w);
static void wire_message(void *context, struct mcd_wire *w, const struct mcd_wire_header *h,
                         const uint8_t *payload, size_t size);
static void wire_broken(void *context, struct mcd_wire *w, uint32_t status, const char *text);
static void attempt_next(struct mcd_peer *p);

const char *mcd_peer_state_word(enum mcd_peer_state s)
{
    static const char *const words[] = {"idle", "connecting", "greeting",
                                        "up",   "waiting",    "defunct"};

    return words[s];
}

static void set_state(struct mcd_peer *p, enum mcd_peer_state state)
{
    if (p->state == state)
        return;
    p->state = state;
    p->since = mcd_now_ns();
}

/* ---- the list -------------------------------------------------------------------- */

static void timer_fired(struct mcd_alarm *t)
{
    struct mcd_peer *p = t->context;

    if (p->state == MCD_PEER_WAITING)
        mcd_peer_want(p);
}

static bool bury(struct mcd_peer *p, uint64_t now);

static bool is_needed(const struct mcd_peer *p)
{
    return p->remotes != NULL || p->openings != NULL;
}

/* Lives that are over do not count. Where there is no room, an address at which no agent was ever found makes way:
 * nobody is kept out by addresses that somebody else has tried. */
static bool has_room(struct mcd_cluster *c)
{
    uint64_t n = 0;

    for (const struct mcd_peer *p = c->peers; p != NULL; p = p->next)
        n += p->state != MCD_PEER_DEFUNCT;
    if (n < c->agent->config.peers_max)
        return true;
    for (struct mcd_peer *p = c->peers; p != NULL; p = p->next) {
        if (p->state != MCD_PEER_IDLE || p->incarnation != 0 || is_needed(p))
            continue;
        p->away_since = 0;
        return bury(p, mcd_now_ns());
    }
    return false;
}

static struct mcd_peer *peer_create(struct mcd_cluster *c, const char *address)
{
    struct mcd_peer *p;

    p = aligned_alloc(16, (sizeof(*p) + 15) & ~(size_t)15);
    if (p == NULL)
        return NULL;
    memset(p, 0, sizeof(*p));
    p->cluster = c;
    p->watch.fd = -1;
    p->timer.fire = timer_fired;
    p->timer.context = p;
    p->since = p->away_since = mcd_now_ns();
    snprintf(p->address, sizeof(p->address), "%s", address);
    p->next = c->peers;
    c->peers = p;
    c->npeers++;
    return p;
}

static struct mcd_peer *find_address(const struct mcd_cluster *c, const char *address)
{
    struct mcd_peer *p = c->peers;

    while (p != NULL && (p->state == MCD_PEER_DEFUNCT || strcmp(p->address, address) != 0))
        p = p->next;
    return p;
}

static struct mcd_peer *find_incarnation(const struct mcd_cluster *c, uint64_t incarnation)
{
    struct mcd_peer *p = c->peers;

    while (p != NULL && (p->state == MCD_PEER_DEFUNCT || p->incarnation != incarnation))
        p = p->next;
    return p;
}

int mcd_peer_get(struct mcd_cluster *c, const char *address, struct mcd_peer **out)
{
    struct mcd_address a;
    struct mcd_peer *p;
    char text[MCD_ADDRESS_TEXT_MAX];

    if (mcd_address_parse(address, false, &a) != 0 || !a.has_port)
        return -EINVAL;
    mcd_address_print(&a, text, sizeof(text));
    p = find_address(c, text);
    if (p != NULL && p->alias != 0) { /* another address of an agent that is connected */
        struct mcd_peer *known = find_incarnation(c, p->alias);

        p->away_since = mcd_now_ns();
        if (known != NULL && known->state == MCD_PEER_UP)
            p = known;
    }
    if (p == NULL) {
        if (!has_room(c))
            return -ENOSPC;
        p = peer_create(c, text);
    }
    *out = p;
    return p != NULL ? 0 : -ENOMEM;
}

void mcd_peer_rewatch(struct mcd_peer *p)
{
    if (p->wire != NULL && p->watch.fd >= 0)
        mcd_watch_change(p->cluster->agent, &p->watch, mcd_wire_wants(p->wire) | EPOLLRDHUP);
}

/* ---- wires ----------------------------------------------------------------------- */

static void wire_event(struct mcd_watch *w, uint32_t events)
{
    struct mcd_peer *p = w->context;

    (void)events;
    mcd_wire_run(p->wire, mcd_now_ns());
    mcd_peer_rewatch(p);
}

static void note_local(struct mcd_peer *p)
{
    struct sockaddr_storage s;
    socklen_t n = sizeof(s);

    p->wire_local[0] = '\0';
    if (getsockname(mcd_wire_fd(p->wire), (struct sockaddr *)&s, &n) != 0)
        return;
    mcd_sockaddr_set_port((struct sockaddr *)&s, 0);
    mcd_sockaddr_print((struct sockaddr *)&s, p->wire_local, sizeof(p->wire_local));
}

static int take_wire(struct mcd_peer *p, struct mcd_wire *w)
{
    struct mcd_wire_events events = mcd_peer_events;

    events.context = p;
    mcd_wire_set_events(w, &events);
    p->wire = w;
    p->greeted = p->untold = false;
    p->watch.ready = wire_event;
    p->watch.context = p;
    note_local(p);
    return mcd_watch_add(p->cluster->agent, &p->watch, mcd_wire_fd(w),
                         mcd_wire_wants(w) | EPOLLRDHUP);
}

static void drop_wire(struct mcd_peer *p)
{
    if (p->wire == NULL)
        return;
    mcd_watch_remove(p->cluster->agent, &p->watch);
    mcd_wire_destroy(p->wire);
    p->wire = NULL;
    if (p->state == MCD_PEER_UP)
        mcd_peer_went(p);
    mcd_peer_fail_calls(p, MCS_PEER_UNREACHABLE);
}

static void drop_dial(struct mcd_peer *p)
{
    mcd_dial_cancel(p->dial);
    p->dial = NULL;
}

/* At once after a connection that had been up, else one attempt in connect_ms. */
static void try_later(struct mcd_peer *p)
{
    struct mcd_agent *a = p->cluster->agent;

    set_state(p, MCD_PEER_WAITING);
    p->retry_at = p->last_attempt + a->config.connect_ms * MS;
    mcd_alarm_set(a, &p->timer, p->retry_at);
}

/* The attempt, or the connection, has ended like this. */
void mcd_peer_failed(struct mcd_peer *p, uint32_t status, const char *text)
{
    struct mcd_cluster *c = p->cluster;
    bool was_up = p->state == MCD_PEER_UP;

    drop_dial(p);
    drop_wire(p);
    if (p->status != status || was_up)
        mcd_log_limited(was_up ? MCD_LOG_WARNING : MCD_LOG_INFO, "peer %s: %s", p->address, text);
    p->status = status;
    snprintf(p->text, sizeof(p->text), "%s", text);
    p->attempts++;
    if (!was_up)
        c->counters.connects_failed++;
    if (p->state == MCD_PEER_DEFUNCT)
        return;
    set_state(p, MCD_PEER_WAITING);
    if (!was_up)
        mcd_openings_peer_failed(p, status, text);
    if (!is_needed(p)) {
        set_state(p, MCD_PEER_IDLE);
        return;
    }
    try_later(p);
}

static void dialed(void *context, int fd, int error, const char *text)
{
    struct mcd_peer *p = context;
    struct mcd_wire_options o = {
        .auth = p->cluster->auth,
        .stats = &p->cluster->wire_stats,
        .events = mcd_peer_events,
        .incarnation = p->cluster->agent->incarnation,
        .initiator = true,
    };
    struct mcd_wire *w;
    int res;

    p->dial = NULL;
    if (fd < 0) {
        p->dial_status = error == -EADDRNOTAVAIL || error == -EMFILE || error == -ENFILE
                             ? MCS_LOCAL_RESOURCE
                             : MCS_PEER_UNREACHABLE;
        snprintf(p->dial_text, sizeof(p->dial_text), "%s", text);
        attempt_next(p);
        return;
    }
    if (MCS_FAIL(dialed) != 0) {
        close(fd);
        mcd_peer_failed(p, MCS_LOCAL_RESOURCE, "a test's failpoint");
        return;
    }
    o.events.context = p;
    res = mcd_wire_create(&o, fd, NULL, 0, &w);
    if (res == 0) {
        set_state(p, MCD_PEER_GREETING);
        res = take_wire(p, w);
    }
    if (res != 0)
        mcd_peer_failed(p, MCS_LOCAL_RESOURCE, "no memory or descriptor for a control connection");
}

/* The next place where the peer may be reached: its address, then its rails'. */
static void attempt_next(struct mcd_peer *p)
{
    struct mcd_cluster *c = p->cluster;

    while (p->candidate <= p->nrails) {
        const char *target = p->candidate == 0 ? p->address : p->rails[p->candidate - 1];

        p->candidate++;
        if (p->candidate > 1 && strcmp(target, p->address) == 0)
            continue;
        if (mcd_dial(c->agent, target, NULL, c->agent->config.connect_ms, dialed, p, &p->dial) == 0)
            return;
    }
    mcd_peer_failed(p, p->dial_status, p->dial_text);
}

static void attempt(struct mcd_peer *p)
{
    p->candidate = 0;
    p->dial_status = MCS_PEER_UNREACHABLE;
    snprintf(p->dial_text, sizeof(p->dial_text), "its address cannot be connected to");
    p->last_attempt = mcd_now_ns();
    p->cluster->counters.connects++;
    mcd_alarm_clear(p->cluster->agent, &p->timer);
    set_state(p, MCD_PEER_CONNECTING);
    attempt_next(p);
}

void mcd_peer_want(struct mcd_peer *p)
{
    uint64_t now = mcd_now_ns();

    switch (p->state) {
    case MCD_PEER_UP:
        mcd_openings_peer_up(p);
        break;
    case MCD_PEER_IDLE:
    case MCD_PEER_WAITING:
        if (p->last_attempt == 0 ||
            now - p->last_attempt >= p->cluster->agent->config.connect_ms * MS) {
            attempt(p);
        } else { /* tried a moment ago: again when its time has come */
            try_later(p);
        }
        break;
    case MCD_PEER_CONNECTING:
    case MCD_PEER_GREETING:
    case MCD_PEER_DEFUNCT:
        break;
    }
}

/* ---- who is it? ------------------------------------------------------------------ */

int mcd_hello_send(struct mcd_cluster *c, struct mcd_wire *w)
{
    struct mcd_wire_header h = {.type = MCD_WIRE_HELLO};
    char text[MCD_RAILS_MAX][MCD_ADDRESS_TEXT_MAX], *rails[MCD_RAILS_MAX];
    static struct mcd_nics_hello nics; /* the control thread's */
    Mcd__Hello m = MCD__HELLO__INIT;

    mcd_nics_write(c, &m, &nics);
    m.agent_version = (char *)MCD_VERSION;
    m.features = MCT_TCP_FEATURE_NOTIFY;
    m.address = c->address;
    m.rails = rails;
    m.n_rails = mcd_rails_print(c, text, rails);
    if (MCS_FAIL(hello_send) != 0)
        return -ENOMEM;
    return mcd_wire_send(w, &h, &m.base);
}

/* What was opened in p's life is stale, q is asked from now on. */
static void supersede(struct mcd_peer *p, struct mcd_peer *q)
{
    struct mcd_cluster *c = p->cluster;

    mcd_info("peer %s: its agent was replaced, incarnation 0x%llx instead of 0x%llx", p->address,
             (unsigned long long)q->incarnation, (unsigned long long)p->incarnation);
    mcd_openings_move(p, q);
    drop_dial(p);
    mcd_alarm_clear(c->agent, &p->timer);
    if (p->state == MCD_PEER_UP) /* it was silent, and nobody has seen its connection end */
        mcd_peer_went(p);
    set_state(p, MCD_PEER_DEFUNCT);
    p->status = MCS_STALE;
    snprintf(p->text, sizeof(p->text), "its agent was replaced");
    mcd_tokens_revoke(c, p, NULL);
    mcd_nics_gone(p);
    mcd_remotes_stale(p);
    mcd_ways_verdict(p, MCS_STALE);
}

/* A later life of the agent has been met. [peer] max has room for it: the earlier one does not count any more. */
static struct mcd_peer *replace(struct mcd_peer *p, uint64_t incarnation)
{
    struct mcd_peer *q = peer_create(p->cluster, p->address);

    if (q == NULL)
        return NULL;
    q->incarnation = incarnation;
    q->last_attempt = p->last_attempt;
    supersede(p, q);
    return q;
}

/* p's address has turned out to be one of the agent that q stands for. */
static void join(struct mcd_peer *p, struct mcd_peer *q)
{
    if (p->incarnation != 0) {
        supersede(p, q);
        return;
    }
    p->alias = q->incarnation;
    mcd_openings_move(p, q);
    set_state(p, MCD_PEER_IDLE);
}

static void read_hello(struct mcd_peer *p, const Mcd__Hello *m)
{
    p->features = m->features;
    mcd_peer_text(p->version, sizeof(p->version), m->agent_version);
    mcd_nics_read(p, m);
    p->nrails = 0;
    for (size_t i = 0; i < m->n_rails && p->nrails < MCD_RAILS_MAX; i++) {
        struct mcd_address a;
        struct sockaddr_storage s;
        socklen_t n;

        /* numeric only: a peer must not make us ask name servers */
        if (mcd_address_parse(m->rails[i], false, &a) == 0 && a.has_port &&
            mcd_address_numeric(&a, &s, &n) == 0)
            mcd_address_print(&a, p->rails[p->nrails++], sizeof(p->rails[0]));
    }
}

static void now_up(struct mcd_peer *p)
{
    set_state(p, MCD_PEER_UP);
    p->status = MCS_OK;
    p->text[0] = '\0';
    p->attempts = 0;
    p->alias = 0;
    p->doubted = false;
    mcd_alarm_clear(p->cluster->agent, &p->timer);
    mcd_debug("peer %s: connected, version %s", p->address, p->version);
    mcd_ways_pair(p);
    mcd_remotes_peer_up(p);
    mcd_openings_peer_up(p);
    mcd_exports_tell(p);
    mcd_peer_came(p);
}

/* Hello on a wire that we opened. */
static void on_hello(struct mcd_peer *p, const Mcd__Hello *m)
{
    struct mcd_cluster *c = p->cluster;
    uint64_t incarnation = mcd_wire_peer_incarnation(p->wire);
    struct mcd_wire *w = p->wire;
    struct mcd_peer *q = p;

    if (p->incarnation != incarnation) {
        q = find_incarnation(c, incarnation); /* known under another address? */
        if (q != NULL)
            join(p, q);
        else
            q = p->incarnation == 0 ? p : replace(p, incarnation);
        if (q == NULL) {
            mcd_peer_failed(p, MCS_NO_MEMORY, "out of memory for a peer");
            return;
        }
    }
    if (q != p) { /* the wire goes over to it; the other side has let go of an earlier one */
        mcd_watch_remove(c->agent, &p->watch);
        p->wire = NULL;
        drop_dial(q);
        drop_wire(q);
        if (take_wire(q, w) != 0) {
            mcd_peer_failed(q, MCS_LOCAL_RESOURCE, "no descriptor for a control connection");
            return;
        }
        q->untold = p->untold;
    }
    q->incarnation = incarnation;
    q->greeted = true;
    read_hello(q, m);
    MCS_FAILPOINT(peer_up);
    now_up(q);
}

/* Was it heard of just now? */
static bool lives(const struct mcd_peer *p)
{
    return p->state == MCD_PEER_UP && mcd_now_ns() - mcd_wire_last_received(p->wire) <
                                          2 * p->cluster->agent->config.ping_ms * MS;
}

/* The peer that an agent which called us is; NULL with the reason why it cannot be one. */
static struct mcd_peer *caller(struct mcd_cluster *c, uint64_t incarnation, const char *address,
                               struct mcd_turned_down *why)
{
    struct mcd_peer *p = find_incarnation(c, incarnation), *old;

    if (p != NULL)
        return p;
    old = find_address(c, address);
    if (old != NULL && old->incarnation == 0)
        return old;
    if (old != NULL && lives(old)) {
        snprintf(why->text, sizeof(why->text),
                 "an agent that calls itself %s is connected and lives: no two agents may have the "
                 "same [peer] advertise",
                 address);
        why->status = MCS_EXISTS;
        mcd_log_limited(MCD_LOG_WARNING, "a caller was turned down: %s", why->text);
        return NULL;
    }
    if (old == NULL && !has_room(c)) {
        snprintf(why->text, sizeof(why->text),
                 "%s knows as many agents as its [peer] max = %llu allows: raise it there",
                 c->address, (unsigned long long)c->agent->config.peers_max);
        why->status = MCS_LIMIT;
        return NULL;
    }
    p = old != NULL ? replace(old, incarnation) : peer_create(c, address);
    if (p == NULL) {
        snprintf(why->text, sizeof(why->text), "%s is out of memory", c->address);
        why->status = MCS_LOCAL_RESOURCE;
    } else if (old != NULL) {
        drop_wire(old);
    }
    return p;
}

bool mcd_peer_welcome(struct mcd_cluster *c, struct mcd_wire *w, const uint8_t *hello, size_t size,
                      struct mcd_turned_down *why)
{
    uint64_t incarnation = mcd_wire_peer_incarnation(w);
    Mcd__Hello *m = mcd__hello__unpack(NULL, size, hello);
    struct mcd_peer *p;
    struct mcd_address a;
    char address[MCD_ADDRESS_TEXT_MAX];
    bool taken = false;

    *why = (struct mcd_turned_down){.status = MCS_PROTOCOL, .text = "the Hello is malformed"};
    if (m == NULL || mcd_address_parse(m->address, false, &a) != 0 || !a.has_port) {
        c->wire_stats.malformed++;
        goto out;
    }
    if (incarnation == c->agent->incarnation) {
        why->status = MCS_INVALID_ARGUMENT;
        snprintf(why->text, sizeof(why->text), "that address is this agent's own");
        goto out;
    }
    mcd_address_print(&a, address, sizeof(address));
    p = MCS_FAIL(peer_welcome) != 0 ? NULL : caller(c, incarnation, address, why);
    if (p == NULL) {
        c->counters.guests_refused++;
        goto out;
    }
    p->incarnation = incarnation;
    if (p->wire != NULL && mcd_wire_initiated(p->wire) && c->agent->incarnation > incarnation) {
        /* Both called at the same time: the call of the larger incarnation stays, both see it so. If ours is
         * dead without our knowing, a ping finds out. */
        why->crossed = true;
        why->status = MCS_PEER_UNREACHABLE;
        snprintf(why->text, sizeof(why->text), "this agent's own call stays");
        p->doubted = true;
        goto out;
    }
    taken = true;
    drop_dial(p);
    drop_wire(p);
    if (take_wire(p, w) != 0) {
        mcd_peer_failed(p, MCS_LOCAL_RESOURCE, "no descriptor for a control connection");
        goto out;
    }
    p->greeted = true;
    read_hello(p, m);
    if (mcd_hello_send(c, p->wire) != 0)
        mcd_peer_failed(p, MCS_PEER_UNREACHABLE, "the connection broke during the greeting");
    else
        now_up(p);
    mcd_peer_rewatch(p);

out:
    if (m != NULL)
        mcd__hello__free_unpacked(m, NULL);
    return taken;
}

/* ---- events of a wire ------------------------------------------------------------ */

static void wire_ready(void *context, struct mcd_wire *w)
{
    struct mcd_peer *p = context, *q;
    uint64_t incarnation = mcd_wire_peer_incarnation(w);

    q = find_incarnation(p->cluster, incarnation);
    if (incarnation == p->cluster->agent->incarnation) {
        mcd_peer_failed(
            p, MCS_INVALID_ARGUMENT,
            "that address is this agent's own: its segments are opened by their names alone");
    } else if (q != NULL && q != p && q->state == MCD_PEER_UP) {
        /* connected by another address: what waits goes on there */
        drop_wire(p);
        join(p, q);
        mcd_peer_want(q);
    } else if (mcd_hello_send(p->cluster, w) != 0) {
        mcd_peer_failed(p, MCS_PEER_UNREACHABLE, "the connection broke during the greeting");
    }
}

static void on_bye(struct mcd_peer *p)
{
    mcd_nics_gone(p);
    mcd_visitors_dismiss(p);
    mcd_peer_failed(p, MCS_PEER_UNREACHABLE, "its agent has stopped");
}

/* Our call was not taken. */
static void turned_down(struct mcd_peer *p, const uint8_t *payload, size_t size)
{
    uint64_t incarnation = mcd_wire_peer_incarnation(p->wire);
    Mcd__Bye *m = mcd__bye__unpack(NULL, size, payload);
    struct mcd_peer *q = find_incarnation(p->cluster, incarnation);
    char text[200], sentence[256];

    if (m == NULL) {
        p->cluster->wire_stats.malformed++;
        mcd_peer_failed(p, MCS_PROTOCOL, "its Bye is malformed");
        return;
    }
    if (m->crossed) { /* it calls us at the same time, and that call stays */
        drop_wire(p);
        if (q != NULL && q != p) {
            join(p, q);
            mcd_peer_want(q);
        } else {
            try_later(p); /* should its call not come */
        }
    } else {
        mcd_peer_text(text, sizeof(text), m->reason);
        snprintf(sentence, sizeof(sentence), "it turned the call down: %s", text);
        mcd_peer_failed(p,
                        m->status == MCS_OK || m->status >= MCS_STATUS_COUNT ? MCS_PEER_UNREACHABLE
                                                                             : m->status,
                        sentence);
    }
    mcd__bye__free_unpacked(m, NULL);
}

static void wire_message(void *context, struct mcd_wire *w, const struct mcd_wire_header *h,
                         const uint8_t *payload, size_t size)
{
    struct mcd_peer *p = context;
    Mcd__Hello *hello;

    (void)w;
    if (!p->greeted && h->type == MCD_WIRE_BYE && !h->reply) {
        turned_down(p, payload, size);
        return;
    }
    if (!p->greeted) {
        hello =
            h->type == MCD_WIRE_HELLO && !h->reply ? mcd__hello__unpack(NULL, size, payload) : NULL;
        if (hello == NULL) {
            p->cluster->wire_stats.malformed++;
            mcd_peer_failed(p, MCS_PROTOCOL, "it did not say Hello first");
            return;
        }
        on_hello(p, hello);
        mcd__hello__free_unpacked(hello, NULL);
        return;
    }
    if (h->reply) {
        mcd_peer_on_reply(p, h, payload, size);
        return;
    }
    switch (h->type) {
    case MCD_WIRE_HELLO: /* its rails have changed */
        hello = mcd__hello__unpack(NULL, size, payload);
        if (hello != NULL) {
            read_hello(p, hello);
            mcd_ways_pair(p);
            mcd__hello__free_unpacked(hello, NULL);
        }
        break;
    case MCD_WIRE_OPEN:
        mcd_export_on_open(p, h, payload, size);
        break;
    case MCD_WIRE_CLOSE:
        mcd_export_on_close(p, payload, size);
        break;
    case MCD_WIRE_DESCRIBE:
        mcd_export_on_describe(p, h, payload, size);
        break;
    case MCD_WIRE_CHANGED:
        mcd_remote_on_changed(p, payload, size);
        break;
    case MCD_WIRE_RAILS:
        mcd_export_on_rails(p, h, payload, size);
        break;
    case MCD_WIRE_PAIR:
        mcd_pair_on_pair(p, h, payload, size);
        break;
    case MCD_WIRE_UNPAIR:
        mcd_pair_on_unpair(p, h, payload, size);
        break;
    case MCD_WIRE_PING:
        mcd_peer_answer(p, h, MCS_OK, NULL);
        break;
    case MCD_WIRE_BYE:
        on_bye(p);
        break;
    default: /* of a later version: whoever asks is told, the rest is let go */
        if (!mcd_peer_on_store(p, h, payload, size))
            mcd_peer_answer(p, h, MCS_NOT_SUPPORTED, NULL);
        break;
    }
}

static void wire_broken(void *context, struct mcd_wire *w, uint32_t status, const char *text)
{
    struct mcd_peer *p = context;

    (void)w;
    mcd_peer_failed(p, status != MCS_OK ? status : MCS_PEER_UNREACHABLE, text);
}

const struct mcd_wire_events mcd_peer_events = {
    .ready = wire_ready, .message = wire_message, .broken = wire_broken};

/* ---- upkeep ---------------------------------------------------------------------- */

/* Nobody uses it and it is not there, or it never will be again. True: it is gone. */
static bool bury(struct mcd_peer *p, uint64_t now)
{
    struct mcd_cluster *c = p->cluster;
    struct mcd_peer **link = &c->peers;
    bool exports_gone;

    if (p->state == MCD_PEER_UP || p->state == MCD_PEER_GREETING || p->dial != NULL)
        return false;
    if (p->state != MCD_PEER_DEFUNCT && p->away_since + MCD_PEER_LINGER_NS > now)
        return false;
    exports_gone = mcd_exports_drop(p);
    if (is_needed(p) || !mcd_ways_drop(p) || !exports_gone)
        return false;
    mcd_unpairs_drop(p);
    drop_wire(p);
    mcd_alarm_clear(c->agent, &p->timer);
    mcd_tokens_revoke(c, p, NULL);
    while (*link != p)
        link = &(*link)->next;
    *link = p->next;
    c->npeers--;
    free(p->exports);
    free(p);
    return true;
}

void mcd_peers_poll(struct mcd_cluster *c)
{
    uint64_t now = mcd_now_ns();
    struct mcd_peer *next;

    for (struct mcd_peer *p = c->peers; p != NULL; p = next) {
        next = p->next;
        if (p->wire != NULL)
            mcd_wire_run(p->wire, now); /* its time limits */
        mcd_peer_rewatch(p);
        mcd_peer_late_calls(p, now);
        if (p->state == MCD_PEER_UP)
            mcd_peer_ping(p, now);
        if (p->state == MCD_PEER_UP && p->untold)
            mcd_peer_tell(p);
        mcd_remotes_poll(p);
        mcd_ways_poll(p, now);
        mcd_exports_poll(p);
        mcd_pairs_poll(p, now);
        mcd_unpairs_poll(p, now);
        if (p->state == MCD_PEER_IDLE && is_needed(p))
            mcd_peer_want(p);
        bury(p, now);
    }
}

void mcd_peers_destroy(struct mcd_cluster *c)
{
    Mcd__Bye m = MCD__BYE__INIT;

    m.reason = (char *)"stopping";
    for (struct mcd_peer *p = c->peers; p != NULL; p = p->next) {
        if (p->state == MCD_PEER_UP && mcd_peer_send(p, MCD_WIRE_BYE, &m.base) == 0)
            mcd_wire_run(p->wire, mcd_now_ns()); /* as far as it goes without waiting */
        drop_dial(p);
        set_state(p, MCD_PEER_DEFUNCT);
        drop_wire(p);
        mcd_openings_peer_failed(p, MCS_AGENT_DOWN, "this agent stops");
        mcd_remotes_stale(p);
        mcd_ways_verdict(p, MCS_AGENT_DOWN);
    }
    /* engines still run: routes and visitors end in milliseconds */
    for (uint64_t end = mcd_now_ns() + 2000 * MS; c->peers != NULL && mcd_now_ns() < end;) {
        struct mcd_peer *next;

        for (struct mcd_peer *p = c->peers; p != NULL; p = next) {
            next = p->next;
            set_state(p, MCD_PEER_DEFUNCT); /* also one that the last frames have brought */
            bury(p, mcd_now_ns());
        }
        mcs_pause();
    }
    if (c->peers != NULL)
        mcd_warning("%u peers did not let go in time; leaving them to the kernel", c->npeers);
}
