/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_task.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "leg.h"
#include "log.h"
#include "net.h"
#include "session.h"
#include "shm/failpoint.h"

#define QUANTUM (UINT64_C(4) << 20) /* bytes that a lane may be ahead of the others */
#define TURN_PIECES 1024u /* posted in a turn: a turn stays a few tens of microseconds long */
/* A copy in this process, of a piece that has both ends in host memory, counts like so many pieces. */
#define HOST_PIECES 256u

struct mcd_gpu_copy {
    struct mcd_gpu_job j; /* first */
    struct mcd_task *task;
    struct mcd_gpu_way *way;
    const struct mcd_extent *local, *remote; /* of its last piece; only compared */
    uint64_t weight;                         /* bytes, as the window counts them */
    struct mcd_gpu_copy *next_free, *next;
    struct mct_cuda_piece pieces[MCD_GPU_PIECES];
};

/* Where the rest of a piece is copied. */
struct span {
    uint64_t to, from, length;
    int to_device, from_device;
    bool pinned;
    const struct mcd_extent *local, *remote;
};

int mcd_gpu_tasks_create(struct mcd_engine *g)
{
    g->gpu_tasks = calloc(1, sizeof(*g->gpu_tasks));
    if (g->gpu_tasks == NULL)
        return -ENOMEM;
    return mcd_gpu_jobs_create(g, &g->gpu_jobs);
}

void mcd_gpu_tasks_destroy(struct mcd_engine *g)
{
    struct mcd_gpu_tasks *all = g->gpu_tasks;

    if (all == NULL)
        return;
    mcd_gpu_jobs_destroy(g);
    if (g->gpu_jobs != NULL) /* the driver has some of these still */
        return;
    while (all->all != NULL) {
        struct mcd_gpu_copy *c = all->all;

        all->all = c->next;
        free(c);
    }
    for (unsigned i = 0; i < all->nways; i++)
        if (all->ways[i] != NULL) {
            mcd_shares_fini(&all->ways[i]->shares);
            free(all->ways[i]);
        }
    free(all);
    g->gpu_tasks = NULL;
}

/* ---- lanes ----------------------------------------------------------------------- */

static struct mcd_gpu_way *way_of(struct mcd_engine *g, unsigned device)
{
    struct mcd_gpu_tasks *all = g->gpu_tasks;
    struct mcd_gpu_way *w = all->ways[device];

    if (w != NULL)
        return w;
    w = calloc(1, sizeof(*w));
    if (w == NULL)
        return NULL;
    mcd_shares_init(&w->shares, QUANTUM, g->o.tick_hz);
    all->ways[device] = w;
    if (all->nways <= device)
        all->nways = device + 1;
    return w;
}

static struct mcd_gpu_lane *lane_of(struct mcd_engine *g, struct mcd_queue *q, unsigned device)
{
    struct mcd_gpu_lane *l = q->gpu_lanes;
    struct mcd_gpu_way *w;

    while (l != NULL && l->device != device)
        l = l->next;
    if (l != NULL)
        return l;
    w = MCS_FAIL(gpu_lane) != 0 ? NULL : way_of(g, device);
    l = w == NULL ? NULL : calloc(1, sizeof(*l));
    if (l == NULL)
        return NULL;
    if (mcd_share_join(&w->shares, &l->leaf, q->tenant, q->session) != 0) {
        free(l);
        return NULL;
    }
    l->q = q;
    l->way = w;
    l->device = device;
    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++)
        l->lists[c].head = l->lists[c].tail = MCD_NO_TASK;
    l->next = q->gpu_lanes;
    q->gpu_lanes = l;
    return l;
}

void mcd_gpu_lanes_free(struct mcd_queue *q)
{
    while (q->gpu_lanes != NULL) {
        struct mcd_gpu_lane *l = q->gpu_lanes;

        q->gpu_lanes = l->next;
        mcd_share_leave(&l->way->shares, &l->leaf);
        free(l);
    }
}

static void share(struct mcd_gpu_lane *l)
{
    unsigned ready = 0;

    for (unsigned c = 0; c < MCS_CLASS_COUNT; c++)
        if (l->lists[c].head != MCD_NO_TASK)
            ready |= 1u << c;
    mcd_share_set(&l->way->shares, &l->leaf, (uint8_t)ready, (uint8_t)ready);
}

