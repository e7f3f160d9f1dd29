/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of other hosts, the control thread's half: their life, and the descriptions that their
 * agents give of them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include <daemon/peer.pb-c.h>
#include "keys.h"
#include "later.h"
#include "log.h"
#include "remote_open.h"
#include "shm/status.h"
#include "shm/failpoint.h"

#define CALL_MS 5000u
#define BUFFERS_LIMIT (4 * MCD_BUFFERS_MAX) /* what buffers may fall into by cuts */

static void describe(struct mcd_remote *r, uint32_t first);

static void set_status(struct mcd_remote *r, uint32_t status)
{
    mcs_store_release(&r->status, status); /* partner: the engines' acquire in remote.c */
}

static void drop_building(struct mcd_remote *r)
{
    mcd_snapshot_free(r->building);
    r->building = NULL;
}

/* ---- life ------------------------------------------------------------------------- */

static void gone(struct mcd_segment *s)
{
    struct mcd_remote *r = s->remote, **link = &r->peer->remotes;
    Mcd__Close m = MCD__CLOSE__INIT;

    while (*link != NULL && *link != r)
        link = &(*link)->next;
    if (*link == r)
        *link = r->next;
    mcd_peer_forget(r->peer, r->call);
    MCS_FAILPOINT(remote_closed);
    m.export = r->export_index;
    m.incarnation = r->incarnation;
    m.count = r->opens;
    mcd_peer_send(r->peer, MCD_WIRE_CLOSE, &m.base); /* a peer that is away forgets us by itself */
    drop_building(r);
    free(r->call);
    free(r);
}

struct mcd_remote *mcd_remote_find(const struct mcd_peer *p, uint64_t incarnation)
{
    struct mcd_remote *r = p->remotes;

    while (r != NULL && r->incarnation != incarnation)
        r = r->next;
    return r;
}

int mcd_remote_create(struct mcd_peer *p, const char *name, uint64_t tenant,
                      const struct mcd_remote_found *found, struct mcd_remote **out)
{
    struct mcd_agent *a = p->cluster->agent;
    struct mcd_remote *r = calloc(1, sizeof(*r));
    struct mcd_segment *s = NULL;
    int res = -ENOMEM;

    if (r == NULL)
        return -ENOMEM;
    r->call = calloc(1, sizeof(*r->call));
    s = r->call == NULL ? NULL : mcd_segment_create(NULL, found->tenant, found->incarnation);
    if (s == NULL)
        goto error;
    res = mcd_ways_create(p);
    if (res != 0)
        goto error;
    s->remote = r;
    s->gone = gone;
    s->flags = found->flags;
    snprintf(s->name, sizeof(s->name), "%s", name);
    snprintf(r->name, sizeof(r->name), "%s", name);
    r->peer = p;
    r->segment = s;
    r->incarnation = found->incarnation;
    r->export_index = found->export_index;
    r->tenant = tenant;
    for (unsigned i = 0; i < a->nengines; i++)
        r->routes[i] = mcd_way_route(p, i);
    r->next = p->remotes;
    p->remotes = r;
    describe(r, 0);
    mcd_ways_poll(p, mcd_now_ns());
    *out = r;
    return 0;

error:
    if (s != NULL)
        mcd_segment_put(s);
    free(r->call);
    free(r);
    return res;
}

void mcd_remote_revive(struct mcd_remote *r)
{
    if (mcs_load_relaxed(&r->status) == MCS_OK)
        return;
    r->described = false; /* those who open it wait for a fresh one */
    set_status(r, MCS_OK);
    describe(r, 0);
}

void mcd_remotes_stale(struct mcd_peer *p)
{
    for (struct mcd_remote *r = p->remotes; r != NULL; r = r->next)
        set_status(r, MCS_STALE);
}

/* ---- descriptions ------------------------------------------------------------------- */

