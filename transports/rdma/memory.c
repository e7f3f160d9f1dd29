/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA: memory registered on all nics, in chunks, in parallel. */
#include "devices.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Threads that work on the chunks of one range and nic: most of the time goes into pinning pages, which the
 * kernel does in the caller. */
#define THREADS 4u
/* A region that is busy is tried again after so long, then twice as long, ... */
#define BUSY_MIN_MS 1u
#define BUSY_MAX_MS 1000u
#define BUSY_SAY_MS 5000u

/* ---- registering ------------------------------------------------------------------------ */

struct work {
    struct mct_rdma_device *device;
    const struct mct_rdma_memory *memory;
    struct mct_rdma_registration *reg;
    struct ibv_pd *pd;
    /* helpers and the worker, both relaxed; pthread_join() orders the rest */
    uint64_t next; /* chunk */
    int32_t res;   /* 0, or the first negative errno */
    uint64_t failed_at;
    bool dead; /* of the device: what fails with EIO is gone */
};

static uint64_t chunk_length(const struct mct_rdma_memory *m, uint64_t k)
{
    uint64_t at = k * m->chunk;

    return m->range.length - at < m->chunk ? m->range.length - at : m->chunk;
}

static struct ibv_mr *register_chunk(const struct work *w, uint64_t k)
{
    const struct mct_rdma_range *r = &w->memory->range;
    uint64_t at = k * w->memory->chunk, length = chunk_length(w->memory, k);
    unsigned access = 0;

    /*
     * IBV_ACCESS_RELAXED_ORDERING, which some devices have, is left out: writes might then become visible after the
     * completion that tells of them, and COMPLETED means visible at the destination.
     */
    if (r->access == 0 || (r->access & MCT_RDMA_REMOTE_WRITE) != 0)
        access |= IBV_ACCESS_LOCAL_WRITE;
    if ((r->access & MCT_RDMA_REMOTE_WRITE) != 0)
        access |= IBV_ACCESS_REMOTE_WRITE;
    if ((r->access & MCT_RDMA_REMOTE_READ) != 0)
        access |= IBV_ACCESS_REMOTE_READ;
    errno = 0;
    if (r->dmabuf_fd >= 0)
        return ibv_reg_dmabuf_mr(w->pd, r->dmabuf_offset + at, length, r->published + at,
                                 r->dmabuf_fd, (int)access);
    if (r->access == 0)
        return ibv_reg_mr(w->pd, (char *)r->address + at, length, (int)access);
    return ibv_reg_mr_iova(w->pd, (char *)r->address + at, length, r->published + at, access);
}

static void *register_chunks(void *arg)
{
    struct work *w = arg;
    int32_t none;
    uint64_t k;
    struct ibv_mr *mr;

    while (mcs_load_relaxed(&w->res) == 0 && (k = mcs_fetch_add(&w->next, 1)) < w->reg->nchunks) {
        mr = register_chunk(w, k);
        if (mr == NULL) {
            int32_t res = errno != 0 ? -errno : -EIO;

            none = 0;
            if (mcs_compare_exchange(&w->res, &none, res))
                mcs_store_relaxed(&w->failed_at, k);
            break;
        }
        w->reg->mrs[k] = mr;
        w->reg->lkeys[k] = mr->lkey;
        w->reg->rkeys[k] = mr->rkey;
        mcs_fetch_add(&w->device->memory_regions, 1);
        mcs_fetch_add(&w->device->memory_bytes, chunk_length(w->memory, k));
    }
    return NULL;
}

static void *deregister_chunks(void *arg)
{
    struct work *w = arg;
    uint64_t k;
    int res;

    while ((k = mcs_fetch_add(&w->next, 1)) < w->reg->nchunks) {
        if (w->reg->mrs[k] == NULL)
            continue;
        res = ibv_dereg_mr(w->reg->mrs[k]);
        /* a device that was unplugged has forgotten its regions */
        if (res != 0 && !(w->dead && (res == EIO || res == ENODEV || res == ENXIO))) {
            mcs_store_relaxed(&w->res, -res);
            continue;
        }
        w->reg->mrs[k] = NULL;
        mcs_fetch_add(&w->device->memory_bytes, -chunk_length(w->memory, k));
        mcs_fetch_add(&w->device->memory_regions, (uint64_t)-1);
    }
    return NULL;
}

