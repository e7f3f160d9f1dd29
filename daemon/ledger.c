/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "shm/atomic.h"
#include "shm/inbox.h"
#include "shm/queue.h"
#include "shm/failpoint.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* linux/memfd.h since 6.3 */
#endif

#define MAGIC UINT64_C(0x5245474445434d01) /* "\1MCEDGER" */
#define VERSION 1u
#define CHUNKS_MAX (MCD_LEDGER_MAX / MCD_LEDGER_CHUNK)
#define RECORDS_OFFSET 64u /* in a chunk, behind its header */
#define PAGE 4096u

struct chunk {
    uint32_t kind; /* stored last; MCD_LEDGER_NONE: unused */
    uint32_t record_size;
};

/* By kind: bytes of a record, and how many of them `check` covers. */
static const struct {
    size_t size, covered;
    const char *word;
} kinds[MCD_LEDGER_KINDS] = {
    [MCD_LEDGER_SESSION] = {sizeof(struct mcd_ledger_session),
                            offsetof(struct mcd_ledger_session, named), "session"},
    [MCD_LEDGER_EXTENT] = {sizeof(struct mcd_ledger_extent), sizeof(struct mcd_ledger_extent),
                           "extent"},
    [MCD_LEDGER_QUEUE] = {sizeof(struct mcd_ledger_queue), sizeof(struct mcd_ledger_queue),
                          "queue"},
};

struct mcd_ledger {
    int fd;
    uint8_t *map; /* address space for MCD_LEDGER_MAX, so that records never move */
    uint32_t chunks;
    /* places that are free, by kind: a stack */
    void **free[MCD_LEDGER_KINDS];
    size_t nfree[MCD_LEDGER_KINDS], room[MCD_LEDGER_KINDS];
};

static struct chunk *chunk_at(const struct mcd_ledger *l, uint32_t i)
{
    return (struct chunk *)(l->map + i * MCD_LEDGER_CHUNK);
}

static uint32_t records_of(enum mcd_ledger_kind kind)
{
    return (uint32_t)((MCD_LEDGER_CHUNK - RECORDS_OFFSET) / kinds[kind].size);
}

static void *record_at(const struct mcd_ledger *l, uint32_t chunk, enum mcd_ledger_kind kind,
                       uint32_t i)
{
    return l->map + chunk * MCD_LEDGER_CHUNK + RECORDS_OFFSET + i * kinds[kind].size;
}

static uint64_t *check_of(void *record)
{
    return record;
}

/* Not against forgers: nobody else can write here. Never 0. */
static uint64_t sum(enum mcd_ledger_kind kind, const void *record)
{
    const uint8_t *p = record;
    uint64_t v = UINT64_C(0xcbf29ce484222325) + kind;

    for (size_t i = sizeof(uint64_t); i < kinds[kind].covered; i++)
        v = (v ^ p[i]) * UINT64_C(0x100000001b3);
    return v != 0 ? v : 1;
}

/* ---- places --------------------------------------------------------------------------- */

static int put_free(struct mcd_ledger *l, enum mcd_ledger_kind kind, void *record)
{
    if (l->nfree[kind] == l->room[kind]) {
        size_t room = l->room[kind] == 0 ? 256 : l->room[kind] * 2;
        void **places = realloc(l->free[kind], room * sizeof(*places));

        if (places == NULL)
            return -ENOMEM;
        l->free[kind] = places;
        l->room[kind] = room;
    }
    l->free[kind][l->nfree[kind]++] = record;
    return 0;
}

/* The pages of the file from `from` on are there and mapped. */
static int map_file(struct mcd_ledger *l, uint64_t from, uint64_t size)
{
    /* a shortage shows here and not as a SIGBUS at the first record */
    int res = MCS_FAIL(ledger_grow);

    if (res != 0)
        return res;
    if (fallocate(l->fd, 0, (off_t)from, (off_t)(size - from)) != 0)
        return -errno;
    if (mmap(l->map + from, size - from, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, l->fd,
             (off_t)from) == MAP_FAILED)
        return -errno;
    return 0;
}

/* Makes a chunk, or takes one whose making was cut short, for records of that kind. */
static int grow(struct mcd_ledger *l, enum mcd_ledger_kind kind)
{
    uint32_t i = 1;
    int res;

    while (i < l->chunks && chunk_at(l, i)->kind != MCD_LEDGER_NONE)
        i++;
    if (i == l->chunks) {
        if (l->chunks == CHUNKS_MAX)
            return -ENOSPC;
        res = map_file(l, i * MCD_LEDGER_CHUNK, (i + 1) * MCD_LEDGER_CHUNK);
        if (res != 0)
            return res;
        l->chunks++;
    }
    for (uint32_t k = records_of(kind); k-- > 0;) {
        void *record = record_at(l, i, kind, k);

        *check_of(record) = 0;
        res = put_free(l, kind, record);
        if (res != 0)
            return res;
    }
    chunk_at(l, i)->record_size = (uint32_t)kinds[kind].size;
    MCS_FAILPOINT(ledger_chunk);
    mcs_fence_compiler(); /* L3: partner: take_chunk(), after this process's death */
    mcs_store_relaxed(&chunk_at(l, i)->kind, (uint32_t)kind);
    return 0;
}

