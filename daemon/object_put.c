/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PUT, CREATE, SEAL: new objects.
 *
 *   fill --> ask START --> space, bytes, checksum, seal --> ask END --> results
 *
 * Without other hosts nothing is asked.  The checksum is of what lies in the store, slice by slice while it is still in the
 * cache: what the client does to its memory meanwhile makes another object, never a wrong checksum.  With GPU memory among its
 * pieces it is taken when all of them have come.
 */
#include <string.h>

#include "fault.h"
#include "object_work.h"
#include "session.h"
#include "shm/failpoint.h"

#define SEAL_SLICE (256u << 10)          /* bytes summed between looks at the budget */
#define PATIENCE_NS UINT64_C(1000000000) /* waits for others who write the same key */

static bool is_create(const struct mcd_object *r)
{
    return r->desc.op == MCS_OP_CREATE;
}

/* One that is there already is good, unless it was not to be. Its view tells of it. */
static void end_existing(struct mcd_object *r, struct mcd_item *it)
{
    bool bad = (r->args.flags & (MCS_OBJECT_NEW | MCS_OBJECT_UPSERT)) != 0 || is_create(r);

    mcd_object_end_item(it, bad ? MCS_EXISTS : MCS_OK);
    it->result.size = it->view.size;
    it->result.version = mco_version_number(&it->view.version);
    it->result.crc = it->view.crc;
}

/* The catalog says so: it need not be here. */
static void end_elsewhere(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                          const struct mcd_ask_key *k)
{
    struct mco_found found = {0};
    uint8_t status;

    mco_exist(g->o.store->objects, &it->key, NULL, 1, 0, r->now, &status, &found);
    it->view.version = k->version;
    it->view.size = k->size != 0 ? k->size : found.size;
    it->view.crc = found.crc;
    end_existing(r, it);
}

static bool same_key(const struct mco_key *a, const struct mco_key *b)
{
    return a->hash == b->hash && a->length == b->length &&
           memcmp(a->bytes, b->bytes, a->length) == 0;
}

#define TWINS 512u /* a power of two, more than keys in a window */
static_assert(TWINS > MCD_WINDOW, "places for all of them");

/* Each key once: those that come again wait for what the first one comes to. */
static void find_twins(struct mcd_window *w)
{
    int16_t places[TWINS];

    memset(places, 0xff, sizeof(places));
    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];
        uint32_t at = (uint32_t)it->key.hash & (TWINS - 1);

        it->twin = -1;
        if (it->state == MCD_ITEM_DONE)
            continue;
        while (places[at] >= 0 && !same_key(&w->items[places[at]].key, &it->key))
            at = (at + 1) & (TWINS - 1);
        if (places[at] < 0)
            places[at] = (int16_t)i;
        else
            it->twin = places[at];
    }
}

static void ask_start(struct mcd_object *r, struct mcd_window *w)
{
    w->ask = (struct mcd_ask){.kind = MCD_ASK_START,
                              .flags = r->args.flags,
                              .replicas = r->args.replicas != 0 ? r->args.replicas : 1,
                              .tenant = r->tenant,
                              .patience = r->patience};
    memcpy(w->ask.host, r->host, sizeof(r->host));
    find_twins(w);
    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];

        it->asked = -1;
        if (it->state == MCD_ITEM_DONE)
            continue;
        it->state = it->twin >= 0 ? MCD_ITEM_LATER : MCD_ITEM_FRESH;
        if (it->twin >= 0)
            continue;
        it->asked = (int16_t)w->ask.n;
        w->asked[w->ask.n++] = (struct mcd_ask_key){.key = it->key, .size = it->size};
    }
}

/* Another request writes the key: it will be over soon, unless that is a creation of a client's. */
static bool will_end(struct mcd_engine *g, struct mcd_object *r, const struct mcd_item *it)
{
    if (r->patience ==
        0) /* the first time is asked without any: it may be a creation of this host's */
        r->patience = r->now + PATIENCE_NS;
    return r->now < r->patience && !mco_is_created(g->o.store->objects, &it->key);
}

static void start_answered(struct mcd_engine *g, struct mcd_object *r, struct mcd_window *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];
        const struct mcd_ask_key *k;

        if (it->state == MCD_ITEM_DONE || it->asked < 0)
            continue;
        k = &w->asked[it->asked];
        it->started = k->status == MCS_OK;
        it->version = k->version;
        if (k->status == MCS_EXISTS)
            end_elsewhere(g, r, it, k);
        else if (k->status == MCS_IN_USE && will_end(g, r, it))
            it->state = MCD_ITEM_LATER;
        else if (k->status != MCS_OK)
            mcd_object_end_item(it, (enum mcs_status)k->status);
    }
}

