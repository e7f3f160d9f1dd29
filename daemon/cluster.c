/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "mooncake.h"
#include "store.h"
#include "catalog.h"

#define BACKLOG 512
#define ACCEPTS_A_TURN 64
#define TICK_NS UINT64_C(250000000)
#define TELL_NS UINT64_C(5000000)    /* changes within this time are told together */
#define DEAF_NS UINT64_C(1000000000) /* without descriptors: tries again */
#define LOCALS_MAX 128u

/* ---- local rails -------------------------------------------------------------------- */

static int add_rail(struct mcd_cluster *c, const struct mcd_local_address *l)
{
    struct mcd_local_rail *r;

    for (unsigned i = 0; i < c->nrails; i++)
        if (mcd_sockaddr_same_host((const struct sockaddr *)&c->rails[i].address.address,
                                   (const struct sockaddr *)&l->address))
            return 0;
    if (c->nrails == MCD_RAILS_MAX)
        return -ENOSPC;
    r = &c->rails[c->nrails++];
    r->address = *l;
    r->there = true;
    r->usable = l->up;
    mcd_sockaddr_print((const struct sockaddr *)&l->address, r->text, sizeof(r->text));
    return 0;
}

static const struct mcd_local_address *find_local(const struct mcd_local_address *all, size_t n,
                                                  const struct sockaddr *s)
{
    static struct mcd_local_address other; /* the control thread's */

    for (size_t i = 0; i < n; i++)
        if (mcd_sockaddr_same_host((const struct sockaddr *)&all[i].address, s))
            return &all[i];
    /* all of 127.0.0.0/8 is this host's, though one address is listed */
    for (size_t i = 0; i < n && mcd_sockaddr_is_loopback(s); i++) {
        if (!all[i].loopback || all[i].address.ss_family != s->sa_family)
            continue;
        other = all[i];
        memcpy(&other.address, s, mcd_sockaddr_size(s));
        mcd_sockaddr_set_port((struct sockaddr *)&other.address, 0);
        return &other;
    }
    return NULL;
}

/* One word of [tcp] rails: an address of this host, or an interface, whose best address it is. */
static int rail_of_word(struct mcd_cluster *c, const char *word,
                        const struct mcd_local_address *all, size_t n, char *error,
                        size_t error_size)
{
    const struct mcd_local_address *l = NULL;
    struct sockaddr_storage s;
    struct mcd_address a;
    socklen_t size;

    for (size_t i = 0; i < n && l == NULL; i++)
        if (strcmp(all[i].interface, word) == 0)
            l = &all[i];
    if (l == NULL && mcd_address_parse(word, false, &a) == 0 && !a.has_port &&
        mcd_address_numeric(&a, &s, &size) == 0)
        l = find_local(all, n, (const struct sockaddr *)&s);
    if (l == NULL) {
        snprintf(error, error_size,
                 "[tcp] rails: '%s' is no interface with an address and no address of this host; "
                 "`ip address` lists both",
                 word);
        return -EINVAL;
    }
    if (add_rail(c, l) != 0) {
        snprintf(error, error_size, "[tcp] rails: at most %u", MCD_RAILS_MAX);
        return -EINVAL;
    }
    return 0;
}

static int find_rails(struct mcd_cluster *c, const struct sockaddr *listen,
                      const struct mcd_local_address *all, size_t n, char *error, size_t error_size)
{
    char list[MCD_TEXT_MAX], *save = NULL;
    const struct mcd_local_address *l;
    int res = 0;

    snprintf(list, sizeof(list), "%s", c->agent->config.tcp_rails);
    if (strcmp(list, "auto") != 0) {
        for (char *word = strtok_r(list, ", ", &save); word != NULL && res == 0;
             word = strtok_r(NULL, ", ", &save))
            res = rail_of_word(c, word, all, n, error, error_size);
        return res;
    }
    if (!mcd_sockaddr_is_wildcard(listen)) {
        l = find_local(all, n, listen);
        if (l == NULL) {
            snprintf(error, error_size,
                     "[peer] listen = %s: not an address of this host; `ip address` lists them",
                     c->agent->config.peer_listen);
            return -EINVAL;
        }
        return add_rail(c, l);
    }
    /* one an interface: two addresses on one cable are not two rails */
    for (size_t i = 0; i < n && c->nrails < MCD_RAILS_MAX; i++) {
        bool seen = all[i].loopback || !all[i].up ||
                    (listen->sa_family == AF_INET && all[i].address.ss_family != AF_INET);

        for (unsigned k = 0; k < c->nrails && !seen; k++)
            seen = c->rails[k].address.ifindex == all[i].ifindex;
        if (!seen)
            add_rail(c, &all[i]);
    }
    return 0;
}

