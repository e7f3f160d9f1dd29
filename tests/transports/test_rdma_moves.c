/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes, notifications, credits, sleep: what goes well. */
#include "rdma_fixture.h"
#include "tests/fake-verbs/fake.h"

#include <sys/epoll.h>

#define MIB (UINT64_C(1) << 20)

static void move(struct fix *f, enum mct_op op, uint64_t local, uint64_t remote, uint64_t length)
{
    struct mct_slice s = fix_slice(f, op, local, remote, length);
    uint8_t *a = f->a.memory + local, *b = f->b.memory + remote, *to = op == MCT_WRITE ? b : a;
    /* what lies beside it must not change */
    uint64_t first = op == MCT_WRITE ? remote : local, last = first + length;
    uint8_t before = first == 0 ? 0 : to[-1], after = last == f->size ? 0 : to[length];

    fix_fill(op == MCT_WRITE ? a : b, length, local + remote + length + (uint64_t)op);
    fix_run(f, &s);
    cr_assert_eq(s.status, MCS_OK, "%u %d: op %u, %lu + %lu", s.status, s.error, op, remote,
                 length);
    cr_assert(s.settled && s.moved == length && s.conn != 0);
    cr_assert_eq(memcmp(a, b, length), 0, "op %u, %lu <- %lu + %lu", op, local, remote, length);
    cr_assert(first == 0 || to[-1] == before);
    cr_assert(last == f->size || to[length] == after);
}

Test(rdma_moves, all_sizes_and_offsets)
{
    static const uint64_t sizes[] = {1,      2,       63,   64,      65,      127,
                                     128,    129,     4095, 4096,    4097,    65536,
                                     100001, MIB - 1, MIB,  MIB + 1, 4 * MIB, 7 * MIB + 3};
    struct fix f;

    fix_init(&f, 2);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (unsigned k = 0; k < 4; k++) {
            move(&f, MCT_WRITE, k * 3, 7 * k, sizes[i]);
            move(&f, MCT_READ, k * 5 + 1, 2 * k, sizes[i]);
        }
    cr_assert_gt(fix_stats(&f.a)->inlined, 0u);
    cr_assert_eq(fix_stats(&f.a)->conns, 2u);
    cr_assert_eq(fix_stats(&f.b)->inbound, 2u);
    cr_assert_gt(mct_rdma_ops.progress(f.link), 0u);
    fix_fini(&f);
}

/* Memory of GPUs at both ends: no thread of an agent may touch it, so nothing goes inline either. */
Test(rdma_moves, all_sizes_between_dmabufs)
{
    static const uint64_t sizes[] = {1, 63, 64, 65, 4097, 100001, MIB + 1, 5 * MIB - 200};
    struct fix f;

    fix_devices(&f, 1);
    f.gpu = true;
    f.a.devices[0]->attr.max_mr_size = f.b.devices[0]->attr.max_mr_size = 2 * MIB;
    f.size = 5 * MIB;
    fix_open(&f);
    fix_join(&f, 0);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (unsigned k = 0; k < 4; k++) {
            move(&f, MCT_WRITE, k * 3, 7 * k, sizes[i]);
            move(&f, MCT_READ, k * 5 + 1, 2 * k, sizes[i]);
        }
    cr_assert_eq(fix_stats(&f.a)->inlined, 0u);
    fix_fini(&f);
}

/* A device that registers no more than 2 MiB at a time: 5 MiB are three registrations at each end. */
Test(rdma_moves, borders_of_registrations)
{
    struct fix f;

    fix_devices(&f, 1);
    f.a.devices[0]->attr.max_mr_size = f.b.devices[0]->attr.max_mr_size = 2 * MIB;
    f.size = 5 * MIB;
    fix_open(&f);
    fix_join(&f, 0);
    cr_assert_eq(f.keys.nchunks, 3u);
    for (unsigned op = MCT_READ; op <= MCT_WRITE; op++) {
        move(&f, op, 0, 0, 1);
        move(&f, op, 0, 2 * MIB - 1, 2);
        move(&f, op, 2 * MIB - 1, 0, 2);
        move(&f, op, 3 * MIB, 3 * MIB, 1);
        move(&f, op, 5 * MIB - 1, 5 * MIB - 1, 1);
        move(&f, op, 0, 0, 5 * MIB);
        move(&f, op, 1, 0, 5 * MIB - 1); /* pieces of 1 byte at each border */
        move(&f, op, MIB + 17, 3, 3 * MIB + 11);
        move(&f, op, 64, 4 * MIB - 1, 100); /* would go inline, and crosses */
    }
    fix_fini(&f);
}

