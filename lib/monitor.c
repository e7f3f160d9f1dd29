/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side of the stats file (shm/stats.h). It asks nobody and writes nothing. */
#include "internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/stats.h"

#define TRIES 16        /* copies of a row that changes hands while it is copied */
#define ROWS_MAX 65536u /* of a kind; no agent makes so many */
#define SKEW_NS UINT64_C(1000000000)

struct mcshm_monitor {
    const struct mcs_stats_header *map;
    uint64_t size;
    struct mcs_stats_header h; /* what does not change, checked */
    char path[256];
    dev_t dev;
    ino_t ino;
    mcshm_monitor_view view;
    mcshm_monitor_engine *engines;
    mcshm_monitor_client *clients;
};

static uint64_t word(const uint64_t *p)
{
    return mcs_load_relaxed(p); /* partner: its one writer in the agent */
}

/* Rows of at least our size, inside the file. */
static bool rows_fit(uint64_t offset, uint32_t rows, uint32_t size, size_t ours, uint64_t total)
{
    return offset % 8 == 0 && size % 8 == 0 && size >= ours && offset <= total &&
           rows <= ROWS_MAX && (uint64_t)rows * size <= total - offset;
}

static bool sound(const struct mcs_stats_header *h, uint64_t size)
{
    return h->header_size >= sizeof(*h) && h->total_size <= size && h->tick_hz != 0 &&
           rows_fit(h->engines_offset, h->engine_rows, h->engine_size,
                    sizeof(struct mcs_stats_engine), size) &&
           rows_fit(h->sessions_offset, h->session_rows, h->session_size,
                    sizeof(struct mcs_stats_session), size) &&
           rows_fit(h->queues_offset, h->queue_rows, h->queue_size, sizeof(struct mcs_stats_queue),
                    size);
}

static mcshm_status map_file(struct mcshm_monitor *m, int fd)
{
    struct stat st;
    void *map;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(m->h))
        return mcl_fail(MCSHM_BAD_SHM, "%s is no stats file of an agent: %s", m->path,
                        "remove it, the agent's next start makes it anew");
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return mcl_fail(MCSHM_NO_MEMORY, "cannot map %s: %s", m->path, strerror(errno));
    m->map = map;
    m->size = (uint64_t)st.st_size;
    m->dev = st.st_dev;
    m->ino = st.st_ino;
    if (mcs_load_acquire(&m->map->magic) != MCS_STATS_MAGIC) /* partner: mcd_stats_create() */
        return mcl_fail(MCSHM_BAD_SHM, "%s is no stats file of an agent", m->path);
    m->h = *m->map;
    if (m->h.version != MCS_STATS_VERSION)
        return mcl_fail(MCSHM_VERSION_MISMATCH,
                        "%s has version %u, this library reads %u: install the tools that came "
                        "with the agent",
                        m->path, m->h.version, MCS_STATS_VERSION);
    if (!sound(&m->h, m->size))
        return mcl_fail(MCSHM_BAD_SHM, "%s contradicts itself", m->path);
    m->engines = calloc(m->h.engine_rows + 1, sizeof(*m->engines));
    m->clients = calloc(m->h.session_rows + 1, sizeof(*m->clients));
    if (m->engines == NULL || m->clients == NULL)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for the rows of %s", m->path);
    return MCSHM_OK;
}

