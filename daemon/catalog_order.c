/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of the master: copies and moves are pulls, and what is dropped is called back from who leases it. */
#include <stdlib.h>
#include <string.h>

#include "catalog_internal.h"
#include "log.h"
#include "master.h"
#include "shm/status.h"

#define ORDER_NS (60000 * MCD_MS) /* most that a copy may take: the master orders it again */

/* One order, until all of its keys are done. */
struct order {
    struct mcd_catalog *catalog;
    struct mcd_wire_header header;
    uint64_t from; /* incarnation of who gave it; 0: this agent's own master */
    uint32_t n;
    unsigned left; /* parts of it under way */
    uint8_t *status;
    uint8_t *keys; /* their bytes, while they are needed */
};

/* Those of one order that come from one holder. */
struct part {
    struct mcd_ask ask;
    struct order *order;
    uint32_t *index;
};

static void free_order(struct order *o)
{
    free(o->status);
    free(o->keys);
    free(o);
}

static void say(struct mcd_catalog *c, struct mcd_peer *p, bool own,
                const struct mcd_wire_header *h, uint32_t status, const ProtobufCMessage *m)
{
    if (own && c->master != NULL)
        mcd_master_answer(c->master, h, status, m);
    else if (!own && p != NULL)
        mcd_peer_answer(p, h, status, m);
}

static void part_over(struct order *o)
{
    Mcd__StoreDone m = MCD__STORE_DONE__INIT;
    struct mcd_catalog *c = o->catalog;

    if (--o->left != 0)
        return;
    m.token = c->leader_token;
    m.status = (ProtobufCBinaryData){.data = o->status, .len = o->n};
    say(c, mcd_catalog_peer_of(c, o->from), o->from == 0, &o->header, MCS_OK, &m.base);
    mcd_report_soon(c);
    free_order(o);
}

/* ---- copies ----------------------------------------------------------------------------------- */

static void free_part(struct part *p)
{
    if (p == NULL)
        return;
    free(p->ask.keys);
    free(p->index);
    free(p);
}

static void pulled(struct mcd_catalog *c, struct mcd_ask *a)
{
    struct part *p = a->context;

    (void)c;
    for (uint32_t i = 0; i < a->n; i++)
        p->order->status[p->index[i]] = a->keys[i].status;
    part_over(p->order);
    free_part(p);
}

struct wanted {
    struct mco_key key;
    uint32_t from, index;
};

