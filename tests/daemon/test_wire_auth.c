/* SPDX-License-Identifier: Apache-2.0 */
/* Who may connect: psk and tls, good and bad, and what somebody in the middle can do (nothing). */
#include <criterion/criterion.h>

#include "wire_certs.h"

#define SECRET "correct horse battery staple"

static struct mcd_wire_auth *psk;
static struct wp_ca ca, other_ca;
static struct mcd_wire_auth *tls_a, *tls_b;

static void setup(void)
{
    psk = wp_psk(SECRET);
    wp_ca_create(&ca, "cluster CA");
    wp_ca_create(&other_ca, "another CA");
    tls_a = wp_tls(&(struct wp_tls){.name = "host-a", .issuer = &ca, .trusted = &ca});
    tls_b = wp_tls(&(struct wp_tls){.name = "host-b", .issuer = &ca, .trusted = &ca});
}

static void teardown(void)
{
    mcd_wire_auth_destroy(psk);
    mcd_wire_auth_destroy(tls_a);
    mcd_wire_auth_destroy(tls_b);
    wp_ca_destroy(&ca);
    wp_ca_destroy(&other_ca);
}

TestSuite(wire_auth, .init = setup, .fini = teardown);

/* ---- what a file may be ---- */

static int load_psk(const char *path, char *error)
{
    struct mcd_wire_auth_options o = {.method = MCD_WIRE_PSK, .psk_file = path};
    struct mcd_wire_auth *a = NULL;
    int res = mcd_wire_auth_create(&o, &a, error, 512);

    mcd_wire_auth_destroy(a);
    return res;
}

Test(wire_auth, secrets_are_checked_when_read)
{
    char folder[256], path[300], error[512] = "", big[4200];

    memset(big, 'k', sizeof(big));
    wp_folder(folder);
    snprintf(path, sizeof(path), "%s/psk", folder);
    cr_expect_eq(load_psk(NULL, error), -EINVAL);
    cr_expect_eq(load_psk(path, error), -ENOENT);
    cr_expect_not_null(strstr(error, path), "%s", error);
    wp_file(path, "0123456789abcde\n\n", 17, 0600);
    cr_expect_eq(load_psk(path, error), -EINVAL);
    cr_expect_not_null(strstr(error, "holds 15 bytes, allowed are 16 to 4096"), "%s", error);
    wp_file(path, "0123456789abcdef\n", 17, 0600);
    cr_expect_eq(load_psk(path, error), 0, "%s", error);
    wp_file(path, "0123456789abcdef", 16, 0604);
    cr_expect_eq(load_psk(path, error), -EPERM);
    cr_expect_not_null(strstr(error, "chmod 600"), "%s", error);
    wp_file(path, "0123456789abcdef", 16, 0640);
    cr_expect_eq(load_psk(path, error), 0, "%s", error);
    wp_file(path, big, 4097, 0600);
    cr_expect_eq(load_psk(path, error), -EINVAL);
    wp_file(path, big, sizeof(big), 0600);
    cr_expect_eq(load_psk(path, error), -EINVAL);
    wp_file(path, big, 4096, 0600);
    cr_expect_eq(load_psk(path, error), 0, "%s", error);
    unlink(path);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_eq(load_psk(path, error), -EINVAL);
    unlink(path);
    rmdir(folder);
}

