/* SPDX-License-Identifier: Apache-2.0 */
/* The promise: what came back is quiet. Cancelling, revoking, aborting, killing at every stage. */
#include "tcp_fixture.h"

#define LARGE (UINT64_C(8) << 20)

/* Turns of the initiator alone: the target is stopped. */
static void turn_a(struct fix *f, unsigned n)
{
    while (n-- > 0)
        (void)mct_tcp_ops.turn(f->a.t);
}

static bool all_are(const uint8_t *memory, uint64_t size, uint8_t value)
{
    for (uint64_t i = 0; i < size; i++)
        if (memory[i] != value)
            return false;
    return true;
}

/* Does the connection still work? */
static void check_alive(struct fix *f)
{
    struct mct_slice w = fix_slice(f, MCT_WRITE, 20 << 20, 300000);
    struct mct_slice r = fix_slice(f, MCT_READ, 21 << 20, 300000);

    fix_fill(f->a.memory + (20 << 20), 300000, 77);
    fix_fill(f->b.memory + (21 << 20), 300000, 78);
    fix_run(f, &w);
    fix_run(f, &r);
    cr_assert_eq(w.status, MCS_OK, "%u", w.status);
    cr_assert_eq(r.status, MCS_OK, "%u", r.status);
    cr_assert_arr_eq(f->a.memory + (20 << 20), f->b.memory + (20 << 20), 300000);
    cr_assert_arr_eq(f->a.memory + (21 << 20), f->b.memory + (21 << 20), 300000);
    cr_assert_eq(f->a.lost + f->b.left, 0u, "no connection went");
    cr_assert_eq(fix_stat(&f->a, protocol_errors) + fix_stat(&f->b, protocol_errors), 0u);
}

