/* SPDX-License-Identifier: Apache-2.0 */
/* Copies with an end in GPU memory: what is posted to the copiers, in which pieces, and when. */
#include "gpu_world.h"

#define PATH(s) ((s).word >> 8 & 0xff)

static void expect_moved(struct gpu_world *w, const struct mcs_desc *d, const uint8_t *to,
                         const uint8_t *from)
{
    struct mcs_slot s = fix_end(&w->f, d);

    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED, "state %u, error %u", fix_state(s),
                 fix_error(s));
    cr_assert_eq(PATH(s), MCS_PATH_CUDA);
    cr_assert_eq(s.bytes, d->length);
    cr_assert_neq(s.word & MCS_SLOT_REMOTE_QUIESCED, 0u);
    cr_assert_arr_eq(to, from, d->length);
}

Test(gpu_task, bytes_move_in_all_directions)
{
    struct gpu_world w;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    gw.at_once = true;
    /* the client's GPU memory to and from the owner's: same device, other device, host */
    d = gw_desc(&w, MCS_OP_WRITE, 100000);
    fix_push(&w.f, &d);
    expect_moved(&w, &d, w.target.bytes, w.local.bytes);
    d = gw_desc(&w, MCS_OP_READ, 100001);
    d.remote_addr = w.other.extent.address + 13;
    d.local_offset = 7;
    fix_push(&w.f, &d);
    expect_moved(&w, &d, w.local.bytes + 7, w.other.bytes + 13);
    d = gw_desc(&w, MCS_OP_WRITE, 4097);
    d.remote_addr = w.f.target.address + 3;
    fix_push(&w.f, &d);
    expect_moved(&w, &d, w.f.target.map + 3, w.local.bytes);
    for (unsigned i = 0; i < FIX_EXTENT_SIZE; i++)
        w.f.target.map[i] = (uint8_t)(i / 3);
    d = gw_desc(&w, MCS_OP_READ, FIX_EXTENT_SIZE);
    d.remote_addr = w.f.target.address;
    fix_push(&w.f, &d);
    expect_moved(&w, &d, w.local.bytes, w.f.target.map);
    /* its host memory to and from the owner's GPU: no order is asked for */
    d = gw_desc(&w, MCS_OP_WRITE, 5000);
    d.extent = FIX_EXTENT;
    d.flags = 0;
    fix_push(&w.f, &d);
    expect_moved(&w, &d, w.target.bytes, w.f.local.map);
    d = gw_desc(&w, MCS_OP_READ, 1);
    d.extent = FIX_EXTENT;
    d.flags = 0;
    d.remote_addr = w.other.extent.address + GW_BACKED - 1;
    fix_push(&w.f, &d);
    expect_moved(&w, &d, w.f.local.map, w.other.bytes + GW_BACKED - 1);
    cr_assert_eq(w.f.engine->counters.gpu_tasks, 6u);
    cr_assert_eq(w.f.engine->counters.gpu_bytes, w.f.engine->counters.bytes);
    gw_fini(&w);
}

Test(gpu_task, it_is_pending_while_copies_are_out)
{
    struct gpu_world w;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    d = gw_desc(&w, MCS_OP_WRITE, 1000);
    fix_push(&w.f, &d);
    gw_out(&w, 1);
    gw_turns(&w, 100);
    cr_assert_eq(gw_state(&w, &d), MCS_STATE_PENDING);
    cr_assert_eq(w.f.client.slot_table[d.slot].bytes, 0u);
    cr_assert_eq(w.f.client.batch_lines[0].word & UINT32_MAX, 0u, "no task of the batch has ended");
    gw_finish(MCS_OK);
    expect_moved(&w, &d, w.target.bytes, w.local.bytes);
    gw_turns(&w, 1);
    cr_assert_eq(w.f.client.batch_lines[0].word & UINT32_MAX, 1u);
    gw_fini(&w);
}

