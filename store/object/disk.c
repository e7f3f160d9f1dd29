/* SPDX-License-Identifier: Apache-2.0 */
/* The SSD tier: its folder, what the store asks of it, its life and its end. */
#include "store/object/disk_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <isa-l/crc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define BIN_SIZE (UINT64_C(256) << 20)
#define BIN_MIN (UINT64_C(1) << 20)
static_assert(MCO_DISK_SIZE_MIN >= 4 * BIN_MIN, "room for some files");

uint32_t mco_disk_crc(uint32_t crc, const void *data, size_t size)
{
    unsigned char *at = (unsigned char *)(uintptr_t)data; /* ISA-L does not say const */
    uint32_t state = ~crc;

    while (size > 0) {
        int n = size > INT_MAX ? INT_MAX : (int)size;

        state = crc32_iscsi(at, n, state);
        at += n;
        size -= (size_t)n;
    }
    return ~state;
}

struct mco_disk_layout mco_disk_layout(uint32_t key_length, uint64_t size)
{
    uint32_t behind = (uint32_t)((sizeof(struct mco_disk_record) + key_length + 63) & ~63ul);
    struct mco_disk_layout l = {.small = size <= MCO_DISK_SMALL};

    if (l.small) {
        l.data = behind;
        l.head_units = (behind + (uint32_t)size + MCO_DISK_UNIT - 1) / MCO_DISK_UNIT;
        l.units = l.head_units;
        return l;
    }
    l.head_units = (behind + MCO_DISK_UNIT - 1) / MCO_DISK_UNIT;
    l.data = l.head_units * MCO_DISK_UNIT;
    /* What is too large for any file is told apart by who asks: the units stay below 2^31. */
    size = (size + MCO_DISK_UNIT - 1) / MCO_DISK_UNIT;
    l.units = size > MCO_DISK_UNITS_MAX ? MCO_DISK_UNITS_MAX + 1 : l.head_units + (uint32_t)size;
    return l;
}

uint32_t mco_disk_record_crc(const struct mco_disk_record *r, const void *key)
{
    struct mco_disk_record copy = *r;

    copy.crc = 0;
    return mco_disk_crc(mco_disk_crc(0, &copy, sizeof(copy)), key, r->key_length);
}

/* ---- faults --------------------------------------------------------------------------------- */

bool mco_disk_passing(int error)
{
    return error == -ENOSPC || error == -EDQUOT || error == -ENOMEM || error == -EMFILE ||
           error == -ENFILE || error == -EAGAIN || error == -EINTR || error == -EBUSY;
}

/* The store forgets what is there, so no later life may find it: it would come after what is newer, or was removed. Where that
 * cannot be done, nothing can be found either, or only by who has brought the disk back. */
static void remove_all(const struct mco_disk *d)
{
    char name[32];

    for (uint32_t i = 0; i < d->nbins; i++) {
        mco_disk_bin_name(d->bins[i]->generation, name, sizeof(name));
        if (unlinkat(d->folder, name, 0) != 0 && errno == EIO)
            break;
    }
    (void)fsync(d->folder);
}

void mco_disk_fail(struct mco_disk *d, const char *what, int error)
{
    struct mco_disk_write *w;
    bool first;

    mco_disk_lock(d);
    first = !d->lost;
    d->lost = true;
    w = d->writes;
    d->writes = NULL;
    d->writes_last = &d->writes;
    mco_disk_unlock(d);
    if (first) {
        d->log(0,
               "the disk of the store, %s, failed (%s: %s): objects that were only there are gone, "
               "nothing is written to it any more; replace it and start the agent anew",
               d->path, what, strerror(-error));
        remove_all(d);
        if (!d->stop_told)
            d->calls.lost(d->store, true, 0);
    }
    while (w != NULL) {
        struct mco_disk_write *next = w->next;

        mco_disk_count(d, write_errors, 1);
        (void)mcs_fetch_add(&d->stats.queued, UINT64_MAX); /* one less; with mco_disk_get_stats() */
        d->calls.offloaded(d->store, w->view.object, -EIO, 0);
        mco_disk_lock(d);
        w->next = d->free_writes;
        d->free_writes = w;
        mco_disk_unlock(d);
        w = next;
    }
}

/* ---- what the store asks, in any thread -------------------------------------------------------- */

static void ask(struct mco_disk *d)
{
    if (mcs_exchange(&d->posted, 1u) == 0) /* with woken() */
        mct_files_post(d->files, &d->wake);
}

static void woken(struct mct_files_call *call)
{
    struct mco_disk *d = (struct mco_disk *)((char *)call - offsetof(struct mco_disk, wake));

    (void)mcs_exchange(&d->posted, 0u); /* with ask(): what is queued from here on asks again */
    mco_disk_pump(d);
}

