/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control requests about GPU memory: allocations in extents that this agent has the driver make, and memory of other
 * makers that comes in parts.  Stages of an operation: the driver is open, the memory is made or imported, RDMA devices
 * have it registered, the extent is the session's.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gpu.h"
#include "gpu_memory.h"
#include "handlers.h"
#include "shm/failpoint.h"
#include "transports/cuda/cuda.h"

#define ALIGN_MAX (UINT64_C(1) << 30)
#define ALIGN_LEAST                                                                                \
    256u /* what cuMemAlloc() gives; CUDA C++ Programming Guide, "Device Memory Accesses" */
#define IMPORT_MAX (UINT64_C(1) << 47) /* bytes: more than any device's address space */
#define PARTS_MAX 8192u                /* of one import: 160 GiB in parts of 20 MiB */
#define PINNED_NS UINT64_C(5000000000) /* what takes longer to pin holds nobody up */

/* Parts of memory that have come. */
struct mcd_gpu_import {
    struct mcs_gpu_id gpu;
    uint64_t total, at; /* bytes of all of it; of the parts that are here */
    struct mct_cuda_part *parts;
    unsigned n, room, nfds;
    struct mcd_ledger_extent *back; /* whose memory they are; NULL: it is new */
};

/* ---- the driver ------------------------------------------------------------------------------ */

static bool is_open(struct mcd_session *s)
{
    return s->ending || mcd_gpu_state(s->agent) != MCD_GPU_OPENING ||
           mcd_now_ns() >= s->op.gpu_until;
}

static void opened(struct mcd_session *s)
{
    s->op.then(s);
}

/* Goes on with `then` once the driver is open, cannot be, or takes too long for that. */
static void with_driver(struct mcd_session *s, void (*then)(struct mcd_session *s))
{
    s->op.gpu_until = mcd_now_ns() + s->agent->config.gpu_call_s * UINT64_C(1000000000);
    if (s->agent->gpu != NULL)
        mcd_gpu_open(s->agent);
    if (is_open(s)) {
        then(s);
        return;
    }
    s->op.then = then;
    mcd_session_await(s, s->op.gpu_until, is_open, opened);
}

static bool are_pinned(struct mcd_session *s)
{
    return s->ending || !mcd_gpu_pinning(s->agent) || mcd_now_ns() >= s->op.deadline;
}

/* The device is in use from now on. Goes on with `then` once the host memory that is there is pinned, for copies into and out of
 * the device's. */
static void with_device(struct mcd_session *s, int device, void (*then)(struct mcd_session *s))
{
    mcd_gpu_use(s->agent, (unsigned)device);
    s->op.deadline = mcd_now_ns() + PINNED_NS;
    if (are_pinned(s)) {
        then(s);
        return;
    }
    s->op.then = then;
    mcd_session_await(s, s->op.deadline, are_pinned, opened);
}

/* The operation's. */
static void print_gpu(const struct mcd_session *s, char text[MCS_GPU_ID_TEXT])
{
    const struct mct_cuda *c = s->agent->cuda;
    int device = c == NULL ? -1 : mct_cuda_device_find(c, &s->op.gpu);

    mcs_gpu_id_print(&s->op.gpu, device < 0 ? NULL : mct_cuda_device_get(c, (unsigned)device)->name,
                     text);
}

/* The device that the operation is about; refuses and returns -1 when there is none. */
static int device_of(struct mcd_session *s)
{
    int device = -1;
    unsigned n = 0;
    char id[MCS_GPU_ID_TEXT];

    print_gpu(s, id);
    if (mcd_gpu_state(s->agent) == MCD_GPU_OPENING) {
        mcd_session_refuse(s, MCS_TIMEOUT,
                           "GPU %s: the driver has not started within %llu s ([gpu] call_s): ask "
                           "again later, and see nvidia-smi and the kernel's log",
                           id, (unsigned long long)s->agent->config.gpu_call_s);
        return -1;
    }
    if (mcd_gpu_state(s->agent) != MCD_GPU_OPEN) {
        mcd_session_refuse(s, MCS_NO_GPU, "GPU %s: %s", id, mcd_gpu_why(s->agent));
        return -1;
    }
    device = mct_cuda_device_find(s->agent->cuda, &s->op.gpu);
    while (mct_cuda_device_get(s->agent->cuda, n) != NULL)
        n++;
    if (device < 0)
        mcd_session_refuse(
            s, MCS_NO_GPU,
            "GPU %s is none of the %u that this agent sees (`mcshm ls gpus`): let it see that one "
            "(CUDA_VISIBLE_DEVICES, the container's devices), or use another",
            id, n);
    if (device >= 0 && mcd_gpu_hangs(s)) {
        mcd_session_refuse(s, MCS_TIMEOUT,
                           "GPU %s: an earlier request of this process still hangs in the driver, "
                           "and cannot be called back: see nvidia-smi and the kernel's log",
                           id);
        return -1;
    }
    return device;
}

