/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA: the table of nics, and what their threads tell the control thread. */
#include "devices.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

/* A device that needs longer to open is taken as closed until it is. */
#define OPEN_MS 5000u
/* At the end: for what is under way, and then for each thread. */
#define END_MS 5000u

/* Those whose threads did not end in time: theirs, but never lost sight of. Control thread. */
static struct mct_rdma *abandoned;

void mct_rdma_jobs_put(struct mct_rdma_jobs *q, struct mct_rdma_job *j)
{
    j->next = NULL;
    if (q->last != NULL)
        q->last->next = j;
    else
        q->first = j;
    q->last = j;
}

struct mct_rdma_job *mct_rdma_jobs_take(struct mct_rdma_jobs *q)
{
    struct mct_rdma_job *j = q->first;

    if (j != NULL) {
        q->first = j->next;
        if (q->first == NULL)
            q->last = NULL;
        j->next = NULL;
    }
    return j;
}

char *mct_rdma_text(const char *format, ...)
{
    char text[MCT_RDMA_TEXT_MAX];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    return strdup(text);
}

uint64_t mct_rdma_random(void)
{
    static uint64_t count;
    uint64_t id = 0;

    if (getrandom(&id, sizeof(id), GRND_NONBLOCK) != (ssize_t)sizeof(id) || id == 0)
        id = (mct_ms() << 24) ^ mcs_ticks() ^ mcs_fetch_add(&count, 1) << 56;
    return id != 0 ? id : 1;
}

void mct_rdma_result(struct mct_rdma_job *j)
{
    struct mct_rdma *r = j->device->rdma;

    pthread_mutex_lock(&r->lock);
    mct_rdma_jobs_put(&r->results, j);
    mct_kick(r->fd);
    pthread_mutex_unlock(&r->lock);
}

void mct_rdma_note(struct mct_rdma_device *d, unsigned notes)
{
    d->notes |= notes;
    mct_kick(d->rdma->fd);
}

void mct_rdma_post(struct mct_rdma_device *d, struct mct_rdma_job *j)
{
    j->device = d;
    pthread_mutex_lock(&d->rdma->lock);
    mct_rdma_jobs_put(&d->jobs, j);
    d->posted++;
    pthread_mutex_unlock(&d->rdma->lock);
    mct_kick(d->kick_fd);
}

/* ---- devices ------------------------------------------------------------------------ */

static void device_free(struct mct_rdma_device *d)
{
    if (d->kick_fd >= 0)
        close(d->kick_fd);
    pthread_cond_destroy(&d->some);
    mct_rdma_worker_fini(&d->registering);
    mct_rdma_worker_fini(&d->deregistering);
    mct_rdma_worker_fini(&d->connecting);
    free(d);
}

static int device_create(struct mct_rdma *r, const char *device, unsigned port,
                         struct mct_rdma_device **out)
{
    struct mct_rdma_device *d = calloc(1, sizeof(*d));
    int res;

    *out = NULL;
    if (d == NULL)
        return -ENOMEM;
    mct_cond_init(&d->some);
    mct_rdma_worker_init(&d->registering, d);
    mct_rdma_worker_init(&d->deregistering, d);
    mct_rdma_worker_init(&d->connecting, d);
    d->rdma = r;
    d->index = r->ndevices;
    d->port = (uint8_t)port;
    snprintf(d->device, sizeof(d->device), "%s", device);
    snprintf(d->name, sizeof(d->name), "%s/%u", device, port);
    snprintf(d->shown.name, sizeof(d->shown.name), "%s", d->name);
    snprintf(d->shown.why, sizeof(d->shown.why), "it is being opened");
    d->shown.node = -1;
    d->shown.gid_index = -1;
    d->backoff = 1;
    d->kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (d->kick_fd < 0) {
        res = -errno;
        device_free(d);
        return res;
    }
    *out = d;
    return 0;
}

