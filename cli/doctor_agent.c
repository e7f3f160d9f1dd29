/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "doctor.h"

#define SILENT_NS UINT64_C(3000000000)
#define CONNECT_MS 3000u

/* "rwxr-x--- of root:mcshm" */
static void describe(const struct stat *st, char *out, size_t size)
{
    const struct passwd *u = getpwuid(st->st_uid);
    const struct group *g = getgrgid(st->st_gid);

    if (u != NULL && g != NULL)
        snprintf(out, size, "mode %04o of %s:%s", st->st_mode & 07777, u->pw_name, g->gr_name);
    else
        snprintf(out, size, "mode %04o of %u:%u", st->st_mode & 07777, st->st_uid, st->st_gid);
}

/* Does a folder on the way keep this user out? */
static bool folders_open(struct doctor *d)
{
    char path[256], what[160], remedy[400];
    struct stat st;

    for (size_t i = 1; d->socket[i] != '\0'; i++) {
        if (d->socket[i] != '/')
            continue;
        snprintf(path, sizeof(path), "%.*s", (int)i, d->socket);
        if (stat(path, &st) != 0) {
            doctor_say(d, errno == ENOENT ? DOCTOR_NOTE : DOCTOR_BAD,
                       errno == ENOENT
                           ? "the agent makes the last folder of its socket's path at its start; "
                             "in a container, mount it"
                           : NULL,
                       "the folder %s: %s", path, strerror(errno));
            return false;
        }
        if (!S_ISDIR(st.st_mode)) {
            doctor_say(d, DOCTOR_BAD, "give the right path with --socket or [agent] socket",
                       "%s is no folder", path);
            return false;
        }
        if (access(path, X_OK) != 0) {
            describe(&st, what, sizeof(what));
            snprintf(remedy, sizeof(remedy),
                     "chmod o+x %s, or put this user into the folder's group and log in anew",
                     path);
            doctor_say(d, DOCTOR_BAD, remedy, "the folder %s keeps user %u out: %s", path,
                       geteuid(), what);
            return false;
        }
    }
    return true;
}

void doctor_check_path(struct doctor *d)
{
    char what[160], remedy[256];
    const struct group *g;
    struct stat st;

    if (strlen(d->socket) > 107) {
        doctor_say(d, DOCTOR_BAD, "choose a shorter path", "%s has more than 107 bytes", d->socket);
        return;
    }
    if (!folders_open(d))
        return;
    if (stat(d->socket, &st) != 0) {
        doctor_say(d, DOCTOR_NOTE, NULL, "%s: %s", d->socket, strerror(errno));
        return;
    }
    describe(&st, what, sizeof(what));
    if (!S_ISSOCK(st.st_mode)) {
        doctor_say(d, DOCTOR_BAD, "move it away: the agent does not replace it", "%s is no socket",
                   d->socket);
        return;
    }
    if (access(d->socket, W_OK) != 0) {
        g = getgrgid(st.st_gid);
        snprintf(remedy, sizeof(remedy),
                 "usermod -aG %s USER and log in anew, or set [agent] socket_mode",
                 g != NULL ? g->gr_name : "GROUP");
        doctor_say(d, DOCTOR_BAD, remedy, "user %u may not connect to %s: %s", geteuid(), d->socket,
                   what);
        return;
    }
    doctor_say(d, DOCTOR_OK, NULL, "%s, %s", d->socket, what);
}

/* What connect() says: 0 or an errno. Does not wait. */
static int try_connect(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), res;

    if (fd < 0)
        return errno;
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%.107s", path);
    res = connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0 ? 0 : errno;
    close(fd);
    return res;
}

/* Is the agent's lock held? 1 yes, 0 no, -1: there is none, or it is not ours to look at. */
static int lock_held(const char *socket)
{
    char path[300];
    int fd, held;

    snprintf(path, sizeof(path), "%s.lock", socket);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return held;
}

static uint64_t silence(mcshm_monitor *m)
{
    const mcshm_monitor_view *v;

    return m != NULL && mcshm_monitor_read(m, &v) == MCSHM_OK ? v->agent.silent_ns : 0;
}

