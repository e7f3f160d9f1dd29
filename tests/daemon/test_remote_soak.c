/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random tasks over random links that are lost, silenced, slowed, damage bytes and come back, with
 * cancels and deadlines in between; fixed seeds.  Each task must end once; what is said to be at the
 * peer must be there and stay there, whatever lost connections still let land.
 */
#include "far.h"

#define RAILS 3u
#define SLOTS 8u
#define ROOM (FIX_EXTENT_SIZE / SLOTS)

struct job {
    struct mcs_desc d;
    bool busy, known; /* known: the peer's bytes are `expect` */
    unsigned ends;
    uint8_t expect[ROOM];
};

static struct job jobs[SLOTS];

/* May something of a task that ended unsettled still land in the slot's range? */
static bool haunted(uint32_t slot)
{
    uint64_t at = FAKE_BASE + slot * ROOM;

    for (const struct fake_item *i = fake.leftovers; i != NULL; i = i->next)
        if (i->address < at + ROOM && at < i->address + i->length)
            return true;
    for (const struct mct_link *l = fake.links; l != NULL; l = l->next)
        for (const struct fake_item *i = l->items; i != NULL; i = i->next)
            if (i->slice == NULL && i->address < at + ROOM && at < i->address + i->length)
                return true;
    return false;
}

static void check_end(struct far *x, struct job *j)
{
    struct mcs_slot s = x->f.client.slot_table[j->d.slot];
    unsigned state = fix_state(s);
    const uint8_t *peer = fake.memory + j->d.slot * ROOM + j->d.remote_addr % ROOM;
    const uint8_t *local = x->f.local.map + j->d.local_offset;

    j->busy = false;
    j->ends++;
    /* REVOKED: a WRITE that was called back by a quiesce and may still land */
    cr_assert(state == MCS_STATE_COMPLETED || state == MCS_STATE_CANCELED ||
                  state == MCS_STATE_TIMEOUT ||
                  (state == MCS_STATE_FAILED &&
                   (fix_error(s) == MCS_PEER_UNREACHABLE || fix_error(s) == MCS_CHECKSUM ||
                    fix_error(s) == MCS_REVOKED)),
              "state %u, error %u", state, fix_error(s));
    cr_assert(j->d.op != MCS_OP_READ || far_settled(s));
    if (state == MCS_STATE_COMPLETED) {
        cr_assert(far_settled(s));
        cr_assert_eq(s.bytes, j->d.length);
        cr_assert_arr_eq(peer, local, j->d.length, "op %u", j->d.op);
    } else {
        cr_assert_leq(s.bytes, j->d.length);
    }
    if (j->d.op == MCS_OP_WRITE) {
        /* what is there now stays, unless the slot says that more may land */
        j->known = far_settled(s);
        memcpy(j->expect, fake.memory + j->d.slot * ROOM, ROOM);
    }
}

static void start(struct far *x, uint32_t slot)
{
    struct job *j = &jobs[slot];
    bool write = fake_random() % 3 != 0;
    uint64_t length = fake_random() % 4 == 0 ? 1 + fake_random() % 4096 : 1 + fake_random() % ROOM;
    uint64_t at = fake_random() % (ROOM - length + 1);

    if (haunted(slot))
        return; /* its user was told that it is not quiet */
    if (j->known)
        cr_assert_arr_eq(fake.memory + slot * ROOM, j->expect, ROOM, "something landed late");
    j->d = far_desc(x, write ? MCS_OP_WRITE : MCS_OP_READ, slot, slot * ROOM + at, slot * ROOM + at,
                    length);
    j->d.priority = (uint8_t)(fake_random() % 3);
    if (fake_random() % 8 == 0)
        j->d.flags = MCS_DESC_FENCE;
    if (fake_random() % 8 == 0)
        j->d.deadline_us = 100 + (uint32_t)(fake_random() % 2000);
    far_fill(x->f.local.map + j->d.local_offset, length, (unsigned)fake_random());
    j->busy = true;
    fix_push(&x->f, &j->d);
}

