/* SPDX-License-Identifier: Apache-2.0 */
/* The agent: everything that lives as long as the process.  Owned by the control thread. */
#ifndef MCD_AGENT_H
#define MCD_AGENT_H

#include "config.h"
#include "engine.h"
#include "extent.h"
#include "keeper.h"
#include "limbo.h"
#include "registration.h"
#include "session.h"
#include "stats.h"
#include "tenant.h"
#include "watch.h"
#include "worker.h"

struct epoll_event;
struct mcd_admin;
struct mcd_cluster;
struct mcd_mooncake;
struct mcd_rdma_owner;
struct mcd_master;
struct mcd_store;
struct mcd_gpu;
struct mct_cuda;

#define MCD_RESOLVERS 4u

struct mcd_agent {
    struct mcd_config config;
    /* Reads the configuration again, as at the start. 0 or a sentence in error. */
    int (*reread)(struct mcd_config *out, char *error, size_t error_size);
    uint64_t incarnation;
    uint64_t started_ns; /* CLOCK_MONOTONIC */
    uint64_t tick_hz;
    uint32_t tick_shift;

    struct mcd_engine *engines[MCD_ENGINES_MAX];
    unsigned nengines, next_engine;
    struct mcd_pool pool;
    struct mcd_worker *worker, *quick; /* large memory; what a session begins with */
    struct mcd_admin *admin;
    bool master_only;            /* mcshm-master: no engines, memory and clients */
    bool network;                /* engines have transports that reach beyond this host */
    struct mcd_cluster *cluster; /* other agents; NULL: [peer] listen = off */
    struct mct_rdma *rdma;       /* this host's RDMA devices; NULL: none are used */
    struct mcd_rdma_owner *rdma_owner;
    struct mcd_registry registry;  /* of memory with them */
    struct mcd_store *store;       /* objects; NULL: [store] size = 0 */
    struct mct_cuda *cuda;         /* this host's GPUs; NULL: [gpu] enable = off */
    struct mcd_gpu *gpu;           /* who looks after it: gpu.h; likewise */
    struct mcd_master *master;     /* the directory, if this agent may lead it; NULL: it may not */
    struct mcd_mooncake *mooncake; /* stock Mooncake processes; NULL: [mooncake] listen = off */
    struct mcd_worker *resolvers[MCD_RESOLVERS]; /* they ask name servers */
    unsigned next_resolver;

    struct epoll_event *events; /* of the loop's present round */
    int nevents;
    struct mcd_alarm *alarms; /* by time */
    int epoll_fd, listen_fd, lock_fd, event_fd, signal_fd;
    struct mcd_staging *staging[MCD_ENGINES_MAX]; /* memory of the engines' stages: staging.c */
    struct mcd_keeper keeper;
    struct mcd_recovery recovery;     /* of what an earlier agent has left */
    struct mcd_alarm pulse;           /* tells the keeper that this agent is alive */
    uint64_t epochs[MCD_ENGINES_MAX]; /* of the engines, at the last pulse */
    uint32_t stills[MCD_ENGINES_MAX]; /* looks in a row at which it had not turned */
    bool stopping;
    bool keeping;    /* for the next agent: no session ends */
    bool bound;      /* the socket's file is there */
    bool deaf;       /* out of descriptors: new connections wait */
    uint32_t faults; /* those that were looked into */
    bool look;       /* an engine, the fault handler or the clock asks for a look at all sessions */
    uint64_t due;    /* ns: of the next session's deadline; UINT64_MAX: none */

    struct mcd_stats stats;
    struct mcd_session *sessions;
    struct mcd_segment *segments; /* those with a name */
    unsigned nsessions, nadmitted;
    struct mcd_tenants tenants;
    uint64_t queue_memory; /* bytes of all queues: shared and the engines' private half */
    uint32_t next_session;

    /* counters of the control thread */
    uint64_t accepted, refused, ended, protocol_errors, version_errors, unmapped_refused,
        fault_ends, requests, descriptors_unwanted;
    uint64_t refusals[MCS_STATUS_COUNT]; /* control requests refused, by status */
    uint64_t revoke_timeouts;
    struct mcd_reported reported; /* of queues that are gone */
};

uint64_t mcd_now_ns(void);      /* CLOCK_MONOTONIC */
uint64_t mcd_boot_ns(void);     /* CLOCK_BOOTTIME: it goes on while the host is suspended */
uint64_t mcd_incarnation(void); /* a fresh random number, never 0 */

/* control.c: sockets, event loop. On failure one sentence in error. */
int mcd_control_init(struct mcd_agent *a, char *error, size_t error_size);
void mcd_control_run(struct mcd_agent *a);
void mcd_control_fini(struct mcd_agent *a);
/* Who makes and frees such memory: what is small does not wait behind what is large. */
struct mcd_worker *mcd_worker_of(struct mcd_agent *a, uint64_t page_size, uint64_t size);
/* Unmaps and closes a region of ordinary pages that nobody uses any more. */
void mcd_reap_region(struct mcd_agent *a, void *map, uint64_t size, int fd);
/* What an epoll entry stands for; kept in epoll_event.data as a tagged pointer. */
enum mcd_source {
    MCD_SOURCE_LISTEN,
    MCD_SOURCE_EVENT,
    MCD_SOURCE_SIGNAL,
    MCD_SOURCE_ADMIN,
    MCD_SOURCE_SESSION,
    MCD_SOURCE_WATCH,
    MCD_SOURCE_NONE /* was removed while the loop had an event of it */
};
int mcd_control_watch(struct mcd_agent *a, int fd, enum mcd_source source, void *object);
void mcd_control_unwatch(struct mcd_agent *a, int fd);

/* query.c: what the agent tells about itself. The text is the caller's to free(). */
char *mcd_query_json(struct mcd_agent *a, const struct mcd_session *asker, uint32_t what);
/* Root and the agent's own user see everything, others what is their tenant's. */
bool mcd_may_see(const struct mcd_session *asker, uint64_t tenant);

/* admin.c: /metrics and /health. */
int mcd_admin_create(struct mcd_agent *a, struct mcd_admin **out, char *error, size_t error_size);
void mcd_admin_destroy(struct mcd_admin *admin);
void mcd_admin_run(struct mcd_admin *admin);
const char *mcd_admin_listen(const struct mcd_admin *admin); /* "127.0.0.1:9419" */

#endif
