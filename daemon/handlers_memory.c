/* SPDX-License-Identifier: Apache-2.0 */
/* Control requests about memory: allocations, registrations, granted mappings. */
#include <errno.h>
#include <fcntl.h>
#include <numa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_memory.h"
#include "handlers.h"
#include "log.h"
#include "shm/failpoint.h"

#define ALIGN_MAX (UINT64_C(1) << 30)
#define GRANTS_MAX 4096u

/* ---- memory ---------------------------------------------------------------------- */

void mcd_reply_extent(struct mcd_session *s, struct mcd_extent *e, uint64_t offset, bool is_new)
{
    struct mcs_msg m;

    m.b.extent_reply = (struct mcs_msg_extent_reply){
        .extent = e->handle,
        .is_new = is_new,
        .offset = offset,
        .extent_size = e->size,
        .address = e->address,
        .page_size = e->kind.page_size,
    };
    m.h.status = MCS_OK;
    mcd_session_reply(s, &m, sizeof(m.b.extent_reply), &e->fd, is_new ? 1 : 0);
}

void mcd_session_enter_extent(struct mcd_session *s, struct mcd_extent *e)
{
    e->owner = s;
    e->tenant = s->tenant;
    s->nextents++;
    /* partner: find_extent() in task.c */
    mcs_store_release(&s->extents[MCD_HANDLE_INDEX(e->handle)], e);
}

int mcd_session_add_extent(struct mcd_session *s, struct mcd_extent *e)
{
    uint32_t handle = mcd_session_handle_new(s, (void *const *)s->extents);

    if (handle == 0 || MCS_FAIL(extent_enter) != 0)
        return -ENOSPC;
    e->handle = handle;
    if (mcd_extent_record(&s->agent->pool, e, s->incarnation) != 0)
        return -ENOMEM;
    mcd_session_enter_extent(s, e);
    return 0;
}

static void leave_extent(struct mcd_session *s, struct mcd_extent *e)
{
    mcs_store_release(&s->extents[MCD_HANDLE_INDEX(e->handle)], NULL);
    e->owner = NULL; /* mappings of others may hold the extent longer than the session lives */
    s->nextents--;
    mcd_session_hold(s, -(int64_t)e->size);
}

bool mcd_may_hold(struct mcd_session *s, uint64_t bytes, uint64_t *room)
{
    const struct mcd_tenant *t = s->account;

    if (room != NULL)
        *room = t->limits.memory == 0          ? UINT64_MAX
                : t->memory < t->limits.memory ? t->limits.memory - t->memory
                                               : 0;
    if (mcd_tenant_allows(s->account, MCD_LIMIT_MEMORY, t->memory, bytes))
        return true;
    mcd_session_refuse_limit(s, MCD_LIMIT_MEMORY, t->memory, bytes);
    return false;
}

static void refuse_memory(struct mcd_session *s, int res, uint64_t size)
{
    const struct mcd_pool *p = &s->agent->pool;

    if (res == -ENOSPC)
        mcd_session_refuse(s, MCS_LIMIT, "a session has at most %u extents", MCD_TABLE_SIZE);
    else if (p->config->pages == MCD_PAGES_REQUIRE && size <= mcd_pool_left(p))
        mcd_session_refuse(s, MCS_NO_HUGEPAGES,
                           "%llu bytes wanted, the host has too few free hugepages of %llu KiB "
                           "([pool] pages = require): reserve more",
                           (unsigned long long)size,
                           (unsigned long long)(p->config->page_size >> 10));
    else
        mcd_session_refuse(s, MCS_NO_MEMORY,
                           "%llu bytes wanted, %llu of the pool's %llu are in use: free some or "
                           "raise [pool] size (%s)",
                           (unsigned long long)size, (unsigned long long)p->used,
                           (unsigned long long)p->config->pool_size, strerror(-res));
}

