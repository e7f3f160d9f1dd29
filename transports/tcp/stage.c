/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of peers about memory of a GPU: their bytes go through stages, host memory of the engine's.
 *
 * Two WRITEs of one connection that meet in the same bytes are moved one after the other, as they came: moves are not in
 * order by themselves, and an initiator whose only connection this is counts on it.
 */
#include <stddef.h>

#include "tcp.h"

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

void mct_tcp_stage_write(struct mct_tcp_frame *f)
{
    struct mct *t = f->conn->t;

    /* those that wait already come first */
    if (t->starved == NULL && get_stage(f))
        return;
    f->conn->rx.starved = true;
    append(f, &t->starved_end);
}

void mct_tcp_stage_fetch(struct mct_tcp_frame *f)
{
    struct mct *t = f->conn->t;

    mct_tcp_withdraw(f);
    f->away = true;
    if (t->starved == NULL && get_stage(f))
        begin_move(f);
    else
        append(f, &t->starved_end);
}

bool mct_tcp_stage_turn(struct mct *t)
{
    bool any = false;

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
