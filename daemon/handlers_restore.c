/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control requests of a client that comes back to a later agent: RESTORE names its session, the
 * others hand over what it has, RESUME ends it.  Whatever comes is compared with the ledger, which
 * no client can reach; what the ledger does not know is refused, and what it knows and the
 * client does not hand back is given up at RESUME.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"
#include "gpu_memory.h"
#include "handlers.h"
#include "log.h"
#include "store.h"
#include "shm/region.h"
#include "shm/failpoint.h"

bool mcd_is_for_restore(uint16_t type)
{
    return type == MCS_MSG_EXTENT_BACK || type == MCS_MSG_ALLOCS_BACK ||
           type == MCS_MSG_QUEUE_BACK || type == MCS_MSG_OPEN_BACK || type == MCS_MSG_BUFFER_ADD ||
           type == MCS_MSG_RESUME || type == MCS_MSG_GPU_IMPORT;
}

static void refuse(struct mcd_session *s, uint32_t status, const char *text)
{
    s->agent->recovery.refused++;
    mcd_session_refuse(s, status, "%s", text);
}

static const char *wrong_fd(int res)
{
    return res == -ESTALE  ? "another memfd than the one that the session was given"
           : res == -EPERM ? "the memfd is not sealed against shrinking"
           : res == -EBADF ? "not a memfd that is open for reading and writing"
                           : "the memfd has another size than the one that the session was given";
}

/* ---- RESTORE ---------------------------------------------------------------------------- */

/* Is fd the memfd with that inode, of at least that size, and safe to touch? */
static int check_fd(int fd, uint64_t size, uint64_t ino, uint64_t dev)
{
    uint64_t page_size;
    struct stat st;
    int res = mcs_region_check(fd, size, &page_size);

    if (res != 0)
        return res;
    if (fstat(fd, &st) != 0 || st.st_ino != ino || st.st_dev != dev)
        return -ESTALE;
    return 0;
}

/* The session's region as the client has kept it. All of it is the client's word but its size. */
static int take_region(struct mcd_session *s, int fd)
{
    const struct mcd_ledger_session *r = s->record;
    uint64_t size = mcs_session_region_size(r->inbox_size);
    struct mcs_session_region region;
    uint64_t head, tail;
    void *mem = NULL;
    int guard, res;

    res = check_fd(fd, size, r->region_ino, r->region_dev);
    if (res == 0)
        res = MCS_FAIL(restore_region);
    if (res != 0)
        return res;
    res = mcs_region_map(fd, size, true, NULL, &mem);
    if (res != 0)
        return res;
    guard = mcd_fault_add(mem, size);
    if (guard < 0) {
        mcs_region_unmap(mem, size);
        return -ENOMEM;
    }
    res = mcs_session_region_resume(&region, mem, r->inbox_size, s->incarnation,
                                    s->agent->incarnation, mcd_features(s->agent), &head, &tail);
    if (res != 0) {
        mcd_fault_remove(guard);
        mcs_region_unmap(mem, size);
        return -EPROTO;
    }
    s->region = region;
    s->inbox_head = head;
    s->grants_version = mcs_load_relaxed(&region.words->grants_version);
    s->objects_gone = mcs_load_relaxed(&region.words->objects_gone);
    s->region_guard = guard;
    s->region_fd = fd;
    return 0;
}

