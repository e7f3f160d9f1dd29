/* SPDX-License-Identifier: Apache-2.0 */
/* What peers open here: exports, their descriptions, and leave for data connections. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "catalog.h"
#include "cluster.h"
#include <daemon/peer.pb-c.h>
#include "keys.h"
#include "later.h"
#include "pair.h"
#include "store_wire.h"
#include "shm/status.h"
#include "shm/failpoint.h"

#define VISITORS_MAX 256u /* routes of one peer: its engines */
#define CONNS_MAX 256u    /* data connections asked for at a time */

/* ---- segments -------------------------------------------------------------------- */

/* Is its owner there? */
static bool is_there(const struct mcd_segment *s)
{
    return s->named && (s->owner != NULL || s->agents);
}

static bool may_open(const struct mcd_segment *s, uint64_t tenant)
{
    return s->agents || s->tenant == tenant || (s->flags & MCS_SEGMENT_PUBLIC) != 0;
}

/* By name; without one, the only segment that the tenant may open, or that of this incarnation. */
static struct mcd_segment *find_segment(struct mcd_agent *a, const char *name, uint64_t tenant,
                                        uint64_t incarnation)
{
    struct mcd_segment *found = NULL;
    bool several = false;

    for (struct mcd_segment *s = a->segments; s != NULL; s = s->next) {
        if (name[0] != '\0' && strcmp(s->name, name) == 0)
            return s;
        if (name[0] == '\0' && may_open(s, tenant)) {
            if (incarnation != 0 && s->incarnation == incarnation)
                return s;
            several |= found != NULL;
            found = s;
        }
    }
    return several ? NULL : found;
}

static struct mcd_export *export_of(struct mcd_peer *p, struct mcd_segment *s)
{
    struct mcd_exports *x = p->exports;
    struct mcd_export *e;
    uint32_t free_slot = MCD_EXPORTS_MAX;

    for (uint32_t i = 0; i < MCD_EXPORTS_MAX; i++) {
        if (x->slots[i] == NULL) {
            if (free_slot == MCD_EXPORTS_MAX)
                free_slot = i;
        } else if (x->slots[i]->segment == s) {
            return x->slots[i];
        }
    }
    if (free_slot == MCD_EXPORTS_MAX || MCS_FAIL(export_open) != 0)
        return NULL;
    e = calloc(1, sizeof(*e));
    if (e == NULL)
        return NULL;
    e->segment = mcd_segment_get(s);
    e->incarnation = s->incarnation;
    e->index = free_slot;
    e->told = s->version;
    x->count++;
    mcs_store_release(&x->slots[free_slot], e); /* partner: resolve() in serve.c */
    return e;
}

static void refuse_open(struct mcd_peer *p, const struct mcd_wire_header *h, uint32_t status,
                        const char *text)
{
    Mcd__Opened r = MCD__OPENED__INIT;

    r.error = (char *)text;
    p->cluster->counters.opens_refused++;
    mcd_peer_answer(p, h, status, &r.base);
}

