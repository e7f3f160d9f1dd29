/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the SSD tier.  disk.c: the folder, calls of the store, life and death; disk_bin.c: files; disk_write.c:
 * groups; disk_read.c; disk_mark.c: what was dropped; disk_scan.c: the start.
 *
 * A bin is a file of a generation that no other ever had, written from front to back once:
 *
 *   0       4 KiB    first                                          end
 *   +-------+--------+----------------------+-----------+-----------+
 *   | head  | marks  | record               | record    |           |
 *   +-------+--------+----------------------+-----------+-----------+
 *
 * All is counted in units of 4 KiB. marks: a bit for each unit, set when the record that begins there was dropped, or when none
 * was found there at a start: what a dying agent had on its way to the disk may arrive after the next one has looked, and
 * shall not be found by the one after that. A bit is never cleared, so a torn write of them is one of the two states in each sector. record: mco_disk_record, key, data.
 * Small data follow the key, larger data begin at a unit, so that they go straight from the store's memory.
 * A group of records is written, then made durable, then told; only then is the next one written.
 *
 * Threads: the file engine's thread does it all. The lock guards what the store's calls touch: queues,
 * the table of bins, and in each bin its records and marks. The store is never called with the lock held.
 */
#ifndef MCO_DISK_INTERNAL_H
#define MCO_DISK_INTERNAL_H

#include <assert.h>
#include <semaphore.h>

#include "shm/atomic.h"
#include "store/object/disk.h"
#include "store/object/lock.h"
#include "transports/file/file.h"

#define MCO_DISK_UNIT MCT_FILE_BLOCK
#define MCO_DISK_SMALL (32u << 10) /* data up to here lie behind their key */
#define MCO_DISK_UNITS_MAX (1u << 24)
#define MCO_DISK_JOBS 256u /* that may wait or be under way, reading and writing each */
#define MCO_DISK_OPEN 48u  /* files that are held open */
#define MCO_DISK_GROUP_BYTES (UINT64_C(32) << 20)

/* Parts of the file engine's scratch memory. */
#define MCO_DISK_STAGE ((size_t)2 << 20) /* heads and small records of a group */
#define MCO_DISK_SLOTS 32u               /* reads at a time */
#define MCO_DISK_SLOT ((size_t)40 << 10)
#define MCO_DISK_MARKS 16u /* blocks of marks written at a time */
#define MCO_DISK_SCANS 8u  /* files scanned at a time */
#define MCO_DISK_WINDOW ((size_t)64 << 10)
#define MCO_DISK_SCRATCH                                                                           \
    (MCO_DISK_STAGE + MCO_DISK_SLOTS * MCO_DISK_SLOT + MCO_DISK_MARKS * MCO_DISK_UNIT +            \
     MCO_DISK_SCANS * MCO_DISK_WINDOW)

#define MCO_DISK_BIN_MAGIC UINT64_C(0x014e49424f434d01)    /* "\1MCOBIN\1" */
#define MCO_DISK_RECORD_MAGIC UINT64_C(0x014345524f434d01) /* "\1MCOREC\1" */
#define MCO_DISK_FORMAT 1u

struct mco_disk_head {
    uint64_t magic;
    uint32_t format, crc; /* of the head with crc 0 */
    uint64_t generation;
    uint64_t salt;  /* random: no bytes of a client's are taken for a record */
    uint32_t units; /* that the marks have room for */
    uint32_t first; /* unit of the first record */
};
static_assert(sizeof(struct mco_disk_head) == 40, "no holes");

#define MCO_DISK_SUMMED 0x1u /* crc is the object's own, not only ours */

struct mco_disk_record {
    uint64_t magic;
    uint32_t crc; /* of this with crc 0, and the key */
    uint32_t unit, units;
    uint32_t flags;
    uint64_t generation, salt;
    uint64_t tenant, size;
    struct mco_version version;
    uint32_t key_length, data_crc;
    uint64_t reserved;
};
static_assert(sizeof(struct mco_disk_record) == 88, "no holes");

/* Where the parts of a record lie. */
struct mco_disk_layout {
    uint32_t data; /* offset of the data */
    uint32_t units;
    uint32_t head_units; /* units that hold head, key, and small data */
    bool small;
};

#define MCO_DISK_DEAD (UINT32_C(1) << 31)
struct mco_disk_entry {
    uint32_t unit, units; /* with MCO_DISK_DEAD */
};