/* Those of the same key as one that is over, where that says what becomes of them, too. The others are put in the next round. */
static void end_twins(struct mcd_object *r, struct mcd_window *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];
        const struct mcd_item *first = it->twin >= 0 ? &w->items[it->twin] : NULL;
        bool there, created;

        if (first == NULL || it->state != MCD_ITEM_LATER || first->state != MCD_ITEM_DONE)
            continue;
        created = first->result.hold != 0;
        there = (first->result.status == MCS_OK || first->result.status == MCS_EXISTS) && !created;
        if (created) {
            mcd_object_end_item(it, MCS_IN_USE);
        } else if (there && (r->args.flags & MCS_OBJECT_UPSERT) == 0) {
            mcd_object_end_item(it, (r->args.flags & MCS_OBJECT_NEW) != 0 ? MCS_EXISTS : MCS_OK);
            it->result.size = first->result.size;
            it->result.version = first->result.version;
            it->result.crc = first->result.crc;
        }
    }
}

static bool any_later(const struct mcd_window *w)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->items[i].state == MCD_ITEM_LATER)
            return true;
    return false;
}

/* What has become of those that were started, in one question; false: nothing has to be told. */
static bool ask_end(struct mcd_object *r, struct mcd_window *w)
{
    w->ask = (struct mcd_ask){.kind = MCD_ASK_END,
                              .flags = r->args.flags,
                              .replicas = r->args.replicas != 0 ? r->args.replicas : 1,
                              .tenant = r->tenant};
    memcpy(w->ask.host, r->host, sizeof(r->host));
    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];
        bool created = is_create(r) && it->state == MCD_ITEM_DONE && it->result.hold != 0;

        it->asked = -1;
        if (!it->started || created) /* that one ends with its SEAL, or its hold */
            continue;
        it->started = false;
        it->asked = (int16_t)w->ask.n;
        w->asked[w->ask.n++] = (struct mcd_ask_key){
            .key = it->key,
            .size = it->view.size,
            .version = it->version,
            .crc = it->crc,
            .summed = it->view.summed,
            /* one that was there already is not the one that was granted */
            .status = it->state == MCD_ITEM_SEALED                                ? MCS_OK
                      : it->state == MCD_ITEM_DONE && it->result.status == MCS_OK ? MCS_EXISTS
                      : it->state == MCD_ITEM_DONE ? (uint8_t)it->result.status
                                                   : MCS_CANCELED,
        };
    }
    return w->ask.n != 0;
}

static void end_sealed(struct mcd_item *it)
{
    uint16_t copies = it->result.copies;

    mcd_object_end_item(it, MCS_OK);
    it->result.copies = copies;
    it->result.size = it->view.size;
    it->result.version = mco_version_number(&it->version);
    it->result.crc = it->crc;
    it->result.tier = MCS_TIER_MEMORY;
}

static void end_answered(struct mcd_window *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];
        const struct mcd_ask_key *k = it->asked >= 0 ? &w->asked[it->asked] : NULL;

        if (it->state != MCD_ITEM_SEALED)
            continue;
        end_sealed(it);
        if (k != NULL) {
            mcd_object_end_item(it, (enum mcs_status)k->status);
            it->result.copies = k->copies;
        }
    }
}

void mcd_object_put_told(struct mcd_engine *g, struct mcd_object *r, struct mcd_window *w)
{
    end_answered(w);
    mcd_object_show(g, r, w);
}

/* Space for it; OK: it has a view. */
static enum mcs_status begin(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                             uint32_t index)
{
    struct mco_put p = {
        .key = it->key,
        .size = it->size,
        .version = it->version,
        .flags = r->args.flags & (MCS_OBJECT_UPSERT | MCS_OBJECT_HARD_PIN),
        .open = is_create(r),
        .group = it->group,
        .hint = mcd_object_hint(r, &it->key, index, r->previous),
    };
    enum mcs_status res;

    p.hint.group = it->group;
    if (it->started) /* an earlier life that is here is on its way out: the directory has granted a later one */
        p.flags |= MCS_OBJECT_UPSERT;
    if (r->args.soft_pin_ms != 0)
        p.soft_pin_until = r->now + r->args.soft_pin_ms * UINT64_C(1000000);
    res = mco_begin(g->o.store->objects, &p, &it->view);
    if (res == MCS_OK) {
        it->version = it->view.version;
        it->state = MCD_ITEM_OPEN;
    } else {
        it->view.object = NULL;
    }
    return res;
}

