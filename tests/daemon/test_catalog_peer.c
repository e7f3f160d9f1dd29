/* SPDX-License-Identifier: Apache-2.0 */
/* What other agents and a master say to a holder: leases, recalls, orders; and nonsense. */
#include "holder_world.h"

Test(catalog_peer, leases_what_is_there)
{
    static const char *const keys[] = {"there", "nowhere"};
    struct mco_key there = mco_key(TENANT, "there", 5);
    struct holder x;
    Mcd__StoreLeased *m;
    struct mco_listed l;
    uint8_t bytes[64];

    init(&x);
    led(&x);
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
