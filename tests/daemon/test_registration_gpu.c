/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory and the RDMA devices: registered by its dmabuf, or not at all, which is said once. */
#include <dirent.h>

#include "played_cuda.h"
#include "rdma_agent.h"
#include "tests/fake-verbs/fake.h" /* linked with it: Makefile */

#define MIB (UINT64_C(1) << 20)
#define CHUNK (8 * MIB)
#define EXTENT (32 * MIB) /* [gpu] extent_size */
#define RW (MCS_ACCESS_READ | MCS_ACCESS_WRITE)

TestSuite(registration_gpu, .timeout = 60);

static void begin(struct ra *g, bool dmabuf, bool require)
{
    char error[512] = "";

    memset(&pc, 0, sizeof(pc));
    ra_init(g, CHUNK, require);
    cr_assert_eq(mcd_gpu_create(g->agent, error, sizeof(error)), 0, "%s", error);
    g->agent->registry.cuda = g->agent->cuda;
    for (unsigned i = 0; i < PC_DEVICES; i++)
        pc.cuda->devices[i].dmabuf = pc.cuda->devices[i].rdma = dmabuf;
}

static unsigned descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    cr_assert_not_null(d);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

static void end(struct ra *g)
{
    ra_until(g, g->agent->sessions == NULL && !mcd_gpu_busy(g->agent));
    mcd_gpu_destroy(g->agent);
    ra_fini(g);
}

static uint32_t alloc(struct ra *g, struct sa_client *c, unsigned device)
{
    const struct mcs_gpu_id id = pc_id(device);
    union mcs_msg_body b;

    memset(&b, 0, sizeof(b));
    b.gpu_alloc.size = EXTENT;
    memcpy(b.gpu_alloc.gpu, id.bytes, sizeof(id.bytes));
    return ra_ask(g, c, MCS_MSG_GPU_ALLOC, &b);
}

static struct mcd_extent *extent(const struct ra *g, uint32_t handle)
{
    struct mcd_extent *e = mcd_session_extent(g->agent->sessions, handle);

    cr_assert_not_null(e);
    return e;
}

Test(registration_gpu, an_extent_is_registered_where_slices_name_it_and_buffers_where_peers_do)
{
    const uint64_t offset = 8 * MIB + 4096, length = 10 * MIB;
    struct fake_region r;
    struct sa_client c;
    struct mcd_extent *e;
    unsigned locals = 0, remotes = 0;
    struct ra g;
    uint32_t h;

    begin(&g, true, true);
    ra_arrive(&g, &c);
    cr_assert_eq(alloc(&g, &c, 1), MCS_OK);
    h = c.m.b.extent_reply.extent;
    e = extent(&g, h);
    cr_assert_not_null(e->registration, "before the client has it");
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, h, offset, length, RW), MCS_OK);
    for (unsigned i = 0; fake_region(g.devices[0], i, &r); i++) {
        bool remote = (r.access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)) != 0;

        cr_assert_geq(r.fd, 0, "its address is not for this process");
        /* from chunk to chunk the place in the dmabuf goes on as the address does */
        cr_assert_eq(r.iova - (remote ? e->address : (uintptr_t)e->map), r.offset);
        cr_assert(!remote || (r.offset >= offset && r.offset + r.length <= offset + length));
        locals += !remote;
        remotes += remote;
    }
    cr_assert_eq(locals, EXTENT / CHUNK);
    cr_assert_eq(remotes, 2u);
    cr_assert_eq(pc.begun[MCT_CUDA_DMABUF], 1u, "one for all that is of the extent");
    sa_leave(&c);
    end(&g);
}

Test(registration_gpu, where_there_is_no_dmabuf_it_goes_without_and_that_is_counted)
{
    struct sa_client c;
    struct ra g;
    uint32_t h;

    begin(&g, false, false);
    ra_arrive(&g, &c);
    cr_assert_eq(alloc(&g, &c, 0), MCS_OK);
    h = c.m.b.extent_reply.extent;
    cr_assert_null(extent(&g, h)->registration);
    cr_assert_eq(ra_buffer(&g, &c, MCS_MSG_BUFFER_ADD, h, 0, MIB, RW), MCS_OK);
    cr_assert_eq(fake_count(FAKE_MR, NULL), 0u);
    cr_assert_eq(pc.begun[MCT_CUDA_DMABUF], 0u, "the driver is not asked for what it has not");
    cr_assert_eq(g.agent->registry.failed, 2u);
    cr_assert_eq(g.agent->registry.unregistered_bytes, EXTENT + MIB);
    cr_assert_eq(g.agent->registry.gpus_told, 1u, "said of this GPU");
    cr_assert_eq(alloc(&g, &c, 1), MCS_OK);
    cr_assert_eq(g.agent->registry.gpus_told, 3u);
    sa_leave(&c);
    end(&g);
}

Test(registration_gpu, a_driver_that_refuses_costs_the_keys_or_where_they_must_be_the_memory)
{
    struct sa_client c;
    unsigned before;
    struct ra g;

    for (unsigned require = 0; require < 2; require++) {
        begin(&g, true, require != 0);
        pc.refuses[MCT_CUDA_DMABUF] = MCS_NO_MEMORY;
        ra_arrive(&g, &c);
        before = descriptors();
        if (require != 0) {
            cr_assert_neq(alloc(&g, &c, 0), MCS_OK);
            cr_assert_not_null(strstr(c.m.b.error.text, "the played driver says no"), "%s",
                               c.m.b.error.text);
            ra_until(&g, !mcd_gpu_busy(g.agent));
            ra_until(&g, descriptors() <= before);
        } else {
            cr_assert_eq(alloc(&g, &c, 0), MCS_OK);
            cr_assert_null(extent(&g, c.m.b.extent_reply.extent)->registration);
        }
        cr_assert_eq(g.agent->registry.failed, 1u);
        sa_leave(&c);
        end(&g);
    }
}

Test(registration_gpu, a_client_that_leaves_meanwhile_leaves_nothing_behind)
{
    const struct mcs_gpu_id id = pc_id(0);
    union mcs_msg_body b;
    struct sa_client c;
    unsigned before;
    struct ra g;

    begin(&g, true, false);
    before = descriptors();
    ra_arrive(&g, &c);
    pc.holds[MCT_CUDA_DMABUF] = true;
    memset(&b, 0, sizeof(b));
    b.gpu_alloc.size = EXTENT;
    memcpy(b.gpu_alloc.gpu, id.bytes, sizeof(id.bytes));
    sa_send(&c, MCS_MSG_GPU_ALLOC, &b, NULL, 0);
    ra_until(&g, pc.begun[MCT_CUDA_DMABUF] == 1);
    sa_leave(&c);
    for (int i = 0; i < 50; i++)
        ra_pump(&g, 1);
    cr_assert_eq(pc.begun[MCT_CUDA_FREE], 0u, "the driver is still at it");
    pc_end(MCT_CUDA_DMABUF);
    ra_until(&g, g.agent->sessions == NULL && !mcd_gpu_busy(g.agent));
    cr_assert_eq(pc.begun[MCT_CUDA_FREE], 1u);
    cr_assert_eq(fake_count(FAKE_MR, NULL), 0u);
    ra_until(&g, descriptors() <= before);
    end(&g);
}
