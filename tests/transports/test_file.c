/* SPDX-License-Identifier: Apache-2.0 */
/* Files past the page cache: any offset, size and memory, on any file system, with io_uring and without. */
#include "file_rig.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)
#define AREA (8 * MIB)

static const size_t sizes[] = {0, 1, 511, 512, 4095, 4096, 4097, 65536, 65537, MIB + 3, 3 * MIB};
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))

static void fill(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 131 + i / 4096 + seed);
}

static void compare_file(const char *path, const uint8_t *expected, size_t n, const char *what)
{
    uint8_t *got = malloc(n);
    int fd = open(path, O_RDONLY);

    cr_assert(fd >= 0 && got != NULL);
    cr_assert_eq(pread(fd, got, n, 0), (ssize_t)n);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(got[i], expected[i], "%s: byte %zu is %u, not %u", what, i, got[i],
                     expected[i]);
    close(fd);
    free(got);
}

/* Writes and reads pieces of a file at all kinds of offsets from all kinds of memory, beside a picture of it. */
static void all_kinds(const char *folder, bool no_uring)
{
    struct mct_files_options o = {.no_uring = no_uring, .bounces = 4, .depth = 8};
    struct mct_files *f = rig_create(&o);
    uint8_t *picture = calloc(1, AREA), *memory = aligned_alloc(4096, 4 * MIB);
    static const size_t shifts[] = {0, 1, 512};
    static const uint64_t places[] = {0, 1, 512, 4096, 65536 - 7, MIB};
    struct mct_file *file;
    struct mct_files_stats stats;
    char path[512], what[128];
    int fd;

    snprintf(path, sizeof(path), "%s/file", folder);
    cr_assert(picture != NULL && memory != NULL);
    cr_assert_eq(rig_open(f, path, O_RDWR | O_CREAT | O_EXCL, &file), 0);
    fd = open(path, O_RDWR);
    fill(picture, AREA, 1);
    cr_assert_eq(pwrite(fd, picture, AREA, 0), (ssize_t)AREA);
    for (size_t i = 0; i < NSIZES; i++) {
        for (size_t j = 0; j < 3; j++) {
            for (size_t k = 0; k < 6; k++) {
                uint8_t *at = memory + shifts[j];
                unsigned seed = (unsigned)(i * 100 + j * 10 + k);

                snprintf(what, sizeof(what), "%zu bytes at %lu from +%zu", sizes[i],
                         (unsigned long)places[k], shifts[j]);
                fill(at, sizes[i], seed);
                memcpy(picture + places[k], at, sizes[i]);
                cr_assert_eq(rig_io(f, file, MCT_FILE_WRITE, 0, at, sizes[i], places[k]), 0, "%s",
                             what);
                memset(memory, 0x5a, 4 * MIB);
                cr_assert_eq(rig_io(f, file, MCT_FILE_READ, 0, at, sizes[i], places[k]), 0, "%s",
                             what);
                cr_assert_eq(memcmp(at, picture + places[k], sizes[i]), 0, "%s", what);
                for (size_t b = 0; b < shifts[j]; b++)
                    cr_assert_eq(memory[b], 0x5a, "%s: before", what);
                for (size_t b = 0; b < 8192; b++)
                    cr_assert_eq(at[sizes[i] + b], 0x5a, "%s: behind", what);
            }
        }
        cr_assert_eq(rig_io(f, file, MCT_FILE_SYNC, 0, NULL, 0, 0), 0);
        compare_file(path, picture, AREA, what);
    }
    /* what lies behind a padded write, up to the next block, becomes zeros, and no more than that */
    for (size_t i = 0; i < NSIZES; i++) {
        fill(memory, sizes[i], 7);
        memcpy(picture + 8192, memory, sizes[i]);
        memset(picture + 8192 + sizes[i], 0, (4096 - sizes[i] % 4096) % 4096);
        cr_assert_eq(rig_io(f, file, MCT_FILE_WRITE, MCT_FILE_PAD, memory, sizes[i], 8192), 0);
    }
    compare_file(path, picture, AREA, "padded");
    /* the file ends before the request does */
    cr_assert_eq(rig_io(f, file, MCT_FILE_READ, 0, memory, 4096, AREA - 100), -EIO);
    cr_assert_eq(memcmp(memory, picture + AREA - 100, 100), 0);
    cr_assert_eq(rig_io(f, file, MCT_FILE_READ, 0, memory, 4096, AREA), -EIO);
    cr_assert_eq(rig_io(f, file, MCT_FILE_READ, 0, memory, 8192, AREA - 4096), -EIO);
    cr_assert_eq(rig_io(f, file, MCT_FILE_READ, 0, memory, MIB, AREA + 77), -EIO);
    mct_files_get_stats(f, &stats);
    cr_expect_eq(stats.uring, !no_uring);
    cr_expect_eq(stats.queued, 0u);
    cr_expect_eq(stats.errors, 4u);
    cr_expect_eq(stats.writes, 6u * 3 * (NSIZES - 1) + NSIZES - 1);
    if (stats.refused == 0)
        cr_expect_gt(stats.bounced, 0u);
    else
        cr_expect_eq(rig_lines, 1u, "it is said once: %s", rig_said);
    rig_close(f, file);
    mct_files_destroy(f);
    close(fd);
    unlink(path);
    rmdir(folder);
    free(memory);
    free(picture);
}

