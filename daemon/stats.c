/* SPDX-License-Identifier: Apache-2.0 */
#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "fault.h"
#include "log.h"
#include "version.h"

/* ---- the file -------------------------------------------------------------------- */

static uint64_t lay_out(struct mcs_stats_header *h, const struct mcd_agent *a)
{
    uint64_t rows = a->config.sessions < 64 ? 64 : a->config.sessions;

    *h = (struct mcs_stats_header){
        .version = MCS_STATS_VERSION,
        .header_size = sizeof(*h),
        .agent_incarnation = a->incarnation,
        .pid = (uint32_t)getpid(),
        .started_ns = a->started_ns,
        .started_s = (uint64_t)time(NULL),
        .tick_hz = a->tick_hz,
        .engine_rows = a->nengines,
        .session_rows = (uint32_t)(rows < MCS_STATS_SESSIONS_MAX ? rows : MCS_STATS_SESSIONS_MAX),
        .engine_size = sizeof(struct mcs_stats_engine),
        .session_size = sizeof(struct mcs_stats_session),
        .queue_size = sizeof(struct mcs_stats_queue),
        .engines_offset = sizeof(*h),
    };
    h->queue_rows = h->session_rows * 2;
    h->sessions_offset = h->engines_offset + (uint64_t)h->engine_rows * h->engine_size;
    h->queues_offset = h->sessions_offset + (uint64_t)h->session_rows * h->session_size;
    h->total_size = h->queues_offset + (uint64_t)h->queue_rows * h->queue_size;
    h->total_size = (h->total_size + 4095) & ~UINT64_C(4095);
    snprintf(h->agent_version, sizeof(h->agent_version), "%s", MCD_VERSION);
    return h->total_size;
}

/* Makes the new file beside the old one; the old one's readers keep what they have. */
static int make_file(struct mcd_agent *a, uint64_t size, void **out, bool *tmpfs)
{
    char fresh[sizeof(a->stats.path) + 8];
    struct statfs fs;
    void *mem = MAP_FAILED;
    int fd, res;

    snprintf(fresh, sizeof(fresh), "%s.new", a->stats.path);
    unlink(fresh);
    fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    /* all of it now: a full file system is an error here, not a fault in an engine later */
    res = -posix_fallocate(fd, 0, (off_t)size);
    if (res == 0 && fchmod(fd, (mode_t)a->config.socket_mode & 0444) != 0)
        res = -errno;
    if (res == 0) {
        mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (mem == MAP_FAILED)
            res = -errno;
    }
    *tmpfs = fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
    if (res == 0 && rename(fresh, a->stats.path) != 0)
        res = -errno;
    close(fd);
    if (res != 0) {
        unlink(fresh);
        if (mem != MAP_FAILED)
            munmap(mem, size);
        return res;
    }
    *out = mem;
    return 0;
}

void mcd_stats_create(struct mcd_agent *a)
{
    struct mcd_stats *s = &a->stats;
    struct mcs_stats_header h;
    uint64_t size = lay_out(&h, a);
    void *mem = NULL;
    bool tmpfs = true;
    int res;

    s->guard = -1;
    snprintf(s->path, sizeof(s->path), "%s" MCS_STATS_SUFFIX, a->config.socket);
    res = make_file(a, size, &mem, &tmpfs);
    if (res != 0) {
        mcd_warning("cannot make %s: %s; going on without counters for `mcshm top`", s->path,
                    strerror(-res));
        unlink(s->path); /* an earlier agent's would be taken for this one's */
    } else {
        s->file = true;
        s->guard = mcd_fault_add(mem, size); /* who may write the folder could cut it short */
    }
    /* On a disk the kernel cleans pages under the engines, and their next store waits for the file
     * system: then the rows are private, and the control thread copies. */
    if (res == 0 && tmpfs) {
        s->header = mem;
        s->mapped = true;
    } else {
        s->copy = mem;
        s->header = aligned_alloc(4096, size);
        if (s->header == NULL)
            return;
        memset(s->header, 0, size);
        h.flags |= MCS_STATS_COPIED;
    }
    s->size = size;
    *s->header = h;
    s->engines = (void *)((char *)s->header + h.engines_offset);
    s->sessions = (void *)((char *)s->header + h.sessions_offset);
    s->queues = (void *)((char *)s->header + h.queues_offset);
    for (unsigned i = 0; i < a->nengines; i++) {
        s->engines[i].beat = mcs_ticks();
        mcd_engine_show(a->engines[i], &s->engines[i]);
    }
    mcd_stats_beat(a);
    mcs_store_release(&s->header->magic, MCS_STATS_MAGIC); /* partner: mcshm_monitor_open() */
    mcd_stats_refresh(a);
}

