/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"
#include "shm/failpoint.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static mcshm_status take_options(const mcshm_queue_options *o, mcshm_queue_options *out)
{
    *out = (mcshm_queue_options){.size = sizeof(*out)};
    if (o != NULL) {
        if (o->size < sizeof(o->size) || o->size > 4096)
            return mcl_fail(MCSHM_INVALID_ARGUMENT,
                            "queue options.size is %zu: set it to sizeof(mcshm_queue_options)",
                            o->size);
        memcpy(out, o, o->size < sizeof(*out) ? o->size : sizeof(*out));
    }
    if (out->depth != 0 && (out->depth < MCS_QUEUE_DEPTH_MIN || out->depth > MCS_QUEUE_DEPTH_MAX ||
                            (out->depth & (out->depth - 1)) != 0))
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "queue depth %u is not 0 or a power of two from %u to %u", out->depth,
                        MCS_QUEUE_DEPTH_MIN, MCS_QUEUE_DEPTH_MAX);
    if (out->slots > MCS_QUEUE_SLOTS_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "queue slots %u exceed %u", out->slots,
                        MCS_QUEUE_SLOTS_MAX);
    if (out->batches > MCS_QUEUE_BATCHES_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "queue batches %u exceed %u", out->batches,
                        MCS_QUEUE_BATCHES_MAX);
    if (out->args_size > MCS_QUEUE_ARGS_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "queue args_size %llu exceeds %llu bytes",
                        (unsigned long long)out->args_size, (unsigned long long)MCS_QUEUE_ARGS_MAX);
    out->args_size = (out->args_size + MCS_LINE - 1) & ~(uint64_t)(MCS_LINE - 1);
    return MCSHM_OK;
}

int mcl_queue_init(struct mcshm_queue *q, struct mcshm *c)
{
    uint32_t slots = q->shm.slots, batches = q->shm.batches, depth = q->shm.depth;

    q->c = c;
    q->guard = c->guard;
    q->view = &c->empty;
    q->caller_max = c->info.caller_max;
    q->tasks = aligned_alloc(MCS_LINE, ((size_t)slots + 1) / 2 * MCS_LINE);
    q->free_slots = malloc(slots * sizeof(*q->free_slots));
    q->batches = aligned_alloc(MCS_LINE, batches * sizeof(*q->batches));
    q->free_batches = malloc(batches * sizeof(*q->free_batches));
    q->descs = aligned_alloc(MCS_LINE, depth * sizeof(*q->descs));
    q->copies = malloc(depth * sizeof(*q->copies));
    if (q->tasks == NULL || q->free_slots == NULL || q->batches == NULL ||
        q->free_batches == NULL || q->descs == NULL || q->copies == NULL ||
        mcl_args_init(&q->args, (uint32_t)(q->shm.args_size / MCS_LINE)) != 0) {
        if (q->batches != NULL)
            memset(q->batches, 0, batches * sizeof(*q->batches));
        return -ENOMEM;
    }
    memset(q->tasks, 0, slots * sizeof(*q->tasks));
    memset(q->batches, 0, batches * sizeof(*q->batches));
    /* stacks with 0 on top, so that neighbours are used together */
    for (uint32_t i = 0; i < slots; i++)
        q->free_slots[i] = slots - 1 - i;
    q->nfree = slots;
    for (uint32_t i = 0; i < batches; i++) {
        q->free_batches[i] = batches - 1 - i;
        q->batches[i].generation = 1;
    }
    q->nfree_batches = batches;
    return 0;
}

void mcl_queue_free(struct mcshm_queue *q, bool mapped)
{
    for (uint32_t i = 0; q->batches != NULL && i < q->shm.batches; i++)
        free(q->batches[i].slots);
    mcl_args_fini(&q->args);
    for (uint32_t i = 0; q->objects != NULL && i < q->shm.slots; i++)
        free(q->objects[i].stages);
    free(q->objects);
    free(q->object_maps);
    free(q->abandoned);
    free(q->stages);
    free(q->copies);
    free(q->descs);
    free(q->free_batches);
    free(q->batches);
    free(q->free_slots);
    free(q->tasks);
    if (q->fd >= 0)
        close(q->fd);
    if (mapped && q->memory != NULL)
        munmap(q->memory, q->memory_size);
    free(q);
}

/* Maps and checks the region that came with the answer. */
static mcshm_status attach(struct mcshm_queue *q, int fd, uint64_t size)
{
    int res = MCS_FAIL(queue_mapped);

    if (res == 0)
        res = mcs_region_map(fd, size, true, NULL, &q->memory);
    if (res != 0) {
        q->memory = NULL;
        return mcl_fail(MCSHM_NO_MEMORY, "mapping a queue of %llu bytes: %s",
                        (unsigned long long)size, strerror(-res));
    }
    q->memory_size = size;
    (void)madvise(q->memory, size, MADV_DONTFORK);
    res = mcs_queue_attach(&q->shm, q->memory, size);
    if (res == -EPROTONOSUPPORT)
        return mcl_fail(MCSHM_VERSION_MISMATCH,
                        "the agent was built with another shared-memory ABI or another rte_ring: "
                        "use the libmcshm that came with it");
    if (res != 0)
        return mcl_fail(MCSHM_PROTOCOL, "the queue's header contradicts itself");
    return MCSHM_OK;
}

static void tell_close(struct mcshm *c, uint32_t id)
{
    struct mcs_msg m = {.b.queue_close.queue_id = id};

    (void)mcl_call(c, MCS_MSG_QUEUE_CLOSE, &m, -1, NULL);
}

