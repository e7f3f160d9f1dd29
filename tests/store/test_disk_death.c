/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SSD tier's agent is killed, or the power goes, at any instant; the next life finds what was told to be there,
 * with the right bytes, and nothing that was found out to be dropped.  A child writes and drops until it dies; what it
 * was told lies in memory that outlives it.  With a disk of the test's own, writes that are not durable are lost in
 * parts: any sectors of them, in any order.
 */
#include "disk_rig.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "shm/failpoint.h"
#include "transports/file/internal.h"

#define MIB (UINT64_C(1) << 20)
#define ENTRIES 4000u

/* NEW: never offered. TOLD: durable. DROPPED: drop() was called. GONE: and seen not to be there. */
enum state { NEW, OFFERED, TOLD, DROPPED, GONE };

struct entry {
    uint32_t state;
    uint64_t place;
};

struct shared {
    uint32_t next; /* entry to be offered */
    unsigned lives, found, told, dropped;
    struct entry entries[ENTRIES];
};

static struct shared *share(void)
{
    struct shared *s =
        mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq(s, MAP_FAILED);
    return s;
}

static uint64_t size_of(uint64_t n)
{
    static const uint64_t sizes[] = {0, 1, 4000, 4096, 20000, 32768, 40000, 65536, 100001, 300000};

    return sizes[n * 7 % 10];
}

/* ---- a disk with a cache that forgets ------------------------------------------------------------ */

struct pending {
    int file; /* inode's stand-in: the plain descriptor's file */
    ino_t ino;
    uint64_t offset;
    size_t size;
    uint8_t *data;
};

struct cache {
    struct pending *p;
    size_t n, room;
    struct mct_file_step *held[256];
    unsigned nheld;
    unsigned seed, operations, dies_at;
};

static int cache_create(void *context, unsigned depth, void *memory, size_t size, int wake,
                        void **out, char *error, size_t error_size)
{
    (void)depth;
    (void)memory;
    (void)size;
    (void)wake;
    (void)error;
    (void)error_size;
    *out = context;
    return 0;
}

static void cache_destroy(void *b)
{
    (void)b;
}

static bool cache_no(void *b)
{
    (void)b;
    return false;
}

static bool cache_place(void *b, unsigned place, int fd)
{
    (void)b;
    (void)place;
    (void)fd;
    return false;
}

static void cache_start(void *b, struct mct_file_step *s)
{
    struct cache *c = b;

    c->held[c->nheld++] = s;
}

static bool cache_arm(void *b)
{
    return ((struct cache *)b)->nheld == 0;
}

static int cache_event(void *b)
{
    (void)b;
    return -1;
}

static void put_through(int fd, const uint8_t *data, size_t size, uint64_t offset)
{
    /* whatever the descriptor is for: sectors are smaller than what O_DIRECT takes */
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
    if (pwrite(fd, data, size, (off_t)offset) != (ssize_t)size)
        _exit(9);
}

static void power_goes(struct cache *c)
{
    for (size_t i = 0; i < c->n; i++) {
        unsigned luck =
            (unsigned)rand_r(&c->seed) % 4; /* of four: none, all, some, its beginning */
        size_t size = c->p[i].size;

        for (size_t at = 0; at < size; at += 512) {
            size_t n = size - at < 512 ? size - at : 512;

            if (luck == 0 || (luck == 2 && rand_r(&c->seed) % 2 == 0) ||
                (luck == 3 && at > size / 2))
                continue;
            put_through(c->p[i].file, c->p[i].data + at, n, c->p[i].offset + at);
        }
    }
    kill(getpid(), SIGKILL);
}

static void remember(struct cache *c, const struct mct_file_step *s, ino_t ino)
{
    struct pending *p;

    if (c->n == c->room) {
        c->room = c->room == 0 ? 64 : c->room * 2;
        c->p = realloc(c->p, c->room * sizeof(*c->p));
    }
    p = &c->p[c->n++];
    *p = (struct pending){dup(s->fd), ino, s->offset, s->size, malloc(s->size)};
    memcpy(p->data, s->memory, s->size);
}

