/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about objects of other hosts: GET, HOLD, EXIST, PREFIX, REMOVE. */
#include "objects_far.h"

/* ---- GET ------------------------------------------------------------------------------------ */

Test(object_far, small_ones_are_one_leg)
{
    static struct ob o;
    char key[16];

    for (unsigned later = 0; later < 2; later++) {
        far_init(&o, 64 << 10);
        w.later = later != 0;
        ob_paint(o.f.local.map + 900000, 100, 99);
        ob_put(&o, "here", 900000, 100, 0);
        ob_begin(&o, MCS_OP_GET, 0);
        for (unsigned i = 0; i < 20; i++) {
            snprintf(key, sizeof(key), "far-%u", i);
            if (i != 7)
                have(key, 1000);
            ob_name(&o, key);
            ob_piece(&o, i * 1000, 300);
            ob_piece(&o, 500000 + i * 1000, 900);
        }
        ob_name(&o, "here");
        ob_piece(&o, 600000, 100);
        cr_assert_eq(ob_ok(&o), 19u * 1000 + 100);
        for (unsigned i = 0; i < 20; i++) {
            struct mcs_object_result r = ob_result(&o, i);
            const struct there *t = &w.there[i - (i > 7)];

            if (i == 7) {
                cr_assert_eq(r.status, MCS_NOT_FOUND);
                continue;
            }
            cr_assert(r.status == MCS_OK && r.size == 1000 && r.tier == MCS_TIER_REMOTE &&
                      r.path == MCS_PATH_TCP && r.crc == t->crc);
            cr_assert_arr_eq(o.f.local.map + i * 1000, t->data, 300);
            cr_assert_arr_eq(o.f.local.map + 500000 + i * 1000, t->data + 300, 700);
        }
        cr_assert_eq(ob_result(&o, 20).tier, MCS_TIER_MEMORY);
        cr_assert_eq(w.legs_begun, 1u);
        cr_assert(w.asked[MCD_ASK_FIND] == 1 && w.keys[MCD_ASK_FIND] == 20 && w.done_with == 1);
        far_fini(&o);
    }
}

Test(object_far, few_legs_at_a_time)
{
    static struct ob o;
    char key[16];

    far_init(&o, 64 << 10);
    w.legs_max = 1;
    ob_begin(&o, MCS_OP_GET, 0);
    for (unsigned i = 0; i < 50; i++) {
        snprintf(key, sizeof(key), "far-%u", i);
        have(key, 10000);
        ob_name(&o, key);
        for (unsigned k = 0; k < 10; k++)
            ob_piece(&o, i * 10000 + k * 1000, 1000);
    }
    cr_assert_eq(ob_ok(&o), 500000u);
    for (unsigned i = 0; i < 50; i++)
        cr_assert_arr_eq(o.f.local.map + i * 10000, w.there[i].data, 10000, "key %u", i);
    cr_assert_eq(w.asked[MCD_ASK_FIND], 1u);
    far_fini(&o);
}

Test(object_far, ranges)
{
    static struct ob o;

    far_init(&o, 64 << 10);
    have("far", 5000);
    ob_begin(&o, MCS_OP_GET, MCS_OBJECT_RANGES);
    ob_name(&o, "far");
    ob_piece(&o, 0, 100)->offset = 4900;
    ob_piece(&o, 200, 50)->offset = 10;
    ob_name(&o, "far");
    ob_piece(&o, 300, 100)->offset = 4901;
    cr_assert_eq(ob_ok(&o), 150u);
    cr_assert_eq(ob_result(&o, 0).status, MCS_OK);
    cr_assert_eq(ob_result(&o, 1).status, MCS_BAD_RANGE);
    cr_assert_arr_eq(o.f.local.map, w.there[0].data + 4900, 100);
    cr_assert_arr_eq(o.f.local.map + 200, w.there[0].data + 10, 50);
    ob_begin(&o, MCS_OP_GET, 0);
    ob_name(&o, "far");
    ob_piece(&o, 0, 4999);
    cr_assert_eq(ob_ok(&o), 0u);
    cr_assert(ob_result(&o, 0).status == MCS_TOO_SMALL && ob_result(&o, 0).size == 5000);
    far_fini(&o);
}

