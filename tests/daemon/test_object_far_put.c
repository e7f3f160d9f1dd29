/* SPDX-License-Identifier: Apache-2.0 */
/* New objects where there are other hosts: what is asked for and told, keys that others write, windows, nonsense. */
#include "objects_far.h"

/* ---- PUT ------------------------------------------------------------------------------------- */

Test(object_far_put, put_is_asked_for_and_told)
{
    static struct ob o;

    for (unsigned later = 0; later < 2; later++) {
        far_init(&o, 64 << 10);
        w.later = later != 0;
        have("there", 10);
        ob_begin(&o, MCS_OP_PUT, 0);
        ob_name(&o, "new");
        ob_piece(&o, 0, 100);
        ob_name(&o, "there");
        ob_piece(&o, 0, 100);
        ob_name(&o, "new");
        ob_piece(&o, 100, 100);
        ob_name(&o, "bad");
        ob_piece(&o, 0, 100)->extent = 1;
        cr_assert_eq(ob_ok(&o), 100u);
        cr_assert(ob_result(&o, 0).status == MCS_OK && ob_result(&o, 0).copies == 2);
        cr_assert_eq(ob_result(&o, 0).version, (UINT64_C(5) << 32) + 1);
        cr_assert_eq(ob_result(&o, 1).status, MCS_OK, "it is there already");
        cr_assert(ob_result(&o, 2).status == MCS_OK &&
                  ob_result(&o, 2).version == ob_result(&o, 0).version);
        cr_assert_eq(ob_result(&o, 3).status, MCS_INVALID_HANDLE);
        cr_assert(w.ended_well == 1 && w.given_up == 1);
        cr_assert_eq(w.keys[MCD_ASK_START], 3u);
        far_fini(&o);
    }
}

Test(object_far_put, what_was_begun_is_given_up)
{
    static struct ob o;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};
    struct mcs_object_result c;

    far_init(&o, 4096);
    w.later = true;
    /* while the bytes are copied */
    ob_begin(&o, MCS_OP_PUT, 0);
    ob_name(&o, "k");
    ob_piece(&o, 0, FIX_EXTENT_SIZE / 2);
    ob_write(&o);
    d = ob_desc(&o);
    fix_push(&o.f, &d);
    while (ob_stats(&o).writing == 0)
        ob_turns(&o, 1);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    ob_turns(&o, 4);
    cr_assert_eq(w.given_up, 1u);
    /* while it is asked for */
    w.hold = true;
    ob_write(&o);
    d = ob_desc(&o);
    fix_push(&o.f, &d);
    while (w.nasks == 0)
        ob_turns(&o, 1);
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    w.hold = false;
    ob_turns(&o, 4);
    cr_assert_eq(w.given_up, 2u);
    /* and a creation */
    c = ob_create(&o, "c", 100);
    cr_assert_eq(c.status, MCS_OK);
    ob_release(&o, &c.hold, 1);
    ob_turns(&o, 4);
    cr_assert_eq(w.given_up, 3u);
    c = ob_create(&o, "c", 100);
    cr_assert_eq(ob_seal(&o, c.hold).status, MCS_OK);
    cr_assert(w.given_up == 3 && w.ended_well == 1);
    cr_assert(ob_stats(&o).writing == 0 && ob_stats(&o).objects == 1);
    far_fini(&o);
}

/* ---- keys that come twice, and that others write ------------------------------------------------ */

static void put_twice(struct ob *o, uint8_t op, uint32_t flags)
{
    ob_begin(o, op, flags);
    for (unsigned i = 0; i < 2; i++) {
        ob_name(o, "k")->size = 100;
        if (op == MCS_OP_PUT)
            ob_piece(o, i * 1000, 100);
    }
    ob_ok(o);
}

