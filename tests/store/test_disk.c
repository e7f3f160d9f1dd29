/* SPDX-License-Identifier: Apache-2.0 */
/* The SSD tier: there and back, over restarts, when it is full, damaged, removed. */
#include "disk_rig.h"

#define MIB (UINT64_C(1) << 20)

static const uint64_t sizes[] = {0,     1,     64,    511,   4096, 4097,
                                 32768, 32769, 65536, 70000, MIB,  MIB + 3};
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))

Test(disk, there_and_back_and_over_a_restart, .timeout = 120)
{
    enum { N = 150 };
    struct mco_object *o = calloc(N, sizeof(*o));
    struct mco_disk_stats stats;
    struct mco_store s;
    struct mco_disk *d;
    char folder[256];
    struct stat st;
    uint64_t bytes = 0;

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 400 * MIB, 16 * MIB, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++) {
        rig_object(&o[i], i, sizes[i % NSIZES], i % 2 == 0);
        bytes += o[i].size;
    }
    rig_write(d, &s, o, N);
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < i; j++)
            cr_assert_neq(o[i].place, o[j].place);
    rig_read(d, &s, o, N);
    mco_disk_get_stats(d, &stats);
    cr_assert_eq(stats.objects, (uint64_t)N);
    cr_assert_eq(stats.writes, (uint64_t)N);
    cr_assert_eq(stats.write_bytes, bytes);
    cr_assert_eq(stats.reads, (uint64_t)N);
    cr_assert_eq(stats.read_bytes, bytes);
    cr_assert_eq(stats.queued, 0u);
    cr_assert_gt(stats.used, bytes);
    cr_assert_eq(stats.evictions + stats.torn + stats.checksum_errors + stats.write_errors, 0u);
    mco_disk_close(d);
    /* others cannot read it */
    cr_assert_eq(stat(folder, &st), 0);
    cr_assert_eq(st.st_mode & 077, 0u);

    for (unsigned life = 0; life < 2; life++) {
        rig_fini(&s);
        rig_init(&s);
        cr_assert_eq(rig_open(folder, 400 * MIB, 16 * MIB, &s, &d), 0, "%s", rig_said);
        cr_assert_eq(s.nfound, (size_t)N);
        cr_assert_eq(s.known, 1u, "it is told when all is found");
        for (size_t i = 0; i < N; i++)
            rig_check_found(&s, &o[i]);
        rig_read(d, &s, o, N);
        mco_disk_get_stats(d, &stats);
        cr_assert_eq(stats.objects, (uint64_t)N);
        cr_assert_eq(stats.torn, 0u);
        mco_disk_close(d);
    }
    for (size_t i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
    rig_remove(folder);
}

Test(disk, what_was_dropped_does_not_come_back, .timeout = 120)
{
    enum { N = 300 };
    struct mco_object *o = calloc(N, sizeof(*o));
    struct mco_disk_stats stats;
    struct mco_store s;
    struct mco_disk *d;
    struct mco_view view;
    struct mco_key key;
    char folder[256];

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++)
        rig_object(&o[i], i, i % 3 == 0 ? 50000 : 4096, true);
    rig_write(d, &s, o, N);
    key = rig_key(&o[1]);
    view = rig_view(&o[1], o[1].memory);
    for (size_t i = 0; i < N; i += 2)
        mco_disk_ops.drop(d, o[i].place);
    mco_disk_ops.drop(d, o[0].place); /* again, and what never was */
    mco_disk_ops.drop(d, o[1].place + 1);
    mco_disk_ops.drop(d, UINT64_MAX);
    mco_disk_ops.drop(d, 0);
    mco_disk_stop(d);
    cr_assert_eq(mco_disk_ops.offload(d, &key, &view), -EBUSY, "it is stopped");
    cr_assert_eq(mco_disk_ops.fetch(d, &key, o[1].place, &view), -EBUSY);
    mco_disk_ops.drop(d, o[3].place);
    mco_disk_close(d);
    rig_fini(&s);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    cr_assert_eq(s.nfound, (size_t)N / 2 - 1);
    for (size_t i = 0; i < N; i++) {
        if (i % 2 != 0 && i != 3)
            rig_check_found(&s, &o[i]);
        else
            cr_assert_null(rig_found_as(&s, &o[i]));
    }
    /* files in which nothing lives any more are given back */
    for (size_t i = 1; i < N; i += 2)
        mco_disk_ops.drop(d, o[i].place);
    mco_disk_get_stats(d, &stats);
    cr_assert_eq(stats.objects, 0u);
    cr_assert_eq(stats.used, 0u);
    mco_disk_close(d);
    rig_fini(&s);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    cr_assert_eq(s.nfound, 0u);
    mco_disk_close(d);
    cr_assert_eq(rmdir(folder), 0, "nothing is left in it");
    for (size_t i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
}

