/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile client's queue memory: descriptors, ring words, argument blocks, batch lines, slots and
 * doorbell words of any content, changed between the turns of a real engine; its session's inbox
 * words too. Beside it works an honest session. Whatever comes:
 *
 *   - nothing is read or written outside of what the offender may reach: its memory lies between
 *     pages without access, what it may not write is compared, and what it may not read is made of
 *     bytes (SECRET) that must not turn up where it can read;
 *   - the honest session's tasks complete with the right bytes, within so many turns;
 *   - the engine's private state stays sound, and a queue can be taken away at any time.
 *
 * Built for libFuzzer by tests/fuzz/run, with simulated time; tests/daemon/test_queue_fuzz.c runs the
 * same entry in ordinary builds, and once with the offender in a thread of its own.
 */
#include <sys/mman.h>

#include "daemon/log.h"
#include "daemon/session.h"
#include "daemon/task.h"
#include "input.h"

#define PAGE 4096u
#define EXTENT (4 * PAGE)
#define SECRET 0x80u /* this bit is set in bytes that the offender may not see */
#define OWN 0x01u    /* what its own memory is filled with at first */
#define SHOWN 0x11u  /* what others let it read */
#define INBOX MCS_INBOX_SIZE_MIN
#define TASKS 6u /* of the honest session at a time */
#define PROGRESS 20000u
#define SLICE_MIN 4096u /* what the configuration allows */
#define AREAS 7u

/* Handles as sessions have them: index, and a salt above it. */
#define HANDLE(index) (0x80001000u + (index))

struct party {
    struct mcd_session *session;
    struct mcd_segment *segment;
    struct mcd_queue queue;
    struct mcs_queue client;
    struct mcd_extent extent;
    struct mcd_open opens[3];
    uint8_t *queue_memory, *region_memory;
    uint64_t queue_size;
    bool left; /* no engine has its queue */
};

struct honest {
    uint32_t slot, generation;
    uint8_t *from, *to;
    uint64_t length;
    uint8_t value;
    bool busy;
};

struct world {
    struct mcd_engine *engine;
    struct party offender, good;
    struct mcd_extent target;   /* the good session's, published in parts */
    struct mcd_segment *hidden; /* what only the good session has open */
    struct honest tasks[TASKS];
    uint32_t generation, ended;    /* of the good session */
    uint32_t bad_generation, tail; /* of the offender */
    uint64_t skipped;              /* ns */
};

/* The target extent, page by page: READ, nothing, WRITE, both. */
static const uint32_t target_access[] = {MCS_ACCESS_READ, 0, MCS_ACCESS_WRITE,
                                         MCS_ACCESS_READ | MCS_ACCESS_WRITE};

/* ---- memory between guards --------------------------------------------------------- */

/* Area i of the world, the same for each input: size bytes, zeroed. */
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

static void make_extent(struct mcd_extent *e, unsigned area, uint64_t address, uint32_t handle)
{
    e->map = guarded(area, EXTENT);
    e->size = EXTENT;
    e->address = address;
    e->handle = handle;
}

/* ---- sessions ---------------------------------------------------------------------- */

static void make_party(struct party *p, unsigned area, struct mcd_engine *g, uint64_t incarnation)
{
    struct mcs_session_header header = {.session_incarnation = incarnation};
    struct mcs_queue_layout l;

    p->session = calloc(1, sizeof(*p->session));
    fz_must(p->session != NULL, "no memory");
    p->session->incarnation = incarnation;
    p->session->id = (uint32_t)incarnation;
    p->region_memory = guarded(area, mcs_session_region_size(INBOX));
    mcs_session_region_create(&p->session->region, p->region_memory, INBOX, &header);
    p->segment = mcd_segment_create(p->session, 0, incarnation);
    fz_must(p->segment != NULL, "no memory");
    fz_must(mcs_queue_layout(16, 32, 8, 3072, &l) == 0, "layout");
    p->queue_size = l.total_size;
    p->queue_memory = guarded(area + 1, l.total_size);
    p->queue.session = p->session;
    p->queue.engine = g;
    fz_must(mcs_queue_create(&p->queue.shm, &p->queue.consumer, p->queue_memory, &l, 1, incarnation,
                             0) == 0,
            "queue");
    fz_must(mcs_queue_attach(&p->client, p->queue_memory, l.total_size) == 0, "attach");
    fz_must(mcd_queue_init(&p->queue) == 0, "no memory");
}

