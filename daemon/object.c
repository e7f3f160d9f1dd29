/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a request about objects, from its descriptor to its slot. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "gate.h"
#include "net.h"
#include "object_work.h"
#include "session.h"
#include "shm/failpoint.h"
#include "tenant.h"
#include "transports/crc32c.h"

#define IDLE_MAX 64u   /* states that are kept for later requests */
#define TAKE_BACK 128u /* holds that a turn takes back of one request */
#define HEAD_LINES 5u  /* of a block: all that a request of one key has */

/* ---- memory ------------------------------------------------------------------------------ */

int mcd_objects_create(struct mcd_engine *g, struct mcd_objects **out)
{
    (void)g;
    *out = calloc(1, sizeof(**out));
    return *out == NULL ? -ENOMEM : 0;
}

void mcd_objects_destroy(struct mcd_objects *o)
{
    if (o == NULL)
        return;
    while (o->idle != NULL) {
        struct mcd_object *r = o->idle;

        o->idle = r->idle_next;
        free(r);
    }
    mcd_windows_free(o);
    mcd_far_free(o);
    free(o);
}

static struct mcd_object *take_object(struct mcd_objects *o)
{
    struct mcd_object *r = o->idle;

    if (r != NULL) {
        o->idle = r->idle_next;
        o->nidle--;
    } else {
        r = malloc(sizeof(*r));
        if (r == NULL)
            return NULL;
    }
    memset(r, 0, offsetof(struct mcd_object, host));
    r->host[0] = '\0';
    r->all = o;
    return r;
}

static void put_object(struct mcd_objects *o, struct mcd_object *r)
{
    if (o->nidle >= IDLE_MAX) {
        free(r);
        return;
    }
    r->idle_next = o->idle;
    o->idle = r;
    o->nidle++;
}

/* ---- small things -------------------------------------------------------------------------- */

void mcd_object_end_item(struct mcd_item *it, enum mcs_status status)
{
    it->state = MCD_ITEM_DONE;
    it->result.status =
        status < MCS_STATUS_COUNT ? status : MCS_PROTOCOL; /* a peer's word, perhaps */
}

struct mco_hint mcd_object_hint(const struct mcd_object *r, const struct mco_key *key,
                                uint32_t index, uint64_t previous)
{
    (void)key;
    if ((r->args.flags & MCS_OBJECT_CHAIN) == 0)
        return (struct mco_hint){.now_ns = r->now, .position = MCO_POSITION_NONE};
    return (struct mco_hint){.now_ns = r->now,
                             .previous = previous,
                             .position = r->args.position + index,
                             .length = r->args.position + r->args.count};
}

uint32_t mcd_object_sum(struct mcd_engine *g, uint32_t crc, const void *data, uint64_t size)
{
    uint64_t from = mcs_ticks();

    crc = mct_crc32c(crc, data, size);
    mcs_count(&g->counters.objects.summed_bytes, size);
    mcs_count(&g->counters.objects.summed_ns, mcd_ticks_to_ns(g, mcs_ticks() - from));
    return crc;
}

static void leave_space(struct mcd_object *r)
{
    if (r->for_window)
        mcd_window_wait_no_more(r);
    if (!r->for_space)
        return;
    r->for_space = false;
    if (r->space_prev != NULL)
        r->space_prev->space_next = r->space_next;
    else
        r->all->space = r->space_next;
    if (r->space_next != NULL)
        r->space_next->space_prev = r->space_prev;
}

/* Off the queue's lists, until mcd_object_awake(). */
static void wait_for(struct mcd_object *r, bool space)
{
    struct mcd_queue *q = r->q;

    if (!r->waits) {
        mcd_list_remove(q, r->desc.slot);
        r->task->list = MCD_UNLISTED;
        q->parked--;
        q->waits++;
        r->waits = true;
    }
    if (space && !r->for_space) {
        r->for_space = true;
        r->space_prev = NULL;
        r->space_next = r->all->space;
        if (r->space_next != NULL)
            r->space_next->space_prev = r;
        r->all->space = r;
    }
}

