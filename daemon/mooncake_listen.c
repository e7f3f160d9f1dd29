/* SPDX-License-Identifier: Apache-2.0 */
/* The two ports that stock Mooncake processes connect to. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "mooncake_internal.h"

#define BACKLOG 256
#define TURN_MAX 64                      /* connections taken in one call */
#define DEAF_NS (1000 * MCD_MOONCAKE_MS) /* out of descriptors */

static void ready(struct mcd_watch *w, uint32_t events)
{
    struct mcd_mooncake_listener *l = w->context;

    (void)events;
    for (int i = 0; i < TURN_MAX; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            l->accept(l->m, fd);
        } else if (errno == EMFILE || errno == ENFILE) {
            mcd_log_limited(MCD_LOG_WARNING,
                            "out of file descriptors, a Mooncake process has to wait: raise the "
                            "limit (ulimit -n, LimitNOFILE=)");
            mcd_watch_remove(l->m->agent, w);
            mcd_alarm_set(l->m->agent, &l->deaf, mcd_now_ns() + DEAF_NS);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

static void hear(struct mcd_alarm *t)
{
    struct mcd_mooncake_listener *l = t->context;

    if (mcd_watch_add(l->m->agent, &l->watch, l->fd, EPOLLIN) != 0)
        mcd_alarm_set(l->m->agent, t, mcd_now_ns() + DEAF_NS);
}

static int open_port(struct mcd_mooncake *m, struct mcd_mooncake_listener *l,
                     const struct sockaddr_storage *at)
{
    static const int on = 1, off = 0;
    int res;

    l->fd = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return -errno;
    setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (at->ss_family == AF_INET6) /* [::] is for both */
        setsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(l->fd, (const struct sockaddr *)at, mcd_sockaddr_size((const struct sockaddr *)at)) !=
            0 ||
        listen(l->fd, BACKLOG) != 0)
        res = -errno;
    else
        res = mcd_watch_add(m->agent, &l->watch, l->fd, EPOLLIN);
    if (res != 0) {
        close(l->fd);
        l->fd = -1;
    }
    return res;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof(at);

    return getsockname(fd, (struct sockaddr *)&at, &size) == 0
               ? mcd_sockaddr_port((const struct sockaddr *)&at)
               : 0;
}

/* What others are told: [mooncake] advertise, or the listening address, or this host's best one. */
static int name_self(struct mcd_mooncake *m, const struct sockaddr_storage *at, char *error,
                     size_t error_size)
{
    const char *advertise = m->agent->config.mooncake_advertise;
    struct sockaddr_storage self = *at;
    struct mcd_address address;
    char text[MCD_ADDRESS_TEXT_MAX];

    if (strcmp(advertise, "auto") != 0) {
        if (mcd_address_parse(advertise, false, &address) != 0) {
            snprintf(error, error_size, "[mooncake] advertise = %s is no host:port", advertise);
            return -EINVAL;
        }
    } else {
        if (mcd_sockaddr_is_wildcard((const struct sockaddr *)at)) {
            struct mcd_local_address found[1];
            size_t n = 0;

            if (mcd_local_addresses(found, 1, &n) != 0 || n == 0) {
                snprintf(error, error_size,
                         "[mooncake] listen = %s: this host has no address that others could "
                         "reach; set [mooncake] advertise",
                         m->agent->config.mooncake_listen);
                return -EADDRNOTAVAIL;
            }
            self = found[0].address;
        }
        mcd_sockaddr_set_port((struct sockaddr *)&self, m->hand_port);
        mcd_sockaddr_print((const struct sockaddr *)&self, text, sizeof(text));
        if (mcd_address_parse(text, false, &address) != 0)
            return -EINVAL;
    }
    if (!address.has_port)
        address.port = m->hand_port;
    address.has_port = true;
    m->hand_port = address.port;
    snprintf(m->host, sizeof(m->host), "%s", address.host);
    mcd_address_print(&address, m->name, sizeof(m->name));
    return 0;
}

int mcd_mooncake_listen(struct mcd_mooncake *m, char *error, size_t error_size)
{
    const char *where = m->agent->config.mooncake_listen;
    struct sockaddr_storage at;
    struct mcd_address address;
    socklen_t size;
    size_t n = 0;
    int res;

    m->hand.m = m->data.m = m;
    m->hand.accept = mcd_mooncake_hand_accept;
    m->data.accept = mcd_mooncake_serve_accept;
    m->hand.watch.ready = m->data.watch.ready = ready;
    m->hand.deaf.fire = m->data.deaf.fire = hear;
    m->hand.watch.context = m->hand.deaf.context = &m->hand;
    m->data.watch.context = m->data.deaf.context = &m->data;
    if (mcd_address_parse(where, true, &address) != 0 || !address.has_port ||
        (mcd_address_numeric(&address, &at, &size) != 0 &&
         (mcd_address_resolve(&address, &at, 1, &n) != 0 || n == 0))) {
        snprintf(error, error_size,
                 "[mooncake] listen = %s is no address:port of this host, such as 0.0.0.0:12001",
                 where);
        return -EINVAL;
    }
    mcd_sockaddr_set_port((struct sockaddr *)&at, address.port);
    res = open_port(m, &m->hand, &at);
    if (res != 0) {
        snprintf(error, error_size, "cannot listen on [mooncake] listen = %s: %s", where,
                 strerror(-res));
        return res;
    }
    m->hand_port = port_of(m->hand.fd);
    /* the next port, so that firewalls can be told; where it is taken, any: the descriptor says which */
    res = -EADDRINUSE;
    if (address.port != 0 && address.port < UINT16_MAX) {
        mcd_sockaddr_set_port((struct sockaddr *)&at, (uint16_t)(address.port + 1));
        res = open_port(m, &m->data, &at);
        if (res != 0)
            mcd_info("mooncake: port %u for data is taken, another one will serve",
                     address.port + 1);
    }
    mcd_sockaddr_set_port((struct sockaddr *)&at, 0);
    if (res != 0)
        res = open_port(m, &m->data, &at);
    if (res != 0) {
        snprintf(error, error_size, "cannot listen on a data port beside [mooncake] listen: %s",
                 strerror(-res));
        return res;
    }
    m->data_port = port_of(m->data.fd);
    return name_self(m, &at, error, error_size);
}

void mcd_mooncake_unlisten(struct mcd_mooncake *m)
{
    struct mcd_mooncake_listener *both[2] = {&m->hand, &m->data};

    for (int i = 0; i < 2; i++) {
        mcd_watch_remove(m->agent, &both[i]->watch);
        mcd_alarm_clear(m->agent, &both[i]->deaf);
        if (both[i]->fd >= 0)
            close(both[i]->fd);
        both[i]->fd = -1;
    }
}
