/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole way of GPU memory in one process, over the double of the driver, so that TSan sees all sides: an engine in its own
 * thread, the copiers of two devices, a client, a "stream" that writes gates, a "control thread" that takes memory away.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/gpu_job.h"
#include "daemon/route.h"
#include "fixture.h"
#include "tests/transports/cuda_rig.h"

#define ROUNDS 300u
#define SIZE (FIX_EXTENT_SIZE / 4)
#define LOCAL 0x80001004u /* handle of GPU memory of the client, entry 4 */
#define ADDRESS UINT64_C(0x210000000000)
#define GPU_SIZE (2 * MIB)
#define WORDS (FIX_EXTENT_SIZE / 2 / 4) /* index of the first gate in the local extent */

struct world {
    struct rig r;
    struct fixture f;
    struct mct_cuda_call memory[2];
    struct mcd_extent local, target; /* device 0, the client's; device 1, published */
    pthread_t engine;
};

static void *engine_thread(void *arg)
{
    mcd_engine_run(arg);
    return NULL;
}

static void gpu_extent(struct mcd_extent *e, const struct mct_cuda_call *made, uint64_t address,
                       uint32_t handle)
{
    memset(e, 0, sizeof(*e));
    e->map = (uint8_t *)(uintptr_t)made->address;
    e->size = GPU_SIZE;
    e->address = address;
    e->handle = handle;
    e->gpu = made->memory;
    e->gpu_device = (int16_t)mct_cuda_memory_device(made->memory);
}

static void begin(struct world *w)
{
    struct mcd_engine_options o = {0};
    struct mcd_snapshot *old;

    memset(w, 0, sizeof(*w));
    rig_create(&w->r, 2, 0);
    cr_assert_eq(rig_open(&w->r), MCS_OK);
    for (unsigned i = 0; i < 2; i++)
        w->memory[i] = rig_make(&w->r, i, GPU_SIZE);
    o.cuda = w->r.cuda;
    fix_init_nets(&w->f, MCS_ACCESS_READ | MCS_ACCESS_WRITE, 64 << 10, &o);
    gpu_extent(&w->local, &w->memory[0], ADDRESS, LOCAL);
    gpu_extent(&w->target, &w->memory[1], ADDRESS + GPU_SIZE, 0);
    w->f.session->extents[MCD_HANDLE_INDEX(LOCAL)] = &w->local;
    cr_assert_eq(mcd_segment_add(w->f.segment, &w->target, 0, GPU_SIZE,
                                 MCS_ACCESS_READ | MCS_ACCESS_WRITE, &old),
                 0);
    free(old);
    rig_pin(&w->r, w->f.local.map, FIX_EXTENT_SIZE, true);
    rig_pin(&w->r, w->f.target.map, FIX_EXTENT_SIZE, true);
    w->f.local.pinned = w->f.target.pinned = 2;
    cr_assert_eq(pthread_create(&w->engine, NULL, engine_thread, w->f.engine), 0);
}

static void end(struct world *w)
{
    struct mcd_snapshot *old;

    mcd_engine_stop(w->f.engine);
    cr_assert_eq(pthread_join(w->engine, NULL), 0);
    cr_assert_eq(mcd_segment_cut(w->f.segment, &w->target, 0, GPU_SIZE, &old), 0);
    free(old);
    rig_pin(&w->r, w->f.local.map, FIX_EXTENT_SIZE, false);
    rig_pin(&w->r, w->f.target.map, FIX_EXTENT_SIZE, false);
    fix_fini(&w->f);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(rig_free(&w->r, w->memory[i].memory), MCS_OK);
    rig_destroy(&w->r);
}

static uint32_t *gate(struct world *w, unsigned i)
{
    return (uint32_t *)(void *)w->f.local.map + WORDS + i * 16;
}

/* A task of slot i that waits for gate i to have `value`, and sets the next one to it; in pieces of 4 KiB. */
static struct mcs_desc task(struct world *w, uint32_t i, uint8_t op, uint32_t extent,
                            uint64_t remote, uint32_t value)
{
    struct mcs_desc d = fix_desc(&w->f, op, 0);
    struct mcs_args *a = (struct mcs_args *)(w->f.client.args + i * 128);
    struct mcs_gate *gates = (struct mcs_gate *)(a + 1);

    *a = (struct mcs_args){.total = 96,
                           .count = SIZE / 4096,
                           .block = 4096,
                           .local_stride = 4096,
                           .remote_stride = 8192,
                           .gates = 64};
    for (unsigned k = 0; k < 2; k++)
        gates[k] =
            (struct mcs_gate){.extent = FIX_EXTENT,
                              .value = value,
                              .offset = (uint64_t)((uint8_t *)gate(w, i + k) - w->f.local.map)};
    d.shape = MCS_SHAPE_STRIDE;
    d.flags = MCS_DESC_WAIT | MCS_DESC_SIGNAL;
    d.slot = d.batch = i;
    d.args = i * 2;
    d.extent = extent;
    d.remote_addr = remote;
    return d;
}

static void push(struct world *w, const struct mcs_desc *d, unsigned n)
{
    cr_assert(mcs_ring_push(w->f.client.ring, d, n));
    if (mcs_queue_must_wake(&w->f.client))
        mcd_engine_wake(w->f.engine);
}

static unsigned await(struct world *w, const struct mcs_desc *d)
{
    for (;;) {
        uint64_t word = mcs_slot_peek(&w->f.client, d->slot);

        if (word >> 32 == d->generation && (word & 0x7f) > MCS_STATE_PENDING)
            return word & 0x7f;
        sched_yield();
    }
}