void mcd_count_alloc(struct mcd_session *s)
{
    struct mcd_ledger *l = s->agent->recovery.ledger;

    s->nallocs++;
    if (l != NULL && mcd_ledger_head(l)->most_allocs < s->nallocs)
        mcd_ledger_head(l)->most_allocs = s->nallocs;
}

void mcd_give_back(struct mcd_session *s, struct mcd_extent *e)
{
    mcd_session_hold(s, -(int64_t)e->size);
    mcd_extent_put(&s->agent->pool, e);
}

void mcd_alloc_enter(struct mcd_session *s,
                     void (*refuse)(struct mcd_session *s, int res, uint64_t size))
{
    struct mcd_extent *e = s->op.extent;
    uint64_t offset = 0;
    int res;

    if (mcd_op_refused(s)) {
        mcd_give_back(s, e);
        return;
    }
    res = mcd_alloc_take(e->alloc, s->op.length, s->op.offset, &offset);
    if (res == 0)
        res = mcd_session_add_extent(s, e);
    if (res != 0) {
        mcd_give_back(s, e);
        refuse(s, res, s->op.length);
        return;
    }
    mcd_count_alloc(s);
    mcd_reply_extent(s, e, offset, true);
}

static void extent_registered(struct mcd_session *s)
{
    mcd_alloc_enter(s, refuse_memory);
}

static void pin_extent(struct mcd_session *s)
{
    mcd_op_pin(s, s->op.extent, extent_registered);
}

static void extent_made(struct mcd_session *s)
{
    uint64_t size = s->op.making.size;
    int res = mcd_pool_finish(&s->agent->pool, &s->op.making, &s->op.extent);

    if (res != 0) {
        mcd_session_hold(s, -(int64_t)size);
        refuse_memory(s, res, s->op.length);
        return;
    }
    mcd_op_register_extent(s, s->op.extent);
    mcd_op_registered(s, pin_extent);
}

/* "", "cpu", "cpu:N" or "*", with N a NUMA node that this process may have memory of. */
static int parse_location(const char *text, int *node)
{
    char *end;
    long n;

    *node = -1;
    if (strnlen(text, MCS_LOCATION_MAX) == MCS_LOCATION_MAX)
        return -EINVAL;
    if (text[0] == '\0' || strcmp(text, "cpu") == 0 || strcmp(text, "*") == 0)
        return 0;
    if (strncmp(text, "cpu:", 4) != 0 || text[4] < '0' || text[4] > '9')
        return -EINVAL;
    n = strtol(text + 4, &end, 10);
    if (*end != '\0')
        return -EINVAL;
    if (n > numa_max_possible_node() || numa_available() < 0 ||
        !numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned)n))
        return -ENODEV;
    *node = (int)n;
    return 0;
}

