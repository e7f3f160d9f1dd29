/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine: one poll loop on one core that takes descriptors from its queues, checks them,
 * moves bytes and fills slots.  It never blocks and makes no control call.
 *
 * The control thread hands queues over and takes them back by commands; everything in
 * struct mcd_queue below "engine" belongs to the engine in between.  What engines look up
 * (extents, open segments, buffers) is swapped under them by the control thread and freed
 * after a grace period: an engine keeps no such pointer beyond one turn.
 */
#ifndef MCD_ENGINE_H
#define MCD_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "segment.h"
#include "share.h"
#include "shm/queue.h"
#include "shm/stats.h"
#include "trace.h"
#include "transports/transport.h"
#include "wheel.h"

#define MCD_ENGINES_MAX 64u
#define MCD_NETS_MAX 4u
#define MCD_ROUTES_MAX 16384u /* of one engine */
#define MCD_BURST 32u         /* descriptors taken from one queue a turn */
#define MCD_NO_TASK UINT32_MAX

struct mcd_engine;
struct mcd_asks;
struct mcd_gpu_jobs;
struct mcd_gpu_lane;
struct mcd_gpu_tasks;
struct mcd_lane;
struct mcd_leg;
struct mcd_object;
struct mcd_objects;
struct mcd_store;
struct mcd_ledger_queue;
struct mcd_net;
struct mcd_queue;
struct mcd_session;
struct mcd_slice;
struct mcd_stages;

/* Requests about objects; likewise. By op: MCS_OP_PUT first. */
#define MCD_OBJECT_OPS ((unsigned)(MCS_OP_HOLD - MCS_OP_PUT) + 1)
struct mcd_object_counters {
    uint64_t requests[MCD_OBJECT_OPS], keys[MCD_OBJECT_OPS]; /* that completed */
    uint64_t bytes[MCD_OBJECT_OPS];                          /* PUT, GET */
    uint64_t statuses[MCS_STATUS_COUNT];                     /* of keys, but of EXIST and PREFIX */
    uint64_t space_waits;                        /* a key had to wait for space or disk */
    uint64_t far_keys, legs, leg_bytes, retries; /* read from other hosts */
    uint64_t gpu_put_bytes, gpu_get_bytes;       /* of the callers' GPU memory */
    uint64_t damaged;                            /* checksums that were wrong */
    uint64_t summed_bytes, summed_ns; /* checksums that were computed, and the time for it */
    uint64_t released;                /* holds */
};

/* Counters have one writer, the engine; others read them relaxed. */
struct mcd_counters {
    uint64_t tasks;                    /* ended */
    uint64_t bytes;                    /* moved */
    uint64_t states[MCS_STATE_COUNT];  /* ended, by state */
    uint64_t errors[MCS_STATUS_COUNT]; /* ended, by cause */
    uint64_t notifications;            /* delivered */
    uint64_t inbox_full;               /* turns a delivery found no room */
    uint64_t futex_wakes;
    uint64_t broken; /* queues given up for a protocol error */
    uint64_t faults; /* copies that met memory taken away */
    uint64_t turns, sleeps;
    uint64_t served_refused[MCS_STATUS_COUNT]; /* requests of peers, by cause */
    uint64_t moved_over;                       /* slices that went on to another rail */
    uint64_t fallback_slices,
        fallback_bytes;              /* given to a slower transport than the route's best */
    uint64_t kills;                  /* lost connections that a peer has confirmed dead */
    uint64_t gate_waits, gates_gone; /* tasks that had to wait for a gate; that could not signal */
    uint64_t gpu_tasks, gpu_bytes;   /* with an end in GPU memory */
    /* slices and requests of peers that went between GPU memory and another host through host memory */
    uint64_t gpu_staged_out, gpu_staged_out_bytes, gpu_staged_in, gpu_staged_in_bytes;
    struct mcd_object_counters objects;
};

struct mcd_batch {
    uint32_t generation, ended, failed, taken;
    uint64_t bytes;
    uint32_t open; /* tasks, of any generation, that did not end at once and have not ended */
    bool dirty;
};

/* ADD and REMOVE a queue; CALL: a function in the engine's thread, once a turn until it returns
 * true. REMOVE is done when nothing of the queue is under way. */
enum mcd_command_kind { MCD_COMMAND_ADD, MCD_COMMAND_REMOVE, MCD_COMMAND_CALL };
struct mcd_command {
    enum mcd_command_kind kind;
    struct mcd_queue *queue;
    bool (*call)(struct mcd_engine *g, struct mcd_command *c);
    void *context;
    uint32_t done;            /* engine: release; control: acquire */
    struct mcd_command *next; /* the engine's, of those that are not over */
};