static void publish(struct mcd_segment *s, struct mcd_extent *e, uint64_t offset, uint64_t length,
                    uint32_t access)
{
    struct mcd_snapshot *old;

    fz_must(mcd_segment_add(s, e, offset, length, access, &old) == 0, "buffer");
    free(old); /* no turn is under way */
}

static void open_segment(struct party *p, uint32_t index, struct mcd_segment *s)
{
    p->opens[index] = (struct mcd_open){.handle = HANDLE(index), .segment = s};
    p->session->opens[index] = &p->opens[index];
}

static void command(struct world *w, enum mcd_command_kind kind, struct party *p)
{
    struct mcd_command c = {.kind = kind, .queue = &p->queue};

    mcd_engine_command(w->engine, &c);
    for (unsigned turns = 0; mcs_load_acquire(&c.done) == 0;
         turns++) { /* partner: run_commands() */
        fz_must(turns < PROGRESS, "a command does not end");
        mcd_engine_turn(w->engine);
    }
    p->left = kind == MCD_COMMAND_REMOVE;
}

static struct mcd_engine *make_engine(void)
{
    struct mcd_engine_options o = {
        .tick_hz = 1000000000,
        .tick_shift = 3,
        .spin_us = 20,
        .slice = 4096,
        .stream_min = 2048,
        .deadline_us = 30000000,
        .control_fd = -1,
    };
    struct mcd_engine *g;

    fz_must(mcd_engine_create(&o, &g) == 0, "engine");
    return g;
}

/* Two sessions with a queue each, which no engine has yet. */
static void create(struct world *w, struct mcd_engine *g)
{
    memset(w, 0, sizeof(*w));
    w->engine = g;
    make_party(&w->offender, 0, w->engine, 66);
    make_party(&w->good, 2, w->engine, 77);
    make_extent(&w->offender.extent, 4, UINT64_C(0x200000000000), HANDLE(1));
    make_extent(&w->good.extent, 5, UINT64_C(0x200000100000), HANDLE(1));
    make_extent(&w->target, 6, UINT64_C(0x200000200000), HANDLE(2));
    memset(w->offender.extent.map, OWN, EXTENT);
    memset(w->good.extent.map, SECRET | 2, EXTENT);
    memset(w->target.map, SECRET | 3, EXTENT);
    memset(w->target.map, SHOWN, PAGE);
    memset(w->target.map + 3 * PAGE, SHOWN, PAGE);
    for (uint32_t i = 0; i < 4; i++)
        if (target_access[i] != 0)
            publish(w->good.segment, &w->target, i * PAGE, PAGE, target_access[i]);
    publish(w->offender.segment, &w->offender.extent, 0, EXTENT, MCS_ACCESS_ALL);
    w->offender.session->extents[1] = &w->offender.extent;
    w->good.session->extents[1] = &w->good.extent;
    w->good.session->extents[2] = &w->target;
    open_segment(&w->offender, 0, w->good.segment);
    open_segment(&w->offender, 1, w->offender.segment);
    w->hidden = mcd_segment_create(w->good.session, 0, 5);
    fz_must(w->hidden != NULL, "no memory");
    publish(w->hidden, &w->good.extent, 0, PAGE, MCS_ACCESS_READ);
    open_segment(&w->good, 2, w->hidden);
}

static void free_party(struct party *p)
{
    mcd_queue_fini(&p->queue);
    mcd_segment_put(p->segment);
    free(p->session);
}

static void destroy(struct world *w)
{
    mcd_segment_put(w->hidden);
    free_party(&w->offender);
    free_party(&w->good);
}

/* ---- what must hold ---------------------------------------------------------------- */