void mcd_on_alloc(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_alloc r = m->b.alloc;
    uint64_t align = r.align != 0 ? r.align : MCS_LINE;
    uint64_t offset, want, room, page;
    int node, res;

    if (r.size == 0 || (align & (align - 1)) != 0 || align > ALIGN_MAX) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT,
                           "%llu bytes aligned to %llu: want at least 1, aligned to a power of two "
                           "up to 1 GiB",
                           (unsigned long long)r.size, (unsigned long long)r.align);
        return;
    }
    if (align < MCS_LINE)
        align = MCS_LINE;
    res = parse_location(r.location, &node);
    if (res != 0) {
        mcd_session_refuse(s, MCS_NOT_SUPPORTED, "location '%.*s': %s", (int)sizeof(r.location) - 1,
                           r.location,
                           res == -ENODEV ? "the agent may have no memory of that NUMA node"
                                          : "this agent has cpu and cpu:N (NUMA node)");
        return;
    }
    if (s->nallocs >= s->agent->config.max_allocs) {
        mcd_session_refuse(s, MCS_LIMIT,
                           "%u allocations of this session are live, [session] max_allocs is %llu: "
                           "free some, or allocate more at once and divide it up",
                           s->nallocs, (unsigned long long)s->agent->config.max_allocs);
        return;
    }
    for (uint32_t i = 0; i < MCD_TABLE_SIZE && s->nextents != 0; i++) {
        struct mcd_extent *e = s->extents[i];

        if (e == NULL || e->alloc == NULL || e->partial || e->gpu != NULL ||
            (node >= 0 && e->kind.node != node))
            continue;
        /* the extent begins at a hugepage's border: larger alignment is the address's matter */
        if ((e->address & (align - 1)) == 0 &&
            mcd_alloc_take(e->alloc, r.size, align, &offset) == 0) {
            mcd_count_alloc(s);
            mcd_reply_extent(s, e, offset, false);
            return;
        }
    }
    s->op.length = r.size;
    s->op.offset = align;
    want = r.size > UINT64_MAX - MCS_LINE ? r.size
                                          : (r.size + MCS_LINE - 1) & ~(uint64_t)(MCS_LINE - 1);
    /* Small extents where the tenant has no room for a whole one. Its memory is the session's from now on: what
     * others of the tenant ask for in the meantime counts beside it. */
    page = mcd_pool_page(&s->agent->pool);
    if (!mcd_may_hold(s, want > UINT64_MAX - page ? want : (want + page - 1) & ~(page - 1), &room))
        return;
    res = MCS_FAIL(extent_plan);
    if (res == 0)
        res = mcd_pool_plan(&s->agent->pool, want, node, room, s->came, &s->op.making);
    if (res != 0) {
        refuse_memory(s, res, r.size);
        return;
    }
    mcd_session_hold(s, (int64_t)s->op.making.size);
    mcd_make(s, extent_made);
}

static void memfd_registered(struct mcd_session *s)
{
    struct mcd_extent *e = s->op.extent;
    int res;

    if (mcd_op_refused(s)) {
        mcd_give_back(s, e);
        return;
    }
    res = mcd_session_add_extent(s, e);
    if (res != 0) {
        mcd_give_back(s, e);
        refuse_memory(s, res, s->op.length);
        return;
    }
    mcd_reply_extent(s, e, 0, false);
}

static void pin_memfd(struct mcd_session *s)
{
    mcd_op_pin(s, s->op.extent, memfd_registered);
}

void mcd_on_register(struct mcd_session *s, struct mcs_msg *m, int *fds, unsigned *nfds)
{
    struct mcd_extent *e;
    uint64_t size = m->b.reg.size;
    int res;

    if (*nfds != 1 || size == 0) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT,
                           "%u descriptors, %llu bytes: want one memfd and at least 1 byte", *nfds,
                           (unsigned long long)size);
        return;
    }
    if (!mcd_may_hold(s, size, NULL))
        return;
    res = mcd_extent_adopt(&s->agent->pool, fds[0], size, s->came, &e);
    if (res == -ENOMEM) {
        refuse_memory(s, res, size);
        return;
    }
    if (res != 0) {
        mcd_session_refuse(s, MCS_BAD_SHM,
                           "%s: want a memfd open for reading and writing, sealed with "
                           "F_SEAL_SHRINK, of at least %llu bytes in whole pages",
                           res == -EPERM    ? "not sealed against shrinking"
                           : res == -ERANGE ? "smaller than announced"
                           : res == -EBADF  ? "not such a memfd"
                                            : strerror(-res),
                           (unsigned long long)size);
        return;
    }
    *nfds = 0; /* the extent's now */
    mcd_session_hold(s, (int64_t)e->size);
    s->op.extent = e;
    s->op.length = size;
    mcd_op_register_extent(s, e);
    mcd_op_registered(s, pin_memfd);
}

static void reply_freed(struct mcd_session *s)
{
    struct mcs_msg m;

    m.b.free_reply = (struct mcs_msg_free_reply){.extent_gone = s->op.last};
    /* The memory is given back in any case: a late copy can hurt only the session's own tenant,
     * and the extent is never given to anybody else. */
    s->op.late = false;
    mcd_reply_taken(s, sizeof(m.b.free_reply), &m);
}

