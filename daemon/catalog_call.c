/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog's questions to masters and holders, and how holders' stores are opened.  A master of this very agent is asked with
 * the same messages, without a wire.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "catalog_internal.h"
#include "log.h"
#include "master.h"
#include "shm/status.h"

#define RETRY_NS (200 * MCD_MS) /* between tries to open a holder's store */

/* ---- calls ------------------------------------------------------------------------------ */

static bool unlink_call(struct mcd_store_call *sc)
{
    struct mcd_store_call **link = &sc->catalog->calls;

    while (*link != NULL && *link != sc)
        link = &(*link)->next;
    if (*link == NULL)
        return false;
    *link = sc->next;
    return true;
}

static void on_wire(struct mcd_call *call, uint32_t status, const uint8_t *payload, size_t size)
{
    struct mcd_store_call *sc = call->context;
    struct mcd_catalog *c = sc->catalog;

    unlink_call(sc);
    c->now = mcd_now_ns();
    c->again = true; /* who waits for it goes on */
    sc->answered(sc, status, payload, size);
    mcd_catalog_poll(c);
}

static int ask_own(struct mcd_catalog *c, struct mcd_store_call *sc, uint16_t type,
                   const ProtobufCMessage *m, uint64_t limit_ms)
{
    struct mcd_wire_header h = {.type = type, .deadline_ms = (uint32_t)limit_ms};
    size_t size = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(size + 1);

    if (bytes == NULL)
        return -ENOMEM;
    if (++c->next_own == 0)
        c->next_own = 1;
    sc->own = h.id = c->next_own;
    sc->deadline = mcd_now_ns() + limit_ms * MCD_MS;
    sc->next = c->calls;
    c->calls = sc;
    mcd_catalog_due(c, sc->deadline);
    protobuf_c_message_pack(m, bytes);
    (void)mcd_master_on_message(c->master, NULL, &h, bytes, size);
    free(bytes);
    return 0;
}

int mcd_store_call(struct mcd_catalog *c, const char *address, struct mcd_store_call *sc,
                   uint16_t type, const ProtobufCMessage *m, uint64_t limit_ms)
{
    struct mcd_cluster *cluster = c->agent->cluster;
    struct mcd_peer *p;
    int res;

    sc->catalog = c;
    sc->own = 0;
    sc->to_master = address == NULL;
    sc->sent = mcd_boot_ns();
    sc->ends = false;
    if (limit_ms == 0)
        limit_ms = 1;
    if (address == NULL) {
        if (c->master != NULL)
            return ask_own(c, sc, type, m, limit_ms);
        if (c->leader[0] == '\0')
            return -ENOTCONN;
        address = c->leader;
    }
    if (cluster == NULL || mcd_peer_get(cluster, address, &p) != 0)
        return -ENOTCONN;
    if (p->state != MCD_PEER_UP) {
        mcd_peer_want(p);
        return -ENOTCONN;
    }
    sc->call = (struct mcd_call){.done = on_wire, .context = sc};
    res = mcd_peer_call(p, &sc->call, type, m, limit_ms);
    if (res != 0)
        return -ENOTCONN;
    sc->next = c->calls;
    c->calls = sc;
    return 0;
}

void mcd_store_forget(struct mcd_store_call *sc)
{
    if (!unlink_call(sc))
        return;
    if (sc->own == 0)
        mcd_peers_forget(sc->catalog->agent->cluster, &sc->call);
}

static struct mcd_store_call *own_call(struct mcd_catalog *c, uint32_t own)
{
    struct mcd_store_call *sc = c->calls;

    while (sc != NULL && sc->own != own)
        sc = sc->next;
    return sc;
}

void mcd_catalog_answer(struct mcd_catalog *c, const struct mcd_wire_header *h, uint32_t status,
                        const ProtobufCMessage *m)
{
    size_t size = m == NULL ? 0 : protobuf_c_message_get_packed_size(m);
    struct mcd_own_answer *a;

    if (h->id == 0 || own_call(c, h->id) == NULL)
        return; /* nobody waits for it any more */
    a = malloc(sizeof(*a) + size);
    if (a == NULL)
        return; /* the question ends by its deadline */
    *a = (struct mcd_own_answer){.own = h->id, .status = status, .size = size};
    if (m != NULL)
        protobuf_c_message_pack(m, a->payload);
    *c->own_end = a;
    c->own_end = &a->next;
    mcd_catalog_soon(c); /* not from inside the master */
}

void mcd_store_calls_poll(struct mcd_catalog *c)
{
    struct mcd_store_call *sc;
    bool any = true;

    while (c->own_answers != NULL) {
        struct mcd_own_answer *a = c->own_answers;

        c->own_answers = a->next;
        if (c->own_answers == NULL)
            c->own_end = &c->own_answers;
        sc = own_call(c, a->own);
        if (sc != NULL) {
            unlink_call(sc);
            sc->answered(sc, a->status, a->payload, a->size);
        }
        free(a);
    }
    while (any) { /* each may begin and forget others */
        any = false;
        for (sc = c->calls; sc != NULL; sc = sc->next) {
            if (sc->own == 0)
                continue;
            if (sc->deadline <= c->now) {
                unlink_call(sc);
                sc->answered(sc, MCS_TIMEOUT, NULL, 0);
                any = true;
                break;
            }
            mcd_catalog_due(c, sc->deadline);
        }
    }
}

