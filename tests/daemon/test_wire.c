/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <malloc.h>
#include <poll.h>
#include <sys/epoll.h>

#include "wire_pair.h"

static struct mcd_wire_auth *none;

static void setup(void)
{
    none = wp_none();
}

static void teardown(void)
{
    mcd_wire_auth_destroy(none);
}

TestSuite(wire, .init = setup, .fini = teardown);

/* The other end is the test itself. */
struct raw {
    struct wp_end end;
    int fd;
};

static void raw_open(struct raw *r, bool initiator)
{
    int s[2];

    memset(r, 0, sizeof(*r));
    wp_sockets(s);
    r->fd = s[1];
    wp_start(&r->end, none, s[0], initiator, 0, 0);
}

static void raw_close(struct raw *r)
{
    wp_end_destroy(&r->end);
    close(r->fd);
}

static void raw_send(struct raw *r, const void *data, size_t size)
{
    cr_assert_eq(send(r->fd, data, size, MSG_NOSIGNAL), (ssize_t)size);
}

static struct mcd_wire_greeting greeting(unsigned role)
{
    struct mcd_wire_greeting g = {
        .magic = MCD_WIRE_MAGIC,
        .version_min = 1,
        .version_max = 1,
        .method = MCD_WIRE_NONE,
        .role = (uint8_t)role,
        .incarnation = 77,
    };

    return g;
}

/* A wire that has accepted us as its initiator. */
static void raw_ready(struct raw *r)
{
    struct mcd_wire_greeting g = greeting(MCD_WIRE_INITIATOR);
    struct mcd_wire_proof p = {.magic = MCD_WIRE_PROOF_MAGIC};

    raw_open(r, false);
    raw_send(r, &g, sizeof(g));
    raw_send(r, &p, sizeof(p));
    mcd_wire_run(r->end.wire, wp_now());
    cr_assert_eq(r->end.ready, 1u, "%s", r->end.text);
}

static struct mcd_wire_frame frame(uint16_t type, uint32_t length, uint64_t sequence)
{
    struct mcd_wire_frame f = {
        .magic = MCD_WIRE_FRAME_MAGIC,
        .version = 1,
        .type = type,
        .length = length,
        .sequence = sequence,
    };

    return f;
}

Test(wire, carries_requests_and_replies)
{
    struct mcd_wire_header request = {.type = 7, .id = 42, .deadline_ms = 1500};
    struct mcd_wire_header reply = {
        .type = 8, .reply = true, .id = 42, .status = MCS_NOT_FOUND, .deadline_ms = 9};
    Mcd__Ping ping = MCD__PING__INIT, *got;
    struct wp p;

    wp_open(&p, none, none, false);
    cr_expect_eq(mcd_wire_send(p.a.wire, &request, NULL), -ENOTCONN);
    cr_expect_eq(mcd_wire_wants(p.a.wire), (uint32_t)(EPOLLIN | EPOLLOUT));
    wp_run(&p);
    cr_assert(wp_both_ready(&p), "%s %s", p.a.text, p.b.text);
    cr_expect_eq(mcd_wire_wants(p.a.wire), (uint32_t)EPOLLIN);
    cr_expect_eq(mcd_wire_due(p.a.wire), UINT64_MAX);
    cr_expect(mcd_wire_is_ready(p.a.wire) && mcd_wire_initiated(p.a.wire));
    cr_expect(mcd_wire_is_ready(p.b.wire) && !mcd_wire_initiated(p.b.wire));
    cr_expect_eq(mcd_wire_peer_incarnation(p.a.wire), WP_B_INCARNATION);
    cr_expect_eq(mcd_wire_peer_incarnation(p.b.wire), WP_A_INCARNATION);
    cr_expect_eq(mcd_wire_version(p.a.wire), MCD_WIRE_VERSION);

    ping.stamp = UINT64_C(0x1122334455667788);
    cr_assert_eq(mcd_wire_send(p.a.wire, &request, &ping.base), 0);
    wp_run(&p);
    cr_assert_eq(p.b.messages, 1u);
    cr_expect_eq(p.b.kept[0].header.type, 7);
    cr_expect_eq(p.b.kept[0].header.id, 42u);
    cr_expect_eq(p.b.kept[0].header.deadline_ms, 1500u);
    cr_expect_eq(p.b.kept[0].header.status, 0u);
    cr_expect_not(p.b.kept[0].header.reply);
    got = mcd__ping__unpack(NULL, p.b.kept[0].size, p.b.kept[0].start);
    cr_assert_not_null(got);
    cr_expect_eq(got->stamp, ping.stamp);
    mcd__ping__free_unpacked(got, NULL);

    cr_assert_eq(mcd_wire_send(p.b.wire, &reply, NULL), 0);
    wp_run(&p);
    cr_assert_eq(p.a.messages, 1u);
    cr_expect(p.a.kept[0].header.reply);
    cr_expect_eq(p.a.kept[0].header.status, (uint32_t)MCS_NOT_FOUND);
    cr_expect_eq(p.a.kept[0].header.deadline_ms, 0u);
    cr_expect_eq(p.a.kept[0].size, 0u);
    cr_expect_eq(p.a.stats.frames_in, 1u);
    cr_expect_eq(p.a.stats.frames_out, 1u);
    cr_expect_eq(p.a.stats.bytes_in, p.b.stats.bytes_out);
    /* a reply to nothing, a message without type */
    reply.id = 0;
    cr_expect_eq(mcd_wire_send(p.b.wire, &reply, NULL), -EINVAL);
    request.type = 0;
    cr_expect_eq(mcd_wire_send(p.b.wire, &request, NULL), -EINVAL);
    wp_close(&p);
}