void mcd_on_restore(struct mcd_session *t, struct mcs_msg *m, int *fds, unsigned *nfds)
{
    const struct mcs_msg_restore r = m->b.restore;
    struct mcd_agent *a = t->agent;
    struct mcd_session *s;
    int doorbell, res;

    if (r.abi_version != MCS_ABI_VERSION) {
        a->version_errors++;
        refuse(t, MCS_VERSION,
               "the client was built for another shared-memory ABI than this agent: install "
               "libmcshm and mcshmd of one version and start the client again");
        mcd_session_end(t, "built for another ABI version");
        return;
    }
    if (*nfds != 1) {
        refuse(t, MCS_BAD_SHM, "no descriptor of the session's memory came along");
        return;
    }
    s = mcd_limbo_find(a, r.session_incarnation);
    if (s == NULL) {
        refuse(t, MCS_NOT_FOUND,
               "this agent took no such session over, or it is back already: connect anew");
        return;
    }
    if (t->uid != s->uid || t->pid != s->pid) {
        refuse(t, MCS_PERMISSION,
               "the session is another process's: only the one that connected can come back");
        return;
    }
    doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (doorbell < 0) {
        refuse(t, MCS_LIMIT, "the agent has no descriptor left: raise its limit (LimitNOFILE=)");
        return;
    }
    res = take_region(s, fds[0]);
    if (res == -EPROTO) {
        close(doorbell);
        refuse(t, MCS_BAD_SHM, "the session's memory contradicts itself");
        return;
    }
    if (res != 0) {
        close(doorbell);
        refuse(t, res == -ENOMEM ? MCS_NO_MEMORY : MCS_BAD_SHM,
               res == -ENOMEM ? "no memory for the session" : wrong_fd(res));
        return;
    }
    *nfds = 0; /* the session's now */
    s->doorbell = doorbell;
    if (mcd_store_session_new(s) != 0) /* then it holds nothing in place: LIMIT */
        mcd_log_limited(MCD_LOG_WARNING, "session %u: no memory for its holds of objects", s->id);
    mcd_limbo_arrive(s);
    mcd_session_move(s, t);
    if (!s->ending)
        mcd_reply_hello(s, &s->doorbell, 1);
}

/* ---- extents ---------------------------------------------------------------------------- */

void mcd_on_extent_back(struct mcd_session *s, struct mcs_msg *m, int *fds, unsigned *nfds)
{
    const struct mcs_msg_extent_back r = m->b.extent_back;
    struct mcd_limbo *l = s->limbo;
    uint32_t i = 0;
    struct mcd_extent *e = NULL;
    int res;

    while (i < l->nextents && l->extents[i]->handle != r.extent)
        i++;
    if (i == l->nextents || s->extents[MCD_HANDLE_INDEX(r.extent)] != NULL) {
        refuse(s, MCS_NOT_FOUND, "the ledger knows no such extent of this session, or it is back");
        return;
    }
    if (r.memory == MCS_MEMORY_GPU && (l->extents[i]->flags & MCD_LEDGER_GPU) != 0) {
        mcd_on_gpu_back(s, m, l->extents[i], fds, nfds);
        return;
    }
    if (r.memory != MCS_MEMORY_HOST || (l->extents[i]->flags & MCD_LEDGER_GPU) != 0) {
        refuse(s, MCS_BAD_SHM, "the extent is of another kind of memory");
        return;
    }
    if (*nfds != 1 || r.size != l->extents[i]->size) {
        refuse(s, MCS_BAD_SHM,
               *nfds != 1 ? "no descriptor of the extent came along"
                          : "the extent has another size");
        return;
    }
    res = MCS_FAIL(restore_extent);
    if (res == 0)
        res = mcd_extent_take_back(&s->agent->pool, l->extents[i], fds[0], &e);
    if (res != 0) {
        bool memory = res == -ENOMEM || res == -EMFILE;

        refuse(s, memory ? MCS_NO_MEMORY : MCS_BAD_SHM,
               memory ? "no memory to map the extent" : wrong_fd(res));
        return;
    }
    *nfds = 0; /* the extent's now */
    mcd_limbo_take(s, e->record);
    mcd_session_enter_extent(s, e);
    mcd_gpu_pin(s->agent, e, NULL); /* nor for this */
    if (s->agent->registry.rdma !=
        NULL) /* nobody waits for it: until then it goes over other transports */
        (void)mcd_registration_create_whole(&s->agent->registry, e, NULL, NULL);
    MCS_FAILPOINT(restore_entered);
    m->b.extent_back_reply =
        (struct mcs_msg_extent_back_reply){.address = e->address, .page_size = e->kind.page_size};
    mcd_reply(s, m, sizeof(m->b.extent_back_reply));
}

/* A limit that is lower than it was takes nothing from those who have more. */
static uint64_t allocs_max(const struct mcd_agent *a)
{
    uint64_t most = mcd_ledger_head(a->recovery.ledger)->most_allocs;

    return most > a->config.max_allocs ? most : a->config.max_allocs;
}

