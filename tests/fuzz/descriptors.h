/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of kinds that clients pass, the right ones and others; -1: the system gave none. They are the caller's. */
#ifndef FUZZ_DESCRIPTORS_H
#define FUZZ_DESCRIPTORS_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static int sealed(unsigned size, int seals)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 && (ftruncate(fd, size) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int read_only(unsigned size)
{
    char path[64];
    int fd = sealed(size, F_SEAL_SHRINK), ro;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ro = open(path, O_RDONLY | O_CLOEXEC);
    close(fd);
    return ro;
}

static int one_of_a_pair(bool is_socket)
{
    int pair[2];

    if ((is_socket ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)
                   : pipe2(pair, O_CLOEXEC)) != 0)
        return -1;
    close(pair[1]);
    return pair[0];
}

#endif
