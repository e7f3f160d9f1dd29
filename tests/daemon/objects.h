/* SPDX-License-Identifier: Apache-2.0 */
/* An engine with a store behind it, and the argument area of a client that asks for objects. */
#ifndef TESTS_OBJECTS_H
#define TESTS_OBJECTS_H

#include "daemon/hold.h"
#include "daemon/object.h"
#include "daemon/store.h"
#include "fixture.h"
#include "transports/crc32c.h"

/* GPUs of the engines that are made from now on; NULL: none. */
static struct mct_cuda *ob_cuda;

#define OB_EXTENTS 16u
#define OB_KEYS 1024u

struct ob {
    struct fixture f;
    struct mcd_store st;
    struct mcd_extent extents[OB_EXTENTS]; /* the store's */
    unsigned nextents;
    /* what the store has asked for */
    struct {
        uint64_t tenant, size;
        bool open;
    } wanted[OB_EXTENTS];
    unsigned nwanted;
    bool closed; /* no extent is given any more */
    uint64_t extent_size;
    uint64_t deadline_us;
    /* the request that is being written */
    struct mcs_object_args args;
    struct mcs_object_key keys[OB_KEYS];
    struct mcs_object_piece pieces[OB_KEYS];
    uint8_t text[32768];
    uint32_t used;
    uint32_t deadline;
    uint8_t op, flags; /* of the descriptor */
    struct mcs_gate gates[2];
    unsigned ngates;
};

static inline void ob_want(void *context, uint64_t tenant, bool open, uint64_t size)
{
    struct ob *o = context;

    cr_assert_lt(o->nwanted, OB_EXTENTS);
    o->wanted[o->nwanted].tenant = tenant;
    o->wanted[o->nwanted].open = open;
    o->wanted[o->nwanted++].size = size;
}

static inline void ob_idle(void *context, uint32_t extent)
{
    (void)context;
    (void)extent;
}

static inline void ob_ready(void *context)
{
    struct ob *o = context;

    if (o->f.engine != NULL)
        mcd_objects_ready(o->f.engine);
}

static inline void ob_event(void *context, const struct mco_event *e)
{
    (void)context;
    (void)e;
}

static inline void ob_log(int level, const char *format, ...)
{
    (void)level;
    (void)format;
}

/* What the control thread does. */
static inline void ob_serve(struct ob *o)
{
    while (o->nwanted != 0 && !o->closed) {
        struct mcd_extent *e = &o->extents[o->nextents];
        uint64_t size = o->wanted[0].size;
        struct mco_extent x;
        uint32_t id;

        size = size < o->extent_size ? o->extent_size : (size + 4095) & ~UINT64_C(4095);
        e->size = size;
        e->map = aligned_alloc(4096, size);
        cr_assert(o->nextents < OB_EXTENTS && e->map != NULL);
        memset(e->map, 0, size);
        e->address = UINT64_C(0x300000000000) + ((uint64_t)o->nextents << 32);
        x = (struct mco_extent){.open = o->wanted[0].open,
                                .tenant = o->wanted[0].tenant,
                                .size = size,
                                .page_size = 4096,
                                .address = e->address,
                                .ino = o->nextents + 1,
                                .node = -1,
                                .map = e->map,
                                .owner = e};
        if (mco_extent_add(o->st.objects, &x, &id) != 0) {
            free(e->map);
            mco_extent_failed(o->st.objects, o->wanted[0].tenant, o->wanted[0].open);
        } else {
            e->handle = id;
            o->nextents++;
        }
        memmove(&o->wanted[0], &o->wanted[1], --o->nwanted * sizeof(o->wanted[0]));
    }
}

/* size: of the store; holds: most of the session. */
static inline void ob_init_sized(struct ob *o, uint64_t size, uint64_t extent_size, uint64_t slice,
                                 uint64_t holds)
{
    struct mcd_engine_options e = {.store = &o->st, .cuda = ob_cuda};
    struct mco_options m = {.size = size,
                            .extent_size = extent_size,
                            .objects = 100000,
                            .high = 95,
                            .low = 90,
                            .policy = "lru",
                            .lease_ns = UINT64_C(1000000000),
                            .table_fd = -1,
                            .context = o,
                            .want = ob_want,
                            .idle = ob_idle,
                            .ready = ob_ready,
                            .event = ob_event,
                            .log = ob_log};
    char error[256];

    memset(o, 0, sizeof(*o));
    o->extent_size = extent_size;
    cr_assert_eq(mco_create(&m, &o->st.objects, error, sizeof(error)), 0, "%s", error);
    mco_recover(o->st.objects, &(struct mco_recovered){0});
    o->st.checksum = true;
    o->st.verify = MCD_VERIFY_REMOTE;
    o->st.config.store_lease_ms = 1000;
    fix_init_nets(&o->f, MCS_ACCESS_READ | MCS_ACCESS_WRITE, slice, &e);
    o->f.session->tenant = 7;
    cr_assert_eq(mcd_holds_create(holds, &o->f.session->holds), 0);
}

