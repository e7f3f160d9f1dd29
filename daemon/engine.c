/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gate.h"
#include "gpu_task.h"
#include "leg.h"
#include "net.h"
#include "object.h"
#include "stage.h"
#include "shm/failpoint.h"

#define COMMAND_RING 16384u
#define COLD_BYTES 8192u /* bytes moved that are worth one more look at a cold queue, or a clock */
#define COLD_LOOKS 64u   /* most of them a turn */
#define COLD_EVERY 4u    /* turns between looks at one cold queue */
#define CLOCK_EVERY 8u   /* short turns between looks at the clock; a burst looks as well */
#define COMMANDS_EVERY 64u /* turns between looks at the command ring */
#define COMMANDS_US 500u   /* and at most so long, where turns are long */
#define BUSY_LOOKS 32u     /* most queues with parked work whose rings are looked at in a turn */
#define COOL_US 1000u      /* a queue without work for so long is cold */
#define YIELD_US 2u        /* without work for so long, and so often: who else wants the core? */
#define BLOCKED_MS 1       /* sleep while all that is left waits for receivers */

int mcd_engine_create(const struct mcd_engine_options *o, struct mcd_engine **out)
{
    const struct mct_env env = {.tick_hz = o->tick_hz};
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
    struct mcd_engine *g;
    ssize_t ring_size;
    int res = -ENOMEM;

    g = aligned_alloc(128, (sizeof(*g) + 127) & ~(size_t)127);
    if (g == NULL)
        return -ENOMEM;
    memset(g, 0, sizeof(*g));
    g->o = *o;
    g->epoll_fd = g->event_fd = -1;
    g->turn = 1;
    g->burst = MCD_BURST;
    g->ticks_per_us = o->tick_hz / 1000000;
    g->spin_ticks = o->spin_us * g->ticks_per_us;
    g->yield_ticks = YIELD_US * g->ticks_per_us;
    g->cool_ticks = COOL_US * g->ticks_per_us;
    g->commands_ticks = COMMANDS_US * g->ticks_per_us;
    g->ns_mult = (uint64_t)(((unsigned __int128)1000000000u << 32) / o->tick_hz);
    ring_size = rte_ring_get_memsize_elem(sizeof(void *), COMMAND_RING);
    g->commands = aligned_alloc(128, ((size_t)ring_size + 127) & ~(size_t)127);
    if (g->commands == NULL)
        goto error;
    if (rte_ring_init(g->commands, "commands", COMMAND_RING, RING_F_SP_ENQ | RING_F_SC_DEQ) != 0)
        goto error;
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    g->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (g->epoll_fd < 0 || g->event_fd < 0 ||
        epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, g->event_fd, &ev) != 0) {
        res = -errno;
        goto error;
    }
    g->wheel = malloc(sizeof(*g->wheel));
    if (g->wheel == NULL)
        goto error;
    g->now = g->commands_at = g->idle_at = mcs_ticks();
    mcd_engine_show(g, &g->own_stats);
    mcd_wheel_init(g->wheel, o->tick_hz, g->now);
    mcd_shares_init(&g->shares, o->slice, o->tick_hz);
    g->local_ops = &mct_local_ops;
    res = g->local_ops->init(&env, &g->local_transport);
    if (res != 0)
        goto error;
    res = g->local_ops->connect(g->local_transport, NULL, &g->local);
    if (res != 0)
        goto error;
    res = mcd_net_create(g);
    if (res == 0 && o->store != NULL)
        res = mcd_objects_create(g, &g->objects);
    if (res == 0 && o->cuda != NULL)
        res = mcd_gpu_tasks_create(g);
    if (res == 0 && o->cuda != NULL && o->nnets != 0 && o->gpu_staging != 0)
        res = mcd_stages_create(o->gpu_staging, &g->stages);
    if (res != 0)
        goto error;
    *out = g;
    return 0;

error:
    mcd_engine_destroy(g);
    return res;
}