/* Does the work, with helpers where there are several chunks. */
static void share(struct work *w, void *(*what)(void *))
{
    pthread_t helpers[THREADS - 1];
    unsigned n = 0, i;

    while (n < THREADS - 1 && n + 1 < w->reg->nchunks &&
           mct_thread_start(&helpers[n], what, w, "rdma-pin") == 0)
        n++;
    what(w);
    for (i = 0; i < n; i++)
        pthread_join(helpers[i], NULL);
}

static struct mct_rdma_registration *new_registration(uint64_t nchunks)
{
    struct mct_rdma_registration *g = calloc(1, sizeof(*g));

    if (g == NULL)
        return NULL;
    g->nchunks = nchunks;
    g->mrs = calloc(nchunks, sizeof(*g->mrs));
    g->lkeys = calloc(nchunks, 2 * sizeof(*g->lkeys));
    if (g->mrs == NULL || g->lkeys == NULL) {
        free(g->mrs);
        free(g->lkeys);
        free(g);
        return NULL;
    }
    g->rkeys = g->lkeys + nchunks;
    return g;
}

static void free_registration(struct mct_rdma_registration *g)
{
    free(g->mrs);
    free(g->lkeys);
    free(g);
}

/* Bytes that this process has locked by now; 0: not known. */
static uint64_t locked_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");

    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL)
        if (sscanf(line, "VmPin: %llu", &kib) == 1)
            break;
    fclose(f);
    return kib << 10;
}

bool mct_rdma_memlock(char *out, size_t size)
{
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        return false;
    snprintf(out, size,
             "no more memory may be locked: limit %llu bytes (RLIMIT_MEMLOCK), locked %llu; set "
             "LimitMEMLOCK=infinity in the agent's unit or give it CAP_IPC_LOCK",
             (unsigned long long)limit.rlim_cur, (unsigned long long)locked_bytes());
    return true;
}

static char *explain(const struct mct_rdma_device *d, const struct mct_rdma_memory *m, int res,
                     uint64_t at)
{
    unsigned long long wanted = m->range.length, chunk = chunk_length(m, at),
                       regions = mcs_load_relaxed(&d->memory_regions);
    char memlock[MCT_RDMA_TEXT_MAX];

    if (res == -ENOMEM && mct_rdma_memlock(memlock, sizeof(memlock)))
        return mct_rdma_text("%llu bytes cannot be registered with RDMA device %s: %s", wanted,
                             d->name, memlock);
    if ((res == -ENOMEM || res == -ENOSPC || res == -EINVAL) && d->limits.max_mr > 0 &&
        regions >= (unsigned long long)d->limits.max_mr)
        return mct_rdma_text("%llu bytes cannot be registered with RDMA device %s: it has %llu "
                             "memory regions, its limit is "
                             "%d; publish fewer buffers",
                             wanted, d->name, regions, d->limits.max_mr);
    return mct_rdma_text("%llu bytes cannot be registered with RDMA device %s: %s at byte %llu, in "
                         "a region of %llu bytes "
                         "(the device allows %llu a region; it has %llu regions and allows %d)",
                         wanted, d->name, strerror(-res), (unsigned long long)(at * m->chunk),
                         chunk, (unsigned long long)d->limits.max_mr_size, regions,
                         d->limits.max_mr);
}

/* Is the device lost, or was it this call alone? */
static bool is_lost(struct mct_rdma_device *d, struct ibv_context *context, int res)
{
    struct ibv_port_attr a;

    if (res != -EIO && res != -ENODEV && res != -ENXIO)
        return false;
    memset(&a, 0, sizeof(a));
    res = -ibv_query_port(context, d->port, &a);
    if (res != -EIO && res != -ENODEV && res != -ENXIO)
        return false;
    mct_rdma_nic_suspect(d);
    return true;
}