MCSHM_API mcshm_status mcshm_monitor_open(const char *socket_path, mcshm_monitor **out)
{
    struct mcshm_monitor *m;
    mcshm_status status;
    int fd;

    if (out == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_monitor_open: out is NULL");
    *out = NULL;
    if (socket_path == NULL)
        socket_path = MCSHM_DEFAULT_SOCKET;
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory");
    if (snprintf(m->path, sizeof(m->path), "%s" MCS_STATS_SUFFIX, socket_path) >=
        (int)sizeof(m->path)) {
        free(m);
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "the socket's path is longer than 107 bytes");
    }
    /* NONBLOCK: a FIFO in its place must not keep us waiting */
    fd = open(m->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0) {
        status = map_file(m, fd);
        close(fd);
    } else if (errno == ENOENT || errno == ENOTDIR) {
        status = mcl_fail(MCSHM_AGENT_DOWN,
                          "there is no %s: no agent serves this socket, or it could not make the "
                          "file (see its log)",
                          m->path);
    } else {
        status = mcl_fail(errno == EACCES ? MCSHM_PERMISSION : MCSHM_INTERNAL, "cannot open %s: %s",
                          m->path, strerror(errno));
    }
    if (status != MCSHM_OK)
        mcshm_monitor_close(m);
    else
        *out = m;
    return status;
}

MCSHM_API void mcshm_monitor_close(mcshm_monitor *m)
{
    if (m == NULL)
        return;
    if (m->map != NULL)
        munmap((void *)m->map, m->size);
    free(m->engines);
    free(m->clients);
    free(m);
}

MCSHM_API bool mcshm_monitor_current(const mcshm_monitor *m)
{
    struct stat st;

    return m != NULL && stat(m->path, &st) == 0 && st.st_dev == m->dev && st.st_ino == m->ino;
}

static uint64_t since(uint64_t then, uint64_t now)
{
    return now > then ? now - then : 0;
}

static uint64_t ticks_to_ns(const struct mcshm_monitor *m, uint64_t ticks)
{
    return (uint64_t)((unsigned __int128)ticks * 1000000000u / m->h.tick_hz);
}

static void read_agent(struct mcshm_monitor *m)
{
    const struct mcs_stats_header *h = m->map;
    mcshm_monitor_agent *a = &m->view.agent;
    uint64_t beat = word(&h->beat_ns), now = (uint64_t)mcl_now_ns(); /* in this order */

    *a = (mcshm_monitor_agent){
        .incarnation = m->h.agent_incarnation,
        .pid = m->h.pid,
        .uptime_ns = since(m->h.started_ns, now),
        /* the clock begins anew when the machine starts: what lies on a disk may be from before */
        .silent_ns = beat > now + SKEW_NS ? now : since(beat, now),
        .copied = (m->h.flags & MCS_STATS_COPIED) != 0,
        .pool_size = word(&h->pool_size),
        .pool_used = word(&h->pool_used),
        .pool_page_size = word(&h->pool_page_size),
        .extents = mcs_load_relaxed(&h->extents),
        .sessions = mcs_load_relaxed(&h->sessions),
        .sessions_left_out = mcs_load_relaxed(&h->sessions_left_out),
        .queues_left_out = mcs_load_relaxed(&h->queues_left_out),
    };
    a->sampled_ns = a->copied ? beat : now;
    memcpy(a->version, m->h.agent_version, sizeof(a->version));
    a->version[sizeof(a->version) - 1] = '\0';
}

static void read_engines(struct mcshm_monitor *m)
{
    /* the moment that the rows are of */
    uint64_t ticks = m->view.agent.copied ? word(&m->map->beat_ticks) : mcs_ticks();

    for (uint32_t i = 0; i < m->h.engine_rows; i++) {
        const struct mcs_stats_engine *r =
            (const void *)((const char *)m->map + m->h.engines_offset +
                           (uint64_t)i * m->h.engine_size);
        mcshm_monitor_engine *e = &m->engines[i];
        uint64_t idle = word(&r->idle);

        *e = (mcshm_monitor_engine){
            .id = r->id,
            .core = r->core,
            .never_sleeps = r->never_sleeps != 0,
            .asleep = mcs_load_relaxed(&r->asleep) != 0,
            .silent_ns = ticks_to_ns(m, since(word(&r->beat), ticks)),
            .turns = word(&r->turns),
            .sleeps = word(&r->sleeps),
            .tasks = word(&r->tasks),
            .bytes = word(&r->bytes),
            .failed = word(&r->failed),
            .hot = mcs_load_relaxed(&r->hot),
            .cold = mcs_load_relaxed(&r->cold),
        };
        if (e->asleep) { /* what it sleeps now is not in its sum yet */
            e->silent_ns = 0;
            idle += since(word(&r->asleep_since), ticks);
        }
        e->idle_ns = ticks_to_ns(m, idle);
    }
    m->view.engines = m->engines;
    m->view.nengines = m->h.engine_rows;
}

