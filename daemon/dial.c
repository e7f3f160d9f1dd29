/* SPDX-License-Identifier: Apache-2.0 */
#include "dial.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "address.h"
#include "agent.h"
#include "shm/failpoint.h"

#define ADDRESSES_MAX 16u
#define PART_MIN_NS UINT64_C(50000000) /* least of the limit that each address gets */

struct
    resolution { /* lives until the resolver's thread is through, also when nobody waits any more */
    struct mcd_job job;
    struct mcd_dial *dial; /* NULL: given up */
    struct mcd_address address;
    struct sockaddr_storage found[ADDRESSES_MAX];
    size_t count;
    int res;
};

struct mcd_dial {
    struct mcd_watch watch;
    struct mcd_alarm timer;
    struct mcd_agent *agent;
    struct mcd_address target;
    struct sockaddr_storage local;
    bool has_local;
    char interface[IF_NAMESIZE]; /* "": any */
    struct resolution *resolution;
    struct sockaddr_storage addresses[ADDRESSES_MAX];
    size_t count, next;
    int fd, error;
    uint64_t deadline; /* ns */
    mcd_dialed done;
    void *context;
};

static void dial_free(struct mcd_dial *d)
{
    mcd_alarm_clear(d->agent, &d->timer);
    mcd_watch_remove(d->agent, &d->watch);
    if (d->resolution != NULL)
        d->resolution->dial = NULL;
    if (d->fd >= 0)
        close(d->fd);
    free(d);
}

void mcd_dial_cancel(struct mcd_dial *d)
{
    if (d != NULL)
        dial_free(d);
}

static void finish(struct mcd_dial *d, int error)
{
    mcd_dialed done = d->done;
    void *context = d->context;
    char target[MCD_ADDRESS_TEXT_MAX], text[MCD_ADDRESS_TEXT_MAX + 160];
    int fd = d->fd;

    text[0] = '\0';
    mcd_address_print(&d->target, target, sizeof(target));
    if (error != 0) {
        if (fd >= 0) {
            mcd_watch_remove(d->agent, &d->watch);
            close(fd);
        }
        fd = -1;
        if (error == -ENOENT)
            snprintf(text, sizeof(text), "%s: no such host name", target);
        else if (error == -EADDRNOTAVAIL || error == -EMFILE || error == -ENFILE)
            snprintf(text, sizeof(text), "cannot connect to %s: this host is out of %s: %s", target,
                     error == -EADDRNOTAVAIL ? "local ports or lacks the local address"
                                             : "file descriptors",
                     strerror(-error));
        else
            snprintf(text, sizeof(text), "cannot connect to %s: %s", target, strerror(-error));
    }
    mcd_watch_remove(d->agent, &d->watch);
    d->fd = -1;
    dial_free(d);
    done(context, fd, error, text);
}

