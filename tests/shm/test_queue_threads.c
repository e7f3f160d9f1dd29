/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of a queue with client and agent as two threads of one process, so that
 * ThreadSanitizer sees both ends of it.
 */
#include <criterion/criterion.h>

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/queue.h"

#define DEPTH 64u
#define SLOTS 256u
#define BATCHES 16u
#define BATCH_TASKS (SLOTS / BATCHES)

#ifdef __SANITIZE_THREAD__
#define TASKS 200000u
#elif defined(__SANITIZE_ADDRESS__)
#define TASKS 500000u
#else
#define TASKS 1500000u
#endif
#define WAKE_ROUNDS 10000u
/* A lost wake-up shows as a sleep that lasts this long. */
#define LOST_MS 10000

struct bench {
    void *mem;
    struct mcs_queue agent, client;
    struct mcs_ring_consumer consumer;
    uint32_t rung; /* rounds for which the client has rung or found no need to */
    uint64_t agent_sleeps, client_sleeps;
    const char *agent_error; /* written by the agent's thread, looked at by the client's */
};

static struct bench *bench_open(void)
{
    struct mcs_queue_layout layout;
    struct bench *b = calloc(1, sizeof(*b));

    cr_assert_not_null(b);
    cr_assert_eq(mcs_queue_layout(DEPTH, SLOTS, BATCHES, 0, &layout), 0);
    b->mem = aligned_alloc(4096, layout.total_size);
    cr_assert_not_null(b->mem);
    memset(b->mem, 0, layout.total_size);
    cr_assert_eq(mcs_queue_create(&b->agent, &b->consumer, b->mem, &layout, 1, 2, 0), 0);
    cr_assert_eq(mcs_queue_attach(&b->client, b->mem, layout.total_size), 0);
    return b;
}

/* Keeps the calling thread on the n-th core it may use, where there are several: on one core
 * the two sides would only ever take turns. */
static void stay_on_core(int n)
{
    cpu_set_t may, one;

    if (sched_getaffinity(0, sizeof(may), &may) != 0 || CPU_COUNT(&may) < 2)
        return;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &may) && n-- == 0)
            CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof(one), &one);
}

static void bench_close(struct bench *b)
{
    free(b->mem);
    free(b);
}

/* Sum over all fields that the client fills, so that a torn descriptor shows. */
static uint64_t checksum(const struct mcs_desc *d)
{
    uint64_t sum = UINT64_C(0x9e3779b97f4a7c15);

    sum = (sum ^ d->slot) * UINT64_C(0x100000001b3);
    sum = (sum ^ d->generation) * UINT64_C(0x100000001b3);
    sum = (sum ^ d->batch) * UINT64_C(0x100000001b3);
    sum = (sum ^ d->local_offset) * UINT64_C(0x100000001b3);
    sum = (sum ^ d->length) * UINT64_C(0x100000001b3);
    return sum;
}

/* ---- the stream: descriptors one way, slots and batch lines the other ------------- */

/* Takes all descriptors, checks each, completes its slot, then its batch line. */
static void *stream_agent(void *arg)
{
    struct bench *b = arg;
    uint32_t ended[BATCHES] = {0};
    uint64_t bytes[BATCHES] = {0};
    uint32_t seen = 0;

    while (seen < TASKS) {
        struct mcs_desc d[32];
        int n = mcs_ring_take(&b->consumer, d, 32);

        if (n < 0) {
            mcs_store_release(&b->agent_error, "an impossible tail");
            return NULL;
        }
        if (n == 0)
            sched_yield();
        for (int i = 0; i < n; i++, seen++) {
            uint32_t batch = d[i].batch;

            if (d[i].local_offset != seen || d[i].remote_addr != checksum(&d[i]) ||
                d[i].slot >= SLOTS || batch >= BATCHES) {
                mcs_store_release(&b->agent_error, "a descriptor arrived torn or out of order");
                return NULL;
            }
            mcs_slot_complete(
                &b->agent, d[i].slot,
                MCS_SLOT_WORD(d[i].generation, MCS_OK, MCS_PATH_LOCAL, MCS_STATE_COMPLETED),
                d[i].length, 1, 2, 3);
            if (ended[batch] == BATCH_TASKS)
                ended[batch] = 0, bytes[batch] = 0;
            bytes[batch] += d[i].length;
            ended[batch]++;
            mcs_batch_publish(&b->agent, batch, d[i].batch_generation, ended[batch], 0,
                              ended[batch], bytes[batch]);
        }
    }
    return NULL;
}

/* Task n is task n % BATCH_TASKS of batch n / BATCH_TASKS; slots and lines are used again
 * with the next generation once their batch has ended. */
static struct mcs_desc stream_task(uint32_t n)
{
    struct mcs_desc d = {
        .op = MCS_OP_WRITE,
        .slot = n % SLOTS,
        .generation = n / SLOTS + 1,
        .batch = n / BATCH_TASKS % BATCHES,
        .batch_generation = n / SLOTS + 1,
        .local_offset = n,
        .length = n % 1000 + 1,
    };