Test(rdma_moves, longer_than_a_message)
{
    struct fix f;
    struct fake_stats before, after;
    struct mct_slice s;

    fix_devices(&f, 1);
    f.a.devices[0]->ports[0].attr.max_msg_sz = f.b.devices[0]->ports[0].attr.max_msg_sz = 65536;
    f.o.depth = 32;
    fix_open(&f);
    fix_join(&f, 0);
    fake_stats(f.a.devices[0], &before);
    move(&f, MCT_WRITE, 5, 77, 2 * MIB);
    fake_stats(f.a.devices[0], &after);
    cr_assert_eq(after.requests - before.requests, 32u);
    cr_assert_eq(after.doorbells - before.doorbells, 1u, "all pieces with one doorbell");
    cr_assert_eq(after.signalled - before.signalled, 2u, "every 16th asks for a completion");
    move(&f, MCT_READ, 5, 77, 2 * MIB);
    /* more pieces than the queue has room for: never posted, and said */
    s = fix_slice(&f, MCT_WRITE, 0, 0, 2 * MIB + 1);
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_LIMIT, "%u", s.status);
    cr_assert(s.settled && s.conn == 0);
    fix_check_alive(&f);
    fix_fini(&f);
}

/* A pair has few READs at a time: were only the last of them to ask, it would have none under way when that one is back. */
Test(rdma_moves, reads_ask_before_they_run_dry)
{
    struct fix f;
    struct mct_slice s[16], *list[16];
    struct fake_stats before, after;

    fix_devices(&f, 1);
    f.o.max_reads = 16;
    fix_open(&f);
    fix_join(&f, 0);
    cr_assert_eq(f.pa[0]->reads, 16u);
    for (unsigned i = 0; i < 16; i++) {
        s[i] = fix_slice(&f, MCT_READ, i * 4096, i * 4096, 4096);
        list[i] = &s[i];
    }
    fake_stats(f.a.devices[0], &before);
    cr_assert_eq(mct_rdma_ops.post(f.link, list, 16), 16u);
    fix_until(&f, f.a.done == 16);
    fake_stats(f.a.devices[0], &after);
    cr_assert_eq(after.doorbells - before.doorbells, 1u);
    cr_assert_eq(after.signalled - before.signalled, 4u, "every 4th asks for a completion");
    for (unsigned i = 0; i < 16; i++)
        cr_assert_eq(s[i].status, MCS_OK);
    fix_check_alive(&f);
    fix_fini(&f);
}

Test(rdma_moves, batches)
{
    struct fix f;
    struct mct_slice s[64], *list[64];
    struct fake_stats before, after;
    unsigned taken;

    fix_init(&f, 2);
    for (unsigned i = 0; i < 64; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i * 4096, i * 8192, 4096);
        list[i] = &s[i];
    }
    fake_stats(f.a.devices[0], &before);
    fix_fill(f.a.memory, 64 * 4096, 5);
    taken = mct_rdma_ops.post(f.link, list, 64);
    cr_assert_eq(taken, 64u);
    fake_stats(f.a.devices[0], &after);
    cr_assert_eq(after.doorbells - before.doorbells, 2u, "one a connection");
    fix_until(&f, f.a.done == 64);
    fake_stats(f.a.devices[0], &after);
    cr_assert_eq(after.signalled - before.signalled, 4u);
    for (unsigned i = 0; i < 64; i++) {
        cr_assert_eq(s[i].status, MCS_OK);
        cr_assert_eq(fix_backs(&s[i]), 1u);
        cr_assert_eq(s[i].conn == f.ids[0] ? 1u : s[i].conn == f.ids[1] ? 1u : 0u, 1u);
        cr_assert_arr_eq(f.a.memory + i * 4096, f.b.memory + i * 8192, 4096);
    }
    fix_fini(&f);
}

