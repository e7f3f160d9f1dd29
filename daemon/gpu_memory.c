/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "closer.h"
#include "gpu_internal.h"
#include "ledger.h"
#include "log.h"
#include "store.h"
#include "shm/failpoint.h"

#define WAIT_NS UINT64_C(5000000000) /* a call that takes longer holds nobody up */
/*
 * Orders of pins, beside those of sessions: what is there when a device is first used is pinned one by one, so that hundreds
 * of extents leave hands free for the session that waits; each later one, and each that goes, by itself. Extents' ids are small.
 */
#define PIN_ORDER(extent) (UINT64_C(1) << 63 | (extent))
#define PIN_FIRST PIN_ORDER(0)

struct mcd_gpu_tie {
    struct mct_cuda_call call;
    struct mcd_gpu *gpu;
    struct mcd_gpu_use *use;   /* the device's bytes; NULL: host memory */
    struct mcd_extent *extent; /* NULL: not yet, or it did not come to be */
    struct mcd_session *waits; /* its operation's tie is this one; NULL: nobody waits */
    struct mcd_tenant
        *account; /* counts the bytes once no session does; NULL: one does, or none need */
    struct mct_cuda_part *parts; /* of an import, with their descriptors, until it is done */
    unsigned nparts;
    int fd; /* exported; the closer's in the end. -1: none */
    uint64_t bytes, address;
    const struct mcd_ledger_extent *back; /* what an earlier agent's record says of it */
    uid_t uid;                            /* whose descriptors they are */
    pid_t pid;                            /* whose request it was; 0: not known */
    struct mcd_gpu_tie *next_late;
    bool foreign;
    bool busy;                   /* a call is under way */
    bool going;                  /* to be let go once it is not */
    bool late;                   /* on the list of those */
    bool first;                  /* host memory that was there when a device was first used */
    bool stays;                  /* it is let go, and the extent is not */
    void (*then)(void *context); /* with it: when that has been done */
    void *then_context;
};

/* ---- devices ------------------------------------------------------------------------------- */

struct mcd_gpu_use *mcd_gpu_use_of(struct mcd_gpu *g, const struct mcs_gpu_id *id)
{
    struct mcd_gpu_use *free_one = NULL;

    for (unsigned i = 0; i < MCT_CUDA_DEVICES; i++) {
        struct mcd_gpu_use *u = &g->uses[i];

        if (u->taken && memcmp(&u->id, id, sizeof(*id)) == 0)
            return u;
        /* one without bytes was of a record that nobody came back for, if others want its place */
        if (free_one == NULL ? !u->taken || u->used == 0 : !u->taken && free_one->taken)
            free_one = u;
    }
    if (free_one != NULL)
        *free_one = (struct mcd_gpu_use){.id = *id, .taken = true};
    return free_one;
}

uint64_t mcd_gpu_limit(const struct mcd_gpu *g, const struct mcs_gpu_id *id)
{
    int device = mct_cuda_device_find(g->agent->cuda, id);
    uint64_t total = device < 0 ? 0 : mct_cuda_device_get(g->agent->cuda, (unsigned)device)->total;
    uint64_t size = g->agent->config.gpu_size;

    return size != 0 ? size : total;
}

void mcd_gpu_get_sums(const struct mcd_agent *a, const struct mcs_gpu_id *id,
                      struct mcd_gpu_sums *out)
{
    *out = (struct mcd_gpu_sums){0};
    if (a->gpu == NULL)
        return;
    out->limit = mcd_gpu_limit(a->gpu, id);
    for (unsigned i = 0; i < MCT_CUDA_DEVICES; i++) {
        const struct mcd_gpu_use *u = &a->gpu->uses[i];

        if (u->taken && memcmp(&u->id, id, sizeof(*id)) == 0) {
            out->used = u->used;
            out->refused = u->refused;
        }
    }
}

/* ---- ties ---------------------------------------------------------------------------------- */

const struct mcs_gpu_id *mcd_gpu_tie_id(const struct mcd_gpu_tie *t)
{
    return &t->use->id;
}

const struct mct_cuda_call *mcd_gpu_tie_call(const struct mcd_gpu_tie *t)
{
    return &t->call;
}

uint64_t mcd_gpu_tie_bytes(const struct mcd_gpu_tie *t)
{
    return t->bytes;
}

static struct mcd_gpu_tie *tie_new(struct mcd_gpu *g)
{
    struct mcd_gpu_tie *t = MCS_FAIL(gpu_tie) != 0 ? NULL : calloc(1, sizeof(*t));