/* Lists, bits and counts of the engine's half of a queue agree. Between two turns. */
static void check_private(const struct mcd_queue *q)
{
    uint32_t listed = 0, aged = 0, active = 0, last = MCD_NO_TASK;
    bool resume = q->resume == MCD_NO_TASK;

    for (unsigned c = 0; c < MCD_LISTS; c++) {
        last = MCD_NO_TASK;
        for (uint32_t s = q->list_head[c]; s != MCD_NO_TASK; s = q->tasks[s].list_next) {
            fz_must(s < q->shm.slots && listed < q->shm.slots, "a list runs wild");
            fz_must(q->tasks[s].list == c && q->tasks[s].list_prev == last, "a list is torn");
            fz_must(mcd_task_active(q, s), "a task that has ended is in a list");
            resume = resume || (c == MCD_WAITING && q->resume == s);
            last = s;
            listed++;
        }
        fz_must(q->list_tail[c] == last, "a list has another end");
    }
    last = MCD_NO_TASK;
    for (uint32_t s = q->age_head; s != MCD_NO_TASK; s = q->tasks[s].age_next) {
        fz_must(s < q->shm.slots && aged < q->shm.slots, "the queue's list runs wild");
        fz_must(q->tasks[s].age_prev == last && q->tasks[s].desc.slot == s, "it is torn");
        fz_must(q->tasks[s].timer.link != NULL, "a task without a deadline");
        last = s;
        aged++;
    }
    fz_must(q->age_tail == last, "it has another end");
    for (uint32_t s = 0; s < q->shm.slots; s++)
        active += mcd_task_active(q, s);
    fz_must(listed == q->parked && aged == active && listed == aged,
            "%u listed, %u aged, %u active", listed, aged, active);
    fz_must(resume, "resume is no waiting task");
    fz_must(q->ndirty == 0, "batches are unpublished between turns");
    for (uint32_t b = 0; b < q->shm.batches; b++)
        fz_must(!q->batches[b].dirty, "a batch is marked and not in the list");
    fz_must(q->consumer.head - q->consumer.published < q->consumer.size, "the ring's index");
    fz_must(q->shm.depth == 16 && q->shm.slots == 32 && q->shm.batches == 8 &&
                q->shm.args_size == 3072,
            "private sizes changed");
}

static void check_engine(const struct world *w, uint32_t queues)
{
    const struct mcd_engine *g = w->engine;

    fz_must(g->nhot + g->ncold == queues, "%u hot and %u cold queues", g->nhot, g->ncold);
    fz_must(queues != 0 || g->wheel->set == 0, "a timer of nobody's");
    fz_must(g->calls == NULL, "a command is left");

    for (uint32_t i = 0; i < g->nhot; i++)
        fz_must(g->hot[i]->hot && g->hot[i]->place == i, "the hot queues");
    for (uint32_t i = 0; i < g->ncold; i++)
        fz_must(!g->cold[i]->hot && g->cold[i]->place == i, "the cold queues");
}

/* An honest task's end. */
static void reap(struct world *w)
{
    for (unsigned i = 0; i < TASKS; i++) {
        struct honest *t = &w->tasks[i];
        uint64_t word = mcs_slot_peek(&w->good.client, t->slot);

        if (!t->busy || word >> 32 != t->generation || (word & 0x7f) <= MCS_STATE_PENDING)
            continue;
        fz_must((word & 0x7f) == MCS_STATE_COMPLETED, "an honest task ended in state %u, error %u",
                (unsigned)word & 0x7f, (unsigned)(word >> 16) & 0xffff);
        fz_must(w->good.client.slot_table[t->slot].bytes == t->length, "not all of it");
        for (uint64_t k = 0; k < t->length; k++)
            fz_must(t->to[k] == t->value, "byte %u of an honest copy is %#x", (unsigned)k,
                    t->to[k]);
        t->busy = false;
        w->ended++;
    }
}

/* A copy within the good session's own extent, from its first page, by a segment that only it has
 * open, to its third. */
static void submit_honest(struct world *w, uint8_t seed)
{
    struct honest *t = &w->tasks[seed % TASKS];
    struct mcs_desc d;

    if (t->busy || w->good.left)
        return;
    *t = (struct honest){
        .slot = seed % TASKS,
        .generation = ++w->generation,
        .from = w->good.extent.map + (seed % TASKS) * 512,
        .to = w->good.extent.map + 2 * PAGE + (seed % TASKS) * 512,
        .length = 1 + seed % 512u,
        .value = (uint8_t)(SECRET | seed),
        .busy = true,
    };
    memset(t->from, t->value, t->length);
    d = (struct mcs_desc){
        .op = MCS_OP_READ,
        .priority = seed % MCS_CLASS_COUNT,
        .slot = t->slot,
        .generation = t->generation,
        .batch = t->slot,
        .batch_generation = t->generation,
        .extent = HANDLE(1),
        .local_offset = (uint64_t)(t->to - w->good.extent.map),
        .segment = HANDLE(2),
        .remote_addr = w->good.extent.address + (uint64_t)(t->from - w->good.extent.map),
        .length = t->length,
        .args = MCS_ARGS_NONE,
        .submitted = (uint32_t)(mcs_ticks() >> 3),
        .deadline_us = UINT32_MAX,
    };
    if (!mcs_ring_push(w->good.client.ring, &d, 1))
        t->busy = false;
}

