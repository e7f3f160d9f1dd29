/* SPDX-License-Identifier: Apache-2.0 */
/* Copies by a device's copier: every way, lists, many at once, waiting and waking, and what a failure touches. */
#include "cuda_rig.h"

#define SIZE (8 * MIB)

/* Two devices with memory each, pinned host memory, a port. */
struct world {
    struct rig r;
    struct rig_port p;
    struct mct_cuda_call memory[2];
    uint8_t *host, *want;
};

static void begin(struct world *w, unsigned streams, unsigned stuck_ms)
{
    rig_create(&w->r, streams, stuck_ms);
    cr_assert_eq(rig_open(&w->r), MCS_OK);
    for (unsigned i = 0; i < 2; i++)
        w->memory[i] = rig_make(&w->r, i, SIZE);
    w->host = aligned_alloc(4096, SIZE);
    w->want = malloc(SIZE);
    cr_assert(w->host != NULL && w->want != NULL);
    rig_pin(&w->r, w->host, SIZE, true);
    rig_port_open(&w->r, &w->p);
}

static void end(struct world *w)
{
    rig_port_close(&w->p);
    rig_pin(&w->r, w->host, SIZE, false);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(rig_free(&w->r, w->memory[i].memory), MCS_OK);
    rig_destroy(&w->r);
    free(w->host);
    free(w->want);
}

