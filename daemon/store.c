/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's object store: its start, its upkeep, its end. */
#include "store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "catalog.h"
#include "gpu.h"
#include "gpu_memory.h"
#include "hold.h"
#include "log.h"
#include "object.h"
#include "shm/failpoint.h"
#include "store_internal.h"

#define DISK_MAX (UINT64_C(15) << 40) /* bytes: its files count in units of 4 KiB and 32 bits */
#define BUSY_NS UINT64_C(20000000)    /* between two looks while something goes on, */
#define QUIET_NS UINT64_C(500000000)  /* and while nothing does */

/* ---- callbacks of the core: any thread ------------------------------------------------------ */

static void on_ready(void *context)
{
    struct mcd_store *st = context;

    /* relaxed: engines look again whenever it has changed, what they wait for is under the core's locks */
    mcs_fetch_add(&st->ready, 1u);
    for (unsigned i = 0; i < st->agent->nengines; i++)
        mcd_objects_ready(st->agent->engines[i]);
}

static void on_event(void *context, const struct mco_event *e)
{
    struct mcd_store *st = context;

    mco_events_add(st->events, e, NULL);
}

/* ---- birth ------------------------------------------------------------------------------------ */

/* What was kept has no owner any more. */
static void forget_kept(struct mcd_keeper *k, const char *why)
{
    if (k->table_fd >= 0) {
        mcd_warning("the objects of the agent before are dropped: %s", why);
        mcd_keeper_remove(k, MCD_KEEPER_TABLE);
        close(k->table_fd);
        k->table_fd = -1;
    }
    for (unsigned i = 0; i < k->nextents; i++) {
        if (k->extents[i].fd < 0)
            continue;
        mcd_keeper_remove(k, k->extents[i].name);
        close(k->extents[i].fd);
        k->extents[i].fd = -1;
    }
}

/* [store] disk_size = 0: nine tenths of what the file system has free, and of what its files take already. Others who have
 * filled it are no reason not to start: then little or nothing goes there. */
static uint64_t disk_room(const char *path)
{
    uint64_t bytes = 0;
    struct statvfs v;
    struct dirent *e;
    struct stat s;
    DIR *d;

    (void)mkdir(path, 0700); /* why it cannot be had is said when it is opened */
    d = opendir(path);
    while (d != NULL && (e = readdir(d)) != NULL)
        if (fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode))
            bytes += (uint64_t)s.st_blocks * 512;
    if (d != NULL)
        closedir(d);
    if (statvfs(path, &v) == 0)
        bytes += (uint64_t)v.f_bavail * v.f_frsize;
    bytes = bytes / 10 * 9;
    if (bytes < MCO_DISK_SIZE_MIN)
        bytes = MCO_DISK_SIZE_MIN;
    return bytes < DISK_MAX ? bytes : DISK_MAX;
}

static int open_disk(struct mcd_store *st, char *error, size_t error_size)
{
    const struct mcd_config *c = &st->agent->config;
    const struct mco_disk_options o = {
        .path = c->store_disk,
        .size = c->store_disk_size != 0 ? c->store_disk_size : disk_room(c->store_disk),
        .verify = st->verify != MCD_VERIFY_NEVER,
        .log = mcd_log_line,
    };

    return mco_disk_open(&o, &st->disk, error, error_size);
}

static void limit_tenants(struct mcd_store *st)
{
    const struct mcd_config *c = &st->agent->config;

    for (uint64_t i = 1; i <= c->ntenants; i++)
        mco_tenant_limit(st->objects, mcd_tenant_id(c->tenants[i].name), c->tenants[i].store);
    for (const struct mcd_tenant *t = st->agent->tenants.list; t != NULL; t = t->next)
        mco_tenant_limit(st->objects, t->id, t->limits.store);
}

static void tell_recovered(const struct mcd_store *st, bool before)
{
    const struct mco_recovered *r = &st->work->recovered;

    if (!before)
        return;
    mcd_info("objects of the agent before: %llu are there again, %llu MiB; dropped: %llu half "
             "written, %llu damaged, %llu extents lost",
             (unsigned long long)r->objects, (unsigned long long)(r->bytes >> 20),
             (unsigned long long)r->unfinished, (unsigned long long)r->torn,
             (unsigned long long)st->work->lost_extents);
}

/* With pages = require objects find hugepages or no space; that the pool alone finds its own was checked before. */
static void check_pages(const struct mcd_agent *a)
{
    struct mcd_config both = a->config;
    const struct mcd_pool all = {.config = &both};
    char text[400];

    both.pool_size += both.store_size;
    if (a->recovery.before == 0 && mcd_pool_check(&all, text, sizeof(text)) != 0)
        mcd_warning("pool and object store together: %s; until then objects may find no space",
                    text);
}