/* Bytes that the offender must not have got. */
static void must_be_plain(const uint8_t *p, uint64_t n, const char *where)
{
    for (uint64_t i = 0; i < n; i++)
        fz_must((p[i] & SECRET) == 0, "a secret byte in %s at %u", where, (unsigned)i);
}

static void check_memory(struct world *w)
{
    const uint8_t *t = w->target.map;

    must_be_plain(w->offender.extent.map, EXTENT, "the offender's extent");
    must_be_plain(t + 3 * PAGE, PAGE, "the shared buffer");
    for (uint64_t i = 0; i < PAGE; i++) {
        fz_must(t[i] == SHOWN, "a read-only buffer was written at %u", (unsigned)i);
        fz_must(t[PAGE + i] == (SECRET | 3), "unpublished memory was written at %u", (unsigned)i);
    }
    for (uint64_t i = PAGE; i < 2 * PAGE; i++)
        fz_must(w->good.extent.map[i] == (SECRET | 2), "another session's memory was written");
    for (uint64_t i = 3 * PAGE; i < EXTENT; i++)
        fz_must(w->good.extent.map[i] == (SECRET | 2), "another session's memory was written");
}

/* Notifications in the honest session's inbox are whole, and of who may send. */
static void read_inbox(struct world *w)
{
    const struct mcs_inbox_record *r;

    while ((r = mcs_inbox_peek(&w->good.session->region)) != NULL) {
        fz_must(r->source == 66 || r->source == 77, "a notification of nobody's");
        fz_must(r->name_length <= MCS_NOTIFY_NAME_MAX &&
                    r->message_length <= MCS_NOTIFY_MESSAGE_MAX && r->size <= INBOX &&
                    r->size % MCS_LINE == 0 &&
                    sizeof(*r) + r->name_length + r->message_length <= r->size,
                "a notification of impossible sizes");
        mcs_inbox_release(&w->good.session->region, r);
    }
}

/* ---- the offender ------------------------------------------------------------------ */

/* The offender's stores into memory that it shares race with the agent's loads: that is what the agent
 * has to live with, and what TSan is not asked about. */
#define HOSTILE __attribute__((no_sanitize("thread")))
static HOSTILE void put(void *to, const void *from, size_t n)
{
    volatile uint8_t *t = to;
    const volatile uint8_t *f = from;

    while (n-- > 0)
        *t++ = *f++;
}

static uint32_t some_handle(struct fz *z)
{
    uint8_t how = fz_u8(z);

    return how < 0xe0 ? HANDLE(how % 4) : how < 0xf0 ? how : (uint32_t)fz_number(z);
}

static uint64_t some_address(struct world *w, struct fz *z)
{
    const uint64_t bases[] = {w->target.address, w->offender.extent.address, w->good.extent.address,
                              0};

    return bases[fz_u8(z) % 4] + fz_number(z);
}

/* One descriptor that is good in most of its fields. */
static void some_desc(struct world *w, struct fz *z, struct mcs_desc *d)
{
    uint8_t how = fz_u8(z);

    *d = (struct mcs_desc){
        .op = (how & 0x80) != 0 ? fz_u8(z) : (uint8_t)(1 + how % 4),
        .shape = (how >> 2 & 7) < 3 ? how >> 2 & 3 : 0,
        .flags = (how & 0x40) != 0 ? fz_u8(z) : 0,
        .priority = (how & 0x20) != 0 ? fz_u8(z) : how % 3,
        .slot = (uint32_t)fz_number(z) % ((how & 0x60) == 0x60 ? UINT32_MAX : 32),
        .generation = ++w->bad_generation,
        .batch = fz_u8(z) % ((how & 0x60) == 0x60 ? 256u : 8u),
        .extent = some_handle(z),
        .segment = some_handle(z),
        .length = fz_number(z),
        .local_offset = fz_number(z),
        .remote_addr = some_address(w, z),
        .args = fz_u8(z) % 64u,
        .submitted = (uint32_t)(mcs_ticks() >> 3),
    };
    d->batch_generation = fz_u8(z) % 4u;
    d->deadline_us = (uint32_t)fz_number(z);
    if (d->op == MCS_OP_CANCEL)
        d->generation -= fz_u8(z) % 8u;
}

