/* SPDX-License-Identifier: Apache-2.0 */
/* The master's half of the messages about objects, with agents that the test plays. */
#include "master_world.h"

#include <time.h>

#include "shm/message.h"

static uint64_t token(struct world *x)
{
    return mco_directory_token(mcd_master_directory(x->master));
}

static uint32_t join_as(struct world *x, unsigned i, uint64_t identity, uint64_t life,
                        uint64_t seen)
{
    Mcd__StoreJoin q = MCD__STORE_JOIN__INIT;
    char address[32];

    snprintf(address, sizeof(address), "10.0.0.%u:1", i + 1);
    q.identity = identity;
    q.life = life;
    q.address = address;
    q.capacity = 1 << 30;
    q.token = seen;
    q.next = 100;
    return world_ask(x, i, MCD_WIRE_STORE_JOIN, &q.base, &mcd__store_joined__descriptor);
}

static const Mcd__StoreJoined *joined(struct world *x, unsigned i)
{
    return (const Mcd__StoreJoined *)x->agents[i].answer;
}

struct keys {
    struct mcd_names names;
    uint64_t tenants[8], tokens[8], sequences[8], sizes[8];
    uint32_t crcs[8], flags[8];
    uint8_t status[8];
};

static void add(struct keys *k, const char *text, uint64_t t, uint64_t sequence)
{
    uint32_t n = k->names.n;

    k->tenants[n] = WORLD_TENANT;
    k->tokens[n] = t;
    k->sequences[n] = sequence;
    k->sizes[n] = 100;
    k->crcs[n] = 5;
    k->flags[n] = 1;
    k->status[n] = MCS_OK;
    cr_assert_eq(mcd_names_add(&k->names, text, (uint32_t)strlen(text)), 0);
}

static uint32_t report(struct world *x, unsigned i, struct keys *k, bool full, uint64_t next)
{
    Mcd__StoreReport q = MCD__STORE_REPORT__INIT;
    uint32_t status;

    q.token = token(x);
    q.full = q.first = q.last = full;
    q.next = next;
    q.keys = mcd_names_data(&k->names);
    q.n_tenant = q.n_version_token = q.n_version_sequence = q.n_size = q.n_crc = q.n_flags =
        k->names.n;
    q.tenant = k->tenants;
    q.version_token = k->tokens;
    q.version_sequence = k->sequences;
    q.size = k->sizes;
    q.crc = k->crcs;
    q.flags = k->flags;
    status = world_ask(x, i, MCD_WIRE_STORE_REPORT, &q.base, &mcd__store_reported__descriptor);
    mcd_names_free(&k->names);
    return status;
}

static void all_here(struct world *x)
{
    for (unsigned i = 0; i < 3; i++) {
        struct keys none = {0};

        cr_assert_eq(join_as(x, i, i + 1, 1, 0), MCS_OK);
        cr_assert(joined(x, i)->report);
        cr_assert_eq(report(x, i, &none, true, 100), MCS_OK);
    }
}

/* The leader waits for them before it says that anything is over, so long after what they have sent. */
Test(master, holders_hear_for_how_long_they_are_waited_for)
{
    struct world *x = world_create();
    uint64_t away = x->agent.config.store_away_ms;
    const Mcd__StoreReported *r;
    struct keys none = {0};

    cr_assert_eq(join_as(x, 0, 1, 1, 0), MCS_OK);
    cr_assert(joined(x, 0)->stale && joined(x, 0)->current_ms == 0, "what it has is not known yet");
    cr_assert_eq(report(x, 0, &none, true, 1), MCS_OK);
    r = (const Mcd__StoreReported *)x->agents[0].answer;
    cr_assert(!r->stale && r->current_ms == away, "%u", r->current_ms);
    cr_assert_eq(join_as(x, 0, 1, 1, token(x)), MCS_OK);
    cr_assert(!joined(x, 0)->stale && joined(x, 0)->current_ms == away);
    cr_assert_eq(joined(x, 0)->beat_ms, x->agent.config.store_beat_ms);
    x->agent.config.store_rebuild_ms =
        400; /* the next leader waits for them for no longer than that */
    cr_assert_eq(join_as(x, 0, 1, 1, token(x)), MCS_OK);
    cr_assert_eq(joined(x, 0)->beat_ms, 100u, "several times meanwhile");
    world_destroy(x);
}