Test(tcp_cancel, before_anything_was_sent)
{
    struct fix f;
    struct mct_slice s[3];

    fix_init(&f);
    fix_join(&f, 1);
    for (unsigned i = 0; i < 3; i++) {
        s[i] = fix_slice(&f, i == 2 ? MCT_READ : MCT_WRITE, i * 4096, 4096);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    mct_tcp_ops.cancel(f.link, &s[1]);
    mct_tcp_ops.cancel(f.link, &s[2]);
    cr_assert_eq(f.a.done, 0u, "never from inside the call");
    fix_until(&f, f.a.done == 3);
    cr_assert_eq(s[0].status, MCS_OK);
    for (unsigned i = 1; i < 3; i++) {
        cr_assert_eq(s[i].status, MCS_CANCELED);
        cr_assert(s[i].settled && s[i].conn == 0);
    }
    check_alive(&f);
    fix_fini(&f);
}

Test(tcp_cancel, a_write_sent_in_part_goes_on_as_filler)
{
    struct fix f;
    struct mct_slice s;

    fix_init_with(&f, &(struct fix_options){.checksum = true});
    fix_join(&f, 1);
    s = fix_slice(&f, MCT_WRITE, 0, LARGE * 2);
    memset(f.a.memory, 1, LARGE * 2);
    cr_assert_eq(fix_post(&f, &s), 1u);
    turn_a(&f, 200); /* until the socket is full: nobody reads */
    cr_assert(!fix_back(&s));
    mct_tcp_ops.cancel(f.link, &s);
    turn_a(&f, 10);
    cr_assert(fix_back(&s), "at once, whatever the peer does");
    cr_assert_eq(s.status, MCS_CANCELED);
    cr_assert(!s.settled && s.conn == 1);
    memset(f.a.memory, 2, LARGE * 2); /* it is ours again: nothing of this may arrive */
    fix_until(&f, fix_stat(&f.b, refused) == 1);
    cr_assert_null(memchr(f.b.memory, 2, LARGE * 2));
    cr_assert_gt(fix_stat(&f.a, filler_bytes), 0u);
    cr_assert_eq(fix_stat(&f.b, checksum_errors), 0u);
    check_alive(&f);
    fix_fini(&f);
}

Test(tcp_cancel, a_write_that_awaits_its_answer)
{
    struct fix f;
    struct mct_slice s;

    fix_init(&f);
    fix_join(&f, 1);
    s = fix_slice(&f, MCT_WRITE, 0, 4096);
    cr_assert_eq(fix_post(&f, &s), 1u);
    turn_a(&f, 10);
    mct_tcp_ops.cancel(f.link, &s);
    turn_a(&f, 2);
    cr_assert(fix_back(&s));
    cr_assert_eq(s.status, MCS_CANCELED);
    cr_assert(!s.settled && s.conn == 1, "it may still land");
    check_alive(&f);
    cr_assert_eq((uintptr_t)s.owner, 1u);
    fix_fini(&f);
}

Test(tcp_cancel, a_read_that_awaits_its_answer)
{
    struct fix f;
    struct mct_slice s;

    fix_init(&f);
    fix_join(&f, 1);
    s = fix_slice(&f, MCT_READ, 0, LARGE);
    memset(f.b.memory, 1, LARGE);
    cr_assert_eq(fix_post(&f, &s), 1u);
    turn_a(&f, 10);
    mct_tcp_ops.cancel(f.link, &s);
    turn_a(&f, 2);
    cr_assert(fix_back(&s));
    cr_assert_eq(s.status, MCS_CANCELED);
    cr_assert(s.settled, "a READ changes nothing at the peer");
    check_alive(&f);
    cr_assert(all_are(f.a.memory, LARGE, 0), "the answer went nowhere");
    fix_fini(&f);
}

Test(tcp_cancel, a_read_received_in_part)
{
    struct fix f;
    struct mct_slice s;

    fix_init_with(&f, &(struct fix_options){.checksum = true});
    fix_join(&f, 1);
    s = fix_slice(&f, MCT_READ, 0, LARGE);
    memset(f.b.memory, 1, LARGE);
    cr_assert_eq(fix_post(&f, &s), 1u);
    fix_until(&f, fix_stat(&f.a, received_bytes) > 0);
    cr_assert(!fix_back(&s));
    mct_tcp_ops.cancel(f.link, &s);
    turn_a(&f, 10);
    cr_assert(fix_back(&s), "at once, whatever the peer does");
    cr_assert_eq(s.status, MCS_CANCELED);
    memset(f.a.memory, 2, LARGE);
    check_alive(&f);
    cr_assert(all_are(f.a.memory, LARGE, 2), "nothing is written after it came back");
    cr_assert_geq(fix_stat(&f.a, dropped), 1u);
    fix_fini(&f);
}

/* After any number of turns, over sockets so small that every step is one of many. */
Test(tcp_cancel, at_every_turn)
{
    /* 5 and 12 have nothing in common: all kinds come, each after many numbers of turns */
    for (unsigned k = 0; k < 240; k += 5) {
        enum mct_op op = k % 3 == 0 ? MCT_READ : MCT_WRITE;
        uint64_t n = k % 2 == 0 ? 200000 : 3000;
        struct mct_slice s[4];
        struct fix f;
        int fds[2];

        fix_init_with(&f, &(struct fix_options){.checksum = k % 4 == 0});
        fix_tcp_pair(fds, 4096);
        fix_adopt(&f, fds[0], 1);
        fix_serve(&f, fds[1], 1);
        memset(f.a.memory, 1, FIX_SIZE);
        memset(f.b.memory, 1, FIX_SIZE);
        for (unsigned i = 0; i < 4; i++) {
            s[i] = fix_slice(&f, op, i << 20, n);
            cr_assert_eq(fix_post(&f, &s[i]), 1u);
        }
        for (unsigned i = 0; i < k / 2; i++)
            fix_turn(&f);
        mct_tcp_ops.cancel(f.link, &s[1]);
        mct_tcp_ops.cancel(f.link, &s[1]); /* twice is once */
        mct_tcp_ops.cancel(f.link, &s[2]);
        turn_a(&f, 6);
        cr_assert(fix_back(&s[1]) && fix_back(&s[2]), "after %u turns", k / 2);
        memset(op == MCT_WRITE ? s[1].local : f.b.memory + (1 << 20), 3, n);
        if (op == MCT_READ)
            memset(s[1].local, 4, n);
        fix_until(&f, f.a.done == 4);
        for (unsigned i = 0; i < 4; i++) {
            cr_assert_eq((uintptr_t)s[i].owner, 1u);
            cr_assert(s[i].status == MCS_OK || (i % 3 != 0 && s[i].status == MCS_CANCELED),
                      "slice %u after %u turns: %u", i, k / 2, s[i].status);
        }
        check_alive(&f);
        if (op == MCT_WRITE)
            cr_assert_null(memchr(f.b.memory + (1 << 20), 3, n), "after %u turns", k / 2);
        else
            cr_assert(all_are(s[1].local, n, 4), "after %u turns", k / 2);
        fix_fini(&f);
    }
}

Test(tcp_cancel, a_zero_copy_send_takes_the_connection_with_it)
{
    struct fix f;
    struct mct_slice s, other;

    fix_init_with(&f, &(struct fix_options){.zero_copy_min = 4096});
    if ((mct_uring_features(f.a.uring) & MCT_URING_SEND_ZC) == 0) {
        fix_fini(&f);
        cr_skip_test("this kernel has no zero-copy sendmsg");
    }
    fix_join(&f, 1);
    s = fix_slice(&f, MCT_WRITE, 0, LARGE * 2);
    memset(f.a.memory, 1, LARGE * 2);
    cr_assert_eq(fix_post(&f, &s), 1u);
    turn_a(&f, 200);
    other = fix_slice(&f, MCT_WRITE, 24 << 20, 100);
    mct_tcp_ops.cancel(f.link, &s);
    /* the network stack may hold the pages for some time after the reset */
    for (unsigned i = 0; i < 1000 && !fix_back(&s); i++) {
        mct_uring_wait(f.a.uring, 10);
        turn_a(&f, 1);
    }
    cr_assert(fix_back(&s), "the peer does nothing for it");
    cr_assert_eq(s.status, MCS_CANCELED);
    cr_assert(!s.settled);
    memset(f.a.memory, 2, LARGE * 2);
    fix_until(&f, mct_uring_inflight(f.a.uring) == 0 || fix_stat(&f.b, inbound) == 0 ||
                      fix_stat(&f.b, refused) == 1);
    cr_assert_null(memchr(f.b.memory, 2, LARGE * 2));
    if (f.a.lost == 0) /* all was copied: it went on as filler */
        check_alive(&f);
    else
        cr_assert_eq(fix_post(&f, &other), 0u);
    fix_fini(&f);
}

Test(tcp_cancel, abort_says_what_may_still_land)
{
    struct fix f;
    struct mct_slice s[4];

    fix_init(&f);
    fix_join(&f, 9);
    s[0] = fix_slice(&f, MCT_READ, 0, 4096);
    s[1] = fix_slice(&f, MCT_WRITE, 4096, LARGE - 8192);
    s[2] = fix_slice(&f, MCT_WRITE, LARGE, 4096); /* stays behind the large one */
    s[3] = fix_slice(&f, MCT_READ, LARGE + 4096, 4096);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    turn_a(&f, 200);
    cr_assert_eq(fix_post(&f, &s[2]), 1u);
    mct_tcp_ops.abort(f.link, -ETIMEDOUT);
    cr_assert_eq(fix_post(&f, &s[3]), 0u, "no connection any more");
    fix_until(&f, f.a.lost == 1);
    cr_assert_eq(f.a.done, 3u, "slices before the connection");
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(s[i].status, MCS_RAIL);
        cr_assert_eq(s[i].error, -ETIMEDOUT);
    }
    cr_assert(s[0].settled, "a READ");
    cr_assert(!s[1].settled && s[1].conn == 9, "sent in part");
    cr_assert(s[2].settled && s[2].conn == 0, "never sent");
    cr_assert(f.a.lost_ids[0] == 9 && f.a.lost_error == -ETIMEDOUT);
    cr_assert_eq(mct_tcp_ops.kill(f.link, 9), -EAGAIN);
    fix_until(&f, f.b.left == 1);
    fix_fini(&f);
}