/* Its own thread last: before that, nothing is open. */
static int device_start(struct mct_rdma_device *d)
{
    char name[16];
    int res;

    /* a large range has helpers of its own; an unreachable peer takes a second of the one that looks for it */
    res = mct_rdma_worker_start(&d->registering, 1, "reg");
    if (res == 0)
        res = mct_rdma_worker_start(&d->deregistering, 1, "dereg");
    if (res == 0)
        res = mct_rdma_worker_start(&d->connecting, MCT_RDMA_WORKER_THREADS, "conn");
    if (res != 0)
        return res;
    snprintf(name, sizeof(name), "rdma-nic%u", d->index);
    res = mct_thread_start(&d->thread, mct_rdma_nic_thread, d, name);
    d->started = res == 0;
    return res;
}

/* With the lock held: its threads are to end. */
static void device_stop(struct mct_rdma_device *d)
{
    d->stop = true;
    mct_kick(d->kick_fd);
    pthread_cond_broadcast(&d->registering.wake);
    pthread_cond_broadcast(&d->deregistering.wake);
    pthread_cond_broadcast(&d->connecting.wake);
}

static bool join_worker(const struct mct_rdma_worker *w, uint64_t end)
{
    bool all = true;

    for (unsigned i = 0; i < w->n; i++)
        all = mct_thread_join(w->threads[i], end) && all;
    return all;
}

/* false: a thread hangs; what it may touch has to stay. */
static bool device_join(struct mct_rdma_device *d, uint64_t end)
{
    bool all = true;

    if (d->started)
        all = mct_thread_join(d->thread, end);
    all = join_worker(&d->registering, end) && all;
    all = join_worker(&d->deregistering, end) && all;
    all = join_worker(&d->connecting, end) && all;
    return all;
}

/* Adds a nic to the table, unless it is there, and starts its threads. */
static int add_device(struct mct_rdma *r, const char *device, unsigned port)
{
    struct mct_rdma_device *d;
    unsigned i;
    int res;

    for (i = 0; i < r->ndevices; i++)
        if (strcmp(r->devices[i]->device, device) == 0 && r->devices[i]->port == port)
            return 0;
    if (strlen(device) >= sizeof(d->device) || port == 0 || port > 255)
        return 0;
    if (r->ndevices == MCT_RDMA_NICS_MAX) {
        if (r->options.log != NULL)
            r->options.log(MCT_RDMA_LOG_WARNING,
                           "RDMA device %s/%u is left out: an agent uses %u at most; name those it "
                           "is to use in "
                           "[rdma] devices",
                           device, port, MCT_RDMA_NICS_MAX);
        pthread_mutex_lock(&r->lock);
        r->full = true;
        pthread_mutex_unlock(&r->lock);
        return 0;
    }
    res = device_create(r, device, port, &d);
    if (res != 0)
        return res;
    res = mct_rdma_memories_reserve(r);
    if (res == 0)
        res = device_start(d);
    if (res != 0) {
        pthread_mutex_lock(&r->lock);
        device_stop(d);
        pthread_mutex_unlock(&r->lock);
        /* they have had nothing to do */
        (void)device_join(d, UINT64_MAX);
        device_free(d);
        return res;
    }
    pthread_mutex_lock(&r->lock);
    r->devices[r->ndevices++] = d;
    pthread_mutex_unlock(&r->lock);
    return 0;
}

/* Those that came after the start. */
static void take_found(struct mct_rdma *r)
{
    struct mct_rdma_found found[MCT_RDMA_NICS_MAX];
    unsigned n, i;
    int res;

    pthread_mutex_lock(&r->lock);
    n = r->nfound;
    memcpy(found, r->found, n * sizeof(found[0]));
    r->nfound = 0;
    pthread_mutex_unlock(&r->lock);
    for (i = 0; i < n && !r->quiet; i++) {
        res = add_device(r, found[i].device, found[i].port);
        if (res != 0 && r->options.log != NULL)
            r->options.log(MCT_RDMA_LOG_WARNING,
                           "RDMA device %s/%u has come, and cannot be used yet: %s; it is tried "
                           "again",
                           found[i].device, found[i].port, strerror(-res));
    }
}

/* ---- results ------------------------------------------------------------------------ */

