/* SPDX-License-Identifier: Apache-2.0 */
/* What other agents and a master say to a holder: leases, recalls, orders; and nonsense. */
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
    bool drained;   /* what it is told as its leader's word, */
    bool says_so;   /* and what it has said at its last join */
    uint64_t token; /* the leader's, 0: LEADER */
    uint8_t away;   /* it says that so many more have what it is asked for */
    unsigned finds;
    unsigned ends, removals;
    uint8_t says; /* of a key that is to be written */
    unsigned answers;
    /* reports: the first one of events is not answered */
    struct mcd_wire_header report;
    unsigned held, fulls;
    bool wants, whole; /* the first one of everything begins with its beginning */
    struct mcd_wire_header recall;
};

static void want(void *context, uint64_t tenant, bool open, uint64_t size)
{
    (void)context;
    (void)tenant;
    (void)open;
    (void)size;
}

static void nothing(void *context)
{
    (void)context;
}

static void idle(void *context, uint32_t extent)
{
    (void)context;
    (void)extent;
}

static void event(void *context, const struct mco_event *e)
{
    (void)mco_events_add(((struct holder *)context)->st.events, e, NULL);
}

/* The other agent leads. */
static void on_join(struct holder *x, const struct mcd_wire_header *h, const uint8_t *m,
                    size_t size)
{
    Mcd__StoreJoin *q = mcd__store_join__unpack(NULL, size, m);
    Mcd__StoreJoined a = MCD__STORE_JOINED__INIT;

    cr_assert_not_null(q);
    x->joins++;
    x->says_so = q->draining;
    mcd__store_join__free_unpacked(q, NULL);
    a.token = x->token != 0 ? x->token : LEADER;
    a.beat_ms = 10;
    a.draining = x->drained;
    a.report = x->wants;
    ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
}

static void on_end(struct holder *x, const struct mcd_wire_header *h)
{
    uint8_t status = MCS_REBUILDING;
    Mcd__StoreEnded a = MCD__STORE_ENDED__INIT;

    x->ends++;
    a.token = LEADER;
    a.status = (ProtobufCBinaryData){.data = &status, .len = 1};
    ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
}

static void on_start(struct holder *x, const struct mcd_wire_header *h)
{
    Mcd__StoreStarted a = MCD__STORE_STARTED__INIT;
    uint64_t one = 1;

    a.token = LEADER;
    a.status = (ProtobufCBinaryData){.data = &x->says, .len = 1};
    a.n_version_token = a.n_version_sequence = 1;
    a.version_token = a.version_sequence = &one;
    ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
}

static void on_report(struct holder *x, const struct mcd_wire_header *h, const uint8_t *m,
                      size_t size)
{
    Mcd__StoreReport *q = mcd__store_report__unpack(NULL, size, m);
    Mcd__StoreReported a = MCD__STORE_REPORTED__INIT;

    cr_assert_not_null(q);
    a.token = LEADER;
    if (!q->full && x->held++ == 0) {
        x->report = *h;
    } else {
        if (q->full && x->fulls++ == 0)
            x->whole = q->first && mcd_names_count(q->keys.data, q->keys.len) == 1;
        ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
    }
    mcd__store_report__free_unpacked(q, NULL);
}