static bool begin_use(struct mct_rdma_device *d, struct ibv_context **context, struct ibv_pd **pd,
                      uint64_t *id)
{
    bool open;

    pthread_mutex_lock(&d->rdma->lock);
    open = d->context != NULL && !d->dead;
    if (open)
        d->uses++;
    *context = d->context;
    *pd = d->pd;
    *id = d->id;
    pthread_mutex_unlock(&d->rdma->lock);
    return open;
}

static void end_use(struct mct_rdma_device *d)
{
    pthread_mutex_lock(&d->rdma->lock);
    if (--d->uses == 0 && d->dead)
        mct_kick(d->kick_fd);
    pthread_mutex_unlock(&d->rdma->lock);
}

void mct_rdma_register(struct mct_rdma_device *d, struct mct_rdma_job *j)
{
    struct mct_rdma_memory *m = j->subject;
    struct mct_rdma_slot *slot = m->slots[d->index];
    struct work w = {.device = d, .memory = m};
    struct ibv_context *context;
    uint64_t id;

    /* one that is closed by now has no keys, which is no error: it gets them when it opens again */
    if (!begin_use(d, &context, &w.pd, &id))
        return;
    if (m->nchunks > 1 && d->limits.max_mr_size != 0 && m->chunk > d->limits.max_mr_size) {
        j->res = -EMSGSIZE;
        j->text =
            mct_rdma_text("%llu bytes cannot be registered with RDMA device %s: it came later, and "
                          "takes %llu bytes a "
                          "region, fewer than the %llu that peers count with",
                          (unsigned long long)m->range.length, d->name,
                          (unsigned long long)d->limits.max_mr_size, (unsigned long long)m->chunk);
        goto out;
    }
    w.reg = new_registration(m->nchunks);
    if (w.reg == NULL) {
        j->res = -ENOMEM;
        goto out;
    }
    w.reg->id = id;
    slot->held = w.reg;
    share(&w, register_chunks);
    if (w.res == 0)
        mcs_store_release(&slot->keys, w.reg); /* mct_rdma_memory_lkey(), mct_rdma_memory_keys() */
    else if (!is_lost(d, context, w.res)) {
        j->res = w.res;
        j->text = explain(d, m, w.res, w.failed_at);
    }
out:
    if (j->res != 0)
        mcs_fetch_add(&d->registrations_failed, 1);
    end_use(d);
}

bool mct_rdma_deregister(struct mct_rdma_device *d, struct mct_rdma_job *j)
{
    struct mct_rdma_memory *m = j->subject;
    struct mct_rdma_slot *slot = m->slots[d->index];
    struct work w = {.device = d, .memory = m, .reg = slot->held};
    uint64_t now;

    mcs_store_release(&slot->keys, NULL);
    pthread_mutex_lock(&d->rdma->lock);
    w.dead = d->dead;
    pthread_mutex_unlock(&d->rdma->lock);
    share(&w, deregister_chunks);
    if (w.res == 0) {
        /* the context may be closed from now on */
        if (mcs_load_relaxed(&d->memory_regions) == 0)
            mct_kick(d->kick_fd);
        return true;
    }
    if (w.res == -EIO || w.res == -ENODEV || w.res == -ENXIO)
        mct_rdma_nic_suspect(d);
    now = mct_ms();
    if (j->since == 0) {
        j->since = now;
        j->step_ms = BUSY_MIN_MS;
    } else {
        if (now - j->since >= BUSY_SAY_MS && j->text == NULL && d->rdma->options.log != NULL) {
            d->rdma->options.log(MCT_RDMA_LOG_ERROR,
                                 "RDMA device %s does not let go of %llu bytes of memory: %s; they "
                                 "stay mapped until it does",
                                 d->name, (unsigned long long)m->range.length, strerror(-w.res));
            j->text = mct_rdma_text("said");
        }
        j->step_ms = j->step_ms * 2 < BUSY_MAX_MS ? j->step_ms * 2 : BUSY_MAX_MS;
    }
    j->due = now + j->step_ms;
    return false;
}

/* ---- the control thread ------------------------------------------------------------------- */