void mcd_export_on_open(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *m,
                        size_t size)
{
    Mcd__Open *r = mcd__open__unpack(NULL, size, m);
    Mcd__Opened answer = MCD__OPENED__INIT;
    struct mcd_segment *s;
    struct mcd_export *e;
    char text[1024];

    p->cluster->counters.opens++;
    if (r == NULL) {
        p->cluster->wire_stats.malformed++;
        refuse_open(p, h, MCS_PROTOCOL, "the request is malformed");
        return;
    }
    if (strcmp(r->name, MCD_STORE_SEGMENT) == 0)
        s = mcd_catalog_segment(p->cluster->agent);
    else
        s = find_segment(p->cluster->agent, r->name, r->tenant, r->incarnation);
    if (s == NULL && r->name[0] == '\0') {
        snprintf(text, sizeof(text),
                 "%s has not exactly one segment that tenant %llu may open: name it, as in %s/NAME",
                 p->cluster->address, (unsigned long long)r->tenant, p->cluster->address);
        refuse_open(p, h, MCS_NOT_FOUND, text);
    } else if (s == NULL) {
        snprintf(text, sizeof(text),
                 "no segment '%.255s' at %s; `mcshm ls segments` there lists them", r->name,
                 p->cluster->address);
        refuse_open(p, h, MCS_NOT_FOUND, text);
    } else if (r->incarnation != 0 && r->incarnation != s->incarnation) {
        snprintf(text, sizeof(text), "segment '%s' at %s has been published anew since", s->name,
                 p->cluster->address);
        refuse_open(p, h, MCS_STALE, text);
    } else if (!may_open(s, r->tenant)) {
        snprintf(text, sizeof(text),
                 "segment '%s' is tenant %llu's and not public, the request is tenant %llu's",
                 s->name, (unsigned long long)s->tenant, (unsigned long long)r->tenant);
        refuse_open(p, h, MCS_ACCESS, text);
    } else {
        if (p->exports == NULL)
            p->exports = calloc(1, sizeof(*p->exports));
        e = p->exports == NULL ? NULL : export_of(p, s);
        if (e == NULL) {
            bool full = p->exports != NULL && p->exports->count >= MCD_EXPORTS_MAX;

            snprintf(text, sizeof(text),
                     full ? "an agent opens at most %u segments of %s: close others first"
                          : "no memory for one of at most %u open segments at %s",
                     MCD_EXPORTS_MAX, p->cluster->address);
            refuse_open(p, h, full ? MCS_LIMIT : MCS_NO_MEMORY, text);
        } else {
            e->opens++;
            answer.export = e->index;
            answer.incarnation = s->incarnation;
            answer.tenant = s->tenant;
            answer.flags = s->flags;
            answer.version = s->version;
            answer.error = (char *)"";
            mcd_peer_answer(p, h, MCS_OK, &answer.base);
        }
    }
    mcd__open__free_unpacked(r, NULL);
}

static void faded(void *context)
{
    struct mcd_export *e = context;

    mcd_segment_put(e->segment);
    free(e);
}

static void take_back(struct mcd_peer *p, uint32_t index)
{
    struct mcd_export *e = p->exports->slots[index];

    mcs_store_release(&p->exports->slots[index], NULL); /* partner: resolve() in serve.c */
    p->exports->count--;
    mcd_after_grace(p->cluster->agent, faded, e);
}

static struct mcd_export *named(struct mcd_peer *p, uint32_t index, uint64_t incarnation)
{
    struct mcd_export *e =
        p->exports == NULL || index >= MCD_EXPORTS_MAX ? NULL : p->exports->slots[index];

    return e != NULL && e->incarnation == incarnation ? e : NULL;
}

void mcd_export_on_close(struct mcd_peer *p, const uint8_t *m, size_t size)
{
    Mcd__Close *r = mcd__close__unpack(NULL, size, m);
    struct mcd_export *e = r == NULL ? NULL : named(p, r->export, r->incarnation);

    if (e != NULL) {
        e->opens -= r->count < e->opens ? r->count : e->opens;
        MCS_FAILPOINT(export_closed);
        if (e->opens == 0)
            take_back(p, e->index);
    }
    if (r != NULL)
        mcd__close__free_unpacked(r, NULL);
}

/* ---- descriptions ---------------------------------------------------------------- */

static void describe(struct mcd_peer *p, const struct mcd_wire_header *h,
                     const struct mcd_export *e, uint32_t first)
{
    const struct mct_rdma *rdma = p->cluster->agent->registry.rdma;
    const struct mcd_snapshot *snap = e->segment->snapshot;
    uint32_t n = 0;
    Mcd__Buffers r = MCD__BUFFERS__INIT;
    struct {
        uint64_t address[MCD_PAGE_BUFFERS], length[MCD_PAGE_BUFFERS];
        uint32_t access[MCD_PAGE_BUFFERS];
        int32_t node[MCD_PAGE_BUFFERS];
        uint32_t memory[MCD_PAGE_BUFFERS];
    } *page = calloc(1, sizeof(*page));
    struct mcd_keys_page *keys = rdma == NULL ? NULL : calloc(1, sizeof(*keys));

    if (page == NULL || (rdma != NULL && keys == NULL) || MCS_FAIL(export_describe) != 0) {
        mcd_peer_answer(p, h, MCS_NO_MEMORY, NULL);
        goto out;
    }
    for (uint32_t i = 0; i < MCD_PAGE_BUFFERS && first < snap->count - i; i++) {
        const struct mcd_buffer *b = &snap->buffers[first + i];

        if (keys != NULL && !mcd_keys_add(keys, rdma, b))
            break;
        n++;
        page->address[i] = b->address;
        page->length[i] = b->length;
        page->access[i] = b->access;
        page->node[i] = b->node;
        page->memory[i] = b->extent != NULL && b->extent->gpu != NULL ? MCS_MEMORY_GPU : 0;
        r.n_memory = page->memory[i] != 0 ? MCD_PAGE_BUFFERS : r.n_memory;
    }
    r.version = e->segment->version;
    r.total = snap->count;
    r.first = first;
    r.n_address = r.n_length = r.n_access = r.n_node = n;
    r.address = page->address;
    r.length = page->length;
    r.access = page->access;
    r.node = page->node;
    r.n_memory = r.n_memory != 0 ? n : 0;
    r.memory = page->memory;
    if (keys != NULL)
        mcd_keys_fill(keys, &r);
    mcd_peer_answer(p, h, MCS_OK, &r.base);

out:
    free(keys);
    free(page);
}

