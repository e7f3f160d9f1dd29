/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests about objects: checked, built into one block of the argument area (shm/object.h tells
 * how it looks) and submitted like any other task.
 *
 *   head | keys | pieces | gates | bytes of the keys, groups, host | results
 *
 * Results begin a cache line of their own: nobody but the agent writes there, nobody but this process reads there, and a request of
 * one short key takes as few lines from one core to the other as can be.
 */
#include "shm/object.h"
#include "submit.h"

#include <stdlib.h>

#define SAME_OP(name)                                                                              \
    static_assert((unsigned)MCSHM_##name == (unsigned)MCS_OP_##name, "public numbers")

SAME_OP(PUT);
SAME_OP(GET);
SAME_OP(EXIST);
SAME_OP(PREFIX);
SAME_OP(REMOVE);
SAME_OP(CREATE);
SAME_OP(SEAL);
SAME_OP(HOLD);
static_assert(MCSHM_OBJECT_UPSERT == MCS_OBJECT_UPSERT && MCSHM_OBJECT_NEW == MCS_OBJECT_NEW &&
                  MCSHM_OBJECT_HARD_PIN == MCS_OBJECT_HARD_PIN &&
                  MCSHM_OBJECT_RANGES == MCS_OBJECT_RANGES &&
                  MCSHM_OBJECT_VERIFY == MCS_OBJECT_VERIFY &&
                  MCSHM_OBJECT_FORCE == MCS_OBJECT_FORCE &&
                  MCSHM_OBJECT_LOCAL == MCS_OBJECT_LOCAL &&
                  MCSHM_OBJECT_CHAIN == MCS_OBJECT_CHAIN && MCSHM_OBJECT_LEASE == MCS_OBJECT_LEASE,
              "public flags");
static_assert(MCSHM_KEY_MAX == MCS_KEY_MAX && MCSHM_KEYS_MAX == MCS_KEYS_MAX, "public limits");

/* Where the parts of a block begin. */
struct layout {
    uint64_t keys, pieces, gates, text, results, total;
    uint64_t npieces;
};

static const struct {
    const char *name;
    uint32_t flags; /* that it may have */
} ops[MCS_OP_COUNT] = {
    [MCS_OP_PUT] = {"PUT", MCS_OBJECT_UPSERT | MCS_OBJECT_NEW | MCS_OBJECT_HARD_PIN |
                               MCS_OBJECT_LOCAL | MCS_OBJECT_CHAIN},
    [MCS_OP_GET] = {"GET",
                    MCS_OBJECT_RANGES | MCS_OBJECT_VERIFY | MCS_OBJECT_LOCAL | MCS_OBJECT_CHAIN},
    [MCS_OP_EXIST] = {"EXIST", MCS_OBJECT_LOCAL | MCS_OBJECT_CHAIN | MCS_OBJECT_LEASE},
    [MCS_OP_PREFIX] = {"PREFIX", MCS_OBJECT_LOCAL | MCS_OBJECT_CHAIN | MCS_OBJECT_LEASE},
    [MCS_OP_REMOVE] = {"REMOVE", MCS_OBJECT_FORCE | MCS_OBJECT_LOCAL},
    [MCS_OP_CREATE] = {"CREATE", MCS_OBJECT_UPSERT | MCS_OBJECT_NEW | MCS_OBJECT_HARD_PIN |
                                     MCS_OBJECT_LOCAL | MCS_OBJECT_CHAIN},
    [MCS_OP_SEAL] = {"SEAL", MCS_OBJECT_LOCAL},
    [MCS_OP_HOLD] = {"HOLD", MCS_OBJECT_VERIFY | MCS_OBJECT_LOCAL | MCS_OBJECT_CHAIN},
};

static bool writes(uint8_t op)
{
    return op == MCS_OP_PUT || op == MCS_OP_CREATE;
}

static mcshm_status check_request(const mcshm_object_request *r)
{
    const char *name = ops[r->op].name;

    if (r->count == 0 || r->count > MCS_KEYS_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s of %zu keys: 1 .. %u in one request", name,
                        r->count, MCS_KEYS_MAX);
    if ((r->flags & ~ops[r->op].flags) != 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: flags 0x%x are not for it", name,
                        r->flags & ~ops[r->op].flags);
    if ((r->flags & MCS_OBJECT_UPSERT) != 0 && (r->flags & MCS_OBJECT_NEW) != 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: UPSERT and NEW exclude each other", name);
    if ((unsigned)r->priority >= MCS_CLASS_COUNT)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: priority %u is not 0 .. %u", name,
                        (unsigned)r->priority, MCS_CLASS_COUNT - 1);
    if (r->op == MCSHM_SEAL ? r->holds == NULL : r->keys == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: %s is NULL", name,
                        r->op == MCSHM_SEAL ? "holds" : "keys");
    if (r->op == MCSHM_CREATE && r->sizes == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "CREATE: sizes is NULL");
    if ((r->op == MCSHM_PUT || r->op == MCSHM_GET) && r->spans == NULL && r->span_counts == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: spans is NULL", name);
    if (r->replicas > MCS_REPLICAS_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: %u replicas, at most %u", name, r->replicas,
                        MCS_REPLICAS_MAX);
    if (r->soft_pin_ms > MCS_SOFT_PIN_MAX_MS)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: soft_pin_ms is %u, at most %u", name,
                        r->soft_pin_ms, MCS_SOFT_PIN_MAX_MS);
    return MCSHM_OK;
}

static MCL_COLD mcshm_status bad_key(const mcshm_object_request *r, size_t i)
{
    const mcshm_key *k = &r->keys[i];

    if (k->size != 0 && k->bytes == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: key %zu is NULL", ops[r->op].name, i);
    return mcl_fail(MCSHM_BAD_KEY, "%s: key %zu has %zu bytes: 1 .. %u", ops[r->op].name, i,
                    k->size, MCS_KEY_MAX);
}

/* How many bytes of keys, groups and host there are. */
static mcshm_status measure_text(const mcshm_object_request *r, uint64_t *text)
{
    uint64_t size = 0;

    for (size_t i = 0; r->op != MCSHM_SEAL && i < r->count; i++) {
        if (__builtin_expect(r->keys[i].size - 1 >= MCS_KEY_MAX || r->keys[i].bytes == NULL, 0))
            return bad_key(r, i);
        size += r->keys[i].size;
    }
    for (size_t i = 0; writes((uint8_t)r->op) && r->groups != NULL && i < r->count; i++) {
        if (r->groups[i].size > MCS_GROUP_MAX ||
            (r->groups[i].bytes == NULL && r->groups[i].size != 0))
            return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: group %zu has %zu bytes, at most %u%s",
                            ops[r->op].name, i, r->groups[i].size, MCS_GROUP_MAX,
                            r->groups[i].bytes == NULL ? ", and is NULL" : "");
        size += r->groups[i].size;
    }
    if (writes((uint8_t)r->op) && r->host != NULL) {
        size_t length = strlen(r->host);

        if (length == 0 || length >= MCS_ADDRESS_MAX)
            return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: host has %zu bytes: 1 .. %u",
                            ops[r->op].name, length, MCS_ADDRESS_MAX - 1);
        size += length;
    }
    *text = size;
    return MCSHM_OK;
}