static inline void ob_init(struct ob *o)
{
    ob_init_sized(o, 8u << 20, 1u << 20, 64 << 10, 1000);
}

static inline void ob_fini(struct ob *o)
{
    struct mcd_holds *holds = o->f.session->holds;

    fix_fini(&o->f);
    mcd_holds_destroy(holds, o->st.objects);
    mco_destroy(o->st.objects);
    for (unsigned i = 0; i < o->nextents; i++)
        free(o->extents[i].map);
}

/* ---- a request ------------------------------------------------------------------------ */

static inline void ob_begin(struct ob *o, uint8_t op, uint32_t flags)
{
    memset(&o->args, 0, sizeof(o->args));
    o->args.flags = flags;
    o->op = op;
    o->used = 0;
    o->deadline = 0;
    o->flags = 0;
    o->ngates = 0;
}

static inline struct mcs_object_key *ob_key(struct ob *o, const void *text, uint32_t length)
{
    struct mcs_object_key *k = &o->keys[o->args.count++];

    *k = (struct mcs_object_key){.text = o->used, .length = length, .first = o->args.npieces};
    memcpy(o->text + o->used, text, length);
    o->used += length;
    return k;
}

static inline struct mcs_object_key *ob_name(struct ob *o, const char *text)
{
    return ob_key(o, text, (uint32_t)strlen(text));
}

/* A piece more of the last key: of the local extent. */
static inline struct mcs_object_piece *ob_piece(struct ob *o, uint64_t at, uint64_t length)
{
    struct mcs_object_piece *p = &o->pieces[o->args.npieces++];

    o->keys[o->args.count - 1].pieces++;
    *p = (struct mcs_object_piece){.length = length, .local = at, .extent = FIX_EXTENT};
    return p;
}

/* Lays the block out at the start of the argument area: head, text, keys, pieces, results, gates. */
static inline struct mcs_object_args *ob_write(struct ob *o)
{
    uint8_t *to = o->f.client.args;
    struct mcs_object_args *a = &o->args;
    uint64_t results = o->op == MCS_OP_EXIST ? 1 : sizeof(struct mcs_object_result);

    a->keys = (uint32_t)(sizeof(*a) + ((o->used + 7) & ~7u));
    a->pieces = a->keys + a->count * (uint32_t)sizeof(o->keys[0]);
    a->results = a->pieces + a->npieces * (uint32_t)sizeof(o->pieces[0]);
    a->total = a->results + a->count * results;
    if (o->ngates != 0) {
        a->gates = (uint32_t)(a->total + 7) & ~7u;
        a->total = a->gates + o->ngates * sizeof(o->gates[0]);
    }
    cr_assert_leq(a->total, o->f.client.args_size);
    memset(to, 0xee, a->total);
    memcpy(to, a, sizeof(*a));
    memcpy(to + sizeof(*a), o->text, o->used);
    for (uint32_t i = 0; i < a->count; i++) {
        struct mcs_object_key k = o->keys[i];

        k.text += (uint32_t)sizeof(*a);
        memcpy(to + a->keys + i * sizeof(k), &k, sizeof(k));
    }
    memcpy(to + a->pieces, o->pieces, a->npieces * sizeof(o->pieces[0]));
    memcpy(to + a->gates, o->gates, o->ngates * sizeof(o->gates[0]));
    return (struct mcs_object_args *)to;
}

static inline struct mcs_desc ob_desc(struct ob *o)
{
    return (struct mcs_desc){
        .op = o->op,
        .flags = o->flags,
        .priority = MCS_CLASS_NORMAL,
        .generation = ++o->f.generation,
        .batch_generation = o->f.generation,
        .args = 0,
        .submitted = (uint32_t)(mcs_ticks() >> 3),
        .deadline_us = o->deadline,
    };
}