Test(rdma_moves, what_has_no_key_says_so)
{
    struct fix f;
    struct mct_slice s;
    struct mct_rdma_keys short_keys;
    uint64_t other[1] = {12345};

    fix_init(&f, 1);
    /* no local registration: only what goes inline can go */
    s = fix_slice(&f, MCT_WRITE, 0, 0, 4096);
    s.registration = NULL;
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_NOT_REGISTERED, "%u", s.status);
    cr_assert(s.settled && s.conn == 0 && s.moved == 0);
    s = fix_slice(&f, MCT_WRITE, 0, 0, 8);
    s.registration = NULL;
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_OK);
    s = fix_slice(&f, MCT_READ, 0, 0, 8);
    s.registration = NULL;
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_NOT_REGISTERED);
    /* outside of it */
    s = fix_slice(&f, MCT_WRITE, f.size - 4096, 0, 8192);
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_NOT_REGISTERED);
    /* no remote keys, or those of a nic that the connection does not lead to, or fewer than it takes */
    s = fix_slice(&f, MCT_WRITE, 0, 0, 4096);
    s.remote_keys = NULL;
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_NOT_REGISTERED);
    short_keys = f.keys;
    short_keys.nics = other;
    s = fix_slice(&f, MCT_WRITE, 0, 0, 4096);
    s.remote_keys = &short_keys;
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_NOT_REGISTERED);
    short_keys = f.keys;
    short_keys.length = 4096;
    s = fix_slice(&f, MCT_WRITE, 0, 1, 4096);
    s.remote_keys = &short_keys;
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_NOT_REGISTERED);
    short_keys = f.keys;
    short_keys.chunk = 4096; /* ... than chunks */
    s = fix_slice(&f, MCT_WRITE, 0, 4096, 4096);
    s.remote_keys = &short_keys;
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_NOT_REGISTERED);
    s = fix_slice(&f, MCT_WRITE, 0, 0, 0);
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_INVALID_ARGUMENT);
    fix_check_alive(&f);
    fix_fini(&f);
}

/* With two nics a slice goes where it has keys. */
Test(rdma_moves, goes_where_it_has_keys)
{
    struct fix f;
    struct mct_rdma_keys only;

    fix_devices(&f, 2);
    fix_open(&f);
    fix_join(&f, 0);
    fix_join(&f, 1);
    cr_assert_eq(f.keys.nnics, 2u);
    only = f.keys;
    only.nnics = 1;
    for (unsigned i = 0; i < 2; i++) {
        only.nics = f.keys.nics + i;
        only.rkeys = f.keys.rkeys + (size_t)i * f.keys.nchunks;
        for (unsigned k = 0; k < 8; k++) {
            struct mct_slice s = fix_slice(&f, MCT_WRITE, 0, 0, 100000);

            s.remote_keys = &only;
            fix_run(&f, &s);
            cr_assert_eq(s.status, MCS_OK);
            cr_assert_eq(s.conn, f.ids[i]);
        }
    }
    fix_fini(&f);
}

/* ---- credits --------------------------------------------------------------------- */

/* A completion queue of 16 entries for four connections: one takes them all, fails, and gives them back. The
 * fake aborts when the queue could overrun. */