/* A device address is not a pointer of the agent: it would fault on the first touch. */
Test(gpu_task, without_an_order_it_is_refused)
{
    struct gpu_world w;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    for (unsigned op = MCS_OP_READ; op <= MCS_OP_WRITE; op++) {
        d = gw_desc(&w, (uint8_t)op, 1000);
        d.flags = 0;
        fix_refused(&w.f, &d, MCS_GPU_ORDER);
        d = gw_desc(&w, (uint8_t)op, 1000);
        d.flags = MCS_DESC_FENCE;
        d.remote_addr = w.f.target.address; /* host memory there */
        fix_refused(&w.f, &d, MCS_GPU_ORDER);
    }
    d = gw_desc(&w, MCS_OP_READ, 1000);
    d.local_offset = GW_SIZE - 999;
    fix_refused(&w.f, &d, MCS_BAD_RANGE);
    d = gw_desc(&w, MCS_OP_READ, 1000);
    d.remote_addr += GW_SIZE * 2 - 999;
    fix_refused(&w.f, &d, MCS_BAD_RANGE);
    d = gw_desc(&w, MCS_OP_READ, 1000);
    d.extent = GW_LOCAL + MCD_TABLE_SIZE;
    fix_refused(&w.f, &d, MCS_INVALID_HANDLE);
    cr_assert_eq(gw.jobs, 0u);
    gw_fini(&w);
}

Test(gpu_task, both_ends_in_the_same_bytes_are_refused)
{
    struct gpu_world w;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    w.f.session->extents[MCD_HANDLE_INDEX(GW_LOCAL)] = &w.target.extent;
    w.target.extent.handle = GW_LOCAL;
    d = gw_desc(&w, MCS_OP_WRITE, 1000);
    d.local_offset = 999;
    fix_refused(&w.f, &d, MCS_OVERLAP);
    gw_fini(&w);
}

/* Thousands of pieces, in jobs of many: each byte is where it belongs, none else is touched. */
Test(gpu_task, lists_of_many_pieces)
{
    enum { N = 2000, BLOCK = 512 };
    struct gpu_world w;
    uint8_t *want = malloc(GW_BACKED);
    struct mcs_piece *pieces;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    gw.at_once = true;
    cr_assert_not_null(want);
    memcpy(want, w.target.bytes, GW_BACKED);
    pieces = gw_args(
        &w, 0, (struct mcs_args){.total = 64 + N * sizeof(*pieces), .count = N, .pieces = 64});
    for (unsigned i = 0; i < N; i++) {
        pieces[i] = (struct mcs_piece){.local = i * 2ull * BLOCK,
                                       .remote = (i * 37ull % N) * 3 * BLOCK,
                                       .length = BLOCK - i % 5};
        memcpy(want + pieces[i].remote, w.local.bytes + pieces[i].local, pieces[i].length);
    }
    d = gw_desc(&w, MCS_OP_WRITE, 0);
    d.shape = MCS_SHAPE_LIST;
    d.args = 0;
    fix_push(&w.f, &d);
    cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_COMPLETED);
    cr_assert_arr_eq(w.target.bytes, want, GW_BACKED);
    cr_assert_eq(gw.pieces, (uint64_t)N);
    cr_assert_eq(gw.jobs, (uint64_t)(N + MCD_GPU_PIECES - 1) / MCD_GPU_PIECES);
    free(want);
    gw_fini(&w);
}