static void post(struct mct_rdma_worker *w, struct mct_rdma_memory *m, enum mct_rdma_job_kind kind)
{
    struct mct_rdma_slot *slot = m->slots[w->device->index];

    slot->busy = true;
    slot->job = (struct mct_rdma_job){.kind = kind, .device = w->device, .subject = m};
    mct_rdma_worker_put(w, &slot->job);
}

/* Posts what has to be done on one nic; false: there is nothing, and nothing is out. */
static bool advance_slot(struct mct_rdma_memory *m, struct mct_rdma_device *d)
{
    struct mct_rdma_slot *slot = m->slots[d->index];
    bool wanted = m->wanted && d->usable;

    if (slot->busy)
        return true;
    if (slot->held != NULL && (!wanted || slot->bad)) {
        post(&d->deregistering, m, MCT_RDMA_JOB_DEREGISTER);
        return true;
    }
    if (wanted && slot->held == NULL && slot->tried != d->life) {
        slot->tried = d->life;
        slot->bad = false;
        d->registering_now++;
        post(&d->registering, m, MCT_RDMA_JOB_REGISTER);
        return true;
    }
    return false;
}

void mct_rdma_memory_advance(struct mct_rdma *r, struct mct_rdma_memory *m)
{
    bool busy = false;
    unsigned i;

    if (m->creating && m->res != 0)
        m->wanted = false; /* one has refused it: away with it everywhere */
    for (i = 0; i < r->ndevices; i++)
        busy = advance_slot(m, r->devices[i]) || busy;
    if (busy || m->ripe || (!m->creating && !m->destroying))
        return;
    m->ripe = true;
    m->ripe_next = r->ripe;
    r->ripe = m;
    mct_kick(r->fd);
}

void mct_rdma_memory_result(struct mct_rdma *r, struct mct_rdma_job *j)
{
    struct mct_rdma_memory *m = j->subject;
    struct mct_rdma_device *d = j->device;
    struct mct_rdma_slot *slot = m->slots[d->index];

    slot->busy = false;
    if (j->kind == MCT_RDMA_JOB_DEREGISTER) {
        /* Engines read those of local memory (mct_rdma_memory_lkey), and nobody tells when they have; there are few. Of
         * published buffers there are many, and keys that this thread asked for are good until it comes here. */
        if (m->range.access != 0) {
            free_registration(slot->held);
        } else {
            slot->held->retired_next = m->retired;
            m->retired = slot->held;
        }
        slot->held = NULL;
        slot->bad = false;
    } else if (slot->held != NULL && j->res == 0 && mcs_load_relaxed(&slot->keys) == NULL) {
        /* The device seemed lost. It is open anew by now, or was not: what is there of it goes, then it is tried again. */
        slot->bad = true;
        slot->tried = 0;
    } else if (j->res != 0) {
        slot->bad = true;
        if (m->creating && m->res == 0) {
            m->res = j->res;
            m->text = j->text;
            j->text = NULL;
        } else if (!m->creating && r->options.log != NULL) {
            /* the others keep theirs; this nic goes on without */
            r->options.log(MCT_RDMA_LOG_WARNING, "%s; it is reached on other ways",
                           j->text != NULL ? j->text : "memory cannot be registered with RDMA");
        }
    }
    free(j->text);
    j->text = NULL;
    mct_rdma_memory_advance(r, m);
}

void mct_rdma_memory_finish(struct mct_rdma *r, struct mct_rdma_memory *m)
{
    mct_rdma_done *done = m->done;
    void *context = m->context;
    struct mct_rdma_registration *g;
    char *text = m->text;
    int res = m->res;
    unsigned i;

    m->done = NULL;
    m->text = NULL;
    m->res = 0;
    if (m->creating) {
        m->creating = false;
    } else {
        if (m->next != NULL)
            m->next->prev = m->prev;
        if (m->prev != NULL)
            m->prev->next = m->next;
        else
            r->memories = m->next;
        while ((g = m->retired) != NULL) {
            m->retired = g->retired_next;
            free_registration(g);
        }
        for (i = m->nown; i < MCT_RDMA_NICS_MAX; i++)
            free(m->slots[i]);
        free(m);
        res = 0;
    }
    if (done != NULL)
        done(context, res, res == 0 ? "" : text != NULL ? text : "out of memory for RDMA keys");
    free(text);
}

