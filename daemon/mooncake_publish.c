/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This agent's records in the metadata service that stock Mooncake processes share: where it shakes
 * hands, and its segment descriptor.  They are written again when public buffers change, and removed
 * at the end.  The handshake record is deleted before it is written: Mooncake's Python server refuses to
 * overwrite one, and a killed agent leaves one behind.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "log.h"
#include "mooncake_internal.h"

#define SOON_NS (20 * MCD_MOONCAKE_MS)
#define RETRY_NS (1000 * MCD_MOONCAKE_MS)

static void step(struct mcd_mooncake *m);

static void key(const struct mcd_mooncake *m, const char *kind, char out[MCM_KEY_MAX])
{
    snprintf(out, MCM_KEY_MAX, "%s%s/%s", m->prefix, kind, m->name);
}

static void failed(struct mcd_mooncake *m, const struct mcm_result *r)
{
    m->counters.publish_failed++;
    m->publishing = false;
    m->published = MCD_MOONCAKE_FRESH; /* a service that was away may have forgotten everything */
    if (m->publish_failures++ == 0)
        mcd_warning("mooncake: this agent is not published as %s, going on to try: %s", m->name,
                    r->text != NULL ? r->text : strerror(-r->res));
    mcd_alarm_set(m->agent, &m->publish, mcd_now_ns() + RETRY_NS);
}

/* Until something changes, or it is time to look. */
static void rest(struct mcd_mooncake *m)
{
    m->publishing = false;
    m->looking = !m->republish;
    mcd_alarm_set(m->agent, &m->publish,
                  mcd_now_ns() + (m->looking ? m->agent->config.meta_ttl_s * 1000 * MCD_MOONCAKE_MS
                                             : SOON_NS));
}

static void written(void *context, const struct mcm_result *r)
{
    struct mcd_mooncake *m = context;

    if (m->stopping)
        return;
    if (r->res != 0) {
        failed(m, r);
        return;
    }
    if (m->publish_failures != 0)
        mcd_info("mooncake: published as %s at last", m->name);
    m->publish_failures = 0;
    m->counters.published++;
    rest(m);
}

/* Looks now and then whether the service still has it: one that was restarted may be empty. */
static void looked(void *context, const struct mcm_result *r)
{
    struct mcd_mooncake *m = context;

    if (m->stopping)
        return;
    if (r->res == -ENOENT) {
        m->published = MCD_MOONCAKE_FRESH;
        step(m);
    } else { /* an outage is told of when there is something to write */
        rest(m);
    }
}

static void named(void *context, const struct mcm_result *r)
{
    struct mcd_mooncake *m = context;

    if (m->stopping)
        return;
    if (r->res != 0) {
        failed(m, r);
        return;
    }
    m->published = MCD_MOONCAKE_NAMED;
    step(m);
}

static void replaced(void *context, const struct mcm_result *r)
{
    struct mcd_mooncake *m = context;

    if (m->stopping)
        return;
    if (r->res != 0 && r->res != -ENOENT) {
        failed(m, r);
        return;
    }
    m->published = MCD_MOONCAKE_REPLACED;
    step(m);
}

static void step(struct mcd_mooncake *m)
{
    char where[MCM_KEY_MAX], value[MCD_HOST_MAX + 64];
    const char *text;
    size_t size;

    switch (m->published) {
    case MCD_MOONCAKE_FRESH:
        key(m, "rpc_meta", where);
        mcm_delete(m->store, where, replaced, m);
        break;
    case MCD_MOONCAKE_REPLACED:
        key(m, "rpc_meta", where);
        mcd_mooncake_rpc_meta(m->host, m->hand_port, value, sizeof(value));
        mcm_put(m->store, where, value, strlen(value), named, m);
        break;
    case MCD_MOONCAKE_NAMED:
        text = mcd_mooncake_text(m, &size);
        if (text == NULL) {
            failed(m, &(struct mcm_result){.res = -ENOMEM});
            break;
        }
        m->republish = false;
        key(m, "ram", where);
        mcm_put(m->store, where, text, size, written, m);
        break;
    }
}

static void due(struct mcd_alarm *t)
{
    struct mcd_mooncake *m = t->context;
    char where[MCM_KEY_MAX];

    m->publishing = true;
    if (!m->looking) {
        step(m);
        return;
    }
    key(m, "rpc_meta", where);
    mcm_get(m->store, where, looked, m);
}

void mcd_mooncake_publish(struct mcd_mooncake *m)
{
    if (m->store == NULL || m->stopping)
        return;
    if (m->publishing)
        m->republish = true; /* for rest() */
    else if (m->publish.at == 0 || m->looking)
        mcd_alarm_set(m->agent, &m->publish, mcd_now_ns() + SOON_NS);
    m->looking = false;
}

