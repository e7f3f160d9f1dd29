/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The start: each file of the folder is walked from record to record, the newest files first, some at a time.  A block
 * where no record begins is passed: what was torn, or damaged, costs nothing but itself.
 */
#include "store/object/disk_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/failpoint.h"

#define WINDOW_UNITS ((uint32_t)(MCO_DISK_WINDOW / MCO_DISK_UNIT))
#define ERRORS_MOST 16u   /* of a file, before it is given up */
#define HEAD_UNITS_MAX 2u /* of a record's head and key */

static bool generation_of(const char *name, uint64_t *out)
{
    char *end, again[32];

    if (strncmp(name, "bin-", 4) != 0)
        return false;
    *out = strtoull(name + 4, &end, 16);
    if (*end != '\0' || *out == 0 || *out >> 40 != 0)
        return false;
    mco_disk_bin_name(*out, again, sizeof(again));
    return strcmp(name, again) == 0;
}

static int list_one(struct mco_disk *d, uint64_t generation)
{
    struct mco_disk_bin *b;
    struct stat st;
    char name[32];
    int res;

    if (generation >=
        d->next_generation) /* also after what is not ours: no file can be made of its name */
        d->next_generation = generation + 1;
    mco_disk_bin_name(generation, name, sizeof(name));
    if (fstatat(d->folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        return 0; /* not ours */
    /* The size is what was written; blocks beyond it are given back when it is scanned. */
    b = mco_disk_bin_new(generation, (uint32_t)((st.st_size + MCO_DISK_UNIT - 1) / MCO_DISK_UNIT),
                         0);
    if (b == NULL)
        return -ENOMEM;
    b->sealed = true;
    res = mco_disk_bin_add(d, b);
    if (res != 0)
        mco_disk_bin_free(b);
    return res;
}

int mco_disk_list(struct mco_disk *d)
{
    int fd = openat(d->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), res = 0;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;
    uint64_t generation;

    if (dir == NULL) {
        res = -errno;
        if (fd >= 0)
            close(fd);
        return res;
    }
    d->next_generation = 1;
    while (res == 0 && (e = readdir(dir)) != NULL)
        if (generation_of(e->d_name, &generation))
            res = list_one(d, generation);
    closedir(dir);
    if (res == 0) {
        d->to_scan = calloc(d->nbins + 1, sizeof(struct mco_disk_bin *));
        res = d->to_scan == NULL ? -ENOMEM : 0;
    }
    if (res == 0 && d->nbins > 0)
        memcpy(d->to_scan, d->bins, d->nbins * sizeof(struct mco_disk_bin *));
    d->scan_next = d->nbins;
    return res;
}

/* ---- one file ----------------------------------------------------------------------------------- */

/* Its head and marks. 0; -EBADMSG: not a file that we wrote, or damaged; or an error of the disk. */
static int read_front(struct mco_disk *d, struct mco_disk_bin *b)
{
    struct mco_disk_head head, copy;
    uint8_t *marks, *dirty;
    struct stat st;
    size_t size;
    ssize_t n;
    int fd = mct_file_fd(b->file);

    /* Does nothing, but first waits for what a dead agent had on its way into the file. */
    (void)fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, MCO_DISK_UNIT);
    n = pread(fd, &head, sizeof(head), 0);
    if (n < 0)
        return -errno;
    copy = head;
    copy.crc = 0;
    if (n != (ssize_t)sizeof(head) || head.magic != MCO_DISK_BIN_MAGIC ||
        head.format != MCO_DISK_FORMAT || head.crc != mco_disk_crc(0, &copy, sizeof(copy)) ||
        head.generation != b->generation || head.first < 2 || head.units > MCO_DISK_UNITS_MAX ||
        head.first - 1 != (head.units + 8 * MCO_DISK_UNIT - 1) / (8 * MCO_DISK_UNIT))
        return -EBADMSG;
    if (fstat(fd, &st) != 0)
        return -errno;
    size = (size_t)(head.first - 1) * MCO_DISK_UNIT;
    marks = malloc(size);
    dirty = calloc(head.first - 1, 1);
    if (marks == NULL || dirty == NULL || pread(fd, marks, size, MCO_DISK_UNIT) != (ssize_t)size) {
        free(marks);
        free(dirty);
        return marks == NULL || dirty == NULL ? -ENOMEM : -EBADMSG;
    }
    (void)!ftruncate(fd, st.st_size); /* gives back what was reserved and not written */
    mco_disk_lock(d);
    free(b->marks);
    free(b->marks_dirty);
    b->marks = marks;
    b->marks_dirty = dirty;
    b->marks_units = head.first - 1;
    b->first = head.first;
    b->salt = head.salt;
    b->room_for = head.units;
    b->end = (uint32_t)(st.st_size / MCO_DISK_UNIT); /* a cut block is none */
    if (b->end > head.units)
        b->end = head.units;
    mco_disk_unlock(d);
    return 0;
}

static void finish(struct mco_disk *d, struct mco_disk_scan *s, int res)
{
    struct mco_disk_bin *b = s->bin;
    bool all = res == 0 && s->errors == 0;

    s->bin = NULL;
    d->scans_running--;
    mco_disk_lock(d);
    b->scanned = true;
    b->unreadable = b->unreadable || res != 0;
    d->any_empty = true;
    mco_disk_unlock(d);
    mco_disk_bin_put(d, b);
    if (all)
        return;
    mco_disk_count(d, read_errors, res != 0 ? 1 : 0);
    d->log(1, "a file of the store's disk, %s, cannot be read%s (%s): what lies there is not used",
           d->path, res == 0 ? " everywhere" : "", strerror(res == 0 ? EIO : -res));
}

/* The record that begins at the scan's unit. Its units; 0: none does. */
static uint32_t record_at(struct mco_disk_scan *s, const uint8_t *at, struct mco_disk_record *r)
{
    const struct mco_disk_bin *b = s->bin;
    struct mco_disk_layout layout;

    memcpy(r, at, sizeof(*r));
    if (r->magic != MCO_DISK_RECORD_MAGIC || r->generation != b->generation || r->salt != b->salt ||
        r->unit != s->unit || r->key_length == 0 || r->key_length > MCS_KEY_MAX)
        return 0;
    layout = mco_disk_layout(r->key_length, r->size);
    if (r->units != layout.units ||
        layout.units > b->end - s->unit) /* then its key is in the window */
        return 0;
    if (r->crc != mco_disk_record_crc(r, at + sizeof(*r)))
        return 0;
    return layout.units;
}

static int enter(struct mco_disk *d, struct mco_disk_scan *s, const uint8_t *at,
                 const struct mco_disk_record *r)
{
    struct mco_disk_bin *b = s->bin;
    struct mco_key key = mco_key(r->tenant, at + sizeof(*r), r->key_length);
    bool dead = (b->marks[s->unit / 8] >> s->unit % 8 & 1) != 0;
    bool summed = (r->flags & MCO_DISK_SUMMED) != 0;
    int res;

    if (dead)
        return 0;
    res = mco_disk_bin_reserve(d, b, 1);
    if (res != 0)
        return res;
    /* It lives before the store hears of it, since the store may drop it at once. */
    mco_disk_lock(d);
    mco_disk_bin_enter(d, b, s->unit, r->units, true);
    mco_disk_unlock(d);
    if (!d->calls.found(d->store, &key, &r->version, r->size, summed ? r->data_crc : 0, summed,
                        mco_disk_place(b, s->unit)))
        mco_disk_drop_place(d, mco_disk_place(b, s->unit));
    return 0;
}

static void none_at(struct mco_disk *d, struct mco_disk_scan *s)
{
    bool fresh;

    if (s->bin->unreadable)
        return;
    mco_disk_lock(d);
    fresh = mco_disk_bin_mark(d, s->bin, s->unit);
    mco_disk_unlock(d);
    if (fresh && !s->in_torn)
        mco_disk_count(d, torn, 1);
}

/* Behind what was written nothing is there either. */
static void none_behind(struct mco_disk *d, struct mco_disk_bin *b)
{
    mco_disk_lock(d);
    for (uint32_t unit = b->end; unit < b->room_for; unit++)
        (void)mco_disk_bin_mark(d, b, unit);
    mco_disk_unlock(d);
}

static void go_on(struct mco_disk *d, struct mco_disk_scan *s);

/* What cannot be read at once is read in small windows, and a unit that cannot be is left out. Too many: the error. */
static int pass_by(struct mco_disk *d, struct mco_disk_scan *s, int res)
{
    s->bin->unreadable = true; /* what lies there is not known: it is neither empty, nor marked */
    s->window_units = 0;
    if (s->want > HEAD_UNITS_MAX) {
        s->want = HEAD_UNITS_MAX;
        return 0;
    }
    if (s->want > 1) {
        s->want = 1;
        return 0;
    }
    s->want = HEAD_UNITS_MAX;
    s->unit++;
    mco_disk_count(d, read_errors, 1);
    return ++s->errors > ERRORS_MOST ? res : 0;
}

static void window_came(struct mct_file_io *io, int res)
{
    struct mco_disk_scan *s = (struct mco_disk_scan *)io;
    struct mco_disk *d = s->disk;

    if (d->closing || d->lost) { /* what lies behind it is not known, so that it is not empty */
        s->bin->unreadable = true;
        res = 0;
    } else if (res != 0) {
        res = pass_by(d, s, res);
    }
    if (res != 0 || d->closing || d->lost)
        finish(d, s, res);
    else
        go_on(d, s);
    mco_disk_pump(d);
}

/* Walks through the window; reads the next one where it ends. */
static void go_on(struct mco_disk *d, struct mco_disk_scan *s)
{
    struct mco_disk_bin *b = s->bin;
    struct mco_disk_record r;
    uint32_t units;
    int res = 0;

    while (res == 0 && s->unit < b->end) {
        uint32_t left = b->end - s->unit, have = s->window_first + s->window_units - s->unit;
        uint32_t need = s->want < HEAD_UNITS_MAX ? s->want : HEAD_UNITS_MAX;
        const uint8_t *at = s->window + (size_t)(s->unit - s->window_first) * MCO_DISK_UNIT;

        if (s->window_units == 0 || s->unit >= s->window_first + s->window_units ||
            (have < need && have < left)) {
            s->window_first = s->unit;
            s->window_units = left < s->want ? left : s->want;
            s->io = (struct mct_file_io){
                .file = b->file,
                .op = MCT_FILE_READ,
                .buffer = s->window,
                .size = (uint64_t)s->window_units * MCO_DISK_UNIT,
                .offset = (uint64_t)s->unit * MCO_DISK_UNIT,
                .done = window_came,
            };
            mct_file_start(&s->io);
            return;
        }
        units = record_at(s, at, &r);
        if (units == 0)
            none_at(d, s);
        else
            res = enter(d, s, at, &r);
        s->in_torn = units == 0;
        s->unit += units == 0 ? 1 : units;
        if (s->want == 1)
            s->want = HEAD_UNITS_MAX;
    }
    if (res == 0 && !b->unreadable)
        none_behind(d, b);
    finish(d, s, res);
}

static void begin(struct mco_disk *d, struct mco_disk_scan *s, struct mco_disk_bin *b)
{
    int res = mco_disk_bin_get(d, b);

    if (res != 0) { /* gone, or not to be opened: nothing of it is known, nobody is told of it */
        mco_disk_count(d, read_errors, 1);
        b->scanned = b->unreadable = true;
        return;
    }
    s->disk = d;
    s->bin = b;
    s->window_units = 0;
    s->want = WINDOW_UNITS;
    s->errors = 0;
    s->in_torn = false;
    d->scans_running++;
    res = read_front(d, b);
    if (res == -EBADMSG) {
        mco_disk_count(d, torn, 1);
        d->log(1, "a file of the store's disk, %s, has no sound head: it is not used", d->path);
        res = 0;
        b->end = b->first;
    }
    s->unit = b->first;
    if (res != 0)
        finish(d, s, res);
    else
        go_on(d, s);
}

void mco_disk_scan_next(struct mco_disk *d)
{
    struct mco_disk_stats stats;

    if (!d->scanning)
        return;
    for (unsigned i = 0; i < MCO_DISK_SCANS && !d->closing && !d->lost; i++)
        while (d->scans[i].bin == NULL && d->scan_next > 0)
            begin(d, &d->scans[i], d->to_scan[--d->scan_next]);
    if (d->scans_running > 0 || (d->scan_next > 0 && !d->closing && !d->lost))
        return;
    d->scanning = false;
    if (d->closing)
        return;
    d->calls.known(d->store);
    MCS_FAILPOINT(disk_scanned);
    mco_disk_get_stats(d, &stats);
    d->log(2, "the store's disk, %s: %llu objects, %llu of at most %llu bytes; %llu torn", d->path,
           (unsigned long long)stats.objects, (unsigned long long)stats.used,
           (unsigned long long)stats.size, (unsigned long long)stats.torn);
    mcs_store_release(&d->scanned, 1u); /* with mco_disk_scanned() */
}