static uint32_t find(struct world *x, unsigned i, const char *text, uint16_t type)
{
    Mcd__StoreFind q = MCD__STORE_FIND__INIT;
    struct keys k = {0};
    uint32_t status;

    add(&k, text, 0, 0);
    q.token = token(x);
    q.tenant = WORLD_TENANT;
    q.keys = mcd_names_data(&k.names);
    status = world_ask(x, i, type, &q.base, &mcd__store_found__descriptor);
    mcd_names_free(&k.names);
    return status;
}

static const Mcd__StoreFound *found(struct world *x, unsigned i)
{
    return (const Mcd__StoreFound *)x->agents[i].answer;
}

static void start(struct world *x, unsigned i, struct keys *k, const char *text, uint32_t flags,
                  uint32_t replicas)
{
    Mcd__StoreStart q = MCD__STORE_START__INIT;
    const Mcd__StoreStarted *a;

    add(k, text, 0, 0);
    q.token = token(x);
    q.tenant = WORLD_TENANT;
    q.flags = flags;
    q.replicas = replicas;
    q.keys = mcd_names_data(&k->names);
    q.n_size = 1;
    q.size = k->sizes;
    cr_assert_eq(world_ask(x, i, MCD_WIRE_STORE_START, &q.base, &mcd__store_started__descriptor),
                 MCS_OK);
    a = (const Mcd__StoreStarted *)x->agents[i].answer;
    cr_assert_eq(a->token, token(x));
    k->status[0] = a->status.data[0];
    k->tokens[0] = a->version_token[0];
    k->sequences[0] = a->version_sequence[0];
}

static void end(struct world *x, unsigned i, struct keys *k, uint32_t limit_ms)
{
    Mcd__StoreEnd q = MCD__STORE_END__INIT;

    q.token = token(x);
    q.tenant = WORLD_TENANT;
    q.keys = mcd_names_data(&k->names);
    q.n_version_token = q.n_version_sequence = q.n_size = q.n_crc = 1;
    q.version_token = k->tokens;
    q.version_sequence = k->sequences;
    q.size = k->sizes;
    q.crc = k->crcs;
    q.status.data = k->status;
    q.status.len = 1;
    world_post(x, i, MCD_WIRE_STORE_END, &q.base, &mcd__store_ended__descriptor, limit_ms);
    mcd_names_free(&k->names);
}

static const Mcd__StoreEnded *ended(struct world *x, unsigned i)
{
    cr_assert(x->agents[i].answered);
    cr_assert_eq(x->agents[i].reply.status, MCS_OK);
    return (const Mcd__StoreEnded *)x->agents[i].answer;
}

static void put(struct world *x, unsigned i, const char *text)
{
    struct keys k = {0};

    start(x, i, &k, text, 0, 1);
    cr_assert_eq(k.status[0], MCS_OK);
    end(x, i, &k, 5000);
    cr_assert_eq(ended(x, i)->status.data[0], MCS_OK);
    cr_assert_eq(ended(x, i)->copies.data[0], 1);
}

static void remove_with(struct world *x, unsigned i, uint32_t flags, uint32_t what,
                        const char *text, uint32_t limit_ms)
{
    Mcd__StoreRemove q = MCD__STORE_REMOVE__INIT;
    struct mcd_names names = {0};

    q.token = token(x);
    q.tenant = WORLD_TENANT;
    q.flags = flags;
    q.what = what;
    if (what == 0) {
        cr_assert_eq(mcd_names_add(&names, text, (uint32_t)strlen(text)), 0);
        q.keys = mcd_names_data(&names);
    } else {
        q.keys.data = (uint8_t *)(uintptr_t)text;
        q.keys.len = strlen(text);
    }
    world_post(x, i, MCD_WIRE_STORE_REMOVE, &q.base, &mcd__store_removed__descriptor, limit_ms);
    mcd_names_free(&names);
}

static void remove_many(struct world *x, unsigned i, uint32_t what, const char *text,
                        uint32_t limit_ms)
{
    remove_with(x, i, MCS_OBJECT_FORCE, what, text, limit_ms);
}

/* Until it has come, or the clock says that it never will. */
static void await_answer(struct world *x, unsigned i)
{
    uint64_t limit = mcd_now_ns() + 20 * WP_SECOND;

    while (!x->agents[i].answered && mcd_now_ns() < limit) {
        struct timespec pause = {0, 1000000};

        nanosleep(&pause, NULL);
        world_run(x);
    }
    cr_assert(x->agents[i].answered);
}