void mcd_engine_destroy(struct mcd_engine *g)
{
    if (g == NULL)
        return;
    /* Whoever ran the loop has joined its thread; this says so to those who cannot see the join,
     * which is inside DPDK. Partner: mcd_engine_run(). */
    (void)mcs_load_acquire(&g->ended);
    mcd_net_destroy(g);
    mcd_objects_destroy(g->objects);
    mcd_gpu_tasks_destroy(g);
    mcd_stages_destroy(g->stages);
    if (g->local != NULL)
        g->local_ops->disconnect(g->local);
    if (g->local_transport != NULL)
        g->local_ops->fini(g->local_transport);
    if (g->epoll_fd >= 0)
        close(g->epoll_fd);
    if (g->event_fd >= 0)
        close(g->event_fd);
    mcd_shares_fini(&g->shares);
    free(g->wheel);
    free(g->commands);
    free(g->hot);
    free(g->cold);
    free(g);
}

int mcd_queue_init(struct mcd_queue *q)
{
    if (q->stats == NULL)
        q->stats = &q->own_stats;
    /* Untouched records cost no memory: calloc takes large tables from fresh pages. */
    q->tasks = calloc(q->shm.slots + MCD_LEGS, sizeof(*q->tasks));
    q->batches = calloc(q->shm.batches, sizeof(*q->batches));
    q->active = calloc((q->shm.slots + MCD_LEGS + 63) / 64, sizeof(*q->active));
    if (q->tasks == NULL || q->batches == NULL || q->active == NULL ||
        mcd_trace_init(&q->trace) != 0) {
        mcd_queue_fini(q);
        return -ENOMEM;
    }
    for (unsigned c = 0; c < MCD_LISTS; c++)
        q->list_head[c] = q->list_tail[c] = MCD_NO_TASK;
    q->age_head = q->age_tail = q->resume = MCD_NO_TASK;
    return 0;
}

void mcd_queue_fini(struct mcd_queue *q)
{
    free(q->tasks);
    free(q->batches);
    free(q->active);
    free(q->lanes);
    mcd_trace_fini(&q->trace);
    q->lanes = NULL;
    q->active = NULL;
    q->tasks = NULL;
    q->batches = NULL;
}

/* ---- commands -------------------------------------------------------------------- */

static void ring_event(int fd)
{
    uint64_t one = 1;

    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {
        /* again; when it is full of unread wake-ups, one of them is enough */
    }
}

void mcd_engine_command(struct mcd_engine *g, struct mcd_command *command)
{
    while (rte_ring_sp_enqueue(g->commands, command) != 0) {
        ring_event(g->event_fd);
        mcs_pause();
    }
    ring_event(g->event_fd);
}

void mcd_engine_call(struct mcd_engine *g, struct mcd_command *c,
                     bool (*call)(struct mcd_engine *, struct mcd_command *), void *context)
{
    *c = (struct mcd_command){.kind = MCD_COMMAND_CALL, .call = call, .context = context};
    mcd_engine_command(g, c);
}

int mcd_engine_watch(struct mcd_engine *g, int event_fd)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET};

    return epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, event_fd, &ev) == 0 ? 0 : -errno;
}

void mcd_engine_unwatch(struct mcd_engine *g, int event_fd)
{
    epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, event_fd, NULL);
}

void mcd_engine_tune(struct mcd_engine *g, uint64_t deadline_us, uint64_t spin_us, uint64_t slice,
                     uint64_t stream_min)
{
    /* partners: the engine's relaxed loads; it may see one sooner than the other, any mix will do */
    mcs_store_relaxed(&g->o.deadline_us, deadline_us);
    mcs_store_relaxed(&g->o.slice, slice);
    mcs_store_relaxed(&g->o.stream_min, stream_min);
    mcs_store_relaxed(&g->spin_ticks, spin_us * g->ticks_per_us);
}

void mcd_engine_show(struct mcd_engine *g, struct mcs_stats_engine *stats)
{
    stats->id = g->o.id;
    stats->core = g->o.core;
    stats->never_sleeps = g->o.never_sleeps;
    g->stats = stats;
}

