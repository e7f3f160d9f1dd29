/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to a file engine, made from a test's thread and waited for. */
#ifndef FILE_RIG_H
#define FILE_RIG_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transports/file/internal.h"

static char rig_said
    [512]; /* the last line of the log; written by the engine's thread, read when it is quiet */
static unsigned rig_lines;

__attribute__((format(printf, 2, 3), unused)) static void rig_log(int level, const char *format,
                                                                  ...)
{
    va_list ap;

    (void)level;
    va_start(ap, format);
    vsnprintf(rig_said, sizeof(rig_said), format, ap);
    va_end(ap);
    rig_lines++;
}

struct rig_wish {
    struct mct_files_call call; /* first */
    struct mct_files *files;
    struct mct_file *file;
    const char *name;
    int flags, res;
    struct mct_file_io io;
    size_t nios, left;
    struct mct_file_io *ios;
    int *results;
    sem_t over;
};

static inline void rig_wait(struct rig_wish *w, void (*fn)(struct mct_files_call *call))
{
    w->call.fn = fn;
    sem_init(&w->over, 0, 0);
    mct_files_post(w->files, &w->call);
    while (sem_wait(&w->over) != 0)
        continue;
    sem_destroy(&w->over);
}

static inline void rig_open_it(struct mct_files_call *call)
{
    struct rig_wish *w = (struct rig_wish *)call;

    w->res = mct_file_open(w->files, AT_FDCWD, w->name, w->flags, 0600, &w->file);
    sem_post(&w->over);
}

static inline int rig_open(struct mct_files *f, const char *name, int flags, struct mct_file **out)
{
    struct rig_wish w = {.files = f, .name = name, .flags = flags};

    rig_wait(&w, rig_open_it);
    *out = w.file;
    return w.res;
}

static inline void rig_close_it(struct mct_files_call *call)
{
    struct rig_wish *w = (struct rig_wish *)call;

    mct_file_close(w->file);
    sem_post(&w->over);
}

static inline void rig_close(struct mct_files *f, struct mct_file *file)
{
    struct rig_wish w = {.files = f, .file = file};

    rig_wait(&w, rig_close_it);
}

static struct rig_wish *rig_now; /* ios have no room for it; one wish at a time */

static inline void rig_done(struct mct_file_io *io, int res)
{
    struct rig_wish *w = rig_now;

    w->results[io - w->ios] = res;
    if (--w->left == 0)
        sem_post(&w->over);
}

static inline void rig_start_all(struct mct_files_call *call)
{
    struct rig_wish *w = (struct rig_wish *)call;

    rig_now = w;
    w->left = w->nios;
    for (size_t i = 0; i < w->nios; i++) {
        w->ios[i].done = rig_done;
        mct_file_start(&w->ios[i]);
    }
}

/* All of them at once; their results. */
static inline void rig_all(struct mct_files *f, struct mct_file_io *ios, size_t n, int *results)
{
    struct rig_wish w = {.files = f, .nios = n, .ios = ios, .results = results};

    rig_wait(&w, rig_start_all);
}

static inline int rig_io(struct mct_files *f, struct mct_file *file, enum mct_file_op op,
                         unsigned flags, void *buffer, uint64_t size, uint64_t offset)
{
    struct mct_file_io io = {
        .file = file, .op = op, .flags = flags, .buffer = buffer, .size = size, .offset = offset};
    int res = 1;

    rig_all(f, &io, 1, &res);
    return res;
}

static inline struct mct_files *rig_create(struct mct_files_options *o)
{
    struct mct_files *f = NULL;
    char error[256] = "";
    int res;

    if (o->log == NULL)
        o->log = rig_log;
    rig_said[0] = '\0';
    rig_lines = 0;
    res = mct_files_create(o, &f, error, sizeof(error));
    cr_assert_eq(res, 0, "%s", error);
    return f;
}

/* A folder of the test's own; removed by rig_remove(). */
static inline void rig_folder(char *path, size_t size, const char *where)
{
    snprintf(path, size, "%s/mcshm-file-XXXXXX", where);
    cr_assert_not_null(mkdtemp(path), "%s", path);
}

static inline const char *rig_tmp(void)
{
    const char *tmp = getenv("TMPDIR");

    return tmp == NULL || tmp[0] == '\0' ? "/tmp" : tmp;
}

#endif
