/* SPDX-License-Identifier: Apache-2.0 */
/* Mooncake's TCP protocol, both roles against each other over loopback, in one thread. */
#include "mooncake_pair.h"
#include "transports/mooncake/protocol.h"

Test(mooncake, worked_bytes)
{
    static const uint8_t want[] = {5,    0,    0,    0, 0,    0, 0, 0,   0,
                                   0x50, 0x34, 0x12, 0, 0x7f, 0, 0, 0x81};
    static const uint8_t ok[] = {0, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d};
    static const uint8_t rejected[] = {1, 0, 0, 0, 0x56, 0x54, 0x43, 0x4d};
    struct mct_mooncake_request r = {
        .size = 5, .address = UINT64_C(0x7f0012345000), .write = true, .v2 = true};
    uint8_t out[MCT_MOONCAKE_HEADER], status[MCT_MOONCAKE_STATUS];
    uint32_t code = 7;

    mct_mooncake_request_pack(out, &r);
    cr_assert_arr_eq(out, want, sizeof(want));
    memset(&r, 0, sizeof(r));
    mct_mooncake_request_unpack(&r, out);
    cr_assert(r.size == 5 && r.address == UINT64_C(0x7f0012345000) && r.write && r.v2);
    mct_mooncake_status_pack(status, MCT_MOONCAKE_OK);
    cr_assert_arr_eq(status, ok, sizeof(ok));
    mct_mooncake_status_pack(status, MCT_MOONCAKE_REJECTED);
    cr_assert_arr_eq(status, rejected, sizeof(rejected));
    cr_assert(mct_mooncake_status_unpack(status, &code) && code == MCT_MOONCAKE_REJECTED);
    status[7] ^= 1;
    cr_assert_not(mct_mooncake_status_unpack(status, &code));

    out[16] = 0x02; /* what is not 1 reads */
    mct_mooncake_request_unpack(&r, out);
    cr_assert(!r.write && !r.v2);
    out[16] = 0xff;
    mct_mooncake_request_unpack(&r, out);
    cr_assert(!r.write && r.v2);
}

static const uint64_t sizes[] = {1,      5,       4096,          8192 - 8,          8192,   8193,
                                 100000, 1 << 18, (1 << 18) + 1, (1 << 20) + 12345, 4 << 20};
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))

static void every_size(bool v2)
{
    struct pair p;

    pair_init(&p);
    for (size_t i = 0; i < NSIZES; i++) {
        struct mct_slice w = pair_slice(&p, MCT_WRITE, 64 + i, 128 + i, sizes[i]);
        struct mct_slice r = pair_slice(&p, MCT_READ, 0, 128 + i, sizes[i]);

        if (p.link_conns == 0)
            pair_connect(&p, v2);
        pair_fill(p.local, PAIR_SIZE, i);
        pair_run(&p, &w);
        cr_assert_eq(w.status, MCS_OK, "write of %lu: status %u", sizes[i], w.status);
        cr_assert(w.settled && w.moved == sizes[i] && w.conn != 0);
        cr_assert_arr_eq(p.remote + 128 + i, p.local + 64 + i, sizes[i]);
        if (!v2) { /* one connection a WRITE */
            pair_until(&p, p.link_conns == 0);
            pair_connect(&p, v2);
        }
        pair_fill(p.remote + 128 + i, sizes[i], i + 100);
        pair_run(&p, &r);
        cr_assert_eq(r.status, MCS_OK);
        cr_assert(r.settled && r.moved == sizes[i]);
        cr_assert_arr_eq(p.remote + 128 + i, p.local, sizes[i]);
    }
    cr_assert_eq(p.b_stats->served, 2 * NSIZES);
    cr_assert_eq(p.b_stats->refused, 0u);
    pair_fini(&p);
}

Test(mooncake, every_size_v2)
{
    every_size(true);
}

Test(mooncake, every_size_v1)
{
    every_size(false);
}