/* Shows how far the engine is; partners of all stores: relaxed loads of whoever looks. */
static void publish(struct mcd_engine *g)
{
    struct mcs_stats_engine *s = g->stats;

    mcs_store_relaxed(&s->beat, g->now);
    mcs_store_relaxed(&s->idle, g->idle);
    mcs_store_relaxed(&s->turns, g->turn);
    mcs_store_relaxed(&s->sleeps, g->counters.sleeps);
    mcs_store_relaxed(&s->tasks, g->counters.tasks);
    mcs_store_relaxed(&s->bytes, g->counters.bytes);
    mcs_store_relaxed(&s->failed, g->counters.tasks - g->counters.states[MCS_STATE_COMPLETED]);
    mcs_store_relaxed(&s->hot, g->nhot);
    mcs_store_relaxed(&s->cold, g->ncold);
}

void mcd_engine_stop(struct mcd_engine *g)
{
    mcs_store_release(&g->stop, 1u); /* partner: mcd_engine_run() */
    ring_event(g->event_fd);
}

void mcd_engine_wake(struct mcd_engine *g)
{
    mcs_fence_full(); /* orders what was stored before this look; partner: sleep_until_rung() */
    if (mcs_load_relaxed(&g->asleep) != 0)
        ring_event(g->event_fd);
}

static void put_hot(struct mcd_engine *g, struct mcd_queue *q)
{
    q->hot = true;
    q->place = g->nhot;
    g->hot[g->nhot++] = q;
}

static void put_cold(struct mcd_engine *g, struct mcd_queue *q)
{
    q->hot = false;
    q->place = g->ncold;
    g->cold[g->ncold++] = q;
}

static void take_out(struct mcd_engine *g, struct mcd_queue *q)
{
    struct mcd_queue **array = q->hot ? g->hot : g->cold;
    uint32_t *n = q->hot ? &g->nhot : &g->ncold;

    array[q->place] = array[--*n];
    array[q->place]->place = q->place;
}

/* Room for one queue more in both arrays. */
static bool make_room(struct mcd_engine *g)
{
    uint32_t room = g->room == 0 ? 64 : g->room * 2;
    struct mcd_queue **hot, **cold;

    if (g->nhot + g->ncold < g->room)
        return true;
    hot = realloc(g->hot, room * sizeof(*hot));
    if (hot == NULL)
        return false;
    g->hot = hot;
    cold = realloc(g->cold, room * sizeof(*cold));
    if (cold == NULL)
        return false;
    g->cold = cold;
    g->room = room;
    return true;
}

void mcd_engine_tell_control(struct mcd_engine *g)
{
    if (g->o.control_fd >= 0)
        ring_event(g->o.control_fd);
}

/* True when the command is over. */
static bool run_command(struct mcd_engine *g, struct mcd_command *command)
{
    struct mcd_queue *q = command->queue;

    switch (command->kind) {
    case MCD_COMMAND_ADD:
        if (MCS_FAIL(queue_add) == 0 && make_room(g) &&
            mcd_share_join(&g->shares, &q->leaf, q->tenant, q->session) == 0) {
            put_cold(g, q);
        } else {
            q->broken = true;
            mcs_store_release(&q->error, (uint32_t)MCS_NO_MEMORY);
        }
        return true;
    case MCD_COMMAND_REMOVE:
        if (!q->broken)
            take_out(g, q);
        q->broken = true; /* in neither array any more */
        if (!mcd_queue_cancel_all(g, q))
            return false;
        mcd_share_leave(&g->shares, &q->leaf);
        return true;
    default:
        if (g->net->n != 0)
            mcd_net_enable(g);
        return command->call(g, command);
    }
}

bool mcd_engine_drain(struct mcd_engine *g, struct mcd_command *c)
{
    (void)c;
    g->burst = 0;
    for (uint32_t i = 0; i < g->nhot; i++)
        if (g->hot[i]->parked != 0 || g->hot[i]->remote != 0 || g->hot[i]->waits != 0)
            return false;
    return true;
}

static void finish_command(struct mcd_engine *g, struct mcd_command *command)
{
    /* partner: the control thread's acquire before it reuses queue and command */
    mcs_store_release(&command->done, 1u);
    mcd_engine_tell_control(g);
}

/* Those that are not over yet, each turn. */
static bool run_calls(struct mcd_engine *g)
{
    struct mcd_command **link = &g->calls;
    bool any = false;

    while (*link != NULL) {
        struct mcd_command *command = *link;

        if (!run_command(g, command)) {
            link = &command->next;
            continue;
        }
        *link = command->next;
        finish_command(g, command);
        any = true;
    }
    return any;
}

