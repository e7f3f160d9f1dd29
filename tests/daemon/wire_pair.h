/* SPDX-License-Identifier: Apache-2.0 */
/* Two wires in one thread, joined directly or through a relay that a test can tamper with.
 * Without Criterion, since the fuzzer uses it, too: a broken assumption aborts. */
#ifndef TESTS_WIRE_PAIR_H
#define TESTS_WIRE_PAIR_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <daemon/peer.pb-c.h>

#include "daemon/wire.h"
#include "daemon/wire_protocol.h"
#include "shm/status.h"

#define WP_A_INCARNATION UINT64_C(0xa1a1a1a1a1a1a1a1)
#define WP_B_INCARNATION UINT64_C(0xb2b2b2b2b2b2b2b2)
#define WP_KEPT 64u
#define WP_SECOND UINT64_C(1000000000)

struct wp_message {
    struct mcd_wire_header header;
    size_t size;
    uint32_t sum; /* of the payload's bytes, in order */
    uint8_t start[64];
};
struct wp_end {
    struct mcd_wire *wire;
    struct mcd_wire_stats stats;
    unsigned ready, broken, messages;
    uint32_t status;
    char text[512];
    struct wp_message kept[WP_KEPT]; /* the first ones */
    bool destroy_in_ready, destroy_in_message, destroy_in_broken;
};
struct wp {
    struct wp_end a, b; /* a is the initiator */
    int ra, rb;         /* the relay's ends, -1 without one */
    /* Called with what is on its way; may change it and its size (up to room). */
    void (*tamper)(void *context, bool from_a, uint8_t *data, size_t *size, size_t room);
    void *context;
};

#define WP_CHECK(c)                                                                                \
    do {                                                                                           \
        if (!(c)) {                                                                                \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #c);                            \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline uint64_t wp_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * WP_SECOND + (uint64_t)t.tv_nsec;
}

static inline uint32_t wp_sum(const void *data, size_t size)
{
    const uint8_t *at = data;
    uint32_t sum = 2166136261u;

    for (size_t i = 0; i < size; i++)
        sum = (sum ^ at[i]) * 16777619u;
    return sum;
}

static inline void wp_end_destroy(struct wp_end *e)
{
    mcd_wire_destroy(e->wire);
    e->wire = NULL;
}

static inline void wp_on_ready(void *context, struct mcd_wire *w)
{
    struct wp_end *e = context;

    WP_CHECK(w == e->wire);
    e->ready++;
    if (e->destroy_in_ready)
        wp_end_destroy(e);
}

static inline void wp_on_message(void *context, struct mcd_wire *w, const struct mcd_wire_header *h,
                                 const uint8_t *payload, size_t size)
{
    struct wp_end *e = context;

    WP_CHECK(w == e->wire && e->ready == 1 && e->broken == 0);
    if (e->messages < WP_KEPT) {
        struct wp_message *m = &e->kept[e->messages];

        m->header = *h;
        m->size = size;
        m->sum = wp_sum(payload, size);
        memcpy(m->start, payload, size < sizeof(m->start) ? size : sizeof(m->start));
    }
    e->messages++;
    if (e->destroy_in_message)
        wp_end_destroy(e);
}

static inline void wp_on_broken(void *context, struct mcd_wire *w, uint32_t status,
                                const char *text)
{
    struct wp_end *e = context;

    WP_CHECK(w == e->wire && e->broken == 0 && text[0] != 0);
    e->broken++;
    e->status = status;
    snprintf(e->text, sizeof(e->text), "%s", text);
    if (e->destroy_in_broken)
        wp_end_destroy(e);
}

/* Puts a wire on one end of a socket. low, high: versions, 0 for the usual. */
static inline void wp_start(struct wp_end *e, const struct mcd_wire_auth *auth, int fd,
                            bool initiator, uint16_t low, uint16_t high)
{
    struct mcd_wire_options o = {
        .auth = auth,
        .stats = &e->stats,
        .events = {e, wp_on_ready, wp_on_message, wp_on_broken},
        .incarnation = initiator ? WP_A_INCARNATION : WP_B_INCARNATION,
        .initiator = initiator,
        .version_min = low,
        .version_max = high,
    };

    WP_CHECK(mcd_wire_create(&o, fd, NULL, 0, &e->wire) == 0);
}

static inline void wp_sockets(int s[2])
{
    WP_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, s) == 0);
}

