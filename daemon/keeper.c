/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

static void take_extent(struct mcd_keeper *k, const char *name, int fd)
{
    struct mcd_kept *more =
        realloc(k->extents, (k->nextents + 1) * sizeof(struct mcd_kept)); /* at the start: few */

    if (more == NULL) { /* then it is lost, as any that is not there */
        close(fd);
        return;
    }
    k->extents = more;
    k->extents[k->nextents].fd = fd;
    snprintf(k->extents[k->nextents++].name, MCD_KEEPER_NAME_MAX, "%s", name);
}

void mcd_keeper_open(struct mcd_keeper *k)
{
    const char *store = getenv("FDSTORE"), *supervisor = getenv(MCD_KEEPER_SUPERVISOR);
    uint64_t usec = 0;
    char **names = NULL;
    int n;

    *k = (struct mcd_keeper){.ledger_fd = -1, .socket_fd = -1, .table_fd = -1};
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
        else if (strcmp(name, MCD_KEEPER_TABLE) == 0)
            take(&k->table_fd, SD_LISTEN_FDS_START + i);
        else if (strncmp(name, MCD_KEEPER_EXTENT, strlen(MCD_KEEPER_EXTENT)) == 0 &&
                 strlen(name) < MCD_KEEPER_NAME_MAX)
            take_extent(k, name, SD_LISTEN_FDS_START + i);
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
    if (k->table_fd >= 0)
        close(k->table_fd);
    for (unsigned i = 0; i < k->nextents; i++)
        if (k->extents[i].fd >= 0)
            close(k->extents[i].fd);
    free(k->extents);
    k->extents = NULL;
    k->nextents = 0;
    k->ledger_fd = k->socket_fd = k->table_fd = -1;
}

int mcd_ready_fd(const char *text)
{
    char *end;
    long fd = strtol(text, &end, 10);

    if (*end != '\0' || fd <= STDERR_FILENO || fd > INT_MAX || fcntl((int)fd, F_GETFD) < 0)
        return -1;
    return (int)fd;
}

void mcd_keeper_tell(const struct mcd_keeper *k, const char *state)
{
    if (k->tells && sd_notify(0, state) < 0)
        mcd_log_limited(MCD_LOG_WARNING, "who started this agent cannot be told '%.60s'", state);
}

/* One notification, with a descriptor or without (-1), without waiting. 0 or a negative errno. */
static int send_now(const char *text, int fd)
{
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = name == NULL ? 0 : strlen(name);
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } space;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
    struct msghdr mh = {.msg_name = &to, .msg_iov = &iov, .msg_iovlen = 1};
    int s, res = 0;

    if (n == 0 || n >= sizeof(to.sun_path))
        return -EINVAL;
    s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return -errno;
    memcpy(to.sun_path, name, n);
    if (name[0] == '@')
        to.sun_path[0] = '\0';
    mh.msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (name[0] != '@'));
    if (fd >= 0) {
        struct cmsghdr *c;

        mh.msg_control = space.bytes;
        mh.msg_controllen = sizeof(space.bytes);
        c = CMSG_FIRSTHDR(&mh);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    if (sendmsg(s, &mh, MSG_NOSIGNAL) < 0)
        res = -errno;
    close(s);
    return res;
}

void mcd_keeper_beat(const struct mcd_keeper *k)
{
    if (k->tells) /* a queue that is full says all, once somebody reads it */
        (void)send_now(MCD_KEEPER_BEAT, -1);
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

int mcd_keeper_add(const struct mcd_keeper *k, const char *name, int fd)
{
    char text[128];
    int res;

    if (!k->keeps)
        return 0;
    snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
    res = send_now(text, fd);
    return res == -ENOBUFS || res == -ENOMEM || res == -EMFILE ? -EAGAIN : res;
}

void mcd_keeper_remove(const struct mcd_keeper *k, const char *name)
{
    char text[128];

    if (!k->keeps)
        return;
    snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
    mcd_keeper_tell(k, text);
}

bool mcd_keeper_keeps(const struct mcd_keeper *k)
{
    return k->keeps && (k->supervisor == 0 || getppid() == k->supervisor);
}
