/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture's engine with many queues, of sessions and tenants of their own, that are kept full: who gets how much
 * is counted in turns, not in time. */
#ifndef TESTS_SHARERS_H
#define TESTS_SHARERS_H

#include "daemon/tenant.h"
#include "fixture.h"

#define SHARERS_MAX 48u
#define SHARERS_SLOTS 256u

struct sharer {
    struct mcd_session *session;
    struct mcd_queue queue;
    struct mcs_queue client;
    void *memory;
    uint32_t generation;
    uint8_t free[SHARERS_SLOTS]; /* slots that may be used */
    /* what it wants: so many tasks of this length and class under way, at any time */
    uint64_t length;
    unsigned depth;
    uint8_t class;
    uint64_t bytes[MCS_CLASS_COUNT], refused; /* what came of it */
    struct mcs_desc sent[SHARERS_SLOTS];
    unsigned under_way;
};

struct sharers {
    struct fixture f;
    struct sharer s[SHARERS_MAX];
    unsigned n;
};

static inline void shr_init(struct sharers *x, uint64_t slice)
{
    memset(x, 0, sizeof(*x));
    fix_init(&x->f, MCS_ACCESS_READ | MCS_ACCESS_WRITE, slice);
}

static inline void shr_tenant(struct mcd_tenant *t, uint64_t weight)
{
    memset(t, 0, sizeof(*t));
    t->scale = MCD_SHARE_ONE / weight;
}

/* A queue more; with == NULL: of a session of its own. */
static inline struct sharer *shr_add(struct sharers *x, struct mcd_tenant *t,
                                     const struct sharer *with)
{
    struct sharer *s = &x->s[x->n++];
    struct mcd_command add = {.kind = MCD_COMMAND_ADD, .queue = &s->queue};
    struct mcs_queue_layout l;

    cr_assert_leq(x->n, SHARERS_MAX);
    s->session = with != NULL ? with->session : calloc(1, sizeof(*s->session));
    cr_assert_not_null(s->session);
    s->session->extents[MCD_HANDLE_INDEX(FIX_EXTENT)] = &x->f.local;
    s->session->opens[MCD_HANDLE_INDEX(FIX_SEGMENT)] = &x->f.open;
    cr_assert_eq(mcs_queue_layout(SHARERS_SLOTS, SHARERS_SLOTS, SHARERS_SLOTS, 4096, &l), 0);
    s->memory = aligned_alloc(4096, (l.total_size + 4095) & ~4095ull);
    memset(s->memory, 0, l.total_size);
    s->queue.session = s->session;
    s->queue.engine = x->f.engine;
    s->queue.tenant = t;
    cr_assert_eq(mcs_queue_create(&s->queue.shm, &s->queue.consumer, s->memory, &l, x->n, 42, 0),
                 0);
    cr_assert_eq(mcs_queue_attach(&s->client, s->memory, l.total_size), 0);
    cr_assert_eq(mcd_queue_init(&s->queue), 0);
    mcd_engine_command(x->f.engine, &add);
    while (mcs_load_acquire(&add.done) == 0) /* partner: run_commands() */
        mcd_engine_turn(x->f.engine);
    s->class = MCS_CLASS_NORMAL;
    return s;
}

/* A task in a free slot; its number. */
static inline uint32_t shr_submit(struct sharers *x, struct sharer *s, uint64_t length,
                                  uint8_t class, uint8_t flags)
{
    uint32_t slot = 0;
    struct mcs_desc d = fix_desc(&x->f, MCS_OP_WRITE, length);

    while (s->free[slot] != 0)
        slot++;
    cr_assert_lt(slot, SHARERS_SLOTS);
    s->free[slot] = 1;
    d.slot = d.batch = slot;
    d.generation = d.batch_generation = ++s->generation;
    d.priority = class;
    d.flags = flags;
    s->sent[slot] = d;
    s->under_way++;
    cr_assert(mcs_ring_push(s->client.ring, &d, 1));
    return slot;
}

static inline bool shr_ended(const struct sharer *s, uint32_t slot)
{
    uint64_t word = mcs_slot_peek(&s->client, slot);

    return word >> 32 == s->sent[slot].generation && (word & 0x7f) > MCS_STATE_PENDING;
}

/* Counts what has ended. */
static inline void shr_reap(struct sharer *s)
{
    for (uint32_t i = 0; i < SHARERS_SLOTS; i++) {
        if (s->free[i] == 0 || !shr_ended(s, i))
            continue;
        if (fix_state(s->client.slot_table[i]) == MCS_STATE_COMPLETED)
            s->bytes[s->sent[i].priority] += s->sent[i].length;
        else
            s->refused++;
        s->free[i] = 0;
        s->under_way--;
    }
}

/* Turns, with everybody's rings kept as full as they want. */
static inline void shr_run(struct sharers *x, unsigned turns)
{
    for (unsigned t = 0; t < turns; t++) {
        for (unsigned i = 0; i < x->n; i++) {
            struct sharer *s = &x->s[i];

            shr_reap(s);
            while (s->under_way < s->depth)
                shr_submit(x, s, s->length, s->class, 0);
        }
        mcd_engine_turn(x->f.engine);
    }
}

static inline void shr_forget(struct sharers *x)
{
    for (unsigned i = 0; i < x->n; i++) {
        shr_reap(&x->s[i]);
        memset(x->s[i].bytes, 0, sizeof(x->s[i].bytes));
        x->s[i].refused = 0;
    }
}

static inline uint64_t shr_bytes(const struct sharer *s)
{
    return s->bytes[0] + s->bytes[1] + s->bytes[2];
}

static inline void shr_fini(struct sharers *x)
{
    for (unsigned i = 0; i < x->n; i++) {
        struct sharer *s = &x->s[i];
        struct mcd_command remove = {.kind = MCD_COMMAND_REMOVE, .queue = &s->queue};

        mcd_engine_command(x->f.engine, &remove);
        while (mcs_load_acquire(&remove.done) == 0) /* partner: run_commands() */
            mcd_engine_turn(x->f.engine);
    }
    for (unsigned i = 0; i < x->n; i++) { /* no queue is served any more: sessions may go */
        struct sharer *s = &x->s[i];

        mcd_queue_fini(&s->queue);
        free(s->memory);
        for (unsigned k = i + 1; k < x->n; k++)
            if (x->s[k].session == s->session)
                x->s[k].session = NULL;
        free(s->session);
    }
    cr_assert_eq(x->f.engine->shares.nbusy, 0u);
    cr_assert_eq(x->f.engine->shares.nready, 0u);
    fix_fini(&x->f);
}

#endif
