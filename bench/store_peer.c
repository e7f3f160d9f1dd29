/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis-server and memcached over their Unix sockets: one connection, requests pipelined in windows of a MiB, values
 * received into the place where they are wanted.
 */
#include "store.h"

#include "child.h"
#include "cleanup.h"
#include "clock.h"
#include "say.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define START_MS 20000
#define WINDOW (1u << 20)
#define WINDOW_MAX 512u
#define LINE_MAX 128u
#define INPUT (256u << 10)

const char *const store_peer_names[STORE_PEERS] = {"redis", "memcached"};
static const char *const programs[STORE_PEERS] = {"redis-server", "memcached"};

struct peer {
    enum store_peer_kind kind;
    struct child child;
    int fd;
    uint8_t *buffer;
    size_t from, to; /* of what lies in input */
    char input[INPUT];
    char lines[WINDOW_MAX][LINE_MAX];
    struct iovec parts[3 * WINDOW_MAX];
};

/* ---- requests ------------------------------------------------------------------------------- */

static int head(const struct peer *p, enum store_op op, uint64_t i, uint64_t size, char *out)
{
    char key[STORE_KEY_SIZE + 1] = "";
    unsigned long long n = size;

    store_key(i, key);
    if (p->kind == STORE_REDIS) {
        static const char *const names[STORE_OPS] = {[STORE_GET] = "$3\r\nGET",
                                                     [STORE_EXIST] = "$6\r\nEXISTS",
                                                     [STORE_REMOVE] = "$3\r\nDEL"};

        if (op == STORE_PUT)
            return snprintf(out, LINE_MAX, "*3\r\n$3\r\nSET\r\n$%u\r\n%s\r\n$%llu\r\n",
                            STORE_KEY_SIZE, key, n);
        return snprintf(out, LINE_MAX, "*2\r\n%s\r\n$%u\r\n%s\r\n", names[op], STORE_KEY_SIZE, key);
    }
    if (op == STORE_PUT)
        return snprintf(out, LINE_MAX, "set %s 0 0 %llu\r\n", key, n);
    return snprintf(out, LINE_MAX, "%s %s\r\n",
                    op == STORE_GET     ? "get"
                    : op == STORE_EXIST ? "mg"
                                        : "delete",
                    key);
}

static int send_all(int fd, struct iovec *v, int n)
{
    while (n > 0) {
        ssize_t sent = writev(fd, v, n < 1024 ? n : 1024);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return -EPIPE;
        while (n > 0 && (size_t)sent >= v->iov_len) {
            sent -= (ssize_t)v->iov_len;
            v++;
            n--;
        }
        if (n > 0) {
            v->iov_base = (char *)v->iov_base + sent;
            v->iov_len -= (size_t)sent;
        }
    }
    return 0;
}

/* ---- answers ---------------------------------------------------------------------------------- */