Test(wire_auth, certificates_are_checked_when_read)
{
    EVP_PKEY *key = EVP_EC_gen("P-256"), *wrong = EVP_EC_gen("P-256");
    X509 *c = wp_certificate("host-c", key, &ca, -WP_DAY, WP_DAY, NULL);
    char folder[256], cert[300], secret[300], trusted[300], error[512] = "";
    struct mcd_wire_auth_options o = {.method = MCD_WIRE_TLS};
    struct mcd_wire_auth *a = NULL;

    wp_folder(folder);
    snprintf(cert, sizeof(cert), "%s/cert", folder);
    snprintf(secret, sizeof(secret), "%s/key", folder);
    snprintf(trusted, sizeof(trusted), "%s/ca", folder);
    cr_expect_eq(mcd_wire_auth_create(&o, &a, error, sizeof(error)), -EINVAL);
    cr_expect_not_null(strstr(error, "tls_cert"), "%s", error);
    o.tls_cert = cert;
    o.tls_key = secret;
    o.tls_ca = trusted;
    cr_expect_eq(mcd_wire_auth_create(&o, &a, error, sizeof(error)), -ENOENT);
    cr_expect_not_null(strstr(error, secret), "%s", error);
    wp_write_key(secret, wrong, NULL);
    cr_expect_eq(mcd_wire_auth_create(&o, &a, error, sizeof(error)), -EINVAL);
    cr_expect_not_null(strstr(error, cert), "%s", error);
    wp_write_certificate(cert, c);
    cr_expect_eq(mcd_wire_auth_create(&o, &a, error, sizeof(error)), -EINVAL);
    cr_expect_not_null(strstr(error, secret), "%s", error);
    wp_write_key(secret, key, "needs somebody to type this");
    cr_expect_eq(mcd_wire_auth_create(&o, &a, error, sizeof(error)), -EINVAL);
    cr_expect_not_null(strstr(error, "passphrase"), "%s", error);
    wp_write_key(secret, key, NULL);
    cr_expect_eq(mcd_wire_auth_create(&o, &a, error, sizeof(error)), -EINVAL);
    cr_expect_not_null(strstr(error, trusted), "%s", error);
    wp_write_certificate(trusted, ca.certificate);
    cr_expect_eq(chmod(secret, 0644), 0);
    cr_expect_eq(mcd_wire_auth_create(&o, &a, error, sizeof(error)), -EPERM);
    cr_expect_eq(chmod(secret, 0600), 0);
    cr_expect_null(a);
    cr_expect_eq(mcd_wire_auth_create(&o, &a, error, sizeof(error)), 0, "%s", error);
    mcd_wire_auth_destroy(a);
    unlink(cert);
    unlink(secret);
    unlink(trusted);
    rmdir(folder);
    X509_free(c);
    EVP_PKEY_free(key);
    EVP_PKEY_free(wrong);
}

/* ---- good ones ---- */

static const struct mcd_wire_auth *auth_of(unsigned i, bool a)
{
    return i == 0 ? psk : a ? tls_a : tls_b;
}

Test(wire_auth, both_methods_carry_messages)
{
    for (unsigned i = 0; i < 2; i++) {
        struct wp p;

        wp_open(&p, auth_of(i, true), auth_of(i, false), false);
        wp_run(&p);
        cr_assert(wp_both_ready(&p), "%s %s", p.a.text, p.b.text);
        for (uint32_t n = 0; n < 20; n++) {
            cr_assert_eq(wp_hello(&p.a, n, 'a', n * 1000), 0);
            cr_assert_eq(wp_hello(&p.b, n + 100, 'b', n * 77), 0);
        }
        cr_assert_eq(wp_hello(&p.b, 1, 'c', MCD_WIRE_FRAME_MAX - 4), 0);
        wp_run(&p);
        cr_expect(wp_both_ready(&p), "%s %s", p.a.text, p.b.text);
        cr_expect_eq(p.b.messages, 20u);
        cr_expect_eq(p.a.messages, 21u);
        for (uint32_t n = 0; n < 20; n++) {
            cr_expect_eq(p.b.kept[n].header.id, n);
            cr_expect_eq(p.a.kept[n].header.id, n + 100);
        }
        cr_expect_eq(p.a.kept[20].size, (size_t)MCD_WIRE_FRAME_MAX);
        cr_expect_eq(mcd_wire_due(p.a.wire), UINT64_MAX);
        cr_expect_eq(p.a.stats.auth_failures + p.b.stats.auth_failures, 0u);
        wp_close(&p);
    }
}

/* ---- wrong secrets and certificates ---- */

Test(wire_auth, a_wrong_secret_is_refused_on_both_sides)
{
    struct mcd_wire_auth *wrong = wp_psk(SECRET "x");
    struct wp p;

    wp_open(&p, psk, wrong, false);
    wp_run(&p);
    cr_expect_eq(p.a.ready + p.b.ready, 0u);
    cr_expect_eq(p.a.status, (uint32_t)MCS_AUTH, "%s", p.a.text);
    cr_expect_eq(p.b.status, (uint32_t)MCS_AUTH, "%s", p.b.text);
    cr_expect_not_null(strstr(p.b.text, "psk_file"), "%s", p.b.text);
    cr_expect_not_null(strstr(p.a.text, "refuses"), "%s", p.a.text);
    cr_expect_eq(p.b.stats.auth_failures, 1u);
    cr_expect_eq(p.a.stats.auth_failures, 1u);
    wp_close(&p);
    mcd_wire_auth_destroy(wrong);
}