void *mcd_ledger_add(struct mcd_ledger *l, enum mcd_ledger_kind kind, const void *record)
{
    uint8_t *place;

    if (l->nfree[kind] == 0 && grow(l, kind) != 0)
        return NULL;
    place = l->free[kind][--l->nfree[kind]];
    memcpy(place + sizeof(uint64_t), (const uint8_t *)record + sizeof(uint64_t),
           kinds[kind].size - sizeof(uint64_t));
    MCS_FAILPOINT(ledger_filled);
    mcs_fence_compiler(); /* L4: partner: take_chunk(), after this process's death */
    mcs_store_relaxed(check_of(place), sum(kind, place));
    MCS_FAILPOINT(ledger_added);
    return place;
}

void mcd_ledger_drop(struct mcd_ledger *l, enum mcd_ledger_kind kind, void *record)
{
    if (record == NULL)
        return;
    mcs_store_relaxed(check_of(record), UINT64_C(0)); /* L4 */
    mcs_fence_compiler();
    MCS_FAILPOINT(ledger_dropped);
    (void)put_free(l, kind, record); /* where there is no memory for it, the place is lost */
}

void *mcd_ledger_next(struct mcd_ledger *l, enum mcd_ledger_kind kind, const void *after)
{
    uint64_t offset = after == NULL ? 0 : (uint64_t)((const uint8_t *)after - l->map);
    uint32_t i = (uint32_t)(offset / MCD_LEDGER_CHUNK), k = 0;

    if (after != NULL)
        k = (uint32_t)((offset % MCD_LEDGER_CHUNK - RECORDS_OFFSET) / kinds[kind].size) + 1;
    else
        i = 1;
    for (; i < l->chunks; i++, k = 0) {
        if (chunk_at(l, i)->kind != kind)
            continue;
        for (; k < records_of(kind); k++)
            if (*check_of(record_at(l, i, kind, k)) != 0)
                return record_at(l, i, kind, k);
    }
    return NULL;
}

void mcd_ledger_clear(struct mcd_ledger *l)
{
    static const enum mcd_ledger_kind all[] = {MCD_LEDGER_SESSION, MCD_LEDGER_QUEUE,
                                               MCD_LEDGER_EXTENT};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (void *r = NULL; (r = mcd_ledger_next(l, all[i], r)) != NULL;)
            mcd_ledger_drop(l, all[i], r);
}

void mcd_ledger_name(struct mcd_ledger_session *r, const char *name, uint32_t flags)
{
    if (r == NULL)
        return;
    mcs_store_relaxed(&r->named, 0u); /* L5: partner: sound_session(), after this process's death */
    mcs_fence_compiler();
    if (name == NULL)
        return;
    snprintf(r->segment_name, sizeof(r->segment_name), "%s", name);
    r->flags = flags;
    MCS_FAILPOINT(ledger_named);
    mcs_fence_compiler();
    mcs_store_relaxed(&r->named, 1u); /* L5 */
}

/* ---- what an earlier agent has left --------------------------------------------------------- */

