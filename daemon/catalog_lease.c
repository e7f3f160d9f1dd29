/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: what other agents were told of this one's objects, and how it is called back.  The store keeps leased bytes in
 * their place until the lease has run out; what is called back early is only the knowledge, so that nobody who
 * asks afterwards reads an earlier life of a key.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "catalog_internal.h"
#include "log.h"
#include "shm/status.h"

/* Of a copy, least; and bytes per ms of the slowest link that is counted on. With a checksum a copy that took longer is found
 * out, and ordered again; without one nothing else says that its bytes are right. */
#define COPY_SUMMED_MS 20u
#define COPY_MS 1000u
#define COPY_RATE 50000u

/* ---- given ---------------------------------------------------------------------------- */

static void note_borrower(struct mcd_catalog *c, const struct mcd_peer *p, uint64_t until)
{
    struct mcd_borrower **link = &c->borrowers, *b = NULL;

    while (*link != NULL) {
        struct mcd_borrower *x = *link;

        if (x->incarnation == p->incarnation) {
            b = x;
        } else if (x->until < c->now) {
            *link = x->next;
            free(x);
            continue;
        }
        link = &x->next;
    }
    if (b == NULL)
        return;
    if (b->until < until)
        b->until = until;
}

/* Whoever cannot be remembered gets no lease: he could not be told. */
static bool know_borrower(struct mcd_catalog *c, const struct mcd_peer *p)
{
    struct mcd_borrower *b = c->borrowers;

    while (b != NULL && b->incarnation != p->incarnation)
        b = b->next;
    if (b != NULL)
        return true;
    b = calloc(1, sizeof(*b));
    if (b == NULL)
        return false;
    b->incarnation = p->incarnation;
    b->next = c->borrowers;
    c->borrowers = b;
    return true;
}

bool mcd_leases_any(const struct mcd_catalog *c)
{
    const struct mcd_borrower *b = c->borrowers;

    while (b != NULL && b->until <= c->now)
        b = b->next;
    return b != NULL;
}

struct leased {
    uint8_t *status, *summed, *hard_pin;
    uint64_t *token, *sequence, *size, *address, *group;
    uint32_t *crc, *soft_pin_ms;
};

/* How it is to be held elsewhere, too. */
static void keep_one(struct mcd_catalog *c, const struct mco_key *key, const struct leased *out,
                     uint32_t i)
{
    struct mco_listed l;

    if (out->status[i] != MCS_OK || !mco_stat(c->store->objects, key, &l))
        return;
    out->hard_pin[i] = l.hard_pin;
    out->group[i] = l.group;
    out->soft_pin_ms[i] =
        l.soft_pin_until <= c->now
            ? 0
            : (uint32_t)((l.soft_pin_until - c->now) / MCD_MS < MCS_SOFT_PIN_MAX_MS
                             ? (l.soft_pin_until - c->now) / MCD_MS
                             : MCS_SOFT_PIN_MAX_MS);
}

/* What is here may be over: whoever asks is to ask the leader. */
static void refuse_all(struct mcd_catalog *c, struct leased *l, int64_t n)
{
    memset(l->status, MCS_NO_DIRECTORY, (size_t)n);
    c->stats.leases_refused += (uint64_t)n;
}

/* One object: where it is, and that it stays there. keep: for a copy that the leader has ordered, which knows what it is of. */
static void lease_one(struct mcd_catalog *c, const struct mco_key *key, uint64_t until, bool keep,
                      const struct leased *out, uint32_t i)
{
    struct mco_store *s = c->store->objects;
    struct mco_hint hint = {0};
    const struct mcd_extent *e;
    struct mco_view v;

    out->status[i] = (uint8_t)mco_pin(s, key, &hint, c->now, &v);
    if (out->status[i] != MCS_OK)
        return;
    if (!keep && mcd_ops_doubt(c, key, &v.version)) {
        mco_unpin(s, v.object);
        out->status[i] =
            MCS_NO_DIRECTORY; /* the leader says which is the last one, when it has heard all */
        c->stats.leases_refused++;
        return;
    }
    mco_lease(s, v.object, until);
    e = v.owner;
    out->token[i] = v.version.token;
    out->sequence[i] = v.version.sequence;
    out->size[i] = v.size;
    out->address[i] = e == NULL ? 0 : e->address + v.offset;
    out->crc[i] = v.crc;
    out->summed[i] = v.summed;
    mco_unpin(s, v.object);
}

