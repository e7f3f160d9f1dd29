/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gates.  Each has a cache line of a page of pool memory, which is registered with the driver once, for all devices.
 */
#include "gate.h"

#include <stdlib.h>

#define PAGE_SIZE 4096u
#define PAGE_GATES (PAGE_SIZE / MCS_LINE)
static_assert(PAGE_GATES == 64, "a bit for each");

/* mcshm_gate.state */
struct gate {
    struct mcshm *c;
    struct mcl_gate_page *page;
    unsigned device;
};

struct mcl_gate_page {
    struct mcl_gate_page *next;
    uint8_t *start;
    unsigned device; /* in whose context it was registered */
    uint64_t used;   /* a bit for each line */
    struct gate gates[PAGE_GATES];
};

/* ---- pages: gpu_mutex ---------------------------------------------------------------- */

/* Pool memory of one page. */
static mcshm_status page_alloc(struct mcshm *c, uint8_t **out)
{
    mcshm_status status;

    pthread_mutex_lock(&c->mutex);
    status = mcl_pool_alloc(c, PAGE_SIZE, PAGE_SIZE, NULL, out);
    if (status == MCSHM_OK && mcl_view_extend(c) != 0) {
        (void)mcl_pool_free(c, mcl_alloc_index(c, *out), NULL);
        status = mcl_fail(MCSHM_NO_MEMORY, "out of memory for the table of extents");
    }
    pthread_mutex_unlock(&c->mutex);
    return status;
}

static void page_free(struct mcshm *c, uint8_t *start)
{
    size_t index;

    pthread_mutex_lock(&c->mutex);
    index = mcl_alloc_index(c, start);
    /* a session that has ended has given it back already */
    if (index != SIZE_MAX)
        (void)mcl_pool_free(c, index, NULL);
    pthread_mutex_unlock(&c->mutex);
}

