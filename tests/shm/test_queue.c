/* SPDX-License-Identifier: Apache-2.0 */
/* The queue's layout, its attachment by a client, and the submission ring, in one thread. */
#include <criterion/criterion.h>

#include <stdlib.h>

#include "shm/queue.h"

struct pair {
    void *mem;
    struct mcs_queue_layout layout;
    struct mcs_queue agent, client;
    struct mcs_ring_consumer consumer;
};

static void pair_open(struct pair *p, uint32_t depth, uint64_t features)
{
    cr_assert_eq(mcs_queue_layout(depth, 64, 8, 4096, &p->layout), 0);
    p->mem = aligned_alloc(4096, p->layout.total_size);
    cr_assert_not_null(p->mem);
    memset(p->mem, 0, p->layout.total_size);
    cr_assert_eq(mcs_queue_create(&p->agent, &p->consumer, p->mem, &p->layout, 7, 0x1234, features),
                 0);
    cr_assert_eq(mcs_queue_attach(&p->client, p->mem, p->layout.total_size), 0);
}

static void pair_close(struct pair *p)
{
    free(p->mem);
}

/* Both ends go on from `index`, as after that many descriptors. */
static void preset(struct pair *p, uint32_t index)
{
    struct rte_ring *r = p->agent.ring;

    r->prod.head = r->prod.tail = r->cons.head = r->cons.tail = index;
    p->consumer.head = p->consumer.published = index;
}

static struct mcs_desc numbered(uint64_t n)
{
    return (struct mcs_desc){
        .op = MCS_OP_WRITE, .slot = (uint32_t)n, .length = n, .deadline_us = 5};
}

Test(layout, sizes_in_range)
{
    struct mcs_queue_layout l;

    cr_expect_eq(mcs_queue_layout(2, 1, 1, 0, &l), 0);
    cr_expect_eq(mcs_queue_layout(MCS_QUEUE_DEPTH_MAX, MCS_QUEUE_SLOTS_MAX, MCS_QUEUE_BATCHES_MAX,
                                  MCS_QUEUE_ARGS_MAX, &l),
                 0);
}

Test(layout, sizes_out_of_range)
{
    static const struct {
        uint32_t depth, slots, batches;
        uint64_t args;
    } bad[] = {
        {0, 1, 1, 0},
        {1, 1, 1, 0},
        {3, 1, 1, 0},
        {MCS_QUEUE_DEPTH_MAX * 2, 1, 1, 0},
        {UINT32_MAX, 1, 1, 0},
        {1u << 31, 1, 1, 0},
        {2, 0, 1, 0},
        {2, MCS_QUEUE_SLOTS_MAX + 1, 1, 0},
        {2, UINT32_MAX, 1, 0},
        {2, 1, 0, 0},
        {2, 1, MCS_QUEUE_BATCHES_MAX + 1, 0},
        {2, 1, 1, 1},
        {2, 1, 1, MCS_LINE - 1},
        {2, 1, 1, MCS_QUEUE_ARGS_MAX + MCS_LINE},
        {2, 1, 1, UINT64_MAX - 63},
    };
    struct mcs_queue_layout l;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_expect_eq(mcs_queue_layout(bad[i].depth, bad[i].slots, bad[i].batches, bad[i].args, &l),
                     -EINVAL, "row %zu", i);
}

Test(layout, parts_follow_each_other_and_keep_their_distance)
{
    for (uint32_t depth = MCS_QUEUE_DEPTH_MIN; depth <= MCS_QUEUE_DEPTH_MAX; depth *= 2) {
        struct mcs_queue_layout l;

        cr_assert_eq(mcs_queue_layout(depth, depth * 2 - 1, depth / 2, depth * MCS_LINE, &l), 0);
        cr_assert_geq(l.ring_offset, MCS_QUEUE_DOORBELL_OFFSET + sizeof(struct mcs_doorbell));
        cr_assert_geq(l.batches_offset,
                      l.ring_offset + sizeof(struct rte_ring) + depth * sizeof(struct mcs_desc));
        cr_assert_geq(l.slots_offset, l.batches_offset + depth / 2 * sizeof(struct mcs_batch_line));
        cr_assert_geq(l.args_offset, l.slots_offset + (depth * 2 - 1) * sizeof(struct mcs_slot));
        cr_assert_geq(l.total_size, l.args_offset + depth * MCS_LINE);
        cr_assert_eq(l.ring_offset % MCS_LINE, 0);
        cr_assert_eq(l.batches_offset % MCS_GUARD, 0);
        cr_assert_eq(l.slots_offset % MCS_GUARD, 0);
        cr_assert_eq(l.args_offset % 4096, 0);
        cr_assert_eq(l.total_size % 4096, 0);
    }
}

