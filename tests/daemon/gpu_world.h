/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine with the copiers of two GPUs, which are played here (the Makefile wraps their calls): a job comes back when the
 * test says so, with what the test says. Device memory lies at addresses that nobody may touch; its bytes lie elsewhere,
 * and only the copies made here reach them.
 */
#ifndef TESTS_GPU_WORLD_H
#define TESTS_GPU_WORLD_H

#include <sys/mman.h>

#include "daemon/gpu_task.h"
#include "daemon/route.h"
#include "fixture.h"

#define GW_RW (MCS_ACCESS_READ | MCS_ACCESS_WRITE)
#define GW_LOCAL 0x80001004u  /* handle of GPU memory of the client, entry 4; device 0 */
#define GW_SECOND 0x80001005u /* another one; device 1 */
#define GW_SIZE (UINT64_C(1) << 30)
#define GW_BACKED (UINT64_C(8) << 20) /* of each so much has bytes */
#define GW_ADDRESS UINT64_C(0x210000000000)
#define GW_MOST 4096u

struct mct_cuda_memory {
    struct mcd_extent extent;
    uint8_t *bytes;
};

struct gpu_world {
    struct fixture f;
    struct mct_cuda_memory local, second, target,
        other; /* the client's; the owner's: devices 0, 1 */
};

/* The copiers. */
static struct {
    struct mct_cuda_memory *memory[4];
    struct mct_cuda_job *posted[GW_MOST], *done[GW_MOST];
    unsigned nposted, ndone, most; /* most: posted at any time */
    uint64_t bytes, most_bytes;    /* out; at any time */
    uint64_t jobs, pieces;         /* ever */
    unsigned arms;
    bool closed, at_once; /* a job comes back in the turn after it was posted */
} gw;

int __wrap_mct_cuda_port_open(struct mct_cuda *c, int wake_fd, struct mct_cuda_port **out);
void __wrap_mct_cuda_port_close(struct mct_cuda_port *p);
void __wrap_mct_cuda_post(struct mct_cuda_port *p, struct mct_cuda_job *job);
struct mct_cuda_job *__wrap_mct_cuda_port_take(struct mct_cuda_port *p);
bool __wrap_mct_cuda_port_arm(struct mct_cuda_port *p);

int __wrap_mct_cuda_port_open(struct mct_cuda *c, int wake_fd, struct mct_cuda_port **out)
{
    cr_assert_not_null(c);
    cr_assert_geq(wake_fd, 0);
    memset(&gw, 0, sizeof(gw));
    *out = (struct mct_cuda_port *)&gw;
    return 0;
}

void __wrap_mct_cuda_port_close(struct mct_cuda_port *p)
{
    cr_assert_eq((void *)p, (void *)&gw);
    cr_assert_eq(gw.nposted + gw.ndone, 0u, "closed under copies");
    gw.closed = true;
}

void __wrap_mct_cuda_post(struct mct_cuda_port *p, struct mct_cuda_job *job)
{
    uint64_t bytes = 0;

    cr_assert_eq((void *)p, (void *)&gw);
    cr_assert_lt(gw.nposted, GW_MOST);
    cr_assert(job->n != 0 && job->n <= MCD_GPU_PIECES);
    cr_assert(job->to_device != MCT_CUDA_HOST || job->from_device != MCT_CUDA_HOST);
    for (uint32_t i = 0; i < job->n; i++) {
        cr_assert_neq(job->pieces[i].length, 0u);
        bytes += job->pieces[i].length;
    }
    cr_assert_eq(bytes, job->bytes);
    gw.posted[gw.nposted++] = job;
    gw.jobs++;
    gw.pieces += job->n;
    gw.bytes += bytes;
    if (gw.bytes > gw.most_bytes)
        gw.most_bytes = gw.bytes;
    if (gw.nposted > gw.most)
        gw.most = gw.nposted;
}

/* Where the bytes of a range of a device, or of the host, lie; NULL: nowhere. */
static inline uint8_t *gw_bytes(int device, uint64_t at, uint64_t length)
{
    if (device == MCT_CUDA_HOST)
        return (uint8_t *)(uintptr_t)at;
    for (unsigned i = 0; i < 4; i++) {
        const struct mct_cuda_memory *m = gw.memory[i];
        uint64_t offset = m == NULL ? 0 : at - (uintptr_t)m->extent.map;

        if (m == NULL || m->extent.gpu_device != device || offset >= GW_SIZE)
            continue;
        cr_assert_leq(length, GW_SIZE - offset, "a copy beyond its memory");
        return offset + length <= GW_BACKED ? m->bytes + offset : NULL;
    }
    cr_assert_fail("a copy of what is no memory of device %d", device);
    return NULL;
}

/* The oldest job that is out is copied, and comes back so. False: none is out. */
static inline bool gw_finish(enum mcs_status status)
{
    struct mct_cuda_job *job = gw.posted[0];

    if (gw.nposted == 0)
        return false;
    memmove(gw.posted, gw.posted + 1, --gw.nposted * sizeof(struct mct_cuda_job *));
    gw.bytes -= job->bytes;
    for (uint32_t i = 0; status == MCS_OK && i < job->n; i++) {
        const struct mct_cuda_piece *p = &job->pieces[i];
        uint8_t *to = gw_bytes(job->to_device, p->to, p->length);
        const uint8_t *from = gw_bytes(job->from_device, p->from, p->length);

        if (to != NULL && from != NULL)
            memcpy(to, from, p->length);
    }
    job->status = status;
    gw.done[gw.ndone++] = job;
    return true;
}

