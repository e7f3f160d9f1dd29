/* SPDX-License-Identifier: Apache-2.0 */
/* The promise: what came back is quiet. Cancelling, quiescing, giving up, ending, at every stage. */
#include "rdma_fixture.h"
#include "tests/fake-verbs/fake.h"

static bool all_are(const uint8_t *memory, uint64_t size, uint8_t value)
{
    for (uint64_t i = 0; i < size; i++)
        if (memory[i] != value)
            return false;
    return true;
}

/* No work request can be withdrawn: its connection goes, and the others on it are told so. */
Test(rdma_quiet, cancel_stops_one_connection)
{
    struct fix f;
    struct mct_slice s[8];

    fix_init(&f, 2);
    memset(f.b.memory, 1, f.size);
    memset(f.a.memory, 2, f.size);
    fake_pace(f.a.devices[0], FAKE_HELD);
    for (unsigned i = 0; i < 8; i++) {
        s[i] = fix_slice(&f, i >= 6 ? MCT_READ : MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    mct_rdma_ops.cancel(f.link, &s[0]);
    mct_rdma_ops.cancel(f.link, &s[6]);
    cr_assert_eq(f.a.done, 0u, "never from inside the call");
    fix_until(&f, f.a.lost == 1);
    cr_assert_eq(f.a.lost_ids[0], f.ids[0] == s[0].conn ? f.ids[0] : f.ids[1]);
    cr_assert_eq(f.a.done, 4u);
    for (unsigned i = 0; i < 8; i++) {
        cr_assert_eq(fix_backs(&s[i]), i % 2 == 0 ? 1u : 0u, "%u", i);
        if (i % 2 != 0)
            continue;
        cr_assert_eq(s[i].status, i == 0 || i == 6 ? MCS_CANCELED : MCS_RAIL);
        cr_assert_eq(s[i].conn, f.a.lost_ids[0]);
        cr_assert_eq(s[i].settled, s[i].op == MCT_READ);
        cr_assert_eq(s[i].error, i == 0 || i == 6 ? 0 : -ECANCELED);
    }
    /* the other connection goes on */
    fake_pace(f.a.devices[0], FAKE_AT_ONCE);
    (void)fake_release(f.a.devices[0], 100);
    fix_until(&f, f.a.done == 8);
    for (unsigned i = 0; i < 8; i++)
        if (i % 2 != 0) {
            cr_assert_eq(s[i].status, MCS_OK);
            cr_assert(all_are(s[i].op == MCT_WRITE ? f.b.memory + i * 4096 : f.a.memory + i * 4096,
                              4096, s[i].op == MCT_WRITE ? 2 : 1));
        } else {
            /* nothing of the cancelled ones moved afterwards */
            cr_assert(all_are(f.b.memory + i * 4096, 4096, 1));
            cr_assert(all_are(f.a.memory + i * 4096, 4096, 2));
        }
    fix_check_alive(&f);
    fix_fini(&f);
}

/* A slice is not handed back before its queue pair has flushed it, or is destroyed. */
Test(rdma_quiet, back_only_when_flushed)
{
    struct fix f;
    struct mct_slice s;
    uint64_t began;

    fix_init(&f, 1);
    fake_hold_flushes(f.a.devices[0], true);
    fake_pace(f.a.devices[0], FAKE_HELD);
    s = fix_slice(&f, MCT_READ, 0, 0, 4096);
    cr_assert_eq(fix_post(&f, &s), 1u);
    mct_rdma_ops.cancel(f.link, &s);
    began = fix_now();
    while (fix_now() - began < UINT64_C(200000000)) {
        fix_turn(&f);
        cr_assert_eq(f.a.done, 0u);
    }
    fake_hold_flushes(f.a.devices[0], false);
    (void)fake_release(f.a.devices[0], 100);
    fix_until(&f, f.a.lost == 1);
    cr_assert_eq(f.a.done, 1u);
    cr_assert_eq(s.status, MCS_CANCELED);
    cr_assert(s.settled);
    fix_fini(&f);
}

/* What had come through before the cancel is told as such. */
Test(rdma_quiet, cancel_comes_too_late)
{
    struct fix f;
    struct mct_slice s;

    fix_init(&f, 1);
    s = fix_slice(&f, MCT_WRITE, 0, 0, 4096);
    cr_assert_eq(fix_post(&f, &s), 1u);
    mct_rdma_ops.cancel(f.link, &s);
    fix_until(&f, f.a.lost == 1);
    cr_assert_eq(s.status, MCS_OK);
    cr_assert(s.settled && s.moved == 4096);
    mct_rdma_ops.cancel(f.link, &s); /* it is back: nothing happens */
    cr_assert_eq(f.a.done, 1u);
    fix_fini(&f);
}

Test(rdma_quiet, cancel_a_notification)
{
    struct fix f;
    char text[] = "text";
    struct mct_slice s = fix_notice(text, 0, 4);

    fix_init(&f, 1);
    cr_assert_eq(fix_post(&f, &s), 1u);
    mct_rdma_ops.cancel(f.link, &s);
    cr_assert_eq(f.a.done, 0u);
    (void)fix_engine_turn(&f.a);
    cr_assert_eq(f.a.done, 1u, "its bytes were copied: nothing to wait for");
    cr_assert_eq(s.status, MCS_CANCELED);
    cr_assert(!s.settled && s.conn == f.ids[0]);
    fix_until(&f, f.b.notifications == 1);
    fix_until(&f, !mct_rdma_ops.pending(f.a.t)); /* the late answer is its answer */
    cr_assert_eq(f.a.lost, 0u);
    s = fix_notice(text, 0, 4);
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_OK);
    fix_fini(&f);
}

/* Random posts and cancels: each slice comes back once, and has moved its bytes when it says so. */
static void storm(enum fake_pace pace)
{
    enum { SLICES = 3000, AT_ONCE = 48 };
    struct fix f;
    static struct mct_slice s[SLICES];
    unsigned posted = 0, checked = 0, ok = 0, canceled = 0, rail = 0;
    uint64_t random = 12345;

    fix_devices(&f, 1);
    f.o.depth = 16;
    f.o.cq_depth = 48;
    fix_open(&f);
    for (unsigned i = 0; i < 4; i++)
        fix_join(&f, 0);
    fix_fill(f.a.memory, f.size, 1);
    fix_fill(f.b.memory, f.size, 2);
    fake_pace(f.a.devices[0], pace);
    while (checked < SLICES) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        if (posted < SLICES && posted - checked < AT_ONCE) {
            uint64_t at = posted % AT_ONCE * 65536, n = 1 + (random >> 33) % 65536;

            s[posted] = fix_slice(&f, random >> 63 == 0 ? MCT_WRITE : MCT_READ, at,
                                  at + (UINT64_C(8) << 20), n);
            posted += fix_post(&f, &s[posted]);
        }
        if ((random >> 20) % 64 == 0 && posted > checked)
            mct_rdma_ops.cancel(f.link, &s[checked + (random >> 40) % (posted - checked)]);
        if (pace == FAKE_HELD)
            (void)fake_release(f.a.devices[0], (unsigned)(random >> 50) % 3);
        fix_turn(&f);
        while (f.a.lost > 0) { /* what the agents do */
            f.a.lost--;
            (void)mct_rdma_ops.end(f.b.t, &f.visitor, f.a.lost_ids[f.a.lost % 64]);
            fix_join(&f, 0);
        }
        while (checked < posted && fix_backs(&s[checked]) != 0) {
            struct mct_slice *x = &s[checked++];
            const uint8_t *a = x->local, *b = f.b.memory + (x->remote_address - FIX_PUBLISHED);

            cr_assert_eq(fix_backs(x), 1u);
            ok += x->status == MCS_OK;
            canceled += x->status == MCS_CANCELED;
            rail += x->status == MCS_RAIL;
            if (x->status == MCS_OK)
                cr_assert_eq(memcmp(a, b, x->length), 0);
            else if (x->op == MCT_READ)
                cr_assert(x->settled);
        }
    }
    cr_assert_eq(ok + canceled + rail, (unsigned)SLICES);
    if (pace == FAKE_HELD)
        cr_assert(ok != 0 && canceled != 0 && rail != 0, "%u %u %u", ok, canceled, rail);
    fake_pace(f.a.devices[0], FAKE_AT_ONCE);
    fix_fini(&f);
}