static bool leased_create(struct leased *l, int64_t n)
{
    uint8_t *at =
        n <= 0 ? NULL : calloc((size_t)n, 5 * sizeof(uint64_t) + 2 * sizeof(uint32_t) + 3);

    if (at == NULL)
        return false;
    l->token = (uint64_t *)at;
    l->sequence = l->token + n;
    l->size = l->sequence + n;
    l->address = l->size + n;
    l->group = l->address + n;
    l->crc = (uint32_t *)(l->group + n);
    l->soft_pin_ms = l->crc + n;
    l->status = (uint8_t *)(l->soft_pin_ms + n);
    l->summed = l->status + n;
    l->hard_pin = l->summed + n;
    return true;
}

/*
 * For how long, in ms. A copy that the master ordered has one reader, once: it gets the time that a slow link takes for these bytes.
 * With the whole default, the bytes that a put left here on their way to another host would fill this one's memory meanwhile.
 */
static uint64_t lease_time(struct mcd_catalog *c, const Mcd__StoreLease *r, uint32_t n)
{
    uint64_t most = r->lease_ms != 0 ? r->lease_ms : c->agent->config.store_lease_ms;
    bool summed = c->store->checksum;
    uint64_t bytes = 0, copy;
    const uint8_t *at = r->keys.data;

    most = most < MCD_LEASE_MAX_MS ? most : MCD_LEASE_MAX_MS;
    if (!r->keep || r->lease_ms != 0)
        return most;
    for (uint32_t i = 0; i < n; i++) {
        struct mco_key key = mcd_names_next(&at, r->tenant);
        struct mco_listed l;

        bytes += mco_stat(c->store->objects, &key, &l) ? l.size : 0;
    }
    copy = (summed ? COPY_SUMMED_MS : COPY_MS) + bytes / COPY_RATE;
    return copy < most ? copy : most;
}

static void lease_all(struct mcd_catalog *c, const Mcd__StoreLease *r, struct leased *l, uint32_t n,
                      uint64_t until)
{
    const uint8_t *at = r->keys.data;

    for (uint32_t i = 0; i < n; i++) {
        struct mco_key key = mcd_names_next(&at, r->tenant);

        if (r->exist)
            (void)mco_exist(c->store->objects, &key, NULL, 1, until - c->now, c->now, &l->status[i],
                            NULL);
        else
            lease_one(c, &key, until, r->keep, l, i);
        if (r->keep && !r->exist)
            keep_one(c, &key, l, i);
    }
}

