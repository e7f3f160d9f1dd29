/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile client's requests about objects: descriptors and argument blocks of any content, changed between the turns of a
 * real engine with a real store behind it; holds that are its own, guessed, given back twice. Whatever comes:
 *
 *   - nothing is read or written outside of what the client may reach: its memory lies between pages without access, and
 *     another tenant's object is made of bytes (SECRET) that must turn up nowhere in it;
 *   - another tenant's object stays as it is;
 *   - when its queue and its holds are gone, nothing is pinned, held in place or half written, and everything can be removed.
 */
#include <sys/mman.h>

#include "daemon/hold.h"
#include "daemon/log.h"
#include "daemon/object.h"
#include "daemon/session.h"
#include "daemon/store.h"
#include "input.h"

#define PAGE 4096u
#define EXTENT (4u * PAGE)
#define ARGS 8192u
#define SECRET 0x80u
#define HANDLE 0x80001001u
#define STORE_EXTENTS 8u
#define STORE_EXTENT (64u << 10)
#define PROGRESS 200000u
#define AREAS 2u
#define NOTED 16u

struct world {
    struct mcd_engine *engine;
    struct mcd_store st;
    struct mcd_session *session;
    struct mcd_extent local, extents[STORE_EXTENTS];
    uint8_t store_memory[STORE_EXTENTS][STORE_EXTENT] __attribute__((aligned(64)));
    unsigned nextents, wanted;
    uint64_t want_tenant[32];
    bool want_open[32];
    struct mcd_queue queue;
    struct mcs_queue client;
    uint32_t generation;
    struct mcs_object_args head; /* what was written last, */
    uint32_t block;              /* and where */
    uint64_t noted[NOTED];       /* holds */
    unsigned nnoted;
};

static struct world w;