Test(object_far_put, the_same_key_twice_in_one_request)
{
    static struct ob o;

    for (unsigned later = 0; later < 2; later++) {
        far_init(&o, 64 << 10);
        w.later = later != 0;
        ob_paint(o.f.local.map, 2000, 1);
        put_twice(&o, MCS_OP_PUT, MCS_OBJECT_UPSERT);
        cr_assert(ob_result(&o, 0).status == MCS_OK && ob_result(&o, 1).status == MCS_OK);
        cr_assert_lt(ob_result(&o, 0).version, ob_result(&o, 1).version);
        cr_assert_eq(w.ended_well, 2u);
        cr_assert_eq(ob_get(&o, "k", 5000, 100, 0).status, MCS_OK);
        cr_assert_arr_eq(o.f.local.map + 5000, o.f.local.map + 1000, 100, "the last one stays");
        cr_assert_eq(ob_remove(&o, "k", MCS_OBJECT_LOCAL), MCS_OK);

        put_twice(&o, MCS_OP_PUT, MCS_OBJECT_NEW);
        cr_assert(ob_result(&o, 0).status == MCS_OK && ob_result(&o, 1).status == MCS_EXISTS);
        cr_assert_eq(ob_result(&o, 0).version, ob_result(&o, 1).version);
        cr_assert_eq(ob_remove(&o, "k", MCS_OBJECT_LOCAL), MCS_OK);

        put_twice(&o, MCS_OP_CREATE, 0);
        cr_assert(ob_result(&o, 0).status == MCS_OK && ob_result(&o, 0).hold != 0);
        cr_assert(ob_result(&o, 1).status == MCS_IN_USE && ob_result(&o, 1).hold == 0);
        cr_assert_eq(w.given_up, 0u);
        far_fini(&o);
    }
}

/* What may be written is written, and told of, before others are waited for: they may wait for that. */
Test(object_far_put, a_key_that_another_host_writes)
{
    static const char *const keys[] = {"a", "b", "c"};
    static struct ob o;

    far_init(&o, 64 << 10);
    w.later = true;
    w.busy = "b";
    w.busy_for = 2;
    ob_begin(&o, MCS_OP_PUT, 0);
    for (unsigned i = 0; i < 3; i++) {
        ob_name(&o, keys[i]);
        ob_piece(&o, i * 1000, 1000);
    }
    cr_assert_eq(ob_ok(&o), 3000u);
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(ob_result(&o, i).status, MCS_OK);
    cr_assert(w.asked[MCD_ASK_START] == 3 && w.keys[MCD_ASK_START] == 5);
    cr_assert(w.ended_at[0] == 0 && w.ended_at[1] == 2 && w.ended_at[2] == 2 && w.ended_well == 3);
    cr_assert_eq(w.given_up, 0u);
    far_fini(&o);
}

Test(object_far_put, a_key_that_another_host_writes_for_ever)
{
    static struct ob o;
    uint64_t begun;

    far_init(&o, 64 << 10);
    w.later = true;
    w.busy = "b";
    w.busy_for = UINT32_MAX;
    begun = mcd_now_ns();
    cr_assert_eq(ob_put(&o, "b", 0, 10, 0).status, MCS_IN_USE);
    cr_assert_geq(mcd_now_ns() - begun, UINT64_C(900000000));
    cr_assert(w.ended_well == 0 && w.given_up == 0);
    /* a client of this host fills it in place: nobody knows for how long */
    w.busy_for = 0;
    cr_assert_eq(ob_create(&o, "b", 100).status, MCS_OK);
    w.busy_for = UINT32_MAX;
    w.asked[MCD_ASK_START] = 0;
    cr_assert_eq(ob_put(&o, "b", 0, 10, 0).status, MCS_IN_USE);
    cr_assert_eq(w.asked[MCD_ASK_START], 1u);
    far_fini(&o);
}

/* ---- windows ------------------------------------------------------------------------------------- */

static struct mcs_desc put_many(struct ob *o, unsigned n)
{
    struct mcs_desc d;
    char key[16];

    ob_begin(o, MCS_OP_PUT, 0);
    for (unsigned i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "%u", i);
        ob_name(o, key);
    }
    ob_write(o);
    d = ob_desc(o);
    fix_push(&o->f, &d);
    return d;
}

Test(object_far_put, the_next_window_begins_while_the_former_is_told_of)
{
    static struct ob o;
    struct mcs_desc d;

    far_init(&o, 64 << 10);
    w.later = w.hold_ends = true;
    d = put_many(&o, 700);
    ob_turns(&o, 100);
    cr_assert_eq(w.asked[MCD_ASK_START], 3u, "windows that have begun: %u", w.asked[MCD_ASK_START]);
    cr_assert_eq(w.asked[MCD_ASK_END], 3u);
    cr_assert(!ob_ended(&o, &d) && w.ended_well == 0);
    w.hold_ends = false;
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_COMPLETED);
    for (unsigned i = 0; i < 700; i++)
        cr_assert(ob_result(&o, i).status == MCS_OK && ob_result(&o, i).copies == 2, "key %u", i);
    cr_assert(w.ended_well == 700 && w.keys[MCD_ASK_START] == 700);
    far_fini(&o);
}

