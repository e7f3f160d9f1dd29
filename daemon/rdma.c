/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "cluster.h"
#include "handlers.h"
#include "log.h"
#include "transports/rdma/rdma.h"

struct mcd_rdma_owner {
    struct mcd_watch watch;
    struct mcd_agent *agent;
};

static const char *const state_words[] = {"closed", "down", "up"};

/* What a nic is now, in one line. */
static void say(const struct mct_rdma_nic *n)
{
    char gid[INET6_ADDRSTRLEN] = "";

    inet_ntop(AF_INET6, n->gid, gid, sizeof(gid));
    if (n->state == MCT_RDMA_UP)
        mcd_log_limited(
            MCD_LOG_INFO,
            "RDMA device %s is up: GID %s (index %d), MTU %u, %.0f Gb/s, node %d%s%s: %s", n->name,
            gid, n->gid_index, n->mtu, (double)n->rate / 1e9, n->node,
            n->netdev[0] != '\0' ? ", " : "", n->netdev, n->why);
    else
        mcd_log_limited(MCD_LOG_WARNING, "RDMA device %s is %s: %s", n->name, state_words[n->state],
                        n->why);
}

static void changed(void *context, unsigned nic)
{
    struct mcd_agent *a = context;
    struct mct_rdma_nic n;

    mct_rdma_nic(a->rdma, nic, &n);
    say(&n);
    if (a->cluster != NULL)
        mcd_peers_nics_changed(a->cluster);
}

/* Memories have keys on more or fewer devices: whoever reaches them from other hosts is told. */
static void keys_changed(void *context)
{
    mcd_segments_keys_changed(context);
}

static void ready(struct mcd_watch *w, uint32_t events)
{
    struct mcd_rdma_owner *o = w->context;

    (void)events;
    mct_rdma_run(o->agent->rdma);
}

/* Says what was found; counts those that are up. */
static unsigned look_around(const struct mcd_agent *a)
{
    unsigned up = 0;

    for (unsigned i = 0; i < mct_rdma_nics(a->rdma); i++) {
        struct mct_rdma_nic n;

        mct_rdma_nic(a->rdma, i, &n);
        say(&n);
        up += n.state == MCT_RDMA_UP;
    }
    return up;
}

int mcd_rdma_create(struct mcd_agent *a, char *error, size_t error_size)
{
    const struct mcd_config *c = &a->config;
    struct mct_rdma_options o = {
        .devices = c->rdma_devices,
        .deny = c->rdma_deny,
        .gid_index = mcd_config_gid_index(c),
        .mtu = c->rdma_mtu == 0 ? 0 : 128u << c->rdma_mtu,
        .chunk = c->rdma_chunk,
        .depth = (unsigned)c->rdma_depth,
        .cq_depth = (unsigned)c->rdma_cq_depth,
        .max_inline = (unsigned)c->rdma_inline,
        .max_reads = (unsigned)c->rdma_reads,
        .timeout = (unsigned)c->rdma_timeout,
        .retries = (unsigned)c->rdma_retries,
        .traffic_class = (unsigned)c->rdma_traffic_class,
        .service_level = (unsigned)c->rdma_service_level,
        .log = mcd_log_line,
    };
    const struct mct_rdma_host host = {
        .context = a, .changed = changed, .keys_changed = keys_changed};
    bool require = c->rdma_enable == MCD_RDMA_REQUIRE;
    struct mcd_rdma_owner *owner = NULL;
    char text[400] = "";
    unsigned up;
    int res;

    if (strcmp(c->peer_listen, "off") == 0 || c->rdma_enable == MCD_RDMA_OFF)
        return 0;
    if (c->require_encryption != 0) {
        mcd_info("no RDMA: [peer] require_encryption = yes, and RDMA rails carry plain text");
        return 0;
    }
    owner = aligned_alloc(16, (sizeof(*owner) + 15) & ~(size_t)15);
    if (owner == NULL)
        return -ENOMEM;
    memset(owner, 0, sizeof(*owner));
    owner->agent = a;
    owner->watch.fd = -1;
    owner->watch.ready = ready;
    owner->watch.context = owner;
    res = mct_rdma_create(&o, &host, &a->rdma, text, sizeof(text));
    if (res != 0) {
        a->rdma = NULL;
        if (require || res == -EINVAL) {
            snprintf(error, error_size, "[rdma]: %s", text);
            goto out;
        }
        mcd_warning("no RDMA: %s; going on with TCP alone", text);
        res = 0;
        goto out;
    }
    up = look_around(a);
    if (up == 0 && require) {
        snprintf(
            error, error_size,
            "[rdma] enable = require, and of %u RDMA devices that [rdma] devices and deny allow "
            "none is up; `mcshm doctor rdma` tells what stands in the way, enable = auto goes on "
            "without",
            mct_rdma_nics(a->rdma));
        res = -ENODEV;
    }
    if (res != 0 || mct_rdma_nics(a->rdma) == 0) {
        if (res == 0)
            mcd_debug("no RDMA: there is no device that [rdma] devices and deny allow");
        mct_rdma_destroy(a->rdma); /* nothing to wait for: devices are looked for at the start */
        a->rdma = NULL;
        goto out;
    }
    a->rdma_owner = owner;
    mcd_registry_init(&a->registry, a->rdma, require);
    owner = NULL;

out:
    free(owner);
    return res;
}

int mcd_rdma_watch(struct mcd_agent *a)
{
    return a->rdma == NULL ? 0
                           : mcd_watch_add(a, &a->rdma_owner->watch, mct_rdma_fd(a->rdma), EPOLLIN);
}

void mcd_rdma_unwatch(struct mcd_agent *a)
{
    if (a->rdma != NULL)
        mcd_watch_remove(a, &a->rdma_owner->watch);
}

void mcd_rdma_destroy(struct mcd_agent *a)
{
    if (a->rdma == NULL)
        return;
    if (a->registry.count == 0)
        mct_rdma_destroy(a->rdma);
    else /* devices that hang: what they may still reach stays as it is until the process is gone */
        mcd_debug("RDMA devices are left to the kernel");
    a->rdma = NULL;
    a->registry.rdma = NULL;
    free(a->rdma_owner);
    a->rdma_owner = NULL;
}