static bool copy_row(void *to, const void *row, size_t size)
{
    for (int i = 0; i < TRIES; i++)
        if (mcs_stats_copy(to, row, size))
            return true;
    return false; /* free, or busier than it can be */
}

static void add_sums(mcshm_monitor_client *c, const struct mcs_stats_sums *s)
{
    c->tasks += s->tasks;
    c->failed += s->failed;
    c->bytes += s->bytes;
    c->queue_ns += s->queue_ns;
    c->move_ns += s->move_ns;
    c->notify_ns += s->notify_ns;
    c->notified += s->notified;
    for (unsigned i = 0; i < MCS_STATS_BUCKETS; i++)
        c->latency[i] += s->latency[i];
}

static int by_session(const void *a, const void *b)
{
    uint32_t x = ((const mcshm_monitor_client *)a)->session;
    uint32_t y = ((const mcshm_monitor_client *)b)->session;

    return x < y ? -1 : x > y;
}

static void read_clients(struct mcshm_monitor *m)
{
    size_t n = 0;

    static_assert(MCSHM_MONITOR_BUCKETS == MCS_STATS_BUCKETS, "one histogram");
    static_assert(sizeof(m->clients->name) == MCS_NAME_MAX, "names fit");
    for (uint32_t i = 0; i < m->h.session_rows; i++) {
        mcshm_monitor_client *c = &m->clients[n];
        struct mcs_stats_session r;

        if (!copy_row(&r,
                      (const char *)m->map + m->h.sessions_offset + (uint64_t)i * m->h.session_size,
                      sizeof(r)))
            continue;
        *c = (mcshm_monitor_client){
            .session = r.id,
            .pid = r.pid,
            .uid = r.uid,
            .tenant = r.tenant,
            .incarnation = r.incarnation,
            .queues = r.queues,
            .extents = r.extents,
            .memory = r.memory,
            .caller_tasks = r.caller_tasks,
            .caller_bytes = r.caller_bytes,
        };
        memcpy(c->name, r.name, sizeof(c->name));
        c->name[sizeof(c->name) - 1] = '\0';
        memcpy(c->tenant_name, r.tenant_name, sizeof(c->tenant_name));
        c->tenant_name[sizeof(c->tenant_name) - 1] = '\0';
        add_sums(c, &r.closed);
        n++;
    }
    qsort(m->clients, n, sizeof(*m->clients), by_session);
    for (uint32_t i = 0; i < m->h.queue_rows; i++) {
        mcshm_monitor_client key, *c;
        struct mcs_stats_queue r;

        if (!copy_row(&r, (const char *)m->map + m->h.queues_offset + (uint64_t)i * m->h.queue_size,
                      sizeof(r)))
            continue;
        key.session = r.session;
        c = bsearch(&key, m->clients, n, sizeof(*m->clients), by_session);
        if (c == NULL) /* its session came or went meanwhile */
            continue;
        add_sums(c, &r.sums);
        c->depth += r.depth;
    }
    m->view.clients = m->clients;
    m->view.nclients = n;
}

MCSHM_API mcshm_status mcshm_monitor_read(mcshm_monitor *m, const mcshm_monitor_view **out)
{
    if (m == NULL || out == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_monitor_read: an argument is NULL");
    read_agent(m);
    read_engines(m);
    read_clients(m);
    *out = &m->view;
    return MCSHM_OK;
}