size_t mcd_rails_print(const struct mcd_cluster *c, char text[MCD_RAILS_MAX][MCD_ADDRESS_TEXT_MAX],
                       char *out[MCD_RAILS_MAX])
{
    size_t n = 0;

    for (unsigned i = 0; i < c->nrails; i++) {
        struct sockaddr_storage s = c->rails[i].address.address;

        if (!c->rails[i].usable)
            continue;
        mcd_sockaddr_set_port((struct sockaddr *)&s, c->port);
        mcd_sockaddr_print((struct sockaddr *)&s, text[n], MCD_ADDRESS_TEXT_MAX);
        out[n] = text[n];
        n++;
    }
    return n;
}

static void net_changed(void *context, const struct mcd_net_change *change)
{
    struct mcd_cluster *c = context;

    for (unsigned i = 0; i < c->nrails; i++) {
        struct mcd_local_rail *r = &c->rails[i];
        bool same_link = r->address.ifindex == change->ifindex;
        bool same_address = mcd_sockaddr_same_host((const struct sockaddr *)&r->address.address,
                                                   (const struct sockaddr *)&change->address);

        switch (change->event) {
        case MCD_NET_UP:
        case MCD_NET_DOWN:
            if (same_link)
                r->address.up = change->event == MCD_NET_UP;
            break;
        case MCD_NET_ADDRESS_NEW:
        case MCD_NET_ADDRESS_GONE:
            if (same_address) {
                r->there = change->event == MCD_NET_ADDRESS_NEW;
                /* on another interface, or one made anew: whether that is up was said before */
                c->moved |= r->address.ifindex != change->ifindex;
                r->address.ifindex = change->ifindex;
            }
            break;
        case MCD_NET_LOST: /* what is there follows */
            r->there = r->address.up = false;
            break;
        }
    }
}

/* Is each rail's interface up? For those that are on another one than before. */
static void look_at_links(struct mcd_cluster *c)
{
    static struct mcd_local_address all[LOCALS_MAX]; /* the control thread's */
    size_t n = 0;

    c->moved = false;
    if (mcd_local_addresses(all, LOCALS_MAX, &n) != 0)
        return;
    for (unsigned i = 0; i < c->nrails; i++) {
        struct mcd_local_rail *r = &c->rails[i];
        const struct mcd_local_address *l =
            find_local(all, n, (const struct sockaddr *)&r->address.address);

        if (l == NULL || l->ifindex != r->address.ifindex)
            continue;
        r->address.up = l->up;
        snprintf(r->address.interface, sizeof(r->address.interface), "%s", l->interface);
    }
}

static void netlink_ready(struct mcd_watch *w, uint32_t events)
{
    struct mcd_cluster *c = w->context;

    (void)events;
    if (mcd_netlink_run(c->netlink_fd, net_changed, c) != 0)
        mcd_log_limited(MCD_LOG_WARNING, "the kernel's news about interfaces cannot be read");
    if (c->moved)
        look_at_links(c);
    for (unsigned i = 0; i < c->nrails; i++) {
        struct mcd_local_rail *r = &c->rails[i];
        bool usable = r->there && r->address.up;

        if (r->usable == usable)
            continue;
        r->usable = usable;
        mcd_log_limited(usable ? MCD_LOG_INFO : MCD_LOG_WARNING, "local rail %s (%s) is %s",
                        r->text, r->address.interface,
                        usable           ? "back"
                        : !r->address.up ? "down: no carrier, or switched off"
                                         : "gone: its address was taken away");
        mcd_peers_net_change(c, r);
    }
}

/* ---- listening ------------------------------------------------------------------------ */

static void listen_again(struct mcd_alarm *t)
{
    struct mcd_cluster *c = t->context;
    bool ok = true;

    for (unsigned i = 0; i < c->nlisteners; i++)
        if (c->listeners[i].watch.fd < 0)
            ok &= mcd_watch_add(c->agent, &c->listeners[i].watch, c->listeners[i].fd, EPOLLIN) == 0;
    if (!ok)
        mcd_alarm_set(c->agent, t, mcd_now_ns() + DEAF_NS);
}