static int offload(void *context, const struct mco_key *key, const struct mco_view *v)
{
    struct mco_disk *d = context;
    struct mco_disk_layout layout = mco_disk_layout(key->length, v->size);
    struct mco_disk_write *w;
    int res = 0;

    mco_disk_lock(d);
    w = d->free_writes;
    if (d->lost)
        res = -EIO;
    else if (layout.units > d->size_units - 1 - d->size_units / (8 * MCO_DISK_UNIT) - 1)
        res = -ENOSPC;
    else if (!d->started || d->closing || w == NULL)
        res = -EBUSY;
    if (res == 0 && w != NULL) {
        d->free_writes = w->next;
        w->next = NULL;
        w->view = *v;
        w->tenant = key->tenant;
        w->length = key->length;
        w->layout = layout;
        memcpy(w->key, key->bytes, key->length);
        mco_disk_count(d, queued, 1);
        *d->writes_last = w;
        d->writes_last = &w->next;
    }
    mco_disk_unlock(d);
    if (res == 0)
        ask(d);
    return res;
}

static int fetch(void *context, const struct mco_key *key, uint64_t place, const struct mco_view *v)
{
    struct mco_disk *d = context;
    struct mco_disk_read *r;
    int res = 0;

    mco_disk_lock(d);
    r = d->free_reads;
    if (d->lost)
        res = -EIO;
    else if (!d->started || d->closing || r == NULL)
        res = -EBUSY;
    if (res == 0 && r != NULL) {
        d->free_reads = r->next;
        r->next = NULL;
        r->view = *v;
        r->place = place;
        r->tenant = key->tenant;
        r->hash = key->hash;
        r->length = key->length;
        mco_disk_count(d, queued, 1);
        *d->reads_last = r;
        d->reads_last = &r->next;
    }
    mco_disk_unlock(d);
    if (res == 0)
        ask(d);
    return res;
}

void mco_disk_drop_place(struct mco_disk *d, uint64_t place)
{
    struct mco_disk_bin *b;
    bool dropped;

    mco_disk_lock(d);
    b = mco_disk_bin_find(d, place);
    dropped = b != NULL && mco_disk_bin_drop(d, b, (uint32_t)(place & (MCO_DISK_UNITS_MAX - 1)));
    mco_disk_unlock(d);
    if (!dropped)
        return;
    mco_disk_count(d, drops, 1);
    ask(d);
}

static void drop(void *context, uint64_t place)
{
    mco_disk_drop_place(context, place);
}

const struct mco_tier_ops mco_disk_ops = {.offload = offload, .fetch = fetch, .drop = drop};

/* ---- the thread's turn -------------------------------------------------------------------------- */

/* Nothing of the store's is under way. */
static bool idle(struct mco_disk *d)
{
    bool none;

    mco_disk_lock(d);
    none = d->writes == NULL && d->reads == NULL;
    mco_disk_unlock(d);
    return none && d->group.bin == NULL && d->nslots == MCO_DISK_SLOTS && d->scans_running == 0;
}

static bool all_marked(struct mco_disk *d)
{
    bool none;

    mco_disk_lock(d);
    none = !d->any_dirty || d->lost;
    mco_disk_unlock(d);
    return none && d->marking.n == 0;
}

void mco_disk_pump(struct mco_disk *d)
{
    if (d->close_told)
        return;
    mco_disk_scan_next(d);
    mco_disk_read_next(d);
    mco_disk_write_next(d);
    mco_disk_mark_next(d);
    mco_disk_bins_trim(d);
    if (d->closing && !d->stop_told && idle(d)) {
        d->stop_told = true;
        sem_post(&d->stopped);
    }
    if (d->closes && d->stop_told && all_marked(d)) {
        d->close_told = true;
        for (uint32_t i = 0; i < d->nbins; i++) {
            mct_file_close(d->bins[i]->file);
            d->bins[i]->file = NULL;
        }
        sem_post(&d->closed);
    }
}

static void begin(struct mct_files_call *call)
{
    struct mco_disk *d = (struct mco_disk *)((char *)call - offsetof(struct mco_disk, start));

    d->scanning = true;
    mco_disk_pump(d);
}

static void finish(struct mct_files_call *call)
{
    struct mco_disk *d = (struct mco_disk *)((char *)call - offsetof(struct mco_disk, close));

    d->closes = true;
    mco_disk_pump(d);
}

static void halt(struct mct_files_call *call)
{
    struct mco_disk *d = (struct mco_disk *)((char *)call - offsetof(struct mco_disk, stop));

    mco_disk_lock(d);
    d->closing = true;
    mco_disk_unlock(d);
    mco_disk_pump(d);
}

