/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two instances of the TCP transport in one thread, `a` (initiator) and `b` (target), each with a
 * uring of its own, over loopback. The target's memory is one segment; tests take it away and watch
 * what the engine is told.
 */
#ifndef TCP_FIXTURE_H
#define TCP_FIXTURE_H

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "shm/status.h"
#include "transports/crc32c.h"
#include "transports/tcp/frame.h"
#include "transports/transport.h"
#include "transports/uring.h"

#define FIX_SEGMENT UINT64_C(0x7000000000) /* where the target's segment begins */
#define FIX_SIZE (UINT64_C(32) << 20)
#define FIX_EXPORT 3u
#define FIX_INCARNATION UINT64_C(0x1122334455667788)
#define FIX_EVENTS 64

#define FIX_STAGES 64u

struct fix_stage {
    struct mct_stage s;
    bool used, moving;
    struct mct_request r;
};

struct fix_side {
    struct mct_uring *uring;
    struct mct *t;
    uint8_t *memory; /* FIX_SIZE */
    /* what the engine was told */
    unsigned done, lost, killed, left;
    uint64_t lost_ids[FIX_EVENTS], killed_ids[FIX_EVENTS], left_ids[FIX_EVENTS];
    int lost_error;
    const char *why;
    unsigned resolves;
    /* what it answers */
    uint16_t refuse;       /* every resolve() */
    unsigned refuse_after; /* ... from that resolve() on; 0: from the first */
    uint16_t notify_status;
    unsigned notifications;
    char name[300], message[5000];
    uint32_t message_length;
    uint64_t source, bytes;
    /* its memory is a GPU's: it is reached by moves alone, which wait for fix_moves() unless `prompt` */
    bool gpu, prompt;
    unsigned room; /* stages */
    uint16_t refuse_move;
    struct fix_stage stages[FIX_STAGES];
    unsigned stages_used, stages_most, moves, moving;
    uint64_t starved; /* times that there was no stage */
    /* called inside done() */
    void (*on_done)(struct fix_side *side, struct mct_slice *s);
    void *on_done_context;
};

struct fix {
    struct fix_side a, b;
    struct mct_link *link;
    int visitor; /* its address is the visitor */
};

static void fix_log(int level, const char *format, ...)
{
    (void)level;
    (void)format;
}

static void fix_done(void *context, struct mct_slice *s)
{
    struct fix_side *side = context;

    side->done++;
    s->owner = (void *)((uintptr_t)s->owner + 1); /* exactly once */
    if (side->on_done != NULL)
        side->on_done(side, s);
}

static void fix_lost(void *context, struct mct_link *link, uint64_t conn, int error)
{
    struct fix_side *side = context;

    (void)link;
    side->lost_ids[side->lost++ % FIX_EVENTS] = conn;
    side->lost_error = error;
}

static void fix_killed(void *context, struct mct_link *link, uint64_t conn)
{
    struct fix_side *side = context;

    (void)link;
    side->killed_ids[side->killed++ % FIX_EVENTS] = conn;
}

static void fix_left(void *context, void *visitor, uint64_t conn, int error, const char *why)
{
    struct fix_side *side = context;

    (void)visitor;
    (void)error;
    side->left_ids[side->left++ % FIX_EVENTS] = conn;
    side->why = why;
}

static uint16_t fix_resolve(void *context, void *visitor, const struct mct_request *r,
                            void **pointer)
{
    struct fix_side *side = context;

    (void)visitor;
    side->resolves++;
    if (side->refuse != MCS_OK && side->resolves > side->refuse_after)
        return side->refuse;
    if (r->export_index != FIX_EXPORT)
        return MCS_INVALID_HANDLE;
    if (r->incarnation != FIX_INCARNATION)
        return MCS_STALE;
    if (r->address < FIX_SEGMENT || r->length > FIX_SIZE ||
        r->address - FIX_SEGMENT > FIX_SIZE - r->length)
        return MCS_BAD_RANGE;
    *pointer = side->gpu ? NULL : side->memory + (r->address - FIX_SEGMENT);
    return MCS_OK;
}

static struct mct_stage *fix_stage(void *context, uint64_t length)
{
    struct fix_side *side = context;
    struct fix_stage *s = side->stages;

