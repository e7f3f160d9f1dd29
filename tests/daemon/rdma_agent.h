/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent with RDMA devices that exist only in the test (tests/fake-verbs), and clients that speak
 * control messages.  Its loop and its engine are played here, step by step, so that a test sees what is not
 * answered yet; the devices' threads are real.
 */
#ifndef TESTS_RDMA_AGENT_H
#define TESTS_RDMA_AGENT_H

#include "daemon/handlers.h"
#include "step_agent.h"
#include "tests/fake-verbs/fake.h"

#define RA_DEVICES 2u
#define RA_PAGE 4096u

struct ra {
    struct mcd_agent *agent;
    struct fake_device *devices[FAKE_DEVICES];
    unsigned ndevices;
    unsigned keys_changed;
    struct mcd_watch watch;
};

#define ra_until(g, condition) sa_until((g)->agent, condition)
#define ra_pump(g, wait_ms) sa_pump((g)->agent, wait_ms)
#define ra_ask(g, c, type, body) sa_ask((g)->agent, c, type, body)
#define ra_arrive(g, c) sa_arrive((g)->agent, c)
#define ra_alloc(g, c, size) sa_alloc((g)->agent, c, size)
#define ra_buffer(g, ...) sa_buffer((g)->agent, __VA_ARGS__)

static inline void ra_changed(void *context, unsigned nic)
{
    (void)context;
    (void)nic;
}

static inline void ra_keys_changed(void *context)
{
    struct ra *g = context;

    g->keys_changed++;
    mcd_segments_keys_changed(g->agent);
}

static inline void ra_ready(struct mcd_watch *w, uint32_t events)
{
    struct ra *g = w->context;

    (void)events;
    mct_rdma_run(g->agent->rdma);
}

/* The devices were added with fake_add() before. chunk: bytes of one registration at most. */
static inline void ra_init_rdma(struct ra *g, uint64_t chunk, bool require)
{
    const struct mct_rdma_options o = {
        .devices = "auto",
        .deny = "",
        .gid_index = -1,
        .chunk = chunk,
        .depth = 64,
        .cq_depth = 256,
        .max_inline = 64,
        .max_reads = 16,
        .timeout = 14,
        .retries = 7,
    };
    const struct mct_rdma_host h = {
        .context = g, .changed = ra_changed, .keys_changed = ra_keys_changed};
    char error[512] = "";

    cr_assert_eq(mct_rdma_create(&o, &h, &g->agent->rdma, error, sizeof(error)), 0, "%s", error);
    mcd_registry_init(&g->agent->registry, g->agent->rdma, require);
    g->watch = (struct mcd_watch){.ready = ra_ready, .context = g, .fd = -1};
    cr_assert_eq(mcd_watch_add(g->agent, &g->watch, mct_rdma_fd(g->agent->rdma), EPOLLIN), 0);
}

static inline void ra_init(struct ra *g, uint64_t chunk, bool require)
{
    char name[16];

    fake_reset();
    memset(g, 0, sizeof(*g));
    g->agent = sa_init();
    for (; g->ndevices < RA_DEVICES; g->ndevices++) {
        snprintf(name, sizeof(name), "fake%u", g->ndevices);
        g->devices[g->ndevices] = fake_add(name);
    }
    ra_init_rdma(g, chunk, require);
}

/* All clients have left. */
static inline void ra_fini(struct ra *g)
{
    struct mcd_agent *a = g->agent;

    ra_until(g, a->sessions == NULL && a->registry.count == 0);
    cr_assert_eq(a->pool.used, 0);
    cr_assert_eq(a->registry.pending, 0);
    cr_assert_eq(a->registry.unregistered_bytes, 0);
    if (a->rdma != NULL) {
        cr_assert_eq(fake_count(FAKE_MR, NULL), 0);
        mcd_watch_remove(a, &g->watch);
        mct_rdma_destroy(a->rdma);
    }
    cr_assert_eq(fake_leaks(), 0);
    sa_fini(a);
}

/* The registrations of a device that peers can use; false when there are not i + 1 of them. */
static inline bool ra_remote_region(const struct fake_device *d, unsigned i,
                                    struct fake_region *out)
{
    for (unsigned k = 0; fake_region(d, k, out); k++)
        if ((out->access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)) != 0 && i-- == 0)
            return true;
    return false;
}

#endif