static void ready(struct mcd_watch *w, uint32_t events)
{
    struct mcd_mooncake *m = w->context;
    uint64_t v;

    (void)events;
    if (read(m->store_fd, &v, sizeof(v)) == sizeof(v))
        mcm_run(m->store);
}

/* ---- start and stop ---------------------------------------------------------------- */

/* Mooncake's connection string: "http://host:port/path"; "etcd://host:port;host:port" or without the scheme. */
static int parse(const char *text, struct mcm_options *o, char *endpoints, size_t size)
{
    size_t used = 0;
    const char *p;

    if (strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0) {
        o->backend = MCM_HTTP;
        snprintf(endpoints, size, "%s", text);
        return 0;
    }
    p = strstr(text, "://");
    if (p != NULL && strncmp(text, "etcd://", 7) != 0)
        return -EINVAL;
    o->backend = MCM_ETCD;
    for (p = p != NULL ? p + 3 : text; *p != '\0';) {
        size_t n = strcspn(p, ",;");
        int k = snprintf(endpoints + used, size - used, "%s%s%.*s", used == 0 ? "" : ",",
                         strncmp(p, "http", 4) == 0 ? "" : "http://", (int)n, p);

        if (n == 0 || k < 0 || (size_t)k >= size - used)
            return -EINVAL;
        used += (size_t)k;
        p += n + (p[n] != '\0');
    }
    return used == 0 ? -EINVAL : 0;
}

int mcd_mooncake_publish_init(struct mcd_mooncake *m, char *error, size_t error_size)
{
    const struct mcd_config *c = &m->agent->config;
    char endpoints[2 * MCD_TEXT_MAX];
    struct mcm_options o = {
        .endpoints = endpoints,
        .prefix = "mooncake",
        .ca = c->meta_ca,
        .cert = c->meta_cert,
        .key = c->meta_key,
        .ttl_s = c->meta_ttl_s,
        .timeout_ms = c->meta_timeout_ms,
        .address = m->name,
        .incarnation = m->agent->incarnation,
        .log = mcd_log_line,
    };
    char why[320] = "";
    size_t n = strlen(c->mooncake_cluster);
    int res;

    if (strcmp(c->mooncake_metadata, "P2PHANDSHAKE") == 0)
        return 0;
    snprintf(m->prefix, sizeof(m->prefix), "mooncake/%.64s%s", c->mooncake_cluster,
             n == 0 || c->mooncake_cluster[n - 1] == '/' ? "" : "/");
    if (parse(c->mooncake_metadata, &o, endpoints, sizeof(endpoints)) != 0) {
        snprintf(error, error_size,
                 "[mooncake] metadata = %s: P2PHANDSHAKE, http://host:port/metadata or "
                 "etcd://host:port",
                 c->mooncake_metadata);
        return -EINVAL;
    }
    m->store_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->store_fd < 0)
        return -errno;
    o.notify_fd = m->store_fd;
    res = mcm_create(&o, &m->store, why, sizeof(why));
    if (res == 0) {
        m->store_watch.ready = ready;
        m->store_watch.context = m;
        m->publish.fire = due;
        m->publish.context = m;
        res = mcd_watch_add(m->agent, &m->store_watch, m->store_fd, EPOLLIN);
    }
    if (res != 0) {
        snprintf(error, error_size, "[mooncake] metadata = %s: %s", c->mooncake_metadata,
                 why[0] != '\0' ? why : strerror(-res));
        if (m->store != NULL)
            mcm_destroy(m->store);
        m->store = NULL;
        close(m->store_fd);
        m->store_fd = -1;
    }
    return res;
}

static void removed(void *context, const struct mcm_result *r)
{
    unsigned *left = context;

    (void)r;
    --*left;
}

void mcd_mooncake_publish_fini(struct mcd_mooncake *m)
{
    struct pollfd rung = {.fd = m->store_fd, .events = POLLIN};
    uint64_t limit = mcd_now_ns() + m->agent->config.meta_timeout_ms * MCD_MOONCAKE_MS;
    char where[MCM_KEY_MAX];
    unsigned left = 2;
    uint64_t v;

    m->stopping = true;
    if (m->store == NULL)
        return;
    mcd_alarm_clear(m->agent, &m->publish);
    mcd_watch_remove(m->agent, &m->store_watch);
    key(m, "ram", where);
    mcm_delete(m->store, where, removed, &left);
    key(m, "rpc_meta", where);
    mcm_delete(m->store, where, removed, &left);
    while (left != 0 && mcd_now_ns() < limit) {
        poll(&rung, 1, 100);
        if (read(m->store_fd, &v, sizeof(v)) == sizeof(v))
            mcm_run(m->store);
    }
    mcm_destroy(m->store);
    m->store = NULL;
    close(m->store_fd);
}
