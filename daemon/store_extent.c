/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents of the store: made by the worker, given into keeping, then to the core; and back.
 *
 *   want() --> note --> worker --> kept --> GPU driver --> mco_extent_add() --> RDMA devices, catalog
 *   idle() --> note --> mco_extent_remove() --> not kept --> catalog, grace --> memory back
 *
 * An extent is kept before an object can lie in it: what is acknowledged outlives the agent.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catalog.h"
#include "gpu_memory.h"
#include "later.h"
#include "ledger.h"
#include "log.h"
#include "shm/failpoint.h"
#include "store_internal.h"

#define NOTES_MIN 64u
#define LEAVING_NS                                                                                 \
    UINT64_C(1000000000) /* how long a wanted extent waits for memory on its way back */
#define PIN_NS                                                                                     \
    UINT64_C(1000000000) /* and for the GPU driver, to whose devices it is copied faster then */

struct making {
    struct mcd_job job;
    struct mcd_extent_job memory;
    struct mcd_store *store;
    uint64_t tenant;
    bool open;
};

/* ---- what the core asks for: any thread -------------------------------------------------- */

static void note(struct mcd_store *st, const struct mcd_store_note *n)
{
    struct mcd_store_work *w = st->work;
    uint64_t one = 1;

    mco_lock(&w->lock);
    if (w->nnotes == w->notes_room) {
        /* once in a life, or twice: one for each tenant and kind of extent, and each extent */
        uint32_t room = w->notes_room * 2 + NOTES_MIN;
        struct mcd_store_note *more = realloc(w->notes, room * sizeof(*more));

        if (more != NULL) {
            w->notes = more;
            w->notes_room = room;
        }
    }
    if (w->nnotes < w->notes_room)
        w->notes[w->nnotes++] = *n;
    else
        mcs_store_relaxed(&w->notes_lost, w->notes_lost + 1); /* partner: recover_lost() */
    mco_unlock(&w->lock);
    while (write(st->agent->event_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        continue; /* when it is full of wake-ups nobody has read, one of them is enough */
}

void mcd_store_want(void *context, uint64_t tenant, bool open, uint64_t size)
{
    note(context, &(struct mcd_store_note){.tenant = tenant, .open = open, .size = size});
}

void mcd_store_idle(void *context, uint32_t extent)
{
    note(context, &(struct mcd_store_note){.extent = extent});
}

/* ---- one comes --------------------------------------------------------------------------- */

struct mcd_store_extent *mcd_store_find(struct mcd_store *st, uint32_t id)
{
    for (struct mcd_store_extent *x = st->work->extents; x != NULL; x = x->next)
        if (x->id == id && id != 0)
            return x;
    return NULL;
}

struct mcd_extent *mcd_store_extent(struct mcd_store *st, uint32_t id)
{
    struct mcd_store_extent *x = mcd_store_find(st, id);

    return x != NULL ? x->memory : NULL;
}

static struct mcd_store_extent *enter(struct mcd_store *st, struct mcd_extent *e, uint64_t tenant,
                                      bool open, uint32_t id)
{
    struct mcd_store_extent *x = calloc(1, sizeof(*x));

    if (x == NULL)
        return NULL;
    x->memory = e;
    x->tenant = e->tenant = tenant;
    x->open = open;
    x->id = e->handle = id;
    snprintf(x->name, sizeof(x->name), MCD_KEEPER_EXTENT "%u", e->id);
    x->next = st->work->extents;
    st->work->extents = x;
    return x;
}

static void leave(struct mcd_store *st, struct mcd_store_extent *x)
{
    struct mcd_store_extent **link = &st->work->extents;

    while (*link != x)
        link = &(*link)->next;
    *link = x->next;
    free(x);
}

/* This host's own transfers, and peers', reach it from now on. */
static void show(struct mcd_store *st, struct mcd_extent *e)
{
    struct mcd_agent *a = st->agent;

    if (a->registry.rdma != NULL) /* nobody waits for it: until then it goes over TCP */
        (void)mcd_registration_create_whole(&a->registry, e, NULL, NULL);
    if (st->catalog != NULL)
        mcd_catalog_extent(st->catalog, e, true);
}

static void refuse(struct mcd_store *st, uint64_t tenant, bool open)
{
    st->work->not_made++;
    mco_extent_failed(st->objects, tenant, open);
}

static void not_kept(struct mcd_store *st, int res)
{
    st->work->not_kept++;
    mcd_log_limited(MCD_LOG_WARNING,
                    "an extent of objects cannot be given into keeping (%s): what lies in it will "
                    "not survive this agent",
                    strerror(-res));
}

/* Is the GPU driver just registering it? Where that takes long for an earlier one, too, nobody waits. */
static bool is_pinning(struct mcd_store *st, struct mcd_store_extent *x)
{
    struct mcd_extent *e = x->memory;
    uint64_t now = mcd_now_ns();

    if (x->pin_until == 0) {
        x->pin_until = now + PIN_NS;
        if (e->tie == NULL)
            mcd_gpu_pin(st->agent, e, NULL);
    }
    if (mcs_load_relaxed(&e->pinned) != 1 || now >= x->pin_until)
        return false;
    for (const struct mcd_store_extent *o = st->work->extents; o != NULL; o = o->next)
        if (o->id != 0 && mcs_load_relaxed(&o->memory->pinned) == 1)
            return false;
    return true;
}

/* Kept, then the core's. False: who keeps takes nothing just now, or the GPU driver is at it. */
static bool give(struct mcd_store *st, struct mcd_store_extent *x)
{
    struct mcd_extent *e = x->memory;
    struct mco_extent r = {
        .open = x->open,
        .tenant = x->tenant,
        .size = e->size,
        .page_size = e->kind.page_size,
        .address = e->address,
        .node = e->kind.node,
        .map = e->map,
        .owner = e,
    };
    struct stat s;
    int res;

    if (!x->kept) {
        res = mcd_keeper_add(&st->agent->keeper, x->name, e->fd);
        if (res == -EAGAIN)
            return false;
        x->kept = true;
        if (res != 0)
            not_kept(st, res);
        MCS_FAILPOINT(store_extent_kept);
    }
    if (is_pinning(st, x))
        return false;
    res = fstat(e->fd, &s) == 0 ? 0 : -errno;
    if (res == 0) {
        r.ino = s.st_ino;
        r.dev = s.st_dev;
        res = MCS_FAIL(store_extent_add);
    }
    if (res == 0)
        res = mco_extent_add(st->objects, &r, &x->id);
    if (res != 0) {
        uint64_t tenant = x->tenant;
        bool open = x->open;

        mcd_log_limited(MCD_LOG_WARNING, "the store does not take an extent of %llu bytes: %s",
                        (unsigned long long)e->size, strerror(-res));
        mcd_keeper_remove(&st->agent->keeper, x->name);
        leave(st, x);
        mcd_extent_put(&st->pool, e);
        refuse(st, tenant, open);
        return true;
    }
    e->handle = x->id;
    st->work->made++;
    MCS_FAILPOINT(store_extent_added);
    show(st, e);
    return true;
}

static void run_making(struct mcd_job *job)
{
    mcd_extent_job_run(&((struct making *)job)->memory);
}

static void made(struct mcd_job *job, void *context)
{
    struct making *m = (struct making *)job;
    struct mcd_store *st = m->store;
    struct mcd_store_extent *x = NULL;
    struct mcd_extent *e = NULL;
    int res = mcd_pool_finish(&st->pool, &m->memory, &e);

    (void)context;
    st->work->making -= m->memory.size;
    if (res == 0) {
        MCS_FAILPOINT(store_extent_made);
        x = enter(st, e, m->tenant, m->open, 0);
        if (x == NULL)
            mcd_extent_put(&st->pool, e);
        else
            (void)give(st, x); /* if not now, then with the next notes */
    }
    if (x == NULL) {
        mcd_log_limited(MCD_LOG_WARNING,
                        "no memory for an extent of objects, %llu bytes%s: objects are evicted "
                        "earlier than [store] size says",
                        (unsigned long long)m->memory.size,
                        st->config.pages == MCD_PAGES_REQUIRE ? " in hugepages" : "");
        refuse(st, m->tenant, m->open);
    }
    free(m);
}

/* A whole one, or all that is left where that is less: so their number is bounded. 0: there is no room. */
static uint64_t extent_size(const struct mcd_store *st, uint64_t size)
{
    uint64_t page = mcd_pool_page(&st->pool), left = mcd_pool_left(&st->pool) & ~(page - 1);

    if (size > st->config.pool_size)
        return 0;
    size = (size + page - 1) & ~(page - 1);
    if (size > left)
        return 0;
    if (size >= st->config.extent_size)
        return size;
    return left < st->config.extent_size ? left : st->config.extent_size;
}

/* Bytes of extents that were given back and are not unmapped yet: engines, devices, peers or clients have them still. */
static uint64_t leaving(const struct mcd_store *st)
{
    uint64_t there = st->work->making;

    for (const struct mcd_store_extent *x = st->work->extents; x != NULL; x = x->next)
        there += x->memory->size;
    return st->pool.used > there ? st->pool.used - there : 0;
}

/* It is tried again when that memory is back. False: it must do without. */
static bool wait_for_memory(struct mcd_store *st, const struct mcd_store_note *n)
{
    struct mcd_store_work *w = st->work;
    struct mcd_store_note *more;

    if (leaving(st) == 0 || (n->until != 0 && mcd_now_ns() > n->until))
        return false;
    more = realloc(w->waiting, (w->nwaiting + 1) * sizeof(*more));
    if (more == NULL)
        return false;
    w->waiting = more;
    more[w->nwaiting] = *n;
    if (n->until == 0)
        more[w->nwaiting].until = mcd_now_ns() + LEAVING_NS;
    w->nwaiting++;
    return true;
}

static void make(struct mcd_store *st, const struct mcd_store_note *n)
{
    uint64_t size = extent_size(st, n->size);
    struct making *m;

    if (size == 0 && n->size <= st->config.pool_size && wait_for_memory(st, n))
        return;
    m = size == 0 ? NULL : calloc(1, sizeof(*m));
    if (m == NULL || mcd_pool_plan(&st->pool, size, -1, 0, 0, &m->memory) != 0) {
        free(m);
        refuse(st, n->tenant, n->open);
        return;
    }
    m->job = (struct mcd_job){.run = run_making, .done = made};
    m->store = st;
    m->tenant = n->tenant;
    m->open = n->open;
    st->work->making += m->memory.size;
    mcd_worker_submit(mcd_worker_of(st->agent, m->memory.kind.page_size, size), &m->job);
}

/* ---- and goes ------------------------------------------------------------------------------ */

/*
 * Clients keep extents mapped that nothing lies in any more, for as long as they live; also such as have said that they do not,
 * or whose session has ended. So the pages go at once: whoever looks there, against all rules, sees zeros.
 */
struct hollowing {
    struct mcd_job job;
    struct mcd_extent *extent;
    int res;
};

static void run_hollow(struct mcd_job *job)
{
    struct hollowing *h = (struct hollowing *)job;
    struct mcd_extent *e = h->extent;

    do
        h->res =
            fallocate(e->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)e->size) == 0
                ? 0
                : -errno;
    while (h->res == -EINTR);
}

static void hollow(struct mcd_job *job, void *context)
{
    struct hollowing *h = (struct hollowing *)job;
    struct mcd_extent *e = h->extent;

    if (h->res == 0) {
        e->hollow = true;
        e->pool->used -= e->size;
        mcd_store_unmap_extent(context, e); /* what they map is nothing */
    } else {
        mcd_log_limited(MCD_LOG_WARNING,
                        "%llu bytes of objects that are gone stay taken while clients map them: %s",
                        (unsigned long long)e->size, strerror(-h->res));
    }
    mcd_extent_put(e->pool, e);
    free(h);
}

static void unmap(void *context)
{
    struct mcd_extent *e = context;
    struct mcd_store *st = (struct mcd_store *)((char *)e->pool - offsetof(struct mcd_store, pool));
    bool mapped = (e->refs != 1 || e->handed) && !st->work->stopped;
    struct hollowing *h = mapped ? calloc(1, sizeof(*h)) : NULL;

    if (h == NULL) {
        mcd_extent_put(e->pool, e);
        return;
    }
    if (e->tie != NULL) { /* pages that the GPU driver has stay taken */
        free(h);
        mcd_gpu_unpin(e, unmap, e);
        return;
    }
    if (e->registered != NULL)
        mcd_registration_drop(e->registered, NULL, NULL);
    h->job = (struct mcd_job){.run = run_hollow, .done = hollow};
    h->extent = e;
    mcd_worker_submit(st->agent->worker, &h->job);
}

static void give_back(struct mcd_store *st, uint32_t id)
{
    struct mcd_store_extent *x = mcd_store_find(st, id);
    struct mcd_extent *e;

    if (x == NULL || mco_extent_remove(st->objects, id) != 0)
        return; /* something lies in it again */
    MCS_FAILPOINT(store_extent_removed);
    e = x->memory;
    mcd_keeper_remove(&st->agent->keeper, x->name);
    st->work->removed++;
    leave(st, x);
    if (st->catalog != NULL)
        mcd_catalog_extent(st->catalog, e, false);
    mcd_after_grace(st->agent, unmap, e);
}

/*
 * For some notes there was no memory, and nobody knows which: so all who may have asked for an extent are told that there is none just
 * now, and all extents in which nothing lies go.
 */
static void recover_lost(struct mcd_store *st)
{
    struct mcd_store_work *w = st->work;
    size_t n = mco_tenants(st->objects, NULL, 0);
    struct mco_tenant_stats *tenants = calloc(n + 1, sizeof(*tenants));
    struct mcd_store_extent *next;

    if (tenants == NULL)
        return;                                       /* the next time */
    w->notes_seen = mcs_load_relaxed(&w->notes_lost); /* partner: note() */
    mcd_log_limited(MCD_LOG_WARNING, "no memory to note what the store of objects asks for");
    n = mco_tenants(st->objects, tenants, n);
    for (size_t i = 0; i < n; i++)
        for (unsigned open = 0; open < 2; open++)
            mco_extent_failed(st->objects, tenants[i].tenant, open != 0);
    free(tenants);
    for (struct mcd_store_extent *x = w->extents; x != NULL; x = next) {
        next = x->next;
        if (x->id != 0)
            give_back(st, x->id);
    }
}

bool mcd_store_notes(struct mcd_store *st)
{
    struct mcd_store_work *w = st->work;
    struct mcd_store_note *waiting = w->waiting, n;
    struct mcd_store_extent *x, *next;
    uint32_t nwaiting = w->nwaiting;
    bool waits;

    w->waiting = NULL;
    w->nwaiting = 0;
    for (uint32_t i = 0; i < nwaiting; i++)
        make(st, &waiting[i]);
    free(waiting);
    for (;;) {
        mco_lock(&w->lock);
        if (w->nnotes == 0)
            break;
        n = w->notes[0];
        memmove(w->notes, w->notes + 1, --w->nnotes * sizeof(n));
        mco_unlock(&w->lock);
        if (n.size != 0)
            make(st, &n);
        else
            give_back(st, n.extent);
    }
    mco_unlock(&w->lock);
    if (mcs_load_relaxed(&w->notes_lost) != w->notes_seen)
        recover_lost(st);
    waits = w->nwaiting != 0;
    for (x = w->extents; x != NULL; x = next) {
        next = x->next;
        if (x->id == 0)
            waits |= !give(st, x);
    }
    return waits;
}

/* ---- from one life to the next ---------------------------------------------------------------- */

struct kept_list {
    struct mco_extent *list;
    size_t n;
    bool failed;
};

static bool collect(void *context, const struct mco_extent *e)
{
    struct kept_list *k = context;
    struct mco_extent *more = realloc(k->list, (k->n + 1) * sizeof(*more));

    k->failed = more == NULL;
    if (more == NULL)
        return false;
    k->list = more;
    k->list[k->n++] = *e;
    return true;
}

/* The descriptor that was kept of an extent, by its file. */
static struct mcd_kept *find_kept(struct mcd_keeper *k, const struct mco_extent *r)
{
    struct stat s;

    for (unsigned i = 0; i < k->nextents; i++)
        if (k->extents[i].fd >= 0 && fstat(k->extents[i].fd, &s) == 0 && s.st_ino == r->ino &&
            s.st_dev == r->dev)
            return &k->extents[i];
    return NULL;
}

static int take_back(struct mcd_store *st, const struct mco_extent *r, struct mcd_kept *k)
{
    struct mcd_ledger_extent record = {
        .size = r->size,
        .page_size = r->page_size,
        .address = r->address,
        .ino = r->ino,
        .dev = r->dev,
        .handle = r->id,
        .node = r->node,
    };
    struct mcd_store_extent *x;
    struct mcd_extent *e;
    int res = MCS_FAIL(store_extent_back);

    if (res == 0)
        res = mcd_extent_take_back(&st->pool, &record, k->fd, &e);
    if (res != 0)
        return res;
    e->record = NULL; /* the store's own table is what tells of it */
    e->handed = true;
    e->id = (uint32_t)strtoul(k->name + strlen(MCD_KEEPER_EXTENT), NULL, 10);
    if (e->id >= st->agent->pool.next_id)
        st->agent->pool.next_id = e->id + 1;
    mcd_pool_keep(&st->pool, r->address, r->size);
    st->pool.used += e->size;
    k->fd = -1; /* the extent's now */
    x = enter(st, e, r->tenant, r->open, r->id);
    if (x == NULL) {
        mcd_extent_put(&st->pool, e);
        return -ENOMEM;
    }
    x->kept = true;
    mco_extent_back(st->objects, r->id, e->map, e);
    if (st->agent->registry.rdma != NULL)
        (void)mcd_registration_create_whole(&st->agent->registry, e, NULL, NULL);
    return 0;
}

void mcd_store_take_back(struct mcd_store *st)
{
    struct mcd_keeper *keeper = &st->agent->keeper;
    struct kept_list kept = {.list = NULL};

    mco_extents_kept(st->objects, collect, &kept);
    for (size_t i = 0; i < kept.n; i++) {
        struct mcd_kept *k = find_kept(keeper, &kept.list[i]);
        int res = k == NULL ? -ENOENT : take_back(st, &kept.list[i], k);

        if (res == 0)
            continue;
        st->work->lost_extents++;
        mcd_warning("an extent of objects, %llu bytes, of the agent before is lost: %s",
                    (unsigned long long)kept.list[i].size,
                    res == -ENOENT   ? "it was not kept"
                    : res == -ERANGE ? "it is smaller than it was"
                                     : strerror(-res));
        mco_extent_lost(st->objects, kept.list[i].id);
    }
    free(kept.list);
    /* what no table knows: it was given into keeping, and then the agent died */
    for (unsigned i = 0; i < keeper->nextents; i++) {
        if (keeper->extents[i].fd < 0)
            continue;
        mcd_keeper_remove(keeper, keeper->extents[i].name);
        close(keeper->extents[i].fd);
        keeper->extents[i].fd = -1;
    }
}

void mcd_store_drop_extents(struct mcd_store *st)
{
    while (st->work->extents != NULL) {
        struct mcd_extent *e = st->work->extents->memory;

        leave(st, st->work->extents);
        if (e->tie == NULL) /* else the GPU driver has it until the process ends */
            mcd_extent_put(&st->pool, e);
    }
}