Test(object_far_put, canceled_while_windows_are_told_of)
{
    static struct ob o;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    far_init(&o, 64 << 10);
    w.later = w.hold_ends = true;
    d = put_many(&o, 700);
    ob_turns(&o, 100);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    w.hold_ends = false;
    ob_turns(&o, 10);
    cr_assert(w.ended_well == 700 && w.given_up == 0 && ob_stats(&o).objects == 700);
    far_fini(&o);
}

/* A client that leaves many unanswered does not make the agent's memory grow with them. */
Test(object_far_put, windows_of_one_queue_are_bounded)
{
    static struct ob o;
    struct mcs_desc d[100];

    far_init(&o, 64 << 10);
    w.later = w.hold = true;
    for (unsigned i = 0; i < 100; i++) {
        uint8_t *args = o.f.client.args;

        ob_begin(&o, MCS_OP_PUT, 0);
        ob_key(&o, &i, sizeof(i));
        o.f.client.args += i * 512; /* a block of its own */
        ob_write(&o);
        o.f.client.args = args;
        d[i] = ob_desc(&o);
        d[i].args = i * 512 / MCS_LINE;
        d[i].slot = i;
        fix_push(&o.f, &d[i]);
        ob_turns(&o, 1);
    }
    ob_turns(&o, 100);
    cr_assert_eq(w.nasks, 64u);
    cr_assert_eq(o.f.queue.windows, 64u);
    /* one that has none yet may be canceled, and hands its turn on */
    for (unsigned i = 64; i < 70; i++) {
        struct mcs_desc cancel = {.op = MCS_OP_CANCEL, .slot = i, .generation = d[i].generation};

        fix_push(&o.f, &cancel);
        cr_assert_eq(fix_state(ob_end(&o, &d[i])), MCS_STATE_CANCELED);
    }
    w.hold = false;
    for (unsigned i = 0; i < 100; i++)
        cr_assert_eq(fix_state(ob_end(&o, &d[i])),
                     i < 64 || i >= 70 ? MCS_STATE_COMPLETED : MCS_STATE_CANCELED);
    cr_assert(w.ended_well == 94 && o.f.queue.windows == 0);
    far_fini(&o);
}

/* ---- what masters and clients get wrong ------------------------------------------------------------ */

Test(object_far_put, a_status_that_does_not_exist)
{
    static struct ob o;

    far_init(&o, 64 << 10);
    w.start_status = 250;
    cr_assert_eq(ob_put(&o, "k", 0, 10, 0).status, MCS_PROTOCOL);
    cr_assert_eq(o.f.engine->counters.objects.statuses[MCS_PROTOCOL], 1u);
    far_fini(&o);
}

/* The master has granted a life: an earlier one that is here still is about to be dropped, and is no reason not to write. */
Test(object_far_put, an_earlier_life_that_is_here_still)
{
    static struct ob o;
    struct mcs_object_result r;

    for (unsigned i = 0; i < 2; i++) {
        far_init(&o, 64 << 10);
        ob_paint(o.f.local.map, 2000, 1);
        o.st.catalog = NULL;
        cr_assert_eq(ob_put(&o, "k", 0, 100, 0).status, MCS_OK);
        o.st.catalog = (struct mcd_catalog *)&o;
        r = ob_put(&o, "k", 1000, 200, i == 0 ? 0 : MCS_OBJECT_NEW);
        cr_assert(r.status == MCS_OK && r.size == 200 && r.version == (UINT64_C(5) << 32) + 1);
        cr_assert(w.ended_well == 1 && w.given_up == 0);
        cr_assert_eq(ob_get(&o, "k", 5000, 200, 0).status, MCS_OK);
        cr_assert_arr_eq(o.f.local.map + 5000, o.f.local.map + 1000, 200);
        far_fini(&o);
    }
}

