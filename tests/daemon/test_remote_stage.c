/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory to and from another host, over transports that do not reach it: stages, copies, and every way to end. */
#include "far.h"
#include "gpu_world.h"
#include "daemon/stage.h"

#define KiB (UINT64_C(1) << 10)
#define MiB (UINT64_C(1) << 20)
#define SLICE (256 * KiB) /* of the route: far_init_with() */

struct stage_world {
    struct far x;
    struct mct_cuda_memory gpu;
    uint8_t *stages;
};

/* The control thread's part: the engine has asked, and gets what it wants. */
static void give(struct stage_world *w)
{
    struct mcd_stages *all = w->x.f.engine->stages;

    cr_assert_eq(all->wanted, 1u);
    all->memory = w->stages;
    all->pinned = true;
    mcd_stages_feed(w->x.f.engine);
}

/* size: of stages, half of which is for what this host asks of others. */
static void init(struct stage_world *w, unsigned rdma, unsigned tcp, uint64_t size)
{
    struct mcd_engine_options o = {.cuda = (struct mct_cuda *)&gw, .gpu_staging = size};

    far_init_with(&w->x, rdma, tcp, false, &o);
    for (unsigned i = 0; i < rdma + tcp; i++)
        far_adopt(&w->x, w->x.route, i);
    gw_memory(&w->gpu, 0, GW_ADDRESS, GW_LOCAL, 1);
    w->x.f.session->extents[MCD_HANDLE_INDEX(GW_LOCAL)] = &w->gpu.extent;
    w->stages = size == 0 ? NULL : malloc(size);
    gw.at_once = true;
}

static void fini(struct stage_world *w)
{
    struct mcd_engine *g = w->x.f.engine;

    gw.at_once = true;
    if (g->stages != NULL) {
        fix_call(g, mcd_route_detach, w->x.route);
        cr_assert_eq(g->stages->half[MCD_STAGE_OUT].used, 0u, "all stages are back");
        cr_assert_eq(gw.nposted, 0u);
        fix_call(g, mcd_route_attach, w->x.route);
        w->x.route->detached = false;
    }
    far_fini(&w->x);
    munmap(w->gpu.extent.map, GW_SIZE);
    free(w->gpu.bytes);
    free(w->stages);
}

static struct mcs_desc desc(struct stage_world *w, uint8_t op, uint32_t slot, uint64_t local,
                            uint64_t remote, uint64_t length)
{
    struct mcs_desc d = far_desc(&w->x, op, slot, local, remote, length);

    d.extent = GW_LOCAL;
    d.flags = MCS_DESC_SYNCED;
    return d;
}

/* The first task of all brings the memory. */
static void warm(struct stage_world *w)
{
    struct mcs_desc d = desc(w, MCS_OP_WRITE, 60, 0, 0, 1);
    bool at_once = gw.at_once;

    gw.at_once = true;
    fix_push(&w->x.f, &d);
    for (int i = 0; i < 100000 && w->x.f.engine->stages->wanted == 0; i++)
        far_turns(&w->x, 1);
    give(w);
    far_completes(&w->x, &d, 1);
    gw.at_once = at_once;
}

/* Turns until so many copies are out, or more. */
static void until_copied(struct stage_world *w, unsigned n)
{
    for (int i = 0; i < 1000000 && gw.nposted < n; i++)
        far_turns(&w->x, 1);
    cr_assert_geq(gw.nposted, n);
}

static const struct mcd_counters *counters(const struct stage_world *w)
{
    return &w->x.f.engine->counters;
}

Test(remote_stage, write_and_read)
{
    static const uint64_t sizes[] = {1, 4097, SLICE, 3 * MiB - 5};
    struct stage_world w;
    struct mcs_desc d;

    init(&w, 0, 1, 4 * MiB);
    warm(&w);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t n = sizes[i];

        memset(fake.memory, 0, FAKE_SIZE);
        d = desc(&w, MCS_OP_WRITE, 0, 100, 4096, n);
        fix_push(&w.x.f, &d);
        far_completes(&w.x, &d, n);
        cr_assert_arr_eq(fake.memory + 4096, w.gpu.bytes + 100, n);
        cr_assert_eq(fake.memory[4095] | fake.memory[4096 + n], 0, "and nothing beside");
        far_fill(fake.memory, FAKE_SIZE, i + 9);
        w.gpu.bytes[7 + n] = w.gpu.bytes[6] = 0xab;
        d = desc(&w, MCS_OP_READ, 1, 7, 31, n);
        fix_push(&w.x.f, &d);
        far_completes(&w.x, &d, n);
        cr_assert_arr_eq(w.gpu.bytes + 7, fake.memory + 31, n);
        cr_assert(w.gpu.bytes[7 + n] == 0xab && w.gpu.bytes[6] == 0xab, "and nothing beside");
    }
    cr_assert_eq(counters(&w)->gpu_staged_out, gw.jobs);
    cr_assert_eq(counters(&w)->gpu_staged_out_bytes, counters(&w)->bytes);
    cr_assert(w.x.route->staged, "it was said");
    fini(&w);
}