Test(master, a_put_is_found_by_others)
{
    struct world *x = world_create();

    all_here(x);
    cr_assert_eq(find(x, 1, "k", MCD_WIRE_STORE_FIND), MCS_OK);
    cr_assert_eq(found(x, 1)->status.data[0], MCS_NOT_FOUND);
    put(x, 0, "k");
    cr_assert_eq(find(x, 1, "k", MCD_WIRE_STORE_FIND), MCS_OK);
    cr_assert_eq(found(x, 1)->status.data[0], MCS_OK);
    cr_assert_eq(found(x, 1)->nholders.data[0], 1);
    cr_assert_eq(found(x, 1)->n_hosts, 1u);
    cr_assert_str_eq(found(x, 1)->hosts[found(x, 1)->holders[0]], "10.0.0.1:1");
    cr_assert_eq(found(x, 1)->size[0], 100);
    cr_assert_eq(found(x, 1)->crc[0], 5);
    cr_assert_eq(find(x, 2, "k", MCD_WIRE_STORE_EXIST), MCS_OK);
    cr_assert_eq(found(x, 2)->status.data[0], MCS_OK);
    cr_assert_eq(found(x, 2)->n_size, 0u);
    world_destroy(x);
}

Test(master, messages_of_another_reign_are_fenced)
{
    struct world *x = world_create();
    Mcd__StoreFind q = MCD__STORE_FIND__INIT;
    struct keys none = {0};
    struct mcd_master_stats s;
    uint64_t before = token(x);

    cr_assert_eq(report(x, 0, &none, true, 1), MCS_FENCED, "it has not joined");
    all_here(x);
    put(x, 0, "k");
    q.token = before - 1;
    cr_assert_eq(world_ask(x, 1, MCD_WIRE_STORE_FIND, &q.base, &mcd__store_found__descriptor),
                 MCS_FENCED);
    cr_assert_eq(token(x), before);
    /* an agent has seen a later leader: this one takes a greater token, and knows nothing yet */
    cr_assert_eq(join_as(x, 1, 2, 1, before + 10), MCS_NO_DIRECTORY);
    cr_assert_gt(token(x), before + 10);
    cr_assert_eq(join_as(x, 1, 2, 1, before + 10), MCS_OK);
    cr_assert(joined(x, 1)->report);
    cr_assert_eq(joined(x, 1)->token, token(x));
    q.token = before;
    cr_assert_eq(world_ask(x, 0, MCD_WIRE_STORE_FIND, &q.base, &mcd__store_found__descriptor),
                 MCS_FENCED);
    mcd_master_get_stats(x->master, &s);
    cr_assert_eq(s.fenced, 3u);
    cr_assert_eq(s.terms, 2u);
    world_destroy(x);
}

/* A token that no leader can have had is damage: who says that he has seen it must not end the reign of all. */
Test(master, tokens_out_of_all_reach_are_not_believed)
{
    struct world *x = world_create();
    uint64_t before = token(x);
    Mcd__StoreFind q = MCD__STORE_FIND__INIT;

    all_here(x);
    cr_assert_eq(join_as(x, 1, 2, 1, UINT64_MAX), MCS_PROTOCOL);
    cr_assert_neq(joined(x, 1)->error[0], '\0');
    cr_assert_eq(join_as(x, 1, 2, 1, before + (UINT64_C(1) << 48)), MCS_PROTOCOL);
    q.token = UINT64_MAX - 1;
    cr_assert_eq(world_ask(x, 0, MCD_WIRE_STORE_FIND, &q.base, &mcd__store_found__descriptor),
                 MCS_FENCED);
    cr_assert_eq(token(x), before);
    put(x, 0, "k");
    world_destroy(x);
}

/* What comes from inside while the leader is at something must not take the directory away under it. */
Test(master, a_reign_ends_between_messages_alone)
{
    struct world *x = world_create();
    uint64_t before = token(x);

    all_here(x);
    x->master->busy++;
    cr_assert_eq(join_as(x, 1, 2, 1, before + 10), MCS_NO_DIRECTORY);
    cr_assert_eq(token(x), before);
    x->master->busy--;
    world_run(x);
    cr_assert_gt(token(x), before + 10);
    world_destroy(x);
}