/* True when the driver has not done in time what the operation's tie is of: it is refused, and the tie is not the operation's any
 * more. */
static bool refuse_late(struct mcd_session *s)
{
    char id[MCS_GPU_ID_TEXT];
    uint64_t bytes = mcd_gpu_tie_bytes(s->op.tie);

    if (!mcd_gpu_is_late(s))
        return false;
    print_gpu(s, id);
    mcd_session_refuse(s, MCS_TIMEOUT,
                       "%llu bytes of GPU memory: the driver of GPU %s has not answered within "
                       "%llu s ([gpu] call_s); what comes of it later is freed: see nvidia-smi and "
                       "the kernel's log",
                       (unsigned long long)bytes, id,
                       (unsigned long long)s->agent->config.gpu_call_s);
    return true;
}

/* Of what the driver has refused. */
static void refuse_call(struct mcd_session *s)
{
    const struct mct_cuda_call *c = mcd_gpu_tie_call(s->op.tie);

    mcd_session_refuse(s, c->status, "%llu bytes of GPU memory: %s", (unsigned long long)c->size,
                       c->text);
}

static void refuse_plan(struct mcd_session *s, uint64_t size)
{
    struct mcd_gpu_sums sums;
    char id[MCS_GPU_ID_TEXT];

    mcd_gpu_get_sums(s->agent, &s->op.gpu, &sums);
    print_gpu(s, id);
    mcd_session_refuse(
        s, MCS_NO_MEMORY,
        "%llu bytes of GPU %s wanted, clients have %llu of the %llu that %s: free some%s",
        (unsigned long long)size, id, (unsigned long long)sums.used, (unsigned long long)sums.limit,
        s->agent->config.gpu_size != 0 ? "[gpu] size lets them" : "there are",
        s->agent->config.gpu_size != 0 ? " or raise it" : "");
}

static void refuse_entry(struct mcd_session *s, int res, uint64_t size)
{
    (void)size;
    if (res == -ENOSPC)
        mcd_session_refuse(s, MCS_LIMIT, "a session has at most %u extents", MCD_TABLE_SIZE);
    else
        mcd_session_refuse(s, MCS_NO_MEMORY,
                           "the agent has no memory of its own for one more extent: %s",
                           strerror(-res));
}

/* ---- allocations ----------------------------------------------------------------------------- */

static void alloc_registered(struct mcd_session *s)
{
    mcd_alloc_enter(s, refuse_entry);
}

static void alloc_made(struct mcd_session *s)
{
    const struct mct_cuda_call *c = mcd_gpu_tie_call(s->op.tie);
    int res;

    if (s->ending) {
        mcd_gpu_abandon(s);
        return;
    }
    if (refuse_late(s))
        return;
    if (c->status == MCS_NO_MEMORY && mcd_gpu_plan_less(s, s->op.length)) {
        mcd_gpu_begin(s);
        mcd_session_await(s, s->op.gpu_until, mcd_gpu_is_made, alloc_made);
        return;
    }
    if (c->status != MCS_OK) {
        refuse_call(s);
        mcd_gpu_abandon(s);
        return;
    }
    res = mcd_gpu_take(s, &s->op.extent);
    if (res != 0) {
        refuse_entry(s, res, s->op.length);
        return;
    }
    mcd_op_register_extent(s, s->op.extent);
    mcd_op_registered(s, alloc_registered);
}

static void alloc_pinned(struct mcd_session *s)
{
    int device = s->ending ? -1 : device_of(s);
    uint64_t page, least, room;
    int res;

    if (device < 0)
        return;
    page = mct_cuda_device_get(s->agent->cuda, (unsigned)device)->granularity;
    least =
        s->op.length > UINT64_MAX - page ? s->op.length : (s->op.length + page - 1) / page * page;
    if (!mcd_may_hold(s, least, &room))
        return;
    res = mcd_gpu_plan(s, (unsigned)device, s->op.length, room);
    if (res != 0) {
        refuse_plan(s, s->op.length);
        return;
    }
    mcd_gpu_begin(s);
    mcd_session_await(s, s->op.gpu_until, mcd_gpu_is_made, alloc_made);
}