Test(remote_stage, scattered_pieces)
{
    enum { N = 300 };
    struct mcs_piece pieces[N];
    struct stage_world w;
    struct mcs_desc d;
    uint64_t total = 0;

    init(&w, 0, 2, 4 * MiB);
    warm(&w);
    for (unsigned i = 0; i < N; i++) {
        pieces[i] = (struct mcs_piece){(uint64_t)(N - i) * 12000, (uint64_t)i * 9000, 1 + i * 29};
        total += pieces[i].length;
    }
    far_args(&w.x, pieces, N, "", "");
    d = desc(&w, MCS_OP_WRITE, 0, 0, 0, total);
    d.shape = MCS_SHAPE_LIST;
    d.args = 0;
    fix_push(&w.x.f, &d);
    far_completes(&w.x, &d, total);
    for (unsigned i = 0; i < N; i++)
        cr_assert_arr_eq(fake.memory + pieces[i].remote, w.gpu.bytes + pieces[i].local,
                         pieces[i].length);
    fini(&w);
}

Test(remote_stage, it_says_what_it_comes_after)
{
    struct stage_world w;
    struct mcs_desc d;

    init(&w, 0, 1, MiB);
    d = desc(&w, MCS_OP_WRITE, 0, 0, 0, 4096);
    d.flags = 0;
    fix_push(&w.x.f, &d);
    far_ends(&w.x, &d, MCS_STATE_INVALID, MCS_GPU_ORDER);
    cr_assert_eq(gw.jobs, 0u);
    fini(&w);
}

Test(remote_stage, strict_is_refused_and_so_is_all_where_there_are_no_stages)
{
    static const uint8_t ops[] = {MCS_OP_WRITE, MCS_OP_READ};
    struct stage_world w;
    struct mcs_desc d;

    for (unsigned i = 0; i < 2; i++) {
        init(&w, 0, 1, MiB);
        d = desc(&w, ops[i], 0, 0, 0, 4096);
        d.flags |= MCS_DESC_STRICT;
        fix_push(&w.x.f, &d);
        far_ends(&w.x, &d, MCS_STATE_FAILED, MCS_STRICT);
        fini(&w);
        init(&w, 0, 1, 0);
        d = desc(&w, ops[i], 0, 0, 0, 4096);
        fix_push(&w.x.f, &d);
        far_ends(&w.x, &d, MCS_STATE_FAILED, MCS_NOT_SUPPORTED);
        cr_assert_eq(gw.jobs, 0u);
        fini(&w);
    }
}

Test(remote_stage, a_full_pool_holds_up_no_others)
{
    struct stage_world w;
    struct mcs_desc d[6], host;

    init(&w, 0, 1, 1 * MiB);
    warm(&w);
    gw.at_once = false;
    for (unsigned i = 0; i < 6; i++) {
        d[i] = desc(&w, i % 2 == 0 ? MCS_OP_WRITE : MCS_OP_READ, i, i * 512 * KiB, i * 512 * KiB,
                    512 * KiB);
        fix_push(&w.x.f, &d[i]);
    }
    far_turns(&w.x, 3000);
    cr_assert_eq(gw.bytes, 512 * KiB, "as much as there is room for");
    far_fill(w.x.f.local.map, 4096, 5);
    host = far_desc(&w.x, MCS_OP_WRITE, 10, 0, 3 * MiB + 512 * KiB, 4096);
    fix_push(&w.x.f, &host);
    far_completes(&w.x, &host, 4096);
    gw.at_once = true;
    for (unsigned i = 0; i < 6; i++) {
        far_completes(&w.x, &d[i], 512 * KiB);
        cr_assert_arr_eq(fake.memory + i * 512 * KiB, w.gpu.bytes + i * 512 * KiB, 512 * KiB);
    }
    cr_assert_leq(gw.most_bytes, 512 * KiB);
    fini(&w);
}

