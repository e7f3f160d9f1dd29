/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client has written of a request about objects.  Everything is copied once, and the copy is checked and used; it may
 * be another the next time it is looked at.
 */
#include <string.h>

#include "gate.h"
#include "object_work.h"
#include "session.h"

#define CHECK_COST 128u /* bytes that a look at a piece counts for */

/* Flags that mean something to an op; the others are an error, but LOCAL, which asks for less. */
static uint32_t flags_of(uint8_t op)
{
    switch (op) {
    case MCS_OP_PUT:
    case MCS_OP_CREATE:
        return MCS_OBJECT_UPSERT | MCS_OBJECT_NEW | MCS_OBJECT_HARD_PIN | MCS_OBJECT_CHAIN |
               MCS_OBJECT_LOCAL;
    case MCS_OP_GET:
        return MCS_OBJECT_RANGES | MCS_OBJECT_VERIFY | MCS_OBJECT_LOCAL | MCS_OBJECT_CHAIN;
    case MCS_OP_HOLD:
        return MCS_OBJECT_VERIFY | MCS_OBJECT_LOCAL | MCS_OBJECT_CHAIN;
    case MCS_OP_EXIST:
    case MCS_OP_PREFIX:
        return MCS_OBJECT_LOCAL | MCS_OBJECT_CHAIN | MCS_OBJECT_LEASE;
    case MCS_OP_REMOVE:
        return MCS_OBJECT_FORCE | MCS_OBJECT_LOCAL;
    default:
        return MCS_OBJECT_LOCAL;
    }
}

static bool moves(uint8_t op)
{
    return op == MCS_OP_PUT || op == MCS_OP_GET;
}

static bool writes(uint8_t op)
{
    return op == MCS_OP_PUT || op == MCS_OP_CREATE;
}

static uint64_t result_size(uint8_t op)
{
    return op == MCS_OP_PREFIX ? 0 : op == MCS_OP_EXIST ? 1 : sizeof(struct mcs_object_result);
}

/* Does the block hold n of them at this offset? */
static bool holds(uint64_t total, uint32_t at, uint64_t n, uint64_t size)
{
    return n == 0 || (at % 8 == 0 && at <= total && n <= (total - at) / size);
}

static enum mcs_status check_values(const struct mcs_object_args *a, uint8_t op)
{
    if (a->count == 0 || a->count > MCS_KEYS_MAX || (a->flags & ~flags_of(op)) != 0 ||
        (a->flags & (MCS_OBJECT_UPSERT | MCS_OBJECT_NEW)) == (MCS_OBJECT_UPSERT | MCS_OBJECT_NEW) ||
        a->replicas > MCS_REPLICAS_MAX || a->soft_pin_ms > MCS_SOFT_PIN_MAX_MS ||
        a->lease_ms > MCS_SOFT_PIN_MAX_MS || a->npieces > MCS_PIECES_MAX ||
        a->host_length >= MCS_ADDRESS_MAX || a->position > UINT32_MAX / 2)
        return MCS_INVALID_ARGUMENT;
    if (!writes(op) && (a->replicas | a->soft_pin_ms | a->host_length) != 0)
        return MCS_INVALID_ARGUMENT;
    if (!moves(op) && a->npieces != 0)
        return MCS_INVALID_ARGUMENT;
    for (unsigned i = 0; i < sizeof(a->reserved) / sizeof(a->reserved[0]); i++)
        if (a->reserved[i] != 0)
            return MCS_INVALID_ARGUMENT;
    return MCS_OK;
}

enum mcs_status mcd_object_head(const struct mcd_queue *q, const struct mcs_desc *d,
                                struct mcd_object *r)
{
    struct mcs_object_args *a = &r->args;
    bool gates = (d->flags & (MCS_DESC_WAIT | MCS_DESC_SIGNAL)) != 0;
    uint64_t at = (uint64_t)d->args * MCS_LINE;
    enum mcs_status error;

    if (d->args == MCS_ARGS_NONE || at >= q->shm.args_size || sizeof(*a) > q->shm.args_size - at)
        return MCS_BAD_RANGE;
    memcpy(a, q->shm.args + at, sizeof(*a));
    r->base = at;
    if (a->total < sizeof(*a) || a->total > q->shm.args_size - at)
        return MCS_BAD_RANGE;
    error = check_values(a, d->op);
    if (error == MCS_OK && !gates && a->gates != 0)
        error = MCS_INVALID_ARGUMENT;
    if (error != MCS_OK)
        return error;
    if (!holds(a->total, a->keys, a->count, sizeof(struct mcs_object_key)) ||
        !holds(a->total, a->pieces, a->npieces, sizeof(struct mcs_object_piece)) ||
        (result_size(d->op) != 0 && !holds(a->total, a->results, a->count, result_size(d->op))) ||
        a->host > a->total || a->host_length > a->total - a->host)
        return MCS_BAD_RANGE;
    memcpy(r->host, q->shm.args + at + a->host, a->host_length);
    r->host[a->host_length] = '\0';
    return gates ? mcd_gates_check(q, d, a->gates, a->total, &r->gate) : MCS_OK;
}

static const uint8_t *block(const struct mcd_object *r)
{
    return r->q->shm.args + r->base;
}

static bool within(const struct mcd_object *r, uint32_t at, uint32_t length)
{
    return at <= r->args.total && length <= r->args.total - at;
}

