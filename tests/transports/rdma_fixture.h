/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two agents' halves in one process, `a` (initiator) and `b` (target), each with the RDMA devices of its own (of
 * tests/fake-verbs, all on one wire), one engine's instance, and a range of memory. Engines never enter the kernel: the
 * fake aborts the test when one does.
 */
#ifndef RDMA_FIXTURE_H
#define RDMA_FIXTURE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/fake-verbs/fake.h"

#include "shm/status.h"
#include "transports/rdma/engine.h"

#define FIX_SIZE (UINT64_C(16) << 20)
#define FIX_PUBLISHED UINT64_C(0x7000000000) /* where b's memory begins, for a */
#define FIX_PAIRS 16
#define FIX_NICS 4u
#define FIX_WAIT_NS UINT64_C(20000000000)

struct fix_side {
    struct mct_rdma *r;
    struct mct *t;
    struct mct_rdma_memory *memory_keys;
    uint8_t *memory;
    uint8_t *
        place; /* what slices name: memory, or of a GPU, an address that this process cannot touch */
    int dmabuf;
    struct fake_device *devices[FIX_NICS];
    int epoll_fd;
    /* what the engine was told */
    unsigned done, lost, left;
    uint64_t lost_ids[64], left_ids[64];
    int lost_error, left_error;
    const char *why;
    unsigned notifications;
    char name[300], message[8192];
    uint32_t name_length, message_length;
    uint64_t source, bytes, address, incarnation;
    uint16_t notify_status; /* what it answers */
    void (*on_done)(struct fix_side *side, struct mct_slice *s);
    void *on_done_context;
};

struct fix {
    struct fix_side a, b;
    struct mct_link *link;
    int visitor; /* its address is the visitor */
    unsigned npairs;
    uint64_t ids[64]; /* of the connections */
    struct mct_rdma_pair *pa[64], *pb[64];
    struct mct_rdma_options o;
    uint64_t slower; /* the engines' clock, so many times */
    uint64_t size;   /* of each memory */
    bool gpu;        /* which are dmabufs */
    struct mct_rdma_keys keys;
    uint64_t key_nics[FIX_NICS];
    uint32_t rkeys[FIX_NICS * 64];
};

static void fix_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void fix_log(int level, const char *format, ...)
{
    va_list ap;

    if (level > 1 && getenv("FIX_LOG") == NULL)
        return;
    va_start(ap, format);
    fputs("# ", stderr);
    vfprintf(stderr, format, ap);
    fputc('\n', stderr);
    va_end(ap);
}

static inline uint64_t fix_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Rate of the ticks, measured once. */
static inline uint64_t fix_tick_hz(void)
{
    static uint64_t hz;

    if (hz != 0)
        return hz;
    /* who stands still between two looks at the clocks counts too few: the most of some tries */
    for (unsigned i = 0; i < 4; i++) {
        uint64_t ns = fix_now(), ticks = mcs_ticks(), now;

        while (fix_now() - ns < 5000000)
            ;
        ticks = mcs_ticks() - ticks;
        now = (uint64_t)((double)ticks * 1e9 / (double)(fix_now() - ns));
        hz = now > hz ? now : hz;
    }
    return hz;
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
    side->lost_error = error;
    side->lost_ids[side->lost++ % 64] = conn;
}

static void fix_left(void *context, void *visitor, uint64_t conn, int error, const char *why)
{
    struct fix_side *side = context;

    (void)visitor;
    side->left_error = error;
    side->why = why;
    side->left_ids[side->left++ % 64] = conn;
}

static uint16_t fix_notify(void *context, void *visitor, const struct mct_request *r,
                           uint64_t source, uint64_t bytes, const void *name, uint32_t name_length,
                           const void *message, uint32_t message_length)
{
    struct fix_side *side = context;

    (void)visitor;
    side->notifications++;
    side->source = source;
    side->bytes = bytes;
    side->address = r->address;
    side->incarnation = r->incarnation;
    side->name_length = name_length;
    side->message_length = message_length;
    cr_assert(name_length < sizeof(side->name) && message_length <= sizeof(side->message));
    memcpy(side->name, name, name_length);
    memcpy(side->message, message, message_length);
    return side->notify_status;
}