static bool run_commands(struct mcd_engine *g)
{
    bool any = false;
    void *p;

    g->commands_at = g->now;
    while (rte_ring_sc_dequeue(g->commands, &p) == 0) {
        struct mcd_command *command = p;

        any = true;
        if (run_command(g, command)) {
            finish_command(g, command);
        } else {
            command->next = g->calls;
            g->calls = command;
        }
    }
    return any;
}

/* ---- the loop -------------------------------------------------------------------- */

/* A queue that broke the protocol is left alone until the control thread removes it. */
static void retire(struct mcd_engine *g, struct mcd_queue *q)
{
    take_out(g, q);
    mcd_queue_cancel_all(g, q);
    mcd_engine_tell_control(g);
}

/*
 * Between two slices of parked work all queues are looked at that could have something small, however many
 * others there are with much to do; of those a part, so that the looks do not cost more than the work.
 */
static uint32_t skip_mask(const struct mcd_engine *g)
{
    uint32_t mask = 0;

    while (g->shares.nready > (mask + 1) * BUSY_LOOKS)
        mask = mask * 2 + 1;
    return mask;
}

static bool turn_hot(struct mcd_engine *g)
{
    uint32_t mask = skip_mask(g);
    bool any = false;

    for (uint32_t i = 0; i < g->nhot;) {
        struct mcd_queue *q = g->hot[i];

        if (mask != 0 && q->leaf.share.ready != 0 && ((i ^ (uint32_t)g->turn) & mask) != 0) {
            i++;
            continue;
        }
        if (mcd_queue_turn(g, q)) {
            q->last_work = g->now;
            any = true;
        }
        if (q->wake_due != 0 && g->turn >= q->wake_due)
            mcd_queue_wake(g, q);
        if (q->broken) {
            retire(g, q);
        } else if (q->parked == 0 && q->remote == 0 && q->waits == 0 && q->wake_due == 0 &&
                   g->now - q->last_work > g->cool_ticks) {
            mcs_ring_settle(&q->consumer);
            take_out(g, q);
            put_cold(g, q);
        } else {
            i++;
        }
    }
    return any;
}

static bool turn_cold(struct mcd_engine *g)
{
    struct mcd_queue *q;

    if (g->ncold == 0)
        return false;
    if (g->cold_next >= g->ncold)
        g->cold_next = 0;
    q = g->cold[g->cold_next++];
    if (!mcs_ring_pending(&q->consumer))
        return false;
    take_out(g, q);
    q->last_work = g->now;
    put_hot(g, q);
    return true;
}

static void fire(void *context, struct mcd_timer *t)
{
    mcd_task_timer(context, t);
}

static bool run_timers(struct mcd_engine *g)
{
    mcd_net_look_at_clock(g);
    g->now = g->net->ticks;
    return mcd_wheel_run(g->wheel, g->now, fire, g);
}

bool mcd_engine_turn(struct mcd_engine *g)
{
    uint64_t looks;
    bool any;

    /* g->moved: of the turn before, which took a while if it was much */
    if (g->turn % CLOCK_EVERY == 0 || g->moved >= COLD_BYTES)
        g->now = mcs_ticks();
    /* E1: everything looked up in this turn is looked up after this; release pairs with the
     * acquire in mcd_grace_over(). */
    mcs_store_release(&g->epoch, g->epoch + 1);
    if (g->o.fence_turns)
        mcs_fence_full(); /* partner: mcd_grace_begin() */
    g->moved = g->spent = 0;
    g->shares.turn = g->turn;
    g->shares.quantum = mcs_load_relaxed(&g->o.slice); /* partner: mcd_engine_tune() */
    any = turn_hot(g);
    if (g->objects != NULL)
        any |= mcd_objects_turn(g);
    if (g->gates.first != NULL)
        any |= mcd_gates_turn(g);
    if (g->shares.nready != 0)
        any |= mcd_parked_turn(g);
    if (g->gpu_tasks != NULL && mcd_gpu_tasks_any(g))
        any |= mcd_gpu_tasks_turn(g);
    /* A look is cheap beside a long turn: who was quiet is found after a few of them, however
     * many others are quiet. */
    looks = g->moved / COLD_BYTES < COLD_LOOKS ? g->moved / COLD_BYTES : COLD_LOOKS;
    if (looks == 0 && g->turn % COLD_EVERY == 0)
        looks = 1;
    for (; looks != 0; looks--)
        any |= turn_cold(g);
    if (mcd_wheel_due(g->wheel, g->now))
        any |= run_timers(g);
    if (!mcd_net_idle(g->net))
        any |= mcd_net_turn(g);
    if (g->calls != NULL)
        any |= run_calls(g);
    if (g->turn % COMMANDS_EVERY == 0 || g->now - g->commands_at > g->commands_ticks) {
        any |= run_commands(g);
        mcs_store_relaxed(&g->counters.turns, g->turn);
        publish(g);
    }
    g->turn++;
    return any;
}