static void lane_add(struct mcd_gpu_lane *l, struct mcd_task *t)
{
    unsigned class = t->desc.priority;
    uint32_t slot = t->desc.slot;

    t->in_lane = true;
    t->list_next = MCD_NO_TASK;
    t->list_prev = l->lists[class].tail;
    if (t->list_prev != MCD_NO_TASK)
        l->q->tasks[t->list_prev].list_next = slot;
    else
        l->lists[class].head = slot;
    l->lists[class].tail = slot;
    share(l);
}

static void lane_remove(struct mcd_task *t)
{
    struct mcd_gpu_lane *l = t->way;
    unsigned class = t->desc.priority;

    if (!t->in_lane)
        return;
    t->in_lane = false;
    if (t->list_prev != MCD_NO_TASK)
        l->q->tasks[t->list_prev].list_next = t->list_next;
    else
        l->lists[class].head = t->list_next;
    if (t->list_next != MCD_NO_TASK)
        l->q->tasks[t->list_next].list_prev = t->list_prev;
    else
        l->lists[class].tail = t->list_prev;
    share(l);
}

/* ---- a task's life --------------------------------------------------------------- */

enum mcs_status mcd_gpu_task_meets(struct mcd_task *t, const struct mcd_lookups *found)
{
    const struct mcd_extent *local = found->extent, *remote = found->buffer->extent;

    if (t->gpu < 0)
        t->gpu = (int8_t)(local->gpu != NULL ? local->gpu_device : remote->gpu_device);
    return local->gpu != NULL ? mcd_gpu_order(&t->desc) : MCS_OK;
}

/* Who has begun it is told. */
static void end_leg(struct mcd_engine *g, struct mcd_task *t)
{
    struct mcd_outcome o = {
        .state = t->ending ? t->state : MCS_STATE_COMPLETED,
        .error = t->ending ? t->error : MCS_OK,
        .path = t->carried ? t->path : MCS_PATH_NONE,
        .bytes = t->bytes,
    };

    t->way = NULL;
    mcd_task_unpark(g, t->q, t);
    mcd_leg_ended(g, t, &o);
}

/* Nothing of it is out: fills its slot, or lets its notification go. */
static void end(struct mcd_engine *g, struct mcd_task *t)
{
    struct mcd_queue *q = t->q;

    if (t->leg != NULL) {
        end_leg(g, t);
        return;
    }
    mcs_count(&g->counters.gpu_tasks, 1);
    mcs_count(&g->counters.gpu_bytes, t->bytes);
    t->way = NULL;
    if (t->ending) {
        if (t->started != 0)
            t->moved_at = mcs_ticks();
        mcd_task_finish(g, q, t, (enum mcs_state)t->state, (enum mcs_status)t->error);
        mcd_net_touch(g->net, q);
    } else {
        mcd_task_moved(g, q, t);
    }
}

void mcd_gpu_task_finish(struct mcd_engine *g, struct mcd_task *t, enum mcs_state state,
                         enum mcs_status error)
{
    if (t->ending)
        return;
    t->ending = true;
    t->state = (uint8_t)state;
    t->error = (uint16_t)error;
    lane_remove(t);
    if (t->jobs == 0)
        end(g, t);
    else /* the driver is asked nothing: what is out is little, and comes back by itself */
        mcd_wheel_set(g->wheel, &t->timer,
                      g->now + (uint64_t)MCT_CUDA_STUCK_MS * 1000 * g->ticks_per_us);
}

void mcd_gpu_task_timer(struct mcd_engine *g, struct mcd_task *t)
{
    if (t->ending)
        mcd_log_limited(MCD_LOG_WARNING,
                        "engine %u: session %u, queue %u: a task has ended %s, and %u copies of it "
                        "on GPU %u are not back "
                        "after %u ms: its memory is not free until they are; if the device hangs, "
                        "it must be reset",
                        g->o.id, t->q->session->id, t->q->id,
                        t->state == MCS_STATE_TIMEOUT ? "late" : "early", t->jobs, t->way->device,
                        MCT_CUDA_STUCK_MS);
    else
        mcd_gpu_task_finish(g, t, MCS_STATE_TIMEOUT, MCS_TIMEOUT);
}

/* Finds its lane. */
static enum mcs_status aim(struct mcd_engine *g, struct mcd_task *t)
{
    t->piece = t->piece_done = 0;
    t->path = MCS_PATH_CUDA;
    if (g->gpu_tasks == NULL || (unsigned)t->gpu >= MCT_CUDA_DEVICES)
        return MCS_NOT_SUPPORTED;
    t->way = lane_of(g, t->q, (unsigned)t->gpu);
    return t->way != NULL ? MCS_OK : MCS_NO_MEMORY;
}

