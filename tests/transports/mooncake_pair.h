/* SPDX-License-Identifier: Apache-2.0 */
/* Two instances of the Mooncake transport in one thread: `a` asks, `b` serves one public buffer. */
#ifndef TESTS_MOONCAKE_PAIR_H
#define TESTS_MOONCAKE_PAIR_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "shm/atomic.h"
#include "shm/status.h"
#include "transports/transport.h"
#include "transports/uring.h"

#define PAIR_SIZE (8u << 20)
#define PAIR_ADDRESS UINT64_C(0x300000000000) /* what the buffer is known by */

struct pair {
    const struct mct_ops *ops;
    struct mct_uring *uring;
    struct mct *a, *b;
    const struct mct_stats *a_stats, *b_stats;
    struct mct_link *link;
    uint8_t *local, *remote;
    uint64_t public_length;
    int resolves_left; /* then nothing is public any more; -1: for ever */
    int socket_buffer; /* bytes; 0: the kernel's choice */
    uint64_t next_id;
    unsigned link_conns, done, lost, left, killed;
    uint64_t killed_conn;
    int lost_error, left_error;
    char why[128];
};

static inline void pair_done(void *context, struct mct_slice *s)
{
    struct pair *p = context;

    (void)s;
    p->done++;
}

static inline void pair_lost(void *context, struct mct_link *link, uint64_t conn, int error)
{
    struct pair *p = context;

    (void)link;
    (void)conn;
    p->lost++;
    p->link_conns--;
    p->lost_error = error;
}

static inline void pair_killed(void *context, struct mct_link *link, uint64_t conn)
{
    struct pair *p = context;

    (void)link;
    p->killed++;
    p->killed_conn = conn;
}

static inline void pair_left(void *context, void *visitor, uint64_t conn, int error,
                             const char *why)
{
    struct pair *p = context;

    (void)conn;
    cr_assert_eq(visitor, context);
    p->left++;
    p->left_error = error;
    snprintf(p->why, sizeof(p->why), "%s", why);
}

static inline uint16_t pair_resolve(void *context, void *visitor, const struct mct_request *r,
                                    void **pointer)
{
    struct pair *p = context;

    cr_assert_eq(visitor, context);
    if (p->resolves_left == 0)
        return MCS_REVOKED;
    if (p->resolves_left > 0)
        p->resolves_left--;
    if (r->address < PAIR_ADDRESS || r->address - PAIR_ADDRESS > p->public_length ||
        r->length > p->public_length - (r->address - PAIR_ADDRESS))
        return MCS_BAD_RANGE;
    *pointer = p->remote + (r->address - PAIR_ADDRESS);
    return MCS_OK;
}

static inline void pair_log(int level, const char *format, ...)
{
    (void)level;
    (void)format;
}

static inline void pair_init_ticks(struct pair *p, uint64_t tick_hz)
{
    char error[256] = "";
    struct mct_env env = {.log = pair_log, .tick_hz = tick_hz};

    memset(p, 0, sizeof(*p));
    p->ops = &mct_mooncake_ops;
    if (mct_uring_create(64, &p->uring, error, sizeof(error)) != 0)
        cr_skip_test("%s", error);
    cr_assert_eq(mct_uring_enable(p->uring), 0);
    env.uring = p->uring;
    env.host.context = p;
    env.host.done = pair_done;
    env.host.lost = pair_lost;
    env.host.killed = pair_killed;
    env.host.left = pair_left;
    env.host.resolve = pair_resolve;
    cr_assert_eq(p->ops->init(&env, &p->a), 0);
    cr_assert_eq(p->ops->init(&env, &p->b), 0);
    p->a_stats = p->ops->stats(p->a);
    p->b_stats = p->ops->stats(p->b);
    p->local = calloc(1, PAIR_SIZE);
    p->remote = calloc(1, PAIR_SIZE);
    cr_assert(p->local != NULL && p->remote != NULL);
    p->public_length = PAIR_SIZE;
    p->resolves_left = -1;
    cr_assert_eq(p->ops->connect(p->a, p, &p->link), 0);
}

static inline void pair_init(struct pair *p)
{
    pair_init_ticks(p, UINT64_C(1000000000000)); /* no header is ever late */
}

