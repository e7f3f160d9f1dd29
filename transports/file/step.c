/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request's way: one operation after the other until all of its bytes are there.  Which one is next depends on
 * what O_DIRECT takes of what is left: blocks straight, what is not aligned through a bounce, the edges of a write
 * that must leave its neighbours alone through the page cache.
 */
#include <errno.h>
#include <string.h>

#include "shm/atomic.h"
#include "transports/file/engine.h"

#define TRIES 100u /* results one after the other that bring nothing forward */
#define BLOCK_MASK ((uint64_t)MCT_FILE_BLOCK - 1)
#define STEP_MOST (UINT64_C(64) << 20)

/* A plain count of the thread's; with mct_files_get_stats(). */
static void count(uint64_t *counter, uint64_t n)
{
    mcs_count(counter, n);
}

static void get_ready(struct mct_file_io *io)
{
    struct mct_files *f = io->file->files;

    io->next = NULL;
    *f->ready_last = io;
    f->ready_last = &io->next;
}

static void give_bounce_back(struct mct_file_io *io)
{
    struct mct_files *f = io->file->files;
    struct mct_file_io *next = f->waiting;

    if (io->bounce == NULL)
        return;
    f->free_bounces[f->nfree++] = io->bounce;
    io->bounce = NULL;
    if (next == NULL)
        return;
    f->waiting = next->next;
    if (f->waiting == NULL)
        f->waiting_last = &f->waiting;
    get_ready(next);
}

static void end(struct mct_file_io *io, int res)
{
    struct mct_files *f = io->file->files;

    give_bounce_back(io);
    mcs_store_relaxed(&f->stats.queued, f->stats.queued - 1); /* with mct_files_get_stats() */
    if (res != 0)
        count(&f->stats.errors, 1);
    io->done(io, res);
}

