/* SPDX-License-Identifier: Apache-2.0 */
/* An agent whose GPU driver the test plays, and what clients ask of it. */
#ifndef TESTS_GPU_AGENT_H
#define TESTS_GPU_AGENT_H

#include "daemon/gpu.h"
#include "daemon/gpu_memory.h"
#include "played_cuda.h"
#include "step_agent.h"

#define SMALL 4096u
#define MIB (UINT64_C(1) << 20)
#define EXTENT (UINT64_C(32) << 20) /* [gpu] extent_size */

static inline struct mcd_agent *begin(void)
{
    struct mcd_agent *a;
    char error[512] = "";

    memset(&pc, 0, sizeof(pc));
    a = sa_init();
    cr_assert_eq(mcd_gpu_create(a, error, sizeof(error)), 0, "%s", error);
    return a;
}

static inline void end(struct mcd_agent *a)
{
    sa_until(a, a->sessions == NULL && !mcd_gpu_busy(a));
    mcd_gpu_destroy(a);
    cr_assert_null(a->gpu);
    sa_fini(a);
}

static inline uint64_t used(const struct mcd_agent *a, unsigned device)
{
    const struct mcs_gpu_id id = pc_id(device);
    struct mcd_gpu_sums sums;

    mcd_gpu_get_sums(a, &id, &sums);
    return sums.used;
}

static inline union mcs_msg_body alloc_body(unsigned device, uint64_t size, uint64_t align)
{
    const struct mcs_gpu_id id = pc_id(device);
    union mcs_msg_body b;

    memset(&b, 0, sizeof(b));
    b.gpu_alloc.size = size;
    b.gpu_alloc.align = align;
    memcpy(b.gpu_alloc.gpu, id.bytes, sizeof(id.bytes));
    return b;
}

static inline uint32_t alloc(struct mcd_agent *a, struct sa_client *c, unsigned device,
                             uint64_t size)
{
    union mcs_msg_body b = alloc_body(device, size, 0);

    return sa_ask(a, c, MCS_MSG_GPU_ALLOC, &b);
}

static inline struct mcd_extent *extent_of(const struct mcd_agent *a, uint32_t handle)
{
    for (struct mcd_session *s = a->sessions; s != NULL; s = s->next)
        if (mcd_session_extent(s, handle) != NULL)
            return mcd_session_extent(s, handle);
    cr_assert_fail("no extent %#x", handle);
    return NULL;
}

static inline uint32_t give(struct mcd_agent *a, struct sa_client *c, uint32_t extent,
                            uint64_t offset)
{
    union mcs_msg_body b;

    memset(&b, 0, sizeof(b));
    b.free.extent = extent;
    b.free.offset = offset;
    return sa_ask(a, c, MCS_MSG_FREE, &b);
}

static inline void turns(struct mcd_agent *a, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        sa_pump(a, 1);
}

#endif
