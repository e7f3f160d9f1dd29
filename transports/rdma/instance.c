/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA: the instance of an engine, its links, its turns. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "internal.h"
#include "shm/abi.h"

struct mct_link {
    void *owner; /* first: mct_link_owner() */
    struct mct *t;
};

struct mct {
    struct mct_env env;
    struct mct_stats stats;
    int wake_fd;
};

int mct_rdma_wake_fd(const struct mct *instance)
{
    return instance->wake_fd;
}

static int rdma_init(const struct mct_env *env, struct mct **out)
{
    struct epoll_event ev = {.events = EPOLLIN};
    struct mct *t = calloc(1, sizeof(*t));
    int res = 0;

    if (t == NULL)
        return -ENOMEM;
    t->env = *env;
    t->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (t->wake_fd < 0 ||
        (env->epoll_fd >= 0 && epoll_ctl(env->epoll_fd, EPOLL_CTL_ADD, t->wake_fd, &ev) != 0)) {
        res = -errno;
        if (t->wake_fd >= 0)
            close(t->wake_fd);
        free(t);
        return res;
    }
    *out = t;
    return 0;
}

static void rdma_fini(struct mct *t)
{
    close(t->wake_fd);
    free(t);
}

static int rdma_connect(struct mct *t, void *owner, struct mct_link **out)
{
    struct mct_link *link = calloc(1, sizeof(*link));

    if (link == NULL)
        return -ENOMEM;
    link->owner = owner;
    link->t = t;
    *out = link;
    return 0;
}

static void rdma_disconnect(struct mct_link *link)
{
    free(link);
}

static int rdma_adopt(struct mct_link *link, const struct mct_conn *conn)
{
    (void)link;
    (void)conn;
    return -EOPNOTSUPP;
}

static void rdma_abort(struct mct_link *link, int error)
{
    (void)link;
    (void)error;
}

static unsigned rdma_post(struct mct_link *link, struct mct_slice *const *slices, unsigned n)
{
    (void)link;
    (void)slices;
    (void)n;
    return 0;
}

static void rdma_cancel(struct mct_link *link, struct mct_slice *slice)
{
    (void)link;
    (void)slice;
}

static uint64_t rdma_progress(struct mct_link *link)
{
    (void)link;
    return 0;
}

static int rdma_serve(struct mct *t, const struct mct_conn *conn, void *visitor)
{
    (void)visitor;
    (void)t;
    (void)conn;
    return -EOPNOTSUPP;
}

static int rdma_dismiss(struct mct *t, void *visitor)
{
    (void)t;
    (void)visitor;
    return 0;
}

static int rdma_end(struct mct *t, void *visitor, uint64_t conn)
{
    (void)t;
    (void)visitor;
    (void)conn;
    return 0;
}

static int rdma_quiesce(struct mct *t, const void *base, uint64_t length)
{
    (void)t;
    (void)base;
    (void)length;
    return 0;
}

static bool rdma_turn(struct mct *t)
{
    (void)t;
    return false;
}

static bool rdma_arm(struct mct *t)
{
    uint64_t n;

    return read(t->wake_fd, &n, sizeof(n)) < 0 || n == 0;
}

static bool rdma_pending(const struct mct *t)
{
    (void)t;
    return false;
}

static const struct mct_stats *rdma_stats(const struct mct *t)
{
    return &t->stats;
}

const struct mct_ops mct_rdma_ops = {
    .name = "rdma",
    .path = MCS_PATH_RDMA,
    .capabilities =
        MCT_CAP_CROSS_HOST | MCT_CAP_HOST_MEMORY | MCT_CAP_KILL_BY_AGENT | MCT_CAP_REGISTERED,
    .init = rdma_init,
    .fini = rdma_fini,
    .connect = rdma_connect,
    .disconnect = rdma_disconnect,
    .adopt = rdma_adopt,
    .abort = rdma_abort,
    .post = rdma_post,
    .cancel = rdma_cancel,
    .progress = rdma_progress,
    .serve = rdma_serve,
    .dismiss = rdma_dismiss,
    .end = rdma_end,
    .quiesce = rdma_quiesce,
    .turn = rdma_turn,
    .arm = rdma_arm,
    .pending = rdma_pending,
    .stats = rdma_stats,
};
