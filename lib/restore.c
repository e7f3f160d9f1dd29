/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a later agent gets back, and which tasks went down with the earlier one.
 *
 * The agent counts in the queue what it takes from the ring, before it executes it.  A later one
 * goes on from there, and says so (mcs_doorbell.resumed): a task that was pushed at a place before
 * it and has not ended in its slot was in the dead agent's hands, and nobody's now.
 */
#include "gpu.h"
#include "shm/failpoint.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* An agent that answers this late hangs. It answers RESUME when it has waited for others, [agent] barrier_ms;
 * options.control_timeout_ms, which is for the caller's calls, may be shorter. */
#define ANSWER_NS INT64_C(120000000000)

/* Gives one thing back. 0; -ENOENT: the agent does not take it, and the log says why. */
static int hand(struct mcshm *c, uint16_t type, struct mcs_msg *m, int fd, const char *what)
{
    struct mcl_fds fds;
    int res = mcl_exchange(c, type, m, fd, &fds, mcl_now_ns() + ANSWER_NS);

    if (res != 0)
        return res;
    mcl_close_fds(&fds);
    if (m->h.status == MCS_OK)
        return 0;
    m->b.error.text[sizeof(m->b.error.text) - 1] = '\0';
    mcl_log(c, MCSHM_LOG_WARNING, "the later agent does not take %s back: %s", what,
            m->b.error.text);
    return -ENOENT;
}

static int allocs_back(struct mcshm *c, const struct mcl_extent *e)
{
    size_t at = 0;

    while (at < c->nallocs) {
        struct mcs_msg m = {.b.allocs_back.extent = e->handle};
        struct mcs_msg_allocs_back *r = &m.b.allocs_back;
        int res;

        for (; at < c->nallocs && r->count < MCS_MSG_ALLOCS_MAX; at++) {
            const struct mcl_alloc *a = &c->allocs[at];

            if (a->extent == e->handle) {
                r->allocs[r->count].offset = a->offset;
                r->allocs[r->count++].size = a->size;
            }
        }
        if (r->count == 0)
            break;
        res = hand(c, MCS_MSG_ALLOCS_BACK, &m, -1, "allocations");
        if (res != 0 && res != -ENOENT)
            return res;
    }
    return 0;
}

/* Another library's memory, which the later agent has to reach by itself. */
static int import_back(struct mcshm *c, const struct mcl_import *import)
{
    int res = 0;

    for (size_t i = 0; i < import->nparts && res == 0; i++) {
        struct mcs_msg m;

        mcl_import_message(import, i, &m);
        res = hand(c, MCS_MSG_GPU_IMPORT, &m, import->parts[i].fd, "registered GPU memory");
    }
    return res;
}

static int extents_back(struct mcshm *c)
{
    for (size_t i = 0; i < c->nextents; i++) {
        struct mcl_extent *e = &c->extents[i];
        struct mcs_msg m = {.b.extent_back = {.extent = e->handle,
                                              .memory = e->gpu ? MCS_MEMORY_GPU : MCS_MEMORY_HOST,
                                              .size = e->size}};
        int res;

        if (e->lost)
            continue;
        res = hand(c, MCS_MSG_EXTENT_BACK, &m, e->fd, "an extent");
        if (res == 0 && e->import != NULL)
            res = import_back(c, e->import);
        else if (res == 0 && !e->memfd)
            res = allocs_back(c, e);
        if (res == -ENOENT)
            e->lost = true;
        else if (res != 0)
            return res;
    }
    return 0;
}

static int queues_back(struct mcshm *c)
{
    for (struct mcshm_queue *q = c->queues; q != NULL; q = q->next) {
        struct mcs_msg m = {.b.queue_back = {.queue_id = q->id,
                                             .depth = q->shm.depth,
                                             .slots = q->shm.slots,
                                             .batches = q->shm.batches,
                                             .args_size = q->shm.args_size}};
        int res;

        if (mcs_load_relaxed(&q->lost) != 0)
            continue;
        res = hand(c, MCS_MSG_QUEUE_BACK, &m, q->fd, "a queue");
        if (res == -ENOENT)
            mcs_store_relaxed(&q->lost, 1u); /* partner: mcl_task_lost() */
        else if (res != 0)
            return res;
        /* its engines may sleep where those before did not; partner: mcs_queue_must_wake() */
        mcs_store_relaxed(&q->shm.never_sleeps, (mcs_load_relaxed(&q->shm.header->features) &
                                                 MCS_FEATURE_NEVER_SLEEPS) != 0);
    }
    return 0;
}