/* A creation is given to the session. */
static void give(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it)
{
    struct mco_store *s = g->o.store->objects;
    uint64_t hold = r->q->session->holds == NULL
                        ? 0
                        : mcd_hold_add(r->q->session->holds, s, &it->view, &it->key, true);

    if (hold == 0) {
        mco_abort(s, it->view.object);
        it->view.object = NULL;
        mcd_object_end_item(it, MCS_LIMIT);
        return;
    }
    mcd_object_end_item(it, MCS_OK);
    it->result.hold = hold;
    it->result.size = it->size;
    it->result.offset = it->view.offset;
    it->result.extent = it->view.extent;
    it->result.version = mco_version_number(&it->version);
    it->result.tier = MCS_TIER_MEMORY;
    it->result.path = g->local_ops->path;
    it->view.object = NULL; /* the hold's */
}

static void seal(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it)
{
    bool sum = g->o.store->checksum;
    enum mcs_status res = MCS_NOT_OWNER;

    /* The leader may have undone it, or be another, and the key have a later life elsewhere. The end of the put says so, but until
     * then this host's clients would read this one, after they have read that one. */
    if (r->catalog && mcd_ask_is_over(g, &it->key, &it->version))
        mco_abort(g->o.store->objects, it->view.object);
    else
        res = mco_seal(g->o.store->objects, it->view.object, it->crc, sum, 1);
    it->view.object = NULL;
    it->view.summed = sum;
    it->result.copies = 1;
    it->result.path = it->gpu ? MCS_PATH_CUDA : g->local_ops->path;
    if (res == MCS_OK)
        it->state = MCD_ITEM_SEALED;
    else
        mcd_object_end_item(it, res);
}

/* Its bytes are there, or will not be. */
static enum mcs_status end_written(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                                   enum mcs_status error)
{
    if (error == MCS_OK) {
        r->bytes += it->view.size;
        seal(g, r, it);
        return MCS_OK;
    }
    mco_abort(g->o.store->objects, it->view.object);
    it->view.object = NULL;
    mcd_object_end_item(it, error);
    return error == MCS_MEMORY_FAULT ? error : MCS_OK;
}

/* One key on. OK: it is over, sealed or MOVING; BUSY with *run set: not yet. */
static enum mcs_status work(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                            uint32_t index, uint64_t *budget, enum mcd_run *run)
{
    enum mcs_status error;

    *run = MCD_RUN_MORE;
    if (it->state == MCD_ITEM_FRESH) {
        if (!is_create(r) && !mcd_object_measure(r, it, budget, &error))
            return MCS_BUSY;
        if (!is_create(r) && error != MCS_OK) {
            mcd_object_end_item(it, error);
            return MCS_OK;
        }
        it->state = MCD_ITEM_MEASURED;
    }
    if (it->state == MCD_ITEM_MEASURED) {
        error = begin(g, r, it, index);
        if (error == MCS_BUSY) {
            *run = MCD_RUN_SPACE;
            mcs_count(&g->counters.objects.space_waits, 1);
            return MCS_BUSY;
        }
        r->previous = it->key.hash;
        if (error == MCS_EXISTS)
            end_existing(r, it);
        else if (error != MCS_OK)
            mcd_object_end_item(it, error);
        if (error != MCS_OK)
            return MCS_OK;
        MCS_FAILPOINT(object_space);
    }
    if (is_create(r)) {
        give(g, r, it);
        MCS_FAILPOINT(object_given);
        return MCS_OK;
    }
    error = (enum mcs_status)it->leg_error;
    if (error == MCS_OK)
        error = mcd_object_copy(g, r, it, true, g->o.store->checksum && !it->gpu, budget);
    if (error == MCS_BUSY)
        return MCS_BUSY;
    if (it->gpu && error != MCS_MEMORY_FAULT) {
        if (error != MCS_OK)
            it->leg_error = (uint8_t)error;
        it->state = MCD_ITEM_MOVING;
        return MCS_OK;
    }
    return end_written(g, r, it, error);
}