static int more(struct peer *p)
{
    ssize_t n;

    memmove(p->input, p->input + p->from, p->to - p->from);
    p->to -= p->from;
    p->from = 0;
    do
        n = recv(p->fd, p->input + p->to, INPUT - p->to, 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return -EPIPE;
    p->to += (size_t)n;
    return 0;
}

/* A line, without its end. */
static int line(struct peer *p, char **out)
{
    for (;;) {
        char *end = memchr(p->input + p->from, '\n', p->to - p->from);

        if (end != NULL) {
            *out = p->input + p->from;
            p->from = (size_t)(end + 1 - p->input);
            end[end > *out ? -1 : 0] = '\0';
            return 0;
        }
        if (more(p) != 0)
            return -EPIPE;
    }
}

static int body(struct peer *p, uint8_t *to, uint64_t size)
{
    uint64_t have = p->to - p->from < size ? p->to - p->from : size;
    char *rest;

    memcpy(to, p->input + p->from, have);
    p->from += have;
    while (have < size) {
        ssize_t n = recv(p->fd, to + have, size - have, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -EPIPE;
        have += (uint64_t)n;
    }
    return line(p, &rest);
}

static int answer(struct peer *p, enum store_op op, uint64_t i, uint64_t size)
{
    char *text, *rest;
    int rc = line(p, &text);

    if (rc != 0)
        return rc;
    if (op == STORE_GET) {
        char *number = p->kind == STORE_REDIS ? text + 1 : strrchr(text, ' ');

        if ((*text != '$' && *text != 'V') || number == NULL || strtoull(number, NULL, 10) != size)
            return -EPROTO;
        rc = body(p, p->buffer + i * size, size);
        return rc == 0 && p->kind == STORE_MEMCACHED ? line(p, &rest) : rc; /* END */
    }
    if (op == STORE_PUT)
        return strcmp(text, "+OK") == 0 || strcmp(text, "STORED") == 0 ? 0 : -EPROTO;
    if (op == STORE_EXIST)
        return strcmp(text, ":1") == 0 || strncmp(text, "HD", 2) == 0 ? 0 : -EPROTO;
    return 0;
}

static int run(void *context, enum store_op op, uint64_t size, uint32_t n, uint32_t *queue_ns,
               uint32_t *move_ns)
{
    struct peer *p = context;
    uint64_t window = op == STORE_EXIST || op == STORE_REMOVE ? WINDOW_MAX : WINDOW / size;
    int rc = 0;

    (void)queue_ns, (void)move_ns;
    if (op == STORE_GET_IN_PLACE || op == STORE_PREFIX)
        return -ENOTSUP;
    if (window == 0)
        window = 1;
    if (window > WINDOW_MAX)
        window = WINDOW_MAX;
    for (uint64_t at = 0; rc == 0 && at < n; at += window) {
        uint64_t count = n - at < window ? n - at : window;
        int parts = 0;

        for (uint64_t i = 0; i < count; i++) {
            p->parts[parts++] =
                (struct iovec){p->lines[i], (size_t)head(p, op, at + i, size, p->lines[i])};
            if (op == STORE_PUT) {
                p->parts[parts++] = (struct iovec){p->buffer + (at + i) * size, size};
                p->parts[parts++] = (struct iovec){"\r\n", 2};
            }
        }
        rc = send_all(p->fd, p->parts, parts);
        for (uint64_t i = 0; rc == 0 && i < count; i++)
            rc = answer(p, op, at + i, size);
    }
    return rc == 0 ? 0
                   : say_error(rc, "%s did not answer a request as it should: %s",
                               programs[p->kind], strerror(-rc));
}

static uint64_t cpu_ns(void *context)
{
    const struct peer *p = context;
    uint64_t ns = 0;

    return clock_process_ns(p->child.pid, &ns) == 0 ? ns : 0;
}

/* ---- the program --------------------------------------------------------------------------------- */

static int connect_to(struct peer *p, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint64_t end = clock_ns() + UINT64_C(1000000) * START_MS;

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    p->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p->fd < 0)
        return say_error(-errno, "no socket: %m");
    while (connect(p->fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        if (clock_ns() > end)
            return say_error(-ETIMEDOUT, "%s does not listen on %s", programs[p->kind], path);
        usleep(1000); /* it has no way to tell that it is ready */
    }
    return 0;
}

static int start(struct peer *p, const struct store_options *o, const char *path)
{
    char memory[32], item[32];
    char *redis[] = {"redis-server", "--port",      "0",  "--unixsocket",
                     (char *)path,   "--save",      "",   "--appendonly",
                     "no",           "--daemonize", "no", NULL};
    char *memcached[] = {"memcached", "-s", (char *)path, "-m", memory, "-I",
                         item,        "-t", "1",          "-u", "root", NULL};
    struct child_options co = {.argv = p->kind == STORE_REDIS ? redis : memcached};
    uint64_t largest = 1u << 20;
    int rc;

    for (unsigned i = 0; i < o->nsizes; i++)
        if (o->sizes[i] + 4096 > largest)
            largest = o->sizes[i] + 4096;
    snprintf(memory, sizeof(memory), "%llu", (unsigned long long)((3 * o->most >> 20) + 256));
    snprintf(item, sizeof(item), "%llum", (unsigned long long)((largest >> 20) + 1));
    rc = child_start(&co, &p->child);
    return rc == 0 ? connect_to(p, path) : say_error(rc, "cannot start %s", programs[p->kind]);
}

int store_peer(enum store_peer_kind kind, const struct store_options *o,
               const struct pin_cores *cores, uint8_t *buffer, struct store_rows *out)
{
    const char *base = getenv("TMPDIR");
    struct store_driver d = {.run = run, .cpu_ns = cpu_ns, .buffer = buffer};
    char folder[96], path[107];
    struct peer *p;
    unsigned mark;
    int rc;

    if (!child_present(programs[kind]))
        return -ENOENT;
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return say_error(-ENOMEM, "no memory for a connection to %s", programs[kind]);
    p->kind = kind;
    p->fd = -1;
    p->buffer = buffer;
    mark = cleanup_mark();
    snprintf(folder, sizeof(folder), "%s/mcshm-bench-XXXXXX",
             base != NULL && base[0] == '/' && strlen(base) < 64 ? base : "/tmp");
    if (mkdtemp(folder) == NULL) {
        rc = say_error(-errno, "no folder for %s: %m; set TMPDIR", programs[kind]);
        goto out;
    }
    cleanup_add_folder(folder);
    snprintf(path, sizeof(path), "%s/socket", folder);
    cleanup_add_file(path);
    pin_to(cores->engine); /* what is started there stays there */
    rc = start(p, o, path);
    pin_to(cores->client);
    d.context = p;
    if (rc == 0)
        rc = store_measure(o, &d, out);
    if (p->fd >= 0)
        close(p->fd);
    if (p->child.pid > 0)
        child_end(&p->child, SIGTERM, START_MS, NULL);
    cleanup_undo(mark);
out:
    free(p);
    return rc;
}
