/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One ask, until each of its keys has an answer.
 *
 *   MASTER ---> (asked) ---+--> OVER
 *     ^                    +--> LEASE ---> (asked) ---+--> OVER
 *     |                          ^   next holder <----+--> PULL ---> (under way) ---> TOLD ---> OVER
 *     +-- later: no leader, rebuilding, nobody had it -+
 *
 * Keys that are asked for together travel in one message to each master or holder, split where a frame would be too
 * small.  What cannot be answered now is asked again until the deadline.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "catalog_op.h"
#include "shm/status.h"

/* ---- ends ------------------------------------------------------------------------------- */

static void free_op(struct mcd_op *op)
{
    struct mcd_op **link = &op->catalog->ops;

    while (*link != op)
        link = &(*link)->next;
    *link = op->next;
    free(op->keys);
    free(op);
}

/* Tells who asked. What is still under way ends by itself. */
static void answer(struct mcd_op *op)
{
    struct mcd_catalog *c = op->catalog;
    struct mcd_ask *a = op->ask;

    op->ask = NULL;
    if (op->done != NULL)
        op->done(c, a);
    else
        mcd_catalog_answered(c, a);
}

/* True: it is gone. */
static bool try_end(struct mcd_op *op)
{
    if (op->ask != NULL && op->left == 0 && (op->recalls == 0 || op->hurried))
        answer(op);
    if (op->ask != NULL || op->calls != 0 || op->pulls != 0 || op->recalls != 0)
        return false;
    free_op(op);
    return true;
}

/* A reach that was taken for a key which is not to be told of it. */
void mcd_op_let_go(struct mcd_ask_key *k)
{
    if (k->reach != NULL)
        (void)mcs_fetch_add(&k->reach->users,
                            UINT32_MAX); /* partner: mcd_reaches_poll(), this thread */
    k->reach = NULL;
    k->segment = NULL;
}

void mcd_op_over(struct mcd_op *op, uint32_t i, enum mcs_status status)
{
    struct mcd_ask_key *k = &op->ask->keys[i];

    if (op->keys[i].step == STEP_OVER)
        return;
    op->keys[i].step = STEP_OVER;
    op->left--;
    k->status =
        status < MCS_STATUS_COUNT ? (uint8_t)status : MCS_PROTOCOL; /* it may be a peer's word */
    if (status != MCS_OK || op->ask->kind != MCD_ASK_FIND)
        mcd_op_let_go(k);
}

/* Those without an answer get none any more. */
static void give_up(struct mcd_op *op, enum mcs_status status)
{
    op->hurried = true;
    for (uint32_t i = 0; i < op->n && op->left != 0; i++) {
        /* what the master may have granted has to be known, so that it can be undone: the call has its own end */
        if (status == MCS_TIMEOUT && op->ask->kind == MCD_ASK_START &&
            op->keys[i].step == STEP_ASKED)
            continue;
        mcd_op_over(op, i,
                    op->keys[i].last != MCS_OK && status == MCS_TIMEOUT
                        ? (enum mcs_status)op->keys[i].last
                        : status);
    }
}

void mcd_op_later(struct mcd_op *op, uint64_t ns)
{
    struct mcd_catalog *c = op->catalog;
    uint64_t at = c->now + ns;

    if (op->due > at)
        op->due = at;
    mcd_catalog_due(c, op->due);
}

void mcd_op_wait(struct mcd_op *op, uint32_t i, uint64_t ns)
{
    uint64_t at = op->catalog->now + ns;

    op->keys[i].waits = true;
    if (op->wake > at)
        op->wake = at;
    mcd_op_later(op, ns);
}

bool mcd_op_avoids(const struct mcd_op *op, uint32_t i, const struct mcd_holder *h)
{
    const struct mcd_segment *avoid = op->ask->keys[i].avoid;

    return avoid != NULL && h->reach != NULL && h->reach->segment == avoid;
}

