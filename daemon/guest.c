/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guests: connections that came in and are not yet known.  Their first eight bytes tell a control
 * connection from a data connection; the one becomes a peer's wire once it has greeted, the other an
 * engine's once its token was found good.  A guest costs a fixed, small amount of memory, has five
 * seconds, and no source address has more than its share of the places.
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
#include "shm/failpoint.h"

#define GUESTS_MAX 512u
#define GUESTS_OF_ONE 128u /* from one address */
#define GUEST_NS UINT64_C(5000000000)
#define LEAVE_NS UINT64_C(1000000000) /* to read why it was turned away */

struct mcd_guest {
    struct mcd_watch watch;
    struct mcd_alarm timer;
    struct mcd_cluster *cluster;
    struct mcd_guest *prev, *next;
    struct sockaddr_storage from;
    int fd; /* -1: the wire's or the engine's */
    size_t have;
    uint8_t bytes[sizeof(struct mct_tcp_open)];
    struct mcd_wire *wire;
    bool turned_away; /* it is told why, and hangs up by itself */
    /* a data connection on its way to its engine */
    struct mcd_command command;
    struct mcd_serve serve;
    int answer_fd; /* the same socket once more: the engine may close its own at any time */
    uint64_t conn, features;
};

static void guest_free(struct mcd_guest *g)
{
    struct mcd_cluster *c = g->cluster;

    mcd_alarm_clear(c->agent, &g->timer);
    mcd_watch_remove(c->agent, &g->watch);
    if (g->wire != NULL)
        mcd_wire_destroy(g->wire);
    if (g->fd >= 0)
        close(g->fd);
    if (g->answer_fd >= 0)
        close(g->answer_fd);
    if (g->prev != NULL)
        g->prev->next = g->next;
    else
        c->guests = g->next;
    if (g->next != NULL)
        g->next->prev = g->prev;
    c->nguests--;
    free(g);
}

/* ---- control connections ---------------------------------------------------------- */

static bool is_here(const struct mcd_cluster *c, const struct mcd_guest *g)
{
    const struct mcd_guest *i = c->guests;

    while (i != NULL && i != g)
        i = i->next;
    return i != NULL;
}

static void wire_event(struct mcd_watch *w, uint32_t events)
{
    struct mcd_guest *g = w->context;
    struct mcd_cluster *c = g->cluster;

    (void)events;
    mcd_wire_run(g->wire, mcd_now_ns());
    /* the callbacks may have ended the guest, or handed its wire to a peer */
    if (is_here(c, g) && g->wire != NULL && g->watch.fd >= 0)
        mcd_watch_change(c->agent, &g->watch, mcd_wire_wants(g->wire) | EPOLLRDHUP);
}

/* Its time is up: a wire that is not open yet says so to the other side; one that is, and has not said Hello, just goes. */
static void wire_due(struct mcd_alarm *t)
{
    struct mcd_guest *g = t->context;
    struct mcd_cluster *c = g->cluster;

    if (!g->turned_away)
        wire_event(&g->watch, 0);
    if (!is_here(c, g))
        return;
    c->wire_stats.greeting_timeouts += !g->turned_away;
    guest_free(g);
}

static void turn_away(struct mcd_guest *g)
{
    g->turned_away = true;
    mcd_alarm_set(g->cluster->agent, &g->timer, mcd_now_ns() + LEAVE_NS);
}

static void wire_ready(void *context, struct mcd_wire *w)
{
    (void)context;
    (void)w; /* the caller says Hello first */
}

static void wire_message(void *context, struct mcd_wire *w, const struct mcd_wire_header *h,
                         const uint8_t *payload, size_t size)
{
    struct mcd_guest *g = context;
    struct mcd_cluster *c = g->cluster;
    struct mcd_turned_down why;
    Mcd__Bye bye = MCD__BYE__INIT;

    if (g->turned_away)
        return;
    if (h->type != MCD_WIRE_HELLO || h->reply) {
        c->wire_stats.malformed++;
        guest_free(g);
        return;
    }
    mcd_watch_remove(c->agent, &g->watch);
    if (mcd_peer_welcome(c, w, payload, size, &why)) {
        g->wire = NULL;
        guest_free(g);
        return;
    }
    mcd_debug("an agent's call was turned down: %s", why.text);
    bye.reason = why.text;
    bye.status = why.status;
    bye.crossed = why.crossed;
    turn_away(g);
    if (mcd_wire_send(w, &(struct mcd_wire_header){.type = MCD_WIRE_BYE}, &bye.base) != 0 ||
        mcd_watch_add(c->agent, &g->watch, mcd_wire_fd(w), mcd_wire_wants(w) | EPOLLRDHUP) != 0)
        guest_free(g);
}