/* Until the condition holds. */
#define UNTIL(w, condition)                                                                        \
    do {                                                                                           \
        for (int tries_ = 0; !(condition); tries_++) {                                             \
            cr_assert_lt(tries_, FOREVER_MS / 5, "never: %s", #condition);                         \
            if (!mct_cuda_poll((w)->r.cuda))                                                       \
                (void)rig_wait((w)->r.control_fd, 5);                                              \
        }                                                                                          \
    } while (0)

Test(cuda_copies, every_way_between_host_and_devices_carries_the_bytes)
{
    struct world w;
    uint8_t *own = malloc(SIZE);
    uint64_t a, b, copies, bytes, unpinned;
    const struct mct_cuda_stats *s;

    begin(&w, 3, 0);
    s = mct_cuda_stats(w.r.cuda);
    a = w.memory[0].address;
    b = w.memory[1].address;
    rig_pattern(w.want, SIZE, 1);
    copies = mcs_load_relaxed(&s->copies);
    bytes = mcs_load_relaxed(&s->bytes);
    unpinned = mcs_load_relaxed(&s->unpinned);
    memcpy(w.host, w.want, SIZE);
    cr_assert_eq(rig_copy(&w.p, 0, a, MCT_CUDA_HOST, (uintptr_t)w.host, SIZE, true), MCS_OK);
    cr_assert_eq(rig_copy(&w.p, 0, a + SIZE / 2, 0, a, SIZE / 2, false), MCS_OK, "in one device");
    cr_assert_eq(rig_copy(&w.p, 1, b, 0, a, SIZE, false), MCS_OK, "to the other device");
    memset(w.host, 0, SIZE);
    cr_assert_eq(rig_copy(&w.p, MCT_CUDA_HOST, (uintptr_t)w.host, 1, b, SIZE, true), MCS_OK);
    cr_assert_eq(memcmp(w.host, w.want, SIZE / 2), 0);
    cr_assert_eq(memcmp(w.host + SIZE / 2, w.want, SIZE / 2), 0);
    cr_assert_eq(mcs_load_relaxed(&s->copies), copies + 4);
    cr_assert_eq(mcs_load_relaxed(&s->bytes), bytes + 3 * SIZE + SIZE / 2);
    cr_assert_eq(mcs_load_relaxed(&s->unpinned), unpinned);
    /* as the driver has it by itself, for host memory it does not know */
    rig_pattern(own, SIZE, 2);
    cr_assert_eq(rig_copy(&w.p, 1, b, MCT_CUDA_HOST, (uintptr_t)own, SIZE, false), MCS_OK);
    memset(own, 0, SIZE);
    cr_assert_eq(rig_copy(&w.p, MCT_CUDA_HOST, (uintptr_t)own, 1, b, SIZE, false), MCS_OK);
    rig_pattern(w.want, SIZE, 2);
    cr_assert_eq(memcmp(own, w.want, SIZE), 0);
    cr_assert_eq(mcs_load_relaxed(&s->unpinned), unpinned + 2);
    cr_assert_eq(mcs_load_relaxed(&s->peer_staged), 0);
    cr_assert_eq(mcs_load_relaxed(&s->contexts), 2);
    end(&w);
    free(own);
}

Test(cuda_copies, strict_is_refused_where_the_driver_would_stage_and_nothing_is_moved)
{
    struct mct_cuda_piece piece;
    struct mct_cuda_job j;
    struct world w;
    uint8_t own[4096], back[4096];

    begin(&w, 2, 0);
    memset(own, 0x77, sizeof(own));
    piece = (struct mct_cuda_piece){
        .to = w.memory[0].address, .from = (uintptr_t)own, .length = sizeof(own)};
    j = (struct mct_cuda_job){
        .to_device = 0, .from_device = MCT_CUDA_HOST, .strict = true, .n = 1, .pieces = &piece};
    rig_post(&w.p, &j);
    cr_assert_eq(rig_take(&w.p), &j);
    cr_assert_eq(j.status, MCS_STRICT);
    rig_read(&w.p, 0, back, w.memory[0].address, sizeof(back));
    for (unsigned i = 0; i < sizeof(back); i++)
        cr_assert_eq(back[i], 0);
    j.strict = false;
    rig_post(&w.p, &j);
    cr_assert_eq(rig_take(&w.p), &j);
    cr_assert_eq(j.status, MCS_OK);
    cr_assert(j.staged, "it does not say that the driver staged it");
    end(&w);
}

Test(cuda_copies, what_lies_nowhere_comes_back_at_once)
{
    struct mct_cuda_piece piece = {.to = 1, .from = 2, .length = 3};
    struct mct_cuda_job jobs[] = {
        {.to_device = 7, .from_device = MCT_CUDA_HOST, .n = 1, .pieces = &piece},
        {.to_device = 0, .from_device = 2, .n = 1, .pieces = &piece},
        {.to_device = MCT_CUDA_HOST, .from_device = MCT_CUDA_HOST, .n = 1, .pieces = &piece},
        {.to_device = 0, .from_device = MCT_CUDA_HOST, .n = 1, .pieces = &piece}, /* not in use */
        {.to_device = 0, .from_device = MCT_CUDA_HOST, .n = 0, .pieces = &piece},
    };
    struct rig_port p;
    struct rig r;

    rig_create(&r, 2, 0);
    cr_assert_eq(rig_open(&r), MCS_OK);
    rig_port_open(&r, &p);
    for (unsigned i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        mct_cuda_post(p.port, &jobs[i]);
        cr_assert_not(mct_cuda_port_arm(p.port), "it would sleep over a job that is back");
        cr_assert_eq(mct_cuda_port_take(p.port), &jobs[i]);
        cr_assert_eq(jobs[i].status, MCS_NO_GPU, "%u", i);
    }
    rig_port_close(&p);
    rig_destroy(&r);
}

/* Pieces of all sizes, in any order, none of them beside the next. */
static uint32_t scatter(struct mct_cuda_piece *pieces, uint32_t most, uint64_t to, uint64_t from,
                        uint64_t size)
{
    uint64_t at = 0, length;
    uint32_t n = 0, k;

    while (n < most) {
        length = 1 + (n * 2654435761u) % 3000;
        if (at + length > size)
            break;
        pieces[n++] = (struct mct_cuda_piece){to + at, from + at, length};
        at += length + n % 2;
    }
    for (uint32_t i = n; i > 1; i--) {
        struct mct_cuda_piece swap = pieces[i - 1];

        k = (i * 40503u) % i;
        pieces[i - 1] = pieces[k];
        pieces[k] = swap;
    }
    return n;
}

/* The bytes of the pieces as they should be, zeros between them. */
static void expect(const struct mct_cuda_piece *pieces, uint32_t n, uint64_t to,
                   const uint8_t *source, uint8_t *out)
{
    memset(out, 0, SIZE);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + (pieces[i].to - to), source + (pieces[i].to - to), pieces[i].length);
}