void mcd_gpu_task_enter(struct mcd_engine *g, struct mcd_task *t)
{
    enum mcs_status error = aim(g, t);

    if (error != MCS_OK) {
        mcd_task_finish(g, t->q, t, MCS_STATE_FAILED, error);
        mcd_net_touch(g->net, t->q);
        return;
    }
    lane_add(t->way, t);
}

int mcd_gpu_task_leg(struct mcd_engine *g, struct mcd_task *t)
{
    if (aim(g, t) != MCS_OK)
        return -ENOMEM;
    t->q->waits++;
    mcd_age_add(t->q, t);
    mcd_wheel_set(g->wheel, &t->timer, t->deadline);
    lane_add(t->way, t);
    return 0;
}

/* PENDING, for who looks. */
static void show(struct mcd_task *t)
{
    if (t->leg != NULL) /* it has no slot */
        return;
    mcs_slot_complete(&t->q->shm, t->desc.slot,
                      MCS_SLOT_WORD(t->desc.generation, MCS_OK, t->path, MCS_STATE_PENDING),
                      t->bytes, t->queue_ns, 0, 0);
}

/* ---- jobs ------------------------------------------------------------------------ */

static void copy_put(struct mcd_engine *g, struct mcd_gpu_copy *c)
{
    c->next_free = g->gpu_tasks->free;
    g->gpu_tasks->free = c;
}

static void back(struct mcd_engine *g, struct mcd_gpu_job *j)
{
    struct mcd_gpu_copy *c = (struct mcd_gpu_copy *)j;
    struct mcd_task *t = c->task;
    enum mcs_status status = j->job.status;

    c->way->out -= c->weight;
    c->way->jobs--;
    t->jobs--;
    if (status == MCS_OK)
        t->bytes += j->job.bytes;
    copy_put(g, c);
    if (status != MCS_OK && !t->ending) {
        mcd_gpu_task_finish(g, t, MCS_STATE_FAILED, status); /* ends it, or waits for the others */
        return;
    }
    if (t->jobs == 0 && (t->ending || !t->in_lane))
        end(g, t);
    else if (!t->ending)
        show(t);
}

static struct mcd_gpu_copy *copy_get(struct mcd_engine *g, struct mcd_task *t)
{
    struct mcd_gpu_tasks *all = g->gpu_tasks;
    struct mcd_gpu_copy *c = all->free;

    if (MCS_FAIL(gpu_copy) != 0)
        return NULL;
    if (c != NULL) {
        all->free = c->next_free;
    } else {
        c = malloc(sizeof(*c));
        if (c == NULL)
            return NULL;
        c->next = all->all;
        all->all = c;
    }
    c->j = (struct mcd_gpu_job){
        .job = {.strict = (t->desc.flags & MCS_DESC_STRICT) != 0, .pieces = c->pieces},
        .back = back};
    c->task = t;
    c->way = t->way->way;
    c->weight = 0;
    return c;
}

static int device_of(const struct mcd_extent *e)
{
    return e->gpu != NULL ? e->gpu_device : MCT_CUDA_HOST;
}

/* partner: the release of who has it pinned, daemon/gpu.c */
static bool is_pinned(const struct mcd_extent *e)
{
    return e->gpu != NULL || mcs_load_acquire(&e->pinned) == 2;
}

/* The caller's end of a leg's piece; what lies in the store stays there until its end. */
static enum mcs_status find_local(const struct mcd_task *t, uint64_t offset, uint64_t length,
                                  const struct mcd_extent **out)
{
    const struct mcd_extent *e = mcd_find_extent(t->q, t->leg->extents[t->piece]);

    if (e == NULL || e->gpu == NULL || offset > e->size || length > e->size - offset)
        return MCS_REVOKED;
    *out = e;
    return MCS_OK;
}

/* The rest of the task's next piece, looked up anew. *host: both its ends are host memory. */
static enum mcs_status next_span(struct mcd_task *t, struct mcd_lookups *found, struct span *s,
                                 struct mct_slice *host)
{
    const struct mcd_extent *l, *r;
    uint64_t local, remote, whole;
    enum mcs_status error = mcd_task_piece(t->q, t, t->piece, &local, &remote, &whole);