static void wire_broken(void *context, struct mcd_wire *w, uint32_t status, const char *text)
{
    struct mcd_guest *g = context;
    char from[80];

    (void)w;
    mcd_sockaddr_print((const struct sockaddr *)&g->from, from, sizeof(from));
    if (status == MCS_AUTH || status == MCS_VERSION || status == MCS_PROTOCOL)
        mcd_log_limited(MCD_LOG_WARNING, "a connection from %s was turned away: %s", from, text);
    guest_free(g);
}

static void become_wire(struct mcd_guest *g)
{
    struct mcd_cluster *c = g->cluster;
    struct mcd_wire_options o = {
        .auth = c->auth,
        .stats = &c->wire_stats,
        .events = {.context = g,
                   .ready = wire_ready,
                   .message = wire_message,
                   .broken = wire_broken},
        .incarnation = c->agent->incarnation,
    };
    int fd = g->fd;

    if (MCS_FAIL(guest_wire) != 0) {
        guest_free(g);
        return;
    }
    mcd_watch_remove(c->agent, &g->watch);
    mcd_alarm_clear(c->agent, &g->timer); /* the wire has a time limit of its own */
    g->fd = -1;
    if (mcd_wire_create(&o, fd, g->bytes, g->have, &g->wire) != 0) {
        guest_free(g);
        return;
    }
    g->watch.ready = wire_event;
    g->timer.fire = wire_due;
    if (mcd_watch_add(c->agent, &g->watch, mcd_wire_fd(g->wire),
                      mcd_wire_wants(g->wire) | EPOLLRDHUP) != 0) {
        guest_free(g);
        return;
    }
    if (c->agent->config.peer_auth == MCD_WIRE_NONE && c->agent->config.allow_insecure == 0 &&
        !mcd_sockaddr_is_loopback((const struct sockaddr *)&g->from)) {
        mcd_wire_refuse(
            g->wire, MCS_AUTH,
            "[peer] auth = none serves loopback only: set psk or tls, or allow_insecure");
        mcd_watch_remove(c->agent, &g->watch); /* it hangs from now on */
        turn_away(g);
        return;
    }
    mcd_alarm_set(c->agent, &g->timer, mcd_wire_due(g->wire));
}

/* ---- data connections -------------------------------------------------------------- */

