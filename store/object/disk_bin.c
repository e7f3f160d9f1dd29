/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the SSD tier: which there are, what lives in them, how they are made and go. */
#include "store/object/disk_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "shm/failpoint.h"

void mco_disk_bin_name(uint64_t generation, char *name, size_t size)
{
    snprintf(name, size, "bin-%016llx", (unsigned long long)generation);
}

struct mco_disk_bin *mco_disk_bin_new(uint64_t generation, uint32_t capacity, uint32_t marks_for)
{
    struct mco_disk_bin *b = calloc(1, sizeof(*b));

    if (b == NULL)
        return NULL;
    b->generation = generation;
    b->capacity = capacity;
    b->marks_units = (marks_for + 8 * MCO_DISK_UNIT - 1) / (8 * MCO_DISK_UNIT);
    b->first = b->end = 1 + b->marks_units;
    b->marks = calloc(b->marks_units, MCO_DISK_UNIT);
    b->marks_dirty = calloc(b->marks_units, 1);
    if (b->marks != NULL && b->marks_dirty != NULL)
        return b;
    mco_disk_bin_free(b);
    return NULL;
}

void mco_disk_bin_free(struct mco_disk_bin *b)
{
    free(b->entries);
    free(b->marks);
    free(b->marks_dirty);
    free(b);
}

/* ---- the table ----------------------------------------------------------------------------------- */

int mco_disk_bin_add(struct mco_disk *d, struct mco_disk_bin *b)
{
    struct mco_disk_bin **grown, **old = NULL;
    uint32_t room = d->bins_room == 0 ? 64 : d->bins_room * 2, at;

    if (d->nbins == d->bins_room) {
        grown = calloc(room, sizeof(struct mco_disk_bin *));
        if (grown == NULL)
            return -ENOMEM;
        mco_disk_lock(d);
        if (d->nbins > 0)
            memcpy(grown, d->bins, d->nbins * sizeof(struct mco_disk_bin *));
        old = d->bins;
        d->bins = grown;
        d->bins_room = room;
        mco_disk_unlock(d);
        free(old);
    }
    mco_disk_lock(d);
    for (at = d->nbins; at > 0 && d->bins[at - 1]->generation > b->generation; at--)
        d->bins[at] = d->bins[at - 1];
    d->bins[at] = b;
    d->nbins++;
    mco_disk_unlock(d);
    d->total_units += b->capacity;
    return 0;
}

struct mco_disk_bin *mco_disk_bin_find(struct mco_disk *d, uint64_t place)
{
    uint64_t generation = place >> 24;
    uint32_t low = 0, high = d->nbins;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (d->bins[middle]->generation < generation)
            low = middle + 1;
        else
            high = middle;
    }
    return low < d->nbins && d->bins[low]->generation == generation ? d->bins[low] : NULL;
}

/* ---- what lives in one ------------------------------------------------------------------------------ */

int mco_disk_bin_reserve(struct mco_disk *d, struct mco_disk_bin *b, uint32_t n)
{
    struct mco_disk_entry *grown, *old;
    uint32_t room = b->room == 0 ? 256 : b->room;

    while (room - b->n < n)
        room *= 2;
    if (room == b->room)
        return 0;
    grown = malloc(room * sizeof(*grown));
    if (grown == NULL)
        return -ENOMEM;
    mco_disk_lock(d);
    if (b->n > 0)
        memcpy(grown, b->entries, b->n * sizeof(*grown));
    old = b->entries;
    b->entries = grown;
    b->room = room;
    mco_disk_unlock(d);
    free(old);
    return 0;
}

bool mco_disk_bin_mark(struct mco_disk *d, struct mco_disk_bin *b, uint32_t unit)
{
    uint8_t bit = (uint8_t)(1u << unit % 8);

    if (unit / (8 * MCO_DISK_UNIT) >= b->marks_units || (b->marks[unit / 8] & bit) != 0)
        return false;
    b->marks[unit / 8] |= bit;
    b->marks_dirty[unit / (8 * MCO_DISK_UNIT)] = 1;
    b->dirty = true;
    d->any_dirty = true;
    return true;
}

void mco_disk_bin_enter(struct mco_disk *d, struct mco_disk_bin *b, uint32_t unit, uint32_t units,
                        bool live)
{
    b->entries[b->n++] = (struct mco_disk_entry){unit, units | (live ? 0 : MCO_DISK_DEAD)};
    if (live) {
        b->live++;
        b->live_units += units;
        d->live++;
        d->live_units += units;
    } else {
        (void)mco_disk_bin_mark(d, b, unit);
    }
}

