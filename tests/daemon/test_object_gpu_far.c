/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of other hosts that go to GPU memory: they come here first; those for host memory are read as ever. */
#include "objects_gpu.h"
/* after it: that has a world `w` of its own */
#include "objects_far.h"

static void init(struct ob *o)
{
    ob_cuda = (struct mct_cuda *)&gw;
    far_init(o, 64 << 10);
    og_add(o);
    gw.at_once = true;
}

static void fini(struct ob *o)
{
    gw.at_once = true;
    far_fini(o);
    og_free();
}

Test(object_gpu_far, they_come_here_first)
{
    static struct ob o;

    for (unsigned later = 0; later < 2; later++) {
        init(&o);
        ob_put(&o, "here", 0, 1, 0); /* there is an extent for them */
        w.later = later != 0;
        for (unsigned i = 0; i < 4; i++) {
            char key[16];

            snprintf(key, sizeof(key), "far-%u", i);
            have(key, 5000 + i);
        }
        og_begin(&o, MCS_OP_GET, MCS_OBJECT_VERIFY);
        ob_name(&o, "far-0");
        ob_piece(&o, 0, 5000);
        ob_name(&o, "far-1");
        og_piece(&o, GW_LOCAL, 0, 5001);
        ob_name(&o, "nowhere");
        og_piece(&o, GW_LOCAL, 1 << 20, 5001);
        ob_name(&o, "far-2");
        ob_piece(&o, 10000, 2000);
        og_piece(&o, GW_SECOND, 7, 4000);
        ob_name(&o, "far-3");
        ob_piece(&o, 20000, 5003);
        cr_assert_eq(ob_ok(&o), 20006u);
        for (unsigned i = 0; i < 5; i++) {
            struct mcs_object_result r = ob_result(&o, i);

            cr_assert_eq(r.status, i == 2 ? MCS_NOT_FOUND : MCS_OK, "key %u: %u", i, r.status);
            if (i == 2)
                continue;
            cr_assert_eq(r.tier, MCS_TIER_REMOTE);
            cr_assert_eq(r.path, i == 1 || i == 3 ? MCS_PATH_CUDA : MCS_PATH_TCP);
        }
        cr_assert_arr_eq(o.f.local.map, w.there[0].data, 5000);
        cr_assert_arr_eq(og_gpu[0].bytes, w.there[1].data, 5001);
        cr_assert_arr_eq(o.f.local.map + 10000, w.there[2].data, 2000);
        cr_assert_arr_eq(og_gpu[1].bytes + 7, w.there[2].data + 2000, 3002);
        cr_assert_arr_eq(o.f.local.map + 20000, w.there[3].data, 5003);
        cr_assert(w.asked[MCD_ASK_PULL] == 1 && w.keys[MCD_ASK_PULL] == 3);
        cr_assert(w.asked[MCD_ASK_FIND] == 1 && w.keys[MCD_ASK_FIND] == 2 && w.done_with == 1);
        cr_assert_eq(ob_stats(&o).pinned, 0u);
        fini(&o);
    }
}

Test(object_gpu_far, ranges)
{
    static struct ob o;

    init(&o);
    ob_put(&o, "here", 0, 1, 0);
    have("far", 5000);
    og_begin(&o, MCS_OP_GET, MCS_OBJECT_RANGES);
    ob_name(&o, "far");
    og_piece(&o, GW_LOCAL, 0, 100)->offset = 4900;
    ob_piece(&o, 200, 50)->offset = 10;
    cr_assert_eq(ob_ok(&o), 150u);
    cr_assert_eq(ob_result(&o, 0).status, MCS_OK);
    cr_assert_arr_eq(og_gpu[0].bytes, w.there[0].data + 4900, 100);
    cr_assert_arr_eq(o.f.local.map + 200, w.there[0].data + 10, 50);
    cr_assert(w.asked[MCD_ASK_PULL] == 1 && w.asked[MCD_ASK_FIND] == 0);
    fini(&o);
}

/* There is no room for it here: that is said, and nothing waits. */
Test(object_gpu_far, no_room)
{
    static struct ob o;

    init(&o);
    o.closed = true;
    have("far", 5000);
    og_begin(&o, MCS_OP_GET, 0);
    ob_name(&o, "far");
    og_piece(&o, GW_LOCAL, 0, 5000);
    ob_ok(&o);
    cr_assert_eq(ob_result(&o, 0).status, MCS_NO_SPACE);
    cr_assert_eq(gw.jobs, 0u);
    fini(&o);
}

/* PUT: the catalog is told when the bytes are there, and of what was given up. */
Test(object_gpu_far, put)
{
    static struct ob o;

    init(&o);
    for (unsigned i = 0; i < 3; i++) {
        struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

        gw.at_once = i == 0;
        w.ended_well = w.given_up = 0;
        og_begin(&o, MCS_OP_PUT, MCS_OBJECT_UPSERT);
        ob_name(&o, "k");
        og_piece(&o, GW_LOCAL, 100 * i, 5000);
        if (i == 0) {
            ob_ok(&o);
            cr_assert_eq(ob_result(&o, 0).status, MCS_OK);
            cr_assert_eq(ob_result(&o, 0).copies, 2u);
            cr_assert(w.ended_well == 1 && w.given_up == 0);
            continue;
        }
        d = og_out(&o, 1);
        cr_assert(w.ended_well == 0 && w.given_up == 0);
        if (i == 1) {
            cancel.slot = d.slot;
            cancel.generation = d.generation;
            fix_push(&o.f, &cancel);
            ob_turns(&o, 20);
            cr_assert_eq(w.given_up, 0u, "its space is still written to");
        }
        gw_finish(i == 1 ? MCS_OK : MCS_GPU_LOST);
        ob_end(&o, &d);
        ob_turns(&o, 4);
        cr_assert(w.ended_well == 0 && w.given_up == 1);
        cr_assert_eq(ob_stats(&o).writing, 0u);
        cr_assert_eq(mct_crc32c(0, og_data(&o, "k"), 5000), mct_crc32c(0, og_gpu[0].bytes, 5000));
    }
    fini(&o);
}