    /* the client may have made the piece shorter since it was begun */
    if (error == MCS_OK && t->piece_done >= whole)
        error = MCS_BAD_RANGE;
    if (error != MCS_OK)
        return error;
    local += t->piece_done;
    remote += t->piece_done;
    s->length = whole - t->piece_done;
    if (t->leg != NULL) {
        error = find_local(t, local, s->length, &l);
        if (error != MCS_OK)
            return error;
        r = t->leg->store;
        remote += (uintptr_t)r->map;
    } else {
        error = mcd_resolve(t->q, &t->desc, local, remote, s->length, found, host);
        if (error == MCS_OK) {
            s->to_device = s->from_device = MCT_CUDA_HOST;
            return MCS_OK;
        }
        if (error != MCD_ON_GPU)
            return error;
        l = found->extent;
        r = found->buffer->extent;
        remote += (uintptr_t)r->map + found->buffer->offset - found->buffer->address;
    }
    s->pinned = is_pinned(l) && is_pinned(r);
    s->local = l;
    s->remote = r;
    local += (uintptr_t)l->map;
    if (t->desc.op == MCS_OP_READ) {
        s->to = local;
        s->from = remote;
        s->to_device = device_of(l);
        s->from_device = device_of(r);
    } else {
        s->to = remote;
        s->from = local;
        s->to_device = device_of(r);
        s->from_device = device_of(l);
    }
    return l->gpu != NULL ? mcd_gpu_order(&t->desc) : MCS_OK;
}

static void step(struct mcd_task *t, uint64_t part, uint64_t rest)
{
    t->piece_done += part;
    if (part == rest) {
        t->piece++;
        t->piece_done = 0;
    }
}

/* The first byte moves. */
static void begin(struct mcd_engine *g, struct mcd_task *t)
{
    if (t->carried)
        return;
    t->carried = true;
    mcd_task_start(g, t);
    show(t);
}

/* A piece between host memory in a list that has others too: copied here and now, a slice of it. */
static enum mcs_status copy_here(struct mcd_engine *g, struct mcd_task *t, struct mct_slice *s)
{
    unsigned long faults = mcd_fault_count();
    uint64_t rest = s->length;

    s->length = rest < g->shares.quantum ? rest : g->shares.quantum;
    s->large = true;
    s->pass = t->taken + t->desc.slot;
    begin(g, t);
    g->local_ops->post(g->local, &s, 1);
    g->moved += s->length;
    t->bytes += s->length;
    step(t, s->length, rest);
    if (faults == mcd_fault_count())
        return MCS_OK;
    mcs_count(&g->counters.faults, 1);
    return MCS_MEMORY_FAULT;
}

/* Does it go on where the last piece of the job ends? Not where another extent begins: one copy must not touch two
 * registrations of host memory. */
static bool joins(const struct mcd_gpu_copy *c, const struct span *s)
{
    const struct mct_cuda_piece *last = &c->pieces[c->j.job.n - 1];

    return c->local == s->local && c->remote == s->remote && last->to + last->length == s->to &&
           last->from + last->length == s->from;
}

/*
 * Fills a job with the task's next pieces, all of one kind, as many as it may have. Up to *pieces of them are looked at.
 * OK and nothing in it: the next piece is copied in this process.
 */
static enum mcs_status fill(struct mcd_task *t, struct mcd_gpu_copy *c, struct mcd_lookups *found,
                            struct mct_slice *host, unsigned *pieces)
{
    uint64_t n = mcd_task_pieces(t);
    struct mct_cuda_job *job = &c->j.job;
    enum mcs_status error = MCS_OK;

    while (t->piece < n && *pieces != 0) {
        struct span s = {0};
        uint64_t cost, part;

        error = next_span(t, found, &s, host);
        if (error != MCS_OK || (s.to_device == MCT_CUDA_HOST && s.from_device == MCT_CUDA_HOST))
            break;
        if (job->n == 0) {
            job->to_device = s.to_device;
            job->from_device = s.from_device;
            job->pinned = s.pinned;
        } else if (job->to_device != s.to_device || job->from_device != s.from_device ||
                   job->pinned != s.pinned) {
            break;
        }
        if (job->strict && !s.pinned) {
            error = MCS_STRICT;
            break;
        }
        cost = s.to_device == s.from_device ? 1 : MCD_GPU_BUS;
        part = (MCD_GPU_JOB - c->weight) / cost;
        part = s.length < part ? s.length : part;
        if (job->n != 0 && joins(c, &s)) {
            c->pieces[job->n - 1].length += part;
        } else {
            if (job->n == MCD_GPU_PIECES)
                break;
            c->pieces[job->n++] =
                (struct mct_cuda_piece){.to = s.to, .from = s.from, .length = part};
        }
        c->local = s.local;
        c->remote = s.remote;
        job->bytes += part;
        c->weight += part * cost;
        --*pieces;
        step(t, part, s.length);
        if (part < s.length || c->weight >= MCD_GPU_JOB)
            break;
    }
    return error;
}

