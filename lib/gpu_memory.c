/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations in the agent's GPU memory. */
#include "gpu.h"

#include <unistd.h>

/* Notes a new extent, which is not mapped yet; fd is its own. */
static mcshm_status extent_note(struct mcshm *c, unsigned device, int fd,
                                const struct mcs_msg_extent_reply *r)
{
    struct mcl_extent e = {.handle = r->extent,
                           .gpu = true,
                           .device = device,
                           .fd = fd,
                           .size = r->extent_size,
                           .map_size = mcl_whole_pages(r->extent_size, r->page_size)};

    if (e.size == 0 || e.map_size < e.size)
        return mcl_fail(MCSHM_PROTOCOL, "the agent gave an extent of %llu bytes",
                        (unsigned long long)r->extent_size);
    if (mcl_grow(&c->extents, c->nextents, &c->extents_room, sizeof(e)) != 0)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for one more extent");
    c->extents[c->nextents++] = e;
    return MCSHM_OK;
}

/* Asks the agent. The allocation is on the list then, without an address where its extent (*fd) is new. */
static mcshm_status ask(struct mcshm *c, unsigned device, uint64_t size, uint64_t align,
                        struct mcs_msg_extent_reply *r, int *fd)
{
    struct mcs_msg m = {.b.gpu_alloc = {.size = size, .align = align}};
    const struct mcl_extent *e;
    struct mcl_fds fds;
    mcshm_status status;

    *fd = -1;
    memcpy(m.b.gpu_alloc.gpu, c->gpu->devices[device].id.bytes, sizeof(m.b.gpu_alloc.gpu));
    if (mcl_grow(&c->allocs, c->nallocs, &c->allocs_room, sizeof(*c->allocs)) != 0)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for one more allocation");
    status = mcl_call(c, MCS_MSG_GPU_ALLOC, &m, -1, &fds);
    if (status != MCSHM_OK)
        return status;
    *r = m.b.extent_reply;
    if (r->is_new != 0 && fds.n == 1) {
        status = extent_note(c, device, fds.fd[0], r);
        if (status == MCSHM_OK) {
            *fd = fds.fd[0];
            fds.n = 0;
        }
    }
    mcl_close_fds(&fds);
    e = status == MCSHM_OK ? mcl_extent_by_handle(c, r->extent) : NULL;
    if (status == MCSHM_OK &&
        (e == NULL || !e->gpu || r->offset > e->size || size > e->size - r->offset))
        status = mcl_fail(MCSHM_PROTOCOL, "the agent gave memory in an extent it did not pass");
    if (status == MCSHM_OK)
        mcl_alloc_insert(c, &(struct mcl_alloc){.start = *fd < 0 ? e->base + r->offset : NULL,
                                                .size = size,
                                                .extent = r->extent,
                                                .offset = r->offset});
    return status;
}

/* The extent has its place now, and its one allocation. */
static void extent_placed(struct mcshm *c, const struct mcs_msg_extent_reply *r, uint8_t *base)
{
    struct mcl_extent *e = mcl_extent_by_handle(c, r->extent);
    struct mcl_alloc a = mcl_alloc_remove(c, 0); /* who has no address stands first */

    e->base = base;
    if (!c->watched) { /* nobody will want it back */
        close(e->fd);
        e->fd = -1;
    }
    a.start = base + r->offset;
    mcl_alloc_insert(c, &a);
}

/* With the mutex: takes back what `status` is the reason for; *gone is to be unmapped. */
static void undo(struct mcshm *c, const struct mcs_msg_extent_reply *r, mcshm_status status,
                 struct mcl_extent *gone)
{
    char why[512];

    snprintf(why, sizeof(why), "%s", mcshm_last_error(c));
    for (size_t i = 0; i < c->nallocs; i++) {
        if (c->allocs[i].extent == r->extent && c->allocs[i].offset == r->offset) {
            (void)mcl_alloc_remove(c, i);
            break;
        }
    }
    *gone = mcl_tell_free(c, r->extent, r->offset);
    mcl_fail(status, "%s", why);
}

static mcshm_status check_align(const struct mcs_msg_extent_reply *r, const uint8_t *base,
                                uint64_t align)
{
    if (align <= 1 || ((uintptr_t)(base + r->offset) & (align - 1)) == 0)
        return MCSHM_OK;
    return mcl_fail(MCSHM_NO_MEMORY,
                    "the extent's published address is taken in this process, and its place at %p "
                    "is not aligned to %llu",
                    (const void *)base, (unsigned long long)align);
}

mcshm_status mcl_gpu_alloc(struct mcshm *c, uint64_t size, uint64_t align, const char *location,
                           void **out)
{
    struct mcl_extent gone = {.fd = -1};
    struct mcs_msg_extent_reply r = {0};
    uint8_t *base = NULL;
    mcshm_status status;
    unsigned device = 0;
    bool asked = false;
    int fd = -1;

    pthread_mutex_lock(&c->gpu_mutex);
    status = mcl_gpu_use(c, location, &device);
    if (status == MCSHM_OK) {
        pthread_mutex_lock(&c->mutex);
        status = ask(c, device, size, align, &r, &fd);
        asked = r.extent != 0;
        if (status == MCSHM_OK)
            base = mcl_extent_by_handle(c, r.extent)->base;
        pthread_mutex_unlock(&c->mutex);
    }
    if (status == MCSHM_OK && fd >= 0)
        status = mcl_gpu_map(c, device, fd, mcl_whole_pages(r.extent_size, r.page_size), r.address,
                             &base);
    if (asked) {
        pthread_mutex_lock(&c->mutex);
        if (base != NULL && fd >= 0)
            extent_placed(c, &r, base);
        if (status == MCSHM_OK)
            status = check_align(&r, base, align);
        if (status == MCSHM_OK && fd >= 0 && mcl_view_extend(c) != 0)
            status = mcl_fail(MCSHM_NO_MEMORY, "out of memory for the table of extents");
        if (status != MCSHM_OK)
            undo(c, &r, status, &gone);
        pthread_mutex_unlock(&c->mutex);
    }
    mcl_extent_unmap(c, &gone);
    pthread_mutex_unlock(&c->gpu_mutex);
    if (status == MCSHM_OK)
        *out = base + r.offset;
    return status;
}

void mcl_gpu_let_go(struct mcshm *c, const struct mcl_extent *e)
{
    CUresult res = CUDA_SUCCESS;

    if (e->import != NULL)
        mcl_import_free(e->import);
    else if (e->base != NULL)
        res = mcl_gpu_unmap(c->gpu, e->device, e->base, e->map_size);
    if (res != CUDA_SUCCESS)
        mcl_log(c, MCSHM_LOG_WARNING, "unmapping %llu bytes of GPU memory at %p: %s",
                (unsigned long long)e->map_size, (void *)e->base,
                mcs_cuda_error(c->gpu->driver, res));
}
