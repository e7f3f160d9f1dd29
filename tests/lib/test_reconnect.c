/* SPDX-License-Identifier: Apache-2.0 */
/* Coming back to a later agent, and not coming back. */
#include "later.h"

#include <sys/wait.h>

TestSuite(reconnect, .timeout = 60);

struct world {
    struct later a;
    mcshm *c;
    mcshm_queue *q;
    uint8_t *memory;
    mcshm_segment segment;
    uint32_t losses; /* that the library has noticed: atomic */
};

static void on_log(void *context, mcshm_log_level level, const char *text)
{
    struct world *w = context;

    if (level == MCSHM_LOG_WARNING && strstr(text, "is gone") != NULL)
        mcs_store_release(&w->losses, w->losses + 1); /* pairs with later_await() */
}

static void set_up(struct world *w, mcshm_options *o)
{
    mcshm_options own;
    uint64_t address;
    void *p;

    later_start(&w->a, &own);
    if (o != NULL) {
        own.reconnect_ms = o->reconnect_ms;
        own.control_timeout_ms = o->control_timeout_ms;
        own.caller_max = o->caller_max;
    }
    own.log = on_log;
    own.log_context = w;
    cr_assert_eq(mcshm_connect(&own, &w->c), MCSHM_OK, "%s", mcshm_last_error(NULL));
    cr_assert_eq(mcshm_queue_open(w->c, NULL, &w->q), MCSHM_OK, "%s", mcshm_last_error(NULL));
    cr_assert_eq(mcshm_alloc(w->c, 4096, 0, NULL, &p), MCSHM_OK, "%s", mcshm_last_error(NULL));
    w->memory = p;
    cr_assert_eq(mcshm_segment_publish(w->c, "own", 0), MCSHM_OK);
    cr_assert_eq(mcshm_buffer_publish(w->c, p, 64, MCSHM_ACCESS_READ, &address), MCSHM_OK);
    cr_assert_eq(mcshm_segment_open(w->c, "other", &w->segment), MCSHM_OK);
}

static void tear_down(struct world *w)
{
    /* nobody reads the answer of an agent that is asked to end while it is there */
    mcs_store_relaxed(&w->a.region.words->ended, 1u);
    mcshm_close(w->c);
    later_stop(&w->a);
}

static uint32_t restarts(struct world *w)
{
    mcshm_info info;

    cr_assert_eq(mcshm_get_info(w->c, &info), MCSHM_OK);
    return (uint32_t)info.restarts;
}

static void await_restarts(struct world *w, uint32_t n)
{
    later_await(&w->c->restarts, n);
    cr_assert_eq(restarts(w), n);
}

static mcshm_request request_of(struct world *w)
{
    return (mcshm_request){.opcode = MCSHM_WRITE,
                           .local = w->memory,
                           .segment = w->segment,
                           .remote_address = 0x10000,
                           .length = 8};
}

static mcshm_batch submit(struct world *w, uint32_t capacity, uint32_t n)
{
    mcshm_request r = request_of(w);
    mcshm_batch b;

    cr_assert_eq(mcshm_batch_alloc(w->q, capacity, &b), MCSHM_OK);
    for (uint32_t i = 0; i < n; i++)
        cr_assert_eq(mcshm_submit(w->q, b, &r, 1), MCSHM_OK);
    return b;
}

static void take(struct world *w, struct mcs_desc *d, unsigned n)
{
    int taken;

    pthread_mutex_lock(&w->a.mutex);
    taken = mcs_ring_take(&w->a.consumer, d, n);
    mcs_ring_publish(&w->a.consumer);
    pthread_mutex_unlock(&w->a.mutex);
    cr_assert_eq(taken, (int)n);
}

/* As an engine does; line 0: it dies before it gets to the batch. */
static void end(struct world *w, const struct mcs_desc *d, uint32_t state, uint32_t line)
{
    pthread_mutex_lock(&w->a.mutex);
    mcs_slot_complete(&w->a.queue, d->slot, MCS_SLOT_WORD(d->generation, 0, MCS_PATH_LOCAL, state),
                      d->length, 1, 2, 0);
    if (line != 0)
        mcs_batch_publish(&w->a.queue, d->batch, d->batch_generation, line, 0, line,
                          line * d->length);
    pthread_mutex_unlock(&w->a.mutex);
}

