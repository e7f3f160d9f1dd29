/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole agents in one process, without clients: each has its control thread's loop, driven by the
 * test, and an engine in a thread of its own.  They reach each other over loopback like any two.
 */
#ifndef TESTS_AGENTS_H
#define TESTS_AGENTS_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>

#include <daemon/peer.pb-c.h>

#include "daemon/cluster.h"
#include "daemon/rdma.h"
#include "loop.h"
#include "shm/status.h"

#define AG_SIZE (1u << 20)
#define AG_ADDRESS UINT64_C(0x200000000000)

struct ag {
    struct mcd_agent *agent;
    struct mcd_cluster *cluster;
    pthread_t thread;
};

static inline void *ag_engine(void *engine)
{
    mcd_engine_run(engine);
    return NULL;
}

/* listen: "127.0.0.1:0", or an address to come back at. incarnation 0: a random one. devices: [rdma] devices, NULL: none. */
static inline void ag_init_rdma(struct ag *g, const char *listen, uint64_t incarnation,
                                const char *devices)
{
    static const struct mct_ops *const nets[] = {&mct_tcp_ops, &mct_rdma_ops};
    struct mcd_agent *a = loop_init();
    struct mcd_engine_options o = {
        .tick_hz = 1000000000,
        .tick_shift = 10,
        .spin_us = 20,
        .slice = 1 << 18,
        .stream_min = 1 << 18,
        .deadline_us = 30000000,
        .control_fd = a->event_fd,
        .nets = nets,
        .nnets = devices != NULL ? 2 : 1,
        .network = true,
    };
    char error[512] = "";

    mcd_config_init(&a->config);
    snprintf(a->config.peer_listen, sizeof(a->config.peer_listen), "%s", listen);
    a->config.meta_backend = MCM_P2P;
    a->config.connect_ms = 200;
    a->incarnation = incarnation != 0 ? incarnation : mcd_incarnation();
    a->network = true;
    if (devices != NULL) {
        snprintf(a->config.rdma_devices, sizeof(a->config.rdma_devices), "%s", devices);
        a->config.rdma_enable = MCD_RDMA_REQUIRE;
        cr_assert_eq(mcd_rdma_create(a, error, sizeof(error)), 0, "%s", error);
        cr_assert_eq(mcd_rdma_watch(a), 0);
        o.rdma = a->rdma;
    }
    cr_assert_eq(mcd_engine_create(&o, &a->engines[0]), 0);
    a->nengines = 1;
    cr_assert_eq(pthread_create(&g->thread, NULL, ag_engine, a->engines[0]), 0);
    cr_assert_eq(mcd_cluster_create(a, error, sizeof(error)), 0, "%s", error);
    g->agent = a;
    g->cluster = a->cluster;
}

static inline void ag_init_at(struct ag *g, const char *listen, uint64_t incarnation)
{
    ag_init_rdma(g, listen, incarnation, NULL);
}

static inline void ag_init(struct ag *g)
{
    ag_init_at(g, "127.0.0.1:0", 0);
}

/* What was to be freed after a grace period is freed. */
static inline void ag_settle(struct ag *g)
{
    for (int i = 0; i < 20; i++)
        loop_once(g->agent, 2);
}

static inline void ag_fini(struct ag *g)
{
    mcd_cluster_destroy(g->agent);
    ag_settle(g);
    mcd_engine_stop(g->agent->engines[0]);
    cr_assert_eq(pthread_join(g->thread, NULL), 0);
    mcd_engine_destroy(g->agent->engines[0]);
    mcd_rdma_unwatch(g->agent);
    mcd_rdma_destroy(g->agent);
    loop_fini(g->agent);
}

/* One round of both. */
static inline void ag_turn(struct ag *a, struct ag *b)
{
    loop_once(a->agent, 1);
    if (b != NULL)
        loop_once(b->agent, 1);
}

