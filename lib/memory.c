/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"
#include "shm/failpoint.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGN_MAX (UINT64_C(1) << 30)

struct mcl_extent *mcl_extent_by_handle(struct mcshm *c, uint32_t handle)
{
    for (size_t i = 0; i < c->nextents; i++) {
        if (c->extents[i].handle == handle)
            return &c->extents[i];
    }
    return NULL;
}

struct mcl_extent *mcl_extent_around(struct mcshm *c, const void *at, uint64_t size,
                                     mcshm_status *status)
{
    for (size_t i = 0; i < c->nextents; i++) {
        struct mcl_extent *e = &c->extents[i];
        uint64_t offset = (uintptr_t)at - (uintptr_t)e->base;

        if (e->base == NULL || offset >= e->size)
            continue;
        if (size > e->size - offset) {
            *status = mcl_fail(
                MCSHM_BAD_RANGE, "%llu bytes at %p reach beyond their extent, which has %llu left",
                (unsigned long long)size, at, (unsigned long long)(e->size - offset));
            return NULL;
        }
        return e;
    }
    if (mcl_private_overlap(c, at, 1) != NULL)
        *status = mcl_fail(MCSHM_NOT_SUPPORTED,
                           "%p is registered private memory: only memory of mcshm_alloc() or "
                           "mcshm_register_memfd() can be published",
                           at);
    else
        *status = mcl_fail(MCSHM_NOT_REGISTERED,
                           "%p lies in no allocation or memfd of this "
                           "connection",
                           at);
    return NULL;
}

uint64_t mcl_whole_pages(uint64_t size, uint64_t page_size)
{
    return page_size == 0 ? size : (size + page_size - 1) / page_size * page_size;
}

/* Adds an extent to the list, mapped at its published address when that is free. A copy of fd is kept
 * where a later agent may want it back. */
static mcshm_status extent_add(struct mcshm *c, int fd, const struct mcs_msg_extent_reply *r,
                               bool memfd)
{
    struct mcl_extent e = {.handle = r->extent, .memfd = memfd, .fd = -1, .size = r->extent_size};
    void *base = NULL;
    int res;

    e.map_size = mcl_whole_pages(r->extent_size, r->page_size);
    if (e.size == 0 || e.map_size < e.size)
        return mcl_fail(MCSHM_PROTOCOL, "the agent gave an extent of %llu bytes",
                        (unsigned long long)r->extent_size);
    res = mcl_grow(&c->extents, c->nextents, &c->extents_room, sizeof(e));
    if (res == 0)
        res = MCS_FAIL(extent_mapped);
    if (res == 0)
        res = mcs_region_map(fd, e.map_size, true, (void *)(uintptr_t)r->address, &base);
    if (res != 0)
        return mcl_fail(MCSHM_NO_MEMORY, "mapping an extent of %llu bytes: %s",
                        (unsigned long long)e.map_size, strerror(-res));
    if (c->watched) {
        e.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (e.fd < 0) {
            res = -errno;
            mcs_region_unmap(base, e.map_size);
            return mcl_fail(MCSHM_NO_MEMORY,
                            "an extent's descriptor cannot be kept: %s; raise RLIMIT_NOFILE, or do "
                            "without a later agent: options.reconnect_ms = 0",
                            strerror(-res));
        }
    }
    e.base = base;
    c->extents[c->nextents++] = e;
    return MCSHM_OK;
}

/* Takes an extent off the list; the mapping remains, to go when the view is updated. */
struct mcl_extent mcl_extent_remove(struct mcshm *c, uint32_t handle)
{
    struct mcl_extent *e = mcl_extent_by_handle(c, handle), gone = {.fd = -1};

    if (e != NULL) {
        gone = *e;
        *e = c->extents[--c->nextents];
    }
    return gone;
}

void mcl_extent_unmap(struct mcshm *c, const struct mcl_extent *e)
{
    if (e->gpu) {
        mcl_gpu_let_go(c, e);
    } else if (e->base != NULL) {
        MCS_FAILPOINT(extent_unmap);
        mcs_region_unmap(e->base, e->map_size);
    }
    if (e->fd >= 0)
        close(e->fd);
}

size_t mcl_alloc_index(const struct mcshm *c, const void *start)
{
    size_t low = 0, high = c->nallocs;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if ((uintptr_t)c->allocs[mid].start < (uintptr_t)start)
            low = mid + 1;
        else
            high = mid;
    }
    return low < c->nallocs && c->allocs[low].start == start ? low : SIZE_MAX;
}

void mcl_alloc_insert(struct mcshm *c, const struct mcl_alloc *a)
{
    size_t at = c->nallocs++;

    for (; at > 0 && c->allocs[at - 1].start > a->start; at--)
        c->allocs[at] = c->allocs[at - 1];
    c->allocs[at] = *a;
}

struct mcl_alloc mcl_alloc_remove(struct mcshm *c, size_t index)
{
    struct mcl_alloc a = c->allocs[index];

    c->nallocs--;
    memmove(&c->allocs[index], &c->allocs[index + 1], (c->nallocs - index) * sizeof(*c->allocs));
    return a;
}