static void freed(struct mcd_session *s)
{
    MCS_FAILPOINT(extent_freed);
    s->nallocs--;
    if (s->op.last) {
        mcd_extent_forget(&s->agent->pool, s->op.extent);
        mcd_op_put(s, s->op.extent, reply_freed);
    } else {
        mcd_alloc_give(s->op.extent->alloc, s->op.offset);
        reply_freed(s);
    }
}

/* With its last allocation goes the extent. */
static bool has_last(const struct mcd_extent *e)
{
    return !e->partial && mcd_alloc_count(e->alloc) == 1;
}

static void free_cut(struct mcd_session *s)
{
    struct mcd_extent *e = s->op.extent;

    if (mcd_op_swap(s) != 0) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for the new list of buffers");
        return;
    }
    s->op.last = has_last(e);
    if (s->op.last)
        leave_extent(s, e);
    mcd_take_away(s, freed);
}

void mcd_on_free(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_free r = m->b.free;
    struct mcd_extent *e = mcd_session_extent(s, r.extent);
    uint64_t size = e == NULL || e->alloc == NULL ? 0 : mcd_alloc_size_at(e->alloc, r.offset);

    if (size == 0) {
        mcd_session_refuse(s, MCS_INVALID_HANDLE,
                           "extent %#x, offset %llu: no allocation begins there", r.extent,
                           (unsigned long long)r.offset);
        return;
    }
    s->op.extent = e;
    s->op.offset = r.offset;
    s->op.length = size;
    if (has_last(e)) { /* buffers may lie beside allocations, too */
        s->op.offset = 0;
        s->op.length = e->size;
    }
    mcd_op_cut(s, free_cut);
}

static void reply_unregistered(struct mcd_session *s)
{
    struct mcs_msg m;

    s->op.late = false; /* as in reply_freed() */
    mcd_reply_taken(s, 0, &m);
}

static void unregistered(struct mcd_session *s)
{
    MCS_FAILPOINT(unregistered);
    mcd_extent_forget(&s->agent->pool, s->op.extent);
    mcd_op_put(s, s->op.extent, reply_unregistered);
}

void mcd_on_unregister(struct mcd_session *s, struct mcs_msg *m)
{
    struct mcd_extent *e = mcd_session_extent(s, m->b.unregister.extent);

    if (e == NULL || !e->foreign) {
        mcd_session_refuse(s, MCS_INVALID_HANDLE, "extent %#x was not registered",
                           m->b.unregister.extent);
        return;
    }
    if (mcd_segment_cut(s->segment, e, 0, e->size, &s->op.old) != 0) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "no memory for the new list of buffers");
        return;
    }
    s->op.extent = e;
    s->op.offset = 0;
    s->op.length = e->size;
    s->op.last = true;
    leave_extent(s, e);
    mcd_take_away(s, unregistered);
}

/* ---- grants ---------------------------------------------------------------------- */

/* For an agent after this one: before the client has the mapping, after it has given it back. */
static void count_writable(struct mcd_session *s, int by)
{
    if (s->record != NULL)
        mcs_store_relaxed(&s->record->writable, s->record->writable + (uint32_t)by);
}