Test(attach, sees_what_was_created)
{
    struct pair p;

    pair_open(&p, 16, MCS_FEATURE_NEVER_SLEEPS);
    cr_assert_eq(p.client.depth, 16);
    cr_assert_eq(p.client.slots, 64);
    cr_assert_eq(p.client.batches, 8);
    cr_assert_eq(p.client.args_size, 4096);
    cr_assert_eq(p.client.header->session_incarnation, 0x1234);
    cr_assert_eq(p.client.header->queue_id, 7);
    cr_assert(p.client.never_sleeps);
    cr_assert_eq((void *)p.client.ring, (void *)p.agent.ring);
    pair_close(&p);
}

Test(attach, refuses_a_short_region)
{
    struct pair p;
    struct mcs_queue q;

    pair_open(&p, 16, 0);
    cr_assert_eq(mcs_queue_attach(&q, p.mem, 0), -EPROTO);
    cr_assert_eq(mcs_queue_attach(&q, p.mem, MCS_QUEUE_DOORBELL_OFFSET - 1), -EPROTO);
    cr_assert_eq(mcs_queue_attach(&q, p.mem, p.layout.total_size - 1), -EPROTO);
    cr_assert_eq(mcs_queue_attach(&q, p.mem, p.layout.total_size + 4096), 0);
    pair_close(&p);
}

/* Each field that the client relies on, changed by itself. */
Test(attach, refuses_each_contradicted_field)
{
#define FIELD(name)                                                                                \
    offsetof(struct mcs_queue_header, name), sizeof(((struct mcs_queue_header *)0)->name)
    static const struct {
        const char *name;
        size_t offset, size;
        int res;
    } fields[] = {
        {"magic", FIELD(magic), -EPROTO},
        {"abi_version", FIELD(abi_version), -EPROTONOSUPPORT},
        {"header_size", FIELD(header_size), -EPROTONOSUPPORT},
        {"ring_header_size", FIELD(ring_header_size), -EPROTONOSUPPORT},
        {"desc_size", FIELD(desc_size), -EPROTONOSUPPORT},
        {"slot_size", FIELD(slot_size), -EPROTONOSUPPORT},
        {"batch_size", FIELD(batch_size), -EPROTONOSUPPORT},
        {"ring_depth", FIELD(ring_depth), -EPROTO},
        {"args_size", FIELD(args_size), -EPROTO},
        {"doorbell_offset", FIELD(doorbell_offset), -EPROTO},
        {"ring_offset", FIELD(ring_offset), -EPROTO},
        {"batches_offset", FIELD(batches_offset), -EPROTO},
        {"slots_offset", FIELD(slots_offset), -EPROTO},
        {"args_offset", FIELD(args_offset), -EPROTO},
        {"total_size", FIELD(total_size), -EPROTO},
    };
#undef FIELD
    struct pair p;
    struct mcs_queue q;

    pair_open(&p, 16, 0);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        uint8_t *at = (uint8_t *)p.mem + fields[i].offset;

        for (size_t byte = 0; byte < fields[i].size; byte++) {
            at[byte] ^= 0x55;
            cr_expect_eq(mcs_queue_attach(&q, p.mem, p.layout.total_size), fields[i].res,
                         "%s, byte %zu", fields[i].name, byte);
            at[byte] ^= 0x55;
        }
    }
    cr_assert_eq(mcs_queue_attach(&q, p.mem, p.layout.total_size), 0);
    pair_close(&p);
}

