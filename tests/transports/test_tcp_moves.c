/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes over TCP: every operation, all sizes, many at once, small buffers, checksums, refusals. */
#include "tcp_fixture.h"

static const uint64_t sizes[] = {
    1,          63,     64,     4096,          16384,           16385,   65535,
    65536 + 80, 262144, 262145, (1 << 20) + 1, (5 << 20) + 777, 16 << 20};

static void move_all_sizes(struct fix *f)
{
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t n = sizes[i];
        struct mct_slice w = fix_slice(f, MCT_WRITE, 100, n);
        struct mct_slice r = fix_slice(f, MCT_READ, 100, n);

        fix_fill(f->a.memory, n + 200, (unsigned)i + 1);
        memset(f->b.memory, 0xee, n + 200);
        fix_run(f, &w);
        cr_assert_eq(w.status, MCS_OK, "write of %llu: %u", (unsigned long long)n, w.status);
        cr_assert(w.settled && w.moved == n && w.conn == 1);
        cr_assert(memcmp(f->a.memory + 100, f->b.memory + 100, n) == 0, "write of %llu",
                  (unsigned long long)n);
        cr_assert(f->b.memory[99] == 0xee && f->b.memory[100 + n] == 0xee, "and nothing beside");
        fix_fill(f->b.memory, n + 200, (unsigned)i + 1000);
        memset(f->a.memory, 0xdd, n + 200);
        fix_run(f, &r);
        cr_assert_eq(r.status, MCS_OK);
        cr_assert(memcmp(f->a.memory + 100, f->b.memory + 100, n) == 0, "read of %llu",
                  (unsigned long long)n);
        cr_assert(f->a.memory[99] == 0xdd && f->a.memory[100 + n] == 0xdd, "and nothing beside");
    }
}

Test(tcp_moves, all_sizes)
{
    struct fix f;

    fix_init(&f);
    fix_join(&f, 1);
    move_all_sizes(&f);
    cr_assert_eq(fix_stat(&f.b, refused), 0u);
    cr_assert_eq(fix_stat(&f.a, sent_bytes), fix_stat(&f.b, received_bytes));
    fix_fini(&f);
}

Test(tcp_moves, all_sizes_with_checksums)
{
    struct fix f;

    fix_init_with(&f, &(struct fix_options){.checksum = true});
    fix_join(&f, 1);
    move_all_sizes(&f);
    cr_assert_eq(fix_stat(&f.a, checksum_errors) + fix_stat(&f.b, checksum_errors), 0u);
    fix_fini(&f);
}

Test(tcp_moves, all_sizes_with_zero_copy)
{
    struct fix f;

    fix_init_with(&f, &(struct fix_options){.zero_copy_min = 4096});
    fix_join(&f, 1);
    move_all_sizes(&f);
    if ((mct_uring_features(f.a.uring) & MCT_URING_ZC_USAGE) != 0) {
        /* loopback always copies: it was tried a few times and given up */
        cr_assert_geq(fix_stat(&f.a, zero_copy_copied), 3u);
        cr_assert_leq(fix_stat(&f.a, zero_copy_copied), 16u);
    }
    fix_fini(&f);
}

Test(tcp_moves, tiny_socket_buffers)
{
    struct fix f;
    int fds[2];

    fix_init_with(&f, &(struct fix_options){.checksum = true});
    fix_tcp_pair(fds, 2048);
    fix_adopt(&f, fds[0], 1);
    fix_serve(&f, fds[1], 1);
    move_all_sizes(&f);
    fix_fini(&f);
}

/* Writes and reads of mixed sizes, as many as the window takes, over several connections. */
static void move_many(struct fix *f, unsigned rounds)
{
    enum { MANY = 1500 };
    static struct mct_slice s[MANY];
    uint64_t offset = 0;
    unsigned posted = 0;

    for (unsigned round = 0; round < rounds; round++) {
        offset = 0;
        for (unsigned i = 0; i < MANY; i++) {
            uint64_t n = (i * 7919u + round * 31u) % 9000u + 1u;

            if (i % 97 == 0)
                n += 100000;
            s[i] = fix_slice(f, i % 3 == 0 ? MCT_READ : MCT_WRITE, offset, n);
            offset += n;
        }
        cr_assert_lt(offset, FIX_SIZE);
        fix_fill(f->a.memory, offset, round * 2 + 1);
        fix_fill(f->b.memory, offset, round * 2 + 2);
        f->a.done = posted = 0;
        while (f->a.done < MANY) {
            while (posted < MANY && fix_post(f, &s[posted]) == 1)
                posted++;
            fix_turn(f);
        }
        for (unsigned i = 0; i < MANY; i++) {
            cr_assert_eq(s[i].status, MCS_OK, "slice %u: %u", i, s[i].status);
            cr_assert_eq((uintptr_t)s[i].owner, 1u);
        }
        cr_assert(memcmp(f->a.memory, f->b.memory, offset) == 0, "round %u", round);
    }
}