static void *guarded(unsigned i, uint64_t size)
{
    static uint8_t *areas[AREAS];

    if (areas[i] == NULL) {
        uint8_t *p = mmap(NULL, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        fz_must(p != MAP_FAILED, "no memory");
        fz_must(mprotect(p + PAGE, size, PROT_READ | PROT_WRITE) == 0, "mprotect");
        areas[i] = p + PAGE;
    }
    memset(areas[i], 0, size);
    return areas[i];
}

/* ---- the store's owner --------------------------------------------------------------------- */

static void on_want(void *context, uint64_t tenant, bool open, uint64_t size)
{
    (void)context;
    (void)size;
    if (w.wanted == 32)
        return;
    w.want_tenant[w.wanted] = tenant;
    w.want_open[w.wanted++] = open;
}

static void on_idle(void *context, uint32_t extent)
{
    (void)context;
    (void)extent;
}

static void on_ready(void *context)
{
    (void)context;
    if (w.engine != NULL)
        mcd_objects_ready(w.engine);
}

static void on_event(void *context, const struct mco_event *e)
{
    (void)context;
    (void)e;
}

static void no_log(int level, const char *format, ...)
{
    (void)level;
    (void)format;
}

static void serve(void)
{
    while (w.wanted != 0) {
        unsigned n = w.nextents;
        struct mco_extent x = {.open = w.want_open[--w.wanted],
                               .tenant = w.want_tenant[w.wanted],
                               .size = STORE_EXTENT,
                               .page_size = PAGE,
                               .address = (uint64_t)(n + 1) << 32,
                               .ino = n + 1,
                               .node = -1,
                               .map = n < STORE_EXTENTS ? w.store_memory[n] : NULL,
                               .owner = &w};
        uint32_t id;

        if (n < STORE_EXTENTS && mco_extent_add(w.st.objects, &x, &id) == 0)
            w.nextents++;
        else
            mco_extent_failed(w.st.objects, x.tenant, x.open);
    }
}

/* Another tenant's object, of bytes that nobody else has. */
static void put_secret(void)
{
    struct mco_put p = {.key = mco_key(2, "secret", 6), .size = 1000, .flags = MCS_OBJECT_HARD_PIN};
    struct mco_view v;

    for (unsigned i = 0; mco_begin(w.st.objects, &p, &v) != MCS_OK; i++) {
        fz_must(i < 10, "no space for the first object");
        serve();
    }
    memset(v.data, SECRET, 1000);
    fz_must(mco_seal(w.st.objects, v.object, 0, false, 1) == MCS_OK, "seal");
}

static void check_secret(void)
{
    struct mco_key key = mco_key(2, "secret", 6);
    struct mco_view v;

    fz_must(mco_pin(w.st.objects, &key, NULL, 0, &v) == MCS_OK, "another tenant's object is gone");
    fz_must(v.size == 1000, "it has another size");
    for (unsigned i = 0; i < 1000; i++)
        fz_must(v.data[i] == SECRET, "byte %u of it is %#x", i, v.data[i]);
    mco_unpin(w.st.objects, v.object);
    for (unsigned i = 0; i < EXTENT; i++)
        fz_must(w.local.map[i] < SECRET, "byte %u came from another tenant", i);
}

/* ---- the client -------------------------------------------------------------------------------- */

static void command(enum mcd_command_kind kind)
{
    struct mcd_command c = {.kind = kind, .queue = &w.queue};

    mcd_engine_command(w.engine, &c);
    for (unsigned turns = 0; mcs_load_acquire(&c.done) == 0;
         turns++) { /* partner: run_commands() */
        fz_must(turns < PROGRESS, "a command does not end");
        mcd_engine_turn(w.engine);
    }
}

static void create(uint8_t how)
{
    struct mcd_engine_options e = {.tick_hz = 1000000000,
                                   .tick_shift = 3,
                                   .spin_us = 20,
                                   .slice = 4096u << how % 4,
                                   .stream_min = 2048,
                                   .deadline_us = 30000000,
                                   .control_fd = -1,
                                   .store = &w.st};
    struct mco_options o = {.size = STORE_EXTENTS * STORE_EXTENT,
                            .extent_size = STORE_EXTENT,
                            .objects = 512,
                            .high = 95,
                            .low = 80,
                            .policy = "lru",
                            .lease_ns = 1000000,
                            .table_fd = -1,
                            .want = on_want,
                            .idle = on_idle,
                            .ready = on_ready,
                            .event = on_event,
                            .log = no_log};
    struct mcs_queue_layout l;
    char error[256];
    void *memory;

    memset(&w, 0, offsetof(struct world, store_memory));
    w.nextents = w.wanted = w.nnoted = 0;
    w.generation = w.block = 0;
    memset(&w.head, 0, sizeof(w.head));
    memset(w.noted, 0, sizeof(w.noted));
    memset(&w.queue, 0, sizeof(w.queue));
    fz_must(mco_create(&o, &w.st.objects, error, sizeof(error)) == 0, "%s", error);
    mco_recover(w.st.objects, &(struct mco_recovered){0});
    w.st.checksum = (how & 0x40) == 0;
    w.st.verify = (how & 0x80) != 0 ? MCD_VERIFY_ALWAYS : MCD_VERIFY_REMOTE;
    w.st.config.store_lease_ms = 1;
    fz_must(mcd_engine_create(&e, &w.engine) == 0, "engine");
    put_secret();
    w.session = calloc(1, sizeof(*w.session));
    fz_must(w.session != NULL, "no memory");
    w.session->tenant = 1;
    w.session->id = 66;
    fz_must(mcd_holds_create(20, &w.session->holds) == 0, "no memory");
    w.local.map = guarded(0, EXTENT);
    w.local.size = EXTENT;
    w.local.handle = HANDLE;
    memset(w.local.map, 'x', EXTENT);
    w.session->extents[MCD_HANDLE_INDEX(HANDLE)] = &w.local;
    fz_must(mcs_queue_layout(16, 32, 8, ARGS, &l) == 0, "layout");
    memory = guarded(1, (l.total_size + PAGE - 1) / PAGE * PAGE);
    w.queue.session = w.session;
    w.queue.engine = w.engine;
    fz_must(mcs_queue_create(&w.queue.shm, &w.queue.consumer, memory, &l, 1, 1, 0) == 0, "queue");
    fz_must(mcs_queue_attach(&w.client, memory, l.total_size) == 0, "attach");
    fz_must(mcd_queue_init(&w.queue) == 0, "no memory");
    command(MCD_COMMAND_ADD);
}

static bool drop(void *context, const struct mco_listed *o)
{
    (void)context;
    fz_must(o->pins == 0 && o->in_place == 0 && !o->writing, "something is left of it");
    return true;
}

static void destroy(void)
{
    struct mco_stats s;
    uint64_t cursor = 0;

    command(MCD_COMMAND_REMOVE);
    fz_must(w.queue.parked == 0 && w.queue.waits == 0 && w.queue.age_head == MCD_NO_TASK,
            "a task has stayed");
    fz_must(w.engine->wheel->set == 0, "a timer of nobody's");
    mcd_holds_destroy(w.session->holds, w.st.objects);
    check_secret();
    mco_get_stats(w.st.objects, &s);
    fz_must(s.pinned == 0 && s.in_place == 0 && s.writing == 0,
            "%u pinned, %u in place, %u written", (unsigned)s.pinned, (unsigned)s.in_place,
            (unsigned)s.writing);
    while (cursor != UINT64_MAX)
        mco_walk(w.st.objects, 1, &cursor, drop, NULL);
    mcd_queue_fini(&w.queue);
    mcd_engine_destroy(w.engine);
    w.engine = NULL;
    mco_destroy(w.st.objects);
    free(w.session);
}

static void turns(unsigned n)
{
    while (n-- != 0) {
        serve();
        mcd_engine_turn(w.engine);
    }
}

static uint64_t some_hold(struct fz *z)
{
    unsigned n = w.nnoted < NOTED ? w.nnoted : NOTED;

    return n == 0 ? 0 : w.noted[fz_u8(z) % n];
}

/* A number that was good once, or what the input says. */
static uint32_t perhaps(struct fz *z, uint32_t good)
{
    uint8_t how = fz_u8(z);

    return how < 0xe0 ? good : how < 0xf0 ? good + (how & 15) - 8 : (uint32_t)fz_number(z);
}

static uint64_t perhaps64(struct fz *z, uint64_t good)
{
    return fz_u8(z) < 0xf0 ? good : fz_number(z);
}

/* A block that is good but for what the input spoils. */
static uint32_t write_block(struct fz *z, uint8_t op)
{
    uint32_t count = 1 + fz_u8(z) % 12, at = fz_u8(z) % 32 * MCS_LINE;
    uint32_t npieces = op == MCS_OP_PUT || op == MCS_OP_GET ? count + fz_u8(z) % 4 : 0;
    struct mcs_object_args a = {.count = count, .npieces = npieces};
    uint8_t *block = w.client.args + at, how = fz_u8(z);
    static const uint16_t flags[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 24, 384};

    a.flags = (how & 0x80) != 0 ? 0 : flags[how % 12];
    a.keys = 256;
    a.pieces = a.keys + count * 32;
    a.results = a.pieces + npieces * 32;
    a.total = a.results + (uint64_t)count * sizeof(struct mcs_object_result);
    a.total = perhaps64(z, a.total);
    a.keys = perhaps(z, a.keys);
    a.pieces = perhaps(z, a.pieces);
    a.results = perhaps(z, a.results);
    a.npieces = perhaps(z, a.npieces);
    a.count = perhaps(z, a.count);
    a.lease_ms = perhaps(z, 0);
    if ((how & 0x60) == 0x60) {
        a.host = perhaps(z, 0);
        a.host_length = perhaps(z, 0);
        a.soft_pin_ms = perhaps(z, 1);
        a.replicas = perhaps(z, 1);
    }
    memcpy(block, &a, sizeof(a));
    for (unsigned i = 0; i < 128; i++)
        block[128 + i] = (uint8_t)('a' + i % 16);
    for (uint32_t i = 0; i < count; i++) {
        struct mcs_object_key k = {.text = 128 + fz_u8(z) % 16, .length = 1 + fz_u8(z) % 3};

        k.text = perhaps(z, k.text);
        k.length = perhaps(z, k.length);
        k.first = perhaps(z, i < npieces ? i : 0);
        k.pieces = perhaps(z, npieces != 0);
        k.size = perhaps64(z, op == MCS_OP_SEAL ? some_hold(z) : fz_u8(z) * 16u);
        if ((how & 0x10) != 0) {
            k.group = perhaps(z, 128);
            k.group_length = perhaps(z, 4);
        }
        memcpy(block + 256 + i * 32, &k, sizeof(k));
    }
    for (uint32_t i = 0; i < npieces; i++) {
        struct mcs_object_piece p = {.extent = perhaps(z, HANDLE)};

        p.local = perhaps64(z, fz_u16(z) % EXTENT);
        p.length = perhaps64(z, 1 + fz_u8(z) * 8u);
        p.offset = perhaps64(z, fz_u8(z) % 4 == 0 ? 8 : 0);
        memcpy(block + 256 + count * 32 + i * 32, &p, sizeof(p));
    }
    w.head = a;
    w.block = at;
    return at / MCS_LINE;
}

/* Holds that the last block's results name. */
static void note_holds(void)
{
    struct mcs_object_result r;

    for (uint32_t i = 0; i < NOTED; i++) {
        uint64_t from = (uint64_t)w.block + w.head.results + i * sizeof(r);

        if (from + sizeof(r) > ARGS)
            break;
        memcpy(&r, w.client.args + from, sizeof(r));
        if (r.hold != 0)
            w.noted[w.nnoted++ % NOTED] = r.hold;
    }
}

static void push_request(struct fz *z, uint8_t op)
{
    struct mcs_desc d = {.op = op,
                         .priority = MCS_CLASS_NORMAL,
                         .slot = fz_u8(z) % 32,
                         .batch_generation = 1,
                         .generation = ++w.generation,
                         .submitted = (uint32_t)(mcs_ticks() >> 3)};
    uint8_t how = fz_u8(z);

    if (mcd_task_active(&w.queue, d.slot) && how < 0xfe)
        return; /* that would be its end */
    note_holds();
    d.args = write_block(z, op);
    if (how >= 0xf0)
        d.args = (uint32_t)fz_number(z);
    if ((how & 0xf0) == 0xe0)
        d.flags = fz_u8(z);
    if ((how & 0xf0) == 0xd0)
        d.priority = fz_u8(z) % 4;
    if ((how & 0xf0) == 0xc0)
        d.length = fz_number(z);
    mcs_ring_push(w.client.ring, &d, 1);
}

static void push_release(struct fz *z)
{
    struct mcs_release release = {.op = MCS_OP_RELEASE};
    struct mcs_desc d;

    note_holds();
    for (unsigned i = 0; i < MCS_RELEASE_MAX; i++)
        release.holds[i] = perhaps64(z, some_hold(z));
    memcpy(&d, &release, sizeof(d));
    mcs_ring_push(w.client.ring, &d, 1);
}

static void push_cancel(struct fz *z)
{
    struct mcs_desc d = {
        .op = MCS_OP_CANCEL, .slot = fz_u8(z) % 34, .generation = w.generation - fz_u8(z) % 4};

    mcs_ring_push(w.client.ring, &d, 1);
}

static void act(struct fz *z)
{
    uint8_t what = fz_u8(z);
    uint32_t at;

    switch (what % 16) {
    case 8:
        push_release(z);
        break;
    case 9:
        push_cancel(z);
        break;
    case 10:
        at = fz_u16(z) % ARGS;
        for (unsigned n = 1 + what / 16u; n-- != 0 && at < ARGS; at++)
            w.client.args[at] = fz_u8(z);
        break;
    case 11:
    case 12:
    case 13:
        turns(1 + what / 16u);
        break;
    case 14:
        fz_must(w.queue.ndirty == 0, "batches are unpublished between turns");
        check_secret();
        break;
    case 15:
        mco_upkeep(w.st.objects, UINT64_C(1) << 62);
#ifdef MCS_TICKS_SIMULATED
        mcs_simulated_ticks += UINT64_C(1) << fz_u8(z) % 34;
#endif
        break;
    default:
        push_request(z, (uint8_t)(MCS_OP_PUT + what % 8));
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fz z = {.at = data, .end = data + size};

    mcd_log_set_level(-1);
    create(fz_u8(&z));
    for (unsigned acts = 0; !fz_empty(&z) && acts < 200; acts++)
        act(&z);
    turns(4);
    destroy();
    return 0;
}
