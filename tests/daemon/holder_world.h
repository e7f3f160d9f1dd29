/* SPDX-License-Identifier: Apache-2.0 */
/* A holder: an agent's catalog and store, and what another agent, which also leads, says to it. */
#ifndef TESTS_HOLDER_WORLD_H
#define TESTS_HOLDER_WORLD_H

#include "agents.h"
#include "daemon/catalog_internal.h"
#include "daemon/store.h"
#include "daemon/store_wire.h"
#include "store/object/directory.h"

#define EXTENT (4u << 20)
#define TENANT 7u
#define LEADER 3u /* its token */

struct holder {
    struct ag g;
    struct mcd_store st;
    struct mcd_extent extent;
    struct ag_raw raw;
    uint32_t next_id;
    /* what it was asked */
    unsigned recalls;
    bool silent; /* does not answer recalls */
    unsigned joins;
    bool drained;       /* what it is told as its leader's word, */
    bool says_so;       /* and what it has said at its last join */
    uint64_t token;     /* the leader's, 0: LEADER */
    uint8_t away;       /* it says that so many more have what it is asked for */
    const char *holder; /* who has it, as it says; NULL: itself */
    unsigned finds;
    unsigned ends, removals;
    uint8_t ended;       /* status of the last one */
    uint8_t says;        /* of a key that is to be written */
    uint32_t current_ms; /* it promises as a leader; */
    bool stale, mute;    /* or that nothing is promised; it does not answer joins */
    bool claims;         /* that it is promised something was said at the last join */
    unsigned refuses;    /* leases that it has not heard enough for, one after the other */
    unsigned leases;     /* that were asked of it */
    uint64_t life;       /* it leases k in this life (0: it has it not), */
    unsigned outdated;   /* but in the one before so often */
    unsigned answers;
    /* reports: the first one of events is not answered */
    struct mcd_wire_header report;
    unsigned held, fulls;
    bool wants, whole; /* the first one of everything begins with its beginning */
    struct mcd_wire_header recall;
};

static inline void want(void *context, uint64_t tenant, bool open, uint64_t size)
{
    (void)context;
    (void)tenant;
    (void)open;
    (void)size;
}

static inline void nothing(void *context)
{
    (void)context;
}

static inline void idle(void *context, uint32_t extent)
{
    (void)context;
    (void)extent;
}

static inline void event(void *context, const struct mco_event *e)
{
    (void)mco_events_add(((struct holder *)context)->st.events, e, NULL);
}

/* The other agent leads. */
static inline void on_join(struct holder *x, const struct mcd_wire_header *h, const uint8_t *m,
                           size_t size)
{
    Mcd__StoreJoin *q = mcd__store_join__unpack(NULL, size, m);
    Mcd__StoreJoined a = MCD__STORE_JOINED__INIT;

    cr_assert_not_null(q);
    x->joins++;
    x->says_so = q->draining;
    x->claims = q->current;
    mcd__store_join__free_unpacked(q, NULL);
    if (x->mute)
        return;
    a.current_ms = x->current_ms;
    a.stale = x->stale;
    a.token = x->token != 0 ? x->token : LEADER;
    a.beat_ms = 10;
    a.draining = x->drained;
    a.report = x->wants;
    ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
}

static inline void on_end(struct holder *x, const struct mcd_wire_header *h, const uint8_t *m,
                          size_t size)
{
    Mcd__StoreEnd *q = mcd__store_end__unpack(NULL, size, m);
    uint8_t status = MCS_REBUILDING;
    Mcd__StoreEnded a = MCD__STORE_ENDED__INIT;

    cr_assert(q != NULL && q->status.len == 1);
    x->ended = q->status.data[0];
    mcd__store_end__free_unpacked(q, NULL);
    x->ends++;
    a.token = LEADER;
    a.status = (ProtobufCBinaryData){.data = &status, .len = 1};
    ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
}