/* Counts that would still lay out, but elsewhere than the header's offsets say. */
Test(attach, refuses_counts_that_move_the_offsets)
{
    struct pair p;
    struct mcs_queue q;

    pair_open(&p, 16, 0);
    p.agent.header->slots = 64 * 64;
    cr_assert_eq(mcs_queue_attach(&q, p.mem, p.layout.total_size), -EPROTO);
    p.agent.header->slots = 64;
    p.agent.header->batches = 16;
    cr_assert_eq(mcs_queue_attach(&q, p.mem, p.layout.total_size), -EPROTO);
    pair_close(&p);
}

/* Fills and empties the ring so often that its indices pass `start` and wrap. */
static void pass(uint32_t depth, uint32_t start)
{
    struct pair p;
    uint64_t sent = 0, seen = 0;

    pair_open(&p, depth, 0);
    preset(&p, start);
    for (int round = 0; round < 200; round++) {
        struct mcs_desc out[64], d;
        unsigned burst = (unsigned)round % (depth - 1) + 1;
        int n;

        for (unsigned i = 0; i < burst; i++) {
            d = numbered(sent);
            if (!mcs_ring_push(p.client.ring, &d, 1))
                break; /* cons.tail is published late */
            sent++;
        }
        cr_assert_eq(mcs_ring_pending(&p.consumer), sent != seen);
        while ((n = mcs_ring_take(&p.consumer, out, 1 + (unsigned)round % 64)) > 0)
            for (int i = 0; i < n; i++, seen++) {
                d = numbered(seen);
                cr_assert_arr_eq(&out[i], &d, sizeof(d));
            }
        cr_assert_eq(n, 0);
        cr_assert_eq(seen, sent);
        cr_assert_not(mcs_ring_pending(&p.consumer));
    }
    cr_assert_geq(sent, 200);
    pair_close(&p);
}

Test(ring, keeps_order_across_index_wraps)
{
    static const uint32_t depths[] = {2, 4, 64};
    static const uint32_t starts[] = {0, (1u << 31) - 50, UINT32_MAX - 50, UINT32_MAX};

    for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++)
        for (size_t j = 0; j < sizeof(starts) / sizeof(starts[0]); j++)
            pass(depths[i], starts[j]);
}

Test(ring, holds_one_less_than_its_depth_and_takes_all_or_none)
{
    static const uint32_t depths[] = {2, 4, 64};

    for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {
        struct mcs_desc many[64] = {0}, out[64];
        unsigned depth = depths[i];
        struct pair p;

        pair_open(&p, depth, 0);
        preset(&p, UINT32_MAX - 1);
        cr_assert_not(mcs_ring_push(p.client.ring, many, depth));
        cr_assert_not(mcs_ring_pending(&p.consumer));
        cr_assert_eq(mcs_ring_room(p.client.ring), depth - 1);
        cr_assert(mcs_ring_push(p.client.ring, many, depth - 1));
        cr_assert_eq(mcs_ring_room(p.client.ring), 0);
        cr_assert_not(mcs_ring_push(p.client.ring, many, 1));
        cr_assert_eq(mcs_ring_take(&p.consumer, out, 64), (int)depth - 1);
        pair_close(&p);
    }
}

Test(ring, takes_no_more_than_asked)
{
    struct mcs_desc many[10], out[4];
    struct pair p;

    for (unsigned i = 0; i < 10; i++)
        many[i] = numbered(i);
    pair_open(&p, 16, 0);
    cr_assert(mcs_ring_push(p.client.ring, many, 10));
    cr_assert_eq(mcs_ring_take(&p.consumer, out, 4), 4);
    cr_assert_eq(mcs_ring_take(&p.consumer, out, 4), 4);
    cr_assert_eq(mcs_ring_take(&p.consumer, out, 4), 2);
    cr_assert_eq(out[1].length, 9);
    cr_assert_eq(mcs_ring_take(&p.consumer, out, 4), 0);
    pair_close(&p);
}

