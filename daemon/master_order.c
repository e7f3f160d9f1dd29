/* SPDX-License-Identifier: Apache-2.0 */
/* Orders to holders: many keys in a message, and what becomes of them. */
#include "master_internal.h"

#include <stdlib.h>
#include <string.h>

#include "shm/status.h"

#define COPIES_A_MESSAGE 8u /* each is answered when all of them are made */
#define MESSAGES 64u        /* in one round */

struct ordered {
    struct mco_version version;
    uint64_t tenant, size;
    uint32_t from, crc;
    uint32_t number; /* CHECK: of the key */
};

struct mcd_order_call {
    struct mcd_call call;
    struct mcd_order_call *next;
    struct mcd_master *master;
    struct mcd_peer *peer;    /* NULL: this agent's own */
    uint32_t own;             /* its number, then */
    uint64_t token, deadline; /* ns */
    enum mco_order_kind kind;
    uint32_t holder;
    struct mcd_names list;
    struct ordered *orders;
    uint32_t room;
    struct mcd_check *check; /* CHECK */
};

static void unlink_order(struct mcd_order_call *o)
{
    struct mcd_order_call **link = &o->master->orders;

    while (*link != o)
        link = &(*link)->next;
    *link = o->next;
}

/* One of its orders is over. */
static void check_put(struct mcd_master *m, struct mcd_check *k)
{
    if (--k->left != 0)
        return;
    if (k->done != NULL)
        k->done(m, k);
    free(k->used);
    free(k);
}

static void order_free(struct mcd_order_call *o)
{
    if (o->check != NULL)
        check_put(o->master, o->check);
    mcd_names_free(&o->list);
    free(o->orders);
    free(o);
}

/* What the holder says of each key. */
static void carried_out(struct mcd_order_call *o, const Mcd__StoreDone *answer)
{
    struct mcd_master *m = o->master;
    const uint8_t *at = o->list.bytes;
    struct mco_order order = {.kind = o->kind, .holder = o->holder};
    uint64_t now = mcd_now_ns();

    if (answer->status.len != o->list.n) {
        m->stats.malformed++;
        return;
    }
    for (uint32_t i = 0; o->check != NULL && i < o->list.n; i++)
        o->check->used[o->orders[i].number] |= answer->status.data[i] == MCS_IN_USE;
    for (uint32_t i = 0; o->check == NULL && i < o->list.n; i++) {
        struct mco_key key = mcd_names_next(&at, o->orders[i].tenant);

        order.version = o->orders[i].version;
        order.tenant = key.tenant;
        order.length = key.length;
        memcpy(order.key, key.bytes, key.length);
        mco_directory_done(m->d, &order, answer->status.data[i], now);
    }
}

static void order_done(struct mcd_order_call *o, uint32_t status, const Mcd__StoreDone *answer)
{
    struct mcd_master *m = o->master;

    unlink_order(o); /* a reign that ends here takes all others with it */
    /* one that was refused or not answered is given again when its time is over, or its holder joins anew */
    if (status == MCS_OK && answer != NULL && mcd_master_leads(m) && o->token == m->token)
        carried_out(o, answer);
    else
        m->stats.orders_failed++;
    order_free(o);
    mcd_master_soon(m);
}

static void answered(struct mcd_call *c, uint32_t status, const uint8_t *payload, size_t size)
{
    struct mcd_order_call *o = c->context;
    Mcd__StoreDone *answer = status == MCS_OK ? mcd__store_done__unpack(NULL, size, payload) : NULL;

    order_done(o, status, answer);
    if (answer != NULL)
        mcd__store_done__free_unpacked(answer, NULL);
}

void mcd_master_answer(struct mcd_master *m, const struct mcd_wire_header *h, uint32_t status,
                       const ProtobufCMessage *answer)
{
    struct mcd_order_call *o;

    if (m == NULL)
        return;
    o = m->orders;
    while (o != NULL && (o->peer != NULL || o->own != h->id))
        o = o->next;
    if (o != NULL)
        order_done(o, status, (const Mcd__StoreDone *)answer);
}

/* ---- sending ------------------------------------------------------------------------------------ */

static bool add(struct mcd_order_call *o, const struct mco_order *order)
{
    if (o->list.n == o->room) {
        uint32_t room = o->room == 0 ? 16 : o->room * 2;
        struct ordered *more = realloc(o->orders, room * sizeof(*more));

        if (more == NULL)
            return false;
        o->orders = more;
        o->room = room;
    }
    o->orders[o->list.n] = (struct ordered){.version = order->version,
                                            .tenant = order->tenant,
                                            .size = order->size,
                                            .from = order->from,
                                            .crc = order->crc};
    return mcd_names_add(&o->list, order->key, order->length) == 0;
}

