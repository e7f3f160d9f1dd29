/* SPDX-License-Identifier: Apache-2.0 */
/* A disk of the store by itself: what the store would say and do is said and done here. */
#ifndef DISK_RIG_H
#define DISK_RIG_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store/object/disk_internal.h"

struct mco_object {
    char key[MCS_KEY_MAX];
    uint32_t length;
    uint64_t tenant, size;
    struct mco_version version;
    uint32_t crc;
    bool summed;
    uint8_t *data;   /* as it was put */
    uint8_t *memory; /* where it is fetched to */
    uint64_t place;
    int res;
    bool told; /* the answer to the last call is there */
};

struct rig_found {
    char key[64]; /* its beginning */
    uint32_t length;
    uint64_t tenant, size, place;
    struct mco_version version;
    uint32_t crc;
    bool summed;
};

struct mco_store {
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct rig_found *found;
    size_t nfound, found_room;
    uint64_t *lost;
    size_t nlost, lost_room;
    bool all_lost;
    unsigned known;
    bool (*want)(const struct rig_found *f); /* NULL: everything */
};

static char rig_said[4096]; /* all of the log */
static pthread_mutex_t rig_saying = PTHREAD_MUTEX_INITIALIZER;

__attribute__((format(printf, 2, 3), unused)) static void rig_log(int level, const char *format,
                                                                  ...)
{
    size_t n;
    va_list ap;

    (void)level;
    va_start(ap, format);
    pthread_mutex_lock(&rig_saying);
    n = strlen(rig_said);
    if (n + 600 < sizeof(rig_said)) {
        vsnprintf(rig_said + n, 500, format, ap);
        strcat(rig_said, "\n");
    }
    pthread_mutex_unlock(&rig_saying);
    va_end(ap);
}

static inline void rig_told(struct mco_store *s, struct mco_object *o, int res)
{
    pthread_mutex_lock(&s->lock);
    o->res = res;
    o->told = true;
    pthread_cond_broadcast(&s->news);
    pthread_mutex_unlock(&s->lock);
}

static inline void rig_offloaded(struct mco_store *s, struct mco_object *o, int res, uint64_t place)
{
    o->place = place;
    rig_told(s, o, res);
}

static inline bool rig_found_it(struct mco_store *s, const struct mco_key *key,
                                const struct mco_version *version, uint64_t size, uint32_t crc,
                                bool summed, uint64_t place)
{
    struct rig_found f = {.length = key->length,
                          .tenant = key->tenant,
                          .size = size,
                          .place = place,
                          .version = *version,
                          .crc = crc,
                          .summed = summed};
    bool wanted;

    memcpy(f.key, key->bytes, key->length < sizeof(f.key) ? key->length : sizeof(f.key));
    wanted = s->want == NULL || s->want(&f);
    if (!wanted)
        return false;
    pthread_mutex_lock(&s->lock);
    if (s->nfound == s->found_room) {
        s->found_room = s->found_room == 0 ? 64 : s->found_room * 2;
        s->found = realloc(s->found, s->found_room * sizeof(*s->found));
    }
    s->found[s->nfound++] = f;
    pthread_mutex_unlock(&s->lock);
    return true;
}

static inline void rig_lost(struct mco_store *s, bool all, uint64_t place)
{
    pthread_mutex_lock(&s->lock);
    if (s->nlost == s->lost_room) {
        s->lost_room = s->lost_room == 0 ? 64 : s->lost_room * 2;
        s->lost = realloc(s->lost, s->lost_room * sizeof(*s->lost));
    }
    s->lost[s->nlost++] = place;
    s->all_lost = s->all_lost || all;
    pthread_cond_broadcast(&s->news);
    pthread_mutex_unlock(&s->lock);
}

static inline void rig_known(struct mco_store *s)
{
    pthread_mutex_lock(&s->lock);
    s->known++;
    pthread_mutex_unlock(&s->lock);
}

static inline void rig_init(struct mco_store *s)
{
    *s = (struct mco_store){.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER};
    rig_said[0] = '\0';
}

static inline void rig_fini(struct mco_store *s)
{
    free(s->found);
    free(s->lost);
}

/* False: it is not so within a minute. */
static inline bool rig_await(struct mco_store *s, bool (*is)(struct mco_store *s, void *context),
                             void *context)
{
    struct timespec limit;
    bool so;

    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 60;
    pthread_mutex_lock(&s->lock);
    while (!(so = is(s, context)) &&
           pthread_cond_timedwait(&s->news, &s->lock, &limit) != ETIMEDOUT)
        continue;
    pthread_mutex_unlock(&s->lock);
    return so;
}

static inline bool rig_is_told(struct mco_store *s, void *o)
{
    (void)s;
    return ((struct mco_object *)o)->told;
}

static inline int rig_open_over(const char *path, uint64_t size, uint64_t bin, struct mco_store *s,
                                const struct mct_file_backend *backend, void *context,
                                struct mco_disk **out)
{
    struct mco_disk_options o = {
        .path = path, .size = size, .bin_size = bin, .verify = true, .log = rig_log};
    const struct mco_disk_calls calls = {rig_offloaded, rig_told, rig_found_it, rig_lost,
                                         rig_known};
    char error[512] = "";
    int res = mco_disk_open_over(&o, backend, context, out, error, sizeof(error));

    if (res != 0) {
        strcpy(rig_said, error);
        return res;
    }
    mco_disk_set_calls(*out, &calls);
    mco_disk_start(*out, s);
    for (unsigned i = 0; i < 60000 && !mco_disk_scanned(*out); i++)
        usleep(1000);
    return mco_disk_scanned(*out) ? 0 : -ETIMEDOUT;
}

