/* SPDX-License-Identifier: Apache-2.0 */
/* Who carries out the operations of a file engine: io_uring (ring.c), threads (pool.c), or a test. */
#ifndef MCT_FILE_INTERNAL_H
#define MCT_FILE_INTERNAL_H

#include "transports/file/file.h"

#define MCT_FILE_PLACES 64u /* of registered files */

/* All but create() are called by the engine's thread; create(), too, but it may be told another's context. */
struct mct_file_backend {
    const char *name;
    /* memory: registered, when it can be. wake: an eventfd that wakes the engine's thread. */
    int (*create)(void *context, unsigned depth, void *memory, size_t size, int wake, void **out,
                  char *error, size_t error_size);
    void (*destroy)(void *b);
    bool (*registered)(void *b);
    /* fd -1: the place is free. False: it has to do without. */
    bool (*place)(void *b, unsigned place, int fd);
    void (*start)(void *b, struct mct_file_step *s);
    /* Calls mct_file_ended() for each that has ended. Returns how many. */
    unsigned (*turn)(void *b);
    /* Before the thread sleeps; false: something has ended already. */
    bool (*arm)(void *b);
    int (*event_fd)(void *b); /* to be polled, too; -1: wake alone */
};

extern const struct mct_file_backend mct_file_ring, mct_file_pool;

/* res: bytes, or a negative errno. */
void mct_file_ended(struct mct_file_step *s, int res);

#endif