Test(gpu_task, strides_and_pieces_that_touch_are_joined)
{
    struct gpu_world w;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    gw.at_once = true;
    /* blocks that are apart here and there, then blocks one behind the other */
    gw_args(&w, 0,
            (struct mcs_args){.total = 64,
                              .count = 1000,
                              .block = 1000,
                              .local_stride = 1024,
                              .remote_stride = 4096});
    d = gw_desc(&w, MCS_OP_READ, 0);
    d.shape = MCS_SHAPE_STRIDE;
    d.args = 0;
    fix_push(&w.f, &d);
    cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_COMPLETED);
    for (unsigned i = 0; i < 1000; i++)
        cr_assert_arr_eq(w.local.bytes + i * 1024, w.target.bytes + i * 4096, 1000);
    cr_assert_eq(gw.pieces, 1000u);
    gw.pieces = gw.jobs = 0;
    gw_args(&w, 0,
            (struct mcs_args){.total = 64,
                              .count = 1000,
                              .block = 1000,
                              .local_stride = 1000,
                              .remote_stride = 1000});
    d = gw_desc(&w, MCS_OP_WRITE, 0);
    d.shape = MCS_SHAPE_STRIDE;
    d.args = 0;
    fix_push(&w.f, &d);
    cr_assert_eq(fix_end(&w.f, &d).bytes, 1000000u);
    cr_assert_arr_eq(w.target.bytes, w.local.bytes, 1000000);
    cr_assert_eq(gw.pieces, 1u, "%llu", (unsigned long long)gw.pieces);
    cr_assert_eq(gw.jobs, 1u);
    gw_fini(&w);
}

/* Host memory is registered with the driver by extents: one copy may not touch two of them. */
Test(gpu_task, pieces_of_two_extents_are_not_joined)
{
    struct gpu_world w;
    struct mcd_extent twin;
    struct mcd_snapshot *old;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    gw.at_once = true;
    /* another extent, published right behind the target's and lying right behind it in this process */
    twin = w.f.target;
    twin.map += FIX_EXTENT_SIZE / 2;
    twin.size = FIX_EXTENT_SIZE / 2;
    twin.address += FIX_EXTENT_SIZE / 2;
    cr_assert_eq(
        mcd_segment_cut(w.f.segment, &w.f.target, FIX_EXTENT_SIZE / 2, FIX_EXTENT_SIZE / 2, &old),
        0);
    free(old);
    cr_assert_eq(mcd_segment_add(w.f.segment, &twin, 0, twin.size, GW_RW, &old), 0);
    free(old);
    gw_args(&w, 0,
            (struct mcs_args){
                .total = 64, .count = 4, .block = 100, .local_stride = 100, .remote_stride = 100});
    d = gw_desc(&w, MCS_OP_WRITE, 0);
    d.remote_addr = twin.address - 200;
    d.shape = MCS_SHAPE_STRIDE;
    d.args = 0;
    fix_push(&w.f, &d);
    cr_assert_eq(fix_end(&w.f, &d).bytes, 400u);
    cr_assert_arr_eq(twin.map - 200, w.local.bytes, 400);
    cr_assert_eq(gw.pieces, 2u);
    cr_assert_eq(mcd_segment_cut(w.f.segment, &twin, 0, twin.size, &old), 0);
    free(old);
    gw_fini(&w);
}

/* One list from host memory into buffers of host memory, GPU 0 and GPU 1: all of it arrives. */
Test(gpu_task, a_list_may_name_memory_of_all_kinds)
{
    enum { N = 600, BLOCK = 1000 };
    struct gpu_world w;
    struct mcs_piece *pieces;
    struct mcs_desc d;

    gw_init(&w, 4096);
    gw.at_once = true;
    for (unsigned i = 0; i < FIX_EXTENT_SIZE; i++)
        w.f.local.map[i] = (uint8_t)(i / 7 + i);
    pieces = gw_args(
        &w, 0, (struct mcs_args){.total = 64 + N * sizeof(*pieces), .count = N, .pieces = 64});
    for (unsigned i = 0; i < N; i++) {
        uint64_t to[] = {w.f.target.address, w.target.extent.address, w.other.extent.address};

        pieces[i] = (struct mcs_piece){.local = i * 1ull * BLOCK,
                                       .remote = to[i / 7 % 3] + i * 2ull * BLOCK % FIX_EXTENT_SIZE,
                                       .length = BLOCK};
        pieces[i].remote -= pieces[i].remote % 8;
    }
    d = gw_desc(&w, MCS_OP_WRITE, 0);
    d.extent = FIX_EXTENT;
    d.remote_addr = 0;
    d.shape = MCS_SHAPE_LIST;
    d.args = 0;
    /* pieces do not overlap each other's targets: 2 * BLOCK apart, modulo an extent that they do not fill */
    for (unsigned i = 520; i < N; i++)
        pieces[i].remote = w.target.extent.address + (4u << 20) + i * 2ull * BLOCK;
    fix_push(&w.f, &d);
    cr_assert_eq(fix_state(fix_end(&w.f, &d)), MCS_STATE_COMPLETED);
    for (unsigned i = 0; i < N; i++) {
        const struct mct_cuda_memory *gpus[] = {NULL, &w.target, &w.other};
        const struct mct_cuda_memory *m = i >= 520 ? &w.target : gpus[i / 7 % 3];
        const uint8_t *at = m == NULL ? w.f.target.map + (pieces[i].remote - w.f.target.address)
                                      : m->bytes + (pieces[i].remote - m->extent.address);

        cr_assert_arr_eq(at, w.f.local.map + pieces[i].local, BLOCK, "piece %u", i);
    }
    gw_fini(&w);
}