Test(tcp_cancel, kill_settles_what_a_connection_left_open)
{
    struct fix f;
    struct mct_slice s;
    static uint8_t before[LARGE];

    fix_init(&f);
    fix_join(&f, 1);
    s = fix_slice(&f, MCT_WRITE, 0, LARGE);
    memset(f.a.memory, 1, LARGE);
    cr_assert_eq(fix_post(&f, &s), 1u);
    fix_until(&f, fix_stat(&f.b, received_bytes) > 100000);
    fix_join(&f, 2);
    turn_a(&f, 100); /* fill its socket */
    cr_assert_eq(mct_tcp_ops.kill(f.link, 1), 0);
    cr_assert_eq(f.a.killed, 0u);
    fix_until(&f, f.a.killed == 1);
    cr_assert_eq(f.a.killed_ids[0], 1u);
    cr_assert_eq(fix_stat(&f.b, kills), 1u);
    cr_assert_eq(fix_stat(&f.b, inbound), 1u, "gone before it is said");
    memcpy(before, f.b.memory, LARGE);
    fix_until(&f, fix_back(&s) && f.a.lost == 1);
    cr_assert_eq(s.status, MCS_RAIL);
    cr_assert(!s.settled && s.conn == 1);
    for (int i = 0; i < 100; i++)
        fix_turn(&f);
    cr_assert(memcmp(before, f.b.memory, LARGE) == 0, "nothing lands after that");
    /* the other one goes on, and the same again is no mistake */
    cr_assert_eq(mct_tcp_ops.kill(f.link, 1), 0);
    fix_until(&f, f.a.killed == 2);
    s = fix_slice(&f, MCT_WRITE, 0, LARGE);
    fix_run(&f, &s);
    cr_assert(s.status == MCS_OK && s.conn == 2);
    fix_fini(&f);
}