Test(file, any_offset_size_and_memory, .timeout = 120)
{
    char folder[256];

    rig_folder(folder, sizeof(folder), rig_tmp());
    all_kinds(folder, false);
}

Test(file, without_io_uring, .timeout = 120)
{
    char folder[256];

    rig_folder(folder, sizeof(folder), rig_tmp());
    all_kinds(folder, true);
}

Test(file, in_memory_file_systems, .timeout = 120)
{
    char folder[256];

    rig_folder(folder, sizeof(folder), "/dev/shm");
    all_kinds(folder, false);
}

/* A block device whose sectors have 4096 bytes, in a mount namespace of the child's own, which takes everything along. */
static void sectors_of_4096(const char *image, const char *folder)
{
    char command[2048];

    if (unshare(CLONE_NEWNS) != 0)
        _exit(77);
    snprintf(
        command, sizeof(command),
        "exec >/dev/null 2>&1; mount --make-rprivate / && truncate -s 64M %s && "
        "d=$(losetup --sector-size 4096 --show -f %s) && { mkfs.ext4 -q -b 4096 $d && mount $d %s; "
        "r=$?; losetup -d $d; exit $r; }",
        image, image, folder);
    if (system(command) != 0)
        _exit(77);
}

Test(file, sectors_of_four_kilobytes, .timeout = 120)
{
    char folder[256], image[300];
    int status;
    pid_t child;

    rig_folder(folder, sizeof(folder), rig_tmp());
    snprintf(image, sizeof(image), "%s.image", folder);
    child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        sectors_of_4096(image, folder);
        all_kinds(folder, false);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    unlink(image);
    rmdir(folder);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        cr_skip_test("needs root, losetup, mkfs.ext4 and a free loop device");
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x", status);
}

Test(file, many_at_once_each_with_its_own_result, .timeout = 120)
{
    enum { N = 400 };
    struct mct_files_options o = {.bounces = 3, .depth = 32};
    struct mct_files *f = rig_create(&o);
    struct mct_file_io *ios = calloc(N, sizeof(*ios));
    uint8_t *memory = aligned_alloc(4096, N * 8192ul), *back = aligned_alloc(4096, N * 8192ul);
    int results[N];
    struct mct_file *file;
    char folder[256], path[512];

    rig_folder(folder, sizeof(folder), rig_tmp());
    snprintf(path, sizeof(path), "%s/file", folder);
    cr_assert_eq(rig_open(f, path, O_RDWR | O_CREAT, &file), 0);
    for (size_t i = 0; i < N; i++) {
        fill(memory + i * 8192, 8192, (unsigned)i);
        ios[i] = (struct mct_file_io){.file = file,
                                      .op = MCT_FILE_WRITE,
                                      .flags = MCT_FILE_PAD,
                                      .buffer = memory + i * 8192 + i % 3,
                                      .size = 4096 + i % 5,
                                      .offset = i * 8192};
    }
    rig_all(f, ios, N, results);
    for (size_t i = 0; i < N; i++)
        cr_assert_eq(results[i], 0);
    /* each third reads beyond the end of the file */
    for (size_t i = 0; i < N; i++) {
        ios[i].op = MCT_FILE_READ;
        ios[i].buffer = back + i * 8192 + i % 2;
        if (i % 3 == 1)
            ios[i].offset = N * 8192;
    }
    rig_all(f, ios, N, results);
    for (size_t i = 0; i < N; i++) {
        cr_assert_eq(results[i], i % 3 == 1 ? -EIO : 0, "%zu: %d", i, results[i]);
        if (i % 3 != 1)
            cr_assert_eq(memcmp(back + i * 8192 + i % 2, memory + i * 8192 + i % 3, 4096 + i % 5),
                         0);
    }
    rig_close(f, file);
    mct_files_destroy(f);
    unlink(path);
    rmdir(folder);
    free(ios);
    free(memory);
    free(back);
}