Test(tcp_moves, many_at_once_on_one_connection)
{
    struct fix f;

    fix_init(&f);
    fix_join(&f, 1);
    move_many(&f, 5);
    fix_fini(&f);
}

Test(tcp_moves, many_at_once_on_four_connections)
{
    struct fix f;

    fix_init_with(&f, &(struct fix_options){.checksum = true});
    for (uint64_t id = 1; id <= 4; id++)
        fix_join(&f, id);
    move_many(&f, 5);
    fix_fini(&f);
}

Test(tcp_moves, small_requests_share_system_calls)
{
    enum { N = 256 };
    struct fix f;
    static struct mct_slice s[N];
    uint64_t before;

    fix_init(&f);
    fix_join(&f, 1);
    fix_turn(&f);
    for (unsigned i = 0; i < N; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i * 64, 64);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    before = mct_uring_enters(f.a.uring);
    fix_until(&f, f.a.done == N);
    cr_assert_lt(mct_uring_enters(f.a.uring) - before, 64u, "%llu system calls for %d requests",
                 (unsigned long long)(mct_uring_enters(f.a.uring) - before), N);
    fix_fini(&f);
}

Test(tcp_moves, a_link_takes_only_what_its_window_holds)
{
    struct fix f;
    static struct mct_slice s[40];
    struct mct_slice *p[40];
    unsigned n;

    fix_init_with(&f, &(struct fix_options){.max_requests = 16});
    cr_assert_eq(fix_post(&f, &s[0]), 0u, "no connection");
    fix_join(&f, 1);
    for (unsigned i = 0; i < 40; i++) {
        s[i] = fix_slice(&f, MCT_READ, i * 4096, 4096);
        p[i] = &s[i];
    }
    n = mct_tcp_ops.post(f.link, p, 40);
    cr_assert_eq(n, 16u, "%u", n);
    fix_until(&f, f.a.done == 16);
    for (unsigned i = 0; i < 4; i++)
        s[i] = fix_slice(&f, MCT_READ, 0, 3 << 20);
    n = mct_tcp_ops.post(f.link, p, 4);
    cr_assert_eq(n, 2u, "8 MiB unanswered: %u", n);
    fix_until(&f, f.a.done == 18);
    /* one that is larger than the window goes alone */
    s[0] = fix_slice(&f, MCT_READ, 0, 16 << 20);
    fix_run(&f, &s[0]);
    cr_assert_eq(s[0].status, MCS_OK);
    fix_fini(&f);
}

Test(tcp_moves, notifications)
{
    struct fix f;
    struct mct_slice n;

    fix_init_with(&f, &(struct fix_options){.checksum = true});
    fix_join(&f, 1);
    memcpy(f.a.memory, "layer.7message", 14);
    n = fix_slice(&f, MCT_NOTIFY, 0, 14);
    n.name_length = 7;
    n.source = 0xabcdef;
    n.bytes = UINT64_C(0x123456789abc);
    fix_run(&f, &n);
    cr_assert_eq(n.status, MCS_OK);
    cr_assert_eq(f.b.notifications, 1u);
    cr_assert_str_eq(f.b.name, "layer.7");
    cr_assert(f.b.message_length == 7 && memcmp(f.b.message, "message", 7) == 0);
    cr_assert_eq(f.b.source, 0xabcdefu);
    cr_assert_eq(f.b.bytes, UINT64_C(0x123456789abc));

    f.b.notify_status = MCS_INBOX_FULL;
    n.owner = NULL;
    fix_run(&f, &n);
    cr_assert_eq(n.status, MCS_INBOX_FULL);
    cr_assert(n.settled);
    f.b.notify_status = MCS_OK;
    /* the largest, and one byte more */
    n = fix_slice(&f, MCT_NOTIFY, 0, MCT_TCP_NOTIFY_MAX);
    n.name_length = MCS_NOTIFY_NAME_MAX;
    fix_run(&f, &n);
    cr_assert_eq(n.status, MCS_OK);
    cr_assert_eq(f.b.message_length, MCS_NOTIFY_MESSAGE_MAX);
    n = fix_slice(&f, MCT_NOTIFY, 0, MCT_TCP_NOTIFY_MAX + 1);
    fix_run(&f, &n);
    cr_assert_eq(n.status, MCS_INVALID_ARGUMENT);
    cr_assert_eq(f.b.notifications, 2u);
    fix_fini(&f);
}

