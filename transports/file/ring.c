/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on files by io_uring. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transports/file/internal.h"

struct ring {
    struct mct_uring *uring;
    bool memory, files;
};

static int create(void *context, unsigned depth, void *memory, size_t size, int wake, void **out,
                  char *error, size_t error_size)
{
    struct ring *r = calloc(1, sizeof(*r));
    struct iovec v = {memory, size};
    int res;

    (void)context;
    (void)wake;
    if (r == NULL) {
        snprintf(error, error_size, "out of memory");
        return -ENOMEM;
    }
    res = mct_uring_create(depth, &r->uring, error, error_size);
    if (res != 0)
        goto fail;
    res = mct_uring_enable(r->uring);
    if (res != 0) {
        snprintf(error, error_size, "io_uring cannot be enabled (%s)", strerror(-res));
        goto fail_ring;
    }
    r->memory = size > 0 && mct_uring_memory(r->uring, &v, 1) == 0;
    r->files = mct_uring_files(r->uring, MCT_FILE_PLACES) == 0;
    *out = r;
    return 0;
fail_ring:
    mct_uring_destroy(r->uring);
fail:
    free(r);
    return res;
}

static void destroy(void *b)
{
    struct ring *r = b;

    mct_uring_destroy(r->uring);
    free(r);
}

static bool registered(void *b)
{
    return ((struct ring *)b)->memory;
}

static bool place(void *b, unsigned at, int fd)
{
    struct ring *r = b;

    return r->files && mct_uring_file(r->uring, at, fd) == 0;
}

static void ended(struct mct_io *io, int res, uint32_t flags)
{
    (void)flags;
    mct_file_ended((struct mct_file_step *)io, res); /* its first member */
}

static void start(void *b, struct mct_file_step *s)
{
    struct ring *r = b;
    struct mct_uring_span span = {
        .fd = s->fd,
        .file = s->place,
        .buffer = s->memory,
        .size = s->size,
        .offset = s->offset,
        .memory = s->registered && r->memory ? 0 : -1,
    };

    s->io.done = ended;
    if (s->op == MCT_FILE_READ)
        mct_uring_read(r->uring, &s->io, &span);
    else if (s->op == MCT_FILE_WRITE)
        mct_uring_write(r->uring, &s->io, &span);
    else
        mct_uring_datasync(r->uring, &s->io, s->fd);
}

static unsigned turn(void *b)
{
    return mct_uring_turn(((struct ring *)b)->uring);
}

static bool arm(void *b)
{
    return mct_uring_arm(((struct ring *)b)->uring);
}

static int event_fd(void *b)
{
    return mct_uring_event_fd(((struct ring *)b)->uring);
}

const struct mct_file_backend mct_file_ring = {
    .name = "io_uring",
    .create = create,
    .destroy = destroy,
    .registered = registered,
    .place = place,
    .start = start,
    .turn = turn,
    .arm = arm,
    .event_fd = event_fd,
};