static int by_origin(const void *a, const void *b)
{
    const struct wanted *x = a, *y = b;

    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    if (x->key.tenant != y->key.tenant)
        return x->key.tenant < y->key.tenant ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Pulls these, of one tenant and from one host. False: no memory. */
static bool pull_from(struct order *o, const Mcd__StoreOrder *m, const struct wanted *w, uint32_t n)
{
    struct mcd_catalog *c = o->catalog;
    struct mcd_holder *h = mcd_holder_get(c, m->hosts[w->from]);
    struct part *p = calloc(1, sizeof(*p));

    if (p != NULL) {
        p->ask.keys = calloc(n, sizeof(*p->ask.keys));
        p->index = calloc(n, sizeof(*p->index));
    }
    if (h == NULL || p == NULL || p->ask.keys == NULL || p->index == NULL) {
        free_part(p);
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = w[i].index;

        p->index[i] = at;
        p->ask.keys[i].key = w[i].key;
        p->ask.keys[i].version =
            (struct mco_version){m->version_token[at], m->version_sequence[at]};
    }
    p->order = o;
    p->ask.kind = MCD_ASK_PULL;
    p->ask.tenant = w->key.tenant;
    p->ask.deadline = c->now + ORDER_NS;
    p->ask.n = n;
    p->ask.context = p;
    o->left++;
    if (mcd_op_begin(c, &p->ask, h, pulled) == 0)
        return true;
    o->left--;
    free_part(p);
    return false;
}

/* One ask for each host and tenant. */
static void pull_all(struct order *o, const Mcd__StoreOrder *m)
{
    struct wanted *w = malloc(o->n * sizeof(*w));
    const uint8_t *at = o->keys;
    bool good = w != NULL;

    for (uint32_t i = 0; good && i < o->n; i++)
        w[i] = (struct wanted){mcd_names_next(&at, m->tenant[i]), m->from[i], i};
    if (good)
        qsort(w, o->n, sizeof(*w), by_origin);
    for (uint32_t first = 0, n; good && first < o->n; first += n) {
        n = 1;
        while (first + n < o->n && w[first + n].from == w[first].from &&
               w[first + n].key.tenant == w[first].key.tenant)
            n++;
        good = pull_from(o, m, w + first, n);
    }
    if (!good)
        mcd_log_limited(MCD_LOG_ERROR, "no memory for an order of the store's master");
    free(w);
}

/* ---- drops -------------------------------------------------------------------------------------- */

static void recalled(struct mcd_recall *r)
{
    part_over(r->context);
}

static void drop(struct order *o, const Mcd__StoreOrder *m)
{
    struct mcd_catalog *c = o->catalog;
    bool leases = mcd_leases_any(c);
    struct mcd_over *over =
        mcd_over_create(&m->keys, m->tenant, m->version_token, m->version_sequence, o->n);
    struct mcd_recall *r = NULL;

    if (over == NULL)
        return;                           /* NO_MEMORY is said of all */
    mcd_ops_unwant(c, over, o->n, false); /* before the removal: see mcd_pulls_unwant() */
    for (uint32_t i = 0; i < o->n; i++) {
        const struct mcd_over *x = &over[i];
        uint8_t status = (uint8_t)mco_remove(c->store->objects, &x->key, &x->upto, true, c->now);

        mcd_place_forget(c, &x->key, &x->upto);
        o->status[x->index] = status == MCS_NOT_FOUND ? MCS_OK : status;
        /* also when it was gone before: a leased one may have been replaced here */
        if (leases && mco_leaving(c->store->objects, &x->key) &&
            mcd_recall_add_to(c, &r, &x->key, &x->upto, recalled, o))
            o->left++;
    }
    o->left += mcd_recall_last(r, recalled, o);
    free(over);
}

/* Is somebody at it here? */
static void check(struct order *o, const Mcd__StoreOrder *m)
{
    const uint8_t *at = o->keys;

    for (uint32_t i = 0; i < o->n; i++) {
        struct mco_key key = mcd_names_next(&at, m->tenant[i]);
        struct mco_listed l;
        bool there = mco_stat(o->catalog->store->objects, &key, &l) && !l.leaving;

        o->status[i] = there && (l.hard_pin || l.pins != 0 || l.in_place != 0 ||
                                 l.lease_until > o->catalog->now)
                           ? MCS_IN_USE
                           : MCS_OK;
    }
}

/* ---- the message ---------------------------------------------------------------------------------- */

static bool good_order(const Mcd__StoreOrder *m, int64_t n)
{
    bool pulls = m != NULL && (m->kind == MCO_ORDER_COPY || m->kind == MCO_ORDER_MOVE);
    bool good = n > 0 && n <= MCD_NAMES_KEYS && m->n_tenant == (size_t)n &&
                m->n_version_token == (size_t)n && m->n_version_sequence == (size_t)n &&
                m->kind <= MCO_ORDER_CHECK && (!pulls || m->n_from == (size_t)n);

    for (int64_t i = 0; good && pulls && i < n; i++)
        good = m->from[i] < m->n_hosts;
    return good;
}

static struct order *order_create(struct mcd_catalog *c, const struct mcd_peer *p,
                                  const struct mcd_wire_header *h, const Mcd__StoreOrder *m,
                                  uint32_t n)
{
    struct order *o = calloc(1, sizeof(*o));

    if (o == NULL)
        return NULL;
    o->catalog = c;
    o->header = *h;
    o->from = p == NULL ? 0 : p->incarnation;
    o->n = n;
    o->left = 1;
    o->status = malloc(n);
    o->keys = malloc(m->keys.len);
    if (o->status == NULL || o->keys == NULL) {
        free_order(o);
        return NULL;
    }
    memset(o->status, MCS_NO_MEMORY, n);
    memcpy(o->keys, m->keys.data, m->keys.len);
    return o;
}

static void carry_out(struct order *o, const Mcd__StoreOrder *m)
{
    if (m->kind == MCO_ORDER_DROP)
        drop(o, m);
    else if (m->kind == MCO_ORDER_CHECK)
        check(o, m);
    else
        pull_all(o, m);
    part_over(o); /* the one that it was made with */
}

/* Of the leader that this agent knows: what anybody else orders is not done, whatever token it has. */
static bool of_leader(const struct mcd_catalog *c, const struct mcd_peer *p)
{
    struct mcd_peer *leader = NULL;

    return p == NULL || (c->master == NULL && c->leader[0] != '\0' &&
                         mcd_peer_get(c->agent->cluster, c->leader, &leader) == 0 && leader == p);
}

void mcd_order_on_order(struct mcd_catalog *c, struct mcd_peer *p, const struct mcd_wire_header *h,
                        const uint8_t *payload, size_t size)
{
    Mcd__StoreOrder *m = mcd__store_order__unpack(NULL, size, payload);
    int64_t n = m == NULL ? -1 : mcd_names_count(m->keys.data, m->keys.len);
    Mcd__StoreDone done = MCD__STORE_DONE__INIT;
    struct order *o;

    if (!good_order(m, n)) {
        if (c->agent->cluster != NULL)
            c->agent->cluster->wire_stats.malformed++;
        say(c, p, p == NULL, h, MCS_PROTOCOL, NULL);
    } else if (!of_leader(c, p)) {
        c->stats.fenced++;
        mcd_log_limited(MCD_LOG_WARNING,
                        "an order of %s, which does not lead the store, was refused", p->address);
        say(c, p, false, h, MCS_FENCED, NULL);
    } else if (m->token < mco_token(c->store->objects)) {
        c->stats.fenced++;
        done.token = mco_token(c->store->objects);
        mcd_log_limited(MCD_LOG_WARNING,
                        "an order of a former leader of the store (token %llu, now %llu) was "
                        "refused",
                        (unsigned long long)m->token, (unsigned long long)done.token);
        say(c, p, p == NULL, h, MCS_FENCED, &done.base);
    } else {
        mco_note_token(c->store->objects, m->token);
        o = order_create(c, p, h, m, (uint32_t)n);
        if (o == NULL)
            say(c, p, p == NULL, h, MCS_NO_MEMORY, NULL);
        else
            carry_out(o, m);
    }
    if (m != NULL)
        mcd__store_order__free_unpacked(m, NULL);
}