Test(wire, keeps_order_and_carries_the_largest)
{
    size_t largest = MCD_WIRE_FRAME_MAX - 4; /* a byte of tag and three of length before it */
    struct wp p;
    uint32_t sum;

    wp_open(&p, none, none, false);
    wp_run(&p);
    for (unsigned i = 0; i < 60; i++)
        cr_assert_eq(wp_hello(&p.a, i, (char)('a' + i % 26), i * 997), 0);
    wp_run(&p);
    cr_assert_eq(p.b.messages, 60u);
    for (unsigned i = 0; i < 60; i++) {
        cr_expect_eq(p.b.kept[i].header.id, i);
        if (i > 0)
            cr_expect_eq(p.b.kept[i].start[10], 'a' + i % 26);
    }
    cr_assert_eq(wp_hello(&p.b, 9, 'x', largest), 0);
    wp_run(&p);
    cr_assert_eq(p.a.messages, 1u);
    cr_expect_eq(p.a.kept[0].size, (size_t)MCD_WIRE_FRAME_MAX);
    sum = p.a.kept[0].sum;
    cr_assert_eq(wp_hello(&p.b, 9, 'x', largest), 0);
    wp_run(&p);
    cr_expect_eq(p.a.kept[1].sum, sum);
    cr_expect_eq(wp_hello(&p.b, 9, 'x', largest + 1), -EMSGSIZE);
    cr_expect(wp_both_ready(&p), "%s %s", p.a.text, p.b.text);
    wp_close(&p);
}

