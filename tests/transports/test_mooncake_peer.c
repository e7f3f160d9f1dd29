/* SPDX-License-Identifier: Apache-2.0 */
/* The Mooncake transport against peers that the test plays byte by byte: good ones, old ones, bad ones. */
#include <fcntl.h>

#include "mooncake_pair.h"
#include "transports/mooncake/protocol.h"

/* Reads exactly n bytes while both instances go on. */
static void take(struct pair *p, int fd, void *out, size_t n)
{
    time_t limit = time(NULL) + 60;

    for (size_t have = 0; have < n;) {
        ssize_t res = recv(fd, (uint8_t *)out + have, n - have, MSG_DONTWAIT);

        cr_assert(res > 0 || (res < 0 && errno == EAGAIN), "res %zd, errno %d after %zu bytes", res,
                  errno, have);
        have += res > 0 ? (size_t)res : 0;
        pair_turn(p);
        cr_assert_lt(time(NULL), limit, "only %zu of %zu bytes came", have, n);
    }
}

/* What the end looks like: 0 in order, else the errno. */
static int end_of(struct pair *p, int fd)
{
    time_t limit = time(NULL) + 60;
    uint8_t byte;
    ssize_t res;

    while ((res = recv(fd, &byte, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN) {
        pair_turn(p);
        cr_assert_lt(time(NULL), limit, "stays open");
    }
    cr_assert_leq(res, 0, "a byte more");
    return res == 0 ? 0 : errno;
}

static void give(int fd, const void *bytes, size_t n)
{
    cr_assert_eq(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
}

static void ask(int fd, uint8_t op, uint64_t size, uint64_t address)
{
    uint8_t h[MCT_MOONCAKE_HEADER];

    memset(h, 0xee, sizeof(h)); /* nobody reads the padding */
    mct_mooncake_put(h, size, 8);
    mct_mooncake_put(h + 8, address, 8);
    h[16] = op;
    give(fd, h, sizeof(h));
}

static void status(int fd, uint32_t code)
{
    uint8_t f[MCT_MOONCAKE_STATUS];

    mct_mooncake_status_pack(f, code);
    give(fd, f, sizeof(f));
}

static const uint8_t ok[] = {0, 0, 0, 0, 'V', 'T', 'C', 'M'};
static const uint8_t rejected[] = {1, 0, 0, 0, 'V', 'T', 'C', 'M'};

/* ---- target ------------------------------------------------------------------------ */

Test(mooncake_target, bytes_one_by_one)
{
    static const uint8_t request[] = {5, 0,    0, 0, 0, 0, 0, 0, 3, 0,   0,   0,   0,   0x30, 0,
                                      0, 0x81, 1, 1, 1, 1, 1, 1, 1, 'h', 'e', 'l', 'l', 'o'};
    struct pair p;
    uint8_t got[8];
    int fd;

    pair_init(&p);
    fd = pair_raw_client(&p);
    for (size_t i = 0; i < sizeof(request); i++) {
        give(fd, request + i, 1);
        pair_turn(&p);
    }
    take(&p, fd, got, sizeof(got));
    cr_assert_arr_eq(got, ok, sizeof(ok));
    cr_assert_arr_eq(p.remote + 3, "hello", 5);
    close(fd);
    pair_until(&p, p.left == 1);
    cr_assert_str_eq(p.why, "it closed");
    pair_fini(&p);
}

Test(mooncake_target, every_opcode)
{
    struct pair p;
    uint8_t got[16];
    int fd;

    pair_init(&p);
    pair_fill(p.remote, 100, 1);
    fd = pair_raw_client(&p);
    for (unsigned op = 0; op < 256; op++) {
        if ((op & 0x7f) == 1)
            continue;
        ask(fd, (uint8_t)op, 8, PAIR_ADDRESS + op);
        take(&p, fd, got, op & 0x80 ? 16 : 8);
        if (op & 0x80)
            cr_assert_arr_eq(got, ok, 8);
        cr_assert_arr_eq(got + (op & 0x80 ? 8 : 0), p.remote + op, 8);
    }
    close(fd);
    pair_until(&p, p.left == 1);
    pair_fini(&p);
}

Test(mooncake_target, pipelined)
{
    enum { N = 300 };
    struct pair p;
    uint8_t got[8 + 50];
    int fd;

    pair_init(&p);
    fd = pair_raw_client(&p);
    for (unsigned i = 0; i < N; i++) { /* write, read it back, bare write */
        uint8_t bytes[50];

        memset(bytes, (int)i, sizeof(bytes));
        ask(fd, 0x81, sizeof(bytes), PAIR_ADDRESS + i);
        give(fd, bytes, sizeof(bytes));
        ask(fd, 0x80, sizeof(bytes), PAIR_ADDRESS + i);
        ask(fd, 0x01, sizeof(bytes), PAIR_ADDRESS + 1000);
        give(fd, bytes, sizeof(bytes));
        if (i % 7 == 0)
            pair_turn(&p);
    }
    for (unsigned i = 0; i < N; i++) {
        take(&p, fd, got, 8);
        cr_assert_arr_eq(got, ok, 8);
        take(&p, fd, got, 58);
        cr_assert_arr_eq(got, ok, 8);
        for (int k = 0; k < 50; k++)
            cr_assert_eq(got[8 + k], (uint8_t)i);
    }
    close(fd);
    pair_until(&p, p.left == 1);
    cr_assert_eq(p.remote[1000], (uint8_t)(N - 1));
    cr_assert_eq(p.b_stats->served, 3u * N);
    pair_fini(&p);
}

Test(mooncake_target, bad_ranges)
{
    static const struct {
        uint64_t size, address;
    } bad[] = {{0, PAIR_ADDRESS},
               {1, PAIR_ADDRESS - 1},
               {2, PAIR_ADDRESS - 1},
               {1, PAIR_ADDRESS + PAIR_SIZE},
               {2, PAIR_ADDRESS + PAIR_SIZE - 1},
               {PAIR_SIZE + 1, PAIR_ADDRESS},
               {UINT64_MAX, PAIR_ADDRESS},
               {UINT64_MAX - PAIR_ADDRESS + 1, PAIR_ADDRESS},
               {UINT64_MAX - PAIR_ADDRESS + 2, PAIR_ADDRESS},
               {1, 0},
               {1, UINT64_MAX},
               {UINT64_MAX, UINT64_MAX},
               {UINT64_C(1) << 63, PAIR_ADDRESS}};
    static const uint8_t ops[] = {0x00, 0x01, 0x80, 0x81};
    struct pair p;
    unsigned n = 0;

    pair_init(&p);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        for (size_t k = 0; k < 4; k++) {
            int fd = pair_raw_client(&p);
            uint8_t got[8];

            ask(fd, ops[k], bad[i].size, bad[i].address);
            if (ops[k] & 0x80) {
                take(&p, fd, got, 8);
                cr_assert_arr_eq(got, rejected, 8);
                cr_assert_eq(end_of(&p, fd), 0);
            } else {
                cr_assert_eq(end_of(&p, fd), ECONNRESET);
            }
            close(fd);
            n++;
            pair_until(&p, p.left == n);
        }
    cr_assert_eq(p.b_stats->refused, n);
    cr_assert_eq(p.b_stats->inbound, 0u);
    pair_fini(&p);
}

/* 10 s of 1000 ticks are over at once. */
Test(mooncake_target, a_header_that_does_not_end)
{
    struct pair p;
    int fd, idle;

    pair_init_ticks(&p, 1000);
    idle = pair_raw_client(&p);
    fd = pair_raw_client(&p);
    give(fd, "abc", 3);
    pair_until(&p, p.left == 1);
    cr_assert_eq(p.left_error, -ETIMEDOUT);
    cr_assert_eq(end_of(&p, fd), 0);
    cr_assert_eq(p.b_stats->protocol_errors, 1u);
    cr_assert_eq(p.b_stats->inbound, 1u, "idle ones stay");
    close(fd);
    close(idle);
    pair_until(&p, p.left == 2);
    pair_fini(&p);
}

Test(mooncake_target, gone_in_the_middle)
{
    static const struct linger reset = {.l_onoff = 1};
    struct pair p;

    pair_init(&p);
    for (unsigned i = 0; i < 4; i++) {
        int fd = pair_raw_client(&p);

        if (i < 2) {
            ask(fd, 0x81, 1 << 20, PAIR_ADDRESS);
            give(fd, "some", 4);
        } else {
            ask(fd, 0x80, PAIR_SIZE, PAIR_ADDRESS);
        }
        for (int k = 0; k < 10; k++)
            pair_turn(&p);
        if (i % 2)
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        close(fd);
        pair_until(&p, p.left == i + 1);
    }
    cr_assert_eq(p.b_stats->inbound, 0u);
    pair_fini(&p);
}

Test(mooncake_target, noise)
{
    struct pair p;

    pair_init(&p);
    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint8_t bytes[400];
        int fd = pair_raw_client(&p);

        pair_fill(bytes, sizeof(bytes), seed);
        if (seed % 3 == 0) { /* a range that is good, an opcode by chance */
            mct_mooncake_put(bytes, seed % 300 + 1, 8);
            mct_mooncake_put(bytes + 8, PAIR_ADDRESS + seed, 8);
        }
        give(fd, bytes, sizeof(bytes) - seed % 100);
        for (int k = 0; k < 5; k++)
            pair_turn(&p);
        close(fd);
        pair_until(&p, p.left == seed);
    }
    cr_assert_eq(p.b_stats->inbound, 0u);
    pair_fini(&p);
}

/* ---- initiator --------------------------------------------------------------------- */

static void begin(struct pair *p, struct mct_slice *s, int fd, uint8_t op)
{
    uint8_t h[MCT_MOONCAKE_HEADER];

    pair_post(p, s);
    take(p, fd, h, sizeof(h));
    cr_assert_eq(mct_mooncake_take(h, 8), s->length);
    cr_assert_eq(mct_mooncake_take(h + 8, 8), s->remote_address);
    cr_assert_eq(h[16], op);
}

Test(mooncake_initiator, status_and_payload_in_pieces)
{
    struct pair p;
    struct mct_slice r, w;
    uint8_t got[5];
    int fd;

    pair_init(&p);
    fd = pair_raw_server(&p, true);
    r = pair_slice(&p, MCT_READ, 10, 20, 5);
    begin(&p, &r, fd, 0x80);
    for (int i = 0; i < 8; i++) {
        give(fd, ok + i, 1);
        pair_turn(&p);
    }
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(p.done, 0u);
        give(fd, &"bytes"[i], 1);
        pair_turn(&p);
    }
    pair_until(&p, p.done == 1);
    cr_assert_eq(r.status, MCS_OK);
    cr_assert_arr_eq(p.local + 10, "bytes", 5);

    w = pair_slice(&p, MCT_WRITE, 10, 20, 5);
    begin(&p, &w, fd, 0x81);
    take(&p, fd, got, 5);
    cr_assert_arr_eq(got, "bytes", 5);
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(p.done, 1u);
        give(fd, ok + i, 1);
        pair_turn(&p);
    }
    pair_until(&p, p.done == 2);
    cr_assert(w.status == MCS_OK && w.settled);
    close(fd);
    pair_until(&p, p.lost == 1);
    pair_fini(&p);
}