void mcd_object_awake(struct mcd_engine *g, struct mcd_object *r)
{
    struct mcd_queue *q = r->q;

    if (!r->waits)
        return;
    leave_space(r);
    r->waits = false;
    q->waits--;
    q->parked++;
    mcd_list_add_first(q, r->desc.slot);
    if (q->leaf.session != NULL)
        mcd_queue_share(g, q);
}

/* ---- its work -------------------------------------------------------------------------------- */

static bool needs_window(uint8_t op)
{
    return op != MCS_OP_EXIST && op != MCS_OP_PREFIX;
}

static enum mcd_run run(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    r->now = mcd_now_ns();
    if (r->started == 0)
        r->started = mcs_ticks();
    if (r->window == NULL && needs_window(r->desc.op)) {
        enum mcd_run how = mcd_window_provide(g, r);

        if (how != MCD_RUN_DONE)
            return how;
    }
    switch (r->desc.op) {
    case MCS_OP_EXIST:
    case MCS_OP_PREFIX:
        return mcd_object_exist(g, r, budget);
    case MCS_OP_REMOVE:
        return mcd_object_remove(g, r, budget);
    case MCS_OP_SEAL:
        return mcd_object_seal(g, r, budget);
    case MCS_OP_GET:
    case MCS_OP_HOLD:
        return mcd_object_get(g, r, budget);
    default:
        return mcd_object_put(g, r, budget);
    }
}

/* Pins, spaces, legs and questions are let go. False: a leg is still out. */
static bool let_go(struct mcd_engine *g, struct mcd_object *r)
{
    struct mcd_window *w = r->window;

    if (r->far != NULL) {
        r->far->owner = NULL;
        if (r->far->asking)
            mcd_ask_cancel(g, &r->far->ask); /* freed when it is answered */
        else
            mcd_far_put(r->all, r->far);
        r->far = NULL;
    }
    if (w == NULL)
        return true;
    for (unsigned i = 0; i < MCD_LEGS && w->legs != 0; i++)
        if (w->leg[i].busy)
            mcd_leg_cancel(g, r->q, &w->leg[i].leg);
    if (w->legs != 0)
        return false;
    if (r->desc.op == MCS_OP_GET || r->desc.op == MCS_OP_HOLD) {
        for (uint32_t i = 0; i < w->n; i++) {
            bool pinned =
                w->items[i].state == MCD_ITEM_OPEN || w->items[i].state == MCD_ITEM_MOVING;

            if (pinned && w->items[i].view.object != NULL)
                mco_unpin(g->o.store->objects, w->items[i].view.object);
            w->items[i].view.object = NULL;
        }
        if (w->asking)
            mcd_ask_cancel(g, &w->ask);
        else if (w->ask.n != 0 && w->ask.kind == MCD_ASK_FIND)
            mcd_ask_done_with(g, &w->ask);
    } else {
        mcd_object_put_down(g, r, w);
    }
    for (struct mcd_window *a = r->aside, *next; a != NULL;
         a = next) { /* until they are answered */
        next = a->next;
        a->owner = NULL;
    }
    r->aside = NULL;
    mcd_window_leave(g, r);
    return true;
}

static void let_hold_go(struct mcd_engine *g, struct mcd_queue *q, uint64_t hold);

/*
 * Its client will not look at results: what was given with them is taken back, some a turn. They are where the client can write, and
 * name nothing but what its own session holds. False: there is more.
 */
static bool take_back(struct mcd_engine *g, struct mcd_object *r)
{
    const struct mcd_window *w = r->window;
    const uint8_t *results = r->q->shm.args + r->base + r->args.results;
    uint32_t end = r->taken_back + TAKE_BACK < r->next ? r->taken_back + TAKE_BACK : r->next;
    struct mcs_object_result res;

    if (r->desc.op != MCS_OP_HOLD && r->desc.op != MCS_OP_CREATE)
        return true;
    for (; r->taken_back < end; r->taken_back++) {
        memcpy(&res, results + (uint64_t)r->taken_back * sizeof(res), sizeof(res));
        let_hold_go(g, r->q, res.hold);
    }
    if (end < r->next)
        return false;
    for (uint32_t i = 0; w != NULL && r->next < r->args.count && i < w->n; i++)
        if (w->items[i].state == MCD_ITEM_DONE)
            let_hold_go(g, r->q, w->items[i].result.hold);
    return true;
}