static void expect_task(struct world *w, mcshm_batch b, uint32_t index, mcshm_state state,
                        mcshm_status error)
{
    mcshm_task_status t;

    cr_assert_eq(mcshm_task_poll(w->q, b, index, &t), MCSHM_OK);
    cr_assert_eq(t.state, state, "task %u is %s", index, mcshm_state_name(t.state));
    cr_assert_eq(t.error, error);
    cr_assert(error != MCSHM_AGENT_RESTARTED || !t.remote_quiesced);
}

Test(reconnect, hands_everything_back_in_order)
{
    static const uint16_t order[] = {
        MCS_MSG_RESTORE,     MCS_MSG_EXTENT_BACK, MCS_MSG_ALLOCS_BACK,
        MCS_MSG_EXTENT_BACK, MCS_MSG_QUEUE_BACK,  MCS_MSG_BUFFER_ADD,
        MCS_MSG_BUFFER_ADD,  MCS_MSG_OPEN_BACK,   MCS_MSG_RESUME,
    };
    struct world w = {0};
    mcshm_info info;
    uint64_t address;
    void *second, *mine;
    int fd = memfd_create("mine", MFD_ALLOW_SEALING);
    uint32_t at = 0;

    set_up(&w, NULL);
    cr_assert(ftruncate(fd, 8192) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    cr_assert_eq(mcshm_register_memfd(w.c, fd, 8192, &mine), MCSHM_OK, "%s",
                 mcshm_last_error(NULL));
    cr_assert_eq(mcshm_alloc(w.c, 100, 0, NULL, &second), MCSHM_OK);
    cr_assert_eq(mcshm_buffer_publish(w.c, w.memory, 64, MCSHM_ACCESS_READ, &address), MCSHM_OK);
    memset(w.memory, 0x5a, 4096);
    later_kill(&w.a);
    await_restarts(&w, 1);
    pthread_mutex_lock(&w.a.mutex);
    for (uint32_t i = 0; i < w.a.nlog; i++) {
        const union mcs_msg_body *m = &w.a.log[i].b;

        if (w.a.log[i].life != 2)
            continue;
        cr_assert_lt(at, sizeof(order) / sizeof(order[0]));
        cr_assert_eq(w.a.log[i].h.type, order[at], "message %u is of type %u", at,
                     w.a.log[i].h.type);
        switch (w.a.log[i].h.type) {
        case MCS_MSG_RESTORE:
            cr_assert_eq(w.a.log[i].ino, later_ino(w.a.region_fd));
            cr_assert(m->restore.session_incarnation == 3 && m->restore.agent_incarnation == 101 &&
                      m->restore.abi_version == MCS_ABI_VERSION);
            break;
        case MCS_MSG_EXTENT_BACK:
            cr_assert_eq(w.a.log[i].ino, later_ino(at == 1 ? w.a.extent_fd : fd));
            cr_assert(m->extent_back.extent == LATER_EXTENT + (at == 1 ? 0 : 1) &&
                      m->extent_back.size == (at == 1 ? LATER_EXTENT_SIZE : 8192));
            break;
        case MCS_MSG_ALLOCS_BACK:
            cr_assert(m->allocs_back.extent == LATER_EXTENT && m->allocs_back.count == 2);
            cr_assert(
                m->allocs_back.allocs[0].offset == 0 && m->allocs_back.allocs[0].size == 4096 &&
                m->allocs_back.allocs[1].offset == 4096 && m->allocs_back.allocs[1].size == 100);
            break;
        case MCS_MSG_QUEUE_BACK:
            cr_assert_eq(w.a.log[i].ino, later_ino(w.a.queue_fd));
            cr_assert(m->queue_back.queue_id == LATER_QUEUE && m->queue_back.depth == 8 &&
                      m->queue_back.slots == 32 && m->queue_back.batches == 8 &&
                      m->queue_back.args_size == 8192);
            break;
        case MCS_MSG_BUFFER_ADD:
            cr_assert(m->buffer.extent == LATER_EXTENT && m->buffer.offset == 0 &&
                      m->buffer.length == 64 && m->buffer.access == MCS_ACCESS_READ);
            break;
        case MCS_MSG_OPEN_BACK:
            cr_assert(m->open_back.segment == LATER_SEGMENT && m->open_back.incarnation == 77);
            cr_assert_str_eq(m->open_back.name, "other");
            break;
        default:
            break;
        }
        at++;
    }
    pthread_mutex_unlock(&w.a.mutex);
    cr_assert_eq(at, sizeof(order) / sizeof(order[0]));
    cr_assert_eq(mcshm_get_info(w.c, &info), MCSHM_OK);
    cr_assert_eq(info.agent_incarnation, 102);
    cr_assert_eq(info.session_incarnation, 3);
    for (int i = 0; i < 4096; i++)
        cr_assert_eq(w.memory[i], 0x5a);
    close(fd);
    tear_down(&w);
}

Test(reconnect, only_what_was_in_the_dead_ones_hands_is_lost)
{
    mcshm_batch_status s;
    struct world w = {0};
    struct mcs_desc d[4];
    mcshm_batch b, other;

    set_up(&w, NULL);
    b = submit(&w, 8, 4);
    take(&w, d, 3);
    end(&w, &d[0], MCS_STATE_COMPLETED, 1);
    end(&w, &d[1], MCS_STATE_COMPLETED, 0); /* not counted any more */
    later_kill(&w.a);
    await_restarts(&w, 1);
    cr_assert_eq(mcshm_batch_poll(w.q, b, &s), MCSHM_BUSY);
    cr_assert(s.tasks == 4 && s.ended == 3 && s.failed == 1 && s.bytes == 16);
    expect_task(&w, b, 0, MCSHM_STATE_COMPLETED, MCSHM_OK);
    expect_task(&w, b, 1, MCSHM_STATE_COMPLETED, MCSHM_OK);
    expect_task(&w, b, 2, MCSHM_STATE_FAILED, MCSHM_AGENT_RESTARTED);
    expect_task(&w, b, 3, MCSHM_STATE_WAITING, MCSHM_OK);
    cr_assert_eq(mcshm_cancel(w.q, b, 2), MCSHM_OK, "it has ended");
    cr_assert_eq(mcshm_batch_free(w.q, b), MCSHM_BUSY);
    take(&w, &d[3], 1);
    cr_assert_eq(d[3].slot, w.q->batches[(uint32_t)b].slots[3], "what was not taken comes now");
    end(&w, &d[3], MCS_STATE_COMPLETED, 2);
    cr_assert_eq(mcshm_batch_wait(w.q, b, -1), MCSHM_OK);
    cr_assert_eq(mcshm_batch_poll(w.q, b, &s), MCSHM_OK);
    cr_assert(s.ended == 4 && s.failed == 1 && s.bytes == 24);
    cr_assert_eq(mcshm_batch_free(w.q, b), MCSHM_OK);

    /* slots and batch live on */
    other = submit(&w, 4, 4);
    take(&w, d, 4);
    cr_assert_eq(mcshm_batch_poll(w.q, other, &s), MCSHM_BUSY);
    cr_assert_eq(s.ended, 0);
    for (uint32_t i = 0; i < 4; i++)
        end(&w, &d[i], MCS_STATE_COMPLETED, i + 1);
    cr_assert_eq(mcshm_batch_poll(w.q, other, &s), MCSHM_OK);
    cr_assert(s.ended == 4 && s.failed == 0);
    cr_assert_eq(mcshm_batch_free(w.q, other), MCSHM_OK);
    tear_down(&w);
}

Test(reconnect, places_in_the_ring_may_wrap)
{
    struct world w = {0};
    struct mcs_desc d[3];
    mcshm_batch b;

    set_up(&w, NULL);
    /* as after so many descriptors */
    w.q->shm.ring->prod.head = w.q->shm.ring->prod.tail = UINT32_MAX - 1;
    w.q->shm.ring->cons.head = w.q->shm.ring->cons.tail = UINT32_MAX - 1;
    w.a.consumer.head = w.a.consumer.published = *w.a.consumer.taken = UINT32_MAX - 1;
    b = submit(&w, 4, 4);
    take(&w, d, 3);
    later_kill(&w.a);
    await_restarts(&w, 1);
    for (uint32_t i = 0; i < 3; i++)
        expect_task(&w, b, i, MCSHM_STATE_FAILED, MCSHM_AGENT_RESTARTED);
    expect_task(&w, b, 3, MCSHM_STATE_WAITING, MCSHM_OK);
    tear_down(&w);
}

Test(reconnect, submits_and_polls_go_on_while_it_is_away)
{
    struct world w = {0};
    struct mcs_desc d[7];
    mcshm_request r;
    mcshm_batch b;

    set_up(&w, NULL);
    r = request_of(&w);
    mcs_store_release(&w.a.held, true);
    later_kill(&w.a);
    later_await(&w.losses, 1);
    b = submit(&w, 8, 7);
    cr_assert_eq(mcshm_submit(w.q, b, &r, 1), MCSHM_RING_FULL);
    cr_assert_eq(mcshm_batch_poll(w.q, b, NULL), MCSHM_BUSY);
    cr_assert_eq(mcshm_batch_wait(w.q, b, 150000), MCSHM_TIMEOUT);
    mcs_store_release(&w.a.held, false);
    await_restarts(&w, 1);
    take(&w, d, 7);
    for (uint32_t i = 0; i < 7; i++)
        end(&w, &d[i], MCS_STATE_COMPLETED, i + 1);
    cr_assert_eq(mcshm_batch_wait(w.q, b, -1), MCSHM_OK);
    tear_down(&w);
}

static void *wait_for_batch(void *arg)
{
    struct world *w = ((void **)arg)[0];
    mcshm_batch b = *(mcshm_batch *)((void **)arg)[1];

    return (void *)(uintptr_t)mcshm_batch_wait(w->q, b, -1);
}

Test(reconnect, a_sleeper_learns_that_its_task_is_lost)
{
    struct world w = {0};
    pthread_t thread;
    struct mcs_desc d;
    mcshm_batch b;
    void *arg[2] = {&w, &b}, *status;

    set_up(&w, NULL);
    b = submit(&w, 1, 1);
    take(&w, &d, 1);
    cr_assert_eq(pthread_create(&thread, NULL, wait_for_batch, arg), 0);
    later_await(&w.q->shm.doorbell->waiters, MCS_WAIT_BATCH((uint32_t)b));
    later_kill(&w.a);
    pthread_join(thread, &status);
    cr_assert_eq((uintptr_t)status, MCSHM_OK, "all tasks have ended");
    expect_task(&w, b, 0, MCSHM_STATE_FAILED, MCSHM_AGENT_RESTARTED);
    cr_assert_eq(mcshm_batch_free(w.q, b), MCSHM_OK);
    tear_down(&w);
}

Test(reconnect, staged_reads_that_are_lost_leave_private_memory_alone)
{
    uint8_t mine[64];
    mcshm_request r;
    struct world w = {0};
    struct mcs_desc d;
    mcshm_batch b;

    set_up(&w, NULL);
    memset(mine, 1, sizeof(mine));
    cr_assert_eq(mcshm_register(w.c, mine, sizeof(mine)), MCSHM_OK, "%s", mcshm_last_error(NULL));
    r = request_of(&w);
    r.opcode = MCSHM_READ;
    r.local = mine;
    cr_assert_eq(mcshm_batch_alloc(w.q, 1, &b), MCSHM_OK);
    cr_assert_eq(mcshm_submit(w.q, b, &r, 1), MCSHM_OK);
    take(&w, &d, 1);
    memset(w.a.extent + d.local_offset, 2, 8); /* half done */
    later_kill(&w.a);
    await_restarts(&w, 1);
    cr_assert_eq(mcshm_batch_wait(w.q, b, -1), MCSHM_OK);
    expect_task(&w, b, 0, MCSHM_STATE_FAILED, MCSHM_AGENT_RESTARTED);
    for (size_t i = 0; i < sizeof(mine); i++)
        cr_assert_eq(mine[i], 1);
    cr_assert_eq(mcshm_unregister(w.c, mine), MCSHM_OK, "no task holds it: %s",
                 mcshm_last_error(NULL));
    tear_down(&w);
}

/* ---- control calls ----------------------------------------------------------------- */

static enum later_say die_of_alloc_once(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)status;
    return m->h.type == MCS_MSG_ALLOC && mcs_load_relaxed(&a->lives) == 1 ? LATER_DIE
                                                                          : LATER_ANSWER;
}

