/* SPDX-License-Identifier: Apache-2.0 */
/* Who is told that the agent is alive may be stopped: the agent is not to wait for him. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/keeper.h"

TestSuite(keeper, .timeout = 30);

Test(keeper, beats_arrive_and_wait_for_nobody)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct mcd_keeper k;
    char name[64], folder[] = "/tmp/mcshm-keeper-XXXXXX", text[64];

    cr_assert_not_null(mkdtemp(folder));
    for (int kind = 0; kind < 2; kind++) { /* "@...", as of the supervisor; a path, as of systemd */
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        ssize_t n;

        if (kind == 0)
            snprintf(name, sizeof(name), "@mcshm-keeper-%d", (int)getpid());
        else
            snprintf(name, sizeof(name), "%s/s", folder);
        memset(at.sun_path, 0, sizeof(at.sun_path));
        memcpy(at.sun_path, name, strlen(name));
        if (kind == 0)
            at.sun_path[0] = '\0';
        cr_assert_eq(bind(fd, (struct sockaddr *)&at,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
                     0);
        setenv("NOTIFY_SOCKET", name, 1);
        mcd_keeper_open(&k);
        for (int i = 0; i < 1000; i++) /* more than any queue holds */
            mcd_keeper_beat(&k);
        n = recv(fd, text, sizeof(text), MSG_DONTWAIT);
        cr_assert(n == 10 && memcmp(text, "WATCHDOG=1", 10) == 0);
        close(fd);
        mcd_keeper_beat(&k); /* nobody is there */
        mcd_keeper_close(&k);
    }
    unlink(name);
    rmdir(folder);
}

/* The descriptor that came with a notification; -1: none. */
static int take(int fd, char *text, size_t size)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } space;
    struct iovec iov = {.iov_base = text, .iov_len = size - 1};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = space.bytes,
                        .msg_controllen = sizeof(space.bytes)};
    ssize_t n = recvmsg(fd, &mh, MSG_DONTWAIT);
    int taken = -1;

    cr_assert_gt(n, 0);
    text[n] = '\0';
    if (CMSG_FIRSTHDR(&mh) != NULL)
        memcpy(&taken, CMSG_DATA(CMSG_FIRSTHDR(&mh)), sizeof(taken));
    return taken;
}

Test(keeper, an_extent_is_kept_without_waiting_for_who_keeps)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), pipes[2], taken, res = 0, n = 0;
    struct mcd_keeper k;
    char name[64], text[128];

    snprintf(name, sizeof(name), "@mcshm-keeper-%d", (int)getpid());
    memcpy(at.sun_path + 1, name + 1, strlen(name) - 1);
    cr_assert_eq(bind(fd, (struct sockaddr *)&at,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
                 0);
    setenv("NOTIFY_SOCKET", name, 1);
    unsetenv("FDSTORE");
    mcd_keeper_open(&k);
    cr_assert_eq(pipe(pipes), 0);
    cr_assert_eq(mcd_keeper_add(&k, "mcshm-object-1", pipes[1]), 0); /* nobody keeps */
    cr_assert_lt(recv(fd, text, sizeof(text), MSG_DONTWAIT), 0);
    mcd_keeper_close(&k);
    setenv("FDSTORE", "16", 1);
    mcd_keeper_open(&k);
    cr_assert_eq(mcd_keeper_add(&k, "mcshm-object-7", pipes[1]), 0);
    taken = take(fd, text, sizeof(text));
    cr_assert_str_eq(text, "FDSTORE=1\nFDPOLL=0\nFDNAME=mcshm-object-7");
    cr_assert_eq(write(taken, "x", 1), 1);
    cr_assert_eq(read(pipes[0], text, 1), 1); /* the very file */
    close(taken);
    while (res == 0 && n++ < 100000) /* nobody reads */
        res = mcd_keeper_add(&k, "mcshm-object-8", pipes[1]);
    cr_assert_eq(res, -EAGAIN);
    taken = take(fd, text, sizeof(text));
    close(taken);
    mcd_keeper_remove(&k, "mcshm-object-7"); /* there is room for it */
    mcd_keeper_close(&k);
    close(fd);
}
