/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that are brought here: replicas, moves, what a client wants to read in place.  Always a pull by who is to have
 * them; nobody writes into another host's store.
 *
 *   control   space (mco_begin) --+                                +--> sealed, told
 *   engine                        +--> leg --> checksum, in steps -+
 *
 * The legs are tasks of a queue that no client has, in memory of the agent's own.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "catalog_op.h"
#include "log.h"
#include "object.h"
#include "shm/status.h"
#include "transports/crc32c.h"

#define PULL_NS (30000 * MCD_MS) /* most that one may take */

struct mcd_pull {
    struct mcd_pull *next;     /* of the list that it is in */
    struct mcd_pull *all_next; /* control thread: of all */
    struct mco_key key;        /* bytes are its own */
    uint32_t unwanted;         /* see mcd_pulls_unwant() */
    struct mcd_catalog *catalog;
    struct mcd_op *op;
    uint32_t index;
    struct mcd_reach *reach; /* with a use */
    struct mco_view view;
    uint64_t until; /* ns: of the lease */
    uint32_t crc;
    bool summed;
    struct mcd_leg leg;
    struct mcd_leg_piece piece;
    /* engine */
    uint64_t checked; /* bytes */
    uint32_t sum;
    enum mcs_status status;
};

/* ---- the queue ------------------------------------------------------------------------------- */

#define QUEUE_DEPTH 64u
#define QUEUE_SLOTS 64u
#define QUEUE_BATCHES 16u

static void free_queue(struct mcd_catalog *c)
{
    if (c->queue != NULL)
        mcd_queue_fini(c->queue);
    free(c->queue);
    free(c->queue_memory);
    free(c->own);
    c->queue = NULL;
    c->queue_memory = NULL;
    c->own = NULL;
}

static int make_queue(struct mcd_catalog *c)
{
    struct mcd_agent *a = c->agent;
    struct mcs_queue_layout l;
    int res = mcs_queue_layout(QUEUE_DEPTH, QUEUE_SLOTS, QUEUE_BATCHES, 64 << 10, &l);

    if (res != 0 || a->nengines == 0)
        return -ENOTSUP;
    c->own = calloc(1, sizeof(*c->own));
    c->queue = calloc(1, sizeof(*c->queue));
    c->queue_memory = aligned_alloc(4096, (l.total_size + 4095) & ~UINT64_C(4095));
    res = -ENOMEM;
    if (c->own == NULL || c->queue == NULL || c->queue_memory == NULL)
        goto error;
    memset(c->queue_memory, 0, l.total_size);
    c->own->agent = a;
    c->own->incarnation = a->incarnation;
    c->queue->session = c->own;
    c->queue_engine = a->engines[a->nengines - 1];
    c->queue->engine = c->queue_engine;
    res = mcs_queue_create(&c->queue->shm, &c->queue->consumer, c->queue_memory, &l, 0,
                           a->incarnation, 0);
    if (res == 0)
        res = mcd_queue_init(c->queue);
    if (res != 0)
        goto error;
    c->queue_add = (struct mcd_command){.kind = MCD_COMMAND_ADD, .queue = c->queue};
    mcd_engine_command(c->queue_engine, &c->queue_add);
    return 0;

error:
    free_queue(c);
    return res;
}

/* ---- control thread ---------------------------------------------------------------------------- */

static void give_back(struct mcd_reach **r)
{
    if (*r != NULL)
        (void)mcs_fetch_add(&(*r)->users,
                            UINT32_MAX); /* partner: mcd_reaches_poll(), this thread */
    *r = NULL;
}

static bool same_key(const struct mco_key *a, const struct mco_key *b)
{
    return a->hash == b->hash && a->tenant == b->tenant && a->length == b->length &&
           memcmp(a->bytes, b->bytes, a->length) == 0;
}

void mcd_pulls_unwant(struct mcd_catalog *c, const struct mcd_over *over, uint32_t n)
{
    for (struct mcd_pull *p = c->pulls; p != NULL; p = p->all_next)
        if (mcd_over_has(over, n, &p->key, &p->view.version))
            mcs_store_relaxed(&p->unwanted, 1u);
    mcs_fence_full(); /* before the removal that follows; partner: tell() */
}

void mcd_pulls_unwant_of(struct mcd_catalog *c, const struct mcd_op *op)
{
    for (struct mcd_pull *p = c->pulls; p != NULL; p = p->all_next)
        if (p->op == op)
            mcs_store_relaxed(&p->unwanted, 1u);
    mcs_fence_full(); /* before everything is told; partner: tell() */
}

void mcd_pulls_outdate(struct mcd_catalog *c, const struct mco_key *k, const struct mco_version *v)
{
    struct mcd_over over = {.key = *k};
    bool any = false;

    for (struct mcd_pull *p = c->pulls; p != NULL; p = p->all_next)
        if (mco_version_compare(&p->view.version, v) < 0 && same_key(&p->key, k) &&
            (!any || mco_version_compare(&over.upto, &p->view.version) < 0)) {
            over.upto = p->view.version;
            any = true;
        }
    if (!any)
        return;
    mcd_pulls_unwant(c, &over, 1);
    (void)mco_remove(c->store->objects, k, &over.upto, true, c->now);
}