    if (t == NULL)
        return NULL;
    t->gpu = g;
    t->fd = -1;
    g->ties++;
    return t;
}

void mcd_gpu_close_parts(struct mcd_agent *a, uid_t uid, struct mct_cuda_part *parts, unsigned n,
                         bool known)
{
    int *fds = (int *)(void *)parts; /* the numbers alone, in the place of the parts */
    unsigned nfds = 0;

    for (unsigned i = 0; i < n; i++) {
        int fd = parts[i].fd;

        if (fd >= 0)
            fds[nfds++] = fd;
    }
    a->gpu->descriptors -= nfds;
    if (known)
        mcd_closer_put_known(uid, fds, nfds);
    else
        mcd_closer_put_many(uid, fds, nfds);
    free(parts);
}

bool mcd_gpu_may_keep(struct mcd_agent *a, unsigned own)
{
    struct rlimit r = {.rlim_cur = 1024};
    uint64_t most, others = a->gpu->descriptors - own;

    (void)getrlimit(RLIMIT_NOFILE, &r);
    most = r.rlim_cur / 4;
    if (others >= most || own >= (most - others) / 2)
        return false;
    a->gpu->descriptors++;
    return true;
}

static void drop_parts(struct mcd_gpu_tie *t)
{
    /* what the driver has taken is its own, and closes like it */
    mcd_gpu_close_parts(t->gpu->agent, t->uid, t->parts, t->nparts,
                        !t->busy && t->call.status == MCS_OK);
    t->parts = NULL;
    t->nparts = 0;
}

static void unwait(struct mcd_gpu_tie *t)
{
    if (t->waits != NULL)
        t->waits->op.tie = NULL;
    t->waits = NULL;
}

/* The driver has nothing of it any more. */
static void gone(struct mcd_gpu_tie *t)
{
    struct mcd_gpu *g = t->gpu;
    struct mcd_extent *e = t->extent;
    void (*then)(void *context) = t->then;
    void *context = t->then_context;
    bool stays = t->stays;

    if (t->use != NULL)
        t->use->used -= t->bytes;
    if (t->account != NULL) {
        t->account->memory -= t->bytes;
        mcd_tenant_put(&g->agent->tenants, t->account);
    }
    if (t->use != NULL && e == NULL && t->back == NULL)
        mcd_pool_unplace(&g->agent->pool, t->address, t->bytes);
    drop_parts(t);
    if (t->fd >= 0)
        mcd_closer_put_known(t->uid, &t->fd, 1);
    unwait(t);
    free(t);
    g->ties--;
    MCS_FAILPOINT(gpu_gone);
    if (e == NULL)
        return;
    e->tie = NULL;
    if (!stays)
        mcd_extent_gone(e);
    else
        mcs_store_release(&e->pinned, 0u); /* partner: engines' acquire */
    if (then != NULL)
        then(context);
}

static void done(struct mct_cuda_call *call);

static void begin(struct mcd_gpu_tie *t, enum mct_cuda_call_kind kind)
{
    t->call.kind = kind;
    t->call.done = done;
    t->call.context = t;
    t->busy = true;
    t->gpu->calls++;
    mct_cuda_begin(t->gpu->agent->cuda, &t->call);
}

static void let_go(struct mcd_gpu_tie *t)
{
    if (t->use == NULL)
        t->call.order = PIN_ORDER(t->extent->id);
    if (t->use != NULL ? t->call.memory != NULL : t->extent->pinned == 2)
        begin(t, t->use != NULL ? MCT_CUDA_FREE : MCT_CUDA_UNPIN);
    else
        gone(t);
}

static void tell_failure(struct mcd_gpu_tie *t)
{
    struct mcd_gpu *g = t->gpu;

    if (t->call.kind == MCT_CUDA_PIN) {
        g->unpinned++;
        mcd_log_limited(MCD_LOG_WARNING,
                        "%llu bytes of host memory are not pinned with the GPU driver, which "
                        "copies them to and from GPUs "
                        "through memory of its own, more slowly: %s",
                        (unsigned long long)t->call.size, t->call.text);
    } else {
        g->free_failed++;
        mcd_log_limited(
            MCD_LOG_WARNING, "the GPU driver does not let go of %llu bytes as it should: %s",
            (unsigned long long)(t->use != NULL ? t->bytes : t->call.size), t->call.text);
    }
}

