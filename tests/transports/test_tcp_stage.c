/* SPDX-License-Identifier: Apache-2.0 */
/* A target whose memory is a GPU's: everything goes through stages, is bounded by them, and is over before it is answered. */
#include "tcp_fixture.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1) << 20)

TestSuite(tcp_stage, .timeout = 60);

static const uint64_t sizes[] = {1, 4096, 16385, 65536 + 80, MIB + 1, 16 * MIB};

static void init(struct fix *f, bool checksum, bool prompt)
{
    fix_init_with(f, &(struct fix_options){.checksum = checksum});
    f->b.gpu = true;
    f->b.prompt = prompt;
    fix_join(f, 1);
}

static void fini(struct fix *f)
{
    fix_fini(f);
    cr_assert_eq(f->b.stages_used, 0u, "all stages are back");
}

static void all_sizes(bool checksum)
{
    struct fix f;

    init(&f, checksum, true);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t n = sizes[i];
        struct mct_slice w = fix_slice(&f, MCT_WRITE, 100, n), r = fix_slice(&f, MCT_READ, 100, n);

        fix_fill(f.a.memory, n + 200, (unsigned)i + 1);
        memset(f.b.memory, 0xee, n + 200);
        fix_run(&f, &w);
        cr_assert_eq(w.status, MCS_OK);
        cr_assert(w.settled && w.moved == n);
        cr_assert(memcmp(f.a.memory + 100, f.b.memory + 100, n) == 0);
        cr_assert(f.b.memory[99] == 0xee && f.b.memory[100 + n] == 0xee, "and nothing beside");
        fix_fill(f.b.memory, n + 200, (unsigned)i + 1000);
        memset(f.a.memory, 0xdd, n + 200);
        fix_run(&f, &r);
        cr_assert_eq(r.status, MCS_OK);
        cr_assert(memcmp(f.a.memory + 100, f.b.memory + 100, n) == 0);
        cr_assert(f.a.memory[99] == 0xdd && f.a.memory[100 + n] == 0xdd, "and nothing beside");
        fix_until(&f, f.b.stages_used == 0); /* given back as soon as nothing needs them */
    }
    cr_assert_eq(f.b.moves, 2 * sizeof(sizes) / sizeof(sizes[0]));
    cr_assert_eq(fix_stat(&f.b, served), f.b.moves);
    cr_assert_eq(fix_stat(&f.b, refused), 0u);
    fini(&f);
}

Test(tcp_stage, all_sizes)
{
    all_sizes(false);
}

Test(tcp_stage, all_sizes_with_checksums)
{
    all_sizes(true);
}

Test(tcp_stage, no_answer_before_the_bytes_are_there)
{
    struct mct_slice s;
    struct fix f;

    init(&f, false, false);
    fix_fill(f.a.memory, MIB, 7);
    s = fix_slice(&f, MCT_WRITE, 0, MIB);
    fix_until(&f, fix_post(&f, &s) == 1);
    fix_until(&f, f.b.moving == 1);
    for (int i = 0; i < 50; i++)
        fix_turn(&f);
    cr_assert_not(fix_back(&s), "the peer may not be told yet");
    cr_assert_eq(fix_stat(&f.b, served), 0u);
    fix_move_one(&f.b, MCS_OK);
    fix_until(&f, fix_back(&s));
    cr_assert_eq(s.status, MCS_OK);
    cr_assert(memcmp(f.a.memory, f.b.memory, MIB) == 0);
    fini(&f);
}

Test(tcp_stage, a_move_that_fails_or_is_refused_is_the_answer)
{
    static const enum mct_op ops[] = {MCT_WRITE, MCT_READ};
    struct fix f;

    init(&f, false, false);
    for (unsigned i = 0; i < 2; i++) {
        struct mct_slice lost = fix_slice(&f, ops[i], 0, MIB), gone = lost, later = lost;

        fix_until(&f, fix_post(&f, &lost) == 1);
        fix_until(&f, f.b.moving == 1);
        fix_move_one(&f.b, MCS_GPU_LOST);
        fix_until(&f, fix_back(&lost));
        cr_assert_eq(lost.status, MCS_GPU_LOST);
        cr_assert(lost.settled);
        f.b.refuse_move = MCS_REVOKED; /* between header and payload, or before it was fetched */
        fix_run(&f, &gone);
        cr_assert_eq(gone.status, MCS_REVOKED);
        f.b.refuse_move = MCS_OK;
        f.b.prompt = true;
        fix_run(&f, &later);
        cr_assert_eq(later.status, MCS_OK, "and the connection goes on");
        f.b.prompt = false;
    }
    cr_assert_eq(fix_stat(&f.b, refused), 4u);
    fini(&f);
}