/* The lists of parked tasks: one a class, one of those whose notification found no room. */
#define MCD_WAITING ((unsigned)MCS_CLASS_COUNT)
#define MCD_LISTS (MCD_WAITING + 1)
#define MCD_UNLISTED MCD_LISTS /* to another host, and all of it under way; or it waits: q->waits */

enum mcd_phase { MCD_CHECK, MCD_MOVE, MCD_DELIVER };

/* A task that did not end in the turn it was taken. One record a slot. */
struct mcd_task {
    struct mcs_desc desc;
    struct mcs_args args; /* private copy of the argument block's head */
    struct mcd_queue *q;
    struct mcd_timer timer; /* at the deadline, or before it when something else is awaited */
    uint64_t deadline;      /* ticks */
    uint64_t taken;         /* ticks: start of the turn that took it */
    uint64_t started;       /* ticks: first byte */
    uint64_t moved_at;      /* ticks: last byte */
    uint64_t bytes;         /* moved */
    uint64_t total;         /* of all pieces, known after MCD_CHECK */
    uint64_t piece;         /* next piece */
    uint64_t piece_done;    /* bytes of it that are done */
    uint64_t checked;       /* what its checks cost and its bytes have not made up for */
    uint32_t queue_ns;
    enum mcd_phase phase;
    uint8_t list;                  /* its class, or MCD_WAITING, or MCD_UNLISTED */
    uint32_t list_prev, list_next; /* FIFO of that list: the queue's, or the lane's */
    uint32_t age_prev, age_next;   /* FIFO of the queue */
    /* to another host */
    struct mcd_lane *lane;    /* NULL: of this host */
    struct mcd_slice *slices; /* cut and not through */
    uint32_t nslices;
    uint32_t wanted; /* of the description that it waits for */
    uint64_t uncut;  /* bytes, in the route's sum of what waits */
    uint16_t error;  /* when it is ending: */
    uint8_t state;
    bool ending, hurried;      /* its slices are being called back; were */
    bool awaits, looked;       /* a fresh description; had one */
    bool inbox_full;           /* and tries again soon */
    uint8_t fulls;             /* times in a row */
    bool unsettled;            /* something of it may still land at the peer */
    bool carried;              /* slices have come through: */
    uint8_t tier, path;        /* slowest of what carried them; before that, what is tried */
    int8_t node;               /* NUMA, of the memory here; -1 unknown */
    uint32_t unfit;            /* rails, a bit each, that could not carry a slice of it */
    struct mcd_object *object; /* a request about objects; NULL: it is none */
    struct mcd_leg *leg;       /* a part of one, to another host; NULL: it is none */
    bool on_gpu;               /* to another host, and its memory here is a GPU's */
    /* gate.h */
    struct mcs_gate gate; /* with MCS_DESC_WAIT: private copy, checked */
    struct mcd_task *gate_next, *gate_prev;
    bool gated; /* waits for it */
    /* gpu_task.h */
    int8_t gpu;               /* device of an end of its first piece that has one; -1: none has */
    struct mcd_gpu_lane *way; /* while it moves; NULL: it does not, or moves no GPU memory */
    bool in_lane;             /* some of it is not posted yet */
    uint32_t jobs;            /* copies of it that are out */
};

/* Tasks that wait for gates. */
struct mcd_gates {
    struct mcd_task *first, *last;
    struct mcd_task *look; /* the next one looked at */
    uint64_t since;        /* ticks: when the youngest began to wait */
};