Test(tcp_moves, what_the_target_refuses)
{
    static const struct {
        uint64_t address, incarnation, length;
        uint32_t index;
        uint16_t status;
    } cases[] = {
        {FIX_SEGMENT, FIX_INCARNATION + 1, 4096, FIX_EXPORT, MCS_STALE},
        {FIX_SEGMENT, FIX_INCARNATION, 4096, FIX_EXPORT + 1, MCS_INVALID_HANDLE},
        {FIX_SEGMENT - 1, FIX_INCARNATION, 4096, FIX_EXPORT, MCS_BAD_RANGE},
        {FIX_SEGMENT + FIX_SIZE - 4095, FIX_INCARNATION, 4096, FIX_EXPORT, MCS_BAD_RANGE},
        {UINT64_MAX - 10, FIX_INCARNATION, 4096, FIX_EXPORT, MCS_BAD_RANGE},
        {FIX_SEGMENT + FIX_SIZE, FIX_INCARNATION, 3 << 20, FIX_EXPORT, MCS_BAD_RANGE},
    };
    struct fix f;

    fix_init(&f);
    fix_join(&f, 1);
    memset(f.b.memory, 7, FIX_SIZE);
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        struct mct_slice s =
            fix_slice(&f, i % 2 == 0 ? MCT_READ : MCT_WRITE, 0, cases[i / 2].length);

        s.remote_address = cases[i / 2].address;
        s.remote_incarnation = cases[i / 2].incarnation;
        s.remote_export = cases[i / 2].index;
        fix_run(&f, &s);
        cr_assert_eq(s.status, cases[i / 2].status, "case %zu: %u", i, s.status);
        cr_assert(s.settled && s.moved == 0);
    }
    for (uint64_t i = 0; i < FIX_SIZE; i++)
        cr_assert_eq(f.b.memory[i], 7, "byte %llu", (unsigned long long)i);
    cr_assert_eq(fix_stat(&f.b, refused), 12u);
    cr_assert_eq(f.b.left, 0u, "the connection stays");
    fix_fini(&f);
}

Test(tcp_moves, bad_slices_come_back_at_once)
{
    struct fix f;
    struct mct_slice s;

    fix_init(&f);
    fix_join(&f, 1);
    s = fix_slice(&f, MCT_WRITE, 0, 0);
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_INVALID_ARGUMENT);
    cr_assert(s.settled && s.conn == 0);
    s = fix_slice(&f, MCT_WRITE, 0, MCT_TCP_LENGTH_MAX + 1);
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_INVALID_ARGUMENT);
    fix_fini(&f);
}

Test(tcp_moves, progress_grows_with_what_was_acknowledged)
{
    struct fix f;
    struct mct_slice s;
    uint64_t before;

    fix_init(&f);
    fix_join(&f, 1);
    before = mct_tcp_ops.progress(f.link);
    s = fix_slice(&f, MCT_WRITE, 0, 1 << 20);
    fix_run(&f, &s);
    cr_assert_geq(mct_tcp_ops.progress(f.link) - before, 1u << 20);
    fix_fini(&f);
}

Test(tcp_moves, nothing_is_pending_when_all_is_done)
{
    struct fix f;
    struct mct_slice s;

    fix_init(&f);
    fix_join(&f, 1);
    s = fix_slice(&f, MCT_WRITE, 0, 4096);
    cr_assert_eq(fix_post(&f, &s), 1u);
    cr_assert(mct_tcp_ops.pending(f.a.t));
    fix_until(&f, fix_back(&s));
    fix_until(&f, !mct_tcp_ops.pending(f.a.t) && !mct_tcp_ops.pending(f.b.t));
    fix_fini(&f);
}

/* The engine posts more when it hears that a slice is done. */
static void post_again(struct fix_side *side, struct mct_slice *s)
{
    struct fix *f = side->on_done_context;

    if (side->done < 100) {
        s->owner = NULL;
        cr_assert_eq(fix_post(f, s), 1u);
    }
}

Test(tcp_moves, posting_from_inside_done)
{
    struct fix f;
    struct mct_slice s;

    fix_init(&f);
    fix_join(&f, 1);
    f.a.on_done = post_again;
    f.a.on_done_context = &f;
    s = fix_slice(&f, MCT_WRITE, 0, 4096);
    cr_assert_eq(fix_post(&f, &s), 1u);
    fix_until(&f, f.a.done == 100);
    fix_fini(&f);
}