void mcd_stats_remove(struct mcd_agent *a)
{
    if (a->stats.file)
        unlink(a->stats.path);
    a->stats.file = false;
}

static void copy_range(struct mcd_stats *s, uint64_t offset, uint64_t size)
{
    const uint64_t *from = (const uint64_t *)((const char *)s->header + offset);
    uint64_t *to = (uint64_t *)((char *)s->copy + offset);

    for (uint64_t i = 0; i < size / sizeof(*from); i++) {
        uint64_t v = mcs_load_relaxed(&from[i]); /* partners: the writers' stores */

        if (mcs_load_relaxed(&to[i]) != v)
            mcs_store_relaxed(&to[i], v);
    }
}

/* Rows the way their readers want them: one that has changed hands is odd in the file, too, while it is copied. */
static void copy_rows(struct mcd_stats *s, uint64_t offset, uint32_t rows, uint64_t size)
{
    for (uint32_t i = 0; i < rows; i++, offset += size) {
        const uint32_t *from = (const uint32_t *)((const char *)s->header + offset);
        uint32_t *to = (uint32_t *)((char *)s->copy + offset);
        uint32_t generation = mcs_load_relaxed(&from[0]); /* this thread has stored it */
        bool changed = mcs_load_relaxed(&to[0]) != generation;

        if (changed)
            mcs_stats_fill_begin(&to[0]);
        if (generation != 0) {
            mcs_store_relaxed(&to[1], from[1]); /* whose it is; partner: mcs_stats_copy() */
            copy_range(s, offset + sizeof(uint64_t), size - sizeof(uint64_t));
        }
        if (changed)
            mcs_stats_fill_end(&to[0], generation);
    }
}

/* The magic comes last when it is new: nobody reads half a file. */
static void copy_out(struct mcd_stats *s)
{
    const struct mcs_stats_header *h = s->header;

    copy_range(s, sizeof(h->magic), h->sessions_offset - sizeof(h->magic));
    copy_rows(s, h->sessions_offset, s->top_session, h->session_size);
    copy_rows(s, h->queues_offset, s->top_queue, h->queue_size);
    mcs_store_release((uint64_t *)s->copy, h->magic); /* partner: mcshm_monitor_open() */
}

/* ---- the control thread's words -------------------------------------------------- */

void mcd_stats_beat(struct mcd_agent *a)
{
    struct mcs_stats_header *h = a->stats.header;

    if (h == NULL)
        return;
    mcs_store_relaxed(&h->beat_ns, mcd_now_ns());
    mcs_store_relaxed(&h->beat_ticks, mcs_ticks());
    mcs_count(&h->beats, 1);
}

static uint32_t fresh_generation(struct mcd_stats *s)
{
    s->generation += 2;
    if (s->generation == 0)
        s->generation = 2;
    return s->generation;
}

static void give_session(struct mcd_session *s)
{
    struct mcd_stats *stats = &s->agent->stats;

    for (uint32_t at = stats->free_session; at < stats->header->session_rows; at++) {
        struct mcs_stats_session *row = &stats->sessions[at];

        if (row->generation != 0)
            continue;
        mcs_stats_fill_begin(&row->generation);
        memset((char *)row + sizeof(row->generation), 0, sizeof(*row) - sizeof(row->generation));
        row->id = s->id;
        row->incarnation = s->incarnation;
        row->tenant = s->tenant;
        if (s->account != NULL && s->account->named)
            memcpy(row->tenant_name, s->account->name, sizeof(row->tenant_name));
        row->pid = (uint32_t)s->pid;
        row->uid = s->uid;
        row->since_ns = mcd_now_ns();
        snprintf(row->name, sizeof(row->name), "%s", s->name);
        mcs_stats_fill_end(&row->generation, fresh_generation(stats));
        s->stats = row;
        stats->free_session = at + 1;
        if (at >= stats->top_session)
            stats->top_session = at + 1;
        return;
    }
}