static bool only_odd(const struct rig_found *f)
{
    return (f->key[14] - '0') % 2 == 1;
}

Test(disk, what_the_store_does_not_want_is_dropped, .timeout = 60)
{
    enum { N = 40 };
    struct mco_object *o = calloc(N, sizeof(*o));
    struct mco_store s;
    struct mco_disk *d;
    char folder[256];

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 0, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++)
        rig_object(&o[i], i, 4096, true);
    rig_write(d, &s, o, N);
    mco_disk_close(d);
    rig_init(&s);
    s.want = only_odd;
    cr_assert_eq(rig_open(folder, 64 * MIB, 0, &s, &d), 0, "%s", rig_said);
    cr_assert_eq(s.nfound, (size_t)N / 2);
    mco_disk_close(d);
    rig_fini(&s);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 0, &s, &d), 0, "%s", rig_said);
    cr_assert_eq(s.nfound, (size_t)N / 2);
    mco_disk_close(d);
    for (size_t i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
    rig_remove(folder);
}

static bool is_lost(const struct mco_store *s, uint64_t place)
{
    for (size_t i = 0; i < s->nlost; i++)
        if (s->lost[i] == place)
            return true;
    return false;
}

static uint64_t bytes_in(const char *folder)
{
    char command[512];
    FILE *p;
    unsigned long long n = 0;

    snprintf(command, sizeof(command), "du -s --block-size=1 %s", folder);
    p = popen(command, "r");
    cr_assert_eq(fscanf(p, "%llu", &n), 1);
    pclose(p);
    return n;
}

Test(disk, the_oldest_make_room, .timeout = 120)
{
    enum { N = 200 };
    struct mco_object *o = calloc(N, sizeof(*o));
    struct mco_disk_stats stats;
    struct mco_store s;
    struct mco_disk *d;
    char folder[256];
    size_t lost = 0;

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 16 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++) {
        rig_object(&o[i], i, 300000, true);
        rig_write(d, &s, &o[i], 1);
    }
    cr_assert_leq(bytes_in(folder), 16 * MIB + 65536);
    while (lost < N && is_lost(&s, o[lost].place))
        lost++;
    cr_assert_gt(lost, (size_t)N - 16 * MIB / 300000);
    cr_assert_lt(lost, (size_t)N - 8 * MIB / 300000, "most of the room is used");
    cr_assert_eq(s.nlost, lost, "and only the oldest");
    cr_assert_not(s.all_lost);
    rig_read(d, &s, o + lost, N - lost);
    cr_assert_eq(rig_fetch(d, &o[0]), 0);
    cr_assert_eq(rig_wait(&s, &o[0]), -ENOENT);
    mco_disk_get_stats(d, &stats);
    cr_assert_eq(stats.evictions, lost);
    cr_assert_eq(stats.objects, N - lost);
    mco_disk_close(d);
    /* less room from now on: the oldest of what is found go */
    rig_fini(&s);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 8 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    cr_assert_eq(s.nfound, N - lost);
    mco_disk_close(d);
    cr_assert_leq(bytes_in(folder), 8 * MIB + 65536);
    for (size_t i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
    rig_remove(folder);
}

Test(disk, larger_than_a_file_and_larger_than_the_disk, .timeout = 60)
{
    struct mco_object o, large;
    struct mco_store s;
    struct mco_disk *d;
    char folder[256];

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 32 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    rig_object(&o, 1, 20 * MIB + 5, true);
    rig_object(&large, 2, 33 * MIB, true);
    rig_write(d, &s, &o, 1);
    rig_read(d, &s, &o, 1);
    cr_assert_eq(rig_offload(d, &large), -ENOSPC);
    mco_disk_close(d);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 32 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    rig_check_found(&s, &o);
    rig_read(d, &s, &o, 1);
    mco_disk_close(d);
    rig_free(&o);
    rig_free(&large);
    rig_fini(&s);
    rig_remove(folder);
}

/* ---- damage ----------------------------------------------------------------------------------------- */

static void flip(const char *folder, uint64_t place, uint64_t offset)
{
    char path[512], name[32];
    uint8_t byte;
    int fd;

    mco_disk_bin_name(place >> 24, name, sizeof(name));
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    fd = open(path, O_RDWR);
    offset += (place & 0xffffff) * MCO_DISK_UNIT;
    cr_assert(fd >= 0 && pread(fd, &byte, 1, (off_t)offset) == 1);
    byte ^= 0x10;
    cr_assert(pwrite(fd, &byte, 1, (off_t)offset) == 1 && fsync(fd) == 0);
    close(fd);
}