    d.remote_addr = checksum(&d);
    return d;
}

static void check_line(struct bench *b, uint32_t number)
{
    const struct mcs_batch_line *line = &b->client.batch_lines[number % BATCHES];
    uint64_t bytes = 0;

    for (uint32_t n = number * BATCH_TASKS; n < (number + 1) * BATCH_TASKS; n++)
        bytes += n % 1000 + 1;
    cr_assert_eq(line->bytes, bytes);
    cr_assert_eq(line->taken, BATCH_TASKS);
}

static bool batch_has_ended(struct bench *b, uint32_t number)
{
    uint64_t word = mcs_batch_peek(&b->client, number % BATCHES);

    return word == ((uint64_t)(number / BATCHES + 1) << 32 | BATCH_TASKS);
}

/* True when batch number `number` has ended. Every other batch is watched by its slots alone, so
 * that slots and lines each have to publish what they say. */
static bool stream_reap(struct bench *b, uint32_t number)
{
    if (number % 2 == 0) {
        if (!batch_has_ended(b, number))
            return false;
        check_line(b, number);
    }
    for (uint32_t i = BATCH_TASKS; i-- > 0;) {
        uint32_t n = number * BATCH_TASKS + i, slot = n % SLOTS;
        uint64_t word = mcs_slot_peek(&b->client, slot);

        if (number % 2 != 0 && word >> 32 != n / SLOTS + 1)
            return false;
        cr_assert_eq(word,
                     MCS_SLOT_WORD(n / SLOTS + 1, MCS_OK, MCS_PATH_LOCAL, MCS_STATE_COMPLETED));
        cr_assert_eq(b->client.slot_table[slot].bytes, n % 1000 + 1);
        cr_assert_eq(b->client.slot_table[slot].notify_ns, 3);
    }
    return batch_has_ended(b, number);
}

Test(threads, every_descriptor_arrives_whole_and_every_slot_is_seen)
{
    struct bench *b = bench_open();
    uint32_t sent = 0, reaped = 0; /* tasks, batches */
    pthread_t agent;

    cr_assert_eq(TASKS % BATCH_TASKS, 0);
    cr_assert_eq(pthread_create(&agent, NULL, stream_agent, b), 0);
    while (reaped < TASKS / BATCH_TASKS) {
        bool moved = false;

        while (sent < TASKS && sent - reaped * BATCH_TASKS < SLOTS) {
            struct mcs_desc burst[8];
            uint32_t n = 0, room = SLOTS - (sent - reaped * BATCH_TASKS);

            while (n < sent % 8 + 1 && n < room && sent + n < TASKS) {
                burst[n] = stream_task(sent + n);
                n++;
            }
            if (!mcs_ring_push(b->client.ring, burst, n))
                break;
            sent += n;
            moved = true;
        }
        while (reaped < sent / BATCH_TASKS && stream_reap(b, reaped)) {
            reaped++;
            moved = true;
        }
        if (!moved)
            sched_yield();
        cr_assert_null(mcs_load_acquire(&b->agent_error), "%s", b->agent_error);
    }
    cr_assert_eq(pthread_join(agent, NULL), 0);
    cr_assert_null(b->agent_error, "%s", b->agent_error);
    cr_assert_eq(sent, TASKS);
    bench_close(b);
}

/* ---- one way only: nothing but the ring orders the two sides ---------------------- */

static void *silent_agent(void *arg)
{
    struct bench *b = arg;
    uint32_t seen = 0;

    while (seen < TASKS) {
        struct mcs_desc d[8];
        int n = mcs_ring_take(&b->consumer, d, 8);

        if (n < 0) {
            mcs_store_release(&b->agent_error, "an impossible tail");
            return NULL;
        }
        if (n == 0)
            sched_yield();
        for (int i = 0; i < n; i++, seen++)
            if (d[i].local_offset != seen || d[i].remote_addr != checksum(&d[i]))
                mcs_store_release(&b->agent_error, "a descriptor arrived torn or out of order");
    }
    return NULL;
}

Test(threads, an_element_is_reused_only_after_it_was_copied)
{
    struct bench *b = bench_open();
    pthread_t agent;

    cr_assert_eq(pthread_create(&agent, NULL, silent_agent, b), 0);
    for (uint32_t sent = 0; sent < TASKS;) {
        struct mcs_desc d = stream_task(sent);

        if (mcs_ring_push(b->client.ring, &d, 1))
            sent++;
        else
            sched_yield();
        /* relaxed, so that this look orders nothing */
        cr_assert_null(mcs_load_relaxed(&b->agent_error));
    }
    cr_assert_eq(pthread_join(agent, NULL), 0);
    cr_assert_null(b->agent_error, "%s", b->agent_error);
    bench_close(b);
}

/* ---- the two sleeps ----------------------------------------------------------------- */

