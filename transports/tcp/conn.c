/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: from adopting a socket to its end, and their frames. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tcp.h"

/* Levels of env->log, as the agent counts them. */
#define LOG_WARNING 1
#define LOG_DEBUG 3

/* What may fail here is only comfort: tests use sockets that are not TCP. */
static void set_up_socket(int fd)
{
    /* When this process dies the kernel shall not go on sending what a client's memory holds by then:
     * its close() is a reset, as reset_socket() is of ours. */
    const struct linger hard = {.l_onoff = 1};
    int one = 1, flags = fcntl(fd, F_GETFL);

    if (flags >= 0 && (flags & O_NONBLOCK) != 0)
        (void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK); /* the uring waits for readiness itself */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
}

/* Nothing that waits in the socket goes out any more, zero-copied pages included. */
static void reset_socket(int fd)
{
    struct sockaddr none = {.sa_family = AF_UNSPEC};

    if (connect(fd, &none, sizeof(none)) != 0)
        (void)shutdown(fd, SHUT_RDWR);
}

static void conn_free(struct mct_tcp_conn *c)
{
    struct mct_tcp_send *s;

    mct_tcp_stage_end(c);
    while ((s = c->idle) != NULL) {
        c->idle = s->next;
        free(s);
    }
    free(c->rx.staging);
    free(c->frames);
    free(c->table);
    free(c->notification);
    free(c);
}

static int allocate(struct mct_tcp_conn *c)
{
    size_t capacity = 1;

    c->nframes = c->t->max_requests + MCT_TCP_SPARE;
    c->frames = calloc(c->nframes, sizeof(*c->frames));
    c->rx.staging = malloc(MCT_TCP_STAGING);
    c->idle = calloc(1, sizeof(*c->idle));
    c->sends = 1;
    if (c->link != NULL) {
        /* roomy: an answer that is late shall not hold those after it */
        while (capacity < (size_t)c->nframes * 4)
            capacity *= 2;
        c->mask = capacity - 1;
        c->table = calloc(capacity, sizeof(struct mct_tcp_frame *));
    } else {
        c->notification = malloc(MCT_TCP_NOTIFY_MAX);
    }
    if (c->frames == NULL || c->rx.staging == NULL || c->idle == NULL ||
        (c->table == NULL && c->notification == NULL))
        return -ENOMEM;
    c->idle->conn = c;
    return 0;
}

int mct_tcp_conn_create(struct mct *t, const struct mct_conn *from, struct mct_link *link,
                        void *visitor, struct mct_tcp_conn **out)
{
    struct mct_tcp_conn *c = calloc(1, sizeof(*c));

    if (c == NULL) {
        close(from->fd);
        return -ENOMEM;
    }
    c->t = t;
    c->link = link;
    c->visitor = visitor;
    c->fd = from->fd;
    c->id = from->id;
    c->features = from->features;
    c->next_id = c->expected_id = 1;
    c->held_end = &c->held;
    c->zero_copy = t->env.zero_copy_min != UINT64_MAX &&
                   (mct_uring_features(t->env.uring) & MCT_URING_SEND_ZC) != 0;
    if (allocate(c) != 0) {
        close(c->fd);
        conn_free(c);
        return -ENOMEM;
    }
    set_up_socket(c->fd);
    c->next = t->conns;
    if (c->next != NULL)
        c->next->prev = c;
    t->conns = c;
    if (link != NULL) {
        c->link_next = link->conns;
        link->conns = c;
        mct_tcp_count(t, conns, 1);
    } else {
        mct_tcp_count(t, inbound, 1);
    }
    mct_tcp_receive(c);
    *out = c;
    return 0;
}

void mct_tcp_close(struct mct_tcp_conn *c, int error, const char *why)
{
    if (c->closing)
        return;
    c->closing = true;
    c->error = error;
    c->why = why;
    c->t->closing++;
    c->t->env.log(LOG_DEBUG, "tcp connection %016llx: %s (%s)", (unsigned long long)c->id, why,
                  strerror(-error));
    reset_socket(c->fd);
    mct_tcp_cancel_receive(c);
    mct_tcp_cancel_send(c);
}

void mct_tcp_nonsense(struct mct_tcp_conn *c, const char *why)
{
    if (c->closing)
        return;
    mct_tcp_count(c->t, protocol_errors, 1);
    c->t->env.log(LOG_WARNING, "tcp connection %016llx is closed: %s", (unsigned long long)c->id,
                  why);
    mct_tcp_close(c, -EPROTO, why);
}

