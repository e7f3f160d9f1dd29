/* SPDX-License-Identifier: Apache-2.0 */
/* Objects on their way to the disk: a group is written, made durable, told; then comes the next. */
#include "store/object/disk_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/failpoint.h"

static void tell(struct mco_disk *d, struct mco_disk_write *w, int res, uint64_t place)
{
    if (res != 0)
        mco_disk_count(d, write_errors, 1);
    (void)mcs_fetch_add(&d->stats.queued, UINT64_MAX); /* one less; with mco_disk_get_stats() */
    d->calls.offloaded(d->store, w->view.object, res, place);
    mco_disk_lock(d);
    w->next = d->free_writes;
    d->free_writes = w;
    mco_disk_unlock(d);
}

/* Takes from the queue what goes into one group. */
static void gather(struct mco_disk *d, struct mco_disk_bin *b, uint32_t room)
{
    size_t staged = 0;
    uint64_t bytes = 0;

    d->group.n = 0;
    d->group.end = b->end;
    mco_disk_lock(d);
    while (d->writes != NULL && d->group.n < MCO_DISK_JOBS) {
        struct mco_disk_write *w = d->writes;

        if (w->layout.units > room ||
            staged + (size_t)w->layout.head_units * MCO_DISK_UNIT > MCO_DISK_STAGE ||
            (d->group.n > 0 && bytes + w->view.size > MCO_DISK_GROUP_BYTES))
            break;
        d->writes = w->next;
        if (d->writes == NULL)
            d->writes_last = &d->writes;
        w->unit = d->group.end;
        d->group.end += w->layout.units;
        room -= w->layout.units;
        staged += (size_t)w->layout.head_units * MCO_DISK_UNIT;
        bytes += w->view.size;
        d->group.jobs[d->group.n++] = w;
    }
    mco_disk_unlock(d);
}

static void part_done(struct mct_file_io *io, int res);

static void part(struct mco_disk *d, enum mct_file_op op, void *buffer, uint64_t size,
                 uint32_t unit)
{
    struct mco_disk_part *p = &d->group.parts[d->group.nparts++];

    *p = (struct mco_disk_part){
        .io = {.file = d->group.bin->file,
               .op = op,
               .flags = op == MCT_FILE_WRITE ? MCT_FILE_PAD : 0,
               .buffer = buffer,
               .size = size,
               .offset = (uint64_t)unit * MCO_DISK_UNIT,
               .done = part_done},
        .disk = d,
        .bin = d->group.bin,
    };
}

/* Head, key and small data of one object. */
static void fill(const struct mco_disk_bin *b, const struct mco_disk_write *w, uint8_t *at)
{
    const struct mco_view *v = &w->view;
    struct mco_disk_record r = {
        .magic = MCO_DISK_RECORD_MAGIC,
        .unit = w->unit,
        .units = w->layout.units,
        .flags = v->summed ? MCO_DISK_SUMMED : 0,
        .generation = b->generation,
        .salt = b->salt,
        .tenant = w->tenant,
        .size = v->size,
        .version = v->version,
        .key_length = w->length,
    };

    memset(at, 0, (size_t)w->layout.head_units * MCO_DISK_UNIT);
    memcpy(at + sizeof(r), w->key, w->length);
    if (w->layout.small && v->size > 0)
        memcpy(at + w->layout.data, v->data, v->size);
    /* An object without a checksum gets one for the way over the disk; of the copy, where there is one. */
    r.data_crc = v->summed || v->size == 0
                     ? v->crc
                     : mco_disk_crc(0, w->layout.small ? at + w->layout.data : v->data, v->size);
    r.crc = mco_disk_record_crc(&r, w->key);
    memcpy(at, &r, sizeof(r));
}

/* Heads and small records that lie behind each other in the file do so in the stage, and are one write. */
static void write_out(struct mco_disk *d)
{
    uint8_t *run = d->stage, *at = d->stage;
    uint32_t run_unit = d->group.bin->end;

    d->group.nparts = 0;
    d->group.res = 0;
    for (unsigned i = 0; i < d->group.n; i++) {
        struct mco_disk_write *w = d->group.jobs[i];

        fill(d->group.bin, w, at);
        at += (size_t)w->layout.head_units * MCO_DISK_UNIT;
        if (w->layout.small)
            continue;
        part(d, MCT_FILE_WRITE, run, (uint64_t)(at - run), run_unit);
        part(d, MCT_FILE_WRITE, w->view.data, w->view.size, w->unit + w->layout.head_units);
        run = at;
        run_unit = w->unit + w->layout.units;
    }
    if (at > run)
        part(d, MCT_FILE_WRITE, run, (uint64_t)(at - run), run_unit);
    MCS_FAILPOINT(disk_write);
    d->group.left = d->group.nparts;
    for (unsigned i = 0; i < d->group.nparts; i++)
        mct_file_start(&d->group.parts[i].io);
}