struct mct_cuda_job *__wrap_mct_cuda_port_take(struct mct_cuda_port *p)
{
    struct mct_cuda_job *job;

    cr_assert_eq((void *)p, (void *)&gw);
    if (gw.at_once)
        gw_finish(MCS_OK);
    if (gw.ndone == 0)
        return NULL;
    job = gw.done[0];
    memmove(gw.done, gw.done + 1, --gw.ndone * sizeof(struct mct_cuda_job *));
    return job;
}

bool __wrap_mct_cuda_port_arm(struct mct_cuda_port *p)
{
    cr_assert_eq((void *)p, (void *)&gw);
    gw.arms++;
    return gw.ndone == 0;
}

static inline void gw_memory(struct mct_cuda_memory *m, unsigned i, uint64_t address,
                             uint32_t handle, int device)
{
    memset(m, 0, sizeof(*m));
    m->extent.map =
        mmap(NULL, GW_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert_neq((void *)m->extent.map, MAP_FAILED);
    m->extent.size = GW_SIZE;
    m->extent.address = address;
    m->extent.handle = handle;
    m->extent.gpu = m;
    m->extent.gpu_device = (int16_t)device;
    m->bytes = malloc(GW_BACKED);
    cr_assert_not_null(m->bytes);
    for (uint64_t k = 0; k < GW_BACKED; k++)
        m->bytes[k] = (uint8_t)(k * 7 + k / 251 + i * 31);
    gw.memory[i] = m;
}

/* The owner's segment has a buffer of host memory, one of GPU 0, one of GPU 1; the client has the same to itself. */
static inline void gw_init(struct gpu_world *w, uint64_t slice)
{
    struct mcd_engine_options o = {.cuda = (struct mct_cuda *)&gw};
    struct mcd_snapshot *old;

    fix_init_nets(&w->f, GW_RW, slice, &o);
    gw_memory(&w->local, 0, GW_ADDRESS, GW_LOCAL, 0);
    gw_memory(&w->second, 1, GW_ADDRESS + GW_SIZE, GW_SECOND, 1);
    gw_memory(&w->target, 2, GW_ADDRESS + 2 * GW_SIZE, 0, 0);
    gw_memory(&w->other, 3, GW_ADDRESS + 3 * GW_SIZE, 0, 1);
    w->f.local.pinned = w->f.target.pinned = 2;
    w->f.session->extents[MCD_HANDLE_INDEX(GW_LOCAL)] = &w->local.extent;
    w->f.session->extents[MCD_HANDLE_INDEX(GW_SECOND)] = &w->second.extent;
    cr_assert_eq(mcd_segment_add(w->f.segment, &w->target.extent, 0, GW_SIZE, GW_RW, &old), 0);
    free(old);
    cr_assert_eq(mcd_segment_add(w->f.segment, &w->other.extent, 0, GW_SIZE, GW_RW, &old), 0);
    free(old);
}

static inline void gw_fini(struct gpu_world *w)
{
    struct mct_cuda_memory *all[] = {&w->local, &w->second, &w->target, &w->other};
    struct mcd_snapshot *old;

    gw.at_once = true;
    fix_call(w->f.engine, mcd_engine_quiesce,
             &(struct mcd_quiesce){.base = w->local.extent.map, .length = GW_SIZE});
    for (unsigned i = 2; i < 4; i++) {
        cr_assert_eq(mcd_segment_cut(w->f.segment, &all[i]->extent, 0, GW_SIZE, &old), 0);
        free(old);
    }
    fix_fini(&w->f);
    cr_assert(gw.closed);
    for (unsigned i = 0; i < 4; i++) {
        munmap(all[i]->extent.map, GW_SIZE);
        free(all[i]->bytes);
    }
}

/* From or to the client's GPU memory (or, with .extent changed, another end). */
static inline struct mcs_desc gw_desc(struct gpu_world *w, uint8_t op, uint64_t length)
{
    struct mcs_desc d = fix_desc(&w->f, op, length);

    d.extent = GW_LOCAL;
    d.flags = MCS_DESC_SYNCED;
    d.remote_addr = w->target.extent.address;
    return d;
}

static inline void gw_turns(struct gpu_world *w, unsigned n)
{
    while (n-- != 0)
        mcd_engine_turn(w->f.engine);
}

/* Turns until so many jobs are out. */
static inline void gw_out(struct gpu_world *w, unsigned n)
{
    for (int i = 0; i < 100000 && gw.nposted < n; i++)
        mcd_engine_turn(w->f.engine);
    cr_assert_eq(gw.nposted, n);
}

/* Has the slot of this task this state? */
static inline unsigned gw_state(struct gpu_world *w, const struct mcs_desc *d)
{
    uint64_t word = mcs_slot_peek(&w->f.client, d->slot);

    return word >> 32 == d->generation ? word & 0x7f : MCS_STATE_WAITING;
}

/* A head at `at` in the argument area; where what follows it lies. */
static inline void *gw_args(struct gpu_world *w, uint32_t at, struct mcs_args head)
{
    struct mcs_args *a = (struct mcs_args *)(w->f.client.args + at);

    *a = head;
    return a + 1;
}

#endif