/* A client that writes nonsense into the ring's header harms nobody but itself. */
Test(ring, an_impossible_tail_is_a_protocol_error)
{
    static const uint32_t leads[] = {64, 65, 1000, 1u << 31, UINT32_MAX};
    struct mcs_desc out[64];
    struct pair p;

    pair_open(&p, 64, 0);
    for (uint32_t base = UINT32_MAX - 2; base != 3; base++) {
        preset(&p, base);
        for (size_t i = 0; i < sizeof(leads) / sizeof(leads[0]); i++) {
            p.client.ring->prod.tail = base + leads[i];
            cr_assert_eq(mcs_ring_take(&p.consumer, out, 64), -EPROTO);
            cr_assert_eq(p.consumer.head, base);
        }
        p.client.ring->prod.tail = base + 63;
        cr_assert_eq(mcs_ring_take(&p.consumer, out, 64), 63);
    }
    pair_close(&p);
}

Test(ring, the_consumer_believes_nothing_else_of_the_header)
{
    struct mcs_desc d = numbered(1), out[64];
    struct pair p;

    pair_open(&p, 64, 0);
    cr_assert(mcs_ring_push(p.client.ring, &d, 1));
    p.client.ring->size = 1u << 30;
    p.client.ring->mask = UINT32_MAX;
    p.client.ring->capacity = UINT32_MAX;
    p.client.ring->cons.head = p.client.ring->cons.tail = 12345;
    p.client.ring->prod.head = 99;
    cr_assert_eq(mcs_ring_take(&p.consumer, out, 64), 1);
    cr_assert_arr_eq(&out[0], &d, sizeof(d));
    mcs_ring_publish(&p.consumer);
    cr_assert_eq(p.client.ring->cons.tail, 1);
    pair_close(&p);
}

Test(ring, publishes_late_but_in_the_end)
{
    struct mcs_desc d = numbered(1), out[64];
    struct pair p;

    pair_open(&p, 64, 0);
    for (unsigned i = 0; i < 64 / 8 - 1; i++) {
        cr_assert(mcs_ring_push(p.client.ring, &d, 1));
        cr_assert_eq(mcs_ring_take(&p.consumer, out, 64), 1);
        cr_assert_eq(p.client.ring->cons.tail, 0, "after %u", i + 1);
    }
    /* an eighth of the ring is given back at once */
    cr_assert(mcs_ring_push(p.client.ring, &d, 1));
    cr_assert_eq(mcs_ring_take(&p.consumer, out, 64), 1);
    cr_assert_eq(p.client.ring->cons.tail, 8);
    /* less than that after some looks in vain */
    cr_assert(mcs_ring_push(p.client.ring, &d, 1));
    cr_assert_eq(mcs_ring_take(&p.consumer, out, 64), 1);
    for (unsigned i = 0; i + 1 < MCS_RING_QUIET_LOOKS; i++) {
        cr_assert_eq(mcs_ring_take(&p.consumer, out, 64), 0);
        cr_assert_eq(p.client.ring->cons.tail, 8);
    }
    cr_assert_eq(mcs_ring_take(&p.consumer, out, 64), 0);
    cr_assert_eq(p.client.ring->cons.tail, 9);
    cr_assert_eq(mcs_ring_room(p.client.ring), 63);
    pair_close(&p);
}

/* The room that a producer counts on, with the consumer's index published or not, is what is left in
 * fact: never more, never a huge number, wherever the indices are. */
Test(ring, room_is_never_more_than_is_free_at_any_index)
{
    static const uint32_t starts[] = {0, (1u << 31) - 2, UINT32_MAX - 1, UINT32_MAX};
    static const uint32_t depths[] = {2, 4, 64};

    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
        for (size_t k = 0; k < sizeof(depths) / sizeof(depths[0]); k++) {
            uint32_t depth = depths[k], pushed = 0, taken = 0;
            struct mcs_desc d, out[8];
            struct pair p;

            pair_open(&p, depth, 0);
            preset(&p, starts[i]);
            for (uint32_t step = 0; step < 6 * depth; step++) {
                uint32_t held = pushed - (p.consumer.published - starts[i]);
                int n;

                cr_assert_eq(mcs_ring_room(p.client.ring), depth - 1 - held);
                d = numbered(pushed);
                cr_assert_eq(mcs_ring_push(p.client.ring, &d, 1), held < depth - 1);
                pushed += held < depth - 1;
                if (step % 3 == 0)
                    continue;
                n = mcs_ring_take(&p.consumer, out, step % 5 + 1);
                cr_assert_geq(n, 0);
                for (int e = 0; e < n; e++)
                    cr_assert_eq(out[e].length, taken++);
                cr_assert_leq(p.consumer.head - p.consumer.published, depth / 8);
            }
            cr_assert_gt(taken, depth);
            pair_close(&p);
        }
}