/* The ring's words as an honest producer leaves them, by a tail of the fuzzer's own. */
static HOSTILE void push(struct world *w, const struct mcs_desc *d)
{
    struct mcs_desc *elements = (struct mcs_desc *)(w->offender.client.ring + 1);

    put(&elements[w->tail++ % 16], d, sizeof(*d));
    mcs_store_release(&w->offender.client.ring->prod.tail, w->tail); /* partner: mcs_ring_take() */
}

static void some_args(struct world *w, struct fz *z)
{
    uint8_t *to = w->offender.client.args + (fz_u8(z) % 48u) * MCS_LINE;
    struct mcs_args a = {
        .total = fz_number(z),
        .count = fz_number(z),
        .block = fz_number(z),
        .local_stride = fz_number(z),
        .remote_stride = fz_number(z),
        .pieces = (uint32_t)fz_number(z),
        .notify = (uint32_t)fz_number(z),
        .name_length = (uint32_t)fz_number(z),
        .message_length = (uint32_t)fz_number(z),
    };

    put(to, &a, sizeof(a));
}

static void some_pieces(struct world *w, struct fz *z)
{
    unsigned at = fz_u8(z), n = fz_u8(z) % 16u;

    for (unsigned i = 0; i < n && (at + i + 1) * sizeof(struct mcs_piece) <= 3072; i++) {
        struct mcs_piece p = {.local = fz_number(z)};

        p.remote = fz_number(z);
        p.length = fz_number(z);
        put(w->offender.client.args + (at + i) * sizeof(p), &p, sizeof(p));
    }
}

/* Any bytes anywhere in its queue, or in its session's region. */
static void scribble(struct fz *z, uint8_t *memory, uint64_t size)
{
    uint64_t at = fz_u16(z) % size, n = 1 + fz_u8(z) % 64u;
    uint8_t bytes[64];

    n = n < size - at ? n : size - at;
    fz_take(z, bytes, n);
    put(memory + at, bytes, n);
}

/* The words that count, by name. */
static HOSTILE void some_word(struct world *w, struct fz *z)
{
    struct rte_ring *r = w->offender.client.ring;
    struct mcs_doorbell *d = w->offender.client.doorbell;
    struct mcs_session_words *words = w->offender.session->region.words;
    uint8_t which = fz_u8(z);
    uint64_t v = fz_number(z);

    switch (which % 10) {
    case 0:
        w->tail += (uint32_t)(int32_t)(int8_t)v;
        mcs_store_relaxed(&r->prod.tail, w->tail);
        break;
    case 1:
        mcs_store_relaxed(&r->prod.tail, (uint32_t)v);
        break;
    case 2:
        mcs_store_relaxed(&r->cons.tail, (uint32_t)v);
        break;
    case 3:
        mcs_store_relaxed(&r->cons.head, (uint32_t)v);
        break;
    case 4:
        mcs_store_relaxed(&d->waiters, (uint32_t)v);
        break;
    case 5:
        mcs_store_relaxed(&d->need_wakeup, (uint32_t)v);
        break;
    case 6:
        mcs_store_relaxed(&words->inbox_tail, v);
        break;
    case 7:
        mcs_store_relaxed(&words->inbox_tail, mcs_load_relaxed(&words->inbox_head));
        break;
    case 8:
        mcs_store_relaxed(&words->inbox_head, v);
        break;
    default:
        mcs_store_relaxed(&words->inbox_waiting, (uint32_t)v);
        break;
    }
}