static void unlink_conn(struct mct_tcp_conn *c)
{
    struct mct *t = c->t;

    if (c->next != NULL)
        c->next->prev = c->prev;
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        t->conns = c->next;
    if (c->link != NULL)
        for (struct mct_tcp_conn **p = &c->link->conns; *p != NULL; p = &(*p)->link_next)
            if (*p == c) {
                *p = c->link_next;
                break;
            }
    if (c->ready)
        for (struct mct_tcp_conn **p = &t->ready; *p != NULL; p = &(*p)->ready_next)
            if (*p == c) {
                *p = c->ready_next;
                break;
            }
    t->closing--;
}

void mct_tcp_link_unpin(struct mct_link *link)
{
    struct mct *t = link->t;

    if (--link->pins > 0 || !link->gone || link->conns != NULL)
        return;
    if (link->next != NULL)
        link->next->prev = link->prev;
    if (link->prev != NULL)
        link->prev->next = link->next;
    else
        t->links = link->next;
    free(link);
}

static void reap_one(struct mct_tcp_conn *c)
{
    struct mct *t = c->t;
    struct mct_link *link = c->link;
    const struct mct_host *host = &t->env.host;
    void *visitor = c->visitor;
    const char *why = c->why;
    uint64_t id = c->id;
    int error = c->error;

    if (link != NULL) {
        link->pins++;
        mct_tcp_initiator_end(c);
        mct_tcp_count(t, conns, -1);
    } else {
        mct_tcp_target_end(c);
        mct_tcp_count(t, inbound, -1);
    }
    mct_tcp_count(t, lost, 1);
    unlink_conn(c);
    close(c->fd);
    conn_free(c);
    (void)mct_tcp_deliver(t); /* its slices before itself */
    if (link == NULL) {
        host->left(host->context, visitor, id, error, why);
        return;
    }
    if (!link->gone) /* after disconnect() its owner hears nothing more */
        host->lost(host->context, link, id, error);
    mct_tcp_link_unpin(link);
}

bool mct_tcp_reap(struct mct *t)
{
    struct mct_tcp_conn *c;
    bool any = false;

    /* From the start each time: the engine's answers may change the list. */
    do {
        c = t->closing == 0 ? NULL : t->conns;
        while (c != NULL && (!c->closing || c->rx.busy || c->active != NULL ||
                             c->awaiting != NULL || c->moving != NULL))
            c = c->next;
        if (c != NULL) {
            reap_one(c);
            any = true;
        }
    } while (c != NULL);
    return any;
}

bool mct_tcp_deliver(struct mct *t)
{
    const struct mct_host *host = &t->env.host;
    bool any = t->done != NULL || t->killed != NULL;

    while (t->done != NULL) {
        struct mct_slice *s = t->done;

        t->done = s->link_next;
        if (t->done == NULL)
            t->done_end = &t->done;
        host->done(host->context, s);
    }
    while (t->killed != NULL) {
        struct mct_tcp_frame *f = t->killed;
        struct mct_link *link = f->conn->link;
        uint64_t conn = f->address;

        t->killed = f->next;
        mct_tcp_frame_put(f);
        host->killed(host->context, link, conn);
    }
    return any;
}

struct mct_tcp_frame *mct_tcp_frame_get(struct mct_tcp_conn *c)
{
    struct mct_tcp_frame *f = c->free_frames;

    if (f != NULL)
        c->free_frames = f->next;
    else if (c->fresh < c->nframes)
        f = &c->frames[c->fresh++];
    else
        return NULL;
    memset(f, 0, sizeof(*f));
    f->conn = c;
    f->live = true;
    f->filler_from = UINT64_MAX;
    c->in_use++;
    return f;
}

void mct_tcp_frame_put(struct mct_tcp_frame *f)
{
    struct mct_tcp_conn *c = f->conn;

    if (f->stage != NULL)
        c->t->env.host.unstage(c->t->env.host.context, f->stage);
    f->stage = NULL;
    f->live = false;
    f->next = c->free_frames;
    c->free_frames = f;
    c->in_use--;
    if (c->rx.paused && !c->closing) {
        c->rx.paused = false;
        mct_tcp_receive(c);
    }
}