static enum later_say die_of_alloc(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a, (void)status;
    return m->h.type == MCS_MSG_ALLOC ? LATER_DIE : LATER_ANSWER;
}

Test(reconnect, a_call_under_way_is_made_again)
{
    struct world w = {0};
    void *p;

    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, die_of_alloc_once);
    cr_assert_eq(mcshm_alloc(w.c, 64, 0, NULL, &p), MCSHM_OK, "%s", mcshm_last_error(NULL));
    cr_assert_eq(restarts(&w), 1);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_ALLOC), 1);
    tear_down(&w);
}

Test(reconnect, what_kills_each_agent_is_not_tried_for_ever)
{
    struct world w = {0};
    void *p;

    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, die_of_alloc);
    cr_assert_eq(mcshm_alloc(w.c, 64, 0, NULL, &p), MCSHM_AGENT_RESTARTED);
    cr_assert_not_null(strstr(mcshm_last_error(w.c), "ALLOC"));
    mcs_store_release(&w.a.hook, NULL);
    cr_assert_eq(mcshm_alloc(w.c, 64, 0, NULL, &p), MCSHM_OK, "the connection lives: %s",
                 mcshm_last_error(NULL));
    tear_down(&w);
}

static enum later_say forgetful(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    bool first = mcs_load_relaxed(&a->lives) == 1;

    switch (m->h.type) {
    case MCS_MSG_FREE:
    case MCS_MSG_WITHDRAW:
        *status = MCS_NOT_FOUND;
        return first ? LATER_DIE : LATER_REFUSE;
    case MCS_MSG_EXTENT_BACK:
    case MCS_MSG_QUEUE_BACK:
        return LATER_REFUSE;
    case MCS_MSG_QUEUE_CLOSE:
        return first ? LATER_DIE : LATER_REFUSE;
    default:
        return LATER_ANSWER;
    }
}