static void acceptable(struct mcd_watch *w, uint32_t events)
{
    struct mcd_cluster *c = w->context;
    int one = 1, fd;

    (void)events;
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
            mcd_guest_accept(c, fd);
        } else if (errno == EAGAIN) {
            return;
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            /* the event would come again at once, as long as it lasts */
            mcd_log_limited(MCD_LOG_WARNING, "other agents have to wait: %s%s", strerror(errno),
                            errno == EMFILE || errno == ENFILE
                                ? ": raise the limit (ulimit -n, LimitNOFILE=)"
                                : "");
            c->counters.guests_refused++;
            mcd_watch_remove(c->agent, w);
            mcd_alarm_set(c->agent, &c->deaf_timer, mcd_now_ns() + DEAF_NS);
            return;
        } /* else that one connection is gone */
    }
}

static int listen_on(struct mcd_cluster *c, struct sockaddr_storage *s, char *error,
                     size_t error_size)
{
    struct sockaddr *a = (struct sockaddr *)s;
    char text[80];
    int one = 1, zero = 0, fd, res;

    fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        goto error;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (a->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, mcd_sockaddr_is_wildcard(a) ? &zero : &one,
                   sizeof(one));
    if (bind(fd, a, mcd_sockaddr_size(a)) != 0 || listen(fd, BACKLOG) != 0)
        goto error;
    c->listeners[c->nlisteners].fd = fd;
    c->listeners[c->nlisteners].watch =
        (struct mcd_watch){.ready = acceptable, .context = c, .fd = -1};
    c->nlisteners++;
    return mcd_watch_add(c->agent, &c->listeners[c->nlisteners - 1].watch, fd, EPOLLIN);

error:
    res = -errno;
    if (fd >= 0)
        close(fd);
    mcd_sockaddr_print(a, text, sizeof(text));
    snprintf(error, error_size, "cannot listen on %s for [peer] listen = %s: %s%s", text,
             c->agent->config.peer_listen, strerror(-res),
             res == -EADDRINUSE      ? ": another agent or program has the port, choose another one"
             : res == -EADDRNOTAVAIL ? ": not an address of this host, `ip address` lists them"
                                     : "");
    return res;
}

/* The address itself and, unless that is all of them, the rails' addresses with the same port. */
static int listen_everywhere(struct mcd_cluster *c, struct sockaddr_storage *s, char *error,
                             size_t error_size)
{
    socklen_t n = sizeof(*s);
    int res = listen_on(c, s, error, error_size);

    if (res != 0)
        return res;
    if (getsockname(c->listeners[0].fd, (struct sockaddr *)s, &n) != 0)
        return -errno;
    c->port = mcd_sockaddr_port((struct sockaddr *)s);
    for (unsigned i = 0; i < c->nrails && !mcd_sockaddr_is_wildcard((struct sockaddr *)s); i++) {
        struct sockaddr_storage rail = c->rails[i].address.address;

        if (mcd_sockaddr_same_host((struct sockaddr *)&rail, (struct sockaddr *)s))
            continue;
        mcd_sockaddr_set_port((struct sockaddr *)&rail, c->port);
        res = listen_on(c, &rail, error, error_size);
        if (res != 0)
            return res;
    }
    return 0;
}

/* An address that means another host to whoever reads it. */
static bool is_useless(const struct mcd_address *a)
{
    struct sockaddr_storage s;
    socklen_t size;

    if (strcmp(a->host, "localhost") == 0)
        return true;
    return mcd_address_numeric(a, &s, &size) == 0 &&
           (mcd_sockaddr_is_loopback((const struct sockaddr *)&s) ||
            mcd_sockaddr_is_wildcard((const struct sockaddr *)&s));
}

/* What others are told to connect to. */
static int find_address(struct mcd_cluster *c, const struct sockaddr_storage *listen,
                        const struct mcd_local_address *all, size_t n, char *error,
                        size_t error_size)
{
    const char *advertise = c->agent->config.peer_advertise;
    struct sockaddr_storage s = *listen;
    struct mcd_address a;

    if (strcmp(advertise, "auto") != 0) {
        if (mcd_address_parse(advertise, false, &a) != 0) {
            snprintf(error, error_size,
                     "[peer] advertise = %s: want host:port, or host for the port of [peer] listen",
                     advertise);
            return -EINVAL;
        }
        if (!a.has_port) {
            a.has_port = true;
            a.port = c->port;
        }
        if (!mcd_sockaddr_is_loopback((const struct sockaddr *)listen) && is_useless(&a)) {
            snprintf(error, error_size,
                     "[peer] advertise = %s: other hosts would find themselves there, or nobody; "
                     "name an "
                     "address of this host that they can reach",
                     advertise);
            return -EINVAL;
        }
        mcd_address_print(&a, c->address, sizeof(c->address));
        return 0;
    }
    if (mcd_sockaddr_is_wildcard((const struct sockaddr *)listen)) {
        const struct mcd_local_address *l = NULL;

        for (size_t i = 0; i < n && l == NULL; i++)
            if (all[i].up && !all[i].loopback)
                l = &all[i];
        if (l == NULL) {
            snprintf(error, error_size,
                     "[peer] listen = %s: no interface is up that others could reach this host by; "
                     "bring one up, or set [peer] advertise",
                     c->agent->config.peer_listen);
            return -EADDRNOTAVAIL;
        }
        s = l->address;
        mcd_sockaddr_set_port((struct sockaddr *)&s, c->port);
    }
    mcd_sockaddr_print((struct sockaddr *)&s, c->address, sizeof(c->address));
    return 0;
}