static void list_both_ways(const char *what, bool batched)
{
    static struct mct_cuda_piece in[6000], out[6000];
    struct world w;
    struct mct_cuda_job j;
    uint64_t at, batches;
    uint8_t *zeros = calloc(1, SIZE), *source = malloc(SIZE);
    uint32_t n;

    begin(&w, 3, 0);
    at = w.memory[0].address;
    batches = mcs_load_relaxed(&mct_cuda_stats(w.r.cuda)->batches);
    rig_pattern(source, SIZE, 3);
    memcpy(w.host, source, SIZE);
    n = scatter(in, 5000, at, (uintptr_t)w.host, SIZE);
    cr_assert_gt(n, 4000);
    j = (struct mct_cuda_job){
        .to_device = 0, .from_device = MCT_CUDA_HOST, .pinned = true, .n = n, .pieces = in};
    rig_post(&w.p, &j);
    cr_assert_eq(rig_take(&w.p), &j);
    cr_assert_eq(j.status, MCS_OK, "%s", what);
    cr_assert_not(j.staged);
    expect(in, n, at, source, w.want);
    memset(w.host, 0x11, SIZE);
    cr_assert_eq(rig_copy(&w.p, MCT_CUDA_HOST, (uintptr_t)w.host, 0, at, SIZE, true), MCS_OK);
    cr_assert_eq(memcmp(w.host, w.want, SIZE), 0, "%s: in", what);
    /* and back, by another list */
    memset(w.host, 0, SIZE);
    n = scatter(out, 6000, (uintptr_t)w.host, at, SIZE);
    j = (struct mct_cuda_job){
        .to_device = MCT_CUDA_HOST, .from_device = 0, .pinned = true, .n = n, .pieces = out};
    rig_post(&w.p, &j);
    cr_assert_eq(rig_take(&w.p), &j);
    cr_assert_eq(j.status, MCS_OK, "%s", what);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t o = out[i].from - at;

        cr_assert_eq(memcmp(w.host + o, w.want + o, out[i].length), 0, "%s: out, piece %u", what,
                     i);
    }
    if (batched) {
        cr_assert_gt(mcs_load_relaxed(&mct_cuda_stats(w.r.cuda)->batches), batches + 2);
        cr_assert_lt(mcs_load_relaxed(&mct_cuda_stats(w.r.cuda)->batches), batches + 20);
    }
    end(&w);
    free(zeros);
    free(source);
}

Test(cuda_copies, lists_of_thousands_of_pieces_go_in_few_calls_of_the_driver)
{
    list_both_ways("in batches", true);
}

Test(cuda_copies, a_driver_that_takes_no_batches_gets_the_pieces_one_by_one)
{
    fake = fake_cuda_begin();
    fake_cuda_arm(fake, 0, "cuMemcpyBatchAsync_v2", FAKE_FAIL, CUDA_ERROR_NOT_SUPPORTED, 1, 1);
    list_both_ways("one by one", false);
    cr_assert_eq(mcs_load_relaxed(&fake->rules[0].acted), 1);
    fake_cuda_disarm(fake);
}

Test(cuda_copies, without_events_the_streams_tell_when_copies_are_over)
{
    fake = fake_cuda_begin();
    fake_cuda_arm(fake, 0, "cuEventRecord", FAKE_FAIL, CUDA_ERROR_UNKNOWN, 1, 0);
    mcs_store_relaxed(&fake->delay_us, 300);
    list_both_ways("without events", true);
    mcs_store_relaxed(&fake->delay_us, 0);
    fake_cuda_disarm(fake);
}

/* ---- many ----------------------------------------------------------------------------------------- */

#define ENGINES 3u
#define JOBS 300u
#define OUT 24u /* of an engine's */

struct engine {
    struct world *w;
    pthread_t thread;
    unsigned index;
    bool faults; /* calls fail: a job that did is posted again */
    uint32_t bad, failed;
    uint32_t over; /* 1: it is through */
};