#define ag_until(a, b, condition)                                                                  \
    do {                                                                                           \
        uint64_t end_ = mcd_now_ns() + UINT64_C(20000000000);                                      \
        while (!(condition)) {                                                                     \
            cr_assert(mcd_now_ns() < end_, "waited in vain for " #condition);                      \
            ag_turn((a), (b));                                                                     \
        }                                                                                          \
    } while (0)

/* ---- segments and openings ------------------------------------------------------------ */

struct ag_segment {
    struct mcd_session *owner;
    struct mcd_segment *segment;
    struct mcd_extent extent;
};

/* A published segment with one buffer, without a client. */
static inline void ag_publish(struct ag *g, struct ag_segment *s, const char *name, uint64_t tenant)
{
    struct mcd_snapshot *old;

    memset(s, 0, sizeof(*s));
    s->owner = calloc(1, sizeof(*s->owner));
    s->extent.map = aligned_alloc(4096, AG_SIZE);
    cr_assert(s->owner != NULL && s->extent.map != NULL);
    memset(s->extent.map, 0, AG_SIZE);
    s->extent.size = AG_SIZE;
    s->extent.address = AG_ADDRESS;
    s->owner->agent = g->agent;
    s->owner->tenant = tenant;
    s->segment = s->owner->segment = mcd_segment_create(s->owner, tenant, mcd_incarnation());
    cr_assert_not_null(s->segment);
    snprintf(s->segment->name, sizeof(s->segment->name), "%s", name);
    s->segment->named = true;
    s->segment->next = g->agent->segments;
    if (s->segment->next != NULL)
        s->segment->next->prev = s->segment;
    g->agent->segments = s->segment;
    cr_assert_eq(mcd_segment_add(s->segment, &s->extent, 0, AG_SIZE,
                                 MCS_ACCESS_READ | MCS_ACCESS_WRITE, &old),
                 0);
    mcd_segments_changed(g->agent);
}

/* As a session's end does; the memory stays until ag_unpublish(). */
static inline void ag_withdraw(struct ag_segment *s)
{
    struct mcd_snapshot *old;

    s->owner->ending = true; /* no operation of it waits for the metadata's answer */
    mcd_session_withdraw(s->owner, &old);
    /* the engine may hold it for this turn */
    if (old != NULL) {
        struct mcd_grace grace;

        mcd_grace_begin(&grace, s->owner->agent->engines, 1);
        while (!mcd_grace_over(&grace))
            sched_yield();
        free(old);
    }
}

static inline void ag_unpublish(struct ag_segment *s)
{
    if (s->segment->named)
        ag_withdraw(s);
    s->segment->owner = NULL;
    mcd_segment_put(s->segment);
    free(s->extent.map);
    free(s->owner);
}

struct ag_opened {
    struct mcd_opening *opening;
    unsigned calls;
    uint32_t status;
    char text[1024];
    struct mcd_segment *segment;
};

static inline void ag_on_opened(void *context, uint32_t status, const char *text,
                                struct mcd_segment *segment)
{
    struct ag_opened *o = context;

    o->calls++;
    o->status = status;
    o->segment = segment;
    snprintf(o->text, sizeof(o->text), "%s", text);
}

static inline void ag_open(struct ag *g, struct ag_opened *o, const char *address, const char *name,
                           uint64_t tenant)
{
    char full[600];

    memset(o, 0, sizeof(*o));
    snprintf(full, sizeof(full), "%s%s%s", address, name[0] != '\0' ? "/" : "", name);
    cr_assert_eq(mcd_remote_open(g->cluster, full, tenant, ag_on_opened, o, &o->opening), 0);
}

static inline struct mcd_peer *ag_peer(const struct ag *g, const struct ag *of)
{
    struct mcd_peer *p = g->cluster->peers;

    while (p != NULL && (p->state == MCD_PEER_DEFUNCT || p->incarnation != of->agent->incarnation))
        p = p->next;
    return p;
}

static inline bool ag_is_up(const struct ag *g, const struct ag *of)
{
    const struct mcd_peer *p = ag_peer(g, of);

    return p != NULL && p->state == MCD_PEER_UP;
}

/* ---- an agent that says what the test wants ---------------------------------------------- */

struct ag_raw {
    struct mcd_wire *wire;
    struct mcd_wire_auth *auth;
    unsigned ready, broken, hellos, byes, messages;
    uint32_t status;             /* of the break */
    struct mcd_wire_header last; /* the last answer */
    uint8_t payload[4096];       /* its start */
    size_t size;
    /* answers requests, NULL: nobody does */
    void (*request)(struct ag_raw *r, const struct mcd_wire_header *h, const uint8_t *m,
                    size_t size);
    void *context;
};

static inline void ag_raw_ready(void *context, struct mcd_wire *w)
{
    struct ag_raw *r = context;

    (void)w;
    r->ready++;
}

static inline void ag_raw_message(void *context, struct mcd_wire *w,
                                  const struct mcd_wire_header *h, const uint8_t *m, size_t size)
{
    struct mcd_wire_header pong = {.type = MCD_WIRE_PING, .reply = true};
    struct ag_raw *r = context;

    r->messages++;
    r->hellos += h->type == MCD_WIRE_HELLO;
    r->byes += h->type == MCD_WIRE_BYE;
    if (h->reply) {
        r->last = *h;
        r->size = size;
        memcpy(r->payload, m, size < sizeof(r->payload) ? size : sizeof(r->payload));
    } else if (h->type == MCD_WIRE_PING) {
        pong.id = h->id;
        cr_assert_eq(mcd_wire_send(w, &pong, NULL), 0);
    } else if (r->request != NULL) {
        r->request(r, h, m, size);
    }
}

static inline void ag_raw_broken(void *context, struct mcd_wire *w, uint32_t status,
                                 const char *text)
{
    struct ag_raw *r = context;

    (void)w;
    (void)text;
    r->broken++;
    r->status = status;
}

static inline void ag_raw_take(struct ag_raw *r, int fd, uint64_t incarnation, bool initiator)
{
    struct mcd_wire_auth_options ao = {.method = MCD_WIRE_NONE};
    char error[256];
    struct mcd_wire_options o = {
        .incarnation = incarnation,
        .initiator = initiator,
        .events = {.context = r,
                   .ready = ag_raw_ready,
                   .message = ag_raw_message,
                   .broken = ag_raw_broken},
    };

    cr_assert_eq(mcd_wire_auth_create(&ao, &r->auth, error, sizeof(error)), 0);
    o.auth = r->auth;
    cr_assert_eq(mcd_wire_create(&o, fd, NULL, 0, &r->wire), 0);
}

/* A connected socket, from `from` (NULL: any). */
static inline int ag_connect(const struct ag *g, const char *from)
{
    struct sockaddr_in s = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons(g->cluster->port)};
    struct sockaddr_in local = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (from != NULL) {
        cr_assert_eq(inet_pton(AF_INET, from, &local.sin_addr), 1);
        cr_assert_eq(bind(fd, (struct sockaddr *)&local, sizeof(local)), 0);
    }
    cr_assert_eq(connect(fd, (struct sockaddr *)&s, sizeof(s)), 0);
    return fd;
}