int mcd_store_create(struct mcd_agent *a, char *error, size_t error_size)
{
    struct mcd_store *st = NULL;
    struct mco_options o = {
        .size = a->config.store_size,
        .extent_size = a->config.store_extent_size,
        .objects = a->config.store_objects,
        .high = (unsigned)a->config.store_high,
        .low = (unsigned)a->config.store_low,
        .policy = a->config.store_policy,
        .lease_ns = a->config.store_lease_ms * 1000000u,
        .want = mcd_store_want,
        .idle = mcd_store_idle,
        .ready = on_ready,
        .event = on_event,
        .log = mcd_log_line,
    };
    bool before;
    int res = -ENOMEM;

    if (o.size == 0) {
        forget_kept(&a->keeper, "[store] size = 0");
        return 0;
    }
    if (a->recovery.given_up)
        forget_kept(&a->keeper, "starts over them have failed again and again");
    o.table_fd = a->keeper.table_fd;
    before = o.table_fd >= 0;
    st = calloc(1, sizeof(*st));
    if (st == NULL)
        goto error;
    st->agent = a;
    st->config = a->config;
    st->config.pool_size = o.size;
    st->config.extent_size = o.extent_size;
    mcd_pool_init(&st->pool, &st->config);
    st->pool.places = &a->pool;
    st->pool.release = a->pool.release;
    st->pool.release_context = a->pool.release_context;
    st->checksum = a->config.store_checksum == 0;
    st->verify = a->config.store_verify;
    st->work = calloc(1, sizeof(*st->work));
    if (st->work == NULL)
        goto error;
    res = mco_events_create(a->config.store_events, &st->events);
    if (res != 0)
        goto error;
    res = MCS_FAIL(store_create);
    if (res != 0)
        goto error;
    error[0] = '\0';
    if (a->config.store_disk[0] != '\0')
        res = open_disk(st, error, error_size);
    if (res != 0)
        goto error;
    if (st->disk != NULL) {
        o.tier = &mco_disk_ops;
        o.tier_context = st->disk;
    }
    o.context = st;
    a->keeper.table_fd = -1; /* the core's */
    res = mco_create(&o, &st->objects, error, error_size);
    if (res != 0)
        goto error;
    mcd_keeper_store(&a->keeper, MCD_KEEPER_TABLE, mco_table_fd(st->objects));
    MCS_FAILPOINT(store_table_kept);
    mcd_store_take_back(st);
    mco_recover(st->objects, &st->work->recovered);
    MCS_FAILPOINT(store_recovered);
    tell_recovered(st, before);
    if (st->disk != NULL) /* what is only there is found while others are served */
        mco_disk_start(st->disk, st->objects);
    st->work->guarded = before;
    limit_tenants(st);
    check_pages(a);
    a->store = st;
    return 0;

error:
    if (error[0] == '\0')
        snprintf(error, error_size, "cannot set up the object store: %s", strerror(-res));
    if (st != NULL) {
        if (st->disk != NULL)
            mco_disk_close(st->disk);
        if (st->objects != NULL)
            mco_destroy(st->objects);
        if (st->events != NULL)
            mco_events_destroy(st->events);
        free(st->work);
        free(st);
    }
    return res;
}

static void upkeep(struct mcd_alarm *t);

int mcd_store_begin(struct mcd_agent *a, char *error, size_t error_size)
{
    struct mcd_store *st = a->store;
    int res;

    if (st == NULL)
        return 0;
    st->pool.reap = a->pool.reap;
    st->pool.reap_context = a->pool.reap_context;
    /* Without the ledger nobody knows the sessions of the life before, so they are given the time of those that cannot be seen. */
    if (a->recovery.before == 0)
        st->work->unguard_at = mcd_now_ns() + a->config.recovery_s * UINT64_C(1000000000);
    res = MCS_FAIL(store_begin);
    if (res == 0)
        res = mcd_worker_create(a->event_fd, &st->work->lists);
    if (res == 0)
        res = mcd_catalog_create(a, &st->catalog, error, error_size);
    if (res != 0) {
        if (error[0] == '\0')
            snprintf(error, error_size, "cannot set up the object store: %s", strerror(-res));
        return res;
    }
    for (struct mcd_store_extent *x = st->work->extents; x != NULL; x = x->next)
        if (st->catalog != NULL)
            mcd_catalog_extent(st->catalog, x->memory, true);
    st->work->upkeep = (struct mcd_alarm){.fire = upkeep, .context = st};
    if (!mcd_keeper_keeps(&a->keeper))
        mcd_info("objects end with this agent: nobody keeps them for the next one (mcshmd "
                 "--supervise, or systemd)");
    mcd_alarm_set(a, &st->work->upkeep, mcd_now_ns());
    return 0;
}

/* ---- upkeep ----------------------------------------------------------------------------------- */

/* Is there still a session that an earlier agent had? It may read or write in place what it had then. */
static bool has_former(const struct mcd_store *st)
{
    for (const struct mcd_session *s = st->agent->sessions; s != NULL; s = s->next)
        if (s->limbo != NULL || s->restored)
            return true;
    return st->work->unguard_at != 0 && mcd_now_ns() < st->work->unguard_at;
}

