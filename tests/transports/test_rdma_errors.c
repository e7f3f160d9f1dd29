/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong: completions by their class, queue pairs, ports and devices that are lost. */
#include "rdma_fixture.h"
#include "tests/fake-verbs/fake.h"

/* A WRITE that ends with this status, behind one that goes well and before one that flushes. */
static void spoiled(struct fix *f, enum ibv_wc_status status, struct mct_slice s[3])
{
    struct mct_slice *list[3];
    unsigned lost = f->a.lost, done = f->a.done;

    for (unsigned i = 0; i < 3; i++) {
        s[i] = fix_slice(f, MCT_WRITE, i * 65536, i * 65536, 65536);
        list[i] = &s[i];
    }
    fake_spoil(f->a.devices[0], NULL, 2, 1, status, 0);
    cr_assert_eq(mct_rdma_ops.post(f->link, list, 3), 3u);
    fix_until(f, f->a.lost == lost + 1);
    cr_assert_eq(f->a.done, done + 3);
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(fix_backs(&s[i]), 1u);
    cr_assert_eq(s[0].status, MCS_OK);
    cr_assert(s[0].settled && s[0].moved == 65536);
    cr_assert_eq(s[2].status, MCS_RAIL);
    cr_assert(!s[2].settled && s[2].moved == 0 && s[2].conn == fix_newest(f));
    /* the peer's half is ended by its agent */
    fix_until(f, mct_rdma_ops.end(f->b.t, &f->visitor, fix_newest(f)) == 0);
    fix_join(f, 0);
    fix_check_alive(f);
}

Test(rdma_errors, classes)
{
    static const struct {
        enum ibv_wc_status status;
        int error;
    } cases[] = {
        {IBV_WC_RETRY_EXC_ERR, -ETIMEDOUT}, {IBV_WC_RNR_RETRY_EXC_ERR, -ETIMEDOUT},
        {IBV_WC_LOC_PROT_ERR, -EIO},        {IBV_WC_LOC_LEN_ERR, -EIO},
        {IBV_WC_LOC_QP_OP_ERR, -EIO},       {IBV_WC_REM_OP_ERR, -EIO},
        {IBV_WC_FATAL_ERR, -EIO},           {IBV_WC_GENERAL_ERR, -EIO},
        {IBV_WC_REM_ABORT_ERR, -EIO},       {IBV_WC_WR_FLUSH_ERR, -ECONNRESET},
    };
    struct fix f;
    struct mct_slice s[3];
    struct mct_rdma_nic nic;

    fix_init(&f, 1);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        spoiled(&f, cases[i].status, s);
        cr_assert_eq(s[1].status, MCS_RAIL, "%s", ibv_wc_status_str(cases[i].status));
        cr_assert_eq(s[1].error, cases[i].error, "%s", ibv_wc_status_str(cases[i].status));
        cr_assert_eq(s[2].error, cases[i].error);
        cr_assert_eq(f.a.lost_error, cases[i].error);
        cr_assert(!s[1].settled && s[1].conn != 0);
    }
    cr_assert_eq(fix_stats(&f.a)->retry_exceeded, 1u);
    cr_assert_eq(fix_stats(&f.a)->rnr_retries, 1u);
    cr_assert_eq(fix_stats(&f.a)->local_faults, 3u);
    mct_rdma_nic(f.a.r, 0, &nic);
    cr_assert_eq(nic.faults, 3u);
    fix_fini(&f);
}

/* The peer's device refuses a key: that slice says so, and no byte of it landed; the others may try again. */
Test(rdma_errors, refused_by_the_peers_device)
{
    static const enum ibv_wc_status statuses[] = {IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR};
    struct fix f;
    struct mct_slice s[3], w;
    uint32_t good;

    fix_init(&f, 1);
    for (unsigned i = 0; i < 2; i++) {
        spoiled(&f, statuses[i], s);
        cr_assert_eq(s[1].status, MCS_ACCESS);
        cr_assert(s[1].settled && s[1].conn != 0 && s[1].error == 0);
    }
    /* the same with a key that is made up: the fake looks */
    good = f.rkeys[0];
    f.rkeys[0] ^= 0x55555500;
    memset(f.b.memory, 7, 4096);
    w = fix_slice(&f, MCT_WRITE, 0, 0, 4096);
    fix_run(&f, &w);
    cr_assert_eq(w.status, MCS_ACCESS);
    cr_assert(w.settled);
    f.rkeys[0] = good;
    /* the target's queue pair has failed as well, and its engine finds out without being asked */
    fix_until(&f, f.b.left == 3 && f.a.lost == 3);
    for (unsigned i = 0; i < 4096; i++)
        cr_assert_eq(f.b.memory[i], 7);
    cr_assert_eq(fix_stats(&f.a)->remote_refused, 3u);
    fix_join(&f, 0);
    fix_check_alive(&f);
    fix_fini(&f);
}