void mcd_on_map(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_map r = m->b.map;
    struct mcd_open *o = mcd_open_of(s, r.segment);
    const struct mcd_buffer *b;
    struct mcd_grant *g;
    char path[64];
    uint32_t need;
    int fd;

    if (o == NULL)
        return;
    if (o->segment->remote != NULL) {
        mcd_session_refuse(
            s, MCS_NOT_SUPPORTED,
            "segment '%s' is at another host: its memory is read with transfers, not "
            "mapped",
            o->segment->name);
        return;
    }
    b = mcd_snapshot_find(o->segment->snapshot, r.address, r.length);
    if (b == NULL || r.length == 0) {
        mcd_session_refuse(s, MCS_BAD_RANGE, "address %#llx, length %llu lies in no buffer of '%s'",
                           (unsigned long long)r.address, (unsigned long long)r.length,
                           o->segment->name);
        return;
    }
    /* importers of GPU memory choose their own access */
    need = r.writable != 0 || b->extent->gpu != NULL ? MCS_ACCESS_MAP_WRITE : MCS_ACCESS_MAP_READ;
    if (o->segment->tenant != s->tenant || (b->access & need) == 0) {
        mcd_session_refuse(s, MCS_ACCESS,
                           "mapping needs %s on the buffer (it has %#x) and the same tenant",
                           need == MCS_ACCESS_MAP_WRITE ? "MAP_WRITE" : "MAP_READ", b->access);
        return;
    }
    if (b->extent->gpu != NULL && b->extent->foreign) {
        mcd_session_refuse(s, MCS_NOT_SUPPORTED,
                           "the buffer is GPU memory that its owner's own library has allocated: "
                           "it is read and written with "
                           "transfers, and mapped only where it came from GPU_ALLOC (mcshm_alloc)");
        return;
    }
    if (s->ngrants >= GRANTS_MAX) {
        mcd_session_refuse(s, MCS_LIMIT, "a session has at most %u mappings", GRANTS_MAX);
        return;
    }
    if (!mcd_may_hold(s, b->extent->size, NULL))
        return;
    /* Read-only means a descriptor of its own: a memfd of the pool has mode 0400, so only the agent's
     * user (or root) could open it for writing again. */
    snprintf(path, sizeof(path), "/proc/self/fd/%d", b->extent->fd);
    errno = -MCS_FAIL(map_open);
    fd = errno != 0                                  ? -1
         : r.writable != 0 || b->extent->gpu != NULL ? fcntl(b->extent->fd, F_DUPFD_CLOEXEC, 3)
                                                     : open(path, O_RDONLY | O_CLOEXEC);
    g = fd < 0 ? NULL : calloc(1, sizeof(*g));
    if (g == NULL) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "cannot open the extent for mapping: %s",
                           strerror(errno));
        if (fd >= 0)
            close(fd);
        return;
    }
    g->handle = ++s->next_grant;
    g->writable = need == MCS_ACCESS_MAP_WRITE;
    if (g->writable)
        count_writable(s, 1);
    g->extent = mcd_extent_get(b->extent);
    g->next = s->grants;
    s->grants = g;
    s->ngrants++;
    mcd_session_hold(s, (int64_t)g->extent->size);
    MCS_FAILPOINT(map_granted);
    m->b.map_reply = (struct mcs_msg_map_reply){
        .grant = g->handle,
        .memory = b->extent->gpu != NULL ? MCS_MEMORY_GPU : MCS_MEMORY_HOST,
        .extent_size = b->extent->size,
        .extent_address = b->extent->address,
        .offset = b->offset + (r.address - b->address),
        .grants_version = s->grants_version,
    };
    m->h.status = MCS_OK;
    mcd_session_reply(s, m, sizeof(m->b.map_reply), &fd, 1);
    close(fd);
}

void mcd_on_unmap(struct mcd_session *s, struct mcs_msg *m)
{
    struct mcd_grant **link = &s->grants, *g;

    while (*link != NULL && (*link)->handle != m->b.unmap.grant)
        link = &(*link)->next;
    g = *link;
    if (g == NULL) {
        mcd_session_refuse(s, MCS_INVALID_HANDLE, "mapping %u does not exist", m->b.unmap.grant);
        return;
    }
    *link = g->next;
    if (g->writable)
        count_writable(s, -1);
    s->ngrants--;
    mcd_session_hold(s, -(int64_t)g->extent->size);
    MCS_FAILPOINT(unmapped);
    mcd_extent_put(&s->agent->pool, g->extent);
    free(g);
    mcd_reply_empty(s);
}
