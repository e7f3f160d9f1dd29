/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files, past the page cache: an engine with a thread of its own reads, writes and syncs over io_uring with
 * O_DIRECT, or, where io_uring cannot be had, with a few threads that call pread and pwrite.
 *
 * A request may have any offset, size and memory: what O_DIRECT does not take goes through blocks of the engine's
 * own, or, at the edges of a write, through the page cache, so that neighbours in the file stay as they are. Where
 * a file system refuses O_DIRECT the file is used without from then on, which is logged and counted.
 * Each request has a result of its own: all of its bytes, or an error. Short results are gone on with.
 *
 * Threads: everything that takes a struct mct_file is called in the engine's thread, which mct_files_post() leads into.
 */
#ifndef MCT_FILE_H
#define MCT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "transports/uring.h"

#define MCT_FILE_BLOCK 4096u /* of offsets, sizes and memory that go straight */

struct mct_files;
struct mct_file;

struct mct_files_options {
    unsigned depth;   /* operations under way at a time; 0: 64 */
    unsigned bounces; /* blocks of 64 KiB for what cannot go straight; 0: 32 */
    size_t scratch;   /* bytes of registered memory for the user, a multiple of MCT_FILE_BLOCK */
    bool no_uring;    /* threads in any case */
    const struct mct_file_backend *backend; /* internal.h; NULL but for tests */
    void *backend_context;
    void (*log)(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
};

/* Starts the thread. On failure one sentence in error. */
int mct_files_create(const struct mct_files_options *o, struct mct_files **out, char *error,
                     size_t error_size);
/* All requests have ended, all files are closed. Calls that were posted are made first. Not the engine's thread. */
void mct_files_destroy(struct mct_files *f);
/* Zeroed; good until mct_files_destroy(). */
uint8_t *mct_files_scratch(struct mct_files *f);

struct mct_files_call {
    void (*fn)(struct mct_files_call *call);
    struct mct_files_call *next; /* the engine's */
};
/* Any thread, and never waits: fn is called in the engine's thread, in the order of the posts. `call` is the caller's again when
 * fn begins. A system call only when that thread sleeps. */
void mct_files_post(struct mct_files *f, struct mct_files_call *call);

/* flags as of openat(). 0 or a negative errno. */
int mct_file_open(struct mct_files *f, int folder, const char *name, int flags, mode_t mode,
                  struct mct_file **out);
/* No request of it is under way. NULL is fine. */
void mct_file_close(struct mct_file *file);
int mct_file_fd(const struct mct_file *file); /* without O_DIRECT */

enum mct_file_op { MCT_FILE_READ, MCT_FILE_WRITE, MCT_FILE_SYNC };
/* WRITE: what lies behind its end up to the next block may become zeros. */
#define MCT_FILE_PAD 0x1u

/* One operation of the kernel; the engine's. */
struct mct_file_step {
    struct mct_io io;
    struct mct_file_step *next;
    void *context; /* whoever carries it out */
    enum mct_file_op op;
    int fd, place;
    void *memory;
    size_t size;
    uint64_t offset;
    bool registered, direct;
    int res;
};

struct mct_file_io {
    struct mct_file *file;
    enum mct_file_op op;
    unsigned flags; /* MCT_FILE_PAD */
    void *buffer;
    uint64_t size, offset; /* bytes */
    /* In the engine's thread, never from inside mct_file_start(). res: 0, or a negative errno; -EIO also for a file that ends
     * too early. The io is the caller's again. */
    void (*done)(struct mct_file_io *io, int res);
    /* the engine's */
    struct mct_file_io *next;
    uint64_t at; /* bytes that are done */
    uint8_t *bounce;
    size_t skip; /* bytes of the bounce before those wanted */
    unsigned tries;
    struct mct_file_step step;
};

/* The public fields are filled in; it lives until done(). Requests have no order among each other; SYNC is about
 * writes that have ended. */
void mct_file_start(struct mct_file_io *io);

struct mct_files_stats {
    uint64_t reads, read_bytes, writes, write_bytes, syncs, errors;
    uint64_t shorts, again; /* results that were short, and operations that were tried again */
    uint64_t bounced;       /* bytes that were copied */
    uint64_t cached, cached_bytes; /* operations that went through the page cache */
    uint64_t refused;              /* files that could not be had with O_DIRECT */
    uint64_t queued;               /* under way or waiting */
    bool uring, registered;
};
/* Any thread. */
void mct_files_get_stats(const struct mct_files *f, struct mct_files_stats *out);

#endif
