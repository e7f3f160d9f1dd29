/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input for the control connection between agents, in libFuzzer's shape: tests/fuzz/run wire.
 * tests/daemon/test_wire_fuzz.c runs the same entry on inputs from fixed seeds.
 *
 * The first byte says who is tried, the second into how large pieces the rest is cut:
 *   0, 1   an acceptor or initiator without authentication; the rest is what the peer sends
 *   2, 3   two wires with psk or tls; the rest is what somebody between them does, four bytes an
 *          act: what, to which piece, where, with which byte
 * What must hold: no crash, bounded memory, and with psk and tls: what arrives is what was sent,
 * in its order, from the first on.
 */
#include "tests/daemon/wire_certs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_MESSAGES 6u

/* Does the input's first byte ask for a peer with a good opening? */
#define FUZZ_OPENED 4u

struct fuzz_script {
    const uint8_t *acts;
    size_t count; /* of four bytes */
    unsigned piece;
    bool acted;
};

static void fuzz_raw(const uint8_t *data, size_t size, bool initiator, bool opened, size_t piece)
{
    static struct mcd_wire_auth *none;
    struct mcd_wire_greeting g = {
        .magic = MCD_WIRE_MAGIC,
        .version_min = 1,
        .version_max = 1,
        .method = MCD_WIRE_NONE,
        .role = initiator ? MCD_WIRE_ACCEPTOR : MCD_WIRE_INITIATOR,
        .incarnation = 3,
    };
    struct mcd_wire_proof p = {.magic = MCD_WIRE_PROOF_MAGIC};
    struct wp_end e = {0};
    size_t done = 0;
    int s[2];

    if (none == NULL)
        none = wp_none();
    wp_sockets(s);
    wp_start(&e, none, s[0], initiator, 0, 0);
    if (opened) {
        WP_CHECK(send(s[1], &g, sizeof(g), MSG_NOSIGNAL) == sizeof(g));
        WP_CHECK(send(s[1], &p, sizeof(p), MSG_NOSIGNAL) == sizeof(p));
        mcd_wire_run(e.wire, wp_now());
        WP_CHECK(e.ready == 1);
    }
    while (done < size && e.broken == 0) {
        size_t n = size - done < piece ? size - done : piece;

        if (send(s[1], data + done, n, MSG_NOSIGNAL) != (ssize_t)n)
            break;
        done += n;
        mcd_wire_run(e.wire, wp_now());
    }
    if (e.broken == 0 && mcd_wire_is_ready(e.wire))
        WP_CHECK(wp_hello(&e, 1, 'x', 10) == 0);
    /* whatever it was: an end, in time */
    if (e.broken == 0 && mcd_wire_due(e.wire) != UINT64_MAX) {
        mcd_wire_run(e.wire, mcd_wire_due(e.wire));
        WP_CHECK(e.broken == 1);
    }
    if (e.broken == 0) {
        shutdown(s[1], SHUT_WR);
        mcd_wire_run(e.wire, wp_now());
        WP_CHECK(e.broken == 1);
    }
    WP_CHECK(wp_hello(&e, 1, 'x', 10) == -ENOTCONN);
    wp_end_destroy(&e);
    close(s[1]);
}

static void fuzz_act(void *context, bool from_a, uint8_t *data, size_t *size, size_t room)
{
    struct fuzz_script *f = context;
    unsigned piece = f->piece++;

    (void)from_a;
    for (size_t i = 0; i<f->count && * size> 0; i++) {
        const uint8_t *act = f->acts + 4 * i;
        size_t at = act[2] * (*size) / 256;

        if (act[1] % 24 != piece % 24)
            continue;
        f->acted = true;
        switch (act[0] % 5) {
        case 0:
            data[at] ^= act[3] != 0 ? act[3] : 1;
            break;
        case 1: /* cut */
            *size = at;
            break;
        case 2: /* repeat */
            if (*size * 2 <= room) {
                memcpy(data + *size, data, *size);
                *size *= 2;
            }
            break;
        case 3: /* insert */
            if (*size < room) {
                memmove(data + at + 1, data + at, *size - at);
                data[at] = act[3];
                *size += 1;
            }
            break;
        default: /* swallow */
            *size = 0;
        }
    }
}

static void fuzz_check(const struct wp_end *e, char c)
{
    char text[8];

    WP_CHECK(e->messages <= FUZZ_MESSAGES);
    for (unsigned i = 0; i < e->messages; i++) {
        const struct wp_message *m = &e->kept[i];

        WP_CHECK(m->header.id == i + 1 && m->header.type == 1);
        if (i == 0)
            continue;
        memset(text, c, sizeof(text));
        WP_CHECK(m->size > i * 40 && m->size <= i * 40 + 4);
        WP_CHECK(memcmp(m->start + 8, text, sizeof(text)) == 0);
    }
}

static void fuzz_between(const uint8_t *data, size_t size, bool tls)
{
    static struct mcd_wire_auth *psk, *cert_a, *cert_b;
    struct fuzz_script f = {.acts = data, .count = size / 4};
    struct wp p;

    if (psk == NULL) {
        struct wp_ca ca;

        psk = wp_psk("a secret that nobody knows");
        wp_ca_create(&ca, "CA");
        cert_a = wp_tls(&(struct wp_tls){.name = "a", .issuer = &ca, .trusted = &ca});
        cert_b = wp_tls(&(struct wp_tls){.name = "b", .issuer = &ca, .trusted = &ca});
        wp_ca_destroy(&ca);
    }
    wp_open(&p, tls ? cert_a : psk, tls ? cert_b : psk, true);
    p.tamper = fuzz_act;
    p.context = &f;
    wp_run(&p);
    for (unsigned i = 0; i < FUZZ_MESSAGES; i++) {
        if (p.a.broken == 0 && p.a.ready)
            wp_hello(&p.a, i + 1, 'a', i * 40);
        if (p.b.broken == 0 && p.b.ready)
            wp_hello(&p.b, i + 1, 'b', i * 40);
        wp_run(&p);
    }
    fuzz_check(&p.a, 'b');
    fuzz_check(&p.b, 'a');
    if (!f.acted)
        WP_CHECK(wp_both_ready(&p) && p.a.messages == FUZZ_MESSAGES &&
                 p.b.messages == FUZZ_MESSAGES);
    wp_close(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned mode;

    if (size < 2 || size > 65536)
        return 0;
    mode = data[0] % 4u;
    if (mode < 2)
        fuzz_raw(data + 2, size - 2, mode == 1, (data[0] & FUZZ_OPENED) != 0, data[1] + 1u);
    else
        fuzz_between(data + 2, size - 2, mode == 3);
    return 0;
}