/* What is out is bounded, so that whoever wants it quiet does not wait long; copies over a bus count more. */
Test(gpu_task, what_is_out_is_bounded)
{
    static const struct {
        bool bus;
        uint64_t most;
    } cases[] = {{false, MCD_GPU_WINDOW}, {true, MCD_GPU_WINDOW / MCD_GPU_BUS}};
    enum { N = 2000 };
    struct gpu_world w;
    struct mcs_piece *pieces;
    struct mcs_desc d;
    uint64_t jobs;

    gw_init(&w, 64 << 10);
    for (unsigned i = 0; i < 2; i++) {
        struct mcs_slot s;
        uint64_t last = 0;

        d = gw_desc(&w, MCS_OP_WRITE, GW_SIZE);
        if (cases[i].bus)
            d.remote_addr = w.other.extent.address;
        gw.most_bytes = gw.jobs = 0;
        fix_push(&w.f, &d);
        for (unsigned k = 0; gw_state(&w, &d) < MCS_STATE_INVALID && k < 100000; k++) {
            gw_turns(&w, 1);
            gw_finish(MCS_OK);
            /* progress, for who looks */
            cr_assert_geq(w.f.client.slot_table[d.slot].bytes, last);
            last = w.f.client.slot_table[d.slot].bytes;
        }
        s = fix_end(&w.f, &d);
        cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED);
        cr_assert_eq(s.bytes, GW_SIZE);
        cr_assert_leq(gw.most_bytes, cases[i].most);
        cr_assert_geq(gw.most_bytes, cases[i].most / 2, "and the copiers have what to do next");
        cr_assert_leq(gw.jobs, GW_SIZE / (cases[i].most / 4));
    }
    /* and their number: pieces to two devices in turn are a job each */
    pieces = gw_args(
        &w, 0, (struct mcs_args){.total = 64 + N * sizeof(*pieces), .count = N, .pieces = 64});
    for (unsigned i = 0; i < N; i++)
        pieces[i] = (struct mcs_piece){
            .local = i * 64, .remote = (i % 2 == 0 ? 0 : GW_SIZE) + i * 64, .length = 64};
    d = gw_desc(&w, MCS_OP_WRITE, 0);
    d.shape = MCS_SHAPE_LIST;
    d.args = 0;
    fix_push(&w.f, &d);
    gw.most = 0;
    jobs = gw.jobs;
    for (unsigned i = 0; i < 100000 && gw_state(&w, &d) < MCS_STATE_INVALID; i++) {
        gw_turns(&w, i < 20 ? 1 : 0);
        gw_finish(MCS_OK);
        gw_turns(&w, 1);
    }
    cr_assert_eq(gw_state(&w, &d), MCS_STATE_COMPLETED);
    cr_assert_eq(gw.jobs - jobs, (uint64_t)N);
    cr_assert_geq(gw.most, MCD_GPU_JOBS / 2);
    cr_assert_leq(gw.most, MCD_GPU_JOBS);
    gw_fini(&w);
}

