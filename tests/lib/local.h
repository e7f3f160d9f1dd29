/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection and one queue without an agent: the test takes the descriptors from the
 * ring itself and writes slots and batch lines as an engine would.
 */
#ifndef TEST_LOCAL_H
#define TEST_LOCAL_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/internal.h"

#define LOCAL_EXTENT 7u  /* handle of the extent */
#define LOCAL_SEGMENT 5u /* handle of an open segment, whose buffers nobody knows */
#define LOCAL_SIZE 65536u

struct local {
    struct mcshm *c;
    struct mcshm_queue *q;
    struct mcs_ring_consumer consumer;
    uint8_t *memory; /* the extent */
    int agent;       /* the agent's end of the socket */
};

static inline void *local_zeroed(size_t size)
{
    void *p = aligned_alloc(4096, (size + 4095) & ~(size_t)4095);

    cr_assert_not_null(p);
    memset(p, 0, size);
    return p;
}

/* The test's own, for the suite's fini: the test's variable is gone by then. */
static struct local local_last;

static inline void local_teardown(void)
{
    struct local *l = &local_last;

    if (l->c == NULL)
        return;
    free(l->q->shm.header);
    mcl_queue_free(l->q, false);
    mcl_view_fini(l->c);
    free(l->c->extents);
    free(l->c->region.header);
    close(l->c->socket);
    close(l->c->doorbell);
    munmap(l->c->guard, 4096);
    free(l->memory);
    free(l->c);
    l->c = NULL;
}

static inline void local_setup(struct local *l, uint32_t depth, uint32_t slots, uint32_t batches,
                               uint64_t args_size)
{
    struct mcs_session_header h = {.session_incarnation = 1, .tick_hz = 1000000000};
    struct mcs_queue_layout layout;
    int pair[2];

    l->c = local_zeroed(sizeof(*l->c));
    l->c->guard = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_eq(madvise(l->c->guard, 4096, MADV_WIPEONFORK), 0);
    *l->c->guard = MCL_GUARD_MAGIC;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    l->c->socket = pair[0];
    l->agent = pair[1];
    l->c->doorbell = eventfd(0, EFD_CLOEXEC);
    l->c->half = l->c->region_fd = l->c->stir = -1;
    l->c->view = &l->c->empty;
    l->c->tick_ns = 1.0;
    l->c->control_timeout_ms = 1000;
    pthread_mutex_init(&l->c->mutex, NULL);
    mcs_session_region_create(&l->c->region,
                              local_zeroed(mcs_session_region_size(MCS_INBOX_SIZE_MIN)),
                              MCS_INBOX_SIZE_MIN, &h);

    l->memory = local_zeroed(LOCAL_SIZE);
    l->c->extents = calloc(8, sizeof(*l->c->extents));
    l->c->extents_room = 8;
    l->c->nextents = 1;
    l->c->extents[0] = (struct mcl_extent){.handle = LOCAL_EXTENT,
                                           .fd = -1,
                                           .base = l->memory,
                                           .size = LOCAL_SIZE,
                                           .map_size = LOCAL_SIZE};
    cr_assert_eq(mcl_view_update(l->c, NULL), 0);

    cr_assert_eq(mcs_queue_layout(depth, slots, batches, args_size, &layout), 0);
    l->q = local_zeroed(sizeof(*l->q));
    l->q->fd = -1;
    cr_assert_eq(mcs_queue_create(&l->q->shm, &l->consumer, local_zeroed(layout.total_size),
                                  &layout, 1, 1, 0),
                 0);
    cr_assert_eq(mcl_queue_init(l->q, l->c), 0);
    l->c->queues = l->q;
    local_last = *l;
}

static inline int local_take(struct local *l, struct mcs_desc *out, unsigned max)
{
    int n = mcs_ring_take(&l->consumer, out, max);

    mcs_ring_publish(&l->consumer);
    return n;
}

/* Ends a task as an engine would; `ended` is the batch's count with this one. */
static inline void local_end(struct local *l, const struct mcs_desc *d, uint32_t state,
                             uint32_t error, uint32_t ended, uint32_t failed)
{
    mcs_slot_complete(
        &l->q->shm, d->slot,
        MCS_SLOT_WORD(d->generation, error, MCS_PATH_LOCAL, state | MCS_SLOT_REMOTE_QUIESCED),
        d->length, 10, 20, 30);
    mcs_batch_publish(&l->q->shm, d->batch, d->batch_generation, ended, failed, ended, d->length);
}

static inline mcshm_request local_request(struct local *l, uint64_t length)
{
    return (mcshm_request){.opcode = MCSHM_WRITE,
                           .local = l->memory,
                           .segment = LOCAL_SEGMENT,
                           .remote_address = 0x1000,
                           .length = length};
}

static inline mcshm_batch local_batch(struct local *l, uint32_t tasks)
{
    mcshm_batch b;

    cr_assert_eq(mcshm_batch_alloc(l->q, tasks, &b), MCSHM_OK);
    return b;
}

/* A batch for so many tasks, with this one submitted. */
static inline mcshm_batch local_submit(struct local *l, uint32_t tasks, const mcshm_request *r)
{
    mcshm_batch b = local_batch(l, tasks);

    cr_assert_eq(mcshm_submit(l->q, b, r, 1), MCSHM_OK);
    return b;
}

/* The same, and taken as an engine does. */
static inline mcshm_batch local_submit_taken(struct local *l, uint32_t tasks,
                                             const mcshm_request *r, struct mcs_desc *d)
{
    mcshm_batch b = local_submit(l, tasks, r);

    cr_assert_eq(local_take(l, d, 1), 1);
    return b;
}

/* Registers private memory whose shadow begins at `offset` in the extent. */
static inline void local_private(struct local *l, struct mcl_private *p, uint64_t offset)
{
    p->shadow = l->memory + offset;
    p->next = l->c->privates;
    l->c->privates = p;
    cr_assert_eq(mcl_view_update(l->c, NULL), 0);
}

#endif