Test(wire, highest_common_version_or_none)
{
    static const struct {
        uint16_t a_low, a_high, b_low, b_high, chosen;
    } cases[] = {
        {1, 1, 1, 1, 1}, {1, 1, 1, 3, 1}, {2, 5, 3, 4, 4}, {1, 7, 7, 9, 7},
        {1, 1, 2, 3, 0}, {4, 6, 1, 3, 0}, {9, 9, 1, 8, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct wp p = {.ra = -1, .rb = -1};
        int s[2];

        wp_sockets(s);
        wp_start(&p.a, none, s[0], true, cases[i].a_low, cases[i].a_high);
        wp_start(&p.b, none, s[1], false, cases[i].b_low, cases[i].b_high);
        wp_run(&p);
        if (cases[i].chosen != 0) {
            cr_assert(wp_both_ready(&p), "case %zu: %s %s", i, p.a.text, p.b.text);
            cr_expect_eq(mcd_wire_version(p.a.wire), cases[i].chosen);
            cr_expect_eq(mcd_wire_version(p.b.wire), cases[i].chosen);
            cr_expect_eq(wp_hello(&p.a, 0, 'v', 3), 0);
            wp_run(&p);
            cr_expect_eq(p.b.messages, 1u);
        } else {
            cr_expect_eq(p.a.ready + p.b.ready, 0u);
            cr_expect_eq(p.a.status, (uint32_t)MCS_VERSION, "%s", p.a.text);
            cr_expect_eq(p.b.status, (uint32_t)MCS_VERSION, "%s", p.b.text);
            cr_expect_eq(p.a.stats.version_refused, 1u);
            cr_expect_not_null(strstr(p.b.text, "upgrade"), "%s", p.b.text);
        }
        wp_close(&p);
    }
}

Test(wire, methods_have_to_agree)
{
    struct mcd_wire_auth *psk = wp_psk("a secret of some length");
    struct wp p;

    wp_open(&p, none, psk, false);
    wp_run(&p);
    cr_expect_eq(p.a.ready + p.b.ready, 0u);
    cr_expect_eq(p.a.status, (uint32_t)MCS_AUTH);
    cr_expect_eq(p.b.status, (uint32_t)MCS_AUTH);
    cr_expect_not_null(strstr(p.b.text, "psk here and none there"), "%s", p.b.text);
    cr_expect_eq(p.b.stats.auth_failures, 1u);
    wp_close(&p);
    mcd_wire_auth_destroy(psk);
}

Test(wire, a_refusal_is_told)
{
    struct wp p;

    wp_open(&p, none, none, false);
    mcd_wire_refuse(p.b.wire, MCS_LIMIT, "[peer] max = 4 agents are connected: raise it");
    cr_expect_eq(p.b.broken, 0u);
    wp_end_destroy(&p.b);
    wp_run(&p);
    cr_expect_eq(p.a.ready, 0u);
    cr_expect_eq(p.a.status, (uint32_t)MCS_LIMIT, "%s", p.a.text);
    cr_expect_str_eq(p.a.text, "the peer refuses: [peer] max = 4 agents are connected: raise it");
    wp_close(&p);
    /* once ready, there is nothing left to refuse */
    wp_open(&p, none, none, false);
    wp_run(&p);
    mcd_wire_refuse(p.b.wire, MCS_LIMIT, "too late");
    wp_run(&p);
    cr_expect(wp_both_ready(&p));
    wp_close(&p);
}

Test(wire, a_refusal_cannot_say_everything)
{
    struct mcd_wire_greeting g = greeting(MCD_WIRE_ACCEPTOR);
    struct mcd_wire_refusal r = {
        .magic = MCD_WIRE_REFUSAL_MAGIC, .status = MCS_STALE, .length = 65535};
    struct raw raw;

    raw_open(&raw, true);
    memset(r.text, 'x', sizeof(r.text));
    memcpy(r.text, "ab\n\033[2Jcd", 9);
    raw_send(&raw, &g, sizeof(g));
    raw_send(&raw, &r, sizeof(r));
    mcd_wire_run(raw.end.wire, wp_now());
    cr_expect_eq(raw.end.status, (uint32_t)MCS_PROTOCOL);
    cr_expect_not_null(strstr(raw.end.text, "ab??[2Jcd"), "%s", raw.end.text);
    cr_expect_eq(strlen(raw.end.text), strlen("the peer refuses: ") + sizeof(r.text));
    raw_close(&raw);
}

Test(wire, strangers_are_dropped_early)
{
    static const char *const talk[] = {"GET / HTTP/1.1\r\n", "\026\003\001", "x", "\001MCPDAT1",
                                       "\001MCMCTL2"};

    for (size_t i = 0; i < sizeof(talk) / sizeof(talk[0]); i++) {
        struct raw r;

        raw_open(&r, false);
        raw_send(&r, talk[i], strlen(talk[i]));
        mcd_wire_run(r.end.wire, wp_now());
        cr_expect_eq(r.end.status, (uint32_t)MCS_PROTOCOL, "case %zu: %s", i, r.end.text);
        cr_expect_eq(r.end.stats.malformed, 1u);
        cr_expect_eq(mcd_wire_wants(r.end.wire), 0u);
        raw_close(&r);
    }
}

Test(wire, malformed_greetings_are_refused)
{
    for (unsigned i = 0; i < 5; i++) {
        struct mcd_wire_greeting g = greeting(MCD_WIRE_INITIATOR);
        struct mcd_wire_refusal refusal;
        struct raw r;

        switch (i) {
        case 0:
            g.version_min = 0;
            break;
        case 1:
            g.version_min = 3;
            break;
        case 2:
            g.incarnation = 0;
            break;
        case 3:
            g.role = MCD_WIRE_ACCEPTOR; /* ours, sent back */
            break;
        default:
            g.role = 0;
        }
        raw_open(&r, false);
        raw_send(&r, &g, sizeof(g));
        mcd_wire_run(r.end.wire, wp_now());
        cr_expect_eq(r.end.status, (uint32_t)MCS_PROTOCOL, "case %u: %s", i, r.end.text);
        cr_expect_eq(r.end.stats.malformed, 1u);
        /* and is told why */
        cr_assert_eq(recv(r.fd, &g, sizeof(g), 0), (ssize_t)sizeof(g));
        cr_assert_eq(recv(r.fd, &refusal, sizeof(refusal), 0), (ssize_t)sizeof(refusal));
        cr_expect_eq(refusal.magic, MCD_WIRE_REFUSAL_MAGIC);
        cr_expect_eq(refusal.status, MCS_PROTOCOL);
        cr_expect_eq(strncmp(refusal.text, r.end.text, refusal.length), 0);
        raw_close(&r);
    }
}

Test(wire, malformed_frames_end_it)
{
    for (unsigned i = 0; i < 10; i++) {
        struct mcd_wire_frame f = frame(5, 0, 0);
        struct raw r;

        switch (i) {
        case 0:
            f.magic ^= 1;
            break;
        case 1:
            f.version = 2;
            break;
        case 2:
            f.type = 0;
            break;
        case 3:
            f.flags = 2;
            break;
        case 4:
            f.status = MCS_ACCESS; /* of a request */
            break;
        case 5:
            f.flags = MCD_WIRE_REPLY; /* to nothing */
            break;
        case 6:
            f.flags = MCD_WIRE_REPLY;
            f.id = 1;
            f.deadline_ms = 1;
            break;
        case 7:
            f.length = MCD_WIRE_FRAME_MAX + 1;
            break;
        case 8:
            f.length = UINT32_MAX;
            break;
        default:
            f.sequence = 1;
        }
        raw_ready(&r);
        raw_send(&r, &f, sizeof(f));
        mcd_wire_run(r.end.wire, wp_now());
        cr_expect_eq(r.end.status, (uint32_t)MCS_PROTOCOL, "case %u: %s", i, r.end.text);
        cr_expect_eq(r.end.messages, 0u);
        cr_expect_eq(r.end.broken, 1u);
        cr_expect_eq(r.end.stats.malformed, 1u);
        mcd_wire_run(r.end.wire, wp_now());
        cr_expect_eq(r.end.broken, 1u);
        cr_expect_eq(wp_hello(&r.end, 0, 'x', 1), -ENOTCONN);
        raw_close(&r);
    }
}

Test(wire, an_announcement_allocates_nothing)
{
    struct mcd_wire_frame f = frame(5, MCD_WIRE_FRAME_MAX, 0);
    struct mallinfo2 before, after;
    struct raw r;

    raw_ready(&r);
    raw_send(&r, &f, sizeof(f));
    raw_send(&r, "only a few", 10);
    before = mallinfo2();
    mcd_wire_run(r.end.wire, wp_now());
    after = mallinfo2();
    cr_expect_lt(after.uordblks + after.hblkhd, before.uordblks + before.hblkhd + 65536);
    cr_expect_eq(r.end.broken, 0u);
    raw_close(&r);
}

Test(wire, the_opening_has_a_limit_in_time)
{
    struct mcd_wire_greeting g = greeting(MCD_WIRE_INITIATOR);
    uint64_t now = wp_now();
    struct raw r;

    raw_open(&r, false);
    raw_send(&r, &g, sizeof(g) - 1);
    mcd_wire_run(r.end.wire, now);
    cr_expect_eq(r.end.broken, 0u);
    cr_expect_leq(mcd_wire_due(r.end.wire), wp_now() + MCD_WIRE_GREETING_NS);
    mcd_wire_run(r.end.wire, mcd_wire_due(r.end.wire) - 1);
    cr_expect_eq(r.end.broken, 0u);
    mcd_wire_run(r.end.wire, mcd_wire_due(r.end.wire));
    cr_expect_eq(r.end.status, (uint32_t)MCS_TIMEOUT, "%s", r.end.text);
    cr_expect_eq(r.end.stats.greeting_timeouts, 1u);
    cr_expect_eq(r.end.stats.malformed, 0u);
    raw_close(&r);
}

Test(wire, a_slow_peer_is_waited_for_a_dripping_one_is_not)
{
    struct mcd_wire_greeting g = greeting(MCD_WIRE_INITIATOR);
    struct mcd_wire_proof p = {.magic = MCD_WIRE_PROOF_MAGIC};
    struct mcd_wire_frame f = frame(5, 100, 0);
    uint64_t now = wp_now();
    uint8_t payload[100] = {1};
    struct raw r;

    raw_open(&r, false);
    for (size_t i = 0; i < sizeof(g); i++) {
        raw_send(&r, (uint8_t *)&g + i, 1);
        mcd_wire_run(r.end.wire, now);
    }
    for (size_t i = 0; i < sizeof(p); i++) {
        raw_send(&r, (uint8_t *)&p + i, 1);
        mcd_wire_run(r.end.wire, now);
    }
    cr_assert_eq(r.end.ready, 1u, "%s", r.end.text);
    for (size_t i = 0; i < sizeof(f); i++) {
        raw_send(&r, (uint8_t *)&f + i, 1);
        mcd_wire_run(r.end.wire, now += 1000000);
    }
    cr_expect_eq(mcd_wire_last_received(r.end.wire), now);
    raw_send(&r, payload, sizeof(payload));
    mcd_wire_run(r.end.wire, now);
    cr_assert_eq(r.end.messages, 1u, "%s", r.end.text);
    cr_expect_eq(mcd_wire_due(r.end.wire), UINT64_MAX);
    /* a byte a second never ends */
    f.sequence = 1;
    for (size_t i = 0; i < sizeof(f) && r.end.broken == 0; i++) {
        cr_expect_lt(i, 11u);
        raw_send(&r, (uint8_t *)&f + i, 1);
        mcd_wire_run(r.end.wire, now += WP_SECOND);
    }
    cr_expect_eq(r.end.status, (uint32_t)MCS_TIMEOUT, "%s", r.end.text);
    raw_close(&r);
}

Test(wire, a_peer_that_does_not_read_ends_it)
{
    uint64_t queued = 0;
    struct raw r;
    int res;

    raw_ready(&r);
    while ((res = wp_hello(&r.end, 0, 'q', 60000)) == 0) {
        queued += 60000;
        cr_assert_lt(queued, (uint64_t)MCD_WIRE_QUEUE_MAX + (4u << 20));
    }
    cr_expect_eq(res, -ENOBUFS);
    cr_expect_gt(queued, (uint64_t)MCD_WIRE_QUEUE_MAX - (1u << 20));
    cr_expect_eq(r.end.broken, 0u);
    cr_expect_eq(mcd_wire_due(r.end.wire), 0u);
    cr_expect_eq(wp_hello(&r.end, 0, 'q', 1), -ENOBUFS);
    mcd_wire_run(r.end.wire, wp_now());
    cr_expect_eq(r.end.status, (uint32_t)MCS_LIMIT, "%s", r.end.text);
    cr_expect_eq(r.end.stats.overflows, 1u);
    raw_close(&r);
}

Test(wire, one_turn_takes_a_bounded_amount)
{
    static uint8_t bulk[150000];
    struct mcd_wire_frame f = frame(5, MCD_WIRE_FRAME_MAX, 0);
    int size = 1 << 20;
    struct raw r;

    raw_ready(&r);
    setsockopt(r.fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    raw_send(&r, &f, sizeof(f));
    cr_assert_gt(send(r.fd, bulk, sizeof(bulk), MSG_NOSIGNAL), 100000);
    r.end.stats.bytes_in = 0;
    mcd_wire_run(r.end.wire, wp_now());
    cr_expect_leq(r.end.stats.bytes_in, 65536u);
    cr_expect_gt(r.end.stats.bytes_in, 0u);
    raw_close(&r);
}

Test(wire, the_end_of_the_peer_is_noticed)
{
    struct wp p;

    wp_open(&p, none, none, false);
    wp_run(&p);
    wp_end_destroy(&p.a);
    wp_run(&p);
    cr_expect_eq(p.b.status, (uint32_t)MCS_PEER_UNREACHABLE, "%s", p.b.text);
    wp_close(&p);
    wp_open(&p, none, none, false);
    wp_end_destroy(&p.b);
    wp_run(&p);
    cr_expect_eq(p.a.status, (uint32_t)MCS_PEER_UNREACHABLE, "%s", p.a.text);
    cr_expect_eq(p.a.ready, 0u);
    wp_close(&p);
    /* what was said before the end is heard */
    wp_open(&p, none, none, false);
    wp_run(&p);
    cr_expect_eq(wp_hello(&p.a, 0, 'z', 200000), 0);
    while (mcd_wire_wants(p.a.wire) & EPOLLOUT) {
        mcd_wire_run(p.a.wire, wp_now());
        if (p.b.stats.bytes_in < 100000)
            mcd_wire_run(p.b.wire, wp_now());
    }
    wp_end_destroy(&p.a);
    wp_run(&p);
    cr_expect_eq(p.b.messages, 1u);
    cr_expect_eq(p.b.broken, 1u);
    wp_close(&p);
}

Test(wire, may_be_destroyed_from_inside_its_events)
{
    for (unsigned i = 0; i < 3; i++) {
        struct wp p;

        wp_open(&p, none, none, false);
        p.b.destroy_in_ready = i == 0;
        p.b.destroy_in_message = i == 1;
        p.b.destroy_in_broken = i == 2;
        wp_run(&p);
        if (i == 1) {
            wp_hello(&p.a, 0, 'd', 10);
            wp_hello(&p.a, 0, 'd', 10);
            wp_run(&p);
            cr_expect_eq(p.b.messages, 1u);
        } else if (i == 2) {
            wp_end_destroy(&p.a);
            wp_run(&p);
        }
        cr_expect_null(p.b.wire);
        cr_expect_eq(p.b.broken, i == 2 ? 1u : 0u);
        wp_close(&p);
    }
}

static struct wp_end *heir;

static void hand_over(void *context, struct mcd_wire *w, const struct mcd_wire_header *h,
                      const uint8_t *payload, size_t size)
{
    struct wp_end *first = context;
    struct mcd_wire_events events = {heir, wp_on_ready, wp_on_message, wp_on_broken};

    (void)h, (void)payload, (void)size;
    first->messages++;
    first->wire = NULL;
    heir->wire = w;
    heir->ready = 1;
    mcd_wire_set_events(w, &events);
}

Test(wire, may_be_handed_over_from_inside_its_events)
{
    struct wp_end second = {0};
    struct wp p;
    struct mcd_wire_events events = {&p.b, wp_on_ready, hand_over, wp_on_broken};

    heir = &second;
    wp_open(&p, none, none, false);
    mcd_wire_set_events(p.b.wire, &events);
    wp_run(&p);
    for (uint32_t i = 1; i <= 3; i++)
        cr_assert_eq(wp_hello(&p.a, i, 'o', 10), 0);
    wp_run(&p);
    cr_expect_eq(p.b.messages, 1u);
    cr_expect_eq(second.messages, 2u);
    cr_expect_eq(second.kept[0].header.id, 2u);
    wp_end_destroy(&p.a);
    mcd_wire_run(second.wire, wp_now());
    cr_expect_eq(second.broken, 1u);
    cr_expect_eq(p.b.broken, 0u);
    wp_end_destroy(&second);
    wp_close(&p);
}

static int tcp_socket(struct sockaddr_in *a)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof(*a);

    memset(a, 0, sizeof(*a));
    a->sin_family = AF_INET;
    a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(bind(fd, (struct sockaddr *)a, size), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)a, &size), 0);
    return fd;
}