/* A slice in several pieces of which the second one is refused is refused as a whole. */
Test(rdma_errors, a_piece_is_refused)
{
    struct fix f;
    struct mct_slice s;

    fix_devices(&f, 1);
    f.b.devices[0]->attr.max_mr_size = UINT64_C(2) << 20;
    fix_open(&f);
    fix_join(&f, 0);
    f.rkeys[1] ^= 0x55555500;
    s = fix_slice(&f, MCT_WRITE, 0, 0, UINT64_C(6) << 20);
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_ACCESS);
    cr_assert(s.moved == 0 && s.settled);
    fix_until(&f, f.a.lost == 1);
    fix_fini(&f);
}

/* One peer that does not answer, and flushes, cost the nic nothing; faults of its own do, and what comes through clears
 * them. */
Test(rdma_errors, a_bad_peer_does_not_blame_the_nic)
{
    struct fix f;
    struct mct_rdma_nic nic;
    struct mct_slice s[3];

    fix_init(&f, 1);
    for (unsigned i = 0; i < 100; i++) {
        spoiled(&f, i % 3 == 0 ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR, s);
    }
    mct_rdma_nic(f.a.r, 0, &nic);
    cr_assert_eq(nic.faults, 0u);
    cr_assert_eq(nic.state, MCT_RDMA_UP);
    cr_assert_geq(fix_stats(&f.a)->flushed, 100u);
    for (unsigned i = 0; i < 40; i++) {
        spoiled(&f, IBV_WC_LOC_PROT_ERR, s); /* each ends with a WRITE that goes well */
    }
    mct_rdma_run(f.a.r);
    mct_rdma_nic(f.a.r, 0, &nic);
    cr_assert_eq(nic.state, MCT_RDMA_UP, "%s", nic.why);
    cr_assert_eq(nic.faults, 40u);
    fix_fini(&f);
}

/* Faults of the nic's own with nothing that comes through in between put it out of use. */
Test(rdma_errors, a_nic_with_faults_is_left_alone)
{
    struct fix f;
    struct mct_slice s[MCT_RDMA_CONNS];
    struct mct_rdma_nic nic;

    fix_init(&f, MCT_RDMA_CONNS);
    fake_spoil(f.a.devices[0], NULL, 1, MCT_RDMA_CONNS, IBV_WC_LOC_PROT_ERR, 0);
    for (unsigned i = 0; i < MCT_RDMA_CONNS; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, 0, 0, 65536);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    fix_until(&f, f.a.lost == MCT_RDMA_CONNS);
    fix_until(&f, (mct_rdma_nic(f.a.r, 0, &nic), nic.state == MCT_RDMA_DOWN));
    cr_assert_eq(nic.faults, (uint64_t)MCT_RDMA_CONNS);
    fix_fini(&f);
}

/* The provider does not take the nth request of a chain. What was not posted was never sent. */
Test(rdma_errors, a_doorbell_fails)
{
    struct fix f;

    fix_init(&f, 1);
    for (unsigned nth = 1; nth <= 8; nth++) {
        struct mct_slice s[8], *list[8];
        unsigned lost = f.a.lost, done = f.a.done;
        uint64_t began = fix_now();
        char text[] = "text";

        for (unsigned i = 0; i < 8; i++) {
            s[i] = i == 5
                       ? fix_notice(text, 0, 4)
                       : fix_slice(&f, i % 2 == 0 ? MCT_WRITE : MCT_READ, i * 4096, i * 4096, 4096);
            list[i] = &s[i];
        }
        fake_fail(FAKE_POST_SEND, f.a.devices[0], nth, 1, ENOMEM);
        cr_assert_eq(mct_rdma_ops.post(f.link, list, 8), 8u);
        cr_assert_eq(f.a.done, done);
        fix_until(&f, f.a.lost == lost + 1);
        cr_assert_eq(f.a.done, done + 8);
        for (unsigned i = 0; i < 8; i++) {
            cr_assert_eq(fix_backs(&s[i]), 1u);
            if (i + 1 >= nth) {
                cr_assert_eq(s[i].status, MCS_RAIL, "%u of %u: %u", i, nth, s[i].status);
                cr_assert(s[i].settled && s[i].conn == 0 && s[i].error == -ENOMEM);
            } else if (s[i].status != MCS_OK) { /* it came through, but nobody is told */
                cr_assert_eq(s[i].status, MCS_RAIL);
                cr_assert_eq(s[i].settled, s[i].op == MCT_READ);
                cr_assert_eq(s[i].conn, f.a.lost_ids[lost % 64]);
            }
        }
        cr_assert_lt(fix_now() - began, UINT64_C(900000000), "nothing is waited for");
        fix_join(&f, 0);
        fix_check_alive(&f);
    }
    fix_fini(&f);
}

