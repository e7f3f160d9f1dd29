/* SPDX-License-Identifier: Apache-2.0 */
/* Control requests about other hosts' agents. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include <daemon/peer.pb-c.h>
#include "handlers.h"

#define MS UINT64_C(1000000)

/* A ping on its way; the session's operation waits for it. */
struct mcd_pinging {
    struct mcd_session *session;
    struct mcd_peer *peer; /* while its answer is out */
    uint64_t incarnation;  /* of who answered; the peer may be gone when the client is told */
    char version[32];
    struct mcd_call call;
    char address[MCD_ADDRESS_TEXT_MAX];
    uint64_t deadline, sent; /* ns */
    uint64_t timeout_ms;
    uint64_t attempts; /* of the peer when it began: a failed one ends it */
};

static void answered(struct mcd_call *call, uint32_t status, const uint8_t *payload, size_t size)
{
    struct mcd_pinging *p = call->context;
    struct mcd_session *s = p->session;

    (void)payload;
    (void)size;
    s->op.answered = true;
    s->op.status = status;
    s->op.began = mcd_now_ns() - p->sent;
    p->incarnation = p->peer->incarnation;
    snprintf(p->version, sizeof(p->version), "%s", p->peer->version);
    if (status != MCS_OK)
        snprintf(s->op.text, sizeof(s->op.text), "%.120s: %s", p->address,
                 status == MCS_TIMEOUT ? "its agent did not answer in time"
                                       : "the connection to its agent broke");
}

/* The peer is looked up anew each time: it may be another object after a greeting. */
static bool pinging_ready(struct mcd_session *s)
{
    struct mcd_pinging *p = s->op.pinging;
    struct mcd_cluster *c = s->agent->cluster;
    uint64_t now = mcd_now_ns();
    struct mcd_peer *peer = p->peer;
    Mcd__Ping m = MCD__PING__INIT;

    if (s->op.answered)
        return true;
    if (s->ending && peer != NULL)
        mcd_peer_forget(peer, &p->call);
    if (s->ending || (now >= p->deadline && peer == NULL)) {
        s->op.answered = true;
        s->op.status = MCS_TIMEOUT;
        snprintf(s->op.text, sizeof(s->op.text),
                 "%.120s: no connection within the %llu ms that were asked for", p->address,
                 (unsigned long long)p->timeout_ms);
        return true;
    }
    if (peer != NULL || mcd_peer_get(c, p->address, &peer) != 0)
        return false; /* its call, or the deadline, ends it */
    if (peer->state == MCD_PEER_UP) {
        p->sent = m.stamp = now;
        p->call.done = answered;
        p->call.context = p;
        if (mcd_peer_call(peer, &p->call, MCD_WIRE_PING, &m.base, (p->deadline - now) / MS + 1) ==
            0)
            p->peer = peer;
    } else if (peer->attempts != p->attempts && peer->status != MCS_OK) {
        s->op.answered = true;
        s->op.status = peer->status;
        snprintf(s->op.text, sizeof(s->op.text), "%.120s: %.100s", p->address, peer->text);
    } else {
        mcd_peer_want(peer);
    }
    return s->op.answered;
}

static void ponged(struct mcd_session *s)
{
    struct mcd_pinging *p = s->op.pinging;
    struct mcs_msg m;

    if (s->op.status != MCS_OK) {
        mcd_session_refuse(s, s->op.status < MCS_STATUS_COUNT ? s->op.status : MCS_PROTOCOL, "%s",
                           s->op.text);
    } else {
        m.b.ping_reply =
            (struct mcs_msg_ping_reply){.rtt_ns = s->op.began, .incarnation = p->incarnation};
        snprintf(m.b.ping_reply.agent_version, sizeof(m.b.ping_reply.agent_version), "%s",
                 p->version);
        mcd_reply(s, &m, sizeof(m.b.ping_reply));
    }
    free(p);
}

void mcd_on_ping(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_ping r = m->b.ping;
    struct mcd_pinging *p;
    struct mcd_peer *peer;
    int res;

    if (s->agent->cluster == NULL) {
        mcd_session_refuse(s, MCS_NOT_SUPPORTED,
                           "this agent reaches no other host: [peer] listen = off");
        return;
    }
    if (memchr(r.address, '\0', sizeof(r.address)) == NULL || r.timeout_ms == 0 ||
        r.timeout_ms > 600000) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT,
                           "an address without an end, or a limit of %u ms: want 1 to 600000",
                           r.timeout_ms);
        return;
    }
    if (strcmp(r.address, s->agent->cluster->address) == 0) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT, "%.120s is this agent's own address",
                           r.address);
        return;
    }
    res = mcd_peer_get(s->agent->cluster, r.address, &peer);
    if (res != 0) {
        if (res == -EINVAL)
            mcd_session_refuse(s, MCS_INVALID_ARGUMENT, "'%.120s': want host:port", r.address);
        else
            mcd_session_refuse(s, MCS_LIMIT,
                               "'%.120s': this agent knows as many others as [peer] max = %llu "
                               "allows: raise it",
                               r.address, (unsigned long long)s->agent->config.peers_max);
        return;
    }
    p = calloc(1, sizeof(*p));
    if (p == NULL) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for a ping");
        return;
    }
    p->session = s;
    p->attempts = peer->attempts;
    p->timeout_ms = r.timeout_ms;
    p->deadline = mcd_now_ns() + r.timeout_ms * MS;
    snprintf(p->address, sizeof(p->address), "%.255s", r.address);
    s->op.pinging = p;
    mcd_session_defer(s, pinging_ready, ponged);
    mcd_peer_want(peer);
}
