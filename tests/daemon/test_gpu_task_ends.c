/* SPDX-License-Identifier: Apache-2.0 */
/* How tasks with an end in GPU memory end that do not complete: nothing says it has ended before its memory is quiet. */
#include "gpu_world.h"

#define PATH(s) ((s).word >> 8 & 0xff)

/* A task of 16 jobs, of which 4 are out and one is back. */
static void begin(struct gpu_world *w, struct mcs_desc *d, uint32_t deadline_us)
{
    *d = gw_desc(w, MCS_OP_WRITE, 256 << 20);
    d->deadline_us = deadline_us;
    fix_push(&w->f, d);
    gw_out(w, 4);
    gw_finish(MCS_OK);
    while (gw.ndone != 0)
        gw_turns(w, 1);
    gw_out(w, 4);
}

/* It ends so, but not before what is out is back, and nothing is posted meanwhile. */
static void expect_end(struct gpu_world *w, const struct mcs_desc *d, unsigned state,
                       unsigned error, uint64_t bytes)
{
    uint64_t jobs = gw.jobs;
    struct mcs_slot s;

    for (unsigned left = gw.nposted; left != 0; left--) {
        gw_turns(w, 64);
        cr_assert_eq(gw_state(w, d), MCS_STATE_PENDING, "it has ended under %u copies", left);
        gw_finish(MCS_OK);
    }
    s = fix_end(&w->f, d);
    cr_assert_eq(fix_state(s), state, "state %u", fix_state(s));
    cr_assert_eq(fix_error(s), error, "error %u", fix_error(s));
    cr_assert_eq(s.bytes, bytes);
    cr_assert_eq(PATH(s), MCS_PATH_CUDA);
    cr_assert_eq(gw.jobs, jobs, "something was posted for a task that ends");
    gw_turns(w, 64);
    cr_assert_eq(gw.nposted, 0u);
    cr_assert_eq(w->f.queue.waits + w->f.queue.parked, 0u);
}

Test(gpu_task_ends, cancel_waits_for_what_is_out)
{
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};
    struct gpu_world w;

    gw_init(&w, 64 << 10);
    begin(&w, &d, 0);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&w.f, &cancel);
    fix_push(&w.f, &cancel); /* twice: the same */
    gw_turns(&w, 8);
    expect_end(&w, &d, MCS_STATE_CANCELED, MCS_CANCELED, 5 * MCD_GPU_JOB);
    gw_fini(&w);
}

Test(gpu_task_ends, cancel_of_one_that_waits_for_room_is_at_once)
{
    struct mcs_desc d, second, cancel = {.op = MCS_OP_CANCEL, .slot = 1};
    struct gpu_world w;

    gw_init(&w, 64 << 10);
    begin(&w, &d, 0);
    second = gw_desc(&w, MCS_OP_WRITE, 100);
    second.slot = 1;
    fix_push(&w.f, &second);
    gw_turns(&w, 8);
    cancel.generation = second.generation;
    fix_push(&w.f, &cancel);
    cr_assert_eq(fix_state(fix_end(&w.f, &second)), MCS_STATE_CANCELED);
    cr_assert_eq(PATH(w.f.client.slot_table[1]), MCS_PATH_NONE);
    cr_assert_eq(gw.nposted, 4u);
    gw.at_once = true;
    cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_COMPLETED);
    gw_fini(&w);
}

Test(gpu_task_ends, deadline)
{
    struct mcs_desc d;
    struct gpu_world w;
    uint64_t start = mcs_ticks();

    gw_init(&w, 64 << 10);
    begin(&w, &d, 200000);
    while (mcs_ticks() - start < 250000 * w.f.engine->ticks_per_us)
        gw_turns(&w, 1);
    expect_end(&w, &d, MCS_STATE_TIMEOUT, MCS_TIMEOUT, 5 * MCD_GPU_JOB);
    gw_fini(&w);
}

/* A range that is taken away: quiet when no copy reaches it any more, whoever asked for the copy; the task fails as soon as it
 * would begin one more. */