static void refresh_session(struct mcd_session *s)
{
    struct mcs_stats_session *row = s->stats;
    struct mcd_reported sum = s->reported;

    for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next)
        mcd_queue_reported(q, &sum);
    mcs_store_relaxed(&row->queues, s->nqueues);
    mcs_store_relaxed(&row->extents, s->nextents);
    mcs_store_relaxed(&row->memory, s->memory);
    mcs_store_relaxed(&row->caller_tasks, sum.caller_tasks);
    mcs_store_relaxed(&row->caller_bytes, sum.caller_bytes);
}

void mcd_stats_refresh(struct mcd_agent *a)
{
    struct mcd_stats *stats = &a->stats;
    struct mcs_stats_header *h = stats->header;
    uint32_t without = 0, queues = 0;

    if (h == NULL)
        return;
    for (struct mcd_session *s = a->sessions; s != NULL; s = s->next) {
        if (s->stats == NULL && s->greeted && !s->ending)
            give_session(s);
        if (s->stats != NULL)
            refresh_session(s);
        else
            without++;
        for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next)
            queues += q->stats == &q->own_stats;
    }
    mcs_store_relaxed(&h->sessions, a->nsessions);
    mcs_store_relaxed(&h->sessions_left_out, without);
    mcs_store_relaxed(&h->queues_left_out, queues);
    mcs_store_relaxed(&h->extents, (uint32_t)a->pool.count);
    mcs_store_relaxed(&h->pool_size, a->config.pool_size);
    mcs_store_relaxed(&h->pool_used, a->pool.used);
    mcs_store_relaxed(&h->pool_page_size, a->pool.page_size);
    if (stats->copy != NULL)
        copy_out(stats);
}

void mcd_stats_forget(struct mcd_session *s)
{
    struct mcd_stats *stats = &s->agent->stats;
    uint32_t at;

    if (s->stats == NULL)
        return;
    at = (uint32_t)(s->stats - stats->sessions);
    if (at < stats->free_session)
        stats->free_session = at;
    mcs_store_release(&s->stats->generation, 0u); /* partner: mcs_stats_copy() */
    s->stats = NULL;
}

/* ---- queues ---------------------------------------------------------------------- */

void mcd_stats_queue(struct mcd_session *s, struct mcd_queue *q)
{
    struct mcd_stats *stats = &s->agent->stats;

    if (stats->header == NULL)
        return;
    if (s->stats == NULL)
        give_session(s);
    for (uint32_t at = stats->free_queue; s->stats != NULL && at < stats->header->queue_rows;
         at++) {
        struct mcs_stats_queue *row = &stats->queues[at];

        if (row->generation != 0)
            continue;
        mcs_stats_fill_begin(&row->generation);
        memset((char *)row + sizeof(row->generation), 0, sizeof(*row) - sizeof(row->generation));
        row->session = s->id;
        row->queue = q->id;
        row->engine = q->engine->o.id;
        mcs_stats_fill_end(&row->generation, fresh_generation(stats));
        q->stats = row;
        stats->free_queue = at + 1;
        if (at >= stats->top_queue)
            stats->top_queue = at + 1;
        return;
    }
}

void mcd_stats_queue_gone(struct mcd_session *s, struct mcd_queue *q)
{
    struct mcd_stats *stats = &s->agent->stats;
    uint32_t at;

    if (q->shm.doorbell != NULL)
        mcd_queue_reported(q, &s->reported);
    if (q->stats == NULL || q->stats == &q->own_stats)
        return;
    if (s->stats != NULL) {
        const uint64_t *from = (const uint64_t *)&q->stats->sums;
        uint64_t *to = (uint64_t *)&s->stats->closed;

        for (size_t i = 0; i < sizeof(q->stats->sums) / sizeof(*from); i++)
            mcs_count(&to[i], mcs_load_relaxed(&from[i]));
    }
    at = (uint32_t)(q->stats - stats->queues);
    if (at < stats->free_queue)
        stats->free_queue = at;
    mcs_store_release(&q->stats->generation, 0u); /* partner: mcs_stats_copy() */
    q->stats = &q->own_stats;
}