/* Each has a part of each device and of the host for itself, and copies host -> 0 -> 1 -> host, checking. */
static void *engine(void *arg)
{
    struct engine *e = arg;
    struct world *w = e->w;
    const uint64_t part = SIZE / ENGINES / 4096 * 4096, slot = part / OUT / 64 * 64;
    struct mct_cuda_piece pieces[OUT][4];
    struct mct_cuda_job jobs[OUT];
    unsigned round[OUT], begun = 0, over = 0;
    uint8_t *want = malloc(slot);
    struct rig_port p;

    rig_port_open(&w->r, &p);
    for (unsigned i = 0; i < OUT; i++)
        round[i] = UINT32_MAX;
    while (over < JOBS) {
        struct mct_cuda_job *j = NULL;
        unsigned k;

        if (begun < JOBS && begun - over < OUT) {
            for (k = 0; k < OUT && round[k] != UINT32_MAX; k++)
                continue;
            j = &jobs[k];
            round[k] = begun++;
            rig_pattern(w->host + e->index * part + k * slot, slot, e->index * 1000 + round[k]);
            *j =
                (struct mct_cuda_job){.to_device = 0, .from_device = MCT_CUDA_HOST, .pinned = true};
        } else {
            j = rig_take(&p);
            k = (unsigned)(j - jobs);
            e->bad += (j->status != MCS_OK && !(e->faults && j->status == MCS_GPU_CONTEXT)) ||
                      j->port != p.port;
            if (j->status != MCS_OK) {
                e->failed++;
                rig_post(&p, j);
                continue;
            }
            if (j->to_device == MCT_CUDA_HOST) {
                rig_pattern(want, slot, e->index * 1000 + round[k]);
                e->bad += memcmp(want, w->host + e->index * part + k * slot, slot) != 0;
                round[k] = UINT32_MAX;
                over++;
                continue;
            }
            if (j->to_device == 1)
                memset(w->host + e->index * part + k * slot, 0, slot);
            *j = j->to_device == 0 ? (struct mct_cuda_job){.to_device = 1, .from_device = 0}
                                   : (struct mct_cuda_job){.to_device = MCT_CUDA_HOST,
                                                           .from_device = 1,
                                                           .pinned = true};
        }
        /* in four pieces */
        j->n = 4;
        j->pieces = pieces[k];
        for (unsigned i = 0; i < 4; i++) {
            const uint64_t at = e->index * part + k * slot + i * (slot / 4);
            const uint64_t length = i == 3 ? slot - 3 * (slot / 4) : slot / 4;
            const uint64_t host = (uintptr_t)w->host + at;

            pieces[k][i] = (struct mct_cuda_piece){
                .to = j->to_device == MCT_CUDA_HOST ? host : w->memory[j->to_device].address + at,
                .from =
                    j->from_device == MCT_CUDA_HOST ? host : w->memory[j->from_device].address + at,
                .length = length};
        }
        rig_post(&p, j);
    }
    rig_port_close(&p);
    free(want);
    mcs_store_release(&e->over, 1u); /* with the test */
    return NULL;
}

Test(cuda_copies, many_engines_get_their_own_jobs_back_and_the_bytes_are_right)
{
    struct engine engines[ENGINES];
    struct world w;

    begin(&w, 4, 0);
    for (unsigned i = 0; i < ENGINES; i++) {
        engines[i] = (struct engine){.w = &w, .index = i};
        cr_assert_eq(pthread_create(&engines[i].thread, NULL, engine, &engines[i]), 0);
    }
    for (unsigned i = 0; i < ENGINES; i++) {
        pthread_join(engines[i].thread, NULL);
        cr_assert_eq(engines[i].bad, 0, "engine %u", i);
    }
    cr_assert_eq(mcs_load_relaxed(&mct_cuda_stats(w.r.cuda)->copies), ENGINES * JOBS * 3 * 4);
    end(&w);
}