static int cache_carry(struct cache *c, struct mct_file_step *s)
{
    struct stat st;
    ssize_t n;

    if (++c->operations >= c->dies_at)
        power_goes(c);
    if (fstat(s->fd, &st) != 0)
        return -errno;
    if (s->op == MCT_FILE_WRITE) {
        remember(c, s, st.st_ino);
        return (int)s->size;
    }
    if (s->op == MCT_FILE_READ) {
        n = pread(s->fd, s->memory, s->size, (off_t)s->offset);
        return n < 0 ? -errno : (int)n;
    }
    for (size_t i = 0; i < c->n; i++) {
        if (c->p[i].ino != st.st_ino)
            continue;
        put_through(c->p[i].file, c->p[i].data, c->p[i].size, c->p[i].offset);
        close(c->p[i].file);
        free(c->p[i].data);
        c->p[i--] = c->p[--c->n];
    }
    return 0;
}

/* In any order. */
static unsigned cache_turn(void *b)
{
    struct cache *c = b;
    unsigned n = 0;

    for (; c->nheld > 0; n++) {
        unsigned i = (unsigned)rand_r(&c->seed) % c->nheld;
        struct mct_file_step *s = c->held[i];

        c->held[i] = c->held[--c->nheld];
        mct_file_ended(s, cache_carry(c, s));
    }
    return n;
}

static const struct mct_file_backend forgetful = {
    .name = "forgetful",
    .create = cache_create,
    .destroy = cache_destroy,
    .registered = cache_no,
    .place = cache_place,
    .start = cache_start,
    .turn = cache_turn,
    .arm = cache_arm,
    .event_fd = cache_event,
};

/* ---- a life ------------------------------------------------------------------------------------------ */

static struct shared *now; /* the child's */

static void told(struct mco_store *s, struct mco_object *o, int res, uint64_t place)
{
    struct entry *e = &now->entries[o->version.sequence - 1];

    if (res == 0) {
        e->place = place;
        mcs_store_release(&e->state, TOLD); /* with who looks after this process's death */
    }
    rig_offloaded(s, o, res, place);
}

/* Until it is killed. Some objects under way at a time; every third of those that are there is dropped. */
static void live(struct shared *shared, const char *folder, uint64_t size, uint64_t bin,
                 struct cache *cache, const char *point)
{
    enum { AT_ONCE = 24 };
    struct mco_object o[AT_ONCE];
    struct mco_store s;
    struct mco_disk *d;
    struct mco_disk_calls calls = {told, rig_told, rig_found_it, rig_lost, rig_known};

    now = shared;
    rig_init(&s);
#ifdef MCS_FAILPOINTS
    if (point != NULL && mcs_failpoint_set(point) != 0)
        _exit(8);
#else
    (void)point;
#endif
    if (rig_open_over(folder, size, bin, &s, cache == NULL ? NULL : &forgetful, cache, &d) != 0)
        _exit(7);
    mco_disk_set_calls(d, &calls); /* nothing is under way */
    for (;;) {
        uint32_t first = shared->next, n = 1 + first * 11 % AT_ONCE;

        if (first + n > ENTRIES)
            _exit(0);
        for (uint32_t i = 0; i < n; i++) {
            rig_object(&o[i], first + i, size_of(first + i), (first + i) % 2 == 0);
            mcs_store_release(&shared->entries[first + i].state, OFFERED); /* as in told() */
            shared->next = first + i + 1;
            if (rig_offload(d, &o[i]) != 0)
                _exit(6);
        }
        for (uint32_t i = 0; i < n; i++)
            if (!rig_await(&s, rig_is_told, &o[i]) || o[i].res != 0)
                _exit(5);
        if (rig_fetch(d, &o[0]) != 0 || !rig_await(&s, rig_is_told, &o[0]))
            _exit(4);
        if (o[0].res == 0 && memcmp(o[0].memory, o[0].data, o[0].size) != 0)
            _exit(3);
        for (uint32_t i = 0; i < n; i++) {
            struct entry *e = &shared->entries[first + i];

            if ((first + i) % 3 == 0) {
                mcs_store_release(&e->state, DROPPED); /* as in told() */
                mco_disk_ops.drop(d, e->place);
            }
            rig_free(&o[i]);
        }
    }
}

