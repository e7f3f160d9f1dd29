/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile data connections: any bytes, in both roles. Whatever comes, the transport must not crash,
 * write outside what it resolved, hang, lose a slice or give one back twice.
 *
 *   tests/fuzz/run tcp                           under libFuzzer
 *   gcc -DFUZZ_MAIN ... tests/fuzz/fuzz_tcp.c    fuzz_tcp [SEED [ROUNDS]]
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz_tcp.h"
#include "shm/status.h"
#include "transports/crc32c.h"
#include "transports/tcp/frame.h"
#include "transports/transport.h"
#include "transports/uring.h"

#define BASE UINT64_C(0x10000)
#define SIZE 65536u
#define GUARD 4096u
#define SLICES 12u

struct world {
    struct mct_uring *uring;
    struct mct *t;
    uint8_t memory[GUARD + SIZE + GUARD];
    struct mct_slice slices[SLICES];
    unsigned posted, back;
};

static uint64_t rejected; /* connections closed for nonsense, by all inputs so far */

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz_tcp: %s\n", what);
    abort();
}

static void say(int level, const char *format, ...)
{
    (void)level;
    (void)format;
}

static void on_done(void *context, struct mct_slice *s)
{
    struct world *w = context;

    must(s->owner == NULL, "a slice came back twice");
    s->owner = w;
    w->back++;
}

static void on_lost(void *context, struct mct_link *link, uint64_t conn, int error)
{
    (void)context, (void)link, (void)conn, (void)error;
}

static void on_killed(void *context, struct mct_link *link, uint64_t conn)
{
    (void)context, (void)link, (void)conn;
}

static void on_left(void *context, void *visitor, uint64_t conn, int error, const char *why)
{
    (void)context, (void)visitor, (void)conn, (void)error, (void)why;
}

static uint16_t resolve(void *context, void *visitor, const struct mct_request *r, void **pointer)
{
    struct world *w = context;

    (void)visitor;
    if (r->export_index > 3)
        return MCS_INVALID_HANDLE;
    if (r->address < BASE || r->length > SIZE || r->address - BASE > SIZE - r->length)
        return MCS_BAD_RANGE;
    *pointer = w->memory + GUARD + (r->address - BASE);
    return MCS_OK;
}

static uint16_t notify(void *context, void *visitor, const struct mct_request *r, uint64_t source,
                       uint64_t bytes, const void *name, uint32_t name_length, const void *message,
                       uint32_t message_length)
{
    uint32_t crc = mct_crc32c(0, name, name_length); /* reads all of it */

    (void)context, (void)visitor, (void)r, (void)source, (void)bytes;
    must(name_length + message_length == r->length, "a notification of another length");
    return mct_crc32c(crc, message, message_length) % 5 == 0 ? MCS_INBOX_FULL : MCS_OK;
}

static struct world *create(void)
{
    static struct world w;
    char error[200] = "";
    struct mct_env env = {.log = say,
                          .host = {.context = &w,
                                   .done = on_done,
                                   .lost = on_lost,
                                   .killed = on_killed,
                                   .left = on_left,
                                   .resolve = resolve,
                                   .notify = notify},
                          .tick_hz = 1,
                          .zero_copy_min = UINT64_MAX,
                          .max_requests = 16};

    memset(&w, 0, sizeof(w));
    must(mct_uring_create(16, &w.uring, error, sizeof(error)) == 0, error);
    must(mct_uring_enable(w.uring) == 0, "the ring cannot be enabled");
    env.uring = w.uring;
    must(mct_tcp_ops.init(&env, &w.t) == 0, "init");
    return &w;
}

static void destroy(struct world *w)
{
    rejected += mct_tcp_ops.stats(w->t)->protocol_errors;
    mct_tcp_ops.fini(w->t);
    must(mct_uring_inflight(w->uring) == 0, "I/O is left over");
    must(w->back == w->posted, "a slice is lost");
    for (unsigned i = 0; i < GUARD; i++)
        must(w->memory[i] == 0 && w->memory[GUARD + SIZE + i] == 0, "bytes beside the segment");
    mct_uring_destroy(w->uring);
}

/* Slices that answers could be made for. */
static void post(struct world *w, struct mct_link *link)
{
    static const enum mct_op ops[] = {MCT_READ, MCT_WRITE, MCT_NOTIFY};

    for (unsigned i = 0; i < SLICES; i++) {
        struct mct_slice *s = &w->slices[i];

        *s = (struct mct_slice){.op = ops[i % 3],
                                .length = i % 3 == 2 ? 100 : 300 + i * 3000,
                                .local = w->memory + GUARD + i * 64,
                                .name_length = 7};
        w->posted += mct_tcp_ops.post(link, &s, 1);
    }
}

