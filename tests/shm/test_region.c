/* SPDX-License-Identifier: Apache-2.0 */
/* Memfds: made, populated, sealed and mapped by the agent; checked when others made them. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/region.h"

#define MIB (UINT64_C(1) << 20)
#define HUGEPAGE (2 * MIB)

static uint64_t free_hugepages(void)
{
    FILE *f = fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "re");
    unsigned long long n = 0;

    if (f != NULL) {
        if (fscanf(f, "%llu", &n) != 1)
            n = 0;
        fclose(f);
    }
    return n;
}

static int memfd(uint64_t size, unsigned flags, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | flags);

    cr_assert_geq(fd, 0, "memfd_create: %s", strerror(errno));
    cr_assert_eq(ftruncate(fd, (off_t)size), 0);
    if (seals != 0)
        cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

Test(create, populates_and_seals)
{
    uint64_t page_size = 0;
    struct stat st;
    void *mem;
    int fd;

    cr_assert_eq(mcs_region_create("test", MIB, 0, -1, NULL, &fd, &mem), 0);
    cr_assert_eq(fstat(fd, &st), 0);
    cr_assert_eq((uint64_t)st.st_size, MIB);
    cr_assert_eq((uint64_t)st.st_blocks * 512, MIB, "every page is there");
    cr_assert_eq(fcntl(fd, F_GET_SEALS) & (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL),
                 F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
    cr_assert_neq(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    cr_assert_neq(ftruncate(fd, 0), 0);
    cr_assert_neq(ftruncate(fd, 2 * MIB), 0);
    for (uint64_t i = 0; i < MIB; i += 4096)
        cr_assert_eq(((uint8_t *)mem)[i], 0);
    cr_assert_eq(mcs_region_check(fd, MIB, &page_size), 0);
    cr_assert_eq(page_size, 4096);
    mcs_region_unmap(mem, MIB);
    close(fd);
}

Test(create, refuses_sizes_that_are_no_pages)
{
    void *mem;
    int fd;

    cr_assert_eq(mcs_region_create("test", 0, 0, -1, NULL, &fd, &mem), -EINVAL);
    cr_assert_eq(mcs_region_create("test", 4095, 0, -1, NULL, &fd, &mem), -EINVAL);
    cr_assert_eq(mcs_region_create("test", MIB, HUGEPAGE, -1, NULL, &fd, &mem), -EINVAL);
}

Test(create, refuses_a_node_that_is_not_there)
{
    void *mem;
    int fd;

    cr_assert_lt(mcs_region_create("test", MIB, 0, 1023, NULL, &fd, &mem), 0);
    cr_assert_lt(mcs_region_create("test", MIB, 0, 100000, NULL, &fd, &mem), 0);
}

Test(create, too_few_hugepages_is_an_error_at_once)
{
    uint64_t size = (free_hugepages() + 64) * HUGEPAGE;
    void *mem;
    int fd, res;

    res = mcs_region_create("test", size, HUGEPAGE, -1, NULL, &fd, &mem);
    if (res == 0) { /* surplus pages are allowed on this host */
        mcs_region_unmap(mem, size);
        close(fd);
        cr_skip_test("the host gives surplus hugepages");
    }
    cr_assert_eq(res, -ENOMEM, "%s", strerror(-res));
}

Test(create, hugepages)
{
    uint64_t page_size = 0;
    struct stat st;
    void *mem;
    int fd;

    if (free_hugepages() < 4)
        cr_skip_test("needs 4 free hugepages of 2M");
    cr_assert_eq(mcs_region_create("test", 4 * HUGEPAGE, HUGEPAGE, -1, NULL, &fd, &mem), 0);
    cr_assert_eq((uintptr_t)mem % HUGEPAGE, 0);
    cr_assert_eq(fstat(fd, &st), 0);
    cr_assert_eq((uint64_t)st.st_blocks * 512, 4 * HUGEPAGE, "every page is there");
    cr_assert_eq(mcs_region_check(fd, 4 * HUGEPAGE, &page_size), 0);
    cr_assert_eq(page_size, HUGEPAGE);
    memset(mem, 1, 4 * HUGEPAGE);
    mcs_region_unmap(mem, 4 * HUGEPAGE);
    close(fd);
}

Test(map, two_mappings_show_the_same_bytes)
{
    void *mem, *reader;
    int fd;

    cr_assert_eq(mcs_region_create("test", MIB, 0, -1, NULL, &fd, &mem), 0);
    cr_assert_eq(mcs_region_map(fd, MIB, false, NULL, &reader), 0);
    cr_assert_neq(reader, mem);
    memset(mem, 0xab, MIB);
    cr_assert_arr_eq(mem, reader, MIB);
    mcs_region_unmap(reader, MIB);
    mcs_region_unmap(mem, MIB);
    close(fd);
}