struct mcl_extent mcl_tell_free(struct mcshm *c, uint32_t extent, uint64_t offset)
{
    struct mcs_msg m = {.b.free = {.extent = extent, .offset = offset}};

    /* no view knows a new extent yet */
    if (mcl_call(c, MCS_MSG_FREE, &m, -1, NULL) == MCSHM_OK && m.b.free_reply.extent_gone != 0)
        return mcl_extent_remove(c, extent);
    return (struct mcl_extent){.fd = -1};
}

mcshm_status mcl_pool_alloc(struct mcshm *c, uint64_t size, uint64_t align, const char *location,
                            uint8_t **out)
{
    struct mcs_msg m = {.b.alloc = {.size = size, .align = align}};
    struct mcs_msg_extent_reply r;
    struct mcl_fds fds;
    struct mcl_extent *e, gone;
    mcshm_status status;

    if (location != NULL)
        memcpy(m.b.alloc.location, location, strlen(location));
    if (mcl_grow(&c->allocs, c->nallocs, &c->allocs_room, sizeof(*c->allocs)) != 0)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for one more allocation");
    status = mcl_call(c, MCS_MSG_ALLOC, &m, -1, &fds);
    if (status != MCSHM_OK)
        return status;
    r = m.b.extent_reply;
    if (r.is_new != 0 && fds.n == 1)
        status = extent_add(c, fds.fd[0], &r, false);
    mcl_close_fds(&fds);
    if (status != MCSHM_OK)
        goto error;
    e = mcl_extent_by_handle(c, r.extent);
    if (e == NULL || e->gpu || r.offset > e->size || size > e->size - r.offset) {
        status = mcl_fail(MCSHM_PROTOCOL, "the agent gave memory in an extent it did not pass");
        goto error;
    }
    if (align > 1 && ((uintptr_t)(e->base + r.offset) & (align - 1)) != 0) {
        status = mcl_fail(MCSHM_NO_MEMORY,
                          "the extent's published address is taken in this process, and its place "
                          "at %p is not aligned to %llu",
                          (void *)e->base, (unsigned long long)align);
        goto error;
    }
    mcl_alloc_insert(c, &(struct mcl_alloc){
                            .start = e->base + r.offset,
                            .size = size,
                            .extent = r.extent,
                            .offset = r.offset,
                        });
    /* relaxed: what mcshm_get_info() says, nothing hangs on its order */
    mcs_store_relaxed(&c->info.page_size, r.page_size);
    *out = e->base + r.offset;
    return MCSHM_OK;

error:
    gone = mcl_tell_free(c, r.extent, r.offset);
    mcl_extent_unmap(c, &gone);
    return status;
}

/* *gone: the extent that went with it, to be unmapped. */
static mcshm_status give_back(struct mcshm *c, size_t index, struct mcl_private *dropped,
                              struct mcl_extent *gone)
{
    struct mcs_msg m = {
        .b.free = {.extent = c->allocs[index].extent, .offset = c->allocs[index].offset}};
    mcshm_status status = mcl_call(c, MCS_MSG_FREE, &m, -1, NULL);
    struct mcl_alloc a;

    *gone = (struct mcl_extent){.fd = -1};
    if (status != MCSHM_OK)
        return status;
    a = mcl_alloc_remove(c, index);
    mcl_buffers_cut(c, a.start, a.size);
    if (m.b.free_reply.extent_gone != 0)
        *gone = mcl_extent_remove(c, a.extent);
    (void)mcl_view_update(c, dropped); /* when memory is short it knows less: that is safe */
    return MCSHM_OK;
}

mcshm_status mcl_pool_free(struct mcshm *c, size_t index, struct mcl_private *dropped)
{
    struct mcl_extent gone;
    mcshm_status status = give_back(c, index, dropped, &gone);

    mcl_extent_unmap(c, &gone);
    return status;
}

void mcl_memory_fini(struct mcshm *c)
{
    for (size_t i = 0; i < c->nextents; i++)
        mcl_extent_unmap(c, &c->extents[i]);
    free(c->extents);
    free(c->allocs);
}