struct mco_disk_bin {
    uint64_t generation, salt;
    uint32_t capacity, first, end; /* units */
    uint32_t room_for;             /* units that there may be, as its head says */
    bool sealed;                   /* nothing is appended any more */
    bool scanned, gone, unreadable;
    struct mct_file *file; /* NULL: not open */
    uint64_t last_used;
    uint32_t users; /* requests under way */
    /* under the lock */
    struct mco_disk_entry *entries; /* by unit */
    uint32_t n, room, live;
    uint64_t live_units;
    uint8_t *marks;       /* a copy of what is to be in the file */
    uint8_t *marks_dirty; /* one a unit of marks */
    uint32_t marks_units;
    bool dirty;
};

struct mco_disk_write {
    struct mco_disk_write *next;
    struct mco_view view;
    uint64_t tenant;
    uint32_t length;
    uint32_t unit; /* in the group's bin */
    struct mco_disk_layout layout;
    uint8_t key[MCS_KEY_MAX];
};

struct mco_disk_read {
    struct mct_file_io head, data; /* head: first */
    struct mco_disk_read *next;
    struct mco_disk *disk;
    struct mco_disk_bin *bin;
    struct mco_view view;
    uint64_t place, tenant, hash;
    uint32_t length;
    struct mco_disk_layout layout;
    uint8_t *slot;
    unsigned left;
    int res;
};

struct mco_disk_part {
    struct mct_file_io io; /* first */
    struct mco_disk *disk;
    struct mco_disk_bin *bin;
    uint32_t block; /* of marks */
    uint8_t *buffer;
};

struct mco_disk_scan {
    struct mct_file_io io; /* first */
    struct mco_disk *disk;
    struct mco_disk_bin *bin; /* NULL: idle */
    uint8_t *window;
    uint32_t unit, window_first, window_units;
    uint32_t want, errors; /* units of the next window; that could not be read */
    bool in_torn;
};

/* Whom it calls; tests take others. */
struct mco_disk_calls {
    void (*offloaded)(struct mco_store *s, struct mco_object *o, int res, uint64_t place);
    void (*fetched)(struct mco_store *s, struct mco_object *o, int res);
    bool (*found)(struct mco_store *s, const struct mco_key *key, const struct mco_version *version,
                  uint64_t size, uint32_t crc, bool summed, uint64_t place);
    void (*lost)(struct mco_store *s, bool all, uint64_t place);
    void (*known)(struct mco_store *s);
};

