/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A metadata service of the test's own: a thread that takes one HTTP request after the other and
 * answers what the test's function says. And an mcm with its eventfd, driven by await().
 */
#ifndef TEST_SERVER_H
#define TEST_SERVER_H

#include "store/meta/meta.h"
#include "store/meta/text.h"

#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SERVER_CONNECTIONS 64

struct server;
/* What to answer: appends a body and returns the HTTP status; 0: never; -1: closes at once. */
typedef int (*server_answer)(struct server *s, const char *method, const char *path,
                             const char *body, struct mcm_text *out);

struct server {
    int listener, stop[2];
    char url[64];
    server_answer answer;
    pthread_t thread;
    pthread_mutex_t lock; /* over what the test and the thread share */
    unsigned asked;       /* requests that reached answer() */
    int mode;             /* the test's own */
    struct mcm_text last; /* the last body */
    struct {
        int fd;
        struct mcm_text in;
    } connections[SERVER_CONNECTIONS];
};

static inline void server_serve(struct server *s, size_t i)
{
    struct mcm_text *in = &s->connections[i].in, out = {0}, head = {0};
    int fd = s->connections[i].fd, status = 0;
    char *end, *length, method[8], path[2048];
    size_t size;

    end = in->at ? strstr(in->at, "\r\n\r\n") : NULL;
    if (!end)
        return;
    length = strcasestr(in->at, "Content-Length:");
    size = length && length < end ? strtoull(length + 15, NULL, 10) : 0;
    if (in->size < (size_t)(end + 4 - in->at) + size)
        return;
    if (sscanf(in->at, "%7s %2047s", method, path) != 2)
        abort();
    pthread_mutex_lock(&s->lock);
    s->asked++;
    mcm_text_fini(&s->last);
    mcm_text_add(&s->last, "%s", end + 4);
    status = s->answer(s, method, path, end + 4, &out);
    pthread_mutex_unlock(&s->lock);
    if (status > 0) {
        mcm_text_add(&head, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n\r\n", status, out.size);
        mcm_text_bytes(&head, out.at ? out.at : "", out.size);
        for (size_t sent = 0; sent < head.size;) {
            ssize_t n = send(fd, head.at + sent, head.size - sent, MSG_NOSIGNAL);

            if (n <= 0)
                break;
            sent += (size_t)n;
        }
    } else if (status < 0) {
        close(fd);
        s->connections[i].fd = -1;
    }
    mcm_text_fini(&head);
    mcm_text_fini(&out);
    mcm_text_fini(in);
}

static inline void *server_run(void *arg)
{
    struct server *s = arg;
    static __thread char data[65536];

    for (;;) {
        struct pollfd fds[SERVER_CONNECTIONS + 2];
        size_t n = 2;

        fds[0] = (struct pollfd){.fd = s->listener, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = s->stop[0], .events = POLLIN};
        for (size_t i = 0; i < SERVER_CONNECTIONS; i++)
            fds[n++] = (struct pollfd){.fd = s->connections[i].fd, .events = POLLIN};
        poll(fds, n, -1);
        if (fds[1].revents)
            return NULL;
        for (size_t i = 0; i < SERVER_CONNECTIONS; i++) {
            ssize_t got;

            if (s->connections[i].fd < 0 || !fds[i + 2].revents)
                continue;
            got = recv(s->connections[i].fd, data, sizeof(data), 0);
            if (got <= 0) {
                close(s->connections[i].fd);
                s->connections[i].fd = -1;
                mcm_text_fini(&s->connections[i].in);
            } else {
                mcm_text_bytes(&s->connections[i].in, data, (size_t)got);
                server_serve(s, i);
            }
        }
        if (fds[0].revents)
            for (size_t i = 0; i < SERVER_CONNECTIONS; i++)
                if (s->connections[i].fd < 0) {
                    s->connections[i].fd = accept(s->listener, NULL, NULL);
                    break;
                }
    }
}

static inline void server_start(struct server *s, server_answer answer)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);

    memset(s, 0, sizeof(*s));
    s->answer = answer;
    pthread_mutex_init(&s->lock, NULL);
    for (size_t i = 0; i < SERVER_CONNECTIONS; i++)
        s->connections[i].fd = -1;
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(s->listener, (struct sockaddr *)&at, size), 0);
    cr_assert_eq(listen(s->listener, 128), 0);
    cr_assert_eq(getsockname(s->listener, (struct sockaddr *)&at, &size), 0);
    cr_assert_eq(pipe(s->stop), 0);
    snprintf(s->url, sizeof(s->url), "http://127.0.0.1:%u", ntohs(at.sin_port));
    cr_assert_eq(pthread_create(&s->thread, NULL, server_run, s), 0);
}