/* Calls fail now and then, some of them after copies were begun already. */
Test(cuda_copies, whatever_calls_fail_jobs_come_back_once_and_quiet)
{
    static const char *const names[] = {"cuMemcpyBatchAsync_v2", "cuMemcpyAsync", "cuEventRecord",
                                        "cuEventQuery"};
    struct engine engines[ENGINES];
    unsigned over = 0, round = 0, failed = 0;
    uint64_t acted = 0;
    struct world w;

    begin(&w, 4, 0);
    mcs_store_relaxed(&fake->delay_us, 50);
    for (unsigned i = 0; i < ENGINES; i++) {
        engines[i] = (struct engine){.w = &w, .index = i, .faults = true};
        cr_assert_eq(pthread_create(&engines[i].thread, NULL, engine, &engines[i]), 0);
    }
    while (over < ENGINES) {
        struct timespec pause = {.tv_nsec = 200000};

        for (unsigned i = 0; i < 4; i++) {
            if (mcs_load_relaxed(&fake->rules[i].action) != FAKE_OFF &&
                mcs_load_relaxed(&fake->rules[i].acted) == 0)
                continue;
            acted += mcs_load_relaxed(&fake->rules[i].acted);
            fake_cuda_arm(fake, i, names[i], FAKE_FAIL, CUDA_ERROR_UNKNOWN, 1 + round++ % 13, 1);
        }
        nanosleep(&pause, NULL);
        over = 0;
        for (unsigned i = 0; i < ENGINES; i++)
            over += mcs_load_acquire(&engines[i].over); /* partner: engine() */
    }
    for (unsigned i = 0; i < ENGINES; i++) {
        pthread_join(engines[i].thread, NULL);
        cr_assert_eq(engines[i].bad, 0, "engine %u", i);
        failed += engines[i].failed;
    }
    fake_cuda_disarm(fake);
    mcs_store_relaxed(&fake->delay_us, 0);
    cr_assert_gt(acted, 20);
    cr_assert_gt(failed, 0);
    end(&w);
}

Test(cuda_copies, who_sleeps_is_woken_each_time)
{
    struct world w;

    begin(&w, 2, 0);
    /* the copier sleeps between them, too, every other time */
    for (unsigned i = 0; i < 2000; i++) {
        struct timespec pause = {.tv_nsec = i % 2 * 50000};

        cr_assert_eq(
            rig_copy(&w.p, 0, w.memory[0].address, MCT_CUDA_HOST, (uintptr_t)w.host, 64, true),
            MCS_OK);
        nanosleep(&pause, NULL);
    }
    end(&w);
}

/* ---- failures -------------------------------------------------------------------------------------- */

/* Jobs of two pieces each, posted before the copier can begin: it hangs in a copy meanwhile. */
#define FEW 6u
static void post_few(struct world *w, struct mct_cuda_piece (*pieces)[2], struct mct_cuda_job *jobs)
{
    for (unsigned i = 0; i < FEW; i++) {
        for (unsigned k = 0; k < 2; k++)
            pieces[i][k] = (struct mct_cuda_piece){.to = w->memory[0].address + (2 * i + k) * 8192,
                                                   .from = (uintptr_t)w->host + (2 * i + k) * 8192,
                                                   .length = 4096};
        jobs[i] = (struct mct_cuda_job){.to_device = 0,
                                        .from_device = MCT_CUDA_HOST,
                                        .pinned = true,
                                        .n = 2,
                                        .pieces = pieces[i]};
        rig_post(&w->p, &jobs[i]);
    }
}