/* The message: arrays beside the key list, in memory that the caller frees. */
static void *message(struct mcd_order_call *o, Mcd__StoreOrder *q)
{
    size_t n = o->list.n;
    uint64_t *words =
        malloc(n * (4 * sizeof(uint64_t) + 2 * sizeof(uint32_t) + sizeof(char *)) + 8);
    const struct mco_holder *h;

    if (words == NULL)
        return NULL;
    q->token = o->token;
    q->kind = o->kind;
    q->keys = mcd_names_data(&o->list);
    q->n_tenant = q->n_version_token = q->n_version_sequence = q->n_size = q->n_crc = n;
    q->tenant = words;
    q->version_token = words + n;
    q->version_sequence = words + 2 * n;
    q->size = words + 3 * n;
    q->hosts = (char **)(words + 4 * n);
    q->crc = (uint32_t *)(q->hosts + n);
    q->from = q->crc + n;
    q->n_from = o->kind == MCO_ORDER_DROP || o->kind == MCO_ORDER_CHECK ? 0 : n;
    for (size_t i = 0; i < n; i++) {
        const struct ordered *d = &o->orders[i];

        q->tenant[i] = d->tenant;
        q->version_token[i] = d->version.token;
        q->version_sequence[i] = d->version.sequence;
        q->size[i] = d->size;
        q->crc[i] = d->crc;
        if (q->n_from == 0)
            continue;
        h = mco_directory_holder_at(o->master->d, d->from);
        q->hosts[q->n_hosts] = (char *)(uintptr_t)(h != NULL ? h->address : "");
        q->from[i] = (uint32_t)q->n_hosts++;
    }
    return words;
}

static void send_order(struct mcd_order_call *o)
{
    struct mcd_master *m = o->master;
    struct mcd_wire_header h = {.type = MCD_WIRE_STORE_ORDER};
    const struct mcd_config *config = &m->agent->config;
    uint64_t limit_ms = o->kind == MCO_ORDER_DROP || o->kind == MCO_ORDER_CHECK
                            ? config->store_away_ms
                            : config->store_put_ms;
    struct mcd_joined *j = mcd_joined_at(m, o->holder);
    Mcd__StoreOrder q = MCD__STORE_ORDER__INIT;
    void *memory = j == NULL || j->away ? NULL : message(o, &q);
    uint8_t *packed = NULL;
    int res = memory == NULL ? -1 : 0;

    o->next = m->orders;
    m->orders = o;
    m->stats.orders++;
    if (res == 0 && j->peer != NULL) {
        o->peer = j->peer;
        o->call.done = answered;
        o->call.context = o;
        res = mcd_peer_call(j->peer, &o->call, MCD_WIRE_STORE_ORDER, &q.base, limit_ms);
    } else if (res == 0 && m->agent->store != NULL && m->agent->store->catalog != NULL) {
        if (++m->next_own == 0)
            m->next_own = 1;
        o->own = h.id = m->next_own;
        o->deadline = mcd_now_ns() + limit_ms * MCD_MASTER_MS;
        h.deadline_ms = (uint32_t)limit_ms;
        packed = malloc(mcd__store_order__get_packed_size(&q) + 1);
        if (packed == NULL)
            res = -1;
        else /* it may be answered from inside, and gone */
            mcd_catalog_on_message(m->agent->store->catalog, NULL, &h, packed,
                                   mcd__store_order__pack(&q, packed));
    } else {
        res = -1;
    }
    if (res != 0) {
        m->stats.orders_failed++;
        unlink_order(o);
        order_free(o);
    }
    free(packed);
    free(memory);
}

static struct mcd_order_call *begin(struct mcd_master *m, const struct mco_order *first)
{
    struct mcd_order_call *o = calloc(1, sizeof(*o));

    if (o == NULL)
        return NULL;
    o->master = m;
    o->token = m->token;
    o->kind = first->kind;
    o->holder = first->holder;
    return o;
}

static bool goes_with(const struct mcd_order_call *o, const struct mco_order *order)
{
    return o->kind == order->kind && o->holder == order->holder && !mcd_names_full(&o->list) &&
           (o->kind == MCO_ORDER_DROP || o->list.n < COPIES_A_MESSAGE);
}