Test(mooncake, many_slices_on_several_connections)
{
    enum { N = 64, PIECE = 40000 };
    struct pair p;
    struct mct_slice s[N];
    struct mct_slice *list[N];
    unsigned posted = 0;

    pair_init(&p);
    for (int i = 0; i < 4; i++)
        pair_connect(&p, true);
    pair_fill(p.local, PAIR_SIZE, 3);
    for (int i = 0; i < N; i++) {
        s[i] = pair_slice(&p, MCT_WRITE, (uint64_t)i * PIECE, (uint64_t)i * PIECE, PIECE);
        list[i] = &s[i];
    }
    cr_assert_eq(p.ops->post(p.link, list, N), 4u, "one request a connection");
    cr_assert_eq(p.ops->post(p.link, list + 4, 1), 0u);
    posted = 4;
    while (p.done < N) {
        pair_turn(&p);
        posted += p.ops->post(p.link, list + posted, N - posted);
    }
    for (int i = 0; i < N; i++)
        cr_assert(s[i].status == MCS_OK && s[i].settled);
    cr_assert_arr_eq(p.remote, p.local, N * PIECE);
    cr_assert_eq(p.a_stats->sent_bytes, (uint64_t)N * PIECE);
    cr_assert_gt(p.ops->progress(p.link), (uint64_t)N * PIECE);
    pair_fini(&p);
}

Test(mooncake, tiny_socket_buffers)
{
    struct pair p;
    struct mct_slice w, r;

    pair_init(&p);
    p.socket_buffer = 2048;
    pair_connect(&p, true);
    pair_fill(p.local, PAIR_SIZE, 5);
    w = pair_slice(&p, MCT_WRITE, 3, 7, 1234567);
    pair_run(&p, &w);
    cr_assert_eq(w.status, MCS_OK);
    cr_assert_arr_eq(p.remote + 7, p.local + 3, 1234567);
    pair_fill(p.remote, PAIR_SIZE, 6);
    r = pair_slice(&p, MCT_READ, 3, 7, 1234567);
    pair_run(&p, &r);
    cr_assert_eq(r.status, MCS_OK);
    cr_assert_arr_eq(p.remote + 7, p.local + 3, 1234567);
    pair_fini(&p);
}

Test(mooncake, notify_is_not_of_this_protocol)
{
    struct pair p;
    struct mct_slice n, *list[1] = {&n};

    pair_init(&p);
    pair_connect(&p, true);
    n = pair_slice(&p, MCT_NOTIFY, 0, 0, 10);
    cr_assert_eq(p.ops->post(p.link, list, 1), 1u);
    cr_assert_eq(p.done, 0u, "never from inside post()");
    cr_assert(p.ops->pending(p.a));
    pair_until(&p, p.done == 1);
    cr_assert(n.status == MCS_NOT_SUPPORTED && n.settled && n.conn == 0);
    cr_assert_eq(p.ops->kill(p.link, 5), -ENOTSUP);
    pair_fini(&p);
}

static void refusal(enum mct_op op, uint64_t length, bool v2)
{
    struct pair p;
    struct mct_slice s;

    pair_init(&p);
    pair_connect(&p, v2);
    s = pair_slice(&p, op, 0, PAIR_SIZE - length + 1, length);
    pair_run(&p, &s);
    if (v2) {
        cr_assert_eq(s.status, MCS_BAD_RANGE, "status %u", s.status);
        cr_assert(s.settled);
    } else {
        cr_assert_eq(s.status, MCS_RAIL, "closed without a word");
        cr_assert_eq(s.settled, op == MCT_READ);
    }
    pair_until(&p, p.lost == 1 && p.left == 1);
    cr_assert_eq(p.b_stats->refused, 1u);
    for (uint64_t i = PAIR_SIZE - length; i < PAIR_SIZE; i++)
        cr_assert_eq(p.remote[i], 0);
    pair_fini(&p);
}

Test(mooncake, refusals)
{
    refusal(MCT_READ, 100, true);
    refusal(MCT_READ, 1 << 20, true);
    refusal(MCT_WRITE, 100, true);
    refusal(MCT_WRITE, 4 << 20, true); /* the status comes while the payload is being sent */
    refusal(MCT_READ, 100, false);
    refusal(MCT_WRITE, 100, false);
    refusal(MCT_WRITE, 4 << 20, false);
}

/* ---- ends before the end ----------------------------------------------------------- */

