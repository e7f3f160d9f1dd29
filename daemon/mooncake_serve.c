/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data connections of stock Mooncake processes: each goes to the engine that has the fewest.
 * Nobody asks who they are; what they reach is decided by what is public.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "mooncake_internal.h"

#define SWEEP_NS (5000 * MCD_MOONCAKE_MS)

struct mcd_mooncake_arrival {
    struct mcd_command command;
    struct mcd_serve serve;
    struct mcd_mooncake_arrival *next;
};

static uint64_t open_conns(const struct mcd_visitor *v)
{
    return mcs_load_relaxed(&v->conns) + v->adopting; /* partner: the engine counts */
}

/* Engines look for headers that do not come to their end whenever they turn; an idle one sleeps. */
static bool turn_once(struct mcd_engine *g, struct mcd_command *c)
{
    (void)g;
    (void)c;
    return true;
}

static void sweep(struct mcd_alarm *t)
{
    struct mcd_mooncake *m = t->context;
    bool any = false;

    for (unsigned i = 0; i < m->agent->nengines; i++) {
        struct mcd_command *c = &m->sweeps[i];

        any |= open_conns(&m->visitors[i]) != 0;
        if (open_conns(&m->visitors[i]) == 0 ||
            (c->call != NULL &&
             mcs_load_acquire(&c->done) == 0)) /* partner: the engine's release */
            continue;
        memset(c, 0, sizeof(*c));
        mcd_engine_call(m->agent->engines[i], c, turn_once, NULL);
    }
    if (any)
        mcd_alarm_set(m->agent, t, mcd_now_ns() + SWEEP_NS);
}

void mcd_mooncake_serve_init(struct mcd_mooncake *m)
{
    for (unsigned i = 0; i < m->agent->nengines; i++) {
        m->visitors[i].engine = m->agent->engines[i];
        snprintf(m->visitors[i].name, sizeof(m->visitors[i].name), "mooncake");
    }
    m->sweep.fire = sweep;
    m->sweep.context = m;
}

void mcd_mooncake_serve_accept(struct mcd_mooncake *m, int fd)
{
    struct mcd_mooncake_arrival *x = NULL;
    unsigned best = 0;
    uint64_t total = 0;

    for (unsigned i = 0; i < m->agent->nengines; i++) {
        total += open_conns(&m->visitors[i]);
        if (open_conns(&m->visitors[i]) < open_conns(&m->visitors[best]))
            best = i;
    }
    if (total < MCD_MOONCAKE_DATA_MAX)
        x = calloc(1, sizeof(*x));
    if (x == NULL) {
        m->counters.data_refused++;
        mcd_log_limited(MCD_LOG_WARNING,
                        "mooncake: a data connection is refused: %llu are open, the limit is %u",
                        (unsigned long long)total, MCD_MOONCAKE_DATA_MAX);
        close(fd);
        return;
    }
    m->counters.data_accepted++;
    x->serve = (struct mcd_serve){
        .ops = &mct_mooncake_ops,
        .visitor = &m->visitors[best],
        .conn = {.fd = fd, .id = mcd_incarnation()},
    };
    x->next = m->arrivals;
    m->arrivals = x;
    m->visitors[best].adopting++;
    mcd_engine_call(m->agent->engines[best], &x->command, mcd_serve_adopt, &x->serve);
    if (m->sweep.at == 0)
        mcd_alarm_set(m->agent, &m->sweep, mcd_now_ns() + SWEEP_NS);
}

void mcd_mooncake_serve_poll(struct mcd_mooncake *m)
{
    struct mcd_mooncake_arrival **link = &m->arrivals;

    while (*link != NULL) {
        struct mcd_mooncake_arrival *x = *link;

        if (mcs_load_acquire(&x->command.done) == 0) { /* partner: the engine's release */
            link = &x->next;
            continue;
        }
        if (x->serve.res != 0)
            m->counters.data_refused++;
        x->serve.visitor->adopting--;
        *link = x->next;
        free(x);
    }
    m->counters.data_open = 0;
    for (unsigned i = 0; i < m->agent->nengines; i++)
        m->counters.data_open += mcs_load_relaxed(&m->visitors[i].conns); /* partner: as above */
}

void mcd_mooncake_serve_fini(struct mcd_mooncake *m)
{
    mcd_alarm_clear(m->agent, &m->sweep);
    for (struct mcd_mooncake_arrival *x = m->arrivals; x != NULL; x = x->next)
        mcd_mooncake_await(m, &x->command);
    mcd_mooncake_serve_poll(m);
    for (unsigned i = 0; i < m->agent->nengines; i++) {
        struct mcd_serve leave = {.ops = &mct_mooncake_ops, .visitor = &m->visitors[i]};
        struct mcd_command c = {0};

        if (m->sweeps[i].call != NULL)
            mcd_mooncake_await(m, &m->sweeps[i]);
        mcd_engine_call(m->agent->engines[i], &c, mcd_serve_dismiss, &leave);
        mcd_mooncake_await(m, &c);
    }
}
