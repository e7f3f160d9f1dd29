/* SPDX-License-Identifier: Apache-2.0 */
/* Coming back to a later agent: what is handed back, what is lost, what goes on. */
#include "world.h"

TestSuite(reconnect, .timeout = 60);

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

/* Half of all places on, a fresh task's would look like one before the restart. */
Test(reconnect, nothing_is_lost_two_thousand_million_tasks_later)
{
    const uint32_t far = (1u << 31) + 3;
    struct world w = {0};
    struct mcs_desc d[2];
    mcshm_batch b;

    set_up(&w, NULL);
    later_kill(&w.a);
    await_restarts(&w, 1);
    /* as after so many descriptors */
    w.q->shm.ring->prod.head = w.q->shm.ring->prod.tail = far;
    w.q->shm.ring->cons.head = w.q->shm.ring->cons.tail = far;
    w.a.consumer.head = w.a.consumer.published = *w.a.consumer.taken = far;
    b = submit(&w, 2, 2);
    expect_task(&w, b, 0, MCSHM_STATE_WAITING, MCSHM_OK);
    take(&w, d, 2);
    end(&w, &d[0], MCS_STATE_COMPLETED, 1);
    expect_task(&w, b, 1, MCSHM_STATE_WAITING, MCSHM_OK);
    end(&w, &d[1], MCS_STATE_COMPLETED, 2);
    cr_assert_eq(mcshm_batch_wait(w.q, b, -1), MCSHM_OK);
    expect_task(&w, b, 1, MCSHM_STATE_COMPLETED, MCSHM_OK);
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

static enum later_say no_extent(struct later *a, const struct mcs_msg *m, uint32_t *status)
{
    (void)a;
    *status = m->h.type == MCS_MSG_FREE ? MCS_INVALID_HANDLE : MCS_NO_MEMORY;
    return m->h.type == MCS_MSG_EXTENT_BACK || m->h.type == MCS_MSG_FREE ? LATER_REFUSE
                                                                         : LATER_ANSWER;
}

Test(reconnect, memory_that_is_not_taken_back_is_freed_piece_by_piece)
{
    struct world w = {0};
    uint8_t *second;
    void *p;

    set_up(&w, NULL);
    cr_assert_eq(mcshm_alloc(w.c, 100, 0, NULL, &p), MCSHM_OK);
    second = p;
    memset(second, 0x5a, 100);
    mcs_store_release(&w.a.hook, no_extent);
    later_kill(&w.a);
    await_restarts(&w, 1);
    cr_assert_eq(mcshm_free(w.c, w.memory), MCSHM_OK, "%s", mcshm_last_error(NULL));
    cr_assert_eq(w.c->nextents, 1);
    cr_assert_eq(second[99], 0x5a, "the other allocation is still there");
    cr_assert_eq(mcshm_free(w.c, second), MCSHM_OK, "%s", mcshm_last_error(NULL));
    cr_assert_eq(w.c->nextents, 0);
    cr_assert_eq(later_asked(&w.a, 0, MCS_MSG_FREE), 0);
    tear_down(&w);
}

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