static void free_pull(struct mcd_catalog *c, struct mcd_pull *p)
{
    struct mcd_pull **link = &c->pulls;

    while (*link != NULL && *link != p)
        link = &(*link)->all_next;
    if (*link == p)
        *link = p->all_next;
    free((void *)p->key.bytes);
    free(p);
}

static void leg_done(struct mcd_engine *g, struct mcd_leg *l, const struct mcd_outcome *o);

/* Hands it to the engine. */
static void send_out(struct mcd_pull *p)
{
    struct mcd_catalog *c = p->catalog;
    struct mcd_catalog_engine *e = &c->engines[c->queue_engine->o.id];
    struct mcd_pull *head = mcs_load_relaxed(&e->begun);

    do {
        p->next = head;
    } while (!mcs_compare_exchange(&e->begun, &head, p)); /* partner: mcd_pulls_turn() */
    mcd_objects_wake(c->queue_engine);
}

int mcd_pull_begin(struct mcd_catalog *c, struct mcd_op *op, uint32_t i, struct mcd_ask_key *k,
                   enum mcs_status *status)
{
    struct mco_put put = {
        .key = k->key, .size = k->size, .version = k->version, .flags = MCS_OBJECT_UPSERT};
    struct mcd_pull *p;

    if (op->from) { /* a copy, or the place that it moves to: as its holder has it */
        put.flags |= k->hard_pin ? MCS_OBJECT_HARD_PIN : 0;
        put.group = k->group;
        put.soft_pin_until =
            k->soft_pin_ms == 0 ? 0 : mcd_now_ns() + k->soft_pin_ms * (uint64_t)MCD_MS;
    }
    *status = MCS_BUSY;
    if (c->pulling >= MCD_PULLS_MAX || c->pulling_bytes >= MCD_PULLS_BYTES)
        return -EAGAIN;
    if (c->queue == NULL && make_queue(c) != 0) {
        *status = MCS_NO_MEMORY;
        return -ENOMEM;
    }
    if (mcs_load_acquire(&c->queue_add.done) == 0) /* partner: the engine's release */
        return -EAGAIN;
    p = calloc(1, sizeof(*p));
    if (p != NULL)
        p->key = k->key;
    if (p != NULL)
        p->key.bytes = malloc(k->key.length);
    if (p == NULL || p->key.bytes == NULL) {
        free(p);
        *status = MCS_NO_MEMORY;
        return -ENOMEM;
    }
    memcpy((void *)p->key.bytes, k->key.bytes, k->key.length);
    *status = mco_begin(c->store->objects, &put, &p->view);
    if (*status != MCS_OK) {
        free_pull(c, p);
        if (*status == MCS_BUSY || *status == MCS_IN_USE)
            return -EAGAIN;
        if (*status == MCS_EXISTS) /* this life of it, or a later one */
            *status = MCS_OK;
        else
            c->stats.pull_failures++;
        return -EALREADY;
    }
    p->catalog = c;
    p->op = op;
    p->index = i;
    p->reach = k->reach; /* the use goes over */
    k->reach = NULL;
    k->segment = NULL;
    p->until = k->until;
    p->crc = k->crc;
    p->summed = k->summed;
    p->piece =
        (struct mcd_leg_piece){.local = p->view.offset, .remote = k->address, .length = k->size};
    p->leg = (struct mcd_leg){.segment = p->reach->segment,
                              .store = p->view.owner,
                              .pieces = &p->piece,
                              .npieces = 1,
                              .priority = MCS_CLASS_NORMAL,
                              .done = leg_done,
                              .context = p};
    p->all_next = c->pulls;
    c->pulls = p;
    c->pulling++;
    c->pulling_bytes += k->size;
    send_out(p);
    return 0;
}

void mcd_pulls_poll(struct mcd_catalog *c)
{
    struct mcd_pull *p = NULL, *next;

    if (mcs_load_relaxed(&c->pulled) != NULL)
        p = mcs_exchange(&c->pulled, NULL); /* partner: tell() */
    for (; p != NULL; p = next) {
        next = p->next;
        c->pulling--;
        c->pulling_bytes -= p->view.size;
        if (p->status == MCS_OK) {
            c->stats.pulls++;
            c->stats.pulled_bytes += p->view.size;
            mcd_report_soon(c);
        } else {
            c->stats.pull_failures++;
            mcd_log_limited(MCD_LOG_WARNING, "an object of %llu bytes could not be pulled: %s",
                            (unsigned long long)p->view.size,
                            p->status == MCS_CHECKSUM ? "its checksum is wrong"
                                                      : "its holder could not be read");
        }
        give_back(&p->reach);
        if (p->status == MCS_OK && !mcd_op_waits(p->op)) /* and the leader need not hear of it */
            (void)mco_remove(c->store->objects, &p->key, &p->view.version, true, c->now);
        mcd_op_pulled(p->op, p->index, p->status);
        free_pull(c, p);
    }
}