/* Whoever walks what is pending sees just that, in order, and comes to an end. */
Test(ring, takes_what_is_pending_at_every_index)
{
    for (uint32_t head = UINT32_MAX - 6; head != 13; head++)
        for (uint32_t pending = 0; pending < 4; pending++)
            for (unsigned max = 1; max <= 4; max++) {
                struct mcs_desc d, out[4];
                uint32_t seen = 0;
                struct pair p;
                int n;

                pair_open(&p, 4, 0);
                preset(&p, head);
                for (uint32_t i = 0; i < pending; i++) {
                    d = numbered(i);
                    cr_assert(mcs_ring_push(p.client.ring, &d, 1));
                }
                cr_assert_eq(mcs_ring_pending(&p.consumer), pending != 0);
                while ((n = mcs_ring_take(&p.consumer, out, max)) > 0)
                    for (int i = 0; i < n; i++)
                        cr_assert_eq(out[i].length, seen++);
                cr_assert_eq(n, 0);
                cr_assert_eq(seen, pending);
                cr_assert_eq(p.consumer.head, head + pending);
                pair_close(&p);
            }
}

Test(ring, small_rings_publish_at_once)
{
    static const uint32_t depths[] = {2, 4, 8};

    for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {
        struct mcs_desc d = numbered(1), out[8];
        struct pair p;

        pair_open(&p, depths[i], 0);
        cr_assert(mcs_ring_push(p.client.ring, &d, 1));
        cr_assert_eq(mcs_ring_take(&p.consumer, out, 8), 1);
        cr_assert_eq(mcs_ring_room(p.client.ring), depths[i] - 1);
        pair_close(&p);
    }
}

Test(queue, a_slot_belongs_to_the_generation_in_its_word)
{
    uint64_t word = MCS_SLOT_WORD(0xfffffffeu, MCS_REVOKED, MCS_PATH_LOCAL,
                                  MCS_STATE_FAILED | MCS_SLOT_REMOTE_QUIESCED);
    struct pair p;

    cr_assert_eq(word, UINT64_C(0xfffffffe00170186));
    pair_open(&p, 4, 0);
    cr_assert_eq(mcs_slot_peek(&p.client, 63), 0);
    mcs_slot_complete(&p.agent, 63, word, UINT64_MAX, 1, 2, 3);
    cr_assert_eq(mcs_slot_peek(&p.client, 63), word);
    cr_assert_eq(p.client.slot_table[63].bytes, UINT64_MAX);
    cr_assert_eq(p.client.slot_table[63].notify_ns, 3);
    cr_assert_eq(mcs_slot_peek(&p.client, 62), 0);
    pair_close(&p);
}

Test(queue, a_batch_line_says_generation_and_end)
{
    struct pair p;

    pair_open(&p, 4, 0);
    mcs_batch_publish(&p.agent, 7, 9, 3, 1, 5, 4096);
    cr_assert_eq(mcs_batch_peek(&p.client, 7), UINT64_C(9) << 32 | 3);
    cr_assert_eq(p.client.batch_lines[7].failed, 1);
    cr_assert_eq(p.client.batch_lines[7].taken, 5);
    cr_assert_eq(p.client.batch_lines[7].bytes, 4096);
    cr_assert_eq(mcs_batch_peek(&p.client, 6), 0);
    pair_close(&p);
}

