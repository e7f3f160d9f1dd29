/* SPDX-License-Identifier: Apache-2.0 */
#include "gate.h"

#include <string.h>

#include "object.h"
#include "session.h"
#include "shm/failpoint.h"
#include "shm/object.h"

#define LOOKS 64u /* gates looked at a turn */
/* An idle engine naps for this part of the time that the youngest one waits already: what the nap adds to a wait is at
 * most that part of it. Bounded below by what a sleep costs, above by what a stream's work is worth waiting for. */
#define NAP_PART 8u
#define NAP_MIN_NS 50000u
#define NAP_MAX_NS 1000000u

/* Where a gate lies; NULL and why not. Good for this turn. */
static uint32_t *find(const struct mcd_queue *q, const struct mcs_gate *gate,
                      enum mcs_status *error)
{
    const struct mcd_extent *e = mcd_find_extent(q, gate->extent);

    if (e == NULL)
        *error = MCS_INVALID_HANDLE;
    else if (e->gpu != NULL)
        *error = MCS_NOT_SUPPORTED;
    else if (gate->offset % sizeof(uint32_t) != 0)
        *error = MCS_INVALID_ARGUMENT;
    else if (gate->offset > e->size || sizeof(uint32_t) > e->size - gate->offset)
        *error = MCS_BAD_RANGE;
    else
        return (uint32_t *)(void *)(e->map + gate->offset);
    return NULL;
}

enum mcs_status mcd_gates_check(const struct mcd_queue *q, const struct mcs_desc *d, uint32_t at,
                                uint64_t total, struct mcs_gate *wait)
{
    unsigned n = ((d->flags & MCS_DESC_WAIT) != 0) + ((d->flags & MCS_DESC_SIGNAL) != 0);
    struct mcs_gate gates[2];
    enum mcs_status error = MCS_OK;

    if (at % 8 != 0)
        return MCS_INVALID_ARGUMENT;
    if (at > total || n * sizeof(gates[0]) > total - at)
        return MCS_BAD_RANGE;
    memcpy(gates, q->shm.args + (uint64_t)d->args * MCS_LINE + at, n * sizeof(gates[0]));
    for (unsigned i = 0; i < n; i++)
        if (find(q, &gates[i], &error) == NULL)
            return error;
    *wait = gates[0];
    return MCS_OK;
}

enum mcs_status mcd_gate_look(const struct mcd_queue *q, const struct mcd_task *t, bool *open)
{
    enum mcs_status error = MCS_OK;
    const uint32_t *word = find(q, &t->gate, &error);

    if (word == NULL)
        return MCS_REVOKED; /* it was good when it was checked */
    /* acquire: what the stream has written before is there; partner: its write, or a client's release */
    *open = (int32_t)(mcs_load_acquire(word) - t->gate.value) >= 0;
    return MCS_OK;
}

void mcd_gate_wait(struct mcd_engine *g, struct mcd_task *t)
{
    struct mcd_gates *all = &g->gates;

    t->gated = true;
    t->gate_next = NULL;
    t->gate_prev = all->last;
    if (all->last != NULL)
        all->last->gate_next = t;
    else
        all->first = t;
    all->last = t;
    all->since = g->now;
    mcs_count(&g->counters.gate_waits, 1);
}

void mcd_gate_leave(struct mcd_engine *g, struct mcd_task *t)
{
    struct mcd_gates *all = &g->gates;

    t->gated = false;
    if (t->gate_prev != NULL)
        t->gate_prev->gate_next = t->gate_next;
    else
        all->first = t->gate_next;
    if (t->gate_next != NULL)
        t->gate_next->gate_prev = t->gate_prev;
    else
        all->last = t->gate_prev;
    if (all->look == t)
        all->look = t->gate_next;
}

bool mcd_gates_turn(struct mcd_engine *g)
{
    struct mcd_gates *all = &g->gates;
    bool any = false;

    if (all->look == NULL)
        all->look = all->first;
    for (unsigned i = 0; i < LOOKS && all->look != NULL; i++) {
        struct mcd_task *t = all->look;
        bool open = false;
        enum mcs_status error = mcd_gate_look(t->q, t, &open);

        all->look = t->gate_next;
        if (error == MCS_OK && !open)
            continue;
        MCS_FAILPOINT(gate_open);
        mcd_gate_leave(g, t);
        mcd_task_open(g, t, error);
        any = true;
    }
    return any;
}

uint64_t mcd_gates_nap(const struct mcd_engine *g)
{
    uint64_t ns;

    if (g->gates.first == NULL)
        return UINT64_MAX;
    ns = mcd_ticks_to_ns(g, g->now - g->gates.since) / NAP_PART;
    return ns < NAP_MIN_NS ? NAP_MIN_NS : ns > NAP_MAX_NS ? NAP_MAX_NS : ns;
}

/* Where a request's gates lie in its argument block, as it says now; false: it has no block. */
static bool read_head(const struct mcd_queue *q, const struct mcs_desc *d, uint32_t *gates,
                      uint64_t *total)
{
    uint64_t at = (uint64_t)d->args * MCS_LINE;
    bool object = mcd_op_is_object(d->op);
    struct mcs_object_args o;
    struct mcs_args a;
    uint64_t size = object ? sizeof(o) : sizeof(a);

    if (d->args == MCS_ARGS_NONE || at >= q->shm.args_size || size > q->shm.args_size - at)
        return false;
    if (object) {
        memcpy(&o, q->shm.args + at, sizeof(o));
        *gates = o.gates;
        *total = o.total;
    } else {
        memcpy(&a, q->shm.args + at, sizeof(a));
        *gates = a.gates;
        *total = a.total;
    }
    return *total <= q->shm.args_size - at;
}

void mcd_gate_signal(struct mcd_engine *g, const struct mcd_queue *q, const struct mcs_desc *d)
{
    uint64_t skip = (d->flags & MCS_DESC_WAIT) != 0 ? sizeof(struct mcs_gate) : 0, total;
    enum mcs_status error = MCS_BAD_RANGE;
    struct mcs_gate gate;
    uint32_t *word = NULL, gates;

    /* Read anew, since a task that is refused has no record: whatever stands there now, it is memory of this session. */
    if (read_head(q, d, &gates, &total) && gates % 8 == 0 && gates <= total &&
        skip + sizeof(gate) <= total - gates) {
        memcpy(&gate, q->shm.args + (uint64_t)d->args * MCS_LINE + gates + skip, sizeof(gate));
        word = find(q, &gate, &error);
    }
    if (word != NULL) {
        MCS_FAILPOINT(gate_signal);
        /* release: after the task's bytes; partner: a stream's wait, or a client's acquire */
        mcs_store_release(word, gate.value);
    } else {
        mcs_count(&g->counters.gates_gone, 1);
    }
}