/*
 * Either side's bed: where it sleeps until the other rings.  The library sleeps on a futex, which
 * looks at the word once more; a bare eventfd hides nothing that the handshake has to catch.
 */
struct bed {
    int fd;
    uint32_t settled; /* rounds for which the other side has rung or seen no need to */
    uint64_t sleeps;
};

struct bedroom {
    struct bench *b;
    struct bed agent, client;
};

static void ring(struct bed *bed)
{
    const uint64_t one = 1;

    cr_assert_eq(write(bed->fd, &one, sizeof(one)), (ssize_t)sizeof(one));
}

/* Before going to bed: a ring that came late for its round must not hide that this one's is lost. */
static void settle(struct bed *bed, uint32_t round)
{
    uint64_t rings;

    while (mcs_load_acquire(&bed->settled) < round)
        mcs_pause();
    while (read(bed->fd, &rings, sizeof(rings)) == (ssize_t)sizeof(rings)) {
    }
}

static bool sleep_until_rung(struct bed *bed)
{
    struct pollfd p = {.fd = bed->fd, .events = POLLIN};

    bed->sleeps++;
    return poll(&p, 1, LOST_MS) == 1;
}

/* A wake-up is lost only when one side acts just while the other goes to bed.  So each stays
 * awake in turn and acts after another delay each time: the client in even rounds, the agent in
 * odd ones. */
#define AWAKE_LOOKS 20000u

static void delay(uint32_t round)
{
    uint32_t n = round * 7 % 1009;

    for (volatile uint32_t i = 0; i < n; i++) {
    }
}

/* Between the last look and the sleep a wake-up may come just too early: there, too, some rounds wait. */
static void linger(uint32_t round)
{
    if (round % 4 == 0)
        delay(round * 31);
}

/* Answers each descriptor through its batch line; sleeps when its ring is empty. */
static void *sleepy_agent(void *arg)
{
    struct bedroom *r = arg;
    struct bench *b = r->b;
    uint32_t seen = 0, looks = 0; /* the next round is seen + 1 */

    stay_on_core(1);
    while (seen < WAKE_ROUNDS) {
        struct mcs_desc d;
        int n = mcs_ring_take(&b->consumer, &d, 1);

        if (n == 0 && seen % 2 == 0 && looks++ < AWAKE_LOOKS)
            continue;
        if (n == 0) {
            settle(&r->agent, seen);
            mcs_queue_sleep(&b->agent, true);
            mcs_fence_full(); /* partner: mcs_queue_must_wake() */
            if (!mcs_ring_pending(&b->consumer)) {
                linger(seen);
                if (!sleep_until_rung(&r->agent))
                    mcs_store_release(&b->agent_error, "nobody woke the agent");
            }
            mcs_queue_sleep(&b->agent, false);
            continue;
        }
        seen++;
        looks = 0;
        if (seen % 2 != 0)
            delay(seen);
        mcs_batch_publish(&b->agent, 0, 1, seen, 0, seen, 0);
        if (mcs_queue_waiter(&b->agent) == MCS_WAIT_BATCH(0))
            ring(&r->client);
        mcs_store_release(&r->client.settled, seen);
    }
    return NULL;
}

Test(threads, no_wakeup_is_lost_by_agent_or_client)
{
    struct bench *b = bench_open();
    struct bedroom r = {.b = b};
    pthread_t agent;

    r.agent.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r.client.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert_geq(r.agent.fd, 0);
    cr_assert_geq(r.client.fd, 0);
    cr_assert_eq(pthread_create(&agent, NULL, sleepy_agent, &r), 0);
    stay_on_core(0);
    for (uint32_t round = 1; round <= WAKE_ROUNDS; round++) {
        const uint64_t wanted = UINT64_C(1) << 32 | round;
        struct mcs_desc d = {.op = MCS_OP_WRITE, .slot = round};
        uint32_t looks = round % 2 == 0 ? AWAKE_LOOKS : 0;

        if (round % 2 == 0)
            delay(round);
        cr_assert(mcs_ring_push(b->client.ring, &d, 1));
        if (mcs_queue_must_wake(&b->client))
            ring(&r.agent);
        mcs_store_release(&r.agent.settled, round);
        while (looks > 0 && mcs_batch_peek(&b->client, 0) != wanted)
            looks--;
        while (mcs_batch_peek(&b->client, 0) != wanted) {
            settle(&r.client, round - 1);
            mcs_queue_wait_begin(&b->client, 0);
            if (mcs_batch_peek(&b->client, 0) != wanted) {
                linger(round);
                cr_assert(sleep_until_rung(&r.client), "nobody woke the client in round %u", round);
            }
            mcs_queue_wait_end(&b->client);
        }
        cr_assert_null(mcs_load_acquire(&b->agent_error), "%s", b->agent_error);
    }
    cr_assert_eq(pthread_join(agent, NULL), 0);
    cr_assert_gt(r.agent.sleeps + r.client.sleeps, 0);
    close(r.agent.fd);
    close(r.client.fd);
    bench_close(b);
}
