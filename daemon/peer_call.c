/* SPDX-License-Identifier: Apache-2.0 */
/* What is said over a peer's control connection: requests and their answers, and whether it lives. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cluster.h"
#include <daemon/peer.pb-c.h>
#include "handlers.h"
#include "shm/status.h"

#define MS UINT64_C(1000000)

/* ---- requests -------------------------------------------------------------------- */

void mcd_peer_fail_calls(struct mcd_peer *p, uint32_t status)
{
    while (p->calls != NULL) {
        struct mcd_call *call = p->calls;

        p->calls = call->next;
        call->id = 0;
        call->done(call, status, NULL, 0);
    }
}

void mcd_peer_late_calls(struct mcd_peer *p, uint64_t now)
{
    struct mcd_call **link = &p->calls;

    while (*link != NULL) {
        struct mcd_call *call = *link;

        if (call->deadline > now) {
            link = &call->next;
            continue;
        }
        *link = call->next;
        call->next = p->late;
        p->late = call;
    }
    while (p->late != NULL) { /* each may forget others, these as well */
        struct mcd_call *call = p->late;

        p->late = call->next;
        call->id = 0;
        call->done(call, MCS_TIMEOUT, NULL, 0);
    }
}

int mcd_peer_send(struct mcd_peer *p, uint16_t type, const ProtobufCMessage *m)
{
    struct mcd_wire_header h = {.type = type};
    int res;

    if (p->state != MCD_PEER_UP || p->wire == NULL)
        return -ENOTCONN;
    res = mcd_wire_send(p->wire, &h, m);
    mcd_peer_rewatch(p);
    return res;
}

int mcd_peer_call(struct mcd_peer *p, struct mcd_call *call, uint16_t type,
                  const ProtobufCMessage *m, uint64_t limit_ms)
{
    struct mcd_wire_header h = {.type = type, .deadline_ms = (uint32_t)limit_ms};
    int res;

    if (p->state != MCD_PEER_UP || p->wire == NULL)
        return -ENOTCONN;
    if (++p->next_id == 0)
        p->next_id = 1;
    h.id = p->next_id;
    res = mcd_wire_send(p->wire, &h, m);
    if (res != 0)
        return res;
    call->id = h.id;
    call->deadline = mcd_now_ns() + limit_ms * MS;
    call->next = p->calls;
    p->calls = call;
    mcd_peer_rewatch(p);
    return 0;
}

static bool unlink_call(struct mcd_call **link, const struct mcd_call *call)
{
    while (*link != NULL && *link != call)
        link = &(*link)->next;
    if (*link == NULL)
        return false;
    *link = call->next;
    return true;
}

void mcd_peer_forget(struct mcd_peer *p, struct mcd_call *call)
{
    if (call->id != 0 && !unlink_call(&p->calls, call))
        unlink_call(&p->late, call);
    call->id = 0;
}

void mcd_peers_forget(struct mcd_cluster *c, struct mcd_call *call)
{
    bool found = call->id == 0;

    for (struct mcd_peer *p = c->peers; p != NULL && !found; p = p->next)
        found = unlink_call(&p->calls, call) || unlink_call(&p->late, call);
    call->id = 0;
}

void mcd_peer_answer(struct mcd_peer *p, const struct mcd_wire_header *h, uint32_t status,
                     const ProtobufCMessage *m)
{
    struct mcd_wire_header r = {.type = h->type, .reply = true, .id = h->id, .status = status};

    if (p->wire == NULL || h->id == 0)
        return;
    mcd_wire_send(p->wire, &r, m);
    mcd_peer_rewatch(p);
}

/* Nobody waits for this segment any more: what the peer has opened for us is given back. */
static void undo_open(struct mcd_peer *p, const uint8_t *payload, size_t size)
{
    Mcd__Opened *m = mcd__opened__unpack(NULL, size, payload);
    Mcd__Close undo = MCD__CLOSE__INIT;

    if (m == NULL)
        return;
    undo.export = m->export;
    undo.incarnation = m->incarnation;
    undo.count = 1;
    mcd_peer_send(p, MCD_WIRE_CLOSE, &undo.base);
    mcd__opened__free_unpacked(m, NULL);
}

void mcd_peer_on_reply(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *payload,
                       size_t size)
{
    struct mcd_call **link = &p->calls, *call;

    while (*link != NULL && (*link)->id != h->id)
        link = &(*link)->next;
    call = *link;
    if (call != NULL) {
        *link = call->next;
        call->id = 0;
        call->done(call, h->status, payload, size);
    } else if (h->type == MCD_WIRE_OPEN && h->status == MCS_OK) {
        undo_open(p, payload, size);
    } /* else it came after its deadline */
}

/* ---- is it alive? ---------------------------------------------------------------- */

static void pinged(struct mcd_call *call, uint32_t status, const uint8_t *payload, size_t size)
{
    struct mcd_peer *p = call->context;

    (void)payload;
    (void)size;
    if (status == MCS_TIMEOUT && p->wire != NULL && mcd_wire_last_received(p->wire) < p->pinged_at)
        mcd_peer_failed(p, MCS_PEER_UNREACHABLE, "its control connection is silent");
}

void mcd_peer_ping(struct mcd_peer *p, uint64_t now)
{
    const struct mcd_config *config = &p->cluster->agent->config;
    uint64_t silence = now - mcd_wire_last_received(p->wire);
    uint64_t ask_ms = config->ping_ms < config->dead_ms / 2 ? config->ping_ms : config->dead_ms / 2;
    uint64_t limit = config->dead_ms - ask_ms;
    Mcd__Ping m = MCD__PING__INIT;

    if (p->doubted && limit > config->connect_ms)
        limit = config->connect_ms;
    if (p->ping.id != 0) {
        if (p->doubted && p->ping.deadline > now + limit * MS)
            p->ping.deadline = now + limit * MS;
        p->doubted = false;
        return;
    }
    if (silence < ask_ms * MS && p->pinged_at != 0 && !p->doubted)
        return;
    p->doubted = false;
    p->pinged_at = now;
    p->ping.done = pinged;
    p->ping.context = p;
    m.stamp = now;
    mcd_peer_call(p, &p->ping, MCD_WIRE_PING, &m.base, limit);
}

/* ---- what it says ---------------------------------------------------------------- */

void mcd_peer_text(char *out, size_t size, const char *theirs)
{
    bool good;

    snprintf(out, size, "%s", theirs);
    for (char *c = out; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    good = out[0] == '\0' || strlen(out) >= MCS_NAME_MAX || mcd_good_name(out);
    for (char *c = out; *c != '\0' && !good; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
}