static void set_asleep(struct mcd_engine *g, bool asleep)
{
    for (uint32_t i = 0; i < g->nhot; i++)
        mcs_queue_sleep(&g->hot[i]->shm, asleep);
    for (uint32_t i = 0; i < g->ncold; i++)
        mcs_queue_sleep(&g->cold[i]->shm, asleep);
}

/* The last look around before sleep; work that is parked and blocked does not count. */
static bool anything_pending(struct mcd_engine *g)
{
    if (!mcd_net_may_sleep(g) || mcd_objects_pending(g) || !mcd_gpu_jobs_may_sleep(g))
        return true;
    for (uint32_t i = 0; i < g->nhot; i++)
        if (mcs_ring_pending(&g->hot[i]->consumer))
            return true;
    for (uint32_t i = 0; i < g->ncold; i++) {
        if (mcs_ring_pending(&g->cold[i]->consumer)) {
            g->cold_next = i;
            return true;
        }
    }
    /* prod.tail: partner mcd_engine_command(); this thread alone moves cons.head */
    return mcs_load_acquire(&g->commands->prod.tail) != g->commands->cons.head ||
           mcs_load_acquire(&g->stop) != 0;
}

/* All the time since idle_at was idle. */
static void count_idle(struct mcd_engine *g, uint64_t now)
{
    if (now > g->idle_at)
        g->idle += now - g->idle_at;
    g->idle_at = now;
}

/* For `timeout` ms, -1: any time; no longer than `nap` ns, which is at most a millisecond, or UINT64_MAX. */
static void await_events(struct mcd_engine *g, int timeout, uint64_t nap)
{
    struct timespec t = {.tv_nsec = (long)nap};
    struct epoll_event events[16];

    if (nap == UINT64_MAX || timeout == 0)
        epoll_wait(g->epoll_fd, events, 16, timeout);
    else if (epoll_pwait2(g->epoll_fd, events, 16, &t, NULL) < 0 && errno == ENOSYS)
        epoll_wait(g->epoll_fd, events, 16, BLOCKED_MS); /* before Linux 5.11 */
}

static void sleep_until_rung(struct mcd_engine *g)
{
    bool blocked = g->calls != NULL;
    uint64_t nap;
    int timeout;

    for (uint32_t i = 0; i < g->nhot; i++) {
        if (g->hot[i]->wake_due != 0)
            mcd_queue_wake(g, g->hot[i]);
        blocked = blocked || g->hot[i]->parked != 0;
        mcs_ring_settle(&g->hot[i]->consumer);
    }
    timeout = mcd_net_timeout(g);
    if ((blocked || mcd_gpu_tasks_wait(g)) && (timeout < 0 || timeout > BLOCKED_MS))
        timeout = BLOCKED_MS;
    nap = mcd_gates_nap(g);
    set_asleep(g, true);
    publish(g);
    mcs_store_relaxed(&g->stats->asleep_since, g->now);
    mcs_store_relaxed(&g->stats->asleep, 1u);
    /* release: what the last turn did with what it had looked up comes before; pairs with the acquire
     * in mcd_grace_over(). tests/model/grace.pml, engine_sleep.pml */
    mcs_store_release(&g->asleep, 1u);
    /* orders need_wakeup before the look at the rings (partner: mcs_queue_must_wake()), and
     * asleep before any later look-up (partner: mcd_grace_begin()) */
    mcs_fence_full();
    MCS_FAILPOINT(engine_sleep);
    if (!anything_pending(g) && mcd_net_may_sleep(g)) {
        mcs_count(&g->counters.sleeps, 1);
        await_events(g, timeout, nap);
    }
    mcs_store_relaxed(&g->asleep, 0u);
    mcs_fence_full(); /* asleep = 0 before the next turn looks anything up */
    count_idle(g, mcs_ticks());
    publish(g);
    mcs_store_relaxed(&g->stats->asleep, 0u);
    /* Who rang is not told: look at all of the cold queues. Serve first, tidy up after: until
     * need_wakeup is down a client may ring in vain, no more. */
    for (uint32_t i = 0; i < g->ncold;) {
        struct mcd_queue *q = g->cold[i];

        if (mcs_ring_pending(&q->consumer)) {
            take_out(g, q);
            q->last_work = g->now;
            put_hot(g, q);
        } else {
            i++;
        }
    }
    g->turn += CLOCK_EVERY - g->turn % CLOCK_EVERY; /* a turn that looks at the clock */
    mcd_engine_turn(g);
    set_asleep(g, false);
    run_commands(g);
    g->last_work = g->now;
    g->idle_at = mcs_ticks();
}