/* The key goes back to the master, a little later; or it is said now why it has no answer. */
void mcd_op_again(struct mcd_op *op, uint32_t i, enum mcs_status why)
{
    struct mcd_catalog *c = op->catalog;

    op->keys[i].last = (uint8_t)why;
    op->keys[i].step = op->from ? STEP_LEASE : STEP_MASTER;
    if (op->ask->deadline < c->now + LAST_NS && why != MCS_BUSY) {
        mcd_op_over(op, i, why);
        return;
    }
    c->stats.retries++;
    mcd_op_wait(op, i, why == MCS_BUSY ? SOON_NS : AGAIN_NS + (c->now >> 7) % (4 * AGAIN_NS));
}

/* This holder does not give it: the next one, or the master once more. */
void mcd_op_elsewhere(struct mcd_op *op, uint32_t i, enum mcs_status why)
{
    struct mcd_op_key *k = &op->keys[i];

    mcd_place_forget(op->catalog, &op->ask->keys[i].key, NULL);
    k->silent |= why == MCS_PEER_UNREACHABLE;
    if (++k->at < k->nholders) {
        k->step = STEP_LEASE;
        return;
    }
    if (why == MCS_NOT_FOUND && k->silent)
        why = MCS_PEER_UNREACHABLE;
    if (op->from || ++k->tries >= (why == MCS_PEER_UNREACHABLE ? TRIES_AWAY : TRIES)) {
        mcd_op_over(op, i, why);
        return;
    }
    k->nholders = k->at = 0;
    if (why == MCS_PEER_UNREACHABLE) {
        mcd_op_again(op, i, why);
    } else {
        k->step = STEP_MASTER;
        op->due = 0;
        op->catalog->again = true;
    }
}

void mcd_op_stale(struct mcd_op *op, uint32_t i)
{
    const struct mco_key *key = &op->ask->keys[i].key;
    struct mcd_op_key *k = &op->keys[i];
    const struct mcd_reach *reach = k->holders[k->at]->reach;

    if (reach != NULL && mcd_place_reach(op->catalog, key) == reach)
        mcd_place_forget(op->catalog, key, NULL);
    k->silent = true;
    if (k->at + 1 < k->nholders) {
        k->at++;
        k->step = STEP_LEASE;
        return;
    }
    k->at = 0;
    if (!op->from)
        k->nholders = 0;
    mcd_op_again(op, i, MCS_PEER_UNREACHABLE);
}

/* No answer: why. */
static void failed(struct mcd_op *op, const struct mcd_op_call *oc, uint32_t status)
{
    if (status == MCS_OK)
        op->catalog->agent->cluster->wire_stats.malformed++;
    for (uint32_t j = 0; j < oc->n; j++) {
        uint32_t i = oc->index[j];

        if (op->keys[i].step != STEP_ASKED)
            continue;
        if (oc->holder != NULL)
            mcd_op_elsewhere(op, i, MCS_PEER_UNREACHABLE);
        else
            mcd_op_again(op, i, status == MCS_REBUILDING ? MCS_REBUILDING : MCS_NO_DIRECTORY);
    }
}

static void run(struct mcd_op *op);

/* Keys that go into one message, from `first` on. */
struct batch {
    struct mcd_names keys;
    struct mcd_op_call *call;
};

/* A question goes out, and its answer has come: about how much of the wires they take. */
static void take_off(struct mcd_op *op, struct batch *b)
{
    b->call->cost = b->keys.size + b->keys.n * ANSWER_BYTES;
    op->catalog->flight += b->call->cost;
    op->calls++;
}

static void land(struct mcd_op *op, const struct mcd_op_call *oc)
{
    op->catalog->flight -= oc->cost;
    op->calls--;
}

/* May it ask more now? A wire that is not read as fast as it is written to breaks. */
static bool may_ask(struct mcd_op *op)
{
    if (op->left == 0 || op->calls >= CALLS_MAX)
        return false;
    if (op->catalog->flight < FLIGHT_MAX)
        return true;
    mcd_op_later(op, SOON_NS);
    return false;
}

