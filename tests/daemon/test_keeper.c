/* SPDX-License-Identifier: Apache-2.0 */
/* Who is told that the agent is alive may be stopped: the agent is not to wait for him. */
#include <criterion/criterion.h>
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
