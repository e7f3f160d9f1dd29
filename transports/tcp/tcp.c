/* SPDX-License-Identifier: Apache-2.0 */
/* TCP on io_uring: the instance of an engine, its links, its turns. */
#include <errno.h>
#include <linux/tcp.h> /* newer than the C library's: struct tcp_info counts bytes */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tcp.h"

static int tcp_init(const struct mct_env *env, struct mct **out)
{
    struct mct *t;

    if (env->uring == NULL)
        return -EINVAL;
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    t->scratch = malloc(MCT_TCP_CHUNK);
    if (t->scratch == NULL) {
        free(t);
        return -ENOMEM;
    }
    t->env = *env;
    t->max_requests = env->max_requests == 0                     ? MCT_TCP_REQUESTS
                      : env->max_requests > MCT_TCP_REQUESTS_MAX ? MCT_TCP_REQUESTS_MAX
                                                                 : env->max_requests;
    t->done_end = &t->done;
    t->starved_end = &t->starved;
    *out = t;
    return 0;
}

/* Until the closing connections, or those of one link, are gone. Their I/O was cancelled, so this
 * waits for the kernel alone, never for a peer. */
static void finish(struct mct *t, const struct mct_link *link)
{
    for (;;) {
        if (link == NULL)
            for (struct mct_tcp_conn *c = t->conns; c != NULL; c = c->next)
                mct_tcp_close(c, -ECANCELED, "the agent stops");
        (void)mct_uring_turn(t->env.uring);
        (void)mct_tcp_deliver(t);
        (void)mct_tcp_reap(t);
        if (link != NULL ? link->conns == NULL : t->conns == NULL)
            break;
        mct_uring_wait(t->env.uring, 100);
    }
}

static void tcp_fini(struct mct *t)
{
    finish(t, NULL);
    (void)mct_tcp_deliver(t); /* slices that no connection had */
    while (t->links != NULL) {
        struct mct_link *link = t->links;

        link->gone = true;
        link->pins++;
        mct_tcp_link_unpin(link);
    }
    while (t->tombstones != NULL) {
        struct mct_tcp_tombstones *s = t->tombstones;

        t->tombstones = s->next;
        free(s);
    }
    free(t->scratch);
    free(t);
}

static int tcp_connect(struct mct *t, void *owner, struct mct_link **out)
{
    struct mct_link *link = calloc(1, sizeof(*link));

    if (link == NULL)
        return -ENOMEM;
    link->owner = owner;
    link->t = t;
    link->next = t->links;
    if (link->next != NULL)
        link->next->prev = link;
    t->links = link;
    *out = link;
    return 0;
}

static void tcp_abort(struct mct_link *link, int error)
{
    for (struct mct_tcp_conn *c = link->conns; c != NULL; c = c->link_next)
        mct_tcp_close(c, error, "its link was given up");
}

static void tcp_disconnect(struct mct_link *link)
{
    link->pins++;
    tcp_abort(link, -ECANCELED);
    if (link->conns != NULL)
        finish(link->t, link);
    (void)mct_tcp_deliver(link->t);
    link->gone = true;
    mct_tcp_link_unpin(link);
}

static int tcp_adopt(struct mct_link *link, const struct mct_conn *conn)
{
    struct mct_tcp_conn *c;

    return mct_tcp_conn_create(link->t, conn, link, NULL, &c);
}

static uint64_t tcp_progress(struct mct_link *link)
{
    uint64_t bytes = 0;

    for (struct mct_tcp_conn *c = link->conns; c != NULL; c = c->link_next) {
        struct tcp_info info;
        socklen_t size = sizeof(info);

        memset(&info, 0, sizeof(info));
        if (!c->closing && getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
            bytes += info.tcpi_bytes_acked + info.tcpi_bytes_received;
    }
    return bytes;
}

static bool tcp_turn(struct mct *t)
{
    bool moved = t->ready != NULL;

    t->turns++;
    if (t->starved != NULL || t->moves != 0)
        moved = mct_tcp_stage_turn(t) || moved;
    mct_tcp_flush(t, false);
    moved = mct_uring_turn(t->env.uring) > 0 || moved;
    moved = mct_tcp_deliver(t) || moved;
    moved = mct_tcp_reap(t) || moved;
    mct_tcp_flush(t, true); /* answers, and what the engine posted when it heard of others */
    return moved;
}

static bool tcp_pending(const struct mct *t)
{
    if (t->ready != NULL || t->done != NULL || t->killed != NULL || t->closing > 0)
        return true;
    for (const struct mct_tcp_conn *c = t->conns; c != NULL; c = c->next)
        if (c->in_use > 0 || c->rx.state != MCT_TCP_RX_HEADER || c->rx.end != c->rx.start)
            return true;
    return false;
}

static const struct mct_stats *tcp_stats(const struct mct *t)
{
    return &t->stats;
}

const struct mct_ops mct_tcp_ops = {
    .name = "tcp",
    .path = MCS_PATH_TCP,
    .capabilities = MCT_CAP_CROSS_HOST | MCT_CAP_HOST_MEMORY | MCT_CAP_KILL,
    .init = tcp_init,
    .fini = tcp_fini,
    .connect = tcp_connect,
    .disconnect = tcp_disconnect,
    .adopt = tcp_adopt,
    .abort = tcp_abort,
    .post = mct_tcp_post,
    .cancel = mct_tcp_cancel,
    .kill = mct_tcp_kill,
    .progress = tcp_progress,
    .serve = mct_tcp_serve,
    .dismiss = mct_tcp_dismiss,
    .quiesce = mct_tcp_quiesce,
    .turn = tcp_turn,
    .pending = tcp_pending,
    .stats = tcp_stats,
};
