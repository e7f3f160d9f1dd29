/* SPDX-License-Identifier: Apache-2.0 */
#include "hosts.h"

#include "child.h"
#include "clock.h"
#include "proc.h"
#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONGESTION "/proc/sys/net/ipv4/tcp_congestion_control"
#define COMMAND_MS 20000
#define READY_MS 20000
#define CARRIER_MS 10000

int hosts_enter(const struct hosts *h, unsigned host)
{
    int fd = host < HOSTS ? h->netns[host] : h->home;

    if (fd > 0 && setns(fd, CLONE_NEWNET) != 0)
        return say_error(-errno, "cannot enter network namespace %u: %m", host);
    return 0;
}

/* A process that makes a namespace and stays in it until it has been given its links. */
static int holder_main(int fd, void *context)
{
    char byte = 'R';
    int rc;

    (void)context;
    if (unshare(CLONE_NEWNET) != 0)
        return say_error(-errno, "cannot make a network namespace: %m");
    rc = proc_send(fd, &byte, 1);
    if (rc == 0)
        rc = proc_recv(fd, &byte, 1, -1);
    return rc == -EPIPE ? 0 : rc;
}

static int make(struct hosts *h, unsigned host, struct proc *holder)
{
    char path[64], byte;
    int rc = proc_start(holder, "namespace", holder_main, NULL);

    if (rc == 0)
        rc = proc_recv(holder->fd, &byte, 1, READY_MS);
    if (rc != 0)
        return rc;
    snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)holder->pid);
    h->netns[host] = open(path, O_RDONLY | O_CLOEXEC);
    return h->netns[host] >= 0 ? 0 : say_error(-errno, "%s: %m", path);
}

/* ip or tc inside a host; words are parted by single blanks. output: what it prints. */
static int ask(const struct hosts *h, unsigned host, const char *line, char *output, size_t size)
{
    char words[256], *argv[32], *rest;
    struct child_options o = {
        .argv = argv, .netns = h->netns[host], .output = true, .errors = true};
    struct child c;
    size_t used = 0, n = 0;
    int rc;

    snprintf(words, sizeof(words), "%s", line);
    for (char *word = strtok_r(words, " ", &rest); word != NULL && n < 31;
         word = strtok_r(NULL, " ", &rest))
        argv[n++] = word;
    argv[n] = NULL;
    rc = child_start(&o, &c);
    if (rc != 0)
        return say_error(rc, "cannot run %s: %s", line, strerror(-rc));
    child_read(&c, NULL, COMMAND_MS, output, size, &used);
    rc = child_end(&c, 0, COMMAND_MS, NULL);
    if (rc == 0)
        return 0;
    output[strcspn(output, "\n")] = '\0';
    if (rc == 127)
        return say_error(-ENOENT, "there is no %s in PATH: install iproute2", argv[0]);
    return say_error(-EIO, "%s: %s", line, output);
}

static int command(const struct hosts *h, unsigned host, const char *line)
{
    char output[512];

    return ask(h, host, line, output, sizeof(output));
}

static int set_congestion(const struct hosts *h, unsigned host, const char *name)
{
    int rc = hosts_enter(h, host), fd;

    if (rc != 0)
        return rc;
    fd = open(CONGESTION, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, name, strlen(name)) < 0)
        rc = say_error(-errno, "--congestion %s: %m; see tcp_available_congestion_control", name);
    if (fd >= 0)
        close(fd);
    hosts_enter(h, HOSTS);
    return rc;
}

static int make_rail(struct hosts *h, unsigned rail, int other)
{
    char line[256];
    int rc;

    snprintf(line, sizeof(line), "ip link add name rail%u type veth peer name rail%u netns %d",
             rail, rail, other);
    rc = command(h, 0, line);
    for (unsigned host = 0; rc == 0 && host < HOSTS; host++) {
        struct hosts_end *end = &h->end[host][rail];

        *end = (struct hosts_end){.device = ""};
        snprintf(end->address, sizeof(end->address), "10.200.%u.%u", rail, host + 1);
        snprintf(end->link, sizeof(end->link), "rail%u", rail);
        snprintf(line, sizeof(line), "ip address add %s/24 dev %s", end->address, end->link);
        rc = command(h, host, line);
        snprintf(line, sizeof(line), "ip link set rail%u up", rail);
        if (rc == 0)
            rc = command(h, host, line);
    }
    return rc;
}