Test(mooncake, cancel_read_keeps_the_connection)
{
    struct pair p;
    struct mct_slice r, again;

    pair_init(&p);
    p.socket_buffer = 4096;
    pair_connect(&p, true);
    pair_fill(p.remote, PAIR_SIZE, 8);
    r = pair_slice(&p, MCT_READ, 0, 0, 1 << 20);
    pair_post(&p, &r);
    while (p.local[20000] == 0) /* in its middle */
        pair_turn(&p);
    p.ops->cancel(p.link, &r);
    cr_assert_eq(p.done, 0u);
    pair_until(&p, p.done == 1);
    cr_assert_eq(r.status, MCS_CANCELED);
    cr_assert(r.settled && r.moved < 1 << 20);
    memset(p.local, 0, PAIR_SIZE);
    again = pair_slice(&p, MCT_READ, 100, 5000, 3000);
    while (p.ops->post(p.link, (struct mct_slice *[]){&again}, 1) == 0)
        pair_turn(&p); /* while the rest is drained */
    pair_until(&p, p.done == 2);
    cr_assert_eq(again.status, MCS_OK);
    cr_assert_arr_eq(p.local + 100, p.remote + 5000, 3000);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(p.local[i], 0, "written after it came back");
    cr_assert_eq(p.lost, 0u);
    pair_fini(&p);
}

Test(mooncake, cancel_read_of_much_closes)
{
    struct pair p;
    struct mct_slice r;

    pair_init(&p);
    p.socket_buffer = 4096;
    pair_connect(&p, true);
    r = pair_slice(&p, MCT_READ, 0, 0, PAIR_SIZE);
    pair_post(&p, &r);
    for (int i = 0; i < 20; i++)
        pair_turn(&p);
    p.ops->cancel(p.link, &r);
    pair_until(&p, p.done == 1 && p.lost == 1);
    cr_assert(r.status == MCS_CANCELED && r.settled);
    pair_fini(&p);
}

Test(mooncake, cancel_write_half_sent)
{
    struct pair p;
    struct mct_slice w;

    pair_init(&p);
    p.socket_buffer = 4096;
    pair_connect(&p, true);
    pair_fill(p.local, PAIR_SIZE, 9);
    w = pair_slice(&p, MCT_WRITE, 0, 0, PAIR_SIZE);
    pair_post(&p, &w);
    while (p.remote[20000] == 0)
        pair_turn(&p);
    p.ops->cancel(p.link, &w);
    p.ops->cancel(p.link, &w); /* twice is not once too often */
    pair_until(&p, p.done == 1 && p.lost == 1);
    cr_assert_eq(w.status, MCS_CANCELED);
    cr_assert_not(w.settled);
    cr_assert_neq(w.conn, 0u);
    pair_until(&p, p.left == 1);
    pair_fini(&p);
}

Test(mooncake, abort_before_anything_was_sent)
{
    struct pair p;
    struct mct_slice w;

    pair_init(&p);
    pair_connect(&p, true);
    w = pair_slice(&p, MCT_WRITE, 0, 0, 100);
    pair_post(&p, &w);
    p.ops->abort(p.link, -ENETDOWN);
    pair_until(&p, p.done == 1 && p.lost == 1);
    cr_assert(w.status == MCS_RAIL && w.error == -ENETDOWN && w.settled && w.conn == 0);
    cr_assert_eq(p.ops->post(p.link, (struct mct_slice *[]){&w}, 1), 0u);
    pair_fini(&p);
}

Test(mooncake, fini_with_work_out)
{
    struct pair p;
    struct mct_slice w, r;

    pair_init(&p);
    p.socket_buffer = 4096;
    pair_connect(&p, true);
    pair_connect(&p, true);
    w = pair_slice(&p, MCT_WRITE, 0, 0, 4 << 20);
    r = pair_slice(&p, MCT_READ, 4 << 20, 4 << 20, 1 << 20);
    pair_post(&p, &w);
    pair_post(&p, &r);
    for (int i = 0; i < 10; i++)
        pair_turn(&p);
    p.ops->disconnect(p.link);
    p.link = NULL;
    cr_assert_eq(p.done, 2u, "back before the link goes");
    cr_assert_eq(p.lost, 2u);
    cr_assert(w.status == MCS_RAIL && !w.settled && r.status == MCS_RAIL && r.settled);
    pair_fini(&p);
    cr_assert_eq(p.left, 2u);
}