/* s->ngates are known. */
static mcshm_status lay_out(const struct mcl_submission *s, const mcshm_object_request *r,
                            struct layout *l)
{
    const struct mcshm_queue *q = s->q;
    uint64_t result = r->op == MCSHM_PREFIX  ? 0
                      : r->op == MCSHM_EXIST ? 1
                                             : sizeof(struct mcs_object_result);
    uint64_t text = 0;
    mcshm_status status = measure_text(r, &text);

    if (status != MCSHM_OK)
        return status;
    l->npieces = 0;
    if (r->op == MCSHM_PUT || r->op == MCSHM_GET) {
        l->npieces = r->span_counts == NULL ? r->count : 0;
        for (size_t i = 0; r->span_counts != NULL && i < r->count; i++)
            l->npieces += r->span_counts[i];
        if (l->npieces > MCS_PIECES_MAX)
            return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s of %llu spans: at most %u in one request",
                            ops[r->op].name, (unsigned long long)l->npieces, MCS_PIECES_MAX);
        if (l->npieces != 0 && r->spans == NULL)
            return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: spans is NULL", ops[r->op].name);
    }
    l->keys = sizeof(struct mcs_object_args);
    l->pieces = l->keys + r->count * sizeof(struct mcs_object_key);
    l->gates = l->pieces + l->npieces * sizeof(struct mcs_object_piece);
    l->text = l->gates + s->ngates * sizeof(s->gates[0]);
    l->results = (l->text + text + MCS_LINE - 1) / MCS_LINE * MCS_LINE;
    l->total = l->results + r->count * result;
    if (result == 0) {
        l->results = 0;
        l->total = l->text + text;
    }
    if (l->total > q->shm.args_size)
        return mcl_fail(
            MCSHM_INVALID_ARGUMENT,
            "%s of %zu keys, %llu spans takes %llu bytes: the queue's argument area has "
            "%llu (mcshm_queue_options.args_size)",
            ops[r->op].name, r->count, (unsigned long long)l->npieces, (unsigned long long)l->total,
            (unsigned long long)q->shm.args_size);
    return MCSHM_OK;
}

