/* SPDX-License-Identifier: Apache-2.0 */
/* A holder that may not have heard what is over gives no leases, and who reads does not believe it. */
#include "holder_world.h"

#include "daemon/catalog_op.h"
#include "daemon/remote.h"

/* The status of the one key of a lease that was asked for. */
static uint8_t leased(struct holder *x)
{
    static const char *const keys[] = {"k"};
    Mcd__StoreLeased *m;
    uint8_t status;

    cr_assert_eq(lease(x, keys, 1, 5000, &m), MCS_OK);
    cr_assert(m != NULL && m->status.len == 1);
    status = m->status.data[0];
    cr_assert(status != MCS_NO_DIRECTORY || m->address[0] == 0);
    mcd__store_leased__free_unpacked(m, NULL);
    return status;
}

Test(catalog_stale, nothing_is_leased_before_the_leader_promises_to_wait)
{
    struct mcd_catalog_stats s;
    struct holder x;

    init(&x);
    put(&x, "k", 4);
    cr_assert_eq(leased(&x), MCS_NO_DIRECTORY, "no leader has heard of it");
    x.stale = true;
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(&x, x.joins > 1);
    cr_assert(!x.claims);
    cr_assert_eq(leased(&x), MCS_NO_DIRECTORY, "it is to drop something first");
    mcd_catalog_get_stats(x.st.catalog, &s);
    cr_assert_eq(s.leases_refused, 2u);
    x.stale = false;
    x.current_ms = 60000;
    until(&x, x.claims);
    cr_assert_eq(leased(&x), MCS_OK);
    x.stale = true;
    x.current_ms = 0;
    until(&x, !x.claims);
    cr_assert_eq(leased(&x), MCS_NO_DIRECTORY, "it is taken back with the next answer");
    fini(&x);
}

Test(catalog_stale, a_promise_ends_when_its_leader_is_silent)
{
    struct holder x;
    uint64_t sent;

    init(&x);
    put(&x, "k", 4);
    x.current_ms = 1000;
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(&x, x.claims);
    x.mute = true; /* what was sent before now is all that it counts from */
    sent = mcd_boot_ns();
    until(&x, leased(&x) == MCS_NO_DIRECTORY);
    cr_assert_lt(x.st.catalog->report.current_until, sent + 1000 * UINT64_C(1000000));
    /* another leader hears of it at first */
    x.claims = true;
    x.joins = 0;
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER + 1, NULL);
    until(&x, x.joins == 1);
    cr_assert(!x.claims);
    fini(&x);
}

Test(catalog_stale, a_promise_outlives_its_leader)
{
    struct holder x;

    init(&x);
    put(&x, "k", 4);
    x.current_ms = 60000;
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(&x, x.claims);
    x.claims = false;
    x.joins = 0;
    x.mute = true;
    mcd_catalog_leader(x.st.catalog, "", 0, NULL);
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER + 1, NULL);
    until(&x, x.joins == 1);
    cr_assert(x.claims, "the next one is told that it goes on");
    cr_assert_eq(leased(&x), MCS_OK);
    fini(&x);
}

/* It is neither the end of the question nor a holder less: the leader is asked anew who has it. */
Test(catalog_stale, who_is_refused_a_lease_asks_the_leader_anew)
{
    struct holder x;

    init(&x);
    led(&x);
    x.refuses = 12; /* more than a holder that has it not is asked */
    cr_assert_eq(exists(&x, 0), MCS_NOT_FOUND, "as it says in the end");
    cr_assert_gt(x.leases, 12u);
    cr_assert_geq(x.finds, 13u);
    fini(&x);
}