static inline void ag_raw_call(struct ag_raw *r, const struct ag *g, uint64_t incarnation)
{
    memset(r, 0, sizeof(*r));
    ag_raw_take(r, ag_connect(g, NULL), incarnation, true);
}

static inline void ag_raw_run(struct ag_raw *r)
{
    mcd_wire_run(r->wire, mcd_now_ns());
}

static inline void ag_raw_hello(struct ag_raw *r, const char *address)
{
    struct mcd_wire_header h = {.type = MCD_WIRE_HELLO};
    Mcd__Hello m = MCD__HELLO__INIT;

    m.agent_version = (char *)"raw\n\xff";
    m.address = (char *)address;
    m.features = MCT_TCP_FEATURE_NOTIFY;
    cr_assert_eq(mcd_wire_send(r->wire, &h, &m.base), 0);
}

static inline void ag_raw_answer(struct ag_raw *r, const struct mcd_wire_header *h, uint32_t status,
                                 const ProtobufCMessage *m)
{
    struct mcd_wire_header a = {.type = h->type, .reply = true, .id = h->id, .status = status};

    cr_assert_eq(mcd_wire_send(r->wire, &a, m), 0);
}

static inline void ag_raw_fini(struct ag_raw *r)
{
    mcd_wire_destroy(r->wire);
    mcd_wire_auth_destroy(r->auth);
}

#endif