/* ---- metadata --------------------------------------------------------------------------- */

static void meta_ready(struct mcd_watch *w, uint32_t events)
{
    struct mcd_cluster *c = w->context;
    uint64_t v;

    (void)events;
    if (read(c->meta_fd, &v, sizeof(v)) < 0) {
        /* somebody else's wake-up was read together with this one */
    }
    mcm_run(c->meta);
}

static int read_password(const char *path, char *out, size_t size, char *error, size_t error_size)
{
    ssize_t n;
    int fd, res = 0;

    out[0] = '\0';
    if (path[0] == '\0')
        return 0;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, out, size - 1);
    if (n < 0) {
        res = -errno;
        snprintf(error, error_size, "cannot read [meta] password_file = %s: %s", path,
                 strerror(-res));
    } else {
        out[n] = '\0';
        out[strcspn(out, "\r\n")] = '\0';
    }
    if (fd >= 0)
        close(fd);
    return res;
}

static int create_meta(struct mcd_cluster *c, char *error, size_t error_size)
{
    const struct mcd_config *config = &c->agent->config;
    char password[256];
    struct mcm_options o = {
        .backend = (enum mcm_backend)config->meta_backend,
        .endpoints = config->meta_endpoints,
        .prefix = config->meta_prefix,
        .user = config->meta_user,
        .password = password,
        .ca = config->meta_ca,
        .cert = config->meta_cert,
        .key = config->meta_key,
        .ttl_s = config->meta_ttl_s,
        .timeout_ms = config->meta_timeout_ms,
        .address = c->address,
        .incarnation = c->agent->incarnation,
        .log = mcd_log_line,
    };
    int res =
        read_password(config->meta_password_file, password, sizeof(password), error, error_size);

    if (res != 0)
        return res;
    c->meta_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->meta_fd < 0)
        return -errno;
    o.notify_fd = c->meta_fd;
    res = mcm_create(&o, &c->meta, error, error_size);
    if (res == 0)
        res = mcd_watch_add(c->agent, &c->meta_watch, c->meta_fd, EPOLLIN);
    return res;
}

/* ---- life ------------------------------------------------------------------------------- */

static void tick(struct mcd_alarm *t)
{
    struct mcd_cluster *c = t->context;

    mcd_peers_poll(c);
    mcd_alarm_set(c->agent, t, mcd_now_ns() + TICK_NS);
}

static void tell(struct mcd_alarm *t)
{
    struct mcd_cluster *c = t->context;

    for (struct mcd_peer *p = c->peers; p != NULL; p = p->next)
        if (p->state == MCD_PEER_UP)
            mcd_exports_tell(p);
}

void mcd_segments_changed(struct mcd_agent *a)
{
    struct mcd_cluster *c = a->cluster;

    mcd_mooncake_changed(a->mooncake);
    if (c != NULL && c->told_timer.at == 0)
        mcd_alarm_set(a, &c->told_timer, mcd_now_ns() + TELL_NS);
}

void mcd_cluster_poll(struct mcd_agent *a)
{
    struct mcd_cluster *c = a->cluster;

    if (c == NULL)
        return;
    mcd_peers_poll(c);
    if (a->store != NULL)
        mcd_catalog_poll(a->store->catalog);
}

static int may_serve(const struct mcd_config *config, const struct sockaddr *s, char *error,
                     size_t error_size)
{
    if (config->peer_auth != MCD_WIRE_NONE || config->allow_insecure != 0 ||
        mcd_sockaddr_is_loopback(s))
        return 0;
    snprintf(
        error, error_size,
        "[peer] listen = %s reaches beyond this host and [peer] auth = none: whoever reaches the "
        "port could read and write published memory; set auth to psk or tls, or "
        "allow_insecure = yes",
        config->peer_listen);
    return -EACCES;
}

