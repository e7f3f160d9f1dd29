/* SPDX-License-Identifier: Apache-2.0 */
/* The operations table of the Mooncake transport, and what both roles need. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "internal.h"
#include "shm/abi.h"

void mct_mooncake_socket(int fd)
{
    static const int on = 1, idle_s = 2, every_s = 1, times = 4;

    int flags = fcntl(fd, F_GETFL);

    if (flags >= 0) /* io_uring waits itself, and only for sockets that may wait */
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    /* a host that went away without a word; its processes have no ping of their own */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof(every_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
}

__attribute__((noinline)) void mct_mooncake_payload(void *to, const void *from, size_t n)
{
    memcpy(to, from, n);
}

static int init(const struct mct_env *env, struct mct **out)
{
    struct mct *t;

    if (env->uring == NULL)
        return -EINVAL;
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    t->env = *env;
    t->back_end = &t->back;
    *out = t;
    return 0;
}

bool mct_mooncake_hand_back(struct mct *t)
{
    struct mct_slice *s, *next;
    bool any = false;

    s = t->back;
    t->back = NULL;
    t->back_end = &t->back;
    for (; s != NULL; s = next) {
        next = s->link_next;
        s->link_next = NULL;
        any = true;
        t->env.host.done(t->env.host.context, s);
    }
    return any;
}

static bool turn(struct mct *t)
{
    bool any;

    t->queued = false;
    any = mct_uring_turn(t->env.uring) != 0;
    any |= mct_mooncake_hand_back(t);
    mct_mooncake_out_free_dead(t);
    mct_mooncake_in_free_dead(t);
    if (t->slow_at != 0) {
        uint64_t now = mcs_ticks();

        if (now >= t->slow_at)
            mct_mooncake_in_slow(t, now);
    }
    return any;
}

static bool pending(const struct mct *t)
{
    return t->queued || t->back != NULL || t->dead_out != NULL || t->dead_in != NULL;
}

/* Sockets that were shut down give their operations back at once: this waits for the kernel, not for a
 * peer. */
static void fini(struct mct *t)
{
    while (t->links != NULL)
        mct_mooncake_disconnect(t->links);
    while (mct_mooncake_dismiss(t, NULL) != 0)
        turn(t);
    turn(t);
    free(t);
}

static int kill_conn(struct mct_link *link, uint64_t conn)
{
    (void)link;
    (void)conn;
    return -ENOTSUP; /* the protocol has no word for it */
}

static int quiesce(struct mct *t, const void *base, uint64_t length)
{
    bool out = mct_mooncake_out_quiesce(t, (uintptr_t)base, length);
    bool in = mct_mooncake_in_quiesce(t, (uintptr_t)base, length);

    return out && in ? 0 : -EINPROGRESS;
}

static const struct mct_stats *stats(const struct mct *t)
{
    return &t->stats;
}

const struct mct_ops mct_mooncake_ops = {
    .name = "mooncake",
    .path = MCS_PATH_MOONCAKE,
    .capabilities = MCT_CAP_CROSS_HOST | MCT_CAP_HOST_MEMORY,
    .init = init,
    .fini = fini,
    .connect = mct_mooncake_connect,
    .disconnect = mct_mooncake_disconnect,
    .adopt = mct_mooncake_adopt,
    .abort = mct_mooncake_abort,
    .post = mct_mooncake_post,
    .cancel = mct_mooncake_cancel,
    .kill = kill_conn,
    .progress = mct_mooncake_progress,
    .serve = mct_mooncake_serve,
    .dismiss = mct_mooncake_dismiss,
    .quiesce = quiesce,
    .turn = turn,
    .pending = pending,
    .stats = stats,
};