/* The agent's control thread, between two turns: buffers come and go. */
static void change_buffers(struct world *w, uint8_t how)
{
    uint32_t page = 2 + (how & 1);
    uint64_t offset = page * PAGE + (how >> 1 & 7) * 256u, length = 256u << (how >> 4 & 3);
    struct mcd_snapshot *old;

    if ((how & 0x80) != 0) {
        fz_must(mcd_segment_cut(w->good.segment, &w->target, offset, length, &old) == 0, "cut");
        free(old);
    } else if (mcd_segment_cut(w->good.segment, &w->target, page * PAGE, PAGE, &old) == 0) {
        free(old);
        publish(w->good.segment, &w->target, page * PAGE, PAGE, target_access[page]);
    }
}

static void turns(struct world *w, unsigned n)
{
    while (n-- > 0)
        mcd_engine_turn(w->engine);
}

static void skip_time(struct world *w, uint8_t how)
{
    uint64_t ns = UINT64_C(1) << how % 32;

    if (w->skipped + ns > UINT64_C(600000000000))
        return; /* honest tasks have their deadlines, too */
    w->skipped += ns;
#ifdef MCS_TICKS_SIMULATED
    mcs_simulated_ticks += ns;
#endif
}

/* What the offender does to its memory. */
static void offend(struct world *w, struct fz *z, uint8_t what)
{
    struct mcs_desc d;

    switch (what) {
    case 0:
    case 1:
    case 2:
    case 3:
        some_desc(w, z, &d);
        push(w, &d);
        break;
    case 4:
        fz_take(z, &d, sizeof(d));
        push(w, &d);
        break;
    case 5:
        some_args(w, z);
        break;
    case 6:
        some_pieces(w, z);
        break;
    case 7:
        scribble(z, w->offender.queue_memory, w->offender.queue_size);
        break;
    case 8:
        scribble(z, w->offender.region_memory, mcs_session_region_size(INBOX));
        break;
    default:
        some_word(w, z);
        break;
    }
}

/* One step of an input. */
static void act(struct world *w, struct fz *z)
{
    uint8_t what = fz_u8(z);

    switch (what % 16) {
    case 10:
        change_buffers(w, fz_u8(z));
        break;
    case 11:
        skip_time(w, fz_u8(z));
        break;
    case 12:
        if ((what & 0x70) == 0x70 && !w->offender.left)
            command(w, MCD_COMMAND_REMOVE, &w->offender);
        else
            read_inbox(w);
        break;
    case 13:
        submit_honest(w, fz_u8(z));
        break;
    case 14:
    case 15:
        turns(w, what >> 4);
        check_private(&w->offender.queue);
        check_private(&w->good.queue);
        reap(w);
        break;
    default:
        offend(w, z, what % 16);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mcd_engine *engine; /* one for all inputs: each leaves it without queues */
    static struct world w;
    struct fz z = {.at = data, .end = data + size};

    mcd_log_set_level(-1);
    if (engine == NULL)
        engine = make_engine();
    engine->o.slice = SLICE_MIN << fz_u8(&z) % 4;
    engine->turn = 1;
    create(&w, engine);
    command(&w, MCD_COMMAND_ADD, &w.good);
    command(&w, MCD_COMMAND_ADD, &w.offender);
    submit_honest(&w, 1);
    for (unsigned acts = 0; !fz_empty(&z) && acts < 400; acts++)
        act(&w, &z);
    submit_honest(&w, 5);
    for (unsigned i = 0; i < PROGRESS; i++) { /* beside whatever the offender has left */
        bool busy = false;

        mcd_engine_turn(w.engine);
        reap(&w);
        for (unsigned k = 0; k < TASKS; k++)
            busy |= w.tasks[k].busy;
        if (!busy)
            break;
    }
    for (unsigned k = 0; k < TASKS; k++)
        fz_must(!w.tasks[k].busy, "an honest task does not end beside the offender");
    fz_must(w.ended >= 2, "no honest task was there");
    read_inbox(&w);
    check_private(&w.offender.queue);
    check_engine(&w, 1 + (!w.offender.left && !w.offender.queue.broken));
    if (!w.offender.left)
        command(&w, MCD_COMMAND_REMOVE, &w.offender);
    command(&w, MCD_COMMAND_REMOVE, &w.good);
    check_private(&w.offender.queue);
    check_private(&w.good.queue);
    check_engine(&w, 0);
    fz_must(w.offender.queue.parked == 0 && w.good.queue.parked == 0, "a task has stayed");
    check_memory(&w);
    destroy(&w);
    return 0;
}