static void reopened(struct mcd_call *call, uint32_t status, const uint8_t *payload, size_t size)
{
    struct mcd_remote *r = call->context;
    Mcd__Opened *m = payload == NULL ? NULL : mcd__opened__unpack(NULL, size, payload);

    r->describing = false;
    if (status == MCS_OK && m != NULL && m->incarnation == r->incarnation &&
        m->export < MCD_EXPORTS_MAX) {
        mcs_store_relaxed(&r->export_index, m->export);
        r->opens = 1;
        describe(r, 0);
    } else if (status != MCS_TIMEOUT && status != MCS_PEER_UNREACHABLE) {
        set_status(r, MCS_STALE);
        mcd_openings_described(r, MCS_STALE, "the segment was withdrawn");
    } else {
        r->again = true;
    }
    if (m != NULL)
        mcd__opened__free_unpacked(m, NULL);
}

/* The peer does not know our export: it forgot us while we were away, or the segment is gone. */
static void reopen(struct mcd_remote *r)
{
    Mcd__Open m = MCD__OPEN__INIT;

    m.name = r->name;
    m.tenant = r->tenant;
    m.incarnation = r->incarnation;
    r->call->done = reopened;
    r->call->context = r;
    r->describing = mcd_peer_call(r->peer, r->call, MCD_WIRE_OPEN, &m.base, CALL_MS) == 0;
    r->again |= !r->describing;
}

static bool good_page(const struct mcd_remote *r, const Mcd__Buffers *m)
{
    const struct mcd_snapshot *b = r->building;
    uint64_t end = b == NULL || b->count == 0
                       ? 0
                       : b->buffers[b->count - 1].address + b->buffers[b->count - 1].length;

    if (m->n_address != m->n_length || m->n_address != m->n_access || m->n_address != m->n_node ||
        (m->n_memory != 0 && m->n_memory != m->n_address) || m->total > BUFFERS_LIMIT ||
        (b != NULL && m->total != r->building_total) || m->first > m->total ||
        m->n_address > m->total - m->first || (m->n_address == 0 && m->first < m->total) ||
        m->first != (b == NULL ? 0 : b->count))
        return false;
    for (size_t i = 0; i < m->n_address; i++) {
        if (m->length[i] == 0 || m->address[i] < end ||
            __builtin_add_overflow(m->address[i], m->length[i], &end) ||
            (m->access[i] & ~MCS_ACCESS_ALL) != 0)
            return false;
    }
    return mcd_keys_are_good(m);
}

static void add_page(struct mcd_remote *r, const Mcd__Buffers *m)
{
    for (size_t i = 0; i < m->n_address; i++)
        r->building->buffers[r->building->count++] = (struct mcd_buffer){
            .address = m->address[i],
            .length = m->length[i],
            /* mappings do not reach beyond a host */
            .access = m->access[i] & (MCS_ACCESS_READ | MCS_ACCESS_WRITE),
            .node = m->node[i],
            .gpu = m->n_memory != 0 && m->memory[i] == MCS_MEMORY_GPU,
            .count = 1,
        };
    if (mcd_keys_take(r->building, m, &r->building_keys) != 0)
        mcd_log_limited(MCD_LOG_WARNING,
                        "no memory for the %zu RDMA keys in a part of the description of segment "
                        "'%s' at %s (at most %llu a segment): it is reached over other transports",
                        m->n_rkey, r->name, r->peer->address, (unsigned long long)MCD_KEYS_MAX);
}

static void free_old(void *snapshot)
{
    mcd_snapshot_free(snapshot);
}

static void complete(struct mcd_remote *r)
{
    struct mcd_snapshot *old;

    mcd_segment_swap(r->segment, r->building, &old);
    r->building = NULL;
    r->version = r->building_version;
    r->described = true;
    /* partner: the engines' acquire in remote.c: with `fresh` comes the snapshot */
    mcs_store_release(&r->fresh, r->asked);
    if (old != NULL)
        mcd_after_grace(r->peer->cluster->agent, free_old, old);
    mcd_openings_described(r, MCS_OK, "");
    if (r->again)
        describe(r, 0);
}