/* Put by another request since the engine looked, or copied by order. */
Test(catalog_stale, what_has_come_here_meanwhile_is_found_here)
{
    struct mcd_ask_key k = {.key = mco_key(TENANT, "k", 1), .status = MCS_BUSY};
    struct holder x;
    bool over = false;
    struct mcd_ask a = {.kind = MCD_ASK_FIND,
                        .keys = &k,
                        .n = 1,
                        .tenant = TENANT,
                        .deadline = mcd_now_ns() + UINT64_C(10000000000),
                        .context = &over};

    init(&x);
    led(&x);
    put(&x, "k", 4);
    x.holder = x.g.cluster->address;
    cr_assert_eq(mcd_op_begin(x.st.catalog, &a, NULL, asked), 0);
    until(&x, over);
    cr_assert_eq(k.status, MCS_EXISTS, "%u", k.status);
    over = false;
    a.kind = MCD_ASK_PULL;
    cr_assert_eq(mcd_op_begin(x.st.catalog, &a, NULL, asked), 0);
    until(&x, over);
    cr_assert_eq(k.status, MCS_OK);
    fini(&x);
}

/* The one that it had read last had gone elsewhere, and comes from there again before its holder has heard of the later one. */
Test(catalog_stale, a_reader_does_not_go_back_behind_what_it_has_seen)
{
    struct mcd_ask_key k = {.key = mco_key(TENANT, "k", 1)};
    struct mcd_remote remote = {.status = MCS_OK};
    struct mcd_reach reach = {.segment = mcd_segment_create(NULL, 0, 1)};
    struct holder x;
    bool over;
    struct mcd_ask a = {
        .kind = MCD_ASK_FIND, .keys = &k, .n = 1, .tenant = TENANT, .context = &over};

    init(&x);
    led(&x);
    reach.segment->remote = &remote;
    mcd_holder_get(x.st.catalog, "127.0.0.1:9")->reach = &reach;
    x.life = 7;
    k.status = MCS_BUSY;
    over = false;
    a.deadline = mcd_now_ns() + UINT64_C(10000000000);
    cr_assert_eq(mcd_op_begin(x.st.catalog, &a, NULL, asked), 0);
    until(&x, over);
    cr_assert(k.status == MCS_OK && k.version.sequence == 7, "%u", k.status);
    mcd_op_let_go(&k);
    x.leases = 0;
    x.outdated = 12;
    k.status = MCS_BUSY;
    over = false;
    x.finds = 0;
    cr_assert_eq(mcd_op_begin(x.st.catalog, &a, NULL, asked), 0);
    until(&x, over);
    cr_assert(k.status == MCS_OK && k.version.sequence == 7, "%lu", k.version.sequence);
    cr_assert_gt(x.leases, 12u);
    cr_assert_geq(x.finds, 12u, "each time the leader is asked anew");
    mcd_op_let_go(&k);
    mcd_places_drop(x.st.catalog, &reach);
    mcd_holder_get(x.st.catalog, "127.0.0.1:9")->reach = NULL;
    reach.segment->remote = NULL;
    mcd_segment_put(reach.segment);
    fini(&x);
}

/* An END that is asked again, of the next leader even, after what was sealed has been replaced or removed here. */
Test(catalog_stale, what_is_not_here_any_more_is_not_told_of)
{
    struct mcd_ask_key k = {.key = mco_key(TENANT, "k", 1), .version = {1, 4}, .status = MCS_OK};
    struct holder x;
    bool over = false;
    struct mcd_ask a = {.kind = MCD_ASK_END,
                        .keys = &k,
                        .n = 1,
                        .tenant = TENANT,
                        .deadline = mcd_now_ns() + UINT64_C(20000000000),
                        .context = &over};

    init(&x);
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER, NULL);
    until(&x, x.joins > 1);
    put(&x, "k", 4);
    cr_assert_eq(mcd_op_begin(x.st.catalog, &a, NULL, asked), 0);
    until(&x, x.ends == 2);
    cr_assert_eq(x.ended, MCS_OK);
    cr_assert_eq(mco_remove(x.st.objects, &k.key, &k.version, true, mcd_now_ns()), MCS_OK);
    x.ends = 0;
    until(&x, x.ends == 2);
    cr_assert_eq(x.ended, MCS_NOT_FOUND);
    put(&x, "k", 5);
    x.ends = 0;
    until(&x, x.ends == 2);
    cr_assert_eq(x.ended, MCS_NOT_FOUND, "that is another one");
    fini(&x);
    cr_assert(over);
}

