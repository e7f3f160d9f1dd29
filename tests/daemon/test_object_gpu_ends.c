/* SPDX-License-Identifier: Apache-2.0 */
/* How requests about objects with GPU memory end early: nothing is given up while a copy of theirs is out. */
#include "daemon/object_work.h"
#include "objects_gpu.h"

#define MiB (1u << 20)

/* A PUT, or a GET of what is there, of `size` bytes in two pieces of GPU memory, as a job that is out. */
static struct mcs_desc under_way(struct ob *o, bool put, uint64_t size, uint32_t deadline)
{
    if (!put) {
        ob_put(o, "k", 0, size, 0);
        cr_assert_eq(ob_result(o, 0).status, MCS_OK);
    }
    og_begin(o, put ? MCS_OP_PUT : MCS_OP_GET, 0);
    o->deadline = deadline;
    ob_name(o, "k");
    og_piece(o, GW_LOCAL, 0, size / 2);
    og_piece(o, GW_LOCAL, MiB, size - size / 2);
    return og_out(o, 1);
}

static void check_held(struct ob *o, bool put)
{
    cr_assert_eq(ob_stats(o).writing, put ? 1u : 0u);
    cr_assert_eq(ob_stats(o).pinned, 1u);
}

static void check_free(struct ob *o, bool put)
{
    cr_assert_eq(ob_stats(o).writing, 0u);
    cr_assert_eq(ob_stats(o).pinned, 0u);
    cr_assert_eq(ob_stats(o).objects, put ? 0u : 1u);
    cr_assert_eq(o->f.queue.waits + o->f.queue.parked, 0u);
    cr_assert_eq(o->f.queue.windows, 0u);
}

Test(object_gpu_ends, canceled)
{
    static struct ob o;

    for (unsigned put = 0; put < 2; put++) {
        struct mcs_desc d;

        og_init(&o);
        d = under_way(&o, put != 0, 1000, 0);
        og_cancel(&o, &d);
        og_cancel(&o, &d);
        cr_assert(!ob_ended(&o, &d), "a copy is out");
        check_held(&o, put != 0);
        gw_finish(MCS_OK);
        cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
        cr_assert_neq(o.f.client.slot_table[d.slot].word & MCS_SLOT_REMOTE_QUIESCED, 0u);
        check_free(&o, put != 0);
        gw.at_once = true;
        cr_assert_eq(og_one(&o, MCS_OP_PUT, "k", GW_LOCAL, 0, 10, MCS_OBJECT_UPSERT).status,
                     MCS_OK);
        og_fini(&o);
    }
}

Test(object_gpu_ends, late)
{
    static struct ob o;

    for (unsigned put = 0; put < 2; put++) {
        struct mcs_desc d;
        struct mcs_slot s;

        og_init(&o);
        d = under_way(&o, put != 0, 1000, 20000);
        while (!o.f.queue.tasks[d.slot].ending)
            ob_turns(&o, 1);
        ob_turns(&o, 100);
        cr_assert(!ob_ended(&o, &d), "a copy is out");
        check_held(&o, put != 0);
        gw_finish(MCS_OK);
        s = ob_end(&o, &d);
        cr_assert_eq(fix_state(s), MCS_STATE_TIMEOUT);
        cr_assert_eq(fix_error(s), MCS_TIMEOUT);
        check_free(&o, put != 0);
        og_fini(&o);
    }
}

/* What is left of a large one is not posted any more. */
Test(object_gpu_ends, canceled_in_the_middle)
{
    static struct ob o;
    struct mcs_desc d;

    og_init_sized(&o, 64u << 20, 32u << 20, 64 << 10);
    og_begin(&o, MCS_OP_PUT, 0);
    ob_name(&o, "large");
    og_piece(&o, GW_LOCAL, 0, 24 << 20);
    d = og_out(&o, 4);
    gw_finish(MCS_OK);
    ob_turns(&o, 20);
    cr_assert_eq(gw.nposted, 4u);
    og_cancel(&o, &d);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert(!ob_ended(&o, &d));
        cr_assert_eq(ob_stats(&o).writing, 1u);
        gw_finish(MCS_OK);
        ob_turns(&o, 4);
        cr_assert_eq(gw.nposted, 3 - i);
    }
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    check_free(&o, true);
    og_fini(&o);
}