static void tcp_wait(const struct wp_end *e)
{
    uint32_t wants = mcd_wire_wants(e->wire);
    struct pollfd p = {
        .fd = mcd_wire_fd(e->wire),
        .events = (short)((wants & EPOLLIN ? POLLIN : 0) | (wants & EPOLLOUT ? POLLOUT : 0))};

    poll(&p, 1, 10000);
    mcd_wire_run(e->wire, wp_now());
}

Test(wire, over_tcp_with_the_first_bytes_read_before)
{
    struct sockaddr_in a;
    int listener = tcp_socket(&a), fd, accepted;
    struct wp p = {.ra = -1, .rb = -1};
    struct mcd_wire_options o = {
        .auth = none,
        .events = {&p.b, wp_on_ready, wp_on_message, wp_on_broken},
        .incarnation = WP_B_INCARNATION,
    };
    uint64_t magic;

    cr_assert_eq(listen(listener, 1), 0);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    cr_assert(connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0 || errno == EINPROGRESS);
    wp_start(&p.a, none, fd, true, 0, 0);
    accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_geq(accepted, 0);
    while (p.a.stats.bytes_out < sizeof(struct mcd_wire_greeting) && p.a.broken == 0)
        tcp_wait(&p.a);
    cr_assert_eq(recv(accepted, &magic, sizeof(magic), MSG_WAITALL), (ssize_t)sizeof(magic));
    cr_expect_eq(magic, MCD_WIRE_MAGIC);
    cr_assert_eq(fcntl(accepted, F_SETFL, O_NONBLOCK), 0);
    cr_assert_eq(mcd_wire_create(&o, accepted, &magic, sizeof(magic), &p.b.wire), 0);
    while (p.a.ready == 0 && p.a.broken == 0) {
        mcd_wire_run(p.b.wire, wp_now());
        tcp_wait(&p.a);
    }
    cr_assert(wp_both_ready(&p), "%s %s", p.a.text, p.b.text);
    cr_expect_eq(wp_hello(&p.b, 3, 't', 100), 0);
    while (p.a.messages == 0 && p.a.broken == 0)
        tcp_wait(&p.a);
    cr_expect_eq(p.a.kept[0].header.id, 3u);
    wp_close(&p);
    close(listener);
}

Test(wire, nobody_listens)
{
    struct sockaddr_in a;
    int bound = tcp_socket(&a); /* keeps the port from others, and does not listen */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct wp p = {.ra = -1, .rb = -1};

    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) != 0)
        cr_assert(errno == EINPROGRESS || errno == ECONNREFUSED);
    wp_start(&p.a, none, fd, true, 0, 0);
    while (p.a.broken == 0)
        tcp_wait(&p.a);
    cr_expect_eq(p.a.status, (uint32_t)MCS_PEER_UNREACHABLE, "%s", p.a.text);
    cr_expect_eq(p.a.stats.greeting_timeouts, 0u);
    wp_close(&p);
    close(bound);
}

Test(wire, bad_options_are_refused_and_the_socket_closed)
{
    struct mcd_wire_options o = {.auth = none, .incarnation = 0};
    struct mcd_wire *w = NULL;
    char byte;
    int s[2];

    wp_sockets(s);
    cr_expect_eq(mcd_wire_create(&o, s[0], NULL, 0, &w), -EINVAL);
    cr_expect_eq(recv(s[1], &byte, 1, 0), 0);
    close(s[1]);
}