Test(tcp_cancel, a_killed_connection_is_not_served_later)
{
    struct fix f;
    int fds[2];
    struct mct_conn conn;

    fix_init(&f);
    fix_join(&f, 1);
    fix_tcp_pair(fds, 0);
    cr_assert_eq(mct_tcp_ops.kill(f.link, 2), 0);
    fix_until(&f, f.a.killed == 1);
    conn = (struct mct_conn){.fd = fds[1], .id = 2};
    cr_assert_eq(mct_tcp_ops.serve(f.b.t, &conn, &f.visitor), -ECANCELED);
    cr_assert(fcntl(fds[1], F_GETFD) < 0, "and its socket is closed");
    close(fds[0]);
    fix_fini(&f);
}

Test(tcp_cancel, a_visitor_kills_its_own_only)
{
    struct fix f;
    struct mct_slice s;
    int fds[2], stranger = 0;
    struct mct_conn conn;

    fix_init(&f);
    fix_join(&f, 1);
    fix_tcp_pair(fds, 0);
    conn = (struct mct_conn){.fd = fds[1], .id = 5};
    cr_assert_eq(mct_tcp_ops.serve(f.b.t, &conn, &stranger), 0);
    cr_assert_eq(mct_tcp_ops.kill(f.link, 5), 0);
    fix_until(&f, f.a.killed == 1);
    cr_assert_eq(fix_stat(&f.b, inbound), 2u, "another's connection of that id lives");
    s = fix_slice(&f, MCT_WRITE, 0, 4096);
    fix_run(&f, &s);
    close(fds[0]);
    fix_until(&f, f.b.left == 1);
    fix_fini(&f);
}

/* However many connections of its own another visitor has killed meanwhile. */
Test(tcp_cancel, a_visitor_makes_nobody_elses_kills_be_forgotten)
{
    enum { KILLS = 1000 };
    static uint8_t answers[KILLS * sizeof(struct mct_tcp_header)];
    struct fix f;
    int fds[2], stranger = 0;
    struct mct_conn conn;
    size_t got = 0;

    fix_init(&f);
    fix_join(&f, 1);
    cr_assert_eq(mct_tcp_ops.kill(f.link, 2), 0);
    fix_until(&f, f.a.killed == 1);
    fix_tcp_pair(fds, 0);
    conn = (struct mct_conn){.fd = fds[1], .id = 3};
    cr_assert_eq(mct_tcp_ops.serve(f.b.t, &conn, &stranger), 0);
    for (uint64_t id = 1; id <= KILLS; id++) {
        struct mct_tcp_header h = {.type = MCT_TCP_KILL, .id = id, .address = 100 + id};

        mct_tcp_header_seal(&h);
        cr_assert_eq(send(fds[0], &h, sizeof(h), MSG_NOSIGNAL), (ssize_t)sizeof(h));
        fix_turn(&f);
    }
    while (got < sizeof(answers)) {
        ssize_t n = recv(fds[0], answers, sizeof(answers) - got, MSG_DONTWAIT);

        got += n > 0 ? (size_t)n : 0;
        fix_turn(&f);
    }
    close(fds[0]);
    fix_until(&f, f.b.left == 1);
    fix_tcp_pair(fds, 0);
    conn = (struct mct_conn){.fd = fds[1], .id = 2};
    cr_assert_eq(mct_tcp_ops.serve(f.b.t, &conn, &f.visitor), -ECANCELED);
    close(fds[0]);
    /* one that was dismissed leaves nothing behind for the next at its address */
    cr_assert_eq(mct_tcp_ops.dismiss(f.b.t, &stranger), 0);
    fix_tcp_pair(fds, 0);
    conn = (struct mct_conn){.fd = fds[1], .id = 100 + KILLS};
    cr_assert_eq(mct_tcp_ops.serve(f.b.t, &conn, &stranger), 0);
    close(fds[0]);
    fix_fini(&f);
}

