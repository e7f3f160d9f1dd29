/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer's entry for queue memory in ordinary builds: its corpus, changed corpus, and the same
 * offences while the engine runs in a thread of its own. */
#include <criterion/criterion.h>

#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_queue.c"
/* after the target */
#include "tests/fuzz/rounds.h"

#ifdef __SANITIZE_THREAD__
#define ROUNDS 150
#define HONEST_TASKS 300u
#elif defined(__SANITIZE_ADDRESS__)
#define ROUNDS 800
#define HONEST_TASKS 5000u
#else
#define ROUNDS 4000
#define HONEST_TASKS 20000u
#endif

TestSuite(queue_fuzz, .timeout = 200);

Test(queue_fuzz, corpus)
{
    fuzz_corpus("queue");
}

Test(queue_fuzz, changed_corpus)
{
    fuzz_rounds("queue", ROUNDS);
}

/* ---- the offender in a thread of its own ------------------------------------------------ */

struct beside {
    struct world w;
    int doorbell;
    uint32_t stop; /* offender: acquire; test: release */
    uint64_t offences;
};

static void *run_engine(void *engine)
{
    mcd_engine_run(engine);
    return NULL;
}

static void *run_offender(void *arg)
{
    struct beside *b = arg;
    uint64_t one = 1;

    while (mcs_load_acquire(&b->stop) == 0) { /* partner: the test */
        uint8_t data[600];
        struct fz z = {.at = data, .end = data + sizeof(data)};

        for (size_t i = 0; i < sizeof(data); i++)
            data[i] = (uint8_t)fuzz_roll(256);
        while (!fz_empty(&z)) {
            offend(&b->w, &z, (uint8_t)fuzz_roll(10));
            b->offences++;
        }
        /* an engine gives a queue up for some offences: on with a ring that could be good */
        b->w.tail = mcs_load_relaxed(&b->w.offender.client.ring->cons.tail);
        if (write(b->doorbell, &one, sizeof(one)) < 0)
            sched_yield();
        sched_yield();
    }
    return NULL;
}

static void finish_command(struct beside *b, struct mcd_command *c, enum mcd_command_kind kind,
                           struct party *p)
{
    *c = (struct mcd_command){.kind = kind, .queue = &p->queue};
    mcd_engine_command(b->w.engine, c);
    while (mcs_load_acquire(&c->done) == 0) /* partner: run_commands() */
        sched_yield();
}

/* What the engine gave up comes back as a fresh queue of the same session. */
static void renew_offender(struct beside *b)
{
    struct party *p = &b->w.offender;
    struct mcs_queue_layout l;
    struct mcd_command c;

    finish_command(b, &c, MCD_COMMAND_REMOVE, p);
    mcd_queue_fini(&p->queue);
    cr_assert_eq(mcs_queue_layout(16, 32, 8, 3072, &l), 0);
    memset(&p->queue, 0, sizeof(p->queue));
    p->queue.session = p->session;
    p->queue.engine = b->w.engine;
    cr_assert_eq(mcs_queue_create(&p->queue.shm, &p->queue.consumer, p->queue_memory, &l, 1, 66, 0),
                 0);
    /* goes on where the ring's words are, whatever the offender has made of them */
    cr_assert_eq(mcd_queue_init(&p->queue), 0);
    finish_command(b, &c, MCD_COMMAND_ADD, p);
}

Test(queue_fuzz, beside_a_running_engine)
{
    static struct beside b;
    struct mcd_engine *g = make_engine();
    struct mcd_command c;
    uint64_t seed = fuzz_seed(), end = (uint64_t)time(NULL) + 150, one = 1;
    unsigned lives = 1;
    pthread_t engine, offender;

    fprintf(stderr, "FUZZ_SEED=%llu\n", (unsigned long long)seed);
    fuzz_state = seed | 1;
    mcd_log_set_level(-1);
    create(&b.w, g);
    b.doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert_geq(b.doorbell, 0);
    cr_assert_eq(mcd_engine_watch(g, b.doorbell), 0);
    cr_assert_eq(pthread_create(&engine, NULL, run_engine, g), 0);
    finish_command(&b, &c, MCD_COMMAND_ADD, &b.w.good);
    finish_command(&b, &c, MCD_COMMAND_ADD, &b.w.offender);
    cr_assert_eq(pthread_create(&offender, NULL, run_offender, &b), 0);
    /* on, too, until the offender has had a turn of the processor and was found out */
    for (unsigned i = 0; b.w.ended < HONEST_TASKS || lives < 2; i++) {
        submit_honest(&b.w, (uint8_t)(i * 7));
        if (mcs_queue_must_wake(&b.w.good.client))
            cr_assert_eq(write(b.doorbell, &one, sizeof(one)), (ssize_t)sizeof(one));
        reap(&b.w);
        read_inbox(&b.w);
        cr_assert_lt((uint64_t)time(NULL), end, "%u of %u honest tasks", b.w.ended, HONEST_TASKS);
        /* partner: break_queue() */
        if (i % 16 == 0 && mcs_load_acquire(&b.w.offender.queue.error) != 0) {
            renew_offender(&b);
            lives++;
        }
        sched_yield();
    }
    mcs_store_release(&b.stop, 1u); /* partner: run_offender() */
    cr_assert_eq(pthread_join(offender, NULL), 0);
    finish_command(&b, &c, MCD_COMMAND_REMOVE, &b.w.offender);
    finish_command(&b, &c, MCD_COMMAND_REMOVE, &b.w.good);
    mcd_engine_stop(g);
    cr_assert_eq(pthread_join(engine, NULL), 0);
    check_private(&b.w.offender.queue);
    check_private(&b.w.good.queue);
    check_engine(&b.w, 0);
    check_memory(&b.w);
    fprintf(stderr, "%llu offences in %u lives of a queue\n", (unsigned long long)b.offences,
            lives);
    destroy(&b.w);
    mcd_engine_destroy(g);
    close(b.doorbell);
}