    cr_assert(length > 0 && length <= MCT_STAGE_MAX);
    if (side->stages_used == side->room) {
        side->starved++;
        return NULL;
    }
    while (s->used)
        s++;
    *s = (struct fix_stage){.used = true, .s = {.memory = malloc(length), .length = length}};
    side->stages_used++;
    if (side->stages_used > side->stages_most)
        side->stages_most = side->stages_used;
    return &s->s;
}

static void fix_unstage(void *context, struct mct_stage *s)
{
    struct fix_side *side = context;
    struct fix_stage *own = (struct fix_stage *)(void *)s;

    cr_assert(own->used && !own->moving, "a stage is given back once, and not while it is moved");
    free(s->memory);
    own->used = false;
    side->stages_used--;
}

static uint16_t fix_move(void *context, void *visitor, const struct mct_request *r,
                         struct mct_stage *s)
{
    struct fix_side *side = context;
    struct fix_stage *own = (struct fix_stage *)(void *)s;
    void *none;
    uint16_t status = fix_resolve(context, visitor, r, &none);

    cr_assert(own->used && !own->moving);
    cr_assert_eq(s->length, r->length);
    if (status == MCS_OK)
        status = side->refuse_move;
    if (status != MCS_OK)
        return status;
    own->moving = true;
    own->r = *r;
    side->moving++;
    return MCS_OK;
}

/* The move of a stage that is under way, the newest one first, ends. */
static void fix_move_one(struct fix_side *side, uint16_t status)
{
    struct fix_stage *s = NULL;

    for (unsigned i = 0; i < FIX_STAGES; i++)
        if (side->stages[i].moving)
            s = &side->stages[i];
    cr_assert_not_null(s);
    if (status == MCS_OK && s->r.op == MCT_WRITE)
        memcpy(side->memory + (s->r.address - FIX_SEGMENT), s->s.memory, s->r.length);
    else if (status == MCS_OK)
        memcpy(s->s.memory, side->memory + (s->r.address - FIX_SEGMENT), s->r.length);
    s->moving = false;
    side->moving--;
    side->moves++;
    s->s.done(&s->s, status);
}

static uint16_t fix_notify(void *context, void *visitor, const struct mct_request *r,
                           uint64_t source, uint64_t bytes, const void *name, uint32_t name_length,
                           const void *message, uint32_t message_length)
{
    struct fix_side *side = context;

    (void)visitor;
    (void)r;
    if (side->notify_status != MCS_OK)
        return side->notify_status;
    side->notifications++;
    memcpy(side->name, name, name_length);
    side->name[name_length] = '\0';
    memcpy(side->message, message, message_length);
    side->message_length = message_length;
    side->source = source;
    side->bytes = bytes;
    return MCS_OK;
}

struct fix_options {
    bool checksum;
    uint64_t zero_copy_min; /* 0: never */
    unsigned max_requests;
};