/* The own catalog has not answered in time: the orders are given again, and this one is not waited for any more. */
static void forget_late(struct mcd_master *m, uint64_t now)
{
    struct mcd_order_call *next;

    for (struct mcd_order_call *o = m->orders; o != NULL; o = next) {
        next = o->next;
        if (o->peer == NULL && now >= o->deadline) {
            m->stats.orders_failed++;
            unlink_order(o);
            order_free(o);
        }
    }
}

void mcd_orders_send(struct mcd_master *m, uint64_t now)
{
    struct mcd_order_call *o = NULL;
    struct mco_order order;
    unsigned sent = 0;

    forget_late(m, now);
    while (sent < MESSAGES && mco_directory_next_order(m->d, now, &order)) {
        if (o != NULL && !goes_with(o, &order)) {
            send_order(o);
            sent++;
            o = NULL;
        }
        if (o == NULL)
            o = begin(m, &order);
        if (o != NULL && !add(o, &order))
            m->stats.orders_failed++; /* no memory: it is given again later */
    }
    if (o != NULL)
        send_order(o);
    if (sent == MESSAGES)
        mcd_master_soon(m);
}

/* ---- what may not be removed without force ---------------------------------------------------------- */

struct mcd_check *mcd_check_create(void (*done)(struct mcd_master *m, struct mcd_check *k),
                                   void *context)
{
    struct mcd_check *k = calloc(1, sizeof(*k));

    if (k == NULL)
        return NULL;
    k->by = calloc(MCO_HOLDERS_MAX, sizeof(struct mcd_order_call *));
    if (k->by == NULL) {
        free(k);
        return NULL;
    }
    k->done = done;
    k->context = context;
    k->left = 1;
    return k;
}

static bool check_grow(struct mcd_check *k)
{
    uint32_t room = k->room == 0 ? 64 : k->room * 2;
    uint8_t *more = realloc(k->used, room);

    if (more == NULL)
        return false;
    k->used = more;
    k->room = room;
    return true;
}

/* The order to this holder that has room for one more key. NULL: no memory. */
static struct mcd_order_call *check_order(struct mcd_master *m, struct mcd_check *k,
                                          const struct mco_order *order)
{
    struct mcd_order_call *o = k->by[order->holder];

    if (o != NULL && mcd_names_full(&o->list)) {
        k->by[order->holder] = NULL;
        send_order(o);
        o = NULL;
    }
    if (o == NULL && (o = begin(m, order)) != NULL) {
        o->check = k;
        k->left++;
        k->by[order->holder] = o;
    }
    return o;
}

bool mcd_check_add(struct mcd_master *m, struct mcd_check *k, const struct mco_key *key,
                   uint64_t now)
{
    struct mco_order order = {
        .kind = MCO_ORDER_CHECK, .tenant = key->tenant, .length = key->length};
    struct mco_found_at f;

    if (k->n == k->room && !check_grow(k))
        return false;
    memcpy(order.key, key->bytes, key->length);
    k->used[k->n] = 0;
    mco_directory_find(m->d, key, 1, now, &f);
    for (unsigned i = 0; f.status == MCS_OK && i < f.nholders; i++) {
        struct mcd_order_call *o;

        order.holder = f.holders[i];
        order.version = f.version;
        o = check_order(m, k, &order);
        if (o == NULL || !add(o, &order))
            return false;
        o->orders[o->list.n - 1].number = k->n;
    }
    k->n++;
    return true;
}

static void check_over(struct mcd_check *k)
{
    free(k->by);
    k->by = NULL;
}

void mcd_check_send(struct mcd_master *m, struct mcd_check *k)
{
    for (uint32_t i = 0; i < MCO_HOLDERS_MAX; i++)
        if (k->by[i] != NULL)
            send_order(k->by[i]);
    check_over(k);
    check_put(m, k);
}

void mcd_check_destroy(struct mcd_check *k)
{
    k->done = NULL;
    for (uint32_t i = 0; i < MCO_HOLDERS_MAX; i++)
        if (k->by[i] != NULL)
            order_free(k->by[i]);
    check_over(k);
    check_put(NULL, k);
}

void mcd_orders_destroy(struct mcd_master *m)
{
    struct mcd_order_call *o;

    while ((o = m->orders) != NULL) {
        if (o->peer != NULL)
            mcd_peer_forget(o->peer, &o->call);
        unlink_order(o);
        order_free(o);
    }
}