Test(cuda_copies, one_refused_piece_fails_its_own_job_alone)
{
    struct mct_cuda_piece pieces[FEW][2];
    struct mct_cuda_job jobs[FEW];
    unsigned failed = 0;
    struct world w;

    begin(&w, 2, 0);
    rig_pattern(w.want, SIZE, 9);
    memcpy(w.host, w.want, SIZE);
    /* whatever batches they come in are refused, and of the single copies the third */
    fake_cuda_arm(fake, 0, "cuMemcpyBatchAsync_v2", FAKE_FAIL, CUDA_ERROR_INVALID_VALUE, 1, 0);
    fake_cuda_arm(fake, 1, "cuMemcpyAsync", FAKE_FAIL, CUDA_ERROR_INVALID_VALUE, 3, 1);
    post_few(&w, pieces, jobs);
    for (unsigned i = 0; i < FEW; i++) {
        struct mct_cuda_job *j = rig_take(&w.p);

        failed += j->status != MCS_OK;
        cr_assert(j->status == MCS_OK || j->status == MCS_GPU_CONTEXT);
    }
    cr_assert_eq(failed, 1);
    fake_cuda_disarm(fake);
    memset(w.host, 0, SIZE);
    rig_read(&w.p, 0, w.host, w.memory[0].address, SIZE);
    for (unsigned i = 0; i < FEW; i++)
        for (unsigned k = 0; k < 2 && jobs[i].status == MCS_OK; k++)
            cr_assert_eq(memcmp(w.host + (2 * i + k) * 8192, w.want + (2 * i + k) * 8192, 4096), 0);
    /* and the next ones go in batches again */
    post_few(&w, pieces, jobs);
    for (unsigned i = 0; i < FEW; i++)
        cr_assert_eq(rig_take(&w.p)->status, MCS_OK);
    end(&w);
}

Test(cuda_copies, a_driver_that_refuses_each_batch_and_takes_its_pieces_is_not_asked_for_ever)
{
    struct mct_cuda_piece pieces[FEW][2];
    struct mct_cuda_job jobs[FEW];
    struct world w;
    uint64_t acted;

    begin(&w, 1, 0);
    memset(w.host, 3, SIZE);
    fake_cuda_arm(fake, 0, "cuMemcpyBatchAsync_v2", FAKE_FAIL, CUDA_ERROR_INVALID_VALUE, 1, 0);
    for (unsigned round = 0; round < 20; round++) {
        post_few(&w, pieces, jobs);
        for (unsigned i = 0; i < FEW; i++)
            cr_assert_eq(rig_take(&w.p)->status, MCS_OK);
    }
    acted = mcs_load_relaxed(&fake->rules[0].acted);
    cr_assert_eq(acted, 8);
    pthread_mutex_lock(&rig_line_lock);
    cr_assert(strstr(rig_line, "CUDA_ERROR_INVALID_VALUE") != NULL &&
                  strstr(rig_line, "one by one") != NULL,
              "%s", rig_line);
    pthread_mutex_unlock(&rig_line_lock);
    fake_cuda_disarm(fake);
    memset(w.host, 0, SIZE);
    rig_read(&w.p, 0, w.host, w.memory[0].address, 4096);
    cr_assert_eq(w.host[4095], 3);
    end(&w);
}

Test(cuda_copies, an_event_that_cannot_be_asked_does_not_bring_a_job_back_early)
{
    struct mct_cuda_piece piece;
    struct mct_cuda_job j;
    struct world w;

    begin(&w, 2, 0);
    rig_pattern(w.want, MIB, 6);
    memcpy(w.host, w.want, MIB);
    piece = (struct mct_cuda_piece){
        .to = w.memory[0].address, .from = (uintptr_t)w.host, .length = MIB};
    j = (struct mct_cuda_job){
        .to_device = 0, .from_device = MCT_CUDA_HOST, .pinned = true, .n = 1, .pieces = &piece};
    mcs_store_relaxed(&fake->delay_us, 20000);
    fake_cuda_arm(fake, 0, "cuEventQuery", FAKE_FAIL, CUDA_ERROR_UNKNOWN, 1, 1);
    rig_post(&w.p, &j);
    cr_assert_eq(rig_take(&w.p), &j);
    cr_assert_eq(j.status, MCS_GPU_CONTEXT);
    memset(w.host, 0xee, MIB); /* the source is the owner's again */
    fake_cuda_disarm(fake);
    rig_read(&w.p, 0, w.host, w.memory[0].address, MIB);
    cr_assert_eq(memcmp(w.host, w.want, MIB), 0, "it was still being read");
    mcs_store_relaxed(&fake->delay_us, 0);
    end(&w);
}