Test(gpu_task_ends, revoked_while_copies_are_out)
{
    struct gpu_world w;
    struct mcs_desc d;
    struct mcd_snapshot *old;
    struct mcd_command c;
    struct mcd_quiesce target = {0}, beside = {0};

    gw_init(&w, 64 << 10);
    begin(&w, &d, 0);
    cr_assert_eq(mcd_segment_cut(w.f.segment, &w.target.extent, 0, GW_SIZE, &old), 0);
    /* a grace period, then quiet: where nothing is copied, at once */
    gw_turns(&w, 2);
    free(old);
    beside.base = w.target.extent.map + (512 << 20);
    beside.length = GW_SIZE - (512 << 20);
    fix_call(w.f.engine, mcd_engine_quiesce, &beside);
    target.base = w.target.extent.map;
    target.length = GW_SIZE;
    mcd_engine_call(w.f.engine, &c, mcd_engine_quiesce, &target);
    for (unsigned left = 4; left != 0; left--) {
        gw_turns(&w, 200);
        cr_assert_eq(c.done, 0u, "quiet under %u copies", left);
        gw_finish(MCS_OK);
    }
    while (mcs_load_acquire(&c.done) == 0) /* partner: run_calls() */
        gw_turns(&w, 1);
    cr_assert_eq(gw_state(&w, &d), MCS_STATE_FAILED);
    cr_assert_eq(fix_error(w.f.client.slot_table[d.slot]), MCS_REVOKED);
    cr_assert_eq(w.f.client.slot_table[d.slot].bytes, 5 * MCD_GPU_JOB);
    cr_assert_eq(gw.jobs, 5u);
    cr_assert_eq(mcd_segment_add(w.f.segment, &w.target.extent, 0, GW_SIZE, GW_RW, &old), 0);
    free(old);
    gw_fini(&w);
}

/* The local end, too, and host memory that a GPU reads. */
Test(gpu_task_ends, freed_while_copies_are_out)
{
    struct gpu_world w;
    struct mcs_desc d;
    struct mcd_command c;
    struct mcd_quiesce range = {0};

    gw_init(&w, 64 << 10);
    d = gw_desc(&w, MCS_OP_WRITE, FIX_EXTENT_SIZE / 2);
    d.extent = FIX_EXTENT;
    d.flags = 0;
    fix_push(&w.f, &d);
    gw_out(&w, 1);
    w.f.session->extents[MCD_HANDLE_INDEX(FIX_EXTENT)] = NULL;
    range.base = w.f.local.map + FIX_EXTENT_SIZE / 2;
    range.length = FIX_EXTENT_SIZE / 2;
    fix_call(w.f.engine, mcd_engine_quiesce, &range);
    range.base = w.f.local.map + FIX_EXTENT_SIZE / 2 - 1;
    mcd_engine_call(w.f.engine, &c, mcd_engine_quiesce, &range);
    gw_turns(&w, 200);
    cr_assert_eq(c.done, 0u);
    gw_finish(MCS_OK);
    cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_COMPLETED);
    while (mcs_load_acquire(&c.done) == 0) /* partner: run_calls() */
        gw_turns(&w, 1);
    w.f.session->extents[MCD_HANDLE_INDEX(FIX_EXTENT)] = &w.f.local;
    gw_fini(&w);
}

Test(gpu_task_ends, a_session_ends_with_copies_out)
{
    struct gpu_world w;
    struct mcs_desc d, second;
    struct mcd_command remove = {.kind = MCD_COMMAND_REMOVE, .queue = &w.f.queue};
    struct mcd_command add = {.kind = MCD_COMMAND_ADD, .queue = &w.f.queue};

    gw_init(&w, 64 << 10);
    begin(&w, &d, 0);
    second = gw_desc(&w, MCS_OP_READ, 1);
    second.slot = 1;
    fix_push(&w.f, &second);
    gw_turns(&w, 8);
    mcd_engine_command(w.f.engine, &remove);
    for (unsigned left = 4; left != 0; left--) {
        gw_turns(&w, 200);
        cr_assert_eq(remove.done, 0u, "its queue is out under %u copies", left);
        gw_finish(MCS_OK);
    }
    while (mcs_load_acquire(&remove.done) == 0) /* partner: run_calls() */
        gw_turns(&w, 1);
    cr_assert_eq(gw_state(&w, &d), MCS_STATE_CANCELED);
    cr_assert_eq(gw_state(&w, &second), MCS_STATE_CANCELED);
    cr_assert_null(w.f.queue.gpu_lanes);
    w.f.queue.broken = false;
    mcd_engine_command(w.f.engine, &add);    /* for gw_fini() */
    while (mcs_load_acquire(&add.done) == 0) /* partner: run_commands() */
        gw_turns(&w, 1);
    gw_fini(&w);
}