static void alloc_opened(struct mcd_session *s)
{
    int device = s->ending ? -1 : device_of(s);

    if (device >= 0)
        with_device(s, device, alloc_pinned);
}

void mcd_on_gpu_alloc(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_gpu_alloc r = m->b.gpu_alloc;
    uint64_t align = r.align != 0 ? r.align : ALIGN_LEAST, offset;

    if (r.size == 0 || (align & (align - 1)) != 0 || align > ALIGN_MAX) {
        mcd_session_refuse(s, MCS_INVALID_ARGUMENT,
                           "%llu bytes aligned to %llu: want at least 1, aligned to a power of two "
                           "up to 1 GiB",
                           (unsigned long long)r.size, (unsigned long long)r.align);
        return;
    }
    if (align < MCS_LINE)
        align = MCS_LINE;
    if (s->nallocs >= s->agent->config.max_allocs) {
        mcd_session_refuse(s, MCS_LIMIT,
                           "%u allocations of this session are live, [session] max_allocs is %llu: "
                           "free some, or allocate more at once and divide it up",
                           s->nallocs, (unsigned long long)s->agent->config.max_allocs);
        return;
    }
    for (uint32_t i = 0; i < MCD_TABLE_SIZE && s->nextents != 0; i++) {
        struct mcd_extent *e = s->extents[i];

        if (e == NULL || e->gpu == NULL || e->alloc == NULL || e->partial ||
            memcmp(mcd_gpu_tie_id(e->tie), r.gpu, sizeof(r.gpu)) != 0)
            continue;
        if ((e->address & (align - 1)) == 0 &&
            mcd_alloc_take(e->alloc, r.size, align, &offset) == 0) {
            mcd_count_alloc(s);
            mcd_reply_extent(s, e, offset, false);
            return;
        }
    }
    s->op.length = r.size;
    s->op.offset = align;
    memcpy(s->op.gpu.bytes, r.gpu, sizeof(r.gpu));
    with_driver(s, alloc_opened);
}

/* ---- imports --------------------------------------------------------------------------------- */

void mcd_import_drop(struct mcd_session *s)
{
    struct mcd_gpu_import *w = s->import;

    if (w == NULL)
        return;
    mcd_gpu_close_parts(s->agent, s->uid, w->parts, w->n, false);
    free(w);
    s->import = NULL;
}

static void import_registered(struct mcd_session *s)
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
        refuse_entry(s, res, s->op.length);
        return;
    }
    mcd_reply_extent(s, e, 0, false);
}

/* It is the session's under the handle that it had. Nobody waits for RDMA devices: until then it goes over other transports. */
static void enter_back(struct mcd_session *s)
{
    struct mcd_extent *e = s->op.extent;
    struct mcs_msg m;

    e->handle = s->op.back->handle;
    e->record = s->op.back;
    mcd_limbo_take(s, s->op.back);
    mcd_session_enter_extent(s, e);
    MCS_FAILPOINT(gpu_back);
    if (e->foreign) {
        mcd_reply_extent(s, e, 0, false);
        return;
    }
    m.b.extent_back_reply =
        (struct mcs_msg_extent_back_reply){.address = e->address, .page_size = e->kind.page_size};
    mcd_reply(s, &m, sizeof(m.b.extent_back_reply));
}

/* The driver has imported it, or not. */
static void imported(struct mcd_session *s)
{
    int res;

    if (s->ending) {
        mcd_gpu_abandon(s);
        return;
    }
    if (refuse_late(s))
        return;
    if (mcd_gpu_tie_call(s->op.tie)->status != MCS_OK) {
        refuse_call(s);
        mcd_gpu_abandon(s);
        return;
    }
    res = mcd_gpu_take(s, &s->op.extent);
    if (res != 0) {
        refuse_entry(s, res, s->op.length);
        return;
    }
    if (s->op.back != NULL) {
        enter_back(s);
        return;
    }
    mcd_op_register_extent(s, s->op.extent);
    mcd_op_registered(s, import_registered);
}

static void import_pinned(struct mcd_session *s)
{
    struct mcd_gpu_import *w = s->import;
    int device = s->ending ? -1 : device_of(s);
    int res;

    if (device < 0 || (w->back == NULL && !mcd_may_hold(s, w->total, NULL))) {
        mcd_import_drop(s);
        return;
    }
    s->import = NULL;
    s->op.back = w->back;
    res = w->back != NULL ? mcd_gpu_plan_back(s, (unsigned)device, w->back, w->parts, w->n)
                          : mcd_gpu_plan_import(s, (unsigned)device, w->total, w->parts, w->n);
    if (res != 0) {
        refuse_plan(s, w->total);
    } else {
        mcd_gpu_begin(s);
        mcd_session_await(s, s->op.gpu_until, mcd_gpu_is_made, imported);
    }
    free(w);
}