void mcd_on_allocs_back(struct mcd_session *s, struct mcs_msg *m)
{
    const struct mcs_msg_allocs_back *r = &m->b.allocs_back;
    struct mcd_extent *e = mcd_session_extent(s, r->extent);
    uint32_t i = 0;

    if (e == NULL || e->alloc == NULL) {
        refuse(s, MCS_INVALID_HANDLE, "not an extent that came back and that has allocations");
        return;
    }
    if (r->count == 0 || r->count > MCS_MSG_ALLOCS_MAX) {
        refuse(s, MCS_INVALID_ARGUMENT, "want 1 to 128 allocations in a message");
        return;
    }
    if ((uint64_t)s->nallocs + r->count > allocs_max(s->agent)) {
        e->partial = true; /* the client has them all the same */
        refuse(s, MCS_LIMIT, "more allocations than [session] max_allocs ever let a session have");
        return;
    }
    while (i < r->count && mcd_alloc_take_at(e->alloc, r->allocs[i].offset, r->allocs[i].size) == 0)
        i++;
    if (i < r->count) {
        while (i-- > 0)
            mcd_alloc_give(e->alloc, r->allocs[i].offset);
        e->partial = true;
        refuse(s, MCS_BAD_RANGE,
               "allocations must lie in the extent, overlap none, and come in rising order");
        return;
    }
    s->nallocs += i;
    mcd_reply_empty(s);
}

/* ---- queues ----------------------------------------------------------------------------- */

static struct mcd_queue *new_queue(struct mcd_session *s, struct mcd_ledger_queue *r,
                                   const struct mcs_queue_layout *layout)
{
    struct mcd_queue *q = aligned_alloc(64, (sizeof(*q) + 63) & ~(size_t)63);
    struct mcd_agent *a = s->agent;

    if (q == NULL)
        return NULL;
    memset(q, 0, sizeof(*q));
    q->session = s;
    q->tenant = s->account;
    q->id = r->id;
    q->fd = q->guard = -1;
    q->shm.slots = r->slots;
    q->shm.batches = r->batches;
    q->memory = layout->total_size + r->slots * sizeof(struct mcd_task) +
                MCD_TRACE_SIZE * sizeof(struct mcd_traced);
    s->agent->queue_memory += q->memory;
    s->account->queues++;
    q->engine = a->engines[a->next_engine++ % a->nengines];
    mcd_stats_queue(s, q);
    return q;
}

/* The engine goes on counting where the lines stand. They are the client's word about the client's
 * own batches. */
static void load_batches(struct mcd_queue *q)
{
    for (uint32_t i = 0; i < q->shm.batches; i++) {
        uint64_t word = mcs_batch_peek(&q->shm, i); /* S2; its writer is dead */
        const struct mcs_batch_line *line = &q->shm.batch_lines[i];

        q->batches[i] = (struct mcd_batch){
            .generation = (uint32_t)(word >> 32),
            .ended = (uint32_t)word,
            .failed = mcs_load_relaxed(&line->failed),
            .taken = mcs_load_relaxed(&line->taken),
            .bytes = mcs_load_relaxed(&line->bytes),
        };
    }
}

static int map_queue(struct mcd_session *s, struct mcd_queue *q, const struct mcd_ledger_queue *r,
                     const struct mcs_queue_layout *layout, int fd)
{
    void *mem = NULL;
    int res;

    res = check_fd(fd, layout->total_size, r->ino, r->dev);
    if (res != 0)
        return res;
    res = mcs_region_map(fd, layout->total_size, true, NULL, &mem);
    if (res != 0)
        return -ENOMEM;
    q->guard = mcd_fault_add(mem, layout->total_size);
    if (q->guard < 0) {
        mcs_region_unmap(mem, layout->total_size);
        return -ENOMEM;
    }
    q->shm.header = mem;
    q->shm.total_size = layout->total_size;
    res = mcs_queue_resume(&q->shm, &q->consumer, mem, layout, q->id, s->incarnation,
                           mcd_features(s->agent));
    if (res != 0) {
        /* the view may be of another size by now */
        q->shm = (struct mcs_queue){.header = mem, .total_size = layout->total_size};
        return -EPROTO;
    }
    res = mcd_queue_init(q);
    if (res != 0)
        return res;
    load_batches(q);
    return mcd_fault_happened(q->guard) ? -EPROTO : 0;
}