/* A link that was switched on has its carrier a little later: up to a second. */
static int await_carrier(const struct hosts *h, unsigned host, unsigned rail)
{
    struct ifreq r = {.ifr_flags = 0};
    uint64_t last = clock_ns() + UINT64_C(1000000) * CARRIER_MS;
    int rc = hosts_enter(h, host), fd;

    if (rc != 0)
        return rc;
    snprintf(r.ifr_name, sizeof(r.ifr_name), "rail%u", rail);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    hosts_enter(h, HOSTS); /* the socket stays in there */
    while (fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &r) == 0 && (r.ifr_flags & IFF_RUNNING) == 0 &&
           clock_ns() < last)
        poll(NULL, 0, 1);
    if (fd >= 0)
        close(fd);
    return (r.ifr_flags & IFF_RUNNING) != 0
               ? 0
               : say_error(-ETIMEDOUT, "%s of host %u has no carrier after %d s", r.ifr_name, host,
                           CARRIER_MS / 1000);
}

int hosts_open(struct hosts *h, unsigned rails, const char *congestion)
{
    struct proc holders[HOSTS] = {{.pid = 0}, {.pid = 0}};
    int rc = 0;

    h->rails = rails;
    h->netns[0] = h->netns[1] = -1;
    h->home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (geteuid() != 0 || h->home < 0)
        rc = say_error(-EPERM, "network namespaces take root: run as root, or name a real host "
                               "with --peer");
    for (unsigned host = 0; rc == 0 && host < HOSTS; host++)
        rc = make(h, host, &holders[host]);
    for (unsigned host = 0; rc == 0 && host < HOSTS; host++) {
        rc = command(h, host, "ip link set lo up");
        if (rc == 0)
            rc = set_congestion(h, host, congestion);
    }
    for (unsigned rail = 0; rc == 0 && rail < rails; rail++)
        rc = make_rail(h, rail, (int)holders[1].pid);
    for (unsigned i = 0; rc == 0 && i < HOSTS * rails; i++)
        rc = await_carrier(h, i % HOSTS, i / HOSTS);
    for (unsigned host = 0; host < HOSTS; host++)
        proc_stop(&holders[host]);
    if (rc != 0)
        hosts_close(h);
    return rc;
}

void hosts_close(struct hosts *h)
{
    for (unsigned host = 0; host < HOSTS; host++) {
        if (h->netns[host] > 0)
            close(h->netns[host]);
        h->netns[host] = -1;
    }
    if (h->home > 0)
        close(h->home);
    h->home = -1;
}

int hosts_link(const struct hosts *h, unsigned rail, bool up)
{
    struct ifreq r = {.ifr_flags = 0};
    int rc = hosts_enter(h, 0), fd;

    if (rc != 0)
        return rc;
    snprintf(r.ifr_name, sizeof(r.ifr_name), "%.*s", IFNAMSIZ - 1, h->end[0][rail].link);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    hosts_enter(h, HOSTS); /* the socket stays in there */
    if (fd < 0)
        return say_error(-errno, "no socket: %m");
    if (ioctl(fd, SIOCGIFFLAGS, &r) == 0) {
        r.ifr_flags = (short)(up ? r.ifr_flags | IFF_UP : r.ifr_flags & ~IFF_UP);
        rc = ioctl(fd, SIOCSIFFLAGS, &r);
    } else {
        rc = -1;
    }
    if (rc != 0)
        rc = say_error(-errno, "cannot take %s %s: %m", r.ifr_name, up ? "up" : "down");
    close(fd);
    return rc;
}

int hosts_get_routes(const struct hosts *h, unsigned rail, struct hosts_routes *out)
{
    char line[128];

    snprintf(out->link, sizeof(out->link), "%s", h->end[0][rail].link);
    snprintf(line, sizeof(line), "ip -4 route show table all type unicast dev %s", out->link);
    return ask(h, 0, line, out->text, sizeof(out->text));
}

int hosts_put_routes(const struct hosts *h, const struct hosts_routes *r)
{
    char text[sizeof(r->text)], *rest, line[512];
    int rc = 0;

    snprintf(text, sizeof(text), "%s", r->text);
    for (char *route = strtok_r(text, "\n", &rest); rc == 0 && route != NULL;
         route = strtok_r(NULL, "\n", &rest)) {
        snprintf(line, sizeof(line), "ip -4 route replace %s dev %s", route, r->link);
        rc = command(h, 0, line);
    }
    return rc;
}

int hosts_limit(const struct hosts *h, unsigned rail, double bits)
{
    char line[128];
    int rc = 0;

    for (unsigned host = 0; rc == 0 && host < HOSTS; host++) {
        if (bits > 0)
            snprintf(line, sizeof(line),
                     "tc qdisc replace dev rail%u root tbf rate %.0fbit burst 256kb latency 10ms",
                     rail, bits);
        else
            snprintf(line, sizeof(line), "tc qdisc del dev rail%u root", rail);
        rc = command(h, host, line);
    }
    return rc;
}