Test(tcp_cancel, kill_does_not_wait_behind_payload)
{
    struct fix f;
    static struct mct_slice s[64];

    fix_init(&f);
    fix_join(&f, 1);
    for (unsigned i = 0; i < 30; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i << 18, 1 << 18);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    turn_a(&f, 1);
    cr_assert_eq(mct_tcp_ops.kill(f.link, 77), 0);
    fix_until(&f, f.a.killed == 1);
    cr_assert_lt(f.a.done, 30u, "what was not yet on its way came after it");
    fix_until(&f, f.a.done == 30);
    fix_fini(&f);
}

static void until_quiet(struct fix *f, struct fix_side *side, uint64_t offset, uint64_t length)
{
    unsigned turns = 0;

    while (mct_tcp_ops.quiesce(side->t, side->memory + offset, length) == -EINPROGRESS) {
        cr_assert_lt(turns++, 10u, "it waits for nobody");
        (void)mct_tcp_ops.turn(side->t);
    }
    (void)f;
}

Test(tcp_cancel, revoking_what_a_write_is_received_into)
{
    struct fix f;
    struct mct_slice s, beside;

    fix_init_with(&f, &(struct fix_options){.checksum = true});
    fix_join(&f, 1);
    s = fix_slice(&f, MCT_WRITE, 0, LARGE);
    beside = fix_slice(&f, MCT_WRITE, 24 << 20, 1000);
    memset(f.a.memory, 1, LARGE);
    cr_assert_eq(fix_post(&f, &s), 1u);
    fix_until(&f, fix_stat(&f.b, received_bytes) > 300000);
    cr_assert_eq(mct_tcp_ops.quiesce(f.b.t, f.b.memory + (16 << 20), 4096), 0,
                 "nothing goes there");
    f.b.refuse = MCS_REVOKED; /* the snapshot is swapped */
    until_quiet(&f, &f.b, 0, LARGE);
    memset(f.b.memory, 9, LARGE);
    fix_until(&f, fix_back(&s));
    cr_assert_eq(s.status, MCS_REVOKED, "%u", s.status);
    cr_assert(s.settled);
    cr_assert(all_are(f.b.memory, LARGE, 9), "nothing lands after it is quiet");
    cr_assert_geq(fix_stat(&f.b, dropped), 1u);
    f.b.refuse = MCS_OK;
    fix_run(&f, &beside);
    check_alive(&f);
    fix_fini(&f);
}

Test(tcp_cancel, revoking_what_a_read_is_answered_from)
{
    struct fix f;
    struct mct_slice s;

    fix_init_with(&f, &(struct fix_options){.checksum = true});
    fix_join(&f, 1);
    s = fix_slice(&f, MCT_READ, 0, LARGE);
    memset(f.b.memory, 1, LARGE);
    cr_assert_eq(fix_post(&f, &s), 1u);
    turn_a(&f, 5);
    while (fix_stat(&f.b, sent_bytes) == 0)
        (void)mct_tcp_ops.turn(f.b.t);
    for (unsigned i = 0; i < 200; i++)
        (void)mct_tcp_ops.turn(f.b.t); /* until the socket is full */
    f.b.refuse = MCS_REVOKED;
    until_quiet(&f, &f.b, 0, LARGE);
    memset(f.b.memory, 9, LARGE);
    fix_until(&f, fix_back(&s));
    cr_assert_eq(s.status, MCS_REVOKED, "%u", s.status);
    cr_assert_null(memchr(f.a.memory, 9, LARGE), "what is there now was not sent");
    f.b.refuse = MCS_OK;
    check_alive(&f);
    fix_fini(&f);
}

