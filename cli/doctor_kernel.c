/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent asks of the kernel, tried out. A sandbox may refuse what the kernel has. */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/memfd.h>
#include <linux/membarrier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "doctor.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* asm-generic/mman-common.h since 5.14 */
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* asm-generic/socket.h since 6.5 */
#endif

static const char *release(void)
{
    static struct utsname u;

    return uname(&u) == 0 ? u.release : "?";
}

void doctor_check_memfd(struct doctor *d)
{
    int fd = memfd_create("mcshm-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        doctor_say(d, DOCTOR_BAD,
                   "allow memfd_create in the sandbox, or take a kernel from 4.14 on",
                   "memfd_create: %s (kernel %s)", strerror(errno), release());
    else if (ftruncate(fd, 4096) != 0 ||
             fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
        doctor_say(d, DOCTOR_BAD, "allow it in the sandbox", "memfds cannot be sealed: %s",
                   strerror(errno));
    else
        doctor_say(d, DOCTOR_OK, NULL, "memfds with seals work (kernel %s)", release());
    if (fd >= 0)
        close(fd);
}

void doctor_check_hugetlb(struct doctor *d)
{
    uint64_t size = doctor_setting_number(d, "pool.page_size", UINT64_C(2) << 20);
    bool require = strcmp(doctor_setting(d, "pool.pages"), "require") == 0;
    char text[32];
    int fd;

    if (strcmp(doctor_setting(d, "pool.pages"), "off") == 0)
        return;
    fd = memfd_create("mcshm-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB |
                                          (unsigned)__builtin_ctzll(size) << MFD_HUGE_SHIFT);
    doctor_size(size, text, sizeof(text));
    if (fd < 0)
        doctor_say(d, require ? DOCTOR_BAD : DOCTOR_WARN,
                   "a kernel with hugetlbfs and this page size; [pool] pages = off does without",
                   "no memfd of %s pages can be made: %s", text, strerror(errno));
    else
        doctor_say(d, DOCTOR_OK, NULL, "memfds of %s pages can be made", text);
    if (fd >= 0)
        close(fd);
}

void doctor_check_populate(struct doctor *d)
{
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED || madvise(p, 4096, MADV_POPULATE_WRITE) != 0)
        doctor_say(
            d, DOCTOR_BAD, "take a kernel from 5.14 on",
            "MADV_POPULATE_WRITE: %s (kernel %s): the agent cannot make sure that memory is there",
            strerror(errno), release());
    else
        doctor_say(d, DOCTOR_OK, NULL, "MADV_POPULATE_WRITE works");
    if (p != MAP_FAILED)
        munmap(p, 4096);
}

void doctor_check_membarrier(struct doctor *d)
{
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0)
        doctor_say(d, DOCTOR_NOTE, "allow membarrier in the sandbox",
                   "membarrier: %s: engines fence each of their turns instead, some ten ns",
                   strerror(errno));
    else
        doctor_say(d, DOCTOR_OK, NULL, "membarrier (private, expedited) works");
}

void doctor_check_uring(struct doctor *d)
{
    const char *peer = doctor_setting(d, "peer.listen"),
               *mooncake = doctor_setting(d, "mooncake.listen");
    bool needed = (peer[0] != '\0' && strcmp(peer, "off") != 0) ||
                  (mooncake[0] != '\0' && strcmp(mooncake, "off") != 0);
    struct io_uring_params p;
    uint64_t disabled = 0;
    int fd;

    memset(&p, 0, sizeof(p));
    fd = (int)syscall(SYS_io_uring_setup, 4, &p);
    if (fd >= 0) {
        close(fd);
        doctor_say(d, DOCTOR_OK, NULL, "io_uring works");
        return;
    }
    fd = errno;
    if (doctor_read_number(d, &disabled, "/proc/sys/kernel/io_uring_disabled") && disabled != 0)
        doctor_say(d, needed ? DOCTOR_BAD : DOCTOR_NOTE, "sysctl -w kernel.io_uring_disabled=0",
                   "kernel.io_uring_disabled is %llu: no transfers between hosts",
                   (unsigned long long)disabled);
    else
        doctor_say(d, needed ? DOCTOR_BAD : DOCTOR_NOTE,
                   "allow io_uring_setup, io_uring_enter and io_uring_register in the sandbox",
                   "io_uring: %s: no transfers between hosts", strerror(fd));
}

void doctor_check_pidfd(struct doctor *d)
{
    int ends[2] = {-1, -1}, fd = (int)syscall(SYS_pidfd_open, getpid(), 0), got = -1;
    socklen_t n = sizeof(got);

    if (fd < 0)
        doctor_say(d, DOCTOR_WARN, "take a kernel from 5.3 on, or allow pidfd_open in the sandbox",
                   "pidfd_open: %s: a client that forked is not known to be dead while its child "
                   "holds the "
                   "socket",
                   strerror(errno));
    else if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0 ||
             getsockopt(ends[0], SOL_SOCKET, SO_PEERPIDFD, &got, &n) != 0)
        doctor_say(d, DOCTOR_NOTE, "a kernel from 6.5 on has it",
                   "pidfd_open works, SO_PEERPIDFD does not: a pid that was given away again "
                   "between connect "
                   "and look would be taken for the client");
    else
        doctor_say(d, DOCTOR_OK, NULL, "pidfd_open and SO_PEERPIDFD work");
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    if (fd >= 0)
        close(fd);
    if (got >= 0)
        close(got);
}

void doctor_check_rights(struct doctor *d)
{
    doctor_say(d, DOCTOR_NOTE, NULL,
               "ptrace, process_vm_readv and CAP_SYS_PTRACE are not needed, whatever "
               "kernel.yama.ptrace_scope says; nor are CAP_IPC_LOCK and CAP_SYS_ADMIN");
}