Test(remote_stage, some_are_copied_while_others_are_on_the_wire)
{
    struct stage_world w;
    struct mcs_desc d;
    bool both = false;

    init(&w, 0, 1, 4 * MiB);
    warm(&w);
    far_link(&w.x, 0)->rate = 1; /* 256 us a slice: much longer than a turn */
    d = desc(&w, MCS_OP_WRITE, 0, 0, 0, 3 * MiB);
    fix_push(&w.x.f, &d);
    gw.at_once = false;
    while (!far_ended(&w.x, &d)) {
        far_turns(&w.x, 1);
        both = both || (gw.nposted != 0 && fake.slices != 0);
        gw_finish(MCS_OK);
    }
    far_completes(&w.x, &d, 3 * MiB);
    cr_assert(both);
    fini(&w);
}

Test(remote_stage, memory_that_comes_late_is_waited_for)
{
    struct stage_world w;
    struct mcs_desc d, late;

    init(&w, 0, 1, 4 * MiB);
    late = desc(&w, MCS_OP_WRITE, 1, 0, 0, 64);
    late.deadline_us = 20000;
    fix_push(&w.x.f, &late);
    far_ends(&w.x, &late, MCS_STATE_TIMEOUT, MCS_TIMEOUT);
    d = desc(&w, MCS_OP_READ, 0, 0, 0, 2 * MiB);
    far_fill(fake.memory, 2 * MiB, 1);
    fix_push(&w.x.f, &d);
    far_turns(&w.x, 1000);
    cr_assert_not(far_ended(&w.x, &d));
    cr_assert_eq(fake.slices, 0u);
    give(&w);
    far_completes(&w.x, &d, 2 * MiB);
    cr_assert_arr_eq(w.gpu.bytes, fake.memory, 2 * MiB);
    fini(&w);
}

Test(remote_stage, a_copy_that_fails_ends_its_task)
{
    static const uint8_t ops[] = {MCS_OP_WRITE, MCS_OP_READ};
    struct stage_world w;
    struct mcs_desc d;

    init(&w, 0, 1, 4 * MiB);
    warm(&w);
    gw.at_once = false;
    for (unsigned i = 0; i < 2; i++) {
        d = desc(&w, ops[i], i, 0, 0, 2 * MiB);
        fix_push(&w.x.f, &d);
        until_copied(&w, 4);
        gw_finish(MCS_GPU_LOST);
        far_turns(&w.x, 100);
        cr_assert_not(far_ended(&w.x, &d), "others of it are out");
        while (!far_ended(&w.x, &d)) {
            gw_finish(MCS_GPU_LOST);
            far_turns(&w.x, 1);
        }
        far_ends(&w.x, &d, MCS_STATE_FAILED, MCS_GPU_LOST);
    }
    fini(&w);
}

Test(remote_stage, cancel_waits_for_copies_and_begins_none)
{
    static const uint8_t ops[] = {MCS_OP_WRITE, MCS_OP_READ};
    struct stage_world w;
    struct mcs_desc d;
    uint64_t jobs;

    init(&w, 0, 1, 4 * MiB);
    warm(&w);
    gw.at_once = false;
    for (unsigned i = 0; i < 2; i++) {
        d = desc(&w, ops[i], i, 0, 0, MiB);
        fix_push(&w.x.f, &d);
        until_copied(&w, 2);
        jobs = gw.jobs;
        mcd_task_cancel(w.x.f.engine, &w.x.f.queue, d.slot);
        far_turns(&w.x, 30000); /* beyond the time that answers are let in for */
        cr_assert_not(far_ended(&w.x, &d), "the GPU's memory is not quiet");
        while (gw_finish(MCS_OK))
            ;
        far_ends(&w.x, &d, MCS_STATE_CANCELED, MCS_CANCELED);
        cr_assert_leq(gw.jobs - jobs, 2u, "those that were on their way");
    }
    fini(&w);
}

Test(remote_stage, a_read_that_is_canceled_on_the_wire_is_not_landed)
{
    struct stage_world w;
    struct mcs_desc d;

    init(&w, 0, 1, 4 * MiB);
    warm(&w);
    far_link(&w.x, 0)->latency = 5000000;
    memset(w.gpu.bytes, 0x11, MiB);
    memset(fake.memory, 0x22, MiB);
    d = desc(&w, MCS_OP_READ, 0, 0, 0, MiB);
    fix_push(&w.x.f, &d);
    far_until_out(&w.x, 1);
    mcd_task_cancel(w.x.f.engine, &w.x.f.queue, d.slot);
    far_ends(&w.x, &d, MCS_STATE_CANCELED, MCS_CANCELED);
    for (unsigned i = 0; i < MiB; i++)
        cr_assert_eq(w.gpu.bytes[i], 0x11, "byte %u", i);
    fini(&w);
}