Test(reconnect, what_the_dead_one_had_done_is_done)
{
    struct world w = {0};

    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, forgetful);
    cr_assert_eq(mcshm_free(w.c, w.memory), MCSHM_OK, "%s", mcshm_last_error(NULL));
    cr_assert_eq(w.c->nextents, 0);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_FREE), 0, "nobody knows the extent any more");
    tear_down(&w);

    w = (struct world){0};
    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, forgetful);
    cr_assert_eq(mcshm_segment_withdraw(w.c), MCSHM_OK, "%s", mcshm_last_error(NULL));
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_BUFFER_ADD), 0, "no buffer without a name");
    tear_down(&w);

    w = (struct world){0};
    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, forgetful);
    cr_assert_eq(mcshm_queue_close(w.q), MCSHM_OK, "%s", mcshm_last_error(NULL));
    tear_down(&w);
}

/* ---- what is not taken back ---------------------------------------------------------- */

static enum later_say no_queue(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a;
    *status = MCS_BAD_SHM;
    return m->h.type == MCS_MSG_QUEUE_BACK ? LATER_REFUSE : LATER_ANSWER;
}

Test(reconnect, tasks_of_a_queue_that_is_not_taken_back_fail)
{
    mcshm_status status = MCSHM_OK;
    mcshm_request r;
    struct world w = {0};
    mcshm_batch b;

    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, no_queue);
    r = request_of(&w);
    b = submit(&w, 32, 2);
    later_kill(&w.a);
    await_restarts(&w, 1);
    cr_assert_eq(mcshm_batch_wait(w.q, b, -1), MCSHM_OK);
    expect_task(&w, b, 0, MCSHM_STATE_FAILED, MCSHM_AGENT_RESTARTED);
    expect_task(&w, b, 1, MCSHM_STATE_FAILED, MCSHM_AGENT_RESTARTED);
    while (status == MCSHM_OK)
        status = mcshm_submit(w.q, b, &r, 1);
    cr_assert_eq(status, MCSHM_AGENT_DOWN, "it does not stay full for ever");
    tear_down(&w);
}

