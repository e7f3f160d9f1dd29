/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_memory.h"

#include "location.h"
#include "pattern.h"
#include "say.h"

#include <stdio.h>
#include <string.h>

#define BOUNCE (UINT64_C(16) << 20)

int kv_memory_open(struct kv_memory *m, const char *location)
{
    *m = (struct kv_memory){.gpu = location_is_gpu(location)};
    return m->gpu ? device_open(location, &m->device) : 0;
}

int kv_memory_alloc(struct kv_memory *m, mcshm *c, const char *location, uint64_t size,
                    uint64_t piece, const char *who)
{
    void *memory = NULL, *bounce = NULL;
    mcshm_status s = mcshm_alloc(c, size, 0, location, &memory);
    char what[160];
    int rc = 0;

    snprintf(what, sizeof(what),
             "%s: allocating its blocks (a smaller --cache-blocks or --scale needs less)", who);
    if (s != MCSHM_OK)
        return say_status(c, s, what);
    m->base = memory;
    m->room = piece > BOUNCE ? piece : BOUNCE;
    if (m->gpu)
        rc = device_check(&m->device, m->device.driver->host_alloc(&bounce, m->room, 0),
                          "allocating pinned host memory");
    else
        memset(memory, 0, size); /* first touches, outside all measurements */
    m->bounce = bounce;
    return rc;
}

void kv_memory_settle(struct kv_memory *m)
{
    if (m->device.driver != NULL)
        m->device.driver->stream_synchronize(m->device.stream);
}

void kv_memory_close(struct kv_memory *m)
{
    if (m->bounce != NULL)
        m->device.driver->host_free(m->bounce);
    m->bounce = NULL;
    device_close(&m->device);
}

int kv_memory_sync(struct kv_memory *m)
{
    m->used = 0;
    return m->gpu ? device_check(&m->device, m->device.driver->stream_synchronize(m->device.stream),
                                 "waiting for copies")
                  : 0;
}

int kv_memory_fill(struct kv_memory *m, uint64_t offset, uint64_t size, uint64_t seed)
{
    const uint8_t *from;
    int rc = 0;

    if (!m->gpu) {
        pattern_fill(m->base + offset, size, seed);
        return 0;
    }
    if (m->used + size > m->room)
        rc = kv_memory_sync(m); /* copies still read it */
    if (rc != 0)
        return rc;
    from = m->bounce + m->used;
    m->used += size;
    pattern_fill((void *)from, size, seed);
    return device_check(&m->device,
                        m->device.driver->copy((uintptr_t)m->base + offset, (uintptr_t)from, size,
                                               m->device.stream),
                        "copying a block's content to the device");
}

int kv_memory_check_end(struct kv_memory *m, uint64_t *wrong)
{
    const uint8_t *at = m->bounce;
    int rc = m->nchecks > 0 ? kv_memory_sync(m) : 0;

    for (unsigned i = 0; rc == 0 && i < m->nchecks; at += m->checks[i++].size)
        *wrong += pattern_check(at, m->checks[i].size, m->checks[i].seed);
    m->nchecks = 0;
    return rc;
}

int kv_memory_check(struct kv_memory *m, uint64_t offset, uint64_t size, uint64_t seed,
                    uint64_t *wrong)
{
    int rc = 0;

    if (!m->gpu) {
        *wrong += pattern_check(m->base + offset, size, seed);
        return 0;
    }
    if (m->nchecks == KV_MEMORY_CHECKS || m->used + size > m->room)
        rc = kv_memory_check_end(m, wrong);
    if (rc == 0)
        rc = device_check(&m->device,
                          m->device.driver->copy((uintptr_t)m->bounce + m->used,
                                                 (uintptr_t)m->base + offset, size,
                                                 m->device.stream),
                          "copying a block back from the device");
    if (rc != 0)
        return rc;
    m->checks[m->nchecks].seed = seed;
    m->checks[m->nchecks++].size = size;
    m->used += size;
    return 0;
}