Test(tcp_stage, requests_wait_for_stages_in_order_and_all_come_through)
{
    enum { N = 48 };
    struct mct_slice s[N];
    unsigned posted = 0, back = 0;
    struct fix f;

    init(&f, true, true);
    fix_join(&f, 2);
    f.b.room = 2;
    fix_fill(f.a.memory, FIX_SIZE / 2, 1);
    fix_fill(f.b.memory + FIX_SIZE / 2, FIX_SIZE / 2, 2);
    for (unsigned i = 0; i < N; i++)
        s[i] = fix_slice(&f, i % 2 == 0 ? MCT_WRITE : MCT_READ,
                         (i % 2 == 0 ? 0 : FIX_SIZE / 2) + i * 300 * KIB, 250 * KIB + i);
    while (back < N) {
        while (posted < N && fix_post(&f, &s[posted]) == 1)
            posted++;
        fix_until(&f, fix_back(&s[back]));
        cr_assert_eq(s[back].status, MCS_OK);
        cr_assert(memcmp(s[back].local, f.b.memory + ((uint8_t *)s[back].local - f.a.memory),
                         s[back].length) == 0);
        back++;
    }
    cr_assert_eq(f.b.stages_most, 2u);
    cr_assert_gt(f.b.starved, 0u);
    fini(&f);
}

Test(tcp_stage, writes_of_the_same_bytes_land_in_their_order)
{
    struct mct_slice s[3];
    struct fix f;

    init(&f, false, false);
    for (unsigned i = 0; i < 3; i++) {
        /* the first two meet in one byte, the third in none of theirs */
        static const uint64_t at[] = {0, 64 * KIB - 1, 256 * KIB};

        memset(f.a.memory + i * MIB, (int)i + 1, 64 * KIB);
        s[i] = fix_slice(&f, MCT_WRITE, i * MIB, 64 * KIB);
        s[i].remote_address = FIX_SEGMENT + at[i];
        fix_until(&f, fix_post(&f, &s[i]) == 1);
    }
    fix_until(&f, f.b.moving == 1 && f.b.stages_used == 3);
    for (int i = 0; i < 20; i++)
        fix_turn(&f);
    cr_assert_eq(f.b.moving, 1u, "the others stand behind the first one");
    fix_move_one(&f.b, MCS_OK);
    cr_assert_eq(f.b.moving, 2u);
    fix_move_one(&f.b, MCS_OK);
    fix_move_one(&f.b, MCS_OK);
    for (unsigned i = 0; i < 3; i++)
        fix_until(&f, fix_back(&s[i]));
    cr_assert_eq(f.b.memory[64 * KIB - 1], 2, "the later one");
    cr_assert_eq(f.b.memory[64 * KIB - 2], 1);
    cr_assert_eq(f.b.memory[256 * KIB], 3);
    fini(&f);
}

Test(tcp_stage, what_was_called_back_half_way_is_not_moved)
{
    struct mct_slice s;
    struct fix f;
    int fds[2];

    fix_init(&f);
    f.b.gpu = f.b.prompt = true;
    fix_tcp_pair(fds, 4096);
    fix_adopt(&f, fds[0], 1);
    fix_serve(&f, fds[1], 1);
    memset(f.a.memory, 5, 16 * MIB);
    s = fix_slice(&f, MCT_WRITE, 0, 16 * MIB);
    fix_until(&f, fix_post(&f, &s) == 1);
    fix_until(&f, fix_stat(&f.b, received_bytes) > 64 * KIB);
    mct_tcp_ops.cancel(f.link, &s);
    fix_until(&f, fix_back(&s));
    cr_assert_eq(s.status, MCS_CANCELED);
    fix_until(&f, fix_stat(&f.b, refused) == 1);
    cr_assert_eq(f.b.moves, 0u);
    cr_assert_eq(f.b.memory[0], 0, "not a byte of it");
    fini(&f);
}

Test(tcp_stage, a_connection_that_dies_goes_when_its_moves_are_over)
{
    struct mct_slice s[4];
    struct fix f;

    init(&f, false, false);
    f.b.room = 3;
    for (unsigned i = 0; i < 4; i++) {
        s[i] = fix_slice(&f, i < 2 ? MCT_WRITE : MCT_READ, i * MIB, MIB);
        fix_until(&f, fix_post(&f, &s[i]) == 1);
    }
    fix_until(&f, f.b.moving == 3 && f.b.starved != 0);
    mct_tcp_ops.abort(f.link, -ECONNABORTED);
    fix_until(&f, f.a.lost == 1);
    for (int i = 0; i < 200; i++)
        fix_turn(&f);
    cr_assert_eq(f.b.left, 0u, "their memory is still written to");
    while (f.b.moving > 0)
        fix_move_one(&f.b, MCS_OK);
    fix_until(&f, f.b.left == 1);
    cr_assert_eq(f.b.stages_used, 0u);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(s[i].status, MCS_RAIL);
    fini(&f);
}