Test(master, nonsense_costs_an_answer)
{
    struct world *x = world_create();
    Mcd__StoreStart start_q = MCD__STORE_START__INIT;
    Mcd__StoreFind find_q = MCD__STORE_FIND__INIT;
    Mcd__StoreJoin join_q = MCD__STORE_JOIN__INIT;
    Mcd__StoreRemove remove_q = MCD__STORE_REMOVE__INIT;
    Mcd__StoreReport report_q = MCD__STORE_REPORT__INIT;
    uint8_t cut[] = {9, 0, 'a'}, none[] = {0, 0}, good[] = {1, 0, 'a'};
    struct mcd_master_stats s;

    all_here(x);
    find_q.token = start_q.token = remove_q.token = report_q.token = token(x);
    find_q.keys = (ProtobufCBinaryData){sizeof(cut), cut};
    cr_assert_eq(world_ask(x, 0, MCD_WIRE_STORE_FIND, &find_q.base, &mcd__store_found__descriptor),
                 MCS_PROTOCOL);
    find_q.keys = (ProtobufCBinaryData){sizeof(none), none};
    cr_assert_eq(world_ask(x, 0, MCD_WIRE_STORE_EXIST, &find_q.base, &mcd__store_found__descriptor),
                 MCS_PROTOCOL);
    start_q.keys = (ProtobufCBinaryData){sizeof(good), good}; /* and no size */
    cr_assert_eq(
        world_ask(x, 0, MCD_WIRE_STORE_START, &start_q.base, &mcd__store_started__descriptor),
        MCS_PROTOCOL);
    report_q.keys = start_q.keys;
    cr_assert_eq(
        world_ask(x, 0, MCD_WIRE_STORE_REPORT, &report_q.base, &mcd__store_reported__descriptor),
        MCS_PROTOCOL);
    remove_q.what = 99;
    cr_assert_eq(
        world_ask(x, 0, MCD_WIRE_STORE_REMOVE, &remove_q.base, &mcd__store_removed__descriptor),
        MCS_PROTOCOL);
    join_q.identity = join_q.life = 1;
    join_q.address = (char *)"nowhere";
    cr_assert_eq(world_ask(x, 0, MCD_WIRE_STORE_JOIN, &join_q.base, &mcd__store_joined__descriptor),
                 MCS_PROTOCOL);
    cr_assert_neq(joined(x, 0)->error[0], '\0');
    join_q.address = (char *)"10.0.0.1:1";
    join_q.identity = 0;
    cr_assert_eq(world_ask(x, 0, MCD_WIRE_STORE_JOIN, &join_q.base, &mcd__store_joined__descriptor),
                 MCS_PROTOCOL);
    mcd_master_get_stats(x->master, &s);
    cr_assert_eq(s.malformed, 7u);
    world_destroy(x);
}

Test(master, an_end_waits_for_replicas)
{
    struct world *x = world_create();
    struct world_order *o;
    struct keys k = {0};
    unsigned at;

    all_here(x);
    start(x, 0, &k, "k", 0, 2);
    end(x, 0, &k, 60000);
    cr_assert_not(x->agents[0].answered);
    at = x->agents[1].norders != 0 ? 1 : 2;
    o = world_order(x, at);
    cr_assert_not_null(o);
    cr_assert_eq(o->order->kind, MCO_ORDER_COPY);
    cr_assert_eq(o->order->token, token(x));
    cr_assert_str_eq(o->order->hosts[o->order->from[0]], "10.0.0.1:1");
    cr_assert_eq(o->order->version_sequence[0], k.sequences[0]);
    world_done(x, at, o, MCS_OK);
    cr_assert_eq(ended(x, 0)->status.data[0], MCS_OK);
    cr_assert_eq(ended(x, 0)->copies.data[0], 2);
    cr_assert_eq(find(x, 0, "k", MCD_WIRE_STORE_FIND), MCS_OK);
    cr_assert_eq(found(x, 0)->n_hosts, 2u);
    world_destroy(x);
}

Test(master, an_end_says_how_many_were_made_in_time)
{
    struct world *x = world_create();
    struct mcd_master_stats s;
    struct keys k = {0};

    all_here(x);
    start(x, 0, &k, "k", 0, 3);
    end(x, 0, &k, 40);
    await_answer(x, 0);
    cr_assert_eq(ended(x, 0)->status.data[0], MCS_OK);
    cr_assert_eq(ended(x, 0)->copies.data[0], 1);
    mcd_master_get_stats(x->master, &s);
    cr_assert_eq(s.late, 1u);
    world_destroy(x);
}