static inline void wp_open(struct wp *p, const struct mcd_wire_auth *a,
                           const struct mcd_wire_auth *b, bool relay)
{
    int s[2], t[2];

    memset(p, 0, sizeof(*p));
    p->ra = p->rb = -1;
    wp_sockets(s);
    if (relay) {
        wp_sockets(t);
        p->ra = s[1];
        p->rb = t[0];
        s[1] = t[1];
    }
    wp_start(&p->a, a, s[0], true, 0, 0);
    wp_start(&p->b, b, s[1], false, 0, 0);
}

static inline void wp_close(struct wp *p)
{
    wp_end_destroy(&p->a);
    wp_end_destroy(&p->b);
    if (p->ra >= 0)
        close(p->ra);
    if (p->rb >= 0)
        close(p->rb);
    p->ra = p->rb = -1;
}

/* Moves what lies at one end of the relay to the other; true if something did. */
static inline bool wp_relay(struct wp *p, bool from_a)
{
    int from = from_a ? p->ra : p->rb, to = from_a ? p->rb : p->ra;
    static uint8_t data[128 << 10];
    ssize_t n;
    size_t size, done = 0;

    if (from < 0)
        return false;
    n = recv(from, data, sizeof(data) / 2, MSG_DONTWAIT);
    if (n == 0)
        shutdown(to, SHUT_WR);
    if (n <= 0)
        return false;
    size = (size_t)n;
    if (p->tamper != NULL)
        p->tamper(p->context, from_a, data, &size, sizeof(data));
    while (done < size) {
        n = send(to, data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0)
            break; /* gone, or full: then it is lost, as the other end will notice */
        done += (size_t)n;
    }
    return true;
}

static inline uint64_t wp_moved(const struct wp_end *e)
{
    return e->stats.bytes_in + e->stats.bytes_out + e->broken + e->ready;
}

/* Runs both until nothing moves any more: sockets of one host have no delay. */
static inline void wp_run_at(struct wp *p, uint64_t now)
{
    unsigned quiet = 0;
    uint64_t moved = 0;

    while (quiet < 3) {
        bool relayed;
        uint64_t after;

        if (p->a.wire != NULL)
            mcd_wire_run(p->a.wire, now);
        relayed = wp_relay(p, true);
        if (p->b.wire != NULL)
            mcd_wire_run(p->b.wire, now);
        relayed = wp_relay(p, false) || relayed;
        after = wp_moved(&p->a) + wp_moved(&p->b);
        quiet = relayed || after != moved ? 0 : quiet + 1;
        moved = after;
    }
}

static inline void wp_run(struct wp *p)
{
    wp_run_at(p, wp_now());
}

static inline bool wp_both_ready(const struct wp *p)
{
    return p->a.ready == 1 && p->b.ready == 1 && p->a.broken == 0 && p->b.broken == 0;
}

/* Sends a Hello whose text has n times the character c; the result of mcd_wire_send(). */
static inline int wp_hello(struct wp_end *from, uint32_t id, char c, size_t n)
{
    struct mcd_wire_header h = {.type = 1, .id = id};
    Mcd__Hello hello = MCD__HELLO__INIT;
    char *text = malloc(n + 1);
    int res;

    WP_CHECK(text != NULL);
    memset(text, c, n);
    text[n] = 0;
    hello.agent_version = text;
    res = mcd_wire_send(from->wire, &h, &hello.base);
    free(text);
    return res;
}

/* A folder for secrets and certificates. */
static inline void wp_folder(char path[256])
{
    const char *base = getenv("TMPDIR");

    snprintf(path, 256, "%s/wire-XXXXXX", base != NULL ? base : "/tmp");
    WP_CHECK(mkdtemp(path) != NULL);
}

static inline void wp_file(const char *path, const void *data, size_t size, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    WP_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size && fchmod(fd, mode) == 0);
    close(fd);
}

static inline struct mcd_wire_auth *wp_none(void)
{
    struct mcd_wire_auth_options o = {.method = MCD_WIRE_NONE};
    struct mcd_wire_auth *a = NULL;
    char error[512];

    WP_CHECK(mcd_wire_auth_create(&o, &a, error, sizeof(error)) == 0);
    return a;
}

static inline struct mcd_wire_auth *wp_psk(const char *secret)
{
    struct mcd_wire_auth_options o = {.method = MCD_WIRE_PSK};
    struct mcd_wire_auth *a = NULL;
    char folder[256], path[300], error[512];

    wp_folder(folder);
    snprintf(path, sizeof(path), "%s/psk", folder);
    wp_file(path, secret, strlen(secret), 0600);
    o.psk_file = path;
    WP_CHECK(mcd_wire_auth_create(&o, &a, error, sizeof(error)) == 0);
    unlink(path);
    rmdir(folder);
    return a;
}

#endif
