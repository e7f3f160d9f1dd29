/* SPDX-License-Identifier: Apache-2.0 */
/* Published GPU memory, as the transports that serve peers see it: never an address, always a stage. */
#include "daemon/net.h"
#include "daemon/stage.h"
#include "gpu_world.h"

#define MiB (UINT64_C(1) << 20)

static struct gpu_world w;
static struct mcd_exports exports;
static struct mcd_export export_;
static struct mcd_visitor visitor;
static uint8_t *memory;
static struct mct_stage *moved; /* last */
static uint16_t moved_status;

static void done(struct mct_stage *s, uint16_t status)
{
    moved = s;
    moved_status = status;
}

static void start(bool memory_too)
{
    memset(&visitor, 0, sizeof(visitor));
    memset(&exports, 0, sizeof(exports));
    gw_init(&w, 64 << 10);
    cr_assert_eq(mcd_stages_create(MCD_STAGES_MIN, &w.f.engine->stages), 0);
    export_ = (struct mcd_export){.segment = w.f.segment, .incarnation = 5, .index = 7};
    exports.slots[7] = &export_;
    visitor.exports = &exports;
    memory = malloc(MCD_STAGES_MIN);
    moved = NULL;
    if (memory_too) {
        w.f.engine->stages->memory = memory;
        w.f.engine->stages->pinned = true;
    }
}

static void end(void)
{
    cr_assert_eq(w.f.engine->stages->half[MCD_STAGE_IN].used, 0u);
    gw_fini(&w);
    free(memory);
}

static struct mct_request request(enum mct_op op, uint64_t offset, uint64_t length)
{
    return (struct mct_request){.op = op,
                                .export_index = 7,
                                .incarnation = 5,
                                .address = w.target.extent.address + offset,
                                .length = length};
}

static struct mct_stage *stage(uint64_t length)
{
    struct mct_stage *s = mcd_serve_stage(w.f.engine, length);

    cr_assert_not_null(s);
    cr_assert_eq(s->length, length);
    s->done = done;
    return s;
}

Test(serve_stage, a_gpus_memory_has_no_pointer)
{
    struct mct_request r;
    void *p = &p;

    start(true);
    r = request(MCT_READ, 100, 64);
    cr_assert_eq(mcd_serve_resolve(w.f.engine, &visitor, &r, &p), MCS_OK);
    cr_assert_null(p);
    r.address = w.f.target.address + 5; /* of the same segment, and the host's */
    cr_assert_eq(mcd_serve_resolve(w.f.engine, &visitor, &r, &p), MCS_OK);
    cr_assert_eq(p, w.f.target.map + 5);
    r = request(MCT_WRITE, GW_SIZE - 63, 64);
    cr_assert_eq(mcd_serve_resolve(w.f.engine, &visitor, &r, &p), MCS_BAD_RANGE);
    end();
}

Test(serve_stage, mooncakes_processes_and_agents_without_stages_are_refused)
{
    struct mcd_stages *stages;
    struct mct_request r;
    void *p;

    start(true);
    stages = w.f.engine->stages;
    r = request(MCT_READ, 0, 64);
    w.f.engine->stages = NULL;
    cr_assert_eq(mcd_serve_resolve(w.f.engine, &visitor, &r, &p), MCS_NOT_SUPPORTED);
    w.f.engine->stages = stages;
    visitor.exports = NULL;
    mcd_engine_open_buffers(w.f.engine, w.f.segment->snapshot);
    cr_assert_eq(mcd_serve_resolve(w.f.engine, &visitor, &r, &p), MCS_NOT_SUPPORTED);
    cr_assert_eq(w.f.engine->counters.served_refused[MCS_NOT_SUPPORTED], 2u);
    mcd_engine_open_buffers(w.f.engine, NULL);
    end();
}

Test(serve_stage, bytes_go_both_ways)
{
    struct mct_request r;
    struct mct_stage *s;

    start(true);
    s = stage(3 * MiB);
    for (uint64_t i = 0; i < s->length; i++)
        s->memory[i] = (uint8_t)(i * 3);
    r = request(MCT_WRITE, 11, s->length);
    cr_assert_eq(mcd_serve_move(w.f.engine, &visitor, &r, s), MCS_OK);
    cr_assert_null(moved, "not from inside");
    gw_finish(MCS_OK);
    gw_turns(&w, 1);
    cr_assert(moved == s && moved_status == MCS_OK);
    cr_assert_arr_eq(w.target.bytes + 11, s->memory, s->length);
    memset(s->memory, 0, s->length);
    r = request(MCT_READ, 5, 2 * MiB);
    moved = NULL;
    cr_assert_eq(mcd_serve_move(w.f.engine, &visitor, &r, s), MCS_OK);
    gw_finish(MCS_OK);
    gw_turns(&w, 1);
    cr_assert(moved == s && moved_status == MCS_OK);
    cr_assert_arr_eq(s->memory, w.target.bytes + 5, 2 * MiB);
    mcd_serve_unstage(w.f.engine, s);
    cr_assert_eq(w.f.engine->counters.gpu_staged_in, 2u);
    cr_assert_eq(w.f.engine->counters.gpu_staged_in_bytes, 5 * MiB);
    end();
}