static int open_socket(struct mcd_dial *d, const struct sockaddr_storage *to)
{
    int one = 1, res = MCS_FAIL(dial);

    if (res != 0)
        return res;
    d->fd = socket(to->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (d->fd < 0)
        return -errno;
    setsockopt(d->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (d->interface[0] != '\0' &&
        setsockopt(d->fd, SOL_SOCKET, SO_BINDTODEVICE, d->interface, sizeof(d->interface)) != 0 &&
        errno != EPERM) /* without the right to bind, the route decides */
        res = -errno;
    if (res == 0 && d->has_local && d->local.ss_family == to->ss_family) {
        /* the port is chosen at connect(), where one may serve several destinations */
        setsockopt(d->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
        if (bind(d->fd, (const struct sockaddr *)&d->local,
                 mcd_sockaddr_size((const struct sockaddr *)&d->local)) != 0)
            res = -errno;
    }
    if (res == 0 &&
        connect(d->fd, (const struct sockaddr *)to,
                mcd_sockaddr_size((const struct sockaddr *)to)) != 0 &&
        errno != EINPROGRESS)
        res = -errno;
    if (res == 0)
        res = mcd_watch_add(d->agent, &d->watch, d->fd, EPOLLOUT);
    if (res != 0) {
        close(d->fd);
        d->fd = -1;
    }
    return res;
}

/* Tries the next address; when there is none left, ends with the last error. */
static void try_next(struct mcd_dial *d)
{
    uint64_t now = mcd_now_ns(), part;

    if (d->fd >= 0) {
        mcd_watch_remove(d->agent, &d->watch);
        close(d->fd);
        d->fd = -1;
    }
    while (d->next < d->count && now < d->deadline) {
        part = (d->deadline - now) / (d->count - d->next);
        d->error = open_socket(d, &d->addresses[d->next++]);
        if (d->error == 0) {
            d->error = -ETIMEDOUT;
            mcd_alarm_set(d->agent, &d->timer, now + (part > PART_MIN_NS ? part : PART_MIN_NS));
            return;
        }
    }
    finish(d, d->error != 0 ? d->error : -ETIMEDOUT);
}

static void timer_fired(struct mcd_alarm *t)
{
    struct mcd_dial *d = t->context;

    if (d->resolution != NULL)
        finish(d, -EAGAIN);
    else
        try_next(d);
}

static void writable(struct mcd_watch *w, uint32_t events)
{
    struct mcd_dial *d = w->context;
    socklen_t n = sizeof(int);
    int error = 0;

    (void)events;
    if (getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0)
        error = errno;
    d->error = -error;
    if (error != 0)
        try_next(d);
    else
        finish(d, 0);
}

/* ---- threads that ask name servers -------------------------------------------------- */

int mcd_resolver_submit(struct mcd_agent *a, struct mcd_job *job)
{
    struct mcd_worker **w = &a->resolvers[a->next_resolver++ % MCD_RESOLVERS];
    int res = 0;

    if (*w == NULL)
        res = mcd_worker_create(a->event_fd, w);
    if (res == 0)
        mcd_worker_submit(*w, job);
    return res;
}

void mcd_resolvers_reap(struct mcd_agent *a)
{
    for (unsigned i = 0; i < MCD_RESOLVERS; i++)
        if (a->resolvers[i] != NULL)
            mcd_worker_reap(a->resolvers[i], a);
}

void mcd_resolvers_destroy(struct mcd_agent *a)
{
    for (unsigned i = 0; i < MCD_RESOLVERS; i++) {
        if (a->resolvers[i] != NULL)
            mcd_worker_destroy(a->resolvers[i], a);
        a->resolvers[i] = NULL;
    }
}

/* ---- names ----------------------------------------------------------------------- */

static void run_resolution(struct mcd_job *job)
{
    struct resolution *r = (struct resolution *)job;

    r->res = mcd_address_resolve(&r->address, r->found, ADDRESSES_MAX, &r->count);
}

static void resolution_done(struct mcd_job *job, void *context)
{
    struct resolution *r = (struct resolution *)job;
    struct mcd_dial *d = r->dial;

    (void)context;
    if (d != NULL) {
        d->resolution = NULL;
        if (r->res == 0) {
            memcpy(d->addresses, r->found, r->count * sizeof(r->found[0]));
            d->count = r->count;
            try_next(d);
        } else {
            finish(d, r->res);
        }
    }
    free(r);
}

static int resolve(struct mcd_dial *d)
{
    struct resolution *r = calloc(1, sizeof(*r));
    int res;

    if (r == NULL)
        return -ENOMEM;
    r->address = d->target;
    r->job.run = run_resolution;
    r->job.done = resolution_done;
    res = mcd_resolver_submit(d->agent, &r->job);
    if (res != 0) {
        free(r);
        return res;
    }
    r->dial = d;
    d->resolution = r;
    return 0;
}

static int set_local(struct mcd_dial *d, const char *local)
{
    struct mcd_address a;
    socklen_t n;

    if (local == NULL || local[0] == '\0')
        return 0;
    if (if_nametoindex(local) != 0) {
        snprintf(d->interface, sizeof(d->interface), "%s", local);
        return 0;
    }
    if (mcd_address_parse(local, true, &a) != 0 || mcd_address_numeric(&a, &d->local, &n) != 0)
        return -EINVAL;
    mcd_sockaddr_set_port((struct sockaddr *)&d->local, 0);
    d->has_local = true;
    return 0;
}

int mcd_dial(struct mcd_agent *a, const char *target, const char *local, uint64_t limit_ms,
             mcd_dialed done, void *context, struct mcd_dial **out)
{
    struct mcd_dial *d = aligned_alloc(16, (sizeof(*d) + 15) & ~(size_t)15);
    uint64_t now = mcd_now_ns();
    socklen_t n;
    int res;

    if (d == NULL)
        return -ENOMEM;
    memset(d, 0, sizeof(*d));
    d->agent = a;
    d->fd = d->watch.fd = -1;
    d->watch.ready = writable;
    d->watch.context = d->timer.context = d;
    d->timer.fire = timer_fired;
    d->done = done;
    d->context = context;
    d->deadline = now + limit_ms * 1000000;
    res = mcd_address_parse(target, false, &d->target);
    if (res == 0 && !d->target.has_port)
        res = -EINVAL;
    if (res == 0)
        res = set_local(d, local);
    if (res == 0 && mcd_address_numeric(&d->target, &d->addresses[0], &n) == 0) {
        d->count = 1;
        mcd_alarm_set(a, &d->timer, now); /* begins in the next round of the loop */
    } else if (res == 0) {
        res = resolve(d);
        mcd_alarm_set(a, &d->timer, d->deadline);
    }
    if (res != 0) {
        dial_free(d);
        return res;
    }
    *out = d;
    return 0;
}