Test(master, a_removal_waits_until_all_have_dropped)
{
    struct world *x = world_create();
    struct world_order *o;
    struct keys k = {0};

    all_here(x);
    put(x, 0, "k");
    add(&k, "k", token(x), 1);
    cr_assert_eq(report(x, 1, &k, false, 101), MCS_OK); /* it has a copy, too */
    remove_many(x, 2, 0, "k", 60000);
    cr_assert_not(x->agents[2].answered);
    o = world_order(x, 0);
    cr_assert_not_null(o);
    cr_assert_eq(o->order->kind, MCO_ORDER_DROP);
    world_done(x, 0, o, MCS_OK);
    cr_assert_not(x->agents[2].answered);
    o = world_order(x, 1);
    world_done(x, 1, o, MCS_OK);
    cr_assert(x->agents[2].answered);
    cr_assert_eq(((Mcd__StoreRemoved *)x->agents[2].answer)->status.data[0], MCS_OK);
    cr_assert_eq(((Mcd__StoreRemoved *)x->agents[2].answer)->removed, 1);
    remove_many(x, 2, 0, "k", 60000);
    cr_assert_eq(((Mcd__StoreRemoved *)x->agents[2].answer)->status.data[0], MCS_NOT_FOUND);

    /* one that does not answer: the removal says that it is not over */
    put(x, 0, "m");
    remove_many(x, 2, 0, "m", 40);
    await_answer(x, 2);
    cr_assert_eq(((Mcd__StoreRemoved *)x->agents[2].answer)->status.data[0], MCS_TIMEOUT);
    /* one whose connection breaks gets its order again */
    world_order(x, 0);
    world_disconnect(x, 0);
    world_run(x);
    world_connect(x, 0);
    cr_assert_eq(join_as(x, 0, 1, 1, token(x)), MCS_OK);
    cr_assert_not(joined(x, 0)->report);
    cr_assert_eq(joined(x, 0)->told, 100u);
    o = world_order(x, 0);
    cr_assert_not_null(o);
    cr_assert_eq(o->order->kind, MCO_ORDER_DROP);
    world_destroy(x);
}

static const Mcd__StoreRemoved *removed(const struct world *x, unsigned i)
{
    return (const Mcd__StoreRemoved *)x->agents[i].answer;
}

/* Without force all holders are asked whether somebody makes use of it, before anything is dropped. */
Test(master, what_is_in_use_anywhere_is_removed_by_force_alone)
{
    struct world *x = world_create();
    struct world_order *o[2];
    struct keys k = {0};

    all_here(x);
    put(x, 0, "k");
    add(&k, "k", token(x), 1);
    cr_assert_eq(report(x, 1, &k, false, 101), MCS_OK);
    for (unsigned used = 0; used < 3; used++) { /* by whom; 2: by nobody */
        remove_with(x, 2, 0, 0, "k", 60000);
        for (unsigned i = 0; i < 2; i++) {
            o[i] = world_order(x, i);
            cr_assert_not_null(o[i]);
            cr_assert_eq(o[i]->order->kind, MCO_ORDER_CHECK);
            cr_assert_eq(o[i]->order->n_tenant, 1);
            cr_assert_eq(o[i]->order->tenant[0], WORLD_TENANT);
        }
        world_done(x, 0, o[0], used == 0 ? MCS_IN_USE : MCS_OK);
        cr_assert_not(x->agents[2].answered);
        world_done(x, 1, o[1], used == 1 ? MCS_IN_USE : MCS_NOT_FOUND);
        if (used == 2)
            break;
        await_answer(x, 2);
        cr_assert_eq(removed(x, 2)->status.data[0], MCS_IN_USE);
        cr_assert_eq(removed(x, 2)->removed, 0);
        cr_assert_null(world_order(x, 0), "nothing is dropped");
        cr_assert_eq(find(x, 2, "k", MCD_WIRE_STORE_EXIST), MCS_OK);
        cr_assert_eq(found(x, 2)->status.data[0], MCS_OK);
    }
    for (unsigned i = 0; i < 2; i++) {
        o[i] = world_order(x, i);
        cr_assert_not_null(o[i]);
        cr_assert_eq(o[i]->order->kind, MCO_ORDER_DROP);
        world_done(x, i, o[i], MCS_OK);
    }
    await_answer(x, 2);
    cr_assert_eq(removed(x, 2)->status.data[0], MCS_OK);

    /* a holder that goes uses nothing; the asker that goes is not answered */
    put(x, 0, "m");
    remove_with(x, 2, 0, 0, "m", 60000);
    cr_assert_not_null(world_order(x, 0));
    remove_with(x, 1, 0, 0, "m", 60000);
    cr_assert_not_null(world_order(x, 0));
    world_disconnect(x, 1);
    world_disconnect(x, 0);
    world_run(x);
    cr_assert_not(x->agents[2].answered, "it is to drop it still, when it comes back");
    cr_assert_eq(find(x, 2, "m", MCD_WIRE_STORE_EXIST), MCS_OK);
    cr_assert_eq(found(x, 2)->status.data[0], MCS_NOT_FOUND);
    world_destroy(x);
}