void mcd_lease_on_lease(struct mcd_catalog *c, struct mcd_peer *p, const struct mcd_wire_header *h,
                        const uint8_t *payload, size_t size)
{
    Mcd__StoreLease *r = mcd__store_lease__unpack(NULL, size, payload);
    int64_t n = r == NULL || p == NULL ? -1 : mcd_names_count(r->keys.data, r->keys.len);
    Mcd__StoreLeased m = MCD__STORE_LEASED__INIT;
    uint64_t ms, until;
    struct leased l = {0};
    const uint8_t *at;

    if (n <= 0 || n > MCD_NAMES_KEYS) {
        if (p != NULL) {
            p->cluster->wire_stats.malformed++;
            mcd_peer_answer(p, h, MCS_PROTOCOL, NULL);
        }
        goto out;
    }
    if (r->doubt) {
        at = r->keys.data;
        for (uint32_t i = 0; i < n; i++) {
            struct mco_key key = mcd_names_next(&at, r->tenant);

            mcd_store_doubt(c->store, &key);
        }
        mcd_peer_answer(p, h, MCS_OK, NULL);
        goto out;
    }
    ms = lease_time(c, r, (uint32_t)n);
    until = c->now + ms * MCD_MS;
    if (!leased_create(&l, n) || !know_borrower(c, p)) {
        mcd_peer_answer(p, h, MCS_NO_MEMORY, NULL);
        goto out;
    }
    if (mcd_report_current(c)) {
        lease_all(c, r, &l, (uint32_t)n, until);
        note_borrower(c, p, until);
    } else {
        refuse_all(c, &l, n);
    }
    m.lease_ms = (uint32_t)ms;
    m.status = (ProtobufCBinaryData){.data = l.status, .len = (size_t)n};
    if (!r->exist) {
        m.n_version_token = m.n_version_sequence = m.n_size = m.n_crc = m.n_address = (size_t)n;
        m.version_token = l.token;
        m.version_sequence = l.sequence;
        m.size = l.size;
        m.crc = l.crc;
        m.address = l.address;
        m.summed = (ProtobufCBinaryData){.data = l.summed, .len = (size_t)n};
    }
    if (r->keep && !r->exist) {
        m.hard_pin = (ProtobufCBinaryData){.data = l.hard_pin, .len = (size_t)n};
        m.n_soft_pin_ms = m.n_group = (size_t)n;
        m.soft_pin_ms = l.soft_pin_ms;
        m.group = l.group;
    }
    mcd_peer_answer(p, h, MCS_OK, &m.base);

out:
    free(l.token);
    if (r != NULL)
        mcd__store_lease__free_unpacked(r, NULL);
}

static void doubted(struct mcd_store_call *sc, uint32_t status, const uint8_t *payload, size_t size)
{
    (void)status;
    (void)payload;
    (void)size;
    free(sc);
}

void mcd_lease_doubt(struct mcd_catalog *c, const struct mco_key *k, const struct mcd_segment *at)
{
    Mcd__StoreLease m = MCD__STORE_LEASE__INIT;
    struct mcd_holder *h = c->holders;
    struct mcd_names names = {0};
    struct mcd_store_call *sc;

    while (h != NULL && (h->reach == NULL || h->reach->segment != at))
        h = h->next;
    if (h == NULL || mcd_names_add(&names, k->bytes, k->length) != 0)
        return;
    sc = calloc(1, sizeof(*sc));
    m.tenant = k->tenant;
    m.keys = mcd_names_data(&names);
    m.doubt = true;
    if (sc != NULL) {
        sc->answered = doubted;
        if (mcd_store_call(c, h->address, sc, MCD_WIRE_STORE_LEASE, &m.base, MCD_CALL_MS) != 0)
            free(sc);
    }
    mcd_names_free(&names);
}

/* ---- lives that are over -------------------------------------------------------------------- */

static int by_hash(const void *a, const void *b)
{
    const struct mcd_over *x = a, *y = b;

    if (x->key.hash != y->key.hash)
        return x->key.hash < y->key.hash ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

struct mcd_over *mcd_over_create(const ProtobufCBinaryData *keys, const uint64_t *tenant,
                                 const uint64_t *token, const uint64_t *sequence, uint32_t n)
{
    struct mcd_over *over = malloc(n * sizeof(*over));
    const uint8_t *at = keys->data;

    for (uint32_t i = 0; over != NULL && i < n; i++) {
        over[i].key = mcd_names_next(&at, tenant[i]);
        over[i].upto = (struct mco_version){token[i], sequence[i]};
        over[i].index = i;
    }
    if (over != NULL)
        qsort(over, n, sizeof(*over), by_hash);
    return over;
}

bool mcd_over_has(const struct mcd_over *over, uint32_t n, const struct mco_key *key,
                  const struct mco_version *v)
{
    uint32_t low = 0, high = n; /* the first one with this hash, or a greater one */

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (over[middle].key.hash < key->hash)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < n && over[low].key.hash == key->hash; low++) {
        const struct mco_key *k = &over[low].key;

        if (k->tenant == key->tenant && k->length == key->length &&
            memcmp(k->bytes, key->bytes, k->length) == 0 &&
            mco_version_compare(v, &over[low].upto) <= 0)
            return true;
    }
    return false;
}