/* ---- lost ------------------------------------------------------------------------ */

static void post_some(struct fix *f, struct mct_slice *s, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        s[i] = fix_slice(f, i % 4 == 3 ? MCT_READ : MCT_WRITE, i * 4096, i * 4096, 4096);
        cr_assert_eq(fix_post(f, &s[i]), 1u);
    }
}

static void check_back(struct fix *f, const struct mct_slice *s, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        cr_assert_eq(fix_backs(&s[i]), 1u);
        cr_assert_eq(s[i].status, MCS_RAIL);
        cr_assert_eq(s[i].settled, s[i].op == MCT_READ);
        cr_assert_neq(s[i].conn, 0u);
    }
    cr_assert_eq(f->a.done, n);
}

Test(rdma_errors, queue_pair_fails)
{
    struct fix f;
    struct mct_slice s[12];

    fix_init(&f, 1);
    fake_pace(f.a.devices[0], FAKE_HELD);
    post_some(&f, s, 12);
    cr_assert(fake_qp_event(f.a.devices[0], IBV_EVENT_QP_FATAL, f.pa[0]->qp->qp_num));
    fix_until(&f, f.a.lost == 1);
    check_back(&f, s, 12);
    cr_assert_eq(f.a.lost_ids[0], f.ids[0]);
    cr_assert_eq(fix_stats(&f.a)->conns, 0u);
    fake_pace(f.a.devices[0], FAKE_AT_ONCE);
    fix_join(&f, 0);
    fix_check_alive(&f);
    fix_fini(&f);
}

/* The device is pulled out, with and without flushing what was posted: all comes back once its queue pairs are gone, and
 * the next device is used with a new port. */
static void device_fails(bool flush)
{
    struct fix f;
    struct mct_slice s[12];

    fix_init(&f, 2);
    fake_pace(f.a.devices[0], FAKE_HELD);
    post_some(&f, s, 12);
    fake_fatal(f.a.devices[0], flush);
    fix_until(&f, f.a.lost == 2);
    check_back(&f, s, 12);
    cr_assert_eq(fix_post(&f, &s[0]), 0u, "no connection is left");
    fix_until(&f, !mct_rdma_ops.pending(f.a.t));
    fix_fini(&f);
}

Test(rdma_errors, device_fails_and_flushes)
{
    device_fails(true);
}

Test(rdma_errors, device_fails_and_says_nothing)
{
    device_fails(false);
}

/* Completion queue in error: nothing is told any more. */
Test(rdma_errors, completion_queue_fails)
{
    struct fix f;
    struct mct_slice s[12];

    fix_init(&f, 2);
    fake_pace(f.a.devices[0], FAKE_HELD);
    post_some(&f, s, 12);
    fake_cq_error(f.a.devices[0]);
    fix_until(&f, f.a.lost == 2);
    check_back(&f, s, 12);
    fake_pace(f.a.devices[0], FAKE_AT_ONCE);
    fix_until(&f, !mct_rdma_ops.pending(f.a.t));
    for (unsigned i = 0; i < 2; i++)
        fix_until(&f, mct_rdma_ops.end(f.b.t, &f.visitor, f.ids[i]) == 0);
    fix_join(&f, 0);
    fix_check_alive(&f);
    fix_fini(&f);
}

/* A completion queue that its provider cannot read any more goes with its connections; the next ones get another. */
Test(rdma_errors, completion_queue_cannot_be_polled)
{
    struct fix f;
    struct mct_slice s[12];

    fix_init(&f, 2);
    fake_pace(f.a.devices[0], FAKE_HELD);
    post_some(&f, s, 12);
    fake_fail(FAKE_POLL, f.a.devices[0], 1, 1, EIO);
    fix_until(&f, f.a.lost == 2);
    cr_assert_eq(f.a.lost_error, -ENODEV);
    check_back(&f, s, 12);
    fake_pace(f.a.devices[0], FAKE_AT_ONCE);
    fix_until(&f, f.a.t->pollers == NULL);
    for (unsigned i = 0; i < 2; i++)
        fix_until(&f, mct_rdma_ops.end(f.b.t, &f.visitor, f.ids[i]) == 0);
    fix_join(&f, 0);
    fix_check_alive(&f);
    fix_fini(&f);
}

/* A device that does not flush: its queue pair is destroyed after a second, and its completions, which then are
 * in the queue or not, are worth no credit twice. */