static void import_opened(struct mcd_session *s)
{
    int device = s->ending ? -1 : device_of(s);

    if (device >= 0)
        with_device(s, device, import_pinned);
    else
        mcd_import_drop(s);
}

/* Of what comes back: the pins of the others may take their time. */
static void back_opened(struct mcd_session *s)
{
    int device = s->ending ? -1 : device_of(s);

    if (device < 0) {
        mcd_import_drop(s);
        return;
    }
    mcd_gpu_use(s->agent, (unsigned)device);
    import_pinned(s);
}

/* A range of bytes that no device is too small for. */
static bool is_range(uint64_t offset, uint64_t size)
{
    return size != 0 && size <= IMPORT_MAX && offset <= IMPORT_MAX;
}

/* What is wrong with a part; NULL: nothing. */
static const char *wrong_part(const struct mcd_gpu_import *w, const struct mcs_msg_gpu_import *r,
                              unsigned nfds)
{
    if (w == NULL ? r->at != 0 || !is_range(0, r->total)
                  : r->at != w->at || r->total != w->total ||
                        memcmp(r->gpu, w->gpu.bytes, sizeof(r->gpu)) != 0)
        return "the part does not follow the one before it, or its range is empty or beyond 128 "
               "TiB";
    if (!is_range(r->offset, r->size) || r->size > r->total - r->at ||
        (r->ipc == 0 && (r->whole > IMPORT_MAX || r->offset + r->size > r->whole)))
        return "the part is empty, or goes beyond the range or its allocation";
    if (r->last > 1 || (r->last == 1) != (r->at + r->size == r->total))
        return "the last part, and no other, must say so and end where the range does";
    if (r->ipc > 1 || nfds != 1 - r->ipc)
        return "want a CUDA IPC handle and no descriptor, or the descriptor of an exported "
               "allocation alone";
    if (r->ipc != 0 && r->size != r->total)
        return "a CUDA IPC handle is of a whole range: register the allocations one by one";
    if (w != NULL && w->n == PARTS_MAX)
        return "more than 8192 parts: register the range in pieces";
    return NULL;
}

/*
 * Can it be an exported allocation? Those are descriptors of a device, or of nothing that has a name; memfds are the test
 * double's.  No sockets above all: one may be the other end of the session's own, which would never hang up while it waits here.
 * A file's server is asked nothing, neither now nor by the driver: it may be the client's own (FUSE), and never answer.
 */
static bool is_allocation(int fd)
{
    struct statx st;

    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) != 0)
        return false;
    return S_ISCHR(st.stx_mode) || (st.stx_mode & S_IFMT) == 0 ||
           (S_ISREG(st.stx_mode) && fcntl(fd, F_GET_SEALS) >= 0);
}

/* Descriptors in parts that sessions of the same tenant have brought: more sessions are no larger share. */
static unsigned kept_by(const struct mcd_agent *a, const struct mcd_tenant *account)
{
    unsigned n = 0;

    for (const struct mcd_session *s = a->sessions; s != NULL; s = s->next)
        if (s->account == account && s->import != NULL)
            n += s->import->nfds;
    return n;
}

/* Keeps the part; its descriptor is the session's from then on. Refuses when it cannot. */
static int keep_part(struct mcd_session *s, const struct mcs_msg_gpu_import *r, int fd)
{
    struct mcd_gpu_import *w = s->import;
    struct mct_cuda_part *more;

    if (fd >= 0 && !is_allocation(fd))
        return -EBADF;
    if (w == NULL) {
        w = MCS_FAIL(gpu_part) != 0 ? NULL : calloc(1, sizeof(*w));
        if (w == NULL)
            return -ENOMEM;
        memcpy(w->gpu.bytes, r->gpu, sizeof(r->gpu));
        w->total = r->total;
        s->import = w;
    }
    if (w->n == w->room) {
        more = realloc(w->parts, (w->room * 2 + 4) * sizeof(*more));
        if (more == NULL)
            return -ENOMEM;
        w->parts = more;
        w->room = w->room * 2 + 4;
    }
    if (fd >= 0 && !mcd_gpu_may_keep(s->agent, kept_by(s->agent, s->account)))
        return -EMFILE;
    w->nfds += fd >= 0;
    more = &w->parts[w->n++];
    *more = (struct mct_cuda_part){
        .fd = fd,
        .allocation = r->allocation,
        .tenant = s->tenant,
        .offset = r->offset,
        .size = r->size,
        .whole = r->whole,
    };
    if (fd < 0)
        memcpy(&more->ipc, r->handle, sizeof(more->ipc));
    w->at += r->size;
    return 0;
}