/* An OK that comes before the payload went out is remembered. */
Test(mooncake_initiator, early_status)
{
    struct pair p;
    struct mct_slice w;
    uint8_t *got = malloc(4 << 20);
    int fd;

    pair_init(&p);
    p.socket_buffer = 4096;
    fd = pair_raw_server(&p, true);
    w = pair_slice(&p, MCT_WRITE, 0, 0, 4 << 20);
    begin(&p, &w, fd, 0x81);
    status(fd, 0);
    for (int i = 0; i < 20; i++)
        pair_turn(&p);
    cr_assert_eq(p.done, 0u);
    take(&p, fd, got, 4 << 20);
    pair_until(&p, p.done == 1);
    cr_assert(w.status == MCS_OK && w.settled);
    close(fd);
    free(got);
    pair_fini(&p);
}

/* As stock does: status at once, close without draining; the sender is in the middle. */
Test(mooncake_initiator, rejected_while_sending)
{
    struct pair p;
    struct mct_slice w;
    int fd;

    pair_init(&p);
    fd = pair_raw_server(&p, true);
    w = pair_slice(&p, MCT_WRITE, 0, 0, 4 << 20);
    begin(&p, &w, fd, 0x81);
    status(fd, 1);
    close(fd);
    pair_until(&p, p.done == 1 && p.lost == 1);
    cr_assert_eq(w.status, MCS_BAD_RANGE, "status %u error %d", w.status, w.error);
    cr_assert(w.settled);
    pair_fini(&p);
}

