/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: what a later agent reads of it, wherever the writer died and whatever was damaged. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/ledger.h"
#include "daemon/log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOOK_EVERY 997 /* instructions; there are many more of them */
#else
#define LOOK_EVERY 7
#endif

static struct mcd_ledger_session session(uint64_t n)
{
    struct mcd_ledger_session r = {
        .incarnation = n,
        .segment = n + 1000000,
        .tenant = n * 3,
        .region_ino = n * 5,
        .region_dev = 1,
        .inbox_size = 262144,
        .id = (uint32_t)n,
        .pid = (int32_t)n,
        .uid = (uint32_t)n * 7,
    };

    snprintf(r.name, sizeof(r.name), "client-%llu", (unsigned long long)n);
    return r;
}

static struct mcd_ledger_extent extent(uint64_t n)
{
    return (struct mcd_ledger_extent){
        .session = n,
        .ino = n * 5,
        .dev = 1,
        .size = 2 << 20,
        .page_size = 4096,
        .address = UINT64_C(32) << 40,
        .handle = 0x80000000u | (uint32_t)n,
        .id = (uint32_t)n,
        .node = -1,
    };
}

static struct mcd_ledger_queue queue(uint64_t n)
{
    return (struct mcd_ledger_queue){.session = n,
                                     .ino = n,
                                     .dev = 1,
                                     .args_size = 4096,
                                     .id = (uint32_t)n,
                                     .depth = 64,
                                     .slots = 256,
                                     .batches = 64};
}

/* The next agent's view; the first one's stays. */
static struct mcd_ledger *later(struct mcd_ledger *l)
{
    int fd = fcntl(mcd_ledger_fd(l), F_DUPFD_CLOEXEC, 3);
    struct mcd_ledger *next = NULL;

    cr_assert_geq(fd, 0);
    cr_assert_eq(mcd_ledger_adopt(fd, &next), 0);
    return next;
}

static unsigned count(struct mcd_ledger *l, enum mcd_ledger_kind kind)
{
    unsigned n = 0;

    for (const void *r = NULL; (r = mcd_ledger_next(l, kind, r)) != NULL;)
        n++;
    return n;
}

static bool same_session(const struct mcd_ledger_session *r)
{
    struct mcd_ledger_session want = session(r->incarnation);

    return memcmp((const char *)r + sizeof(uint64_t), (const char *)&want + sizeof(uint64_t),
                  offsetof(struct mcd_ledger_session, named) - sizeof(uint64_t)) == 0;
}

Test(ledger, a_later_agent_finds_what_was_given_and_not_taken_back)
{
    enum { N = 3000 }; /* many chunks */
    static void *extents[N], *sessions[N];
    struct mcd_ledger *l, *next;
    unsigned left = 0;

    cr_assert_eq(mcd_ledger_create(&l), 0);
    mcd_ledger_head(l)->next_address = 77;
    for (uint64_t i = 0; i < N; i++) {
        struct mcd_ledger_session s = session(i + 1);
        struct mcd_ledger_extent e = extent(i + 1);
        struct mcd_ledger_queue q = queue(i + 1);

        sessions[i] = mcd_ledger_add(l, MCD_LEDGER_SESSION, &s);
        extents[i] = mcd_ledger_add(l, MCD_LEDGER_EXTENT, &e);
        cr_assert_not_null(sessions[i]);
        cr_assert_not_null(extents[i]);
        cr_assert_not_null(mcd_ledger_add(l, MCD_LEDGER_QUEUE, &q));
    }
    for (unsigned i = 0; i < N; i += 3)
        mcd_ledger_drop(l, MCD_LEDGER_EXTENT, extents[i]);
    mcd_ledger_name(sessions[5], "kv", 1);
    mcd_ledger_name(sessions[6], "gone", 0);
    mcd_ledger_name(sessions[6], NULL, 0);
    next = later(l);
    mcd_ledger_destroy(l);
    cr_assert_eq(mcd_ledger_head(next)->next_address, 77u);
    cr_assert_eq(count(next, MCD_LEDGER_SESSION), (unsigned)N);
    cr_assert_eq(count(next, MCD_LEDGER_QUEUE), (unsigned)N);
    for (struct mcd_ledger_extent *e = NULL;
         (e = mcd_ledger_next(next, MCD_LEDGER_EXTENT, e)) != NULL; left++)
        cr_assert_neq((e->id - 1) % 3, 0u, "%u was dropped", e->id);
    cr_assert_eq(left, (unsigned)(N - N / 3));
    for (struct mcd_ledger_session *s = NULL;
         (s = mcd_ledger_next(next, MCD_LEDGER_SESSION, s)) != NULL;) {
        cr_assert(same_session(s));
        cr_assert_eq(s->named, s->incarnation == 6);
        if (s->named != 0)
            cr_assert_str_eq(s->segment_name, "kv");
    }
    /* places are used again: it does not grow for what fits */
    {
        uint64_t size = mcd_ledger_size(next);

        for (unsigned i = 0; i < N / 3; i++) {
            struct mcd_ledger_extent e = extent(i + 10000);

            cr_assert_not_null(mcd_ledger_add(next, MCD_LEDGER_EXTENT, &e));
        }
        cr_assert_eq(mcd_ledger_size(next), size);
    }
    mcd_ledger_clear(next);
    for (unsigned kind = 1; kind < MCD_LEDGER_KINDS; kind++)
        cr_assert_eq(count(next, (enum mcd_ledger_kind)kind), 0u);
    mcd_ledger_destroy(next);
}