static mcshm_status page_register(struct mcshm *c, unsigned device, void *start)
{
    mcshm_status status = mcl_gpu_enter(c, device, NULL);
    CUresult e;

    if (status != MCSHM_OK)
        return status;
    e = c->gpu->driver->host_register(start, PAGE_SIZE,
                                      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    mcl_gpu_leave(c);
    if (e != CUDA_SUCCESS)
        return mcl_gpu_fail(c, device, e, "registering a page for gates (cuMemHostRegister)");
    return MCSHM_OK;
}

static CUresult page_unregister(const struct mcl_gpu *g, const struct mcl_gate_page *p)
{
    CUresult e = mcs_cuda_enter(g->driver, g->devices[p->device].primary);

    if (e != CUDA_SUCCESS)
        return e;
    e = g->driver->host_unregister(p->start);
    mcs_cuda_leave(g->driver);
    return e;
}

/* A page with a free line. */
static mcshm_status page_get(struct mcshm *c, unsigned device, struct mcl_gate_page **out)
{
    struct mcl_gate_page *p = c->gpu->gates;
    uint8_t *start = NULL;
    mcshm_status status;

    while (p != NULL && p->used == UINT64_MAX)
        p = p->next;
    *out = p;
    if (p != NULL)
        return MCSHM_OK;
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for a page of gates");
    status = page_alloc(c, &start);
    if (status != MCSHM_OK)
        goto error_free;
    status = page_register(c, device, start);
    if (status != MCSHM_OK)
        goto error_give_back;
    *p = (struct mcl_gate_page){.next = c->gpu->gates, .start = start, .device = device};
    c->gpu->gates = p;
    *out = p;
    return MCSHM_OK;

error_give_back:
    page_free(c, start);
error_free:
    free(p);
    return status;
}

/* Gives the page back when nothing in it is used. */
static mcshm_status page_put(struct mcshm *c, struct mcl_gate_page *p)
{
    struct mcl_gate_page **at = &c->gpu->gates;
    CUresult e;

    if (p->used != 0)
        return MCSHM_OK;
    e = page_unregister(c->gpu, p);
    if (e != CUDA_SUCCESS) /* it stays, for the next gate */
        return mcl_gpu_fail(c, p->device, e, "taking a page of gates from the driver");
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    page_free(c, p->start);
    free(p);
    return MCSHM_OK;
}

unsigned mcl_gates_fini(struct mcl_gpu *g, bool driver)
{
    unsigned failures = 0;

    while (g->gates != NULL) {
        struct mcl_gate_page *p = g->gates;

        g->gates = p->next;
        failures += driver && page_unregister(g, p) != CUDA_SUCCESS;
        free(p);
    }
    return failures;
}

/* ---- gates --------------------------------------------------------------------------- */

/* The address that the device has for the word. */
static mcshm_status device_address(struct mcshm *c, unsigned device, void *word, uint64_t *out)
{
    mcshm_status status = mcl_gpu_enter(c, device, NULL);
    CUdeviceptr at = 0;
    CUresult e;

    if (status != MCSHM_OK)
        return status;
    e = c->gpu->driver->host_device_pointer(&at, word, 0);
    mcl_gpu_leave(c);
    if (e != CUDA_SUCCESS)
        return mcl_gpu_fail(c, device, e, "a gate's address (cuMemHostGetDevicePointer)");
    *out = at;
    return MCSHM_OK;
}

static mcshm_status gate_create(struct mcshm *c, const char *location, mcshm_gate *out)
{
    struct mcl_gate_page *p;
    unsigned device = 0, line;
    uint64_t address = 0;
    mcshm_status status = mcl_gpu_use(c, location, &device);
    char why[512];
    uint32_t *word;

    if (status == MCSHM_OK)
        status = page_get(c, device, &p);
    if (status != MCSHM_OK)
        return status;
    line = (unsigned)__builtin_ctzll(~p->used);
    word = (uint32_t *)(void *)(p->start + line * MCS_LINE);
    status = device_address(c, device, word, &address);
    if (status != MCSHM_OK) {
        snprintf(why, sizeof(why), "%s", mcshm_last_error(c));
        (void)page_put(c, p);
        return mcl_fail(status, "%s", why);
    }
    p->used |= UINT64_C(1) << line;
    p->gates[line] = (struct gate){.c = c, .page = p, .device = device};
    mcs_store_release(word, 0u); /* who had the line before counted in it; nobody looks yet */
    *out = (mcshm_gate){.word = word, .device = address, .state = &p->gates[line]};
    return MCSHM_OK;
}

MCSHM_API mcshm_status mcshm_gate_create(mcshm *c, const char *location, mcshm_gate *out)
{
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (out == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_gate_create: out is NULL");
    *out = (mcshm_gate){0};
    if (location == NULL || !mcl_gpu_is_location(location))
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "mcshm_gate_create: location \"%.60s\" is not \"cuda:N\" or \"cuda:GPU-\" "
                        "and a UUID",
                        location != NULL ? location : "");
    pthread_mutex_lock(&c->gpu_mutex);
    status = gate_create(c, location, out);
    pthread_mutex_unlock(&c->gpu_mutex);
    return status;
}

/* NULL, and *status says why. */
static struct gate *gate_get(struct mcshm *c, const mcshm_gate *gate, mcshm_status *status)
{
    struct gate *g = gate != NULL ? gate->state : NULL;

    *status = mcl_check(c);
    if (*status != MCSHM_OK)
        return NULL;
    if (g == NULL || g->c != c) {
        *status = mcl_fail(MCSHM_INVALID_HANDLE, "the gate is %s",
                           g == NULL ? "none of mcshm_gate_create()" : "another connection's");
        return NULL;
    }
    return g;
}

MCSHM_API mcshm_status mcshm_gate_destroy(mcshm *c, mcshm_gate *gate)
{
    mcshm_status status;
    struct gate *g = gate_get(c, gate, &status);

    if (g == NULL)
        return status;
    pthread_mutex_lock(&c->gpu_mutex);
    g->c = NULL; /* a copy of the handle names nothing any more */
    g->page->used &= ~(UINT64_C(1) << (g - g->page->gates));
    status = page_put(c, g->page);
    pthread_mutex_unlock(&c->gpu_mutex);
    *gate = (mcshm_gate){0};
    return status;
}

MCSHM_API mcshm_status mcshm_gate_record(mcshm *c, mcshm_gate *gate, void *stream, uint32_t *value)
{
    mcshm_status status;
    struct gate *g = gate_get(c, gate, &status);
    CUresult e;

    if (g == NULL)
        return status;
    if (value == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_gate_record: value is NULL");
    status = mcl_gpu_enter(c, g->device, NULL);
    if (status != MCSHM_OK)
        return status;
    /* DEFAULT: what was queued before is visible to the host and to others before the word is */
    e = c->gpu->driver->stream_write32(stream, gate->device, gate->last + 1,
                                       CU_STREAM_WRITE_VALUE_DEFAULT);
    mcl_gpu_leave(c);
    if (e != CUDA_SUCCESS)
        return mcl_gpu_fail(c, g->device, e, "a stream's write to a gate (cuStreamWriteValue32)");
    *value = ++gate->last;
    return MCSHM_OK;
}

MCSHM_API mcshm_status mcshm_gate_follow(mcshm *c, mcshm_gate *gate, void *stream, uint32_t value)
{
    mcshm_status status;
    struct gate *g = gate_get(c, gate, &status);
    CUresult e;

    if (g == NULL)
        return status;
    status = mcl_gpu_enter(c, g->device, NULL);
    if (status != MCSHM_OK)
        return status;
    e = c->gpu->driver->stream_wait32(stream, gate->device, value,
                                      c->gpu->devices[g->device].wait_flags);
    mcl_gpu_leave(c);
    if (e != CUDA_SUCCESS)
        return mcl_gpu_fail(c, g->device, e, "a stream's wait for a gate (cuStreamWaitValue32)");
    return MCSHM_OK;
}
