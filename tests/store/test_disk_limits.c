/* SPDX-License-Identifier: Apache-2.0 */
/* The SSD tier at its limits: stops amid a scan, files that do not go, no descriptors, no O_DIRECT, odd sizes. */
#include "disk_rig.h"

#include <sys/resource.h>

#include "transports/file/internal.h"

#define MIB (UINT64_C(1) << 20)

Test(disk_limits, files_are_large_enough_for_what_they_are_made_for)
{
    uint32_t wrong = 0;

    for (uint32_t units = 1; units < MCO_DISK_UNITS_MAX - 1024 && wrong == 0; units++) {
        uint32_t capacity = mco_disk_bin_capacity(units);
        uint32_t marks = (capacity + 8 * MCO_DISK_UNIT - 1) / (8 * MCO_DISK_UNIT);

        if (capacity - 1 - marks < units || capacity - 1 - marks > units + 1)
            wrong = units;
    }
    cr_assert_eq(wrong, 0u, "%u", wrong);
}

/* One that is stopped before it has read everything keeps what it has not read. */
Test(disk_limits, stopped_while_it_looks, .timeout = 120)
{
    enum { N = 40 };
    const struct mco_disk_calls calls = {rig_offloaded, rig_told, rig_found_it, rig_lost,
                                         rig_known};
    struct mco_object *o = calloc(N, sizeof(*o));
    struct mco_store s;
    struct mco_disk *d;
    char folder[256], error[256];

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++)
        rig_object(&o[i], i, 300000, true);
    rig_write(d, &s, o, N);
    mco_disk_close(d);
    for (unsigned i = 0; i < 20; i++) {
        const struct mco_disk_options options = {
            .path = folder, .size = 64 * MIB, .bin_size = 2 * MIB};

        cr_assert_eq(mco_disk_open(&options, &d, error, sizeof(error)), 0, "%s", error);
        mco_disk_set_calls(d, &calls);
        mco_disk_start(d, &s);
        mco_disk_close(d);
    }
    rig_fini(&s);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++)
        rig_check_found(&s, &o[i]);
    mco_disk_close(d);
    for (size_t i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
    rig_remove(folder);
}