static void count_keys(struct mcd_engine *g, const struct mcd_object *r)
{
    struct mcd_object_counters *c = &g->counters.objects;
    unsigned op = r->desc.op - MCS_OP_PUT;

    mcs_count(&c->requests[op], 1);
    mcs_count(&c->keys[op], r->args.count);
    if (r->desc.op == MCS_OP_PUT || r->desc.op == MCS_OP_GET)
        mcs_count(&c->bytes[op], r->bytes);
}

static struct mcd_outcome outcome_of(struct mcd_engine *g, const struct mcd_object *r,
                                     enum mcs_state state, enum mcs_status error, uint64_t waited)
{
    bool moved = r->bytes != 0 && r->desc.op != MCS_OP_EXIST && r->desc.op != MCS_OP_PREFIX &&
                 r->desc.op != MCS_OP_REMOVE;
    uint64_t now = mcs_ticks();

    return (struct mcd_outcome){
        .state = (uint8_t)state,
        .error = (uint16_t)error,
        .path = r->path != MCS_PATH_NONE ? r->path
                : moved                  ? g->local_ops->path
                                         : MCS_PATH_NONE,
        .bytes = r->bytes,
        .queue_ns = mcd_clip32(waited),
        .move_ns = r->started != 0 ? mcd_clip32(mcd_ticks_to_ns(g, now - r->started)) : 0,
    };
}

static void end(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t, enum mcs_state state,
                enum mcs_status error)
{
    struct mcd_object *r = t->object;
    uint64_t from = r->started != 0 ? r->started : mcs_ticks();
    struct mcd_outcome o =
        outcome_of(g, r, state, error, t->queue_ns + mcd_ticks_to_ns(g, from - t->taken));

    leave_space(r);
    mcd_window_offer(g, q); /* it may have been its turn */
    mcd_task_unpark(g, q, t);
    t->object = NULL;
    if (state == MCS_STATE_COMPLETED)
        count_keys(g, r);
    put_object(r->all, r);
    mcd_task_end(g, q, &t->desc, &o);
}

void mcd_object_finish(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t,
                       enum mcs_state state, enum mcs_status error)
{
    struct mcd_object *r = t->object;

    if (!t->ending) {
        t->ending = true;
        t->state = (uint8_t)state;
        t->error = (uint16_t)error;
    }
    if (t->state != MCS_STATE_COMPLETED && !take_back(g, r))
        mcd_object_awake(g, r); /* the rest in the next turns */
    else if (let_go(g, r))
        end(g, q, t, (enum mcs_state)t->state, (enum mcs_status)t->error);
    else
        wait_for(r, false);
}

/* PENDING, for who looks. */
static void show_begun(struct mcd_object *r)
{
    if (r->shown)
        return;
    r->shown = true;
    mcs_slot_complete(&r->q->shm, r->desc.slot,
                      MCS_SLOT_WORD(r->desc.generation, MCS_OK, MCS_PATH_NONE, MCS_STATE_PENDING),
                      r->bytes, 0, 0, 0);
}

/* Has its gate the value? If not, it waits for that, or has ended. */
static bool gate_is_open(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t)
{
    struct mcd_object *r = t->object;
    enum mcs_status error = mcd_gate_look(q, t, &r->open);

    if (error != MCS_OK) {
        mcd_object_finish(g, q, t, MCS_STATE_FAILED, error);
    } else if (!r->open) {
        wait_for(r, false);
        mcd_gate_wait(g, t);
    }
    return error == MCS_OK && r->open;
}

void mcd_object_open(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t,
                     enum mcs_status error)
{
    struct mcd_object *r = t->object;

    if (error != MCS_OK) {
        mcd_object_finish(g, q, t, MCS_STATE_FAILED, error);
        mcd_net_touch(g->net, q);
        return;
    }
    r->open = true;
    mcd_object_awake(g, r);
}

