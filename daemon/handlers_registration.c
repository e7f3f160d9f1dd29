/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registrations with RDMA devices as stages of a session's operation.  Without such devices there are no
 * such stages.  A session that ends waits for no device: its operation goes on at once, and what was begun
 * ends by itself (registration.h).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cluster.h"
#include "handlers.h"
#include "log.h"

/* A device that has not registered memory by then holds nobody up any longer. */
#define MAKING_NS UINT64_C(5000000000)

/* ---- making ---------------------------------------------------------------------- */

static void registered(void *context, int res, const char *text)
{
    struct mcd_session *s = context;

    s->op.registering--;
    if (res == 0 || s->op.registration_res != 0)
        return;
    s->op.registration_res = res;
    snprintf(s->op.text, sizeof(s->op.text), "%s", text);
}

struct mcd_registration *mcd_op_register(struct mcd_session *s, struct mcd_extent *e,
                                         uint64_t offset, uint64_t length, uint32_t access)
{
    struct mcd_registry *g = &s->agent->registry;
    unsigned remote = mcd_registration_access(access);
    struct mcd_registration *r;

    if (g->rdma == NULL || remote == 0)
        return NULL;
    s->op.registering++;
    if (mcd_registration_create(g, e, offset, length, remote, registered, s, &r) != 0)
        registered(s, -ENOMEM, strerror(ENOMEM));
    return r;
}

void mcd_op_register_extent(struct mcd_session *s, struct mcd_extent *e)
{
    struct mcd_registry *g = &s->agent->registry;

    if (g->rdma == NULL)
        return;
    s->op.registering++;
    if (mcd_registration_create_whole(g, e, registered, s) != 0)
        registered(s, -ENOMEM, strerror(ENOMEM));
}

void mcd_registered_late(void *context, int res, const char *text)
{
    (void)text;
    if (res == 0)
        mcd_segments_keys_changed(context);
}

static bool are_made(struct mcd_session *s)
{
    return s->op.registering == 0 || s->ending || mcd_now_ns() >= s->op.deadline;
}

/* What is not made by now is made later, and used from then on. */
static void go_on_without(struct mcd_session *s)
{
    struct mcd_registry *g = &s->agent->registry;
    unsigned n = mcd_registrations_pass(g, s, mcd_registered_late, s->agent);

    s->op.registering = 0;
    if (s->ending)
        return;
    mcd_log_limited(
        MCD_LOG_WARNING,
        "session %u: RDMA devices have not registered %u ranges of its memory within "
        "5 s: until they have, other transports carry them, or they are refused ([rdma] "
        "enable = require); `mcshm ls nics` and the kernel's log tell more",
        s->id, n);
    if (!g->require || s->op.registration_res != 0)
        return;
    s->op.registration_res = -ETIMEDOUT;
    snprintf(s->op.text, sizeof(s->op.text),
             "RDMA devices have not registered the memory within 5 s, and [rdma] enable = require: "
             "`mcshm ls nics` and the kernel's log tell more");
}

static void when_made(struct mcd_session *s)
{
    if (s->op.registering != 0)
        go_on_without(s);
    s->op.then(s);
}

void mcd_op_registered(struct mcd_session *s, void (*then)(struct mcd_session *s))
{
    if (s->op.registering == 0) {
        then(s);
        return;
    }
    s->op.then = then;
    s->op.deadline = mcd_now_ns() + MAKING_NS;
    mcd_session_defer(s, are_made, when_made);
}

bool mcd_op_refused(struct mcd_session *s)
{
    int res = s->op.registration_res;

    s->op.registration_res = 0;
    if (res == 0 || !s->agent->registry.require)
        return false;
    mcd_session_refuse(s,
                       res == -ENOMEM      ? MCS_NO_MEMORY
                       : res == -ETIMEDOUT ? MCS_TIMEOUT
                                           : MCS_LIMIT,
                       "%s", s->op.text);
    return true;
}

/* ---- what is left of cut buffers ----------------------------------------------------- */

void mcd_op_cut(struct mcd_session *s, void (*then)(struct mcd_session *s))
{
    struct mcd_operation *op = &s->op;

    op->npieces = 0;
    if (s->agent->registry.rdma != NULL)
        op->npieces =
            mcd_segment_pieces(s->segment, op->extent, op->offset, op->length, op->pieces);
    for (unsigned i = 0; i < op->npieces; i++) {
        const struct mcd_piece *p = &op->pieces[i];

        op->fresh[i] = mcd_op_register(s, op->extent, p->offset, p->length, p->access);
    }
    mcd_op_registered(s, then);
}

int mcd_op_swap(struct mcd_session *s)
{
    struct mcd_operation *op = &s->op;
    int res = mcd_segment_cut(s->segment, op->extent, op->offset, op->length, &op->old);

    /* a piece that could not be registered is reached over other transports: counted and said */
    op->registration_res = 0;
    for (unsigned i = 0; i < op->npieces; i++) {
        const struct mcd_piece *p = &op->pieces[i];

        if (op->fresh[i] != NULL &&
            (res != 0 ||
             !mcd_segment_attach(s->segment, op->extent, p->offset, p->length, op->fresh[i])))
            mcd_registration_drop(op->fresh[i], NULL, NULL);
    }
    op->npieces = 0;
    return res;
}

/* ---- taking away --------------------------------------------------------------------- */

static void left(void *context, int res, const char *text)
{
    struct mcd_session *s = context;

    (void)res;
    (void)text;
    s->op.deregistering--;
}

static bool are_gone(struct mcd_session *s)
{
    return s->op.deregistering == 0 || s->ending;
}

static void when_gone(struct mcd_session *s)
{
    if (s->op.deregistering != 0)
        (void)mcd_registrations_pass(&s->agent->registry, s, NULL, NULL);
    s->op.deregistering = 0;
    s->op.then(s);
}

void mcd_op_deregister(struct mcd_session *s)
{
    struct mcd_registration *r = mcd_segment_dropped(s->segment), *next;
    struct mcd_extent *e = s->op.extent;

    for (; r != NULL; r = next) {
        next = r->dropped;
        s->op.deregistering++;
        mcd_registration_drop(r, left, s);
    }
    if (s->op.last && e->registered != NULL) {
        s->op.deregistering++;
        mcd_registration_drop(e->registered, left, s);
    }
    if (s->op.deregistering == 0)
        s->op.then(s);
    else
        mcd_session_defer(s, are_gone, when_gone);
}

/* ---- keys ------------------------------------------------------------------------------ */

void mcd_segments_keys_changed(struct mcd_agent *a)
{
    for (struct mcd_segment *s = a->segments; s != NULL; s = s->next)
        s->version++;
    mcd_segments_changed(a);
}
