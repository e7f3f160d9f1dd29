/* SPDX-License-Identifier: Apache-2.0 */
#include "registration.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "dmabuf.h"
#include "log.h"
#include "transports/cuda/cuda.h"

#define LONG_NS UINT64_C(10000000000) /* a device that has not answered by then is said to hang */

void mcd_registry_init(struct mcd_registry *g, struct mct_rdma *rdma, bool require)
{
    *g = (struct mcd_registry){.rdma = rdma, .require = require};
}

unsigned mcd_registration_access(uint32_t access)
{
    return ((access & MCS_ACCESS_READ) != 0 ? MCT_RDMA_REMOTE_READ : 0) |
           ((access & MCS_ACCESS_WRITE) != 0 ? MCT_RDMA_REMOTE_WRITE : 0);
}

static bool is_pending(enum mcd_registration_state state)
{
    return state == MCD_REGISTRATION_SOON || state == MCD_REGISTRATION_GOING;
}

static void set_state(struct mcd_registration *r, enum mcd_registration_state state)
{
    struct mcd_registry *g = r->registry;

    g->pending = g->pending - is_pending(r->state) + is_pending(state);
    if (r->state == MCD_REGISTRATION_FAILED)
        g->unregistered_bytes -= r->length;
    if (state == MCD_REGISTRATION_FAILED)
        g->unregistered_bytes += r->length;
    r->state = state;
    r->since = mcd_now_ns();
}

static void enter(struct mcd_registry *g, struct mcd_registration *r)
{
    r->registry = g;
    r->since = mcd_now_ns();
    g->pending++;
    r->next = g->all;
    if (r->next != NULL)
        r->next->prev = r;
    g->all = r;
    g->count++;
}

static void leave(struct mcd_registration *r)
{
    struct mcd_registry *g = r->registry;

    if (r->prev != NULL)
        r->prev->next = r->next;
    else
        g->all = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    g->count--;
    g->pending -= is_pending(r->state);
}

/* Nothing reaches the memory on its behalf. */
static void gone(void *context, int res, const char *text)
{
    struct mcd_registration *r = context;
    struct mcd_extent *e = r->extent;
    mct_rdma_done *done = r->done;
    void *waits = r->context;
    bool whole = r->whole;

    leave(r);
    if (!r->borrows)
        mcd_dmabuf_destroy(r->dmabuf);
    if (whole)
        e->registered = NULL;
    free(r);
    if (done != NULL)
        done(waits, res, text);
    if (!whole)
        mcd_extent_put(e->pool, e);
}

static void destroy(struct mcd_registration *r)
{
    if (r->memory == NULL)
        gone(r, 0, "");
    else
        mct_rdma_memory_destroy(r->registry->rdma, r->memory, gone, r);
}

/* Is it the first of a GPU's memory that goes without? */
static bool is_told(struct mcd_registry *g, const struct mcd_extent *e)
{
    uint32_t bit = e->gpu == NULL ? 0 : UINT32_C(1) << e->gpu_device % MCT_CUDA_DEVICES;
    bool told = (g->gpus_told & bit) != 0;

    g->gpus_told |= bit;
    return told;
}

static void fail(struct mcd_registration *r, const char *text)
{
    struct mcd_registry *g = r->registry;
    const struct mct_cuda_device *gpu =
        r->extent->gpu == NULL || g->cuda == NULL
            ? NULL
            : mct_cuda_device_get(g->cuda, (unsigned)r->extent->gpu_device);

    g->failed++;
    if (gpu != NULL && !is_told(g, r->extent))
        mcd_warning("memory of %s (%s) is not registered with RDMA devices%s: %s", gpu->name,
                    gpu->pci,
                    g->require ? ""
                               : ", it goes to other hosts over other transports and through host "
                                 "memory",
                    text);
    else if (gpu == NULL)
        mcd_log_limited(
            MCD_LOG_WARNING, "%llu bytes of %s are not registered with RDMA devices%s: %s",
            (unsigned long long)r->length, r->whole ? "pool memory" : "a published buffer",
            g->require ? "" : ", they go over other transports", text);
    set_state(r, MCD_REGISTRATION_FAILED);
}

static void made(void *context, int res, const char *text)
{
    struct mcd_registration *r = context;
    mct_rdma_done *done = r->done;

    if (r->state == MCD_REGISTRATION_GOING) { /* it was dropped meanwhile */
        destroy(r);
        return;
    }
    if (res != 0) {
        fail(r, text);
    } else {
        set_state(r, MCD_REGISTRATION_MADE);
        if (r->whole) /* partner: the engines' acquire in remote.c */
            mcs_store_release(&r->extent->registration, r->memory);
    }
    r->done = NULL;
    if (done != NULL)
        done(r->context, res, text);
}