/* Takes what the transport sends; it is not looked at. */
static void swallow(int fd)
{
    char buffer[4096];

    while (recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) > 0)
        continue;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world *w;
    struct mct_link *link = NULL;
    struct mct_conn conn = {.id = 7, .features = MCT_TCP_FEATURE_NOTIFY};
    size_t at = 1, step;
    int fds[2];

    if (size < 2)
        return 0;
    w = create();
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0, "socketpair");
    conn.fd = fds[0];
    step = (size_t)(data[0] >> 1) * 37 + 1;
    if ((data[0] & 1) != 0) {
        must(mct_tcp_ops.connect(w->t, NULL, &link) == 0, "connect");
        must(mct_tcp_ops.adopt(link, &conn) == 0, "adopt");
        post(w, link);
        (void)mct_tcp_ops.turn(w->t);
    } else {
        must(mct_tcp_ops.serve(w->t, &conn, w) == 0, "serve");
    }
    for (unsigned idle = 0; at < size && idle < 3;) {
        size_t n = size - at < step ? size - at : step;
        ssize_t sent = send(fds[1], data + at, n, MSG_DONTWAIT | MSG_NOSIGNAL);

        at += sent > 0 ? (size_t)sent : 0;
        if (sent < 0 && errno != EAGAIN)
            break; /* it closed the connection */
        swallow(fds[1]);
        idle = mct_tcp_ops.turn(w->t) || sent > 0 ? 0 : idle + 1;
    }
    for (unsigned i = 0; i < 4; i++) {
        (void)mct_tcp_ops.turn(w->t);
        swallow(fds[1]);
    }
    close(fds[1]);
    destroy(w);
    return 0;
}

static uint64_t rng(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static size_t put(uint8_t *to, const void *data, size_t size)
{
    memcpy(to, data, size);
    return size;
}

/* A frame that could be sound; what is damaged, is so before or after it got its checksum. */
static size_t frame(uint8_t *to, uint64_t *x, bool answers, uint64_t id)
{
    static const uint8_t requests[] = {MCT_TCP_READ, MCT_TCP_WRITE, MCT_TCP_NOTIFY, MCT_TCP_KILL,
                                       MCT_TCP_PING};
    static const uint8_t replies[] = {MCT_TCP_DATA, MCT_TCP_DONE, MCT_TCP_DONE};
    struct mct_tcp_header h = {.type = answers ? replies[(id - 1) % 3]
                                               : requests[rng(x) % sizeof(requests)],
                               .flags = rng(x) % 2 == 0 ? MCT_TCP_CHECKSUM : 0,
                               .id = id,
                               .address = BASE + rng(x) % SIZE,
                               .export_index = (uint32_t)(rng(x) % 5)};
    struct mct_tcp_trailer t;
    size_t n = 0;

    if (h.type == MCT_TCP_NOTIFY) {
        h.length = rng(x) % 600 + 1;
        h.name_length = (uint16_t)(rng(x) % 8);
    } else if (h.type == MCT_TCP_READ || h.type == MCT_TCP_WRITE) {
        h.length = rng(x) % 40000 + 1;
    } else if (h.type == MCT_TCP_DATA) {
        h.length = 300 + (id - 1) * 3000;
    }
    if (rng(x) % 12 == 0)
        ((uint8_t *)&h)[rng(x) % sizeof(h)] ^= (uint8_t)(1u << rng(x) % 8);
    mct_tcp_header_seal(&h);
    if (rng(x) % 24 == 0)
        ((uint8_t *)&h)[rng(x) % sizeof(h)] ^= (uint8_t)(1u << rng(x) % 8);
    n += put(to, &h, sizeof(h));
    if (h.type == MCT_TCP_READ || h.length == 0 || h.length > 50000)
        return n;
    for (uint64_t i = 0; i < h.length; i++)
        to[n++] = (uint8_t)(i * 11);
    mct_tcp_trailer_make(&t, id, rng(x) % 10 == 0 ? MCS_CANCELED : MCS_OK,
                         mct_crc32c(0, to + sizeof(h), h.length));
    if (rng(x) % 24 == 0)
        ((uint8_t *)&t)[rng(x) % sizeof(t)] ^= (uint8_t)(1u << rng(x) % 8);
    return n + put(to + n, &t, sizeof(t));
}

unsigned fuzz_tcp_rounds(uint64_t seed, unsigned rounds)
{
    static uint8_t input[SLICES * 60000];
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

    rejected = 0;
    for (unsigned i = 0; i < rounds; i++) {
        size_t n = 1;

        input[0] = (uint8_t)rng(&x);
        for (uint64_t id = 1; id < SLICES; id++)
            n += frame(input + n, &x, (input[0] & 1) != 0, id);
        if (rng(&x) % 4 == 0)
            n = 2 + rng(&x) % (n - 2); /* cut anywhere */
        (void)LLVMFuzzerTestOneInput(input, n);
    }
    return (unsigned)rejected;
}

#ifdef FUZZ_MAIN
int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    unsigned rounds = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 0) : 2000;

    printf("%u of %u conversations were nonsense\n", fuzz_tcp_rounds(seed, rounds), rounds);
    return 0;
}
#endif