/* Has the store given up extents that are mapped here?  It says so in the session's words. */
static void look_for_gone(struct mcshm *c)
{
    /* relaxed: the watcher looks again, and another thread's note of it is as good */
    uint32_t gone = mcs_load_relaxed(&c->region.words->objects_gone);

    if (__builtin_expect(gone != mcs_load_relaxed(&c->objects_gone), 0))
        mcl_object_maps_stale(c, gone);
}

static mcshm_status check(struct mcl_submission *s, const mcshm_object_request *r, struct layout *l)
{
    const struct mcshm_queue *q = s->q;
    mcshm_status status;

    if (r == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_submit_objects: request is NULL");
    if ((unsigned)r->op < MCS_OP_PUT || (unsigned)r->op > MCS_OP_HOLD)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "request.op %u is not one about objects, %u .. %u",
                        (unsigned)r->op, MCS_OP_PUT, MCS_OP_HOLD);
    /* relaxed: partner take_info(), reconnect.c */
    if (mcs_load_relaxed(&q->c->objects) == 0)
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "the agent holds no objects: [store] size is 0, or it is of a version "
                        "without them");
    status = check_request(r);
    if (status == MCSHM_OK && __builtin_expect(r->order != NULL, 0))
        status = mcl_submission_order(s, r->order);
    return status == MCSHM_OK ? lay_out(s, r, l) : status;
}

/* Memory that is not just memory of the host's. */
static MCL_COLD mcshm_status check_special(const struct mcl_submission *s,
                                           const mcshm_object_request *r, uint32_t index,
                                           const struct mcl_range *range)
{
    const void *at = r->spans[index].address;

    if (range->gpu && !r->gpu_synced && (s->order & MCS_DESC_WAIT) == 0)
        return mcl_fail(MCSHM_GPU_ORDER,
                        "span %u: %p is GPU memory: synchronise the stream that uses it and say so "
                        "with request.gpu_synced, or let the request wait for it: order->wait, of "
                        "mcshm_gate_record()",
                        index, at);
    /* it is copied at submission and at the poll, so before the one gate and after the other */
    if (range->staged != NULL && s->order != 0)
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "span %u: %p is registered private memory, which is copied in the caller's "
                        "thread and cannot follow request.order: use memory of mcshm_alloc()",
                        index, at);
    return MCSHM_OK;
}

/* Writes one piece, whose memory must lie in one extent. */
static mcshm_status put_piece(struct mcl_submission *s, const mcshm_object_request *r,
                              uint32_t slot, uint32_t index, struct mcs_object_piece *p)
{
    const mcshm_span *span = &r->spans[index];
    const struct mcl_range *range = mcl_queue_range(s->q, span->address);
    uint64_t offset;

    if (__builtin_expect(span->size == 0 || range == NULL, 0))
        return span->size == 0
                   ? mcl_fail(MCSHM_INVALID_ARGUMENT, "span %u has size 0", index)
                   : mcl_fail(
                         MCSHM_NOT_REGISTERED,
                         "span %u: %p lies in no allocation or registration of this connection",
                         index, span->address);
    offset = (uintptr_t)span->address - range->start;
    if (__builtin_expect(span->size > range->size - offset, 0))
        return mcl_fail(MCSHM_BAD_RANGE, "span %u: %llu bytes at %p: there are %llu", index,
                        (unsigned long long)span->size, span->address,
                        (unsigned long long)(range->size - offset));
    if (__builtin_expect(range->gpu || range->staged != NULL, 0)) {
        mcshm_status status = check_special(s, r, index, range);

        if (status != MCSHM_OK)
            return status;
    }
    *p = (struct mcs_object_piece){
        .offset = (r->flags & MCS_OBJECT_RANGES) != 0 ? span->offset : 0,
        .length = span->size,
        .local = range->offset + offset,
        .extent = range->extent,
    };
    if (__builtin_expect(range->staged == NULL, 1))
        return MCSHM_OK;
    s->q->tasks[slot].flags |= MCL_TASK_STAGED;
    return mcl_object_stage(s->q, slot, index, range->staged, span->address, span->size);
}

static uint32_t put_text(uint8_t *block, uint64_t *at, const void *bytes, size_t size)
{
    uint64_t from = *at;

    memcpy(block + from, bytes, size);
    *at = from + size;
    return (uint32_t)from;
}

