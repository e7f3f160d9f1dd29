/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include "clock.h"
#include "pin.h"
#include "proc.h"
#include "say.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT 13339 /* in a namespace of ours nobody else has it */
#define PIECE (UINT64_C(1) << 20)
#define ANSWER_MS 60000

struct side { /* for proc_start() */
    const struct hosts *hosts;
    unsigned host;
    int core;
    uint64_t span;
    double seconds;
};

struct result { /* of one side */
    double seconds, cpu;
    uint64_t bytes;
};

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int open_socket(const struct side *s, struct sockaddr_in *address, uint8_t **memory)
{
    int one = 1, fd;

    if (s->core >= 0)
        pin_to(s->core);
    *memory = mmap(NULL, s->span, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (*memory == MAP_FAILED || hosts_enter(s->hosts, s->host) != 0)
        return -1;
    memset(*memory, 1, s->span);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT)};
    inet_pton(AF_INET, s->hosts->end[1][0].address, &address->sin_addr);
    return fd;
}

static int read_main(int fd, void *context)
{
    const struct side *s = context;
    struct sockaddr_in address;
    struct result r = {.bytes = 0};
    uint8_t *memory;
    int listener = open_socket(s, &address, &memory), peer;
    uint64_t at = 0;
    double cpu;
    char byte = 'R';

    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(listener, 1) != 0)
        return say_error(-errno, "stream: cannot listen: %m");
    if (proc_send(fd, &byte, 1) != 0)
        return -EPIPE;
    peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (peer < 0)
        return say_error(-errno, "stream: accept: %m");
    cpu = cpu_seconds();
    for (;;) {
        ssize_t n = recv(peer, memory + at, PIECE - at % PIECE, 0);

        if (n <= 0)
            break;
        r.bytes += (uint64_t)n;
        at = (at + (uint64_t)n) % s->span;
    }
    r.cpu = cpu_seconds() - cpu;
    return proc_send(fd, &r, sizeof(r));
}

static int write_main(int fd, void *context)
{
    const struct side *s = context;
    struct sockaddr_in address;
    struct result r = {.bytes = 0};
    uint8_t *memory;
    int out = open_socket(s, &address, &memory);
    uint64_t at = 0, start, end;
    double cpu;

    if (out < 0 || connect(out, (struct sockaddr *)&address, sizeof(address)) != 0)
        return say_error(-errno, "stream: cannot connect: %m");
    cpu = cpu_seconds();
    start = clock_ns();
    end = start + (uint64_t)(s->seconds * 1e9);
    while (clock_ns() < end) {
        ssize_t n = send(out, memory + at, PIECE, MSG_NOSIGNAL);

        if (n != (ssize_t)PIECE)
            return say_error(-EIO, "stream: a send of %llu bytes came to %zd",
                             (unsigned long long)PIECE, n);
        r.bytes += PIECE;
        at = (at + PIECE) % s->span;
    }
    r.seconds = (double)(clock_ns() - start) / 1e9;
    r.cpu = cpu_seconds() - cpu;
    close(out);
    return proc_send(fd, &r, sizeof(r));
}

int stream_measure(const struct hosts *h, const int cores[HOSTS], uint64_t span, double seconds,
                   struct stream *out)
{
    struct side writer = {
        .hosts = h, .host = 0, .core = cores[0], .span = span, .seconds = seconds};
    struct side reader = {.hosts = h, .host = 1, .core = cores[1], .span = span};
    struct proc client = {.pid = 0}, server = {.pid = 0};
    struct result sent = {.bytes = 0}, received = {.bytes = 0};
    char byte;
    int rc = proc_start(&server, "stream reader", read_main, &reader);

    if (rc == 0)
        rc = proc_recv(server.fd, &byte, 1, ANSWER_MS);
    if (rc == 0)
        rc = proc_start(&client, "stream writer", write_main, &writer);
    if (rc == 0)
        rc = proc_recv(client.fd, &sent, sizeof(sent), ANSWER_MS);
    if (rc == 0)
        rc = proc_recv(server.fd, &received, sizeof(received), ANSWER_MS);
    if (rc == 0 && (sent.bytes == 0 || received.bytes != sent.bytes))
        rc = say_error(-EIO, "stream: not all that was sent has come");
    if (rc == 0)
        *out =
            (struct stream){.gbps = (double)sent.bytes / sent.seconds / 1e9,
                            .cpu_s_per_gb = (sent.cpu + received.cpu) / ((double)sent.bytes / 1e9)};
    if (client.pid != 0)
        proc_stop(&client);
    if (server.pid != 0)
        proc_kill(&server);
    return rc;
}