/* ---- life ------------------------------------------------------------------------------------------ */

static int open_folder(struct mco_disk *d, const struct mco_disk_options *o, char *error,
                       size_t error_size)
{
    struct stat st;
    int res;

    if (mkdir(o->path, 0700) != 0 && errno != EEXIST) {
        res = -errno;
        snprintf(error, error_size, "the store's disk: %s cannot be made (%s)", o->path,
                 strerror(-res));
        return res;
    }
    d->folder = open(o->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->folder < 0 || fstat(d->folder, &st) != 0) {
        res = -errno;
        snprintf(error, error_size, "the store's disk: %s cannot be opened (%s)", o->path,
                 strerror(-res));
        return res;
    }
    if ((st.st_mode & 022) != 0 || (st.st_uid != geteuid() && st.st_uid != 0)) {
        snprintf(
            error, error_size,
            "the store's disk: others may write in %s (owner %u, mode %03o); chown it to user %u "
            "and chmod it to 0700",
            o->path, (unsigned)st.st_uid, (unsigned)(st.st_mode & 0777), (unsigned)geteuid());
        return -EACCES;
    }
    /* The folder itself, so that two names of it are one. */
    if (flock(d->folder, LOCK_EX | LOCK_NB) != 0) {
        res = errno == EWOULDBLOCK ? -EBUSY : -errno;
        snprintf(error, error_size, "the store's disk: %s %s; give each agent a folder of its own",
                 o->path, res == -EBUSY ? "is in use by another agent" : "cannot be locked");
        return res;
    }
    res = faccessat(d->folder, ".", R_OK | W_OK | X_OK, AT_EACCESS) == 0 ? 0 : -errno;
    if (res != 0)
        snprintf(error, error_size, "the store's disk: nothing can be written in %s (%s)", o->path,
                 strerror(-res));
    return res;
}

static int make_jobs(struct mco_disk *d)
{
    d->all_writes = calloc(MCO_DISK_JOBS, sizeof(*d->all_writes));
    d->all_reads = calloc(MCO_DISK_JOBS, sizeof(*d->all_reads));
    if (d->all_writes == NULL || d->all_reads == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < MCO_DISK_JOBS; i++) {
        d->all_writes[i].next = d->free_writes;
        d->free_writes = &d->all_writes[i];
        d->all_reads[i].next = d->free_reads;
        d->all_reads[i].disk = d;
        d->free_reads = &d->all_reads[i];
    }
    d->writes_last = &d->writes;
    d->reads_last = &d->reads;
    return 0;
}

static void divide_scratch(struct mco_disk *d)
{
    uint8_t *at = mct_files_scratch(d->files);

    d->stage = at;
    at += MCO_DISK_STAGE;
    for (unsigned i = 0; i < MCO_DISK_SLOTS; i++, at += MCO_DISK_SLOT)
        d->slots[d->nslots++] = at;
    d->marks_memory = at;
    at += MCO_DISK_MARKS * MCO_DISK_UNIT;
    for (unsigned i = 0; i < MCO_DISK_SCANS; i++, at += MCO_DISK_WINDOW)
        d->scans[i].window = at;
}

static void say_nothing(int level, const char *format, ...)
{
    (void)level;
    (void)format;
}

static void free_all(struct mco_disk *d)
{
    for (uint32_t i = 0; i < d->nbins; i++)
        mco_disk_bin_free(d->bins[i]);
    free(d->bins);
    free(d->to_scan);
    free(d->all_writes);
    free(d->all_reads);
    free(d->path);
    if (d->folder >= 0)
        close(d->folder);
    free(d);
}

static bool sizes(struct mco_disk *d, const struct mco_disk_options *o)
{
    uint64_t bin = o->bin_size == 0 ? BIN_SIZE : o->bin_size;

    if (o->size < MCO_DISK_SIZE_MIN || o->size / MCO_DISK_UNIT > UINT32_MAX)
        return false;
    if (bin > o->size / 4)
        bin = o->size / 4; /* the oldest quarter goes at a time, not more */
    if (bin < BIN_MIN)
        bin = BIN_MIN;
    if (bin / MCO_DISK_UNIT > MCO_DISK_UNITS_MAX)
        bin = (uint64_t)MCO_DISK_UNITS_MAX * MCO_DISK_UNIT;
    d->size = o->size;
    d->size_units = (uint32_t)(o->size / MCO_DISK_UNIT);
    d->bin_units = (uint32_t)(bin / MCO_DISK_UNIT);
    return true;
}

int mco_disk_open(const struct mco_disk_options *o, struct mco_disk **out, char *error,
                  size_t error_size)
{
    return mco_disk_open_over(o, NULL, NULL, out, error, error_size);
}