static mcshm_status fill(struct mcl_submission *s, const mcshm_object_request *r,
                         const struct layout *l, uint32_t slot, uint8_t *block)
{
    struct mcs_object_key *keys = (void *)(block + l->keys);
    struct mcs_object_piece *pieces = (void *)(block + l->pieces);
    bool spans = l->npieces != 0;
    uint64_t text = l->text;
    uint32_t piece = 0;

    for (size_t i = 0; i < r->count; i++) {
        struct mcs_object_key *k = &keys[i];

        *k = (struct mcs_object_key){.first = piece};
        if (r->op == MCSHM_SEAL) {
            k->size = r->holds[i];
            continue;
        }
        k->length = (uint32_t)r->keys[i].size;
        k->text = put_text(block, &text, r->keys[i].bytes, r->keys[i].size);
        if (r->op == MCSHM_CREATE)
            k->size = r->sizes[i];
        if (writes((uint8_t)r->op) && r->groups != NULL && r->groups[i].size != 0) {
            k->group_length = (uint32_t)r->groups[i].size;
            k->group = put_text(block, &text, r->groups[i].bytes, r->groups[i].size);
        }
        if (!spans)
            continue;
        k->pieces = r->span_counts == NULL ? 1 : r->span_counts[i];
        for (uint32_t end = piece + k->pieces; piece < end; piece++) {
            mcshm_status status = put_piece(s, r, slot, piece, &pieces[piece]);

            if (__builtin_expect(status != MCSHM_OK, 0))
                return status;
        }
    }
    if (writes((uint8_t)r->op) && r->host != NULL) {
        struct mcs_object_args *a = (void *)block;

        a->host_length = (uint32_t)strlen(r->host);
        a->host = put_text(block, &text, r->host, a->host_length);
    }
    return MCSHM_OK;
}

/* The private half, for the life of the task. */
static mcshm_status note(struct mcl_submission *s, const mcshm_object_request *r,
                         const struct layout *l, uint32_t slot)
{
    struct mcshm_queue *q = s->q;
    struct mcl_object *o;

    if (q->objects == NULL) {
        q->objects = calloc(q->shm.slots, sizeof(*q->objects));
        if (q->objects == NULL)
            return mcl_fail(MCSHM_NO_MEMORY, "out of memory for requests about objects");
    }
    o = &q->objects[slot];
    o->op = (uint8_t)r->op;
    o->count = (uint32_t)r->count;
    o->results = (uint32_t)l->results;
    o->nstages = 0;
    o->low = UINTPTR_MAX;
    o->high = 0;
    q->tasks[slot].flags |= MCL_TASK_OBJECT;
    return MCSHM_OK;
}

/* Bytes of all spans, as far as that can be told. */
static uint64_t all_bytes(const mcshm_object_request *r, uint64_t n)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < n; i++)
        sum += r->spans[i].size;
    return sum;
}

MCSHM_API mcshm_status mcshm_submit_objects(mcshm_queue *q, mcshm_batch batch,
                                            const mcshm_object_request *r)
{
    mcshm_request common = {0};
    struct mcl_submission s;
    struct layout l = {0};
    struct mcl_task *t;
    struct mcs_desc *d;
    uint32_t slot;
    void *block;
    mcshm_status status = mcl_submission_begin(&s, q, batch, 1);

    if (status == MCSHM_OK)
        status = check(&s, r, &l);
    if (status != MCSHM_OK)
        return status;
    look_for_gone(q->c);
    common.flags = (r->fence ? MCSHM_FENCE : 0) | (r->gpu_synced ? MCSHM_GPU_SYNCED : 0);
    common.priority = r->priority;
    common.deadline_us = r->deadline_us;
    common.cookie = r->cookie;
    t = mcl_submission_task(&s, &common, 0, &slot);
    d = mcl_submission_desc(&s, &common, t, slot, (uint8_t)r->op);
    status = note(&s, r, &l, slot);
    if (status == MCSHM_OK)
        status = mcl_submission_args(&s, l.total, slot, d, &block);
    if (status != MCSHM_OK)
        return mcl_submission_undo(&s, status);
    *(struct mcs_object_args *)block = (struct mcs_object_args){
        .total = l.total,
        .count = (uint32_t)r->count,
        .flags = r->flags,
        .keys = (uint32_t)l.keys,
        .pieces = l.npieces != 0 ? (uint32_t)l.pieces : 0,
        .npieces = (uint32_t)l.npieces,
        .results = (uint32_t)l.results,
        .replicas = r->replicas,
        .soft_pin_ms = r->soft_pin_ms,
        .lease_ms = r->lease_ms,
        .position = r->position,
        .gates = s.ngates != 0 ? (uint32_t)l.gates : 0,
    };
    memcpy((uint8_t *)block + l.gates, s.gates, s.ngates * sizeof(s.gates[0]));
    status = fill(&s, r, &l, slot, block);
    if (status != MCSHM_OK)
        return mcl_submission_undo(&s, status);
    if ((t->flags & MCL_TASK_STAGED) != 0) {
        status = mcl_object_stage_check(q, slot);
        if (status != MCSHM_OK)
            return mcl_submission_undo(&s, status);
        t->length = all_bytes(r, l.npieces); /* what is staged, for the counters */
        s.staged++;
    }
    return mcl_submission_finish(&s, NULL);
}
