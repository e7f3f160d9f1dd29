/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that send nonsense, read nothing, answer in any order, and wires that damage bytes. */
#include "tcp_fixture.h"

/* A raw peer: a plain socket that the test reads and writes itself. */
static int raw_visitor(struct fix *f, uint64_t id)
{
    int fds[2];

    fix_tcp_pair(fds, 0);
    fix_serve(f, fds[1], id);
    cr_assert_eq(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    return fds[0];
}

static int raw_target(struct fix *f, uint64_t id)
{
    int fds[2];

    fix_tcp_pair(fds, 0);
    fix_adopt(f, fds[0], id);
    return fds[1]; /* accepted with O_NONBLOCK */
}

static void raw_send(struct fix *f, int fd, const void *data, size_t size)
{
    const uint8_t *at = data;

    while (size > 0) {
        ssize_t n = send(fd, at, size, MSG_NOSIGNAL);

        if (n < 0) {
            cr_assert(errno == EAGAIN || errno == ECONNRESET || errno == EPIPE);
            if (errno != EAGAIN)
                return;
            n = 0;
        }
        at += n;
        size -= (size_t)n;
        fix_turn(f);
    }
}

static void raw_receive(struct fix *f, int fd, void *data, size_t size)
{
    uint8_t *at = data;

    while (size > 0) {
        ssize_t n = recv(fd, at, size, 0);

        cr_assert(n > 0 || (n < 0 && errno == EAGAIN), "%zd %d", n, errno);
        if (n > 0) {
            at += n;
            size -= (size_t)n;
        }
        fix_turn(f);
    }
}

static struct mct_tcp_header header(uint8_t type, uint64_t id, uint64_t length)
{
    struct mct_tcp_header h = {.type = type,
                               .id = id,
                               .length = length,
                               .address = FIX_SEGMENT,
                               .incarnation = FIX_INCARNATION,
                               .export_index = FIX_EXPORT};

    mct_tcp_header_seal(&h);
    return h;
}

Test(tcp_hostile, requests_that_make_no_sense)
{
    struct mct_tcp_header bad[13];
    unsigned n = 0;
    struct fix f;

    bad[n] = header(MCT_TCP_READ, 1, 64);
    bad[n++].magic ^= 1;
    bad[n] = header(MCT_TCP_READ, 1, 64);
    bad[n++].check ^= 1;
    bad[n] = header(MCT_TCP_READ, 1, 64);
    bad[n++].address ^= 1; /* the check no longer fits */
    bad[n] = header(MCT_TCP_READ, 1, 64);
    bad[n].flags = 0x80;
    mct_tcp_header_seal(&bad[n++]);
    bad[n++] = header(99, 1, 0);
    bad[n++] = header(MCT_TCP_DATA, 1, 64);
    bad[n++] = header(MCT_TCP_READ, 1, 0);
    bad[n++] = header(MCT_TCP_WRITE, 1, MCT_TCP_LENGTH_MAX + 1);
    bad[n++] = header(MCT_TCP_NOTIFY, 1, MCT_TCP_NOTIFY_MAX + 1);
    bad[n] = header(MCT_TCP_NOTIFY, 1, 10);
    bad[n].name_length = 11;
    mct_tcp_header_seal(&bad[n++]);
    bad[n++] = header(MCT_TCP_KILL, 1, 1);
    bad[n++] = header(MCT_TCP_READ, 2, 64); /* the first is 1 */
    bad[n++] = header(MCT_TCP_READ, 0, 64);
    cr_assert_eq(n, sizeof(bad) / sizeof(bad[0]));

    fix_init(&f);
    fix_join(&f, 100);
    for (unsigned i = 0; i < n; i++) {
        int fd = raw_visitor(&f, i + 1);

        raw_send(&f, fd, &bad[i], sizeof(bad[i]));
        fix_until(&f, f.b.left == i + 1);
        cr_assert_eq(f.b.left_ids[i], i + 1);
        cr_assert_eq(fix_stat(&f.b, protocol_errors), i + 1, "case %u", i);
        cr_assert_not_null(f.b.why);
        close(fd);
    }
    cr_assert_eq(f.b.resolves, 0u, "none of them came that far");
    {
        struct mct_slice s = fix_slice(&f, MCT_WRITE, 0, 100000);

        fix_run(&f, &s); /* the others go on */
        cr_assert_eq(s.status, MCS_OK);
    }
    fix_fini(&f);
}

Test(tcp_hostile, a_payload_without_its_trailer)
{
    struct mct_tcp_header h = header(MCT_TCP_WRITE, 1, 64);
    uint8_t bytes[64 + 64 + 16] = "";
    struct fix f;
    int fd;

    fix_init(&f);
    fd = raw_visitor(&f, 1);
    memcpy(bytes, &h, sizeof(h));
    raw_send(&f, fd, bytes, sizeof(bytes)); /* zeros in its place */
    fix_until(&f, f.b.left == 1);
    cr_assert_eq(fix_stat(&f.b, protocol_errors), 1u);
    close(fd);
    fix_fini(&f);
}

Test(tcp_hostile, its_own_connection_cannot_be_killed)
{
    struct mct_tcp_header h = header(MCT_TCP_KILL, 1, 0);
    struct fix f;
    int fd;

    fix_init(&f);
    fd = raw_visitor(&f, FIX_SEGMENT);
    raw_send(&f, fd, &h, sizeof(h)); /* .address is its own id */
    fix_until(&f, f.b.left == 1);
    cr_assert_eq(fix_stat(&f.b, protocol_errors), 1u);
    close(fd);
    fix_fini(&f);
}

Test(tcp_hostile, pings_are_answered)
{
    struct mct_tcp_header h = header(MCT_TCP_PING, 1, 0), answer;
    struct fix f;
    int fd;

    fix_init(&f);
    fd = raw_visitor(&f, 1);
    raw_send(&f, fd, &h, sizeof(h));
    raw_receive(&f, fd, &answer, sizeof(answer));
    cr_assert(answer.type == MCT_TCP_PONG && answer.id == 1);
    close(fd);
    fix_until(&f, f.b.left == 1);
    cr_assert_eq(fix_stat(&f.b, protocol_errors), 0u, "a plain end is none");
    fix_fini(&f);
}

/* Answers to one READ of 4096 bytes (id 1) and one WRITE (id 2) that make no sense. */
Test(tcp_hostile, answers_that_make_no_sense)
{
    struct mct_tcp_header bad[9];
    unsigned n = 0;
    struct fix f;

    bad[n++] = header(MCT_TCP_DATA, 3, 4096); /* never issued */
    bad[n++] = header(MCT_TCP_DATA, 0, 4096);
    bad[n++] = header(MCT_TCP_DONE, 1, 0);    /* a READ */
    bad[n++] = header(MCT_TCP_DATA, 2, 4096); /* a WRITE */
    bad[n++] = header(MCT_TCP_DATA, 1, 4095);
    bad[n++] = header(MCT_TCP_DATA, 1, MCT_TCP_LENGTH_MAX + 1);
    bad[n++] = header(MCT_TCP_DONE, 2, 1);
    bad[n++] = header(MCT_TCP_READ, 1, 4096);
    bad[n] = header(MCT_TCP_DONE, 2, 0);
    bad[n++].magic = 0;
    cr_assert_eq(n, sizeof(bad) / sizeof(bad[0]));
    for (unsigned i = 0; i < n; i++) {
        struct mct_slice r, w;
        int fd;

        fix_init(&f);
        fd = raw_target(&f, 5);
        r = fix_slice(&f, MCT_READ, 0, 4096);
        w = fix_slice(&f, MCT_WRITE, 4096, 4096);
        cr_assert(fix_post(&f, &r) == 1 && fix_post(&f, &w) == 1);
        fix_until(&f, fix_stat(&f.a, sent_bytes) == 4096);
        raw_send(&f, fd, &bad[i], sizeof(bad[i]));
        fix_until(&f, f.a.lost == 1);
        cr_assert_eq(f.a.lost_error, -EPROTO, "case %u", i);
        cr_assert_eq(fix_stat(&f.a, protocol_errors), 1u, "case %u", i);
        cr_assert(r.status == MCS_RAIL && r.settled && w.status == MCS_RAIL && !w.settled);
        close(fd);
        fix_fini(&f);
    }
}

Test(tcp_hostile, an_answer_that_comes_twice)
{
    struct mct_tcp_header done = header(MCT_TCP_DONE, 1, 0);
    struct mct_slice w;
    struct fix f;
    int fd;

    fix_init(&f);
    fd = raw_target(&f, 5);
    w = fix_slice(&f, MCT_WRITE, 0, 100);
    cr_assert_eq(fix_post(&f, &w), 1u);
    fix_until(&f, fix_stat(&f.a, sent_bytes) == 100);
    raw_send(&f, fd, &done, sizeof(done));
    fix_until(&f, fix_back(&w));
    cr_assert_eq(w.status, MCS_OK);
    raw_send(&f, fd, &done, sizeof(done));
    fix_until(&f, f.a.lost == 1);
    cr_assert_eq(fix_stat(&f.a, protocol_errors), 1u);
    cr_assert_eq((uintptr_t)w.owner, 1u);
    close(fd);
    fix_fini(&f);
}

/* The answer to a READ that is still behind a WRITE which the peer does not read: its id, the next one,
 * is easy to guess. When that send ends early, the READ's frame may be used for others. */
Test(tcp_hostile, an_answer_to_what_was_not_sent_yet)
{
    enum { LENGTH = 100000, FIRST = 30000 };
    struct mct_tcp_header data = header(MCT_TCP_DATA, 2, LENGTH);
    static uint8_t bytes[LENGTH];
    struct mct_slice w, r, next;
    struct fix f;
    int fds[2];

    fix_init(&f);
    fix_tcp_pair(fds, 16384);
    fix_adopt(&f, fds[0], 5);
    w = fix_slice(&f, MCT_WRITE, 1 << 20, 900000);
    r = fix_slice(&f, MCT_READ, 0, LENGTH);
    cr_assert(fix_post(&f, &w) == 1 && fix_post(&f, &r) == 1); /* one send */
    memset(bytes, 7, sizeof(bytes));
    raw_send(&f, fds[1], &data, sizeof(data));
    raw_send(&f, fds[1], bytes, FIRST);
    mct_tcp_ops.cancel(f.link, &r);
    mct_tcp_ops.cancel(f.link, &w);
    fix_until(&f, fix_back(&w) && fix_back(&r));
    cr_assert(r.settled && !w.settled);
    memset(f.a.memory, 1, LENGTH);
    next = fix_slice(&f, MCT_READ, 0, 64);
    cr_assert_eq(fix_post(&f, &next), 0u, "the connection is given up");
    raw_send(&f, fds[1], bytes + FIRST, LENGTH - FIRST);
    cr_assert_null(memchr(f.a.memory, 7, LENGTH), "nothing is put where it was to go");
    fix_until(&f, f.a.lost == 1);
    cr_assert_eq(f.a.lost_error, -EPROTO);
    cr_assert_eq(fix_stat(&f.a, protocol_errors), 1u);
    close(fds[1]);
    fix_fini(&f);
}

Test(tcp_hostile, statuses_of_later_versions)
{
    struct mct_tcp_header done = header(MCT_TCP_DONE, 1, 0);
    struct mct_slice w;
    struct fix f;
    int fd;

    fix_init(&f);
    fd = raw_target(&f, 5);
    w = fix_slice(&f, MCT_WRITE, 0, 100);
    cr_assert_eq(fix_post(&f, &w), 1u);
    done.status = 60000;
    mct_tcp_header_seal(&done);
    fix_until(&f, fix_stat(&f.a, sent_bytes) == 100);
    raw_send(&f, fd, &done, sizeof(done));
    fix_until(&f, fix_back(&w));
    cr_assert_eq(w.status, MCS_INTERNAL);
    close(fd);
    fix_fini(&f);
}

Test(tcp_hostile, answers_in_any_order)
{
    enum { N = 100 };
    static struct mct_slice s[N];
    static uint8_t sent[N * (64 + 32 + 16)];
    struct fix f;
    int fd;

    fix_init(&f);
    fd = raw_target(&f, 5);
    for (unsigned i = 0; i < N; i++) {
        s[i] = fix_slice(&f, MCT_WRITE, i * 32, 32);
        cr_assert_eq(fix_post(&f, &s[i]), 1u);
    }
    raw_receive(&f, fd, sent, sizeof(sent));
    for (unsigned i = 0; i < N; i++) {
        unsigned k = i * 37 % N;
        struct mct_tcp_header h, done = header(MCT_TCP_DONE, k + 1, 0);

        memcpy(&h, sent + (size_t)k * 112, sizeof(h));
        cr_assert_eq(h.id, k + 1, "ids rise by one");
        raw_send(&f, fd, &done, sizeof(done));
        fix_until(&f, fix_back(&s[k]));
        cr_assert_eq(f.a.done, i + 1);
    }
    close(fd);
    fix_fini(&f);
}

Test(tcp_hostile, a_target_that_never_answers_one_request)
{
    struct mct_slice s, late;
    struct fix f;
    int fd;

    fix_init_with(&f, &(struct fix_options){.max_requests = 4});
    fd = raw_target(&f, 5);
    late = fix_slice(&f, MCT_WRITE, 0, 32);
    cr_assert_eq(fix_post(&f, &late), 1u);
    for (uint64_t id = 2; id < 1000; id++) {
        struct mct_tcp_header done = header(MCT_TCP_DONE, id, 0);

        s = fix_slice(&f, MCT_WRITE, 0, 32);
        cr_assert_eq(fix_post(&f, &s), 1u);
        for (unsigned i = 0; i < 20; i++)
            fix_turn(&f);
        if (fix_stat(&f.a, sent_bytes) < id * 32)
            break; /* it waits for the old one, and keeps its books small */
        raw_send(&f, fd, &done, sizeof(done));
        fix_until(&f, fix_back(&s));
    }
    cr_assert(!fix_back(&s) && !fix_back(&late));
    {
        struct mct_tcp_header done = header(MCT_TCP_DONE, 1, 0);

        raw_send(&f, fd, &done, sizeof(done));
        fix_until(&f, fix_back(&late));
        cr_assert_eq(late.status, MCS_OK);
        mct_tcp_ops.abort(f.link, -ECANCELED);
        fix_until(&f, fix_back(&s));
    }
    close(fd);
    fix_fini(&f);
}

/* A visitor that asks and never reads the answers: the target stops reading, and remembers little. */
Test(tcp_hostile, a_peer_that_does_not_read)
{
    struct fix f;
    uint64_t asked = 0, still = 0;
    static uint8_t payload[300000];
    int fd;

    fix_init_with(&f, &(struct fix_options){.max_requests = 32});
    fix_fill(f.b.memory, sizeof(payload), 5);
    fd = raw_visitor(&f, 1);
    while (still < 2000) {
        struct mct_tcp_header h = header(MCT_TCP_READ, asked + 1, sizeof(payload));
        ssize_t n = send(fd, &h, sizeof(h), MSG_NOSIGNAL);

        if (n == (ssize_t)sizeof(h)) {
            asked++;
            still = 0;
        } else {
            cr_assert(n < 0 && errno == EAGAIN);
            still++;
        }
        fix_turn(&f);
        cr_assert_lt(asked, 1000000u, "it takes all there is");
    }
    cr_assert_eq(f.b.left, 0u);
    cr_assert_lt(f.b.resolves, 4000u);
    /* and when it reads after all, everything is answered in order */
    for (uint64_t id = 1; id <= 200; id++) {
        struct mct_tcp_header h;
        struct mct_tcp_trailer t;

        raw_receive(&f, fd, &h, sizeof(h));
        cr_assert(h.id == id && h.status == MCS_OK && h.length == sizeof(payload));
        raw_receive(&f, fd, payload, sizeof(payload));
        cr_assert_arr_eq(payload, f.b.memory, sizeof(payload));
        raw_receive(&f, fd, &t, sizeof(t));
        cr_assert(t.id == id && t.status == MCS_OK);
    }
    close(fd);
    fix_until(&f, f.b.left == 1);
    fix_fini(&f);
}

/* A relay between the two: forwards at most `step` bytes a round, changes the byte at `flip`. */
struct relay {
    int a, b; /* towards the initiator, towards the target */
    uint64_t forward, flip;
};

static void relay_init(struct relay *r, struct fix *f)
{
    int x[2], y[2];

    fix_tcp_pair(x, 0);
    fix_tcp_pair(y, 0);
    fix_adopt(f, x[0], 1);
    fix_serve(f, y[0], 1);
    *r = (struct relay){.a = x[1], .b = y[1], .flip = UINT64_MAX};
}

static void relay_turn(struct relay *r, size_t step)
{
    static uint8_t buffer[65536];

    for (int way = 0; way < 2; way++) {
        ssize_t n = recv(way == 0 ? r->a : r->b, buffer, step, 0);

        if (n <= 0)
            continue;
        if (way == 0) {
            if (r->flip >= r->forward && r->flip < r->forward + (uint64_t)n)
                buffer[r->flip - r->forward] ^= 0x10;
            r->forward += (uint64_t)n;
        }
        cr_assert_eq(send(way == 0 ? r->b : r->a, buffer, (size_t)n, MSG_NOSIGNAL), n);
    }
}

static void relay_until_back(struct relay *r, struct fix *f, size_t step, struct mct_slice *s)
{
    for (unsigned rounds = 0; !fix_back(s); rounds++) {
        cr_assert_lt(rounds, 2000000u);
        fix_turn(f);
        relay_turn(r, step);
    }
}

static void relay_fini(struct relay *r)
{
    close(r->a);
    close(r->b);
}

Test(tcp_hostile, byte_by_byte)
{
    static const uint64_t sizes[] = {1, 100, 5000, 20000};
    struct relay r;
    struct fix f;

    fix_init_with(&f, &(struct fix_options){.checksum = true});
    relay_init(&r, &f);
    for (unsigned i = 0; i < 8; i++) {
        uint64_t n = sizes[i / 2];
        struct mct_slice s = fix_slice(&f, i % 2 == 0 ? MCT_WRITE : MCT_READ, 0, n);

        fix_fill(f.a.memory, n, i + 1);
        fix_fill(f.b.memory, n, i + 100);
        cr_assert_eq(fix_post(&f, &s), 1u);
        relay_until_back(&r, &f, 1, &s);
        cr_assert_eq(s.status, MCS_OK);
        cr_assert_arr_eq(f.a.memory, f.b.memory, n);
    }
    fix_fini(&f);
    relay_fini(&r);
}

Test(tcp_hostile, damaged_payload_is_found)
{
    static const uint64_t at[] = {0, 1, 16383, 30000, 99999};
    struct relay r;
    struct fix f;

    fix_init_with(&f, &(struct fix_options){.checksum = true});
    relay_init(&r, &f);
    for (unsigned i = 0; i < 5; i++) {
        struct mct_slice s = fix_slice(&f, MCT_WRITE, 0, 100000);

        fix_fill(f.a.memory, 100000, i + 1);
        r.flip = r.forward + 64 + at[i];
        cr_assert_eq(fix_post(&f, &s), 1u);
        relay_until_back(&r, &f, 65536, &s);
        cr_assert_eq(s.status, MCS_CHECKSUM);
        cr_assert(s.settled && s.moved == 0);
        cr_assert_eq(fix_stat(&f.b, checksum_errors), i + 1);
        /* once more, and it is right */
        s.owner = NULL;
        r.flip = UINT64_MAX;
        cr_assert_eq(fix_post(&f, &s), 1u);
        relay_until_back(&r, &f, 65536, &s);
        cr_assert_eq(s.status, MCS_OK);
        cr_assert_arr_eq(f.a.memory, f.b.memory, 100000);
    }
    cr_assert_eq(f.a.lost + f.b.left, 0u, "the connection stays");
    fix_fini(&f);
    relay_fini(&r);
}

Test(tcp_hostile, damaged_headers_end_the_connection)
{
    for (uint64_t at = 0; at < 64; at += 7) {
        struct mct_slice s;
        struct relay r;
        struct fix f;

        fix_init(&f);
        relay_init(&r, &f);
        memset(f.a.memory, 3, 4096);
        r.flip = at;
        s = fix_slice(&f, MCT_WRITE, 0, 4096);
        cr_assert_eq(fix_post(&f, &s), 1u);
        while (f.b.left == 0) {
            fix_turn(&f);
            relay_turn(&r, 65536);
        }
        cr_assert_eq(fix_stat(&f.b, protocol_errors), 1u, "byte %llu", (unsigned long long)at);
        cr_assert_null(memchr(f.b.memory, 3, FIX_SIZE), "nothing was written");
        relay_fini(&r);
        fix_until(&f, fix_back(&s));
        cr_assert_eq(s.status, MCS_RAIL);
        fix_fini(&f);
    }
}

/* Memory that cannot be read or written: the request ends, the connection stays. */
Test(tcp_hostile, memory_that_is_gone)
{
    struct mct_slice w, r, good;
    struct fix f;

    fix_init(&f);
    fix_join(&f, 1);
    fix_fill(f.a.memory, FIX_SIZE, 1);
    cr_assert_eq(mprotect(f.a.memory + (1 << 20), 1 << 20, PROT_NONE), 0);
    cr_assert_eq(mprotect(f.b.memory + (3 << 20), 1 << 20, PROT_NONE), 0);

    w = fix_slice(&f, MCT_WRITE, 1 << 19, 1 << 20); /* source, its second half */
    good = fix_slice(&f, MCT_WRITE, 5 << 20, 1000);
    cr_assert(fix_post(&f, &good) == 1 && fix_post(&f, &w) == 1);
    fix_until(&f, fix_back(&w) && fix_back(&good));
    cr_assert_eq(w.status, MCS_MEMORY_FAULT, "%u", w.status);
    cr_assert(w.settled);
    cr_assert_eq(good.status, MCS_OK);

    r = fix_slice(&f, MCT_READ, 1 << 19, 1 << 20); /* destination */
    fix_run(&f, &r);
    cr_assert_eq(r.status, MCS_MEMORY_FAULT, "%u", r.status);
    w = fix_slice(&f, MCT_WRITE, (3 << 20) - (1 << 19), 1 << 20); /* the target's destination */
    fix_run(&f, &w);
    cr_assert_eq(w.status, MCS_MEMORY_FAULT, "%u", w.status);
    r = fix_slice(&f, MCT_READ, 3 << 20, 1 << 20); /* the target's source */
    fix_run(&f, &r);
    cr_assert_eq(r.status, MCS_MEMORY_FAULT, "%u", r.status);

    good.owner = NULL;
    fix_run(&f, &good);
    cr_assert_eq(good.status, MCS_OK);
    cr_assert_eq(f.a.lost + f.b.left, 0u);
    fix_fini(&f);
}