Test(rdma_moves, completion_queue_is_shared)
{
    struct fix f;

    fix_devices(&f, 1);
    f.o.cq_depth = 16;
    f.o.depth = 16;
    fix_open(&f);
    for (unsigned i = 0; i < 3; i++)
        fix_join(&f, 0);
    for (unsigned round = 0; round < 100; round++) {
        struct mct_slice s[20], *list[20];
        unsigned taken, lost = f.a.lost, before = f.a.done;
        struct mct_link *link;
        struct mct_conn conn = {.fd = -1};
        unsigned n;

        f.npairs = 3;
        n = fix_pair(&f, 0);
        cr_assert_eq(mct_rdma_ops.connect(f.a.t, NULL, &link), 0);
        conn = (struct mct_conn){.fd = -1, .pair = f.pb[n], .id = f.ids[n]};
        cr_assert_eq(mct_rdma_ops.serve(f.b.t, &conn, &f.visitor), 0);
        conn.pair = f.pa[n];
        cr_assert_eq(mct_rdma_ops.adopt(link, &conn), 0);
        fake_pace(f.a.devices[0], FAKE_HELD);
        for (unsigned i = 0; i < 20; i++) {
            s[i] = fix_slice(&f, MCT_WRITE, i * 4096, i * 4096, 4096);
            list[i] = &s[i];
        }
        taken = mct_rdma_ops.post(link, list, 20);
        cr_assert_eq(taken, 16u);
        cr_assert_gt(fix_stats(&f.a)->full, 0u);
        {
            struct mct_slice other = fix_slice(&f, MCT_WRITE, 0, 0, 4096);

            cr_assert_eq(fix_post(&f, &other), 0u, "no entry is left for the other connections");
        }
        mct_rdma_ops.abort(link, -ENETDOWN);
        fix_until(&f, f.a.lost == lost + 1);
        cr_assert_eq(f.a.done - before, 16u);
        for (unsigned i = 0; i < 16; i++) {
            cr_assert_eq(s[i].status, MCS_RAIL);
            cr_assert_eq(s[i].error, -ENETDOWN);
            cr_assert(!s[i].settled && s[i].conn == f.ids[n]);
        }
        fake_pace(f.a.devices[0], FAKE_AT_ONCE);
        (void)mct_rdma_ops.end(f.b.t, &f.visitor, f.ids[n]);
        mct_rdma_ops.disconnect(link);
        for (unsigned i = 0; i < 20; i++)
            fix_check_alive(&f);
        fix_until(&f, mct_rdma_ops.end(f.b.t, &f.visitor, f.ids[n]) == 0);
    }
    fix_fini(&f);
}

/* A window of READs, so that WRITEs never wait behind more than the device does at a time. */
Test(rdma_moves, reads_have_a_window)
{
    struct fix f;
    struct mct_slice r[8], w, *list[8];
    struct fake_stats st;

    fix_init(&f, 1);
    fake_pace(f.a.devices[0], FAKE_HELD);
    for (unsigned i = 0; i < 8; i++) {
        r[i] = fix_slice(&f, MCT_READ, i * 4096, i * 4096, 4096);
        list[i] = &r[i];
    }
    cr_assert_eq(mct_rdma_ops.post(f.link, list, 8), 4u);
    w = fix_slice(&f, MCT_WRITE, 1 << 20, 1 << 20, 4096);
    cr_assert_eq(fix_post(&f, &w), 1u);
    fake_stats(f.a.devices[0], &st);
    cr_assert_eq(st.most_reads, 4u);
    fake_pace(f.a.devices[0], FAKE_AT_ONCE);
    (void)fake_release(f.a.devices[0], 100);
    fix_until(&f, f.a.done == 5);
    cr_assert_eq(mct_rdma_ops.post(f.link, list + 4, 4), 4u);
    fix_until(&f, f.a.done == 9);
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(r[i].status, MCS_OK);
    fix_fini(&f);
}

/* READs of more pieces than the window go all the same. */
Test(rdma_moves, a_read_larger_than_the_window)
{
    struct fix f;

    fix_devices(&f, 1);
    f.a.devices[0]->ports[0].attr.max_msg_sz = 65536;
    fix_open(&f);
    fix_join(&f, 0);
    move(&f, MCT_READ, 3, 7, MIB);
    fix_fini(&f);
}

/* ---- notifications --------------------------------------------------------------- */