enum mcs_status mcd_object_key(const struct mcd_object *r, uint32_t index, uint8_t *text,
                               struct mco_key *key, struct mcs_object_key *record)
{
    memcpy(record, block(r) + r->args.keys + (uint64_t)index * sizeof(*record), sizeof(*record));
    if (record->length == 0 || record->length > MCS_KEY_MAX)
        return MCS_BAD_KEY;
    if (!within(r, record->text, record->length))
        return MCS_BAD_RANGE;
    memcpy(text, block(r) + record->text, record->length);
    *key = mco_key(r->tenant, text, record->length);
    return MCS_OK;
}

static enum mcs_status take_group(const struct mcd_object *r, const struct mcs_object_key *k,
                                  uint64_t *group)
{
    uint8_t name[MCS_GROUP_MAX];

    *group = 0;
    if (!writes(r->desc.op) || k->group_length == 0)
        return MCS_OK;
    if (k->group_length > MCS_GROUP_MAX)
        return MCS_INVALID_ARGUMENT;
    if (!within(r, k->group, k->group_length))
        return MCS_BAD_RANGE;
    memcpy(name, block(r) + k->group, k->group_length);
    *group = mco_key_hash(r->tenant, name, k->group_length);
    *group += *group == 0;
    return MCS_OK;
}

/* An item of the window from key `index`. */
static void take_item(struct mcd_object *r, struct mcd_window *w, struct mcd_item *it,
                      uint32_t index)
{
    struct mcs_object_key k;
    enum mcs_status error = MCS_OK;

    memset(it, 0, sizeof(*it));
    it->twin = it->asked = -1;
    if (r->desc.op == MCS_OP_SEAL) {
        memcpy(&k, block(r) + r->args.keys + (uint64_t)index * sizeof(k), sizeof(k));
    } else {
        error = mcd_object_key(r, index, w->text + w->text_used, &it->key, &k);
        if (error == MCS_OK) {
            w->text_used += k.length;
            error = take_group(r, &k, &it->group);
        }
    }
    it->size = moves(r->desc.op) ? 0 : k.size;
    it->first = k.first;
    it->pieces = k.pieces;
    if (error == MCS_OK && moves(r->desc.op) &&
        (k.first > r->args.npieces || k.pieces > r->args.npieces - k.first))
        error = MCS_BAD_RANGE;
    if (error != MCS_OK)
        mcd_object_end_item(it, error);
}

void mcd_object_fill(struct mcd_object *r, struct mcd_window *w, uint64_t *budget)
{
    uint32_t left = r->args.count - r->next;

    w->first = r->next;
    w->n = w->at = 0;
    w->text_used = 0;
    w->leg_pieces_used = 0;
    while (w->n < MCD_WINDOW && w->n < left && w->text_used + MCS_KEY_MAX <= MCD_WINDOW_TEXT &&
           (w->n == 0 || *budget >= MCD_KEY_COST)) {
        take_item(r, w, &w->items[w->n], r->next + w->n);
        w->n++;
        mcd_object_pay(budget, MCD_KEY_COST);
    }
}

enum mcs_status mcd_object_piece(const struct mcd_object *r, const struct mcd_item *it,
                                 uint32_t piece, struct mcs_object_piece *out,
                                 const struct mcd_extent **extent)
{
    const struct mcd_extent *e;

    /* in bounds: first and pieces were compared with npieces, that with the block's private size */
    memcpy(out, block(r) + r->args.pieces + ((uint64_t)it->first + piece) * sizeof(*out),
           sizeof(*out));
    if (out->length == 0)
        return MCS_INVALID_ARGUMENT;
    e = mcd_find_extent(r->q, out->extent);
    if (e == NULL)
        return MCS_INVALID_HANDLE;
    if (e->gpu != NULL && !mcd_object_may_gpu(r))
        return MCS_GPU_ORDER;
    if (out->local > e->size || out->length > e->size - out->local)
        return MCS_BAD_RANGE;
    *extent = e;
    return MCS_OK;
}

bool mcd_object_measure(const struct mcd_object *r, struct mcd_item *it, uint64_t *budget,
                        enum mcs_status *error)
{
    *error = MCS_OK;
    while (it->piece < it->pieces) {
        const struct mcd_extent *e = NULL;
        struct mcs_object_piece p;

        if (*budget < CHECK_COST)
            return false;
        mcd_object_pay(budget, it->pieces == 1 ? 0 : CHECK_COST); /* the key has paid for one */
        *error = mcd_object_piece(r, it, it->piece, &p, &e);
        if (*error == MCS_OK && __builtin_add_overflow(it->size, p.length, &it->size))
            *error = MCS_BAD_RANGE;
        if (*error != MCS_OK)
            return true;
        it->gpu = it->gpu || e->gpu != NULL;
        it->piece++;
    }
    it->piece = 0;
    return true;
}

void mcd_object_show(struct mcd_engine *g, struct mcd_object *r, const struct mcd_window *w)
{
    uint8_t *to = r->q->shm.args + r->base + r->args.results;
    uint8_t op = r->desc.op;

    for (uint32_t i = 0; i < w->n; i++) {
        const struct mcs_object_result *res = &w->items[i].result;

        memcpy(to + (uint64_t)(w->first + i) * sizeof(*res), res, sizeof(*res));
        mcs_count(&g->counters.objects.statuses[res->status], 1);
        if (!moves(op))
            r->bytes += res->status == MCS_OK;
        if (res->tier > r->tier)
            r->tier = res->tier;
    }
}

void mcd_object_show_byte(const struct mcd_object *r, uint32_t index, uint8_t status)
{
    r->q->shm.args[r->base + r->args.results + index] = status;
}