static void ask(struct doctor *d, mcshm_monitor *m)
{
    mcshm_options o;
    mcshm_status status;
    mcshm_info info;
    mcshm *c = NULL;

    mcshm_options_init(&o);
    o.socket_path = d->socket;
    o.name = "mcshm";
    o.connect_timeout_ms = CONNECT_MS;
    o.reconnect_ms = 0; /* nothing to come back for */
    status = mcshm_connect(&o, &c);
    if (status == MCSHM_OK)
        status = mcshm_get_info(c, &info);
    if (status == MCSHM_VERSION_MISMATCH)
        doctor_say(d, DOCTOR_BAD,
                   "install tools, libmcshm and mcshmd of one version, and restart the agent", "%s",
                   mcshm_last_error(NULL));
    else if (status != MCSHM_OK && silence(m) > SILENT_NS)
        doctor_say(
            d, DOCTOR_BAD,
            "`mcshm top` shows what it does; gdb -p PID for a stack; then kill -9 and start anew",
            "the agent (pid %u) has given no sign of life for %.0f s", d->agent_pid,
            (double)silence(m) / 1e9);
    else if (status != MCSHM_OK)
        doctor_say(d, DOCTOR_BAD, "its log says more; `mcshm top` shows whether it does anything",
                   "cannot open a session: %s", mcshm_last_error(NULL));
    else if (strncmp(info.agent_version, mcshm_version(), sizeof(info.agent_version)) != 0)
        doctor_say(d, DOCTOR_WARN,
                   "restart the agent after an upgrade, or install the tools that belong to it",
                   "the agent has version %.31s, this program %s", info.agent_version,
                   mcshm_version());
    else
        doctor_say(d, DOCTOR_OK, NULL, "version %.31s answers, pid %u", info.agent_version,
                   d->agent_pid);
    mcshm_close(c);
}

static bool is_agent(const struct doctor *d, uint32_t pid)
{
    char comm[64];

    return doctor_read(d, comm, sizeof(comm), "/proc/%u/comm", pid) && strcmp(comm, "mcshmd") == 0;
}

void doctor_check_alive(struct doctor *d)
{
    const mcshm_monitor_view *v;
    mcshm_monitor *m = NULL;
    bool counters = false;
    int res = strlen(d->socket) > 107 ? ENAMETOOLONG : try_connect(d->socket);
    int held = lock_held(d->socket);

    if (mcshm_monitor_open(d->socket, &m) == MCSHM_OK && mcshm_monitor_read(m, &v) == MCSHM_OK) {
        counters = true;
        if (is_agent(d, v->agent.pid))
            d->agent_pid = v->agent.pid;
        if (v->agent.copied && res == 0)
            doctor_say(d, DOCTOR_NOTE, "keep the socket in /run or another tmpfs",
                       "the socket's folder is on a disk: `mcshm top` gets counters once a second, "
                       "and none "
                       "while the agent's control thread hangs");
    }
    if (res == 0 || res == EAGAIN)
        ask(d, m);
    else if (res == ECONNREFUSED || (held == 0 && (counters || res == 0)))
        doctor_say(
            d, DOCTOR_WARN,
            "start the agent: it replaces what a dead one has left (socket, counters); clients "
            "connect again",
            "nobody answers at %s: an agent died and left its %s", d->socket,
            res == ECONNREFUSED ? "socket" : "counters");
    else if (held == 1)
        doctor_say(d, DOCTOR_WARN, "stop it and start it again",
                   "an agent holds %s.lock, but its socket is gone: somebody removed the file",
                   d->socket);
    else if (res == ENOENT)
        doctor_say(d, DOCTOR_NOTE, "systemctl start mcshmd", "no agent serves %s", d->socket);
    else
        doctor_say(d, DOCTOR_NOTE, NULL, "cannot connect to %s: %s", d->socket, strerror(res));
    mcshm_monitor_close(m);
}

void doctor_check_others(struct doctor *d)
{
    char list[200] = "", path[512];
    unsigned n = 0;
    size_t k = 0;
    struct dirent *e;
    DIR *dir;

    snprintf(path, sizeof(path), "%s/proc", d->root);
    dir = opendir(path);
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        uint32_t pid = (uint32_t)strtoul(e->d_name, NULL, 10);

        if (pid == 0 || pid == d->agent_pid || !is_agent(d, pid))
            continue;
        n++;
        if (k < sizeof(list))
            k += (size_t)snprintf(list + k, sizeof(list) - k, " %u", pid);
    }
    if (dir != NULL)
        closedir(dir);
    if (n == 0)
        doctor_say(d, DOCTOR_OK, NULL, "none");
    else
        doctor_say(d, DOCTOR_NOTE,
                   "one agent a host is enough; each needs cores and hugepages of its own",
                   "%u more mcshmd run%s here, pid%s", n, n == 1 ? "s" : "", list);
}