struct mcd_queue {
    /* control thread */
    struct mcd_session *session;
    struct mcd_engine *engine;
    struct mcd_tenant *tenant; /* the session's; NULL: none */
    uint32_t id;
    int fd, guard;
    struct mcd_queue *next;          /* of the session */
    uint64_t opened;                 /* ns; 0: by an earlier agent */
    uint64_t quiet_at;               /* ns: when it was last seen without a caller's copy */
    uint64_t memory;                 /* bytes it counts for in the agent's queue_memory */
    struct mcd_command leave;        /* while the session ends; or while it comes back */
    struct mcd_ledger_queue *record; /* NULL: no ledger is kept */
    bool given;                      /* an engine has it */
    /* set before the engine has it */
    struct mcs_queue shm;
    /* engine */
    struct mcs_ring_consumer consumer;
    struct mcd_task *tasks;    /* by slot */
    uint64_t *active;          /* a bit a slot: parked tasks */
    struct mcd_batch *batches; /* by index */
    uint32_t list_head[MCD_LISTS], list_tail[MCD_LISTS];
    uint32_t age_head, age_tail;
    uint32_t resume;  /* of those that wait: who is tried next */
    uint32_t parked;  /* tasks of this host, in the lists */
    uint32_t remote;  /* tasks to other hosts */
    uint32_t waits;   /* in no list: requests about objects, tasks before a gate or between GPUs */
    uint32_t windows; /* that requests about objects have */
    struct mcd_object *windowless, *windowless_last; /* those that wait for one */
    struct mcd_gpu_lane *gpu_lanes;                  /* of all devices; list */
    struct mcd_lane **lanes;                         /* by the route's index */
    uint32_t nlanes;                                 /* room for them */
    struct mcd_queue *touched_next;                  /* of those with batches to publish */
    bool touched;
    uint32_t dirty[MCD_BURST * 2], ndirty; /* batches to publish */
    uint64_t wake_due;                     /* turn at which to look for a sleeping client; 0 none */
    uint64_t last_work;                    /* ticks */
    bool hot, broken;
    uint32_t place;                /* index in the engine's hot or cold array */
    struct mcs_stats_queue *stats; /* counts; read relaxed by the control thread and others */
    struct mcd_trace trace;
    bool full;                  /* its ring had a whole burst */
    uint8_t full_class;         /* of the last one in it */
    struct mcd_share_leaf leaf; /* its share of the engine's copies */
    /* engine -> control */
    uint32_t error; /* enum mcs_status: why the session must end; release / acquire */
    /* where `stats` points to when the stats file has no row for it */
    struct mcs_stats_queue own_stats __attribute__((aligned(64)));
};

struct mcd_engine_options {
    unsigned id;
    int core; /* for show only; -1 unknown */
    bool never_sleeps;
    uint64_t tick_hz;
    uint32_t tick_shift;
    uint64_t spin_us;
    uint64_t slice;      /* bytes of one queue a turn */
    uint64_t stream_min; /* bytes of a task from which copies go past the cache */
    uint64_t deadline_us;
    bool fence_turns; /* no membarrier: a full fence each turn */
    int control_fd;   /* eventfd: written when the control thread has something to see */
    /* other hosts */
    const struct mct_ops *const *nets; /* transports; must live as long as the engine */
    unsigned nnets;
    bool network;            /* they want an io_uring */
    struct mct_rdma *rdma;   /* the host's RDMA devices; NULL: none */
    struct mcd_store *store; /* objects; NULL: none */
    struct mct_cuda *cuda;   /* the host's GPUs; NULL: [gpu] enable = off */
    uint64_t gpu_staging;    /* bytes of stages; 0: none */
    bool checksum;           /* CRC32C of each slice that this side sends */
    uint64_t zero_copy_min;  /* bytes; UINT64_MAX: never */
    unsigned max_requests;   /* unanswered on one connection; 0: the transport's default */
    uint64_t (*clock)(void); /* ns: for simulated time in tests; NULL: the processor's */
};

struct mcd_engine {
    struct mcd_engine_options o;
    /* shared with the control thread */
    uint64_t epoch __attribute__((aligned(128))); /* turns begun */
    uint32_t asleep;
    uint32_t stop;
    uint32_t ended; /* the loop has returned */
    struct mcd_counters counters __attribute__((aligned(128)));
    /* engine */
    struct mcd_queue **hot __attribute__((aligned(128)));
    struct mcd_queue **cold;
    uint32_t nhot, ncold, room, cold_next;
    uint64_t turn, now, last_work;
    uint64_t moved; /* bytes in this turn */
    bool bulk;      /* what came last over networks was large */
    unsigned burst; /* descriptors taken from one queue a turn: MCD_BURST; 0: nothing new begins */
    uint64_t yielded;         /* ticks */
    uint64_t idle;            /* ticks without work */
    uint64_t idle_at;         /* ticks: up to where they are counted */
    uint64_t spent;           /* of the slice of this turn, where queues share */
    struct mcd_shares shares; /* of queues, in copies of this host */
    uint64_t yield_ticks, spin_ticks, cool_ticks, ticks_per_us, ns_mult;
    struct mct_link *local;
    struct mct *local_transport;
    const struct mct_ops *local_ops;
    struct mcd_wheel *wheel;
    struct mcd_net *net;
    struct mcd_objects *objects; /* requests about objects; NULL: no store */
    struct mcd_gates gates;
    struct mcd_gpu_jobs *gpu_jobs;   /* copies of GPU memory; NULL: [gpu] enable = off */
    struct mcd_gpu_tasks *gpu_tasks; /* tasks that make them; likewise */
    struct mcd_stages *stages; /* between GPU memory and other hosts; NULL: [gpu] staging = 0 */
    struct mcd_asks *asks;     /* of the catalog, answered; its own */
    struct rte_ring *commands;
    struct mcd_command *calls; /* that are not over */
    uint64_t commands_at, commands_ticks;
    int epoll_fd, event_fd;
    struct mcs_stats_engine *stats; /* what others see; set before the loop runs */
    struct mcs_stats_engine own_stats;
    /* control thread: which indices of routes are taken, a bit each */
    uint64_t routes_used[MCD_ROUTES_MAX / 64];
};

