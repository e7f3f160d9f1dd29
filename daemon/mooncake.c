/* SPDX-License-Identifier: Apache-2.0 */
/* What of this agent is public, its descriptor, start and stop. */
#include "mooncake.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "later.h"
#include "log.h"
#include "mooncake_frame.h"
#include "mooncake_internal.h"

#define TICK_NS (100 * MCD_MOONCAKE_MS)

/* ---- what is public ---------------------------------------------------------------- */

static bool is_public(const struct mcd_segment *s)
{
    return s->remote == NULL && (s->flags & MCS_SEGMENT_PUBLIC) != 0 && s->owner != NULL;
}

static int by_address(const void *a, const void *b)
{
    const struct mcd_buffer *x = a, *y = b;

    return x->address < y->address ? -1 : x->address > y->address;
}

/* All buffers of public segments in one table. An extent has one owner, so none overlap. */
static struct mcd_snapshot *gather(const struct mcd_agent *a)
{
    struct mcd_snapshot *all;
    size_t n = 0;

    for (const struct mcd_segment *s = a->segments; s != NULL; s = s->next)
        if (is_public(s) && s->snapshot != NULL)
            n += s->snapshot->count;
    all = calloc(1, sizeof(*all) + n * sizeof(all->buffers[0]));
    if (all == NULL)
        return NULL;
    for (const struct mcd_segment *s = a->segments; s != NULL; s = s->next)
        if (is_public(s) && s->snapshot != NULL) {
            memcpy(&all->buffers[all->count], s->snapshot->buffers,
                   s->snapshot->count * sizeof(all->buffers[0]));
            all->count += s->snapshot->count;
        }
    qsort(all->buffers, all->count, sizeof(all->buffers[0]), by_address);
    return all;
}

static void free_old(void *context)
{
    free(context);
}

static void swap_open(struct mcd_mooncake *m, struct mcd_snapshot *next)
{
    struct mcd_snapshot *old = m->open;

    m->open = next;
    for (unsigned i = 0; i < m->agent->nengines; i++)
        mcd_engine_open_buffers(m->agent->engines[i], next);
    if (old != NULL)
        mcd_after_grace(m->agent, free_old, old);
}

void mcd_mooncake_changed(struct mcd_mooncake *m)
{
    struct mcd_snapshot *next;

    if (m == NULL || m->stopping)
        return;
    next = gather(m->agent);
    if (next == NULL) /* then nothing is public: what was taken away must not be reached */
        mcd_log_limited(MCD_LOG_ERROR,
                        "mooncake: no memory for the table of public buffers: none can be reached "
                        "until the next change");
    swap_open(m, next);
    free(m->text);
    m->text = NULL;
    m->counters.buffers = next == NULL ? 0 : next->count;
    mcd_mooncake_publish(m);
}

const char *mcd_mooncake_text(struct mcd_mooncake *m, size_t *size)
{
    const struct mcd_mooncake_self self = {.name = m->name, .host = m->host, .port = m->data_port};
    size_t limit = m->store != NULL ? MCM_VALUE_MAX - 1 : MCD_MOONCAKE_FRAME_MAX - 1;
    uint32_t left_out = 0;

    if (m->text == NULL) {
        if (mcd_mooncake_describe(&self, m->open, limit, &m->text, &m->text_size, &left_out) != 0)
            return NULL;
        m->counters.buffers_left_out = left_out;
        if (left_out != 0 && !m->told)
            mcd_warning("mooncake: %u of %llu public buffers are not in this agent's descriptor, "
                        "which may have %zu bytes; they can be reached all the same, but publish "
                        "fewer and larger ones",
                        left_out, (unsigned long long)m->counters.buffers, limit);
        m->told |= left_out != 0;
    }
    *size = m->text_size;
    return m->text;
}

/* ---- life -------------------------------------------------------------------------- */

void mcd_mooncake_await(struct mcd_mooncake *m, const struct mcd_command *c)
{
    struct pollfd rung = {.fd = m->agent->event_fd, .events = POLLIN};
    uint64_t v;

    while (mcs_load_acquire(&c->done) == 0) { /* partner: the engine's release, before it rings */
        poll(&rung, 1, 100);
        if ((rung.revents & POLLIN) != 0 && read(rung.fd, &v, sizeof(v)) < 0)
            mcs_pause(); /* somebody else read it */
    }
}

static void tick(struct mcd_alarm *t)
{
    struct mcd_mooncake *m = t->context;

    mcd_mooncake_poll(m);
}

int mcd_mooncake_create(struct mcd_agent *a, struct mcd_mooncake **out, char *error,
                        size_t error_size)
{
    struct mcd_mooncake *m;
    int res;

    *out = NULL;
    if (strcmp(a->config.mooncake_listen, "off") == 0)
        return 0;
    if (a->config.require_encryption != 0) {
        snprintf(error, error_size,
                 "[mooncake] listen = %s carries data in plain text, which [peer] "
                 "require_encryption = yes forbids: set one of them to its default",
                 a->config.mooncake_listen);
        return -EINVAL;
    }
    snprintf(error, error_size, "out of memory");
    m = aligned_alloc(16, (sizeof(*m) + 15) & ~(size_t)15);
    if (m == NULL)
        return -ENOMEM;
    memset(m, 0, sizeof(*m));
    m->agent = a;
    m->hand.fd = m->data.fd = m->store_fd = -1;
    m->hand.watch.fd = m->data.watch.fd = m->store_watch.fd = -1;
    m->tick.fire = tick;
    m->tick.context = m;
    mcd_mooncake_serve_init(m);
    res = mcd_mooncake_listen(m, error, error_size);
    if (res == 0)
        res = mcd_mooncake_publish_init(m, error, error_size);
    if (res != 0) {
        mcd_mooncake_unlisten(m);
        free(m);
        return res;
    }
    mcd_mooncake_changed(m);
    mcd_info("mooncake: stock processes reach the public segments of this agent as %s (data on "
             "port %u), without being asked who they are",
             m->name, m->data_port);
    *out = m;
    return 0;
}

void mcd_mooncake_destroy(struct mcd_mooncake *m)
{
    if (m == NULL)
        return;
    mcd_mooncake_unlisten(m);
    mcd_mooncake_hands_destroy(m);
    mcd_mooncake_publish_fini(m);
    mcd_mooncake_peers_fini(m);
    mcd_mooncake_serve_fini(m);
    mcd_alarm_clear(m->agent, &m->tick);
    m->stopping = true;
    /* whoever looked into it has been dismissed */
    for (unsigned i = 0; i < m->agent->nengines; i++)
        mcd_engine_open_buffers(m->agent->engines[i], NULL);
    free(m->open);
    free(m->text);
    free(m);
}

void mcd_mooncake_poll(struct mcd_mooncake *m)
{
    if (m == NULL)
        return;
    mcd_mooncake_serve_poll(m);
    mcd_mooncake_hands_poll(m);
    mcd_mooncake_peers_poll(m);
    if (m->peers != NULL)
        mcd_alarm_set(m->agent, &m->tick, mcd_now_ns() + TICK_NS);
}

const struct mcd_mooncake_counters *mcd_mooncake_get_counters(const struct mcd_mooncake *m)
{
    return &m->counters;
}

const char *mcd_mooncake_name(const struct mcd_mooncake *m)
{
    return m->name;
}

uint16_t mcd_mooncake_data_port(const struct mcd_mooncake *m)
{
    return m->data_port;
}
