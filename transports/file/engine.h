/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a file engine: files.c and step.c. */
#ifndef MCT_FILE_ENGINE_H
#define MCT_FILE_ENGINE_H

#include <assert.h>
#include <pthread.h>
#include <semaphore.h>

#include "transports/file/internal.h"

#define MCT_FILE_BOUNCE (64u << 10)
static_assert(MCT_FILE_PLACES <= 64, "a bit each in mct_files.places");

struct mct_file {
    struct mct_files *files;
    char *name;
    int fd, straight_fd; /* without and with O_DIRECT */
    int place;           /* of straight_fd, registered; -1: none */
    bool straight;
};

struct mct_files {
    /* calls from other threads */
    uint32_t lock, any_posted, sleeping;
    int wake;
    struct mct_files_call *posted, **posted_last;
    /* the thread's */
    const struct mct_file_backend *backend;
    void *b, *backend_context;
    unsigned depth, running;                       /* operations */
    struct mct_file_io *ready_first, **ready_last; /* to begin their next operation */
    struct mct_file_io *waiting, **waiting_last;   /* for a bounce */
    uint8_t *memory;                               /* bounces, then scratch */
    size_t memory_size;
    uint8_t **free_bounces;
    unsigned nbounces, nfree;
    uint64_t places; /* that are taken */
    bool no_uring, stopping, told_refused;
    uint32_t uring, registered;
    struct mct_files_stats stats;
    void (*log)(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
    struct mct_files_call stop;
    /* start */
    pthread_t thread;
    sem_t ready;
    int begun;
    char *error;
    size_t error_size;
};

/* Begins operations of requests that are ready, as many as may be under way. Returns how many. */
unsigned mct_files_go_on(struct mct_files *f);
/* From now on it is used without O_DIRECT. */
void mct_file_refused(struct mct_file *file, int error);

#endif