static int add_part(struct mcd_session *s, const struct mcs_msg_gpu_import *r, int fd)
{
    int res = keep_part(s, r, fd);

    if (res == 0)
        return 0;
    mcd_import_drop(s);
    if (res == -EBADF)
        mcd_session_refuse(
            s, MCS_BAD_SHM,
            "the descriptor is a socket, a pipe, a file or a folder: want one of an exported "
            "allocation (cuMemExportToShareableHandle)");
    else if (res == -EMFILE)
        mcd_session_refuse(s, MCS_LIMIT,
                           "too many descriptors wait to be imported: register smaller ranges, or "
                           "raise the agent's limit "
                           "(ulimit -n, LimitNOFILE=)");
    else
        mcd_session_refuse(s, MCS_NO_MEMORY, "the agent has no memory of its own for the parts");
    return res;
}

void mcd_on_gpu_import(struct mcd_session *s, struct mcs_msg *m, int *fds, unsigned *nfds)
{
    const struct mcs_msg_gpu_import r = m->b.gpu_import;
    const char *wrong = s->import == NULL && s->limbo != NULL
                            ? "it is part of nothing that comes back"
                            : wrong_part(s->import, &r, *nfds);

    if (s->agent->gpu == NULL) { /* there is no import */
        memcpy(s->op.gpu.bytes, r.gpu, sizeof(r.gpu));
        device_of(s);
        return;
    }
    if (wrong != NULL) {
        mcd_import_drop(s);
        mcd_session_refuse(
            s, MCS_INVALID_ARGUMENT,
            "%llu bytes at %llu of %llu, %llu into their allocation, %u descriptors: %s",
            (unsigned long long)r.size, (unsigned long long)r.at, (unsigned long long)r.total,
            (unsigned long long)r.offset, *nfds, wrong);
        return;
    }
    if (add_part(s, &r, r.ipc != 0 ? -1 : fds[0]) != 0)
        return;
    *nfds = 0; /* the session's now */
    if (r.last == 0) {
        m->b.extent_reply = (struct mcs_msg_extent_reply){0};
        mcd_reply(s, m, sizeof(m->b.extent_reply));
        return;
    }
    memcpy(s->op.gpu.bytes, r.gpu, sizeof(r.gpu));
    s->op.length = r.total;
    with_driver(s, s->limbo != NULL ? back_opened : import_opened);
}

/* ---- memory that comes back -------------------------------------------------------------------- */

void mcd_on_gpu_back(struct mcd_session *s, struct mcs_msg *m, struct mcd_ledger_extent *r,
                     int *fds, unsigned *nfds)
{
    bool foreign = (r->flags & MCD_LEDGER_FOREIGN) != 0;
    struct mcs_msg_gpu_import part;
    struct mcd_gpu_import *w;

    if (*nfds != (foreign ? 0 : 1) || m->b.extent_back.size != r->size) {
        s->agent->recovery.refused++;
        mcd_session_refuse(
            s, MCS_BAD_SHM, "GPU memory of %llu bytes with %u descriptors: want %llu bytes, and %s",
            (unsigned long long)m->b.extent_back.size, *nfds, (unsigned long long)r->size,
            foreign ? "no descriptor, since its parts follow"
                    : "the descriptor that it was given with");
        return;
    }
    w = MCS_FAIL(gpu_back_begun) != 0 ? NULL : calloc(1, sizeof(*w));
    if (w == NULL) {
        mcd_session_refuse(s, MCS_NO_MEMORY, "the agent has no memory of its own for the extent");
        return;
    }
    s->import = w;
    w->back = r;
    w->total = r->size;
    memcpy(w->gpu.bytes, r->gpu, sizeof(r->gpu));
    memcpy(s->op.gpu.bytes, r->gpu, sizeof(r->gpu));
    if (foreign) {
        m->b.extent_back_reply =
            (struct mcs_msg_extent_back_reply){.address = r->address, .page_size = r->page_size};
        mcd_reply(s, m, sizeof(m->b.extent_back_reply));
        return;
    }
    part = (struct mcs_msg_gpu_import){.size = r->size, .whole = r->size};
    if (add_part(s, &part, fds[0]) != 0)
        return;
    *nfds = 0; /* the session's now */
    with_driver(s, back_opened);
}
