/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an earlier agent has left, for fuzz_control.c: a ledger with two sessions in it, with the memory
 * that their clients have kept; records and memory are damaged as the input says.
 */
#ifndef FUZZ_LIMBO_H
#define FUZZ_LIMBO_H

#include <sys/stat.h>
#include <unistd.h>

#include "daemon/agent.h"
#include "daemon/limbo.h"
#include "input.h"
#include "shm/region.h"

#define LIMBO_SESSIONS 2u
#define LIMBO_EXTENTS 4u /* by number: the bits of its flags */
#define LIMBO_EXTENT_SIZE 16384u
#define LIMBO_SESSION(k) (UINT64_C(100) + (k)) /* incarnations */
#define LIMBO_SEGMENT(k) (UINT64_C(200) + (k))
#define LIMBO_HANDLE(i) (0x80001000u + (i))
#define LIMBO_QUEUE 3u /* its id */

/* What the client of a session has kept; -1: nothing. */
struct limbo_kept {
    int region, extents[LIMBO_EXTENTS], queue;
};

static struct limbo_kept limbo_kept[LIMBO_SESSIONS];
static struct mcs_queue_layout limbo_layout;

static void limbo_memory(uint64_t size, int *fd, void **mem, uint64_t *ino, uint64_t *dev)
{
    struct stat st;

    fz_must(mcs_region_create("fuzz", size, 0, -1, NULL, fd, mem) == 0, "no memory");
    fz_must(fstat(*fd, &st) == 0, "fstat");
    *ino = st.st_ino;
    *dev = st.st_dev;
}

/* Some bytes of a record or of memory are others. */
static void limbo_damage(struct fz *z, void *p, size_t size)
{
    uint8_t how = fz_u8(z);

    if (how < 0xe0)
        return;
    for (unsigned i = 0; i < how % 8u; i++)
        ((uint8_t *)p)[fz_u16(z) % size] = fz_u8(z);
}

static inline void limbo_session(struct mcd_ledger *l, struct fz *z, unsigned k)
{
    struct mcs_session_header h = {.agent_incarnation = 1, .session_incarnation = LIMBO_SESSION(k)};
    struct mcd_ledger_session r = {
        .incarnation = LIMBO_SESSION(k),
        .segment = LIMBO_SEGMENT(k),
        .tenant = getuid(),
        .started = mcd_process_started(getpid()),
        .inbox_size = MCS_INBOX_SIZE_MIN,
        .id = k + 1,
        .pid = getpid(),
        .uid = getuid(),
        .gid = getgid(),
        .name = "kept",
        .writable = fz_u8(z) % 2,
    };
    struct mcd_ledger_session *in;
    struct mcs_session_region region;
    void *mem;

    limbo_memory(mcs_session_region_size(MCS_INBOX_SIZE_MIN), &limbo_kept[k].region, &mem,
                 &r.region_ino, &r.region_dev);
    mcs_session_region_create(&region, mem, MCS_INBOX_SIZE_MIN, &h);
    limbo_damage(z, mem, 1024);
    mcs_region_unmap(mem, region.total_size);
    limbo_damage(z, &r.incarnation, sizeof(r) - sizeof(r.check));
    in = mcd_ledger_add(l, MCD_LEDGER_SESSION, &r);
    fz_must(in != NULL, "no memory");
    if (fz_u8(z) < 0xc0)
        mcd_ledger_name(in, k == 0 ? "a" : "b", 0);
}

static inline void limbo_extent(struct mcd_agent *a, struct fz *z, unsigned k, unsigned i)
{
    struct mcd_ledger_extent r = {
        .session = LIMBO_SESSION(k),
        .size = LIMBO_EXTENT_SIZE,
        .page_size = 4096,
        .address = a->config.address_base + (UINT64_C(1) << 40) +
                   (k * LIMBO_EXTENTS + i) * LIMBO_EXTENT_SIZE,
        .handle = LIMBO_HANDLE(i),
        .id = 10 + k * LIMBO_EXTENTS + i,
        .node = -1,
        .flags = i,
    };
    void *mem;

    limbo_memory(r.size, &limbo_kept[k].extents[i], &mem, &r.ino, &r.dev);
    mcs_region_unmap(mem, r.size);
    if ((r.flags & MCD_LEDGER_GPU) != 0)
        memset(r.gpu, 0x10, sizeof(r.gpu)); /* the first device of the played driver */
    limbo_damage(z, &r.session, sizeof(r) - sizeof(r.check));
    fz_must(mcd_ledger_add(a->recovery.ledger, MCD_LEDGER_EXTENT, &r) != NULL, "no memory");
}

