/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SSD tier of one agent: objects in files of fixed size ("bins") in one folder, written and read with
 * O_DIRECT through io_uring by a thread of its own (transports/file/).  What lies there describes itself: each record has a
 * header with key, version, size, generation and checksums, so the folder is scanned at the start and nothing else needs
 * to survive.  A record counts only once it is durable (data, then fdatasync, then it is told).
 */
#ifndef MCO_DISK_H
#define MCO_DISK_H

#include "store.h"

struct mco_disk;

#define MCO_DISK_SIZE_MIN (UINT64_C(4) << 20) /* bytes */

struct mco_disk_options {
    const char *path;  /* a folder, made if it is not there */
    uint64_t size;     /* most bytes of all bins */
    uint64_t bin_size; /* bytes of one; 0: 256 MiB */
    bool verify;       /* checksums of data when it is read */
    struct mco_store *store;
    void (*log)(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
};

struct mco_disk_stats {
    uint64_t size, used, objects;
    uint64_t writes, write_bytes, reads, read_bytes, drops, evictions;
    uint64_t write_errors, read_errors, torn, checksum_errors, full,
        buffered;    /* buffered: without O_DIRECT */
    uint64_t queued; /* under way now */
    bool lost;       /* the disk failed: nothing is written any more */
};

extern const struct mco_tier_ops mco_disk_ops; /* context: the struct mco_disk */

/* Opens the folder (locks it) and starts the thread. On failure one sentence in error: -EACCES, -ENOSPC, -EBUSY: another agent's. */
int mco_disk_open(const struct mco_disk_options *o, struct mco_disk **out, char *error,
                  size_t error_size);
/* Sets the store whose calls come back; then scans in the thread, each object to mco_disk_found(). */
void mco_disk_start(struct mco_disk *d, struct mco_store *store);
bool mco_disk_scanned(struct mco_disk *d);
/* Ends what is under way. From its return on the store is not called any more, and only drop() has an effect. */
void mco_disk_stop(struct mco_disk *d);
/* The same, when it was not done; then makes all drops durable and stops the thread. */
void mco_disk_close(struct mco_disk *d);
void mco_disk_get_stats(struct mco_disk *d, struct mco_disk_stats *out);

#endif