Test(rdma_quiet, cancel_storm)
{
    storm(FAKE_HELD);
}

/* The same while a thread moves the bytes. */
Test(rdma_quiet, cancel_storm_and_a_thread)
{
    storm(FAKE_THREAD);
}

/* ---- memory is taken away -------------------------------------------------------- */

Test(rdma_quiet, quiesce_waits_a_little)
{
    struct fix f;
    struct mct_slice s[2];

    fix_devices(&f, 1);
    f.slower = 1000;
    fix_open(&f);
    fix_join(&f, 0);
    fix_join(&f, 0);
    fake_pace(f.a.devices[0], FAKE_HELD);
    for (unsigned i = 0; i < 2; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    cr_assert_eq(mct_rdma_ops.quiesce(f.a.t, f.a.memory + 8192, 4096), 0);
    cr_assert_eq(mct_rdma_ops.quiesce(f.a.t, f.a.memory + 4095, 1), -EINPROGRESS);
    /* it comes through in time: no connection is lost for it */
    fake_pace(f.a.devices[0], FAKE_AT_ONCE);
    (void)fake_release(f.a.devices[0], 100);
    fix_until(&f, mct_rdma_ops.quiesce(f.a.t, f.a.memory, 8192) == 0);
    fix_until(&f, f.a.done == 2);
    cr_assert_eq(s[0].status, MCS_OK, "%u", s[0].status);
    cr_assert_eq(s[1].status, MCS_OK, "%u", s[1].status);
    cr_assert_eq(f.a.lost, 0u);
    fix_fini(&f);
}

Test(rdma_quiet, quiesce_calls_back)
{
    struct fix f;
    struct mct_slice s[4];

    fix_init(&f, 2);
    memset(f.b.memory, 9, 65536);
    fake_pace(f.a.devices[0], FAKE_HELD);
    for (unsigned i = 0; i < 4; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    /* slices 0 and 2 are on one connection, 1 and 3 on the other; the range is that of slice 0 */
    fix_until(&f, mct_rdma_ops.quiesce(f.a.t, f.a.memory + 100, 10) == 0);
    fix_until(&f, f.a.lost == 1);
    cr_assert_eq(s[0].status, MCS_CANCELED);
    cr_assert(!s[0].settled && s[0].conn != 0);
    cr_assert_eq(s[2].status, MCS_RAIL);
    cr_assert_eq(fix_backs(&s[1]) + fix_backs(&s[3]), 0u);
    fake_pace(f.a.devices[0], FAKE_AT_ONCE);
    (void)fake_release(f.a.devices[0], 100);
    fix_until(&f, f.a.done == 4);
    cr_assert(s[1].status == MCS_OK && s[3].status == MCS_OK);
    cr_assert(all_are(f.b.memory, 4096, 9) && all_are(f.b.memory + 8192, 4096, 9));
    fix_fini(&f);
}

/* ---- links and visitors ---------------------------------------------------------- */

/* abort() first: then disconnect() has nothing to wait for. */
Test(rdma_quiet, disconnect_after_lost)
{
    struct fix f;
    struct mct_slice s[4];

    fix_init(&f, 2);
    fake_pace(f.a.devices[0], FAKE_HELD);
    for (unsigned i = 0; i < 4; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    mct_rdma_ops.abort(f.link, -ECONNABORTED);
    fix_until(&f, f.a.lost == 2);
    cr_assert_eq(f.a.done, 4u);
    fake_engine_thread(true);
    mct_rdma_ops.disconnect(f.link);
    fake_engine_thread(false);
    f.link = NULL;
    fix_fini(&f);
}

/* Without it, too, it returns with everything back, and nobody hears of the link any more. */
Test(rdma_quiet, disconnect_with_slices_out)
{
    struct fix f;
    char text[] = "text";
    struct mct_slice s[5];

    fix_init(&f, 2);
    fake_pace(f.a.devices[0], FAKE_HELD);
    for (unsigned i = 0; i < 5; i++) {
        s[i] = i == 4 ? fix_notice(text, 0, 4) : fix_slice(&f, MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    mct_rdma_ops.disconnect(f.link);
    f.link = NULL;
    cr_assert_eq(f.a.done, 5u);
    for (unsigned i = 0; i < 5; i++) {
        cr_assert_eq(s[i].status, MCS_RAIL);
        cr_assert(!s[i].settled && s[i].conn != 0 && fix_backs(&s[i]) == 1);
    }
    for (unsigned i = 0; i < 1000; i++)
        fix_turn(&f);
    cr_assert_eq(f.a.lost, 0u);
    fix_fini(&f);
}

/* The bytes of messages were copied: nobody waits for a device that still has them. */
Test(rdma_quiet, disconnect_with_a_message_out)
{
    struct fix f;
    char text[] = "text";
    struct mct_slice s = fix_notice(text, 0, 4);

    fix_init(&f, 1);
    fake_pace(f.a.devices[0], FAKE_HELD);
    cr_assert_eq(fix_post(&f, &s), 1u);
    fake_block(FAKE_ANY, f.a.devices[0]);
    mct_rdma_ops.disconnect(f.link);
    f.link = NULL;
    cr_assert(s.status == MCS_RAIL && !s.settled && fix_backs(&s) == 1);
    cr_assert_eq(f.a.t->outstanding, 1u);
    fake_unblock(f.a.devices[0]);
    fix_until(&f, !mct_rdma_ops.pending(f.a.t));
    cr_assert_eq(f.a.lost, 0u);
    fix_fini(&f);
}

/* A device that hangs is waited for once, not once a link. */
Test(rdma_quiet, disconnect_many_while_a_device_hangs)
{
    enum { LINKS = 5 };
    struct fix f;
    struct mct_slice s[LINKS];
    struct mct_link *links[LINKS];
    uint64_t began;

    fix_init(&f, 0);
    for (unsigned i = 0; i < LINKS; i++) {
        unsigned n = fix_pair(&f, 0);
        struct mct_conn conn = {.fd = -1, .pair = f.pb[n], .id = f.ids[n]};
        struct mct_slice *list[1] = {&s[i]};

        cr_assert_eq(mct_rdma_ops.serve(f.b.t, &conn, &f.visitor), 0);
        conn.pair = f.pa[n];
        cr_assert_eq(mct_rdma_ops.connect(f.a.t, &f, &links[i]), 0);
        cr_assert_eq(mct_rdma_ops.adopt(links[i], &conn), 0);
        fake_pace(f.a.devices[0], FAKE_HELD);
        s[i] = fix_slice(&f, MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(mct_rdma_ops.post(links[i], list, 1), 1u);
    }
    fake_block(FAKE_ANY, f.a.devices[0]);
    began = fix_now();
    for (unsigned i = 0; i < LINKS; i++)
        mct_rdma_ops.abort(links[i], -ECANCELED);
    for (unsigned i = 0; i < LINKS; i++)
        mct_rdma_ops.disconnect(links[i]);
    cr_assert_lt(fix_now() - began, UINT64_C(9000000000), "two seconds, not ten");
    cr_assert_eq(f.a.done, (unsigned)LINKS);
    for (unsigned i = 0; i < LINKS; i++)
        cr_assert(s[i].status == MCS_RAIL && !s[i].settled && fix_backs(&s[i]) == 1);
    fake_unblock(f.a.devices[0]);
    fix_until(&f, !mct_rdma_ops.pending(f.a.t));
    fix_fini(&f);
}

/* From inside done() and lost(). */
static void give_up(struct fix_side *side, struct mct_slice *s)
{
    struct fix *f = side->on_done_context;

    struct mct_link *link = f->link;

    (void)s;
    f->link = NULL;
    if (link != NULL)
        mct_rdma_ops.disconnect(link);
}

Test(rdma_quiet, disconnect_from_inside_done)
{
    struct fix f;
    struct mct_slice s[4];

    fix_init(&f, 2);
    f.a.on_done = give_up;
    f.a.on_done_context = &f;
    for (unsigned i = 0; i < 4; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    mct_rdma_ops.abort(f.link, -ECONNABORTED);
    fix_until(&f, f.a.done == 4);
    for (unsigned i = 0; i < 100; i++)
        fix_turn(&f);
    cr_assert_eq(f.a.lost, 0u);
    fix_fini(&f);
}

/* The target ends a connection: afterwards nothing of it lands, whatever the initiator posts. */
Test(rdma_quiet, end_of_a_visitors_connection)
{
    struct fix f;
    struct mct_slice s;
    int other;

    fix_init(&f, 2);
    memset(f.b.memory, 5, 65536);
    memset(f.a.memory, 6, 65536);
    cr_assert_eq(mct_rdma_ops.end(f.b.t, &f.visitor, 999999), 0, "never there");
    cr_assert_eq(mct_rdma_ops.end(f.b.t, &other, f.ids[0]), 0, "not that visitor's");
    cr_assert_eq(mct_rdma_ops.end(f.b.t, &f.visitor, f.ids[0]), -EINPROGRESS);
    fix_until(&f, mct_rdma_ops.end(f.b.t, &f.visitor, f.ids[0]) == 0);
    cr_assert_eq(f.b.left, 1u);
    cr_assert_eq(f.b.left_ids[0], f.ids[0]);
    cr_assert_eq(fix_stats(&f.b)->kills, 1u);
    for (unsigned i = 0; i < 6 && f.a.lost == 0; i++) {
        s = fix_slice(&f, MCT_WRITE, 0, 0, 65536);
        fix_run(&f, &s);
        if (s.conn == f.ids[0]) {
            cr_assert_eq(s.status, MCS_RAIL);
            cr_assert_eq(s.error, -ETIMEDOUT);
            cr_assert(all_are(f.b.memory, 65536, 5));
        } else {
            cr_assert_eq(s.status, MCS_OK);
            memset(f.b.memory, 5, 65536);
        }
        fix_turn(&f);
    }
    fix_until(&f, f.a.lost == 1);
    cr_assert_eq(f.a.lost_ids[0], f.ids[0]);
    fix_check_alive(&f);
    fix_fini(&f);
}

Test(rdma_quiet, dismiss)
{
    struct fix f;
    struct fake_stats before, after;

    fix_init(&f, 3);
    fake_stats(f.b.devices[0], &before);
    cr_assert_eq(mct_rdma_ops.dismiss(f.b.t, &f), 0);
    cr_assert_eq(mct_rdma_ops.dismiss(f.b.t, &f.visitor), -EINPROGRESS);
    fix_until(&f, mct_rdma_ops.dismiss(f.b.t, &f.visitor) == 0);
    cr_assert_eq(f.b.left, 3u);
    cr_assert_eq(f.b.left_error, -ECONNABORTED);
    cr_assert_eq(fix_stats(&f.b)->inbound, 0u);
    cr_assert_eq(fake_count(FAKE_QP, f.b.devices[0]), 0u);
    fake_stats(f.b.devices[0], &after);
    cr_assert_eq(after.calls[FAKE_MODIFY_QP] - before.calls[FAKE_MODIFY_QP], 3u,
                 "the error state comes first: it flushes what was half received");
    fix_fini(&f);
}

Test(rdma_quiet, fini_with_slices_out)
{
    struct fix f;
    struct mct_slice s[4];

    fix_init(&f, 2);
    fake_pace(f.a.devices[0], FAKE_HELD);
    for (unsigned i = 0; i < 4; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    f.link = NULL; /* fini() closes it */
    fix_fini(&f);
    cr_assert_eq(f.a.done, 4u);
}

/* A device that hangs holds the end up for a few seconds, not for ever; what it may still touch is kept for it. */
Test(rdma_quiet, fini_while_a_device_hangs)
{
    struct fix f;
    struct mct_slice s[4];
    uint64_t began;

    fix_init(&f, 2);
    fake_pace(f.a.devices[0], FAKE_HELD);
    for (unsigned i = 0; i < 4; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    fake_block(FAKE_ANY, f.a.devices[0]);
    began = fix_now();
    f.link = NULL;
    fix_instance_fini(&f.a);
    cr_assert_gt(fix_now() - began, UINT64_C(1900000000));
    cr_assert_eq(f.a.done, 4u);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_eq(s[i].status, MCS_RAIL);
        cr_assert(!s[i].settled && s[i].conn != 0 && fix_backs(&s[i]) == 1);
    }
    /* it wakes up again: the nic's thread still knows all it needs */
    fake_unblock(f.a.devices[0]);
    fix_until(&f, fake_count(FAKE_QP, f.a.devices[0]) == 0);
    fix_instance_fini(&f.b);
    fix_side_fini(&f, &f.a);
    fix_side_fini(&f, &f.b);
    mct_rdma_destroy(f.a.r);
    mct_rdma_destroy(f.b.r);
    cr_assert_eq(fake_leaks(), 0u);
}

/* More than a link or an instance takes, or of another: refused, and nothing of it is left. */
Test(rdma_quiet, refused_connections)
{
    struct fix f;
    struct mct_conn conn = {.fd = -1};
    unsigned n;

    fix_init(&f, MCT_RDMA_CONNS);
    n = fix_pair(&f, 0);
    conn = (struct mct_conn){.fd = -1, .pair = f.pa[n], .id = f.ids[n]};
    cr_assert_eq(mct_rdma_ops.adopt(f.link, &conn), -ENOSPC);
    conn.pair = f.pb[n];
    conn.id++;
    cr_assert_eq(mct_rdma_ops.serve(f.b.t, &conn, &f.visitor), -EINVAL);
    fix_until(&f, fake_count(FAKE_QP, NULL) == 2 * MCT_RDMA_CONNS);
    conn.pair = NULL;
    cr_assert_eq(mct_rdma_ops.adopt(f.link, &conn), -EINVAL);
    fix_check_alive(&f);
    fix_fini(&f);
}