Test(remote_stage, memory_that_goes_away_meanwhile)
{
    static const uint8_t ops[] = {MCS_OP_WRITE, MCS_OP_READ};
    struct mcd_quiesce all;
    struct mcd_command quiet = {0};
    struct stage_world w;
    struct mcs_desc d;

    init(&w, 0, 1, 4 * MiB);
    warm(&w);
    all = (struct mcd_quiesce){.base = w.gpu.extent.map, .length = GW_SIZE};
    for (unsigned i = 0; i < 2; i++) {
        gw.at_once = false;
        d = desc(&w, ops[i], i, 0, 0, 3 * MiB);
        fix_push(&w.x.f, &d);
        until_copied(&w, 3);
        w.x.f.session->extents[MCD_HANDLE_INDEX(GW_LOCAL)] = NULL;
        mcd_engine_call(w.x.f.engine, &quiet, mcd_engine_quiesce, &all);
        far_turns(&w.x, 1000);
        cr_assert_eq(mcs_load_acquire(&quiet.done), 0u, "copies of it are out");
        gw.at_once = true;
        for (unsigned k = 0; k < 100000 && mcs_load_acquire(&quiet.done) == 0; k++)
            far_turns(&w.x, 1);
        cr_assert_eq(mcs_load_acquire(&quiet.done), 1u);
        cr_assert_eq(gw.nposted, 0u);
        gw.at_once = false;
        far_ends(&w.x, &d, MCS_STATE_FAILED, MCS_REVOKED);
        cr_assert_eq(gw.nposted, 0u, "and none after it");
        w.x.f.session->extents[MCD_HANDLE_INDEX(GW_LOCAL)] = &w.gpu.extent;
    }
    fini(&w);
}

Test(remote_stage, a_lost_connection_costs_no_second_copy)
{
    struct stage_world w;
    struct mcs_desc d;
    uint64_t conn;

    init(&w, 0, 2, 4 * MiB);
    warm(&w);
    far_link(&w.x, 0)->latency = far_link(&w.x, 1)->latency = 3000000;
    d = desc(&w, MCS_OP_WRITE, 0, 0, 0, 2 * MiB);
    fix_push(&w.x.f, &d);
    far_until_out(&w.x, 8);
    conn = far_link(&w.x, 0)->conns[0];
    fake_lose(far_link(&w.x, 0), conn, -ECONNRESET);
    far_completes(&w.x, &d, 2 * MiB);
    cr_assert_arr_eq(fake.memory, w.gpu.bytes, 2 * MiB);
    cr_assert_eq(counters(&w)->moved_over != 0, 1);
    cr_assert_eq(counters(&w)->gpu_staged_out_bytes, 2 * MiB + 1, "once, and what warm() sent");
    cr_assert_eq(gw.jobs, counters(&w)->gpu_staged_out);
    fini(&w);
}

Test(remote_stage, a_better_transport_without_keys_is_tried_first)
{
    struct stage_world w;
    struct mcs_desc d;

    init(&w, 1, 1, 4 * MiB);
    far_link(&w.x, 0)->refuse = 100;
    far_link(&w.x, 0)->refuse_with = MCS_NOT_REGISTERED;
    warm(&w);
    d = desc(&w, MCS_OP_WRITE, 0, 0, 0, MiB);
    fix_push(&w.x.f, &d);
    far_completes(&w.x, &d, MiB);
    cr_assert_arr_eq(fake.memory, w.gpu.bytes, MiB);
    cr_assert_eq(w.x.route->rails[0].bytes, 0u);
    d = desc(&w, MCS_OP_READ, 0, 0, 0, MiB);
    d.flags |= MCS_DESC_STRICT;
    fix_push(&w.x.f, &d);
    far_ends(&w.x, &d, MCS_STATE_FAILED, MCS_NOT_REGISTERED);
    fini(&w);
}

Test(remote_stage, strict_refuses_what_the_peer_would_stage)
{
    struct stage_world w;
    struct mcs_desc d;

    init(&w, 0, 1, MiB);
    w.x.segment->snapshot->buffers[0].gpu = true;
    d = far_desc(&w.x, MCS_OP_WRITE, 0, 0, 0, 4096);
    d.flags |= MCS_DESC_STRICT;
    fix_push(&w.x.f, &d);
    far_ends(&w.x, &d, MCS_STATE_FAILED, MCS_STRICT);
    cr_assert_eq(far_link(&w.x, 0)->posted, 0u);
    d = far_desc(&w.x, MCS_OP_WRITE, 0, 0, 0, 4096);
    fix_push(&w.x.f, &d);
    far_completes(&w.x, &d, 4096);
    cr_assert_eq(gw.jobs, 0u, "host memory here");
    fini(&w);
}