MCSHM_API mcshm_status mcshm_alloc(mcshm *c, size_t size, size_t align, const char *location,
                                   void **out)
{
    mcshm_status status = mcl_check(c);
    uint8_t *start = NULL;
    size_t extents;

    if (status != MCSHM_OK)
        return status;
    if (out == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_alloc: out is NULL");
    *out = NULL;
    if (size == 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_alloc: size is 0");
    if (align > ALIGN_MAX || (align & (align - 1)) != 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "mcshm_alloc: align %zu is not 0 or a power of two up to 1 GiB", align);
    if (location != NULL && mcl_gpu_is_location(location))
        return mcl_gpu_alloc(c, size, align, location, out);
    if (location != NULL && strnlen(location, MCS_LOCATION_MAX) >= MCS_LOCATION_MAX)
        return mcl_fail(MCSHM_NOT_SUPPORTED, "location is not \"cpu\", \"cpu:N\" or \"cuda:N\"");

    pthread_mutex_lock(&c->mutex);
    extents = c->nextents;
    status = mcl_pool_alloc(c, size, align, location, &start);
    /* an empty view stands for one that there was no memory for */
    if (status == MCSHM_OK && (c->nextents != extents || c->view == &c->empty) &&
        mcl_view_extend(c) != 0) {
        (void)mcl_pool_free(c, mcl_alloc_index(c, start), NULL);
        status = mcl_fail(MCSHM_NO_MEMORY, "out of memory for the table of extents");
    }
    pthread_mutex_unlock(&c->mutex);
    if (status == MCSHM_OK)
        *out = start;
    return status;
}

MCSHM_API mcshm_status mcshm_free(mcshm *c, void *address)
{
    struct mcl_extent gone = {.fd = -1};
    mcshm_status status = mcl_check(c);
    size_t index;

    if (status != MCSHM_OK)
        return status;
    if (address == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_free: address is NULL");
    pthread_mutex_lock(&c->mutex);
    index = mcl_alloc_index(c, address);
    if (index == SIZE_MAX)
        status = mcl_fail(MCSHM_NOT_REGISTERED, "%p is not the start of an allocation", address);
    else
        status = give_back(c, index, NULL, &gone);
    mcl_grants_check(c);
    pthread_mutex_unlock(&c->mutex);
    mcl_extent_unmap(c, &gone);
    return status;
}

static mcshm_status check_memfd(int fd, size_t size, uint64_t *page_size)
{
    switch (mcs_region_check(fd, size, page_size)) {
    case 0:
        return MCSHM_OK;
    case -EPERM:
        return mcl_fail(MCSHM_BAD_SHM,
                        "memfd %d is not sealed against shrinking: add F_SEAL_SHRINK", fd);
    case -ERANGE:
        return mcl_fail(MCSHM_BAD_SHM, "memfd %d is smaller than %zu bytes: ftruncate() it first",
                        fd, size);
    default:
        return mcl_fail(MCSHM_BAD_SHM, "descriptor %d is not a memfd open for reading and writing",
                        fd);
    }
}

MCSHM_API mcshm_status mcshm_register_memfd(mcshm *c, int fd, size_t size, void **out)
{
    struct mcs_msg m = {.b.reg.size = size};
    struct mcs_msg_extent_reply r;
    struct mcl_extent *e, gone;
    struct mcl_fds fds;
    uint64_t page_size;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (out == NULL || size == 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_register_memfd: %s",
                        out == NULL ? "out is NULL" : "size is 0");
    *out = NULL;
    status = check_memfd(fd, size, &page_size);
    if (status != MCSHM_OK)
        return status;

    pthread_mutex_lock(&c->mutex);
    status = mcl_call(c, MCS_MSG_REGISTER, &m, fd, &fds);
    if (status != MCSHM_OK)
        goto out_unlock;
    mcl_close_fds(&fds); /* the caller's own descriptor does */
    r = m.b.extent_reply;
    if (r.page_size < page_size)
        r.page_size = page_size;
    status = extent_add(c, fd, &r, true);
    if (status != MCSHM_OK)
        goto error_unregister;
    if (mcl_view_extend(c) != 0) {
        status = mcl_fail(MCSHM_NO_MEMORY, "out of memory for the table of extents");
        goto error_remove;
    }
    e = mcl_extent_by_handle(c, r.extent);
    *out = e->base;
    goto out_unlock;

error_remove:
    gone = mcl_extent_remove(c, r.extent);
    mcl_extent_unmap(c, &gone);
error_unregister:
    m.b.unregister = (struct mcs_msg_unregister){.extent = r.extent};
    (void)mcl_call(c, MCS_MSG_UNREGISTER, &m, -1, NULL);
out_unlock:
    pthread_mutex_unlock(&c->mutex);
    return status;
}

mcshm_status mcl_extent_unregister(struct mcshm *c, struct mcl_extent *e)
{
    struct mcs_msg m = {.b.unregister.extent = e->handle};
    struct mcl_extent gone;
    mcshm_status status = mcl_call(c, MCS_MSG_UNREGISTER, &m, -1, NULL);

    if (status != MCSHM_OK)
        return status;
    mcl_buffers_cut(c, e->base, e->size);
    gone = mcl_extent_remove(c, e->handle);
    (void)mcl_view_update(c, NULL); /* when memory is short it knows less: that is safe */
    mcl_extent_unmap(c, &gone);
    return MCSHM_OK;
}

MCSHM_API mcshm_status mcshm_unregister(mcshm *c, void *address)
{
    struct mcl_extent *e = NULL;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (address == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_unregister: address is NULL");
    pthread_mutex_lock(&c->mutex);
    for (size_t i = 0; i < c->nextents && e == NULL; i++) {
        if ((c->extents[i].memfd || c->extents[i].import != NULL) && c->extents[i].base == address)
            e = &c->extents[i];
    }
    if (e != NULL)
        status = e->import != NULL ? mcl_gpu_unregister(c, e) : mcl_extent_unregister(c, e);
    else
        status = mcl_private_unregister(c, address);
    mcl_grants_check(c);
    pthread_mutex_unlock(&c->mutex);
    return status;
}