static enum mcd_run write_all(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    struct mcd_window *w = r->window;
    enum mcd_run run;

    for (; w->at < w->n; w->at++) {
        struct mcd_item *it = &w->items[w->at];
        enum mcs_status error;

        if (it->state >= MCD_ITEM_MOVING)
            continue;
        error = work(g, r, it, r->next + w->at, budget, &run);
        if (error == MCS_BUSY)
            return run;
        if (error != MCS_OK) {
            r->error = (uint16_t)error;
            return MCD_RUN_FAILED;
        }
    }
    return MCD_RUN_DONE;
}

/* What has come from GPU memory is summed and sealed, while other keys' pieces are under way. */
static enum mcd_run seal_moved(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    struct mcd_window *w = r->window;
    bool moving = false;

    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];
        enum mcs_status error = (enum mcs_status)it->leg_error;

        if (it->state != MCD_ITEM_MOVING)
            continue;
        if (it->legs != 0) {
            moving = true;
            continue;
        }
        if (!it->summing) {
            it->summing = true;
            it->done = it->crc = 0;
        }
        if (error == MCS_OK && g->o.store->checksum)
            error = mcd_object_sum_rest(g, it, budget);
        if (error == MCS_BUSY)
            return MCD_RUN_MORE;
        (void)end_written(g, r, it, error);
    }
    return moving ? MCD_RUN_WAIT : MCD_RUN_DONE;
}

static enum mcd_run work_all(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    enum mcd_run run = write_all(g, r, budget), moved;

    if (run == MCD_RUN_FAILED)
        return run;
    moved = seal_moved(g, r, budget);
    return run == MCD_RUN_DONE || moved == MCD_RUN_MORE ? moved : run;
}

/* What was written is told of. *run: DONE: on with r->step, in the next window even; WAIT: for the answer. */
static void tell(struct mcd_engine *g, struct mcd_object *r, enum mcd_run *run)
{
    struct mcd_window *w = r->window;

    *run = MCD_RUN_DONE;
    r->step = MCD_STEP_TELL;
    if (!r->catalog || !ask_end(r, w) || mcd_object_ask(g, r, w))
        return;
    *run = MCD_RUN_WAIT;
    if (is_create(r) || any_later(w) || w->first + w->n == r->args.count || !mcd_object_aside(g, r))
        return;
    r->next += w->n;
    r->step = MCD_STEP_FILL;
    *run = MCD_RUN_DONE;
}

/* All windows are through but those that stand aside. */
static enum mcd_run end_of(const struct mcd_object *r)
{
    return r->naside != 0 ? MCD_RUN_WAIT : MCD_RUN_DONE;
}

enum mcd_run mcd_object_put(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    enum mcd_run run;

    for (;;) {
        struct mcd_window *w = r->window;

        switch (r->step) {
        case MCD_STEP_FILL:
            if (r->next == r->args.count)
                return end_of(r);
            if (*budget < MCD_KEY_COST)
                return MCD_RUN_MORE;
            mcd_object_fill(r, w, budget);
            r->patience = 0;
            r->step = MCD_STEP_BEGIN;
            break;
        case MCD_STEP_BEGIN:
            w->at = 0;
            r->step = MCD_STEP_WORK;
            if (!r->catalog)
                break;
            ask_start(r, w);
            r->step = MCD_STEP_ASK;
            if (w->ask.n != 0 && !mcd_object_ask(g, r, w))
                return MCD_RUN_WAIT;
            break;
        case MCD_STEP_ASK:
            if (w->asking)
                return MCD_RUN_WAIT;
            start_answered(g, r, w);
            r->step = MCD_STEP_WORK;
            break;
        case MCD_STEP_WORK:
            run = mcd_object_gpu_go(g, r, work_all(g, r, budget));
            if (run != MCD_RUN_DONE)
                return run;
            tell(g, r, &run);
            if (run != MCD_RUN_DONE)
                return run;
            break;
        case MCD_STEP_TELL:
            if (w->asking)
                return MCD_RUN_WAIT;
            end_answered(w);
            end_twins(r, w);
            r->step = any_later(w) ? MCD_STEP_BEGIN : MCD_STEP_SHOW;
            break;
        default:
            mcd_object_show(g, r, w);
            r->next += w->n;
            r->step = MCD_STEP_FILL;
            break;
        }
    }
}

/* ---- SEAL ---------------------------------------------------------------------------- */