Test(rdma_moves, notifications)
{
    static char text[300 + 8192];
    static const uint16_t statuses[] = {MCS_OK, MCS_INBOX_FULL, MCS_STALE, MCS_REVOKED};
    struct fix f;

    fix_init(&f, 1);
    fix_fill((uint8_t *)text, sizeof(text), 4);
    for (unsigned i = 0; i < 4; i++) {
        struct mct_slice s = fix_notice(text + i, i * 85, i * 85 + i * 1000 + 1);

        f.b.notify_status = statuses[i];
        fix_run(&f, &s);
        cr_assert_eq(s.status, statuses[i]);
        cr_assert(s.settled && s.conn == f.ids[0]);
        cr_assert_eq(f.b.notifications, i + 1);
        cr_assert_eq(f.b.name_length, i * 85);
        cr_assert_eq(f.b.message_length, i * 1000 + 1);
        cr_assert_arr_eq(f.b.name, text + i, i * 85);
        cr_assert_arr_eq(f.b.message, text + i + i * 85, i * 1000 + 1);
        cr_assert(f.b.source == 77 && f.b.bytes == 12345 && f.b.address == 99);
        cr_assert_eq(f.b.incarnation, UINT64_C(0x1122334455667788));
    }
    cr_assert_eq(fix_stats(&f.b)->served, 1u);
    cr_assert_eq(fix_stats(&f.b)->refused, 3u);
    {
        struct mct_slice s = fix_notice(text, 0, MCT_RDMA_PAYLOAD + 1);

        fix_run(&f, &s);
        cr_assert_eq(s.status, MCS_INVALID_ARGUMENT);
        s = fix_notice(text, 257, 300);
        fix_run(&f, &s);
        cr_assert_eq(s.status, MCS_INVALID_ARGUMENT);
        s = fix_notice(text, 20, 10);
        fix_run(&f, &s);
        cr_assert_eq(s.status, MCS_INVALID_ARGUMENT);
    }
    fix_fini(&f);
}

/* Eight wait for their answers, more are not taken; a thousand go through, and every buffer comes back. */
Test(rdma_moves, many_notifications)
{
    struct fix f;
    char text[] = "namemessage";
    static struct mct_slice s[1000];
    unsigned posted = 0, at_once = 0;

    fix_init(&f, 2);
    for (unsigned i = 0; i < 1000; i++)
        s[i] = fix_notice(text, 4, 11);
    while (fix_post(&f, &s[posted]) == 1)
        posted++, at_once++;
    cr_assert_eq(at_once, 2 * MCT_RDMA_NOTICES);
    while (posted < 1000) {
        if (fix_post(&f, &s[posted]) == 1)
            posted++;
        fix_turn(&f);
    }
    fix_until(&f, f.a.done == 1000);
    cr_assert_eq(f.b.notifications, 1000u);
    for (unsigned i = 0; i < 1000; i++)
        cr_assert(s[i].status == MCS_OK && fix_backs(&s[i]) == 1);
    cr_assert_eq(f.a.lost + f.b.left, 0u);
    fix_fini(&f);
}

/* ---- sleep ----------------------------------------------------------------------- */

static bool rings(struct fix_side *side)
{
    struct epoll_event ev;

    return epoll_wait(side->epoll_fd, &ev, 1, 0) == 1;
}

/* What happens after arm() rings; what has happened before makes it say so. */
Test(rdma_moves, sleep_and_wake)
{
    struct fix f;
    char text[] = "hello";
    struct mct_slice s;

    fix_init(&f, 1);
    for (unsigned i = 0; i < 20; i++) {
        fix_until(&f, mct_rdma_ops.arm(f.b.t));
        fix_until(&f, mct_rdma_ops.arm(f.a.t));
        while (!mct_rdma_ops.arm(f.b.t) || !mct_rdma_ops.arm(f.a.t))
            ;
        cr_assert(!rings(&f.a) && !rings(&f.b));
        cr_assert_not(mct_rdma_ops.pending(f.a.t));
        s = i % 2 == 0 ? fix_notice(text, 0, 5) : fix_slice(&f, MCT_WRITE, 0, 0, 4096);
        cr_assert_eq(fix_post(&f, &s), 1u);
        cr_assert(mct_rdma_ops.pending(f.a.t));
        cr_assert(rings(&f.a), "its completion");
        if (i % 2 == 0)
            cr_assert(rings(&f.b), "a message came");
        cr_assert_not(mct_rdma_ops.arm(f.a.t));
        fix_until(&f, fix_backs(&s) == 1);
        cr_assert_eq(s.status, MCS_OK);
    }
    /* a queue pair that fails wakes, too */
    while (!mct_rdma_ops.arm(f.b.t) || !mct_rdma_ops.arm(f.a.t))
        ;
    cr_assert(fake_qp_event(f.b.devices[0], IBV_EVENT_QP_FATAL, f.pb[0]->qp->qp_num));
    for (uint64_t end = fix_now() + FIX_WAIT_NS; !rings(&f.b);)
        cr_assert_lt(fix_now(), end);
    fix_until(&f, f.b.left == 1);
    fix_fini(&f);
}

