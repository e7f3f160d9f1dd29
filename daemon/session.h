/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one client's connection.  Everything the client has hangs on it, and its end,
 * by whatever cause, is one path: mcd_session_end().
 */
#ifndef MCD_SESSION_H
#define MCD_SESSION_H

#include <sys/types.h>

#include "engine.h"
#include "segment.h"
#include "shm/cuda.h"
#include "shm/inbox.h"
#include "shm/message.h"
#include "worker.h"

struct mcd_agent;
struct mcm_record;
struct mcd_ledger_extent;
struct mcd_ledger_session;
struct mcd_gpu_import;
struct mcd_gpu_tie;
struct mcd_holds;
struct mcd_limbo;
struct mcd_listing;
struct mcd_mooncake_opening;
struct mcd_object_map;
struct mcd_opening;
struct mcd_quieting;
struct mcd_registration;

/* Handles are index | salt << 12, so that a stale or foreign one is told from a good one. */
#define MCD_TABLE_SIZE 4096u
#define MCD_HANDLE_INDEX(h) ((h) & (MCD_TABLE_SIZE - 1))

/* An open segment. Engines read it through the session's table. */
struct mcd_open {
    uint32_t handle;
    struct mcd_segment *segment;
};

/* A granted mapping of another session's (or its own) extent. Control thread. */
struct mcd_grant {
    uint32_t handle;
    bool writable;
    struct mcd_extent *extent;
    struct mcd_grant *next; /* of the session */
};

/* A control request that cannot be answered at once; a session has one at most. */
struct mcd_operation {
    bool active;
    bool (*ready)(struct mcd_session *s); /* control thread, polled; NULL: the grace period */
    bool rings; /* what makes it ready writes the agent's event descriptor, or is the deadline */
    void (*finish)(struct mcd_session *s); /* replies, or goes on to the next stage */
    struct mcd_grace grace;
    uint64_t deadline; /* ns of CLOCK_MONOTONIC; for copies in callers' threads */
    bool late;         /* it has passed */
    /* what the stages need */
    struct mcd_snapshot *old;  /* to be freed after the grace period */
    struct mcd_extent *extent; /* whose reach is being taken away, or which is to be freed */
    uint64_t offset, length;
    uint32_t access;
    bool last; /* the extent goes too */
    /* handlers_registration.c */
    void (*then)(struct mcd_session *s); /* after registrations were made, or are gone */
    unsigned registering, deregistering; /* that are waited for */
    int registration_res;                /* of the first that failed; why is in `text` */
    struct mcd_registration *fresh[2];   /* for a new buffer, or the pieces of cut ones */
    struct mcd_piece pieces[2];
    unsigned npieces;
    struct mcd_open *open;
    uint32_t handle; /* of a segment that comes back, whose `incarnation` must be this; 0: none */
    uint64_t incarnation;
    struct mcd_quieting
        *quieting; /* engines' I/O into what goes; NULL: not begun, or there is none */
    struct mcd_opening *opening; /* a segment of another host, while it is being found */
    struct mcd_mooncake_opening *mooncake;
    bool answered; /* by another host or the metadata, as follows */
    uint32_t status;
    struct mcd_segment *found;
    char text[232];
    uint64_t began;              /* ns */
    struct mcd_pinging *pinging; /* handlers_peer.c */
    struct mcd_listing *listing; /* store_list.c */
    struct mcd_queue *queue;
    struct mcd_command command;
    struct mcd_job job;
    bool job_done;
    struct mcd_extent_job making;
    struct mcd_gpu_tie
        *tie;           /* what the GPU driver makes, pins or lets go of for it; gpu_memory.h */
    uint64_t gpu_until; /* ns: so long it waits for the GPU driver */
    struct mcd_ledger_extent *back; /* whose memory it is, when it comes back; NULL: it is new */
    struct mcs_gpu_id gpu;          /* device that memory is asked of */
};

/* What the client of a queue says that it copied by itself. */
struct mcd_reported {
    uint64_t caller_tasks, caller_bytes, staged_tasks, staged_bytes;
};

struct mcd_session {
    /* for engines */
    struct mcd_extent *extents[MCD_TABLE_SIZE]; /* acquire / release */
    struct mcd_open *opens[MCD_TABLE_SIZE];     /* acquire / release */
    uint64_t incarnation;
    struct mcs_session_region region;
    uint64_t inbox_head;
    uint32_t inbox_lock; /* engines only: they may deliver to one inbox at the same time */
    uint32_t inbox_error;
    /* 1: of an earlier agent, and not yet what it was: its inbox and buffers are not there.
     * control: release; engines: acquire */
    uint32_t recovering;
    struct mcd_holds *holds; /* objects in place; NULL: no store. Set before it has queues */