/*
 * Three tasks at once that nothing but gates puts in order: host memory to GPU 1, from there to GPU 0, from there to host
 * memory.  The first begins when a "stream" says so, long after it was submitted.
 */
Test(gpu_threads, gates_alone_keep_a_chain_of_copies_in_order, .timeout = 300)
{
    struct world w;

    begin(&w);
    for (uint32_t r = 1; r <= ROUNDS; r++) {
        struct mcs_desc d[3] = {
            task(&w, 0, MCS_OP_WRITE, FIX_EXTENT, w.target.address, r),
            task(&w, 1, MCS_OP_READ, LOCAL, w.target.address, r),
            task(&w, 2, MCS_OP_WRITE, LOCAL, w.f.target.address, r),
        };

        push(&w, d, 3);
        if (r % 8 == 0) /* the engine has gone to sleep, and naps */
            for (uint64_t t = mcs_ticks(); (mcs_ticks() - t) / w.f.engine->ticks_per_us < 300;)
                sched_yield();
        memset(w.f.local.map, (int)r, SIZE);
        cr_assert_eq(mcs_slot_peek(&w.f.client, 0) >> 32 == d[0].generation, 0);
        mcs_store_release(gate(&w, 0), r); /* partner: mcd_gate_look() */
        for (unsigned i = 0; i < 3; i++)
            cr_assert_eq(await(&w, &d[i]), MCS_STATE_COMPLETED, "round %u, task %u", r, i);
        cr_assert_eq(mcs_load_acquire(gate(&w, 3)), r); /* partner: mcd_gate_signal() */
        for (uint32_t i = 0; i < SIZE / 4096; i++) {
            cr_assert_eq(w.f.target.map[i * 8192], (uint8_t)r, "round %u, piece %u", r, i);
            cr_assert_eq(w.f.target.map[i * 8192 + 4095], (uint8_t)r, "round %u, piece %u", r, i);
        }
    }
    cr_assert_eq(w.f.engine->counters.gpu_tasks, (uint64_t)ROUNDS * 3);
    end(&w);
}

/* Memory that was taken away while copies into it were on their way is never written again. */
Test(gpu_threads, what_is_taken_away_is_not_written_again, .timeout = 300)
{
    struct world w;
    unsigned revoked = 0;

    begin(&w);
    for (uint32_t r = 1; r <= ROUNDS; r++) {
        struct mcd_quiesce range = {.base = w.f.target.map, .length = FIX_EXTENT_SIZE};
        struct mcd_snapshot *old, *none;
        struct mcd_grace grace;
        struct mcd_command c;
        struct mcs_desc d = task(&w, 0, MCS_OP_WRITE, LOCAL, w.f.target.address, r);

        mcs_store_release(gate(&w, 0), r); /* partner: mcd_gate_look() */
        push(&w, &d, 1);
        for (unsigned i = 0; i < r % 5; i++)
            sched_yield();
        cr_assert_eq(mcd_segment_cut(w.f.segment, &w.f.target, 0, FIX_EXTENT_SIZE, &old), 0);
        mcd_grace_begin(&grace, &w.f.engine, 1);
        while (!mcd_grace_over(&grace))
            sched_yield();
        free(old);
        mcd_engine_call(w.f.engine, &c, mcd_engine_quiesce, &range);
        while (mcs_load_acquire(&c.done) == 0) /* partner: run_calls() */
            sched_yield();
        /* it is the owner's: a copy that is late would show, here or to TSan */
        memset(w.f.target.map, 0xa5, FIX_EXTENT_SIZE);
        revoked += await(&w, &d) != MCS_STATE_COMPLETED;
        for (uint32_t i = 0; i < FIX_EXTENT_SIZE; i += 4096)
            cr_assert_eq(w.f.target.map[i], 0xa5, "round %u", r);
        cr_assert_eq(mcd_segment_add(w.f.segment, &w.f.target, 0, FIX_EXTENT_SIZE,
                                     MCS_ACCESS_READ | MCS_ACCESS_WRITE, &none),
                     0);
        mcd_grace_begin(&grace, &w.f.engine, 1);
        while (!mcd_grace_over(&grace))
            sched_yield();
        free(none);
    }
    cr_log_info("%u of %u came too late", revoked, ROUNDS);
    end(&w);
}

/* An engine that ends with copies out waits for them: what they use is freed only then. */
Test(gpu_threads, an_engine_ends_with_copies_out, .timeout = 300)
{
    struct world w;
    struct mcs_desc d;

    begin(&w);
    fake_cuda_arm(fake, 0, "run:copy", FAKE_SLEEP, 50, 0, 1); /* ms */
    d = fix_desc(&w.f, MCS_OP_WRITE, SIZE);
    d.extent = LOCAL;
    d.flags = MCS_DESC_SYNCED;
    push(&w, &d, 1);
    while (mcs_slot_peek(&w.f.client, 0) >> 32 != d.generation)
        sched_yield();
    mcd_engine_stop(w.f.engine);
    cr_assert_eq(pthread_join(w.engine, NULL), 0);
    cr_assert_eq(w.f.engine->gpu_jobs->n, 0u);
    fake_cuda_disarm(fake);
    cr_assert_eq(w.f.queue.tasks[0].jobs, 1u, "no task is told anything any more");
    w.f.queue.tasks[0].jobs = 0;
    /* the rest as ever, with another life of the engine's loop */
    mcs_store_release(&w.f.engine->stop, 0u); /* partner: mcd_engine_run() */
    cr_assert_eq(pthread_create(&w.engine, NULL, engine_thread, w.f.engine), 0);
    end(&w);
}