static enum later_say segment_is_gone(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a;
    *status = MCS_STALE;
    return m->h.type == MCS_MSG_OPEN_BACK ? LATER_REFUSE : LATER_ANSWER;
}

Test(reconnect, a_segment_that_is_gone_stops_nothing)
{
    struct world w = {0};

    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, segment_is_gone);
    later_kill(&w.a);
    await_restarts(&w, 1);
    cr_assert_eq(mcshm_segment_close(w.c, w.segment), MCSHM_OK);
    tear_down(&w);
}

/* ---- grants -------------------------------------------------------------------------- */

Test(reconnect, nobody_copies_by_a_dead_agents_grant)
{
    mcshm_options o = {.reconnect_ms = 10000, .control_timeout_ms = 10000, .caller_max = 4096};
    mcshm_task_status t;
    struct world w = {0};
    const void *map;
    mcshm_batch b, again;
    mcshm_request r;

    set_up(&w, &o);
    r = request_of(&w);
    cr_assert_eq(mcshm_map(w.c, w.segment, 0x10000, 4096, &map), MCSHM_OK);
    b = submit(&w, 4, 1);
    cr_assert_eq(mcshm_task_poll(w.q, b, 0, &t), MCSHM_OK);
    cr_assert_eq(t.path, MCSHM_PATH_CALLER);
    mcs_store_release(&w.a.held, true);
    later_kill(&w.a);
    later_await(&w.losses, 1);
    cr_assert_eq(mcshm_submit(w.q, b, &r, 1), MCSHM_OK);
    cr_assert_eq(mcshm_task_poll(w.q, b, 1, &t), MCSHM_OK);
    cr_assert_eq(t.state, MCSHM_STATE_WAITING, "it went to the ring");
    mcs_store_release(&w.a.held, false);
    await_restarts(&w, 1);
    pthread_mutex_lock(&w.c->mutex); /* the watcher asks for grants before it lets go */
    pthread_mutex_unlock(&w.c->mutex);
    again = submit(&w, 1, 1);
    cr_assert_eq(mcshm_task_poll(w.q, again, 0, &t), MCSHM_OK);
    cr_assert_eq(t.path, MCSHM_PATH_CALLER);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_MAP), 2, "one for mcshm_map(), one behind its back");
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_UNMAP), 0, "grants of the first life mean nothing");
    cr_assert_eq(mcshm_unmap(w.c, map), MCSHM_OK);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_UNMAP), 1);
    tear_down(&w);
}