/* What the next life finds is what it should be. evicts: the disk is small, whole files may have gone. */
static void check(struct shared *shared, const char *folder, uint64_t size, uint64_t bin,
                  bool evicts)
{
    bool there[ENTRIES] = {false};
    struct mco_store s;
    struct mco_disk *d;
    char path[512], name[32];
    struct mco_object o;

    rig_init(&s);
    cr_assert_eq(rig_open(folder, size, bin, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < s.nfound; i++) {
        struct rig_found *f = &s.found[i];
        uint64_t n = f->version.sequence - 1;
        struct entry *e = &shared->entries[n];

        cr_assert_lt(n, (uint64_t)shared->next);
        cr_assert_not(there[n], "found twice: %lu", (unsigned long)n);
        cr_assert(e->state == OFFERED || e->state == TOLD || e->state == DROPPED,
                  "entry %lu came back, state %u", (unsigned long)n, e->state);
        there[n] = true;
        rig_object(&o, n, size_of(n), true);
        cr_assert_eq(f->size, o.size);
        cr_assert_eq(f->length, o.length);
        o.place = f->place;
        if (e->state == TOLD)
            cr_assert_eq(e->place, f->place);
        cr_assert_eq(rig_fetch(d, &o), 0);
        (void)rig_wait(&s, &o);
        if (o.res == 0)
            cr_assert_eq(memcmp(o.memory, o.data, o.size), 0, "entry %lu", (unsigned long)n);
        else
            cr_assert(o.res == -EBADMSG && e->state != TOLD, "entry %lu: %d", (unsigned long)n,
                      o.res);
        e->place = f->place;
        if (e->state == DROPPED || o.res != 0) {
            mco_disk_ops.drop(d, f->place); /* as the store would, that knows better */
            e->state = GONE;
        } else {
            e->state = TOLD;
        }
        rig_free(&o);
    }
    for (uint32_t n = 0; n < shared->next; n++) {
        struct entry *e = &shared->entries[n];

        if (e->state == TOLD && !there[n] && evicts) {
            mco_disk_bin_name(e->place >> 24, name, sizeof(name));
            snprintf(path, sizeof(path), "%s/%s", folder, name);
            cr_assert_neq(access(path, F_OK), 0, "entry %u is lost, its file is there", n);
        } else if (e->state == TOLD) {
            cr_assert(there[n], "entry %u was told to be there", n);
        }
        if (!there[n])
            e->state = GONE;
    }
    shared->found += (unsigned)s.nfound;
    shared->lives++;
    mco_disk_close(d);
    rig_fini(&s);
}

static void reap(pid_t child, bool may_end)
{
    int status;

    cr_assert_eq(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && may_end)
        return;
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %x", status);
}

Test(disk_death, killed_at_any_time, .timeout = 200)
{
    struct shared *shared = share();
    unsigned seed = 99;
    char folder[256];

    rig_folder(folder, sizeof(folder));
    for (unsigned life = 0; life < 12; life++) {
        pid_t child = fork();

        if (child == 0)
            live(shared, folder, 512 * MIB, 4 * MIB, NULL, NULL);
        usleep(20000 + (unsigned)rand_r(&seed) % 40000);
        kill(child, SIGKILL);
        reap(child, true);
        check(shared, folder, 512 * MIB, 4 * MIB, false);
    }
    cr_assert_gt(shared->found, 0u);
    rig_remove(folder);
    munmap(shared, sizeof(*shared));
}

Test(disk_death, the_power_goes_at_any_time, .timeout = 200)
{
    unsigned total = 0;

    for (unsigned round = 0; round < 6; round++) {
        struct shared *shared = share();
        char folder[256];

        rig_folder(folder, sizeof(folder));
        for (unsigned life = 0; life < 8; life++) {
            struct cache cache = {.seed = round * 100 + life,
                                  .dies_at = 5 + (round * 37 + life * 53) % 190};
            pid_t child = fork();

            if (child == 0)
                live(shared, folder, 512 * MIB, 4 * MIB, &cache, NULL);
            reap(child, false);
            check(shared, folder, 512 * MIB, 4 * MIB, false);
        }
        total += shared->found;
        rig_remove(folder);
        munmap(shared, sizeof(*shared));
    }
    cr_assert_gt(total, 100u);
}

#ifdef MCS_FAILPOINTS
Test(disk_death, at_each_point, .timeout = 200)
{
    static const char *const points[] = {
        "disk_bin",    "disk_write", "disk_written", "disk_synced", "disk_told",    "disk_mark",
        "disk_marked", "disk_evict", "disk_evicted", "disk_fetch",  "disk_fetched", "disk_scanned"};
    struct shared *shared = share();
    char folder[256], how[64];

    rig_folder(folder, sizeof(folder));
    for (unsigned i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
        for (unsigned nth = 1; nth <= 3; nth += 2) {
            pid_t child;

            snprintf(how, sizeof(how), "%s=kill@%u", points[i],
                     strcmp(points[i], "disk_scanned") == 0 ? 1 : nth);
            child = fork();
            if (child == 0)
                live(shared, folder, 16 * MIB, 2 * MIB, NULL, how);
            reap(child, false);
            check(shared, folder, 16 * MIB, 2 * MIB, true);
        }
    }
    rig_remove(folder);
    munmap(shared, sizeof(*shared));
}

/* The disk gives errors: everything is told how it went, once; nothing is written any more after a failure. */
Test(disk_death, the_disk_fails, .timeout = 100)
{
    static const struct {
        const char *how;
        bool lost;
    } kinds[] = {
        {"file_write=fail:EIO@3x1", true},      {"file_sync=fail:EIO@2x1", true},
        {"file_write=fail:ENOSPC@3x1", false},  {"file_read=fail:EIO@1x1", false},
        {"disk_bin=fail:EIO@1x1", true},        {"file_short=fail:EIO@1x9", false},
        {"file_write=fail:EAGAIN@1x20", false}, {"file_write=fail:EINVAL@2x1", false},
    };
    enum { N = 60 };
    struct mco_object *o = calloc(N, sizeof(*o));

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct mco_disk_stats stats;
        struct mco_store s;
        struct mco_disk *d;
        char folder[256];
        unsigned there = 0;
        int refused;

        rig_folder(folder, sizeof(folder));
        rig_init(&s);
        cr_assert_eq(rig_open(folder, 64 * MIB, 4 * MIB, &s, &d), 0, "%s", rig_said);
        cr_assert_eq(mcs_failpoint_set(kinds[k].how), 0);
        for (size_t i = 0; i < N; i++) {
            rig_object(&o[i], i, size_of(i), true);
            refused = rig_offload(d, &o[i]);
            if (refused != 0)
                rig_told(&s, &o[i], refused);
            if (i % 10 == 9) /* some groups at least */
                for (size_t j = i - 9; j <= i; j++)
                    there += rig_wait(&s, &o[j]) == 0;
        }
        if (kinds[k].lost) {
            cr_assert(rig_await(&s, rig_all_lost, NULL), "%s", kinds[k].how);
            cr_assert_eq(rig_offload(d, &o[0]), -EIO);
        } else {
            cr_assert_not(s.all_lost, "%s", kinds[k].how);
            cr_assert_gt(there, 0u);
            for (size_t i = 0; i < N; i++) {
                if (o[i].res != 0)
                    continue;
                cr_assert_eq(rig_fetch(d, &o[i]), 0);
                cr_assert(rig_wait(&s, &o[i]) == 0 || o[i].res == -EIO, "%s: %d", kinds[k].how,
                          o[i].res);
                there -= o[i].res == -EIO;
                if (o[i].res == 0)
                    cr_assert_eq(memcmp(o[i].memory, o[i].data, o[i].size), 0);
                o[i].res = 0;
            }
        }
        mco_disk_get_stats(d, &stats);
        cr_assert_eq(stats.lost, kinds[k].lost, "%s", kinds[k].how);
        cr_assert_eq(stats.queued, 0u);
        mco_disk_close(d);
        if (kinds[k].lost) { /* what the store was told to be gone does not come back */
            rig_fini(&s);
            rig_init(&s);
            cr_assert_eq(rig_open(folder, 64 * MIB, 4 * MIB, &s, &d), 0, "%s", rig_said);
            cr_assert_eq(s.nfound, 0u, "%s", kinds[k].how);
            mco_disk_close(d);
        }
        for (size_t i = 0; i < N; i++)
            rig_free(&o[i]);
        rig_fini(&s);
        rig_remove(folder);
    }
    free(o);
}
#endif