void mcd_pulls_stop(struct mcd_catalog *c)
{
    struct mcd_command remove = {.kind = MCD_COMMAND_REMOVE, .queue = c->queue};
    uint64_t end = mcd_now_ns() + 5000 * MCD_MS;

    if (c->queue == NULL)
        return;
    while (mcs_load_acquire(&c->queue_add.done) == 0) /* partner: the engine's release */
        sched_yield();
    /* legs end with their queue; those that have not begun find it broken */
    mcd_engine_command(c->queue_engine, &remove);
    while (mcs_load_acquire(&remove.done) == 0) /* likewise */
        sched_yield();
    while (c->pulling != 0 && mcd_now_ns() < end) { /* checksums that are being taken */
        mcd_pulls_poll(c);
        sched_yield();
    }
    free_queue(c);
}

/* ---- engine ------------------------------------------------------------------------------------------ */

/* It is over: back to the control thread. */
static void tell(struct mcd_engine *g, struct mcd_pull *p, enum mcs_status status)
{
    struct mcd_catalog *c = p->catalog;
    struct mco_store *s = c->store->objects;
    struct mcd_pull *head = mcs_load_relaxed(&c->pulled);

    if (status == MCS_OK && mcs_load_relaxed(&p->unwanted) != 0)
        status = MCS_NOT_FOUND;
    p->status = status;
    if (status == MCS_OK)
        p->status = mco_seal(s, p->view.object, p->crc, p->summed, 2);
    else
        mco_abort(s, p->view.object);
    /* after the seal; partner: mcd_pulls_unwant(): either the removal that follows there finds it, or this look does */
    mcs_fence_full();
    if (p->status == MCS_OK && mcs_load_relaxed(&p->unwanted) != 0) {
        (void)mco_remove(s, &p->key, &p->view.version, true, mcd_now_ns());
        p->status = MCS_NOT_FOUND;
    }
    if (p->status == MCS_NOT_OWNER) /* a later life has come: as good */
        p->status = MCS_OK;
    do {
        p->next = head;
    } while (!mcs_compare_exchange(&c->pulled, &head, p)); /* partner: mcd_pulls_poll() */
    mcd_engine_tell_control(g);
}

static void leg_done(struct mcd_engine *g, struct mcd_leg *l, const struct mcd_outcome *o)
{
    struct mcd_pull *p = l->context;
    struct mcd_catalog_engine *e = &p->catalog->engines[g->o.id];

    if (o->state != MCS_STATE_COMPLETED) {
        tell(g, p, o->error == MCS_CANCELED ? MCS_CANCELED : MCS_PEER_UNREACHABLE);
    } else if (!p->summed && mcd_now_ns() >= p->until) {
        tell(g, p, MCS_PEER_UNREACHABLE); /* nothing says that these are its bytes */
    } else if (!p->summed) {
        tell(g, p, MCS_OK);
    } else {
        p->next = e->verifying;
        e->verifying = p;
    }
}

/* A step of the first one's checksum. */
static void verify(struct mcd_engine *g, struct mcd_catalog_engine *e)
{
    struct mcd_pull *p = e->verifying;
    uint64_t rest = p->view.size - p->checked;
    uint64_t step = rest < MCD_PULL_STEP ? rest : MCD_PULL_STEP;

    p->sum = mct_crc32c(p->sum, p->view.data + p->checked, step);
    p->checked += step;
    if (p->checked < p->view.size)
        return;
    e->verifying = p->next;
    if (p->sum == p->crc)
        tell(g, p, MCS_OK);
    else /* once the lease is over, there may be anything: that says nothing about the object */
        tell(g, p, mcd_now_ns() < p->until ? MCS_CHECKSUM : MCS_PEER_UNREACHABLE);
}

/* True: it is not in the way any more. */
static bool begin_leg(struct mcd_engine *g, struct mcd_pull *p)
{
    struct mcd_queue *q = p->catalog->queue;
    int res;

    if (q == NULL || q->broken) {
        tell(g, p, MCS_CANCELED);
        return true;
    }
    if (p->view.size == 0) {
        tell(g, p, MCS_OK);
        return true;
    }
    p->leg.deadline = g->now + PULL_NS / 1000 * g->ticks_per_us;
    res = mcd_leg_begin(g, q, &p->leg);
    if (res != 0 && res != -EAGAIN)
        tell(g, p, MCS_PEER_UNREACHABLE);
    return res != -EAGAIN;
}

bool mcd_pulls_turn(struct mcd_engine *g, struct mcd_catalog_engine *e)
{
    struct mcd_pull *p = NULL, *next;
    bool any;

    if (mcs_load_relaxed(&e->begun) != NULL)
        p = mcs_exchange(&e->begun, NULL); /* partner: send_out() */
    any = p != NULL || e->verifying != NULL;
    for (; p != NULL; p = next) {
        next = p->next;
        p->next = e->waiting;
        e->waiting = p;
    }
    while (e->waiting != NULL) {
        p = e->waiting;
        next = p->next;
        if (!begin_leg(g, p))
            break;
        e->waiting = next;
    }
    if (e->verifying != NULL)
        verify(g, e);
    return any;
}
