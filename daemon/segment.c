/* SPDX-License-Identifier: Apache-2.0 */
#include "segment.h"
#include "shm/failpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PIECES_MAX (4 * MCD_BUFFERS_MAX) /* what buffers may fall into by cuts */

/* Stands for "no buffers", never freed. */
static struct mcd_snapshot empty_snapshot;

static struct mcd_snapshot *snapshot_new(uint32_t room)
{
    return calloc(1, sizeof(struct mcd_snapshot) + (size_t)room * sizeof(struct mcd_buffer));
}

static void swap(struct mcd_segment *s, struct mcd_snapshot *next, struct mcd_snapshot **old)
{
    *old = s->snapshot == &empty_snapshot ? NULL : s->snapshot;
    s->version++;
    mcs_store_release(&s->snapshot, next); /* partner: the engines' acquire in task.c */
}

struct mcd_segment *mcd_segment_create(struct mcd_session *owner, uint64_t tenant,
                                       uint64_t incarnation)
{
    struct mcd_segment *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return NULL;
    s->snapshot = &empty_snapshot;
    s->owner = owner;
    s->tenant = tenant;
    s->incarnation = incarnation;
    s->refs = 1;
    return s;
}

struct mcd_segment *mcd_segment_get(struct mcd_segment *s)
{
    s->refs++;
    return s;
}

void mcd_segment_put(struct mcd_segment *s)
{
    if (--s->refs != 0)
        return;
    if (s->gone != NULL)
        s->gone(s);
    if (s->snapshot != &empty_snapshot)
        free(s->snapshot);
    free(s);
}

int mcd_segment_add(struct mcd_segment *s, struct mcd_extent *e, uint64_t offset, uint64_t length,
                    uint32_t access, struct mcd_snapshot **old)
{
    struct mcd_snapshot *now = s->snapshot, *next;
    uint64_t address = e->address + offset;
    uint32_t at = 0;

    *old = NULL;
    while (at < now->count && now->buffers[at].address + now->buffers[at].length <= address)
        at++;
    if (at < now->count && now->buffers[at].address < address + length) {
        struct mcd_buffer *b = &now->buffers[at];

        if (b->address != address || b->length != length || b->access != access)
            return -EEXIST;
        b->count++; /* engines do not look at it */
        return 0;
    }
    if (now->count >= MCD_BUFFERS_MAX)
        return -ENOSPC;
    next = MCS_FAIL(buffer_add) != 0 ? NULL : snapshot_new(now->count + 1);
    if (next == NULL)
        return -ENOMEM;
    memcpy(next->buffers, now->buffers, at * sizeof(next->buffers[0]));
    memcpy(next->buffers + at + 1, now->buffers + at, (now->count - at) * sizeof(next->buffers[0]));
    next->buffers[at] = (struct mcd_buffer){
        .address = address,
        .length = length,
        .extent = e,
        .offset = offset,
        .access = access,
        .count = 1,
        .node = e->kind.node,
    };
    next->count = now->count + 1;
    swap(s, next, old);
    return 0;
}

int mcd_segment_remove(struct mcd_segment *s, const struct mcd_extent *e, uint64_t offset,
                       uint64_t length, struct mcd_snapshot **old)
{
    struct mcd_snapshot *now = s->snapshot;

    *old = NULL;
    for (uint32_t i = 0; i < now->count; i++) {
        struct mcd_buffer *b = &now->buffers[i];

        if (b->extent != e || b->offset != offset || b->length != length)
            continue;
        if (b->count > 1) {
            b->count--;
            return 0;
        }
        return mcd_segment_cut(s, e, offset, length, old);
    }
    return -ENOENT;
}

/* Appends the part [from, to) of buffer b, counted from the extent's start. */
static void keep(struct mcd_snapshot *s, const struct mcd_buffer *b, uint64_t from, uint64_t to)
{
    if (from >= to)
        return;
    s->buffers[s->count] = *b;
    s->buffers[s->count].address = b->extent->address + from;
    s->buffers[s->count].offset = from;
    s->buffers[s->count].length = to - from;
    s->count++;
}

int mcd_segment_cut(struct mcd_segment *s, const struct mcd_extent *e, uint64_t offset,
                    uint64_t length, struct mcd_snapshot **old)
{
    struct mcd_snapshot *now = s->snapshot, *next;
    uint64_t end = offset + length;
    bool touched = false;

    *old = NULL;
    for (uint32_t i = 0; i < now->count; i++) {
        const struct mcd_buffer *b = &now->buffers[i];

        touched = touched || (b->extent == e && b->offset < end && offset < b->offset + b->length);
    }
    if (!touched)
        return 0;
    next = MCS_FAIL(buffer_cut) != 0
               ? NULL
               : snapshot_new(now->count + 1); /* one buffer at most falls in two */
    if (next == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < now->count; i++) {
        const struct mcd_buffer *b = &now->buffers[i];
        uint64_t b_end = b->offset + b->length;

        if (b->extent != e || b->offset >= end || offset >= b_end) {
            next->buffers[next->count++] = *b;
            continue;
        }
        keep(next, b, b->offset, offset < b_end ? offset : b_end);
        keep(next, b, end > b->offset ? end : b->offset, b_end);
    }
    if (next->count > now->count && next->count > PIECES_MAX) {
        free(next);
        return -ENOMEM;
    }
    swap(s, next, old);
    return 0;
}

void mcd_segment_swap(struct mcd_segment *s, struct mcd_snapshot *next, struct mcd_snapshot **old)
{
    swap(s, next, old);
}

int mcd_segment_clear(struct mcd_segment *s, struct mcd_snapshot **old)
{
    *old = NULL;
    if (s->snapshot != &empty_snapshot)
        swap(s, &empty_snapshot, old);
    return 0;
}