static inline void on_start(struct holder *x, const struct mcd_wire_header *h)
{
    Mcd__StoreStarted a = MCD__STORE_STARTED__INIT;
    uint64_t one = 1;

    a.token = LEADER;
    a.status = (ProtobufCBinaryData){.data = &x->says, .len = 1};
    a.n_version_token = a.n_version_sequence = 1;
    a.version_token = a.version_sequence = &one;
    ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
}

static inline void on_report(struct holder *x, const struct mcd_wire_header *h, const uint8_t *m,
                             size_t size)
{
    Mcd__StoreReport *q = mcd__store_report__unpack(NULL, size, m);
    Mcd__StoreReported a = MCD__STORE_REPORTED__INIT;

    cr_assert_not_null(q);
    a.token = LEADER;
    a.current_ms = x->current_ms;
    a.stale = x->stale;
    if (!q->full && x->held++ == 0) {
        x->report = *h;
    } else {
        if (q->full && x->fulls++ == 0)
            x->whole = q->first && mcd_names_count(q->keys.data, q->keys.len) == 1;
        ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
    }
    mcd__store_report__free_unpacked(q, NULL);
}

static inline void on_remove(struct holder *x, const struct mcd_wire_header *h)
{
    Mcd__StoreRemoved a = MCD__STORE_REMOVED__INIT;
    uint8_t status = MCS_OK;

    x->removals++;
    if (x->silent)
        return;
    a.token = LEADER;
    a.status = (ProtobufCBinaryData){.data = &status, .len = 1};
    ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
}

/* It has it itself, it says as the leader; and as the holder that it has it not. */
static inline void on_find(struct holder *x, const struct mcd_wire_header *h)
{
    Mcd__StoreFound a = MCD__STORE_FOUND__INIT;
    uint8_t status = MCS_OK, one = 1;
    char *hosts[] = {(char *)(uintptr_t)(x->holder != NULL ? x->holder : "127.0.0.1:9")};
    uint32_t at = 0;

    x->finds++;
    a.token = LEADER;
    a.status = (ProtobufCBinaryData){.data = &status, .len = 1};
    a.nholders = (ProtobufCBinaryData){.data = &one, .len = 1};
    a.away = (ProtobufCBinaryData){.data = &x->away, .len = 1};
    a.holders = &at;
    a.hosts = hosts;
    a.n_holders = a.n_hosts = 1;
    ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
}

static inline void on_lease(struct holder *x, const struct mcd_wire_header *h, const uint8_t *m,
                            size_t size)
{
    Mcd__StoreLease *q = mcd__store_lease__unpack(NULL, size, m);
    Mcd__StoreLeased a = MCD__STORE_LEASED__INIT;
    uint64_t token = 1, address = 4096, length = 1000;
    uint64_t sequence = x->leases < x->outdated ? x->life - 1 : x->life;
    uint32_t crc = 5;
    uint8_t summed = 1, status = x->leases++ < x->refuses ? MCS_NO_DIRECTORY
                                 : x->life != 0           ? MCS_OK
                                                          : MCS_NOT_FOUND;

    cr_assert_not_null(q);
    a.status = (ProtobufCBinaryData){.data = &status, .len = 1};
    a.summed = (ProtobufCBinaryData){.data = &summed, .len = 1};
    a.lease_ms = 60000;
    a.n_version_token = a.n_version_sequence = a.n_size = a.n_crc = a.n_address = !q->exist;
    a.version_token = &token;
    a.version_sequence = &sequence;
    a.size = &length;
    a.crc = &crc;
    a.address = &address;
    mcd__store_lease__free_unpacked(q, NULL);
    ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
}