    /* control thread only */
    struct mcd_agent *agent;
    struct mcd_session *prev, *next;
    uint32_t id, salt;
    int socket, pidfd, doorbell, region_fd, region_guard;
    bool admitted; /* counts against [session] max */
    bool leaves;   /* does not come back to a later agent */
    bool greeted, ending;
    pid_t pid;
    uid_t uid;
    uint64_t tenant; /* its id */
    struct mcd_tenant *account;
    char name[MCS_NAME_MAX];
    struct mcd_segment *segment;       /* its own */
    struct mcd_ledger_session *record; /* NULL: no ledger is kept */
    struct mcd_limbo *limbo;           /* while it is not all back; NULL: it is */
    bool restored;                     /* from an earlier agent */
    struct mcd_queue *queues;
    uint32_t nqueues, next_queue, nextents, nallocs, nopens, ngrants, next_grant;
    struct mcd_grant *grants;
    struct mcd_object_map *object_maps; /* of the store's extents */
    uint32_t nobject_maps;
    uint32_t objects_gone; /* what region.words->objects_gone should say */
    struct mcd_gpu_import
        *import;       /* parts of GPU memory that have come, and are not all; NULL: none */
    uint64_t memory;   /* bytes of its extents and mappings */
    uint64_t requests; /* control messages */
    struct mcs_stats_session *stats; /* in the stats file; NULL: none */
    struct mcd_reported reported;    /* of queues that are gone */
    uint64_t watched;                /* engines that watch its doorbell, by bit */
    struct mcd_operation op;
    uint16_t request_type;
    uint32_t request_id;
    uint64_t came;           /* mcd_pool_now() then; 0: it is of an earlier agent */
    uint64_t since;          /* ns of CLOCK_MONOTONIC: connected, or began to end */
    uint64_t grants_version; /* what region.words->grants_version should say */
    /* queues leave engines, then grace, then engines' I/O of peers is ended */
    enum { MCD_LIVING, MCD_LEAVING, MCD_FADING, MCD_QUIETING } stage;
};

/* Enters it into the agent's list. */
void mcd_session_link(struct mcd_session *s);
/* Session s, in limbo, goes on over the connection of t, which is not greeted yet and ends. */
void mcd_session_move(struct mcd_session *s, struct mcd_session *t);
/* Takes a fresh connection over. */
void mcd_session_accept(struct mcd_agent *a, int socket);
/* A message, a hang-up or the death of the process. Called from the event loop. */
void mcd_session_readable(struct mcd_session *s);
/* Ends the session; idempotent. `why`, a static text, is logged when it is not NULL. */
void mcd_session_end(struct mcd_session *s, const char *why);
/* Drives what waits (operations, endings) and ends sessions that engines or the fault handler
 * complain of. Returns true while something waits for engines, or for what tells nobody; a->due is when the next of the others
 * is to be looked at if nothing rings. */
bool mcd_sessions_poll(struct mcd_agent *a);

/* handlers.c: one request; replies at once or starts an operation. */
void mcd_session_handle(struct mcd_session *s, struct mcs_msg *m, int *fds, unsigned nfds);

/* Replies. Both end the session when the client does not take its mail. */
void mcd_session_reply(struct mcd_session *s, struct mcs_msg *m, size_t body_size, const int *fds,
                       unsigned nfds);
void mcd_session_refuse(struct mcd_session *s, uint32_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Begins the session's operation, or its next stage, with a grace period from now on. */
void mcd_session_defer(struct mcd_session *s, bool (*ready)(struct mcd_session *s),
                       void (*finish)(struct mcd_session *s));
/* The same for what may take long: whatever makes it ready wakes the loop, or it is ready at op.deadline, which this sets (ns; 0:
 * there is none). */
void mcd_session_await(struct mcd_session *s, uint64_t deadline,
                       bool (*ready)(struct mcd_session *s), void (*finish)(struct mcd_session *s));

/* Adds what a queue's client says, as far as it can be true. */
void mcd_queue_reported(const struct mcd_queue *q, struct mcd_reported *sum);

/* A queue's memory and the agent's half of it go; no engine has it any more. */
void mcd_session_free_queue(struct mcd_session *s, struct mcd_queue *q);
/* The name and all buffers of the session's segment go; *old is to be freed after grace. */
void mcd_session_withdraw(struct mcd_session *s, struct mcd_snapshot **old);

/* Enters the segment, whose name is set, among those with a name. */
void mcd_session_name(struct mcd_session *s);
/* What the metadata is told of the segment. There is a cluster. */
void mcd_session_meta_record(const struct mcd_session *s, struct mcm_record *out);
/* The name alone goes: it could not be had in the whole cluster. */
void mcd_session_unname(struct mcd_session *s);

/* Memory that counts for the session and its tenant, more or (negative) less. */
void mcd_session_hold(struct mcd_session *s, int64_t bytes);

/* A free handle of one of the tables: 0 when it is full. */
uint32_t mcd_session_handle_new(struct mcd_session *s, void *const *table);
struct mcd_extent *mcd_session_extent(struct mcd_session *s, uint32_t handle);
struct mcd_open *mcd_session_open(struct mcd_session *s, uint32_t handle);

#endif