void mcd_export_on_describe(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *m,
                            size_t size)
{
    Mcd__Describe *r = mcd__describe__unpack(NULL, size, m);
    struct mcd_export *e = r == NULL ? NULL : named(p, r->export, r->incarnation);

    if (r == NULL)
        p->cluster->wire_stats.malformed++;
    if (e == NULL)
        mcd_peer_answer(p, h, r == NULL ? MCS_PROTOCOL : MCS_STALE, NULL);
    else if (!is_there(e->segment))
        mcd_peer_answer(p, h, MCS_STALE, NULL);
    else
        describe(p, h, e, r->first);
    if (r != NULL)
        mcd__describe__free_unpacked(r, NULL);
}

void mcd_exports_tell(struct mcd_peer *p)
{
    if (p->exports == NULL || p->exports->count == 0)
        return;
    for (uint32_t i = 0, seen = 0; i < MCD_EXPORTS_MAX && seen < p->exports->count; i++) {
        struct mcd_export *e = p->exports->slots[i];
        bool gone;
        Mcd__Changed m = MCD__CHANGED__INIT;

        if (e == NULL)
            continue;
        seen++;
        gone = !is_there(e->segment);
        if (e->told == e->segment->version && gone == e->gone_told)
            continue;
        MCS_FAILPOINT(export_told);
        m.export = e->index;
        m.incarnation = e->incarnation;
        m.version = e->segment->version;
        m.gone = gone;
        if (mcd_peer_send(p, MCD_WIRE_CHANGED, &m.base) != 0)
            return; /* again once the peer is back */
        e->told = e->segment->version;
        e->gone_told = gone;
    }
}

/* ---- leave for data connections --------------------------------------------------- */

static void dismiss(struct mcd_visitor *v)
{
    if (v->leaving)
        return;
    v->leaving = true;
    v->serve = (struct mcd_serve){.visitor = v};
    mcd_engine_call(v->engine, &v->command, mcd_serve_dismiss, &v->serve);
}

void mcd_visitors_dismiss(struct mcd_peer *p)
{
    mcd_tokens_revoke(p->cluster, p, NULL);
    mcd_pairs_drop(p);
    for (struct mcd_visitor *v = p->visitors; v != NULL; v = v->next)
        dismiss(v);
}

void mcd_exports_poll(struct mcd_peer *p)
{
    struct mcd_visitor **link = &p->visitors;

    while (*link != NULL) {
        struct mcd_visitor *v = *link;

        /* partner: the engine's release */
        if (!v->leaving || v->adopting != 0 || mcs_load_acquire(&v->command.done) == 0) {
            link = &v->next;
            continue;
        }
        *link = v->next;
        p->nvisitors--;
        free(v);
    }
}

/* Of the routes without connections the oldest goes: its engine has long made another one. */
static void make_room(struct mcd_peer *p)
{
    struct mcd_visitor *oldest = NULL;

    for (struct mcd_visitor *v = p->visitors; v != NULL; v = v->next)
        if (!v->leaving && v->adopting == 0 && mcs_load_relaxed(&v->conns) == 0)
            oldest = v;
    if (oldest == NULL)
        return;
    mcd_tokens_revoke(p->cluster, p, oldest);
    dismiss(oldest);
}