struct counter {
    struct mct_files_call call;
    unsigned *made;
};

static void count_call(struct mct_files_call *call)
{
    ++*((struct counter *)call)->made;
}

struct poster {
    struct mct_files *f;
    struct counter *calls;
    size_t n;
};

static void *post_many(void *context)
{
    struct poster *p = context;

    for (size_t i = 0; i < p->n; i++)
        mct_files_post(p->f, &p->calls[i].call);
    return NULL;
}

Test(file, calls_from_any_thread, .timeout = 60)
{
    enum { THREADS = 3, EACH = 5000 };
    struct mct_files_options o = {0};
    struct mct_files *f = rig_create(&o);
    struct counter *calls = calloc(THREADS * EACH, sizeof(*calls));
    struct poster posters[THREADS];
    pthread_t threads[THREADS];
    unsigned made = 0;

    for (size_t i = 0; i < (size_t)THREADS * EACH; i++)
        calls[i] = (struct counter){.call.fn = count_call, .made = &made};
    for (size_t i = 0; i < THREADS; i++) {
        posters[i] = (struct poster){f, calls + i * EACH, EACH};
        cr_assert_eq(pthread_create(&threads[i], NULL, post_many, &posters[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    mct_files_destroy(f); /* after all of them */
    cr_assert_eq(made, (unsigned)THREADS * EACH);
    free(calls);
}

Test(file, two_hundred_engines_one_after_the_other, .timeout = 120)
{
    struct mct_files_stats stats;

    for (unsigned i = 0; i < 200; i++) {
        struct mct_files_options o = {.scratch = 4096};
        struct mct_files *f = rig_create(&o);

        mct_files_get_stats(f, &stats);
        cr_assert(stats.uring, "%u: %s", i, rig_said);
        cr_assert_eq(mct_files_scratch(f)[4095], 0);
        mct_files_destroy(f);
    }
}

/* ---- where io_uring cannot be had ------------------------------------------------------------- */

/* In a child, since it cannot be undone. 0: as it should be. */
static int under(int error, bool memlock, const char *path)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = filter};
    struct rlimit none = {0, 0};
    char text[256] = "";
    struct mct_files_options o = {.log = rig_log};
    struct mct_files_stats stats;
    struct mct_file *file;
    struct mct_files *f;
    uint8_t out[5000], in[5000];

    if (memlock && (setrlimit(RLIMIT_MEMLOCK, &none) != 0 ||
                    (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)))
        return 3;
    if (!memlock && (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
                     prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0))
        return 3;
    if (mct_files_create(&o, &f, text, sizeof(text)) != 0)
        return 4;
    mct_files_get_stats(f, &stats);
    if (!memlock && (stats.uring || rig_lines != 1 || strstr(rig_said, "io_uring") == NULL))
        return 5;
    if (memlock && stats.registered)
        return 6;
    fill(out, sizeof(out), 3);
    if (rig_open(f, path, O_RDWR | O_CREAT, &file) != 0)
        return 7;
    if (rig_io(f, file, MCT_FILE_WRITE, 0, out, sizeof(out), 10) != 0 ||
        rig_io(f, file, MCT_FILE_SYNC, 0, NULL, 0, 0) != 0 ||
        rig_io(f, file, MCT_FILE_READ, 0, in, sizeof(in), 10) != 0)
        return 8;
    if (memcmp(in, out, sizeof(in)) != 0)
        return 9;
    rig_close(f, file);
    mct_files_destroy(f);
    return 0;
}

static void in_child(int error, bool memlock)
{
    char folder[256], path[512];
    int status;
    pid_t child;

    rig_folder(folder, sizeof(folder),
               memlock ? "/dev/shm" : rig_tmp()); /* of another user's then */
    cr_assert_eq(chmod(folder, 0777), 0);
    snprintf(path, sizeof(path), "%s/file", folder);
    child = fork();
    cr_assert(child >= 0);
    if (child == 0)
        _exit(under(error, memlock, path));
    cr_assert_eq(waitpid(child, &status, 0), child);
    unlink(path);
    rmdir(folder);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "step %d failed, errno %d",
              WEXITSTATUS(status), error);
}

Test(file, io_uring_forbidden, .timeout = 60)
{
    in_child(EPERM, false);
    in_child(ENOSYS, false);
    in_child(ENOMEM, false);
}

Test(file, no_memory_may_be_locked, .timeout = 60)
{
    in_child(0, true);
}

/* ---- a kernel of the test's own ----------------------------------------------------------------- */

enum trick { FAITHFUL, SHORTER, AGAIN, INTERRUPTED, REFUSED, BROKEN, LATE, END_OF_FILE, TOO_MUCH };

struct fake {
    enum trick trick;
    unsigned at, times; /* the operation that it happens to, from 1, and so many from there on */
    unsigned seen, most, now;
    struct mct_file_step *held[64];
    unsigned nheld;
};

static int fake_create(void *context, unsigned depth, void *memory, size_t size, int wake,
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

static void fake_destroy(void *b)
{
    (void)b;
}

static bool fake_no(void *b)
{
    (void)b;
    return false;
}

static bool fake_place(void *b, unsigned place, int fd)
{
    (void)b;
    (void)place;
    (void)fd;
    return false;
}

static void fake_start(void *b, struct mct_file_step *s)
{
    struct fake *k = b;

    k->held[k->nheld++] = s;
    if (k->nheld > k->most)
        k->most = k->nheld;
}

/* Also a fault takes effect before it is told: what a short or late operation did is in the file. */
static int fake_carry(struct fake *k, struct mct_file_step *s)
{
    enum trick trick = ++k->seen >= k->at && k->seen - k->at < k->times ? k->trick : FAITHFUL;
    size_t size = s->size;
    ssize_t n;

    if (trick == AGAIN)
        return -EAGAIN;
    if (trick == INTERRUPTED)
        return -EINTR;
    if (trick == REFUSED && s->direct)
        return -EINVAL;
    if (trick == BROKEN)
        return -ENOSPC;
    if (trick == END_OF_FILE)
        return 0;
    if (trick == SHORTER && size > 1)
        size = size / 3 == 0 ? 1 : size / 3;
    /* by a descriptor that takes any size */
    if (s->op == MCT_FILE_READ)
        n = pread(s->fd, s->memory, size, (off_t)s->offset);
    else if (s->op == MCT_FILE_WRITE)
        n = pwrite(s->fd, s->memory, size, (off_t)s->offset);
    else
        n = fdatasync(s->fd);
    if (trick == TOO_MUCH)
        return (int)s->size + 1;
    return n < 0 ? -errno : (int)n;
}

/* The last first, so that nobody relies on an order. */
static unsigned fake_turn(void *b)
{
    struct fake *k = b;
    unsigned n = 0;

    if (k->trick == LATE && k->now++ % 50 != 0)
        return 1; /* something is under way, nobody sleeps */
    for (; k->nheld > 0; n++) {
        struct mct_file_step *s = k->held[--k->nheld];

        mct_file_ended(s, fake_carry(k, s));
    }
    return n;
}

static bool fake_arm(void *b)
{
    return ((struct fake *)b)->nheld == 0;
}

static int fake_event(void *b)
{
    (void)b;
    return -1;
}

static const struct mct_file_backend fake_kernel = {
    .name = "fake",
    .create = fake_create,
    .destroy = fake_destroy,
    .registered = fake_no,
    .place = fake_place,
    .start = fake_start,
    .turn = fake_turn,
    .arm = fake_arm,
    .event_fd = fake_event,
};

/* Forty requests on a depth of 32; those of `broken` fail, all others have the right bytes. Through the page cache, so that the
 * fake may carry out any part of an operation. */
static void with(enum trick trick, unsigned at, unsigned times, unsigned broken, int error)
{
    enum { N = 40, SIZE = 9000 };
    struct fake k = {.trick = trick, .at = at, .times = times};
    struct mct_files_options o = {
        .backend = &fake_kernel, .backend_context = &k, .bounces = 2, .depth = 32};
    struct mct_files *f = rig_create(&o);
    struct mct_file_io ios[N];
    uint8_t *memory = aligned_alloc(4096, N * 12288ul), *back = aligned_alloc(4096, N * 12288ul);
    int results[N];
    unsigned failed = 0;
    struct mct_file *file;
    char folder[256], path[512];

    rig_folder(folder, sizeof(folder), "/dev/shm"); /* O_DIRECT there takes any memory and size */
    snprintf(path, sizeof(path), "%s/file", folder);
    cr_assert_eq(rig_open(f, path, O_RDWR | O_CREAT, &file), 0);
    for (unsigned pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < N; i++) {
            fill(memory + i * 12288, SIZE, (unsigned)i);
            ios[i] = (struct mct_file_io){
                .file = file,
                .op = pass == 0 ? MCT_FILE_WRITE : MCT_FILE_READ,
                .flags = i % 2 == 0 ? MCT_FILE_PAD : 0,
                .buffer = (pass == 0 ? memory : back) + i * 12288 + (pass == 0 ? 0 : i % 4),
                .size = SIZE,
                .offset = i * 12288,
            };
        }
        rig_all(f, ios, N, results);
        for (size_t i = 0; i < N; i++) {
            failed += results[i] != 0;
            if (results[i] != 0)
                cr_assert_eq(results[i], error, "trick %d, request %zu: %d", (int)trick, i,
                             results[i]);
            else if (pass == 1 && failed == 0)
                cr_assert_eq(memcmp(back + i * 12288 + i % 4, memory + i * 12288, SIZE), 0,
                             "trick %d, request %zu", (int)trick, i);
        }
    }
    cr_assert_eq(failed, broken, "trick %d: %u", (int)trick, failed);
    cr_assert_leq(k.most, 32u);
    cr_assert_eq(rig_io(f, file, MCT_FILE_SYNC, 0, NULL, 0, 0),
                 k.trick == AGAIN && times > 80 ? -EAGAIN : 0);
    rig_close(f, file);
    mct_files_destroy(f);
    unlink(path);
    rmdir(folder);
    free(memory);
    free(back);
}

Test(file, results_that_are_short_or_late_or_to_be_tried_again, .timeout = 120)
{
    with(FAITHFUL, 1, 0, 0, 0);
    with(SHORTER, 1, 1, 0, 0);
    with(SHORTER, 7, 500, 0, 0);
    with(AGAIN, 3, 50, 0, 0);
    with(INTERRUPTED, 1, 1, 0, 0);
    with(LATE, 1, 0, 0, 0);
    with(END_OF_FILE, 5, 1, 0, 0);
}

Test(file, an_error_is_of_its_own_request_alone, .timeout = 120)
{
    with(BROKEN, 5, 1, 1, -ENOSPC);
    with(BROKEN, 1, 3, 3, -ENOSPC);
    with(TOO_MUCH, 20, 1, 1, -EIO);
}

Test(file, what_never_goes_on_ends, .timeout = 120)
{
    with(AGAIN, 1, 1u << 30, 80, -EAGAIN);
    with(END_OF_FILE, 1, 1u << 30, 80, -EIO);
}

Test(file, o_direct_refused_is_remembered_and_counted, .timeout = 60)
{
    struct fake k = {.trick = REFUSED, .at = 1, .times = 1u << 30};
    struct mct_files_options o = {.backend = &fake_kernel, .backend_context = &k};
    struct mct_files *f = rig_create(&o);
    uint8_t *memory = aligned_alloc(4096, 65536);
    struct mct_files_stats stats;
    struct mct_file *file;
    char folder[256], path[512];

    rig_folder(folder, sizeof(folder), "/dev/shm");
    snprintf(path, sizeof(path), "%s/file", folder);
    cr_assert_eq(rig_open(f, path, O_RDWR | O_CREAT, &file), 0);
    fill(memory, 65536, 1);
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(rig_io(f, file, MCT_FILE_WRITE, 0, memory, 65536, i * 65536ul), 0);
    mct_files_get_stats(f, &stats);
    cr_assert_eq(stats.refused, 1u);
    cr_assert_eq(stats.errors, 0u);
    cr_assert_eq(stats.cached, 3u);
    cr_assert_eq(stats.cached_bytes, 3u * 65536);
    cr_assert_eq(k.seen, 4u, "one operation was refused, no other tried it");
    cr_assert_eq(rig_lines, 1u);
    cr_assert_not_null(strstr(rig_said, "O_DIRECT"), "%s", rig_said);
    rig_close(f, file);
    mct_files_destroy(f);
    unlink(path);
    rmdir(folder);
    free(memory);
}