Test(disk, a_byte_that_changed_costs_its_object_alone, .timeout = 120)
{
    enum { N = 24 };
    struct mco_object *o = calloc(N, sizeof(*o));
    static const unsigned hurt[] = {3, 8, 12, 17};
    struct mco_disk_stats stats;
    struct mco_store s;
    struct mco_disk *d;
    char folder[256];
    bool is_hurt[N] = {false};

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 0, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++)
        rig_object(&o[i], i, i % 2 == 0 ? 5000 : 100000, true);
    rig_write(d, &s, o, N);
    /* in data, small and large, in a head, in a key */
    flip(folder, o[3].place, mco_disk_layout(o[3].length, o[3].size).data + 77777);
    flip(folder, o[8].place, mco_disk_layout(o[8].length, o[8].size).data + 4999);
    flip(folder, o[12].place, 40);
    flip(folder, o[17].place, sizeof(struct mco_disk_record) + 3);
    for (size_t i = 0; i < 4; i++)
        is_hurt[hurt[i]] = true;
    for (size_t i = 0; i < N; i++) {
        cr_assert_eq(rig_fetch(d, &o[i]), 0);
        cr_assert_eq(rig_wait(&s, &o[i]), is_hurt[i] ? -EBADMSG : 0, "%zu", i);
        if (!is_hurt[i])
            cr_assert_eq(memcmp(o[i].memory, o[i].data, o[i].size), 0);
    }
    mco_disk_get_stats(d, &stats);
    cr_assert_eq(stats.checksum_errors, 4u);
    cr_assert_eq(stats.objects, N - 4u);
    cr_assert_not(stats.lost);
    cr_assert_not_null(strstr(rig_said, "damaged"), "%s", rig_said);
    mco_disk_close(d);
    rig_fini(&s);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 0, &s, &d), 0, "%s", rig_said);
    cr_assert_eq(s.nfound, N - 4u, "a damaged copy is not found again");
    for (size_t i = 0; i < N; i++)
        if (!is_hurt[i])
            rig_check_found(&s, &o[i]);
    /* a head that is damaged while nobody looks: the others of its file are found */
    mco_disk_close(d);
    flip(folder, o[5].place, 3);
    rig_fini(&s);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 0, &s, &d), 0, "%s", rig_said);
    cr_assert_eq(s.nfound, N - 5u);
    mco_disk_get_stats(d, &stats);
    cr_assert_geq(stats.torn, 1u);
    for (size_t i = 0; i < N; i++)
        if (!is_hurt[i] && i != 5)
            rig_check_found(&s, &o[i]);
    mco_disk_close(d);
    for (size_t i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
    rig_remove(folder);
}

/* Bytes that a client chose and that look like a record are none. */
Test(disk, data_that_look_like_records, .timeout = 60)
{
    struct mco_object o[2];
    struct mco_store s;
    struct mco_disk *d;
    char folder[256], path[512], name[32];
    uint8_t *image;
    int fd;

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 0, &s, &d), 0, "%s", rig_said);
    rig_object(&o[0], 1, 100000, true);
    rig_object(&o[1], 2, 40960, true);
    rig_write(d, &s, &o[0], 1);
    /* object 1 holds an image of object 0's first blocks, and then its own head is lost */
    mco_disk_bin_name(o[0].place >> 24, name, sizeof(name));
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    fd = open(path, O_RDONLY);
    image = o[1].data;
    cr_assert_eq(pread(fd, image, 40960, (off_t)((o[0].place & 0xffffff) * 4096)), 40960);
    close(fd);
    o[1].crc = mco_disk_crc(0, o[1].data, o[1].size);
    rig_write(d, &s, &o[1], 1);
    mco_disk_close(d);
    flip(folder, o[1].place, 3);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 0, &s, &d), 0, "%s", rig_said);
    cr_assert_eq(s.nfound, 1u);
    rig_check_found(&s, &o[0]);
    mco_disk_close(d);
    rig_free(&o[0]);
    rig_free(&o[1]);
    rig_fini(&s);
    rig_remove(folder);
}