static void nonsense(const void *bytes, size_t n, enum mct_op op, uint64_t length,
                     unsigned want_status, bool want_settled)
{
    struct pair p;
    struct mct_slice s;
    int fd;

    pair_init(&p);
    fd = pair_raw_server(&p, true);
    s = pair_slice(&p, op, 0, 0, length);
    begin(&p, &s, fd, op == MCT_WRITE ? 0x81 : 0x80);
    give(fd, bytes, n);
    pair_until(&p, p.done == 1 && p.lost == 1);
    cr_assert_eq(s.status, want_status, "status %u error %d", s.status, s.error);
    cr_assert_eq(s.settled, want_settled);
    close(fd);
    pair_fini(&p);
}

Test(mooncake_initiator, nonsense)
{
    static const uint8_t magic[] = {0, 0, 0, 0, 'V', 'T', 'C', 'N'};
    static const uint8_t code[] = {2, 0, 0, 0, 'V', 'T', 'C', 'M'};
    static const uint8_t more[] = {0, 0, 0, 0, 'V', 'T', 'C', 'M', 9};

    nonsense(magic, 8, MCT_READ, 100, MCS_RAIL, true);
    nonsense(magic, 8, MCT_WRITE, 100, MCS_RAIL, false);
    nonsense(code, 8, MCT_READ, 100, MCS_PROTOCOL, true);
    nonsense(code, 8, MCT_WRITE, 100, MCS_PROTOCOL, false);
    nonsense(more, 9, MCT_WRITE, 2 << 20, MCS_RAIL, false);
}