static inline bool ob_ended(struct ob *o, const struct mcs_desc *d)
{
    uint64_t word = mcs_slot_peek(&o->f.client, d->slot);

    return word >> 32 == d->generation && (word & 0x7f) > MCS_STATE_PENDING;
}

static inline struct mcs_slot ob_end(struct ob *o, const struct mcs_desc *d)
{
    for (int i = 0; i < 20000000; i++) {
        if (ob_ended(o, d))
            return o->f.client.slot_table[d->slot];
        ob_serve(o);
        mcd_engine_turn(o->f.engine);
    }
    cr_assert_fail("the task does not end");
    return o->f.client.slot_table[d->slot];
}

static inline void ob_turns(struct ob *o, unsigned n)
{
    while (n-- != 0) {
        ob_serve(o);
        mcd_engine_turn(o->f.engine);
    }
}

static inline struct mcs_slot ob_run(struct ob *o)
{
    struct mcs_desc d;

    ob_write(o);
    d = ob_desc(o);
    fix_push(&o->f, &d);
    return ob_end(o, &d);
}

/* The same, and it completes. */
static inline uint64_t ob_ok(struct ob *o)
{
    struct mcs_slot s = ob_run(o);

    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED, "state %u, error %u", fix_state(s),
                 fix_error(s));
    return s.bytes;
}

static inline struct mcs_object_result ob_result(struct ob *o, uint32_t i)
{
    struct mcs_object_result r;

    memcpy(&r, o->f.client.args + o->args.results + i * sizeof(r), sizeof(r));
    return r;
}

static inline uint8_t ob_byte(struct ob *o, uint32_t i)
{
    return o->f.client.args[o->args.results + i];
}

/* ---- whole requests about one key ------------------------------------------------------ */

static inline struct mcs_object_result ob_put(struct ob *o, const char *key, uint64_t at,
                                              uint64_t size, uint32_t flags)
{
    ob_begin(o, MCS_OP_PUT, flags);
    ob_name(o, key);
    if (size != 0)
        ob_piece(o, at, size);
    ob_ok(o);
    return ob_result(o, 0);
}

static inline struct mcs_object_result ob_get(struct ob *o, const char *key, uint64_t at,
                                              uint64_t size, uint32_t flags)
{
    ob_begin(o, MCS_OP_GET, flags);
    ob_name(o, key);
    if (size != 0)
        ob_piece(o, at, size);
    ob_ok(o);
    return ob_result(o, 0);
}

static inline struct mcs_object_result ob_hold(struct ob *o, const char *key)
{
    ob_begin(o, MCS_OP_HOLD, 0);
    ob_name(o, key);
    ob_ok(o);
    return ob_result(o, 0);
}

static inline struct mcs_object_result ob_create(struct ob *o, const char *key, uint64_t size)
{
    ob_begin(o, MCS_OP_CREATE, 0);
    ob_name(o, key)->size = size;
    ob_ok(o);
    return ob_result(o, 0);
}

static inline struct mcs_object_result ob_seal(struct ob *o, uint64_t hold)
{
    ob_begin(o, MCS_OP_SEAL, 0);
    o->keys[o->args.count++] = (struct mcs_object_key){.size = hold};
    ob_ok(o);
    return ob_result(o, 0);
}

static inline bool ob_exists(struct ob *o, const char *key)
{
    ob_begin(o, MCS_OP_EXIST, 0);
    ob_name(o, key);
    return ob_ok(o) == 1;
}

static inline unsigned ob_remove(struct ob *o, const char *key, uint32_t flags)
{
    ob_begin(o, MCS_OP_REMOVE, flags);
    ob_name(o, key);
    ob_ok(o);
    return ob_result(o, 0).status;
}

static inline void ob_release(struct ob *o, const uint64_t *holds, unsigned n)
{
    struct mcs_release release = {.op = MCS_OP_RELEASE};
    struct mcs_desc d;

    memcpy(release.holds, holds, n * sizeof(holds[0]));
    memcpy(&d, &release, sizeof(d));
    fix_push(&o->f, &d);
    mcd_engine_turn(o->f.engine);
    mcd_engine_turn(o->f.engine);
}

/* Bytes that tell where they are. */
static inline void ob_paint(uint8_t *at, uint64_t n, uint32_t seed)
{
    for (uint64_t i = 0; i < n; i++)
        at[i] = (uint8_t)(seed + i * 7 + (i >> 8) * 13);
}

static inline struct mco_stats ob_stats(struct ob *o)
{
    struct mco_stats s;

    mco_get_stats(o->st.objects, &s);
    return s;
}

#endif