void mcd_on_queue_back(struct mcd_session *s, struct mcs_msg *m, int *fds, unsigned *nfds)
{
    const struct mcs_msg_queue_back w = m->b.queue_back;
    struct mcd_limbo *l = s->limbo;
    struct mcs_queue_layout layout;
    struct mcd_ledger_queue *r;
    struct mcd_queue *q;
    uint32_t i = 0;
    int res;

    while (i < l->nqueues && l->queues[i]->id != w.queue_id)
        i++;
    if (i == l->nqueues) {
        refuse(s, MCS_NOT_FOUND, "the ledger knows no such queue of this session, or it is back");
        return;
    }
    r = l->queues[i];
    if (*nfds != 1 || w.depth != r->depth || w.slots != r->slots || w.batches != r->batches ||
        w.args_size != r->args_size ||
        mcs_queue_layout(r->depth, r->slots, r->batches, r->args_size, &layout) != 0) {
        refuse(s, MCS_BAD_SHM, "a queue of other sizes than the session was given");
        return;
    }
    q = MCS_FAIL(restore_queue) != 0 ? NULL : new_queue(s, r, &layout);
    res = q == NULL ? -ENOMEM : map_queue(s, q, r, &layout, fds[0]);
    if (res == 0) {
        if ((s->watched >> q->engine->o.id & 1) == 0) {
            res = mcd_engine_watch(q->engine, s->doorbell);
            if (res == 0)
                s->watched |= UINT64_C(1) << q->engine->o.id;
        }
    }
    if (res != 0) {
        if (q != NULL)
            mcd_session_free_queue(s, q);
        refuse(s, res == -ENOMEM ? MCS_NO_MEMORY : MCS_BAD_SHM,
               res == -ENOMEM   ? "no memory for the queue"
               : res == -EPROTO ? "the queue's memory contradicts itself or the ledger"
                                : wrong_fd(res));
        return;
    }
    *nfds = 0;
    q->fd = fds[0];
    q->record = r;
    l->queues[i] = l->queues[--l->nqueues];
    MCS_FAILPOINT(restore_queued);
    q->next = s->queues;
    s->queues = q;
    s->nqueues++;
    m->b.queue_open_reply = (struct mcs_msg_queue_open_reply){
        .queue_id = q->id, .engine = q->engine->o.id, .total_size = q->shm.total_size};
    mcd_reply(s, m, sizeof(m->b.queue_open_reply));
}

/* ---- RESUME ------------------------------------------------------------------------------- */

static bool queues_given(struct mcd_session *s)
{
    for (const struct mcd_queue *q = s->queues; q != NULL; q = q->next)
        if (mcs_load_acquire(&q->leave.done) == 0) /* partner: finish_command() in engine.c */
            return false;
    return true;
}

static void resumed(struct mcd_session *s)
{
    MCS_FAILPOINT(resume_done);
    if (!s->ending)
        mcd_reply_empty(s);
}

static bool all_are_back(struct mcd_session *s)
{
    return s->ending || mcd_recovery_over(s->agent);
}

static void give_queues(struct mcd_session *s)
{
    if (s->ending)
        return; /* what it has goes with it */
    mcd_limbo_leave(s);
    s->restored = true;
    for (struct mcd_queue *q = s->queues; q != NULL; q = q->next) {
        mcs_queue_resumed(&q->shm, &q->consumer, s->agent->incarnation);
        q->leave = (struct mcd_command){.kind = MCD_COMMAND_ADD, .queue = q};
        q->given = true;
        mcd_engine_command(q->engine, &q->leave);
        MCS_FAILPOINT(resume_given);
    }
    mcd_session_defer(s, queues_given, resumed);
}

void mcd_on_resume(struct mcd_session *s)
{
    s->limbo->asked = true;
    s->agent->recovery.coming--;
    MCS_FAILPOINT(resume_asked);
    mcd_session_defer(s, all_are_back, give_queues);
}