Test(serve_stage, what_went_away_between_is_not_moved)
{
    struct mcd_snapshot *old;
    struct mct_request r;
    struct mct_stage *s;

    start(true);
    s = stage(64);
    r = request(MCT_WRITE, 0, 64);
    cr_assert_eq(mcd_segment_cut(w.f.segment, &w.target.extent, 0, GW_SIZE, &old), 0);
    free(old);
    cr_assert_eq(mcd_serve_move(w.f.engine, &visitor, &r, s), MCS_BAD_RANGE);
    cr_assert_eq(gw.jobs, 0u);
    /* host memory at the same address: it was a GPU's when the request began */
    r.address = w.f.target.address;
    cr_assert_eq(mcd_serve_move(w.f.engine, &visitor, &r, s), MCS_REVOKED);
    cr_assert_eq(w.f.engine->counters.served_refused[MCS_REVOKED], 1u);
    mcd_serve_unstage(w.f.engine, s);
    cr_assert_eq(mcd_segment_add(w.f.segment, &w.target.extent, 0, GW_SIZE, GW_RW, &old), 0);
    free(old);
    end();
}

Test(serve_stage, a_revocation_waits_for_moves_into_the_range_alone)
{
    struct mcd_quiesce hit, beside;
    struct mcd_command quiet = {0};
    struct mct_request r;
    struct mct_stage *s;

    start(true);
    hit = (struct mcd_quiesce){.base = w.target.extent.map + 4096 - 1, .length = 1};
    beside = (struct mcd_quiesce){.base = w.target.extent.map + 4096 + 64, .length = MiB};
    s = stage(64 + 1);
    r = request(MCT_WRITE, 4096 - 1, 64 + 1);
    cr_assert_eq(mcd_serve_move(w.f.engine, &visitor, &r, s), MCS_OK);
    fix_call(w.f.engine, mcd_engine_quiesce, &beside);
    mcd_engine_call(w.f.engine, &quiet, mcd_engine_quiesce, &hit);
    gw_turns(&w, 2000);
    cr_assert_eq(mcs_load_acquire(&quiet.done), 0u);
    gw_finish(MCS_OK);
    for (int i = 0; i < 100000 && mcs_load_acquire(&quiet.done) == 0; i++)
        gw_turns(&w, 1);
    cr_assert_eq(mcs_load_acquire(&quiet.done), 1u);
    cr_assert_eq(moved, s);
    mcd_serve_unstage(w.f.engine, s);
    end();
}

Test(serve_stage, room_is_given_and_given_back)
{
    struct mct_stage *whole, *parts[20];

    start(false);
    cr_assert_null(mcd_serve_stage(w.f.engine, 1), "no memory yet");
    cr_assert_eq(w.f.engine->stages->wanted, 1u, "it is asked for");
    w.f.engine->stages->memory = memory;
    mcd_stages_feed(w.f.engine);
    whole = stage(MCT_STAGE_MAX);
    cr_assert_null(mcd_serve_stage(w.f.engine, 1));
    mcd_serve_unstage(w.f.engine, whole);
    for (unsigned i = 0; i < 16; i++) {
        parts[i] = stage(MiB);
        memset(parts[i]->memory, (int)i, MiB);
    }
    cr_assert_null(mcd_serve_stage(w.f.engine, 1));
    for (unsigned i = 0; i < 16; i++)
        cr_assert(parts[i]->memory[0] == i && parts[i]->memory[MiB - 1] == i, "none meets another");
    for (unsigned i = 0; i < 16; i += 2)
        mcd_serve_unstage(w.f.engine, parts[i]);
    cr_assert_null(mcd_serve_stage(w.f.engine, MiB + 1), "holes of 1 MiB are all there is");
    parts[0] = stage(MiB - 5);
    parts[2] = stage(1);
    parts[4] = stage(MiB - MCD_STAGE_UNIT); /* beside it */
    mcd_serve_unstage(w.f.engine, parts[0]);
    mcd_serve_unstage(w.f.engine, parts[2]);
    mcd_serve_unstage(w.f.engine, parts[4]);
    for (unsigned i = 1; i < 16; i += 2)
        mcd_serve_unstage(w.f.engine, parts[i]);
    mcd_serve_unstage(w.f.engine, stage(MCT_STAGE_MAX));
    end();
}

Test(serve_stage, an_engine_that_ends_tells_the_transports)
{
    struct mct_request r;
    struct mct_stage *s;

    start(true);
    s = stage(4096);
    r = request(MCT_READ, 0, 4096);
    cr_assert_eq(mcd_serve_move(w.f.engine, &visitor, &r, s), MCS_OK);
    gw.at_once = true;
    mcd_net_close(w.f.engine);
    cr_assert(moved == s && moved_status == MCS_AGENT_DOWN);
    cr_assert_eq(gw.nposted, 0u, "nothing writes there any more");
    r.op = MCT_WRITE;
    cr_assert_eq(mcd_serve_move(w.f.engine, &visitor, &r, s), MCS_AGENT_DOWN);
    mcd_serve_unstage(w.f.engine, s);
    end();
}