static inline void on_request(struct ag_raw *r, const struct mcd_wire_header *h, const uint8_t *m,
                              size_t size)
{
    struct holder *x = r->context;

    if (h->type == MCD_WIRE_STORE_JOIN)
        on_join(x, h, m, size);
    if (h->type == MCD_WIRE_STORE_END)
        on_end(x, h, m, size);
    if (h->type == MCD_WIRE_STORE_START)
        on_start(x, h);
    if (h->type == MCD_WIRE_STORE_REPORT)
        on_report(x, h, m, size);
    if (h->type == MCD_WIRE_STORE_REMOVE)
        on_remove(x, h);
    if (h->type == MCD_WIRE_STORE_FIND)
        on_find(x, h);
    if (h->type == MCD_WIRE_STORE_LEASE)
        on_lease(x, h, m, size);
    if (h->type == MCD_WIRE_OPEN)
        ag_raw_answer(r, h, MCS_NOT_FOUND, NULL); /* it has no store */
    if (h->type != MCD_WIRE_STORE_RECALL)
        return;
    x->recalls++;
    x->recall = *h;
    if (!x->silent)
        ag_raw_answer(r, h, MCS_OK, NULL);
}

static inline void turn(struct holder *x)
{
    ag_turn(&x->g, NULL);
    ag_raw_run(&x->raw);
}