Test(reconnect, engines_that_sleep_now_are_rung)
{
    struct world w = {.a.features = MCS_FEATURE_NEVER_SLEEPS};

    set_up(&w, NULL);
    w.a.queue.doorbell->need_wakeup = 1;
    submit(&w, 1, 1);
    cr_assert_eq(w.q->counters.doorbells, 0);
    mcs_store_release(&w.a.features, 0);
    later_kill(&w.a);
    await_restarts(&w, 1);
    submit(&w, 1, 1);
    cr_assert_eq(w.q->counters.doorbells, 1);
    tear_down(&w);
}

/* ---- lives that are too short, and the end --------------------------------------------- */

static enum later_say die_half_way(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    static const uint16_t of[] = {0,
                                  0,
                                  MCS_MSG_RESTORE,
                                  MCS_MSG_EXTENT_BACK,
                                  MCS_MSG_ALLOCS_BACK,
                                  MCS_MSG_QUEUE_BACK,
                                  MCS_MSG_BUFFER_ADD,
                                  MCS_MSG_OPEN_BACK,
                                  MCS_MSG_RESUME};
    uint32_t life = mcs_load_relaxed(&a->lives);

    (void)status;
    return life < sizeof(of) / sizeof(of[0]) && m->h.type == of[life] ? LATER_DIE : LATER_ANSWER;
}

Test(reconnect, an_agent_that_dies_on_the_way_is_followed_by_the_next)
{
    struct world w = {0};
    struct mcs_desc d;
    mcshm_batch b;

    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, die_half_way);
    b = submit(&w, 2, 2);
    take(&w, &d, 1);
    later_kill(&w.a);
    await_restarts(&w, 1);
    cr_assert_eq(mcs_load_acquire(&w.a.lives), 9);
    expect_task(&w, b, 0, MCSHM_STATE_FAILED, MCSHM_AGENT_RESTARTED);
    expect_task(&w, b, 1, MCSHM_STATE_WAITING, MCSHM_OK);
    later_kill(&w.a);
    await_restarts(&w, 2);
    expect_task(&w, b, 1, MCSHM_STATE_WAITING, MCSHM_OK);
    tear_down(&w);
}