Test(cuda_copies, a_copy_that_hangs_holds_up_no_other_stream_and_is_said_once)
{
    struct mct_cuda_piece piece;
    struct mct_cuda_job slow;
    const struct mct_cuda_stats *s;
    uint32_t warnings;
    uint64_t stuck;
    struct world w;

    begin(&w, 2, 200);
    s = mct_cuda_stats(w.r.cuda);
    UNTIL(&w, mcs_load_relaxed(&s->stuck_now) == 0);
    stuck = mcs_load_relaxed(&s->stuck); /* a slow machine's */
    warnings = mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_WARNING]);
    piece = (struct mct_cuda_piece){
        .to = w.memory[0].address, .from = (uintptr_t)w.host, .length = MIB};
    slow = (struct mct_cuda_job){
        .to_device = 0, .from_device = MCT_CUDA_HOST, .pinned = true, .n = 1, .pieces = &piece};
    fake_cuda_arm(fake, 0, "run:copy", FAKE_HANG, 0, 1, 1);
    rig_post(&w.p, &slow);
    UNTIL(&w, mcs_load_relaxed(&fake->rules[0].waiting) == 1);
    /* what goes on beside it does not hide it */
    for (uint64_t i = 0; i < 50 || mcs_load_relaxed(&s->stuck) == stuck; i++) {
        cr_assert_lt(i, 10000000);
        cr_assert_eq(rig_copy(&w.p, MCT_CUDA_HOST, (uintptr_t)w.host + MIB, 0,
                              w.memory[0].address + MIB, 4096, true),
                     MCS_OK);
        (void)mct_cuda_poll(w.r.cuda);
    }
    cr_assert_eq(mcs_load_relaxed(&s->stuck_now), 1);
    cr_assert_eq(mcs_load_relaxed(&rig_lines[MCT_CUDA_LOG_WARNING]), warnings + 1);
    /* the other device knows nothing of it */
    cr_assert_eq(
        rig_copy(&w.p, 1, w.memory[1].address, MCT_CUDA_HOST, (uintptr_t)w.host, 4096, true),
        MCS_OK);
    cr_assert_null(rig_take_for(&w.p, 0));
    fake_cuda_disarm(fake);
    cr_assert_eq(rig_take(&w.p), &slow);
    cr_assert_eq(slow.status, MCS_OK);
    UNTIL(&w, mcs_load_relaxed(&s->stuck_now) == 0);
    cr_assert_eq(mcs_load_relaxed(&s->stuck), stuck + 1);
    end(&w);
}

Test(cuda_copies, a_job_is_back_only_when_its_last_piece_is_there)
{
    static struct mct_cuda_piece pieces[3000];
    struct mct_cuda_job j;
    struct world w;

    begin(&w, 2, 0);
    rig_pattern(w.host, SIZE, 4);
    for (unsigned i = 0; i < 3000; i++)
        pieces[i] = (struct mct_cuda_piece){.to = w.memory[1].address + i * 2048,
                                            .from = (uintptr_t)w.host + i * 2048,
                                            .length = 1024};
    mcs_store_relaxed(&fake->delay_us, 2000);
    for (unsigned round = 0; round < 5; round++) {
        rig_pattern(w.host, SIZE, 10 + round);
        j = (struct mct_cuda_job){.to_device = 1,
                                  .from_device = MCT_CUDA_HOST,
                                  .pinned = true,
                                  .n = 3000,
                                  .pieces = pieces};
        rig_post(&w.p, &j);
        cr_assert_eq(rig_take(&w.p), &j);
        cr_assert_eq(j.status, MCS_OK);
        /* what is written now must not get there any more */
        memset(w.host, 0xee, SIZE);
        memset(w.want, 0, SIZE);
        rig_read(&w.p, 1, w.want, w.memory[1].address, SIZE);
        rig_pattern(w.host, SIZE, 10 + round);
        for (unsigned i = 0; i < 3000; i++)
            cr_assert_eq(memcmp(w.want + i * 2048, w.host + i * 2048, 1024), 0, "%u", i);
    }
    mcs_store_relaxed(&fake->delay_us, 0);
    end(&w);
}
