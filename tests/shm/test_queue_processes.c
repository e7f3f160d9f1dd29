/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The submission ring between two processes, as it is used: every descriptor arrives once, in
 * order, whole by its CRC, although both sides stop at random places, and either's index wraps.
 *
 * QUEUE_ENTRIES=20000000 makes it a long run.
 */
#include <criterion/criterion.h>

#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/queue.h"
#include "transports/crc32c.h"

#define DEPTH 8u
#ifdef __SANITIZE_THREAD__
#define ENTRIES 30000u
#elif defined(__SANITIZE_ADDRESS__)
#define ENTRIES 60000u
#else
#define ENTRIES 200000u
#endif

static uint32_t roll(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

/* Gives way now and then, so that the other side runs in between any two steps. */
static void stumble(uint32_t *x)
{
    if (roll(x) % 64 == 0)
        sched_yield();
}

static struct mcs_desc entry(uint64_t n)
{
    struct mcs_desc d = {
        .op = MCS_OP_WRITE, .local_offset = n, .length = ~n, .remote_addr = n * 77};

    d.deadline_us = mct_crc32c(0, &d, offsetof(struct mcs_desc, deadline_us));
    return d;
}

/* The producer's process: bursts of any size. */
static void produce(void *mem, uint64_t size, uint64_t entries)
{
    struct mcs_desc burst[DEPTH];
    struct mcs_queue client;
    uint32_t x = 12345;

    if (mcs_queue_attach(&client, mem, size) != 0)
        _exit(2);
    for (uint64_t sent = 0; sent < entries;) {
        unsigned n = roll(&x) % (DEPTH - 1) + 1;

        if (n > entries - sent)
            n = (unsigned)(entries - sent);
        for (unsigned i = 0; i < n; i++)
            burst[i] = entry(sent + i);
        stumble(&x);
        while (!mcs_ring_push(client.ring, burst, n))
            sched_yield();
        sent += n;
    }
    _exit(0);
}

Test(processes, every_entry_arrives_once_in_order_and_whole)
{
    const char *text = getenv("QUEUE_ENTRIES");
    uint64_t entries = text != NULL ? strtoull(text, NULL, 0) : ENTRIES, seen = 0;
    struct mcs_ring_consumer consumer;
    struct mcs_queue_layout l;
    struct mcs_queue agent;
    uint32_t x = 999;
    int status = 0;
    pid_t child;
    void *mem;

    cr_assert_eq(mcs_queue_layout(DEPTH, 8, 8, 0, &l), 0);
    mem = mmap(NULL, l.total_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(mem, MAP_FAILED);
    cr_assert_eq(mcs_queue_create(&agent, &consumer, mem, &l, 1, 1, 0), 0);
    /* both indices wrap after half of them */
    consumer.head = consumer.published = (uint32_t)(0 - entries / 2);
    agent.ring->prod.head = agent.ring->prod.tail = consumer.head;
    agent.ring->cons.head = agent.ring->cons.tail = consumer.head;
    child = fork();
    cr_assert_geq(child, 0);
    if (child == 0)
        produce(mem, l.total_size, entries);
    while (seen < entries) {
        struct mcs_desc d[DEPTH], want;
        int n = mcs_ring_take(&consumer, d, roll(&x) % DEPTH + 1);

        cr_assert_geq(n, 0, "an impossible tail after %llu", (unsigned long long)seen);
        for (int i = 0; i < n; i++, seen++) {
            want = entry(seen);
            cr_assert_arr_eq(&d[i], &want, sizeof(want), "entry %llu", (unsigned long long)seen);
        }
        stumble(&x);
        if (n != 0)
            continue;
        sched_yield();
        if (waitpid(child, &status, WNOHANG) == child) { /* it has published all by now */
            child = -1;
            cr_assert_eq(status, 0, "the producer died: %#x", (unsigned)status);
            cr_assert(seen == entries || mcs_ring_pending(&consumer), "%llu of %llu arrived",
                      (unsigned long long)seen, (unsigned long long)entries);
        }
    }
    cr_assert_not(mcs_ring_pending(&consumer));
    if (child > 0)
        cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    munmap(mem, l.total_size);
}