int mct_rdma_memories_reserve(struct mct_rdma *r)
{
    struct mct_rdma_slot **slot;
    struct mct_rdma_memory *m;

    for (m = r->memories; m != NULL; m = m->next) {
        slot = &m->slots[r->ndevices];
        if (*slot == NULL) /* else from a try before */
            *slot = calloc(1, sizeof(**slot));
        if (*slot == NULL)
            return -ENOMEM;
    }
    return 0;
}

int mct_rdma_memory_create(struct mct_rdma *r, const struct mct_rdma_range *range,
                           mct_rdma_done *done, void *context, struct mct_rdma_memory **out)
{
    uint64_t chunk = r->options.chunk, limit, page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct mct_rdma_memory *m;
    unsigned i;

    *out = NULL;
    if (range->length == 0 || range->published + range->length < range->published ||
        (range->dmabuf_fd < 0 && range->address == NULL) ||
        (range->access & ~(MCT_RDMA_REMOTE_READ | MCT_RDMA_REMOTE_WRITE)) != 0)
        return -EINVAL;
    pthread_mutex_lock(&r->lock);
    for (i = 0; i < r->ndevices; i++) {
        const struct mct_rdma_device *d = r->devices[i];

        limit = d->context != NULL ? d->limits.max_mr_size : 0; /* 0: it tells none */
        if (limit == 0 || limit >= chunk)
            continue;
        chunk = limit >= MCT_RDMA_CHUNK_MIN ? limit - limit % MCT_RDMA_CHUNK_MIN
                : limit >= page             ? limit - limit % page
                                            : limit;
    }
    pthread_mutex_unlock(&r->lock);
    m = calloc(1, sizeof(*m) + r->ndevices * sizeof(m->own[0]));
    if (m == NULL)
        return -ENOMEM;
    m->rdma = r;
    m->range = *range;
    m->chunk = chunk;
    m->nchunks = (range->length - 1) / chunk + 1;
    m->nown = r->ndevices;
    for (i = 0; i < m->nown; i++)
        m->slots[i] = &m->own[i];
    m->wanted = true;
    m->creating = true;
    m->done = done;
    m->context = context;
    m->next = r->memories;
    if (m->next != NULL)
        m->next->prev = m;
    r->memories = m;
    mct_rdma_memory_advance(r, m);
    *out = m;
    return 0;
}

void mct_rdma_memory_destroy(struct mct_rdma *r, struct mct_rdma_memory *m, mct_rdma_done *done,
                             void *context)
{
    m->wanted = false;
    m->destroying = true;
    m->done = done;
    m->context = context;
    mct_rdma_memory_advance(r, m);
}

uint64_t mct_rdma_memory_chunk(const struct mct_rdma_memory *m)
{
    return m->chunk;
}

const uint32_t *mct_rdma_memory_keys(const struct mct_rdma_memory *m, unsigned nic, uint64_t *id)
{
    const struct mct_rdma_registration *g;

    if (nic >= m->rdma->ndevices)
        return NULL;
    g = mcs_load_acquire(&m->slots[nic]->keys); /* mct_rdma_register(), mct_rdma_deregister() */
    if (g == NULL)
        return NULL;
    *id = g->id;
    return g->rkeys;
}

bool mct_rdma_memory_lkey(const struct mct_rdma_memory *m, const struct mct_rdma_port *port,
                          const void *address, uint32_t *lkey, uint64_t *left)
{
    const struct mct_rdma_registration *g;
    uint64_t base = m->range.dmabuf_fd >= 0 ? m->range.published : (uintptr_t)m->range.address;
    uint64_t at = (uintptr_t)address - base, k;

    /* keys of what peers reach count from the published address, and are not for this side's own use */
    if (at >= m->range.length || m->range.access != 0)
        return false;
    g = mcs_load_acquire(
        &m->slots[port->nic]->keys); /* mct_rdma_register(), mct_rdma_deregister() */
    if (g == NULL || g->id != port->nic_id)
        return false;
    k = at / m->chunk;
    *lkey = g->lkeys[k];
    *left = chunk_length(m, k) - (at - k * m->chunk);
    return true;
}