/*
 * Waiting for work without sleep saves a small task the few microseconds that a wake-up takes. It
 * gives nothing to large transfers over a network, whose next bytes are in the kernel's buffers by the
 * time that the engine is awake; so after a burst of those the engine sleeps at once.  And whoever
 * else wants this core in the meantime - the client, another host's agent in a test - gets it.
 */
static void idle(struct mcd_engine *g, bool first)
{
    uint64_t now;

    if (first)
        g->bulk = mcd_net_was_bulk(g);
    now = mcs_ticks();
    if (!first)
        count_idle(g, now);
    g->idle_at = now;
    if (g->bulk || now - g->last_work > mcs_load_relaxed(&g->spin_ticks)) {
        g->now = now;
        sleep_until_rung(g);
        g->yielded = g->now;
    } else if (now - g->last_work > g->yield_ticks && now - g->yielded > g->yield_ticks) {
        sched_yield();
        g->yielded = mcs_ticks();
    } else if (g->nhot == 0) {
        mcs_pause();
    }
}

void mcd_engine_run(struct mcd_engine *g)
{
    bool worked = true;

    g->last_work = mcs_ticks();
    while (mcs_load_acquire(&g->stop) == 0) { /* partner: mcd_engine_stop() */
        if (mcd_engine_turn(g)) {
            g->last_work = g->now;
            worked = true;
        } else if (g->o.never_sleeps) {
            if (!worked)
                count_idle(g, g->now);
            g->idle_at = g->now;
            worked = false;
            if (g->nhot == 0)
                mcs_pause();
        } else {
            idle(g, worked);
            worked = false;
        }
    }
    mcd_net_close(g);
    mcd_gpu_jobs_close(g);
    mcs_store_release(&g->ended, 1u); /* partner: mcd_engine_destroy() */
}

/* ---- grace periods: tests/model/grace.pml ------------------------------------------ */

bool mcd_grace_has_membarrier(void)
{
    static int known; /* 0 not asked yet, 1 yes, 2 no; control thread only */

    if (known == 0)
        known =
            syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 ? 1 : 2;
    return known == 1;
}

void mcd_grace_begin(struct mcd_grace *grace, struct mcd_engine *const *engines, unsigned n)
{
    grace->engines = engines;
    grace->n = n;
    /* Orders the swap before the looks below; partner: the fences in sleep_until_rung(). */
    mcs_fence_full();
    /* And a full fence in every running thread: what an engine loads in a turn that begins
     * after this is new, and the turn it is in now is the one its epoch names. */
    if (mcd_grace_has_membarrier())
        syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    for (unsigned i = 0; i < n; i++)
        grace->epochs[i] = mcs_load_acquire(&engines[i]->epoch);
}

bool mcd_grace_over(const struct mcd_grace *grace)
{
    for (unsigned i = 0; i < grace->n; i++) {
        struct mcd_engine *g = grace->engines[i];

        if (mcs_load_acquire(&g->epoch) == grace->epochs[i] && /* pairs with E1 */
            mcs_load_acquire(&g->asleep) == 0)
            return false;
    }
    return true;
}
