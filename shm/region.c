/* SPDX-License-Identifier: Apache-2.0 */
#include "region.h"
#include "failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* linux/memfd.h since 6.3 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* asm-generic/mman-common.h since 5.14 */
#endif
#ifndef MPOL_BIND
#define MPOL_BIND 2 /* linux/mempolicy.h */
#endif
#ifndef HUGETLBFS_MAGIC
#define HUGETLBFS_MAGIC 0x958458f6 /* linux/magic.h */
#endif
#ifndef TMPFS_MAGIC
#define TMPFS_MAGIC 0x01021994 /* linux/magic.h */
#endif

#define POPULATE_CHUNK (UINT64_C(64) << 20)
#define UNMAP_CHUNK (UINT64_C(64) << 20)

static int open_memfd(const char *name, uint64_t page_size)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd;

    if (page_size > 4096)
        flags |= MFD_HUGETLB | (unsigned)__builtin_ctzll(page_size) << MFD_HUGE_SHIFT;
    fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, flags); /* a kernel before 6.3 */
    return fd < 0 ? -errno : fd;
}

static int populate(void *mem, uint64_t size)
{
    for (uint64_t at = 0; at < size; at += POPULATE_CHUNK) {
        uint64_t n = size - at < POPULATE_CHUNK ? size - at : POPULATE_CHUNK;

        while (madvise((char *)mem + at, n, MADV_POPULATE_WRITE) != 0) {
            if (errno == EINTR || errno == EAGAIN)
                continue;
            /* a failed hugepage allocation is reported as a would-be SIGBUS */
            return errno == EFAULT || errno == EHWPOISON ? -ENOMEM : -errno;
        }
    }
    return 0;
}

int mcs_region_create(const char *name, uint64_t size, uint64_t page_size, int node, void *hint,
                      int *fd_out, void **mem_out)
{
    void *mem = NULL;
    int fd, res;

    if (size == 0 || size % (page_size > 4096 ? page_size : 4096) != 0)
        return -EINVAL;
    fd = open_memfd(name, page_size);
    if (fd < 0)
        return fd;
    res = MCS_FAIL(region_memfd);
    if (res != 0)
        goto error_close;
    do
        res = ftruncate(fd, (off_t)size) == 0 ? 0 : -errno;
    while (res == -EINTR);
    if (res != 0)
        goto error_close;
    res = mcs_region_map(fd, size, true, hint, &mem);
    if (res != 0)
        goto error_close;
    res = MCS_FAIL(region_mapped);
    if (res != 0)
        goto error_unmap;
    if (node >= 0) {
        unsigned long mask[16] = {0};

        if (node >= (int)(8 * sizeof(mask))) {
            res = -EINVAL;
            goto error_unmap;
        }
        mask[(unsigned)node / (8 * sizeof(long))] |= 1ul << ((unsigned)node % (8 * sizeof(long)));
        if (syscall(SYS_mbind, mem, size, MPOL_BIND, mask, 8 * sizeof(mask), 0) != 0) {
            res = -errno;
            goto error_unmap;
        }
    }
    if (page_size <= 4096)
        (void)madvise(mem, size, MADV_HUGEPAGE); /* a hint; ordinary pages will do */
    res = populate(mem, size);
    if (res == 0)
        res = MCS_FAIL(region_populated);
    if (res != 0)
        goto error_unmap;
    /* read-only grants reopen the memfd: only the agent's own user may do that */
    if (fchmod(fd, 0400) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
        res = -errno;
        goto error_unmap;
    }
    *fd_out = fd;
    *mem_out = mem;
    return 0;

error_unmap:
    munmap(mem, size);
error_close:
    close(fd);
    return res;
}

int mcs_region_map(int fd, uint64_t size, bool writable, void *hint, void **mem_out)
{
    int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *mem = MAP_FAILED;

#if defined(__SANITIZE_THREAD__)
    hint = NULL; /* TSan has other plans for the address space */
#endif
    if (hint != NULL)
        mem = mmap(hint, size, prot, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    if (hint != NULL && mem != MAP_FAILED && mem != hint) { /* a kernel before 4.17 */
        munmap(mem, size);
        mem = MAP_FAILED;
    }
    if (mem == MAP_FAILED)
        mem = mmap(NULL, size, prot, MAP_SHARED, fd, 0);
    if (mem == MAP_FAILED)
        return -errno;
    *mem_out = mem;
    return 0;
}

void mcs_region_unmap(void *mem, uint64_t size)
{
    for (uint64_t at = 0; at < size; at += UNMAP_CHUNK) {
        uint64_t n = size - at < UNMAP_CHUNK ? size - at : UNMAP_CHUNK;

        if (munmap((char *)mem + at, n) != 0) { /* pages larger than a chunk */
            munmap((char *)mem + at, size - at);
            break;
        }
        if (n == UNMAP_CHUNK)
            sched_yield();
    }
}

int mcs_region_check(int fd, uint64_t size, uint64_t *page_size)
{
    struct statfs fs;
    struct stat st;
    int flags, seals;

    /* First: only memfds and their like answer it, and of another file not even the size is asked,
     * since whoever serves its file system may keep the asker waiting. */
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return -EBADF;
    flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) != O_RDWR || fstat(fd, &st) != 0 || fstatfs(fd, &fs) != 0)
        return -EBADF;
    if (!S_ISREG(st.st_mode) || (fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC))
        return -EBADF;
    if ((seals & F_SEAL_SHRINK) == 0)
        return -EPERM;
    if (st.st_size <= 0 || (uint64_t)st.st_size < size)
        return -ERANGE;
    *page_size = (uint64_t)fs.f_bsize;
    return 0;
}