Test(ledger, imported_gpu_memory_is_of_any_size_and_no_other_extent_is)
{
    struct mcd_ledger_extent e = extent(1);
    struct mcd_ledger *l, *next;

    cr_assert_eq(mcd_ledger_create(&l), 0);
    e.size += 256;
    for (uint32_t flags = 0; flags <= (MCD_LEDGER_FOREIGN | MCD_LEDGER_GPU) + 1; flags++) {
        e.flags = flags;
        cr_assert_not_null(mcd_ledger_add(l, MCD_LEDGER_EXTENT, &e));
    }
    next = later(l);
    mcd_ledger_destroy(l);
    cr_assert_eq(count(next, MCD_LEDGER_EXTENT), 1u);
    cr_assert_eq(
        ((struct mcd_ledger_extent *)mcd_ledger_next(next, MCD_LEDGER_EXTENT, NULL))->flags,
        MCD_LEDGER_FOREIGN | MCD_LEDGER_GPU);
    mcd_ledger_destroy(next);
}

/* What the child does; the parent stops it at every few instructions. */
static void play(struct mcd_ledger *l)
{
    struct mcd_ledger_session s1 = session(1), s2 = session(2), s3 = session(3);
    struct mcd_ledger_extent e = extent(1);
    void *a, *b;

    a = mcd_ledger_add(l, MCD_LEDGER_SESSION, &s1); /* makes a chunk, too */
    b = mcd_ledger_add(l, MCD_LEDGER_SESSION, &s2);
    mcd_ledger_name(a, "first", 0);
    mcd_ledger_name(a, "second", 1);
    mcd_ledger_name(b, "third", 0);
    mcd_ledger_drop(l, MCD_LEDGER_SESSION, a);
    mcd_ledger_add(l, MCD_LEDGER_SESSION, &s3); /* in the place of the first */
    mcd_ledger_add(l, MCD_LEDGER_EXTENT, &e);
    mcd_ledger_name(b, NULL, 0);
}

Test(ledger, a_writer_that_dies_at_any_instruction_leaves_whole_records)
{
    struct mcd_ledger *l;
    unsigned long steps = 0, seen[4] = {0};
    int status;
    pid_t child;

    cr_assert_eq(mcd_ledger_create(&l), 0);
    child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        play(l);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSTOPPED(status));
    while (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0 &&
           waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        struct mcd_ledger *next;
        unsigned n = 0;

        cr_assert_eq(WSTOPSIG(status), SIGTRAP, "signal %d", WSTOPSIG(status));
        if (steps++ % LOOK_EVERY != 0)
            continue;
        next = later(l);
        for (struct mcd_ledger_session *s = NULL;
             (s = mcd_ledger_next(next, MCD_LEDGER_SESSION, s)) != NULL; n++) {
            cr_assert(same_session(s), "after %lu instructions", steps);
            cr_assert(s->incarnation >= 1 && s->incarnation <= 3);
            seen[s->incarnation]++;
            if (s->named == 0)
                continue;
            if (s->incarnation == 1)
                cr_assert((strcmp(s->segment_name, "first") == 0 && s->flags == 0) ||
                          (strcmp(s->segment_name, "second") == 0 && s->flags == 1));
            else
                cr_assert(s->incarnation == 2 && strcmp(s->segment_name, "third") == 0);
        }
        cr_assert_leq(n, 2u);
        cr_assert_leq(count(next, MCD_LEDGER_EXTENT), 1u);
        mcd_ledger_destroy(next);
    }
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", status);
    /* all of it was looked at: each of them was there at some time */
    cr_assert(seen[1] != 0 && seen[2] != 0 && seen[3] != 0);
    mcd_ledger_destroy(l);
}