Test(mooncake_initiator, more_than_asked_for)
{
    static const uint8_t more[] = {0, 0, 0, 0, 'V', 'T', 'C', 'M', 'a', 'b', 'c', 'd'};
    struct pair p;
    struct mct_slice r;
    int fd;

    pair_init(&p);
    fd = pair_raw_server(&p, true);
    r = pair_slice(&p, MCT_READ, 0, 0, 3);
    begin(&p, &r, fd, 0x80);
    give(fd, more, sizeof(more));
    pair_until(&p, p.lost == 1);
    cr_assert_eq(p.lost_error, -EPROTO);
    cr_assert_eq(p.done, 1u);
    cr_assert_eq(p.local[3], 0);
    close(fd);

    fd = pair_raw_server(&p, true);
    status(fd, 0); /* unasked */
    pair_until(&p, p.lost == 2);
    cr_assert_eq(p.lost_error, -EPROTO);
    cr_assert_eq(p.a_stats->protocol_errors, 2u);
    close(fd);
    pair_fini(&p);
}

Test(mooncake_initiator, dies_in_the_middle)
{
    struct pair p;
    struct mct_slice r, w;
    uint8_t got[100];
    int fd;

    pair_init(&p);
    fd = pair_raw_server(&p, true);
    r = pair_slice(&p, MCT_READ, 0, 0, 1 << 20);
    begin(&p, &r, fd, 0x80);
    status(fd, 0);
    give(fd, got, sizeof(got));
    close(fd);
    pair_until(&p, p.done == 1 && p.lost == 1);
    cr_assert(r.status == MCS_RAIL && r.error == -ECONNRESET && r.settled && r.moved == 100);

    fd = pair_raw_server(&p, true);
    w = pair_slice(&p, MCT_WRITE, 0, 0, 100);
    begin(&p, &w, fd, 0x81);
    take(&p, fd, got, 100);
    close(fd);
    pair_until(&p, p.done == 2 && p.lost == 2);
    cr_assert(w.status == MCS_RAIL && !w.settled && w.conn == 2 && w.moved == 0);
    pair_fini(&p);
}