void mcd_store_calls_leaderless(struct mcd_catalog *c)
{
    struct mcd_store_call *sc;

    for (sc = c->calls; sc != NULL; sc = sc->next)
        sc->ends = sc->to_master; /* not those to the next one, which their ends begin */
    sc = c->calls;
    while (sc != NULL) {
        if (!sc->ends) {
            sc = sc->next;
            continue;
        }
        mcd_store_forget(sc);
        sc->answered(sc, MCS_PEER_UNREACHABLE, NULL, 0);
        sc = c->calls; /* from the start: answers begin and end others */
    }
}

struct mcd_peer *mcd_catalog_peer_of(const struct mcd_catalog *c, uint64_t incarnation)
{
    struct mcd_peer *p = c->agent->cluster == NULL ? NULL : c->agent->cluster->peers;

    while (p != NULL && (p->state != MCD_PEER_UP || p->incarnation != incarnation))
        p = p->next;
    return p;
}

/* ---- holders -------------------------------------------------------------------------------- */

struct mcd_holder *mcd_holder_get(struct mcd_catalog *c, const char *address)
{
    struct mcd_holder *h = c->holders;

    while (h != NULL && strcmp(h->address, address) != 0)
        h = h->next;
    if (h != NULL)
        return h;
    if (c->nholders >= MCD_HOLDERS_MAX) {
        mcd_log_limited(MCD_LOG_WARNING,
                        "the store's master names more than %u holders: '%.60s' is passed over",
                        MCD_HOLDERS_MAX, address);
        return NULL;
    }
    h = strlen(address) < sizeof(h->address) ? calloc(1, sizeof(*h)) : NULL;
    if (h == NULL)
        return NULL;
    c->nholders++;
    snprintf(h->address, sizeof(h->address), "%s", address);
    h->catalog = c;
    h->next = c->holders;
    c->holders = h;
    return h;
}

struct mcd_holder *mcd_holder_of(struct mcd_catalog *c, const struct mcd_reach *reach)
{
    struct mcd_holder *h = c->holders;

    while (h != NULL && (reach == NULL || h->reach != reach))
        h = h->next;
    return h;
}

/* Nothing is found in it any more. */
static void end_reach(struct mcd_catalog *c, struct mcd_reach *r)
{
    mcd_places_drop(c, r);
    r->over = true;
}

/* Those that are not open, when no ask names any: hosts come and go. */
static void forget_holders(struct mcd_catalog *c)
{
    struct mcd_holder **link = &c->holders;

    while (*link != NULL) {
        struct mcd_holder *h = *link;

        if (h->reach != NULL || h->opening != NULL) {
            link = &h->next;
            continue;
        }
        *link = h->next;
        c->nholders--;
        free(h);
    }
}

void mcd_reaches_poll(struct mcd_catalog *c, bool all)
{
    struct mcd_reach **link = &c->reaches;

    if (c->nholders > MCD_HOLDERS_MAX / 2 && c->ops == NULL)
        forget_holders(c);

    while (*link != NULL) {
        struct mcd_reach *r = *link;

        /* acquire: partner: mcd_ask_done_with(); nobody takes a use since end_reach() */
        if (!r->over || (mcs_load_acquire(&r->users) != 0 && !all)) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        mcd_segment_put(r->segment);
        free(r);
    }
}

static void opened(void *context, uint32_t status, const char *text, struct mcd_segment *segment)
{
    struct mcd_holder *h = context;
    struct mcd_catalog *c = h->catalog;
    struct mcd_reach *r;

    h->opening = NULL;
    h->failed = status;
    if (status == MCS_OK) {
        r = calloc(1, sizeof(*r));
        if (r == NULL) {
            mcd_segment_put(segment);
            h->failed = MCS_NO_MEMORY;
        } else {
            r->segment = segment;
            r->next = c->reaches;
            c->reaches = r;
            h->reach = r;
        }
    } else {
        mcd_log_limited(MCD_LOG_WARNING, "the store of %s cannot be reached: %s", h->address, text);
    }
    h->retry_at = mcd_now_ns() + RETRY_NS;
    c->stir++;
    c->again = true;
    mcd_catalog_poll(c);
}

uint32_t mcd_holder_open(struct mcd_holder *h)
{
    struct mcd_catalog *c = h->catalog;
    char name[MCD_ADDRESS_TEXT_MAX + 16];

    if (h->reach != NULL) {
        /* partner: set_status() in describe.c */
        if (mcs_load_acquire(&h->reach->segment->remote->status) == MCS_OK)
            return MCS_OK;
        end_reach(c, h->reach);
        h->reach = NULL;
        h->failed = MCS_OK;
    }
    if (h->opening != NULL)
        return MCS_BUSY;
    if (h->failed != MCS_OK && c->now < h->retry_at) {
        mcd_catalog_due(c, h->retry_at);
        return h->failed;
    }
    if (c->agent->cluster == NULL)
        return MCS_PEER_UNREACHABLE;
    snprintf(name, sizeof(name), "%s/%s", h->address, MCD_STORE_SEGMENT);
    if (mcd_remote_open(c->agent->cluster, name, 0, opened, h, &h->opening) != 0) {
        h->opening = NULL;
        return MCS_NO_MEMORY;
    }
    return MCS_BUSY;
}