/* ---- called back: by others ---------------------------------------------------------------- */

void mcd_lease_on_recall(struct mcd_catalog *c, struct mcd_peer *p, const struct mcd_wire_header *h,
                         const uint8_t *payload, size_t size)
{
    Mcd__StoreRecall *r = mcd__store_recall__unpack(NULL, size, payload);
    int64_t n = r == NULL ? -1 : mcd_names_count(r->keys.data, r->keys.len);
    struct mcd_over *over = NULL;

    if (p == NULL) {
        /* no agent leases from itself */
    } else if (n <= 0 || n > MCD_NAMES_KEYS || r->n_tenant != (size_t)n ||
               r->n_version_token != (size_t)n || r->n_version_sequence != (size_t)n) {
        p->cluster->wire_stats.malformed++;
        mcd_peer_answer(p, h, MCS_PROTOCOL, NULL);
    } else {
        over = mcd_over_create(&r->keys, r->tenant, r->version_token, r->version_sequence,
                               (uint32_t)n);
        for (int64_t i = 0; over != NULL && i < n; i++)
            mcd_place_forget(c, &over[i].key, &over[i].upto);
        if (over != NULL)
            mcd_ops_unwant(c, over, (uint32_t)n, true);
        /* without memory: the lease runs out */
        mcd_peer_answer(p, h, over != NULL ? MCS_OK : MCS_NO_MEMORY, NULL);
        free(over);
    }
    if (r != NULL)
        mcd__store_recall__free_unpacked(r, NULL);
}

/* ---- called back: by this agent --------------------------------------------------------------- */

static void discard(struct mcd_recall *r)
{
    mcd_names_free(&r->keys);
    free(r->tenants);
    free(r);
}

static int more_room(struct mcd_recall *r)
{
    uint32_t room = r->room == 0 ? 64 : r->room * 2;
    uint64_t *columns = malloc(3 * (size_t)room * sizeof(*columns));

    if (columns == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < 3 && r->room != 0; i++)
        memcpy(columns + (size_t)i * room, r->tenants + (size_t)i * r->room,
               r->room * sizeof(*columns));
    free(r->tenants);
    r->tenants = columns;
    r->tokens = columns + room;
    r->sequences = columns + 2 * (size_t)room;
    r->room = room;
    return 0;
}

static int add(struct mcd_recall *r, const struct mco_key *k, const struct mco_version *v)
{
    int res = r->keys.n == r->room ? more_room(r) : 0;
    uint32_t at = r->keys.n;

    if (res == 0)
        res = mcd_names_add(&r->keys, k->bytes, k->length);
    if (res != 0)
        return res;
    r->tenants[at] = k->tenant;
    r->tokens[at] = v->token;
    r->sequences[at] = v->sequence;
    return 0;
}

struct recall_call {
    struct mcd_store_call sc;
    struct mcd_recall *recall; /* NULL: it is over */
};

static void end_recall(struct mcd_recall *r)
{
    struct mcd_catalog *c = r->catalog;
    struct mcd_recall **link = &c->recalls;

    while (*link != NULL && *link != r)
        link = &(*link)->next;
    if (*link == r)
        *link = r->next;
    /* calls that are still out belong to nobody from now on */
    for (struct mcd_store_call *sc = c->calls; sc != NULL; sc = sc->next)
        if (sc->context == r)
            sc->context = NULL;
    c->again = true;
    r->done(r);
    discard(r);
}

static void on_recalled(struct mcd_store_call *sc, uint32_t status, const uint8_t *payload,
                        size_t size)
{
    struct mcd_recall *r = sc->context;

    (void)payload;
    (void)size;
    free(sc);
    if (r == NULL)
        return;
    if (status == MCS_OK || status == MCS_NOT_SUPPORTED)
        r->left--;      /* else: not before its lease has run out */
    if (r->left == 0) { /* told from the loop */
        r->until = 0;
        r->catalog->again = true;
    }
}