static bool is_text(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static bool sound_session(struct mcd_ledger_session *r)
{
    if (r->incarnation == 0 || r->segment == 0 || r->pid < 0 ||
        mcs_session_region_size(r->inbox_size) == 0 || !is_text(r->name, sizeof(r->name)))
        return false;
    /* fields that change have no check: what makes no sense is as if it were not there */
    if (r->named > 1 || (r->flags & ~MCS_SEGMENT_FLAGS) != 0 ||
        !is_text(r->segment_name, sizeof(r->segment_name)) || r->segment_name[0] == '\0')
        r->named = 0;
    return true;
}

/* Memory of other makers is as large as they have made it. */
static bool is_import(const struct mcd_ledger_extent *r)
{
    return r->flags == (MCD_LEDGER_FOREIGN | MCD_LEDGER_GPU);
}

static bool sound_extent(const struct mcd_ledger_extent *r)
{
    return r->session != 0 && r->handle != 0 && r->page_size >= PAGE &&
           (r->page_size & (r->page_size - 1)) == 0 && r->size != 0 &&
           (r->size % r->page_size == 0 || is_import(r)) && r->address % PAGE == 0 &&
           r->address != 0 && r->address + r->size > r->address && r->node >= -1 &&
           r->flags <= (MCD_LEDGER_FOREIGN | MCD_LEDGER_GPU);
}

static bool sound_queue(const struct mcd_ledger_queue *r)
{
    struct mcs_queue_layout layout;

    return r->session != 0 && r->id != 0 &&
           mcs_queue_layout(r->depth, r->slots, r->batches, r->args_size, &layout) == 0;
}

static bool is_sound(enum mcd_ledger_kind kind, void *record)
{
    if (*check_of(record) != sum(kind, record))
        return false;
    return kind == MCD_LEDGER_SESSION  ? sound_session(record)
           : kind == MCD_LEDGER_EXTENT ? sound_extent(record)
                                       : sound_queue(record);
}

static int take_chunk(struct mcd_ledger *l, uint32_t i)
{
    struct chunk *c = chunk_at(l, i);
    enum mcd_ledger_kind kind = (enum mcd_ledger_kind)c->kind;
    int res = 0;

    if (c->kind == MCD_LEDGER_NONE)
        return 0;
    if (c->kind >= MCD_LEDGER_KINDS || c->record_size != kinds[kind].size) {
        mcd_warning("ledger: part %u is of an unknown kind, %u: dropped", i, c->kind);
        c->kind = MCD_LEDGER_NONE;
        return 0;
    }
    for (uint32_t k = records_of(kind); k-- > 0 && res == 0;) {
        void *record = record_at(l, i, kind, k);

        if (*check_of(record) != 0 && !is_sound(kind, record)) {
            mcd_log_limited(MCD_LOG_WARNING, "ledger: the record of a %s is damaged: dropped",
                            kinds[kind].word);
            *check_of(record) = 0;
        }
        if (*check_of(record) == 0)
            res = put_free(l, kind, record);
    }
    return res;
}

/* ---- life ------------------------------------------------------------------------------- */

static int new_ledger(int fd, struct mcd_ledger **out)
{
    struct mcd_ledger *l = calloc(1, sizeof(*l));

    if (l == NULL)
        return -ENOMEM;
    l->fd = fd;
    l->map =
        mmap(NULL, MCD_LEDGER_MAX, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (l->map == MAP_FAILED) {
        free(l);
        return -ENOMEM;
    }
    *out = l;
    return 0;
}

static void free_ledger(struct mcd_ledger *l)
{
    munmap(l->map, MCD_LEDGER_MAX);
    for (unsigned i = 0; i < MCD_LEDGER_KINDS; i++)
        free(l->free[i]);
    free(l);
}

void mcd_ledger_destroy(struct mcd_ledger *l)
{
    if (l == NULL)
        return;
    close(l->fd);
    free_ledger(l);
}

int mcd_ledger_create(struct mcd_ledger **out)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    struct mcd_ledger *l;
    int fd, res;

    fd = memfd_create("mcshm-ledger", flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("mcshm-ledger", flags); /* a kernel before 6.3 */
    if (fd < 0)
        return -errno;
    res = new_ledger(fd, &l);
    if (res != 0) {
        close(fd);
        return res;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        res = -errno;
    if (res == 0)
        res = map_file(l, 0, MCD_LEDGER_CHUNK);
    if (res != 0) {
        mcd_ledger_destroy(l);
        return res;
    }
    l->chunks = 1;
    mcd_ledger_head(l)->version = VERSION;
    mcs_fence_compiler();
    mcs_store_relaxed(&mcd_ledger_head(l)->magic, MAGIC); /* L3 */
    *out = l;
    return 0;
}

int mcd_ledger_adopt(int fd, struct mcd_ledger **out)
{
    struct mcd_ledger *l = NULL;
    struct stat st;
    int seals, res;

    seals = fcntl(fd, F_GET_SEALS); /* of memfds alone */
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &st) != 0 ||
        st.st_size < (off_t)MCD_LEDGER_CHUNK || (uint64_t)st.st_size > MCD_LEDGER_MAX)
        return -EPROTO;
    res = new_ledger(fd, &l);
    if (res != 0)
        return res;
    l->chunks = (uint32_t)((uint64_t)st.st_size / MCD_LEDGER_CHUNK);
    res = map_file(l, 0, l->chunks * MCD_LEDGER_CHUNK);
    if (res == 0 && (mcd_ledger_head(l)->magic != MAGIC || mcd_ledger_head(l)->version != VERSION))
        res = -EPROTO;
    for (uint32_t i = 1; i < l->chunks && res == 0; i++)
        res = take_chunk(l, i);
    if (res != 0) {
        free_ledger(l);
        return res;
    }
    *out = l;
    return 0;
}

int mcd_ledger_fd(const struct mcd_ledger *l)
{
    return l->fd;
}

struct mcd_ledger_head *mcd_ledger_head(struct mcd_ledger *l)
{
    return (struct mcd_ledger_head *)l->map;
}

uint64_t mcd_ledger_size(const struct mcd_ledger *l)
{
    return l->chunks * MCD_LEDGER_CHUNK;
}

uint64_t mcd_process_started(pid_t pid)
{
    unsigned long long started = 0;
    char path[64], text[1024];
    const char *p;
    ssize_t n;
    int fd;

    if (pid <= 0)
        return 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    /* "pid (name) state ...": the name may hold anything, so fields count from its last ')' */
    p = strrchr(text, ')');
    for (int field = 2; p != NULL && field < 22; field++)
        p = strchr(p + 1, ' ');
    if (p == NULL || sscanf(p, " %llu", &started) != 1)
        return 0;
    return started;
}