static void memories_registered(struct mct_rdma_device *d)
{
    d->opening = false;
    d->rdma->keys_changed = true;
    pthread_mutex_lock(&d->rdma->lock);
    d->ready = true;
    pthread_mutex_unlock(&d->rdma->lock);
    mct_kick(d->kick_fd);
}

static void handle_notes(struct mct_rdma *r, struct mct_rdma_device *d, unsigned notes, uint64_t id)
{
    struct mct_rdma_memory *m;

    if (notes & MCT_RDMA_NOTE_OPENED) {
        d->usable = true;
        d->opening = true;
        d->life = id;
        for (m = r->memories; m != NULL; m = m->next)
            mct_rdma_memory_advance(r, m);
        if (d->registering_now == 0)
            memories_registered(d);
    }
    if (notes & MCT_RDMA_NOTE_CLOSED) {
        d->usable = false;
        d->opening = false;
        r->keys_changed = true;
        for (m = r->memories; m != NULL; m = m->next)
            mct_rdma_memory_advance(r, m);
        pthread_mutex_lock(&r->lock);
        d->forgotten = true;
        pthread_mutex_unlock(&r->lock);
        mct_kick(d->kick_fd);
    }
    if ((notes & MCT_RDMA_NOTE_CHANGED) && !r->quiet && r->host.changed != NULL)
        r->host.changed(r->host.context, d->index);
}

static void handle_result(struct mct_rdma *r, struct mct_rdma_job *j)
{
    struct mct_rdma_device *d = j->device;

    if (j->kind != MCT_RDMA_JOB_REGISTER && j->kind != MCT_RDMA_JOB_DEREGISTER) {
        mct_rdma_pair_result(j);
        return;
    }
    if (j->kind == MCT_RDMA_JOB_REGISTER)
        d->registering_now--;
    mct_rdma_memory_result(r, j);
    if (d->opening && d->registering_now == 0)
        memories_registered(d);
}

void mct_rdma_run(struct mct_rdma *r)
{
    unsigned notes[MCT_RDMA_NICS_MAX];
    uint64_t ids[MCT_RDMA_NICS_MAX], n;
    struct mct_rdma_jobs results;
    struct mct_rdma_job *j;
    struct mct_rdma_memory *m;
    unsigned i;

    while (read(r->fd, &n, sizeof(n)) < 0 && errno == EINTR)
        continue;
    take_found(r);
    pthread_mutex_lock(&r->lock);
    results = r->results;
    memset(&r->results, 0, sizeof(r->results));
    for (i = 0; i < r->ndevices; i++) {
        notes[i] = r->devices[i]->notes;
        r->devices[i]->notes = 0;
        ids[i] = r->devices[i]->id;
    }
    pthread_mutex_unlock(&r->lock);

    for (i = 0; i < r->ndevices; i++)
        if (notes[i] != 0)
            handle_notes(r, r->devices[i], notes[i], ids[i]);
    while ((j = mct_rdma_jobs_take(&results)) != NULL)
        handle_result(r, j);
    while ((m = r->ripe) != NULL) {
        r->ripe = m->ripe_next;
        m->ripe = false;
        mct_rdma_memory_finish(r, m);
    }
    if (r->keys_changed && !r->quiet) {
        r->keys_changed = false;
        if (r->host.keys_changed != NULL)
            r->host.keys_changed(r->host.context);
    }
}

int mct_rdma_fd(const struct mct_rdma *r)
{
    return r->fd;
}

unsigned mct_rdma_nics(const struct mct_rdma *r)
{
    return r->ndevices;
}

void mct_rdma_nic(const struct mct_rdma *r, unsigned nic, struct mct_rdma_nic *out)
{
    struct mct_rdma_device *d;

    memset(out, 0, sizeof(*out));
    if (nic >= r->ndevices)
        return;
    d = r->devices[nic];
    pthread_mutex_lock(&d->rdma->lock);
    *out = d->shown;
    pthread_mutex_unlock(&d->rdma->lock);
    out->memory_bytes = mcs_load_relaxed(&d->memory_bytes);
    out->memory_regions = mcs_load_relaxed(&d->memory_regions);
    out->registrations_failed = mcs_load_relaxed(&d->registrations_failed);
    out->faults = mcs_load_relaxed(&d->faults);
}