/* One job of the task. How many bytes that are. */
static uint64_t post(struct mcd_engine *g, struct mcd_task *t, unsigned *pieces)
{
    struct mcd_gpu_copy *c = copy_get(g, t);
    struct mcd_lookups found = {0};
    enum mcs_status error = MCS_NO_MEMORY;
    struct mct_slice host;
    uint64_t bytes = 0;

    if (c != NULL)
        error = fill(t, c, &found, &host, pieces);
    if (c != NULL && c->j.job.n != 0) {
        bytes = c->j.job.bytes;
        begin(g, t);
        t->jobs++;
        c->way->jobs++;
        c->way->out += c->weight;
        mcd_gpu_job_post(g, &c->j);
    } else if (c != NULL) {
        copy_put(g, c);
        if (error == MCS_OK && *pieces != 0) {
            uint64_t before = t->bytes;

            error = copy_here(g, t, &host);
            bytes = t->bytes - before;
            *pieces -= *pieces < HOST_PIECES ? *pieces : HOST_PIECES;
        }
    }
    if (error != MCS_OK) {
        /* it was good when it was checked: the buffer went away since */
        if (error == MCS_BAD_RANGE || error == MCS_INVALID_HANDLE || error == MCD_ELSEWHERE)
            error = MCS_REVOKED;
        mcd_gpu_task_finish(g, t, MCS_STATE_FAILED, error);
    } else if (t->piece == mcd_task_pieces(t)) {
        lane_remove(t);
        if (t->jobs == 0)
            end(g, t);
    }
    return bytes;
}

static bool has_room(const struct mcd_gpu_way *w)
{
    return w->out <= MCD_GPU_WINDOW - MCD_GPU_JOB && w->jobs < MCD_GPU_JOBS;
}

static bool post_way(struct mcd_engine *g, struct mcd_gpu_way *w, unsigned *pieces)
{
    bool any = false;

    w->shares.turn = g->turn;
    while (*pieces != 0 && w->shares.nready != 0 && has_room(w)) {
        uint64_t now = mcs_ticks(), bytes;
        unsigned class, before = *pieces;
        struct mcd_share_leaf *leaf = mcd_share_pick(&w->shares, now, &class);
        struct mcd_gpu_lane *l;

        if (leaf == NULL)
            break; /* its tenant has no leave to go now */
        l = (struct mcd_gpu_lane *)((char *)leaf - offsetof(struct mcd_gpu_lane, leaf));
        bytes = post(g, &l->q->tasks[l->lists[class].head], pieces);
        l->q->last_work = g->now;
        mcd_share_charge(&w->shares, leaf, class,
                         bytes > (before - *pieces) * MCD_PIECE_COST
                             ? bytes
                             : (before - *pieces) * MCD_PIECE_COST,
                         now);
        any = true;
        if (before == *pieces)
            break; /* nothing was done, and something ended: what is left is for the next turn */
    }
    return any;
}

bool mcd_gpu_tasks_turn(struct mcd_engine *g)
{
    struct mcd_gpu_tasks *all = g->gpu_tasks;
    unsigned pieces = TURN_PIECES;
    bool any = mcd_gpu_jobs_turn(g);

    for (unsigned i = 0; i < all->nways; i++) {
        struct mcd_gpu_way *w = all->ways[(i + g->turn) % all->nways];

        if (w != NULL && w->shares.nready != 0)
            any |= post_way(g, w, &pieces);
    }
    return any;
}

bool mcd_gpu_tasks_wait(const struct mcd_engine *g)
{
    const struct mcd_gpu_tasks *all = g->gpu_tasks;
    bool waits = false;

    for (unsigned i = 0; all != NULL && i < all->nways; i++) {
        const struct mcd_gpu_way *w = all->ways[i];

        waits = waits || (w != NULL && w->shares.nready != 0 && has_room(w));
    }
    return waits;
}