/* Has another life taken its agent's place? Then nobody knows any more what that one was told. */
static bool is_over(const struct mcd_catalog *c, const struct mcd_borrower *b)
{
    const struct mcd_peer *p = c->agent->cluster == NULL ? NULL : c->agent->cluster->peers;

    while (p != NULL && p->incarnation != b->incarnation)
        p = p->next;
    return p != NULL && p->state == MCD_PEER_DEFUNCT;
}

static void send_recall(struct mcd_recall *r, const struct mcd_borrower *b)
{
    struct mcd_catalog *c = r->catalog;
    const struct mcd_peer *p = mcd_catalog_peer_of(c, b->incarnation);
    Mcd__StoreRecall m = MCD__STORE_RECALL__INIT;
    struct mcd_store_call *sc;

    r->left++;
    if (r->until < b->until)
        r->until = b->until;
    sc = p == NULL ? NULL : calloc(1, sizeof(*sc));
    if (sc == NULL)
        return; /* its lease runs out */
    sc->answered = on_recalled;
    sc->context = r;
    m.keys = mcd_names_data(&r->keys);
    m.n_tenant = m.n_version_token = m.n_version_sequence = r->keys.n;
    m.tenant = r->tenants;
    m.version_token = r->tokens;
    m.version_sequence = r->sequences;
    if (mcd_store_call(c, p->address, sc, MCD_WIRE_STORE_RECALL, &m.base,
                       (b->until - c->now) / MCD_MS + 1) != 0)
        free(sc);
    c->stats.recalls++;
}

static void begin(struct mcd_recall *r, void (*done)(struct mcd_recall *r), void *context)
{
    struct mcd_catalog *c = r->catalog;

    c->now = mcd_now_ns();
    r->done = done;
    r->context = context;
    r->next = c->recalls;
    c->recalls = r;
    for (const struct mcd_borrower *b = c->borrowers; b != NULL; b = b->next)
        if (b->until > c->now && !is_over(c, b))
            send_recall(r, b);
    if (r->left == 0)
        r->until = 0;
    mcd_catalog_due(c, r->until);
    c->again = true;
}

bool mcd_recall_add_to(struct mcd_catalog *c, struct mcd_recall **r, const struct mco_key *k,
                       const struct mco_version *v, void (*done)(struct mcd_recall *r),
                       void *context)
{
    bool begun = *r != NULL && mcd_names_full(&(*r)->keys);

    if (begun) {
        begin(*r, done, context);
        *r = NULL;
    }
    if (*r == NULL) {
        *r = calloc(1, sizeof(**r));
        if (*r != NULL)
            (*r)->catalog = c;
    }
    if (*r == NULL || add(*r, k, v) != 0)
        mcd_log_limited(MCD_LOG_ERROR, "no memory to call a lease back: who has it reads an "
                                       "earlier life of its key until it runs out");
    return begun;
}

unsigned mcd_recall_last(struct mcd_recall *r, void (*done)(struct mcd_recall *r), void *context)
{
    if (r == NULL)
        return 0;
    begin(r, done, context);
    return 1;
}

void mcd_recalls_poll(struct mcd_catalog *c)
{
    struct mcd_recall *next;

    for (struct mcd_recall *r = c->recalls; r != NULL; r = next) {
        next = r->next;
        if (r->until <= c->now)
            end_recall(r);
        else
            mcd_catalog_due(c, r->until);
    }
}

void mcd_leases_destroy(struct mcd_catalog *c)
{
    while (c->recalls != NULL) {
        c->recalls->until = 0;
        end_recall(c->recalls);
    }
    while (c->borrowers != NULL) {
        struct mcd_borrower *next = c->borrowers->next;

        free(c->borrowers);
        c->borrowers = next;
    }
}