static void never_flushes(bool keeps)
{
    struct fix f;

    fix_devices(&f, 1);
    f.a.devices[0]->keeps_completions = keeps;
    f.o.cq_depth = 16;
    f.o.depth = 16;
    fix_open(&f);
    for (unsigned round = 0; round < 2; round++) {
        struct mct_slice s[12];
        uint64_t began = fix_now();

        f.a.done = 0;
        fix_join(&f, 0);
        fix_check_alive(&f);
        f.a.done = 0;
        fake_hold_flushes(f.a.devices[0], true);
        fake_pace(f.a.devices[0], FAKE_HELD);
        post_some(&f, s, 12);
        mct_rdma_ops.abort(f.link, -ENETDOWN);
        fix_until(&f, f.a.lost == round + 1);
        cr_assert_gt(fix_now() - began, UINT64_C(900000000));
        check_back(&f, s, 12);
        fake_hold_flushes(f.a.devices[0], false);
        fake_pace(f.a.devices[0], FAKE_AT_ONCE);
    }
    fix_join(&f, 0);
    fix_check_alive(&f);
    fix_fini(&f);
}

Test(rdma_errors, never_flushes)
{
    never_flushes(false);
}

Test(rdma_errors, never_flushes_and_keeps_completions)
{
    never_flushes(true);
}

/* A notification whose connection is lost before its answer is as open as a WRITE. */
Test(rdma_errors, notification_without_an_answer)
{
    struct fix f;
    char text[] = "text";
    struct mct_slice s = fix_notice(text, 0, 4);

    fix_init(&f, 1);
    cr_assert_eq(fix_post(&f, &s), 1u);
    for (unsigned i = 0; i < 100; i++)
        (void)fix_engine_turn(&f.a); /* the target stands still */
    cr_assert_eq(f.a.done, 0u);
    mct_rdma_ops.abort(f.link, -ETIMEDOUT);
    for (uint64_t end = fix_now() + FIX_WAIT_NS; f.a.lost == 0; (void)fix_engine_turn(&f.a))
        cr_assert_lt(fix_now(), end);
    cr_assert_eq(s.status, MCS_RAIL);
    cr_assert(!s.settled && s.conn == f.ids[0] && fix_backs(&s) == 1);
    fix_fini(&f);
}

/* The peer's end has failed after it took the notification: the sender's is idle, and hears of it by asking alone. */
Test(rdma_errors, notification_to_a_queue_pair_that_is_gone)
{
    struct fix f;
    char text[] = "text";
    struct mct_slice s = fix_notice(text, 0, 4);
    uint32_t qpn;

    fix_init(&f, 1);
    cr_assert_eq(fix_post(&f, &s), 1u);
    for (unsigned i = 0; i < 100; i++)
        (void)fix_engine_turn(&f.a);
    qpn = fake_qp(f.b.devices[0], 0, NULL);
    cr_assert(fake_qp_event(f.b.devices[0], IBV_EVENT_QP_FATAL, qpn));
    for (uint64_t end = fix_now() + FIX_WAIT_NS; f.a.lost == 0; (void)fix_engine_turn(&f.a))
        cr_assert_lt(fix_now(), end);
    cr_assert_eq(s.status, MCS_RAIL);
    cr_assert_eq(s.error, -ETIMEDOUT);
    cr_assert(!s.settled && s.conn == f.ids[0] && fix_backs(&s) == 1);
    fix_fini(&f);
}

/* One that takes its time is asked, and nothing else comes of it. */
Test(rdma_errors, notification_that_is_answered_late)
{
    struct fix f;
    char text[] = "text";
    struct mct_slice s = fix_notice(text, 0, 4);
    struct fake_stats before, now;
    uint64_t progress;

    fix_init(&f, 1);
    cr_assert_eq(fix_post(&f, &s), 1u);
    for (unsigned i = 0; i < 100; i++)
        (void)fix_engine_turn(&f.a);
    progress = mct_rdma_ops.progress(f.link);
    fake_stats(f.a.devices[0], &before);
    do { /* two probes */
        (void)fix_engine_turn(&f.a);
        fake_stats(f.a.devices[0], &now);
    } while (now.requests < before.requests + 2);
    cr_assert_eq(mct_rdma_ops.progress(f.link), progress, "the peer's agent may be stuck");
    cr_assert_eq(now.bytes, before.bytes);
    cr_assert_eq(f.a.done, 0u);
    fix_until(&f, f.a.done == 1);
    cr_assert_eq(s.status, MCS_OK);
    fix_check_alive(&f);
    fix_fini(&f);
}

/* The receiver's queue is empty: retried by the devices, and a connection for which that was not enough is lost. */
Test(rdma_errors, no_memory_for_receives)
{
    struct fix f;
    char text[] = "text";
    struct mct_slice s;

    fix_init(&f, 1);
    /* a receive buffer that cannot be posted again is tried again */
    fake_fail(FAKE_POST_RECV, f.b.devices[0], 1, 3, ENOMEM);
    for (unsigned i = 0; i < 20; i++) {
        s = fix_notice(text, 0, 4);
        fix_run(&f, &s);
        cr_assert_eq(s.status, MCS_OK);
    }
    fix_fini(&f);
}
