/* SPDX-License-Identifier: Apache-2.0 */
#include "rtt.h"

#include "clock.h"
#include "pin.h"
#include "proc.h"
#include "say.h"
#include "stats.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT 13338 /* in a namespace of ours nobody else has it */
#define HEADER 64u
#define PAGE 4096u
#define TRIPS 4000u
#define WARM 400u
#define ANSWER_MS 60000

struct side { /* for proc_start() */
    const struct hosts *hosts;
    unsigned host;
    int core;
};

static bool move_all(int fd, void *memory, size_t size, bool out)
{
    uint8_t *at = memory;

    while (size > 0) {
        ssize_t n = out ? send(fd, at, size, MSG_NOSIGNAL) : recv(fd, at, size, 0);

        if (n <= 0)
            return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

static int open_socket(const struct side *s, struct sockaddr_in *address)
{
    int one = 1, fd;

    if (s->core >= 0)
        pin_to(s->core);
    if (hosts_enter(s->hosts, s->host) != 0)
        return -1;
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT)};
    inet_pton(AF_INET, s->hosts->end[1][0].address, &address->sin_addr);
    return fd;
}

/* Answers until the other side closes. The first byte of a request says how much is wanted. */
static int answer_main(int fd, void *context)
{
    static uint8_t memory[HEADER + PAGE];
    struct sockaddr_in address;
    int listener = open_socket(context, &address), peer, one = 1;
    char byte = 'R';

    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(listener, 1) != 0)
        return say_error(-errno, "rtt: cannot listen: %m");
    if (proc_send(fd, &byte, 1) != 0)
        return -EPIPE;
    peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (peer < 0)
        return say_error(-errno, "rtt: accept: %m");
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    while (move_all(peer, memory, HEADER, false) &&
           move_all(peer, memory, HEADER + (memory[0] != 0 ? PAGE : 0), true))
        ;
    return 0;
}

static double trips(int fd, bool page)
{
    static uint32_t ns[TRIPS];
    static uint8_t memory[HEADER + PAGE];
    size_t answer = HEADER + (page ? PAGE : 0);

    for (unsigned i = 0; i < TRIPS + WARM; i++) {
        uint64_t before = clock_ns();

        memory[0] = page;
        if (!move_all(fd, memory, HEADER, true) || !move_all(fd, memory, answer, false))
            return -1;
        if (i >= WARM)
            ns[i - WARM] = (uint32_t)(clock_ns() - before);
    }
    return stats_percentile_u32(ns, TRIPS, 50) / 1e3;
}

static int ask_main(int fd, void *context)
{
    struct sockaddr_in address;
    struct rtt result;
    int s = open_socket(context, &address);

    if (s < 0 || connect(s, (struct sockaddr *)&address, sizeof(address)) != 0)
        return say_error(-errno, "rtt: cannot connect: %m");
    result.small_us = trips(s, false);
    result.page_us = trips(s, true);
    if (result.small_us < 0 || result.page_us < 0)
        return say_error(-EIO, "rtt: the connection broke");
    return proc_send(fd, &result, sizeof(result));
}

int rtt_measure(const struct hosts *h, const int cores[HOSTS], struct rtt *out)
{
    struct side ask = {.hosts = h, .host = 0, .core = cores[0]};
    struct side answer = {.hosts = h, .host = 1, .core = cores[1]};
    struct proc client = {.pid = 0}, server = {.pid = 0};
    char byte;
    int rc = proc_start(&server, "echo", answer_main, &answer);

    if (rc == 0)
        rc = proc_recv(server.fd, &byte, 1, ANSWER_MS);
    if (rc == 0)
        rc = proc_start(&client, "ping", ask_main, &ask);
    if (rc == 0)
        rc = proc_recv(client.fd, out, sizeof(*out), ANSWER_MS);
    proc_kill(&client);
    proc_kill(&server);
    return rc == 0 ? 0 : say_error(rc, "no bare round trip of TCP: %s", strerror(-rc));
}