/* ---- memory that is taken away ----------------------------------------------------- */

Test(mooncake, quiesce_initiator)
{
    struct pair p;
    struct mct_slice w, r;

    pair_init(&p);
    p.socket_buffer = 4096;
    pair_connect(&p, true);
    pair_connect(&p, true);
    w = pair_slice(&p, MCT_WRITE, 0, 0, 4 << 20);
    r = pair_slice(&p, MCT_READ, 4 << 20, 4 << 20, 1 << 20);
    pair_post(&p, &w);
    pair_post(&p, &r);
    for (int i = 0; i < 20; i++)
        pair_turn(&p);
    cr_assert_eq(p.ops->quiesce(p.a, p.local + (6 << 20), 1 << 20), 0, "nothing is there");
    while (p.ops->quiesce(p.a, p.local + 4096, 5 << 20) != 0)
        pair_turn(&p);
    cr_assert_eq(p.done, 1u + (r.status == MCS_CANCELED));
    pair_until(&p, p.done == 2);
    cr_assert(w.status == MCS_CANCELED && !w.settled && r.status == MCS_CANCELED && r.settled);
    pair_fini(&p);
}

static void take_away(enum mct_op op)
{
    struct pair p;
    struct mct_slice s;

    pair_init(&p);
    p.socket_buffer = 4096;
    pair_connect(&p, true);
    pair_fill(op == MCT_WRITE ? p.local : p.remote, PAIR_SIZE, 4);
    s = pair_slice(&p, op, 0, 0, 4 << 20);
    pair_post(&p, &s);
    while ((op == MCT_WRITE ? p.remote : p.local)[300000] == 0)
        pair_turn(&p);
    p.public_length = 0;
    while (p.ops->quiesce(p.b, p.remote, PAIR_SIZE) != 0)
        pair_turn(&p);
    memset(p.remote, 0x55, PAIR_SIZE);
    pair_until(&p, p.done == 1 && p.left == 1);
    if (op == MCT_WRITE)
        cr_assert(s.status == MCS_BAD_RANGE && s.settled, "status %u", s.status);
    else
        cr_assert(s.status == MCS_RAIL && s.settled, "status %u", s.status);
    for (uint64_t i = 0; i < PAIR_SIZE; i++)
        cr_assert_eq(p.remote[i], 0x55, "written after the revocation");
    pair_fini(&p);
}

Test(mooncake, revoke_while_written)
{
    take_away(MCT_WRITE);
}

Test(mooncake, revoke_while_read)
{
    take_away(MCT_READ);
}

Test(mooncake, revoked_between_two_chunks)
{
    struct pair p;
    struct mct_slice s;

    pair_init(&p);
    pair_connect(&p, true);
    p.resolves_left = 4; /* the whole, then three chunks */
    s = pair_slice(&p, MCT_WRITE, 0, 0, 4 << 20);
    pair_run(&p, &s);
    cr_assert(s.status == MCS_BAD_RANGE && s.settled, "status %u", s.status);
    pair_until(&p, p.left == 1 && p.lost == 1);
    pair_connect(&p, true);
    p.resolves_left = 4;
    s = pair_slice(&p, MCT_READ, 0, 0, 4 << 20);
    pair_run(&p, &s);
    cr_assert(s.status == MCS_RAIL && s.settled, "status %u", s.status);
    pair_fini(&p);
}

Test(mooncake, dismiss_a_peer_that_does_not_read)
{
    struct pair p;
    uint8_t header[MCT_MOONCAKE_HEADER];
    struct mct_mooncake_request r = {.size = PAIR_SIZE, .address = PAIR_ADDRESS, .v2 = true};
    int fd;

    pair_init(&p);
    p.socket_buffer = 4096;
    fd = pair_raw_client(&p);
    mct_mooncake_request_pack(header, &r);
    cr_assert_eq(send(fd, header, sizeof(header), 0), (ssize_t)sizeof(header));
    for (int i = 0; i < 50; i++)
        pair_turn(&p);
    while (p.ops->dismiss(p.b, &p) != 0)
        pair_turn(&p);
    cr_assert_eq(p.left, 1u);
    close(fd);
    pair_fini(&p);
}