Test(master, nobody_says_whether_it_is_in_use)
{
    struct world *x = world_create();

    all_here(x);
    put(x, 0, "k");
    remove_with(x, 2, 0, 0, "k", 40);
    cr_assert_not_null(world_order(x, 0));
    await_answer(x, 2);
    cr_assert_eq(removed(x, 2)->status.data[0], MCS_TIMEOUT);
    cr_assert_eq(find(x, 2, "k", MCD_WIRE_STORE_EXIST), MCS_OK);
    cr_assert_eq(found(x, 2)->status.data[0], MCS_OK, "nothing was done");
    /* what waits for an answer when the reign ends */
    remove_with(x, 2, 0, 0, "k", 60000);
    remove_with(x, 1, 0, MCS_OBJECTS_ALL, "", 60000);
    world_destroy(x);
}

Test(master, a_pattern_leaves_what_is_in_use)
{
    struct world *x = world_create();
    struct world_order *o;
    unsigned checks = 0, drops = 0;

    all_here(x);
    put(x, 0, "a/1");
    put(x, 1, "a/2");
    put(x, 1, "b");
    remove_with(x, 2, 0, MCS_OBJECTS_PREFIX, "a/", 60000);
    for (unsigned n = 0; n < 1000 && !x->agents[2].answered; n++)
        for (unsigned i = 0; i < 2; i++)
            while ((o = world_order(x, i)) != NULL) {
                checks += o->order->kind == MCO_ORDER_CHECK;
                drops += o->order->kind == MCO_ORDER_DROP;
                world_done(x, i, o,
                           o->order->kind == MCO_ORDER_CHECK && i == 1 ? MCS_IN_USE : MCS_OK);
            }
    await_answer(x, 2);
    cr_assert_eq(removed(x, 2)->removed, 1);
    cr_assert_eq(removed(x, 2)->in_use, 1);
    cr_assert_eq(checks, 2);
    cr_assert_eq(drops, 1);
    cr_assert_eq(find(x, 2, "a/2", MCD_WIRE_STORE_EXIST), MCS_OK);
    cr_assert_eq(found(x, 2)->status.data[0], MCS_OK);
    cr_assert_eq(find(x, 2, "a/1", MCD_WIRE_STORE_EXIST), MCS_OK);
    cr_assert_eq(found(x, 2)->status.data[0], MCS_NOT_FOUND);
    world_destroy(x);
}

Test(master, removals_by_pattern)
{
    struct world *x = world_create();
    struct world_order *o;
    const Mcd__StoreRemoved *a;
    static const char *const keys[] = {"a/1", "a/2", "b/1", "b/22", "c"};

    all_here(x);
    for (unsigned i = 0; i < 5; i++)
        put(x, i % 2, keys[i]);
    remove_many(x, 2, MCS_OBJECTS_PREFIX, "a/", 60000);
    world_run(x);
    cr_assert_not(x->agents[2].answered);
    for (unsigned i = 0; i < 2; i++)
        while ((o = world_order(x, i)) != NULL)
            world_done(x, i, o, MCS_OK);
    await_answer(x, 2);
    a = (const Mcd__StoreRemoved *)x->agents[2].answer;
    cr_assert_eq(a->removed, 2);
    remove_many(x, 2, MCS_OBJECTS_REGEX, "^b/[0-9][0-9]$", 60000);
    for (unsigned n = 0; n < 10; n++)
        world_run(x);
    for (unsigned i = 0; i < 2; i++)
        while ((o = world_order(x, i)) != NULL)
            world_done(x, i, o, MCS_OK);
    await_answer(x, 2);
    cr_assert_eq(((const Mcd__StoreRemoved *)x->agents[2].answer)->removed, 1);
    remove_many(x, 2, MCS_OBJECTS_REGEX, "(", 60000);
    cr_assert_eq(x->agents[2].reply.status, MCS_INVALID_ARGUMENT);
    cr_assert_eq(find(x, 2, "b/1", MCD_WIRE_STORE_EXIST), MCS_OK);
    cr_assert_eq(found(x, 2)->status.data[0], MCS_OK);
    cr_assert_eq(find(x, 2, "b/22", MCD_WIRE_STORE_EXIST), MCS_OK);
    cr_assert_eq(found(x, 2)->status.data[0], MCS_NOT_FOUND);
    world_destroy(x);
}