Test(queue, doorbell_words_reach_the_other_side)
{
    struct pair p;

    pair_open(&p, 4, 0);
    cr_assert_not(mcs_queue_must_wake(&p.client));
    mcs_queue_sleep(&p.agent, true);
    cr_assert(mcs_queue_must_wake(&p.client));
    mcs_queue_sleep(&p.agent, false);
    cr_assert_not(mcs_queue_must_wake(&p.client));
    cr_assert_eq(mcs_queue_waiter(&p.agent), MCS_WAIT_NONE);
    mcs_queue_wait_begin(&p.client, 0);
    cr_assert_eq(mcs_queue_waiter(&p.agent), MCS_WAIT_BATCH(0));
    mcs_queue_wait_end(&p.client);
    cr_assert_eq(mcs_queue_waiter(&p.agent), MCS_WAIT_NONE);
    pair_close(&p);

    pair_open(&p, 4, MCS_FEATURE_NEVER_SLEEPS);
    mcs_queue_sleep(&p.agent, true);
    cr_assert_not(mcs_queue_must_wake(&p.client), "an agent that never sleeps needs no bell");
    pair_close(&p);
}

/* A later agent: the same memory, nothing else. */
static int resume(struct pair *p, uint32_t id, uint64_t session)
{
    return mcs_queue_resume(&p->agent, &p->consumer, p->mem, &p->layout, id, session,
                            MCS_FEATURE_NEVER_SLEEPS);
}

Test(life, a_later_agent_goes_on_behind_what_was_taken)
{
    struct mcs_desc in[5], out[8];
    struct pair p;
    uint32_t from;

    pair_open(&p, 8, 0);
    for (unsigned i = 0; i < 5; i++)
        in[i] = numbered(100 + i);
    cr_assert(mcs_ring_push(p.client.ring, in, 5));
    cr_assert_eq(mcs_ring_take(&p.consumer, out, 2), 2);
    cr_assert_eq(p.agent.doorbell->taken, 2u);
    cr_assert_eq(mcs_queue_life(&p.client, &from), 0u);
    memset(&p.consumer, 0, sizeof(p.consumer)); /* dies with the agent */
    cr_assert_eq(resume(&p, 7, 0x1234), 0);
    cr_assert_eq(mcs_queue_life(&p.client, &from), 0u, "not told yet");
    mcs_queue_resumed(&p.agent, &p.consumer, 99);
    cr_assert_eq(mcs_queue_life(&p.client, &from), 99u);
    cr_assert_eq(from, 2u);
    cr_assert_eq(p.agent.header->features, MCS_FEATURE_NEVER_SLEEPS);
    cr_assert_eq(mcs_ring_take(&p.consumer, out, 8), 3);
    cr_assert_eq(out[0].length, 102u);
    cr_assert_eq(p.agent.doorbell->taken, 5u);
    /* the room of what was taken is there again */
    mcs_ring_settle(&p.consumer);
    cr_assert_eq(mcs_ring_room(p.client.ring), 7u);
    pair_close(&p);
}

Test(life, a_queue_that_contradicts_the_ledger_is_refused)
{
    struct pair p;

    pair_open(&p, 8, 0);
    cr_assert_eq(resume(&p, 8, 0x1234), -EPROTO, "another queue");
    cr_assert_eq(resume(&p, 7, 0x1235), -EPROTO, "another session");
    p.agent.ring->prod.tail = 8;
    cr_assert_eq(resume(&p, 7, 0x1234), -EPROTO, "more than the ring holds");
    p.agent.ring->prod.tail = 7;
    cr_assert_eq(resume(&p, 7, 0x1234), 0);
    p.agent.doorbell->taken = 8;
    cr_assert_eq(resume(&p, 7, 0x1234), -EPROTO, "more taken than was put");
    p.agent.doorbell->taken = 7;
    cr_assert_eq(resume(&p, 7, 0x1234), 0);
    p.agent.header->slots = 32; /* sound by itself */
    cr_assert_eq(resume(&p, 7, 0x1234), -EPROTO, "another layout");
    p.agent.header->slots = 64;
    p.agent.header->total_size = 1;
    cr_assert_eq(resume(&p, 7, 0x1234), -EPROTO);
    p.agent.header->magic = 0;
    cr_assert_eq(resume(&p, 7, 0x1234), -EPROTO);
    pair_close(&p);
}