static void on_remove(struct holder *x, const struct mcd_wire_header *h)
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
static void on_find(struct holder *x, const struct mcd_wire_header *h)
{
    Mcd__StoreFound a = MCD__STORE_FOUND__INIT;
    uint8_t status = MCS_OK, one = 1;
    char *hosts[] = {(char *)(uintptr_t) "127.0.0.1:9"};
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

static void on_lease(struct holder *x, const struct mcd_wire_header *h)
{
    Mcd__StoreLeased a = MCD__STORE_LEASED__INIT;
    uint8_t status = MCS_NOT_FOUND;

    a.status = (ProtobufCBinaryData){.data = &status, .len = 1};
    ag_raw_answer(&x->raw, h, MCS_OK, &a.base);
}

static void on_request(struct ag_raw *r, const struct mcd_wire_header *h, const uint8_t *m,
                       size_t size)
{
    struct holder *x = r->context;

    if (h->type == MCD_WIRE_STORE_JOIN)
        on_join(x, h, m, size);
    if (h->type == MCD_WIRE_STORE_END)
        on_end(x, h);
    if (h->type == MCD_WIRE_STORE_START)
        on_start(x, h);
    if (h->type == MCD_WIRE_STORE_REPORT)
        on_report(x, h, m, size);
    if (h->type == MCD_WIRE_STORE_REMOVE)
        on_remove(x, h);
    if (h->type == MCD_WIRE_STORE_FIND)
        on_find(x, h);
    if (h->type == MCD_WIRE_STORE_LEASE)
        on_lease(x, h);
    if (h->type == MCD_WIRE_OPEN)
        ag_raw_answer(r, h, MCS_NOT_FOUND, NULL); /* it has no store */
    if (h->type != MCD_WIRE_STORE_RECALL)
        return;
    x->recalls++;
    x->recall = *h;
    if (!x->silent)
        ag_raw_answer(r, h, MCS_OK, NULL);
}

static void turn(struct holder *x)
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

static void init(struct holder *x)
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

static void fini(struct holder *x)
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

static struct mco_version put(struct holder *x, const char *key, uint64_t sequence)
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

static bool is_there(struct holder *x, const char *key)
{
    struct mco_key k = mco_key(TENANT, key, (uint32_t)strlen(key));
    uint8_t status;

    return mco_exist(x->st.objects, &k, NULL, 1, 0, mcd_now_ns(), &status, NULL) == 1;
}

static void send_off(struct holder *x, uint16_t type, const ProtobufCMessage *m)
{
    struct mcd_wire_header h = {.type = type, .id = ++x->next_id, .deadline_ms = 10000};

    x->raw.last = (struct mcd_wire_header){0};
    cr_assert_eq(mcd_wire_send(x->raw.wire, &h, m), 0);
}

/* The status of its answer. */
static uint32_t ask(struct holder *x, uint16_t type, const ProtobufCMessage *m)
{
    send_off(x, type, m);
    until(x, x->raw.last.id == x->next_id);
    return x->raw.last.status;
}

static uint32_t lease(struct holder *x, const char *const *keys, unsigned n, uint32_t ms,
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
static void led(struct holder *x)
{
    mcd_catalog_leader(x->st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(x, x->joins != 0);
}

static void order_drop(struct holder *x, const char *key, uint64_t token, uint64_t upto)
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

Test(catalog_peer, leases_what_is_there)
{
    static const char *const keys[] = {"there", "nowhere"};
    struct mco_key there = mco_key(TENANT, "there", 5);
    struct holder x;
    Mcd__StoreLeased *m;
    struct mco_listed l;
    uint8_t bytes[64];

    init(&x);
    put(&x, "there", 4);
    cr_assert_eq(lease(&x, keys, 2, 5000, &m), MCS_OK);
    cr_assert_not_null(m);
    cr_assert(m->status.len == 2 && m->status.data[0] == MCS_OK &&
              m->status.data[1] == MCS_NOT_FOUND);
    cr_assert(m->version_token[0] == 1 && m->version_sequence[0] == 4 && m->size[0] == 1000 &&
              m->crc[0] == 99 && m->summed.data[0] == 1 && m->lease_ms == 5000);
    cr_assert(m->address[0] >= AG_ADDRESS && m->address[0] + 1000 <= AG_ADDRESS + EXTENT);
    cr_assert_eq(x.extent.map[m->address[0] - AG_ADDRESS], 'x');
    l.key.bytes = bytes;
    cr_assert(mco_stat(x.st.objects, &there, &l));
    cr_assert_gt(l.lease_until, mcd_now_ns());
    mcd__store_leased__free_unpacked(m, NULL);
    fini(&x);
}

Test(catalog_peer, a_drop_is_confirmed_when_who_leases_it_has_forgotten_it)
{
    static const char *const keys[] = {"k"};
    struct holder x;
    Mcd__StoreLeased *m;

    init(&x);
    led(&x);
    put(&x, "k", 4);
    order_drop(&x, "k", 5, 3);
    until(&x, x.raw.last.id == x.next_id);
    cr_assert(is_there(&x, "k"), "a later life than the order's");
    cr_assert_eq(x.recalls, 0u);

    cr_assert_eq(lease(&x, keys, 1, 60000, &m), MCS_OK);
    mcd__store_leased__free_unpacked(m, NULL);
    x.silent = true;
    order_drop(&x, "k", 5, 4);
    until(&x, x.recalls == 1);
    cr_assert(!is_there(&x, "k"));
    for (int i = 0; i < 20; i++)
        turn(&x);
    cr_assert_eq(x.raw.last.id, 0u, "not before the recall is answered");
    ag_raw_answer(&x.raw, &x.recall, MCS_OK, NULL);
    until(&x, x.raw.last.id == x.next_id);
    cr_assert_eq(x.raw.last.status, MCS_OK);
    fini(&x);
}

Test(catalog_peer, a_lease_that_nobody_gives_back_runs_out)
{
    static const char *const keys[] = {"k"};
    struct holder x;
    Mcd__StoreLeased *m;
    uint64_t begun;

    init(&x);
    led(&x);
    put(&x, "k", 4);
    begun = mcd_now_ns();
    cr_assert_eq(lease(&x, keys, 1, 300, &m), MCS_OK);
    mcd__store_leased__free_unpacked(m, NULL);
    x.silent = true;
    order_drop(&x, "k", 5, 4);
    until(&x, x.raw.last.id == x.next_id);
    cr_assert_geq(mcd_now_ns() - begun, 300u * 1000000u);
    cr_assert_eq(x.recalls, 1u);
    fini(&x);
}

Test(catalog_peer, orders_of_a_former_leader_are_refused)
{
    struct mcd_catalog_stats s;
    struct holder x;

    init(&x);
    x.token = 9;
    led(&x);
    put(&x, "k", 4);
    order_drop(&x, "none", 9, 4);
    until(&x, x.raw.last.id == x.next_id);
    cr_assert_eq(x.raw.last.status, MCS_OK, "what is not there is dropped");
    cr_assert_eq(mco_token(x.st.objects), 9u);
    order_drop(&x, "k", 8, 4);
    until(&x, x.raw.last.id == x.next_id);
    cr_assert_eq(x.raw.last.status, MCS_FENCED);
    cr_assert(is_there(&x, "k"));
    mcd_catalog_get_stats(x.st.catalog, &s);
    cr_assert_eq(s.fenced, 1u);
    fini(&x);
}

Test(catalog_peer, each_key_of_an_order_has_its_result)
{
    Mcd__StoreOrder m = MCD__STORE_ORDER__INIT;
    struct mcd_names names = {0};
    char *hosts[] = {(char *)"127.0.0.1:9", (char *)"nonsense"};
    uint64_t tenants[8], tokens[8], sequences[8];
    uint32_t from[8];
    struct holder x;
    Mcd__StoreDone *done;
    char key[8];

    init(&x);
    led(&x);
    put(&x, "k3", 4);
    for (unsigned i = 0; i < 8; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        cr_assert_eq(mcd_names_add(&names, key, 2), 0);
        tenants[i] = i % 3 != 0 ? TENANT : TENANT + 1;
        tokens[i] = 1;
        sequences[i] = 3;
        from[i] = i % 2;
    }
    m.token = 5;
    m.kind = MCO_ORDER_COPY;
    m.keys = mcd_names_data(&names);
    m.n_tenant = m.n_version_token = m.n_version_sequence = m.n_from = 8;
    m.tenant = tenants;
    m.version_token = tokens;
    m.version_sequence = sequences;
    m.from = from;
    m.n_hosts = 2;
    m.hosts = hosts;
    cr_assert_eq(ask(&x, MCD_WIRE_STORE_ORDER, &m.base), MCS_OK);
    done = mcd__store_done__unpack(NULL, x.raw.size, x.raw.payload);
    cr_assert(done != NULL && done->status.len == 8);
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(done->status.data[i], MCS_PEER_UNREACHABLE, "key %u: %u", i,
                     done->status.data[i]);
    mcd__store_done__free_unpacked(done, NULL);

    m.kind = MCO_ORDER_DROP;
    tenants[3] = TENANT;
    sequences[3] = 4;
    cr_assert_eq(ask(&x, MCD_WIRE_STORE_ORDER, &m.base), MCS_OK);
    done = mcd__store_done__unpack(NULL, x.raw.size, x.raw.payload);
    cr_assert(done != NULL && done->status.len == 8);
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(done->status.data[i], MCS_OK);
    cr_assert(!is_there(&x, "k3"));
    mcd__store_done__free_unpacked(done, NULL);
    mcd_names_free(&names);
    fini(&x);
}

/* Whatever token it has. */
Test(catalog_peer, orders_of_who_does_not_lead_are_refused)
{
    struct mcd_catalog_stats s;
    struct holder x;

    init(&x);
    put(&x, "k", 4);
    order_drop(&x, "k", UINT64_MAX, 4);
    until(&x, x.raw.last.id == x.next_id);
    cr_assert_eq(x.raw.last.status, MCS_FENCED, "nobody leads");
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:8", LEADER, NULL);
    order_drop(&x, "k", UINT64_MAX, 4);
    until(&x, x.raw.last.id == x.next_id);
    cr_assert_eq(x.raw.last.status, MCS_FENCED, "another leads");
    cr_assert(is_there(&x, "k"));
    cr_assert_lt(mco_token(x.st.objects), UINT64_MAX);
    mcd_catalog_get_stats(x.st.catalog, &s);
    cr_assert_eq(s.fenced, 2u);
    fini(&x);
}

static void asked(struct mcd_catalog *c, struct mcd_ask *a)
{
    (void)c;
    *(bool *)a->context = true;
}

/* What is there, as its leader says. */
static uint8_t exists(struct holder *x, uint8_t away)
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

/* Whoever has it still may be one that is silent: what is here is not all. */
Test(catalog_peer, not_found_is_said_when_all_were_heard)
{
    struct holder x;

    init(&x);
    led(&x);
    cr_assert_eq(exists(&x, 0), MCS_NOT_FOUND);
    cr_assert_eq(exists(&x, 1), MCS_PEER_UNREACHABLE);
    fini(&x);
}

Test(catalog_peer, the_store_is_opened_by_its_own_name_alone)
{
    Mcd__Open m = MCD__OPEN__INIT;
    struct holder x;
    Mcd__Opened *o;

    init(&x);
    m.name = (char *)MCD_STORE_SEGMENT;
    m.tenant = 12345;
    cr_assert_eq(ask(&x, MCD_WIRE_OPEN, &m.base), MCS_OK);
    o = mcd__opened__unpack(NULL, x.raw.size, x.raw.payload);
    cr_assert(o != NULL && o->incarnation != 0);
    mcd__opened__free_unpacked(o, NULL);
    m.name = (char *)"\001stores";
    cr_assert_eq(ask(&x, MCD_WIRE_OPEN, &m.base), MCS_NOT_FOUND);
    m.name = (char *)"";
    cr_assert_eq(ask(&x, MCD_WIRE_OPEN, &m.base), MCS_NOT_FOUND, "it is nobody's only segment");
    fini(&x);
}

Test(catalog_peer, a_drain_is_remembered_for_the_next_leader)
{
    struct holder x;

    init(&x);
    x.drained = true;
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(&x, mcd_catalog_draining(x.st.catalog));
    until(&x, x.says_so);
    mcd_catalog_leader(x.st.catalog, "", 0, NULL);
    x.says_so = false;
    for (int i = 0; i < 10; i++)
        turn(&x);
    cr_assert(mcd_catalog_draining(x.st.catalog), "there is no leader meanwhile");
    x.joins = 0;
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(&x, x.joins == 1);
    cr_assert(x.says_so, "the first thing that the next one hears");
    x.drained = false;
    until(&x, !mcd_catalog_draining(x.st.catalog) && !x.says_so);
    fini(&x);
}

static void answered(struct mcd_catalog *c, struct mcd_ask *a)
{
    (void)c;
    ((struct holder *)a->context)->answers++;
}

Test(catalog_peer, a_leaders_statuses_are_not_believed_as_they_come)
{
    struct mcd_ask_key key = {.key = mco_key(TENANT, "k", 1)};
    struct mcd_ask a = {.kind = MCD_ASK_START, .tenant = TENANT, .keys = &key, .n = 1};
    struct holder x;

    init(&x);
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(&x, x.joins > 1);
    x.says = 250;
    a.context = &x;
    a.deadline = mcd_now_ns() + UINT64_C(20000000000);
    cr_assert_eq(mcd_op_begin(x.st.catalog, &a, NULL, answered), 0);
    until(&x, x.answers == 1);
    cr_assert_eq(key.status, MCS_PROTOCOL);
    fini(&x);
}

/* What is asked of one leader is asked of the next one, once. */
Test(catalog_peer, questions_go_over_to_the_next_leader)
{
    struct mcd_ask_key key = {.key = mco_key(TENANT, "k", 1)};
    struct mcd_ask a = {.kind = MCD_ASK_REMOVE, .tenant = TENANT, .keys = &key, .n = 1};
    struct holder x;

    init(&x);
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(&x, x.joins > 1);
    x.silent = true;
    a.context = &x;
    a.deadline = mcd_now_ns() + UINT64_C(20000000000);
    cr_assert_eq(mcd_op_begin(x.st.catalog, &a, NULL, answered), 0);
    until(&x, x.removals == 1);
    x.silent = false;
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER + 1, NULL);
    until(&x, x.answers == 1);
    cr_assert_eq(key.status, MCS_OK);
    cr_assert_eq(x.removals, 2u, "%u", x.removals);
    fini(&x);
}

Test(catalog_peer, holders_that_a_leader_makes_up_have_an_end)
{
    char address[MCD_ADDRESS_TEXT_MAX + 8];
    unsigned known = 0;
    struct holder x;

    init(&x);
    for (unsigned i = 0; i < 2 * MCD_HOLDERS_MAX; i++) {
        snprintf(address, sizeof(address), "10.%u.%u.1:1", i >> 8, i & 255);
        known += mcd_holder_get(x.st.catalog, address) != NULL;
    }
    cr_assert_eq(known, MCD_HOLDERS_MAX);
    memset(address, '1', sizeof(address) - 1);
    address[sizeof(address) - 1] = '\0';
    until(&x, mcd_holder_get(x.st.catalog, "10.9.9.9:1") != NULL);
    cr_assert_null(mcd_holder_get(x.st.catalog, address));
    fini(&x);
}

/* The answer to a report of events comes after the leader has asked for everything. */
Test(catalog_peer, everything_is_told_from_the_beginning)
{
    Mcd__StoreReported a = MCD__STORE_REPORTED__INIT;
    struct holder x;

    init(&x);
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(&x, x.joins > 1);
    put(&x, "k", 4);
    until(&x, x.held == 1);
    x.joins = 0;
    x.wants = true;
    until(&x, x.joins == 1);
    x.wants = false;
    until(&x, x.joins == 3);
    a.token = LEADER;
    ag_raw_answer(&x.raw, &x.report, MCS_OK, &a.base);
    until(&x, x.fulls != 0);
    cr_assert(x.whole);
    fini(&x);
}

Test(catalog_peer, a_leader_that_cannot_answer_yet_is_asked_again_by_the_clock)
{
    struct mco_key key = mco_key(TENANT, "k", 1);
    struct mco_version v = {LEADER, 1};
    struct holder x;
    uint64_t end;

    init(&x);
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(&x, x.joins > 1);
    mcd_catalog_give_up(x.st.catalog, &key, &v);
    until(&x, x.ends == 2);
    end = mcd_now_ns() + 500 * UINT64_C(1000000);
    while (mcd_now_ns() < end)
        turn(&x);
    cr_assert_lt(x.ends, 60u, "%u times in half a second", x.ends);
    fini(&x);
}

Test(catalog_peer, nonsense_is_refused_and_counted)
{
    static uint8_t many[3 * (MCD_NAMES_KEYS + 1)];
    uint8_t bad[] = {0, 0}, good[] = {1, 0, 'k'};
    uint64_t two[2] = {1, 2};
    uint32_t from = 3;
    Mcd__StoreLease lease_m = MCD__STORE_LEASE__INIT;
    Mcd__StoreRecall recall = MCD__STORE_RECALL__INIT;
    Mcd__StoreOrder order = MCD__STORE_ORDER__INIT;
    struct holder x;
    uint64_t before;

    init(&x);
    led(&x);
    put(&x, "k", 4);
    before = x.g.cluster->wire_stats.malformed;
    for (unsigned i = 0; i <= MCD_NAMES_KEYS; i++)
        memcpy(many + 3 * (size_t)i, good, 3);
    cr_assert_eq(ask(&x, MCD_WIRE_STORE_LEASE, &lease_m.base), MCS_PROTOCOL, "no key");
    lease_m.keys = (ProtobufCBinaryData){.data = bad, .len = sizeof(bad)};
    cr_assert_eq(ask(&x, MCD_WIRE_STORE_LEASE, &lease_m.base), MCS_PROTOCOL, "an empty key");
    lease_m.keys = (ProtobufCBinaryData){.data = many, .len = sizeof(many)};
    cr_assert_eq(ask(&x, MCD_WIRE_STORE_LEASE, &lease_m.base), MCS_PROTOCOL, "too many");

    recall.keys = (ProtobufCBinaryData){.data = good, .len = sizeof(good)};
    cr_assert_eq(ask(&x, MCD_WIRE_STORE_RECALL, &recall.base), MCS_PROTOCOL, "no versions");
    recall.n_tenant = recall.n_version_token = recall.n_version_sequence = 2;
    recall.tenant = recall.version_token = recall.version_sequence = two;
    cr_assert_eq(ask(&x, MCD_WIRE_STORE_RECALL, &recall.base), MCS_PROTOCOL, "too many of them");

    order.keys = (ProtobufCBinaryData){.data = good, .len = sizeof(good)};
    order.kind = MCO_ORDER_DROP;
    cr_assert_eq(ask(&x, MCD_WIRE_STORE_ORDER, &order.base), MCS_PROTOCOL, "no versions");
    order.n_tenant = order.n_version_token = order.n_version_sequence = 1;
    order.tenant = order.version_token = order.version_sequence = two;
    order.kind = 77;
    cr_assert_eq(ask(&x, MCD_WIRE_STORE_ORDER, &order.base), MCS_PROTOCOL, "no such order");
    order.kind = MCO_ORDER_COPY;
    cr_assert_eq(ask(&x, MCD_WIRE_STORE_ORDER, &order.base), MCS_PROTOCOL, "from nowhere");
    order.n_from = 1;
    order.from = &from;
    cr_assert_eq(ask(&x, MCD_WIRE_STORE_ORDER, &order.base), MCS_PROTOCOL, "no such host");
    cr_assert_eq(x.g.cluster->wire_stats.malformed, before + 9);
    cr_assert(is_there(&x, "k"));
    cr_assert_eq(x.raw.broken, 0u, "whoever says it is told, and goes on");
    fini(&x);
}