/* Keys that lie in one shard of the directory, and cost a pattern much. */
static void slow_keys(struct world *x, unsigned n)
{
    struct mco_directory *d = mcd_master_directory(x->master);
    uint32_t holder = mcd_joined_of(x->master, &x->agents[0].peer)->holder;
    char text[120];

    memset(text, 'a', sizeof(text));
    for (unsigned i = 0; n != 0; i++) {
        struct mco_start s = {.size = 100, .replicas = 1, .preferred = MCO_NO_HOLDER};
        struct mco_report r = {.size = 100, .there = true, .copies = 1};
        struct mco_started out;
        uint8_t status;

        snprintf(text, sizeof(text), "%08u", i);
        memset(text + 8, 'a', sizeof(text) - 9);
        s.key = r.key = mco_key(WORLD_TENANT, text, sizeof(text) - 1);
        if (s.key.hash >> 52 != 0x123)
            continue;
        mco_directory_start(d, holder, &s, 1, mcd_now_ns(), &out);
        cr_assert_eq(out.status, MCS_OK);
        r.version = out.version;
        mco_directory_end(d, holder, &r, 1, mcd_now_ns(), &status);
        cr_assert_eq(status, MCS_OK);
        n--;
    }
}

/* A pattern may cost milliseconds a key: the control thread has other things to do between keys. */
Test(master, a_slow_pattern_holds_nobody_up)
{
    struct world *x = world_create();
    unsigned rounds = 0;

    all_here(x);
    slow_keys(x, 1000);
    remove_many(x, 2, MCS_OBJECTS_REGEX, "^[0-9]{8}(a*)(a*)(a*)(?:b|c)", 60000);
    for (; !x->agents[2].answered; rounds++) {
        cr_assert_lt(rounds, 100000u);
        world_run(x);
    }
    cr_assert_eq(x->agents[2].reply.status, MCS_OK);
    cr_assert_eq(((const Mcd__StoreRemoved *)x->agents[2].answer)->removed, 0);
    cr_assert_gt(rounds, 2u);
    world_destroy(x);
}

