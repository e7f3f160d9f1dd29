/* SPDX-License-Identifier: Apache-2.0 */
/* A client of an agent of several lives (later.h), with a bit of everything, and the test as its engine. */
#ifndef TEST_WORLD_H
#define TEST_WORLD_H

#include "later.h"

struct world {
    struct later a;
    mcshm *c;
    mcshm_queue *q;
    uint8_t *memory;
    mcshm_segment segment;
    uint32_t losses; /* that the library has noticed: atomic */
};

static inline void on_log(void *context, mcshm_log_level level, const char *text)
{
    struct world *w = context;

    if (level == MCSHM_LOG_WARNING && strstr(text, "is gone") != NULL)
        mcs_store_release(&w->losses, w->losses + 1); /* pairs with later_await() */
}

static inline void set_up(struct world *w, mcshm_options *o)
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

static inline void tear_down(struct world *w)
{
    /* nobody reads the answer of an agent that is asked to end while it is there */
    mcs_store_relaxed(&w->a.region.words->ended, 1u);
    mcshm_close(w->c);
    later_stop(&w->a);
}

static inline uint32_t restarts(struct world *w)
{
    mcshm_info info;

    cr_assert_eq(mcshm_get_info(w->c, &info), MCSHM_OK);
    return (uint32_t)info.restarts;
}

static inline void await_restarts(struct world *w, uint32_t n)
{
    later_await(&w->c->restarts, n);
    cr_assert_eq(restarts(w), n);
}

static inline mcshm_request request_of(struct world *w)
{
    return (mcshm_request){.opcode = MCSHM_WRITE,
                           .local = w->memory,
                           .segment = w->segment,
                           .remote_address = 0x10000,
                           .length = 8};
}

static inline mcshm_batch submit(struct world *w, uint32_t capacity, uint32_t n)
{
    mcshm_request r = request_of(w);
    mcshm_batch b;

    cr_assert_eq(mcshm_batch_alloc(w->q, capacity, &b), MCSHM_OK);
    for (uint32_t i = 0; i < n; i++)
        cr_assert_eq(mcshm_submit(w->q, b, &r, 1), MCSHM_OK);
    return b;
}

static inline void take(struct world *w, struct mcs_desc *d, unsigned n)
{
    int taken;

    pthread_mutex_lock(&w->a.mutex);
    taken = mcs_ring_take(&w->a.consumer, d, n);
    mcs_ring_publish(&w->a.consumer);
    pthread_mutex_unlock(&w->a.mutex);
    cr_assert_eq(taken, (int)n);
}

/* As an engine does; line 0: it dies before it gets to the batch. */
static inline void end(struct world *w, const struct mcs_desc *d, uint32_t state, uint32_t line)
{
    pthread_mutex_lock(&w->a.mutex);
    mcs_slot_complete(&w->a.queue, d->slot, MCS_SLOT_WORD(d->generation, 0, MCS_PATH_LOCAL, state),
                      d->length, 1, 2, 0);
    if (line != 0)
        mcs_batch_publish(&w->a.queue, d->batch, d->batch_generation, line, 0, line,
                          line * d->length);
    pthread_mutex_unlock(&w->a.mutex);
}

static inline void expect_task(struct world *w, mcshm_batch b, uint32_t index, mcshm_state state,
                               mcshm_status error)
{
    mcshm_task_status t;

    cr_assert_eq(mcshm_task_poll(w->q, b, index, &t), MCSHM_OK);
    cr_assert_eq(t.state, state, "task %u is %s", index, mcshm_state_name(t.state));
    cr_assert_eq(t.error, error);
    cr_assert(error != MCSHM_AGENT_RESTARTED || !t.remote_quiesced);
}

#endif
