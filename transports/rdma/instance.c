/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA: the instance of an engine, its links, its turns, its sleep. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine.h"
#include "shm/abi.h"

#define FINISH_SECONDS 2u /* a device that has not let go of a queue pair by then hangs */
#define FINISH_LOOK_MS 10

/* Ended while a device hung, whose thread may still look at them: their memory stays. */
static struct mct *kept;

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
    t->done_end = &t->done;
    t->free_slot = UINT32_MAX;
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

/* ---- turns ----------------------------------------------------------------------- */

static bool poll_all(struct mct *t)
{
    bool any = false;

    for (struct mct_rdma_poller *p = t->pollers; p != NULL; p = p->next)
        if (p->conns != 0)
            any = mct_rdma_poll(p) || any;
    return any;
}

static bool rdma_turn(struct mct *t)
{
    bool moved;

    if (t->conns == NULL && t->doomed == NULL && t->done == NULL && t->pollers == NULL)
        return false;
    moved = poll_all(t);
    mct_rdma_answer(t);
    mct_rdma_look(t, false);
    moved = mct_rdma_deliver(t) || moved;
    return mct_rdma_reap(t) || moved;
}

static void drain_wake(struct mct *t)
{
    uint64_t n;

    while (read(t->wake_fd, &n, sizeof(n)) > 0)
        ;
}

static bool rdma_arm(struct mct *t)
{
    bool any;

    drain_wake(t); /* before the look: what the nics' threads say later rings again */
    mct_rdma_look(t, true);
    for (struct mct_rdma_poller *p = t->pollers; p != NULL; p = p->next) {
        /* also one that nobody uses any more: what it was armed for rings until it is taken */
        mct_rdma_drain_channel(p);
        if (p->conns == 0)
            continue;
        /* it fails only where the device is lost, and its thread wakes the engine for that */
        (void)ibv_req_notify_cq(p->port->cq, 0);
    }
    any = poll_all(t);
    mct_rdma_answer(t);
    any = mct_rdma_deliver(t) || any;
    return !(mct_rdma_reap(t) || any || t->again);
}

static bool rdma_pending(const struct mct *t)
{
    return t->outstanding != 0 || t->unanswered != 0 || t->answers != 0 || t->ending != 0 ||
           t->done != NULL || t->doomed != NULL;
}

/* ---- links ----------------------------------------------------------------------- */

/* Has the link a slice whose memory a device may still touch? Messages were copied. *since: when the end of the last one's
 * connection began. */
static bool is_out(const struct mct_link *link, uint64_t *since)
{
    bool out = false;

    *since = 0;
    for (unsigned i = 0; i < link->nconns; i++) {
        const struct mct_rdma_conn *c = link->conns[i];

        for (uint64_t k = c->known; k != c->posted; k++)
            if (c->ring[k % c->pair->depth].request != NULL) {
                out = true;
                *since = c->ended > *since ? c->ended : *since;
                break;
            }
    }
    return out;
}

/* Until all connections are freed, or no slice of one link is out. Waits for the nics' threads alone, never for a
 * peer. False: one of them has not done it in time: counted from when it was asked, so that a device that hangs
 * does not hold up each link anew. */
static bool finish(struct mct *t, const struct mct_link *link)
{
    uint64_t began = mcs_ticks();

    for (;;) {
        struct pollfd fd = {.fd = t->wake_fd, .events = POLLIN};

        (void)poll_all(t);
        mct_rdma_look(t, true);
        (void)mct_rdma_deliver(t);
        if (link == NULL)
            (void)mct_rdma_reap(t);
        if (link != NULL ? !is_out(link, &began) : t->conns == NULL && t->doomed == NULL)
            return true;
        if (mcs_ticks() - began > FINISH_SECONDS * t->env.tick_hz)
            return false;
        (void)poll(&fd, 1, FINISH_LOOK_MS);
        drain_wake(t);
    }
}

static int rdma_connect(struct mct *t, void *owner, struct mct_link **out)
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

static void rdma_abort(struct mct_link *link, int error)
{
    for (unsigned i = 0; i < link->nconns; i++)
        mct_rdma_conn_end(link->conns[i], error, "its link was given up");
}

/* The device has not let go of them: they come back all the same, and it is said. */
static void force_back(struct mct_rdma_conn *c)
{
    if (c->posted == c->known)
        return;
    c->t->env.log(MCT_RDMA_LOG_ERROR,
                  "rdma connection %016llx: the device of %s has not stopped its queue pair within "
                  "%u s; %llu work requests are handed back while it may still touch their memory",
                  (unsigned long long)c->id, c->pair->own.name, FINISH_SECONDS,
                  (unsigned long long)(c->posted - c->known));
    while (c->posted != c->known)
        mct_rdma_known(c, false, MCS_OK);
}