Test(object_far, a_lease_that_ran_out)
{
    static struct ob o;
    struct mcs_object_result r;

    far_init(&o, 64 << 10);
    have("far", 5000)->leased = 2;
    cr_assert_eq(ob_get(&o, "far", 0, 5000, 0).status, MCS_OK, "its checksum tells");
    cr_assert_eq(o.f.engine->counters.objects.retries, 0u);
    o.st.verify = MCD_VERIFY_NEVER;
    w.there[0].leased = 1;
    w.legs_begun = w.asked[MCD_ASK_FIND] = 0;
    r = ob_get(&o, "far", 0, 5000, 0);
    cr_assert_eq(r.status, MCS_OK, "it is read once more");
    cr_assert(w.legs_begun == 2 && w.asked[MCD_ASK_FIND] == 2);
    cr_assert_eq(o.f.engine->counters.objects.retries, 1u);
    w.there[0].leased = 2;
    cr_assert_eq(ob_get(&o, "far", 0, 5000, 0).status, MCS_LEASE);
    far_fini(&o);
}

/* Between this host's look and the directory's answer. */
Test(object_far, one_that_has_come_here_meanwhile_is_read_here)
{
    static struct ob o;
    struct mcs_object_result r;

    for (unsigned later = 0; later < 2; later++) {
        far_init(&o, 64 << 10);
        w.later = later != 0;
        ob_put(&o, "room", 900000, 100, 0);
        have("far", 5000);
        have("comes", 3000)->comes = true;
        ob_begin(&o, MCS_OP_GET, 0);
        ob_name(&o, "far");
        ob_piece(&o, 0, 5000);
        ob_name(&o, "comes");
        ob_piece(&o, 5000, 3000);
        cr_assert_eq(ob_ok(&o), 8000u);
        r = ob_result(&o, 1);
        cr_assert(r.status == MCS_OK && r.size == 3000, "%u", r.status);
        cr_assert_arr_eq(o.f.local.map, w.there[0].data, 5000);
        cr_assert_arr_eq(o.f.local.map + 5000, w.there[1].data, 3000);
        cr_assert(w.asked[MCD_ASK_FIND] == 1 && w.legs_begun == 1);
        far_fini(&o);
    }
}

Test(object_far, damaged_on_its_way)
{
    static struct ob o;

    far_init(&o, 4096);
    have("far", 50000)->damaged = 1;
    cr_assert_eq(ob_get(&o, "far", 0, 50000, 0).status, MCS_OK);
    cr_assert_arr_eq(o.f.local.map, w.there[0].data, 50000);
    cr_assert_eq(o.f.engine->counters.objects.damaged, 1u);
    cr_assert_eq(w.doubted, 1u, "its holder hears of it, and others are asked first");
    w.there[0].damaged = 2;
    cr_assert_eq(ob_get(&o, "far", 0, 50000, 0).status, MCS_CHECKSUM);
    o.st.verify = MCD_VERIFY_NEVER;
    w.there[0].damaged = 1;
    cr_assert_eq(ob_get(&o, "far", 0, 50000, 0).status, MCS_OK, "nobody looks");
    far_fini(&o);
}