/* A client that breaks the protocol is ended; what it had out comes back all the same. */
Test(gpu_task_ends, a_broken_queue_with_copies_out)
{
    struct gpu_world w;
    struct mcs_desc d, bad;

    gw_init(&w, 64 << 10);
    begin(&w, &d, 0);
    bad = gw_desc(&w, MCS_OP_READ, 1); /* the slot is in use */
    fix_push(&w.f, &bad);
    gw_turns(&w, 64);
    cr_assert_neq(w.f.queue.error, 0u);
    expect_end(&w, &d, MCS_STATE_CANCELED, MCS_CANCELED, 5 * MCD_GPU_JOB);
    gw_fini(&w);
}

/* Jobs that fail say why; bytes are only those that are known to be there; the others are awaited. */
Test(gpu_task_ends, what_the_driver_says)
{
    static const enum mcs_status errors[] = {MCS_GPU_LOST, MCS_GPU_CONTEXT, MCS_STRICT};
    struct gpu_world w;

    gw_init(&w, 64 << 10);
    for (unsigned i = 0; i < 3; i++) {
        struct mcs_desc d;

        begin(&w, &d, 0);
        gw_finish(errors[i]);
        while (gw.ndone != 0)
            gw_turns(&w, 1);
        cr_assert_eq(gw.nposted, 3u);
        expect_end(&w, &d, MCS_STATE_FAILED, errors[i], 4 * MCD_GPU_JOB);
    }
    for (unsigned i = 0; i < 3; i++) {
        struct mcs_desc d = gw_desc(&w, MCS_OP_READ, 100);
        struct mcs_slot s;

        fix_push(&w.f, &d);
        gw_out(&w, 1);
        gw_finish(errors[i]);
        s = fix_end(&w.f, &d);
        cr_assert_eq(fix_state(s), MCS_STATE_FAILED);
        cr_assert_eq(fix_error(s), errors[i]);
        cr_assert_eq(s.bytes, 0u);
    }
    gw_fini(&w);
}

/* Pieces that the client changes after they were checked are checked again. */
Test(gpu_task_ends, pieces_that_change_under_way)
{
    struct gpu_world w;
    struct mcs_piece *pieces;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    for (unsigned i = 0; i < 4; i++) {
        unsigned want[] = {MCS_REVOKED, MCS_REVOKED, MCS_INVALID_ARGUMENT, MCS_REVOKED};

        pieces = gw_args(&w, 0, (struct mcs_args){.total = 64 + 48, .count = 2, .pieces = 64});
        pieces[0] = (struct mcs_piece){.length = 128 << 20};
        pieces[1] = (struct mcs_piece){.local = 128 << 20, .remote = 200 << 20, .length = 100};
        d = gw_desc(&w, MCS_OP_WRITE, 0);
        d.shape = MCS_SHAPE_LIST;
        d.args = 0;
        fix_push(&w.f, &d);
        gw_out(&w, 4);
        if (i == 0)
            pieces[0].length = 4096; /* what is moved already is more */
        else if (i == 1)
            pieces[1].remote = GW_SIZE * 3;
        else if (i == 2)
            pieces[1].length = 0;
        else
            pieces[1].local = UINT64_MAX;
        while (gw_finish(MCS_OK))
            gw_turns(&w, 4);
        cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_FAILED);
        cr_assert_eq(fix_error(w.f.client.slot_table[d.slot]), want[i]);
    }
    gw_fini(&w);
}

/* Asleep, an engine is woken by what comes back; with nothing out it does not ask. */
Test(gpu_task_ends, before_sleep_the_port_is_armed)
{
    struct gpu_world w;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    cr_assert(mcd_gpu_jobs_may_sleep(w.f.engine));
    cr_assert_eq(gw.arms, 0u);
    cr_assert(!mcd_gpu_tasks_wait(w.f.engine));
    begin(&w, &d, 0);
    cr_assert(mcd_gpu_jobs_may_sleep(w.f.engine));
    cr_assert_eq(gw.arms, 1u);
    cr_assert(!mcd_gpu_tasks_wait(w.f.engine),
              "what is parked goes on when something comes back, which rings");
    gw_finish(MCS_OK);
    cr_assert(!mcd_gpu_jobs_may_sleep(w.f.engine), "something has come back");
    gw.at_once = true;
    cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_COMPLETED);
    gw_fini(&w);
}