static void rdma_disconnect(struct mct_link *link)
{
    struct mct *t = link->t;
    uint64_t since;

    rdma_abort(link, -ECANCELED);
    if (is_out(link, &since) && !finish(t, link))
        for (unsigned i = 0; i < link->nconns; i++)
            force_back(link->conns[i]);
    while (link->nconns != 0) {
        struct mct_rdma_conn *c = link->conns[0];

        mct_rdma_notices_end(c);
        mct_rdma_detach(c);
    }
    (void)mct_rdma_deliver(t);
    if (link->next != NULL)
        link->next->prev = link->prev;
    if (link->prev != NULL)
        link->prev->next = link->next;
    else
        t->links = link->next;
    free(link);
}

static void rdma_fini(struct mct *t)
{
    t->closing = true;
    for (struct mct_link *l = t->links; l != NULL; l = l->next)
        rdma_abort(l, -ECANCELED);
    for (struct mct_rdma_conn *c = t->conns; c != NULL; c = c->next)
        mct_rdma_conn_end(c, -ECANCELED, "the agent stops");
    if (!finish(t, NULL)) {
        for (struct mct_rdma_conn *c = t->conns; c != NULL; c = c->next)
            force_back(c);
        (void)mct_rdma_deliver(t);
    }
    while (t->links != NULL)
        rdma_disconnect(t->links);
    if (t->conns != NULL || t->doomed != NULL) {
        if (t->env.rdma != NULL)
            mct_rdma_instance_gone(t->env.rdma, t);
        t->kept = mcs_exchange(&kept, t); /* partner: the same of other engines */
        return;
    }
    while (t->pollers != NULL)
        mct_rdma_poller_destroy(t->pollers, false);
    if (t->env.rdma != NULL)
        mct_rdma_instance_gone(t->env.rdma, t);
    close(t->wake_fd);
    free(t->slots);
    free(t);
}

static int rdma_adopt(struct mct_link *link, const struct mct_conn *conn)
{
    return mct_rdma_conn_create(link->t, conn, link, NULL);
}

static uint64_t rdma_progress(struct mct_link *link)
{
    return link->progress;
}

/* ---- target ---------------------------------------------------------------------- */

static int rdma_serve(struct mct *t, const struct mct_conn *conn, void *visitor)
{
    return mct_rdma_conn_create(t, conn, NULL, visitor);
}

static int rdma_dismiss(struct mct *t, void *visitor)
{
    int res = 0;

    for (struct mct_rdma_conn *c = t->conns; c != NULL; c = c->next) {
        if (c->initiator || c->visitor != visitor)
            continue;
        mct_rdma_conn_end(c, -ECONNABORTED, "its visitor was dismissed");
        res = -EINPROGRESS;
    }
    return res;
}

static int rdma_end(struct mct *t, void *visitor, uint64_t conn)
{
    struct mct_rdma_conn *c = mct_rdma_conn_find(t, conn, false);

    if (c == NULL || c->visitor != visitor)
        return 0;
    if (!c->ending)
        mct_rdma_count(t, kills, 1);
    mct_rdma_conn_end(c, -ECONNABORTED, "the peer asked for its end");
    return -EINPROGRESS;
}

static const struct mct_stats *rdma_stats(const struct mct *t)
{
    return &t->stats;
}

const struct mct_ops mct_rdma_ops = {
    .name = "rdma",
    .path = MCS_PATH_RDMA,
    .capabilities = MCT_CAP_CROSS_HOST | MCT_CAP_HOST_MEMORY | MCT_CAP_GPU_MEMORY |
                    MCT_CAP_KILL_BY_AGENT | MCT_CAP_REGISTERED,
    .init = rdma_init,
    .fini = rdma_fini,
    .connect = rdma_connect,
    .disconnect = rdma_disconnect,
    .adopt = rdma_adopt,
    .abort = rdma_abort,
    .post = mct_rdma_post_slices,
    .cancel = mct_rdma_cancel,
    .progress = rdma_progress,
    .serve = rdma_serve,
    .dismiss = rdma_dismiss,
    .end = rdma_end,
    .quiesce = mct_rdma_quiesce,
    .turn = rdma_turn,
    .arm = rdma_arm,
    .pending = rdma_pending,
    .stats = rdma_stats,
};