Test(disk, files_of_any_content, .timeout = 120)
{
    enum { N = 60 };
    struct mco_object *o = calloc(N, sizeof(*o));
    struct mco_store s;
    struct mco_disk *d;
    char folder[256], path[512], name[32];
    unsigned seed = 12345;
    struct stat st;
    int fd;

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++)
        rig_object(&o[i], i, sizes[i % 9], true);
    rig_write(d, &s, o, N);
    mco_disk_close(d);
    mco_disk_bin_name(o[0].place >> 24, name, sizeof(name));
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    for (unsigned round = 0; round < 60; round++) {
        cr_assert_eq(stat(path, &st), 0);
        fd = open(path, O_RDWR);
        for (unsigned i = 0; i < 20; i++) {
            uint8_t byte = (uint8_t)rand_r(&seed);
            off_t at = (off_t)((uint64_t)rand_r(&seed) % (uint64_t)st.st_size);

            if (round > 0 || at >= 4096) /* the very head goes last, and with it all of the file */
                cr_assert_eq(pwrite(fd, &byte, 1,
                                    round > 55  ? at % 40
                                    : at < 4096 ? at + 4096
                                                : at),
                             1);
        }
        if (round % 7 == 6)
            cr_assert_eq(ftruncate(fd, st.st_size - rand_r(&seed) % 9000), 0);
        close(fd);
        rig_fini(&s);
        rig_init(&s);
        cr_assert_eq(rig_open(folder, 64 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
        for (size_t i = 0; i < N; i++) {
            const struct rig_found *f = rig_found_as(&s, &o[i]);

            if (f == NULL)
                continue;
            rig_check_found(&s, &o[i]);
            cr_assert_eq(rig_fetch(d, &o[i]), 0);
            if (rig_wait(&s, &o[i]) == 0)
                cr_assert_eq(memcmp(o[i].memory, o[i].data, o[i].size), 0);
            else
                cr_assert_eq(o[i].res, -EBADMSG);
        }
        mco_disk_close(d);
        if (stat(path, &st) != 0)
            break; /* nothing lived in it any more */
    }
    for (size_t i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
    rig_remove(folder);
}

/* ---- folders ------------------------------------------------------------------------------------------- */

Test(disk, one_folder_one_agent, .timeout = 60)
{
    struct mco_store s;
    struct mco_disk *d, *other = NULL;
    char folder[256], alias[300], path[300];

    rig_folder(folder, sizeof(folder));
    snprintf(alias, sizeof(alias), "%s-alias", folder);
    snprintf(path, sizeof(path), "%s/new", folder);
    rig_init(&s);
    cr_assert_eq(rig_open(path, 64 * MIB, 0, &s, &d), 0, "made: %s", rig_said);
    cr_assert_eq(rig_open(path, 64 * MIB, 0, &s, &other), -EBUSY);
    cr_assert_not_null(strstr(rig_said, path), "%s", rig_said);
    cr_assert_eq(symlink(path, alias), 0);
    cr_assert_eq(rig_open(alias, 64 * MIB, 0, &s, &other), -EBUSY, "by another name");
    cr_assert_not_null(strstr(rig_said, alias), "%s", rig_said);
    mco_disk_close(d);
    cr_assert_eq(rig_open(alias, 64 * MIB, 0, &s, &d), 0, "%s", rig_said);
    mco_disk_close(d);
    unlink(alias);
    rig_fini(&s);
    rig_remove(folder);
}

Test(disk, folders_that_will_not_do, .timeout = 60)
{
    struct mco_store s;
    struct mco_disk *d = NULL;
    char folder[256], path[300];

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    snprintf(path, sizeof(path), "%s/a/b", folder);
    cr_assert_eq(rig_open(path, 64 * MIB, 0, &s, &d), -ENOENT);
    cr_assert_not_null(strstr(rig_said, path), "%s", rig_said);
    snprintf(path, sizeof(path), "%s/file", folder);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    cr_assert_eq(rig_open(path, 64 * MIB, 0, &s, &d), -ENOTDIR);
    cr_assert_eq(chmod(folder, 0777), 0);
    cr_assert_eq(rig_open(folder, 64 * MIB, 0, &s, &d), -EACCES);
    cr_assert_not_null(strstr(rig_said, "0700"), "%s", rig_said);
    cr_assert_eq(chmod(folder, 0700), 0);
    cr_assert_eq(rig_open(folder, 1000, 0, &s, &d), -EINVAL);
    cr_assert_not_null(strstr(rig_said, "1000"), "%s", rig_said);
    cr_assert_null(d);
    rig_remove(folder);
}

Test(disk, a_folder_that_is_removed_under_it, .timeout = 120)
{
    enum { N = 60 };
    struct mco_object *o = calloc(N, sizeof(*o));
    struct mco_disk_stats stats;
    struct mco_store s;
    struct mco_disk *d;
    char folder[256];
    size_t refused = 0;

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 16 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++)
        rig_object(&o[i], i, 300000, true);
    rig_write(d, &s, o, 10);
    rig_remove(folder);
    for (size_t i = 10; i < N; i++) {
        if (rig_offload(d, &o[i]) == 0 && rig_wait(&s, &o[i]) == 0)
            continue;
        refused++;
    }
    cr_assert_gt(refused, 0u);
    cr_assert(rig_await(&s, rig_all_lost, NULL));
    cr_assert_eq(rig_offload(d, &o[0]), -EIO);
    cr_assert_eq(rig_fetch(d, &o[0]), -EIO);
    mco_disk_get_stats(d, &stats);
    cr_assert(stats.lost);
    cr_assert_not_null(strstr(rig_said, folder), "%s", rig_said);
    mco_disk_close(d);
    for (size_t i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
}

Test(disk, a_file_that_is_removed_under_it, .timeout = 120)
{
    enum { N = 12 };
    struct mco_object *o = calloc(N, sizeof(*o));
    struct mco_store s;
    struct mco_disk *d;
    char folder[256], path[512], name[32];

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < N; i++)
        rig_object(&o[i], i, 600000, true);
    rig_write(d, &s, o, N);
    mco_disk_close(d);
    rig_fini(&s);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    mco_disk_close(d);
    rig_fini(&s);
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 64 * MIB, 2 * MIB, &s, &d), 0, "%s", rig_said);
    mco_disk_bin_name(o[0].place >> 24, name, sizeof(name));
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    cr_assert_eq(unlink(path), 0);
    for (size_t i = 0; i < N; i++) {
        bool held; /* what is open stays readable */

        cr_assert_eq(rig_fetch(d, &o[i]), 0);
        held = rig_wait(&s, &o[i]) == 0;
        cr_assert(held || (o[i].place >> 24 == o[0].place >> 24 && o[i].res == -ENOENT), "%zu: %d",
                  i, o[i].res);
    }
    mco_disk_close(d);
    for (size_t i = 0; i < N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
    rig_remove(folder);
}