struct mcd_visitor *mcd_visitor_of(struct mcd_peer *p, uint64_t route)
{
    struct mcd_agent *a = p->cluster->agent;
    struct mcd_visitor *v = p->visitors;

    if (p->exports == NULL)
        p->exports = calloc(1, sizeof(*p->exports));
    if (p->exports == NULL)
        return NULL;

    while (v != NULL && (v->route != route || v->leaving))
        v = v->next;
    if (v != NULL)
        return v;
    if (p->cluster->agent->nengines == 0)
        return NULL; /* a master without memory */
    if (p->nvisitors >= VISITORS_MAX) {
        make_room(p); /* for the next time it asks */
        return NULL;
    }
    v = calloc(1, sizeof(*v));
    if (v == NULL)
        return NULL;
    v->exports = p->exports;
    v->engine = a->engines[p->cluster->next_visitor++ % a->nengines];
    v->route = route;
    snprintf(v->name, sizeof(v->name), "%.63s", p->address);
    v->next = p->visitors;
    p->visitors = v;
    p->nvisitors++;
    return v;
}

/*
 * Does an engine still take what an agent's earlier life has sent?  Its kernel goes on sending after
 * the process has died, and whatever of that comes after a write of the next life would undo it.
 */
bool mcd_earlier_lives_go_on(struct mcd_cluster *c)
{
    bool any = false;

    for (struct mcd_peer *p = c->peers; p != NULL; p = p->next)
        if (p->state == MCD_PEER_DEFUNCT && p->visitors != NULL)
            any = !mcd_exports_drop(p) || any;
    return any;
}

void mcd_export_on_rails(struct mcd_peer *p, const struct mcd_wire_header *h, const uint8_t *m,
                         size_t size)
{
    struct mcd_cluster *c = p->cluster;
    Mcd__Rails *r = mcd__rails__unpack(NULL, size, m);
    Mcd__Tokens answer = MCD__TOKENS__INIT;
    static uint8_t bytes[CONNS_MAX][MCT_TCP_TOKEN]; /* the control thread's */
    ProtobufCBinaryData data[CONNS_MAX];
    char text[MCD_RAILS_MAX][MCD_ADDRESS_TEXT_MAX], *rails[MCD_RAILS_MAX];
    struct mcd_visitor *v = NULL;
    uint32_t status = MCS_OK;

    answer.error = (char *)"";
    if (r == NULL || r->count > CONNS_MAX || r->route == 0) {
        c->wire_stats.malformed++;
        status = MCS_PROTOCOL;
        answer.error = (char *)"the request for data connections is malformed or asks for too many";
    } else if (c->agent->config.require_encryption != 0) {
        status = MCS_ENCRYPTION;
        answer.error =
            (char *)"this agent has [peer] require_encryption = yes, and its rails carry "
                    "plain text: there is no rail to give";
    } else if (mcd_earlier_lives_go_on(c)) {
        status = MCS_BUSY; /* for some milliseconds: the asker tries again */
    } else {
        v = mcd_visitor_of(p, r->route);
        if (v == NULL)
            status = MCS_LIMIT;
    }
    for (uint32_t i = 0; status == MCS_OK && i < r->count; i++) {
        if (MCS_FAIL(export_rails) != 0 || mcd_token_create(c, p, v, bytes[i]) != 0) {
            status = MCS_LIMIT;
            break;
        }
        data[i] = (ProtobufCBinaryData){.len = MCT_TCP_TOKEN, .data = bytes[i]};
        answer.n_token = i + 1;
    }
    if (status == MCS_LIMIT)
        answer.error = (char *)"too many routes or data connections are being set up";
    answer.token = data;
    answer.rails = rails;
    answer.n_rails = mcd_rails_print(c, text, rails);
    mcd_peer_answer(p, h, status, &answer.base);
    if (r != NULL)
        mcd__rails__free_unpacked(r, NULL);
}

/* ---- the end --------------------------------------------------------------------- */

bool mcd_exports_drop(struct mcd_peer *p)
{
    mcd_visitors_dismiss(p);
    mcd_exports_poll(p);
    if (p->visitors != NULL)
        return false;
    if (p->exports != NULL)
        for (uint32_t i = 0; i < MCD_EXPORTS_MAX && p->exports->count != 0; i++)
            if (p->exports->slots[i] != NULL)
                take_back(p, i);
    return true;
}