int mcd_engine_create(const struct mcd_engine_options *o, struct mcd_engine **out);
void mcd_engine_destroy(struct mcd_engine *g);

/* The loop; returns after mcd_engine_stop(). */
void mcd_engine_run(struct mcd_engine *g);
/* One turn; true when there was something to do. For tests and for the loop. */
bool mcd_engine_turn(struct mcd_engine *g);
void mcd_engine_stop(struct mcd_engine *g);
/* Any thread: ends its sleep. What it is to find was stored before, and is looked at before it sleeps. */
void mcd_engine_wake(struct mcd_engine *g);

/* Control thread. The command stays the caller's until its `done` is set; the engine then writes control_fd. */
void mcd_engine_command(struct mcd_engine *g, struct mcd_command *command);
/* The same for a CALL. */
void mcd_engine_call(struct mcd_engine *g, struct mcd_command *c,
                     bool (*call)(struct mcd_engine *, struct mcd_command *), void *context);
/* Control thread: what may change while the engine runs. */
void mcd_engine_tune(struct mcd_engine *g, uint64_t deadline_us, uint64_t spin_us, uint64_t slice,
                     uint64_t stream_min);
/* Control thread, before the loop runs: where the engine shows what it does. */
void mcd_engine_show(struct mcd_engine *g, struct mcs_stats_engine *stats);
/* Engine's thread: wakes the control thread. */
void mcd_engine_tell_control(struct mcd_engine *g);
/* For mcd_engine_call(): takes nothing new, ends what was taken. Over when nothing is left. */
bool mcd_engine_drain(struct mcd_engine *g, struct mcd_command *c);
/* Control thread: the buffers of all public segments, which peers that name none may reach; NULL:
 * none. The old ones are free after a grace period. */
void mcd_engine_open_buffers(struct mcd_engine *g, struct mcd_snapshot *buffers);
/* Control thread: the engine wakes when this eventfd (a session's doorbell) is written. */
int mcd_engine_watch(struct mcd_engine *g, int event_fd);
void mcd_engine_unwatch(struct mcd_engine *g, int event_fd);

/* Sets up and frees the engine's half of a queue; the memory is laid out by the caller. */
int mcd_queue_init(struct mcd_queue *q);
void mcd_queue_fini(struct mcd_queue *q);

/* ---- burst.c, task.c: what one turn does for one queue --------------------------- */

/* Takes and checks; runs what may go at once, parks the rest. True when something happened. */
bool mcd_queue_turn(struct mcd_engine *g, struct mcd_queue *q);
/* Goes on with parked tasks, by shares: a slice of them. True when something happened. */
bool mcd_parked_turn(struct mcd_engine *g);
/* Tells the shares what of the queue could go on now. */
void mcd_queue_share(struct mcd_engine *g, struct mcd_queue *q);
/* Ends all parked tasks as CANCELED and publishes; asks those that are under way to another host to
 * end. True when none is left. */
bool mcd_queue_cancel_all(struct mcd_engine *g, struct mcd_queue *q);
/* Wakes the client if it sleeps on one of the queue's batches. */
void mcd_queue_wake(struct mcd_engine *g, struct mcd_queue *q);

/* Ends what is late, and tries again what waits for something. */
void mcd_task_timer(struct mcd_engine *g, struct mcd_timer *timer);

static inline uint64_t mcd_ticks_to_ns(const struct mcd_engine *g, uint64_t ticks)
{
    return (uint64_t)((unsigned __int128)ticks * g->ns_mult >> 32);
}

/* ---- grace periods --------------------------------------------------------------- */

/*
 * What the engines were doing when something was taken away.  The engines mark their turns
 * with plain stores; the fence that this scheme needs on their side is put there by the
 * control thread's membarrier(2) when a grace period begins.  Where the kernel or a sandbox
 * has no membarrier, engines are made with `fence_turns` and pay for one themselves.
 */
bool mcd_grace_has_membarrier(void);

struct mcd_grace {
    unsigned n;
    struct mcd_engine *const *engines;
    uint64_t epochs[MCD_ENGINES_MAX];
};

/* Control thread: begins one, after the pointers were swapped. */
void mcd_grace_begin(struct mcd_grace *grace, struct mcd_engine *const *engines, unsigned n);
/* True once every engine has begun a turn since, or sleeps: nothing swapped out is in use. */
bool mcd_grace_over(const struct mcd_grace *grace);

#endif