/* ---- many threads ------------------------------------------------------------------------------------------ */

struct worker {
    struct mco_disk *d;
    struct mco_store *s;
    struct mco_object *o;
    size_t n;
    unsigned wrong;
};

static void *work(void *context)
{
    struct worker *w = context;

    for (unsigned round = 0; round < 3; round++) {
        for (size_t i = 0; i < w->n; i++)
            if (rig_offload(w->d, &w->o[i]) != 0)
                w->wrong++;
        for (size_t i = 0; i < w->n; i++) {
            if (!rig_await(w->s, rig_is_told, &w->o[i]) || w->o[i].res != 0 ||
                rig_fetch(w->d, &w->o[i]) != 0)
                w->wrong++;
        }
        for (size_t i = 0; i < w->n; i++) {
            if (!rig_await(w->s, rig_is_told, &w->o[i]) || w->o[i].res != 0 ||
                memcmp(w->o[i].memory, w->o[i].data, w->o[i].size) != 0)
                w->wrong++;
            mco_disk_ops.drop(w->d, w->o[i].place);
        }
    }
    return NULL;
}

Test(disk, threads_at_once, .timeout = 240)
{
    enum { THREADS = 3, N = 100 };
    struct mco_object *o = calloc(THREADS * N, sizeof(*o));
    struct worker w[THREADS];
    pthread_t t[THREADS];
    struct mco_disk_stats stats;
    struct mco_store s;
    struct mco_disk *d;
    char folder[256];

    rig_folder(folder, sizeof(folder));
    rig_init(&s);
    cr_assert_eq(rig_open(folder, 256 * MIB, 4 * MIB, &s, &d), 0, "%s", rig_said);
    for (size_t i = 0; i < (size_t)THREADS * N; i++)
        rig_object(&o[i], i, sizes[i % 11] / 2, i % 3 != 0);
    for (size_t i = 0; i < THREADS; i++) {
        w[i] = (struct worker){.d = d, .s = &s, .o = o + i * N, .n = N};
        cr_assert_eq(pthread_create(&t[i], NULL, work, &w[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
        cr_assert_eq(w[i].wrong, 0u);
    }
    mco_disk_get_stats(d, &stats);
    cr_assert_eq(stats.objects, 0u);
    cr_assert_eq(stats.writes, 3u * THREADS * N);
    cr_assert_eq(stats.drops, 3u * THREADS * N);
    cr_assert_eq(stats.queued, 0u);
    mco_disk_close(d);
    for (size_t i = 0; i < (size_t)THREADS * N; i++)
        rig_free(&o[i]);
    free(o);
    rig_fini(&s);
    rig_remove(folder);
}