MCSHM_API mcshm_status mcshm_queue_open(mcshm *c, const mcshm_queue_options *options,
                                        mcshm_queue **out)
{
    struct mcs_msg m;
    struct mcs_msg_queue_open_reply r;
    struct mcl_fds fds = {.n = 0};
    struct mcshm_queue *q;
    mcshm_queue_options o;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (out == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_queue_open: out is NULL");
    *out = NULL;
    status = take_options(options, &o);
    if (status != MCSHM_OK)
        return status;
    q = aligned_alloc(MCS_LINE, (sizeof(*q) + MCS_LINE - 1) / MCS_LINE * MCS_LINE);
    if (q == NULL)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for a queue");
    memset(q, 0, sizeof(*q));
    q->fd = -1;

    pthread_mutex_lock(&c->mutex);
    m.b.queue_open = (struct mcs_msg_queue_open){
        .depth = o.depth, .slots = o.slots, .batches = o.batches, .args_size = o.args_size};
    status = mcl_call(c, MCS_MSG_QUEUE_OPEN, &m, -1, &fds);
    if (status != MCSHM_OK)
        goto error_free;
    r = m.b.queue_open_reply;
    if (fds.n != 1) {
        status =
            mcl_fail(MCSHM_PROTOCOL, "the agent's queue came with %u descriptors, not 1", fds.n);
        goto error_close;
    }
    status = attach(q, fds.fd[0], r.total_size);
    if (status != MCSHM_OK)
        goto error_close;
    q->id = r.queue_id;
    if (MCS_FAIL(queue_tables) != 0 || mcl_queue_init(q, c) != 0) {
        status = mcl_fail(MCSHM_NO_MEMORY, "out of memory for a queue of %u slots", q->shm.slots);
        goto error_close;
    }
    if (c->watched) { /* a later agent will want it back */
        q->fd = fds.fd[0];
        fds.n = 0;
    }
    mcl_close_fds(&fds);
    q->next = c->queues;
    c->queues = q;
    pthread_mutex_unlock(&c->mutex);
    *out = q;
    return MCSHM_OK;

error_close:
    mcl_close_fds(&fds);
    tell_close(c, r.queue_id);
error_free:
    pthread_mutex_unlock(&c->mutex);
    mcl_queue_free(q, true);
    return status;
}

static void add_counters(struct mcl_counters *sum, const struct mcl_counters *one)
{
    /* relaxed: partner is the queue's thread, with mcs_count() */
    sum->submitted += mcs_load_relaxed(&one->submitted);
    sum->caller_tasks += mcs_load_relaxed(&one->caller_tasks);
    sum->caller_bytes += mcs_load_relaxed(&one->caller_bytes);
    sum->staged_tasks += mcs_load_relaxed(&one->staged_tasks);
    sum->staged_bytes += mcs_load_relaxed(&one->staged_bytes);
    sum->doorbells += mcs_load_relaxed(&one->doorbells);
    sum->sleeps += mcs_load_relaxed(&one->sleeps);
    sum->ring_full += mcs_load_relaxed(&one->ring_full);
}

/* Private memory that unfinished tasks still hold. What the READs among them brought is not
 * copied back: they were canceled. */
static void release_staged(struct mcshm_queue *q)
{
    for (uint32_t i = 0; q->tasks != NULL && i < q->shm.slots; i++) {
        if ((q->tasks[i].flags & MCL_TASK_OPEN) != 0)
            mcl_stage_release(q, i);
    }
}

MCSHM_API mcshm_status mcshm_queue_close(mcshm_queue *q)
{
    struct mcs_msg m;
    struct mcshm_queue **at;
    struct mcshm *c;
    mcshm_status status = mcl_check_queue(q);

    if (status != MCSHM_OK)
        return status;
    c = q->c;
    pthread_mutex_lock(&c->mutex);
    m.b.queue_close = (struct mcs_msg_queue_close){.queue_id = q->id};
    status = mcl_call(c, MCS_MSG_QUEUE_CLOSE, &m, -1, NULL);
    MCS_FAILPOINT(queue_closing);
    for (at = &c->queues; *at != q;)
        at = &(*at)->next;
    *at = q->next;
    add_counters(&c->closed, &q->counters);
    release_staged(q);
    mcl_view_reclaim(c);
    pthread_mutex_unlock(&c->mutex);
    mcl_queue_free(q, true);
    return status;
}

MCSHM_API mcshm_status mcshm_get_stats(mcshm *c, mcshm_stats *out)
{
    struct mcl_counters sum;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (out == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_get_stats: out is NULL");
    pthread_mutex_lock(&c->mutex);
    sum = c->closed;
    for (struct mcshm_queue *q = c->queues; q != NULL; q = q->next)
        add_counters(&sum, &q->counters);
    pthread_mutex_unlock(&c->mutex);
    *out = (mcshm_stats){
        .submitted = sum.submitted,
        .caller_tasks = sum.caller_tasks,
        .caller_bytes = sum.caller_bytes,
        .staged_tasks = sum.staged_tasks,
        .staged_bytes = sum.staged_bytes,
        .doorbells = sum.doorbells,
        /* relaxed: partner is the receiver of notifications */
        .sleeps = sum.sleeps + mcs_load_relaxed(&c->notify_sleeps),
        .ring_full = sum.ring_full,
        .notifications = mcs_load_relaxed(&c->notifications),
    };
    return MCSHM_OK;
}