/* A later one is: that is not the one that was granted, and the master hears so. */
Test(object_far_put, a_later_life_that_is_here_already)
{
    struct mco_put p = {.key = mco_key(7, "k", 1), .size = 100, .version = {6, 1}};
    static struct ob o;
    struct mco_view v;

    far_init(&o, 64 << 10);
    ob_put(&o, "other", 0, 100, 0); /* there is an extent */
    cr_assert_eq(mco_begin(o.st.objects, &p, &v), MCS_OK);
    cr_assert_eq(mco_seal(o.st.objects, v.object, 0, false, 1), MCS_OK);
    w.ended_well = 0;
    cr_assert(ob_put(&o, "k", 0, 100, 0).status == MCS_OK &&
              ob_result(&o, 0).version == (UINT64_C(6) << 32) + 1);
    cr_assert(w.ended_well == 0 && w.given_up == 1);
    far_fini(&o);
}

/* The answer comes when the time of the put is over: the key must not stay taken. */
Test(object_far_put, granted_too_late)
{
    static struct ob o;
    struct mcs_desc d;

    far_init(&o, 64 << 10);
    w.later = w.hold = true;
    ob_begin(&o, MCS_OP_PUT, 0);
    o.deadline = 20000;
    ob_name(&o, "k");
    ob_piece(&o, 0, 100);
    ob_write(&o);
    d = ob_desc(&o);
    fix_push(&o.f, &d);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_TIMEOUT);
    w.hold = false;
    ob_turns(&o, 4);
    cr_assert_eq(w.given_up, 1u, "and what END says has time to get there");
    far_fini(&o);
}

Test(object_far_put, many_creations_are_undone_in_one_question)
{
    static struct ob o;
    uint64_t holds[70];
    char key[16];

    far_init(&o, 64 << 10);
    w.later = true;
    for (unsigned i = 0; i < 70; i++) {
        snprintf(key, sizeof(key), "%u", i);
        holds[i] = ob_create(&o, key, 100).hold;
        cr_assert_neq(holds[i], 0u);
    }
    w.asked[MCD_ASK_END] = 0;
    for (unsigned i = 0; i < 70; i += MCS_RELEASE_MAX) {
        struct mcs_release release = {.op = MCS_OP_RELEASE};
        struct mcs_desc d;

        memcpy(release.holds, holds + i, sizeof(release.holds));
        memcpy(&d, &release, sizeof(d));
        fix_push(&o.f, &d);
    }
    ob_turns(&o, 10);
    cr_assert_eq(w.given_up, 70u);
    cr_assert_eq(w.asked[MCD_ASK_END], 1u, "%u questions", w.asked[MCD_ASK_END]);
    cr_assert_eq(ob_stats(&o).writing, 0u);
    far_fini(&o);
}

Test(object_far_put, released_while_it_was_being_sealed)
{
    static struct ob o;
    struct mcs_object_result c;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    far_init(&o, 4096);
    c = ob_create(&o, "k", 1u << 20);
    cr_assert_eq(c.status, MCS_OK);
    ob_begin(&o, MCS_OP_SEAL, 0);
    o.keys[o.args.count++] = (struct mcs_object_key){.size = c.hold};
    ob_write(&o);
    d = ob_desc(&o);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&o.f, &d);
    ob_turns(&o, 2);
    cr_assert(!ob_ended(&o, &d));
    ob_release(&o, &c.hold, 1);
    cr_assert(!ob_ended(&o, &d));
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    cr_assert(ob_stats(&o).writing == 0 && !ob_exists(&o, "k"));
    cr_assert_eq(w.given_up, 1u);
    far_fini(&o);
}

/* It was undone, and another host has put the key since: who has read that one does not read this one here. */
Test(object_far_put, what_has_had_a_later_life_meanwhile_is_not_sealed)
{
    static struct ob o;
    struct mcs_object_result c;

    far_init(&o, 64 << 10);
    c = ob_create(&o, "k", 100);
    cr_assert_eq(c.status, MCS_OK);
    w.over = "k";
    cr_assert_eq(ob_seal(&o, c.hold).status, MCS_NOT_OWNER);
    cr_assert_not(ob_exists(&o, "k"));
    ob_begin(&o, MCS_OP_PUT, 0);
    ob_name(&o, "k");
    ob_piece(&o, 0, 100);
    ob_name(&o, "m");
    ob_piece(&o, 0, 100);
    ob_ok(&o);
    cr_assert_eq(ob_result(&o, 0).status, MCS_NOT_OWNER);
    cr_assert_eq(ob_result(&o, 1).status, MCS_OK);
    cr_assert(!ob_exists(&o, "k") && ob_exists(&o, "m"));
    cr_assert(w.ended_well == 1 && w.given_up == 2);
    far_fini(&o);
}