/* Flips bits all over a good ledger: what is left are records as they were. */
Test(ledger, damaged_records_are_dropped)
{
    unsigned dropped = 0, refused = 0;
    struct mcd_ledger *l;

    mcd_log_set_level(MCD_LOG_ERROR);
    cr_assert_eq(mcd_ledger_create(&l), 0);
    srand(1);
    for (unsigned round = 0; round < 200; round++) {
        struct mcd_ledger *next = NULL;
        uint64_t size;
        unsigned n = 0;
        uint8_t *map;
        int fd;

        mcd_ledger_clear(l);
        for (uint64_t i = 1; i <= 20; i++) {
            struct mcd_ledger_session s = session(i);
            struct mcd_ledger_extent e = extent(i);
            struct mcd_ledger_queue q = queue(i);

            mcd_ledger_name(mcd_ledger_add(l, MCD_LEDGER_SESSION, &s), "name", 0);
            mcd_ledger_add(l, MCD_LEDGER_EXTENT, &e);
            mcd_ledger_add(l, MCD_LEDGER_QUEUE, &q);
        }
        size = mcd_ledger_size(l);
        fd = memfd_create("damaged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        cr_assert_eq(ftruncate(fd, (off_t)size), 0);
        map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        cr_assert_neq(map, MAP_FAILED);
        memcpy(map, mcd_ledger_head(l), size);
        for (unsigned i = 0; i < 60; i++) {
            uint64_t chunk = (uint64_t)rand() % (size / MCD_LEDGER_CHUNK) * MCD_LEDGER_CHUNK;
            uint64_t at = chunk + (uint64_t)rand() % (round % 4 == 0 ? 80 : 14000);

            map[at] ^= (uint8_t)(1u << (rand() % 8));
        }
        munmap(map, size);
        cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        if (mcd_ledger_adopt(fd, &next) != 0) {
            refused++;
            close(fd);
            continue;
        }
        for (struct mcd_ledger_session *s = NULL;
             (s = mcd_ledger_next(next, MCD_LEDGER_SESSION, s)) != NULL; n++) {
            cr_assert(same_session(s));
            if (s->named != 0)
                cr_assert_not_null(memchr(s->segment_name, '\0', sizeof(s->segment_name)));
        }
        dropped += 20 - n;
        /* and it can be written to */
        {
            struct mcd_ledger_session s = session(99);

            cr_assert_not_null(mcd_ledger_add(next, MCD_LEDGER_SESSION, &s));
            cr_assert_eq(count(next, MCD_LEDGER_SESSION), n + 1);
        }
        mcd_ledger_destroy(next);
    }
    cr_assert_gt(dropped, 100u);
    cr_assert_gt(refused, 0u);
    mcd_ledger_destroy(l);
}

Test(ledger, what_is_no_ledger_is_refused)
{
    struct mcd_ledger *l;
    int fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING), fds[2];

    cr_assert_eq(mcd_ledger_adopt(fd, &l), -EPROTO, "not sealed");
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    cr_assert_eq(mcd_ledger_adopt(fd, &l), -EPROTO, "empty");
    cr_assert_eq(ftruncate(fd, MCD_LEDGER_CHUNK), 0);
    cr_assert_eq(mcd_ledger_adopt(fd, &l), -EPROTO, "zeroes");
    cr_assert_eq(ftruncate(fd, (off_t)(2 * MCD_LEDGER_MAX)), 0);
    cr_assert_eq(mcd_ledger_adopt(fd, &l), -EPROTO, "too large");
    close(fd);
    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(mcd_ledger_adopt(fds[0], &l), -EPROTO, "a pipe");
    cr_assert_eq(mcd_ledger_adopt(-1, &l), -EPROTO);
    close(fds[0]);
    close(fds[1]);
}

Test(ledger, a_process_is_told_from_a_later_one_of_its_pid)
{
    pid_t child = fork();

    if (child == 0) {
        pause();
        _exit(0);
    }
    cr_assert_neq(mcd_process_started(getpid()), 0u);
    cr_assert_geq(mcd_process_started(child), mcd_process_started(getpid()));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    cr_assert_eq(mcd_process_started(child), 0u);
    cr_assert_eq(mcd_process_started(0), 0u);
}