Test(gpu_task, a_device_that_is_slow_holds_up_no_other)
{
    struct gpu_world w;
    struct mcs_desc slow, fast, host;

    gw_init(&w, 64 << 10);
    slow = gw_desc(&w, MCS_OP_WRITE, GW_SIZE);
    fix_push(&w.f, &slow);
    gw_out(&w, 4);
    gw_turns(&w, 50);
    cr_assert_eq(gw.nposted, 4u, "its window is full");
    fast = gw_desc(&w, MCS_OP_WRITE, 4096);
    fast.slot = 1;
    fast.extent = GW_SECOND;
    fast.remote_addr = w.other.extent.address;
    fix_push(&w.f, &fast);
    gw_out(&w, 5);
    host = fix_desc(&w.f, MCS_OP_WRITE, FIX_EXTENT_SIZE);
    host.slot = 2;
    cr_assert_eq(fix_state(fix_run(&w.f, &host)), MCS_STATE_COMPLETED);
    cr_assert_eq(gw_state(&w, &slow), MCS_STATE_PENDING);
    gw.at_once = true;
    cr_assert_eq(fix_state(fix_end(&w.f, &slow)), MCS_STATE_COMPLETED);
    cr_assert_eq(gw_state(&w, &fast), MCS_STATE_COMPLETED);
    gw_fini(&w);
}

/* What comes later in a higher class goes first as soon as there is room. */
Test(gpu_task, classes_go_by_their_order)
{
    struct gpu_world w;
    struct mcs_desc background, high;

    gw_init(&w, 64 << 10);
    background = gw_desc(&w, MCS_OP_WRITE, GW_SIZE);
    background.priority = MCS_CLASS_BACKGROUND;
    fix_push(&w.f, &background);
    gw_out(&w, 4);
    high = gw_desc(&w, MCS_OP_READ, 64 << 20);
    high.slot = 1;
    high.priority = MCS_CLASS_HIGH;
    fix_push(&w.f, &high);
    for (unsigned i = 0; i < 8 + 4 && gw_state(&w, &high) != MCS_STATE_COMPLETED; i++) {
        gw_turns(&w, 4);
        gw_finish(MCS_OK);
    }
    gw_turns(&w, 4);
    cr_assert_eq(gw_state(&w, &high), MCS_STATE_COMPLETED);
    cr_assert_lt(w.f.client.slot_table[background.slot].bytes, GW_SIZE / 2);
    gw.at_once = true;
    cr_assert_eq(fix_state(fix_end(&w.f, &background)), MCS_STATE_COMPLETED);
    gw_fini(&w);
}

/* With FENCE a task begins when all earlier ones have ended, those that GPUs copy among them. */
Test(gpu_task, a_fence_waits_for_copies)
{
    struct gpu_world w;
    struct mcs_desc first, second, third;

    gw_init(&w, 64 << 10);
    first = gw_desc(&w, MCS_OP_WRITE, 1 << 20);
    fix_push(&w.f, &first);
    second = gw_desc(&w, MCS_OP_WRITE, 1 << 20);
    second.flags |= MCS_DESC_FENCE;
    second.slot = 1;
    fix_push(&w.f, &second);
    third = fix_desc(&w.f, MCS_OP_WRITE, 100);
    third.flags |= MCS_DESC_FENCE;
    third.slot = 2;
    fix_push(&w.f, &third);
    gw_out(&w, 1);
    gw_turns(&w, 100);
    cr_assert_eq(gw.nposted, 1u);
    cr_assert_eq(gw_state(&w, &third), MCS_STATE_WAITING);
    gw_finish(MCS_OK);
    gw_out(&w, 1);
    cr_assert_eq(gw_state(&w, &first), MCS_STATE_COMPLETED);
    cr_assert_eq(gw_state(&w, &third), MCS_STATE_WAITING);
    gw_finish(MCS_OK);
    cr_assert_eq(fix_state(fix_end(&w.f, &third)), MCS_STATE_COMPLETED);
    cr_assert_eq(gw_state(&w, &second), MCS_STATE_COMPLETED);
    gw_fini(&w);
}