/* The devices register it: of GPU memory, its dmabuf. */
static void begin(struct mcd_registration *r)
{
    const struct mcd_extent *e = r->extent;
    struct mct_rdma_range range = {
        .address = r->dmabuf == NULL ? e->map + r->offset : NULL,
        .length = r->length,
        .published = e->address + r->offset,
        .access = r->access,
        .dmabuf_fd = r->dmabuf == NULL ? -1 : mcd_dmabuf_fd(r->dmabuf),
        .dmabuf_offset = r->offset,
    };
    int res;

    if (r->whole && r->dmabuf != NULL)
        range.published = (uintptr_t)e->map; /* what slices of this host name */
    res = mct_rdma_memory_create(r->registry->rdma, &range, made, r, &r->memory);
    if (res != 0)
        made(r, res, strerror(-res));
}

static void dmabuf_made(void *context, int res, const char *text)
{
    struct mcd_registration *r = context;

    if (res == 0 && r->state != MCD_REGISTRATION_GOING)
        begin(r);
    else
        made(r, res, text);
}

/* The extent's own registration has one, and stays until all of its buffers are gone. */
static struct mcd_dmabuf *dmabuf_of(const struct mcd_extent *e)
{
    const struct mcd_registration *whole = e->registered;

    return whole != NULL && whole->state == MCD_REGISTRATION_MADE ? whole->dmabuf : NULL;
}

static int create(struct mcd_registry *g, struct mcd_extent *e, uint64_t offset, uint64_t length,
                  unsigned access, mct_rdma_done *done, void *context,
                  struct mcd_registration **out)
{
    struct mcd_registration *r = calloc(1, sizeof(*r));
    int res = 0;

    *out = NULL;
    if (r == NULL) {
        g->failed++;
        mcd_log_limited(MCD_LOG_WARNING,
                        "%llu bytes are not registered with RDMA devices: out of memory",
                        (unsigned long long)length);
        return -ENOMEM;
    }
    r->extent = e;
    r->offset = offset;
    r->length = length;
    r->access = access;
    r->whole = access == 0;
    r->done = done;
    r->context = context;
    if (r->whole)
        e->registered = r;
    else
        mcd_extent_get(e);
    enter(g, r);
    *out = r;
    if (!r->whole && e->gpu != NULL)
        r->dmabuf = dmabuf_of(e);
    r->borrows = r->dmabuf != NULL;
    if (e->gpu != NULL && !r->borrows)
        res = mcd_dmabuf_create(g->cuda, e, dmabuf_made, r, &r->dmabuf);
    else
        begin(r);
    if (res != 0)
        made(r, res,
             res == -EOPNOTSUPP ? "the GPU, or its driver, lets no RDMA device reach its memory "
                                  "(dmabuf, GPUDirect RDMA)"
                                : strerror(-res));
    return 0;
}

int mcd_registration_create(struct mcd_registry *g, struct mcd_extent *e, uint64_t offset,
                            uint64_t length, unsigned access, mct_rdma_done *done, void *context,
                            struct mcd_registration **out)
{
    return create(g, e, offset, length, access, done, context, out);
}

int mcd_registration_create_whole(struct mcd_registry *g, struct mcd_extent *e, mct_rdma_done *done,
                                  void *context)
{
    struct mcd_registration *r;

    return create(g, e, 0, e->size, 0, done, context, &r);
}

void mcd_registration_drop(struct mcd_registration *r, mct_rdma_done *done, void *context)
{
    enum mcd_registration_state before = r->state;

    r->done = done;
    r->context = context;
    if (before == MCD_REGISTRATION_GOING)
        return;
    set_state(r, MCD_REGISTRATION_GOING);
    if (r->whole)
        mcs_store_release(&r->extent->registration, NULL); /* partner: as in made() */
    if (before != MCD_REGISTRATION_SOON)
        destroy(r);
}

void mcd_registry_look(struct mcd_registry *g, uint64_t now)
{
    uint64_t n = 0, bytes = 0;

    if (g->pending == 0) {
        g->told = false;
        return;
    }
    for (const struct mcd_registration *r = g->all; r != NULL; r = r->next)
        if (is_pending(r->state) && now - r->since > LONG_NS && now > r->since) {
            n++;
            bytes += r->length;
        }
    if (n == 0 || g->told)
        return;
    g->told = true;
    mcd_warning(
        "RDMA devices have not answered for 10 s about %llu registrations, %llu bytes: that "
        "memory stays until they do; `mcshm ls rails` and the kernel's log tell more",
        (unsigned long long)n, (unsigned long long)bytes);
}

unsigned mcd_registrations_pass(struct mcd_registry *g, const void *from, mct_rdma_done *done,
                                void *to)
{
    unsigned n = 0;

    for (struct mcd_registration *r = g->all; r != NULL; r = r->next)
        if (r->done != NULL && r->context == from) {
            r->done = done;
            r->context = to;
            n++;
        }
    return n;
}