bool mco_disk_bin_drop(struct mco_disk *d, struct mco_disk_bin *b, uint32_t unit)
{
    uint32_t low = 0, high = b->n;
    struct mco_disk_entry *e;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (b->entries[middle].unit < unit)
            low = middle + 1;
        else
            high = middle;
    }
    e = &b->entries[low];
    if (low == b->n || e->unit != unit || (e->units & MCO_DISK_DEAD) != 0)
        return false;
    b->live--;
    b->live_units -= e->units;
    d->live--;
    d->live_units -= e->units;
    e->units |= MCO_DISK_DEAD;
    (void)mco_disk_bin_mark(d, b, unit);
    if (b->live == 0)
        d->any_empty = true;
    return true;
}

/* ---- files ----------------------------------------------------------------------------------------------- */

static bool close_oldest(struct mco_disk *d)
{
    struct mco_disk_bin *oldest = NULL;

    for (uint32_t i = 0; i < d->nbins; i++) {
        struct mco_disk_bin *b = d->bins[i];

        if (b->file != NULL && b->users == 0 && b != d->active &&
            (oldest == NULL || b->last_used < oldest->last_used))
            oldest = b;
    }
    if (oldest == NULL)
        return false;
    mct_file_close(oldest->file);
    oldest->file = NULL;
    d->nopen--;
    return true;
}

int mco_disk_bin_get(struct mco_disk *d, struct mco_disk_bin *b)
{
    char name[32];
    int res;

    if (b->file == NULL) {
        if (d->nopen >= MCO_DISK_OPEN)
            (void)close_oldest(d);
        mco_disk_bin_name(b->generation, name, sizeof(name));
        res = mct_file_open(d->files, d->folder, name, O_RDWR | O_NOFOLLOW, 0, &b->file);
        if (res == -EMFILE || res == -ENFILE) { /* others have taken them all: with one of ours */
            (void)close_oldest(d);
            res = mct_file_open(d->files, d->folder, name, O_RDWR | O_NOFOLLOW, 0, &b->file);
        }
        if (res != 0)
            return res;
        d->nopen++;
    }
    b->users++;
    b->last_used = ++d->clock;
    return 0;
}

static void close_file(struct mco_disk *d, struct mco_disk_bin *b)
{
    if (b->file == NULL)
        return;
    mct_file_close(b->file);
    b->file = NULL;
    d->nopen--;
}

void mco_disk_bin_put(struct mco_disk *d, struct mco_disk_bin *b)
{
    if (--b->users > 0)
        return;
    if (!b->gone) {
        mco_disk_lock(d);
        if (b->live == 0)
            d->any_empty = true; /* looked at again, now that it can go */
        mco_disk_unlock(d);
        return;
    }
    close_file(d, b);
    mco_disk_bin_free(b);
}

void mco_disk_bin_remove(struct mco_disk *d, struct mco_disk_bin *b, bool evicted)
{
    char name[32];
    uint32_t at = 0;

    mco_disk_bin_name(b->generation, name, sizeof(name));
    MCS_FAILPOINT(disk_evict);
    /* Gone for good before the store knows of it: no restart brings it back then. */
    if (unlinkat(d->folder, name, 0) != 0 && errno != ENOENT)
        mco_disk_fail(d, "removing a file", -errno);
    if (fsync(d->folder) != 0 && errno != EINVAL && errno != EROFS)
        mco_disk_fail(d, "syncing the folder", -errno);
    MCS_FAILPOINT(disk_evicted);
    mco_disk_lock(d);
    while (at < d->nbins && d->bins[at] != b)
        at++;
    if (at < d->nbins) {
        d->nbins--;
        memmove(&d->bins[at], &d->bins[at + 1], (d->nbins - at) * sizeof(struct mco_disk_bin *));
    }
    d->live -= b->live;
    d->live_units -= b->live_units;
    mco_disk_unlock(d);
    d->total_units -= b->capacity;
    if (d->active == b)
        d->active = NULL;
    b->gone = true;
    for (uint32_t i = 0; i < b->n; i++) {
        if ((b->entries[i].units & MCO_DISK_DEAD) != 0)
            continue;
        if (evicted)
            mco_disk_count(d, evictions, 1);
        d->calls.lost(d->store, false, mco_disk_place(b, b->entries[i].unit));
    }
    if (b->users > 0)
        return; /* with the last of them */
    close_file(d, b);
    mco_disk_bin_free(b);
}

/* The oldest that may go; NULL: none. */
static struct mco_disk_bin *oldest(struct mco_disk *d)
{
    for (uint32_t i = 0; i < d->nbins; i++)
        if (d->bins[i]->sealed && d->bins[i]->scanned)
            return d->bins[i];
    return NULL;
}

static bool is_empty(struct mco_disk *d, struct mco_disk_bin *b)
{
    bool empty;

    mco_disk_lock(d);
    empty = b->live == 0 && !b->unreadable;
    mco_disk_unlock(d);
    return empty;
}