static void publish(struct mco_disk *d)
{
    struct mco_disk_bin *b = d->group.bin;
    int res = d->group.res;
    uint64_t bytes = 0;

    MCS_FAILPOINT(disk_synced);
    mco_disk_lock(d);
    for (unsigned i = 0; i < d->group.n; i++) {
        struct mco_disk_write *w = d->group.jobs[i];

        /* What failed may be there in parts or whole: no restart shall find it. */
        mco_disk_bin_enter(d, b, w->unit, w->layout.units, res == 0);
        bytes += w->view.size;
    }
    mco_disk_unlock(d);
    b->end = d->group.end;
    if (res == 0) {
        mco_disk_count(d, writes, d->group.n);
        mco_disk_count(d, write_bytes, bytes);
        d->told_full = false;
    }
    for (unsigned i = 0; i < d->group.n; i++)
        tell(d, d->group.jobs[i], res, mco_disk_place(b, d->group.jobs[i]->unit));
    MCS_FAILPOINT(disk_told);
    d->group.bin = NULL;
    mco_disk_bin_put(d, b);
}

static void failed(struct mco_disk *d, int res)
{
    d->group.res = res;
    if (!mco_disk_passing(res)) {
        mco_disk_fail(d, "writing", res);
        return;
    }
    if (res == -ENOSPC || res == -EDQUOT)
        mco_disk_count(d, full, 1);
    d->group.bin->sealed = true; /* goes on in a file of which all blocks are there */
}

static void synced(struct mct_file_io *io, int res)
{
    struct mco_disk *d = ((struct mco_disk_part *)io)->disk;

    if (res != 0) {
        d->group.res = res;
        mco_disk_fail(d, "making data durable", res); /* nobody knows what of it is */
    }
    publish(d);
    mco_disk_pump(d);
}

/* Without O_DIRECT the last data are not padded; a cut block would be none for who scans. */
static int fill_up(const struct mco_disk *d)
{
    off_t end = (off_t)d->group.end * MCO_DISK_UNIT;
    int fd = mct_file_fd(d->group.bin->file);
    struct stat st;

    return fstat(fd, &st) != 0 || (st.st_size < end && ftruncate(fd, end) != 0) ? -errno : 0;
}

static void part_done(struct mct_file_io *io, int res)
{
    struct mco_disk *d = ((struct mco_disk_part *)io)->disk;

    if (res != 0 && d->group.res == 0)
        failed(d, res);
    if (--d->group.left > 0)
        return;
    MCS_FAILPOINT(disk_written);
    res = d->group.res == 0 ? fill_up(d) : 0;
    if (res != 0)
        failed(d, res);
    if (d->group.res != 0) {
        publish(d);
        mco_disk_pump(d);
        return;
    }
    d->group.nparts = 0;
    part(d, MCT_FILE_SYNC, NULL, 0, 0);
    d->group.parts[0].io.done = synced;
    mct_file_start(&d->group.parts[0].io);
}

/* The first in the queue cannot be written now. */
static void refuse_first(struct mco_disk *d, int res)
{
    struct mco_disk_write *w;

    mco_disk_lock(d);
    w = d->writes;
    d->writes = w->next;
    if (d->writes == NULL)
        d->writes_last = &d->writes;
    mco_disk_unlock(d);
    tell(d, w, res, 0);
}

static uint32_t first_units(struct mco_disk *d)
{
    uint32_t units;

    mco_disk_lock(d);
    units = d->writes == NULL ? 0 : d->writes->layout.units;
    mco_disk_unlock(d);
    return units;
}

void mco_disk_write_next(struct mco_disk *d)
{
    struct mco_disk_bin *b = NULL;
    uint32_t units;
    int res = 0;

    while (d->group.bin == NULL && (units = first_units(d)) != 0) {
        res = d->lost ? -EIO : d->closing ? -EBUSY : mco_disk_bin_for(d, units, &b);
        if (res == 0)
            res = mco_disk_bin_reserve(d, b, MCO_DISK_JOBS);
        if (res == 0)
            res = mco_disk_bin_get(d, b);
        if (res != 0) {
            if (!mco_disk_passing(res))
                mco_disk_fail(d, "making a file", res);
            if (first_units(d) != 0)
                refuse_first(d, res);
            continue;
        }
        d->group.bin = b;
        gather(d, b, b->capacity - b->end);
        assert(d->group.n > 0); /* mco_disk_bin_for() has found room for the first */
        write_out(d);
    }
}