int mco_disk_open_over(const struct mco_disk_options *o, const struct mct_file_backend *backend,
                       void *context, struct mco_disk **out, char *error, size_t error_size)
{
    struct mct_files_options files = {
        .scratch = MCO_DISK_SCRATCH, .backend = backend, .backend_context = context, .log = o->log};
    struct mco_disk *d = calloc(1, sizeof(*d));
    int res = -ENOMEM;

    error[0] = '\0';
    if (d == NULL)
        goto fail;
    d->folder = -1;
    d->verify = o->verify;
    d->store = o->store;
    d->log = o->log == NULL ? say_nothing : o->log;
    d->wake.fn = woken;
    d->start.fn = begin;
    d->stop.fn = halt;
    d->close.fn = finish;
    d->calls = (struct mco_disk_calls){mco_offloaded, mco_fetched, mco_disk_found, mco_disk_lost,
                                       mco_disk_known};
    d->path = strdup(o->path);
    if (d->path == NULL)
        goto fail_alloc;
    if (!sizes(d, o)) {
        res = -EINVAL;
        snprintf(error, error_size,
                 "the store's disk: %llu bytes are too few or too many; give it %llu to %llu",
                 (unsigned long long)o->size, (unsigned long long)MCO_DISK_SIZE_MIN,
                 (unsigned long long)UINT32_MAX * MCO_DISK_UNIT);
        goto fail_alloc;
    }
    res = make_jobs(d);
    if (res == 0)
        res = open_folder(d, o, error, error_size);
    if (res == 0)
        res = mco_disk_list(d);
    if (res == 0)
        res = mct_files_create(&files, &d->files, error, error_size);
    if (res != 0)
        goto fail_alloc;
    sem_init(&d->stopped, 0, 0);
    sem_init(&d->closed, 0, 0);
    divide_scratch(d);
    *out = d;
    return 0;
fail_alloc:
    free_all(d);
fail:
    if (error[0] == '\0')
        snprintf(error, error_size, "the store's disk, %s: %s", o->path, strerror(-res));
    return res;
}

void mco_disk_set_calls(struct mco_disk *d, const struct mco_disk_calls *calls)
{
    d->calls = *calls;
}

void mco_disk_start(struct mco_disk *d, struct mco_store *store)
{
    d->store = store;
    mco_disk_lock(d);
    d->started = true;
    mco_disk_unlock(d);
    mct_files_post(d->files, &d->start);
}

bool mco_disk_scanned(struct mco_disk *d)
{
    return mcs_load_acquire(&d->scanned) != 0; /* with mco_disk_scan_next() */
}

void mco_disk_stop(struct mco_disk *d)
{
    if (d == NULL || d->was_stopped)
        return;
    d->was_stopped = true;
    mct_files_post(d->files, &d->stop);
    while (sem_wait(&d->stopped) != 0)
        continue; /* a signal */
}

void mco_disk_close(struct mco_disk *d)
{
    if (d == NULL)
        return;
    mco_disk_stop(d);
    mct_files_post(d->files, &d->close);
    while (sem_wait(&d->closed) != 0)
        continue; /* a signal */
    mct_files_destroy(d->files);
    sem_destroy(&d->stopped);
    sem_destroy(&d->closed);
    free_all(d);
}

void mco_disk_get_stats(struct mco_disk *d, struct mco_disk_stats *out)
{
    struct mct_files_stats files;
    uint64_t live, units;

    mct_files_get_stats(d->files, &files);
    mco_disk_lock(d);
    live = d->live;
    units = d->live_units;
    out->lost = d->lost;
    mco_disk_unlock(d);
    out->size = d->size;
    out->used = units * MCO_DISK_UNIT;
    out->objects = live;
    /* with mco_disk_count(): each by itself */
    out->writes = mcs_load_relaxed(&d->stats.writes);
    out->write_bytes = mcs_load_relaxed(&d->stats.write_bytes);
    out->reads = mcs_load_relaxed(&d->stats.reads);
    out->read_bytes = mcs_load_relaxed(&d->stats.read_bytes);
    out->drops = mcs_load_relaxed(&d->stats.drops);
    out->evictions = mcs_load_relaxed(&d->stats.evictions);
    out->write_errors = mcs_load_relaxed(&d->stats.write_errors);
    out->read_errors = mcs_load_relaxed(&d->stats.read_errors);
    out->torn = mcs_load_relaxed(&d->stats.torn);
    out->checksum_errors = mcs_load_relaxed(&d->stats.checksum_errors);
    out->full = mcs_load_relaxed(&d->stats.full);
    out->queued = mcs_load_relaxed(&d->stats.queued);
    out->buffered = files.cached;
}