/* Of memory that an earlier agent had made and that is back: others of the tenant will import it by what its owner has kept. */
static void keep_descriptor(struct mcd_gpu_tie *t)
{
    t->fd = t->parts[0].fd;
    t->parts[0].fd = -1;
    t->gpu->descriptors--;
}

static void made(struct mcd_gpu_tie *t)
{
    MCS_FAILPOINT(gpu_made);
    if (t->call.status == MCS_OK && t->back != NULL && !t->foreign)
        keep_descriptor(t);
    drop_parts(t);
    if (t->call.status == MCS_OK && t->call.kind == MCT_CUDA_MAKE)
        t->fd = t->call.fd;
    else if (t->call.status != MCS_OK)
        t->call.memory = NULL;
}

static void forget_late(struct mcd_gpu_tie *t)
{
    struct mcd_gpu_tie **link = &t->gpu->late;

    if (!t->late)
        return;
    while (*link != t)
        link = &(*link)->next_late;
    *link = t->next_late;
    t->late = false;
}

static void done(struct mct_cuda_call *call)
{
    struct mcd_gpu_tie *t = call->context;

    forget_late(t);
    t->busy = false;
    t->gpu->calls--;
    switch (call->kind) {
    case MCT_CUDA_MAKE:
    case MCT_CUDA_IMPORT:
        made(t);
        if (t->going)
            let_go(t);
        break;
    case MCT_CUDA_PIN:
        t->gpu->first -= t->first;
        if (call->status != MCS_OK)
            tell_failure(t);
        mcs_store_release(&t->extent->pinned,
                          call->status == MCS_OK ? 2u : 3u); /* partner: engines' acquire */
        if (t->going)
            let_go(t);
        else
            unwait(t);
        break;
    default: /* what it could not let go of goes with the process, and nobody knows it any more */
        if (call->status != MCS_OK)
            tell_failure(t);
        gone(t);
        break;
    }
}

/* The tenant's bytes stay the tenant's while no session of it has them. */
static void charge(struct mcd_gpu_tie *t, uint64_t tenant)
{
    struct mcd_tenant *n = t->gpu->agent->tenants.list;

    while (n != NULL && n->id != tenant)
        n = n->next;
    if (n == NULL)
        return;
    n->refs++;
    n->memory += t->bytes;
    t->account = n;
}

void mcd_gpu_release(void *context, struct mcd_extent *e)
{
    struct mcd_gpu_tie *t = e->tie;

    (void)context;
    t->going = true;
    t->stays = false;
    if (t->use != NULL)
        charge(t, e->tenant);
    MCS_FAILPOINT(gpu_release);
    if (!t->busy)
        let_go(t);
}

void mcd_gpu_unpin(struct mcd_extent *e, void (*then)(void *context), void *context)
{
    struct mcd_gpu_tie *t = e->tie;
    bool going = t != NULL && t->going;

    if (t == NULL) {
        if (then != NULL)
            then(context);
        return;
    }
    t->going = t->stays = true;
    t->then = then;
    t->then_context = context;
    if (!t->busy && !going)
        let_go(t);
}

/* ---- making -------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) / to * to;
}

static uint64_t left(const struct mcd_gpu *g, const struct mcd_gpu_use *u)
{
    uint64_t limit = mcd_gpu_limit(g, &u->id);

    return limit > u->used ? limit - u->used : 0;
}

/* Takes the parts, whatever comes of it. */
static int plan(struct mcd_session *s, unsigned device, uint64_t bytes, struct mct_cuda_part *parts,
                unsigned n, const struct mcd_ledger_extent *back)
{
    struct mcd_gpu *g = s->agent->gpu;
    const struct mct_cuda_device *d = mct_cuda_device_get(s->agent->cuda, device);
    struct mcd_gpu_use *u = mcd_gpu_use_of(g, &d->id);
    struct mcd_gpu_tie *t = NULL;

    if (u != NULL && (back != NULL || bytes <= left(g, u)))
        t = tie_new(g);
    else if (u != NULL)
        u->refused++;
    if (t == NULL) {
        mcd_gpu_close_parts(s->agent, s->uid, parts, n, false);
        return -ENOMEM;
    }
    t->use = u;
    t->uid = s->uid;
    t->pid = s->pid;
    t->bytes = bytes;
    t->back = back;
    t->parts = parts;
    t->nparts = n;
    t->foreign = back != NULL ? (back->flags & MCD_LEDGER_FOREIGN) != 0 : parts != NULL;
    t->address = back != NULL ? back->address : mcd_pool_place(&s->agent->pool, bytes, s->came);
    t->call.order = s->incarnation;
    t->call.owner = s->tenant + 1;
    t->call.device = device;
    t->call.size = bytes;
    t->call.hint = t->address;
    t->call.parts = parts;
    t->call.nparts = n;
    t->waits = s;
    s->op.tie = t;
    if (back == NULL) {
        u->used += bytes;
        mcd_session_hold(s, (int64_t)bytes);
    }
    return 0;
}

