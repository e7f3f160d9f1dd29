/* SPDX-License-Identifier: Apache-2.0 */
/* Results of requests about objects, what they let be held in place, and the whole of it in one call. */
#include "internal.h"
#include "shm/failpoint.h"
#include "shm/object.h"

#include <stdlib.h>

static mcshm_status known(uint32_t status)
{
    return status < MCS_STATUS_COUNT ? (mcshm_status)status : MCSHM_INTERNAL;
}

/* Where the bytes are in this process, of what CREATE or HOLD gave. */
static mcshm_status find_bytes(struct mcshm_queue *q, const struct mcs_object_result *r,
                               bool writable, void **out)
{
    const struct mcl_object_map *m;
    mcshm_status status;

    *out = NULL;
    if (r->size == 0)
        return MCSHM_OK;
    m = mcl_object_map(q, r->extent, writable, &status);
    if (m == NULL)
        return status;
    if (r->offset > m->size || r->size > m->size - r->offset)
        return mcl_fail(MCSHM_PROTOCOL,
                        "the agent's result names %llu bytes at %llu of an extent of %llu",
                        (unsigned long long)r->size, (unsigned long long)r->offset,
                        (unsigned long long)m->size);
    *out = m->base + r->offset;
    return MCSHM_OK;
}

static mcshm_status read_one(struct mcshm_queue *q, const struct mcl_object *o,
                             const struct mcs_object_result *from, bool staged,
                             mcshm_object_result *out)
{
    const struct mcs_object_result r = *from; /* one copy, then used */
    mcshm_status status = MCSHM_OK;

    *out = (mcshm_object_result){
        .status = known(r.status),
        .tier = (mcshm_tier)r.tier,
        .path = staged && r.path == MCS_PATH_LOCAL ? MCSHM_PATH_STAGED : (mcshm_path)r.path,
        .copies = r.copies,
        .size = r.size,
        .version = r.version,
        .crc = r.crc,
    };
    if (r.status == MCS_OK && (o->op == MCS_OP_CREATE || o->op == MCS_OP_HOLD)) {
        out->hold = r.hold;
        if (r.hold != 0) /* else a CREATE of what is there: nothing to fill */
            status = find_bytes(q, &r, o->op == MCS_OP_CREATE, &out->address);
    }
    return status;
}

MCSHM_API mcshm_status mcshm_object_results(mcshm_queue *q, mcshm_batch batch, uint32_t index,
                                            size_t first, mcshm_object_result *out, size_t n)
{
    const struct mcl_object *o;
    const struct mcl_task *t;
    const uint8_t *results;
    mcshm_task_status task;
    uint32_t slot;
    mcshm_status status = mcshm_task_poll(q, batch, index, &task);

    if (status != MCSHM_OK)
        return status;
    slot = mcl_batch_get(q, batch)->slots[index];
    t = &q->tasks[slot];
    if ((t->flags & MCL_TASK_OBJECT) == 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "task %u of the batch is not about objects", index);
    o = &q->objects[slot];
    if (o->results == 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "PREFIX has no results of single keys: mcshm_task_status.bytes says all");
    if (first > o->count || n > o->count - first || (out == NULL && n != 0))
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "results %zu .. %zu of a request of %u keys%s",
                        first, first + n, o->count, out == NULL ? ", out is NULL" : "");
    if (task.state < MCSHM_STATE_INVALID)
        return MCSHM_BUSY;
    if (task.state != MCSHM_STATE_COMPLETED)
        return mcl_fail(task.error, "the task ended %s: %s", mcshm_state_name(task.state),
                        mcshm_strerror(task.error));
    results = q->shm.args + (uint64_t)t->args * MCS_LINE + o->results;
    if (o->op == MCS_OP_EXIST) {
        for (size_t i = 0; i < n; i++)
            out[i] = (mcshm_object_result){.status = known(results[first + i])};
        return MCSHM_OK;
    }
    for (size_t i = 0; status == MCSHM_OK && i < n; i++)
        status = read_one(q, o, (const struct mcs_object_result *)(const void *)results + first + i,
                          (t->flags & MCL_TASK_STAGED) != 0, &out[i]);
    return status;
}

/* As many holds as one descriptor takes, from *at on. */
static bool next_release(const uint64_t *holds, size_t n, size_t *at, struct mcs_desc *d)
{
    struct mcs_release r = {.op = MCS_OP_RELEASE};
    unsigned count = 0;

    for (; *at < n && count < MCS_RELEASE_MAX; ++*at) {
        if (holds[*at] != 0)
            r.holds[count++] = holds[*at];
    }
    memcpy(d, &r, sizeof(r));
    return count != 0;
}