static void unguard(struct mcd_store *st)
{
    if (!st->work->guarded || has_former(st))
        return;
    st->work->guarded = false;
    MCS_FAILPOINT(store_unguard);
    mco_unguard(st->objects);
}

static void upkeep(struct mcd_alarm *t)
{
    struct mcd_store *st = t->context;
    uint64_t now = mcd_now_ns();
    struct mco_stats s;
    bool more, busy;

    unguard(st);
    more = mco_upkeep(st->objects, now);
    mco_get_stats(st->objects, &s);
    busy = s.puts != st->work->puts || s.leaving != 0 || s.writing != 0 || s.waiting != 0;
    st->work->puts = s.puts;
    mcd_alarm_set(st->agent, t, more ? now : now + (busy ? BUSY_NS : QUIET_NS));
}

bool mcd_store_poll(struct mcd_agent *a)
{
    struct mcd_store *st = a->store;
    bool soon;

    if (st == NULL)
        return false;
    mcd_worker_reap(st->work->lists, a);
    soon = mcd_store_notes(st);
    if (st->catalog != NULL)
        mcd_catalog_poll(st->catalog);
    return soon;
}

void mcd_store_adopt(struct mcd_agent *a)
{
    struct mcd_store *st = a->store;

    if (st == NULL)
        return;
    mco_tune(st->objects, (unsigned)a->config.store_high, (unsigned)a->config.store_low,
             a->config.store_lease_ms * 1000000u);
    limit_tenants(st);
}

/* ---- sessions ----------------------------------------------------------------------------------- */

/* Its writer is gone: the directory frees the key. */
static void given_up(void *context, const struct mco_key *key, const struct mco_version *version)
{
    struct mcd_store *st = context;

    mcd_catalog_give_up(st->catalog, key, version);
}

int mcd_store_session_new(struct mcd_session *s)
{
    struct mcd_store *st = s->agent->store;
    int res;

    if (st == NULL || s->holds != NULL)
        return 0;
    mco_tenant_limit(st->objects, s->tenant, s->account->limits.store);
    res = mcd_holds_create(s->agent->config.store_holds, &s->holds);
    if (res == 0)
        mcd_holds_on_given_up(s->holds, given_up, st);
    return res;
}

void mcd_store_session_gone(struct mcd_session *s)
{
    struct mcd_store *st = s->agent->store;

    if (st == NULL)
        return;
    mcd_holds_destroy(s->holds, st->objects);
    s->holds = NULL;
    mcd_store_unmap_all(s);
}

/* ---- end ------------------------------------------------------------------------------------------ */

void mcd_store_stop(struct mcd_agent *a)
{
    struct mcd_store *st = a->store;

    if (st == NULL || st->work->stopped)
        return;
    st->work->stopped = true;
    if (st->catalog != NULL)
        mcd_catalog_stop(st->catalog);
    for (struct mcd_store_extent *x = st->work->extents; x != NULL; x = x->next) {
        if (x->memory->registered != NULL)
            mcd_registration_drop(x->memory->registered, NULL, NULL);
        if (a->sessions == NULL) /* else copies may be under way */
            mcd_gpu_unpin(x->memory, NULL, NULL);
    }
}

/* For good: no later agent has any use for it. */
static void unkeep(struct mcd_store *st)
{
    struct mcd_keeper *k = &st->agent->keeper;

    mcd_keeper_remove(k, MCD_KEEPER_TABLE);
    for (const struct mcd_store_extent *x = st->work->extents; x != NULL; x = x->next)
        if (x->kept)
            mcd_keeper_remove(k, x->name);
}

void mcd_store_end(struct mcd_agent *a)
{
    struct mcd_store *st = a->store;

    if (st == NULL)
        return;
    mcd_alarm_clear(a, &st->work->upkeep);
    if (st->work->lists != NULL)
        mcd_worker_destroy(st->work->lists, a);
    st->work->lists = NULL;
    if (st->disk != NULL) /* its thread wakes engines, which are about to go */
        mco_disk_stop(st->disk);
    if (st->catalog != NULL)
        mcd_catalog_destroy(st->catalog); /* which takes it out of the engines' sight, and st */
}

void mcd_store_destroy(struct mcd_agent *a)
{
    struct mcd_store *st = a->store;

    if (st == NULL)
        return;
    if (a->stopping && !a->keeping) /* and not after a start that has failed */
        unkeep(st);
    if (st->disk != NULL) /* it may write from, and read into, objects */
        mco_disk_close(st->disk);
    mco_destroy(st->objects);
    st->pool.reap = NULL; /* the workers are gone */
    mcd_store_drop_extents(st);
    mco_events_destroy(st->events);
    free(st->work->notes);
    free(st->work->waiting);
    if (mcd_gpu_busy(a)) /* it may still tell of extents */
        return;
    free(st->work);
    free(st);
    a->store = NULL;
}
