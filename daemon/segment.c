/* SPDX-License-Identifier: Apache-2.0 */
#include "segment.h"
#include "registration.h"
#include "shm/failpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PIECES_MAX (4 * MCD_BUFFERS_MAX) /* what buffers may fall into by cuts */

/* Stands for "no buffers", never freed. */
static struct mcd_snapshot empty_snapshot;

/* Without buffers. Not zeroed: each change copies the whole list, which is work enough. */
static struct mcd_snapshot *snapshot_new(uint32_t room)
{
    struct mcd_snapshot *s =
        malloc(sizeof(struct mcd_snapshot) + (size_t)room * sizeof(struct mcd_buffer));

    if (s != NULL)
        *s = (struct mcd_snapshot){.count = 0};
    return s;
}

void mcd_snapshot_free(struct mcd_snapshot *s)
{
    if (s == NULL)
        return;
    while (s->blocks != NULL) {
        struct mcd_snapshot_block *b = s->blocks;

        s->blocks = b->next;
        free(b);
    }
    free(s);
}

static void drop_registration(struct mcd_segment *s, struct mcd_buffer *b)
{
    if (b->registration == NULL)
        return;
    b->registration->dropped = s->dropped;
    s->dropped = b->registration;
    b->registration = NULL;
}

struct mcd_registration *mcd_segment_dropped(struct mcd_segment *s)
{
    struct mcd_registration *list = s->dropped;

    s->dropped = NULL;
    return list;
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
        mcd_snapshot_free(s->snapshot);
    free(s);
}

/* As mcd_segment_may_add(); *at: where it goes, or where it is. */
static int find_place(const struct mcd_segment *s, uint64_t address, uint64_t length,
                      uint32_t access, uint32_t *at)
{
    const struct mcd_snapshot *now = s->snapshot;
    const struct mcd_buffer *b;
    uint32_t low = 0, high = now->count; /* the first that ends behind `address` is in between */

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (now->buffers[mid].address + now->buffers[mid].length <= address)
            low = mid + 1;
        else
            high = mid;
    }
    *at = low;
    b = &now->buffers[low];
    if (*at < now->count && b->address < address + length)
        return b->address == address && b->length == length && b->access == access ? -EALREADY
                                                                                   : -EEXIST;
    return now->count >= MCD_BUFFERS_MAX ? -ENOSPC : 0;
}

int mcd_segment_may_add(const struct mcd_segment *s, const struct mcd_extent *e, uint64_t offset,
                        uint64_t length, uint32_t access)
{
    uint32_t at;

    return find_place(s, e->address + offset, length, access, &at);
}

/* The index of the buffer with just this range; as many as there are: none has it. */
static uint32_t index_of(const struct mcd_snapshot *now, const struct mcd_extent *e,
                         uint64_t offset, uint64_t length)
{
    const struct mcd_buffer *b = mcd_snapshot_find(now, e->address + offset, length);

    return b != NULL && b->extent == e && b->offset == offset && b->length == length
               ? (uint32_t)(b - now->buffers)
               : now->count;
}

bool mcd_segment_attach(struct mcd_segment *s, const struct mcd_extent *e, uint64_t offset,
                        uint64_t length, struct mcd_registration *r)
{
    struct mcd_snapshot *now = s->snapshot;
    uint32_t i = index_of(now, e, offset, length);

    if (i == now->count)
        return false;
    now->buffers[i].registration = r;
    return true;
}

int mcd_segment_add(struct mcd_segment *s, struct mcd_extent *e, uint64_t offset, uint64_t length,
                    uint32_t access, struct mcd_snapshot **old)
{
    struct mcd_snapshot *now = s->snapshot, *next;
    uint64_t address = e->address + offset;
    uint32_t at;
    int res = find_place(s, address, length, access, &at);

    *old = NULL;
    if (res == -EALREADY) {
        now->buffers[at].count++; /* engines do not look at it */
        return 0;
    }
    if (res != 0)
        return res;
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
    s->buffers[s->count].registration = NULL; /* the buffer's reaches further */
    s->count++;
}

unsigned mcd_segment_pieces(const struct mcd_segment *s, const struct mcd_extent *e,
                            uint64_t offset, uint64_t length, struct mcd_piece out[2])
{
    const struct mcd_snapshot *now = s->snapshot;
    uint64_t end = offset + length;
    unsigned n = 0;

    for (uint32_t i = 0; i < now->count; i++) {
        const struct mcd_buffer *b = &now->buffers[i];
        uint64_t b_end = b->offset + b->length;

        if (b->extent != e || b->offset >= end || offset >= b_end)
            continue;
        if (b->offset < offset)
            out[n++] = (struct mcd_piece){b->offset, offset - b->offset, b->access};
        if (end < b_end)
            out[n++] = (struct mcd_piece){end, b_end - end, b->access};
    }
    return n;
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
    for (uint32_t i = 0; i < now->count; i++) {
        struct mcd_buffer *b = &now->buffers[i];

        if (b->extent == e && b->offset < end && offset < b->offset + b->length)
            drop_registration(s, b);
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
    for (uint32_t i = 0; i < s->snapshot->count; i++)
        drop_registration(s, &s->snapshot->buffers[i]);
    if (s->snapshot != &empty_snapshot)
        swap(s, &empty_snapshot, old);
    return 0;
}