/* A device that is lost takes the keys along that need it, and no others. */
Test(object_gpu_ends, a_lost_device)
{
    static struct ob o;
    struct mcs_desc d;

    for (unsigned put = 0; put < 2; put++) {
        og_init(&o);
        if (put == 0) {
            ob_put(&o, "a", 0, 1000, 0);
            ob_put(&o, "b", 1000, 1000, 0);
            ob_put(&o, "c", 2000, 1000, 0);
        }
        og_begin(&o, put ? MCS_OP_PUT : MCS_OP_GET, 0);
        ob_name(&o, "a");
        og_piece(&o, GW_LOCAL, 0, 1000);
        ob_name(&o, "b");
        ob_piece(&o, 5000, 1000);
        ob_name(&o, "c");
        ob_piece(&o, 6000, 500);
        og_piece(&o, GW_SECOND, 0, 500);
        /* memory of two devices: a job each */
        d = og_out(&o, 2);
        if (gw.posted[0]->to_device == 1 || gw.posted[0]->from_device == 1) {
            struct mct_cuda_job *other = gw.posted[0];

            gw.posted[0] = gw.posted[1];
            gw.posted[1] = other;
        }
        gw_finish(MCS_GPU_LOST);
        ob_turns(&o, 10);
        og_finish_all(&o, MCS_OK);
        cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_COMPLETED);
        cr_assert_eq(ob_result(&o, 1).status, MCS_OK);
        cr_assert_eq(ob_result(&o, 0).status, MCS_GPU_LOST);
        cr_assert_eq(ob_result(&o, 2).status, MCS_OK);
        cr_assert(ob_stats(&o).writing == 0 && ob_stats(&o).pinned == 0);
        if (put != 0)
            cr_assert(!ob_exists(&o, "a") && ob_exists(&o, "b"));
        og_fini(&o);
    }
}

/* The caller's memory goes while more of it is to be copied: a range is quiet when no copy of it is out. */
Test(object_gpu_ends, its_memory_is_taken_away)
{
    static struct ob o;
    struct mcd_extent *e = &og_gpu[0].extent;
    struct mcs_desc d;

    for (unsigned put = 0; put < 2; put++) {
        og_init_sized(&o, 64u << 20, 32u << 20, 64 << 10);
        if (put == 0) {
            gw.at_once = true;
            og_one(&o, MCS_OP_PUT, "k", GW_SECOND, 0, 24 << 20, 0);
            gw.at_once = false;
        }
        og_begin(&o, put ? MCS_OP_PUT : MCS_OP_GET, 0);
        ob_name(&o, "k");
        og_piece(&o, GW_LOCAL, 0, 24 << 20);
        d = og_out(&o, 4);
        o.f.session->extents[MCD_HANDLE_INDEX(GW_LOCAL)] = NULL;
        cr_assert(!mcd_gpu_jobs_quiet(o.f.engine, e->map, e->size));
        og_finish_all(&o, MCS_OK);
        cr_assert(mcd_gpu_jobs_quiet(o.f.engine, e->map, e->size));
        cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_COMPLETED);
        cr_assert_eq(ob_result(&o, 0).status, MCS_REVOKED, "%u", ob_result(&o, 0).status);
        cr_assert(ob_stats(&o).writing == 0 && ob_stats(&o).pinned == 0);
        og_fini(&o);
    }
}

struct removal {
    struct ob *o;
    struct mcd_command remove;
};

/* The client has died: its queue is given back when nothing of it is out, and what it was writing is undone. */
Test(object_gpu_ends, the_queue_goes)
{
    static struct ob o;

    for (unsigned put = 0; put < 2; put++) {
        struct removal r = {.o = &o, .remove = {.kind = MCD_COMMAND_REMOVE, .queue = &o.f.queue}};

        og_init(&o);
        under_way(&o, put != 0, 1000, 0);
        mcd_engine_command(o.f.engine, &r.remove);
        ob_turns(&o, 2000);
        cr_assert_eq(mcs_load_acquire(&r.remove.done), 0u, "a copy is out");
        check_held(&o, put != 0);
        gw_finish(MCS_OK);
        for (unsigned i = 0; i < 100000 && mcs_load_acquire(&r.remove.done) == 0; i++)
            ob_turns(&o, 1);
        cr_assert_eq(mcs_load_acquire(&r.remove.done), 1u);
        cr_assert(ob_stats(&o).writing == 0 && ob_stats(&o).pinned == 0);
        /* for ob_fini(): it is there again */
        r.remove = (struct mcd_command){.kind = MCD_COMMAND_ADD, .queue = &o.f.queue};
        o.f.queue.broken = false;
        mcd_engine_command(o.f.engine, &r.remove);
        while (mcs_load_acquire(&r.remove.done) == 0) /* partner: run_commands() */
            mcd_engine_turn(o.f.engine);
        og_fini(&o);
    }
}

/* A put that fails in one piece waits for the others, which still write into its space. */
Test(object_gpu_ends, one_piece_fails)
{
    static struct ob o;
    struct mcs_desc d;

    og_init(&o);
    og_begin(&o, MCS_OP_PUT, 0);
    ob_name(&o, "k");
    og_piece(&o, GW_LOCAL, 0, 6 * MiB / 2);
    og_piece(&o, GW_SECOND, 0, 6 * MiB / 2);
    d = og_out(&o, 2);
    gw_finish(MCS_GPU_CONTEXT);
    ob_turns(&o, 50);
    cr_assert(!ob_ended(&o, &d));
    cr_assert_eq(ob_stats(&o).writing, 1u);
    gw_finish(MCS_OK);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_COMPLETED);
    cr_assert_eq(ob_result(&o, 0).status, MCS_GPU_CONTEXT);
    check_free(&o, true);
    og_fini(&o);
}
