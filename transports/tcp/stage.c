/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of peers about memory of a GPU: their bytes go through stages, host memory of the engine's.
 *
 * Two WRITEs of one connection that meet in the same bytes are moved one after the other, as they came: moves are not in
 * order by themselves, and an initiator whose only connection this is counts on it.
 *
 * How long a move takes is up to the GPU and what else it does.  So that the initiator does not take that for a connection
 * that has gone silent, BUSY is said meanwhile.
 */
#include <stddef.h>

#include "tcp.h"

#define BUSY_PER_SECOND 20u /* silence is after 200 ms: daemon/rail.h */

static void append(struct mct_tcp_frame *f, struct mct_tcp_frame ***end)
{
    f->next = NULL;
    **end = f;
    *end = &f->next;
}

static struct mct_tcp_frame *take(struct mct_tcp_frame **list, struct mct_tcp_frame ***end)
{
    struct mct_tcp_frame *f = *list;

    *list = f->next;
    if (*list == NULL)
        *end = list;
    return f;
}

static bool get_stage(struct mct_tcp_frame *f)
{
    const struct mct_host *host = &f->conn->t->env.host;

    f->stage = host->stage(host->context, f->length);
    return f->stage != NULL;
}

static bool is_write(const struct mct_tcp_frame *f)
{
    return f->type == MCT_TCP_DONE;
}

/* ---- moves ----------------------------------------------------------------------- */

/* What became of a request whose bytes were, or were not, moved. */
static void moved(struct mct_tcp_frame *f, uint16_t status)
{
    if (is_write(f)) {
        mct_tcp_answer(f, status);
    } else {
        f->stop = status;
        f->away = false;
        mct_tcp_queue(f, false);
    }
}

static void stage_done(struct mct_stage *s, uint16_t status);

static void begin_move(struct mct_tcp_frame *f)
{
    struct mct_tcp_conn *c = f->conn;
    const struct mct_host *host = &c->t->env.host;
    const struct mct_request r = {.op = is_write(f) ? MCT_WRITE : MCT_READ,
                                  .export_index = f->export_index,
                                  .incarnation = f->incarnation,
                                  .address = f->address,
                                  .length = f->length};
    uint16_t status;

    f->stage->done = stage_done;
    f->stage->owner = f;
    status = host->move(host->context, c->visitor, &r, f->stage);
    if (status != MCS_OK) {
        mct_tcp_count(c->t, dropped, 1);
        moved(f, status);
        return;
    }
    if (c->t->moves++ == 0 && c->t->starved == NULL)
        c->t->busy_at = mcs_ticks();
    f->prev = NULL;
    f->next = c->moving;
    if (f->next != NULL)
        f->next->prev = f;
    c->moving = f;
}

/* Do bytes of an earlier WRITE go there now? Reads wait for nobody: their initiators wait for answers. */
static bool is_met(const struct mct_tcp_frame *f)
{
    for (const struct mct_tcp_frame *m = f->conn->moving; m != NULL; m = m->next)
        if (is_write(m) && m->incarnation == f->incarnation &&
            (m->address < f->address ? f->address - m->address < m->length
                                     : m->address - f->address < f->length))
            return true;
    return false;
}

static void stage_done(struct mct_stage *s, uint16_t status)
{
    struct mct_tcp_frame *f = s->owner;
    struct mct_tcp_conn *c = f->conn;

    if (f->prev != NULL)
        f->prev->next = f->next;
    else
        c->moving = f->next;
    if (f->next != NULL)
        f->next->prev = f->prev;
    c->t->moves--;
    if (c->closing)
        return; /* goes with its connection, in turn() */
    moved(f, status);
    while (c->held != NULL && !is_met(c->held))
        begin_move(take(&c->held, &c->held_end));
}

void mct_tcp_stage_land(struct mct_tcp_frame *f)
{
    struct mct_tcp_conn *c = f->conn;

    if (c->held != NULL || is_met(f))
        append(f, &c->held_end);
    else
        begin_move(f);
}

/* ---- stages ---------------------------------------------------------------------- */

static void starve(struct mct_tcp_frame *f)
{
    struct mct *t = f->conn->t;

    if (t->starved == NULL && t->moves == 0)
        t->busy_at = mcs_ticks();
    append(f, &t->starved_end);
}

void mct_tcp_stage_write(struct mct_tcp_frame *f)
{
    struct mct *t = f->conn->t;

    /* those that wait already come first */
    if (t->starved == NULL && get_stage(f))
        return;
    f->conn->rx.starved = true;
    starve(f);
}

void mct_tcp_stage_fetch(struct mct_tcp_frame *f)
{
    struct mct *t = f->conn->t;

    mct_tcp_withdraw(f);
    f->away = true;
    if (t->starved == NULL && get_stage(f))
        begin_move(f);
    else
        starve(f);
}

/* To those who wait for an answer and are not being sent one. */
static void say_busy(struct mct *t)
{
    for (struct mct_tcp_conn *c = t->conns; c != NULL; c = c->next) {
        struct mct_tcp_frame *f = NULL;

        if (c->link == NULL && !c->closing && c->in_use != 0 && c->head == NULL &&
            (c->features & MCT_TCP_FEATURE_BUSY) != 0)
            f = mct_tcp_frame_get(c);
        if (f == NULL)
            continue;
        f->type = MCT_TCP_BUSY;
        mct_tcp_queue(f, false);
    }
}

bool mct_tcp_stage_turn(struct mct *t)
{
    uint64_t now = mcs_ticks();
    bool any = false;

    if (now - t->busy_at >= t->env.tick_hz / BUSY_PER_SECOND) {
        t->busy_at = now;
        say_busy(t);
    }

    while (t->starved != NULL) {
        struct mct_tcp_frame *f = t->starved;
        struct mct_tcp_conn *c = f->conn;

        if (!c->closing && !get_stage(f))
            break;
        (void)take(&t->starved, &t->starved_end);
        any = true;
        if (c->closing)
            continue;
        if (is_write(f)) {
            c->rx.starved = false;
            mct_tcp_receive(c);
        } else {
            begin_move(f);
        }
    }
    return any;
}

void mct_tcp_stage_end(struct mct_tcp_conn *c)
{
    struct mct *t = c->t;
    const struct mct_host *host = &t->env.host;
    struct mct_tcp_frame **link = &t->starved;

    if (c->link != NULL || c->frames == NULL)
        return;
    while (*link != NULL)
        if ((*link)->conn == c)
            *link = (*link)->next;
        else
            link = &(*link)->next;
    t->starved_end = link;
    for (unsigned i = 0; i < c->fresh; i++) {
        struct mct_tcp_frame *f = &c->frames[i];

        if (!f->live || f->stage == NULL)
            continue;
        host->unstage(host->context, f->stage);
        f->stage = NULL;
    }
}