Test(object_far, canceled_only_when_quiet)
{
    static struct ob o;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    far_init(&o, 64 << 10);
    have("far", 5000);
    ob_begin(&o, MCS_OP_GET, 0);
    ob_name(&o, "far");
    ob_piece(&o, 0, 5000);
    ob_write(&o);
    d = ob_desc(&o);
    w.hold = true;
    fix_push(&o.f, &d);
    while (w.nlegs == 0)
        ob_turns(&o, 1);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    ob_turns(&o, 20);
    cr_assert_eq(w.canceled, 1u);
    cr_assert(!ob_ended(&o, &d), "something may still land in its memory");
    w.hold = false;
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    cr_assert_eq(w.done_with, 1u);
    /* likewise while only a question is out: that needs not be awaited */
    w.later = w.hold = true;
    ob_write(&o);
    d = ob_desc(&o);
    fix_push(&o.f, &d);
    ob_turns(&o, 4);
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    cr_assert(w.canceled == 2 && w.nasks == 1);
    far_fini(&o);
    cr_assert_eq(w.done_with, 2u);
}

/* What is out of it outlives the queue as far as that may be. */
Test(object_far, the_queue_goes_in_the_middle)
{
    static struct ob o;
    static const uint8_t ops[] = {MCS_OP_GET, MCS_OP_GET, MCS_OP_EXIST, MCS_OP_PUT, MCS_OP_REMOVE};

    for (unsigned i = 0; i < sizeof(ops); i++) {
        struct mcd_command gone = {.kind = MCD_COMMAND_REMOVE, .queue = &o.f.queue};
        bool leg = i == 0;
        struct mcs_desc d;

        far_init(&o, 64 << 10);
        have("far", 5000);
        w.hold = true;
        w.later = !leg;
        ob_begin(&o, ops[i], 0);
        ob_name(&o, ops[i] == MCS_OP_PUT ? "new" : "far");
        if (ops[i] == MCS_OP_GET || ops[i] == MCS_OP_PUT)
            ob_piece(&o, 0, 5000);
        ob_write(&o);
        d = ob_desc(&o);
        fix_push(&o.f, &d);
        while (w.nlegs + w.nasks == 0)
            ob_turns(&o, 1);
        mcd_engine_command(o.f.engine, &gone);
        ob_turns(&o, 200);
        /* partner: finish_command() */
        cr_assert_eq(mcs_load_acquire(&gone.done), !leg, "op %u", ops[i]);
        w.hold = false;
        ob_turns(&o, 200);
        cr_assert_neq(mcs_load_acquire(&gone.done), 0u);
        cr_assert(w.nasks == 0 && w.nlegs == 0);
        cr_assert_eq(w.given_up, ops[i] == MCS_OP_PUT);
        cr_assert_eq(w.done_with, ops[i] == MCS_OP_GET);
        far_fini(&o);
    }
}

Test(object_far, held_once_it_was_brought)
{
    static struct ob o;
    struct mcs_object_result r;

    far_init(&o, 64 << 10);
    ob_put(&o, "here", 0, 100, 0); /* there is an extent */
    have("far", 5000);
    w.later = true;
    r = ob_hold(&o, "far");
    cr_assert(r.status == MCS_OK && r.hold != 0 && r.size == 5000);
    cr_assert_eq(r.tier, MCS_TIER_REMOTE);
    cr_assert_arr_eq(o.extents[0].map + r.offset, w.there[0].data, 5000);
    cr_assert_eq(ob_hold(&o, "nowhere").status, MCS_NOT_FOUND);
    cr_assert_eq(w.asked[MCD_ASK_PULL], 2u);
    far_fini(&o);
}

/* ---- EXIST, PREFIX, REMOVE -------------------------------------------------------------------- */