int mcd_gpu_plan(struct mcd_session *s, unsigned device, uint64_t size, uint64_t room)
{
    struct mcd_gpu *g = s->agent->gpu;
    const struct mct_cuda_device *d = mct_cuda_device_get(s->agent->cuda, device);
    uint64_t extent_size = round_up(s->agent->config.gpu_extent_size, d->granularity);
    struct mcd_gpu_use *u = mcd_gpu_use_of(g, &d->id);
    int res = MCS_FAIL(gpu_plan);

    if (res != 0)
        return res;
    if (size > UINT64_MAX / 2) {
        if (u != NULL)
            u->refused++;
        return -ENOMEM;
    }
    size = round_up(size, d->granularity);
    if (u != NULL && size < extent_size && extent_size <= left(g, u) && extent_size <= room)
        size = extent_size;
    return plan(s, device, size, NULL, 0, NULL);
}

int mcd_gpu_plan_import(struct mcd_session *s, unsigned device, uint64_t size,
                        struct mct_cuda_part *parts, unsigned n)
{
    return plan(s, device, size, parts, n, NULL);
}

int mcd_gpu_plan_back(struct mcd_session *s, unsigned device, const struct mcd_ledger_extent *r,
                      struct mct_cuda_part *parts, unsigned n)
{
    return plan(s, device, r->size, parts, n, r);
}

bool mcd_gpu_plan_less(struct mcd_session *s, uint64_t size)
{
    struct mcd_gpu_tie *t = s->op.tie;
    uint64_t least =
        round_up(size, mct_cuda_device_get(s->agent->cuda, t->call.device)->granularity);

    if (t->parts != NULL || t->foreign || least >= t->bytes)
        return false;
    t->use->used -= t->bytes - least;
    mcd_session_hold(s, -(int64_t)(t->bytes - least));
    mcd_pool_unplace(&s->agent->pool, t->address, t->bytes);
    t->bytes = least;
    t->address = t->call.hint = mcd_pool_place(&s->agent->pool, least, s->came);
    t->call.size = least;
    return true;
}

void mcd_gpu_begin(struct mcd_session *s)
{
    begin(s->op.tie, s->op.tie->parts != NULL ? MCT_CUDA_IMPORT : MCT_CUDA_MAKE);
}

bool mcd_gpu_is_made(struct mcd_session *s)
{
    return !s->op.tie->busy || s->ending || mcd_now_ns() >= s->op.gpu_until;
}

bool mcd_gpu_is_late(struct mcd_session *s)
{
    struct mcd_gpu_tie *t = s->op.tie;

    if (!t->busy)
        return false;
    t->late = true;
    t->next_late = t->gpu->late;
    t->gpu->late = t;
    t->gpu->told_late++;
    mcd_gpu_abandon(s);
    return true;
}

bool mcd_gpu_hangs(const struct mcd_session *s)
{
    for (const struct mcd_gpu_tie *t = s->agent->gpu->late; t != NULL; t = t->next_late)
        if (t->call.order == s->incarnation ||
            (t->pid != 0 && t->pid == s->pid && t->uid == s->uid))
            return true;
    return false;
}

void mcd_gpu_abandon(struct mcd_session *s)
{
    struct mcd_gpu_tie *t = s->op.tie;

    unwait(t);
    if (t->back == NULL) {
        mcd_session_hold(s, -(int64_t)t->bytes);
        charge(t, s->tenant);
    } else {
        t->bytes = 0; /* counted where the record is */
    }
    t->going = true;
    if (!t->busy)
        let_go(t);
}