/* ---- version 1 --------------------------------------------------------------------- */

/* The oldest peers close after each request; a little younger ones read on. */
Test(mooncake_initiator, v1_write)
{
    for (int keeps = 0; keeps < 2; keeps++) {
        struct pair p;
        struct mct_slice w;
        uint8_t got[1000], byte;
        int fd;

        pair_init(&p);
        fd = pair_raw_server(&p, false);
        w = pair_slice(&p, MCT_WRITE, 0, 0, sizeof(got));
        pair_fill(p.local, 1000, 3);
        begin(&p, &w, fd, 0x01);
        for (int i = 0; i < 20; i++)
            pair_turn(&p);
        cr_assert_eq(p.done, 0u, "handed over is not applied");
        take(&p, fd, got, sizeof(got));
        cr_assert_arr_eq(got, p.local, sizeof(got));
        if (keeps)
            cr_assert_eq(recv(fd, &byte, 1, 0), 0, "this side closes first");
        close(fd);
        pair_until(&p, p.done == 1 && p.lost == 1);
        cr_assert(w.status == MCS_OK && w.settled, "status %u error %d", w.status, w.error);
        cr_assert_eq(p.ops->post(p.link, (struct mct_slice *[]){&w}, 1), 0u);
        pair_fini(&p);
    }
}

static void v1_refused(bool at_once)
{
    struct pair p;
    struct mct_slice w;
    uint8_t h[MCT_MOONCAKE_HEADER];
    int fd;

    pair_init(&p);
    p.socket_buffer = 4096;
    fd = pair_raw_server(&p, false);
    w = pair_slice(&p, MCT_WRITE, 0, 0, at_once ? 100 : 1 << 20);
    pair_post(&p, &w);
    if (!at_once)
        for (int i = 0; i < 50; i++)
            pair_turn(&p);
    take(&p, fd, h, sizeof(h));
    close(fd); /* with the payload unread */
    pair_until(&p, p.done == 1 && p.lost == 1);
    cr_assert(w.status == MCS_RAIL && !w.settled, "status %u", w.status);
    pair_fini(&p);
}

Test(mooncake_initiator, v1_refused_write_is_no_success)
{
    v1_refused(true);
    v1_refused(false);
}

Test(mooncake_initiator, v1_read_then_close)
{
    struct pair p;
    struct mct_slice r;
    int fd;

    pair_init(&p);
    fd = pair_raw_server(&p, false);
    r = pair_slice(&p, MCT_READ, 0, 0, 10);
    begin(&p, &r, fd, 0x00);
    give(fd, "0123456789", 10);
    close(fd);
    pair_until(&p, p.done == 1 && p.lost == 1);
    cr_assert(r.status == MCS_OK && r.settled);
    cr_assert_arr_eq(p.local, "0123456789", 10);
    cr_assert_eq(p.lost_error, -ECONNRESET);
    pair_fini(&p);
}