/* Sums and seals. OK: it is over; BUSY: the budget is used up. */
static enum mcs_status seal_one(struct mcd_engine *g, struct mcd_object *r, struct mcd_item *it,
                                uint64_t *budget)
{
    struct mcd_holds *h = r->q->session->holds;
    unsigned long faults = mcd_fault_count();

    if (it->state == MCD_ITEM_FRESH) {
        if (h == NULL || !mcd_hold_seal_begin(h, it->size, &it->view, &it->key)) {
            mcd_object_end_item(it, MCS_NOT_OWNER);
            return MCS_OK;
        }
        it->version = it->view.version;
        it->started = r->catalog;
        it->state = MCD_ITEM_OPEN;
    }
    while (g->o.store->checksum && it->done < it->view.size) {
        uint64_t n = it->view.size - it->done;

        if (*budget == 0)
            return MCS_BUSY;
        n = n < SEAL_SLICE ? n : SEAL_SLICE;
        n = n < *budget ? n : *budget;
        it->crc = mcd_object_sum(g, it->crc, it->view.data + it->done, n);
        it->done += n;
        mcd_object_pay(budget, n);
    }
    if (faults != mcd_fault_count()) {
        mcs_count(&g->counters.faults, 1);
        return MCS_MEMORY_FAULT;
    }
    return MCS_OK;
}

/* The key of a creation goes with its hold: the question has one of its own. */
static void keep_key(struct mcd_window *w, struct mcd_item *it)
{
    it->key.bytes = memcpy(w->text + w->text_used, it->key.bytes, it->key.length);
    w->text_used += it->key.length;
}

static enum mcd_run seal_all(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    struct mcd_window *w = r->window;

    for (; w->at < w->n; w->at++) {
        struct mcd_item *it = &w->items[w->at];
        uint64_t hold = it->size;
        enum mcs_status error;

        if (it->state != MCD_ITEM_FRESH && it->state != MCD_ITEM_OPEN)
            continue;
        if (it->state == MCD_ITEM_FRESH && w->text_used + MCS_KEY_MAX > MCD_WINDOW_TEXT) {
            w->n = w->at; /* no room for its key: in the next window */
            break;
        }
        error = seal_one(g, r, it, budget);
        if (error == MCS_BUSY)
            return MCD_RUN_MORE;
        if (error != MCS_OK) {
            r->error = (uint16_t)error;
            return MCD_RUN_FAILED;
        }
        if (it->state != MCD_ITEM_OPEN)
            continue;
        keep_key(w, it);
        mcd_hold_seal_end(r->q->session->holds, g->o.store->objects, hold, true);
        seal(g, r, it);
    }
    return MCD_RUN_DONE;
}

enum mcd_run mcd_object_seal(struct mcd_engine *g, struct mcd_object *r, uint64_t *budget)
{
    enum mcd_run run;

    for (;;) {
        struct mcd_window *w = r->window;

        switch (r->step) {
        case MCD_STEP_FILL:
            if (r->next == r->args.count)
                return end_of(r);
            if (*budget < MCD_KEY_COST)
                return MCD_RUN_MORE;
            mcd_object_fill(r, w, budget);
            r->step = MCD_STEP_WORK;
            break;
        case MCD_STEP_WORK:
            run = seal_all(g, r, budget);
            if (run != MCD_RUN_DONE)
                return run;
            tell(g, r, &run);
            if (run != MCD_RUN_DONE)
                return run;
            break;
        case MCD_STEP_TELL:
            if (w->asking)
                return MCD_RUN_WAIT;
            end_answered(w);
            r->step = MCD_STEP_SHOW;
            break;
        default:
            mcd_object_show(g, r, w);
            r->next += w->n;
            r->step = MCD_STEP_FILL;
            break;
        }
    }
}

/* ---- given up --------------------------------------------------------------------------- */

/* Spaces and creations that are not through; the catalog is told of what was begun, in a question that outlives the request. */
void mcd_object_put_down(struct mcd_engine *g, struct mcd_object *r, struct mcd_window *w)
{
    struct mco_store *s = g->o.store->objects;

    for (uint32_t i = 0; i < w->n; i++) {
        struct mcd_item *it = &w->items[i];

        if (it->view.object == NULL || (it->state != MCD_ITEM_OPEN && it->state != MCD_ITEM_MOVING))
            continue;
        if (r->desc.op == MCS_OP_SEAL) {
            keep_key(w, it);
            /* held again, as it was; or it was released meanwhile, and is undone */
            it->started = mcd_hold_seal_end(r->q->session->holds, s, it->size, false);
            if (!it->started) {
                it->view.object = NULL;
                continue;
            }
        }
        mco_abort(s, it->view.object);
        it->view.object = NULL;
    }
    if (r->catalog && !w->asking && ask_end(r, w))
        (void)mcd_object_tell(g, w);
}