Test(wire_auth, wrong_certificates_are_refused_with_subject_and_reason)
{
    static const struct {
        long from, until;
        bool foreign;
        const char *usage, *reason;
    } cases[] = {
        {-20 * WP_DAY, -WP_DAY, false, NULL, "certificate has expired"},
        {WP_DAY, 20 * WP_DAY, false, NULL, "not yet valid"},
        {0, 0, true, NULL, "issuer"},
        {0, 0, false, "codeSigning", "purpose"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct wp_tls bad = {.name = "host-x",
                             .issuer = cases[i].foreign ? &other_ca : &ca,
                             .trusted = &ca,
                             .from = cases[i].from,
                             .until = cases[i].until,
                             .usage = cases[i].usage};
        struct mcd_wire_auth *x = wp_tls(&bad);

        for (unsigned acceptor = 0; acceptor < 2; acceptor++) {
            struct wp_end *bad_end, *good_end;
            struct wp p;

            wp_open(&p, acceptor ? tls_a : x, acceptor ? x : tls_b, false);
            bad_end = acceptor ? &p.b : &p.a;
            good_end = acceptor ? &p.a : &p.b;
            wp_run(&p);
            cr_expect_eq(p.a.ready + p.b.ready, 0u);
            cr_expect_eq(good_end->status, (uint32_t)MCS_AUTH, "%s", good_end->text);
            cr_expect_not_null(strstr(good_end->text, "CN=host-x"), "%s", good_end->text);
            cr_expect_not_null(strstr(good_end->text, cases[i].reason), "%s", good_end->text);
            cr_expect_eq(good_end->stats.auth_failures, 1u);
            cr_expect_eq(bad_end->status, (uint32_t)MCS_AUTH, "%s", bad_end->text);
            cr_expect_not_null(strstr(bad_end->text, "CN=host-x"), "%s", bad_end->text);
            wp_close(&p);
        }
        mcd_wire_auth_destroy(x);
    }
}

Test(wire_auth, whom_one_side_does_not_trust_neither_side_talks_to)
{
    /* x is good, but believes in another CA only */
    struct wp_tls picky = {.name = "host-x", .issuer = &ca, .trusted = &other_ca};
    struct mcd_wire_auth *x = wp_tls(&picky);
    struct wp p;

    for (unsigned acceptor = 0; acceptor < 2; acceptor++) {
        wp_open(&p, acceptor ? tls_a : x, acceptor ? x : tls_b, false);
        wp_run(&p);
        cr_expect_eq(p.a.ready + p.b.ready, 0u);
        cr_expect_eq(p.a.status, (uint32_t)MCS_AUTH, "%s", p.a.text);
        cr_expect_eq(p.b.status, (uint32_t)MCS_AUTH, "%s", p.b.text);
        wp_close(&p);
    }
    mcd_wire_auth_destroy(x);
}

/* ---- somebody in the middle ---- */

struct flip {
    bool from_a;
    size_t at, seen; /* byte number of that direction */
    uint8_t mask;
};

static void flip(void *context, bool from_a, uint8_t *data, size_t *size, size_t room)
{
    struct flip *f = context;

    (void)room;
    if (from_a != f->from_a)
        return;
    if (f->at >= f->seen && f->at < f->seen + *size)
        data[f->at - f->seen] ^= f->mask;
    f->seen += *size;
}

Test(wire_auth, no_bit_of_a_psk_opening_may_change)
{
    size_t opening = sizeof(struct mcd_wire_greeting) + sizeof(struct mcd_wire_proof);

    for (unsigned from_a = 0; from_a < 2; from_a++) {
        for (size_t at = 0; at < opening; at++) {
            struct flip f = {from_a != 0, at, 0, (uint8_t)(1u << at % 8)};
            struct wp p;

            wp_open(&p, psk, psk, true);
            p.tamper = flip;
            p.context = &f;
            wp_run(&p);
            cr_expect_not(wp_both_ready(&p), "byte %zu of %s", at, from_a ? "a" : "b");
            /* who would act on it: the initiator only after the acceptor's proof */
            cr_expect_eq(p.a.ready, 0u, "byte %zu of %s", at, from_a ? "a" : "b");
            if (from_a || at < sizeof(struct mcd_wire_greeting))
                cr_expect_eq(p.b.ready, 0u, "byte %zu of %s", at, from_a ? "a" : "b");
            cr_expect(p.a.broken + p.b.broken > 0, "byte %zu of %s", at, from_a ? "a" : "b");
            wp_close(&p);
        }
    }
}

Test(wire_auth, no_byte_of_the_greeting_before_tls_may_change)
{
    for (unsigned from_a = 0; from_a < 2; from_a++) {
        for (size_t at = 0; at < sizeof(struct mcd_wire_greeting); at++) {
            struct flip f = {from_a != 0, at, 0, 0x10};
            struct wp p;

            wp_open(&p, tls_a, tls_b, true);
            p.tamper = flip;
            p.context = &f;
            wp_run(&p);
            cr_expect_not(wp_both_ready(&p), "byte %zu of %s", at, from_a ? "a" : "b");
            /* the side that was lied to */
            cr_expect_eq(from_a ? p.b.ready : p.a.ready, 0u, "byte %zu of %s", at,
                         from_a ? "a" : "b");
            wp_close(&p);
        }
    }
}

Test(wire_auth, no_byte_of_a_frame_may_change)
{
    for (unsigned i = 0; i < 2; i++) {
        size_t whole = 0;

        for (size_t at = 0; at == 0 || at < whole; at++) {
            struct flip f = {true, SIZE_MAX, 0, 0x40};
            struct wp p;
            uint64_t before;

            wp_open(&p, auth_of(i, true), auth_of(i, false), true);
            p.tamper = flip;
            p.context = &f;
            wp_run(&p);
            cr_assert(wp_both_ready(&p), "%s %s", p.a.text, p.b.text);
            cr_assert_eq(wp_hello(&p.a, 1, 'g', 20), 0);
            wp_run(&p);
            cr_assert_eq(p.b.messages, 1u);
            f.at = f.seen + at;
            before = p.a.stats.bytes_out;
            cr_assert_eq(wp_hello(&p.a, 2, 'g', 20), 0);
            wp_run(&p);
            whole = p.a.stats.bytes_out - before;
            /* a longer length may leave it waiting for the rest, which never helps */
            wp_run_at(&p, wp_now() + 11 * WP_SECOND);
            cr_expect_eq(p.b.messages, 1u, "byte %zu of %zu", at, whole);
            cr_expect_eq(p.b.broken, 1u, "byte %zu of %zu", at, whole);
            cr_expect(p.b.status == MCS_AUTH || p.b.status == MCS_PROTOCOL ||
                          p.b.status == MCS_TIMEOUT,
                      "byte %zu: %s", at, p.b.text);
            wp_close(&p);
        }
    }
}

/* What a test does with one chunk of a's: the frames of one wp_hello(). */
enum trick { REPEAT, SWALLOW, CUT, SWAP };
struct trickster {
    enum trick trick;
    bool armed;
    uint8_t kept[512];
    size_t kept_size;
};

static void play(void *context, bool from_a, uint8_t *data, size_t *size, size_t room)
{
    struct trickster *t = context;

    if (!from_a || !t->armed)
        return;
    switch (t->trick) {
    case REPEAT:
        WP_CHECK(2 * *size <= room);
        memcpy(data + *size, data, *size);
        *size *= 2;
        break;
    case SWALLOW:
        *size = 0;
        t->armed = false;
        break;
    case CUT:
        *size -= 1;
        break;
    case SWAP:
        if (t->kept_size == 0) {
            WP_CHECK(*size <= sizeof(t->kept));
            memcpy(t->kept, data, *size);
            t->kept_size = *size;
            *size = 0;
        } else {
            WP_CHECK(*size + t->kept_size <= room);
            memcpy(data + *size, t->kept, t->kept_size);
            *size += t->kept_size;
            t->armed = false;
        }
    }
}

Test(wire_auth, frames_cannot_be_repeated_dropped_cut_or_swapped)
{
    for (unsigned i = 0; i < 2; i++) {
        for (enum trick trick = REPEAT; trick <= SWAP; trick++) {
            struct trickster t = {.trick = trick};
            struct wp p;

            wp_open(&p, auth_of(i, true), auth_of(i, false), true);
            p.tamper = play;
            p.context = &t;
            wp_run(&p);
            cr_assert(wp_both_ready(&p), "%s %s", p.a.text, p.b.text);
            t.armed = true;
            cr_assert_eq(wp_hello(&p.a, 1, 'f', 30), 0);
            wp_run(&p);
            if (p.a.broken == 0)
                cr_assert_eq(wp_hello(&p.a, 2, 'f', 30), 0);
            wp_run(&p);
            wp_run_at(&p, wp_now() + 11 * WP_SECOND);
            cr_expect_eq(p.b.messages, trick == REPEAT ? 1u : 0u, "method %u trick %d", i, trick);
            cr_expect_eq(p.b.broken, 1u, "method %u trick %d", i, trick);
            wp_close(&p);
        }
    }
}

static void reflect(struct mcd_wire_auth *auth, bool initiator, size_t at, uint8_t mask)
{
    struct wp_end e = {0};
    uint8_t data[4096];
    ssize_t n;
    size_t seen = 0;
    int s[2];

    wp_sockets(s);
    wp_start(&e, auth, s[0], initiator, 0, 0);
    for (unsigned i = 0; i < 20 && e.broken == 0; i++) {
        mcd_wire_run(e.wire, wp_now());
        n = recv(s[1], data, sizeof(data), 0);
        if (n <= 0)
            continue;
        if (at >= seen && at < seen + (size_t)n)
            data[at - seen] ^= mask;
        seen += (size_t)n;
        if (send(s[1], data, (size_t)n, MSG_NOSIGNAL) != n)
            break; /* it has closed */
    }
    mcd_wire_run(e.wire, wp_now());
    cr_expect_eq(e.ready, 0u);
    cr_expect_eq(e.broken, 1u);
    wp_end_destroy(&e);
    close(s[1]);
}

Test(wire_auth, a_mirror_is_no_peer)
{
    size_t role = offsetof(struct mcd_wire_greeting, role);

    for (unsigned initiator = 0; initiator < 2; initiator++) {
        reflect(psk, initiator, SIZE_MAX, 0);
        reflect(tls_a, initiator, SIZE_MAX, 0);
    }
    /* a mirror that also turns the role around gets one step further */
    reflect(psk, true, role, MCD_WIRE_INITIATOR ^ MCD_WIRE_ACCEPTOR);
    reflect(tls_a, true, role, MCD_WIRE_INITIATOR ^ MCD_WIRE_ACCEPTOR);
}

struct recording {
    uint8_t bytes[8192];
    size_t size;
};

static void record(void *context, bool from_a, uint8_t *data, size_t *size, size_t room)
{
    struct recording *r = context;

    (void)room;
    if (!from_a)
        return;
    WP_CHECK(r->size + *size <= sizeof(r->bytes));
    memcpy(r->bytes + r->size, data, *size);
    r->size += *size;
}

Test(wire_auth, a_recorded_connection_cannot_be_played_again)
{
    for (unsigned i = 0; i < 2; i++) {
        struct recording r = {.size = 0};
        struct wp_end again = {0};
        struct wp p;
        int s[2];

        wp_open(&p, auth_of(i, true), auth_of(i, false), true);
        p.tamper = record;
        p.context = &r;
        wp_run(&p);
        cr_assert_eq(wp_hello(&p.a, 1, 'r', 30), 0);
        wp_run(&p);
        cr_assert_eq(p.b.messages, 1u);
        wp_close(&p);

        wp_sockets(s);
        wp_start(&again, auth_of(i, false), s[0], false, 0, 0);
        cr_assert_eq(send(s[1], r.bytes, r.size, MSG_NOSIGNAL), (ssize_t)r.size);
        for (unsigned n = 0; n < 10; n++)
            mcd_wire_run(again.wire, wp_now());
        cr_expect_eq(again.ready + again.messages, 0u);
        cr_expect_eq(again.status, (uint32_t)MCS_AUTH, "%s", again.text);
        wp_end_destroy(&again);
        close(s[1]);
    }
}

struct search {
    const char *text;
    bool found;
};

static void search(void *context, bool from_a, uint8_t *data, size_t *size, size_t room)
{
    struct search *s = context;

    (void)from_a, (void)room;
    if (memmem(data, *size, s->text, strlen(s->text)) != NULL)
        s->found = true;
}

Test(wire_auth, tls_hides_what_psk_only_protects)
{
    for (unsigned i = 0; i < 2; i++) {
        struct search s = {.text = "hhhhhhhhhhhhhhhhhhhh"};
        struct wp p;

        wp_open(&p, auth_of(i, true), auth_of(i, false), true);
        p.tamper = search;
        p.context = &s;
        wp_run(&p);
        cr_assert_eq(wp_hello(&p.a, 1, 'h', 30), 0);
        wp_run(&p);
        cr_expect_eq(p.b.messages, 1u);
        cr_expect_eq(s.found, i == 0);
        wp_close(&p);
    }
}

/* ---- strangers ---- */

Test(wire_auth, a_stranger_costs_little_and_is_timed_out)
{
    struct mcd_wire_greeting g = {
        .magic = MCD_WIRE_MAGIC,
        .version_min = 1,
        .version_max = 1,
        .method = MCD_WIRE_TLS,
        .role = MCD_WIRE_INITIATOR,
        .incarnation = 5,
    };
    static const uint8_t record_head[] = {0x16, 0x03, 0x01, 0x40, 0x00};
    static const uint8_t zeros[65536];
    struct wp_end e = {0};
    int s[2];

    /* a TLS record that never ends */
    wp_sockets(s);
    wp_start(&e, tls_b, s[0], false, 0, 0);
    cr_assert_eq(send(s[1], &g, sizeof(g), MSG_NOSIGNAL), (ssize_t)sizeof(g));
    cr_assert_eq(send(s[1], record_head, sizeof(record_head), MSG_NOSIGNAL), 5);
    mcd_wire_run(e.wire, wp_now());
    cr_expect_eq(e.broken, 0u);
    mcd_wire_run(e.wire, wp_now() + MCD_WIRE_GREETING_NS);
    cr_expect_eq(e.status, (uint32_t)MCS_TIMEOUT, "%s", e.text);
    wp_end_destroy(&e);
    close(s[1]);
    /* and bytes without end: cut, by TLS or by our own limit */
    memset(&e, 0, sizeof(e));
    wp_sockets(s);
    wp_start(&e, tls_b, s[0], false, 0, 0);
    cr_assert_eq(send(s[1], &g, sizeof(g), MSG_NOSIGNAL), (ssize_t)sizeof(g));
    for (unsigned i = 0; i < 8 && e.broken == 0; i++) {
        cr_assert_gt(send(s[1], zeros, sizeof(zeros), MSG_NOSIGNAL), 0);
        mcd_wire_run(e.wire, wp_now());
    }
    cr_expect_eq(e.broken, 1u);
    cr_expect_eq(e.ready, 0u);
    wp_end_destroy(&e);
    close(s[1]);
    /* neither TLS nor a refusal */
    memset(&e, 0, sizeof(e));
    wp_sockets(s);
    wp_start(&e, tls_b, s[0], false, 0, 0);
    cr_assert_eq(send(s[1], &g, sizeof(g), MSG_NOSIGNAL), (ssize_t)sizeof(g));
    cr_assert_eq(send(s[1], "MCSOMETHING", 11, MSG_NOSIGNAL), 11);
    mcd_wire_run(e.wire, wp_now());
    cr_expect_eq(e.status, (uint32_t)MCS_PROTOCOL, "%s", e.text);
    wp_end_destroy(&e);
    close(s[1]);
}

Test(wire_auth, tls_peers_are_told_of_versions_and_limits)
{
    struct wp p = {.ra = -1, .rb = -1};
    int s[2];

    wp_sockets(s);
    wp_start(&p.a, tls_a, s[0], true, 3, 4);
    wp_start(&p.b, tls_b, s[1], false, 1, 2);
    wp_run(&p);
    cr_expect_eq(p.a.status, (uint32_t)MCS_VERSION, "%s", p.a.text);
    cr_expect_eq(p.b.status, (uint32_t)MCS_VERSION, "%s", p.b.text);
    wp_close(&p);
    wp_open(&p, tls_a, tls_b, false);
    mcd_wire_refuse(p.b.wire, MCS_LIMIT, "no more");
    wp_run(&p);
    cr_expect_eq(p.a.status, (uint32_t)MCS_LIMIT, "%s", p.a.text);
    wp_close(&p);
}