static inline void server_stop(struct server *s)
{
    cr_assert_eq(write(s->stop[1], "x", 1), 1);
    pthread_join(s->thread, NULL);
    for (size_t i = 0; i < SERVER_CONNECTIONS; i++) {
        if (s->connections[i].fd >= 0)
            close(s->connections[i].fd);
        mcm_text_fini(&s->connections[i].in);
    }
    mcm_text_fini(&s->last);
    close(s->listener);
    close(s->stop[0]);
    close(s->stop[1]);
    pthread_mutex_destroy(&s->lock);
}

static inline unsigned server_asked(struct server *s)
{
    unsigned n;

    pthread_mutex_lock(&s->lock);
    n = s->asked;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static inline void server_set(struct server *s, int mode)
{
    pthread_mutex_lock(&s->lock);
    s->mode = mode;
    pthread_mutex_unlock(&s->lock);
}

/* -- the asking side -- */

struct outcome {
    unsigned calls;
    int res;
    bool has_record;
    struct mcm_record record;
    char text[256], value[256];
    size_t size;
};

static inline void note(void *context, const struct mcm_result *r)
{
    struct outcome *o = context;

    o->calls++;
    o->res = r->res;
    o->has_record = r->record != NULL;
    if (r->record)
        o->record = *r->record;
    snprintf(o->text, sizeof(o->text), "%s", r->text ? r->text : "");
    if (r->value)
        snprintf(o->value, sizeof(o->value), "%s", r->value);
    o->size = r->size;
}

struct asker {
    struct mcm *m;
    int fd;
    char error[512];
    unsigned changes;
    char changed[MCM_NAME_MAX];
    uint64_t changed_to;
};

static inline void on_changed(void *context, const char *name, uint64_t incarnation)
{
    struct asker *a = context;

    a->changes++;
    snprintf(a->changed, sizeof(a->changed), "%s", name);
    a->changed_to = incarnation;
}

static inline void asker_start(struct asker *a, enum mcm_backend backend, const char *url,
                               uint64_t timeout_ms)
{
    struct mcm_options o = {.backend = backend,
                            .endpoints = url,
                            .prefix = "mcshm",
                            .ttl_s = 60,
                            .timeout_ms = timeout_ms,
                            .address = "127.0.0.1:7000",
                            .incarnation = 5,
                            .context = a,
                            .changed = on_changed};

    memset(a, 0, sizeof(*a));
    o.notify_fd = a->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert_eq(mcm_create(&o, &a->m, a->error, sizeof(a->error)), 0, "%s", a->error);
}

static inline void asker_stop(struct asker *a)
{
    mcm_destroy(a->m);
    close(a->fd);
}

/* Runs the callbacks that are due, waiting for the next wake-up. */
static inline void turn(struct asker *a)
{
    struct pollfd p = {.fd = a->fd, .events = POLLIN};
    uint64_t n;

    poll(&p, 1, 20);
    if (read(a->fd, &n, sizeof(n)) == sizeof(n))
        mcm_run(a->m);
}

static inline void await_calls(struct asker *a, struct outcome *o, unsigned calls)
{
    time_t end = time(NULL) + 120;

    while (o->calls < calls) {
        cr_assert_lt(time(NULL), end, "waited in vain for a callback");
        turn(a);
    }
}

static inline struct outcome lookup(struct asker *a, const char *name, bool fresh)
{
    struct outcome o = {0};

    mcm_lookup(a->m, name, fresh, note, &o);
    await_calls(a, &o, 1);
    return o;
}

#endif
