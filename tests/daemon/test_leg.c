/* SPDX-License-Identifier: Apache-2.0 */
/* Legs: reads of other hosts' objects in an engine, over a fake transport. */
#include "daemon/leg.h"
#include "far.h"

#define MiB (1u << 20)

struct ended {
    unsigned n;
    struct mcd_outcome last;
    struct mcd_queue *queue;
    struct mcd_leg *next; /* begun when this one ends */
    int res;
};

static void on_done(struct mcd_engine *g, struct mcd_leg *l, const struct mcd_outcome *o)
{
    struct ended *e = l->context;

    e->n++;
    e->last = *o;
    if (e->next != NULL) {
        struct mcd_leg *next = e->next;

        e->next = NULL;
        e->res = mcd_leg_begin(g, e->queue, next);
    }
}

static struct mcd_leg leg(struct far *x, struct ended *e, const struct mcd_leg_piece *pieces,
                          uint32_t n)
{
    return (struct mcd_leg){.segment = x->segment,
                            .extent = FIX_EXTENT,
                            .pieces = pieces,
                            .npieces = n,
                            .deadline = UINT64_MAX / 2,
                            .priority = MCS_CLASS_NORMAL,
                            .done = on_done,
                            .context = e};
}

static void until(struct far *x, const struct ended *e, unsigned n)
{
    for (int i = 0; i < 1000000 && e->n < n; i++)
        mcd_engine_turn(x->f.engine);
    cr_assert_eq(e->n, n);
}

Test(leg, reads_its_pieces_and_counts_for_nobody)
{
    static const struct mcd_leg_piece pieces[] = {{100, FAKE_BASE + 4096, 1000},
                                                  {1100, FAKE_BASE + 5096, 24},
                                                  {500000, FAKE_BASE + 1, 400000}};
    struct far x;
    struct ended e = {0};
    struct mcd_leg l;
    uint64_t tasks;

    far_init(&x, 1);
    tasks = x.f.engine->counters.tasks;
    far_fill(fake.memory, FAKE_SIZE, 5);
    l = leg(&x, &e, pieces, 3);
    cr_assert_eq(mcd_leg_begin(x.f.engine, &x.f.queue, &l), 0);
    cr_assert_eq(e.n, 0u, "its end is told from a turn");
    until(&x, &e, 1);
    cr_assert_eq(e.last.state, MCS_STATE_COMPLETED);
    cr_assert_eq(e.last.bytes, 401024u);
    for (unsigned i = 0; i < 3; i++)
        cr_assert_arr_eq(x.f.local.map + pieces[i].local,
                         fake.memory + (pieces[i].remote - FAKE_BASE), pieces[i].length);
    cr_assert_eq(x.f.engine->counters.tasks, tasks);
    cr_assert_eq(x.f.queue.remote, 0u);
    cr_assert_eq(x.f.queue.batches[0].open, 0u);
    far_fini(&x);
}

/* Slots beyond the client's: it has as many as ever. */
Test(leg, a_queue_has_a_bounded_number_beside_all_of_the_clients)
{
    static const struct mcd_leg_piece piece = {0, FAKE_BASE, 64};
    struct far x;
    struct ended e = {0};
    struct mcd_leg l[MCD_LEGS + 1];
    struct mcs_desc d;

    far_init(&x, 1);
    for (unsigned i = 0; i <= MCD_LEGS; i++) {
        l[i] = leg(&x, &e, &piece, 1);
        cr_assert_eq(mcd_leg_begin(x.f.engine, &x.f.queue, &l[i]), i < MCD_LEGS ? 0 : -EAGAIN);
    }
    d = far_desc(&x, MCS_OP_READ, 127, 4096, 0, 64); /* the last slot of the client's */
    fix_push(&x.f, &d);
    far_completes(&x, &d, 64);
    until(&x, &e, MCD_LEGS);
    e.queue = &x.f.queue;
    e.next = &l[1];
    cr_assert_eq(mcd_leg_begin(x.f.engine, &x.f.queue, &l[0]), 0);
    until(&x, &e, MCD_LEGS + 2); /* one begins the other */
    cr_assert_eq(e.res, 0);
    far_fini(&x);
}