static void expect_down(struct world *w, mcshm_batch b)
{
    mcshm_notification n;
    void *p;

    cr_assert_eq(mcshm_alloc(w->c, 1, 0, NULL, &p), MCSHM_AGENT_DOWN);
    cr_assert_eq(mcshm_batch_wait(w->q, b, -1), MCSHM_AGENT_DOWN);
    cr_assert_eq(mcshm_notify_recv(w->c, &n, -1), MCSHM_AGENT_DOWN);
    cr_assert_eq(mcshm_batch_free(w->q, b), MCSHM_OK);
}

Test(reconnect, ended_for_good_is_down_at_once)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000};
    struct world w = {0};
    mcshm_batch b;

    set_up(&w, &o);
    b = submit(&w, 1, 1);
    mcs_store_release(&w.a.region.words->ended, 1u);
    later_kill(&w.a);
    expect_down(&w, b);
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_RESTORE), 0);
    tear_down(&w);
}

Test(reconnect, an_agent_that_nobody_keeps_is_not_waited_for)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000};
    struct world w = {.a.orphan = true};
    mcshm_batch b;

    set_up(&w, &o);
    cr_assert_not(w.c->watched);
    b = submit(&w, 1, 1);
    later_kill(&w.a);
    expect_down(&w, b);
    tear_down(&w);
}

Test(reconnect, without_reconnect_there_is_no_thread_and_no_descriptor)
{
    mcshm_options o = {.reconnect_ms = 0, .control_timeout_ms = 10000};
    struct world w = {0};
    mcshm_batch b;

    set_up(&w, &o);
    cr_assert(!w.c->watched && w.c->region_fd == -1 && w.q->fd == -1 && w.c->extents[0].fd == -1);
    b = submit(&w, 1, 1);
    later_kill(&w.a);
    expect_down(&w, b);
    tear_down(&w);
}

static enum later_say unknown(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a, (void)status;
    return m->h.type == MCS_MSG_RESTORE ? LATER_REFUSE : LATER_ANSWER;
}

Test(reconnect, an_agent_that_knows_the_session_not_is_no_later_one)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000};
    struct world w = {0};
    mcshm_batch b;

    set_up(&w, &o);
    b = submit(&w, 1, 1);
    mcs_store_release(&w.a.hook, unknown);
    later_kill(&w.a);
    expect_down(&w, b);
    cr_assert_eq(later_asked(&w.a, 2, MCS_MSG_RESTORE), 1);
    tear_down(&w);
}

static enum later_say busy_twice(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    *status = MCS_BUSY;
    return m->h.type == MCS_MSG_RESTORE && mcs_load_relaxed(&a->lives) < 4 ? LATER_REFUSE
                                                                           : LATER_ANSWER;
}

Test(reconnect, a_refusal_that_may_pass_is_asked_again)
{
    struct world w = {0};

    set_up(&w, NULL);
    mcs_store_release(&w.a.hook, busy_twice);
    later_kill(&w.a);
    await_restarts(&w, 1);
    cr_assert_eq(mcs_load_acquire(&w.a.lives), 4);
    tear_down(&w);
}

Test(reconnect, none_that_comes_in_time_is_the_end)
{
    mcshm_options o = {.reconnect_ms = 300, .control_timeout_ms = 20000};
    struct world w = {0};
    mcshm_batch b;
    int64_t start;

    set_up(&w, &o);
    b = submit(&w, 1, 1);
    mcs_store_release(&w.a.held, true);
    start = mcl_now_ns();
    later_kill(&w.a);
    cr_assert_eq(mcshm_batch_wait(w.q, b, -1), MCSHM_AGENT_DOWN);
    cr_assert_geq(mcl_now_ns() - start, 300 * 1000000);
    expect_down(&w, b);
    tear_down(&w);
}