Test(tcp_cancel, a_revoked_range_is_looked_up_anew_for_each_piece)
{
    struct fix f;
    struct mct_slice s;

    fix_init(&f);
    fix_join(&f, 1);
    f.b.refuse = MCS_REVOKED;
    f.b.refuse_after = 4;
    s = fix_slice(&f, MCT_WRITE, 0, LARGE);
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_REVOKED);
    f.b.resolves = 0;
    f.b.refuse_after = 2;
    s = fix_slice(&f, MCT_READ, 0, LARGE);
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_REVOKED);
    f.b.refuse = MCS_OK;
    check_alive(&f);
    fix_fini(&f);
}

Test(tcp_cancel, taking_the_initiators_memory_away)
{
    struct fix f;
    struct mct_slice r, w, queued, other;

    fix_init(&f);
    fix_join(&f, 1);
    memset(f.b.memory, 1, FIX_SIZE);
    memset(f.a.memory, 1, FIX_SIZE);
    r = fix_slice(&f, MCT_READ, 0, 4 << 20);
    cr_assert_eq(fix_post(&f, &r), 1u);
    fix_until(&f, fix_stat(&f.a, received_bytes) > 0);
    w = fix_slice(&f, MCT_WRITE, 4 << 20, 3 << 20);
    queued = fix_slice(&f, MCT_WRITE, 7 << 20, 1000);
    other = fix_slice(&f, MCT_WRITE, 12 << 20, 1000);
    cr_assert_eq(fix_post(&f, &w), 1u);
    cr_assert_eq(fix_post(&f, &queued), 1u);
    cr_assert_eq(fix_post(&f, &other), 1u);
    turn_a(&f, 50);
    cr_assert_eq(mct_tcp_ops.quiesce(f.a.t, f.a.memory, 8 << 20), -EINPROGRESS);
    until_quiet(&f, &f.a, 0, 8 << 20);
    memset(f.a.memory, 2, 8 << 20);
    fix_until(&f, fix_back(&r) && fix_back(&w) && fix_back(&queued) && fix_back(&other));
    cr_assert_eq(r.status, MCS_CANCELED);
    cr_assert_eq(w.status, MCS_CANCELED);
    cr_assert_eq(queued.status, MCS_CANCELED);
    cr_assert_eq(other.status, MCS_OK);
    check_alive(&f);
    cr_assert(all_are(f.a.memory, 8 << 20, 2));
    cr_assert_null(memchr(f.b.memory, 2, 20 << 20));
    fix_fini(&f);
}

Test(tcp_cancel, dismissing_a_visitor)
{
    struct fix f;
    struct mct_slice s;
    int res;

    fix_init(&f);
    fix_join(&f, 1);
    fix_join(&f, 2);
    s = fix_slice(&f, MCT_WRITE, 0, LARGE);
    cr_assert_eq(fix_post(&f, &s), 1u);
    fix_until(&f, fix_stat(&f.b, received_bytes) > 0);
    while ((res = mct_tcp_ops.dismiss(f.b.t, &f.visitor)) == -EINPROGRESS)
        (void)mct_tcp_ops.turn(f.b.t);
    cr_assert_eq(res, 0);
    cr_assert_eq(f.b.left, 2u);
    cr_assert_eq(fix_stat(&f.b, inbound), 0u);
    fix_until(&f, fix_back(&s) && f.a.lost == 2);
    cr_assert_eq(s.status, MCS_RAIL);
    cr_assert_neq(s.error, 0);
    cr_assert(!s.settled);
    fix_fini(&f);
}