static void disturb(struct far *x)
{
    unsigned rail = (unsigned)(fake_random() % RAILS);
    struct mct_link *l = far_link(x, rail);
    struct job *j = &jobs[fake_random() % SLOTS];
    struct mcs_desc cancel = {.op = MCS_OP_CANCEL};

    switch (fake_random() % 16) {
    case 0:
    case 1:
        if (l->nconns != 0)
            fake_lose(l, l->conns[fake_random() % l->nconns], -ECONNRESET);
        break;
    case 2:
    case 3:
    case 4:
    case 5:
        if (l->nconns < 3) {
            l->silent = false;
            far_adopt(x, x->route, rail);
        }
        break;
    case 6:
        l->silent = fake_random() % 2 == 0;
        break;
    case 7:
        l->rate = fake_random() % 3 == 0 ? 0.05 : 2;
        l->latency = fake_random() % 100000;
        break;
    case 8:
        l->damage = (unsigned)(fake_random() % 3);
        break;
    case 9:
        fix_call(x->f.engine, mcd_route_tell,
                 &(struct mcd_route_word){.route = x->route,
                                          .rail = (int)rail,
                                          .usable = fake_random() % 3 != 0,
                                          .reason = MCD_RAIL_CARRIER});
        break;
    case 10:
        fix_call(x->f.engine, mcd_engine_quiesce,
                 &(struct mcd_quiesce){.base = x->f.local.map + (fake_random() % 2) * ROOM,
                                       .length = ROOM});
        break;
    default:
        if (j->busy) {
            cancel.slot = j->d.slot;
            cancel.generation = j->d.generation;
            fix_push(&x->f, &cancel);
        }
        break;
    }
}

static uint64_t killed, landed, moved_over, completed;

static void soak(uint64_t seed, unsigned tasks)
{
    struct far x;
    unsigned started = 0, turns = 0, busy;

    memset(jobs, 0, sizeof(jobs));
    far_init(&x, RAILS);
    fake.random = seed;
    fake.step = 3000;
    fake.haunt = true;
    x.route->o.down_ns = 20000000;
    do {
        busy = 0;
        for (uint32_t i = 0; i < SLOTS; i++) {
            if (jobs[i].busy && far_ended(&x, &jobs[i].d))
                check_end(&x, &jobs[i]);
            if (!jobs[i].busy && started < tasks) {
                start(&x, i);
                started += jobs[i].busy;
            }
            busy += jobs[i].busy;
        }
        if (fake_random() % 8 == 0)
            disturb(&x);
        mcd_engine_turn(x.f.engine);
        cr_assert_lt(++turns, 100000000u, "it does not end");
    } while (busy != 0 || started < tasks);
    for (unsigned i = 0; i < SLOTS; i++)
        if (jobs[i].known && !haunted(i))
            cr_assert_arr_eq(fake.memory + i * ROOM, jobs[i].expect, ROOM);
    killed += fake.killed;
    landed += fake.leftovers_landed;
    moved_over += x.route->moved_over;
    completed += x.f.engine->counters.states[MCS_STATE_COMPLETED];
    far_fini(&x);
}

#ifdef __SANITIZE_THREAD__
#define TASKS 1000 /* one thread, and slow */
#else
#define TASKS 3000
#endif

#define SOAK(n)                                                                                    \
    Test(remote_soak, seeds_from_##n, .timeout = 300)                                              \
    {                                                                                              \
        for (unsigned i = 0; i < 5; i++)                                                           \
            soak(n + i, TASKS);                                                                    \
        /* it was no fair weather */                                                               \
        cr_assert_gt(killed, 10u);                                                                 \
        cr_assert_gt(landed, 10u);                                                                 \
        cr_assert_gt(moved_over, 10u);                                                             \
        cr_assert_gt(completed, TASKS + 0u);                                                       \
    }
SOAK(10)
SOAK(20)
SOAK(30)
SOAK(40)