bool mcd_object_advance(struct mcd_engine *g, struct mcd_queue *q, struct mcd_task *t,
                        uint64_t *budget)
{
    struct mcd_object *r = t->object;
    uint64_t before = *budget;

    if (t->ending) {
        mcd_object_pay(budget, TAKE_BACK * MCD_KEY_COST);
        mcd_object_finish(g, q, t, MCS_STATE_FAILED, MCS_INTERNAL);
        return true;
    }
    if (g->now >= t->deadline) {
        mcd_object_finish(g, q, t, MCS_STATE_TIMEOUT, MCS_TIMEOUT);
        return true;
    }
    if (!r->open && (r->desc.flags & MCS_DESC_WAIT) != 0 && !gate_is_open(g, q, t))
        return true;
    switch (run(g, r, budget)) {
    case MCD_RUN_DONE:
        mcd_object_finish(g, q, t, MCS_STATE_COMPLETED, MCS_OK);
        return true;
    case MCD_RUN_FAILED:
        mcd_object_finish(g, q, t, MCS_STATE_FAILED, (enum mcs_status)r->error);
        return true;
    case MCD_RUN_WAIT:
        show_begun(r);
        wait_for(r, false);
        return true;
    case MCD_RUN_SPACE:
        show_begun(r);
        wait_for(r, true);
        return true;
    default:
        if (*budget != before)
            show_begun(r);
        return *budget != before;
    }
}

/* ---- fresh ones ------------------------------------------------------------------------------- */

/* In the queue's lists, or refused. */
static void park(struct mcd_engine *g, struct mcd_object *r, uint64_t age, uint32_t queue_ns,
                 enum mcd_run how)
{
    struct mcd_queue *q = r->q;
    uint32_t slot = r->desc.slot;
    struct mcd_task *t = &q->tasks[slot];

    if (!mcd_task_admit(q, &r->desc)) {
        struct mcs_desc d = r->desc;
        bool begun = r->started != 0;

        while (!take_back(g, r)) { /* no more than one turn has given */
        }
        leave_space(r);
        let_go(g, r); /* no leg is out: those are of parked tasks only */
        put_object(r->all, r);
        mcd_task_refuse(g, q, &d, queue_ns, begun ? MCS_STATE_FAILED : MCS_STATE_INVALID,
                        MCS_LIMIT);
        return;
    }
    *t = (struct mcd_task){
        .desc = r->desc,
        .q = q,
        .taken = g->now,
        .deadline = r->deadline,
        .queue_ns = mcd_clip32(mcd_ticks_to_ns(g, age)),
        .phase = MCD_MOVE,
        .object = r,
        .gate = r->gate,
    };
    r->task = t;
    mcd_list_add(q, slot, r->desc.priority);
    mcd_age_add(q, t);
    mcd_wheel_set(g->wheel, &t->timer, t->deadline);
    q->parked++;
    if (how != MCD_RUN_MORE)
        wait_for(r, how == MCD_RUN_SPACE);
}

static void end_now(struct mcd_engine *g, struct mcd_object *r, uint32_t queue_ns,
                    enum mcs_state state, enum mcs_status error)
{
    struct mcd_outcome o = outcome_of(g, r, state, error, queue_ns);
    struct mcd_queue *q = r->q;
    struct mcs_desc d = r->desc;

    while (state != MCS_STATE_COMPLETED && !take_back(g, r)) {
    }
    let_go(g, r);
    if (state == MCS_STATE_COMPLETED)
        count_keys(g, r);
    put_object(r->all, r);
    mcd_task_end(g, q, &d, &o);
}

/* The client's core has it: its lines come all together, not one after the other. */
static void prefetch_block(const struct mcd_queue *q, const struct mcs_desc *d)
{
    uint64_t at = (uint64_t)d->args * MCS_LINE;

    for (unsigned i = 0; i < HEAD_LINES && at < q->shm.args_size; i++, at += MCS_LINE)
        __builtin_prefetch(q->shm.args + at);
}