#define until(x, condition)                                                                        \
    do {                                                                                           \
        uint64_t end_ = mcd_now_ns() + UINT64_C(20000000000);                                      \
        while (!(condition)) {                                                                     \
            cr_assert(mcd_now_ns() < end_, "waited in vain for " #condition);                      \
            turn(x);                                                                               \
        }                                                                                          \
    } while (0)

static inline void init(struct holder *x)
{
    struct mco_options o = {.size = 2 * EXTENT,
                            .extent_size = EXTENT,
                            .objects = 1000,
                            .high = 100,
                            .low = 95,
                            .policy = "lru",
                            .lease_ns = 1000000000,
                            .table_fd = -1,
                            .context = x,
                            .want = want,
                            .idle = idle,
                            .ready = nothing,
                            .event = event};
    struct mco_extent e = {.tenant = TENANT, .size = EXTENT, .page_size = 4096, .node = -1};
    struct mco_recovered r;
    char error[256] = "";

    memset(x, 0, sizeof(*x));
    ag_init(&x->g);
    x->st.agent = x->g.agent;
    cr_assert_eq(mco_events_create(1 << 20, &x->st.events), 0);
    cr_assert_eq(mco_create(&o, &x->st.objects, error, sizeof(error)), 0, "%s", error);
    mco_recover(x->st.objects, &r);
    x->extent.map = aligned_alloc(4096, EXTENT);
    x->extent.size = EXTENT;
    x->extent.address = AG_ADDRESS;
    e.address = AG_ADDRESS;
    e.map = x->extent.map;
    e.owner = &x->extent;
    cr_assert_eq(mco_extent_add(x->st.objects, &e, &x->extent.handle), 0);
    x->g.agent->store = &x->st;
    cr_assert_eq(mcd_catalog_create(x->g.agent, &x->st.catalog, error, sizeof(error)), 0, "%s",
                 error);
    cr_assert_not_null(x->st.catalog);
    mcd_catalog_extent(x->st.catalog, &x->extent, true);
    ag_raw_call(&x->raw, &x->g, 77);
    x->raw.request = on_request;
    x->raw.context = x;
    until(x, x->raw.ready != 0);
    ag_raw_hello(&x->raw, "127.0.0.1:9");
    until(x, x->raw.hellos != 0);
}

static inline void fini(struct holder *x)
{
    ag_raw_fini(&x->raw);
    mcd_catalog_stop(x->st.catalog);
    mcd_catalog_destroy(x->st.catalog);
    x->st.catalog = NULL;
    ag_settle(&x->g);
    x->g.agent->store = NULL;
    ag_fini(&x->g);
    mco_destroy(x->st.objects);
    mco_events_destroy(x->st.events);
    free(x->extent.map);
}

static inline struct mco_version put(struct holder *x, const char *key, uint64_t sequence)
{
    struct mco_put p = {.key = mco_key(TENANT, key, (uint32_t)strlen(key)),
                        .size = 1000,
                        .version = {1, sequence},
                        .flags = MCS_OBJECT_UPSERT};
    struct mco_view v;

    cr_assert_eq(mco_begin(x->st.objects, &p, &v), MCS_OK);
    memset(v.data, 'x', 1000);
    cr_assert_eq(mco_seal(x->st.objects, v.object, 99, true, 1), MCS_OK);
    return v.version;
}

static inline bool is_there(struct holder *x, const char *key)
{
    struct mco_key k = mco_key(TENANT, key, (uint32_t)strlen(key));
    uint8_t status;

    return mco_exist(x->st.objects, &k, NULL, 1, 0, mcd_now_ns(), &status, NULL) == 1;
}

static inline void send_off(struct holder *x, uint16_t type, const ProtobufCMessage *m)
{
    struct mcd_wire_header h = {.type = type, .id = ++x->next_id, .deadline_ms = 10000};

    x->raw.last = (struct mcd_wire_header){0};
    cr_assert_eq(mcd_wire_send(x->raw.wire, &h, m), 0);
}

/* The status of its answer. */
static inline uint32_t ask(struct holder *x, uint16_t type, const ProtobufCMessage *m)
{
    send_off(x, type, m);
    until(x, x->raw.last.id == x->next_id);
    return x->raw.last.status;
}

static inline uint32_t lease(struct holder *x, const char *const *keys, unsigned n, uint32_t ms,
                             Mcd__StoreLeased **out)
{
    Mcd__StoreLease m = MCD__STORE_LEASE__INIT;
    struct mcd_names names = {0};
    uint32_t status;

    for (unsigned i = 0; i < n; i++)
        cr_assert_eq(mcd_names_add(&names, keys[i], (uint32_t)strlen(keys[i])), 0);
    m.tenant = TENANT;
    m.lease_ms = ms;
    m.keys = mcd_names_data(&names);
    status = ask(x, MCD_WIRE_STORE_LEASE, &m.base);
    *out = mcd__store_leased__unpack(NULL, x->raw.size, x->raw.payload);
    mcd_names_free(&names);
    return status;
}

/* From now on the other agent is known to lead, and joined. */
static inline void led(struct holder *x)
{
    mcd_catalog_leader(x->st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(x, x->joins != 0);
}

static inline void order_drop(struct holder *x, const char *key, uint64_t token, uint64_t upto)
{
    Mcd__StoreOrder m = MCD__STORE_ORDER__INIT;
    struct mcd_names names = {0};
    uint64_t tenant = TENANT, one = 1;

    cr_assert_eq(mcd_names_add(&names, key, (uint32_t)strlen(key)), 0);
    m.token = token;
    m.kind = MCO_ORDER_DROP;
    m.keys = mcd_names_data(&names);
    m.n_tenant = m.n_version_token = m.n_version_sequence = 1;
    m.tenant = &tenant;
    m.version_token = &one;
    m.version_sequence = &upto;
    send_off(x, MCD_WIRE_STORE_ORDER, &m.base);
    mcd_names_free(&names);
}

static inline void asked(struct mcd_catalog *c, struct mcd_ask *a)
{
    (void)c;
    *(bool *)a->context = true;
}

/* What is there, as its leader says. */
static inline uint8_t exists(struct holder *x, uint8_t away)
{
    struct mcd_ask_key k = {.key = mco_key(TENANT, "k", 1), .status = MCS_BUSY};
    bool over = false;
    struct mcd_ask a = {.kind = MCD_ASK_EXIST,
                        .keys = &k,
                        .n = 1,
                        .tenant = TENANT,
                        .lease_ms = 1000,
                        .deadline = mcd_now_ns() + UINT64_C(10000000000),
                        .context = &over};

    x->away = away;
    x->finds = 0;
    cr_assert_eq(mcd_op_begin(x->st.catalog, &a, NULL, asked), 0);
    until(x, over);
    cr_assert_neq(x->finds, 0u);
    return k.status;
}

#endif
