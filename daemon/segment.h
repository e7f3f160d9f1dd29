/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: what a session has published.  The control thread changes them; engines read
 * one immutable snapshot of the buffers at a time.  A change makes a new snapshot, swaps
 * the pointer, and frees the old one after a grace period (grace.h): once that is over, no
 * engine can reach what was taken away.
 */
#ifndef MCD_SEGMENT_H
#define MCD_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "extent.h"
#include "shm/abi.h"
#include "shm/atomic.h"

/* Buffers of one segment: each change copies the list, and `mcshm ls` shows all of them. */
#define MCD_BUFFERS_MAX 32768u

struct mcd_buffer {
    uint64_t address; /* published */
    uint64_t length;
    struct mcd_extent *extent; /* NULL: at another agent */
    uint64_t offset;           /* of the buffer in the extent */
    uint32_t access;           /* MCS_ACCESS_* */
    uint32_t count;            /* times this very range was published */
    int32_t node;              /* NUMA node of the memory, -1 unknown */
    bool gpu;                  /* at another agent: it is a GPU's */
    /* At another agent: RDMA keys, in the snapshot's blocks; NULL: it has none. */
    const struct mct_rdma_keys *keys;
    /* Of this host, for the control thread: what peers' devices reach it by; NULL: none. */
    struct mcd_registration *registration;
};

/* Memory that a description's keys lie in. */
struct mcd_snapshot_block {
    struct mcd_snapshot_block *next;
    uint64_t bytes[];
};

struct mcd_snapshot {
    struct mcd_snapshot_block *blocks;
    uint32_t count;
    struct mcd_buffer buffers[]; /* by rising address, none overlapping */
};

struct mcd_segment {
    struct mcd_snapshot *snapshot; /* engines: acquire; control: release */
    uint64_t tenant;
    struct mcd_session *owner; /* engines use only its inbox; NULL once it is gone */
    struct mcd_remote *remote; /* its owner is at another agent; set before it can be found */
    bool stale;                /* a handle of an earlier agent's life leads to nothing; likewise */
    /* control thread only */
    void (*gone)(
        struct mcd_segment *s); /* called by the last put, before it is freed; may be NULL */
    uint64_t incarnation;
    uint64_t version;
    struct mcd_registration
        *dropped; /* of buffers that were taken out or cut: see mcd_segment_dropped() */
    uint32_t flags;
    bool named;
    bool agents; /* the agent's own: its store, for peers' agents alone; it has no owner */
    char name[MCS_NAME_MAX];
    unsigned refs;                   /* the owner and each open handle */
    struct mcd_segment *prev, *next; /* of those with a name */
};

/* The buffer that holds [address, address + length), or NULL. Engine or control thread. */
static inline const struct mcd_buffer *mcd_snapshot_find(const struct mcd_snapshot *s,
                                                         uint64_t address, uint64_t length)
{
    uint32_t low = 0, high = s->count;

    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;

        if (s->buffers[mid].address <= address)
            low = mid;
        else
            high = mid;
    }
    if (low == high || address < s->buffers[low].address ||
        address - s->buffers[low].address > s->buffers[low].length ||
        length > s->buffers[low].length - (address - s->buffers[low].address))
        return NULL;
    return &s->buffers[low];
}

/* The RDMA keys of the buffer that holds the range and has the right; NULL: there are none. likely: a buffer of
 * this snapshot, or the one before, to look at first; or NULL. Engine. */
static inline const struct mct_rdma_keys *mcd_snapshot_keys(const struct mcd_snapshot *s,
                                                            const struct mcd_buffer *likely,
                                                            uint64_t address, uint64_t length,
                                                            uint32_t right)
{
    const struct mcd_buffer *b = likely;

    if (b == NULL || address < b->address || address - b->address > b->length ||
        length > b->length - (address - b->address))
        b = mcd_snapshot_find(s, address, length);
    return b != NULL && (b->access & right) != 0 ? b->keys : NULL;
}

/* A segment without name and buffers; NULL when memory is out. One reference. */
struct mcd_segment *mcd_segment_create(struct mcd_session *owner, uint64_t tenant,
                                       uint64_t incarnation);
struct mcd_segment *mcd_segment_get(struct mcd_segment *s);
/* The last put frees it; engines must not find it any more. */
void mcd_segment_put(struct mcd_segment *s);

/* With its blocks; NULL is none. */
void mcd_snapshot_free(struct mcd_snapshot *s);

/* What mcd_segment_add() would say: 0; -EALREADY: this very buffer is there, and would be counted once more;
 * -EEXIST; -ENOSPC. */
int mcd_segment_may_add(const struct mcd_segment *s, const struct mcd_extent *e, uint64_t offset,
                        uint64_t length, uint32_t access);
/* The registration is that of the buffer with just this range from now on. False: there is no such buffer. */
bool mcd_segment_attach(struct mcd_segment *s, const struct mcd_extent *e, uint64_t offset,
                        uint64_t length, struct mcd_registration *r);
/* Takes the registrations of buffers that are not there any more, a list by `dropped`. They are the caller's, to drop after
 * the grace period and when the engines are quiet. */
struct mcd_registration *mcd_segment_dropped(struct mcd_segment *s);

/*
 * Each of these makes the next snapshot. *old is then the caller's to free after a grace
 * period; NULL when nothing changed.
 */
/* 0; -EEXIST: overlaps another buffer, or the same range with other rights; -ENOSPC: there are
 * MCD_BUFFERS_MAX of them; -ENOMEM. */
int mcd_segment_add(struct mcd_segment *s, struct mcd_extent *e, uint64_t offset, uint64_t length,
                    uint32_t access, struct mcd_snapshot **old);
/* 0; -ENOENT: no such buffer. */
int mcd_segment_remove(struct mcd_segment *s, const struct mcd_extent *e, uint64_t offset,
                       uint64_t length, struct mcd_snapshot **old);
/* What lies beside the range [offset, offset + length) of an extent in the buffers that it cuts: at most a head of
 * the first and a tail of the last. */
struct mcd_piece {
    uint64_t offset, length; /* in the extent */
    uint32_t access;
};
unsigned mcd_segment_pieces(const struct mcd_segment *s, const struct mcd_extent *e,
                            uint64_t offset, uint64_t length, struct mcd_piece out[2]);
/* Takes a range of an extent out of all buffers; they keep what lies beside it, without registrations. -ENOMEM, also
 * when so many pieces would be left as no honest client makes. */
int mcd_segment_cut(struct mcd_segment *s, const struct mcd_extent *e, uint64_t offset,
                    uint64_t length, struct mcd_snapshot **old);
/* A description of another agent's segment takes the place of the one before. */
void mcd_segment_swap(struct mcd_segment *s, struct mcd_snapshot *next, struct mcd_snapshot **old);
/* Takes everything out. */
int mcd_segment_clear(struct mcd_segment *s, struct mcd_snapshot **old);

#endif