static void fix_side_init(struct fix_side *side, const struct fix_options *o)
{
    char error[256] = "";
    struct mct_env env = {.log = fix_log,
                          .host = {.context = side,
                                   .done = fix_done,
                                   .lost = fix_lost,
                                   .killed = fix_killed,
                                   .left = fix_left,
                                   .resolve = fix_resolve,
                                   .notify = fix_notify,
                                   .stage = fix_stage,
                                   .unstage = fix_unstage,
                                   .move = fix_move},
                          .tick_hz = 1000000000,
                          .checksum = o->checksum,
                          .zero_copy_min = o->zero_copy_min == 0 ? UINT64_MAX : o->zero_copy_min,
                          .max_requests = o->max_requests};

    memset(side, 0, sizeof(*side));
    cr_assert_eq(mct_uring_create(256, &side->uring, error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(mct_uring_enable(side->uring), 0);
    env.uring = side->uring;
    cr_assert_eq(mct_tcp_ops.init(&env, &side->t), 0);
    side->memory = mmap(NULL, FIX_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(side->memory != MAP_FAILED);
    side->room = FIX_STAGES;
}

static void fix_init_with(struct fix *f, const struct fix_options *o)
{
    memset(f, 0, sizeof(*f));
    fix_side_init(&f->a, o);
    fix_side_init(&f->b, o);
    cr_assert_eq(mct_tcp_ops.connect(f->a.t, f, &f->link), 0);
}

static void fix_init(struct fix *f)
{
    fix_init_with(f, &(struct fix_options){0});
}

static void fix_fini(struct fix *f)
{
    mct_tcp_ops.fini(f->a.t);
    mct_tcp_ops.fini(f->b.t);
    cr_expect_eq(mct_uring_inflight(f->a.uring), 0u, "all I/O is over");
    cr_expect_eq(mct_uring_inflight(f->b.uring), 0u, "all I/O is over");
    mct_uring_destroy(f->a.uring);
    mct_uring_destroy(f->b.uring);
    munmap(f->a.memory, FIX_SIZE);
    munmap(f->b.memory, FIX_SIZE);
}

/* A connected pair over loopback; size: of the socket buffers, 0: the system's. */
static void fix_tcp_pair(int fds[2], int size)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(at);
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert(l >= 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int i = 0; i < 2 && size > 0; i++) {
        cr_assert_eq(setsockopt(i == 0 ? l : fds[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)),
                     0);
        cr_assert_eq(setsockopt(i == 0 ? l : fds[0], SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)),
                     0);
    }
    cr_assert_eq(bind(l, (struct sockaddr *)&at, sizeof(at)), 0);
    cr_assert_eq(listen(l, 1), 0);
    cr_assert_eq(getsockname(l, (struct sockaddr *)&at, &length), 0);
    cr_assert_eq(connect(fds[0], (struct sockaddr *)&at, sizeof(at)), 0);
    fds[1] = accept4(l, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    cr_assert(fds[1] >= 0);
    close(l);
}

static void fix_adopt(struct fix *f, int fd, uint64_t id)
{
    struct mct_conn conn = {.fd = fd, .id = id, .features = MCT_TCP_FEATURES};

    cr_assert_eq(mct_tcp_ops.adopt(f->link, &conn), 0);
}

static void fix_serve(struct fix *f, int fd, uint64_t id)
{
    struct mct_conn conn = {.fd = fd, .id = id, .features = MCT_TCP_FEATURES};

    cr_assert_eq(mct_tcp_ops.serve(f->b.t, &conn, &f->visitor), 0);
}

/* One connection more between them. */
static void fix_join(struct fix *f, uint64_t id)
{
    int fds[2];

    fix_tcp_pair(fds, 0);
    fix_adopt(f, fds[0], id);
    fix_serve(f, fds[1], id);
}

static void fix_turn(struct fix *f)
{
    (void)mct_tcp_ops.turn(f->a.t);
    (void)mct_tcp_ops.turn(f->b.t);
    while (f->b.prompt && f->b.moving != 0)
        fix_move_one(&f->b, MCS_OK);
}

/* Turns until the condition holds; a minute is never needed and ends a test that hangs. */
#define fix_until(f, condition)                                                                    \
    do {                                                                                           \
        struct timespec start_, now_;                                                              \
        clock_gettime(CLOCK_MONOTONIC, &start_);                                                   \
        while (!(condition)) {                                                                     \
            fix_turn(f);                                                                           \
            clock_gettime(CLOCK_MONOTONIC, &now_);                                                 \
            cr_assert(now_.tv_sec - start_.tv_sec < 60, "never came true: %s", #condition);        \
        }                                                                                          \
    } while (0)

static struct mct_slice fix_slice(const struct fix *f, enum mct_op op, uint64_t offset,
                                  uint64_t length)
{
    return (struct mct_slice){.op = op,
                              .length = length,
                              .local = f->a.memory + offset,
                              .remote_address = FIX_SEGMENT + offset,
                              .remote_incarnation = FIX_INCARNATION,
                              .remote_export = FIX_EXPORT,
                              .status = UINT16_MAX};
}

static unsigned fix_post(struct fix *f, struct mct_slice *s)
{
    return mct_tcp_ops.post(f->link, &s, 1);
}

static bool fix_back(const struct mct_slice *s)
{
    return s->owner != NULL;
}

static void fix_run(struct fix *f, struct mct_slice *s)
{
    fix_until(f, fix_post(f, s) == 1);
    fix_until(f, fix_back(s));
    cr_assert_eq((uintptr_t)s->owner, 1u, "back %zu times", (size_t)(uintptr_t)s->owner);
}

static void fix_fill(uint8_t *memory, uint64_t size, unsigned seed)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

    for (uint64_t i = 0; i + 8 <= size; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(memory + i, &x, 8);
    }
}

#define fix_stat(side, field) (mct_tcp_ops.stats((side)->t)->field)

#endif