Test(object_far, exist_asks_once_for_what_is_not_here)
{
    static struct ob o;
    char key[16];

    for (unsigned later = 0; later < 2; later++) {
        far_init(&o, 64 << 10);
        ob_put(&o, "here", 0, 100, 0);
        w.later = later != 0;
        for (unsigned i = 0; i < 50; i++) {
            snprintf(key, sizeof(key), "far-%u", i);
            have(key, 10);
        }
        ob_begin(&o, MCS_OP_EXIST, 0);
        for (unsigned i = 0; i < 300; i++) {
            snprintf(key, sizeof(key), i % 3 == 0 ? "here" : "far-%u", i);
            ob_name(&o, key);
        }
        cr_assert_eq(ob_ok(&o), 100u + 33);
        for (unsigned i = 0; i < 300; i++)
            cr_assert_eq(ob_byte(&o, i), i % 3 == 0 || i < 50 ? MCS_OK : MCS_NOT_FOUND, "key %u",
                         i);
        cr_assert(w.asked[MCD_ASK_EXIST] == 1 && w.keys[MCD_ASK_EXIST] == 200);
        o.args.flags = MCS_OBJECT_LOCAL;
        cr_assert_eq(ob_ok(&o), 100u);
        cr_assert_eq(w.asked[MCD_ASK_EXIST], 1u);
        far_fini(&o);
    }
}

/* Their text is what a question has room for, not their number. */
Test(object_far, long_keys)
{
    static struct ob o;
    static char key[MCS_KEY_MAX];

    far_init(&o, 64 << 10);
    have("far", 10);
    for (unsigned n = 7; n <= 60; n += 53) {
        uint32_t length = 28000 / n;

        ob_begin(&o, MCS_OP_EXIST, 0);
        for (unsigned i = 0; i < n; i++) {
            memset(key, 'a' + (int)(i % 26), sizeof(key));
            key[0] = (char)i;
            if (i == n / 2)
                ob_name(&o, "far");
            else
                ob_key(&o, key, length);
        }
        cr_assert_eq(ob_ok(&o), 1u);
        for (unsigned i = 0; i < n; i++)
            cr_assert_eq(ob_byte(&o, i), i == n / 2 ? MCS_OK : MCS_NOT_FOUND);
    }
    cr_assert_eq(w.keys[MCD_ASK_EXIST], 67u);
    far_fini(&o);
}

Test(object_far, prefix_over_hosts)
{
    static struct ob o;
    char key[16];

    far_init(&o, 64 << 10);
    for (unsigned i = 0; i < 150; i++) {
        snprintf(key, sizeof(key), "block-%u", i);
        if (i % 3 == 0)
            ob_put(&o, key, 0, 100, 0);
        else if (i < 70)
            have(key, 10);
    }
    w.later = true;
    for (unsigned n = 60; n <= 150; n += 30) {
        unsigned asked = w.asked[MCD_ASK_EXIST];

        ob_begin(&o, MCS_OP_PREFIX, MCS_OBJECT_CHAIN);
        for (unsigned i = 0; i < n; i++) {
            snprintf(key, sizeof(key), "block-%u", i);
            ob_name(&o, key);
        }
        cr_assert_eq(ob_ok(&o), n < 70 ? n : 70);
        cr_assert_eq(w.asked[MCD_ASK_EXIST], asked + 1);
    }
    /* what is not known is no end of it */
    w.exist_status = MCS_REBUILDING;
    {
        struct mcs_slot s;

        s = ob_run(&o);
        cr_assert_eq(fix_state(s), MCS_STATE_FAILED);
        cr_assert_eq(fix_error(s), MCS_REBUILDING);
        cr_assert_eq(s.bytes, 70u);
    }
    far_fini(&o);
}

Test(object_far, removed_everywhere)
{
    static struct ob o;

    far_init(&o, 64 << 10);
    have("far", 10);
    w.later = true;
    cr_assert_eq(ob_remove(&o, "far", 0), MCS_OK);
    cr_assert_eq(ob_remove(&o, "nowhere", 0), MCS_NOT_FOUND);
    cr_assert_eq(w.asked[MCD_ASK_REMOVE], 2u);
    ob_put(&o, "held", 0, 10, 0);
    ob_hold(&o, "held");
    cr_assert_eq(ob_remove(&o, "held", 0), MCS_IN_USE);
    cr_assert_eq(w.asked[MCD_ASK_REMOVE], 2u, "nobody is asked for what is in use here");
    far_fini(&o);
}
