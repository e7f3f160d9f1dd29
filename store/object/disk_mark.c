/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was dropped, noted in its file, so that no restart finds it: blocks of marks that changed are written, then
 * made durable; what changes meanwhile goes with the next round.
 */
#include "store/object/disk_internal.h"

#include <errno.h>
#include <string.h>

#include "shm/failpoint.h"

#define BINS_AT_ONCE 256u /* looked at under the lock */

static void written(struct mct_file_io *io, int res);

/* Takes blocks that changed, with a copy of each. */
static void gather(struct mco_disk *d)
{
    bool more = false;

    d->marking.n = 0;
    mco_disk_lock(d);
    d->any_dirty = false;
    for (uint32_t i = 0; i < d->nbins && !more; i++) {
        struct mco_disk_bin *b = d->bins[i];

        if (i % BINS_AT_ONCE ==
            BINS_AT_ONCE - 1) { /* engines wait for the lock; the table is the thread's */
            mco_disk_unlock(d);
            mco_disk_lock(d);
        }
        if (!b->dirty || !b->scanned)
            continue; /* marks of one that is scanned are not all known yet */
        for (uint32_t block = 0; block < b->marks_units; block++) {
            struct mco_disk_part *p;

            if (b->marks_dirty[block] == 0)
                continue;
            more = d->marking.n == MCO_DISK_MARKS;
            if (more)
                break;
            p = &d->marking.parts[d->marking.n];
            *p = (struct mco_disk_part){
                .disk = d,
                .bin = b,
                .block = block,
                .buffer = d->marks_memory + d->marking.n * MCO_DISK_UNIT,
            };
            memcpy(p->buffer, b->marks + (size_t)block * MCO_DISK_UNIT, MCO_DISK_UNIT);
            b->marks_dirty[block] = 0;
            d->marking.n++;
        }
        b->dirty = more;
    }
    d->any_dirty = d->any_dirty || more;
    mco_disk_unlock(d);
}

/* It is written once more, with what is dropped next. */
static void keep_dirty(struct mco_disk *d, const struct mco_disk_part *p)
{
    mco_disk_lock(d);
    p->bin->marks_dirty[p->block] = 1;
    p->bin->dirty = true;
    mco_disk_unlock(d);
}

static void over(struct mco_disk *d)
{
    unsigned n = d->marking.n;

    d->marking.n = 0;
    for (unsigned i = 0; i < n; i++) {
        struct mco_disk_part *p = &d->marking.parts[i];

        if (p->bin == NULL)
            continue;
        if (d->marking.res != 0)
            keep_dirty(d, p);
        mco_disk_bin_put(d, p->bin);
    }
    if (d->marking.res != 0)
        mco_disk_count(d, write_errors, 1);
    if (d->marking.res != 0 && !mco_disk_passing(d->marking.res))
        mco_disk_fail(d, "marking what was dropped", d->marking.res);
}

static void start(struct mco_disk *d, enum mct_file_op op)
{
    struct mco_disk_bin *last = NULL;
    unsigned n = 0;

    d->marking.left = 1; /* this function's */
    for (unsigned i = 0; i < d->marking.n; i++) {
        struct mco_disk_part *p = &d->marking.parts[i];

        /* blocks of one file come together: it is made durable once */
        if (p->bin == NULL || (op == MCT_FILE_SYNC && p->bin == last))
            continue;
        last = p->bin;
        p->io = (struct mct_file_io){
            .file = p->bin->file,
            .op = op,
            .buffer = p->buffer,
            .size = MCO_DISK_UNIT,
            .offset = (uint64_t)(1 + p->block) * MCO_DISK_UNIT,
            .done = written,
        };
        d->marking.left++;
        n++;
        mct_file_start(&p->io);
    }
    d->marking.left--;
    if (n == 0)
        over(d);
}

static void written(struct mct_file_io *io, int res)
{
    struct mco_disk *d = ((struct mco_disk_part *)io)->disk;

    if (res != 0 && d->marking.res == 0)
        d->marking.res = res;
    if (--d->marking.left > 0)
        return;
    if (!d->marking.syncing && d->marking.res == 0) {
        MCS_FAILPOINT(disk_marked);
        d->marking.syncing = true;
        start(d, MCT_FILE_SYNC);
        return;
    }
    over(d);
    mco_disk_pump(d);
}

void mco_disk_mark_next(struct mco_disk *d)
{
    bool any;
    int res;

    mco_disk_lock(d);
    any = d->any_dirty;
    mco_disk_unlock(d);
    if (d->marking.n > 0 || !any || d->lost || d->scanning)
        return;
    gather(d);
    for (unsigned i = 0; i < d->marking.n; i++) {
        struct mco_disk_part *p = &d->marking.parts[i];

        res = mco_disk_bin_get(d, p->bin);
        if (res != 0 && res != -ENOENT) {
            mco_disk_count(d, write_errors, 1);
            keep_dirty(d, p);
        }
        if (res != 0)
            p->bin = NULL; /* its file is gone, and with it what the marks are about; or not now */
    }
    if (d->marking.n == 0)
        return;
    MCS_FAILPOINT(disk_mark);
    d->marking.res = 0;
    d->marking.syncing = false;
    start(d, MCT_FILE_WRITE);
}
