/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that comes and goes while memories and queue pairs are made and given up, and an engine reads keys and lets pairs
 * go: nothing may be touched after its end, nothing left behind. (The sanitizers' builds look closer.)
 */
#include "tests/fake-verbs/fake.h"
#include "rdma_nics.h"

#include <sched.h>

#define PAIRS 8u
#define PORTS 32u
#define MEMORIES 6u
#define LIVES 3u

/* Handed from the control thread to the engine: NULL, a pair, ... */
static struct mct_rdma_pair *handed[PAIRS];
static struct mct_rdma_memory *shared; /* there all the time */
static uint32_t stop;

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Ports that the engine holds, as its pollers do. */
struct engine {
    struct mct_rdma_port *ports[PORTS];
    unsigned pairs[PORTS];
};

static unsigned hold_port(struct engine *e, struct mct_rdma_port *port)
{
    unsigned i, at = PORTS;

    for (i = 0; i < PORTS; i++) {
        if (e->ports[i] == port)
            return i;
        if (e->ports[i] == NULL && at == PORTS)
            at = i;
    }
    if (at == PORTS)
        abort();
    e->ports[at] = port;
    port->engine = e;
    return at;
}

static void put_failed_ports(struct engine *e)
{
    struct mct_rdma_port *port;
    struct ibv_wc wc;

    for (unsigned i = 0; i < PORTS; i++) {
        port = e->ports[i];
        if (port == NULL)
            continue;
        (void)ibv_poll_cq(port->cq, 1, &wc);
        if (e->pairs[i] == 0 && mcs_load_acquire(&port->failed) != 0) {
            e->ports[i] = NULL;
            mct_rdma_port_put(port);
        }
    }
}

static void *engine_thread(void *arg)
{
    struct engine e;
    struct mct_rdma_pair *held[PAIRS] = {NULL}, *p;
    bool asked[PAIRS] = {false}, left = true;
    uint32_t state = 7, lkey;
    uint64_t bytes_left;
    unsigned *ends = arg;

    memset(&e, 0, sizeof(e));
    while (left || mcs_load_acquire(&stop) == 0) {
        left = false;
        for (unsigned i = 0; i < PAIRS; i++) {
            if (held[i] == NULL) {
                held[i] = mcs_exchange(&handed[i], NULL); /* hand_over() */
                asked[i] = false;
                if (held[i] != NULL)
                    e.pairs[hold_port(&e, held[i]->port)]++;
            }
            p = held[i];
            if (p == NULL)
                continue;
            left = true;
            (void)mct_rdma_memory_lkey(shared, p->port, bytes + next_random(&state) % BYTES, &lkey,
                                       &bytes_left);
            if (!asked[i] && (mcs_load_acquire(&stop) != 0 || reached(p) != MCT_RDMA_STAGE_LIVES ||
                              next_random(&state) % 64 == 0)) {
                if (next_random(&state) % 2 == 0)
                    mct_rdma_pair_ask(p, MCT_RDMA_STAGE_ERROR);
                mct_rdma_pair_ask(p, MCT_RDMA_STAGE_GONE);
                asked[i] = true;
            }
            if (asked[i] && reached(p) == MCT_RDMA_STAGE_GONE) {
                e.pairs[hold_port(&e, p->port)]--;
                mct_rdma_pair_free(p);
                held[i] = NULL;
                (*ends)++;
            }
        }
        put_failed_ports(&e);
        sched_yield();
    }
    for (unsigned i = 0; i < PORTS; i++)
        if (e.ports[i] != NULL)
            cr_assert_eq(e.pairs[i], 0);
    return NULL;
}

/* A pair that is being made; done tells that it may be looked at. */
struct making {
    struct mct_rdma_pair *pair;
    bool done;
    int res;
};

static void made(void *context, int res, const char *text)
{
    struct making *m = context;

    (void)text;
    m->done = true;
    m->res = res;
}

static void make_pairs(struct making *making, uint32_t *state)
{
    for (unsigned i = 0; i < PAIRS; i++) {
        struct making *m = &making[i];

        if (m->pair == NULL) {
            m->done = false;
            cr_assert_eq(
                mct_rdma_pair_create(rdma, next_random(state) % 2, instance, 1, made, m, &m->pair),
                0);
        } else if (m->done && m->res == 0 && next_random(state) % 4 != 0 &&
                   mcs_load_acquire(&handed[i]) == NULL) {
            mcs_store_release(&handed[i], m->pair); /* engine_thread() */
            m->pair = NULL;
        } else if (m->done || next_random(state) % 16 == 0) {
            mct_rdma_pair_destroy(m->pair);
            m->pair = NULL;
        }
    }
}

struct holding {
    struct mct_rdma_memory *memory;
    bool busy;
    unsigned done;
};

static void held_or_gone(void *context, int res, const char *text)
{
    struct holding *h = context;

    (void)res;
    (void)text;
    h->busy = false;
}

static void make_memories(struct holding *holding, uint32_t *state)
{
    struct mct_rdma_range r = {.address = bytes, .length = BYTES, .dmabuf_fd = -1};

    for (unsigned i = 0; i < MEMORIES; i++) {
        struct holding *h = &holding[i];

        if (h->busy || next_random(state) % 4 != 0)
            continue;
        h->busy = true;
        if (h->memory == NULL) {
            r.access = i % 2 == 0 ? MCT_RDMA_REMOTE_READ : 0;
            r.published = r.access != 0 ? 0x5000000000 : 0;
            cr_assert_eq(mct_rdma_memory_create(rdma, &r, held_or_gone, h, &h->memory), 0);
        } else {
            mct_rdma_memory_destroy(rdma, h->memory, held_or_gone, h);
            h->memory = NULL;
        }
    }
}

Test(rdma_churn, a_device_comes_and_goes_under_load, .timeout = 120)
{
    struct making making[PAIRS] = {{0}};
    struct holding holding[MEMORIES] = {{0}};
    struct fake_device *d;
    uint32_t state = 1;
    unsigned ends = 0, lives = 0;
    uint64_t since;
    pthread_t engine;

    fake_reset();
    d = fake_add("fake0");
    fake_add("fake1");
    begin();
    shared = new_memory(0);
    cr_assert_eq(pthread_create(&engine, NULL, engine_thread, &ends), 0);
    since = mct_ms();
    while (lives < LIVES) {
        make_pairs(making, &state);
        make_memories(holding, &state);
        turn();
        if (d != NULL && nic(0).state == MCT_RDMA_UP && mct_ms() - since > 300) {
            fake_remove(d);
            d = NULL;
        } else if (d == NULL && nic(0).state == MCT_RDMA_CLOSED) {
            d = fake_add("fake0");
            lives++;
        }
        if (nic(0).state != MCT_RDMA_UP)
            since = mct_ms();
        cr_assert_lt(mct_ms() - since, WAIT_MS);
    }
    /* one that was made just before the device went would keep its former life from ending */
    for (unsigned i = 0; i < PAIRS; i++)
        if (making[i].pair != NULL)
            mct_rdma_pair_destroy(making[i].pair);
    AWAIT(nic(0).state == MCT_RDMA_UP);
    mcs_store_release(&stop, 1); /* engine_thread() */
    pthread_join(engine, NULL);
    for (unsigned i = 0; i < PAIRS; i++)
        cr_assert(handed[i] == NULL);
    cr_assert_gt(ends, 100);
    for (unsigned i = 0; i < MEMORIES; i++) {
        AWAIT(!holding[i].busy);
        if (holding[i].memory != NULL)
            destroy_memory(holding[i].memory);
    }
    destroy_memory(shared);
    cr_assert(nic(0).memory_regions == 0 && nic(1).memory_regions == 0);
    end();
}