/* An engine that turns only when something rings. */
#define sleep_until(f, side, condition)                                                            \
    do {                                                                                           \
        while (!(condition)) {                                                                     \
            struct epoll_event ev_;                                                                \
                                                                                                   \
            if (mct_rdma_ops.arm((side)->t) && !(condition))                                       \
                cr_assert_eq(epoll_wait((side)->epoll_fd, &ev_, 1, 10000), 1, "line %d",           \
                             __LINE__);                                                            \
            (void)fix_engine_turn(side);                                                           \
        }                                                                                          \
    } while (0)

/* No step of an end waits for a clock. */
Test(rdma_moves, ends_while_asleep)
{
    struct fix f;
    struct mct_slice s[4];

    fix_init(&f, 2);
    fake_pace(f.a.devices[0], FAKE_HELD);
    for (unsigned i = 0; i < 4; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    mct_rdma_ops.cancel(f.link, &s[0]);
    sleep_until(&f, &f.a, f.a.lost == 1);
    mct_rdma_ops.abort(f.link, -ENETDOWN);
    sleep_until(&f, &f.a, f.a.lost == 2 && !mct_rdma_ops.pending(f.a.t));
    sleep_until(&f, &f.b, mct_rdma_ops.end(f.b.t, &f.visitor, f.ids[0]) == 0);
    sleep_until(&f, &f.b, mct_rdma_ops.dismiss(f.b.t, &f.visitor) == 0);
    fix_fini(&f);
}

/* What was armed for connections that are gone meanwhile does not keep the engine awake. */
Test(rdma_moves, sleeps_after_its_connections)
{
    struct fix f;
    struct mct_slice s;

    fix_init(&f, 1);
    while (!mct_rdma_ops.arm(f.a.t))
        ;
    s = fix_slice(&f, MCT_WRITE, 0, 0, 4096);
    cr_assert_eq(fix_post(&f, &s), 1u);
    cr_assert(rings(&f.a));
    fix_until(&f, f.a.done == 1);
    mct_rdma_ops.abort(f.link, -ENETDOWN);
    fix_until(&f, f.a.t->conns == NULL);
    for (uint64_t end = fix_now() + FIX_WAIT_NS; !mct_rdma_ops.arm(f.a.t) || rings(&f.a);)
        cr_assert_lt(fix_now(), end);
    fix_fini(&f);
}

/* Completions carry 32 bits of a work request's number. */
Test(rdma_moves, numbers_wrap_around)
{
    enum { SLICES = 40 };
    struct fix f;
    struct mct_slice s[SLICES];
    struct mct_rdma_conn *c;

    fix_init(&f, 1);
    c = f.pa[0]->engine;
    c->posted = c->known = UINT32_MAX - SLICES / 2;
    for (unsigned round = 0; round < 2; round++) {
        fake_pace(f.a.devices[0], FAKE_HELD);
        for (unsigned i = 0; i < SLICES; i++) {
            s[i] = fix_slice(&f, MCT_WRITE, i * 4096, i * 4096, 4096);
            cr_assert_eq(fix_post(&f, &s[i]), 1u);
        }
        (void)fake_release(f.a.devices[0], SLICES / 2 + 5);
        fix_until(&f, f.a.done == round * SLICES + SLICES / 2 + 5);
        fake_pace(f.a.devices[0], FAKE_AT_ONCE);
        fix_until(&f, f.a.done == (round + 1) * SLICES);
        for (unsigned i = 0; i < SLICES; i++)
            cr_assert(s[i].status == MCS_OK && fix_backs(&s[i]) == 1);
    }
    cr_assert_gt(c->posted, (uint64_t)UINT32_MAX);
    fix_check_alive(&f);
    fix_fini(&f);
}
