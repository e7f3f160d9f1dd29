/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "log.h"

static void take(int *place, int fd)
{
    if (*place >= 0)
        close(*place); /* of two the later one */
    *place = fd;
}

void mcd_keeper_open(struct mcd_keeper *k)
{
    const char *store = getenv("FDSTORE"), *supervisor = getenv(MCD_KEEPER_SUPERVISOR);
    uint64_t usec = 0;
    char **names = NULL;
    int n;

    *k = (struct mcd_keeper){.ledger_fd = -1, .socket_fd = -1};
    k->tells = getenv("NOTIFY_SOCKET") != NULL;
    k->keeps = k->tells && store != NULL && atoi(store) > 0;
    if (supervisor != NULL)
        k->supervisor = (pid_t)atoi(supervisor);
    if (sd_watchdog_enabled(0, &usec) > 0)
        k->watchdog_ns = usec * 1000;
    n = sd_listen_fds_with_names(1, &names);
    for (int i = 0; i < n; i++) {
        const char *name = names != NULL && names[i] != NULL ? names[i] : "";

        if (strcmp(name, MCD_KEEPER_LEDGER) == 0)
            take(&k->ledger_fd, SD_LISTEN_FDS_START + i);
        else if (strcmp(name, MCD_KEEPER_SOCKET) == 0)
            take(&k->socket_fd, SD_LISTEN_FDS_START + i);
        else
            close(SD_LISTEN_FDS_START + i);
        if (names != NULL)
            free(names[i]);
    }
    free(names);
}

void mcd_keeper_close(struct mcd_keeper *k)
{
    if (k->ledger_fd >= 0)
        close(k->ledger_fd);
    if (k->socket_fd >= 0)
        close(k->socket_fd);
    k->ledger_fd = k->socket_fd = -1;
}

void mcd_keeper_tell(const struct mcd_keeper *k, const char *state)
{
    if (k->tells && sd_notify(0, state) < 0)
        mcd_log_limited(MCD_LOG_WARNING, "who started this agent cannot be told '%.60s'", state);
}

void mcd_keeper_beat(const struct mcd_keeper *k)
{
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = name == NULL ? 0 : strlen(name);
    int fd;

    if (!k->tells || n == 0 || n >= sizeof(to.sun_path))
        return;
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return;
    memcpy(to.sun_path, name, n);
    if (name[0] == '@')
        to.sun_path[0] = '\0';
    /* a queue that is full says all, once somebody reads it */
    (void)!sendto(fd, MCD_KEEPER_BEAT, strlen(MCD_KEEPER_BEAT), MSG_NOSIGNAL,
                  (const struct sockaddr *)&to,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (name[0] != '@')));
    close(fd);
}

void mcd_keeper_store(const struct mcd_keeper *k, const char *name, int fd)
{
    char text[128];

    if (!k->keeps)
        return;
    snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
    mcd_keeper_tell(k, text);
    snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
    if (sd_pid_notify_with_fds(0, 0, text, &fd, 1) < 0)
        mcd_warning("%s cannot be given into keeping: clients will not survive this agent", name);
}

bool mcd_keeper_keeps(const struct mcd_keeper *k)
{
    return k->keeps && (k->supervisor == 0 || getppid() == k->supervisor);
}