void mcd_object_take(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d,
                     uint64_t age, uint64_t deadline, uint32_t queue_ns, bool now_allowed,
                     uint64_t *budget)
{
    enum mcd_run how = MCD_RUN_MORE;
    enum mcs_status error;
    struct mcd_object *r;

    if (g->objects == NULL) {
        mcd_task_refuse(g, q, d, queue_ns, MCS_STATE_INVALID, MCS_NOT_SUPPORTED);
        return;
    }
    prefetch_block(q, d);
    r = take_object(g->objects);
    if (r == NULL) {
        mcd_task_refuse(g, q, d, queue_ns, MCS_STATE_FAILED, MCS_NO_MEMORY);
        return;
    }
    r->q = q;
    r->desc = *d;
    r->tenant = q->session->tenant;
    r->deadline = g->now + (deadline - age);
    error = mcd_object_head(q, d, r);
    if (error != MCS_OK) {
        put_object(g->objects, r);
        mcd_task_refuse(g, q, d, queue_ns, MCS_STATE_INVALID, error);
        return;
    }
    mcs_prefetch_write(q->shm.args + r->base + r->args.results); /* the client has looked there */
    r->catalog = g->o.store->catalog != NULL &&
                 ((r->args.flags & MCS_OBJECT_LOCAL) == 0 || d->op == MCS_OP_PUT ||
                  d->op == MCS_OP_CREATE || d->op == MCS_OP_SEAL);
    /* a gate, and legs, are of tasks that have a place in the queue */
    if (now_allowed && *budget >= MCD_KEY_COST && !mcd_object_may_gpu(r))
        how = run(g, r, budget);
    if (how == MCD_RUN_DONE)
        end_now(g, r, queue_ns, MCS_STATE_COMPLETED, MCS_OK);
    else if (how == MCD_RUN_FAILED)
        end_now(g, r, queue_ns, MCS_STATE_FAILED, (enum mcs_status)r->error);
    else
        park(g, r, age, queue_ns, how);
}

/* ---- RELEASE ------------------------------------------------------------------------------------ */

static void let_hold_go(struct mcd_engine *g, struct mcd_queue *q, uint64_t hold)
{
    struct mco_store *s = g->o.store->objects;
    struct mcd_held held;

    if (hold == 0 || q->session->holds == NULL || !mcd_hold_take(q->session->holds, s, hold, &held))
        return;
    MCS_FAILPOINT(object_undone);
    if (held.creation) {
        mco_abort(s, held.view.object);
        if (g->o.store->catalog != NULL)
            mcd_window_add_undone(g, &held);
    } else {
        mco_unpin(s, held.view.object);
    }
    mcs_count(&g->counters.objects.released, 1);
}

void mcd_object_release(struct mcd_engine *g, struct mcd_queue *q, const struct mcs_desc *d)
{
    struct mcs_release release;

    if (g->objects == NULL)
        return;
    memcpy(&release, d, sizeof(release));
    for (unsigned i = 0; i < MCS_RELEASE_MAX; i++)
        let_hold_go(g, q, release.holds[i]);
}

/* ---- what others say ------------------------------------------------------------------------------ */

bool mcd_objects_turn(struct mcd_engine *g)
{
    struct mcd_objects *o = g->objects;
    struct mcd_object *r;
    uint32_t ready;
    bool any;

    o->woken_seen = mcs_load_acquire(&o->woken); /* partner: mcd_objects_wake() */
    any = mcd_asks_turn(g);
    if (o->undone != NULL)
        mcd_window_send_undone(g);
    ready = mcs_load_acquire(&o->ready); /* partner: mcd_objects_ready() */
    if (ready == o->ready_seen)
        return any;
    o->ready_seen = ready;
    while ((r = o->space) != NULL)
        mcd_object_awake(g, r);
    return true;
}

bool mcd_objects_pending(const struct mcd_engine *g)
{
    /* partner: mcd_objects_wake() */
    return g->objects != NULL && (mcs_load_acquire(&g->objects->woken) != g->objects->woken_seen ||
                                  g->objects->undone != NULL);
}

void mcd_objects_wake(struct mcd_engine *g)
{
    if (g->objects == NULL)
        return;
    mcs_fetch_add(&g->objects->woken, 1);
    mcd_engine_wake(g); /* its fence orders the count before the look whether the engine sleeps */
}

void mcd_objects_ready(struct mcd_engine *g)
{
    if (g->objects == NULL)
        return;
    mcs_fetch_add(&g->objects->ready, 1);
    mcd_objects_wake(g);
}