static void answer(const struct mcd_guest *g, int fd, uint32_t status)
{
    struct mct_tcp_opened m = {
        .magic = MCT_TCP_MAGIC,
        .version = MCT_TCP_VERSION,
        .status = (uint16_t)status,
        .size = sizeof(m),
        .conn = g->conn,
        .features = g->features,
    };

    /* the first bytes on a fresh connection: there is room */
    if (send(fd, &m, sizeof(m), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(m))
        mcd_debug("a data connection was gone before it was answered");
}

static void adopted(struct mcd_alarm *t)
{
    struct mcd_guest *g = t->context;

    if (mcs_load_acquire(&g->command.done) == 0) { /* partner: the engine's release */
        mcd_alarm_set(g->cluster->agent, t, mcd_now_ns() + 200000);
        return;
    }
    g->serve.visitor->adopting--;
    answer(g, g->answer_fd, g->serve.res == 0 ? MCS_OK : MCS_LOCAL_RESOURCE);
    guest_free(g);
}

static void refuse_data(struct mcd_guest *g, uint32_t status, const char *why)
{
    char from[80];

    g->cluster->counters.data_refused++;
    mcd_sockaddr_print((const struct sockaddr *)&g->from, from, sizeof(from));
    mcd_log_limited(MCD_LOG_WARNING, "a data connection from %s was refused: %s", from, why);
    answer(g, g->fd, status);
    guest_free(g);
}

static void become_data(struct mcd_guest *g)
{
    struct mct_tcp_open m;
    struct mcd_token *t;

    memcpy(&m, g->bytes, sizeof(m));
    g->conn = m.conn;
    g->features = m.features & MCT_TCP_FEATURES;
    if (m.version != MCT_TCP_VERSION) {
        refuse_data(g, MCS_VERSION, "it speaks another version of the data protocol");
        return;
    }
    t = m.size != sizeof(m) || m.conn == 0 ? NULL : mcd_token_take(g->cluster, m.token);
    if (t == NULL) {
        refuse_data(g, MCS_AUTH, "its token was never issued, has been used or is too old");
        return;
    }
    g->answer_fd = MCS_FAIL(guest_data) != 0 ? -1 : dup(g->fd);
    if (g->answer_fd < 0 || t->visitor->leaving) {
        free(t);
        refuse_data(g, MCS_LOCAL_RESOURCE,
                    "this host is out of file descriptors, or the peer left");
        return;
    }
    mcd_watch_remove(g->cluster->agent, &g->watch);
    g->cluster->counters.data_accepted++;
    g->serve = (struct mcd_serve){
        .ops = &mct_tcp_ops,
        .visitor = t->visitor,
        .conn = {.fd = g->fd, .id = m.conn, .features = g->features},
    };
    g->fd = -1; /* the engine's */
    t->visitor->adopting++;
    g->timer.fire = adopted;
    mcd_alarm_set(g->cluster->agent, &g->timer, mcd_now_ns() + 100000);
    mcd_engine_call(t->visitor->engine, &g->command, mcd_serve_adopt, &g->serve);
    free(t);
}

/* ---- arrival ---------------------------------------------------------------------- */

static void readable(struct mcd_watch *w, uint32_t events)
{
    struct mcd_guest *g = w->context;
    uint64_t magic = 0;
    size_t want;
    ssize_t n;

    (void)events;
    want = g->have < sizeof(magic) ? sizeof(magic) : sizeof(g->bytes);
    n = recv(g->fd, g->bytes + g->have, want - g->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        guest_free(g);
        return;
    }
    g->have += (size_t)n;
    if (g->have < sizeof(magic))
        return;
    memcpy(&magic, g->bytes, sizeof(magic));
    if (magic == MCD_WIRE_MAGIC) {
        become_wire(g);
    } else if (magic != MCT_TCP_MAGIC) {
        g->cluster->wire_stats.malformed++;
        guest_free(g); /* a port scanner, or somebody else's protocol */
    } else if (g->have == sizeof(g->bytes)) {
        become_data(g);
    }
}

static void late(struct mcd_alarm *t)
{
    struct mcd_guest *g = t->context;

    g->cluster->wire_stats.greeting_timeouts++;
    guest_free(g);
}

static bool too_many(const struct mcd_cluster *c, const struct sockaddr_storage *from)
{
    unsigned same = 0;

    if (c->nguests >= GUESTS_MAX)
        return true;
    for (const struct mcd_guest *g = c->guests; g != NULL; g = g->next)
        same += mcd_sockaddr_same_host((const struct sockaddr *)&g->from,
                                       (const struct sockaddr *)from);
    return same >= GUESTS_OF_ONE;
}

void mcd_guest_accept(struct mcd_cluster *c, int fd)
{
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof(from);
    struct mcd_guest *g = NULL;

    if (MCS_FAIL(guest_accept) != 0 || getpeername(fd, (struct sockaddr *)&from, &n) != 0 ||
        too_many(c, &from)) {
        c->counters.guests_refused++;
        close(fd);
        return;
    }
    g = aligned_alloc(16, (sizeof(*g) + 15) & ~(size_t)15);
    if (g == NULL) {
        close(fd);
        return;
    }
    memset(g, 0, sizeof(*g));
    g->cluster = c;
    g->from = from;
    g->fd = fd;
    g->answer_fd = g->watch.fd = -1;
    g->watch.ready = readable;
    g->watch.context = g->timer.context = g;
    g->timer.fire = late;
    g->next = c->guests;
    if (g->next != NULL)
        g->next->prev = g;
    c->guests = g;
    c->nguests++;
    c->counters.guests_accepted++;
    mcd_alarm_set(c->agent, &g->timer, mcd_now_ns() + GUEST_NS);
    if (mcd_watch_add(c->agent, &g->watch, fd, EPOLLIN | EPOLLRDHUP) != 0)
        guest_free(g);
}

void mcd_guests_destroy(struct mcd_cluster *c)
{
    struct mcd_guest *next;

    for (struct mcd_guest *g = c->guests; g != NULL; g = next) {
        next = g->next;
        if (g->command.call != NULL) {
            /* partner: the engine, which still runs */
            while (mcs_load_acquire(&g->command.done) == 0)
                mcs_pause();
            g->serve.visitor->adopting--;
        }
        guest_free(g);
    }
}