static inline int rig_open(const char *path, uint64_t size, uint64_t bin, struct mco_store *s,
                           struct mco_disk **out)
{
    return rig_open_over(path, size, bin, s, NULL, NULL, out);
}

static inline struct mco_view rig_view(struct mco_object *o, uint8_t *data)
{
    return (struct mco_view){.object = o,
                             .data = data,
                             .size = o->size,
                             .version = o->version,
                             .crc = o->summed ? o->crc : 0,
                             .summed = o->summed};
}

static inline struct mco_key rig_key(const struct mco_object *o)
{
    return mco_key(o->tenant, o->key, o->length);
}

/* Both wait for what must not be waited for by who calls: a full queue. */
static inline int rig_offload(struct mco_disk *d, struct mco_object *o)
{
    struct mco_key key = rig_key(o);
    struct mco_view v = rig_view(o, o->data);
    int res;

    o->told = false;
    for (unsigned i = 0; (res = mco_disk_ops.offload(d, &key, &v)) == -EBUSY && i < 60000; i++)
        usleep(1000);
    return res;
}

static inline int rig_fetch(struct mco_disk *d, struct mco_object *o)
{
    struct mco_key key = rig_key(o);
    struct mco_view v = rig_view(o, o->memory);
    int res;

    o->told = false;
    if (o->memory != NULL)
        memset(o->memory, 0xdb, o->size);
    for (unsigned i = 0; (res = mco_disk_ops.fetch(d, &key, o->place, &v)) == -EBUSY && i < 60000;
         i++)
        usleep(1000);
    return res;
}

static inline int rig_wait(struct mco_store *s, struct mco_object *o)
{
    cr_assert(rig_await(s, rig_is_told, o));
    return o->res;
}

/* Object n of the test: everything of it follows from n and the size. */
static inline void rig_object(struct mco_object *o, uint64_t n, uint64_t size, bool aligned)
{
    size_t room = (size_t)((size + 8191) & ~UINT64_C(4095));
    uint8_t *block = aligned_alloc(4096, room), *memory = aligned_alloc(4096, room);

    memset(o, 0, sizeof(*o));
    o->length = n % 97 == 13 ? MCS_KEY_MAX : 16 + (uint32_t)(n % 60);
    memset(o->key, (int)('a' + n % 26), o->length);
    snprintf(o->key, 16, "%015llu", (unsigned long long)n); /* with a NUL in it */
    o->tenant = n % 3;
    o->size = size;
    o->version = (struct mco_version){1 + n / 1000, 1 + n};
    o->summed = n % 4 != 3;
    o->data = block + (aligned ? 0 : 64);
    o->memory = memory + (aligned ? 0 : 64);
    for (uint64_t i = 0; i < size; i++)
        o->data[i] = (uint8_t)(i * 7 + i / 4096 + n * 13);
    o->crc = mco_disk_crc(0, o->data, size);
}

static inline void rig_free(struct mco_object *o)
{
    free((void *)((uintptr_t)o->data & ~(uintptr_t)4095));
    free((void *)((uintptr_t)o->memory & ~(uintptr_t)4095));
}

static inline int rig_unlink(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    return remove(path);
}

static inline void rig_remove(const char *folder)
{
    nftw(folder, rig_unlink, 8, FTW_DEPTH | FTW_PHYS);
}

static inline void rig_folder(char *path, size_t size)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(path, size, "%s/mcshm-disk-XXXXXX", tmp == NULL || tmp[0] == '\0' ? "/tmp" : tmp);
    cr_assert_not_null(mkdtemp(path));
}

static inline void rig_write(struct mco_disk *d, struct mco_store *s, struct mco_object *o,
                             size_t n)
{
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(rig_offload(d, &o[i]), 0);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(rig_wait(s, &o[i]), 0, "%zu: %d", i, o[i].res);
}

static inline void rig_read(struct mco_disk *d, struct mco_store *s, struct mco_object *o, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(rig_fetch(d, &o[i]), 0);
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(rig_wait(s, &o[i]), 0, "%zu: %d", i, o[i].res);
        cr_assert_eq(memcmp(o[i].memory, o[i].data, o[i].size), 0, "%zu", i);
    }
}

static inline const struct rig_found *rig_found_as(const struct mco_store *s,
                                                   const struct mco_object *o)
{
    const struct rig_found *f = NULL;

    for (size_t i = 0; i < s->nfound; i++) {
        if (memcmp(s->found[i].key, o->key, 16) != 0)
            continue;
        cr_assert_null(f, "found twice");
        f = &s->found[i];
    }
    return f;
}

static inline void rig_check_found(const struct mco_store *s, struct mco_object *o)
{
    const struct rig_found *f = rig_found_as(s, o);

    cr_assert_not_null(f, "%s", o->key);
    cr_assert_eq(f->length, o->length);
    cr_assert_eq(f->tenant, o->tenant);
    cr_assert_eq(f->size, o->size);
    cr_assert_eq(mco_version_compare(&f->version, &o->version), 0);
    cr_assert_eq(f->summed, o->summed);
    cr_assert_eq(f->crc, o->summed ? o->crc : 0u);
    cr_assert_eq(f->place, o->place);
}

static inline bool rig_all_lost(struct mco_store *s, void *unused)
{
    (void)unused;
    return s->all_lost;
}

#endif