struct mco_disk {
    struct mct_files *files;
    struct mct_files_call wake, start, stop, close;
    uint32_t posted; /* wake is */
    char *path;
    int folder;
    uint64_t size;
    uint32_t size_units, bin_units;
    bool verify;
    struct mco_store *store;
    struct mco_disk_calls calls;
    void (*log)(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

    struct mco_lock lock;
    /* under the lock */
    struct mco_disk_write *writes, **writes_last, *free_writes;
    struct mco_disk_read *reads, **reads_last, *free_reads;
    struct mco_disk_bin **bins; /* by generation */
    uint32_t nbins, bins_room;
    uint64_t live, live_units; /* of all of them */
    bool started, closing, lost, any_dirty, any_empty;

    /* the thread's */
    uint64_t next_generation, clock;
    uint64_t total_units; /* of all files */
    uint32_t nopen;
    struct mco_disk_bin *active;
    bool told_full, scanning;
    sem_t stopped, closed;
    bool stop_told, closes, close_told; /* stop_told: the store is not called any more */
    bool was_stopped;                   /* the owner's */
    struct {
        struct mco_disk_write *jobs[MCO_DISK_JOBS];
        struct mco_disk_part parts[2 * MCO_DISK_JOBS + 1];
        unsigned n, nparts, left;
        struct mco_disk_bin *bin; /* NULL: none is under way */
        uint32_t end;             /* of the bin, with it */
        int res;
    } group;
    struct {
        struct mco_disk_part parts[MCO_DISK_MARKS];
        unsigned n, left;
        bool syncing;
        int res;
    } marking;
    struct mco_disk_scan scans[MCO_DISK_SCANS];
    uint32_t scan_next; /* files not yet begun: bins[0 .. scan_next) of the start */
    struct mco_disk_bin **to_scan;
    uint32_t scans_running;
    uint8_t *stage, *marks_memory;
    uint8_t *slots[MCO_DISK_SLOTS];
    uint32_t nslots;
    uint32_t scanned; /* atomic: all of it */
    struct mco_disk_stats stats;

    struct mco_disk_write *all_writes;
    struct mco_disk_read *all_reads;
};

static inline void mco_disk_lock(struct mco_disk *d)
{
    mco_lock(&d->lock);
}

static inline void mco_disk_unlock(struct mco_disk *d)
{
    mco_unlock(&d->lock);
}

/* A count that mco_disk_get_stats() reads. */
#define mco_disk_count(d, field, n) ((void)mcs_fetch_add(&(d)->stats.field, (uint64_t)(n)))

static inline uint64_t mco_disk_place(const struct mco_disk_bin *b, uint32_t unit)
{
    return b->generation << 24 | unit;
}

/* mco_disk_open() over a disk of a test's own. */
int mco_disk_open_over(const struct mco_disk_options *o, const struct mct_file_backend *backend,
                       void *context, struct mco_disk **out, char *error, size_t error_size);
void mco_disk_set_calls(struct mco_disk *d, const struct mco_disk_calls *calls); /* before start */

/* Does what can be done now. The thread's, as all that follows. */
void mco_disk_pump(struct mco_disk *d);
/* The disk failed at `what`: nothing is written from now on, what lies on it is gone for the store. */
void mco_disk_fail(struct mco_disk *d, const char *what, int error);
/* Errors that are no failure of the disk: it is full, or this host is short of something. */
bool mco_disk_passing(int error);

uint32_t mco_disk_crc(uint32_t crc, const void *data, size_t size);
struct mco_disk_layout mco_disk_layout(uint32_t key_length, uint64_t size);
uint32_t mco_disk_record_crc(const struct mco_disk_record *r, const void *key);

/* disk_bin.c */
void mco_disk_bin_name(uint64_t generation, char *name, size_t size);
/* Of a file that has room for so many in one piece, behind head and marks: units + 1 + m <= 8 * UNIT * m. */
static inline uint32_t mco_disk_bin_capacity(uint32_t units)
{
    return units + 1 + (units + 1 + 8 * MCO_DISK_UNIT - 2) / (8 * MCO_DISK_UNIT - 1);
}

/* An empty one in memory, for a file of `capacity` units. NULL: no memory. */
struct mco_disk_bin *mco_disk_bin_new(uint64_t generation, uint32_t capacity, uint32_t marks_for);
void mco_disk_bin_free(struct mco_disk_bin *b);
int mco_disk_bin_add(struct mco_disk *d, struct mco_disk_bin *b); /* to the table */
/* Room for n more entries. */
int mco_disk_bin_reserve(struct mco_disk *d, struct mco_disk_bin *b, uint32_t n);
/* Under the lock. */
struct mco_disk_bin *mco_disk_bin_find(struct mco_disk *d, uint64_t place);
void mco_disk_bin_enter(struct mco_disk *d, struct mco_disk_bin *b, uint32_t unit, uint32_t units,
                        bool live);
/* No record that begins there counts, now and in later lives. False: so it was already. */
bool mco_disk_bin_mark(struct mco_disk *d, struct mco_disk_bin *b, uint32_t unit);
bool mco_disk_bin_drop(struct mco_disk *d, struct mco_disk_bin *b, uint32_t unit);
/* Opens its file, if it is not, and holds it open until mco_disk_bin_put(). */
int mco_disk_bin_get(struct mco_disk *d, struct mco_disk_bin *b);
void mco_disk_bin_put(struct mco_disk *d, struct mco_disk_bin *b);
/* The bin to append `units` to; makes room by the oldest ones. -ENOSPC, -EBUSY: not while it is scanned; or the disk's error. */
int mco_disk_bin_for(struct mco_disk *d, uint32_t units, struct mco_disk_bin **out);
/* The file is removed, for good; what was live in it is told to the store as lost. */
void mco_disk_bin_remove(struct mco_disk *d, struct mco_disk_bin *b, bool evicted);
/* Those in which nothing lives; and the oldest, while there is more than there may be. */
void mco_disk_bins_trim(struct mco_disk *d);

/* disk_write.c, disk_read.c, disk_mark.c, disk_scan.c: each begins what waits for it */
void mco_disk_write_next(struct mco_disk *d);
void mco_disk_read_next(struct mco_disk *d);
void mco_disk_mark_next(struct mco_disk *d);
/* Names of files in the folder, newest last: makes their bins. */
int mco_disk_list(struct mco_disk *d);
void mco_disk_scan_next(struct mco_disk *d);
/* Under no lock: a record that is not wanted, or damaged. */
void mco_disk_drop_place(struct mco_disk *d, uint64_t place);

#endif