static void on_answer(struct mcd_store_call *sc, uint32_t status, const uint8_t *payload,
                      size_t size)
{
    struct mcd_op_call *oc = (struct mcd_op_call *)sc;
    struct mcd_op *op = oc->op;

    land(op, oc);
    if (op->ask != NULL) {
        if (status != MCS_OK || payload == NULL || !mcd_op_take_answer(op, oc, payload, size))
            failed(op, oc, status);
        if (status == MCS_FENCED)
            op->catalog->stats.fenced++;
    }
    free(oc);
    if (!try_end(op))
        run(op);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static int batch_begin(struct batch *b, struct mcd_op *op)
{
    uint32_t most = op->n < MCD_NAMES_KEYS ? op->n : MCD_NAMES_KEYS;

    b->keys = (struct mcd_names){0};
    b->call = calloc(1, sizeof(*b->call) + most * sizeof(b->call->index[0]));
    if (b->call == NULL)
        return -ENOMEM;
    b->call->op = op;
    b->call->sc.answered = on_answer;
    return 0;
}

/* Gathers keys in this step (of this holder) and sends them. 0: there were none; 1; or why not. */
static int send_lease(struct mcd_op *op, struct mcd_holder *h, const struct batch *b)
{
    Mcd__StoreLease m = MCD__STORE_LEASE__INIT;

    m.tenant = op->ask->tenant;
    m.lease_ms = op->ask->lease_ms;
    m.keys = mcd_names_data(&b->keys);
    m.exist = op->ask->kind == MCD_ASK_EXIST;
    m.keep = op->from;
    op->catalog->stats.leases += b->keys.n;
    return mcd_store_call(op->catalog, h->address, &b->call->sc, MCD_WIRE_STORE_LEASE, &m.base,
                          MCD_CALL_MS);
}

/* The columns of a message: entries of the keys that it has. */
struct columns {
    uint64_t *a, *b, *size;
    uint32_t *crc;
    uint8_t *status;
};

/*
 * What an END says of key i. A second try, at another leader even, may come when what was sealed is not here any more, since others have
 * replaced or removed it: nobody is to be sent here for it.
 */
static uint8_t outcome_of(const struct mcd_op *op, const struct mcd_ask_key *k)
{
    struct mco_listed l;

    if (op->ask->kind != MCD_ASK_END || k->given != MCS_OK)
        return k->given;
    if (mco_stat(op->catalog->store->objects, &k->key, &l) &&
        mco_version_compare(&l.version, &k->version) == 0)
        return MCS_OK;
    return MCS_NOT_FOUND;
}

static int columns_create(struct columns *x, const struct mcd_op *op, const struct mcd_op_call *oc)
{
    uint8_t *at = calloc(oc->n + 1, 3 * sizeof(uint64_t) + sizeof(uint32_t) + 1);

    if (at == NULL)
        return -ENOMEM;
    x->a = (uint64_t *)at;
    x->b = x->a + oc->n;
    x->size = x->b + oc->n;
    x->crc = (uint32_t *)(x->size + oc->n);
    x->status = (uint8_t *)(x->crc + oc->n);
    for (uint32_t j = 0; j < oc->n; j++) {
        const struct mcd_ask_key *k = &op->ask->keys[oc->index[j]];

        x->a[j] = k->version.token;
        x->b[j] = k->version.sequence;
        x->size[j] = k->size;
        x->crc[j] = k->crc;
        x->status[j] = outcome_of(op, k);
    }
    return 0;
}

static uint64_t limit_ms(const struct mcd_op *op)
{
    uint64_t left = op->ask->deadline > op->catalog->now ? op->ask->deadline - op->catalog->now : 0;
    /* what ends when others have done something may take as long as it has */
    bool waits = op->ask->kind == MCD_ASK_END || op->ask->kind == MCD_ASK_REMOVE;

    if (op->ask->kind == MCD_ASK_START) /* see give_up() */
        return MCD_CALL_MS;
    return waits || left < MCD_CALL_MS * MCD_MS ? left / MCD_MS : MCD_CALL_MS;
}

static int send_master(struct mcd_op *op, const struct batch *b)
{
    struct mcd_catalog *c = op->catalog;
    const struct mcd_ask *a = op->ask;
    struct columns x = {0};
    uint64_t limit = limit_ms(op);
    ProtobufCBinaryData keys = mcd_names_data(&b->keys);
    int res;

    switch (a->kind) {
    case MCD_ASK_START: {
        Mcd__StoreStart m = MCD__STORE_START__INIT;

        res = columns_create(&x, op, b->call);
        if (res != 0)
            break;
        m.token = c->leader_token;
        m.tenant = a->tenant;
        m.flags = a->flags;
        m.replicas = a->replicas;
        m.preferred = (char *)a->host;
        m.keys = keys;
        m.n_size = b->keys.n;
        m.size = x.size;
        res = mcd_store_call(c, NULL, &b->call->sc, MCD_WIRE_STORE_START, &m.base, limit);
        break;
    }
    case MCD_ASK_END: {
        Mcd__StoreEnd m = MCD__STORE_END__INIT;

        res = columns_create(&x, op, b->call);
        if (res != 0)
            break;
        m.token = c->leader_token;
        m.tenant = a->tenant;
        m.keys = keys;
        m.n_version_token = m.n_version_sequence = m.n_size = m.n_crc = b->keys.n;
        m.version_token = x.a;
        m.version_sequence = x.b;
        m.size = x.size;
        m.crc = x.crc;
        m.status = (ProtobufCBinaryData){.data = x.status, .len = b->keys.n};
        res = mcd_store_call(c, NULL, &b->call->sc, MCD_WIRE_STORE_END, &m.base, limit);
        break;
    }
    case MCD_ASK_REMOVE: {
        Mcd__StoreRemove m = MCD__STORE_REMOVE__INIT;

        m.token = c->leader_token;
        m.tenant = a->tenant;
        m.flags = a->flags;
        m.keys = keys;
        res = mcd_store_call(c, NULL, &b->call->sc, MCD_WIRE_STORE_REMOVE, &m.base, limit);
        break;
    }
    default: {
        Mcd__StoreFind m = MCD__STORE_FIND__INIT;

        m.token = c->leader_token;
        m.tenant = a->tenant;
        m.keys = keys;
        res = mcd_store_call(c, NULL, &b->call->sc,
                             mcd_op_asks_exist(op) ? MCD_WIRE_STORE_EXIST : MCD_WIRE_STORE_FIND,
                             &m.base, limit);
        break;
    }
    }
    free(x.a);
    return res;
}

/* One message to the master with what waits for one. False: there is none, or not now. */
static bool ask_master(struct mcd_op *op)
{
    struct batch b;
    int res = batch_begin(&b, op);

    for (uint32_t i = 0; res == 0 && i < op->n && !mcd_names_full(&b.keys); i++) {
        if (op->keys[i].step != STEP_MASTER || op->keys[i].waits)
            continue;
        res = mcd_names_add(&b.keys, op->ask->keys[i].key.bytes, op->ask->keys[i].key.length);
        if (res == 0)
            b.call->index[b.call->n++] = i;
    }
    if (res == 0 && b.call->n != 0) {
        for (uint32_t j = 0; j < b.call->n; j++)
            op->keys[b.call->index[j]].step = STEP_ASKED;
        b.call->sent = op->catalog->now;
        take_off(op, &b);
        res = send_master(op, &b);
        if (res != 0) {
            land(op, b.call);
            failed(op, b.call, MCS_NO_DIRECTORY);
        }
    } else if (res == 0) {
        res = -ENOENT;
    } else {
        mcd_op_later(op, AGAIN_NS);
    }
    mcd_names_free(&b.keys);
    if (res != 0)
        free(b.call);
    return res == 0;
}

/* The same to a holder: that of the first key which waits for one. */
static bool ask_holder(struct mcd_op *op)
{
    struct mcd_holder *h = NULL;
    struct batch b;
    uint32_t status;
    int res = batch_begin(&b, op);

    for (uint32_t i = 0; res == 0 && i < op->n && !mcd_names_full(&b.keys); i++) {
        struct mcd_op_key *k = &op->keys[i];

        if (k->step != STEP_LEASE || k->waits || (h != NULL && k->holders[k->at] != h))
            continue;
        if (h == NULL) {
            status = op->ask->kind == MCD_ASK_EXIST ? MCS_OK : mcd_holder_open(k->holders[k->at]);
            if (status == MCS_BUSY) /* others may be open */
                continue;
            if (status != MCS_OK) {
                mcd_op_elsewhere(op, i, MCS_PEER_UNREACHABLE);
                continue;
            }
            h = k->holders[k->at];
        }
        res = mcd_names_add(&b.keys, op->ask->keys[i].key.bytes, op->ask->keys[i].key.length);
        if (res == 0)
            b.call->index[b.call->n++] = i;
    }
    if (res == 0 && b.call->n != 0) {
        b.call->holder = h;
        b.call->sent = op->catalog->now = mcd_now_ns();
        for (uint32_t j = 0; j < b.call->n; j++)
            op->keys[b.call->index[j]].step = STEP_ASKED;
        take_off(op, &b);
        res = send_lease(op, h, &b);
        if (res != 0) {
            land(op, b.call);
            failed(op, b.call, MCS_PEER_UNREACHABLE);
            free(b.call);
            res = 0; /* others may be reached */
        }
    } else if (res == 0) {
        res = -ENOENT;
    } else {
        mcd_op_later(op, AGAIN_NS);
    }
    mcd_names_free(&b.keys);
    if (res != 0)
        free(b.call);
    return res == 0;
}

static void begin_pulls(struct mcd_op *op)
{
    for (uint32_t i = 0; i < op->n; i++) {
        enum mcs_status status = MCS_OK;
        int res;

        if (op->keys[i].step != STEP_PULL)
            continue;
        res = mcd_pull_begin(op->catalog, op, i, &op->ask->keys[i], &status);
        if (res == -EAGAIN) {
            op->keys[i].last = (uint8_t)status;
            mcd_op_later(op, SOON_NS);
            return;
        }
        if (res == 0) {
            op->keys[i].step = STEP_PULLING;
            op->pulls++;
        } else {
            mcd_op_over(op, i, status);
        }
    }
}

/* Nobody is to have a copy that the leader does not know of: it could acknowledge a removal without it. */
static void wait_until_told(struct mcd_op *op, uint32_t i)
{
    struct mcd_catalog *c = op->catalog;
    uint64_t first;

    op->keys[i].step = STEP_TOLD;
    op->keys[i].last = MCS_NO_DIRECTORY;
    mco_events_range(c->store->events, &first, &op->told);
    mcd_report_soon(c);
}

static void look_whether_told(struct mcd_op *op)
{
    if (op->told == 0 || !op->catalog->report.joined || op->catalog->report.walking ||
        op->catalog->report.next < op->told)
        return;
    op->told = 0;
    for (uint32_t i = 0; i < op->n; i++)
        if (op->keys[i].step == STEP_TOLD)
            mcd_op_over(op, i, MCS_OK);
}

/* Those that wait go on when their time has come, or something has changed: never because an answer has come, which may say
 * the same again at once. */
static void wake(struct mcd_op *op)
{
    struct mcd_catalog *c = op->catalog;

    if (op->wake > c->now && op->stir == c->stir)
        return;
    for (uint32_t i = 0; i < op->n && op->wake != UINT64_MAX; i++)
        op->keys[i].waits = false;
    op->wake = UINT64_MAX;
    op->stir = c->stir;
}

/* Goes on with what can go on now. It may be gone afterwards. */
static void run(struct mcd_op *op)
{
    struct mcd_catalog *c = op->catalog;

    if (op->ask == NULL)
        return;
    wake(op);
    if (c->now >= op->ask->deadline)
        give_up(op, MCS_TIMEOUT);
    op->due = op->wake < op->ask->deadline ? op->wake : op->ask->deadline;
    if (c->now >= op->due) /* a START whose answer is awaited all the same */
        op->due = c->now + AGAIN_NS;
    if (c->report.joined || (op->ask->kind != MCD_ASK_START && op->ask->kind != MCD_ASK_END)) {
        while (may_ask(op) && ask_master(op)) {
            /* each sends one message */
        }
    } else if (op->ask->deadline < c->now + LAST_NS) {
        give_up(op, MCS_NO_DIRECTORY);
    } else {
        mcd_op_later(op, AGAIN_NS);
    }
    while (may_ask(op) && ask_holder(op)) {
        /* likewise */
    }
    if (op->left != 0 && op->ask->kind == MCD_ASK_PULL) {
        begin_pulls(op);
        look_whether_told(op);
    }
    mcd_catalog_due(c, op->due);
    try_end(op);
}

/* One key of a pull. */
static void unwant(struct mcd_op *op, uint32_t i, bool recalled)
{
    struct mcd_ask_key *k = &op->ask->keys[i];
    uint8_t step = op->keys[i].step;

    if (op->from && !recalled && step < STEP_PULLING) {
        mcd_op_over(op, i, MCS_NOT_FOUND); /* the copy that was ordered is not wanted any more */
    } else if (!op->from && step == STEP_TOLD && recalled) {
        (void)mco_remove(op->catalog->store->objects, &k->key, &k->version, true, mcd_now_ns());
        mcd_op_elsewhere(op, i, MCS_NOT_FOUND);
    } else if (!op->from && step == STEP_PULL) {
        mcd_op_elsewhere(op, i, MCS_NOT_FOUND);
    }
}

void mcd_ops_unwant(struct mcd_catalog *c, const struct mcd_over *over, uint32_t n, bool recalled)
{
    mcd_pulls_unwant(c, over, n);
    for (struct mcd_op *op = c->ops; op != NULL; op = op->next) {
        if (op->ask == NULL || op->ask->kind != MCD_ASK_PULL)
            continue;
        for (uint32_t i = 0; i < op->n; i++)
            if (op->keys[i].step != STEP_OVER &&
                mcd_over_has(over, n, &op->ask->keys[i].key, &op->ask->keys[i].version))
                unwant(op, i, recalled);
    }
    c->again = true; /* ends are told from the loop */
}

bool mcd_op_waits(const struct mcd_op *op)
{
    return op->ask != NULL;
}

void mcd_op_pulled(struct mcd_op *op, uint32_t i, enum mcs_status status)
{
    op->pulls--;
    if (op->ask != NULL && op->keys[i].step == STEP_PULLING) {
        if (status == MCS_OK && !op->from)
            wait_until_told(op, i);
        else if (status == MCS_PEER_UNREACHABLE || status == MCS_CHECKSUM ||
                 (status == MCS_NOT_FOUND && !op->from))
            mcd_op_elsewhere(op, i, status);
        else
            mcd_op_over(op, i, status);
    }
    op->due = 0;
    op->catalog->again = true;
    try_end(op);
}

/* ---- the start --------------------------------------------------------------------------------- */

static void recalled(struct mcd_recall *r)
{
    struct mcd_op *op = r->context;

    op->recalls--;
    op->catalog->again = true;
    try_end(op);
}

/* An earlier life of what is put anew may have been read from here by others: before its writer hears that
 * it is there, they have forgotten that one. */
static void recall_replaced(struct mcd_op *op)
{
    struct mcd_catalog *c = op->catalog;
    struct mcd_recall *r = NULL;

    if (!mcd_leases_any(c))
        return;
    for (uint32_t i = 0; i < op->n; i++) {
        const struct mcd_ask_key *k = &op->ask->keys[i];
        struct mco_version before = k->version;

        if (k->given != MCS_OK || before.sequence == 0 || !mco_leaving(c->store->objects, &k->key))
            continue;
        before.sequence--;
        if (mcd_recall_add_to(c, &r, &k->key, &before, recalled, op))
            op->recalls++;
    }
    op->recalls += mcd_recall_last(r, recalled, op);
}

int mcd_op_begin(struct mcd_catalog *c, struct mcd_ask *a, struct mcd_holder *from,
                 void (*done)(struct mcd_catalog *c, struct mcd_ask *a))
{
    struct mcd_op *op = calloc(1, sizeof(*op));

    if (op != NULL)
        op->keys = calloc(a->n + 1, sizeof(*op->keys));
    if (op == NULL || op->keys == NULL) {
        free(op);
        return -ENOMEM;
    }
    op->catalog = c;
    op->ask = a;
    op->done = done;
    op->n = op->left = a->n;
    op->wake = UINT64_MAX;
    op->stir = c->stir;
    op->from = from != NULL;
    op->next = c->ops;
    c->ops = op;
    for (uint32_t i = 0; i < a->n; i++) {
        struct mcd_ask_key *k = &a->keys[i];
        struct mcd_op_key *o = &op->keys[i];
        struct mcd_holder *h = from;

        k->given = k->status;
        op->late |= a->kind == MCD_ASK_END && k->version.token != c->leader_token;
        if (a->kind == MCD_ASK_PULL)
            k->reach = NULL;
        if (a->kind == MCD_ASK_PULL && from == NULL)
            k->version = (struct mco_version){0};
        if ((a->kind == MCD_ASK_FIND || a->kind == MCD_ASK_EXIST) && k->status == MCS_OK) {
            o->step = STEP_OVER; /* the engine found it in the cache */
            op->left--;
            continue;
        }
        if (h == NULL && (a->kind == MCD_ASK_FIND || a->kind == MCD_ASK_PULL ||
                          (a->kind == MCD_ASK_EXIST && a->lease_ms != 0)))
            h = mcd_holder_of(c, mcd_place_reach(c, &k->key));
        if (h != NULL && from == NULL && mcd_op_avoids(op, i, h))
            h = NULL;
        if (a->kind == MCD_ASK_FIND && k->avoid != NULL)
            mcd_place_forget(c, &k->key, NULL);
        if (a->kind == MCD_ASK_FIND && k->avoid != NULL && k->damaged)
            mcd_lease_doubt(c, &k->key, k->avoid);
        if (h != NULL) { /* whoever had it last is asked first */
            o->holders[0] = h;
            o->nholders = 1;
            o->step = STEP_LEASE;
        }
    }
    if (a->kind == MCD_ASK_END)
        recall_replaced(op);
    run(op);
    return 0;
}

void mcd_ops_poll(struct mcd_catalog *c)
{
    struct mcd_op *next;

    for (struct mcd_op *op = c->ops; op != NULL; op = next) {
        next = op->next;
        if (op->ask == NULL)
            continue;
        if (mcs_load_relaxed(&op->ask->canceled) != 0) /* partner: mcd_ask_cancel(), which rings */
            /* what was begun at the master is told, so that it can be undone: START waits for its answer */
            if (op->ask->kind != MCD_ASK_START || op->calls == 0)
                give_up(op, MCS_CANCELED);
        if (op->left == 0 || op->stir != c->stir || op->due <= c->now)
            run(op);
        else
            mcd_catalog_due(c, op->due);
    }
}

void mcd_ops_late(struct mcd_catalog *c)
{
    for (struct mcd_op *op = c->ops; op != NULL; op = op->next)
        op->late |= op->ask != NULL && op->ask->kind == MCD_ASK_END;
}

bool mcd_ops_doubt(const struct mcd_catalog *c, const struct mco_key *k,
                   const struct mco_version *v)
{
    bool doubt = false;

    for (const struct mcd_op *op = c->ops; op != NULL && !doubt; op = op->next)
        for (uint32_t i = 0; op->late && op->ask != NULL && i < op->n; i++) {
            const struct mcd_ask_key *x = &op->ask->keys[i];

            doubt |= op->keys[i].step != STEP_OVER && x->given == MCS_OK &&
                     x->key.hash == k->hash && x->key.tenant == k->tenant &&
                     mco_version_compare(&x->version, v) == 0;
        }
    return doubt;
}

/* Each may be gone afterwards. */
void mcd_ops_disown(struct mcd_catalog *c)
{
    struct mcd_op *next;

    for (struct mcd_op *op = c->ops; op != NULL; op = next) {
        next = op->next;
        if (op->ask == NULL || !op->from)
            continue;
        mcd_pulls_unwant_of(c, op);
        give_up(op, MCS_CANCELED);
        try_end(op);
    }
}

void mcd_ops_end(struct mcd_catalog *c, enum mcs_status status)
{
    struct mcd_op *next;

    for (struct mcd_op *op = c->ops; op != NULL; op = next) {
        next = op->next;
        if (op->ask == NULL)
            continue;
        give_up(op, status);
        try_end(op);
    }
}