Test(master, lists_stats_and_drains)
{
    struct world *x = world_create();
    Mcd__StoreList q = MCD__STORE_LIST__INIT;
    const Mcd__StoreListed *a;
    struct world_order *o;
    char *json;

    all_here(x);
    put(x, 0, "one");
    put(x, 0, "\x01");
    q.token = token(x);
    q.tenant = WORLD_TENANT;
    q.what = MCS_OBJECTS_LIST;
    q.limit = 10;
    world_post(x, 1, MCD_WIRE_STORE_LIST, &q.base, &mcd__store_listed__descriptor, 60000);
    await_answer(x, 1);
    a = (const Mcd__StoreListed *)x->agents[1].answer;
    cr_assert_not_null(memmem(a->json.data, a->json.len, "\"key\":\"one\"", 11));
    cr_assert_not_null(memmem(a->json.data, a->json.len, "\"key_hex\":\"01\"", 14));
    cr_assert_not_null(memmem(a->json.data, a->json.len, "\"more\":false", 12));
    q.limit = 1;
    world_post(x, 1, MCD_WIRE_STORE_LIST, &q.base, &mcd__store_listed__descriptor, 60000);
    await_answer(x, 1);
    a = (const Mcd__StoreListed *)x->agents[1].answer;
    cr_assert_not_null(memmem(a->json.data, a->json.len, "\"more\":true", 11));
    q.what = MCS_OBJECTS_STAT;
    q.text = (ProtobufCBinaryData){3, (uint8_t *)(uintptr_t) "one"};
    cr_assert_eq(world_ask(x, 1, MCD_WIRE_STORE_LIST, &q.base, &mcd__store_listed__descriptor),
                 MCS_OK);
    q.text.len = 2;
    cr_assert_eq(world_ask(x, 1, MCD_WIRE_STORE_LIST, &q.base, &mcd__store_listed__descriptor),
                 MCS_NOT_FOUND);
    q.what = MCS_OBJECTS_DRAIN;
    q.text = (ProtobufCBinaryData){10, (uint8_t *)(uintptr_t) "10.0.0.7:1"};
    cr_assert_eq(world_ask(x, 1, MCD_WIRE_STORE_LIST, &q.base, &mcd__store_listed__descriptor),
                 MCS_NOT_FOUND);
    cr_assert_str_eq(
        ((const Mcd__StoreListed *)x->agents[1].answer)->error,
        "no agent with this address has joined; there are: 10.0.0.1:1 10.0.0.2:1 10.0.0.3:1");
    q.text.data = (uint8_t *)(uintptr_t) "10.0.0.1:1";
    cr_assert_eq(world_ask(x, 1, MCD_WIRE_STORE_LIST, &q.base, &mcd__store_listed__descriptor),
                 MCS_OK);
    for (unsigned n = 0; n < 100 && x->agents[1].norders + x->agents[2].norders < 2; n++)
        world_run(x);
    for (unsigned i = 1; i < 3; i++)
        while ((o = world_order(x, i)) != NULL) {
            cr_assert_eq(o->order->kind, MCO_ORDER_MOVE);
            world_done(x, i, o, MCS_OK);
        }
    while ((o = world_order(x, 0)) != NULL) {
        cr_assert_eq(o->order->kind, MCO_ORDER_DROP);
        world_done(x, 0, o, MCS_OK);
    }
    json = mcd_master_json(x->master);
    cr_assert_not_null(strstr(json, "\"address\":\"10.0.0.1:1\",\"domain\":\"\",\"state\":\"here\","
                                    "\"capacity\":1073741824,\"used\":0,\"objects\":0,"
                                    "\"draining\":true"),
                       "%s", json);
    free(json);
    world_destroy(x);
}

static void drain(struct world *x, bool drained)
{
    Mcd__StoreList q = MCD__STORE_LIST__INIT;

    q.token = token(x);
    q.tenant = WORLD_TENANT;
    q.what = drained ? MCS_OBJECTS_DRAIN : MCS_OBJECTS_UNDRAIN;
    q.text = (ProtobufCBinaryData){10, (uint8_t *)(uintptr_t) "10.0.0.1:1"};
    cr_assert_eq(world_ask(x, 1, MCD_WIRE_STORE_LIST, &q.base, &mcd__store_listed__descriptor),
                 MCS_OK);
}

/* The agent's own word is what the leader before has told it. */
static bool drained(struct world *x, bool said)
{
    Mcd__StoreJoin q = MCD__STORE_JOIN__INIT;

    q.identity = 77;
    q.life = 78;
    q.address = (char *)"10.0.0.1:1";
    q.capacity = 1 << 30;
    q.next = 100;
    q.draining = said;
    cr_assert_eq(world_ask(x, 0, MCD_WIRE_STORE_JOIN, &q.base, &mcd__store_joined__descriptor),
                 MCS_OK);
    return joined(x, 0)->draining;
}

Test(master, a_drain_is_told_to_who_is_drained_and_heard_from_him_by_the_next_leader)
{
    struct world *x = world_create();

    cr_assert(!drained(x, false));
    cr_assert_eq(join_as(x, 1, 2, 2, 0), MCS_OK);
    drain(x, true);
    cr_assert(drained(x, false), "told at the next beat");
    cr_assert(drained(x, true));
    drain(x, false);
    cr_assert(!drained(x, true), "the order that was taken back before he had heard it");
    cr_assert(!drained(x, false));
    world_destroy(x);

    x = world_create(); /* another leader */
    cr_assert(drained(x, true));
    cr_assert(drained(x, true));
    cr_assert_eq(join_as(x, 1, 2, 2, 0), MCS_OK);
    drain(x, false);
    cr_assert(!drained(x, true));
    world_destroy(x);
}

Test(master, puts_of_one_that_leaves_are_undone)
{
    struct world *x = world_create();
    struct keys k = {0}, other = {0};

    all_here(x);
    start(x, 0, &k, "k", 0, 1);
    start(x, 1, &other, "k", 0, 1);
    cr_assert_eq(other.status[0], MCS_IN_USE);
    mcd_names_free(&other.names);
    world_disconnect(x, 0);
    put(x, 1, "k");
    mcd_names_free(&k.names);
    world_destroy(x);
}