/* The notification is in the inbox only after the last byte. */
Test(gpu_task, a_notification_comes_after_the_bytes)
{
    struct mcs_session_region reader;
    const struct mcs_inbox_record *r;
    struct gpu_world w;
    struct mcs_slot s;
    struct mcs_desc d;
    char *text;

    gw_init(&w, 64 << 10);
    mcs_session_region_attach(&reader, w.f.inbox, mcs_session_region_size(MCS_INBOX_SIZE_MIN));
    text = gw_args(
        &w, 0,
        (struct mcs_args){.total = 64 + 9, .notify = 64, .name_length = 4, .message_length = 5});
    memcpy(text, "namehello", 9);
    d = gw_desc(&w, MCS_OP_WRITE, 40 << 20);
    d.flags |= MCS_DESC_NOTIFY;
    d.args = 0;
    fix_push(&w.f, &d);
    gw_out(&w, 3);
    for (unsigned i = 0; i < 3; i++) {
        gw_turns(&w, 20);
        cr_assert_null(mcs_inbox_peek(&reader), "%u copies are out", gw.nposted);
        gw_finish(MCS_OK);
    }
    s = fix_end(&w.f, &d);
    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED);
    cr_assert_eq(PATH(s), MCS_PATH_CUDA);
    r = mcs_inbox_peek(&reader);
    cr_assert_not_null(r);
    cr_assert_eq(r->bytes, (uint64_t)40 << 20);
    gw_fini(&w);
}

/* Host memory that the driver could not register is copied by a slower way, which `strict` does not take. */
Test(gpu_task, strict_takes_no_memory_that_is_not_pinned)
{
    static const uint32_t states[] = {0, 1, 3};
    struct gpu_world w;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    gw.at_once = true;
    for (unsigned i = 0; i < 3; i++) {
        struct mcs_slot s;

        w.f.target.pinned = states[i];
        d = gw_desc(&w, MCS_OP_WRITE, 100);
        d.remote_addr = w.f.target.address;
        d.flags |= MCS_DESC_STRICT;
        s = fix_run(&w.f, &d);
        cr_assert_eq(fix_state(s), MCS_STATE_FAILED);
        cr_assert_eq(fix_error(s), MCS_STRICT);
        cr_assert_eq(s.bytes, 0u);
        cr_assert_eq(gw.jobs, i * 1ull);
        d.flags = MCS_DESC_SYNCED;
        d.generation = d.batch_generation = ++w.f.generation;
        fix_push(&w.f, &d);
        gw.at_once = false;
        gw_out(&w, 1);
        cr_assert(!gw.posted[0]->pinned && !gw.posted[0]->strict);
        gw.at_once = true;
        expect_moved(&w, &d, w.f.target.map, w.local.bytes);
    }
    w.f.target.pinned = 2;
    d = gw_desc(&w, MCS_OP_WRITE, 100);
    d.remote_addr = w.f.target.address;
    d.flags |= MCS_DESC_STRICT;
    fix_push(&w.f, &d);
    gw.at_once = false;
    gw_out(&w, 1);
    cr_assert(gw.posted[0]->pinned && gw.posted[0]->strict);
    gw_finish(MCS_OK);
    expect_moved(&w, &d, w.f.target.map, w.local.bytes);
    gw_fini(&w);
}

/* [gpu] enable = off, and yet such an extent: cannot be, and is refused. */
Test(gpu_task, an_engine_without_gpus_refuses)
{
    struct gpu_world w;
    struct mcd_gpu_tasks *tasks;
    struct mcs_desc d;

    gw_init(&w, 64 << 10);
    tasks = w.f.engine->gpu_tasks;
    w.f.engine->gpu_tasks = NULL;
    d = gw_desc(&w, MCS_OP_WRITE, 100);
    cr_assert_eq(fix_error(fix_run(&w.f, &d)), MCS_NOT_SUPPORTED);
    w.f.engine->gpu_tasks = tasks;
    gw_fini(&w);
}