/* ---- turns ----------------------------------------------------------------------- */

static inline bool fix_engine_turn(struct fix_side *side)
{
    bool moved;

    fake_engine_thread(true);
    moved = mct_rdma_ops.turn(side->t);
    fake_engine_thread(false);
    return moved;
}

static inline void fix_turn(struct fix *f)
{
    if (f->a.r != NULL)
        mct_rdma_run(f->a.r);
    if (f->b.r != NULL)
        mct_rdma_run(f->b.r);
    if (f->a.t != NULL)
        (void)fix_engine_turn(&f->a);
    if (f->b.t != NULL)
        (void)fix_engine_turn(&f->b);
    sched_yield();
}

#define fix_until(f, condition)                                                                    \
    do {                                                                                           \
        uint64_t end_ = fix_now() + FIX_WAIT_NS;                                                   \
                                                                                                   \
        while (!(condition)) {                                                                     \
            cr_assert_lt(fix_now(), end_, "line %d: %s", __LINE__, #condition);                    \
            fix_turn(f);                                                                           \
        }                                                                                          \
    } while (0)

struct fix_answer {
    unsigned n;
    int res;
    char text[512];
};

static void fix_answered(void *context, int res, const char *text)
{
    struct fix_answer *a = context;

    a->n++;
    a->res = res;
    snprintf(a->text, sizeof(a->text), "%s", text == NULL ? "" : text);
}

/* ---- set-up ---------------------------------------------------------------------- */

static inline struct mct_rdma_options fix_options(void)
{
    return (struct mct_rdma_options){
        .devices = "auto",
        .deny = "",
        .gid_index = -1,
        .chunk = UINT64_C(1) << 30,
        .depth = 64,
        .cq_depth = 1024,
        .max_inline = 128,
        .max_reads = 4,
        .timeout = 14,
        .retries = 7,
        .log = fix_log,
    };
}

static void fix_changed(void *context, unsigned nic)
{
    (void)context;
    (void)nic;
}

static void fix_keys_changed(void *context)
{
    (void)context;
}

static inline void fix_side_init(struct fix *f, struct fix_side *side, const char *devices,
                                 uint64_t published)
{
    const struct mct_rdma_host host = {
        .context = side, .changed = fix_changed, .keys_changed = fix_keys_changed};
    struct mct_rdma_options o = f->o;
    struct mct_rdma_range range = {
        .length = f->size,
        .published = published,
        .access = published == 0 ? 0 : MCT_RDMA_REMOTE_READ | MCT_RDMA_REMOTE_WRITE,
        .dmabuf_fd = -1};
    struct mct_env env = {.log = fix_log,
                          .host = {.context = side,
                                   .done = fix_done,
                                   .lost = fix_lost,
                                   .left = fix_left,
                                   .notify = fix_notify},
                          .tick_hz = fix_tick_hz() * f->slower};
    struct fix_answer done = {0};
    char error[512] = "";

    o.devices = devices;
    cr_assert_eq(mct_rdma_create(&o, &host, &side->r, error, sizeof(error)), 0, "%s", error);
    side->dmabuf = -1;
    if (f->gpu) {
        side->dmabuf = memfd_create("dmabuf", MFD_CLOEXEC);
        cr_assert_geq(side->dmabuf, 0);
        cr_assert_eq(ftruncate(side->dmabuf, (off_t)f->size), 0);
    }
    side->memory = mmap(NULL, f->size, PROT_READ | PROT_WRITE,
                        f->gpu ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, side->dmabuf, 0);
    cr_assert_neq(side->memory, MAP_FAILED);
    side->place = side->memory;
    if (f->gpu)
        side->place = mmap(NULL, f->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(side->place, MAP_FAILED);
    range.dmabuf_fd = side->dmabuf;
    range.address = f->gpu ? NULL : side->memory;
    if (published == 0)
        range.published = (uintptr_t)side->place;
    cr_assert_eq(mct_rdma_memory_create(side->r, &range, fix_answered, &done, &side->memory_keys),
                 0);
    fix_until(f, done.n == 1);
    cr_assert_eq(done.res, 0, "%s", done.text);
    side->epoll_fd = epoll_create1(0);
    env.epoll_fd = side->epoll_fd;
    env.rdma = side->r;
    cr_assert_eq(mct_rdma_ops.init(&env, &side->t), 0);
}

static inline void fix_keys(struct fix *f)
{
    uint64_t chunk = mct_rdma_memory_chunk(f->b.memory_keys);
    unsigned nchunks = (unsigned)((f->size + chunk - 1) / chunk);

    cr_assert(nchunks <= 64);
    f->keys = (struct mct_rdma_keys){.address = FIX_PUBLISHED,
                                     .length = f->size,
                                     .chunk = chunk,
                                     .nchunks = nchunks,
                                     .nics = f->key_nics,
                                     .rkeys = f->rkeys};
    for (unsigned n = 0; n < mct_rdma_nics(f->b.r); n++) {
        const uint32_t *keys =
            mct_rdma_memory_keys(f->b.memory_keys, n, &f->key_nics[f->keys.nnics]);

        if (keys == NULL)
            continue;
        memcpy(f->rkeys + (size_t)f->keys.nnics * nchunks, keys, nchunks * sizeof(*keys));
        f->keys.nnics++;
    }
}

/* Devices: f->a.devices, f->b.devices, to be changed between the two. */
static inline void fix_devices(struct fix *f, unsigned nics)
{
    memset(f, 0, sizeof(*f));
    f->o = fix_options();
    f->size = FIX_SIZE;
    f->slower = 1;
    fake_reset();
    for (unsigned i = 0; i < nics; i++) {
        char name[16];

        snprintf(name, sizeof(name), "fa%u", i);
        f->a.devices[i] = fake_add(name);
        snprintf(name, sizeof(name), "fb%u", i);
        f->b.devices[i] = fake_add(name);
    }
}

static inline void fix_open(struct fix *f)
{
    fix_side_init(f, &f->a, "fa*", 0);
    fix_side_init(f, &f->b, "fb*", FIX_PUBLISHED);
    fix_keys(f);
    cr_assert_eq(mct_rdma_ops.connect(f->a.t, f, &f->link), 0);
    cr_assert_eq(mct_link_owner(f->link), f);
}

/* One more connection between nic n of both, not yet handed over. */
static inline unsigned fix_pair(struct fix *f, unsigned nic)
{
    static uint64_t next_id = 0x1000;
    struct fix_answer a = {0}, b = {0};
    unsigned n = f->npairs++ % 64;

    f->ids[n] = ++next_id;
    cr_assert_eq(mct_rdma_pair_create(f->a.r, nic, f->a.t, f->ids[n], fix_answered, &a, &f->pa[n]),
                 0);
    cr_assert_eq(mct_rdma_pair_create(f->b.r, nic, f->b.t, f->ids[n], fix_answered, &b, &f->pb[n]),
                 0);
    fix_until(f, a.n == 1 && b.n == 1);
    cr_assert(a.res == 0 && b.res == 0, "%s; %s", a.text, b.text);
    mct_rdma_pair_connect(f->pb[n], mct_rdma_pair_end(f->pa[n]), fix_answered, &b);
    mct_rdma_pair_connect(f->pa[n], mct_rdma_pair_end(f->pb[n]), fix_answered, &a);
    fix_until(f, a.n == 2 && b.n == 2);
    cr_assert(a.res == 0 && b.res == 0, "%s; %s", a.text, b.text);
    return n;
}

static inline void fix_join(struct fix *f, unsigned nic)
{
    unsigned n = fix_pair(f, nic);
    struct mct_conn conn = {.fd = -1, .pair = f->pb[n], .id = f->ids[n]};

    cr_assert_eq(mct_rdma_ops.serve(f->b.t, &conn, &f->visitor), 0);
    conn.pair = f->pa[n];
    cr_assert_eq(mct_rdma_ops.adopt(f->link, &conn), 0);
}

/* One nic each, so many connections. */
static inline void fix_init(struct fix *f, unsigned pairs)
{
    fix_devices(f, 1);
    fix_open(f);
    for (unsigned i = 0; i < pairs; i++)
        fix_join(f, 0);
}

static inline void fix_instance_fini(struct fix_side *side)
{
    struct mct *t = side->t;

    side->t = NULL;
    mct_rdma_ops.fini(t);
}

static inline void fix_side_fini(struct fix *f, struct fix_side *side)
{
    struct fix_answer done = {0};

    mct_rdma_memory_destroy(side->r, side->memory_keys, fix_answered, &done);
    fix_until(f, done.n == 1);
    cr_assert_eq(done.res, 0, "%s", done.text);
    close(side->epoll_fd);
    munmap(side->memory, f->size);
    if (f->gpu) {
        munmap(side->place, f->size);
        close(side->dmabuf);
    }
}

/* Ends everything, and nothing is left. */
static inline void fix_fini(struct fix *f)
{
    if (f->link != NULL)
        mct_rdma_ops.disconnect(f->link);
    f->link = NULL;
    fix_instance_fini(&f->a);
    fix_instance_fini(&f->b);
    fix_side_fini(f, &f->a);
    fix_side_fini(f, &f->b);
    mct_rdma_destroy(f->a.r);
    mct_rdma_destroy(f->b.r);
    cr_assert_eq(fake_leaks(), 0u);
}

/* ---- slices ---------------------------------------------------------------------- */

static inline struct mct_slice fix_slice(struct fix *f, enum mct_op op, uint64_t local,
                                         uint64_t remote, uint64_t length)
{
    return (struct mct_slice){.op = op,
                              .length = length,
                              .gpu = f->gpu,
                              .local = f->a.place + local,
                              .remote_address = FIX_PUBLISHED + remote,
                              .registration = f->a.memory_keys,
                              .remote_keys = &f->keys,
                              .status = UINT16_MAX};
}

static inline struct mct_slice fix_notice(char *text, uint32_t name_length, uint64_t length)
{
    return (struct mct_slice){.op = MCT_NOTIFY,
                              .length = length,
                              .local = text,
                              .name_length = name_length,
                              .source = 77,
                              .bytes = 12345,
                              .remote_address = 99,
                              .remote_incarnation = 0x1122334455667788,
                              .remote_export = 3,
                              .status = UINT16_MAX};
}

static inline unsigned fix_post(struct fix *f, struct mct_slice *s)
{
    struct mct_slice *list[1] = {s};
    unsigned before = f->a.done, n;

    fake_engine_thread(true);
    n = mct_rdma_ops.post(f->link, list, 1);
    fake_engine_thread(false);
    cr_assert_eq(f->a.done, before, "nothing comes back inside post()");
    return n;
}

/* The id of the newest connection. */
static inline uint64_t fix_newest(const struct fix *f)
{
    return f->ids[(f->npairs - 1) % 64];
}

static inline unsigned fix_backs(const struct mct_slice *s)
{
    return (unsigned)(uintptr_t)s->owner;
}

/* Posts it and waits until it is back. */
static inline void fix_run(struct fix *f, struct mct_slice *s)
{
    fix_until(f, fix_post(f, s) == 1);
    fix_until(f, fix_backs(s) == 1);
}

static inline void fix_fill(uint8_t *at, uint64_t n, uint64_t seed)
{
    for (uint64_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        at[i] = (uint8_t)(seed >> 56);
    }
}

static inline const struct mct_stats *fix_stats(const struct fix_side *side)
{
    return mct_rdma_ops.stats(side->t);
}

/* One WRITE and one READ that must go well. */
static inline void fix_check_alive(struct fix *f)
{
    struct mct_slice w = fix_slice(f, MCT_WRITE, 4096, 8192, 5000);
    struct mct_slice r = fix_slice(f, MCT_READ, 65536, 131072, 7000);

    fix_fill(f->a.memory + 4096, 5000, fix_now());
    fix_fill(f->b.memory + 131072, 7000, fix_now());
    fix_run(f, &w);
    fix_run(f, &r);
    cr_assert_eq(w.status, MCS_OK, "%u %d", w.status, w.error);
    cr_assert_eq(r.status, MCS_OK, "%u %d", r.status, r.error);
    cr_assert_arr_eq(f->a.memory + 4096, f->b.memory + 8192, 5000);
    cr_assert_arr_eq(f->a.memory + 65536, f->b.memory + 131072, 7000);
}

#endif