/* A process that does not answer, or does not take what is sent, is no dead path. */
Test(mooncake_initiator, progress)
{
    struct pair p;
    struct mct_slice w;
    uint8_t got[100];
    uint64_t last;
    int fd;

    pair_init(&p);
    p.socket_buffer = 4096;
    fd = pair_raw_server(&p, true);
    last = p.ops->progress(p.link);
    cr_assert_eq(p.ops->progress(p.link), last, "nothing is under way");
    w = pair_slice(&p, MCT_WRITE, 0, 0, sizeof(got));
    begin(&p, &w, fd, 0x81);
    take(&p, fd, got, sizeof(got));
    pair_until(&p, p.ops->progress(p.link) != p.ops->progress(p.link));
    status(fd, 0);
    pair_until(&p, p.done == 1);
    last = p.ops->progress(p.link);
    cr_assert_eq(p.ops->progress(p.link), last, "nothing is under way");
    w = pair_slice(&p, MCT_WRITE, 0, 0, 4 << 20);
    pair_post(&p, &w);
    for (int i = 0; i < 20; i++) { /* until both kernels are full, and beyond */
        last = p.ops->progress(p.link);
        pair_until(&p, p.ops->progress(p.link) != last);
    }
    close(fd);
    pair_fini(&p);
}

/* ---- given up, answered later ------------------------------------------------------ */

Test(mooncake_initiator, late_answer)
{
    struct pair p;
    struct mct_slice w;
    uint8_t got[100];
    int fd;

    pair_init(&p);
    fd = pair_raw_server(&p, true);
    w = pair_slice(&p, MCT_WRITE, 0, 0, sizeof(got));
    begin(&p, &w, fd, 0x81);
    take(&p, fd, got, sizeof(got));
    cr_assert_eq(p.ops->quiesce(p.a, p.local, PAIR_SIZE), 0, "its payload has left");
    p.ops->cancel(p.link, &w);
    pair_until(&p, p.done == 1);
    cr_assert(w.status == MCS_CANCELED && !w.settled && w.conn == 1);
    cr_assert_eq(p.lost, 0u);
    cr_assert_eq(p.ops->post(p.link, (struct mct_slice *[]){&w}, 1), 0u);
    status(fd, 0);
    w = pair_slice(&p, MCT_WRITE, 0, 0, sizeof(got));
    pair_until(&p, p.ops->post(p.link, (struct mct_slice *[]){&w}, 1) == 1);
    cr_assert_eq(p.done, 1u, "the first one's answer is nobody's");
    take(&p, fd, got, MCT_MOONCAKE_HEADER);
    take(&p, fd, got, sizeof(got));
    p.ops->cancel(p.link, &w); /* and one whose answer never comes */
    pair_until(&p, p.done == 2);
    close(fd);
    pair_until(&p, p.lost == 1);
    cr_assert_eq(p.done, 2u);
    pair_fini(&p);
}

Test(mooncake_initiator, cancel_read_before_its_answer)
{
    struct pair p;
    struct mct_slice r, again;
    uint8_t bytes[300] = {1, 2, 3};
    int fd;

    pair_init(&p);
    fd = pair_raw_server(&p, true);
    r = pair_slice(&p, MCT_READ, 0, 0, sizeof(bytes));
    begin(&p, &r, fd, 0x80);
    p.ops->cancel(p.link, &r);
    cr_assert_eq(p.done, 0u);
    pair_until(&p, p.done == 1);
    cr_assert(r.status == MCS_CANCELED && r.settled && r.moved == 0);
    status(fd, 0);
    give(fd, bytes, sizeof(bytes));
    again = pair_slice(&p, MCT_READ, 500, 0, 2);
    while (p.ops->post(p.link, (struct mct_slice *[]){&again}, 1) == 0)
        pair_turn(&p);
    status(fd, 0);
    give(fd, "hi", 2);
    pair_until(&p, p.done == 2);
    cr_assert_eq(again.status, MCS_OK);
    cr_assert_arr_eq(p.local + 500, "hi", 2);
    cr_assert_eq(p.local[0], 0, "dropped");
    close(fd);
    pair_fini(&p);
}