Test(tcp_stage, one_that_waits_for_a_stage_may_die_too)
{
    struct mct_slice s[3];
    struct fix f;

    init(&f, false, true);
    f.b.room = 0;
    fix_join(&f, 2);
    for (unsigned i = 0; i < 3; i++) {
        s[i] = fix_slice(&f, i == 0 ? MCT_WRITE : MCT_READ, i * MIB, MIB);
        fix_until(&f, fix_post(&f, &s[i]) == 1);
    }
    fix_until(&f, f.b.starved != 0);
    for (int i = 0; i < 50; i++)
        fix_turn(&f);
    /* it reads nothing now, and so learns of the peer's end from the agent */
    fix_until(&f, mct_tcp_ops.dismiss(f.b.t, &f.visitor) == 0);
    fix_until(&f, f.a.lost == 2);
    cr_assert_eq(f.b.left, 2u);
    f.b.room = FIX_STAGES;
    for (int i = 0; i < 20; i++)
        fix_turn(&f);
    cr_assert_eq(f.b.moves, 0u);
    fini(&f);
}

Test(tcp_stage, an_initiators_slice_in_a_gpu_is_refused)
{
    struct mct_slice s;
    struct fix f;

    init(&f, false, true);
    s = fix_slice(&f, MCT_WRITE, 0, 4096);
    s.gpu = true;
    s.local = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fix_run(&f, &s);
    cr_assert_eq(s.status, MCS_NOT_SUPPORTED);
    cr_assert(s.settled);
    munmap(s.local, 4096);
    fini(&f);
}

/* Turns for so many ms. */
static void rest(struct fix *f, long ms)
{
    struct timespec begin, now;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        fix_turn(f);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < ms);
}

Test(tcp_stage, a_slow_move_is_no_silence)
{
    static const enum mct_op ops[] = {MCT_WRITE, MCT_READ};
    struct mct_slice s;
    struct fix f;
    uint64_t before;

    init(&f, true, false);
    for (unsigned i = 0; i < 3; i++) {
        s = fix_slice(&f, ops[i % 2], 0, MIB);
        f.b.room = i == 2 ? 0 : FIX_STAGES; /* nor is the wait for a stage */
        f.b.starved = 0;
        fix_until(&f, fix_post(&f, &s) == 1);
        fix_until(&f, i == 2 ? f.b.starved != 0 : f.b.moving == 1);
        for (unsigned k = 0; k < 3; k++) {
            before = mct_tcp_ops.progress(f.link);
            fix_until(&f, mct_tcp_ops.progress(f.link) > before);
        }
        f.b.room = FIX_STAGES;
        fix_until(&f, f.b.moving == 1);
        fix_move_one(&f.b, MCS_OK);
        fix_until(&f, fix_back(&s));
        cr_assert_eq(s.status, MCS_OK);
    }
    before = mct_tcp_ops.progress(f.link);
    rest(&f, 200);
    cr_assert_eq(mct_tcp_ops.progress(f.link), before, "and none is said when nothing is asked");
    fini(&f);
}

Test(tcp_stage, peers_that_do_not_know_busy_hear_none)
{
    struct mct_conn conn = {.id = 1, .features = MCT_TCP_FEATURE_NOTIFY};
    struct mct_slice s;
    struct fix f;
    uint64_t before;
    int fds[2];

    fix_init(&f);
    f.b.gpu = true;
    fix_tcp_pair(fds, 0);
    conn.fd = fds[0];
    cr_assert_eq(mct_tcp_ops.adopt(f.link, &conn), 0);
    conn.fd = fds[1];
    cr_assert_eq(mct_tcp_ops.serve(f.b.t, &conn, &f.visitor), 0);
    s = fix_slice(&f, MCT_READ, 0, MIB);
    fix_until(&f, fix_post(&f, &s) == 1);
    fix_until(&f, f.b.moving == 1);
    before = mct_tcp_ops.progress(f.link);
    rest(&f, 200);
    cr_assert_eq(mct_tcp_ops.progress(f.link), before);
    fix_move_one(&f.b, MCS_OK);
    fix_until(&f, fix_back(&s));
    cr_assert_eq(s.status, MCS_OK);
    fini(&f);
}