MCSHM_API mcshm_status mcshm_object_release(mcshm_queue *q, const uint64_t *holds, size_t n,
                                            size_t *done)
{
    size_t at = 0, given = 0;
    mcshm_status status = mcl_check_queue(q);

    if (done != NULL)
        *done = 0;
    if (status != MCSHM_OK)
        return status;
    if (holds == NULL && n != 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_object_release: holds is NULL");
    while (status == MCSHM_OK && given < n) {
        uint32_t ring = 0;

        if (mcl_down(q->c)) {
            status = mcl_fail(MCSHM_AGENT_DOWN, "the agent ended the session: connect again");
            break;
        }
        while (ring < q->shm.depth - 1 && at < n)
            ring += next_release(holds, n, &at, &q->descs[ring]);
        if (ring > mcs_ring_room(q->shm.ring)) { /* what fits; the room only grows */
            ring = mcs_ring_room(q->shm.ring);
            at = given;
            for (uint32_t i = 0; i < ring;)
                i += next_release(holds, n, &at, &q->descs[i]);
            status = MCSHM_RING_FULL;
        }
        if (ring != 0 && mcs_ring_push(q->shm.ring, q->descs, ring))
            mcl_doorbell(q);
        given = at;
    }
    if (done != NULL)
        *done = given;
    if (status == MCSHM_RING_FULL) {
        mcs_count(&q->counters.ring_full, 1); /* relaxed: partner mcshm_get_stats() */
        if (mcl_idle_down(q->c, &q->idle))
            status = mcl_fail(MCSHM_AGENT_DOWN, "the agent ended the session: connect again");
    }
    return status;
}

/* ---- all in one call ------------------------------------------------------------------ */

/* Batches of earlier calls whose tasks have ended meanwhile. */
static void reap_abandoned(struct mcshm_queue *q)
{
    for (size_t i = 0; i < q->nabandoned;) {
        if (mcshm_batch_free(q, q->abandoned[i]) == MCSHM_BUSY)
            i++;
        else
            q->abandoned[i] = q->abandoned[--q->nabandoned];
    }
}

/* The agent did not even answer a cancel: the batch is freed when it has. */
static void abandon(struct mcshm_queue *q, mcshm_batch batch)
{
    if (mcl_grow(&q->abandoned, q->nabandoned, &q->abandoned_room, sizeof(*q->abandoned)) == 0)
        q->abandoned[q->nabandoned++] = batch;
}

/* Gives back all that the task lets be held, after its results could not be taken. */
static void release_all(struct mcshm_queue *q, mcshm_batch batch)
{
    uint32_t slot = mcl_batch_get(q, batch)->slots[0];
    const struct mcl_object *o = &q->objects[slot];
    const struct mcs_object_result *r =
        (const void *)(q->shm.args + (uint64_t)q->tasks[slot].args * MCS_LINE + o->results);

    for (uint32_t i = 0; (o->op == MCS_OP_CREATE || o->op == MCS_OP_HOLD) && i < o->count; i++) {
        uint64_t hold = r[i].hold;

        while (r[i].status == MCS_OK && mcshm_object_release(q, &hold, 1, NULL) == MCSHM_RING_FULL)
            sched_yield();
    }
}

/* Waits for the end; beyond the caller's time it is canceled first. */
static mcshm_status await(struct mcshm_queue *q, mcshm_batch batch, int64_t timeout_us)
{
    int64_t deadline;
    mcshm_status status = mcshm_batch_wait(q, batch, timeout_us);

    if (status != MCSHM_TIMEOUT)
        return status;
    deadline = mcl_now_ns() + (int64_t)q->c->control_timeout_ms * 1000000;
    do {
        status = mcshm_cancel(q, batch, 0);
        if (status == MCSHM_RING_FULL)
            sched_yield();
    } while (status == MCSHM_RING_FULL && mcl_now_ns() < deadline);
    if (status == MCSHM_OK)
        status = mcshm_batch_wait(q, batch, (int64_t)q->c->control_timeout_ms * 1000);
    return status == MCSHM_RING_FULL ? MCSHM_TIMEOUT : status;
}

MCSHM_API mcshm_status mcshm_objects(mcshm_queue *q, const mcshm_object_request *r,
                                     mcshm_object_result *results, mcshm_task_status *status,
                                     int64_t timeout_us)
{
    mcshm_task_status task = {.state = MCSHM_STATE_WAITING};
    mcshm_batch batch;
    mcshm_status res = mcl_check_queue(q);

    if (status != NULL)
        *status = task;
    if (res != MCSHM_OK)
        return res;
    if (r != NULL && r->op == MCSHM_PREFIX && results != NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "PREFIX has no results of single keys: results must be NULL");
    if (r != NULL && (r->op == MCSHM_CREATE || r->op == MCSHM_HOLD) && results == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "results is NULL: they are what it is for");
    if (q->nabandoned != 0)
        reap_abandoned(q);
    res = mcshm_batch_alloc(q, 1, &batch);
    if (res != MCSHM_OK)
        return res;
    res = mcshm_submit_objects(q, batch, r);
    if (res != MCSHM_OK)
        goto out;
    res = await(q, batch, timeout_us);
    if (res == MCSHM_TIMEOUT) {
        abandon(q, batch);
        return mcl_fail(MCSHM_TIMEOUT, "the task was canceled, and the agent does not say so");
    }
    (void)mcshm_task_poll(q, batch, 0, &task);
    if (status != NULL)
        *status = task;
    if (res == MCSHM_OK && task.state != MCSHM_STATE_COMPLETED)
        res = mcl_fail(task.state == MCSHM_STATE_CANCELED ? MCSHM_TIMEOUT : task.error,
                       "the task ended %s: %s", mcshm_state_name(task.state),
                       mcshm_strerror(task.error));
    if (res == MCSHM_OK && results != NULL) {
        res = mcshm_object_results(q, batch, 0, 0, results, r->count);
        if (res != MCSHM_OK)
            release_all(q, batch);
    }
out:
    (void)mcshm_batch_free(q, batch);
    return res;
}