static inline void pair_fini(struct pair *p)
{
    if (p->link != NULL)
        p->ops->disconnect(p->link);
    p->ops->fini(p->a);
    p->ops->fini(p->b);
    cr_assert_eq(mct_uring_inflight(p->uring), 0u);
    mct_uring_destroy(p->uring);
    free(p->local);
    free(p->remote);
}

/* Two ends of a TCP connection over loopback. */
static inline void pair_sockets(struct pair *p, int *client, int *server)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    *client = socket(AF_INET, SOCK_STREAM, 0);
    if (p->socket_buffer != 0)
        for (int i = 0; i < 2; i++)
            cr_assert(setsockopt(i ? fd : *client, SOL_SOCKET, SO_RCVBUF, &p->socket_buffer,
                                 sizeof(p->socket_buffer)) == 0 &&
                      setsockopt(i ? fd : *client, SOL_SOCKET, SO_SNDBUF, &p->socket_buffer,
                                 sizeof(p->socket_buffer)) == 0);
    cr_assert(fd >= 0 && *client >= 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    cr_assert_eq(listen(fd, 1), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&addr, &size), 0);
    cr_assert_eq(connect(*client, (struct sockaddr *)&addr, sizeof(addr)), 0);
    *server = accept(fd, NULL, NULL);
    cr_assert_geq(*server, 0);
    close(fd);
}

/* A connection of the link, to b. */
static inline void pair_connect(struct pair *p, bool v2)
{
    int client, server;

    pair_sockets(p, &client, &server);
    cr_assert_eq(
        p->ops->adopt(p->link,
                      &(struct mct_conn){.fd = client, .id = ++p->next_id, .features = v2 ? 1 : 0}),
        0);
    cr_assert_eq(p->ops->serve(p->b, &(struct mct_conn){.fd = server, .id = ++p->next_id}, p), 0);
    p->link_conns++;
}

/* b serves a peer that the test plays. */
static inline int pair_raw_client(struct pair *p)
{
    int client, server;

    pair_sockets(p, &client, &server);
    cr_assert_eq(p->ops->serve(p->b, &(struct mct_conn){.fd = server, .id = ++p->next_id}, p), 0);
    return client;
}

/* a asks a peer that the test plays. */
static inline int pair_raw_server(struct pair *p, bool v2)
{
    int client, server;

    pair_sockets(p, &client, &server);
    cr_assert_eq(
        p->ops->adopt(p->link,
                      &(struct mct_conn){.fd = client, .id = ++p->next_id, .features = v2 ? 1 : 0}),
        0);
    p->link_conns++;
    return server;
}

static inline void pair_turn(struct pair *p)
{
    bool any = p->ops->turn(p->a);

    any |= p->ops->turn(p->b);
    if (!any && !p->ops->pending(p->a) && !p->ops->pending(p->b))
        mct_uring_wait(p->uring, 1); /* other processes' turn, too */
}

#define pair_until(p, condition)                                                                   \
    do {                                                                                           \
        time_t limit_ = time(NULL) + 60;                                                           \
        while (!(condition)) {                                                                     \
            pair_turn(p);                                                                          \
            cr_assert(time(NULL) < limit_, "does not happen: %s", #condition);                     \
        }                                                                                          \
    } while (0)

static inline struct mct_slice pair_slice(struct pair *p, enum mct_op op, uint64_t local,
                                          uint64_t remote, uint64_t length)
{
    return (struct mct_slice){.op = op,
                              .length = length,
                              .local = p->local + local,
                              .remote_address = PAIR_ADDRESS + remote,
                              .status = 0xffff};
}

static inline void pair_post(struct pair *p, struct mct_slice *s)
{
    cr_assert_eq(p->ops->post(p->link, &s, 1), 1u);
}

static inline void pair_run(struct pair *p, struct mct_slice *s)
{
    unsigned before = p->done;

    pair_post(p, s);
    pair_until(p, p->done == before + 1);
}

static inline void pair_fill(uint8_t *out, uint64_t n, uint64_t seed)
{
    uint64_t x = seed * 2654435761u + 88172645463325252u;

    for (uint64_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out[i] = (uint8_t)(x | 1);
    }
}

#endif