static inline void limbo_queue(struct mcd_ledger *l, struct fz *z, unsigned k)
{
    struct mcd_ledger_queue r = {.session = LIMBO_SESSION(k),
                                 .id = LIMBO_QUEUE,
                                 .depth = 16,
                                 .slots = 32,
                                 .batches = 8,
                                 .args_size = 4096};
    struct mcs_ring_consumer consumer;
    struct mcs_queue q;
    void *mem;

    fz_must(mcs_queue_layout(r.depth, r.slots, r.batches, r.args_size, &limbo_layout) == 0,
            "layout");
    limbo_memory(limbo_layout.total_size, &limbo_kept[k].queue, &mem, &r.ino, &r.dev);
    fz_must(mcs_queue_create(&q, &consumer, mem, &limbo_layout, r.id, r.session, 0) == 0, "queue");
    limbo_damage(z, mem, limbo_layout.total_size);
    limbo_damage(z, q.doorbell, sizeof(*q.doorbell) + 256);
    mcs_region_unmap(mem, limbo_layout.total_size);
    limbo_damage(z, &r.session, sizeof(r) - sizeof(r.check));
    fz_must(mcd_ledger_add(l, MCD_LEDGER_QUEUE, &r) != NULL, "no memory");
}

/* The ledger goes through the hands of a reader, who drops what is not sound. */
static inline void limbo_begin(struct mcd_agent *a, struct fz *z)
{
    struct mcd_ledger *l;
    int fd;

    fz_must(mcd_ledger_create(&a->recovery.ledger) == 0, "no memory");
    l = a->recovery.ledger;
    for (unsigned k = 0; k < LIMBO_SESSIONS; k++) {
        limbo_session(l, z, k);
        for (unsigned i = 0; i < LIMBO_EXTENTS; i++)
            limbo_extent(a, z, k, i);
        limbo_queue(l, z, k);
    }
    mcd_ledger_head(l)->incarnation = 1;
    fd = dup(mcd_ledger_fd(l));
    mcd_ledger_destroy(l);
    a->recovery.ledger = NULL;
    if (fz_u8(z) >= 0xf0) { /* damage without a good check, anywhere in it */
        uint8_t bytes[16];

        fz_take(z, bytes, sizeof(bytes));
        for (unsigned i = 0; i < 4; i++)
            fz_must(pwrite(fd, bytes, sizeof(bytes), fz_u16(z) * UINT64_C(8)) > 0, "pwrite");
    }
    if (mcd_ledger_adopt(fd, &a->recovery.ledger) != 0) {
        close(fd);
        fz_must(mcd_ledger_create(&a->recovery.ledger) == 0, "no memory");
    }
    a->pool.ledger = a->recovery.ledger;
    a->config.barrier_ms = fz_u8(z) % 3;
    mcd_recovery_begin(a);
    mcd_recovery_serve(a);
}

/* Nothing of it is left; the next input begins anew. */
static inline void limbo_end(struct mcd_agent *a)
{
    for (unsigned k = 0; k < LIMBO_SESSIONS; k++) {
        close(limbo_kept[k].region);
        close(limbo_kept[k].queue);
        for (unsigned i = 0; i < LIMBO_EXTENTS; i++)
            close(limbo_kept[k].extents[i]);
    }
    fz_must(a->recovery.away == 0 && a->recovery.coming == 0, "%u away, %u coming",
            a->recovery.away, a->recovery.coming);
    for (int kind = MCD_LEDGER_SESSION; kind < MCD_LEDGER_KINDS; kind++)
        fz_must(mcd_ledger_next(a->recovery.ledger, (enum mcd_ledger_kind)kind, NULL) == NULL,
                "the ledger still has something of kind %d", kind);
    mcd_ledger_destroy(a->recovery.ledger);
    a->recovery = (struct mcd_recovery){.ledger = NULL};
    a->pool.ledger = NULL;
}

#endif