void mco_disk_bins_trim(struct mco_disk *d)
{
    struct mco_disk_bin *b;
    bool any;

    if (d->scanning || d->lost)
        return;
    mco_disk_lock(d);
    any = d->any_empty;
    d->any_empty = false;
    mco_disk_unlock(d);
    for (uint32_t i = d->nbins; any && i-- > 0;) {
        b = d->bins[i];
        if (b->sealed && b->scanned && b->users == 0 && is_empty(d, b))
            mco_disk_bin_remove(d, b, false);
    }
    while (!d->stop_told && d->total_units > d->size_units && (b = oldest(d)) != NULL)
        mco_disk_bin_remove(d, b, true);
}

/* A new file: its head is durable, so that what is written into it later is found again. */
static int make(struct mco_disk *d, uint32_t capacity, struct mco_disk_bin **out)
{
    struct mco_disk_bin *b = mco_disk_bin_new(d->next_generation, capacity, capacity);
    uint8_t *front = NULL;
    struct mco_disk_head head;
    size_t size;
    char name[32];
    int res = -ENOMEM, fd;

    if (b == NULL)
        goto fail;
    mco_disk_bin_name(b->generation, name, sizeof(name));
    size = (size_t)b->first * MCO_DISK_UNIT;
    front = calloc(1, size);
    if (front == NULL)
        goto fail_bin;
    if (getrandom(&b->salt, sizeof(b->salt), 0) != (ssize_t)sizeof(b->salt))
        b->salt = mcs_ticks() ^ (uint64_t)(uintptr_t)b; /* it only has to be unknown to clients */
    head = (struct mco_disk_head){
        .magic = MCO_DISK_BIN_MAGIC,
        .format = MCO_DISK_FORMAT,
        .generation = b->generation,
        .salt = b->salt,
        .units = capacity,
        .first = b->first,
    };
    head.crc = mco_disk_crc(0, &head, sizeof(head));
    memcpy(front, &head, sizeof(head));
    while (d->nopen >= MCO_DISK_OPEN && close_oldest(d))
        continue;
    res = MCS_FAIL(disk_bin);
    if (res == 0)
        res = mct_file_open(d->files, d->folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600,
                            &b->file);
    if (res != 0)
        goto fail_front;
    d->next_generation++;
    d->nopen++;
    fd = mct_file_fd(b->file);
    /* Blocks for all of it, so that a full disk is found out now; its size grows with what is written. */
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)capacity * MCO_DISK_UNIT) != 0 &&
        errno != EOPNOTSUPP && errno != ENOSYS) {
        res = -errno;
        goto fail_file;
    }
    errno = ENOSPC; /* what a short write means */
    if (pwrite(fd, front, size, 0) != (ssize_t)size || fsync(fd) != 0 || fsync(d->folder) != 0) {
        res = -errno;
        goto fail_file;
    }
    b->scanned = true;
    res = mco_disk_bin_add(d, b);
    if (res != 0)
        goto fail_file;
    free(front);
    *out = b;
    return 0;
fail_file:
    (void)unlinkat(d->folder, name, 0);
    close_file(d, b);
fail_front:
    free(front);
fail_bin:
    mco_disk_bin_free(b);
fail:
    return res;
}

static void seal(struct mco_disk *d)
{
    if (d->active == NULL)
        return;
    d->active->sealed = true;
    mco_disk_lock(d);
    if (d->active->live == 0)
        d->any_empty = true;
    mco_disk_unlock(d);
    d->active = NULL;
}

int mco_disk_bin_for(struct mco_disk *d, uint32_t units, struct mco_disk_bin **out)
{
    struct mco_disk_bin *b = d->active;
    uint32_t capacity = d->bin_units;
    int res;

    if (b != NULL && !b->sealed && b->capacity - b->end >= units) {
        *out = b;
        return 0;
    }
    seal(d);
    if (mco_disk_bin_capacity(units) > capacity)
        capacity = mco_disk_bin_capacity(units);
    if (capacity > d->size_units || capacity > MCO_DISK_UNITS_MAX)
        return -ENOSPC;
    for (;;) {
        while (d->total_units + capacity > d->size_units && (b = oldest(d)) != NULL)
            mco_disk_bin_remove(d, b, true);
        if (d->lost)
            return -EIO;
        if (d->total_units + capacity > d->size_units)
            return -EBUSY; /* of files that are being scanned */
        res = make(d, capacity, &b);
        if (res != -ENOSPC && res != -EDQUOT)
            break;
        mco_disk_count(d, full, 1);
        if (!d->told_full)
            d->log(
                1,
                "the disk of the store, %s, is full before it has the %llu bytes it may take: what "
                "is oldest there makes room",
                d->path, (unsigned long long)d->size);
        d->told_full = true;
        b = oldest(d);
        if (b == NULL)
            return -ENOSPC;
        mco_disk_bin_remove(d, b, true);
    }
    if (res != 0)
        return res;
    d->active = b;
    *out = b;
    return 0;
}