/* ---- creation ------------------------------------------------------------------------ */

static int check_options(const struct mct_rdma_options *o, char *error, size_t error_size)
{
    int res = mct_rdma_select_check(o->devices, error, error_size);

    if (res == 0)
        res = mct_rdma_select_check(o->deny, error, error_size);
    if (res != 0)
        return res;
    if (o->chunk == 0 || o->chunk % MCT_RDMA_CHUNK_MIN != 0)
        snprintf(error, error_size, "chunk: %llu bytes is no multiple of %llu",
                 (unsigned long long)o->chunk, (unsigned long long)MCT_RDMA_CHUNK_MIN);
    else if (o->mtu != 0 && (o->mtu < 256 || o->mtu > 4096 || (o->mtu & (o->mtu - 1)) != 0))
        snprintf(error, error_size, "mtu: %u is none of 256, 512, 1024, 2048 and 4096", o->mtu);
    else if (o->timeout < 1 || o->timeout > 31)
        snprintf(error, error_size, "timeout: %u is not within 1..31", o->timeout);
    else if (o->retries > 7)
        snprintf(error, error_size, "retries: %u is not within 0..7", o->retries);
    else if (o->depth == 0 || o->cq_depth == 0)
        snprintf(error, error_size, "depth: %u, cq_depth: %u; both are at least 1", o->depth,
                 o->cq_depth);
    else if (o->traffic_class > 255 || o->service_level > 15)
        snprintf(error, error_size, "traffic_class: %u, at most 255; service_level: %u, at most 15",
                 o->traffic_class, o->service_level);
    else
        return 0;
    return -EINVAL;
}

static int add_port(struct mct_rdma *r, struct ibv_device *device, unsigned port)
{
    return add_device(r, ibv_get_device_name(device), port);
}

struct named {
    struct mct_rdma *rdma;
    int res;
};

static void add_named(void *context, const char *device, unsigned port)
{
    struct named *n = context;

    if (n->res == 0 &&
        mct_rdma_select_allows(n->rdma->options.devices, n->rdma->options.deny, device, port))
        n->res = add_device(n->rdma, device, port);
}

static int find_devices(struct mct_rdma *r)
{
    struct named named = {.rdma = r, .res = mct_rdma_find(r, add_port)};

    /* what is named has a place, even if it comes later */
    mct_rdma_select_names(r->options.devices, add_named, &named);
    return named.res;
}

static void say_unmatched(void *context, const char *text)
{
    const struct mct_rdma *r = context;

    if (r->options.log != NULL)
        r->options.log(MCT_RDMA_LOG_WARNING,
                       "[rdma] devices: '%s' matches no RDMA device of this host that is allowed; "
                       "`mcshm doctor rdma` lists them",
                       text);
}

static bool all_settled(struct mct_rdma *r)
{
    bool all = true;
    unsigned i;

    pthread_mutex_lock(&r->lock);
    for (i = 0; i < r->ndevices; i++)
        all = all && r->devices[i]->settled;
    pthread_mutex_unlock(&r->lock);
    return all;
}

/* Takes results until `done`, or the time is over. */
static bool run_until(struct mct_rdma *r, bool (*done)(struct mct_rdma *), uint64_t ms)
{
    struct pollfd fd = {.fd = r->fd, .events = POLLIN};
    uint64_t end = mct_ms() + ms, now;

    while (!done(r)) {
        now = mct_ms();
        if (now >= end)
            return false;
        if (poll(&fd, 1, (int)(end - now)) > 0)
            mct_rdma_run(r);
    }
    return true;
}

int mct_rdma_create(const struct mct_rdma_options *o, const struct mct_rdma_host *h,
                    struct mct_rdma **out, char *error, size_t error_size)
{
    struct mct_rdma *r = NULL;
    unsigned i;
    int res = check_options(o, error, error_size);