Test(reconnect, a_call_waits_no_longer_than_control_timeout)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 200};
    struct world w = {0};
    void *p;

    set_up(&w, &o);
    mcs_store_release(&w.a.held, true);
    later_kill(&w.a);
    cr_assert_eq(mcshm_alloc(w.c, 1, 0, NULL, &p), MCSHM_AGENT_DOWN);
    cr_assert_not_null(strstr(mcshm_last_error(w.c), "control_timeout_ms"));
    w.c->control_timeout_ms = 20000;
    mcs_store_release(&w.a.held, false);
    cr_assert_eq(mcshm_alloc(w.c, 1, 0, NULL, &p), MCSHM_OK, "it came back all the same: %s",
                 mcshm_last_error(NULL));
    tear_down(&w);
}

Test(reconnect, closing_while_it_is_away_waits_for_nobody_and_is_told)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000};
    struct world w = {0};

    for (int quick = 0; quick < 2; quick++) {
        w = (struct world){0};
        set_up(&w, &o);
        mcs_store_release(&w.a.held, true);
        later_kill(&w.a);
        if (quick == 0)
            later_await(&w.losses, 1);
        mcshm_close(w.c);
        mcs_store_release(&w.a.held, false);
        for (int64_t until = mcl_now_ns() + INT64_C(10000000000);
             later_asked(&w.a, 2, MCS_MSG_RESTORE) == 0;) {
            cr_assert_lt(mcl_now_ns(), until, "the later agent never learns of it");
            usleep(1000);
        }
        later_stop(&w.a);
    }
}

static enum later_say mute_resume(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a, (void)status;
    return m->h.type == MCS_MSG_RESUME ? LATER_SILENCE : LATER_ANSWER;
}

static enum later_say mute_map(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)status;
    return m->h.type == MCS_MSG_MAP && mcs_load_relaxed(&a->lives) > 1 ? LATER_SILENCE
                                                                       : LATER_ANSWER;
}

Test(reconnect, closing_during_the_return_waits_for_nobody)
{
    static const struct {
        later_hook hook;
        uint16_t at;
    } cases[] = {{mute_resume, MCS_MSG_RESUME}, {mute_map, MCS_MSG_MAP}};
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000, .caller_max = 4096};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world w = {0};

        set_up(&w, &o);
        mcs_store_release(&w.a.hook, cases[i].hook);
        later_kill(&w.a);
        while (later_asked(&w.a, 2, cases[i].at) == 0)
            usleep(500);
        mcshm_close(w.c);
        later_stop(&w.a);
    }
}

static enum later_say slow(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a, (void)status;
    if (m->h.type == MCS_MSG_RESUME)
        usleep(300000);
    return LATER_ANSWER;
}

Test(reconnect, the_return_may_take_longer_than_a_call)
{
    mcshm_options o = {.reconnect_ms = 10000, .control_timeout_ms = 100};
    struct world w = {0};

    set_up(&w, &o);
    mcs_store_release(&w.a.hook, slow);
    later_kill(&w.a);
    await_restarts(&w, 1);
    tear_down(&w);
}

Test(reconnect, a_forked_child_frees_what_it_inherited_at_any_time)
{
    mcshm_options o = {.reconnect_ms = 600000, .control_timeout_ms = 600000};
    struct world w = {0};

    set_up(&w, &o);
    for (int away = 0; away < 2; away++) {
        pid_t child;
        int status;

        if (away) {
            mcs_store_release(&w.a.held, true);
            later_kill(&w.a);
            later_await(&w.losses, 1);
        }
        child = fork();
        if (child == 0) {
            void *p;
            bool good = mcshm_alloc(w.c, 1, 0, NULL, &p) == MCSHM_FORKED;

            mcshm_close(w.c);
            _exit(good ? 0 : 1);
        }
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    mcs_store_release(&w.a.held, false);
    await_restarts(&w, 1);
    tear_down(&w);
}

Test(reconnect, reconnect_ms_has_a_limit)
{
    mcshm_options o;
    mcshm *c;

    mcshm_options_init(&o);
    cr_assert_eq(o.reconnect_ms, 10000);
    o.reconnect_ms = 600001;
    cr_assert_eq(mcshm_connect(&o, &c), MCSHM_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(mcshm_last_error(NULL), "reconnect_ms is 600001"));
}
