/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole data path in one process, so that TSan sees both sides: an engine in its own
 * thread, a client in another, a "control thread" that swaps buffers under them.
 */
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fixture.h"

#define ROUNDS 3000u
#define TASKS 8u

static void *engine_thread(void *arg)
{
    mcd_engine_run(arg);
    return NULL;
}

/* Sleeps on the batch as the library does. */
static void await(struct mcs_queue *q, uint32_t batch, uint32_t generation, uint32_t want)
{
    for (;;) {
        uint64_t word = mcs_batch_peek(q, batch);

        if (word >> 32 == generation && (uint32_t)word == want)
            return;
        mcs_batch_renew(q, batch, generation);
        mcs_queue_wait_begin(q, batch);
        word = mcs_batch_peek(q, batch);
        if (word >> 32 != generation || (uint32_t)word != want)
            syscall(SYS_futex, &q->batch_lines[batch].word, FUTEX_WAIT, (uint32_t)word, NULL, NULL,
                    0);
        mcs_queue_wait_end(q);
    }
}

Test(engine_threads, client_and_engine_race_cleanly, .timeout = 120)
{
    struct fixture f;
    pthread_t thread;
    unsigned doorbells = 0;

    fix_init(&f, MCS_ACCESS_READ | MCS_ACCESS_WRITE, 4096);
    cr_assert_eq(pthread_create(&thread, NULL, engine_thread, f.engine), 0);
    for (uint32_t r = 1; r <= ROUNDS; r++) {
        struct mcs_desc d[TASKS];
        uint64_t length = r % 7 == 0 ? 20000 : 64;

        for (uint32_t i = 0; i < TASKS; i++) {
            uint64_t at = (uint64_t)i * 32768;

            memset(f.local.map + at, (int)(r + i), length);
            d[i] = fix_desc(&f, MCS_OP_WRITE, length);
            d[i].slot = i;
            d[i].batch = r % 16;
            d[i].batch_generation = r;
            d[i].local_offset = at;
            d[i].remote_addr += at;
        }
        cr_assert(mcs_ring_push(f.client.ring, d, TASKS));
        if (mcs_queue_must_wake(&f.client)) {
            uint64_t one = 1;

            doorbells++;
            cr_assert_eq(write(f.engine->event_fd, &one, sizeof(one)), (ssize_t)sizeof(one));
        }
        await(&f.client, r % 16, r, TASKS);
        for (uint32_t i = 0; i < TASKS; i++) {
            uint64_t word = mcs_slot_peek(&f.client, i);

            cr_assert_eq(word >> 32, d[i].generation);
            cr_assert_eq(word & 0x7f, MCS_STATE_COMPLETED);
            cr_assert_eq(f.target.map[i * 32768u], (uint8_t)(r + i));
            cr_assert_eq(f.target.map[i * 32768u + length - 1], (uint8_t)(r + i));
        }
        if (r % 50 == 0) { /* the control thread revokes, waits for grace, and grants again */
            struct mcd_snapshot *old, *none;
            struct mcd_grace grace;

            cr_assert_eq(mcd_segment_cut(f.segment, &f.target, FIX_EXTENT_SIZE / 2,
                                         FIX_EXTENT_SIZE / 2, &old),
                         0);
            mcd_grace_begin(&grace, &f.engine, 1);
            while (!mcd_grace_over(&grace))
                sched_yield();
            free(old);
            memset(f.target.map + FIX_EXTENT_SIZE / 2, 0, FIX_EXTENT_SIZE / 2);
            cr_assert_eq(mcd_segment_add(f.segment, &f.target, FIX_EXTENT_SIZE / 2,
                                         FIX_EXTENT_SIZE / 2, MCS_ACCESS_WRITE, &none),
                         0);
            mcd_grace_begin(&grace, &f.engine, 1);
            while (!mcd_grace_over(&grace))
                sched_yield();
            free(none);
        }
    }
    mcd_engine_stop(f.engine);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(f.engine->counters.tasks, (uint64_t)ROUNDS * TASKS);
    fix_fini(&f);
}