void mct_file_start(struct mct_file_io *io)
{
    io->at = 0;
    io->bounce = NULL;
    io->tries = 0;
    mcs_count(&io->file->files->stats.queued, 1); /* with mct_files_get_stats() */
    get_ready(io);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Through blocks of the engine's own. False: none is free, it waits for one. */
static bool bounce(struct mct_file_io *io, struct mct_file_step *s, uint64_t at, uint64_t left)
{
    struct mct_files *f = io->file->files;
    uint64_t n;

    if (io->bounce == NULL && f->nfree == 0) {
        io->next = NULL;
        *f->waiting_last = io;
        f->waiting_last = &io->next;
        return false;
    }
    if (io->bounce == NULL)
        io->bounce = f->free_bounces[--f->nfree];
    io->skip = (size_t)(at & BLOCK_MASK);
    n = least(left, MCT_FILE_BOUNCE - io->skip);
    s->memory = io->bounce;
    s->offset = at - io->skip;
    s->size = (size_t)((io->skip + n + BLOCK_MASK) & ~BLOCK_MASK);
    s->registered = true;
    if (io->op == MCT_FILE_WRITE) {
        if (n % MCT_FILE_BLOCK != 0 && (io->flags & MCT_FILE_PAD) == 0) {
            n &= ~BLOCK_MASK;
            s->size = (size_t)n;
        }
        memcpy(io->bounce, (uint8_t *)io->buffer + io->at, n);
        memset(io->bounce + n, 0, s->size - n);
        count(&f->stats.bounced, n);
    }
    return true;
}

/* Fills in the next operation. False: it has to wait. */
static bool next_step(struct mct_file_io *io, struct mct_file_step *s)
{
    struct mct_file *file = io->file;
    struct mct_files *f = file->files;
    uint8_t *memory = (uint8_t *)io->buffer + io->at;
    uint64_t at = io->offset + io->at, left = io->size - io->at, blocks = left & ~BLOCK_MASK;

    s->op = io->op;
    s->memory = memory;
    s->offset = at;
    s->direct = io->op != MCT_FILE_SYNC && file->straight;
    if (s->direct && at % MCT_FILE_BLOCK == 0 && (uintptr_t)memory % MCT_FILE_BLOCK == 0 &&
        blocks > 0) {
        s->size = (size_t)least(blocks, STEP_MOST);
        s->registered = memory >= f->memory && memory + s->size <= f->memory + f->memory_size;
    } else if (s->direct &&
               (io->op == MCT_FILE_READ ||
                (at % MCT_FILE_BLOCK == 0 && (blocks > 0 || (io->flags & MCT_FILE_PAD) != 0)))) {
        if (!bounce(io, s, at, left))
            return false;
    } else if (s->direct) { /* the edge of a write: up to the next block, or what is left */
        s->direct = false;
        s->size = (size_t)least(left, MCT_FILE_BLOCK - (at & BLOCK_MASK));
    } else {
        s->size = (size_t)least(left, STEP_MOST);
    }
    if (!s->direct && io->op != MCT_FILE_SYNC) {
        count(&f->stats.cached, 1);
        count(&f->stats.cached_bytes, s->size);
    }
    s->fd = s->direct ? file->straight_fd : file->fd;
    s->place = s->direct ? file->place : -1;
    return true;
}

unsigned mct_files_go_on(struct mct_files *f)
{
    struct mct_file_io *io;
    unsigned n = 0;

    for (; f->running < f->depth && f->ready_first != NULL; n++) {
        struct mct_file_step *s;

        io = f->ready_first;
        f->ready_first = io->next;
        if (f->ready_first == NULL)
            f->ready_last = &f->ready_first;
        if (io->op != MCT_FILE_SYNC && io->at == io->size) {
            end(io, 0); /* nothing was asked for */
            continue;
        }
        s = &io->step;
        memset(s, 0, sizeof(*s));
        s->context = io;
        if (!next_step(io, s))
            continue;
        f->running++;
        f->backend->start(f->b, s);
    }
    return n;
}

/* How far `res` bytes of an operation bring the request. */
static uint64_t progress(struct mct_file_io *io, const struct mct_file_step *s, uint64_t res)
{
    struct mct_files *f = io->file->files;
    uint64_t left = io->size - io->at, got;

    if (s->memory != io->bounce || io->bounce == NULL)
        return s->direct ? res & ~BLOCK_MASK : res; /* straight blocks begin at a block */
    if (io->op == MCT_FILE_WRITE)
        return least(res & ~BLOCK_MASK, left);
    got = res <= io->skip ? 0 : least(res - io->skip, left);
    memcpy((uint8_t *)io->buffer + io->at, io->bounce + io->skip, got);
    count(&f->stats.bounced, got);
    return got;
}

static bool may_be_direct(int res)
{
    return res == -EINVAL || res == -EOPNOTSUPP || res == -ENOTBLK;
}

void mct_file_ended(struct mct_file_step *s, int res)
{
    struct mct_file_io *io = s->context;
    struct mct_files *f = io->file->files;
    uint64_t done;

    f->running--;
    if (res == -EAGAIN || res == -EINTR) {
        count(&f->stats.again, 1);
        if (++io->tries < TRIES)
            get_ready(io);
        else
            end(io, res);
        return;
    }
    if (may_be_direct(res) && s->direct) {
        if (io->file->straight)
            mct_file_refused(io->file, -res);
        give_bounce_back(io);
        get_ready(io);
        return;
    }
    if (res < 0 || io->op == MCT_FILE_SYNC) {
        count(&f->stats.syncs, io->op == MCT_FILE_SYNC ? 1 : 0);
        end(io, res);
        return;
    }
    if ((uint64_t)res > s->size) { /* no kernel says so */
        end(io, -EIO);
        return;
    }
    if ((size_t)res < s->size)
        count(&f->stats.shorts, 1);
    done = progress(io, s, (uint64_t)res);
    io->at += done;
    io->tries = done > 0 ? 0 : io->tries + 1;
    if (io->op == MCT_FILE_READ)
        count(&f->stats.read_bytes, done);
    else
        count(&f->stats.write_bytes, done);
    if (io->at == io->size) {
        count(io->op == MCT_FILE_READ ? &f->stats.reads : &f->stats.writes, 1);
        end(io, 0);
    } else if (io->tries >= (res == 0 ? 3u : TRIES)) {
        end(io, -EIO); /* the file ends here, or takes nothing */
    } else {
        get_ready(io);
    }
}