int mcd_gpu_take(struct mcd_session *s, struct mcd_extent **out)
{
    struct mcd_gpu_tie *t = s->op.tie;
    const struct mct_cuda_device *d = mct_cuda_device_get(s->agent->cuda, t->call.device);
    const struct mcd_extent as = {
        .map = (uint8_t *)(uintptr_t)t->call.address,
        .size = t->bytes,
        .address = t->address,
        .gpu = t->call.memory,
        .gpu_device = (int16_t)t->call.device,
        .kind = {.page_size = d->granularity, .node = d->node},
        .fd = t->fd,
        .foreign = t->foreign,
        .tie = t,
        .id = t->back != NULL ? t->back->id : 0,
    };
    int res = mcd_extent_of_gpu(&s->agent->pool, &as, out);

    if (res != 0) {
        mcd_gpu_abandon(s);
        return res;
    }
    t->extent = *out;
    t->back = NULL;
    unwait(t);
    return 0;
}

/* ---- host memory --------------------------------------------------------------------------- */

void mcd_gpu_pin(struct mcd_agent *a, struct mcd_extent *e, struct mcd_session *waits)
{
    struct mcd_gpu_tie *t;

    if (a->gpu == NULL || a->gpu->device < 0 || e->gpu != NULL)
        return;
    t = tie_new(a->gpu);
    if (t == NULL) { /* then it is as if the driver had not taken it */
        a->gpu->unpinned++;
        mcs_store_release(&e->pinned, 3u); /* partner: engines' acquire */
        return;
    }
    t->extent = e;
    e->tie = t;
    t->waits = waits;
    if (waits != NULL)
        waits->op.tie = t;
    t->call.order = a->gpu->all ? PIN_FIRST : PIN_ORDER(e->id);
    t->call.owner = waits != NULL ? waits->tenant + 1 : 0;
    t->call.device = (unsigned)a->gpu->device;
    t->call.host = e->map;
    t->call.size = e->size;
    mcs_store_release(&e->pinned, 1u); /* partner: engines' acquire */
    begin(t, MCT_CUDA_PIN);
}

static void pin_pool(struct mcd_gpu *g, const struct mcd_pool *p, bool waited_for)
{
    for (struct mcd_extent *e = p->extents; e != NULL; e = e->next) {
        if (e->gpu != NULL || e->tie != NULL || e->hollow)
            continue;
        mcd_gpu_pin(g->agent, e, NULL);
        if (waited_for && e->tie != NULL) {
            e->tie->first = true;
            g->first++;
        }
    }
}

void mcd_gpu_pin_all(struct mcd_gpu *g)
{
    g->all = true;
    pin_pool(g, &g->agent->pool, true);
    if (g->agent->store != NULL) /* there may be much of it: nobody waits */
        pin_pool(g, &g->agent->store->pool, false);
    g->all = false;
}

static bool is_settled(struct mcd_session *s)
{
    return s->op.tie == NULL || s->ending || mcd_now_ns() >= s->op.deadline;
}

static void when_settled(struct mcd_session *s)
{
    if (s->op.tie != NULL)
        unwait(s->op.tie); /* it goes on by itself */
    s->op.then(s);
}

static void settle(struct mcd_session *s, void (*then)(struct mcd_session *s))
{
    if (s->op.tie == NULL) {
        then(s);
        return;
    }
    s->op.then = then;
    mcd_session_await(s, mcd_now_ns() + WAIT_NS, is_settled, when_settled);
}

void mcd_op_pin(struct mcd_session *s, struct mcd_extent *e, void (*then)(struct mcd_session *s))
{
    mcd_gpu_pin(s->agent, e, s);
    settle(s, then);
}

void mcd_op_put(struct mcd_session *s, struct mcd_extent *e, void (*then)(struct mcd_session *s))
{
    if (e->tie != NULL && e->refs == 1) {
        e->tie->waits = s;
        s->op.tie = e->tie;
    }
    mcd_extent_put(&s->agent->pool, e);
    settle(s, then);
}

/* ---- sessions that come back ----------------------------------------------------------------- */

bool mcd_gpu_expect(struct mcd_agent *a, const struct mcd_ledger_extent *r)
{
    struct mcs_gpu_id id;
    struct mcd_gpu_use *u;

    if (a->gpu == NULL)
        return false;
    memcpy(&id, r->gpu, sizeof(id));
    u = mcd_gpu_use_of(a->gpu, &id);
    if (u == NULL)
        return false;
    u->used += r->size;
    mcd_gpu_open(a); /* it takes its time, and somebody will need it */
    return true;
}

void mcd_gpu_expect_no_more(struct mcd_agent *a, const struct mcd_ledger_extent *r)
{
    struct mcs_gpu_id id;

    memcpy(&id, r->gpu, sizeof(id));
    mcd_gpu_use_of(a->gpu, &id)->used -= r->size;
}