static void add_or_complete(struct mcd_remote *r, const Mcd__Buffers *m)
{
    if (r->building == NULL) {
        r->building =
            calloc(1, sizeof(struct mcd_snapshot) + (size_t)m->total * sizeof(struct mcd_buffer));
        r->building_version = m->version;
        r->building_total = m->total;
        r->building_keys = MCD_KEYS_MAX;
    }
    if (r->building == NULL) {
        r->again = true; /* the clock asks again */
        return;
    }
    add_page(r, m);
    if (r->building->count == m->total)
        complete(r);
    else
        describe(r, r->building->count);
}

static void got_page(struct mcd_call *call, uint32_t status, const uint8_t *payload, size_t size)
{
    struct mcd_remote *r = call->context;
    Mcd__Buffers *m = payload == NULL ? NULL : mcd__buffers__unpack(NULL, size, payload);

    r->describing = false;
    if (MCS_FAIL(describe_answered) != 0)
        status = MCS_NO_MEMORY;
    if (status == MCS_STALE) {
        drop_building(r);
        reopen(r);
    } else if (status != MCS_OK || m == NULL) {
        drop_building(r);
        r->again = true; /* the clock asks again, or the peer when it is back */
    } else if (r->building != NULL && m->version != r->building_version) {
        describe(r, 0); /* it changed between two pages */
    } else if (!good_page(r, m)) {
        r->peer->cluster->wire_stats.malformed++;
        drop_building(r);
        mcd_log_limited(MCD_LOG_WARNING, "peer %s describes segment '%s' in nonsense",
                        r->peer->address, r->name);
        set_status(r, MCS_PROTOCOL);
        mcd_openings_described(r, MCS_PROTOCOL, "the peer's description of it is nonsense");
    } else {
        add_or_complete(r, m);
    }
    if (m != NULL)
        mcd__buffers__free_unpacked(m, NULL);
}

/* Asks for the page that begins with buffer `first`. */
static void describe(struct mcd_remote *r, uint32_t first)
{
    Mcd__Describe m = MCD__DESCRIBE__INIT;

    if (r->describing) {
        r->again = true;
        return;
    }
    if (first == 0) {
        drop_building(r);
        r->again = false;
        r->asked = mcs_load_relaxed(&r->wanted);
    }
    m.export = r->export_index;
    m.incarnation = r->incarnation;
    m.first = first;
    r->call->done = got_page;
    r->call->context = r;
    r->describing = mcd_peer_call(r->peer, r->call, MCD_WIRE_DESCRIBE, &m.base, CALL_MS) == 0;
    r->again |= !r->describing;
}

void mcd_remotes_peer_up(struct mcd_peer *p)
{
    for (struct mcd_remote *r = p->remotes; r != NULL; r = r->next)
        describe(r, 0);
}

void mcd_remotes_poll(struct mcd_peer *p)
{
    if (p->state != MCD_PEER_UP)
        return;
    for (struct mcd_remote *r = p->remotes; r != NULL; r = r->next)
        if (!r->describing &&
            (!r->described || r->again || mcs_load_relaxed(&r->wanted) != r->fresh) &&
            mcs_load_acquire(&r->status) == MCS_OK)
            describe(r, 0);
}

void mcd_remote_on_changed(struct mcd_peer *p, const uint8_t *payload, size_t size)
{
    Mcd__Changed *m = mcd__changed__unpack(NULL, size, payload);
    struct mcd_remote *r = m == NULL ? NULL : mcd_remote_find(p, m->incarnation);

    if (m == NULL)
        p->cluster->wire_stats.malformed++;
    if (r != NULL && m->gone)
        set_status(r, MCS_STALE);
    else if (r != NULL && m->version != r->version)
        describe(r, 0);
    if (m != NULL)
        mcd__changed__free_unpacked(m, NULL);
}