/* A file that cannot be removed when its room is wanted: the disk has failed, and that ends well. */
Test(disk_limits, a_file_that_cannot_be_removed, .timeout = 120)
{
    enum { N = 80 };
    struct mco_object *o = calloc(N, sizeof(*o));
    char folder[256], path[512], name[32];
    struct mco_store s;
    struct mco_disk *d;
    size_t i;

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 16 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    for (i = 0; i < N; i++)
        rig_object(&o[i], i, 300000, true);
    rig_write(d, &s, o, 1);
    mco_disk_bin_name(o[0].place >> 24, name, sizeof(name));
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    cr_assert(unlink(path) == 0 && mkdir(path, 0700) == 0);
    for (i = 1; i < N; i++)
        if (rig_offload(d, &o[i]) != 0 || rig_wait(&s, &o[i]) != 0)
            break;
    cr_assert_lt(i, (size_t)N);
    cr_assert(rig_await(&s, rig_all_lost, NULL));
    mco_disk_close(d);
    rig_fini(&s);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 16 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    cr_assert_eq(s.nfound, 0u, "the store was told that all of it is gone");
    rig_write(d, &s, o, 20); /* and its name is not wanted for another file */
    rig_read(d, &s, o, 20);
    mco_disk_close(d);
    cr_assert_eq(rmdir(path), 0);
    for (i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
    rig_remove(folder);
}

/* Where others have taken all descriptors, files that are closed are read all the same. */
Test(disk_limits, no_descriptor_is_left, .timeout = 120)
{
    enum { N = 60 };
    struct mco_object *o = calloc(N, sizeof(*o));
    struct rlimit limit, tight;
    struct mco_store s;
    struct mco_disk *d;
    char folder[256], path[512], name[32];
    int taken[400];
    size_t ntaken = 0;

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 128 * MIB, MIB, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++) { /* each in a file of its own */
        rig_object(&o[i], i, 700000, true);
        rig_write(d, &s, &o[i], 1);
    }
    /* fewer are held open than may be, and the oldest are not */
    for (size_t i = 30; i < 50; i++)
        mco_disk_ops.drop(d, o[i].place);
    for (size_t i = 30; i < 50; i++) {
        mco_disk_bin_name(o[i].place >> 24, name, sizeof(name));
        snprintf(path, sizeof(path), "%s/%s", folder, name);
        for (unsigned k = 0; k < 60000 && access(path, F_OK) == 0; k++)
            usleep(1000);
        cr_assert_neq(access(path, F_OK), 0);
    }
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    tight = (struct rlimit){400, limit.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
    while (ntaken < 400 && (taken[ntaken] = dup(0)) >= 0)
        ntaken++;
    for (size_t i = 0; i < 30; i++) {
        cr_assert_eq(rig_fetch(d, &o[i]), 0);
        cr_assert_eq(rig_wait(&s, &o[i]), 0, "%zu: %d", i, o[i].res);
    }
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (ntaken > 0)
        close(taken[--ntaken]);
    mco_disk_close(d);
    for (size_t i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
    rig_remove(folder);
}

/* ---- a file system without O_DIRECT ------------------------------------------------------------------------- */

struct plain {
    struct mct_file_step *held[256];
    unsigned nheld;
};

static int plain_create(void *context, unsigned depth, void *memory, size_t size, int wake,
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

static void plain_destroy(void *b)
{
    (void)b;
}

static bool plain_no(void *b)
{
    (void)b;
    return false;
}

static bool plain_place(void *b, unsigned place, int fd)
{
    (void)b;
    (void)place;
    (void)fd;
    return false;
}

static void plain_start(void *b, struct mct_file_step *s)
{
    struct plain *p = b;

    p->held[p->nheld++] = s;
}

static unsigned plain_turn(void *b)
{
    struct plain *p = b;
    unsigned n = 0;

    for (; p->nheld > 0; n++) {
        struct mct_file_step *s = p->held[--p->nheld];
        ssize_t res = -1;

        errno = EINVAL;
        if (!s->direct && s->op == MCT_FILE_READ)
            res = pread(s->fd, s->memory, s->size, (off_t)s->offset);
        else if (!s->direct && s->op == MCT_FILE_WRITE)
            res = pwrite(s->fd, s->memory, s->size, (off_t)s->offset);
        else if (!s->direct)
            res = fdatasync(s->fd);
        mct_file_ended(s, res < 0 ? -errno : (int)res);
    }
    return n;
}

static bool plain_arm(void *b)
{
    return ((struct plain *)b)->nheld == 0;
}

static int plain_event(void *b)
{
    (void)b;
    return -1;
}

static const struct mct_file_backend plain = {
    .name = "plain",
    .create = plain_create,
    .destroy = plain_destroy,
    .registered = plain_no,
    .place = plain_place,
    .start = plain_start,
    .turn = plain_turn,
    .arm = plain_arm,
    .event_fd = plain_event,
};

Test(disk_limits, through_the_page_cache_the_last_is_found_again, .timeout = 120)
{
    enum { N = 12 };
    struct mco_object *o = calloc(N, sizeof(*o));
    struct plain *p = calloc(1, sizeof(*p));
    struct mco_disk_stats stats;
    struct mco_store s;
    struct mco_disk *d;
    char folder[256];

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open_over(folder, 64 * MIB, 2 * MIB, &s, &plain, p, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++) { /* data that end amid a block; one or two in a file */
        rig_object(&o[i], i, i % 3 == 0 ? 1700001 : 900003, true);
        rig_write(d, &s, &o[i], 1);
    }
    mco_disk_get_stats(d, &stats);
    cr_assert_gt(stats.buffered, 0u);
    mco_disk_close(d);
    rig_fini(&s);
    rig_init(&s);
    cr_assert_eq(rig_open_over(folder, 64 * MIB, 2 * MIB, &s, &plain, p, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++)
        rig_check_found(&s, &o[i]);
    rig_read(d, &s, o, N);
    mco_disk_get_stats(d, &stats);
    cr_assert_eq(stats.torn + stats.read_errors, 0u);
    mco_disk_close(d);
    for (size_t i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    free(p);
    rig_fini(&s);
    rig_remove(folder);
}