static void order_copy(struct holder *x, const char *key, uint64_t token)
{
    char *hosts[] = {(char *)"127.0.0.1:9"};
    Mcd__StoreOrder m = MCD__STORE_ORDER__INIT;
    struct mcd_names names = {0};
    uint64_t tenant = TENANT, one = 1;
    uint32_t from = 0;

    cr_assert_eq(mcd_names_add(&names, key, (uint32_t)strlen(key)), 0);
    m.token = token;
    m.kind = MCO_ORDER_COPY;
    m.keys = mcd_names_data(&names);
    m.n_tenant = m.n_version_token = m.n_version_sequence = m.n_from = m.n_hosts = 1;
    m.tenant = &tenant;
    m.version_token = m.version_sequence = &one;
    m.from = &from;
    m.hosts = hosts;
    send_off(x, MCD_WIRE_STORE_ORDER, &m.base);
    mcd_names_free(&names);
}

/* The next leader does not know of it: it could say that the life is over while the copy is still being made. */
Test(catalog_stale, a_copy_is_not_made_for_a_leader_that_does_not_know_of_it)
{
    struct mcd_remote remote = {.status = MCS_OK};
    struct mcd_reach reach = {.segment = mcd_segment_create(NULL, 0, 1)};
    struct holder x;

    init(&x);
    led(&x);
    reach.segment->remote = &remote;
    mcd_holder_get(x.st.catalog, "127.0.0.1:9")->reach = &reach;
    x.refuses = UINT32_MAX; /* who is to give it has not heard enough */
    order_copy(&x, "k", LEADER);
    until(&x, x.leases > 2);
    cr_assert_not_null(x.st.catalog->ops);
    x.token = LEADER + 1;
    x.wants = true;
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", LEADER + 1, NULL);
    until(&x, x.st.catalog->ops == NULL);
    /* one that asks for everything once more has lost track of it */
    x.wants = false;
    until(&x, !x.st.catalog->report.walking && x.st.catalog->report.joined);
    x.leases = 0;
    order_copy(&x, "k", LEADER + 1);
    until(&x, x.leases > 2);
    x.wants = true;
    until(&x, x.st.catalog->ops == NULL);
    until(&x, x.raw.last.id == x.next_id);
    cr_assert_eq(x.raw.last.status, MCS_OK);
    mcd_holder_get(x.st.catalog, "127.0.0.1:9")->reach = NULL;
    reach.segment->remote = NULL;
    mcd_segment_put(reach.segment);
    fini(&x);
}

/* It was sealed late, perhaps: the put was undone, and the key has had a later life, whose holder the next leader has not heard yet. */
Test(catalog_stale, what_the_next_leader_has_not_taken_yet_is_not_leased)
{
    struct mcd_ask_key k = {.key = mco_key(TENANT, "k", 1), .version = {1, 4}, .status = MCS_OK};
    struct holder x;
    bool over = false;
    struct mcd_ask a = {.kind = MCD_ASK_END,
                        .keys = &k,
                        .n = 1,
                        .tenant = TENANT,
                        .deadline = mcd_now_ns() + UINT64_C(20000000000),
                        .context = &over};

    init(&x);
    x.token = 1;
    x.current_ms = 60000;
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", 1, NULL);
    until(&x, x.claims);
    put(&x, "k", 4);
    cr_assert_eq(mcd_op_begin(x.st.catalog, &a, NULL, asked), 0);
    until(&x, x.ends != 0);
    cr_assert_eq(leased(&x), MCS_OK, "who has begun it knows whether it is the last one");
    x.token = 2;
    mcd_catalog_leader(x.st.catalog, "127.0.0.1:9", 2, NULL);
    x.ends = 0;
    until(&x, x.ends != 0);
    cr_assert_eq(leased(&x), MCS_NO_DIRECTORY);
    put(&x, "k", 5);
    cr_assert_eq(leased(&x), MCS_OK, "that is another one");
    fini(&x);
    cr_assert(over);
}