Test(map, takes_the_hint_where_it_is_free_and_never_replaces)
{
    void *mem, *place, *got;
    int fd;

    cr_assert_eq(mcs_region_create("test", MIB, 0, -1, NULL, &fd, &mem), 0);
    memset(mem, 1, MIB);
    place = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(place, MAP_FAILED);
    memset(place, 7, MIB);

    cr_assert_eq(mcs_region_map(fd, MIB, true, place, &got), 0);
    cr_assert_neq(got, place);
    cr_assert_eq(*(uint8_t *)place, 7, "what was there is untouched");
    cr_assert_eq(*(uint8_t *)got, 1);
    mcs_region_unmap(got, MIB);

    munmap(place, MIB);
    cr_assert_eq(mcs_region_map(fd, MIB, true, place, &got), 0);
    cr_assert_eq(got, place);
    mcs_region_unmap(got, MIB);
    mcs_region_unmap(mem, MIB);
    close(fd);
}

Test(map, larger_than_a_chunk_is_unmapped_whole)
{
    uint64_t size = 130 * MIB;
    unsigned char present;
    void *mem;
    int fd;

    fd = memfd(size, MFD_ALLOW_SEALING, F_SEAL_SHRINK);
    cr_assert_eq(mcs_region_map(fd, size, true, NULL, &mem), 0);
    mcs_region_unmap(mem, size);
    for (uint64_t at = 0; at < size; at += MIB)
        cr_assert(mincore((char *)mem + at, 4096, &present) != 0 && errno == ENOMEM);
    close(fd);
}

Test(check, accepts_a_memfd_sealed_against_shrinking)
{
    int fd = memfd(MIB, MFD_ALLOW_SEALING, F_SEAL_SHRINK);
    uint64_t page_size = 0;

    cr_assert_eq(mcs_region_check(fd, MIB, &page_size), 0);
    cr_assert_eq(mcs_region_check(fd, 1, &page_size), 0);
    cr_assert_eq(page_size, 4096);
    close(fd);
}

Test(check, refuses_an_unsealed_memfd)
{
    uint64_t page_size;
    int fd = memfd(MIB, MFD_ALLOW_SEALING, 0);

    cr_assert_eq(mcs_region_check(fd, MIB, &page_size), -EPERM);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    cr_assert_eq(mcs_region_check(fd, MIB, &page_size), -EPERM);
    close(fd);
    fd = memfd(MIB, 0, 0); /* one that cannot be sealed */
    cr_assert_eq(mcs_region_check(fd, MIB, &page_size), -EPERM);
    close(fd);
}

Test(check, refuses_one_smaller_than_announced)
{
    uint64_t page_size;
    int fd = memfd(MIB, MFD_ALLOW_SEALING, F_SEAL_SHRINK);

    cr_assert_eq(mcs_region_check(fd, MIB + 1, &page_size), -ERANGE);
    cr_assert_eq(mcs_region_check(fd, UINT64_MAX, &page_size), -ERANGE);
    close(fd);
    fd = memfd(0, MFD_ALLOW_SEALING, F_SEAL_SHRINK);
    cr_assert_eq(mcs_region_check(fd, 0, &page_size), -ERANGE);
    close(fd);
}

Test(check, refuses_a_read_only_descriptor)
{
    uint64_t page_size;
    int fd = memfd(MIB, MFD_ALLOW_SEALING, F_SEAL_SHRINK), reader;
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    reader = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert_geq(reader, 0);
    cr_assert_eq(mcs_region_check(reader, MIB, &page_size), -EBADF);
    close(reader);
    close(fd);
}

Test(check, refuses_what_is_no_memfd)
{
    char path[] = "/var/tmp/mcshm-test-XXXXXX";
    uint64_t page_size;
    int pipe_ends[2], fd;

    fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    unlink(path);
    cr_assert_eq(ftruncate(fd, (off_t)MIB), 0);
    cr_assert_lt(mcs_region_check(fd, MIB, &page_size), 0);
    close(fd);
    cr_assert_eq(pipe2(pipe_ends, O_CLOEXEC), 0);
    cr_assert_eq(mcs_region_check(pipe_ends[0], MIB, &page_size), -EBADF);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    cr_assert_eq(mcs_region_check(fd, MIB, &page_size), -EBADF);
    close(fd);
    cr_assert_eq(mcs_region_check(-1, MIB, &page_size), -EBADF);
}