    *out = NULL;
    if (res != 0)
        return res;
    /* A device that is unplugged refuses all commands with EIO. With this libibverbs frees its own part all the same. */
    setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1);
    /*
     * ibv_fork_init() is not called: it would keep a tree of all registered pages and split their
     * mappings (MADV_DONTFORK). What is registered here is mapped MAP_SHARED, which a fork does not copy on write,
     * and the agent forks only before it comes here.
     */
    r = calloc(1, sizeof(*r));
    if (r == NULL) {
        snprintf(error, error_size, "out of memory");
        return -ENOMEM;
    }
    pthread_mutex_init(&r->lock, NULL);
    mct_cond_init(&r->find);
    r->options = *o;
    r->host = *h;
    r->quiet = true;
    r->devices_list = strdup(o->devices);
    r->deny_list = strdup(o->deny);
    r->sysfs = strdup(o->sysfs != NULL ? o->sysfs : "/sys");
    r->options.devices = r->devices_list;
    r->options.deny = r->deny_list;
    r->options.sysfs = r->sysfs;
    r->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->fd < 0 || r->devices_list == NULL || r->deny_list == NULL || r->sysfs == NULL)
        res = r->fd < 0 ? -errno : -ENOMEM;
    if (res == 0)
        res = find_devices(r);
    if (res == 0)
        res = mct_rdma_finder_start(r);
    if (res != 0) {
        snprintf(error, error_size, "%s while RDMA devices were looked for", strerror(-res));
        mct_rdma_destroy(r);
        return res;
    }
    mct_rdma_select_unmatched(r->options.devices, r->devices, r->ndevices, say_unmatched, r);
    if (!run_until(r, all_settled, OPEN_MS) && r->options.log != NULL)
        r->options.log(MCT_RDMA_LOG_WARNING,
                       "an RDMA device did not open within %u s; going on, it is used once it has",
                       OPEN_MS / 1000u);
    pthread_mutex_lock(&r->lock);
    for (i = 0; i < r->ndevices; i++)
        r->devices[i]->notes &= ~MCT_RDMA_NOTE_CHANGED; /* the caller looks at all of them now */
    pthread_mutex_unlock(&r->lock);
    r->keys_changed = false;
    r->quiet = false;
    *out = r;
    return 0;
}

/* ---- end ------------------------------------------------------------------------ */

static bool no_memories(struct mct_rdma *r)
{
    return r->memories == NULL;
}

void mct_rdma_destroy(struct mct_rdma *r)
{
    struct mct_rdma_memory *m;
    bool all = true;
    uint64_t end;
    unsigned i;

    if (r == NULL)
        return;
    r->quiet = true;
    for (m = r->memories; m != NULL; m = m->next) {
        m->wanted = false;
        m->creating = false;
        m->destroying = true;
        m->done = NULL;
        mct_rdma_memory_advance(r, m);
    }
    if (r->fd >= 0)
        all = run_until(r, no_memories, END_MS);
    end = mct_ms() + END_MS;
    pthread_mutex_lock(&r->lock);
    for (i = 0; i < r->ndevices; i++)
        device_stop(r->devices[i]);
    r->stop = true;
    pthread_cond_broadcast(&r->find);
    pthread_mutex_unlock(&r->lock);
    for (i = 0; i < r->ndevices; i++)
        all = device_join(r->devices[i], end) && all;
    if (r->finding)
        all = mct_thread_join(r->finder, end) && all;
    if (!all) {
        if (r->options.log != NULL)
            r->options.log(
                MCT_RDMA_LOG_ERROR,
                "an RDMA device did not answer within %u s at the end; the kernel closes it",
                END_MS / 1000u);
        /* its threads may come back */
        r->abandoned_next = abandoned;
        abandoned = r;
        return;
    }
    /* what the threads have sent last */
    if (r->fd >= 0)
        mct_rdma_run(r);
    for (i = 0; i < r->ndevices; i++)
        device_free(r->devices[i]);
    if (r->fd >= 0)
        close(r->fd);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->find);
    free(r->devices_list);
    free(r->deny_list);
    free(r->sysfs);
    free(r);
}