static int buffers_back(struct mcshm *c)
{
    for (size_t i = 0; i < c->nbuffers; i++) {
        const struct mcl_buffer *b = &c->buffers[i];
        const struct mcl_extent *e = NULL;

        for (size_t k = 0; k < c->nextents && e == NULL; k++) {
            if ((uintptr_t)b->start - (uintptr_t)c->extents[k].base < c->extents[k].size)
                e = &c->extents[k];
        }
        /* as often as it was published: it goes when it is withdrawn as often */
        for (uint32_t n = 0; e != NULL && !e->lost && n < b->references; n++) {
            struct mcs_msg m = {.b.buffer = {.extent = e->handle,
                                             .access = b->access,
                                             .offset = (uint64_t)(b->start - e->base),
                                             .length = b->size}};
            int res = hand(c, MCS_MSG_BUFFER_ADD, &m, -1, "a buffer");

            if (res == -ENOENT)
                break;
            if (res != 0)
                return res;
        }
    }
    return 0;
}

static int segments_back(struct mcshm *c)
{
    for (size_t i = 0; i < c->nsegments; i++) {
        const struct mcl_segment *s = &c->segments[i];
        struct mcs_msg m = {.b.open_back = {.segment = s->handle, .incarnation = s->incarnation}};
        int res;

        snprintf(m.b.open_back.name, sizeof(m.b.open_back.name), "%s", s->name);
        res = hand(c, MCS_MSG_OPEN_BACK, &m, -1, s->name);
        if (res != 0 && res != -ENOENT) /* refused: its tasks will say STALE */
            return res;
    }
    return 0;
}

/* From now on tasks are judged anew. */
static void resumed(struct mcshm *c)
{
    const uint64_t one = 1;

    for (struct mcshm_queue *q = c->queues; q != NULL; q = q->next) {
        uint32_t from;

        (void)mcs_queue_life(&q->shm, &from);
        mcs_store_relaxed(&q->resumed, from);
    }
    /* release: pairs with the acquire in mcl_task_lost() */
    mcs_store_release(&c->restarts, c->restarts + 1);
    MCS_FAILPOINT(resume_told);
    /* What was pushed in between rang a doorbell that nobody heard. */
    while (write(c->doorbell, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
    /* Who sleeps on a batch may be waiting for a task that was lost. Who is about to sleep looks
     * again soon. */
    for (struct mcshm_queue *q = c->queues; q != NULL; q = q->next) {
        uint32_t waiter = mcs_load_relaxed(&q->shm.doorbell->waiters); /* mcs_queue_wait_begin() */

        if (waiter != MCS_WAIT_NONE && waiter <= q->shm.batches)
            syscall(SYS_futex, &q->shm.batch_lines[waiter - 1].word, FUTEX_WAKE, INT_MAX, NULL,
                    NULL, 0);
    }
    mcl_log(c, MCSHM_LOG_WARNING, "back with a later agent: %zu extents, %zu open segments",
            c->nextents, c->nsegments);
}

int mcl_hand_back(struct mcshm *c)
{
    struct mcs_msg m;
    int res = extents_back(c);

    if (res == 0)
        MCS_FAILPOINT(extents_back);
    if (res == 0)
        res = queues_back(c);
    if (res == 0)
        MCS_FAILPOINT(queues_back);
    /* a withdrawal under way has taken them back, and the agent may have lived to forget the name */
    if (res == 0 && c->calling != MCS_MSG_WITHDRAW)
        res = buffers_back(c);
    if (res == 0)
        res = segments_back(c);
    if (res == 0)
        MCS_FAILPOINT(resume_send);
    if (res == 0)
        res = hand(c, MCS_MSG_RESUME, &m, -1, "the session");
    if (res == 0)
        MCS_FAILPOINT(resume_answered);
    if (res == 0)
        resumed(c);
    return res == -ENOENT ? -EPROTO : res;
}

void mcl_regrant(struct mcshm *c)
{
    /* each call may lose the agent once more, and a later one knows none of them again */
    while (c->grants_due && !c->away && !mcl_down(c)) {
        c->grants_due = false;
        mcl_maps_renew(c);
        mcl_object_maps_renew(c);
        mcl_grants_renew(c);
    }
}

uint64_t mcl_task_lost(const struct mcshm_queue *q, uint32_t slot)
{
    const struct mcl_task *t = &q->tasks[slot];
    /* acquire: pairs with the release in resumed() */
    uint32_t restarts = mcs_load_acquire(&q->c->restarts);
    uint64_t word;

    if (restarts == 0 || (t->flags & MCL_TASK_CALLER) != 0)
        return 0;
    /* What was submitted since then is not lost, wherever its place has wrapped to. */
    if (mcs_load_relaxed(&q->lost) == 0 &&
        (t->flags >> 16 == (restarts & 0xffff) ||
         (int32_t)(t->place - mcs_load_relaxed(&q->resumed)) >= 0))
        return 0;
    /* nobody fills the slot any more; but somebody may have since the last look */
    word = mcs_slot_peek(&q->shm, slot);
    if (word >> 32 == t->generation &&
        (word & 0xff & ~MCS_SLOT_REMOTE_QUIESCED) >= MCS_STATE_INVALID)
        return word;
    return MCS_SLOT_WORD(t->generation, MCS_AGENT_RESTARTED, MCS_PATH_NONE, MCS_STATE_FAILED);
}
