/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