Test(leg, what_does_not_fit_is_refused)
{
    static const struct mcd_leg_piece bad[] = {
        {FIX_EXTENT_SIZE, FAKE_BASE, 1},
        {0, FAKE_BASE, FIX_EXTENT_SIZE + 1},
        {UINT64_MAX, FAKE_BASE, 2},
        {0, FAKE_BASE, 0},
    };
    static const struct mcd_leg_piece beyond = {0, FAKE_BASE + FAKE_SIZE, 64};
    struct far x;
    struct ended e = {0};
    struct mcd_leg l;

    far_init(&x, 1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        l = leg(&x, &e, &bad[i], 1);
        cr_assert_eq(mcd_leg_begin(x.f.engine, &x.f.queue, &l), -EINVAL, "%zu", i);
    }
    l = leg(&x, &e, bad, 0);
    cr_assert_eq(mcd_leg_begin(x.f.engine, &x.f.queue, &l), -EINVAL);
    l = leg(&x, &e, &beyond, 1);
    l.extent = 0;
    cr_assert_eq(mcd_leg_begin(x.f.engine, &x.f.queue, &l), -EINVAL);
    mcs_store_release(&x.remote.status, (uint32_t)MCS_STALE); /* as in describe.c */
    l = leg(&x, &e, &beyond, 1);
    cr_assert_eq(mcd_leg_begin(x.f.engine, &x.f.queue, &l), -ENOTCONN);
    mcs_store_release(&x.remote.status, (uint32_t)MCS_OK);
    mcs_store_release(&x.remote.fresh, x.remote.wanted + 1); /* as if its owner had been asked */
    cr_assert_eq(mcd_leg_begin(x.f.engine, &x.f.queue, &l), 0);
    until(&x, &e, 1);
    cr_assert_eq(e.last.state, MCS_STATE_INVALID);
    cr_assert_eq(e.last.error, MCS_BAD_RANGE);
    far_fini(&x);
}

/* An extent that no session has, here the other one of the fixture. */
Test(leg, reads_into_an_extent_of_the_store)
{
    static const struct mcd_leg_piece piece = {4096, FAKE_BASE + 77, MiB - 4096};
    struct far x;
    struct ended e = {0};
    struct mcd_leg l;

    far_init(&x, 1);
    far_fill(fake.memory, FAKE_SIZE, 9);
    l = leg(&x, &e, &piece, 1);
    l.extent = 0;
    l.store = &x.f.target;
    cr_assert_eq(mcd_leg_begin(x.f.engine, &x.f.queue, &l), 0);
    until(&x, &e, 1);
    cr_assert_eq(e.last.state, MCS_STATE_COMPLETED);
    cr_assert_arr_eq(x.f.target.map + 4096, fake.memory + 77, MiB - 4096);
    far_fini(&x);
}

Test(leg, canceled_late_and_cut_off)
{
    static const struct mcd_leg_piece piece = {0, FAKE_BASE, MiB};
    struct mcd_command remove = {.kind = MCD_COMMAND_REMOVE};
    struct far x;
    struct ended e = {0};
    struct far_queue other;
    struct mcd_leg l, m;

    far_init(&x, 1);
    far_link(&x, 0)->latency = 100000000;
    l = leg(&x, &e, &piece, 1);
    cr_assert_eq(mcd_leg_begin(x.f.engine, &x.f.queue, &l), 0);
    far_until_out(&x, 1);
    mcd_leg_cancel(x.f.engine, &x.f.queue, &l);
    mcd_leg_cancel(x.f.engine, &x.f.queue, &l);
    until(&x, &e, 1);
    cr_assert_eq(e.last.state, MCS_STATE_CANCELED);
    mcd_leg_cancel(x.f.engine, &x.f.queue, &l); /* it is over */

    l.deadline = x.f.engine->now + 2000 * x.f.engine->ticks_per_us;
    cr_assert_eq(mcd_leg_begin(x.f.engine, &x.f.queue, &l), 0);
    until(&x, &e, 2);
    cr_assert_eq(e.last.state, MCS_STATE_TIMEOUT);

    /* its queue goes */
    far_queue_init(&x, &other);
    m = leg(&x, &e, &piece, 1);
    cr_assert_eq(mcd_leg_begin(x.f.engine, &other.queue, &m), 0);
    far_until_out(&x, 1);
    remove.queue = &other.queue;
    mcd_engine_command(x.f.engine, &remove);
    while (mcs_load_acquire(&remove.done) == 0) /* partner: run_commands() */
        mcd_engine_turn(x.f.engine);
    cr_assert_eq(e.n, 3u);
    cr_assert_eq(e.last.state, MCS_STATE_CANCELED);
    mcd_queue_fini(&other.queue);
    free(other.memory);
    far_fini(&x);
}