int mcd_cluster_create(struct mcd_agent *a, char *error, size_t error_size)
{
    const struct mcd_config *config = &a->config;
    struct mcd_wire_auth_options auth = {
        .method = (enum mcd_wire_method)config->peer_auth,
        .psk_file = config->psk_file,
        .tls_cert = config->tls_cert,
        .tls_key = config->tls_key,
        .tls_ca = config->tls_ca,
    };
    static struct mcd_local_address all[LOCALS_MAX];
    struct sockaddr_storage listen[1];
    struct mcd_cluster *c;
    struct mcd_address address;
    size_t n = 0, count = 0;
    int res;

    if (strcmp(config->peer_listen, "off") == 0)
        return 0;
    c = aligned_alloc(16, (sizeof(*c) + 15) & ~(size_t)15);
    if (c == NULL)
        return -ENOMEM;
    memset(c, 0, sizeof(*c));
    a->cluster = c;
    c->agent = a;
    c->meta_fd = c->netlink_fd = c->meta_watch.fd = c->netlink_watch.fd = -1;
    c->meta_watch.ready = meta_ready;
    c->netlink_watch.ready = netlink_ready;
    c->tick.fire = tick;
    c->told_timer.fire = tell;
    c->deaf_timer.fire = listen_again;
    c->meta_watch.context = c->netlink_watch.context = c->tick.context = c->told_timer.context =
        c->deaf_timer.context = c;
    if (mcd_address_parse(config->peer_listen, true, &address) != 0 || !address.has_port ||
        mcd_address_resolve(&address, listen, 1, &count) != 0 || count == 0) {
        snprintf(error, error_size, "[peer] listen = %s: want address:port of this host, or off",
                 config->peer_listen);
        return -EINVAL;
    }
    res = may_serve(config, (struct sockaddr *)listen, error, error_size);
    if (res == 0)
        res = mcd_wire_auth_create(&auth, &c->auth, error, error_size);
    if (res == 0)
        res = mcd_local_addresses(all, LOCALS_MAX, &n);
    if (res == 0)
        res = find_rails(c, (struct sockaddr *)listen, all, n, error, error_size);
    if (res == 0)
        res = listen_everywhere(c, listen, error, error_size);
    if (res == 0)
        res = find_address(c, listen, all, n, error, error_size);
    if (res == 0)
        res = create_meta(c, error, error_size);
    if (res == 0)
        res = mcd_netlink_open(&c->netlink_fd);
    if (res == 0)
        res = mcd_watch_add(a, &c->netlink_watch, c->netlink_fd, EPOLLIN);
    if (res != 0)
        return res;
    if (config->peer_auth == MCD_WIRE_NONE && !mcd_sockaddr_is_loopback((struct sockaddr *)listen))
        mcd_warning("[peer] auth = none: whoever reaches %s can read and write published memory",
                    c->address);
    mcd_alarm_set(a, &c->tick, mcd_now_ns() + TICK_NS);
    mcd_info("other agents reach this one at %s, %u rail%s, metadata in %s", c->address, c->nrails,
             c->nrails == 1 ? "" : "s",
             (const char *[]){"memory", "names (p2p)", "etcd", "http"}[config->meta_backend]);
    return 0;
}

void mcd_cluster_destroy(struct mcd_agent *a)
{
    struct mcd_cluster *c = a->cluster;

    if (c == NULL)
        return;
    for (unsigned i = 0; i < c->nlisteners; i++) {
        mcd_watch_remove(a, &c->listeners[i].watch);
        close(c->listeners[i].fd);
    }
    mcd_guests_destroy(c);
    mcd_peers_destroy(c);
    if (c->meta != NULL)
        mcm_destroy(c->meta);
    mcd_watch_remove(a, &c->meta_watch);
    mcd_watch_remove(a, &c->netlink_watch);
    if (c->meta_fd >= 0)
        close(c->meta_fd);
    if (c->netlink_fd >= 0)
        close(c->netlink_fd);
    mcd_alarm_clear(a, &c->tick);
    mcd_alarm_clear(a, &c->told_timer);
    mcd_alarm_clear(a, &c->deaf_timer);
    if (c->auth != NULL)
        mcd_wire_auth_destroy(c->auth);
    while (c->tokens != NULL)
        mcd_tokens_revoke(c, c->tokens->peer, NULL);
    a->cluster = NULL;
    free(c);
}