/* A reset after any number of turns: everything comes back once. */
Test(tcp_cancel, a_reset_at_every_turn)
{
    for (unsigned k = 0; k < 150; k++) {
        static struct mct_slice s[24];
        struct fix f;
        unsigned ok = 0;

        fix_init_with(&f, &(struct fix_options){.checksum = k % 2 == 0,
                                                .zero_copy_min = k % 5 == 0 ? 4096 : 0});
        fix_join(&f, 1);
        fix_join(&f, 2);
        for (unsigned i = 0; i < 24; i++) {
            s[i] = fix_slice(&f, i % 3 == 0 ? MCT_READ : MCT_WRITE, i << 20, 1 + i * 30011u);
            cr_assert_eq(fix_post(&f, &s[i]), 1u);
        }
        for (unsigned i = 0; i < k; i++)
            fix_turn(&f);
        if (k % 2 == 0)
            (void)mct_tcp_ops.dismiss(f.b.t, &f.visitor);
        else
            mct_tcp_ops.abort(f.link, -ENETDOWN);
        fix_until(&f, f.a.done == 24 && f.a.lost == 2 && f.b.left == 2);
        for (unsigned i = 0; i < 24; i++) {
            cr_assert_eq((uintptr_t)s[i].owner, 1u);
            cr_assert(s[i].status == MCS_OK || s[i].status == MCS_RAIL);
            cr_assert(s[i].settled || (s[i].conn != 0 && s[i].op == MCT_WRITE));
            ok += s[i].status == MCS_OK;
        }
        for (unsigned i = 0; i < 24; i++) /* what is said to be done is done */
            if (s[i].status == MCS_OK)
                cr_assert_arr_eq(s[i].local, f.b.memory + (i << 20), 1 + i * 30011u);
        cr_assert(k > 0 || ok == 0);
        fix_fini(&f);
    }
}

Test(tcp_cancel, fini_gives_everything_back)
{
    struct fix f;
    static struct mct_slice s[64];

    fix_init(&f);
    fix_join(&f, 1);
    for (unsigned i = 0; i < 64; i++) {
        s[i] = fix_slice(&f, i % 2 == 0 ? MCT_READ : MCT_WRITE, i << 16, 1 << 16);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    turn_a(&f, 20);
    mct_tcp_ops.fini(f.a.t);
    cr_assert_eq(f.a.done, 64u);
    for (unsigned i = 0; i < 64; i++)
        cr_assert(s[i].status == MCS_RAIL && (uintptr_t)s[i].owner == 1);
    cr_assert_eq(mct_uring_inflight(f.a.uring), 0u);
    mct_uring_destroy(f.a.uring);
    mct_tcp_ops.fini(f.b.t);
    mct_uring_destroy(f.b.uring);
    munmap(f.a.memory, FIX_SIZE);
    munmap(f.b.memory, FIX_SIZE);
}

Test(tcp_cancel, disconnect_gives_everything_back_before_it_returns)
{
    struct fix f;
    struct mct_link *other;
    static struct mct_slice s[32];

    fix_init(&f);
    fix_join(&f, 1);
    fix_join(&f, 2);
    for (unsigned i = 0; i < 32; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i << 16, 1 << 16);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    turn_a(&f, 20);
    cr_assert_eq(mct_link_owner(f.link), &f);
    mct_tcp_ops.disconnect(f.link);
    cr_assert_eq(f.a.done, 32u);
    cr_assert_eq(fix_stat(&f.a, conns), 0u);
    cr_assert_eq(mct_tcp_ops.connect(f.a.t, NULL, &other), 0);
    f.link = other;
    fix_join(&f, 3);
    s[0] = fix_slice(&f, MCT_WRITE, 0, 4096);
    fix_run(&f, &s[0]);
    cr_assert_eq(s[0].status, MCS_OK);
    fix_fini(&f);
}

static void give_up(struct fix_side *side, struct mct_slice *s)
{
    struct fix *f = side->on_done_context;

    (void)s;
    side->on_done = NULL;
    mct_tcp_ops.disconnect(f->link);
}

Test(tcp_cancel, disconnect_from_inside_done)
{
    struct fix f;
    static struct mct_slice s[16];

    fix_init(&f);
    fix_join(&f, 1);
    fix_join(&f, 2);
    for (unsigned i = 0; i < 16; i++) {
        s[i] = fix_slice(&f, MCT_READ, i << 16, 1 << 16);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    f.a.on_done = give_up;
    f.a.on_done_context = &f;
    fix_until(&f, f.a.done == 16);
    cr_assert_eq(fix_stat(&f.a, conns), 0u);
    fix_fini(&f);
}
